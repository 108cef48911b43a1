"""What only some systems have is taken away: everything works, with the same result."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from inside import inside
from process import SAMPLES, Done

from ckpt.bytes import source
from ckpt.bytes import target as io_target
from ckpt.bytes.target import target, writing_file

LACKING = (
    "posix_fallocate",
    "copy_file_range",
    "preadv",
    "preadv2",
    "pwritev",
    "pwritev2",
    "sched_getaffinity",
)
"""What Python on macOS lacks, of any version."""
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("inspect", "in.pth", "--json"),
    ("stats", "in.pth", "--tsv"),
    ("diff", "in.pth", "in.pth"),
    ("lint", ".", "--read-values"),
    ("verify", "in.pth"),
    ("sum", "in.pth", "--all"),
    ("rehome", "in.pth", "-o", "out.pth"),
    ("strip", "in.pth", "-o", "out.strip.pth"),
    ("convert", "in.pth", "-o", "out.safetensors", "--drop-other"),
    ("convert", "in.pth", "--shard-size", "8KB", "-o", "shards", "--drop-other"),
    (
        "convert",
        "in.pth",
        "--format",
        "torch-legacy",
        "--dtype",
        "float16",
        "-o",
        "out.legacy.pth",
    ),
    ("warmstart", "in.pth", "--into", "in.pth", "-o", "out.warm.pth"),
    ("average", "in.pth", "in.pth", "--ratios", "1,2", "-o", "out.mean.pth"),
    ("rehome", "out.warm.pth", "--in-place", "--to", "cuda:3"),
)


def results(folder: Path) -> list[tuple[Done, dict[str, bytes]]]:
    """What each command says, and the files that it leaves."""
    folder.mkdir()
    (folder / "shards").mkdir()
    (folder / "in.pth").write_bytes((SAMPLES / "train_cuda.pth").read_bytes())
    found = []
    for arguments in COMMANDS:
        done = inside(*arguments, cwd=folder)
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*.*")
        }
        found.append((done, files))
    return found


def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LACKING:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.delattr(fcntl, "flock")
    monkeypatch.setattr(io_target, "NOFOLLOW", 0)
    monkeypatch.setattr(io_target, "_SMALL", 16)
    monkeypatch.setattr(source, "MOST", 1000)
    monkeypatch.setattr(io_target, "MOST", 1000)


def test_every_command_works_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_all = results(tmp_path / "all")
    take_away(monkeypatch)
    with_less = results(tmp_path / "less")
    for arguments, one, other in zip(COMMANDS, with_all, with_less, strict=True):
        assert one == other, arguments
        assert one[0].code in (0, 1), one[0]
    assert len(with_all[-1][1]) > 6


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch)
    to = target(str(tmp_path / "x"), force=False)
    with (
        pytest.raises(io_target.WriteError, match="the disk is full"),
        writing_file(to, 1 << 60),
    ):
        pytest.fail("nothing is written")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with writing_file(target(str(tmp_path / "x"), force=False), 3) as sink:
        sink.write(b"abc")
    assert (tmp_path / "x").read_bytes() == b"abc"
