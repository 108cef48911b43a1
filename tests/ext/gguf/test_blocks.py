"""Elements in blocks against gguf-py, bit for bit, and against what llama.cpp's
formulas say where it decodes nothing.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.ext.gguf import types

DATA = Path(__file__).parent / "data"
OTHERS = ("Q8_K", "Q1_0")
"""The types that gguf-py does not decode."""


def digest(values: np.ndarray) -> str:
    """The SHA-256 of float32, with one kind of NaN: processors differ in its sign."""
    words = values.copy().view("<u4")
    words[np.isnan(values)] = 0x7FC00000
    return hashlib.sha256(words.tobytes()).hexdigest()


@pytest.mark.parametrize(
    "name",
    [
        row.name
        for row in types.BY_NUMBER.values()
        if row.block is not None and row.name not in OTHERS
    ],
)
def test_every_type_is_bit_for_bit_that_of_gguf_py(name: str) -> None:
    with ckpt.open(DATA / "blocks.gguf") as file:
        values = file[name].numpy()
        expected = file.checkpoint.beside
    texts = dict(zip(expected.keys, expected.values, strict=True))
    assert values.dtype == np.float32
    assert digest(values) == texts[f"expected.{name}"]


def decoded(name: str, block: bytes) -> list[float]:
    from ckpt.ext.gguf.decode import decode

    return decode(name, np.frombuffer(block, "u1").reshape(1, -1), False)[0].tolist()


def test_q8_k_is_its_codes_times_its_scale() -> None:
    codes = [number - 128 for number in range(256)]
    values = decoded("Q8_K", struct.pack("<f256b16h", 0.5, *codes, *range(16)))
    assert values == [code / 2 for code in codes]


def test_q1_0_is_the_scale_with_a_sign_for_each_bit_the_lowest_first() -> None:
    values = decoded("Q1_0", struct.pack("<e16B", 3.0, 0b00000101, *[0] * 15))
    assert values == [3.0, -3.0, 3.0] + [-3.0] * 125


def test_the_largest_scale_of_nvfp4_is_zero() -> None:
    """Its code is a NaN of float8, which llama.cpp takes for 0."""
    block = bytes([0x7F, 0x7E, 0, 1]) + bytes([0x22] * 32)
    values = decoded("NVFP4", block)
    assert values[:16] == [0.0] * 16
    assert values[16:32] == [448.0] * 16
    assert values[32:48] == [0.0] * 16
    assert values[48:] == [2.0**-9] * 16


@pytest.mark.parametrize(
    ("name", "nbytes", "places"),
    [
        ("Q4_0", 18, (0,)),
        ("Q8_0", 34, (0,)),
        ("Q4_K", 144, (0, 2)),
        ("Q6_K", 210, (208,)),
        ("MXFP4", 17, ()),
        ("NVFP4", 36, ()),
    ],
)
def test_each_half_of_a_big_endian_block_is_turned(
    name: str, nbytes: int, places: tuple[int, ...]
) -> None:
    from ckpt.ext.gguf.decode import decode

    little = np.random.default_rng(1).integers(0, 120, (5, nbytes), dtype="u1")
    big = little.copy()
    for place in places:
        for row in range(5):
            half = struct.pack("<e", 0.1 * (row + 1))
            little[row, place : place + 2] = list(half)
            big[row, place : place + 2] = list(half[::-1])
    one, other = decode(name, little, False), decode(name, big, True)
    assert np.isfinite(one).all() and np.array_equal(one, other)


def test_any_span_of_elements_is_that_of_the_whole() -> None:
    with ckpt.open(DATA / "blocks.gguf") as file:
        for name in ("Q4_0", "Q6_K", "NVFP4"):
            whole = file[name].numpy()
            for rows in (slice(3, 5), slice(7, None, 3), slice(None, None, -1)):
                assert np.array_equal(
                    file[name][rows, 5:61:7], whole[rows, 5:61:7], equal_nan=True
                )


def test_blocks_of_a_big_endian_machine_hold_the_same_numbers() -> None:
    with ckpt.open(DATA / "big.gguf") as big, ckpt.open(DATA / "little.gguf") as little:
        for name in little:
            assert big[name].numpy().tobytes() == little[name].numpy().tobytes()


def test_a_type_that_no_big_endian_file_is_known_to_hold_is_not_decoded() -> None:
    from ckpt.ext.gguf.decode import can_decode

    assert can_decode("Q4_K", True)
    assert not can_decode("Q2_K", True)
    assert can_decode("Q2_K", False)


@pytest.mark.parametrize(
    ("name", "numel", "nbytes", "bits"),
    [("Q4_K", 512, 288, 4.5), ("Q8_0", 33, 68, 8.5), ("IQ1_S", 1, 50, 1.5625)],
)
def test_bytes_are_counted_in_blocks(
    name: str, numel: int, nbytes: int, bits: float
) -> None:
    dtype = next(row for row in types.BY_NUMBER.values() if row.name == name)
    assert dtype.nbytes(numel) == nbytes
    assert dtype.bits_per_element == bits
    assert dtype.numel(nbytes) >= numel
