"""Checking the files of the ranks of a run: each by the verifier of its format, and what several ranks hold for equality."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ckpt.checkpoint import Checkpoint
from ckpt.elements.blocks import elements, same_bytes
from ckpt.errors import CkptError, LimitError, NotOpenedError
from ckpt.formats.format import Check, ChecksumReport, Damage
from ckpt.formats.fsdp.reader import RanksOrigin, read
from ckpt.formats.probe import Probe
from ckpt.io.executor import Executor, Failed, Task, run_each
from ckpt.limits import Limits
from ckpt.tensors import Boxes, TensorRef
from ckpt.text import show


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    with read(probe, limits) as checkpoint:
        assert isinstance(checkpoint.origin, RanksOrigin)
        owners = dict(_owners(checkpoint))
        reports = [
            _about(check(probe.location.child(name, "no"), mark).about(name), owners)
            for name, mark in checkpoint.origin.marks
        ]
        asked = [copies for copies in checkpoint.origin.copies if not copies.surely_differ]  # else it is said
        tasks = [
            Task(_same, (copies.one, copies.two), copies.one.nbytes + copies.two.nbytes) for copies in asked
        ]
        found = list(zip(asked, run_each(executor, tasks), strict=True))
    damage = [Damage(copies.text, copies.id) for copies, same in found if same is False]
    unread = [
        f"{show(copies.name, 80)}: {same.problem}" for copies, same in found if isinstance(same, Failed)
    ]
    return ChecksumReport.together([*reports, ChecksumReport(0, tuple(damage), 0, tuple(unread))])


def _same(one: TensorRef, two: TensorRef) -> bool | None:
    """Whether two ranks hold the same elements; None where the checksums of its file say that it is damaged."""
    try:
        return same_bytes(elements(one), elements(two))
    except (LimitError, NotOpenedError):
        raise
    except CkptError:
        return None


def _owners(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """The id of each storage of a rank, and that of the whole tensor that it is a part of."""
    assert isinstance(checkpoint.origin, RanksOrigin)
    for copies in checkpoint.origin.copies:
        yield copies.one.storage.id, copies.id
        yield copies.two.storage.id, copies.id
    for storage in checkpoint.storages:
        for box in storage.place.boxes if isinstance(storage.place, Boxes) else ():
            yield box.tensor().storage.id, storage.id


def _about(report: ChecksumReport, owners: dict[str, str]) -> ChecksumReport:
    """A report on the file of a rank, about the whole tensors."""
    rows = [row._replace(storage=owners.get(row.storage or "", row.storage)) for row in report.damage]
    return report._replace(damage=tuple(rows))
