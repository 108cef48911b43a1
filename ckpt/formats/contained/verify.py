"""Checking an archive of checkpoints: each by the verifier of its format, the other members by their checksums."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.errors import DamagedDataError
from ckpt.formats.contained.layouts import layout_of
from ckpt.formats.format import Check, ChecksumReport, Damage, Salvage
from ckpt.formats.probe import Probe
from ckpt.io.executor import Executor
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    layout = layout_of(probe, limits)
    reports = [check(member, f"{probe.mark}{key}:") for key, member in layout.parts.items()]
    damage = [row for report in reports for row in report.damage]
    nbytes, unchecked = 0, 0
    for member in (*layout.jsons.values(), *layout.texts.values()):
        try:
            member.read(limits, Budget(limits))
        except DamagedDataError as error:
            damage.append(Damage(error.problem))
        if member.crc is None:
            unchecked += member.size
        else:
            nbytes += member.size
    return ChecksumReport(
        nbytes + sum(report.nbytes for report in reports),
        tuple(damage),
        unchecked + sum(report.unchecked for report in reports),
    )


def salvage(source: Source, limits: Limits) -> Salvage | None:
    return None
