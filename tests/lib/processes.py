"""An executor of the tests: every task goes to another process, as it would to another machine."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Pool
from typing import TypeVar

import blocks

from ckpt.io.executor import Task

R = TypeVar("R")


class Processes:
    """Pickles tasks and results; what is not in the pickle does not come along."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        sent = [pickle.dumps((blocks.sizes(), task)) for task in tasks]
        results = []
        for task, result in zip(tasks, self._pool.map(done, sent), strict=True):
            results.append(result)
            if progress is not None:
                progress(task.nbytes)
        return results


def done(pickled: bytes) -> object:
    """The result of a task, in whatever process this is, with the sizes of blocks of the sender."""
    sizes, task = pickle.loads(pickled)
    blocks.set_sizes(sizes)
    return task()


def fail(error: Exception) -> None:
    raise error


def fail_slowly(what: str) -> None:
    """Raise after others had the time to."""
    time.sleep(0.3)
    raise LookupError(what)
