"""Several PATHs: a command goes on after an error, and the worst exit code wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ckpt import __version__
from ckpt.cli import output
from ckpt.errors import CkptError, about

TROUBLE = 2


def worst(codes: Iterable[int]) -> int:
    """The exit code of a command from those of its files: 2 (trouble) over 1 (found something) over 0."""
    return max(codes, default=0)


def each(paths: Sequence[str], one: Callable[[str], int], *, json: str | None = None) -> int:
    """Run a command for each PATH and print what fails; the exit code of all.

    With `json`, the name of the command's schema, what fails is a document too.
    """
    codes = []
    for path in paths:
        try:
            with about(path), documented(path, json):
                codes.append(one(path))
        except CkptError as error:
            output.fail(error)
            codes.append(TROUBLE)
    return worst(codes)


@contextmanager
def documented(path: str, schema: str | None) -> Iterator[None]:
    """Write the document of an error about a PATH, where JSON is asked for; docs/json.md is its contract."""
    try:
        yield
    except CkptError as error:
        if schema is not None:
            output.write_json(
                {
                    "schema": {"name": schema, "version": 1},
                    "ckpt": __version__,
                    "file": {"path": path},
                    "error": {
                        "code": error.code,
                        "message": error.said_of(path, hint=False),
                        "hint": error.hint,
                    },
                }
            )
        raise
