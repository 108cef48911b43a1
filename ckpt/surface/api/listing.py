"""The functions that look at many files: `ls` and `lint`. Folders are walked, and each file is judged by its first bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckpt.bytes.executor import Task
from ckpt.bytes.location import is_cached_model
from ckpt.commands.ls.ls import RUNS_CODE, LsReport, LsRow, in_order
from ckpt.evidence.survey import Survey
from ckpt.ext.lint.lint import FileGate, FileIgnore, FileReport, LintReport
from ckpt.model.errors import CkptError, UsageError, about
from ckpt.model.findings import LEVELS, Finding, Gate, Rules
from ckpt.model.limits import Limits
from ckpt.model.names import natural
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.handle import read
from ckpt.surface.api.keywords import (
    Path,
    Progress,
    Texts,
    codes_of,
    gate_of,
    limits_only,
    model_of,
    rules_of,
    several_of,
    text_only,
    texts,
)
from ckpt.surface.api.opening import path_of
from ckpt.surface.api.walk import Found, empty, found, is_concern, many, nothing_in, parted

if TYPE_CHECKING:
    from ckpt.ext.lint.settings import LintSettings
    from ckpt.model.findings import Plan

Sources = Path | Checkpoint | Sequence[Path | Checkpoint]
"""A path or an open checkpoint, or several."""


# --- ls ---------------------------------------------------------------------------------------------------------------

_ORDERS: dict[str, Callable[[LsRow], tuple[int, ...]] | None] = {
    "name": None,
    "size": lambda row: (-row.nbytes,),
    "params": lambda row: (-row.parameters - row.unknown,),
    "findings": lambda row: _worst(row),
}
"""Words of `--sort` -> the key of a row: the largest first. Equal rows stay in the order of their names."""


def _worst(row: LsRow) -> tuple[int, int, int]:
    """Return the sort key of a row: files that run code come first, unreadable files last.

    Between them the most serious finding decides, then how many codes there are.
    """
    levels = [LEVELS.index(finding.level) for finding in row.findings]
    first = 2 if row.error is not None else 0 if row.loads == RUNS_CODE else 1
    return first, min(levels, default=len(LEVELS)), -len(row.codes)


def ls(
    sources: Sources,
    *,
    sort: str = "name",
    select: Texts = (),
    ignore: Texts = (),
    level: str | None = None,
    fail_on: Texts = (),
    skip_unreadable: bool = False,
    hints: bool = True,
    jobs: int | None = 1,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> LsReport:
    """List checkpoints, one row each: the report of `ckpt ls`. Paths to folders are searched.

    A file that cannot be read is a row with an `error`. `jobs` processes read many files, None as many as there are
    cores; they are forks of this one. `progress` gets the files that are done, and all files. Raises UsageError.
    """
    text_only(sort=sort)
    limits_only(limits)
    gate = gate_of("ls", select, ignore, level, fail_on)
    every = several_of(sources, str, os.PathLike, Checkpoint, what="paths and open checkpoints")
    listing = Listing(
        every,
        gate,
        sort,
        skip_unreadable=skip_unreadable,
        hints=hints,
        limits=limits,
        plugins=plugins,
    )
    listing.read(jobs, progress)
    return listing.report


class Listing:
    """The rows so far of the files that paths lead to. Whoever interrupts `read` has them."""

    def __init__(
        self,
        sources: Sequence[Path | Checkpoint],
        gate: Gate,
        sort: str,
        *,
        skip_unreadable: bool,
        hints: bool,
        limits: Limits | None,
        plugins: bool,
    ) -> None:
        if sort not in _ORDERS:
            raise UsageError(f"--sort {show(sort, 40)}: not one of {' '.join(_ORDERS)}")
        self._open = [given for given in sources if isinstance(given, Checkpoint)]
        self._paths = [path_of(given) for given in sources if not isinstance(given, Checkpoint)]
        self._gate = gate
        self._order = _ORDERS[sort]
        self._skip_unreadable = skip_unreadable
        self._looking = _Looking(limits or Limits(), hints, plugins)
        self._rows: list[LsRow] = []
        self._others: list[str] = []
        self._skipped: list[tuple[str, str]] = []

    @property
    def report(self) -> LsReport:
        """The report on what was read so far."""
        rows = in_order(self._rows)
        if self._order is not None:
            rows.sort(key=self._order)
        return LsReport(
            tuple(rows), tuple(self._others), tuple(self._skipped), self._gate, self._skip_unreadable
        )

    def read(
        self,
        jobs: int | None,
        progress: Progress | None,
        skip: Callable[[str, str], None] | None = None,
    ) -> None:
        """Add the open checkpoints, and what the paths lead to. `skip` gets each path that is not looked at, and why."""
        for checkpoint in self._open:
            self._add(self._looking.row(checkpoint.survey))
        items, self._others = parted(found(self._paths, plugins=self._looking.plugins))
        self._skipped = [(item.path, item.skipped) for item in items if item.skipped is not None]
        if skip is not None:
            for path, why in self._skipped:
                skip(path, why)
        items = [item for item in items if item.skipped is None]
        tasks = [Task(_row, (item, self._looking)) for item in items]
        for number, (item, row) in enumerate(zip(items, many(tasks, jobs).each(tasks), strict=True), 1):
            if progress is not None:
                progress(number, len(items))
            if row is None:
                self._others.append(item.path)
            else:
                self._add(row)

    def _add(self, row: LsRow) -> None:
        self._rows.append(row._replace(findings=self._gate.rules.kept(row.findings)))


class _Looking(NamedTuple):
    """The settings for reading each file."""

    limits: Limits
    hints: bool
    plugins: bool

    def plan(self, survey: Survey) -> Plan | None:
        """Return what finds the commands of the hints."""
        if not self.hints:
            return None
        # Named as text: who looks at a file loads what writes only where a finding needs a command.
        plan: Plan = import_module("ckpt.surface.api.advice").planning(survey)
        return plan

    def row(self, survey: Survey) -> LsRow:
        """The row of an open checkpoint. Raises NotOpenedError when it has changed."""
        from ckpt.commands.ls.ls import ls as job

        row = job(survey, self.plan(survey))
        survey.checkpoint.check_unchanged()
        return row


def _row(item: Found, looking: _Looking) -> LsRow | None:
    """Return the row of one file, or None for a file in a folder that is no checkpoint."""
    if item.error is not None:
        return LsRow(item.path, error=item.error.failure(item.path))
    try:
        opened = read(item.path, looking.limits, plugins=looking.plugins)
        with about(item.path), opened as checkpoint:
            row = looking.row(Survey(checkpoint))
            # The folder of a cached model is shorter than the snapshot in it, and opens the same.
            return row._replace(path=item.path) if is_cached_model(item.path) else row
    except CkptError as error:
        return LsRow(item.path, error=error.failure(item.path)) if is_concern(item, error.code) else None


# --- lint -------------------------------------------------------------------------------------------------------------


def lint(
    sources: Sources = (),
    *,
    select: Texts = (),
    ignore: Texts = (),
    level: str | None = None,
    fail_on: Texts = (),
    read_values: bool = False,
    model: Any = None,
    model_name: str | None = None,
    arg: Texts = (),
    skip_unreadable: bool = False,
    skip_others: bool = False,
    require: bool = False,
    per_file_ignores: Texts = (),
    exit_zero: bool = False,
    baseline: Path | None = None,
    config: Path | LintSettings | None = None,
    hints: bool = True,
    jobs: int | None = 1,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> LintReport:
    """Return the findings of checkpoints, of level warning and above: the report of `ckpt lint`. Folders are searched.

    `model` is a torch.nn.Module that is checked too, by the name `model_name`, or the text `FILE.py:FACTORY`, of which
    `arg` are the arguments.
    With `require` a folder without a checkpoint is an error, else it is skipped.
    `config` is a pyproject.toml whose table [tool.ckpt.lint] counts, or a ckpt.toml. `per_file_ignores` are texts such
    as `old/*:prefix`. The findings that the file `baseline` holds do not count. `jobs` and `progress` work as in
    `ls`. Raises UsageError.
    """
    from ckpt.ext.lint.lint import lint_model
    from ckpt.ext.lint.settings import LintSettings, settings_at
    from ckpt.surface.api.baseline import baseline_at

    limits_only(limits)
    asked = gate_of("lint", select, ignore, level, fail_on, default=None)
    settings = config if isinstance(config, LintSettings) else LintSettings()
    if config is not None and not isinstance(config, LintSettings):
        settings = settings_at(os.fsdecode(config))
    asked_ignores = _ignores(per_file_ignores)
    gate = FileGate(
        _with_settings(asked.rules, settings, level),
        asked.rules,
        () if asked_ignores else _ignores_of(settings),
        asked_ignores,
    )
    known = None if baseline is None else baseline_at(os.fsdecode(baseline))
    live = model_of(model, arg)
    looking = _Looking(limits or Limits(), hints, plugins=False)
    given = several_of(sources, str, os.PathLike, Checkpoint, what="paths and open checkpoints")
    paths = [path_of(one) for one in given if not isinstance(one, Checkpoint)]
    values = read_values or settings.values
    rows = [_judged_open(one, looking, gate, values) for one in given if isinstance(one, Checkpoint)]
    items, others = parted(found(paths, picked=skip_others))
    tasks = [Task(_linted, (item, looking, gate, values), 1) for item in items]
    for number, row in enumerate(many(tasks, jobs).each(tasks), 1):
        if progress is not None:
            progress(number, len(tasks))
        rows.append(row)
    bare = empty(paths, [row.path for row in rows])
    for path in bare:
        none = nothing_in(path)
        rows.append(
            FileReport(path, (), none.failure(path))
            if require
            else FileReport(path, (), skipped=none.problem)
        )
    if live is not None:
        name = model_name or (model if isinstance(model, str) else type(model).__name__)
        rows.append(_judged(name, gate, lint_model(live))._replace(is_model=True))
    rows.sort(key=lambda row: natural(row.path))
    report = LintReport(
        tuple(rows), tuple(others), asked, skip_unreadable, settings.path, exit_zero=exit_zero
    )
    return report if known is None else known.applied_to(report)


def _ignores(values: Texts) -> tuple[FileIgnore, ...]:
    """The ignores per glob of the call, each `GLOB:CODE[,CODE]`. Raises UsageError."""
    rows = []
    for value in texts(values):
        glob, colon, codes = value.rpartition(":")
        if not glob or not colon:
            problem = f"--per-file-ignores {show(value, 60)}: no glob and codes"
            raise UsageError(problem, hint="as in 'old/*:prefix'")
        rows.append(FileIgnore(glob, os.getcwd(), codes_of("--per-file-ignores", codes, "lint")))
    return tuple(rows)


def _ignores_of(settings: LintSettings) -> tuple[FileIgnore, ...]:
    """The ignores per glob of a file, whose globs begin at its folder. Raises UsageError."""
    folder = os.path.dirname(os.path.abspath(settings.path))
    return tuple(
        FileIgnore(glob, folder, codes_of(f"{settings.table} {show(glob, 60)}", codes, "lint"))
        for glob, codes in settings.per_file
    )


def _with_settings(rules: Rules, settings: LintSettings, level: str | None) -> Rules:
    """Return the rules of the call, completed by the rules of a file."""
    lowest = level or settings.level
    own = rules_of("lint", settings.select, settings.ignore, lowest, None, origin=f"{settings.table} ")
    return Rules(rules.select or own.select, rules.ignore or own.ignore, own.level)


def _judged(path: str, gate: FileGate, findings: Sequence[Finding]) -> FileReport:
    kept, switched_off = gate.kept(path, findings)
    return FileReport(path, kept, switched_off=switched_off)


def _linted(item: Found, looking: _Looking, gate: FileGate, values: bool) -> FileReport:
    """The findings of one file. A file in a folder that never was a checkpoint is skipped."""
    if item.error is not None or item.skipped is not None:
        error = None if item.error is None else item.error.failure(item.path)
        return FileReport(item.path, (), error, skipped=item.skipped)
    try:
        with about(item.path), read(item.path, looking.limits) as checkpoint:
            return _judged_survey(item.path, Survey(checkpoint), looking, gate, values)
    except CkptError as error:
        if is_concern(item, error.code):
            return FileReport(item.path, (), error.failure(item.path))
        return FileReport(item.path, (), skipped=error.problem)


def _judged_open(opened: Checkpoint, looking: _Looking, gate: FileGate, values: bool) -> FileReport:
    try:
        return _judged_survey(opened.path, opened.survey, looking, gate, values)
    except CkptError as error:
        return FileReport(opened.path, (), error.failure(opened.path))


def _judged_survey(path: str, survey: Survey, looking: _Looking, gate: FileGate, values: bool) -> FileReport:
    """The findings of a checkpoint. Raises CkptError, also when it has changed meanwhile."""
    from ckpt.ext.lint.lint import lint as job

    report = _judged(path, gate, job(survey, values=values, plan=looking.plan(survey)))
    survey.checkpoint.check_unchanged()
    return report
