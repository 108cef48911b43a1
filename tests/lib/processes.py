"""An executor of the tests: every task goes to another process, as it would to another
machine.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import TypeVar

import paths

from ckpt.bytes.executor import Task

R = TypeVar("R")


def pool(count: int) -> ProcessPoolExecutor:
    """So many processes that are started, not forked. They end with this one, also when
    it is killed.
    """
    return ProcessPoolExecutor(
        count, multiprocessing.get_context("spawn"), initializer=end_with_parent
    )


def end_with_parent() -> None:
    """End this process when the one that started it is gone, whatever it is doing then.

    The processes of a pool keep the queue between them open for each other, so none of
    them sees its end.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Processes:
    """Pickles tasks and results; what is not in the pickle does not come along."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def run(
        self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None
    ) -> list[R]:
        sent = [pickle.dumps((paths.sizes(), task)) for task in tasks]
        results = []
        for task, result in zip(tasks, self._pool.map(done, sent), strict=True):
            results.append(result)
            if progress is not None:
                progress(task.nbytes)
        return results


def done(pickled: bytes) -> object:
    """The result of a task, in whatever process this is, with the sizes of blocks of
    the sender.
    """
    sizes, task = pickle.loads(pickled)
    paths.set_sizes(sizes)
    return task()


def fail(error: Exception) -> None:
    raise error


def fail_slowly(what: str) -> None:
    """Raise after others had the time to."""
    time.sleep(0.3)
    raise LookupError(what)


def wait_for(path: str) -> str:
    """Return once a file is there."""
    while not os.path.exists(path):
        time.sleep(0.01)
    return "there"


def die() -> None:
    """End as the kernel ends a process when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def pid_then_bytes(folder: str, number: int) -> bytes:
    """Leave a file with the name of this process, and return more than a pipe holds."""
    open(os.path.join(folder, str(os.getpid())), "w").close()
    return bytes(1 << 20)


def pid_then_nothing(folder: str, number: int) -> None:
    """Leave a file with the name of this process and of the task."""
    open(os.path.join(folder, f"{os.getpid()}.{number}"), "w").close()


def pid_then_wait(folder: str) -> int:
    """Leave a file with the name of this process, and wait until there is another file
    beside it. This process.
    """
    open(os.path.join(folder, str(os.getpid())), "w").close()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)
    return os.getpid()


def multiply_until(folder: str, name: str) -> int:
    """Leave a file with the name of this process, and multiply large matrices until
    there is another file. This process.
    """
    import numpy as np

    open(os.path.join(folder, str(os.getpid())), "w").close()
    matrix = np.ones((1500, 1500))
    while not os.path.exists(os.path.join(folder, name)):
        matrix @ matrix
    return os.getpid()
