"""Checking a distributed checkpoint: every item against `.metadata`, and every record of it against its checksum.

torch checks neither when it loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ckpt.dtypes import DType
from ckpt.elements.audit import crc_of
from ckpt.elements.blocks import elements, same_bytes
from ckpt.errors import CkptError, LimitError, NotOpenedError, UnsupportedError
from ckpt.formats.common.dcp import folder_of
from ckpt.formats.dcp.items import Bytes, TensorItem, most_of
from ckpt.formats.dcp.reader import Files
from ckpt.formats.format import Check, ChecksumReport, Damage, Probe
from ckpt.io.executor import SPAN, Executor, Failed, Task, run_each
from ckpt.limits import INFLATION, Limits
from ckpt.rows import NamedTuple
from ckpt.text import and_more, show


class _Item(NamedTuple):
    """An item to be checked, and what `.metadata` says of it; an object has no dtype. `name` is its tensor."""

    at: Bytes
    name: str
    dtype: DType | None = None
    shape: tuple[int, ...] = ()


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    folder = folder_of(probe)
    assert folder is not None
    files = Files(folder, limits, probe.budget)
    try:
        parts = list(_parts(_items(files)))
        tasks = [
            Task(_checked, (part, probe.mark, limits), sum(item.at.length for item in part)) for part in parts
        ]
        copies, gone = _copies(files, probe.mark)
        again = [
            Task(_compared, (copy, probe.mark, limits), copy.one.length + copy.two.length) for copy in copies
        ]
        results = run_each(executor, [*tasks, *again], progress)
        names = [*([item.at.what for item in part] for part in parts), *([copy.what] for copy in copies)]
        for source in files.sources.values():
            source.check_unchanged()
    finally:
        files.close()
    reports = [_report(result, row) for result, row in zip(results, names, strict=True)]
    return ChecksumReport.together([*reports, ChecksumReport(0, tuple(gone), 0)])


def _report(result: tuple[int, list[tuple[str, str]], int] | Failed, names: list[str]) -> ChecksumReport:
    """Return the findings of a task, or an account of the items that were not read."""
    if isinstance(result, Failed):
        return ChecksumReport(0, (), 0, (f"{and_more(names, 3)}: {result.problem}",))
    nbytes, damage, unchecked = result
    return ChecksumReport(nbytes, tuple(Damage(*row) for row in damage), unchecked)


def _items(files: Files) -> Iterator[_Item]:
    """The items that are there. What is missing, the reader says."""
    metadata = files.metadata
    for name, row in metadata.tensors.items():
        for index, (_, sizes) in enumerate(row.chunks.boxes()):
            try:
                yield _Item(files.chunk(row, index), name, row.dtype, sizes)
            except CkptError:
                continue
    for name, item in metadata.objects.items():
        try:
            if item is not None:
                yield _Item(files.find(item, show(name, 80)), name)
        except CkptError:
            continue


def _parts(items: Iterator[_Item]) -> Iterator[list[_Item]]:
    """Items for one task each: the split depends on the checkpoint alone."""
    part: list[_Item] = []
    used = 0
    for item in items:
        part.append(item)
        used += item.at.length
        if used >= SPAN or len(part) >= 1000:
            yield part
            part, used = [], 0
    if part:
        yield part


def _itself(part: Bytes) -> Bytes:
    return part


def _most(item: _Item, limits: Limits) -> int:
    """The most bytes that an item may decode to."""
    if item.dtype is not None:
        return most_of(item.dtype, item.shape)
    return limits.inflated_bytes + item.at.length * INFLATION


def _checked(items: list[_Item], mark: str, limits: Limits) -> tuple[int, list[tuple[str, str]], int]:
    """Bytes with a checksum that were compared, damage and the id of its storage, bytes without a checksum."""
    nbytes = unchecked = 0
    damage: list[tuple[str, str]] = []
    for item in items:
        try:
            if item.dtype is not None:
                TensorItem(partial(_itself, item.at), item.dtype, item.shape, limits).tensor()
            archive = item.at.archive(limits, _most(item, limits))
        except (LimitError, NotOpenedError, UnsupportedError):
            raise
        except CkptError as error:
            text = (
                error.problem
                if error.problem.startswith(item.at.what)
                else f"{item.at.what}: {error.problem}"
            )
            damage.append((text, mark + item.name))
            continue
        for record in archive.records.values():
            if record.crc is None:
                unchecked += record.size
                continue
            crc, problem = crc_of(record.place(archive.source))
            nbytes += record.size
            if problem is not None or crc != record.crc:
                why = problem or "its bytes do not match the recorded checksum"
                inner = show(record.name.partition("/")[2], 40)
                damage.append((f"{item.at.what} is damaged: record {inner}: {why}", mark + item.name))
    return nbytes, damage, unchecked


class _Copy(NamedTuple):
    """The items of two ranks that should hold the same chunk, and their files."""

    name: str
    what: str
    dtype: DType
    shape: tuple[int, ...]
    one: Bytes
    two: Bytes
    files: tuple[str, str]


def _copies(files: Files, mark: str) -> tuple[list[_Copy], list[Damage]]:
    """Return the copies that several ranks wrote of the same chunks, and the damage where a part is missing.

    Loaders take any of them, so they must be equal.
    """
    copies: list[_Copy] = []
    gone: list[Damage] = []
    metadata = files.metadata
    for copy in metadata.copies:
        if copy.chunk is None:
            continue  # each rank has objects of its own, such as the state of its random numbers
        row = metadata.tensors[copy.name]
        what = show(copy.name, 80)
        names = (metadata.item(row, copy.chunk).file, copy.item.file)
        try:
            first, second = files.chunk(row, copy.chunk), files.find(copy.item, what)
        except CkptError as error:
            gone.append(Damage(error.problem, mark + copy.name))
            continue
        copies.append(_Copy(copy.name, what, row.dtype, row.chunks.box(copy.chunk)[1], first, second, names))
    return copies, gone


def _compared(copy: _Copy, mark: str, limits: Limits) -> tuple[int, list[tuple[str, str]], int]:
    """Compare the elements of a chunk on two ranks. Return a damage if they differ or one is unreadable."""
    text = ""
    try:
        first, second = (
            TensorItem(partial(_itself, part), copy.dtype, copy.shape, limits).tensor()
            for part in (copy.one, copy.two)
        )
        if not same_bytes(elements(first), elements(second)):
            text = f"{copy.what} differs between {show(copy.files[0], 60)} and {show(copy.files[1], 60)}"
    except (LimitError, NotOpenedError, UnsupportedError):
        raise
    except CkptError as error:
        text = error.problem
    return 0, [(text, mark + copy.name)] if text else [], 0
