"""Checking a DeepSpeed checkpoint: each file by the verifier of its format. Reading has compared the ranks."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.errors import CkptError, LimitError, NotOpenedError
from ckpt.formats.deepspeed.plan import plan_of
from ckpt.formats.deepspeed.reader import mark
from ckpt.formats.format import Check, ChecksumReport
from ckpt.formats.probe import Probe
from ckpt.io.executor import Executor
from ckpt.limits import Limits


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    plan = plan_of(probe, limits)
    reports: list[ChecksumReport] = []
    for name in plan.names:
        try:
            report = check(plan.file(name), mark(probe, name))
        except (LimitError, NotOpenedError):
            raise
        except CkptError:
            continue  # the reader has said that it is damaged
        reports.append(report.about(f"{plan.prefix}{name}"))
    return ChecksumReport.together(reports)
