"""Checking a distributed checkpoint: every item against `.metadata`, and every record of it against its checksum.

torch checks neither when it loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ckpt.dtypes import DType
from ckpt.elements.blocks import elements, same_bytes
from ckpt.errors import CkptError, LimitError, NotOpenedError, UnsupportedError
from ckpt.formats.dcp import DATA
from ckpt.formats.dcp.items import Bytes, TensorItem, most_of
from ckpt.formats.dcp.names import folder_of, is_metadata
from ckpt.formats.dcp.reader import Files
from ckpt.formats.dcp.remains import remains
from ckpt.formats.format import Check, ChecksumReport, Damage, Salvage
from ckpt.formats.probe import Probe
from ckpt.formats.torch_zip.verify import crc_of
from ckpt.io.executor import SPAN, Executor, Task
from ckpt.io.location import Location
from ckpt.io.source import Source
from ckpt.limits import INFLATION, Limits
from ckpt.rows import NamedTuple
from ckpt.text import show


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
        tasks = [
            Task(_checked, (part, probe.mark, limits), sum(item.at.length for item in part))
            for part in _parts(_items(files))
        ]
        reports = [*executor.run(tasks, progress), _copies(files, probe.mark, limits)]
        for source in files.sources.values():
            source.check_unchanged()
    finally:
        files.close()
    return ChecksumReport.together(reports)


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


def _itself(at: Bytes) -> Bytes:
    return at


def _most(item: _Item, limits: Limits) -> int:
    """The most bytes that an item may decode to."""
    if item.dtype is not None:
        return most_of(item.dtype, item.shape)
    return limits.inflated_bytes + item.at.length * INFLATION


def _checked(items: list[_Item], mark: str, limits: Limits) -> ChecksumReport:
    nbytes = unchecked = 0
    damage: list[Damage] = []
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
            damage.append(Damage(text, mark + item.name))
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
                damage.append(Damage(f"{item.at.what} is damaged: record {inner}: {why}", mark + item.name))
    return ChecksumReport(nbytes, tuple(damage), unchecked)


def _copies(files: Files, mark: str, limits: Limits) -> ChecksumReport:
    """What several ranks wrote of the same chunk. Loaders take any of them, so they must be equal."""
    damage: list[Damage] = []
    metadata = files.metadata
    for copy in metadata.copies:
        if copy.chunk is None:
            continue  # each rank has objects of its own, such as the state of its random numbers
        row = metadata.tensors[copy.name]
        sizes = row.chunks.box(copy.chunk)[1]
        what = show(copy.name, 80)
        try:
            one = TensorItem(partial(files.chunk, row, copy.chunk), row.dtype, sizes, limits).tensor()
            two = TensorItem(partial(files.find, copy.item, what), row.dtype, sizes, limits).tensor()
            same = same_bytes(elements(one), elements(two))
        except (LimitError, NotOpenedError, UnsupportedError):
            raise
        except CkptError as error:
            damage.append(Damage(error.problem, mark + copy.name))
            continue
        if not same:
            names = f"{show(metadata.item(row, copy.chunk).file, 60)} and {show(copy.item.file, 60)}"
            damage.append(Damage(f"{what} differs between {names}", mark + copy.name))
    return ChecksumReport(0, tuple(damage), 0)


def salvage(source: Source, limits: Limits) -> Salvage | None:
    return None


def salvage_folder(folder: Location, limits: Limits) -> Salvage | None:
    """What the data files of an interrupted save hold; None for any other folder. Raises CkptError."""
    names = folder.names()
    if any(map(is_metadata, names)) or not any(name.endswith(DATA) for name in names):
        return None
    return Salvage((), (), tuple(row.text for row in remains(folder, limits)))
