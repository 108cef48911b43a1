"""`ckpt average`: the mean of checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated

import typer

from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.advice import SUFFIXES
from ckpt.cli.inputs import documented, looked, parted
from ckpt.cli.options import (
    DropOther,
    Exclude,
    Include,
    NoAlign,
    SectionOption,
    opened,
    plugins_allowed,
)
from ckpt.cli.results import WriteOptions, rewrite, writing
from ckpt.errors import FolderError, UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import is_folder_format, save, writer_of
from ckpt.jobs.rewrite.average import Options, average, shares_of
from ckpt.jobs.rewrite.convert import convert
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.jobs.rewrite.sets import with_flattening
from ckpt.limits import Limits
from ckpt.names import natural
from ckpt.text import and_more, plural, show


@writing(many=False, in_place=False, keep_code=False)
def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Checkpoints, or the folder of --last.", show_default=False),
    ] = None,
    ratios: Annotated[
        str | None,
        typer.Option(
            "--ratios",
            metavar="X,Y,...",
            help="Weigh the checkpoints by these numbers, divided by their sum. Without it all count alike.",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=2,
            help="Take the last N of a folder's numbered checkpoints: epoch_10 comes after epoch_2.",
        ),
    ] = None,
    no_align: NoAlign = False,
    drop_other: DropOther = False,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    *,
    options: WriteOptions,
) -> int:
    """Average the models of checkpoints of one training.

    The mean has the names, the order and the dtypes of the last one, and is added in float64. Integers,
    such as num_batches_tracked, are the last one's. Optimizers and the rest are left out.

    \b
    ckpt average epoch_8.pth epoch_9.pth epoch_10.pth -o mean.pth
    ckpt average old.pth new.pth --ratios 0.3,0.7 -o mean.safetensors
    ckpt average --last 5 runs/ -o mean.pth
    """
    names = list(paths or ())
    if last is not None:
        names = _last_of(names, last, options)
    if len(names) < 2:
        problem = "a mean takes two checkpoints or more" if names else "nothing to average"
        raise UsageError(problem, path=names[0] if names else None, hint="PATH PATH..., or --last N FOLDER")
    request = Options(
        _numbers(ratios), section, include or (), exclude or (), align=not no_align, drop_other=drop_other
    )
    shares_of(request.ratios, len(names))
    _tell_twice(names)
    options = options._replace(suffix=SUFFIXES["average"], plain=True)
    with ExitStack() as stack:
        given: list[Checkpoint] = []
        for name in names:
            with documented(name, "ckpt.rewrite" if options.json else None):
                try:
                    given.append(stack.enter_context(opened(name, options.limits)))
                except FolderError as error:
                    error.hint = "--last N takes its last ones" if last is None and len(names) == 1 else None
                    raise
        options = _with_format(options, given[-1])

        def make(survey: Survey, limits: Limits) -> RewriteReport:
            report = average([Survey(other) for other in given[:-1]], survey, limits, request)
            return _converted(report, options, limits)

        return rewrite([names[-1]], make, options, opened=lambda path, limits: given[-1])


def _numbers(text: str | None) -> list[float] | None:
    """The numbers of --ratios. Raises UsageError."""
    if text is None:
        return None
    numbers = []
    for word in text.split(","):
        try:
            numbers.append(float(word))
        except ValueError:
            problem = (
                f"--ratios {show(text, 80)}: {show(word.strip(), 40) or 'an empty text'} is not a number"
            )
            raise UsageError(problem, hint="as in 0.5,0.3,0.2") from None
    return numbers


def _tell_twice(names: Sequence[str]) -> None:
    """Say which checkpoints were given more than once."""
    real = [os.path.realpath(name) for name in names]
    for index, name in enumerate(names):
        count = real.count(real[index])
        if count > 1 and real.index(real[index]) == index:
            output.talk(f"ckpt: {show(name, None)}: given {count} times, and counts so often")


def _last_of(names: Sequence[str], count: int, options: WriteOptions) -> list[str]:
    """The last checkpoints of the series in a folder: those whose names differ in numbers only. Raises CkptError."""
    if len(names) != 1:
        raise UsageError("--last takes one folder", hint="--last N FOLDER")
    folder = names[0]
    if not os.path.isdir(folder):
        raise UsageError("not a folder, which --last takes", path=folder)
    items, _ = parted(looked([folder], options.limits, plugins=plugins_allowed()))
    out = None if options.output is None else os.path.realpath(options.output)
    found = [
        item.path
        for item in items
        if item.folder is not None and item.skipped is None and os.path.realpath(item.path) != out
    ]
    series: dict[str, list[str]] = {}
    for path in found:
        series.setdefault(re.sub(r"\d+", "*", os.path.relpath(path, folder)), []).append(path)
    numbered = {name: paths for name, paths in series.items() if "*" in name}
    long = [name for name, paths in numbered.items() if len(paths) >= count]
    if not long:
        name = max(numbered, key=lambda name: len(numbered[name]), default=None)
        most = 0 if name is None else len(numbered[name])
        what = f" ({show(name, 80)})" if name is not None else ""
        problem = f"has {plural(most, 'numbered checkpoint')}{what}, and --last asks for {count}"
        raise UsageError(problem, path=folder)
    if len(long) > 1:
        listed = and_more([f"{show(name, 60)} ({len(numbered[name])})" for name in long], 4)
        problem = f"has {len(long)} series of {count} checkpoints or more: {listed}"
        raise UsageError(problem, path=folder, hint="name the checkpoints")
    chosen = sorted(numbered[long[0]], key=natural)
    rest = [show(os.path.relpath(path, folder), 60) for path in found if path not in chosen]
    text = f"the last {count} of {len(chosen)} {show(long[0], 80)}"
    beside = f"; not of this series: {and_more(rest, 4)}" if rest else ""
    output.talk(f"ckpt: {show(folder, None)}: {text}{beside}")
    return chosen[-count:]


def _with_format(options: WriteOptions, last: Checkpoint) -> WriteOptions:
    """The options with the format of the last checkpoint, or of OUT's ending where it belongs to another one."""
    out = options.output
    if out is None or (options.is_folder and not is_folder_format(out, options.limits)):
        return options
    try:
        format = None if last.traits.names_are_code else save.same_format(out, last)
    except UsageError:
        format = None
    format = format or save.format_for(out, None, endings=save.ENDINGS)
    return options._replace(format=format, ranks=1 if save.traits_of(format).is_folder else None)


def _converted(report: RewriteReport, options: WriteOptions, limits: Limits) -> RewriteReport:
    """The report with the mean in the format of OUT."""
    format = options.format
    if format is None or format == report.result.format:
        return report
    traits = save.traits_of(format)
    other = convert(Survey(report.result), format, traits, limits, writer_of(format).unfit)
    if traits.is_folder:
        other = with_flattening(other, options.ranks or 1, limits)
    return report._replace(
        result=other.result,
        changes=(*report.changes, *other.changes),
        left_out=(*report.left_out, *other.left_out),
        left_alone=(*report.left_alone, *other.left_alone),
    )
