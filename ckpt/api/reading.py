"""The functions that read: `inspect`, `diff`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ckpt.api.inspection import Inspection
from ckpt.api.opening import Input, at_hand
from ckpt.limits import Limits

if TYPE_CHECKING:
    from ckpt.jobs.diff.diff import DiffReport, Options


def inspect(source: Input, *, limits: Limits | None = None) -> Inspection:
    """Return the report of `ckpt inspect` on a checkpoint, given as a path or open.

    Reads no tensor data. Raises CkptError.
    """
    from ckpt.jobs.inspect.inspect import inspect as look_into

    with at_hand(source, limits) as opened:
        report = look_into(opened.survey)
        inspection = Inspection(report, report.roles())
        opened.check_unchanged()
    return inspection


def diff(before: Input, after: Input, options: Options | None = None) -> DiffReport:
    """Compare two checkpoints, given as paths or open. Return what `ckpt diff` prints, as a report.

    `report.same` is the answer. `report.changed` and `report.frozen` are names of tensors, `report.findings` what stands
    out, `report.rows` all tensors, `report.to_json()` the document. Raises CkptError.
    """
    from ckpt.jobs.diff.diff import diff as compare

    with ExitStack() as stack:
        sides = [stack.enter_context(at_hand(side)) for side in (before, after)]
        report = compare(sides[0].survey, sides[1].survey, options)
        for side in sides:
            side.check_unchanged()
    report.check_read()
    return report
