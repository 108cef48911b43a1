"""Changing a file where it is: appending to it, and cutting it back. One descriptor,
locked, until it is done.

What is written here is forced to the disk by itself where `disk.writes_through` allows
it. `fsync` would wait for all of a file that was just saved, which is not ours to
write: 2 GB for a few kilobytes.

What a power loss leaves: the content is on the disk, found by the size of the file,
before the first byte that makes it valid is written. Between the two the old archive
lies before bytes that end nowhere, and `--undo` finds it by its own end; during the
second any of its sectors may be missing, and then the new directory does not fit
either. The bytes of the file that others wrote are as safe as they left them. What they
had not forced to the disk may be lost, with or without this: from some byte on, as a
file is written back from its beginning. The new directory names the records that lay
there too, and every reader asks for their local headers, so that the file is refused,
as it would have been before. Only a gap inside of one tensor shows in nothing but its
checksum; `ckpt verify` compares those.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ckpt.bytes import disk
from ckpt.bytes.source import MOST, File, Source, read_failure_reason
from ckpt.bytes.target import (
    Progress,
    Sink,
    Target,
    close_descriptor,
    lock_file,
    write_error,
    write_failure_reason,
)
from ckpt.model.errors import NotOpenedError, WriteError
from ckpt.model.rows import NamedTuple

_LACKING = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""The errors of a system that does not know RWF_DSYNC."""
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""The errors of a file that is there and cannot be written."""


class ThroughSink(Sink):
    """Puts each write on the disk before it returns, where that is kept in order; else
    `sync` forces the whole file.
    """

    def __init__(
        self, fd: int, path: str, start: int = 0, progress: Progress | None = None
    ) -> None:
        super().__init__(fd, path, start, progress)
        self._goes_through = disk.writes_through(fd)

    def sync(self) -> None:
        self.flush()
        if not self._goes_through:
            os.fsync(self.fd)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view and self._goes_through:
            try:
                done = os.pwritev(self.fd, [view[:MOST]], self._at, os.RWF_DSYNC)
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                self._goes_through = False
            else:
                self._at += done
                view = view[done:]
        super()._write(view)


def cut(fd: int, size: int) -> None:
    """Cut a file to `size` bytes and force that to the disk. Raises OSError."""
    os.ftruncate(fd, size)
    # An empty file has no last byte to write again.
    if size and disk.writes_through(fd):
        # The last byte again, as it is: with it goes the size, and nothing else of the
        # file.
        with suppress(OSError):
            last_byte = os.pread(fd, 1, size - 1)
            os.pwritev(fd, [last_byte], size - 1, os.RWF_DSYNC)
            return
    os.fsync(fd)


@contextmanager
def appending_sink(source: Source, progress: Progress | None = None) -> Iterator[Sink]:
    """A sink at the end of a file that was opened for reading. An error inside the
    block restores the old size.

    Raises WriteError, also when another process rewrites the file or the file has
    changed. A descriptor that fails to close afterwards is a warning of the sink.
    """
    size, path = source.size, source.name
    fd = -1
    started = False
    sink: Sink | None = None
    try:
        # Opened again to write: the source has it for reading only.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        _lock_or_refuse(fd, path, fcntl.LOCK_EX)
        if source.status is None or not os.path.samestat(os.fstat(fd), source.status):
            # A new file of this name is not the one whose end is known.
            raise WriteError("the file was replaced while it was read", path=path)
        source.check_unchanged()
        started = True
        sink = ThroughSink(fd, path, size, progress)
        yield sink
        sink.sync()
        # From here on nothing is cut back: the file is valid as it is.
        started = False
        if os.fstat(fd).st_nlink > 1:
            sink.warnings.append("its other hard links changed too")
    except OSError as error:
        raise write_error(error, Target(path, path, None), 0) from error
    finally:
        if started:
            try:
                cut(fd, size)
            except OSError:
                pass
            except BaseException:  # a signal that came just now
                with suppress(OSError):
                    os.ftruncate(fd, size)
                raise
        if fd >= 0:
            problems = close_descriptor(fd)
            if sink is not None:
                sink.warnings += problems


class Held(NamedTuple):
    """A file that is open once: what is read is what `cut` cuts."""

    source: File
    fd: int
    warnings: list[str]
    """The failures after the file was cut."""

    def cut(self, size: int) -> None:
        """Cut the file to `size` bytes and force that to the disk. Raises WriteError,
        NotOpenedError.
        """
        self.source.check_unchanged()
        try:
            cut(self.fd, size)
        except OSError as error:
            raise WriteError(
                f"cannot be written: {write_failure_reason(error)}",
                path=self.source.name,
            ) from error


@contextmanager
def locked_file(path: str, *, to_change: bool) -> Iterator[Held]:
    """A file on one descriptor, locked against others that rewrite it. Links are
    followed.

    Raises NotOpenedError, WriteError, also when another process rewrites the file.
    """
    access = os.O_RDWR if to_change else os.O_RDONLY
    # O_NONBLOCK: opening a FIFO without a writer must not hang.
    flags = access | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        # With these it may be read still, so the error is one of writing.
        if to_change and error.errno in _READ_ONLY:
            raise WriteError(
                f"cannot be written: {write_failure_reason(error)}", path=path
            ) from None
        raise NotOpenedError(read_failure_reason(error), path=path) from None
    except ValueError as error:
        raise NotOpenedError(write_failure_reason(error), path=path) from None
    warnings: list[str] = []
    try:
        source = File(path, fd)
        _lock_or_refuse(fd, path, fcntl.LOCK_EX if to_change else fcntl.LOCK_SH)
        # Behind the lock: until then another process may have changed it.
        source.check_unchanged()
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise WriteError("the file was replaced while it was read", path=path)
        yield Held(source, fd, warnings)
    except OSError as error:
        raise write_error(error, Target(path, path, None), 0) from error
    finally:
        warnings += close_descriptor(fd)


def _lock_or_refuse(fd: int, path: str, how: int) -> None:
    try:
        lock_file(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WriteError("another process is rewriting it", path=path) from None
