"""`ckpt verify`: whether a file is whole, as far as it can be known without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ckpt.checkpoint import Checkpoint
from ckpt.jobs.check.sums import Sum
from ckpt.tensors import parts_of
from ckpt.text import Json, plural, show, size_text

Verdict = Literal["ok", "damaged", "could not look"]
_LISTED = 6


class Problem(NamedTuple):
    """What is damaged, and the tensors that it hits."""

    what: str
    tensors: tuple[str, ...] = ()


class VerifyReport(NamedTuple):
    """What is known of one file. `checked` says what was held against what, `not_checked` what nothing could tell."""

    path: str
    format: str | None
    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    whole: tuple[str, ...] | None = None
    """Of a cut file: the tensors whose bytes are all there."""
    lost: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.verify`; docs/json.md is its contract."""
        from ckpt import __version__

        return {
            "schema": {"name": "ckpt.verify", "version": 1},
            "ckpt": __version__,
            "file": {"path": self.path, "format": self.format},
            "verdict": self.verdict,
            "problems": [{"what": row.what, "tensors": list(row.tensors)} for row in self.problems],
            "checked": list(self.checked),
            "not_checked": list(self.not_checked),
            "whole": None if self.whole is None else list(self.whole),
            "lost": None if self.lost is None else list(self.lost),
        }


def structure(checkpoint: Checkpoint) -> VerifyReport:
    """What reading the file has shown already: its container and every tensor's geometry; the index of shards."""
    problems = [
        Problem(notice.message, notice.tensors) for notice in checkpoint.notices if notice.code == "shards"
    ]
    checked = [f"the container and {plural(len(checkpoint.tensors), 'tensor')}"]
    odd = [notice.message for notice in checkpoint.notices if notice.code == "trailing-data"]
    if checkpoint.parts:
        checked.append("the index")
    if checkpoint.index_bytes is not None:
        odd += _index(checkpoint, checkpoint.index_bytes)
    return _judged(checkpoint, problems, checked, odd)


def _index(checkpoint: Checkpoint, index_bytes: int) -> list[str]:
    """What is to be said when the index counts other bytes than the shards hold: tied tensors, most often.

    No loader looks at the number: by itself it is no damage.
    """
    every = [part for entry in checkpoint.tensors for part in parts_of(entry.tensor)]
    ranges = {(part.storage, part.extent): part.nbytes for part in every}
    held = {sum(part.nbytes for part in every), sum(ranges.values())}
    if index_bytes in held:
        return []
    return [f"total_size of the index, {index_bytes:,} bytes where the shards hold {max(held):,}"]


def with_checksums(
    report: VerifyReport,
    checkpoint: Checkpoint,
    damage: Sequence[tuple[str, str | None]],
    nbytes: int,
    unchecked: int,
) -> VerifyReport:
    """The report with what the container's own checksums say: `damage` is what, and the id of the storage."""
    problems = [*report.problems, *(Problem(what, _tensors(checkpoint, storage)) for what, storage in damage)]
    checked = [*report.checked, *([f"every recorded CRC over {size_text(nbytes)}"] if nbytes else [])]
    not_checked = list(report.not_checked)
    if not nbytes:
        unchecked = sum(storage.nbytes for storage in checkpoint.storages)
    if unchecked:
        why = "records without a CRC" if nbytes else f"{checkpoint.traits.label} has no checksums"
        not_checked.append(f"the values of {size_text(unchecked)}: {why}")
    return _judged(checkpoint, problems, checked, not_checked)


def _tensors(checkpoint: Checkpoint, storage: str | None) -> tuple[str, ...]:
    """The names of the tensors that look into a storage."""
    if storage is None:
        return ()
    return tuple(
        entry.name
        for entry in checkpoint.tensors
        if any(part.storage.id == storage for part in parts_of(entry.tensor))
    )


def against(checkpoint: Checkpoint, expected: Sequence[Sum], found: dict[str, str]) -> VerifyReport:
    """What sums that were stored before say: `found` are those of the file now, under every name that tensors go by."""
    other = tuple(row.name for row in expected if row.name in found and found[row.name] != row.digest)
    gone = tuple(row.name for row in expected if row.name not in found)
    problems = [
        Problem(f"{plural(len(names), 'tensor')} {what}", names)
        for names, what in ((other, "with another sum"), (gone, "not here"))
        if names
    ]
    return _judged(checkpoint, problems, [f"{plural(len(expected), 'stored sum')}"], ())


def damaged(path: str, problem: str, whole: Sequence[str] | None, lost: Sequence[str] | None) -> VerifyReport:
    """The report on a file that cannot be read; `whole` and `lost` are the tensors of a cut one."""
    return VerifyReport(
        path,
        None,
        "damaged",
        (Problem(problem, tuple(lost or ())),),
        whole=None if whole is None else tuple(whole),
        lost=None if lost is None else tuple(lost),
    )


def unknown(path: str, problem: str) -> VerifyReport:
    """The report on a file that could not be looked at."""
    return VerifyReport(path, None, "could not look", (Problem(problem),))


def _judged(
    checkpoint: Checkpoint, problems: Sequence[Problem], checked: Sequence[str], not_checked: Sequence[str]
) -> VerifyReport:
    verdict: Verdict = "damaged" if problems else "ok"
    return VerifyReport(
        checkpoint.path, checkpoint.format, verdict, tuple(problems), tuple(checked), tuple(not_checked)
    )


def text_of(report: VerifyReport) -> str:
    """The report in one line, as people read it."""
    if report.verdict == "could not look":
        return f"could not look: {report.problems[0].what}"
    if report.verdict == "ok":
        left = f"; not checked: {', '.join(report.not_checked)}" if report.not_checked else ""
        return f"ok: {', '.join(report.checked)}{left}"
    parts = []
    for problem in report.problems[:_LISTED]:
        names = ", ".join(show(name, 60) for name in problem.tensors[:_LISTED])
        more = f" and {len(problem.tensors) - _LISTED:,} more" if len(problem.tensors) > _LISTED else ""
        parts.append(problem.what + (f" ({names}{more})" if names and report.lost is None else ""))
    text = f"damaged: {'; '.join(parts)}"
    if len(report.problems) > _LISTED:
        text += f"; and {len(report.problems) - _LISTED:,} more"
    if report.whole is not None and report.lost is not None:
        lost = ", ".join(show(name, 60) for name in report.lost[:_LISTED]) + (
            f" and {len(report.lost) - _LISTED:,} more" if len(report.lost) > _LISTED else ""
        )
        count = len(report.whole) + len(report.lost)
        text += f"; {len(report.whole):,} of {plural(count, 'tensor')} are whole" + (
            f", lost: {lost}" if lost else ""
        )
    return text
