"""The items of a save without `.metadata`, named after another save of the same run.

Ranks write their items in an order that the planner derives from the state dict, so two
saves of one run have the same items in the same files. Each item must be what the other
save has in its place: one difference refuses all names.
"""

from __future__ import annotations

from ckpt.bytes.location import Location
from ckpt.ext.dcp.file_names import DATA
from ckpt.ext.dcp.metadata import Chunks, Item, Metadata, TensorRow
from ckpt.ext.dcp.remains import items_of, kind_of
from ckpt.model.errors import NotOpenedError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show


class _Expected(NamedTuple):
    """An item of the other save: where it begins, its name, and the chunk of its
    tensor; an object has none.
    """

    begin: int
    name: str
    chunk: int | None
    kind: str


def named(folder: Location, other: Metadata, where: str, limits: Limits) -> Metadata:
    """The metadata of a folder with the names of another save, which `where` names for
    people. Raises UnreadableError.

    Items that are not there, or not whole, are recorded in no file.
    """
    # File -> the items that the other save has in it, in any order.
    expected: dict[str, list[_Expected]] = {file: [] for file in other.files}
    tensors: dict[str, TensorRow] = {}
    # A name without an item stays without one.
    objects: dict[str, Item | None] = dict.fromkeys(other.objects)
    for name, row in other.tensors.items():
        chunks = Chunks(row.chunks.dims)
        for index, (offsets, sizes) in enumerate(row.chunks.boxes()):
            # The chunks are the same; their items are found here.
            chunks.add(offsets, sizes)
            if row.chunks.files[index] >= 0:
                item = other.item(row, index)
                expected[item.file].append(
                    _Expected(item.offset, name, index, kind_of(row.dtype, sizes))
                )
        tensors[name] = row._replace(chunks=chunks)
    for name, object_item in other.objects.items():
        if object_item is not None:
            object_row = _Expected(object_item.offset, name, None, "")
            expected[object_item.file].append(object_row)
    for copy in other.copies:
        kind = ""
        if copy.chunk is not None:
            row = other.tensors[copy.name]
            kind = kind_of(row.dtype, row.chunks.box(copy.chunk)[1])
        offset = copy.item.offset
        expected[copy.item.file].append(_Expected(offset, copy.name, copy.chunk, kind))
    # Names of another number of ranks would be wrong for all items.
    _refuse_others(folder, expected, where, limits)
    for number, (file, rows) in enumerate(expected.items()):
        # In the order of the file, in which the items here are found.
        rows.sort()
        items = _match_items(folder, file, rows, where, limits)
        for place, item in zip(rows, items, strict=False):
            if place.chunk is None:
                # Of several copies the first is taken, as in the other save.
                objects[place.name] = objects[place.name] or item
            elif tensors[place.name].chunks.files[place.chunk] < 0:
                tensors[place.name].chunks.place(place.chunk, number, item)
    return other._replace(
        tensors=tensors, objects=objects, files=tuple(expected), unused=0, copies=()
    )


def _refuse_others(
    folder: Location, expected: dict[str, list[_Expected]], where: str, limits: Limits
) -> None:
    """Raise UnreadableError where the folder has a file with items that the other save
    has not: of another world.
    """
    for name in folder.names():
        if name.endswith(DATA) and name not in expected:
            source = folder.child(name, "cache").open()
            try:
                # A rank with nothing to write leaves an empty file.
                if source.size:
                    raise UnreadableError(
                        f"holds {show(name, 80)}, which {where} has not: a save of "
                        "other ranks"
                    )
            finally:
                source.close()


def _match_items(
    folder: Location, file: str, expected: list[_Expected], where: str, limits: Limits
) -> list[Item]:
    """The whole items of a file, compared with the other save. Raises UnreadableError
    where one differs.
    """
    try:
        source = folder.child(file, "cache").open()
    except NotOpenedError:
        # A missing file leaves its items without bytes, which the reader says.
        return []
    items: list[Item] = []
    try:
        for item in items_of(source, file, limits):
            number = len(items)
            if number == len(expected):
                problem = f"{show(file, 80)} holds more items than in {where}"
                raise UnreadableError(f"{problem}, so none of them is named")
            row = expected[number]
            # One difference shows that the order is another one, and all names are in
            # doubt.
            if item.kind != row.kind:
                what = (
                    f"item {number + 1:,} of {show(file, 80)} is "
                    f"{item.kind or 'an object'}"
                )
                there = f"{show(row.name, 80)}, {row.kind or 'an object'}, in {where}"
                raise UnreadableError(f"{what}, and {there}, so none of them is named")
            items.append(Item(file, item.begin, item.end - item.begin))
    finally:
        source.close()
    return items
