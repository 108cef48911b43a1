"""Checking a zip archive of torch: the CRC of every record, and what is left of an
archive that is cut off.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.bytes.executor import Executor, Failed, Task, run_each
from ckpt.elements.audit import crc_of, join_crcs, parts_of_record
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import Record
from ckpt.formats.common.recorded import of_archive
from ckpt.formats.format import Check, ChecksumReport, Damage, Probe
from ckpt.model.limits import Limits
from ckpt.model.text import show

recorded = of_archive


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    """Compare every record that has a CRC with it."""
    archive = probe.archive
    assert archive is not None
    records = [record for record in archive.records.values() if record.crc is not None]
    places = [record.place(archive.source) for record in records]
    cuts = [parts_of_record(place) for place in places]
    tasks = [
        Task(crc_of, (place.slice_stored(first, last),), last - first)
        for place, row in zip(places, cuts, strict=True)
        for first, last in row
    ]
    results = iter(run_each(executor, tasks, progress))
    damage: list[Damage] = []
    unread: list[str] = []
    nbytes = 0
    for record, row in zip(records, cuts, strict=True):
        answers = [next(results) for _ in row]
        read = [answer for answer in answers if not isinstance(answer, Failed)]
        name = f"record {show(record.name, 80)}"
        if len(read) < len(answers):
            reason = next(
                answer.problem for answer in answers if isinstance(answer, Failed)
            )
            unread.append(f"{name}: {reason}")
            continue
        crc, problem = join_crcs(row, read)
        nbytes += record.size
        if problem is not None:
            damage.append(
                Damage(f"{name}: {problem}", _storage_id(probe.mark, archive, record))
            )
        elif crc != record.crc:
            text = f"{name} does not match its recorded checksum"
            damage.append(Damage(text, _storage_id(probe.mark, archive, record)))
    unchecked = sum(
        record.size for record in archive.records.values() if record.crc is None
    )
    return ChecksumReport(nbytes, tuple(damage), unchecked, tuple(unread))


def _storage_id(mark: str, archive: Archive, record: Record) -> str | None:
    """The id of the storage in a record."""
    folders = (
        ("data", ""),
        ("constants", "constants:"),
        ("bytecode", "bytecode:"),
        ("tensors", ""),
        (".data", ""),
    )
    for folder, prefix in folders:
        start = f"{archive.root}/{folder}/"
        if record.name.startswith(start):
            return (
                mark + prefix + record.name.removeprefix(start).removesuffix(".storage")
            )
    return None
