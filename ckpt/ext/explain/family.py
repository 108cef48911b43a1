"""A family of errors: how it is found in a text, what is taken from the text, and what
a checkpoint answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ckpt.ext.explain.case import Answer, Case, Statement, looked_at
from ckpt.ext.explain.message import Message
from ckpt.model.rows import NamedTuple


def as_found(message: Message, text: str, start: int) -> Message:
    """The message as its pattern found it: nothing more is taken from the text."""
    del text, start
    return message


class Family(NamedTuple):
    """A family of errors. `kind` is its word; `errors.md` has the page of each family.

    `patterns` are regular expressions of its messages in every version; a space stands
    for any white space, for terminals wrap lines. `take` gets the message, the whole
    text and where the pattern begins.
    """

    kind: str
    patterns: tuple[str, ...]
    answer: Callable[[Message, Case], Answer] = lambda message, case: looked_at(case)
    take: Callable[[Message, str, int], Message] = as_found
    is_weak: bool = False
    """True for messages of any program: they count only where the text has no other
    error.
    """
    needs_open: bool = False
    """True where a file that does not open is no answer."""
    of_any: bool = False
    """True for words of any program, which a checkpoint answers as an error without a
    page.
    """
    names_no_cause: bool = False
    """True for reports that stand below an error: words of any program count first."""


def answer_from_statements(
    make: Callable[[Message, Case], Iterator[Statement]],
) -> Callable[[Message, Case], Answer]:
    """An answer of statements alone. Where there are none, the file is looked at as for
    an error without a page.
    """

    def answer(message: Message, case: Case) -> Answer:
        # A generator may find nothing to say once it has looked at the file.
        rows = tuple(make(message, case))
        if not rows:
            return looked_at(case)
        return Answer(case.survey.path, rows, explains=not rows[0].refutes)

    return answer
