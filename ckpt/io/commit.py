"""Writing without loss: a file appears whole or not at all, and the file that it replaces stays until then.

A new file gets its space reserved, or shares its blocks with its source. It is written beside its target under another
name, forced to the disk, and renamed; then the folder is forced to the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from ckpt.errors import UsageError, WriteError
from ckpt.io import disk
from ckpt.io.far import is_url, writer
from ckpt.io.source import MOST, Source
from ckpt.io.target import NO_REPLACE, NOT_HERE, check_folder, found, refuse_replacing, renamed, why
from ckpt.rows import NamedTuple
from ckpt.tensors import Checksum, Place
from ckpt.text import show, size_text

SUFFIX = ".ckpt-tmp"
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
BLOCK = 4 << 20  # bytes that one read or write moves
_SMALL = 64 << 10
"""Ranges up to this size are gathered, because one system call for each would cost more than the copy."""
_KERNEL_COPY = 32 << 20
_EARLY = 32 << 20
"""Once so many bytes are written, the disk begins with them, while the next ones are copied."""

Progress = Callable[[int], None]


class Target(NamedTuple):
    """Where a file is written: the path as given, the real path behind links, and the file that is there now."""

    path: str
    real: str
    replaced: os.stat_result | None
    like: os.stat_result | None = None
    """Another file that it takes the place of: who may not read that one may not read this one."""
    etag: str | None = None
    """That of the object that is there now, where an object is written and not a file."""

    @property
    def is_replacing(self) -> bool:
        """Whether something is there that is replaced."""
        return self.replaced is not None or self.etag is not None

    @property
    def warning(self) -> str | None:
        """What stays behind when the file is replaced."""
        if self.replaced is not None and stat.S_ISREG(self.replaced.st_mode) and self.replaced.st_nlink > 1:
            return "its other hard links keep the old content"
        return None


def target(path: str, *, force: bool, parents: bool = False) -> Target:
    """A path to write to, checked before anything is read. Raises UsageError, WriteError.

    Links are followed; one that leads nowhere only with `force`, which would create what it does not name. With
    `parents` the folders of the target need not be there yet.
    """
    if is_url(path):
        return writer().file_target(path, force=force)
    if not path or path.endswith("/") or os.path.isdir(path):
        raise UsageError("a directory, not a file to write to", path=path or "-o")
    real, status = found(path, force=force)
    if status is not None:
        if not stat.S_ISREG(status.st_mode):
            raise WriteError("not a regular file: ckpt does not replace it", path=path)
        refuse_replacing(path, real, os.W_OK, force=force)
    check_folder(path, real, parents=parents)
    return Target(path, real, status)


class Audit(Protocol):
    """Keeps account of the recorded checksums of the bytes that go to a sink."""

    def check(self, place: Place | None) -> None:
        """Compare the records that the bytes of a place come from with their checksums."""
        ...

    def passed(self, checksum: Checksum, crc: int) -> None:
        """Note the CRC of a record whose bytes went by."""
        ...


class Sink:
    """Writes bytes in order, from byte `start` of a file on."""

    def __init__(self, fd: int, path: str, start: int = 0, progress: Progress | None = None) -> None:
        self.path = path
        self._fd = fd
        self._at = start  # everything before is written
        self._begun = start  # everything before is on its way to the disk
        self._pending = bytearray()
        self._progress = progress
        self._block = 0  # bytes of the blocks that it shares with its sources
        self.overflowed = 0
        """Finite elements that a cast made infinite on the way here."""
        self.audit: Audit | None = None
        """What is told of bytes that do not keep their recorded checksum."""
        self.is_placed = False
        """Whether the file has taken its place."""
        self.is_kept = False
        """Whether the complete file could not take its place and was kept under its temporary name."""
        self.warnings: list[str] = []
        """What failed after the file had taken its place."""

    def tally(self, count: int) -> None:
        """Count elements that a cast made infinite."""
        self.overflowed += count

    @property
    def fd(self) -> int:
        """The descriptor of the file."""
        return self._fd

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
        """Copy a range of a source, by the kernel where it can. Raises UnreadableError when the source is cut.

        Only whole blocks can be shared, at the same place within a block: what is before and behind is written apart.
        """
        if count <= _SMALL:
            self.write(source.read(offset, count))
            return
        end = offset + count
        if self._block and not (offset - self.position) % self._block:
            head, tail = -offset % self._block, end % self._block
            if head + tail < count:
                self.write(source.read(offset, head))
                self._copy(source, offset + head, end - tail)
                self.write(source.read(end - tail, tail))
                return
        self._copy(source, offset, end)

    def _copy(self, source: Source, offset: int, end: int) -> None:
        self.flush()
        with source.descriptor() as fd:
            try:
                while fd is not None and offset < end:
                    step = min(end - offset, _KERNEL_COPY)
                    moved = os.copy_file_range(fd, self._fd, step, offset, self._at)
                    if not moved:
                        break
                    offset += moved
                    self._wrote(moved)
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

    def reserve(self, size: int, sources: Sequence[Source] = ()) -> None:
        """Reserve the space of the file now, so that a full disk fails at once.

        Where blocks are shared with one of its sources nothing is reserved: such a file needs little space.
        """
        self._block = disk.shared_block(self._fd, _descriptors(sources))
        if not self._block:
            disk.reserve(self._fd, size)

    def flush(self) -> None:
        """Pass the gathered bytes to the operating system."""
        if self._pending:
            data, self._pending = self._pending, bytearray()
            self._write(data)

    def complete(self) -> None:
        """Make what is written readable at `path`. A file is so once it is flushed."""

    def sync(self) -> None:
        """Force all bytes to the disk. A failure is final, because the kernel may have dropped the unwritten bytes."""
        self.flush()
        os.fsync(self._fd)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view[:MOST], self._at)
            self._wrote(done)
            view = view[done:]

    def _wrote(self, count: int) -> None:
        self._at += count
        if self._at - self._begun >= _EARLY:
            begin_writeback(self._fd, self._begun, self._at - self._begun)
            self._begun = self._at


def _descriptors(sources: Sequence[Source]) -> Iterator[int | None]:
    """The descriptor of each source, open until the next one is asked for."""
    for source in sources:
        with source.descriptor() as fd:
            yield fd


def unlike(sources: Sequence[Source]) -> tuple[Source, ...]:
    """One source for each device, mode and group: a folder of 10,000 files is not asked about 10,000 sources each time."""
    kinds = {}
    for source in sources:
        if source.status is not None:
            kinds[source.status.st_dev, source.status.st_mode, source.status.st_gid] = source
    return tuple(kinds.values())


def begin_writeback(fd: int, offset: int, count: int) -> None:
    """Ask for `count` bytes of a file to go to the disk now, and wait for nothing. A system that cannot is left alone."""
    # Linux begins to write the bytes that it is told not to keep, and keeps those that are on their way.
    with suppress(OSError, AttributeError):  # macOS has no such call
        os.posix_fadvise(fd, offset, count, os.POSIX_FADV_DONTNEED)


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
def writing(
    to: Target, size: int, progress: Progress | None = None, *, sources: Sequence[Source] = ()
) -> Iterator[Sink]:
    """A sink of `size` bytes. Leaving the block without an error puts the file in place. Raises WriteError.

    Inside the block the file can be read at `sink.path`. Who may not read one of the `sources`, or the file that is
    replaced, can read none of its bytes. What fails after it took its place is a warning of the sink.
    """
    if is_url(to.real):
        with writer().file(to, size, progress) as far:
            yield far
        return
    folder, name = os.path.split(to.real)
    temporary = os.path.join(folder, f".{name[:200]}.{os.urandom(6).hex()}{SUFFIX}")
    fd = -1
    sink: Sink | None = None
    try:
        fd = created(temporary, to, sources)
        lock(fd, fcntl.LOCK_SH)  # other runs see that this file is in use
        sink = Sink(fd, temporary, progress=progress)
        sink.reserve(size, sources)
        yield sink
        sink.flush()
        assert sink.position == size, f"{sink.position} bytes were written, {size} were planned"
        if to.replaced is not None:
            keep_mode(fd, to.replaced)
        sink.sync()
        try:
            _put(temporary, to)
        except OSError as error:
            if error.errno == errno.EEXIST:
                raise UsageError("already exists", path=to.path, hint="--force to replace") from None
            sink.is_kept = True
            problem = f"cannot be put in place: {why(error)}"
            raise WriteError(problem, path=to.path, hint=f"the complete file is at {temporary}") from None
        sink.is_placed = True
        sync_folder(folder)
    except OSError as error:
        if sink is not None and sink.is_placed:
            problem = f"complete, but it may not survive a power loss: {why(error)}"
            raise WriteError(problem, path=to.path) from error
        raise failed(error, to, size) from error
    finally:
        if fd >= 0:
            problems = []
            if sink is None or not sink.is_kept:
                problems += removed(temporary)
            problems += closed(fd)
            if sink is not None and sink.is_placed:
                sink.warnings += problems


def created(path: str, to: Target, sources: Sequence[Source]) -> int:
    """A new empty file that nobody can read who cannot read the sources or the file that is replaced."""
    read = [source.status for source in sources if source.status is not None]
    if to.like is not None:
        read.append(to.like)
    # Less the umask. A file that replaces another gets its mode with its owner, when it is complete.
    mode = 0o666 if to.replaced is None else 0o600
    if not all(status.st_mode & stat.S_IROTH for status in read):
        mode &= ~0o006
    if not all(status.st_mode & stat.S_IRGRP for status in read):
        mode &= ~0o060
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        made = os.fstat(fd)
        foreign = any(status.st_gid != made.st_gid and not status.st_mode & stat.S_IROTH for status in read)
        if foreign and made.st_mode & 0o070:  # its group is not the one that may read the sources
            os.fchmod(fd, stat.S_IMODE(made.st_mode) & ~0o070)
    except OSError:
        removed(path)
        closed(fd)
        raise
    return fd


def removed(path: str) -> list[str]:
    """Remove a file. What failed, in a line; a file that is gone already is no failure."""
    if is_url(path):
        return writer().removed(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [f"{show(path, None)} is left over, it cannot be removed: {why(error)}"]
    except BaseException:  # a signal that came just now
        with suppress(OSError):
            os.unlink(path)
        raise
    return []


def closed(fd: int) -> list[str]:
    """Close a descriptor, whose bytes are on the disk. What failed, in a line."""
    try:
        os.close(fd)
    except OSError as error:
        return [f"closing it failed after it was complete: {why(error)}"]
    return []


def _put(temporary: str, to: Target) -> None:
    if to.replaced is not None:
        os.replace(temporary, to.real)
        return
    try:
        os.link(temporary, to.real)  # unlike a rename, it never replaces a file
    except OSError as error:
        if error.errno not in NOT_HERE:
            raise
        if not _renamed(temporary, to.real):
            _claimed(temporary, to.real)


def _renamed(old: str, new: str) -> bool:
    """Rename without replacing a file; False where the system cannot do that."""
    return renamed(old, new, NO_REPLACE)


def _claimed(old: str, new: str) -> None:
    """Rename over an empty file that this call creates: no file of others is replaced."""
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        os.replace(old, new)
    except OSError:
        removed(new)
        raise


def lock(fd: int, how: int) -> None:
    """Lock a file where its file system has locks. Raises BlockingIOError when another process holds one."""
    try:
        fcntl.flock(fd, how)
    except AttributeError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise


def keep_mode(fd: int, old: os.stat_result) -> None:
    """Owner and mode of the file that is replaced. Where the group cannot be kept, the new one gets no more than others."""
    mode = stat.S_IMODE(old.st_mode)
    with suppress(OSError):  # only its owner, or root, may give a file away
        os.fchown(fd, old.st_uid, old.st_gid)
    if os.fstat(fd).st_gid != old.st_gid:
        with suppress(OSError):
            os.fchown(fd, -1, old.st_gid)
        if os.fstat(fd).st_gid != old.st_gid:
            mode &= ~0o070 | (mode & 0o007) << 3
    os.fchmod(fd, mode)


def sync_folder(folder: str) -> None:
    """Force the names in a folder to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        closed(fd)  # it was only opened for this


def failed(error: OSError, to: Target, size: int) -> WriteError:
    """The error of a file of `size` bytes that cannot be written; a full disk says what is free."""
    hint = None
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and size:
        with suppress(OSError):
            there = os.statvfs(os.path.dirname(to.real))
            free = there.f_bavail * there.f_frsize
            hint = f"it needs {size_text(size)}, {size_text(free)} are free"
    return WriteError(f"cannot be written: {why(error)}", path=to.path, hint=hint)
