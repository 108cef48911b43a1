"""The state dict that was saved, put together again from the paths of its leaves."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.errors import UnreadableError
from ckpt.names import Path
from ckpt.nodes import Dict, Node
from ckpt.text import show

_GAPS = 10_000
"""Positions of lists that may be left out, since torch saves no empty dict."""


class _Branch:
    """A dict or a list that is being put together. It is a list when its keys are the first numbers."""

    __slots__ = ("below",)

    def __init__(self) -> None:
        self.below: dict[str | int, Node | _Branch] = {}


def tree_of(leaves: Sequence[tuple[str, Path, Node]]) -> Node:
    """The tree of (name, path, node) leaves.

    Raises UnreadableError where one path leads through another leaf, or to a position that no list has.
    """
    root = _Branch()
    for name, path, node in leaves:
        far = max((step for step in path if type(step) is int), default=0)
        if far >= len(leaves) + _GAPS:  # torch makes a list of as many
            held = f"position {far:,} of a list, and the checkpoint has {len(leaves):,} values"
            raise UnreadableError(f".metadata: {show(name, 80)} lies at {held}")
        branch = root
        for step in path[:-1]:
            inner = branch.below.setdefault(step, _Branch())
            if not isinstance(inner, _Branch):
                raise UnreadableError(f".metadata: the path of {show(name, 80)} leads through a value")
            branch = inner
        if path[-1] in branch.below:
            raise UnreadableError(f".metadata: the path of {show(name, 80)} is that of another value")
        branch.below[path[-1]] = node
    return _built(root)


def _built(root: _Branch) -> Node:
    """The nodes, without recursion: a path may be long."""
    made: dict[int, Node] = {}
    todo = [root]
    while todo:
        branch = todo[-1]
        missing = [
            inner for inner in branch.below.values() if isinstance(inner, _Branch) and id(inner) not in made
        ]
        if missing:
            todo += missing
            continue
        todo.pop()
        rows = {
            key: made[id(inner)] if isinstance(inner, _Branch) else inner
            for key, inner in branch.below.items()
        }
        made[id(branch)] = _node(rows)
    return made[id(root)]


def _node(rows: dict[str | int, Node]) -> Node:
    if rows and all(type(key) is int for key in rows) and set(rows) == set(range(len(rows))):
        return [rows[index] for index in range(len(rows))]
    node = Dict()
    node.set(list(rows), list(rows.values()))
    return node
