"""Bytes of a file: a Source reads ranges of a regular file, or of bytes in memory, and nothing else.

Reads are `pread`, never a map: a file that is cut while we look gives a short read, not a signal.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from typing import Protocol

from ckpt.errors import LimitError, NotOpenedError, UnreadableError


class Source(Protocol):
    """Where the bytes of storages are. Offsets and sizes in bytes."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes at `offset`. Raises UnreadableError when the source ends before."""
        ...


class File:
    """A regular file, opened for reading. Closed with `close` or at the end of a `with`."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise NotOpenedError(_reason(error)) from None
        except ValueError:
            raise NotOpenedError("not a file name: it holds a NUL") from None
        self._stat = os.fstat(self._fd)
        if not stat.S_ISREG(self._stat.st_mode):
            os.close(self._fd)
            raise NotOpenedError(f"not a regular file: {_kind(self._stat.st_mode)}")
        self.size = self._stat.st_size
        self.bytes_read = 0

    @property
    def fd(self) -> int:
        """The descriptor, for calls of the kernel that read."""
        return self._fd

    def read(self, offset: int, count: int) -> bytes:
        if offset < 0 or count < 0 or offset + count > self.size:
            raise UnreadableError(
                f"cut off: bytes {offset:,} to {offset + count:,} needed, ends at {self.size:,}",
                path=self.path,
            )
        try:
            data = os.pread(self._fd, count, offset)
            while len(data) < count:
                more = os.pread(self._fd, count - len(data), offset + len(data))
                if not more:
                    raise NotOpenedError("the file changed while it was read", path=self.path)
                data += more
        except OSError as error:
            raise NotOpenedError(_reason(error), path=self.path) from None
        self.bytes_read += count
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes at `offset`. Raises UnreadableError when the file ends before."""
        count = len(buffer)
        if offset < 0 or offset + count > self.size:
            raise UnreadableError(
                f"cut off: bytes {offset:,} to {offset + count:,} needed, ends at {self.size:,}",
                path=self.path,
            )
        done = 0
        try:
            while done < count:
                more = os.preadv(self._fd, [buffer[done:]], offset + done)
                if not more:
                    raise NotOpenedError("the file changed while it was read", path=self.path)
                done += more
        except OSError as error:
            raise NotOpenedError(_reason(error), path=self.path) from None
        self.bytes_read += count

    def check_unchanged(self) -> None:
        """Raise UnreadableError when the file was written to since it was opened."""
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            problem = "the file changed while it was read"
            raise NotOpenedError(problem, path=self.path, hint="still being written?")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Memory:
    """Bytes that are already in memory: a checkpoint inside a pickle."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, count: int) -> bytes:
        if offset < 0 or count < 0 or offset + count > self.size:
            raise UnreadableError(
                f"cut off: bytes {offset:,} to {offset + count:,} needed, ends at {self.size:,}"
            )
        return self._data[offset : offset + count]


class Extended:
    """A file as it would be with bytes behind its end."""

    def __init__(self, file: File, more: bytes) -> None:
        self._file = file
        self._more = Memory(more)
        self.size = file.size + len(more)

    def read(self, offset: int, count: int) -> bytes:
        inside = max(0, min(count, self._file.size - offset))
        head = self._file.read(offset, inside) if inside else b""
        if inside == count:
            return head
        return head + self._more.read(offset + inside - self._file.size, count - inside)


def inflate(data: bytes, size: int, what: str) -> bytes:
    """Raw deflate data as the `size` bytes it must give, never more. Raises UnreadableError."""
    machine = zlib.decompressobj(-15)
    try:
        out = machine.decompress(data, size + 1)
    except zlib.error:
        raise UnreadableError(f"{what}: damaged deflate data") from None
    if len(out) != size or not machine.eof:
        raise UnreadableError(f"{what}: does not inflate to the {size:,} bytes that the archive says")
    return out


def read_limited(source: Source, limit: int, limit_name: str, what: str) -> bytes:
    """All bytes of a source that must not hold more than `limit`. Raises LimitError."""
    if source.size > limit:
        raise LimitError(f"{what} has {source.size:,} bytes", limit_name, limit)
    return source.read(0, source.size)


def _reason(error: OSError) -> str:
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
