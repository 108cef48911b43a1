"""The state dict of a live model as the inert tree of a file: tensors as references, plain values as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt.checkpoint import Checkpoint, Dict, Node
from ckpt.formats.pickled import Contents, checkpoint
from ckpt.limits import Limits
from ckpt.live import memory, require_torch
from ckpt.names import own_name
from ckpt.pickles.calls import ordered_dict


def state_of(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state dict under unwrapped names, holding the model's own tensors; its `_metadata`)."""
    state = _walked(model) if any(map(is_fsdp, model.modules())) else model.state_dict(keep_vars=True)
    metadata = getattr(state, "_metadata", None) or {}
    found = {own_name(name): value for name, value in state.items()}
    if len(found) < len(state):
        found = dict(state)  # never merged
    return found, {own_name(name): fields for name, fields in metadata.items()}


def is_fsdp(module: Any) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def _walked(model: Any) -> dict[str, Any]:
    """A state dict without the hooks of FSDP, which would gather the shards of all ranks."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        found.update({prefix + key: value for key, value in module._parameters.items() if value is not None})
        hidden = module._non_persistent_buffers_set
        found.update(
            {
                prefix + key: value
                for key, value in module._buffers.items()
                if value is not None and key not in hidden
            }
        )
    return found


def state_tree(state: dict[str, Any], metadata: Mapping[str, Any]) -> tuple[Node, dict[str, str]]:
    """(the state dict as it will be pickled, every tensor tagged cpu; what it lacks, and why)."""
    torch = require_torch()
    here = {
        name: value.to_local() if hasattr(value, "to_local") else value
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    left_out = {name: why for name, tensor in here.items() if (why := memory.unfit(tensor)) is not None}
    refs = memory.references(tensor for name, tensor in here.items() if name not in left_out)
    node = ordered_dict()
    for name, value in state.items():
        if name in left_out:
            continue
        if name in here:
            node.set([name], [refs[id(here[name])]])
            continue
        try:
            node.set([name], [plain_node(value)])
        except NotPlainError:
            left_out[name] = f"a {type(value).__name__}, which weights_only refuses"
    versions = ordered_dict()
    for name, fields in metadata.items():
        try:
            versions.set([name], [plain_node(fields)])
        except NotPlainError:
            left_out[f"_metadata of {name}"] = "not plain"
    attributes = Dict()
    attributes.set(["_metadata"], [versions])
    node.build(attributes)
    return node, left_out


class NotPlainError(Exception):
    """A value that only a class could hold."""


_DEPTH = 20


def plain_node(value: Any, depth: int = 0) -> Node:
    """Plain values as inert nodes. Raises NotPlainError for anything else."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth < _DEPTH and type(value) in (list, tuple):
        items = [plain_node(item, depth + 1) for item in value]
        return items if type(value) is list else tuple(items)
    if depth < _DEPTH and type(value) is dict:
        made = Dict()
        made.set(
            [plain_node(key, depth + 1) for key in value],
            [plain_node(item, depth + 1) for item in value.values()],
        )
        return made
    raise NotPlainError


def state_checkpoint(model: Any, name: str) -> Checkpoint:
    """The state dict of a model as a checkpoint called `name`, of the format `live`: its bytes are in this process."""
    torch = require_torch()
    with torch.no_grad():
        node, _ = state_tree(*state_of(model))
    return checkpoint(name, "live", 0, node, Contents(), Limits())
