"""The worker of a command: this process, or others, whose results it has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt.cli.options import opened
from ckpt.errors import CkptError, UnreadableError, UnsupportedError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.io.location import locate, read_file
from ckpt.jobs.check.recorded import RecordedList, is_recorded
from ckpt.jobs.check.recorded import parse as parse_recorded
from ckpt.jobs.check.sums import Like, Sum, like_of, like_of_sums, parse
from ckpt.limits import Limits
from ckpt.names import Globs

if TYPE_CHECKING:
    from ckpt.io.executor import Executor

_handed: Executor | None = None
"""The executor that hands in the results, while a command makes a report of them."""


def executor() -> Executor | None:
    """Return the executor of the command that runs, or None for this process."""
    return _handed


def is_shared() -> bool:
    """Tell whether the tasks were cut before any of them ran.

    Then none may depend on the result of another.
    """
    return _handed is not None


@contextmanager
def handing(results: Executor) -> Iterator[None]:
    """Commands take their results from here."""
    global _handed
    _handed = results
    try:
        yield
    finally:
        _handed = None


LikeOption = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="OTHER",
        help="Compare names and shapes with another checkpoint, or names with the sums that `ckpt sum` wrote.",
    ),
]


def like_at(path: str, limits: Limits, section: str | None = None) -> Like:
    """The tensors of another save, or of a file of sums. Raises CkptError."""
    try:
        with opened(path, limits) as checkpoint:
            survey = Survey(checkpoint)
            section_name = section if any(part.name == section for part in survey.sections) else None
            return like_of(survey, section_name)
    except (UnreadableError, UnsupportedError) as error:
        try:
            return like_of_sums(path, all_sums(path, limits, Globs((), ())))
        except UsageError:
            raise
        except CkptError:
            raise error from None


def stored_sums(stored: str, limits: Limits, globs: Globs, path: str) -> list[Sum]:
    """The sums of a file at a path that another file holds. Raises CkptError."""
    return sums_of(path, all_sums(stored, limits, globs))


def _text(path: str, limits: Limits) -> str:
    """The text of a file of sums. Raises CkptError."""
    data = read_file(locate(path), limits, "the sums")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError("is not text", hint="expected the lines of ckpt sum") from None


def recorded_lists(path: str, limits: Limits) -> list[RecordedList]:
    """The lists in a file that `ckpt sum --recorded` wrote; none in a file of other sums. Raises CkptError."""
    with about(path):
        text = _text(path, limits)
        return parse_recorded(text) if is_recorded(text) else []


def all_sums(path: str, limits: Limits, globs: Globs) -> list[Sum]:
    """The sums in a file that are selected. Raises CkptError."""
    with about(path):
        text = _text(path, limits)
        if is_recorded(text):
            raise UsageError("recorded checksums, which only ckpt verify --sums compares")
        stored = parse(text)
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
