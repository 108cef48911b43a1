"""Values that lie in each other, and values that lie so deep that a loader in C++ dies,
such as torch.jit.load: it frees each inside of the one around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget
from ckpt.model.nodes import Dict, Node, Opaque, PersistentId, Set, is_tuple
from ckpt.pickle.machine import Pickle


class Depths:
    """Counts the values that lie in each other. Each value is looked at once.

    `parts_of` gives the values inside of a value that may hold others, and
    `is_counted` tells whether a value itself counts.
    """

    def __init__(
        self,
        parts_of: Callable[[Node], Sequence[Node]],
        is_counted: Callable[[Node], bool],
    ) -> None:
        self._parts_of = parts_of
        self._is_counted = is_counted
        self._depths: dict[int, tuple[int, Node]] = {}

    def depth(self, root: Node) -> int:
        """Return how many values that count lie in each other, from a value on."""
        depths = self._depths
        # A stack of our own: a pickle may nest deeper than Python can call.
        todo: list[tuple[Node, Sequence[Node] | None]] = [(root, None)]
        is_open: set[int] = set()
        while todo:
            node, parts = todo.pop()
            if parts is None:
                if id(node) in depths or id(node) in is_open:
                    continue
                parts = self._parts_of(node)
                is_open.add(id(node))
                # The node comes back behind its parts, when their depths are known.
                todo.append((node, parts))
                todo += [(part, None) for part in parts]
                continue
            is_open.discard(id(node))
            within = max(
                (depths[id(part)][0] for part in parts if id(part) in depths), default=0
            )
            # The node is kept, so that nothing else gets its id.
            depths[id(node)] = within + self._is_counted(node), node
        return depths[id(root)][0]


_DEEPEST = 1_000
"""The most values inside each other. The stack ends at some 20,000 of them."""
_ROW = 100
"""Bytes of memory of a value that is looked at."""


def refuse_deep(pickle: Pickle, budget: Budget) -> None:
    """Refuse values that are nested too deep for C++, also those that a call is given,
    and values that no other one holds. Raises UnreadableError.
    """
    if pickle.left:
        raise UnreadableError(
            "damaged pickle: it makes values that no other one holds, which torch "
            "refuses in C++"
        )

    def charged_parts(node: Node) -> list[Node]:
        budget.charge(_ROW, "the values of the program")
        return [part for part in _parts_of(node) if type(part) in _NESTING]

    if Depths(charged_parts, lambda node: True).depth(pickle.root) > _DEEPEST:
        raise UnreadableError(
            "damaged pickle: its values are nested deeper than torch can read"
        )


_NESTING = (Opaque, Dict, Set, list, tuple, PersistentId)


def _parts_of(node: Node) -> Sequence[Node]:
    """The values inside of a value, and those that its call is given."""
    if type(node) is Opaque:
        named = [] if node.kwargs is None else [node.kwargs]
        return [
            *node.args,
            *named,
            *node.states,
            *node.items,
            *node.keys,
            *node.values,
        ]
    if type(node) is Dict:
        return [*node.keys, *node.values]
    if type(node) is Set:
        return node.items
    if type(node) is PersistentId:
        return [node.pid]
    return node if type(node) is list or is_tuple(node) else ()
