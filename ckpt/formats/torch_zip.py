"""torch.save since 1.6: a zip archive of `data.pkl`, a record a storage, and a few small ones.

Layout: torch/serialization.py `_save`, `_load`. Offsets come from the local headers only; torch's own
short cut (`.storage_alignment`) is never trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint, Global, Node, Notice, PersistentId, Range, Storage
from ckpt.commit import MemorySink
from ckpt.contents import pour
from ckpt.dtypes import DType
from ckpt.errors import UnreadableError, WriteError
from ckpt.formats import torch_legacy
from ckpt.formats.archive import Archive, Record
from ckpt.formats.draft import KEY, Draft, Keys
from ckpt.formats.pickled import Contents, checkpoint, interpret, run
from ckpt.formats.probe import Probe
from ckpt.formats.zip_layout import (
    ALIGNMENT,
    Planned,
    Written,
    bytes_record,
    lay_out,
    padding,
    write_directory,
    write_record,
)
from ckpt.limits import Limits
from ckpt.names import show
from ckpt.pickles.emit import emit
from ckpt.pickles.rebuild import make_storage, storage_bytes, storage_type

NAME = "torch-zip"
SUFFIXES: tuple[str, ...] = (".pth", ".pt", ".bin", ".ckpt", ".tar")

_COMPUTED_OFFSETS = (".format_version", ".storage_alignment")
"""Records that let torch compute where storages lie, instead of looking."""


class Origin(NamedTuple):
    """The archive that a checkpoint was read from, and the keys of the storages that its pickle names."""

    archive: Archive
    keys: frozenset[str]


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and archive.find("data.pkl") is not None and not is_torch_1_4(archive)


def is_torch_1_4(archive: Archive) -> bool:
    """Whether an archive is of the zip format that torch 1.4 had as an option: storages as `tensors/KEY`."""
    return any(name.startswith(f"{archive.root}/tensors/") for name in archive.records)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    archive = probe.archive
    assert archive is not None
    return read_from(archive, probe.path, limits)


def read_from(archive: Archive, path: str, limits: Limits) -> Checkpoint:
    """The checkpoint in an archive. Raises CkptError."""
    record = archive.find("data.pkl")
    assert record is not None
    byteorder = byteorder_of(archive)
    contents = Contents(archive.notices)
    data = archive.read(record, limits.pickle_bytes, "pickle-bytes")
    pickle = run(data, limits)
    if pickle.end < len(data):
        left = len(data) - pickle.end
        contents.notices.append(
            Notice("trailing-data", f"{left:,} bytes after the pickle in {show(record.name, 60)}")
        )
    if archive.outside:
        contents.not_loadable = f"torch refuses an archive with records outside {show(archive.root, 40)}/"
    folder = StorageFolder(archive, "data", contents)
    interpret(pickle, contents, limits, folder.resolve, 0)
    if archive.find("version") is None and archive.find(".data/version") is None:
        contents.not_loadable = "torch refuses an archive without a record `version`"
        contents.notices.append(Notice("container", contents.not_loadable))
    contents.notices += folder.notices()
    made = checkpoint(path, NAME, archive.source.size, pickle.root, contents, limits, byteorder=byteorder)
    return replace(made, origin=Origin(archive, frozenset(folder.keys())))


def byteorder_of(archive: Archive) -> str:
    """`little` or `big`, as the record `byteorder` says; torch before 2.1 wrote none."""
    record = archive.find("byteorder")
    if record is None:
        return "little"
    text = archive.read(record, 64, "entries") if record.size <= 64 else b"too much"
    if text not in (b"little", b"big"):
        raise UnreadableError(f"the record byteorder says {show(text.decode('latin-1'), 40)}")
    return text.decode()


def _is_count(key: object) -> bool:
    return type(key) is int and 0 <= key < 2**63


class StorageFolder:
    """The storages of one folder of records (`data/KEY`), made as persistent ids name them."""

    def __init__(self, archive: Archive, folder: str, contents: Contents, prefix: str = "") -> None:
        self._source = archive.source
        self._records = archive.records
        self._folder = f"{archive.root}/{folder}/"
        self._contents = contents
        self._prefix = prefix
        self._types: dict[Node, DType | None] = {}
        self._made: dict[str, Storage] = {}
        self._longer: list[str] = []

    def resolve(self, persistent: PersistentId) -> Storage | Global:
        """The storage that `('storage', class, key, location, numel)` names. Raises UnreadableError."""
        pid = persistent.pid
        if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
            raise UnreadableError(
                f"a persistent id at byte {persistent.offset:,} of the pickle that is no storage's"
            )
        _, cls, key, device, numel = pid[:5]
        text = key if type(key) is str else str(key) if isinstance(key, str) or _is_count(key) else ""
        if type(cls) is Global and cls in self._types:
            dtype = self._types[cls]
        else:
            dtype = self._types[cls] = storage_type(cls)
        nbytes = storage_bytes(dtype, numel)
        made = self._made.get(text)
        if made is not None:
            if (made.dtype, made.nbytes) != (dtype, nbytes):
                raise UnreadableError(f"storage {show(text)} is named with two types or sizes")
            return made  # as in torch: the first id that names a storage decides its device
        if not (text.isdigit() and text.isascii()) and not KEY.fullmatch(text):
            raise UnreadableError(f"a storage key that names no record: {show(text, 80)}")
        record = self._records.get(self._folder + text)
        if record is None:
            raise UnreadableError(f"storage {text} has no record {show(self._folder, 80)}{text}")
        if record.size < nbytes:
            raise UnreadableError(f"storage {text} has {record.size:,} bytes, its tensors need {nbytes:,}")
        if record.size > nbytes:
            self._longer.append(f"{text} ({record.size:,} bytes for {nbytes:,})")
        place = record.place(self._source)
        made = make_storage(self._prefix + text, device, dtype, nbytes, place, record.crc)
        self._made[text] = self._contents.storages[made.id] = made
        return made

    def keys(self) -> list[str]:
        """The keys that were named so far."""
        return list(self._made)

    def notices(self) -> list[Notice]:
        """What is odd about the records, in one line."""
        if not self._longer:
            return []
        more = f" and {len(self._longer) - 3} more" if len(self._longer) > 3 else ""
        return [
            Notice("container", f"records longer than their storages: {', '.join(self._longer[:3])}{more}")
        ]


# --- writing --------------------------------------------------------------------------------------------------------


def losses(checkpoint: Checkpoint) -> list[str]:
    """What the format cannot hold: nothing."""
    return []


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The archive of a checkpoint, as torch lays it out.

    What was read from such an archive keeps its root, its records and their order: unedited, every byte comes
    to lie where torch put it; edited, storages keep their position within a page. Raises LimitError.
    """
    pickle, keys = _pickle(checkpoint, limits)
    origin = checkpoint.origin if isinstance(checkpoint.origin, Origin) else None
    records = _fresh(checkpoint, pickle, keys) if origin is None else _again(origin, pickle, keys)
    alignment = _alignment(origin.archive) if origin else ALIGNMENT
    layout = lay_out(records, alignment)
    if not layout.regular or not _in_order(records, keys):
        root = records[0].name.partition("/")[0]
        left = {f"{root}/{name}" for name in _COMPUTED_OFFSETS}
        layout = lay_out([record for record in records if record.name not in left], alignment)
    return Draft(layout.size, layout.write)


def append(checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, bytes]:
    """What goes behind the end of the archive that a checkpoint was read from: a record, then a new directory.

    The record is the new pickle. Storages stay where they are, the old pickle and the old directory stay as
    dead bytes; until the last byte is written the old directory is the valid one. Raises WriteError when
    the storages were edited as well.
    """
    pickle, keys = _pickle(checkpoint, limits)
    archive = checkpoint.origin.archive
    for key, storage in keys.storages.items():
        old = archive.find(f"data/{key}")
        place = storage.place
        if old is None or not isinstance(place, Range) or place.offset != old.offset:
            raise WriteError("its storages change: they cannot stay in place", hint="--in-place --copy")
    start = archive.source.size
    name = f"{archive.root}/data.pkl"
    planned = bytes_record(name, pickle)
    sink = MemorySink(start)
    new = write_record(sink, planned, start, padding(planned, start))
    record = sink.taken()
    rows = [_row(row) for row in archive.records.values() if row.name != name]
    write_directory(sink, [*rows, new])
    return record, sink.taken()


def _pickle(checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, Keys]:
    keys = Keys(checkpoint.storages)
    data = emit(checkpoint.root, keys, torch_legacy.to_bytes, limits)
    origin = checkpoint.origin
    if isinstance(origin, Origin) and not checkpoint.is_edited:
        record = origin.archive.find("data.pkl")
        assert record is not None
        data = origin.archive.read(record, limits.pickle_bytes, "pickle-bytes")
    return data, keys


def _fresh(checkpoint: Checkpoint, pickle: bytes, keys: Keys) -> list[Planned]:
    records = [
        bytes_record("archive/data.pkl", pickle),
        bytes_record("archive/byteorder", checkpoint.byteorder.encode()),
    ]
    records += [_storage(f"archive/data/{key}", storage) for key, storage in keys.storages.items()]
    return [*records, bytes_record("archive/version", b"3\n")]


def _again(origin: Origin, pickle: bytes, keys: Keys) -> list[Planned]:
    """The records of the archive in their order; new storages after the old ones."""
    archive = origin.archive
    folder = f"{archive.root}/data/"
    left = dict(keys.storages)
    records: list[Planned] = []
    after = 0
    for record in sorted(archive.records.values(), key=lambda record: record.header):
        key = record.name.removeprefix(folder) if record.name.startswith(folder) else None
        if record.name == f"{archive.root}/data.pkl":
            records.append(bytes_record(record.name, pickle))
        elif key is not None and key in left:
            records.append(_storage(record.name, left.pop(key), record.offset))
        elif key is None or key not in origin.keys:
            records.append(_copied(archive, record))
        after = len(records) if key is not None or not after else after
    # A pickle that was appended in place goes back to the front, where torch writes it.
    records.sort(key=lambda record: record.name != f"{archive.root}/data.pkl")
    new = [_storage(folder + key, storage) for key, storage in left.items()]
    return [*records[:after], *new, *records[after:]]


def _storage(name: str, storage: Storage, like: int | None = None) -> Planned:
    if like is None and isinstance(storage.place, Range):
        like = storage.place.offset
    return Planned(name, storage.nbytes, lambda sink: pour(storage, sink, crc=True), like)


def _copied(archive: Archive, record: Record) -> Planned:
    """A record that is none of ours, as it is."""
    place = record.place(archive.source)
    whole = Storage(record.name, None, None, record.size, place, record.crc)
    return Planned(record.name, record.size, lambda sink: pour(whole, sink, crc=True))


def _row(record: Record) -> Written:
    """A record that stays where it is. Its CRC of 0 says "not recorded", as before."""
    return Written(
        record.name.encode(),
        record.size,
        record.crc or 0,
        record.header,
        8 if record.deflated else 0,
        record.stored,
        record.flags,
    )


def _alignment(archive: Archive) -> int:
    record = archive.find(".storage_alignment")
    if record is not None and record.size < 8:
        text = archive.read(record, 8, "entries")
        if text.isdigit() and 0 < int(text) <= 4096:
            return int(text)
    return ALIGNMENT


def _in_order(records: Sequence[Planned], keys: Keys) -> bool:
    """Whether the storages lie in the order in which the pickle names them."""
    names = [record.name.rpartition("/data/")[2] for record in records if "/data/" in record.name]
    return names == list(keys.storages)
