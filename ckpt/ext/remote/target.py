"""Writing to an object store: an object appears whole or not at all, and of a folder
what completes it comes last.

There is no other name to write under first. An object is there once it is complete;
what fails afterwards removes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import md5
from importlib import import_module
from mmap import mmap
from queue import SimpleQueue
from typing import Protocol, TypedDict, cast

from ckpt.bytes.far import SCHEMES
from ckpt.bytes.source import Source, open_address
from ckpt.bytes.target import BLOCK, FolderSink, Progress, Sink, Target
from ckpt.ext.remote.ahead import lend_room
from ckpt.ext.remote.causes import cause_of
from ckpt.ext.remote.location import locate_url
from ckpt.ext.remote.objects import open_bucket
from ckpt.ext.remote.url import Url, parse_url
from ckpt.model.errors import CkptError, NotOpenedError, UsageError, WriteError, about
from ckpt.model.text import counted_noun, show


def file_target(url: str, *, force: bool) -> Target:
    """An object to write, looked for before anything is read. Raises UsageError,
    WriteError.
    """
    place = _writable_url(url)
    if not place.path or place.path.endswith("/"):
        raise UsageError("a folder, not an object to write to", path=url)
    with about(url):
        # One request before hours of work.
        etag = object_to_write(place).look()
        if etag is not None and not force:
            raise UsageError("already exists", hint="--force to replace")
    return Target(url, url, None, etag=etag)


def folder_target(url: str) -> Target:
    """A folder to write, which must be empty. Raises UsageError, WriteError.

    A folder of objects cannot change places with another one, so none is replaced.
    """
    plain = url.rstrip("/")
    place = _writable_url(plain)
    if not place.path:
        raise UsageError("a bucket, not a new folder", path=url)
    with about(plain):
        if object_to_write(place).look() is not None:
            raise UsageError(
                "an object, and the result is a folder", hint="-o another name"
            )
    taken = names(plain)
    if taken:
        problem = (
            f"holds {counted_noun(len(taken), 'object')} already: ckpt replaces no "
            "folder of an object store"
        )
        raise UsageError(problem, path=plain, hint="-o another name")
    return Target(plain, plain, None)


def names(url: str) -> list[str]:
    """The names in a folder, none for one that is not there. Raises NotOpenedError."""
    try:
        return locate_url(f"{url.rstrip('/')}/").names()
    except NotOpenedError as error:
        # The class of the error is the same for a server that refuses.
        if error.problem.startswith("no such"):
            return []
        raise


def _writable_url(url: str) -> Url:
    place = parse_url(url)
    if not place.server.store:
        raise UsageError("ckpt writes to s3://, gs:// and az:// only", path=url)
    return place


@contextmanager
def file(
    to: Target, size: int, progress: Progress | None = None
) -> Iterator[ObjectSink]:
    """A sink for an object of `size` bytes. Raises WriteError, UsageError.

    `complete` makes the object, and leaving the block does too. Leaving it with an
    error leaves no object.
    """
    sink = _make_sink(to, size, progress)
    try:
        # Parts that are sent need memory, which reading gives up meanwhile.
        with lend_room(_LENT):
            yield sink
            with about(to.path):
                sink.complete()
    # An interrupt too must leave no half of a folder.
    except BaseException as error:
        _undo_object(sink, to, error)
        raise


def _make_sink(to: Target, size: int, progress: Progress | None) -> ObjectSink:
    url = parse_url(to.real)
    place = object_to_write(url)
    create = to.etag is None

    def look() -> None:
        # Once more at the end: another one may have written the name meanwhile.
        if create and place.look() is not None:
            raise UsageError("already exists", path=to.path, hint="--force to replace")

    return ObjectSink(
        place,
        to.real,
        size,
        look,
        create=create,
        compare=has_to_compare(url.scheme),
        progress=progress,
    )


def _undo_object(sink: ObjectSink, to: Target, error: BaseException) -> None:
    """Leave no object, and none of its parts. Only an interrupt leaves one that is
    complete and has replaced another.
    """
    sink.stop()
    if sink.etag is None:
        return
    sink.is_placed = True
    # An interrupt came after the old object was replaced: the new one is whole, and the
    # old one cannot come back.
    if to.etag is not None and not isinstance(error, Exception):
        return
    problems = _remove_object(
        object_to_write(parse_url(to.real)), to.real, sink.etag or None
    )
    sink.is_placed = bool(problems)
    if problems and isinstance(error, CkptError):
        error.hint = problems[0]


def _remove_object(place: Writable, url: str, etag: str | None) -> list[str]:
    """Remove an object, if its ETag is still this one. What failed, in a line."""
    try:
        # The ETag tells whether it is still what was written here.
        now = None if etag is None else place.look()
        if etag is not None and now is not None and now.strip('"') != etag.strip('"'):
            return [f"{show(url, None)} is another object by now, and is kept"]
        place.remove()
    except CkptError as error:
        return [f"{show(url, None)} is left over: {error.problem}"]
    return []


def removed(url: str) -> list[str]:
    """Remove an object. What failed, in a line; one that is gone already is no
    failure.
    """
    return _remove_object(object_to_write(parse_url(url)), url, None)


class ObjectFolder(FolderSink):
    """Takes the files of a new folder of objects, one after the other; each is there
    when its block is left.
    """

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
        self.tally(sink.overflowed, sink.vanished)

    def clone(self, name: str, source: Source) -> None:
        """An object with the bytes of a source."""
        with self.file(name, source.size) as sink:
            sink.copy(source, 0, source.size)

    def link(self, name: str, source: Source) -> None:
        raise WriteError(
            "an object store has no hard links", path=self.path, hint="without --link"
        )

    def undo(self, error: BaseException) -> None:
        """Remove what was written, the last object first: without it the others are no
        checkpoint.
        """
        # In reverse: an index comes last, and goes first.
        for to, sink in reversed(self._made):
            if sink.is_placed:
                _undo_object(sink, to, error)


@contextmanager
def folder(
    to: Target, size: int, progress: Progress | None = None
) -> Iterator[ObjectFolder]:
    """A sink for the files of a folder, which are there when their blocks are left.
    Leaving with an error removes them.

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


PART, _MOST_PARTS = 16 << 20, 10_000
"""Bytes of a part, and the most parts of an object of S3."""
FLYING, _HELD = 3, 48 << 20
"""The most parts that are sent at once, and the most bytes of them, unless a single
part has more.
"""
_AHEAD = 8 << 20
"""The most bytes that are filled while others are sent."""
_LENT = 32 << 20
"""Bytes by which the room for reading is smaller meanwhile."""


def part_bytes(size: int) -> int:
    """Bytes of each part of an object of `size` bytes: 16 MiB, and more only where
    10,000 parts would not do.
    """
    # Rounded up to whole MiB: all parts but the last have one size, as S3 asks.
    return max(PART, -(-size // (_MOST_PARTS << 20)) << 20)


class Upload:
    """The thread that sends what is handed to it. Errors are raised where something is
    handed over.
    """

    def __init__(self, to: Writable, url: str) -> None:
        self._to = to
        self._url = url
        # True: that is all; False: nothing of it.
        self._given: SimpleQueue[mmap | bool] = SimpleQueue()
        # True: all that was given is there; False: the thread has ended.
        self._told: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._error: BaseException | None = None
        self.etag: str | None = None
        """The ETag of the object, once it is complete."""

    def _start(self, put: Callable[[], str]) -> None:
        def run() -> None:
            try:
                self.etag = put()
            except StoppedError:
                pass
            # Errors of any kind end up where the caller hands something over.
            except BaseException as error:
                self._error = error
            # Also after an error, or the caller would wait for ever.
            finally:
                self._told.put(False)

        self._thread = threading.Thread(target=run, name="upload", daemon=True)
        self._thread.start()

    def start(self, part: int) -> None:
        """Begin to send an object in parts of `part` bytes."""
        self._start(lambda: self._to.put_parts(self._given_groups(), part))

    def whole(self, data: Bytes, *, create: bool) -> None:
        """Put an object in one request."""
        self._start(lambda: self._to.put(data, create=create))
        self._end()

    def _given_groups(self) -> Iterator[Bytes]:
        """Yield the bytes that obstore asks for in the thread."""
        while True:
            group = self._given.get()
            if group is False:
                raise StoppedError
            if group is True:
                return
            assert not isinstance(group, bool)
            yield group
            del group  # its memory is free as soon as it is sent
            # obstore takes an empty group only after the one before was sent.
            yield b""
            self._told.put(True)

    def give(self, group: mmap) -> None:
        """Hand over parts, of which only the last one of the object may be short. Those
        before must be there.
        """
        self._given.put(group)

    def wait(self) -> None:
        """Wait until all that was handed over is there."""
        if not self._ended and self._told.get():
            return
        self._ended = True
        self._raise_error()

    def finish(self) -> None:
        """Complete the object."""
        self._given.put(True)
        self._end()

    def _end(self) -> None:
        while not self._ended:
            self._ended = not self._told.get()
        self._raise_error()

    def _raise_error(self) -> None:
        if isinstance(self._error, CkptError):
            self._error.path = self._url
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End without an object, unless it is complete already: `etag` says so. Waits
        for what is on its way.
        """
        self._given.put(False)
        # `stop` may come between `Thread(…)` and `start`.
        # A signal came before it began.
        if self._thread is None or self._thread.ident is None:
            return
        # The thread itself is waited for: a signal may have come right after `_told`
        # gave its last word, which is lost then.
        self._thread.join()
        self._ended = True


class ObjectSink(Sink):
    """Writes an object of `size` bytes. `complete` makes it.

    `look` raises UsageError where an object must not be replaced that appeared
    meanwhile. With `compare` the ETag that the store gives is compared with what was
    sent.
    """

    def __init__(
        self,
        to: Writable,
        url: str,
        size: int,
        look: Callable[[], None],
        *,
        create: bool,
        compare: bool = False,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(-1, url, progress=progress)
        self._to = to
        self._size = size
        self._look = look
        self._create = create
        self._part = part_bytes(size)
        self._upload: Upload | None = None
        self._is_sending = False
        self._room: mmap | None = None
        self._used = self._sent = 0
        self._sums = Sums(self._part, size) if compare else None

    @property
    def etag(self) -> str | None:
        """The ETag of the object, once it is complete."""
        return None if self._upload is None else self._upload.etag

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes."""
        # The view of the room is closed at once: an mmap with open views cannot be
        # released.
        view = memoryview(data)
        while view:
            with memoryview(self._unfilled_space()) as space:
                count = min(len(view), len(space) - self._used)
                space[self._used : self._used + count] = view[:count]
            self._count_filled(count)
            view = view[count:]

    def copy(self, source: Source, offset: int, count: int) -> None:
        """Copy a range of a source. Raises UnreadableError when the source is cut."""
        while count:
            with memoryview(self._unfilled_space()) as space:
                step = min(count, len(space) - self._used, BLOCK)
                with space[self._used : self._used + step] as into:
                    source.read_into(offset, into)
            self._count_filled(step)
            offset += step
            count -= step

    def flush(self) -> None:
        """Nothing is gathered."""

    def complete(self) -> None:
        """Make the object, once all of its bytes are written."""
        if self.is_placed:
            return
        assert self._at == self._size, (
            f"{self._at} bytes were written, {self._size} were planned"
        )
        # A small object is one request, without the three of an upload in parts.
        if self._size <= self._part:
            self._upload = Upload(self._to, self.path)
            self._upload.whole(self._room or b"", create=self._create)
        else:
            self._wait_for_parts()
            # An upload in parts has no `create`: the name is looked at right before the
            # end.
            self._look()
            assert self._upload is not None
            self._upload.finish()
        self._room = None
        self.is_placed = True
        # The store says which bytes it has: a proxy or a disk may have changed them.
        if self._sums is not None and self.etag is not None:
            self._sums.check(self.path, self.etag)

    def stop(self) -> None:
        """Send nothing more. The object is complete or not there at all: `etag` says
        which.
        """
        self._room = None
        if self._upload is not None:
            self._upload.stop()

    def _unfilled_space(self) -> mmap:
        """Return the memory for the next bytes: parts that are sent together. Untouched
        pages take none.
        """
        assert self._at < self._size, (
            f"more than the {self._size} bytes that were planned"
        )
        if self._room is None:
            unsent = self._size - self._sent
            # Three parts together, but no more than 48 MiB of them; one at least.
            whole = min(FLYING, max(1, _HELD // self._part)) * self._part
            self._room = mmap(-1, min(whole, unsent))
            self._used = 0
        return self._room

    def _count_filled(self, count: int) -> None:
        if self._sums is not None and self._room is not None:
            with (
                memoryview(self._room) as space,
                space[self._used : self._used + count] as new,
            ):
                self._sums.add(new)
        self._at += count
        self._used += count
        if self._progress is not None:
            self._progress(count)
        # Up to 8 MiB are filled while others are sent: more would be too much memory.
        if self._used > _AHEAD:
            self._wait_for_parts()
        assert self._room is not None
        if self._used == len(self._room) and self._size > self._part:
            self._wait_for_parts()
            if self._upload is None:
                self._upload = Upload(self._to, self.path)
                self._upload.start(self._part)
            self._upload.give(self._room)
            self._is_sending = True
            self._sent += self._used
            self._room = None

    def _wait_for_parts(self) -> None:
        """Wait for the parts that are being sent."""
        if self._is_sending and self._upload is not None:
            self._is_sending = False
            self._upload.wait()


Bytes = object
"""Bytes in memory: `bytes`, or whatever else has the buffer protocol."""
TRIES = 4
"""The most tries of each request that fails in a way that may pass: 5xx, a lost
connection.
"""
LEFT = "an upload may be left unfinished in the bucket: a lifecycle rule removes it"


class _Meta(TypedDict):
    e_tag: str | None
    last_modified: object


class _Put(TypedDict):
    e_tag: str | None


class _Obstore(Protocol):
    """The part of the module obstore that writing uses."""

    def put(
        self, store: object, path: str, file: object, **options: object
    ) -> _Put: ...

    def head(self, store: object, path: str) -> _Meta: ...

    def delete(self, store: object, path: str) -> None: ...


class Writable(Protocol):
    """An object that is written. The texts of ETags identify one state of it."""

    def put(self, data: Bytes, *, create: bool) -> str:
        """Put all of its bytes; its ETag. With `create`, UsageError where there is one.
        Raises WriteError.
        """
        ...

    def put_parts(self, groups: Iterator[Bytes], part_bytes: int) -> str:
        """Put its bytes in parts of `part_bytes`, and return its ETag.

        The parts of one group are sent at once. They are all there when the next group
        is asked for after an empty one. An error of the iterator ends the upload and
        leaves nothing. Raises WriteError.
        """
        ...

    def look(self) -> str | None:
        """Return the ETag of the object that is there, or None. Raises WriteError."""
        ...

    def remove(self) -> None:
        """Remove what is there. Raises WriteError."""
        ...


class StoredTarget:
    """An object in a bucket or a container."""

    def __init__(self, store: object, url: Url) -> None:
        self._store = store
        self._path = url.path
        self._scheme = url.scheme

    def put(self, data: Bytes, *, create: bool) -> str:
        mode = "create" if create else "overwrite"
        try:
            done = _import_obstore().put(
                self._store, self._path, data, mode=mode, use_multipart=False
            )
        except Exception as error:
            raise translate_write_error(error, self._scheme) from None
        # A store without ETags: an empty text stands for one.
        return done["e_tag"] or ""

    def put_parts(self, groups: Iterator[Bytes], part_bytes: int) -> str:
        is_passed = False

        def passed() -> Iterator[Bytes]:
            nonlocal is_passed
            yield from groups
            is_passed = True

        try:
            # One task may be unfinished when the next group is taken: none is, so an
            # error of a part comes up there, and the upload is aborted. An error of the
            # last part comes up later, where obstore aborts nothing.
            done = _import_obstore().put(
                self._store,
                self._path,
                passed(),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=1,
            )
        except (CkptError, StoppedError):
            raise
        except Exception as error:
            problem = translate_write_error(error, self._scheme)
            # The last part has failed: obstore leaves the upload open.
            if is_passed and " PUT " in str(error):
                problem.hint = LEFT
            raise problem from None
        return done["e_tag"] or ""

    def look(self) -> str | None:
        try:
            record = _import_obstore().head(self._store, self._path)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise translate_write_error(error, self._scheme) from None
        # Without an ETag the time of the last change tells two states apart.
        return record["e_tag"] or str(record["last_modified"])

    def remove(self) -> None:
        try:
            _import_obstore().delete(self._store, self._path)
        # Gone already, as was wanted.
        except FileNotFoundError:
            pass
        except Exception as error:
            raise translate_write_error(error, self._scheme) from None


class StoppedError(Exception):
    """The upload is not to be finished."""


def translate_write_error(error: Exception, scheme: str) -> CkptError:
    """Translate an error of obstore for a writer. Its text is not repeated: it may hold
    a signed URL.
    """
    name = type(error).__name__
    if name == "AlreadyExistsError":
        return UsageError("already exists", hint="--force to replace")
    if isinstance(error, ValueError):
        return UsageError("not the name of an object")
    cause = cause_of(error, scheme, "write")
    if isinstance(error, FileNotFoundError):
        return WriteError("no such bucket")
    if (
        cause.status is None
        and cause.may_pass
        and not (name == "GenericError" or isinstance(error, OSError))
    ):
        return WriteError(f"the object store fails: {show(name, 40)}")
    return WriteError(
        cause.problem + (f", {TRIES} times in a row" if cause.may_pass else ""),
        hint=cause.hint,
    )


def object_to_write(url: Url) -> Writable:
    """The object of an s3, gs or az URL. Raises CkptError without obstore."""
    return StoredTarget(open_bucket(url.scheme, url.host, tries=TRIES), url)


def _import_obstore() -> _Obstore:
    return cast("_Obstore", import_module("obstore"))


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class _Hash(Protocol):
    def update(self, data: memoryview) -> None: ...

    def digest(self) -> bytes: ...


def has_to_compare(scheme: str) -> bool:
    """Tell whether ckpt itself must compare what a store of this scheme received."""
    return SCHEMES[scheme].gives_md5 and any(map(os.environ.get, _ENDPOINTS))


def _new_hash() -> _Hash:
    return md5(usedforsecurity=False)


class Sums:
    """The MD5 of each part of `part` bytes of an object that is sent."""

    def __init__(self, part: int, size: int) -> None:
        self._part = part
        self._size = size
        self._done: list[bytes] = []
        self._hash = _new_hash()
        self._left = part

    def add(self, data: memoryview) -> None:
        """Take the next bytes."""
        while data:
            piece = data[: self._left]
            self._hash.update(piece)
            self._left -= len(piece)
            data = data[len(piece) :]
            if not self._left:
                self._begin_part()

    def _begin_part(self) -> None:
        self._done.append(self._hash.digest())
        self._hash, self._left = _new_hash(), self._part

    def check(self, url: str, etag: str) -> None:
        """Raise WriteError where an object with this ETag does not hold these bytes,
        UnreadableError as reading does.
        """
        # The last part is mostly shorter than the others; an empty object has one empty
        # part.
        if self._left < self._part or not self._done:
            self._begin_part()
        count = len(self._done)
        # S3 gives the MD5 of one part, or the MD5 of all MD5s and their number.
        whole = f"{_digest_of_parts(self._done).hex()}-{count}"
        if self._size <= self._part:
            whole = self._done[0].hex()
        if etag.strip('"') == whole:
            return
        # A store may count its ETags in another way: then the bytes are read back.
        source = open_address(url)
        try:
            if str(source.identity[1]).strip('"') != etag.strip('"'):
                raise WriteError("another object took its place meanwhile", path=url)
            for number, sum in enumerate(self._done):
                begin, digest = number * self._part, _new_hash()
                end = min(begin + self._part, source.size)
                for position in range(begin, end, BLOCK):
                    data = source.read(position, min(BLOCK, end - position))
                    digest.update(memoryview(data))
                if digest.digest() != sum:
                    raise WriteError(
                        (
                            f"part {number + 1:,} of {count:,} did not arrive as it "
                            "was sent"
                        ),
                        path=url,
                    )
        finally:
            source.close()


def _digest_of_parts(sums: list[bytes]) -> bytes:
    return md5(b"".join(sums), usedforsecurity=False).digest()
