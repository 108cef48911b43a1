"""A folder that DeepSpeed saved: each rank its part of the flat fp32 weights and of the
optimizer's state.
"""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import CkptError


def sniff(probe: Probe) -> bool:
    if not probe.is_folder and not probe.path.endswith(("latest", "latest_universal")):
        return False
    from ckpt.ext.deepspeed.plan import is_deepspeed

    return is_deepspeed(probe)


def files(probe: Probe) -> tuple[str, ...] | None:
    from ckpt.ext.deepspeed.plan import POINTERS, SCRIPTS, files_in

    try:
        return files_in(probe, probe.limits) if sniff(probe) else None
    except CkptError:
        return (*POINTERS, *SCRIPTS)  # one item, whose error says what is wrong


FORMAT = Format(
    "deepspeed",
    Traits(
        "DeepSpeed checkpoint",
        "get_fp32_state_dict_from_zero_checkpoint({path})",
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
        is_set=True,
    ),
    sniff,
    files,
    reader="ckpt.ext.deepspeed.reader",
    verifier="ckpt.ext.deepspeed.reader",
)
