"""The ways in which a tensor may hold several layers, and those that were named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ckpt.model.errors import UsageError
from ckpt.model.text import show

Packing = Literal["concatenated", "interleaved", "in-out", "out-in"]
ORDERS: tuple[Packing, Packing] = ("concatenated", "interleaved")
"""The layers one after the other, or row by row in turn."""
SIDES: tuple[Packing, Packing] = ("in-out", "out-in")
"""A square matrix by the inputs of its layer, or by the outputs."""
PACKINGS: tuple[Packing, ...] = (*ORDERS, *SIDES)


class UnnamedPackingError(UsageError):
    """Two packings fit, and none was named. `ways` are both."""

    def __init__(
        self,
        problem: str,
        ways: tuple[Packing, Packing],
        *,
        path: str,
    ) -> None:
        hint = f"--packing {ways[0]}, or --packing {ways[1]}"
        super().__init__(f"{problem}: both fit", path=path, hint=hint)
        self.ways = ways


def packings_of(texts: Iterable[str]) -> tuple[Packing, ...]:
    """The packings that texts name: one, or one of each kind. Raises UsageError."""
    words = list(texts)
    for word in words:
        if word not in PACKINGS:
            listed = " ".join(PACKINGS)
            raise UsageError(f"--packing {show(word, 40)}: not one of {listed}")
    for ways in (ORDERS, SIDES):
        if set(ways) <= set(words):
            raise UsageError(f"--packing: {ways[0]} and {ways[1]} exclude each other")
    return tuple(way for way in PACKINGS if way in words)


def found_in(named: Iterable[Packing], ways: tuple[Packing, Packing]) -> Packing | None:
    """Return the one of two packings that was named, or None."""
    return next((way for way in named if way in ways), None)
