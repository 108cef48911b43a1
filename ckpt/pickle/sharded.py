"""Tensors of which a file holds one rank's part: DTensors, whose placements say where
it lies, and ShardedTensors, which list all shards.

The state of a ShardedTensor is (local shards, metadata, process group, spec, flag).
Sources: torch/distributed/tensor/_api.py, _dtensor_spec.py, placement_types.py,
torch/distributed/device_mesh.py of torch 2.1 to 2.13;
torch/distributed/_shard/sharded_tensor/api.py, metadata.py and
torch/distributed/_shard/metadata.py of torch 2.0 to 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.model.dtypes import DType
from ckpt.model.nodes import Dict, Global, Node, Opaque, is_tuple, tensor_of
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import (
    DIMENSIONS,
    Composite,
    Piece,
    Placement,
    Shard,
    Shards,
    TensorRef,
)


def fields_of(node: Node) -> dict[str, Node]:
    """The attributes of an object: from a dict, or from the pair of a dict and of what
    its slots hold.
    """
    fields: dict[str, Node] = {}
    for state in node.states if type(node) is Opaque else ():
        for part in state if is_tuple(state) else (state,):
            if type(part) is Dict:
                pairs = zip(part.keys, part.values, strict=True)
                fields.update((key, value) for key, value in pairs if type(key) is str)
    return fields


def whole_numbers(node: Node, most: int) -> tuple[int, ...] | None:
    """Return the whole numbers in a tuple, a list or a torch.Size.

    None for anything else, or for more than `most` numbers.
    """
    if type(node) is Opaque and node.class_name == "torch.Size" and len(node.args) == 1:
        node = node.args[0]
    if not (is_tuple(node) or type(node) is list) or len(node) > most:
        return None
    items = tuple(
        number for number in node if type(number) is int and 0 <= number < 2**63
    )
    return items if len(items) == len(node) else None


DTENSORS = frozenset(
    f"torch.distributed.{module}.DTensor"
    for module in ("tensor", "tensor._api", "_tensor", "_tensor.api", "_tensor._api")
)
_MOST = 2**20
"""Ranks of a run, shards of a tensor, and chunks of a strided shard: there are never
more.
"""
_MODULES = (
    "torch.distributed.tensor.placement_types",
    "torch.distributed._tensor.placement_types",
)


class Mesh(NamedTuple):
    """A mesh of ranks: how many in each dimension, and where in it the rank that wrote
    the file is.
    """

    shape: tuple[int, ...]
    rank: int | None
    coordinate: tuple[int, ...] | None
    ranks: tuple[int, ...]


def as_piece(
    tensor: Composite, spec: Node, meshes: dict[int, Mesh | None]
) -> Composite:
    """A DTensor with its piece; as it is where its spec is not one that torch writes.

    `meshes` keeps what was read before: all tensors of a file share a few.
    """
    # `_local_tensor` is the only tensor that torch keeps in a DTensor.
    if len(tensor.parts) != 1 or tensor.parts[0][0] != "_local_tensor":
        return tensor
    fields = fields_of(spec)
    node = fields.get("mesh")
    # By its id: the tensors of a file name one mesh.
    if id(node) not in meshes:
        meshes[id(node)] = _parse_mesh(fields_of(node))
    mesh = meshes[id(node)]
    rows = _few_items(fields.get("placements"))
    if mesh is None or rows is None or len(rows) != len(mesh.shape):
        return tensor
    placements = tuple(
        placement
        for row in rows
        if (placement := _parse_placement(row, len(tensor.shape))) is not None
    )
    if len(placements) != len(rows):
        return tensor
    in_order = _is_in_order(fields.get("shard_order"))
    piece = Piece(
        mesh.shape, placements, mesh.rank, mesh.coordinate, mesh.ranks, in_order
    )
    return replace(tensor, piece=piece, elements=tensor.parts[0][1].numel)


def _parse_mesh(mesh: dict[str, Node]) -> Mesh | None:
    shape = _mesh_shape(mesh)
    position = mesh.get("_coordinate_on_dim")
    # `_flatten_mesh_list` is the older name.
    every = mesh.get("_flatten_rank_map", mesh.get("_flatten_mesh_list"))
    coordinate = None if position is None else whole_numbers(position, _MOST)
    ranks = () if every is None else whole_numbers(every, _MOST)
    rank = mesh.get("_rank")
    if shape is None or ranks is None or len(set(ranks)) != len(ranks):
        return None
    if position is not None and (
        coordinate is None
        or len(coordinate) != len(shape)
        or any(index >= size for index, size in zip(coordinate, shape, strict=True))
    ):
        return None
    return Mesh(
        shape,
        rank if type(rank) is int and 0 <= rank < _MOST else None,
        coordinate,
        ranks,
    )


def _mesh_shape(mesh: dict[str, Node]) -> tuple[int, ...] | None:
    """The number of ranks in each dimension of a mesh."""
    layout = fields_of(mesh.get("_layout"))
    axes = _few_items(layout.get("axes"))
    shape: tuple[int, ...] | None = None
    if axes is not None:  # since 2.13
        sizes = [whole_numbers(fields_of(axis).get("shape"), _MOST) for axis in axes]
        shape = tuple(prod(size) for size in sizes if size is not None)
        shape = shape if len(shape) == len(sizes) else None
    elif "shape" in layout:  # since 2.9
        size = layout["shape"]
        shape = whole_numbers((size,) if type(size) is int else size, _MOST)
    else:
        # Up to torch 2.8 a mesh is a tensor of the numbers of its ranks.
        ranks = tensor_of(mesh.get("mesh"))
        shape = ranks.shape if isinstance(ranks, TensorRef) else None
    if not shape or not all(shape) or prod(shape) > _MOST:
        return None
    return shape


def _parse_placement(node: Node, dimensions: int) -> Placement | None:
    if (
        type(node) is not Opaque
        or type(node.func) is not Global
        or node.func.module not in _MODULES
    ):
        return None
    name = node.func.name
    # `_Partial` is its older name.
    if name in ("Partial", "_Partial"):
        return Placement("partial")
    if name == "Replicate":
        return Placement("replicate")
    fields = fields_of(node)
    dim, split = fields.get("dim"), fields.get("split_factor", 1)
    if type(dim) is not int or not -dimensions <= dim < dimensions:
        return None
    if name == "Shard":
        return Placement("shard", dim % dimensions)
    if name == "_StridedShard" and type(split) is int and 0 < split <= _MOST:
        return Placement("strided", dim % dimensions, split)
    return None


def _is_in_order(node: Node) -> bool:
    """Tell whether the dimensions of the mesh cut each dimension in order, from the
    first to the last.
    """
    if node is None:
        return True
    rows = _few_items(node)
    if rows is None:
        return False
    for row in rows:
        args = row.args if type(row) is Opaque else ()
        # (dimension of the tensor, dimensions of the mesh that cut it).
        order = whole_numbers(args[1], _MOST) if len(args) == 2 else None
        if order is None or list(order) != sorted(order):
            return False
    return True


def _few_items(node: Node) -> Sequence[Node] | None:
    """Return the items of a tuple or a list of a few, or None."""
    items: Sequence[Node] | None = None
    if is_tuple(node) or type(node) is list:
        items = node
    return items if items is not None and len(items) <= DIMENSIONS else None


SHARDED = frozenset(
    f"torch.distributed.{module}.ShardedTensor"
    for module in (
        "_shard.sharded_tensor.api",
        "_sharded_tensor.api",
        "_shard.sharded_tensor",
    )
)
LISTED = 400
"""Bytes of memory of one shard in the list of all."""


def is_sharded(tensor: Composite) -> bool:
    """Tell whether a tensor is the ShardedTensor of a rank, also one whose place is not
    recorded.
    """
    return (tensor.detail or "").partition(" ")[0] in SHARDED


def is_flat(key: object, tensor: object) -> bool:
    """Tell whether a key holds the parameter into which FSDP 1 flattens a module
    (LOCAL_STATE_DICT).
    """
    if key not in ("flat_param", "_flat_param") or not isinstance(tensor, Composite):
        return False
    return is_sharded(tensor) and len(tensor.shape) == 1


def placed(
    whole: Composite, begins: tuple[tuple[int, ...], ...], state: Node
) -> Shards | None:
    """Return the place of the shards that begin at `begins`, or None when torch writes
    no such metadata.
    """
    rows = state if is_tuple(state) else ()
    if len(rows) < 3:
        return None
    # The third item is what ProcessGroupState kept: ranks and sizes.
    metadata, group = fields_of(rows[1]), fields_of(rows[2])
    listed = _parse_shard_list(metadata.get("shards_metadata"), whole.shape)
    if listed is None or whole_numbers(metadata.get("size"), DIMENSIONS) != whole.shape:
        return None
    if not _is_dtype(metadata.get("tensor_properties"), whole.dtype):
        return None
    names = ("global_rank", "global_world_size", "local_rank", "local_world_size")
    rank, world, group_rank, size = (_parse_count(group.get(name)) for name in names)
    if not _is_below(rank, world) or not _is_below(group_rank, size):
        return None
    if world is not None and size is not None and size > world:
        return None
    return Shards(begins, listed, rank, world, group_rank, size)


def _parse_shard_list(rows: Node, shape: tuple[int, ...]) -> tuple[Shard, ...] | None:
    """The shards of a list, where each lies within the shape."""
    if type(rows) is not list or len(rows) > _MOST:
        return None
    shards: list[Shard] = []
    for row in rows:
        fields = fields_of(row)
        offsets = whole_numbers(fields.get("shard_offsets"), DIMENSIONS)
        sizes = whole_numbers(fields.get("shard_sizes"), DIMENSIONS)
        if (
            offsets is None
            or sizes is None
            or not len(offsets) == len(sizes) == len(shape)
        ):
            return None
        if any(
            first + size > most
            for first, size, most in zip(offsets, sizes, shape, strict=True)
        ):
            return None
        shards.append(
            Shard(
                offsets,
                sizes,
                _parse_count(fields_of(fields.get("placement")).get("_rank")),
            )
        )
    return tuple(shards)


def _is_dtype(properties: Node, dtype: DType) -> bool:
    """Tell whether properties name no other dtype than the tensor has."""
    for state in properties.states if type(properties) is Opaque else ():
        named = state[0] if is_tuple(state) and state else None
        # The first item of the state of TensorProperties is the dtype.
        if type(named) is Global and named.qualified != f"torch.{dtype.name}":
            return False
    return True


def _is_below(first: int | None, second: int | None) -> bool:
    """Tell whether one number is below another. A number that is not recorded
    contradicts nothing.
    """
    return first is None or second is None or first < second


def _parse_count(node: Node) -> int | None:
    return node if type(node) is int and 0 <= node <= _MOST else None
