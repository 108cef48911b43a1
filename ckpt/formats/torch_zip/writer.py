"""Writing torch's zip format: a whole file, or a new pickle and directory at the end of
a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.elements.blocks import is_big
from ckpt.elements.computed import little_endian_storage
from ckpt.formats.common.appended import end_before
from ckpt.formats.common.archive import COMPUTED_OFFSETS, OWN, Archive
from ckpt.formats.common.directory import Record
from ckpt.formats.common.layout import (
    ALIGNMENT,
    VERSION,
    PlannedRecord,
    alignment_of,
    appended_records,
    bytes_record,
    copied_record,
    fresh_records,
    is_sound,
    lay_out,
    storage_record,
)
from ckpt.formats.common.writing import Draft, Keys, compare, compare_bytes, to_bytes
from ckpt.formats.torch_zip.reader import ArchiveOrigin, read_from, refused_version
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import WriteError
from ckpt.model.limits import Limits
from ckpt.model.places import Range
from ckpt.model.tensors import Storage
from ckpt.pickle.emit import emit_pickle

__all__ = [
    "append",
    "compare",
    "compare_bytes",
    "draft",
    "end_before",
    "losses",
    "unfit",
]


def losses(checkpoint: Checkpoint) -> list[str]:
    """Return an empty list: the format holds everything."""
    return []


def unfit(entry: Entry) -> str | None:
    """Return None: the format holds every tensor."""
    return None


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The archive of a checkpoint, in torch's own layout.

    A checkpoint from such an archive keeps its root, its records and their order.
    Without edits every byte keeps its place; with edits storages keep their position
    within a page. Raises LimitError.
    """
    pickle, keys = _emit_pickle(checkpoint, limits)
    origin = checkpoint.origin if isinstance(checkpoint.origin, ArchiveOrigin) else None
    # Torch swaps all storages of a file or none, so mixed byte orders become
    # little-endian.
    used = keys.storages.values()
    is_all_big = any(map(is_big, used)) and all(map(_fits_big, used))
    if not is_all_big:
        keys.storages = {
            key: little_endian_storage(storage)
            for key, storage in keys.storages.items()
        }
    order = b"big" if is_all_big else b"little"
    if origin is None:
        records = fresh_records(order, pickle, keys)
        alignment = ALIGNMENT
    else:
        records = _rewritten_records(origin, order, pickle, keys)
        alignment = alignment_of(origin.archive)
    layout = lay_out(records, alignment)
    # With these records torch computes where storages lie, and would read other bytes.
    if not layout.regular or not _in_order(records, keys):
        root = records[0].name.partition("/")[0]
        computed = {f"{root}/{name}" for name in COMPUTED_OFFSETS}
        layout = lay_out(
            [record for record in records if record.name not in computed], alignment
        )
    return Draft(layout.size, layout.write)


def _fits_big(storage: Storage) -> bool:
    """Tell whether the bytes of a storage can stand in a big-endian file."""
    return is_big(storage) or (storage.dtype is not None and storage.dtype.bits <= 8)


def append(checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, bytes]:
    """Return the bytes to append to the archive of a checkpoint: a record, then a new
    directory.

    The record is the new pickle. Storages stay where they are; the old pickle and the
    old directory remain as unused bytes. The old directory stays valid until the last
    byte is written. Our own reader reads the new end first. Raises WriteError when the
    storages were edited as well.
    """
    pickle, keys = _emit_pickle(checkpoint, limits)
    assert isinstance(checkpoint.origin, ArchiveOrigin)
    archive = checkpoint.origin.archive
    for key, storage in keys.storages.items():
        old = archive.find(f"data/{key}")
        place = storage.place
        # Only a range can be a record of the archive itself.
        if old is None or not isinstance(place, Range) or place.offset != old.offset:
            raise WriteError(
                "the storages change, so they cannot stay in place",
                hint="--in-place --copy",
            )
    record, directory, whole = appended_records(archive, {"data.pkl": pickle}, limits)
    compare(checkpoint, read_from(whole, checkpoint.path, limits))
    return record, directory


def _emit_pickle(checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, Keys]:
    origin = checkpoint.origin
    kept = origin.folder if isinstance(origin, ArchiveOrigin) else ()
    keys = Keys(checkpoint.storages, kept)
    data = emit_pickle(checkpoint.root, keys, to_bytes, limits)
    if isinstance(origin, ArchiveOrigin) and not checkpoint.is_edited:
        # Our own pickle loads to the same object, and is not the same bytes.
        record = origin.archive.find("data.pkl")
        assert record is not None
        data = origin.archive.read(record, limits.pickle_bytes, "pickle-bytes")
    return data, keys


def _rewritten_records(
    origin: ArchiveOrigin, order: bytes, pickle: bytes, keys: Keys
) -> list[PlannedRecord]:
    """The records of the archive in their order, new storages after the old ones."""
    archive = origin.archive
    folder = f"{archive.root}/data/"
    # Damaged ones are made again, or left out.
    own = {f"{archive.root}/{name}" for name in OWN}
    version, hidden = f"{archive.root}/version", f"{archive.root}/.data/version"
    is_refused = refused_version(archive) is not None
    remaining = dict(keys.storages)
    records: list[PlannedRecord] = []
    after = 0
    in_file_order = sorted(
        _meant_records(archive, keys), key=lambda record: record.header
    )
    for record in in_file_order:
        key = None
        if record.name.startswith(folder):
            key = record.name.removeprefix(folder)
        if record.name == f"{archive.root}/data.pkl":
            records.append(bytes_record(record.name, pickle))
        elif record.name == f"{archive.root}/byteorder":
            records.append(bytes_record(record.name, order))
        elif key is not None and key in remaining:
            records.append(
                storage_record(record.name, remaining.pop(key), record.offset)
            )
        elif record.name in (version, hidden) and is_refused:
            continue
        elif (
            record.name in own and archive.is_partial and not is_sound(archive, record)
        ):
            if record.name == version:
                records.append(bytes_record(record.name, VERSION))
        elif record.name not in origin.left_out and (
            key is None or key not in origin.folder
        ):
            records.append(copied_record(archive, record))
        after = len(records) if key is not None or not after else after
    # A pickle that was appended in place moves back to the front, where torch writes
    # it.
    records.sort(key=lambda record: record.name != f"{archive.root}/data.pkl")
    new = [storage_record(folder + key, storage) for key, storage in remaining.items()]
    if is_refused:
        new.append(bytes_record(version, VERSION))
    return [*records[:after], *new, *records[after:]]


def _meant_records(archive: Archive, keys: Keys) -> Iterator[Record]:
    """Yield the records of an archive. One with two names, of which one is damaged,
    comes under the name that is asked for.

    Of a damaged archive only what lies below its root is taken, under names that can be
    written.
    """
    if not archive.is_partial:
        yield from archive.records.values()
        return
    folder = f"{archive.root}/"
    names = ("data.pkl", "byteorder", *OWN, *(f"data/{key}" for key in keys.storages))
    asked = {folder + name for name in names}
    every = list(archive.records.values())
    found = {record.header for record in every if record.name in asked}
    for record in every:
        is_other = record.header not in found and _is_name(record.name, folder)
        if record.name in asked or is_other:
            yield record


def _is_name(name: str, folder: str) -> bool:
    return name.startswith(folder) and not name.endswith("/") and name.isprintable()


def _in_order(records: Sequence[PlannedRecord], keys: Keys) -> bool:
    """Tell whether the storages are in the order in which the pickle names them."""
    names = [
        record.name.rpartition("/data/")[2]
        for record in records
        if "/data/" in record.name
    ]
    return names == list(keys.storages)
