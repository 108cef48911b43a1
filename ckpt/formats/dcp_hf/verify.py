"""Checking a distributed checkpoint in safetensors. The reader compares the headers; the values have no checksums."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.formats.dcp_hf.names import shards_in
from ckpt.formats.format import Check, ChecksumReport, Salvage
from ckpt.formats.probe import Probe
from ckpt.io.executor import Executor
from ckpt.io.source import Source
from ckpt.limits import Limits


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    files = shards_in(probe.location.names())
    return ChecksumReport.together(
        [check(probe.location.child(file.name, "cache"), f"{probe.mark}{file.name}:") for file in files]
    )


def salvage(source: Source, limits: Limits) -> Salvage | None:
    return None
