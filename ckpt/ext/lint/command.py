"""`ckpt lint`: one gate for every file: one line per finding, 1 when one is left."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

from ckpt.bytes import target
from ckpt.ext.lint.api import lint
from ckpt.ext.lint.baseline_file import Baseline, baseline_at, count_known
from ckpt.ext.lint.lint import LintReport
from ckpt.ext.lint.settings import (
    LintSettings,
    nearest_settings,
    settings_at,
    unread_settings,
)
from ckpt.ext.lint.text import (
    github_lines,
    junit_lines,
    lint_lines,
    lint_summary,
    sarif_log,
    statistics_lines,
)
from ckpt.model.errors import UsageError
from ckpt.model.findings import CATALOGUE
from ckpt.model.limits import Limits
from ckpt.model.names import count_endings
from ckpt.model.text import and_more, counted_noun, pasted_path, show
from ckpt.surface.api.keywords import model_of
from ckpt.surface.api.walk import others_text
from ckpt.surface.cli import output
from ckpt.surface.cli.fencing import fence_in
from ckpt.surface.cli.inputs import (
    TROUBLE,
    gate_given,
    may_be_many,
    named_paths,
    refuse_factory,
)
from ckpt.surface.cli.start import NothingListedError

_FORMS = ("text", "json", "github", "sarif", "junit")


def command(
    paths: list[str],
    *,
    read_values: bool,
    model: str | None,
    arg: list[str] | None,
    files_from: list[str] | None,
    skip_unreadable: bool,
    skip_others: bool,
    require: bool,
    json: bool,
    output_format: str | None,
    others: bool,
    statistics: bool,
    jobs: int | None,
    config: str | None,
    no_config: bool,
    baseline: str | None,
    write_baseline: bool,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Check files and print their findings. Exit code 1 for a warning or an error, 2
    for a file that cannot be read.

    Findings of level info are left out, unless --level or --select asks for them.
    Tensors are read only with --read-values. The table [tool.ckpt.lint] of the nearest
    pyproject.toml, or [lint] of a ckpt.toml, from the current folder upwards, may set
    select, ignore, level, read-values, and ignores for some files. It cannot switch off
    findings of level error.

    \b
    ckpt lint runs/ --ignore cuda
    ckpt lint --model model.py:build --select list-modules
    """
    # --json is the short form of --output-format json.
    form = output_format or ("json" if json else "text")
    if form not in _FORMS:
        raise UsageError(
            f"--output-format {show(form, 40)}: not one of {' '.join(_FORMS)}"
        )
    # Wrong codes are an error before any file is opened.
    gate_given("lint", keywords, default=None)
    settings = _settings(config, is_off=no_config)
    # Whoever names a file of rules means no other one.
    unread = [] if config is not None or no_config else unread_settings(paths, settings)
    live = model_of(model, arg)
    names = (
        _list_paths(paths, files_from, require=require)
        if paths or files_from or live is None
        else []
    )
    # `lint model.py:build` is a mistake for --model.
    for name in names:
        refuse_factory(name, "--model")
    # The file of rules may ask for it too, and it decides on the fence.
    reads_tensors = read_values or settings.values
    known = None
    if write_baseline:
        if baseline is None:
            raise UsageError(
                "--write-baseline needs a file to write", hint="--baseline FILE"
            )
        known = baseline_at(baseline, is_new=True)
    fence_in(
        names,
        workers=reads_tensors or may_be_many(names, jobs),
        own_code=live is not None,
        # At the end, which the fence would forbid.
        writing="--write-baseline" if write_baseline else None,
    )
    with output.progress_meter("checking", "files") as progress:
        report = lint(
            names,
            read_values=read_values,
            model=live,
            model_name=model,
            skip_unreadable=skip_unreadable,
            skip_others=skip_others,
            require=require,
            config=settings,
            # A baseline that is renewed needs all findings, the known ones too.
            baseline=None if write_baseline else baseline,
            hints=form == "json",
            jobs=jobs,
            progress=progress,
            limits=limits,
            **keywords,
        )
    if known is not None:
        known = known.renewed(report)
        _write_baseline(known)
        # Now all of them are known, and the exit code says so.
        report = known.applied_to(report)
    # --quiet must not hide why the exit code is 2.
    say = output.write_complaint if report.exit_code == TROUBLE else output.write_talk
    for row in report.files:
        if row.error is not None and form == "text":
            say(output.unread_line(row.path, row.error))
        elif row.skipped is not None:
            output.write_skipped(row.path, row.skipped)
    _tell_switched_off(report)
    for path in unread:
        text = (
            f"ckpt: {show(path, None)}: not read: rules count from the current folder "
            "upwards"
        )
        pasted = pasted_path(path)
        output.write_talk(text, None if pasted is None else f"--config {pasted}")
    _tell_baseline(report, is_new=write_baseline)
    if others:
        output.list_others(report.others)
    _write_report(report, form, statistics=statistics)
    if form == "text":
        more = f" · {others_text(report.others)}" + ("" if others else " (--others)")
        output.write_conclusion(
            lint_summary(report.files) + (more if report.others else "")
        )
    return report.exit_code


def _list_paths(
    paths: list[str], files_from: list[str] | None, *, require: bool
) -> list[str]:
    """The PATHs. A list without a name is said, and gives a report of nothing: SARIF
    and JUnit are files that others read.
    """
    try:
        return named_paths(paths, files_from, require=require)
    except NothingListedError as nothing:
        output.write_conclusion(f"ckpt: {nothing}")
        return []


def _write_report(report: LintReport, form: str, *, statistics: bool) -> None:
    others = count_endings(report.others)
    if form == "json":
        output.write_json(report.to_json())
    elif form == "sarif":
        output.write_json(sarif_log(report.files, others))
    elif form in ("github", "junit"):
        lines = (
            github_lines(report.files)
            if form == "github"
            else junit_lines(report.files, others)
        )
        # No wrapping: a line is one command of GitHub, or XML.
        sys.stdout.writelines(f"{line}\n" for line in lines)
    elif statistics:
        output.write_lines(statistics_lines(report.files, output.screen_width()))
    else:
        output.write_lines(lint_lines(report.files, output.screen_width()))


def _tell_switched_off(report: LintReport) -> None:
    """Name on stderr what a file switched off: who typed the command may not know that
    file.
    """
    counts = Counter(
        finding.code for row in report.files for finding in row.switched_off
    )
    if counts:
        codes = ", ".join(
            f"{counts[code]:,} {code}" for code in CATALOGUE if counts[code]
        )
        output.write_talk(
            f"ckpt: {show(report.config, None)}: switches off {codes} (--no-config "
            "shows them)"
        )


def _write_baseline(baseline: Baseline) -> None:
    """Write the file of a baseline. Raises WriteError."""
    data = baseline.text().encode()
    # Written aside and renamed, so that a crash leaves the old baseline.
    with target.writing_file(
        target.target(baseline.path, force=True), len(data)
    ) as sink:
        sink.write(data)


def _tell_baseline(report: LintReport, *, is_new: bool) -> None:
    """Say on stderr what the baseline left out, or that it was written, and which of
    its entries are stale.
    """
    if not report.baseline:
        return
    known = counted_noun(count_known(report.files), "finding")
    place = show(report.baseline, None)
    if is_new:
        output.write_talk(f"ckpt: wrote {place}, which holds {known} of these files")
        return
    output.write_talk(f"ckpt: {place}: {known} known and left out")
    if report.stale:
        stale = and_more(list(report.stale), 3)
        output.write_talk(
            f"ckpt: {place}: no longer found: {stale} (--write-baseline drops stale "
            "entries)"
        )


def _settings(config: str | None, *, is_off: bool) -> LintSettings:
    """The rules of the file that was named, else of the nearest one. Raises
    UsageError.
    """
    if is_off:
        return LintSettings()
    return nearest_settings(os.getcwd()) if config is None else settings_at(config)
