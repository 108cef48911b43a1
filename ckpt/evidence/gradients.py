"""The parameters that had a gradient, as far as the state of an optimizer says so.

Adam and similar optimizers create the state of a parameter at its first gradient and
count its steps. Adagrad creates it at the start and counts. An optimizer without state,
or with one state for all, says nothing.

`get_state_dict` of torch makes state too, by a step with gradients of zero: before the
first step of all parameters, and after a load of all those that the file has no state
for. Such state counts one step, and its moments are zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckpt.evidence.matching import Match
from ckpt.evidence.optimizers import optimizer_facts
from ckpt.evidence.roles import RecordMatch
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import UnreadableError
from ckpt.model.names import Path
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.model.text import and_more, show
from ckpt.tree.find import counter, is_counter

_MOMENT_BYTES = 64 << 10
"""A moment of more bytes is not read."""
_MOMENTS_BYTES = 1 << 20
"""No more than so many bytes of moments are read for one optimizer."""


class GradientUse(NamedTuple):
    """The gradients of the parameters, by the state of one optimizer.

    `never` are the numbers of the parameters that never had a gradient: they have no
    state, or a counter of
    0. `lagging` are the numbers of the parameters with a counter below `steps`, each
      with its counter.
    """

    match: Match
    never: tuple[int, ...]
    lagging: tuple[tuple[int, float], ...]
    steps: float
    zero: frozenset[int] = frozenset()
    """Those of `lagging` whose moments are all zero."""
    is_before: bool = False
    """True when no step with a gradient was taken: all counters are 1, and all moments
    are zero.
    """
    counters: Mapping[int, float] = {}
    """The step counters of the parameters that have one, by their numbers."""
    is_shared: bool = False
    """True when the states were cut out of states of groups: they say nothing of a
    single parameter.
    """


def gradient_uses(
    matches: Iterable[Match], *, is_shared: bool = False
) -> tuple[GradientUse, ...]:
    """Return the gradients that the state of each optimizer tells of.

    Reads step counters, and small moments of parameters that may have had no gradient.
    """
    uses = tuple(_gradient_use(match) for match in matches)
    return tuple(use._replace(is_shared=True) for use in uses) if is_shared else uses


def _gradient_use(match: Match) -> GradientUse:
    have = [slot.has_state for slot in match.slots]
    if not any(have) or match.is_flat or _stands_for_several(match):
        return GradientUse(match, (), (), 0.0)
    steps: dict[int, float] = {}
    for number, slot in enumerate(match.slots):
        step = counter(slot.step) if slot.has_state else None
        if step is not None:
            steps[number] = step
    most = max(steps.values(), default=0.0)
    never = tuple(
        number
        for number, slot in enumerate(match.slots)
        if slot.keeps_state
        and (not slot.has_state or (most and steps.get(number) == 0))
    )
    lagging = tuple((number, step) for number, step in steps.items() if 0 < step < most)
    budget = _Bounded()
    zero = frozenset(
        number for number, _ in lagging if budget.are_zero(match.slots[number].moments)
    )
    is_before = set(steps.values()) == {1} and all(
        number in steps and budget.are_zero(slot.moments)
        for number, slot in enumerate(match.slots)
        if slot.has_state
    )
    return GradientUse(match, never, lagging, most, zero, is_before, steps)


class _Bounded:
    """Reads moments until enough bytes were read."""

    def __init__(self) -> None:
        self._left = _MOMENTS_BYTES

    def are_zero(self, moments: Sequence[TensorRef]) -> bool | None:
        """Tell whether all elements are zero.

        None when there are none, or when they are too large or cannot be read.
        """
        nbytes = sum(ref.nbytes for ref in moments)
        held = all(
            ref.nbytes <= _MOMENT_BYTES and ref.storage.place is not None
            for ref in moments
        )
        if not held or not 0 < nbytes <= self._left:
            return None
        # Here: few files have state that no step has changed.
        from ckpt.elements.blocks import elements

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
    """Tell whether one state may stand for several parameters.

    Its kind is unknown then, and nothing in it has a parameter's shape.
    pytorch-optimizer's LoRARite keeps one state for each pair of factors.
    """
    optimizer_kind = optimizer_facts(match.optimizer)
    return any(slot.is_mixed for slot in match.slots) and (
        optimizer_kind is None or optimizer_kind.family is None
    )


def says_gradients(use: GradientUse) -> bool:
    """Tell whether the state of an optimizer says which parameters had a gradient.

    Some make the state of all parameters at the start, and count no steps:
    schedulefree's AdamWScheduleFreeClosure.
    """
    has_state = [slot.has_state for slot in use.match.slots]
    if (
        use.is_shared
        or use.match.is_flat
        or not any(has_state)
        or _stands_for_several(use.match)
    ):
        return False
    optimizer_kind = optimizer_facts(use.match.optimizer)
    return (
        use.steps > 0
        or not all(has_state)
        or (optimizer_kind is not None and optimizer_kind.family is not None)
    )


def without_gradient(match: RecordMatch) -> tuple[int, ...]:
    """The indices of the parameters that required a gradient but had none when the
    snapshot was taken.

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
    """The indices of some parameters of an optimizer in `Checkpoint.tensors`, in the
    order of the file, and how many have no known index.
    """
    indices = [use.match.indices[number] for number in numbers]
    return sorted(index for index in indices if index is not None), sum(
        index is None for index in indices
    )


# --- files of several steps -----------------------------------------------------------
#
# Ranks share the counters of the optimizer out among their files. A file of another
# save therefore holds counters that are all behind those of the other files, or ahead
# of them. Ranks of experts or of a pipeline may lag honestly, so this is never certain.

_LEAST, _LEAST_ALONE = 2, 4
"""Counters of a file that are enough: where the checkpoint counts its steps itself, and
where it does not.
"""
_READ = 64
"""Counters of a file that are read, or up to twice as many."""
_LISTED = 3


class MixedSteps(NamedTuple):
    """The files whose counters are at another step than the others. `steps` are the
    steps of all files.
    """

    text: str
    steps: frozenset[float]


def _counters_by_file(matches: Iterable[Match]) -> dict[str, list[Node]]:
    """The step counters of parameters with state, by the files that hold them."""
    nodes: dict[str, list[Node]] = {}
    for match in matches:
        for slot in match.slots:
            file = _file_of(slot.step) if slot.has_state else None
            if file is not None:
                nodes.setdefault(file, []).append(slot.step)
    return nodes


def mixed_steps(
    checkpoint: Checkpoint, matches: Iterable[Match], optimizers: Sequence[Path]
) -> MixedSteps | None:
    """Return the files that seem to be of another step, or None. Reads the counters of
    the optimizer.
    """
    nodes = _counters_by_file(matches)
    if len(nodes) < 2:
        return None
    files = {file: Counter(_counter_values(held)) for file, held in nodes.items()}
    files = {file: held for file, held in files.items() if held}
    tops = {file: max(held) for file, held in files.items()}
    if len(set(tops.values())) < 2:
        return None
    # A parameter may lag in any file. What lags in a file without exception says
    # something of the file.
    if any(held[tops[file]] * 2 <= held.total() for file, held in files.items()):
        return None
    own = set(_own_steps(checkpoint, optimizers))
    recorded = own & set(tops.values())
    # An optimizer that was started later counts on its own.
    if own and not recorded:
        return None
    counts: Counter[float] = Counter()
    for file, held in files.items():
        counts[tops[file]] += held[tops[file]]
    usual = recorded.pop() if len(recorded) == 1 else counts.most_common(1)[0][0]
    least = _LEAST if own else _LEAST_ALONE
    elsewhere: set[float] = set()
    for file, held in files.items():
        if tops[file] == usual:
            elsewhere.update(held)
    for file, held in files.items():
        top = tops[file]
        # Few counters, or a step that parameters of the other files lag at too, say
        # nothing of the file.
        if top != usual and (held[top] < least or top in elsewhere):
            return None
    others = sorted(file for file, step in tops.items() if step != usual)
    steps = " and ".join(
        f"{step:,.0f}" for step in sorted({tops[file] for file in others})
    )
    listed = and_more([show(file, 60) for file in others], _LISTED)
    which = "the checkpoint itself" if own else "the other files"
    text = (
        f"all counters of the optimizer in {listed} are at step {steps}, {which} at "
        f"{usual:,.0f}: of another save, or of ranks with parameters of their own"
    )
    return MixedSteps(text, frozenset(tops.values()))


def _counter_values(nodes: Sequence[Node]) -> list[float]:
    """The values of some of the counters in one file, from its beginning to its end."""
    some = nodes[:: max(1, len(nodes) // _READ)]
    return [value for value in map(counter, some) if value is not None]


def _file_of(node: Node) -> str | None:
    """The name of the file that holds a counter alone."""
    tensor = tensor_of(node)
    if not isinstance(tensor, TensorRef):
        return None
    # Here: few files have counters of steps in tensors.
    from ckpt.elements.boxes import boxes_in
    from ckpt.elements.computed import lacks_bytes

    if lacks_bytes(tensor):
        return None
    parts = [box.part for box in boxes_in(tensor.storage)]
    if len(parts) != 1 or isinstance(parts[0], TensorRef):
        return None
    try:
        name = parts[0].find_file()
    except UnreadableError:  # its file is missing, which is a finding of its own
        return None
    return name.replace("\\", "/").rpartition("/")[2]


def _own_steps(checkpoint: Checkpoint, optimizers: Sequence[Path]) -> Iterator[float]:
    """The steps that the checkpoint counts itself, outside of its optimizers."""
    rows: list[tuple[Path, Node]] = [(row.path, row.node) for row in checkpoint.values]
    rows += [
        (entry.path, entry.tensor)
        for entry in checkpoint.tensors
        if not entry.tensor.shape
    ]
    for path, node in rows:
        if not path or not is_counter(path) or "epoch" in str(path[-1]):
            continue
        value = counter(node)
        if value is not None and not any(
            path[: len(other)] == other for other in optimizers
        ):
            yield value
