"""The numbers in the blocks of GGUF, as llama.cpp defines them (ggml-common.h has the
fields, ggml-quants.c the formulas).

Each function takes blocks as bytes, a row per block, and gives float32 with a row per
block. It computes in float32 and in the order of the formulas, so that every bit is
llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Decode = Callable[[Array], Array]

_SWAPPED: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q6_K": (208,),
    "MXFP4": (),
    "NVFP4": (),
}
"""The places at which the float16 fields of a block begin, for the types that files of
big-endian machines are known to hold.
"""


def can_decode(name: str, big: bool) -> bool:
    """Tell whether blocks of a type can be decoded, in the given order of bytes."""
    return name in _SWAPPED if big else name in _table()


def decode(name: str, blocks: Array, big: bool) -> Array:
    """Return the elements of `blocks`, an array of bytes with a row per block, as
    float32 with a row per block.
    """
    return _table()[name](swap_fields(name, blocks) if big else blocks)


def swap_fields(name: str, blocks: Array) -> Array:
    """Return the blocks of a big-endian machine with their fields little-endian."""
    swapped = blocks.copy()
    # Bytes stand alone: only fields of several bytes lie the other way round.
    for place in _SWAPPED[name]:
        swapped[:, place] = blocks[:, place + 1]
        swapped[:, place + 1] = blocks[:, place]
    return swapped


@cache
def _table() -> dict[str, Decode]:
    """The function of each type."""
    # Loaded when a block is decoded: `inspect` decodes none.
    from ckpt.ext.gguf import decode_grids, decode_small, decode_super

    return {**decode_small.DECODERS, **decode_super.DECODERS, **decode_grids.DECODERS}
