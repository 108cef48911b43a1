"""Recurrent layers by the names and the shapes of their weights: their kind, their
depth and their directions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import permutations

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
        # The weights from state to state have as many columns as units, so their rows
        # tell the blocks.
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


def projection_statement(
    rows: Sequence[Mismatch], absent: Sequence[str], shapes: Mapping[str, object]
) -> Statement | None:
    """Say that an LSTM has a projection of its state on one side alone, or return
    None.
    """
    lost = {found[1] for name in absent if (found := _projected(name)) is not None}
    held = {found[1] for name in shapes if (found := _projected(name)) is not None}
    for row in rows:
        found = _WEIGHT.match(row.name)
        if found is None or found[2] != "weight" or found[3] != "hh":
            continue
        place = found[1]
        if (place in lost) == (place in held) or len(row.checkpoint) != 2:
            continue
        # nn.LSTM has four blocks of rows, and its columns take the state.
        sides = [
            f"{shape[0] // 4:,} units"
            + (f" and a projection to {shape[1]:,}" if is_projected else "")
            for shape, is_projected in (
                (row.checkpoint, place in held),
                (row.model, place in lost),
            )
        ]
        size = row.checkpoint[1] if place in held else 0
        return Statement(
            f"{show(place.rstrip('.'), 80) or 'The layer'} is an nn.LSTM of {sides[0]} "
            f"in the checkpoint and of {sides[1]} in the model: weight_hr is that "
            "projection. Build the model as the run that saved did, with "
            f"hidden_size={row.checkpoint[0] // 4} and proj_size={size} (in NeMo a "
            "rnn_hidden_size above 0 adds the projection)."
        )
    return None


def _projected(name: str) -> re.Match[str] | None:
    """The match of a name of a projection, or None."""
    found = _WEIGHT.match(name)
    return found if found is not None and found[3] == "hr" else None


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


def deeper_layers_statement(
    name: str, shapes: Mapping[str, tuple[int, ...]]
) -> Statement | None:
    """Say that a recurrent layer has more layers or directions in a file than in the
    model, where a load stopped at the first name without a place, or return None.
    """
    found = _WEIGHT.match(name)
    if found is None:
        return None
    number, back = int(found[4]), found[5] is not None
    implied = [
        other
        for other in shapes
        if (row := _WEIGHT.match(other)) is not None
        and row[1] == found[1]
        and (int(row[4]) >= number if not back else row[5] is not None)
    ]
    return layers_statement((), implied, shapes)


def layers_statement(
    absent: Sequence[str], rest: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> Statement | None:
    """Say that a recurrent layer is deeper on one side, or has one direction only, or
    return None.
    """
    lost, left = _layers_of(absent), _layers_of(rest)
    held = _layers_of(shapes)
    renamed = _renamed_statement(lost, left, shapes)
    if renamed is not None:
        return renamed
    for place in {**lost, **left}:
        ours = held.get(place, set())
        theirs = (ours - left.get(place, set())) | lost.get(place, set())
        if not ours or not theirs or ours == theirs:
            continue
        # Layers that lack on both sides have other names, and not another depth.
        if place in lost and place in left:
            continue
        module = show(place.rstrip("."), 80) or "The recurrent layer"
        # Layers count from 0: `weight_ih_l0`.
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


def _renamed_statement(
    lost: Mapping[str, set[tuple[int, bool]]],
    left: Mapping[str, set[tuple[int, bool]]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Statement | None:
    """Say that the one recurrent layer of a file has another name than the model's, and
    other layers or directions, or return None.
    """
    if len(lost) != 1 or len(left) != 1 or lost.keys() == left.keys():
        return None
    ((wanted, theirs),) = lost.items()
    ((place, ours),) = left.items()
    if ours == theirs:
        return None
    shape = shapes.get(f"{place}weight_hh_l0", ())
    kind = _GATES.get(_count_gates(shape), "a recurrent layer")
    units = f" of {shape[1]:,} units" if len(shape) == 2 else ""
    sides = [
        f"{counted_noun(1 + max(number for number, _ in side), 'layer')} in "
        f"{'both directions' if any(back for _, back in side) else 'one direction'}"
        for side in (ours, theirs)
    ]
    return Statement(
        f"The file calls its recurrent layer {show(place.rstrip('.'), 60)} "
        f"({kind}{units}, {sides[0]}), and the model {show(wanted.rstrip('.'), 60)} "
        f"({sides[1]}). So the program is of another version than the one that saved, "
        "and was built with other options beside. Take its version, and build the "
        "model with the kind, the directions and the sizes of the file."
    )


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
    # The first two sizes of a convolution are its channels.
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


# --- axes in another order ------------------------------------------------------------

_SPARSE = ((4, 0, 1, 2, 3), (1, 2, 3, 4, 0), (0, 2, 3, 4, 1), (0, 4, 1, 2, 3))
"""The orders of axes that turn a kernel of spconv 1 into one of spconv 2, and back, and
those between spconv 2 and a kernel with its channels first.
"""
_CHANNELS_FIRST = ((0, 2, 3, 4, 1), (0, 4, 1, 2, 3))
_MOST_ROWS = 64


def axes_of(rows: Sequence[Mismatch]) -> tuple[int, ...] | None:
    """The order of axes that gives every tensor of a file the shape of the model's, or
    None where there is none, or more than one that no library has.
    """
    counts = {len(row.model) for row in rows} | {len(row.checkpoint) for row in rows}
    # The kernels of convolutions have three to five axes.
    if len(counts) != 1 or not 2 < max(counts) < 6:
        return None
    fitting = [
        order
        for order in permutations(range(max(counts)))
        if all(
            tuple(row.checkpoint[axis] for axis in order) == row.model
            for row in rows[:_MOST_ROWS]
        )
    ]
    # Equal sizes let several orders fit, and only one of them may be a library's.
    known = [order for order in fitting if order in _SPARSE]
    if len(known) == 1:
        return known[0]
    return fitting[0] if len(fitting) == 1 else None


def axes_statements(rows: Sequence[Mismatch], load: str | None) -> Iterator[Statement]:
    """Say that all tensors have their axes in another order, with the line that turns
    them.
    """
    order = axes_of(rows)
    if order is None:
        return
    is_sparse = order in _SPARSE
    which = (
        "version 2 of spconv has the outputs first, and version 1 had them last"
        if is_sparse
        else "another library, or another version of it, wrote them"
    )
    if order in _CHANNELS_FIRST:
        which = (
            "one side has a kernel of spconv 2, with the inputs last, and the other "
            "has the inputs behind the outputs, as nn.Conv3d and other builds of "
            "spconv keep them"
        )
    text = (
        f"{counted_noun(len(rows), 'tensor')} {'has' if len(rows) == 1 else 'have'} "
        f"the axes of the model's in another order, {list(order)}: {which}. Take that "
        "version, or turn them"
    )
    if load is None:
        yield Statement(f"{text}.")
        return
    shown = ", ".join(map(str, order))
    yield Statement(
        f"{text}, and compare one output then:",
        (),
        f"state = {load}; state.update((name, state[name].permute({shown}).contiguous()"
        ") for name, value in model.state_dict().items() if name in state and "
        "state[name].shape != value.shape); model.load_state_dict(state)",
    )
