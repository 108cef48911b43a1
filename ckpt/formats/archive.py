"""Reads the directory of a zip archive as torch does, but more strictly: it refuses an archive that two parsers
could read differently. Layout: PKWARE APPNOTE 6.3; what torch accepts: caffe2/serialize/inline_container.cc.

Not a format of the table: torch-zip, TorchScript and others use it. It reads no record.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from ckpt.checkpoint import Notice
from ckpt.errors import CutOffError, DamagedDataError, LimitError, UnreadableError
from ckpt.io.source import Source, grounded, inflate
from ckpt.limits import Budget, Limits
from ckpt.tensors import Range
from ckpt.text import plural, show

LOCAL_HEADER = Struct("<4s2xHH8xIIHH")  # signature, flags, method, stored, full, name length, extra length
_CENTRAL = Struct(
    "<4s4xHH4xIIIHHHH2xII"
)  # the same with crc, comment length, disk, offset of the local header
END_RECORD = Struct("<4s4H2IH")
_END64 = Struct("<4sQ2H2I4Q")
_LOCATOR = Struct("<4sIQI")
LOCAL_MAGIC, CENTRAL_MAGIC, DESCRIPTOR_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
END_MAGIC = b"PK\x05\x06"
_FOLDER = 0x10
"""The bit of the external attributes that marks a folder to torch (miniz, `mz_zip_reader_is_file_a_directory`)."""
_REFUSED_FLAGS = 0x2061  # encrypted, patched, strongly encrypted, masked headers


class Record(NamedTuple):
    """One file of the archive. Its data begins at `offset` and takes `stored` bytes there."""

    name: str
    offset: int
    stored: int
    size: int
    deflated: bool
    crc: int | None
    header: int
    flags: int = 0

    def place(self, source: Source, *, big: bool = False) -> Range:
        file, offset = grounded(source, self.offset)
        return Range(file, offset, self.stored, self.size if self.deflated else None, big)


class Archive(NamedTuple):
    """A zip archive whose directory is consistent. `root` is the folder that all of torch's records share."""

    source: Source
    root: str
    records: dict[str, Record]
    notices: tuple[Notice, ...]
    outside: int = 0
    """Records that do not lie below the root."""
    nbytes: int = 0
    """Bytes of the directory."""

    def find(self, name: str) -> Record | None:
        """The record `root/name`."""
        return self.records.get(f"{self.root}/{name}")

    def read_pickle(self, record: Record, limits: Limits, budget: Budget) -> bytes:
        """The bytes of a record that holds a pickle. Raises LimitError, UnreadableError."""
        if record.size <= limits.pickle_bytes:
            budget.hold(record.stored)
            budget.check(record.size)
            budget.charge(record.size + (record.stored if record.deflated else 0), "a pickle")
        return self.read(record, limits.pickle_bytes, "pickle-bytes")

    def read(self, record: Record, limit: int, limit_name: str) -> bytes:
        """The bytes of a record, inflated; never more than `limit`. Raises LimitError, UnreadableError."""
        what = f"record {show(record.name, 80)}"
        if record.size > limit:
            raise LimitError(f"{what} has {record.size:,} bytes", limit_name, limit)
        data = self.source.read(record.offset, record.stored)
        if record.deflated:
            data = inflate(data, record.size, what)
        if record.crc is not None and crc32(data) != record.crc:
            raise DamagedDataError(f"{what} is damaged: its bytes do not match the recorded checksum")
        return data


def read_archive(source: Source, limits: Limits) -> Archive:
    """The directory of a zip archive. Raises UnreadableError when it is cut off or ambiguous."""
    if source.size < 4 or source.read(0, 4) != LOCAL_MAGIC:
        raise UnreadableError("the zip archive does not begin with its first record")
    count, size, offset, trailer = _find_end(source)
    if count > limits.entries:
        raise LimitError(f"the zip archive has {count:,} records", "entries", limits.entries)
    if size > limits.directory_bytes:
        raise LimitError(f"the zip directory has {size:,} bytes", "directory-bytes", limits.directory_bytes)
    if offset + size != trailer:
        raise UnreadableError(
            f"the zip directory ends at byte {offset + size:,}, but its end record is at {trailer:,}",
            hint="two archives joined, or bytes put in front?",
        )
    records = _parse_directory(source, source.read(offset, size), count, offset)
    notices = _check_names(records)
    _check_overlap(records, offset)
    roots = {record.name.partition("/")[0] if "/" in record.name else "" for record in records}
    first = records[0].name.partition("/")[0] if records else ""
    root = first if len(roots) == 1 else ""
    outside = 0
    if not root:
        holding = [
            name for record in records if (name := record.name).endswith("/data.pkl") and name.count("/") == 1
        ]
        if len(holding) == 1:
            root = holding[0].partition("/")[0]
            outside = sum(not record.name.startswith(f"{root}/") for record in records)
            if outside:
                text = f"{plural(outside, 'record')} outside {show(root, 40)}/: torch refuses the archive"
                notices.append(Notice("container", text))
        elif len(holding) > 1:
            raise UnreadableError(
                "the archive has two roots: " + ", ".join(show(name, 60) for name in holding[:2])
            )
    return Archive(source, root, {record.name: record for record in records}, tuple(notices), outside, size)


def _find_end(source: Source) -> tuple[int, int, int, int]:
    """(entries, directory bytes, directory offset, offset of the first end record)."""
    span = min(source.size, END_RECORD.size)
    tail = source.read(source.size - span, span)
    if not tail.startswith(END_MAGIC):  # a comment, or no end record: only then more of the file is read
        span = min(source.size, 65_535 + END_RECORD.size)
        tail = source.read(source.size - span, span)
    at = tail.rfind(END_MAGIC)
    while at >= 0:
        if at + END_RECORD.size <= span:
            comment = int.from_bytes(tail[at + 20 : at + 22], "little")
            if at + END_RECORD.size + comment == span:
                break
        at = tail.rfind(END_MAGIC, 0, at)
    if at < 0:
        stray = tail.rfind(END_MAGIC)
        if stray >= 0 and span - stray >= END_RECORD.size and CENTRAL_MAGIC in tail[:stray]:
            extra = span - stray - END_RECORD.size
            raise UnreadableError(f"the zip archive has {extra:,} bytes after its end record")
        raise CutOffError(
            f"cut off: the zip archive has no directory, the file ends at {source.size:,} bytes",
            hint="an unfinished download or save?",
        )
    end = source.size - span + at
    _, disk, start, here, count, size, offset, _ = END_RECORD.unpack_from(tail, at)
    if disk or start or here != count:
        raise UnreadableError("the zip archive is split into several parts")
    if end >= _LOCATOR.size + 4 and source.read(end - _LOCATOR.size, 4) == b"PK\x06\x07":
        return _find_end64(source, end, (count, size, offset))
    if count == 0xFFFF or 0xFFFFFFFF in (size, offset):
        raise UnreadableError("the zip archive lacks the zip64 record that it needs")
    return count, size, offset, end


def end_at(source: Source, at: int) -> int | None:
    """The end of the archive with its end record at `at`; None when the record and the directory disagree."""
    if source.size - at < END_RECORD.size:
        return None
    fields = END_RECORD.unpack(source.read(at, END_RECORD.size))
    disk, start, _, count, size, offset, comment = fields[1:]
    end = at + END_RECORD.size + int(comment)
    try:
        if at >= _LOCATOR.size + 4 and source.read(at - _LOCATOR.size, 4) == b"PK\x06\x07":
            count, size, offset, at = _find_end64(source, at, (count, size, offset))
        whole = not disk and not start and offset + size == at and count
        return end if whole and source.read(offset, 4) == CENTRAL_MAGIC else None
    except UnreadableError:
        return None


def _find_end64(source: Source, end: int, plain: tuple[int, int, int]) -> tuple[int, int, int, int]:
    _, disk, at, disks = _LOCATOR.unpack(source.read(end - _LOCATOR.size, _LOCATOR.size))
    if disk or disks > 1 or at + _END64.size > end - _LOCATOR.size:
        raise UnreadableError("the zip64 locator of the archive is damaged")
    fields = _END64.unpack(source.read(at, _END64.size))
    signature, length, disk, start, here, count, size, offset = fields[0], fields[1], *fields[4:]
    if (
        signature != b"PK\x06\x06"
        or at + 12 + length != end - _LOCATOR.size
        or disk
        or start
        or here != count
    ):
        raise UnreadableError("the zip64 end record of the archive is damaged")
    for value, short, full in zip(
        (count, size, offset), plain, (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF), strict=True
    ):
        if short not in (value, full):
            raise UnreadableError("the two end records of the zip archive disagree")
    return count, size, offset, at


def _parse_directory(source: Source, data: bytes, count: int, directory: int) -> list[Record]:
    records: list[Record] = []
    at, size = 0, len(data)
    for _ in range(count):
        if at + _CENTRAL.size > size:
            raise UnreadableError(f"the zip directory holds fewer records than its count of {count:,}")
        signature, flags, method, crc, stored, full, names, extras, comment, disk, attributes, header = (
            _CENTRAL.unpack_from(data, at)
        )
        begin = at + _CENTRAL.size
        at = begin + names + extras + comment
        if signature != CENTRAL_MAGIC or at > size:
            raise UnreadableError("the zip directory is damaged")
        raw = data[begin : begin + names]
        name = _decode(raw)
        if disk == 0xFFFF or 0xFFFFFFFF in (stored, full, header):
            extra = data[begin + names : begin + names + extras]
            full, stored, header = _zip64(extra, full, stored, header, name)
        elif disk:
            raise UnreadableError("the zip archive is split into several parts")
        if flags & _REFUSED_FLAGS:
            raise _refusal(name, " is encrypted or patched")
        if full and attributes & _FOLDER:
            raise _refusal(name, " is marked as a folder but holds data: torch reads it differently")
        if method not in (0, 8):
            raise _refusal(name, f" uses compression method {method}, torch reads only 0 and 8")
        if method == 0 and stored != full:
            raise _refusal(name, " is not compressed but has two sizes")
        # torch writes 0 when it computes no CRC (set_crc32_options(False)); an empty record really has a CRC of 0.
        checksum = crc if crc or not full else None
        offset = _data_offset(source, name, raw, flags, method, stored, full, header, directory)
        records.append(Record(name, offset, stored, full, method == 8, checksum, header, flags))
    if at != size:
        raise UnreadableError(f"the zip directory holds more records than its count of {count:,}")
    return records


def _data_offset(
    source: Source,
    name: str,
    raw: bytes,
    flags: int,
    method: int,
    stored: int,
    full: int,
    header: int,
    directory: int,
) -> int:
    """Where the data of a record begins, after its local header agreed with the directory."""
    length = LOCAL_HEADER.size + len(raw)
    if header + length > directory:
        raise _refusal(name, f" begins at byte {header:,}, beyond the data of the archive")
    local = source.read(header, length)
    signature, local_flags, local_method, local_stored, local_full, names, extras = LOCAL_HEADER.unpack_from(
        local
    )
    if signature != LOCAL_MAGIC or names != len(raw) or local_method != method or not local.endswith(raw):
        raise _refusal(name, ": its local header and the directory disagree")
    if local_stored != stored or local_full != full:
        # With a data descriptor (bit 3) the sizes come after the data, and 0 or a zip64 mark is here.
        unknown = (0, 0xFFFFFFFF) if (local_flags | flags) & 8 else (0xFFFFFFFF,)
        if local_stored not in (stored, *unknown) or local_full not in (full, *unknown):
            raise _refusal(name, ": its local header and the directory give different sizes")
    offset = header + length + int(extras)
    if offset + stored > directory:
        needed = f"needs bytes {offset:,} to {offset + stored:,}"
        problem = f": cut off, {needed}, the data of the archive ends at {directory:,}"
        raise CutOffError(f"record {show(name, 80)}{problem}")
    return offset


def _refusal(name: str, problem: str) -> UnreadableError:
    return UnreadableError(f"record {show(name, 80)}{problem}")


def _decode(raw: bytes) -> str:
    if b"\0" in raw:
        raise UnreadableError("a record name contains a NUL byte")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(f"a record name is not UTF-8: {show(raw.decode('latin-1'), 80)}") from None


def _zip64(extra: bytes, full: int, stored: int, header: int, name: str) -> tuple[int, int, int]:
    at = 0
    while at + 4 <= len(extra):
        tag, length = (
            int.from_bytes(extra[at : at + 2], "little"),
            int.from_bytes(extra[at + 2 : at + 4], "little"),
        )
        field = extra[at + 4 : at + 4 + length]
        if tag == 1:
            values = [int.from_bytes(field[i : i + 8], "little") for i in range(0, len(field) - 7, 8)]
            wanted = sum(value == 0xFFFFFFFF for value in (full, stored, header))
            if len(values) < wanted:
                break
            left = iter(values)
            full = next(left) if full == 0xFFFFFFFF else full
            stored = next(left) if stored == 0xFFFFFFFF else stored
            header = next(left) if header == 0xFFFFFFFF else header
            return full, stored, header
        at += 4 + length
    raise _refusal(name, ": its zip64 field is missing or too short")


def _check_names(records: list[Record]) -> list[Notice]:
    seen: dict[str, str] = {}
    notices: list[Notice] = []
    for record in records:
        folded = record.name.lower()
        if folded not in seen:
            seen[folded] = record.name
        elif seen[folded] == record.name:
            raise UnreadableError(f"duplicate record {show(record.name, 80)}: readers may pick either one")
        else:
            both = f"{show(seen[folded], 60)} and {show(record.name, 60)}"
            notices.append(
                Notice("container", f"two records differ only in case: {both}; torch may read either one")
            )
    return notices


def _check_overlap(records: list[Record], directory: int) -> None:
    previous: Record | None = None
    for record in sorted(records, key=lambda record: record.header):
        if previous is not None and record.header < previous.offset + previous.stored:
            raise UnreadableError(f"records {show(previous.name, 60)} and {show(record.name, 60)} overlap")
        previous = record
