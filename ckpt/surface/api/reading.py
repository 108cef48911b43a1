"""The functions that read tensors: `diff`, `stats`, `verify`, `sum`.

Each is the command of its name: the keywords are the options, and the report has the document that the command prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ckpt.bytes.executor import Local, current
from ckpt.commands.inspect.api import is_quantised
from ckpt.model.errors import CkptError, LinkError, NotOpenedError, UnreadableError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.model.text import show
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.extensions import adapters, layouts, quantised
from ckpt.surface.api.keywords import (
    Meter,
    Path,
    Progress,
    Texts,
    gate_of,
    globs_of,
    limits_only,
    model_of,
    text_only,
    texts,
)
from ckpt.surface.api.opening import Input, at_hand, location_of, open_side, path_of, with_model

if TYPE_CHECKING:
    from ckpt.commands.diff.diff import DiffReport
    from ckpt.commands.stats.stats import StatsReport
    from ckpt.commands.sum.recorded import SumReport
    from ckpt.commands.sum.sums import Like
    from ckpt.commands.verify.verify import VerifyReport
    from ckpt.evidence.survey import Survey
    from ckpt.model.checkpoint import Checkpoint as Contents
    from ckpt.surface.api.stored import Stored


def diff(
    before: Input,
    after: Input,
    *,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    align: bool = True,
    sub: Texts = (),
    recipe: Path | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    close: bool = False,
    stat: bool = False,
    structure: bool = False,
    quick: bool = False,
    strict: bool = False,
    ignore_dtype: bool = False,
    histogram: bool = False,
    adapter: Input | None = None,
    model: Any = None,
    arg: Texts = (),
    select: Texts = (),
    ignore: Texts = (),
    level: str | None = None,
    fail_on: Texts = (),
    check: bool = True,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> DiffReport:
    """Compare two checkpoints, given as paths or open, and return the report of `ckpt diff`.

    `recipe` is the path of a recipe, which brings `before`
    into the layout of `after` first. `report.same` is the answer. `report.changed` and `report.frozen` are names of tensors, `report.findings` what stands
    out, `report.rows` all tensors, `report.to_json()` the document. `adapter` is a LoRA that `after` should hold;
    `report.account` says so pair by pair. Raises CkptError, also where a tensor cannot be
    compared, unless `check` is False: then the report says so, and `report.check()` raises.
    """
    from ckpt.commands.diff.diff import DIFFER, Options, tolerance_of
    from ckpt.commands.diff.diff import diff as job
    from ckpt.commands.rename.rename import substitution
    from ckpt.commands.rewriting.report import with_ties

    text_only(section=section)
    if close and not (atol is None and rtol is None):
        raise UsageError("--close and --atol or --rtol exclude each other")
    gate = gate_of("diff", select, ignore, level, fail_on, also=(DIFFER,))
    options = Options(
        globs_of(include, exclude),
        section,
        tolerance_of(atol, rtol, close=close),
        structure=structure,
        quick=quick,
        strict=strict,
        ignore_dtype=ignore_dtype,
        norms=stat,
        histogram=histogram,
        align=align,
        rules=[substitution(text).apply for text in texts(sub)],
        executor=current(),
    )
    live = model_of(model, arg)
    with ExitStack() as stack:
        sides = []
        for side in (before, after):
            if structure and isinstance(side, (str, os.PathLike)):
                side = stack.enter_context(
                    open_side(path_of(side), structure=True, limits=limits, plugins=plugins)
                )
            sides.append(stack.enter_context(at_hand(side, limits, plugins=plugins)))
        with metered(progress, *sides) as meter:
            options = options._replace(progress=meter)
            old, new = (with_ties(with_model(side, live), side.limits) for side in sides)
            judging = None
            if recipe is None and adapter is None and not (structure or quick):
                judging = _judging(old, new, sides[1].limits)
            if judging is not None:
                report = job(judging.before, judging.after, options)
                report = cast("DiffReport", quantised().judged(report, judging))
            elif recipe is None:
                report = job(old, new, options)
            else:
                relaid = layouts().relaid_survey(old, recipe, sides[0].limits, section)
                options = options._replace(section=None, align=False)
                report = job(relaid, new, options)
                names = [row.name for row in report.rows if row.status == "changed"]
                notes = layouts().wrong_notes(old, new, recipe, sides[0].limits, names)
                report = report._replace(notes=(*report.notes, *notes))
            if recipe is None and judging is None and not (structure or quick or options.select):
                report = _with_layout(report, old, new)
        if adapter is not None:
            report = adapters().explained_by(report, adapter, limits, plugins=plugins)
        for side in sides:
            side.check_unchanged()
    report = report._replace(findings=gate.rules.kept(report.findings), gate=gate)
    if check:
        report.check()
    return report


def _judging(before: Survey, after: Survey, limits: Limits) -> Any:
    """Both sides with plain weights, where one of them is quantised and the other is not so, or None."""
    if not any(is_quantised(side) for side in (before, after)):
        return None
    return quantised().judging_of(before, after, limits)


def _with_layout(report: DiffReport, before: Survey, after: Survey) -> DiffReport:
    """The report with a line where tensors of one side alone have values that the other side has in another layout."""
    apart = [row for row in report.rows if row.kind in ("model", "ema", "other")]
    removed = [row.before.name for row in apart if row.before is not None and row.status in _APART]
    added = [row.after.name for row in apart if row.after is not None and row.status in _APART]
    note = layouts().layout_note(before, after, removed, added) if removed and added else None
    return report if note is None else report._replace(notes=(*report.notes, note))


_APART = ("added", "removed", "reshaped")
"""The states of tensors whose values are not compared, because the other side has no such name or shape."""


def stats(
    source: Input,
    *,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    all: bool = False,
    channels: bool = False,
    threshold: float = 1e-3,
    histogram: bool = False,
    dequantize: bool = False,
    sort: str = "name",
    select: Texts = (),
    ignore: Texts = (),
    level: str | None = None,
    fail_on: Texts = (),
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> StatsReport:
    """Measure the tensors of the only model, of a `section`, or `all`, and return the report of `ckpt stats`.

    `report.rows` are the tensors with their numbers, `report.unread` those that could not be read. With `dequantize` quantised weights
    are measured as the floats that they stand for. Raises CkptError.
    """
    from ckpt.commands.stats.stats import stats as job

    text_only(section=section, sort=sort)
    gate = gate_of("stats", select, ignore, level, fail_on)
    globs = globs_of(include, exclude)
    wants_channels = channels or "dead-channels" in gate.fails | gate.rules.select
    with at_hand(source, limits, plugins=plugins) as opened, metered(progress, opened) as meter:
        report = job(
            _weights_of(opened, dequantize),
            globs,
            section,
            threshold=threshold if wants_channels else None,
            sort=sort,
            everything=all and section is None,
            histogram=histogram,
            progress=meter,
            executor=current(),
        )
        opened.check_unchanged()
    return report._replace(findings=gate.rules.kept(report.findings), gate=gate)


def _weights_of(opened: Checkpoint, dequantize: bool) -> Survey:
    """The survey of a checkpoint, or with `dequantize` with its quantised weights as floats. Raises CkptError."""
    if not dequantize:
        return opened.survey
    from ckpt.evidence.survey import Survey  # here: few ask for it

    plain, _ = quantised().plain_checkpoint(opened.checkpoint, opened.limits or Limits())
    return Survey(plain)


@contextmanager
def metered(progress: Progress | None, *sides: Checkpoint) -> Iterator[Meter | None]:
    """Count the bytes that a block reads of checkpoints, for a function that gets them and all bytes."""
    if progress is None:
        yield None
        return
    total = 0  # the name of the function that adds is taken
    for side in sides:
        total += side.checkpoint.nbytes
    meter = Meter(progress, total)
    yield meter
    meter.end()


def sum(
    source: Input,
    *,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    all: bool = False,
    recorded: bool = False,
    root: bool = False,
    values: bool = False,
    dequantize: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> SumReport:
    """Return the SHA-256 of each tensor of the only model, of a `section`, or of `all`: the report of `ckpt sum`.

    With `root` it has one hash of all names and values, with `values` one of all values in any layout. With `recorded` it has the sizes and CRC-32 that the files record, and no tensor is read.
    With `dequantize` quantised weights are the floats that they stand for. Raises CkptError.
    """
    from ckpt.commands.rewriting.report import with_ties
    from ckpt.commands.sum.recorded import SumReport, listed, unread_in
    from ckpt.commands.sum.sums import sums
    from ckpt.evidence.unread import unread_parts

    text_only(section=section)
    limits_only(limits)
    globs = globs_of(include, exclude)
    if recorded:
        from ckpt.formats.verify import recorded as read_records

        if globs or section is not None or all or dequantize:
            raise UsageError("--recorded lists all of a checkpoint")
        path = path_of(source)
        if isinstance(
            source, (str, os.PathLike)
        ):  # what is damaged cannot be opened, and records still something
            record = read_records(path, limits or Limits(), plugins=plugins)
        else:
            with at_hand(source, limits, plugins=plugins) as opened:
                record = read_records(location_of(opened), opened.limits, plugins=opened.plugins)
                opened.check_unchanged()
        items = listed(record.format, record.files)
        return SumReport(path, record.format, "", recorded=items, missing=tuple(unread_in(record.files)))
    with at_hand(source, limits, plugins=plugins) as opened, metered(progress, opened) as meter:
        survey = with_ties(_weights_of(opened, dequantize), opened.limits)
        if values:
            with about(opened.path):
                total = layouts().values_of(survey, section, globs, current(), meter)
            opened.check_unchanged()
            return SumReport(opened.path, opened.format, section or "", whole=("values", total))
        rows = sums(
            survey,
            section,
            globs,
            everything=all,
            progress=meter,
            executor=current(),
        )
        chosen = survey.everything if all else survey.model_or_all(section)
        opened.check_unchanged()
    missing = unread_parts(survey.checkpoint, chosen)
    if root:
        with about(opened.path):
            if missing:
                raise UnreadableError(f"{missing[0][0]}: {missing[0][1]}")
            whole = "root", layouts().root_of(rows)
        return SumReport(opened.path, opened.format, chosen.name, tuple(rows), whole=whole)
    return SumReport(opened.path, opened.format, chosen.name, tuple(rows), missing=missing)


def verify(
    source: Input,
    *,
    quick: bool = False,
    sums: Path | SumReport | Stored | None = None,
    like: Input | Like | None = None,
    root: str | None = None,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> VerifyReport:
    """Check whether a checkpoint is intact: its structure and its checksums. Return the report of `ckpt verify`.

    `root` is a hash that `sum` with `root` gave. `report.verdict` is `intact`, `damaged` or `unreadable`: a file that cannot be read is no error here. `sums` is a file
    that `ckpt sum` wrote, or the report of `sum`, `like` another save whose names and shapes are compared. Raises UsageError.
    """
    from ckpt.commands.verify import verify as job
    from ckpt.formats.verify import remainder
    from ckpt.surface.api.stored import checked_with

    path = path_of(source)
    limits_only(limits)
    if isinstance(source, Checkpoint):
        source.check_open()  # a closed one says nothing about the file
        limits, plugins = limits or source.limits, plugins or source.plugins
    limits = limits or Limits()
    globs = globs_of(include, exclude)
    if root is not None and not re.fullmatch("[0-9a-f]{64}", root):
        raise UsageError(f"--root {show(root, 80)}: not a hash", hint="ckpt sum --root prints one")
    stored, other = checked_with(sums, like, globs, section, limits, quick=quick, plugins=plugins)
    try:
        with about(path), at_hand(source, limits, plugins=plugins) as opened:
            with metered(progress, opened) as meter:
                report = verdict(opened, stored, section, quick=quick, progress=meter)
            if other is not None:
                from ckpt.commands.rewriting.report import with_ties
                from ckpt.commands.sum.sums import likeness

                comparison = likeness(with_ties(opened.survey, limits), other, section)
                report = job.with_likeness(opened.checkpoint, report, comparison)
            if root is not None and report.verdict == "intact":
                found = sum(opened, section=section, root=True).whole
                report = job.with_root(report, root, "" if found is None else found[1])
            opened.check_unchanged()
            return report
    except CkptError as error:
        if not isinstance(error, UnreadableError) or isinstance(error, (LinkError, NotOpenedError)):
            return job.unreadable(path, error.failure(path))
        plan = partial(_salvage, limits=limits)
        executor = None if quick else Local()
        # Of a folder one file is damaged, but its tensors are counted and saved together with those of the others.
        rest = remainder(path, limits, plan, plugins=plugins, executor=executor)
        if error.path not in (None, path) and (rest is None or rest.whole is None):
            rest = remainder(error.path, limits, plan, plugins=plugins, executor=executor)
        if rest is None:
            return job.damaged(path, error.said_of(path), None, None)
        if rest.damage is not None and rest.damage != error.problem:
            error.problem, error.hint = rest.damage, None
        report = job.damaged(
            path, error.said_of(path), rest.whole, rest.lost, rest.rows, rest.unsound, rest.unproved
        )
        left = (job.UNREAD,) if quick and rest.whole else ()
        return report._replace(hint=rest.hint, not_checked=left)


def verdict(
    opened: Checkpoint, stored: Stored | None, section: str | None, *, quick: bool, progress: Meter | None
) -> VerifyReport:
    """The verdict on a checkpoint that could be opened. Raises CkptError where it is damaged."""
    from ckpt.commands.rewriting.report import with_ties
    from ckpt.commands.sum.sums import sums_now
    from ckpt.commands.verify import verify as job
    from ckpt.formats.verify import checksums
    from ckpt.surface.api.stored import compared_with, sums_of

    checkpoint = opened.checkpoint
    if stored is not None and not stored.lists:
        expected = sums_of(opened.path, stored.sums)
        survey = with_ties(opened.survey, opened.limits)
        now = sums_now(survey, expected, section, progress=progress, executor=current())
        # The sums may leave out tensors, damaged ones too: ckpt sum lists no sum of these.
        unnamed = job.unnamed_tensors(survey, expected) if section is None else []
        report = job.against(checkpoint, expected, now, unnamed)
    else:
        report = job.structure(checkpoint)
    if not quick:
        done = checksums(
            location_of(opened), opened.limits, progress, plugins=opened.plugins, executor=current()
        )
        report = job.with_checksums(report, checkpoint, done.damage, done.nbytes, done.unchecked, done.unread)
    if stored is not None and stored.lists:
        report = compared_with(stored, report, opened, quick=quick)
    elif quick:
        report = report._replace(not_checked=(*report.not_checked, job.UNREAD))
    if report.hint is None and checkpoint.account.has_noticed("stale-index"):
        return report._replace(hint=_command(checkpoint, opened.limits, "indexed"))
    return report


def _salvage(checkpoint: Contents, limits: Limits) -> str | None:
    """The command that writes what is whole of a damaged file, or None where none works."""
    return _command(checkpoint, limits, "salvage")


def _command(checkpoint: Contents, limits: Limits, word: str) -> str | None:
    """The command for what a word asks for, or None where none works."""
    from ckpt.evidence.survey import Survey

    # Named as text: only a damaged file pays for what writes.
    ways = import_module("ckpt.surface.api.advice").Ways(Survey(checkpoint), limits)
    command: str | None = ways.way((word,)).command
    return command
