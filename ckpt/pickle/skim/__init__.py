"""Reading what repeats in a large pickle by regular expressions, where the machine
would execute each opcode.

Here are the idioms, and the memo of a pickle of which parts were skimmed: its slots are
filled when an opcode asks for them.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from ckpt.model.columns import field_bytes, unpack_numbers
from ckpt.model.nodes import Global, Opaque, PersistentId
from ckpt.model.rows import NamedTuple
from ckpt.pickle.machine import Made

# BININT1, BININT2 and BININT.
NUMBER = rb"(?:K.|M..|J....)"
GET = rb"(?:h.|j....)"
PUT = rb"r...."
# EMPTY_TUPLE, TUPLE1 to TUPLE3, or MARK and TUPLE.
TUPLE = rb"(?:\)|" + NUMBER + rb"{1,3}[\x85-\x87]|\(" + NUMBER + rb"{1,64}t)"

Row = tuple[bytes, bytes, bytes, bytes, bytes, int]
"""The opcodes of a tensor that many others have too: the class of its storage, the
device, the number of elements, offset and shape, the strides, whether it requires a
gradient. Others may follow the class, and the device may hold the number.
"""


class Names(NamedTuple):
    """The opcodes that get what every tensor calls, and the nodes in these slots of the
    memo.
    """

    function: bytes
    word: bytes
    ordered: bytes
    nodes: dict[int, Made]


class Cut(NamedTuple):
    """The pairs in columns. A text is None when an opcode gets it from the memo: that
    opcode is beside it.

    `size` counts their bytes. `between` is what lies before a pair, by its number.
    `tensors` are the slots of the tensors. The slots of the dicts that open before a
    tensor stand before its slot. `end` is one past the last slot. `row_of` numbers the
    row of each pair in `rows`.
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
        """The pairs at the beginning of `data` with nothing between them, or None.
        Their first slot is `slot`.

        Raises OutOfOrderError.
        """
        ...

    def opens(self, match: re.Match[bytes]) -> bool:
        """Tell whether a dict opens before a pair."""
        ...

    def text(self, match: re.Match[bytes], slot: int) -> bytes | None:
        """Return the opcode that pushes the text of a slot, or None when it has no
        text.

        The opcode is empty for the key.
        """
        ...


def names_of(call: Opaque, memo: dict[int, Made]) -> Names | None:
    """Return the names in a tensor that the machine has read, or None when it is
    unusual.
    """
    storage, hooks = (
        (call.args[0], call.args[-1]) if len(call.args) == 6 else (None, None)
    )
    if (
        type(storage) is not PersistentId
        or type(hooks) is not Opaque
        or type(hooks.func) is not Global
    ):
        return None
    pid = storage.pid
    called = (call.class_name, hooks.class_name, hooks.how)
    if called != (
        "torch._utils._rebuild_tensor_v2",
        "collections.OrderedDict",
        "reduce",
    ):
        return None
    if (
        type(pid) is not tuple
        or len(pid) != 5
        or type(pid[0]) is not str
        or pid[0] != "storage"
    ):
        return None
    # Later slots win: the same node may have been put twice.
    numbers = {id(node): slot for slot, node in memo.items()}
    try:
        function, word, ordered = (
            numbers[id(node)] for node in (call.func, pid[0], hooks.func)
        )
    except KeyError:
        return None
    nodes = {function: cast("Made", call.func), word: pid[0], ordered: hooks.func}
    return Names(get_opcode(function), get_opcode(word), get_opcode(ordered), nodes)


def of_length(lengths: Sequence[int | None], texts: Sequence[bytes | None]) -> int:
    """Count the first texts that have the lengths that they declare."""
    # The expression takes any length, so that the declared one has to be compared.
    pairs = enumerate(zip(lengths, texts, strict=True))
    return next(
        (
            index
            for index, (length, text) in pairs
            if text is not None and length != len(text)
        ),
        len(texts),
    )


def decode_texts(texts: Sequence[bytes | None]) -> list[str | None]:
    """Return the strings that opcodes push, with None for every other opcode. Raises
    UnicodeDecodeError.
    """
    pushed = [text for text in texts if text is not None]
    # One decoding for all texts, unless one of them holds a NUL itself.
    strings = str(b"\0".join(pushed), "utf-8", "surrogatepass").split("\0")
    if len(strings) != len(pushed):
        strings = [str(text, "utf-8", "surrogatepass") for text in pushed]
    if len(pushed) == len(texts):
        return list(strings)
    iterator = iter(strings)
    return [None if text is None else next(iterator) for text in texts]


class SkimmedMemo(dict[int, Made]):
    """The memo of the machine. `find` knows what lies in the slots of the runs that
    were skimmed.

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
        index = bisect_right(self._starts, slot) - 1
        return index >= 0 and slot < self._ends[index]

    @property
    def is_exact(self) -> bool:
        """Tell whether no opcode filled a slot of a run.

        An opcode that did so before the run would have filled it for good.
        """
        return not self._ends or not any(map(self.is_skimmed, self))


def consecutive_columns(start: int, end: int) -> list[bytes]:
    """The four bytes of each number from `start` up to `end`, the lowest first: all
    first bytes, all second bytes, …
    """
    # Made by repeating bytes, and not by packing each number.
    columns: list[bytes] = []
    for width in (1, 1 << 8, 1 << 16, 1 << 24):
        runs = (
            range(start // width, (end - 1) // width + 1) if start < end else range(0)
        )
        if width == 1:
            column = bytes(range(256)) * (len(runs) // 256 + 2)
            columns.append(column[start % 256 :][: end - start])
        else:
            sizes = (
                min(end, (run + 1) * width) - max(start, run * width) for run in runs
            )
            columns.append(
                b"".join(
                    [
                        bytes((run & 0xFF,)) * size
                        for run, size in zip(runs, sizes, strict=True)
                    ]
                )
            )
    return columns


def puts(start: int, end: int) -> bytes:
    """The opcodes that fill slots of the memo from `start` up to `end`."""
    out = bytearray(b"r....") * (end - start)
    for byte, column in enumerate(consecutive_columns(start, end), 1):
        out[byte::5] = column
    return bytes(out)


def slots(opcodes: bytes) -> array[int]:
    """The slots that opcodes fill."""
    return unpack_numbers("I", field_bytes(opcodes, 1, 4, 5))


def get_opcode(slot: int) -> bytes:
    """The opcode that pushes a slot of the memo."""
    return b"h%c" % slot if slot < 256 else b"j" + slot.to_bytes(4, "little")


def slot_of(opcode: bytes) -> int:
    """The slot of the memo that an opcode pushes, as `get_opcode` writes it."""
    return int.from_bytes(opcode[1:], "little")


# BINGET, LONG_BINGET, BININT1, BININT2, BININT.
_OPCODE_BYTES = {0x68: 2, 0x6A: 5, 0x4B: 2, 0x4D: 3, 0x4A: 5}


def first_opcode(data: bytes) -> tuple[bytes, bytes]:
    """The first opcode, and what follows it."""
    width = _OPCODE_BYTES[data[0]]
    return data[:width], data[width:]


def number_of(opcode: bytes) -> int:
    """The number that BININT, BININT1, BININT2 or LONG1 pushes."""
    if opcode[0] == 0x8A:
        return int.from_bytes(opcode[2:], "little", signed=True)
    return int.from_bytes(opcode[1:], "little", signed=opcode[0] == 0x4A)


def numbers_of(data: bytes) -> tuple[int, ...]:
    """The numbers that some opcodes push."""
    numbers: list[int] = []
    begin = 0
    while begin < len(data):
        code = data[begin]
        end = begin + (data[begin + 1] + 2 if code == 0x8A else _OPCODE_BYTES[code])
        numbers.append(number_of(data[begin:end]))
        begin = end
    return tuple(numbers)
