"""`ckpt strip`: names without prefixes."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli.options import (
    Copy,
    DryRun,
    Force,
    InPlace,
    LimitOption,
    OnePath,
    Output,
    RewriteJson,
    SectionOption,
    Verify,
    limits_of,
)
from ckpt.cli.writing import WriteOptions, rewrite
from ckpt.jobs.rewrite.strip import strip


def command(
    path: OnePath,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="TEXT", help="The prefix to strip; else those of wrappers are found."
        ),
    ] = None,
    section: SectionOption = None,
    out: Output = None,
    in_place: InPlace = False,
    copy: Copy = False,
    force: Force = False,
    dry_run: DryRun = False,
    verify: Verify = None,
    json: RewriteJson = False,
    limit: LimitOption = None,
) -> int:
    """Take the prefixes of wrappers off the names of tensors: module., _orig_mod., nested ones too.

    Module versions and the names that an optimizer keeps follow. Two names never become one.

    \b
    ckpt strip ddp.pth -o model.pth
    ckpt strip lightning.ckpt --prefix model. --in-place
    """
    asked = WriteOptions(out, ".stripped", in_place, copy, force, dry_run, json, verify)
    return rewrite(
        [path],
        lambda survey, limits: strip(survey, limits, prefix=prefix, section=section),
        asked,
        limits_of(limit),
    )
