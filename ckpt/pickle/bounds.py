"""The tensors of several parts whose shapes and numbers torch follows into memory:
sparse, nested, jagged, quantized ones.

torch.load makes a sparse tensor without a look at its indices, and old versions read
rows of a nested one wherever they lie. `refuse_odd_parts` compares shapes and types.
`Bounds` reads the numbers, block by block. Sources: torch/_utils.py,
aten/src/ATen/SparseCsrTensorUtils.h, torch/nested/_internal/nested_tensor.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from struct import unpack

from ckpt.model.dtypes import UINT8, DType, contiguous
from ckpt.model.errors import UnreadableError
from ckpt.model.nodes import Global, Node
from ckpt.model.tensors import Composite, Storage, TensorRef, tensor_ref

_RUN = 1 << 18
"""The most numbers that are read at once."""
_SPAN = 8 << 20
"""The most bytes of a storage that are read at once for them."""
_AGAIN = 1_250_000
"""Numbers that are read again, because tensors share their parts. The grammar calls a
file with more of them dangerous (`_WORK` there, eight for each number), and no file
with fewer.
"""
_GENERATOR_BYTES, _GENERATOR_NUMBERS = 5_048, 624
"""The least bytes of the state of a generator on the CPU, and its numbers. torch
compares the number that is left, and the place of the next one, each with 624
(aten/src/ATen/core/MT19937RNGEngine.h).
"""
COMPRESSED = ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
_BLOCKED = ("sparse_bsr", "sparse_bsc")
_BY_COLUMN = ("sparse_csc", "sparse_bsc")
_CHECKED = frozenset(("sparse_coo", "nested", "jagged", *COMPRESSED))


# --- shapes and types -----------------------------------------------------------------


def odd_sparse(
    layout: str, parts: Mapping[str, TensorRef], shape: tuple[int, ...]
) -> str | None:
    """Return how the parts of a sparse tensor do not fit each other, or None."""
    if layout == "sparse_coo":
        return _odd_coordinates(parts["indices"], parts["values"], shape)
    if layout in COMPRESSED:
        return _odd_compressed(layout, parts, shape)
    return None


def _odd_coordinates(
    indices: TensorRef, values: TensorRef, shape: tuple[int, ...]
) -> str | None:
    if indices.dtype.name != "int64" or len(indices.shape) != 2:
        return "its indices are no matrix of int64"
    # The check of bounds reads the stored numbers, and torch their negatives.
    if indices.neg:
        return "its indices are stored as their negatives"
    if values.neg:
        return "its values are stored as their negatives"
    sparse, count = indices.shape
    if values.shape[:1] != (count,):
        return "it has not one value for each index"
    if len(shape) < sparse or values.shape[1:] != shape[sparse:]:
        return "its size is not that of its indices and values"
    return None


def _odd_compressed(
    layout: str, parts: Mapping[str, TensorRef], shape: tuple[int, ...]
) -> str | None:
    """Return how the parts of a compressed layout do not fit each other, or None.

    A tensor of shape (batch..., rows, columns, dense...) has one row of compressed
    indices for each batch. Its values have the shape (batch..., count, block...,
    dense...), where only the blocked layouts have a block.
    """
    compressed = parts["compressed_indices"]
    plain = parts["plain_indices"]
    values = parts["values"]
    is_index = compressed.dtype.name in ("int32", "int64")
    if not is_index or compressed.dtype != plain.dtype:
        return "its indices are not of int32 or int64, or not of one type"
    if compressed.neg or plain.neg:
        return "its indices are stored as their negatives"
    if values.neg:
        return "its values are stored as their negatives"
    batch = len(compressed.shape) - 1
    inner = 2 if layout in _BLOCKED else 0
    if batch < 0 or len(plain.shape) != batch + 1:
        return "its parts have too few dimensions"
    if len(values.shape) < batch + 1 + inner:
        return "its parts have too few dimensions"
    if len(shape) < batch + 2:
        return "its size is not that of its values"
    if values.shape[batch + 1 + inner :] != shape[batch + 2 :]:
        return "its size is not that of its values"
    batches = {compressed.shape[:-1], plain.shape[:-1], values.shape[:batch]}
    if batches != {shape[:batch]}:
        return "its parts have other batches than its size"
    if values.shape[batch] != plain.shape[-1]:
        return "it has not one value for each index"
    # A block of no elements is refused first, because the size is divided by it.
    height, width = _block_of(layout, values, batch)
    if 0 in (height, width) or shape[batch] % height or shape[batch + 1] % width:
        return "its size is no multiple of its blocks"
    count, _ = _counts_of(layout, values, batch, shape)
    if compressed.shape[-1] != count + 1:
        return "it has not one row of indices for each row"
    if compressed.numel and compressed.shape[-1] > 1 and compressed.stride[-1] == 0:
        return "its rows of indices are one number"
    return None


def _block_of(layout: str, values: TensorRef, batch: int) -> tuple[int, int]:
    """The rows and columns of a block, which is one element in layouts without blocks.

    `batch` is the number of batch dimensions.
    """
    if layout not in _BLOCKED:
        return 1, 1
    return values.shape[batch + 1], values.shape[batch + 2]


def _counts_of(
    layout: str, values: TensorRef, batch: int, shape: tuple[int, ...]
) -> tuple[int, int]:
    """The number of compressed rows of a sparse tensor, and of the places in one of
    them. `batch` is the number of batch dimensions.
    """
    height, width = _block_of(layout, values, batch)
    rows = shape[batch] // height
    columns = shape[batch + 1] // width
    return (columns, rows) if layout in _BY_COLUMN else (rows, columns)


def odd_nested(parts: Mapping[str, TensorRef]) -> str | None:
    """Return how the parts of a nested tensor do not fit each other, or None.

    torch writes an empty one with parts that it does not read again.
    """
    values = parts["values"]
    sizes = parts["sizes"]
    strides = parts["strides"]
    offsets = parts["offsets"]
    if (values.numel, sizes.shape, strides.shape, offsets.shape) == (0, (), (), (0,)):
        return None
    if any(part.dtype.name != "int64" for part in (sizes, strides, offsets)):
        return "its sizes, strides or offsets are not of int64"
    if not all(_is_contiguous(part) for part in parts.values()):
        return "one of its parts is not contiguous"
    if len(values.shape) != 1 or len(sizes.shape) != 2:
        return "its values are no row, or its sizes no matrix"
    if strides.shape != sizes.shape or offsets.shape != sizes.shape[:1]:
        return "it has not one size, stride and offset for each row"
    return None


def _is_contiguous(ref: TensorRef) -> bool:
    """Tell whether the elements lie in order without gaps, as torch tells it.

    The stride of a dimension of one element says nothing, and a tensor without elements
    is always contiguous.
    """
    if not ref.numel:
        return True
    usual_stride = contiguous(ref.shape)
    for size, stride, usual in zip(ref.shape, ref.stride, usual_stride, strict=True):
        if size != 1 and stride != usual:
            return False
    return True


def odd_jagged(
    values: TensorRef, offsets: TensorRef, lengths: TensorRef | None, ragged: Node
) -> str | None:
    """Return how the parts of a jagged tensor do not fit each other, or None."""
    rows = [offsets] if lengths is None else [offsets, lengths]
    for row in rows:
        if row.dtype.name not in ("int32", "int64") or len(row.shape) != 1:
            return "its offsets or lengths are no row of whole numbers"
    # Offsets have one number more than there are rows: where the last one ends.
    is_short = lengths is not None and lengths.numel != offsets.numel - 1
    if not offsets.numel or is_short:
        return "it has not one offset and length for each row"
    if type(ragged) is not int or not 1 <= ragged <= len(values.shape):
        return "it has no dimension for its rows"
    return None


def odd_scheme(
    scheme: Sequence[Node],
    dtype: DType,
    parts: Mapping[str, TensorRef],
    shape: tuple[int, ...],
) -> str | None:
    """Return how the scales of a quantized tensor do not fit its size or type, or None.
    torch up to 2.12 compares nothing.

    `scheme` is the tuple that torch writes: its name, and per channel the scales, the
    zero points and the axis.
    """
    name = scheme[0]
    if type(name) is not Global or not name.name.startswith("per_channel_"):
        return None
    axis = scheme[3] if len(scheme) == 4 else None
    if type(axis) is not int or not 0 <= axis < len(shape):
        return "it has no dimension for its channels"
    for label, node in zip(("scales", "zero_points"), scheme[1:3], strict=True):
        if _shape_of_numbers(node, parts.get(label)) != (shape[axis],):
            return "it has not one scale and zero point for each channel"
    if any(parts[label].neg for label in ("scales", "zero_points") if label in parts):
        return "its scales or zero points are stored as their negatives"
    zeros = parts.get("zero_points")
    has_float_zeros = zeros is not None and zeros.dtype.kind == "float"
    is_float = name.name.endswith("float_qparams") or has_float_zeros
    if is_float and dtype.name == "qint32":
        return "torch has no qint32 with zero points that are floats"
    return None


def _shape_of_numbers(node: Node, part: TensorRef | None) -> tuple[int, ...] | None:
    """The shape of the scales or zero points of a scheme: a list of numbers, or a
    tensor. None where they are neither.
    """
    if type(node) is list:
        return (len(node),)
    return None if part is None else part.shape


# --- numbers --------------------------------------------------------------------------


class Bounds:
    """Looks for numbers in the parts of tensors that lead out of their memory. It reads
    each storage about once.
    """

    def __init__(self) -> None:
        self._again = 0
        self._read: dict[int, Storage] = {}

    def excess(
        self,
        tensor: Composite,
        length: int = 0,
        said: tuple[int | None, int | None] = (None, None),
    ) -> str | None:
        """Return the first number that leads out of a tensor, as text, or None.

        `length` is the length of the values of a jagged one, along the dimension of its
        rows, and `said` are the lengths that its shortest and its longest row are said
        to have. Bytes that are not there, or damaged, are not looked at: torch cannot
        load them either.
        """
        if tensor.layout not in _CHECKED:
            return None
        parts = dict(tensor.parts)
        numbers = [part for label, part in parts.items() if label != "values"]
        if any(part.numel and part.storage.place is None for part in numbers):
            return None
        if not self._may_read(numbers):
            return None
        try:
            if tensor.layout == "nested":
                return _excess_of_rows(parts)
            if tensor.layout == "jagged":
                return _excess_of_jagged(parts, length) or _odd_lengths(
                    parts, length, said
                )
            if tensor.layout == "sparse_coo":
                return _excess_of_coordinates(parts["indices"], tensor.shape)
            return _excess_of_compressed(tensor, parts)
        except UnreadableError:
            return None

    def excess_of_generator(self, state: TensorRef) -> str | None:
        """Return the place behind its numbers from which a generator on the CPU takes a
        number, as text, or None.
        """
        is_state = state.dtype == UINT8 and state.numel >= _GENERATOR_BYTES
        if not is_state or state.stride != (1,) or state.storage.place is None:
            return None
        head = tensor_ref(state.storage, UINT8, (24,), (1,), state.offset)
        if not self._may_read([head]):
            return None
        from ckpt.elements.blocks import elements  # here: few files have generators

        try:
            _, left, _, place = unpack("<QiiQ", b"".join(elements(head)))
        except UnreadableError:
            return None
        # torch makes new numbers before it takes one where one is left.
        last = place % 2**32 + left - 2
        if left < 2 or last < _GENERATOR_NUMBERS:
            return None
        return f"the place {last:,} among {_GENERATOR_NUMBERS} numbers"

    def _may_read(self, parts: Sequence[TensorRef]) -> bool:
        """Count what is read again. Return False where the grammar counts too much of
        it, too.
        """
        for part in parts:
            if id(part.storage) in self._read:
                self._again += part.numel
            self._read[id(part.storage)] = part.storage
        return self._again <= _AGAIN


def _excess_of_coordinates(indices: TensorRef, shape: tuple[int, ...]) -> str | None:
    """Return the first coordinate that leads out of its dimension, as text, or None.

    `indices` has one row for each sparse dimension, the first ones of `shape`.
    """
    for axis, size in enumerate(shape[: indices.shape[0]]):
        for numbers in _number_runs(_matrix_row(indices, axis)):
            wrong = _number_outside(numbers, 0, size - 1)
            if wrong is not None:
                return f"the index {wrong:,} in a dimension of {size:,}"
    return None


def _excess_of_compressed(
    tensor: Composite, parts: Mapping[str, TensorRef]
) -> str | None:
    """Return the first number of a compressed layout that leads out of its values or
    its shape, as text, or None.
    """
    compressed = parts["compressed_indices"]
    plain = parts["plain_indices"]
    values = parts["values"]
    batch = len(compressed.shape) - 1
    _, width = _counts_of(tensor.layout, values, batch, tensor.shape)
    count = values.shape[batch]
    for row in _iterate_rows(compressed):
        wrong = _odd_steps(row, 0, count, is_whole=True)
        if wrong is not None:
            return f"the place {wrong:,} among {count:,} values"
    for row in _iterate_rows(plain):
        for numbers in _number_runs(row):
            wrong = _number_outside(numbers, 0, width - 1)
            if wrong is not None:
                return f"the index {wrong:,} in a dimension of {width:,}"
    return None


def _excess_of_jagged(parts: Mapping[str, TensorRef], size: int) -> str | None:
    """Return the first offset or length of a jagged tensor that leads out of its
    values, as text, or None.
    """
    offsets = parts["offsets"]
    lengths = parts.get("lengths")
    if lengths is None:
        wrong = _odd_steps(offsets, 0, size, is_whole=False)
        return None if wrong is None else f"the offset {wrong:,} among {size:,} values"
    # With lengths the rows may have gaps and any order, so each is looked at alone.
    step = min(_step_of(offsets), _step_of(lengths))
    # One row may be seen as often as a stranger's file likes.
    is_one = offsets.stride[0] == lengths.stride[0] == 0
    count = min(lengths.numel, 1) if is_one else lengths.numel
    for first in range(0, count, step):
        last = min(first + step, count)
        starts = _read_numbers(_row_part(offsets, first, last))
        counts = _read_numbers(_row_part(lengths, first, last))
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        for numbers in (starts, counts, ends):
            wrong = _number_outside(numbers, 0, size)
            if wrong is not None:
                return f"a row that ends at {wrong:,} of {size:,} values"
    return None


_LONG_ROW = 1 << 17
"""The length that any row may be said to have: programs give one for all batches."""


def _odd_lengths(
    parts: Mapping[str, TensorRef], size: int, said: tuple[int | None, int | None]
) -> str | None:
    """Return a row of a jagged tensor that is shorter or longer than all are said to
    be, as text, or None. torch makes tensors of the longest one, and cuts others there.
    """
    least, most = said
    if least is None and most is None:
        return None
    if most is not None and not 0 <= most <= max(size, _LONG_ROW):
        return f"a longest row of {most:,} among {size:,} values"
    for lengths in _lengths_of_rows(parts):
        if least is not None and min(lengths) < least:
            return f"a row of {min(lengths):,} where the shortest has {least:,}"
        if most is not None and max(lengths) > most:
            return f"a row of {max(lengths):,} where the longest has {most:,}"
    return None


def _lengths_of_rows(parts: Mapping[str, TensorRef]) -> Iterator[list[int]]:
    """Yield the lengths of the rows of a jagged tensor in runs."""
    if "lengths" in parts:
        yield from _number_runs(parts["lengths"])
        return
    before: list[int] = []
    for numbers in _number_runs(parts["offsets"]):
        ends = before + numbers
        if len(ends) > 1:
            yield [end - start for start, end in pairwise(ends)]
        before = numbers[-1:]


def _excess_of_rows(parts: Mapping[str, TensorRef]) -> str | None:
    """Return the first row of a nested tensor that leads out of its values, as text, or
    None.
    """
    sizes = parts["sizes"]
    strides = parts["strides"]
    offsets = parts["offsets"]
    if len(sizes.shape) != 2:
        return None
    if not offsets.numel:
        return "the first of no rows"
    width = sizes.shape[1]
    limit = parts["values"].numel
    step = max(1, _RUN // max(width, 1))
    for first in range(0, offsets.numel, step):
        last = min(first + step, offsets.numel)
        starts = _read_numbers(_row_part(offsets, first, last))
        row_sizes = _read_matrix_rows(sizes, first, last)
        row_strides = _read_matrix_rows(strides, first, last)
        for row, start in enumerate(starts):
            inner = slice(row * width, (row + 1) * width)
            wrong = _odd_row(start, row_sizes[inner], row_strides[inner], limit)
            if wrong is not None:
                return f"{wrong}, in row {first + row:,}"
    return None


def _read_matrix_rows(matrix: TensorRef, first: int, last: int) -> list[int]:
    """The numbers of some rows of a contiguous matrix, one row after the other."""
    width = matrix.shape[1]
    return _read_numbers(_row_part(_flat_row(matrix), first * width, last * width))


def _odd_row(
    start: int, sizes: Sequence[int], strides: Sequence[int], limit: int
) -> str | None:
    """Return a number of one row of a nested tensor that leads out of its values, as
    text, or None.
    """
    pairs = list(zip(sizes, strides, strict=True))
    # torch never takes a step along a dimension of one element.
    steps = [stride for size, stride in pairs if size > 1]
    least = min((start, *sizes, *steps))
    if least < 0:
        return f"the number {least:,}"
    if 0 in sizes:
        if start <= limit:
            return None
        return f"the offset {start:,} among {limit:,} values"
    end = start + sum((size - 1) * stride for size, stride in pairs)
    return None if end < limit else f"the place {end:,} among {limit:,} values"


def _odd_steps(row: TensorRef, low: int, high: int, *, is_whole: bool) -> int | None:
    """Return the first number of a row that is smaller than the one before it, or
    outside of the limits, or None.

    With `is_whole` the row begins and ends with the limits.
    """
    before = low
    is_first = True
    for numbers in _number_runs(row):
        wrong = _number_outside(numbers, low, high)
        if wrong is not None:
            return wrong
        # Sorting what is in order takes one look, and runs in C.
        if numbers[0] < before or sorted(numbers) != numbers:
            return min(numbers)
        if is_whole and is_first and numbers[0] != low:
            return numbers[0]
        before = numbers[-1]
        is_first = False
    if is_whole and row.numel and before != high:
        return before
    return None


def _number_outside(numbers: Sequence[int], low: int, high: int) -> int | None:
    """Return a number outside of the limits, or None."""
    if not numbers:
        return None
    least = min(numbers)
    if least < low:
        return least
    most = max(numbers)
    return most if most > high else None


def _iterate_rows(ref: TensorRef) -> Iterator[TensorRef]:
    """Yield the rows of a tensor: views of its last dimension. Dimensions that show the
    same rows again are left out.
    """
    # Rows of no elements are many in few bytes.
    if not ref.numel:
        return
    # A dimension of stride 0 shows one row as often as a stranger's file likes.
    kept = [axis for axis in range(len(ref.shape) - 1) if ref.stride[axis]]
    for indices in product(*(range(ref.shape[axis]) for axis in kept)):
        offset = ref.offset
        for axis, index in zip(kept, indices, strict=True):
            offset += index * ref.stride[axis]
        yield tensor_ref(
            ref.storage, ref.dtype, ref.shape[-1:], ref.stride[-1:], offset
        )


def _matrix_row(matrix: TensorRef, number: int) -> TensorRef:
    offset = matrix.offset + number * matrix.stride[0]
    return tensor_ref(
        matrix.storage, matrix.dtype, matrix.shape[1:], matrix.stride[1:], offset
    )


def _flat_row(ref: TensorRef) -> TensorRef:
    """The elements of a contiguous tensor as a row."""
    return tensor_ref(ref.storage, ref.dtype, (ref.numel,), (1,), ref.offset)


def _row_part(row: TensorRef, first: int, last: int) -> TensorRef:
    offset = row.offset + first * row.stride[0]
    return tensor_ref(row.storage, row.dtype, (last - first,), row.stride, offset)


def _number_runs(row: TensorRef) -> Iterator[list[int]]:
    """Yield the numbers of a row in runs, so that few bytes of the storage are read at
    once.
    """
    count = row.shape[0]
    # One number may be seen as often as a stranger's file likes.
    if not row.stride[0]:
        count = min(count, 1)
    step = _step_of(row)
    for first in range(0, count, step):
        yield _read_numbers(_row_part(row, first, min(first + step, count)))


def _step_of(row: TensorRef) -> int:
    """The numbers of a row that are read at once."""
    bytes_apart = max(row.stride[0], 1) * row.dtype.bits // 8
    return max(1, min(_RUN, _SPAN // bytes_apart))


def _read_numbers(row: TensorRef) -> list[int]:
    """The numbers of a row. numpy is not loaded for them: inspecting a file
    never does.
    """
    from ckpt.elements.blocks import elements  # here: few files have such tensors

    count = row.shape[0]
    stride = row.stride[0]
    # Bytes between the numbers are read with them, and left out afterwards.
    span_length = (count - 1) * stride + 1 if count else 0
    span = tensor_ref(row.storage, row.dtype, (span_length,), (1,), row.offset)
    code, width = ("i", 4) if row.dtype.bits == 32 else ("q", 8)
    data = b"".join(elements(span))
    numbers = list(unpack(f"<{len(data) // width}{code}", data))
    if not stride:
        return numbers * count  # one number, seen `count` times
    return numbers[::stride]
