"""`ckpt convert`: another format, plain classes, another dtype."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ckpt.api.keywords import model_of
from ckpt.api.writing import convert, with_format
from ckpt.cli.options import (
    Arg,
    DropOther,
    Exclude,
    Include,
    LikeOption,
    Model,
    Paths,
    Prefix,
    SectionOption,
    StripOption,
    To,
    WithConfig,
)
from ckpt.cli.results import ResultOptions, rewrite, writing


@writing
def command(
    paths: Paths = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Write torch-zip, torch-legacy, safetensors or dcp. The default follows OUT's ending.",
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Turn objects into dicts, lists and scalars, numpy arrays into tensors."
        ),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="NAME", help="Cast floating tensors: bfloat16, float16 or float32."),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option("--encoding", metavar="NAME", help="Decode text of Python 2, for example as latin1."),
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option("--shard-size", metavar="BYTES", help="Write safetensors shards with an index, as 5GB."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", metavar="NAME", help="Take DeepSpeed's weights from fp32 (default) or module."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", metavar="N", help="Cut a DCP into the files of N ranks; 1 without it."),
    ] = None,
    optimizer_keys: Annotated[
        str | None,
        typer.Option(
            "--optimizer-keys",
            metavar="KEYS",
            help="Key the optimizer by names (default for a DCP), numbers, or order: names in the order of the model.",
        ),
    ] = None,
    complete_optimizer: Annotated[
        bool,
        typer.Option(
            "--complete-optimizer", help="Give parameters without optimizer state zero moments and step 0."
        ),
    ] = False,
    strip: StripOption = False,
    prefix: Prefix = None,
    to: To = None,
    model: Model = None,
    arg: Arg = None,
    like: LikeOption = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    drop_other: DropOther = False,
    with_config: WithConfig = False,
    *,
    options: ResultOptions,
) -> int:
    """Write a checkpoint in another format, or with --plain, without the classes of its author.

    safetensors get the model's tensors under their own names, and what is left out is listed. A tensor that does not fit is refused.

    A DCP, which torch.distributed.checkpoint.load reads with any mesh, is a folder: -o NAME.dcp, or --format dcp. With
    --section, --include or --exclude it gets the tensors of that part, under their own names.

    A plain file loads with weights_only=True of torch 2.13. torch 2.5 refuses sets and complex numbers in it, torch 2.0 and
    1.13 more: docs/commands/convert.md.

    \b
    ckpt convert model.pth -o model.safetensors
    ckpt convert train.pth --plain -o train.plain.pth
    """
    places = with_format(options.places, format, shard_size, plain=plain, with_config=with_config)
    return rewrite(
        paths,
        partial(
            convert,
            format=format,
            plain=plain,
            dtype=dtype,
            encoding=encoding,
            shard_size=shard_size,
            weights=weights,
            ranks=ranks,
            optimizer_keys=optimizer_keys,
            complete_optimizer=complete_optimizer,
            strip=strip,
            prefix=prefix,
            to=to,
            model=model_of(model, arg),
            like=like,
            include=include,
            exclude=exclude,
            section=section,
            drop_other=drop_other,
            with_config=with_config,
        ),
        options._replace(places=places),
    )
