"""`ckpt rename`: names by substitution."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ckpt.api.writing import rename
from ckpt.cli.options import Exclude, Include, Link, Paths, SectionOption
from ckpt.cli.results import ResultOptions, rewrite, writing


@writing
def command(
    sub: Annotated[
        list[str],
        typer.Option(
            "--sub", metavar="S/A/B/", help="Substitute a regular expression, as in sed. Repeatable."
        ),
    ],
    paths: Paths = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    link: Link = False,
    *,
    options: ResultOptions,
) -> int:
    """Rename the tensors of a model by regular expressions, one after the other.

    Module versions and the names in an optimizer change with them. Two names never become one.

    \b
    ckpt rename bert.pth --sub 's/^bert\\.//' --sub 's/LayerNorm\\.gamma$/LayerNorm.weight/' -o out.pth
    """
    return rewrite(
        paths,
        partial(
            rename,
            sub=sub,
            include=include,
            exclude=exclude,
            section=section,
            link=link,
        ),
        options,
    )
