"""Values of a TorchScript pickle that torch.jit.load reads otherwise than Python does.

Its unpickler in C++ keeps a number where Python keeps a name: the place of a class or a
function among those that it has met, or the number of a dtype or a scheme. An object is
such a number until its state is set. Layout:
torch/csrc/jit/serialization/unpickler.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget
from ckpt.model.nodes import Dict, Global, Node, Opaque, inside, is_tuple
from ckpt.model.text import show
from ckpt.pickle.machine import Pickle
from ckpt.pickle.opcodes import (
    BINPUT,
    LONG_BINPUT,
    MEMOIZE,
    NEWOBJ,
    PUT,
    STOP,
    next_opcode,
)

_EARLY = re.compile(rb"\x81(?:[qr\x94]|p\d)")
"""NEWOBJ and a slot of the memo, or bytes that may be both."""
_SLOTS = (BINPUT, LONG_BINPUT, MEMOIZE, PUT)
_ROW = 100
"""Bytes of memory of a value that is looked at."""
_INNER = (Opaque, Dict, list, tuple)


def refuse_numbers(pickle: Pickle, data: bytes | bytearray, budget: Budget) -> None:
    """Refuse a pickle in which torch.jit.load finds a number where Python finds a name
    or an object. torch writes no such pickle. Raises UnreadableError.
    """
    for call in pickle.calls:
        func = call.func
        # C++ reads a name of `torch` as a dtype or a scheme, so as a number.
        # `torch.device(...)` stays a call.
        if type(func) is Global and func.module == "torch" and func.name != "device":
            raise UnreadableError(
                f"damaged pickle: {show(func.qualified, 80)} is called at byte "
                f"{call.offset:,}, which torch.jit.load takes for a number"
            )
    name = _find_name(pickle.root, budget)
    if name is not None:
        raise UnreadableError(
            f"damaged pickle: {show(name.qualified, 80)} is a value, which "
            "torch.jit.load takes for a number"
        )
    place = _find_early_slot(data, pickle.end)
    if place is not None:
        raise UnreadableError(
            f"damaged pickle: the object at byte {place:,} is kept before it has its "
            "state, which torch.jit.load takes for a number"
        )


def _find_early_slot(data: bytes | bytearray, end: int) -> int | None:
    """Return the offset of the first NEWOBJ whose object gets a slot of the memo at
    once, or None. The pickle ends at `end`.
    """
    # Most pickles have no such bytes, and need no walk over their opcodes.
    if _EARLY.search(data, 0, end) is None:
        return None
    position, before = 0, STOP
    while position < end:
        code = data[position]
        if before == NEWOBJ and code in _SLOTS:
            return position - 1
        before = code
        position = next_opcode(data, position, end)
    return None


def _find_name(root: Node, budget: Budget) -> Global | None:
    """Return the first name that is a value, or None. The arguments of calls are none:
    torch makes tensors and devices of them.
    """
    seen: set[int] = set()
    todo: list[Node] = [root]
    while todo:
        node = inside(todo.pop())
        if type(node) is Global:
            return node
        if type(node) not in _INNER or id(node) in seen:
            continue
        budget.charge(_ROW, "the values of the program")
        seen.add(id(node))
        # Texts and numbers are left out early: a list may hold millions.
        todo += (part for part in _parts_of(node) if _may_hold_name(part))
    return None


def _may_hold_name(node: Node) -> bool:
    return type(node) is Global or type(node) in _INNER


def _parts_of(node: Node) -> Sequence[Node]:
    """The values inside of a value. Those of an object are in its state."""
    if type(node) is Opaque:
        return [*node.states, *node.items, *node.keys, *node.values]
    if type(node) is Dict:
        return [*node.keys, *node.values]
    return node if type(node) is list or is_tuple(node) else ()
