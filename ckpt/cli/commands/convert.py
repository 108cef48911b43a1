"""`ckpt convert`: another format, plain classes, another dtype."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ckpt.cli.advice.suffixes import SUFFIXES
from ckpt.cli.options import DropOther, Exclude, Include, Paths, SectionOption
from ckpt.cli.outputs import WriteOptions
from ckpt.cli.writing import rewrite, writing
from ckpt.errors import UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import save, writer_of
from ckpt.jobs.rewrite.convert import convert
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.limits import Limits, number_of
from ckpt.names import Globs


@writing(in_place=False)
def command(
    paths: Paths = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Write torch-zip, torch-legacy or safetensors. The default follows OUT's ending.",
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
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    drop_other: DropOther = False,
    *,
    options: WriteOptions,
) -> int:
    """Write a checkpoint in another format, or with --plain, without the classes of its author.

    safetensors get the model's tensors under their own names. What does not fit is listed and refused.

    A plain file loads with weights_only=True of torch 2.13. torch 2.5 refuses sets and complex numbers in it, torch 2.0 and
    1.13 more: docs/commands/convert.md.

    \b
    ckpt convert model.pth -o model.safetensors
    ckpt convert train.pth --plain -o train.plain.pth
    """
    if weights is not None and section is not None:
        raise UsageError("--weights and --section exclude each other")
    globs = Globs(include or (), exclude or ())
    options = _with_format(options, format, shard_size, plain=plain)

    def make(survey: Survey, limits: Limits) -> RewriteReport:
        written = options.format or save.own_format(survey.checkpoint)
        return convert(
            survey,
            written,
            save.traits_of(written),
            limits,
            writer_of(written).unfit,
            plain=plain,
            dtype=dtype,
            encoding=encoding,
            section=section,
            select=globs,
            weights=weights,
            drop_other=drop_other,
        )

    return rewrite(paths, make, options)


def _with_format(
    options: WriteOptions, to: str | None, shard_size: str | None, *, plain: bool
) -> WriteOptions:
    """The options with the format that --format, --shard-size and the ending of OUT ask for. Raises UsageError."""
    is_pickle = to is not None and save.traits_of(save.format_for("", to)).is_pickle
    suffix = SUFFIXES["convert --plain" if plain else "convert"] if plain or is_pickle else ""
    ending = None if plain or is_pickle else ".safetensors"
    options = options._replace(suffix=suffix, ending=ending, plain=plain)
    out = options.output
    if shard_size is None:
        if out is None and to is None:
            return options
        return options._replace(format=save.format_for("" if options.is_folder else out or "", to))
    shard_bytes = number_of(shard_size)
    if not shard_bytes:
        raise UsageError(f"--shard-size {shard_size}: not a number of bytes", hint="as in 5GB")
    if to not in (None, save.SHARD_FORMAT):
        raise UsageError(f"--shard-size goes with {save.SHARD_FORMAT}, not with --format {to}")
    if out is not None and not os.path.isdir(out):
        save.format_for(out.removesuffix(".index.json"), save.SHARD_FORMAT)
    return options._replace(shard_bytes=shard_bytes, format=save.SHARD_FORMAT)
