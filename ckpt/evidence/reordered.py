"""An optimizer that got its parameters in another order than the model's, as the shapes
of its state show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ckpt.evidence.mapping import common_component
from ckpt.evidence.matching import Match, each_once
from ckpt.evidence.order import disorder_reason, may_be_sorted
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.model.rows import NamedTuple

_LEAST = 3
"""Parameters that are enough to say anything."""
_DISTINCT = 2
"""Shapes of them that are enough."""
_PARTS = 64
"""The most parts of a model whose order is looked for."""
_STEPS = 1_000_000
"""The most shapes that the search compares."""

Shape = tuple[int, ...]


class Reordered(NamedTuple):
    """An optimizer with the parameters of a model in another order. `differs` is the
    first parameter of another shape.

    `order` are the indices of the tensors in the optimizer's order, where the shapes
    leave one. Where they do not, `parts` are the parts of the model in the only order
    that fits, if each keeps the order of its own parameters.
    """

    match: Match
    model: Section
    differs: int
    shapes: tuple[Shape, Shape]
    name: str
    order: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()


def reordered(survey: Survey) -> list[Reordered]:
    """The optimizers whose state has the shapes of all parameters of one model, and in
    no order that a model gives.
    """
    # Without an order in the file there is none to differ from.
    if not survey.checkpoint.traits.keeps_order:
        return []
    found = []
    for match in survey.matches:
        if match.models or match.by_name or match.is_flat:
            continue
        if any(slot.name for slot in match.slots):
            continue
        rows = [_of_model(survey, match, model) for model in survey.models]
        reorderings = [row for row in rows if row is not None]
        # Nothing is said of one that could belong to either of two models.
        if len(reorderings) == 1:
            found += reorderings
    return found


def _of_model(survey: Survey, match: Match, model: Section) -> Reordered | None:
    """Return the optimizer's parameters as a model's in another order, or None if they
    are not, or the model's order is lost.
    """
    given = [slot.shape for slot in match.slots]
    known = [shape for shape in given if shape is not None]
    if len(known) < _LEAST or len(set(known)) < _DISTINCT:
        return None
    # Of the others no state says a shape: they could be any parameters.
    if 2 * len(known) < len(given) or model.tensors < len(given):
        return None
    if any(slot.has_state and slot.shape is None for slot in match.slots):
        return None
    indices = each_once(
        (index, entry)
        for index, entry in zip(model.indices, model.entries, strict=True)
        if entry.registered and survey.roles[index].role != "buffer"
    )
    shapes = [survey.tensors[index].tensor.shape for index in indices]
    counts = Counter(shapes)
    # Shapes that the subtraction leaves are not in the model so often.
    if len(shapes) != len(given) or Counter(known) - counts:
        return None
    blocks: dict[str, list[str]] = {}
    for name, entry in zip(model.names(), model.entries, strict=True):
        blocks.setdefault(entry.tensor.dtype.name, []).append(name)
    # Then the order of the model itself is not the one that the optimizer got.
    names_by_dtype = list(blocks.values())
    if disorder_reason(model.names(), names_by_dtype) is not None:
        return None
    if may_be_sorted(names_by_dtype):
        return None
    differs = _count_fitting(shapes, given)
    if differs == len(given):
        return None
    names = [model.relative(survey.tensors[index].name) for index in indices]
    row = Reordered(
        match, model, differs, (given[differs] or (), shapes[differs]), names[differs]
    )
    # Each shape is there once, so it names its tensor.
    if len(known) == len(given) and max(counts.values()) == 1:
        place = dict(zip(shapes, indices, strict=True))
        return row._replace(order=tuple(place[shape] for shape in known))
    return row._replace(parts=_parts_in_order(names, shapes, given))


def _count_fitting(shapes: Sequence[Shape], given: Sequence[Shape | None]) -> int:
    """Count the first shapes that are as given, where one is given at all."""
    count = 0
    for shape, other in zip(shapes, given, strict=True):
        if other is not None and other != shape:
            break
        count += 1
    return count


def _parts_in_order(
    names: Sequence[str], shapes: Sequence[Shape], given: Sequence[Shape | None]
) -> tuple[str, ...]:
    """The parts of a model in the only order that fits, or nothing."""
    start = len(common_component(names))
    parts: dict[str, list[Shape]] = {}
    for name, shape in zip(names, shapes, strict=True):
        # The beginning of all names, and the component behind it.
        component = name[start:].partition(".")[0]
        parts.setdefault(name[:start] + component, []).append(shape)
    if not 1 < len(parts) <= _PARTS:
        return ()
    found: list[tuple[str, ...]] = []
    steps = 0
    todo: list[tuple[tuple[str, ...], int]] = [((), 0)]
    # Two orders that fit are as bad as none, so the search ends with the second.
    while todo and len(found) < 2:
        chosen, place = todo.pop()
        if len(chosen) == len(parts):
            found.append(chosen)
            continue
        for part, own in parts.items():
            if part in chosen:
                continue
            same = _count_fitting(own, given[place : place + len(own)])
            # A comparison that fails costs too, where many parts begin alike.
            steps += same + 1
            if steps > _STEPS:
                return ()
            if same == len(own):
                todo.append(((*chosen, part), place + len(own)))
    return found[0] if len(found) == 1 else ()
