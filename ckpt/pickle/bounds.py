"""The tensors of several parts whose shapes and numbers torch follows into memory:
sparse, nested, jagged, quantized ones.

torch.load makes a sparse tensor without a look at its indices, and old versions read
rows of a nested one wherever they lie. `refuse_odd_parts` compares shapes and types.
`Bounds` reads the numbers, block by block. Sources: torch/_utils.py,
aten/src/ATen/SparseCsrTensorUtils.h, torch/nested/_internal/nested_tensor.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from struct import unpack

from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import UnreadableError
from ckpt.model.nodes import Global, Node
from ckpt.model.tensors import Composite, Storage, TensorRef, tensor_ref

_RUN = 1 << 18
"""The most numbers that are read at once."""
_SPAN = 8 << 20
"""The most bytes of a storage that are read at once for them."""
_AGAIN = 1_000_000
"""Numbers that are read again, because tensors share their parts, until the grammar
calls the file dangerous for it.
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
    sparse, count = indices.shape
    if values.shape[:1] != (count,):
        return "it has not one value for each index"
    if len(shape) < sparse or values.shape[1:] != shape[sparse:]:
        return "its size is not that of its indices and values"
    return None


def _odd_compressed(
    layout: str, parts: Mapping[str, TensorRef], shape: tuple[int, ...]
) -> str | None:
    compressed, plain, values = (
        parts["compressed_indices"],
        parts["plain_indices"],
        parts["values"],
    )
    if (
        compressed.dtype.name not in ("int32", "int64")
        or compressed.dtype != plain.dtype
    ):
        return "its indices are not of int32 or int64, or not of one type"
    batch = len(compressed.shape) - 1
    inner = 2 if layout in _BLOCKED else 0
    if (
        batch < 0
        or len(plain.shape) != batch + 1
        or len(values.shape) < batch + 1 + inner
    ):
        return "its parts have too few dimensions"
    block = values.shape[batch + 1 : batch + 3] if inner else (1, 1)
    if (
        len(shape) < batch + 2
        or values.shape[batch + 1 + inner :] != shape[batch + 2 :]
    ):
        return "its size is not that of its values"
    if {compressed.shape[:-1], plain.shape[:-1], values.shape[:batch]} != {
        shape[:batch]
    }:
        return "its parts have other batches than its size"
    if values.shape[batch] != plain.shape[-1]:
        return "it has not one value for each index"
    if 0 in block or shape[batch] % block[0] or shape[batch + 1] % block[1]:
        return "its size is no multiple of its blocks"
    if compressed.shape[-1] != _counts_of(layout, values, batch, shape)[0] + 1:
        return "it has not one row of indices for each row"
    if compressed.numel and compressed.shape[-1] > 1 and compressed.stride[-1] == 0:
        return "its rows of indices are one number"
    return None


def _counts_of(
    layout: str, values: TensorRef, batch: int, shape: tuple[int, ...]
) -> tuple[int, int]:
    """The number of compressed rows of a sparse tensor, and of the places in one of
    them.
    """
    block = values.shape[batch + 1 : batch + 3] if layout in _BLOCKED else (1, 1)
    rows, columns = shape[batch] // block[0], shape[batch + 1] // block[1]
    return (columns, rows) if layout in _BY_COLUMN else (rows, columns)


def odd_nested(parts: Mapping[str, TensorRef]) -> str | None:
    """Return how the parts of a nested tensor do not fit each other, or None.

    torch writes an empty one with parts that it does not read again.
    """
    values, sizes, strides, offsets = (
        parts[name] for name in ("values", "sizes", "strides", "offsets")
    )
    if (values.numel, sizes.shape, strides.shape, offsets.shape) == (0, (), (), (0,)):
        return None
    if any(part.dtype.name != "int64" for part in (sizes, strides, offsets)):
        return "its sizes, strides or offsets are not of int64"
    if not all(map(_is_contiguous, parts.values())):
        return "one of its parts is not contiguous"
    if len(values.shape) != 1 or len(sizes.shape) != 2:
        return "its values are no row, or its sizes no matrix"
    if strides.shape != sizes.shape or offsets.shape != sizes.shape[:1]:
        return "it has not one size, stride and offset for each row"
    return None


def _is_contiguous(ref: TensorRef) -> bool:
    usual = contiguous(ref.shape)
    steps = zip(ref.shape, ref.stride, usual, strict=True)
    return not ref.numel or all(
        size == 1 or stride == step for size, stride, step in steps
    )


def odd_jagged(
    values: TensorRef, offsets: TensorRef, lengths: TensorRef | None, ragged: Node
) -> str | None:
    """Return how the parts of a jagged tensor do not fit each other, or None."""
    rows = [offsets] if lengths is None else [offsets, lengths]
    if any(
        part.dtype.name not in ("int32", "int64") or len(part.shape) != 1
        for part in rows
    ):
        return "its offsets or lengths are no row of whole numbers"
    if not offsets.numel or (
        lengths is not None and lengths.numel != offsets.numel - 1
    ):
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
    """
    name = scheme[0]
    if type(name) is not Global or not name.name.startswith("per_channel_"):
        return None
    axis = scheme[3] if len(scheme) == 4 else None
    if type(axis) is not int or not 0 <= axis < len(shape):
        return "it has no dimension for its channels"
    for label, node in zip(("scales", "zero_points"), scheme[1:3], strict=True):
        part = parts.get(label)
        counts = (
            (len(node),) if type(node) is list else None if part is None else part.shape
        )
        if counts != (shape[axis],):
            return "it has not one scale and zero point for each channel"
    zeros = parts.get("zero_points")
    is_float = name.name.endswith("float_qparams") or (
        zeros is not None and zeros.dtype.kind == "float"
    )
    if is_float and dtype.name == "qint32":
        return "torch has no qint32 with zero points that are floats"
    return None


# --- numbers --------------------------------------------------------------------------


class Bounds:
    """Looks for numbers in the parts of tensors that lead out of their memory. It reads
    each storage about once.
    """

    def __init__(self) -> None:
        self._again = 0
        self._read: dict[int, Storage] = {}

    def excess(self, tensor: Composite, length: int = 0) -> str | None:
        """Return the first number that leads out of a tensor, as text, or None.

        `length` is the length of the values of a jagged one, along the dimension of its
        rows. Bytes that are not there, or damaged, are not looked at: torch cannot load
        them either.
        """
        if tensor.layout not in _CHECKED:
            return None
        parts = dict(tensor.parts)
        read = [part for label, part in parts.items() if label != "values"]
        if any(
            part.storage.place is None for part in read if part.numel
        ) or not self._may_read(read):
            return None
        try:
            if tensor.layout == "nested":
                return _excess_of_rows(parts)
            if tensor.layout == "jagged":
                return _excess_of_jagged(parts, length)
            if tensor.layout == "sparse_coo":
                return _excess_of_coordinates(parts["indices"], tensor.shape)
            return _excess_of_compressed(tensor, parts)
        except UnreadableError:
            return None

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
    for row, size in enumerate(shape[: indices.shape[0]]):
        for numbers in _number_runs(_matrix_row(indices, row)):
            wrong = _number_outside(numbers, 0, size - 1)
            if wrong is not None:
                return f"the index {wrong:,} in a dimension of {size:,}"
    return None


def _excess_of_compressed(
    tensor: Composite, parts: Mapping[str, TensorRef]
) -> str | None:
    compressed, plain, values = (
        parts["compressed_indices"],
        parts["plain_indices"],
        parts["values"],
    )
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
    offsets, lengths = parts["offsets"], parts.get("lengths")
    if lengths is None:
        wrong = _odd_steps(offsets, 0, size, is_whole=False)
        return None if wrong is None else f"the offset {wrong:,} among {size:,} values"
    step = min(_step_of(offsets), _step_of(lengths))
    for first in range(0, lengths.numel, step):
        last = min(first + step, lengths.numel)
        starts, counts = (
            _read_numbers(_row_part(row, first, last)) for row in (offsets, lengths)
        )
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        for numbers in (starts, counts, ends):
            wrong = _number_outside(numbers, 0, size)
            if wrong is not None:
                return f"a row that ends at {wrong:,} of {size:,} values"
    return None


def _excess_of_rows(parts: Mapping[str, TensorRef]) -> str | None:
    """Return the first row of a nested tensor that leads out of its values, as text, or
    None.
    """
    sizes, strides, offsets = parts["sizes"], parts["strides"], parts["offsets"]
    if len(sizes.shape) != 2:
        return None
    if not offsets.numel:
        return "the first of no rows"
    width, limit = sizes.shape[1], parts["values"].numel
    step = max(1, _RUN // max(width, 1))
    for first in range(0, offsets.numel, step):
        last = min(first + step, offsets.numel)
        starts = _read_numbers(_row_part(offsets, first, last))
        size, stride = (
            _read_numbers(_row_part(_flat_row(part), first * width, last * width))
            for part in (sizes, strides)
        )
        for row, start in enumerate(starts):
            inner = slice(row * width, (row + 1) * width)
            wrong = _odd_row(start, size[inner], stride[inner], limit)
            if wrong is not None:
                return f"{wrong}, in row {first + row:,}"
    return None


def _odd_row(
    start: int, sizes: Sequence[int], strides: Sequence[int], limit: int
) -> str | None:
    """Return a number of one row of a nested tensor that leads out of its values, as
    text, or None.
    """
    steps = [stride for size, stride in zip(sizes, strides, strict=True) if size > 1]
    least = min((start, *sizes, *steps))
    if least < 0:
        return f"the number {least:,}"
    if 0 in sizes:
        return (
            None if start <= limit else f"the offset {start:,} among {limit:,} values"
        )
    end = start + sum(
        (size - 1) * stride for size, stride in zip(sizes, strides, strict=True)
    )
    return None if end < limit else f"the place {end:,} among {limit:,} values"


def _odd_steps(row: TensorRef, low: int, high: int, *, is_whole: bool) -> int | None:
    """Return the first number of a row that is smaller than the one before it, or
    outside of the limits, or None.

    With `is_whole` the row begins and ends with the limits.
    """
    before = low
    for place, numbers in enumerate(_number_runs(row)):
        wrong = _number_outside(numbers, low, high)
        if wrong is not None:
            return wrong
        if (
            numbers[0] < before or sorted(numbers) != numbers
        ):  # sorting what is in order takes one look
            return min(numbers)
        if is_whole and not place and numbers[0] != low:
            return numbers[0]
        before = numbers[-1]
    return before if is_whole and row.numel and before != high else None


def _number_outside(numbers: Sequence[int], low: int, high: int) -> int | None:
    """Return a number outside of the limits, or None."""
    if not numbers:
        return None
    least, most = min(numbers), max(numbers)
    return least if least < low else most if most > high else None


def _iterate_rows(ref: TensorRef) -> Iterator[TensorRef]:
    """Yield the rows of a tensor: views of its last dimension. Dimensions that show the
    same rows again are left out.
    """
    kept = [
        axis
        for axis in range(len(ref.shape) - 1)
        if ref.stride[axis] or not ref.shape[axis]
    ]
    for place in product(*(range(ref.shape[axis]) for axis in kept)):
        offset = ref.offset + sum(
            at * ref.stride[axis] for at, axis in zip(place, kept, strict=True)
        )
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
    (count,), step = row.shape, _step_of(row)
    for first in range(0, count, step):
        yield _read_numbers(_row_part(row, first, min(first + step, count)))


def _step_of(row: TensorRef) -> int:
    """The numbers of a row that are read at once."""
    width = max(row.stride[0], 1) * row.dtype.bits // 8
    return max(1, min(_RUN, _SPAN // width))


def _read_numbers(row: TensorRef) -> list[int]:
    """The numbers of a row. numpy is not loaded for them: inspecting a file
    never does.
    """
    from ckpt.elements.blocks import elements  # here: few files have such tensors

    (count,), (stride,) = row.shape, row.stride
    whole = (count - 1) * stride + 1 if count else 0
    span = tensor_ref(row.storage, row.dtype, (whole,), (1,), row.offset)
    code, width = ("i", 4) if row.dtype.bits == 32 else ("q", 8)
    data = b"".join(elements(span))
    numbers = list(unpack(f"<{len(data) // width}{code}", data))
    return numbers[::stride] if stride else numbers * count
