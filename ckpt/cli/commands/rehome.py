"""`ckpt rehome`: which devices become which, one call, one file."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.advice.suffixes import SUFFIXES
from ckpt.cli.options import Paths
from ckpt.cli.outputs import WriteOptions, items_of
from ckpt.cli.paths import each
from ckpt.cli.writing import rewrite, warn, writing
from ckpt.errors import UsageError
from ckpt.formats import save
from ckpt.jobs.rewrite.rehome import moves, rehome
from ckpt.limits import Limits
from ckpt.render.rewrite import DRY_RUN
from ckpt.text import show, size_text


@writing()
def command(
    paths: Paths = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TAG", help="Move all tensors to this device.", show_default="cpu"),
    ] = None,
    map: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="FROM=TO", help="Move one device only, as in cuda:0=cuda:1. Repeatable."
        ),
    ] = None,
    objects: Annotated[
        bool, typer.Option("--objects", help="Also change torch.device objects and device texts in values.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back the last --in-place, finished or interrupted.")
    ] = False,
    *,
    options: WriteOptions,
) -> int:
    """Move tensors to other devices, by default to the CPU. No tensor byte changes.

    A bare torch.load puts every tensor on the device where it was saved. The result loads anywhere.

    \b
    ckpt rehome train.pth -o train.cpu.pth
    ckpt rehome runs/*.pth --in-place
    """
    if undo:
        alone = options._replace(limits=Limits(), dry_run=False, recursive=False, files_from=None)
        if alone != WriteOptions() or to or map or objects:
            raise UsageError("--undo goes alone, or with --dry-run")
        names = [item.path for item in items_of(paths or (), options)]
        return each(names, lambda path: _undo(path, options), tell_rest=True)
    asked = moves(to, map or [])
    tag = "moved" if map else (to or "cpu").replace(":", "")
    return rewrite(
        paths,
        lambda survey, limits: rehome(survey, asked, limits, objects=objects),
        options._replace(suffix=SUFFIXES["rehome"] if tag == "cpu" else f".{tag}", weights_file=True),
    )


def _undo(path: str, options: WriteOptions) -> int:
    done = save.undo(path, options.limits, dry_run=options.dry_run)
    name, cut = show(path, None), size_text(done.before - done.after)
    if options.dry_run:
        rest = f"{cut} behind it would be cut off"
        lines = [f"{name}: a whole archive ends at byte {done.after:,}, {rest}", DRY_RUN]
    else:
        lines = [f"{name}: took back the last rewrite, {cut} cut off"]
    output.write_lines([[(line, "")] for line in lines])
    warn(path, done.warnings)
    return 0
