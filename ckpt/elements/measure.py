"""Statistics of one tensor and of the difference of two, block by block with numpy. Sums are in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ckpt.dtypes import DType
from ckpt.elements.blocks import slice_of
from ckpt.elements.cast import numbers, scratch
from ckpt.elements.histogram import Histogram, halved, joined
from ckpt.elements.pairs import (
    FEWEST,
    Codes,
    Delta,
    Pairs,
    counts_codes,
    delta_of,
    distance,
    dot,
    unequal_bytes,
    wide_of,
    widened,
)
from ckpt.elements.spans import cuts, numbered_blocks, refuse_unfolded
from ckpt.io.executor import Task
from ckpt.rows import NamedTuple
from ckpt.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


_COMPLEX = 1 << 15
"""Complex elements per step, so that their parts stay in the cache."""


class Difference:
    """The difference of two tensors of one shape, added up block by block. Sums are in float64.

    `differing` counts elements with different values; NaN equals NaN. `other_bytes` counts equal values with
    different bytes (-0.0 and 0.0, another NaN). `largest` is max |Δ| over finite elements, `at` its index in the
    order of the blocks. `squares` is the sum of Δ², `reference` the sum of the squared elements before, both over
    finite elements.
    """

    def __init__(self) -> None:
        self.numel = 0
        self.differing = 0
        self.other_bytes = 0
        self.largest = 0.0
        self.at: int | None = None
        self.squares = 0.0
        self.reference = 0.0
        self.nan = [0, 0]
        self.inf = [0, 0]
        self.close = True
        self.histogram: Histogram | None = None
        """The histogram of the finite Δ, if it was requested."""

    _pairs: Pairs | None = None

    def add(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        dtypes: tuple[DType, DType],
        tolerance: tuple[float, float] | None,
    ) -> None:
        """Add the next elements of both. `tolerance` is (absolute, relative)."""
        import numpy as np

        count = len(before) * 8 // dtypes[0].bits
        if dtypes[0].kind == "complex" and count > _COMPLEX:
            for position in range(0, count, _COMPLEX):
                ends = [
                    slice(position * dtype.bits // 8, (position + _COMPLEX) * dtype.bits // 8)
                    for dtype in dtypes
                ]
                self.add(memoryview(before)[ends[0]], memoryview(after)[ends[1]], dtypes, tolerance)
            return
        if self.histogram is not None:
            self.histogram.add_change(before, after, dtypes)
        if self._pairs is None and count >= FEWEST and counts_codes(*dtypes):
            self._pairs = Pairs(dtypes, tolerance, self.numel)
        if self._pairs is not None:
            self._pairs.add(before, after)
            self.numel += count
            return
        with np.errstate(all="ignore"):
            delta = delta_of(before, after, dtypes, self.largest, tolerance)
            if delta is None:
                self._add_any(before, after, dtypes, tolerance)
            else:
                self._add_found(delta)
                # If all finite values differ, all bytes differ too.
                if dtypes[0] == dtypes[1] and delta.differing != count:
                    self.other_bytes += unequal_bytes(before, after, dtypes[0]) - delta.differing
        self.numel += count

    def settle(self) -> None:
        """Take over what was counted, after the last block."""
        if self.histogram is not None:
            self.histogram.settle()
        if self._pairs is None:
            return
        pairs = self._pairs
        del self._pairs  # what is left are numbers
        result = pairs.result()
        if pairs.at is not None and pairs.largest > self.largest:
            self.largest, self.at = pairs.largest, pairs.at
        self.differing += result.differing
        self.other_bytes += result.other_bytes
        self.squares += result.squares
        self.reference += result.reference
        self.nan = [first + second for first, second in zip(self.nan, result.nan, strict=True)]
        self.inf = [first + second for first, second in zip(self.inf, result.inf, strict=True)]
        self.close &= result.close

    def merge(self, later: Difference) -> None:
        """Add the difference of the elements that follow."""
        if later.largest > self.largest and later.at is not None:
            self.largest, self.at = later.largest, self.numel + later.at
        self.numel += later.numel
        self.differing += later.differing
        self.other_bytes += later.other_bytes
        self.squares += later.squares
        self.reference += later.reference
        self.nan = [first + second for first, second in zip(self.nan, later.nan, strict=True)]
        self.inf = [first + second for first, second in zip(self.inf, later.inf, strict=True)]
        self.close = self.close and later.close
        self.histogram = joined(self.histogram, later.histogram)

    def _add_found(self, delta: Delta) -> None:
        if delta.at is not None and delta.largest > self.largest:
            self.largest, self.at = delta.largest, self.numel + delta.at
        self.differing += delta.differing
        self.squares += delta.squares
        self.reference += delta.reference
        self.close &= delta.close

    def _add_any(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        dtypes: tuple[DType, DType],
        tolerance: tuple[float, float] | None,
    ) -> None:
        """Any numbers. NaN on both sides does not differ."""
        import numpy as np

        old, new = numbers(before, dtypes[0], 0), numbers(after, dtypes[1], 1)
        unequal = old != new
        for side, values in enumerate((old, new)):
            if values.dtype.kind in "fc":
                self.nan[side] += int(np.count_nonzero(np.isnan(values)))
                self.inf[side] += int(np.count_nonzero(np.isinf(values)))
        if old.dtype.kind in "fc" and new.dtype.kind in "fc":
            nan = np.isnan(old) & np.isnan(new)
            unequal = unequal & ~nan
        wide = wide_of(old)
        if unequal.any():
            delta = distance(old, new, wide)
            finite = np.isfinite(delta)
            delta[~finite] = 0.0
            place = int(np.argmax(delta))
            if float(delta[place]) > self.largest:
                self.largest, self.at = float(delta[place]), self.numel + place
            self.squares += dot(delta, delta)
            if tolerance is not None:
                allowed = tolerance[0] + tolerance[1] * np.abs(wide)
                self.close &= not bool(np.any(unequal & ~(finite & (delta <= allowed))))
        size = np.abs(wide)
        size[~np.isfinite(size)] = 0.0
        self.reference += dot(size, size)
        differing = int(np.count_nonzero(unequal))
        self.differing += differing
        if dtypes[0] == dtypes[1]:
            self.other_bytes += unequal_bytes(before, after, dtypes[0]) - differing


# --- numbers of one tensor --------------------------------------------------------------------------------------------


class Summary:
    """Statistics of a tensor, added up block by block. Sums are in float64, over finite elements.

    Complex elements count by their magnitude. `low` and `high` are None until there is a finite element.
    """

    def __init__(self) -> None:
        self.numel = 0
        self.finite = 0
        self.low: float | int | None = None
        self.high: float | int | None = None
        self.mean = 0.0
        self.spread = 0.0
        """The sum of the squared distances from the mean."""
        self.squares = 0.0
        self.zeros = 0
        self.nan = 0
        self.inf = 0
        self.histogram: Histogram | None = None
        """The histogram of the finite elements, if it was requested."""

    _codes: Codes | None = None

    def add(self, block: bytes | memoryview, dtype: DType) -> None:
        """Add the next elements."""
        import numpy as np

        if self._codes is None and dtype.bits == 8 and len(block) >= FEWEST:
            self._codes = Codes(dtype)
        if self._codes is not None:
            self._codes.add(block)
            self.numel += len(block)
            return
        with np.errstate(all="ignore"):
            if dtype.kind == "complex":
                values = np.abs(numbers(block, dtype))
                wide = scratch().wide(0, len(values))
                np.copyto(wide, values)
            else:
                wide = widened(block, dtype, 0)
                values = wide if dtype.kind == "float" else numbers(block, dtype)
            self.numel += len(values)
            total = dot(wide, scratch().ones(len(wide)))  # a third of the time of sum()
            if not np.isfinite(total):
                nan, inf = np.isnan(wide), np.isinf(wide)
                self.nan += int(np.count_nonzero(nan))
                self.inf += int(np.count_nonzero(inf))
                values = wide = wide[~(nan | inf)]
                total = float(wide.sum())
            if len(values):
                self._add_finite(values, wide, total)
                if self.histogram is not None and self.low is not None and self.high is not None:
                    self.histogram.add(halved(values, block, dtype), self.low, self.high)

    def settle(self) -> None:
        """Take over what was counted, after the last block."""
        import numpy as np

        if self.histogram is not None:
            self.histogram.settle()
        if self._codes is None:
            return
        values, counts = self._codes.counts()
        del self._codes  # what is left are numbers
        if values.dtype.kind == "f":
            self.nan += int(counts[np.isnan(values)].sum())
            self.inf += int(counts[np.isinf(values)].sum())
            is_finite = np.isfinite(values)
            values, counts = values[is_finite], counts[is_finite]
        self.zeros += int(counts[values == 0].sum())
        if not len(values):
            return
        if self.histogram is not None:
            self.histogram.weigh(values, counts)
        self._widen(values.min().item(), values.max().item())
        wide, weights, count = values.astype("f8"), counts.astype("f8"), int(counts.sum())
        self.squares += dot(weights, wide * wide)
        mean = dot(weights, wide) / count
        self._join(count, mean, dot(weights, (wide - mean) ** 2))

    def _widen(self, low: float, high: float) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def _add_finite(self, values: Array, wide: Array, total: float) -> None:
        import numpy as np

        low, high = values.min().item(), values.max().item()
        self._widen(low, high)
        if low <= 0 <= high:
            self.zeros += int(np.count_nonzero(values == 0))
        squares, mean = dot(wide, wide), total / len(wide)
        self.squares += squares
        # The sum of the squared distances from the mean. Where the mean is large beside them, this loses digits.
        spread = squares - total * mean
        if not spread > squares / 64:
            delta = np.subtract(wide, mean, out=scratch().wide(1, len(wide)))
            spread = dot(delta, delta)
        self._join(len(wide), mean, spread)

    def _join(self, count: int, mean: float, spread: float) -> None:
        """Add a part with its own mean (Chan, Golub and LeVeque 1979)."""
        apart, both = mean - self.mean, self.finite + count
        self.spread += spread + apart * apart * self.finite * count / both
        self.mean += apart * count / both
        self.finite = both

    def merge(self, later: Summary) -> None:
        """Add the statistics of the elements that follow."""
        self.numel += later.numel
        self.zeros += later.zeros
        self.nan += later.nan
        self.inf += later.inf
        self.histogram = joined(self.histogram, later.histogram)
        if later.low is None or later.high is None:
            return
        self.low = later.low if self.low is None else min(self.low, later.low)
        self.high = later.high if self.high is None else max(self.high, later.high)
        self.squares += later.squares
        self._join(later.finite, later.mean, later.spread)

    def repeated(self, times: int) -> None:
        """Count every element `times` times."""
        self.numel *= times
        self.finite *= times
        self.zeros *= times
        self.nan *= times
        self.inf *= times
        self.spread *= times
        self.squares *= times
        if self.histogram is not None:
            self.histogram.repeated(times)


class Measurement(NamedTuple):
    """The statistics of a tensor, and the sums of its channels if they were requested."""

    summary: Summary
    channels: Channels | None = None


def measure_tasks(
    ref: TensorRef, layout: ChannelLayout | None = None, *, histogram: bool = False
) -> list[Task[Measurement]]:
    """The tasks for the statistics of a tensor, with its histogram where requested. Raises UnsupportedError for a tensor that expands too far."""
    if not ref.numel:
        return []
    refuse_unfolded(ref)
    return [
        Task(measure_span, (part, layout, first, histogram), part.nbytes)
        for first, last in cuts(ref)
        for part in (slice_of(ref, first, last),)
    ]


def measure_span(
    ref: TensorRef, layout: ChannelLayout | None, first: int, histogram: bool = False
) -> Measurement:
    """The statistics of a part of a tensor. Its first element is number `first` of the tensor with the channels."""
    summary = Summary()
    summary.histogram = Histogram() if histogram else None
    channels = None if layout is None else Channels(layout.channels, layout.inner, first)
    for block in numbered_blocks(ref, 2):
        summary.add(block, ref.dtype)
        if channels is not None:
            channels.add(block, ref.dtype)
    summary.settle()
    return Measurement(summary, channels)


def merged(parts: Sequence[Measurement]) -> Measurement:
    """Merge the measurements of the parts of a tensor, in order."""
    if not parts:
        return Measurement(Summary())
    first = parts[0]
    for part in parts[1:]:
        first.summary.merge(part.summary)
        if first.channels is not None and part.channels is not None:
            first.channels.merge(part.channels)
    return first


class Channels:
    """The sum of the magnitudes of each channel. In the order of the shape, `inner` elements in a row share a channel.

    `first` is the number of the first element that is added.
    """

    def __init__(self, count: int, inner: int, first: int = 0) -> None:
        import numpy as np

        self.sums = np.zeros(count)
        self._inner = inner
        self._at = first

    def __reduce__(self) -> tuple[object, ...]:
        # A span has elements of few channels: the others have no place in what goes to another process.
        return _channels, (len(self.sums), self._inner, self._at, *self.window())

    def window(self) -> tuple[int, list[float]]:
        """The first channel whose sum is not zero, and the sums from there to the last such one."""
        used = self.sums.nonzero()[0]
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        return first, self.sums[first:last].tolist()

    def merge(self, later: Channels) -> None:
        """Add the sums of other elements."""
        self.sums += later.sums

    def add(self, block: bytes | memoryview, dtype: DType) -> None:
        """Add the next elements."""
        import numpy as np

        values = numbers(block, dtype)
        sizes = np.abs(values).astype("f8")
        first = -(-self._at // self._inner)
        starts = np.arange(first * self._inner - self._at, len(sizes), self._inner)
        if not len(starts) or starts[0]:
            starts = np.concatenate(([0], starts))
            first -= 1
        sums = np.add.reduceat(sizes, starts)
        np.add.at(self.sums, (first + np.arange(len(sums))) % len(self.sums), sums)
        self._at += len(sizes)


def _channels(count: int, inner: int, inner_first: int, first: int, sums: list[float]) -> Channels:
    """The channels that came from another process."""
    channels = Channels(count, inner, inner_first)
    channels.sums[first : first + len(sums)] = sums
    return channels


class ChannelLayout(NamedTuple):
    """The channels of a weight: their number, and how many elements in a row belong to one (`inner`)."""

    channels: int
    inner: int
