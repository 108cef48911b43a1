"""The judgement of each name that a pickle imports: it is known, or loading imports it,
or calls it.

A function that unpickles, imports or calls its argument counts as called where it is a
value, because it can then run anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from ckpt.model.nodes import (
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
from ckpt.pickle.attributes import WRITTEN
from ckpt.pickle.judge.grammar import (
    NEW,
    Grammar,
    class_of,
    grammar_of,
    is_at_rest,
    is_no_odd_optimizer,
    made_by,
)
from ckpt.pickle.judge.known import (
    is_known,
    is_own,
    makes_plain_objects,
    passes_module,
    python3_name,
)
from ckpt.pickle.keys import objects_in
from ckpt.pickle.machine import Fillings

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


_KEPT = 1_000
"""The most calls that are kept per name."""
_UNGUARDED = ("deque", "defaultdict", "_reconstruct", "__newobj__", "_reconstructor")
"""Names that make containers which Python frees one inside the other."""
_LOOKED_UP = ("append", "extend", "add", "__setstate__")
"""Methods that a loader looks up on an object, so that one of its items can stand for
them.
"""
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
    grammar = grammar_of(fillings)
    called: dict[Global, _Calls] = {}
    odd: dict[Global, dict[str, None]] = {}
    # A set, for each nested pickle has a node of its own for this name.
    hooks = {
        name
        for name in names
        if (name.module, name.name) == ("collections", "OrderedDict")
    }
    usual: dict[Node, int] = {
        name: count for name in names if (count := _USUAL.get(name.qualified))
    }
    unguarded = {name for name in names if name.name in _UNGUARDED}
    for call in calls:
        # Nearly all calls of a file are these, so the grammar is not asked for them.
        if _is_usual(call, usual, hooks):
            continue
        is_allowed = grammar.allows(call)
        if not is_allowed:
            _blame_names(called, _find_culprits(grammar, call), call, grammar.called)
        # Allowed all the same: odd attributes are a warning.
        elif grammar.odd:
            odd.setdefault(_class_behind(call), {}).update(dict.fromkeys(grammar.odd))
        # With keys as attributes, an item may stand for `append` or `__setstate__`.
        if call.keys and (call.items or call.states):
            _blame_names(called, _method_items(call), call)
        if call.func in unguarded and not grammar.may_be_freed(call):
            _blame_names(called, (call.func,), call)
    for call in late:
        _blame_names(called, (call.func,), call)
    for call in objects_in(hashed):
        if not grammar.may_be_key(call):
            _blame_names(called, (call.func,), call)
    for key in hashed:
        if not grammar.may_hash(key):
            for call in objects_in([key]):
                _blame_names(called, (call.func,), call)
            # All further keys would exceed the limit as well.
            break
    careful = {
        name for name in names if python3_name(name.module, name.name) in _CAREFUL
    }
    # A value may be called later, with any arguments.
    for name in _held_names(calls, roots, careful) if careful else ():
        called.setdefault(name, _Calls())
    for name in names:
        # Its import goes through a module to some function of Python.
        if passes_module(name.name) and not is_known(name):
            called.setdefault(name, _Calls())
    judged = {
        name: Judgement("known" if is_known(name) else "unknown") for name in names
    }
    for name, attributes in odd.items():
        if is_known(name):
            judged[name] = Judgement("odd", attributes=tuple(attributes))
    # Called is the worst answer, so it replaces any other.
    return judged | {
        name: Judgement("called", tuple(uses.first), uses.count, tuple(uses.attributes))
        for name, uses in called.items()
    }


def _class_behind(call: Opaque) -> Global:
    """The class of an object that the grammar allows, by its name in the pickle."""
    origin = made_by(call)
    assert origin is not None
    name, args = origin
    # The attributes are of the class of the tensor, not of the function.
    of_tensor = (
        class_of(args[1]) if name.name.startswith("_rebuild_from_type") else None
    )
    return of_tensor or name


_USUAL = {"torch._utils._rebuild_tensor_v2": 6, "torch._utils._rebuild_parameter": 3}
"""The calls that make nearly all tensors, and their arguments, of which the last is an
empty dict of hooks.
"""


def _is_usual(call: Opaque, usual: Mapping[Node, int], hooks: Collection[Node]) -> bool:
    """Tell whether torch.save writes such a call for each tensor. The grammar allows
    it.
    """
    if call.states or call.items or call.keys or call.kwargs is not None:
        return False
    if type(call.meaning) is TensorRef:
        return len(call.args) == usual.get(call.func) and _is_empty(
            call.args[-1], hooks
        )
    return call.func in hooks and not call.args and call.how == "reduce"


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


# --- calls ----------------------------------------------------------------------------


def _find_culprits(grammar: Grammar, call: Opaque) -> Sequence[Node]:
    """Return the names that a call which is not harmless would run, or the calls whose
    result is called.

    There are none for an object of an unknown class, made without calling it: its name
    is an import.
    """
    origin = made_by(call)
    if origin is None:
        # Made without a call, a class runs no code but `__new__`.
        is_foreign = call.how in NEW and _is_foreign(grammar, call.func)
        return () if is_foreign and _hands_data(grammar, call) else (call.func,)
    cls, _ = origin
    # made_by looks through `copyreg`, so a class other than the function means that.
    is_object = call.how in NEW or cls is not class_of(call.func)
    if not (is_object and grammar.rule(cls) is None and _makes_unknown(cls)):
        return (cls,)
    is_written = cls.qualified in WRITTEN or (cls.module, cls.name) in _OPAQUE_CLASSES
    if not is_written and not _hands_data(grammar, call):
        return (cls,)
    if not is_own(cls.module):
        return () if is_no_odd_optimizer(grammar, call) else (cls,)
    return () if is_at_rest(grammar, call, is_written=is_written) else (cls,)


def _is_foreign(grammar: Grammar, func: Node) -> bool:
    """Tell whether what is made without a call is a class of a package that nobody
    knows here, or a class inside of one.
    """
    if type(func) is Opaque and not grammar.allows(func):
        return False
    # A class inside a class is a getattr of a getattr.
    for _ in range(_CLASSES_DEEP):
        if type(func) is not Opaque or not func.args:
            break
        func = func.args[0]
    return type(func) is Global and not is_own(func.module)


_CLASSES_DEEP = 100
"""Classes inside each other that are followed to the name of the outermost one."""


def _hands_data(grammar: Grammar, call: Opaque) -> bool:
    """Tell whether `__new__` of an unknown class is given data, tensors and objects of
    unknown classes alone.

    Types that call what they are given, such as `map`, have other names in many
    modules.
    """
    if call.how not in NEW:
        return True
    named = () if call.kwargs is None else (*call.kwargs.keys, *call.kwargs.values)
    return all(map(grammar.is_handed, (*call.args, *named)))


def _makes_unknown(cls: Global | None) -> bool:
    return cls is not None and (
        not is_own(cls.module)
        or makes_plain_objects(cls.module)
        or (cls.module, cls.name) in _OPAQUE_CLASSES
    )


_OPAQUE_CLASSES = (
    ("torch", "ScriptObject"),
    ("torch._dynamo.eval_frame", "OptimizedModule"),
)
"""Further classes of torch whose objects are made without a call, as whole models hold
them.
"""


class _Calls:
    """The calls that count against one name: the first of them, and how many
    there are.
    """

    def __init__(self) -> None:
        self.first: list[Opaque] = []
        self.count = 0
        self.attributes: dict[str, None] = {}


def _blame_names(
    called: dict[Global, _Calls],
    culprits: Sequence[Node],
    call: Opaque,
    attributes: Sequence[str] = (),
) -> None:
    for culprit in culprits:
        # A culprit may be a call without any name below it; then the function counts.
        for name in _names_behind(culprit) or _names_behind(call.func):
            uses = called.setdefault(name, _Calls())
            uses.count += 1
            uses.attributes.update(dict.fromkeys(attributes))
            if len(uses.first) < _KEPT:
                uses.first.append(call)


def _names_behind(culprit: Node) -> list[Global]:
    """The name of what is called, or the names that made it: the unknown ones, else the
    first.
    """
    names: list[Global] = []
    todo, seen = [culprit], 0
    # A few names tell enough, and each of many calls is looked at.
    while todo and seen < 20:
        node = todo.pop()
        seen += 1
        name = class_of(node)
        if name is not None:
            names.append(name)
        elif type(node) is Opaque:
            todo += [
                *(arg for arg in reversed(node.args) if type(arg) in (Global, Opaque)),
                node.func,
            ]
    unknown = [name for name in names if not is_known(name)]
    return unknown or names[:1]


def _method_items(call: Opaque) -> list[Node]:
    """Items of an object that a loader calls as its methods, where keys are
    attributes.
    """
    return [
        value
        for key, value in zip(call.keys, call.values, strict=True)
        if isinstance(key, str)
        and key in _LOOKED_UP
        and type(value) in (Global, Opaque)
    ]


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
