"""Who does the work: tasks that know all that they need, so that threads, processes and a cluster differ in a few lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

SPAN = 64 << 20
"""Bytes that one task reads at most, where its work can be cut."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Task(Generic[R]):
    """A call of a function of a module with plain arguments: it pickles where its sources have an address.

    `nbytes` are the bytes that it reads. How work is cut into tasks depends on the files alone, and results are
    merged in the order of the tasks: figures are the same for any executor and any number of workers.
    """

    __slots__ = ("arguments", "function", "nbytes")

    def __init__(self, function: Callable[..., R], arguments: tuple[Any, ...], nbytes: int = 0) -> None:
        self.function = function
        self.arguments = arguments
        self.nbytes = nbytes

    def __call__(self) -> R:
        return self.function(*self.arguments)


class Executor(Protocol):
    """Runs tasks. The first error that a task raises, in their order, is raised."""

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        """The results in the order of the tasks. `progress` is told the bytes of each that is done, from one thread."""
        ...


class Serial:
    """One task after the other."""

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        results = []
        for task in tasks:
            results.append(task())
            if progress is not None:
                progress(task.nbytes)
        return results


class Threads:
    """Threads of this process: reading, comparing, checksums and numpy let the others run."""

    def __init__(self, count: int | None = None) -> None:
        self.count = min(8, cpus()) if count is None else count

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        if len(tasks) < 2 or self.count < 2:
            return Serial().run(tasks, progress)
        from concurrent.futures import ThreadPoolExecutor

        results = []
        with ThreadPoolExecutor(min(self.count, len(tasks))) as pool:
            try:
                for task, result in zip(tasks, pool.map(Task.__call__, tasks), strict=True):
                    results.append(result)
                    if progress is not None:
                        progress(task.nbytes)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return results


def cpus() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spans(numel: int, size: int, step: int) -> list[tuple[int, int]]:
    """The (first, last) elements of the tasks that `numel` elements of `size` bytes make, each a multiple of `step`."""
    count = max(step, SPAN // max(1, size) // step * step)
    return [(at, min(at + count, numel)) for at in range(0, numel, count)] or [(0, 0)]
