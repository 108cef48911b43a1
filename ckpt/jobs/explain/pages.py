"""The pages, parsed: one for each finding, one for each group of error messages that one answer helps against."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Literal

from ckpt.findings import CATALOGUE, Code
from ckpt.io.location import locate, read_file
from ckpt.limits import Limits
from ckpt.rows import NamedTuple

_TITLE = re.compile(r"^(#{2,3}) (.+)$", re.MULTILINE)
_LEVEL = re.compile(r"\*(?:error|warning|info)\.\* ")
_MESSAGE = re.compile(r"```text\n(.*?)\n```\n*", re.DOTALL)
_QUOTED = re.compile(r"`([^`]+)`")
_RUN = re.compile(r"<!-- run: (.+?) -->\n?(?:```console\n.*?\n```\n?)?", re.DOTALL)
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

    @property
    def word(self) -> str:
        """What `ckpt explain` takes for this page: the code, or the first sentence of the first error."""
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
    found: list[Page] = []
    for _, title, text in _parts(source("errors")):
        at = 0
        messages: list[str] = []
        matches = list(_MESSAGE.finditer(text))
        for match, follower in zip(matches, [*matches[1:], None], strict=True):
            messages.append(match[1])
            at = match.end()
            answer = text[at : follower.start() if follower else len(text)].strip()
            if answer:
                found.append(Page(title, tuple(messages), _body(answer)))
                messages = []
    return found


def _body(text: str) -> tuple[Block, ...]:
    text = _RUN.sub(lambda match: f"\n\n$ {match[1]}\n\n", text)
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
