"""The data files of a save without `.metadata`: they hold whole items, whose names are
lost with it.

Only `.metadata` says where an item begins. Here each is followed from its first record
to its end record, by the sizes in its pickle, and counts only where our own reader
takes exactly these bytes for an archive with one object in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from struct import unpack_from

from ckpt.bytes.location import Location
from ckpt.bytes.source import Source
from ckpt.ext.dcp.file_names import DATA
from ckpt.ext.dcp.items import Bytes, read_object
from ckpt.formats.common.pickled import Contents
from ckpt.formats.common.recovered import pickle_at
from ckpt.formats.common.stream import read_nested
from ckpt.formats.common.zip_layout import (
    CENTRAL,
    CENTRAL_MAGIC,
    DESCRIPTOR,
    DESCRIPTOR64,
    DESCRIPTOR_MAGIC,
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    HAS_DESCRIPTOR,
    LOCAL,
    LOCAL_MAGIC,
    LOCATOR,
    LOCATOR_MAGIC,
    CentralHeader,
    EndRecord64,
    end_record,
    local_header,
)
from ckpt.model.dtypes import DType
from ckpt.model.errors import CkptError, LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.nodes import tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.model.text import and_more, be_verb, counted_noun, show
from ckpt.pickle.rebuild import storage_bytes, storage_type

_HEAD, _SMALL = 512, 4096
"""Bytes of a record's header that are read at once, and of a record that holds no
elements and no pickle.
"""
_KINDS = 3


class Remains(NamedTuple):
    """The content of one file: its whole items, its tensors by kind, and the bytes
    after the last item.
    """

    file: str
    size: int
    items: int
    tensors: dict[str, int]
    rest: int
    problem: str = ""

    @property
    def text(self) -> str:
        """The file in one line."""
        name = show(self.file, 80)
        if self.problem:
            return f"{name}: {self.problem}"
        if not self.size:
            return f"{name} is empty"
        if not self.items:
            return (
                f"{name}: no whole item is found in its "
                f"{counted_noun(self.size, 'byte')}"
            )
        held = sum(self.tensors.values())
        rows = sorted(self.tensors.items(), key=lambda row: -row[1])
        kinds = and_more(
            [f"{count} × {kind}" if count > 1 else kind for kind, count in rows], _KINDS
        )
        parts: list[str] = []
        if held:
            parts.append(f"{counted_noun(held, 'whole tensor')} ({kinds})")
        if self.items > held:
            parts.append(counted_noun(self.items - held, "whole object"))
        rest = (
            f", then {counted_noun(self.rest, 'byte')} that "
            f"{be_verb(self.rest)} no whole item"
        )
        return f"{name}: {' and '.join(parts)}{rest if self.rest else ''}"


def remains(
    folder: Location, limits: Limits, most: int | None = None
) -> Iterator[Remains]:
    """Yield the content of each data file of a folder, up to `most` items in all.
    Raises LimitError.
    """
    # The bound is for all files together: an error needs a number, not the items.
    budget = limits.entries if most is None else most
    names = [name for name in folder.names() if name.endswith(DATA)]
    for name in sorted(names, key=natural_sort_key):
        file = _in_file(folder, name, limits, budget)
        budget -= file.items
        yield file


def _in_file(folder: Location, name: str, limits: Limits, most: int) -> Remains:
    try:
        source = folder.child(name, "cache").open()
    except UnreadableError as error:
        return Remains(name, 0, 0, {}, 0, error.problem)
    try:
        end = items = 0
        tensors: dict[str, int] = {}
        # The first bytes that are no item end the file: nothing says where the next
        # begins.
        for item in islice(items_of(source, name, limits), most):
            items, end = items + 1, item.end
            if item.kind:
                tensors[item.kind] = tensors.get(item.kind, 0) + 1
        return Remains(name, source.size, items, tensors, source.size - end)
    finally:
        source.close()


class WholeItem(NamedTuple):
    """A whole item: its bytes `begin` to `end`, and the dtype and shape of its tensor,
    or an empty text for an object.
    """

    begin: int
    end: int
    kind: str


def items_of(source: Source, name: str, limits: Limits) -> Iterator[WholeItem]:
    """Yield the whole items of a file, as far as they follow each other. Raises
    LimitError.
    """
    position = 0
    while position < source.size:
        end = _end_of_item(source, position, limits)
        if end is None:
            return
        item = Bytes(source, position, end - position, name)
        kind = _item_kind(item, limits)
        if kind is None:
            return
        yield WholeItem(position, end, kind)
        position = end


def _item_kind(item: Bytes, limits: Limits) -> str | None:
    """Return the dtype and shape of the tensor of an item, or an empty text for another
    object.

    Return None for bytes that are not a whole item.
    """
    # The item is read whole: half an archive may have an end record by chance.
    try:
        node = read_object(
            item, Contents((), read_nested, "", Budget(limits)), limits, ""
        )
    except LimitError:
        raise
    except CkptError:
        return None
    tensor = tensor_of(node)
    return kind_of(tensor.dtype, tensor.shape) if isinstance(tensor, TensorRef) else ""


def kind_of(dtype: DType, shape: tuple[int, ...]) -> str:
    """`float32 [4, 8]`."""
    return f"{dtype.name} {list(shape)}"


def _end_of_item(source: Source, begin: int, limits: Limits) -> int | None:
    """Return the end of the archive that begins at `begin`, or None if it is cut off or
    none begins there.
    """
    position = begin
    # Storage -> bytes, once the pickle, which is the first record, was read.
    sizes: dict[bytes, int] | None = None
    # A file may have any number of records: their number is bounded as in an archive.
    for _ in range(limits.entries):
        head = source.read(position, min(_HEAD, source.size - position))
        magic = head[:4]
        if magic == LOCAL_MAGIC and len(head) >= LOCAL.size:
            header = local_header(head)
            name = head[LOCAL.size : LOCAL.size + header.names].partition(b"/")[2]
            data = position + header.nbytes
            # torch stores records as they are: a packed one has no known end.
            if header.method or data > source.size:
                return None
            if sizes is None:
                if name != b"data.pkl":
                    return None
                measured = _storage_sizes(source, data, limits)
                if measured is None:
                    return None
                size, sizes = measured
            elif name[:5] == b"data/" and name[5:] in sizes:
                size = sizes[name[5:]]
            elif not header.flags & HAS_DESCRIPTOR:
                size = header.stored
            else:
                # torch writes the size of a record behind it, not in its header.
                count = _small_record_size(source, data)
                if count is None:
                    return None
                size = count
            position = _next_record_offset(source, data + size)
        elif magic == CENTRAL_MAGIC and len(head) >= CENTRAL.size:
            position += CentralHeader._make(CENTRAL.unpack_from(head)).nbytes
        elif magic == END64_MAGIC and len(head) >= END64.size:
            position += EndRecord64._make(END64.unpack_from(head)).nbytes
        elif magic == LOCATOR_MAGIC:
            position += LOCATOR.size
        # The end record is the last: behind it the next item begins.
        elif magic == END_MAGIC and len(head) >= END.size:
            position += END.size + end_record(head).comments
            return position if position <= source.size else None
        else:
            return None
        if position > source.size:
            return None
    return None


def _storage_sizes(
    source: Source, begin: int, limits: Limits
) -> tuple[int, dict[bytes, int]] | None:
    """Return the length of a pickle and the sizes of the storages that it names.

    Return None if the pickle is cut off or damaged.
    """
    try:
        pickle = pickle_at(source, begin, limits, _SMALL)
        if pickle is None:
            # The size of a record follows from the persistent ids of its pickle.
            return None
        sizes: dict[bytes, int] = {}
        for persistent in pickle[0].persistent:
            pid = persistent.pid
            if type(pid) is not tuple or len(pid) < 5:
                return None
            sizes[str(pid[2]).encode("utf-8", "replace")] = storage_bytes(
                storage_type(pid[1]), pid[4]
            )
    except LimitError:
        raise
    except CkptError:
        return None
    return pickle[1], sizes


def _small_record_size(source: Source, begin: int) -> int | None:
    """The size of a small record, which only the descriptor after it says."""
    data = source.read(begin, min(_SMALL, source.size - begin))
    mark = data.find(DESCRIPTOR_MAGIC)
    # The descriptor has the size of the record: the mark alone could be data.
    while mark >= 0:
        if mark + 12 <= len(data) and unpack_from("<I", data, mark + 8)[0] == mark:
            return mark
        mark = data.find(DESCRIPTOR_MAGIC, mark + 1)
    # A record of no bytes has no descriptor.
    return 0 if data[:4] in (LOCAL_MAGIC, CENTRAL_MAGIC) else None


def _next_record_offset(source: Source, end: int) -> int:
    """Return the offset of the next record, after the descriptor of one."""
    tail = b""
    if end < source.size:
        tail = source.read(end, min(DESCRIPTOR.size + 4, source.size - end))
    if tail[:4] != DESCRIPTOR_MAGIC:
        return end
    # The descriptor has sizes of 4 or of 8 bytes; the next record tells which.
    is_short = tail[DESCRIPTOR.size :] in (LOCAL_MAGIC, CENTRAL_MAGIC)
    return end + (DESCRIPTOR if is_short else DESCRIPTOR64).size


def summary(files: Sequence[Remains], most: int, *, are_lost: bool = True) -> str:
    """`37 whole items lie in them, their names are lost`; empty where none is found.

    Without `are_lost` it says nothing of the names.
    """
    items = sum(row.items for row in files)
    if not items:
        return ""
    count = counted_noun(items, "whole item")
    # The search ended at the bound.
    if items >= most:
        count = f"at least {items:,} whole items"
    verb = "lies" if items == 1 else "lie"
    where = "them" if len(files) > 1 else "it"
    if not are_lost:
        return f"{count} {verb} in {where}"
    whose = "its name is" if items == 1 else "their names are"
    return f"{count} {verb} in {where}, {whose} lost"
