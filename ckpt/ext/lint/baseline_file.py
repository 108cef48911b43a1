"""The file of a baseline: `--baseline FILE` of `ckpt lint`, and `--write-baseline`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

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
        """Return the baseline that holds the findings of a report, and what it could
        not see.

        These are the entries of files that are not in it, and of findings that its
        rules leave out or that only values of tensors show.
        """
        current = [
            entry_of(self._relative(row), finding)
            for row in report.files
            for finding in row.findings
        ]
        looked = self._rows_that_were_read(report.files)
        others = [
            entry
            # An entry goes where this run judged it, or its file is gone.
            for entry in self._entries
            if self._is_there(entry) and not _is_judged(entry, looked)
        ]
        return Baseline(self.path, [*others, *current])

    def text(self) -> str:
        """Return the text of its file."""
        return baseline_text(self._entries)

    def _stale(self, files: Sequence[FileReport]) -> list[Entry]:
        """Return the entries whose finding has gone: from a file that was read, or with
        its file.
        """
        # A finding that rules switched off was found all the same, and is not stale.
        current = {
            entry_of(self._relative(row), finding).key
            for row in files
            for finding in (*row.findings, *row.switched_off)
        }
        looked = self._rows_that_were_read(files)
        return [
            entry
            for entry in self._entries
            if entry.key not in current
            and (_is_judged(entry, looked) or not self._is_there(entry))
        ]

    def _rows_that_were_read(
        self, files: Sequence[FileReport]
    ) -> dict[str, FileReport]:
        """Map the paths of the entries to the reports of the files that were read."""
        return {self._relative(row): row for row in files if row.error is None}

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
        # `model.py:build` names a live model.
        if is_url(entry.path) or ".py:" in entry.path:
            return True
        return os.path.exists(os.path.join(self._folder, entry.path))


def _is_judged(entry: Entry, looked: Mapping[str, FileReport]) -> bool:
    """Tell whether this run would have seen the finding of an entry."""
    row = looked.get(entry.path)
    if row is None:
        return False
    if row.skipped is not None:
        return True  # no checkpoint any more, so it has no finding
    return row.could_report(entry.code, entry.level)


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
        # The budget follows from the bytes, for the file may be a stranger's.
        return baseline_of(parse_json(data, "baseline", Budget(Limits(), len(data))))
    except LimitError:
        raise UsageError(f"more than {_BYTES:,} bytes", path=path) from None
    except CkptError as error:
        raise UsageError(error.problem, path=path, hint=error.hint) from None


def count_known(files: Iterable[FileReport]) -> int:
    """Return how many findings of files a baseline knew."""
    return sum(len(row.known) for row in files)
