"""Honest quantisers for the types of GGUF, in numpy: rounding to nearest by the least
and the largest number of each group.
"""

from __future__ import annotations

from collections.abc import Callable

import ggufs
import numpy as np

Array = np.ndarray


def _codes(numbers: Array, scales: Array, least: int, most: int) -> Array:
    """Numbers over scales, rounded; 0 where a scale is 0."""
    scales = np.broadcast_to(scales, numbers.shape)
    wide = np.divide(numbers, scales, where=scales != 0, out=np.zeros_like(numbers))
    return np.clip(np.rint(wide), least, most)


def q8_0(values: Array) -> bytes:
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype("<f2")
    codes = _codes(blocks, scales.astype("<f4"), -127, 127).astype("i1")
    return np.hstack([scales.view("u1"), codes.view("u1")]).tobytes()


def q5_0(values: Array) -> bytes:
    blocks = values.reshape(-1, 32)
    places = np.abs(blocks).argmax(1)[:, None]
    scales = (np.take_along_axis(blocks, places, 1) / -16).astype("<f2")
    codes = (_codes(blocks, scales.astype("<f4"), -16, 15) + 16).astype("u1")
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    low = (codes[:, :16] & 15) | (codes[:, 16:] & 15) << 4
    return np.hstack([scales.view("u1"), high, low]).tobytes()


def q4_k(values: Array) -> bytes:
    """Eight groups of 32 with scales and mins of 6 bits."""
    groups = values.reshape(-1, 8, 32)
    least = np.maximum(-groups.min(2), 0)
    steps = (groups.max(2) + least) / 15
    outer = (steps.max(1, keepdims=True) / 63).astype("<f2")
    outer_least = (least.max(1, keepdims=True) / 63).astype("<f2")
    scales = _codes(steps, outer.astype("<f4"), 0, 63).astype("u1")
    mins = _codes(least, outer_least.astype("<f4"), 0, 63).astype("u1")
    own = outer.astype("<f4") * scales
    floor = outer_least.astype("<f4") * mins
    codes = _codes(groups + floor[:, :, None], own[:, :, None], 0, 15).astype("u1")
    packed = np.hstack(
        [
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            mins[:, :4] | (mins[:, 4:] >> 4) << 6,
            (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4,
        ]
    )
    pairs = codes.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    halves = [outer.view("u1"), outer_least.view("u1")]
    return np.hstack([*halves, packed, nibbles]).tobytes()


def q6_k(values: Array) -> bytes:
    """Sixteen groups of 16 with scales of 8 bits."""
    groups = values.reshape(-1, 16, 16)
    steps = np.abs(groups).max(2) / 31
    outer = (steps.max(1, keepdims=True) / 127).astype("<f2")
    scales = _codes(steps, outer.astype("<f4"), -128, 127)
    own = outer.astype("<f4") * scales.astype("<f4")
    codes = (_codes(groups, own[:, :, None], -32, 31) + 32).astype("u1")
    rows = codes.reshape(-1, 2, 4, 32)
    low = np.stack(
        [
            (rows[:, :, 0] & 15) | (rows[:, :, 2] & 15) << 4,
            (rows[:, :, 1] & 15) | (rows[:, :, 3] & 15) << 4,
        ],
        2,
    ).reshape(-1, 128)
    high = sum((rows[:, :, place] >> 4) << 2 * place for place in range(4))
    parts = [low, high.reshape(-1, 64), scales.astype("i1").view("u1")]
    return np.hstack([*parts, outer.view("u1")]).tobytes()


def f32(values: Array) -> bytes:
    return np.ascontiguousarray(values, "<f4").tobytes()


def f16(values: Array) -> bytes:
    return values.astype("<f2").tobytes()


PACKERS: dict[str, tuple[int, int, Callable[[Array], bytes]]] = {
    "F32": (ggufs.F32, 1, f32),
    "F16": (ggufs.F16, 1, f16),
    "Q8_0": (ggufs.Q8_0, 32, q8_0),
    "Q5_0": (6, 32, q5_0),
    "Q4_K": (ggufs.Q4_K, 256, q4_k),
    "Q6_K": (14, 256, q6_k),
}
"""The name of a type -> its number, the elements of a block, and what packs it."""
