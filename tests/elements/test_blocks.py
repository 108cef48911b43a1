"""Bytes in blocks: every layout, every place, wherever a block ends."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import refs
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt.bytes import target
from ckpt.bytes.source import File, Memory
from ckpt.elements import blocks as module
from ckpt.elements.blocks import elements, is_big, pour, same_bytes, same_ranges
from ckpt.elements.computed import Computed, Overlaid, little_endian_storage, place_of
from ckpt.model import places as places_module
from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import CutOffError, DamagedDataError, NotOpenedError
from ckpt.model.places import Patched, Place, Range
from ckpt.model.tensors import Storage

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda t: t,
    "slice": lambda t: t[3:-2],
    "every other": lambda t: t[::2],
    "rows": lambda t: t[: len(t) // 6 * 6].reshape(-1, 6)[1:, 1:5],
    "columns": lambda t: t[: len(t) // 6 * 6].reshape(6, -1).t(),
    "permuted": lambda t: (
        t[: len(t) // 12 * 12].reshape(2, 3, -1, 2).permute(2, 0, 3, 1)
    ),
    "repeated": lambda t: t[:5].reshape(5, 1, 1).expand(5, len(t) // 40, 8),
    "overlapping": lambda t: t.as_strided((len(t) // 4, 3), (2, 1), 1),
    "one": lambda t: t[7],
    "none": lambda t: t[:0],
}
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.uint8,
    torch.complex64,
    torch.complex128,
)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", ["little", "big", "deflated", "deflated, not kept"])
def test_elements_of_every_view(
    how: str,
    dtype: torch.dtype,
    view: str,
    small_blocks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if how == "deflated, not kept":
        monkeypatch.setattr(places_module, "_CACHED", 0)
    tensor = VIEWS[view](refs.values(dtype, 64 * 9 + 48))
    ref = refs.ref_of(tensor, big=how == "big", is_deflated=how.startswith("deflated"))

    assert b"".join(elements(ref)) == refs.expected(tensor)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("pending", ["conj", "neg", "both"])
@pytest.mark.parametrize("how", ["little", "big", "deflated"])
def test_what_is_conjugated_or_negated(
    how: str, pending: str, view: str, small_blocks: None
) -> None:
    tensor = VIEWS[view](refs.values(torch.complex64, 64 * 9 + 48))
    if pending != "neg":
        tensor = tensor.conj()
    if pending != "conj":
        tensor = torch._neg_view(tensor)
    ref = refs.ref_of(tensor, big=how == "big", is_deflated=how == "deflated")

    assert (ref.conj, ref.neg) == (pending != "neg", pending != "conj")
    assert b"".join(elements(ref)) == refs.expected(tensor)


@pytest.mark.parametrize("block", [1, 5, 20, 64, 100])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_element_may_lie_in_two_blocks(
    block: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places_module, "BLOCK", block)
    tensor = refs.values(dtype, 480)

    assert b"".join(elements(refs.ref_of(tensor, big=True))) == refs.expected(tensor)
    if not dtype.is_complex:
        tensor = torch._neg_view(tensor) if dtype.is_floating_point else tensor
    assert b"".join(elements(refs.ref_of(tensor))) == refs.expected(tensor)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "how"),
    [
        ("whole", "little"),
        ("slice", "deflated"),
        ("columns", "little"),
        ("every other", "deflated"),
    ],
)
def test_elements_of_more_than_a_block_as_shipped(
    view: str, how: str, nbytes: int
) -> None:
    for dtype in (torch.float32, torch.complex64):
        tensor = VIEWS[view](refs.values(dtype, 2 * nbytes))
        assert b"".join(
            elements(refs.ref_of(tensor, is_deflated=how == "deflated"))
        ) == refs.expected(tensor)


def test_big_endian_of_more_than_a_block_as_shipped(nbytes: int) -> None:
    tensor = refs.values(torch.float32, nbytes)

    assert b"".join(elements(refs.ref_of(tensor, big=True))) == refs.expected(tensor)


def test_blocks_are_no_larger_than_they_may_be(
    small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(elements(refs.ref_of(refs.values(torch.float32, 600))))

    assert [len(block) for block in found] == [64] * 9 + [24]
    monkeypatch.setattr(
        places_module, "_CACHED", 100
    )  # larger records are not kept inflated
    inflated = list(elements(refs.ref_of(torch.zeros(150), is_deflated=True)))
    assert max(map(len, inflated)) <= 64 and sum(map(len, inflated)) == 600


# --- places ---------------------------------------------------------------------------


def places(nbytes: int) -> dict[str, tuple[Place, bytes]]:
    """Every kind of place, and the bytes that it gives."""
    data = refs.expected(refs.values(torch.uint8, nbytes))
    other = refs.expected(refs.values(torch.uint8, nbytes, 1))
    quarter = nbytes // 8 * 2
    numbers = refs.values(torch.float32, nbytes // 4 * 4)
    square = numbers[: len(numbers) // 4 * 4].reshape(4, -1)
    over = torch.full((2, square.shape[1] - 1), 0.5)
    laid = square.clone()
    laid[:2, :-1] = over
    patched = bytearray(data)
    patched[quarter : 2 * quarter] = other[:quarter]
    patched[quarter + 8 : quarter + 40] = other[100:132]
    pieces = [
        (quarter, refs.range_of(other[:quarter], is_deflated=True)),
        (quarter + 8, refs.range_of(other[100:132])),
    ]
    return {
        "range": (refs.range_of(data), data),
        "deflated": (refs.range_of(data, is_deflated=True), data),
        "patched": (Patched(refs.range_of(data), nbytes, pieces), bytes(patched)),
        "cast": (
            Computed(refs.ref_of(numbers), BY_NAME["bfloat16"]),
            refs.expected(numbers.to(torch.bfloat16)),
        ),
        "computed": (
            Computed(refs.ref_of(square.t()), BY_NAME["float32"]),
            refs.expected(square.t()),
        ),
        "overlaid": (
            Overlaid(refs.ref_of(square), refs.ref_of(over)),
            refs.expected(laid),
        ),
    }


KINDS = ("range", "deflated", "patched", "cast", "computed", "overlaid")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_part_of_a_place(kind: str, nbytes: int) -> None:
    place, data = places(nbytes)[kind]
    size = len(data)

    assert b"".join(place.read_blocks()) == data
    for start in {0, 1, 63, 64, 65, size // 2, size - 64, size - 1, size}:
        assert b"".join(place.read_blocks(start)) == data[start:], start
        for count in {0, 1, 63, 64, 65, 128, size // 3, size - start}:
            if start + count <= size:
                assert (
                    b"".join(place.read_blocks(start, count))
                    == data[start : start + count]
                ), (
                    start,
                    count,
                )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("crc", [False, True])
def test_pouring_writes_every_byte_and_tells_their_crc(
    kind: str, crc: bool, nbytes: int, tmp_path: Path
) -> None:
    place, data = places(nbytes)[kind]
    to = target.target(str(tmp_path / "out"), force=False)

    with target.writing_file(to, len(data)) as sink:
        found = pour(Storage("0", None, None, len(data), place), sink, crc=crc)

    assert (tmp_path / "out").read_bytes() == data
    assert found == (zlib.crc32(data) if crc else 0)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("crc", [False, True])
def test_pouring_from_a_file(
    recorded: bool, crc: bool, nbytes: int, tmp_path: Path
) -> None:
    """Where the CRC is known, or not asked for, the kernel copies."""
    data = refs.expected(refs.values(torch.uint8, nbytes))
    (tmp_path / "in").write_bytes(refs.BEFORE + data + b"behind")
    source = File(str(tmp_path / "in"))
    known = zlib.crc32(data) if recorded else None
    storage = Storage(
        "0", None, None, nbytes, refs.range_of(data, source=source), known
    )

    with target.writing_file(
        target.target(str(tmp_path / "out"), force=False), nbytes
    ) as sink:
        found = pour(storage, sink, crc=crc)

    assert (tmp_path / "out").read_bytes() == data
    assert found == zlib.crc32(data) or not crc
    assert (source.bytes_read == 0) == (recorded or not crc)
    source.close()


def test_a_deflated_record_with_another_crc_is_not_written(nbytes: int) -> None:
    data = refs.expected(refs.values(torch.uint8, nbytes))
    storage = Storage(
        "0",
        None,
        None,
        nbytes,
        refs.range_of(data, is_deflated=True),
        zlib.crc32(data) ^ 1,
    )

    with pytest.raises(DamagedDataError):
        pour(storage, target.MemorySink(), crc=True)
    assert pour(
        storage._replace(crc=zlib.crc32(data)), target.MemorySink(), crc=True
    ) == zlib.crc32(data)


@pytest.mark.parametrize("crc", [True, False])
def test_pouring_pieces_of_a_file(crc: bool, nbytes: int, tmp_path: Path) -> None:
    """Large pieces are copied by the kernel, also where one begins in the middle
    because another covers it.
    """
    data = bytes(number * 7 % 251 for number in range(nbytes))
    (tmp_path / "in").write_bytes(data)
    source = File(str(tmp_path / "in"))
    third = nbytes // 3
    pieces: list[tuple[int, Place]] = [
        (third, Range(source, 5, nbytes - third)),
        (2 * third, Range(source, 11, 3)),
        (-4, Range(source, 0, third + 4)),
    ]
    storage = Storage("s", "cpu", None, nbytes, Patched(None, nbytes, pieces))
    expected = bytearray(data[4 : third + 4] + data[5 : 5 + nbytes - third])
    expected[2 * third : 2 * third + 3] = data[11:14]
    with target.writing_file(
        target.target(str(tmp_path / "out"), force=False), nbytes
    ) as sink:
        found = pour(storage, sink, crc=crc)
    assert (tmp_path / "out").read_bytes() == expected
    assert found == (zlib.crc32(expected) if crc else 0)


@pytest.mark.parametrize("change", [-1, 1, -70, 70])
def test_a_deflated_record_of_another_size_is_damaged(
    change: int, small_blocks: None
) -> None:
    place = refs.range_of(bytes(range(256)) * 3, is_deflated=True)
    assert place.inflated is not None

    with pytest.raises(DamagedDataError):
        list(place._replace(inflated=place.inflated + change).read_blocks())


@pytest.mark.parametrize("cut", [1, 70])
def test_deflated_data_that_is_cut_or_damaged(cut: int, small_blocks: None) -> None:
    place = refs.range_of(
        refs.expected(refs.values(torch.float32, 900)), is_deflated=True
    )
    damaged = bytearray(refs.deflated(refs.expected(refs.values(torch.float32, 900))))
    damaged[0] ^= 0x07

    with pytest.raises(DamagedDataError):
        list(place._replace(size=place.size - cut).read_blocks())
    with pytest.raises(DamagedDataError):
        list(
            place._replace(
                source=Memory(refs.BEFORE + damaged), size=len(damaged)
            ).read_blocks()
        )


def test_a_deflate_stream_without_its_end_is_damaged(small_blocks: None) -> None:
    """All bytes are there, and the stream does not say that they are all."""
    data = bytes(range(256)) * 300
    machine = zlib.compressobj(9, zlib.DEFLATED, -15)
    endless = machine.compress(data) + machine.flush(zlib.Z_SYNC_FLUSH)
    ended = endless + machine.flush()
    place = refs.range_of(data, is_deflated=True)

    def read(stream: bytes) -> bytes:
        return b"".join(
            place._replace(
                source=Memory(refs.BEFORE + stream), size=len(stream)
            ).read_blocks()
        )

    assert read(ended) == data
    for cut in (endless, ended[:-1]):
        with pytest.raises(
            DamagedDataError, match="holds less than the archive records"
        ):
            read(cut)


def test_a_source_that_ends_before(nbytes: int) -> None:
    data = bytes(nbytes)
    for place in (refs.range_of(data), refs.range_of(data)._replace(big=True)):
        cut = place._replace(source=Memory(refs.BEFORE + data[:-1]))
        with pytest.raises(CutOffError):
            list(cut.read_blocks())


def test_little_of_big_endian_storages(small_blocks: None) -> None:
    tensor = refs.values(torch.int32, 600)
    ref = refs.ref_of(tensor, big=True)

    place = little_endian_storage(ref.storage).place
    assert place is not None and b"".join(place.read_blocks()) == refs.expected(tensor)
    plain = refs.ref_of(tensor).storage
    assert little_endian_storage(plain) is plain
    assert isinstance(place_of(ref), Computed) and not isinstance(
        place_of(refs.ref_of(tensor)), Computed
    )


# --- whether bytes are the same -------------------------------------------------------


@given(
    st.binary(max_size=30),
    st.lists(st.integers(0, 9), max_size=6),
    st.lists(st.integers(0, 9), max_size=6),
)
def test_streams_are_the_same_however_they_are_cut(
    data: bytes, one: list[int], two: list[int]
) -> None:
    def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
        for size in sizes:  # empty blocks as well
            yield data[:size]
            data = data[size:]
        yield data

    assert same_bytes(cut(data, one), cut(data, two))
    assert not same_bytes(cut(data, one), cut(data + b"x", two))
    assert not same_bytes(cut(data + b"x", one), cut(data, two))
    for at in range(len(data)):
        other = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
        assert not same_bytes(cut(data, one), cut(other, two))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 128, 129, 640, 700])
def test_ranges_are_the_same_only_where_every_byte_is(
    count: int, small_blocks: None
) -> None:
    data = refs.expected(refs.values(torch.uint8, count))
    one, two = Memory(b"abc" + data + b"x"), Memory(data + b"yz")

    assert same_ranges(one, 3, two, 0, count)
    for at in range(count):
        other = bytearray(data)
        other[at] ^= 1
        assert not same_ranges(one, 3, Memory(bytes(other)), 0, count), at
        assert not same_ranges(Memory(bytes(other)), 0, one, 3, count), at
    if count:
        assert not same_ranges(
            one, 3, Memory(bytes(byte ^ 0xFF for byte in data)), 0, count
        )
        assert not same_ranges(Memory(data + b"!"), 1, two, 0, count)


def test_ranges_of_several_megabytes(nbytes: int) -> None:
    data = refs.expected(refs.values(torch.uint8, nbytes))
    one = Memory(b"abc" + data)

    assert same_ranges(one, 3, Memory(data), 0, nbytes)
    for at in (
        0,
        1,
        module.BLOCK - 1,
        module.BLOCK,
        nbytes // 2,
        nbytes - 25,
        nbytes - 1,
    ):
        other = bytearray(data)
        other[at] ^= 0x80
        assert not same_ranges(one, 3, Memory(bytes(other)), 0, nbytes), at
    whole = nbytes - nbytes % module.BLOCK  # no part of a block at the end
    assert same_ranges(one, 3, Memory(data), 0, whole)
    assert not same_ranges(one, 3, Memory(bytes(nbytes)), 0, whole)
    assert not same_ranges(one, 3, Memory(bytes(nbytes)), 0, module.BLOCK)


def test_ranges_of_a_file_that_is_cut(nbytes: int, tmp_path: Path) -> None:
    data = refs.expected(refs.values(torch.uint8, nbytes))
    (tmp_path / "a").write_bytes(data)
    source = File(str(tmp_path / "a"))
    (tmp_path / "a").write_bytes(data[:-1])

    with pytest.raises(NotOpenedError):
        same_ranges(source, 0, Memory(data), 0, nbytes)
    source.close()


@pytest.mark.parametrize(
    ("dtype", "is_big_endian"),
    [(torch.int16, True), (torch.uint8, False), (torch.bool, False)],
)
def test_elements_of_one_byte_have_no_order_of_bytes(
    dtype: torch.dtype, is_big_endian: bool
) -> None:
    values = torch.ones(4).to(dtype)
    assert is_big(refs.ref_of(values, big=True).storage) is is_big_endian
    assert not is_big(refs.ref_of(values).storage)
