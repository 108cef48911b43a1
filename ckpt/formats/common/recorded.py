"""The items of a checkpoint, each with the size and the CRC-32 that its file records of
it, and the steps of its files.

Nothing is read but directories, headers and counters of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar
from zlib import crc32

from ckpt.bytes.executor import Executor
from ckpt.bytes.location import Location, read_file
from ckpt.elements.crc import combine_crcs
from ckpt.formats.common.archive import Archive
from ckpt.formats.format import List, Probe
from ckpt.model.checkpoint import Checkpoint, RecordedFile, RecordedItem, names_of
from ckpt.model.limits import Limits
from ckpt.model.names import Path
from ckpt.model.nodes import Node
from ckpt.tree.find import COUNTERS, counter, is_counter

_READ = 64
"""Counters of parameters of one file that are read, or up to twice as many: a save
writes all of them at once.
"""
_T = TypeVar("_T")
_PARAMETER = "*.step"
"""The name under which the counters of an optimizer's parameters are listed: the
largest one counts.
"""


def of_archive(
    probe: Probe, limits: Limits, executor: Executor, inner: List
) -> list[RecordedFile]:
    """Return the records of a zip archive."""
    archive = probe.archive
    assert archive is not None
    rows = [
        RecordedItem(row.name, row.size, row.crc) for row in archive.records.values()
    ]
    return [RecordedFile("", probe.size, tuple(rows))]


def of_sizes(checkpoint: Checkpoint) -> list[RecordedFile]:
    """Return the tensors of a file of a format that records no checksums."""
    rows = [
        RecordedItem(entry.name, entry.tensor.nbytes, None)
        for entry in checkpoint.tensors
    ]
    return [RecordedFile("", checkpoint.nbytes, tuple(rows))]


def of_text(location: Location, name: str, limits: Limits) -> RecordedFile:
    """A small file that is read whole: the CRC-32 is of its bytes."""
    data = read_file(location, limits, name)
    return RecordedFile(name, len(data), (RecordedItem(name, len(data), crc32(data)),))


def size_and_crc_of(archive: Archive) -> tuple[int, int | None]:
    """The size and the CRC-32 of all records of an archive, one after the other. The
    CRC is None if one has none.
    """
    size, crc = 0, 0
    known = True
    for record in archive.records.values():
        known = known and record.crc is not None
        # As of one run of bytes, without the gaps between the records.
        crc = combine_crcs(crc, record.crc or 0, record.size)
        size += record.size
    return size, crc if known else None


def steps_of(checkpoint: Checkpoint) -> tuple[tuple[str, float], ...]:
    """The counters of a run by their names, and the largest counter that an optimizer
    keeps for a parameter.
    """
    rows: list[tuple[Path, str, Node]] = [
        (row.path, row.name, row.node)
        for row in checkpoint.values
        if row.path and row.node is not None and row.path[-1] in COUNTERS
    ]
    # By the names first: an entry is made only for a counter.
    for index, name in enumerate(names_of(checkpoint.tensors)):
        if name.rpartition(".")[2] in COUNTERS:
            entry = checkpoint.tensors[index]
            rows.append((entry.path, name, entry.tensor))
    return largest_steps(_counter_values(rows))


def _counter_values(
    rows: Sequence[tuple[Path, str, Node]],
) -> Iterator[tuple[str, float]]:
    # An optimizer may keep thousands of counters: some of them are read.
    runs = [
        (name, node)
        for path, name, node in rows
        if is_counter(path) and not is_of_parameter(path)
    ]
    parameters = [(_PARAMETER, node) for path, _, node in rows if is_of_parameter(path)]
    for name, node in (*some_counters(runs), *some_counters(parameters)):
        value = counter(node)
        if value is not None:
            yield name, value


def some_counters(rows: Sequence[_T]) -> Sequence[_T]:
    """Some of the counters of parameters, from the first to the last."""
    return rows[:: max(1, len(rows) // _READ)]


def largest_steps(values: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """The counters by their names, the largest of each name."""
    found: dict[str, float] = {}
    for name, value in values:
        found[name] = max(value, found.get(name, value))
    return tuple(found.items())


def is_of_parameter(path: Path) -> bool:
    """Tell whether a counter is one of the many that an optimizer keeps, one for each
    parameter.
    """
    return len(path) > 2 and path[-1] == "step"


def step_name(path: Path, name: str) -> str:
    """The name under which a counter is listed."""
    return _PARAMETER if is_of_parameter(path) else name
