"""`ckpt.snapshot`: a live model as an ordinary file of torch, with what a state dict
lacks beside it.

Our own emitter and zip writer write it and copy one storage at a time to the CPU. No
collective is called.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal

from ckpt.bytes import target
from ckpt.evidence.record import KEY, STATE_DICT, record_columns
from ckpt.ext.live import memory, require_torch
from ckpt.ext.live.model import describe, unwrap_model
from ckpt.ext.live.state import plain_node, state_of, state_tree
from ckpt.formats import save
from ckpt.formats.common.pickled import Contents, make_checkpoint
from ckpt.formats.torch_zip import FORMAT
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict
from ckpt.model.text import and_more

Ranks = int | Literal["all"]


def snapshot(
    model: Any, path: str | os.PathLike[str], optimizer: Any = None, *, ranks: Ranks = 0
) -> str | None:
    """Write a model as it is now. Returns the path of the file, or None on a rank that
    writes no file.

    `torch.load(weights_only=True)` loads the file. It holds `state_dict`, with names
    free of wrappers and every tensor tagged cpu, and the record `ckpt`: devices, roles,
    requires_grad, which parameters had a gradient, the parameters and the state of each
    optimizer, the modules, and modules in plain lists.

    Call it before forward, because BatchNorm changes in forward. Call it again after
    `step()` and before `zero_grad()`, with the optimizer (or a list of them), while the
    gradients are still there. In a distributed run the rank `ranks` writes; with "all"
    each rank writes `after.rank1.pth` and so on. An existing file is replaced. What a
    pickle of plain tensors cannot hold is left out, recorded, and reported as a
    warning. Raises CkptError.
    """
    torch = require_torch()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, not {type(model).__name__}")
    rank, world_size = _rank_and_world(torch)
    # All other ranks are done: no collective waits for them.
    if ranks not in ("all", rank):
        return None
    name = os.fsdecode(path)
    if ranks == "all":
        stem, ending = os.path.splitext(name)
        name = f"{stem}.rank{rank}{ending}"
    optimizers: list[Any] = []
    if isinstance(optimizer, Sequence):
        optimizers = list(optimizer)
    elif optimizer is not None:
        optimizers = [optimizer]
    inner, _ = unwrap_model(model)
    # Nothing here may become a part of the graph of the training.
    with torch.no_grad():
        state = state_of(inner)
        record = describe(model, optimizers, state=state, gradients=True)
        tree = Dict()
        node, left_out = state_tree(state, wrappers=True)
        tree.set([STATE_DICT], [node])
        record = record._replace(
            rank=rank, world_size=world_size, left_out=tuple(left_out.items())
        )
        tree.set([KEY], [plain_node(record_columns(record))])
        limits = Limits()
        planned = make_checkpoint(
            name, FORMAT.name, FORMAT.traits, tree, Contents(), limits
        )
        try:
            save.save_checkpoint(
                planned, target.target(name, force=True), FORMAT.name, limits
            )
        # The copy of the last storage would stay in memory until the next snapshot.
        finally:
            memory.LiveSource.release()
    if left_out:
        listed = and_more([f"{key} ({why})" for key, why in left_out.items()], 5, "; ")
        warnings.warn(f"{name}: left out: {listed}", stacklevel=2)
    return name


def _rank_and_world(torch: Any) -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
