"""Writing to an object store: an object appears whole or not at all, and of a folder what completes it comes last.

There is no other name to write under first. An object is there once it is complete; what fails afterwards removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ckpt.errors import CkptError, NotOpenedError, UsageError, WriteError, about
from ckpt.io.remote.location import locate_url
from ckpt.io.remote.put import Writable, object_to_write
from ckpt.io.remote.received import compares
from ckpt.io.remote.upload import ObjectSink
from ckpt.io.remote.url import OBJECTS, Url, parsed
from ckpt.io.source import Source
from ckpt.io.target import FolderSink, Progress, Sink, Target
from ckpt.text import plural, show


def file_target(url: str, *, force: bool) -> Target:
    """An object to write, looked for before anything is read. Raises UsageError, WriteError."""
    place = _writable(url)
    if not place.path or place.path.endswith("/"):
        raise UsageError("a folder, not an object to write to", path=url)
    with about(url):
        etag = object_to_write(place).look()
        if etag is not None and not force:
            raise UsageError("already exists", hint="--force to replace")
    return Target(url, url, None, etag=etag)


def folder_target(url: str) -> Target:
    """A folder to write, which must be empty. Raises UsageError, WriteError.

    A folder of objects cannot change places with another one, so none is replaced.
    """
    plain = url.rstrip("/")
    place = _writable(plain)
    if not place.path:
        raise UsageError("a bucket, not a new folder", path=url)
    with about(plain):
        if object_to_write(place).look() is not None:
            raise UsageError("an object, and the result is a folder", hint="-o another name")
    taken = names(plain)
    if taken:
        problem = f"holds {plural(len(taken), 'object')} already: ckpt replaces no folder of an object store"
        raise UsageError(problem, path=plain, hint="-o another name")
    return Target(plain, plain, None)


def names(url: str) -> list[str]:
    """The names in a folder, none for one that is not there. Raises NotOpenedError."""
    try:
        return locate_url(f"{url.rstrip('/')}/").names()
    except NotOpenedError as error:
        if error.problem.startswith("no such"):
            return []
        raise


def _writable(url: str) -> Url:
    place = parsed(url)
    if place.scheme not in OBJECTS:
        raise UsageError("ckpt writes to s3://, gs:// and az:// only", path=url)
    return place


@contextmanager
def file(to: Target, size: int, progress: Progress | None = None) -> Iterator[ObjectSink]:
    """A sink for an object of `size` bytes. Raises WriteError, UsageError.

    `complete` makes the object, and leaving the block does too. Leaving it with an error leaves no object.
    """
    sink = _sink(to, size, progress)
    try:
        yield sink
        with about(to.path):
            sink.complete()
    except BaseException as error:
        _undo(sink, to, error)
        raise


def _sink(to: Target, size: int, progress: Progress | None) -> ObjectSink:
    url = parsed(to.real)
    place = object_to_write(url)
    create = to.etag is None

    def look() -> None:
        if create and place.look() is not None:
            raise UsageError("already exists", path=to.path, hint="--force to replace")

    return ObjectSink(
        place, to.real, size, look, create=create, compare=compares(url.scheme), progress=progress
    )


def _undo(sink: ObjectSink, to: Target, error: BaseException) -> None:
    """Leave no object, and none of its parts. Only an interrupt leaves one that is complete and has replaced another."""
    sink.stop()
    if sink.etag is None:
        return
    sink.is_placed = True
    if to.etag is not None and not isinstance(error, Exception):
        return
    problems = _removed(object_to_write(parsed(to.real)), to.real, sink.etag or None)
    sink.is_placed = bool(problems)
    if problems and isinstance(error, CkptError):
        error.hint = problems[0]


def _removed(place: Writable, url: str, etag: str | None) -> list[str]:
    """Remove an object, if its ETag is still this one. What failed, in a line."""
    try:
        now = None if etag is None else place.look()
        if etag is not None and now is not None and now.strip('"') != etag.strip('"'):
            return [f"{show(url, None)} is another object by now, and is kept"]
        place.remove()
    except CkptError as error:
        return [f"{show(url, None)} is left over: {error.problem}"]
    return []


def removed(url: str) -> list[str]:
    """Remove an object. What failed, in a line; one that is gone already is no failure."""
    return _removed(object_to_write(parsed(url)), url, None)


class ObjectFolder(FolderSink):
    """Takes the files of a new folder of objects, one after the other; each is there when its block is left."""

    def __init__(self, to: Target, progress: Progress | None) -> None:
        super().__init__(to, to.real, (), progress)
        self._made: list[tuple[Target, ObjectSink]] = []

    @contextmanager
    def file(self, name: str, size: int) -> Iterator[Sink]:
        """A sink for a new object of `size` bytes."""
        path = f"{self.path}/{name}"
        to = Target(path, path, None)
        with file(to, size, self._progress) as sink:
            self._made.append((to, sink))
            sink.audit = self.audit
            yield sink
        self.tally(sink.overflowed)

    def clone(self, name: str, source: Source) -> None:
        """An object with the bytes of a source."""
        with self.file(name, source.size) as sink:
            sink.copy(source, 0, source.size)

    def link(self, name: str, source: Source) -> None:
        raise WriteError("an object store has no hard links", path=self.path, hint="without --link")

    def undo(self, error: BaseException) -> None:
        """Remove what was written, the last object first: without it the others are no checkpoint."""
        for to, sink in reversed(self._made):
            if sink.is_placed:
                _undo(sink, to, error)


@contextmanager
def folder(to: Target, size: int, progress: Progress | None = None) -> Iterator[ObjectFolder]:
    """A sink for the files of a folder, which are there when their blocks are left. Leaving with an error removes them.

    Raises WriteError.
    """
    sink = ObjectFolder(to, progress)
    try:
        yield sink
    except BaseException as error:
        sink.undo(error)
        raise
    sink.is_placed = True


def cleared(folder: str, gone: Sequence[str]) -> list[str]:
    """Remove objects of a folder, in this order. What failed, one line each."""
    return [line for name in gone for line in removed(f"{folder}/{name}")]
