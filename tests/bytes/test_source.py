"""Whatever is a Source does what the protocol says. A further one joins the table."""

from __future__ import annotations

import errno
import os
import pickle
import random
import socket
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from needs import is_there
from process import python

from ckpt.bytes.source import (
    BaseSource,
    Extended,
    File,
    Memory,
    Source,
    inflate_exactly,
    is_changed_file,
    open_address,
)
from ckpt.model.errors import CutOffError, DamagedDataError, NotOpenedError

SIZE = 5000
DATA = random.Random(0).randbytes(SIZE)
CUT = 3001
"""Where a source of two parts is joined."""


class Least(BaseSource):
    """What a source has to write of its own: `read`."""

    name = "least"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        return self._data[offset : offset + count]


def file(folder: Path, data: bytes = DATA, name: str = "data.bin") -> File:
    (folder / name).write_bytes(data)
    return File(str(folder / name))


def live(folder: Path, data: bytes = DATA) -> Source:
    """A part of a storage: what lies around it is not its own."""
    from ckpt.ext.live.memory import LiveSource

    whole = torch.frombuffer(bytearray(b"before" + data + b"behind"), dtype=torch.uint8)
    return LiveSource(whole.untyped_storage(), whole.device, 6, 6 + len(data))


def far(url: str) -> Source:
    """Bytes behind a URL."""
    from webs import Kept

    from ckpt.ext.remote.source import RangeSource

    return RangeSource(Kept(DATA), url)


def release_memory() -> None:
    """Let go of the storages of live tensors, if any is held."""
    if is_there("live"):
        from ckpt.ext.live.memory import LiveSource

        LiveSource.release()


SOURCES: dict[str, Callable[[Path], Source]] = {
    "File": file,
    "Memory": lambda folder: Memory(DATA),
    "Extended of a file": lambda folder: Extended(file(folder, DATA[:CUT]), DATA[CUT:]),
    "Extended of memory": lambda folder: Extended(Memory(DATA[:CUT]), DATA[CUT:]),
    "LiveSource": live,
    "RangeSource": lambda folder: far("https://host/data.bin"),
    "RangeSource that begins at the beginning": lambda folder: far(
        "https://host/a.sft"
    ),
    "BaseSource": lambda folder: Least(DATA),
}
"""For each implementation what makes one of DATA."""


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    made = SOURCES[request.param](tmp_path)
    yield made
    made.close()
    release_memory()


RANGES = [
    (0, SIZE),
    (0, 0),
    (SIZE, 0),
    (17, 0),
    (0, 1),
    (SIZE - 1, 1),
    (1, SIZE - 1),
    (0, SIZE - 1),
    (CUT, 0),
    (CUT - 1, 1),
    (CUT, 1),
    (CUT - 1, 2),
    (0, CUT),
    (CUT, SIZE - CUT),
    (CUT - 40, 80),
]
OUTSIDE = [
    (-1, 1),
    (-1, 0),
    (0, -1),
    (SIZE, 1),
    (SIZE + 1, 0),
    (SIZE - 1, 2),
    (0, SIZE + 1),
    (2**63, 1),
]


# --- all of them ----------------------------------------------------------------------


def test_what_it_says_of_itself(source: Source) -> None:
    assert source.size == SIZE
    assert isinstance(source.name, str) and source.name
    assert isinstance(source.identity, tuple) and source.identity == source.identity
    assert all(type(part) in (int, str) for part in source.identity), "plain values"
    assert source.address is None or isinstance(source.address, str)
    source.check_unchanged()


@pytest.mark.parametrize(("offset", "count"), RANGES)
def test_reads(offset: int, count: int, source: Source) -> None:
    expected = DATA[offset : offset + count]

    assert source.read(offset, count) == expected
    assert type(source.read(offset, count)) is bytes
    buffer = bytearray(b"\xaa" * (count + 20))
    source.read_into(offset, memoryview(buffer)[10 : 10 + count])
    assert buffer == b"\xaa" * 10 + expected + b"\xaa" * 10
    assert source.read_many([(offset, count)]) == [expected]


def test_reads_of_several_ranges_come_in_the_order_that_was_asked(
    source: Source,
) -> None:
    asked = [*RANGES, *reversed(RANGES), RANGES[0]]

    assert source.read_many(asked) == [
        DATA[offset : offset + count] for offset, count in asked
    ]
    assert source.read_many([]) == []


@pytest.mark.parametrize(("offset", "count"), OUTSIDE)
def test_nothing_lies_outside(offset: int, count: int, source: Source) -> None:
    with pytest.raises(CutOffError):
        source.read(offset, count)
    with pytest.raises(CutOffError):
        source.read_many([(0, 10), (offset, count)])
    if count >= 0:
        buffer = bytearray(b"\xaa" * count) if count < 2 * SIZE else bytearray()
        with pytest.raises(CutOffError):
            source.read_into(offset, memoryview(buffer))
        assert buffer == b"\xaa" * len(buffer), (
            "nothing is taken in of a range that is not there"
        )


def test_several_threads_read_at_once(source: Source) -> None:
    start = threading.Barrier(8)

    def reads(seed: int) -> bool:
        chance = random.Random(seed)
        start.wait()
        for _ in range(200):
            offset = chance.randrange(SIZE)
            count = chance.randrange(SIZE - offset + 1)
            buffer = bytearray(count)
            source.read_into(offset, memoryview(buffer))
            if (
                not source.read(offset, count)
                == buffer
                == DATA[offset : offset + count]
            ):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(reads, range(8)))


def test_closing_twice_is_closing(source: Source) -> None:
    source.close()
    source.close()


def test_only_files_have_a_descriptor(source: Source) -> None:
    with source.descriptor() as fd:
        assert (
            (fd is not None) == (source.status is not None) == isinstance(source, File)
        )
        assert fd is None or os.pread(fd, SIZE, 0) == DATA


def test_an_address_opens_the_same(source: Source) -> None:
    is_far = type(source).__name__ == "RangeSource"
    assert (source.address is not None) == (is_far or isinstance(source, File))
    if is_far:
        return  # tests/ext/remote has the servers
    if source.address is not None:
        again = open_address(source.address)
        assert again.read(0, SIZE) == DATA and again.identity == source.identity
        assert again.address == source.address
        again.close()


# --- files ----------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["append", "cut", "overwrite", "touch"])
@pytest.mark.parametrize("is_inside", [False, True], ids=["File", "Extended"])
def test_a_write_is_noticed(change: str, is_inside: bool, tmp_path: Path) -> None:
    inner = file(tmp_path)
    source: Source = Extended(inner, b"more") if is_inside else inner
    source.check_unchanged()

    changed(tmp_path / "data.bin", change)

    with pytest.raises(NotOpenedError):
        source.check_unchanged()
    inner.close()


def changed(path: Path, how: str) -> None:
    """A file as somebody else changes it, also where the clock of the file system is
    slow.
    """
    if how == "append":
        with path.open("ab") as open_file:
            open_file.write(b"x")
    elif how == "cut":
        os.truncate(path, SIZE - 1)
    elif how == "overwrite":
        with path.open("r+b") as open_file:
            open_file.write(b"other")
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**7))


def status_of(**changed: int) -> os.stat_result:
    """Return the status of a file of 64 bytes with some fields changed."""
    names = ("mode", "ino", "dev", "nlink", "uid", "gid", "size")
    usual = {
        "mode": 0o100644,
        "ino": 7,
        "dev": 2,
        "nlink": 1,
        "uid": 0,
        "gid": 0,
        "size": 64,
    }
    times = {f"st_{name}_ns": changed.pop(name, 1) for name in ("mtime", "ctime")}
    return os.stat_result(
        [*((usual | changed)[name] for name in names), 0, 0, 0], times
    )


@pytest.mark.parametrize("name", ["ino", "dev", "size", "mtime", "ctime"])
def test_another_file_or_other_bytes_are_a_change(name: str) -> None:
    """Whoever sets the time of a file back after a write cannot set the time of
    that.
    """
    assert is_changed_file(status_of(**{name: 9}), status_of())


@pytest.mark.parametrize("name", ["mode", "nlink", "uid", "gid"])
def test_another_name_or_other_rights_are_no_change(name: str) -> None:
    assert not is_changed_file(status_of(**{name: 9, "ctime": 9}), status_of())


def test_reading_a_file_is_no_change(tmp_path: Path) -> None:
    source = file(tmp_path)
    source.read(0, SIZE)
    (tmp_path / "data.bin").chmod(0o600)

    source.check_unchanged()
    source.close()


@pytest.mark.parametrize("size", [0, 1, SIZE // 2, SIZE - 1])
def test_a_file_that_is_cut_while_it_is_read(size: int, tmp_path: Path) -> None:
    """A short read, not a signal, and never bytes that are not there."""
    source = file(tmp_path)
    os.truncate(tmp_path / "data.bin", size)

    for read in (
        lambda: source.read(0, SIZE),
        lambda: source.read(SIZE - 1, 1),
        lambda: source.read_into(0, memoryview(bytearray(SIZE))),
        lambda: source.read_many([(0, 0), (SIZE - 10, 10)]),
    ):
        with pytest.raises(NotOpenedError) as caught:
            read()
        assert caught.value.path == source.name
    assert source.read(0, size) == DATA[:size]
    source.close()


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_reads_that_the_system_cuts_short_go_on(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system gives what it has; Linux never gives more than 2 GiB."""
    source = file(tmp_path)
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(
        os, "pread", lambda fd, count, at: pread(fd, min(count, step), at)
    )
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:step]], at)
    )

    buffer = bytearray(SIZE - 3)
    source.read_into(2, memoryview(buffer))
    assert source.read(2, SIZE - 3) == buffer == DATA[2:-1]
    source.close()


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = file(tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(os, "preadv", fail)
    for read in (
        lambda: source.read(0, 5),
        lambda: source.read_into(0, memoryview(bytearray(5))),
    ):
        with pytest.raises(NotOpenedError):
            read()
    source.close()


def test_a_file_that_is_closed_is_not_read(tmp_path: Path) -> None:
    source = file(tmp_path)
    with source.descriptor() as opened:
        assert opened is not None
    source.close()

    with pytest.raises(OSError):
        os.fstat(opened)
    with pytest.raises(NotOpenedError):
        source.read(0, 1)
    with pytest.raises(NotOpenedError):
        source.read_into(0, memoryview(bytearray(1)))


def test_identities_tell_states_of_a_file_apart(tmp_path: Path) -> None:
    source, other = file(tmp_path), file(tmp_path, name="other.bin")
    identities = [source.identity, other.identity]
    for change in ("append", "cut", "overwrite", "touch"):
        changed(tmp_path / "data.bin", change)
        again = File(str(tmp_path / "data.bin"))
        identities.append(again.identity)
        again.close()
    copy = tmp_path / "copy.bin"
    copy.write_bytes((tmp_path / "data.bin").read_bytes())
    copy.replace(tmp_path / "data.bin")
    again = File(str(tmp_path / "data.bin"))
    identities.append(again.identity)
    again.close()

    assert len(set(identities)) == len(identities)
    assert source.identity == identities[0], "of the file as it was opened"
    source.close()
    other.close()


# --- what is no file ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "fifo",
        "folder",
        "folder/",
        "socket",
        "dangling",
        "loop",
        "to the fifo",
        "to the folder",
        "missing",
        "missing/data.bin",
        "data.bin/x",
        "",
        "a\0b",
        "\0",
        "x" * 300,
        "a\ud800b",
        "/dev/zero",
        "/dev/null",
        "/dev/stdin",
        "/dev/full",
    ],
    ids=ascii,
)
def test_what_is_no_regular_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.bin").write_bytes(DATA)
    os.mkfifo("fifo")  # nobody writes to it: opening it must not wait
    os.mkdir("folder")
    for link, target in (
        ("dangling", "missing"),
        ("loop", "loop"),
        ("to the fifo", "fifo"),
        ("to the folder", "folder"),
    ):
        os.symlink(target, link)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(NotOpenedError):
            File(name)
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("data.bin")
    source = file(tmp_path)
    link = File(str(tmp_path / "link"))

    assert link.read(0, SIZE) == DATA and link.identity == source.identity
    source.close()
    link.close()


# --- in another process ---------------------------------------------------------------

UNPICKLE = """
import pickle, sys
from ckpt.model.errors import NotOpenedError
try:
    source = pickle.load(open(sys.argv[1], "rb"))
    sys.stdout.write(source.read(0, source.size).hex())
except NotOpenedError:
    sys.stdout.write("refused")
"""


def elsewhere(pickled: bytes, folder: Path) -> str:
    """What another process, in another folder, reads of a pickled source, as
    hexadecimal digits.
    """
    (folder / "source.pickle").write_bytes(pickled)
    done = python("-c", UNPICKLE, folder / "source.pickle", cwd=Path("/"))
    assert done.code == 0, done.err.decode()
    return done.out.decode()


def test_a_file_pickles_as_where_it_is_and_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.bin").write_bytes(DATA)
    source = File("data.bin")
    pickled = pickle.dumps(source)

    assert len(pickled) < 1000, "an address, no bytes"
    again = pickle.loads(pickled)
    assert again.read(0, SIZE) == DATA and again.identity == source.identity
    assert elsewhere(pickled, tmp_path) == DATA.hex()
    source.close()
    again.close()


@pytest.mark.parametrize(
    "how", ["append", "cut", "overwrite", "touch", "replace", "remove"]
)
def test_a_file_that_changed_is_not_unpickled(how: str, tmp_path: Path) -> None:
    source = file(tmp_path)
    pickled = pickle.dumps(source)
    path = tmp_path / "data.bin"
    if how == "remove":
        path.unlink()
    elif how == "replace":
        (tmp_path / "new").write_bytes(DATA)
        (tmp_path / "new").replace(path)
    else:
        changed(path, how)

    with pytest.raises(NotOpenedError):
        pickle.loads(pickled)
    assert elsewhere(pickled, tmp_path) == "refused"
    source.close()


def test_a_source_that_was_unpickled_and_closed_is_opened_again(tmp_path: Path) -> None:
    source = file(tmp_path)
    pickled = pickle.dumps(source)
    pickle.loads(pickled).close()

    again = pickle.loads(pickled)

    assert again.read(0, SIZE) == DATA
    again.close()
    source.close()


def test_unpickling_many_files_leaves_no_more_open_than_a_few(tmp_path: Path) -> None:
    """A worker gets tasks of hundreds of shards one after the other."""
    before = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        source = file(tmp_path, DATA[:10], f"{number}.bin")
        pickled = pickle.dumps(source)
        source.close()
        assert pickle.loads(pickled).read(0, 10) == DATA[:10]

    assert len(os.listdir("/proc/self/fd")) <= before + 64


# --- tensors of this process ----------------------------------------------------------


def test_two_live_sources_are_read_by_several_threads(tmp_path: Path) -> None:
    """Only one of them is held at a time, whoever asks."""
    sources = [live(tmp_path), live(tmp_path, DATA[::-1])]
    expected = [DATA, DATA[::-1]]

    def reads(number: int) -> bool:
        return all(
            sources[(number + turn) % 2].read(turn, 100)
            == expected[(number + turn) % 2][turn : turn + 100]
            for turn in range(400)
        )

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(reads, range(8)))
    finally:
        sys.setswitchinterval(before)
    release_memory()


# --- deflated bytes -------------------------------------------------------------------


def test_deflated_bytes_are_inflated_to_their_recorded_size() -> None:
    machine = zlib.compressobj(wbits=-15)
    data = machine.compress(DATA)
    open_end = data + machine.flush(zlib.Z_SYNC_FLUSH)
    data = open_end + machine.flush()
    assert inflate_exactly(data, len(DATA), "it") == DATA
    for size in (0, len(DATA) - 1, len(DATA) + 1):
        with pytest.raises(
            DamagedDataError, match=f"it: does not inflate to the {size:,} bytes"
        ):
            inflate_exactly(data, size, "it")
    with pytest.raises(
        DamagedDataError, match="does not inflate"
    ):  # all bytes are there, but not its end
        inflate_exactly(open_end, len(DATA), "it")
    with pytest.raises(DamagedDataError, match="it: damaged deflate data"):
        inflate_exactly(b"\xff" * 20, 20, "it")
