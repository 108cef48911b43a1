"""Checking an archive of checkpoints: each by the verifier of its format, the other members by their checksums."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.errors import DamagedDataError
from ckpt.formats.contained.layouts import layout_of
from ckpt.formats.format import Check, ChecksumReport, Damage
from ckpt.formats.probe import Probe
from ckpt.io.executor import Executor
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
    for member in (*layout.jsons.values(), *layout.texts.values()):
        damage: tuple[Damage, ...] = ()
        try:
            member.read(limits, Budget(limits))
        except DamagedDataError as error:
            damage = (Damage(error.problem),)
        known, unknown = (0, member.size) if member.crc is None else (member.size, 0)
        reports.append(ChecksumReport(known, damage, unknown))
    return ChecksumReport.together(reports)
