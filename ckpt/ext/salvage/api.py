"""The function `ckpt.salvage`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ckpt.bytes.executor import current_executor
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import LossError, UsageError
from ckpt.model.limits import Limits
from ckpt.surface.api.handle import read
from ckpt.surface.api.keywords import Path, doubt_lines
from ckpt.surface.api.opening import Input, at_hand
from ckpt.surface.api.rewriting import Talk, WriteOptions, rewrite_checkpoint
from ckpt.surface.api.writing import as_format_of, options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing


def salvage(
    source: Input,
    *,
    fill_from: Input | None = None,
    names_from: Path | None = None,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Write what is whole of a checkpoint that is cut off, damaged or incomplete, and
    list what is lost.

    `fill_from` is another save, of which lost tensors of the same name, shape and dtype
    are taken; `names_from` one of the same run, after which the items of a DCP without
    .metadata are named. The other keywords are in `Writing`. `report.lost` is empty
    where nothing is lost. Raises CkptError.
    """
    # here: writing is loaded only when the function is called
    from ckpt.elements.audit import unsound
    from ckpt.ext.salvage.salvage import salvage as job

    options = options_of(writing, source, "salvage", beside=(fill_from, names_from))
    names = None if names_from is None else os.fsdecode(names_from)

    def open_rest(path: str, partial: bool) -> Checkpoint:
        return read(
            path,
            options.limits,
            plugins=options.plugins,
            # `salvage` reads what is whole: the input is always opened as partial.
            partial=True,
            names_from=names,
            keep_damaged=options.keep_damaged,
        )

    talk = Talk(options.tell)
    with ExitStack() as stack:
        other = None
        if fill_from is not None:
            filling = stack.enter_context(
                at_hand(fill_from, options.limits, plugins=options.plugins)
            )
            for line in doubt_lines(filling.checkpoint):
                talk(line)
            other = filling.survey

        def make(survey: Survey, limits: Limits) -> RewriteReport:
            checkpoint = survey.checkpoint
            # All bytes are read for this: the checksums of the records tell what is
            # damaged.
            damaged = unsound(checkpoint, current_executor())
            keep = options.keep_damaged
            report = job(
                survey, limits, damaged=damaged, keep_damaged=keep, other=other
            )
            try:
                kind = _format_of(report.result, options)
                return as_format_of(report, options._replace(format=kind), limits)
            except LossError as error:
                # A whole tensor is never dropped here: there is no --drop-other.
                if error.hint == "--drop-other":
                    error.hint = "-o OUT.pth holds them"
                raise

        report = rewrite_checkpoint(source, make, options._replace(open=open_rest))
    return report._replace(warnings=(*talk.lines, *report.warnings))


def _format_of(checkpoint: Checkpoint, options: WriteOptions) -> str:
    """The format of the result: its own, if ckpt writes it and OUT's ending fits, else
    the format of the ending.
    """
    if options.out is None or options.is_folder:
        if save.can_keep_format(checkpoint):
            return checkpoint.format
        return save.own_format(checkpoint)
    try:
        return save.same_format(options.out, checkpoint)
    except UsageError:
        return save.format_for(options.out, None, endings=save.ENDINGS)
