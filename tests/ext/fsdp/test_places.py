"""Where parts lie is what torch's own placements say, for every size and every order of
cuts.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import oracle
import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from ckpt.ext.fsdp.reader import boxes_of
from ckpt.model.dtypes import BY_NAME, contiguous
from ckpt.model.errors import UnreadableError
from ckpt.model.tensors import Composite, Piece, Placement, Storage, tensor_ref

pytestmark = oracle.QUIET

INT64 = BY_NAME["int64"]


def placement(of: Any) -> Placement:
    if isinstance(of, Replicate):
        return Placement("replicate")
    if isinstance(of, _StridedShard):
        return Placement("strided", of.dim, int(of.split_factor))
    return Placement("shard", of.dim)


def piece_of(
    local: torch.Tensor, shape: tuple[int, ...], mesh: tuple[int, ...], cuts: Any
) -> Composite:
    storage = Storage("0", "cpu", INT64, local.nbytes, None)
    ref = tensor_ref(
        storage, INT64, tuple(local.shape), contiguous(tuple(local.shape)), 0
    )
    piece = Piece(mesh, tuple(map(placement, cuts)))
    return Composite("wrapper", INT64, shape, (("_local_tensor", ref),), piece=piece)


CUTS: list[tuple[tuple[int, ...], list[Any]]] = [
    ((4,), [Shard(0)]),
    ((4,), [Shard(1)]),
    ((3,), [_StridedShard(0, split_factor=2)]),
    ((2, 2), [Shard(0), Shard(0)]),
    ((2, 3), [Shard(1), Shard(0)]),
    ((2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
    ((3, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
    ((2, 2), [_StridedShard(1, split_factor=4), Replicate()]),
    ((2, 2), [_StridedShard(0, split_factor=3), Shard(1)]),
    (
        (2, 2, 2),
        [_StridedShard(0, split_factor=4), _StridedShard(0, split_factor=2), Shard(0)],
    ),
]


@pytest.mark.parametrize("number", range(len(CUTS)))
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 7, 8, 10, 13, 24])
def test_boxes_are_where_torch_cuts(number: int, rows: int) -> None:
    mesh, cuts = CUTS[number]
    whole = torch.arange(rows * 5).reshape(rows, 5)
    for coordinate in product(*map(range, mesh)):
        local = whole
        for cut, at, count in zip(cuts, coordinate, mesh, strict=True):
            if not isinstance(cut, Replicate):
                local = cut._split_tensor(
                    local, count, with_padding=False, contiguous=True
                )[0][at]
        local = local.clone(memory_format=torch.contiguous_format)
        tensor = piece_of(local, (rows, 5), mesh, cuts)
        assert tensor.piece is not None
        found = boxes_of(tensor, tensor.piece, coordinate, "it")
        assert sum(prod(box.sizes) for box in found) == local.numel()
        for box in found:
            part = box.tensor()
            held = torch.as_strided(local, part.shape, part.stride, part.offset)
            at_ = tuple(
                slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True)
            )
            assert torch.equal(held, whole[at_]), (coordinate, box)


def test_another_shape_is_refused() -> None:
    tensor = piece_of(torch.zeros(3, 5, dtype=torch.int64), (8, 5), (2,), [Shard(0)])
    assert tensor.piece is not None
    with pytest.raises(UnreadableError, match=r"its placements say \[4, 5\]"):
        boxes_of(tensor, tensor.piece, (0,), "it")


def test_a_billion_parts_are_refused() -> None:
    sizes = (2**40, 2)
    storage = Storage("0", "cpu", INT64, 8 * 2**40, None)
    ref = tensor_ref(storage, INT64, (2**39, 2), (2, 1), 0)
    piece = Piece((2,), (Placement("strided", 0, 2**20),))
    tensor = Composite("wrapper", INT64, sizes, (("_local_tensor", ref),), piece=piece)
    with pytest.raises(UnreadableError, match="too many parts"):
        boxes_of(tensor, piece, (0,), "it")
