"""Checking a zip archive of torch: the CRC of every record, and what is left of an
archive that is cut off.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.bytes.executor import Executor, Failed, Task, run_each
from ckpt.elements.audit import CrcResult, crc_of, join_crcs, parts_of_record
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
    cuts: list[list[tuple[int, int]]] = []
    tasks: list[Task[CrcResult]] = []
    for record in records:
        place = record.place(archive.source)
        spans = parts_of_record(place)
        cuts.append(spans)
        for first, last in spans:
            # A large record is compared in parts, whose CRCs are joined afterwards.
            part = place.slice_stored(first, last)
            tasks.append(Task(crc_of, (part,), last - first))
    # All records in one call: the executor keeps every processor busy to the end.
    results = iter(run_each(executor, tasks, progress))
    damage: list[Damage] = []
    unread: list[str] = []
    nbytes = 0
    for record, spans in zip(records, cuts, strict=True):
        answers = [next(results) for _ in spans]
        name = f"record {show(record.name, 80)}"
        failures = [answer for answer in answers if isinstance(answer, Failed)]
        if failures:
            unread.append(f"{name}: {failures[0].problem}")
            continue
        crcs = [answer for answer in answers if not isinstance(answer, Failed)]
        crc, problem = join_crcs(spans, crcs)
        nbytes += record.size
        storage_id = _storage_id(probe.mark, archive, record)
        if problem is not None:
            damage.append(Damage(f"{name}: {problem}", storage_id))
        elif crc != record.crc:
            text = f"{name} does not match its recorded checksum"
            damage.append(Damage(text, storage_id))
    unchecked = sum(
        record.size for record in archive.records.values() if record.crc is None
    )
    return ChecksumReport(nbytes, tuple(damage), unchecked, tuple(unread))


def _storage_id(mark: str, archive: Archive, record: Record) -> str | None:
    """The id of the storage in a record, or None of any other record."""
    for folder, prefix in _FOLDERS:
        start = f"{archive.root}/{folder}/"
        if record.name.startswith(start):
            # torch.package writes `.data/0.storage`.
            key = record.name.removeprefix(start).removesuffix(".storage")
            return mark + prefix + key
    return None


_FOLDERS = (
    ("data", ""),
    ("constants", "constants:"),
    ("bytecode", "bytecode:"),
    ("tensors", ""),
    (".data", ""),
)
"""The folders of storages, and how the ids of their storages begin: `tensors` in
TorchScript before 1.6, `.data` in torch.package.
"""
