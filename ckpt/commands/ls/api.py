"""The function `ckpt.ls`: folders are walked, and each file is judged by its first
bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from ckpt.bytes.executor import Task
from ckpt.bytes.location import is_cached_model
from ckpt.commands.ls.ls import RUNS_CODE, LsReport, LsRow, in_order
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError, UsageError, about
from ckpt.model.findings import LEVELS, Gate
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.handle import read
from ckpt.surface.api.keywords import (
    Path,
    Texts,
    gate_of,
    limits_only,
    several_of,
    text_only,
)
from ckpt.surface.api.opening import path_of
from ckpt.surface.api.progress import Progress
from ckpt.surface.api.walk import (
    Found,
    choose_executor,
    empty_folders,
    found,
    is_concern,
    nothing_in,
    split_items,
)

if TYPE_CHECKING:
    from ckpt.model.findings import Plan

Sources = Path | Checkpoint | Sequence[Path | Checkpoint]
"""A path or an open checkpoint, or several."""
_ORDERS: dict[str, Callable[[LsRow], tuple[int, ...]] | None] = {
    "name": None,
    "size": lambda row: (-row.nbytes,),
    "params": lambda row: (-row.parameters - row.unknown,),
    "findings": lambda row: _severity_key(row),
}
"""Words of `--sort` -> the key of a row: the largest first. Equal rows stay in the
order of their names.
"""


def _severity_key(row: LsRow) -> tuple[int, int, int]:
    """Return the sort key of a row: files that run code come first, unreadable files
    last.

    Between them the most serious finding decides, then how many codes there are.
    """
    # 0 is the most serious level.
    levels = [LEVELS.index(finding.level) for finding in row.findings]
    if row.error is not None:
        group = 2
    else:
        group = 0 if row.loads == RUNS_CODE else 1
    return group, min(levels, default=len(LEVELS)), -len(row.codes)


def ls(
    sources: Sources,
    *,
    sort: str = "name",
    select: Texts = (),
    ignore: Texts = (),
    level: str | None = None,
    fail_on: Texts = (),
    skip_unreadable: bool = False,
    hints: bool = True,
    jobs: int | None = 1,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> LsReport:
    """List checkpoints, one row each: the report of `ckpt ls`. Paths to folders are
    searched.

    A file that cannot be read is a row with an `error`. `jobs` processes read many
    files, None as many as there are cores; they are forks of this one. `progress` gets
    the files that are done, and all files. Raises UsageError.
    """
    text_only(sort=sort)
    limits_only(limits)
    gate = gate_of("ls", select, ignore, level, fail_on)
    every = several_of(
        sources, str, os.PathLike, Checkpoint, what="paths and open checkpoints"
    )
    listing = Listing(
        every,
        gate,
        sort,
        skip_unreadable=skip_unreadable,
        hints=hints,
        limits=limits,
        plugins=plugins,
    )
    listing.read(jobs, progress)
    return listing.report


class Listing:
    """The rows so far of the files that paths lead to. Whoever interrupts `read` has
    them.
    """

    def __init__(
        self,
        sources: Sequence[Path | Checkpoint],
        gate: Gate,
        sort: str,
        *,
        skip_unreadable: bool,
        hints: bool,
        limits: Limits | None,
        plugins: bool,
    ) -> None:
        if sort not in _ORDERS:
            raise UsageError(f"--sort {show(sort, 40)}: not one of {' '.join(_ORDERS)}")
        self._open = [given for given in sources if isinstance(given, Checkpoint)]
        self._paths = [
            path_of(given) for given in sources if not isinstance(given, Checkpoint)
        ]
        self._gate = gate
        self._order = _ORDERS[sort]
        self._skip_unreadable = skip_unreadable
        self._looking = Looking(limits or Limits(), hints, plugins)
        self._rows: list[LsRow] = []
        self._others: list[str] = []
        self._skipped: list[tuple[str, str]] = []

    @property
    def report(self) -> LsReport:
        """The report on what was read so far."""
        rows = in_order(self._rows)
        if self._order is not None:
            rows.sort(key=self._order)
        return LsReport(
            tuple(rows),
            tuple(self._others),
            tuple(self._skipped),
            self._gate,
            self._skip_unreadable,
        )

    def read(
        self,
        jobs: int | None,
        progress: Progress | None,
        skip: Callable[[str, str], None] | None = None,
    ) -> None:
        """Add the open checkpoints, and what the paths lead to. `skip` gets each path
        that is not looked at, and why.
        """
        for checkpoint in self._open:
            self._add_row(self._looking.row(checkpoint.survey))
        items, self._others = split_items(
            found(self._paths, plugins=self._looking.plugins)
        )
        self._skipped = [
            (item.path, item.skipped) for item in items if item.skipped is not None
        ]
        if skip is not None:
            for path, why in self._skipped:
                skip(path, why)
        items = [item for item in items if item.skipped is None]
        tasks = [Task(_file_row, (item, self._looking)) for item in items]
        for number, (item, row) in enumerate(
            zip(items, choose_executor(tasks, jobs).each(tasks), strict=True), 1
        ):
            if progress is not None:
                progress(number, len(items))
            if row is None:
                self._others.append(item.path)
            else:
                self._add_row(row)
        seen = [row.path for row in self._rows]
        # A folder alone is an empty report, of which the command makes an error.
        for path in empty_folders(self._paths, seen) if seen else ():
            error = nothing_in(path).failure(path)
            self._add_row(LsRow(path, error=error))

    def _add_row(self, row: LsRow) -> None:
        self._rows.append(row._replace(findings=self._gate.rules.kept(row.findings)))


class Looking(NamedTuple):
    """The settings for reading each file."""

    limits: Limits
    hints: bool
    plugins: bool

    def plan(self, survey: Survey) -> Plan | None:
        """Return what finds the commands of the hints."""
        if not self.hints:
            return None
        # Named as text: who looks at a file loads what writes only where a finding
        # needs a command.
        plan: Plan = import_module("ckpt.surface.api.advice").planning(survey)
        return plan

    def row(self, survey: Survey) -> LsRow:
        """The row of an open checkpoint. Raises NotOpenedError when it has changed."""
        from ckpt.commands.ls.ls import ls as job

        row = job(survey, self.plan(survey))
        survey.checkpoint.check_unchanged()
        return row


def _file_row(item: Found, looking: Looking) -> LsRow | None:
    """Return the row of one file, or None for a file in a folder that is no
    checkpoint.
    """
    if item.error is not None:
        return LsRow(item.path, error=item.error.failure(item.path))
    try:
        opened = read(item.path, looking.limits, plugins=looking.plugins)
        with about(item.path), opened as checkpoint:
            row = looking.row(Survey(checkpoint))
            # The folder of a cached model is shorter than the snapshot in it, and opens
            # the same.
            return row._replace(path=item.path) if is_cached_model(item.path) else row
    except CkptError as error:
        if is_concern(item, error.code):
            return LsRow(item.path, error=error.failure(item.path))
        return None
