"""The adapter for Dask beyond what every Executor does (tests/bytes/test_executor.py):
what is under way, lost, cancelled.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import clusters
import processes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from process import ROOT, TIMEOUT

from ckpt.bytes.executor import SPAN, Task
from ckpt.ext.cluster import connect as dask
from ckpt.ext.cluster import watch
from ckpt.ext.cluster.connect import Dask
from ckpt.ext.cluster.parcel import Outcome, parcels_of
from ckpt.ext.cluster.watch import Watch
from ckpt.model.errors import CkptError

pytestmark = pytest.mark.slow


@given(
    st.lists(st.sampled_from([0, 1, SPAN // 2, SPAN - 1, SPAN, 3 * SPAN]), max_size=700)
)
def test_parcels_hold_every_task_once_in_order(sizes: list[int]) -> None:
    tasks = [Task(abs, (number,), size) for number, size in enumerate(sizes)]

    parcels = list(parcels_of(tasks))

    assert [task for parcel in parcels for task in parcel] == tasks
    assert all(0 < len(parcel) <= 256 for parcel in parcels)
    assert all(
        len(parcel) == 1 or sum(task.nbytes for task in parcel) <= SPAN
        for parcel in parcels
    )
    pairs = itertools.pairwise(parcels)
    assert all(
        len(one) == 256 or sum(task.nbytes for task in (*one, two[0])) > SPAN
        for one, two in pairs
    )


def test_few_parcels_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory does not follow the number of tasks; and many are sent at once,
    which is cheap.
    """
    monkeypatch.setattr(dask, "_LEAST", 8)
    monkeypatch.setattr(dask, "_TOGETHER", 2)
    recorded = clusters.Recorded(clusters.client())

    found = clusters.executor(recorded).run(
        [Task(abs, (-number,), SPAN) for number in range(100)]
    )

    assert found == list(range(100)) and len(recorded.sent) == 100
    assert recorded.most == 8 and recorded.under_way == 0


def test_more_workers_have_more_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "_LEAST", 4)
    monkeypatch.setattr(dask, "_TOGETHER", 1)
    recorded = clusters.Recorded(clusters.client())

    assert (
        clusters.executor(recorded, {"a": 3, "b": 2}).run([Task(abs, (1,), SPAN)] * 60)
        == [1] * 60
    )
    assert recorded.most == 20

    monkeypatch.setattr(dask, "_MOST", 10)
    recorded = clusters.Recorded(clusters.client())
    assert (
        clusters.executor(recorded, {"a": 3, "b": 2}).run([Task(abs, (1,), SPAN)] * 60)
        == [1] * 60
    )
    assert recorded.most == 10


def test_an_error_cancels_what_is_under_way() -> None:
    recorded = clusters.Recorded(clusters.client())
    tasks: list[Task[Any]] = [
        Task(int, ("no number",), SPAN),
        *([Task(abs, (-1,), SPAN)] * 20),
    ]

    with pytest.raises(ValueError, match="no number"):
        clusters.executor(recorded).run(tasks)

    assert len(recorded.cancelled) == 20


def test_an_interrupt_cancels_what_is_under_way(tmp_path: Path) -> None:
    """The tasks wait for a file; only once they are cancelled it is there."""
    recorded = clusters.Recorded(clusters.client())

    def progress(nbytes: int) -> None:
        raise KeyboardInterrupt

    tasks: list[Task[Any]] = [Task(abs, (-1,), SPAN), *([Task(abs, (-1,), SPAN)] * 30)]
    with pytest.raises(KeyboardInterrupt):
        clusters.executor(recorded).run(tasks, progress)
    assert len(recorded.cancelled) == 30


def test_a_lost_worker_loses_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is killed in the middle of a task, which another one then does."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join((str(ROOT), str(Path(processes.__file__).parent)))
    )
    killed: list[int] = []

    def kill() -> None:
        limit = time.monotonic() + TIMEOUT
        while not (begun := list(tmp_path.iterdir())) and time.monotonic() < limit:
            time.sleep(0.01)
        killed.append(int(begun[0].name))
        os.kill(killed[0], signal.SIGKILL)

    with clusters.processes(2) as client:
        thread = threading.Thread(target=kill)
        thread.start()
        tasks: list[Task[Any]] = [Task(processes.pid_then_wait, (str(tmp_path),), SPAN)]
        tasks += [Task(abs, (-number,), SPAN) for number in range(10)]
        first, *rest = clusters.executor(client).run(tasks)
        thread.join()

    assert rest == list(range(10))
    assert (
        killed
        and first != killed[0]
        and {path.name for path in tmp_path.iterdir()}
        == {
            str(killed[0]),
            str(first),
        }
    )


# --- stopped --------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the tests, and the waits of a watch are short: its clock decides."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join((str(ROOT), str(Path(processes.__file__).parent)))
    )
    monkeypatch.setattr(watch, "INTERVAL", 0.05)


def test_a_stopped_worker_is_named_and_loses_its_tasks(
    tmp_path: Path, quick: None
) -> None:
    """It is stopped in the middle of a task, while results of others wait in its
    memory.
    """
    told: list[str] = []
    stopped: list[str] = []
    with clusters.processes(2) as client:
        pids = {pid: name for name, pid in client.run(os.getpid).items()}

        def stop() -> None:
            limit = time.monotonic() + TIMEOUT
            while not (begun := list(tmp_path.iterdir())) and time.monotonic() < limit:
                time.sleep(0.01)
            pid = int(begun[0].name)
            stopped.append(pids[pid])
            os.kill(pid, signal.SIGSTOP)

        def alive() -> str | None:
            return next(
                (name for name in pids.values() if stopped and name not in stopped),
                None,
            )

        thread = threading.Thread(target=stop)
        thread.start()
        tasks: list[Task[Any]] = [Task(abs, (-number,), SPAN) for number in range(10)]
        tasks += [Task(processes.pid_then_wait, (str(tmp_path),), SPAN)]
        *rest, last = Dask(
            client, Watch(client, told.append, clusters.Beats(client, alive))
        ).run(tasks)
        thread.join()

    assert rest == list(range(10)) and pids.get(last) not in stopped
    assert told == [
        f"ckpt: worker {stopped[0]} does not answer (10 s); its tasks go to others"
    ]


def test_a_busy_worker_is_not_named(tmp_path: Path, quick: None) -> None:
    """It multiplies matrices while another one sends twenty heartbeats."""
    told: list[str] = []
    with clusters.processes(2) as client:
        pids = {pid: name for name, pid in client.run(os.getpid).items()}

        def idle() -> str | None:
            begun = [
                int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()
            ]
            return next(
                (name for pid, name in pids.items() if begun and pid not in begun), None
            )

        beats = clusters.Beats(client, idle)

        def clock() -> float:
            if beats() >= 40:
                (tmp_path / "enough").touch()
            return beats()

        task: Task[Any] = Task(
            processes.multiply_until, (str(tmp_path), "enough"), SPAN
        )
        (pid,) = Dask(client, Watch(client, told.append, clock)).run([task])

    assert pid in pids and told == []


class Failing:
    """A future, and a client whose futures are such."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def result(self) -> Outcome:
        raise self._error

    def map(self, function: Any, data: Any, **options: Any) -> Any:
        assert options["retries"] == 2
        return [self] * len(data)

    def gather(self, futures: Any) -> Any:
        raise self._error

    def cancel(self, futures: Any, *, force: bool) -> None:
        raise OSError("as one that is gone")


class KilledWorker(Exception):
    """As that of distributed is called."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CancelledError(), "the connection to the scheduler is lost"),
        (KilledWorker(), "a task lost its worker too often (was it out of memory?)"),
        (
            ModuleNotFoundError("no", name="ckpt.bytes"),
            "a worker has no ckpt, or another version",
        ),
    ],
)
def test_what_fails_in_the_cluster_is_one_line(error: BaseException, said: str) -> None:
    with pytest.raises(CkptError) as caught:
        clusters.executor(Failing(error)).run([Task(abs, (1,))])
    assert str(caught.value) == said


class Closed:
    """A client that has closed itself, because its scheduler was gone for long."""

    scheduler = None

    def map(self, function: Any, data: Any, **options: Any) -> Any:
        raise RuntimeError("the client is closed")

    cancel = map

    def sync(self, function: Any) -> Any:
        return function()


def test_a_client_that_closed_itself_is_one_line() -> None:
    for _ in "ab":
        with pytest.raises(CkptError, match="the connection to the scheduler is lost"):
            clusters.executor(Closed()).run([Task(abs, (1,))])


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("no", name="numpy"), ZeroDivisionError()]
)
def test_bugs_stay_bugs(error: Exception) -> None:
    with pytest.raises(type(error)):
        clusters.executor(Failing(error)).run([Task(abs, (1,))])
