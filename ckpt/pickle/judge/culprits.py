"""The names that the calls of a pickle run, where a call is not harmless."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpt.model.nodes import NEW, Global, Node, Opaque
from ckpt.pickle.attributes import WRITTEN
from ckpt.pickle.judge.grammar import (
    Grammar,
    class_of,
    grammar_of,
    is_at_rest,
    is_no_odd_optimizer,
    made_by,
)
from ckpt.pickle.judge.names import (
    METHODS,
    SHARED_CHANGE,
    is_known,
    is_own,
    makes_plain_objects,
)
from ckpt.pickle.keys import objects_in
from ckpt.pickle.machine import Fillings

_KEPT = 1_000
"""The most calls that are kept per name."""
_UNGUARDED = ("deque", "defaultdict", "_reconstruct", "__newobj__", "_reconstructor")
"""Names that make containers which Python frees one inside the other."""


class Uses:
    """The calls that count against one name: the first of them, and how many
    there are.
    """

    def __init__(self) -> None:
        self.first: list[Opaque] = []
        self.count = 0
        self.attributes: dict[str, None] = {}


def blame_calls(
    names: Collection[Global],
    calls: Sequence[Opaque],
    unusual: Sequence[Opaque],
    roots: Sequence[Node],
    late: Sequence[Opaque],
    hashed: Sequence[Node],
    fillings: Fillings | None,
) -> tuple[dict[Global, Uses], dict[Global, list[str]]]:
    """Return the names that the calls run. The second dict has the attributes that a
    class does not write.

    `unusual` are the calls that are judged here. All other arguments mean the same in
    `judge_imports`.
    """
    grammar = grammar_of(fillings)
    called: dict[Global, Uses] = {}
    odd: dict[Global, dict[str, None]] = {}
    unguarded = {name for name in names if name.name in _UNGUARDED}
    for call in unusual:
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
    for call in grammar.shared_changes(calls, roots):
        _blame_names(called, (_class_behind(call),), call, (SHARED_CHANGE,))
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
    return called, {name: list(attributes) for name, attributes in odd.items()}


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


def _blame_names(
    called: dict[Global, Uses],
    culprits: Sequence[Node],
    call: Opaque,
    attributes: Sequence[str] = (),
) -> None:
    for culprit in culprits:
        # A culprit may be a call without any name below it; then the function counts.
        for name in _names_behind(culprit) or _names_behind(call.func):
            uses = called.setdefault(name, Uses())
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
        if isinstance(key, str) and key in METHODS and type(value) in (Global, Opaque)
    ]
