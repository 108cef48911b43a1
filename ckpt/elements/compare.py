"""Comparing two tensors: bytes first, then numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from math import isfinite, prod, sqrt

from ckpt.bytes.executor import Executor, Failed, Serial, Task, run_each
from ckpt.elements import spans
from ckpt.elements.blocks import (
    elements,
    is_all,
    is_dense,
    memory_order,
    permute_dims,
    same_bytes,
    same_ranges,
    slice_of,
)
from ckpt.elements.cast import as_numbers, has_numbers
from ckpt.elements.computed import PlaceOfTensors, place_of
from ckpt.elements.histogram import Histogram
from ckpt.elements.lines import LineSums, LineTest, OddLines, odd_lines
from ckpt.elements.measure import Difference
from ckpt.elements.spans import (
    cut_spans,
    numbered_blocks,
    refuse_overlaps,
    refuse_unfolded,
    without_repeats,
)
from ckpt.elements.unpacked import SINGLE, Unpacked, can_unpack, unpacked
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import UnreadableError
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import (
    Composite,
    Storage,
    Tensor,
    TensorRef,
    parts_of,
    tensor_ref,
)
from ckpt.model.text import counted_noun


class Change(NamedTuple):
    """The change of a tensor that kept its shape, over its elements in the order of the
    shape.

    `max_abs` is over finite elements, `at` its index. `squares` is the sum of the
    squared differences, `reference` the sum of the squared elements before. They are
    None when there are no numbers to compute with.
    """

    differing: int
    other_bytes: int
    numel: int
    max_abs: float | None = None
    squares: float | None = None
    reference: float | None = None
    at: tuple[int, ...] | None = None
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    close: bool = False
    """True if all elements agree within the given tolerance."""
    histogram: Histogram | None = None
    """The histogram of the finite differences, if it was requested."""
    odd: OddLines | None = None
    """The rows and columns that the base does not have, if they were requested."""
    seen: object = None
    """The answer of `LineTest.look`, if there is one."""

    def __repr__(self) -> str:
        largest = "" if self.max_abs is None else f", max |Δ| {self.max_abs:.3g}"
        return (
            f"<Change {self.differing:,} of {counted_noun(self.numel, 'element')}"
            f"{largest}>"
        )

    @property
    def is_vague(self) -> bool:
        """Tell whether it is only known that a tensor differs, for its elements have no
        numbers or its indices differ.
        """
        if not self.differing or self.squares is not None:
            return False
        return not any(self.nan) and not any(self.inf)

    @property
    def is_finite_alike(self) -> bool:
        """Tell whether both tensors have as many NaN and infinities, which no norm of
        the difference tells.
        """
        return self.nan[0] == self.nan[1] and self.inf[0] == self.inf[1]

    @property
    def rms(self) -> float | None:
        """The root of the mean square of the difference."""
        if self.squares is None:
            return None
        return sqrt(self.squares / self.numel) if self.numel else 0.0

    @property
    def rel_l2(self) -> float | None:
        """The norm of the difference divided by the norm of the tensor before.

        It is None without finite norms, and if the tensor before has norm 0 and
        something changed.
        """
        if self.squares is None or self.reference is None:
            return None
        # Squares of large numbers are too large for a float64.
        if not isfinite(self.squares) or not isfinite(self.reference):
            return None
        if self.reference:
            return sqrt(self.squares / self.reference)
        return None if self.differing else 0.0


def merge_changes(changes: Sequence[Change]) -> Change:
    """Return the changes of several tensors as one, without an index."""
    measured = [change for change in changes if change.squares is not None]
    is_finite = len(measured) == len(changes)
    largest = [change.max_abs for change in changes if change.max_abs is not None]
    return Change(
        sum(change.differing for change in changes),
        sum(change.other_bytes for change in changes),
        sum(change.numel for change in changes),
        max(largest, default=None),
        sum(change.squares or 0.0 for change in changes) if is_finite else None,
        sum(change.reference or 0.0 for change in changes) if is_finite else None,
        nan=(
            sum(change.nan[0] for change in changes),
            sum(change.nan[1] for change in changes),
        ),
        inf=(
            sum(change.inf[0] for change in changes),
            sum(change.inf[1] for change in changes),
        ),
    )


Tolerance = tuple[float, float]
"""(absolute, relative), as in torch.testing.assert_close."""


# --- the plan of a comparison ---------------------------------------------------------


class _Part(NamedTuple):
    """Two tensors in storages, arranged so that little must be read; or a change that
    is known without reading.
    """

    one: TensorRef
    two: TensorRef
    times: int
    """The number of times that the tensor repeats what is read."""
    order: tuple[int, ...]
    """The dimensions in the order of reading."""
    shape: tuple[int, ...]
    tolerance: Tolerance | None
    always: bool
    histogram: bool
    known: bool = False
    """True if nothing must be read, because `change` is the answer."""
    change: Change | None = None
    lines: LineTest | None = None
    """The test of rows and columns, which sees the tensor in one piece."""

    def tasks(self) -> list[Task[Difference | None]]:
        """The tasks of the comparison: spans of the elements."""
        if self.known:
            return []
        tasks = []
        is_whole = self.lines is not None
        spans = [(0, self.one.numel)] if is_whole else cut_spans(self.one, self.two)
        for first, last in spans:
            one = slice_of(self.one, first, last)
            two = slice_of(self.two, first, last)
            arguments = (
                one,
                two,
                self.tolerance,
                self.always,
                self.histogram,
                self.lines,
            )
            tasks.append(Task(compare_span, arguments, one.nbytes + two.nbytes))
        return tasks

    def result(self, differences: Sequence[Difference | None]) -> Change | None:
        """The change, from the results of its tasks."""
        if self.known:
            return self.change
        if all(difference is None for difference in differences):
            return None
        if not _have_numbers(self.one, self.two):
            return _all_of(self.one)
        is_one_dtype = self.one.dtype == self.two.dtype
        # Bytes that differ may decode to the same numbers, as of blocks with other
        # scales.
        if not self.always and is_one_dtype and all(map(_is_same, differences)):
            return None
        whole = Difference()
        for difference in differences:
            assert difference is not None
            whole.merge(difference)
            # Lines are tested in one task: the last difference has their answer.
            whole.odd = difference.odd
            whole.seen = difference.seen
        index = None
        if whole.at is not None:
            index = _element_index(whole.at, self.shape, self.order)
        # If no two finite elements differ, there is a change but no number for it.
        is_finite = index is not None or not whole.differing
        times = self.times
        if whole.histogram is not None:
            whole.histogram.repeated(times)
        return Change(
            differing=whole.differing * times,
            # Of two dtypes all bytes differ, which says nothing.
            other_bytes=whole.other_bytes * times if is_one_dtype else 0,
            numel=whole.numel * times,
            max_abs=whole.largest if is_finite else None,
            squares=whole.squares * times if is_finite else None,
            reference=whole.reference * times,
            at=index,
            nan=(whole.nan[0] * times, whole.nan[1] * times),
            inf=(whole.inf[0] * times, whole.inf[1] * times),
            close=self.tolerance is not None and whole.close,
            histogram=whole.histogram,
            odd=whole.odd,
            seen=whole.seen,
        )


class Comparison(NamedTuple):
    """The plan to compare two tensors of one shape: part by part, or not at all."""

    before: Tensor
    labels: tuple[str, ...]
    parts: tuple[_Part, ...]
    always: bool
    is_other: bool = False
    """True if they consist of other parts, so that everything may differ."""

    def result(self, changes: Sequence[Change | None]) -> Change | None:
        """The change of the tensor, from the changes of its parts."""
        if self.is_other:
            return _all_of(self.before)
        by_label = {
            label: change
            for label, change in zip(self.labels, changes, strict=True)
            if change is not None
        }
        if not by_label:
            return None
        values = self._values_change(by_label)
        if values is not None and (len(by_label) == 1 or self.always):
            return values
        if len(by_label) == 1 and self._has_only_codes(next(iter(by_label))):
            # One code per element: it says which elements differ, not by how much.
            only = next(iter(by_label.values()))
            return only._replace(max_abs=None, squares=None, at=None, histogram=None)
        # The indices differ, so elements cannot be compared one by one.
        moved = _all_of(self.before)
        if values is None:
            return moved
        return moved._replace(nan=values.nan, inf=values.inf)

    def _values_change(self, by_label: dict[str, Change]) -> Change | None:
        """Return the change of the part that holds the values of the elements, or
        None.
        """
        # A plain tensor has no label, a sparse one its values, a quantized one its
        # whole numbers.
        for label in ("", "values", "int_repr"):
            if label in by_label:
                return by_label[label]
        return next(iter(by_label.values())) if len(self.labels) == 1 else None

    def _has_only_codes(self, label: str) -> bool:
        """Tell whether a part of a wrapper has one code for each element."""
        if not isinstance(self.before, Composite) or self.before.layout != "wrapper":
            return False
        return dict(self.before.parts)[label].shape == self.before.shape


def plan_comparison(
    before: Tensor,
    after: Tensor,
    tolerance: Callable[[str], Tolerance] | None = None,
    *,
    always: bool = False,
    histogram: bool = False,
    lines: LineTest | None = None,
) -> Comparison:
    """Plan how two tensors of one shape are compared.

    Raises UnsupportedError for a tensor that expands too far. With `always` the numbers
    are computed for equal tensors too. With `histogram` the differences are counted in
    bins. With `lines` the rows and columns are told that the base does not have.
    """
    # Other numbers of parts are refused in the next line.
    pairs = list(zip(parts_of(before), parts_of(after), strict=False))
    if not _have_same_parts(before, after):
        return Comparison(before, (), (), always, is_other=True)
    if isinstance(before, TensorRef):
        labels: tuple[str, ...] = ("",)
    else:
        labels = tuple(label for label, _ in before.parts)
    parts = tuple(
        _plan_part(old, new, tolerance, always, histogram, lines) for old, new in pairs
    )
    return Comparison(before, labels[: len(parts)], parts, always)


def _have_same_parts(before: Tensor, after: Tensor) -> bool:
    """Tell whether two tensors can be compared part by part."""
    # With another scale or class, the same bytes mean something else.
    if isinstance(before, Composite) and isinstance(after, Composite):
        if kind_of(before) != kind_of(after):
            return False
    old_shapes = [part.shape for part in parts_of(before)]
    new_shapes = [part.shape for part in parts_of(after)]
    return old_shapes == new_shapes


def kind_of(tensor: Composite) -> Hashable:
    """The meaning of its bytes beside its dtype: the scale, the class, or the places of
    its shards.
    """
    return tensor.detail if tensor.shards is None else tensor.shards.offsets


def _plan_part(
    before: TensorRef,
    after: TensorRef,
    tolerance: Callable[[str], Tolerance] | None,
    always: bool,
    histogram: bool,
    lines: LineTest | None,
) -> _Part:
    allowed = None
    # Of two dtypes the looser one counts, as in torch.testing.
    if tolerance is not None:
        one, two = tolerance(before.dtype.name), tolerance(after.dtype.name)
        allowed = max(one[0], two[0]), max(one[1], two[1])
    as_it_is = _Part(
        before, after, 1, (), before.shape, allowed, always, histogram, known=True
    )
    old_place = before.storage.place
    new_place = after.storage.place
    # Tensors on meta have no data.
    if not before.numel or (old_place is None and new_place is None):
        return as_it_is
    if old_place is None or new_place is None:
        return as_it_is._replace(change=_all_of(before))
    old, new, times = without_repeats(
        _numeric(before, after.dtype), _numeric(after, before.dtype)
    )
    refuse_unfolded(old)
    refuse_unfolded(new)
    if lines is None or times != 1 or not _has_lines(lines, old, new):
        lines = None
        old, new, order = _straighten_dims(old, new)
    else:
        order = tuple(range(len(old.shape)))
    part = _Part(old, new, times, order, old.shape, allowed, always, histogram)
    return part._replace(lines=lines)


def _has_lines(lines: LineTest, *refs: TensorRef) -> bool:
    """Tell whether rows and columns of numbers can be told apart in two tensors."""
    return lines.has_lines(refs[0].shape) and all(
        ref.dtype.kind == "float" and has_numbers(ref.dtype) for ref in refs
    )


def _numeric(ref: TensorRef, other: DType) -> TensorRef:
    """A tensor as numbers that take least to make beside one of dtype `other`: of
    blocks, where they can be decoded, and of codes; any other tensor itself.
    """
    if can_unpack(ref):
        return unpacked(ref)
    place = ref.storage.place
    wide = place.widened() if isinstance(place, PlaceOfTensors) else None
    # Of two tensors of one dtype bytes count too.
    if wide is None or ref.dtype == other or other == SINGLE or not is_all(ref):
        return ref
    storage = Storage(ref.storage.id, ref.storage.device, SINGLE, wide.nbytes, wide)
    return tensor_ref(storage, SINGLE, ref.shape, contiguous(ref.shape), 0)


Span = Difference | Failed | None
"""The result of one task: None when every byte is the same."""


def compare_all(
    comparisons: Sequence[Comparison],
    executor: Executor | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Change | Failed | None]:
    """The change of each, None when every byte is the same, or why its bytes could not
    be read. Raises UnsupportedError for views that show far more than is stored.
    """
    executor = executor or Serial()
    parts = [part for comparison in comparisons for part in comparison.parts]
    tasks = [part.tasks() for part in parts]
    # All tasks in one call: the executor keeps every processor busy to the end.
    all_tasks = list(chain.from_iterable(tasks))
    sides = [ref for part in parts for ref in (part.one, part.two)]
    refuse_overlaps(sides, sum(task.nbytes for task in all_tasks))
    results_of = _regroup_results(run_each(executor, all_tasks, progress), tasks)
    # The norm covers the whole tensor, so if some spans differ, the equal ones are
    # measured too.
    again: list[Task[Difference | None]] = []
    for row, results in zip(tasks, results_of, strict=True):
        if _has_difference(results):
            again += [
                _always_measured(task)
                for task, result in zip(row, results, strict=True)
                if result is None
            ]
    measured = iter(run_each(executor, again))
    changes: list[Change | Failed | None] = []
    for part, results in zip(parts, results_of, strict=True):
        if _has_difference(results):
            results = [
                next(measured) if result is None else result for result in results
            ]
        changes.append(_part_change(part, results))
    change_of_next = iter(changes)
    return [
        _comparison_change(comparison, [next(change_of_next) for _ in comparison.parts])
        for comparison in comparisons
    ]


def _has_difference(results: Sequence[Span]) -> bool:
    return any(isinstance(result, Difference) for result in results)


def _always_measured(task: Task[Difference | None]) -> Task[Difference | None]:
    """The same task of `compare_span` with `always`. The bytes are read a second time
    and not counted again.
    """
    before, after, tolerance, _, *others = task.arguments
    return Task(compare_span, (before, after, tolerance, True, *others))


def _regroup_results(
    results: Sequence[Span], tasks: Sequence[Sequence[Task[Difference | None]]]
) -> list[list[Span]]:
    answers = iter(results)
    return [[next(answers) for _ in row] for row in tasks]


def _part_change(part: _Part, results: Sequence[Span]) -> Change | Failed | None:
    """The change of a part. Where a span could not be read, nothing is said of the
    others.
    """
    differences: list[Difference | None] = []
    for result in results:
        if isinstance(result, Failed):
            return result
        differences.append(result)
    return part.result(differences)


def _comparison_change(
    comparison: Comparison, changes: Sequence[Change | Failed | None]
) -> Change | Failed | None:
    known_changes: list[Change | None] = []
    for change in changes:
        if isinstance(change, Failed):
            return change
        known_changes.append(change)
    return comparison.result(known_changes)


def _is_same(span: Difference | None) -> bool:
    return span is None or not (span.differing or span.other_bytes)


def compare(
    before: Tensor,
    after: Tensor,
    tolerance: Callable[[str], Tolerance] | None = None,
    *,
    always: bool = False,
) -> Change | None:
    """The change between two tensors of one shape, None when every byte is the same.

    Tensors without data (on meta) are the same. Raises as `plan_comparison` does, and
    UnreadableError.
    """
    change = compare_all([plan_comparison(before, after, tolerance, always=always)])[0]
    if isinstance(change, Failed):
        raise UnreadableError(change.problem)
    return change


def _all_of(tensor: Tensor) -> Change:
    """A change in which everything may differ, without numbers."""
    return Change(tensor.numel, 0, tensor.numel)


def _straighten_dims(
    before: TensorRef, after: TensorRef
) -> tuple[TensorRef, TensorRef, tuple[int, ...]]:
    """Both tensors with their dimensions in the order of memory, if they share one, and
    that order.

    Tensors that are channels-last or transposed on both sides are then read from first
    to last.
    """
    if before.stride == after.stride and not is_dense(before):
        order = memory_order(before)
        old = permute_dims(before, order)
        new = permute_dims(after, order)
        if is_dense(old):
            return old, new, order
    return before, after, tuple(range(len(before.shape)))


# --- the work -------------------------------------------------------------------------


_Block = bytes | memoryview


def compare_span(
    before: TensorRef,
    after: TensorRef,
    tolerance: Tolerance | None,
    always: bool,
    histogram: bool = False,
    lines: LineTest | None = None,
) -> Difference | None:
    """The difference of two tensors of one shape; None when every byte is the same and
    `always` is not set. With `lines` they are whole.
    """
    difference = Difference()
    dtypes = (before.dtype, after.dtype)
    is_one_dtype = before.dtype == after.dtype
    if not _have_numbers(before, after):
        is_same = is_one_dtype and _same_bytes(before, after)
        return None if is_same else difference
    difference.histogram = Histogram() if histogram else None
    if lines is not None:
        difference.lines = LineSums(*_matrix_size(before), lines.base)
    pair = _read_short_pair(before, after) if is_one_dtype else None
    if pair is not None:
        old_bytes, new_bytes = pair
        if old_bytes == new_bytes and not always:
            return None
        difference.add(old_bytes, new_bytes, dtypes, tolerance)
        return _settle_difference(difference, (before, after), lines)
    # Most tensors of two checkpoints are the same, and comparing bytes is several times
    # faster than computing with numbers: those that differ are read once more.
    if is_one_dtype and not always and _same_bytes(before, after):
        return None
    for old, new in _paired_blocks(before, after):
        difference.add(old, new, dtypes, tolerance)
    return _settle_difference(difference, (before, after), lines)


def _settle_difference(
    difference: Difference, sides: tuple[TensorRef, TensorRef], lines: LineTest | None
) -> Difference:
    """Return a difference after its last block."""
    difference.settle()
    if difference.lines is not None and lines is not None:
        difference.odd = OddLines()
        if difference.lines.may_be_odd(lines):
            sums = _all_line_sums(*sides, lines)
            difference.odd = odd_lines(sums, sides[lines.base], lines)
        # The lines that are found go to another process, not the sums.
        difference.lines = None
        difference.seen = None if lines.look is None else lines.look()
    return difference


def _all_line_sums(before: TensorRef, after: TensorRef, lines: LineTest) -> LineSums:
    """Return all sums of the lines of two tensors, which are read again."""
    sums = LineSums(*_matrix_size(before), lines.base, has_both=True)
    for old, new in _paired_blocks(before, after):
        sums.add(as_numbers(old, before.dtype, 0), as_numbers(new, after.dtype, 1))
    return sums


def _matrix_size(ref: TensorRef) -> tuple[int, int]:
    """Return the rows and columns of a tensor, of which the last dimension is a row."""
    return prod(ref.shape[:-1]), ref.shape[-1]


def _paired_blocks(
    before: TensorRef, after: TensorRef
) -> Iterator[tuple[_Block, _Block]]:
    """Yield blocks of the elements of two tensors, which are valid until the next
    ones.
    """
    return zip(numbered_blocks(before, 2), numbered_blocks(after, 3), strict=True)


def _have_numbers(*refs: TensorRef) -> bool:
    """Tell whether it can be said how much elements differ.

    Of types such as float4 only the bytes are compared.
    """
    return all(has_numbers(ref.dtype) for ref in refs)


def _read_short_pair(before: TensorRef, after: TensorRef) -> tuple[bytes, bytes] | None:
    """The elements of two tensors of one dtype that fit into one step, read once; None
    of others.
    """
    if before.numel > spans.ELEMENTS:
        return None
    old_run = place_of(before).run
    new_run = place_of(after).run
    if old_run is None or new_run is None:
        return None
    old_bytes = old_run.source.read(old_run.offset, before.nbytes)
    new_bytes = new_run.source.read(new_run.offset, after.nbytes)
    return old_bytes, new_bytes


def _same_bytes(before: TensorRef, after: TensorRef) -> bool:
    """Tell whether the elements are the same byte for byte."""
    # Smaller elements share bytes, which are compared as they are stored.
    if before.dtype.bits < 8:
        return same_bytes(_stored_bytes(before), _stored_bytes(after))
    if _are_same_blocks(before, after):
        return True
    old, new = place_of(before).run, place_of(after).run
    if old is not None and new is not None:
        return same_ranges(
            old.source, old.offset, new.source, new.offset, before.nbytes
        )
    return same_bytes(elements(before), elements(after))


def _are_same_blocks(before: TensorRef, after: TensorRef) -> bool:
    """Tell whether both are decoded from the same blocks. Other blocks may hold the
    same numbers.
    """
    one, two = before.storage.place, after.storage.place
    if not isinstance(one, Unpacked) or not isinstance(two, Unpacked):
        return False
    if one.dtype != two.dtype or one.packed.big != two.packed.big:
        return False
    blocks: list[Iterator[bytes]] = []
    for place, ref in ((one, before), (two, after)):
        first, last = place.packed_span(*ref.extent)
        blocks.append(place.packed.read_blocks(first, last - first))
    return same_bytes(*blocks)


def _stored_bytes(ref: TensorRef) -> Iterator[bytes]:
    """The bytes of the storage that a tensor sees."""
    place = ref.storage.place
    assert place is not None
    first, last = ref.extent
    return place.read_blocks(first, last - first)


def _element_index(
    number: int, shape: Sequence[int], order: tuple[int, ...]
) -> tuple[int, ...]:
    """The index of an element, from its number in the order of reading."""
    out = [0] * len(shape)
    for place, size in zip(reversed(order), reversed(shape), strict=True):
        number, out[place] = divmod(number, size)
    return tuple(out)
