"""Writing a folder without loss: it appears whole or not at all, and the folder that it replaces stays until then.

A new folder is filled beside its target under another name. Each of its files is forced to the disk, then the folder;
then it is renamed, or changes places with the one that it replaces, and only then that one is removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ckpt.errors import UsageError, WriteError
from ckpt.io import commit
from ckpt.io.commit import NOFOLLOW, SUFFIX, Progress, Sink, Target, closed, failed, sync_folder
from ckpt.io.far import is_url, writer
from ckpt.io.source import Source
from ckpt.io.target import EXCHANGE, NO_REPLACE, NOT_HERE, check_folder, found, refuse_replacing, renamed, why
from ckpt.text import and_more, show

_FICLONE = 0x40049409

Belongs = Callable[[str], bool]
"""Whether a file of this name may be removed with the folder that is replaced."""


def target(path: str, belongs: Belongs, *, force: bool, parents: bool = False) -> Target:
    """A folder to write, checked before anything is read. Raises UsageError, WriteError.

    With `force` a folder is replaced when all that lies in it are files that belong to what is replaced. With
    `parents` the folders above it need not be there yet.
    """
    if is_url(path):
        return writer().folder_target(path)
    plain = path.rstrip("/")
    if not plain:
        raise UsageError("not a new folder", path=path or "-o")
    real, status = found(plain, force=force)
    if status is not None:
        if not stat.S_ISDIR(status.st_mode):
            raise UsageError("a file, and the result is a folder", path=path, hint="-o another name")
        refuse_replacing(path, real, os.R_OK | os.W_OK | os.X_OK, force=force)
        others = foreign(real, belongs)
        if others:
            listed = and_more([show(name, 80) for name in others], 3)
            problem = f"holds {listed}, which is no part of a checkpoint: ckpt does not replace this folder"
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
        raise WriteError(f"the folder cannot be made: {why(error)}", path=os.path.dirname(to.path)) from None


def foreign(folder: str, belongs: Belongs) -> list[str]:
    """What lies in a folder and does not belong to what is replaced: other names, folders, links."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not (belongs(entry.name) and entry.is_file(follow_symlinks=False))
        )


class FolderSink(Sink):
    """Takes the files of a new folder, one after the other; each is on the disk when its block is left."""

    def __init__(self, to: Target, path: str, sources: Sequence[Source], progress: Progress | None) -> None:
        super().__init__(-1, path, progress=progress)
        self._to = to
        self._sources = commit.unlike(sources)

    @contextmanager
    def file(self, name: str, size: int) -> Iterator[Sink]:
        """A sink for a new file of `size` bytes."""
        with self._opened(name) as sink:
            sink.reserve(size, self._sources)
            yield sink
            sink.flush()
            assert sink.position == size, f"{sink.position} bytes were written, {size} were planned"

    @contextmanager
    def _opened(self, name: str) -> Iterator[Sink]:
        path = os.path.join(self.path, name)
        fd = commit.created(path, Target(path, path, None, self._to.replaced), self._sources)
        try:
            sink = Sink(fd, path, progress=self._progress)
            sink.audit = self.audit
            yield sink
            sink.sync()
            self.tally(sink.overflowed)
        finally:
            self.warnings += closed(fd)

    def clone(self, name: str, source: Source) -> None:
        """A file with the bytes of a source, which share their place on the disk where the file system can."""
        with self._opened(name) as sink:
            try:
                with source.descriptor() as fd:
                    if fd is None:
                        raise OSError(errno.EBADF, "not a file")
                    fcntl.ioctl(sink.fd, _FICLONE, fd)
                if self._progress is not None:
                    self._progress(source.size)
            except OSError:
                sink.reserve(source.size)
                sink.copy(source, 0, source.size)

    def link(self, name: str, source: Source) -> None:
        """A hard link to the file of a source. Raises WriteError where its path leads to another file by now."""
        path = os.path.join(self.path, name)
        try:
            os.link(os.path.realpath(source.name), path, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EXDEV, *NOT_HERE):
                raise
            problem = f"no hard link can be made: {why(error)}"
            raise WriteError(problem, path=source.name, hint="without --link") from None
        if source.status is None or not os.path.samestat(source.status, os.stat(path)):
            raise WriteError("the file was replaced while it was read", path=source.name)
        if self._progress is not None:
            self._progress(source.size)


@contextmanager
def writing(
    to: Target,
    size: int,
    belongs: Belongs,
    progress: Progress | None = None,
    *,
    sources: Sequence[Source] = (),
) -> Iterator[FolderSink]:
    """A sink for the files of a folder. Leaving the block without an error puts the folder in place.

    Raises WriteError. Inside the block the folder can be read at `sink.path`. What fails after it took its place is
    a warning of the sink.
    """
    if is_url(to.real):
        with writer().folder(to, size, progress) as far:
            yield far
        return
    folder, name = os.path.split(to.real)
    temporary = os.path.join(folder, f".{name[:200]}.{os.urandom(6).hex()}{SUFFIX}")
    sink = FolderSink(to, temporary, sources, progress)
    fd = -1
    try:
        os.mkdir(temporary, 0o777 if to.replaced is None else 0o700)
        fd = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | NOFOLLOW | os.O_CLOEXEC)
        commit.lock(fd, fcntl.LOCK_SH)  # other runs see that this folder is in use
        yield sink
        if to.replaced is not None:
            commit.keep_mode(fd, to.replaced)
        os.fsync(fd)
        try:
            old = _put(temporary, to)
        except FileExistsError:
            raise UsageError("already exists", path=to.path, hint="--force to replace") from None
        except OSError as error:
            sink.is_kept = True
            problem = f"cannot be put in place: {why(error)}"
            raise WriteError(
                problem, path=to.path, hint=f"the complete checkpoint is at {temporary}"
            ) from None
        sink.is_placed = True
        sync_folder(folder)
        if old is not None:
            sink.warnings += _removed_old(old, to, belongs)
    except OSError as error:
        if sink.is_placed:
            problem = f"complete, but it may not survive a power loss: {why(error)}"
            raise WriteError(problem, path=to.path) from error
        raise failed(error, to, size) from error
    finally:
        if not (sink.is_placed or sink.is_kept):
            removed(temporary)
        if fd >= 0:
            problems = closed(fd)
            if sink.is_placed:
                sink.warnings += problems


def _put(temporary: str, to: Target) -> str | None:
    """Put a folder in place; the path at which the replaced one lies now. Raises FileExistsError, OSError."""
    if to.replaced is None:
        if not renamed(temporary, to.real, NO_REPLACE):
            os.mkdir(to.real)  # claims the name; a rename replaces an empty folder
            try:
                os.rename(temporary, to.real)
            except OSError:
                with suppress(OSError):
                    os.rmdir(to.real)
                raise
        return None
    if renamed(temporary, to.real, EXCHANGE):
        return temporary
    aside = f"{temporary.removesuffix(SUFFIX)[:-12]}{os.urandom(6).hex()}{SUFFIX}"
    os.rename(to.real, aside)
    try:
        os.rename(temporary, to.real)
    except BaseException:  # a signal too: the old one is what a user expects there
        os.rename(aside, to.real)
        raise
    return aside


def _removed_old(old: str, to: Target, belongs: Belongs) -> list[str]:
    """Remove the folder that was replaced. What failed, or is kept, in a line."""
    assert to.replaced is not None
    try:
        if not os.path.samestat(os.stat(old, follow_symlinks=False), to.replaced) or foreign(old, belongs):
            return [f"what was there has changed meanwhile, and is kept at {show(old, None)}"]
    except OSError as error:
        return [f"{show(old, None)} is left over: {why(error)}"]
    return removed(old)


def removed(path: str) -> list[str]:
    """Remove a folder and its files. What failed, in a line; a folder that is gone already is no failure."""
    try:
        _remove(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [f"{show(path, None)} is left over, it cannot be removed: {why(error)}"]
    except BaseException:  # a signal that came just now
        with suppress(OSError):
            _remove(path)
        raise
    return []


def _remove(path: str) -> None:
    for name in sorted(os.listdir(path)):  # `.metadata` comes first: without it, it is no checkpoint
        os.unlink(os.path.join(path, name))
    os.rmdir(path)
