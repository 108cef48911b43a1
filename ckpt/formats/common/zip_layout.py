"""The layout of a zip archive: its headers, descriptors and end records, for whoever
reads or writes them (PKWARE APPNOTE 6.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, calcsize, unpack

from ckpt.bytes.source import Source
from ckpt.model.errors import UnreadableError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

LOCAL_MAGIC, CENTRAL_MAGIC = b"PK\x03\x04", b"PK\x01\x02"
DESCRIPTOR_MAGIC = b"PK\x07\x08"
END_MAGIC, END64_MAGIC, LOCATOR_MAGIC = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
MARK32, MARK16 = 0xFFFFFFFF, 0xFFFF
"""The values of a field of four or two bytes whose number is in the field, or the end
record, of zip64.
"""
HAS_DESCRIPTOR = 8
"""The flag of a record whose sizes and checksum come after its data."""
_ZIP64, _UNICODE_PATH = 1, 0x7075


def _offsets_of(fields: tuple[str, ...], codes: list[str]) -> dict[str, int]:
    """The offset of each field in a header whose fields have these codes of
    `struct`.
    """
    # "<": without it struct would fill up between fields, as a C compiler does.
    return {
        name: calcsize("<" + "".join(codes[:index]))
        for index, name in enumerate(fields)
    }


# --- the headers of a record ----------------------------------------------------------


class LocalHeader(NamedTuple):
    """The header in front of the data of a record. `names` and `extras` count the bytes
    of its name and extra fields.
    """

    magic: bytes
    needs: int
    flags: int
    method: int
    time: int
    crc: int
    stored: int
    full: int
    names: int
    extras: int

    @property
    def nbytes(self) -> int:
        """Its bytes with the name and the extra fields."""
        return LOCAL.size + self.names + self.extras

    def as_bytes(self) -> bytes:
        return LOCAL.pack(*self)


_CODES = ["4s", "H", "H", "H", "I", "I", "I", "I", "H", "H"]
LOCAL = Struct("<" + "".join(_CODES))
LOCAL_AT = _offsets_of(LocalHeader._fields, _CODES)


def local_header(data: bytes, position: int = 0) -> LocalHeader:
    """The local header at an offset of `data`, which has all of it."""
    return LocalHeader._make(LOCAL.unpack_from(data, position))


class CentralHeader(NamedTuple):
    """The entry of a record in the directory. `header` is the offset of its local
    header, `comments` counts bytes too.
    """

    magic: bytes
    made_by: int
    needs: int
    flags: int
    method: int
    time: int
    crc: int
    stored: int
    full: int
    names: int
    extras: int
    comments: int
    disk: int
    internal: int
    attributes: int
    header: int

    @property
    def nbytes(self) -> int:
        """Its bytes with the name, the extra fields and the comment."""
        return CENTRAL.size + self.names + self.extras + self.comments

    def name_in(self, data: bytes, position: int) -> bytes:
        """The name of an entry that lies at an offset of `data`."""
        begin = position + CENTRAL.size
        return data[begin : begin + self.names]

    def extra_in(self, data: bytes, position: int) -> bytes:
        """Its extra fields."""
        begin = position + CENTRAL.size + self.names
        return data[begin : begin + self.extras]

    def as_bytes(self) -> bytes:
        return CENTRAL.pack(*self)


_CODES = [
    "4s",
    "H",
    "H",
    "H",
    "H",
    "I",
    "I",
    "I",
    "I",
    "H",
    "H",
    "H",
    "H",
    "H",
    "I",
    "I",
]
CENTRAL = Struct("<" + "".join(_CODES))
CENTRAL_AT = _offsets_of(CentralHeader._fields, _CODES)


def central_header(data: bytes, position: int) -> CentralHeader | None:
    """The entry at an offset of a directory, or None where there is none, or not all of
    it.
    """
    if position + CENTRAL.size > len(data):
        return None
    entry = CentralHeader._make(CENTRAL.unpack_from(data, position))
    is_whole = entry.magic == CENTRAL_MAGIC and position + entry.nbytes <= len(data)
    return entry if is_whole else None


def iterate_entries(directory: bytes) -> Iterator[tuple[int, CentralHeader]]:
    """Yield (offset, entry) of each entry of a directory, as far as it is one. Of the
    last one bytes may be missing.
    """
    position = 0
    while position + CENTRAL.size <= len(directory):
        if not directory.startswith(CENTRAL_MAGIC, position):
            return
        entry = CentralHeader._make(CENTRAL.unpack_from(directory, position))
        yield position, entry
        position += entry.nbytes


def iterate_extras(extra: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (tag, length, data as far as it is there) of each extra field."""
    position = 0
    while position + 4 <= len(extra):
        tag = int.from_bytes(extra[position : position + 2], "little")
        length = int.from_bytes(extra[position + 2 : position + 4], "little")
        yield tag, length, extra[position + 4 : position + 4 + length]
        position += 4 + length


def unicode_path(extra: bytes) -> bytes | None:
    """Return the second name in the extra fields of a record, or None where they have
    none.
    """
    for tag, length, data in iterate_extras(extra):
        if tag == _UNICODE_PATH and length > 5:
            # Behind its version and the checksum of the first name.
            return data[5:]
    return None


def read_zip64(
    extra: bytes, full: int, stored: int, header: int, name: str
) -> tuple[int, int, int]:
    """Read (size, stored size, offset of the local header) from the zip64 field. Raises
    UnreadableError.
    """
    fields = (data for tag, _, data in iterate_extras(extra) if tag == _ZIP64)
    field = next(fields, None)
    marked = (full, stored, header)
    count = 0 if field is None else len(field) // 8
    if field is None or count < marked.count(MARK32):
        raise UnreadableError(
            f"record {show(name, 80)}: its zip64 field is missing or too short"
        )
    # The field has only those numbers that do not fit into the header, in this order.
    numbers = iter(unpack(f"<{count}Q", field[: count * 8]))
    full, stored, header = (
        next(numbers) if value == MARK32 else value for value in marked
    )
    return full, stored, header


def zip64_field(values: list[int]) -> bytes:
    """The zip64 field that holds these numbers; empty without any."""
    if not values:
        return b""
    data = b"".join(value.to_bytes(8, "little") for value in values)
    head = _ZIP64.to_bytes(2, "little") + len(data).to_bytes(2, "little")
    return head + data


# --- the descriptor behind the data of a record ---------------------------------------

# Signature, checksum, stored, full.
DESCRIPTOR, DESCRIPTOR64 = (Struct("<4s3I"), Struct("<4sI2Q"))


# --- the end records ------------------------------------------------------------------


class EndRecord(NamedTuple):
    """The last record of an archive: where the directory is. `here` counts the entries
    on this disk, `comments` bytes.
    """

    magic: bytes
    disk: int
    start: int
    here: int
    entries: int
    size: int
    offset: int
    comments: int

    @property
    def is_split(self) -> bool:
        # An archive over several disks, as floppies were.
        return bool(self.disk or self.start) or self.here != self.entries

    @property
    def needs_zip64(self) -> bool:
        return self.entries == MARK16 or MARK32 in (self.size, self.offset)

    def as_bytes(self) -> bytes:
        return END.pack(*self)


END = Struct("<4s4H2IH")


class EndRecord64(NamedTuple):
    """The end record of zip64, in front of its locator. `length` counts the bytes
    behind that field.
    """

    magic: bytes
    length: int
    made_by: int
    needs: int
    disk: int
    start: int
    here: int
    entries: int
    size: int
    offset: int

    @property
    def is_split(self) -> bool:
        return bool(self.disk or self.start) or self.here != self.entries

    @property
    def nbytes(self) -> int:
        # Its length does not count the signature and itself.
        return 12 + self.length

    def as_bytes(self) -> bytes:
        return END64.pack(*self)


END64 = Struct("<4sQ2H2I4Q")


class Locator(NamedTuple):
    """The record between the two end records: the offset of the one of zip64."""

    magic: bytes
    disk: int
    end64: int
    disks: int

    def as_bytes(self) -> bytes:
        return LOCATOR.pack(*self)


LOCATOR = Struct("<4sIQI")


def end_record(data: bytes, position: int = 0) -> EndRecord:
    """The end record at an offset of `data`, which has all of it."""
    return EndRecord._make(END.unpack_from(data, position))


def end_record64(source: Source, position: int) -> EndRecord64 | None:
    """The end record of zip64 at an offset, or None where there is none."""
    if position < 0 or position + END64.size > source.size:
        return None
    record = EndRecord64._make(END64.unpack(source.read(position, END64.size)))
    return record if record.magic == END64_MAGIC else None


def locator_before(source: Source, end: int) -> Locator | None:
    """The locator in front of an end record, or None where there is none."""
    begin = end - LOCATOR.size
    # An archive begins with a record, whose signature has four bytes.
    if begin < len(LOCAL_MAGIC):
        return None
    locator = Locator._make(LOCATOR.unpack(source.read(begin, LOCATOR.size)))
    return locator if locator.magic == LOCATOR_MAGIC else None


def last_end_record(source: Source, span: int) -> tuple[int, EndRecord] | None:
    """(the offset of the last end record, the record) in the last `span` bytes of a
    file, or None without one.
    """
    begin = source.size - span
    tail = source.read(begin, span)
    # One of which only the signature is left is none.
    last_begin = max(0, span - END.size + len(END_MAGIC))
    position = tail.rfind(END_MAGIC, 0, last_begin)
    if position < 0:
        return None
    return begin + position, end_record(tail, position)


def begins_as_torch(head: bytes) -> bool:
    """Tell whether the first bytes of a file begin an archive that torch writes.

    One that is cut off has no directory, and its ending may be any: `.tar`, as in
    torch's own examples.
    """
    if not head.startswith(LOCAL_MAGIC) or len(head) < LOCAL.size:
        return False
    begin = LOCAL.size
    name = head[begin : begin + local_header(head).names]
    _, slash, record = name.partition(b"/")
    return bool(slash) and record in _FIRST_OF_TORCH


_FIRST_OF_TORCH = (b"data.pkl", b"constants.pkl", b"version", b"data/0")
"""The first record of an archive that torch writes, below its folder."""
