"""The texts that a report shows, here or in another process: `python unpickled.py FILE
FOLDER` prints it for each pickle in a file.

There every file that is opened in the folder is noted, and every descriptor that stays
open.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path

from ckpt.commands.diff.diff import DiffReport
from ckpt.commands.diff.text import diff_lines
from ckpt.commands.inspect.api import InspectReport
from ckpt.commands.inspect.inspect import Inspection
from ckpt.commands.inspect.text import inspect_lines
from ckpt.commands.rewriting.report import Coverage, RewriteReport
from ckpt.commands.rewriting.text import coverage_lines, rewrite_lines
from ckpt.commands.stats.stats import StatsReport
from ckpt.commands.stats.text import stats_lines

Report = (
    InspectReport | Inspection | DiffReport | StatsReport | RewriteReport | Coverage
)


def shown(report: Report) -> str:
    """The document, the lines, the repr and the HTML of a report, as far as its class
    has them.
    """
    texts: list[object] = []
    if isinstance(report, RewriteReport):
        texts += [report.to_json(), rewrite_lines(report, width=80)]
    else:
        texts.append(report.to_json())
    if isinstance(report, InspectReport):
        values = {name: report.values[name] for name in report.values}
        texts += [
            dict(report),
            values,
            report.sections,
            repr(report),
            report._repr_html_(),
        ]
    elif isinstance(report, Inspection):
        texts += [
            inspect_lines(report, width=80),
            inspect_lines(report, everything=True),
            report.storages,
        ]
        texts[-1] = [
            (row.storage.id, row.tensors, row.kind, row.used) for row in report.storages
        ]
    elif isinstance(report, DiffReport):
        texts += [diff_lines(report, width=80), repr(report), report._repr_html_()]
    elif isinstance(report, StatsReport):
        texts.append(stats_lines(report, width=80))
    elif isinstance(report, Coverage):
        texts.append(coverage_lines(report, width=80))
    return "\n".join(map(repr, texts))


def descriptors() -> int:
    """The number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def main(path: Path, folder: str) -> None:
    opened: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(folder):
            opened.append(str(arguments[0]))

    pickles: list[bytes] = pickle.loads(path.read_bytes())
    before = descriptors()
    sys.addaudithook(note)
    reports = [pickle.loads(data) for data in pickles]
    left = descriptors() - before
    print(
        json.dumps(
            {
                "opened": opened,
                "left": left,
                "shown": [shown(report) for report in reports],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
