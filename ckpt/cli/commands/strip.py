"""`ckpt strip`: names without prefixes."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli.advice import SUFFIXES
from ckpt.cli.options import Exclude, Include, Link, Paths, SectionOption
from ckpt.cli.results import WriteOptions, rewrite, writing
from ckpt.jobs.rewrite.strip import strip
from ckpt.names import Globs


@writing()
def command(
    paths: Paths = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="TEXT", help="Strip this prefix instead of those that wrappers leave."
        ),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    link: Link = False,
    *,
    options: WriteOptions,
) -> int:
    """Strip the prefixes of wrappers from the names of tensors: module., _orig_mod., also nested.

    Module versions and the names in an optimizer change with them. Two names never become one.

    \b
    ckpt strip ddp.pth -o model.pth
    ckpt strip lightning.ckpt --prefix model. --in-place
    """
    globs = Globs(include or (), exclude or ())
    return rewrite(
        paths,
        lambda survey, limits: strip(survey, limits, prefix=prefix, section=section, select=globs),
        options._replace(suffix=SUFFIXES["strip"], weights_file=True, link=link),
    )
