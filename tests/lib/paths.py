"""Constants that choose how something is done, and nothing else: the answer is the same on both sides of each.

Small tests never reach the side of large files. So the suite walks both: `walking("fast")` sets each constant to the value where
the path for large files is always taken, `walking("slow")` to the one where it never is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Literal, NamedTuple

Side = Literal["fast", "slow"]
NEVER = 1 << 40


class Path(NamedTuple):
    """The values of a constant with which the path for large files is always taken, and never."""

    fast: int
    slow: int


PATHS = {
    "ckpt.tree.walk._MANY": Path(1, NEVER),
    "ckpt.formats.pickled.LEAST_BYTES": Path(0, NEVER),
    "ckpt.pickles.skim.tensors._LEAST": Path(256, 1 << 18),
    "ckpt.formats.archive._MANY": Path(0, NEVER),
    "ckpt.formats.torch_zip.columns._LEAST": Path(1, 8),
    "ckpt.formats.safetensors.read._LEAST": Path(0, NEVER),
}
"""Module and constant -> its two values."""


def values(side: Side) -> dict[str, int]:
    """The value of each constant on a side."""
    return {name: getattr(path, side) for name, path in PATHS.items()}


def now() -> dict[str, int]:
    """The values as they are."""
    return {name: getattr(import_module(module), constant) for name, module, constant in map(_parts, PATHS)}


def walk(side: Side) -> None:
    """Take one side from now on, in this process."""
    for name, value in values(side).items():
        _, module, constant = _parts(name)
        setattr(import_module(module), constant, value)


@contextmanager
def walking(side: Side) -> Iterator[None]:
    """Take one side for a while."""
    before = now()
    walk(side)
    try:
        yield
    finally:
        for name, value in before.items():
            _, module, constant = _parts(name)
            setattr(import_module(module), constant, value)


def asked() -> Side | None:
    """The side that a whole run of the suite takes: `CKPT_TEST_PATHS`."""
    side = os.environ.get("CKPT_TEST_PATHS")
    if side not in (None, "", "fast", "slow"):
        raise ValueError(f"CKPT_TEST_PATHS={side}: fast or slow")
    return "fast" if side == "fast" else "slow" if side == "slow" else None


def _parts(name: str) -> tuple[str, str, str]:
    module, _, constant = name.rpartition(".")
    return name, module, constant
