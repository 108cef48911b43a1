"""The whole of a DTensor from the pieces of the ranks: where each lies follows from its placements alone."""

from __future__ import annotations

from math import prod

from ckpt.errors import UnreadableError
from ckpt.formats.fsdp.copies import Copies, Whole, copies_of, joined
from ckpt.formats.fsdp.places import boxes_of
from ckpt.tensors import Box, Composite, Piece, TensorRef
from ckpt.text import show


def gathered(name: str, id: str, every: dict[int, Composite]) -> Whole:
    """The whole of a tensor from the pieces of the ranks. Raises UnreadableError where they contradict each other."""
    first = next(iter(every.values()))
    meshes = {(tensor.piece.mesh, tensor.piece.placements) for tensor in every.values() if tensor.piece}
    if len(meshes) > 1:
        raise UnreadableError(f"the ranks disagree on the mesh or the placements of {show(name, 80)}")
    held: dict[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], tuple[int, TensorRef]] = {}
    boxes: list[Box] = []
    copies: list[Copies] = []
    taken: dict[tuple[int, ...], int] = {}
    for rank, tensor in every.items():
        piece, local = tensor.piece, tensor.parts[0][1]
        assert piece is not None
        what = f"{show(name, 80)} of rank {rank}"
        if local.dtype != tensor.dtype:
            raise UnreadableError(f"{what} is {local.dtype.name}, the tensor is {tensor.dtype.name}")
        coordinate = _coordinate(piece, rank, what)
        other = taken.setdefault(coordinate, rank)
        if other != rank and prod(piece.mesh) >= max(len(piece.ranks), max(every) + 1):
            raise UnreadableError(f"{show(name, 80)}: ranks {other} and {rank} are at one place of the mesh")
        own = boxes_of(tensor, piece, coordinate, what)
        key = tuple((box.offsets, box.sizes) for box in own)
        if key in held:
            copies += copies_of(name, id, dict([held[key], (rank, local)])) if own else []
        else:
            held[key] = rank, local
            boxes += own
    return joined(name, id, first, boxes, copies)


def _coordinate(piece: Piece, rank: int, what: str) -> tuple[int, ...]:
    """The place of a rank in the mesh. Raises UnreadableError."""
    if piece.ranks and len(piece.ranks) == prod(piece.mesh):
        if rank not in piece.ranks:
            raise UnreadableError(f"{what}: its mesh has no rank {rank}")
        rest = piece.ranks.index(rank)
        found: list[int] = []
        for size in reversed(piece.mesh):
            rest, at = divmod(rest, size)
            found.append(at)
        computed = tuple(reversed(found))
        if piece.coordinate not in (None, computed):
            raise UnreadableError(f"{what}: its place in the mesh is not that of its rank")
        return computed
    if piece.coordinate is None:
        raise UnreadableError(f"{what}: its place in the mesh is not recorded")
    return piece.coordinate
