"""Writing a TorchScript archive again with other devices in its pickles. Every other record keeps its bytes.

Nothing else is changed, and no archive is made of another checkpoint: the code in it goes with its names.
"""

from __future__ import annotations

from functools import partial

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.errors import UnsupportedError
from ckpt.formats.common.appended import end_before
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import Record
from ckpt.formats.common.layout import PlannedRecord, alignment_of, appended, bytes_record, copied, lay_out
from ckpt.formats.common.writing import Draft, compare, compare_bytes, differs
from ckpt.formats.torchscript.reader import PICKLES, ScriptOrigin, read_from
from ckpt.formats.torchscript.retag import Use, retag
from ckpt.io.commit import Sink
from ckpt.limits import Budget, Limits
from ckpt.tree.view import look

__all__ = ["append", "compare", "compare_bytes", "draft", "end_before", "losses", "unfit"]

_LARGE = 1 << 20


def losses(checkpoint: Checkpoint) -> list[str]:
    """Always empty: the archive stays as it is."""
    return []


def unfit(entry: Entry) -> str | None:
    """Always None: the archive stays as it is."""
    return None


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The archive with the devices of a checkpoint, its records in their order. Raises CkptError."""
    archive = _archive(checkpoint)
    pickles = _pickles(checkpoint, archive, limits)
    records = [
        _record(archive, record, pickles.get(record.name.removeprefix(f"{archive.root}/")))
        for record in sorted(archive.records.values(), key=lambda record: record.header)
    ]
    layout = lay_out(records, alignment_of(archive))
    return Draft(layout.size, layout.write)


def append(checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, bytes]:
    """The changed pickles behind the archive, and the directory that makes them valid. Raises CkptError."""
    archive = _archive(checkpoint)
    records, directory, whole = appended(archive, _pickles(checkpoint, archive, limits), limits)
    compare(checkpoint, read_from(whole, checkpoint.path, limits))
    return records, directory


def _archive(checkpoint: Checkpoint) -> Archive:
    if not isinstance(checkpoint.origin, ScriptOrigin):
        raise UnsupportedError("a TorchScript archive is not made of another file", path=checkpoint.path)
    return checkpoint.origin.archive


def _pickles(checkpoint: Checkpoint, archive: Archive, limits: Limits) -> dict[str, bytes]:
    """The pickles with tensors, by their names, with the devices of the checkpoint. `data.pkl` is the first."""
    tags = _tags(checkpoint, archive, limits)
    budget = Budget(limits)
    made: dict[str, bytes] = {}
    for name in PICKLES:
        record = archive.find(name)
        if record is not None:
            data = archive.read_pickle(record, limits, budget)
            made[name] = retag(data, partial(_moved, tags, name))
    return made


def _moved(tags: dict[Use, dict[str, str]], pickle: str, use: Use, text: str) -> str:
    """What takes the place of a text. Devices in the bytecode are constants of its code, which stay."""
    if use != "storage" and pickle != PICKLES[0]:
        return text
    return tags[use].get(text, text)


def _tags(checkpoint: Checkpoint, archive: Archive, limits: Limits) -> dict[Use, dict[str, str]]:
    """What becomes what, by comparing the checkpoint with its file."""
    before = read_from(archive, checkpoint.path, limits)
    tags: dict[Use, dict[str, str]] = {"storage": {}, "device": {}, "text": {}}  # other texts stay
    new = {storage.id: storage.device for storage in checkpoint.storages}
    for storage in before.storages:
        _note(tags["storage"], storage.device, new.get(storage.id, storage.device))
    for old, value in zip(before.values, checkpoint.values, strict=True):
        if old.type == "torch.device":
            _note(tags["device"], str(look(old.node).value), str(look(value.node).value))
    return tags


def _note(tags: dict[str, str], before: str | None, after: str | None) -> None:
    if before is not None and after is not None and tags.setdefault(before, after) != after:
        raise differs(f"{before} would become two devices")


def _record(archive: Archive, record: Record, pickle: bytes | None) -> PlannedRecord:
    """A record of the result: a changed pickle, or the record as it is, deflated where it is deflated."""
    if pickle is not None:
        return bytes_record(record.name, pickle)
    if record.deflated and record.crc is not None:
        crc, place = record.crc, record.place(archive.source)

        def pour(sink: Sink) -> int:
            sink.copy(place.source, place.offset, record.stored)
            return crc

        return PlannedRecord(record.name, record.stored, pour, inflated=record.size)
    like = record.offset if record.size >= _LARGE else None
    return copied(archive, record)._replace(like=like)
