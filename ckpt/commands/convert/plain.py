"""Trees without foreign classes: objects become dicts, lists and scalars, numpy becomes
tensors and numbers.

The result loads with torch alone and weights_only=True. What cannot be made plain is
listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import UnsupportedError
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
    is_tuple,
    tensor_of,
)
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite, TensorRef, unwrap_dtensor
from ckpt.pickle.bounds import Bounds
from ckpt.pickle.edit import DROPPED, Edit
from ckpt.pickle.emit import holds_itself
from ckpt.pickle.judge.impossible import impossible_call
from ckpt.pickle.judge.names import is_known, python3_name
from ckpt.pickle.judge.weights_only import ALLOWED, call_refusals
from ckpt.pickle.state_dict import state_dict, tensor_attributes
from ckpt.tree.arrays import NumpyArray, array_of
from ckpt.tree.find import key_text
from ckpt.tree.quantized import number_as, numpy_tensor, packed_parameters
from ckpt.tree.scalars import READERS, class_of
from ckpt.tree.view import (
    MARKERS,
    UNINITIALIZED,
    Known,
    View,
    as_class_call,
    known_parts,
    look,
    nest_values,
)

_FROM_TYPE = ("_rebuild_from_type", "_rebuild_from_type_v2")
_REPRESENTED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
"""torch's `int_repr()` of quantized tensors, by their dtype."""
_JAGGED = ("values", "offsets", "lengths", "_ragged_idx")
"""The parts of a jagged tensor. What else it keeps follows from them."""
_SHARDS = (".DTensor", ".ShardedTensor")
"""Classes whose parts are only what one rank holds of a tensor."""
_DEPTH, _MOST = 8, 1_000
"""The greatest depth of wrappers in wrappers, and the most parts of one. Beyond, a
tensor stays whole.
"""

_SPREAD = 100_000
"""So many parts stand beside their tensors; the parts of further ones lie in a dict
each, which all that name it share.
"""


class Apart(NamedTuple):
    """The parts of a tensor: what it was, and nodes by name. The part without a name
    stands for the tensor itself.
    """

    what: str
    parts: dict[str, Node]


def take_apart(
    node: Node, plain: Callable[[Node], bool], *, dense: bool = False
) -> Apart | None:
    """Take a tensor apart, or return None if it stays whole.

    `plain` says which names may stay in the pickle. With `dense` quantized tensors are
    taken apart too.
    """
    whole = _apart(node, plain, dense)
    if whole is None:
        return None
    todo = [("", whole.parts, 1)]
    flat: dict[str, Node] = {}
    while todo:
        prefix, parts, depth = todo.pop()
        for name, part in parts.items():
            full = f"{prefix}.{name}" if prefix and name else prefix or name
            inner = _apart(part, plain, dense) if depth < _DEPTH else None
            if inner is not None:
                todo.append((full, inner.parts, depth + 1))
            elif full in flat or len(flat) >= _MOST:
                return None
            else:
                flat[full] = part
    return Apart(whole.what, flat)


def _apart(node: Node, plain: Callable[[Node], bool], dense: bool) -> Apart | None:
    kept: dict[str, Node] = {}
    # A parameter around the tensor, as torch writes it, and attributes of its own.
    while (
        type(node) is Opaque
        and type(node.func) is Global
        and node.func.name.startswith("_rebuild_parameter")
    ):
        kept = kept or tensor_attributes(node)
        if not node.args:
            return None
        node = node.args[0]
    if type(node) is not Opaque or not isinstance(node.meaning, (TensorRef, Composite)):
        return None
    tensor = node.meaning
    if isinstance(tensor, TensorRef):
        return _subclass_apart(node, tensor, plain)
    if tensor.layout == "wrapper":
        local = unwrap_dtensor(tensor)
        if local is not tensor:
            parts: dict[str, Node] = {"": local}
        elif _is_of_rank(tensor):
            # The part of a tensor on one rank is no tensor of the model.
            return None
        else:
            parts = _wrapper_parts(node, tensor)
        if not parts:
            return None
        return Apart(f"a tensor of {tensor.detail or 'a class'}", {**parts, **kept})
    if tensor.layout == "jagged":
        given = _given_attributes((_inner_args(node) or (None,))[0])
        parts = {name: _bare_tensor(given[name]) for name in _JAGGED if name in given}
        return Apart("a jagged tensor", parts) if parts else None
    if tensor.layout == "quantized" and dense:
        parts = _quantized_parts(node, tensor)
        if not parts:
            return None
        return Apart(f"a tensor of torch.{tensor.dtype.name}", {**parts, **kept})
    return None


def _subclass_apart(
    call: Opaque, tensor: TensorRef, plain: Callable[[Node], bool]
) -> Apart | None:
    """A plain tensor of a class with attributes: the tensor, and each attribute."""
    func = call.func
    if type(func) is not Global or func.name not in _FROM_TYPE or plain(call.args[1]):
        return None
    parts = _given_attributes(call.args[3])
    kind = call.args[1]
    what = f"a tensor of {kind.qualified if type(kind) is Global else 'a subclass'}"
    return Apart(what, {"": tensor, **parts}) if parts else None


def _is_of_rank(tensor: Composite) -> bool:
    return (tensor.detail or "").partition(" ")[0].endswith(_SHARDS)


def _wrapper_parts(call: Opaque, tensor: Composite) -> dict[str, Node]:
    """The attributes of a wrapper, and the dtype and shape that it shows, unless an
    attribute has the name.
    """
    func = call.func
    state: Node = call.states[0] if call.states else None
    if type(func) is Global and func.name in _FROM_TYPE:
        state = call.args[3]
    parts = _given_attributes(state)
    if not any(tensor_of(part) is not None for part in parts.values()):
        return {}
    # The dtype as text: torch 2.0 refuses most dtypes as values.
    outer: dict[str, Node] = {
        "dtype": f"torch.{tensor.dtype.name}",
        "shape": tensor.shape,
    }
    return {**outer, **parts}


def _bare_tensor(node: Node) -> Node:
    """A tensor without what torch.compile noted on it."""
    tensor = tensor_of(node)
    return tensor if isinstance(tensor, TensorRef) else node


def _inner_args(call: Opaque) -> tuple[Node, ...]:
    """The arguments of the call that makes a tensor, which a class may wrap."""
    func = call.func
    inner: Node = call.args
    if type(func) is Global and func.name in _FROM_TYPE and len(call.args) > 2:
        # (function, class, arguments of the function, state).
        inner = call.args[2]
    return inner if is_tuple(inner) else ()


def _given_attributes(state: Node) -> dict[str, Node]:
    """The attributes in a state that hold something."""
    parts: dict[str, Node] = {}
    for part in state if is_tuple(state) else (state,):
        if type(part) is Dict:
            for key, value in zip(part.keys, part.values, strict=True):
                if isinstance(key, str) and key not in MARKERS and value is not None:
                    parts[str(key)] = value
    return parts


def _quantized_parts(call: Opaque, tensor: Composite) -> dict[str, Node]:
    """A quantized tensor as its integers and what turns them into numbers; nothing for
    elements below a byte.
    """
    args = _inner_args(call)
    scheme = args[4] if len(args) > 4 else None
    whole = tensor.parts[0][1]
    dtype = BY_NAME.get(_REPRESENTED.get(tensor.dtype.name, ""))
    if dtype is None or not is_tuple(scheme) or len(scheme) < 3:
        return {}
    bare = whole.storage._replace(dtype=dtype)
    parts: dict[str, Node] = {"int_repr": whole._replace(storage=bare, dtype=dtype)}
    if tensor_of(scheme[1]) is None:
        return {
            **parts,
            "scale": number_as(scheme[1], "float64"),
            "zero_point": number_as(scheme[2], "int64"),
        }
    # One scale for each channel, along the axis.
    parts |= {"scales": scheme[1], "zero_points": scheme[2]}
    if len(scheme) > 3:
        parts["axis"] = number_as(scheme[3], "int64")
    return parts


class Spread(Edit):
    """Edits that put the parts of a tensor in its place: `weight.qdata` and
    `weight.scale` instead of `weight`.

    `plain` says which names may stay, `dense` that quantized tensors may not.
    """

    def __init__(self, plain: Callable[[Node], bool], *, dense: bool) -> None:
        super().__init__()
        self.taken: dict[tuple[str, tuple[str, ...]], int] = {}
        """The number of tensors that were taken apart, by what they were and the names
        of their parts.
        """
        self.within: dict[int, tuple[int, str]] = {}
        """Parts by their id: the id of their tensor, and their name in it."""
        self._plain = plain
        self._dense = dense
        self._aparts: dict[int, Apart | None] = {}
        self._spreads: dict[int, Node] = {}
        self._beside = 0

    def shell_of(self, node: Node, like: Opaque | None = None) -> Node:
        return super().shell_of(self.spread(node), like)

    def spread(self, node: Node) -> Node:
        """A dict with the parts of its tensors beside each other; any other node, and a
        dict without such, itself.

        A tensor whose parts have names that the dict has already keeps its place, with
        a dict of its parts.
        """
        if id(node) in self._spreads:
            return self._spreads[id(node)]
        is_dict = type(node) is Dict
        # An OrderedDict or a subclass of dict is a call with items.
        if type(node) is Opaque and node.meaning is None and node.keys:
            is_dict = True
        if not is_dict or not isinstance(node, (Dict, Opaque)):
            return node
        taken_apart = [
            self._apart(value) if isinstance(key, str) else None
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        if not any(taken_apart):
            return node
        taken = {str(key) for key in node.keys if isinstance(key, str)}
        keys: list[Node] = []
        values: list[Node] = []
        for key, value, whole in zip(node.keys, node.values, taken_apart, strict=True):
            if whole is None:
                keys.append(key)
                values.append(value)
                continue
            named = str(key) if isinstance(key, str) else ""
            names = [f"{named}.{name}" if name else named for name in whole.parts]
            # It stays whole where a part would take the name of another tensor.
            is_name_taken = not taken.isdisjoint({*names} - {named})
            if self._beside > _SPREAD or is_name_taken:
                keys.append(key)
                values.append(value)
                continue
            self._beside += len(names)
            taken.update(names)
            keys += names
            values += whole.parts.values()
        spread: Dict | Opaque = Dict() if type(node) is Dict else _without_items(node)
        spread.set(keys, values)
        self._spreads[id(node)] = spread
        # Its id must not be taken by another node.
        self._alive.append(node)
        return spread

    def parts_of(self, node: Node) -> Dict | None:
        """Return the parts of a tensor as a dict, or None if it stays whole."""
        whole = self._apart(node)
        if whole is None:
            return None
        parts = Dict()
        parts.set([name or "data" for name in whole.parts], list(whole.parts.values()))
        return parts

    def _apart(self, node: Node) -> Apart | None:
        if type(node) is not Opaque or node.meaning is None:
            return None
        if id(node) not in self._aparts:
            result = self._aparts[id(node)] = take_apart(
                node, self._plain, dense=self._dense
            )
            self._alive.append(node)
            if result is not None:
                row = result.what, tuple(name for name in result.parts if name)
                self.taken[row] = self.taken.get(row, 0) + 1
                self.within.update(
                    {id(part): (id(node), name) for name, part in result.parts.items()}
                )
        return self._aparts[id(node)]


def _without_items(node: Node) -> Opaque:
    """A call without its keys and values."""
    assert type(node) is Opaque
    shell = Opaque(node.how, node.func, node.args, node.kwargs, node.offset)
    shell.states, shell.items = node.states, node.items
    return shell


_FROM_NUMPY = (
    "_rebuild_device_tensor_from_numpy",
    "_rebuild_xla_tensor",
    "_rebuild_mlc_tensor",
)
_OPAQUE = ("torch._C.", "builtins.getattr", "functools.partial", "numpy.")
"""The beginnings of the names of classes whose fields do not say what an object is."""
_CLASSES = (
    "array.array",
    "operator.attrgetter",
    "operator.itemgetter",
    "operator.methodcaller",
)
"""Classes in small letters that are pickled as a call with what they hold."""
_KEY_PARTS = 1_000
# Never in a tree; compared by identity.
_NOT_HASHABLE: Node = Opaque("not hashable", None, (), None, 0)
_SCALARS = (str, int, float, bool, bytes, bytearray, type(None))
_INT_BITS = 8 * 255
"""Ints of so many bits need an opcode that weights_only refuses."""
LAZY = "uninitialized: its lazy module has not run yet"
_SETS = ("builtins.set", "builtins.frozenset")


_ROUNDS = 100
"""The most searches for what holds itself. Each finds at least one tensor or tuple of a
circle.
"""


class Plain(Spread):
    """The edit that makes trees plain.

    `lost` are the nodes that could not be made plain, with what they are. None stands
    in their place. `encoding` decodes the strings of Python 2. Without one, strings
    that are not UTF-8 are lost. With `dense` quantized tensors are taken apart too,
    because the format holds dense ones alone.
    """

    def __init__(self, encoding: str | None = None, *, dense: bool = False) -> None:
        super().__init__(_is_allowed, dense=dense)
        self.lost: dict[int, tuple[Node, str]] = {}
        self.made: dict[str, int] = {}
        """Classes that were made plain, and how many objects of each."""
        self._encoding = encoding
        self._hashed: dict[int, Node] = {}
        self._unfolded: dict[int, int] = {}
        self._bounds = Bounds()

    def copy(self, root: Node) -> Node:
        # A root has no container whose hook would see it.
        copied = super().copy(
            self.leaf(root) if type(root) in (Global, ByteStr, int) else root
        )
        for _ in range(_ROUNDS):
            held = holds_itself(copied)
            if not held:
                return copied
            copied = self._unroll_cycles(copied, held)
        raise UnsupportedError(
            "its tensors and tuples hold each other in too many ways to be made plain"
        )

    def _unroll_cycles(self, copied: Node, held: dict[int, Node]) -> Node:
        """The copy without what holds itself. Others that hold the same list may only
        be met then.
        """
        originals = {id(copy): marker for marker, copy in self._copies.items()}
        nodes = {id(node): node for node in self._alive}
        for marker, node in held.items():
            if type(node) is Opaque:
                original = nodes.get(originals.get(marker, 0), node)
                self._lose_node(original, "attributes that hold their own tensor")
            else:
                self._note_kind(f"a {look(node).type} that holds itself")
        unrolled = _Unrolled(held)
        copied = unrolled.copy(copied)
        self._copies = {
            marker: unrolled.copy_of(copy) for marker, copy in self._copies.items()
        }
        unrolled.copy(None)  # what only the copies of left-out nodes need
        return copied

    # --- the hooks --------------------------------------------------------------------

    def instead(self, node: Node) -> Node | None:
        if type(node) is Opaque:
            if type(node.meaning) is Nested:
                self._note_kind("a nested checkpoint")
                return self.copy_of(node.meaning.root)
            if type(node.meaning) is Tagged:
                self._note_kind("a type tag of torch in C++")
                value = self._item(node.meaning.root)
                # None from a hook leaves the node alone; DROPPED makes None of it.
                return DROPPED if value is None else value
            if node.meaning is not None:
                return self._tensor(node)
            return self._plain_object(node)
        if type(node) is PersistentId and type(node.meaning) is Global:
            return self.leaf(node.meaning)
        if type(node) is Set:
            return self._plain_set(node.items, node.frozen)
        return None

    def leaf(self, node: Node) -> Node:
        if type(node) is ByteStr:
            return self._text(node)
        if type(node) is Global and python3_name(node.module, node.name) not in ALLOWED:
            self._note_kind("a name")
            return python3_name(node.module, node.name)
        if type(node) is int and node.bit_length() >= _INT_BITS:
            self._lose_node(node, f"an int of {node.bit_length():,} bits")
            return None
        return node

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        # Of Python 2: OrderedDict([[key, value], ...]) holds texts in its arguments.
        return tuple([self._plain_argument(arg) for arg in call.args])

    def _plain_argument(self, arg: Node) -> Node:
        # The hooks of a tensor, say: a text is none.
        if type(arg) is Global and not _is_allowed(arg):
            self._lose_node(arg, f"the name {arg.qualified}")
            return None
        return self.leaf(arg) if type(arg) is ByteStr else arg

    def keys(self, node: Dict | Opaque, keys: Sequence[Node]) -> Sequence[Node]:
        new_keys: list[Node] = []
        taken: set[str] = set()
        for key in keys:
            new = self._hashable_node(key)
            text = key_text(new)
            if new is _NOT_HASHABLE or text in taken:
                self._lose_node(
                    key,
                    "a key that is no text or number"
                    if new is _NOT_HASHABLE
                    else "a key that is there twice",
                )
                new = f"<{look(key).type} {len(self.lost)}>"
                text = key_text(new)
            taken.add(text)
            new_keys.append(new)
        return new_keys

    def _hashable_node(self, node: Node) -> Node:
        """A node as the key of a dict or the item of a set: scalars, tuples of them,
        tensors; else _NOT_HASHABLE.
        """
        if type(node) in (str, int, float, bool, bytes, type(None)) or _is_allowed(
            node
        ):
            return node
        if is_tuple(node):
            if id(node) not in self._hashed:
                items = tuple([self._hashable_node(item) for item in node])
                # Tuples that hold each other many times over would never be hashed to
                # the end.
                size = self._unfolded[id(items)] = 1 + sum(
                    self._unfolded.get(id(item), 1) for item in items
                )
                whole = size <= _KEY_PARTS and not any(
                    item is _NOT_HASHABLE for item in items
                )
                self._hashed[id(node)] = items if whole else _NOT_HASHABLE
            return self._hashed[id(node)]
        view = look(node)
        if view.kind == "tensor":
            return node
        if (
            view.kind == "scalar"
            and isinstance(view.value, _SCALARS)
            and not isinstance(view.value, bytearray)
        ):
            # Protocol 2 writes it as a call.
            if type(node) is Opaque and view.type != "bytes":
                self._note_kind(view.type)
            return self._text(view.value)
        return _NOT_HASHABLE

    def _plain_set(self, items: Sequence[Node], frozen: bool) -> Node:
        """A set of what may lie in one; a list where something may not, or where two
        items would become one.
        """
        if frozen:
            self._note_kind("frozenset")
        members = [self._hashable_node(item) for item in items]
        is_hashable = all(item is not _NOT_HASHABLE for item in members)
        if is_hashable and len({key_text(item) for item in members}) == len(members):
            return self.shell_of(Set(members, frozen=False))
        self._note_kind("a set")
        return self.shell_of(list(items))

    # --- tensors ----------------------------------------------------------------------

    def _tensor(self, call: Opaque) -> Node | None:
        func = call.func
        whole = self.parts_of(call)
        if whole is not None:
            return self.shell_of(whole)
        if type(func) is Global and func.name in (
            "_rebuild_from_type_v2",
            "_rebuild_from_type",
        ):
            kind = call.args[1] if len(call.args) > 1 else None
            if isinstance(call.meaning, TensorRef) and not (
                type(kind) is Global and _is_allowed(kind)
            ):
                self._note_kind(
                    "a tensor of "
                    f"{kind.qualified if type(kind) is Global else 'a subclass'}"
                )
                return call.meaning._replace(storage=self.storage(call.meaning.storage))
        if isinstance(call.meaning, TensorRef) and not _is_allowed(func):
            return call.meaning._replace(storage=self.storage(call.meaning.storage))
        if isinstance(call.meaning, Composite):
            excess = self._bounds.excess(call.meaning)
            if excess is not None:
                return self._lose_node(
                    call, f"a tensor that leads torch out of its memory: {excess}"
                )
            if type(func) is Global and func.name == "_rebuild_sparse_csr_tensor":
                self._note_kind("a sparse CSR tensor of torch 1")
                return self.shell_of(
                    Opaque(
                        call.how,
                        Global("torch._utils", "_rebuild_sparse_tensor"),
                        call.args,
                        None,
                        call.offset,
                    ),
                    call,
                )
            if type(func) is Global and func.name in _FROM_NUMPY:
                return self._plain_on_device(call)
            is_allowed = _is_allowed(func)
            if type(func) is Global and func.name.startswith("_rebuild_from_type"):
                # Its second argument is the class of the tensor.
                is_allowed = is_allowed and _is_allowed(call.args[1])
            if not is_allowed:
                described = array_of(call.args[0]) if call.args else None
                tensor = None if described is None else numpy_tensor(described)
                if tensor is not None:
                    return tensor
                what = call.meaning.detail or call.meaning.layout
                return self._lose_node(call, f"a tensor: {what}")
            if call.meaning.layout == "wrapper":
                return self._lose_node(
                    call, f"a tensor: {call.meaning.detail or 'a wrapper'}"
                )
        return None

    def _plain_on_device(self, call: Opaque) -> Node:
        """A tensor that torch makes of an array of numpy, as XLA saves it: of a tensor,
        for the array becomes one.
        """
        described = array_of(call.args[0])
        if described is None or numpy_tensor(described) is None:
            return self._lose_node(call, "a tensor of a numpy array")
        func = Global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor")
        made = Opaque(call.how, func, call.args, None, call.offset)
        return self.shell_of(made, call)

    # --- objects ----------------------------------------------------------------------

    def _plain_object(self, call: Opaque) -> Node | None:
        call = as_class_call(call)
        name = class_of(call)
        if name in _SETS:
            return self._plain_set(look(call).children, name == "builtins.frozenset")
        if _is_allowed(call.func):
            if _is_kept(call):
                return None
            kind = look(call).type
            return self._lose_node(call, f"{kind} with odd arguments or changes")
        described = array_of(call)
        if described is not None:
            unit = f" of {described.dtype.name}" if described.dtype.unit else ""
            self._note_kind((name if "ndarray" in name else "numpy.ndarray") + unit)
            return self._plain_array(call, described)
        inside = packed_parameters(call)
        parts = self.known(call)
        if inside is not None:
            self._note_kind(inside[0])
            return self._content(inside[1])
        if parts is not None:
            self._note_kind(parts.type)
            return self._content(parts.node)
        view = look(call)
        if view.type in UNINITIALIZED:
            return self._lose_node(call, LAZY)
        if view.type == "numpy.dtype" and str(view.value).startswith("V"):
            return self._lose_node(call, "a numpy dtype of several fields")
        if view.kind == "scalar":
            if view.type.startswith("numpy.complex") and isinstance(view.value, str):
                number = complex(view.value)
                self._note_kind(view.type)
                # Pickles have no complex number: weights_only allows this call.
                return Opaque(
                    "reduce",
                    Global("__builtin__", "complex"),
                    (number.real, number.imag),
                    None,
                    0,
                )
            is_ours = name in READERS or name in _CLASSES
            is_value = is_ours or is_known(call.func) or _is_class(call)
            if isinstance(view.value, _SCALARS) and is_value:
                self._note_kind("a name" if view.type == "name" else view.type)
                value = self._text(view.value)
                return DROPPED if value is None else value
        elif view.kind == "sequence":
            self._note_kind(view.type)
            return self.shell_of(list(view.children))
        elif view.kind == "mapping":
            self._note_kind(view.type)
            return self.shell_of(_dict_of_view(view))
        elif view.kind == "module":
            self._note_kind(f"module {view.type}")
            return self.shell_of(state_dict(view))
        elif view.kind == "object" and self.is_taken_apart(call, name):
            self._note_kind(view.type)
            numbered = all(type(key) is int for key in view.keys)
            # An enum whose value is a tuple, a set of a class, to which Python 3.10 and
            # older give an empty state.
            is_called = not _is_built(call) or _has_empty_states(call)
            if is_called and len(view.children) == 1:
                return self._content(view.children[0])
            return self.shell_of(
                list(view.children) if numbered and view.keys else _dict_of_view(view)
            )
        return self._lose_node(call, view.type)

    def known(self, call: Opaque) -> Known | None:
        """The parts of an object of a known class, where they are wanted."""
        return known_parts(call)

    def is_taken_apart(self, call: Opaque, name: str) -> bool:
        """Tell whether the fields of an object of the class `name` say what it is."""
        if name.startswith(_OPAQUE):
            return False
        return _is_built(call) or (
            type(call.func) is Global
            and (_is_class(call) or name in _CLASSES)
            and not call.kwargs
        )

    def _content(self, node: Node) -> Node:
        """Return the node that stands for an object.

        A tuple becomes a list if objects are inside, because they may hold it.
        """
        if is_tuple(node) and not all(
            type(item) in _SCALARS or tensor_of(item) is not None for item in node
        ):
            return self.shell_of(list(node))
        if type(node) in (list, tuple, Dict):
            return self.shell_of(node)
        plain = self._item(node)
        return DROPPED if plain is None else plain

    def _plain_array(self, call: Opaque, described: NumpyArray) -> Node:
        if described.items is not None:
            if len(described.items) != prod(described.shape):
                return self._lose_node(call, "a damaged numpy array")
            return self._rows(described.items, described)
        tensor = numpy_tensor(described)
        if tensor is not None:
            return tensor
        count = prod(described.shape)
        # A damaged shape may claim more items than there are bytes.
        if (
            described.data is not None
            and described.dtype.code[:1] in ("U", "S")
            and count <= len(described.data)
        ):
            values = described.dtype.decode(described.data, count)
            if values is not None:
                return self._rows(values, described)
        return self._lose_node(call, f"a numpy array of {described.dtype.name}")

    def _rows(self, values: list[Node], described: NumpyArray) -> Node:
        """The items of an array as nested lists in its shape, or the item of an array
        without dimensions.
        """
        if not described.shape:
            return self._item(values[0])
        return self.shell_of(nest_values(values, described.shape, described.fortran))

    def _text(self, value: Node) -> Node:
        if type(value) is not ByteStr:
            return value
        if value.isascii():
            return str(value)
        try:
            return value.raw.decode(self._encoding or "utf-8")
        except UnicodeDecodeError:
            self._lose_node(
                value,
                (
                    "text of Python 2 that is not UTF-8: ckpt convert --encoding "
                    "latin1 reads it"
                ),
            )
            return None

    def _lose_node(self, node: Node, what: str) -> Node:
        self.lost[id(node)] = node, what
        return DROPPED

    def _note_kind(self, kind: str) -> None:
        self.made[kind] = self.made.get(kind, 0) + 1


class _Unrolled(Edit):
    """Makes lists of tuples and sets that hold themselves, and bare tensors of those
    whose attributes do.

    weights_only refuses the opcode that such a pickle takes.
    """

    def __init__(self, held: dict[int, Node]) -> None:
        super().__init__()
        self._held = held

    def instead(self, node: Node) -> Node | None:
        if id(node) not in self._held:
            return None
        if type(node) is Opaque:
            return node.meaning if isinstance(node.meaning, TensorRef) else DROPPED
        if type(node) is Set:
            return self.shell_of(node.items)
        return self.shell_of(list(node) if is_tuple(node) else node)


def _dict_of_view(view: View) -> Dict:
    return dict_of(zip(view.keys, view.children, strict=True))


def _is_built(call: Opaque) -> bool:
    """Tell whether an object is put together from its fields, and is not the result of
    some function.
    """
    if call.how != "reduce" or call.states or not call.args:
        return True
    # `copyreg._reconstructor` makes an object of its class.
    return class_of(call) != call.class_name


def _has_empty_states(call: Opaque) -> bool:
    """Tell whether a class was called, and got states without a field."""
    if call.how != "reduce" or not call.args or class_of(call) != call.class_name:
        return False
    return all(type(state) is Dict and not state.keys for state in call.states)


def _is_class(call: Opaque) -> bool:
    """Tell whether the callee looks like a class (an enum, say), as Python's classes
    are written.
    """
    return class_of(call).rpartition(".")[2][:1].isupper()


def _is_kept(call: Opaque, depth: int = 8) -> bool:
    """Tell whether weights_only loads a call of an allowed name as it is, with the
    calls in its arguments.
    """
    if (
        depth == 0
        or call_refusals(call)
        or impossible_call([call.func], [call]) is not None
    ):
        return False
    for arg in call.args:
        if (type(arg) is Global and not _is_allowed(arg)) or (
            type(arg) is ByteStr and not arg.isascii()
        ):
            return False
        if (
            type(arg) is Opaque
            and arg.meaning is None
            and not (_is_allowed(arg.func) and _is_kept(arg, depth - 1))
        ):
            return False
    return True


def _is_allowed(node: Node) -> bool:
    return type(node) is Global and python3_name(node.module, node.name) in ALLOWED
