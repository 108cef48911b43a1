"""Converting elements with numpy: blocks of bytes in, blocks of bytes or numbers out. Reads no file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from ckpt.dtypes import DType

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BLOCK = 4 << 20
"""Bytes of one block of elements."""


def swapped(block: bytes, dtype: DType) -> bytes:
    """Elements in the other byte order. A complex number is two numbers of half its width."""
    width = dtype.bits // (16 if dtype.kind == "complex" else 8)
    if width < 2:
        return block
    import numpy as np

    return np.frombuffer(block, f"u{width}").byteswap().tobytes()


def gathered(
    data: bytes | bytearray, dtype: DType, shape: tuple[int, ...], stride: tuple[int, ...]
) -> Iterator[bytes]:
    """The elements of a strided view in the order of its shape, in blocks. The view begins where `data` does.

    Strides are in elements. The width of an element is a whole number of bytes.
    """
    import numpy as np

    width = dtype.bits // 8
    flat = np.frombuffer(data, f"V{width}" if width not in (1, 2, 4, 8) else f"u{width}")
    steps = tuple(step * width for step in stride)
    yield from _blocks(np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False))


def _blocks(view: Array) -> Iterator[bytes]:
    if view.ndim == 0 or view.nbytes <= BLOCK:
        yield view.tobytes()
    elif view[0].nbytes > BLOCK:
        for row in view:
            yield from _blocks(row)
    else:
        step = max(1, BLOCK // max(1, view[0].nbytes))
        for start in range(0, len(view), step):
            yield view[start : start + step].tobytes()


def resolved(block: bytes, dtype: DType, *, conj: bool, neg: bool) -> bytes:
    """Elements with the conjugation and negation resolved, as torch's resolve_conj and resolve_neg do."""
    import numpy as np

    if dtype.kind == "complex":
        parts = np.frombuffer(block, f"<f{dtype.bits // 16}").copy()
        if conj:
            parts[1::2] *= -1
        if neg:
            parts *= -1
        return parts.tobytes()
    if not neg:
        return block
    if dtype.kind == "int":
        return (
            -np.frombuffer(block, f"<{'u' if dtype.name.startswith('u') else 'i'}{dtype.bits // 8}")
        ).tobytes()
    # The sign is one bit, also in bfloat16.
    return (np.frombuffer(block, f"<u{dtype.bits // 8}") ^ (1 << (dtype.bits - 1))).tobytes()


CASTS = ("bfloat16", "float16", "float32")
"""The dtypes of `--dtype`."""


def can_cast(source: DType, to: DType) -> bool:
    """Tell whether `cast` converts from `source` to `to`."""
    is_number = (
        source.name in CASTABLE or source.kind == "bool" or (source.kind == "int" and source.bits >= 8)
    )
    return (is_number and to.name in (*CASTS, "float64")) or (
        source.kind in ("int", "bool") and to.kind == "int" and min(source.bits, to.bits) >= 8
    )


def cast(block: bytes, source: DType, to: DType) -> tuple[bytes, int]:
    """(elements as another dtype, how many finite ones became infinite), like torch's `copy_`.

    Rounds to nearest, ties to even; float64 goes through float32. Ints wrap around.
    """
    import numpy as np

    if to.kind == "int":
        return numbers(block, source).astype(
            f"<{'u' if to.name.startswith('u') else 'i'}{to.bits // 8}"
        ).tobytes(), 0
    if to.name == "float64":
        return numbers(block, source).astype("<f8").tobytes(), 0
    result, infinite = _narrowed(_as_float32(block, source), to)
    overflowed = int(np.count_nonzero(infinite))
    if overflowed and source.kind == "float":
        overflowed -= int(np.count_nonzero(np.isinf(_floats(block, source))))
    return result.tobytes(), overflowed


def _narrowed(values: Array, to: DType) -> tuple[Array, Array]:
    """(float32 numbers as float32, float16 or bfloat16, a mask of the infinite ones)."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        if to.name == "float32":
            result = values
            infinite = np.isinf(result)
        elif to.name == "float16":
            result = values.astype("<f2")
            infinite = np.isinf(result)
        else:
            bits = values.view("<u4")
            nan = np.isnan(values)
            result = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
            result[nan] = 0x7FC0
            infinite = (result & 0x7FFF) == 0x7F80
    return result, infinite


_BEYOND = {"float32": 2.0**128, "float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""The least positive numbers that are not finite in these types."""


def rounded(values: Array, to: DType, rows: Rows) -> tuple[memoryview, int]:
    """(float64 numbers as any type of AVERAGED, how many finite ones are beyond its range), like torch's `copy_`.

    Rounds to nearest, ties to even; narrow types by way of float32. A number beyond the range of the type becomes what torch
    makes of it: infinite, NaN, or the largest number. The bytes are valid until the rows are used again.
    """
    import numpy as np

    if to.name == "float64":
        return _bytes(values), 0
    narrow = rows.row("<f4", 1, len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(narrow, values, casting="same_kind")
    if to.bits > 8:
        most = _BEYOND[to.name]
        if -most < float(narrow.min(initial=0)) and float(narrow.max(initial=0)) < most:  # not so with NaN
            return _bytes(_narrow(narrow, to, rows)), 0
        result, lost = _narrowed(narrow, to)
    else:
        bits = narrow.view("<u4")
        # The upper half decides, with a last bit that says whether any bit of the lower half is set.
        upper = (bits >> 16) | ((bits & 0xFFFF) != 0)
        codes, beyond = _codes(to.name)
        result, lost = np.take(codes, upper), np.take(beyond, upper)
    overflowed = int(np.count_nonzero(lost))
    if overflowed:
        overflowed -= int(np.count_nonzero(lost & ~np.isfinite(values)))
    return _bytes(result), overflowed


def _narrow(values: Array, to: DType, rows: Rows) -> Array:
    """float32 numbers as float32, float16 or bfloat16, of which all are finite."""
    import numpy as np

    if to.name == "float32":
        return values
    halves = rows.row("<u2", 0, len(values))
    if to.name == "float16":
        np.copyto(halves.view("<f2"), values, casting="same_kind")
        return halves
    bits, words = values.view("<u4"), rows.words(2, len(values))
    np.right_shift(bits, 16, out=words)
    words &= 1
    words += 0x7FFF
    words += bits
    np.right_shift(words, 16, out=halves, casting="unsafe")
    return halves


def _bytes(values: Array) -> memoryview:
    view: memoryview = values.view("u1").data
    return view


@cache
def _codes(name: str) -> tuple[Array, Array]:
    """The nearest 8-bit float of each float32 whose lower half is empty, and a mask of those beyond its range.

    float8_e4m3fn has its largest number for these, as torch 2.13 has it; the others have an infinity or NaN.
    """
    import numpy as np

    signed_zero = _FLOAT8[name][4]
    values = _table(name)[:128].astype("<f8")
    values = values[np.isfinite(values)]
    ends = np.append(values, 2 * values[-1] - values[-2])
    middles = (ends[1:] + ends[:-1]) / 2
    middles[::2] = np.nextafter(middles[::2], np.inf)  # a number in the middle goes to the even code
    with np.errstate(invalid="ignore"):
        numbers = (np.arange(1 << 16, dtype="<u4") << 16).view("<f4").astype("<f8")
    codes = np.searchsorted(middles, np.abs(numbers), "right")
    beyond = (codes == len(values)) & ~np.isnan(numbers)
    if name == "float8_e4m3fn":
        codes[beyond] = len(values) - 1
    if signed_zero:
        codes[np.isnan(numbers)] = 0x7F
    codes[np.signbit(numbers) & (signed_zero | (codes > 0))] |= 0x80
    return codes.astype("u1"), beyond


def overlaid(base: bytes, shape: tuple[int, ...], over: bytes, other: tuple[int, ...], dtype: DType) -> bytes:
    """The elements of a tensor, with those whose index is within `other` taken from `over`, which has that shape."""
    import numpy as np

    width = dtype.bits // 8
    whole = np.frombuffer(bytearray(base), f"V{width}").reshape(shape)
    block = tuple(slice(0, min(size, other_size)) for size, other_size in zip(shape, other, strict=True))
    whole[block] = np.frombuffer(over, f"V{width}").reshape(other)[block]
    return whole.tobytes()


def _floats(block: bytes | memoryview, dtype: DType) -> Array:
    """Floating elements as float32, but float64 unchanged."""
    import numpy as np

    if dtype.name in ("float64", "float32", "float16"):
        return np.frombuffer(block, f"<f{dtype.bits // 8}")
    if dtype.name == "bfloat16":
        wide = np.frombuffer(block, "<u2").astype("<u4")
        wide <<= 16
        return wide.view("<f4")
    values: Array = _table(dtype.name)[np.frombuffer(block, "u1")]
    return values


def _as_float32(block: bytes, dtype: DType) -> Array:
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        floats: Array = (_floats if dtype.kind == "float" else numbers)(block, dtype).astype("<f4")
    return floats


_FLOAT8 = {
    # exponent bits, mantissa bits, bias, whether the format has infinities, whether it has a negative zero
    "float8_e4m3fn": (4, 3, 7, False, True),
    "float8_e5m2": (5, 2, 15, True, True),
    "float8_e4m3fnuz": (4, 3, 8, False, False),
    "float8_e5m2fnuz": (5, 2, 16, False, False),
}
CASTABLE = frozenset(("float64", "float32", "float16", "bfloat16", "float8_e8m0fnu", *_FLOAT8))
"""The floating dtypes that `cast` accepts."""
AVERAGED = CASTABLE - {"float8_e8m0fnu"}
"""The dtypes whose numbers have a mean. The numbers of float8_e8m0fnu are scales of others."""


@cache
def _halves() -> Array:
    """The value of each of the 65,536 float16."""
    import numpy as np

    return np.arange(1 << 16, dtype="<u2").view("<f2").astype("<f4")


@cache
def _table(name: str) -> Array:
    """The value of each of the 256 bytes of an 8-bit float (OCP 8-bit floating point specification; c10/util)."""
    import numpy as np

    if name == "float8_e8m0fnu":
        values = [2.0 ** (code - 127) for code in range(255)] + [float("nan")]
        return np.array(values, "<f4")
    exponents, mantissas, bias, infinities, signed_zero = _FLOAT8[name]
    values = []
    for code in range(256):
        exponent, mantissa = (code >> mantissas) & (2**exponents - 1), code & (2**mantissas - 1)
        if exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissas)
        else:
            value = (1 + mantissa / 2**mantissas) * 2.0 ** (exponent - bias)
        if infinities and exponent == 2**exponents - 1:
            value = float("nan") if mantissa else float("inf")
        elif not infinities and signed_zero and code & 0x7F == 0x7F:
            value = float("nan")
        if code & 0x80:
            value = -value if signed_zero or code & 0x7F else float("nan")
        values.append(value)
    return np.array(values, "<f4")


def has_numbers(dtype: DType) -> bool:
    """Tell whether `numbers` accepts elements of this type."""
    return not (dtype.bits < 8 or dtype.kind in ("bits", "quantized") or dtype.name.startswith("float4"))


_CODES = {
    "bool": "?",
    "uint8": "B",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "bfloat16": "f",
    "float32": "f",
    "float64": "d",
}


def few(data: bytes, dtype: DType) -> list[bool | int | float | complex]:
    """A few elements as numbers. The usual types do without numpy, whose import takes longer than all else."""
    from struct import unpack

    code = _CODES.get(dtype.name)
    if code is None:
        items: list[bool | int | float | complex] = numbers(data, dtype).tolist()
        return items
    count = len(data) * 8 // dtype.bits
    if dtype.name == "bfloat16":  # the upper half of a float32
        data = b"".join([b"\0\0" + data[position : position + 2] for position in range(0, len(data), 2)])
    return list(unpack(f"<{count}{code}", data))


def numbers(block: bytes | memoryview, dtype: DType, row: int = 0, rows: Rows | None = None) -> Array:
    """Elements as numbers that numpy can compute with. Floats narrower than float32 become float32.

    The result is valid until the thread calls again with the same `row`, or until the `rows` are used again.
    """
    import numpy as np

    if dtype.name == "bfloat16":
        words = (rows or scratch()).words(row, len(block) // 2)
        np.copyto(words, np.frombuffer(block, "<u2"))
        words <<= 16
        return words.view("<f4")
    if dtype.name == "float16":  # a table is twice as fast as numpy's own conversion
        values = (rows or scratch()).words(row, len(block) // 2).view("<f4")
        return np.take(_halves(), np.frombuffer(block, "<u2"), out=values, mode="clip")
    if dtype.kind == "float":
        return _floats(block, dtype)
    if dtype.kind == "complex":
        parts = np.frombuffer(block, f"<f{dtype.bits // 16}")
        if dtype.bits == 32:
            parts = parts.astype("<f4")
        pairs: Array = parts.view("<c8" if parts.dtype.itemsize == 4 else "<c16")
        return pairs
    if dtype.kind == "bool":
        return np.frombuffer(block, "u1")
    signed = dtype.name.startswith(("int", "qint"))
    return np.frombuffer(block, f"<{'i' if signed else 'u'}{max(1, dtype.bits // 8)}")


class Rows:
    """Rows for computations. They are reused, because new memory costs more than the arithmetic."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], Array] = {}
        self._ones: Any = ()

    def row(self, kind: str, number: int, size: int) -> Array:
        """A row of `size` elements of a kind, as numpy names it."""
        import numpy as np

        held = self._rows.get((kind, number))
        if held is None or len(held) < size:
            held = self._rows[kind, number] = np.empty(size, kind)
        return held[:size]

    def wide(self, number: int, size: int) -> Array:
        """A row of `size` float64."""
        return self.row("f8", number, size)

    def words(self, number: int, size: int) -> Array:
        """A row of `size` uint32."""
        return self.row("<u4", number, size)

    def ones(self, size: int) -> Array:
        """A row of `size` ones in float64. The dot product with it is a sum."""
        import numpy as np

        if len(self._ones) < size:
            self._ones = np.ones(size)
        row: Array = self._ones[:size]
        return row


class _Scratch(threading.local, Rows):
    """The rows of each thread."""


@cache
def scratch() -> _Scratch:
    """The rows of the calling thread."""
    return _Scratch()
