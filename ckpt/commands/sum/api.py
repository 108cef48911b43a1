"""The function `ckpt.sum`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpt.bytes.executor import current_executor
from ckpt.hooks import load_hook
from ckpt.model.errors import UnreadableError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.surface.api.keywords import Texts, globs_of, limits_only, text_only
from ckpt.surface.api.opening import Input, at_hand, location_of, path_of, weights_of
from ckpt.surface.api.progress import Progress, metered_reading

if TYPE_CHECKING:
    from ckpt.commands.sum.recorded import SumReport


def sum(
    source: Input,
    *,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    all: bool = False,
    recorded: bool = False,
    root: bool = False,
    values: bool = False,
    dequantize: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> SumReport:
    """Return the SHA-256 of each tensor of the only model, of a `section`, or of `all`:
    the report of `ckpt sum`.

    With `root` it has one hash of all names and values, with `values` one of all values
    in any layout. With `recorded` it has the sizes and CRC-32 that the files record,
    and no tensor is read. With `dequantize` quantised weights are the floats that they
    stand for. Raises CkptError.
    """
    from ckpt.commands.rewriting.edited import with_ties
    from ckpt.commands.sum.recorded import SumReport, listed, unread_in
    from ckpt.commands.sum.sums import sums
    from ckpt.evidence.unread import unread_parts

    text_only(section=section)
    limits_only(limits)
    globs = globs_of(include, exclude)
    if recorded:
        from ckpt.formats.verify import recorded as read_records

        if globs or section is not None or all or dequantize:
            raise UsageError("--recorded lists all of a checkpoint")
        path = path_of(source)
        # What is damaged cannot be opened, and records still something.
        if isinstance(source, (str, os.PathLike)):
            record = read_records(path, limits or Limits(), plugins=plugins)
        else:
            with at_hand(source, limits, plugins=plugins) as opened:
                record = read_records(
                    location_of(opened), opened.limits, plugins=opened.plugins
                )
                opened.check_unchanged()
        # Unread files are not in the list, and are said.
        items = listed(record.format, record.files)
        return SumReport(
            path,
            record.format,
            "",
            recorded=items,
            missing=tuple(unread_in(record.files)),
        )
    with (
        at_hand(source, limits, plugins=plugins) as opened,
        metered_reading(progress, opened) as meter,
    ):
        survey = with_ties(weights_of(opened, dequantize=dequantize), opened.limits)
        if values:
            with about(opened.path):
                total = load_hook("layouts").values_of(
                    survey, section, globs, current_executor(), meter
                )
            opened.check_unchanged()
            return SumReport(
                opened.path, opened.format, section or "", whole=("values", total)
            )
        rows = sums(
            survey,
            section,
            globs,
            everything=all,
            progress=meter,
            executor=current_executor(),
        )
        chosen = survey.everything if all else survey.model_or_all(section)
        opened.check_unchanged()
    missing = unread_parts(survey.checkpoint, chosen)
    if root:
        with about(opened.path):
            if missing:
                raise UnreadableError(f"{missing[0][0]}: {missing[0][1]}")
            whole = "root", load_hook("layouts").root_of(rows)
        return SumReport(
            opened.path, opened.format, chosen.name, tuple(rows), whole=whole
        )
    return SumReport(
        opened.path, opened.format, chosen.name, tuple(rows), missing=missing
    )
