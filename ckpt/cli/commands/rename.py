"""`ckpt rename`: names by substitution."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli.advice import SUFFIXES
from ckpt.cli.options import Exclude, Include, Link, Paths, SectionOption
from ckpt.cli.results import WriteOptions, rewrite, writing
from ckpt.jobs.rewrite.rename import rename, substitution
from ckpt.names import Globs


@writing()
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
    options: WriteOptions,
) -> int:
    """Rename the tensors of a model by regular expressions, one after the other.

    Module versions and the names in an optimizer change with them. Two names never become one.

    \b
    ckpt rename bert.pth --sub 's/^bert\\.//' --sub 's/LayerNorm\\.gamma$/LayerNorm.weight/' -o out.pth
    """
    globs = Globs(include or (), exclude or ())
    subs = [substitution(text) for text in sub]
    return rewrite(
        paths,
        lambda survey, limits: rename(survey, subs, limits, section=section, select=globs),
        options._replace(suffix=SUFFIXES["rename"], weights_file=True, link=link),
    )
