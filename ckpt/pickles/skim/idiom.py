"""The pairs of key and tensor as torch writes them, cut into columns by one regular expression.

Opcodes: `Tensor.__reduce_ex__` of torch/_tensor.py, as the pickler of protocol 2 writes it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Protocol, cast

from ckpt.nodes import Global, Opaque, PersistentId
from ckpt.pickles.machine import Made
from ckpt.pickles.skim.memo import consecutive, getting, puts, slots
from ckpt.rows import NamedTuple

_NUMBER = rb"(?:K.|M..|J....)"
_GET = rb"(?:h.|j....)"
_PUT = rb"r...."
_TUPLE = rb"(?:\)|" + _NUMBER + rb"{1,3}[\x85-\x87]|\(" + _NUMBER + rb"{1,64}t)"

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
    """Pairs in columns. A text is None where an opcode gets it from the memo: that opcode is beside it.

    `size` counts their bytes. `between` is what lies before a pair, by its number. `tensors` are the slots of the tensors, and before
    each of those of the dicts that open there. `end` is one past the last slot.
    """

    size: int
    between: dict[int, bytes]
    keys: Sequence[bytes | None]
    got_keys: Sequence[bytes | None]
    digits: Sequence[bytes | None]
    got_digits: Sequence[bytes | None]
    rows: list[Row]
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
        """Whether a dict opens before a pair."""
        ...

    def text(self, found: re.Match[bytes], slot: int) -> bytes | None:
        """The opcode that pushes the text that a pair puts into a slot, or nothing for the key; None where it is no text."""
        ...


def names_of(made: Opaque, memo: dict[int, Made]) -> Names | None:
    """The names in a tensor that the machine has read; None where it is unusual."""
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


class Plain:
    """A state dict: every key and every storage is new, and what repeats comes from the memo. Eight slots a pair."""

    def __init__(self, names: Names) -> None:
        function, word, ordered, _ = names
        self.pattern = re.compile(
            rb"((?:u\()?X.)\0\0\0([^\0]{0,255})(%b)" % _PUT
            + re.escape(function + b"((" + word)
            + rb"(%bX.)\0\0\0([0-9]{1,20})(%b)" % (_GET, _PUT)
            + rb"(%b%b)t(%b)Q(%b%b)(%b)" % (_GET, _NUMBER, _PUT, _NUMBER, _TUPLE, _PUT)
            + rb"(%b)(%b[\x88\x89]%b%b%b)"
            % (_TUPLE, _PUT, re.escape(ordered + b")R"), _PUT, rb"t" + _PUT + b"R" + _PUT),
            re.DOTALL,
        )
        self._fixed = len(b"\0\0\0" + function + b"((" + word + b"\0\0\0tQ")
        hooks = len(b"r....." + ordered + b")R")
        self._last = (0, hooks, hooks + 6, hooks + 12)
        self._last_bytes = hooks + 17

    def cut(self, data: bytes, slot: int) -> Cut | None:
        width = self.pattern.groups + 1
        parts = self.pattern.split(data)
        count = _joined(parts[:-1:width])
        columns = [parts[group : count * width : width] for group in range(1, width)]
        joined = [b"".join(column) for column in columns]
        said = joined[0].replace(b"u(", b"")[1::2], joined[3][3::4]
        for number, at, lengths in ((0, 1, said[0]), (3, 4, said[1])):
            if lengths != bytes(map(len, columns[at])):
                count = min(count, _of_length([opcode[-1] for opcode in columns[number]], columns[at]))
        if not count:
            return None
        if count < len(columns[0]):
            columns = [column[:count] for column in columns]
            joined = [b"".join(column) for column in columns]
        heads, keys, _, classes, digits, _, places, _, shapes, _, strides, _ = columns
        end = slot + 8 * count
        expected = consecutive(slot, end)
        filled = [(joined[column], 0, 5) for column in (2, 5, 7, 9)]
        filled += [(joined[11], at, self._last_bytes) for at in self._last]
        for number, (opcodes, at, step) in enumerate(filled):
            if any(opcodes[at + byte :: step] != expected[byte - 1][number::8] for byte in (1, 2, 3, 4)):
                raise OutOfOrderError
        grads = joined[11][5 :: self._last_bytes]
        return Cut(
            sum(map(len, joined)) + self._fixed * count,
            {at: head[:-2] for at, head in enumerate(heads) if len(head) > 2}
            if len(joined[0]) > 2 * count
            else {},
            keys,
            (),
            digits,
            (),
            list(zip(classes, places, [b""] * count, shapes, strides, grads, strict=True)),
            array("I", range(slot + 7, end, 8)),
            end,
        )

    def opens(self, found: re.Match[bytes]) -> bool:
        return False

    def text(self, found: re.Match[bytes], slot: int) -> bytes | None:
        opcode = b"r" + slot.to_bytes(4, "little")
        if found[3] == opcode:
            return b""
        return found[4][-2:] + b"\0\0\0" + found[5] if found[6] == opcode else None


class Loose:
    """Texts may come from the memo and stay out of it, and dicts may end and begin: the state of an optimizer, ties."""

    def __init__(self, names: Names) -> None:
        function, word, ordered, _ = names
        maybe = rb"((?:r....)?)"
        key = rb"(?:X(.)\0\0\0([^\0]{0,260})|(" + _GET + rb"))" + maybe
        number = rb"(" + _GET + rb")(?:X(.)\0\0\0([0-9]{1,20})|(" + _GET + rb"))" + maybe
        tag = rb"(" + _GET + rb"|X.\0\0\0[!-~]{1,40}?)" + maybe
        place = re.escape(function + b"((" + word) + number + tag + rb"(" + _NUMBER + rb")t(" + _PUT + rb")Q"
        view = rb"(" + _NUMBER + _TUPLE + rb")" + maybe + rb"(" + _TUPLE + rb")" + maybe
        end = rb"([\x88\x89])" + re.escape(ordered + b")R")
        end += rb"(" + _PUT + rb")t(" + _PUT + rb")R(" + _PUT + rb")"
        # A thousand pairs end. Or a dict ends, and one for the next number begins: the state of an optimizer.
        between = rb"((?:u(?:\(|" + _NUMBER + rb"\}r....\())?)"
        self.pattern = re.compile(rb"(" + between + key + place + view + end + rb")", re.DOTALL)

    def cut(self, data: bytes, slot: int) -> Cut | None:
        width = self.pattern.groups + 1
        parts = self.pattern.split(data)
        count = _joined(parts[:-1:width])
        for group in (3, 8):
            lengths, texts = (parts[at : count * width : width] for at in (group, group + 1))
            count = _of_length([None if length is None else length[0] for length in lengths], texts)
        if not count:
            return None
        columns = [parts[group : count * width : width] for group in range(1, width)]
        whole, between, _, keys, got, put1, classes, _, digits, same, put2, *rest = columns
        devices, put3, counts, put4, shapes, put5, strides, put6, grads, put7, put8, tensors = rest
        filled = [put1, put2, put3, put4, put5, put6, put7, put8, tensors]
        before = {at: text for at, text in enumerate(between) if text}
        if any(len(text) > 2 for text in before.values()):
            dicts = [text[-6:-1] if len(text) > 2 else b"" for text in between]
            filled.insert(0, dicts)
            tensors = [opcode for pair in zip(dicts, tensors, strict=True) for opcode in pair if opcode]
        written = b"".join(chain.from_iterable(zip(*filled, strict=True)))
        end = slot + len(written) // 5
        if written != puts(slot, end):
            raise OutOfOrderError
        rows = list(zip(classes, devices, counts, shapes, strides, b"".join(grads), strict=True))
        found = slots(b"".join(tensors))
        return Cut(sum(map(len, whole)), before, keys, got, digits, same, rows, found, end)

    def opens(self, found: re.Match[bytes]) -> bool:
        return len(found[2]) > len(b"u(")

    def text(self, found: re.Match[bytes], slot: int) -> bytes | None:
        opcode = b"r" + slot.to_bytes(4, "little")
        if found[6] == opcode:
            return b""
        if found[11] == opcode and found[9] is not None:
            return b"X" + found[8] + b"\0\0\0" + found[9]
        is_tag = found[13] == opcode and found[12][:1] == b"X"
        return cast("bytes", found[12]) if is_tag else None


def _joined(gaps: Sequence[bytes]) -> int:
    """How many pairs come first that nothing lies between."""
    return next((at for at, gap in enumerate(gaps) if gap), len(gaps))


def _of_length(lengths: Sequence[int | None], texts: Sequence[bytes | None]) -> int:
    """How many texts come first that have the lengths that they say."""
    pairs = enumerate(zip(lengths, texts, strict=True))
    return next((at for at, (length, text) in pairs if text is not None and length != len(text)), len(texts))
