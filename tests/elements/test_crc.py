"""CRC-32 of parts: combined as zlib has it, whatever the parts."""

from __future__ import annotations

import random
import zlib

import pytest
import refs

from ckpt.elements.audit import CrcResult, crc_of_bytes, join_crcs
from ckpt.elements.crc import combine_crcs


@pytest.mark.parametrize(
    "size", [0, 1, 2, 7, 8, 255, 256, 4095, 4096, 65_537, 1_000_003]
)
def test_two_parts_have_the_crc_of_the_whole(size: int) -> None:
    data = random.Random(size).randbytes(5000 + size)
    for cut in (0, 1, 4999, 5000):
        one, two = data[:cut], data[cut:]
        assert combine_crcs(zlib.crc32(one), zlib.crc32(two), len(two)) == zlib.crc32(
            data
        )


def test_many_parts_have_the_crc_of_the_whole() -> None:
    machine = random.Random(7)
    data, found, at = machine.randbytes(100_000), 0, 0
    while at < len(data):
        part = data[at : at + machine.randrange(1, 700)]
        found = combine_crcs(found, zlib.crc32(part), len(part))
        at += len(part)
    assert found == zlib.crc32(data)


@pytest.mark.parametrize("power", [11, 31, 32, 33, 40, 62])
def test_lengths_beyond_any_file_here_are_right(power: int) -> None:
    """2n zeros are n zeros and n zeros more."""
    zeros = {10: zlib.crc32(bytes(1 << 10))}
    for doubled in range(10, power):
        zeros[doubled + 1] = combine_crcs(zeros[doubled], zeros[doubled], 1 << doubled)
    start, half = zlib.crc32(b"x"), power - 1

    whole = combine_crcs(start, zeros[power], 1 << power)

    assert (
        whole
        == combine_crcs(
            combine_crcs(start, zeros[half], 1 << half), zeros[half], 1 << half
        )
        != start
    )
    if power == 11:
        assert whole == zlib.crc32(b"x" + bytes(1 << 11))


@pytest.mark.parametrize(
    "count", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3 << 18, 700_001]
)
@pytest.mark.parametrize("is_deflated", [False, True])
def test_the_bytes_of_a_place_are_summed_from_any_byte(
    count: int, is_deflated: bool
) -> None:
    data = random.Random(3).randbytes(count + 9)
    place = refs.range_of(data, is_deflated=is_deflated)
    assert crc_of_bytes(place, 9, count) == zlib.crc32(data[9:])
    assert crc_of_bytes(place, 0, count) == zlib.crc32(data[:count])


def test_parts_of_a_record_have_the_sum_of_the_record() -> None:
    data = bytes(range(200))
    parts = [(0, 70), (70, 71), (71, 200)]
    results: list[CrcResult] = [
        (zlib.crc32(data[first:last]), None) for first, last in parts
    ]

    assert join_crcs(parts, results) == (zlib.crc32(data), None)
    results[1] = (0, "its data does not inflate")
    assert join_crcs(parts, results) == (0, "its data does not inflate")
