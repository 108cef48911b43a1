"""A Dask cluster in threads of the process of the tests: real messages, real pickles,
and started in half a second.
"""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Any

from process import TIMEOUT, environment

from ckpt.ext.cluster.connect import Dask
from ckpt.ext.cluster.watch import Watch

if TYPE_CHECKING:
    from distributed import Client

_open: list[Any] = []


def client() -> Client:
    """The client of a cluster with two workers, made once for each test. It listens on
    127.0.0.1.
    """
    if not _open:
        from distributed import Client, LocalCluster

        logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
        # a client that failed and dies while another one starts waits for itself,
        # without end
        gc.collect()
        cluster = LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL + 1,
        )
        _open.extend((cluster, Client(cluster, set_as_default=False)))
    made: Client = _open[1]
    return made


def executor(client: Any, threads: dict[str, int] | None = None) -> Dask:
    """An executor for the tasks of a client, whose clock stands still: it never looks
    after the workers.
    """
    watch = Watch(client, print, lambda: 0.0)
    watch.threads = threads or {}
    return Dask(client, watch)


def address() -> str:
    """Where its scheduler listens."""
    return str(client().scheduler.address)


def steps() -> int:
    """How many steps the tasks of its scheduler have made since it began."""
    return int(client().cluster.scheduler.transition_counter)


def close() -> None:
    """End it, if one was made."""
    while _open:
        _open.pop().close()


def hole(folder: Path) -> Path:
    """A file with one tensor of 200 GB, all of it a hole: reading it takes minutes."""
    size = 200 * 10**9
    head = json.dumps(
        {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
    path = folder / "large.safetensors"
    with path.open("wb") as file:
        file.write(pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + size)
    return path


@contextmanager
def processes(count: int) -> Iterator[Client]:
    """The client of a cluster of real processes, which can be killed."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL + 1,
        ) as cluster,
        Client(cluster, set_as_default=False) as made,
    ):
        made.wait_for_workers(count)
        yield made


@contextmanager
def worker(*options: str, **env: str) -> Iterator[Any]:
    """A scheduler in this process, whose one worker is of `dask worker OPTIONS`,
    without a nanny.
    """
    from distributed import LocalCluster

    with (
        LocalCluster(
            n_workers=0,
            processes=False,
            protocol="tcp",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL + 1,
        ) as cluster,
        dask("worker", cluster.scheduler_address, "--no-nanny", *options, **env),
    ):
        cluster.wait_for_workers(1, timeout=TIMEOUT)
        yield cluster


@contextmanager
def dask(*words: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """The process of `dask WORDS`, which is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *words, "--no-dashboard"],
        env=environment(**env),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT)


class Recorded:
    """A client that keeps what is sent, and counts how much is under way at most."""

    def __init__(self, inner: Client) -> None:
        self._inner = inner
        self.sent: list[bytes] = []
        self.under_way = self.most = 0
        self.cancelled: list[Any] = []

    def map(self, function: Any, data: Sequence[bytes], **options: Any) -> Any:
        self.sent += data
        self.under_way += len(data)
        self.most = max(self.most, self.under_way)
        return self._inner.map(function, data, **options)

    def gather(self, futures: Sequence[Any]) -> Any:
        found = self._inner.gather(futures)
        self.under_way -= len(futures)
        return found

    def cancel(self, futures: Sequence[Any], *, force: bool) -> None:
        self.cancelled += futures
        self._inner.cancel(futures, force=force)


class Beats:
    """A clock by the heartbeats of a worker: 2 seconds for each. So a machine that
    others use changes nothing.
    """

    def __init__(self, client: Any, alive: Callable[[], str | None]) -> None:
        self._workers = client.cluster.scheduler.workers
        self._alive = alive
        self._seen: set[float] = set()

    def __call__(self) -> float:
        worker = self._workers.get(self._alive())
        if worker is not None:
            self._seen.add(worker.last_seen)
        return 2.0 * len(self._seen)
