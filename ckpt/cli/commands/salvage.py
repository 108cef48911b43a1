"""`ckpt salvage`: what is whole of a checkpoint that is cut off, damaged or incomplete."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.advice import SUFFIXES
from ckpt.cli.options import Paths, opened
from ckpt.cli.results import WriteOptions, rewrite, writing
from ckpt.cli.work import executor
from ckpt.errors import UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import save, writer_of
from ckpt.io.executor import Threads
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.jobs.rewrite.salvage import as_format, salvage, unsound
from ckpt.limits import Limits


@writing(in_place=False, partial=False)
def command(
    paths: Paths = None,
    fill_from: Annotated[
        str | None,
        typer.Option(
            "--fill-from",
            metavar="OTHER",
            help="Take lost tensors of the same name, shape and dtype from another save.",
        ),
    ] = None,
    names_from: Annotated[
        str | None,
        typer.Option(
            "--names-from",
            metavar="OTHER",
            help="Name the items of a DCP without .metadata after another save of the same run.",
        ),
    ] = None,
    *,
    options: WriteOptions,
) -> int:
    """Write what is whole of a checkpoint that is cut off, damaged or incomplete, and list what is lost.

    Every tensor whose bytes are all there keeps its name, and its recorded checksum is compared. The format stays, or OUT's
    ending chooses one. Exit code 0: nothing is lost. 1: something is lost.

    \b
    ckpt salvage cut.pth -o rescued.pth
    ckpt salvage last.pth --fill-from epoch_11.pth -o rescued.pth
    """
    if (fill_from or names_from) and len(paths or ()) > 1:
        option = "--fill-from" if fill_from else "--names-from"
        raise UsageError(f"{option} takes one PATH: what is lost of several is not the same")
    read = partial(opened, partial=True, names_from=names_from, keep_damaged=options.keep_damaged)
    other = None if fill_from is None else opened(fill_from, options.limits)

    def make(survey: Survey, limits: Limits) -> RewriteReport:
        checkpoint = survey.checkpoint
        with output.progress("checking", checkpoint.nbytes):
            damaged = unsound(checkpoint, executor() or Threads())
        report = salvage(
            survey,
            limits,
            damaged=damaged,
            keep_damaged=options.keep_damaged,
            other=None if other is None else Survey(other),
        )
        name = _format_of(report.result, options)
        return as_format(report, name, save.traits_of(name), limits, writer_of(name).unfit)

    try:
        return rewrite(paths, make, options._replace(suffix=SUFFIXES["salvage"]), opened=read)
    finally:
        if other is not None:
            other.close()


def _format_of(checkpoint: Checkpoint, options: WriteOptions) -> str:
    """The format of the result: its own, if ckpt writes it and OUT's ending fits, else the format of the ending."""
    if options.output is None or options.is_folder:
        return checkpoint.format if save.stays(checkpoint) else save.own_format(checkpoint)
    try:
        return save.same_format(options.output, checkpoint)
    except UsageError:
        return save.format_for(options.output, None, endings=save.ENDINGS)
