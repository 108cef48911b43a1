"""Who had no gradient, as findings: from an optimizer's state, from what a snapshot recorded, from a live model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.checkpoint import Checkpoint
from ckpt.evidence.gradients import Use, known_places, uses, without_gradient
from ckpt.evidence.matching import is_by_order
from ckpt.evidence.roles import Evidence, Told
from ckpt.evidence.sections import Section
from ckpt.findings import Finding, Level
from ckpt.text import braced, plural, show

_LISTED = 4
UNUSED = "not used in forward, outside the loss, or detached"


def findings(checkpoint: Checkpoint, known: Evidence) -> Iterable[Finding]:
    """What the file knows of parameters that never, or not always, had a gradient."""
    found = uses(known.matches)
    none: tuple[int, ...] = ()
    if known.told is not None:
        none = without_gradient(known.told)
        yield from _recorded(checkpoint, known.told, none, found)
    for use in found:
        yield from _by_state(checkpoint, use, known.told, none)


def _recorded(
    checkpoint: Checkpoint, told: Told, none: tuple[int, ...], found: Sequence[Use]
) -> Iterable[Finding]:
    """Parameters that had no gradient when a snapshot was taken."""
    held = {
        place
        for use in found
        if use.steps or use.never
        for number, place in enumerate(use.match.places)
        if number not in use.never and place is not None
    }
    earlier = [place for place in none if place in held]
    never = [place for place in none if place not in held]
    if never:
        text, names = _text(checkpoint, told.section, never)
        before = {use.match.places[number] for use in found for number in use.never}
        also = ", nor ever before" if before.issuperset(never) else ""
        yield Finding(
            "unused",
            f"{text}: had no gradient when the snapshot was taken{also}: {UNUSED}; DDP stops on this",
            names,
            raised="warning",
        )
    if earlier:
        text, names = _text(checkpoint, told.section, earlier)
        yield Finding(
            "sometimes-unused",
            f"{text}: had no gradient when the snapshot was taken, and one in an earlier step",
            names,
        )


def _by_state(
    checkpoint: Checkpoint, use: Use, told: Told | None, none: tuple[int, ...]
) -> Iterable[Finding]:
    """Parameters for which an optimizer holds no state while it does for others, or whose counters are behind."""
    known = told.known() if told is not None else {}
    frozen = {place for place, row in known.items() if not row.requires_grad}
    skip = frozen.union(none)
    never = [number for number in use.never if use.match.places[number] not in skip]
    lagging = [row for row in use.lagging if use.match.places[row[0]] not in skip]
    name = use.match.optimizer.name
    which = "the optimizer" if name in ("", "optimizer") else show(name, 60)
    if never and not (told is not None and told.record.has_gradients):
        text, names = _of(checkpoint, use, never)
        level: Level | None = None
        if told is None:
            reason = "never had a gradient: not used, detached, or frozen (requires_grad=False)"
            if any(is_by_order(checkpoint, use.match, number) for number in never):
                which += " (by the order of the model)"
            ending = "DDP stops on those that are not frozen"
        else:
            reason, ending, level = f"never had a gradient: {UNUSED}", "DDP stops on this", "warning"
        yield Finding("unused", f"{text}: in {which}, {reason}; {ending}", names, raised=level)
    if lagging:
        text, names = _of(checkpoint, use, [number for number, _ in lagging])
        steps = sorted({step for _, step in lagging})
        took = f"{steps[0]:,.0f}" if len(steps) == 1 else f"{steps[0]:,.0f} to {steps[-1]:,.0f}"
        reason = f"took {took} of {use.steps:,.0f} steps: sometimes no gradient, or handed to {which} later"
        yield Finding("sometimes-unused", f"{text}: {reason}", names)


def _of(checkpoint: Checkpoint, use: Use, numbers: Sequence[int]) -> tuple[str, tuple[str, ...]]:
    """Parameters of an optimizer by their names as far as they can be told, and all of the names."""
    places, untold = known_places(use, numbers)
    other = ""
    if untold:
        left = [str(number) for number in numbers if use.match.places[number] is None]
        which = f"{', '.join(left[:8])}{' …' if len(left) > 8 else ''} of the optimizer's own numbers"
        other = f"{plural(untold, 'parameter')} that cannot be told apart ({which})"
    return _text(checkpoint, use.match.model, places, other)


def _text(
    checkpoint: Checkpoint, model: Section | None, places: Sequence[int], other: str = ""
) -> tuple[str, tuple[str, ...]]:
    """`fc3.{weight,bias} (2 parameters, 330 elements)`, with what cannot be named, and all of the names."""
    names = tuple(checkpoint.tensors[place].name for place in places)
    folded = braced([model.relative(name) if model else name for name in names])
    text = ", ".join(show(name, 80) for name in folded[:_LISTED])
    text += ", …" if len(folded) > _LISTED else ""
    text += f"{' and ' if text and other else ''}{other}"
    if names:
        numel = sum(checkpoint.tensors[place].tensor.numel for place in places)
        text += f" ({plural(len(names), 'parameter')}, {plural(numel, 'element')})"
    return text, names
