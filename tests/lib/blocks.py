"""The sizes of blocks, and sizes so small that a few elements are many blocks.

With the sizes that are shipped alone a loop over blocks passes its tests with a wrong offset, or without its body.
"""

from __future__ import annotations

from importlib import import_module

SMALL = {
    "ckpt.elements.blocks.BLOCK": 64,
    "ckpt.elements.pairs.PIECE": 8,
    "ckpt.elements.boxes.BAND": 64,
    "ckpt.elements.cast.BLOCK": 64,
    "ckpt.elements.spans.ELEMENTS": 16,
    "ckpt.io.target.BLOCK": 64,
    "ckpt.io.target._SMALL": 16,
    "ckpt.io.target._KERNEL_COPY": 40,
    "ckpt.io.target._EARLY": 96,
    "ckpt.io.executor.SPAN": 192,
    "ckpt.formats.common.appended._STEP": 64,
    "ckpt.formats.common.records._STEP": 64,
}
"""Module and constant -> bytes; of `spans.ELEMENTS` elements."""

LARGE = (5 << 20) + 24
"""Bytes that are more than one block of the sizes that are shipped, the last of them not full."""


def set_sizes(sizes: dict[str, int]) -> None:
    """Set constants for good: in a process of its own."""
    for name, value in sizes.items():
        module, _, constant = name.rpartition(".")
        setattr(import_module(module), constant, value)


def sizes() -> dict[str, int]:
    """The sizes as they are now."""
    found = {}
    for name in SMALL:
        module, _, constant = name.rpartition(".")
        found[name] = getattr(import_module(module), constant)
    return found
