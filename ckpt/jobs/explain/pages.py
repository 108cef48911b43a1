"""The pages that finding codes and errors of PyTorch lead to, and the search for the page of a text."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from typing import Literal

from ckpt.errors import UsageError
from ckpt.findings import CATALOGUE, Code
from ckpt.io.location import locate, read_file
from ckpt.limits import Limits
from ckpt.names import nearest
from ckpt.rows import NamedTuple
from ckpt.text import show

_WORD = re.compile(r"[a-z_]+(?:\.[a-z_]+)*|\d+")
_LEAST = 3
"""Words in a row that a text and an error must share."""
_SHORT = 3
"""Letters of a word that says little."""
_LONGEST_CODE = 40
_LONGEST = 20_000
"""Characters of a text that are searched, from its end: the error of a traceback is its last line."""


def page_of_code(text: str) -> Page | None:
    """The page of a finding code, or None for any other text."""
    code = text.strip().lower().replace("_", "-")
    return next((page for page in pages() if page.code is not None and page.code.code == code), None)


def find_page(text: str) -> Page:
    """The page that answers an error, which may stand anywhere in the text.

    Raises UsageError with the nearest pages.
    """
    words = _words(text[-_LONGEST:])
    scored = [(_score(words, page), page) for page in pages()]
    best, page = max(scored, key=lambda pair: pair[0])
    if best[1]:
        return page
    raise UsageError(
        f"{show(_last_line(text), 60)}: no page for this",
        hint=f"the nearest: {_nearest(text.strip().lower().replace('_', '-'), words)}",
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def page_of(start: str) -> Page:
    """The page of errors that has a message with this text."""
    return next(page for page in pages() if page.code is None and any(start in row for row in page.messages))


def _nearest(code: str, words: Sequence[str]) -> str:
    """Three pages, as `ckpt explain` takes them: by the letters of a code, then by the words of an error."""
    every = pages()
    codes = list(CATALOGUE)
    kin = sorted(every, key=lambda page: -_kinship(words, page))
    near = nearest(code, codes) if len(code) < 2 * _LONGEST_CODE else []
    near += [page.word for page in kin if _kinship(words, page)]
    near += get_close_matches(code[:_LONGEST_CODE], codes, 3, 0.0)
    return ", ".join(f'"{word}"' if " " in word else word for word in list(dict.fromkeys(near))[:3])


def _words(text: str) -> list[str]:
    """The words of a text, with every number as one word: indices and ranks differ from run to run."""
    return ["#" if word.isdigit() else word for word in _WORD.findall(text.lower())]


def _score(words: Sequence[str], page: Page) -> tuple[bool, int, float]:
    """Score a text by the run of words that it shares with an error of the page.

    Return whether the text surely is an error of the page, the words in a row, and their share of the error.
    The score is zero below `_LEAST`, unless the text has no other words and two of them are not short.
    """
    best = (False, 0, 0.0)
    for message in page.messages:
        other = _words(message)
        run = _run(words, other)
        if run >= _LEAST or (run == len(words) and sum(len(word) > _SHORT for word in words) > 1):
            best = max(best, (page.code is None and run > _LEAST, run, run / len(other)))
    return best


def _run(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest run of words that both have."""
    most = 0
    before = [0] * (len(second) + 1)
    for word in first:
        now = [0] * (len(second) + 1)
        for index, other in enumerate(second):
            if (word == other and word != "#") or (word == other and before[index]):
                now[index + 1] = before[index] + 1
        most = max(most, *now)
        before = now
    return most


def _kinship(words: Sequence[str], page: Page) -> int:
    """Count the words of the text that are in the errors, the title or the code of a page."""
    own = set(_words(" ".join((*page.messages, page.title, page.code.code if page.code else ""))))
    return len(own.intersection(word for word in words if len(word) > _SHORT))


_TITLE = re.compile(r"^(#{2,3}) (.+)$", re.MULTILINE)
_LEVEL = re.compile(r"\*(?:error|warning|info)\.\* ")
_MESSAGE = re.compile(r"```text\n(.*?)\n```\n*", re.DOTALL)
_QUOTED = re.compile(r"`([^`]+)`")
_RUN = re.compile(
    r"<!-- run: (.+?) -->\n?(?:```console\n.*?\n```\n?)?(?:<!-- yours: (.+?) -->\n?)?", re.DOTALL
)
"""A command with what it prints in the docs, and the same for the reader's own file, which `ckpt explain` shows."""
_CONSOLE = re.compile(r"```console\n(.*?)\n```\n?", re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_EMPHASIS = re.compile(r"\*(\w+)\*|`")
_WORDS_OF_A_MESSAGE = 3


class Block(NamedTuple):
    """A part of a page: a paragraph, an item of a list, or a command to run. Text is on one line, without links."""

    kind: Literal["text", "item", "command"]
    text: str


class Page(NamedTuple):
    """A page: of a finding, with its `code`, or of errors. `messages` are the errors of PyTorch that it answers."""

    title: str
    messages: tuple[str, ...]
    body: tuple[Block, ...]
    code: Code | None = None

    def filled(self, fields: dict[str, str]) -> Page:
        """The page with what an error names in its commands: `{numbers}`."""
        body = list(self.body)
        for number, block in enumerate(body):
            if block.kind == "command":
                text = block.text
                for field, value in fields.items():
                    text = text.replace(f"{{{field}}}", value)
                body[number] = block._replace(text=text)
        return self._replace(body=tuple(body))

    @property
    def word(self) -> str:
        """The argument of `ckpt explain` for this page: its code or the first sentence of its first error."""
        return self.code.code if self.code else " ".join(self.messages[0].split()).partition(". ")[0]


@cache
def pages() -> tuple[Page, ...]:
    """All pages: the findings in the order of the catalogue, then the errors in the order of their page."""
    findings = {title: text for _, title, text in _parts(source("findings")) if title in CATALOGUE}
    return (*(_finding(code, findings[name]) for name, code in CATALOGUE.items()), *_errors())


def source(name: str) -> str:
    """The Markdown of `findings` or `errors`, with the commands whose output only the docs show."""
    page = locate(os.path.join(os.path.dirname(__file__), f"{name}.md"))
    return read_file(page, Limits(), "the page").decode("utf-8")


def _parts(text: str) -> list[tuple[int, str, str]]:
    """(depth, title, text) of each part of a page."""
    titles = list(_TITLE.finditer(text))
    ends = [title.start() for title in titles[1:]] + [len(text)]
    return [
        (len(title[1]), title[2], text[title.end() : end].strip("\n"))
        for title, end in zip(titles, ends, strict=True)
    ]


def _finding(code: Code, text: str) -> Page:
    text = _LEVEL.sub("", text, count=1)
    quoted = [" ".join(match.split()) for match in _QUOTED.findall(text)]
    messages = [match for match in quoted if match.count(" ") >= _WORDS_OF_A_MESSAGE - 1]
    return Page(code.title, tuple(messages), _body(text), code)


def _errors() -> list[Page]:
    """One page for each answer: the messages in a row, and the text up to the next message."""
    entries: list[Page] = []
    for _, title, text in _parts(source("errors")):
        position = 0
        messages: list[str] = []
        matches = list(_MESSAGE.finditer(text))
        for match, follower in zip(matches, [*matches[1:], None], strict=True):
            messages.append(match[1])
            position = match.end()
            answer = text[position : follower.start() if follower else len(text)].strip()
            if answer:
                entries.append(Page(title, tuple(messages), _body(answer)))
                messages = []
    return entries


def _body(text: str) -> tuple[Block, ...]:
    text = _RUN.sub(lambda match: f"\n\n$ {match[2] or match[1]}\n\n", text)
    text = _CONSOLE.sub(lambda match: "\n\n" + "\n\n".join(match[1].splitlines()) + "\n\n", text)
    blocks: list[Block] = []
    for paragraph in re.split(r"\n\n+|\n(?=- )", text):
        line = " ".join(paragraph.split())
        if line.startswith("$ "):
            blocks.append(Block("command", line[2:]))
            continue
        line = _EMPHASIS.sub(r"\1", _LINK.sub(r"\1", line))
        if line.startswith("- "):
            blocks.append(Block("item", line[2:]))
        elif line:
            blocks.append(Block("text", line))
    return tuple(blocks)
