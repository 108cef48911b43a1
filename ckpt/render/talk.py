"""What is said on stderr, as lines that fit a terminal: a sentence, and behind it in brackets the way out."""

from __future__ import annotations

import re

from ckpt.render.text import cells, hung, pasted_line, plain_text, whole

_INDENT = 6
"""Cells of `ckpt: `, below which the further lines hang."""
_COMMAND = r"(?:^|(?<=: ))ckpt [a-z]+ .+"


def talk_lines(text: str, hint: str | None, width: int | None) -> list[str]:
    """A sentence with its hint on one line where that fits; else broken at words, and a command on a line of its own."""
    line = text if hint is None else f"{text} ({hint})"
    if hint is None or width is None or cells(line) <= width:
        return _lines(line, width)
    command = re.search(_COMMAND, hint)
    if command is None:
        return _lines(f"{text} {whole(f'({hint})') if 2 * cells(hint) <= width else f'({hint})'}", width)
    lines = _lines(text, width)
    if command.start():
        lead = hung([(" " * _INDENT, "")], hint[: command.start()].rstrip(), width)
        lines += plain_text(lead).splitlines()
    return lines + plain_text([pasted_line(command[0], width, _INDENT)]).splitlines()


def _lines(text: str, width: int | None) -> list[str]:
    return plain_text(hung([], text, width, _INDENT)).splitlines()
