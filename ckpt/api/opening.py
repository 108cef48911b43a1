"""Opening a checkpoint: what `ckpt.open` takes, and what each function does with an open one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ckpt import formats
from ckpt.api.checkpoint import Checkpoint
from ckpt.limits import Limits

Input = str | os.PathLike[str] | Checkpoint
"""A path, or an open checkpoint."""


def open(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    partial: bool = False,
    plugins: bool = False,
) -> Checkpoint:
    """Open the checkpoint at a path: a file, an index of shards, or a directory that holds one.

    Nothing that the file names is run or imported, and no tensor data is read until it is asked for. Raises
    CkptError with the path in front.
    """
    opened = formats.open(os.fsdecode(path), limits, partial=partial, plugins=plugins)
    return Checkpoint(opened, limits, plugins=plugins)


def open_side(
    path: str,
    *,
    structure: bool,
    partial: bool = False,
    limits: Limits | None = None,
    plugins: bool = False,
) -> Checkpoint:
    """Open a checkpoint, or where only the structure counts, also a stored listing of one. Raises CkptError."""
    if structure:
        from ckpt.formats.listing import open_listing  # here: few ask for it

        listing = open_listing(path, limits or Limits())
        if listing is not None:
            return Checkpoint(listing, limits)
    return open(path, limits=limits, partial=partial, plugins=plugins)


def path_of(given: Input) -> str:
    """Return the path or URL of what is given."""
    return given.path if isinstance(given, Checkpoint) else os.path.expanduser(os.fsdecode(given))


@contextmanager
def at_hand(given: Input, limits: Limits | None = None, *, plugins: bool = False) -> Iterator[Checkpoint]:
    """Open a checkpoint for a block, unless it is open: then it stays open. Raises CkptError."""
    if isinstance(given, Checkpoint):
        yield given
        return
    with open(given, limits=limits, plugins=plugins) as opened:
        yield opened
