"""Numpy arrays in a pickle, without numpy: shape, dtype and raw bytes, as
`ndarray.__reduce__` lays them out.
"""

from __future__ import annotations

import struct
import sys

from ckpt.model.nodes import ByteStr, Node, Opaque
from ckpt.model.rows import NamedTuple


class NumpyDType(NamedTuple):
    """A numpy dtype as its pickle names it: `code` like `f4`, `order` one of `<`, `>`,
    `|`.

    `unit` is what a time counts (`D`, `25ns`), empty for anything else. A time decodes
    as its number of units.
    """

    code: str
    order: str
    unit: str = ""

    @property
    def name(self) -> str:
        kinds = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
        kind, digits = self.code[:1], self.code[1:]
        if self.unit:
            return f"{_TIMES[self.code]}[{self.unit}]"
        if kind in kinds and digits.isascii() and digits.isdigit() and len(digits) < 3:
            return f"{kinds[kind]}{int(digits) * 8}"
        return {"b1": "bool", "O8": "object", "O": "object"}.get(self.code, self.code)

    @property
    def itemsize(self) -> int | None:
        digits = self.code[1:]
        # `isdigit` alone takes digits of other scripts, and a file may write a million.
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            return None
        # U8 has eight characters, and each of them takes four bytes.
        bytes_per_unit = 4 if self.code[0] == "U" else 1
        return int(digits) * bytes_per_unit

    def decode(self, data: bytes, count: int) -> list[Node] | None:
        """`count` numbers or texts; None when the bytes do not fit this dtype."""
        size = self.itemsize
        if size is None or len(data) < size * count:
            return None
        order = ">" if self.order == ">" else "<"
        # A time is stored as an int64, the number of its units.
        form = "q" if self.unit else _FORMS.get(self.code)
        if form is not None:
            return list(struct.unpack_from(f"{order}{count}{form}", data))
        if self.code in ("c8", "c16"):
            half = "f" if self.code == "c8" else "d"
            parts = struct.unpack_from(f"{order}{2 * count}{half}", data)
            return [
                str(complex(real, imag))
                for real, imag in zip(parts[::2], parts[1::2], strict=True)
            ]
        if self.code[:1] == "U":
            return _decode_utf32(data, order, size, count)
        if self.code[:1] == "S":
            pieces = [data[index * size : (index + 1) * size] for index in range(count)]
            return [piece.rstrip(b"\0") for piece in pieces]
        return None


def _decode_utf32(data: bytes, order: str, size: int, count: int) -> list[Node] | None:
    """Return the texts of elements of `U`, without the zeros that fill them up.

    It is None if one has a character beyond Unicode, of which numpy makes no text.
    """
    letters = size // 4
    # By hand, because a codec by name would import a module.
    codes = struct.unpack_from(f"{order}{letters * count}I", data)
    if max(codes, default=0) > sys.maxunicode:
        return None
    text = "".join(map(chr, codes))
    return [
        text[index * letters : (index + 1) * letters].rstrip("\0")
        for index in range(count)
    ]


_FORMS = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
"""The codes of numbers, and how the module struct calls them."""


class NumpyArray(NamedTuple):
    """A numpy array as its pickle holds it: raw `data`, or `items` for an array of
    objects.
    """

    shape: tuple[int, ...]
    dtype: NumpyDType
    fortran: bool
    data: bytes | None
    items: list[Node] | None = None


def array_of(node: Node) -> NumpyArray | None:
    """The numpy array of a node; None when the node is not a readable numpy array."""
    if type(node) is not Opaque:
        return None
    # Protocol 5 writes `_frombuffer(data, dtype, shape, order)`.
    if node.class_name.endswith(".numeric._frombuffer") and len(node.args) >= 3:
        return _array_of_buffer(node)
    # The others write an empty array, and a state that fills it.
    if not node.class_name.endswith(".multiarray._reconstruct") or not node.states:
        return None
    state = node.states[-1]
    if type(state) is not tuple or len(state) < 4:
        return None
    # Before these four there may be a version.
    shape_node, dtype_node, fortran, raw = state[-4:]
    dtype = numpy_dtype(dtype_node)
    shape = _shape_of(shape_node)
    if dtype is None or shape is None:
        return None
    if type(fortran) not in (bool, int) or fortran not in (0, 1):
        return None
    if type(raw) is list:
        return NumpyArray(shape, dtype, bool(fortran), None, raw)
    # Python 2 writes bytes as a text of its own, without a call.
    data = raw.raw if isinstance(raw, ByteStr) else as_bytes(raw)
    return NumpyArray(shape, dtype, bool(fortran), data)


def _array_of_buffer(call: Opaque) -> NumpyArray | None:
    """Return the array of a call of `_frombuffer`, or None."""
    dtype = numpy_dtype(call.args[1])
    shape = _shape_of(call.args[2])
    if dtype is None or shape is None:
        return None
    order = call.args[3] if len(call.args) > 3 else "C"
    # numpy takes "f" and "A" too, and "K" with axes: these are not understood here.
    if order not in ("C", "F"):
        return None
    return NumpyArray(shape, dtype, order == "F", as_bytes(call.args[0]))


def _shape_of(node: Node) -> tuple[int, ...] | None:
    # numpy itself takes 64 dimensions at most.
    if type(node) is not tuple or len(node) > 64:
        return None
    # Exact types: in Python True is an int, and no size.
    sizes = [size for size in node if type(size) is int and 0 <= size < 2**63]
    return tuple(sizes) if len(sizes) == len(node) else None


def numpy_dtype(node: Node) -> NumpyDType | None:
    """Return the dtype that a node is, or None."""
    if type(node) is not Opaque or not node.args or not isinstance(node.args[0], str):
        return None
    if node.class_name not in ("numpy.dtype", "numpy.dtypes.dtype"):
        return None
    order = "|"
    for state in node.states:
        # numpy reads a state of five parts in another order, and takes bytes for a
        # text.
        if type(state) is not tuple or len(state) < 6 or not isinstance(state[1], str):
            return None
        order = str(state[1])
    code = str(node.args[0])[:16]
    unit = _time_unit(node) if code in _TIMES else ""
    return NumpyDType(code, order, unit)


_TIMES = {"M8": "datetime64", "m8": "timedelta64"}


def _time_unit(node: Opaque) -> str:
    """Return the unit of a time, from the last part of its state: `(None, (b"D", 1, 1,
    1))`.

    It is empty if the state does not say it.
    """
    state = node.states[-1] if node.states else None
    last = state[-1] if type(state) is tuple and len(state) == 9 else None
    parts = last[1] if type(last) is tuple and len(last) == 2 else None
    if type(parts) is not tuple or len(parts) != 4:
        return ""
    # The last two divide the unit and count its events. numpy writes 1 for both.
    name = as_bytes(parts[0])
    count = parts[1]
    if name not in _UNITS or parts[2:] != (1, 1):
        return ""
    if type(count) is not int or not 0 < count < 2**31:
        return ""
    return ("" if count == 1 else str(count)) + name.decode("ascii")


_UNITS = (
    b"Y",
    b"M",
    b"W",
    b"D",
    b"h",
    b"m",
    b"s",
    b"ms",
    b"us",
    b"ns",
    b"ps",
    b"fs",
    b"as",
)


_LATIN1 = ("latin1", "latin-1", "iso-8859-1")
_UTF8 = ("utf-8", "utf8")
CODECS = (*_LATIN1, *_UTF8, "ascii")
"""The codecs that Python itself uses in pickles. Any other would be imported by its
name.
"""
_BYTES = (
    "builtins.bytes",
    "__builtin__.bytes",
    "builtins.bytearray",
    "__builtin__.bytearray",
)


def as_bytes(node: Node) -> bytes | None:
    """Return the bytes of a node, exactly as loading gives them, or None.

    Bytes, or a call that makes bytes: `_codecs.encode(text, codec)` and `bytes(x)`, as
    protocol 2 writes bytes, and `bytearray(x)`. A call whose result the file changes
    afterwards is not understood.
    """
    # A loop, because a file can wrap bytes in any number of calls.
    while (
        type(node) is Opaque
        and node.class_name in _BYTES
        and len(node.args) == 1
        and not _is_changed(node)
    ):
        node = node.args[0]
    if type(node) is bytes:
        return node
    if type(node) is bytearray:
        return bytes(node)
    if isinstance(node, ByteStr):
        return node.raw
    if type(node) is not Opaque or _is_changed(node):
        return None
    args = node.args
    if node.class_name == "_codecs.encode" and 1 <= len(args) <= 2:
        return _encode_text(args[0], args[1] if len(args) == 2 else "utf-8")
    if node.class_name in _BYTES:
        if not args:
            return b""
        # `bytes("text", "latin-1")` of Python 3.
        if len(args) == 2:
            return _encode_text(args[0], args[1])
    return None


def _is_changed(call: Opaque) -> bool:
    """Tell whether a file changes the result of a call, or makes the call with
    keywords.
    """
    return bool(call.items or call.keys or call.states) or call.kwargs is not None


def _encode_text(text: Node, codec: Node) -> bytes | None:
    """A text in one of the codecs that Python itself uses here; any other codec would
    be imported by its name.
    """
    # A loader decodes the strings of Python 2 first, by an encoding of its own.
    if not isinstance(text, str) or (type(text) is ByteStr and not text.isascii()):
        return None
    if not isinstance(codec, str) or codec not in CODECS:
        return None
    if codec in _LATIN1:
        encoding = "latin-1"
    else:
        encoding = "utf-8" if codec in _UTF8 else "ascii"
    try:
        return str(text).encode(encoding)
    except UnicodeEncodeError:
        return None
