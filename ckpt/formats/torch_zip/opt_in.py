"""The zip format that torch 1.4 had as an option: storages are `tensors/KEY`. No other
torch reads it.
"""

from __future__ import annotations

from ckpt.formats.common.pickled import Contents, interpret_pickle, make_checkpoint, run
from ckpt.formats.common.storages import StorageFolder
from ckpt.formats.common.stream import read_nested
from ckpt.formats.format import TORCH, Format, Probe
from ckpt.model.checkpoint import Checkpoint, Traits
from ckpt.model.limits import Limits

_ONLY = (
    "only torch 1.4 loads its own optional zip format; ckpt convert writes one that "
    "all load"
)


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return (
        archive is not None
        and archive.find("data.pkl") is not None
        and archive.records.any_below(f"{archive.root}/tensors/")
    )


FORMAT = Format(
    "torch-zip-1.4",
    Traits(
        "PyTorch 1.4 zip",
        "torch.load({path}, {options})",
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
    ),
    sniff,
    reader=__name__,
    suffixes=TORCH,
    verifier="ckpt.formats.common.records",
)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    archive = probe.archive
    assert archive is not None
    budget = probe.budget
    # The directory of the archive is bytes of the file too.
    budget.hold(archive.nbytes)
    record = archive.find("data.pkl")
    assert record is not None
    contents = Contents(archive.notices, read_nested, probe.mark, budget)
    pickle = run(archive.read_pickle(record, limits, budget), limits, budget)
    folder = StorageFolder(archive, "tensors", contents)
    interpret_pickle(pickle, contents, limits, folder.resolve, 0)
    # After the pickle, which says what storages should be there.
    contents.notices += folder.notices()
    return make_checkpoint(
        probe.path,
        FORMAT.name,
        FORMAT.traits,
        pickle.root,
        contents,
        limits,
        source=probe.file,
        not_loadable=_ONLY,
    )
