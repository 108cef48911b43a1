"""How long 1 TB and 10 TB take on many machines: a model on paper, and a simulation in
virtual time that checks it.

    python -m benchmarks.scale [--files 1000] [--workers 1,4,16,64] [--seed 1]

The simulation makes the real tasks of `ckpt stats` over files in a store that does not
exist, and asks the real reader which requests a worker sends for them. Then it plays
all requests against latency, bandwidth, errors and machines that fail, with the real
rule of retries. No time passes, and no byte but zeros.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from struct import pack
from typing import Any, NamedTuple
from unittest import mock

GIB = 1 << 30
TENSORS = 4
"""Tensors in each file of 1 GiB: every one is cut into four tasks of 64 MiB."""
_AT_ONCE = 16
"""Files that the reader opens at once."""
INDEX = "model.safetensors.index.json"


class World(NamedTuple):
    """What the time depends on. Seconds, bytes per second, and shares of requests that
    fail.
    """

    workers: int = 16
    threads: int = 8
    latency: float = 0.030
    """The mean until the first byte: a half is fixed, the rest is random."""
    bandwidth: float = 85e6
    """Of one connection, as the object stores of the large clouds give it."""
    network: float = 25e9 / 8
    """Of one machine, which its threads share."""
    compute: float = 2e9
    """What one thread measures."""
    refused: float = 0.01
    """Requests that are answered with 503."""
    cut: float = 0.001
    """Requests whose body ends in the middle."""
    between_losses: float = 24 * 3600
    """Mean time of a machine until it is lost."""
    away: float = 60
    """Until another machine takes its place."""
    sending: float = 0.0011
    """CPU of the scheduler for each task, the busiest process: docs/cluster.md has the
    measurement.
    """

    @property
    def slots(self) -> int:
        return self.workers * self.threads

    @property
    def rate(self) -> float:
        """Bytes per second of one thread that reads."""
        return min(self.bandwidth, self.network / self.threads)


class Work(NamedTuple):
    """The tasks: how many, their bytes, and the requests of each as their sizes.
    `opening` are those before the first.
    """

    tasks: int
    nbytes: int
    patterns: Sequence[tuple[int, ...]]
    """The requests of each task."""
    opening: tuple[int, ...]

    @property
    def each(self) -> float:
        """Bytes of a task."""
        return self.nbytes / self.tasks


class Found(NamedTuple):
    """What a run took: seconds until the last result, those before the first task,
    requests, and what was done twice.
    """

    results: int
    seconds: float
    opening: float
    requests: float
    retries: float
    lost: float


# --- the real tasks and the real requests ---------------------------------------------


class _Bucket:
    """Files of 1 GiB of zeros with real headers. It keeps which requests were sent."""

    def __init__(self, files: int) -> None:
        part = GIB // TENSORS
        self.names = [
            f"model-{n + 1:05}-of-{files:05}.safetensors" for n in range(files)
        ]
        self._heads: dict[str, bytes] = {}
        weights: dict[str, str] = {}
        for number, name in enumerate(self.names):
            rows = {
                f"layers.{number}.{at}.weight": {
                    "dtype": "F32",
                    "shape": [part // 4096, 1024],
                    "data_offsets": [at * part, (at + 1) * part],
                }
                for at in range(TENSORS)
            }
            text = json.dumps(rows).encode()
            text += b" " * (-len(text) % 8)
            self._heads[name] = pack("<Q", len(text)) + text
            weights |= dict.fromkeys(rows, name)
        document = {"metadata": {"total_size": files * GIB}, "weight_map": weights}
        self._heads[INDEX] = json.dumps(document).encode()
        self.asked: list[int] = []

    def size(self, name: str) -> int:
        return len(self._heads[name]) + (GIB if name != INDEX else 0)

    def get(self, name: str, begin: int | None, count: int) -> Any:
        from ckpt.ext.remote.store import Answer

        size = self.size(name)
        first = max(0, size - count) if begin is None else begin
        last = min(size, first + count)
        head = self._heads[name][first:last]
        self.asked.append(last - first)
        return Answer(
            memoryview(head + bytes(last - first - len(head))), first, size, '"1"'
        )


class _Object(NamedTuple):
    """A store of one object, as ckpt asks it."""

    bucket: _Bucket
    name: str
    tails: bool = True
    server: str = "s3://bucket"

    def get(self, begin: int | None, count: int, etag: str) -> Any:
        return self.bucket.get(self.name, begin, count)


@contextmanager
def _simulated(bucket: _Bucket) -> Iterator[None]:
    """While it lasts, `s3://` leads to the bucket."""
    from ckpt.ext.remote.store import Known

    listing = {name: Known(bucket.size(name), '"1"') for name in (*bucket.names, INDEX)}
    home = "ckpt.ext.remote.objects"
    with (
        mock.patch(f"{home}.object_at", lambda url: _Object(bucket, url.last)),
        mock.patch(f"{home}.names_in", lambda url: dict(listing)),
        mock.patch(
            "ckpt.elements.measure.Summary.add", lambda self, block, dtype: None
        ),  # zeros are not measured
    ):
        yield


def work_of(files: int) -> Work:
    """The tasks of `ckpt stats` over files of 1 GiB, and the requests of each, as ckpt
    makes them.

    Tasks that lie alike send the same requests: one of each kind is run, over zeros.
    """
    from ckpt import formats
    from ckpt.bytes.executor import Serial
    from ckpt.commands.stats.stats import stats
    from ckpt.evidence.survey import Survey
    from ckpt.ext.cluster.parcel import packed, parcels_of, perform, sender
    from ckpt.model.limits import Limits

    bucket = _Bucket(files)
    found: list[Any] = []

    class Plan(Serial):
        """Keeps the tasks, and runs none."""

        def run(self, tasks: Any, progress: Any = None) -> Any:
            found.extend(tasks)
            raise _PlannedError

    with _simulated(bucket):
        limits = Limits().raised(["index-bytes=1GiB", "shards=100000", "memory=4GB"])
        with formats.open(f"s3://bucket/{INDEX}", limits) as checkpoint:
            try:
                stats(Survey(checkpoint), executor=Plan())
            except _PlannedError:
                pass
            opening = tuple(bucket.asked)
            parcels = list(parcels_of(found))
            known: dict[tuple[int, int], tuple[int, ...]] = {}
            patterns = []
            for parcel in parcels:
                kind = kind_of(parcel)
                if kind not in known:
                    bucket.asked.clear()
                    outcome = perform(packed(parcel), sender())
                    if outcome.error is not None:
                        raise outcome.error
                    known[kind] = tuple(bucket.asked)
                patterns.append(known[kind])
    return Work(len(parcels), sum(task.nbytes for task in found), patterns, opening)


class _PlannedError(Exception):
    """The tasks are known."""


def kind_of(parcel: Sequence[Any]) -> tuple[int, int]:
    """What the requests of a parcel depend on: its tasks and their bytes."""
    return len(parcel), sum(task.nbytes for task in parcel)


# --- on paper -------------------------------------------------------------------------


def _pauses() -> list[float]:
    """The pauses between the tries of a request, as the reader makes them."""
    from ckpt.ext.remote.source import retried
    from ckpt.ext.remote.store import BusyError
    from ckpt.model.errors import NotOpenedError

    made: list[float] = []

    def busy() -> None:
        raise BusyError("busy")

    try:
        retried(busy, "", made.append)
    except NotOpenedError:
        return made
    raise AssertionError


def model(work: Work, world: World) -> Found:
    """The expected times, by formulas alone."""
    fails = world.refused + world.cut
    pauses = _pauses()

    def request(nbytes: float) -> float:
        """Seconds of a request with its retries."""
        once = world.latency + nbytes / world.rate
        failed = world.latency + (
            world.cut / fails * nbytes / 2 / world.rate if fails else 0
        )
        return once + sum(
            (failed + pause) * fails ** (number + 1)
            for number, pause in enumerate(pauses)
        )

    again = sum(fails ** (number + 1) for number in range(len(pauses)))
    opening = (
        sum(map(request, work.opening[:1]))
        + sum(map(request, work.opening[1:])) / _AT_ONCE
    )
    kinds = Counter(work.patterns)
    asking = (
        sum(count * sum(map(request, pattern)) for pattern, count in kinds.items())
        / work.tasks
    )
    each = asking + work.each / world.compute
    losses = (each / 2 + world.away) / world.between_losses
    working = work.tasks * each / world.slots * (1 + losses)
    slowest = max(working + each / 2, work.tasks * world.sending + each)
    requests = len(work.opening) + sum(map(len, work.patterns))
    lost = world.workers * working / world.between_losses * world.threads
    return Found(
        work.tasks,
        opening + slowest,
        opening,
        requests * (1 + again),
        requests * again,
        lost,
    )


# --- in virtual time ------------------------------------------------------------------


class _Clock:
    """The time of one thread, which waits for what it asks for."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.now = 0.0
        self.requests = self.retries = 0
        self._world, self._chance = world, chance

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.retries += 1

    def ask(self, nbytes: int) -> None:
        """One request with its retries. Raises NotOpenedError after the last."""
        from ckpt.ext.remote.source import retried
        from ckpt.ext.remote.store import BusyError

        world = self._world

        def once() -> None:
            self.requests += 1
            self.now += world.latency / 2 + self._chance.expovariate(2 / world.latency)
            luck = self._chance.random()
            if luck < world.refused:
                raise BusyError("the server answers 503")
            if luck < world.refused + world.cut:
                self.now += nbytes / 2 / world.rate
                raise BusyError("the server cuts its answers off")
            self.now += nbytes / world.rate

        retried(once, "", self.sleep)


def simulate(work: Work, world: World, seed: int = 1) -> Found:
    """One run in virtual time: each thread takes the next task; what a lost machine was
    doing is done again.

    Raises NotOpenedError where a request fails more often than it is tried.
    """
    chance = random.Random(seed)
    clock = _Clock(world, chance)
    for nbytes in work.opening[:1]:  # the index
        clock.ask(nbytes)
    lanes = [clock.now] * _AT_ONCE
    for nbytes in work.opening[1:]:
        clock.now = heapq.heappop(lanes)
        clock.ask(nbytes)
        heapq.heappush(lanes, clock.now)
    opening = max(lanes)
    losses = [_Losses(world, chance, opening) for _ in range(world.workers)]
    free = [(opening, slot) for slot in range(world.slots)]
    again: list[tuple[float, int]] = []
    fresh = 0
    last = opening
    results = lost = 0
    while fresh < work.tasks or again:
        begin, slot = heapq.heappop(free)
        if again and (again[0][0] <= begin or fresh == work.tasks):
            ready, task = heapq.heappop(again)
        else:
            ready, task = opening + fresh * world.sending, fresh
            fresh += 1
        begin = max(begin, ready)
        clock.now = begin
        for nbytes in work.patterns[task]:
            clock.ask(nbytes)
        clock.now += work.each / world.compute
        machine = losses[slot // world.threads]
        while machine.at + world.away <= begin:
            machine.next()
        if machine.at < begin:  # it is away
            heapq.heappush(free, (machine.at + world.away, slot))
            heapq.heappush(again, (begin, task))
        elif machine.at < clock.now:
            lost += 1
            heapq.heappush(free, (machine.at + world.away, slot))
            heapq.heappush(again, (machine.at, task))
        else:
            heapq.heappush(free, (clock.now, slot))
            last = max(last, clock.now)
            results += 1
    return Found(results, last, opening, clock.requests, clock.retries, lost)


class _Losses:
    """When a machine is lost: `at` is the next time."""

    def __init__(self, world: World, chance: random.Random, begin: float) -> None:
        self._world, self._chance = world, chance
        self.at = begin
        self.next()

    def next(self) -> None:
        self.at += self._chance.expovariate(1 / self._world.between_losses)


# --- the table ------------------------------------------------------------------------


def lines(work: Work, worlds: Iterable[World], seed: int) -> Iterator[str]:
    """The rows of the table, model beside simulation."""
    yield (
        "| data | tasks | machines | requests | tried again | tasks done twice | "
        "opening | model | simulation |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for world in worlds:
        paper, found = model(work, world), simulate(work, world, seed)
        yield (
            f"| {work.nbytes / 1e12:.1f} TB | {work.tasks:,} | {world.workers} × "
            f"{world.threads} threads | {found.requests:,.0f} | {found.retries:,.0f} | "
            f"{found.lost:,.0f} | {found.opening:,.0f} s | {paper.seconds:,.0f} s | "
            f"{found.seconds:,.0f} s |"
        )


def main() -> None:
    """Reads the options and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--files", type=int, default=1000, metavar="N", help="files of 1 GiB"
    )
    parser.add_argument(
        "--workers", default="1,4,16,64", metavar="LIST", help="machines"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    options = parser.parse_args()
    work = work_of(options.files)
    for line in lines(
        work,
        [World(workers=int(each)) for each in options.workers.split(",")],
        options.seed,
    ):
        print(line)


if __name__ == "__main__":
    main()
