"""The whole of a ShardedTensor from the shards of the ranks: FSDP 1 with `StateDictType.SHARDED_STATE_DICT`.

Each shard says where it begins, and each rank lists all shards with the rank that holds each. Both must agree.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckpt.checkpoint import Entry
from ckpt.errors import UnreadableError
from ckpt.formats.dcp.coverage import indices
from ckpt.formats.fsdp.copies import Copies, Whole, copies_of, joined
from ckpt.pickles.sharded import is_flat
from ckpt.tensors import Box, Composite, Shard, Shards, TensorRef
from ckpt.text import show


def refuse_flat(entries: Iterable[Entry]) -> None:
    """Raise UnreadableError where a tensor is a flat parameter, of which nobody but the model knows what is in it.

    Beside them lie plain tensors that are slices of parameters, where FSDP keeps the original ones (dinov2).
    """
    for entry in entries:
        if is_flat((entry.path or ("",))[-1], entry.tensor):
            raise UnreadableError(
                f"{show(entry.name, 80)} is all parameters of a module in one (LOCAL_STATE_DICT of FSDP 1):"
                " the files record neither their names nor their shapes",
                hint="the training code can load it on as many ranks, and save StateDictType.FULL_STATE_DICT",
            )


def gathered(name: str, id: str, every: dict[int, Composite]) -> Whole:
    """The whole of a tensor from the shards of the ranks. Raises UnreadableError where they contradict each other."""
    what = show(name, 80)
    first = next(iter(every.values()))
    cuts = {tensor.shards.cut for tensor in every.values() if tensor.shards is not None}
    if len(cuts) > 1:
        raise UnreadableError(f"the ranks disagree on the shards of {what}")
    owners: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, Shards, TensorRef]] = {}
    boxes: list[Box] = []
    copies: list[Copies] = []
    for rank, tensor in every.items():
        assert tensor.shards is not None
        for box, local in _held(f"{what} of rank {rank}", rank, tensor, tensor.shards):
            at = box.offsets, box.sizes
            if at not in owners:
                owners[at] = rank, tensor.shards, local
                boxes.append(box)
                continue
            other, theirs, one = owners[at]
            if not _are_replicas(theirs, tensor.shards):
                raise UnreadableError(f"ranks {other} and {rank} hold {indices(*at, first.shape)} of {what}")
            copies += copies_of(name, id, {other: one, rank: local})
    return joined(name, id, first, boxes, copies)


def _held(what: str, rank: int, tensor: Composite, shards: Shards) -> list[tuple[Box, TensorRef]]:
    """The shards with elements that a rank holds. Raises UnreadableError where they are not those of the list."""
    listed: dict[tuple[tuple[int, ...], tuple[int, ...]], Shard] = {}
    for shard in shards.listed:
        if 0 in shard.sizes:
            continue
        if (shard.offsets, shard.sizes) in listed:
            raise UnreadableError(f"{what} lists {indices(shard.offsets, shard.sizes, tensor.shape)} twice")
        if shards.world is not None and (shard.rank or 0) >= shards.world:
            raise UnreadableError(
                f"{what} lists a shard of rank {shard.rank}, there are {shards.world} ranks"
            )
        listed[shard.offsets, shard.sizes] = shard
    found: list[tuple[Box, TensorRef]] = []
    for offsets, (_, local) in zip(shards.offsets, tensor.parts, strict=True):
        if local.dtype != tensor.dtype:
            raise UnreadableError(f"{what} is {local.dtype.name}, the tensor is {tensor.dtype.name}")
        if not local.numel:
            continue
        at = offsets, local.shape
        own = listed.pop(at) if at in listed else None
        if own is None or own.rank not in (None, rank):
            whose = "is not in its list of shards" if own is None else f"belongs to rank {own.rank}"
            raise UnreadableError(f"{what}: {indices(*at, tensor.shape)} {whose}")
        found.append((Box(*at, local), local))
    for shard in listed.values():
        if shard.rank == rank:
            where = indices(shard.offsets, shard.sizes, tensor.shape)
            raise UnreadableError(f"{what} lacks {where}, its list of shards says that it holds it")
    return found


def _are_replicas(one: Shards, two: Shards) -> bool:
    """Whether two ranks have the same place in two groups that hold a copy of the tensor each (HYBRID_SHARD)."""
    if None in (one.group, one.world, one.group_rank) or one.group == one.world:
        return False
    return (one.group, one.group_rank) == (two.group, two.group_rank)
