"""The disk begins early with large files. Nothing depends on it, and a system without
the call is left alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt.bytes import target
from ckpt.bytes.source import File


@pytest.mark.parametrize("kernel", [True, False])
def test_what_was_written_is_begun_once_and_in_order(
    kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(target, "_EARLY", 300)
    monkeypatch.setattr(target, "_SMALL", 16)
    monkeypatch.setattr(target, "_KERNEL_COPY", 128)
    monkeypatch.setattr(
        target, "begin_writeback", lambda fd, at, count: begun.append((at, count))
    )
    (tmp_path / "in").write_bytes(bytes(1000))
    source = File(str(tmp_path / "in"))
    with target.writing_file(
        target.target(str(tmp_path / "out"), force=False), 1000
    ) as sink:
        for at in range(0, 1000, 250):
            if kernel:
                sink.copy(source, at, 250)
            else:
                sink.write(bytes(250))
    source.close()
    assert begun[0] == (0, 378 if kernel else 500)
    assert [at for at, _ in begun] == [0, *(at + count for at, count in begun)][:-1]
    assert all(count >= 300 for _, count in begun) and sum(begun[-1]) > 700


def test_a_small_file_is_left_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "begin_writeback", lambda *_: pytest.fail("begun"))
    with target.writing_file(
        target.target(str(tmp_path / "out"), force=False), 1 << 20
    ) as sink:
        sink.write(bytes(1 << 20))


@pytest.mark.skipif(
    not hasattr(os, "posix_fadvise"), reason="the system has no such call"
)
def test_the_system_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, int]] = []
    real = os.posix_fadvise

    def advise(fd: int, offset: int, count: int, advice: int) -> None:
        real(fd, offset, count, advice)
        told.append((offset, count, advice))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    with (tmp_path / "x").open("wb") as file:
        target.begin_writeback(file.fileno(), 1 << 32, 4096)
    assert told == [(1 << 32, 4096, os.POSIX_FADV_DONTNEED)]
    target.begin_writeback(-1, 0, 1)  # a failure is no problem: fsync comes
    assert len(told) == 1


def test_a_system_without_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    target.begin_writeback(-1, 0, 1)
