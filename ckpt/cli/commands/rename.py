"""`ckpt rename`: names by substitution."""

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
from ckpt.jobs.rewrite.rename import rename, substitution


def command(
    path: OnePath,
    sub: Annotated[
        list[str],
        typer.Option(
            "--sub", metavar="S/A/B/", help="A substitution as in sed, by regular expression. Repeatable."
        ),
    ],
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
    """Rename the tensors of a model by regular expressions, each applied after the other.

    Module versions and the names that an optimizer keeps follow. Two names never become one.

    \b
    ckpt rename bert.pth --sub 's/^bert\\.//' --sub 's/LayerNorm\\.gamma$/LayerNorm.weight/' -o out.pth
    """
    subs = [substitution(text) for text in sub]
    asked = WriteOptions(out, ".renamed", in_place, copy, force, dry_run, json, verify)
    return rewrite(
        [path],
        lambda survey, limits: rename(survey, subs, limits, section=section),
        asked,
        limits_of(limit),
    )
