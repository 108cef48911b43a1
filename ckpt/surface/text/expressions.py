"""Breaking an expression of Python, which is to be copied, for a screen that is
narrower than it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Cells = Callable[[str], int]
"""A function that returns the cells of a terminal which a text takes."""

_HANGS = 4
"""The cells by which lines after the first are indented."""
_PIECES = re.compile(
    r"""
      "(?:[^"\\\n]|\\.)*"[,)\]]*\s?      # a text, and what closes behind it
    | [^"([{,\s]*[([{][)\]}]*           # up to a bracket that opens
    | [^"([{,\s]+[,\s]?\s?             # a word, or an argument
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_TEXT_OF_PYTHON = re.compile(r'"(?:[^"\\]|\\.)*"')
_PARTS_OF_TEXT = re.compile(r"[^/]*/|[^/]+")


def break_expression(code: str, width: int, cells: Cells) -> list[str]:
    """Return the lines of an expression of at most `width` cells, broken where it has
    brackets around. What would not be the same code for Python stays one line.
    """
    rows = _broken_rows(code, width, cells)
    return rows if _is_same_code("\n".join(rows), code) else [code]


def _broken_rows(code: str, width: int, cells: Cells) -> list[str]:
    rows, depth = [""], 0
    for piece in _PIECES.findall(code):
        # Python goes on in the next line only inside of brackets.
        if depth and cells(rows[-1]) + cells(piece.rstrip()) > width:
            rows.append(" " * _HANGS)
        room = width - cells(rows[-1])
        if depth and piece.startswith('"') and cells(piece.rstrip()) > room:
            # Texts that stand side by side are one text.
            *firsts, last = _texts_in_parts(piece, room, cells)
            rows[-1] += firsts[0] if firsts else ""
            rows += [" " * _HANGS + text for text in firsts[1:]]
            if firsts:
                rows.append(" " * _HANGS)
            rows[-1] += last
        else:
            rows[-1] += piece
        bare = _TEXT_OF_PYTHON.sub("", piece)
        depth += sum(char in "([{" for char in bare) - sum(
            char in ")]}" for char in bare
        )
    return [row.rstrip() for row in rows]


def _texts_in_parts(text: str, width: int, cells: Cells) -> list[str]:
    """Return a text of Python as several of at most `width` cells, broken behind
    slashes.
    """
    parts = [""]
    for part in _PARTS_OF_TEXT.findall(text):
        if cells(parts[-1]) > 1 and cells(parts[-1]) + cells(part) + 1 > width:
            parts[-1] += '"'
            parts.append('"')
        parts[-1] += part
    return parts


def _is_same_code(one: str, other: str) -> bool:
    """Tell whether two texts are the same tokens for Python. What a file says is not
    compiled for it.
    """
    from tokenize import TokenError  # here: few screens are that narrow

    try:
        return _tokens_of_code(one) == _tokens_of_code(other)
    except (TokenError, SyntaxError):
        return False  # a command of a shell


def _tokens_of_code(code: str) -> list[str]:
    """Return the tokens of an expression; texts side by side are one. Raises
    TokenError, SyntaxError.
    """
    from io import StringIO
    from token import ERRORTOKEN, NL, STRING
    from tokenize import generate_tokens

    tokens: list[str] = []
    is_text = False
    for token in generate_tokens(StringIO(code).readline):
        if token.type == ERRORTOKEN:
            raise SyntaxError("no code of Python")
        # A line break inside of brackets is no code.
        if token.type == NL:
            continue
        if token.type == STRING and is_text:
            tokens[-1] = tokens[-1][:-1] + token.string[1:]
        else:
            tokens.append(token.string)
        is_text = token.type == STRING
    return tokens
