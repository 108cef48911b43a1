"""Writing without loss: a file or a folder appears whole or not at all, and what it
replaces stays until then.

A new file gets its space reserved, or shares its blocks with its source. It is written
beside its target under another name, forced to the disk, and renamed; then the folder
is forced to the disk. A new folder is filled in the same way: each of its files is
forced to the disk, then the folder; then it is renamed, or changes places with the one
that it replaces, and only then that one is removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from ckpt.bytes import disk
from ckpt.bytes.far import is_url, reading_ahead_at_once, url_writer
from ckpt.bytes.source import MOST, Source
from ckpt.model.errors import TOO_MANY_TEXT, UsageError, WriteError
from ckpt.model.places import Checksum, Place
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, pasted_path, show, size_text

NO_REPLACE = 1
"""RENAME_NOREPLACE of renameat2: fail where the new name exists."""
EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2: both names change places at once."""
NOT_HERE = (
    errno.EPERM,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EACCES,
)
"""The errors of a file system that lacks links, or renameat2."""


_FICLONE = 0x40049409
"""The ioctl by which a file shares all blocks of another one."""

Belongs = Callable[[str], bool]
"""A function that tells whether a file of this name may be removed with the folder that
is replaced.
"""


SUFFIX = ".ckpt-tmp"
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
BLOCK = 4 << 20  # bytes that one read or write moves
_SMALL = 64 << 10
"""Ranges up to this size are gathered, because one system call for each would cost more
than the copy.
"""
_KERNEL_COPY = 32 << 20
_EARLY = 32 << 20
"""Once so many bytes are written, the disk begins with them, while the next ones are
copied.
"""

Progress = Callable[[int], None]


class Target(NamedTuple):
    """The place of a new file: the path as given, the real path behind links, the file
    that is there now.
    """

    path: str
    real: str
    replaced: os.stat_result | None
    like: tuple[os.stat_result, ...] = ()
    """Other files: who may not read one of them may not read this one. It takes their
    place, or says what is in them.
    """
    etag: str | None = None
    """The ETag of the object that is there now, if an object is written and not
    a file.
    """

    @property
    def is_replacing(self) -> bool:
        """Tell whether something is there that is replaced."""
        return self.replaced is not None or self.etag is not None

    @property
    def warning(self) -> str | None:
        """The warning about what stays behind when the file is replaced, or None."""
        old = self.replaced
        # A folder has links too: one for itself, and one for each folder in it.
        if old is not None and stat.S_ISREG(old.st_mode) and old.st_nlink > 1:
            return "its other hard links keep the old content"
        return None


def is_same_file(given: object, out: str | None) -> bool:
    """Tell whether what is read is the file of a path to write to, by any name."""
    if out is None or not isinstance(given, (str, os.PathLike)):
        return False
    path = os.fsdecode(given)
    try:
        return os.path.isfile(path) and os.path.samefile(path, out)
    except (OSError, ValueError):
        return False


def refuse_inputs(out: str, inputs: Iterable[object]) -> None:
    """Raise UsageError where a path to write to is a file that is read.

    `target` would ask for --force there, which must not take the file either.
    """
    if any(is_same_file(given, out) for given in inputs):
        raise input_refusal(out)


def input_refusal(out: str) -> UsageError:
    """The error for a path to write to that is a file which is read."""
    return UsageError(
        "OUT is a file that is read, which --force does not replace",
        path=out,
        hint="-o another file",
    )


def target(path: str, *, force: bool, parents: bool = False) -> Target:
    """A path to write to, checked before anything is read. Raises UsageError,
    WriteError.

    Links are followed; one that leads nowhere only with `force`, which would create
    what it does not name. With `parents` the folders of the target need not be there
    yet.
    """
    if is_url(path):
        return url_writer().file_target(path, force=force)
    if path.endswith("/") and not os.path.lexists(path.rstrip("/")):
        folder = pasted_path(path.rstrip("/"))
        hint = "make it, or name a file" if folder is None else f"mkdir -p {folder}"
        raise UsageError("there is no such folder", path=path, hint=hint)
    if not path or path.endswith("/") or os.path.isdir(path):
        raise UsageError(
            "a directory, not a file to write to",
            path=path or "-o",
            hint="name a file in it" if path else None,
        )
    real, status = find_target(path, force=force)
    if status is not None:
        if not stat.S_ISREG(status.st_mode):
            raise WriteError("not a regular file: ckpt does not replace it", path=path)
        refuse_replacing(path, real, os.W_OK, force=force)
    check_folder(path, real, parents=parents)
    return Target(path, real, status)


def folder_target(
    path: str, belongs: Belongs, *, force: bool, parents: bool = False
) -> Target:
    """A folder to write, checked before anything is read. Raises UsageError,
    WriteError.

    With `force` a folder is replaced when all that lies in it are files that belong to
    what is replaced. With `parents` the folders above it need not be there yet.
    """
    if is_url(path):
        return url_writer().folder_target(path)
    plain = path.rstrip("/")
    if not plain:
        raise UsageError("not a new folder", path=path or "-o")
    real, status = find_target(plain, force=force)
    if status is not None:
        if not stat.S_ISDIR(status.st_mode):
            raise UsageError(
                "a file, and the result is a folder", path=path, hint="-o another name"
            )
        refuse_replacing(path, real, os.R_OK | os.W_OK | os.X_OK, force=force)
        others = foreign_entries(real, belongs)
        if others:
            listed = and_more([show(name, 80) for name in others], 3)
            problem = (
                f"holds {listed}, which is no part of a checkpoint: ckpt does not "
                "replace this folder"
            )
            raise UsageError(problem, path=path, hint="-o another name")
    check_folder(plain, real, parents=parents)
    return Target(plain, real, status)


def make_parents(to: Target) -> None:
    """Make the folders above a target that are not there yet. Raises WriteError."""
    if is_url(to.real):  # an object store has none
        return
    try:
        os.makedirs(os.path.dirname(to.real), exist_ok=True)
    except OSError as error:
        raise WriteError(
            f"the folder cannot be made: {write_failure_reason(error)}",
            path=os.path.dirname(to.path),
        ) from None


def foreign_entries(folder: str, belongs: Belongs, below: str = "") -> list[str]:
    """Return the entries of a folder that do not belong to what is replaced: other
    names, folders, links.

    `below` is the path of the folder below the one that is replaced, with a slash. A
    folder in it belongs where its name with a slash does.
    """
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = below + entry.name
            if entry.is_dir(follow_symlinks=False) and belongs(f"{name}/"):
                others += foreign_entries(entry.path, belongs, f"{name}/")
            elif not (belongs(name) and entry.is_file(follow_symlinks=False)):
                others.append(name)
    return sorted(others)


def rename_with_flags(old: str, new: str, how: int) -> bool:
    """Rename by renameat2; False where the system cannot do that. Raises OSError."""
    # Here: only who writes pays for it. Python has no function for this call.
    import ctypes

    # AT_FDCWD: relative paths begin in the working folder.
    here = -100
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(here, os.fsencode(old), here, os.fsencode(new), how) == 0:
        return True
    number = ctypes.get_errno()
    # EINVAL: the file system does not know the flag.
    if number in (errno.EINVAL, *NOT_HERE):
        return False
    raise OSError(number, os.strerror(number))


def find_target(path: str, *, force: bool) -> tuple[str, os.stat_result | None]:
    """(the real path behind links, what is there now). Raises UsageError, WriteError.

    A link that leads nowhere is followed with `force` only: the result would be where
    its name does not say.
    """
    real = os.path.realpath(path)
    try:
        return real, os.stat(real)
    except FileNotFoundError:
        if os.path.islink(path) and not force:
            problem = f"a link to {show(real, 200)}, which does not exist"
            raise UsageError(
                problem, path=path, hint="--force to write there"
            ) from None
        return real, None
    except (OSError, ValueError) as error:
        raise WriteError(
            f"cannot be written: {write_failure_reason(error)}", path=path
        ) from None


def refuse_replacing(path: str, real: str, access: int, *, force: bool) -> None:
    """Raise UsageError without `force`, and WriteError where what is there may not be
    replaced.
    """
    if not force:
        raise UsageError("already exists", path=path, hint="--force to replace")
    if not os.access(real, access):
        raise WriteError("read-only: ckpt does not replace it", path=path)


def check_folder(path: str, real: str, *, parents: bool) -> None:
    """Raise WriteError unless the folder of a target takes a new name. With `parents`
    it need not be there yet.
    """
    folder = os.path.dirname(real)
    shown_folder = os.path.dirname(path) or folder
    # The nearest folder that is there decides whether the others can be made.
    while parents and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        # Something else may have the name of the folder: then mkdir would fail too.
        is_missing = not os.path.lexists(shown_folder)
        pasted = pasted_path(shown_folder) if is_missing else None
        way = None if pasted is None else f"mkdir -p {pasted}"
        raise WriteError("there is no such folder", path=shown_folder, hint=way)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise WriteError("no permission to write into this folder", path=shown_folder)


def write_failure_reason(error: Exception) -> str:
    """Return the reason why something cannot be written, in plain words."""
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
        errno.EMFILE: TOO_MANY_TEXT,
    }
    if not isinstance(error, OSError):
        return "not a file name: it contains a NUL byte"
    return texts.get(error.errno or 0) or (error.strerror or "a system error").lower()


# --- what takes the bytes -------------------------------------------------------------


class Audit(Protocol):
    """Keeps account of the recorded checksums of the bytes that go to a sink."""

    def check(self, place: Place | None) -> None:
        """Compare the records that the bytes of a place come from with their
        checksums.
        """
        ...

    def passed(self, checksum: Checksum, crc: int) -> None:
        """Note the CRC of a record whose bytes went by."""
        ...


class Sink:
    """Writes bytes in order, from byte `start` of a file on."""

    def __init__(
        self, fd: int, path: str, start: int = 0, progress: Progress | None = None
    ) -> None:
        self.path = path
        self.fd = fd
        """The descriptor of the file."""
        self._at = start  # everything before is written
        self._begun = start  # everything before is on its way to the disk
        self._pending = bytearray()
        self._progress = progress
        self._block = 0  # bytes of the blocks that it shares with its sources
        self.overflowed = 0
        """Finite elements that a cast made infinite on the way here."""
        self.vanished = 0
        """Elements that a cast made 0 on the way here."""
        self.audit: Audit | None = None
        """The audit that is told of bytes that do not keep their recorded checksum."""
        self.is_placed = False
        """True once the file has taken its place."""
        self.is_kept = False
        """True if the complete file could not take its place and was kept under its
        temporary name.
        """
        self.warnings: list[str] = []
        """The failures after the file had taken its place."""

    def tally(self, overflowed: int, vanished: int = 0) -> None:
        """Count elements that a cast made infinite, and those that it made 0."""
        self.overflowed += overflowed
        self.vanished += vanished

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
        """Copy a range of a source, by the kernel where it can. Raises UnreadableError
        when the source is cut.

        Only whole blocks can be shared, at the same place within a block: what is
        before and behind is written apart.
        """
        if count <= _SMALL:
            self.write(source.read(offset, count))
            return
        end = offset + count
        if self._block and not (offset - self.position) % self._block:
            # The bytes up to the next whole block, and those behind the last one.
            head = -offset % self._block
            tail = end % self._block
            if head + tail < count:
                self.write(source.read(offset, head))
                self._copy_range(source, offset + head, end - tail)
                self.write(source.read(end - tail, tail))
                return
        self._copy_range(source, offset, end)

    def _copy_range(self, source: Source, offset: int, end: int) -> None:
        self.flush()
        offset = self._copy_in_kernel(source, offset, end)
        with reading_ahead_at_once([(source, offset, end)]):
            while offset < end:
                step = min(end - offset, BLOCK)
                self._write(source.read(offset, step))
                offset += step
                if self._progress is not None:
                    self._progress(step)

    def _copy_in_kernel(self, source: Source, offset: int, end: int) -> int:
        """Copy as much of a range as the kernel copies, and return where it stopped."""
        with source.descriptor() as fd:
            try:
                while fd is not None and offset < end:
                    step = min(end - offset, _KERNEL_COPY)
                    moved = os.copy_file_range(fd, self.fd, step, offset, self._at)
                    # 0 at the end of a file: the source was cut, and reading says so.
                    if not moved:
                        break
                    offset += moved
                    self._count_written(moved)
                    if self._progress is not None:
                        self._progress(moved)
            except (OSError, AttributeError):
                # These file systems cannot, or macOS lacks the call. A real error comes
                # up again in the plain way.
                pass
        return offset

    def reserve(
        self, size: int, sources: Sequence[Source] = (), holes: int = 0
    ) -> None:
        """Reserve the space of the file now, so that a full disk fails at once.

        Where blocks are shared with one of its sources nothing is reserved: such a file
        needs little space. Nor are the bytes of `holes` in its sources, which lie on no
        disk: a small file can say that it is larger than any.
        """
        self._block = disk.shared_block(self.fd, _open_descriptors(sources))
        if not self._block:
            disk.reserve_space(self.fd, size, max(0, size - holes))

    def flush(self) -> None:
        """Pass the gathered bytes to the operating system."""
        if self._pending:
            data = self._pending
            # Before the write: what fails half-way is not written twice.
            self._pending = bytearray()
            self._write(data)

    def complete(self) -> None:
        """Make what is written readable at `path`. A file is so once it is flushed."""

    def sync(self) -> None:
        """Force all bytes to the disk. A failure is final, because the kernel may have
        dropped the unwritten bytes.
        """
        self.flush()
        os.fsync(self.fd)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self.fd, view[:MOST], self._at)
            self._count_written(done)
            view = view[done:]

    def _count_written(self, count: int) -> None:
        self._at += count
        if self._at - self._begun >= _EARLY:
            begin_writeback(self.fd, self._begun, self._at - self._begun)
            self._begun = self._at


def _open_descriptors(sources: Sequence[Source]) -> Iterator[int | None]:
    """The descriptor of each source, open until the next one is asked for."""
    for source in sources:
        with source.descriptor() as fd:
            yield fd


def _hole_bytes(sources: Sequence[Source]) -> int:
    """The bytes of files that do not lie on their disk."""
    statuses = [source.status for source in sources]
    return sum(
        max(0, status.st_size - status.st_blocks * 512)
        for status in statuses
        if status is not None
    )


def distinct_sources(sources: Sequence[Source]) -> tuple[Source, ...]:
    """One source for each device, mode and group: a folder of 10,000 files is not asked
    about 10,000 sources each time.
    """
    by_kind: dict[tuple[int, int, int], Source] = {}
    for source in sources:
        status = source.status
        if status is not None:
            by_kind[status.st_dev, status.st_mode, status.st_gid] = source
    return tuple(by_kind.values())


def begin_writeback(fd: int, offset: int, count: int) -> None:
    """Ask for `count` bytes of a file to go to the disk now, and wait for nothing. A
    system that cannot is left alone.
    """
    # Linux begins to write the bytes that it is told not to keep, and keeps those that
    # are on their way.
    with suppress(OSError, AttributeError):  # macOS has no such call
        os.posix_fadvise(fd, offset, count, os.POSIX_FADV_DONTNEED)


class MemorySink(Sink):
    """A sink in memory, for bytes that are checked before they go to a file."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(-1, "", start)
        self._kept = bytearray()

    def taken(self) -> bytes:
        """Return the bytes that were written since the last call."""
        self.flush()
        data = bytes(self._kept)
        self._kept = bytearray()
        return data

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        self._kept += data
        self._at += len(data)


class FolderSink(Sink):
    """Takes the files of a new folder, one after the other; each is on the disk when
    its block is left.
    """

    def __init__(
        self,
        to: Target,
        path: str,
        sources: Sequence[Source],
        progress: Progress | None,
    ) -> None:
        super().__init__(-1, path, progress=progress)
        self._to = to
        self._sources = distinct_sources(sources)
        self._holes = _hole_bytes(sources)

    @contextmanager
    def file(self, name: str, size: int) -> Iterator[Sink]:
        """A sink for a new file of `size` bytes."""
        with self._opened(name) as sink:
            sink.reserve(size, self._sources, self._holes)
            yield sink
            sink.flush()
            assert sink.position == size, (
                f"{sink.position} bytes were written, {size} were planned"
            )

    @contextmanager
    def _opened(self, name: str) -> Iterator[Sink]:
        path = os.path.join(self.path, name)
        like = list_status(self._to.replaced)
        fd = create_file(path, Target(path, path, None, like), self._sources)
        try:
            sink = Sink(fd, path, progress=self._progress)
            sink.audit = self.audit
            yield sink
            sink.sync()
            self.tally(sink.overflowed, sink.vanished)
        finally:
            self.warnings += close_descriptor(fd)

    def make_folder(self, name: str) -> None:
        """Make a folder in it, by its path below, and those that it lies in."""
        os.makedirs(os.path.join(self.path, name), exist_ok=True)

    def sync_folders(self) -> None:
        """Force the names in all folders in it to the disk."""
        for folder, _, _ in os.walk(self.path):
            sync_folder(folder)

    def clone(self, name: str, source: Source) -> None:
        """A file with the bytes of a source, which share their place on the disk where
        the file system can.
        """
        with self._opened(name) as sink:
            try:
                with source.descriptor() as fd:
                    if fd is None:
                        raise OSError(errno.EBADF, "not a file")
                    fcntl.ioctl(sink.fd, _FICLONE, fd)
                if self._progress is not None:
                    self._progress(source.size)
            except OSError:
                # Another device, or a file system that shares nothing: a plain copy.
                sink.reserve(source.size, holes=_hole_bytes([source]))
                sink.copy(source, 0, source.size)

    def link(self, name: str, source: Source) -> None:
        """A hard link to the file of a source. Raises WriteError where its path leads
        to another file by now.
        """
        path = os.path.join(self.path, name)
        # The file itself: a hard link to a symbolic one would break with its target.
        real_path = os.path.realpath(source.name)
        try:
            os.link(real_path, path, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EXDEV, *NOT_HERE):
                raise
            problem = f"no hard link can be made: {write_failure_reason(error)}"
            raise WriteError(problem, path=source.name, hint="without --link") from None
        if source.status is None or not os.path.samestat(source.status, os.stat(path)):
            raise WriteError(
                "the file was replaced while it was read", path=source.name
            )
        if self._progress is not None:
            self._progress(source.size)


# --- putting it in place --------------------------------------------------------------


@contextmanager
def writing_file(
    to: Target,
    size: int,
    progress: Progress | None = None,
    *,
    sources: Sequence[Source] = (),
) -> Iterator[Sink]:
    """A sink of `size` bytes. Leaving the block without an error puts the file in
    place. Raises WriteError.

    Inside the block the file can be read at `sink.path`. Who may not read one of the
    `sources`, or the file that is replaced, can read none of its bytes. What fails
    after it took its place is a warning of the sink.
    """
    if is_url(to.real):
        with url_writer().file(to, size, progress) as far:
            yield far
        return
    sink = Sink(-1, _temporary_path(to), progress=progress)

    def begin() -> int:
        sink.fd = create_file(sink.path, to, sources)
        return sink.fd

    def complete(fd: int) -> None:
        sink.flush()
        assert sink.position == size, (
            f"{sink.position} bytes were written, {size} were planned"
        )
        if to.replaced is not None:
            narrowed = keep_mode(fd, to.replaced, _read_for(to, sources))
            if narrowed is not None:
                sink.warnings.append(
                    f"its mode is {narrowed:o} now: its source is private"
                )
        sink.sync()

    def put() -> list[str]:
        _put_in_place(sink.path, to)
        sink.is_placed = True
        sync_folder(os.path.dirname(to.real))
        return []

    with _placing_result(sink, to, size, begin, complete, put):
        sink.reserve(size, sources, _hole_bytes(sources))
        yield sink


@contextmanager
def writing_folder(
    to: Target,
    size: int,
    belongs: Belongs,
    progress: Progress | None = None,
    *,
    sources: Sequence[Source] = (),
) -> Iterator[FolderSink]:
    """A sink for the files of a folder. Leaving the block without an error puts the
    folder in place.

    Raises WriteError. Inside the block the folder can be read at `sink.path`. What
    fails after it took its place is a warning of the sink.
    """
    if is_url(to.real):
        with url_writer().folder(to, size, progress) as far:
            yield far
        return
    sink = FolderSink(to, _temporary_path(to), sources, progress)

    def begin() -> int:
        # A folder that replaces another gets its mode with its owner, when it is
        # complete. Until then nobody else looks into it.
        os.mkdir(sink.path, 0o777 if to.replaced is None else 0o700)
        return os.open(sink.path, _FOLDER_FLAGS)

    def complete(fd: int) -> None:
        if to.replaced is not None:
            keep_mode(fd, to.replaced)
        os.fsync(fd)

    def put() -> list[str]:
        old = _put_folder(sink.path, to)
        sink.is_placed = True
        sync_folder(os.path.dirname(to.real))
        return [] if old is None else _removed_old(old, to, belongs)

    with _placing_result(sink, to, size, begin, complete, put):
        yield sink


def _temporary_path(to: Target) -> str:
    """Return a new name in the folder of a target."""
    # In the same folder: a rename to another file system would be a copy. A part of the
    # name is cut, because file systems take 255 bytes.
    folder, name = os.path.split(to.real)
    return os.path.join(folder, f".{name[:200]}.{os.urandom(6).hex()}{SUFFIX}")


@contextmanager
def _placing_result(
    sink: Sink,
    to: Target,
    size: int,
    begin: Callable[[], int],
    complete: Callable[[int], None],
    put: Callable[[], list[str]],
) -> Iterator[None]:
    """Place a file or a folder, whole or not at all. Raises UsageError, WriteError.

    `begin` makes it under its temporary name and gives its descriptor, `complete`
    forces it to the disk, `put` puts it in place, forces its name to the disk, and
    gives the warnings.
    """
    is_folder = isinstance(sink, FolderSink)
    fd = -1
    try:
        fd = begin()
        # Other runs see that it is in use, and is not left over from a killed one.
        lock_file(fd, fcntl.LOCK_SH)
        yield
        complete(fd)
        try:
            warnings = put()
        except OSError as error:
            if sink.is_placed:
                raise
            if error.errno == errno.EEXIST:
                raise UsageError(
                    "already exists", path=to.path, hint="--force to replace"
                ) from None
            # A complete file may have taken hours: it is not removed.
            sink.is_kept = True
            what = "checkpoint" if is_folder else "file"
            problem = f"cannot be put in place: {write_failure_reason(error)}"
            raise WriteError(
                problem, path=to.path, hint=f"the complete {what} is at {sink.path}"
            ) from None
        sink.warnings += warnings
    except OSError as error:
        if sink.is_placed:
            problem = (
                "complete, but it may not survive a power loss: "
                f"{write_failure_reason(error)}"
            )
            raise WriteError(problem, path=to.path) from error
        raise write_error(error, to, size) from error
    finally:
        problems: list[str] = []
        if is_folder and not (sink.is_placed or sink.is_kept):
            # A folder that has its name by now may be somebody else's.
            removed_folder(sink.path, None if fd < 0 else os.fstat(fd))
        elif fd >= 0 and not is_folder and not sink.is_kept:
            problems += remove_file(sink.path)
        if fd >= 0:
            problems += close_descriptor(fd)
            if sink.is_placed:
                sink.warnings += problems


def create_file(path: str, to: Target, sources: Sequence[Source]) -> int:
    """A new empty file that nobody can read who cannot read the sources or the file
    that is replaced.
    """
    read = _read_for(to, sources)
    # Less the umask. A file that replaces another gets its mode with its owner, when it
    # is complete.
    mode = 0o666 if to.replaced is None else 0o600
    mode &= _mode_of_readers(read)
    # O_EXCL and no link followed: nobody can have put another file under this name.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, mode)
    try:
        own = os.fstat(fd)
        if _is_of_another_group(own.st_gid, read) and own.st_mode & 0o070:
            os.fchmod(fd, stat.S_IMODE(own.st_mode) & ~0o070)
    except OSError:
        remove_file(path)
        close_descriptor(fd)
        raise
    return fd


def list_status(status: os.stat_result | None) -> tuple[os.stat_result, ...]:
    """Return the file with this status alone, or none where there is no file."""
    return () if status is None else (status,)


def _read_for(to: Target, sources: Sequence[Source]) -> list[os.stat_result]:
    """The files of which something stands in a target."""
    read = [source.status for source in sources if source.status is not None]
    return [*read, *to.like]


def _mode_of_readers(read: Sequence[os.stat_result]) -> int:
    """The bits of a mode that give nobody more than all of these files do."""
    mode = 0o7777
    if not all(status.st_mode & stat.S_IROTH for status in read):
        mode &= ~0o006
    if not all(status.st_mode & stat.S_IRGRP for status in read):
        mode &= ~0o060
    return mode


def _is_of_another_group(group: int, read: Sequence[os.stat_result]) -> bool:
    """Tell whether a group is not the one that may read all of these files."""
    return any(
        status.st_gid != group and not status.st_mode & stat.S_IROTH for status in read
    )


def remove_file(path: str) -> list[str]:
    """Remove a file. What failed, in a line; a file that is gone already is no
    failure.
    """
    if is_url(path):
        return url_writer().removed(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [_left_over_text(path, error)]
    except BaseException:
        # A signal that came just now: the file must go before the process does.
        with suppress(OSError):
            os.unlink(path)
        raise
    return []


def _left_over_text(path: str, error: OSError) -> str:
    reason = write_failure_reason(error)
    return f"{show(path, None)} is left over, it cannot be removed: {reason}"


def close_descriptor(fd: int) -> list[str]:
    """Close a descriptor, whose bytes are on the disk. What failed, in a line."""
    try:
        os.close(fd)
    except OSError as error:
        return [
            f"closing it failed after it was complete: {write_failure_reason(error)}"
        ]
    return []


def _put_in_place(temporary: str, to: Target) -> None:
    """Put a file in place. Raises FileExistsError, OSError."""
    if to.replaced is not None:
        os.replace(temporary, to.real)
        return
    try:
        # Unlike a rename, a link never replaces a file that somebody made meanwhile.
        os.link(temporary, to.real)
    except OSError as error:
        if error.errno not in NOT_HERE:
            raise
        if not rename_with_flags(temporary, to.real, NO_REPLACE):
            _rename_over_claim(temporary, to.real)


def _rename_over_claim(old: str, new: str) -> None:
    """Rename over an empty file that this call creates: no file of others is
    replaced.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(new, flags, 0o600))
    try:
        os.replace(old, new)
    except OSError:
        remove_file(new)
        raise


def lock_file(fd: int, how: int) -> None:
    """Lock a file where its file system has locks. Raises BlockingIOError when another
    process holds one.
    """
    try:
        fcntl.flock(fd, how)
    except AttributeError:
        # This system has no such call.
        return
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""The errors of a file system that has no locks."""


def keep_mode(
    fd: int, old: os.stat_result, read: Sequence[os.stat_result] = ()
) -> int | None:
    """Give a file the owner and mode of the one that is replaced. Where the group
    cannot be kept, the new one gets no more than others.

    Nobody may read it who may not read all of the files `read`. Return its mode where
    that made it another one.
    """
    mode = stat.S_IMODE(old.st_mode)
    # The owner of what was there gets no file that they could not read.
    is_readable = all(
        status.st_mode & stat.S_IROTH or status.st_uid == old.st_uid for status in read
    )
    # Only root may give a file away.
    with suppress(OSError):
        os.fchown(fd, old.st_uid if is_readable else -1, old.st_gid)
    if os.fstat(fd).st_gid != old.st_gid:
        # The owner may give it to a group of theirs.
        with suppress(OSError):
            os.fchown(fd, -1, old.st_gid)
        if os.fstat(fd).st_gid != old.st_gid:
            others_as_group = (mode & 0o007) << 3
            mode &= ~0o070 | others_as_group
    narrowed = mode & _mode_of_readers(read)
    if _is_of_another_group(os.fstat(fd).st_gid, read):
        narrowed &= ~0o070
    # Last: changing the owner clears the bits of setuid and setgid.
    os.fchmod(fd, narrowed)
    return None if narrowed == mode else narrowed


def sync_folder(folder: str) -> None:
    """Force the names in a folder to the disk."""
    # A rename is in the folder, not in the file: fsync of the file does not keep it.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        # It was only opened for this, so what fails here loses nothing.
        close_descriptor(fd)


def write_error(error: OSError, to: Target, size: int) -> WriteError:
    """The error of a file of `size` bytes that cannot be written; a full disk says what
    is free.
    """
    hint = None
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and size:
        with suppress(OSError):
            there = os.statvfs(os.path.dirname(to.real))
            free = there.f_bavail * there.f_frsize
            hint = f"it needs {size_text(size)}, {size_text(free)} are free"
    return WriteError(
        f"cannot be written: {write_failure_reason(error)}", path=to.path, hint=hint
    )


def _put_folder(temporary: str, to: Target) -> str | None:
    """Put a folder in place; the path at which the replaced one lies now. Raises
    FileExistsError, OSError.
    """
    if to.replaced is None:
        if not rename_with_flags(temporary, to.real, NO_REPLACE):
            # Making it claims the name: a rename replaces an empty folder, and no
            # other.
            os.mkdir(to.real)
            try:
                os.rename(temporary, to.real)
            except OSError:
                with suppress(OSError):
                    os.rmdir(to.real)
                raise
        return None
    if rename_with_flags(temporary, to.real, EXCHANGE):
        return temporary
    # The same name with another number, so that `left_over` finds it after a kill.
    aside = f"{temporary.removesuffix(SUFFIX)[:-12]}{os.urandom(6).hex()}{SUFFIX}"
    os.rename(to.real, aside)
    try:
        os.rename(temporary, to.real)
    except BaseException:
        # A signal too: the old one is what a user expects there.
        os.rename(aside, to.real)
        raise
    return aside


def _removed_old(old: str, to: Target, belongs: Belongs) -> list[str]:
    """Remove the folder that was replaced. What failed, or is kept, in a line."""
    assert to.replaced is not None
    try:
        status = os.stat(old, follow_symlinks=False)
        # Between the check and the exchange somebody may have put another folder there,
        # or a file of their own into it.
        if not os.path.samestat(status, to.replaced) or foreign_entries(old, belongs):
            return [
                (
                    "what was there has changed meanwhile, and is kept at "
                    f"{show(old, None)}"
                )
            ]
    except OSError as error:
        return [f"{show(old, None)} is left over: {write_failure_reason(error)}"]
    return removed_folder(old, to.replaced)


def removed_folder(path: str, status: os.stat_result | None) -> list[str]:
    """Remove the folder with this status, and its files; without one only an empty
    folder. What failed, in a line; a folder that is gone already is no failure.
    """
    try:
        _remove_folder(path, status)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [_left_over_text(path, error)]
    except BaseException:
        # A signal that came just now: the folder must go before the process does.
        with suppress(OSError):
            _remove_folder(path, status)
        raise
    return []


_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | NOFOLLOW | os.O_CLOEXEC


def _remove_folder(path: str, status: os.stat_result | None) -> None:
    """Remove the folder with this status. Raises OSError, also where another one has
    its name by now.
    """
    if status is not None:
        # Through a descriptor: no link is followed, however quickly it comes.
        fd = os.open(path, _FOLDER_FLAGS)
        try:
            if not os.path.samestat(os.fstat(fd), status):
                raise OSError(errno.EBUSY, "another folder")
            _empty_folder(fd)
        finally:
            os.close(fd)
    os.rmdir(path)


def _empty_folder(folder: int) -> None:
    """Remove all that lies in an open folder. Raises OSError."""
    # `.metadata` comes first: without it, it is no checkpoint.
    for name in sorted(os.listdir(folder)):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        fd = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
        try:
            _empty_folder(fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=folder)


# --- what is left of other runs, and of what was replaced -----------------------------


def left_over(path: str, name: str | None = None) -> list[tuple[str, int]]:
    """Temporary files and folders of killed runs beside a target: their paths and
    sizes. Those in use are left out.

    `name` is a regular expression for the names of several targets in that folder. Of
    objects nothing lies beside them.
    """
    if is_url(path):
        return []
    folder, own_name = os.path.split(os.path.realpath(path))
    names = name or re.escape(own_name[:200])
    temporary = re.compile(rf"\.{names}\.[0-9a-f]{{12}}{re.escape(SUFFIX)}")
    files: list[tuple[str, int]] = []
    with suppress(OSError):
        for other in sorted(os.listdir(folder)):
            if not temporary.fullmatch(other):
                continue
            whole = os.path.join(folder, other)
            # One that cannot be opened or locked is in use, or somebody else's.
            with suppress(OSError):
                fd = os.open(whole, os.O_RDONLY | NOFOLLOW | os.O_CLOEXEC)
                try:
                    lock_file(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    files.append((whole, _total_size(fd, whole)))
                finally:
                    os.close(fd)
    return files


def _total_size(fd: int, path: str) -> int:
    """The bytes of a file, or of the files in a folder."""
    status = os.fstat(fd)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    return sum(
        os.stat(os.path.join(folder, name), follow_symlinks=False).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )


def clear_files(folder: str, names: Iterable[str]) -> list[str]:
    """Remove files of a folder in this order and force that to the disk. What failed,
    one line each.
    """
    if is_url(folder):
        return url_writer().cleared(folder, list(names))
    problems: list[str] = []
    for name in names:
        problems += remove_file(os.path.join(folder, name))
    try:
        sync_folder(folder)
    except OSError as error:
        problems.append(
            f"old files may come back after a power loss: {write_failure_reason(error)}"
        )
    return problems
