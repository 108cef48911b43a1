"""Writing without loss: a file appears whole or not at all, and the file that it replaces stays until then.

A new file gets its space reserved, is written beside its target under another name, forced to the disk, and
renamed; then the folder is forced to the disk. Appending in place can be undone until it is complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ckpt.errors import UsageError, WriteError
from ckpt.io.source import MOST, Source
from ckpt.text import size_text

SUFFIX = ".ckpt-tmp"
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
BLOCK = 4 << 20
"""Bytes that one read or write moves."""
_SMALL = 64 << 10
"""Ranges up to this size are gathered, because one system call for each would cost more than the copy."""
_KERNEL_COPY = 256 << 20

Progress = Callable[[int], None]


class Target(NamedTuple):
    """Where a file is written: the path as given, the real path behind links, and the file that is there now."""

    path: str
    real: str
    replaced: os.stat_result | None

    @property
    def warning(self) -> str | None:
        """What stays behind when the file is replaced."""
        if self.replaced is not None and self.replaced.st_nlink > 1:
            return "its other hard links keep the old content"
        return None


def target(path: str, *, force: bool) -> Target:
    """A path to write to, checked before anything is read. Links are followed. Raises UsageError, WriteError."""
    if not path or path.endswith("/") or os.path.isdir(path):
        raise UsageError("a directory, not a file to write to", path=path or "-o")
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    try:
        status = os.stat(real)
    except FileNotFoundError:
        status = None
    except (OSError, ValueError) as error:
        raise WriteError(f"cannot be written: {_reason(error)}", path=path) from None
    if status is not None:
        if not stat.S_ISREG(status.st_mode):
            raise WriteError("not a regular file: ckpt does not replace it", path=path)
        if not force:
            raise UsageError("already exists", path=path, hint="--force to replace")
        if not os.access(real, os.W_OK):
            raise WriteError("read-only: ckpt does not replace it", path=path)
    if not os.path.isdir(folder):
        raise WriteError("there is no such folder", path=os.path.dirname(path) or folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise WriteError("no permission to write into this folder", path=os.path.dirname(path) or folder)
    return Target(path, real, status)


class Sink:
    """Writes bytes in order, from byte `start` of a file on."""

    def __init__(self, fd: int, path: str, start: int = 0, progress: Progress | None = None) -> None:
        self.path = path
        self._fd = fd
        self._at = start  # everything before is written
        self._pending = bytearray()
        self._progress = progress
        self.overflowed = 0
        """Finite elements that a cast made infinite on the way here."""

    def tally(self, count: int) -> None:
        """Count elements that a cast made infinite."""
        self.overflowed += count

    @property
    def position(self) -> int:
        """The offset in the file of the byte that comes next."""
        return self._at + len(self._pending)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes. Small ones are gathered."""
        if len(data) <= _SMALL:
            self._pending += data
            if len(self._pending) >= BLOCK:
                self.flush()
        else:
            self.flush()
            self._write(data)
        if self._progress is not None:
            self._progress(len(data))

    def copy(self, source: Source, offset: int, count: int) -> None:
        """Copy a range of a source, by the kernel where it can. Raises UnreadableError when the source is cut."""
        if count <= _SMALL:
            self.write(source.read(offset, count))
            return
        self.flush()
        end = offset + count
        try:
            while source.fd is not None and offset < end:
                step = min(end - offset, _KERNEL_COPY)
                moved = os.copy_file_range(source.fd, self._fd, step, offset, self._at)
                if not moved:
                    break
                offset += moved
                self._at += moved
                if self._progress is not None:
                    self._progress(moved)
        except (OSError, AttributeError):
            pass  # these file systems cannot; a real error comes up again in the plain way
        while offset < end:
            step = min(end - offset, BLOCK)
            self._write(source.read(offset, step))
            offset += step
            if self._progress is not None:
                self._progress(step)

    def flush(self) -> None:
        """Pass the gathered bytes to the operating system."""
        if self._pending:
            data, self._pending = self._pending, bytearray()
            self._write(data)

    def sync(self) -> None:
        """Force all bytes to the disk. A failure is final, because the kernel may have dropped the unwritten bytes."""
        self.flush()
        os.fsync(self._fd)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view[:MOST], self._at)
            self._at += done
            view = view[done:]


class MemorySink(Sink):
    """A sink in memory, for bytes that are checked before they go to a file."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(-1, "", start)
        self._kept = bytearray()

    def taken(self) -> bytes:
        """What was written since the last call."""
        self.flush()
        kept, self._kept = bytes(self._kept), bytearray()
        return kept

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        self._kept += data
        self._at += len(data)


@contextmanager
def writing(to: Target, size: int, progress: Progress | None = None) -> Iterator[Sink]:
    """A sink of `size` bytes. Leaving the block without an error puts the file in place. Raises WriteError.

    Inside the block the file can be read at `sink.path`.
    """
    folder, name = os.path.split(to.real)
    temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(6)}{SUFFIX}")
    fd = -1
    keep = False
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW | os.O_CLOEXEC, 0o666)
        _lock(fd, fcntl.LOCK_SH)  # other runs see that this file is in use
        _reserve(fd, size)
        sink = Sink(fd, temporary, progress=progress)
        yield sink
        sink.flush()
        if sink.position != size:
            raise AssertionError(f"{sink.position} bytes were written, {size} were planned")
        if to.replaced is not None:
            _keep_mode(fd, to.replaced)
        sink.sync()
        try:
            _put(temporary, to)
        except OSError as error:
            if error.errno == errno.EEXIST:
                raise UsageError("already exists", path=to.path, hint="--force to replace") from None
            keep = True
            problem = f"cannot be put in place: {_reason(error)}"
            raise WriteError(problem, path=to.path, hint=f"the complete file is at {temporary}") from None
        _sync_folder(folder)
    except OSError as error:
        raise _failed(error, to, size) from error
    finally:
        if not keep:
            try:
                os.unlink(temporary)
            except OSError:
                pass
            except BaseException:  # a signal that came just now
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        if fd >= 0:
            os.close(fd)


def _put(temporary: str, to: Target) -> None:
    if to.replaced is not None:
        os.replace(temporary, to.real)
        return
    try:
        os.link(temporary, to.real)  # unlike a rename, it never replaces a file
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES):
            raise
        if os.path.lexists(to.real):
            raise FileExistsError(errno.EEXIST, "exists") from None
        os.rename(temporary, to.real)


def _reserve(fd: int, size: int) -> None:
    """Reserve the space now, so that a full disk fails at once."""
    if not size:
        return
    if not hasattr(os, "posix_fallocate"):  # macOS
        disk = os.fstatvfs(fd)
        if disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _lock(fd: int, how: int) -> None:
    """Lock a file where its file system has locks. Raises BlockingIOError when another process holds one."""
    try:
        fcntl.flock(fd, how)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise


def _keep_mode(fd: int, old: os.stat_result) -> None:
    os.fchmod(fd, stat.S_IMODE(old.st_mode))
    with suppress(OSError):  # only its owner, or root, may give a file away
        os.fchown(fd, old.st_uid, old.st_gid)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def appending(source: Source, progress: Progress | None = None) -> Iterator[Sink]:
    """A sink at the end of a file that was opened for reading. An error inside the block restores the old size.

    Raises WriteError, also when another process rewrites the file or the file has changed.
    """
    size, path = source.size, source.name
    fd = -1
    started = False
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WriteError("another process is rewriting it", path=path) from None
        if source.fd is None or not os.path.samestat(os.fstat(fd), os.fstat(source.fd)):
            raise WriteError("the file was replaced while it was read", path=path)
        source.check_unchanged()
        started = True
        sink = Sink(fd, path, size, progress)
        yield sink
        sink.sync()
        started = False
    except OSError as error:
        raise _failed(error, Target(path, path, None), 0) from error
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
            os.close(fd)


def truncate(path: str, size: int) -> None:
    """Cut a file to `size` bytes and force that to the disk. Raises WriteError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise WriteError(f"cannot be written: {_reason(error)}", path=path) from error


def left_over(path: str) -> list[tuple[str, int]]:
    """Temporary files of killed runs beside a target: their paths and sizes. Files in use are left out."""
    folder, name = os.path.split(os.path.realpath(path))
    mine = re.compile(rf"\.{re.escape(name[:200])}\.[0-9a-f]{{12}}{re.escape(SUFFIX)}")
    files: list[tuple[str, int]] = []
    with suppress(OSError):
        for other in sorted(os.listdir(folder)):
            if mine.fullmatch(other):
                whole = os.path.join(folder, other)
                with suppress(OSError):
                    fd = os.open(whole, os.O_RDONLY | _NOFOLLOW | os.O_CLOEXEC)
                    try:
                        _lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        files.append((whole, os.fstat(fd).st_size))
                    finally:
                        os.close(fd)
    return files


def _failed(error: OSError, to: Target, size: int) -> WriteError:
    hint = None
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and size:
        with suppress(OSError):
            disk = os.statvfs(os.path.dirname(to.real))
            free = disk.f_bavail * disk.f_frsize
            hint = f"it needs {size_text(size)}, {size_text(free)} are free"
    return WriteError(f"cannot be written: {_reason(error)}", path=to.path, hint=hint)


def _reason(error: Exception) -> str:
    texts = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the quota is used up",
        errno.EFBIG: "too large for this file system",
        errno.EIO: "the disk reports an error",
        errno.EROFS: "the file system is read-only",
        errno.EACCES: "no permission",
        errno.EPERM: "no permission",
        errno.EBUSY: "it is in use (mounted into a container?)",
        errno.ELOOP: "too many symbolic links",
        errno.ENAMETOOLONG: "the name is too long",
        errno.ENOTDIR: "there is no such folder",
    }
    if not isinstance(error, OSError):
        return "not a file name: it contains a NUL byte"
    return texts.get(error.errno or 0) or (error.strerror or "a system error").lower()
