"""Watching a cluster, so that no call waits without end: for a scheduler, for workers,
or for a worker that stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from ckpt.model.errors import CkptError

T = TypeVar("T")

INTERVAL = 2
"""Seconds between two looks at the workers."""
_STEP = 3
"""The most seconds that count between two looks: a process that itself stood still
blames no worker.
"""
_SILENCE = 10
"""Seconds without a sign of life until a worker loses its tasks."""
_ABSENCE = 30
"""Seconds without any worker until the work ends."""
_PATIENCE = 30
"""Seconds until a scheduler that answered before counts as stopped. One with much to do
answers late.
"""
_RESTART = 2
"""Seconds that a nanny, Dask's guard of a worker, has to end its worker and start
another.
"""
FAREWELL = 3
"""Seconds that the end waits for a cluster to take notice."""


class _Scheduler(Protocol):
    """The calls of a scheduler that ckpt uses. They need no ckpt there."""

    def identity(
        self,
    ) -> Awaitable[Mapping[str, Mapping[str, Mapping[str, float]]]]: ...

    def restart_workers(self, **options: object) -> Awaitable[object]: ...

    def unregister(self, **options: object) -> Awaitable[object]: ...


class Watched(Protocol):
    """The part of a `distributed.Client` that is needed to watch its cluster."""

    scheduler: _Scheduler

    def sync(self, function: Callable[[], Awaitable[T]]) -> T: ...


class Watch:
    """Names workers that gave no sign of life for 10 seconds, and has their tasks given
    to others.

    A worker that is busy sends its heartbeat from another thread. `clock` gives
    seconds.
    """

    def __init__(
        self,
        client: Watched,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._tell = tell
        self._clock = clock
        self._looked = clock()
        # (the last sign of life by the scheduler's clock, seconds since it changed) of
        # each worker.
        self._seen: dict[str, tuple[float, float]] = {}
        self._named: set[str] = set()
        self._absent = 0.0
        self._lost: CkptError | None = None
        self.threads: dict[str, int] = {}
        """The workers that answer, each with the number of its threads."""

    def call(self, work: Callable[[], T]) -> T:
        """Do work that waits for the cluster, and look after the workers meanwhile.

        Raises CkptError when the scheduler is lost or stopped, or no worker is left.
        """
        self._go_on()
        pending = begun(work)
        while True:
            if self._clock() - self._looked >= INTERVAL:
                self.look()
            if self._absent >= _ABSENCE:
                raise CkptError(
                    f"no worker is left ({_ABSENCE} s)",
                    hint="start workers, then the command",
                )
            if wait((pending,), INTERVAL).done:
                try:
                    return pending.result()
                except CancelledError:
                    raise self._end("the connection to the scheduler is lost") from None

    def look(self) -> None:
        """Ask the scheduler for the workers, and give up the silent ones. Raises
        CkptError when it is lost.
        """
        self._go_on()
        now = self._clock()
        # Silence is measured by this process's own clock: the clocks of two machines
        # differ.
        step, self._looked = min(now - self._looked, _STEP), now
        workers = self._workers()
        # One of many workers sends its heartbeat less often: each waits so many
        # seconds, and 1 more for 200 of them.
        limit = max(_SILENCE, 5 + len(workers) // 40)
        before = self._seen
        # A worker that the scheduler has forgotten is forgotten here too.
        self._seen = {}
        for name, facts in workers.items():
            seen, silent = before.get(name, (None, 0.0))
            is_silent = seen == facts["last_seen"]
            self._seen[name] = (facts["last_seen"], silent + step if is_silent else 0.0)
        silent_ones = [
            name for name, (_, silent) in self._seen.items() if silent >= limit
        ]
        self.threads = {
            name: int(facts["nthreads"])
            for name, facts in workers.items()
            if name not in silent_ones
        }
        # Time counts only while no worker answers: one that comes back ends it.
        self._absent = 0.0 if self.threads else self._absent + step
        self._named &= set(silent_ones)  # one that came back may stop again
        for name in silent_ones:
            if name not in self._named:
                self._named.add(name)
                rest = "its tasks go to others" if self.threads else "no other is left"
                self._tell(f"ckpt: worker {name} does not answer ({limit} s); {rest}")
                # In a thread: a scheduler with much to do may answer late.
                give_up = partial(_given_up, self._client.scheduler, name)
                begun(partial(self._client.sync, give_up))

    def wait(self) -> None:
        """Wait for the first worker, without end: a cluster may be starting. Raises
        CkptError as `look` does.
        """
        while not self.threads:
            self.pause()
            self.look()

    def pause(self) -> None:
        """Let 2 seconds pass, until the next look."""
        time.sleep(INTERVAL)

    def _workers(self) -> Mapping[str, Mapping[str, float]]:
        # A lost connection has no scheduler: that is an error in the thread.
        pending = begun(lambda: self._client.sync(self._client.scheduler.identity))
        if not wait((pending,), _PATIENCE).done:
            raise self._end(f"the scheduler does not answer ({_PATIENCE} s)")
        try:
            return pending.result()["workers"]
        except Exception:
            raise self._end("the connection to the scheduler is lost") from None

    def _go_on(self) -> None:
        """Raise the error again after which no call is of use: the next PATH need not
        wait as long.
        """
        if self._lost is not None:
            raise self._lost

    def _end(self, problem: str) -> CkptError:
        self._lost = CkptError(problem)
        return self._lost


async def _given_up(scheduler: _Scheduler, name: str) -> None:
    """Have a worker started anew where it has a nanny, as Dask does after 5 minutes;
    removed in any case.
    """
    with suppress(Exception):  # of a nanny that is silent too
        await scheduler.restart_workers(
            workers=[name],
            timeout=_RESTART,
            wait_for_workers=False,
            on_error="return",
            stimulus_id="ckpt",
        )
    # A worker without a nanny is not started anew: the scheduler forgets it at least.
    await scheduler.unregister(address=name, stimulus_id="ckpt")


def begun(work: Callable[[], T]) -> Future[T]:
    """Begin work in a thread for which the end of this process does not wait."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        # Any error: a future without a result would be waited for without end.
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def last_words(work: Callable[[], object], seconds: float = FAREWELL) -> None:
    """Do what ends the work on a cluster, which may be gone or stopped: errors are
    nothing, and time is limited.
    """
    wait((begun(work),), seconds)
