"""`ckpt ls`: one checkpoint in one row. Reads no tensor data."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, overload

from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.logical import with_quantised
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, looks_of
from ckpt.model.errors import Failure
from ckpt.model.findings import Finding, Gate, Plan
from ckpt.model.names import natural_sort_key
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, counted_noun, show
from ckpt.pickle.judge.names import is_own
from ckpt.surface.reports import document_head, shown_as_html
from ckpt.tree.find import counter, is_run_counter

_ELSEWHERE = frozenset(("weights-only", "unknown-import", "optimizer-heavy", "tied"))
"""Findings that other columns tell, or that most checkpoints have; JSON has all."""
RUNS_CODE, UNREADABLE, NOT_AS_IT_IS = "RUNS CODE", "unreadable", "not as it is"


class LsRow(NamedTuple):
    """A checkpoint, or a path with the `error` why it cannot be read. It pickles, so
    that another process can make it.

    `parameters` counts the elements of the parameters of its models, `unknown` the
    elements of tensors that may be parameters or buffers, `nbytes` the bytes of its
    files. `dtypes` are the dtypes of its parameters, `devices` the devices of its
    models, or both of all tensors. The one with the most bytes comes first. `loads` is
    `weights_only`, or what else it takes to load the file (docs/json.md lists it).
    """

    path: str
    format: str = ""
    nbytes: int = 0
    tensors: int = 0
    parameters: int = 0
    unknown: int = 0
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    loads: str = UNREADABLE
    findings: tuple[Finding, ...] = ()
    error: Failure | None = None
    counters: tuple[tuple[str, float], ...] = ()
    """The epochs and steps that the file records, by the names of the values."""

    @property
    def reached(self) -> tuple[float, float] | None:
        """The epoch and the step of the save, each -1 if it is not recorded. It is None
        if neither is.
        """
        counts = self.highest("epoch"), self.highest("step")
        epoch, step = (-1.0 if count is None else count for count in counts)
        return None if counts == (None, None) else (epoch, step)

    def highest(self, what: Literal["epoch", "step"]) -> float | None:
        """The largest counter of epochs or of steps, or None if the file records none.
        YOLO writes -1 at the end.
        """
        counts = [
            value
            for name, value in self.counters
            if value >= 0 and ("epoch" in name.rpartition(".")[2]) == (what == "epoch")
        ]
        return max(counts, default=None)

    def __repr__(self) -> str:
        if self.error is not None:
            what = str(self.error)
        else:
            what = f"{self.format}, {counted_noun(self.tensors, 'tensor')}"
        found = (
            f", {counted_noun(len(self.findings), 'finding')}" if self.findings else ""
        )
        return f"<ckpt.LsRow {show(self.path)}: {show(what, 120)}{found}>"

    @property
    def codes(self) -> list[str]:
        """The codes of the findings that the other fields do not tell, each once."""
        return [
            code
            for code in dict.fromkeys(row.code for row in self.findings)
            if code not in _ELSEWHERE
        ]

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.ls`; docs/json.md is its contract."""
        is_readable = self.error is None
        return {
            **document_head("ckpt.ls", 2),
            "file": {"path": self.path},
            "path": self.path,
            "error": None if self.error is None else self.error._asdict(),
            "format": self.format if is_readable else None,
            "bytes": self.nbytes if is_readable else None,
            "tensors": self.tensors if is_readable else None,
            "parameters": self.parameters if is_readable else None,
            "unknown": self.unknown if is_readable else None,
            "dtypes": list(self.dtypes),
            "devices": list(self.devices),
            "loads": self.loads,
            "counters": {
                name: int(value) if value.is_integer() else value
                for name, value in self.counters
            },
            "findings": [finding.to_json() for finding in self.findings],
        }


def in_order(rows: Iterable[LsRow]) -> list[LsRow]:
    """Return the rows in the natural order of their paths; a file without a number,
    such as `best.pth`, by its values.

    It stands behind the last numbered file of its folder that has reached no more,
    where all of those are in the order of what they record.
    """
    out = sorted(rows, key=lambda row: natural_sort_key(row.path))
    folders: dict[str, list[int]] = {}
    for index, row in enumerate(out):
        folders.setdefault(os.path.dirname(row.path), []).append(index)
    for indices in folders.values():
        by_values = _by_values([out[index] for index in indices])
        for index, row in zip(indices, by_values, strict=True):
            out[index] = row
    return out


def _by_values(rows: list[LsRow]) -> list[LsRow]:
    """The rows of one folder in the order that `in_order` describes."""
    numbered: list[tuple[tuple[float, float], LsRow]] = []
    named: list[tuple[tuple[float, float], LsRow]] = []
    for row in rows:
        # `step_100.pth` is in its place by its name already.
        is_numbered = re.search("[0-9]", os.path.basename(row.path)) is not None
        if row.reached is not None:
            alike = numbered if is_numbered else named
            alike.append((row.reached, row))
        elif is_numbered:
            return rows  # nothing says where in the series it stands
    reached = [values for values, _ in numbered]
    # One file with a number, as `resnet50.pth`, is no series.
    if len(numbered) < 2 or reached != sorted(reached):
        return rows
    series = sorted([*numbered, *named], key=lambda pair: pair[0])
    rest = [row for row in rows if row.reached is None]
    return [row for _, row in series] + rest


@shown_as_html("ckpt.commands.ls.text", "html_ls")
class LsReport(Sequence[LsRow]):
    """The report of `ckpt ls`: a row for each checkpoint.

    `others` are the files of folders that are none, `skipped` the paths that were not
    looked at, and why.
    """

    def __init__(
        self,
        rows: tuple[LsRow, ...],
        others: tuple[str, ...] = (),
        skipped: tuple[tuple[str, str], ...] = (),
        gate: Gate | None = None,
        skip_unreadable: bool = False,
    ) -> None:
        self.rows = rows
        self.others = others
        self.skipped = skipped
        self._gate = gate or Gate()
        self._skip_unreadable = skip_unreadable

    @overload
    def __getitem__(self, index: int) -> LsRow: ...

    @overload
    def __getitem__(
        self, index: slice[int | None, int | None, int | None]
    ) -> tuple[LsRow, ...]: ...

    def __getitem__(
        self, index: int | slice[int | None, int | None, int | None]
    ) -> LsRow | tuple[LsRow, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 2 where a file cannot be read, 1 where the gate
        closes.
        """
        return max(map(self._row_code, self.rows), default=0)

    def _row_code(self, row: LsRow) -> int:
        if row.error is not None:
            return 0 if self._skip_unreadable else 2
        return self._gate.code(row.findings)

    def to_json(self) -> list[dict[str, Json]]:
        """The documents `ckpt.ls`, one for each checkpoint; docs/json.md is their
        contract.
        """
        return [row.to_json() for row in self.rows]

    def __repr__(self) -> str:
        unread = sum(row.error is not None for row in self.rows)
        more = f", {unread:,} unreadable" if unread else ""
        read = counted_noun(len(self.rows) - unread, "checkpoint")
        return f"<ckpt.LsReport: {read}{more}>"


def ls(survey: Survey, plan: Plan | None = None) -> LsRow:
    """The row of a checkpoint. With a `plan`, findings name the commands that help."""
    checkpoint = survey.checkpoint
    report = with_quantised(inspect(survey, plan=plan), None)
    loads = _loading_word(survey)
    count = len(survey.tensors)
    if report.quantised is not None and report.quantised.shown is not None:
        # Parameters are counted as weights, and not as the codes that hold them.
        survey = report.quantised.shown.survey
    # Without a model all tensors are counted.
    indices = list(chain.from_iterable(section.indices for section in survey.main))
    parameters = survey.parameters
    tensors = looks_of(survey.tensors)
    dtypes: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    for index in survey.weight_indices or range(len(tensors)):
        dtypes[tensors[index].dtype.name] += tensors[index].nbytes
    for index in indices or range(len(tensors)):
        device = tensors[index].device
        if device is not None:
            devices[device] += tensors[index].nbytes
    return LsRow(
        checkpoint.path,
        checkpoint.format,
        checkpoint.nbytes,
        count,
        survey.count_elements(parameters),
        survey.count_elements(survey.unknown),
        tuple(name for name, _ in dtypes.most_common()),
        tuple(name for name, _ in devices.most_common()),
        loads,
        report.findings,
        counters=tuple(counters_of(checkpoint)),
    )


def counters_of(checkpoint: Checkpoint) -> Iterator[tuple[str, float]]:
    """Yield the names and the numbers of the epochs and steps among the values near the
    root.
    """
    for value in checkpoint.values:
        if value.node is not None and is_run_counter(value.path):
            count = counter(value.node)
            if count is not None:
                yield value.name, count


_RUNS = ("code-inside", "unknown-import", "unknown-operator")
"""Notices of readers about what a load runs, or imports by a name that no
pickle holds.
"""


def _loading_word(survey: Survey) -> str:
    """Return what it takes to load the file: a word of a closed list, or `needs` and
    the author's package.
    """
    checkpoint = survey.checkpoint
    if checkpoint.account.has_noticed(*_RUNS):
        return RUNS_CODE
    unknown = [
        row for row in checkpoint.imports if row.group != "known" and not row.is_script
    ]
    # The worst answer first: a load that runs code.
    for row in unknown:
        if row.group == "called" and (is_own(row.module) or not row.calls):
            return RUNS_CODE  # whichever file of a folder does
    if checkpoint.not_loadable:
        return "not by torch"
    unknown = [row for row in unknown if checkpoint.is_of_weights(row.file)]
    # `odd` is the mildest group, so another one is named first.
    unknown.sort(key=lambda row: row.group == "odd")
    if unknown:
        worst = next((row for row in unknown if row.group == "called"), unknown[0])
        if worst.group == "odd":
            return NOT_AS_IT_IS
        return f"needs {worst.module.partition('.')[0]}"
    if checkpoint.traits.names_are_code:
        # torch.jit, torch.export.
        return checkpoint.traits.load.partition("(")[0].rpartition(".")[0]
    # The weights of a folder may be no pickle, whatever lies beside them.
    is_other_folder = bool(checkpoint.members) and not checkpoint.traits.is_pickle
    load = checkpoint.traits.load
    # Only `torch.load` asks for weights_only; ranks of FSDP name no function.
    is_by_torch_load = not load or load.startswith("torch.load(")
    if checkpoint.weights_only is None or is_other_folder or not is_by_torch_load:
        # Each row is a checkpoint, so the column does not repeat it.
        return checkpoint.traits.label.removesuffix(" checkpoint")
    refused = any(checkpoint.is_of_weights(row.file) for row in checkpoint.weights_only)
    return "weights_only=False" if refused else "weights_only"
