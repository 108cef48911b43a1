"""Where bytes are read from: a regular file, bytes in memory, a file with more behind its end.

Files are read with `pread`, never through a map: a file that is cut while we look gives a short read, not a signal.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from ckpt.errors import CutOffError, DamagedDataError, LimitError, NotOpenedError

Identity = tuple[int | str, ...]
"""What tells two states of a source apart, as plain values: device, inode, size and times of a file, or an ETag."""


class Source(Protocol):
    """Bytes that can be read at any offset. Offsets and sizes are in bytes.

    A source never changes while it is read: `check_unchanged` says so afterwards. Reads may come from several
    threads at once. A source pickles as its address and its identity; where `address` is None it does not pickle.
    """

    @property
    def name(self) -> str:
        """What people call it: the path as given, a URL."""
        ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes at `offset`. Raises CutOffError when the source ends before, NotOpenedError."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes at `offset`. Raises as `read` does."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, count), in order; several ranges may become one request. Raises as `read` does."""
        ...

    def check_unchanged(self) -> None:
        """Raise NotOpenedError when the source was written to since it was opened."""
        ...

    def close(self) -> None: ...

    @property
    def fd(self) -> int | None:
        """A descriptor that the kernel can copy from; None where there is none."""
        ...

    @property
    def address(self) -> str | None:
        """What `open_address` opens the same source by, in another process too; None for memory."""
        ...

    @property
    def identity(self) -> Identity: ...


class BaseSource:
    """A source that can `read`, with the rest of the contract done the plain way."""

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

    def _check_range(self, offset: int, count: int, path: str | None = None) -> None:
        if offset < 0 or count < 0 or offset + count > self.size:
            needed = f"bytes {offset:,} to {offset + count:,} needed, ends at {self.size:,}"
            raise CutOffError(f"cut off: {needed}", path=path)


class File(BaseSource):
    """A regular file, opened for reading. Raises NotOpenedError for anything else."""

    _fd = -1

    def __init__(self, path: str) -> None:
        self.name = path
        try:
            # O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise NotOpenedError(reason(error)) from None
        except ValueError:
            raise NotOpenedError("not a file name: it holds a NUL") from None
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
        found = self._stat
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _reopened, (self.address, self.identity)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        try:
            data = os.pread(self._fd, count, offset)
            while len(data) < count:
                more = os.pread(self._fd, count - len(data), offset + len(data))
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
                more = os.preadv(self._fd, [buffer[done:]], offset + done)
                if not more:
                    raise NotOpenedError("the file changed while it was read", path=self.name)
                done += more
        except OSError as error:
            raise NotOpenedError(reason(error), path=self.name) from None
        self.bytes_read += count

    def check_unchanged(self) -> None:
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            problem = "the file changed while it was read"
            raise NotOpenedError(problem, path=self.name, hint="still being written?")

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # whatever comes of it, it is never closed twice
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()  # one that came with a task to another process belongs to nobody else


class Memory(BaseSource):
    """Bytes that are already in memory: a checkpoint inside a pickle."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        return self._data[offset : offset + count]


class Extended(BaseSource):
    """A source as it would be with bytes behind its end."""

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


def open_address(address: str) -> Source:
    """The source that has this address. Raises NotOpenedError."""
    return File(address)


def _reopened(address: str, identity: Identity) -> Source:
    """The source of an address in another process, where it is what it was. Raises NotOpenedError."""
    source = open_address(address)
    if source.identity != identity:
        source.close()
        raise NotOpenedError("the file changed while it was read", path=address)
    return source


def inflate(data: bytes, size: int, what: str) -> bytes:
    """Raw deflate data as the `size` bytes it must give, never more. Raises DamagedDataError."""
    machine = zlib.decompressobj(-15)
    try:
        out = machine.decompress(data, size + 1)
    except zlib.error:
        raise DamagedDataError(f"{what}: damaged deflate data") from None
    if len(out) != size or not machine.eof:
        raise DamagedDataError(f"{what}: does not inflate to the {size:,} bytes that the archive records")
    return out


def read_limited(source: Source, limit: int, limit_name: str, what: str) -> bytes:
    """All bytes of a source that must not hold more than `limit`. Raises LimitError."""
    if source.size > limit:
        raise LimitError(f"{what} has {source.size:,} bytes", limit_name, limit)
    return source.read(0, source.size)


def reason(error: OSError) -> str:
    """Why something cannot be read, in plain words."""
    known = {
        errno.ENOENT: "no such file",
        errno.ENOTDIR: "no such file",
        errno.EACCES: "no permission to read it",
        errno.EPERM: "no permission to read it",
        errno.ELOOP: "too many symbolic links",
        errno.ENAMETOOLONG: "the name is too long",
        errno.ENXIO: "not a regular file: a socket or a device",
        errno.EIO: "the disk reports a read error",
    }
    return known.get(error.errno or 0) or (error.strerror or "cannot be read").lower()


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for test, name in kinds if test(mode)), "something else")
