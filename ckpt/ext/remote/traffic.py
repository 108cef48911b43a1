"""The requests under way: how many go to one server at once, and the servers that are
waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckpt.bytes import far
from ckpt.ext.remote.store import BusyError

AT_ONCE = 16
"""The most requests under way to one server."""
_AGAIN = 20
"""Answers in a row after which a server that was overloaded gets one more request at
once.
"""
_SILENCE = 5
"""Seconds without an answer after which a server is named."""


class Gate:
    """Lets so many requests to a server go at once: half as many after each answer that
    it is too much.
    """

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self._changed = threading.Condition()
        self._busy = self._answers = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Wait for a place, and keep it for the block."""
        # The place is taken before the request, and given back whatever becomes of it.
        with self._changed:
            while self._busy >= self.limit:
                self._changed.wait()
            self._busy += 1
        error: BaseException | None = None
        try:
            yield
        except BaseException as failure:
            error = failure
            raise
        finally:
            with self._changed:
                self._busy -= 1
                self._adjust_limit(error)
                self._changed.notify_all()

    def _adjust_limit(self, error: BaseException | None) -> None:
        # Halved at once, and raised by one after twenty good answers, so that a server
        # is not overloaded again and again.
        if isinstance(error, BusyError) and error.is_overload:
            self.limit, self._answers = max(1, self.limit // 2), 0
        elif error is None and self.limit < self.most:
            self._answers += 1
            if self._answers == _AGAIN:
                self.limit, self._answers = self.limit + 1, 0


_gates: dict[str, Gate] = {}
_lock = threading.Lock()


def gate_of(server: str) -> Gate:
    """The gate of a server, one for the whole process."""
    # One gate for each server, for all sources of the process.
    with _lock:
        return _gates.setdefault(server, Gate(AT_ONCE))


def forget_requests() -> None:
    """Begin anew in a copy of the process: the threads that ask and wait are
    not there.
    """
    global _lock
    _lock = threading.Lock()
    _gates.clear()
    waiting.begin()


class SilentServers:
    """The servers that have not answered yet, and since when. A thread looks at them
    while there are some.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Wait for no server."""
        self._lock = threading.Lock()
        self._since: dict[int, tuple[str, float]] = {}
        self._named: set[str] = set()
        self._next = 0
        self._thread: threading.Thread | None = None

    @contextmanager
    def __call__(self, server: str) -> Iterator[None]:
        """Wait for the answer of a server, in the block."""
        with self._lock:
            self._next += 1
            number = self._next
            self._since[number] = server, self._clock()
            # The thread is needed only while somebody listens.
            if far.Told.tell is not None and self._thread is None:
                self._thread = threading.Thread(
                    target=self._tell_overdue, name="waiting", daemon=True
                )
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._since[number]

    def overdue(self) -> list[str]:
        """The servers that were silent for long, each once."""
        with self._lock:
            late = {
                server
                for server, since in self._since.values()
                if self._clock() - since >= _SILENCE
            }
            found = sorted(late - self._named)
            # A server is named once.
            self._named |= late
        return found

    def _tell_overdue(self) -> None:
        while self._goes_on():
            time.sleep(1)
            for server in self.overdue():
                far.tell(f"waiting for {server}")

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._since:
                self._thread = None
            return bool(self._since)


waiting = SilentServers()
