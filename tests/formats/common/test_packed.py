"""Pickles inside compressed streams, of sizes on both sides of the piece that is read
at once.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from inside import inside
from opcodes import call, glob, pickled
from paths import many

from ckpt.formats import is_checkpoint_file, open
from ckpt.formats.common.packed import _STEP
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits

pytestmark = pytest.mark.needs("pickles")  # which reads what is in the streams

PACKS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [0, 10, _STEP - 200, _STEP, _STEP + 7, many(2, 3) * _STEP + 7]
)
@pytest.mark.parametrize("is_noise", [False, True], ids=["zeros", "noise"])
@pytest.mark.parametrize("name", PACKS)
def test_arrays_of_all_sizes_are_read(
    name: str, is_noise: bool, size: int, tmp_path: Path
) -> None:
    array = (
        np.random.default_rng(0).integers(0, 256, size, np.uint8)
        if is_noise
        else np.zeros(size, np.uint8)
    )
    data = PACKS[name](pickle.dumps({"w": array, "end": 1}, 4))
    (tmp_path / "x.pkl").write_bytes(data)

    with open(str(tmp_path / "x.pkl")) as checkpoint:
        assert [(entry.name, entry.tensor.shape) for entry in checkpoint.tensors] == [
            ("w", (size,))
        ]
        assert checkpoint.traits.label == f"plain pickle ({name})"
    (tmp_path / "x.pkl").write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(CkptError):
        open(str(tmp_path / "x.pkl"))


OPENERS: dict[str, Callable[[Path], Any]] = {
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": lzma.open,
}


@pytest.mark.parametrize("name", OPENERS)
def test_streams_that_follow_each_other_are_one(name: str, tmp_path: Path) -> None:
    """As pbzip2, bgzip and `cat` write them. The second one was passed over, and the
    pickle called damaged.
    """
    path, array = tmp_path / "x.pkl", np.arange(100_000)
    data = pickle.dumps({"w": array}, 2)
    path.write_bytes(
        b"".join(
            PACKS[name](data[at : at + 30_000]) for at in range(0, len(data), 30_000)
        )
    )
    with OPENERS[name](path) as stream:
        assert (pickle.load(stream)["w"] == array).all()

    with open(str(path)) as checkpoint:
        assert [row.tensor.shape for row in checkpoint.tensors] == [(100_000,)]
        assert checkpoint.account.notices == ()


@pytest.mark.parametrize("name", PACKS)
def test_what_follows_a_stream_is_said(name: str, tmp_path: Path) -> None:
    path, data = (
        tmp_path / "x.pkl",
        pickle.dumps({"w": 1, "end": "long enough " * 9}, 2),
    )
    for content, behind, says in (
        (data, b"", []),
        (data + b"more", b"", ["4 bytes follow the pickle"]),
        (
            data + b"more",
            b"\0" * 64,
            ["4 bytes follow the pickle", "64 bytes follow the stream"],
        ),
        (data, b"\0" * 70_000, ["70,000 bytes follow the stream"]),
    ):
        path.write_bytes(PACKS[name](content) + behind)
        with open(str(path)) as checkpoint:
            assert [
                row.message.replace(f"{name} stream", "stream")
                for row in checkpoint.account.notices
            ] == says
            assert {row.code for row in checkpoint.account.notices} <= {"trailing-data"}


@pytest.mark.parametrize(
    "behind", [b"more", b"\0" * 7 + b"more", b"\0" * 12 + b"\x80", b"]\0\0"]
)
@pytest.mark.parametrize("name", PACKS)
def test_bytes_behind_a_stream_that_are_no_stream_are_refused(
    name: str, behind: bytes, tmp_path: Path
) -> None:
    (tmp_path / "x.pkl").write_bytes(PACKS[name](pickle.dumps({"w": 1}, 2)) + behind)
    with pytest.raises(
        CkptError, match=rf"bytes follow the {name} stream, and ckpt cannot tell what"
    ):
        open(str(tmp_path / "x.pkl"))


EVIL, FINE = pickled(call(glob("builtins", "print"), "runs")), pickle.dumps({"a": 1}, 2)


def member(
    data: bytes, flags: int, extra: bytes = b"", sums: bytes | None = None
) -> bytes:
    """A member of gzip with any flags. Python looks neither at the sum of a header nor
    at reserved flags.
    """
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6) + extra
    return (
        head
        + zlib.compress(data)[2:-4]
        + (sums or pack("<II", zlib.crc32(data), len(data)))
    )


def alone(data: bytes, **options: int) -> bytes:
    """A .lzma stream with properties of its own."""
    return lzma.compress(
        data, lzma.FORMAT_ALONE, filters=[{"id": lzma.FILTER_LZMA1, **options}]
    )


def zf(data: bytes, space: bytes = b"") -> bytes:
    """The oldest container of joblib."""
    return b"ZF" + hex(len(data)).encode().ljust(19) + space + zlib.compress(data)


_ODD = b"N" * 200_000 + b"0" * 200_000
EVIL_BEHIND = {
    "a member behind zeros": gzip.compress(FINE) + bytes(100_000) + gzip.compress(EVIL),
    "a member behind one zero": gzip.compress(FINE) + b"\0" + gzip.compress(EVIL),
    "an empty member first": gzip.compress(b"") + bytes(9) + gzip.compress(EVIL),
    "a pickle in two members": gzip.compress(EVIL[:9])
    + bytes(9)
    + gzip.compress(EVIL[9:]),
    "a wrong sum of the header": member(EVIL, 2, b"\x12\x34"),
    "a reserved flag": member(EVIL, 0x20),
    "all flags": member(EVIL, 0xFF, b"\2\0abname\0comment\0\1\2"),
    "a long name": member(EVIL, 8, b"n" * 50_000 + b"\0"),
    "a wrong sum of the content": member(EVIL, 0, b"", bytes(8)),
    "a reserved flag of the second": gzip.compress(FINE) + member(EVIL, 0x20),
    ".lzma behind xz": lzma.compress(FINE) + alone(EVIL),
    ".lzma with other properties behind xz": lzma.compress(FINE)
    + alone(EVIL, lc=0, dict_size=1 << 16),
    "xz behind .lzma": alone(FINE) + lzma.compress(EVIL),
    ".lzma with other properties": alone(EVIL, lc=0, lp=2, dict_size=3 << 15),
    ".lzma behind empty streams of zeros": bytes(18 * 40) + alone(EVIL),
    "xz with a wrong sum": lzma.compress(EVIL[:-1] + _ODD + b".")[:-30] + bytes(30),
    "a small window of zlib": (lambda c: c.compress(EVIL) + c.flush())(
        zlib.compressobj(6, 8, 9)
    ),
    "ZF": zf(EVIL),
    "ZF of Python 2": zf(EVIL, b" "),
}


@pytest.mark.parametrize("kind", EVIL_BEHIND)
def test_a_pickle_in_any_stream_is_judged(kind: str, tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(EVIL_BEHIND[kind])
    for words in (
        ("inspect", "x.pkl", "--fail-on", "called-on-load"),
        ("lint", "--skip-others", "--", "x.pkl"),
    ):
        done = inside(*words, cwd=tmp_path)
        is_damaged = "wrong sum" in kind and "header" not in kind
        assert done.code == (2 if is_damaged else 1), done
        assert is_damaged or b"builtins.print('runs')" in done.out, done


@pytest.mark.parametrize("name", OPENERS)
def test_what_python_reads_of_streams_with_zeros_is_judged(
    name: str, tmp_path: Path
) -> None:
    """The same file for Python's module and for ckpt, over gaps of many sizes."""
    path = tmp_path / "x.pkl"
    for gap in (0, 1, 4, 13, 18, 36, 4_096, 5_000):
        path.write_bytes(PACKS[name](FINE) + bytes(gap) + PACKS[name](EVIL))
        with OPENERS[name](path) as stream:
            is_read = EVIL in stream.read()
        done = inside("inspect", "x.pkl", "--fail-on", "called-on-load", cwd=tmp_path)
        assert done.code == (1 if is_read else 2), (gap, done)


def test_zeros_are_no_stream(tmp_path: Path) -> None:
    """Eighteen zeros are an empty .lzma stream, and an unfinished write is many of
    them.
    """
    for size in (18, 4_096, 5 << 20):
        (tmp_path / "x").write_bytes(bytes(size))
        assert not is_checkpoint_file(str(tmp_path / "x"), Limits())


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 300, 60_000])
def test_a_pickle_behind_empty_streams_is_found(count: int, tmp_path: Path) -> None:
    data = gzip.compress(b"") * count + gzip.compress(pickle.dumps({"w": 1}, 2))
    (tmp_path / "x").write_bytes(data)
    assert is_checkpoint_file(str(tmp_path / "x"), Limits())
    with open(str(tmp_path / "x")) as checkpoint:
        assert checkpoint.traits.label == "plain pickle (gzip)"


@pytest.mark.slow
def test_too_many_empty_streams_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(gzip.compress(b"") * 100_001)
    with pytest.raises(CkptError, match="over 100,000 gzip streams"):
        open(str(tmp_path / "x.pkl"))
