"""The tree of one rank with other tensors in it."""

from __future__ import annotations

from typing import cast

from ckpt.nodes import Dict, Node, Opaque, is_tuple, tensor_of
from ckpt.tensors import TensorRef


def swapped(root: Node, made: dict[int, TensorRef]) -> Node:
    """A tree in which other tensors stand for those of `made`, by the ids of theirs. The nodes are changed."""
    return _Swap(made).run(root)


class _Swap:
    def __init__(self, made: dict[int, TensorRef]) -> None:
        self._made = made
        self._seen: set[int] = set()
        self._tuples: dict[int, tuple[Node, Node]] = {}

    def run(self, node: Node) -> Node:
        """The node that stands in place of a node. Trees are at most as deep as the limit `depth`."""
        tensor = tensor_of(node)
        if tensor is not None:
            return self._made.get(id(tensor), node)
        if is_tuple(node):
            if id(node) not in self._tuples:
                parts = tuple(map(self.run, node))
                same = all(one is two for one, two in zip(parts, node, strict=True))
                self._tuples[id(node)] = node, node if same else parts
            return self._tuples[id(node)][1]
        if type(node) is list:
            if self._is_new(node):
                node[:] = [self.run(each) for each in node]
        elif type(node) is Dict:
            if self._is_new(node):
                node.values = [self.run(each) for each in node.values]
        elif type(node) is Opaque and self._is_new(node):
            node.args = cast("tuple[Node, ...]", tuple(map(self.run, node.args)))
            node.states = [self.run(each) for each in node.states]
            node.items = [self.run(each) for each in node.items]
            node.values = [self.run(each) for each in node.values]
        return node

    def _is_new(self, node: Node) -> bool:
        if id(node) in self._seen:
            return False
        self._seen.add(id(node))
        return True
