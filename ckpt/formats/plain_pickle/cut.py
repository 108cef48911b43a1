"""Cuts the long bytes out of a pickle: the rest is small, and arrays stay ranges of the file.

Each run of more than KEPT bytes becomes a persistent id, the number of its range; a plain pickle has none of its own.
Frames are left out, for they say nothing else than where to read next. Opcodes: Lib/pickletools.py of CPython.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import pack

from ckpt.errors import CutOffError, LimitError, UnreadableError
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits
from ckpt.pickles import opcodes as op
from ckpt.pickles.machine import LINE_BYTES
from ckpt.rows import NamedTuple

KEPT = 255
"""The most bytes of a run that stays in the pickle."""
JOBLIB = b"joblib.numpy_pickle"
"""The module whose arrays follow their description, between two opcodes."""
_CHUNK = 1 << 14
_LONGEST = 9  # an opcode and the length of what follows
_RUNS = {op.BINBYTES: 4, op.BINBYTES8: 8, op.BYTEARRAY8: 8, op.BINSTRING: 4}
"""Opcodes of bytes that may be long -> the width of their length."""
_TEXTS = {
    op.BINUNICODE: 4,
    op.BINUNICODE8: 8,
    op.LONG4: 4,
    **dict.fromkeys((op.SHORT_BINUNICODE, op.SHORT_BINSTRING, op.SHORT_BINBYTES, op.LONG1), 1),
}
_LINES = {
    **dict.fromkeys((op.GLOBAL, op.INST), 2),
    **dict.fromkeys((op.INT, op.LONG, op.FLOAT, op.STRING, op.UNICODE, op.GET, op.PUT), 1),
}
_OTHERS = frozenset((*_RUNS, *_TEXTS, *_LINES, op.FRAME, op.PERSID, op.BINPERSID))
_FIXED = {code: 1 + op.ARGUMENT_BYTES.get(code, 0) for code in range(256) if code not in _OTHERS}


class Run(NamedTuple):
    """A run of bytes in the file. `code` is the opcode that pushes them."""

    code: int
    offset: int
    size: int


class Cutter:
    """One pickle, cut from front to back. `out` is what is left of it so far, `runs` are its long bytes.

    Raises CutOffError, LimitError; UnreadableError for a pickle with persistent ids.
    """

    def __init__(self, source: Source, limits: Limits, budget: Budget) -> None:
        self.out = bytearray()
        self.runs: list[Run] = []
        self.has_joblib = False
        self._source = source
        self._limits = limits
        self._budget = budget
        self._left = budget.operations
        self._data = b""
        self._base = 0
        self._at = 0
        self._from: list[int] = []
        self._to: list[int] = []

    @property
    def position(self) -> int:
        """The offset in the file of what comes next."""
        return self._base + self._at

    def original(self, offset: int) -> int:
        """The offset in the file of a byte of `out`."""
        index = bisect_right(self._from, offset) - 1
        return offset if index < 0 else self._to[index] + offset - self._from[index]

    def skip_to(self, position: int) -> None:
        """Go on at an offset of the file: raw bytes of an array lie before it."""
        if position > self._source.size:
            size = self._source.size
            raise CutOffError(f"cut off: an array needs bytes up to {position:,}, the file ends at {size:,}")
        self._seek(position)

    def cut(self) -> None:
        """Cut up to the end of the pickle, or past the next BUILD once joblib was named. What is missing is left out."""
        before = len(self.out)
        try:
            self._cut()
        finally:
            added = len(self.out) - before
            self._budget.hold(added)
        self._budget.charge(2 * added, "a pickle")

    def _cut(self) -> None:
        start = self._at
        for count in range(self._left):
            if self._at + _LONGEST > len(self._data) and self._more():
                start = self._flush(start)
                self._fill(_LONGEST)
                start = self._at
            if self._at >= len(self._data):
                self._flush(start)
                return
            code = self._data[self._at]
            size = _FIXED.get(code)
            if size is not None:
                self._at = min(self._at + size, len(self._data))
                if code == op.STOP or (code == op.BUILD and self.has_joblib):
                    self._left -= count + 1
                    self._flush(start)
                    return
            elif code in (op.PERSID, op.BINPERSID):
                raise UnreadableError("a plain pickle with persistent ids, which pickle.load refuses")
            elif code == op.FRAME:
                self._flush(start)
                self._at = start = min(self._at + 9, len(self._data))
            elif code in _LINES:
                start = self._lines(code, start)
            else:
                start = self._counted(code, start)
        raise LimitError("a pickle has too many operations", "operations", self._limits.operations)

    def _counted(self, code: int, start: int) -> int:
        """Keep or cut an opcode with the length of its bytes. Returns where the bytes that are kept begin."""
        width = _RUNS.get(code) or _TEXTS[code]
        head = self._at + 1 + width
        size = int.from_bytes(self._data[self._at + 1 : head], "little")
        if head > len(self._data):
            self._at = len(self._data)
            return start
        if code in _RUNS and size > KEPT:
            offset = self._base + head
            if offset + size > self._source.size:
                end = self._source.size
                problem = f"cut off: the pickle needs bytes {offset:,} to {offset + size:,}, the file ends at {end:,}"
                raise CutOffError(problem)
            self._flush(start)
            self.out += b"J" + pack("<i", len(self.runs)) + b"Q"
            self.runs.append(Run(code, offset, size))
            self._seek(offset + size)
            return self._at
        if head + size > len(self._data):
            if self._base + head + size > self._source.size:
                self._at = len(self._data)
                return start
            self._room(size)
            start = self._flush(start)
            self._fill(1 + width + size)
            start, head = self._at, self._at + 1 + width
        if size == len(JOBLIB) and self._data[head : head + size] == JOBLIB:
            self.has_joblib = True
        self._at = head + size
        return start

    def _lines(self, code: int, start: int) -> int:
        """Keep an opcode with lines of text. An endless line is kept in part: the machine refuses it."""
        end = self._at + 1
        for _ in range(_LINES[code]):
            found = self._data.find(b"\n", end, end + LINE_BYTES)
            if found < 0 and len(self._data) - self._at <= 2 * LINE_BYTES and self._more():
                self._flush(start)
                self._fill(2 * LINE_BYTES + 1)
                return self._lines(code, self._at)
            if found < 0:
                self._at = min(len(self._data), end + LINE_BYTES)
                return start
            if self._data[end:found] == JOBLIB:
                self.has_joblib = True
            end = found + 1
        self._at = end
        return start

    def _flush(self, start: int) -> int:
        """Move what was read since `start` to `out`."""
        if self._at > start:
            self._room(self._at - start)
            self._from.append(len(self.out))
            self._to.append(self._base + start)
            self.out += self._data[start : self._at]
        return self._at

    def _room(self, more: int) -> None:
        if len(self.out) + more > self._limits.pickle_bytes:
            raise LimitError("the pickle is too long", "pickle-bytes", self._limits.pickle_bytes)

    def _more(self) -> bool:
        return self._base + len(self._data) < self._source.size

    def _fill(self, least: int) -> None:
        self._seek(self._base + self._at, least)

    def _seek(self, position: int, least: int = 0) -> None:
        """Read on at an offset of the file; bytes that were read already are kept."""
        inside = position - self._base
        if 0 <= inside <= len(self._data) and len(self._data) - inside >= least and inside < len(self._data):
            self._at = inside
            return
        left = self._source.size - position
        self._data = self._source.read(position, min(left, max(_CHUNK, least)))
        self._base, self._at = position, 0
