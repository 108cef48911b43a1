"""`ckpt warmstart`: pretrained weights into another model, as far as they fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from ckpt.checkpoint import Checkpoint
from ckpt.cli.advice import SUFFIXES, advise
from ckpt.cli.inputs import documented
from ckpt.cli.options import Arg, NoAlign, opened, refuse_factory
from ckpt.cli.results import WriteOptions, rewrite, writing
from ckpt.cli.signature import FILTER, GATE, Exclusion, excluding
from ckpt.errors import UnsupportedError, UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.jobs.rewrite.code import code_lines
from ckpt.jobs.rewrite.rename import substitution
from ckpt.jobs.rewrite.report import Coverage
from ckpt.jobs.rewrite.warmstart import Options, warmstart
from ckpt.limits import Limits
from ckpt.text import pasted, pasted_path

_MISMATCH: tuple[Literal["keep", "slice", "error"], ...] = ("keep", "slice", "error")


@excluding(Exclusion(("--into", "--into-model")))
@writing(many=False, in_place=False)
def command(
    pretrained: Annotated[
        str,
        typer.Argument(
            metavar="PRETRAINED", help="The checkpoint whose values are used.", show_default=False
        ),
    ],
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="TARGET", help="Fill this checkpoint of the model."),
    ] = None,
    into_model: Annotated[
        str | None,
        typer.Option(
            "--into-model", metavar="FILE.py:FACTORY", help="Fill the model that your own code builds."
        ),
    ] = None,
    sub: Annotated[
        list[str] | None,
        typer.Option(
            "--sub", metavar="S/A/B/", help="Rename pretrained tensors, as ckpt rename does. Repeatable."
        ),
    ] = None,
    no_align: NoAlign = False,
    mismatch: Annotated[
        str,
        typer.Option(
            "--on-mismatch",
            metavar="WHAT",
            help="For another shape: keep the target's values, slice (copy the common block), or error.",
        ),
    ] = "keep",
    by_shape: Annotated[
        bool,
        typer.Option("--by-shape", help="Also pair tensors that only shapes and order connect."),
    ] = False,
    fuse: Annotated[
        bool,
        typer.Option("--fuse", help="Join query, key and value of PRETRAINED into one tensor of TARGET."),
    ] = False,
    split: Annotated[
        bool,
        typer.Option("--split", help="Split one tensor of PRETRAINED into query, key and value of TARGET."),
    ] = False,
    count_sliced: Annotated[
        bool,
        typer.Option("--count-sliced", help="Count what is sliced of the last layer as loaded."),
    ] = False,
    ignore_layout: Annotated[
        bool,
        typer.Option(
            "--ignore-layout", help="Load tensors although PRETRAINED lays out their values otherwise."
        ),
    ] = False,
    keep_optimizer: Annotated[
        bool,
        typer.Option(
            "--keep-optimizer",
            help="Keep the optimizer, the scheduler and the counters of TARGET's old weights.",
        ),
    ] = False,
    print_code: Annotated[
        bool,
        typer.Option(
            "--print-code", help="Print Python that loads the same into a model, and write nothing."
        ),
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(
            "--min-coverage",
            metavar="X",
            min=0,
            max=1,
            help="Exit 1 and write nothing if a smaller share of elements is loaded.  \\[default: 0.1]",
            rich_help_panel=GATE,
        ),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option(
            "--section",
            metavar="PATH",
            help="Use this part of PRETRAINED, such as ema.",
            rich_help_panel=FILTER,
        ),
    ] = None,
    into_section: Annotated[
        str | None,
        typer.Option(
            "--into-section", metavar="PATH", help="Fill this part of TARGET.", rich_help_panel=FILTER
        ),
    ] = None,
    arg: Arg = None,
    init: Annotated[
        bool,
        typer.Option("--init", help="Initialize the factory's model, so that missing tensors have values."),
    ] = False,
    *,
    options: WriteOptions,
) -> int:
    """Load pretrained weights into a model as far as they fit.

    The mapping of the names is found: prefixes on either side, renamed words, the names of other packages.
    It is printed first. OUT has the structure, dtypes and devices of TARGET; only values come from PRETRAINED.
    The optimizer and the counters of TARGET's old weights are left out.

    \b
    ckpt warmstart resnet50.pth --into mine.pth -o start.pth
    ckpt warmstart resnet50.pth --into-model train.py:build_model --arg classes=10 --dry-run
    ckpt warmstart resnet50.pth --into mine.pth --print-code
    """
    way = next((way_name for way_name in _MISMATCH if way_name == mismatch), None)
    if way is None:
        raise UsageError(f"--on-mismatch {mismatch}: not one of {' '.join(_MISMATCH)}")
    if into is None and into_model is None:
        raise UsageError("what to fill?", hint="--into TARGET, or --into-model FILE.py:FACTORY")
    if into_model is None and (arg or init):
        raise UsageError(f"--{'arg' if arg else 'init'} goes with --into-model FILE.py:FACTORY")
    refuse_factory(into or "", "--into-model")
    rules = [substitution(text).apply for text in sub or ()]
    request = Options(
        way,
        rules,
        section,
        into_section,
        align=not no_align,
        by_shape=by_shape,
        fuse=fuse,
        split=split,
        count_sliced=count_sliced,
        ignore_layout=ignore_layout,
        keep_optimizer=keep_optimizer,
        min_coverage=coverage,
    )
    options = options._replace(
        suffix=SUFFIXES["warmstart"], weights_file=True, dry_run=options.dry_run or print_code
    )
    words = _words(
        pretrained,
        ("--into", into),
        ("--into-model", into_model),
        *(("--arg", text) for text in arg or ()),
        ("--init", init),
        *(("--sub", text) for text in sub or ()),
        ("--on-mismatch", None if mismatch == "keep" else mismatch),
        ("--by-shape", by_shape),
        ("--fuse", fuse),
        ("--split", split),
        ("--count-sliced", count_sliced),
        ("--keep-optimizer", keep_optimizer),
        ("--section", section),
        ("--into-section", into_section),
        ("-o", options.output),
        ("--dry-run", options.dry_run and not print_code),
        ("--print-code", print_code),
    )
    options = options._replace(again=lambda way: _again(words, way))
    if into_model is not None and options.output is not None and not os.path.isdir(options.output):
        options = options._replace(format=save.format_for(options.output, None, endings=save.ENDINGS))

    def target(path: str, limits: Limits) -> Checkpoint:
        if into_model is None:
            return opened(path, limits)
        from ckpt.live.model import build
        from ckpt.live.state import state_checkpoint

        device = "cpu" if init else "meta"
        return state_checkpoint(build(path, arg or (), device=device, option="--into-model"), path)

    if print_code:

        def lines(report: Coverage, survey: Survey) -> list[str]:
            theirs = Survey(given)
            try:
                return code_lines(report, theirs, survey, request)
            except UnsupportedError as error:  # its way leads around PRETRAINED, not TARGET
                advise(error, theirs, options.limits)
                error.way = None
                raise

        options = options._replace(lines=lines)
    with documented(pretrained, "ckpt.rewrite" if options.json else None):
        source = opened(pretrained, options.limits)
    with source as given:
        return rewrite(
            [into_model or into or ""],
            lambda survey, limits: warmstart(Survey(given), survey, limits, request),
            options,
            opened=target,
        )


def _words(path: str, *options: tuple[str, str | bool | None]) -> list[str]:
    """The words of a command line: the options that were given."""
    words = [path]
    for name, value in options:
        if value:
            words += [name] if value is True else [name, str(value)]
    return words


def _again(words: Sequence[str], way: Sequence[str]) -> str | None:
    """The command with further options, to paste, or None where no shell takes it."""
    out = words.index("-o") if "-o" in words else len(words)
    path = pasted_path(words[0])
    rest = [pasted(word) for word in (*words[1:out], *way, *words[out:])]
    if path is None or None in rest:
        return None
    return " ".join(["ckpt warmstart", path, *(word for word in rest if word is not None)])
