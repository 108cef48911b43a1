"""The function `inspect`, and its report: a mapping of names to what tensors are, which
outlives the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckpt.bytes.far import is_url
from ckpt.bytes.location import is_cached_model
from ckpt.commands.inspect.logical import with_quantised
from ckpt.hooks import find_hook, load_hook
from ckpt.model.checkpoint import names_of
from ckpt.model.limits import Limits
from ckpt.model.names import LazyPattern
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, counted_noun, show
from ckpt.surface.api.checkpoint import (
    MissingNameError,
    SectionSummary,
    Shown,
    section_summaries,
)
from ckpt.surface.api.keywords import Texts, gate_of, globs_of, model_of, text_only
from ckpt.surface.api.opening import Input, at_hand, with_model
from ckpt.surface.reports import reduce_report

if TYPE_CHECKING:
    from ckpt.commands.inspect.card import Card
    from ckpt.commands.inspect.inspect import Inspection, Row, Whole
    from ckpt.evidence.numbering import Numbering
    from ckpt.evidence.roles import Role
    from ckpt.evidence.survey import Survey
    from ckpt.model.findings import Finding, Gate
    from ckpt.surface.api.checkpoint import Checkpoint


class TensorSummary(NamedTuple):
    """A tensor in a report, without its bytes. `role` says what it is, `evidence` how
    sure that is.
    """

    name: str
    section: str | None
    dtype: str
    shape: tuple[int, ...]
    device: str | None
    numel: int
    nbytes: int
    role: str
    evidence: str

    def __repr__(self) -> str:
        where = "" if self.device is None else f" on {show(self.device, 40)}"
        return (
            f"<ckpt.TensorSummary {show(self.name)}: {self.dtype} "
            f"{list(self.shape)}{where}, {self.role}>"
        )


def _summarize(row: Row, role: Role) -> TensorSummary:
    tensor = row.tensor
    return TensorSummary(
        name=row.entry.name,
        section=row.section.name if row.section else None,
        dtype=tensor.dtype.name,
        shape=tensor.shape,
        device=tensor.device,
        numel=tensor.numel,
        nbytes=tensor.nbytes,
        role=role.role,
        evidence=role.trust,
    )


class InspectReport(Shown[TensorSummary]):
    """The report of `ckpt inspect`, which outlives the file: dotted names -> tensors,
    in file order.

    `findings` are the most serious first. `load` is the expression that opens the file,
    or None. Notebooks show the text of the command.
    """

    def __init__(
        self, report: Inspection, gate: Gate, index: Numbering | None = None
    ) -> None:
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
        described = self.report.described
        return max(
            self._gate.code(self.findings),
            0 if described is None else described.exit_code,
        )

    @property
    def sections(self) -> tuple[SectionSummary, ...]:
        """The parts of the checkpoint: its models, optimizers, schedulers …"""
        return section_summaries(self.survey)

    @property
    def _tensors(self) -> dict[str, TensorSummary]:
        if self._rows is None:  # the text report does without roles, which take time
            pairs = zip(self.report.rows, self.report.roles(), strict=True)
            self._rows = {row.entry.name: _summarize(row, role) for row, role in pairs}
        return self._rows

    def __reduce__(self) -> tuple[object, ...]:
        return reduce_report(
            self.path, InspectReport, self.report, self._gate, self.index
        )

    def __copy__(self) -> InspectReport:
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
            raise MissingNameError(
                name, "tensor", self._tensors, partial(self.elsewhere, name)
            )
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _repr_html_(self) -> str:
        """Return the lines of `ckpt inspect` as HTML."""
        # Named as text: only a notebook loads what it shows.
        html: str = import_module("ckpt.commands.inspect.notebook").html_inspect(
            self.report
        )
        return html

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.inspect`; docs/json.md is its contract."""
        document = self.report.to_json()
        if self.index is None:
            return document
        return {**document, "index": self.index.to_json()}

    def __repr__(self) -> str:
        findings = (
            f", {counted_noun(len(self.findings), 'finding')}" if self.findings else ""
        )
        return f"<ckpt.InspectReport {self._sizes()}{findings}>"


def inspect(
    source: Input,
    *,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    index: str | None = None,
    base: Input | None = None,
    model: Any = None,
    arg: Texts = (),
    select: Texts = (),
    ignore: Texts = (),
    level: str | None = None,
    fail_on: Texts = (),
    hints: bool = True,
    limits: Limits | None = None,
    plugins: bool = False,
) -> InspectReport:
    """Return the report of `ckpt inspect` on a checkpoint, given as a path or open.
    Reads no tensor data.

    `model` is a torch.nn.Module, or the text `FILE.py:FACTORY`, of which `arg` are the
    arguments. `index` are the numbers of parameters in an error of DDP, as text. `base`
    is the checkpoint that an adapter is meant for: the report says whether it fits.
    Without `hints`, findings name no commands, which takes less time. Raises CkptError.
    """
    from ckpt.commands.inspect.inspect import inspect as job

    text_only(section=section, index=index)
    gate = gate_of("inspect", select, ignore, level, fail_on)
    globs = globs_of(include, exclude)
    live = model_of(model, arg)
    with at_hand(source, limits, plugins=plugins) as opened:
        survey = with_model(opened, live)
        # Named as text: who looks at a file loads what writes only where a finding
        # needs a command.
        plan = (
            import_module("ckpt.surface.api.advice").planning(survey) if hints else None
        )
        report = job(survey, globs, section, plan)
        report = with_quantised(report, limits, globs, section)
        report = report._replace(findings=gate.rules.kept(report.findings))
        report = with_description(report, limits, base, plugins=plugins)._replace(
            card=_find_card(opened), whole=_find_whole(opened)
        )
        # The numbers of DDP are solved only where they are asked for.
        numbering = None
        if index is not None:
            from ckpt.evidence.numbering import numbered_parameters as solve
            from ckpt.evidence.numbering import numbers

            numbering = solve(survey, numbers(index), section)
        opened.check_unchanged()
    return InspectReport(report, gate, numbering)


def _find_card(opened: Checkpoint) -> Card | None:
    """Return what the model card beside an open checkpoint says, or None
    without one.
    """
    path = opened.path
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if not is_cached_model(path) and not os.path.isfile(
        os.path.join(folder, "README.md")
    ):
        return None
    # Here: few checkpoints have one.
    from ckpt.commands.inspect.card_file import card_beside

    return card_beside(opened)


_ONE_OF_SEVERAL = LazyPattern(r"\d-of-\d|rank_?\d|^adapter_model\.")
"""Parts of the names of files that hold a part of a checkpoint, or whose settings lie
beside them.
"""
_PARTS_OF_IT = ("-of-", "rank", "adapter_model.")
"""Texts of which each such name has one, so that most names need no pattern."""


def _find_whole(opened: Checkpoint) -> Whole | None:
    """Return the folder around an open file whose name says that it is a part, where
    the folder is a checkpoint.
    """
    name = os.path.basename(opened.path)
    if not any(part in name for part in _PARTS_OF_IT):
        return None
    # A set that any of its files opens is whole.
    if not _ONE_OF_SEVERAL.search(name) or opened.survey.checkpoint.parts:
        return None
    if is_url(opened.path) or not os.path.isfile(opened.path):
        return None
    # Here: few files have such a name.
    from ckpt.commands.inspect.inspect import Whole
    from ckpt.surface.api.walk import checkpoint_around

    around = checkpoint_around(opened.path)
    return None if around is None else Whole(*around)


def with_description(
    report: Inspection,
    limits: Limits | None,
    base: Input | None = None,
    *,
    plugins: bool = False,
) -> Inspection:
    """Return the report with what an adapter is, and whether it fits a base. Any other
    report stays as it is.
    """
    if base is None and not _is_adapter(report):
        return report
    # A base is asked for, a description is not.
    adapters = find_hook("adapters") if base is None else load_hook("adapters")
    if adapters is None:
        return report
    described = adapters.description_of(report.survey, limits, base, plugins=plugins)
    return report._replace(described=described)


def _is_adapter(report: Inspection) -> bool:
    """Tell whether a whole file looks like an adapter by its names."""
    if report.selected:
        return False
    # A model of 100,000 tensors is no adapter.
    is_small = len(report.entries) <= _MOST_NAMES
    return report.adapter is not None or (
        is_small and any(".lora_" in name for name in names_of(report.entries))
    )


_MOST_NAMES = 4_096
"""The most tensors of a file of which each name is looked at: few adapters have
more.
"""
