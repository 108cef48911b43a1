"""`ckpt slim`: the weights alone."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli.advice import SUFFIXES
from ckpt.cli.options import DropOther, Exclude, Include, Paths, SectionOption
from ckpt.cli.results import WriteOptions, rewrite, writing
from ckpt.cli.signature import FILTER
from ckpt.cli.work import LikeOption, like_at
from ckpt.jobs.rewrite.slim import slim
from ckpt.names import Globs


@writing(in_place=False, keep_code=False)
def command(
    paths: Paths = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="PATH",
            help="Keep this section or value too. Repeatable.",
            rich_help_panel=FILTER,
        ),
    ] = None,
    like: LikeOption = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    drop_other: DropOther = False,
    *,
    options: WriteOptions,
) -> int:
    """Keep the weights of the model, drop the optimizer and the rest, and pack storages.

    The result is a state dict that loads with weights_only=True. Tied weights stay tied.

    \b
    ckpt slim train.pth -o weights.pth
    ckpt slim last.ckpt --keep epoch --keep hyper_parameters -o small.ckpt
    """
    globs = Globs(include or (), exclude or ())
    if like is not None:
        options = options._replace(like=like_at(like, options.limits, section), like_section=section)
    return rewrite(
        paths,
        lambda survey, limits: slim(
            survey, limits, section=section, select=globs, keep=keep or (), drop_other=drop_other
        ),
        options._replace(suffix=SUFFIXES["slim"], plain=True),
    )
