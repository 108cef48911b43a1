"""Reading objects without building them: a node of the inert tree as plain values.

A Namespace shows its fields, an OmegaConf container its content, an enum its value, a
numpy scalar its number. Nothing is imported. Other objects are shown by their class and
their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Literal, cast

from ckpt.model.dtypes import BY_NAME
from ckpt.model.nodes import (
    ByteStr,
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    Tagged,
    dict_of,
    inside,
    is_tuple,
)
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite, Storage, Tensor, TensorRef
from ckpt.tree import scalars
from ckpt.tree.arrays import array_of, as_bytes
from ckpt.tree.scalars import class_for_copyreg, class_of, device_text

ARRAY_ELEMENTS = 1_000
"""Numpy arrays of up to this many elements are shown by value."""

UNINITIALIZED = (
    "torch.nn.parameter.UninitializedParameter",
    "torch.nn.parameter.UninitializedBuffer",
)
"""The classes of the tensors without a shape that lazy modules hold until they have
run.
"""

DICTS = frozenset(
    (
        "easydict.EasyDict",
        "yacs.config.CfgNode",
        "pytorch_lightning.utilities.parsing.AttributeDict",
        "lightning.pytorch.utilities.parsing.AttributeDict",
        "lightning_fabric.utilities.data.AttributeDict",
        "lightning.fabric.utilities.data.AttributeDict",
    )
)
"""Classes of dicts that take items and attributes."""

SCALAR_NAMES: dict[type, str] = {
    **{kind: kind.__name__ for kind in (str, int, float, bool, bytes, bytearray)},
    type(None): "None",
    ByteStr: "str",
}
"""The classes of scalars, and how their types are called."""
SCALARS = frozenset(SCALAR_NAMES)


class View(NamedTuple):
    """The meaning of one node.

    `kind` is tensor, storage, scalar (with its `value`), sequence, mapping, object, or
    module: a pickled nn.Module with its attributes. `type` is the name of the class.
    `children` go with `keys`; a sequence has no keys.
    """

    kind: Literal[
        "tensor", "storage", "scalar", "sequence", "mapping", "object", "module"
    ]
    type: str
    value: Node | Storage = None
    keys: Sequence[Node] = ()
    children: Sequence[Node] = ()
    metadata: Node = None
    """`_metadata` of a state dict."""
    is_call: bool = False
    """A flag: `value` is what a function is called with, and no value of the file."""

    @property
    def tensor(self) -> Tensor:
        """The tensor, for a view of kind `tensor`."""
        assert isinstance(self.value, (TensorRef, Composite))
        return self.value

    @property
    def storage(self) -> Storage:
        """The storage, for a view of kind `storage`."""
        assert isinstance(self.value, Storage)
        return self.value

    @property
    def attributes(self) -> dict[str, Node]:
        """The attributes by name, for a view of kind `module`."""
        # `_object_view` makes the keys strings, so they are not checked again for every
        # module.
        return cast("dict[str, Node]", dict(zip(self.keys, self.children, strict=True)))


MARKERS = frozenset(("_is_buffer", "_is_param", "persistent"))
"""Attributes that torch itself sets on tensors."""


_WITH_ATTRIBUTES = (
    "_rebuild_from_type",
    "_rebuild_from_type_v2",
    "_rebuild_parameter_with_state",
)
"""Calls whose fourth argument holds the attributes of their tensor."""


def attribute_nodes(call: Opaque) -> list[tuple[str, Node]]:
    """The attributes that Python code set on a tensor or a dict, by name, without the
    parts of a wrapper.
    """
    # The attributes of a wrapper (DTensor, torchao) are the tensors that it is made of,
    # which the Composite lists already.
    if isinstance(call.meaning, Composite) and call.meaning.layout == "wrapper":
        return []
    states = list(call.states)
    if (
        type(call.func) is Global
        and len(call.args) > 3
        and call.func.name in _WITH_ATTRIBUTES
    ):
        states.append(call.args[3])
    named: list[tuple[str, Node]] = []
    for state in states:
        # A class with `__slots__` has two parts: its dict, and its slots.
        parts = state if is_tuple(state) else (state,)
        for part in parts:
            if type(part) is Dict:
                pairs = zip(part.keys, part.values, strict=True)
                named += [
                    (str(key), value) for key, value in pairs if isinstance(key, str)
                ]
    return named


def attributes(call: Opaque) -> list[str]:
    """The names of the attributes that Python code set on a tensor, without torch's
    own.
    """
    return [name for name, _ in attribute_nodes(call) if name not in MARKERS]


def look(node: Node) -> View:
    """The view of a node."""
    # Exact types, most frequent first: this runs for every node of a tree. A NamedTuple
    # such as TensorRef would pass `isinstance(node, tuple)`.
    kind = type(node)
    if kind in SCALARS:
        return View("scalar", SCALAR_NAMES[kind], node)
    # For mypy it may still be a TensorRef, which is a tuple too.
    if kind is list or kind is tuple:
        return View("sequence", kind.__name__, None, (), cast("Sequence[Node]", node))
    if type(node) is Dict:
        return View("mapping", "dict", None, node.keys, node.values)
    if type(node) is Set:
        # By position, which is made several times faster than by name.
        kind_of_set = "frozenset" if node.frozen else "set"
        return View("sequence", kind_of_set, None, (), node.items)
    if type(node) is Global:
        if node.module == "torch" and node.name in BY_NAME:
            return View("scalar", "torch.dtype", node.qualified)
        return View("scalar", "name", node.qualified)
    if type(node) is PersistentId:
        if isinstance(node.meaning, Storage):
            return View("storage", "torch.storage", node.meaning)
        return View(
            "scalar",
            "name",
            node.meaning.qualified if node.meaning else "persistent id",
        )
    if type(node) is TensorRef or type(node) is Composite:
        return View("tensor", "torch.Tensor", node)
    assert type(node) is Opaque, kind
    # A checkpoint in the bytes of another one, or a value that TorchScript tagged with
    # its type: the wrapping is not shown.
    if isinstance(node.meaning, (Nested, Tagged)):
        return look(node.meaning.root)
    if node.meaning is not None:
        return View("tensor", "torch.Tensor", node.meaning)
    return _object_view(node)


RECONSTRUCT = "_reconstruct_persistent_obj"
"""The function that makes a persistent object of its parts."""
SOURCE = "module_src"
"""The attribute of a persistent object that holds the source text of its class."""


class Persistent(NamedTuple):
    """An object that was pickled with the source text of its class: StyleGAN2-ADA,
    StyleGAN3, EG3D, EDM.

    Source: `_reconstruct_persistent_obj` in torch_utils/persistence.py. Loading runs
    the text.
    """

    type: str
    source: Node
    state: Dict


def persistent_parts(call: Opaque) -> Persistent | None:
    """Return the parts of a persistent object, or None for any other call."""
    function = call.func
    if type(function) is not Global or function.name != RECONSTRUCT:
        return None
    # Projects copy the module into packages of their own, so only its last name counts.
    if function.module.rpartition(".")[2] != "persistence":
        return None
    meta = call.args[0] if len(call.args) == 1 else None
    if type(meta) is not Dict:
        return None
    fields = {
        str(key): value
        for key, value in zip(meta.keys, meta.values, strict=True)
        if type(key) is str
    }
    class_name = fields.get("class_name")
    state = fields.get("state")
    if type(class_name) is not str or type(state) is not Dict:
        return None
    return Persistent(class_name, fields.get(SOURCE), state)


def _object_view(call: Opaque) -> View:
    """The view of an object, by what is known of its class."""
    name = class_of(call)
    persistent = persistent_parts(call)
    if persistent is not None:
        return _persistent_view(persistent)
    # A reader that returns None does not know this call: the object is then shown by
    # its fields, as one of an unknown class.
    if name in scalars.READERS:
        scalar = scalars.READERS[name](call, name)
        if scalar is not None:
            return View("scalar", scalar.type, scalar.value)
    elif name in _READERS:
        view = _READERS[name](call, name)
        if view is not None:
            return view
    from ckpt.tree.quantized import convolution_attributes  # here: most calls end above

    convolution = convolution_attributes(call, name)
    state = convolution or _state_attributes(call)
    if convolution is not None or _is_module(state):
        return View("module", name, keys=list(state), children=list(state.values()))
    if name.startswith("omegaconf."):
        content = _omegaconf_content(call, state, name)
        if content is not None:
            return content
    view = _one_value_view(call, name)
    if view is not None:
        return view
    keys, children = _object_fields(call, state)
    return View("object", name, None, keys, children)


def _is_module(state: dict[str, Node]) -> bool:
    """Tell whether an nn.Module has these attributes. Its class needs no name that is
    known.
    """
    return "_parameters" in state and "_modules" in state


def _omegaconf_content(call: Opaque, state: dict[str, Node], name: str) -> View | None:
    """Return the view of what a container of OmegaConf holds, under the name of its
    class, or None.
    """
    content = inside(state.get("_content", state.get("_val", call)))
    # A node of OmegaConf inside a node is left to the fields: following it could lead
    # back to this call.
    if type(content) is Opaque and class_of(content).startswith("omegaconf."):
        return None
    view = look(content)
    return View(
        view.kind, name, view.value, view.keys, view.children, is_call=view.is_call
    )


def _one_value_view(call: Opaque, name: str) -> View | None:
    """Return the view of a class that is called with one scalar, or None.

    It is an enum, most likely.
    """
    if call.how != "reduce" or len(call.args) != 1:
        return None
    if call.states or call.items or call.keys:
        return None
    value = call.args[0]
    data = value if type(value) in SCALARS else as_bytes(value)
    if data is None and value is not None:
        return None
    # Python's classes begin with a capital, as those of enums do. A function would
    # return anything, so what it is called with must not look like its value.
    short_name = name.rpartition(".")[2].lstrip("_")
    is_call = not short_name[:1].isupper()
    return View("scalar", name, data, is_call=is_call)


def _persistent_view(persistent: Persistent) -> View:
    """The view of a persistent object: its attributes, and last the source text of its
    class.
    """
    state = _attributes_in([persistent.state])
    kind: Literal["module", "object"] = "module" if _is_module(state) else "object"
    state.setdefault(SOURCE, persistent.source)
    return View(kind, persistent.type, keys=list(state), children=list(state.values()))


def _state_attributes(call: Opaque) -> dict[str, Node]:
    """Attributes set by BUILD: the instance's dict, then its slots. Empty when the
    state is not a dict.
    """
    states = call.states
    # `copyreg._reconstructor(class, base, state)` carries a state in its arguments. Its
    # class is not the name of what is called.
    if len(call.args) > 2 and class_for_copyreg(call) is not None:
        states = [call.args[2], *states]
    return _attributes_in(states)


def _attributes_in(states: Iterable[Node]) -> dict[str, Node]:
    """The attributes that states set, by name. A later state wins, as in Python."""
    fields: dict[str, Node] = {}
    for state in states:
        for part in _parts_of_state(state):
            if type(part) is not Dict:
                continue
            for key, value in zip(part.keys, part.values, strict=True):
                name = _attribute_name(key)
                if name is not None:
                    fields[name] = value
    return fields


def _attribute_name(key: Node) -> str | None:
    """Return the name of an attribute, or None. Python 2 has names in bytes, however
    they are written.
    """
    if isinstance(key, str):
        return str(key)
    data = as_bytes(key)
    return None if data is None else data.decode("latin-1")


def _parts_of_state(state: Node) -> tuple[Node, ...]:
    """Return the parts that BUILD sets: a dict of attributes, or the instance's dict
    and its slots.
    """
    if (
        type(state) is tuple
        and len(state) == 2
        and all(part is None or type(part) is Dict for part in state)
    ):
        return state
    return (state,)


def _object_fields(
    call: Opaque, state: dict[str, Node]
) -> tuple[list[Node], list[Node]]:
    """The keys and the parts of an object: arguments and items by number, then named
    parts.
    """
    numbered: list[Node] = []
    # The arguments of `copyreg._reconstructor` name the class and say nothing of it.
    if class_for_copyreg(call) is None:
        numbered += call.args
    numbered += call.items
    keys: list[Node] = []
    children: list[Node] = []
    if call.kwargs is not None:
        keys += call.kwargs.keys
        children += call.kwargs.values
    keys += call.keys
    children += call.values
    items = {
        key: value
        for key, value in zip(call.keys, call.values, strict=True)
        if isinstance(key, str)
    }
    for name, value in state.items():
        # Dicts that are their own attributes (EasyDict, AttributeDict) hold each value
        # twice.
        if name not in items or items[name] is not value:
            keys.append(name)
            children.append(value)
    if state:
        _add_odd_keys(call, keys, children)
    else:
        _add_whole_states(call, numbered, keys, children)
    return [*range(len(numbered)), *keys], [*numbered, *children]


def _add_odd_keys(call: Opaque, keys: list[Node], children: list[Node]) -> None:
    """Add what states hold under keys that are not strings. Those are not attributes,
    but they are shown.
    """
    for state in call.states:
        for part in _parts_of_state(state):
            if type(part) is not Dict:
                continue
            for key, child in zip(part.keys, part.values, strict=True):
                if _attribute_name(key) is None:
                    keys.append(key)
                    children.append(child)


def _add_whole_states(
    call: Opaque, numbered: list[Node], keys: list[Node], children: list[Node]
) -> None:
    """Add states that set no attributes: `__setstate__` of the class takes them in a
    form of its own.
    """
    for position, state in enumerate(map(inside, call.states)):
        if type(state) is list or is_tuple(state):
            numbered += state
        elif type(state) is Dict:
            keys += state.keys
            children += state.values
        else:
            keys.append("state" if position == 0 else f"state{position}")
            children.append(state)


# --- readers: class -> View, or None for a call that the class does not make ----------


def _ordered_dict(call: Opaque, name: str) -> View | None:
    keys, values = _mapping_pairs(call)
    # torch hangs the versions of modules on a state dict as an attribute.
    metadata = _state_attributes(call).get("_metadata")
    short = name.rpartition(".")[2]
    return View("mapping", short, None, keys, values, metadata)


def _mapping_pairs(call: Opaque) -> tuple[Sequence[Node], Sequence[Node]]:
    """The keys and the values of a dict: of its arguments, then what is set later."""
    keys: list[Node] = []
    values: list[Node] = []
    for arg in call.args:
        if type(arg) is Dict:
            keys += arg.keys
            values += arg.values
        # Python 2 writes OrderedDict([[key, value], ...]) instead of setting items.
        elif type(arg) is list or is_tuple(arg):
            for pair in arg:
                if (type(pair) is list or is_tuple(pair)) and len(pair) == 2:
                    keys.append(pair[0])
                    values.append(pair[1])
    if not keys:
        # As they are: they may be columns that make each row when it is asked for.
        return call.keys, call.values
    return [*keys, *call.keys], [*values, *call.values]


def _default_dict(call: Opaque, name: str) -> View | None:
    return View("mapping", "defaultdict", keys=call.keys, children=call.values)


def _lazy_view(call: Opaque, name: str) -> View | None:
    # Its argument is requires_grad, which says nothing without a tensor.
    return View("object", name)


_SETS = ("builtins.set", "builtins.frozenset")


def _collection_view(call: Opaque, name: str) -> View | None:
    short = name.removeprefix("builtins.").removeprefix("collections.")
    items: list[Node] = []
    # The second argument of a deque is its length.
    for arg in call.args[:1]:
        # Protocol 2 has no sets: it writes one as a call, also inside of another call.
        while (
            type(arg) is Opaque
            and class_of(arg) in _SETS
            and len(arg.args) == 1
            and not arg.items
        ):
            arg = arg.args[0]
        if type(arg) is Opaque and arg.class_name == "torch.Size":
            return look(arg)
        if type(arg) is Set:
            items += arg.items
        elif type(arg) is list or is_tuple(arg):
            items += arg
        else:
            return None
    return View("sequence", short, None, (), [*items, *call.items])


def _size_view(call: Opaque, name: str) -> View | None:
    sizes = call.args[0] if len(call.args) == 1 else None
    if type(sizes) is list or is_tuple(sizes):
        return View("sequence", "torch.Size", children=sizes)
    return None


def _packed_view(call: Opaque, name: str) -> View | None:
    from ckpt.tree.quantized import packed_parameters  # here: few files have one

    packed = packed_parameters(call)
    if packed is None:
        return None
    class_name, content = packed
    rows = content if type(content) is list or is_tuple(content) else (content,)
    return View("sequence", class_name, children=rows)


def _numpy_array(call: Opaque, name: str) -> View | None:
    stored = array_of(call)
    if stored is None:
        return None
    shape = list(stored.shape)
    if stored.items is not None:
        return View("sequence", f"numpy.ndarray object {shape}", children=stored.items)
    kind = f"numpy.ndarray {stored.dtype.name} {shape}"
    numel = prod(stored.shape)
    if numel > ARRAY_ELEMENTS or stored.data is None:
        return View("object", kind)
    values = stored.dtype.decode(stored.data, numel)
    if values is None:
        return View("object", kind)
    if not stored.shape:
        return View("scalar", kind, values[0])
    rows = nest_values(values, stored.shape, stored.fortran)
    return View("sequence", kind, children=rows)


def nest_values(
    values: list[Node], shape: tuple[int, ...], fortran: bool
) -> list[Node]:
    """Flat values as nested lists, row by row. In a Fortran array the first index
    changes fastest.
    """
    # A shape such as (10**9, 0) has many rows and no values: none is made.
    if not values:
        return []
    if len(shape) == 1:
        return values
    rows = shape[0]
    inner = shape[1:]
    if fortran:
        return [nest_values(values[row::rows], inner, True) for row in range(rows)]
    width = prod(inner)
    return [
        nest_values(values[row * width : (row + 1) * width], inner, False)
        for row in range(rows)
    ]


_Reader = Callable[[Opaque, str], View | None]
# numpy 2 renamed `numpy.core` to `numpy._core`; files of both are read.
_READERS: dict[str, _Reader] = {
    **dict.fromkeys(("collections.OrderedDict", "collections.Counter"), _ordered_dict),
    **dict.fromkeys(("builtins.dict",), _ordered_dict),
    **{
        f"builtins.{name}": _collection_view
        for name in ("set", "frozenset", "list", "tuple")
    },
    "collections.deque": _collection_view,
    "collections.defaultdict": _default_dict,
    "torch.Size": _size_view,
    "torch.ScriptObject": _packed_view,
    **dict.fromkeys(UNINITIALIZED, _lazy_view),
    **{
        f"numpy.{core}.multiarray._reconstruct": _numpy_array
        for core in ("core", "_core")
    },
    **{f"numpy.{core}.numeric._frombuffer": _numpy_array for core in ("core", "_core")},
}


class Known(NamedTuple):
    """The type of an object, and a node that says the same without its class."""

    type: str
    node: Node


def known_parts(call: Opaque) -> Known | None:
    """Return the parts of an object of one of these classes, or None.

    A call that the class does not make gives None too.
    """
    reader = _FIELDS.get(class_of(call))
    if reader is None or call.items or call.keys or call.kwargs:
        return None
    return reader(call)


def as_class_call(call: Opaque) -> Opaque:
    """An object that protocol 2 makes by `partial(cls.__new__, cls, *args,
    **kwargs)()`, as a call of its class.

    Source: `copyreg.__newobj_ex__` in Lib/pickle.py. Any other call stays as it is.
    """
    factory = call.func
    if type(factory) is not Opaque or class_of(factory) != "functools.partial":
        return call
    if call.args or len(factory.states) != 1:
        return call
    state = factory.states[0]
    if not is_tuple(state) or len(state) < 3:
        return call
    func, args, keywords = state[:3]
    if type(func) is not Opaque or class_of(func) != "builtins.getattr":
        return call
    if func.args[1:] != ("__new__",):
        return call
    if not is_tuple(args) or not args or type(args[0]) is not Global:
        return call
    if not isinstance(keywords, (Dict, type(None))):
        return call
    whole = Opaque("newobj_ex", args[0], args[1:], keywords, call.offset)
    whole.states = call.states
    whole.items = call.items
    whole.keys = call.keys
    whole.values = call.values
    return whole


def _named_dict(keys: Sequence[str], values: Sequence[Node]) -> Dict:
    return dict_of(zip(keys, values, strict=True))


def _known_partial(call: Opaque) -> Known | None:
    # Source: `partial.__reduce__`, whose state is (func, args, keywords, __dict__).
    state = call.states[0] if len(call.states) == 1 else None
    if not is_tuple(state) or len(state) != 4:
        return None
    attributes = state[3]
    fields = _named_dict(("func", "args", "keywords"), state[:3])
    if type(attributes) is Dict and attributes.keys:
        fields.set(["attributes"], [attributes])
    return Known("functools.partial", fields)


def _torch_generator(call: Opaque) -> Known | None:
    state = call.states[0] if len(call.states) == 1 else None
    if len(call.args) != 1 or not is_tuple(state) or len(state) != 3:
        return None
    # torch 2.0 knows no devices in a pickle of plain values.
    device = device_text(call.args[0])
    fields = _named_dict(("device", "seed", "offset", "state"), (device, *state))
    return Known("torch.Generator", fields)


def _numpy_random(call: Opaque) -> Known | None:
    constructor = class_of(call).rpartition(".")[2]
    name = _RANDOM_CLASSES.get(constructor, "BitGenerator")
    for state in call.states:
        # Newer numpy puts the state into a tuple, before the sequence of its seeds.
        fields = state[0] if is_tuple(state) and state else state
        if type(fields) is Dict:
            return Known(f"numpy.random.{name}", fields)
    # A Generator has no state of its own: it is called with its BitGenerator.
    bit_generator = call.args[0] if call.args else None
    if name != "Generator" or type(bit_generator) is not Opaque or call.states:
        return None
    parts = known_parts(bit_generator)
    return None if parts is None else Known("numpy.random.Generator", parts.node)


_RANDOM_CLASSES = {"__randomstate_ctor": "RandomState", "__generator_ctor": "Generator"}


def _known_pattern(call: Opaque) -> Known | None:
    if len(call.args) != 2 or call.states or not isinstance(call.args[0], (str, bytes)):
        return None
    return Known("re.Pattern", _named_dict(("pattern", "flags"), call.args))


def _known_logger(call: Opaque) -> Known | None:
    name = call.args[0] if len(call.args) == 1 and not call.states else None
    return Known("logging.Logger", name) if isinstance(name, str) else None


_FIELDS: dict[str, Callable[[Opaque], Known | None]] = {
    "functools.partial": _known_partial,
    "_functools.partial": _known_partial,
    "torch._C.Generator": _torch_generator,
    **{
        f"numpy.random._pickle.__{kind}_ctor": _numpy_random
        for kind in ("randomstate", "generator", "bit_generator")
    },
    "re._compile": _known_pattern,
    "logging.getLogger": _known_logger,
}
