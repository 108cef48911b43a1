"""`ckpt slim`: the weights alone."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli.options import (
    DropOther,
    DryRun,
    Force,
    LimitOption,
    OnePath,
    Output,
    RewriteJson,
    SectionOption,
    Verify,
    limits_of,
)
from ckpt.cli.writing import WriteOptions, rewrite
from ckpt.jobs.rewrite.slim import slim


def command(
    path: OnePath,
    out: Output = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="PATH", help="Keep this section or value as well. Repeatable."),
    ] = None,
    section: SectionOption = None,
    drop_other: DropOther = False,
    force: Force = False,
    dry_run: DryRun = False,
    verify: Verify = None,
    json: RewriteJson = False,
    limit: LimitOption = None,
) -> int:
    """Keep the weights of the model, drop the optimizer and the rest, pack what views keep alive.

    The result is a state dict that loads with weights_only=True; tied weights stay tied.

    \b
    ckpt slim train.pth -o weights.pth
    ckpt slim last.ckpt --keep epoch --keep hyper_parameters -o small.ckpt
    """
    asked = WriteOptions(out, ".slim", None, False, force, dry_run, json, verify, plain=True)
    return rewrite(
        [path],
        lambda survey, limits: slim(survey, limits, section=section, keep=keep or (), drop_other=drop_other),
        asked,
        limits_of(limit),
    )
