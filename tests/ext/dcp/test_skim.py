"""Reading `.metadata` in columns gives what the machine gives, and is used where it
matters.
"""

from __future__ import annotations

import dataclasses
import pickle
import pickletools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import mutate
import opcodes as op
import oracle
import paths
import pytest
import torch
import train_dcp
from metadata import made
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ckpt.ext.dcp import skim
from ckpt.ext.dcp.metadata import Item, metadata_of
from ckpt.ext.dcp.reader import _ENTRY
from ckpt.ext.dcp.skim import read_metadata, without_frames
from ckpt.ext.dcp.writer import Chunk, Row, record
from ckpt.formats.common.pickled import run
from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import CkptError
from ckpt.model.limits import Budget, Limits

pytestmark = oracle.QUIET


def content(data: bytes, *, skimmed: bool) -> tuple[Any, ...]:
    """All of the metadata, in plain values."""
    limits = Limits()
    budget = Budget(limits, len(data))
    found = (
        skim.read_metadata(data, limits, budget)
        if skimmed
        else metadata_of(run(data, limits, budget))
    )
    rows = [
        (
            row.name,
            row.dtype.name,
            row.shape,
            row.requires_grad,
            list(row.chunks.boxes()),
            [
                found.item(row, at) if row.chunks.files[at] >= 0 else None
                for at in range(len(row.chunks))
            ],
        )
        for row in found.tensors.values()
    ]
    return (
        rows,
        found.objects,
        found.paths,
        sorted(found.files),
        found.unused,
        found.version,
    )


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_the_machine_reads(seed: int, protocol: int) -> None:
    data = pickle.dumps(made(seed), protocol)
    assert content(data, skimmed=True) == content(data, skimmed=False)


@pytest.mark.parametrize("name", [name for name in train_dcp.NAMES if name != "alone"])
def test_it_is_what_the_machine_reads_of_real_ones(name: str, trained: Path) -> None:
    data = (trained / name / ".metadata").read_bytes()
    assert content(data, skimmed=True) == content(data, skimmed=False)


def large() -> bytes:
    """More than a thousand entries, so several lists of pairs and several frames."""
    return pickle.dumps(large_of(2500), 4)


def large_of(count: int) -> Metadata:
    found = made(1, 0)
    names = [f"model.layers.{number}.weight" for number in range(count)]
    for number, name in enumerate(names):
        chunks = [
            ChunkStorageMetadata(torch.Size([row * 8, 0]), torch.Size([8, 512]))
            for row in range(2 + number % 2)
        ]
        if number == 7:
            chunks *= 3000  # more chunks than one list of items has
        found.state_dict_metadata[name] = TensorStorageMetadata(
            TensorProperties(dtype=torch.float32),
            torch.Size([8 * len(chunks), 512][: len(chunks[0].sizes)]),
            chunks,
        )
        for place, chunk in enumerate(chunks[:3]):
            index = MetadataIndex(
                name, torch.Size(tuple(chunk.offsets)), place
            )  # a copy, as in any save
            found.storage_data[index] = _StorageInfo(
                "__0_0.distcp", number * 40_000 + place, 17_000
            )
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("as_shipped")
def test_most_of_it_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    data = large()
    assert data.count(b"\x95") > 2
    limits = Limits()
    budgets = [Budget(limits, len(data)) for _ in range(2)]
    found = skim.read_metadata(data, limits, budgets[0])
    metadata_of(run(data, limits, budgets[1]))
    assert len(found.tensors) == 2500
    skimmed, run_through = (limits.operations - budget.operations for budget in budgets)
    assert run_through > 400_000 and 0 < skimmed < 0.02 * run_through, (
        skimmed,
        run_through,
    )
    assert content(data, skimmed=True) == content(data, skimmed=False)


def test_it_costs_memory_of_the_budget() -> None:
    data = large()
    with pytest.raises(CkptError, match="too much memory"):
        skim.read_metadata(data, Limits(), Budget(Limits(memory=1_000_000)))


@pytest.mark.slow
@pytest.mark.usefixtures("as_shipped")
def test_the_budget_counts_what_memory_is_taken() -> None:
    data = without_frames(large())[0]
    budget = Budget(Limits(), len(data))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        found = skim.read_metadata(data, Limits(), budget)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.tensors) == 2500
    assert 0.8 * (peak - before) < budget.used < 3 * (peak - before), (
        peak - before,
        budget.used,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_changed_opcodes_give_what_the_machine_gives(seed: int) -> None:
    """Also where what was skimmed is counted, taken away or asked for later."""
    random, read = Random(seed), 0
    for number in range(200):
        data = mutate.entries(
            pickle.dumps(made(seed * 200 + number, 4 + number % 20), 4), random
        )
        answers = []
        for skimmed in (True, False):
            try:
                answers.append(repr(content(data, skimmed=skimmed)))
            except CkptError as error:
                answers.append(f"{type(error).__name__}: {error}")
        assert answers[0] == answers[1], number
        read += answers[0].startswith("(")
    assert 15 < read < 185


def entry_places(data: bytes) -> list[int]:
    """The offsets of the entries of `storage_data` behind the first one."""
    first = data.index(b"MetadataIndex\x94")
    key = data.index(b"fqn\x94", first)
    begin = data.rindex(b")\x81\x94", 0, key)
    # later entries get the class from the memo, as the chunks of one entry do
    slot = (
        sum(
            opcode.name == "MEMOIZE"
            for opcode, _, at in pickletools.genops(data)
            if at < begin
        )
        - 1
    )
    get = op.get(slot)
    places, at = [], data.find(get + b")\x81\x94", begin)
    while at >= 0:
        places.append(at)
        at = data.find(get + b")\x81\x94", at + 1)
    return places


def in_tuple(data: bytes) -> bytes:
    """A tuple takes one number less than the opcodes before it push."""
    at = data.index(b"\x86\x94\x85\x94R", entry_places(data)[20])
    return data[:at] + b"K\0" + data[at:]


def of_65(data: bytes) -> bytes:
    at = entry_places(data)[20]
    at = data.index(b"\x86\x94\x85\x94R", at)
    begin = data.rindex(b"h", 0, at) + 2
    return data[:begin] + b"(" + b"K\0" * 65 + b"t\x94" + data[at + 2 :]


def size_refilled(data: bytes) -> bytes:
    """From an entry on, the slot of torch.Size holds a number. That entry still finds
    the class, in a slot of its own.
    """
    end = data.index(b"Size\x94\x93\x94") + len(b"Size\x94\x93\x94")
    slot = (
        sum(
            opcode.name == "MEMOIZE"
            for opcode, _, at in pickletools.genops(data)
            if at < end
        )
        - 1
    )
    get, at = b"h%c" % slot, entry_places(data)[20]
    own = data.index(get, at)
    moved = data[at:own] + b"h\0" + data[own + 2 :]
    return data[:at] + get + b"q\x000" + b"K\x05q%c0" % slot + moved


def end_of_entries(data: bytes) -> int:
    return data.rindex(b"ubu") + 2


def odd(data: bytes) -> bytes:
    """In a dict that nothing reads, pairs are set where one has no value. One more
    number makes those behind it even.
    """
    (one, two), end = entry_places(data)[20:40:10], end_of_entries(data)
    return (
        data[:one]
        + b"K\1"
        + data[one:two]
        + b"u("
        + data[two:end]
        + b"K\2"
        + data[end:]
    )


def negative_place(data: bytes) -> bytes:
    at = entry_places(data)[20]
    at = data.index(b"M\x68\x42", at)
    return data[:at] + b"J\xff\xff\xff\xff" + data[at + 3 :]


def last_is_hung_elsewhere(data: bytes) -> bytes:
    """SETITEM sets the last pair on a value before it, where nothing looks for it. One
    more entry is not read in columns.
    """
    at, end = entry_places(data)[20], end_of_entries(data)
    return data[:at] + b"K\x000" + data[at:end] + b"s" + data[end:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [in_tuple, of_65, size_refilled, odd, negative_place, last_is_hung_elsewhere],
    ids=lambda change: change.__name__,
)
def test_one_opcode_behind_many_usual_ones_counts(
    change: Callable[[bytes], bytes],
) -> None:
    metadata = large_of(40)
    if change is odd:
        metadata.__dict__["more"], metadata.storage_data = metadata.storage_data, {}
    good = without_frames(pickle.dumps(metadata, 4))[0]
    data = change(good)
    assert data != good
    answers = []
    for skimmed in (True, False):
        try:
            answers.append(content(data, skimmed=skimmed))
        except CkptError as error:
            answers.append((f"{type(error).__name__}: {error}",))
    assert answers[0] == answers[1]
    assert answers[0] != content(good, skimmed=False)


@pytest.mark.parametrize("at", range(0, 4000, 37))
def test_a_cut_or_changed_file_is_an_error_or_the_same(at: int) -> None:
    data = pickle.dumps(made(3, 12), 4)
    at %= len(data)
    for broken in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
        answers = []
        for skimmed in (True, False):
            try:
                answers.append(content(broken, skimmed=skimmed))
            except CkptError as error:
                answers.append((type(error),))
        assert answers[0] == answers[1], at


def test_frames_are_taken_out_only_where_they_fit() -> None:
    data = pickle.dumps(["x" * 70_000, "y" * 70_000, 5], 4)
    bare, _ = without_frames(data)
    assert pickle.loads(bare) == pickle.loads(data)
    for odd in (
        b"",
        b"\x80\x04",
        data[:50_000],
        b"\x80\x02N.",
        b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    ):
        assert without_frames(odd) == (odd, [])


def _dimensions(chunk: ChunkStorageMetadata) -> None:
    chunk.offsets, chunk.sizes = torch.Size([0]), torch.Size([80])


def _negative(chunk: ChunkStorageMetadata) -> None:
    chunk.sizes = torch.Size([-8, 10])


def _beyond(chunk: ChunkStorageMetadata) -> None:
    chunk.offsets = torch.Size([1, 0])


@pytest.mark.parametrize("change", [_dimensions, _negative, _beyond])
def test_what_is_wrong_after_the_first_entries_is_refused_too(change: Any) -> None:
    found = made(0, 0)
    for number in range(6):
        chunk = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([8, 10]))
        if number == 5:
            change(chunk)
        kind = TensorProperties(dtype=torch.float32)
        found.state_dict_metadata[f"w{number}"] = TensorStorageMetadata(
            kind, torch.Size([8, 10]), [chunk]
        )
    data = pickle.dumps(found, 4)
    for skimmed in (True, False):
        with pytest.raises(CkptError, match=r"w5|invalid number"):
            content(data, skimmed=skimmed)


def test_a_length_that_is_not_that_of_its_text() -> None:
    """`\x8c` with another count: the text ends elsewhere, so what follows means
    something else.
    """
    data = pickle.dumps(made(4, 30), 4)
    at = data.rindex(b"\x8c\x0c__")
    broken = data[: at + 1] + b"\x0b" + data[at + 2 :]
    for skimmed in (True, False):
        with pytest.raises(CkptError):
            content(broken, skimmed=skimmed)


@pytest.mark.usefixtures("as_shipped")
def test_slots_that_are_filled_by_number_are_left_to_the_machine() -> None:
    """A slot that was skimmed over is filled again: from then on the two would count
    differently.
    """
    data = pickle.dumps(large_of(40), 4)
    at = data.index(b"\x8c\x0cstorage_data\x94")
    put = (
        b"K\x05r" + (60).to_bytes(4, "little") + b"0"
    )  # into slot 60, and away from the stack
    bare = b"\x80\x04" + data[11:at] + put + data[at:]
    assert content(bare, skimmed=True) == content(bare, skimmed=False)
    limits = Limits()
    with pytest.raises(CkptError):
        run(
            bare,
            limits,
            Budget(limits, len(bare)),
            skim.Skimmer(bare, Budget(limits, len(bare))),
        )


def inexact() -> bytes:
    """A pickle that fills a slot by number, and then pushes one that a skimming machine
    counts differently.
    """
    data = without_frames(pickle.dumps(large_of(40), 4))[0]
    slots = sum(opcode.name == "MEMOIZE" for opcode, _, _ in pickletools.genops(data))
    put = b"K\x05r" + (60).to_bytes(4, "little") + b"0"
    # in the next two slots, and away from the stack
    texts = b"\x8c\x01a\x940\x8c\x01b\x940"
    get = b"\x8c\x07versionj" + (slots + 1).to_bytes(4, "little")
    return data[:-3] + put + texts + get + data[-3:]


@pytest.mark.usefixtures("as_shipped")
def test_slots_that_would_be_other_ones_are_noticed() -> None:
    data = inexact()
    assert content(data, skimmed=False)[-1] == "b"
    assert content(data, skimmed=True) == content(data, skimmed=False)
    limits = Limits()
    skimmer = skim.Skimmer(data, Budget(limits, len(data)))
    found = metadata_of(run(data, limits, Budget(limits, len(data)), skimmer))
    assert not skimmer.is_exact and found.version == "a"


def test_offsets_that_are_shared_are_left_to_the_machine() -> None:
    found = large_of(40)
    for index in list(found.storage_data):
        chunk = next(
            each
            for each in found.state_dict_metadata[index.fqn].chunks
            if each.offsets == index.offset
        )
        found.storage_data[dataclasses.replace(index, offset=chunk.offsets)] = (
            found.storage_data.pop(index)
        )
    data = pickle.dumps(found, 4)
    assert content(data, skimmed=True) == content(data, skimmed=False)


def rows(count: int) -> list[Row]:
    """Tensors of several dtypes, one and several chunks, some with a gradient, and an
    object.
    """
    dtypes = [BY_NAME[name] for name in ("float32", "bfloat16", "int64")]
    made: list[Row] = []
    for number in range(count):
        name = f"model.layers.{number}.{'x' * 300 if number % 50 == 7 else 'weight'}"
        item = Item(f"__{number % 3}_0.distcp", number * 1_600, 1_600)
        shape = ((), (4,), (2, 3), (70_000, 2))[number % 4]
        chunks = [Chunk((0,) * len(shape), shape, item)]
        if number % 4 == 3:
            chunks = [Chunk((at, 0), (35_000, 2), item) for at in (0, 35_000)]
        made.append(
            Row(
                name,
                ("model", name[6:]),
                chunks,
                dtypes[number % 3],
                shape,
                number % 5 == 0,
            )
        )
    return [*made, Row("epoch", ("epoch",), item=Item("__0_0.distcp", 9 << 40, 99))]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["fast", "slow"])
@pytest.mark.parametrize("is_flattened", [True, False])
def test_what_is_written_is_read_with_the_memory_that_its_bytes_allow(
    side: paths.Side, is_flattened: bool
) -> None:
    """Of 100,000 tensors as well: the fixed part of the memory is that of a
    small file.
    """
    planned = rows(3_000)
    data = record(planned, Limits(), is_flattened=is_flattened)
    limits = Limits(memory=3_000_000)
    budget = Budget(limits)
    budget.hold(len(data))
    budget.claim(len(data) // _ENTRY)
    with paths.walking(side):
        found = read_metadata(data, limits, budget)
    assert [*found.tensors, *found.objects] == [row.name for row in planned]
    assert (
        found.pickles[0].skimmed > 70_000
        if side == "fast"
        else found.pickles[0].skimmed == 0
    )
    for row in planned[:-1]:
        read = found.tensors[row.name]
        assert (read.dtype, read.shape, read.requires_grad) == (
            row.dtype,
            row.shape,
            row.requires_grad,
        )
        boxes = [
            (*read.chunks.box(at), found.item(read, at))
            for at in range(len(read.chunks))
        ]
        assert boxes == [tuple(chunk) for chunk in row.chunks]
    assert found.paths == (
        {row.name: row.path for row in planned} if is_flattened else {}
    )


def test_what_is_written_is_what_pickle_reads() -> None:
    metadata = pickle.loads(record(rows(300), Limits(), is_flattened=True))
    for row in rows(300)[:-1]:
        stored = metadata.state_dict_metadata[row.name]
        assert (stored.size, stored.properties.requires_grad) == (
            torch.Size(row.shape),
            row.requires_grad,
        )
        assert str(stored.properties.dtype) == f"torch.{row.dtype.name}"
        assert stored.properties.layout is torch.strided
        assert [tuple(chunk.offsets) for chunk in stored.chunks] == [
            chunk.offsets for chunk in row.chunks
        ]


@pytest.mark.slow
@pytest.mark.usefixtures("as_shipped")
def test_a_frame_that_ends_inside_an_entry_that_is_skimmed() -> None:
    """Python in C reads the next FRAME as a part of the opcode; the same bytes without
    frames read on as if it were not there.
    """
    data = large()
    bare, ends = without_frames(data)
    assert content(data, skimmed=True)
    assert len(ends) > 2
    for shift in range(1, 200, 1 if paths.IS_THOROUGH else 4):
        second = (
            bare.index(b"\x8c", ends[0] + shift) + 1
        )  # inside of an opcode with a length
        parts = (bare[2:second], bare[second:])
        torn = b"\x80\x04" + b"".join(
            b"\x95" + len(part).to_bytes(8, "little") + part for part in parts
        )
        assert without_frames(torn) == (bare, [second, len(bare)])
        with pytest.raises(CkptError, match="a frame ends inside an opcode"):
            content(torn, skimmed=True)
