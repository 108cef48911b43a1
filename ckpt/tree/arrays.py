"""Numpy arrays in a pickle, without numpy: shape, dtype and raw bytes, as
`ndarray.__reduce__` lays them out.
"""

from __future__ import annotations

import struct

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
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            return None
        return int(digits) * (4 if self.code[0] == "U" else 1)

    def decode(self, data: bytes, count: int) -> list[Node] | None:
        """`count` numbers or texts; None when the bytes do not fit this dtype."""
        size = self.itemsize
        if size is None or len(data) < size * count:
            return None
        order = ">" if self.order == ">" else "<"
        formats = {"f2": "e", "f4": "f", "f8": "d", "b1": "?"}
        formats |= {
            f"{kind}{n}": code
            for kind, codes in (("i", "bhiq"), ("u", "BHIQ"))
            for n, code in zip((1, 2, 4, 8), codes, strict=True)
        }
        if self.unit:
            formats[self.code] = "q"
        if self.code in formats:
            return list(struct.unpack_from(f"{order}{count}{formats[self.code]}", data))
        if self.code in ("c8", "c16"):
            flat = struct.unpack_from(
                f"{order}{2 * count}{'f' if self.code == 'c8' else 'd'}", data
            )
            return [
                f"({re!r}{'+' if im >= 0 else ''}{im!r}j)"
                for re, im in zip(flat[::2], flat[1::2], strict=True)
            ]
        pieces = [data[i * size : (i + 1) * size] for i in range(count)]
        if self.code[:1] == "U":
            # By hand, because a codec by name would import a module.
            codes = [struct.unpack(f"{order}{size // 4}I", piece) for piece in pieces]
            return [
                "".join(
                    chr(code) if code < 0x110000 else "\ufffd" for code in row
                ).rstrip("\0")
                for row in codes
            ]
        if self.code[:1] == "S":
            return [piece.rstrip(b"\0") for piece in pieces]
        return None


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
    if node.class_name.endswith(".numeric._frombuffer") and len(node.args) >= 3:
        dtype, shape = numpy_dtype(node.args[1]), _shape_of(node.args[2])
        order = node.args[3] if len(node.args) > 3 else "C"
        if dtype is None or shape is None:
            return None
        if order not in ("C", "F"):  # numpy takes "f" and "A" too, and "K" with axes
            return None
        return NumpyArray(shape, dtype, order == "F", as_bytes(node.args[0]))
    if not node.class_name.endswith(".multiarray._reconstruct") or not node.states:
        return None
    state = node.states[-1]
    if type(state) is not tuple or len(state) < 4:
        return None
    size, kind, fortran, raw = state[-4:]
    dtype, sizes = numpy_dtype(kind), _shape_of(size)
    if (
        dtype is None
        or sizes is None
        or type(fortran) not in (bool, int)
        or fortran not in (0, 1)
    ):
        return None
    if type(raw) is list:
        return NumpyArray(sizes, dtype, bool(fortran), None, raw)
    data = raw.raw if isinstance(raw, ByteStr) else as_bytes(raw)
    return NumpyArray(sizes, dtype, bool(fortran), data)


def _shape_of(node: Node) -> tuple[int, ...] | None:
    if type(node) is not tuple or len(node) > 64:
        return None
    sizes = tuple([n for n in node if type(n) is int and 0 <= n < 2**63])
    return sizes if len(sizes) == len(node) else None


def numpy_dtype(node: Node) -> NumpyDType | None:
    if type(node) is not Opaque or not node.args or not isinstance(node.args[0], str):
        return None
    if node.class_name not in ("numpy.dtype", "numpy.dtypes.dtype"):
        return None
    order = "|"
    for state in node.states:
        if type(state) is not tuple or len(state) < 6 or not isinstance(state[1], str):
            # numpy reads a state of five parts in another order, and takes bytes for a
            # text
            return None
        order = str(state[1])
    code = str(node.args[0])[:16]
    return NumpyDType(code, order, _time_unit(node) if code in _TIMES else "")


_TIMES = {"M8": "datetime64", "m8": "timedelta64"}


def _time_unit(node: Opaque) -> str:
    """Return the unit of a time, from the last part of its state: `(None, (b"D", 1, 1,
    1))`.

    It is empty if the state does not say it.
    """
    state = node.states[-1] if node.states else None
    last = state[-1] if type(state) is tuple and len(state) == 9 else None
    unit = last[1] if type(last) is tuple and len(last) == 2 else None
    if type(unit) is not tuple or len(unit) != 4 or type(unit[1]) is not int:
        return ""
    name = as_bytes(unit[0])
    if name not in _UNITS or unit[2:] != (1, 1) or not 0 < unit[1] < 2**31:
        return ""
    return ("" if unit[1] == 1 else str(unit[1])) + name.decode("ascii")


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
    name, args = node.class_name, node.args
    if name == "_codecs.encode":
        return (
            _encode_text(args[0], args[1] if len(args) == 2 else "utf-8")
            if 1 <= len(args) <= 2
            else None
        )
    if name in _BYTES:
        return b"" if not args else _encode_text(*args) if len(args) == 2 else None
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
    if not isinstance(text, str) or (type(text) is ByteStr and not text.isascii()):
        # a loader decodes the strings of Python 2 first, by an encoding of its own
        return None
    if not isinstance(codec, str) or codec not in CODECS:
        return None
    try:
        return str(text).encode(
            "latin-1" if codec in _LATIN1 else "ascii" if codec == "ascii" else "utf-8"
        )
    except UnicodeEncodeError:
        return None
