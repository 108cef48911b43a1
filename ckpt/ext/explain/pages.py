"""The pages that finding codes and errors of PyTorch lead to, and the search for the
page of a text.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Literal

from ckpt.bytes.location import locate, read_file
from ckpt.model.errors import UsageError
from ckpt.model.findings import CATALOGUE, Code
from ckpt.model.limits import Limits
from ckpt.model.names import nearest_names
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

_WORD = re.compile(r"[a-z_]+(?:\.[a-z_]+)*|\d+")
_LEAST = 3
"""Words in a row that a text and an error share by chance."""
_KIN = 2
"""Words of substance that they must share."""
_SHORT = 3
"""Letters of a word that says little."""
_LONGEST_CODE = 40
_LONGEST = 20_000
"""Characters of a text that are searched, from its end: the error of a traceback is its
last line.
"""


def page_of_code(text: str) -> Page | None:
    """The page of a finding code, or None for any other text."""
    code = text.strip().lower().replace("_", "-")
    return next(
        (page for page in pages() if page.code is not None and page.code.code == code),
        None,
    )


def find_page(text: str) -> Page | None:
    """The page that answers an error by the words that a line shares with its messages,
    or None.

    The last line counts that has such a page. It says something where it shares words
    that few pages have.
    """
    # The error of a traceback is its last line.
    for line in reversed(text[-_LONGEST:].splitlines()):
        words = _split_words(line)
        near = [
            page
            for page in pages()
            if page.code is None and _count_shared_words(words, page) >= _KIN
        ]
        scored = [
            # The number stands before the page, so that two pages are never compared.
            (_longest_run(words, page), number, page)
            for number, page in enumerate(near)
        ]
        best = max(scored, default=None)
        if best is not None and best[0] > _LEAST:
            return best[2]
    return None


_NO_PAGE = (
    "all codes and messages are listed by ckpt explain; with a file behind it, ckpt "
    "says what is in the file"
)


def no_page(text: str) -> UsageError:
    """The error that no page answers a text, with the nearest pages."""
    near = _nearest_pages(
        text.strip().lower().replace("_", "-"), _split_words(text[-_LONGEST:])
    )
    return UsageError(
        f"{show(_last_line(text), 60)}: no page for this",
        hint=f"the nearest: {near}" if near else _NO_PAGE,
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def page_of_kind(kind: str) -> Page:
    """The page of a family of errors, by its word."""
    return next(page for page in pages() if kind in page.kinds)


def _nearest_pages(code: str, words: Sequence[str]) -> str:
    """Up to three pages, as `ckpt explain` takes them: by the letters of a code, then
    by the words of an error.

    Empty where no page shares a word of substance with the text.
    """
    # A long text is no mistyped code.
    near = nearest_names(code, list(CATALOGUE)) if len(code) < 2 * _LONGEST_CODE else []
    kin = sorted(pages(), key=lambda page: -_count_shared_words(words, page))
    near += [page.word for page in kin if _count_shared_words(words, page)]
    return ", ".join(
        f'"{word}"' if " " in word else word for word in list(dict.fromkeys(near))[:3]
    )


def _split_words(text: str) -> list[str]:
    """The words of a text, with every number as one word: indices and ranks differ from
    run to run.
    """
    return ["#" if word.isdigit() else word for word in _WORD.findall(text.lower())]


def _longest_run(words: Sequence[str], page: Page) -> int:
    """The most words in a row that a text shares with a message of a page, some of
    substance among them.
    """
    runs = [_shared_run(words, _split_words(message)) for message in page.messages]
    substance = _rare_words(page)
    return max(
        (len(run) for run in runs if len(substance.intersection(run)) >= _KIN),
        default=0,
    )


def _shared_run(first: Sequence[str], second: Sequence[str]) -> Sequence[str]:
    """The longest run of words that both have."""
    most = 0
    last = 0
    before = [0] * (len(second) + 1)
    for position, word in enumerate(first, 1):
        now = [0] * (len(second) + 1)
        for index, other in enumerate(second):
            # A number begins no run, for any two texts share `#`.
            if (word == other and word != "#") or (word == other and before[index]):
                now[index + 1] = before[index] + 1
        if max(now) > most:
            most = max(now)
            last = position
        # Only the last row of the table is kept, so memory grows with one text alone.
        before = now
    return first[last - most : last]


def _count_shared_words(words: Sequence[str], page: Page) -> int:
    """Count the words of substance of the text that are in the errors, the title or the
    code of a page.
    """
    return len(_rare_words(page).intersection(words))


@cache
def _rare_words(page: Page) -> frozenset[str]:
    """The words of a page that few other pages have: `error` and `file` say nothing."""
    counts = _pages_per_word()
    return frozenset(word for word in _own_words(page) if counts[word] <= _FEW)


@cache
def _pages_per_word() -> Counter[str]:
    """The number of pages that have each word."""
    return Counter(word for page in pages() for word in _own_words(page))


@cache
def _own_words(page: Page) -> frozenset[str]:
    texts = (
        *page.messages,
        page.title,
        page.code.code.replace("-", " ") if page.code else "",
    )
    return frozenset(
        word
        for word in _split_words(" ".join(texts))
        if len(word) > _SHORT and word not in _EMPTY
    )


_FEW = 4
"""Pages that may have a word of substance."""
_EMPTY_TEXT = """
about after all also attribute attributeerror been before class could data denied
directory enforce errno error errors expected fail failed file files following found
from have here import inline_container.cc into keyerror load loaded loading make model
module more must name names none number object only oserror other process python
runtimeerror same should some state such that their them there these they this torch
type typeerror unexpected used using value valueerror values when which will with your
"""
_EMPTY = frozenset(_EMPTY_TEXT.split())
"""Words of every program's errors."""


_TITLE = re.compile(r"^(#{2,3}) (.+)$", re.MULTILINE)
_LEVEL = re.compile(r"\*(?:error|warning|info)\.\* ")
_MESSAGE = re.compile(r"```text\n(.*?)\n```\n*", re.DOTALL)
_QUOTED = re.compile(r"`([^`]+)`")
_RUN = re.compile(
    r"<!-- run: (.+?) -->\n?(?:```console\n.*?\n```\n?)?(?:<!-- yours: (.+?) -->\n?)?",
    re.DOTALL,
)
"""A command with what it prints in the docs, and the same for the reader's own file,
which `ckpt explain` shows.
"""
_CONSOLE = re.compile(r"```console\n(.*?)\n```\n?", re.DOTALL)
_KINDS = re.compile(r"<!-- kinds: (.+?) -->\n*")
"""The words of the families of a page, before its first message."""
_IF = re.compile(r"<!-- if: ([a-z0-9-]+) -->\n?")
"""The condition of the paragraph that follows."""
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_EMPHASIS = re.compile(r"\*(\w+)\*|`")
_WORDS_OF_A_MESSAGE = 3


_SENTENCE_END = re.compile(r"(?<! )\. ")


class Block(NamedTuple):
    """A part of a page: a paragraph, an item of a list, or a command to run. Text is on
    one line, without links.

    `condition` is the word of what must hold for a file, empty where the text is true
    for every one.
    """

    kind: Literal["text", "item", "command"]
    text: str
    condition: str = ""


class Page(NamedTuple):
    """A page: of a finding, with its `code`, or of errors. `messages` are the errors of
    PyTorch that it answers.

    `kinds` are the words of the families whose errors lead to it.
    """

    title: str
    messages: tuple[str, ...]
    body: tuple[Block, ...]
    code: Code | None = None
    kinds: tuple[str, ...] = ()

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
        """The argument of `ckpt explain` for this page: its code or the first sentence
        of its first error.
        """
        if self.code:
            return self.code.code
        words = " ".join(self.messages[0].split())
        # torch writes "[enforce fail at FILE:LINE] . TEXT", whose first dot ends
        # nothing.
        return _SENTENCE_END.split(words, maxsplit=1)[0]


@cache
def pages() -> tuple[Page, ...]:
    """All pages: the findings in the order of the catalogue, then the errors in the
    order of their page.
    """
    findings = {
        title: text
        for _, title, text in _split_parts(source("findings"))
        if title in CATALOGUE
    }
    return (
        *(_finding_page(code, findings[name]) for name, code in CATALOGUE.items()),
        *_error_pages(),
    )


def source(name: str) -> str:
    """The Markdown of `findings` or `errors`, with the commands whose output only the
    docs show.
    """
    page = locate(os.path.join(os.path.dirname(__file__), f"{name}.md"))
    return read_file(page, Limits(), "the page").decode("utf-8")


def _split_parts(text: str) -> list[tuple[int, str, str]]:
    """(depth, title, text) of each part of a page."""
    titles = list(_TITLE.finditer(text))
    ends = [title.start() for title in titles[1:]] + [len(text)]
    return [
        (len(title[1]), title[2], text[title.end() : end].strip("\n"))
        for title, end in zip(titles, ends, strict=True)
    ]


def _finding_page(code: Code, text: str) -> Page:
    text = _LEVEL.sub("", text, count=1)
    quoted = [" ".join(match.split()) for match in _QUOTED.findall(text)]
    # A shorter quotation is a name or an option, and no message.
    messages = [
        match for match in quoted if match.count(" ") >= _WORDS_OF_A_MESSAGE - 1
    ]
    return Page(code.title, tuple(messages), _parse_body(text), code)


def _error_pages() -> list[Page]:
    """One page for each answer: the messages in a row, and the text up to the next
    message.
    """
    entries: list[Page] = []
    for _, title, text in _split_parts(source("errors")):
        messages: list[str] = []
        kinds = _page_kinds(text, 0)
        matches = list(_MESSAGE.finditer(text))
        if not matches:
            continue  # a part for readers of the page alone
        for match, follower in zip(matches, [*matches[1:], None], strict=True):
            messages.append(match[1])
            position = match.end()
            answer = text[position : follower.start() if follower else len(text)]
            body = _parse_body(_KINDS.sub("", answer).strip())
            # Messages in a row share the answer that follows the last one.
            if body:
                entries.append(Page(title, tuple(messages), body, kinds=kinds))
                messages = []
                kinds = _page_kinds(text, position)
    return entries


def _page_kinds(text: str, position: int) -> tuple[str, ...]:
    found = _KINDS.search(text, position)
    return () if found is None else tuple(found[1].split())


def _parse_body(text: str) -> tuple[Block, ...]:
    # A page shows the command for the reader's file, without the output of the docs.
    text = _RUN.sub(lambda match: f"\n\n$ {match[2] or match[1]}\n\n", text)
    text = _CONSOLE.sub(
        lambda match: "\n\n" + "\n\n".join(match[1].splitlines()) + "\n\n", text
    )
    blocks: list[Block] = []
    condition = ""
    # Items of a list stand on lines that follow each other.
    for paragraph in re.split(r"\n\n+|\n(?=- )", text):
        found = _IF.match(paragraph)
        line = " ".join(paragraph[found.end() if found is not None else 0 :].split())
        if line.startswith("$ "):
            # A command goes with the paragraph that introduces it.
            blocks.append(Block("command", line[2:], condition))
            continue
        condition = found[1] if found is not None else ""
        line = _EMPHASIS.sub(r"\1", _LINK.sub(r"\1", line))
        if line.startswith("- "):
            blocks.append(Block("item", line[2:], condition))
        elif line:
            blocks.append(Block("text", line, condition))
    return tuple(blocks)
