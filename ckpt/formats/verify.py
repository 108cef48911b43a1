"""Comparing a file of any format with what it records of itself."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.checkpoint import RecordedFile
from ckpt.errors import CkptError, about
from ckpt.formats import format_of, known_formats, lister_of, probe_at, salvager_of, verifier_of
from ckpt.formats.format import ChecksumReport, Salvage
from ckpt.io.executor import Executor, Threads
from ckpt.io.location import Location, locate
from ckpt.limits import Limits
from ckpt.rows import NamedTuple


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


class Recorded(NamedTuple):
    """The files of a checkpoint with what they record of their items, and the format by its name and its label."""

    format: str
    label: str
    files: list[RecordedFile]


def recorded(
    path: str, limits: Limits, *, plugins: bool = False, executor: Executor | None = None
) -> Recorded:
    """List the items of the checkpoint at a path with their recorded sizes and CRC-32, and the steps of its files.

    No tensor data is read, except counters of steps. Raises CkptError.
    """
    from ckpt.formats.common.recorded import (  # here: who verifies without a list needs none
        of_sizes,
        steps_of,
    )

    worker = executor or Threads()

    def listed(location: Location, name: str) -> Recorded:
        probe = probe_at(location, limits, plugins)
        try:
            with about(location.name):
                format = format_of(probe, plugins)
                lister = lister_of(format)
                files = [] if lister is None else lister.recorded(probe, limits, worker, inner)
                if lister is None or (len(files) == 1 and not files[0].name):
                    with format.read(probe, limits) as checkpoint:
                        files = files or of_sizes(checkpoint)
                        files = [files[0]._replace(steps=steps_of(checkpoint))]
                        checkpoint.check_unchanged()
        finally:
            probe.close()
        files = [file._replace(name="/".join(filter(None, (name, file.name)))) for file in files]
        return Recorded(format.name, format.traits.label, files)

    def inner(location: Location, name: str) -> list[RecordedFile]:
        return listed(location, name).files

    return listed(locate(path), "")


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
