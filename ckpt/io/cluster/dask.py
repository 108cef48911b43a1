"""Tasks on the workers of a Dask cluster. `docs/cluster.md` shows how an adapter for another engine looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import islice
from typing import Protocol

from ckpt.errors import CkptError
from ckpt.io.cluster.parcel import Outcome, packed, parcels_of, perform, sender
from ckpt.io.executor import R, Task

TRIES = 3
"""How often a task is begun whose worker fails. What ckpt refuses is not tried again."""
_LEAST, _MOST = 64, 1024
"""The fewest and the most parcels that the cluster has at a time, so that memory does not follow their number."""
_EACH = 4
"""Parcels for each thread of the workers."""
_TOGETHER = 16
"""The most results that are fetched at once."""


class Future(Protocol):
    """What is used of a `distributed.Future`."""

    def result(self) -> Outcome: ...


class Client(Protocol):
    """What is used of a `distributed.Client`."""

    def map(self, function: object, *columns: Sequence[object], **options: object) -> list[Future]: ...

    def gather(self, futures: Sequence[Future]) -> Sequence[Outcome]: ...

    def cancel(self, futures: Sequence[Future], *, force: bool) -> None: ...

    def nthreads(self) -> dict[str, int]: ...


class Dask:
    """An Executor that runs tasks on a Dask cluster. Neighbours of up to 64 MiB go to a worker together.

    Raises CkptError when the connection is lost, or a task loses its worker TRIES times.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sender = sender()

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        results: list[R] = []
        sent: deque[tuple[Future, Sequence[Task[R]]]] = deque()
        parcels = parcels_of(tasks)
        try:
            while True:
                self._send(parcels, sent)
                if not sent:
                    return results
                for found, error in self._outcomes([future for future, _ in islice(sent, _TOGETHER)]):
                    for task, result in zip(sent.popleft()[1], found, strict=False):
                        results.append(result)  # type: ignore[arg-type]  # what came over the wire has no type
                        if progress is not None:
                            progress(task.nbytes)
                    if error is not None:
                        raise error
        except BaseException:  # an interrupt too: the cluster must not go on
            with suppress(Exception):  # of a cluster that is gone
                self._client.cancel([future for future, _ in sent], force=True)
            raise

    def _outcomes(self, futures: Sequence[Future]) -> Iterator[Outcome]:
        """What workers found, in order. All at once cost half of one by one, but of several errors any is raised."""
        try:
            yield from self._client.gather(futures)
        except Exception:
            yield from map(_outcome, futures)

    def _send(
        self, parcels: Iterator[Sequence[Task[R]]], sent: deque[tuple[Future, Sequence[Task[R]]]]
    ) -> None:
        """Send the next parcels, many at once, which costs the scheduler a third of one call for each."""
        most = _LEAST
        if len(sent) > _LEAST // 2:
            most = min(max(_LEAST, _EACH * sum(self._client.nthreads().values())), _MOST)
        if len(sent) > most // 2:
            return
        batch = list(islice(parcels, most - len(sent)))
        if batch:
            data = [packed(parcel) for parcel in batch]
            options = {"key": "ckpt", "pure": False, "retries": TRIES - 1}
            sent.extend(zip(self._client.map(perform, data, by=self._sender, **options), batch, strict=True))


def _outcome(future: Future) -> Outcome:
    """What a worker found. Raises CkptError when the cluster failed."""
    try:
        return future.result()
    except CancelledError:
        raise CkptError("the connection to the scheduler is lost") from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ckpt":
            raise
        raise CkptError("a worker has no ckpt, or another version") from None
    except Exception as error:
        if type(error).__name__ != "KilledWorker":
            raise
        raise CkptError("a task lost its worker too often", hint="was it out of memory?") from None
