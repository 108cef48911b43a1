"""The meaning of a path where no file is."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches

from ckpt.formats.format import CHECKPOINTS, PERHAPS
from ckpt.model.names import natural_sort_key
from ckpt.model.text import pasted_path, show

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
ALIKE = 0.7
"""The least likeness of two names without their endings, from 0 to 1."""
_MOST = 2000
"""Names of a folder that are compared with a mistyped one."""


def missing(path: str) -> str | None:
    """Return the meaning of a path where there is no file, for the hint of the error.

    None when nothing is like it.
    """
    if not path:
        return "an empty name: is a variable of the shell not set?"
    # Formats are recognised and read by offsets, so that a file has to seek.
    if path == "-":
        return "ckpt reads files, not stdin: write it to a file first"
    if _URL.match(path):
        return "ckpt reads s3, gs, az, http, https and hf URLs: download it first"
    # The name is there, and its file is not.
    if os.path.islink(path):
        return _link_text(path)
    folder, name = os.path.split(path)
    names = _list_names(folder or os.curdir)
    # A hidden file is meant only by a name that begins with a dot.
    near = _nearest_name(
        name,
        names
        if name.startswith(".")
        else [other for other in names if other[:1] != "."],
    )
    meant = near and pasted_path(os.path.join(folder, near))
    return f"did you mean {meant}?" if meant else None


def _link_text(path: str) -> str | None:
    """Say where a link leads, or return None if the system does not tell, as of the
    links of a process in /proc.
    """
    try:
        place = show(os.readlink(path), 80)
    except OSError:
        return None
    why = "leads back to it" if _is_loop(path) else "is not there"
    return f"a link to {place}, which {why}"


def _is_loop(path: str) -> bool:
    """Tell whether a link leads back to itself."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _list_names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                # `zip` ends the search in a folder of very many files.
                (entry.name for entry, _ in zip(entries, range(_MOST), strict=False)),
                key=natural_sort_key,
            )
    except (OSError, ValueError):
        return []


def _nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The file that a name without its ending means, or the one that is most
    like it.
    """
    names = list(names)
    longer = [
        other
        for other in names
        if other in {f"{name}{ending}" for ending in (*CHECKPOINTS, *PERHAPS)}
    ]
    if longer:
        return longer[0]
    # Without endings, for `model.pt` may mean `model.pth`. Of files with one stem the
    # ending that was typed is meant, else a checkpoint or a folder.
    stem, _, ending = name.partition(".")

    def rank_name(other: str) -> int:
        own = other.partition(".")[2]
        if own == ending:
            return 0
        return 1 if not own or other.endswith((*CHECKPOINTS, *PERHAPS)) else 2

    stems: dict[str, str] = {}
    for other in sorted(names, key=rank_name):
        stems.setdefault(other.partition(".")[0], other)
    return stems.get(next(iter(get_close_matches(stem, stems, 1, ALIKE)), ""))
