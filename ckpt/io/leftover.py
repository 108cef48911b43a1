"""Files that no longer belong to anything: what killed runs left, and what a new file takes the place of."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress

from ckpt.io.commit import NOFOLLOW, SUFFIX, lock, removed, sync_folder
from ckpt.io.far import is_url, writer
from ckpt.io.target import why


def left_over(path: str, name: str | None = None) -> list[tuple[str, int]]:
    """Temporary files and folders of killed runs beside a target: their paths and sizes. Those in use are left out.

    `name` is a regular expression for the names of several targets in that folder. Of objects nothing lies beside them.
    """
    if is_url(path):
        return []
    folder, own = os.path.split(os.path.realpath(path))
    mine = re.compile(rf"\.{name or re.escape(own[:200])}\.[0-9a-f]{{12}}{re.escape(SUFFIX)}")
    files: list[tuple[str, int]] = []
    with suppress(OSError):
        for other in sorted(os.listdir(folder)):
            if mine.fullmatch(other):
                whole = os.path.join(folder, other)
                with suppress(OSError):
                    fd = os.open(whole, os.O_RDONLY | NOFOLLOW | os.O_CLOEXEC)
                    try:
                        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        files.append((whole, _size(fd, whole)))
                    finally:
                        os.close(fd)
    return files


def _size(fd: int, path: str) -> int:
    """The bytes of a file, or of the files in a folder."""
    status = os.fstat(fd)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    with os.scandir(path) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)


def cleared(folder: str, names: Iterable[str]) -> list[str]:
    """Remove files of a folder in this order and force that to the disk. What failed, one line each."""
    if is_url(folder):
        return writer().cleared(folder, list(names))
    problems: list[str] = []
    for name in names:
        problems += removed(os.path.join(folder, name))
    try:
        sync_folder(folder)
    except OSError as error:
        problems.append(f"old files may come back after a power loss: {why(error)}")
    return problems
