"""A state dict taken apart as torch's planner does it: into tensors and objects, each under one name.

torch/distributed/checkpoint/_traverse.py and _nested_dict.py of torch 2.4 to 2.13: every item of a dict is taken apart,
and a list that holds a tensor or a dict. What a path cannot say is lost, and listed here.
"""

from __future__ import annotations

from ckpt.errors import LimitError
from ckpt.limits import Limits
from ckpt.names import NamedKey
from ckpt.nodes import ByteStr, Dict, Node, Opaque, key_of
from ckpt.rows import NamedTuple
from ckpt.tree.view import View, look

_STEPS = 10_000_000
"""The most nodes that are visited: dicts that hold each other many times over would never be taken apart."""
_AGAIN = 50_000
"""Dicts and lists that stand at a second place: a small file may hold each other sixty levels deep."""


class Leaf(NamedTuple):
    """A tensor or an object, its name, and its path in the state dict."""

    name: str
    path: tuple[str | int, ...]
    node: Node


class Parts:
    """The leaves of a state dict, and what they cannot say of it."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.texts: dict[str, int] = {}
        """Dicts whose keys become text, by the names of the dicts, and how many keys."""
        self.empty: list[str] = []
        """Dicts that vanish because nothing is in them."""
        self.versions: list[str] = []
        """Dicts with `_metadata`, which holds the versions of modules."""
        self.tuples: list[str] = []
        """Tuples with a tensor or a dict inside: each stays one object."""
        self.odd: list[str] = []
        """Keys that are no text and no number."""


def parts_of(root: Node, limits: Limits, *, whole: bool = False) -> Parts:
    """The leaves of a state dict. With `whole` each item of the root is one. Raises LimitError."""
    parts = Parts()
    walk = _Walk(parts, limits)
    walk.run(root, whole)
    return parts


class _Walk:
    def __init__(self, parts: Parts, limits: Limits) -> None:
        self._parts = parts
        self._limits = limits
        self._steps = 0
        self._seen: set[int] = set()
        self._again = 0
        self._closed: dict[int, bool] = {}

    def run(self, root: Node, whole: bool) -> None:
        todo: list[tuple[tuple[str | int, ...], Node]] = [((), root)]
        while todo:
            path, node = todo.pop()
            self._steps += 1
            if len(path) > self._limits.depth:
                raise LimitError("dicts are nested too deep", "depth", self._limits.depth)
            self._again += id(node) in self._seen
            if isinstance(node, (Dict, Opaque, list)):
                self._seen.add(id(node))
            if self._steps > _STEPS or self._again > _AGAIN:
                raise LimitError("the dict holds too many items", "depth", self._limits.depth)
            view = look(node)
            if whole and path:
                self._leaf(path, node)
            elif view.kind == "mapping" and (view.children or not any(type(step) is int for step in path)):
                todo += reversed(self._items(path, view))
            elif type(node) is list and not self._is_closed(node):
                todo += reversed([((*path, place), item) for place, item in enumerate(node)])
            else:  # an empty dict in a list as well: torch cannot load its own list that lacks a position
                self._leaf(path, node, view)

    def _items(self, path: tuple[str | int, ...], view: View) -> list[tuple[tuple[str | int, ...], Node]]:
        parts, name = self._parts, _name(path)
        if not view.children and path:
            parts.empty.append(name)
        if view.metadata is not None:
            parts.versions.append(name)
        rows: list[tuple[tuple[str | int, ...], Node]] = []
        for place, (key, child) in enumerate(zip(view.keys, view.children, strict=True)):
            if not isinstance(key, str):
                parts.texts[name] = parts.texts.get(name, 0) + 1
            rows.append(((*path, self._text(key, place, name)), child))
        return rows

    def _text(self, key: Node, place: int, name: str) -> str:
        """What `str` makes of a key."""
        if isinstance(key, str):
            return key.text if isinstance(key, ByteStr) else key
        found = key_of(key, place)
        if isinstance(found, NamedKey) and found.kind not in ("NoneType", "bool", "float", "tuple"):
            self._parts.odd.append(f"{name}.{found}" if name else found)
        return str(found)

    def _is_closed(self, node: list[Node]) -> bool:
        """Whether a list stays one object: nothing in it is a tensor, a dict, or a list that is taken apart."""
        todo = [node]
        while todo:
            each = todo[-1]
            if id(each) in self._closed:
                todo.pop()
                continue
            self._steps += len(each) + 1
            if len(todo) > self._limits.depth or self._steps > _STEPS:
                raise LimitError("lists are nested too deep", "depth", self._limits.depth)
            inner = [item for item in each if type(item) is list]
            missing = [item for item in inner if id(item) not in self._closed]
            if missing:
                todo += missing[:1]
                continue
            todo.pop()
            self._closed[id(each)] = all(
                self._closed[id(item)] if type(item) is list else look(item).kind not in ("mapping", "tensor")
                for item in each
            )
        return self._closed[id(node)]

    def _leaf(self, path: tuple[str | int, ...], node: Node, view: View | None = None) -> None:
        name = _name(path)
        self._parts.leaves.append(Leaf(name, path, node))
        if view is not None and view.kind == "sequence" and type(node) is not list:
            if any(look(item).kind in ("tensor", "mapping") for item in view.children):
                self._parts.tuples.append(name)


def _name(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))
