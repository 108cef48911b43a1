"""Opening a checkpoint: what `ckpt.open` takes, and what each function does with an open one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ckpt import formats
from ckpt.api.checkpoint import Checkpoint
from ckpt.checkpoint import Checkpoint as Contents
from ckpt.errors import NotOpenedError
from ckpt.io.far import is_url
from ckpt.limits import Limits

if TYPE_CHECKING:
    from ckpt.evidence.survey import Survey

Input = str | os.PathLike[str] | Checkpoint
"""A path, or an open checkpoint."""


def read(
    path: str,
    limits: Limits | None = None,
    *,
    plugins: bool = False,
    partial: bool = False,
    names_from: str | None = None,
    keep_damaged: bool = False,
) -> Contents:
    """Read the checkpoint at a path, as `formats.open` does. The error for a missing file says what may be meant."""
    try:
        return formats.open(
            path,
            limits,
            plugins=plugins,
            partial=partial,
            names_from=names_from,
            keep_damaged=keep_damaged,
        )
    except NotOpenedError as error:
        if error.path == path and not is_url(path) and not os.path.exists(path):
            from ckpt.api.missing import missing  # here: only a mistyped path pays for it

            error.hint = missing(path) or error.hint
        raise


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
    opened = read(os.path.expanduser(os.fsdecode(path)), limits, partial=partial, plugins=plugins)
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


def with_model(opened: Checkpoint, live: Any) -> Survey:
    """The survey of a checkpoint, with the record of a live model where one is given."""
    if live is None:
        return opened.survey
    from ckpt.evidence.survey import Survey

    return Survey(opened.checkpoint, live)
