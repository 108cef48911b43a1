"""A report with the weights that consist of several tensors, where an extension reads
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpt.hooks import find_hook
from ckpt.model.checkpoint import looks_of
from ckpt.model.limits import Limits

if TYPE_CHECKING:
    from ckpt.commands.inspect.inspect import Inspection
    from ckpt.evidence.survey import Survey
    from ckpt.model.names import Globs
    from ckpt.model.tensors import Tensor


def with_quantised(
    report: Inspection,
    limits: Limits | None,
    globs: Globs | None = None,
    section: str | None = None,
) -> Inspection:
    """Return the report with the weights that consist of several tensors. Any other
    report stays as it is.
    """
    quantised = find_hook("quantised") if is_quantised(report.survey) else None
    if quantised is None:
        return report
    shown: Inspection = quantised.with_view(report, limits or Limits(), globs, section)
    return shown


def is_quantised(survey: Survey) -> bool:
    """Tell whether tensors look as if weights consisted of several of them."""
    # Tensors share few looks: a set of them is far shorter than the list.
    return bool(survey.scaled.codes) or any(
        map(_is_of_torchao, set(looks_of(survey.tensors)))
    )


def _is_of_torchao(tensor: Tensor) -> bool:
    return tensor.layout == "wrapper" and (tensor.detail or "").startswith("torchao.")  # type: ignore[union-attr]


def with_whole_weights(report: Inspection) -> Inspection:
    """The report in which each quantised weight is one tensor, where there are some."""
    if report.quantised is None:
        return report
    return report.quantised.shown or report


def counted_parameters(
    report: Inspection,
) -> tuple[Sequence[int], Sequence[int]]:
    """The positions of the selected parameters, and of tensors that may be parameters
    or buffers.
    """
    chosen, unknown = report.survey.parameters, report.survey.unknown
    if not report.selected:
        return chosen, unknown
    here = {row.position for row in report.rows}
    return (
        [index for index in chosen if index in here],
        [index for index in unknown if index in here],
    )
