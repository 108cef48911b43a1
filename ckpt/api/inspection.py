"""The report of `ckpt.inspect`: a mapping of names to what tensors are, which outlives the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpt.api.checkpoint import MissingNameError, SectionSummary, Shown, summaries
from ckpt.reports import pickled
from ckpt.rows import NamedTuple
from ckpt.text import Json, plural

if TYPE_CHECKING:
    from ckpt.evidence.roles import Role
    from ckpt.evidence.survey import Survey
    from ckpt.findings import Finding
    from ckpt.jobs.inspect.inspect import InspectReport


class TensorSummary(NamedTuple):
    """A tensor in a report, without its bytes. `role` says what it is, `evidence` how sure that is."""

    name: str
    section: str | None
    dtype: str
    shape: tuple[int, ...]
    device: str | None
    numel: int
    nbytes: int
    role: str
    evidence: str


class Inspection(Shown[TensorSummary]):
    """The report of `ckpt inspect`, which outlives the file: dotted names -> tensors, in file order.

    `findings` are the most serious first. `load` is the expression that opens the file, or None. Notebooks show the
    text of the command.
    """

    def __init__(self, report: InspectReport, roles: list[Role]) -> None:
        self.report = report
        self.checkpoint = report.checkpoint
        self.findings: tuple[Finding, ...] = report.findings
        self.load: str | None = report.load.expression
        self.sections: tuple[SectionSummary, ...] = summaries(report.survey)
        self._tensors = {
            row.entry.name: TensorSummary(
                row.entry.name,
                row.section.name if row.section else None,
                row.tensor.dtype.name,
                row.tensor.shape,
                row.tensor.device,
                row.tensor.numel,
                row.tensor.nbytes,
                role.role,
                role.trust,
            )
            for row, role in zip(report.rows, roles, strict=True)
        }

    def __reduce__(self) -> tuple[object, ...]:
        return pickled(self.path, Inspection, self.report, self.report.roles())

    def __copy__(self) -> Inspection:
        return self

    @property
    def survey(self) -> Survey:
        return self.report.survey

    @property
    def tensors(self) -> tuple[TensorSummary, ...]:
        """All tensors, in file order."""
        return tuple(self._tensors.values())

    def __getitem__(self, name: str) -> TensorSummary:
        if name not in self._tensors:
            raise MissingNameError(name, "tensor", self._tensors)
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.inspect`, whose findings have no hints here: a command belongs to the command line."""
        return self.report.to_json()

    def __repr__(self) -> str:
        findings = f", {plural(len(self.findings), 'finding')}" if self.findings else ""
        return f"<ckpt.Inspection {self._sizes()}{findings}>"
