"""Why a parameter did not change, as far as two files can tell."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.evidence.matching import is_by_order
from ckpt.evidence.record import ModelRecord, TensorRecord
from ckpt.evidence.survey import Survey
from ckpt.jobs.diff.rows import Cause, Row
from ckpt.rows import NamedTuple
from ckpt.text import listed

State = float | str | None
"""What an optimizer's state says of a parameter: its step counter, `never` (a gradient), `absent`; None: nothing."""


class Reason(NamedTuple):
    """A cause in one word, and in a sentence."""

    cause: Cause
    text: str


_CANNOT_TELL = Reason(
    "unknown",
    "did not change; these files cannot say why (ckpt.snapshot records it)",
)
_MAY_BE_BUFFER = Reason(
    "unknown",
    "did not change; a parameter or a buffer, for its name does not say",
)
_FROZEN = Reason("frozen", "frozen (requires_grad is False)")
_NEVER = Reason("never", "in the optimizer, never had a gradient")
_ABSENT = Reason("not-in-optimizer", "not in the optimizer, so frozen on purpose or a buffer")


class Side:
    """What one of the two files knows of each of its tensors, by the index in `Checkpoint.tensors`."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._states: dict[int, State] = {}
        self._clocks: dict[int, float] = {}
        self._recorded = {} if survey.record is None else survey.record.known()
        for use in survey.uses:
            never, lagging = set(use.never), dict(use.lagging)
            for number, index in enumerate(use.match.indices):
                if index is not None:
                    counter = lagging.get(number, use.steps) if use.steps else None
                    self._states.setdefault(index, "never" if number in never else counter)
                    self._clocks.setdefault(index, use.steps)
        for index, held in enumerate(survey.in_optimizer):
            if held is False:
                self._states.setdefault(index, "absent")

    def doubt(self, index: int | None) -> None:
        """Forget what an optimizer says about a tensor that contradicts it, and about all that are matched by order alone."""
        for use in self._survey.uses:
            if index in use.match.indices:
                for number, other in enumerate(use.match.indices):
                    if other is not None and is_by_order(self._survey.checkpoint, use.match, number):
                        self._states[other] = None

    @property
    def record(self) -> ModelRecord | None:
        """What `ckpt.snapshot` recorded, or the model of `--model` says."""
        return None if self._survey.record is None else self._survey.record.record

    def state(self, index: int | None) -> State:
        """What the optimizers say of a tensor."""
        return None if index is None else self._states.get(index)

    def clock(self, index: int | None) -> float | None:
        """The steps that the optimizer of a tensor has made; 0 where it counts none."""
        return None if index is None else self._clocks.get(index)

    def recorded(self, index: int | None) -> TensorRecord | None:
        """What a live model said of a tensor."""
        return None if index is None else self._recorded.get(index)

    @property
    def steps(self) -> list[float]:
        """The step counter of each optimizer that has one."""
        return [use.steps for use in self._survey.uses if use.steps]


def at_one_step(before: Side, after: Side) -> str | None:
    """The step at which both files were saved, such as `step 3`; None where they differ or no optimizer counts steps."""
    if not before.steps or before.steps != after.steps:
        return None
    steps = [f"{step:,.0f}" for step in dict.fromkeys(before.steps)]
    return f"{'step' if len(steps) == 1 else 'steps'} {listed(steps)}"


def doubt_contradictions(rows: Sequence[Row], before: Side, after: Side) -> None:
    """Drop claims that rest on the order of the model where a parameter without a gradient changed: the order is wrong."""
    for row in rows:
        if row.moved and before.state(row.indices[0]) == after.state(row.indices[1]) == "never":
            before.doubt(row.indices[0])
            after.doubt(row.indices[1])


def with_reason(row: Row, before: Side, after: Side) -> Row:
    """The row of a parameter that did not move, with the reason."""
    if row.status != "same" or row.moved or row.role.role not in ("parameter", "unknown"):
        return row
    if row.before is None or row.after is None:
        return row
    found = _reason(row, before, after)
    return row._replace(reason=found.text, cause=found.cause)


def _reason(row: Row, before: Side, after: Side) -> Reason:
    assert row.before is not None and row.after is not None
    known = after.recorded(row.indices[1]) or before.recorded(row.indices[0])
    tensors = row.before.tensor, row.after.tensor
    if any(tensor.is_parameter and tensor.requires_grad is False for tensor in tensors):
        return _FROZEN
    if known is not None and not known.requires_grad:
        return _FROZEN
    dtype = row.after.tensor.dtype.name
    states = before.state(row.indices[0]), after.state(row.indices[1])
    recorded = after.recorded(row.indices[1])
    if recorded is not None and after.record is not None and after.record.has_gradients:
        if recorded.gradient is None:
            return Reason("no-gradient", "had no gradient when the snapshot was taken")
        if recorded.gradient == 0:
            return Reason("zero-gradient", "its gradient was zero when the snapshot was taken")
        if after.record.optimizers and states[1] == "absent":
            return Reason("not-in-optimizer", "has a gradient, but no optimizer holds it")
        if after.record.optimizers:
            return Reason(
                "stepped",
                f"has a gradient (norm {recorded.gradient:.3g}), but the update is smaller than {dtype} can"
                " represent, or lr is 0",
            )
    latest = states[1] if states[1] is not None else states[0]
    if latest == "never":
        return _NEVER
    if latest == "absent":
        return _ABSENT
    if isinstance(latest, float) and isinstance(states[0], float) and isinstance(states[1], float):
        if states[0] == states[1]:
            step = at_one_step(before, after)
            if step is not None:  # there is nothing in between
                return Reason("unknown", f"did not change; both files are at {step}")
            stayed = f"its step counter stayed at {latest:,.0f}"
            if before.clock(row.indices[0]) == after.clock(row.indices[1]):
                return Reason("not-stepped", f"its optimizer did not step, {stayed}")
            return Reason("not-stepped", f"had no gradient in between, {stayed}")
        if states[1] > states[0]:
            return Reason(
                "stepped",
                f"stepped, but the gradient was zero, the update is smaller than {dtype} can represent, or lr is 0",
            )
    return _MAY_BE_BUFFER if row.role.role == "unknown" else _CANNOT_TELL
