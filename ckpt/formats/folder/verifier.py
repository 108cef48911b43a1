"""Checking a folder that is one checkpoint: each file by the verifier of its format."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.errors import CkptError, LimitError, NotOpenedError
from ckpt.formats.dcp import verifier as dcp
from ckpt.formats.folder import documents
from ckpt.formats.folder.plan import plan_of
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
    plan = plan_of(probe)
    assert plan is not None
    reports: list[ChecksumReport] = []
    for part in plan.parts:
        if part.kind in ("json", "text"):
            continue
        if part.kind == "any" and documents.read_text(part.at, part.file, limits, probe.budget) is not None:
            continue
        try:
            if part.kind == "dcp":
                inner = Probe(part.at, limits, probe.open, plan.mark(part), probe.budget)
                found = dcp.checksums(inner, limits, executor, progress, check)
            else:
                found = check(part.at, plan.mark(part))
        except (LimitError, NotOpenedError):
            raise
        except CkptError:
            if part.is_model:
                raise
            continue  # the reader has said that it is damaged
        reports.append(found.about(part.file) if len(plan.parts) > 1 else found)
    return ChecksumReport.together(reports)
