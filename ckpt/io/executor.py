"""Running tasks. A task holds all that it needs, so it can run in a thread, another process or a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

SPAN = 64 << 20
"""The most bytes that one task reads, where its work can be split."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Task(Generic[R]):
    """A call of a module's function with plain arguments. It pickles when its sources have an address.

    `nbytes` are the bytes that it reads. The split into tasks depends on the files alone, and results merge in the
    order of the tasks. So results are the same for any executor and any number of workers.
    """

    __slots__ = ("arguments", "function", "nbytes")

    def __init__(self, function: Callable[..., R], arguments: tuple[Any, ...], nbytes: int = 0) -> None:
        self.function = function
        self.arguments = arguments
        self.nbytes = nbytes

    def __call__(self) -> R:
        return self.function(*self.arguments)


class Executor(Protocol):
    """Runs tasks. Raises the first error of a task, in their order."""

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        """The results in the order of the tasks. `progress` gets the bytes of each finished task, from one thread."""
        ...


class Serial:
    """Runs one task after the other."""

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        results = []
        for task in tasks:
            results.append(task())
            if progress is not None:
                progress(task.nbytes)
        return results


class Threads:
    """Runs tasks in threads of this process: reading, comparing, checksums and numpy release the GIL."""

    def __init__(self, count: int | None = None) -> None:
        self.count = min(8, cpus()) if count is None else count

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        if len(tasks) < 2 or self.count < 2:
            return Serial().run(tasks, progress)
        from concurrent.futures import ThreadPoolExecutor

        results = []
        pool = ThreadPoolExecutor(min(self.count, len(tasks)))
        wait = True
        try:
            for task, result in zip(tasks, pool.map(Task.__call__, tasks), strict=True):
                results.append(result)
                if progress is not None:
                    progress(task.nbytes)
        except BaseException as error:
            wait = isinstance(error, Exception)  # who interrupts does not wait for a tensor of 40 GB
            raise
        finally:
            pool.shutdown(wait, cancel_futures=True)
        return results


def cpus() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spans(numel: int, size: int, step: int) -> list[tuple[int, int]]:
    """Split `numel` elements of `size` bytes into (first, last) spans for tasks, each a multiple of `step`."""
    count = max(step, SPAN // max(1, size) // step * step)
    return [(at, min(at + count, numel)) for at in range(0, numel, count)] or [(0, 0)]
