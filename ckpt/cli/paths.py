"""Several PATHs: a command goes on after an error, and the worst exit code wins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ckpt import __version__
from ckpt.cli import output
from ckpt.cli.signature import LIMITS
from ckpt.cli.start import Signal
from ckpt.cli.walk import FEW, Found, empty, is_concern, many, nothing_in, others_text, parted
from ckpt.errors import CkptError, about
from ckpt.render.text import Line
from ckpt.rows import NamedTuple
from ckpt.text import Json, and_more, show

if TYPE_CHECKING:
    from ckpt.io.executor import Executor

TROUBLE = 2

Document: TypeAlias = Callable[[str, CkptError], dict[str, Json]]
"""The document of an error about a PATH."""
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="WHERE",
        help="Work on a Dask cluster: tcp://HOST:PORT, or local[:N] for N processes.",
        rich_help_panel=LIMITS,
    ),
]


def worst(codes: Iterable[int]) -> int:
    """The exit code of a command from those of its files: 2 (trouble) over 1 (found something) over 0."""
    return max(codes, default=0)


def each(
    paths: Sequence[str], one: Callable[[str], int], *, json: str | None = None, tell_rest: bool = False
) -> int:
    """Run a command for each PATH and print what fails; the exit code of all.

    With `json`, the name of the command's schema, what fails is a document too. With `tell_rest`, an interrupt says
    which PATHs were not begun.
    """
    codes: list[int] = []
    try:
        for path in paths:
            try:
                with about(path), documented(path, json):
                    codes.append(one(path))
            except CkptError as error:
                output.fail(error)
                codes.append(TROUBLE)
    except Signal:
        if tell_rest and len(paths) > 1:
            sys.stdout.flush()  # the reports on what is done
            at = len(codes)
            rest = [show(path, 80) for path in paths[at + 1 :]]
            begun = f"stopped at {show(paths[at], 80)}, {at:,} of {len(paths):,} before it are through"
            output.talk(f"ckpt: {begun}" + (f"; not begun: {and_more(rest, 3)}" if rest else ""))
        raise
    return worst(codes)


class Answer(NamedTuple):
    """What a command says about one file. It pickles: another process may make it, this one writes it.

    `texts` are exact lines, `rows` a table whose first row is the header, `talk` is for stderr.
    """

    code: int = 0
    lines: Sequence[Line] = ()
    texts: Sequence[str] = ()
    rows: Sequence[Sequence[str]] | None = None
    document: dict[str, Json] | None = None
    talk: Sequence[str] = ()


def look(
    names: Sequence[str],
    items: Sequence[Found],
    answer: Callable[[Found], Answer],
    *,
    json: Document | None = None,
    jobs: int | None = None,
    doing: str = "reading",
    tables: output.Tables | None = None,
    apart: bool = False,
) -> list[int]:
    """Write the answer about each of the `items` that the `names` lead to, in their order; the exit codes.

    Many answers are made in several processes, which changes nothing in what is written. With `apart` there are empty
    lines between the texts. A folder without a checkpoint is an error, of which `json` makes the document.
    """
    from ckpt.io.executor import Task  # here: who reads one file needs none

    items, others = parted(items)
    tasks = [Task(_answered, (item, answer), 1) for item in items]
    codes, seen = [], []
    several = len(tasks) >= FEW
    with output.progress(doing, len(tasks), "files") if several else nullcontext() as progress:
        for item, made in zip(items, many(tasks, jobs).each(tasks), strict=True):
            if progress is not None:
                progress(1)
            if isinstance(made, str):
                output.skip(item.path, made)
                continue
            seen.append(item.path)
            codes.append(_written(item.path, made, json, tables, apart))
    for name in empty(names, seen):
        codes.append(_written(name, nothing_in(name), json, tables, apart))
    if others:
        output.conclude(others_text(others))
    return codes


def _answered(item: Found, answer: Callable[[Found], Answer]) -> Answer | CkptError | str:
    """The answer about a file, its error, or why it is skipped: it never was a checkpoint."""
    if item.skipped is not None:
        return item.skipped
    try:
        with about(item.path):
            return answer(item)
    except CkptError as error:
        return error if is_concern(item, error) else error.problem


def _written(
    path: str, made: Answer | CkptError, json: Document | None, tables: output.Tables | None, apart: bool
) -> int:
    """Write an answer or an error; the exit code."""
    if isinstance(made, CkptError):
        if json is not None:
            output.write_json(json(path, made))
        output.fail(made)
        return TROUBLE
    for text in made.talk:
        output.talk(text)
    if made.document is not None:
        output.write_json(made.document)
    elif made.rows is not None and tables is not None:
        tables.write(path, made.rows)
    elif made.lines:
        if apart:
            output.between()
        output.write_lines(made.lines)
    for text in made.texts:
        output.write_text(text)
    return made.code


@contextmanager
def working(where: str | None, names: Iterable[str]) -> Iterator[Executor | None]:
    """Who does the work on the PATHs, as `--cluster` says; None without it.

    Raises UsageError for a URL with a secret, CkptError without a cluster.
    """
    if where is None:
        yield None
        return
    from ckpt.io.cluster.connect import connected  # here: only a cluster pays for it

    with connected(where, names, output.talk) as executor:
        yield executor


@contextmanager
def documented(path: str, schema: str | None) -> Iterator[None]:
    """Write the document of an error about a PATH, where JSON is asked for; docs/json.md is its contract."""
    try:
        yield
    except CkptError as error:
        if schema is not None:
            output.write_json(failure(schema)(path, error))
        raise


def failure(schema: str) -> Document:
    """What makes the document of an error about a PATH, for a command whose own documents hold none."""
    return lambda path, error: {
        "schema": {"name": schema, "version": 1},
        "ckpt": __version__,
        "file": {"path": path},
        "error": error.failure(path)._asdict(),
    }
