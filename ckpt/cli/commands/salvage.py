"""`ckpt salvage`: what is whole of a checkpoint that is cut off, damaged or incomplete."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ckpt.api.writing import salvage
from ckpt.cli.options import Paths
from ckpt.cli.results import ResultOptions, rewrite, writing
from ckpt.errors import UsageError


@writing
def command(
    paths: Paths = None,
    fill_from: Annotated[
        str | None,
        typer.Option(
            "--fill-from",
            metavar="OTHER",
            help="Take lost tensors of the same name, shape and dtype from another save.",
        ),
    ] = None,
    names_from: Annotated[
        str | None,
        typer.Option(
            "--names-from",
            metavar="OTHER",
            help="Name the items of a DCP without .metadata after another save of the same run.",
        ),
    ] = None,
    *,
    options: ResultOptions,
) -> int:
    """Write what is whole of a checkpoint that is cut off, damaged or incomplete, and list what is lost.

    Every tensor whose bytes are all there keeps its name, and its recorded checksum is compared. The format stays, or OUT's
    ending chooses one. Exit code 0: nothing is lost. 1: something is lost.

    \b
    ckpt salvage cut.pth -o rescued.pth
    ckpt salvage last.pth --fill-from epoch_11.pth -o rescued.pth
    """
    if (fill_from or names_from) and len(paths or ()) > 1:
        option = "--fill-from" if fill_from else "--names-from"
        raise UsageError(f"{option} takes one PATH: what is lost of several is not the same")
    return rewrite(paths, partial(salvage, fill_from=fill_from, names_from=names_from), options)
