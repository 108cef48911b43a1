"""The reader of the zip format that torch 1.4 had as an option."""

from __future__ import annotations

from ckpt.formats.common.pickled import Contents, interpret_pickle, make_checkpoint, run
from ckpt.formats.common.storages import StorageFolder
from ckpt.formats.common.stream import read_nested
from ckpt.formats.format import Probe
from ckpt.formats.torch_zip.opt_in import FORMAT
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.limits import Limits

_ONLY = (
    "only torch 1.4 loads its own optional zip format; ckpt convert writes one that "
    "all load"
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
