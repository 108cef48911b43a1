"""Several PATHs: a command goes on after an error, and the worst exit code wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ckpt.cli import output
from ckpt.errors import CkptError, about

TROUBLE = 2


def worst(codes: Iterable[int]) -> int:
    """The exit code of a command from those of its files: 2 (trouble) over 1 (found something) over 0."""
    return max(codes, default=0)


def each(paths: Sequence[str], one: Callable[[str], int]) -> int:
    """Run a command for each PATH and print what fails; the exit code of all."""
    codes = []
    for path in paths:
        try:
            with about(path):
                codes.append(one(path))
        except CkptError as error:
            output.fail(error)
            codes.append(TROUBLE)
    return worst(codes)
