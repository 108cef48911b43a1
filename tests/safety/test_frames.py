"""Frames of pickles that Python's unpicklers refuse, or read in two ways: each reader
of pickles finds them.
"""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import frameworks_dcp
import pytest
import torch
from opcodes import legacy, torch_zip
from process import ckpt

from ckpt.surface.cli.inputs import TROUBLE

_HEAD = 11
"""Bytes of PROTO and of the first FRAME."""


def framed(*frames: tuple[bytes, int], after: bytes = b"") -> bytes:
    """A pickle of frames, each of which says that it is some bytes longer than
    it is.
    """
    parts = [
        b"\x95" + struct.pack("<Q", len(data) + more) + data for data, more in frames
    ]
    return b"\x80\x04" + b"".join(parts) + after


def _long(bare: bytes) -> bytes:
    return framed((bare, 100))


def _torn(bare: bytes) -> bytes:
    """A text of which the frame holds the first byte, thrown away before the value."""
    return framed((b"\x8c\x05a", 0), after=b"bcde0" + bare)


def _inside(bare: bytes) -> bytes:
    return framed((b"N0\x95" + struct.pack("<Q", 2) + b"N0", 0), after=bare)


BROKEN: list[Callable[[bytes], bytes]] = [_long, _torn, _inside]


def bare(value: object) -> bytes:
    """A value as opcodes, without PROTO and FRAME."""
    data = pickle.dumps(value, 4)
    assert data[2] == 0x95 and data.count(b"\x95") == 1
    return data[_HEAD:]


def check_damaged(path: Path, says: str = "damaged") -> None:
    done = ckpt("verify", path)
    assert done.code == 1 and says.encode() in done.out + done.err, done
    assert ckpt("lint", path, "--level", "error").code == TROUBLE


@pytest.mark.parametrize("breaks", BROKEN)
def test_one_of_the_unpicklers_refuses_it(breaks: Callable[[bytes], bytes]) -> None:
    data = breaks(bare({"a": 1}))
    failed = 0
    for load in (pickle.loads, pickle._loads):  # type: ignore[attr-defined]
        try:
            load(data)
        except Exception:
            failed += 1
    assert failed


@pytest.mark.needs("pickles")
@pytest.mark.parametrize("breaks", BROKEN)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_plain_pickle(
    breaks: Callable[[bytes], bytes], pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pack(breaks(bare({"a": 1}))))

    check_damaged(path)


@pytest.mark.needs("pickles")
@pytest.mark.parametrize("breaks", BROKEN)
def test_long_bytes_that_are_cut_out_of_a_plain_pickle(
    breaks: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(breaks(bare({"a": b"x" * 1_000})))

    check_damaged(path)


@pytest.mark.needs("pickles")
def test_a_frame_that_holds_the_beginning_of_long_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(
        framed(
            (b"B" + struct.pack("<I", 1_000) + b"x" * 500, 0), after=b"x" * 500 + b"."
        )
    )

    check_damaged(path)


@pytest.mark.needs("pickles")
def test_what_the_damaged_pickle_imports_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    for breaks in BROKEN:
        path.write_bytes(breaks(b"cposix\nsystem\n\x8c\x04true\x85R."))

        assert "posix.system" in ckpt("inspect", path).err.decode(), breaks


@pytest.mark.parametrize("breaks", BROKEN)
def test_the_pickle_of_an_archive(
    breaks: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(breaks(bare({"a": 1}))))

    check_damaged(path)


@pytest.mark.parametrize("breaks", BROKEN)
def test_a_legacy_file(breaks: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(legacy(breaks(bare({"a": 1})), {}))

    check_damaged(path)


@pytest.mark.parametrize("breaks", BROKEN)
def test_the_metadata_of_a_distributed_checkpoint(
    breaks: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    folder = frameworks_dcp.save(tmp_path / "d", {"model": {"w": torch.ones(4)}})
    data = (folder / ".metadata").read_bytes()
    assert ckpt("verify", folder).code == 0
    (folder / ".metadata").write_bytes(breaks(data[_HEAD:]))

    check_damaged(folder)
