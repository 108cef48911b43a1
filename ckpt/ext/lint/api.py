"""The function `ckpt.lint`: folders are walked, and each file is judged by its first
bytes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ckpt.bytes.executor import Task
from ckpt.commands.ls.api import Looking, Sources
from ckpt.evidence.survey import Survey
from ckpt.ext.lint.lint import (
    VALUE_CODES,
    FileGate,
    FileIgnore,
    FileReport,
    LintReport,
)
from ckpt.model.errors import CkptError, Failure, UsageError, about
from ckpt.model.findings import Finding, Rules
from ckpt.model.limits import Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.text import show
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.handle import read
from ckpt.surface.api.keywords import (
    Path,
    Texts,
    codes_of,
    gate_of,
    keyword_texts,
    limits_only,
    model_of,
    rules_of,
    several_of,
)
from ckpt.surface.api.opening import path_of
from ckpt.surface.api.progress import Progress
from ckpt.surface.api.walk import (
    Found,
    choose_executor,
    empty_folders,
    found,
    is_concern,
    nothing_in,
    split_items,
)

if TYPE_CHECKING:
    from ckpt.ext.lint.settings import LintSettings


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
    """Return the findings of checkpoints, of level warning and above: the report of
    `ckpt lint`. Folders are searched.

    `model` is a torch.nn.Module that is checked too, by the name `model_name`, or the
    text `FILE.py:FACTORY`, of which `arg` are the arguments. With `require` a folder
    without a checkpoint is an error, else it is skipped. `config` is a pyproject.toml
    whose table [tool.ckpt.lint] counts, or a ckpt.toml. `per_file_ignores` are texts
    such as `old/*:prefix`. The findings that the file `baseline` holds do not count.
    `jobs` and `progress` work as in `ls`. Raises UsageError.
    """
    from ckpt.ext.lint.baseline_file import baseline_at
    from ckpt.ext.lint.lint import lint_model
    from ckpt.ext.lint.settings import LintSettings, settings_at

    limits_only(limits)
    asked = gate_of("lint", select, ignore, level, fail_on, default=None)
    if level is None:  # a gate that names a finding of level info asks for it
        asked = asked._replace(rules=asked.rules._replace(named=asked.fails))
    settings = config if isinstance(config, LintSettings) else LintSettings()
    if config is not None and not isinstance(config, LintSettings):
        settings = settings_at(os.fsdecode(config))
    asked_ignores = _ignores(per_file_ignores)
    gate = FileGate(
        _with_settings(asked.rules, settings, level),
        asked.rules,
        # --per-file-ignores replaces the table of the file, as --ignore replaces its
        # list.
        () if asked_ignores else _ignores_of(settings),
        asked_ignores,
    )
    known = None if baseline is None else baseline_at(os.fsdecode(baseline))
    live = model_of(model, arg)
    looking = Looking(limits or Limits(), hints, plugins=False)
    given = several_of(
        sources, str, os.PathLike, Checkpoint, what="paths and open checkpoints"
    )
    paths = [path_of(one) for one in given if not isinstance(one, Checkpoint)]
    values = read_values or settings.values
    # Only codes that somebody typed: a file of rules may name them for runs that read
    # values.
    if not values:
        _refuse_unread(asked.rules.select, asked.fails)
    # Open checkpoints cannot go to another process, so they are judged here.
    rows = [
        _judged_open(one, looking, gate, values)
        for one in given
        if isinstance(one, Checkpoint)
    ]
    items, others = split_items(found(paths, picked=skip_others))
    tasks = [Task(_lint_file, (item, looking, gate, values), 1) for item in items]
    for number, row in enumerate(choose_executor(tasks, jobs).each(tasks), 1):
        if progress is not None:
            progress(number, len(tasks))
        rows.append(row)
    # A folder that was typed, and led to no file.
    bare = empty_folders(paths, [row.path for row in rows])
    for path in bare:
        none = nothing_in(path)
        rows.append(
            FileReport(path, (), none.failure(path))
            if require
            else FileReport(path, (), skipped=none.problem)
        )
    if live is not None:
        name = model_name or (model if isinstance(model, str) else type(model).__name__)
        rows.append(_file_report(name, gate, lint_model(live))._replace(is_model=True))
    # As people count: `epoch_10` comes behind `epoch_2`.
    rows.sort(key=lambda row: natural_sort_key(row.path))
    report = LintReport(
        tuple(rows),
        tuple(others),
        asked,
        skip_unreadable,
        settings.path,
        exit_zero=exit_zero,
    )
    # Last, so that a baseline sees the findings as the rules left them.
    return report if known is None else known.applied_to(report)


def _refuse_unread(*codes: Collection[str]) -> None:
    """Raise UsageError for a code that needs the values of tensors: a gate for NaN that
    reads none lets all of them through.
    """
    needing = sorted(VALUE_CODES.intersection(chain.from_iterable(codes)))
    if needing:
        verb = "needs" if len(needing) == 1 else "need"
        raise UsageError(
            f"{' and '.join(needing)} {verb} the values of tensors, which are not read",
            hint="--read-values",
        )


def _ignores(values: Texts) -> tuple[FileIgnore, ...]:
    """The ignores per glob of the call, each `GLOB:CODE[,CODE]`. Raises UsageError."""
    rows = []
    for value in keyword_texts(values):
        # The last colon: a glob may have one too, as in a URL.
        glob, colon, codes = value.rpartition(":")
        if not glob or not colon:
            problem = f"--per-file-ignores {show(value, 60)}: no glob and codes"
            raise UsageError(problem, hint="as in 'old/*:prefix'")
        rows.append(
            FileIgnore(glob, os.getcwd(), codes_of("--per-file-ignores", codes, "lint"))
        )
    return tuple(rows)


def _ignores_of(settings: LintSettings) -> tuple[FileIgnore, ...]:
    """The ignores per glob of a file, whose globs begin at its folder. Raises
    UsageError.
    """
    # Globs of a file count from its folder, wherever the command runs.
    folder = os.path.dirname(os.path.abspath(settings.path))
    return tuple(
        FileIgnore(
            glob, folder, codes_of(f"{settings.table} {show(glob, 60)}", codes, "lint")
        )
        for glob, codes in settings.per_file
    )


def _with_settings(rules: Rules, settings: LintSettings, level: str | None) -> Rules:
    """Return the rules of the call, completed by the rules of a file."""
    # --level of the command line wins over the file.
    lowest = level or settings.level
    own = rules_of(
        "lint",
        settings.select,
        settings.ignore,
        lowest,
        None,
        origin=f"{settings.table} ",
    )
    return Rules(
        rules.select or own.select,
        rules.ignore or own.ignore,
        own.level,
        rules.named,
    )


def _file_report(
    path: str, gate: FileGate, findings: Sequence[Finding], *, values: bool = False
) -> FileReport:
    kept, switched_off = gate.kept(path, findings)
    return FileReport(
        path, kept, switched_off=switched_off, gate=gate, has_values=values
    )


def _lint_file(
    item: Found, looking: Looking, gate: FileGate, values: bool
) -> FileReport:
    """The findings of one file. A file in a folder that never was a checkpoint is
    skipped.
    """
    if item.error is not None or item.skipped is not None:
        error = None if item.error is None else item.error.failure(item.path)
        return FileReport(item.path, (), error, skipped=item.skipped)
    # The whole judgement is inside: a file may change or turn out damaged at any point.
    try:
        with about(item.path), read(item.path, looking.limits) as checkpoint:
            return _judged_survey(item.path, Survey(checkpoint), looking, gate, values)
    except CkptError as error:
        if is_concern(item, error.code):
            return FileReport(item.path, (), error.failure(item.path))
        return FileReport(item.path, (), skipped=error.problem)


def _judged_open(
    opened: Checkpoint, looking: Looking, gate: FileGate, values: bool
) -> FileReport:
    try:
        return _judged_survey(opened.path, opened.survey, looking, gate, values)
    except CkptError as error:
        return FileReport(opened.path, (), error.failure(opened.path))


def _judged_survey(
    path: str, survey: Survey, looking: Looking, gate: FileGate, values: bool
) -> FileReport:
    """The findings of a checkpoint. Raises CkptError, also when it has changed
    meanwhile.
    """
    from ckpt.ext.lint.lint import lint_structure, lint_values

    findings = lint_structure(survey, plan=looking.plan(survey))
    failure: Failure | None = None
    if values:
        numbers = lint_values(survey)
        findings += numbers.findings
        failure = numbers.failure
    report = _file_report(path, gate, findings, values=values)
    report = report._replace(error=failure)
    # A file that was written meanwhile may have findings of two states.
    survey.checkpoint.check_unchanged()
    return report
