"""One object that is written: in one request when it is small, else in parts, of which a few are sent at once.

A thread sends while the next parts are filled. Whoever writes stays free for signals, and what fails there comes up here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from mmap import mmap
from queue import SimpleQueue

from ckpt.errors import CkptError
from ckpt.io.remote.put import Bytes, StoppedError, Writable
from ckpt.io.remote.received import Sums
from ckpt.io.source import Source
from ckpt.io.target import BLOCK, Progress, Sink

PART, _MOST_PARTS = 16 << 20, 10_000
"""Bytes of a part, and the most parts of an object of S3."""
FLYING, _HELD = 3, 48 << 20
"""The most parts that are sent at once, and the most bytes of them, unless a single part has more."""
_AHEAD = 16 << 20
"""The most bytes that are filled while others are sent."""


def part_bytes(size: int) -> int:
    """Bytes of each part of an object of `size` bytes: 16 MiB, and more only where 10,000 parts would not do."""
    return max(PART, -(-size // (_MOST_PARTS << 20)) << 20)


class Upload:
    """The thread that sends what is handed to it. Errors are raised where something is handed over."""

    def __init__(self, to: Writable, url: str) -> None:
        self._to = to
        self._url = url
        self._given: SimpleQueue[mmap | bool] = SimpleQueue()  # True: that is all; False: nothing of it
        # True: all that was given is there; False: the thread ends
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
            except BaseException as error:
                self._error = error
            finally:
                self._told.put(False)

        self._thread = threading.Thread(target=run, name="upload", daemon=True)
        self._thread.start()

    def start(self, part: int) -> None:
        """Begin to send an object in parts of `part` bytes."""
        self._start(lambda: self._to.put_parts(self._groups(), part))

    def whole(self, data: Bytes, *, create: bool) -> None:
        """Put an object in one request."""
        self._start(lambda: self._to.put(data, create=create))
        self._end()

    def _groups(self) -> Iterator[Bytes]:
        """What obstore asks for in the thread."""
        while True:
            group = self._given.get()
            if group is False:
                raise StoppedError
            if group is True:
                return
            assert not isinstance(group, bool)
            yield group
            del group  # its memory is free as soon as it is sent
            yield b""
            self._told.put(True)

    def give(self, group: mmap) -> None:
        """Hand over parts, of which only the last one of the object may be short. Those before must be there."""
        self._given.put(group)

    def wait(self) -> None:
        """Wait until all that was handed over is there."""
        if not self._ended and self._told.get():
            return
        self._ended = True
        self._fail()

    def finish(self) -> None:
        """Complete the object."""
        self._given.put(True)
        self._end()

    def _end(self) -> None:
        while not self._ended:
            self._ended = not self._told.get()
        self._fail()

    def _fail(self) -> None:
        if isinstance(self._error, CkptError):
            self._error.path = self._url
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End without an object, unless it is complete already: `etag` says so. Waits for what is on its way."""
        self._given.put(False)
        if self._thread is None or self._thread.ident is None:  # a signal came before it began
            return
        while not self._ended:
            self._ended = not self._told.get()


class ObjectSink(Sink):
    """Writes an object of `size` bytes. `complete` makes it.

    `look` raises UsageError where an object must not be replaced that appeared meanwhile. With `compare` the ETag that
    the store gives is compared with what was sent.
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
        view = memoryview(data)
        while view:
            with memoryview(self._space()) as space:
                count = min(len(view), len(space) - self._used)
                space[self._used : self._used + count] = view[:count]
            self._filled(count)
            view = view[count:]

    def copy(self, source: Source, offset: int, count: int) -> None:
        """Copy a range of a source. Raises UnreadableError when the source is cut."""
        while count:
            with memoryview(self._space()) as space:
                step = min(count, len(space) - self._used, BLOCK)
                with space[self._used : self._used + step] as into:
                    source.read_into(offset, into)
            self._filled(step)
            offset += step
            count -= step

    def flush(self) -> None:
        """Nothing is gathered."""

    def complete(self) -> None:
        """Make the object, once all of its bytes are written."""
        if self.is_placed:
            return
        assert self._at == self._size, f"{self._at} bytes were written, {self._size} were planned"
        if self._size <= self._part:
            self._upload = Upload(self._to, self.path)
            self._upload.whole(self._room or b"", create=self._create)
        else:
            self._settle()
            self._look()
            assert self._upload is not None
            self._upload.finish()
        self._room = None
        self.is_placed = True
        if self._sums is not None and self.etag is not None:
            self._sums.check(self.path, self.etag)

    def stop(self) -> None:
        """Send nothing more. The object is complete or not there at all: `etag` says which."""
        self._room = None
        if self._upload is not None:
            self._upload.stop()

    def _space(self) -> mmap:
        """Where the next bytes go: parts that are sent together. Untouched pages take no memory."""
        assert self._at < self._size, f"more than the {self._size} bytes that were planned"
        if self._room is None:
            left = self._size - self._sent
            whole = min(FLYING, max(1, _HELD // self._part)) * self._part
            self._room = mmap(-1, min(whole, left))
            self._used = 0
        return self._room

    def _filled(self, count: int) -> None:
        if self._sums is not None and self._room is not None:
            with memoryview(self._room) as space, space[self._used : self._used + count] as new:
                self._sums.add(new)
        self._at += count
        self._used += count
        if self._progress is not None:
            self._progress(count)
        if self._used > _AHEAD:
            self._settle()
        assert self._room is not None
        if self._used == len(self._room) and self._size > self._part:
            self._settle()
            if self._upload is None:
                self._upload = Upload(self._to, self.path)
                self._upload.start(self._part)
            self._upload.give(self._room)
            self._is_sending = True
            self._sent += self._used
            self._room = None

    def _settle(self) -> None:
        """Wait for the parts that are being sent."""
        if self._is_sending and self._upload is not None:
            self._is_sending = False
            self._upload.wait()
