"""Constants that choose how something is done, and nothing else: the answer is the same
on both sides of each.

Small tests never reach the side of large files. So the suite walks both:
`walking("fast")` sets each constant to the value with which the path for large files is
always taken, `walking("slow")` to the one with which it never is.
`CKPT_TEST_PATHS=fast` does so for a whole run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, NamedTuple

from ckpt.hooks import is_installed

Side = Literal["fast", "slow"]
NEVER = 1 << 40


class Sides(NamedTuple):
    """The values of a constant with which the path for large files is always taken, and
    never.
    """

    fast: int
    slow: int


PATHS = {
    "ckpt.tree.walk._FEW": Sides(1, NEVER),
    "ckpt.tree.walk._MANY": Sides(1, NEVER),
    "ckpt.tree.walk._TOGETHER": Sides(100, 0),
    "ckpt.formats.common.pickled.LEAST_BYTES": Sides(0, NEVER),
    "ckpt.pickle.skim.tensors._LEAST": Sides(256, 1 << 18),
    "ckpt.pickle.skim.tensors._MOST": Sides(1_024, 1 << 18),
    "ckpt.formats.common.archive._MANY": Sides(0, NEVER),
    "ckpt.formats.common.archive._NEAR": Sides(NEVER, 0),
    "ckpt.formats.common.columns._LEAST": Sides(1, NEVER),
    "ckpt.formats.common.columns._FIRST": Sides(2, 16_384),
    "ckpt.formats.common.columns._MOST": Sides(3, 16_384),
    "ckpt.formats.common.safetensors._LEAST": Sides(0, NEVER),
    "ckpt.formats.common.safetensors._PIECE": Sides(512, 1 << 20),
    "ckpt.model.names._MANY": Sides(2, NEVER),
    "ckpt.ext.dcp.skim._TRIES": Sides(8, 0),
    "ckpt.ext.dcp.items._AT_ONCE": Sides(NEVER, 0),
    "ckpt.ext.dcp.alike._KEPT": Sides(NEVER, 1),
    "ckpt.ext.dcp.verifier._AT_ONCE": Sides(2, 256),
    "ckpt.pickle.machine.STEP": Sides(7, 1 << 14),
    "ckpt.formats.common.stream._FIRST_READ": Sides(1 << 18, 64),
    "ckpt.ext.old.torch_tar._FIRST_READ": Sides(1 << 10, 16),
    "ckpt.ext.pickles.reader._CHUNK": Sides(1 << 14, 16),
    "ckpt.pickle.bounds._RUN": Sides(3, 1 << 18),
    "ckpt.pickle.bounds._SPAN": Sides(40, 8 << 20),
    "ckpt.elements.blocks.SMALL": Sides(0, NEVER),
    "ckpt.elements.audit.SMALL": Sides(0, NEVER),
    "ckpt.bytes.source.MOST_OPEN": Sides(2, 4_096),
    "ckpt.model.places._CACHED": Sides(NEVER, 0),
    "ckpt.elements.fill.GAP": Sides(NEVER, 0),
    "ckpt.elements.fill._RUNS": Sides(2, NEVER),
    "ckpt.elements.fill._AHEAD": Sides(1, NEVER),
    "ckpt.elements.fill._CROWDED": Sides(1, NEVER),
    "ckpt.elements.histogram._FEW": Sides(0, NEVER),
    "ckpt.elements.histogram._FULL": Sides(64, 1 << 31),
    "ckpt.ext.average.mean.ELEMENTS": Sides(5, 1 << 17),
    "ckpt.elements.sums.PRODUCTS": Sides(64, 1 << 18),
    "ckpt.elements.sums.ROWS": Sides(3, 24),
    "ckpt.elements.sums.ROWS_IN_ORDER": Sides(3, 2),
    "ckpt.elements.sums.RANK_IN_ORDER": Sides(0, 1 << 20),
    "ckpt.elements.sums._LEAST": Sides(1, 16),
    "ckpt.ext.adapters.products.ELEMENTS": Sides(40, 1 << 18),
    "ckpt.ext.adapters.products._KEPT": Sides(1, 64),
    "ckpt.ext.adapters.checks.ELEMENTS": Sides(40, 1 << 15),
    "ckpt.elements.single._FEW": Sides(NEVER, 0),
    "ckpt.bytes.executor.AHEAD": Sides(1, NEVER),
    "ckpt.bytes.executor._FORKED": Sides(0, NEVER),
    "ckpt.ext.layouts.pieces._CELLS": Sides(1, NEVER),
    "ckpt.ext.layouts.rules._FEWEST": Sides(2, 3),
    "ckpt.ext.quantised.matrix.WORTH": Sides(0, NEVER),
    "ckpt.ext.quantised.unpacking.HELD": Sides(NEVER, 0),
    "ckpt.ext.quantised.unpacking._PIECES": Sides(3, 1),
}
"""Module and constant -> its two values."""


def _drop_absent(rows: dict[str, Any]) -> None:
    """Take out the rows of extensions whose folders were deleted."""
    for name in [name for name in rows if not is_installed(name)]:
        del rows[name]


_drop_absent(PATHS)


def _parts(name: str) -> tuple[str, str]:
    module, _, constant = name.rpartition(".")
    return module, constant


def now() -> dict[str, int]:
    """The values as they are."""
    found: dict[str, int] = {}
    for name in PATHS:
        module, constant = _parts(name)
        found[name] = getattr(import_module(module), constant)
    return found


SHIPPED = now()


def changed() -> dict[str, int]:
    """The values that are not those which are shipped."""
    return {name: value for name, value in now().items() if value != SHIPPED[name]}


def take(values: Mapping[str, int]) -> None:
    """Set constants, in this process."""
    for name, value in values.items():
        module, constant = _parts(name)
        setattr(import_module(module), constant, value)


def values(side: Side) -> dict[str, int]:
    """The value of each constant on a side."""
    return {name: getattr(path, side) for name, path in PATHS.items()}


@contextmanager
def walking(side: Side) -> Iterator[None]:
    """Take one side for a while, in this process and in the commands that it starts as
    forks.
    """
    before = now()
    take(values(side))
    try:
        yield
    finally:
        take(before)


def asked() -> Side | None:
    """The side that a whole run of the suite takes; None for the values that are
    shipped.
    """
    side = os.environ.get("CKPT_TEST_PATHS", "")
    if side not in ("", "fast", "slow"):
        raise ValueError(f"CKPT_TEST_PATHS={side} is neither fast nor slow")
    return "fast" if side == "fast" else "slow" if side == "slow" else None


SMALL = {
    "ckpt.model.places.BLOCK": 64,
    "ckpt.ext.layouts.fibres.STEP": 64,
    "ckpt.ext.layouts.sums.AT_ONCE": 3,
    "ckpt.ext.layouts.samples.COUNT": 2,
    "ckpt.ext.layouts.scaled._FEW": 2,
    "ckpt.ext.layouts.gathered.BLOCK": 64,
    "ckpt.ext.layouts.gathered.HELD": 128,
    "ckpt.ext.layouts.proof.STEP": 256,
    "ckpt.ext.layouts.runs._BLOCK": 4,
    "ckpt.ext.quantised.matrix.ELEMENTS": 64,
    "ckpt.ext.quantised.unpacking.PIECE": 8,
    "ckpt.elements.blocks.BLOCK": 64,
    "ckpt.elements.sums.PIECE": 8,
    "ckpt.elements.sums.SINGLE_PIECE": 8,
    "ckpt.elements.boxes.BAND": 64,
    "ckpt.elements.cast.BLOCK": 64,
    "ckpt.elements.fill.PIECE": 64,
    "ckpt.elements.fill._WIDEN": 16,
    "ckpt.elements.spans.ELEMENTS": 16,
    "ckpt.elements.unpacked.PIECE": 256,
    "ckpt.elements.unpacked.READ": 512,
    "ckpt.ext.gguf.header.STEP": 64,
    "ckpt.bytes.source.STEP": 64,
    "ckpt.bytes.target.BLOCK": 64,
    "ckpt.bytes.target._SMALL": 16,
    "ckpt.bytes.target._KERNEL_COPY": 40,
    "ckpt.bytes.target._EARLY": 96,
    "ckpt.bytes.executor.SPAN": 192,
    "ckpt.formats.common.appended._STEP": 64,
    "ckpt.formats.common.placed._STEP": 64,
    "ckpt.formats.common.recovered._STEP": 64,
    "ckpt.formats.common.holes._STEP": 64,
}
"""Module and constant -> bytes of a block so small that a few elements are many; of
`spans.ELEMENTS` elements.

With the sizes that are shipped alone a loop over blocks passes its tests with a wrong
offset, or without its body.
"""
_drop_absent(SMALL)

LARGE = (5 << 20) + 24
"""Bytes that are more than one block of the sizes that are shipped, the last of them
not full.
"""


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


IS_THOROUGH = bool(os.environ.get("CKPT_TEST_THOROUGH"))


def many(daily: int, thorough: int) -> int:
    """The number of examples that a test tries: few every day, many in `make
    test-thorough`.
    """
    return thorough if IS_THOROUGH else daily
