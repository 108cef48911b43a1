"""Checking a distributed checkpoint: every item against `.metadata`, and every record
of it against its checksum.

torch checks neither when it loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ckpt.bytes.executor import SPAN, Executor, Failed, Task, run_each
from ckpt.bytes.location import Location
from ckpt.bytes.source import BaseSource, Source
from ckpt.elements.audit import crc_of
from ckpt.elements.blocks import elements, same_bytes
from ckpt.ext.dcp.file_names import DATA, folder_of, is_metadata
from ckpt.ext.dcp.items import Bytes, TensorItem, most_of, part_itself, read_object
from ckpt.ext.dcp.metadata import Item, Metadata, TensorRow
from ckpt.ext.dcp.reader import Files
from ckpt.formats.common.coverage import format_box
from ckpt.formats.common.pickled import Contents
from ckpt.formats.common.recorded import (
    largest_steps,
    of_text,
    size_and_crc_of,
    some_counters,
    step_name,
)
from ckpt.formats.common.stream import read_nested
from ckpt.formats.format import Check, ChecksumReport, Damage, List, Probe
from ckpt.model.checkpoint import RecordedFile, RecordedItem
from ckpt.model.dtypes import DType
from ckpt.model.errors import (
    CkptError,
    CutOffError,
    LimitError,
    NotOpenedError,
    UnsupportedError,
)
from ckpt.model.limits import INFLATION, Budget, Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, show
from ckpt.tree.find import counter, is_counter


class _Item(NamedTuple):
    """An item to be checked, and what `.metadata` says of it; an object has no dtype.
    `name` is its tensor.
    """

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
        # The split does not depend on the executor, so that the report is the same for
        # all.
        parts = list(_split_items(_list_items(files)))
        tasks = [
            Task(
                _check_items,
                (part, probe.mark, limits),
                sum(item.at.length for item in part),
            )
            for part in parts
        ]
        copies, gone = _find_copies(files, probe.mark)
        again = [
            Task(
                _compare_copies,
                (copy, probe.mark, limits),
                copy.one.length + copy.two.length,
            )
            for copy in copies
        ]
        results = run_each(executor, [*tasks, *again], progress)
        names = [
            *([item.at.what for item in part] for part in parts),
            *([copy.what] for copy in copies),
        ]
        # A save may have been written over meanwhile.
        for source in files.files.values():
            source.check_unchanged()
    finally:
        files.close()
    reports = [
        _checksum_report(result, row)
        for result, row in zip(results, names, strict=True)
    ]
    return ChecksumReport.together([*reports, ChecksumReport(0, tuple(gone), 0)])


def _checksum_report(
    result: tuple[int, list[tuple[str, str]], int] | Failed, names: list[str]
) -> ChecksumReport:
    """Return the findings of a task, or an account of the items that were not read."""
    if isinstance(result, Failed):
        return ChecksumReport(0, (), 0, (f"{and_more(names, 3)}: {result.problem}",))
    nbytes, damage, unchecked = result
    return ChecksumReport(nbytes, tuple(Damage(*row) for row in damage), unchecked)


def _list_items(files: Files) -> Iterator[_Item]:
    """The items that are there. What is missing, the reader says."""
    metadata = files.metadata
    for name, row in metadata.tensors.items():
        # An empty chunk has an item too.
        for index, (_, sizes) in enumerate(row.chunks.boxes()):
            try:
                yield _Item(files.chunk(row, index), name, row.dtype, sizes)
            except CkptError:
                continue
    for name, item in metadata.objects.items():
        # An object without an item is the reader's to report.
        try:
            if item is not None:
                yield _Item(files.find(item, show(name, 80)), name)
        except CkptError:
            continue


def _split_items(items: Iterator[_Item]) -> Iterator[list[_Item]]:
    """Items for one task each: the split depends on the checkpoint alone."""
    part: list[_Item] = []
    used = 0
    for item in items:
        part.append(item)
        used += item.at.length
        # A task has 64 MiB or a thousand items: small ones cost by their number.
        if used >= SPAN or len(part) >= 1000:
            yield part
            part, used = [], 0
    if part:
        yield part


def _most_bytes(item: _Item, limits: Limits) -> int:
    """The most bytes that an item may decode to."""
    if item.dtype is not None:
        return most_of(item.dtype, item.shape)
    # A stream that inflates too much is refused before it fills the memory.
    return limits.inflated_bytes + item.at.length * INFLATION


def _check_items(
    items: list[_Item], mark: str, limits: Limits
) -> tuple[int, list[tuple[str, str]], int]:
    """Bytes with a checksum that were compared, damage and the id of its storage, bytes
    without a checksum.
    """
    nbytes = unchecked = 0
    damage: list[tuple[str, str]] = []
    for item in items:
        try:
            # The item is compared with `.metadata` first: torch converts without a
            # word.
            if item.dtype is not None:
                TensorItem(
                    partial(part_itself, item.at), item.dtype, item.shape, limits
                ).tensor()
            archive = item.at.archive(limits, _most_bytes(item, limits))
        # These errors say nothing about the bytes.
        except (LimitError, NotOpenedError, UnsupportedError):
            raise
        except CkptError as error:
            text = error.problem
            if not text.startswith(item.at.what):
                text = f"{item.at.what}: {text}"
            damage.append((text, mark + item.name))
            continue
        # Each record has a checksum of its own, the pickle too.
        for record in archive.records.values():
            if record.crc is None:
                unchecked += record.size
                continue
            crc, problem = crc_of(record.place(archive.source))
            nbytes += record.size
            if problem is not None or crc != record.crc:
                why = problem or "its bytes do not match the recorded checksum"
                inner = show(record.name.partition("/")[2], 40)
                text = f"{item.at.what} is damaged: record {inner}: {why}"
                damage.append((text, mark + item.name))
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


def _find_copies(files: Files, mark: str) -> tuple[list[_Copy], list[Damage]]:
    """Return the copies that several ranks wrote of the same chunks, and the damage
    where a part is missing.

    Loaders take any of them, so they must be equal.
    """
    copies: list[_Copy] = []
    gone: list[Damage] = []
    metadata = files.metadata
    for copy in metadata.copies:
        if copy.chunk is None:
            # each rank has objects of its own, such as the state of its random numbers
            continue
        row = metadata.tensors[copy.name]
        what = show(copy.name, 80)
        names = (metadata.item(row, copy.chunk).file, copy.item.file)
        try:
            first, second = files.chunk(row, copy.chunk), files.find(copy.item, what)
        except CkptError as error:
            gone.append(Damage(error.problem, mark + copy.name))
            continue
        copies.append(
            _Copy(
                copy.name,
                what,
                row.dtype,
                row.chunks.box(copy.chunk)[1],
                first,
                second,
                names,
            )
        )
    return copies, gone


def _compare_copies(
    copy: _Copy, mark: str, limits: Limits
) -> tuple[int, list[tuple[str, str]], int]:
    """Compare the elements of a chunk on two ranks. Return a damage if they differ or
    one is unreadable.
    """
    text = ""
    try:
        # Both are opened before the first element is read.
        first, second = (
            TensorItem(
                partial(part_itself, part), copy.dtype, copy.shape, limits
            ).tensor()
            for part in (copy.one, copy.two)
        )
        if not same_bytes(elements(first), elements(second)):
            text = (
                f"{copy.what} differs between {show(copy.files[0], 60)} and "
                f"{show(copy.files[1], 60)}"
            )
    except (LimitError, NotOpenedError, UnsupportedError):
        raise
    except CkptError as error:
        text = error.problem
    return 0, [(text, mark + copy.name)] if text else [], 0


# --- what the items record of themselves ----------------------------------------------


class _Place(NamedTuple):
    """An item by its name and its place. `counter` is the name under which its value is
    listed, of a counter that is read.

    A chunk of a tensor has its indices behind its name. An object has no dtype.
    """

    name: str
    item: Item
    counter: str | None = None
    dtype: DType | None = None
    shape: tuple[int, ...] = ()


def recorded(
    probe: Probe, limits: Limits, executor: Executor, inner: List
) -> list[RecordedFile]:
    """List the items of each file in their order there, then each `.metadata`, which is
    read whole.

    A data file that nothing names is listed with its size alone.
    """
    folder = folder_of(probe)
    assert folder is not None
    files = Files(folder, limits, probe.budget)
    try:
        places: dict[str, list[_Place]] = {
            name: [] for name in sorted(files.metadata.files, key=natural_sort_key)
        }
        # In the order of the file, whatever `.metadata` lists first.
        for place in _list_places(files.metadata):
            places[place.item.file].append(place)
        every = [
            _recorded_file(files, name, rows, limits, executor)
            for name, rows in places.items()
        ]
        # Files that nothing names are listed by their size: what they hold is not
        # known.
        unnamed = [
            name for name in files.names if name.endswith(DATA) and name not in places
        ]
        every += [RecordedFile(name, _file_size(folder, name)) for name in unnamed]
        every += [
            of_text(folder.child(name, "cache"), name, limits)
            for name in filter(is_metadata, files.names)
        ]
        for source in files.files.values():
            source.check_unchanged()
    finally:
        files.close()
    return every


def _file_size(folder: Location, name: str) -> int:
    source = folder.child(name, "cache").open()
    try:
        return source.size
    finally:
        source.close()


def _list_places(metadata: Metadata) -> Iterator[_Place]:
    """The items that `.metadata` records a place of. Of many counters of parameters in
    one file, some are to be read.
    """
    rows: list[tuple[str, _Place]] = []
    for name, row in metadata.tensors.items():
        for index in range(len(row.chunks)):
            # A chunk without an item has no place.
            if row.chunks.files[index] >= 0:
                item = metadata.item(row, index)
                rows.append((name, _place_of_item(name, item, row, index)))
    rows += [
        (name, _Place(name, item))
        for name, item in metadata.objects.items()
        if item is not None
    ]
    for copy in metadata.copies:
        tensor = metadata.tensors.get(copy.name)
        place = _place_of_item(copy.name, copy.item, tensor, copy.chunk)
        rows.append((copy.name, place))
    # (file, name of a counter) -> the rows that count it, such as the step of each
    # parameter.
    counters: dict[tuple[str, str], list[int]] = {}
    for number, (name, place) in enumerate(rows):
        path = metadata.paths.get(name) or tuple(name.split("."))
        if is_counter(path):
            key = (place.item.file, step_name(path, name))
            counters.setdefault(key, []).append(number)
    # A few of many are enough to see whether they agree.
    read: dict[int, str] = {}
    for (_, counter_name), numbers in counters.items():
        for number in some_counters(numbers):
            read[number] = counter_name
    for number, (_, place) in enumerate(rows):
        yield place._replace(counter=read[number]) if number in read else place


def _place_of_item(
    name: str, item: Item, row: TensorRow | None, index: int | None
) -> _Place:
    if row is None or index is None:
        return _Place(name, item)
    offsets, sizes = row.chunks.box(index)
    text = name
    if len(row.chunks) > 1:
        text = f"{name} {format_box(offsets, sizes, row.shape)}"
    return _Place(text, item, None, row.dtype, sizes)


_AT_ONCE = 256
"""Items whose directories one task reads."""


def _recorded_file(
    files: Files, name: str, places: list[_Place], limits: Limits, executor: Executor
) -> RecordedFile:
    """A data file with what its items record, in their order there."""
    source = files.files.get(name)
    if source is None:
        return RecordedFile(name, 0, problem=files.unread[name].problem)
    # Neighbours in the file are read together.
    places.sort(key=lambda place: place.item.offset)
    bundles = [
        places[first : first + _AT_ONCE] for first in range(0, len(places), _AT_ONCE)
    ]
    results = run_each(
        executor,
        [Task(_read_directories, (source, bundle, limits)) for bundle in bundles],
    )
    items: list[RecordedItem] = []
    values: list[tuple[str, float]] = []
    for bundle, result in zip(bundles, results, strict=True):
        # The items are listed all the same, each with the reason.
        if isinstance(result, Failed):
            items += [
                RecordedItem(row.name, row.item.length, None, result.problem)
                for row in bundle
            ]
        else:
            items += result[0]
            values += result[1]
    return RecordedFile(name, source.size, tuple(items), largest_steps(values))


def _read_directories(
    source: Source, places: list[_Place], limits: Limits
) -> tuple[list[RecordedItem], list[tuple[str, float]]]:
    """The sizes and checksums of items as their directories give them, and the values
    of counters.
    """
    items: list[RecordedItem] = []
    values: list[tuple[str, float]] = []
    for place in places:
        offset, length = place.item.offset, place.item.length
        try:
            if offset + length > source.size:
                raise CutOffError(
                    f"needs bytes {offset:,} to {offset + length:,}, the file ends at "
                    f"{source.size:,}"
                )
            if place.item.codecs:  # its directory is encoded too
                items.append(RecordedItem(place.name, length, None))
                continue
            part = Bytes(_Ends(source, offset, length), 0, length, show(place.name, 80))
            items.append(
                RecordedItem(place.name, *size_and_crc_of(part.archive(limits, length)))
            )
            if place.counter is not None:
                value = counter(_read_counter(part, place, limits))
                if value is not None:
                    values.append((place.counter, value))
        except (LimitError, NotOpenedError):
            raise
        except CkptError as error:
            items.append(RecordedItem(place.name, length, None, error.problem))
    return items, values


_NEAR, _FAR = 1 << 10, 8 << 10
"""Bytes at either end of an item that are read at once, here and behind a URL: more
than is before and behind its elements.
"""


class _Ends(BaseSource):
    """The bytes of an item, of which both ends are read at once, with the beginning of
    the next item behind a URL.
    """

    def __init__(self, source: Source, offset: int, length: int) -> None:
        self.name = source.name
        self.size = length
        self._source = source
        self._offset = offset
        # Behind a URL a request costs more than some kilobytes.
        edge = _NEAR if source.far is None else _FAR
        behind = 0 if source.far is None else min(edge, source.size - offset - length)
        if length <= 2 * edge:
            self._head, self._tail = source.read(offset, length + behind)[:length], b""
        else:
            ranges = [(offset, edge), (offset + length - edge, edge + behind)]
            self._head, self._tail = (data[:edge] for data in source.read_many(ranges))

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        # The local header and the pickle are at the beginning, the directory at the
        # end.
        if offset + count <= len(self._head):
            return self._head[offset : offset + count]
        inside = offset - self.size + len(self._tail)
        if inside >= 0:
            return self._tail[inside : inside + count]
        return self._source.read(self._offset + offset, count)


def _read_counter(part: Bytes, place: _Place, limits: Limits) -> Node:
    """The number, or the tensor of one, that an item holds."""
    if place.dtype is not None:
        return TensorItem(
            partial(part_itself, part), place.dtype, place.shape, limits
        ).tensor()
    return read_object(part, Contents((), read_nested, "", Budget(limits)), limits, "")
