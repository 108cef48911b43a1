"""ShardedTensors: which shards of a tensor one rank holds, and which the others hold.

State: (local shards, metadata, process group, spec, flag). Source: torch/distributed/_shard/sharded_tensor/api.py,
metadata.py and torch/distributed/_shard/metadata.py of torch 2.0 to 2.13.
"""

from __future__ import annotations

from ckpt.dtypes import DType
from ckpt.nodes import Global, Node, Opaque, is_tuple
from ckpt.pickles.sharded.fields import fields_of, numbers
from ckpt.tensors import Composite, Shard, Shards

SHARDED = frozenset(
    f"torch.distributed.{module}.ShardedTensor"
    for module in ("_shard.sharded_tensor.api", "_sharded_tensor.api", "_shard.sharded_tensor")
)
LISTED = 400
"""Bytes of memory of one shard in the list of all."""
_DIMENSIONS = 64
_MOST = 2**20
"""Shards of a tensor and ranks of a run: there are never more."""


def is_sharded(tensor: Composite) -> bool:
    """Whether it is the ShardedTensor of a rank, also one whose place is not recorded."""
    return (tensor.detail or "").partition(" ")[0] in SHARDED


def is_flat(key: object, tensor: object) -> bool:
    """Whether what is at a key is the parameter that FSDP 1 flattens all of a module into (LOCAL_STATE_DICT)."""
    if key not in ("flat_param", "_flat_param") or not isinstance(tensor, Composite):
        return False
    return is_sharded(tensor) and len(tensor.shape) == 1


def placed(whole: Composite, begins: tuple[tuple[int, ...], ...], state: Node) -> Shards | None:
    """The place of the shards that begin at `begins`; None where the metadata is none that torch writes."""
    rows = state if is_tuple(state) else ()
    if len(rows) < 3:
        return None
    metadata, group = fields_of(rows[1]), fields_of(rows[2])
    listed = _listed(metadata.get("shards_metadata"), whole.shape)
    if listed is None or numbers(metadata.get("size"), _DIMENSIONS) != whole.shape:
        return None
    if not _is_dtype(metadata.get("tensor_properties"), whole.dtype):
        return None
    names = ("global_rank", "global_world_size", "local_rank", "local_world_size")
    rank, world, group_rank, size = (_count(group.get(name)) for name in names)
    if not _is_below(rank, world) or not _is_below(group_rank, size):
        return None
    if world is not None and size is not None and size > world:
        return None
    return Shards(begins, listed, rank, world, group_rank, size)


def _listed(rows: Node, shape: tuple[int, ...]) -> tuple[Shard, ...] | None:
    """The shards of a list, where each lies within the shape."""
    if type(rows) is not list or len(rows) > _MOST:
        return None
    shards: list[Shard] = []
    for row in rows:
        fields = fields_of(row)
        offsets = numbers(fields.get("shard_offsets"), _DIMENSIONS)
        sizes = numbers(fields.get("shard_sizes"), _DIMENSIONS)
        if offsets is None or sizes is None or not len(offsets) == len(sizes) == len(shape):
            return None
        if any(first + size > most for first, size, most in zip(offsets, sizes, shape, strict=True)):
            return None
        shards.append(Shard(offsets, sizes, _count(fields_of(fields.get("placement")).get("_rank"))))
    return tuple(shards)


def _is_dtype(properties: Node, dtype: DType) -> bool:
    """Whether properties name no other dtype than that of the tensor."""
    for state in properties.states if type(properties) is Opaque else ():
        named = state[0] if is_tuple(state) and state else None
        if type(named) is Global and named.qualified != f"torch.{dtype.name}":
            return False
    return True


def _is_below(one: int | None, two: int | None) -> bool:
    """Whether one number is below another. What is not recorded contradicts nothing."""
    return one is None or two is None or one < two


def _count(node: Node) -> int | None:
    return node if type(node) is int and 0 <= node <= _MOST else None
