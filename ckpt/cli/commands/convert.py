"""`ckpt convert`: another format, plain classes, another dtype."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ckpt.cli.options import (
    DropOther,
    DryRun,
    Force,
    LimitOption,
    OnePath,
    Output,
    RewriteJson,
    SectionOption,
    Verify,
    limits_of,
)
from ckpt.cli.writing import WriteOptions, rewrite
from ckpt.errors import UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import save, writer_of
from ckpt.jobs.rewrite.convert import convert
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.limits import Limits, number_of


def command(
    path: OnePath,
    out: Output = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="FORMAT", help="torch-zip, torch-legacy or safetensors; else by OUT's ending."
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Objects become dicts, lists and scalars, numpy becomes tensors.")
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="NAME", help="Cast floating tensors: bfloat16, float16 or float32."),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option("--encoding", metavar="NAME", help="Make text of Python 2 strings for good, as latin1."),
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option("--shard-size", metavar="BYTES", help="safetensors in shards with an index, as 5GB."),
    ] = None,
    section: SectionOption = None,
    drop_other: DropOther = False,
    force: Force = False,
    dry_run: DryRun = False,
    verify: Verify = None,
    json: RewriteJson = False,
    limit: LimitOption = None,
) -> int:
    """Write a checkpoint in another format; with --plain, one that needs nobody's classes to load.

    safetensors get the model under its own names; what they cannot hold is refused with the list.

    \b
    ckpt convert model.pth -o model.safetensors
    ckpt convert train.pth --plain -o train.plain.pth
    """
    is_pickle = to is not None and save.traits_of(save.format_for("", to)).is_pickle
    suffix = ".plain" if plain else ".converted" if is_pickle else ""
    ending = None if plain or is_pickle else ".safetensors"
    asked = WriteOptions(out, suffix, None, False, force, dry_run, json, verify, plain=plain, ending=ending)
    if shard_size is not None:
        shard_bytes = number_of(shard_size)
        if not shard_bytes:
            raise UsageError(f"--shard-size {shard_size}: not a number of bytes", hint="as in 5GB")
        if to not in (None, save.SHARD_FORMAT):
            raise UsageError(f"--shard-size goes with {save.SHARD_FORMAT}, not with --to {to}")
        if out is not None and not os.path.isdir(out):
            save.format_for(out.removesuffix(".index.json"), save.SHARD_FORMAT)
        asked = asked._replace(shard_bytes=shard_bytes, format=save.SHARD_FORMAT)
    elif out is not None or to is not None:
        asked = asked._replace(format=save.format_for(out or "", to))

    def make(survey: Survey, limits: Limits) -> RewriteReport:
        format = asked.format or save.own_format(survey.checkpoint)
        return convert(
            survey,
            format,
            save.traits_of(format),
            limits,
            writer_of(format).unfit,
            plain=plain,
            dtype=dtype,
            encoding=encoding,
            section=section,
            drop_other=drop_other,
        )

    return rewrite([path], make, asked, limits_of(limit))
