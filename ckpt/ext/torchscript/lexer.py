"""The tokens of TorchScript source, as torch's own lexer cuts them.

Layout: torch/csrc/jit/frontend/lexer.{h,cpp}. Blanks, comments and a backslash before a
line break may stand between any two tokens, and line breaks too inside of brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.model.errors import UnreadableError
from ckpt.model.rows import NamedTuple

NAME, NUMBER, TEXT, SIGN = "name", "number", "text", "sign"
NEWLINE, INDENT, DEDENT = "newline", "indent", "dedent"
UNKNOWN = "unknown"
"""A character that begins no token. torch stops there, and so do the tokens."""
TYPE_COMMENT = "# type:"
"""A sign, unlike other comments: torch reads on behind it."""

_WORDS = """
    if elif else while for in is not and or return raise assert del pass break continue
    import global with as def
"""
KEYWORDS = frozenset(_WORDS.split())
"""Names that are no values."""

# The order counts: `# type:` is no comment, and `**=` is not `**` and `=`.
_TOKEN = re.compile(
    r"""
      (?P<blank>(?:[ \t\r\f\v]|\\\n)+)
    | (?P<sign>\#\ type:)
    | (?P<comment>\#[^\n]*)
    | (?P<newline>\n)
    | (?P<number>(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)
                    (?:[pP][+-]?[0-9]+)?
                   |(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)j?)
    | (?P<text>\"\"\"|'''|"|')
    | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
    | (?P<other>\*\*=|<<=|>>=|\.\.\.|<=>|->|[-+*/%|&^=!<>]=|\*\*|//|<<|>>
              |[-+*/%@()\[\]:,={}><.?!&^|~])
    | (?P<unknown>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = "([{", ")]}"
_BLANKS = re.compile(r"[ \t\r\f\v]*")


class Token(NamedTuple):
    """A token with its first byte. Those of a line break or an indentation have no
    text.
    """

    kind: str
    text: str
    begin: int


def tokens_of(code: str, begin: int = 0, end: int | None = None) -> Iterator[Token]:
    """Yield the tokens of a part of the code, which begins at the first token of a
    line.

    Lines that go in begin with INDENT, and each level that ends gives a DEDENT and then
    a NEWLINE.
    """
    depth = 0
    levels: list[int] = []
    position, last = begin, len(code) if end is None else end
    is_line_start = True
    while position < last:
        # Inside of brackets a line break is a blank, and indentation means nothing.
        if is_line_start and depth <= 0:
            # A line of nothing but blanks or a comment has no indentation.
            blanks = _BLANKS.match(code, position, last)
            assert blanks is not None
            position = blanks.end()
            if position >= last:
                break
            first = code[position]
            if first == "\n" or (
                first == "#" and not code.startswith(TYPE_COMMENT, position)
            ):
                is_line_start = first == "\n"
                position += first == "\n"
                if first == "#":
                    position = _end_of_line(code, position, last)
                continue
            width = position - blanks.start()
            if not levels:
                levels.append(width)
            elif width > levels[-1]:
                levels.append(width)
                yield Token(INDENT, "", blanks.start())
            else:
                # The first line gives the outermost level, which nothing leaves.
                while len(levels) > 1 and width < levels[-1]:
                    levels.pop()
                    yield Token(DEDENT, "", blanks.start())
                yield Token(NEWLINE, "", blanks.start())
            is_line_start = False
        match = _TOKEN.match(code, position, last)
        assert match is not None
        kind, text = match.lastgroup, match[0]
        position = match.end()
        if kind == TEXT:
            # The pattern has matched the opening quotes only.
            position = _end_of_text(code, position, last, text)
            kind = TEXT if position else UNKNOWN
            text = code[match.start() : position] if position else text
        if kind in ("blank", "comment"):
            continue
        if kind == "newline":
            is_line_start = True
            continue
        is_line_start = False
        if kind == "other":
            depth += (text in _OPENING) - (text in _CLOSING)
        yield Token(SIGN if kind == "other" else str(kind), text, match.start())
        if kind == UNKNOWN:
            break
    # Open blocks end with the code, so each INDENT has its DEDENT.
    for _ in levels[1:]:
        yield Token(DEDENT, "", last)
    yield Token(NEWLINE, "", last)


_STOPS = {quote: re.compile(rf"\\|{quote}") for quote in ('"""', "'''")} | {
    quote: re.compile(rf"[\\\n{quote}]") for quote in ('"', "'")
}
"""Quotes -> the next backslash, the same quotes, or, between single ones, the end of
the line.
"""


def _end_of_text(code: str, position: int, last: int, quotes: str) -> int:
    """Return where a text ends that begins before `position`, or 0 if it does not."""
    while (match := _STOPS[quotes].search(code, position, last)) is not None:
        if match[0] == quotes:
            return match.end()
        if match[0] == "\n":
            return 0
        # A backslash takes the next letter with it, whatever it is.
        position = match.end() + 1
    return 0


def _end_of_line(code: str, position: int, last: int) -> int:
    """The line break that ends a comment, or the end of the code."""
    found = code.find("\n", position, last)
    return last if found < 0 else found


DEEPEST = 300
"""The most brackets, blocks and signs inside of each other. torch.jit.load ends the
process at about 5,000.
"""
_FLAT = frozenset((",", ":", "=", ";", "->", TYPE_COMMENT))
_NESTING = frozenset(("if", "else", "and", "or", "not", "in", "is", "lambda"))


def limit_nesting(tokens: Iterator[Token], deepest: int = DEEPEST) -> Iterator[Token]:
    """Yield tokens while they are not nested too deep for a parser that calls itself.
    Raises UnreadableError.
    """
    blocks = [0]
    """The branches of each open block: an `elif` stands inside of the one before it."""
    chains = [0]
    """The signs of the expression inside of each open bracket."""
    depth = 0
    """The sum of both, and the number of blocks."""
    is_first = True
    for token in tokens:
        text = token.text
        if token.kind in (NEWLINE, INDENT, DEDENT):
            depth -= sum(chains)
            chains = [0]
            if token.kind == INDENT:
                blocks.append(0)
                depth += 1
            elif token.kind == DEDENT and len(blocks) > 1:
                depth -= blocks.pop() + 1
            is_first = True
        elif is_first and text in ("if", "elif"):
            branches = blocks[-1] + 1 if text == "elif" else 0
            depth += branches - blocks[-1]
            blocks[-1] = branches
            is_first = False
        elif text in _FLAT:
            # A new expression begins, beside the one before it and not inside.
            depth -= chains[-1]
            chains[-1] = 0
        elif token.kind == SIGN and text in _CLOSING:
            # A bracket that was never opened closes nothing.
            if len(chains) > 1:
                depth -= chains.pop()
        elif token.kind == SIGN or text in _NESTING:
            chains[-1] += 1
            depth += 1
            if text in _OPENING:
                chains.append(0)
        is_first = is_first and token.kind in (NEWLINE, INDENT, DEDENT)
        if depth > deepest:
            raise UnreadableError(
                "the code of the archive is nested deeper than torch can read"
            )
        yield token
