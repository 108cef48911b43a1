"""Why a parameter did not move, as far as two files can tell, and what follows from it; never beyond the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.findings import Finding
from ckpt.gradients import Use
from ckpt.jobs.rows import Row
from ckpt.names import braced, show
from ckpt.units import plural

_LISTED = 4
Told = tuple[tuple[Use, ...], tuple[Use, ...]]
"""What the optimizers of either file say."""
_CANNOT_TELL = "no gradient, or one too small to see: these files cannot tell"
NEVER = "in the optimizer, never had a gradient"


def with_reason(
    row: Row,
    before: Checkpoint,
    after: Checkpoint,
    told: Told,
) -> Row:
    if (
        row.status != "same"
        or row.role.role not in ("parameter", "unknown")
        or row.after is None
        or row.before is None
    ):
        return row
    tensors = row.before.tensor, row.after.tensor
    if any(tensor.is_parameter and tensor.requires_grad is False for tensor in tensors):
        return row._replace(reason="frozen: its requires_grad is False")
    states = _state(before, row.before, told[0]), _state(after, row.after, told[1])
    if states[1] is None and states[0] is None:
        return row._replace(reason=_CANNOT_TELL)
    latest = states[1] or states[0]
    assert latest is not None
    if latest == "never":
        return row._replace(reason=NEVER)
    if latest == "absent":
        return row._replace(reason="not in the optimizer: frozen on purpose, or a buffer")
    if states[0] is not None and states[0] == states[1] and isinstance(latest, float):
        return row._replace(reason=f"no gradient in between: its step counter stayed at {latest:,.0f}")
    if isinstance(latest, float) and isinstance(states[0], float) and latest > states[0]:
        name = row.after.tensor.dtype.name
        return row._replace(
            reason=f"stepped, but |Δ| is below the spacing of {name} at its values, or lr is 0"
        )
    return row._replace(reason=_CANNOT_TELL)


def _state(checkpoint: Checkpoint, entry: Entry, told: Iterable[Use]) -> str | float | None:
    """What an optimizer's state says of a tensor: never, absent, its step counter; None when nothing."""
    for use in told:
        model = use.match.model
        if model is None:
            continue
        places = use.match.places
        for number, place in enumerate(places):
            if place is not None and checkpoint.tensors[place] is entry:
                if number in use.never:
                    return "never"
                return dict(use.lagging).get(number, use.steps) if use.steps else None
        inside = any(checkpoint.tensors[place] is entry for place in range(model.first, model.last))
        if inside and None not in places and use.match.slots:
            return "absent"
    return None


def findings(rows: Sequence[Row], told: Told, *, same: bool) -> Iterable[Finding]:
    """The findings of a comparison; `same` says that nothing at all differs."""
    parameters = [row for row in rows if row.role.role in ("parameter", "unknown") and row.after is not None]
    moved = [row for row in parameters if row.status == "changed"]
    still = [row for row in parameters if row.status == "same" and row.before is not None]
    sure = [
        row
        for row in still
        if row.reason not in (None, _CANNOT_TELL) and not str(row.reason).startswith("stepped")
    ]
    if moved and sure:
        names = tuple(row.name for row in sure)
        never = [row.name for row in sure if row.reason == NEVER]
        what = ", ".join(braced(list(names))[:_LISTED])
        text = f"{show(what, 200)} did not move, {plural(len(moved), 'other parameter')} did"
        if never:
            text += (
                ": not used in forward, outside the loss, or detached; DDP stops on those that are not frozen"
            )
        yield Finding("frozen", text, names)
    if (
        not same
        and still
        and not moved
        and not any(row.status == "changed" for row in rows)
        and _stepped(told) is False
    ):
        yield Finding(
            "step-skipped", "no parameter moved and no step counter advanced: the optimizer did not step", ()
        )
    counts = {
        "nan": [(row, row.change.nan[1]) for row in rows if row.change is not None],
        "inf": [(row, row.change.inf[1]) for row in rows if row.change is not None],
    }
    for code, found in counts.items():
        bad = [(row, count) for row, count in found if count]
        if bad:
            total = sum(count for _, count in bad)
            first = f"{show(bad[0][0].name, 80)}{' and others' if len(bad) > 1 else ''}"
            label = "NaN" if code == "nan" else "infinite"
            text = f"{plural(total, 'element')} {'are' if total > 1 else 'is'} {label} in {first}"
            yield Finding(code, text, tuple(row.name for row, _ in bad))
    yield from _moving_statistics(rows)


def _stepped(told: Told) -> bool | None:
    """Whether the counters advanced; None where there are none."""
    steps = [[use.steps for use in side if use.steps] for side in told]
    return None if not all(steps) or len(steps[0]) != len(steps[1]) else steps[0] != steps[1]


def _moving_statistics(rows: Sequence[Row]) -> Iterable[Finding]:
    """Statistics that move beside parameters that did not, while others did."""
    by_module: dict[str, list[Row]] = {}
    for row in rows:
        if row.before is not None and row.after is not None:
            by_module.setdefault(row.name.rpartition(".")[0], []).append(row)
    found = []
    for module, rows in by_module.items():
        leaves = {row.name.rpartition(".")[2]: row for row in rows}
        weights = [row for row in rows if row.role.role == "parameter"]
        mean = leaves.get("running_mean")
        if (
            mean is not None
            and mean.status == "changed"
            and weights
            and all(row.status == "same" for row in weights)
        ):
            if all(row.reason and row.reason != _CANNOT_TELL for row in weights):
                found.append(module)
    if found:
        listed = ", ".join(show(module, 60) for module in found[:_LISTED])
        yield Finding(
            "buffers-in-frozen",
            f"the statistics of {listed} moved, and the parameters beside them are frozen: eval() keeps them still",
            tuple(f"{module}.running_mean" for module in found),
        )
