"""Pickles inside compressed streams, of sizes on both sides of the piece that is read at once."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import many

from ckpt.errors import CkptError
from ckpt.formats import open, recognises
from ckpt.formats.plain_pickle.packed import _STEP
from ckpt.limits import Limits

PACKS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("size", [0, 10, _STEP - 200, _STEP, _STEP + 7, many(2, 3) * _STEP + 7])
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


OPENERS: dict[str, Callable[[Path], Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}


@pytest.mark.parametrize("name", OPENERS)
def test_streams_that_follow_each_other_are_one(name: str, tmp_path: Path) -> None:
    """As pbzip2, bgzip and `cat` write them. The second one was passed over, and the pickle called damaged."""
    path, array = tmp_path / "x.pkl", np.arange(100_000)
    data = pickle.dumps({"w": array}, 2)
    path.write_bytes(b"".join(PACKS[name](data[at : at + 30_000]) for at in range(0, len(data), 30_000)))
    with OPENERS[name](path) as stream:
        assert (pickle.load(stream)["w"] == array).all()

    with open(str(path)) as checkpoint:
        assert [row.tensor.shape for row in checkpoint.tensors] == [(100_000,)]
        assert checkpoint.notices == ()


@pytest.mark.parametrize("name", PACKS)
def test_what_follows_a_stream_is_said(name: str, tmp_path: Path) -> None:
    path, data = tmp_path / "x.pkl", pickle.dumps({"w": 1, "end": "long enough " * 9}, 2)
    for inside, behind, says in (
        (data, b"", []),
        (data, b"more", ["4 bytes follow the stream"]),
        (data + b"more", b"", ["4 bytes follow the pickle"]),
        (data + b"more", b"\0" * 64, ["4 bytes follow the pickle", "64 bytes follow the stream"]),
    ):
        path.write_bytes(PACKS[name](inside) + behind)
        with open(str(path)) as checkpoint:
            assert [row.message.replace(f"{name} stream", "stream") for row in checkpoint.notices] == says
            assert {row.code for row in checkpoint.notices} <= {"trailing-data"}


@pytest.mark.parametrize("count", [1, 300, 60_000])
def test_a_pickle_behind_empty_streams_is_found(count: int, tmp_path: Path) -> None:
    data = gzip.compress(b"") * count + gzip.compress(pickle.dumps({"w": 1}, 2))
    (tmp_path / "x").write_bytes(data)
    assert recognises(str(tmp_path / "x"), Limits())
    with open(str(tmp_path / "x")) as checkpoint:
        assert checkpoint.traits.label == "plain pickle (gzip)"


def test_too_many_empty_streams_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(gzip.compress(b"") * 100_001)
    with pytest.raises(CkptError, match="over 100,000 gzip streams"):
        open(str(tmp_path / "x.pkl"))
