"""Files of torch.save, one for each rank of a sharded run, whose DTensors are pieces of the tensors of one checkpoint.

verl writes `model_world_size_8_rank_3.pt`, accelerate `pytorch_model_fsdp_rank3.bin`, others `*.rank_3.pth`.
"""

from __future__ import annotations

from ckpt.checkpoint import Traits
from ckpt.formats.format import Format
from ckpt.formats.fsdp.sets import sets_of
from ckpt.formats.probe import Probe


def sniff(probe: Probe) -> bool:
    """Whether a folder holds files of ranks with pieces. A file alone is a file of torch.save."""
    return sets_of(probe) is not None


def files(probe: Probe) -> tuple[str, ...] | None:
    sets = sets_of(probe)
    return None if sets is None else tuple(name for each in sets[0] for name in each.files.values())


FORMAT = Format(
    "fsdp-ranks",
    Traits("FSDP ranks", is_pickle=True, keeps_devices=True, has_checksums=True, is_set=True),
    sniff,
    files,
    reader="ckpt.formats.fsdp.reader",
    verifier="ckpt.formats.fsdp.reader",
)
