"""`ckpt slim`: the weights alone."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ckpt.api.writing import slim
from ckpt.cli.options import (
    DropOther,
    Exclude,
    Include,
    LikeOption,
    Paths,
    Prefix,
    SectionOption,
    StripOption,
    To,
    WithConfig,
)
from ckpt.cli.results import ResultOptions, rewrite, writing
from ckpt.cli.signature import FILTER


@writing
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
    strip: StripOption = False,
    prefix: Prefix = None,
    to: To = None,
    like: LikeOption = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    drop_other: DropOther = False,
    with_config: WithConfig = False,
    *,
    options: ResultOptions,
) -> int:
    """Keep the weights of the model, drop the optimizer and the rest, and pack storages.

    The result is a state dict that loads with weights_only=True, or safetensors where OUT ends so. Tied weights stay tied.

    \b
    ckpt slim train.pth -o weights.pth
    ckpt slim train.pth --strip --to cpu -o release.safetensors
    ckpt slim last.ckpt --keep epoch --keep hyper_parameters -o small.ckpt
    """
    return rewrite(
        paths,
        partial(
            slim,
            keep=keep,
            strip=strip,
            prefix=prefix,
            to=to,
            like=like,
            include=include,
            exclude=exclude,
            section=section,
            drop_other=drop_other,
            with_config=with_config,
        ),
        options._replace(places=options.places._replace(with_config=with_config)),
    )
