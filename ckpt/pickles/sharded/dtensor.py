"""DTensors: what one rank holds of a distributed tensor, and where it lies in the whole.

Sources: torch/distributed/tensor/_api.py, _dtensor_spec.py, placement_types.py, torch/distributed/device_mesh.py of
torch 2.1 to 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.nodes import Global, Node, Opaque, is_tuple, tensor_of
from ckpt.pickles.sharded.fields import fields_of, numbers
from ckpt.rows import NamedTuple, replace
from ckpt.tensors import Composite, Piece, Placement, TensorRef

DTENSORS = frozenset(
    f"torch.distributed.{module}.DTensor"
    for module in ("tensor", "tensor._api", "_tensor", "_tensor.api", "_tensor._api")
)
_MOST = 2**20
"""Ranks of a mesh, and chunks of a strided shard: no run has more."""
_DIMENSIONS = 64
_MODULES = ("torch.distributed.tensor.placement_types", "torch.distributed._tensor.placement_types")


class Mesh(NamedTuple):
    """A mesh of ranks: how many in each dimension, and where in it the rank that wrote the file is."""

    shape: tuple[int, ...]
    rank: int | None
    coordinate: tuple[int, ...] | None
    ranks: tuple[int, ...]


def as_piece(tensor: Composite, spec: Node, meshes: dict[int, Mesh | None]) -> Composite:
    """A DTensor with its piece; as it is where its spec is not one that torch writes.

    `meshes` keeps what was read before: all tensors of a file share a few.
    """
    if len(tensor.parts) != 1 or tensor.parts[0][0] != "_local_tensor":
        return tensor
    fields = fields_of(spec)
    node = fields.get("mesh")
    if id(node) not in meshes:
        meshes[id(node)] = _mesh(fields_of(node))
    mesh = meshes[id(node)]
    rows = _rows(fields.get("placements"))
    if mesh is None or rows is None or len(rows) != len(mesh.shape):
        return tensor
    placements = tuple(found for row in rows if (found := _placement(row, len(tensor.shape))) is not None)
    if len(placements) != len(rows):
        return tensor
    in_order = _is_in_order(fields.get("shard_order"))
    piece = Piece(mesh.shape, placements, mesh.rank, mesh.coordinate, mesh.ranks, in_order)
    return replace(tensor, piece=piece, elements=tensor.parts[0][1].numel)


def _mesh(mesh: dict[str, Node]) -> Mesh | None:
    shape = _mesh_shape(mesh)
    at, every = mesh.get("_coordinate_on_dim"), mesh.get("_flatten_rank_map", mesh.get("_flatten_mesh_list"))
    coordinate = None if at is None else numbers(at, _MOST)
    ranks = () if every is None else numbers(every, _MOST)
    rank = mesh.get("_rank")
    if shape is None or ranks is None or len(set(ranks)) != len(ranks):
        return None
    if at is not None and (
        coordinate is None
        or len(coordinate) != len(shape)
        or any(one >= size for one, size in zip(coordinate, shape, strict=True))
    ):
        return None
    return Mesh(shape, rank if type(rank) is int and 0 <= rank < _MOST else None, coordinate, ranks)


def _mesh_shape(mesh: dict[str, Node]) -> tuple[int, ...] | None:
    """The number of ranks in each dimension of a mesh."""
    layout = fields_of(mesh.get("_layout"))
    axes = _rows(layout.get("axes"))
    shape: tuple[int, ...] | None = None
    if axes is not None:  # since 2.13
        sizes = [numbers(fields_of(axis).get("shape"), _MOST) for axis in axes]
        shape = tuple(prod(size) for size in sizes if size is not None)
        shape = shape if len(shape) == len(sizes) else None
    elif "shape" in layout:  # since 2.9
        size = layout["shape"]
        shape = numbers((size,) if type(size) is int else size, _MOST)
    else:
        ranks = tensor_of(mesh.get("mesh"))
        shape = ranks.shape if isinstance(ranks, TensorRef) else None
    if not shape or not all(shape) or prod(shape) > _MOST:
        return None
    return shape


def _placement(node: Node, dimensions: int) -> Placement | None:
    if type(node) is not Opaque or type(node.func) is not Global or node.func.module not in _MODULES:
        return None
    name = node.func.name
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
    """Whether each dimension is cut by the dimensions of the mesh from the first to the last."""
    if node is None:
        return True
    rows = _rows(node)
    if rows is None:
        return False
    for row in rows:
        args = row.args if type(row) is Opaque else ()
        order = numbers(args[1], _MOST) if len(args) == 2 else None
        if order is None or list(order) != sorted(order):
            return False
    return True


def _rows(node: Node) -> Sequence[Node] | None:
    """What is in a tuple or a list of a few."""
    found: Sequence[Node] | None = node if is_tuple(node) else node if type(node) is list else None
    return found if found is not None and len(found) <= _DIMENSIONS else None
