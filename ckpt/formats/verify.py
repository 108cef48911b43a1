"""Comparing a file of any format with what it records of itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from ckpt.bytes.executor import Executor, Local
from ckpt.bytes.location import Location, locate
from ckpt.elements.audit import unsound
from ckpt.formats import (
    format_of,
    known_formats,
    lister_of,
    open,
    probe_at,
    verifier_of,
)
from ckpt.formats.format import ChecksumReport
from ckpt.model.checkpoint import Checkpoint, RecordedFile, names_of
from ckpt.model.errors import CkptError, about
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple


def checksums(
    path: str | Location,
    limits: Limits,
    progress: Callable[[int], None] | None = None,
    *,
    plugins: bool = False,
    executor: Executor | None = None,
) -> ChecksumReport:
    """Compare every checksum in the file at a path or location, or in each of its
    shards, with its bytes.

    Raises CkptError.
    """
    worker = executor or Local()

    def check(location: Location, mark: str) -> ChecksumReport:
        probe = probe_at(location, limits, plugins, mark)
        try:
            verifier = verifier_of(format_of(probe, plugins))
            if verifier is None:
                return ChecksumReport(0, (), probe.size)
            with about(location.name):
                # With `check` each file of a set is checked by its own format.
                return verifier.checksums(probe, limits, worker, progress, check)
        finally:
            probe.close()

    location = locate(path) if isinstance(path, str) else path
    return check(location, "")


class Recorded(NamedTuple):
    """The files of a checkpoint with what they record of their items, and the format by
    its name and its label.
    """

    format: str
    label: str
    files: list[RecordedFile]


def recorded(
    path: str | Location,
    limits: Limits,
    *,
    plugins: bool = False,
    executor: Executor | None = None,
) -> Recorded:
    """List the items of the checkpoint at a path or location with their recorded sizes
    and CRC-32, and the steps of its files.

    No tensor data is read, except counters of steps. Raises CkptError.
    """
    # Here: who verifies without a list needs none.
    from ckpt.formats.common.recorded import of_sizes, steps_of

    worker = executor or Local()

    def listed(location: Location, name: str) -> Recorded:
        probe = probe_at(location, limits, plugins)
        try:
            with about(location.name):
                format = format_of(probe, plugins)
                lister = lister_of(format)
                files: list[RecordedFile] = []
                if lister is not None:
                    files = lister.recorded(probe, limits, worker, inner)
                # Of an only file the steps are in the tree, and not in the list.
                if lister is None or (len(files) == 1 and not files[0].name):
                    with format.read(probe, limits) as checkpoint:
                        files = files or of_sizes(checkpoint)
                        files = [files[0]._replace(steps=steps_of(checkpoint))]
                        checkpoint.check_unchanged()
        finally:
            probe.close()
        # The only file of a checkpoint has no name of its own.
        named = []
        for file in files:
            parts = [part for part in (name, file.name) if part]
            named.append(file._replace(name="/".join(parts)))
        return Recorded(format.name, format.traits.label, named)

    def inner(location: Location, name: str) -> list[RecordedFile]:
        return listed(location, name).files

    location = locate(path) if isinstance(path, str) else path
    return listed(location, "")


class Remainder(NamedTuple):
    """The rest of a file that is cut off: its whole tensors, and the lost ones. None
    where they have no names.

    `rows` say what lies in the files of a folder whose tensors have lost their names.
    """

    whole: tuple[str, ...] | None
    lost: tuple[str, ...] | None
    rows: tuple[str, ...] = ()
    hint: str | None = None
    """The command that writes what is whole."""
    damage: str | None = None
    """The damage, where more is known of it than the reader says that found it."""
    unsound: tuple[str, ...] = ()
    """The lost tensors whose bytes are there and do not match their checksums."""
    unproved: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Sentences on whole tensors whose bytes no checksum proves, each with
    their names.
    """


def remainder(
    path: str,
    limits: Limits,
    plan: Callable[[Checkpoint], str | None] | None = None,
    *,
    plugins: bool = False,
    executor: Executor | None = None,
) -> Remainder | None:
    """Return what is left of a file that is cut off, or of a save that was interrupted;
    None when that cannot be known.

    `plan` gives the command for a checkpoint of which tensors are whole. With an
    `executor`, the checksums of all that is there are compared.
    """
    try:
        with open(path, limits, plugins=plugins, partial=True) as checkpoint:
            gone = dict.fromkeys(checkpoint.account.lost_names)
            bad = {} if executor is None else unsound(checkpoint, executor, far=True)
            whole: list[str] = []
            lost: list[str] = []
            for name in names_of(checkpoint.tensors):
                if name in gone or name in bad:
                    lost.append(name)
                else:
                    whole.append(name)
            # An index lists the others, and no shard that is there holds them.
            listed = {*lost}
            lost += [name for name in gone if name not in listed]
            doubts = checkpoint.account.noticed("damaged-file")
            unproved = [
                (notice.message, notice.tensors) for notice in doubts if notice.tensors
            ]
            return Remainder(
                tuple(whole),
                tuple(lost),
                hint=plan(checkpoint) if plan is not None and whole else None,
                damage=checkpoint.damage,
                unsound=tuple(bad),
                unproved=tuple(unproved),
            )
    except CkptError:
        pass  # nothing of it is read: its files may say something all the same
    try:
        with closing(probe_at(locate(path), limits)) as probe:
            rows: tuple[str, ...] = ()
            for format in known_formats():
                if format.remains is not None:
                    rows = tuple(format.remains(probe))
                if rows:
                    break
    except CkptError:
        return None
    return Remainder(None, None, rows) if rows else None
