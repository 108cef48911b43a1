"""Recurrent layers by the names and the shapes of their weights: their kind, their
depth and their directions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from ckpt.ext.explain.case import Statement
from ckpt.ext.explain.message import Mismatch
from ckpt.model.text import counted_noun, show

_WEIGHT = re.compile(r"^((?:.+\.)?)(weight|bias)_(ih|hh|hr)_l(\d{1,4})(_reverse)?$")
_GATES = {1: "nn.RNN", 3: "nn.GRU", 4: "nn.LSTM"}
"""The blocks of rows of a recurrent weight -> the layer that has so many."""


def gates_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that a file has a recurrent layer of another kind than the model, or return
    None.
    """
    kinds = {
        (_count_gates(row.checkpoint), _count_gates(row.model))
        for row in rows
        if (found := _WEIGHT.match(row.name)) and found[2] == "weight"
        if found[3] == "hh"
    }
    if len(kinds) != 1:
        return None
    ((here, there),) = kinds
    if here == there or here not in _GATES or there not in _GATES:
        return None
    place = next(found[1] for row in rows if (found := _WEIGHT.match(row.name)))
    return Statement(
        f"{show(place.rstrip('.'), 80) or 'The layer'} is an {_GATES[here]} in the "
        f"checkpoint and an {_GATES[there]} in the model: its weights have {here} "
        f"times as many rows as the layer has units, and the model's {there} times. "
        "Build the model with the layer of the checkpoint: no reshaping makes one of "
        "the other."
    )


def of_recurrent(name: str) -> bool:
    """Tell whether a tensor is a weight of a recurrent layer, by its name."""
    return _WEIGHT.match(name) is not None


def _count_gates(shape: Sequence[int]) -> int:
    if len(shape) != 2 or not shape[1] or shape[0] % shape[1]:
        return 0
    return shape[0] // shape[1]


def _layers_of(names: Collection[str]) -> dict[str, set[tuple[int, bool]]]:
    """The recurrent modules -> the numbers of their layers, each with its direction."""
    found: dict[str, set[tuple[int, bool]]] = {}
    for name in names:
        row = _WEIGHT.match(name)
        if row is not None:
            found.setdefault(row[1], set()).add((int(row[4]), row[5] is not None))
    return found


def layers_statement(
    absent: Sequence[str], rest: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> Statement | None:
    """Say that a recurrent layer is deeper on one side, or has one direction only, or
    return None.
    """
    lost, left = _layers_of(absent), _layers_of(rest)
    held = _layers_of(shapes)
    for place in {**lost, **left}:
        ours = held.get(place, set())
        theirs = (ours - left.get(place, set())) | lost.get(place, set())
        if not ours or not theirs or ours == theirs:
            continue
        if place in lost and place in left:
            continue
        module = show(place.rstrip("."), 80) or "The recurrent layer"
        depths = [1 + max(number for number, _ in side) for side in (ours, theirs)]
        ways = [any(back for _, back in side) for side in (ours, theirs)]
        told = []
        if depths[0] != depths[1]:
            told.append(
                f"{counted_noun(depths[0], 'layer')} in the file and {depths[1]} in "
                "the model (num_layers)"
            )
        if ways[0] != ways[1]:
            sides = ("both directions", "one direction")
            told.append(
                f"{sides[not ways[0]]} in the file and {sides[not ways[1]]} in the "
                "model (bidirectional)"
            )
        if told:
            return Statement(
                f"{module} has {', and '.join(told)}: build the model as the file has "
                "it. With strict=False such a layer may load, and then it gives other "
                "results."
            )
    return None


# --- convolutions of other dimensions -------------------------------------------------


def dimensions_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that convolutions have another number of dimensions in a file than in a
    model, where nothing else differs, or return None.
    """
    weights = [row for row in rows if len(row.checkpoint) != len(row.model)]
    pairs = {(len(row.checkpoint), len(row.model)) for row in weights}
    if len(pairs) != 1 or len(weights) != len(rows):
        return None
    ((here, there),) = pairs
    if here not in _CONVOLUTIONS or there not in _CONVOLUTIONS:
        return None
    if any(row.checkpoint[:2] != row.model[:2] for row in rows):
        return None
    return Statement(
        f"{counted_noun(len(rows), 'weight')} {'has' if len(rows) == 1 else 'have'} "
        f"{here} dimensions in the checkpoint and {there} in the model, with the same "
        f"channels: a layer of {_CONVOLUTIONS[here]} stands there in the file, and one "
        f"of {_CONVOLUTIONS[there]} in the model. Build the model with the layers of "
        "the checkpoint; to make kernels of more dimensions of these (inflation) is a "
        "choice of the training."
    )


_CONVOLUTIONS = {3: "nn.Conv1d", 4: "nn.Conv2d", 5: "nn.Conv3d"}
