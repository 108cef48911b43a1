"""`ckpt warmstart`: pretrained weights into another model, as far as they fit."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ckpt.checkpoint import Checkpoint
from ckpt.cli.options import Arg, DryRun, Force, LimitOption, Output, RewriteJson, Verify, limits_of, opened
from ckpt.cli.writing import WriteOptions, rewrite
from ckpt.errors import UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.jobs.rewrite.rename import substitution
from ckpt.jobs.rewrite.warmstart import Options, warmstart
from ckpt.limits import Limits

_MISMATCH = ("keep", "slice", "error")


def command(
    pretrained: Annotated[
        str,
        typer.Argument(
            metavar="PRETRAINED", help="The checkpoint whose values are taken.", show_default=False
        ),
    ],
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="TARGET",
            help="A checkpoint of the model that gets them, or FILE.py:FACTORY, or PKG.MOD:FACTORY.",
        ),
    ],
    out: Output = None,
    sub: Annotated[
        list[str] | None,
        typer.Option("--sub", metavar="S/A/B/", help="Rename what is taken, as in ckpt rename. Repeatable."),
    ] = None,
    mismatch: Annotated[
        str,
        typer.Option(
            "--on-mismatch",
            metavar="WHAT",
            help="Another shape: keep the target's own, slice (copy the block that both have), or error.",
        ),
    ] = "keep",
    coverage: Annotated[
        float | None,
        typer.Option(
            "--min-coverage",
            metavar="X",
            min=0,
            max=1,
            help="Exit 1, and write nothing, when fewer of the elements are loaded.",
        ),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option("--section", metavar="PATH", help="The part of PRETRAINED to take, such as ema."),
    ] = None,
    into_section: Annotated[
        str | None,
        typer.Option("--into-section", metavar="PATH", help="The part of TARGET that gets it."),
    ] = None,
    arg: Arg = None,
    init: Annotated[
        bool,
        typer.Option(
            "--init", help="Build the factory's model for real: what is missing gets its own values."
        ),
    ] = False,
    force: Force = False,
    dry_run: DryRun = False,
    verify: Verify = None,
    json: RewriteJson = False,
    limit: LimitOption = None,
) -> int:
    """Load pretrained weights into a model as far as they fit: planned, reported, written.

    Tensors are paired by name, after the prefixes of wrappers are aligned; never by shape alone. OUT is the target,
    with its structure, dtypes and devices; only values come from PRETRAINED.

    \b
    ckpt warmstart resnet50.pth --into mine.pth -o start.pth
    ckpt warmstart resnet50.pth --into train.py:build_model --arg classes=10 --dry-run
    """
    limits = limits_of(limit)
    if mismatch not in _MISMATCH:
        raise UsageError(f"--on-mismatch {mismatch}: not one of {' '.join(_MISMATCH)}")
    is_factory = not os.path.exists(into) and ":" in into
    if not is_factory and (arg or init):
        raise UsageError(f"--{'arg' if arg else 'init'} goes with --into FILE.py:FACTORY")
    rules = [substitution(text).apply for text in sub or ()]
    options = Options(mismatch, rules, section, into_section)  # type: ignore[arg-type]
    format = None
    if is_factory and out is not None and not os.path.isdir(out):
        format = save.format_for(out, None)
    asked = WriteOptions(
        out, ".warm", None, False, force, dry_run, json, verify, format=format, min_coverage=coverage
    )

    def target(path: str, limits: Limits) -> Checkpoint:
        if not is_factory:
            return opened(path, limits)
        from ckpt.live.factory import build
        from ckpt.live.state import state_checkpoint

        return state_checkpoint(build(path, arg or (), device="cpu" if init else "meta"), path)

    with opened(pretrained, limits) as given:
        return rewrite(
            [into],
            lambda survey, limits: warmstart(Survey(given), survey, limits, options),
            asked,
            limits,
            opened=target,
        )
