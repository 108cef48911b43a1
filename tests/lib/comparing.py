"""Comparing for the tests: two objects as torch saves them, and what `ckpt diff` finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rewriting

from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.jobs.diff.diff import DiffReport, Options, diff


def compared(before: Any, after: Any, folder: Path, **options: Any) -> DiffReport:
    """What differs between two objects."""
    paths = [rewriting.saved(thing, folder / name) for thing, name in ((before, "a.pt"), (after, "b.pt"))]
    with formats.open(str(paths[0])) as one, formats.open(str(paths[1])) as two:
        return diff(Survey(one), Survey(two), Options(**options))


def statuses(report: DiffReport) -> dict[str, str]:
    """The status of each row by the name after, where there is one."""
    return {row.name: row.status for row in report.rows}


def changes(report: DiffReport) -> dict[str, str]:
    """The status of each value that differs, by its name."""
    return {row.name: row.status for row in report.values}
