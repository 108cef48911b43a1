"""`ckpt explain`: the page of a finding or of an error of PyTorch, and what a checkpoint answers to the error."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.errors import CkptError, UsageError
from ckpt.evidence.survey import Survey
from ckpt.findings import Plan
from ckpt.jobs.explain.answer import Answer, answer, answer_of_names, damaged, made_findings
from ckpt.jobs.explain.message import Kind, Message, find_message, plain
from ckpt.jobs.explain.pages import Page, find_page, page_of, page_of_code, pages
from ckpt.rows import NamedTuple
from ckpt.text import Json

SCHEMA: dict[str, Json] = {"name": "ckpt.explain", "version": 1}

_STARTS: dict[Kind, str] = {
    "ddp": "Expected to have finished reduction",
    "twice": "Expected to mark a variable ready only once",
    "keys": "Missing key(s) in state_dict",
    "sizes": "size mismatch for ",
    "device": "Attempting to deserialize object on a CUDA device",
    "memory": "CUDA out of memory",
    "globals": "Weights only load failed",
    "code": "No module named",
    "optimizer": "loaded state dict contains a parameter group",
    "distributed": "Missing key in checkpoint state_dict",
    "damaged": "PytorchStreamReader failed",
    "replicas": "Expected all tensors to be on the same device",
    "python2": "codec can't decode byte",
}
"""A kind of errors -> a part of a message on its page."""


class Explanation(NamedTuple):
    """The meaning of a text: its page, the error that it holds, and the answer of the error or of a checkpoint."""

    page: Page
    message: Message | None = None
    answer: Answer | None = None

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.explain`."""
        return {
            **document((self.page,)),
            "message": None if self.message is None else self.message.to_json(),
            "answer": None if self.answer is None else self.answer.to_json(),
        }


def explain(text: str) -> Explanation:
    """Explain a finding code, or the last error of PyTorch in a text. Raises UsageError with the nearest pages."""
    if not text.strip():
        raise UsageError("nothing to explain", hint="ckpt explain lists the pages")
    page = page_of_code(text)
    if page is not None:
        return Explanation(page)
    message = find_message(text)
    if message is not None:
        page = page_of(_STARTS[message.kind]).filled(message.fields)._replace(messages=(message.text,))
        return Explanation(page, message, answer_of_names(message))
    page = find_page(plain(text))
    # Where the page is one of those, a checkpoint answers although the error is not there whole.
    kind = next((kind for kind, start in _STARTS.items() if page == page_of(start)), None)
    message = None if kind is None else Message(kind, "")
    return Explanation(page if message is None else page.filled(message.fields), message)


def explain_with(found: Explanation, survey: Survey, plan: Plan, section: str | None = None) -> Explanation:
    """Answer an explanation for one checkpoint: `plan` finds the commands that work on it.

    Raises UsageError where the file cannot answer.
    """
    if found.message is not None:
        return found._replace(answer=answer(found.message, survey, plan, section))
    if found.page.code is not None:
        return found._replace(answer=made_findings(found.page.code, survey, plan))
    raise UsageError("no file answers this page", path=survey.path)


def explain_damaged(found: Explanation, error: CkptError, command: str | None = None) -> Explanation | None:
    """Answer an explanation for a file that does not open, or return None if the error is about something else.

    `command` writes what is whole of it.
    """
    if found.message is None or found.message.kind not in ("damaged", "python2", "globals", "code"):
        return None
    return found._replace(answer=damaged(error, command))


def document(shown: Sequence[Page]) -> dict[str, Json]:
    """Pages as plain data; docs/json.md is the contract."""
    from ckpt import __version__

    return {
        "schema": SCHEMA,
        "ckpt": __version__,
        "pages": [_page(page) for page in shown],
        "message": None,
        "answer": None,
    }


def _page(page: Page) -> dict[str, Json]:
    return {
        "code": page.code.code if page.code else None,
        "level": page.code.level if page.code else None,
        "made_by": list(page.code.by) if page.code else [],
        "title": page.title,
        "errors": list(page.messages),
        "body": [{"kind": block.kind, "text": block.text} for block in page.body],
    }


__all__ = ["Explanation", "Page", "document", "explain", "explain_damaged", "explain_with", "pages"]
