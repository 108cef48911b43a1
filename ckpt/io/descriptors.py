"""The descriptors of files that are read. Few are open at once: each is opened again when it is needed.

A checkpoint of 10,000 shards has more files than a process may open.
"""

from __future__ import annotations

import errno
import os
from threading import RLock

from ckpt.errors import NotOpenedError

MOST_OPEN = 64
"""The most descriptors that stay open while nobody reads from them."""
_SAFE = 8
"""Every system allows so many. Before more are open, the limit of this process is looked at."""
_WANTED = 256
"""The soft limit that leaves enough for all others: files that are written, sockets, imports."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
"""O_NONBLOCK: opening a FIFO without a writer must not hang."""
TOO_MANY = (errno.EMFILE, errno.ENFILE)
"""The errors that say nothing of a file: it is neither missing nor damaged. They are never a NotOpenedError."""
TOO_MANY_TEXT = "too many open files (ulimit -n 256 allows more)"
_LOCK = RLock()  # a finalizer may close a file in the middle of all of this
_OPEN: dict[Descriptor, None] = {}
"""The open ones, the one that was used last at the end."""
_DROPPED: list[Descriptor] = []
"""Those that nobody can use any more."""


class Descriptor:
    """The descriptor of a file, for any number of threads at once.

    `take` gives an open one, which stays open until `release`. Raises OSError, ValueError.
    """

    __slots__ = ("_fd", "_is_closed", "_users", "path", "status")

    def __init__(self, path: str) -> None:
        self.path = path
        self._users = 0
        self._is_closed = False
        with _LOCK:
            self._fd = _opened(path)
            _OPEN[self] = None
            self.status = os.fstat(self._fd)
        if not os.path.isabs(path):  # the process may go to another folder
            self.path = os.path.join(_folder(), path)
            """The path from the root, with its links and `..` as they were given."""

    def take(self) -> int:
        """An open descriptor. Raises NotOpenedError when the path leads to another file by now."""
        with _LOCK:
            if self._fd < 0:
                self._fd = self._again()
            self._users += 1
            _OPEN.pop(self, None)
            _OPEN[self] = None
            return self._fd

    def release(self) -> None:
        """End one `take`."""
        with _LOCK:
            self._users -= 1
            if self._is_closed and not self._users:
                self._shut()

    def now(self) -> os.stat_result:
        """The status of the file by now. Raises OSError."""
        with _LOCK:
            return os.fstat(self._fd) if self._fd >= 0 else os.stat(self.path)

    def close(self) -> None:
        """Close it for good, as soon as nobody reads from it."""
        with _LOCK:
            self._is_closed = True
            if not self._users:
                self._shut()

    def drop(self) -> None:
        """Close it for good, from a finalizer: that runs anywhere, so it never waits for another thread."""
        _DROPPED.append(self)
        if _LOCK.acquire(blocking=False):
            try:
                _close_dropped()
            finally:
                _LOCK.release()

    def spare(self) -> None:
        """Close it until it is needed again, unless somebody reads from it."""
        if not self._users:
            self._shut()

    def _again(self) -> int:
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            fd = _opened(self.path)
        except FileNotFoundError:
            raise changed() from None
        if differs(os.fstat(fd), self.status):
            os.close(fd)
            raise changed()
        return fd

    def _shut(self) -> None:
        fd, self._fd = self._fd, -1  # whatever comes of it, it is never closed twice
        _OPEN.pop(self, None)
        if fd >= 0:
            try:
                os.close(fd)
            except OSError:
                pass  # nothing was written to it, so nothing is lost


def differs(now: os.stat_result, then: os.stat_result) -> bool:
    """Whether a file is another one by now, or has other bytes."""
    # Who sets the time back after a change cannot set ctime. Names and rights change it too, and no byte: whoever
    # replaces a file by a rename leaves the one that is read here whole.
    named = (now.st_nlink, now.st_mode, now.st_uid, now.st_gid)
    touched = now.st_ctime_ns != then.st_ctime_ns and named == (
        then.st_nlink,
        then.st_mode,
        then.st_uid,
        then.st_gid,
    )
    same = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
    return touched or same != (then.st_dev, then.st_ino, then.st_size, then.st_mtime_ns)


def changed(path: str | None = None) -> NotOpenedError:
    """The error for a file that is not the one that was opened."""
    return NotOpenedError("the file changed while it was read", path=path, hint="still being written?")


class _Process:
    """How many descriptors this process keeps."""

    most = _SAFE
    is_known = False
    """Whether `most` follows from the limit of this process."""


def _opened(path: str) -> int:
    _close_dropped()
    if len(_OPEN) >= _Process.most and not _Process.is_known:
        _Process.most = min(MOST_OPEN, _allowed(_WANTED) // 2)
        _Process.is_known = True
    _spare(_Process.most - 1)
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno not in TOO_MANY:
            raise
    _Process.most, _Process.is_known = max(1, len(_OPEN) // 2), True  # others in this process hold many
    _spare(0)
    return os.open(path, _FLAGS)


def _close_dropped() -> None:
    while _DROPPED:
        _DROPPED.pop().close()


def _spare(count: int) -> None:
    """Close those that were used least recently, until `count` are open."""
    for descriptor in list(_OPEN):
        if len(_OPEN) <= count:
            break
        descriptor.spare()


def _allowed(count: int) -> int:
    """How many files this process may open, after its soft limit was raised to `count` where it was lower."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= count:
            return count
        if hard != resource.RLIM_INFINITY:
            count = min(count, hard)
        if soft < count:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
        return count
    except (ImportError, OSError, ValueError):
        return _SAFE


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed, and what is open can be read still
        return ""
