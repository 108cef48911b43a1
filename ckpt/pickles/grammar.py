"""The calls that loading may make without a finding: for each listed function what it may be given.

The default is no. A call is harmless when its function has a rule here, and each argument, each state and each
item has the form that the rule allows. The danger is less in the functions than in the values that they call:
`OrderedDict(x)` asks `x` for its `keys`, `Adam` asks its groups for their `params`, `Parameter(x)` calls
`x.detach()`. So no rule lets a function, a class, or an object with attributes of the file's choice reach code
that calls or iterates it. Where such values only lie, in a module or a plain dict, nothing calls them.

The rules follow the sources of Python 3.10 to 3.14, numpy 1 and 2, and torch up to 2.13. What is popped from
the stack of the machine has run as well, so all calls of a pickle are judged, not only the calls in its tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Literal

from ckpt.dtypes import BY_NAME, BY_STORAGE
from ckpt.nodes import (
    ByteStr,
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    Tagged,
    is_tuple,
    tensor_of,
)
from ckpt.pickles.known import (
    CLASSES,
    DICTS,
    ENUMS,
    MODULES,
    OPERATORS,
    OPTIMIZERS,
    VALUES,
    is_own,
    python3_name,
)
from ckpt.pickles.machine import NAME_CHARACTERS
from ckpt.pickles.rebuild import REBUILD_CALLS, UNTYPED
from ckpt.rows import NamedTuple
from ckpt.tensors import Composite, Storage, TensorRef
from ckpt.tree.arrays import CODECS, as_bytes

Kind = Literal["value", "container", "instance"]
"""The kind of a call's result, for other calls that take it.

A value has no parts of the file's choice. A container is a list, set or dict, as plain as its parts. An
instance is an object whose attributes the file sets: nothing may be given one.
"""

_SCALARS = frozenset((type(None), bool, int, float, str, ByteStr, bytes, bytearray))
_HEAVY = 10_000_000
"""The most entries of nested tuples and lists, each counted as often as it is reached, that a call is given."""
_WORDS = frozenset(
    [f"torch.{name}" for name in BY_NAME]
    + [f"torch.sparse_{kind}" for kind in ("coo", "csr", "csc", "bsr", "bsc")]
    + ["torch.strided", "builtins.Ellipsis", "builtins.NotImplemented"]
    + [
        f"torch.{name}"
        for name in ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
    ]
    + [
        f"torch.per_{name}"
        for name in (
            "tensor_affine",
            "tensor_symmetric",
            "channel_affine",
            "channel_symmetric",
            "channel_affine_float_qparams",
        )
    ]
)
"""Names of values that are neither functions nor classes."""

_COPYREG = ("copyreg", "copy_reg")
NEW = ("newobj", "newobj_ex")
"""Opcodes that make an object without calling its class."""


class _Search:
    """Searches nodes for a form that all of their parts must have. Each node is searched once, however many calls share it.

    `leaf` tells of a node without parts if it has the form, and is None for one whose parts must have it. A node has at most
    `most` entries, each counted as often as it is reached, because a hash or a text of it takes as long. With `cycles`,
    a node may hold itself.
    """

    def __init__(self, leaf: Callable[[Node], bool | None], most: int, *, cycles: bool) -> None:
        self._leaf = leaf
        self._most = most
        self._cycles = cycles
        self._sizes: dict[int, int] = {}  # id of a node with parts -> its entries; 0 without the form

    def has(self, root: Node) -> bool:
        """Tell whether a node and all nodes below it have the form."""
        sizes = self._sizes
        todo: list[tuple[Node, list[Node] | None]] = [(root, None)]
        finished: list[int] = []
        is_open: set[int] = set()
        is_cyclic = False
        while todo:
            node, parts = todo.pop()
            if parts is None:
                if id(node) in sizes or id(node) in is_open or self._leaf(node) is not None:
                    continue
                parts = _parts(node)
                is_open.add(id(node))
                todo.append((node, parts))
                todo += [(part, None) for part in parts if type(part) not in _SCALARS]
                continue
            is_open.discard(id(node))
            size = 1
            for part in parts:
                if type(part) in _SCALARS:
                    of = 1
                elif id(part) in is_open:  # one of those around it
                    is_cyclic, of = True, int(self._cycles)
                else:
                    of = self._size(part)
                size = 0 if not of or not size else size + of
            sizes[id(node)] = size if size <= self._most else 0
            finished.append(id(node))
        has = self._size(root) > 0
        if not has and is_cyclic:  # what seemed to have it may hold what is around it
            sizes.update(dict.fromkeys(finished, 0))
        return has

    def _size(self, node: Node) -> int:
        leaf = self._leaf(node)
        return self._sizes.get(id(node), 0) if leaf is None else int(leaf)


class Grammar:
    """Judges the calls of one pickle, whose tree must not change meanwhile.

    What many calls share is looked at once, so judging takes time in proportion to the pickle.
    """

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str], Rule | None] = {}
        self._answers: dict[tuple[int, int], bool] = {}
        self._plain = _Search(self._is_plain, _HEAVY, cycles=True)
        self._types = _Search(self._is_type, 1_000, cycles=False)
        self._held = _Search(self._is_held, 10_000, cycles=False)

    def allows(self, call: Opaque) -> bool:
        """Tell whether a call is harmless, with all that is done to its result."""
        origin = made_by(call)
        rule = None if origin is None else self.rule(origin[0])
        if origin is None or rule is None or not rule.takes(self, origin[1], call):
            return False
        if call.states and not (rule.state and len(call.states) == 1 and rule.state(self, call.states[0])):
            return False
        return not (call.items and not rule.has_items) and not (call.keys and not rule.has_keys)

    def rule(self, name: Global) -> Rule | None:
        """Return the rule of a function or class, or None when it is not listed."""
        key = (name.module, name.name)
        if key not in self._rules:
            self._rules[key] = rule_of(python3_name(*key))
        return self._rules[key]

    def once(self, form: Form, node: Node) -> bool:
        """Tell whether a node has a form whose check takes time in proportion to the node.

        Each node of the tree is checked once.
        """
        key = (id(form), id(node))
        if key not in self._answers:
            self._answers[key] = form(self, node)
        return self._answers[key]

    def is_plain(self, node: Node) -> bool:
        """Tell whether a node and all below it are data.

        There is no function, no class, no object with attributes of the file.
        """
        return self._plain.has(node)

    def is_type_expression(self, node: Node) -> bool:
        """Tell whether a node can stand in brackets behind a type.

        Types, words, and tuples and lists of them can. Nothing calls them.
        """
        return self._types.has(node)

    def is_held(self, node: Node) -> bool:
        """Tell whether a partial may hold a node as arguments: data, functions, and other partials."""
        return self._held.has(node)

    def _is_plain(self, node: Node) -> bool | None:
        kind = type(node)
        if kind in _SCALARS or kind is TensorRef or kind is Composite:
            return True
        if kind in (list, tuple, Dict, Set):
            return None
        if type(node) is Global:
            return python3_name(node.module, node.name) in _WORDS
        if type(node) is PersistentId:
            return type(node.meaning) is not Global
        if type(node) is not Opaque:
            return False
        if tensor_of(node) is not None:
            return True
        origin = made_by(node)
        rule = None if origin is None else self.rule(origin[0])
        if rule is None or rule.makes == "instance":
            return False
        return True if rule.makes == "value" else None

    def _is_type(self, node: Node) -> bool | None:
        if type(node) in (list, tuple):
            return None
        if type(node) is Opaque:
            return None if _TYPES(self, node) else False
        return type(node) in _SCALARS or class_of(node) is not None

    def _is_held(self, node: Node) -> bool | None:
        if type(node) in (list, tuple, Dict):
            return None
        return _function(self, node) or _PARTIALS(self, node) or self.is_plain(node)


def _parts(node: Node) -> list[Node]:
    if type(node) is Opaque:
        args = node.args[1:] if node.args and _is_factory(node.args[0]) else node.args  # of a defaultdict
        return [*args, *node.items, *node.keys, *node.values, *node.states]
    if type(node) is Dict:
        return [*node.keys, *node.values]
    return list(node.items if type(node) is Set else node)  # type: ignore[arg-type]


def class_of(node: Node) -> Global | None:
    """Return the name that a node is, or None.

    Legacy files keep the names of modules outside of the pickle.
    """
    named = node.meaning if type(node) is PersistentId else node
    return named if type(named) is Global else None


def made_by(call: Opaque) -> tuple[Global, tuple[Node, ...]] | None:
    """The class or function of a call, and its arguments. None where that is no name, or there are keyword arguments.

    `copyreg._reconstructor` and `copyreg.__newobj__` make objects as NEWOBJ does.
    """
    func, args = class_of(call.func), call.args
    if type(call.func) is Opaque:
        func = _method(call.func)
    if func is None or (call.kwargs is not None and call.kwargs.keys):
        return None
    cls = class_of(args[0]) if args and call.how not in NEW and func.module in _COPYREG else None
    if cls is None:
        return func, args
    if func.name == "__newobj__":
        return cls, args[1:]
    if func.name != "_reconstructor" or len(args) != 3:
        return func, args
    base = class_of(args[1])
    of = base and python3_name(base.module, base.name)
    if of == "builtins.object" and args[2] is None:
        return cls, ()
    return (cls, (args[2],)) if of in _BASES and _is_literal(args[2]) else (func, args)


_BASES = frozenset(
    f"builtins.{name}"
    for name in (
        "list",
        "dict",
        "set",
        "frozenset",
        "tuple",
        "str",
        "int",
        "float",
        "complex",
        "bytes",
        "bytearray",
    )
)


def _method(call: Opaque) -> Global | None:
    """The method that `getattr(C, "name")` is, where it is listed."""
    of = call.args[0] if _is_getattr(call) else None
    if type(of) is not Global:
        return None
    name = f"{of.name}.{call.args[1]!s}"
    return Global(of.module, name) if rule_of(python3_name(of.module, name)) is not None else None


def _is_getattr(call: Opaque) -> bool:
    func = call.func
    return (
        type(func) is Global
        and python3_name(func.module, func.name) == "builtins.getattr"
        and call.how == "reduce"
        and len(call.args) == 2
        and isinstance(call.args[1], str)
        and len(call.args[1]) <= NAME_CHARACTERS
    )


# --- forms: what one node may be ---------------------------------------------------------------------------------------

Form = Callable[["Grammar", Node], bool]
Args = Callable[[Grammar, tuple[Node, ...], Opaque], bool]


class Rule(NamedTuple):
    """The values that a function or class may be given: arguments, one state, items, and items set by key."""

    takes: Args
    makes: Kind = "value"
    state: Form | None = None
    has_items: bool = False
    has_keys: bool = False


def _made_by(*names: str) -> Form:
    """The result of a call of one of these names."""

    def form(grammar: Grammar, node: Node) -> bool:
        origin = made_by(node) if type(node) is Opaque else None
        return origin is not None and python3_name(origin[0].module, origin[0].name) in names

    return form


def _plain(grammar: Grammar, node: Node) -> bool:
    return grammar.is_plain(node)


def _is_text(node: Node) -> bool:
    return type(node) is str or type(node) is ByteStr


def _any_text(grammar: Grammar, node: Node) -> bool:
    return _is_text(node)


def _text(grammar: Grammar, node: Node) -> bool:
    return _is_text(node) and len(node) <= 10_000  # type: ignore[arg-type]


def _matching(pattern: str) -> Form:
    return lambda grammar, node: _text(grammar, node) and re.fullmatch(pattern, str(node)) is not None


def _raw(grammar: Grammar, node: Node) -> bool:
    """Bytes, as they are, as protocol 2 writes them (by a call, which is judged by itself), or that stay in the file."""
    if type(node) is PersistentId:
        return type(node.pid) is int and type(node.meaning) is Storage
    return type(node) in (bytes, bytearray, ByteStr) or _BYTES(grammar, node)


_BYTES = _made_by("_codecs.encode", "builtins.bytes", "builtins.bytearray")


def _number(grammar: Grammar, node: Node) -> bool:
    return type(node) in (int, float, bool)


def _count(grammar: Grammar, node: Node) -> bool:
    return type(node) is int and 0 <= node < 2**31


def _scalar(grammar: Grammar, node: Node) -> bool:
    return type(node) in _SCALARS


def _anything(grammar: Grammar, node: Node) -> bool:
    return True


def _nowhere(grammar: Grammar, node: Node) -> bool:
    return False


def _none(grammar: Grammar, node: Node) -> bool:
    return node is None


def _tensor(grammar: Grammar, node: Node) -> bool:
    return tensor_of(node) is not None


def _is_literal(node: Node) -> bool:
    return type(node) in (list, tuple, Dict, Set) or type(node) in _SCALARS


def _series(grammar: Grammar, node: Node) -> bool:
    """A list, tuple, set or dict of the pickle itself, with any parts: iterating it runs nothing."""
    return type(node) in (list, tuple, Dict, Set)


def _pairs(grammar: Grammar, node: Node) -> bool:
    return type(node) is Dict or ((type(node) is list or is_tuple(node)) and grammar.once(_all_pairs, node))


def _all_pairs(grammar: Grammar, node: Node) -> bool:
    assert type(node) is list or is_tuple(node)
    return all((type(pair) is list or type(pair) is tuple) and len(pair) == 2 for pair in node)


def _named(*names: str) -> Form:
    """One of these names, none of which is called where it stands, or is called with what this rule allows."""

    def form(grammar: Grammar, node: Node) -> bool:
        name = class_of(node)
        return name is not None and python3_name(name.module, name.name) in names

    return form


def _either(*forms: Form) -> Form:
    return lambda grammar, node: any(form(grammar, node) for form in forms)


def _tuple(*forms: Form) -> Form:
    return lambda grammar, node: (
        is_tuple(node)
        and len(node) == len(forms)
        and all(form(grammar, part) for form, part in zip(forms, node, strict=True))
    )


def _fields(**forms: Form) -> Form:
    """A state that becomes the attributes of an object: a dict with texts as keys, and one of slots.

    `forms` judge the attributes that the class calls or iterates when it is loaded. No other is looked at by
    then.
    """

    def form(grammar: Grammar, node: Node) -> bool:
        if is_tuple(node) and len(node) == 2:
            return all(part is None or (type(part) is Dict and form(grammar, part)) for part in node)
        return grammar.once(named, node) if type(node) is Dict else node is None

    def named(grammar: Grammar, node: Node) -> bool:
        assert type(node) is Dict
        if not all(map(_is_text, node.keys)):
            return False
        names = [str(key) for key in node.keys]
        if not any(name in forms or name.startswith("__") for name in names):
            return True
        return all(
            forms[name](grammar, value)
            if name in forms
            else not name.startswith("__") or type(value) in _SCALARS
            for name, value in zip(names, node.values, strict=True)
        )

    return form


_attributes = _fields()


# --- forms of arguments ------------------------------------------------------------------------------------------------


def _takes(*forms: Form, least: int | None = None) -> Args:
    """One form for each argument; those after the first `least` may be left out."""
    fewest = len(forms) if least is None else least

    def check(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
        return fewest <= len(args) <= len(forms) and all(
            form(grammar, arg) for form, arg in zip(forms, args, strict=False)
        )

    return check


_PARTS = 100
"""The most arguments of a call that takes any number of them."""


def _many(form: Form) -> Args:
    return lambda grammar, args, call: len(args) <= _PARTS and all(form(grammar, arg) for arg in args)


_nothing = _takes()


def _uncalled(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """An object that is made without calling its class, whose `__init__` may take time and memory (`Transformer()`)."""
    func = class_of(call.func)
    return not args and (call.how != "reduce" or (func is not None and func.module in _COPYREG))


def _rebuilt(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A call that torch turns into a tensor: its parts, its hooks and what else it is given are data."""
    return grammar.is_plain(call.args)


def _from_type(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_from_type_v2(func, type, args, state)`: the tensor of another call, with a class and attributes."""
    if tensor_of(call) is None or len(args) != 4 or class_of(args[1]) is None or not is_tuple(args[2]):
        return False
    inner = args[2]
    if type(args[0]) is Global and args[0].name == "_rebuild_wrapper_subclass":
        inner = inner[1:_PARTS]  # the class again; it takes eight
    cls = class_of(args[1])
    rule = None if cls is None else grammar.rule(cls)
    own = rule is not None and rule.state is not None and rule.state(grammar, args[3])
    return (
        all(map(grammar.is_plain, inner[:_PARTS]))
        and len(args[2]) <= _PARTS
        and (own or _attributes(grammar, args[3]))
    )


def _with_state(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_parameter_with_state(data, requires_grad, hooks, state)`."""
    return (
        tensor_of(call) is not None
        and len(args) == 4
        and all(map(grammar.is_plain, args[:3]))
        and _attributes(grammar, args[3])
    )


def _wrapper(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_wrapper_subclass(class, …)`."""
    return (
        tensor_of(call) is not None
        and len(args) <= _PARTS
        and class_of(args[0]) is not None
        and all(map(grammar.is_plain, args[1:]))
    )


def _tagged(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    return type(call.meaning) is Tagged


def _nested(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_load_from_bytes(b)` unpickles; that pickle was read, and is judged, like this one."""
    return type(call.meaning) is Nested or tensor_of(call) is not None


def _encoded(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    return as_bytes(call) is not None


def _codec(grammar: Grammar, node: Node) -> bool:
    """bytes, bytearray or str import a codec by its name."""
    return _is_text(node) and str(node) in CODECS


def _bytes(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    if len(args) == 2:
        return _is_text(args[0]) and _codec(grammar, args[1])
    return not args or (len(args) == 1 and (_raw(grammar, args[0]) or _numbers(grammar, args[0])))


def _str(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    if len(args) == 2:
        return _raw(grammar, args[0]) and _codec(grammar, args[1])
    return not args or (len(args) == 1 and (_is_text(args[0]) or type(args[0]) in (float, bool, type(None))))


def _numbers(grammar: Grammar, node: Node) -> bool:
    """A list of numbers, of lists of numbers, and so on."""
    return (type(node) is list or type(node) is tuple) and grammar.is_plain(node)


# --- Python -------------------------------------------------------------------------------------------------------------

_CONTAINERS = {
    "builtins.list": Rule(_takes(_series, least=0), "container", None, has_items=True),
    "builtins.tuple": Rule(_takes(_series, least=0), "container"),
    "builtins.set": Rule(_takes(_series, least=0), "container"),
    "builtins.frozenset": Rule(_takes(_series, least=0), "container"),
    "builtins.dict": Rule(_takes(_pairs, least=0), "container", None, has_keys=True),
    "collections.OrderedDict": Rule(_takes(_pairs, least=0), "container", _attributes, has_keys=True),
    "collections.Counter": Rule(_takes(_series, least=0), "container", _attributes, has_keys=True),
    "collections.deque": Rule(
        _takes(_series, _either(_none, _count), least=0), "container", _attributes, has_items=True
    ),
}
_FACTORIES = (
    *(
        f"builtins.{name}"
        for name in ("list", "dict", "set", "frozenset", "tuple", "int", "float", "str", "bool")
    ),
    "collections.OrderedDict",
    "collections.Counter",
    "collections.deque",
    "torch.amp.grad_scaler._refresh_per_optimizer_state",
    "torch.cuda.amp.grad_scaler._refresh_per_optimizer_state",
)
"""Classes and functions that a `defaultdict` may call, without arguments, whenever somebody looks up a key."""


def _is_factory(node: Node) -> bool:
    name = class_of(node)
    return name is not None and python3_name(name.module, name.name) in _FACTORIES


def _factory(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`defaultdict(f, …)`; an f of another package is told of as an import, and then the dict is no plain data."""
    if not args:
        return True
    name = class_of(args[0])
    if args[0] is not None and name is None:
        return False
    return (name is None or _is_factory(args[0]) or not is_own(name.module)) and (
        len(args) == 1 or (len(args) == 2 and _pairs(grammar, args[1]))
    )


_ZONE = _made_by("datetime.timezone", "zoneinfo.ZoneInfo", "zoneinfo.ZoneInfo._unpickle")
_DIGITS = r"[-+]?[0-9]{1,1000}"
_KEY = _matching(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}")
_TIME = _takes(
    _either(_raw, _text, _count), *[_either(_number, _none, _ZONE)] * 8, least=1
)  # the bytes and a zone; older pickles have numbers


def _type_expression(grammar: Grammar, node: Node) -> bool:
    return grammar.is_type_expression(node)


_TYPES = _made_by("types.GenericAlias", "operator.getitem", "functools.reduce", "builtins.type")
_PARTIALS = _made_by("functools.partial")
_OR = _named("operator.or_")


def _getitem(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`typing.Optional[X]`."""
    of = args[0] if len(args) == 2 else None
    return (
        type(of) is Global
        and of.module == "typing"
        and f"typing.{of.name}" in VALUES
        and _type_expression(grammar, args[1])
    )


def _reduce(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`int | None`, which is `reduce(or_, (int, NoneType))`."""
    return len(args) == 2 and _OR(grammar, args[0]) and grammar.once(_union, args[1])


def _union(grammar: Grammar, node: Node) -> bool:
    return (
        is_tuple(node)
        and all(
            class_of(part) is not None or (type(part) is Opaque and _TYPES(grammar, part)) for part in node
        )
        and grammar.is_type_expression(node)
    )


def _getattr(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """An operator of torch, a listed method, or a class or function inside a class that is itself unknown."""
    if not _is_getattr(call):
        return False
    of, name = args[0], str(args[1])
    if type(of) is Opaque:  # a class in a class in a class: the inner one is judged by itself
        return _is_getattr(of) and _is_inner(name)
    if type(of) is not Global:
        return False
    owner = python3_name(of.module, of.name)
    if owner in _OPERATOR_OWNERS:
        return name in OPERATORS
    if rule_of(f"{owner}.{name}") is not None:
        return True
    if owner.startswith(("torch.nn.modules.", "torch.nn.parallel.")):  # a method of a module, as a value
        return name.isidentifier() and not name.startswith("_")
    return _is_inner(name) and not is_own(of.module)


_OPERATOR_OWNERS = (
    "torch._C._VariableFunctionsClass",
    "torch._C._VariableFunctions",
    "torch._C.TensorBase",
    "torch._C._TensorBase",
    "torch.Tensor",
    "torch._tensor.Tensor",
)


def _is_inner(name: str) -> bool:
    return name.isidentifier() and not name.startswith("__")


def _function(grammar: Grammar, node: Node) -> bool:
    """A function that a partial may hold: of torch.nn, an operator of torch, or of a package, which is told of by itself."""
    if type(node) is Opaque:
        return _is_getattr(node) and _getattr(grammar, node.args, node)
    name = class_of(node)
    if name is None:
        return False
    text = python3_name(name.module, name.name)
    return text in VALUES or text.startswith("torch.nn.") or not is_own(name.module)


def _partial(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    return len(args) == 1 and _function(grammar, args[0]) and len(call.states) <= 1


def _held(grammar: Grammar, node: Node) -> bool:
    return grammar.is_held(node)


_PARTIAL_STATE = _tuple(_function, _held, _held, _either(_none, _plain))

_PYTHON = {
    **_CONTAINERS,
    "collections.defaultdict": Rule(_factory, "container", None, has_keys=True),
    "builtins.object": Rule(_nothing),
    "builtins.bool": Rule(_takes(_scalar, least=0)),
    "builtins.int": Rule(_takes(_either(_number, _matching(_DIGITS)), least=0)),
    "builtins.float": Rule(_takes(_either(_number, _matching(r"[-+0-9.eEinfa]{1,40}")), least=0)),
    "builtins.complex": Rule(_takes(_number, _number, least=0)),
    "builtins.slice": Rule(_takes(_scalar, _scalar, _scalar, least=1)),
    "builtins.range": Rule(_takes(_number, _number, _number, least=1), "instance"),
    "builtins.bytes": Rule(_bytes),
    "builtins.bytearray": Rule(_bytes),
    "builtins.str": Rule(_str),
    "builtins.type": Rule(
        _takes(_either(_none, _named("builtins.Ellipsis", "builtins.NotImplemented"))), "instance"
    ),
    "builtins.getattr": Rule(_getattr, "instance"),
    "_codecs.encode": Rule(_encoded),
    "types.GenericAlias": Rule(_takes(_type_expression, _type_expression), "instance"),
    "operator.getitem": Rule(_getitem, "instance"),
    "functools.reduce": Rule(_reduce, "instance"),
    "functools.partial": Rule(_partial, "instance", _PARTIAL_STATE),
    "itertools.count": Rule(_takes(_number, _number, least=0), "instance"),
    "datetime.date": Rule(_TIME),
    "datetime.time": Rule(_TIME),
    "datetime.datetime": Rule(_TIME),
    "datetime.timedelta": Rule(_takes(_number, _number, _number, least=0)),
    "datetime.timezone": Rule(_takes(_made_by("datetime.timedelta"), _text, least=1)),
    "zoneinfo.ZoneInfo": Rule(_takes(_KEY)),
    "zoneinfo.ZoneInfo._unpickle": Rule(_takes(_KEY, _scalar)),
    "decimal.Decimal": Rule(
        _takes(_matching(r"[-+]?[0-9.]{1,1000}([eE][-+]?[0-9]{1,9})?|[-+]?(NaN|sNaN|Infinity)[0-9]{0,9}"))
    ),
    "fractions.Fraction": Rule(
        _takes(_either(_number, _matching(rf"{_DIGITS}(/[0-9]{{1,1000}})?")), _number, least=1)
    ),
    "uuid.UUID": Rule(_nothing, "value", _fields(int=_number)),
    "re._compile": Rule(
        _takes(_either(_text, _raw), lambda grammar, node: type(node) is int and not node & ~0x17E)
    ),
    "random.Random": Rule(_nothing, "instance", _plain),
    "argparse.Namespace": Rule(_nothing, "instance", _attributes),
    "types.SimpleNamespace": Rule(_nothing, "instance", _attributes),
    "collections.ChainMap": Rule(_nothing, "instance", _attributes),
    "collections.UserDict": Rule(_nothing, "instance", _attributes),
    "collections.UserList": Rule(_nothing, "instance", _attributes),
    "collections.UserString": Rule(_takes(_text), "instance", _attributes),
    **{
        f"{module}.BytesIO": Rule(_nothing, "instance", _tuple(_raw, _count, _either(_none, _attributes)))
        for module in ("io", "_io")
    },
    **{
        f"{module}.StringIO": Rule(
            _nothing,
            "instance",
            _tuple(
                _any_text,
                _either(_none, _text),
                _count,
                _either(_none, _attributes),
            ),
        )
        for module in ("io", "_io")
    },
    **{
        f"{module}.{name}": Rule(_many(_text))
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath")
    },
}

# --- numpy --------------------------------------------------------------------------------------------------------------

_ARRAYS = _named(
    "numpy.ndarray",
    "numpy.matrix",
    "numpy.recarray",
    "numpy.rec.recarray",
    "numpy.core.records.recarray",
    "numpy.ma.MaskedArray",
    "numpy.ma.core.MaskedArray",
)
_DTYPE = _made_by("numpy.dtype")
_RECORD = _named("numpy.record")
_CODE = _matching(r"[?bhilqBHILQfdgFDGeSUVOMm][0-9]{0,9}|[a-z]{1,12}[0-9]{0,3}")
_OBJECTS_FLAGS = 63
"""The flags of a dtype of objects. With others, raw bytes would be taken as addresses of objects."""


def _is_zero(grammar: Grammar, node: Node) -> bool:
    return is_tuple(node) and node in ((0,), ())


def _dtype_code(grammar: Grammar, node: Node) -> bool:
    return _RECORD(grammar, node) or _CODE(grammar, node)


def _dtype_state(grammar: Grammar, node: Node) -> bool:
    """(version, order, parts of an array, names, fields, bytes, alignment, flags, times)."""
    return grammar.once(_dtype_parts, node)


def _dtype_parts(grammar: Grammar, node: Node) -> bool:
    if not is_tuple(node) or not 8 <= len(node) <= 9 or not grammar.is_plain(node):
        return False
    inner = [pair[0] for pair in (node[2],) if is_tuple(pair) and pair]
    if type(node[4]) is Dict:
        inner += [field[0] for field in node[4].values if is_tuple(field) and field]
    return not any(_holds_objects(part) for part in inner)


def _holds_objects(dtype: Node) -> bool:
    """Tell whether a dtype inside another one may hold objects. The flags of both belong together."""
    code = dtype.args[0] if type(dtype) is Opaque and dtype.args else None
    return not _is_text(code) or str(code).startswith(("O", "o"))


def _dtype(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    if not (1 <= len(args) <= 3 and _dtype_code(grammar, args[0]) and all(map(_is_flag, args[1:]))):
        return False
    if _is_text(args[0]) and str(args[0]).startswith(("O", "o")):
        flags = [state[7] if is_tuple(state) and len(state) > 7 else None for state in call.states]
        return all(flag == _OBJECTS_FLAGS for flag in flags)
    return True


def _is_flag(node: Node) -> bool:
    return type(node) in (bool, int)


def _array_state(grammar: Grammar, node: Node) -> bool:
    """(version, shape, dtype, order, data), where an array of objects has a list as its data."""
    if not is_tuple(node) or not 4 <= len(node) <= 5:
        return False
    version, (shape, dtype, order, data) = node[:-4], node[-4:]
    if not (is_tuple(shape) and len(shape) <= _PARTS and all(map(_is_flag, (*version, *shape, order)))):
        return False
    if not _DTYPE(grammar, dtype):
        return False
    return prod(shape) == len(data) if type(data) is list else _raw(grammar, data)  # type: ignore[arg-type]


_BIT_GENERATOR = "numpy.random._pickle.__bit_generator_ctor"
_BIT_GENERATORS = tuple(
    f"numpy.random._{module}.{name}"
    for module, name in (
        ("mt19937", "MT19937"),
        ("pcg64", "PCG64"),
        ("pcg64", "PCG64DXSM"),
        ("philox", "Philox"),
        ("sfc64", "SFC64"),
    )
)
_BITS = _either(_matching("[A-Z0-9a-z]{1,20}"), _named(*_BIT_GENERATORS))
_SEEDS = _made_by(
    "numpy.random.bit_generator.SeedSequence", "numpy.random.bit_generator.__pyx_unpickle_SeedSequence"
)
_BITS_STATE = _either(_plain, _tuple(_plain, _either(_none, _plain, _SEEDS)))
_FROM_BITS = Rule(
    _takes(_either(_BITS, _made_by(_BIT_GENERATOR)), _named(_BIT_GENERATOR), least=0), "instance", _BITS_STATE
)

_NUMPY = {
    "numpy.dtype": Rule(_dtype, "value", _dtype_state),
    "numpy.core.multiarray._reconstruct": Rule(
        _takes(_ARRAYS, _is_zero, _either(_raw, _text)), "value", _array_state
    ),
    "numpy.core.multiarray.scalar": Rule(_takes(_DTYPE, _either(_raw, _scalar), least=1)),
    "numpy.core.numeric._frombuffer": Rule(_takes(_raw, _DTYPE, _plain, _text)),
    "numpy.ma.core._mareconstruct": Rule(
        _takes(_ARRAYS, _ARRAYS, _is_zero, _either(_raw, _text)), "value", _plain
    ),
    _BIT_GENERATOR: Rule(_takes(_BITS, least=0), "instance", _BITS_STATE),
    "numpy.random._pickle.__generator_ctor": _FROM_BITS,
    "numpy.random._pickle.__randomstate_ctor": _FROM_BITS,
    "numpy.random.bit_generator.SeedSequence": Rule(_nothing, "instance", _plain),
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence": Rule(
        _takes(_named("numpy.random.bit_generator.SeedSequence"), _count, _either(_none, _plain)),
        "instance",
        _plain,
    ),
    **{
        f"numpy.{name}": Rule(_takes(_either(_scalar, _raw), least=0))
        for name in (
            *("bool_", "float16", "float32", "float64", "int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64", "str_"),
        )
    },
    "joblib.numpy_pickle.NumpyArrayWrapper": Rule(
        _nothing,
        "instance",
        _fields(subclass=_ARRAYS, shape=_plain, order=_plain, dtype=_DTYPE),
    ),
}

# --- torch --------------------------------------------------------------------------------------------------------------

_DEVICE = _takes(_either(_text, _made_by("torch.device")), _number, least=1)
_TABLE = _either(
    lambda grammar, node: type(node) is Dict,
    _made_by("collections.OrderedDict", "builtins.dict"),
)
"""A dict without code of its own, whatever its values are."""
_MODULE = _fields(_parameters=_TABLE, _buffers=_TABLE, _modules=_TABLE)
_RECURRENT = _fields(
    _parameters=_TABLE,
    _buffers=_TABLE,
    _modules=_TABLE,
    num_layers=lambda grammar, node: type(node) is int and 0 <= node <= 10_000,
    all_weights=_plain,
    _all_weights=_plain,
    _flat_weights_names=_plain,
    _flat_weights=_plain,
)
_GROUPS = _fields(defaults=_plain, state=_plain, param_groups=_plain)


def _oldest(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A tensor or storage of given numbers, or one that its state fills."""
    return len(args) <= _PARTS and all(
        _raw(grammar, arg) or _numbers(grammar, arg) or tensor_of(arg) is not None for arg in args
    )


def _parameter(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`Parameter(data, requires_grad)` calls methods of its data, which must be a tensor."""
    return (
        not args
        or (tensor_of(args[0]) is not None and all(map(grammar.is_plain, args)))
        or (args[0] is None and all(map(_is_flag, args[1:])))
    )


_OMEGACONF = _made_by("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata")
_ADJUSTED = {
    "torch._tensor._rebuild_from_type": Rule(_from_type, "value"),
    "torch._tensor._rebuild_from_type_v2": Rule(_from_type, "value"),
    "torch._utils._rebuild_parameter_with_state": Rule(_with_state, "value"),
    "torch._utils._rebuild_wrapper_subclass": Rule(_wrapper, "value", _attributes),
    "torch.storage._load_from_bytes": Rule(_nested, "value"),
    "torch.nn.parameter.Parameter": Rule(_parameter, "value", _plain),
    "torch.nn.parameter.Buffer": Rule(_parameter, "value", _plain),
    "torch.nn.parameter.UninitializedParameter": Rule(
        _takes(_plain, _plain, _plain, least=0), "value", _plain
    ),
    "torch.nn.parameter.UninitializedBuffer": Rule(_takes(_plain, _plain, _plain, least=0), "value", _plain),
    "torch.autograd.variable.Variable": Rule(_parameter, "value", _plain),
    "torch.Tensor": Rule(_oldest, "value", _plain),
    "torch.Size": Rule(_takes(_plain, least=0)),
    "torch.device": Rule(_DEVICE),
    "torch._C.Generator": Rule(
        _takes(_either(_text, _made_by("torch.device")), least=0),
        "instance",
        _tuple(_number, _either(_none, _number), _tensor),  # torch 2.13 reads past anything else
    ),
    "torch.torch_version.TorchVersion": Rule(_takes(_text)),
    "torch.serialization._get_layout": Rule(_takes(_text)),
    "torch.jit._pickle.build_tensor_from_id": Rule(_takes(_plain)),
    "torch.nn.backends.thnn._get_thnn_function_backend": Rule(_nothing, "instance"),
    "torch.amp.grad_scaler._refresh_per_optimizer_state": Rule(_nothing),
    "torch.cuda.amp.grad_scaler._refresh_per_optimizer_state": Rule(_nothing),
    "torch.utils.hooks.RemovableHandle": Rule(
        _nothing,
        "instance",
        _either(
            _tuple(_either(_none, _TABLE), _count),
            _tuple(_either(_none, _TABLE), _count, _either(_none, _series)),
        ),
    ),
    "torch.backends.cudnn.rnn.Unserializable": Rule(_nothing, "instance", _plain),
    "torch.nn.modules.module._WrappedHook": Rule(_nothing, "instance", _attributes),
    "torch.nn.modules.module._IncompatibleKeys": Rule(_takes(_plain, _plain), "value"),
    "torch._dynamo.decorators._DimRange": Rule(_nothing, "instance", _plain),
    "torch.distributed.device_mesh.DeviceMesh": Rule(
        _nothing, "instance", _fields(_dim_group_names=_plain, _dim_group_infos=_plain)
    ),
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": Rule(
        _nothing,
        "instance",
        _tuple(_series, _anything, _anything, _anything, lambda grammar, node: node is False),
    ),
    **{
        f"torch.distributed.{module}.TensorProperties": Rule(
            _takes(*[_plain] * 5, least=0),
            "instance",
            _either(
                _attributes,
                _tuple(
                    _plain,
                    _plain,
                    _plain,
                    _made_by(
                        "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
                        "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
                    ),
                    _plain,
                ),
            ),
        )
        for module in ("_shard.sharded_tensor.metadata", "checkpoint.metadata")
    },
    **{
        f"torch.distributed.{module}.{name}": Rule(_takes(*[_plain] * count), "value")
        for module, name, count in (
            ("tensor._dtensor_spec", "TensorMeta", 3),
            ("_tensor._dtensor_spec", "TensorMeta", 3),
            ("_tensor.placement_types", "TensorMeta", 3),
            ("tensor._dtensor_spec", "ShardOrderEntry", 2),
        )
    },
    **{
        f"torch.distributed.{module}.placement_types.{name}": Rule(
            _many(_plain), "value", _either(_plain, _attributes)
        )
        for module in ("tensor", "_tensor")
        for name in ("Partial", "Replicate", "Shard", "_Partial", "_StridedShard")
    },
    "torch.nn.parallel.distributed.DistributedDataParallel": Rule(
        _nothing, "instance", _fields(_parameters=_TABLE, _buffers=_TABLE, _modules=_TABLE, module=_nowhere)
    ),
    **{
        f"omegaconf.{name}": Rule(_nothing, "instance", _fields(_metadata=_either(_none, _OMEGACONF)))
        for name in ("dictconfig.DictConfig", "listconfig.ListConfig")
    },
}
_KINDS = [name.removesuffix("Storage") for name in BY_STORAGE]
_TORCH = {
    **{name: Rule(_rebuilt, "value") for name in REBUILD_CALLS},
    **{
        f"torch.jit._pickle.{name}": Rule(_tagged)
        for name in (
            "restore_type_tag",
            *(f"build_{kind}list" for kind in ("int", "tensor", "double", "bool")),
        )
    },
    **{
        f"{module}.{name}": Rule(_oldest, "value", _plain)
        for module in ("torch", "torch.cuda", "torch.storage")
        for name in (
            *BY_STORAGE,
            *(f"{kind}Tensor" for kind in _KINDS),
            *UNTYPED,
            "TypedStorage",
            "_TypedStorage",
        )
    },
    **_ADJUSTED,
}

_LISTED: dict[str, Rule] = {**_PYTHON, **_NUMPY, **_TORCH}
_MODULE_RULE = Rule(_uncalled, "instance", _MODULE)
_RECURRENT_RULE = Rule(_uncalled, "instance", _RECURRENT)
_OPTIMIZER_RULE = Rule(_uncalled, "instance", _GROUPS)
_DICT_RULE = Rule(_takes(_pairs, least=0), "instance", _attributes, has_keys=True)
_ENUM_RULE = Rule(_takes(lambda grammar, node: type(node) in (int, str, float, bool, ByteStr)))
_OBJECT_RULE = Rule(_uncalled, "instance", _attributes)


def rule_of(name: str) -> Rule | None:
    """Return the rule of a dotted name, as Python 3 and numpy 1 have it, or None when it is not listed."""
    rule = _LISTED.get(name)
    if rule is not None:
        return rule
    if name in ENUMS:
        return _ENUM_RULE
    if name in MODULES:
        is_recurrent = name.startswith("torch.nn.modules.rnn.") and not name.endswith("Cell")
        return _RECURRENT_RULE if is_recurrent else _MODULE_RULE
    if name in DICTS:
        return _DICT_RULE
    if name in OPTIMIZERS:
        return _OPTIMIZER_RULE
    return _OBJECT_RULE if name in CLASSES else None
