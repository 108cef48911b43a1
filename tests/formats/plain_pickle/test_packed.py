"""Pickles inside compressed streams, of sizes on both sides of the piece that is read at once."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckpt.errors import CkptError
from ckpt.formats import open
from ckpt.formats.plain_pickle.packed import _STEP

PACKS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("size", [0, 10, _STEP - 200, _STEP, 3 * _STEP + 7])
@pytest.mark.parametrize("is_noise", [False, True], ids=["zeros", "noise"])
@pytest.mark.parametrize("name", PACKS)
def test_arrays_of_all_sizes_are_read(name: str, is_noise: bool, size: int, tmp_path: Path) -> None:
    array = (
        np.random.default_rng(0).integers(0, 256, size, np.uint8) if is_noise else np.zeros(size, np.uint8)
    )
    data = PACKS[name](pickle.dumps({"w": array, "end": 1}, 4))
    (tmp_path / "x.pkl").write_bytes(data)

    with open(str(tmp_path / "x.pkl")) as checkpoint:
        assert [(entry.name, entry.tensor.shape) for entry in checkpoint.tensors] == [("w", (size,))]
        assert checkpoint.traits.label == f"plain pickle ({name})"
    (tmp_path / "x.pkl").write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(CkptError):
        open(str(tmp_path / "x.pkl"))
