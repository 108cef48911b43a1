"""Building trees: nodes at their paths, below dicts that are there or are made."""

from __future__ import annotations

from collections.abc import Collection

from ckpt.model.names import Path
from ckpt.model.nodes import Dict, Node, Opaque
from ckpt.pickle.edit import EditInPlace
from ckpt.tree.find import children_of
from ckpt.tree.view import look


class Branches:
    """A tree that grows, from nothing or from a root. Each dict is looked
    through once.
    """

    def __init__(self, root: Node = None) -> None:
        self._root: Node = Dict() if root is None else root
        self._below: dict[int, dict[str | int, Node]] = {}
        """The children of each dict that was looked through, by the id of the dict."""
        self._grown: set[int] = {id(self._root)} if root is None else set()
        self._put: set[int] = set()

    def put(self, path: Path, node: Node) -> bool:
        """Put a node at its path, and tell whether that was possible.

        It is not where the place is taken, or where the path leads through a node that
        was put.
        """
        branch = self._root
        for key in path[:-1]:
            below = self._below_of(branch)
            if key not in below and not self._grow_dict(branch, key):
                return False
            branch = below[key]
            # A node of the file is not changed: it may stand at other places too.
            if id(branch) in self._put:
                return False
        if path[-1] in self._below_of(branch) or not self._set_node(
            branch, path[-1], node
        ):
            return False
        if isinstance(node, (Dict, Opaque)):
            self._put.add(id(node))
        return True

    def holds(self, path: Path) -> bool:
        """Tell whether a node lies at a path."""
        branch = self._root
        for key in path:
            below = self._below_of(branch)
            if key not in below:
                return False
            branch = below[key]
        return True

    def tree(self) -> Node:
        """The tree, with a list for each dict that was made and has the positions of
        one as its keys.
        """
        return with_lists(self._root, self._grown)

    def _grow_dict(self, branch: Node, key: str | int) -> bool:
        inner = Dict()
        self._grown.add(id(inner))
        return self._set_node(branch, key, inner)

    def _set_node(self, branch: Node, key: str | int, node: Node) -> bool:
        # Lists and objects of a file do not grow.
        if type(branch) is not Dict and look(branch).kind != "mapping":
            return False
        assert isinstance(branch, (Dict, Opaque))
        branch.set([key], [node])
        self._below_of(branch)[key] = node
        return True

    def _below_of(self, branch: Node) -> dict[str | int, Node]:
        if id(branch) not in self._below:
            self._below[id(branch)] = dict(children_of(branch))
        return self._below[id(branch)]


def with_lists(root: Node, dicts: Collection[int] | None = None) -> Node:
    """The tree with a list in place of each dict whose keys are the positions of one.

    With `dicts`, only of those with these ids. The nodes are changed; what is no dict
    is not looked into.
    """
    return _Lists(dicts).copy(root)


class _Lists(EditInPlace):
    def __init__(self, dicts: Collection[int] | None) -> None:
        super().__init__()
        self._dicts = dicts

    def instead(self, node: Node) -> Node | None:
        if type(node) is not Dict or (
            self._dicts is not None and id(node) not in self._dicts
        ):
            return node
        rows = {
            key: value
            for key, value in zip(node.keys, node.values, strict=True)
            if type(key) is int
        }
        # Only 0, 1, 2 and so on are positions; an empty dict stays one.
        if not rows or len(rows) < len(node.keys) or set(rows) != set(range(len(rows))):
            return None
        return self.shell_of([rows[place] for place in range(len(rows))])
