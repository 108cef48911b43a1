"""`ckpt rehome`: which devices become which, one call, one file."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import (
    Copy,
    DryRun,
    Force,
    InPlace,
    LimitOption,
    Output,
    Paths,
    RewriteJson,
    Verify,
    limits_of,
)
from ckpt.cli.writing import WriteOptions, rewrite
from ckpt.errors import CkptError, UsageError
from ckpt.formats import save
from ckpt.jobs.rewrite.rehome import moves, rehome
from ckpt.limits import Limits
from ckpt.text import show, size_text


def command(
    paths: Paths,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TAG", help="The device for all tensors.", show_default="cpu"),
    ] = None,
    map: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="FROM=TO", help="Move one device only, as in cuda:0=cuda:1. Repeatable."
        ),
    ] = None,
    out: Output = None,
    in_place: InPlace = False,
    copy: Copy = False,
    objects: Annotated[
        bool, typer.Option("--objects", help="Change torch.device objects and device texts in values too.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back the last --in-place, finished or interrupted.")
    ] = False,
    force: Force = False,
    dry_run: DryRun = False,
    verify: Verify = None,
    json: RewriteJson = False,
    limit: LimitOption = None,
) -> int:
    """Move tensors to other devices: to the CPU, unless told otherwise. No tensor byte changes.

    A bare torch.load puts every tensor where it was saved. The result loads anywhere.

    \b
    ckpt rehome train.pth -o train.cpu.pth
    ckpt rehome runs/*.pth --in-place
    """
    limits = limits_of(limit)
    if undo:
        if out or in_place or to or map or json or dry_run:
            raise UsageError("--undo goes alone")
        return _undo(paths, limits)
    asked_moves = moves(to, map or [])
    tag = (to or "cpu").replace(":", "") if not map else "moved"
    asked = WriteOptions(out, f".{tag}", in_place, copy, force, dry_run, json, verify)
    return rewrite(
        paths,
        lambda survey, limits: rehome(survey, asked_moves, limits, objects=objects),
        asked,
        limits,
    )


def _undo(paths: list[str], limits: Limits) -> int:
    worst = 0
    for path in paths:
        try:
            before, after = save.undo(path, limits)
        except CkptError as error:
            error.path = error.path or path
            output.fail(error)
            worst = 2
            continue
        output.write_lines(
            [[(f"{show(path, None)}: as before the last rewrite, {size_text(before - after)} cut off", "")]]
        )
    return worst
