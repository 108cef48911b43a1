"""Changing a file where it is: appending to it, and cutting it back. One descriptor, locked, until it is done."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ckpt.errors import NotOpenedError, WriteError
from ckpt.io.commit import Progress, Sink, Target, closed, failed, lock
from ckpt.io.source import File, Source, reason
from ckpt.io.target import why


@contextmanager
def appending(source: Source, progress: Progress | None = None) -> Iterator[Sink]:
    """A sink at the end of a file that was opened for reading. An error inside the block restores the old size.

    Raises WriteError, also when another process rewrites the file or the file has changed. A descriptor that fails
    to close afterwards is a warning of the sink.
    """
    size, path = source.size, source.name
    fd = -1
    started = False
    sink: Sink | None = None
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        _lock(fd, path, fcntl.LOCK_EX)
        if source.fd is None or not os.path.samestat(os.fstat(fd), os.fstat(source.fd)):
            raise WriteError("the file was replaced while it was read", path=path)
        source.check_unchanged()
        started = True
        sink = Sink(fd, path, size, progress)
        yield sink
        sink.sync()
        started = False
        if os.fstat(fd).st_nlink > 1:
            sink.warnings.append("its other hard links changed too")
    except OSError as error:
        raise failed(error, Target(path, path, None), 0) from error
    finally:
        if started:
            try:
                os.ftruncate(fd, size)
                os.fsync(fd)
            except OSError:
                pass
            except BaseException:  # a signal that came just now
                with suppress(OSError):
                    os.ftruncate(fd, size)
                raise
        if fd >= 0:
            problems = closed(fd)
            if sink is not None:
                sink.warnings += problems


class Held(NamedTuple):
    """A file that is open once: what is read is what `cut` cuts."""

    source: File
    warnings: list[str]
    """What failed after the file was cut."""

    def cut(self, size: int) -> None:
        """Cut the file to `size` bytes and force that to the disk. Raises WriteError, NotOpenedError."""
        assert self.source.fd is not None
        self.source.check_unchanged()
        try:
            os.ftruncate(self.source.fd, size)
            os.fsync(self.source.fd)
        except OSError as error:
            raise WriteError(f"cannot be written: {why(error)}", path=self.source.name) from error


@contextmanager
def held(path: str, *, to_change: bool) -> Iterator[Held]:
    """A file on one descriptor, locked against others that rewrite it. Links are followed.

    Raises NotOpenedError, WriteError, also when another process rewrites the file.
    """
    flags = (os.O_RDWR if to_change else os.O_RDONLY) | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if to_change and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY):
            raise WriteError(f"cannot be written: {why(error)}", path=path) from None
        raise NotOpenedError(reason(error), path=path) from None
    except ValueError as error:
        raise NotOpenedError(why(error), path=path) from None
    warnings: list[str] = []
    try:
        source = File(path, fd)
        _lock(fd, path, fcntl.LOCK_EX if to_change else fcntl.LOCK_SH)
        source.check_unchanged()
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise WriteError("the file was replaced while it was read", path=path)
        yield Held(source, warnings)
    except OSError as error:
        raise failed(error, Target(path, path, None), 0) from error
    finally:
        warnings += closed(fd)


def _lock(fd: int, path: str, how: int) -> None:
    try:
        lock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WriteError("another process is rewriting it", path=path) from None
