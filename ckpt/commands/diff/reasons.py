"""The reasons why a parameter did not change, as far as two files can tell.

The ranks of a run, and the checksums that files recorded, say what no value says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from ckpt.bytes.executor import Executor, Failed, Local
from ckpt.commands.diff.rows import Cause, Row, Status
from ckpt.elements.audit import are_damaged
from ckpt.elements.blocks import is_permuted
from ckpt.elements.compare import Change, compare_all, plan_comparison
from ckpt.evidence.record import ModelRecord, TensorRecord
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Entry, ParallelRank
from ckpt.model.errors import UnsupportedError, about
from ckpt.model.findings import Finding
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import (
    Composite,
    Storage,
    Tensor,
    TensorRef,
    parts_of,
    unwrap_dtensor,
)
from ckpt.model.text import counted_noun, show, show_folded_names, show_names
from ckpt.pickle.sharded import is_flat

if TYPE_CHECKING:
    from ckpt.commands.diff.diff import Options

State = float | str | None
"""The state of a parameter in an optimizer: a step counter, `never` (a gradient),
`absent`; None: unknown.
"""


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
_ABSENT = Reason(
    "not-in-optimizer", "not in the optimizer: left out on purpose, or a buffer"
)


class Side:
    """The facts of one of the two files about each of its tensors, by the index in
    `Checkpoint.tensors`.
    """

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._states: dict[int, State] = {}
        self._clocks: dict[int, float] = {}
        self._doubted: set[int] = set()
        self.is_disordered = False
        """True where the optimizer got its parameters in another order than the model
        has.
        """
        self._recorded = {} if survey.record is None else survey.record.known()
        for use in survey.uses:
            never, lagging = set(use.never), dict(use.lagging)
            for number, index in enumerate(use.match.indices):
                if index is not None:
                    counter = lagging.get(number, use.steps) if use.steps else None
                    self._states.setdefault(
                        index, "never" if number in never else counter
                    )
                    self._clocks.setdefault(index, use.steps)
        for index, held in enumerate(survey.in_optimizer):
            # `None` where no optimizer is matched: then nothing is known.
            if held is False:
                self._states.setdefault(index, "absent")

    def doubt(self, index: int | None) -> None:
        """Forget what an optimizer says about a tensor that contradicts it, and about
        all that are matched by order alone.
        """
        # Here: only parameters of an optimizer are matched.
        from ckpt.evidence.matching import by_order

        for use in self._survey.uses:
            # State that names its parameter stays certain, whatever the order is.
            ordered: frozenset[int] = frozenset()
            if index in use.match.indices:
                ordered = by_order(self._survey.checkpoint, use.match)
            if ordered:
                self.is_disordered = True
                for number in ordered:
                    other = use.match.indices[number]
                    if other is not None:
                        self._states[other] = None
                        self._doubted.add(other)

    @property
    def record(self) -> ModelRecord | None:
        """The record of `ckpt.snapshot`, or of the model of `--model`."""
        return None if self._survey.record is None else self._survey.record.record

    @property
    def rank(self) -> ParallelRank | None:
        """The rank of tensor parallelism that the file is of, where that is known."""
        return self._survey.checkpoint.rank

    def state(self, index: int | None) -> State:
        """Return the state of a tensor in the optimizers."""
        return None if index is None else self._states.get(index)

    def is_doubted(self, index: int | None) -> bool:
        """Tell whether another tensor may own the state that the optimizer holds for
        this one.
        """
        return index in self._doubted

    def clock(self, index: int | None) -> float | None:
        """The steps that the optimizer of a tensor has made; 0 where it counts none."""
        return None if index is None else self._clocks.get(index)

    def recorded(self, index: int | None) -> TensorRecord | None:
        """Return the record of a tensor by a live model."""
        return None if index is None else self._recorded.get(index)

    @property
    def steps(self) -> list[float]:
        """The step counter of each optimizer that has one."""
        return [use.steps for use in self._survey.uses if use.steps]


def at_one_step(before: Side, after: Side) -> str | None:
    """Return the step of both files, such as `step 3`, or None.

    It is None if the steps differ, or no optimizer counts steps.
    """
    if not before.steps or before.steps != after.steps:
        return None
    steps = [f"{step:,.0f}" for step in dict.fromkeys(before.steps)]
    return f"{'step' if len(steps) == 1 else 'steps'} {show_names(steps)}"


def doubt_contradictions(rows: Sequence[Row], before: Side, after: Side) -> None:
    """Drop claims that rest on the order of the model where a parameter without a
    gradient changed: the order is wrong.
    """
    for row in rows:
        if (
            row.moved
            and before.state(row.indices[0]) == after.state(row.indices[1]) == "never"
        ):
            before.doubt(row.indices[0])
            after.doubt(row.indices[1])


class Kept:
    """The state that optimizers hold for each parameter, such as `momentum_buffer`:
    which of it changed.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._moved: dict[str, str] = {}
        self._stayed: dict[str, list[str]] = {}
        for row in rows:
            # Only state of which the parameter is known and both sides were compared.
            if row.parameter is None or row.after is None or row.status == "unchecked":
                continue
            key = str(row.after.path[-1])
            if row.moved or row.status == "added":
                self._moved.setdefault(row.parameter, key)
            elif row.after.tensor.numel:
                self._stayed.setdefault(row.parameter, []).append(key)

    def reason(self, name: str, dtype: str) -> Reason | None:
        """Return the reason why a parameter did not change, or None where no state says
        it.
        """
        if name in self._moved:
            return Reason(
                "stepped",
                f"stepped, for its {show(self._moved[name], 40)} changed, but the "
                f"update is smaller than {dtype} can represent, or lr is 0",
            )
        if name in self._stayed and self._moved:
            return Reason(
                "not-stepped",
                (
                    "had no gradient in between, its "
                    f"{show_names([show(key, 40) for key in self._stayed[name]])} "
                    "stayed"
                ),
            )
        return None


def with_reason(row: Row, before: Side, after: Side, kept: Kept) -> Row:
    """The row of a parameter that did not move, with the reason."""
    if (
        row.status != "same"
        or row.moved
        or row.role.role not in ("parameter", "unknown")
    ):
        return row
    if row.before is None or row.after is None:
        return row
    found = _row_reason(row, before, after)
    # The state of another parameter says nothing, and where steps are counted they have
    # said it, also by going back.
    counted = isinstance(before.state(row.indices[0]), float) or isinstance(
        after.state(row.indices[1]), float
    )
    is_open = found in (_CANNOT_TELL, _MAY_BE_BUFFER) and not counted
    if is_open and not after.is_doubted(row.indices[1]):
        found = kept.reason(row.name, row.after.tensor.dtype.name) or found
    return row._replace(reason=found.text, cause=found.cause)


def _row_reason(row: Row, before: Side, after: Side) -> Reason:
    assert row.before is not None and row.after is not None
    known = after.recorded(row.indices[1]) or before.recorded(row.indices[0])
    tensors = row.before.tensor, row.after.tensor
    # Only a Parameter keeps the flag: state_dict() detaches plain tensors.
    if any(tensor.is_parameter and tensor.requires_grad is False for tensor in tensors):
        return _FROZEN
    if known is not None and not known.requires_grad:
        return _FROZEN
    dtype = row.after.tensor.dtype.name
    states = before.state(row.indices[0]), after.state(row.indices[1])
    recorded = after.recorded(row.indices[1])
    if recorded is not None and after.record is not None and after.record.has_gradients:
        # A snapshot is taken after backward(), so no gradient means that none reached
        # it.
        if recorded.gradient is None:
            return Reason("no-gradient", "had no gradient when the snapshot was taken")
        if recorded.gradient == 0:
            return Reason(
                "zero-gradient", "its gradient was zero when the snapshot was taken"
            )
        if after.record.optimizers and states[1] == "absent":
            return Reason(
                "not-in-optimizer", "has a gradient, but no optimizer holds it"
            )
        if after.record.optimizers:
            return Reason(
                "stepped",
                f"has a gradient (norm {recorded.gradient:.3g}), but the update is "
                f"smaller than {dtype} can represent, or lr is 0",
            )
    # The later file knows more; a bare state dict knows nothing.
    latest = states[1] if states[1] is not None else states[0]
    if latest == "never":
        return _NEVER
    if latest == "absent":
        return _ABSENT
    if (
        isinstance(latest, float)
        and isinstance(states[0], float)
        and isinstance(states[1], float)
    ):
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
                (
                    "stepped, but the gradient was zero, the update is smaller than "
                    f"{dtype} can represent, or lr is 0"
                ),
            )
    return _MAY_BE_BUFFER if row.role.role == "unknown" else _CANNOT_TELL


def recorded_same(before: Tensor, after: Tensor) -> bool | None:
    """Compare two tensors of one shape and dtype by their recorded CRCs. Return None if
    the CRCs cannot say.

    Nothing is read. A CRC covers a whole storage, so both tensors must be the same view
    of their storages.
    """
    # A composite tensor is the same where each of its parts is.
    answers = [
        _recorded_same(one, two)
        for one, two in zip(parts_of(before), parts_of(after), strict=False)
    ]
    if len(parts_of(before)) != len(parts_of(after)) or None in answers:
        return None
    return all(answers)


def _recorded_same(one: TensorRef, two: TensorRef) -> bool | None:
    if not one.numel:
        return True
    # Other views of equal storages show other elements.
    alike = (
        _view_key(one) == _view_key(two) and one.storage.nbytes == two.storage.nbytes
    )
    if not alike or one.storage.crc is None or two.storage.crc is None:
        return None
    if one.storage.crc == two.storage.crc:
        return True
    # Another CRC may come from elements that the view does not show.
    return False if _is_whole(one) else None


def is_contradicted(before: Tensor, after: Tensor, *, same: bool) -> bool:
    """Tell whether the recorded CRCs contradict the comparison of the bytes. Then one
    file is damaged.
    """
    for one, two in zip(parts_of(before), parts_of(after), strict=False):
        recorded = _recorded_same(one, two) if _is_whole(one) and one.numel else None
        if (
            recorded is not None
            and recorded != same
            and (same or len(parts_of(before)) == 1)
        ):
            return True
    return False


def _view_key(ref: TensorRef) -> tuple[object, ...]:
    place = ref.storage.place
    return ref.geometry, place is not None and place.big


def _is_whole(ref: TensorRef) -> bool:
    """Tell whether a tensor covers its whole storage, and the storage its whole
    record.
    """
    is_all = ref.extent == (0, ref.storage.nbytes) and ref.nbytes == ref.storage.nbytes
    return is_all and is_permuted(ref) and _is_all(ref.storage)


def _is_all(storage: Storage) -> bool:
    return storage.place is not None and storage.nbytes == storage.place.nbytes


def shape_status(before: Entry, after: Entry, *, ignore_dtype: bool = False) -> Status:
    """Return the status of two tensors by their shapes and dtypes, or by their shapes
    alone.
    """
    old, new = unwrap_dtensor(before.tensor), unwrap_dtensor(after.tensor)
    if old.shape != new.shape or old.layout != new.layout:
        return "reshaped"
    is_retyped = before.tensor.dtype != after.tensor.dtype and not ignore_dtype
    return "retyped" if is_retyped else "same"


def compare_rows(rows: list[Row], options: Options, path: str) -> list[Row]:
    """Compare the values of the rows that have one shape. `path` is the path of the
    file after.
    """
    if options.structure:
        return rows
    # Parts of other ranks differ in any case, so they are not compared by value.
    rows = [
        row._replace(status="unchecked", apart=True) if is_apart(row) else row
        for row in rows
    ]
    if options.quick:
        return [_compare_recorded(row) for row in rows]

    # By the index of the row. All plans are made before the first byte is read.
    plans = {}
    for index, row in enumerate(rows):
        if (
            row.before is None
            or row.after is None
            or row.status in ("reshaped", "unchecked")
        ):
            continue
        try:
            plans[index] = plan_comparison(
                unwrap_dtensor(row.before.tensor),
                unwrap_dtensor(row.after.tensor),
                options.tolerance,
                always=options.norms,
                histogram=options.histogram,
                lines=None if options.lines is None else options.lines(row),
            )
        except UnsupportedError as error:
            problem = f"{show(row.name, 80)}: {error.problem}"
            raise UnsupportedError(problem, path=path, hint=error.hint) from None
    # One call for all tensors, which the executor shares out.
    executor = options.executor or Local()
    with about(path):
        changes = compare_all(list(plans.values()), executor, options.progress)
    found = dict(zip(plans, changes, strict=True))
    rows = [
        _with_change(row, found[index]) if index in found else row
        for index, row in enumerate(rows)
    ]
    return _with_damage(rows, executor)


_LITTLE = 16
"""A change of fewer than one of so many elements may be damage."""


def _with_damage(rows: list[Row], executor: Executor) -> list[Row]:
    """The rows, those marked that differ little and whose bytes do not match the
    checksums that their file records.

    A flipped bit changes one element, and a tolerance hides it. What differs in most
    elements is no such damage, and costs no second reading.
    """
    doubtful = [
        (index, row)
        for index, row in enumerate(rows)
        if row.damaged or _differs_little(row.change)
    ]
    tensors: list[Tensor] = []
    for _, row in doubtful:
        # Both sides are there: only they were compared.
        assert row.before is not None and row.after is not None
        tensors += [row.before.tensor, row.after.tensor]
    answers = are_damaged(tensors, executor)
    for (index, row), bad in zip(
        doubtful, zip(answers[::2], answers[1::2], strict=True), strict=True
    ):
        # Checksums that contradict each other show damage also where none of them can
        # be computed alone.
        rows[index] = row._replace(damaged=row.damaged or any(bad), damaged_sides=bad)
    return rows


def _differs_little(change: Change | None) -> bool:
    differing = 0 if change is None else change.differing + change.other_bytes
    return (
        change is not None
        and differing > 0
        and (change.close or differing * _LITTLE <= change.numel)
    )


def _with_change(row: Row, change: Change | Failed | None) -> Row:
    """A row of two tensors of one shape, with what differs in their values."""
    assert row.before is not None and row.after is not None
    if isinstance(change, Failed):
        status: Status = "unchecked" if row.status == "same" else row.status
        return row._replace(status=status, unread=change.problem)
    same = change is None or not (change.differing or change.other_bytes)
    damaged = row.status == "same" and is_contradicted(
        row.before.tensor, row.after.tensor, same=same
    )
    is_close = change is not None and change.close
    # Within the tolerance a tensor is the same, and keeps its numbers.
    status = (
        "changed" if row.status == "same" and not same and not is_close else row.status
    )
    if change is None and status == "retyped":
        # Blocks that are decoded, and numbers of the other type: every byte is equal.
        numel = row.after.tensor.numel
        change = Change(0, 0, numel, max_abs=0.0, squares=0.0)
    return row._replace(status=status, change=change, damaged=damaged)


def _compare_recorded(row: Row) -> Row:
    """A row by the recorded CRCs alone."""
    if row.status != "same" or row.before is None or row.after is None:
        return row
    same = recorded_same(row.before.tensor, row.after.tensor)
    if same is None:
        return row._replace(status="unchecked")
    return row if same else row._replace(status="changed")


def is_apart(row: Row) -> bool:
    """Tell whether one file holds a part of the tensor, and the other file another
    part, or all of it.
    """
    if row.before is None or row.after is None:
        return False
    one, two = row.before.tensor, row.after.tensor
    # The shapes of composite tensors are those of the whole.
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    parts = _part_key(one), _part_key(two)
    if parts == (None, None):
        return False
    return parts[0] != parts[1] or parts[0] == ""


def _part_key(tensor: Tensor) -> object:
    """Return a key that tells the parts of one tensor apart.

    It is None if the tensor is whole, and an empty text if the place of the part is
    unknown.
    """
    if not isinstance(tensor, Composite):
        return None
    piece = tensor.piece
    if piece is not None and piece.is_cut:
        return (
            "" if piece.place is None else (piece.mesh, piece.placements, piece.place)
        )
    shards = tensor.shards
    if shards is not None and shards.offsets:
        sizes = tuple(part.shape for _, part in tensor.parts)
        return shards.world, shards.cut, shards.offsets, sizes
    if ".ShardedTensor" in (tensor.detail or ""):
        # Two ranks without a shard have nothing to compare.
        return (tensor.detail, shards and shards.rank)
    return None


def are_pieces(rows: Iterable[Row]) -> bool:
    """Tell whether two files hold other parts of tensors, or the copies of two
    ranks.
    """
    rows = list(rows)
    return any(row.apart for row in rows) or ranks_of(rows) is not None


def ranks_of(rows: Iterable[Row]) -> tuple[int, int] | None:
    """Return the ranks of two files of one mesh, or None for other files."""
    for row in rows:
        if row.before is None or row.after is None:
            continue
        one, two = _run_and_rank(row.before.tensor), _run_and_rank(row.after.tensor)
        if one is not None and two is not None and one[0] == two[0]:
            ranks = one[1], two[1]
            if None in ranks or ranks[0] == ranks[1]:
                return None
            return cast("tuple[int, int]", ranks)
    return None


def rank_findings(rows: Sequence[Row]) -> Iterable[Finding]:
    """Tensors that are no parts, and differ."""
    if any(_is_flat(row) for row in rows):
        # plain tensors beside flat parameters are slices of others (LOCAL_STATE_DICT of
        # FSDP 1)
        return
    ranks = ranks_of(rows)
    other = [
        row
        for row in rows
        if row.status in ("changed", "retyped", "reshaped") and not row.apart
    ]
    if ranks is not None and other:
        text = (
            f"{show_folded_names([row.label for row in other], limit=100)} "
            f"({counted_noun(len(other), 'tensor')})"
        )
        yield Finding(
            "ranks-differ",
            (
                f"{text} differ{'s' if len(other) == 1 else ''} between rank "
                f"{ranks[0]} and rank {ranks[1]}."
            ),
            tuple(row.name for row in other),
            consequence=(
                "They are whole, or copies of one part: all ranks of one save should "
                "hold the same."
            ),
        )


def _is_flat(row: Row) -> bool:
    return row.before is not None and is_flat(
        row.name.rpartition(".")[2], row.before.tensor
    )


def _run_and_rank(tensor: Tensor) -> tuple[object, int | None] | None:
    """Return what the ranks of one run have in common, and the rank; or None if a
    tensor is not a part.
    """
    if not isinstance(tensor, Composite):
        return None
    if tensor.piece is not None:
        return (tensor.piece.mesh, tensor.piece.placements), tensor.piece.rank
    if tensor.shards is not None and tensor.shards.world is not None:
        return (tensor.shards.world, tensor.shards.cut), tensor.shards.rank
    return None


def strict_notes(rows: Iterable[Row]) -> list[str]:
    """Differences that do not count otherwise: devices, strides.

    A device that all its tensors left for one other is one note.
    """
    notes = []
    # The labels of rows by their device before, then after.
    moved: dict[str | None, dict[str | None, list[str]]] = {}
    for row in rows:
        if row.before is not None and row.after is not None:
            one, two = row.before.tensor, row.after.tensor
            if None not in (one.device, two.device):
                moved.setdefault(one.device, {}).setdefault(two.device, []).append(
                    row.label
                )
            if one.device == two.device or None in (one.device, two.device):
                if (
                    isinstance(one, TensorRef)
                    and isinstance(two, TensorRef)
                    and one.stride != two.stride
                ):
                    notes.append(
                        f"{row.label}: stride {list(one.stride)}, then "
                        f"{list(two.stride)}"
                    )
    for before, by_device in moved.items():
        for after, names in by_device.items():
            if before != after:
                is_one = len(by_device) == 1 and len(names) > 1
                whose = [counted_noun(len(names), "tensor")] if is_one else names
                notes += [f"{name}: on {before}, then on {after}" for name in whose]
    return notes
