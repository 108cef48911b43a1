"""`ckpt warmstart`: pretrained weights into another model, as far as they fit."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from ckpt.checkpoint import Checkpoint
from ckpt.cli.advice import SUFFIXES
from ckpt.cli.inputs import documented
from ckpt.cli.options import Arg, NoAlign, opened, refuse_factory
from ckpt.cli.results import WriteOptions, rewrite, writing
from ckpt.cli.signature import FILTER, GATE, Exclusion, excluding
from ckpt.errors import UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.jobs.rewrite.rename import substitution
from ckpt.jobs.rewrite.warmstart import Options, warmstart
from ckpt.limits import Limits

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
    coverage: Annotated[
        float | None,
        typer.Option(
            "--min-coverage",
            metavar="X",
            min=0,
            max=1,
            help="Exit 1 and write nothing if fewer elements are loaded.",
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

    Tensors are paired by name, without wrappers and without a first component such as backbone., never by shape
    alone. OUT has the structure,
    dtypes and devices of TARGET; only values come from PRETRAINED.

    \b
    ckpt warmstart resnet50.pth --into mine.pth -o start.pth
    ckpt warmstart resnet50.pth --into-model train.py:build_model --arg classes=10 --dry-run
    """
    way = next((known for known in _MISMATCH if known == mismatch), None)
    if way is None:
        raise UsageError(f"--on-mismatch {mismatch}: not one of {' '.join(_MISMATCH)}")
    if into is None and into_model is None:
        raise UsageError("what to fill?", hint="--into TARGET, or --into-model FILE.py:FACTORY")
    if into_model is None and (arg or init):
        raise UsageError(f"--{'arg' if arg else 'init'} goes with --into-model FILE.py:FACTORY")
    refuse_factory(into or "", "--into-model")
    rules = [substitution(text).apply for text in sub or ()]
    asked = Options(way, rules, section, into_section, align=not no_align)
    options = options._replace(suffix=SUFFIXES["warmstart"], min_coverage=coverage, weights_file=True)
    if into_model is not None and options.output is not None and not os.path.isdir(options.output):
        options = options._replace(format=save.format_for(options.output, None))

    def target(path: str, limits: Limits) -> Checkpoint:
        if into_model is None:
            return opened(path, limits)
        from ckpt.live.model import build
        from ckpt.live.state import state_checkpoint

        device = "cpu" if init else "meta"
        return state_checkpoint(build(path, arg or (), device=device, option="--into-model"), path)

    with documented(pretrained, "ckpt.rewrite" if options.json else None):
        source = opened(pretrained, options.limits)
    with source as given:
        return rewrite(
            [into_model or into or ""],
            lambda survey, limits: warmstart(Survey(given), survey, limits, asked),
            options,
            opened=target,
        )
