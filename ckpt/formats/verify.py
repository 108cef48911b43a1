"""Comparing a file of any format with what it records of itself."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.checkpoint import Checkpoint, names_of
from ckpt.errors import CkptError, about
from ckpt.findings import LOST
from ckpt.formats import format_of, known_formats, open, probe_at, verifier_of
from ckpt.formats.format import ChecksumReport
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


class Remainder(NamedTuple):
    """The rest of a file that is cut off: its whole tensors, and the lost ones. None where they have no names.

    `rows` say what lies in the files of a folder whose tensors have lost their names.
    """

    whole: tuple[str, ...] | None
    lost: tuple[str, ...] | None
    rows: tuple[str, ...] = ()
    hint: str | None = None
    """The command that writes what is whole."""


def remainder(
    path: str, limits: Limits, plan: Callable[[Checkpoint], str | None] | None = None
) -> Remainder | None:
    """Return what is left of a file that is cut off, or of a save that was interrupted; None when that cannot be known.

    `plan` gives the command for a checkpoint of which tensors are whole.
    """
    try:
        with open(path, limits, partial=True) as checkpoint:
            gone = {name for row in checkpoint.notices if row.code in LOST for name in row.tensors}
            names = names_of(checkpoint.tensors)
            whole = tuple(name for name in names if name not in gone)
            hint = plan(checkpoint) if plan is not None and whole else None
            return Remainder(whole, tuple(name for name in names if name in gone), (), hint)
    except CkptError:
        pass
    try:
        probe = probe_at(locate(path), limits)
        rows = (format.remains(probe) for format in known_formats() if format.remains is not None)
        found = next((tuple(row) for row in rows if row), ())
        probe.close()
    except CkptError:
        return None
    return Remainder(None, None, found) if found else None
