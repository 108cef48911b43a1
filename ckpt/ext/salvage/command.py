"""`ckpt salvage`: what is whole of a checkpoint that is cut off, damaged or
incomplete.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ckpt.ext.salvage.api import salvage
from ckpt.model.errors import UsageError
from ckpt.surface.cli.results import rewrite_paths, split_options


def command(paths: list[str], **keywords: Any) -> int:
    """Write what is whole of a checkpoint that is cut off, damaged or incomplete, and
    list what is lost.

    Every tensor whose bytes are all there keeps its name, and its recorded checksum is
    compared. The format stays, or OUT's ending chooses one. Exit code 0: nothing is
    lost. 1: something is lost.

    \b
    ckpt salvage cut.pth -o rescued.pth
    ckpt salvage last.pth --fill-from epoch_11.pth -o rescued.pth
    """
    options, own = split_options("salvage", paths, keywords)
    if (own["fill_from"] or own["names_from"]) and len(paths) > 1:
        option = "--fill-from" if own["fill_from"] else "--names-from"
        raise UsageError(
            f"{option} takes one PATH: what is lost of several is not the same"
        )
    return rewrite_paths(paths, partial(salvage, **own), options)
