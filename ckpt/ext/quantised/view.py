"""A checkpoint as it is shown: each logical tensor is one, of a type that says how it
is quantised, and its parts are inside.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.commands.inspect.inspect import Inspection, inspect
from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.evidence.survey import Survey
from ckpt.ext.quantised.edit import Swap
from ckpt.ext.quantised.find import Logical, NearMiss, find_logical
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.dtypes import DType
from ckpt.model.errors import CkptError
from ckpt.model.findings import Finding
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite, TensorRef
from ckpt.model.text import Json

_FOLLOWS = (
    "Each is a value only with its scale: --dtype does not cast it, ckpt convert "
    "--dequantize does."
)
_WHYS = 3
"""Reasons that are given in one finding."""


class View(NamedTuple):
    """The logical tensors of a file, and the report with them in the place of parts.

    `shown` is None where the selection chose parts alone.
    """

    logical: tuple[Logical, ...]
    misses: tuple[NearMiss, ...]
    shown: Inspection | None

    @property
    def text(self) -> str:
        """The bits that a quantised weight takes with all of its parts: `4.16 bits per
        quantised weight`. The other weights of the file do not count.
        """
        numel = sum(row.numel for row in self.logical)
        bits = 8 * sum(row.nbytes for row in self.logical) / max(1, numel)
        return f"{bits:.2f} bits per quantised weight"

    def to_json(self) -> list[Json]:
        """Return the field `quantised` of the document."""
        return [row.to_json() for row in self.logical]


def with_view(
    report: Inspection,
    limits: Limits,
    select: Globs | None = None,
    section: str | None = None,
) -> Inspection:
    """Return the report with its logical tensors, and with findings that name their
    schemes. Reads a few small tensors.
    """
    checkpoint = report.checkpoint
    # Of a far file no small parts are read: each would be a request.
    is_far = any(source.far is not None for source in checkpoint.all_sources())
    found = find_logical(checkpoint, limits, can_read=not is_far)
    edit = Swap()
    kept = [
        row for row in found.logical if edit.swap(checkpoint.root, row, _composite(row))
    ]
    misses = found.misses
    findings = _findings(report.findings, kept, misses)
    if not kept:
        return report._replace(findings=findings)
    view = edited_checkpoint(checkpoint, edit.copy(checkpoint.root), limits)
    chosen = [row for row in kept if _is_chosen(row, report)]
    return report._replace(
        findings=findings,
        quantised=View(tuple(chosen), misses, _shown(view, select, section)),
    )


def _is_chosen(row: Logical, report: Inspection) -> bool:
    """Tell whether a report is about the codes of a logical tensor."""
    if not report.selected:
        return True
    names = {entry.name for entry in report.entries}
    return row.parts[0].entry.name in names


def _shown(
    view: Checkpoint,
    select: Globs | None,
    section: str | None,
) -> Inspection | None:
    """Return the report on a checkpoint of logical tensors, or None where nothing of it
    is selected.
    """
    try:
        return inspect(Survey(view), select, section)
    except CkptError:
        return None


def _composite(row: Logical) -> Composite:
    """Return a logical tensor as one that consists of its parts."""
    text = row.planned.text
    # The name of the scheme stands in the column of dtypes.
    dtype = DType(text, row.planned.bits, "float")
    parts: list[tuple[str, TensorRef]] = []
    for part in row.parts:
        tensor = part.entry.tensor
        parts += (
            [(part.role, tensor)] if isinstance(tensor, TensorRef) else tensor.parts
        )
    return Composite("quantised", dtype, row.shape, tuple(parts), detail=row.scheme)


def _findings(
    findings: Sequence[Finding],
    rows: Sequence[Logical],
    misses: Sequence[NearMiss],
) -> tuple[Finding, ...]:
    """Return the findings of which those on codes say how to read them, and those on
    what nearly is a scheme.
    """
    codes = {row.parts[0].entry.name for row in rows}
    whys = {miss.name: f"Nearly {miss.scheme}, but {miss.why}." for miss in misses}
    # Findings of the core on codes get the reason that this extension knows.
    made: list[Finding] = []
    for finding in findings:
        names = finding.tensors if finding.code == "scaled" else ()
        texts = list(dict.fromkeys(whys[name] for name in names if name in whys))
        if names and codes.issuperset(names):
            finding = finding._replace(consequence=_FOLLOWS)
        elif texts:
            finding = finding._replace(
                consequence=" ".join(
                    [finding.consequence or "", *texts[:_WHYS]]
                ).strip()
            )
        made.append(finding)
    return tuple(made)
