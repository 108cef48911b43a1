"""`ckpt diff`: two checkpoints, tensor by tensor: names aligned, then shapes and dtypes, then values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.elements.compare import Tolerance, compare, contradicted, in_threads, recorded_same
from ckpt.errors import UnsupportedError, UsageError
from ckpt.evidence.record import Record
from ckpt.evidence.roles import Evidence, Role, evidence
from ckpt.evidence.sections import Section, sections
from ckpt.evidence.wrappers import unwrapped_name, usual_prefix
from ckpt.findings import Finding, order
from ckpt.jobs.diff.findings import are_ranks, findings
from ckpt.jobs.diff.moved import renamed
from ckpt.jobs.diff.reasons import Side, doubt_contradictions, with_reason
from ckpt.jobs.diff.rows import DIFFERS, Pair, Row, Status, ValueRow
from ckpt.jobs.diff.values import differing_values
from ckpt.names import Globs
from ckpt.tensors import TensorRef
from ckpt.text import Json, show


class Options(NamedTuple):
    """What is compared, and how closely. `tolerance` gives (absolute, relative) for a dtype; None is exact.

    `structure` reads no values, `quick` only the CRCs that the containers recorded; `norms` works out the numbers
    of equal tensors too. `model` is what a live model says.
    """

    select: Globs | None = None
    section: str | None = None
    tolerance: Callable[[str], Tolerance] | None = None
    structure: bool = False
    quick: bool = False
    strict: bool = False
    norms: bool = False
    model: Record | None = None
    progress: Callable[[int], None] | None = None
    """Is told the bytes of each tensor that was compared."""


class DiffReport(NamedTuple):
    """What differs between two checkpoints. `differs` is the answer of the exit code."""

    before: Checkpoint
    after: Checkpoint
    pairs: tuple[Pair, ...]
    not_compared: tuple[str, ...]
    rows: tuple[Row, ...]
    values: tuple[ValueRow, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    differs: bool
    options: Options = Options()

    @property
    def same(self) -> bool:
        """Whether it is known that nothing differs."""
        return not self.differs and not self.damaged and not self.count("unchecked")

    @property
    def damaged(self) -> tuple[str, ...]:
        """The tensors whose bytes contradict the CRCs that the files recorded."""
        return tuple(row.name for row in self.rows if row.damaged)

    def count(self, status: Status, role: str | None = None) -> int:
        """Tensors of a status, of one role or of all."""
        return sum(row.status == status and role in (None, row.role.role) for row in self.rows)

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.diff`; docs/json.md is its contract."""
        from ckpt.jobs.diff.document import document

        return document(self)


def diff(before: Checkpoint, after: Checkpoint, options: Options | None = None) -> DiffReport:
    """What differs between two checkpoints.

    Sections are paired by their place, else by their kind; in models the prefixes of wrappers are aligned.
    Raises UsageError when a section is not there or two names would become one, UnreadableError.
    """
    options = options or Options()
    parts = sections(before), sections(after)
    known = evidence(before, parts[0], options.model), evidence(after, parts[1], options.model)
    pairs, alone = _pairs(before, after, parts, options)
    rows: list[Row] = []
    aligned: list[Pair] = []
    weights = [pair for pair in pairs if pair.after.kind in ("model", "ema", "other")]
    for pair in pairs:
        whole, found = _rows(before, after, pair, known, options)
        if [pair] != weights:
            found = [row._replace(labels=_full(row)) for row in found]
        aligned.append(whole)
        rows += found
    _refuse_nothing(before, after, rows, parts, options)
    rows = _compared(rows, options, after.path)
    rows = renamed(rows) if not (options.structure or options.quick) else rows
    sides = Side(before, known[0]), Side(after, known[1])
    doubt_contradictions(rows, *sides)
    everything_asked = not options.select and options.section is None
    if not are_ranks(*sides):
        rows = [with_reason(row, *sides) for row in rows]
    values: list[ValueRow] = []
    if not options.select and not options.structure:
        everything = (*parts[0], *parts[1])
        values, lonely = differing_values(before, after, aligned, everything, outside=everything_asked)
        alone += lonely
    differs = any(row.status in DIFFERS for row in rows) or bool(values)
    notes: list[str] = []
    if options.strict:
        notes = [f"only on one side: {name}" for name in alone] + _strict(rows)
        differs = differs or bool(notes) or any(row.status == "renamed" for row in rows)
    made = (
        ()
        if options.structure
        else order(list(findings(rows, *sides, same=not differs, whole=everything_asked)))
    )
    return DiffReport(
        before,
        after,
        tuple(aligned),
        tuple(alone),
        tuple(rows),
        tuple(values),
        made,
        tuple(notes),
        differs,
        options,
    )


# --- which parts go together ------------------------------------------------------------------------------------------


def _pairs(
    before: Checkpoint,
    after: Checkpoint,
    parts: tuple[tuple[Section, ...], tuple[Section, ...]],
    options: Options,
) -> tuple[list[Pair], list[str]]:
    # A snapshot's record is evidence, not content.
    ours, theirs = ([part for part in side if part.kind != "snapshot"] for side in parts)
    if options.section is not None:
        ours = [part for part in ours if part.name == options.section]
        theirs = [part for part in theirs if part.name == options.section]
        if not ours and not theirs:
            names = [part.name or "(the root)" for side in parts for part in side]
            listed = ", ".join(show(name, 60) for name in dict.fromkeys(names)) or "none"
            raise UsageError(f"no section {options.section}", path=before.path, hint=f"sections: {listed}")
    pairs: list[Pair] = []
    for part in list(ours):
        same = next((other for other in theirs if (other.path, other.kind) == (part.path, part.kind)), None)
        if same is not None:
            pairs.append(Pair(part, same))
            ours.remove(part)
            theirs.remove(same)
    for kind in dict.fromkeys(part.kind for part in ours):
        mine = [part for part in ours if part.kind == kind]
        others = [part for part in theirs if part.kind == kind]
        if len(mine) == len(others) == 1 and kind != "other":
            pairs.append(Pair(mine[0], others[0]))
            ours.remove(mine[0])
            theirs.remove(others[0])
    if not pairs and len(ours) == len(theirs) == 1:  # files of nothing but tensors
        return [Pair(ours[0], theirs[0])], []
    alone = [
        f"{part.name or '(the root)'} of {path}"
        for side, path in ((ours, before.path), (theirs, after.path))
        for part in side
    ]
    return pairs, alone


def _rows(
    before: Checkpoint, after: Checkpoint, pair: Pair, known: tuple[Evidence, Evidence], options: Options
) -> tuple[Pair, list[Row]]:
    """The tensors of two sections by their aligned names: pairs, and those of one side; in the order of after."""
    align = pair.before.kind in ("model", "ema")
    first, second = _names(before, pair.before, False), _names(after, pair.after, False)
    prefixes = ("", "")
    if align and first.keys() != second.keys():
        # Names that only one side has, and that would go together, ask for it.
        odd = [
            {unwrapped_name(name) for name in mine.keys() - other.keys()}
            for mine, other in ((first, second), (second, first))
        ]
        needed = bool(odd[0] & odd[1])
        short = [
            _unwrapped(checkpoint, section, needed=needed)
            for checkpoint, section in ((before, pair.before), (after, pair.after))
        ]
        if short[0] is not None and short[1] is not None:
            if len(short[0].keys() & short[1].keys()) > len(first.keys() & second.keys()):
                prefixes = usual_prefix(first), usual_prefix(second)
                first, second = short[0], short[1]
    rows: list[Row] = []
    for name, place in second.items():
        entry = after.tensors[place]
        if not _selected(options, name, entry):
            continue
        if name in first:
            other = before.tensors[first[name]]
            role = min(known[1].roles[place], known[0].roles[first[name]], key=_rank)
            rows.append(Row(_shape_status(other, entry), other, entry, role, labels=(name, name)))
        else:
            rows.append(Row("added", None, entry, known[1].roles[place], labels=("", name)))
    for name, place in first.items():
        if name not in second and _selected(options, name, before.tensors[place]):
            role = known[0].roles[place]
            rows.append(Row("removed", before.tensors[place], None, role, labels=(name, "")))
    return pair._replace(prefixes=prefixes), rows


def _full(row: Row) -> tuple[str, str]:
    return (row.before.name if row.before else "", row.after.name if row.after else "")


def _rank(role: Role) -> int:
    return ("certain", "strong", "likely", "none").index(role.trust)


def _selected(options: Options, name: str, entry: Entry) -> bool:
    return not options.select or options.select.match(entry.name, name)


def _unwrapped(checkpoint: Checkpoint, section: Section, *, needed: bool) -> dict[str, int] | None:
    """Names without the prefixes of wrappers -> places; None when two would become one, an error when they are `needed`."""
    try:
        return _names(checkpoint, section, True)
    except UsageError:
        if needed:
            raise
        return None


def _names(checkpoint: Checkpoint, section: Section, unwrapped: bool) -> dict[str, int]:
    """Names inside a section -> places. Raises UsageError when two would become one."""
    found: dict[str, int] = {}
    for place in range(section.first, section.last):
        name = section.relative(checkpoint.tensors[place].name)
        short = unwrapped_name(name) if unwrapped else name
        if short in found:
            other = checkpoint.tensors[found[short]].name
            raise UsageError(
                f"{show(other, 80)} and {show(checkpoint.tensors[place].name, 80)} would both be called {show(short, 80)}",
                path=checkpoint.path,
            )
        found[short] = place
    return found


# --- what differs ---------------------------------------------------------------------------------------------------


def _shape_status(before: Entry, after: Entry) -> Status:
    if before.tensor.shape != after.tensor.shape or before.tensor.layout != after.tensor.layout:
        return "reshaped"
    return "retyped" if before.tensor.dtype != after.tensor.dtype else "same"


def _compared(rows: list[Row], options: Options, path: str) -> list[Row]:
    """The rows with what differs in the values of those of one shape; `path` is that of the file after."""
    if options.structure:
        return rows
    if options.quick:
        return [_recorded(row) for row in rows]

    def look_at(row: Row) -> Row:
        if row.before is None or row.after is None or row.status == "reshaped":
            return row
        before, after = row.before.tensor, row.after.tensor
        try:
            change = compare(before, after, options.tolerance, always=options.norms)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{show(row.name, 80)}: {error.problem}", path=path, hint=error.hint
            ) from None
        if options.progress is not None:
            options.progress(before.nbytes + after.nbytes)
        same = change is None or not (change.differing or change.other_bytes)
        row = row._replace(damaged=row.status == "same" and contradicted(before, after, same=same))
        if row.status == "same" and not same and change is not None and not change.close:
            return row._replace(status="changed", change=change)
        return row._replace(change=change)

    return in_threads(look_at, rows)


def _recorded(row: Row) -> Row:
    """A row by the recorded CRCs alone."""
    if row.status != "same" or row.before is None or row.after is None:
        return row
    same = recorded_same(row.before.tensor, row.after.tensor)
    return row if same else row._replace(status="unchecked" if same is None else "changed")


def _refuse_nothing(
    before: Checkpoint,
    after: Checkpoint,
    rows: list[Row],
    parts: tuple[tuple[Section, ...], tuple[Section, ...]],
    options: Options,
) -> None:
    """Raise UsageError where a file holds tensors and none was to be compared: that is never "same"."""
    if rows or not (before.tensors or after.tensors):
        return
    if options.select:
        raise UsageError("no tensor of that name to compare", path=after.path, hint="--include, --exclude")
    listed = [
        f"{checkpoint.path}: {', '.join(show(part.name or '(the root)', 40) for part in side[:8]) or 'no tensors'}"
        for checkpoint, side in zip((before, after), parts, strict=True)
    ]
    raise UsageError("nothing to compare", path=after.path, hint="; ".join(listed))


def _strict(rows: Iterable[Row]) -> list[str]:
    """Differences that do not count otherwise: devices, strides."""
    notes = []
    for row in rows:
        if row.before is not None and row.after is not None:
            one, two = row.before.tensor, row.after.tensor
            if one.device != two.device and None not in (one.device, two.device):
                notes.append(f"{row.label}: on {one.device}, then on {two.device}")
            elif isinstance(one, TensorRef) and isinstance(two, TensorRef) and one.stride != two.stride:
                notes.append(f"{row.label}: stride {list(one.stride)}, then {list(two.stride)}")
    return notes
