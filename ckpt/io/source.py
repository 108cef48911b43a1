"""Where bytes are read from: a regular file, bytes in memory, a file with more bytes after its end, a part of a file.

Files are read with `pread`, never with mmap: a file that shrinks meanwhile gives a short read, not a signal.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Protocol, cast

from ckpt.errors import CutOffError, DamagedDataError, LimitError, NotOpenedError
from ckpt.io.far import Far, is_url

MOST = 1 << 30
"""The most bytes of one system call: macOS refuses 2 GiB."""

Identity = tuple[int | str, ...]
"""Plain values that identify one state of a source: device, inode, size and times of a file, or an ETag. The last two are
the same on all machines that read it: size and time, or ETag."""


class Source(Protocol):
    """Bytes that can be read at any offset. Offsets and sizes are in bytes.

    A source must not change while it is read; `check_unchanged` checks that afterwards. Several threads may read
    at once. A source pickles as its address and its identity; without an address it does not pickle.
    """

    @property
    def name(self) -> str:
        """Its name for people: the path as given, or a URL."""
        ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes at `offset`. Raises CutOffError when the source ends earlier, NotOpenedError."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes at `offset`. Raises as `read` does."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, count), in order. Several ranges may become one request. Raises as `read` does."""
        ...

    def check_unchanged(self) -> None:
        """Raise NotOpenedError when the source has changed since it was opened."""
        ...

    def close(self) -> None: ...

    @property
    def fd(self) -> int | None:
        """A descriptor that the kernel can copy from; None without one."""
        ...

    @property
    def address(self) -> str | None:
        """The address with which `open_address` opens the same source, also in another process; None for memory."""
        ...

    @property
    def identity(self) -> Identity: ...

    @property
    def far(self) -> Far | None:
        """Where to hand in claims; None where reads are cheap."""
        ...


class BaseSource:
    """A source that only needs `read`. The rest of the contract uses it."""

    name = "(memory)"
    size = 0

    def read(self, offset: int, count: int) -> bytes:
        raise NotImplementedError

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(offset, count) for offset, count in ranges]

    def check_unchanged(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def fd(self) -> int | None:
        return None

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
        if offset < 0 or count < 0 or offset + count > self.size:
            span = f"bytes {offset:,} to {offset + count:,} are needed"
            raise CutOffError(f"cut off: {span}, it ends at {self.size:,}", path=path)


def _opened(path: str, flags: int) -> int:
    """A descriptor. A checkpoint of a thousand ranks has more files than a process may open until it asks for more."""
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE or not _more_files():
            raise
    return os.open(path, flags)


def _more_files() -> bool:
    """Raise the soft limit on open files to the hard one. False where it is there already."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS allows fewer than it says
        return False
    return True


class File(BaseSource):
    """A regular file, opened for reading. Raises NotOpenedError for anything else.

    A descriptor `fd` that is handed over is read, and stays open for whoever opened it.
    """

    _fd = -1

    def __init__(self, path: str, fd: int | None = None) -> None:
        self.name = path
        self._is_own = fd is None
        try:
            # O_NONBLOCK: opening a FIFO without a writer must not hang.
            flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
            self._fd = _opened(path, flags) if fd is None else fd
        except OSError as error:
            raise NotOpenedError(reason(error)) from None
        except ValueError:
            raise NotOpenedError("not a file name: it contains a NUL byte") from None
        self._stat = os.fstat(self._fd)
        if not stat.S_ISREG(self._stat.st_mode):
            self.close()
            raise NotOpenedError(f"not a regular file: {_kind(self._stat.st_mode)}")
        self.size = self._stat.st_size
        self.bytes_read = 0

    @property
    def fd(self) -> int | None:
        return self._fd

    @property
    def address(self) -> str | None:
        return os.path.abspath(self.name)

    @property
    def identity(self) -> Identity:
        status = self._stat
        return (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_mtime_ns)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return reopened, (self.address, self.identity)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        try:
            data = os.pread(self._fd, min(count, MOST), offset)
            while len(data) < count:
                more = os.pread(self._fd, min(count - len(data), MOST), offset + len(data))
                if not more:
                    raise NotOpenedError("the file changed while it was read", path=self.name)
                data += more
        except OSError as error:
            raise NotOpenedError(reason(error), path=self.name) from None
        self.bytes_read += count
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        count = len(buffer)
        self._check_range(offset, count, self.name)
        done = 0
        try:
            while done < count:
                more = _read_into(self._fd, buffer[done : done + MOST], offset + done)
                if not more:
                    raise NotOpenedError("the file changed while it was read", path=self.name)
                done += more
        except OSError as error:
            raise NotOpenedError(reason(error), path=self.name) from None
        self.bytes_read += count

    def check_unchanged(self) -> None:
        now, then = os.fstat(self._fd), self._stat
        # Who sets the time back after a change cannot set ctime. Names and rights change it too, and no byte: whoever
        # replaces a file by a rename leaves the one that is read here whole.
        named = (now.st_nlink, now.st_mode, now.st_uid, now.st_gid)
        touched = now.st_ctime_ns != then.st_ctime_ns and named == (
            then.st_nlink,
            then.st_mode,
            then.st_uid,
            then.st_gid,
        )
        if touched or (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
            problem = "the file changed while it was read"
            raise NotOpenedError(problem, path=self.name, hint="still being written?")

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # whatever comes of it, it is never closed twice
        if fd >= 0 and self._is_own:
            with suppress(OSError):  # nothing was written to it, so nothing is lost
                os.close(fd)

    def __del__(self) -> None:
        self.close()  # one that came with a task to another process belongs to nobody else


class Memory(BaseSource):
    """Bytes in memory, such as a checkpoint inside a pickle."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        return self._data[offset : offset + count]


class Extended(BaseSource):
    """A source with more bytes after its end."""

    def __init__(self, source: Source, more: bytes) -> None:
        self._source = source
        self._more = more
        self.name = source.name
        self.size = source.size + len(more)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        inside = max(0, min(count, self._source.size - offset))
        head = self._source.read(offset, inside) if inside else b""
        begin = max(0, offset - self._source.size)
        return head + self._more[begin : begin + count - inside]

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

    def check_unchanged(self) -> None:
        self._source.check_unchanged()


class Window(BaseSource):
    """The `size` bytes of a source at `offset`, such as a member of an archive. Closing it leaves the source open."""

    def __init__(self, source: Source, offset: int, size: int, name: str) -> None:
        self.outer = source
        self.offset = offset
        self.size = size
        self.name = name

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        return self.outer.read(self.offset + offset, count)

    def check_unchanged(self) -> None:
        self.outer.check_unchanged()


def grounded(source: Source, offset: int) -> tuple[Source, int]:
    """Where the byte at an offset of a source lies in the file itself: its bytes can be copied from there."""
    while isinstance(source, Window):
        offset += source.offset
        source = source.outer
    return source, offset


def open_address(address: str) -> Source:
    """The source with this address. Raises NotOpenedError."""
    if not is_url(address):
        return File(address)
    opened = import_module("ckpt.io.remote.location").open_url  # named as text: only a URL pays for it
    return cast("Callable[[str], Source]", opened)(address)


def reopened(address: str, identity: Identity) -> Source:
    """The source of an address in another process. Raises NotOpenedError when it has changed."""
    source = open_address(address)
    if source.identity != identity:
        source.close()
        raise NotOpenedError("the file changed while it was read", path=address)
    return source


def inflate(data: bytes, size: int, what: str) -> bytes:
    """Inflate raw deflate data to exactly `size` bytes. Raises DamagedDataError for any other size."""
    machine = zlib.decompressobj(-15)
    try:
        out = machine.decompress(data, size + 1)
    except zlib.error:
        raise DamagedDataError(f"{what}: damaged deflate data") from None
    if len(out) != size or not machine.eof:
        raise DamagedDataError(f"{what}: does not inflate to the {size:,} bytes that the archive records")
    return out


def beginning(path: str, count: int = 512) -> bytes:
    """The first bytes of a file, fewer where it ends before; none of what cannot be opened."""
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
    if source.size > limit:
        raise LimitError(f"{what} has {source.size:,} bytes", limit_name, limit)
    return source.read(0, source.size)


def _read_into(fd: int, buffer: memoryview, offset: int) -> int:
    """How many bytes were read."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    data = os.pread(fd, len(buffer), offset)
    buffer[: len(data)] = data
    return len(data)


def reason(error: OSError) -> str:
    """Why something cannot be read, in plain words."""
    texts = {
        errno.ENOENT: "no such file",
        errno.ENOTDIR: "no such file",
        errno.EACCES: "no permission to read it",
        errno.EPERM: "no permission to read it",
        errno.ELOOP: "too many symbolic links",
        errno.ENAMETOOLONG: "the name is too long",
        errno.ENXIO: "not a regular file: a socket or a device",
        errno.EIO: "the disk reports a read error",
    }
    return texts.get(error.errno or 0) or (error.strerror or "cannot be read").lower()


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for test, name in kinds if test(mode)), "something else")
