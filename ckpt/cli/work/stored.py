"""The sums that `ckpt verify --sums` compares."""

from __future__ import annotations

import os

from ckpt.errors import UnreadableError, UsageError, about
from ckpt.io.location import locate, read_file
from ckpt.jobs.check.sums import Sum, parse
from ckpt.limits import Limits
from ckpt.names import Globs


def stored_sums(stored: str, limits: Limits, globs: Globs, path: str) -> list[Sum]:
    """The sums of a file at a path that another file holds. Raises CkptError."""
    return sums_of(path, all_sums(stored, limits, globs))


def all_sums(path: str, limits: Limits, globs: Globs) -> list[Sum]:
    """The sums in a file that are selected. Raises CkptError."""
    with about(path):
        data = read_file(locate(path), limits, "the sums")
        try:
            stored = parse(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise UnreadableError("is not text", hint="expected the lines of ckpt sum") from None
        chosen = [row for row in stored if globs.match(row.name)]
        if not chosen:
            raise globs.refusal([row.name for row in stored], path)
        return chosen


def sums_of(path: str, stored: list[Sum]) -> list[Sum]:
    """The stored sums of one file: those below its name, and those below none. Raises UsageError without any."""
    own = [row for row in stored if row.file is None or os.path.normpath(row.file) == os.path.normpath(path)]
    if not own:
        raise UsageError("--sums has no sums of this file")
    return own
