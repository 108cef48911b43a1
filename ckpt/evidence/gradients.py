"""Who had a gradient: what an optimizer's state says of each parameter, and nothing beyond that.

Adam and its like make the state of a parameter at its first gradient, and count its steps; Adagrad makes it at the
start, and counts. An optimizer without state, or with one for all, says nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ckpt.elements.blocks import elements
from ckpt.evidence.matching import Match
from ckpt.evidence.roles import Told
from ckpt.nodes import Node
from ckpt.tensors import TensorRef
from ckpt.tree.view import look, tensor_of

_COUNTERS = {"float32": "<f", "float64": "<d", "int64": "<q", "int32": "<i", "float16": "<e"}


class Use(NamedTuple):
    """What the state of one optimizer says. `never` are the parameters that never had a gradient, by their number:
    without state, or with a counter that never moved; `lagging` those whose counter is behind `steps`, each with it.
    """

    match: Match
    never: tuple[int, ...]
    lagging: tuple[tuple[int, float], ...]
    steps: float


def uses(matches: Iterable[Match]) -> tuple[Use, ...]:
    """What each optimizer's state says. Reads counters of no dimension, and no other tensor data."""
    return tuple(_use(match) for match in matches)


def _use(match: Match) -> Use:
    have = [slot.has_state for slot in match.slots]
    if not any(have) or match.is_flat:
        return Use(match, (), (), 0.0)
    steps = {
        number: step
        for number, slot in enumerate(match.slots)
        if slot.has_state and (step := _counter(slot.step)) is not None
    }
    most = max(steps.values(), default=0.0)
    never = tuple(
        number
        for number, slot in enumerate(match.slots)
        if slot.keeps_state and (not slot.has_state or (most and steps.get(number) == 0))
    )
    lagging = tuple((number, step) for number, step in steps.items() if 0 < step < most)
    return Use(match, never, lagging, most)


def _counter(node: Node) -> float | None:
    """The value of a step counter: a number, or a tensor of no dimension."""
    tensor = tensor_of(node)
    if isinstance(tensor, TensorRef):
        form = _COUNTERS.get(tensor.dtype.name)
        if form is None or tensor.numel != 1 or tensor.storage.place is None:
            return None
        return float(struct.unpack(form, b"".join(elements(tensor)))[0])
    value = look(node).value if node is not None and tensor is None else None
    return float(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else None


def without_gradient(told: Told) -> tuple[int, ...]:
    """The places of the parameters that required a gradient and had none when a snapshot was taken.

    Empty when no parameter had one: then nothing was propagated backward yet.
    """
    if not told.record.has_gradients:
        return ()
    known = told.record.tensors
    return tuple(
        told.places[name]
        for name in told.record.numbered
        if name in told.places and known[name].gradient is None
    )


def known_places(use: Use, numbers: Iterable[int]) -> tuple[list[int], int]:
    """The places of some of an optimizer's parameters in `Checkpoint.tensors`, and how many have no known one."""
    places = [use.match.places[number] for number in numbers]
    return [place for place in places if place is not None], sum(place is None for place in places)
