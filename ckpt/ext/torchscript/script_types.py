"""The values of a TorchScript pickle against the types that its code declares.

torch in C++ does not compare them. A `__setstate__` that reads the attribute of another
class reads memory that is not its own. Layout:
torch/csrc/jit/serialization/unpickler.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ckpt.ext.torchscript.script import ScriptClass
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget
from ckpt.model.nodes import Dict, Global, Node, Opaque, inside, is_tuple, tensor_of
from ckpt.model.text import show

_ROW = 200
"""Bytes of memory of a value that is looked at."""
_SCALARS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float,),
    "bool": (bool,),
    "str": (str,),
    "complex": (complex,),
    "number": (int, float, complex),
    "NoneType": (type(None),),
    "ScalarType": (int,),
    "Layout": (int,),
    "MemoryFormat": (int,),
    "QScheme": (int,),
}
_OBJECTS = {"Device": "torch.device", "complex": "builtins.complex"}
_CUSTOM = "__torch__.torch.classes."
"""Classes of C++, which look at their state themselves."""
# The empty text: nothing is known about the type of this value.
_ANY = frozenset(("", "Any"))


class Types:
    """The classes of the code, and the first value that is not of its type."""

    def __init__(self, classes: dict[str, ScriptClass], budget: Budget) -> None:
        self._classes = classes
        self._budget = budget
        # By type as well: a shared value must fit each type that the code gives it.
        self._seen: set[tuple[int, str]] = set()
        self._todo: list[tuple[Node, str]] = []

    def mismatch(self, roots: Sequence[Node]) -> str | None:
        """Return the first value that has another type than the code declares, as a
        text for people.
        """
        self._todo = [(root, "") for root in roots]
        while self._todo:
            node, kind = self._todo.pop()
            problem = self._find_mismatch(node, kind)
            if problem is not None:
                return problem
        return None

    def _find_mismatch(self, node: Node, kind: str) -> str | None:
        node = self._untag_node(node)
        is_held = type(node) in (Opaque, Dict, list, tuple)
        if is_held:
            if (id(node), kind) in self._seen:
                return None
            self._budget.charge(_ROW, "the values of the program")
            self._seen.add((id(node), kind))
        if kind not in _ANY and not self._is_of_type(node, kind):
            return f"a value that is no {show(kind, 60)}"
        # Objects of the code may lie deeper, and their classes do declare types.
        if kind in _ANY and is_held:
            self._todo += ((child, "") for child in _child_nodes(node))
        if (
            type(node) is Opaque
            and type(node.func) is Global
            and node.func.qualified in self._classes
        ):
            self._add_state(node, self._classes[node.func.qualified])
        return None

    def _untag_node(self, node: Node) -> Node:
        """Return the value of a call that tags it. The value is held against the tag
        too.
        """
        whole = inside(node)
        if (
            type(node) is Opaque
            and whole is not node
            and len(node.args) == 2
            and type(node.args[1]) is str
        ):
            # restore_type_tag(value, "Dict[str, int]"): the tag is the second argument.
            self._todo.append((whole, node.args[1].replace(" ", "")))
        return whole

    def _add_state(self, node: Opaque, cls: ScriptClass) -> None:
        """Look at the state of an object: what its `__setstate__` gets, or its
        attributes.
        """
        for state in node.states:
            if "__setstate__" in cls.methods:
                # `__setstate__` gets the state as it is, so its declared argument
                # decides.
                self._todo.append((state, cls.state))
            elif type(state) is Dict:
                for key, value in zip(state.keys, state.values, strict=True):
                    self._todo.append(
                        (value, cls.types.get(key, "") if type(key) is str else "")
                    )

    def _is_of_type(self, node: Node, kind: str) -> bool:
        """Tell whether a value is of a type. What is inside of it is looked at
        later.
        """
        name, _, rest = kind.partition("[")
        inner = list(_split_types(rest[:-1])) if rest else []
        if name in _SCALARS and type(node) in _SCALARS[name]:
            return True
        if name in _OBJECTS:
            return type(node) is Opaque and node.class_name == _OBJECTS[name]
        # A call that rebuilds a tensor is one too, also where ckpt shows none.
        if name == "Tensor":
            is_made = type(node) is Opaque and (node.class_name or "").startswith(
                "torch._utils._rebuild_"
            )
            return tensor_of(node) is not None or is_made
        if name == "Optional" and len(inner) == 1:
            return node is None or self._is_of_type(node, inner[0])
        if name == "List" and len(inner) == 1 and type(node) is list:
            self._todo += ((item, inner[0]) for item in node)
            return True
        if name == "Dict" and len(inner) == 2 and type(node) is Dict:
            self._todo += ((key, inner[0]) for key in node.keys)
            self._todo += ((value, inner[1]) for value in node.values)
            return True
        if name == "Tuple" and is_tuple(node):
            # `Tuple[()]` is the type of the empty tuple.
            inner = [] if inner == ["()"] else inner
            self._todo += zip(node, inner, strict=False)
            return len(node) == len(inner)
        return self._is_of_class(node, name)

    def _is_of_class(self, node: Node, name: str) -> bool:
        cls = self._classes.get(name)
        if cls is not None and cls.base == "NamedTuple" and is_tuple(node):
            self._todo += zip(node, cls.types.values(), strict=False)
            return len(node) == len(cls.types)
        if type(node) is not Opaque or type(node.func) is not Global:
            return False
        other = self._classes.get(node.func.qualified)
        # An interface fits every class that has its methods.
        if cls is not None and cls.is_interface:
            return other is not None and cls.methods.keys() <= other.methods.keys()
        return node.func.qualified == name and (
            cls is not None or name.startswith(_CUSTOM)
        )


_NAMED = re.compile(r"__torch__[A-Za-z_0-9.]*")
_UNFOLDED = 100_000
"""The most objects and types that a load may look at, where one that is shared counts
each time.
"""


def check_doubling(root: Node, classes: dict[str, ScriptClass], budget: Budget) -> None:
    """Refuse shared modules and named tuples that a load unfolds to a tree without end.
    Raises UnreadableError.

    torch.jit.load wraps a module once for each way that leads to it, and writes a named
    tuple out inside of another one.
    """
    sizes = _sizes_of(classes)
    if sizes is None or any(size > _UNFOLDED for size in sizes.values()):
        raise UnreadableError(
            "the named tuples of the code hold each other more often than torch can "
            "count"
        )
    objects = _count_unfolded(root, classes, budget)
    if objects > _UNFOLDED:
        raise UnreadableError(
            "the modules of the program share each other more often than torch can "
            "count"
        )


def _sizes_of(classes: dict[str, ScriptClass]) -> dict[str, int] | None:
    """Return how many types each named tuple is, written out, or None for one that
    holds itself.
    """
    inner = {
        name: [
            found
            for kind in cls.types.values()
            for found in _NAMED.findall(kind)
            if found in classes and classes[found].base == "NamedTuple"
        ]
        for name, cls in classes.items()
        if cls.base == "NamedTuple"
    }
    return _total_sizes(inner)


def _count_unfolded(root: Node, classes: dict[str, ScriptClass], budget: Budget) -> int:
    """Count the objects of the code below a root, one that is shared each time."""
    inner: dict[int, list[int]] = {}
    # Holds each node, so that no id is used a second time.
    held: dict[int, Node] = {}
    # Only objects of the code become modules; dicts and lists between them do not
    # count.
    ours: set[int] = set()
    todo = [inside(root)]
    while todo:
        node = todo.pop()
        if id(node) in inner:
            continue
        budget.charge(_ROW, "the values of the program")
        held[id(node)] = node
        if (
            type(node) is Opaque
            and type(node.func) is Global
            and node.func.qualified in classes
        ):
            ours.add(id(node))
        children = [inside(child) for child in _child_nodes(node)]
        children = [
            child
            for child in children
            if type(child) in (Opaque, Dict, list) or is_tuple(child)
        ]
        inner[id(node)] = [id(child) for child in children]
        todo += children
        held.update((id(child), child) for child in children)
    totals = _total_sizes(inner, ours)
    # torch writes nothing that holds itself.
    return _UNFOLDED + 1 if totals is None else totals.get(id(inside(root)), 0)


_Key = TypeVar("_Key", str, int)


def _total_sizes(
    inner: dict[_Key, list[_Key]], counted: set[_Key] | None = None
) -> dict[_Key, int] | None:
    """Return the size of each thing with all that it holds, or None where one holds
    itself.
    """
    totals: dict[_Key, int] = {}
    opened: set[_Key] = set()
    for start in inner:
        todo = [start]
        while todo:
            name = todo[-1]
            if name in totals:
                todo.pop()
                continue
            missing = [other for other in inner[name] if other not in totals]
            if not missing:
                own = counted is None or name in counted
                # The cap keeps the sums small, for sharing doubles them level by level.
                totals[name] = min(
                    own + sum(totals[other] for other in inner[name]), _UNFOLDED + 1
                )
                opened.discard(name)
                todo.pop()
                continue
            # It waits for its own size, so it holds itself.
            if name in opened:
                return None
            opened.add(name)
            todo += missing
    return totals


def _child_nodes(node: Node) -> Iterator[Node]:
    """Yield what a value of any type holds. The state of an object is looked at by its
    class.
    """
    if type(node) is Dict:
        yield from node.keys
        yield from node.values
    elif type(node) is list or is_tuple(node):
        yield from node
    elif type(node) is Opaque:
        yield from node.args
        yield from node.states


def _split_types(text: str) -> Iterator[str]:
    """Yield the types between the commas of a text."""
    depth = start = 0
    for index, letter in enumerate(text):
        # A comma inside of brackets belongs to an inner type.
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            yield text[start:index]
            start = index + 1
    if text[start:]:
        yield text[start:]
