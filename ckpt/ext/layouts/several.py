"""Files of ranks that lie in no layout of a framework: a pattern such as `tp*.pt` names
them, and they are read as one checkpoint, each below a key of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from ckpt.bytes.far import is_url
from ckpt.bytes.location import Location, locate, with_home
from ckpt.ext.layouts.ranks import MOST_FILES, is_rank_path
from ckpt.formats import probe_at
from ckpt.formats.common.file_set import FileSet
from ckpt.formats.common.merge import merge_members
from ckpt.model.checkpoint import Checkpoint, Member
from ckpt.model.errors import NotOpenedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.rows import replace
from ckpt.model.text import show

_WILD = re.compile(r"[*?]")
_DEEPEST = 4
"""The most steps of a pattern from the first one with a star on."""


def names_several(given: object) -> bool:
    """Tell whether a path is a pattern for several files, and no file itself."""
    if not isinstance(given, (str, os.PathLike)):
        return False
    text = with_home(os.fsdecode(given))
    # A file may have a star in its name: then it is that file.
    is_pattern = _WILD.search(text) is not None and not is_url(text)
    return is_pattern and "\0" not in text and not os.path.lexists(text)


def open_several(
    pattern: str,
    limits: Limits,
    *,
    plugins: bool = False,
    partial: bool = False,
) -> Checkpoint:
    """The files that a pattern names as one checkpoint. Raises CkptError, also for
    fewer than two of them.
    """
    base, steps = _parts_of(pattern)
    folder = locate(base)
    found = dict(_matches(folder, steps, ""))
    # One file is a checkpoint by itself, with names of its own.
    if len(found) < 2:
        problem = "no file matches" if not found else "one file matches"
        hint = None if not found else f"its path: {show(next(iter(found)), 80)}"
        raise NotOpenedError(problem, path=pattern, hint=hint)
    if len(found) > MOST_FILES:
        problem = f"more than {MOST_FILES:,} files match"
        raise UsageError(problem, path=pattern)
    keys = _keys_of(list(found), pattern)
    probe = probe_at(folder, limits, plugins, partial=partial)
    files = FileSet(
        folder,
        lambda name: probe.open(found[name], f"{keys[name]}:"),
        lambda error: False,
    )
    with files.closing_on_errors():
        files.open_all(found)
        members = [
            Member(name, keys[name], opened) for name, opened in files.files.items()
        ]
        whole = merge_members(pattern, "folder", members)
    return replace(
        whole,
        traits=whole.traits._replace(is_set=True),
        layout="files of ranks, side by side",
        parts=tuple(found),
    )


def _parts_of(pattern: str) -> tuple[str, list[str]]:
    """The folder before the first star of a pattern, and the steps from there on.
    Raises UsageError for too many steps.
    """
    steps = pattern.split("/")
    first = next(place for place, step in enumerate(steps) if _WILD.search(step))
    rest = steps[first:]
    if len(rest) > _DEEPEST or not all(rest):
        problem = f"a pattern has at most {_DEEPEST} steps from its first star on"
        raise UsageError(problem, path=pattern)
    base = "/".join(steps[:first])
    return base or ("/" if pattern.startswith("/") else os.curdir), rest


def _matches(
    folder: Location,
    steps: list[str],
    before: str,
) -> Iterator[tuple[str, Location]]:
    """Yield the files below a folder that match, by their paths below the first one, in
    natural order. Raises NotOpenedError.
    """
    step, *rest = steps
    for name in sorted(folder.names(), key=natural_sort_key):
        plain = name.rstrip("/")
        # As in a shell: a star does not find hidden files.
        if not fnmatchcase(plain, step) or (plain.startswith(".") and step[0] != "."):
            continue
        path = f"{before}{plain}"
        if rest and name.endswith("/"):
            yield from _matches(folder.child(plain, "no"), rest, f"{path}/")
        elif not rest and not name.endswith("/") and is_rank_path(path):
            yield path, folder.child(plain)


def _keys_of(paths: list[str], pattern: str) -> dict[str, str]:
    """The key of each file: its path without the ending, with a line in the place of
    slashes and dots. Raises UsageError where two have one key.
    """
    keys = {path: re.sub(r"[./]", "_", os.path.splitext(path)[0]) for path in paths}
    if len(set(keys.values())) < len(keys):
        raise UsageError("two of these files have one name", path=pattern)
    return keys
