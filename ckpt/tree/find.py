"""Finding nodes of the inert tree by name and by path, and making names unique."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TypeVar, cast

from ckpt.checkpoint import Entries, Entry, Value
from ckpt.columns import parts
from ckpt.errors import LimitError, UnreadableError
from ckpt.limits import Limits
from ckpt.names import Path
from ckpt.nodes import Node, key_of, tensor_of
from ckpt.tensors import TensorRef
from ckpt.tree.steps import module_steps, steps
from ckpt.tree.view import SCALARS, View, look

_Named = TypeVar("_Named", Entry, Value)
_PARTS = 64
"""Parts of a name whose beginnings are looked for together."""


def with_unique_names(rows: Sequence[_Named]) -> tuple[Sequence[_Named], list[tuple[str, str]]]:
    """The rows with a mark like `#2` on each name that an earlier row has, and (name, marked name) for each mark."""
    taken: set[str] = set()
    for part in parts(rows):
        taken.update(part.names if isinstance(part, Entries) else [row.name for row in part])
    if len(taken) == len(rows):
        return rows, []
    counts: dict[str, int] = {}
    out: list[_Named] = []
    marks: list[tuple[str, str]] = []
    for row in rows:
        name = row.name
        count = counts.get(name, 0) + 1
        if count > 1:
            while f"{name}#{count}" in taken:  # a key that looks like a mark
                count += 1
            marks.append((name, f"{name}#{count}"))
            row = row._replace(name=marks[-1][1])
        counts[name] = count
        out.append(row)
    return out, marks


def find(root: Node, name: str, limits: Limits) -> list[tuple[Path, Node]]:
    """The nodes with a dotted name, and their paths. Keys may contain dots themselves.

    Modules have state-dict names and the names of their attributes. Raises LimitError for a hostile tree.
    """
    nodes: list[tuple[Path, Node]] = []
    todo: list[tuple[Node, Path, str | None]] = [(root, (), name)]
    visits = 0
    searched: set[tuple[int, str]] = set()
    while todo:
        node, path, rest = todo.pop()
        visits += 1
        if visits > limits.entries or len(path) > limits.depth:
            raise LimitError("the name matches too many places", "entries", limits.entries)
        if rest is None:
            nodes.append((path, node))
            continue
        if tensor_of(node) is not None:
            continue
        view = look(node)
        if view.kind in ("scalar", "tensor", "storage"):
            continue
        if (id(node), rest) in searched:
            visits += len(view.children)
        searched.add((id(node), rest))
        parts = rest.split(".")
        begins = (
            {".".join(parts[:count]) for count in range(1, len(parts) + 1)} if len(parts) < _PARTS else None
        )
        matches = [
            (child, (*path, *inner), None if rest == text else rest[len(text) + 1 :])
            for inner, text, child in _beginning(view, begins)
            if rest == text or rest.startswith(f"{text}.")
        ]
        todo += reversed(matches)
    return nodes


def _beginning(view: View, names: set[str] | None) -> Iterator[tuple[Path, str, Node]]:
    """The children that have one of the names; all without `names`."""
    if names is None or view.kind != "mapping" or set(map(type, view.keys)) != {str}:
        yield from named(view)
        return
    for index in sorted(
        view.keys.index(name) for name in names.intersection(cast("Sequence[str]", view.keys))
    ):
        key = str(view.keys[index])
        yield (key,), key, view.children[index]


def named(view: View) -> Iterator[tuple[Path, str, Node]]:
    """The path, the name and the node of each child; `find` knows the same names."""
    if view.kind == "module":
        for path, text, child, *_ in module_steps(view, (), "", None):
            yield path, text, child
        return
    keys: Sequence[Node] = view.keys if view.kind != "sequence" else range(len(view.children))
    for index, (key, child) in enumerate(zip(keys, view.children, strict=True)):
        step = key_of(key, index)
        yield (step,), str(step), child


def children(node: Node) -> list[tuple[str | int, Node]]:
    """The (key, child) pairs of a node, with keys as in paths. Modules give their attributes, leaves nothing."""
    if node is None or tensor_of(node) is not None:
        return []
    view = look(node)
    if view.kind in ("scalar", "storage"):
        return []
    if view.kind == "module":
        return list(view.attributes.items())
    return [(path[0], child) for path, _, child, *_ in steps(view, (), "", None)]


def node_at(root: Node, path: Path) -> Node:
    """The node at a path of keys as `children` gives them; None when there is no such node."""
    node = root
    for key in path:
        node = next((child for step, child in children(node) if step == key), None)
    return node


def places_of(root: Node, wanted: set[int]) -> dict[int, str]:
    """The first name of each wanted node, by the id of the node."""
    names: dict[int, str] = {}
    seen: dict[int, Node] = {}
    todo: list[tuple[Node, str]] = [(root, "")]
    while todo and len(names) < len(wanted):
        node, name = todo.pop()
        if id(node) in wanted:
            names.setdefault(id(node), name)
        if id(node) in seen or type(node) in SCALARS:
            continue
        seen[id(node)] = node
        below = [(child, f"{name}.{key}" if name else str(key)) for key, child in children(node)]
        todo += reversed(below)
    return names


# --- counters of steps --------------------------------------------------------------------------------------------------

COUNTERS = frozenset(
    ("step", "steps", "global_step", "global_steps", "iteration", "iter", "epoch", "current_epoch")
)
"""Keys whose values are equal on all ranks of a run, at every save."""
_OUTER = 2
"""How deep the counters of a run lie: `epoch`, `train_state.epoch`. An optimizer's `step` of a parameter lies deeper."""
_FORMS = {"float32": "<f", "float64": "<d", "int64": "<q", "int32": "<i", "float16": "<e"}


def is_counter(path: Path) -> bool:
    """Whether a value at a path is one that all ranks count alike."""
    return path[-1] == "step" or (len(path) <= _OUTER and path[-1] in COUNTERS)


def counter(node: Node) -> float | None:
    """The value of a step counter: a number, or a tensor with one element. None for anything else."""
    tensor = tensor_of(node)
    if isinstance(tensor, TensorRef):
        form = _FORMS.get(tensor.dtype.name)
        if form is None or tensor.numel != 1 or tensor.storage.place is None:
            return None
        from ckpt.elements.blocks import elements  # here: few files hold their counters in tensors

        try:
            return float(struct.unpack(form, b"".join(elements(tensor)))[0])
        except UnreadableError:  # a part of the checkpoint is missing, which is a finding of its own
            return None
    value = look(node).value if node is not None and tensor is None else None
    return float(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else None
