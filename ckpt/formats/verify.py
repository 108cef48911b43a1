"""Comparing a file of any format with what it records of itself."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.errors import CkptError, about
from ckpt.formats import format_of, known_formats, probe_at, salvager_of, verifier_of
from ckpt.formats.format import ChecksumReport, Salvage
from ckpt.io.executor import Executor, Threads
from ckpt.io.location import Location, locate
from ckpt.limits import Limits


def checksums(
    path: str,
    limits: Limits,
    progress: Callable[[int], None] | None = None,
    *,
    plugins: bool = False,
    executor: Executor | None = None,
) -> ChecksumReport:
    """Compare every checksum in the file at a path, or in each of its shards, with its bytes. Raises CkptError."""
    worker = executor or Threads()

    def check(location: Location, mark: str) -> ChecksumReport:
        probe = probe_at(location, limits, plugins, mark)
        try:
            verifier = verifier_of(format_of(probe, plugins))
            if verifier is None:
                return ChecksumReport(0, (), probe.size)
            with about(location.name):
                return verifier.checksums(probe, limits, worker, progress, check)
        finally:
            probe.close()

    return check(locate(path), "")


def salvage(path: str, limits: Limits) -> Salvage | None:
    """Return what is left of a file that is cut off, or of a save that was interrupted; None when that cannot be known."""
    probe = None
    try:
        probe = probe_at(locate(path), limits)
        for format in known_formats():
            salvager = salvager_of(format)
            report = None if salvager is None else salvager.salvage(probe)
            if report is not None:
                return report
    except CkptError:
        return None
    finally:
        if probe is not None:
            probe.close()
    return None
