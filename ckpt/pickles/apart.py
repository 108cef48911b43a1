"""Tensors of classes and quantized tensors as their plain parts, under the names that the file gives them.

A wrapper subclass (torchao, TwoTensor) pickles as its attributes: tensors and what describes them. Sources:
torch/_tensor.py `_reduce_ex_internal`, torch/_utils.py `_rebuild_qtensor`, torch/nested/_internal.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.dtypes import BY_NAME
from ckpt.nodes import Dict, Global, Node, Opaque, is_tuple, tensor_of
from ckpt.pickles.edit import Edit
from ckpt.pickles.state_dict import tensor_attributes
from ckpt.rows import NamedTuple
from ckpt.tensors import Composite, TensorRef
from ckpt.tree.dense import number_as
from ckpt.tree.view import MARKERS

_FROM_TYPE = ("_rebuild_from_type", "_rebuild_from_type_v2")
_REPRESENTED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
"""torch's `int_repr()` of quantized tensors, by their dtype."""
_JAGGED = ("values", "offsets", "lengths", "_ragged_idx")
"""The parts of a jagged tensor. What else it keeps follows from them."""
_SHARDS = (".DTensor", ".ShardedTensor")
"""Classes whose parts are only what one rank holds of a tensor."""
_DEPTH, _MOST = 8, 1_000
"""How deep wrappers lie in wrappers, and how many parts one has at most: beyond, a tensor is not taken apart."""

_SPREAD = 100_000
"""So many parts stand beside their tensors; the parts of further ones lie in a dict each, which all that name it share."""


class Apart(NamedTuple):
    """The parts of a tensor: what it was, and nodes by name. The part without a name stands for the tensor itself."""

    what: str
    parts: dict[str, Node]


def apart(node: Node, plain: Callable[[Node], bool], *, dense: bool = False) -> Apart | None:
    """A tensor as its parts; None for one that stays whole.

    `plain` says which names may stay in the pickle. With `dense` quantized tensors are taken apart too.
    """
    found = _apart(node, plain, dense)
    if found is None:
        return None
    todo = [("", found.parts, 1)]
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
    return Apart(found.what, flat)


def _apart(node: Node, plain: Callable[[Node], bool], dense: bool) -> Apart | None:
    kept: dict[str, Node] = {}
    while (
        type(node) is Opaque and type(node.func) is Global and node.func.name.startswith("_rebuild_parameter")
    ):
        kept = kept or tensor_attributes(node)
        if not node.args:
            return None
        node = node.args[0]
    if type(node) is not Opaque or not isinstance(node.meaning, (TensorRef, Composite)):
        return None
    tensor = node.meaning
    if isinstance(tensor, TensorRef):
        return _subclass(node, tensor, plain)
    if tensor.layout == "wrapper":
        parts = {} if (tensor.detail or "").partition(" ")[0].endswith(_SHARDS) else _wrapper(node, tensor)
        return Apart(f"a tensor of {tensor.detail or 'a class'}", {**parts, **kept}) if parts else None
    if tensor.layout == "jagged":
        given = _given((_inner_args(node) or (None,))[0])
        parts = {name: _bare(given[name]) for name in _JAGGED if name in given}
        return Apart("a jagged tensor", parts) if parts else None
    if tensor.layout == "quantized" and dense:
        parts = _quantized(node, tensor)
        return Apart(f"a tensor of torch.{tensor.dtype.name}", {**parts, **kept}) if parts else None
    return None


def _subclass(call: Opaque, tensor: TensorRef, plain: Callable[[Node], bool]) -> Apart | None:
    """A plain tensor of a class with attributes: the tensor, and each attribute."""
    func = call.func
    if type(func) is not Global or func.name not in _FROM_TYPE or plain(call.args[1]):
        return None
    parts = _given(call.args[3])
    kind = call.args[1]
    what = f"a tensor of {kind.qualified if type(kind) is Global else 'a subclass'}"
    return Apart(what, {"": tensor, **parts}) if parts else None


def _wrapper(call: Opaque, tensor: Composite) -> dict[str, Node]:
    """The attributes of a wrapper, and the dtype and shape that it shows, unless an attribute has the name."""
    func = call.func
    state: Node = call.states[0] if call.states else None
    if type(func) is Global and func.name in _FROM_TYPE:
        state = call.args[3]
    parts = _given(state)
    if not any(tensor_of(part) is not None for part in parts.values()):
        return {}
    # The dtype as text: torch 2.0 refuses most dtypes as values.
    outer: dict[str, Node] = {"dtype": f"torch.{tensor.dtype.name}", "shape": tensor.shape}
    return {**outer, **parts}


def _bare(node: Node) -> Node:
    """A tensor without what torch.compile noted on it."""
    tensor = tensor_of(node)
    return tensor if isinstance(tensor, TensorRef) else node


def _inner_args(call: Opaque) -> tuple[Node, ...]:
    """The arguments of the call that makes a tensor, which a class may wrap."""
    func, args = call.func, call.args
    inner = args[2] if type(func) is Global and func.name in _FROM_TYPE and len(args) > 2 else args
    return inner if is_tuple(inner) else ()


def _given(state: Node) -> dict[str, Node]:
    """The attributes in a state that hold something."""
    parts: dict[str, Node] = {}
    for part in state if is_tuple(state) else (state,):
        if type(part) is Dict:
            for key, value in zip(part.keys, part.values, strict=True):
                if isinstance(key, str) and key not in MARKERS and value is not None:
                    parts[str(key)] = value
    return parts


def _quantized(call: Opaque, tensor: Composite) -> dict[str, Node]:
    """A quantized tensor as its integers and what turns them into numbers; nothing for elements below a byte."""
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
    parts |= {"scales": scheme[1], "zero_points": scheme[2]}
    return parts if len(scheme) < 4 else {**parts, "axis": number_as(scheme[3], "int64")}


class Spread(Edit):
    """Edits that put the parts of a tensor in its place: `weight.qdata` and `weight.scale` instead of `weight`.

    `plain` says which names may stay, `dense` that quantized tensors may not.
    """

    def __init__(self, plain: Callable[[Node], bool], *, dense: bool) -> None:
        super().__init__()
        self.taken: dict[tuple[str, tuple[str, ...]], int] = {}
        """What tensors were before they were taken apart, and the names of their parts: how many of each."""
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
        """A dict with the parts of its tensors beside each other; any other node, and a dict without such, itself.

        A tensor whose parts have names that the dict has already keeps its place, with a dict of its parts.
        """
        if id(node) in self._spreads:
            return self._spreads[id(node)]
        if not (type(node) is Dict or (type(node) is Opaque and node.meaning is None and node.keys)):
            return node
        found = [
            self._apart(value) if isinstance(key, str) else None
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        if not any(found):
            return node
        taken = {str(key) for key in node.keys if isinstance(key, str)}
        keys: list[Node] = []
        values: list[Node] = []
        for key, value, whole in zip(node.keys, node.values, found, strict=True):
            named = str(key) if isinstance(key, str) else ""
            names = [] if whole is None else [f"{named}.{name}" if name else named for name in whole.parts]
            if whole is None or self._beside > _SPREAD or not taken.isdisjoint({*names} - {named}):
                keys.append(key)
                values.append(value)
                continue
            self._beside += len(names)
            taken.update(names)
            keys += names
            values += whole.parts.values()
        made: Dict | Opaque = Dict() if type(node) is Dict else _without_items(node)
        made.set(keys, values)
        self._spreads[id(node)] = made
        self._alive.append(node)
        return made

    def parts_of(self, node: Node) -> Dict | None:
        """The parts of a tensor as a dict; None for one that stays whole."""
        whole = self._apart(node)
        if whole is None:
            return None
        made = Dict()
        made.set([name or "data" for name in whole.parts], list(whole.parts.values()))
        return made

    def _apart(self, node: Node) -> Apart | None:
        if type(node) is not Opaque or node.meaning is None:
            return None
        if id(node) not in self._aparts:
            found = self._aparts[id(node)] = apart(node, self._plain, dense=self._dense)
            self._alive.append(node)
            if found is not None:
                row = found.what, tuple(name for name in found.parts if name)
                self.taken[row] = self.taken.get(row, 0) + 1
                self.within.update({id(part): (id(node), name) for name, part in found.parts.items()})
        return self._aparts[id(node)]


def _without_items(node: Node) -> Opaque:
    """A call without its keys and values."""
    assert type(node) is Opaque
    made = Opaque(node.how, node.func, node.args, node.kwargs, node.offset)
    made.states, made.items = node.states, node.items
    return made
