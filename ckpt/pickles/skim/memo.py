"""The memo of a pickle of which parts were skimmed: their slots are filled when an opcode asks for them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable

from ckpt.columns import field, unpacked
from ckpt.pickles.machine import Made


class SkimmedMemo(dict[int, Made]):
    """The memo of the machine. `find` knows what lies in the slots of the runs that were skimmed.

    A run is (first slot, one past the last). They ascend, and no two overlap.
    """

    def __init__(self, find: Callable[[int], Made]) -> None:
        super().__init__()
        self._find = find
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __missing__(self, slot: int) -> Made:
        if not self.is_skimmed(slot):
            raise KeyError(slot)
        return self._find(slot)

    @property
    def end(self) -> int:
        """One past the last skimmed slot."""
        return self._ends[-1] if self._ends else 0

    def add_run(self, start: int, end: int) -> None:
        """Let the slots of a run be found."""
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = end
        elif start < end:
            self._starts.append(start)
            self._ends.append(end)

    def is_skimmed(self, slot: int) -> bool:
        """Whether a slot lies in a run."""
        at = bisect_right(self._starts, slot) - 1
        return at >= 0 and slot < self._ends[at]

    @property
    def is_exact(self) -> bool:
        """Whether no opcode filled a slot of a run. One that did so before the run would have filled it for good."""
        return not self._ends or not any(map(self.is_skimmed, self))


def consecutive(start: int, end: int) -> list[bytes]:
    """The four bytes of each number from `start` up to `end`, the lowest first: all first bytes, all second bytes, …"""
    columns: list[bytes] = []
    for width in (1, 1 << 8, 1 << 16, 1 << 24):
        runs = range(start // width, (end - 1) // width + 1) if start < end else range(0)
        if width == 1:
            column = bytes(range(256)) * (len(runs) // 256 + 2)
            columns.append(column[start % 256 :][: end - start])
        else:
            sizes = (min(end, (run + 1) * width) - max(start, run * width) for run in runs)
            columns.append(
                b"".join([bytes((run & 0xFF,)) * size for run, size in zip(runs, sizes, strict=True)])
            )
    return columns


def puts(start: int, end: int) -> bytes:
    """The opcodes that fill slots of the memo from `start` up to `end`."""
    out = bytearray(b"r....") * (end - start)
    for byte, column in enumerate(consecutive(start, end), 1):
        out[byte::5] = column
    return bytes(out)


def slots(opcodes: bytes) -> array[int]:
    """The slots that opcodes fill."""
    return unpacked("I", field(opcodes, 1, 4, 5))


def getting(slot: int) -> bytes:
    """The opcode that pushes a slot of the memo."""
    return b"h%c" % slot if slot < 256 else b"j" + slot.to_bytes(4, "little")
