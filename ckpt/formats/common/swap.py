"""Other nodes in the tree of a pickle that is being read: tensors for calls, bytes for
the ids of a cutter.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.model.nodes import Nested, Node, Opaque, PersistentId
from ckpt.model.tensors import Storage
from ckpt.pickle.edit import EditInPlace


class Swap(EditInPlace):
    """Puts other nodes in the place of calls and persistent ids: `swaps` gives them,
    and None for a node that stays.

    Containers keep their identity, so shared ones stay shared.
    """

    def __init__(self, swaps: Callable[[Node], Node | None]) -> None:
        super().__init__()
        self._swaps = swaps

    def instead(self, node: Node) -> Node | None:
        return self._swaps(node)


class SwapBytes(Swap):
    """A swap in the pickle of a cutter: `plain` gives the bytes behind a persistent id.

    A nested stream of torch becomes what it holds.
    """

    def __init__(
        self,
        swaps: Callable[[Node], Node | None],
        plain: Callable[[PersistentId], Node],
    ) -> None:
        super().__init__(swaps)
        self._plain = plain

    def instead(self, node: Node) -> Node | None:
        swap = super().instead(node)
        if swap is not None:
            return swap
        if (
            type(node) is PersistentId
            and type(node.pid) is int
            and type(node.meaning) is Storage
        ):
            return self._plain(node)
        if type(node) is Opaque and type(node.meaning) is Nested:
            return self.copy_of(node.meaning.root)
        return None
