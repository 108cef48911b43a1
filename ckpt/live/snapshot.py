"""`ckpt.snapshot`: a live model as an ordinary file of torch, with what a state dict does not say beside it.

Written with our own emitter and zip writer, one storage at a time brought to the CPU; no collective is called.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ckpt import commit, writers
from ckpt.checkpoint import Dict, Node
from ckpt.formats.pickled import Contents, checkpoint
from ckpt.limits import Limits
from ckpt.live import memory, require_torch
from ckpt.live.model import describe, state_of, unwrapped
from ckpt.pickles.calls import ordered_dict
from ckpt.snapshots import KEY, STATE_DICT, columns
from ckpt.units import first_of
from ckpt.writers import torch_zip

Ranks = int | Literal["all"]


def snapshot(
    model: Any, path: str | os.PathLike[str], optimizer: Any = None, *, ranks: Ranks = 0
) -> str | None:
    """Write a model as it is now; the path of the file, or None on a rank that writes none.

    The file is one that `torch.load(weights_only=True)` takes: `state_dict`, with names free of wrappers and every
    tensor tagged cpu, and beside it the record `ckpt`: devices, roles, requires_grad, who had a gradient, what each
    optimizer was handed and holds state for, the modules, and those that hide in plain lists.

    Call it before forward, for BatchNorm moves in forward; then after `step()` and before `zero_grad()`, with the
    optimizer (or a list of them), while the gradients are still there. In a distributed run one rank writes,
    `ranks` says which; with "all" each writes `after.rank1.pth` and so on. An existing file is replaced. What a
    pickle of plain tensors cannot hold is left out, recorded, and warned about. Raises CkptError.
    """
    torch = require_torch()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"a torch.nn.Module is needed, not {type(model).__name__}")
    rank, world_size = _rank(torch)
    if ranks not in ("all", rank):
        return None
    name = os.fspath(path)
    if ranks == "all":
        stem, ending = os.path.splitext(name)
        name = f"{stem}.rank{rank}{ending}"
    optimizers = (
        [] if optimizer is None else list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    )
    inner, _ = unwrapped(model)
    with torch.no_grad():
        state, metadata = state_of(inner)
        record = describe(model, optimizers, state=state, gradients=True)
        tree = Dict()
        node, left_out = _state_node(torch, state, metadata)
        tree.set([STATE_DICT], [node])
        record = record._replace(rank=rank, world_size=world_size, left_out=tuple(left_out.items()))
        tree.set([KEY], [_node(columns(record))])
        limits = Limits()
        planned = checkpoint(name, torch_zip.NAME, 0, tree, Contents(), limits)
        try:
            writers.save(planned, commit.target(name, force=True), torch_zip.NAME, limits)
        finally:
            memory.Fetched.release()
    if left_out:
        listed = first_of([f"{key} ({why})" for key, why in left_out.items()])
        warnings.warn(f"{name}: left out: {listed}", stacklevel=2)
    return name


def _rank(torch: Any) -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _state_node(
    torch: Any, state: dict[str, Any], metadata: Mapping[str, Any]
) -> tuple[Node, dict[str, str]]:
    """(the state dict as it will be pickled, what it lacks and why)."""
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
            node.set([name], [_node(value)])
        except _NotPlainError:
            left_out[name] = f"a {type(value).__name__}, which weights_only refuses"
    versions = ordered_dict()
    for name, fields in metadata.items():
        try:
            versions.set([name], [_node(fields)])
        except _NotPlainError:
            left_out[f"_metadata of {name}"] = "not plain"
    attributes = Dict()
    attributes.set(["_metadata"], [versions])
    node.build(attributes)
    return node, left_out


class _NotPlainError(Exception):
    """A value that only a class could hold."""


_DEPTH = 20


def _node(value: Any, depth: int = 0) -> Node:
    """Plain values as inert nodes. Raises _NotPlainError for anything else."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth < _DEPTH and type(value) in (list, tuple):
        items = [_node(item, depth + 1) for item in value]
        return items if type(value) is list else tuple(items)
    if depth < _DEPTH and type(value) is dict:
        made = Dict()
        made.set(
            [_node(key, depth + 1) for key in value], [_node(item, depth + 1) for item in value.values()]
        )
        return made
    raise _NotPlainError
