"""The state dict of a pickled module: what `state_dict()` of the live module would
give.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpt.model.nodes import Dict, Global, Node, Opaque, tensor_of
from ckpt.model.rows import replace
from ckpt.model.tensors import Composite, TensorRef, is_same_view
from ckpt.pickle.calls import ordered_dict
from ckpt.tree.find import module_steps
from ckpt.tree.quantized import (
    number_tensor,
    packed_parameters,
    state_version,
    unpack_parameters,
)
from ckpt.tree.view import View, look

_DEPTH = 200
_LOOKS = 3
"""The depth to which the attributes of a tensor are searched for tensors."""


def state_dict(view: View) -> Opaque:
    """The state dict of a pickled module: an OrderedDict of what `state_dict()` would
    give.

    Packed parameters of quantized modules come as their content. What Python code keeps
    on a tensor and holds tensors itself (the scales of bitsandbytes) follows the
    tensor: `weight.SCB`.
    """
    state = ordered_dict()
    versions = ordered_dict()
    _note_version(versions, "", view)
    # A stack of iterators, so that the order is that of the live module.
    todo = [iter(list(module_steps(view, (), "", None)))]
    prefixes = [""]
    # The modules around, with what is noted before each, and those that give nothing:
    # a module of many places is gone through once, and none inside of itself.
    around: list[tuple[Node, int]] = []
    closed: set[int] = set()
    while todo:
        step = next(todo[-1], None)
        if step is None:
            todo.pop()
            prefixes.pop()
            if around:
                module, before = around.pop()
                if len(state.keys) + len(versions.keys) > before:
                    closed.discard(id(module))
            continue
        path, name, node, kind, registered, persistent = step
        # `state_dict()` skips plain attributes and buffers with persistent=False.
        if not registered or not persistent:
            continue
        inner = look(node)
        full = f"{prefixes[-1]}{name}"
        if len(path) == 1:  # an attribute that a quantized module saves
            state.set([full], [_saved_value(name, node)])
        elif inner.kind == "module" and kind is None and len(todo) < _DEPTH:
            if id(node) in closed:
                continue
            prefixes.append(f"{full}.")
            around.append((node, len(state.keys) + len(versions.keys)))
            closed.add(id(node))
            _note_version(versions, full, inner)
            todo.append(iter(list(module_steps(inner, (), "", None))))
        elif inner.kind == "tensor":
            kept = tensor_attributes(node)
            state.set(
                [full, *(f"{full}.{key}" for key in kept)],
                [_detach_parameter(node), *kept.values()],
            )
    if versions.keys:
        attributes = Dict()
        attributes.set(["_metadata"], [versions])
        state.build(attributes)
    return state


def _note_version(versions: Opaque, name: str, view: View) -> None:
    """Note the version of a quantized module: without it, load_state_dict expects what
    torch 1.0 to 1.4 saved.
    """
    version = state_version(view.type)
    if version is not None:
        fields = Dict()
        fields.set(["version"], [version])
        versions.set([name], [fields])


def _saved_value(name: str, node: Node) -> Node:
    inside = packed_parameters(node)
    if inside is not None:
        return unpack_parameters(name, inside[1])
    if name in ("scale", "zero_point"):
        return number_tensor(node)
    return _detach_parameter(node)


def tensor_attributes(node: Node) -> dict[str, Node]:
    """Return the attributes that Python code keeps on a Parameter, without modules and
    the data itself.

    They are empty when none of them holds a tensor.
    """
    attributes: dict[str, Node] = {}
    own = tensor_of(node)
    # A Parameter may lie around another one, each with attributes of its own.
    while _is_parameter(node):
        assert type(node) is Opaque
        state = node.args[3] if len(node.args) > 3 else None
        # A dict, or a pair of it and of what slots hold.
        for part in state if type(state) is tuple else (state,):
            if type(part) is Dict:
                for key, value in zip(part.keys, part.values, strict=True):
                    if (
                        isinstance(key, str)
                        and key != "requires_grad"
                        and not is_same_view(tensor_of(value), own)
                    ):
                        attributes[str(key)] = value
        node = node.args[0]
    kept = {
        key: value for key, value in attributes.items() if look(value).kind != "module"
    }
    return kept if any(_holds_tensor(value, _LOOKS) for value in kept.values()) else {}


def _holds_tensor(node: Node, depth: int) -> bool:
    view = look(node)
    if view.kind == "tensor" or depth == 0:
        return view.kind == "tensor"
    return view.kind in ("object", "mapping", "sequence") and any(
        _holds_tensor(child, depth - 1) for child in view.children[:100]
    )


def _is_parameter(node: Node) -> bool:
    return (
        type(node) is Opaque
        and type(node.func) is Global
        and node.func.name.startswith("_rebuild_parameter")
    )


def _detach_parameter(node: Node) -> Node:
    """The tensor of a Parameter: state_dict() gives no Parameters."""
    while _is_parameter(node):
        assert type(node) is Opaque
        node = node.args[0]
    return node


_REQUIRES_GRAD = {
    "_rebuild_tensor_v2": 4,
    "_rebuild_tensor_v3": 4,
    "_rebuild_qtensor": 5,
}


def without_gradient(node: Node) -> Node:
    """A tensor as `state_dict()` gives it: it requires no gradient."""
    if type(node) is TensorRef:
        return node._replace(requires_grad=False) if node.requires_grad else node
    if type(node) is not Opaque or type(node.func) is not Global:
        return node
    index = _REQUIRES_GRAD.get(node.func.name)
    if (
        index is None
        or len(node.args) <= index
        or not isinstance(node.meaning, (TensorRef, Composite))
    ):
        return node
    # A call of its own, for other places may hold the same node.
    call = Opaque(
        node.how,
        node.func,
        (*node.args[:index], False, *node.args[index + 1 :]),
        None,
        node.offset,
    )
    ref = node.meaning
    call.meaning = (
        ref._replace(requires_grad=False)
        if isinstance(ref, TensorRef)
        else replace(ref, requires_grad=False)
    )
    return call


def without_tensors(node: Node, names: Collection[str]) -> Node:
    """A state dict without the tensors of these names. What is beside tensors stays;
    dicts that become empty go.
    """
    return _without_names(node, frozenset(names), sorted(names), "", 1)


def _without_names(
    node: Node, names: Collection[str], in_order: Sequence[str], prefix: str, depth: int
) -> Node:
    """A dict without what has one of the names. Only a dict around one of them is
    entered, for others may hold themselves.
    """
    view = look(node)
    state: Dict | Opaque = Dict()
    if type(node) is Opaque:
        state = Opaque(node.how, node.func, (), None, node.offset)
        state.states = node.states
    keys: list[Node] = []
    values: list[Node] = []
    for key, child in zip(view.keys, view.children, strict=True):
        name = f"{prefix}{key!s}"
        if name in names:
            continue
        # A dict of dicts: names have dots between the keys.
        if depth < _DEPTH and _is_around(f"{name}.", in_order):
            inner = look(child)
            if inner.kind == "mapping" and inner.keys:
                child = _without_names(child, names, in_order, f"{name}.", depth + 1)
                if not look(child).keys:
                    continue
        keys.append(key)
        values.append(child)
    state.set(keys, values)
    return state


def _is_around(prefix: str, in_order: Sequence[str]) -> bool:
    """Tell whether one of the sorted names begins with a prefix."""
    low, high = 0, len(in_order)
    while low < high:
        middle = (low + high) // 2
        if in_order[middle] < prefix:
            low = middle + 1
        else:
            high = middle
    return low < len(in_order) and in_order[low].startswith(prefix)
