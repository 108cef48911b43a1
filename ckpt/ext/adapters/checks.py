"""`ckpt diff BASE MERGED --adapter ADAPTER`: whether MERGED is BASE with what ADAPTER
adds, pair by pair.

Each difference is held against the one that a merge makes. Rounding to the dtype of
MERGED, a product in a lower precision, and adding in another order are no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ckpt.bytes.executor import in_order
from ckpt.commands.diff.diff import DiffReport
from ckpt.commands.diff.rows import DIFFERS, Row
from ckpt.elements import cast
from ckpt.elements.blocks import elements, is_dense, same_bytes, slice_of
from ckpt.elements.cast import AVERAGED, can_cast
from ckpt.elements.computed import Computed, can_cut
from ckpt.elements.fill import fill_buffer
from ckpt.elements.sums import dot_product
from ckpt.ext.adapters import products
from ckpt.ext.adapters.base import Base
from ckpt.ext.adapters.merge import new_tensor, possible_plans
from ckpt.ext.adapters.packing import Packing
from ckpt.ext.adapters.plan import Options, Pair, Plan, Target
from ckpt.ext.adapters.products import Computing, Term, Work, derived_place
from ckpt.ext.adapters.reader import Adapter, has_free_scale
from ckpt.ext.adapters.verdicts import MergeCheck, PairCheck, Sums, Verdict, verdict_of
from ckpt.model.checkpoint import Entry
from ckpt.model.dtypes import DType
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef, is_same_view, unwrap_dtensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_MODELS = ("model", "ema", "other")


def check_merge(report: DiffReport, adapter: Adapter) -> DiffReport:
    """The report of a comparison with what it says of an adapter. Reads the tensors
    that it changes once more.

    Raises UsageError where the base lacks a layer of the adapter.
    """
    rows = [
        row for row in report.rows if row.before is not None and row.kind in _MODELS
    ]
    entries = [row.before for row in rows if row.before is not None]
    base = Base(entries, report.before.path)
    is_free = has_free_scale(adapter)
    options = Options(scale=1.0 if is_free else None)
    # Tensors of MERGED by the names of the base; new ones by their own.
    after = dict(zip(base.names, [row.after for row in rows], strict=True))
    after |= {row.name: row.after for row in report.rows if row.before is None}
    # If names do not say how a base packs layers, MERGED does: all ways are tried.
    tried = [
        _try_plan(packing, plan, after, is_free=is_free)
        for packing, plan in possible_plans(report.before, entries, [adapter], options)
    ]
    best = max(tried, key=_closeness)
    plan, pairs = best.plan, best.pairs
    # Where nothing is merged, all packings fit as well as each other.
    is_shown = sum(_closeness(one) == _closeness(best) for one in tried) == 1
    packing = best.packing if len(tried) > 1 and is_shown else ()
    changed = {id(target.entry) for target in plan.targets if target.entry is not None}
    new = {target.name for target in plan.targets if target.entry is None}
    # All other differences: what the adapter does not explain.
    others: list[Row] = []
    for row in report.rows:
        if row.status not in DIFFERS:
            continue
        is_explained = row.name in new
        if row.before is not None:
            is_explained = id(row.before) in changed
        if not is_explained:
            others.append(row)
    tied = _tied_rows(others, plan, after)
    others = [row for row in others if id(row) not in tied]
    casts = [row for row in others if _is_cast(row)]
    rest = tuple((row.name, row.status) for row in others if row not in casts)
    types: set[tuple[str, str]] = set()
    for row in casts:
        if row.before and row.after:
            types.add((row.before.tensor.dtype.name, row.after.tensor.dtype.name))
    check = MergeCheck(
        adapter.path,
        pairs,
        best.wholes,
        rest,
        len(casts),
        tuple(sorted(types)),
        is_free,
        packing,
        tuple(entry.name for entry in adapter.left),
    )
    return report._replace(account=check)


def _tied_rows(
    rows: Sequence[Row],
    plan: Plan,
    after: dict[str, Entry | None],
) -> set[int]:
    """The ids of the rows of tensors that are a merged one under another name in BASE,
    and in MERGED too: they change together.
    """
    changed: dict[object, list[tuple[Target, TensorRef]]] = {}
    for target in plan.targets:
        ref = None if target.entry is None else unwrap_dtensor(target.entry.tensor)
        if isinstance(ref, TensorRef):
            changed.setdefault(ref.storage, []).append((target, ref))
    found: set[int] = set()
    for row in rows:
        if row.before is None or row.after is None:
            continue
        one, two = (unwrap_dtensor(side.tensor) for side in (row.before, row.after))
        if not isinstance(one, TensorRef) or not isinstance(two, TensorRef):
            continue
        for target, ref in changed.get(one.storage, ()):
            entry = after.get(target.name)
            other = None if entry is None else unwrap_dtensor(entry.tensor)
            # Both sides must share: a head may be tied in BASE and apart in MERGED.
            if not is_same_view(ref, one) or not isinstance(other, TensorRef):
                continue
            if other.shape == two.shape and _is_same(other, two):
                found.add(id(row))
    return found


class _Tried(NamedTuple):
    """The verdicts on all pairs, where tensors hold layers in one way."""

    packing: tuple[Packing, ...]
    plan: Plan
    pairs: tuple[PairCheck, ...]
    wholes: tuple[tuple[str, bool], ...]


def _try_plan(
    packing: tuple[Packing, ...],
    plan: Plan,
    after: dict[str, Entry | None],
    *,
    is_free: bool,
) -> _Tried:
    """Compare MERGED with what a plan makes."""
    checker = _Checker(plan, after, is_free=is_free)
    for target in plan.targets:
        checker.check(target)
    pairs = tuple(
        checker.pair_check(index, pair) for index, pair in enumerate(plan.pairs)
    )
    return _Tried(packing, plan, pairs, tuple(checker.wholes))


def _closeness(tried: _Tried) -> tuple[int, int]:
    """The number of pairs that are merged, and of those that are told from others."""
    verdicts = [pair.verdict for pair in tried.pairs]
    known = [verdict for verdict in verdicts if verdict not in ("other", "part")]
    return verdicts.count("merged"), len(known)


def _is_cast(row: Row) -> bool:
    """Tell whether a tensor is the same but for its dtype."""
    one = None if row.before is None else unwrap_dtensor(row.before.tensor)
    two = None if row.after is None else unwrap_dtensor(row.after.tensor)
    if row.status != "retyped":
        return False
    if not isinstance(one, TensorRef) or not isinstance(two, TensorRef):
        return False
    return one.shape == two.shape and _is_same(one, two)


def _is_same(one: TensorRef, two: TensorRef) -> bool:
    """Tell whether a tensor has the elements of another one, rounded to its own
    dtype.
    """
    if one.dtype == two.dtype:
        return same_bytes(elements(one), elements(two))
    if not can_cast(one.dtype, two.dtype):
        return False
    rounded = new_tensor(Computed(one, two.dtype), two.dtype, two.shape, None)
    return same_bytes(elements(rounded), elements(two))


class _Checker:
    """Gathers what becomes of each pair, tensor by tensor."""

    def __init__(
        self,
        plan: Plan,
        after: dict[str, Entry | None],
        *,
        is_free: bool,
    ) -> None:
        self._after = after
        self._is_free = is_free
        self._found: dict[int, list[tuple[Verdict, float]]] = {
            index: [] for index in range(len(plan.pairs))
        }
        self.wholes: list[tuple[str, bool]] = []

    def check(self, target: Target) -> None:
        """Compare a tensor of MERGED with what it would be."""
        entry = self._after.get(target.name)
        after = None if entry is None else unwrap_dtensor(entry.tensor)
        base = target.whole or target.entry
        ref = None if base is None else unwrap_dtensor(base.tensor)
        assert isinstance(ref, TensorRef)
        # A tensor that is replaced is compared by its bytes, whatever its dtype.
        is_number = isinstance(after, TensorRef) and after.dtype.name in AVERAGED
        if (
            not isinstance(after, TensorRef)
            or not (is_number or target.work is None)
            or after.shape != ref.shape
        ):
            self._note_all(target, "lacking" if entry is None else "other")
            return
        if target.work is None:
            self.wholes.append((target.name, _is_same(ref, after)))
            return
        if not target.work.steps:
            place = derived_place(ref, target.work, ref.dtype)
            made = new_tensor(place, ref.dtype, ref.shape, None)
            self.wholes.append((target.name, _is_same(made, after)))
            return
        self._check_terms(target, ref, after, target.work)

    def _note_all(self, target: Target, verdict: Verdict) -> None:
        if target.work is None or not target.work.steps:
            self.wholes.append((target.name, False))
            return
        for owner in {term.owner for step in target.work.steps for term in step.terms}:
            self._found[owner].append((verdict, 0.0))

    def _check_terms(
        self,
        target: Target,
        ref: TensorRef,
        after: TensorRef,
        work: Work,
    ) -> None:
        terms = [term for step in work.steps for term in step.terms]
        sums = _sum_terms(ref, after, work, terms)
        for term, total in zip(terms, sums, strict=True):
            verdict, scale = verdict_of(total, is_free=self._is_free)
            # A second pass over the tensor, for the terms alone that nothing else
            # explains.
            if verdict == "other" and self._is_transposed(ref, after, work, term):
                verdict = "transposed"
            self._found[term.owner].append((verdict, scale))

    def _is_transposed(
        self,
        ref: TensorRef,
        after: TensorRef,
        work: Work,
        term: Term,
    ) -> bool:
        """Tell whether the transposed product was added."""
        turned = term.turned
        has_lengths = any(step.magnitude is not None for step in work.steps)
        # The lengths of DoRA would be those of another product.
        if turned is None or has_lengths:
            return False
        steps = (products.Step(0, (turned,)),)
        turned_work = work._replace(steps=steps, replaced=())
        [total] = _sum_terms(ref, after, turned_work, [turned])
        return verdict_of(total, is_free=True)[0] in ("merged", "scaled", "twice")

    def pair_check(self, index: int, pair: Pair) -> PairCheck:
        """The verdict on a pair: the same for all of its parts, or `part`."""
        found = self._found[index]
        scale = pair.scale.value or 1.0
        verdicts = [verdict for verdict, _ in found]
        scales = [
            factor
            for verdict, factor in found
            if verdict in ("scaled", "twice", "merged")
        ]
        whole = verdicts.count("merged")
        verdict: Verdict = "part"
        if len(set(verdicts)) == 1:
            verdict = verdicts[0]
        factor = sum(scales) / len(scales) if scales else 0.0
        return PairCheck(
            pair.layer.name,
            pair.targets,
            verdict,
            scale,
            scale * factor,
            (whole, len(found)),
        )


# --- the sums over a tensor -----------------------------------------------------------

ELEMENTS = 1 << 15
"""Elements of a block of rows: several arrays of them stay in the cache."""


def _sum_terms(
    ref: TensorRef,
    after: TensorRef,
    work: Work,
    terms: Sequence[Term],
) -> list[Sums]:
    """The sums over the box of each term, of what changed and of what a merge changes.
    Threads read the blocks.
    """
    columns = max(1, work.columns)
    count = max(1, ELEMENTS // columns)
    spans = [
        (first, min(first + count, work.rows)) for first in range(0, work.rows, count)
    ]
    block_sums = partial(_block_sums, Computing(ref, work), ref, after, terms)
    # A stream is read from first to last, so threads would wait for each other.
    can_jump = can_cut(ref) and can_cut(after)
    parts = in_order(block_sums, spans) if can_jump else map(block_sums, spans)
    totals = [Sums() for _ in terms]
    for part in parts:
        for index, sums in part:
            totals[index] = totals[index].plus(sums)
    return totals


def _block_sums(
    computing: Computing,
    ref: TensorRef,
    after: TensorRef,
    terms: Sequence[Term],
    span: tuple[int, int],
) -> list[tuple[int, Sums]]:
    """The sums over some rows, for each term that has a part of them."""
    first, last = span
    boxes: list[tuple[int, tuple[slice, slice]]] = []
    for index, term in enumerate(terms):
        box = _term_box(term, first, last - first)
        if box is not None:
            boxes.append((index, box))
    if not boxes:
        return []
    rows = cast.Rows()
    columns = max(1, computing.work.columns)
    block = _row_bytes(ref, first * columns, last * columns)
    other = _row_bytes(after, first * columns, last * columns)
    # `values` may lie in the scratch memory of `rows`, which rounding uses again.
    before = computing.values(bytes(block), ref.dtype, rows).copy()
    expected = before.copy()
    computing.apply_counted(expected, first, rows)
    numbers = cast.as_numbers(other, after.dtype)
    found = numbers.astype(computing.kind).reshape(before.shape)
    # The codes of BASE in the dtype of MERGED: a cast alone is no change.
    if ref.dtype == after.dtype:
        old = _element_codes(block, ref.dtype)
    else:
        old = _round_codes(before, after.dtype)
    is_visible = (_round_codes(expected, after.dtype) != old).reshape(before.shape)
    is_kept = (_element_codes(other, after.dtype) == old).reshape(before.shape)
    bits = min(_BITS.get(one.dtype.name, 2) for one in (ref, after))
    return [
        (
            index,
            _box_sums(
                before[box],
                expected[box],
                found[box],
                bits,
                is_visible[box],
                is_kept[box],
            ),
        )
        for index, box in boxes
    ]


def _term_box(term: Term, first: int, count: int) -> tuple[slice, slice] | None:
    """The part of a term that is within some rows, or None."""
    begin, end = term.rows.cut(first, first + count)
    if begin >= end:
        return None
    low = term.rows.first + begin * term.rows.step - first
    rows = slice(low, low + (end - begin - 1) * term.rows.step + 1, term.rows.step)
    return rows, slice(term.columns.first, term.columns.end, term.columns.step)


def _box_sums(
    before: Array,
    expected: Array,
    found: Array,
    bits: int,
    is_visible: Array,
    is_kept: Array,
) -> Sums:
    """The sums over a box of a block."""
    import numpy as np

    is_lost = ~np.isfinite(expected)
    # An element that is infinite or NaN after a merge too tells nothing.
    if is_lost.any():
        is_lost &= (found == expected) | (np.isnan(found) & np.isnan(expected))
        before = np.where(is_lost, 0, before)
        expected = np.where(is_lost, 0, expected)
        found = np.where(is_lost, 0, found)
        is_visible = is_visible & ~is_lost
    with np.errstate(over="ignore", invalid="ignore"):
        return _finite_sums(before, expected, found, bits, is_visible, is_kept)


def _finite_sums(
    before: Array,
    expected: Array,
    found: Array,
    bits: int,
    is_visible: Array,
    is_kept: Array,
) -> Sums:
    """The sums over a box. One NaN makes them NaN."""
    import numpy as np

    change = found - before
    wanted = expected - before
    # The unit of the largest of the three: sums round at the size of what they add.
    size = np.maximum(np.abs(before), np.abs(found))
    np.maximum(size, np.abs(wanted), out=size)
    unit = _last_place_units(size, bits)
    # Not `>`: a comparison with NaN is false, and NaN is beyond.
    is_beyond = ~(np.abs(found - expected) <= unit)
    weighted = (wanted * unit).reshape(-1)
    change, wanted, unit = change.reshape(-1), wanted.reshape(-1), unit.reshape(-1)
    return Sums(
        int(change.size),
        dot_product(change, change),
        dot_product(change, wanted),
        dot_product(wanted, wanted),
        dot_product(unit, unit),
        dot_product(weighted, weighted),
        int(np.count_nonzero(is_visible)),
        int(np.count_nonzero(is_kept)),
        int(np.count_nonzero(is_beyond)),
    )


_BITS = {
    "float64": 52,
    "float32": 23,
    "float16": 10,
    "bfloat16": 7,
    "float8_e4m3fn": 3,
    "float8_e4m3fnuz": 3,
}
"""The bits of a mantissa; two for the others."""
_EXPONENT = 0x7F800000
"""The bits of the exponent of a float32."""


def _last_place_units(size: Array, bits: int) -> Array:
    """The unit in the last place of numbers of a size, in a type with so many bits of
    mantissa.
    """
    import numpy as np

    # The exponent without mantissa is the power of two at or below a number.
    powers = (size.astype("<f4").view("<u4") & np.uint32(_EXPONENT)).view("<f4")
    units: Array = powers.astype(size.dtype) * size.dtype.type(2.0**-bits)
    return units


def _round_codes(values: Array, dtype: DType) -> Array:
    """Numbers as the codes of a dtype."""
    data, _ = cast.round_numbers(values.reshape(-1), dtype, cast.Rows())
    return _element_codes(data, dtype)


def _element_codes(data: memoryview | bytes, dtype: DType) -> Array:
    """The bits of elements as numbers."""
    import numpy as np

    codes: Array = np.frombuffer(data, f"<u{dtype.bits // 8}")
    return codes


def _row_bytes(ref: TensorRef, first: int, last: int) -> memoryview:
    """The bytes of some elements of a tensor in the order of its shape."""
    width = ref.dtype.bits // 8
    data = memoryview(bytearray((last - first) * width))
    if is_dense(ref):
        fill_buffer(slice_of(ref, first, last), data)
    else:
        data[:] = _gather_bytes(ref)[first * width : last * width]
    return data


@lru_cache(maxsize=2)
def _gather_bytes(ref: TensorRef) -> memoryview:
    """The bytes of a tensor with other strides, which are gathered once."""
    return memoryview(b"".join(elements(ref)))
