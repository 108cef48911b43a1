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
from collections.abc import Callable, Iterable, Mapping
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
from ckpt.pickles.attributes import ATTRIBUTES
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
from ckpt.pickles.names_of_torch import LOOKED_UP
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
_NESTED = 16
"""The most dtypes inside each other."""
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

    What many calls share is looked at once, so judging takes time in proportion to the pickle. `refilled` are the nodes
    that got items or a state after others could see them, by their ids.
    """

    def __init__(self, refilled: Mapping[int, object] | None = None) -> None:
        self.odd: list[str] = []
        """The attributes of the last call that its class does not write, and that torch does not look up either."""
        self.called: list[str] = []
        """The attributes of the last call that torch calls, or looks up, by these names."""
        self._refilled = refilled or {}
        self._depth = 0
        self._rules: dict[tuple[str, str], Rule | None] = {}
        self._answers: dict[tuple[int, int], tuple[bool, tuple[str, ...], tuple[str, ...]]] = {}
        self._plain = _Search(self._is_plain, _HEAVY, cycles=True)
        self._types = _Search(self._is_type, 1_000, cycles=False)
        self._held = _Search(self._is_held, 10_000, cycles=False)

    def allows(self, call: Opaque) -> bool:
        """Tell whether a call is harmless, with all that is done to its result."""
        self.odd, self.called = [], []
        origin = made_by(call)
        rule = None if origin is None else self.rule(origin[0])
        if origin is None or rule is None or not rule.takes(self, origin[1], call):
            return False
        if self._refilled and self._is_seen_early(call, rule):
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
        answer = self._answers.get(key)
        if answer is None:
            before = len(self.odd), len(self.called)
            is_form = form(self, node)
            answer = is_form, tuple(self.odd[before[0] :]), tuple(self.called[before[1] :])
            self._answers[key] = answer
        else:
            self.odd += answer[1]
            self.called += answer[2]
        return answer[0]

    def once_nested(self, form: Form, node: Node) -> bool:
        """Call `once` for a node inside another of its kind. Deeper than numpy's own ones nest, the form is denied."""
        self._depth += 1
        try:
            return self._depth <= _NESTED and self.once(form, node)
        finally:
            self._depth -= 1

    def is_refilled(self, node: Node) -> bool:
        """Tell whether a container got items after others could see it: a call has seen less than the tree shows."""
        if id(node) not in self._refilled:
            return False
        if type(node) is not Opaque:
            return True
        origin = made_by(node)
        rule = None if origin is None else self.rule(origin[0])
        return rule is not None and rule.makes != "instance"

    def _is_seen_early(self, call: Opaque, rule: Rule) -> bool:
        """Tell whether a call, or what its result is used for, has seen a container before it was full."""
        if rule.makes == "value" and id(call) in self._refilled:
            return True
        todo: list[Node] = [*call.args, *call.states]
        if rule.makes == "instance":  # torch reads the tables in a state, and looks no further
            todo += [value for state in call.states if type(state) is Dict for value in state.values]
            return any(map(self.is_refilled, todo))
        seen: set[int] = set()
        while todo:
            node = todo.pop()
            if self.is_refilled(node):
                return True
            if type(node) in (list, tuple, Dict, Set) and id(node) not in seen:
                seen.add(id(node))
                todo += _parts(node)
        return False

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
    """A state that becomes the attributes of an object whose names are free: a dict with texts as keys, and one of slots.

    `forms` judge the attributes that the class calls or iterates when it is loaded. No other is looked at by
    then, but for those with two underscores in front.
    """
    return _State(forms, lambda grammar, name, value: "fine", has_slots=True)


Manner = Literal["fine", "odd", "called"]
"""How an attribute that is not listed stands: nobody looks at it, nobody knows it, or torch calls it by its name."""


class _State:
    """The form of a state: its listed attributes have forms of their own, `other` judges each further one.

    `needed` are the attributes that must be there: torch looks for them among the layers and parameters if they are not.
    `wrong` is how a listed attribute stands that does not have its form. With `has_slots` a state may have a second dict, whose attributes are set one by one.
    """

    def __init__(
        self,
        forms: Mapping[str, Form],
        other: Callable[[Grammar, str, Node], Manner],
        needed: Iterable[str] = (),
        *,
        has_slots: bool = False,
        wrong: Manner = "called",
    ) -> None:
        self._wrong = wrong
        self._forms = forms
        self._other = other
        self._has_slots = has_slots
        self._needed = frozenset(needed)
        self._judging: Form = self._judge  # one object, for answers are kept by its id

    def __call__(self, grammar: Grammar, node: Node) -> bool:
        if is_tuple(node) and len(node) == 2 and self._has_slots:
            return all(
                part is None or (type(part) is Dict and grammar.once(self._judging, part)) for part in node
            )
        return grammar.once(self._judging, node) if type(node) is Dict else node is None

    def _judge(self, grammar: Grammar, node: Node) -> bool:
        assert type(node) is Dict
        if not all(map(_is_text, node.keys)):
            return False
        names = [str(key) for key in node.keys]
        is_fine = self._needed.issubset(names)
        for name, value in zip(names, node.values, strict=True):
            form = self._forms.get(name)
            if form is not None:
                manner: Manner = "fine" if form(grammar, value) else self._wrong
            elif name.startswith("__") and type(value) not in _SCALARS:
                manner = "called"
            else:
                manner = self._other(grammar, name, value)
            if manner == "odd":
                grammar.odd.append(name)
            elif manner == "called":
                grammar.called.append(name)
                is_fine = False
        return is_fine


def _closed(grammar: Grammar, name: str, value: Node) -> Manner:
    """An attribute of a class whose objects have the listed ones only."""
    return "called" if name in LOOKED_UP else "odd"


def _decorated(grammar: Grammar, name: str, value: Node) -> Manner:
    """An attribute of an object on which people put what they like, as on layers, tensors and state dicts.

    Data cannot be called. A function can, where torch or Python looks for the name.
    """
    if grammar.is_plain(value):
        return "fine"
    if name in LOOKED_UP:
        return "called"
    return "fine" if grammar.is_held(value) else "odd"


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
    cls = class_of(args[1]) if len(args) == 4 else None
    if tensor_of(call) is None or cls is None or not is_tuple(args[2]):
        return False
    inner = args[2]
    if type(args[0]) is Global and args[0].name == "_rebuild_wrapper_subclass":
        inner = inner[1:_PARTS]  # the class again; it takes eight
    if len(args[2]) > _PARTS or not all(map(grammar.is_plain, inner[:_PARTS])):
        return False
    name = python3_name(cls.module, cls.name)
    form = _STATES_OF_TENSORS.get(name)
    if form is None and not is_own(cls.module):
        # Its own code takes the state, if it has such code. The import of the class is told of by itself.
        return type(args[3]) is not Dict or _attributes(grammar, args[3])
    return (form or _STATE_OF_TENSOR)(grammar, args[3])


def _with_state(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_parameter_with_state(data, requires_grad, hooks, state)`."""
    return (
        tensor_of(call) is not None
        and len(args) == 4
        and all(map(grammar.is_plain, args[:3]))
        and _STATE_OF_TENSOR(grammar, args[3])
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

_STATE_OF_DICT = _State({}, _decorated)
_CONTAINERS = {
    "builtins.list": Rule(_takes(_series, least=0), "container", None, has_items=True),
    "builtins.tuple": Rule(_takes(_series, least=0), "container"),
    "builtins.set": Rule(_takes(_series, least=0), "container"),
    "builtins.frozenset": Rule(_takes(_series, least=0), "container"),
    "builtins.dict": Rule(_takes(_pairs, least=0), "container", None, has_keys=True),
    "collections.OrderedDict": Rule(_takes(_pairs, least=0), "container", _STATE_OF_DICT, has_keys=True),
    "collections.Counter": Rule(_takes(_series, least=0), "container", _STATE_OF_DICT, has_keys=True),
    "collections.deque": Rule(
        _takes(_series, _either(_none, _count), least=0), "container", _none, has_items=True
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
_SIZES = {
    **dict.fromkeys(("b1", "i1", "u1", "?", "b", "B"), 1),
    **dict.fromkeys(("f2", "i2", "u2"), 2),
    **dict.fromkeys(("f4", "i4", "u4"), 4),
    **dict.fromkeys(("f8", "i8", "u8", "c8"), 8),
    **dict.fromkeys(("f12",), 12),
    **dict.fromkeys(("f16", "c16"), 16),
    **dict.fromkeys(("c24",), 24),
    **dict.fromkeys(("c32",), 32),
}
"""Bytes of an element of the dtypes of numbers, by the codes that numpy writes."""
_TIME_CODES = ("M8", "m8")
_OBJECT_CODES = ("O8", "O4", "O")
_LONGEST_ELEMENT = 2**31
_OBJECTS_FLAGS = 63
"""The flags of a dtype of objects. With others, raw bytes would be taken as addresses of objects."""
_OF_OBJECTS = 0x07
"""The flags of elements that are objects or addresses. The others say how numpy reads an element."""


def _is_zero(grammar: Grammar, node: Node) -> bool:
    return is_tuple(node) and node in ((0,), ())


def _dtype_code(grammar: Grammar, node: Node) -> bool:
    if _RECORD(grammar, node):
        return True
    if not _is_text(node):
        return False
    code = str(node)
    return code in _SIZES or code in _TIME_CODES or code in _OBJECT_CODES or _flexible(code) is not None


def _flexible(code: str) -> int | None:
    """The bytes of a dtype of texts, bytes or records by its code, such as `U6`. None for any other code."""
    digits = code[1:]
    if code[:1] not in ("S", "U", "V") or not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        return None
    size = int(digits) * (4 if code[0] == "U" else 1)
    return size if size < _LONGEST_ELEMENT else None


def _dtype_state(grammar: Grammar, node: Node) -> bool:
    """A state of a dtype. `_dtype` has judged it, with the code that it belongs to."""
    return True


def _dtype(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A dtype as numpy writes it: a code, and a state that says no more of it than the code allows."""
    if not (1 <= len(args) <= 3 and _dtype_code(grammar, args[0]) and all(map(_is_flag, args[1:]))):
        return False
    return len(call.states) <= 1 and all(_dtype_call(grammar, call) for _ in call.states)


def _dtype_call(grammar: Grammar, call: Node) -> bool:
    """Tell whether the state of a dtype fits its code: (version, order, parts of an array, names, fields, bytes, alignment,
    flags, and times or metadata).
    """
    assert type(call) is Opaque
    state = call.states[0]
    if not is_tuple(state) or not 8 <= len(state) <= 9:
        return False
    version, order, parts, names, fields, size, alignment, flags = state[:8]
    numbers = (version, size, alignment, flags)
    if not all(type(number) is int for number in numbers) or not _is_text(order) or str(order) not in "<>|=":
        return False
    assert type(flags) is int and type(size) is int
    code = "V0" if _RECORD(grammar, call.args[0]) else str(call.args[0])
    if len(state) == 9 and not _dtype_metadata(grammar, code, state[8]):
        return False
    if (
        len(state) == 8 and code in _TIME_CODES
    ):  # numpy reads the unit of a time where there is none, and dies
        return False
    if code in _OBJECT_CODES:
        return (parts, names, fields) == (None, None, None) and flags == _OBJECTS_FLAGS and size == -1
    if flags & _OF_OBJECTS or not -128 <= flags < 256:  # numpy before 1.24 wrote a signed byte
        return False
    if code[0] != "V":
        is_plain = (parts, names, fields) == (None, None, None) and flags in (
            (0, 8) if code[0] == "U" else (0,)
        )
        return is_plain and size == (-1 if _flexible(code) is None else _flexible(code))
    is_sized = 0 <= size < _LONGEST_ELEMENT and (_RECORD(grammar, call.args[0]) or size == _flexible(code))
    if parts is not None:
        return is_sized and names is None and fields is None and _dtype_of_parts(grammar, parts, size)
    return is_sized and grammar.once(_dtype_fields, state)


def _dtype_metadata(grammar: Grammar, code: str, node: Node) -> bool:
    if code not in _TIME_CODES:
        return node is None or (type(node) is Dict and grammar.is_plain(node))
    return _TIME_METADATA(grammar, node)


_TIME_METADATA = _tuple(
    _either(_none, lambda grammar, node: type(node) is Dict and not node.keys),
    _tuple(_either(_raw, _text), _count, _count, _count),
)


def _dtype_of_parts(grammar: Grammar, node: Node, size: int) -> bool:
    """`(dtype, shape)` of a field that is an array."""
    if not is_tuple(node) or len(node) != 2:
        return False
    shape = (node[1],) if type(node[1]) is int else node[1]
    if not is_tuple(shape) or len(shape) > 32 or not all(_count(grammar, number) for number in shape):
        return False
    inner = _element_size(grammar, node[0])
    return inner is not None and inner * prod(shape) == size  # type: ignore[arg-type]


def _dtype_fields(grammar: Grammar, state: Node) -> bool:
    """The fields of a record, each of which lies inside of it: `{name: (dtype, offset)}`."""
    assert is_tuple(state)
    names, fields, size = state[3:6]
    if names is None:
        return fields is None
    if not is_tuple(names) or type(fields) is not Dict or not all(map(_is_text, (*names, *fields.keys))):
        return False
    keys = list(map(str, fields.keys))
    if len(set(keys)) < len(keys) or not set(map(str, names)).issubset(keys):
        return False
    for field in fields.values:
        if not is_tuple(field) or not 2 <= len(field) <= 3 or not _count(grammar, field[1]):
            return False
        if len(field) == 3 and not _is_text(field[2]):
            return False
        inner = _element_size(grammar, field[0])
        if inner is None or inner + field[1] > size:  # type: ignore[operator]
            return False
    return True


def _any_dtype(grammar: Grammar, node: Node) -> bool:
    assert type(node) is Opaque
    return _dtype(grammar, node.args, node)


def _element_size(grammar: Grammar, node: Node) -> int | None:
    """The bytes of an element of a dtype inside another one. None for one of objects, or one that is not allowed.

    A loader changes a dtype in place when it sets a state, so one that others have seen before is none.
    """
    if type(node) is not Opaque or not _DTYPE(grammar, node) or grammar.is_refilled(node):
        return None
    if node.items or node.keys or not grammar.once_nested(_any_dtype, node):
        return None
    code = str(node.args[0]) if _is_text(node.args[0]) else "V0"
    if code in _OBJECT_CODES:
        return None
    if code[0] == "V" and node.states:
        state = node.states[0]
        return state[5] if is_tuple(state) and type(state[5]) is int else None
    return _SIZES.get(code, 8 if code in _TIME_CODES else _flexible(code))


def _is_flag(node: Node) -> bool:
    return type(node) in (bool, int)


def _array_state(grammar: Grammar, node: Node) -> bool:
    """(version, shape, dtype, order, data), where an array of objects has a list as its data."""
    if not is_tuple(node) or not 4 <= len(node) <= 5:
        return False
    version, (shape, dtype, order, data) = node[:-4], node[-4:]
    if not is_tuple(shape) or len(shape) > _DIMENSIONS or not all(_count(grammar, size) for size in shape):
        return False
    if not all(map(_is_flag, (*version, order))) or not _DTYPE(grammar, dtype) or grammar.is_refilled(dtype):
        return False
    if type(data) is list:
        return _is_of_objects(dtype) and prod(shape) == len(data) and not grammar.is_refilled(data)  # type: ignore[arg-type]
    return not _is_of_objects(dtype) and _raw(grammar, data)


_DIMENSIONS = 64
"""The most dimensions of an array of numpy 2."""


def _is_of_objects(dtype: Node) -> bool:
    return type(dtype) is Opaque and bool(dtype.args) and dtype.args[0] in _OBJECT_CODES


def _masked_state(grammar: Grammar, node: Node) -> bool:
    """(version, shape, dtype, order, data, mask, fill value) of a masked array of numbers, texts or records."""
    if not is_tuple(node) or len(node) != 7 or type(node[4]) is list:
        return False
    fill = node[6]
    is_filled = fill is None or type(fill) in (int, float, bool, str) or _FILL(grammar, fill)
    return _array_state(grammar, node[:5]) and _raw(grammar, node[5]) and is_filled


_FILL = _made_by("numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar")


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
        _takes(_ARRAYS, _ARRAYS, _is_zero, _either(_raw, _text)), "value", _masked_state
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
_HOOKS = [
    f"_{name}_hooks"
    for name in (
        *("state_dict", "state_dict_pre", "load_state_dict_pre", "load_state_dict_post"),
        *("forward", "forward_pre", "backward", "backward_pre"),
    )
]
_TABLES = dict.fromkeys(("_parameters", "_buffers", "_modules", *_HOOKS), _TABLE)
"""The dicts of a layer. Loading looks names up in the first three, and calls no hook."""
_RECURRENT_LAYERS = frozenset(f"torch.nn.modules.rnn.{name}" for name in ("RNNBase", "RNN", "LSTM", "GRU"))
_RECURRENT: dict[str, Form] = {
    **_TABLES,
    "num_layers": lambda grammar, node: type(node) is int and 0 <= node <= 10_000,
    "bidirectional": lambda grammar, node: type(node) is bool,
    **dict.fromkeys(("all_weights", "_all_weights", "_flat_weights_names", "_flat_weights"), _plain),
}
"""`__setstate__` of RNN, LSTM and GRU makes names for all layers, and looks each up."""
_GROUPS: dict[str, Form] = dict.fromkeys(("defaults", "state", "param_groups"), _plain)
"""What `Optimizer.__getstate__` gives. `__setstate__` reads the groups and the state of each parameter."""


def _legacy_state(grammar: Grammar, node: Node) -> bool:
    """The state of a tensor of torch 0.1 to 0.3, a tuple. `rebuild` says which tensor that is."""
    return is_tuple(node) and grammar.is_plain(node)


_STATE_OF_TENSOR = _State({}, _decorated, has_slots=True)
_DTENSORS = ("torch.distributed.tensor.DTensor", "torch.distributed.tensor._api.DTensor")
_SPEC = _made_by(
    "torch.distributed.tensor._dtensor_spec.DTensorSpec",
    "torch.distributed._tensor.placement_types.DTensorSpec",
    "torch.distributed._tensor._dtensor_spec.DTensorSpec",
)
_SHARDED_STATE = _tuple(_series, _anything, _anything, _anything, lambda grammar, node: node is False)
_STATES_OF_TENSORS: dict[str, Form] = {
    **{
        name: _State({"_local_tensor": _tensor, "_spec": _SPEC}, _decorated, has_slots=True)
        for name in (*_DTENSORS, "torch.distributed._tensor.api.DTensor")
    },
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": _SHARDED_STATE,
}
"""Subclasses of torch.Tensor whose state is no plain data."""


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


def _listed_plain(grammar: Grammar, node: Node) -> bool:
    return type(node) is list and grammar.is_plain(node)


def _forms_of(name: str) -> dict[str, Form]:
    """The attributes that objects of a class have, where nothing that loads them looks at their values."""
    return dict.fromkeys(ATTRIBUTES[name], _anything)


_PROPERTIES = ("dtype", "layout", "requires_grad", "memory_format", "pin_memory")
_PLACED = ("dim", "reduce_op", "split_factor", "norm_type")
"""The attributes of placements: Shard, Partial, _StridedShard, _NormPartial."""
_OMEGACONF = _made_by("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata")
_ADJUSTED = {
    "torch._tensor._rebuild_from_type": Rule(_from_type, "value"),
    "torch._tensor._rebuild_from_type_v2": Rule(_from_type, "value"),
    "torch._utils._rebuild_parameter_with_state": Rule(_with_state, "value"),
    "torch._utils._rebuild_wrapper_subclass": Rule(_wrapper, "value", _attributes),
    "torch.storage._load_from_bytes": Rule(_nested, "value"),
    "torch.nn.parameter.Parameter": Rule(_parameter, "value", _legacy_state),
    "torch.nn.parameter.Buffer": Rule(_parameter, "value", _legacy_state),
    "torch.nn.parameter.UninitializedParameter": Rule(_takes(_plain, _plain, _plain, least=0), "value"),
    "torch.nn.parameter.UninitializedBuffer": Rule(_takes(_plain, _plain, _plain, least=0), "value"),
    "torch.autograd.variable.Variable": Rule(_parameter, "value", _legacy_state),
    "torch.Tensor": Rule(_oldest, "value", _legacy_state),
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
    "torch.nn.modules.module._WrappedHook": Rule(
        _nothing, "instance", _State(dict.fromkeys(("hook", "with_module", "module"), _anything), _closed)
    ),
    "torch.nn.modules.module._IncompatibleKeys": Rule(_takes(_plain, _plain), "value"),
    "torch._dynamo.decorators._DimRange": Rule(_nothing, "value", _listed_plain),
    "torch.distributed.device_mesh.DeviceMesh": Rule(
        _nothing, "instance", _State(_forms_of("torch.distributed.device_mesh.DeviceMesh"), _closed)
    ),
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": Rule(
        _nothing,
        "instance",
        _SHARDED_STATE,
    ),
    **{
        f"torch.distributed.{module}.TensorProperties": Rule(
            _takes(*[_plain] * 5, least=0),
            "instance",
            _either(
                _State(dict.fromkeys(_PROPERTIES, _plain), _closed, has_slots=True),
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
            _many(_plain), "value", _either(_legacy_state, _State(dict.fromkeys(_PLACED, _plain), _closed))
        )
        for module in ("tensor", "_tensor")
        for name in ("Partial", "Replicate", "Shard", "_Partial", "_StridedShard")
    },
    "torch.nn.parallel.distributed.DistributedDataParallel": Rule(
        _nothing,
        "instance",
        _State(
            {
                **_forms_of("torch.nn.parallel.distributed.DistributedDataParallel"),
                **_TABLES,
                "module": _nowhere,
            },
            _decorated,
        ),
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
        f"{module}.{name}": Rule(_oldest, "value", _legacy_state)
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
_OPTIMIZER_RULE = Rule(_uncalled, "instance", _State(_GROUPS, _closed))
_DICT_RULE = Rule(_takes(_pairs, least=0), "instance", _State({}, _decorated), has_keys=True)
_ENUM_RULE = Rule(_takes(lambda grammar, node: type(node) in (int, str, float, bool, ByteStr)))


def is_at_rest(grammar: Grammar, call: Opaque, *, is_written: bool) -> bool:
    """Tell whether an object of an unlisted class of torch has no attribute that acts when it is loaded or goes.

    A class that torch has written as its own (`is_written`) may hold objects. Another name may lead to any class.
    """
    grammar.called = []
    if is_written:
        return all(type(node) is not Dict or _attributes(grammar, node) for node in call.states)
    return all(_DATA_ALONE(grammar, node) for node in call.states)


def _data_alone(grammar: Grammar, name: str, value: Node) -> Manner:
    return "fine" if grammar.is_plain(value) else "called"


_DATA_ALONE = _State(_TABLES, _data_alone)
_data = _either(_plain, _made_by("builtins.range"))


def _module_rule(name: str) -> Rule:
    """The rule of a layer: its dicts, its listed functions, and any data that somebody put on it."""
    listed = dict.fromkeys(ATTRIBUTES.get(name, ()), _anything)
    if name in _RECURRENT_LAYERS:
        state = _State({**listed, **_RECURRENT}, _decorated, ("num_layers", "bidirectional"))
    else:
        state = _State({**listed, **_TABLES}, _decorated)
    return Rule(_uncalled, "instance", state)


def _object_rule(name: str) -> Rule:
    """The rule of a class whose objects have the attributes that somebody has written.

    Of a class of another package that nobody has written here, any data and functions are taken.
    """
    listed = ATTRIBUTES.get(name)
    if listed is None:
        return Rule(_uncalled, "instance", _State({}, _decorated, has_slots=True))
    forms = {attribute: _anything if has_objects else _data for attribute, has_objects in listed.items()}
    return Rule(_uncalled, "instance", _State(forms, _closed, has_slots=True, wrong="odd"))


def rule_of(name: str) -> Rule | None:
    """Return the rule of a dotted name, as Python 3 and numpy 1 have it, or None when it is not listed."""
    rule = _LISTED.get(name)
    if rule is not None:
        return rule
    if name in ENUMS:
        return _ENUM_RULE
    if name in MODULES:
        return _module_rule(name)
    if name in DICTS:
        return _DICT_RULE
    if name in OPTIMIZERS:
        return _OPTIMIZER_RULE
    return _object_rule(name) if name in CLASSES else None
