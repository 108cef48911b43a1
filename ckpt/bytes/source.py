"""The sources of bytes: a regular file, memory, a file with more bytes after its end, a
part of a file.

Files are read with `pread`, never with mmap: a file that shrinks meanwhile gives a
short read, not a signal. Few are open at once: each is opened again when it is needed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import accumulate
from itertools import count as numbers
from threading import RLock
from typing import BinaryIO, Protocol, cast

from ckpt.bytes.far import Far, is_url
from ckpt.hooks import load_hook
from ckpt.model.errors import (
    TOO_MANY,
    TOO_MANY_TEXT,
    CutOffError,
    DamagedDataError,
    LimitError,
    NotOpenedError,
    is_stopped,
)
from ckpt.model.text import pasted_path

MOST = 1 << 30
"""The most bytes of one system call: macOS refuses 2 GiB."""

STEP = 8 << 20
"""Bytes that a source without a way into memory of others reads at once on their way
there.
"""

NO_PATH = (
    "a checkpoint that was opened from a file object does not pickle: open it by its "
    "path"
)
_NUMBERS = numbers(1)
"""The numbers of file objects: no two are taken for the same file."""

Identity = tuple[int | str, ...]
"""Plain values that identify one state of a source: device, inode, size and times of a
file, or an ETag. The last two are the same on all machines that read it: size and time,
or ETag.
"""


class Source(Protocol):
    """Bytes that can be read at any offset. Offsets and sizes are in bytes.

    A source must not change while it is read; `check_unchanged` checks that afterwards.
    Several threads may read at once. A source pickles as its address and its identity;
    without an address it does not pickle.
    """

    @property
    def name(self) -> str:
        """Its name for people: the path as given, or a URL."""
        ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes at `offset`. Raises CutOffError when the source ends
        earlier, NotOpenedError.
        """
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes at `offset`. Raises as `read` does."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, count), in order. Several ranges may become one
        request. Raises as `read` does.
        """
        ...

    def check_unchanged(self) -> None:
        """Raise NotOpenedError when the source has changed since it was opened."""
        ...

    def close(self) -> None: ...

    @property
    def status(self) -> os.stat_result | None:
        """The status of a file of this machine from the time it was opened, or None for
        any other source.
        """
        ...

    def descriptor(self) -> AbstractContextManager[int | None]:
        """Open a descriptor that the kernel can copy from, for the block.

        It is None if `status` is None. Raises as `read` does.
        """
        ...

    @property
    def address(self) -> str | None:
        """The address with which `open_address` opens the same source, also in another
        process.

        The address of memory is None.
        """
        ...

    @property
    def identity(self) -> Identity: ...

    @property
    def far(self) -> Far | None:
        """The place to hand in claims, or None if reads are cheap."""
        ...


class BaseSource:
    """A source that only needs `read`. The rest of the contract uses it."""

    name = "(memory)"
    size = 0

    def read(self, offset: int, count: int) -> bytes:
        raise NotImplementedError

    def read_into(self, offset: int, buffer: memoryview) -> None:
        # In steps, so that a buffer of gigabytes needs no second one of its size; an
        # empty buffer is checked too.
        for position in range(0, len(buffer) or 1, STEP):
            piece = buffer[position : position + STEP]
            piece[:] = self.read(offset + position, len(piece))

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(offset, count) for offset, count in ranges]

    def check_unchanged(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def status(self) -> os.stat_result | None:
        return None

    def descriptor(self) -> AbstractContextManager[int | None]:
        return nullcontext()

    @property
    def address(self) -> str | None:
        return None

    @property
    def identity(self) -> Identity:
        return (self.name, self.size)

    @property
    def far(self) -> Far | None:
        return None

    def _check_range(self, offset: int, count: int, path: str | None = None) -> None:
        # Before anything is allocated, for the numbers come from the file.
        if offset < 0 or count < 0 or offset + count > self.size:
            span = f"bytes {offset:,} to {offset + count:,} are needed"
            raise CutOffError(f"cut off: {span}, it ends at {self.size:,}", path=path)


class File(BaseSource):
    """A regular file, opened for reading. Raises NotOpenedError for anything else,
    OSError where too many are open.

    It is closed while many others are read, and opened again when it is needed: then it
    must be the same file. A descriptor `fd` that is handed over is read, and stays open
    for whoever opened it. `opened` is one that this file closes. A file without a path
    has no address.
    """

    _opened: Descriptor | None = None
    _fd = -1

    def __init__(
        self, path: str, fd: int | None = None, opened: Descriptor | None = None
    ) -> None:
        self.name = path
        try:
            if fd is None:
                self._opened = opened or Descriptor(path)
                self._status = self._opened.status
            else:
                self._fd = fd
                self._status = os.fstat(fd)
        except OSError as error:
            download = lost_blob(path)
            if download is not None:
                raise NotOpenedError(LOST_BLOB, path=path, hint=download) from None
            raise _open_error(error) from None
        except ValueError:
            raise NotOpenedError("not a file name: it contains a NUL byte") from None
        if not stat.S_ISREG(self._status.st_mode):
            self.close()
            raise NotOpenedError(
                f"not a regular file: {_file_kind(self._status.st_mode)}"
            )
        self.size = self._status.st_size
        self.bytes_read = 0

    @property
    def status(self) -> os.stat_result | None:
        return self._status

    @contextmanager
    def descriptor(self) -> Iterator[int | None]:
        fd = self._take_descriptor()
        try:
            yield fd
        finally:
            self._release_descriptor()

    @property
    def address(self) -> str | None:
        # The descriptor is another program's, but the path may be opened again.
        if self._opened is None:
            return os.path.abspath(self.name)
        return self._opened.path or None

    @property
    def identity(self) -> Identity:
        status = self._status
        return (
            status.st_dev,
            status.st_ino,
            status.st_ctime_ns,
            status.st_size,
            status.st_mtime_ns,
        )

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        if self.address is None:
            raise TypeError(NO_PATH)
        return reopened, (self.address, self.identity)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        fd = self._take_descriptor()
        try:
            # A position of its own for each read, so threads share one descriptor.
            data = os.pread(fd, min(count, MOST), offset)
            # A short read is no error: a signal or a network file system may end it.
            while len(data) < count:
                more = os.pread(fd, min(count - len(data), MOST), offset + len(data))
                if not more:
                    raise NotOpenedError(
                        "the file changed while it was read", path=self.name
                    )
                data += more
        except OSError as error:
            raise NotOpenedError(read_failure_reason(error), path=self.name) from None
        finally:
            self._release_descriptor()
        self.bytes_read += count
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        count = len(buffer)
        self._check_range(offset, count, self.name)
        done = 0
        fd = self._take_descriptor()
        try:
            while done < count:
                more = _read_into(fd, buffer[done : done + MOST], offset + done)
                if not more:
                    raise NotOpenedError(
                        "the file changed while it was read", path=self.name
                    )
                done += more
        except OSError as error:
            raise NotOpenedError(read_failure_reason(error), path=self.name) from None
        finally:
            self._release_descriptor()
        self.bytes_read += count

    def check_unchanged(self) -> None:
        try:
            now = os.fstat(self._fd) if self._opened is None else self._opened.now()
        except OSError:
            raise changed_error(self.name) from None
        if is_changed_file(now, self._status):
            raise changed_error(self.name)

    def close(self) -> None:
        self._fd = -1
        if self._opened is not None:
            self._opened.close()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # One that came with a task to another process belongs to nobody else. At the
        # end of the process the modules that close a file are gone.
        if self._opened is not None and not is_ending():
            self._opened.drop()

    def _take_descriptor(self) -> int:
        """An open descriptor, until `_release_descriptor`. Raises NotOpenedError."""
        if self._opened is None:
            return self._fd
        try:
            return self._opened.take()
        except OSError as error:
            raise _open_error(error, self.name) from None
        except NotOpenedError:
            raise changed_error(self.name) from None

    def _release_descriptor(self) -> None:
        if self._opened is not None:
            self._opened.release()


class Memory(BaseSource):
    """Bytes in memory, such as a checkpoint inside a pickle."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        return self._data[offset : offset + count]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._check_range(offset, len(buffer))
        buffer[:] = memoryview(self._data)[offset : offset + len(buffer)]


class Given(Memory):
    """The bytes of a checkpoint that a program holds. Their content is their
    identity.
    """

    _digest: str | None = None

    @property
    def identity(self) -> Identity:
        if self._digest is None:
            # Here: only who compares pays for it.
            from hashlib import sha256

            self._digest = sha256(self._data).hexdigest()
        return (self.size, self._digest)


class FileObject(BaseSource):
    """A file object of a program that can seek. Its position stays as it is, and
    closing leaves it open.

    No other process can read it: it has no address. Raises NotOpenedError.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self.bytes_read = 0
        self._file = file
        self._lock = RLock()
        self._number = next(_NUMBERS)
        with self._file_moved_to(0, os.SEEK_END) as end:
            self.size = end

    @property
    def identity(self) -> Identity:
        return (self._number, self.size)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        raise TypeError(NO_PATH)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        parts: list[bytes] = []
        # A read may give less than it was asked for, as any file object of Python.
        with self._file_moved_to(offset):
            while count:
                part = self._file.read(count)
                if not part:
                    raise changed_error(self.name)
                parts.append(part)
                count -= len(part)
                self.bytes_read += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def check_unchanged(self) -> None:
        with self._file_moved_to(0, os.SEEK_END) as end:
            if end != self.size:
                raise changed_error(self.name)

    @contextmanager
    def _file_moved_to(self, offset: int, whence: int = os.SEEK_SET) -> Iterator[int]:
        """Move the file for the block. Other threads wait."""
        with self._lock:
            try:
                before = self._file.tell()
                try:
                    yield self._file.seek(offset, whence)
                finally:
                    self._file.seek(before)
            except OSError as error:
                raise NotOpenedError(
                    read_failure_reason(error), path=self.name
                ) from None
            except ValueError:
                raise NotOpenedError(
                    "the file object is closed", path=self.name
                ) from None


class Zeros(BaseSource):
    """So many bytes that are zero."""

    def __init__(self, size: int) -> None:
        self.size = size

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        return bytes(count)


class Extended(BaseSource):
    """A source with more bytes after its end."""

    def __init__(self, source: Source, more: bytes) -> None:
        self._source = source
        self._more = more
        self.name = source.name
        self.size = source.size + len(more)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        own_end = self._source.size
        head_count = max(0, min(count, own_end - offset))
        head = self._source.read(offset, head_count) if head_count else b""
        begin = max(0, offset - own_end)
        return head + self._more[begin : begin + count - head_count]

    def check_unchanged(self) -> None:
        self._source.check_unchanged()


class Beginning(BaseSource):
    """The first `size` bytes of a source."""

    def __init__(self, source: Source, size: int) -> None:
        self._source = source
        self.name = source.name
        self.size = size

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        return self._source.read(offset, count)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._check_range(offset, len(buffer))
        self._source.read_into(offset, buffer)

    def check_unchanged(self) -> None:
        self._source.check_unchanged()


class Window(BaseSource):
    """The `size` bytes of a source at `offset`, such as a member of an archive. Closing
    it leaves the source open.
    """

    def __init__(self, source: Source, offset: int, size: int, name: str) -> None:
        self.outer = source
        self.offset = offset
        self.size = size
        self.name = name

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        return self.outer.read(self.offset + offset, count)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._check_range(offset, len(buffer), self.name)
        self.outer.read_into(self.offset + offset, buffer)

    def check_unchanged(self) -> None:
        self.outer.check_unchanged()


class Joined(BaseSource):
    """Several sources as one, each behind the one before. Closing it closes them."""

    def __init__(self, name: str, sources: Sequence[Source]) -> None:
        self.name = name
        self.sources = sources
        ends = list(accumulate(source.size for source in sources))
        self.size = ends[-1] if ends else 0
        self._begins = [0, *ends[:-1]]

    def at(self, offset: int) -> tuple[Source, int]:
        """The source that holds the byte at an offset, and the offset there."""
        # An empty source begins where the next one does, and is passed over.
        index = bisect_right(self._begins, offset) - 1
        return self.sources[index], offset - self._begins[index]

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        pieces: list[bytes] = []
        while count:
            source, begin = self.at(offset)
            taken = min(count, source.size - begin)
            pieces.append(source.read(begin, taken))
            offset += taken
            count -= taken
        return b"".join(pieces)

    def check_unchanged(self) -> None:
        for source in self.sources:
            source.check_unchanged()

    def close(self) -> None:
        for source in self.sources:
            source.close()

    @property
    def identity(self) -> Identity:
        return tuple(part for source in self.sources for part in source.identity)


def underlying_file(source: Source, offset: int) -> tuple[Source, int]:
    """Return the file that holds a byte of a source, and its offset there. It can be
    copied from there.
    """
    while True:
        if isinstance(source, Window):
            offset += source.offset
            source = source.outer
        elif isinstance(source, Joined):
            source, offset = source.at(offset)
        else:
            return source, offset


def open_address(address: str) -> Source:
    """The source with this address. Raises NotOpenedError."""
    if not is_url(address):
        return File(address)
    # Only a URL pays for the module that opens it.
    open_url = cast("Callable[[str], Source]", load_hook("url location").open_url)
    return open_url(address)


def reopened(address: str, identity: Identity) -> Source:
    """The source of an address in another process. Raises NotOpenedError when it has
    changed.
    """
    source = open_address(address)
    if source.identity != identity:
        source.close()
        raise NotOpenedError("the file changed while it was read", path=address)
    return source


def inflate_exactly(data: bytes, size: int, what: str) -> bytes:
    """Inflate raw deflate data to exactly `size` bytes. Raises DamagedDataError for any
    other size.
    """
    # A negative number: without the header and the checksum of zlib, as in archives.
    machine = zlib.decompressobj(-15)
    try:
        # One byte more than recorded is enough to know that there are more: a few bytes
        # of deflate data can hold gigabytes.
        out = machine.decompress(data, size + 1)
    except zlib.error:
        raise DamagedDataError(f"{what}: damaged deflate data") from None
    if len(out) != size or not machine.eof:
        raise DamagedDataError(
            f"{what}: does not inflate to the {size:,} bytes that the archive records"
        )
    return out


def first_bytes(path: str, count: int = 512) -> bytes:
    """The first bytes of a file, fewer where it ends before; none of what cannot be
    opened.
    """
    try:
        file = File(path)
    except NotOpenedError:
        return b""
    try:
        return file.read(0, min(count, file.size))
    finally:
        file.close()


def read_limited(source: Source, limit: int, limit_name: str, what: str) -> bytes:
    """All bytes of a source. Raises LimitError when it has more than `limit`."""
    # The size is known before a byte is read.
    if source.size > limit:
        raise LimitError(f"{what} has {source.size:,} bytes", limit_name, limit)
    return source.read(0, source.size)


_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")


def read_pipe(path: str, most: int) -> bytes | None:
    """Read the first `most` bytes of a pipe of this process, as `<(…)` of a shell makes
    it, or of a device.

    Return None for any other path. A FIFO with a name is one: without a writer reading
    it would not end.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        # Opening it says why.
        return None
    is_own_pipe = stat.S_ISFIFO(mode) and path.startswith(_DESCRIPTORS)
    # `/dev/stdin` on a terminal is a device, `<(…)` is a pipe below `/dev/fd/`.
    if not stat.S_ISCHR(mode) and not is_own_pipe:
        return None
    with open(path, "rb") as stream:
        return stream.read(most)


def _read_into(fd: int, buffer: memoryview, offset: int) -> int:
    """Read into a buffer, and return the number of bytes that were read."""
    # Not every system has it.
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    data = os.pread(fd, len(buffer), offset)
    buffer[: len(data)] = data
    return len(data)


def _open_error(error: OSError, path: str | None = None) -> Exception:
    """The error for a file that was not opened. A process that may open no more files
    says nothing of the file.
    """
    if error.errno in TOO_MANY:
        return error
    return NotOpenedError(read_failure_reason(error), path=path)


LOST_BLOB = "no such file: the Hugging Face cache has lost its blob"


def lost_blob(path: str) -> str | None:
    """Return the command that loads a file of a Hugging Face cache again, where its
    link leads to no blob; or None.
    """
    try:
        if not os.path.islink(path) or os.path.exists(path):
            return None
    except ValueError:
        return None
    match = re.search(r"/models--([^/]+)/snapshots/[^/]+/", os.path.abspath(path))
    if match is None:
        return None
    # The name of a model may hold two dashes, that of an organisation may not: the
    # first ones stand for the slash.
    model = pasted_path(match[1].replace("--", "/", 1))
    return f"hf download {model or 'ORG/MODEL'}"


CLOSED = "the checkpoint is closed"
"""The reason why a file that was closed meanwhile is not read."""


def read_failure_reason(error: OSError) -> str:
    """Return the reason why something cannot be read, in plain words. Raises the error
    again where the fence made it.
    """
    if is_stopped(error):
        raise error
    texts = {
        errno.ENOENT: "no such file",
        errno.ENOTDIR: "no such file",
        errno.EACCES: "no permission to read it",
        errno.EPERM: "no permission to read it",
        errno.ELOOP: "too many symbolic links",
        errno.ENAMETOOLONG: "the name is too long",
        errno.ENXIO: "not a regular file: a socket or a device",
        errno.EIO: "the disk reports a read error",
        errno.EMFILE: TOO_MANY_TEXT,
        errno.EBADF: CLOSED,
    }
    return texts.get(error.errno or 0) or (error.strerror or "cannot be read").lower()


def irregular_text(mode: int) -> str:
    """Return what a path that is no regular file is, by its mode."""
    return f"not a regular file: {_file_kind(mode)}"


def _file_kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for test, name in kinds if test(mode)), "something else")


MOST_OPEN = 64
"""The most descriptors that stay open while nobody reads from them."""
_SAFE = 8
"""Every system allows so many. Before more are open, the limit of this process is
looked at.
"""
_WANTED = 256
"""The soft limit that leaves enough for all others: files that are written, sockets,
imports.
"""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
"""O_NONBLOCK: opening a FIFO without a writer must not hang."""
# Reentrant: a finalizer may close a file in the middle of all of this.
_LOCK = RLock()
# A child must not find it held by a thread that it does not have.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire,
        after_in_parent=_LOCK.release,
        after_in_child=_LOCK.release,
    )
_OPEN: dict[Descriptor, None] = {}
"""The open ones, the one that was used last at the end."""
_DROPPED: list[Descriptor] = []
"""Those that nobody can use any more."""


class Descriptor:
    """The descriptor of a file, for any number of threads at once.

    `take` gives an open one, which stays open until `release`. Raises OSError,
    ValueError.
    """

    __slots__ = ("_fd", "_is_closed", "_users", "path", "status")

    def __init__(self, path: str) -> None:
        self.path = path
        self._users = 0
        self._is_closed = False
        with _LOCK:
            self._fd = _open_for_reading(path)
            _OPEN[self] = None
            self.status = os.fstat(self._fd)
        # The process may go to another folder before the file is opened again.
        if not os.path.isabs(path):
            self.path = os.path.join(_working_folder(), path)
            """The path from the root, with its links and `..` as they were given."""

    def take(self) -> int:
        """An open descriptor. Raises NotOpenedError when the path leads to another file
        by now.
        """
        with _LOCK:
            if self._fd < 0:
                self._fd = self._open_again()
            self._users += 1
            # To the end of the dict: it was used last.
            _OPEN.pop(self, None)
            _OPEN[self] = None
            return self._fd

    def release(self) -> None:
        """End one `take`."""
        with _LOCK:
            self._users -= 1
            if self._is_closed and not self._users:
                self._close_descriptor()

    def now(self) -> os.stat_result:
        """The status of the file by now. Raises OSError."""
        with _LOCK:
            return os.fstat(self._fd) if self._fd >= 0 else os.stat(self.path)

    def close(self) -> None:
        """Close it for good, as soon as nobody reads from it."""
        with _LOCK:
            self._is_closed = True
            if not self._users:
                self._close_descriptor()

    def drop(self) -> None:
        """Close it for good, from a finalizer: that runs anywhere, so it never waits
        for another thread.
        """
        _DROPPED.append(self)
        if _LOCK.acquire(blocking=False):
            try:
                _close_dropped()
            finally:
                _LOCK.release()

    def spare(self) -> None:
        """Close it until it is needed again, unless somebody reads from it."""
        if not self._users:
            self._close_descriptor()

    def _open_again(self) -> int:
        """Open the file once more. Raises NotOpenedError if it is another one by
        now.
        """
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            fd = _open_for_reading(self.path)
        except FileNotFoundError:
            raise changed_error() from None
        if is_changed_file(os.fstat(fd), self.status):
            os.close(fd)
            raise changed_error()
        return fd

    def _close_descriptor(self) -> None:
        # Whatever comes of closing it, it is never closed twice: by then its number may
        # be another file's.
        fd = self._fd
        self._fd = -1
        _OPEN.pop(self, None)
        if fd >= 0:
            # Nothing was written to it, so nothing is lost.
            with suppress(OSError):
                os.close(fd)


class Duplicate(Descriptor):
    """Another descriptor of a file that a program has open. It stays open in between,
    for no path leads there.
    """

    __slots__ = ()

    def __init__(self, fd: int) -> None:
        self.path = ""
        self._users = 0
        self._is_closed = False
        self._fd = os.dup(fd)
        self.status = os.fstat(self._fd)

    def take(self) -> int:
        with _LOCK:
            if self._is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._users += 1
            return self._fd

    def now(self) -> os.stat_result:
        with _LOCK:
            return os.fstat(self._fd)


def is_changed_file(now: os.stat_result, then: os.stat_result) -> bool:
    """Tell whether a file is another one by now, or has other bytes."""
    if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino):
        return True
    if (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
        return True
    if now.st_ctime_ns == then.st_ctime_ns:
        return False
    # Who sets the time back after a change cannot set ctime. Names and rights change it
    # too, and no byte: whoever replaces a file by a rename leaves the one that is read
    # here whole.
    return _names_and_rights(now) == _names_and_rights(then)


def _names_and_rights(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_nlink, status.st_mode, status.st_uid, status.st_gid


def changed_error(path: str | None = None) -> NotOpenedError:
    """The error for a file that is not the one that was opened."""
    return NotOpenedError(
        "the file changed while it was read", path=path, hint="still being written?"
    )


class _Process:
    """The number of descriptors that this process keeps."""

    most = _SAFE
    is_known = False
    """True if `most` follows from the limit of this process."""


def _open_for_reading(path: str) -> int:
    """Open a file, and close others for it where this process keeps too many. Raises
    OSError, ValueError.
    """
    _close_dropped()
    # Asking for the limit takes an import, which a few files are not worth.
    if len(_OPEN) >= _Process.most and not _Process.is_known:
        _Process.most = min(MOST_OPEN, _raise_open_limit(_WANTED) // 2)
        _Process.is_known = True
    _close_least_used(_Process.most - 1)
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno not in TOO_MANY:
            raise
    # Others in this process hold many: from now on we keep half of what we have.
    _Process.most = max(1, len(_OPEN) // 2)
    _Process.is_known = True
    _close_least_used(0)
    return os.open(path, _FLAGS)


def _close_dropped() -> None:
    while _DROPPED:
        _DROPPED.pop().close()


def _close_least_used(count: int) -> None:
    """Close those that were used least recently, until `count` are open."""
    for descriptor in list(_OPEN):
        if len(_OPEN) <= count:
            break
        descriptor.spare()


def _raise_open_limit(count: int) -> int:
    """Return the number of files that this process may open. A soft limit below `count`
    is raised first.
    """
    try:
        # Windows has no such module.
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= count:
            return count
        # Nobody but root may raise the hard limit.
        if hard != resource.RLIM_INFINITY:
            count = min(count, hard)
        if soft < count:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
        return count
    except (ImportError, OSError, ValueError):
        return _SAFE


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        # It was removed, and what is open can be read still.
        return ""
