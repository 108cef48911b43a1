"""The findings of a comparison: unchanged parameters, changes without state, skipped
steps, ranks that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.commands.diff import reasons as ranks
from ckpt.commands.diff.reasons import Side, at_one_step
from ckpt.commands.diff.rows import Row
from ckpt.commands.inspect.unused import STOPS, UNLESS_FROZEN, UNUSED
from ckpt.evidence.extras import find_extras, last_names, lone_counters, what_they_are
from ckpt.model.findings import Finding, Level
from ckpt.model.text import (
    LONG_NAME,
    and_more,
    be_verb,
    counted_noun,
    show_folded_names,
)

_PROPAGATED = frozenset(("never", "no-gradient"))
_ON_PURPOSE = frozenset(("frozen", "not-in-optimizer"))
_NAME = 100
"""Characters of a name in a sentence; a longer one is without its middle."""
_CANNOT_TELL = (
    "Unused, detached, frozen, or too small a step: these files cannot say which "
    "(ckpt.snapshot does)."
)
_ONLY_MATRICES = (
    "Only matrices changed, and no vector: so it is with weights that were quantised "
    "and taken back, and with a merged adapter. Else "
    f"{_CANNOT_TELL[:1].lower()}{_CANNOT_TELL[1:]}"
)


def findings(
    rows: Sequence[Row], before: Side, after: Side, *, same: bool, whole: bool
) -> Iterable[Finding]:
    """The findings of a comparison; `same` says that nothing at all differs, `whole`
    that nothing was left aside.
    """
    # Two ranks first: between them nothing was trained.
    if ranks.are_pieces(rows):
        yield from ranks.rank_findings(rows)
    elif are_parallel(before, after):
        yield from _parallel_findings(rows, before, after)
    elif are_ranks(before, after, rows):
        yield from _rank_findings(rows, before, after)
    else:
        yield from _frozen_findings(rows, at_one_step(before, after))
        yield from _without_state(rows, before, after)
        is_disordered = before.is_disordered or after.is_disordered
        # Without a step between them, something else than steps moved the weights.
        if is_disordered and at_one_step(before, after) is None:
            yield Finding(
                "changed-without-state",
                (
                    "Parameters changed for which the optimizer had no gradient, by "
                    "the order of the model."
                ),
                raised="info",
                consequence=(
                    "So it got its parameters in another order, and its state does not "
                    "say whose it is; or these are not saves of one run."
                ),
            )
        if whole and not same:
            yield from _skipped_findings(rows, before, after)
        yield from _moving_statistics(rows)
        yield from _extra_findings(rows)
    yield from _not_finite(rows)


def _extra_findings(rows: Sequence[Row]) -> Iterable[Finding]:
    """Report the tensors of one side alone that carry no weights."""
    both = {
        row.name for row in rows if row.before is not None and row.after is not None
    }
    for status in ("removed", "added"):
        # The state of an optimizer has counters and no extras.
        alone = [
            row for row in rows if row.status == status and row.kind in ("model", "ema")
        ]
        sides = [row.before or row.after for row in alone]
        entries = [entry for entry in sides if entry is not None]
        names = [entry.name for entry in entries]
        found = find_extras(names, [entry.tensor for entry in entries])
        counters = lone_counters(names, both)
        if counters:
            found["counter"] = counters
        for kind, chosen in found.items():
            count = f"{len(chosen):,} of {counted_noun(len(alone), f'{status} tensor')}"
            text = f"{count} ({last_names(chosen)}): {what_they_are(kind)}."
            yield Finding("extra-buffers", text, tuple(chosen))


def _parameter_rows(rows: Iterable[Row]) -> list[Row]:
    return [
        row
        for row in rows
        if row.role.role in ("parameter", "unknown")
        and row.before is not None
        and row.after is not None
    ]


def _row_names(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(row.name for row in rows)


def _labels_text(rows: Iterable[Row]) -> str:
    return show_folded_names([row.label for row in rows], 8, _NAME)


def _is_trained(row: Row) -> bool:
    """Tell whether a step may have changed a parameter: a cast and another vocabulary
    say nothing about the others.
    """
    if row.status in ("same", "retyped", "reshaped"):
        return False
    return row.moved and not row.is_cast


_OF_TRAINING = ("frozen", "changed-without-state", "step-skipped", "buffers-in-frozen")
"""The findings about two steps of one training."""


def without_training(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings that are true of a model and its quantisation, which are no
    two steps of one training.
    """
    return tuple([row for row in findings if row.code not in _OF_TRAINING])


def _frozen_findings(rows: Sequence[Row], step: str | None) -> Iterable[Finding]:
    """Report the parameters that did not move while others did, even if the reason is
    unknown.

    `step` is the step of both files.
    """
    # A parameter without elements cannot change.
    parameters = [
        row
        for row in _parameter_rows(rows)
        if row.after is not None and row.after.tensor.numel
    ]
    # Averages follow the model, so they are asked only where it is missing.
    parameters = [row for row in parameters if row.kind != "ema"] or parameters
    # A parameter that is equal within the tolerance did not change.
    changed = [row for row in parameters if _is_trained(row)]
    moved = [row for row in changed if row.role.role == "parameter"]
    if not any(row.role.role == "parameter" for row in parameters):
        moved = changed
    if not moved:
        return
    # A parameter that stepped has a reason that is no fault: the update was too small.
    sure = [row for row in parameters if row.cause not in (None, "unknown", "stepped")]
    others = counted_noun(len(moved), "other parameter")

    def make_finding(chosen: list[Row], follows: str, level: Level | None) -> Finding:
        text = f"{_labels_text(chosen)} stayed unchanged while {others} changed."
        names = _row_names(chosen)
        return Finding("frozen", text, names, raised=level, consequence=follows)

    lost = [row for row in sure if row.cause in _PROPAGATED]
    if lost:
        # A snapshot saw that there was no gradient; an optimizer only never had one.
        certain = all(row.cause == "no-gradient" for row in lost)
        why = _reasons_text(lost)
        effect = f"{UNUSED} {STOPS}" if certain else UNLESS_FROZEN
        yield make_finding(lost, f"{why[:1].upper()}{why[1:]}. {effect}", None)
    still = [row for row in sure if row.cause not in _PROPAGATED | _ON_PURPOSE]
    if still:
        yield make_finding(still, f"Reason: {_reasons_text(still)}.", None)
    purpose = [row for row in sure if row.cause in _ON_PURPOSE]
    if purpose:
        yield make_finding(purpose, f"Reason: {_reasons_text(purpose)}.", "info")
    # Level info: a parameter may stay on purpose, and no file says why.
    unknown = [row for row in parameters if row.cause == "unknown"]
    named = [row for row in unknown if not _may_be_buffer(row)]
    if named:
        if step:
            follows = (
                f"Both files are at {step}, so they do not show what a step changes."
            )
        else:
            follows = _reasons_nobody_recorded(rows, changed)
        yield make_finding(named, follows, "info")
    doubtful = [row for row in unknown if _may_be_buffer(row)]
    if doubtful:
        may = "They may be buffers: their names do"
        if len(doubtful) == 1:
            may = "It may be a buffer: its name does"
        yield make_finding(doubtful, f"{may} not say.", "info")


def _reasons_text(rows: Sequence[Row]) -> str:
    """The reasons of some rows, each once."""
    reasons = dict.fromkeys(str(row.reason) for row in rows)
    return and_more(list(reasons), 4, "; ")


def _reasons_nobody_recorded(rows: Sequence[Row], changed: Sequence[Row]) -> str:
    """Return what may be the reason that parameters did not change, where no file
    records it. A training changes vectors too.
    """
    has_optimizer = any(row.role.role == "optimizer" for row in rows)
    # The number of dimensions of what changed: 1 is a vector.
    sizes = [len(row.after.tensor.shape) for row in changed if row.after is not None]
    vectors = [
        row
        for row in _parameter_rows(rows)
        if row.status == "same"
        and row.after is not None
        and len(row.after.tensor.shape) == 1
    ]
    if has_optimizer or not vectors or len(sizes) < 2 or min(sizes) < 2:
        return _CANNOT_TELL
    return _ONLY_MATRICES


def _may_be_buffer(row: Row) -> bool:
    """Tell whether nothing speaks for a parameter."""
    return row.role.role == "unknown"


def _without_state(rows: Sequence[Row], before: Side, after: Side) -> Iterable[Finding]:
    """Parameters that moved although the optimizer, which did step, never had a
    gradient for them.
    """
    if not _has_advanced(before, after):
        return
    odd = []
    for row in _parameter_rows(rows):
        if row.moved:
            index_before, index_after = row.indices
            states = before.state(index_before), after.state(index_after)
            if states == ("never", "never"):
                odd.append(row)
    if odd:
        them = "it" if len(odd) == 1 else "them"
        text = (
            f"{_labels_text(odd)} changed, but the optimizer never had a gradient for "
            f"{them}"
        )
        follows = (
            "Something else writes to the weights, or these are not saves of one run."
        )
        yield Finding(
            "changed-without-state", f"{text}.", _row_names(odd), consequence=follows
        )


def _skipped_findings(
    rows: Sequence[Row], before: Side, after: Side
) -> Iterable[Finding]:
    """No parameter moved, and none may have: all of the model are in both files, and
    were compared.
    """
    parameters = [
        row
        for row in rows
        if row.role.role in ("parameter", "unknown") and row.kind != "ema"
    ]
    # Averages follow later, so the model alone is asked.
    if not parameters or any(row.moved or row.status != "same" for row in parameters):
        return
    state = any(row.moved for row in rows if row.role.role == "optimizer")
    step = at_one_step(before, after)
    if step is not None and not state:
        text = f"Both files are at {step}, and no parameter differs."
        follows = "The step was saved twice, or the optimizer skipped one."
        yield Finding("step-skipped", text, consequence=follows)
    elif _has_advanced(before, after):
        text = "The step counters advanced, but no parameter changed."
        follows = (
            "The gradients were zero, lr is 0, or every update is too small for the "
            "dtype."
        )
        yield Finding("step-skipped", text, consequence=follows)


def _has_advanced(before: Side, after: Side) -> bool:
    """Tell whether every optimizer took steps from one file to the other."""
    pairs = list(zip(before.steps, after.steps, strict=False))
    return (
        len(before.steps) == len(after.steps)
        and bool(pairs)
        and all(b < a for b, a in pairs)
    )


def _moving_statistics(rows: Sequence[Row]) -> Iterable[Finding]:
    """Statistics that move beside parameters that did not, while others did. Where
    nothing says why, it is information.
    """
    if not any(_is_trained(row) for row in _parameter_rows(rows)):
        return
    # The statistics of BatchNorm lie beside its weight and bias.
    by_module: dict[str, list[Row]] = {}
    for row in rows:
        if row.before is not None and row.after is not None:
            by_module.setdefault(row.name.rpartition(".")[0], []).append(row)
    sure: list[str] = []
    unsure: list[str] = []
    for module, inside in by_module.items():
        mean = next(
            (row for row in inside if row.name.rpartition(".")[2] == "running_mean"),
            None,
        )
        weights = [row for row in inside if row.role.role == "parameter"]
        if mean is None or mean.status != "changed" or not weights:
            continue
        if any(row.status != "same" for row in weights):
            continue
        causes = {row.cause for row in weights}
        # A layer that was trained, or has no known cause, has moving statistics by
        # right.
        if None in causes or "stepped" in causes:
            continue
        if "unknown" in causes:
            unsure.append(module)
        else:
            sure.append(module)
    for modules, is_sure in ((sure, True), (unsure, False)):
        if not modules:
            continue
        shown = show_folded_names(modules, limit=60)
        begin = "Call" if is_sure else "If they are frozen, call"
        yield Finding(
            "buffers-in-frozen",
            (
                f"The statistics of {shown} changed, but the parameters beside them "
                "are unchanged."
            ),
            tuple(f"{module}.running_mean" for module in modules),
            raised=None if is_sure else "info",
            consequence=f"{begin} eval() on these modules to keep their statistics.",
        )


def _not_finite(rows: Sequence[Row]) -> Iterable[Finding]:
    """Report NaN and infinities in what changed, on the side after. New ones are
    errors: they spread at the next step.
    """
    changed = [(row, row.change) for row in rows if row.change is not None]
    for code, label, pairs in (
        ("nan", "NaN", [(row, change.nan) for row, change in changed]),
        ("inf", "infinite", [(row, change.inf) for row, change in changed]),
    ):
        new = [(row, after) for row, (before, after) in pairs if after > before]
        # As many as before, or fewer: this step did not make them.
        old = [(row, after) for row, (before, after) in pairs if 0 < after <= before]
        for bad, are_new in ((new, True), (old, False)):
            if bad:
                total = sum(count for _, count in bad)
                labels = [row.label for row, _ in bad]
                names = show_folded_names(labels, limit=LONG_NAME)
                text = (
                    f"{counted_noun(total, 'element')} {be_verb(total)} "
                    f"{label} in {names}{'' if are_new else ', as before'}."
                )
                yield Finding(
                    code,
                    text,
                    _row_names(row for row, _ in bad),
                    raised="error" if are_new else None,
                )


# --- ranks ----------------------------------------------------------------------------


def are_ranks(before: Side, after: Side, rows: Sequence[Row]) -> bool:
    """Tell whether two files are snapshots of two ranks of one run, or hold other parts
    of their tensors.
    """
    if ranks.are_pieces(rows) or are_parallel(before, after):
        return True
    one, two = before.record, after.record
    if (
        one is None
        or two is None
        or one.source != "snapshot"
        or two.source != "snapshot"
    ):
        return False
    return one.world_size == two.world_size > 1 and one.rank != two.rank


def are_parallel(before: Side, after: Side) -> bool:
    """Tell whether two files are of two ranks of tensor parallelism. Two files of one
    rank may be two steps of it.
    """
    one, two = before.rank, after.rank
    if one is None or two is None:
        return False
    # Files of one rank are two steps, and of other worlds are two runs.
    return one.of == two.of and one.number != two.number


def _parallel_findings(
    rows: Sequence[Row], before: Side, after: Side
) -> Iterable[Finding]:
    """Report two ranks of tensor parallelism: what differs is a part on each, whatever
    training did.
    """
    one, two = before.rank, after.rank
    assert one is not None and two is not None
    parts = [row for row in rows if row.status in ("changed", "reshaped")]
    same = sum(row.status == "same" for row in rows)
    text = (
        f"The files are ranks {one.number} and {two.number} of {one.of} of tensor "
        "parallelism"
    )
    text += (
        f": {counted_noun(len(parts), 'tensor')} "
        f"{'differs' if len(parts) == 1 else 'differ'}, {same:,} "
        f"{be_verb(same)} equal."
    )
    follows = (
        "What differs is another part on each rank, so it says nothing about training."
    )
    yield Finding("tensor-parallel", text, _row_names(parts), consequence=follows)


def _rank_findings(rows: Sequence[Row], before: Side, after: Side) -> Iterable[Finding]:
    """Report the parameters that differ between ranks, or have a gradient on one rank
    only.

    Shards are left out, and buffers too: the statistics of BatchNorm follow each rank's
    own data.
    """
    assert before.record is not None and after.record is not None
    numbers = before.record.rank, after.record.rank
    propagated = before.record.has_gradients and after.record.has_gradients
    other: list[Row] = []
    # A gradient on the first rank only, and on the second rank only.
    only: tuple[list[Row], list[Row]] = ([], [])
    for row in _parameter_rows(rows):
        one, two = before.recorded(row.indices[0]), after.recorded(row.indices[1])
        if one is None or two is None or one.is_sharded or two.is_sharded:
            continue
        if row.status in ("changed", "retyped", "reshaped"):
            other.append(row)
        # One of the two ranks took a branch in which the parameter is used.
        if propagated and (one.gradient is None) != (two.gradient is None):
            only[one.gradient is None].append(row)
    if other:
        text = (
            f"{_labels_text(other)} ({counted_noun(len(other), 'parameter')}) differ "
            f"between rank {numbers[0]} and rank {numbers[1]}."
        )
        yield Finding("ranks-differ", text, _row_names(other))
    for rank, rows in zip(numbers, only, strict=True):
        if rows:
            text = (
                f"{_labels_text(rows)} ({counted_noun(len(rows), 'parameter')}) have a "
                f"gradient on rank {rank} only."
            )
            yield Finding(
                "ranks-differ",
                text,
                _row_names(rows),
                consequence=f"The other rank did not take this branch. {STOPS}",
            )
