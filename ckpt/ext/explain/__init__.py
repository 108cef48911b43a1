"""`ckpt explain`: the page of a finding or of an error of PyTorch, and what a
checkpoint answers to the error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.ext.explain.answer import (
    answer,
    answer_damaged,
    answer_folder,
    answer_of_any,
    answer_of_question,
    asks_of_file,
    made_findings,
)
from ckpt.ext.explain.case import Answer, Case
from ckpt.ext.explain.conditions import condition_holds, may_hold
from ckpt.ext.explain.families import FAMILIES, last_message
from ckpt.ext.explain.families.keys import answer_of_names
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.pages import (
    Page,
    find_page,
    no_page,
    page_of_code,
    page_of_kind,
    pages,
)
from ckpt.ext.explain.pasted import plain_text
from ckpt.model.errors import CkptError, CutOffError, UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json
from ckpt.surface.reports import document_head


class Explanation(NamedTuple):
    """The meaning of a plain text: its page, the error that it holds, and the answer of
    the error or of a checkpoint.

    `page` is None for an error that no page knows, which only a checkpoint can answer.
    """

    text: str
    page: Page | None = None
    message: Message | None = None
    answer: Answer | None = None

    @property
    def exit_code(self) -> int:
        """0 where there is an answer, 2 for an unknown error with which the file has
        nothing to do.
        """
        is_answered = self.page is not None or (
            self.answer is not None and self.answer.explains
        )
        return 0 if is_answered else 2

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.explain`."""
        return {
            **document(() if self.page is None else (self.page,)),
            "message": None if self.message is None else self.message.to_json(),
            "answer": None if self.answer is None else self.answer.to_json(),
        }


def explain(text: str) -> Explanation:
    """Explain a finding code, or the last error in a text. Raises UsageError with the
    nearest pages.
    """
    found = search(text)
    if found.page is None:
        raise no_page(found.text)
    return found


def search(text: str) -> Explanation:
    """As `explain`; an error that no page knows has none. Raises UsageError where the
    text is empty.
    """
    if not text.strip():
        raise UsageError("nothing to explain", hint="ckpt explain lists the pages")
    # The code of a finding is no error, so it is looked up before the text is searched.
    page = page_of_code(text)
    if page is not None:
        return Explanation(text, page)
    # Colours and the marks of logs would keep the patterns from the words of an error.
    text = plain_text(text)
    message = last_message(text)
    if message is not None:
        page = (
            page_of_kind(message.kind)
            .filled(message.fields)
            ._replace(messages=(message.text,))
        )
        page = page._replace(
            # Paragraphs that the error contradicts go here; `explain_with` asks the
            # file.
            body=tuple(row for row in page.body if may_hold(row.condition, message))
        )
        return Explanation(text, page, message, answer_of_names(message))
    # If no family knows the error, the words of its lines find a page.
    page = find_page(text)
    if page is None or not page.kinds:
        return Explanation(text, page)
    # A part of a message names no keys or shapes, but a file can answer for its family.
    message = Message(page.kinds[0], "")
    return Explanation(text, page.filled(message.fields), message)


_AN_ERROR = re.compile(
    r"Traceback \(most recent call last\)|^\s*[\w.]*(?:Error|Exception)\b"
    r"|\b(?:[Ff]ailed|FATAL|fatal|[Aa]borted|terminate called)\b"
    r"|\bError\b|\b(?:error|ERROR):|\berror (?:loading|while)\b|\bException during\b"
    r"|\[(?:ERROR|CRITICAL|FATAL)\]|\bBus error\b|\(core dumped\)",
    re.MULTILINE,
)


def has_error(text: str) -> bool:
    """Tell whether a plain text looks as if its program stopped at an error, of PyTorch
    or of anything.
    """
    return bool(_AN_ERROR.search(text))


_A_WARNING = re.compile(
    r"\b(?!Deprecation|Future"
    r"|PendingDeprecation)\w{0,60}Warning[:!][^\n]{0,400}\b(?:load|checkpoints?"
    r"|weights?|state[_ ]?dict|pre-?trained|keys?|optimi\w{1,6})\b"
    r"|\b(?:[Cc]annot|[Cc]an't|[Cc]ould not|couldn't|[Uu]nable to|[Ff]ailed to)"
    r" (?:be )?(?:load|read"
    r"|open|find|restore|resume|match)"
    r"|\b(?:not (?:found|loaded|match\w*|initialized|used)|mismatch\w*|missing"
    r"|unexpected|[Ss]kip(?:ped|ping)|ignor(?:ed|ing))\b"
    r"[^\n]{0,200}\b(?:key|keys|weights?|checkpoints?|parameters?|layers?"
    r"|state[_ ]?dict|model)\b"
    r"|\b(?:keys?|weights?|checkpoints?|parameters?|layers?"
    r"|state[_ ]?dict)\b[^\n]{0,200}"
    r"\b(?:not (?:found|loaded|match\w*|initialized|used)|mismatch\w*|missing"
    r"|unexpected|[Ss]kip(?:ped|ping)|ignor(?:ed|ing))\b",
    re.MULTILINE,
)


def has_warning(text: str) -> bool:
    """Tell whether a plain text warns of something that a checkpoint may answer,
    although its program went on.
    """
    return bool(_A_WARNING.search(text))


def explain_with(found: Explanation, case: Case) -> Explanation:
    """Answer an explanation for one checkpoint. Raises UsageError where the file cannot
    answer.
    """
    if found.page is not None and found.page.code is not None:
        return found._replace(answer=made_findings(found.page.code, case))
    page, message = found.page, found.message
    # A launcher reports below the error that names the cause.
    if message is not None and FAMILIES[message.kind].names_no_cause:
        of_cause = answer_of_any(found.text, case)
        if of_cause is not None:
            return found._replace(page=None, message=None, answer=of_cause)
    # A page that words alone have found says less than the answer to a question.
    if message is not None and not message.text and not has_error(found.text):
        of_question = answer_of_question(found.text, case)
        if of_question is not None:
            return found._replace(page=None, message=None, answer=of_question)
    if page is not None and message is not None:
        body = tuple(
            block
            for block in page.body
            if condition_holds(block.condition, message, case)
        )
        page = page._replace(body=body)
    return found._replace(page=page, answer=answer(message, case, found.text))


def explain_noticed(found: Explanation, case: Case) -> Explanation | None:
    """Answer a log without an error by a line of it that a checkpoint contradicts, or
    a question in its words. Return None where there is neither.
    """
    noticed = answer_of_any(found.text, case) or answer_of_question(found.text, case)
    return None if noticed is None else found._replace(answer=noticed)


def explain_damaged(
    found: Explanation, error: CkptError, command: str | None = None
) -> Explanation | None:
    """Answer an explanation for a file that does not open, or return None if the error
    is about something else.

    `command` writes what is whole of it.
    """
    page = found.page
    # An error of a program that had opened the file is not answered by its damage.
    if page is not None and (
        page.code is not None or not page.kinds or FAMILIES[page.kinds[0]].needs_open
    ):
        return None
    if page is not None:
        # The other conditions ask the content of the file, which is unknown here.
        shown = ("", "broken") if isinstance(error, CutOffError) else ("",)
        page = page._replace(
            body=tuple(row for row in page.body if row.condition in shown)
        )
    return found._replace(page=page, answer=answer_damaged(error, command, found.text))


def beside_folder(found: Explanation, error: CkptError, path: str) -> Explanation:
    """The page of an error, and why a folder cannot answer it: it is no checkpoint, or
    holds several.
    """
    page = found.page
    if page is not None:
        page = page._replace(
            body=tuple(row for row in page.body if row.condition in ("", "no-file"))
        )
    return found._replace(page=page, answer=answer_folder(error, path))


def document(shown: Sequence[Page]) -> dict[str, Json]:
    """Pages as plain data; docs/json.md is the contract."""
    return {
        **document_head("ckpt.explain", 1),
        "pages": [_page_json(page) for page in shown],
        "message": None,
        "answer": None,
    }


def _page_json(page: Page) -> dict[str, Json]:
    return {
        "code": page.code.code if page.code else None,
        "level": page.code.level if page.code else None,
        "made_by": list(page.code.by) if page.code else [],
        "title": page.title,
        "errors": list(page.messages),
        "body": [{"kind": block.kind, "text": block.text} for block in page.body],
    }


__all__ = [
    "Case",
    "Explanation",
    "Page",
    "asks_of_file",
    "beside_folder",
    "document",
    "explain",
    "explain_damaged",
    "explain_noticed",
    "explain_with",
    "has_error",
    "has_warning",
    "no_page",
    "pages",
    "search",
]
