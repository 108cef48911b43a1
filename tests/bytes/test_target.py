"""Nothing is lost: every call that fails, every kill, a full disk; in place and into a
new file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import kills
import pytest
import torch
from inside import inside
from process import (
    ROOT,
    TIMEOUT,
    Done,
    as_nobody,
    check_error,
    ckpt,
    environment,
    python,
)

from ckpt import formats
from ckpt.bytes import disk, inplace, target
from ckpt.bytes.source import File, Memory
from ckpt.commands.rehome.rehome import moves, rehome
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.formats.common import appended
from ckpt.model.errors import CkptError, UsageError, WriteError
from ckpt.model.limits import Limits
from ckpt.surface.cli import app, output

SAMPLE = ROOT / "sample_checkpoints" / "train_cuda.pth"
CALLS = (
    "open",
    "pwrite",
    "pwritev",
    "copy_file_range",
    "posix_fallocate",
    "fsync",
    "link",
    "replace",
    "unlink",
    "fchmod",
    "ftruncate",
    "close",
)
ERRORS = [errno.ENOSPC, errno.EINTR]
ERRORS += [
    pytest.param(number, marks=pytest.mark.slow)
    for number in (errno.EIO, errno.EROFS, errno.EDQUOT)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "in.pth").write_bytes(SAMPLE.read_bytes())
    return made


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def into_new(folder: Path) -> None:
    """Write a new file beside the source."""
    with formats.open(str(folder / "in.pth")) as checkpoint:
        report = rehome(Survey(checkpoint), moves("cpu", []), Limits())
        save.save_checkpoint(
            report.result,
            target.target(str(folder / "out.pth"), force=True),
            "torch-zip",
            Limits(),
        )


def in_place(folder: Path) -> None:
    """Append to the source."""
    with formats.open(str(folder / "in.pth")) as checkpoint:
        save.append(
            rehome(Survey(checkpoint), moves("cpu", []), Limits()).result, Limits()
        )


def over_itself(folder: Path) -> None:
    """Replace the source."""
    with formats.open(str(folder / "in.pth")) as checkpoint:
        report = rehome(Survey(checkpoint), moves("cpu", []), Limits())
        save.save_checkpoint(
            report.result,
            target.target(str(folder / "in.pth"), force=True),
            "torch-zip",
            Limits(),
        )


def as_a_whole(folder: Path) -> None:
    """Append to the source where only the whole file can be forced to the disk."""
    with mock.patch.object(disk, "writes_through", lambda fd: False):
        in_place(folder)


def write_by_write(folder: Path) -> None:
    """Append to the source where each write can be forced to the disk by itself."""
    with mock.patch.object(disk, "writes_through", lambda fd: True):
        in_place(folder)


WAYS: dict[str, Callable[[Path], None]] = {
    "new": into_new,
    "in place": as_a_whole,
    "in place, write by write": write_by_write,
    "over itself": over_itself,
}


class Failing:
    """Counts calls of the operating system below one folder, and lets the Nth of them
    fail.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, number: int
    ) -> None:
        self.calls = 0
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if (
                name == "open"
                and not str(args[0]).endswith(target.SUFFIX)
                and not args[1] & os.O_RDWR
            ):
                return real(*args, **kwargs)  # of the reader
            self.calls += 1
            if self.calls == nth:
                if name == "close":
                    real(
                        *args, **kwargs
                    )  # a failing close gives the descriptor back all the same
                raise OSError(number, os.strerror(number))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)


@pytest.mark.slow
@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_every_call_that_fails_leaves_the_old_or_the_new(
    name: str, way: str, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's way: the first call fails, then the second, until all went well."""
    done = WAYS[way]
    source = folder / "in.pth"
    out = folder / "out.pth"
    out.write_bytes(b"what was there before")
    clean = folder / "clean"
    clean.mkdir()
    (clean / "in.pth").write_bytes(source.read_bytes())
    done(clean)
    before = {path.name: digest(path) for path in (source, out)}
    after = {
        path.name: digest(clean / path.name)
        for path in (source, out)
        if (clean / path.name).exists()
    }
    for nth in range(1, 30):
        with monkeypatch.context() as patch:
            failing = Failing(patch, name, nth, number)
            try:
                done(folder)
                failed = False
            except CkptError as error:
                failed = True
                assert "\n" not in str(error) and error.path is not None
        found = {path.name: digest(path) for path in (source, out)}
        for file, now in found.items():
            assert now in (before[file], after.get(file)), (name, nth, file)
        if failed and name not in ("close", "unlink") and found != before:
            assert (
                failing.calls >= nth
            )  # only what comes after the rename may fail with the new one there
            assert name == "fsync" or name == "open"
        left = [
            path.name for path in folder.iterdir() if path.name.endswith(target.SUFFIX)
        ]
        # What cannot be put in place is kept and named; what cannot be removed is left.
        assert left == [] or name in ("unlink", "replace", "link"), (name, nth)
        for path in left:
            (folder / path).unlink()
        source.write_bytes(SAMPLE.read_bytes())
        out.write_bytes(b"what was there before")
        if not failed and failing.calls < nth:
            break
    else:
        pytest.fail(f"{name} is called over 30 times")


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The calls that matter for what is on the disk after a crash, in order, each with
    its file.
    """
    seen: list[tuple[str, str]] = []

    def watch(name: str, of: Callable[..., str]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append((name, of(*args)))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    def path_of(fd: int, *_: Any) -> str:
        return Path(os.readlink(f"/proc/self/fd/{fd}")).name

    watch("fsync", path_of)
    watch("ftruncate", path_of)
    watch("pwrite", path_of)
    watch("link", lambda a, b: Path(b).name)
    watch("replace", lambda a, b: Path(b).name)
    return seen


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_file_is_on_the_disk_before_it_has_its_name(
    exists: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exists:
        (folder / "out.pth").write_bytes(b"old")
    with monkeypatch.context() as patch:
        seen = recorded(patch)
        into_new(folder)

    names = [name for name, _ in seen]
    put = names.index("replace" if exists else "link")
    last_write = max(i for i, name in enumerate(names) if name == "pwrite")
    assert last_write < names.index("fsync") < put < len(names) - 1
    assert seen[-1] == ("fsync", "work"), "the folder, last"


def test_in_place_the_pickle_is_on_the_disk_before_the_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        seen = recorded(patch)
        as_a_whole(folder)

    assert [name for name, _ in seen] == ["pwrite", "fsync", "pwrite", "fsync"]


def test_undo_is_on_the_disk_when_it_is_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place(folder)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "writes_through", lambda fd: False)
        seen = recorded(patch)
        save.undo_rewrite(str(folder / "in.pth"), Limits())

    assert [name for name, _ in seen] == ["ftruncate", "fsync"]


def test_an_appended_end_that_fails_is_cut_off_on_the_disk_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = File(str(folder / "in.pth"))
    with monkeypatch.context() as patch:
        patch.setattr(disk, "writes_through", lambda fd: False)
        seen = recorded(patch)
        with (
            pytest.raises(WriteError, match="not so"),
            inplace.appending_sink(source) as sink,
        ):
            sink.write(b"new")
            sink.flush()
            raise WriteError("not so")
    source.close()

    assert [name for name, _ in seen] == ["pwrite", "ftruncate", "fsync"]
    assert digest(folder / "in.pth") == digest(SAMPLE)


# --- kills ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killer() -> Iterator[kills.Killer]:
    with kills.Killer() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_killed_at_every_event_a_new_file_is_whole_or_absent(
    links: bool, folder: Path, killer: kills.Killer
) -> None:
    """Also where the file system has no hard links."""
    source = digest(folder / "in.pth")
    into_new(folder)
    whole = digest(folder / "out.pth")
    (folder / "out.pth").unlink()
    killed = 0
    for ran in killer.at_events(
        "rehome", "in.pth", "-o", "out.pth", cwd=folder, links=links
    ):
        killed += ran.was_killed
        assert digest(folder / "in.pth") == source
        out = folder / "out.pth"
        assert not out.exists() or digest(out) == whole
        left = [path for path in folder.iterdir() if path.name.endswith(target.SUFFIX)]
        assert len(left) <= 1
        for path in [*left, *([out] if out.exists() else [])]:
            path.unlink()
    assert killed > 5


@pytest.mark.parametrize("through", [False, True], ids=["as a whole", "write by write"])
def test_killed_at_every_event_in_place_undo_gives_the_old_file_back(
    through: bool, folder: Path, killer: kills.Killer
) -> None:
    source = folder / "in.pth"
    old = source.read_bytes()
    interrupted = finished = 0
    for _ in killer.at_events(
        "rehome", "in.pth", "--in-place", cwd=folder, through=through
    ):
        now = source.read_bytes()
        assert now.startswith(old)
        try:
            formats.open(str(source)).close()
            finished += now != old
        except CkptError as error:
            interrupted += 1
            text = (
                f"an in-place rewrite was interrupted, the first {len(old):,} bytes "
                "are intact, and "
            )
            assert text in str(
                error
            ) and f"(ckpt rehome --undo --dry-run {source})" in str(error)
        if now != old:
            assert save.undo_rewrite(str(source), Limits()) == (len(now), len(old), ())
        assert source.read_bytes() == old
    assert interrupted >= 3 and finished >= 1


@pytest.mark.parametrize("through", [False, True], ids=["as a whole", "write by write"])
def test_killed_at_every_event_undo_has_cut_or_not(
    through: bool, folder: Path, killer: kills.Killer
) -> None:
    source = folder / "in.pth"
    old = source.read_bytes()
    in_place(folder)
    new = source.read_bytes()
    states = []
    for _ in killer.at_events(
        "rehome", "--undo", "in.pth", cwd=folder, through=through
    ):
        states.append(source.read_bytes())
        assert states[-1] in (old, new)
        source.write_bytes(new)
    assert states[0] == new and states[-1] == old and len(states) > 2


@pytest.mark.parametrize("cut", [1, 3, 4, 10, 100, -1, -21, -22, -23, -60, -200])
def test_every_cut_of_an_appended_end_is_told(cut: int, folder: Path) -> None:
    source = folder / "in.pth"
    old = source.read_bytes()
    in_place(folder)
    new = source.read_bytes()
    source.write_bytes(new[: len(old) + cut] if cut > 0 else new[:cut])

    check_error(
        ckpt("inspect", "in.pth", cwd=folder), "an in-place rewrite was interrupted"
    )
    assert ckpt("rehome", "--undo", "in.pth", cwd=folder).code == 0
    assert source.read_bytes() == old


@pytest.mark.slow
@pytest.mark.parametrize("step", [23, 64, 100, 1 << 20])
def test_an_interrupted_end_is_found_wherever_it_lies(
    step: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the archive before may lie in two of the blocks in which it is looked
    for.
    """
    monkeypatch.setattr(appended, "_STEP", step)
    old = (folder / "in.pth").read_bytes()
    in_place(folder)
    new = (folder / "in.pth").read_bytes()

    for cut in range(len(old) + 40, len(old) + 240, 3):
        assert appended.end_before(Memory(new[:cut]), Limits()) == len(old), cut
    assert appended.end_before(Memory(old), Limits()) is None


def test_undo_goes_back_one_rewrite_at_a_time(folder: Path) -> None:
    source = folder / "in.pth"
    contents = [source.read_bytes()]
    for tag in ("cpu", "cuda:1", "xpu:0"):
        assert ckpt("rehome", "in.pth", "--to", tag, "--in-place", cwd=folder).code == 0
        contents.append(source.read_bytes())
        assert torch.load(source, map_location="cpu", weights_only=False)["epoch"] == 12
    while len(contents) > 1:
        contents.pop()
        assert ckpt("rehome", "--undo", "in.pth", cwd=folder).code == 0
        assert source.read_bytes() == contents[-1]
    check_error(
        ckpt("rehome", "--undo", "in.pth", cwd=folder), "no in-place rewrite to undo"
    )
    assert source.read_bytes() == contents[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("-o", "out.pth"), ("--in-place",), ("--in-place", "--copy")]
)
def test_killed_at_any_time(
    arguments: tuple[str, ...], folder: Path, killer: kills.Killer
) -> None:
    """SIGKILL after a random part of a run: the old or the new, the source whole, one
    temporary file at most.

    `make kills` does this 200 times for every command that writes.
    """
    source = folder / "in.pth"
    old = source.read_bytes()
    seconds = killer.run("rehome", "in.pth", *arguments, cwd=folder).seconds
    new = (source if "-o" not in arguments else folder / "out.pth").read_bytes()
    chance = random.Random(0)
    killed = 0
    for _ in range(12):
        kills.restore(folder, {"in.pth": old})
        ran = killer.run(
            "rehome", "in.pth", *arguments, cwd=folder, after=chance.uniform(0, seconds)
        )
        killed += ran.was_killed
        if not ran.was_killed:
            seconds = min(
                seconds, ran.seconds
            )  # the first run is slow where the machine does other work too
        now = source.read_bytes()
        if arguments == ("--in-place",):
            assert now.startswith(old)
            if now not in (old, new):
                assert save.undo_rewrite(str(source), Limits()).after == len(old)
        else:
            assert now == old or (now == new and "--copy" in arguments)
        if (folder / "out.pth").exists():
            assert (folder / "out.pth").read_bytes() == new
        assert (
            len(
                [path for path in folder.iterdir() if path.name.endswith(target.SUFFIX)]
            )
            <= 1
        )
    assert killed > 2


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_signals_clean_up(number: int, code: int, folder: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from ckpt.bytes import target\n"
        "from ckpt.surface.cli import app\nfrom ckpt.commands import rehome\n"
        "real = os.fsync\n"
        "def fsync(fd):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    real(fd)\n"
        "os.fsync = fsync\n"
        "app.main()\n"
    )
    ran = python("-c", script, "rehome", "in.pth", "-o", "out.pth", cwd=folder)

    assert ran.code == code
    assert ran.err.count(b"\n") == 1
    assert sorted(os.listdir(folder)) == ["in.pth"]


def test_a_job_that_was_told_to_outlive_its_terminal(folder: Path) -> None:
    """nohup ignores SIGHUP for its command, which must not change its mind."""
    script = (
        "import os, signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from ckpt.surface.cli import app\nfrom ckpt.commands import rehome\n"
        "real = os.fsync\n"
        "def fsync(fd):\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    real(fd)\n"
        "os.fsync = fsync\n"
        "app.main()\n"
    )
    ran = python("-c", script, "rehome", "in.pth", "-o", "out.pth", cwd=folder)

    assert ran.code == 0 and (folder / "out.pth").exists()


# --- limits of the disk ---------------------------------------------------------------


def limited(nbytes: int, *arguments: str, cwd: Path) -> Done:
    """`ckpt ARGUMENTS` where no file may grow beyond so many bytes."""
    ran = subprocess.run(
        [sys.executable, "-m", "ckpt", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        timeout=TIMEOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes)),
    )
    return Done(ran.returncode, ran.stdout, ran.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("-o", "out.pth"), ("--in-place",), ("--in-place", "--copy")]
)
@pytest.mark.parametrize("nbytes", [0, 100, 40_000, 82_000, 83_000, 90_000, 100_000])
def test_a_file_that_may_not_grow(
    nbytes: int, arguments: tuple[str, ...], folder: Path
) -> None:
    """It fails, and nothing is lost, exactly where the file that is to be written is
    larger.
    """
    source = folder / "in.pth"
    old = source.read_bytes()
    written = folder / "out.pth" if "-o" in arguments else source
    assert ckpt("rehome", "in.pth", *arguments, cwd=folder).code == 0
    wanted = written.read_bytes()
    written.unlink()
    source.write_bytes(old)

    done = limited(nbytes, "rehome", "in.pth", *arguments, cwd=folder)

    assert (done.code == 0) == (nbytes >= len(wanted))
    if done.code:
        check_error(done)
        assert source.read_bytes() == old
        assert sorted(os.listdir(folder)) == ["in.pth"]
    else:
        assert written.read_bytes() == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("-o", "out.pth"), ("--in-place",), ("--in-place", "--copy")]
)
def test_a_folder_that_is_read_only(
    arguments: tuple[str, ...], folder_of_all: Path
) -> None:
    (folder_of_all / "in.pth").write_bytes(SAMPLE.read_bytes())
    (folder_of_all / "in.pth").chmod(0o444)
    folder_of_all.chmod(0o555)

    done = as_nobody("rehome", "in.pth", *arguments, cwd=folder_of_all)

    check_error(done)
    assert b"permission" in done.err or b"read-only" in done.err
    assert os.listdir(folder_of_all) == ["in.pth"] and digest(
        folder_of_all / "in.pth"
    ) == digest(SAMPLE)


def test_a_read_only_file_in_a_folder_of_ours_is_not_replaced(
    folder_of_all: Path,
) -> None:
    folder_of_all.chmod(0o777)
    for name in ("in.pth", "out.pth"):
        (folder_of_all / name).write_bytes(SAMPLE.read_bytes())
        (folder_of_all / name).chmod(0o444)

    done = as_nobody("rehome", "in.pth", "-o", "out.pth", "--force", cwd=folder_of_all)

    check_error(done, "out.pth: read-only: ckpt does not replace it")
    assert digest(folder_of_all / "out.pth") == digest(SAMPLE)


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_a_disk_without_the_space_is_told_before_the_first_byte(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    entered = False

    with (
        pytest.raises(WriteError, match="the disk is full") as caught,
        target.writing_file(target.target(str(folder / "out.pth"), force=False), 2048),
    ):
        entered = True

    assert not entered and str(caught.value.hint).startswith("it needs 2.00 KiB, ")


def test_a_disk_that_fills_while_a_file_grows_names_no_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = File(str(folder / "in.pth"))
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "pwritev", full)

    with (
        pytest.raises(WriteError, match="the disk is full") as caught,
        inplace.appending_sink(source) as sink,
    ):
        sink.write(b"new")

    assert caught.value.hint is None
    source.close()


# --- blocks ---------------------------------------------------------------------------


def no_kernel_copy(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Let the kernel copy, or refuse to, at once or after a while; or copy less than it
    is asked for.
    """
    real = os.copy_file_range
    calls = []

    def copy(source: int, to: int, count: int, at: int, to_at: int) -> int:
        calls.append(count)
        if how == "refuses" or (how == "gives up" and len(calls) > 2):
            raise OSError(errno.EXDEV, "not between these")
        if how == "nothing":
            return 0
        return real(
            source, to, max(1, count // 3) if how == "short" else count, at, to_at
        )

    if how == "absent":
        monkeypatch.delattr(os, "copy_file_range")
    elif how != "copies":
        monkeypatch.setattr(os, "copy_file_range", copy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["copies", "refuses", "gives up", "short", "nothing", "absent"]
)
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "memory"])
def test_copies_are_the_bytes_that_they_copy(
    is_file: bool,
    how: str,
    nbytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the kernel and by the plain way, of ranges of every size, one after
    the other.
    """
    no_kernel_copy(monkeypatch, how)
    data = random.Random(0).randbytes(nbytes)
    (tmp_path / "in").write_bytes(data)
    source = File(str(tmp_path / "in")) if is_file else Memory(data)
    sizes = {
        0,
        1,
        target._SMALL,
        target._SMALL + 1,
        target._KERNEL_COPY,
        target._KERNEL_COPY + 1,
    }
    sizes |= {target.BLOCK - 1, target.BLOCK, target.BLOCK + 1, nbytes}
    ranges = [
        (at, size)
        for size in sorted(sizes)
        for at in {0, 5, nbytes - size}
        if 0 <= at <= nbytes - size
    ]
    wanted = b"<" + b"".join(data[at : at + size] + b"|" for at, size in ranges)
    seen: list[int] = []

    to = target.target(str(tmp_path / "out"), force=False)
    with target.writing_file(to, len(wanted), seen.append) as sink:
        sink.write(b"<")
        at = 1
        for offset, size in ranges:
            sink.copy(source, offset, size)
            sink.write(b"|")
            at += size + 1
            assert sink.position == at

    assert (tmp_path / "out").read_bytes() == wanted and sum(seen) == len(wanted)
    source.close()


@pytest.mark.parametrize("how", ["copies", "refuses", "short"])
def test_a_source_that_is_cut_while_it_is_copied(
    how: str, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_kernel_copy(monkeypatch, how)
    (tmp_path / "in").write_bytes(bytes(nbytes))
    source = File(str(tmp_path / "in"))
    os.truncate(tmp_path / "in", nbytes - 1)

    with (
        pytest.raises(CkptError),
        target.writing_file(
            target.target(str(tmp_path / "out"), force=False), nbytes
        ) as sink,
    ):
        sink.copy(source, 0, nbytes)

    assert os.listdir(tmp_path) == ["in"]
    source.close()


@pytest.mark.parametrize("is_memory", [False, True], ids=["file", "memory"])
@pytest.mark.parametrize("step", [None, 7])
def test_writes_of_every_size_come_in_order(
    step: int | None,
    is_memory: bool,
    nbytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the system takes less at once than it is given."""
    if step is not None:
        real = os.pwrite
        few = step if nbytes < 10_000 else 100_003
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:few], at))
    data = random.Random(0).randbytes(nbytes)
    chance = random.Random(1)
    pieces, at = [], 0
    while at < nbytes:
        size = chance.choice((1, 3, target._SMALL, target._SMALL + 1, target.BLOCK + 9))
        pieces.append(data[at : at + size])
        at += size

    if is_memory:
        sink = target.MemorySink()
        for piece in pieces:
            sink.write(piece)
        assert sink.position == nbytes and sink.taken() == data and sink.taken() == b""
        return
    with target.writing_file(
        target.target(str(tmp_path / "out"), force=False), nbytes
    ) as out:
        for piece in pieces:
            out.write(memoryview(piece))
    assert (tmp_path / "out").read_bytes() == data


@pytest.mark.parametrize("change", [-1, 1])
def test_another_size_than_was_planned_is_never_put_in_place(
    change: int, tmp_path: Path
) -> None:
    to = target.target(str(tmp_path / "out"), force=False)

    with pytest.raises(AssertionError), target.writing_file(to, 100 + change) as sink:
        sink.write(bytes(100))

    assert os.listdir(tmp_path) == []


def test_rewrites_with_small_blocks_are_the_same(
    folder: Path, request: pytest.FixtureRequest
) -> None:
    """Whole commands: copied, converted, written anew, appended."""
    wanted = {}
    for size in ("shipped", "small"):
        if size == "small":
            request.getfixturevalue("small_blocks")
        for name, way in WAYS.items():
            way(folder)
            path = folder / ("out.pth" if name == "new" else "in.pth")
            found = wanted.setdefault(name, path.read_bytes())
            assert path.read_bytes() == found, (size, name)
            path.write_bytes(SAMPLE.read_bytes())


# --- targets --------------------------------------------------------------------------


def test_an_existing_file_is_replaced_only_by_force(folder: Path) -> None:
    out = folder / "out.pth"
    out.write_bytes(b"mine")

    check_error(
        ckpt("rehome", "in.pth", "-o", "out.pth", cwd=folder),
        "exists (--force to replace)",
    )
    assert out.read_bytes() == b"mine"
    assert ckpt("rehome", "in.pth", "-o", "out.pth", "--force", cwd=folder).code == 0
    with formats.open(str(out)) as checkpoint:
        assert len(checkpoint.tensors) == 115


def test_a_file_that_appears_meanwhile_is_not_replaced(folder: Path) -> None:
    to = target.target(str(folder / "out.pth"), force=False)

    with pytest.raises(UsageError, match="exists"), target.writing_file(to, 3) as sink:
        sink.write(b"abc")
        (folder / "out.pth").write_bytes(b"mine")

    assert (folder / "out.pth").read_bytes() == b"mine"
    assert sorted(os.listdir(folder)) == ["in.pth", "out.pth"]


def no_links(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.EPERM, "no links here")


@pytest.mark.parametrize("kernel", [True, False], ids=["renameat2", "only O_EXCL"])
def test_where_links_cannot_be_made(
    kernel: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links)
    if not kernel:
        monkeypatch.setattr(target, "rename_with_flags", lambda old, new, how: False)
    with target.writing_file(
        target.target(str(folder / "out.pth"), force=False), 3
    ) as sink:
        sink.write(b"abc")
    assert (folder / "out.pth").read_bytes() == b"abc"

    to = target.target(str(folder / "other.pth"), force=False)
    with pytest.raises(UsageError, match="exists"), target.writing_file(to, 3) as sink:
        sink.write(b"abc")
        (folder / "other.pth").write_bytes(b"mine")
    assert (folder / "other.pth").read_bytes() == b"mine"
    assert sorted(os.listdir(folder)) == ["in.pth", "other.pth", "out.pth"]


@pytest.mark.parametrize("what", ["file", "link"])
@pytest.mark.parametrize("kernel", [True, False], ids=["renameat2", "only O_EXCL"])
def test_what_appears_in_the_last_moment_is_not_replaced(
    kernel: bool, what: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last look at the folder: only the call itself can refuse."""
    monkeypatch.setattr(os, "link", no_links)
    out = folder / "out.pth"
    renamed, replace = target.rename_with_flags, os.replace

    def appear() -> None:
        out.symlink_to("in.pth") if what == "link" else out.write_bytes(b"mine")

    def late(old: str, new: str, how: int) -> bool:
        appear()
        return kernel and renamed(old, new, how)

    monkeypatch.setattr(target, "rename_with_flags", late)
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    with (
        pytest.raises(UsageError, match="exists"),
        target.writing_file(target.target(str(out), force=False), 3) as sink,
    ):
        sink.write(b"abc")

    assert (
        out.read_bytes() == (b"mine" if what == "file" else SAMPLE.read_bytes())
        and os.replace is replace
    )
    assert sorted(os.listdir(folder)) == ["in.pth", "out.pth"] and digest(
        folder / "in.pth"
    ) == digest(SAMPLE)


def test_a_claim_that_cannot_be_used_is_given_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(target, "rename_with_flags", lambda old, new, how: False)
    monkeypatch.setattr(os, "replace", refuse)
    with (
        pytest.raises(WriteError, match="cannot be put in place"),
        target.writing_file(
            target.target(str(folder / "out.pth"), force=False), 3
        ) as sink,
    ):
        sink.write(b"abc")

    assert not (folder / "out.pth").exists() and Path(sink.path).read_bytes() == b"abc"


def test_a_file_that_cannot_be_put_in_place_is_kept_and_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EBUSY, "busy")

    (folder / "out.pth").write_bytes(b"old")
    monkeypatch.setattr(os, "replace", busy)
    to = target.target(str(folder / "out.pth"), force=True)

    with (
        pytest.raises(WriteError, match="in use") as caught,
        target.writing_file(to, 3) as sink,
    ):
        sink.write(b"abc")

    kept = Path(str(caught.value.hint).rpartition(" ")[2])
    assert kept.read_bytes() == b"abc" and (folder / "out.pth").read_bytes() == b"old"


def test_mode_and_links_of_what_is_replaced(folder: Path) -> None:
    out = folder / "out.pth"
    out.write_bytes(b"old")
    out.chmod(0o640)
    (folder / "link.pth").symlink_to("out.pth")
    os.link(out, folder / "other_name.pth")

    done = ckpt("rehome", "in.pth", "-o", "link.pth", "--force", cwd=folder)

    assert done.code == 0 and b"hard links" in done.err
    assert (folder / "link.pth").is_symlink() and stat.S_IMODE(
        out.stat().st_mode
    ) == 0o640
    assert (
        out.stat().st_size > 1000 and (folder / "other_name.pth").read_bytes() == b"old"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_of_what_is_replaced(folder: Path) -> None:
    out = folder / "out.pth"
    out.write_bytes(b"old")
    os.chown(out, 65534, 65533)

    with target.writing_file(target.target(str(out), force=True), 3) as sink:
        sink.write(b"new")

    assert out.read_bytes() == b"new" and (out.stat().st_uid, out.stat().st_gid) == (
        65534,
        65533,
    )


def test_a_name_as_long_as_names_may_be(folder: Path) -> None:
    out = folder / ("n" * 251 + ".pth")

    with target.writing_file(target.target(str(out), force=False), 3) as sink:
        sink.write(b"abc")

    assert out.read_bytes() == b"abc"


def test_a_new_file_has_the_mode_of_the_umask(folder: Path) -> None:
    old = os.umask(0o027)
    try:
        assert ckpt("rehome", "in.pth", "-o", "out.pth", cwd=folder).code == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / "out.pth").stat().st_mode) == 0o640


def first_modes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(file, mode, group) of a file at each write, and when it gets its name."""
    seen: list[tuple[str, int, int]] = []
    for name in ("pwrite", "copy_file_range", "posix_fallocate", "link", "replace"):
        real = getattr(os, name)

        def call(*args: Any, name: str = name, real: Any = real) -> Any:
            status = os.stat(args[1] if name == "copy_file_range" else args[0])
            seen.append((name, stat.S_IMODE(status.st_mode), status.st_gid))
            return real(*args)

        monkeypatch.setattr(os, name, call)
    return seen


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o660])
@pytest.mark.parametrize("exists", [False, True], ids=["new", "replaced"])
def test_a_file_is_never_wider_than_at_its_end(
    exists: bool, mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary file over a private one, and the copy of a private one, are private
    from their first byte.
    """
    out = folder / "out.pth"
    if exists:
        out.write_bytes(b"old")
        out.chmod(mode)
    else:
        (folder / "in.pth").chmod(mode)
    old = os.umask(0o002)
    try:
        with monkeypatch.context() as patch:
            seen = first_modes(patch)
            into_new(folder)
    finally:
        os.umask(old)

    final = stat.S_IMODE(out.stat().st_mode)
    # Without a file to replace the umask decides, but nobody may read the copy who may
    # not read the source.
    wanted = {0o600: 0o600, 0o640: 0o660, 0o644: 0o664, 0o660: 0o660}[mode]
    assert final == (mode if exists else wanted)
    assert len(seen) > 2 and all(now & ~final == 0 for _, now, _ in seen)


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_what_replaces_a_file_is_as_private_as_its_source(
    mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "in.pth").chmod(mode)
    out = folder / "out.pth"
    out.write_bytes(b"old")
    out.chmod(0o644)

    done = ckpt("rehome", "in.pth", "-o", "out.pth", "--force", cwd=folder)
    assert done.code == 0 and f"its mode is {mode:o} now".encode() in done.err
    assert stat.S_IMODE(out.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_who_owns_what_is_replaced_gets_no_private_source(folder: Path) -> None:
    (folder / "in.pth").chmod(0o600)
    out = folder / "out.pth"
    out.write_bytes(b"old")
    os.chown(out, 65534, 65533)

    assert ckpt("rehome", "in.pth", "-o", "out.pth", "--force", cwd=folder).code == 0
    status = out.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("other", [0o640, 0o644])
def test_the_group_of_a_copy_is_not_that_of_the_source(
    other: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(folder / "in.pth", 65534, 65533)
    (folder / "in.pth").chmod(other)
    with monkeypatch.context() as patch:
        seen = first_modes(patch)
        into_new(folder)

    mode = stat.S_IMODE((folder / "out.pth").stat().st_mode)
    assert mode == (0o600 if other == 0o640 else 0o644) and all(
        now & ~mode == 0 for _, now, _ in seen
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_group_that_cannot_be_kept_gets_no_more_than_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "out.pth"
    out.write_bytes(b"old")
    os.chown(out, 65534, 65533)
    out.chmod(0o664)

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr(os, "fchown", refuse)
    with target.writing_file(target.target(str(out), force=True), 3) as sink:
        sink.write(b"new")

    assert stat.S_IMODE(out.stat().st_mode) == 0o644


@pytest.mark.parametrize("out", ["link.pth", "sub"])
def test_a_link_that_leads_nowhere_is_followed_only_by_force(
    out: str, folder: Path
) -> None:
    """As OUT itself, and as the file of this name in a folder OUT."""
    (folder / "away").mkdir()
    (folder / "sub").mkdir()
    link = folder / ("sub/in.pth" if out == "sub" else out)
    link.symlink_to(folder / "away" / "made.pth")

    line = check_error(ckpt("rehome", "in.pth", "-o", out, cwd=folder), "a link to ")
    assert line.endswith("made.pth, which does not exist (--force to write there)")
    assert os.listdir(folder / "away") == []
    assert ckpt("rehome", "in.pth", "-o", out, "--force", cwd=folder).code == 0
    assert os.listdir(folder / "away") == ["made.pth"] and link.is_symlink()


def test_a_link_to_a_folder_that_is_gone(folder: Path) -> None:
    (folder / "sub").symlink_to("nowhere")

    for arguments in (
        ("rehome", "in.pth"),
        ("convert", "in.pth", "--shard-size", "4KB"),
    ):
        out = "sub" if arguments[0] == "rehome" else "sub/m.safetensors"
        check_error(ckpt(*arguments, "-o", out, cwd=folder))
    assert sorted(os.listdir(folder)) == ["in.pth", "sub"]


def test_in_place_through_a_link_changes_the_file_and_keeps_the_link(
    folder: Path,
) -> None:
    old = (folder / "in.pth").read_bytes()
    (folder / "link.pth").symlink_to("in.pth")

    for command in (("--in-place",), ("--undo",), ("--in-place", "--copy")):
        assert ckpt("rehome", "link.pth", *command, cwd=folder).code == 0
        assert (folder / "link.pth").is_symlink()
        assert ((folder / "in.pth").read_bytes() == old) == (command == ("--undo",))


def test_other_names_of_a_file_that_changes_in_place_are_told(folder: Path) -> None:
    os.link(folder / "in.pth", folder / "other.pth")

    done = ckpt("rehome", "in.pth", "--in-place", cwd=folder)

    assert done.code == 0 and b"in.pth: its other hard links changed too" in done.err


@pytest.mark.parametrize("way", WAYS)
def test_a_close_that_fails_after_the_commit_is_a_warning(
    way: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WAYS[way](folder)
    name = "out.pth" if way == "new" else "in.pth"
    wanted = digest(folder / name)
    (folder / name).unlink()
    (folder / "in.pth").write_bytes(SAMPLE.read_bytes())
    real = os.close

    def close(fd: int) -> None:
        is_written = os.access(f"/proc/self/fd/{fd}", os.F_OK) and os.readlink(
            f"/proc/self/fd/{fd}"
        )
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        real(fd)
        if mode == os.O_RDWR and is_written and str(folder) in str(is_written):
            raise OSError(errno.EIO, "late")

    arguments = [
        "rehome",
        "in.pth",
        *(["-o", "out.pth"] if way == "new" else ["--in-place"]),
    ]
    arguments += ["--copy"] if way == "over itself" else []
    monkeypatch.chdir(folder)
    lines: list[str] = []
    monkeypatch.setattr(output, "write_talk", lines.append)
    monkeypatch.setattr(os, "close", close)
    with pytest.raises(SystemExit) as left:
        app.program(("rehome",))(arguments, prog_name="ckpt")
    monkeypatch.undo()

    assert left.value.code == 0
    assert lines == [
        (
            f"ckpt: {name}: closing it failed after it was complete: the disk reports "
            "an error"
        )
    ]
    assert digest(folder / name) == wanted


def test_a_temporary_file_that_cannot_be_removed_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "unlink", refuse)
    with target.writing_file(
        target.target(str(folder / "out.pth"), force=False), 3
    ) as sink:
        sink.write(b"abc")

    assert sink.warnings == [
        f"{sink.path} is left over, it cannot be removed: no permission"
    ]


def test_input_and_output_may_be_the_same_file(folder: Path) -> None:
    (folder / "link.pth").symlink_to("in.pth")

    assert ckpt("rehome", "link.pth", "--in-place", "--copy", cwd=folder).code == 0

    found = torch.load(folder / "in.pth", weights_only=False)
    assert {str(value.device) for value in found["model"].values()} == {"cpu"}
    assert (folder / "link.pth").is_symlink()


@pytest.mark.parametrize(
    "name", ["fifo", "missing/out.pth", "in.pth/out.pth", "/dev/full", "folder/"]
)
def test_targets_that_are_no_file(name: str, folder: Path) -> None:
    os.mkfifo(folder / "fifo")

    check_error(ckpt("rehome", "in.pth", "-o", name, "--force", cwd=folder))
    assert digest(folder / "in.pth") == digest(SAMPLE)


def test_what_a_killed_run_left_is_named_until_it_is_gone(folder: Path) -> None:
    left = folder / f".out.pth.0123456789ab{target.SUFFIX}"
    left.write_bytes(bytes(3000))

    done = ckpt("rehome", "in.pth", "-o", "out.pth", cwd=folder)

    assert (
        done.code == 0
        and left.name.encode() in done.err
        and b"2.93 KiB left over" in done.err
    )
    assert left.exists()


def test_a_file_that_is_being_written_is_not_left_over(folder: Path) -> None:
    to = target.target(str(folder / "out.pth"), force=False)

    with target.writing_file(to, 3) as sink:
        assert Path(sink.path).exists() and target.left_over(to.path) == []
        sink.write(b"abc")


def test_the_source_is_never_touched(folder: Path) -> None:
    source = folder / "in.pth"
    before = (digest(source), source.stat().st_mtime_ns, source.stat().st_ino)

    for arguments in (
        ("rehome", "in.pth", "-o", "a.pth"),
        ("strip", "in.pth", "-o", "b.pth"),
        ("rename", "in.pth", "--sub", "s/conv/c/", "-o", "c.pth"),
        ("slim", "in.pth", "-o", "d.pth"),
        ("convert", "in.pth", "-o", "e.safetensors"),
        ("convert", "in.pth", "--plain", "-o", "f.pth"),
    ):
        assert ckpt(*arguments, cwd=folder).code == 0
    assert before == (digest(source), source.stat().st_mtime_ns, source.stat().st_ino)


def test_a_source_that_changes_while_it_is_copied_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder / "in.pth"
    real = os.fsync
    real_write = os.pwrite

    def pwrite(fd: int, data: bytes, at: int) -> int:
        os.utime(source)
        return real_write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(CkptError, match="changed while it was read"):
        into_new(folder)
    assert sorted(os.listdir(folder)) == ["in.pth"] and os.fsync is real


def test_a_change_whose_time_was_set_back_is_seen(folder: Path) -> None:
    source = File(str(folder / "in.pth"))
    before = (folder / "in.pth").stat()
    with (folder / "in.pth").open("r+b") as file:
        file.write(b"x")
    os.utime(folder / "in.pth", ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(CkptError, match="changed while it was read"):
        source.check_unchanged()
    source.close()


def test_a_source_that_gets_or_loses_a_name_has_not_changed(folder: Path) -> None:
    """A training run that replaces last.pth by a rename, a backup that makes hard
    links.
    """
    source = File(str(folder / "in.pth"))
    os.link(folder / "in.pth", folder / "backup.pth")
    source.check_unchanged()
    source.close()
    source = File(str(folder / "in.pth"))
    (folder / "new.pth").write_bytes(b"new")
    os.replace(folder / "new.pth", folder / "in.pth")
    source.check_unchanged()
    source.close()


def test_two_rewrites_in_place_at_once(folder: Path) -> None:
    with formats.open(str(folder / "in.pth")) as checkpoint:
        assert checkpoint.source is not None
        with inplace.appending_sink(checkpoint.source) as sink:
            check_error(
                ckpt("rehome", "in.pth", "--in-place", cwd=folder),
                "another process is rewriting it",
            )
            sink.write(b"")
    assert digest(folder / "in.pth") == digest(SAMPLE)


def test_a_file_that_has_grown_since_it_was_read_is_not_appended_to(
    folder: Path,
) -> None:
    source = File(str(folder / "in.pth"))
    grown = SAMPLE.read_bytes() + b"of another"
    (folder / "in.pth").write_bytes(grown)

    with (
        pytest.raises(CkptError, match="changed while it was read"),
        inplace.appending_sink(source) as sink,
    ):
        sink.write(b"new")

    assert (folder / "in.pth").read_bytes() == grown
    source.close()


def test_a_file_that_was_put_in_place_of_the_one_that_was_read_is_not_appended_to(
    folder: Path,
) -> None:
    source = File(str(folder / "in.pth"))
    (folder / "other.pth").write_bytes(b"other")
    os.replace(folder / "other.pth", folder / "in.pth")

    with (
        pytest.raises(WriteError, match="was replaced while"),
        inplace.appending_sink(source) as sink,
    ):
        sink.write(b"new")

    assert (folder / "in.pth").read_bytes() == b"other"
    source.close()


def test_two_archives_glued_together_are_no_rewrite(folder: Path) -> None:
    both = folder / "both.pth"
    both.write_bytes(SAMPLE.read_bytes() * 2)

    line = check_error(
        ckpt("rehome", "--undo", "both.pth", cwd=folder), "no in-place rewrite to undo"
    )
    assert "interrupted" not in line and "interrupted" not in check_error(
        ckpt("inspect", "both.pth", cwd=folder)
    )
    assert both.stat().st_size == 2 * SAMPLE.stat().st_size


def test_a_file_that_ends_in_another_archive_is_no_rewrite(folder: Path) -> None:
    """An archive of other bytes behind the first: cut off, and not ours to cut."""
    source = folder / "in.pth"
    source.write_bytes(SAMPLE.read_bytes() + SAMPLE.read_bytes()[:5000])

    check_error(
        ckpt("rehome", "--undo", "in.pth", cwd=folder), "no in-place rewrite to undo"
    )
    assert source.stat().st_size == SAMPLE.stat().st_size + 5000


def test_an_archive_with_a_comment_comes_back(folder: Path) -> None:
    source = folder / "in.pth"
    with zipfile.ZipFile(source, "a") as archive:
        archive.comment = b"made by hand"
    old = source.read_bytes()

    assert ckpt("rehome", "in.pth", "--in-place", cwd=folder).code == 0
    assert torch.load(source, weights_only=False)["epoch"] == 12
    assert ckpt("rehome", "--undo", "in.pth", cwd=folder).code == 0
    assert source.read_bytes() == old


@pytest.mark.parametrize(("may", "mode"), [(True, 0o674), (False, 0o644)])
def test_a_file_that_cannot_be_given_away_keeps_its_group_or_gives_the_group_no_more_than_others(
    may: bool, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").write_bytes(b"")
    given: list[tuple[int, int]] = []

    def fchown(fd: int, uid: int, gid: int) -> None:
        given.append((uid, gid))
        if uid != -1 or not may:
            raise PermissionError(errno.EPERM, "x")
        group.append(gid)

    real, group = os.fstat, [1]
    monkeypatch.setattr(os, "fchown", fchown)
    monkeypatch.setattr(
        os, "fstat", lambda fd: mock.Mock(wraps=real(fd), st_gid=group[-1])
    )
    fd = os.open(tmp_path / "new", os.O_RDWR)
    target.keep_mode(
        fd, mock.Mock(st_mode=stat.S_IFREG | 0o674, st_uid=1234, st_gid=77)
    )
    os.close(fd)

    assert given == [(1234, 77), (-1, 77)]
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode


# --------------------------------------------------------------------------------------
# files with holes


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    if done.returncode:
        pytest.skip(
            "nothing can be mounted here: "
            f"{done.stderr.decode(errors='replace').strip()}"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def with_holes(path: Path, nbytes: int) -> None:
    """A safetensors file of a few bytes that says that it holds a tensor of
    `nbytes`.
    """
    header = json.dumps(
        {"w": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, path.stat().st_size + nbytes)


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        *(("convert", ending) for ending in ("safetensors", "pth", "dcp")),
        *(("salvage", ending) for ending in ("safetensors", "pth", "dcp")),
        ("slim", "safetensors"),
    ],
)
def test_a_file_of_holes_does_not_fill_the_disk(
    command: str, ending: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_holes(small_disk / "x.safetensors", 50 << 20)
    before = os.statvfs(small_disk).f_bfree
    least = before

    def reserved(fd: int, offset: int, count: int) -> None:
        nonlocal least
        try:
            reserve(fd, offset, count)
        finally:
            least = min(least, os.statvfs(small_disk).f_bfree)

    reserve = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", reserved)
    done = inside(command, "x.safetensors", "-o", f"out.{ending}", cwd=small_disk)

    check_error(done, "the disk is full")
    assert least == before, "nothing was reserved"
    assert os.statvfs(small_disk).f_bfree == before and os.listdir(small_disk) == [
        "x.safetensors"
    ]


def test_holes_are_not_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_holes(tmp_path / "x.safetensors", 8 << 20)
    counts: list[int] = []
    monkeypatch.setattr(
        os, "posix_fallocate", lambda fd, offset, count: counts.append(count)
    )

    for out in ("out.pth", "out.safetensors", "out.dcp"):
        assert inside("convert", "x.safetensors", "-o", out, cwd=tmp_path).code == 0
    assert sum(counts) < 1 << 20


def test_a_file_without_holes_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(
        {"a.weight": torch.ones(1 << 20, dtype=torch.bfloat16)}, tmp_path / "x.pth"
    )
    counts: list[int] = []
    monkeypatch.setattr(
        os, "posix_fallocate", lambda fd, offset, count: counts.append(count)
    )

    assert (
        inside(
            "convert", "x.pth", "-o", "out.pth", "--dtype", "float32", cwd=tmp_path
        ).code
        == 0
    )
    assert sum(counts) == (tmp_path / "out.pth").stat().st_size > 4 << 20
