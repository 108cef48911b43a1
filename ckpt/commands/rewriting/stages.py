"""Several changes of one checkpoint in one go: `ckpt slim --strip --to cpu`, `ckpt
convert --strip`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt.commands.rewriting.report import Change, Leftover, RewriteReport
from ckpt.commands.strip.strip import strip
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import WRAPPERS
from ckpt.hooks import find_hook
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.text import and_more, counted_noun

Stage = Callable[[Survey], RewriteReport]
"""A change of a checkpoint."""


def in_stages(survey: Survey, stages: Sequence[Stage]) -> RewriteReport:
    """The changes of all stages, one after the other, in the report of the last one.
    Raises what they raise.

    What a later stage leaves out is no change of the result.
    """
    first, *others = stages
    report = first(survey)
    for stage in others:
        done = stage(Survey(report.result, survey.model))
        left_out = {row.name for row in done.left_out}
        changes = [
            change for change in report.changes if change.section not in left_out
        ]
        left_alone = [*report.left_alone, *done.left_alone]
        if _strips(report.changes) and not _strips(changes):
            nothing = "nothing to strip: only what is left out has such a prefix"
            left_alone.append(Leftover("names", nothing))
        report = done._replace(
            source=survey.checkpoint,
            changes=(*changes, *done.changes),
            left_out=(*report.left_out, *done.left_out),
            left_alone=tuple(left_alone),
            unchanged_bytes=report.unchanged_bytes and done.unchanged_bytes,
        )
    return report


def _strips(changes: Sequence[Change]) -> bool:
    """Tell whether one of some changes takes a prefix off."""
    return any(change.kind in ("prefix", "unwrapped") for change in changes)


def strip_first(
    survey: Survey, limits: Limits, *, prefix: str | None, section: str | None
) -> RewriteReport:
    """The checkpoint without the prefixes of wrappers on its names, or without
    `prefix`, and a row where none has one.
    """
    report = strip(survey, limits, prefix=prefix, section=section)
    if report.changes:
        return report
    return report._replace(left_alone=(Leftover("names", report.nothing),))


def with_kept_prefixes(report: RewriteReport, limits: Limits) -> RewriteReport:
    """The report that also lists the prefixes of wrappers in its result, of which a
    loader of the bare model finds no name.
    """
    result = Survey(report.result)
    if not _may_be_wrapped(result):
        return report
    try:
        stripped = strip(result, limits)
    except CkptError as error:
        # Two names would become one: the prefix tells them apart.
        stays = Leftover("names", f"the prefixes of wrappers stay: {error.problem}")
        return report._replace(left_alone=(*report.left_alone, stays))
    rows = []
    for change in stripped.changes:
        tensors = counted_noun(change.number, "tensor")
        what = f"a wrapper, around {tensors}"
        if change.kind == "prefix":
            what = f"the prefix of a wrapper, on {tensors}"
        rows.append(Leftover(change.before or "", what, hint="--strip takes it off"))
    return report._replace(left_alone=(*report.left_alone, *rows))


def with_kept_codes(report: RewriteReport, limits: Limits) -> RewriteReport:
    """The report that also lists the quantised weights in its result, which are values
    only together with their scales.
    """
    scaled = Survey(report.result).scaled
    quantised = find_hook("quantised") if scaled.codes else None
    if quantised is None:
        return report
    # Without the config, which a folder has, some schemes do not say their values.
    found = quantised.find_logical(report.source, limits, for_values=True)
    way = "--dequantize makes floats of them" if found.logical else None
    labels = list(dict.fromkeys(row.label for row in scaled.codes.values()))
    weights = counted_noun(len(scaled.codes), "weight")
    row = Leftover(
        f"{weights} in {and_more(labels, 2)}",
        "codes beside their scales",
        hint=way,
    )
    return report._replace(left_alone=(*report.left_alone, row))


def _may_be_wrapped(survey: Survey) -> bool:
    """Tell whether a name has the attribute of a wrapper, so that most files do not pay
    for a second look.
    """
    texts = tuple(f"{attribute}." for attribute in WRAPPERS)
    for part in survey.sections:
        if part.kind not in ("model", "ema"):
            continue
        joined = "\n".join(part.names())
        if part.is_module or any(text in joined for text in texts):
            return True
    return False
