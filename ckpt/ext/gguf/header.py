"""The header of a GGUF file: version, metadata, and where each tensor lies. No tensor
data is read.

Rules: docs/gguf.md of ggml, and what llama.cpp's reader (gguf.cpp) refuses. All numbers
have the order of bytes of the machine that the file was written for; the letters GGUF
always come first.
"""

from __future__ import annotations

from math import prod
from struct import Struct

from ckpt.bytes.source import Source
from ckpt.ext.gguf.types import BY_NUMBER, GONE
from ckpt.model.dtypes import DType
from ckpt.model.errors import CutOffError, LimitError, UnreadableError, UnsupportedError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import DIMENSIONS
from ckpt.model.text import show

VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
_ALIGNMENT = 32
"""The alignment of the data where the metadata does not say it."""
_LEAST_TENSOR, _LEAST_KEY = 24, 13
"""The fewest bytes of a tensor and of a pair of the metadata."""
_ENTRY, _KEY = 1_000, 700
"""Bytes of memory of a tensor and of a pair of the metadata."""
_LETTER = 4
"""Bytes of memory of a byte of a text that is not ASCII alone."""
_NUMBER, _TEXT_ITEM = 36, 60
"""Bytes of memory of a number and of a text in a list."""
FEW = 256
"""Items of an array that are made at once; longer arrays are made when they are asked
for.
"""
MANY = 1 << 16
"""Items of all short arrays together that are made at once: a number takes up to 36
times the memory of its byte.
"""
STEP = 1 << 20
"""The least bytes of a header that is read on: behind a URL each read is a request."""
_LONGEST_NAME = 65_535
"""The most bytes of a key (docs/gguf.md). Names of tensors are shorter."""

_SCALARS = {
    0: ("B", "int"),
    1: ("b", "int"),
    2: ("H", "int"),
    3: ("h", "int"),
    4: ("I", "int"),
    5: ("i", "int"),
    6: ("f", "float"),
    7: ("?", "bool"),
    10: ("Q", "int"),
    11: ("q", "int"),
    12: ("d", "float"),
}
"""Number of a type of the metadata -> its letter for struct, and the name of what it
becomes.
"""
_TEXT, _ARRAY = 8, 9


class Array(NamedTuple):
    """An array of the metadata as it lies in the header: the number of its items' type,
    how many, and their bytes.

    `order` is the order of the bytes of a number, as struct has it.
    """

    kind: int
    length: int
    data: bytes
    order: str

    @property
    def type(self) -> str:
        """The name of its items' type."""
        return "str" if self.kind == _TEXT else _SCALARS[self.kind][1]

    def items(self) -> list[Node]:
        """The items, made anew."""
        if self.kind != _TEXT:
            letter = _SCALARS[self.kind][0]
            return list(Struct(f"{self.order}{self.length}{letter}").unpack(self.data))
        # Texts have a length of 8 bytes each before them, as in the file.
        length_at = Struct(f"{self.order}Q").unpack_from
        items: list[Node] = []
        position = 0
        for _ in range(self.length):
            begin = position + 8
            end = begin + length_at(self.data, position)[0]
            items.append(self.data[begin:end].decode("utf-8", "backslashreplace"))
            position = end
        return items


class Row(NamedTuple):
    """A tensor: its type, its shape as torch counts it, and the bytes of the file that
    it lies in.
    """

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """The header: version, order of bytes, the metadata, the tensors by name, and where
    their data begins.
    """

    version: int
    big: bool
    values: dict[str, bool | int | float | str | Array]
    tensors: dict[str, Row]
    begin: int
    end: int
    """One past the last byte of a tensor, with its padding."""
    gap: str | None = None
    """The first tensor that does not lie where llama.cpp expects it, in a sentence."""


class _Cursor:
    """The header while it is read from the source, as far as it is needed."""

    def __init__(
        self, source: Source, head: bytes, order: str, limits: Limits, budget: Budget
    ) -> None:
        self.data = bytearray(head)
        self.position = 0
        self.order = order
        self.budget = budget
        self._source = source
        self._most = limits.header_bytes
        self._formats: dict[str, Struct] = {}

    def need(self, count: int, what: str) -> None:
        """Read on until `count` bytes from the position are there. Raises
        UnreadableError, LimitError.
        """
        end = self.position + count
        if end <= len(self.data):
            return
        size = self._source.size
        # A number of a damaged file may be larger than any file: that is no cut.
        if count > size:
            raise UnreadableError(
                f"damaged GGUF header: {what} claims {count:,} bytes in a file of "
                f"{size:,}"
            )
        if end > size:
            raise CutOffError(
                f"cut off: {what} in the GGUF header needs bytes to {end:,}, the file "
                f"ends at {size:,}"
            )
        if end > self._most:
            raise LimitError(
                f"the GGUF header has over {self._most:,} bytes",
                "header-bytes",
                self._most,
            )
        # Twice as much each time: a vocabulary is read in a few requests, not in
        # thousands.
        target = min(size, self._most, max(end, 2 * len(self.data), STEP))
        self.data += self._source.read(len(self.data), target - len(self.data))

    def number(self, letter: str, what: str) -> int:
        """The next number, of the type that struct names by a letter."""
        value: int = self.value(letter, what)  # type: ignore[assignment]
        return value

    def value(self, letter: str, what: str) -> bool | int | float:
        form = self._formats.get(letter)
        if form is None:
            form = self._formats[letter] = Struct(f"{self.order}{letter}")
        self.need(form.size, what)
        value: bool | int | float = form.unpack_from(self.data, self.position)[0]
        self.position += form.size
        return value

    def take(self, count: int, what: str) -> bytes:
        """The next bytes."""
        self.need(count, what)
        taken = bytes(self.data[self.position : self.position + count])
        self.position += count
        return taken

    def text(self, what: str) -> bytes:
        """The next text: its length and its bytes."""
        return self.take(self.number("Q", what), what)

    def skip_texts(self, count: int, what: str) -> None:
        """Pass over texts. A vocabulary has hundreds of thousands, so this loop does
        nothing else.
        """
        length_at = Struct(f"{self.order}Q").unpack_from
        position = self.position
        last = len(self.data) - 8
        for _ in range(count):
            if position > last:
                self.position = position
                self.need(8, what)
                last = len(self.data) - 8
            position += 8 + length_at(self.data, position)[0]
        self.position = position
        # A text may end behind the bytes that are there: that is seen here.
        self.need(0, what)


def read_header(
    source: Source,
    head: bytes,
    limits: Limits,
    budget: Budget,
    *,
    is_cut: bool = False,
) -> Header:
    """The header of a file that begins with `head`. With `is_cut` data may be missing
    at the end of the file.

    Raises UnreadableError, UnsupportedError, LimitError.
    """
    version, big = _version_of(head, source.size)
    cursor = _Cursor(source, head, ">" if big else "<", limits, budget)
    cursor.position = 8
    tensors = cursor.number("Q", "the number of tensors")
    keys = cursor.number("Q", "the number of pairs of the metadata")
    # Counts are held against the size of the file before anything is made of them.
    claims = (
        (tensors, _LEAST_TENSOR, "tensors"),
        (keys, _LEAST_KEY, "pairs of metadata"),
    )
    for count, least, what in claims:
        if count * least > source.size:
            raise UnreadableError(
                f"damaged GGUF header: it claims {count:,} {what} in a file of "
                f"{source.size:,} bytes"
            )
        if count > limits.entries:
            raise LimitError(
                f"the GGUF file has {count:,} {what}",
                "entries",
                limits.entries,
            )
    # Charged before the metadata is read, and again as soon as its true size is known.
    budget.charge(keys * _KEY, "the GGUF header")
    values = _read_values(cursor, keys)
    budget.hold(cursor.position + tensors * _LEAST_TENSOR)
    budget.claim(tensors)
    budget.charge(len(cursor.data) + tensors * _ENTRY, "the GGUF header")
    alignment = _alignment_of(values)
    rows = _read_rows(cursor, tensors)
    budget.charge_names((row[0] for row in rows), "the GGUF header")
    begin = -(-cursor.position // alignment) * alignment
    # The header with no tensors yet: they are placed by where the data begins.
    header = Header(version, big, values, {}, begin, begin)
    return _placed(rows, header, alignment, source.size, is_cut)


def _version_of(head: bytes, size: int) -> tuple[int, bool]:
    """Return the version, and whether the file is of a big-endian machine."""
    if size < 24:
        raise CutOffError(
            f"cut off: the GGUF header needs 24 bytes, the file ends at {size:,}"
        )
    little = int.from_bytes(head[4:8], "little")
    big = int.from_bytes(head[4:8], "big")
    # Versions are small: where the lower half is empty, the bytes are the other way.
    is_big = little & 0xFFFF == 0
    version = big if is_big else little
    if version == 1:
        raise UnsupportedError(
            "GGUF version 1, of August 2023, which llama.cpp does not read either",
            hint="take a file that was converted again",
        )
    if version not in VERSIONS:
        raise UnsupportedError(f"GGUF version {version:,}, and ckpt knows 2 and 3")
    return version, is_big


def _read_values(
    cursor: _Cursor, count: int
) -> dict[str, bool | int | float | str | Array]:
    """The pairs of the metadata."""
    values: dict[str, bool | int | float | str | Array] = {}
    for _ in range(count):
        name = _name_of(cursor.text("a key of the metadata"), "a key of the metadata")
        what = show(name, 80)
        # Two readers could take either of both.
        if name in values:
            raise UnreadableError(f"damaged GGUF header: the metadata has {what} twice")
        values[name] = _read_value(cursor, what)
    return values


def _name_of(data: bytes, what: str) -> str:
    if len(data) > _LONGEST_NAME:
        raise UnreadableError(f"damaged GGUF header: {what} has {len(data):,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(f"damaged GGUF header: {what} is not UTF-8") from None


def _read_value(cursor: _Cursor, what: str) -> bool | int | float | str | Array:
    kind = cursor.number("I", what)
    if kind == _TEXT:
        # Texts need not be UTF-8: a vocabulary has pieces of characters.
        text = cursor.text(what)
        letter_bytes = 1 if text.isascii() else _LETTER
        cursor.budget.charge(letter_bytes * len(text), "the GGUF header")
        return text.decode("utf-8", "backslashreplace")
    if kind == _ARRAY:
        return _read_array(cursor, what)
    if kind not in _SCALARS:
        raise UnreadableError(
            f"damaged GGUF header: {what} has the unknown type {kind:,}"
        )
    return cursor.value(_SCALARS[kind][0], what)


def _read_array(cursor: _Cursor, what: str) -> Array:
    kind = cursor.number("I", what)
    count = cursor.number("Q", what)
    if kind == _ARRAY:
        raise UnreadableError(
            f"damaged GGUF header: {what} is an array of arrays, which llama.cpp "
            "refuses too"
        )
    if kind != _TEXT and kind not in _SCALARS:
        raise UnreadableError(
            f"damaged GGUF header: the items of {what} have the unknown type {kind:,}"
        )
    begin = cursor.position
    if kind == _TEXT:
        # At least a length for each text: a claim of billions ends here.
        cursor.need(8 * count, f"{what}, with {count:,} texts,")
        cursor.skip_texts(count, what)
        data = bytes(cursor.data[begin : cursor.position])
    else:
        data = cursor.take(count * Struct(f"={_SCALARS[kind][0]}").size, what)
    # All items, as they are when somebody asks for them.
    item_bytes = _TEXT_ITEM * count + len(data) if kind == _TEXT else _NUMBER * count
    cursor.budget.charge(len(data) + item_bytes, "the GGUF header")
    return Array(kind, count, data, cursor.order)


def _alignment_of(values: dict[str, bool | int | float | str | Array]) -> int:
    alignment = values.get(ALIGNMENT_KEY, _ALIGNMENT)
    is_power = False
    if type(alignment) is int and alignment > 0:
        # A power of two has one bit alone.
        is_power = alignment & (alignment - 1) == 0
    if not is_power or type(alignment) is not int:
        said = f"{alignment:,}" if type(alignment) is int else "no number"
        raise UnreadableError(
            f"damaged GGUF header: {ALIGNMENT_KEY} must be a power of two, and it is "
            f"{said}"
        )
    return alignment


def _read_rows(
    cursor: _Cursor, count: int
) -> list[tuple[str, DType, tuple[int, ...], int]]:
    """(name, type, shape as torch counts it, offset in the data) of each tensor."""
    rows: list[tuple[str, DType, tuple[int, ...], int]] = []
    seen: set[str] = set()
    # One form for each number of dimensions: sizes, the type, and the offset in the
    # data.
    forms = [Struct(f"{cursor.order}{dims}QIQ") for dims in range(DIMENSIONS + 1)]
    for _ in range(count):
        name = _name_of(cursor.text("the name of a tensor"), "the name of a tensor")
        if name in seen:
            raise UnreadableError(
                f"damaged GGUF header: two tensors are called {show(name, 80)}"
            )
        seen.add(name)
        what = f"tensor {show(name, 80)}"
        dims = cursor.number("I", what)
        if dims > DIMENSIONS:
            raise UnreadableError(
                f"{what} has {dims:,} dimensions, at most {DIMENSIONS} are possible"
            )
        form = forms[dims]
        cursor.need(form.size, what)
        *sizes, kind, offset = form.unpack_from(cursor.data, cursor.position)
        cursor.position += form.size
        # GGUF has the innermost dimension first, torch the outermost.
        rows.append((name, _dtype_of(kind, what), tuple(reversed(sizes)), offset))
    return rows


def _dtype_of(kind: int, what: str) -> DType:
    dtype = BY_NUMBER.get(kind)
    if dtype is None:
        named = GONE.get(kind)
        if named is not None:
            raise UnsupportedError(f"{what}: its type is {named}")
        raise UnsupportedError(
            f"{what}: unknown type {kind:,}", hint="a newer llama.cpp, or a fork of it?"
        )
    return dtype


def _placed(
    rows: list[tuple[str, DType, tuple[int, ...], int]],
    header: Header,
    alignment: int,
    size: int,
    is_cut: bool,
) -> Header:
    """The header with its tensors at their places. Raises UnreadableError where they
    overlap or lie behind the end.
    """
    tensors: dict[str, Row] = {}
    for name, dtype, shape, offset in rows:
        what = f"tensor {show(name, 80)}"
        # A row is made of whole blocks: `shape[-1]` is the dimension that lies
        # together.
        block = 1 if dtype.block is None else dtype.block.elements
        if shape and shape[-1] % block:
            raise UnreadableError(
                f"{what}: rows of {shape[-1]:,} elements do not fit blocks of {block}"
            )
        if not shape and block > 1:
            raise UnreadableError(f"{what}: one element does not fit blocks of {block}")
        # Sizes multiply: numpy and files count with signed numbers of 64 bits.
        numel = prod(shape)
        if numel >= 2**63 or dtype.nbytes(numel) >= 2**63:
            raise UnreadableError(f"{what}: its shape {list(shape)} is too large")
        if offset % alignment:
            raise UnreadableError(
                f"{what}: its offset {offset:,} is not a multiple of {alignment:,}"
            )
        begin = header.begin + offset
        tensors[name] = Row(dtype, shape, begin, begin + dtype.nbytes(numel))
    end, gap = _check_cover(tensors, header.begin, alignment)
    last = max((row.end for row in tensors.values()), default=0)
    if last > size and not is_cut:
        name = next(name for name, row in tensors.items() if row.end > size)
        raise CutOffError(
            f"cut off: tensor {show(name, 80)} needs bytes to {tensors[name].end:,}, "
            f"the file ends at {size:,}"
        )
    return header._replace(tensors=tensors, end=end, gap=gap)


def _check_cover(
    tensors: dict[str, Row],
    begin: int,
    alignment: int,
) -> tuple[int, str | None]:
    """Return where the data ends, and the first tensor that does not follow the one
    before. Raises UnreadableError.
    """
    position = begin
    gap = None
    # By where they begin: each may begin at the earliest where the one before ends.
    for name, row in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if row.begin < position and row.end > row.begin:
            raise UnreadableError(
                f"tensor {show(name, 80)}: its bytes {row.begin:,} to {row.end:,} "
                "overlap another tensor"
            )
        if row.begin != position and gap is None:
            gap = (
                f"tensor {show(name, 80)} begins at byte {row.begin:,}, llama.cpp "
                f"expects it at {position:,}"
            )
        position = max(position, -(-row.end // alignment) * alignment)
    return position, gap
