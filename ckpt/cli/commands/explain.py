"""`ckpt explain`: the page of a finding, or the one that answers an error of PyTorch."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import RewriteJson
from ckpt.jobs.explain import document, explain, pages
from ckpt.render.explain import list_lines, page_lines

_BYTES = 1 << 20
"""The most bytes that are read of stdin."""


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODE|ERROR",
            help="A code, or an error message; - reads it from stdin.",
            show_default=False,
        ),
    ] = None,
    json: RewriteJson = False,
) -> int:
    """Explain a finding, or an error message of PyTorch. Without an argument, list the pages.

    \b
    ckpt explain unused
    ckpt explain "Expected to have finished reduction"
    python train.py 2>&1 | ckpt explain -
    """
    text = " ".join(words or ())
    if text == "-":
        text = sys.stdin.read(_BYTES) if sys.stdin is not None else ""
    elif words is None:
        if json:
            output.write_json(document(pages()))
        else:
            output.write_lines(list_lines(pages(), output.screen_width()))
        return 0
    page = explain(text)
    if json:
        output.write_json(document((page,)))
    else:
        output.write_lines(page_lines(page, output.screen_width()))
    return 0
