"""The function `ckpt.diff`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ckpt.bytes.executor import current_executor
from ckpt.commands.inspect.logical import is_quantised
from ckpt.hooks import find_hook, load_hook
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.surface.api.keywords import (
    Path,
    Texts,
    gate_of,
    globs_of,
    keyword_texts,
    model_of,
    text_only,
)
from ckpt.surface.api.opening import Input, at_hand, open_side, path_of, with_model
from ckpt.surface.api.progress import Progress, metered_reading

if TYPE_CHECKING:
    from ckpt.commands.diff.diff import DiffReport, Options
    from ckpt.evidence.survey import Survey


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
    """Compare two checkpoints, given as paths or open, and return the report of `ckpt
    diff`.

    `recipe` is the path of a recipe, which brings `before` into the layout of `after`
    first. `report.same` is the answer. `report.changed` and `report.frozen` are names
    of tensors, `report.findings` what stands out, `report.rows` all tensors,
    `report.to_json()` the document. `adapter` is a LoRA that `after` should hold;
    `report.account` says so pair by pair. Raises CkptError, also where a tensor cannot
    be compared, unless `check` is False: then the report says so, and `report.check()`
    raises.
    """
    from ckpt.commands.diff.diff import DIFFER, Options, tolerance_of
    from ckpt.commands.diff.diff import diff as job
    from ckpt.commands.diff.findings import without_training
    from ckpt.commands.rewriting.edited import with_ties

    text_only(section=section)
    if close and not (atol is None and rtol is None):
        raise UsageError("--close and --atol or --rtol exclude each other")
    rules = []
    for text in keyword_texts(sub):
        from ckpt.commands.rename.rename import substitution

        rules.append(substitution(text).apply)
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
        rules=rules,
        executor=current_executor(),
    )
    # Made before a file is read: an error of the factory comes at once.
    live = model_of(model, arg)
    # A recipe knows files of ranks, which a pattern names as one checkpoint.
    open_input = at_hand if recipe is None else load_hook("layouts").opened_side
    with ExitStack() as stack:
        sides = []
        for side in (before, after):
            # With `structure` a listing may stand for a checkpoint.
            if structure and isinstance(side, (str, os.PathLike)):
                side = stack.enter_context(
                    open_side(
                        path_of(side), structure=True, limits=limits, plugins=plugins
                    )
                )
            sides.append(stack.enter_context(open_input(side, limits, plugins=plugins)))
        with metered_reading(progress, *sides) as meter:
            options = options._replace(progress=meter)
            old, new = (
                with_ties(with_model(side, live), side.limits) for side in sides
            )
            # Quantised weights of one side are compared as the plain ones of the other.
            judging = None
            if recipe is None and adapter is None and not (structure or quick):
                judging = _judging(old, new, sides[1].limits)
            if judging is not None:
                asked = options._replace(lines=judging.line_test)
                report = job(judging.before, judging.after, asked)
                report = load_hook("quantised").judged(report, judging)
            elif recipe is None:
                report = _compared(old, new, options)
            else:
                relaid = load_hook("layouts").relaid_survey(
                    old, recipe, sides[0].limits, section, as_read=True
                )
                # The recipe chose the section, and made the names of the other side.
                options = options._replace(section=None, align=False)
                report = job(relaid, new, options)
                names = [row.name for row in report.rows if row.status == "changed"]
                notes = load_hook("layouts").wrong_notes(
                    old, new, recipe, sides[0].limits, names
                )
                report = report._replace(notes=(*report.notes, *notes))
                if notes:  # a conversion went wrong: these are no steps of a training
                    findings = without_training(report.findings)
                    report = report._replace(findings=findings)
            if (
                recipe is None
                and report.account is None
                and not (structure or quick or options.select)
            ):
                report = _with_layout(report, old, new)
        if adapter is not None:
            report = load_hook("adapters").explained_by(
                report,
                adapter,
                limits,
                exclude=keyword_texts(exclude),
                plugins=plugins,
            )
        # A training may have saved over the bytes while they were read.
        for side in sides:
            side.check_unchanged()
    report = report._replace(findings=gate.rules.kept(report.findings), gate=gate)
    if check:
        report.check()
    return report


def _judging(before: Survey, after: Survey, limits: Limits) -> Any:
    """Both sides with plain weights, where one of them is quantised and the other is
    not so, or None.
    """
    if not any(is_quantised(side) for side in (before, after)):
        return None
    quantised = find_hook("quantised")
    return None if quantised is None else quantised.judging_of(before, after, limits)


def _compared(before: Survey, after: Survey, options: Options) -> DiffReport:
    """The report on both: where one is a GGUF, under the names of the other, and judged
    by the errors of its types.
    """
    from ckpt.commands.diff.diff import diff as job

    meeting = None
    if (
        before.checkpoint.traits.has_own_metadata
        != after.checkpoint.traits.has_own_metadata
    ):
        meeting = load_hook("gguf").met(before, after, options)
    if meeting is None:
        return job(before, after, options)
    asked = meeting.asked(options)
    report: DiffReport = meeting.judged(job(meeting.before, meeting.after, asked))
    return report


def _with_layout(report: DiffReport, before: Survey, after: Survey) -> DiffReport:
    """The report with a line where tensors of one side alone have values that the other
    side has in another layout.
    """
    apart = [row for row in report.rows if row.kind in ("model", "ema", "other")]
    removed = [
        row.before.name
        for row in apart
        if row.before is not None and row.status in _APART
    ]
    added = [
        row.after.name
        for row in apart
        if row.after is not None and row.status in _APART
    ]
    # If one side lacks nothing, no tensors are left to compare by their values.
    layouts = find_hook("layouts") if removed and added else None
    note = (
        None if layouts is None else layouts.layout_note(before, after, removed, added)
    )
    return report if note is None else report._replace(notes=(*report.notes, note))


_APART = ("added", "removed", "reshaped")
"""The states of tensors whose values are not compared, because the other side has no
such name or shape.
"""
