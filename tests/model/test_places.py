"""Places keep their contract: every kind gives the same bytes in every way that it can
be asked for them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import refs
import torch
from needs import is_there
from safetensors.torch import save

import ckpt
from ckpt.bytes.source import Memory, Source
from ckpt.elements.blocks import elements
from ckpt.elements.boxes import Box, Boxes
from ckpt.elements.computed import (
    Computed,
    Overlaid,
    PlaceInOrder,
    PlaceInSpans,
    PlaceOfTensors,
    lacks_bytes,
    little_endian_storage,
    place_of,
)
from ckpt.elements.unpacked import Unpacked
from ckpt.formats.common.holes import partial_place
from ckpt.model.dtypes import BY_NAME, UINT8, contiguous
from ckpt.model.errors import UnreadableError
from ckpt.model.places import (
    BasePlace,
    Checksum,
    Patched,
    Place,
    Range,
    Reworked,
    Runs,
    StreamedPlace,
)
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

if TYPE_CHECKING:
    from ckpt.ext.adapters.derived import Made

F32 = BY_NAME["float32"]


class Watched(Memory):
    """Bytes in memory, and the spans of them that were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.spans: list[tuple[int, int]] = []

    def read(self, offset: int, count: int) -> bytes:
        self.spans.append((offset, offset + count))
        return super().read(offset, count)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.spans.append((offset, offset + len(buffer)))
        super().read_into(offset, buffer)


def ref_to(
    tensor: torch.Tensor, *, big: bool = False, is_deflated: bool = False
) -> TensorRef:
    """A tensor over a source of its own, whose record has a checksum."""
    ref = refs.ref_of(tensor, big=big, is_deflated=is_deflated)
    place = ref.storage.place
    assert isinstance(place, Range)
    held = Watched(place.source.read(0, place.source.size))
    crc = zlib.crc32(refs.raw(tensor))
    return ref._replace(
        storage=ref.storage._replace(place=place._replace(source=held), crc=crc)
    )


def range_to(data: bytes, *, is_deflated: bool = False) -> Range:
    place = refs.range_of(data, is_deflated=is_deflated)
    return place._replace(source=Watched(place.source.read(0, place.source.size)))


def boxes_of(whole: torch.Tensor, edges: list[tuple[int, int, int, int]]) -> Boxes:
    """A matrix in boxes: each from one row and column to others."""
    boxes = []
    for top, left, bottom, right in edges:
        part = whole[top:bottom, left:right].contiguous()
        boxes.append(Box((top, left), tuple(part.shape), ref_to(part)))
    sources = [
        source for box in boxes for source in box.tensor().storage.list_sources()
    ]
    return Boxes(F32, tuple(whole.shape), lambda: boxes, sources, None, (2, 1))


def negated(block: memoryview, first: int) -> Made:
    """Turn the sign of each float32, and of nothing else."""
    from ckpt.ext.adapters.derived import Made

    data = bytearray(block)
    for index in range(3, len(data), 4):
        data[index] ^= 0x80
    return Made(memoryview(data), 0, lambda: None)


def kinds() -> dict[str, tuple[Place, bytes]]:
    """Every kind of place, and its bytes."""
    whole = refs.values(torch.float32, 16 * 12 * 4).reshape(16, 12)
    other = refs.values(torch.float32, 16 * 12 * 4, 1).reshape(16, 12)
    over = torch.full((3, 5), 0.5)
    laid = whole.clone()
    laid[:3, :5] = over
    data, second = refs.expected(whole), refs.expected(other)
    patched = bytearray(data)
    patched[100:200] = second[:100]
    patched[150:250] = second[300:400]
    pieces: list[tuple[int, Place]] = [
        (100, range_to(second[:100], is_deflated=True)),
        (150, range_to(second[300:400])),
    ]
    rows, columns = [(0, 0, 7, 12), (7, 0, 16, 12)], [(0, 0, 16, 5), (0, 5, 16, 12)]
    runs = [(0, range_to(data[:300])), (300, range_to(data[300:]))]
    return {
        "range": (range_to(data), data),
        "deflated": (range_to(data, is_deflated=True), data),
        "patched": (Patched(range_to(data), len(data), pieces), bytes(patched)),
        "pieces alone": (
            Patched(None, len(data), [(-8, range_to(bytes(8) + data))]),
            data,
        ),
        "runs": (Runs(len(data), runs), data),
        "rows": (boxes_of(whole, rows), data),
        "columns": (boxes_of(whole, columns), data),
        "computed": (Computed(ref_to(whole.t()), F32), refs.expected(whole.t())),
        "as it is": (Computed(ref_to(whole), F32), data),
        "little": (Computed(ref_to(whole, big=True), F32), data),
        "cast": (
            Computed(ref_to(whole, is_deflated=True), BY_NAME["float64"]),
            refs.expected(whole.double()),
        ),
        "overlaid": (Overlaid(ref_to(whole), ref_to(over)), refs.expected(laid)),
        **kinds_of_extensions(),
    }


def kinds_of_extensions() -> dict[str, tuple[Place, bytes]]:
    """The kinds of places of those extensions that are there, and their bytes."""
    found = {}
    if is_there("adapters"):
        found["derived"] = derived_place()
    if is_there("average"):
        found["mean"] = mean_place()
    if is_there("gguf"):
        found["unpacked"] = unpacked_place()
        found["rows of heads"] = head_rows_place()
        found["one less"] = one_less_place()
    if is_there("resizing"):
        found["stacked"] = stacked_place()
        found["with means"] = with_means_place()
        found["resampled"] = resampled_place()
    if is_there("quantised"):
        found["decoded"] = decoded_place()
    return found


def matrix() -> torch.Tensor:
    """16 rows of 12 numbers."""
    return refs.values(torch.float32, 16 * 12 * 4).reshape(16, 12)


def derived_place() -> tuple[Place, bytes]:
    from ckpt.ext.adapters.derived import Derived

    whole = matrix()
    other = refs.values(torch.float32, 16 * 12 * 4, 1).reshape(16, 12)
    place = Derived(ref_to(whole), [ref_to(other)], 24, negated, F32)
    return place, refs.expected(-whole)


def mean_place() -> tuple[Place, bytes]:
    from ckpt.ext.average.mean import Mean

    whole = matrix()
    place = Mean([ref_to(whole), ref_to(whole)], [0.5, 0.5], F32)
    return place, refs.expected(whole)


def one_less_place() -> tuple[Place, bytes]:
    from ckpt.ext.gguf.changes import OneLess

    whole = matrix()
    return OneLess(ref_to(whole)), refs.expected(whole - 1)


def stacked_place() -> tuple[Place, bytes]:
    from ckpt.ext.resizing.places import Stacked

    whole = matrix()
    place = Stacked(ref_to(whole[:9]), ref_to(whole[9:]), F32)
    return place, refs.expected(whole)


def unpacked_place() -> tuple[Place, bytes]:
    """Six blocks of GGUF's Q8_0: a scale in float16, and 32 numbers of 8 bits."""
    from ckpt.ext.gguf.types import BY_NUMBER

    packed = next(dtype for dtype in BY_NUMBER.values() if dtype.name == "Q8_0")
    numbers = (
        refs.values(torch.float32, 192 * 4)
        .reshape(6, 32)
        .nan_to_num()
        .sign()
        .mul(90)
        .to(torch.int8)
    )
    scales = torch.tensor([0.5, 1, 2, 0.25, 3, 8]).half()[:, None]
    blocks = torch.cat([scales.view(torch.uint8), numbers.view(torch.uint8)], 1)
    floats = scales.float() * numbers.float()
    return Unpacked(range_to(refs.expected(blocks)), packed, 192), refs.expected(floats)


def head_rows_place() -> tuple[Place, bytes]:
    """Two heads of 8 rows: the first halves of the pairs of rows of a head, then the
    second halves.
    """
    from ckpt.ext.gguf.changes import HeadRows

    rows = refs.values(torch.float32, 16 * 12 * 4).reshape(16, 12)
    halves = rows.reshape(2, 4, 2, 12).transpose(1, 2).contiguous()
    return HeadRows(range_to(refs.expected(rows)), 12 * 4, 8 * 12 * 4), refs.expected(
        halves
    )


def with_means_place() -> tuple[Place, bytes]:
    """15 rows, and their mean below them."""
    from ckpt.ext.resizing.places import WithMeans

    rows = torch.arange(180).float().reshape(15, 12)
    return WithMeans(ref_to(rows), 1), refs.expected(
        torch.cat([rows, rows.mean(0, keepdim=True)])
    )


def resampled_place() -> tuple[Place, bytes]:
    """Three planes of one number each, on a grid of twice the width and height."""
    from ckpt.ext.resizing.grids import Resampling
    from ckpt.ext.resizing.places import Resampled

    planes = torch.tensor([1.0, 2.0, -4.0])[:, None, None]
    small, large = (
        planes.expand(3, 4, 4).contiguous(),
        planes.expand(3, 8, 8).contiguous(),
    )
    how = Resampling("planes", (4, 4), (8, 8), (3, 8, 8))
    return Resampled(ref_to(small), how), refs.expected(large)


def decoded_place() -> tuple[Place, bytes]:
    """A weight in FP8 with one scale, as bfloat16."""
    from ckpt.ext.quantised.place import Decoded

    codes = torch.arange(384).remainder(64).reshape(24, 16).to(torch.float8_e4m3fn)
    saved = save({"fc.weight": codes, "fc.weight_scale": torch.tensor(0.5)})
    plain = ckpt.open(saved).dequantized()
    place = next(iter(plain.checkpoint.tensors)).tensor.storage.place
    assert isinstance(place, Decoded)
    return place, refs.expected((codes.float() * 0.5).bfloat16())


KINDS = sorted(kinds())
PARTS = [
    (0, 0),
    (0, 1),
    (1, 9),
    (90, 160),
    (120, 290),
    (299, 301),
    (296, 312),
    (333, 768),
    (0, 768),
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Place, bytes]:
    return kinds()[str(request.param)]


def read(place: Place, *span: int) -> bytes:
    return b"".join(place.read_blocks(*span))


def watched(place: Place) -> list[Watched]:
    return [source for source in place.list_sources() if isinstance(source, Watched)]


@pytest.mark.needs("gguf")
def test_every_kind_is_here() -> None:
    todo: list[type] = [BasePlace]
    for kind in todo:
        todo += kind.__subclasses__()
    made = {type(place) for place, _ in kinds().values()}

    assert {kind for kind in todo if kind.__module__.startswith("ckpt.")} - made == {
        BasePlace,
        StreamedPlace,
        Reworked,
        StreamedPlace,
        PlaceOfTensors,
        PlaceInOrder,
        PlaceInSpans,
    }
    assert Range in made


def test_all_ways_give_the_same_bytes(
    kind: tuple[Place, bytes], small_blocks: None
) -> None:
    place, data = kind

    assert place.nbytes == len(data) and read(place) == data
    assert read(place.resolved()) == data
    assert place.kept_bytes() in (None, data)
    for first, last in PARTS:
        part = place.part(first, last)
        assert part.nbytes == last - first and read(part) == data[first:last], (
            first,
            last,
        )
        assert read(place, first, last - first) == data[first:last]
        streamed = b"".join(map(bytes, place.stream_blocks(first, last - first)))
        assert streamed == data[first:last]
        stretches = place.list_stretches(first, last)
        assert b"".join(read(*stretch) for stretch in stretches) == data[first:last]
        stored = place.as_stored(first, last)
        assert stored is None or read(stored) == data[first:last]


def test_a_stretch_is_of_a_place_that_is_no_patchwork(
    kind: tuple[Place, bytes],
) -> None:
    place, _ = kind
    stretches = place.list_stretches(120, 160)

    if isinstance(place, Patched):
        assert all(not isinstance(stretch.place, Patched) for stretch in stretches)
    else:
        assert stretches == [(place, 120, 40)]


def test_a_run_is_what_lies_in_its_source(kind: tuple[Place, bytes]) -> None:
    place, data = kind
    run = place.run

    if run is not None:
        assert run.source.read(run.offset, run.size) == data
    assert [name for name in KINDS if kinds()[name][0].run is not None] == ["range"]


def test_what_is_read_is_foreseen(kind: tuple[Place, bytes]) -> None:
    place, _ = kind
    place.resolved()
    for first, last in (
        (0, 48),
        (96, 288),
        (0, 768),
    ):  # rows: boxes beside each other are gathered by rows
        for source in watched(place):
            source.spans.clear()
        readings = list(place.list_readings(first, last))
        assert sum(map(len, place.stream_blocks(first, last - first))) == last - first
        for source in watched(place):
            spans = [(begin, end) for each, begin, end in readings if each is source]
            for low, high in source.spans:
                assert any(begin <= low and high <= end for begin, end in spans), (
                    first,
                    last,
                )


AT_ONCE = {"Unpacked": 34, "HeadRows": 384}
"""The bytes that kinds read for any of their elements: a block, and the rows of
a head.
"""


def test_who_can_seek_reads_nothing_before(kind: tuple[Place, bytes]) -> None:
    place, data = kind
    all_of_it = sum(len(source.read(0, source.size)) for source in watched(place))
    place.resolved()
    for source in watched(place):
        source.spans.clear()

    assert read(place, 700, 8) == data[700:708]
    done = sum(high - low for source in watched(place) for low, high in source.spans)
    if place.can_seek and not isinstance(place, Boxes):
        assert done == AT_ONCE.get(type(place).__name__, 8)
    assert done <= all_of_it * (
        2 if type(place).__name__ == "WithMeans" else 1
    )  # the mean, then the rows
    assert place.can_seek or not place.can_cut


def test_the_abilities_of_each_kind() -> None:
    found = {
        name: (place.can_seek, place.can_cut) for name, (place, _) in kinds().items()
    }
    seeking = {name for name, (can_seek, _) in found.items() if can_seek}
    cut = {name for name, (_, can_cut) in found.items() if can_cut}

    of_gguf = {"unpacked", "rows of heads"} if is_there("gguf") else set()
    assert seeking == {"range", "runs", "pieces alone", "rows", "columns", *of_gguf}
    assert cut == {"range", "rows", "columns", *of_gguf}
    assert {name for name, (place, _) in kinds().items() if place.grid} == {
        "rows",
        "columns",
    }


def test_the_first_source_is_one_of_all(kind: tuple[Place, bytes]) -> None:
    place, _ = kind
    sources = list(place.list_sources())

    assert place.first_source() in sources
    assert len({id(source) for source in sources}) == len(sources)


def test_checksums_of_all_records() -> None:
    whole = refs.values(torch.float32, 192).reshape(6, 8)
    one, two = ref_to(whole), ref_to(whole + 1)
    rows = boxes_of(whole, [(0, 0, 3, 8), (3, 0, 6, 8)])
    columns = boxes_of(whole, [(0, 0, 6, 3), (0, 3, 6, 8)])
    makers: dict[str, tuple[Place, int]] = {
        "computed": (Computed(one, F32), 1),
        "overlaid": (Overlaid(one, two), 2),
        "rows": (rows, 2),
        "columns": (columns, 2),
        "patched": (
            Patched(one.storage.noted, 192, [(8, Computed(two, F32).part(0, 16))]),
            3,
        ),
    }
    if is_there("adapters"):
        from ckpt.ext.adapters.derived import Derived

        makers["derived"] = Derived(one, [two], 24, negated, F32), 2
    if is_there("average"):
        from ckpt.ext.average.mean import Mean

        makers["mean"] = Mean([one, two, one], [0.2, 0.3, 0.5], F32), 3

    for name, (place, count) in makers.items():
        checksums = list(place.list_checksums())
        assert len(checksums) == count, name
        assert {zlib.crc32(read(row.place)) for row in checksums} == {
            row.crc for row in checksums
        }


def test_a_checksum_is_of_exactly_its_record() -> None:
    data = bytes(range(200))
    for is_deflated in (False, True):
        plain = range_to(data, is_deflated=is_deflated)
        place = plain.noting(7)
        assert plain.checksum_of(0, 200) is None
        assert place.checksum_of(0, 200) == Checksum(plain, 7)
        assert place.checksum_of(0, 199) is None and place.checksum_of(1, 199) is None
        assert place.noting(8) == place
    part = range_to(data).noting(7).part(1, 200)
    assert part.checksum_of(0, 199) is None and part.checksum_of(0, 200) is None


@pytest.mark.parametrize("there", [0, 40])
def test_bytes_that_are_missing(there: int) -> None:
    place = partial_place(160, "cut off", range_to(bytes(there)) if there else None)
    ref = tensor_ref(Storage("0", None, F32, 160, place), F32, (40,), (1,), 0)
    first = ref._replace(shape=(10,), numel=10, nbytes=40, extent=(0, 40))
    makers: list[Callable[[TensorRef], Place]] = [
        lambda of: Computed(of, F32),
        lambda of: Overlaid(ref_to(torch.zeros(40)), of),
        lambda of: Patched(range_to(bytes(200)), 200, [(20, Computed(of, F32))]),
    ]
    if is_there("average"):
        from ckpt.ext.average.mean import Mean

        zeros = ref_to(torch.zeros(40))
        makers.insert(0, lambda of: Mean([zeros, of], [0.5, 0.5], F32))

    assert lacks_bytes(ref) and lacks_bytes(first) == (not there)
    assert not lacks_bytes(ref._replace(extent=(0, 0)))
    assert place.lacks_bytes(36, 40) == (not there) and place.lacks_bytes(36, 41)
    assert not place.lacks_bytes(41, 41)
    for make in makers:
        assert make(ref).lacks_bytes(0, 160) and make(first).lacks_bytes(0, 160) == (
            not there
        )
    assert not makers[-1](ref).lacks_bytes(0, 20) and not makers[-1](ref).lacks_bytes(
        180, 200
    )
    with pytest.raises(UnreadableError, match="cut off"):
        read(place)


def test_the_place_of_elements_is_as_stored_where_it_can_be() -> None:
    square = refs.values(torch.float32, 400).reshape(10, 10)
    numbers = refs.values(torch.uint8, 100)

    for ref, is_run in (
        (ref_to(square), True),
        (ref_to(square[2:5]), True),
        (ref_to(square.t()), False),
        (ref_to(square, big=True), False),
        (ref_to(numbers, big=True), True),
        (ref_to(square, is_deflated=True), False),
        (ref_to(torch.randn(4, dtype=torch.complex64).conj()), False),
    ):
        place = place_of(ref)
        assert (place.run is not None) == is_run and not place.big
        assert read(place) == b"".join(elements(ref))
    cast = place_of(ref_to(square), BY_NAME["float64"])
    assert read(cast) == refs.expected(square.double())


def test_a_computed_place_is_that_of_its_tensor_where_nothing_changes() -> None:
    square = torch.randn(10, 10)
    ref = ref_to(square)

    assert Computed(ref, F32).resolved() == ref.storage.noted
    for other in (
        Computed(ref, BY_NAME["float64"]),
        Computed(ref_to(square.t()), F32),
        Computed(ref_to(square[1:]), F32),
        Computed(ref_to(square, big=True), F32),
    ):
        assert other.resolved() is other
    big = ref_to(square, big=True).storage
    assert little_endian_storage(big).place is not big.place


def test_places_of_no_bytes() -> None:
    source: Source = Memory(b"")
    empty = tensor_ref(
        Storage("0", None, F32, 0, Range(source, 0, 0)),
        F32,
        (0, 3),
        contiguous((0, 3)),
        0,
    )
    for place in (
        Range(source, 0, 0),
        partial_place(0, "its record is missing"),
        Patched(None, 0, []),
        Runs(0, []),
        Boxes(UINT8, (0,), list, ()),
        Computed(empty, F32),
    ):
        assert place.nbytes == 0 and read(place) == b""
        assert not list(place.stream_blocks(0, 0))
        assert not place.lacks_bytes(0, 0) and not list(place.list_checksums())
