"""The answers of a command about the files that its PATHs lead to: made in several
processes where there are many, written in the order of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

from ckpt.model.errors import CkptError, about
from ckpt.model.names import short_labels
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json
from ckpt.surface.api.walk import (
    FEW,
    Found,
    choose_executor,
    empty_folders,
    is_concern,
    nothing_in,
    others_text,
    split_items,
)
from ckpt.surface.cli import output
from ckpt.surface.cli.inputs import TROUBLE, Document
from ckpt.surface.text.lines import Line


class Answer(NamedTuple):
    """The answer of a command about one file. It pickles: another process may make it,
    this one writes it.

    `texts` are exact lines, `rows` a table whose first row is the header, `talk` is for
    stderr.
    """

    code: int = 0
    lines: Sequence[Line] = ()
    texts: Sequence[str] = ()
    rows: Sequence[Sequence[str]] | None = None
    document: dict[str, Json] | None = None
    talk: Sequence[str] = ()
    is_loud: bool = False
    """True where `--quiet` does not drop what is for stderr."""


def write_answers(
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
    """Write the answer about each of the `items` that the `names` lead to, in their
    order; the exit codes.

    Many answers are made in several processes, which changes nothing in what is
    written. With `apart` there are empty lines between the texts. A folder without a
    checkpoint is an error, of which `json` makes the document.
    """
    from ckpt.bytes.executor import Task  # here: who reads one file needs none

    # Files that are no checkpoints are counted, not opened.
    items, others = split_items(items)
    tasks = [Task(_answer_item, (item, answer), 1) for item in items]
    codes, seen = [], []
    # A few files are done before a bar would be seen.
    several = len(tasks) >= FEW
    with (
        output.progress(
            doing, len(tasks), "files", short_labels([item.path for item in items])
        )
        if several
        else nullcontext()
    ) as progress:
        for item, outcome in zip(
            items, choose_executor(tasks, jobs).each(tasks), strict=True
        ):
            # The bar advances before the answer is written, which clears it.
            if progress is not None:
                progress(1)
            if isinstance(outcome, str):
                output.write_skipped(item.path, outcome)
                continue
            seen.append(item.path)
            codes.append(_write_answer(item.path, outcome, json, tables, apart))
    # A folder that was named and has no checkpoint is an error, and not silence.
    for name in empty_folders(names, seen):
        codes.append(_write_answer(name, nothing_in(name), json, tables, apart))
    if others:
        output.write_conclusion(others_text(others))
    return codes


def _answer_item(
    item: Found, answer: Callable[[Found], Answer]
) -> Answer | CkptError | str:
    """The answer about a file, its error, or why it is skipped: it never was a
    checkpoint.
    """
    if item.skipped is not None:
        # A text is a reason to skip; it pickles, as the answer does.
        return item.skipped
    try:
        with about(item.path):
            return answer(item)
    except CkptError as error:
        # Returned, not raised: one bad file must not end the others.
        return error if is_concern(item, error.code) else error.problem


def _write_answer(
    path: str,
    outcome: Answer | CkptError,
    json: Document | None,
    tables: output.Tables | None,
    apart: bool,
) -> int:
    """Write an answer or an error; the exit code."""
    if isinstance(outcome, CkptError):
        if json is not None:
            output.write_json(json(path, outcome))
        output.write_error(outcome)
        return TROUBLE
    # --quiet drops what is said about the answer, but never trouble.
    if outcome.code == TROUBLE or outcome.is_loud:
        say = output.write_complaint
    else:
        say = output.write_talk
    for text in outcome.talk:
        say(text)
    if outcome.document is not None:
        output.write_json(outcome.document)
    elif outcome.rows is not None and tables is not None:
        tables.write(path, outcome.rows)
    elif outcome.lines:
        if apart:
            output.separate_reports()
        output.write_lines(outcome.lines)
    for text in outcome.texts:
        output.write_text(text)
    return outcome.code


def is_skipped(item: Found, error: CkptError) -> bool:
    """Tell whether a file in a folder never was a checkpoint, and say so on stderr."""
    if is_concern(item, error.code):
        return False
    output.write_skipped(item.path, error.problem)
    return True


def drop_skipped(items: Iterable[Found]) -> list[Found]:
    """The items that are opened. Those that are not are named on stderr."""
    kept = []
    for item in items:
        if item.skipped is None:
            kept.append(item)
        else:
            output.write_skipped(item.path, item.skipped)
    return kept
