"""The function `ckpt.prune`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from ckpt.bytes.executor import Task
from ckpt.ext.prune.finding import Candidate, Found, find_pointers, find_saves
from ckpt.ext.prune.judging import Judged, check_bytes, judge
from ckpt.ext.prune.removal import Folder, Victim
from ckpt.ext.prune.report import PruneReport, PruneRow
from ckpt.ext.prune.rules import Rules, Verdict, apply_rules, best_of
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.text import counted_noun, show
from ckpt.surface.api.keywords import Path, Texts, keyword_texts, limits_only
from ckpt.surface.api.progress import Progress
from ckpt.surface.api.walk import choose_executor


def prune(
    run: Path,
    *,
    keep_last: int = 1,
    keep_best: Texts = (),
    keep_every: int | None = None,
    delete: bool = False,
    quick: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> PruneReport:
    """Say which checkpoints in the folder of a run may go, and why the others stay.
    With `delete`, remove them.

    `keep_best` are names of values, as `"val_loss"`, `"val_loss:min"`. With `quick`,
    the bytes of what stays are not compared with their checksums; else `progress` gets
    the bytes that are read of each of them, and all its bytes. `report.may_go` has the
    rows. Raises CkptError.
    """
    report = planned(
        run,
        keep_last=keep_last,
        keep_best=keep_best,
        keep_every=keep_every,
        quick=quick,
        progress=progress,
        limits=limits,
        plugins=plugins,
    )
    return deleted(report) if delete else report


def planned(
    run: Path,
    *,
    keep_last: int = 1,
    keep_best: Texts = (),
    keep_every: int | None = None,
    quick: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> PruneReport:
    """As `prune`, without removing anything."""
    limits_only(limits)
    for name, count in (("keep_last", keep_last), ("keep_every", keep_every)):
        if count is not None and (type(count) is not int or count < 1):
            raise UsageError(f"--{name.replace('_', '-')} {count}: not a number from 1")
    limits = limits or Limits()
    rules = Rules(
        keep_last, tuple(best_of(text) for text in keyword_texts(keep_best)), keep_every
    )
    path = os.fsdecode(run)
    names = [best.name for best in rules.best]
    # All names and identities first, then the judging, which may take long.
    found = find_saves(path, names, limits, plugins=plugins)
    judged = _judged(found.candidates, names, limits, plugins)
    # A folder without weights is shown as passed over.
    foreign = [
        save.candidate._replace(passed_over=save.why)
        for save in judged
        if not save.is_save
    ]
    judged = [save for save in judged if save.is_save]
    verdicts, warnings = _verdicts(
        judged, rules, found, limits, plugins, progress, quick=quick
    )
    rows = [*_rows(verdicts), *_other_rows([*found.candidates, *foreign])]
    # By series and place; within a place, and for what has none, in the order of names.
    order = {candidate.name: index for index, candidate in enumerate(found.candidates)}
    rows.sort(key=lambda row: order[os.path.basename(row.path)])
    verdict_places = {
        verdict.judged.candidate.path: verdict.place for verdict in verdicts
    }
    rows.sort(
        key=lambda row: (
            # Checkpoints of no series come last.
            row.series is None,
            row.series or "",
            verdict_places.get(row.path, ()),
        )
    )
    # Removing asks once more for these: what goes, goes because they are whole.
    needed = [
        Victim(row.judged.name, row.judged.identity)
        for row in verdicts
        if row.is_counted and row.stays
    ]
    return PruneReport(found.run, rows, warnings, needed)


def _judged(
    candidates: Sequence[Candidate],
    names: Sequence[str],
    limits: Limits,
    plugins: bool,
) -> list[Judged]:
    """Judge all candidates, in several processes where there are many."""
    looked = [
        row for row in candidates if row.identity is not None and not row.is_left_over
    ]
    tasks = [Task(judge, (row, tuple(names), limits, plugins)) for row in looked]
    return list(choose_executor(tasks).each(tasks))


def _verdicts(
    judged: list[Judged],
    rules: Rules,
    found: Found,
    limits: Limits,
    plugins: bool,
    progress: Progress | None,
    *,
    quick: bool,
) -> tuple[list[Verdict], list[str]]:
    """Apply the rules until all that they count on has been read whole."""
    checked: set[str] = set()
    while True:
        verdicts, warnings = apply_rules(
            judged, rules, found.pointers, time.time(), found.run.path
        )
        unchecked = [
            row.judged.name
            for row in verdicts
            if row.is_counted and row.judged.name not in checked
        ]
        # A save that fails its checksums counts no more: the rules are applied anew,
        # and may count on another one.
        if quick or not unchecked:
            return verdicts, warnings
        rows: list[Judged] = []
        for save in judged:
            if save.name in unchecked:
                save = check_bytes(save, limits, plugins, progress)
            rows.append(save)
        judged = rows
        checked.update(unchecked)


def _rows(verdicts: Sequence[Verdict]) -> list[PruneRow]:
    rows = []
    for verdict in verdicts:
        save = verdict.judged
        links = save.candidate.links
        why = verdict.keeps if verdict.goes is None else (verdict.goes,)
        if verdict.goes is not None and save.others:
            why = (*why, f"with {counted_noun(save.others, 'other file')} in it")
        if verdict.goes is not None and links > 1:
            count = counted_noun(links, "hard link")
            why = (*why, f"has {count}, so its bytes stay on the disk")
        rows.append(
            PruneRow(
                save.candidate.path,
                verdict.stays,
                why,
                save.state,
                verdict.series,
                verdict.place,
                verdict.metrics,
                save.identity.nbytes,
                links,
                victim=None if verdict.stays else Victim(save.name, save.identity),
            )
        )
    return rows


def _other_rows(candidates: Sequence[Candidate]) -> list[PruneRow]:
    """The rows of what was not judged: it stays, but for the rest of an interrupted
    removal.
    """
    rows = []
    for row in candidates:
        if row.passed_over is not None:
            rows.append(PruneRow(row.path, True, (row.passed_over,)))
        elif row.is_left_over:
            assert row.identity is not None
            why = ("left of a removal that was interrupted",)
            victim = Victim(row.name, row.identity)
            rows.append(
                PruneRow(
                    row.path, False, why, nbytes=row.identity.nbytes, victim=victim
                )
            )
    return rows


def deleted(report: PruneReport) -> PruneReport:
    """Remove what may go, the oldest first, as long as all that counts is still there
    unchanged. Raises CkptError.

    Raises WriteError before anything is removed where the folder cannot be changed.
    """
    # The folder is opened once, and compared with the one that was judged.
    folder = Folder(report.path, report.run.device, report.run.inode)
    rows: dict[str, PruneRow] = {}
    warnings = list(report.warnings)
    try:
        stop: str | None = None
        # A link may have come since the report was made, as in the time of a question.
        pointers = find_pointers(
            report.run, [row.victim.name for row in report.may_go if row.victim]
        )
        for row in report.may_go:
            assert row.victim is not None
            if row.victim.name in pointers:
                rows[row.path] = row._replace(
                    problem=f"{pointers[row.victim.name]} by now, and it stays"
                )
                continue
            # Before each removal: what stays must still be there.
            changed: list[str] = []
            if stop is None:
                changed = [
                    kept.name for kept in report.needed if not folder.holds(kept)
                ]
            if changed:
                stop = (
                    f"{show(changed[0], 80)}, which stays, has changed or gone, so "
                    "nothing more is removed"
                )
            if stop is not None:
                rows[row.path] = row._replace(problem=stop)
                continue
            outcome = folder.remove(row.victim)
            rows[row.path] = row._replace(
                problem=outcome.problem, is_deleted=outcome.problem is None
            )
        problem = folder.sync() if rows else None
        if problem is not None:
            warnings.append(problem)
    finally:
        folder.close()
    return PruneReport(
        report.run,
        [rows.get(row.path, row) for row in report.rows],
        warnings,
        report.needed,
    )
