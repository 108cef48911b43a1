"""torch.save since 1.6: a zip archive of `data.pkl`, one record per storage, and a few small records.

Layout: torch/serialization.py `_save`, `_load`. Offsets come from the local headers only, never from torch's
shortcut (`.storage_alignment`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat

from ckpt.checkpoint import Checkpoint, Notice, Origin, Traits
from ckpt.columns import Column
from ckpt.dtypes import UINT8, DType
from ckpt.errors import UnreadableError
from ckpt.formats.archive import Archive
from ckpt.formats.pickled import Contents, checkpoint, interpret, run_skimmed
from ckpt.formats.probe import Probe
from ckpt.io.source import grounded
from ckpt.limits import Budget, Limits
from ckpt.nodes import Global, Node, PersistentId
from ckpt.pickles.rebuild import make_storage, storage_bytes, storage_type
from ckpt.rows import dataclass
from ckpt.tensors import Range, Storage
from ckpt.text import and_more, show

NAME = "torch-zip"
SUFFIXES: tuple[str, ...] = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl")
TRAITS = Traits(
    "PyTorch zip",
    "torch.load({path}, {options})",
    is_pickle=True,
    keeps_devices=True,
    has_checksums=True,
    in_place=True,
)
WRITER = "ckpt.formats.torch_zip.write"
VERIFIER = "ckpt.formats.torch_zip.verify"

_KEY_BYTES = 65_000
"""The name of a record has at most 65,535 bytes, with the folder of the storages."""
_NEWEST = 10
"""The newest version of an archive that torch 2.13 reads (kMaxSupportedFileFormatVersion)."""


@dataclass(frozen=True, slots=True, eq=False)
class ArchiveOrigin(Origin):
    """The archive of a checkpoint, and the folder of the storages that its pickle names."""

    archive: Archive
    folder: StorageFolder


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and archive.find("data.pkl") is not None and not is_torch_1_4(archive)


def is_torch_1_4(archive: Archive) -> bool:
    """Whether an archive has the optional zip format of torch 1.4: its storages are `tensors/KEY`."""
    return archive.records.any_below(f"{archive.root}/tensors/")


def read(probe: Probe, limits: Limits) -> Checkpoint:
    archive = probe.archive
    assert archive is not None
    return read_from(archive, probe.path, limits, probe.mark, probe.budget)


def read_from(
    archive: Archive, path: str, limits: Limits, mark: str = "", budget: Budget | None = None
) -> Checkpoint:
    """The checkpoint in an archive. Raises CkptError."""
    record = archive.find("data.pkl")
    assert record is not None
    byteorder = byteorder_of(archive)
    budget = budget or Budget(limits)
    budget.hold(archive.nbytes)
    contents = Contents(archive.notices, _read_nested, mark, budget)
    data = archive.read_pickle(record, limits, budget)
    folder = StorageFolder(archive, "data", contents, big=byteorder == "big")
    pickle = run_skimmed(data, limits, budget, folder)
    if pickle.end < len(data):
        left = len(data) - pickle.end
        contents.notices.append(
            Notice("trailing-data", f"{left:,} bytes follow the pickle in {show(record.name, 60)}")
        )
    if archive.outside:
        contents.not_loadable = f"torch refuses an archive with records outside {show(archive.root, 40)}/"
    interpret(pickle, contents, limits, folder.resolve, 0)
    refused = _refused_version(archive)
    if refused is not None:
        contents.not_loadable = refused
        contents.notices.append(Notice("container", refused))
    if any(type(row.pid) is tuple and len(row.pid) == 6 for row in pickle.persistent):
        contents.not_loadable = "torch refuses persistent ids of 6 fields in a zip file"
    contents.notices += folder.notices()
    origin = ArchiveOrigin(archive, folder)
    return checkpoint(
        path,
        NAME,
        TRAITS,
        pickle.root,
        contents,
        limits,
        source=archive.source,
        origin=origin,
        byteorder=byteorder,
    )


def _read_nested(data: bytes | Range, contents: Contents, limits: Limits, depth: int) -> Node:
    from ckpt.formats.torch_legacy.read import read_nested  # here: few checkpoints hold others

    return read_nested(data, contents, limits, depth)


def byteorder_of(archive: Archive) -> str:
    """`little` or `big`, from the record `byteorder`. Torch before 2.1 wrote no such record."""
    record = archive.find("byteorder")
    if record is None:
        return "little"
    text = archive.read(record, 64, "entries") if record.size <= 64 else b"too much"
    if text not in (b"little", b"big"):
        raise UnreadableError(
            f"unknown byte order {show(text.decode('latin-1'), 40)} in the record byteorder"
        )
    return text.decode()


def _refused_version(archive: Archive) -> str | None:
    """Why torch refuses the record `version`, which it reads as std::stoull does (caffe2/serialize)."""
    record = archive.find("version") or archive.find(".data/version")
    if record is None:
        return "torch refuses an archive without the record `version`"
    text = archive.read(record, 64, "entries") if record.size <= 64 else b""
    digits = text.lstrip(b" \t\n\v\f\r").removeprefix(b"+")
    number = digits[: len(digits) - len(digits.lstrip(b"0123456789"))]
    if not number or not 1 <= int(number) <= _NEWEST:
        return f"torch refuses an archive of version {show(text.decode('latin-1').strip(), 20) or 'nothing'}"
    return None


def is_key(text: str) -> bool:
    """Whether a text can name a storage and its record. torch takes any, but a NUL ends a name, and a slash at its end
    makes the record a folder, of which torch reads no byte.
    """
    try:
        return 0 < len(text.encode()) <= _KEY_BYTES and "\0" not in text and not text.endswith("/")
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _is_count(key: object) -> bool:
    return type(key) is int and 0 <= key < 2**63


class StorageFolder:
    """The storages of one folder of records (`data/KEY`). Each is made when a persistent id names it."""

    def __init__(
        self,
        archive: Archive,
        folder: str,
        contents: Contents,
        prefix: str = "",
        *,
        big: bool = False,
        suffix: str = "",
    ) -> None:
        self._source = archive.source
        self._records = archive.records
        self._folder = f"{archive.root}/{folder}/"
        self._contents = contents
        self._prefix = prefix
        self._suffix = suffix
        self._big = big
        self._types: dict[Node, DType | None] = {}
        self._made: dict[str, Storage] = {}
        self._columns: dict[int, Column[Storage]] = {}
        """By the position of the first record in the directory."""
        self._count = 0
        self._longer: list[str] = []

    def resolve(self, persistent: PersistentId) -> Storage | Global:
        """The storage that `('storage', class, key, location, numel)` names. Raises UnreadableError."""
        pid = persistent.pid
        if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
            raise UnreadableError(
                f"the persistent id at byte {persistent.offset:,} of the pickle does not name a storage"
            )
        _, cls, key, device, numel = pid[:5]
        text = key if type(key) is str else str(key) if isinstance(key, str) or _is_count(key) else ""
        return self.storage(cls, text, device, numel)

    def storage(self, cls: Node, text: str, device: Node, numel: Node) -> Storage:
        """The storage with the key `text`, as a persistent id describes it. Raises UnreadableError."""
        if type(cls) is Global and cls in self._types:
            dtype = self._types[cls]
        else:
            dtype = self._types[cls] = storage_type(cls)
        return self._storage(text, device, dtype, storage_bytes(dtype, numel))

    def _storage(self, text: str, device: Node, dtype: DType | None, nbytes: int) -> Storage:
        at = -1
        storage = self._made.get(text)
        if storage is None:
            at = self._position(text)
            storage = self._in_column(at)
        if storage is not None:
            if (storage.dtype or UINT8, storage.nbytes) != (dtype or UINT8, nbytes):  # untyped ones are bytes
                raise UnreadableError(f"storage {show(text)} is used with two types or sizes")
            return storage  # as in torch, the first id that names a storage decides its device
        if not is_key(text):
            raise UnreadableError(f"invalid storage key {show(text, 80)}")
        if at < 0:
            raise UnreadableError(
                f"storage {show(text, 80)} has no record {show(self._folder + text + self._suffix, 160)}"
            )
        record = self._records.at(at)
        if record.size < nbytes:
            raise UnreadableError(
                f"storage {show(text, 80)} has {record.size:,} bytes, its tensors need {nbytes:,}"
            )
        if record.size > nbytes:
            self._longer.append(f"{show(text, 80)} ({record.size:,} bytes for {nbytes:,})")
        place = record.place(self._source, big=self._big)
        storage = make_storage(
            self._contents.mark + self._prefix + text, device, dtype, nbytes, place, record.crc
        )
        self._made[text] = self._contents.storages[storage.id] = storage
        self._count += 1
        return storage

    def storages(self, keys: Sequence[str], looks: Sequence[Storage]) -> Sequence[Storage]:
        """The storages with these keys, each with the device, the dtype and the bytes of another. Raises UnreadableError."""
        records, before, after = self._records, self._folder, self._suffix
        first = records.run(before + f"{after}\0{before}".join(keys) + after, self._count)
        end = first + len(keys)
        if (
            first < 0
            or not self._made.keys().isdisjoint(keys)
            or any(first < start + len(column) and start < end for start, column in self._columns.items())
            or records.methods[first:end].tobytes().strip(b"\0")
            or records.sizes[first:end] != array("Q", [look.nbytes for look in looks])
        ):
            return [
                self._storage(key, look.device, look.dtype, look.nbytes)
                for key, look in zip(keys, looks, strict=True)
            ]
        mark = self._contents.mark + self._prefix
        file, base = grounded(self._source, 0)

        def make(begin: int, last: int) -> list[Storage]:
            span, new = slice(first + begin, first + last), tuple.__new__
            offsets: Iterable[int] = records.offsets[span]
            if base:
                offsets = map(base.__add__, offsets)
            checksums: Iterable[int | None] = records.checksums[span]
            if 0 in records.checksums[span]:
                checksums = [records.at(at).crc for at in range(span.start, span.stop)]
            ids = [mark + key for key in keys[begin:last]] if mark else keys[begin:last]
            _, devices, dtypes, sizes, *_ = zip(*looks[begin:last], strict=True)
            ranges = zip(
                repeat(file), offsets, sizes, repeat(None), repeat(self._big), repeat(None), strict=False
            )
            fields = zip(ids, devices, dtypes, sizes, map(new, repeat(Range), ranges), checksums, strict=True)
            return list(map(new, repeat(Storage), fields))

        column = Column(len(keys), make, looks)
        self._columns[first] = column
        self._contents.storages[mark + keys[0]] = column
        self._count += len(keys)
        return column

    def _in_column(self, at: int) -> Storage | None:
        """The storage of the record at a position of the directory, where it is in a column."""
        for first, column in self._columns.items():
            if first <= at < first + len(column):
                return column[at - first]
        return None

    def __contains__(self, key: object) -> bool:
        """Whether the pickle named a key so far."""
        if not isinstance(key, str):
            return False
        return key in self._made or self._in_column(self._position(key)) is not None

    def _position(self, key: str) -> int:
        """The position of the record of a key in the directory; -1 without one."""
        return self._records.find(self._folder + key + self._suffix, self._count)

    def forget(self) -> None:
        """Drop every storage, as before the first one."""
        for each in (*self._made.values(), *(column[0] for column in self._columns.values())):
            del self._contents.storages[each.id]
        self._made.clear()
        self._columns.clear()
        self._longer.clear()
        self._count = 0

    def notices(self) -> list[Notice]:
        """The records that do not fit their storages, in one notice."""
        if not self._longer:
            return []
        listed = and_more(self._longer, 3)
        return [Notice("container", f"records are longer than their storages: {listed}")]
