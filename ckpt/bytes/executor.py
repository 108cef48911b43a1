"""Running tasks. A task holds all that it needs, so it can run in a thread, another
process or a cluster.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, cast

from ckpt.bytes.far import (
    Reading,
    Turns,
    Used,
    iterate_ahead,
    reading_ahead,
    readings_of,
)
from ckpt.model.errors import NotOpenedError, UnreadableError
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SPAN = 64 << 20
"""The most bytes that one task reads, where its work can be split."""
TRIES = 3
"""The most runs of a task whose source fails. Damaged data stays damaged, so its task
runs once.
"""

AHEAD = 2
"""Items for each thread of `in_order` that are begun before their turn; as few need no
threads.
"""

_FAR = 16
"""Tasks at once that read little from other machines each."""

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Task(Generic[R_co]):
    """A call of a module's function with plain arguments. It pickles when its sources
    have an address.

    `nbytes` are the bytes that it reads. The split into tasks depends on the files
    alone, and results merge in the order of the tasks. So results are the same for any
    executor and any number of workers.
    """

    __slots__ = ("arguments", "function", "nbytes")

    def __init__(
        self, function: Callable[..., R_co], arguments: tuple[Any, ...], nbytes: int = 0
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.nbytes = nbytes

    def __call__(self) -> R_co:
        return self.function(*self.arguments)

    def reads(self) -> Iterator[Reading]:
        """The bytes that it reads of its arguments."""
        yield from readings_of(self.arguments)


class Executor(Protocol):
    """Runs tasks. Raises the first error of a task, in their order."""

    def run(
        self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None
    ) -> list[R]:
        """The results in the order of the tasks. `progress` gets the bytes of each
        finished task, from one thread.
        """
        ...


class Failed(NamedTuple):
    """The stand-in for a result: the reason why the bytes could not be read, in plain
    words.
    """

    problem: str


class Bundle(Task[list["R_co | Failed"]]):
    """Tasks that are handed over together. What cannot be read fails alone, and the
    others have their results.
    """

    __slots__ = ("tasks",)

    def __init__(self, tasks: Sequence[Task[R_co]]) -> None:
        super().__init__(_try_all, (tasks,), sum(task.nbytes for task in tasks))
        self.tasks = tasks


_MOST = 256
"""The most tasks that are handed over at once."""


def run_bundled(
    executor: Executor,
    tasks: Sequence[Task[R]],
    progress: Callable[[int], None] | None = None,
) -> list[R]:
    """Run tasks as `executor.run` does, with small neighbours as one task.

    To hand over each of them would cost more than its work.
    """
    bundles = [
        Task(_run_all, (bundle,), sum(task.nbytes for task in bundle))
        # One result per bundle, which is taken apart below: the order stays.
        for bundle in _bundle_tasks(tasks)
    ]
    return list(chain.from_iterable(executor.run(bundles, progress)))


def run_each(
    executor: Executor,
    tasks: Sequence[Task[R]],
    progress: Callable[[int], None] | None = None,
) -> list[R | Failed]:
    """As `run_bundled`, with `Failed` for what raises UnreadableError, after TRIES
    where a source fails.
    """
    bundles: list[Bundle[R]] = [Bundle(bundle) for bundle in _bundle_tasks(tasks)]
    return list(chain.from_iterable(executor.run(bundles, progress)))


def _bundle_tasks(tasks: Sequence[Task[R]]) -> list[list[Task[R]]]:
    """Put small neighbours together. The bundles depend on the tasks alone, so results
    are the same for any number of workers.
    """
    bundles: list[list[Task[R]]] = []
    room = 0
    for task in tasks:
        if not bundles or task.nbytes > room or len(bundles[-1]) == _MOST:
            bundles.append([])
            # A sixteenth of a large task: the workers still end at about the same time.
            room = max(SPAN // 16, task.nbytes)
        bundles[-1].append(task)
        room -= task.nbytes
    return bundles


def _run_all(tasks: Sequence[Task[R]]) -> list[R]:
    return [task() for task in tasks]


def _try_all(tasks: Sequence[Task[R]]) -> list[R | Failed]:
    results: list[R | Failed] = [_try_task(task) for task in tasks]
    return results


def _try_task(task: Task[R]) -> R | Failed:
    """The result of a task, or why its bytes cannot be read."""
    for attempt in range(1, TRIES + 1):
        try:
            return task()
        except NotOpenedError as error:
            if attempt == TRIES:
                return Failed(error.problem)
        except UnreadableError as error:
            return Failed(error.problem)
    raise AssertionError("the last try returns")


class Serial:
    """Runs one task after the other."""

    def run(
        self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None
    ) -> list[R]:
        results = []
        for task in iterate_ahead(tasks):
            results.append(task())
            if progress is not None:
                progress(task.nbytes)
        return results


def _run_in_turn(turns: Turns, number: int, task: Task[R]) -> R:
    with turns.turn(number):
        return task()


class Threads:
    """Runs tasks in threads of this process: reading, comparing, checksums and numpy
    release the GIL.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = min(8, count_cpus()) if count is None else count

    def run(
        self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None
    ) -> list[R]:
        # One task gains nothing by a thread.
        if len(tasks) < 2 or self.count < 2:
            return Serial().run(tasks, progress)
        from concurrent.futures import ThreadPoolExecutor

        results = []
        count = min(self.count, len(tasks))
        pool = ThreadPoolExecutor(count, initializer=_note_tasks, initargs=(count,))
        wait = True
        try:
            with reading_ahead(task.reads() for task in tasks) as turns:
                run_one = partial(_run_in_turn, turns)
                answers = pool.map(run_one, range(len(tasks)), tasks)
                for task, result in zip(tasks, answers, strict=True):
                    results.append(result)
                    if progress is not None:
                        progress(task.nbytes)
        except BaseException as error:
            # A user who interrupts does not wait for a tensor of 40 GB.
            wait = isinstance(error, Exception)
            raise
        finally:
            pool.shutdown(wait, cancel_futures=True)
        return results


class _Worker(threading.local):
    """The executor of the block that runs in a thread, and the number of tasks that run
    at once, where a task runs in it.
    """

    executor: Executor | None = None
    tasks: int = 1


_worker = _Worker()


def _note_tasks(count: int) -> None:
    """Note in a thread that it runs one of so many tasks at once."""
    _worker.tasks = count


def count_threads() -> int:
    """Return the threads that a piece of work may start: tasks that run at once share
    the processors.
    """
    return max(1, min(8, count_cpus()) // _worker.tasks)


def current_executor() -> Executor:
    """The executor of the block that runs, else the processors of this machine."""
    return _worker.executor or Local()


@contextmanager
def using_executor(executor: Executor | None) -> Iterator[None]:
    """Give the work of a block to an executor; without one nothing changes."""
    before = _worker.executor
    if executor is not None:
        _worker.executor = executor
    try:
        yield
    finally:
        _worker.executor = before


def in_order(
    work: Callable[[T], R], items: Sequence[T], threads: int | None = None
) -> Iterator[R]:
    """The result of `work` on each item, in order, made by threads that are a few items
    ahead and no more. Without a number of them there are as many as `count_threads`
    says.
    """
    count = count_threads() if threads is None else threads
    if len(items) <= AHEAD or count < 2:
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(count)
    wait = True
    try:
        # Results wait in memory, so no more are begun than the loop takes soon.
        pending = deque(pool.submit(work, item) for item in items[: AHEAD * count])
        for item in items[AHEAD * count :]:
            yield pending.popleft().result()
            pending.append(pool.submit(work, item))
        while pending:
            yield pending.popleft().result()
    except BaseException as error:
        # An interrupt, or a loop over the results that is left, waits for nothing.
        wait = isinstance(error, Exception)
        raise
    finally:
        pool.shutdown(wait, cancel_futures=True)


class Each(Protocol):
    """Runs tasks, and yields each result in order as soon as it and those before it are
    there.
    """

    def each(self, tasks: Sequence[Task[R]]) -> Iterator[R]: ...


class Waiting:
    """Runs tasks that wait for other machines most of the time, `count` at once in
    threads.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = _FAR if count is None else count

    def each(self, tasks: Sequence[Task[R]]) -> Iterator[R]:
        yield from in_order(Task.__call__, tasks, self.count)


class Forks:
    """Runs tasks in copies of this process: parsing in Python holds the GIL. Results
    must pickle, tasks need not.

    Every process takes the next task when it is done with one, and `each` gives results
    in order while later tasks still run. Only for a process without threads: a lock
    that one of them holds stays locked in the copies.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = min(8, count_cpus()) if count is None else count

    def run(
        self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None
    ) -> list[R]:
        results = []
        for task, result in zip(tasks, self.each(tasks), strict=True):
            results.append(result)
            if progress is not None:
                progress(task.nbytes)
        return results

    def each(self, tasks: Sequence[Task[R]]) -> Iterator[R]:
        """The results in the order of the tasks, each as soon as it and those before it
        are there.
        """
        count = min(self.count, len(tasks))
        if count < 2 or not hasattr(os, "fork"):
            yield from (task() for task in tasks)
            return
        from multiprocessing.connection import Pipe, wait

        pids: list[int] = []
        pipes: list[Connection] = []
        # The numbers of the tasks, which each process reads when it has time.
        taken, given = os.pipe()
        try:
            for _ in range(count):
                ours, theirs = Pipe(duplex=False)
                try:
                    pid = os.fork()
                except OSError:
                    # There may be no more processes: those that are there do it all.
                    ours.close()
                    theirs.close()
                    break
                if pid == 0:
                    # So that the end of the parent is an end of the numbers, and an
                    # error for who writes a result.
                    os.close(given)
                    for pipe in (*pipes, ours):
                        pipe.close()
                    _note_tasks(count)
                    _run_tasks(tasks, taken, theirs)
                pids.append(pid)
                pipes.append(ours)
                # Only the copy has it now, so its end is the end of the pipe.
                theirs.close()
            if not pids:
                yield from (task() for task in tasks)
                return
            numbers = iter(range(len(tasks)))
            # Two for each process: it has one to go on with while its result is read.
            _write_task_numbers(numbers, 2 * len(pids), given)
            answers: dict[int, _Answer] = {}
            for number in range(len(tasks)):
                while number not in answers:
                    for ready in wait(pipes):
                        answer = _receive_answer(cast("Connection", ready))
                        answers[answer.number] = answer
                        _write_task_numbers(numbers, 1, given)
                answer = answers.pop(number)
                if not answer.is_result:
                    raise answer.value
                yield answer.value
        finally:
            for pipe in pipes:
                pipe.close()
            os.close(taken)
            os.close(given)
            for pid in pids:
                # It waits for a number, or has ended.
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


class _Answer(NamedTuple):
    """The answer of a process to the task of a number: its result, or the error that it
    raised.
    """

    number: int
    is_result: bool
    value: Any


_NUMBER = 8
"""Bytes of the number of a task. So few are read whole, and by one process."""


def _write_task_numbers(numbers: Iterator[int], most: int, pipe: int) -> None:
    """Write the next numbers of tasks for the processes to take, where there
    are more.
    """
    for number in islice(numbers, most):
        os.write(pipe, number.to_bytes(_NUMBER, "little"))


def _run_tasks(tasks: Sequence[Task[R]], numbers: int, pipe: Connection) -> NoReturn:
    """Send the result of each task whose number can be read, or its error, and end this
    process, whatever happens.
    """
    try:
        while data := os.read(numbers, _NUMBER):
            number = int.from_bytes(data, "little")
            try:
                answer = _Answer(number, True, tasks[number]())
            except Exception as error:
                answer = _Answer(number, False, error)
            pipe.send(answer)
    finally:
        # Nothing of the copied process is unwound or flushed: what it holds in buffers
        # is the parent's, which writes it too.
        os._exit(0)


def _receive_answer(pipe: Connection) -> _Answer:
    try:
        return cast("_Answer", pipe.recv())
    except EOFError:
        raise MemoryError(
            "a process was killed, or its result does not pickle"
        ) from None


_FORKED = SPAN
"""The fewest bytes of work for which processes are started."""


class Local:
    """Runs tasks on the processors of this machine: much work in copies of this
    process, where that is safe, else in threads.

    numpy gives up the GIL for some microseconds at a time, and a thread that waits for
    it wakes up later than that: two threads take longer than one.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = min(8, count_cpus()) if count is None else count

    def run(
        self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None
    ) -> list[R]:
        is_much = sum(task.nbytes for task in tasks) >= _FORKED
        is_safe = sys.platform == "linux" and is_alone() and not Used.sources
        pool = Forks(self.count) if is_much and is_safe else Threads(self.count)
        return pool.run(tasks, progress)


def is_alone() -> bool:
    """Tell whether this process has no thread but this one, on Linux none of another
    language either.
    """
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return sys.platform != "linux" and threading.active_count() == 1


def count_cpus() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def split_spans(numel: int, size: int, step: int) -> list[tuple[int, int]]:
    """Split `numel` elements of `size` bytes into (first, last) spans for tasks, each a
    multiple of `step`.
    """
    count = max(step, SPAN // max(1, size) // step * step)
    spans = [(first, min(first + count, numel)) for first in range(0, numel, count)]
    # No elements are one task too: its result says what a tensor without any is.
    return spans or [(0, 0)]
