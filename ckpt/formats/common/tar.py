"""Reads the headers of a tar archive: v7, ustar, GNU long names and pax. It follows no
link and reads no data.

An archive that two readers could unpack differently is refused. Layout: POSIX.1-2017,
pax (ustar interchange format and extended headers); the tar(5) page of GNU tar for `L`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ckpt.bytes.source import Source
from ckpt.model.errors import CutOffError, LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

BLOCK = 512
_MEMBER = 500
"""Bytes of memory of one member."""
_EXTENSION = 65_536
"""The most bytes of a long name or of the pax records of one member."""
_TAIL = 1 << 20
"""The most bytes after the last member. Writers fill up to 10,240."""
_SEEN = 1_000
"""The most names of an archive that a message counts."""
# The kinds that all readers take for a file: an old header has none, and few
# archives a contiguous one.
_FILES = (b"0", b"\0", b"7")
_FOLDER = b"5"


class TarMember(NamedTuple):
    """A regular file: its data are `size` bytes at `offset`."""

    name: str
    offset: int
    size: int


class _Header(NamedTuple):
    name: str
    size: int
    kind: bytes


class _Entry(NamedTuple):
    """A member of any kind, whose data are `size` bytes at `offset`."""

    name: str
    offset: int
    size: int
    kind: bytes

    @property
    def end(self) -> int:
        """The offset of the next header."""
        return _padded_position(self.offset + self.size)


def is_tar(head: bytes) -> bool:
    """Tell whether Python's tarfile takes these first bytes for the header of a tar
    archive.

    It asks for the checksum alone, which it reads more freely than `read_tar`: whatever
    it opens is no other format to torch.
    """
    if len(head) < BLOCK:
        return False
    field = head[148:156]
    others = head[:148] + head[156:BLOCK]
    # The checksum counts its own eight bytes as blanks. Old writers took bytes for
    # signed.
    unsigned = sum(others) + 8 * 0x20
    signed = unsigned - 256 * sum(byte > 127 for byte in others)
    return _any_number(field) in (unsigned, signed)


def _any_number(field: bytes) -> int | None:
    """The number of a field as Lib/tarfile.py of CPython reads it (`nti`), or None."""
    if field[0] in (0x80, 0xFF):
        number = int.from_bytes(field[1:], "big")
        return number if field[0] == 0x80 else number - 256 ** (len(field) - 1)
    try:
        return int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return None


def read_tar(source: Source, limits: Limits, budget: Budget) -> dict[str, TarMember]:
    """The regular files by their plain names, in the order of the file. Raises
    UnreadableError, LimitError.
    """
    return dict(walk_tar(source, limits, budget))


def walk_tar(
    source: Source, limits: Limits, budget: Budget
) -> Iterator[tuple[str, TarMember]]:
    """Each regular file with its plain name, when its header was read. Raises as
    `read_tar` does.
    """
    seen: set[str] = set()
    end = 0
    for entry in _iterate_entries(source):
        name, position, size, kind = entry
        # A link could lead out of the archive.
        if kind not in _FILES and kind != _FOLDER:
            raise UnreadableError(
                f"the tar archive holds a link or a device: {show(name, 80)}"
            )
        if kind == _FOLDER and size:
            raise UnreadableError(
                f"the tar archive holds a folder with data: {show(name, 80)}"
            )
        if position + size > source.size:
            raise CutOffError(
                f"cut off: {show(name, 80)} needs bytes {position:,} to "
                f"{position + size:,}, the file ends at {source.size:,}"
            )
        plain = _plain_name(name, is_folder=kind == _FOLDER)
        # Unpackers differ in which of two files of one name they keep.
        if plain in seen:
            raise UnreadableError(
                f"the tar archive holds {show(plain or name, 80)} twice"
            )
        seen.add(plain)
        if len(seen) > limits.entries:
            raise LimitError(
                "the tar archive has too many members", "entries", limits.entries
            )
        budget.charge(_MEMBER + 4 * len(name), "the tar archive")
        if kind != _FOLDER:
            yield plain, TarMember(name, position, size)
        end = entry.end
    _check_end(source, end)


def names_seen(source: Source) -> list[str]:
    """The names of the files that a tar archive begins with, for a message: up to the
    first header that cannot be read.
    """
    names: list[str] = []
    # A message names what it can.
    with suppress(UnreadableError):
        for entry in _iterate_entries(source):
            if len(names) == _SEEN:
                break
            if entry.kind in _FILES:
                names.append(entry.name.removeprefix("./"))
    return names


def _iterate_entries(source: Source) -> Iterator[_Entry]:
    """Yield each member up to the blocks of zeros. Raises UnreadableError."""
    position = 0
    block = _read_block(source, position)
    while block.strip(b"\0"):
        header = _parse_header(block, position)
        position += BLOCK
        if header.kind in b"xgL":
            entry = _read_extension(source, header, position)
        else:
            entry = _Entry(header.name, position, header.size, header.kind)
        yield entry
        position = entry.end
        block = _read_block(source, position)


def _read_extension(source: Source, first: _Header, position: int) -> _Entry:
    """Read an extension whose data begins at `position`, and return the member that
    follows it.
    """
    if first.size > _EXTENSION:
        raise UnreadableError(f"the tar archive has a header of {first.size:,} bytes")
    if position + first.size > source.size:
        raise CutOffError(
            f"cut off: the tar archive ends inside a header, at {source.size:,} bytes"
        )
    data = source.read(position, first.size)
    position = _padded_position(position + first.size)
    name: str | None = None
    size: int | None = None
    if first.kind == b"L":
        name = _decode_text(data.removesuffix(b"\0"), position)
    else:
        fields = _parse_pax_records(data, position)
        if first.kind == b"g" and fields.keys() & {"path", "size", "linkpath"}:
            raise UnreadableError(
                "the tar archive sets a name or a size for all members"
            )
        name = fields.get("path")
        if "size" in fields:
            digits = fields["size"]
            if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
                raise UnreadableError(
                    f"the tar archive has an invalid size: {show(digits, 40)}"
                )
            size = int(digits)
    header = _parse_header(_read_block(source, position), position)
    position += BLOCK
    # One for all members may stand before one for the next member.
    if first.kind == b"g" and header.kind in b"xL":
        return _read_extension(source, header, position)
    if header.kind in b"xgL":
        raise UnreadableError("the tar archive has two headers in a row for one member")
    return _Entry(
        header.name if name is None else name,
        position,
        header.size if size is None else size,
        header.kind,
    )


def _read_block(source: Source, position: int) -> bytes:
    if position + BLOCK > source.size:
        raise CutOffError(
            f"cut off: the tar archive has no end, the file ends at {source.size:,} "
            "bytes"
        )
    return source.read(position, BLOCK)


def _parse_header(block: bytes, position: int) -> _Header:
    if _header_checksum(block) is None:
        raise UnreadableError(
            f"the tar header at byte {position:,} does not match its checksum"
        )
    magic = block[257:265]
    if magic not in (b"ustar\00000", b"ustar  \0", b"\0" * 8):
        raise UnreadableError(
            f"the tar header at byte {position:,} has an unknown version"
        )
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0]
    # GNU keeps times there, other readers a part of the name.
    if prefix and magic != b"ustar\00000":
        raise UnreadableError(
            f"the tar header at byte {position:,} has a prefix that readers see "
            "differently"
        )
    whole = prefix + b"/" + name if prefix else name
    return _Header(
        _decode_text(whole, position),
        _parse_number(block[124:136], position),
        block[156:157],
    )


def _header_checksum(block: bytes) -> int | None:
    """The checksum of a header; None when it does not match: the sum of its bytes, with
    blanks for itself.
    """
    text = block[148:156].strip(b" \0")
    if not text or len(text) > 7 or not all(byte in b"01234567" for byte in text):
        return None
    total = sum(block[:148]) + sum(block[156:BLOCK]) + 8 * 0x20
    return total if int(text, 8) == total else None


def _parse_number(field: bytes, position: int) -> int:
    """Read a number: octal digits, or bytes after a mark for sizes of 8 GiB and
    more.
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.rstrip(b" \0").lstrip(b" ")
    if not text or not all(byte in b"01234567" for byte in text):
        raise UnreadableError(
            f"the tar header at byte {position:,} has an invalid size"
        )
    return int(text, 8)


def _decode_text(raw: bytes, position: int) -> str:
    if b"\0" in raw:
        raise UnreadableError(
            f"the tar header at byte {position:,} has a name with a NUL byte"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(
            f"the tar header at byte {position:,} has a name that is not UTF-8"
        ) from None


def _parse_pax_records(data: bytes, position: int) -> dict[str, str]:
    """The records `LENGTH KEY=VALUE\\n`. LENGTH counts the whole record."""
    fields: dict[str, str] = {}
    while data:
        digits, blank, _ = data[:20].partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        record = data[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not blank or not equals or not record.endswith(b"\n") or length > len(data):
            raise UnreadableError(
                f"the tar header before byte {position:,} has damaged records"
            )
        name = _decode_text(key, position)
        if name in fields:
            raise UnreadableError(
                f"the tar header before byte {position:,} has the record "
                f"{show(name, 40)} twice"
            )
        if name.startswith("GNU.sparse") or name == "hdrcharset":
            raise UnreadableError(f"ckpt does not read tar records of {show(name, 40)}")
        # Other keys, such as the owner or times, may be anything.
        fields[name] = (
            _decode_text(value[:-1], position)
            if name in ("path", "size", "linkpath")
            else ""
        )
        data = data[length:]
    return fields


def _plain_name(name: str, *, is_folder: bool) -> str:
    """A name without `./`. Raises UnreadableError for one that leads out of the
    archive.
    """
    steps = name.removesuffix("/").split("/") if is_folder else name.split("/")
    while steps[:1] == ["."]:
        steps = steps[1:]
    if any(step in ("", ".", "..") for step in steps) or (not steps and not is_folder):
        raise UnreadableError(
            f"the tar archive holds a name that leads elsewhere: {show(name, 80)}"
        )
    return "/".join(steps)


def _check_end(source: Source, position: int) -> None:
    extra = source.size - position
    if extra < 2 * BLOCK:
        raise CutOffError(
            f"cut off: the tar archive has no end, the file ends at {source.size:,} "
            "bytes"
        )
    if extra > _TAIL or source.read(position, extra).strip(b"\0"):
        raise UnreadableError(
            f"more bytes follow the end of the tar archive at byte {position:,}"
        )


def _padded_position(position: int) -> int:
    return -(-position // BLOCK) * BLOCK
