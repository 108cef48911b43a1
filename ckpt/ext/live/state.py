"""The state dict of a live model as the inert tree of a file: tensors as references,
plain values as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ckpt.evidence.wrappers import own_name
from ckpt.ext.live import memory, require_torch
from ckpt.ext.live.memory import channel_scales, quantized_node, unpack_values
from ckpt.formats.common.pickled import Contents, make_checkpoint
from ckpt.model.account import Absence, Account
from ckpt.model.checkpoint import Checkpoint, Traits
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Global, Node, Opaque, Set
from ckpt.model.rows import NamedTuple, replace
from ckpt.pickle.calls import device_call, ordered_dict


class State(NamedTuple):
    """The result of `state_dict()` with the model's own tensors. `name_of` maps a name
    of the model to its name here.
    """

    values: dict[str, Any]
    metadata: dict[str, Any]
    name_of: Callable[[str], str]


def state_of(model: Any) -> State:
    """The state dict of a model under unwrapped names.

    The modules are walked instead when `state_dict()` would gather the shards of all
    ranks, or when it does not return a state dict.
    """
    values = None if any(map(is_fsdp, model.modules())) else _ask_state_dict(model)
    metadata = {} if values is None else getattr(values, "_metadata", None) or {}
    if values is None:
        values = _walk_modules(model)
    # A hook may leave names out: they are asked for too, so that none can collide.
    every = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    names = dict.fromkeys((*values, *every))
    merged = len({own_name(name) for name in names}) < len(names)
    name_of = str if merged else own_name  # two names never become one
    return State(
        {name_of(name): value for name, value in values.items()},
        {
            name_of(name): fields
            for name, fields in metadata.items()
            if isinstance(name, str)
        },
        name_of,
    )


def _ask_state_dict(model: Any) -> Mapping[str, Any] | None:
    """The result of `state_dict()`; None when it is not a mapping of names to values
    with a tensor among them.
    """
    torch = require_torch()
    try:
        # The tensors themselves, so that parameters are still told from buffers.
        state = model.state_dict(keep_vars=True)
    except TypeError:  # the user's own, without torch's arguments
        state = model.state_dict()
    if not isinstance(state, Mapping):
        return None
    if not all(isinstance(name, str) for name in state):
        return None
    # A model with parameters and a state dict without tensors: the user's method saves
    # something else.
    has_tensors = any(isinstance(value, torch.Tensor) for value in state.values())
    return state if has_tensors or not any(True for _ in model.parameters()) else None


def is_fsdp(module: Any) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def _walk_modules(model: Any) -> dict[str, Any]:
    """A state dict without the hooks of FSDP, because they would gather the shards of
    all ranks.
    """
    values: dict[str, Any] = {}
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        for key, value in module._parameters.items():
            if value is not None:
                values[prefix + key] = value
        hidden = module._non_persistent_buffers_set
        for key, value in module._buffers.items():
            if value is not None and key not in hidden:
                values[prefix + key] = value
    return values


def state_tree(state: State, *, wrappers: bool = False) -> tuple[Node, dict[str, str]]:
    """(the state dict to pickle, with every tensor tagged cpu; what is left out, and
    why).

    Packed parameters of quantized modules come as what they hold; `wrappers` takes
    wrapper subclasses apart.
    """
    state = state._replace(values=unpack_values(state.values, wrappers=wrappers))
    # All tensors first: those that share memory must be seen together.
    tensors: dict[int, Any] = {}
    left_out: dict[str, str] = {}
    for name, value in state.values.items():
        held = list(_list_tensors(value, 0))
        reasons = (memory.unfit(_local_part(tensor)) for tensor in held)
        why = next((reason for reason in reasons if reason is not None), None)
        # One tensor that cannot be written leaves the whole value out.
        if why is not None:
            left_out[name] = why
        else:
            tensors.update({id(tensor): _local_part(tensor) for tensor in held})
    # A tensor that is quantized per channel has two more: its scales and zero points.
    channels = {
        marker: channel_scales(tensor)
        for marker, tensor in tensors.items()
        if tensor.is_quantized
    }
    further = [part for parts in channels.values() for part in parts]
    refs = memory.tensor_references([*tensors.values(), *further])
    ref_of: dict[int, Node] = {}
    for marker, tensor in tensors.items():
        ref = refs[id(tensor)]
        if marker in channels:
            parts = tuple([refs[id(part)] for part in channels[marker]])
            ref_of[marker] = quantized_node(tensor, ref, parts)
        else:
            ref_of[marker] = ref
    node = ordered_dict()
    for name, value in state.values.items():
        if name not in left_out:
            try:
                node.set([name], [plain_node(value, ref_of)])
            except NotPlainError:
                left_out[name] = f"its type {type(value).__name__} is not a plain value"
    versions = ordered_dict()
    for name, fields in state.metadata.items():
        try:
            versions.set([name], [plain_node(fields)])
        except NotPlainError:
            left_out[f"_metadata of {name}"] = "not plain values"
    attributes = Dict()
    attributes.set(["_metadata"], [versions])
    node.build(attributes)
    return node, left_out


def _local_part(tensor: Any) -> Any:
    """The part of a distributed tensor on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


_DEPTH = 20
TRAITS = Traits("live model", is_pickle=True, keeps_devices=True, is_live=True)


def _list_tensors(value: Any, depth: int) -> Iterator[Any]:
    """The tensors in a value."""
    torch = require_torch()
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEPTH and isinstance(value, (list, tuple)):
        for item in value:
            yield from _list_tensors(item, depth + 1)
    elif depth < _DEPTH and isinstance(value, dict):
        for item in value.values():
            yield from _list_tensors(item, depth + 1)


class NotPlainError(Exception):
    """A value that is not plain."""


def plain_node(
    value: Any, refs: Mapping[int, Node] | None = None, depth: int = 0
) -> Node:
    """A value as inert nodes, with tensors from `refs`. Raises NotPlainError for what
    weights_only refuses.
    """
    torch = require_torch()
    # `type`, not `isinstance`: a class of the user's own pickles as its class.
    if value is None or type(value) in (bool, int, float, str, bytes, bytearray):
        scalar: Node = value
        return scalar
    if refs is not None and id(value) in refs:
        return refs[id(value)]
    if type(value) is torch.dtype:
        return Global("torch", str(value).removeprefix("torch."))
    if type(value) is torch.device:
        return device_call(str(value))
    # A list may hold itself.
    if depth >= _DEPTH:
        raise NotPlainError
    if type(value) in (list, tuple, torch.Size):
        items = [plain_node(item, refs, depth + 1) for item in value]
        if type(value) is torch.Size:
            return Opaque("reduce", Global("torch", "Size"), (tuple(items),), None, 0)
        return items if type(value) is list else tuple(items)
    if type(value) is set:
        return Set([plain_node(item, refs, depth + 1) for item in value], frozen=False)
    if type(value) in (dict, OrderedDict):
        mapping: Dict | Opaque = Dict() if type(value) is dict else ordered_dict()
        keys = [plain_node(key, refs, depth + 1) for key in value]
        mapping.set(
            keys, [plain_node(item, refs, depth + 1) for item in value.values()]
        )
        return mapping
    raise NotPlainError


def state_checkpoint(model: Any, name: str) -> Checkpoint:
    """The state dict of a model as a checkpoint called `name` of the format `live`,
    with its bytes in this process.
    """
    torch = require_torch()
    with torch.no_grad():
        node, left_out = state_tree(state_of(model))
    result = make_checkpoint(name, "live", TRAITS, node, Contents(), Limits())
    account = Account(
        left_out=tuple(Absence(name, why) for name, why in left_out.items())
    )
    return replace(result, account=account)
