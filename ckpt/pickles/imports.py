"""What loading a pickle would do with each name that it imports: nothing unknown, import it, or call it.

A function that unpickles, imports or calls its argument is known only where ckpt has read that argument.
Anywhere else, as a value too, it counts as called, because it can then run anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

from ckpt.nodes import Dict, Global, Nested, Node, Opaque, PersistentId, Set, is_tuple
from ckpt.pickles.known import ENUMS, KNOWN, VALUES, is_known, is_standard, python3_name
from ckpt.rows import NamedTuple
from ckpt.tree.arrays import CODECS, as_bytes

Group = Literal["known", "unknown", "called"]


class Judgement(NamedTuple):
    """What loading does with a name. `calls` are the calls that count; none for a function that is held as a value."""

    group: Group
    calls: tuple[Opaque, ...] = ()


_KEPT = 1_000
"""The most calls that are kept per name."""
_NEW = ("newobj", "newobj_ex")
_WRAPPERS = ("builtins", "__builtin__", "functools", "_functools", "itertools", "operator", "_operator")
"""Modules with classes whose instances call what they are given (`map`)."""
_LIVE_CLASSES = ("torch.nn.modules.", "torch.nn.parallel.", "torch.nn.utils.", "torch.optim.")
"""Classes that torch pickles without calling them. Some call the functions that they are given."""
_LOOKED_UP = {"append": "items", "extend": "items", "add": "items", "__setstate__": "states"}
"""Methods that a loader looks up on an object, so that one of its attributes can stand for them."""


def judge(
    names: Collection[Global], calls: Sequence[Opaque], roots: Sequence[Node]
) -> dict[Global, Judgement]:
    """What loading does with each name of a pickle that makes these calls. `roots` are its values outside of calls.

    The calls must have their meaning (`Rebuilder.annotate`).
    """
    dotted = {name: python3_name(name.module, name.name) for name in names}
    plain = {name for name, text in dotted.items() if _is_plain(text)}
    called: dict[Global, list[Opaque]] = {}
    for call in calls:
        if call.func not in plain:
            _blame(called, _culprits(call), call)
        if call.states and (call.items or len(call.states) > 1):
            _blame(called, _methods(call), call)
    careful = {name for name, text in dotted.items() if text in _UNDERSTOOD}
    for name in _held(calls, roots, careful) if careful else ():
        called.setdefault(name, [])
    judged = {
        name: Judgement("known" if _is_read(text) or is_known(name) else "unknown")
        for name, text in dotted.items()
    }
    return judged | {name: Judgement("called", tuple(made)) for name, made in called.items()}


def _is_plain(name: str) -> bool:
    """Whether a name may be called with anything."""
    return name in KNOWN and not _is_read(name) and not name.startswith(_LIVE_CLASSES)


def _is_read(name: str) -> bool:
    return name in _UNDERSTOOD or name in _CHECKED


def runs_anything(module: str, name: str) -> bool:
    """Whether a name that loading calls can run code of the file's choice: it belongs to Python, or takes code."""
    return is_standard(module) or python3_name(module, name) in _UNDERSTOOD


def looks_like_enum(call: Opaque) -> bool:
    """Whether a call looks like a member of an enum: a class of some package, called with one number or word."""
    func, args = call.func, call.args
    if type(func) is not Global or is_standard(func.module) or len(args) != 1 or call.how != "reduce":
        return False
    value = args[0]
    word = type(value) is str and len(value) <= 40 and value.replace("-", "_").isidentifier()
    is_class = func.name.rpartition(".")[2].lstrip("_")[:1].isupper()
    return is_class and (word or type(value) is int) and not (call.states or call.items or call.keys)


def reached(root: Node) -> tuple[list[Global], list[Opaque]]:
    """The names and the calls of a tree, as a pickle of it would have them; those of nested pickles too."""
    names: dict[int, Global] = {}
    calls: list[Opaque] = []
    for node in nodes_below(root):
        if type(node) is Global:
            names[id(node)] = node
        elif type(node) is Opaque:
            calls.append(node)
    return list(names.values()), calls


def nodes_below(root: Node) -> Iterator[Node]:
    """Every node of a tree, and of the pickles nested in it; one with parts comes once."""
    seen: dict[int, Node] = {}
    todo: list[Sequence[Node]] = [[root]]
    while todo:
        for node in todo.pop():
            if type(node) in _INNER:
                if id(node) in seen:
                    continue
                seen[id(node)] = node
                todo += _parts(node)
                if type(node) is Opaque:
                    todo.append([node.func, *node.args])
                    if type(node.meaning) is Nested:
                        todo.append([node.meaning.root])
            yield node


# --- calls ------------------------------------------------------------------------------------------------------------


def _culprits(call: Opaque) -> Sequence[Node]:
    """What a call would run that is not known: names, or calls whose result is called. Empty for a known call."""
    func = _function(call.func)
    if type(func) is not Global:
        return () if call.how in _NEW else (func,)
    if call.how in _NEW:
        return (func,) if _is_wrapper(func) else ()
    name = python3_name(func.module, func.name)
    judged = _UNDERSTOOD.get(name) or _CHECKED.get(name)
    if judged is not None:
        return judged(call)
    if name in KNOWN:
        return (func,) if call.args and name.startswith(_LIVE_CLASSES) else ()
    if name in ENUMS and len(call.args) == 1 and type(call.args[0]) in (int, str, float, bool):
        return ()
    return (func,)


def _class(node: Node) -> Global | None:
    """The name of a class; legacy files keep those of modules outside of the pickle."""
    named = node.meaning if type(node) is PersistentId else node
    return named if type(named) is Global else None


def _function(func: Node) -> Node:
    """The function of a call; `getattr(C, "name")` of a known method is that method."""
    if type(func) is Opaque and _is_attribute(func) and type(func.args[0]) is Global:
        method = Global(func.args[0].module, f"{func.args[0].name}.{func.args[1]!s}")
        return method if python3_name(method.module, method.name) in KNOWN else func
    return _class(func) or func


def _is_wrapper(cls: Global) -> bool:
    return cls.module in _WRAPPERS and python3_name(cls.module, cls.name) not in KNOWN


def _blame(called: dict[Global, list[Opaque]], culprits: Sequence[Node], call: Opaque) -> None:
    for culprit in culprits:
        for name in _names_behind(culprit) or _names_behind(call.func):
            made = called.setdefault(name, [])
            if len(made) < _KEPT:
                made.append(call)


def _names_behind(culprit: Node) -> list[Global]:
    """The name of what is called, or the names that made it: the unknown ones, else the first."""
    names: list[Global] = []
    todo, seen = [culprit], 0
    while todo and seen < 20:
        node = todo.pop()
        seen += 1
        name = _class(node)
        if name is not None:
            names.append(name)
        elif type(node) is Opaque:
            todo += [*(arg for arg in reversed(node.args) if type(arg) in (Global, Opaque)), node.func]
    unknown = [name for name in names if not is_known(name)]
    return unknown or names[:1]


def _methods(call: Opaque) -> list[Node]:
    """Attributes of an object that a loader calls as its methods."""
    found: list[Node] = []
    for state in call.states:
        for part in state if is_tuple(state) else (state,):
            for key, value in zip(part.keys, part.values, strict=True) if type(part) is Dict else ():
                used = _LOOKED_UP.get(str(key)) if isinstance(key, str) else None
                if used == "items" and not call.items:
                    continue
                if used is not None and type(value) in (Global, Opaque):
                    found.append(value)
    return found


# --- functions that are known where their arguments are understood ----------------------------------------------------


def _unpickle(call: Opaque) -> Sequence[Node]:
    return () if type(call.meaning) is Nested else (call.func,)


def _encode(call: Opaque) -> Sequence[Node]:
    return () if as_bytes(call) is not None else (call.func,)


def _text(call: Opaque) -> Sequence[Node]:
    """bytes, bytearray or str: with an encoding they import the codec by its name."""
    codecs = [call.args[1]] if len(call.args) > 1 else []
    return () if all(isinstance(codec, str) and str(codec) in CODECS for codec in codecs) else (call.func,)


def _from_type(call: Opaque) -> Sequence[Node]:
    """`_rebuild_from_type_v2(func, type, args, state)` calls func(*args)."""
    func = call.args[0] if call.args else call.func
    return () if type(func) is Global and _is_plain(python3_name(func.module, func.name)) else (func,)


def _reconstructor(call: Opaque) -> Sequence[Node]:
    """`_reconstructor(cls, base, state)` calls base.__new__(cls, state) and, unless base is object, base.__init__."""
    if len(call.args) < 2 or _class(call.args[0]) is None:
        return (call.func,)
    base = _class(call.args[1])
    return () if base and _is_plain(python3_name(base.module, base.name)) else (call.args[1],)


def _newobj(call: Opaque) -> Sequence[Node]:
    cls = _class(call.args[0]) if call.args else None
    return (call.func,) if cls is None or _is_wrapper(cls) else ()


def _masked(call: Opaque) -> Sequence[Node]:
    """`_mareconstruct(cls, base, shape, dtype)` makes instances of two classes."""
    return () if len(call.args) > 1 and all(map(_class, call.args[:2])) else (call.func,)


def _bit_generator(call: Opaque) -> Sequence[Node]:
    """It calls its argument if that is a class."""
    made = call.args[0] if call.args else "MT19937"
    return () if isinstance(made, str) or _is_bit_generator(made) else (made,)


def _is_bit_generator(node: Node) -> bool:
    return type(node) is Global and node.module.startswith("numpy.random._") and is_known(node)


def _generator(call: Opaque) -> Sequence[Node]:
    """`__generator_ctor(bit_generator, ctor)` calls ctor(bit_generator)."""
    ctor = call.args[1] if len(call.args) > 1 else None
    named = type(ctor) is Global and python3_name(ctor.module, ctor.name) == _BIT_GENERATOR
    if ctor is not None and not (
        named and (isinstance(call.args[0], str) or _is_bit_generator(call.args[0]))
    ):
        return (ctor,)
    return ()


def _getattr(call: Opaque) -> Sequence[Node]:
    """An attribute of a class, or a method of an object. Where that is called, the call itself is judged."""
    return () if _is_attribute(call) else (call.func,)


def _is_attribute(call: Opaque) -> bool:
    if type(call.func) is not Global or python3_name(call.func.module, call.func.name) != "builtins.getattr":
        return False
    of, name = call.args if len(call.args) == 2 else (None, None)
    owner = type(of) is Global or (type(of) is Opaque and of.how in _NEW)
    return owner and isinstance(name, str) and not name.startswith("__") and name != "from_file"


def _type(call: Opaque) -> Sequence[Node]:
    return () if len(call.args) == 1 else (call.func,)


def _getitem(call: Opaque) -> Sequence[Node]:
    """`typing.Optional[X]`."""
    of = call.args[0] if len(call.args) == 2 else None
    typed = type(of) is Global and of.module == "typing" and f"typing.{of.name}" in VALUES
    return () if typed else (call.func,)


def _reduce(call: Opaque) -> Sequence[Node]:
    """`int | None`, which is `reduce(or_, (int, NoneType))`."""
    func, *rest = call.args or (None,)
    named = type(func) is Global and python3_name(func.module, func.name) == "operator.or_"
    return () if named and len(rest) == 1 and is_tuple(rest[0]) else (call.func,)


def _partial(call: Opaque) -> Sequence[Node]:
    """`functools.partial(f)` calls nothing until it is called; its state may name another f."""
    functions = [call.args[0] if len(call.args) == 1 else None]
    functions += [state[0] if is_tuple(state) and state else None for state in call.states]
    named = all(type(func) is Global or (type(func) is Opaque and _is_attribute(func)) for func in functions)
    return () if named else (call.func,)


_BIT_GENERATOR = "numpy.random._pickle.__bit_generator_ctor"
_UNDERSTOOD: dict[str, Callable[[Opaque], Sequence[Node]]] = {
    "torch.storage._load_from_bytes": _unpickle,
    "torch._tensor._rebuild_from_type": _from_type,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "_codecs.encode": _encode,
    "copyreg._reconstructor": _reconstructor,
    "copyreg.__newobj__": _newobj,
    "numpy.ma.core._mareconstruct": _masked,
    _BIT_GENERATOR: _bit_generator,
    "numpy.random._pickle.__generator_ctor": _generator,
    "numpy.random._pickle.__randomstate_ctor": _generator,
    "builtins.getattr": _getattr,
    "operator.getitem": _getitem,
    "operator.or_": lambda call: (call.func,),
    "functools.reduce": _reduce,
    "functools.partial": _partial,
}
"""What each of these functions would run beyond what is known: nothing where its arguments are understood."""
_CHECKED: dict[str, Callable[[Opaque], Sequence[Node]]] = {
    "builtins.type": _type,
    **dict.fromkeys(("builtins.bytes", "builtins.bytearray", "builtins.str"), _text),
}
"""The same for names that run nothing as values."""


# --- names as values --------------------------------------------------------------------------------------------------


_PLACES = {
    ("functools.reduce", 0): "operator.or_",
    ("numpy.random._pickle.__generator_ctor", 1): _BIT_GENERATOR,
    ("numpy.random._pickle.__randomstate_ctor", 1): _BIT_GENERATOR,
}
"""Function and position of an argument -> the function that it may call, which `_culprits` has judged there."""
_HANDED = frozenset(name.rpartition(".")[2] for name, _ in _PLACES)
_INNER = (Opaque, Dict, Set, list, tuple, PersistentId)


def _held(calls: Sequence[Opaque], roots: Sequence[Node], careful: Collection[Global]) -> set[Global]:
    """Those of some names that stand anywhere but where they are called, or where a function expects them."""
    found: set[Global] = set()
    seen: dict[int, Node] = {}
    todo: list[Sequence[Node]] = [roots]
    for call in calls:
        todo += _parts(call)
    while todo:
        for node in todo.pop():
            if type(node) is Global:
                if node in careful:
                    found.add(node)
            elif type(node) in _INNER and type(node) is not Opaque and id(node) not in seen:
                seen[id(node)] = node
                todo += _parts(node)
    return found


def _parts(node: Node) -> Iterator[Sequence[Node]]:
    """The nodes inside a node, but for its function and the functions that it expects as arguments."""
    if type(node) is Opaque:
        yield _arguments(node)
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


def _arguments(call: Opaque) -> Sequence[Node]:
    func = call.func
    if type(func) is not Global or func.name not in _HANDED or call.how in _NEW:
        return call.args
    name = python3_name(func.module, func.name)
    return [
        arg
        for index, arg in enumerate(call.args)
        if type(arg) is not Global or _PLACES.get((name, index)) != python3_name(arg.module, arg.name)
    ]
