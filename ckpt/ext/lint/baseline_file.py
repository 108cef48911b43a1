"""The file of a baseline: `--baseline FILE` of `ckpt lint`, and `--write-baseline`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ckpt.bytes.far import is_url
from ckpt.bytes.location import locate
from ckpt.bytes.source import read_limited
from ckpt.ext.lint.baseline import (
    Entry,
    baseline_of,
    baseline_text,
    entry_of,
    known_and_new,
)
from ckpt.ext.lint.lint import FileReport, LintReport
from ckpt.model.errors import CkptError, LimitError, UsageError
from ckpt.model.limits import Budget, Limits, parse_json

_BYTES = 1 << 24
"""The largest baseline that is read."""


class Baseline:
    """The entries of a baseline on a disk. Paths in it are relative to its folder."""

    def __init__(self, path: str, entries: Sequence[Entry]) -> None:
        self.path = path
        self._entries = list(entries)
        self._folder = os.path.dirname(os.path.abspath(path))

    def applied_to(self, report: LintReport) -> LintReport:
        """Return the report without the findings that are known, and with the entries
        that are stale.
        """
        keys = {entry.key for entry in self._entries}
        rows = []
        for row in report.files:
            known, new = known_and_new(self._relative(row), row.findings, keys)
            rows.append(row._replace(findings=new, known=known))
        stale = tuple(map(str, self._stale(report.files)))
        return report._replace(files=tuple(rows), baseline=self.path, stale=stale)

    def renewed(self, report: LintReport) -> Baseline:
        """Return the baseline that holds the findings of a report, and the entries of
        files that are not in it.
        """
        current = [
            entry_of(self._relative(row), finding)
            for row in report.files
            for finding in row.findings
        ]
        looked = {self._relative(row) for row in report.files if row.error is None}
        others = [
            entry
            for entry in self._entries
            if entry.path not in looked and self._is_there(entry)
        ]
        return Baseline(self.path, [*others, *current])

    def text(self) -> str:
        """Return the text of its file."""
        return baseline_text(self._entries)

    def _stale(self, files: Sequence[FileReport]) -> list[Entry]:
        """Return the entries whose finding has gone: from a file that was read, or with
        its file.
        """
        current = {
            entry_of(self._relative(row), finding).key
            for row in files
            for finding in (*row.findings, *row.switched_off)
        }
        read = {self._relative(row) for row in files if row.error is None}
        return [
            entry
            for entry in self._entries
            if entry.key not in current
            and (entry.path in read or not self._is_there(entry))
        ]

    def _relative(self, row: FileReport) -> str:
        if row.is_model or is_url(row.path):
            return row.path
        return os.path.relpath(os.path.abspath(row.path), self._folder).replace(
            os.sep, "/"
        )

    def _is_there(self, entry: Entry) -> bool:
        """Tell whether the file of an entry is there. For a URL or a live model the
        answer is yes: nothing looks.
        """
        if is_url(entry.path) or ".py:" in entry.path:
            return True
        return os.path.exists(os.path.join(self._folder, entry.path))


def baseline_at(path: str, *, is_new: bool = False) -> Baseline:
    """Return the baseline at a path; `is_new` allows that there is none yet. Raises
    UsageError.
    """
    return Baseline(
        path, [] if is_new and not os.path.lexists(path) else _read_entries(path)
    )


def _read_entries(path: str) -> list[Entry]:
    """Return the entries of a baseline. Raises UsageError: without it nothing can be
    judged.
    """
    try:
        file = locate(path).open()
        try:
            data = read_limited(file, _BYTES, "", "the baseline")
        finally:
            file.close()
        return baseline_of(parse_json(data, "baseline", Budget(Limits(), len(data))))
    except LimitError:
        raise UsageError(f"more than {_BYTES:,} bytes", path=path) from None
    except CkptError as error:
        raise UsageError(error.problem, path=path, hint=error.hint) from None


def count_known(files: Iterable[FileReport]) -> int:
    """Return how many findings of files a baseline knew."""
    return sum(len(row.known) for row in files)
