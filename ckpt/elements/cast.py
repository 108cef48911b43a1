"""Converting elements with numpy: blocks of bytes in, blocks of bytes or numbers out.
Reads no file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BLOCK = 4 << 20
"""Bytes of one block of elements."""


def swapped(block: bytes, dtype: DType) -> bytes:
    """Elements in the other byte order. A complex number is two numbers of half its
    width.
    """
    width = dtype.bits // (16 if dtype.kind == "complex" else 8)
    if width < 2:
        return block
    import numpy as np

    return np.frombuffer(block, f"u{width}").byteswap().tobytes()


def gathered(
    data: bytes | bytearray,
    dtype: DType,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> Iterator[bytes]:
    """The elements of a strided view in the order of its shape, in blocks. The view
    begins where `data` does.

    Strides are in elements. The width of an element is a whole number of bytes.
    """
    import numpy as np

    width = dtype.bits // 8
    kind = f"u{width}" if width in (1, 2, 4, 8) else f"V{width}"
    steps = tuple(step * width for step in stride)
    view = np.lib.stride_tricks.as_strided(
        np.frombuffer(data, kind), shape, steps, writeable=False
    )
    yield from _array_blocks(view)


def _array_blocks(view: Array) -> Iterator[bytes]:
    """Yield the bytes of an array in the order of its shape, in blocks of at most
    `BLOCK` bytes.
    """
    if view.ndim == 0 or view.nbytes <= BLOCK:
        yield view.tobytes()
    elif view[0].nbytes > BLOCK:
        for row in view:
            yield from _array_blocks(row)
    else:
        step = max(1, BLOCK // max(1, view[0].nbytes))
        for start in range(0, len(view), step):
            yield view[start : start + step].tobytes()


def resolve_conj_and_neg(block: bytes, dtype: DType, *, conj: bool, neg: bool) -> bytes:
    """Elements with the conjugation and negation resolved, as torch's resolve_conj and
    resolve_neg do.
    """
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
        negated = -np.frombuffer(block, _integer_kind(dtype))
        return negated.tobytes()
    # The sign is one bit, also in bfloat16.
    codes = np.frombuffer(block, f"<u{dtype.bits // 8}")
    return (codes ^ (1 << (dtype.bits - 1))).tobytes()


def _integer_kind(dtype: DType) -> str:
    """The type of numpy for whole numbers."""
    sign = "u" if dtype.name.startswith("u") else "i"
    return f"<{sign}{dtype.bits // 8}"


CASTS = ("bfloat16", "float16", "float32")
"""The dtypes of `--dtype`."""


def can_cast(source: DType, to: DType) -> bool:
    """Tell whether elements are converted from `source` to `to`: by `cast`, or by way
    of what blocks are decoded to.
    """
    is_float_target = to.name in (*CASTS, "float64")
    if source.block is not None:
        return is_float_target
    if is_float_target:
        return (
            source.name in CASTABLE
            or source.kind == "bool"
            or (source.kind == "int" and source.bits >= 8)
        )
    is_whole = source.kind in ("int", "bool")
    return is_whole and to.kind == "int" and min(source.bits, to.bits) >= 8


def cast(block: bytes, source: DType, to: DType) -> tuple[bytes, int]:
    """(elements as another dtype, how many finite ones became infinite), like torch's
    `copy_`.

    Rounds to nearest, ties to even; float64 goes through float32. Ints wrap around.
    """
    converted, overflowed, _ = cast_and_count(block, source, to)
    return converted, overflowed


def cast_and_count(block: bytes, source: DType, to: DType) -> tuple[bytes, int, int]:
    """As `cast`, with the number of elements that became 0."""
    import numpy as np

    values = as_numbers(block, source)
    if to.kind == "int":
        return values.astype(_integer_kind(to)).tobytes(), 0, 0
    if to.name == "float64":
        return values.astype("<f8").tobytes(), 0, 0
    with np.errstate(over="ignore", invalid="ignore"):
        result, infinite = _narrow_with_mask(values.astype("<f4", copy=False), to)
    overflowed = int(np.count_nonzero(infinite))
    if overflowed and source.kind == "float":
        overflowed -= int(np.count_nonzero(np.isinf(values)))
    # The result in bfloat16 is held as bits, where -0 has one.
    sizes = result & 0x7FFF if to.name == "bfloat16" else result
    vanished = int(np.count_nonzero(values)) - int(np.count_nonzero(sizes))
    return result.tobytes(), overflowed, vanished


def _narrow_with_mask(values: Array, to: DType) -> tuple[Array, Array]:
    """(float32 numbers as float32, float16 or bfloat16, a mask of the infinite
    ones). Those in bfloat16 are its bits.
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        if to.name == "float32":
            result = values
            infinite = np.isinf(result)
        elif to.name == "float16":
            # Not so with NaN.
            is_within = float(np.abs(values).max(initial=0)) < _BEYOND[to.name]
            halves = (
                _narrow_finite(values, to, Rows())
                if is_within
                else values.astype("<f2")
            )
            result = halves.view("<f2")
            infinite = np.isinf(result)
        else:
            # Half of the last bit that stays is added, less a little where that bit is
            # 0: a number in the middle goes to the even one.
            bits = values.view("<u4")
            nan = np.isnan(values)
            last_bit = (bits >> 16) & 1
            result = ((bits + (0x7FFF + last_bit)) >> 16).astype("<u2")
            result[nan] = 0x7FC0
            infinite = (result & 0x7FFF) == 0x7F80
    return result, infinite


_BEYOND = {"float32": 2.0**128, "float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""The least positive numbers that are not finite in these types."""


def round_numbers(values: Array, to: DType, rows: Rows) -> tuple[memoryview, int]:
    """(numbers of float64 or float32 as any type of AVERAGED, how many finite ones are
    beyond its range), like torch's `copy_`.

    Rounds to nearest, ties to even; narrow types by way of float32. A number beyond the
    range of the type becomes what torch makes of it: infinite, NaN, or the largest
    number. The bytes are valid until the rows are used again.
    """
    import numpy as np

    if to.bits == 8 * values.itemsize:
        return _byte_view(values), 0
    narrow = values
    if values.itemsize > 4:
        narrow = rows.row("<f4", 1, len(values))
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(narrow, values, casting="same_kind")
    if to.bits > 8:
        most = _BEYOND[to.name]
        least_value = float(narrow.min(initial=0))
        # Both comparisons are false with NaN, which takes the careful way below.
        if -most < least_value and float(narrow.max(initial=0)) < most:
            return _byte_view(_narrow_finite(narrow, to, rows)), 0
        result, lost = _narrow_with_mask(narrow, to)
    else:
        bits = narrow.view("<u4")
        # The upper half decides, with a last bit that says whether any bit of the lower
        # half is set.
        upper = (bits >> 16) | ((bits & 0xFFFF) != 0)
        codes, beyond = _float8_codes(to.name)
        result = np.take(codes, upper)
        lost = np.take(beyond, upper)
    overflowed = int(np.count_nonzero(lost))
    if overflowed:
        overflowed -= int(np.count_nonzero(lost & ~np.isfinite(values)))
    return _byte_view(result), overflowed


def _narrow_finite(values: Array, to: DType, rows: Rows) -> Array:
    """float32 numbers as float32, float16 or bfloat16, of which all are finite."""
    import numpy as np

    if to.name == "float32":
        return values
    halves = rows.row("<u2", 0, len(values))
    if to.name == "float16":
        return _round_halves(values, halves, rows)
    # As in `_narrow_with_mask`, step by step in one row, without new memory.
    bits = values.view("<u4")
    words = rows.words(2, len(values))
    np.right_shift(bits, 16, out=words)
    words &= 1
    words += 0x7FFF
    words += bits
    np.right_shift(words, 16, out=halves, casting="unsafe")
    return halves


def _round_halves(values: Array, halves: Array, rows: Rows) -> Array:
    """float32 numbers below 65,520 as the bits of float16, in `halves`.

    Numpy's own way takes twice as long, and fifty times where numbers are subnormal.
    """
    import numpy as np

    bits = values.view("<u4")
    sizes, units = rows.words(2, len(values)), rows.words(3, len(values))
    np.bitwise_and(bits, 0x7FFFFFFF, out=sizes)
    # Adding 2^13 times the power of two below a number leaves the bits that float16 has
    # at the end of its mantissa, rounded. Subnormals share the unit of the least
    # exponent.
    np.bitwise_and(sizes, 0x7F800000, out=units)
    np.maximum(units, 113 << 23, out=units)
    units += 13 << 23
    numbers = sizes.view("<f4")
    numbers += units.view("<f4")
    np.copyto(halves, sizes, casting="unsafe")
    others = rows.row("<u2", 1, len(values))
    np.right_shift(units, 13, out=others, casting="unsafe")
    halves += others
    halves += 2 << 10  # -126 << 10, in 16 bits
    np.right_shift(bits, 16, out=others, casting="unsafe")
    others &= 0x8000
    halves |= others
    return halves


def _byte_view(values: Array) -> memoryview:
    view: memoryview = values.view("u1").data
    return view


@cache
def _float8_codes(name: str) -> tuple[Array, Array]:
    """The nearest 8-bit float of each float32 whose lower half is empty, and a mask of
    those beyond its range.

    float8_e4m3fn has its largest number for these, as torch 2.13 has it; the others
    have an infinity or NaN. In all, the sign is the upper bit, the codes of positive
    numbers are in their order, and NaN is 0x7F, or 0x80 where -0 would be (`fnuz`).
    Raises ValueError for a type that has not 8 bits.
    """
    import numpy as np

    if BY_NAME[name].bits != 8:
        raise ValueError(f"{name} has no codes of 8 bits")
    has_signed_zero = not name.endswith("fnuz")
    positive = bytes(range(0x80))
    values = as_numbers(positive, BY_NAME[name]).astype("<f8")
    values = values[np.isfinite(values)]
    # The code of a size is the number of middles between neighbours that are below it.
    # Behind the largest number stands the one that would come next.
    ends = np.append(values, 2 * values[-1] - values[-2])
    middles = (ends[1:] + ends[:-1]) / 2
    # A number in the middle goes to the even code: every second middle is moved up.
    middles[::2] = np.nextafter(middles[::2], np.inf)
    with np.errstate(invalid="ignore"):
        singles = (np.arange(1 << 16, dtype="<u4") << 16).view("<f4").astype("<f8")
    codes = np.searchsorted(middles, np.abs(singles), "right")
    beyond = (codes == len(values)) & ~np.isnan(singles)
    if name == "float8_e4m3fn":
        codes[beyond] = len(values) - 1
    if has_signed_zero:
        codes[np.isnan(singles)] = 0x7F
    # In a type where -0 is NaN, a small negative number becomes 0 without a sign.
    codes[np.signbit(singles) & (has_signed_zero | (codes > 0))] |= 0x80
    return codes.astype("u1"), beyond


def overlay_elements(
    base: bytes,
    shape: tuple[int, ...],
    over: bytes,
    other: tuple[int, ...],
    dtype: DType,
) -> bytes:
    """The elements of a tensor, with those whose index is within `other` taken from
    `over`, which has that shape.
    """
    import numpy as np

    width = dtype.bits // 8
    whole = np.frombuffer(bytearray(base), f"V{width}").reshape(shape)
    block = tuple(
        slice(0, min(size, other_size))
        for size, other_size in zip(shape, other, strict=True)
    )
    whole[block] = np.frombuffer(over, f"V{width}").reshape(other)[block]
    return whole.tobytes()


class _Float(NamedTuple):
    """The layout of a float: the exponent follows the sign, the mantissa the exponent.

    `beyond` is the least magnitude that stands for no number, read like the others;
    from there on the codes are an infinity and NaN if `infinities`, else NaN. It is
    None of formats whose only NaN has the code of -0.
    """

    mantissa: int
    bias: int
    beyond: float | None
    infinities: bool = True


_FLOATS = {
    "float16": _Float(10, 15, 2.0**16),
    "float8_e4m3fn": _Float(3, 7, 480.0, infinities=False),
    "float8_e5m2": _Float(2, 15, 2.0**16),
    "float8_e4m3fnuz": _Float(3, 8, None),
    "float8_e5m2fnuz": _Float(2, 16, None),
}
"""OCP 8-bit floating point specification; torch/headeronly/util."""
AVERAGED = frozenset(("float64", "float32", "bfloat16", *_FLOATS))
"""The dtypes whose numbers have a mean. The numbers of float8_e8m0fnu are scales of
others.
"""
CASTABLE = AVERAGED | {"float8_e8m0fnu"}
"""The floating dtypes that `cast` accepts."""
_PAIRS = ("float4_e2m1fn_x2",)
"""Dtypes of which each element is two numbers, which nothing here takes apart."""


@cache
def _decode_table(name: str) -> Array:
    """The float32 of each code of a float of 16 bits, or of each two codes of one of 8,
    by the little-endian number that they are.

    Computing with the codes is slow where many are subnormal: each takes as long as
    fifty others.
    """
    import numpy as np

    codes = np.arange(1 << 16, dtype="<u2").view(f"<u{BY_NAME[name].bits // 8}")
    if name in _FLOATS:
        words = _decode_floats(codes, _FLOATS[name])
    else:
        words = _decode_scales(codes)
    table: Array = words if codes.itemsize == 2 else words.view("<u8")
    return table


def _decode_floats(codes: Array, layout: _Float) -> Array:
    """Floats of 8 and 16 bits as words of float32, which has room for the exponent and
    the mantissa of each.
    """
    import numpy as np

    sign = 8 * codes.itemsize - 1
    wide = codes.astype("<u4")
    signs = wide >> sign << 31
    unscaled = ((wide & (1 << sign) - 1) << 23 - layout.mantissa).view("<f4")
    # Also right for subnormals: they are subnormals of float32 until here.
    sizes = unscaled * np.float32(2.0 ** (127 - layout.bias))
    words: Array = sizes.view("<u4") | signs
    if layout.beyond is None:
        words[words == 1 << 31] = 0xFFC00000
    else:
        is_nan = sizes > layout.beyond if layout.infinities else sizes >= layout.beyond
        words[sizes == layout.beyond] |= 0x7F800000
        words[is_nan] |= 0x7FC00000
    return words


def _decode_scales(codes: Array) -> Array:
    """The codes of float8_e8m0fnu, which are exponents of two, as words of float32."""
    words = codes.astype("<u4")
    words <<= 23
    words[codes == 0] = 1 << 22  # 2^-127 is a subnormal of float32
    words[codes == 255] = 0x7FC00000  # NaN
    return words


def _widen_floats(
    block: bytes | memoryview, dtype: DType, row: int, rows: Rows
) -> Array:
    """Floats of 8 and 16 bits as float32."""
    import numpy as np

    if dtype.name == "bfloat16":  # the upper half of a float32
        halves = np.frombuffer(block, "<u2")
        words = rows.words(row, len(halves))
        np.copyto(words, halves)
        np.left_shift(words, 16, out=words)
        return words.view("<f4")
    if dtype.bits == 8 and len(block) % 2:  # the last one has no pair
        return _widen_floats(bytes(block) + b"\0", dtype, row, rows)[:-1]
    table = _decode_table(dtype.name)
    codes = np.frombuffer(block, "<u2")
    words = rows.words(row, len(codes) * table.itemsize // 4)
    # Every code of 16 bits is in the table: "clip" only saves a check and a copy.
    np.take(table, codes, out=words.view(table.dtype), mode="clip")
    return words.view("<f4")


def is_castable(dtype: DType) -> bool:
    """Tell whether `--dtype` converts floats of this type."""
    return dtype.name in CASTABLE or dtype.block is not None


def has_numbers(dtype: DType) -> bool:
    """Tell whether `as_numbers` accepts elements of this type."""
    if dtype.bits < 8 or dtype.kind in ("bits", "quantized"):
        return False
    return dtype.name not in _PAIRS


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
    """A few elements as numbers. The usual types do without numpy, whose import takes
    longer than all else.
    """
    from struct import unpack

    code = _CODES.get(dtype.name)
    if code is None:
        items: list[bool | int | float | complex] = as_numbers(data, dtype).tolist()
        return items
    count = len(data) * 8 // dtype.bits
    if dtype.name == "bfloat16":  # the upper half of a float32
        halves = [data[first : first + 2] for first in range(0, len(data), 2)]
        data = b"".join(b"\0\0" + half for half in halves)
    return list(unpack(f"<{count}{code}", data))


def as_numbers(
    block: bytes | memoryview, dtype: DType, row: int = 0, rows: Rows | None = None
) -> Array:
    """Elements as numbers that numpy can compute with. Floats narrower than float32
    become float32.

    The result is valid until the thread calls again with the same `row`, or until the
    `rows` are used again.
    """
    import numpy as np

    if dtype.bits <= 16 and dtype.name in CASTABLE:
        return _widen_floats(block, dtype, row, rows or thread_rows())
    if dtype.kind == "float":
        return np.frombuffer(block, f"<f{dtype.bits // 8}")
    if dtype.kind == "complex":
        parts = np.frombuffer(block, f"<f{dtype.bits // 16}")
        if dtype.bits == 32:  # numpy has no complex32
            parts = parts.astype("<f4")
        pairs: Array = parts.view("<c8" if parts.dtype.itemsize == 4 else "<c16")
        return pairs
    if dtype.kind == "bool":
        return np.frombuffer(block, "u1")
    # Types of quantized tensors and of bits are here too, so not as `_integer_kind`.
    sign = "i" if dtype.name.startswith(("int", "qint")) else "u"
    return np.frombuffer(block, f"<{sign}{max(1, dtype.bits // 8)}")


class Rows:
    """Rows for computations. They are reused, because new memory costs more than the
    arithmetic.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], Array] = {}

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


class _Scratch(threading.local, Rows):
    """The rows of each thread."""


@cache
def thread_rows() -> _Scratch:
    """The rows of the calling thread."""
    return _Scratch()
