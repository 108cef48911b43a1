"""The sums of the channels of a weight, added up block by block with numpy."""

from __future__ import annotations

from ckpt.dtypes import DType
from ckpt.elements.cast import numbers
from ckpt.rows import NamedTuple


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


def _channels(count: int, inner: int, at: int, first: int, sums: list[float]) -> Channels:
    """The channels that came from another process."""
    made = Channels(count, inner, at)
    made.sums[first : first + len(sums)] = sums
    return made


class ChannelLayout(NamedTuple):
    """The channels of a weight: their number, and how many elements in a row belong to one (`inner`)."""

    channels: int
    inner: int
