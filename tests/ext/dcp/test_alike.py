"""Items that are compared with one that was read give what reading them gives, whatever
byte of theirs is another.
"""

from __future__ import annotations

import warnings
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ckpt.bytes.source import File, Memory, Source
from ckpt.ext.dcp import alike
from ckpt.ext.dcp.alike import Alike
from ckpt.ext.dcp.items import Bytes, TensorItem
from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.tensors import TensorRef

LIMITS = Limits()
SHAPE = (4, 5)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The items of three tensors of one shape, of one with a record more, and of
    another shape.
    """
    folder = tmp_path_factory.mktemp("items")
    state = {name: torch.rand(SHAPE) for name in "abc"}
    state["d"] = torch.rand(5, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a save by one process
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    metadata = dcp.FileSystemReader(folder).read_metadata()
    data = (folder / "__0_0.distcp").read_bytes()
    places = {index.fqn: info for index, info in metadata.storage_data.items()}
    return [data[places[name].offset :][: places[name].length] for name in "abcd"]


def read(
    data: bytes, known: Alike | None, source: Source | None = None, offset: int = 0
) -> TensorRef | str:
    item = Bytes(source or Memory(data), offset, len(data), "the item")
    try:
        return TensorItem(
            partial(_itself, item), BY_NAME["float32"], SHAPE, LIMITS, known
        ).tensor()
    except CkptError as error:
        return str(error)


def _itself(item: Bytes) -> Bytes:
    return item


def told(found: TensorRef | str) -> object:
    """All that is known of a tensor but the object that its bytes are read from."""
    if isinstance(found, str):
        return found
    place = found.storage.place
    return (*found[1:], *found.storage._replace(place=None), *place[1:])  # type: ignore[index,misc]


def test_an_item_with_any_byte_changed_gives_what_reading_it_gives(
    items: list[bytes],
) -> None:
    known = Alike()
    read(items[0], known)
    answers = set()
    for position in range(len(items[1])):
        for change in (1, 0x80):
            data = bytearray(items[1])
            data[position] ^= change
            found, expected = (
                told(read(bytes(data), known)),
                told(read(bytes(data), None)),
            )
            assert found == expected, position
            answers.add(isinstance(found, str))
    assert answers == {True, False}


def test_items_are_alike_wherever_they_lie(items: list[bytes], tmp_path: Path) -> None:
    known = Alike()
    path = tmp_path / "items"
    path.write_bytes(b"before" + items[0] + items[1] + items[3])
    with closing(File(str(path))) as source:
        offset = 6
        for data in (items[0], items[1], items[3]):
            for again in range(2):
                found, expected = (
                    read(data, known, source, offset),
                    read(data, None, source, offset),
                )
                assert told(found) == told(expected), (offset, again)
                if isinstance(found, TensorRef):
                    assert found.storage.place == expected.storage.place  # type: ignore[union-attr]
            offset += len(data)


@pytest.mark.usefixtures("as_shipped")
def test_most_items_are_read_by_comparing(
    items: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Alike()
    read(items[0], known)
    monkeypatch.setattr("ckpt.ext.dcp.items.read_archive", None)
    for data in items[:3]:
        assert isinstance(read(data, known), TensorRef)


def test_an_archive_without_checksums_is_read(tmp_path: Path) -> None:
    was = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(torch.rand(SHAPE), tmp_path / "item")
    finally:
        torch.serialization.set_crc32_options(was)
    data = (tmp_path / "item").read_bytes()
    known = Alike()

    assert told(read(data, known)) == told(read(data, known)) == told(read(data, None))


@pytest.mark.usefixtures("as_shipped")
def test_few_archives_are_kept(
    items: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(alike, "_KEPT", 1)
    known = Alike()
    torch.save(torch.zeros(SHAPE), tmp_path / "longer-name")
    other = (tmp_path / "longer-name").read_bytes()
    for data in (items[0], other, items[1], other):
        assert told(read(data, known)) == told(read(data, None))
    assert len(known._read) == 1
