"""Where the piece of a rank lies in its whole tensor, by torch's rules.

Source: `Shard.local_shard_size_and_offset` and `_StridedShard._split_tensor` of
torch/distributed/tensor/placement_types.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from ckpt.errors import UnreadableError
from ckpt.tensors import Box, Composite, Piece, TensorRef, tensor_ref

Run = tuple[int, int]
"""(first index, number of indices)"""

_MOST = 100_000
"""The most boxes of the piece of one rank."""


def boxes_of(tensor: Composite, piece: Piece, coordinate: Sequence[int], what: str) -> list[Box]:
    """The boxes of the whole tensor that a piece holds. Raises UnreadableError where its shape is another."""
    local = tensor.parts[0][1]
    if not piece.in_order:
        raise UnreadableError(f"{what} is cut in an order that ckpt does not know")
    along: list[list[Run]] = [[(0, size)] for size in tensor.shape]
    for placement, at, count in zip(piece.placements, coordinate, piece.mesh, strict=True):
        if placement.kind == "partial":
            raise UnreadableError(f"{what} is one summand of each rank (Partial), no part of a tensor")
        if placement.kind != "replicate":
            along[placement.dim] = _cut(along[placement.dim], placement.split, at, count)
    sizes: tuple[int, ...] = tuple(sum(size for _, size in runs) for runs in along)
    if local.shape != sizes and (0 not in sizes or local.numel):
        raise UnreadableError(f"{what} has the shape {list(local.shape)}, its placements say {list(sizes)}")
    if not prod(sizes):
        return []
    if prod(map(len, along)) > _MOST:
        raise UnreadableError(f"{what} is cut into too many parts")
    if all(len(runs) == 1 for runs in along):
        return [Box(tuple(runs[0][0] for runs in along), sizes, local)]
    return [Box(*box) for box in _parts(local, along)]


def _cut(runs: list[Run], split: int, at: int, count: int) -> list[Run]:
    """The indices that one of `count` ranks has, when each of `split` chunks of the indices is cut."""
    size = sum(length for _, length in runs)
    outer = -(-size // split)
    found: list[Run] = []
    for number in range(split if outer else 0):
        first = min(size, outer * number)
        length = min(size, outer * (number + 1)) - first
        if not length:
            break
        inner = -(-length // count)
        begin, end = min(length, inner * at), min(length, inner * (at + 1))
        found += _taken(runs, first + begin, first + end)
        if len(found) > _MOST:
            raise UnreadableError("a dimension is cut into too many parts")
    return found or [(0, 0)]


def _taken(runs: Sequence[Run], begin: int, end: int) -> Iterator[Run]:
    """The indices from the position `begin` to the position `end` of runs of indices."""
    at = 0
    for first, length in runs:
        low, high = max(begin, at), min(end, at + length)
        if low < high:
            yield first + low - at, high - low
        at += length


def _parts(
    local: TensorRef, along: Sequence[Sequence[Run]]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], TensorRef]]:
    """Each box of a piece that is several, and its view of what the rank holds."""
    placed: list[list[tuple[int, int, int]]] = []
    for runs in along:
        at = 0
        rows: list[tuple[int, int, int]] = []
        for first, length in runs:
            rows.append((first, length, at))
            at += length
        placed.append(rows)
    for box in product(*placed):
        sizes = tuple(length for _, length, _ in box)
        shift = sum(at * step for (_, _, at), step in zip(box, local.stride, strict=True))
        part = tensor_ref(local.storage, local.dtype, sizes, local.stride, local.offset + shift)
        yield tuple(first for first, _, _ in box), sizes, part._replace(conj=local.conj, neg=local.neg)
