"""`ckpt diff`: two checkpoints, tensor by tensor: names aligned, then shapes and
dtypes, then values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

from ckpt.bytes.executor import Executor, Local
from ckpt.commands.diff.findings import are_ranks, findings
from ckpt.commands.diff.optimizers import Keyed, by_parameters, is_same_list, named_by
from ckpt.commands.diff.reasons import (
    Kept,
    Side,
    compare_rows,
    doubt_contradictions,
    shape_status,
    strict_notes,
    with_reason,
)
from ckpt.commands.diff.rows import (
    DIFFERS,
    STATUSES,
    Pair,
    Row,
    Status,
    Tied,
    ValueRow,
    lost_of,
    with_moves,
    without_lost,
)
from ckpt.commands.diff.values import differing_values, holds_values
from ckpt.elements.compare import Tolerance
from ckpt.elements.lines import LineTest
from ckpt.evidence.alignment import Alignment, Paired, in_turn, pair_tensors
from ckpt.evidence.mapping import Rename
from ckpt.evidence.roles import Role
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.weights import codes_finding, codes_of, emptied_findings
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import UnreadableError, UsageError
from ckpt.model.findings import Finding, Gate, order
from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.model.text import Json, and_more, counted_noun, pasted_path, show, show_names
from ckpt.surface.reports import reduce_report, shown_as_html


class Options(NamedTuple):
    """The scope of a comparison and its tolerance.

    `select` are the tensors of `--include` and `--exclude`; the keyword `select` of
    `ckpt.diff` is another one, for the codes of findings.
    `tolerance` gives (absolute, relative) for a dtype; None is exact. `rules` rename
    the weights of the first file. Without `align` names are compared as they are.
    `structure` reads no values, `quick` only the CRCs that the containers recorded.
    `norms` works out the numbers of equal tensors too, `histogram` counts the
    differences of each tensor in bins.
    """

    select: Globs | None = None
    section: str | None = None
    tolerance: Callable[[str], Tolerance] | None = None
    structure: bool = False
    quick: bool = False
    strict: bool = False
    ignore_dtype: bool = False
    """A flag: tensors of two dtypes are compared by their values alone."""
    norms: bool = False
    histogram: bool = False
    align: bool = True
    rules: Sequence[Callable[[str], str]] = ()
    progress: Callable[[int], None] | None = None
    """Called with the number of bytes that were compared."""
    executor: Executor | None = None
    """The executor that compares; by default the processors of this machine."""
    lines: Callable[[Row], LineTest | None] | None = None
    """Returns the test of the rows and columns of a tensor, or None for one without."""


DIFFER = "differ"
"""The word that `--fail-on` takes beside the codes of findings."""


def _is_lost(checkpoint: Checkpoint, name: str) -> bool:
    return name in checkpoint.account.lost_names


class Explained(Protocol):
    """An explanation of differences, which may leave some unexplained."""

    @property
    def differs(self) -> bool:
        """Tell whether there are other differences than those."""
        ...

    def to_json(self) -> dict[str, Json]:
        """Return its fields of the document `ckpt.diff`."""
        ...

    def lines(self, width: int | None) -> list[list[tuple[str, str]]]:
        """Return its lines of styled text."""
        ...


@shown_as_html("ckpt.commands.diff.text", "html_diff")
class DiffReport(NamedTuple):
    """The differences between two checkpoints. `differs` is the answer of the exit
    code.
    """

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
    lost: tuple[str, ...] = ()
    """The parts that were not compared because a side has lost them, or because nothing
    says which model is which.
    """
    unjoined: tuple[str, ...] = ()
    """The optimizers that were not compared, and why."""
    gate: Gate = Gate()
    tied: tuple[Tied, ...] = ()
    """The names of one file that are other names of tensors that both files hold. They
    differ only under `strict`.
    """
    account: Explained | None = None
    """An explanation of the differences, where it was asked for: a merge of an
    adapter.
    """

    @property
    def same(self) -> bool:
        """Tell whether both sides are known to be the same."""
        return not (
            self.differs
            or self.damaged
            or self.count("unchecked")
            or self.lost
            or self.unjoined
        )

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 where the files differ, or as the
        gate says.
        """
        differs = self.differs if self.account is None else self.account.differs
        differs = differs and (not self.gate.fails or DIFFER in self.gate.fails)
        return int(differs) or self.gate.code(self.findings)

    def check(self) -> None:
        """Raise CkptError where what was asked cannot be decided.

        A tensor could not be read, or its bytes do not match their checksums; checksums
        are missing; each file holds another part of a tensor.
        """
        self._refuse_damage()
        self._refuse_unread()
        if self.exit_code:
            return
        after = self.after.path
        apart = sum(row.apart for row in self.rows)
        if apart:
            problem = (
                f"{counted_noun(apart, 'tensor')} cannot be compared: each file holds "
                "another part"
            )
            raise UsageError(
                problem,
                path=after,
                hint="the folder with the files of all ranks is one checkpoint",
            )
        if self.options.quick and self.count("unchecked"):
            raise UsageError(
                "--quick cannot decide: checksums are missing",
                path=after,
                hint="without --quick",
            )

    def _refuse_damage(self) -> None:
        """Raise UnreadableError where bytes do not match the checksums: no exit code
        would be true.
        """
        if self.damaged:
            names = show_names(self.damaged, 5)
            rows = [row for row in self.rows if row.damaged]
            # One side alone may be damaged: the error is about its path then.
            files = [
                file.path
                for side, file in enumerate((self.before, self.after))
                if any(row.damaged_sides[side] for row in rows)
            ]
            what = "damaged"
            if not files or not all(any(row.damaged_sides) for row in rows):
                files = [self.after.path]
                what = f"damaged, it or {show(self.before.path, None)}"
            raise UnreadableError(
                f"{what}: the bytes do not match the checksums: {names}",
                path=" and ".join(files),
            )

    @property
    def changed(self) -> tuple[str, ...]:
        """The tensors of both sides whose values differ."""
        return tuple(row.name for row in self.rows if row.status == "changed")

    @property
    def frozen(self) -> tuple[str, ...]:
        """The parameters that stayed unchanged while others changed: the names in the
        finding `frozen`.
        """
        frozen = (row.tensors for row in self.findings if row.code == "frozen")
        return tuple(chain.from_iterable(frozen))

    def __repr__(self) -> str:
        names = f"{show(self.before.path)} → {show(self.after.path)}"
        others = [
            f"{self.count(status):,} {status}, "
            for status in STATUSES
            if status not in ("changed", "same") and self.count(status)
        ]
        return (
            f"<ckpt.DiffReport {names}: {len(self.changed):,} changed, "
            f"{''.join(others)}{self.count('same'):,} same>"
        )

    @property
    def unread(self) -> tuple[Row, ...]:
        """The tensors that were not compared, because their bytes could not be read."""
        return tuple(row for row in self.rows if row.unread is not None)

    def _refuse_unread(self) -> None:
        """Raise UnreadableError where tensors could not be read: whether the files
        differ is not known then.
        """
        if self.unread:
            names = show_names([row.name for row in self.unread], 5)
            raise UnreadableError(
                f"not compared: {names}: {self.unread[0].unread}",
                path=self._lacking_paths(),
            )
        if self.lost:
            files = [file for file in (self.before, self.after) if file.account.unread]
            lacking = [file.path for file in files or (self.after,)]
            problem = f"not compared: {and_more(self.lost, 3, '; ')}"
            raise UnreadableError(problem, path=" or ".join(dict.fromkeys(lacking)))

    def _lacking_paths(self) -> str:
        """The path of the file whose reader said that it lacks the first tensor that
        was not read; else both paths.
        """
        row = self.unread[0]
        paths: list[str] = []
        lacking: list[str] = []
        for file, entry in ((self.before, row.before), (self.after, row.after)):
            if entry is None:
                continue
            paths.append(file.path)
            if _is_lost(file, entry.name):
                lacking.append(file.path)
        # A file that is compared with itself is named once.
        return " or ".join(dict.fromkeys(lacking or paths))

    @property
    def damaged(self) -> tuple[str, ...]:
        """The tensors whose bytes contradict the CRCs that the files recorded."""
        return tuple(row.name for row in self.rows if row.damaged)

    @property
    def suggested(self) -> tuple[Rename, ...]:
        """The renames that one `--sub` would make in all weights."""
        # If values have paired all tensors of a file, no name is left to meet.
        if not {"added", "removed"} <= {row.status for row in self.rows}:
            return ()
        weights = [
            pair.suggested
            for pair in self.pairs
            if not _WEIGHTS.isdisjoint((pair.before.kind, pair.after.kind))
        ]
        if not weights:
            return ()
        return tuple(
            rename
            for rename in weights[0]
            if all(_has_rename(renames, rename) for renames in weights)
        )

    def count(self, status: Status, role: str | None = None) -> int:
        """Tensors of a status, of one role or of all."""
        return sum(
            row.status == status and role in (None, row.role.role) for row in self.rows
        )

    def __reduce__(self) -> tuple[object, ...]:
        asked = self.options._replace(
            tolerance=None, rules=(), progress=None, executor=None, lines=None
        )
        return reduce_report(self.after.path, DiffReport, *self._replace(options=asked))

    def __copy__(self) -> DiffReport:
        return self

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.diff`; docs/json.md is its contract."""
        from ckpt.commands.diff.document import document

        return document(self)


def diff(before: Survey, after: Survey, options: Options | None = None) -> DiffReport:
    """Compare two checkpoints.

    Sections are paired by their place, else by their kind. The names of models are
    mapped to one another: wrappers, other beginnings, other words. Raises UsageError
    when a section is not there or two names would become one, UnreadableError.
    """
    options = options or Options()
    # A part of the files cannot tell that nothing else differs.
    everything_asked = not options.select and options.section is None
    pairs, ours, theirs = _pair_sections(before, after, options)
    undecided: list[str] = []
    if everything_asked:
        undecided = _undecided_models(before, after, ours, theirs)
    alone = _lone_sections(before, after, ours, theirs)
    pairs, keyed, unjoined = by_parameters(before, after, pairs)
    rows: list[Row] = []
    tied: list[Tied] = []
    aligned: list[Pair] = []
    # Optimizers keep their names: only those of weights are shortened.
    weights = [pair for pair in pairs if pair.after.kind in ("model", "ema", "other")]
    several = len(weights) > 1 or any(len(side.models) > 1 for side in (before, after))
    names = _pair_names(before, after, pairs, options, keyed)
    for pair, pair_names in zip(pairs, names, strict=True):
        whole, found = _pair_rows(before, after, pair, pair_names, options)
        found, others = _without_tied(before, after, pair_names, found)
        tied += others
        # The only model needs no name in front of its tensors.
        if several or pair not in weights:
            found = [row._replace(labels=_full_names(row)) for row in found]
        aligned.append(whole)
        rows += [row._replace(kind=pair.after.kind) for row in found]
    rows = [_with_optimizer(row, before, after) for row in rows]
    # If only second names are left, the files hold the same tensors.
    if not tied:
        _refuse_nothing(before, after, rows, options)
    rows = compare_rows(rows, options, after.path)
    if not (options.structure or options.quick):
        rows = with_moves(rows, options.executor or Local())
    sides = Side(before), Side(after)
    doubt_contradictions(rows, *sides)
    # A difference between two ranks, or of a cast, has no reason in a training.
    if not are_ranks(*sides, rows) and not _are_cast(rows):
        kept = Kept(rows)
        rows = [with_reason(row, *sides, kept) for row in rows]
    values: list[ValueRow] = []
    if not options.select and not options.structure:
        values, lonely = differing_values(
            before, after, aligned, outside=everything_asked
        )
        # The numbers of parameters in `param_groups` say nothing where names pair them.
        values = [row for row in values if not is_same_list(row, keyed)]
        alone += lonely
    # A section that one file has lost is no section that only the other file has.
    gone = lost_of(before.checkpoint, after.checkpoint)
    alone = [name for name in alone if name not in gone]
    rows, values, lost = without_lost(rows, values, before.checkpoint, after.checkpoint)
    differs = any(row.status in DIFFERS for row in rows) or bool(values)
    notes: list[str] = []
    # Differences of which each counts, though none is of a tensor's values.
    if options.strict:
        notes = [f"only on one side: {name}" for name in alone] + strict_notes(rows)
        notes += [
            f"only on one side: {row.name}, another name of {row.of}" for row in tied
        ]
        notes += [f"not compared: {name}" for name in unjoined]
        for pair in aligned:
            for rename in pair.renames:
                before_text, after_text = rename.text
                notes.append(f"renamed: {before_text} to {after_text}")
        differs = differs or bool(notes) or any(row.status == "renamed" for row in rows)
    made: tuple[Finding, ...] = ()
    # Without values nothing is known of what training did.
    if not options.structure:
        of_rows = findings(rows, *sides, same=not differs, whole=everything_asked)
        made = order([*of_rows, *_of_weights(rows, before, after)])
    return DiffReport(
        before.checkpoint,
        after.checkpoint,
        tuple(aligned),
        tuple(alone),
        tuple(rows),
        tuple(values),
        made,
        tuple(notes),
        differs,
        options,
        (*undecided, *(lost if everything_asked and not options.structure else ())),
        tuple(unjoined),
        tied=tuple(tied),
    )


def _of_weights(
    rows: Sequence[Row], before: Survey, after: Survey
) -> Iterator[Finding]:
    """Yield what makes numbers of weights none that a model computes with: codes, and a
    side without weights.
    """
    # A file that is compared with itself is looked at once.
    for side in (before, after) if before.path != after.path else (after,):
        for finding in emptied_findings(side):
            message = f"{show(side.path, None)}: {finding.message}"
            yield finding._replace(message=message)
    codes_before = codes_of(before)
    codes_after = codes_of(after)
    if codes_before or codes_after:
        names: list[str] = []
        for row in rows:
            if row.status not in ("changed", "retyped"):
                continue
            is_code_before = row.before and row.before.name in codes_before
            is_code_after = row.after and row.after.name in codes_after
            if is_code_before or is_code_after:
                names.append(row.name)
        yield from codes_finding(names)


_WEIGHTS = frozenset(("model", "ema"))


# --- which parts go together ----------------------------------------------------------


def _pair_sections(
    before: Survey, after: Survey, options: Options
) -> tuple[list[Pair], list[Section], list[Section]]:
    """The sections that are compared with each other, and what is left of
    either side.
    """
    # A snapshot's record is evidence, not content.
    ours, theirs = (
        [part for part in side.sections if part.kind != "snapshot"]
        for side in (before, after)
    )
    if options.section is not None:
        # A word such as `model` may name sections with other names in the two files.
        wanted = (
            before.section_name(options.section),
            after.section_name(options.section),
        )
        ours, theirs = (
            [part for part in side if part.name == name]
            for side, name in zip((ours, theirs), wanted, strict=True)
        )
        for side, parts in ((before, ours), (after, theirs)):
            if not parts:
                # This raises, with the names that there are.
                side.section(options.section)
    # The surest pairs first, for each pair takes its sections off the lists.
    pairs = [*_by_path(ours, theirs), *_by_kind(ours, theirs)]
    if not any(pair.after.kind in _WEIGHTS for pair in pairs):
        pairs += _only_weights(ours, theirs)
    # Two files of nothing but tensors, whatever their kinds.
    if not pairs and len(ours) == len(theirs) == 1:  # files of nothing but tensors
        return [Pair(ours[0], theirs[0])], [], []
    # An optimizer beside an empty dict: its tensors are removed, not left aside.
    pairs += [Pair(part, _empty_section(part)) for part in _taken_where(after, ours)]
    pairs += [Pair(_empty_section(part), part) for part in _taken_where(before, theirs)]
    return pairs, ours, theirs


def _undecided_models(
    before: Survey, after: Survey, ours: list[Section], theirs: list[Section]
) -> list[str]:
    """A sentence on the models, or averages, that both sides have left, taken off the
    lists: no place or number pairs them.
    """
    sentences: list[str] = []
    for kind in _WEIGHTS:
        our_parts = [part for part in ours if part.kind == kind]
        their_parts = [part for part in theirs if part.kind == kind]
        if not our_parts or not their_parts:
            continue
        our_names = f"{_names_of(our_parts)} of {before.path}"
        their_names = f"{_names_of(their_parts)} of {after.path}"
        sentences.append(f"{our_names} and {their_names}: nothing says which is which")
        ours[:] = [part for part in ours if part.kind != kind]
        theirs[:] = [part for part in theirs if part.kind != kind]
    return sorted(sentences)


def _names_of(parts: Sequence[Section]) -> str:
    return and_more([show(part.name, 60) or "(the root)" for part in parts], 5)


def _lone_sections(
    before: Survey, after: Survey, ours: Sequence[Section], theirs: Sequence[Section]
) -> list[str]:
    """The sections that only one side has, for people."""
    texts: list[str] = []
    for parts, survey in ((ours, before), (theirs, after)):
        texts += [f"{part.name or '(the root)'} of {survey.path}" for part in parts]
    return texts


def _by_path(ours: list[Section], theirs: list[Section]) -> list[Pair]:
    """The sections of one kind at one place of both files, which are taken off the
    lists.
    """
    pairs = []
    for part in list(ours):
        same = next(
            (
                other
                for other in theirs
                if (other.path, other.kind) == (part.path, part.kind)
            ),
            None,
        )
        if same is not None:
            pairs.append(Pair(part, same))
            ours.remove(part)
            theirs.remove(same)
    return pairs


def _by_kind(ours: list[Section], theirs: list[Section]) -> list[Pair]:
    """The sections that are the only ones of their kind on either side, which are taken
    off the lists.
    """
    pairs = []
    for kind in dict.fromkeys(part.kind for part in ours):
        mine = [part for part in ours if part.kind == kind]
        others = [part for part in theirs if part.kind == kind]
        if len(mine) == len(others) == 1 and kind != "other":
            pairs.append(Pair(mine[0], others[0]))
            ours.remove(mine[0])
            theirs.remove(others[0])
    return pairs


def _only_weights(ours: list[Section], theirs: list[Section]) -> list[Pair]:
    """The only weights of either side, taken off the lists: an average in a training
    file, and what slim makes of it.
    """
    mine, others = (
        [part for part in side if part.kind in _WEIGHTS] for side in (ours, theirs)
    )
    if not len(mine) == len(others) == 1:
        return []
    ours.remove(mine[0])
    theirs.remove(others[0])
    return [Pair(mine[0], others[0])]


def _taken_where(other: Survey, parts: list[Section]) -> list[Section]:
    """The sections at whose place the other file has values and no tensors, taken off
    the list.
    """
    taken = [
        part
        for part in parts
        if part.path and holds_values(other.checkpoint, part.path)
    ]
    parts[:] = [part for part in parts if part not in taken]
    return taken


def _empty_section(part: Section) -> Section:
    """The empty section at the place of another, for a file that has no tensor
    there.
    """
    return Section(part.path, part.name, part.kind, 0)


def _pair_names(
    before: Survey,
    after: Survey,
    pairs: Sequence[Pair],
    options: Options,
    keyed: Mapping[int, Keyed],
) -> list[Paired]:
    """Match the names of each pair. The names in an optimizer follow the names of the
    weights.
    """
    found: dict[int, Paired] = {}
    # From the name of a weight in the second file to its name in the first.
    known: dict[str, str] = {}
    for index, pair in enumerate(pairs):
        if _WEIGHTS.isdisjoint((pair.before.kind, pair.after.kind)):
            continue
        sides = (
            Alignment(pair.before, before.path, in_turn(options.rules)),
            Alignment(pair.after, after.path),
        )
        each = pair_tensors(
            *sides, align=options.align, suggest=not options.rules, strict=True
        )
        found[index] = each
        for two, one in each.partners.items():
            old = before.tensors[each.one[one]].name
            new = after.tensors[each.two[two]].name
            known[pair.after.relative(new)] = pair.before.relative(old)
    for index, pair in enumerate(pairs):
        if index not in found:
            ours = Alignment(pair.before, before.path)
            theirs = Alignment(pair.after, after.path)
            if index in keyed:
                keys = keyed[index]
                ours = ours.then(lambda name, keys=keys: named_by(name, keys.before))  # type: ignore[misc]
                theirs = theirs.then(lambda name, keys=keys: named_by(name, keys.after))  # type: ignore[misc]
            if pair.after.kind == "optimizer":
                renamed = theirs.then(lambda name: _of_optimizer(name, known))
                theirs = renamed if renamed.ways[0] is not None else theirs
            found[index] = pair_tensors(ours, theirs, align=False)
    return [found[index] for index in range(len(pairs))]


def _of_optimizer(name: str, known: dict[str, str]) -> str:
    """Return the name in the first file for a tensor of an optimizer that keeps its
    state by names.
    """
    start, _, rest = name.partition(".")
    parameter, _, key = rest.rpartition(".")
    # A number is not a name.
    if start != "state" or parameter not in known or parameter.isdigit():
        return name
    return f"{start}.{known[parameter]}.{key}"


def _pair_rows(
    before: Survey, after: Survey, pair: Pair, names: Paired, options: Options
) -> tuple[Pair, list[Row]]:
    """Return the tensors of two sections by name: pairs, and tensors of one side, in
    the order of after.
    """
    rows: list[Row] = []
    for name, index in names.two.items():
        entry = after.tensors[index]
        partner = names.partners.get(name)
        role = after.roles[index]
        if partner is None:
            if _is_selected(options, entry.name, name):
                rows.append(
                    Row(
                        "added",
                        None,
                        entry,
                        role,
                        labels=("", name),
                        indices=(None, index),
                    )
                )
            continue
        at = names.one[partner]
        other = before.tensors[at]
        if _is_selected(options, entry.name, name, partner):
            # The file that knows more about the tensor decides.
            role = min(role, before.roles[at], key=_trust_rank)
            status = shape_status(other, entry, ignore_dtype=options.ignore_dtype)
            rows.append(
                Row(
                    status,
                    other,
                    entry,
                    role,
                    labels=(partner, name),
                    indices=(at, index),
                )
            )
    # Tensors of the first file alone come last: they have no place in the second.
    taken = set(names.partners.values())
    for name, index in names.one.items():
        entry = before.tensors[index]
        if name not in taken and _is_selected(options, entry.name, name):
            role = before.roles[index]
            rows.append(
                Row(
                    "removed",
                    entry,
                    None,
                    role,
                    labels=(name, ""),
                    indices=(index, None),
                )
            )
    return pair._replace(
        prefixes=names.prefixes, renames=names.renames, suggested=names.suggested
    ), rows


def _without_tied(
    before: Survey, after: Survey, names: Paired, rows: list[Row]
) -> tuple[list[Row], list[Tied]]:
    """Split off the tensors of one side that share the memory of a tensor that both
    sides hold.

    A file of safetensors, or transformers when it saves, writes such a tensor once.
    """
    if all(row.status not in ("added", "removed") for row in rows):
        return rows, []
    # The tensors that both sides hold, by their names on each side.
    held_before: set[str] = set()
    held_after: set[str] = set()
    for name, partner in names.partners.items():
        held_before.add(before.tensors[names.one[partner]].name)
        held_after.add(after.tensors[names.two[name]].name)
    # For each side: the first name of what both hold, by the elements that it shows.
    shared: list[dict[object, str]] = []
    for survey, held in ((before, held_before), (after, held_after)):
        entries = [entry for entry in survey.tensors if entry.name in held]
        shared.append({_shown_memory(entry): entry.name for entry in reversed(entries)})
    left: list[Row] = []
    tied: list[Tied] = []
    for row in rows:
        side = 0 if row.after is None else 1
        entry = row.before if row.after is None else row.after
        if entry is None or _shown_memory(entry) is None:
            other = None
        else:
            other = shared[side].get(_shown_memory(entry))
        if other is None or row.status not in ("added", "removed"):
            left.append(row)
        else:
            tied.append(Tied(row.name, other, side == 0))
    return left, tied


def _shown_memory(entry: Entry) -> object:
    """Return the elements of a storage that a tensor shows, or None for an empty
    tensor.
    """
    tensor = entry.tensor
    return tensor.view if isinstance(tensor, TensorRef) and tensor.numel else None


def _with_optimizer(row: Row, before: Survey, after: Survey) -> Row:
    """The row with what the files say of optimizers."""
    one, two = row.indices
    # The file after says whose state it is; for a removed tensor the file before.
    survey, index = (before, one) if two is None else (after, two)
    parameter = None if index is None else survey.state_parameters.get(index)
    return row._replace(
        parameter=None if parameter is None else survey.tensors[parameter[0]].name,
        in_optimizer=(
            None if one is None else before.in_optimizer[one],
            None if two is None else after.in_optimizer[two],
        ),
    )


def _are_cast(rows: Sequence[Row]) -> bool:
    """Tell whether a cast to another dtype, which is not compared, makes all that
    differs.
    """
    changed = [row for row in rows if row.status == "changed"]
    return bool(changed) and all(row.is_cast for row in changed)


def _has_rename(suggested: Sequence[Rename], rename: Rename) -> bool:
    return any(each[:2] == rename[:2] for each in suggested)


def _full_names(row: Row) -> tuple[str, str]:
    return (row.before.name if row.before else "", row.after.name if row.after else "")


def _trust_rank(role: Role) -> int:
    return ("certain", "strong", "likely", "none").index(role.trust)


def _is_selected(options: Options, *names: str) -> bool:
    return not options.select or options.select.match(*names)


def _refuse_nothing(
    before: Survey,
    after: Survey,
    rows: list[Row],
    options: Options,
) -> None:
    """Raise UsageError where a file holds tensors and none is compared: that must not
    say "same".
    """
    if rows or not (before.tensors or after.tensors):
        return
    if options.select:
        raise UsageError(
            "no tensor matches", path=after.path, hint="--include, --exclude"
        )
    for side, other in ((before, after), (after, before)):
        if not side.tensors:
            path = pasted_path(side.path)
            problem = (
                "no tensors, so there is nothing to compare with "
                f"{show(other.path, None)}"
            )
            raise UsageError(
                problem,
                path=side.path,
                hint=path and f"what it holds: ckpt inspect {path}",
            )
    parts = [
        f"{show(side.path, None)}: {_section_names(side)}" for side in (before, after)
    ]
    raise UsageError("nothing to compare", path=after.path, hint="; ".join(parts))


def _section_names(side: Survey) -> str:
    names = [part.name or "(the root)" for part in side.sections[:8]]
    return ", ".join(show(name, 40) for name in names)


# Source: torch/testing/_comparison.py, the table of default tolerances.
_CLOSE: dict[str, Tolerance] = {
    "float64": (1e-7, 1e-7),
    "float32": (1e-5, 1.3e-6),
    "float16": (1e-5, 1e-3),
    "bfloat16": (1e-5, 1.6e-2),
    "complex32": (1e-5, 1e-3),
    "complex64": (1e-5, 1.3e-6),
    "complex128": (1e-7, 1e-7),
}
"""(absolute, relative) for each dtype, as torch.testing.assert_close has them; integers
are exact.
"""


def tolerance_of(
    atol: float | None, rtol: float | None, *, close: bool
) -> Callable[[str], Tolerance] | None:
    """Return a function that gives the tolerance of a dtype, or None if every byte
    counts.
    """
    if close:
        return lambda dtype: _CLOSE.get(dtype, (0.0, 0.0))
    if atol is None and rtol is None:
        return None
    return lambda dtype: (atol or 0.0, rtol or 0.0)
