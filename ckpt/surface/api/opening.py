"""Opening a checkpoint: what `ckpt.open` takes, and what each function does with an
open one.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ckpt.bytes.far import is_url
from ckpt.bytes.location import Alone, Location, locate, with_home
from ckpt.bytes.source import BaseSource, Duplicate, File, FileObject, Source, Window
from ckpt.hooks import load_hook
from ckpt.model.errors import (
    UNFINISHED,
    CutOffError,
    NotOpenedError,
    UnreadableError,
    about,
)
from ckpt.model.limits import Limits
from ckpt.model.text import pasted_path
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.handle import Recipe, handle_of, opened
from ckpt.surface.api.keywords import limits_only

if TYPE_CHECKING:
    from ckpt.evidence.survey import Survey

Binary = BinaryIO | io.RawIOBase | io.BufferedIOBase
Content = bytes | bytearray | memoryview
_FILE = "(file object)"
NAMELESS = (BaseSource.name, _FILE)
"""The paths of checkpoints that were opened from bytes, and from files without
a name.
"""
Input = str | os.PathLike[str] | Content | Binary | Checkpoint
"""A path, the bytes of a file, a binary file, or an open checkpoint."""


def open(
    path: str | os.PathLike[str] | Content | Binary,
    *,
    limits: Limits | None = None,
    partial: bool = False,
    plugins: bool = False,
) -> Checkpoint:
    """Open a checkpoint: a file, an index of shards, or a directory that holds one.

    It is given by its path or URL, as the bytes of a file, or as a binary file that can
    seek. Nothing that the file names is run or imported, and no tensor data is read
    until it is asked for. Raises CkptError with the path in front.
    """
    limits_only(limits)
    if isinstance(path, (bytes, bytearray, memoryview)):
        handle = handle_of(
            path if isinstance(path, bytes) else bytes(path), limits, partial, plugins
        )
    elif isinstance(path, (str, os.PathLike)):
        given = with_home(os.fsdecode(path))
        with naming_loss(None if partial else given):
            handle = handle_of(given, limits, partial, plugins)
    elif hasattr(path, "read"):
        # Such a file cannot be opened again by another process: its recipe has no path.
        source = _source_of(path)
        handle = opened(Alone(source), Recipe(None, limits, partial, plugins))
    else:
        way = ""
        if isinstance(path, Mapping):
            way = " (a state dict is a file after torch.save)"
        elif hasattr(path, "state_dict"):
            way = " (ckpt.snapshot writes a live model, load_into fills one)"
        raise TypeError(
            "one path, bytes or a binary file is taken here, not "
            f"{type(path).__name__}{way}"
        )
    return Checkpoint(handle, limits, plugins=plugins)


@contextmanager
def naming_loss(path: str | None) -> Iterator[None]:
    """Give the error of a file that is cut off, or of a set that lacks a file, the
    command that names what is lost, and how the rest is written.
    """
    try:
        yield
    except UnreadableError as error:
        pasted = None if path is None or is_url(path) else pasted_path(path)
        is_lossy = isinstance(error, CutOffError) or error.hint == UNFINISHED
        # A guess at the cause stands before the command. Another hint is a way out.
        is_guess = error.hint is None or error.hint.endswith("?")
        if pasted is not None and is_lossy and is_guess:
            guess = "" if error.hint is None else f"{error.hint} "
            error.hint = f"{guess}{_COMMAND}{pasted}{_LOSS}"
        raise


_COMMAND, _LOSS = "ckpt verify ", " names what is lost"


def without_command(hint: str | None) -> str | None:
    """The hint as it was before `naming_loss`: its guess alone."""
    if hint is None or not hint.endswith(_LOSS):
        return hint
    return hint.partition(_COMMAND)[0].rstrip() or None


def _source_of(file: object) -> Source:
    """The bytes of a file object. Raises TypeError for one that is not binary or cannot
    seek, NotOpenedError.
    """
    handle = cast("BinaryIO", file)
    name = getattr(file, "name", None)
    name = name if isinstance(name, str) and name else _FILE
    if isinstance(file, io.TextIOBase) or (
        "b" not in str(getattr(file, "mode", "b")) and _is_text(handle)
    ):
        raise TypeError(
            f"{name} is open as text: ckpt.open takes a file that is open with mode "
            "'rb'"
        )
    if not _says_yes(getattr(file, "seekable", None)):
        raise TypeError(
            f"{name} cannot seek: give ckpt.open its path, or its bytes: file.read()"
        )
    if not _says_yes(getattr(file, "readable", None)):
        raise TypeError(f"{name} is not open for reading")
    with about(name):
        raw = getattr(file, "raw", file)  # a GzipFile has the descriptor of other bytes
        if getattr(raw, "closed", False) is True:
            raise NotOpenedError("the file object is closed")
        if isinstance(raw, io.FileIO) and stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
            # Bytes that Python still has in its buffer are not in the file.
            if raw.writable():
                handle.flush()
            return File(name, opened=Duplicate(raw.fileno()))
        return FileObject(handle, name)


def _is_text(file: BinaryIO) -> bool:
    # Nothing is read: the type of an empty read tells.
    return isinstance(file.read(0), str)


def _says_yes(can: Callable[[], object] | None) -> bool:
    """Tell whether a file object can seek, or be read. One that does not say so has to
    try.
    """
    try:
        return can is None or bool(can())
    except ValueError:
        return True  # it is closed, which the first read tells


def open_side(
    path: str,
    *,
    structure: bool,
    partial: bool = False,
    limits: Limits | None = None,
    plugins: bool = False,
) -> Checkpoint:
    """Open a checkpoint, or where only the structure counts, also a stored listing of
    one. Raises CkptError.
    """
    if structure:
        from ckpt.formats.listing import open_listing  # here: few ask for it

        listing = open_listing(path, limits or Limits())
        if listing is not None:
            return Checkpoint(listing, limits)
    return open(path, limits=limits, partial=partial, plugins=plugins)


def path_of(given: Input) -> str:
    """Return the path or URL of what is given, or its name in errors if it has none."""
    if isinstance(given, Checkpoint):
        return given.path
    if isinstance(given, (str, os.PathLike)):
        return with_home(os.fsdecode(given))
    name = getattr(given, "name", None)
    return name if isinstance(name, str) and name else BaseSource.name


def location_of(opened: Checkpoint) -> Location:
    """Return the location of an open checkpoint, also of one that was opened without a
    path.
    """
    sources = opened.checkpoint.sources
    is_far = (
        len(sources) == 1
        and sources[0].far is not None
        and sources[0].name == opened.path
    )
    if opened.has_path and not is_far:  # what is far away is not asked for again
        return locate(_path_now(opened))
    (source,) = sources
    # Closing it leaves the checkpoint open.
    return Alone(Window(source, 0, source.size, source.name))


def _path_now(opened: Checkpoint) -> str:
    """The path that leads to an open checkpoint also where the working folder is
    another one by now.
    """
    rooted = opened.rooted
    if rooted is None or is_url(opened.path) or os.path.abspath(opened.path) == rooted:
        return opened.path
    return rooted


@contextmanager
def at_hand(
    given: Input, limits: Limits | None = None, *, plugins: bool = False
) -> Iterator[Checkpoint]:
    """Open a checkpoint for a block, unless it is open: then it stays open. Raises
    CkptError.
    """
    if isinstance(given, Checkpoint):
        given.check_open()
        yield given
        return
    with open(given, limits=limits, plugins=plugins) as opened:
        yield opened


def with_model(opened: Checkpoint, live: Any) -> Survey:
    """The survey of a checkpoint, with the record of a live model where one is
    given.
    """
    if live is None:
        return opened.survey
    from ckpt.evidence.survey import Survey

    return Survey(opened.checkpoint, live)


def weights_of(opened: Checkpoint, *, dequantize: bool) -> Survey:
    """The survey of an open checkpoint, or with `dequantize` with its quantised weights
    as floats. Raises CkptError.
    """
    if not dequantize:
        return opened.survey
    from ckpt.evidence.survey import Survey  # here: few ask for it

    plain, _ = load_hook("quantised").plain_checkpoint(
        opened.checkpoint, opened.limits or Limits()
    )
    return Survey(plain)
