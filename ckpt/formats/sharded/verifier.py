"""Checking a checkpoint in several files: each file by the verifier of its format."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.formats.format import Check, ChecksumReport
from ckpt.formats.probe import Probe
from ckpt.formats.sharded.reader import layout_of, mark
from ckpt.io.executor import Executor
from ckpt.limits import Limits


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    layout = layout_of(probe, limits)
    reports = [
        check(layout.folder.child(name), mark(probe, number)).about(name)
        for number, name in enumerate(layout.places)
    ]
    return ChecksumReport.together(reports)
