"""`ckpt convert`: another format, plain classes, another dtype."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ckpt.cli.advice import SUFFIXES
from ckpt.cli.options import Arg, DropOther, Exclude, Include, Model, Paths, SectionOption, model_of
from ckpt.cli.results import WriteOptions, rewrite, writing
from ckpt.cli.work import LikeOption, like_at
from ckpt.errors import UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import is_folder_format, save, writer_of
from ckpt.jobs.rewrite.convert import convert
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.jobs.rewrite.sets import refuse_lost, with_flattening
from ckpt.limits import Limits, number_of
from ckpt.names import Globs

MOST_RANKS = 10_000
"""Of a checkpoint that is written: each rank is a file."""


@writing(in_place=False)
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
    model: Model = None,
    arg: Arg = None,
    like: LikeOption = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    drop_other: DropOther = False,
    *,
    options: WriteOptions,
) -> int:
    """Write a checkpoint in another format, or with --plain, without the classes of its author.

    safetensors get the model's tensors under their own names. What does not fit is listed and refused.

    A DCP, which torch.distributed.checkpoint.load reads with any mesh, is a folder: -o NAME.dcp, or --format dcp. With
    --section, --include or --exclude it gets the tensors of that part, under their own names.

    A plain file loads with weights_only=True of torch 2.13. torch 2.5 refuses sets and complex numbers in it, torch 2.0 and
    1.13 more: docs/commands/convert.md.

    \b
    ckpt convert model.pth -o model.safetensors
    ckpt convert train.pth --plain -o train.plain.pth
    """
    if weights is not None and section is not None:
        raise UsageError("--weights and --section exclude each other")
    globs = Globs(include or (), exclude or ())
    live = model_of(model, arg)
    options = _with_format(options, format, shard_size, plain=plain)
    options = _with_ranks(options, ranks, in_part=bool(globs) or section is not None)
    if like is not None:
        options = options._replace(like=like_at(like, options.limits, section), like_section=section)

    def make(survey: Survey, limits: Limits) -> RewriteReport:
        written = options.format or save.own_format(survey.checkpoint)
        traits = save.traits_of(written)
        if traits.is_pickle:
            refuse_lost(survey.checkpoint)
        report = convert(
            survey if live is None else Survey(survey.checkpoint, live),
            written,
            traits,
            limits,
            writer_of(written).unfit,
            plain=plain,
            dtype=dtype,
            encoding=encoding,
            section=section,
            select=globs,
            weights=weights,
            drop_other=drop_other,
            optimizer_keys=optimizer_keys,
            complete_optimizer=complete_optimizer,
        )
        if traits.is_folder:
            report = with_flattening(report, options.ranks, limits)
        return report

    return rewrite(paths, make, options)


def _with_format(
    options: WriteOptions, to: str | None, shard_size: str | None, *, plain: bool
) -> WriteOptions:
    """The options with the format that --format, --shard-size and the ending of OUT ask for. Raises UsageError."""
    is_pickle = to is not None and save.traits_of(save.format_for("", to)).is_pickle
    suffix = SUFFIXES["convert --plain" if plain else "convert"] if plain or is_pickle else ""
    ending = None if plain or is_pickle else ".safetensors"
    options = options._replace(suffix=suffix, ending=ending, plain=plain)
    out = None if options.output is None else options.output.rstrip("/") or options.output
    if shard_size is None:
        if out is None and to is None:
            return options
        is_folder = out is not None and options.is_folder and not is_folder_format(out, options.limits)
        return options._replace(format=save.format_for("" if is_folder else out or "", to))
    shard_bytes = number_of(shard_size)
    if not shard_bytes:
        raise UsageError(f"--shard-size {shard_size}: not a number of bytes", hint="as in 5GB")
    if to not in (None, save.SHARD_FORMAT):
        raise UsageError(f"--shard-size goes with {save.SHARD_FORMAT}, not with --format {to}")
    if out is not None and not os.path.isdir(out):
        save.format_for(out.removesuffix(".index.json"), save.SHARD_FORMAT)
    return options._replace(shard_bytes=shard_bytes, format=save.SHARD_FORMAT)


def _with_ranks(options: WriteOptions, ranks: int | None, *, in_part: bool) -> WriteOptions:
    """The options with the files that --ranks asks for. Raises UsageError.

    Without it the items of a part of a distributed checkpoint are taken as they are.
    """
    is_folder = options.format is not None and save.traits_of(options.format).is_folder
    if ranks is not None and not is_folder:
        raise UsageError("--ranks goes with --format dcp")
    if ranks is not None and not 0 < ranks <= MOST_RANKS:
        raise UsageError(f"--ranks {ranks}: not a number of ranks from 1 to {MOST_RANKS:,}")
    return options._replace(ranks=(ranks or (None if in_part else 1)) if is_folder else None)
