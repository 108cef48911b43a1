"""What a file system can do is believed only where the system says so; which calls are
made there, and in which order.
"""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import rewriting
import torch

from ckpt import formats
from ckpt.bytes import disk, inplace
from ckpt.bytes import target as io_target
from ckpt.bytes.disk import UNKNOWN, FileSystem
from ckpt.bytes.source import File, Memory
from ckpt.bytes.target import target
from ckpt.commands.rehome.rehome import moves, rehome
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.formats.common.appended import end_before
from ckpt.model.errors import CkptError, WriteError
from ckpt.model.limits import Limits

LIMITS = Limits()
MOUNTS = b"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
42 27 7:0 / /data\\040x rw,relatime shared:2 master:1 - xfs /dev/loop0 rw,inode64
44 27 0:39 /sub /home rw,relatime - btrfs /dev/loop1 rw,subvolid=256
45 44 0:39 /other /other rw - btrfs /dev/loop1 rw,subvolid=257
"""


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Files of /proc; what is not here is not there."""
    files = {"/proc/self/mountinfo": MOUNTS}
    files |= {
        f"/proc/self/fdinfo/{fd}": b"pos:\t0\nflags:\t02\nmnt_id:\t%d\nino:\t7\n" % fd
        for fd in (22, 27, 42, 44, 45, 99)
    }

    def opened(path: str, mode: str) -> io.BytesIO:
        if path not in files:
            raise FileNotFoundError(errno.ENOENT, "no", path)
        return io.BytesIO(files[path])

    monkeypatch.setattr(disk, "open", opened, raising=False)
    return files


def test_the_file_system_is_that_of_the_mount(proc: dict[str, bytes]) -> None:
    assert disk.file_system_of(27) == FileSystem("ext4", "254:0")
    assert disk.file_system_of(42) == FileSystem("xfs", "7:0")
    assert (
        disk.file_system_of(44)
        == disk.file_system_of(45)
        == FileSystem("btrfs", "0:39")
    )
    assert (
        disk.file_system_of(99) == disk.file_system_of(7) == UNKNOWN
    )  # of another namespace, or without /proc


@pytest.mark.parametrize(
    "text",
    [b"", b"27", b"27 1 254:0 / /", b"27 1\n27 1 254:0 / / rw - \n", b"\xff \xff"],
)
def test_a_list_of_mounts_that_makes_no_sense(
    text: bytes, proc: dict[str, bytes]
) -> None:
    proc["/proc/self/mountinfo"] = text
    assert disk.file_system_of(27) == UNKNOWN
    proc["/proc/self/fdinfo/27"] = b"pos:\t0\n"
    assert disk.file_system_of(27) == UNKNOWN


def test_the_file_system_of_a_real_file(tmp_path: Path) -> None:
    if not os.path.exists("/proc/self/mountinfo"):
        pytest.skip("there is no /proc/self/mountinfo")
    with (tmp_path / "a").open("wb") as file:
        found = disk.file_system_of(file.fileno())
    assert (
        found != UNKNOWN
        and found.type.encode() in Path("/proc/self/mountinfo").read_bytes()
    )


@pytest.mark.parametrize(
    ("sources", "shares"),
    [
        ((42,), True),
        ((None, 27, 42), True),
        ((27,), False),
        ((44,), False),
        ((None,), False),
        ((), False),
    ],
)
def test_blocks_are_shared_within_one_file_system(
    sources: tuple[int | None, ...],
    shares: bool,
    proc: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fstatvfs", lambda fd: os.statvfs("/"))
    assert disk.shared_block(42, sources) == (os.statvfs("/").f_bsize if shares else 0)
    assert disk.shared_block(44, (45,)) and not disk.shared_block(27, (27,))


@pytest.mark.parametrize(
    ("fd", "options", "through"),
    [
        (42, None, True),
        (27, b"rw\ndelalloc\ndata=ordered\n", True),
        (27, b"rw\ndata=journal\n", True),
        (27, b"rw\ndelalloc\nbarrier\n", False),  # no journal
        (27, None, False),
        (44, b"data=ordered\n", False),
        (22, b"data=ordered\n", False),
        (99, b"data=ordered\n", False),
    ],
)
def test_what_is_written_through(
    fd: int,
    options: bytes | None,
    through: bool,
    proc: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {
        f"/sys/dev/block/{device}": "../../devices/virtual/block/vda"
        for device in ("254:0", "0:39")
    }
    monkeypatch.setattr(os, "readlink", lambda path: names[path])
    if options is not None:
        proc["/proc/fs/ext4/vda/options"] = options
    assert disk.writes_through(fd) is through
    for name in ("pwritev", "RWF_DSYNC"):
        with monkeypatch.context() as patch:
            patch.delattr(os, name)
            assert not disk.writes_through(fd)


# --- sharing --------------------------------------------------------------------------


class Call(NamedTuple):
    """A call of the operating system: its name, and the numbers that matter."""

    name: str
    numbers: tuple[int, ...]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls that move bytes into files."""
    seen: list[Call] = []

    def watch(name: str, numbers: Callable[..., tuple[int, ...]]) -> None:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            seen.append(Call(name, numbers(*args)))
            return real(*args)

        monkeypatch.setattr(os, name, call)

    watch("copy_file_range", lambda source, to, count, at, to_at: (at, count, to_at))
    watch("posix_fallocate", lambda fd, at, count: (at, count))
    watch("pwrite", lambda fd, data, at: (at, len(data)))
    watch("pwritev", lambda fd, data, at, flags: (at, sum(map(len, data)), flags))
    watch("fsync", lambda fd: ())
    watch("ftruncate", lambda fd, size: (size,))
    return seen


def named(calls: list[Call], name: str) -> list[tuple[int, ...]]:
    return [call.numbers for call in calls if call.name == name]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Storages of odd sizes, from one block to many."""
    sizes = (300_000, 5, 16_384, 16_385, 70_001, 1, 262_144)
    path = tmp_path_factory.mktemp("large") / "a.pth"
    return rewriting.saved(
        {f"module.{i}": torch.rand(size) for i, size in enumerate(sizes)}, path
    )


def moved(source: Path, to: Path) -> None:
    with formats.open(str(source)) as checkpoint:
        report = rehome(Survey(checkpoint), moves("cuda:7", []), LIMITS)
        rewriting.write(report.result, to)


@pytest.mark.parametrize("type", ["xfs", "btrfs"])
def test_only_whole_blocks_are_copied_where_they_can_be_shared(
    type: str,
    large: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Call],
) -> None:
    moved(large, tmp_path / "usual.pth")
    calls.clear()
    monkeypatch.setattr(disk, "file_system_of", lambda fd: FileSystem(type, "7:0"))
    monkeypatch.setattr(disk, "writes_through", lambda fd: False)

    moved(large, tmp_path / "shared.pth")

    copied = named(calls, "copy_file_range")
    assert len(copied) == 4 and all(
        number % 4096 == 0 for numbers in copied for number in numbers
    )
    storages = sum(4 * size for size in (300_000, 16_385, 70_001, 262_144))
    assert sum(count for _, count, _ in copied) > storages - 4 * 2 * 4096
    assert not named(calls, "posix_fallocate")
    assert (tmp_path / "shared.pth").read_bytes() == (
        tmp_path / "usual.pth"
    ).read_bytes()


def test_elsewhere_the_space_is_reserved_and_ranges_are_copied_whole(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[Call]
) -> None:
    monkeypatch.setattr(disk, "file_system_of", lambda fd: FileSystem("ext4", "7:0"))
    moved(large, tmp_path / "b.pth")

    assert named(calls, "posix_fallocate") == [(0, (tmp_path / "b.pth").stat().st_size)]
    assert [count for _, count, _ in named(calls, "copy_file_range")] == [
        4 * size for size in (300_000, 16_384 + 1, 70_001, 262_144)
    ]


def test_a_source_on_another_file_system_is_reserved_for(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[Call]
) -> None:
    def below(fd: int) -> FileSystem:
        is_source = os.readlink(f"/proc/self/fd/{fd}").endswith("a.pth")
        return FileSystem("xfs", "7:0" if is_source else "7:1")

    monkeypatch.setattr(disk, "file_system_of", below)
    moved(large, tmp_path / "b.pth")
    assert named(calls, "posix_fallocate")


@pytest.mark.parametrize("small", [16, io_target._SMALL])
@pytest.mark.parametrize("block", [64, 4096, 65_536])
def test_every_range_is_copied_as_it_is(
    block: int,
    small: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Call],
) -> None:
    """Ranges before, at and behind the borders of blocks, at the same place within a
    block and at another.
    """
    monkeypatch.setattr(disk, "shared_block", lambda fd, sources: block)
    monkeypatch.setattr(io_target, "_SMALL", small)
    data = random.Random(0).randbytes(max(5 * block, 200_000) + 700)
    (tmp_path / "in").write_bytes(data)
    source = File(str(tmp_path / "in"))
    chance = random.Random(1)
    ranges = [
        (0, len(data)),
        (block, block),
        (block - 1, 2),
        (block - 1, block + 2),
        (1, block - 1),
    ]
    ranges += [
        (at, chance.randint(0, len(data) - at))
        for at in chance.choices(range(len(data)), k=40)
    ]
    # Each at its place within a block, then right behind, wherever that is.
    wanted = bytearray()
    steps: list[tuple[bytes, int, int]] = []
    for number, (at, count) in enumerate(ranges):
        gap = bytes((at - len(wanted)) % block) if number % 3 else b"x"
        steps.append((gap, at, count))
        wanted += gap + data[at : at + count]
    seen: list[int] = []
    to = target(str(tmp_path / "out"), force=False)
    with io_target.writing_file(to, len(wanted), seen.append, sources=[source]) as sink:
        for gap, at, count in steps:
            sink.write(gap)
            sink.copy(source, at, count)

    assert (tmp_path / "out").read_bytes() == wanted and sum(seen) == len(wanted)
    copied = named(calls, "copy_file_range")
    could = [
        row
        for row in copied
        if not (row[0] - row[2]) % block and row[1] >= block + -row[0] % block
    ]
    assert could and all(number % block == 0 for row in could for number in row)
    # What lies elsewhere within its block is copied in one piece.
    assert {(at, count) for at, count, to_at in copied if (at - to_at) % block} <= set(
        ranges
    )
    source.close()


def test_safetensors_keep_the_place_of_their_data_in_a_page(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {
        f"module.{i}": torch.rand(size) for i, size in enumerate((300_000, 400_000, 3))
    }
    save_file(tensors, tmp_path / "a.safetensors", metadata={"note": "x" * 1234})
    with formats.open(str(tmp_path / "a.safetensors")) as checkpoint:
        state = rewriting.convert(checkpoint, "safetensors").result
        rewriting.write(
            rewriting.unedited(state), tmp_path / "b.safetensors", "safetensors"
        )
        offsets = {
            entry.name: entry.tensor.storage.place.offset
            for entry in checkpoint.tensors
        }  # type: ignore[union-attr]
    with formats.open(str(tmp_path / "b.safetensors")) as checkpoint:
        found = {
            entry.name: entry.tensor.storage.place.offset
            for entry in checkpoint.tensors
        }  # type: ignore[union-attr]

    assert {name: at % 4096 for name, at in found.items()} == {
        name: at % 4096 for name, at in offsets.items()
    }
    assert load_file(tmp_path / "b.safetensors").keys() == tensors.keys()


# --- in place -------------------------------------------------------------------------


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which writes are forced to the disk one by one."""
    monkeypatch.setattr(disk, "writes_through", lambda fd: True)


def in_place(path: Path) -> None:
    with formats.open(str(path)) as checkpoint:
        save.append(
            rehome(Survey(checkpoint), moves("cuda:7", []), LIMITS).result, LIMITS
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    state = {f"module.{i}": torch.full((9,), float(i)) for i in range(40)}
    return rewriting.saved(state, tmp_path / "in.pth")


def test_in_place_each_part_is_on_the_disk_before_the_next(
    path: Path, through: None, calls: list[Call]
) -> None:
    old = path.read_bytes()
    in_place(path)
    new = path.read_bytes()

    directory = new.index(b"PK\1\2", len(old))
    assert calls == [
        Call("pwritev", (len(old), directory - len(old), os.RWF_DSYNC)),
        Call("pwritev", (directory, len(new) - directory, os.RWF_DSYNC)),
    ]


def test_undo_forces_the_size_alone(
    path: Path, through: None, calls: list[Call]
) -> None:
    old = path.read_bytes()
    in_place(path)
    calls.clear()
    save.undo_rewrite(str(path), LIMITS)

    assert calls == [
        Call("ftruncate", (len(old),)),
        Call("pwritev", (len(old) - 1, 1, os.RWF_DSYNC)),
    ]
    assert path.read_bytes() == old


def test_what_fails_is_cut_off_on_the_disk_too(
    path: Path, through: None, calls: list[Call]
) -> None:
    old = path.read_bytes()
    source = File(str(path))
    with (
        pytest.raises(WriteError, match="not so"),
        inplace.appending_sink(source) as sink,
    ):
        sink.write(b"new")
        sink.sync()
        raise WriteError("not so")
    source.close()

    assert [call.name for call in calls] == ["pwritev", "ftruncate", "pwritev"]
    assert path.read_bytes() == old


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_where_the_system_does_not_know_it_the_whole_file_is_forced(
    number: int,
    nth: int,
    path: Path,
    through: None,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Call],
) -> None:
    copy = path.with_name("copy.pth")
    shutil.copyfile(path, copy)
    in_place(copy)
    calls.clear()
    real, count = os.pwritev, iter(range(1, 100))

    def refuse(*args: Any) -> int:
        if next(count) >= nth:
            raise OSError(number, "no")
        return real(*args)

    monkeypatch.setattr(os, "pwritev", refuse)
    in_place(path)

    names = [call.name for call in calls]
    assert names == (
        ["pwrite", "fsync"] * 2 if nth == 1 else ["pwritev", "pwrite", "fsync"]
    )
    assert path.read_bytes() == copy.read_bytes()
    calls.clear()
    save.undo_rewrite(str(path), LIMITS)
    assert [call.name for call in calls] == ["ftruncate", "fsync"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_write_that_fails_is_final(
    number: int,
    path: Path,
    through: None,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Call],
) -> None:
    old = path.read_bytes()

    def refuse(*args: Any) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(WriteError):
        in_place(path)
    assert [call.name for call in calls] == [
        "ftruncate",
        "fsync",
    ] and path.read_bytes() == old


def test_a_short_write_goes_on(
    path: Path, through: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = path.with_name("copy.pth")
    shutil.copyfile(path, copy)
    in_place(copy)
    real = os.pwritev
    monkeypatch.setattr(
        os,
        "pwritev",
        lambda fd, parts, at, flags: real(fd, [parts[0][:100]], at, flags),
    )
    in_place(path)
    assert path.read_bytes() == copy.read_bytes()


SECTOR = 512


def parts(old: bytes, new: bytes) -> list[tuple[int, bytes]]:
    """What is written one after the other; each is on the disk before the next
    begins.
    """
    directory = new.index(b"PK\1\2", len(old))
    return [(len(old), new[len(old) : directory]), (directory, new[directory:])]


def power_cuts(old: bytes, new: bytes) -> Iterator[bytes]:
    """What may be on the disk after a power loss: of the write that was under way, any
    of its sectors, up to any size.
    """
    chance = random.Random(0)
    before = old
    for at, data in parts(old, new):
        after = before + data
        first, last = at // SECTOR, (len(after) - 1) // SECTOR
        sectors = range(first, last + 1)
        kept = [
            set(),
            set(sectors),
            *({each} for each in sectors),
            *(set(sectors) - {each} for each in sectors),
        ]
        kept += [
            set(chance.sample(sectors, chance.randint(0, len(sectors))))
            for _ in range(40)
        ]
        for there in kept:
            for size in {
                len(after),
                *(chance.randint(len(before), len(after)) for _ in range(2)),
            }:
                torn = bytearray(before.ljust(len(after), b"\0"))
                for each in there:
                    torn[each * SECTOR : (each + 1) * SECTOR] = after[
                        each * SECTOR : (each + 1) * SECTOR
                    ]
                yield bytes(torn[:size])
        before = after


@pytest.mark.slow
def test_whatever_sectors_a_power_loss_takes_the_old_archive_is_found(
    path: Path,
) -> None:
    old = path.read_bytes()
    in_place(path)
    new = path.read_bytes()
    assert (
        len(parts(old, new)[0][1]) > 2 * SECTOR
        and len(parts(old, new)[1][1]) > 2 * SECTOR
    )
    seen = {"old": 0, "torn": 0, "new": 0}
    for torn in power_cuts(old, new):
        if torn == new:
            seen["new"] += 1
        elif torn == old:
            seen["old"] += 1
        else:
            seen["torn"] += 1
            assert torn.startswith(old)
            path.write_bytes(torn)
            with pytest.raises(CkptError):
                formats.open(str(path))
            assert end_before(Memory(torn), LIMITS) == len(old)
    assert seen["old"] and seen["new"] and seen["torn"] > 100


def test_what_others_had_not_forced_to_the_disk_is_missed(path: Path) -> None:
    """The file was saved just now, and a power loss takes its end, but not what was
    appended: it is not a checkpoint.
    """
    old = path.read_bytes()
    in_place(path)
    new = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        *_, version, identity, _ = (row.header_offset for row in archive.infolist())
    for lost in range(0, identity, 97):
        path.write_bytes(new[:lost] + bytes(len(old) - lost) + new[len(old) :])
        with pytest.raises(CkptError):
            formats.open(str(path))
        if lost < version and lost % 5 == 0:
            with pytest.raises(RuntimeError):
                torch.load(path, weights_only=True, map_location="cpu")
    # The old directory is not needed any more.
    directory = old.index(b"PK\1\2")
    path.write_bytes(new[:directory] + bytes(len(old) - directory) + new[len(old) :])
    found = rewriting.load(path, map_location="cpu")
    assert all(found[f"module.{i}"].tolist() == [i] * 9 for i in range(40))


# --- real ones ------------------------------------------------------------------------


@pytest.fixture
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A new file system of a type, in a file."""
    words = str(request.param).split()
    maker = shutil.which(words[0], path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if maker is None:
        pytest.skip(f"there is no {words[0]}")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(512 << 20)
    for command in (
        [maker, *words[1:], str(image)],
        ["mount", "-o", "loop", str(image), str(folder)],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"{command[0]}: {error.strerror}")
        if done.returncode:
            pytest.skip(
                f"{words[0]} or mount is not allowed here: {done.stderr.strip()[:200]}"
            )
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def used(folder: Path) -> int:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.sync()
        status = os.fstatvfs(fd)
    finally:
        os.close(fd)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


@pytest.mark.parametrize("mounted", ["mkfs.xfs -q", "mkfs.btrfs -q"], indirect=True)
def test_a_copy_takes_hardly_any_space(mounted: Path) -> None:
    source = rewriting.saved(
        {f"a.{i}": torch.rand(1 << 20) for i in range(16)}, mounted / "a.pth"
    )
    before = used(mounted)
    moved(source, mounted / "b.pth")
    assert used(mounted) - before < 0.05 * source.stat().st_size
    found = rewriting.load(mounted / "b.pth", map_location="cpu")
    assert all(
        torch.equal(tensor, found[name])
        for name, tensor in rewriting.load(source).items()
    )


@pytest.mark.parametrize(
    "mounted",
    ["mkfs.xfs -q", "mkfs.ext4 -q -F", "mkfs.ext4 -q -F -O ^has_journal"],
    indirect=True,
)
def test_in_place_on_a_real_file_system(
    mounted: Path, request: pytest.FixtureRequest, calls: list[Call]
) -> None:
    has_journal = "^has_journal" not in request.node.name
    path = rewriting.saved({"a": torch.rand(9)}, mounted / "a.pth")
    old = path.read_bytes()
    in_place(path)
    save.undo_rewrite(str(path), LIMITS)

    names = [call.name for call in calls]
    assert names == (
        ["pwritev", "pwritev", "ftruncate", "pwritev"]
        if has_journal
        else ["pwrite", "fsync", "pwrite", "fsync", "ftruncate", "fsync"]
    )
    assert path.read_bytes() == old
