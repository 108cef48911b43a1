"""The elements of a tensor after a merge: base + scale * B @ A, computed block of rows
by block of rows while it is written.

A product is float32, or float64 where that is asked for; the sum is rounded once, to
the dtype of the base. No block depends on the number of threads or on what else is
read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ckpt.elements import cast
from ckpt.elements.blocks import elements
from ckpt.elements.fill import fill_buffer
from ckpt.elements.sums import ROWS, matrix_product
from ckpt.ext.adapters.derived import Derived, Made
from ckpt.model.dtypes import DType
from ckpt.model.errors import UnsupportedError
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

ELEMENTS = 1 << 18
"""Elements of a block of rows. Fewer cost more calls, and more leave the cache. A
single row may have more.
"""
_PRODUCT = 2
"""The row of scratch memory that a product has: one that rounding uses after it, so
that less of the cache is needed.
"""
_KEPT = 2
"""Right matrices that stay in memory: blocks of two experts may be computed at once."""


class Factor(NamedTuple):
    """A matrix that is a view of a tensor of an adapter, with strides over its elements
    in the order of its shape.

    With `mid`, it is the product of that tensor of a convolution with this matrix: rank
    by rank by kernel.
    """

    ref: TensorRef
    shape: tuple[int, int]
    stride: tuple[int, int]
    offset: int = 0
    mid: TensorRef | None = None

    @property
    def columns(self) -> int:
        """The columns of the matrix, with the kernels of the middle."""
        if self.mid is None:
            return self.shape[1]
        return self.shape[1] * prod(self.mid.shape[2:])

    @property
    def turned(self) -> Factor:
        """The same matrix with rows and columns exchanged."""
        return self._replace(shape=self.shape[::-1], stride=self.stride[::-1])

    def cut_rows(self, first: int, count: int) -> Factor:
        """Some of its rows."""
        offset = self.offset + first * self.stride[0]
        return self._replace(shape=(count, self.shape[1]), offset=offset)

    @property
    def refs(self) -> tuple[TensorRef, ...]:
        """The tensors that it reads."""
        return (self.ref,) if self.mid is None else (self.ref, self.mid)


def factor_of(ref: TensorRef) -> Factor:
    """The matrix of a tensor: its first dimension, and all others."""
    columns = prod(ref.shape[1:])
    return Factor(ref, *_dense_layout(ref.shape[0], columns))


@lru_cache(maxsize=64)
def _dense_layout(rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The shape and the strides of a matrix, which many layers share."""
    return (rows, columns), (columns, 1)


class Span(NamedTuple):
    """Every `step`-th row or column from `first` on, `size` of them."""

    first: int
    size: int
    step: int = 1

    @property
    def end(self) -> int:
        """One past the last."""
        return self.first + (self.size - 1) * self.step + 1

    def cut(self, low: int, high: int) -> tuple[int, int]:
        """The numbers of its first row that is not below `low`, and of the one past the
        last below `high`.
        """
        # Rounded up: `-(-a // b)`.
        begin = max(0, -((self.first - low) // self.step))
        end = min(self.size, -((self.first - high) // self.step))
        return begin, max(begin, end)


@lru_cache(maxsize=64)
def span_of(size: int) -> Span:
    """All rows or columns of a tensor, which many layers share."""
    return Span(0, size)


class Term(NamedTuple):
    """A summand for a box of a tensor as a matrix: scale * left @ right, or scale *
    left without a right one.
    """

    rows: Span
    columns: Span
    left: Factor
    right: Factor | None
    scale: float
    owner: int = 0
    """The number of the layer that it comes from."""

    @property
    def turned(self) -> Term | None:
        """The same box with the transposed product, or None where that has another
        shape.
        """
        if self.right is None or self.rows.size != self.columns.size:
            return None
        return self._replace(left=self.right.turned, right=self.left.turned)

    @property
    def refs(self) -> tuple[TensorRef, ...]:
        """The tensors that it reads."""
        return (*self.left.refs, *(() if self.right is None else self.right.refs))


class Magnitude(NamedTuple):
    """The lengths of DoRA: after the sum, each row or column gets its length of
    `ref`.
    """

    ref: TensorRef
    axis: Literal["rows", "columns"]


class Step(NamedTuple):
    """The changes that one adapter makes to a tensor. `origin` is its number."""

    origin: int
    terms: tuple[Term, ...]
    magnitude: Magnitude | None = None


class Rows(NamedTuple):
    """Rows of a tensor that rows of another one replace, by their indices."""

    indices: tuple[int, ...]
    ref: TensorRef


class Work(NamedTuple):
    """All that is done to a tensor of rows and columns, in turn."""

    rows: int
    columns: int
    steps: tuple[Step, ...]
    replaced: tuple[Rows, ...] = ()
    is_exact: bool = False
    names: Mapping[int, tuple[str, str]] = MappingProxyType({})
    """The id of a tensor of an adapter -> the file and the name that an error gives."""

    @property
    def refs(self) -> tuple[TensorRef, ...]:
        """The tensors of adapters that it reads, each once."""
        found: list[TensorRef] = []
        for step in self.steps:
            found += _refs_of(step)
        found += [rows.ref for rows in self.replaced]
        # Tensors are told apart by identity: two may have equal places.
        return tuple({id(ref): ref for ref in found}.values())


def _refs_of(step: Step) -> list[TensorRef]:
    refs = [ref for term in step.terms for ref in term.refs]
    return refs if step.magnitude is None else [*refs, step.magnitude.ref]


def derived_place(base: TensorRef, work: Work, dtype: DType) -> Derived:
    """The place of the elements of a tensor after the work, as a dtype."""
    columns = max(1, work.columns)
    count = max(1, ELEMENTS // columns)
    # Whole tiles: the result of a product must not depend on where blocks begin.
    if count > ROWS:
        count -= count % ROWS
    return Derived(base, work.refs, count * columns, _Change(base, work, dtype), dtype)


class _Change:
    """Computes blocks of rows. What it reads of adapters is let go when another tensor
    is computed.
    """

    def __init__(self, base: TensorRef, work: Work, dtype: DType) -> None:
        self.base = base
        self.work = work
        self.dtype = dtype

    def __call__(self, block: memoryview, first: int) -> Made:
        computing = _make_computing(self)
        rows = _taken_rows()
        values = computing.values(block, self.base.dtype, rows)
        lost = computing.apply_counted(values, first // max(1, self.work.columns), rows)
        data, overflowed = cast.round_numbers(values.reshape(-1), self.dtype, rows)
        return Made(data, lost + overflowed, lambda: _IDLE.append(rows))


_IDLE: list[cast.Rows] = []
"""Rows that no block uses. Threads come and go."""


def _taken_rows() -> cast.Rows:
    try:
        return _IDLE.pop()
    except IndexError:
        return cast.Rows()


@lru_cache(maxsize=1)
def _make_computing(change: _Change) -> Computing:
    """The matrices of the tensor that is computed now."""
    return Computing(change.base, change.work)


class Computing:
    """The matrices of one tensor, as they are needed, and the sums that they make."""

    def __init__(self, base: TensorRef, work: Work) -> None:
        self.work = work
        self.kind = "<f8" if work.is_exact or base.dtype.name == "float64" else "<f4"
        self._base = base
        self._raw: dict[int, Array] = {}
        self._rights: dict[int, Array] = {}
        self._lengths: dict[int, Array] = {}
        self._lock = threading.RLock()

    def values(self, block: memoryview | bytes, dtype: DType, rows: cast.Rows) -> Array:
        """The elements of a block of rows as numbers that may be changed, by rows and
        columns.

        They lie in the block or in `rows`, unless neither can hold them.
        """
        numbers = cast.as_numbers(block, dtype, 0, rows)
        # A block may be read-only, and its numbers of another width than the sums.
        if numbers.dtype.str != self.kind or not numbers.flags.writeable:
            numbers = numbers.astype(self.kind)
        return numbers.reshape(-1, max(1, self.work.columns))

    def apply_counted(self, values: Array, first: int, rows: cast.Rows) -> int:
        """As `apply`. Returns the number of elements that were finite and are not."""
        import numpy as np

        problems: list[str] = []
        was_finite = rows.row("?", 0, values.size).reshape(values.shape)
        np.isfinite(values, out=was_finite)
        # The processor notes each overflow, so most blocks need no second look.
        with np.errstate(
            over="call",
            invalid="call",
            call=lambda kind, _: problems.append(kind),
        ):
            self.apply(values, first, rows)
        if not problems:
            return 0
        return int(np.count_nonzero(was_finite & ~np.isfinite(values)))

    def apply(self, values: Array, first: int, rows: cast.Rows) -> None:
        """Change rows of the base, from row `first` on."""
        has_lengths = any(step.magnitude is not None for step in self.work.steps)
        # The lengths of each adapter are those of the base, without what others added.
        base = values.copy() if has_lengths and len(self.work.steps) > 1 else values
        for index, step in enumerate(self.work.steps):
            factors = None
            if step.magnitude is not None:
                factors = self._length_factors(index, step, base, first, rows)
            self.add(values, step.terms, first, rows)
            if factors is not None:
                values *= factors
        # Rows that were trained themselves come last: nothing is added to them.
        for replaced in self.work.replaced:
            self._replace_rows(values, replaced, first)

    def add(
        self,
        values: Array,
        terms: Sequence[Term],
        first: int,
        rows: cast.Rows,
    ) -> None:
        """Add terms to rows, from row `first` on."""
        for term in terms:
            begin, end = term.rows.cut(first, first + len(values))
            if begin < end:
                self._add_term(values, term, first, (begin, end), rows)

    def _add_term(
        self,
        values: Array,
        term: Term,
        first: int,
        part: tuple[int, int],
        rows: cast.Rows,
    ) -> None:
        """Add some rows of a term, from the first one to the one before the last."""
        import numpy as np

        begin, end = part
        product = self._read_matrix(term.left.cut_rows(begin, end - begin))
        if term.right is not None:
            right = self._right_matrix(term.right)
            held = self._product_row(rows, len(product) * right.shape[1])
            left, product = product, held.reshape(len(product), -1)
            matrix_product(left, right, product)
        if term.scale != 1:
            product *= np.asarray(term.scale, self.kind)
        low = term.rows.first + begin * term.rows.step - first
        low = term.rows.first + begin * term.rows.step - first
        high = low + (end - begin - 1) * term.rows.step + 1
        chosen = slice(low, high, term.rows.step)
        columns = slice(term.columns.first, term.columns.end, term.columns.step)
        values[chosen, columns] += product

    def _product_row(self, rows: cast.Rows, size: int) -> Array:
        """Scratch memory for so many numbers of a product."""
        if self.kind == "<f4":
            return rows.words(_PRODUCT, size).view(self.kind)
        return rows.row(self.kind, _PRODUCT, size)

    def _replace_rows(self, values: Array, replaced: Rows, first: int) -> None:
        """Put the rows of another tensor in the place of those with their indices."""
        matrix = factor_of(replaced.ref)
        for place, index in enumerate(replaced.indices):
            if first <= index < first + len(values):
                values[index - first] = self._read_matrix(matrix.cut_rows(place, 1))[0]

    # --- the lengths of DoRA ----------------------------------------------------------

    def _length_factors(
        self,
        index: int,
        step: Step,
        base: Array,
        first: int,
        rows: cast.Rows,
    ) -> Array:
        """The factors that give each row or column of base and terms its length."""
        import numpy as np

        assert step.magnitude is not None
        wanted = self._read_vector(step.magnitude.ref)
        if step.magnitude.axis == "columns":
            # A column runs through all blocks: its length needs all of the base first.
            with self._lock:
                if index not in self._lengths:
                    self._lengths[index] = self._column_lengths(step)
            lengths = self._lengths[index]
        else:
            changed = base.copy()
            self.add(changed, step.terms, first, rows)
            lengths = np.sqrt(_row_squares(changed))
            wanted = wanted[first : first + len(base)]
        # A length of 0 gives Inf or NaN, as in torch; what it makes is counted later.
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = wanted / lengths
        spread: Array
        if step.magnitude.axis == "columns":
            spread = factors[None, :]
        else:
            spread = factors[:, None]
        return spread

    def _column_lengths(self, step: Step) -> Array:
        """The length of each column of the base and the terms. Reads all of the base
        once more.
        """
        import numpy as np

        total = np.zeros(self.work.columns, self.kind)
        first = 0
        rows = cast.Rows()
        for block in self._row_blocks():
            values = self.values(block, self._base.dtype, rows)
            self.add(values, step.terms, first, rows)
            first += len(values)
            np.square(values, out=values)
            values[0] += total
            # One row after the other: the same sum for any size of a block.
            np.add.reduce(values, axis=0, out=total)
        lengths: Array = np.sqrt(total)
        return lengths

    def _row_blocks(self) -> Iterator[bytes]:
        """The bytes of the base in blocks of rows."""
        row = self.work.columns * (self._base.dtype.bits // 8)
        size = max(1, ELEMENTS // self.work.columns) * row
        rest = bytearray()
        for block in elements(self._base):
            rest += block
            while len(rest) >= size:
                yield bytes(memoryview(rest)[:size])
                del rest[:size]
        if rest:
            yield bytes(rest)

    # --- matrices ---------------------------------------------------------------------

    def _read_vector(self, ref: TensorRef) -> Array:
        row = Factor(ref, (1, ref.numel), (ref.numel, 1))
        vector: Array = self._read_matrix(row)[0]
        return vector

    def _right_matrix(self, factor: Factor) -> Array:
        """A right matrix, which many blocks of rows use."""
        key = id(factor)
        with self._lock:
            if key not in self._rights:
                # The oldest goes: experts of one tensor would fill the memory.
                while len(self._rights) >= max(_KEPT, len(self.work.steps)):
                    del self._rights[next(iter(self._rights))]
                self._rights[key] = self._read_matrix(factor)
            return self._rights[key]

    def _read_matrix(self, factor: Factor) -> Array:
        """A matrix as numbers."""
        import numpy as np

        raw = self._stored_elements(factor.ref)
        width = raw.itemsize
        steps = (factor.stride[0] * width, factor.stride[1] * width)
        # A view by strides: parts of a tensor and turned ones are copied once, as
        # numbers.
        view = np.lib.stride_tricks.as_strided(
            raw[factor.offset :],
            factor.shape,
            steps,
            writeable=False,
        )
        data = np.ascontiguousarray(view).view("u1").reshape(-1).data
        numbers = cast.as_numbers(data, factor.ref.dtype)
        matrix: Array = numbers.astype(self.kind).reshape(factor.shape)
        if not np.isfinite(matrix).all():
            unnamed = ("", "a tensor of the adapter")
            path, name = self.work.names.get(id(factor.ref), unnamed)
            raise UnsupportedError(f"{name} holds NaN or Inf", path=path or None)
        if factor.mid is None:
            return matrix
        return self._kernel_product(factor.mid, matrix)

    def _kernel_product(self, mid: TensorRef, down: Array) -> Array:
        """The product of the middle of a convolution, rank by rank by kernel, and the
        matrix before it.
        """
        import numpy as np

        one, two = mid.shape[:2]
        # [rank out, rank in, kernel] with [rank in, inputs] is [rank out, inputs,
        # kernel].
        kernel = self._read_matrix(factor_of(mid)).reshape(one, two, -1)
        product: Array = np.einsum("abk,bi->aik", kernel, down).reshape(one, -1)
        return product

    def _stored_elements(self, ref: TensorRef) -> Array:
        """The elements of a tensor of an adapter as they are stored. They stay in
        memory while this tensor is computed.
        """
        import numpy as np

        with self._lock:
            if id(ref) not in self._raw:
                data = bytearray(ref.nbytes)
                fill_buffer(ref, memoryview(data))
                self._raw[id(ref)] = np.frombuffer(data, f"<u{ref.dtype.bits // 8}")
            return self._raw[id(ref)]


_LANES = 8
"""The sums that torch keeps for the squares of a row, whatever the processor."""


def _row_squares(rows: Array) -> Array:
    """The sum of the squares of each row, added in the order of torch.linalg.norm.

    On a CPU that adds each eighth number, then these sums, then the rest of the row.
    """
    import numpy as np

    squares = np.square(rows)
    # The rows in eights: `[rows, count / 8, 8]`, and what is left of each row.
    whole = rows.shape[1] - rows.shape[1] % _LANES
    lanes = squares[:, :whole].reshape(len(rows), -1, _LANES)
    sums = np.add.reduce(lanes, axis=1)
    total: Array = sums[:, 0]
    for part in (*sums.T[1:], *squares.T[whole:]):
        total = total + part
    return total
