"""The judgement of each name that a pickle imports: it is known, or loading imports it,
or calls it.

A function that unpickles, imports or calls its argument counts as called where it is a
value, because it can then run anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ckpt.model.nodes import (
    NEW,
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    is_tuple,
)
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.pickle.judge.names import (
    METHODS,
    is_known,
    is_own,
    passes_module,
    python3_name,
)
from ckpt.pickle.machine import Fillings

if TYPE_CHECKING:
    from ckpt.pickle.judge.culprits import Uses

Group = Literal["known", "odd", "unknown", "called"]


class Judgement(NamedTuple):
    """The use that loading makes of a name.

    `calls` are the first of its calls, of which there are `times`. A function that is
    held as a value has none. `attributes` of its objects make it called, because torch
    calls them, or odd, because the class does not write them.
    """

    group: Group
    calls: tuple[Opaque, ...] = ()
    times: int = 0
    attributes: tuple[str, ...] = ()


_CAREFUL = frozenset(
    (
        "torch.storage._load_from_bytes",
        "torch._tensor._rebuild_from_type",
        "torch._tensor._rebuild_from_type_v2",
        "_codecs.encode",
        "copyreg._reconstructor",
        "copyreg.__newobj__",
        "numpy.ma.core._mareconstruct",
        "numpy.random._pickle.__bit_generator_ctor",
        "numpy.random._pickle.__generator_ctor",
        "numpy.random._pickle.__randomstate_ctor",
        "builtins.getattr",
        "operator.getitem",
        "operator.or_",
        "functools.reduce",
        "functools.partial",
    )
)
"""Listed functions that unpickle, import or call what they are given."""


def judge_imports(
    names: Collection[Global],
    calls: Sequence[Opaque],
    roots: Sequence[Node],
    late: Sequence[Opaque] = (),
    fillings: Fillings | None = None,
    hashed: Sequence[Node] = (),
) -> dict[Global, Judgement]:
    """Judge each name of a pickle that makes these calls. `roots` are its values
    outside of calls.

    The calls must have their meaning (`Rebuilder.annotate`). `late` are calls whose
    object got items or another state after a state. Its attributes may then stand for
    its methods. `hashed` are the keys that are objects, or tuples with objects.
    `fillings` are nodes that got items after a call could see them.
    """
    # A set, for each nested pickle has a node of its own for this name.
    hooks = {
        name
        for name in names
        if (name.module, name.name) == ("collections", "OrderedDict")
    }
    usual: dict[Node, int] = {
        name: count for name in names if (count := _USUAL.get(name.qualified))
    }
    changes_later = fillings is not None and bool(fillings.last)
    # Nearly all calls of a file are usual, so the grammar is not asked for them.
    unusual = [
        call
        for call in calls
        if not _is_usual(call, usual, hooks) or (call.keys and changes_later)
    ]
    called: dict[Global, Uses] = {}
    odd: dict[Global, list[str]] = {}
    # A state dict has none of these, and the import takes as long as reading it.
    if unusual or late or hashed:
        from ckpt.pickle.judge.culprits import blame_calls

        called, odd = blame_calls(names, calls, unusual, roots, late, hashed, fillings)
    careful = {
        name for name in names if python3_name(name.module, name.name) in _CAREFUL
    }
    # A value may be called later, with any arguments.
    held = _held_names(calls, roots, careful) if careful else set()
    for name in names:
        # Its import goes through a module to some function of Python.
        if passes_module(name.name) and not is_known(name):
            held.add(name)
    judged = {
        name: Judgement("known" if is_known(name) else "unknown") for name in names
    }
    for name, attributes in odd.items():
        if is_known(name):
            judged[name] = Judgement("odd", attributes=tuple(attributes))
    # Called is the worst answer, so it replaces any other.
    for name, uses in called.items():
        judged[name] = Judgement(
            "called", tuple(uses.first), uses.count, tuple(uses.attributes)
        )
    for name in held - called.keys():
        judged[name] = Judgement("called")
    return judged


_USUAL = {"torch._utils._rebuild_tensor_v2": 6, "torch._utils._rebuild_parameter": 3}
"""The calls that make nearly all tensors, and their arguments, of which the last is an
empty dict of hooks.
"""


def _is_usual(call: Opaque, usual: Mapping[Node, int], hooks: Collection[Node]) -> bool:
    """Tell whether torch.save writes such a call for each tensor, or for a state dict.
    The grammar allows it.
    """
    if call.items or call.kwargs is not None:
        return False
    if type(call.meaning) is TensorRef:
        return (
            not (call.states or call.keys)
            and len(call.args) == usual.get(call.func)
            and _is_empty(call.args[-1], hooks)
        )
    if call.func not in hooks or call.args or call.how != "reduce":
        return False
    return _are_texts(call.keys) and (
        not call.states
        or (_are_versions(call.states, hooks) and METHODS.isdisjoint(call.keys))
    )


def _are_texts(keys: Sequence[Node]) -> bool:
    return set(map(type, keys)) <= {str}


def _are_versions(states: Sequence[Node], dicts: Collection[Node]) -> bool:
    """Tell whether the state of a dict is what `state_dict()` puts on it: `_metadata`,
    a dict of a small dict of numbers for each module.
    """
    state = states[0]
    if len(states) > 1 or type(state) is not Dict or state.keys != ["_metadata"]:
        return False
    modules = state.values[0]
    if type(modules) is not Opaque or modules.func not in dicts:
        return False
    if modules.args or modules.states or not _are_texts(modules.keys):
        return False
    return all(
        type(module) is Dict
        and _are_texts(module.keys)
        and set(map(type, module.values)) <= {int}
        for module in modules.values
    )


def _is_empty(hooks: Node, dicts: Collection[Node]) -> bool:
    """Tell whether a node is an empty `OrderedDict()`, as torch.save writes one for
    each tensor.
    """
    return (
        type(hooks) is Opaque
        and hooks.func in dicts
        and not (hooks.args or hooks.states or hooks.keys)
    )


def looks_like_enum(call: Opaque) -> bool:
    """Tell whether a call looks like a member of an enum.

    It calls a class of some package with one number or word.
    """
    func, args = call.func, call.args
    if (
        type(func) is not Global
        or is_own(func.module)
        or len(args) != 1
        # Enums pickle a member as a call of the class with its value.
        or call.how != "reduce"
    ):
        return False
    value = args[0]
    word = (
        type(value) is str
        and len(value) <= 40
        and value.replace("-", "_").isidentifier()
    )
    # A function of a package has a small first letter, a class a large one.
    is_class = func.name.rpartition(".")[2].lstrip("_")[:1].isupper()
    return (
        is_class
        and (word or type(value) is int)
        and not (call.states or call.items or call.keys)
    )


def names_and_calls(root: Node) -> tuple[list[Global], list[Opaque]]:
    """Return the names and the calls of a tree, as a pickle of it would have them, also
    in nested pickles.
    """
    names: dict[int, Global] = {}
    calls: list[Opaque] = []
    for node in nodes_below(root):
        if type(node) is Global:
            names[id(node)] = node
        elif type(node) is Opaque:
            calls.append(node)
    return list(names.values()), calls


def nodes_below(root: Node) -> Iterator[Node]:
    """Every node of a tree, and of the pickles nested in it; one with parts
    comes once.
    """
    seen: dict[int, Node] = {}
    todo: list[Sequence[Node]] = [[root]]
    while todo:
        for node in todo.pop():
            # Texts and numbers come as often as they stand: keeping them would cost
            # more.
            if type(node) in _INNER:
                if id(node) in seen:
                    continue
                seen[id(node)] = node
                todo += _node_parts(node)
                if type(node) is Opaque:
                    todo.append([node.func, *node.args])
                    if type(node.meaning) is Nested:
                        todo.append([node.meaning.root])
            yield node


# --- names as values ------------------------------------------------------------------


_PLACES = {
    ("functools.reduce", 0): "operator.or_",
    (
        "numpy.random._pickle.__generator_ctor",
        1,
    ): "numpy.random._pickle.__bit_generator_ctor",
    (
        "numpy.random._pickle.__randomstate_ctor",
        1,
    ): "numpy.random._pickle.__bit_generator_ctor",
}
"""Function and position of an argument -> the function that it may call, which the
grammar has judged there.
"""
_HANDED = frozenset(name.rpartition(".")[2] for name, _ in _PLACES)
_INNER = (Opaque, Dict, Set, list, tuple, PersistentId)


def _held_names(
    calls: Sequence[Opaque], roots: Sequence[Node], careful: Collection[Global]
) -> set[Global]:
    """Those of some names that stand anywhere but where they are called, or where a
    function expects them.
    """
    names: set[Global] = set()
    seen: dict[int, Node] = {}
    todo: list[Sequence[Node]] = [roots]
    for call in calls:
        # All calls of the pickle are here, so objects inside are not followed again.
        todo += _node_parts(call)
    while todo:
        for node in todo.pop():
            if type(node) is Global:
                if node in careful:
                    names.add(node)
            elif (
                type(node) in _INNER
                and type(node) is not Opaque
                and id(node) not in seen
            ):
                seen[id(node)] = node
                todo += _node_parts(node)
    return names


def _node_parts(node: Node) -> Iterator[Sequence[Node]]:
    """The nodes inside a node, but for its function and the functions that it expects
    as arguments.
    """
    if type(node) is Opaque:
        yield _judged_arguments(node)
        yield from (node.states, node.items, node.keys, node.values)
        if node.kwargs is not None:
            yield from (node.kwargs.keys, node.kwargs.values)
    elif type(node) is Dict:
        yield from (node.keys, node.values)
    elif type(node) is Set:
        yield node.items
    elif type(node) is PersistentId:
        yield [node.pid]
    elif type(node) is list or is_tuple(node):
        yield node


def _judged_arguments(call: Opaque) -> Sequence[Node]:
    func = call.func
    # A quick look at the last name, for nearly all calls.
    if type(func) is not Global or func.name not in _HANDED or call.how in NEW:
        return call.args
    name = python3_name(func.module, func.name)
    return [
        arg
        for index, arg in enumerate(call.args)
        if type(arg) is not Global
        or _PLACES.get((name, index)) != python3_name(arg.module, arg.name)
    ]
