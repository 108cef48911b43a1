"""The output of a program as a person pastes it, made plain: without colours and
without what logs put around lines.

The text is a stranger's. Every pattern takes time that grows with the length of the
text alone.
"""

from __future__ import annotations

import html
import re

LONGEST = 16 << 20
"""Bytes of a text that count, from its end."""

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])"
)
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_LEVEL = r"(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_MARK = re.compile(
    r"\s*(?:"
    # torchrun, mpirun, srun and Ray put the rank before each line.
    r"\[(?:rank|default)?\d{1,6}\](?:\[\w{1,12}\])?:"
    r"|\[\d{1,6},\d{1,6}\]<std\w{3}>:"
    r"|\d{1,6}: "
    r"|\([\w.]{1,80} pid=\d{1,9}[^)\n]{0,80}\)"
    # logging, mmcv, Kubernetes and loguru put the time, the logger and the level before
    # it.
    rf"|\[?\d{{4}}[-/]\d\d[-/]\d\d[T ]{_TIME}(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"(?: (?:stdout|stderr) [FP] )?"
    rf"(?:\s?[-|:\[]?\s?[\w.]{{0,60}}\s?[-|:]?\s?\[?{_LEVEL}\]?\s{{0,8}}"
    r"[-|:\]])?(?: - )?"
    rf"|\[?{_LEVEL}(?:\||:[\w.]{{0,60}}:|\]|:| -)"
    # glog and torch's own log, syslog, docker compose; a mail or an issue quotes.
    rf"|[IWEF]\d{{4}} {_TIME} [^\]\n]{{0,120}}\]"
    rf"|[A-Z][a-z]{{2}} [ \d]\d {_TIME} [\w.-]{{1,80}} "
    r"[\w./-]{1,80}(?:\[\d{1,9}\])?:"
    r"|[\w.-]{1,60}[-_]\d{1,3} {1,20}\| "
    # vLLM writes the month, the day and the place in its own sources.
    rf"|{_LEVEL} \d\d-\d\d {_TIME} (?:\[[\w./-]{{1,120}}:\d{{1,6}}\]"
    rf"|[\w./-]{{1,120}}:\d{{1,6}}\])"
    r"|\[transformers\]"
    r"|> "
    r")\s?"
)
_EDITOR = re.compile(
    r"Exception has occurred: ([\w.]{1,100})[ \t]{0,40}(?:\(note:[^\n)]{0,200}\))?"
    r"[ \t]{0,40}\r?\n"
)
"""The words of the debugger of VS Code, which has the text of the error below them."""
_SPACE = re.compile(r" (?![]*?{_])")
_MARKS = 4
"""Marks that may stand one behind the other before a line: a time, a rank, a level."""
_WRITTEN = re.compile(r"\\([nrt\"'])")
_BREAKS = {"n": "\n", "r": "\n", "t": "\t"}
_ENTITIES = ("&quot;", "&#", "&lt;", "&gt;", "&apos;")
_QUOTES = str.maketrans(
    {
        "\u201c": '"',
        "\u201d": '"',
        "\u2018": "'",
        "\u2019": "'",
        "\u00a0": " ",
        # A Chinese keyboard types its own marks.
        "\uff0c": ",",
        "\uff1a": ":",
        "\uff08": "(",
        "\uff09": ")",
        "\uff1f": "?",
        "\u3002": ".",
    }
)


def spaced_pattern(pattern: str) -> str:
    """A pattern in which each space stands for any white space, for terminals wrap
    lines. Classes keep theirs.
    """
    return _SPACE.sub(r"\\s{1,40}", pattern)


def plain_text(text: str) -> str:
    """Return a text without colours and marks of logs, with each turn of a progress bar
    on its own line.

    A text that a log has written as a string of JSON or Python is read as the text that
    it was.
    """
    text = _ESCAPE.sub("", text[-LONGEST:])
    if any(entity in text for entity in _ENTITIES):
        text = html.unescape(text)
    text = text.translate(_QUOTES) if not text.isascii() else text
    text = _EDITOR.sub(r"\1: ", text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(_strip_marks(line) for line in _join_broken(lines))


_NARROWEST = 40
_WIDEST = 400
"""Columns of a terminal whose lines may be broken in the middle of words."""
_NEAR = 12
"""Columns before the end of a line in which lines end that are broken at words."""
_WORD_END = re.compile(r"[\w.,\"'(\[/-]$")
_WORD_BEGIN = re.compile(r"[\w.,\"')\]/-]")
_OF_TORCH = (
    r"(?:mismatch|for|copying|a|param|with|shape|from|checkpoint|the|in|current|model"
    r"|is|key\(s\)|state_dict)"
)
_WORD_LAST = re.compile(rf"(?:^|\s){_OF_TORCH}$")
_WORD_FIRST = re.compile(rf"{_OF_TORCH}(?=[\s.:]|$)")
"""Whole words of torch's messages on both sides of a break: a terminal broke such lines
between words, even where several of them have one length.
"""


_DIGIT = re.compile(r"\d")


def _join_broken(lines: list[str]) -> list[str]:
    """Join the lines that a terminal has broken in the middle of words.

    Most lines then have one length, and hardly any is a little shorter. Where a line
    ends with a space, or the next begins with one, the break stays.
    """
    width = max(map(len, lines), default=0)
    longest = [line for line in lines if len(line) == width]
    full = len(longest)
    # Lines that a program has written one by one are as long where they say the same
    # with other numbers, or begin with the mark of a log.
    is_listed = len({_DIGIT.sub("0", line) for line in longest}) == 1
    if is_listed or all(map(_MARK.match, longest)):
        return lines
    near = sum(width - _NEAR <= len(line) < width for line in lines)
    if not _NARROWEST <= width <= _WIDEST or full < 2 or 3 * near > full:
        return lines
    joined: list[str] = []
    is_open = False
    for line in lines:
        is_between = is_open and _WORD_LAST.search(joined[-1]) is not None
        if is_between and _WORD_FIRST.match(line):
            joined.append(line)
        elif is_open and _WORD_BEGIN.match(line):
            joined[-1] += line
        else:
            joined.append(line)
        is_open = len(line) == width and _WORD_END.search(line) is not None
    return joined


def _strip_marks(line: str) -> str:
    """A line without the marks before it."""
    if "\\n" in line and (
        "\\t" in line or '\\"' in line or line.lstrip().startswith(("{", '"', "'"))
    ):
        line = _WRITTEN.sub(lambda match: _BREAKS.get(match[1], match[1]), line)
    start = 0
    for _ in range(_MARKS):
        mark = _MARK.match(line, start)
        if mark is None:
            break
        start = mark.end()
    return line[start:]
