"""Which files a command looks at: the PATHs as typed, folders walked, names of a list."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpt import formats
from ckpt.errors import CkptError, NotOpenedError, StandInError, UnsupportedError, UsageError
from ckpt.formats.directory import LOCAL_MAGIC
from ckpt.io.far import is_url
from ckpt.io.location import locate, shown
from ckpt.io.source import beginning, read_limited
from ckpt.limits import Limits
from ckpt.names import natural
from ckpt.rows import NamedTuple
from ckpt.text import show

if TYPE_CHECKING:
    from ckpt.io.executor import Forks, R, Task

CHECKPOINTS = (".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".index.json", ".pth.tar", ".th")
"""Endings of files that should be checkpoints: one that is none is an error."""
PERHAPS = (".pkl", ".zip", ".nemo", ".joblib", ".tar", ".pt2", ".ptl")
"""Endings of files that may be checkpoints: one that is none is no concern of ours."""
_SHARD = r"-\d{5,}-of-\d{5,}\.(?:safetensors|bin)$"
_LONGEST = 1 << 24
"""Bytes of a list of names."""


class Found(NamedTuple):
    """A path to look at. `named` is set when the user typed it, `perhaps` when it may be no checkpoint.

    `error` says why a folder cannot be looked at, `skipped` why a name in it is not. `folder` is the folder, as it
    was typed, in which `looked` found it.
    """

    path: str
    named: bool = True
    perhaps: bool = False
    error: CkptError | None = None
    skipped: str | None = None
    folder: str | None = None


def is_concern(item: Found, error: CkptError) -> bool:
    """Whether a path that cannot be read is an error: not a file in a folder that never was a checkpoint."""
    if item.named or isinstance(error, StandInError) or not isinstance(error, UnsupportedError):
        return item.named or not item.perhaps
    return not item.perhaps and not item.path.endswith(".bin")  # of which many are something else


def found(paths: Sequence[str]) -> Iterator[Found]:
    """What the paths lead to, folders in natural order. Hidden names and links to folders are skipped.

    A folder that is one checkpoint is one item; a file in it that does not belong to it is another.
    """
    for path in paths:
        if os.path.isdir(path):
            yield from _walked(path)
        elif is_url(path) and locate(path).is_folder():
            yield from _walked_far(path, named=True)
        else:
            yield Found(path)


def looked(paths: Sequence[str], limits: Limits, *, plugins: bool = False) -> list[Found]:
    """As `found`, for commands that open each item: a folder that one of them can open stands for itself.

    A folder in which nothing is found has the `error` that opening it gives.
    """
    items: list[Found] = []
    for path in paths:
        is_far = is_url(path)
        is_folder = locate(path).is_folder() if is_far else os.path.isdir(path)
        error = formats.refusal(path, limits, plugins=plugins) if is_folder else None
        inside = [Found(path)]
        if error is not None:
            walked = _walked_far(path) if is_far else _walked(path)
            inside = [item._replace(folder=path) for item in walked]
        items += inside
        if all(item.skipped is not None for item in inside):
            items.append(Found(path, error=error))
    return items


def _walked(folder: str) -> Iterator[Found]:
    refused: list[Found] = []

    def refuse(error: OSError) -> None:
        path = os.path.normpath(os.fsdecode(error.filename))
        problem = f"cannot be read: {(error.strerror or '').lower()}"
        refused.append(Found(path, error=NotOpenedError(problem, path=path)))

    for at, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=natural)
        for name in folders:
            if os.path.islink(os.path.join(at, name)):
                yield Found(os.path.normpath(os.path.join(at, name)), skipped="a link to a folder")
        own = formats.files_of_folder(at, Limits()) or ()
        if len(own) > 1 or any(name.startswith(".") for name in own):  # the folder is one checkpoint
            yield Found(os.path.normpath(at), named=False)
            names = [name for name in names if name not in own]
            folders[:] = [name for name in folders if not any(file.startswith(f"{name}/") for file in own)]
        indexed = any(name.endswith(".index.json") for name in (*names, *own))
        for name in sorted(names, key=natural):
            if name.startswith(".") or (indexed and re.search(_SHARD, name)):
                continue
            if name.endswith(CHECKPOINTS):
                yield Found(os.path.normpath(os.path.join(at, name)), named=False)
            elif name.endswith(PERHAPS):
                yield Found(os.path.normpath(os.path.join(at, name)), named=False, perhaps=True)
    yield from refused


def _walked_far(path: str, *, named: bool = False) -> Iterator[Found]:
    """As `_walked`, for a folder behind a URL."""
    try:
        names = locate(path).names()
    except CkptError as error:
        yield Found(path, named=named, error=error)
        return
    own = formats.files_of_folder(path, Limits()) or ()
    if len(own) > 1 or any(name.startswith(".") for name in own):
        yield Found(path, named=named)
        names = [name for name in names if name not in own and not any(file.startswith(name) for file in own)]
    indexed = any(name.endswith(".index.json") for name in (*names, *own))
    for name in sorted(names, key=natural):
        if name.startswith(".") or (indexed and re.search(_SHARD, name)):
            continue
        inner = f"{path.rstrip('/')}/{name}"
        if name.endswith("/"):
            yield from _walked_far(inner)
        elif name.endswith((*CHECKPOINTS, *PERHAPS)):
            yield Found(inner, named=False, perhaps=name.endswith(PERHAPS) and not name.endswith(CHECKPOINTS))


def archives(folder: str) -> list[str]:
    """The zip archives below a folder, whatever they are called, in natural order. Links are skipped."""
    made = []
    for at, folders, names in os.walk(folder):
        folders.sort(key=natural)
        paths = (os.path.normpath(os.path.join(at, name)) for name in sorted(names, key=natural))
        made += [path for path in paths if _is_archive(path)]
    return made


def _is_archive(path: str) -> bool:
    is_file = os.path.isfile(path) and not os.path.islink(path)
    return is_file and beginning(path, len(LOCAL_MAGIC)) == LOCAL_MAGIC


FEW = 8
"""Files for which no process is started: they are read before it is."""


def many(tasks: Sequence[Task[R]], jobs: int | None = None) -> Forks:
    """Who runs a task for each file: `jobs` processes, or without a number this one for a few and copies for many."""
    from ckpt.io.executor import Forks  # here: one file needs no others

    if any(isinstance(item, Found) and is_url(item.path) for task in tasks for item in task.arguments[:1]):
        return Forks(1)  # a copy of a process does not have the threads of what reads from object stores
    return Forks(jobs) if jobs is not None or len(tasks) >= FEW else Forks(1)


def empty(paths: Sequence[str], seen: Iterable[str]) -> list[str]:
    """The folders among the paths below which none of the `seen` ones lies."""
    known = set(map(os.path.normpath, seen))
    return [path for path in paths if os.path.isdir(path) and not _below(path, known)]


def nothing_in(folder: str) -> CkptError:
    """The error for a folder without a checkpoint."""
    return UnsupportedError("no checkpoint in this folder", path=folder)


def _below(folder: str, paths: Iterable[str]) -> bool:
    """Whether one of the paths is the folder or lies in it."""
    folder = os.path.normpath(folder)
    start = "" if folder == os.curdir else os.path.join(folder, "")
    return any(path == folder or path.startswith(start) for path in paths)


def listed(paths: Sequence[str] | None, file: str | None, what: str = "look at") -> list[str]:
    """The PATHs, and the names in a file, or on stdin for `-`: one a line, or with a NUL after each.

    Raises UsageError when there is none.
    """
    names = list(paths or ())
    if file is not None:
        data = _read(file)
        mark = b"\0" if b"\0" in data else b"\n"
        names += [shown(os.fsdecode(name)) for name in data.split(mark) if name.strip()]
    if not names:
        raise UsageError(f"nothing to {what}", hint="PATH..., or --files-from FILE")
    return names


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(_LONGEST)
    source = locate(file).open()
    try:
        return read_limited(source, _LONGEST, "", f"the list {show(file, 80)}")
    finally:
        source.close()
