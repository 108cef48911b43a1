"""Cutting the tasks of a job: an executor that notes them, one that hands in known results, and the cut between both.

A job does not know of it. Its tasks depend on the files and the options alone, so every machine notes the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from ckpt.checkpoint import Checkpoint
from ckpt.io.executor import Bundle, Executor, Failed, Task, run_each
from ckpt.io.source import Source
from ckpt.jobs.parts.results import encoded, is_known
from ckpt.rows import NamedTuple
from ckpt.text import Json

_EDGE = 16 << 10
"""Bytes at each end of a file that are read: headers, and the directory of a zip archive with its checksums."""


class Input(NamedTuple):
    """A checkpoint as a part has read it. `digest` is the SHA-256 of what tells its files from others."""

    path: str
    files: int
    nbytes: int
    digest: str


def input_of(checkpoint: Checkpoint) -> Input:
    """What tells the files of a checkpoint from others: names, sizes, times or ETags, and how they begin and end.

    Devices, inodes and the folder above are left out, because they differ where a file system is mounted twice. Raises
    NotOpenedError.
    """
    sources = checkpoint.all_sources()
    rows = sorted(
        f"{_name(source, checkpoint.path)}\0{source.identity[-2:]}\0{_edges(source)}" for source in sources
    )
    digest = hashlib.sha256("\n".join(rows).encode("utf-8", "surrogatepass")).hexdigest()
    return Input(checkpoint.path, len(sources), sum(source.size for source in sources), digest)


def _name(source: Source, path: str) -> str:
    """The name of a file inside of its checkpoint."""
    start = f"{path.rstrip('/')}/"
    return (
        source.name.removeprefix(start) if source.name.startswith(start) else source.name.rpartition("/")[2]
    )


def _edges(source: Source) -> str:
    """SHA-256 of the ends of a file, in hexadecimal. An object has an ETag instead, which costs no request."""
    if source.far is not None:
        return ""
    made = hashlib.sha256(source.read(0, min(_EDGE, source.size)))
    if source.size > _EDGE:
        made.update(source.read(source.size - _EDGE, _EDGE))
    return made.hexdigest()


R = TypeVar("R")
_EACH = 1 << 16
"""Bytes that a task counts beside its own: opening and computing take time, too."""


class Share(NamedTuple):
    """One part of a job: `number` of `of`, from 0."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"part {self.number:,} of {self.of:,}"


class Notes:
    """Runs nothing, and notes the tasks. A job sees each of them fail, and ends with a report that says nothing.

    What a format of another distribution runs is run: its tasks have no part in the cut.
    """

    def __init__(self) -> None:
        self.tasks: list[Task[object]] = []

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        return [cast("R", self._noted(task)) if _is_cut(task) else task() for task in tasks]

    def _noted(self, task: Task[object]) -> list[Failed]:
        assert isinstance(task, Bundle)
        self.tasks += task.tasks
        return [Failed("noted")] * len(task.tasks)


class Mine:
    """Runs the tasks `first` to `last` of a job while its files are open, and writes down their results.

    The others fail, as those of `Notes` do. `failed` are the reasons of those that could not be read.
    """

    def __init__(
        self, executor: Executor, first: int, last: int, progress: Callable[[int], None] | None = None
    ) -> None:
        self.results: list[Json] = []
        self.failed: list[str] = []
        self._executor = executor
        self._range = range(first, last)
        self._progress = progress
        self._at = 0

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        mine: list[Task[object]] = []
        places: list[range] = []
        for task in tasks:
            inside = task.tasks if isinstance(task, Bundle) and _is_cut(task) else ()
            places.append(range(self._at, self._at + len(inside)))
            mine += [each for place, each in zip(places[-1], inside, strict=True) if place in self._range]
            self._at = places[-1].stop
        done = run_each(self._executor, mine, self._progress)
        self.results += map(encoded, done)  # now, for the job goes on with them
        self.failed += [each.problem for each in done if isinstance(each, Failed)]
        left = iter(done)
        return [
            cast("R", [next(left) if place in self._range else Failed("noted") for place in row])
            if _is_cut(task)
            else task()
            for task, row in zip(tasks, places, strict=True)
        ]


class Known:
    """Runs nothing, and hands in the results of the tasks in their order."""

    def __init__(self, results: Sequence[object]) -> None:
        self._left = iter(results)

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        return [cast("R", self._handed(task)) if _is_cut(task) else task() for task in tasks]

    def _handed(self, task: Task[object]) -> list[object]:
        assert isinstance(task, Bundle)
        return [next(self._left) for _ in task.tasks]


def _is_cut(task: Task[object]) -> bool:
    return isinstance(task, Bundle) and all(map(is_known, task.tasks))


def plan_of(tasks: Sequence[Task[object]]) -> str:
    """SHA-256 of what the tasks are, in hexadecimal: equal on all machines that note the same ones."""
    made = hashlib.sha256()
    for task in tasks:
        made.update(f"{task.function.__module__}.{task.function.__qualname__} {task.nbytes}\n".encode())
    return made.hexdigest()


def cut(tasks: Sequence[Task[object]], share: Share) -> tuple[int, int]:
    """The first task of a part, and the first one behind it. Parts have about as many bytes each, neighbours together."""
    total = sum(task.nbytes + _EACH for task in tasks)
    first = last = done = 0
    for number, task in enumerate(tasks, 1):
        middle = 2 * done + task.nbytes + _EACH  # twice where its middle lies, so that all are whole numbers
        part = middle * share.of // (2 * total)
        first += part < share.number
        last = number if part <= share.number else last
        done += task.nbytes + _EACH
    return first, max(first, last)
