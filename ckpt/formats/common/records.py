"""Checking a zip archive of torch: the CRC of every record, and what is left of an archive that is cut off."""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from

from ckpt.elements.audit import crc_of_part, joined, parts_of_record
from ckpt.errors import UnreadableError
from ckpt.formats.common.archive import DESCRIPTOR_MAGIC, Archive
from ckpt.formats.common.directory import CENTRAL_MAGIC, LOCAL_HEADER, LOCAL_MAGIC, Record
from ckpt.formats.common.pickled import Contents, interpret, run
from ckpt.formats.common.recorded import of_archive
from ckpt.formats.common.stream import read_nested
from ckpt.formats.format import Check, ChecksumReport, Damage, Probe, Salvage
from ckpt.io.executor import Executor, Failed, Task, run_each
from ckpt.io.source import Source
from ckpt.limits import Limits
from ckpt.nodes import Global, PersistentId
from ckpt.pickles.machine import Pickle, TruncatedPickleError
from ckpt.pickles.rebuild import make_storage, storage_bytes, storage_type
from ckpt.tensors import Storage, parts_of
from ckpt.text import show
from ckpt.tree.walk import flatten

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
        Task(crc_of_part, (place, first, last), last - first)
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
            reason = next(answer.problem for answer in answers if isinstance(answer, Failed))
            unread.append(f"{name}: {reason}")
            continue
        crc, problem = joined(row, read)
        nbytes += record.size
        if problem is not None:
            damage.append(Damage(f"{name}: {problem}", _storage_id(probe.mark, archive, record)))
        elif crc != record.crc:
            text = f"{name} does not match its recorded checksum"
            damage.append(Damage(text, _storage_id(probe.mark, archive, record)))
    unchecked = sum(record.size for record in archive.records.values() if record.crc is None)
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
            return mark + prefix + record.name.removeprefix(start).removesuffix(".storage")
    return None


# --- a file that is cut off -------------------------------------------------------------------------------------------


def salvage(probe: Probe) -> Salvage | None:
    return _of_zip(probe.file, probe.limits) if probe.head.startswith(LOCAL_MAGIC) else None


def _of_zip(source: Source, limits: Limits) -> Salvage | None:
    """Read the records one after the other, because the directory at the end is gone.

    Their sizes come from the pickle, which is the first record (caffe2/serialize/inline_container.cc).
    """
    position = 0
    contents = Contents((), read_nested)
    root: Pickle | None = None
    storages: dict[str, Storage] = {}
    whole: set[str] = set()

    def storage_of(persistent: PersistentId) -> Storage | Global:
        pid = persistent.pid
        if type(pid) is not tuple or len(pid) < 5:
            raise UnreadableError(
                f"the persistent id at byte {persistent.offset:,} of the pickle does not name a storage"
            )
        key, dtype = str(pid[2]), storage_type(pid[1])
        if key not in storages:
            storages[key] = make_storage(key, pid[3], dtype, storage_bytes(dtype, pid[4]), None, None)
        return storages[key]

    for _ in range(limits.entries):
        local = _local(source, position)
        if local is None:
            break
        name, begin = local
        inner = name.partition("/")[2]
        if inner == "data.pkl" and root is None:
            pickle = pickle_at(source, begin, limits)
            if pickle is None:
                return None
            root, end = pickle
            end += begin
            interpret(root, contents, limits, storage_of, 0)
        elif inner.startswith("data/") and inner[5:] in storages:
            end = begin + storages[inner[5:]].nbytes
        else:
            scanned = _end_of(source, begin)
            if scanned is None:
                break
            end = scanned
        if end > source.size:
            break
        whole.add(inner)
        position = _after(source, end)
    if root is None:
        return None
    present: list[str] = []
    lost: list[str] = []
    for entry in flatten(root.root, limits).tensors:
        is_cut = any(
            part.nbytes and part.storage.id in storages and f"data/{part.storage.id}" not in whole
            for part in parts_of(entry.tensor)
        )
        (lost if is_cut else present).append(entry.name)
    return Salvage(tuple(present), tuple(lost))


def _local(source: Source, position: int) -> tuple[str, int] | None:
    """(name, where its data begins) of the record with its local header at `position`; None when it is cut or missing."""
    name_at = position + LOCAL_HEADER.size
    if name_at > source.size:
        return None
    magic, *_, names, extras = LOCAL_HEADER.unpack(source.read(position, LOCAL_HEADER.size))
    if magic != LOCAL_MAGIC or name_at + names + extras > source.size:
        return None
    return source.read(name_at, names).decode("utf-8", "replace"), name_at + names + extras


def pickle_at(source: Source, begin: int, limits: Limits, size: int = 1 << 18) -> tuple[Pickle, int] | None:
    """(the pickle at an offset, its length); None when it is cut off. `size` bytes are read at first."""
    while True:
        data = source.read(begin, min(size, source.size - begin, limits.pickle_bytes))
        try:
            pickle = run(data, limits)
        except TruncatedPickleError:
            if len(data) < size:
                return None
            size *= 4
            continue
        return pickle, pickle.end


_STEP = 1 << 20


def _end_of(source: Source, begin: int) -> int | None:
    """Return the end of a record of unknown size, or None if it is cut off.

    The descriptor at the end gives its size.
    """
    if source.read(begin, min(4, source.size - begin)) in (LOCAL_MAGIC, CENTRAL_MAGIC):
        return begin  # an empty record has no descriptor
    position = begin
    while position < source.size:
        data = source.read(position, min(_STEP + 16, source.size - position))
        mark = data.find(DESCRIPTOR_MAGIC)
        while 0 <= mark < _STEP:
            size = position + mark - begin
            if mark + 12 <= len(data) and unpack_from("<I", data, mark + 8)[0] == size & 0xFFFFFFFF:
                return position + mark
            mark = data.find(DESCRIPTOR_MAGIC, mark + 1)
        position += _STEP
    return None


def _after(source: Source, end: int) -> int:
    """Return the offset of the next local header, after the descriptor of a record."""
    tail = source.read(end, min(28, source.size - end))
    if not tail.startswith(DESCRIPTOR_MAGIC):
        return end
    return end + (16 if tail[16:20] == LOCAL_MAGIC or len(tail) < 28 else 24)
