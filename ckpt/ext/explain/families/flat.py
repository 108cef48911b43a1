"""Flat parameters of FSDP 1: each holds the layers of a unit in one row, of which a
rank has a part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Mismatch
from ckpt.model.text import counted_noun, show

# torch: _fsdp_wrapped_module._flat_param; fairscale: layers.0.flat_param_0.
_FLAT = re.compile(r"(?:^|\.)_?flat_param(?:_\d{1,4})?$")
_MOST_RANKS = 65_536
"""A larger factor is no number of ranks."""
_WAYS = (
    "Load with as many ranks, and wrapped alike, as the run that saved. For another "
    "number save from that run as a whole (StateDictType.FULL_STATE_DICT) or by "
    "torch.distributed.checkpoint, which divides anew at each load."
)


def is_flat(name: str) -> bool:
    """Tell whether a name belongs to a flat parameter."""
    return _FLAT.search(name) is not None


def part_ratio(one: int, other: int) -> tuple[int, int] | None:
    """Return how many parts of one size make the other one, as `(4, 1)` or `(1, 4)`, or
    None. The last part may be filled up.
    """
    small, large = sorted((one, other))
    if small < 1:
        return None
    count = round(large / small)
    # Each part may have one element more, to make all parts equal.
    is_divided = 1 < count <= _MOST_RANKS and abs(small * count - large) < count
    if not is_divided:
        return None
    return (count, 1) if one > other else (1, count)


def flat_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that flat parameters were divided among another number of ranks, where all
    that differ are flat, or return None.
    """
    if not rows or not all(is_flat(row.name) for row in rows):
        return None
    ratios = {part_ratio(prod(row.checkpoint), prod(row.model)) for row in rows}
    (ratio,) = ratios if len(ratios) == 1 else (None,)
    differs = (
        "They differ between the file and the model: another number of ranks, or "
        "other layers were wrapped together."
        if ratio is None
        else _ratio_text("the model's", ratio)
    )
    these = counted_noun(len(rows), "flat parameter")
    return Statement(
        f"By their names these are {these} of FSDP: the layers of a unit in one row, "
        f"of which each rank keeps a part. {differs} {_WAYS}"
    )


def _ratio_text(other: str, ratio: tuple[int, int]) -> str:
    """Say what a ratio of two parts means for the numbers of ranks."""
    here, there = ratio
    if here > there:
        return (
            f"Those of the file are {here:,} times {other}: a run of {here:,} times as "
            "many ranks loads them, or the file has them whole."
        )
    return (
        f"Those of the file are 1/{there:,} of {other}: {there:,} times as many ranks "
        "saved, or the model that loads is not divided."
    )


def flat_state_statement(
    case: Case, sizes: Sequence[int], names: Iterable[str]
) -> Statement | None:
    """Say that a step stopped at the state of a flat parameter, where a file has flat
    parameters and such a state has one of two sizes, or return None.

    `names` are the tensors whose states have the first size.
    """
    flat = [name for name in names if is_flat(name)]
    if not flat or len(sizes) != 2:
        return None
    here, there = sizes
    ratio = part_ratio(here, there)
    if ratio is None:
        return None
    return Statement(
        f"{show(flat[0], 120)} is a flat parameter of FSDP, of which each rank keeps a "
        f"part. Its state in this file has {here:,} elements, and the rank that "
        f"stopped has {there:,} of the parameter. {_ratio_text('its part', ratio)} "
        "The state of an optimizer is not divided anew by load_state_dict: FSDP has "
        f"FSDP.optim_state_dict and optim_state_dict_to_load for it. {_WAYS}",
    )
