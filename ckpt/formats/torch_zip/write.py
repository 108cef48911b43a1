"""Writing torch's zip format: a whole file, or a new pickle and directory at the end of a file."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.elements.blocks import is_big, little, pour
from ckpt.errors import WriteError
from ckpt.formats.archive import MARK, Archive, read_archive
from ckpt.formats.directory import Record
from ckpt.formats.draft import Draft, Keys
from ckpt.formats.torch_legacy import write as torch_legacy
from ckpt.formats.torch_zip.appended import end_before
from ckpt.formats.torch_zip.layout import (
    ALIGNMENT,
    Layout,
    PlannedRecord,
    WrittenRecord,
    bytes_record,
    lay_out,
    padding,
    write_directory,
    write_record,
)
from ckpt.formats.torch_zip.read import ArchiveOrigin, read_from
from ckpt.formats.written import compare, compare_bytes
from ckpt.io.commit import MemorySink
from ckpt.io.source import Extended
from ckpt.limits import Limits
from ckpt.nodes import Node
from ckpt.pickles.emit import emit
from ckpt.tensors import Range, Storage

__all__ = [
    "append",
    "appended",
    "archive_of",
    "compare",
    "compare_bytes",
    "draft",
    "end_before",
    "losses",
    "unfit",
]

_COMPUTED_OFFSETS = (".format_version", ".storage_alignment")
"""Records that let torch compute the offsets of storages instead of reading them."""


_LARGE = 1 << 20


def losses(checkpoint: Checkpoint) -> list[str]:
    """Always empty: the format holds everything."""
    return []


def unfit(entry: Entry) -> str | None:
    """Always None: the format holds every tensor."""
    return None


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The archive of a checkpoint, in torch's own layout.

    A checkpoint from such an archive keeps its root, its records and their order. Without edits every byte keeps
    its place; with edits storages keep their position within a page. Raises LimitError.
    """
    pickle, keys = _pickle(checkpoint, limits)
    origin = checkpoint.origin if isinstance(checkpoint.origin, ArchiveOrigin) else None
    # Torch swaps all storages of a file or none, so mixed byte orders become little-endian.
    used = keys.storages.values()
    big = any(map(is_big, used)) and all(is_big(s) or (s.dtype and s.dtype.bits <= 8) for s in used)
    if not big:
        keys.storages = {key: little(storage) for key, storage in keys.storages.items()}
    order = b"big" if big else b"little"
    records = _fresh(order, pickle, keys) if origin is None else _again(origin, order, pickle, keys)
    alignment = alignment_of(origin.archive) if origin else ALIGNMENT
    layout = lay_out(records, alignment)
    if not layout.regular or not _in_order(records, keys):
        root = records[0].name.partition("/")[0]
        left = {f"{root}/{name}" for name in _COMPUTED_OFFSETS}
        layout = lay_out([record for record in records if record.name not in left], alignment)
    return Draft(layout.size, layout.write)


def archive_of(root: Node, limits: Limits) -> tuple[Layout, bytes, tuple[Storage, ...]]:
    """The archive that torch.save writes for an object, its pickle, and its storages. Raises LimitError."""
    keys = Keys(())
    pickle = emit(root, keys, torch_legacy.to_bytes, limits)
    storages = tuple(keys.storages.values())
    keys.storages = {key: little(storage) for key, storage in keys.storages.items()}
    return lay_out(_fresh(b"little", pickle, keys)), pickle, storages


def append(checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, bytes]:
    """What to append to the archive of a checkpoint: a record, then a new directory.

    The record is the new pickle. Storages stay where they are; the old pickle and the old directory remain as
    unused bytes. The old directory stays valid until the last byte is written. Our own reader reads the new end
    first. Raises WriteError when the storages were edited as well.
    """
    pickle, keys = _pickle(checkpoint, limits)
    assert isinstance(checkpoint.origin, ArchiveOrigin)
    archive = checkpoint.origin.archive
    for key, storage in keys.storages.items():
        old = archive.find(f"data/{key}")
        place = storage.place
        if old is None or not isinstance(place, Range) or place.offset != old.offset:
            raise WriteError("the storages change, so they cannot stay in place", hint="--in-place --copy")
    record, directory, whole = appended(archive, {"data.pkl": pickle}, limits)
    compare(checkpoint, read_from(whole, checkpoint.path, limits))
    return record, directory


def appended(archive: Archive, pickles: dict[str, bytes], limits: Limits) -> tuple[bytes, bytes, Archive]:
    """The records that replace some of an archive, its new directory, and the archive with both at its end.

    `data.pkl` comes first: its mark says where the old archive ends.
    """
    start = archive.source.size
    mark = pack("<2sHQ", MARK, 8, start)
    sink = MemorySink(start)
    new: list[WrittenRecord] = []
    for name, data in pickles.items():
        planned = bytes_record(f"{archive.root}/{name}", data)
        new.append(write_record(sink, planned, sink.position, padding(planned, sink.position, mark), mark))
        mark = b""
    records = sink.taken()
    replaced = {row.name.decode() for row in new}
    write_directory(
        sink, [*(_row(row) for name, row in archive.records.items() if name not in replaced), *new]
    )
    directory = sink.taken()
    return records, directory, read_archive(Extended(archive.source, records + directory), limits)


def _pickle(checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, Keys]:
    origin = checkpoint.origin
    keys = Keys(checkpoint.storages, origin.folder if isinstance(origin, ArchiveOrigin) else ())
    data = emit(checkpoint.root, keys, torch_legacy.to_bytes, limits)
    if isinstance(origin, ArchiveOrigin) and not checkpoint.is_edited:
        record = origin.archive.find("data.pkl")
        assert record is not None
        data = origin.archive.read(record, limits.pickle_bytes, "pickle-bytes")
    return data, keys


def _fresh(order: bytes, pickle: bytes, keys: Keys) -> list[PlannedRecord]:
    records = [
        bytes_record("archive/data.pkl", pickle),
        bytes_record("archive/byteorder", order),
    ]
    records += [_storage(f"archive/data/{key}", storage) for key, storage in keys.storages.items()]
    return [*records, bytes_record("archive/version", b"3\n")]


def _again(origin: ArchiveOrigin, order: bytes, pickle: bytes, keys: Keys) -> list[PlannedRecord]:
    """The records of the archive in their order, new storages after the old ones."""
    archive = origin.archive
    folder = f"{archive.root}/data/"
    left = dict(keys.storages)
    records: list[PlannedRecord] = []
    after = 0
    for record in sorted(archive.records.values(), key=lambda record: record.header):
        key = record.name.removeprefix(folder) if record.name.startswith(folder) else None
        if record.name == f"{archive.root}/data.pkl":
            records.append(bytes_record(record.name, pickle))
        elif record.name == f"{archive.root}/byteorder":
            records.append(bytes_record(record.name, order))
        elif key is not None and key in left:
            records.append(_storage(record.name, left.pop(key), record.offset))
        elif key is None or key not in origin.folder:
            records.append(copied(archive, record))
        after = len(records) if key is not None or not after else after
    # A pickle that was appended in place moves back to the front, where torch writes it.
    records.sort(key=lambda record: record.name != f"{archive.root}/data.pkl")
    new = [_storage(folder + key, storage) for key, storage in left.items()]
    return [*records[:after], *new, *records[after:]]


def _storage(name: str, storage: Storage, like: int | None = None) -> PlannedRecord:
    if like is None and isinstance(storage.place, Range) and storage.nbytes >= _LARGE:
        like = storage.place.offset  # a gap is worth it, because the copy is faster
    return PlannedRecord(name, storage.nbytes, lambda sink: pour(storage, sink, crc=True), like)


def copied(archive: Archive, record: Record) -> PlannedRecord:
    """A record that ckpt does not write itself, with its own bytes. A deflated one is inflated."""
    place = record.place(archive.source)
    whole = Storage(record.name, None, None, record.size, place, record.crc)
    return PlannedRecord(record.name, record.size, lambda sink: pour(whole, sink, crc=True))


def _row(record: Record) -> WrittenRecord:
    """A record that stays where it is. A CRC of 0 still means "not recorded"."""
    return WrittenRecord(
        record.name.encode(),
        record.size,
        record.crc or 0,
        record.header,
        8 if record.deflated else 0,
        record.stored,
        record.flags,
    )


def alignment_of(archive: Archive) -> int:
    record = archive.find(".storage_alignment")
    if record is not None and record.size < 8:
        text = archive.read(record, 8, "entries")
        if text.isdigit() and 0 < int(text) <= 4096:
            return int(text)
    return ALIGNMENT


def _in_order(records: Sequence[PlannedRecord], keys: Keys) -> bool:
    """Whether the storages are in the order in which the pickle names them."""
    names = [record.name.rpartition("/data/")[2] for record in records if "/data/" in record.name]
    return names == list(keys.storages)
