"""Few files are open at once, whatever is read; a file that was closed meanwhile is the
same one, or refused.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from process import python

from ckpt.bytes import source as descriptors
from ckpt.bytes.source import File, open_address
from ckpt.model.errors import NotOpenedError

COUNT, SIZE = 20, 300


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two files stay open."""
    monkeypatch.setattr(descriptors._Process, "most", 2)
    monkeypatch.setattr(descriptors._Process, "is_known", True)
    with descriptors._LOCK:
        descriptors._close_least_used(0)
    yield


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def files(folder: Path, count: int = COUNT) -> list[File]:
    for number in range(count):
        (folder / f"{number}").write_bytes(content(number))
    return [File(str(folder / f"{number}")) for number in range(count)]


def opened(folder: Path) -> int:
    """How many files of a folder this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/")
        except OSError:
            pass
    return found


@pytest.mark.usefixtures("few")
def test_few_are_open_and_all_are_read(tmp_path: Path) -> None:
    sources = files(tmp_path)

    for _ in range(2):
        for number, source in enumerate(sources):
            buffer = bytearray(SIZE)
            source.read_into(0, memoryview(buffer))
            assert source.read(0, SIZE) == buffer == content(number)
            assert opened(tmp_path) <= 2
            source.check_unchanged()
    for source in sources:
        source.close()
    assert opened(tmp_path) == 0


@pytest.mark.usefixtures("few")
def test_one_that_is_in_use_stays_open(tmp_path: Path) -> None:
    sources = files(tmp_path)

    with sources[0].descriptor() as fd:
        assert fd is not None
        for source in sources[1:]:
            source.read(0, SIZE)
        sources[0].close()
        assert os.pread(fd, SIZE, 0) == content(0)
    with pytest.raises(OSError):
        os.fstat(fd)
    with pytest.raises(NotOpenedError):
        sources[0].read(0, 1)


@pytest.mark.usefixtures("few")
def test_more_in_use_than_stay_open(tmp_path: Path) -> None:
    sources = files(tmp_path, 5)
    held = [source.descriptor() for source in sources]
    fds = [each.__enter__() for each in held]

    assert [os.pread(fd, SIZE, 0) for fd in fds if fd is not None] == [
        content(n) for n in range(5)
    ]
    for each in held:
        each.__exit__(None, None, None)
    sources[0].read(0, SIZE)
    File(str(tmp_path / "0")).close()
    assert opened(tmp_path) <= 2


@pytest.mark.usefixtures("few")
def test_threads_read_more_files_than_are_open(tmp_path: Path) -> None:
    sources = files(tmp_path)

    def reads(seed: int) -> bool:
        chance = random.Random(seed)
        for _ in range(300):
            number, offset = chance.randrange(COUNT), chance.randrange(SIZE)
            if sources[number].read(offset, SIZE - offset) != content(number)[offset:]:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(reads, range(8)))
    assert opened(tmp_path) <= 8


@pytest.mark.parametrize(
    "how", ["append", "cut", "overwrite", "replace", "remove", "folder"]
)
@pytest.mark.usefixtures("few")
def test_a_file_that_changed_while_it_was_closed_is_refused(
    how: str, tmp_path: Path
) -> None:
    source, *others = files(tmp_path, 4)
    path = tmp_path / "0"
    before = path.stat()
    if how == "append":
        path.write_bytes(content(0) + b"x")
    elif how == "cut":
        os.truncate(path, SIZE - 1)
    elif how == "overwrite":
        path.write_bytes(content(9))
    elif how == "replace":
        (tmp_path / "new").write_bytes(content(0))
        os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (tmp_path / "new").replace(path)
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
    if how in ("append", "cut", "overwrite"):
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**7))

    for use in (lambda: source.read(0, 1), source.check_unchanged):
        with pytest.raises(NotOpenedError, match="changed while it was read") as error:
            use()
        assert error.value.path == str(path)
    assert others[-1].read(0, SIZE) == content(3)


@pytest.mark.usefixtures("few")
def test_another_folder_of_the_process_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "a" / "file").write_bytes(content(7))
    monkeypatch.chdir(tmp_path)
    source = File("link/../file")  # no text tells which file that is
    others = files(tmp_path)
    monkeypatch.chdir("/")

    assert source.read(0, SIZE) == content(7)
    source.check_unchanged()
    again = open_address(source.address or "")
    assert again.identity == source.identity
    assert len(others) == COUNT


@pytest.mark.usefixtures("few")
def test_a_file_that_nobody_holds_is_closed(tmp_path: Path) -> None:
    sources = files(tmp_path, 2)
    assert opened(tmp_path) == 2
    del sources
    assert opened(tmp_path) == 0


@pytest.mark.usefixtures("few")
def test_a_finalizer_waits_for_nobody(tmp_path: Path) -> None:
    sources = files(tmp_path, 2)
    with ThreadPoolExecutor(1) as pool, descriptors._LOCK:
        pool.submit(sources.clear).result(timeout=600)
        assert not sources and opened(tmp_path) == 2
    File(str(tmp_path / "0")).close()
    assert opened(tmp_path) == 0


def test_a_process_that_may_open_no_more_files_says_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever counts files that are not there would count it."""
    (source,) = files(tmp_path, 1)
    descriptors._close_least_used(0)

    def fail(*arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(descriptors._Process, "most", 2)
    monkeypatch.setattr(os, "open", fail)
    for use in (lambda: source.read(0, 1), lambda: File(str(tmp_path / "0"))):
        with pytest.raises(OSError) as error:
            use()
        assert error.value.errno == errno.EMFILE


def test_the_soft_limit_is_raised_before_it_is_reached(tmp_path: Path) -> None:
    files(tmp_path, 30)
    code = """
import resource, sys
from ckpt.bytes.source import File, open_address
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (12, hard))
alone = File(f"{sys.argv[1]}/0")
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 12, "one file needs no more"
kept = [File(f"{sys.argv[1]}/{number}") for number in range(30)]
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], len({source.read(0, 300) for source in kept}))
"""
    done = python("-c", code, tmp_path)
    assert (done.code, done.out, done.err) == (0, b"256 30\n", b"")


def test_nothing_is_said_at_the_end_of_a_process(tmp_path: Path) -> None:
    """Files that are left to the very end are deleted after the modules that close
    them.
    """
    (source,) = files(tmp_path, 1)
    code = """
import os, sys, threading
from ckpt.bytes.source import File, open_address

class Round:
    def __init__(self):
        self.file, self.me = File(sys.argv[1]), self

os.kept, sys.kept, threading.kept, sys.round = File(sys.argv[1]), File(sys.argv[1]), Round(), Round()
threading.me = threading
"""
    done = python("-c", code, source.name)
    assert (done.code, done.out, done.err) == (0, b"", b"")
