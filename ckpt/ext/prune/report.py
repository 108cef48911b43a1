"""The report of `ckpt prune`: each checkpoint in the folder of a run, whether it stays
or may go, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import overload

from ckpt.ext.prune.finding import Run
from ckpt.ext.prune.removal import Victim
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, counted_noun, show, size_text
from ckpt.surface.reports import document_head, shown_as_html


class PruneRow(NamedTuple):
    """A checkpoint right in the folder of a run. `why` are the reasons why it stays, or
    why it may go.
    """

    path: str
    stays: bool
    why: tuple[str, ...]
    state: str | None = None
    """`whole`, `damaged`, `unfinished` or `unread`, or None for a checkpoint that was
    not looked at.
    """
    series: str | None = None
    """The name with `*` for its counts, or None for a checkpoint of no series."""
    counts: tuple[tuple[str, float], ...] = ()
    """The epoch and the step by which it stands in its series."""
    metrics: tuple[tuple[str, float], ...] = ()
    nbytes: int = 0
    links: int = 1
    """The hard links to a file: with several, its bytes stay on the disk."""
    problem: str | None = None
    """The reason why it is still there, or what is left of it, after it should have
    gone.
    """
    is_deleted: bool = False
    victim: Victim | None = None

    def __repr__(self) -> str:
        word = "stays" if self.stays else "may go"
        if self.is_deleted:
            word = "deleted"
        return f"<ckpt.PruneRow {show(self.path)}: {word}>"

    def to_json(self) -> dict[str, Json]:
        """The entry of `checkpoints[]` of the document."""
        return {
            "path": self.path,
            "stays": self.stays,
            "why": list(self.why),
            "state": self.state,
            "series": self.series,
            "counts": {
                kind: int(count) if count.is_integer() else count
                for kind, count in self.counts
            },
            # JSON has no NaN and no infinity: such a value is null.
            "metrics": [
                {"name": name, "value": value if isfinite(value) else None}
                for name, value in self.metrics
            ],
            # A checkpoint that was passed over was not measured.
            "bytes": None if self.state is None and self.stays else self.nbytes,
            "hard_links": self.links,
            "deleted": self.is_deleted,
            "problem": self.problem,
        }


@shown_as_html("ckpt.ext.prune.text", "html_prune")
class PruneReport(Sequence[PruneRow]):
    """The report of `ckpt prune`: a row for each checkpoint that lies right in the
    folder of a run.
    """

    def __init__(
        self,
        run: Run,
        rows: Sequence[PruneRow],
        warnings: Sequence[str] = (),
        needed: Sequence[Victim] = (),
    ) -> None:
        self.run = run
        self.rows = tuple(rows)
        self.warnings = tuple(warnings)
        self.needed = tuple(needed)
        """The saves that are counted on, because they are whole: while they have not
        their content, nothing is removed.
        """

    @overload
    def __getitem__(self, index: int) -> PruneRow: ...

    @overload
    def __getitem__(
        self, index: slice[int | None, int | None, int | None]
    ) -> tuple[PruneRow, ...]: ...

    def __getitem__(
        self, index: int | slice[int | None, int | None, int | None]
    ) -> PruneRow | tuple[PruneRow, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def path(self) -> str:
        """The folder of the run, as it was typed."""
        return self.run.path

    @property
    def may_go(self) -> tuple[PruneRow, ...]:
        """The rows that may go, the oldest first."""
        return tuple(row for row in self.rows if not row.stays)

    @property
    def staying(self) -> tuple[PruneRow, ...]:
        """The rows that stay."""
        return tuple(row for row in self.rows if row.stays)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 2 where something that should have gone did
        not.
        """
        return 2 if any(row.problem is not None for row in self.rows) else 0

    def __repr__(self) -> str:
        going = self.may_go
        text = f"{len(going):,} of {counted_noun(len(self.rows), 'checkpoint')} may go"
        return (
            f"<ckpt.PruneReport {show(self.path)}: {text}, "
            f"{size_text(sum(row.nbytes for row in going))}>"
        )

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.prune`; docs/json.md is its contract."""
        return {
            **document_head("ckpt.prune", 1),
            "file": {"path": self.path},
            "may_go": [row.path for row in self.may_go],
            "bytes": sum(row.nbytes for row in self.may_go),
            "checkpoints": [row.to_json() for row in self.rows],
            "warnings": list(self.warnings),
        }
