"""Tensors of which a file has a part: divided over ranks of tensor parallelism, or
emptied by ZeRO-3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.ext.explain.families.flat import is_flat
from ckpt.ext.explain.message import Mismatch

# A larger factor is no number of ranks, and the answer goes on to other reasons.
_MOST_RANKS = 64


def is_empty(row: Mismatch) -> bool:
    """Tell whether a tensor has nothing, as ZeRO-3 leaves it: shape [0], or [1] in
    older releases.
    """
    return row.checkpoint in ((0,), (1,)) and shape_numel(row.checkpoint) < shape_numel(
        row.model
    )


def shape_numel(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def rank_count(row: Mismatch) -> int:
    """The number of ranks among which the only dimension that differs is
    divided, or 0.
    """
    # Tensor parallelism divides one dimension alone, and into equal parts.
    pairs = [
        (one, two)
        for one, two in zip(row.checkpoint, row.model, strict=False)
        if one != two
    ]
    if len(row.checkpoint) != len(row.model) or len(pairs) != 1:
        return 0
    one, two = pairs[0]
    return two // one if one and two % one == 0 and two > one else 0


def is_of_a_rank(rows: Sequence[Mismatch]) -> bool:
    """Tell whether all differ by the same number of ranks, along more than one
    dimension or in many layers.
    """
    # FSDP divides its flat parameters, and tensor parallelism has none.
    if any(is_flat(row.name) for row in rows):
        return False
    # It divides no convolution of pictures, and no batch norm, which have a width.
    if any(
        len(row.model) > _MOST_DIVIDED or STATISTIC.search(row.name) for row in rows
    ):
        return False
    counts = {rank_count(row) for row in rows}
    if (
        len(counts) != 1
        or not 1 < max(counts) <= _MOST_RANKS
        or len(rows) < _LEAST_DIVIDED
    ):
        return False
    # Ranks divide layers of several names. One name may be another setting.
    return len({row.name.rpartition(".")[0].rpartition(".")[2] for row in rows}) > 1


_MOST_DIVIDED = 3
"""Dimensions of a tensor that ranks of tensor parallelism divide."""
STATISTIC = re.compile(r"(?:^|\.)running_(?:mean|var)$")
"""The name of a statistic of a batch norm."""
_LEAST_DIVIDED = 3
"""Tensors that must all be divided alike: a model of half the width has the same shapes
in a few.
"""
