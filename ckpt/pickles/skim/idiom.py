"""The pairs of key and tensor as torch writes them, and what is cut out of many of them.

Opcodes: `Tensor.__reduce_ex__` of torch/_tensor.py, as the pickler of protocol 2 writes it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Protocol, cast

from ckpt.nodes import Global, Opaque, PersistentId
from ckpt.pickles.machine import Made
from ckpt.pickles.skim.memo import getting
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
    """Pairs in columns. A text is None where an opcode gets it from the memo: that opcode is beside it.

    `size` counts their bytes. `between` is what lies before a pair, by its number. `tensors` are the slots of the tensors, and before
    each of those of the dicts that open there. `end` is one past the last slot. `row_of` numbers the row of each pair in `rows`.
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


def of_length(lengths: Sequence[int | None], texts: Sequence[bytes | None]) -> int:
    """How many texts come first that have the lengths that they say."""
    pairs = enumerate(zip(lengths, texts, strict=True))
    return next((at for at, (length, text) in pairs if text is not None and length != len(text)), len(texts))


def decoded(texts: Sequence[bytes | None]) -> list[str | None]:
    """The strings that opcodes push; None where another opcode does. Raises UnicodeDecodeError."""
    pushed = [text for text in texts if text is not None]
    found = str(b"\0".join(pushed), "utf-8", "surrogatepass").split("\0")
    if len(found) != len(pushed):
        found = [str(text, "utf-8", "surrogatepass") for text in pushed]
    if len(pushed) == len(texts):
        return list(found)
    each = iter(found)
    return [None if text is None else next(each) for text in texts]
