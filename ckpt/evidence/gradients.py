"""Which parameters had a gradient, as far as the state of an optimizer says so.

Adam and similar optimizers create the state of a parameter at its first gradient and count its steps. Adagrad
creates it at the start and counts. An optimizer without state, or with one state for all, says nothing.

`get_state_dict` of torch makes state too, by a step with gradients of zero: before the first step of all parameters,
and after a load of all those that the file has no state for. Such state counts one step, and its moments are zero.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from ckpt.errors import UnreadableError
from ckpt.evidence.matching import Match
from ckpt.evidence.optimizers import optimizer
from ckpt.evidence.roles import RecordMatch
from ckpt.nodes import Node, tensor_of
from ckpt.rows import NamedTuple
from ckpt.tensors import TensorRef
from ckpt.tree.view import look

_MOMENT_BYTES = 64 << 10
"""A moment of more bytes is not read."""
_MOMENTS_BYTES = 1 << 20
"""No more than so many bytes of moments are read for one optimizer."""
_COUNTERS = {"float32": "<f", "float64": "<d", "int64": "<q", "int32": "<i", "float16": "<e"}


class GradientUse(NamedTuple):
    """What the state of one optimizer says. `never` are the numbers of the parameters that never had a gradient: they
    have no state, or a counter of 0. `lagging` are those with a counter below `steps`, each with its counter.
    """

    match: Match
    never: tuple[int, ...]
    lagging: tuple[tuple[int, float], ...]
    steps: float
    zero: frozenset[int] = frozenset()
    """Those of `lagging` whose moments are all zero."""
    unread: frozenset[int] = frozenset()
    """Those of `lagging` whose moments are too large to be read for this."""
    is_before: bool = False
    """Whether no step with a gradient was taken: all counters are 1, and all moments are zero."""
    counters: Mapping[int, float] = {}
    """The step counters of the parameters that have one, by their numbers."""


def gradient_uses(matches: Iterable[Match]) -> tuple[GradientUse, ...]:
    """What the state of each optimizer says. Reads step counters, and small moments of parameters that may have had no
    gradient.
    """
    return tuple(_use(match) for match in matches)


def _use(match: Match) -> GradientUse:
    have = [slot.has_state for slot in match.slots]
    if not any(have) or match.is_flat or _stands_for_several(match):
        return GradientUse(match, (), (), 0.0)
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
    left = _Bounded()
    looked = {number: left.are_zero(match.slots[number].moments) for number, _ in lagging}
    zero, unread = (frozenset(n for n, found in looked.items() if found is each) for each in (True, None))
    is_before = set(steps.values()) == {1} and all(
        number in steps and left.are_zero(slot.moments)
        for number, slot in enumerate(match.slots)
        if slot.has_state
    )
    return GradientUse(match, never, lagging, most, zero, unread, is_before, steps)


class _Bounded:
    """Reads moments until enough bytes were read."""

    def __init__(self) -> None:
        self._left = _MOMENTS_BYTES

    def are_zero(self, moments: Sequence[TensorRef]) -> bool | None:
        """Whether all elements are zero; None where there are none, or where they are too large or cannot be read."""
        nbytes = sum(ref.nbytes for ref in moments)
        held = all(ref.nbytes <= _MOMENT_BYTES and ref.storage.place is not None for ref in moments)
        if not held or not 0 < nbytes <= self._left:
            return None
        from ckpt.elements.blocks import elements  # here: few files have state that no step has changed

        try:
            for ref in moments:
                for block in elements(ref):
                    self._left -= len(block)
                    if any(block):
                        return False
        except UnreadableError:  # a finding of its own
            return None
        return True


def _stands_for_several(match: Match) -> bool:
    """Whether one state may stand for several parameters: its kind is unknown, and nothing in it has a parameter's shape.
    pytorch-optimizer's LoRARite keeps one state for each pair of factors.
    """
    known = optimizer(match.optimizer)
    return any(slot.is_mixed for slot in match.slots) and (known is None or known.family is None)


def says_gradients(use: GradientUse) -> bool:
    """Whether the state of an optimizer says which parameters had a gradient.

    Some make the state of all parameters at the start, and count no steps: schedulefree's AdamWScheduleFreeClosure.
    """
    has_state = [slot.has_state for slot in use.match.slots]
    if use.match.is_flat or not any(has_state) or _stands_for_several(use.match):
        return False
    known = optimizer(use.match.optimizer)
    return use.steps > 0 or not all(has_state) or (known is not None and known.family is not None)


def _counter(node: Node) -> float | None:
    """The value of a step counter: a number, or a tensor with one element."""
    tensor = tensor_of(node)
    if isinstance(tensor, TensorRef):
        form = _COUNTERS.get(tensor.dtype.name)
        if form is None or tensor.numel != 1 or tensor.storage.place is None:
            return None
        from ckpt.elements.blocks import elements  # here: few files hold their counters in tensors

        try:
            return float(struct.unpack(form, b"".join(elements(tensor)))[0])
        except UnreadableError:  # a part of the checkpoint is missing, which is a finding of its own
            return None
    value = look(node).value if node is not None and tensor is None else None
    return float(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else None


def without_gradient(match: RecordMatch) -> tuple[int, ...]:
    """The indices of the parameters that required a gradient but had none when the snapshot was taken.

    Empty when no parameter had a gradient, because backward had not run yet.
    """
    if not match.record.has_gradients:
        return ()
    records = match.record.tensors
    return tuple(
        match.indices[name]
        for name in match.record.numbered
        if name in match.indices and records[name].gradient is None
    )


def known_indices(use: GradientUse, numbers: Iterable[int]) -> tuple[list[int], int]:
    """The indices of some parameters of an optimizer in `Checkpoint.tensors`, in the order of the file, and how many have
    no known index.
    """
    indices = [use.match.indices[number] for number in numbers]
    return sorted(index for index in indices if index is not None), sum(index is None for index in indices)
