"""Reading what repeats in a large pickle by regular expressions, where the machine would execute each opcode.

Here are the idioms, and the memo of a pickle of which parts were skimmed: its slots are filled when an opcode asks for
them.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from ckpt.columns import field, unpacked
from ckpt.nodes import Global, Opaque, PersistentId
from ckpt.pickles.machine import Made
from ckpt.rows import NamedTuple

NUMBER = rb"(?:K.|M..|J....)"
GET = rb"(?:h.|j....)"
PUT = rb"r...."
TUPLE = rb"(?:\)|" + NUMBER + rb"{1,3}[\x85-\x87]|\(" + NUMBER + rb"{1,64}t)"

Row = tuple[bytes, bytes, bytes, bytes, bytes, int]
"""The opcodes of a tensor that many others have too: the class of its storage, the device, the number of elements, offset
and shape, the strides, whether it requires a gradient. Others may follow the class, and the device may hold the number."""


class Names(NamedTuple):
    """The opcodes that get what every tensor calls, and the nodes in these slots of the memo."""

    function: bytes
    word: bytes
    ordered: bytes
    nodes: dict[int, Made]


class Cut(NamedTuple):
    """The pairs in columns. A text is None when an opcode gets it from the memo: that opcode is beside it.

    `size` counts their bytes. `between` is what lies before a pair, by its number. `tensors` are the slots of
    the tensors. The slots of the dicts that open before a tensor stand before its slot. `end` is one past the
    last slot. `row_of` numbers the row of each pair in `rows`.
    """

    size: int
    between: dict[int, bytes]
    keys: Sequence[str | None]
    got_keys: Sequence[bytes | None]
    digits: Sequence[str | None]
    got_digits: Sequence[bytes | None]
    rows: list[Row]
    row_of: Sequence[int]
    tensors: array[int]
    end: int


class OutOfOrderError(Exception):
    """The slots of the memo do not follow each other."""


class Idiom(Protocol):
    """One way to write the pairs. `pattern` matches one of them."""

    @property
    def pattern(self) -> re.Pattern[bytes]: ...

    def cut(self, data: bytes, slot: int) -> Cut | None:
        """The pairs at the beginning of `data` with nothing between them, or None. Their first slot is `slot`.

        Raises OutOfOrderError.
        """
        ...

    def opens(self, found: re.Match[bytes]) -> bool:
        """Tell whether a dict opens before a pair."""
        ...

    def text(self, found: re.Match[bytes], slot: int) -> bytes | None:
        """Return the opcode that pushes the text of a slot, or None when it has no text.

        The opcode is empty for the key.
        """
        ...


def names_of(made: Opaque, memo: dict[int, Made]) -> Names | None:
    """Return the names in a tensor that the machine has read, or None when it is unusual."""
    storage, hooks = (made.args[0], made.args[-1]) if len(made.args) == 6 else (None, None)
    if type(storage) is not PersistentId or type(hooks) is not Opaque or type(hooks.func) is not Global:
        return None
    pid = storage.pid
    called = (made.class_name, hooks.class_name, hooks.how)
    if called != ("torch._utils._rebuild_tensor_v2", "collections.OrderedDict", "reduce"):
        return None
    if type(pid) is not tuple or len(pid) != 5 or type(pid[0]) is not str or pid[0] != "storage":
        return None
    known = {id(node): slot for slot, node in memo.items()}
    try:
        function, word, ordered = (known[id(node)] for node in (made.func, pid[0], hooks.func))
    except KeyError:
        return None
    nodes = {function: cast("Made", made.func), word: pid[0], ordered: hooks.func}
    return Names(getting(function), getting(word), getting(ordered), nodes)


def of_length(lengths: Sequence[int | None], texts: Sequence[bytes | None]) -> int:
    """Count the first texts that have the lengths that they declare."""
    pairs = enumerate(zip(lengths, texts, strict=True))
    return next((at for at, (length, text) in pairs if text is not None and length != len(text)), len(texts))


def decoded(texts: Sequence[bytes | None]) -> list[str | None]:
    """Return the strings that opcodes push, with None for every other opcode. Raises UnicodeDecodeError."""
    pushed = [text for text in texts if text is not None]
    found = str(b"\0".join(pushed), "utf-8", "surrogatepass").split("\0")
    if len(found) != len(pushed):
        found = [str(text, "utf-8", "surrogatepass") for text in pushed]
    if len(pushed) == len(texts):
        return list(found)
    each = iter(found)
    return [None if text is None else next(each) for text in texts]


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
        """Tell whether a slot lies in a run."""
        at = bisect_right(self._starts, slot) - 1
        return at >= 0 and slot < self._ends[at]

    @property
    def is_exact(self) -> bool:
        """Tell whether no opcode filled a slot of a run.

        An opcode that did so before the run would have filled it for good.
        """
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
