"""The headers of numpy's arrays, to find the pickles that
`numpy.load` comes to: in arrays of objects, and behind an array.

Layout: numpy/lib/format.py.
"""

from __future__ import annotations

import re
from math import prod

from ckpt.bytes.source import Source
from ckpt.formats.common.early import LOOKED, is_pickle_or_runs
from ckpt.model.limits import Limits

MAGIC = b"\x93NUMPY"
HEADER = 4096
"""Bytes that are read to find the dtype of an array."""
_MOST = 10_000
"""The most arrays in a row that are followed."""
_NUMBERS = re.compile(
    rb"""\s+ | [{}\[\](),] | \d+L? | True | False
    | ["'] (?:descr | fortran_order | shape) ["'] \s* :
    # The name of a field stands first in its tuple, and its type follows.
    | (?:(?<=\[\() | (?<=\),\ \()) (?: '[^'\\]*' | "[^"\\]*" ) , \s* (?=['"\[])
    | ["'] [<>|=]?
      (?: [?A-NP-SU-Za-z] \d* (?:\[\w+\])?
        | (?: bool | u?int | float | complex | bytes | str ) \d* )
      ["'] (?= \s* [,)\]}] )""",
    re.VERBOSE,
)
"""The header of an array that has no objects.

`O`, `object` and `T` are types of objects, also in a list such as `i4,T`, and a header
is a text of Python: types can be escaped, or put together of two texts.
"""


def is_object_array(head: bytes) -> bool:
    """Tell whether the first bytes of a file are the header of an array of objects,
    behind which lies a pickle.

    A header that goes on behind them counts as one, because numpy writes less, and so
    does one that other writers than numpy made and that is not understood.
    """
    begin = header_size(head)
    # No array: a pickle may begin here, which is looked for apart.
    if not begin:
        return False
    return begin > len(head) or not _is_of_numbers(head[:begin])


def _is_of_numbers(header: bytes) -> bool:
    """Tell whether a header of an array, with its length, names no type of objects."""
    return not _NUMBERS.sub(b"", _text_of(header))


def _text_of(header: bytes) -> bytes:
    return header[10 if header[6:7] == b"\1" else 12 :]


def header_size(data: bytes) -> int:
    """Return the bytes of the header of an array of numpy, or 0 where there is none."""
    width = 2 if data[6:7] == b"\1" else 4
    if data.startswith(MAGIC):
        return 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    return 0


def find_unpickled(source: Source, limits: Limits, begin: int = 0) -> int | None:
    """Return where the first pickle or array of objects begins that somebody comes to
    who calls `numpy.load` in a loop, or None.

    An array whose bytes cannot be counted counts as one of objects.
    """
    for _ in range(_MOST):
        rest = source.size - begin
        if rest <= 0:
            return None
        # `numpy.load` in a loop over one open file comes to what lies behind an array.
        head = source.read(begin, min(rest, HEADER))
        size = header_size(head)
        if not size:
            head = source.read(begin, min(rest, LOOKED))
            return begin if _is_pickle(head, rest, limits) else None
        if is_object_array(head):
            # An array of objects that ends with its header has no pickle.
            return begin if size < rest else None
        text = _text_of(head[:size])
        length = _data_size(text)
        # numpy may understand a header that is not understood here.
        if length is None and b"descr" in text and b"shape" in text:
            return begin
        if length is None:
            return None
        begin += size + length
    return begin


def _is_pickle(head: bytes, size: int, limits: Limits) -> bool:
    verdict = is_pickle_or_runs(head, size, limits)
    # Undecided after all that was looked at: it may be one while more follows.
    return verdict is True or (verdict is None and len(head) < size)


# --- the bytes of an array ------------------------------------------------------------


_TOKENS = re.compile(rb"""\s*(?:("[^"]*"|'[^']*')|(\d+)L?|(True|False)|(.))""")
_TYPE = re.compile(r"[<>|=]?([?a-zA-Z])(\d*)(?:\[\w+\])?")
_LETTERS = {
    **dict.fromkeys("?bB", 1),
    **dict.fromkeys("hHe", 2),
    **dict.fromkeys("iIf", 4),
    **dict.fromkeys("lLqQdFpPmM", 8),
    **dict.fromkeys("gD", 16),
    "G": 32,
    "c": 1,
    "u": 4,
}
"""The bytes of a type that is one letter."""
_NAMED = re.compile(r"(bool|u?int|float|complex)(\d*)")
_DEEP = 20
"""The most dtypes in each other that are counted."""


def _data_size(text: bytes) -> int | None:
    """Return the bytes of the elements of an array with this header, or None where they
    cannot be counted.
    """
    reader = _Header(text)
    try:
        return reader.data_size()
    except (IndexError, KeyError, ValueError):
        return None


class _Header:
    """A header, token by token. Its methods raise ValueError or IndexError where it is
    not understood.
    """

    def __init__(self, text: bytes) -> None:
        self._tokens = [match[0].strip() for match in _TOKENS.finditer(text.strip())]
        self._at = 0

    def data_size(self) -> int:
        """Return the bytes of the elements."""
        width = count = -1
        self._take(b"{")
        while self._peek() != b"}":
            # A dict of Python in the order of its writer: descr, fortran_order, shape.
            key = self._word()
            self._take(b":")
            if key == "descr":
                width = self._type_size(0)
            elif key == "shape":
                count = prod(self._sizes())
            else:
                # The value of fortran_order is one word, and changes no size.
                self._at += 1
            if self._peek() == b",":
                self._at += 1
        if width < 0 or count < 0:
            raise ValueError
        return width * count

    def _peek(self) -> bytes:
        return self._tokens[self._at]

    def _take(self, sign: bytes) -> None:
        if self._peek() != sign:
            raise ValueError
        self._at += 1

    def _word(self) -> str:
        token = self._peek()
        if token[:1] not in (b"'", b'"'):
            raise ValueError
        self._at += 1
        return token[1:-1].decode("latin-1")

    def _sizes(self) -> list[int]:
        """Read a shape: a number, or a tuple or list of numbers."""
        if self._peek() not in (b"(", b"["):
            self._at += 1
            return [int(self._tokens[self._at - 1].rstrip(b"L"))]
        close = {b"(": b")", b"[": b"]"}[self._peek()]
        self._at += 1
        sizes = []
        while self._peek() != close:
            sizes.append(int(self._peek().rstrip(b"L")))
            self._at += 1
            if self._peek() == b",":
                self._at += 1
        self._at += 1
        return sizes

    def _pass_name(self) -> None:
        """Pass over the name of a field, or its title and its name."""
        if self._peek() != b"(":
            self._word()
            return
        self._at += 1
        self._word()
        self._take(b",")
        self._word()
        self._take(b")")

    def _type_size(self, depth: int) -> int:
        """Read a dtype: a text, a list of fields, or a dtype with a shape."""
        if depth > _DEEP:
            raise ValueError
        if self._peek() == b"(":
            self._at += 1
            size = self._type_size(depth + 1)
            self._take(b",")
            size *= prod(self._sizes())
            self._take(b")")
            return size
        if self._peek() != b"[":
            return _size_of(self._word())
        self._at += 1
        total = 0
        while self._peek() != b"]":
            self._take(b"(")
            self._pass_name()
            self._take(b",")
            size = self._type_size(depth + 1)
            if self._peek() == b",":
                self._at += 1
                size *= prod(self._sizes()) if self._peek() != b")" else 1
            self._take(b")")
            total += size
            if self._peek() == b",":
                self._at += 1
        self._at += 1
        return total


def _size_of(name: str) -> int:
    """Return the bytes of a type by its name."""
    named = _NAMED.fullmatch(name)
    if named is not None:
        usual = {"bool": 8, "complex": 128}.get(named[1], 64)
        return int(named[2] or usual) // 8
    match = _TYPE.fullmatch(name)
    if match is None:
        raise ValueError
    letter, digits = match[1], match[2]
    if letter in "mM":
        return 8
    if letter in "SaV":
        return int(digits or 0)
    # numpy keeps 4 bytes for each letter.
    if letter == "U":
        return 4 * int(digits or 0)
    return int(digits) if digits else _LETTERS[letter]
