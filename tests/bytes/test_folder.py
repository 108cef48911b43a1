"""A folder appears whole or not at all, and the one that it replaces stays
until then.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import kills
import pytest
import torch
from process import TIMEOUT, as_nobody, check_error, ckpt, environment

from ckpt.bytes import target as io_target
from ckpt.bytes.source import File
from ckpt.model.errors import CkptError, UsageError, WriteError

ERRORS = (errno.ENOSPC, errno.EIO)
CALLS = (
    "mkdir",
    "open",
    "pwrite",
    "posix_fallocate",
    "fsync",
    "rename",
    "unlink",
    "rmdir",
    "listdir",
)


def belongs(name: str) -> bool:
    return name.startswith("part") and not name.endswith("/")


def target(path: Path, *, force: bool = False) -> io_target.Target:
    return io_target.folder_target(str(path), belongs, force=force)


def write(to: io_target.Target, **files: bytes) -> io_target.FolderSink:
    with io_target.writing_folder(to, sum(map(len, files.values())), belongs) as sink:
        for name, data in files.items():
            with sink.file(name, len(data)) as inner:
                inner.write(data)
    return sink


def content(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    (made / "part1").write_bytes(b"old")
    (made / "part9").write_bytes(b"old too")
    return made


OLD = {"part1": b"old", "part9": b"old too"}
NEW = {"part1": b"new", "part2": b"x" * 100_000}


def test_a_new_folder_holds_what_was_written(tmp_path: Path) -> None:
    sink = write(target(tmp_path / "out"), **NEW)
    assert sink.is_placed and not sink.warnings
    assert content(tmp_path / "out") == NEW
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("kernel", [True, False], ids=["renameat2", "two renames"])
def test_a_folder_is_swapped(
    kernel: bool, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(io_target, "rename_with_flags", lambda *_: False)
    old.chmod(0o750)
    sink = write(target(old, force=True), **NEW)
    assert content(old) == NEW and not sink.warnings
    assert os.listdir(old.parent) == ["out"]
    assert stat.S_IMODE(old.stat().st_mode) == 0o750
    assert (
        not (old / "part1").stat().st_mode & 0o007
    )  # who could not read the old one cannot read this


@pytest.mark.parametrize("kernel", [True, False], ids=["renameat2", "mkdir"])
@pytest.mark.parametrize("what", ["file", "folder", "empty folder"])
def test_what_appears_in_the_last_moment_is_not_replaced(
    what: str, kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(io_target, "rename_with_flags", lambda *_: False)
    out = tmp_path / "out"
    with (
        pytest.raises(UsageError, match="exists"),
        io_target.writing_folder(target(out), 3, belongs) as sink,
        sink.file("part1", 3) as inner,
    ):
        inner.write(b"new")
        if what == "file":
            out.write_bytes(b"mine")
        else:
            out.mkdir()
            if what == "folder":
                (out / "mine").touch()
    assert os.listdir(tmp_path) == ["out"]
    assert (
        out.read_bytes() == b"mine" if out.is_file() else "part1" not in os.listdir(out)
    )


def test_a_folder_with_other_files_is_not_replaced(old: Path) -> None:
    for make in (
        lambda: (old / "notes.txt").touch(),
        lambda: (old / "part.d").mkdir(),
        lambda: (old / "part.link").symlink_to("part1"),
    ):
        make()
        with pytest.raises(UsageError, match="no part of a checkpoint") as error:
            target(old, force=True)
        (other,) = set(os.listdir(old)) - set(OLD)
        assert other in str(error.value)
        path = old / other
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    with pytest.raises(UsageError, match="exists"):
        target(old)
    with pytest.raises(UsageError, match="a file, and the result is a folder"):
        target(old / "part1", force=True)
    with pytest.raises(WriteError, match="no such folder"):
        target(old / "no" / "out")


def test_what_somebody_put_there_meanwhile_is_kept(old: Path) -> None:
    to = target(old, force=True)
    with io_target.writing_folder(to, 3, belongs) as sink:
        with sink.file("part1", 3) as inner:
            inner.write(b"new")
        (old / "notes.txt").write_text("mine")
    assert content(old) == {"part1": b"new"}
    (kept,) = [path for path in old.parent.iterdir() if path != old]
    assert (kept / "notes.txt").read_text() == "mine"
    (warning,) = sink.warnings
    assert str(kept) in warning and "changed meanwhile" in warning


def failing(patch: pytest.MonkeyPatch, name: str, nth: int, number: int) -> list[int]:
    calls = [0]
    real = getattr(os, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth:
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    patch.setattr(os, name, call)
    return calls


@pytest.mark.parametrize("way", ["new", "swap", "two renames"])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_that_fails_leaves_the_old_or_the_new(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "two renames":
        monkeypatch.setattr(io_target, "rename_with_flags", lambda *_: False)
    for number in ERRORS:
        for nth in range(1, 20):
            place = tmp_path / f"{number}.{nth}"
            place.mkdir()
            out = place / "out"
            if way != "new":
                out.mkdir()
                for file, data in OLD.items():
                    (out / file).write_bytes(data)
            to = target(out, force=way != "new")
            error = None
            with monkeypatch.context() as patch:
                calls = failing(patch, name, nth, number)
                try:
                    write(to, **NEW)
                except CkptError as caught:
                    error = caught
            if calls[0] < nth:
                assert error is None
                break
            found = content(out) if out.exists() else None
            if found == NEW:
                continue
            assert found == (None if way == "new" else OLD), (nth, found)
            assert error is not None and error.path == str(out)
            left = [path for path in place.iterdir() if path != out]
            if left:  # it was complete, or could not be removed
                assert (
                    error.hint is not None and str(left[0]) in error.hint
                ) or name in ("unlink", "rmdir")
        else:
            raise AssertionError("it never came to its end")


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_interrupted_run_leaves_nothing(
    problem: type[BaseException], old: Path
) -> None:
    with (
        pytest.raises(problem),
        io_target.writing_folder(target(old, force=True), 6, belongs) as sink,
    ):
        with sink.file("part1", 3) as inner:
            inner.write(b"new")
        with sink.file("part2", 3) as inner:
            inner.write(b"n")
            raise problem
    assert content(old) == OLD and os.listdir(old.parent) == ["out"]


def test_a_folder_of_a_killed_run_is_named_and_one_in_use_is_not(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    left = tmp_path / f".out.0123456789ab{io_target.SUFFIX}"
    left.mkdir()
    (left / "part1").write_bytes(b"abc")
    with io_target.writing_folder(target(out), 3, belongs) as sink:
        with sink.file("part1", 3) as inner:
            inner.write(b"new")
        assert io_target.left_over(str(out)) == [(str(left), 3)]
    assert io_target.left_over(str(out)) == [(str(left), 3)]


@pytest.mark.parametrize("is_link", [True, False], ids=["link", "folder"])
def test_what_took_the_name_of_a_temporary_folder_stays(
    is_link: bool, tmp_path: Path
) -> None:
    """If others may write too, they may rename folders that are not theirs."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "part1").write_bytes(b"years of work")
    with (
        pytest.raises(WriteError),
        io_target.writing_folder(target(tmp_path / "out"), 3, belongs) as sink,
    ):
        os.rename(sink.path, tmp_path / "aside")
        if is_link:
            os.symlink(theirs, sink.path)
        else:
            os.rename(theirs, sink.path)
        raise OSError(errno.EIO, "now it is removed")
    kept = theirs if is_link else Path(sink.path)
    assert (kept / "part1").read_bytes() == b"years of work"


def test_a_link_that_comes_while_a_replaced_folder_is_removed_is_not_followed(
    tmp_path: Path,
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "part1").write_bytes(b"years of work")
    old = tmp_path / "old"
    (old / "inner").mkdir(parents=True)
    status = old.stat()
    real = os.open

    def swap(path: Any, *args: Any, **more: Any) -> int:
        # Between the look at a folder and its opening.
        if path == "inner":
            os.rmdir(old / "inner")
            os.symlink(theirs, old / "inner")
        return real(path, *args, **more)

    with mock.patch("os.open", swap):
        problems = io_target.removed_folder(str(old), status)
    assert len(problems) == 1 and (theirs / "part1").exists()


def test_clones_and_links_hold_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(bytes(range(256)) * 1000)
    source = File(str(path))
    with io_target.writing_folder(target(tmp_path / "out"), 0, belongs) as sink:
        sink.clone("part1", source)
        sink.link("part2", source)
    made = tmp_path / "out"
    assert (
        (made / "part1").read_bytes()
        == (made / "part2").read_bytes()
        == path.read_bytes()
    )
    assert (made / "part2").samefile(path) and not (made / "part1").samefile(path)
    path.unlink()
    path.write_bytes(b"another file")
    with (
        pytest.raises(WriteError, match="replaced while it was read"),
        io_target.writing_folder(target(tmp_path / "other"), 0, belongs) as sink,
    ):
        sink.link("part1", source)
    assert not (tmp_path / "other").exists()


# --- the command ----------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    torch.save(
        {"model": {"a": torch.arange(6.0).reshape(3, 2), "b": torch.ones(2)}, "n": 1},
        made / "in.pth",
    )
    return made


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True], ids=["new", "over an old one"])
def test_killed_at_every_event(force: bool, work: Path, killer: kills.Killer) -> None:
    arguments = [
        "convert",
        "in.pth",
        "-o",
        "out.dcp",
        "--ranks",
        "2",
        *(["--force"] if force else []),
    ]
    out = work / "out.dcp"
    assert ckpt("convert", "in.pth", "-o", "out.dcp", cwd=work).code == 0
    before = content(out)
    assert ckpt(*arguments, "--force", cwd=work).code == 0
    after = content(out)
    assert before != after
    killed = 0
    for ran in killer.at_events(*arguments, cwd=work):
        killed += ran.was_killed
        found = content(out) if out.exists() else None
        assert found in (after, before if force else None), killed
        left = [path for path in work.iterdir() if path.name.endswith(io_target.SUFFIX)]
        assert len(left) <= 1
        for each in [*left, out]:
            if each.exists() and (each is not out or not force):
                io_target.removed_folder(str(each), each.stat())
    assert killed > 8


@pytest.mark.needs("dcp")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_signals_clean_up(number: int, code: int, work: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from ckpt.bytes import target\n"
        "from ckpt.surface.cli import app\nfrom ckpt.commands import convert\n"
        "real, calls = os.fsync, []\n"
        "def fsync(fd):\n"
        "    calls.append(fd)\n"
        "    if len(calls) == 2:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "    real(fd)\n"
        "os.fsync = fsync\n"
        "app.main()\n"
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            "convert",
            "in.pth",
            "-o",
            "out.dcp",
            "--ranks",
            "3",
        ],
        cwd=work,
        env=environment(),
        capture_output=True,
        timeout=TIMEOUT,
    )
    assert ran.returncode == code and ran.stderr.count(b"\n") == 1
    assert os.listdir(work) == ["in.pth"]


def test_a_read_only_folder_is_left_alone(work: Path) -> None:
    (work / "in.pth").chmod(0o644)
    work.chmod(0o755)
    done = as_nobody("convert", "in.pth", "-o", "out.dcp", cwd=work)
    check_error(done, "no permission")
    assert os.listdir(work) == ["in.pth"]


def test_the_folders_above_a_target_are_made(tmp_path: Path) -> None:
    to = io_target.Target("new/deep/out", str(tmp_path / "new" / "deep" / "out"), None)
    io_target.make_parents(to)
    io_target.make_parents(to)
    assert (tmp_path / "new" / "deep").is_dir() and os.listdir(
        tmp_path / "new" / "deep"
    ) == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="file/x: the folder cannot be made"):
        io_target.make_parents(
            io_target.Target("file/x/out", str(tmp_path / "file" / "x" / "out"), None)
        )


def test_a_folder_whose_rename_fails_is_kept_and_its_name_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without renameat2 the name is claimed first: nothing may stand there as if it
    were the checkpoint.
    """
    monkeypatch.setattr(io_target, "rename_with_flags", lambda *_: False)
    monkeypatch.setattr(os, "rename", mock.Mock(side_effect=OSError(errno.EIO, "x")))
    with pytest.raises(WriteError, match="cannot be put in place") as error:
        write(target(tmp_path / "out"), **NEW)
    (kept,) = tmp_path.iterdir()
    assert (
        content(kept) == NEW
        and str(error.value.hint) == f"the complete checkpoint is at {kept}"
    )


def test_a_folder_that_is_placed_and_not_on_the_disk_is_called_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        io_target, "sync_folder", mock.Mock(side_effect=OSError(errno.EIO, "x"))
    )
    with pytest.raises(
        WriteError, match="complete, but it may not survive a power loss"
    ):
        write(target(tmp_path / "out"), **NEW)
    assert content(tmp_path / "out") == NEW
