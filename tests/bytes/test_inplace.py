"""One descriptor: the file that is looked at is the file that is cut."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from process import SAMPLES

from ckpt import formats
from ckpt.bytes import disk, inplace
from ckpt.bytes.source import Source
from ckpt.commands.rehome.rehome import moves, rehome
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.formats.torch_zip import writer as write
from ckpt.model.errors import CkptError, NotOpenedError, WriteError
from ckpt.model.limits import Limits


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a rewrite to undo."""
    made = tmp_path / "a.pth"
    made.write_bytes((SAMPLES / "train_cuda.pth").read_bytes())
    with formats.open(str(made)) as checkpoint:
        save.append(
            rehome(Survey(checkpoint), moves("cpu", []), Limits()).result, Limits()
        )
    return made


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let something happen between the look and the cut."""
    real = write.end_before

    def end_before(source: Source, limits: Limits) -> int | None:
        end = real(source, limits)
        act()
        return end

    monkeypatch.setattr(write, "end_before", end_before)


def test_a_file_that_takes_its_place_meanwhile_is_not_cut(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = path.read_bytes() + b"more of another"

    def replace() -> None:
        (path.parent / "other").write_bytes(other)
        os.replace(path.parent / "other", path)

    meanwhile(monkeypatch, replace)
    save.undo_rewrite(str(path), Limits())

    assert path.read_bytes() == other


@pytest.mark.parametrize("how", ["grows", "same size"])
def test_a_file_that_changes_meanwhile_is_not_cut(
    how: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.stat()

    def change() -> None:
        with path.open("r+b") as file:
            file.seek(0, os.SEEK_END) if how == "grows" else file.seek(40)
            file.write(b"x")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    meanwhile(monkeypatch, change)
    with pytest.raises(NotOpenedError, match="changed while it was read"):
        save.undo_rewrite(str(path), Limits())

    assert path.stat().st_size == before.st_size + (how == "grows")


def test_it_is_opened_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = os.open

    def once(name: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", once)
    save.undo_rewrite(str(path), Limits())

    assert opened == [str(path)]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_file_that_another_process_rewrites(dry_run: bool, path: Path) -> None:
    before = path.read_bytes()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(WriteError, match="another process is rewriting it"):
            save.undo_rewrite(str(path), Limits(), dry_run=dry_run)
    assert path.read_bytes() == before


def test_while_it_is_undone_nobody_rewrites_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        with path.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (
            formats.open(str(path)) as checkpoint,
            pytest.raises(WriteError, match="another process is rewriting it"),
        ):
            save.append(
                rehome(Survey(checkpoint), moves("xpu:0", []), Limits()).result,
                Limits(),
            )

    meanwhile(monkeypatch, look)
    assert (
        save.undo_rewrite(str(path), Limits()).after
        == (SAMPLES / "train_cuda.pth").stat().st_size
    )


def test_a_name_that_leads_to_another_file_when_it_is_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def replaced(fd: int, how: int) -> None:
        (path.parent / "other").write_bytes(before)
        os.replace(path.parent / "other", path)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(WriteError, match="was replaced while"):
        save.undo_rewrite(str(path), Limits())
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "number"), [("ftruncate", errno.EIO), ("fsync", errno.EIO)]
)
def test_a_cut_that_fails(
    name: str, number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    monkeypatch.setattr(disk, "writes_through", lambda fd: False)

    def refuse(*_: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, name, refuse)
    with pytest.raises(WriteError, match="the disk reports an error"):
        save.undo_rewrite(str(path), Limits())
    assert before.startswith(path.read_bytes())


def test_a_close_that_fails_after_the_cut_is_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.close

    def close(fd: int) -> None:
        real(fd)
        raise OSError(errno.EIO, "late")

    monkeypatch.setattr(os, "close", close)
    undone = save.undo_rewrite(str(path), Limits())
    monkeypatch.undo()

    assert undone.warnings == (
        "closing it failed after it was complete: the disk reports an error",
    )
    assert path.stat().st_size == undone.after


@pytest.mark.parametrize("name", ["missing.pth", "folder", "fifo", "nul\0.pth"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_no_file(dry_run: bool, name: str, path: Path) -> None:
    (path.parent / "folder").mkdir()
    os.mkfifo(path.parent / "fifo")
    with pytest.raises(CkptError) as caught:
        save.undo_rewrite(str(path.parent / name), Limits(), dry_run=dry_run)
    assert "\n" not in str(caught.value)


def test_a_dry_run_needs_no_right_to_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def read_only(name: Any, flags: int, *args: Any) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "no")
        return real(name, flags, *args)

    monkeypatch.setattr(os, "open", read_only)
    assert save.undo_rewrite(str(path), Limits(), dry_run=True).after > 0
    with pytest.raises(WriteError, match="cannot be written: no permission"):
        save.undo_rewrite(str(path), Limits())


def test_an_error_in_the_block_leaves_the_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(CkptError), inplace.locked_file(str(path), to_change=True):
        raise CkptError("not so")
    assert path.read_bytes() == before


def test_a_file_that_is_looked_at_may_be_looked_at_by_others(path: Path) -> None:
    with (
        inplace.locked_file(str(path), to_change=False) as one,
        inplace.locked_file(str(path), to_change=False) as two,
    ):
        assert one.source.size == two.source.size
        with (
            pytest.raises(WriteError, match="another process is rewriting it"),
            inplace.locked_file(str(path), to_change=True),
        ):
            pass


def test_a_file_that_changes_before_it_is_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(fd: int, how: int) -> None:
        with path.open("ab") as other:
            other.write(b"more")

    monkeypatch.setattr(fcntl, "flock", changed)
    with (
        pytest.raises(CkptError, match="changed while it was read"),
        inplace.locked_file(str(path), to_change=False),
    ):
        pass


def test_who_appends_to_a_file_that_was_replaced_is_told_its_path(path: Path) -> None:
    with formats.open(str(path)) as checkpoint:
        plan = rehome(Survey(checkpoint), moves("xpu:0", []), Limits()).result
        (path.parent / "other").write_bytes(path.read_bytes())
        os.replace(path.parent / "other", path)
        with pytest.raises(WriteError, match="was replaced while it was read") as error:
            save.append(plan, Limits())
    assert error.value.path == str(path)
