"""What a container can know about itself: every checksum that it recorded, its index, what is left of a cut file.

Not a format of the table: `verify` asks it beside reading the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import unpack_from
from typing import NamedTuple

from ckpt.checkpoint import Global, Node, PersistentId, Range, Storage, parts_of
from ckpt.elements.blocks import blocks
from ckpt.errors import CkptError, UnreadableError, about
from ckpt.formats.archive import Archive, Record
from ckpt.formats.pickled import Contents, interpret, run
from ckpt.formats.probe import Probe
from ckpt.formats.safetensors import read as safetensors
from ckpt.formats.sharded import read as sharded
from ckpt.formats.torch_legacy import read as torch_legacy
from ckpt.io.source import File, read_limited
from ckpt.limits import Limits
from ckpt.names import show
from ckpt.pickles.machine import TruncatedPickleError
from ckpt.pickles.rebuild import make_storage, storage_bytes, storage_type
from ckpt.tree.walk import flatten


class Damage(NamedTuple):
    """Something that is not as the file itself says it is: what, and which storage of the checkpoint it is."""

    what: str
    storage: str | None = None


class Checked(NamedTuple):
    """What was held against a checksum: bytes, damage, and the records without one."""

    nbytes: int
    damage: tuple[Damage, ...]
    unchecked: int
    """Bytes of tensors that have no checksum."""


def checksums(path: str, limits: Limits, progress: Callable[[int], None] | None = None) -> Checked:
    """Hold every record of an archive against its CRC; of shards, each file. Reads the whole file.

    Raises CkptError when it cannot be read at all.
    """
    probe = Probe(path, limits)
    try:
        if sharded.sniff(probe):
            files = sharded.files(probe, limits)
            found = [checksums(part, limits, progress) for part in files]
            damage = [
                row._replace(storage=row.storage and mark + row.storage)
                for mark, one in zip(sharded.marks(files), found, strict=True)
                for row in one.damage
            ]
            return Checked(
                sum(one.nbytes for one in found), tuple(damage), sum(one.unchecked for one in found)
            )
        archive = probe.archive
        if archive is None:
            return Checked(0, (), probe.size)
        with about(path):
            return _records(archive, progress)
    finally:
        probe.close()


def _records(archive: Archive, progress: Callable[[int], None] | None) -> Checked:
    damage: list[Damage] = []
    checked = unchecked = 0
    for record in archive.records.values():
        key = _key(archive, record)
        if record.crc is None:
            unchecked += record.size
            continue
        found = 0
        try:
            for block in blocks(record.place(archive.source)):
                found = zlib.crc32(block, found)
                if progress is not None:
                    progress(len(block))
        except UnreadableError as error:
            if "deflate" not in error.problem and "archive says" not in error.problem:
                raise
            damage.append(Damage(f"record {show(record.name, 80)}: {error.problem}", key))
            continue
        checked += record.size
        if found != record.crc:
            damage.append(Damage(f"record {show(record.name, 80)} does not have its recorded CRC", key))
    return Checked(checked, tuple(damage), unchecked)


def _key(archive: Archive, record: Record) -> str | None:
    """The id of the storage that a record holds."""
    for folder, prefix in (("data", ""), ("constants", "constants:")):
        start = f"{archive.root}/{folder}/"
        if record.name.startswith(start):
            return prefix + record.name.removeprefix(start)
    return None


# --- shards -----------------------------------------------------------------------------------------------------------


def total_size(path: str, limits: Limits) -> int | None:
    """The bytes of all tensors as the index of shards says it; None where it does not."""
    probe = Probe(path, limits)
    try:
        index = sharded.index_of(probe)
    finally:
        probe.close()
    if index is None:
        return None
    file = File(index)
    try:
        document = safetensors.parse_json(
            read_limited(file, limits.index_bytes, "index-bytes", "the index"), "index"
        )
    finally:
        file.close()
    metadata = document.get("metadata") if isinstance(document, dict) else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return (
        int(size)
        if isinstance(size, (int, float)) and not isinstance(size, bool) and 0 <= size < 2**63
        else None
    )


# --- what is left of a file that was cut ------------------------------------------------------------------------------


class Salvage(NamedTuple):
    """The tensors of a cut file: those whose bytes are all there, and those that lost some."""

    whole: tuple[str, ...]
    lost: tuple[str, ...]


def salvage(path: str, limits: Limits) -> Salvage | None:
    """What a cut file still holds; None where it cannot be told: not even the names are there."""
    try:
        file = File(path)
    except CkptError:
        return None
    try:
        head = file.read(0, min(4096, file.size))
        if head.startswith(b"PK\x03\x04"):
            return _of_zip(file, limits)
        if torch_legacy.is_legacy(head):
            return _of_legacy(file, limits)
        return _of_safetensors(file, limits) if head[8:9] == b"{" else None
    except CkptError:
        return None
    finally:
        file.close()


def _of_safetensors(file: File, limits: Limits) -> Salvage | None:
    length = int.from_bytes(file.read(0, 8), "little")
    if length > min(limits.header_bytes, file.size - 8):
        return None
    header = safetensors.parse_json(file.read(8, length), "safetensors header")
    if not isinstance(header, dict):
        return None
    left = file.size - 8 - length
    ends: dict[str, int] = {}
    for name, fields in header.items():
        offsets = fields.get("data_offsets") if isinstance(fields, dict) and name != "__metadata__" else None
        if isinstance(offsets, list) and len(offsets) == 2 and type(offsets[1]) is int:
            ends[name] = offsets[1] if offsets[0] != offsets[1] else 0
    return Salvage(
        tuple(name for name, end in ends.items() if end <= left),
        tuple(name for name, end in ends.items() if end > left),
    )


def _of_legacy(file: File, limits: Limits) -> Salvage:
    root = torch_legacy.salvaged(file, limits)
    names: tuple[list[str], list[str]] = ([], [])
    for entry in flatten(root, limits).tensors:
        places = [part.storage.place for part in parts_of(entry.tensor) if part.nbytes]
        lost = any(isinstance(place, Range) and place.offset + place.size > file.size for place in places)
        names[lost].append(entry.name)
    return Salvage(tuple(names[0]), tuple(names[1]))


def _of_zip(file: File, limits: Limits) -> Salvage | None:
    """The records that torch wrote one after the other, without the directory that was at the end.

    Their sizes stand in the pickle, which comes first (caffe2/serialize/inline_container.cc).
    """
    at = 0
    contents = Contents()
    root: Node = None
    made: dict[str, Storage] = {}
    whole: set[str] = set()

    def storage_of(persistent: PersistentId) -> Storage | Global:
        pid = persistent.pid
        if type(pid) is not tuple or len(pid) < 5:
            raise UnreadableError("a persistent id that is no storage's")
        key, dtype = str(pid[2]), storage_type(pid[1])
        if key not in made:
            made[key] = make_storage(key, pid[3], dtype, storage_bytes(dtype, pid[4]), None, None)
        return made[key]

    for _ in range(limits.entries):
        found = _local(file, at)
        if found is None:
            break
        name, begin = found
        inner = name.partition("/")[2]
        if inner == "data.pkl" and root is None:
            pickle = _pickle_at(file, begin, limits)
            if pickle is None:
                return None
            root, end = pickle
            end += begin
            interpret(root, contents, limits, storage_of, 0)
        elif inner.startswith("data/") and inner[5:] in made:
            end = begin + made[inner[5:]].nbytes
        else:
            scanned = _end_of(file, begin)
            if scanned is None:
                break
            end = scanned
        if end > file.size:
            break
        whole.add(inner)
        at = _after(file, end)
    if root is None:
        return None
    names: tuple[list[str], list[str]] = ([], [])
    for entry in flatten(root.root, limits).tensors:
        lost = any(
            part.nbytes and part.storage.id in made and f"data/{part.storage.id}" not in whole
            for part in parts_of(entry.tensor)
        )
        names[lost].append(entry.name)
    return Salvage(tuple(names[0]), tuple(names[1]))


def _local(file: File, at: int) -> tuple[str, int] | None:
    """(name, where its data begins) of the record whose local header is at an offset; None when it is cut, or none."""
    if at + 30 > file.size or file.read(at, 4) != b"PK\x03\x04":
        return None
    names, extras = unpack_from("<HH", file.read(at + 26, 4))
    if at + 30 + names + extras > file.size:
        return None
    return file.read(at + 30, names).decode("utf-8", "replace"), at + 30 + names + extras


def _pickle_at(file: File, begin: int, limits: Limits) -> tuple[Node, int] | None:
    """(the pickle that begins at an offset, its length); None when it is cut."""
    size = 1 << 18
    while True:
        data = file.read(begin, min(size, file.size - begin, limits.pickle_bytes))
        try:
            pickle = run(data, limits)
        except TruncatedPickleError:
            if len(data) < size:
                return None
            size *= 4
            continue
        return pickle, pickle.end


_STEP = 1 << 20


def _end_of(file: File, begin: int) -> int | None:
    """Where a record ends whose size is not known before: at the descriptor that gives it; None when it is cut."""
    if file.read(begin, min(4, file.size - begin)) in (b"PK\x03\x04", b"PK\x01\x02"):
        return begin  # it is empty, and has no descriptor
    at = begin
    while at < file.size:
        data = file.read(at, min(_STEP + 16, file.size - at))
        found = data.find(b"PK\x07\x08")
        while 0 <= found < _STEP:
            size = at + found - begin
            if found + 12 <= len(data) and unpack_from("<I", data, found + 8)[0] == size & 0xFFFFFFFF:
                return at + found
            found = data.find(b"PK\x07\x08", found + 1)
        at += _STEP
    return None


def _after(file: File, end: int) -> int:
    """Where the next local header is, behind the descriptor of a record."""
    tail = file.read(end, min(28, file.size - end))
    if not tail.startswith(b"PK\x07\x08"):
        return end
    return end + (16 if tail[16:20] == b"PK\x03\x04" or len(tail) < 28 else 24)
