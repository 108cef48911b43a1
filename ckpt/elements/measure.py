"""Statistics of one tensor and of the difference of two, block by block with numpy.
Blocks are added up in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ckpt.bytes.executor import Task
from ckpt.elements import double, single
from ckpt.elements.blocks import slice_of
from ckpt.elements.cast import as_numbers
from ckpt.elements.crc import combine_crcs
from ckpt.elements.histogram import Histogram, join_histograms
from ckpt.elements.lines import LineSums, OddLines
from ckpt.elements.spans import cut_spans, numbered_blocks, refuse_unfolded
from ckpt.model.dtypes import DType
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Difference:
    """The difference of two tensors of one shape, added up block by block.

    `differing` counts elements with different values; NaN equals NaN. `other_bytes`
    counts equal values with different bytes (-0.0 and 0.0, another NaN). `largest` is
    max |Δ| over finite elements, `at` its index in the order of the blocks. `squares`
    is the sum of Δ², `reference` the sum of the squared elements before, both over
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
        self.lines: LineSums | None = None
        """The sums of its rows and columns while it is added up, if requested."""
        self.odd: OddLines | None = None
        """The rows and columns that the base does not have, if requested."""
        self.seen: object = None
        """The answer of `LineTest.look`, if there is one."""

    def add(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        dtypes: tuple[DType, DType],
        tolerance: tuple[float, float] | None,
    ) -> None:
        """Add the next elements of both. `tolerance` is (absolute, relative)."""
        import numpy as np

        if self.histogram is not None:
            self.histogram.add_change(before, after, dtypes)
        # Rows 0 and 1 of the thread: neither takes the memory of the other.
        old = as_numbers(before, dtypes[0], 0)
        new = as_numbers(after, dtypes[1], 1)
        apart = None if self.lines is None else self.lines.add(old, new)
        with np.errstate(all="ignore"):
            found = None
            # float32 is twice as fast. It gives up where it would not be exact enough.
            if all(map(single.is_held_by_float32, dtypes)):
                is_exact = single.has_exact_differences(*dtypes)
                found = single.measure_delta(
                    old, new, self.largest, tolerance, is_exact=is_exact, apart=apart
                )
            if found is None:
                found = double.measure_delta(old, new, self.largest, tolerance)
        if found.at is not None:
            self.largest = found.largest
            self.at = self.numel + found.at
        self.numel += len(old)
        self.differing += found.differing
        # If all values differ, all bytes differ too.
        if dtypes[0] == dtypes[1] and found.differing != len(old):
            unequal = _unequal_bytes(before, after, dtypes[0])
            self.other_bytes += unequal - found.differing
        self._add_sums(
            found.squares, found.reference, found.nan, found.inf, close=found.close
        )

    def settle(self) -> None:
        """Bring the histogram up to date, after the last block."""
        if self.histogram is not None:
            self.histogram.settle()

    def merge(self, later: Difference) -> None:
        """Add the difference of the elements that follow."""
        # Of equal ones the first stays, so that the index is the same for any spans.
        if later.largest > self.largest and later.at is not None:
            self.largest = later.largest
            self.at = self.numel + later.at
        self.numel += later.numel
        self.differing += later.differing
        self.other_bytes += later.other_bytes
        self._add_sums(
            later.squares, later.reference, later.nan, later.inf, close=later.close
        )
        self.histogram = join_histograms(self.histogram, later.histogram)

    def _add_sums(
        self,
        squares: float,
        reference: float,
        nan: Sequence[int],
        inf: Sequence[int],
        *,
        close: bool,
    ) -> None:
        self.squares += squares
        self.reference += reference
        self.nan = [first + second for first, second in zip(self.nan, nan, strict=True)]
        self.inf = [first + second for first, second in zip(self.inf, inf, strict=True)]
        self.close = self.close and close


def _unequal_bytes(
    before: bytes | memoryview, after: bytes | memoryview, dtype: DType
) -> int:
    """The number of elements whose bytes differ."""
    import numpy as np

    width = dtype.bits // 8
    if width in (1, 2, 4, 8):
        old = np.frombuffer(before, f"u{width}")
        new = np.frombuffer(after, f"u{width}")
        return int(np.count_nonzero(old != new))
    # An element of 16 bytes differs if one of its halves does.
    changed = np.frombuffer(before, "u8") != np.frombuffer(after, "u8")
    return int(np.count_nonzero(changed.reshape(-1, width // 8).any(axis=1)))


# --- numbers of one tensor ------------------------------------------------------------


class Summary:
    """Statistics of a tensor, added up block by block. Sums are in float64, over finite
    elements.

    Complex elements count by their magnitude. `low` and `high` are None until there is
    a finite element.
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

    def add(self, block: bytes | memoryview, dtype: DType) -> None:
        """Add the next elements."""
        import numpy as np

        values = as_numbers(block, dtype)
        with np.errstate(all="ignore"):
            if dtype.kind == "complex":
                values = np.abs(values)
            found = None
            # float32 is twice as fast. It gives up where it would not be exact enough.
            if single.is_held_by_float32(dtype):
                found = single.measure_moments(values)
            if found is None:
                found = double.measure_moments(values)
        self.numel += len(values)
        self._add_figures(found)
        if not found.finite:
            return
        if self.histogram is None or self.low is None or self.high is None:
            return
        finite = values
        if found.finite != len(values):
            finite = values[np.isfinite(values)]
        self.histogram.add(finite, self.low, self.high)

    def settle(self) -> None:
        """Bring the histogram up to date, after the last block."""
        if self.histogram is not None:
            self.histogram.settle()

    def merge(self, later: Summary) -> None:
        """Add the statistics of the elements that follow."""
        self.numel += later.numel
        self._add_figures(later)
        self.histogram = join_histograms(self.histogram, later.histogram)

    def _add_figures(self, part: double.Moments | Summary) -> None:
        self.zeros += part.zeros
        self.nan += part.nan
        self.inf += part.inf
        self.squares += part.squares
        if not part.finite or part.low is None or part.high is None:
            return
        self.low = part.low if self.low is None else min(self.low, part.low)
        self.high = part.high if self.high is None else max(self.high, part.high)
        # Parts with means of their own are joined as Chan, Golub and LeVeque (1979) do:
        # of the sum of squares less the squared mean, all digits would cancel where the
        # mean is large.
        apart = part.mean - self.mean
        both = self.finite + part.finite
        self.spread += part.spread + apart * apart * self.finite * part.finite / both
        self.mean += apart * part.finite / both
        self.finite = both

    def repeated(self, times: int) -> None:
        """Count every element `times` times."""
        self.numel *= times
        self.finite *= times
        self.zeros *= times
        self.nan *= times
        self.inf *= times
        self.squares *= times
        self.spread *= times
        if self.histogram is not None:
            self.histogram.repeated(times)


class Measurement(NamedTuple):
    """The statistics of a tensor, the sums of its channels and the CRC-32 of its bytes,
    where they were requested.
    """

    summary: Summary
    channels: Channels | None = None
    crc: tuple[int, int] | None = None
    """The CRC-32 of its bytes, and how many they are."""


def measure_tasks(
    ref: TensorRef,
    layout: ChannelLayout | None = None,
    *,
    histogram: bool = False,
    crc: bool = False,
) -> list[Task[Measurement]]:
    """The tasks for the statistics of a tensor, with its histogram and its CRC where
    requested.

    Raises UnsupportedError for a tensor that expands too far.
    """
    if not ref.numel:
        return []
    refuse_unfolded(ref)
    tasks: list[Task[Measurement]] = []
    for first, last in cut_spans(ref):
        part = slice_of(ref, first, last)
        arguments = (part, layout, first, histogram, crc)
        tasks.append(Task(measure_span, arguments, part.nbytes))
    return tasks


def measure_span(
    ref: TensorRef,
    layout: ChannelLayout | None,
    first: int,
    histogram: bool = False,
    crc: bool = False,
) -> Measurement:
    """The statistics of a part of a tensor. Its first element is number `first` of the
    tensor with the channels.
    """
    summary = Summary()
    summary.histogram = Histogram() if histogram else None
    channels = None
    if layout is not None:
        channels = Channels(layout.channels, layout.inner, first)
    checksum = 0
    for block in numbered_blocks(ref, 2):
        summary.add(block, ref.dtype)
        if channels is not None:
            channels.add(block, ref.dtype)
        if crc:
            checksum = crc32(block, checksum)
    summary.settle()
    return Measurement(summary, channels, (checksum, ref.nbytes) if crc else None)


def merge_measurements(parts: Sequence[Measurement]) -> Measurement:
    """Merge the measurements of the parts of a tensor, in order."""
    if not parts:
        return Measurement(Summary())
    summary, channels, crc = parts[0]
    for part in parts[1:]:
        if crc is not None and part.crc is not None:
            crc = combine_crcs(crc[0], *part.crc), crc[1] + part.crc[1]
        summary.merge(part.summary)
        if channels is not None and part.channels is not None:
            channels.merge(part.channels)
    return Measurement(summary, channels, crc)


class Channels:
    """The sum of the magnitudes of each channel. In the order of the shape, `inner`
    elements in a row share a channel.

    `first` is the number of the first element that is added.
    """

    def __init__(self, count: int, inner: int, first: int = 0) -> None:
        import numpy as np

        self.sums = np.zeros(count)
        self._inner = inner
        self._at = first

    def __reduce__(self) -> tuple[object, ...]:
        # A span has elements of few channels: the others have no place in what goes to
        # another process.
        return _rebuild_channels, (
            len(self.sums),
            self._inner,
            self._at,
            *self.window(),
        )

    def window(self) -> tuple[int, list[float]]:
        """The first channel whose sum is not zero, and the sums from there to the last
        such one.
        """
        used = self.sums.nonzero()[0]
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        return first, self.sums[first:last].tolist()

    def merge(self, later: Channels) -> None:
        """Add the sums of other elements."""
        self.sums += later.sums

    def add(self, block: bytes | memoryview, dtype: DType) -> None:
        """Add the next elements."""
        import numpy as np

        values = as_numbers(block, dtype)
        sizes = np.abs(values).astype("f8")
        # The number of the first channel that begins in this block, and where each
        # channel begins. The block may begin within the one before.
        number = -(-self._at // self._inner)
        starts = np.arange(number * self._inner - self._at, len(sizes), self._inner)
        if not len(starts) or starts[0]:
            starts = np.concatenate(([0], starts))
            number -= 1
        sums = np.add.reduceat(sizes, starts)
        # The channels come again for each index of the dimensions before them. `add.at`
        # adds to one channel several times, which an index with `+=` does not.
        channels = (number + np.arange(len(sums))) % len(self.sums)
        np.add.at(self.sums, channels, sums)
        self._at += len(sizes)


def _rebuild_channels(
    count: int, inner: int, inner_first: int, first: int, sums: list[float]
) -> Channels:
    """The channels that came from another process."""
    channels = Channels(count, inner, inner_first)
    channels.sums[first : first + len(sums)] = sums
    return channels


class ChannelLayout(NamedTuple):
    """The channels of a weight: their number, and how many elements in a row belong to
    one (`inner`).
    """

    channels: int
    inner: int
