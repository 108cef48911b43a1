"""The page that a finding code or an error of PyTorch leads to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from ckpt.errors import UsageError
from ckpt.findings import CATALOGUE
from ckpt.jobs.explain.pages import Page, pages
from ckpt.names import nearest
from ckpt.text import Json, show

SCHEMA: dict[str, Json] = {"name": "ckpt.explain", "version": 1}


def document(pages: Sequence[Page]) -> dict[str, Json]:
    """Pages as plain data; docs/json.md is the contract."""
    from ckpt import __version__

    return {"schema": SCHEMA, "ckpt": __version__, "pages": [_page(page) for page in pages]}


def _page(page: Page) -> dict[str, Json]:
    return {
        "code": page.code.code if page.code else None,
        "level": page.code.level if page.code else None,
        "made_by": list(page.code.by) if page.code else [],
        "title": page.title,
        "errors": list(page.messages),
        "body": [{"kind": block.kind, "text": block.text} for block in page.body],
    }


_WORD = re.compile(r"[a-z_]+(?:\.[a-z_]+)*|\d+")
_LEAST = 3
"""Words in a row that a text and an error must share."""
_SHORT = 3
"""Letters of a word that says little."""
_LONGEST = 20_000
"""Characters of a text that are searched, from its end: the error of a traceback is its last line."""


def explain(text: str) -> Page:
    """The page of a finding code, or the one that answers an error, which may stand anywhere in the text.

    Raises UsageError with the nearest pages.
    """
    if not text.strip():
        raise UsageError("nothing to explain", hint="ckpt explain lists the pages")
    code = text.strip().lower().replace("_", "-")
    every = pages()
    for page in every:
        if page.code is not None and page.code.code == code:
            return page
    words = _words(text[-_LONGEST:])
    scored = [(_score(words, page), page) for page in every]
    best, found = max(scored, key=lambda pair: pair[0])
    if best[1]:
        return found
    raise UsageError(
        f"{show(text.strip(), 60)}: no page for this", hint=f"the nearest: {_nearest(code, words)}"
    )


def _nearest(code: str, words: Sequence[str]) -> str:
    """Three pages, as `ckpt explain` takes them: by the letters of a code, then by the words of an error."""
    every = pages()
    codes = list(CATALOGUE)
    kin = sorted(every, key=lambda page: -_kinship(words, page))
    near = nearest(code, codes)
    near += [page.word for page in kin if _kinship(words, page)]
    near += get_close_matches(code, codes, 3, 0.0)
    return ", ".join(f'"{word}"' if " " in word else word for word in list(dict.fromkeys(near))[:3])


def _words(text: str) -> list[str]:
    """The words of a text, with every number as one word: indices and ranks differ from run to run."""
    return ["#" if word.isdigit() else word for word in _WORD.findall(text.lower())]


def _score(words: Sequence[str], page: Page) -> tuple[bool, int, float]:
    """How well a text fits: whether it surely is an error of the page, and how many words in a row it shares with it.

    Zero below `_LEAST`, unless the text has no other words and two of them are not short.
    """
    best = (False, 0, 0.0)
    for message in page.messages:
        other = _words(message)
        run = _run(words, other)
        if run >= _LEAST or (run == len(words) and sum(len(word) > _SHORT for word in words) > 1):
            best = max(best, (page.code is None and run > _LEAST, run, run / len(other)))
    return best


def _run(one: Sequence[str], two: Sequence[str]) -> int:
    """The length of the longest run of words that both have."""
    most = 0
    before = [0] * (len(two) + 1)
    for word in one:
        now = [0] * (len(two) + 1)
        for index, other in enumerate(two):
            if (word == other and word != "#") or (word == other and before[index]):
                now[index + 1] = before[index] + 1
        most = max(most, *now)
        before = now
    return most


def _kinship(words: Sequence[str], page: Page) -> int:
    """How many words of the text the errors, the title or the code of a page have."""
    own = set(_words(" ".join((*page.messages, page.title, page.code.code if page.code else ""))))
    return len(own.intersection(word for word in words if len(word) > _SHORT))
