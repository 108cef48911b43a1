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

_LEAST, _DISTINCT = 3, 2
"""Parameters, and shapes of them, that are enough to say anything."""
_PARTS, _STEPS = 64, 1_000_000
"""Parts of a model whose order is looked for, and the shapes that the search compares
at most.
"""

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
    if not survey.checkpoint.traits.keeps_order:
        return []
    found = []
    for match in survey.matches:
        if (
            match.models
            or match.by_name
            or match.is_flat
            or any(slot.name for slot in match.slots)
        ):
            continue
        rows = [
            row
            for model in survey.models
            if (row := _of_model(survey, match, model)) is not None
        ]
        if len(rows) == 1:
            found += rows
    return found


def _of_model(survey: Survey, match: Match, model: Section) -> Reordered | None:
    """Return the optimizer's parameters as a model's in another order, or None if they
    are not, or the model's order is lost.
    """
    given = [slot.shape for slot in match.slots]
    known = [shape for shape in given if shape is not None]
    if (
        len(known) < _LEAST
        or len(set(known)) < _DISTINCT
        or 2 * len(known) < len(given)
    ):
        return None
    if any(
        slot.has_state and slot.shape is None for slot in match.slots
    ) or model.tensors < len(given):
        return None
    indices = each_once(
        (index, entry)
        for index, entry in zip(model.indices, model.entries, strict=True)
        if entry.registered and survey.roles[index].role != "buffer"
    )
    shapes = [survey.tensors[index].tensor.shape for index in indices]
    counts = Counter(shapes)
    if len(shapes) != len(given) or Counter(known) - counts:
        return None
    blocks: dict[str, list[str]] = {}
    for name, entry in zip(model.names(), model.entries, strict=True):
        blocks.setdefault(entry.tensor.dtype.name, []).append(name)
    if disorder_reason(
        model.names(), list(blocks.values())
    ) is not None or may_be_sorted(list(blocks.values())):
        return None
    differs = next(
        (
            number
            for number, (shape, other) in enumerate(zip(given, shapes, strict=True))
            if shape not in (None, other)
        ),
        None,
    )
    if differs is None:
        return None
    names = [model.relative(survey.tensors[index].name) for index in indices]
    row = Reordered(
        match, model, differs, (given[differs] or (), shapes[differs]), names[differs]
    )
    if len(known) == len(given) and max(counts.values()) == 1:
        place = dict(zip(shapes, indices, strict=True))
        return row._replace(order=tuple(place[shape] for shape in known))
    return row._replace(parts=_parts_in_order(names, shapes, given))


def _parts_in_order(
    names: Sequence[str], shapes: Sequence[Shape], given: Sequence[Shape | None]
) -> tuple[str, ...]:
    """The parts of a model in the only order that fits, or nothing."""
    start = len(common_component(names))
    parts: dict[str, list[Shape]] = {}
    for name, shape in zip(names, shapes, strict=True):
        parts.setdefault(
            name[: start + len(name[start:].partition(".")[0])], []
        ).append(shape)
    if not 1 < len(parts) <= _PARTS:
        return ()
    found: list[tuple[str, ...]] = []
    steps = 0
    todo: list[tuple[tuple[str, ...], int]] = [((), 0)]
    while todo and len(found) < 2:
        chosen, place = todo.pop()
        if len(chosen) == len(parts):
            found.append(chosen)
            continue
        for part, own in parts.items():
            if part in chosen:
                continue
            same = next(
                (
                    n
                    for n, shape in enumerate(own)
                    if given[place + n] not in (None, shape)
                ),
                len(own),
            )
            steps += same + 1
            if steps > _STEPS:
                return ()
            if same == len(own):
                todo.append(((*chosen, part), place + len(own)))
    return found[0] if len(found) == 1 else ()
