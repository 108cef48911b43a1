"""Names for results beside what they are made of: names that are free, in a folder that takes a new file."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckpt.io.far import is_url

_MOST = 200
"""Bytes of a name that is made; file systems take 255."""
_TRIES = 100


def is_lasting(path: str) -> bool:
    """Whether a path names the same file or folder in the next command too: a pipe and /dev/stdin do not."""
    try:
        there = os.path.isfile(path) or os.path.isdir(path)
    except ValueError:
        return False
    return there and not path.startswith(("/dev/", "/proc/"))


def beside(path: str, suffix: str, endings: Sequence[str], *, other: bool = True) -> str | None:
    """A path for a result beside its input: `run/a.pth` with `.cpu` becomes `run/a.cpu.pth`.

    It keeps the ending of the input when that is one of `endings`, or none of them is asked for, else it takes the
    first. With `other=False` it is always the first. In a folder that takes no files, the name is one for the
    working folder. None where no folder takes it.
    """
    stem, own = _split(path.rpartition("/")[2] if is_url(path) else path)
    kept = other and (not endings or own.endswith(tuple(endings)))
    ending = own if kept else endings[0]
    folder, name = os.path.split(stem)
    for place in (folder, ""):
        if os.access(place or os.curdir, os.W_OK | os.X_OK):
            return _free(place, name, suffix, ending)
    return None


def _split(path: str) -> tuple[str, str]:
    """A path without its ending, and the ending; folders have none."""
    path = os.path.normpath(path)
    if os.path.basename(path) in (os.curdir, os.pardir, ""):
        path = os.path.abspath(path)
    if os.path.isdir(path):
        return path, ""
    stem, own = os.path.splitext(path.removesuffix(".index.json"))
    if own == ".tar":  # epoch_3.pth.tar
        stem, inner = os.path.splitext(stem)
        own = f"{inner}{own}"
    return stem, own


def _free(folder: str, name: str, suffix: str, ending: str) -> str | None:
    rest = _MOST - len(os.fsencode(f"{suffix}{ending}"))
    while len(os.fsencode(name)) > rest:
        name = name[:-1]
    for number in range(1, _TRIES):
        more = "" if number == 1 else f".{number}"
        made = os.path.join(folder, f"{name}{suffix}{more}{ending}")
        if not os.path.lexists(made):
            return made
    return None
