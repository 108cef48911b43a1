"""The report of `ckpt.inspect`: a mapping of names to what tensors are, which outlives the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpt.api.checkpoint import MissingNameError, SectionSummary, Shown, summaries
from ckpt.rows import NamedTuple
from ckpt.text import Json, plural

if TYPE_CHECKING:
    from ckpt.evidence.numbering import Numbering
    from ckpt.evidence.survey import Survey
    from ckpt.findings import Finding, Gate
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

    def __init__(self, report: InspectReport, gate: Gate, index: Numbering | None = None) -> None:
        self.report = report
        self.checkpoint = report.checkpoint
        self.findings: tuple[Finding, ...] = report.findings
        self.load: str | None = report.load.expression
        self.index = index
        """The parameters behind the numbers that were asked for."""
        self._gate = gate
        self._rows: dict[str, TensorSummary] | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 where the gate closes."""
        return self._gate.code(self.findings)

    @property
    def sections(self) -> tuple[SectionSummary, ...]:
        """The parts of the checkpoint: its models, optimizers, schedulers …"""
        return summaries(self.survey)

    @property
    def _tensors(self) -> dict[str, TensorSummary]:
        if self._rows is None:  # the text report does without roles, which take time
            self._rows = {
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
                for row, role in zip(self.report.rows, self.report.roles(), strict=True)
            }
        return self._rows

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
        """The document `ckpt.inspect`; docs/json.md is its contract."""
        document = self.report.to_json()
        return document if self.index is None else {**document, "index": self.index.to_json()}

    def __repr__(self) -> str:
        findings = f", {plural(len(self.findings), 'finding')}" if self.findings else ""
        return f"<ckpt.Inspection {self._sizes()}{findings}>"
