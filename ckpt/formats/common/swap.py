"""Puts tensors in the place of the calls that make arrays, everywhere in a tree."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.nodes import Dict, Nested, Node, Opaque, PersistentId, Set, Tagged, inside, is_tuple
from ckpt.tensors import Storage


class Swap:
    """`made` gives what stands for a call, by its id. `plain` gives the bytes behind a persistent id of the cutter.

    A nested stream of torch becomes what it holds. Containers keep their identity, so shared ones stay shared.
    """

    def __init__(self, made: dict[int, Node], plain: Callable[[PersistentId], Node]) -> None:
        self._made = made
        self._plain = plain
        self._todo: list[Node] = []
        self._seen: set[int] = set()
        self._tuples: dict[int, tuple[Node, tuple[Node, ...]]] = {}
        self._bytes: dict[int, Node] = {}

    def run(self, root: Node) -> Node:
        root = self._new(root)
        while self._todo:
            node = self._todo.pop()
            if type(node) is list:
                node[:] = map(self._new, node)
            elif type(node) is Dict:
                node.keys = list(map(self._new, node.keys))
                node.values = list(map(self._new, node.values))
            elif type(node) is Set:
                node.items = list(map(self._new, node.items))
            elif type(node) is Opaque:
                self._call(node)
        return root

    def _call(self, node: Opaque) -> None:
        args = self._new(node.args)
        assert is_tuple(args)
        node.args = args
        if type(node.meaning) is Tagged:
            node.meaning = Tagged(inside(args[0]))
        node.states = list(map(self._new, node.states))
        node.items = list(map(self._new, node.items))
        node.keys = list(map(self._new, node.keys))
        node.values = list(map(self._new, node.values))
        if node.kwargs is not None:
            self._new(node.kwargs)
        if type(node.func) is Opaque:
            self._new(node.func)

    def _new(self, node: Node) -> Node:
        """What takes the place of a node; its own content is looked at later."""
        made = self._made.get(id(node)) if type(node) is Opaque or type(node) is PersistentId else None
        if made is not None:
            return made
        if type(node) is Opaque:
            if type(node.meaning) is Nested:
                return self._new(node.meaning.root)
        elif type(node) is PersistentId and type(node.pid) is int and type(node.meaning) is Storage:
            if id(node) not in self._bytes:
                self._bytes[id(node)] = self._plain(node)
            return self._bytes[id(node)]
        elif is_tuple(node):
            return self._tuple(node)
        if isinstance(node, (list, Dict, Set, Opaque)) and id(node) not in self._seen:
            self._seen.add(id(node))
            self._todo.append(node)
        return node

    def _tuple(self, node: tuple[Node, ...]) -> tuple[Node, ...]:
        """A tuple with its items swapped. The machine bounds how deep tuples lie in each other."""
        known = self._tuples.get(id(node))
        if known is None:
            items = tuple(map(self._new, node))
            changed = any(new is not old for new, old in zip(items, node, strict=True))
            known = self._tuples[id(node)] = node, items if changed else node
        return known[1]
