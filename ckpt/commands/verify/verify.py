"""`ckpt verify`: whether a file is intact, as far as its bytes can tell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from ckpt.commands.sum.sums import Likeness, Sum
from ckpt.elements.audit import unguarded_bytes
from ckpt.evidence.survey import Survey
from ckpt.evidence.weights import valueless
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.columns import row_looks
from ckpt.model.errors import Failure, UnreadableError, UsageError
from ckpt.model.findings import LOST
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef, parts_of
from ckpt.model.text import (
    Json,
    and_more,
    counted_noun,
    show,
    show_folded_names,
    size_text,
)
from ckpt.surface.reports import document_head, shown_as_html
from ckpt.tree.find import tied_names

Verdict = Literal["intact", "damaged", "unreadable"]
"""`unreadable_report`: the file is missing, may not be read, is not a checkpoint, or
some of its bytes could not be read.
"""

EXIT_CODES: dict[Verdict, int] = {"intact": 0, "damaged": 1, "unreadable": 2}


class Problem(NamedTuple):
    """A damaged part of a file, and the tensors in it."""

    what: str
    tensors: tuple[str, ...] = ()


@shown_as_html("ckpt.commands.verify.text", "html_verify")
class VerifyReport(NamedTuple):
    """The verdict on one file. `checked` says what was compared, `not_checked` what
    could not be.
    """

    path: str
    format: str | None
    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    whole: tuple[str, ...] | None = None
    """The tensors of a damaged file whose bytes are all there and match their
    checksums, where these were compared.
    """
    lost: tuple[str, ...] | None = None
    called: tuple[str, ...] = ()
    """The functions that loading the file calls and ckpt does not know. An intact file
    can do harm.
    """
    error: Failure | None = None
    """The reason why the file is unreadable."""
    hint: str | None = None
    """The command that writes what is whole."""
    doubts: tuple[str, ...] = ()
    """The signs that files of several saves are mixed. They do not prove it."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 intact, 1 damaged, 2 unreadable."""
        return EXIT_CODES[self.verdict]

    def __repr__(self) -> str:
        why = "" if self.error is None else f", {show(self.error.message, 120)}"
        return f"<ckpt.VerifyReport {show(self.path)}: {self.verdict}{why}>"

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.verify`; docs/json.md is its contract."""
        return {
            **document_head("ckpt.verify", 2),
            "file": {"path": self.path, "format": self.format},
            "verdict": self.verdict,
            "error": None if self.error is None else self.error._asdict(),
            "problems": [
                {"what": row.what, "tensors": list(row.tensors)}
                for row in self.problems
            ],
            "checked": list(self.checked),
            "not_checked": list(self.not_checked),
            "whole": None if self.whole is None else list(self.whole),
            "lost": None if self.lost is None else list(self.lost),
            "hint": self.hint,
            "called": list(self.called),
            "doubts": list(self.doubts),
        }


UNREAD = "the bytes themselves (--quick)"
"""The part that `--quick` does not check."""


_BARE = "has no checksums"
"""The end of the reason why the values of a whole file are unchecked."""


def with_root(
    report: VerifyReport, expected: str, found: str, *, is_whole: bool
) -> VerifyReport:
    """The report on an intact file, compared with the hash of all its names and
    values. Without `is_whole` the hash is of a section alone.
    """
    if expected == found:
        left = report.not_checked
        if is_whole:
            left = tuple(row for row in left if f"{_BARE})" not in row)
        return report._replace(
            checked=(*report.checked, "the names and values, as --root says"),
            not_checked=left,
        )
    problem = Problem(
        f"the hash of its names and values is {found}, and not the one of --root"
    )
    return report._replace(verdict="damaged", problems=(*report.problems, problem))


ODD = (
    "trailing-data",
    "unread-file",
    "dead-files",
    "unverified-size",
    "no-index",
    "unassigned",
)
"""Findings about bytes that no loader reads, and about what nothing in the checkpoint
can show.
"""


def judge_structure(checkpoint: Checkpoint) -> VerifyReport:
    """Judge a checkpoint by what reading has shown.

    That is the container, the place of each tensor, the files of a folder and the index
    of shards.
    """
    account = checkpoint.account
    losses = account.noticed(*LOST)
    problems: list[Problem] = []
    # By the order of the codes, not that of the notices: the worst stands first.
    for code in _DAMAGE:
        for notice in account.noticed(code):
            way_out = f" ({notice.hint})" if notice.hint else ""
            problems.append(Problem(notice.message + way_out, notice.tensors))
    checked = [counted_noun(len(checkpoint.tensors), "tensor")]
    odd = account.messages(ODD)
    # The words for the parts: of an archive, of a training on several ranks, of a
    # folder.
    if checkpoint.traits.is_archive:
        checked.append(f"all of {counted_noun(len(checkpoint.parts), 'member')} read")
    elif checkpoint.traits.is_set:
        checked.append(f"{counted_noun(len(checkpoint.parts), 'file')} of ranks")
    elif checkpoint.members:
        checked.append(counted_noun(len(checkpoint.parts), "file"))
    # A folder may hold a set with an index among its files.
    parts = (checkpoint, *_member_checkpoints(checkpoint))
    indexed = [part for part in parts if _is_indexed(part)]
    # A distributed checkpoint: its metadata lists where each item lies.
    if checkpoint.traits.fills_a_state and not losses:
        data = [
            part
            for part in _member_checkpoints(checkpoint) or [checkpoint]
            if part.traits.fills_a_state
        ]
        checked.append(
            "the metadata and "
            f"{counted_noun(sum(len(part.parts) for part in data), 'data file')} agree"
        )
    if indexed and not account.has_noticed("no-index"):
        checked.append("index and shards agree")
    for part in indexed:
        odd += _index_doubts(part)
    empty = valueless(checkpoint)
    if empty:
        odd.append(
            f"{counted_noun(len(empty), 'tensor')} on the device meta, saved without "
            f"values: {show_folded_names(empty)}"
        )
    # Signs that files of several saves lie together: doubts, for no byte proves it.
    mixed = Survey(checkpoint).mixed
    doubts = account.messages(("mixed-steps",))
    if mixed is not None:
        doubts.append(mixed.text)
    report = _make_report(checkpoint, problems, checked, odd)
    report = report._replace(doubts=tuple(doubts))
    if not losses:
        return report
    # Only a damaged file has these lists; `ckpt salvage` writes the whole tensors.
    lost_names = dict.fromkeys(account.lost_names)
    names = dict.fromkeys(entry.name for entry in checkpoint.tensors)
    return report._replace(
        whole=tuple(name for name in names if name not in lost_names),
        # A file of a rank that is gone leaves no tensor behind, only its name.
        lost=(
            *(name for name in names if name in lost_names),
            *(name for name in lost_names if name not in names),
        ),
    )


_DAMAGE = (
    "shards",
    "unfinished",
    "stale-index",
    *LOST,
    "ranks-differ",
    "damaged-file",
)
"""The codes of notices that mean damage, in the order of the report."""


def _is_indexed(checkpoint: Checkpoint) -> bool:
    """Tell whether an index puts a checkpoint together from several files."""
    traits = checkpoint.traits
    if traits.is_archive or traits.is_set or traits.fills_a_state:
        return False
    return bool(checkpoint.parts) and not checkpoint.members


def _member_checkpoints(checkpoint: Checkpoint) -> list[Checkpoint]:
    return [member.checkpoint for member in checkpoint.members]


def _index_doubts(checkpoint: Checkpoint) -> list[str]:
    """A line when the index counts other bytes than the shards hold, as tied tensors
    make it.

    No loader reads that number, so it is not damage.
    """
    if checkpoint.index_bytes is None:
        return []
    every: list[TensorRef] = []
    for entry in checkpoint.tensors:
        every += parts_of(entry.tensor)
    # Some writers count a tied tensor once, others under each name.
    ranges = {(part.storage, part.extent): part.nbytes for part in every}
    held = {sum(part.nbytes for part in every), sum(ranges.values())}
    if checkpoint.index_bytes in held:
        return []
    return [
        (
            f"total_size of the index ({checkpoint.index_bytes:,} bytes, the shards "
            f"hold {max(held):,})"
        )
    ]


def with_checksums(
    report: VerifyReport,
    checkpoint: Checkpoint,
    damage: Sequence[tuple[str, str | None]],
    nbytes: int,
    unchecked: int,
    unread: Sequence[str] = (),
    compared: Sequence[Sum] = (),
) -> VerifyReport:
    """The report with what the file's own checksums say. `damage` is (what, the id of
    the storage), and `compared` are the tensors whose stored sums were compared.

    With something `unread` the file is not known to be intact, and not all that is
    damaged is known.
    """
    problems = list(report.problems)
    for what, storage in damage:
        problems.append(Problem(what, _storage_tensors(checkpoint, storage)))
    checked = list(report.checked)
    if nbytes:
        is_whole = not damage and not unread
        checked.append(
            "all checksums match" if is_whole else f"checksums of {size_text(nbytes)}"
        )
    not_checked = list(report.not_checked)
    # Nothing has a checksum, so all bytes are unchecked.
    if not nbytes and not unread:
        unchecked = sum(storage.nbytes for storage in row_looks(checkpoint.storages))
    elif unchecked:
        # A file without checksums counts with its header here, and values are fewer.
        tensors = [entry.tensor for entry in checkpoint.tensors]
        unchecked = min(unchecked, sum(unguarded_bytes(tensors)))
    unchecked = max(0, unchecked - sum(row.unguarded for row in compared))
    if unchecked:
        if nbytes:
            why = "records without a checksum"
        else:
            why = f"{checkpoint.traits.label} {_BARE}"
        not_checked.append(f"values of {size_text(unchecked)} ({why})")
    judged = _make_report(checkpoint, problems, checked, not_checked)
    # The problems that were added here are of bytes; those before are of the structure.
    damaged = [row.tensors for row in problems[len(report.problems) :]]
    whole, lost = _split_tensors(checkpoint, report, damaged)
    judged = judged._replace(whole=whole, lost=lost, doubts=report.doubts)
    return _mark_unread(judged, unread)


def _split_tensors(
    checkpoint: Checkpoint, report: VerifyReport, damaged: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the whole and the lost tensors of a checkpoint of which some are lost or
    do not match their checksums.
    """
    if report.whole is None and not damaged:
        return None, None
    bad = set(report.lost or ()).union(*damaged)
    whole: list[str] = []
    lost: list[str] = []
    for entry in checkpoint.tensors:
        (lost if entry.name in bad else whole).append(entry.name)
    there = {entry.name for entry in checkpoint.tensors}
    lost += [name for name in report.lost or () if name not in there]
    return tuple(whole), tuple(lost)


def _mark_unread(report: VerifyReport, unread: Sequence[str]) -> VerifyReport:
    """The report, where some of the bytes could not be read."""
    if not unread:
        return report
    text = f"not all could be read: {and_more(list(unread), 3, '; ')}"
    return report._replace(
        verdict="unreadable",
        problems=(Problem(text), *report.problems),
        error=Failure(UnreadableError.code, text),
    )


def _storage_tensors(checkpoint: Checkpoint, storage: str | None) -> tuple[str, ...]:
    """The names of the tensors over a storage."""
    if storage is None:
        return ()
    names = []
    for entry in checkpoint.tensors:
        parts = parts_of(entry.tensor)
        if any(part.numel and part.storage.id == storage for part in parts):
            names.append(entry.name)
    return tuple(names)


def with_likeness(
    checkpoint: Checkpoint, report: VerifyReport, comparison: Likeness
) -> VerifyReport:
    """The report with what differs from another save, whose shapes settle what no file
    records.
    """
    problems = tuple(Problem(what, names) for what, names in comparison.rows)
    if problems:
        return report._replace(
            verdict=report.verdict if report.verdict == "unreadable" else "damaged",
            problems=(*report.problems, *problems),
        )
    # Sums record no shapes, so they settle no size.
    settled: list[str] = []
    if comparison.has_shapes:
        settled = checkpoint.account.messages(("unverified-size",))
    kept = tuple(row for row in report.not_checked if row not in settled)
    return report._replace(
        checked=(*report.checked, comparison.checked), not_checked=kept
    )


def unnamed_tensors(survey: Survey, expected: Sequence[Sum]) -> list[str]:
    """Return the tensors that the sums do not name, of the sections of which they name
    some.
    """
    # A section of which no tensor is named was not summed, and is not missing.
    named = {row.name for row in expected}
    others = tied_names(survey.tensors)
    # The sum of one name is that of all names of one memory.
    known = named | {others.get(name, name) for name in named}
    unnamed: list[str] = []
    for section in survey.sections:
        names = [entry.name for entry in section.entries]
        if named.isdisjoint(names):
            continue
        unnamed += [
            name
            for name in names
            if name not in named and others.get(name, name) not in known
        ]
    return unnamed


def _refuse_sums_of_files(checkpoint: Checkpoint, expected: Sequence[Sum]) -> None:
    """Raise UsageError for a list of whole files, as sha256sum prints it: its names are
    paths, and a file with no such tensor is not damaged.
    """
    ending = os.path.splitext(checkpoint.path)[1]
    if ending and all(row.name.endswith(ending) for row in expected):
        raise UsageError(
            "the sums are of files, as sha256sum prints them, and not of tensors",
            path=checkpoint.path,
            hint="sha256sum -c LIST compares them",
        )


def judge_by_sums(
    checkpoint: Checkpoint,
    expected: Sequence[Sum],
    current: dict[str, Sum],
    unnamed: Sequence[str] = (),
) -> VerifyReport:
    """Compare a checkpoint with stored sums. `current` are its sums now, `unnamed` the
    tensors without a stored one.

    What reading has shown is judged too: a folder of which a file is damaged is not
    intact because its sums match.
    """
    shown = judge_structure(checkpoint)
    # A stored sum may be of a tensor that is gone.
    matches = {row.name: current[row.name] for row in expected if row.name in current}
    unread = [
        f"{show(name, 80)}: {row.unread}"
        for name, row in matches.items()
        if row.unread is not None
    ]
    other = tuple(
        row.name
        for row in expected
        if row.name in matches
        and matches[row.name].unread is None
        and matches[row.name].digest != row.digest
    )
    if not matches:
        _refuse_sums_of_files(checkpoint, expected)
    # A tied tensor that was saved once is found by its other name.
    held = {_memory_key(row) for row in expected if row.name in matches}
    gone = tuple(
        row.name
        for row in expected
        if row.name not in matches and _memory_key(row) not in held
    )
    problems = [
        Problem(f"{counted_noun(len(names), 'tensor')} {what}", names)
        for names, what in ((other, "with another sum"), (gone, "missing"))
        if names
    ]
    verb = "matches" if len(expected) == 1 else "match"
    done: list[str] = []
    if not problems and not unread:
        done.append(f"{counted_noun(len(expected), 'stored sum')} {verb}")
        tied = [row.name for row in expected if row.name not in matches]
        if tied:
            done.append(f"{show_folded_names(tied, 3)} by a tied name")
    rest: list[str] = []
    if unnamed:
        count = counted_noun(len(unnamed), "tensor")
        names_text = show_folded_names(unnamed, 3)
        rest.append(f"{count} that the sums do not name ({names_text})")
    report = _make_report(checkpoint, [*shown.problems, *problems], done, rest)
    report = report._replace(whole=shown.whole, lost=shown.lost, doubts=shown.doubts)
    return _mark_unread(report, unread)


def _memory_key(row: Sum) -> tuple[str, str]:
    """Return the same for the stored sums of all names of one tensor.

    A file of safetensors, or transformers when it saves, writes such a tensor once,
    under one of them.
    """
    return row.tied or row.name, row.digest


def with_recorded(
    report: VerifyReport, problems: Sequence[Problem], checked: str, *, quick: bool
) -> VerifyReport:
    """The report with what differs from a list of recorded checksums; `quick` says that
    no bytes were read.
    """
    if problems:
        verdict: Verdict = (
            report.verdict if report.verdict == "unreadable" else "damaged"
        )
        return report._replace(verdict=verdict, problems=(*report.problems, *problems))
    # Recorded checksums alone do not say that the bytes still match them.
    left = (UNREAD,) if quick else ()
    return report._replace(
        checked=(*report.checked, checked), not_checked=(*report.not_checked, *left)
    )


def damaged(
    path: str,
    problem: str,
    whole: Sequence[str] | None,
    lost: Sequence[str] | None,
    rows: Sequence[str] = (),
    unsound: Sequence[str] = (),
    unproved: Sequence[tuple[str, tuple[str, ...]]] = (),
) -> VerifyReport:
    """The report on a damaged file; `whole` and `lost` are the tensors of one of which
    a part is left.

    `rows` say what lies in the files of a folder. The bytes of lost tensors that are
    `unsound` are there, and others than their checksums say. `unproved` are sentences
    on whole tensors whose bytes no checksum proves, with their names.
    """
    there = set(unsound)
    # Tensors whose bytes are there are listed by their own sentence below.
    gone = tuple(name for name in lost or () if name not in there)
    problems = [Problem(problem, gone), *map(Problem, rows)]
    if unsound:
        verb = "do not match their checksums"
        if len(unsound) == 1:
            verb = "does not match its checksum"
        problems.append(
            Problem(f"{counted_noun(len(unsound), 'tensor')} {verb}", tuple(unsound))
        )
    problems += [Problem(what, names) for what, names in unproved]
    return VerifyReport(
        path,
        None,
        "damaged",
        tuple(problems),
        whole=None if whole is None else tuple(whole),
        lost=None if lost is None else tuple(lost),
    )


def unreadable_report(path: str, error: Failure) -> VerifyReport:
    """The report on a file about which nothing is known."""
    return VerifyReport(path, None, "unreadable", (Problem(str(error)),), error=error)


def _make_report(
    checkpoint: Checkpoint,
    problems: Sequence[Problem],
    checked: Sequence[str],
    not_checked: Sequence[str],
) -> VerifyReport:
    verdict: Verdict = "damaged" if problems else "intact"
    called: list[str] = []
    for row in checkpoint.imports:
        if row.group == "called":
            called.append(row.calls[0] if row.calls else f"{row.module}.{row.name}")
    return VerifyReport(
        checkpoint.path,
        checkpoint.format,
        verdict,
        tuple(problems),
        tuple(checked),
        tuple(not_checked),
        called=tuple(called),
    )
