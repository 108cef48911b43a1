"""Watching a cluster: a worker without a sign of life is named and replaced, and no
wait is without end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
from process import TIMEOUT

from ckpt.ext.cluster import watch
from ckpt.ext.cluster.watch import Watch, begun, last_words
from ckpt.model.errors import CkptError


class Cluster:
    """A client and its scheduler. Workers beat when a test says so, and time passes
    when a test says so.
    """

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.beats = dict.fromkeys(names, 0)
        self.told: list[str] = []
        self.asked: list[tuple[str, object]] = []
        self.removed = threading.Semaphore(0)
        self.looks = 0
        self.fails: Callable[[], None] = lambda: None
        self.scheduler = self
        self.watch = Watch(self, self.told.append, lambda: self.now)

    def sync(self, function: Callable[[], Awaitable[Any]]) -> Any:
        async def done() -> Any:
            return await function()

        return asyncio.run(done())

    async def identity(self) -> Any:
        self.fails()
        self.looks += 1
        return {
            "workers": {
                name: {"last_seen": 0.5 + beat, "nthreads": 3}
                for name, beat in self.beats.items()
            }
        }

    async def restart_workers(self, **options: Any) -> None:
        assert options["wait_for_workers"] is False and options["on_error"] == "return"
        self.asked.append(("restart", *options["workers"]))
        raise TimeoutError("the nanny is silent too")

    async def unregister(self, **options: Any) -> None:
        self.asked.append(("unregister", options["address"]))
        self.removed.release()

    def pass_by(self, seconds: float, *alive: str) -> None:
        """Let time pass, in which some workers beat, and look."""
        self.now += seconds
        for name in alive:
            self.beats[name] += 1
        self.watch.look()


NAMED = "ckpt: worker b does not answer (10 s); its tasks go to others"


def test_a_silent_worker_is_named_once_and_replaced() -> None:
    cluster = Cluster("a", "b")
    for seconds in (2, 2, 2, 2, 2):  # the first look begins the silence
        cluster.pass_by(seconds, "a")
    assert cluster.told == [] and cluster.watch.threads == {"a": 3, "b": 3}

    cluster.pass_by(2, "a")
    cluster.pass_by(2, "a")

    assert cluster.told == [NAMED] and cluster.watch.threads == {"a": 3}
    assert cluster.removed.acquire(timeout=TIMEOUT)
    assert cluster.asked == [("restart", "b"), ("unregister", "b")]


def test_a_worker_that_came_back_and_stops_again_is_named_again() -> None:
    """Its tasks would wait for it until Dask itself removes it, after 5 minutes."""
    cluster = Cluster("a", "b")
    for round in (1, 2):
        for _ in range(8):
            cluster.pass_by(2, "a")
        assert cluster.told == [NAMED] * round and cluster.watch.threads == {"a": 3}
        assert cluster.removed.acquire(timeout=TIMEOUT)
        cluster.pass_by(2, "a", "b")
        assert cluster.watch.threads == {"a": 3, "b": 3}


def test_a_worker_with_rare_heartbeats_is_not_named() -> None:
    cluster = Cluster("a", "b")
    for number in range(40):
        cluster.pass_by(2, "a", *(["b"] if number % 5 == 0 else []))

    assert cluster.told == [] and cluster.asked == []


def test_a_process_that_stood_still_blames_nobody() -> None:
    """Ctrl-Z, a machine that sleeps, a scheduler that was busy: what was not seen is no
    silence.
    """
    cluster = Cluster("a", "b")
    for _ in range(4):
        cluster.pass_by(1000)
    assert cluster.told == []

    cluster.pass_by(1000, "a")
    assert cluster.told == [NAMED]


@pytest.mark.parametrize(
    ("count", "limit"), [(2, 10), (200, 10), (240, 11), (1000, 30)]
)
def test_many_workers_beat_less_often(count: int, limit: int) -> None:
    """Dask has 1,000 workers send a heartbeat every 6 seconds."""
    others = [f"a{number}" for number in range(count - 1)]
    cluster = Cluster("b", *others)
    cluster.pass_by(2, *others)
    for _ in range((limit - 1) // 2):
        cluster.pass_by(2, *others)
    assert cluster.told == []
    cluster.pass_by(2, *others)
    assert cluster.told == [NAMED.replace("10 s", f"{limit} s")]


def test_no_worker_that_answers_is_an_error_with_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "INTERVAL", 0)
    cluster = Cluster("a", "b")
    never: Future[None] = Future()
    cluster.watch._clock = lambda: cluster.looks * 2.0  # every look takes 2 seconds

    with pytest.raises(CkptError) as caught:
        cluster.watch.call(never.result)

    assert (
        str(caught.value)
        == "no worker is left (30 s) (start workers, then the command)"
    )
    assert cluster.told == [
        f"ckpt: worker {name} does not answer (10 s); no other is left"
        for name in ("a", "b")
    ]
    assert 2 * (cluster.looks - 1) == 10 + 30 - 2, (
        "the first silent look is the first of absence"
    )
    never.set_result(None)


def test_workers_may_come_back() -> None:
    cluster = Cluster()
    for _ in range(10):
        cluster.pass_by(2.9)
    cluster.beats["new"] = 0
    cluster.pass_by(2.9)
    del cluster.beats["new"]
    for _ in range(10):
        cluster.pass_by(2.9)

    assert cluster.watch.call(lambda: 7) == 7
    cluster.pass_by(2.9)
    with pytest.raises(CkptError, match="no worker is left"):
        cluster.watch.call(lambda: 7)


def test_the_first_worker_is_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "INTERVAL", 0)
    cluster = Cluster()

    def come() -> None:
        cluster.now += 100
        if cluster.looks == 50:
            cluster.beats["a"] = 0

    cluster.fails = come
    cluster.watch.wait()

    assert cluster.looks == 51 and cluster.watch.threads == {"a": 3}


def test_a_call_gives_what_its_work_gives() -> None:
    cluster = Cluster("a")
    assert cluster.watch.call(lambda: "result") == "result"
    with pytest.raises(ZeroDivisionError):
        cluster.watch.call(lambda: 1 // 0)
    assert cluster.looks == 0, "what is quick costs no look"


def test_quick_calls_look_too_but_not_each() -> None:
    """A job whose calls all are quick still hears of the worker that holds one of its
    tasks.
    """
    cluster = Cluster("a")
    for _ in range(30):
        cluster.now += 0.5
        cluster.watch.call(lambda: None)
    assert cluster.looks == 7


def test_a_stopped_scheduler_is_an_error_with_a_limit_and_the_next_call_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("a")
    never: Future[None] = Future()
    asked: list[int] = []

    def stop() -> None:
        asked.append(1)
        never.result()

    cluster.fails = stop
    monkeypatch.setattr(watch, "_PATIENCE", 0)
    for _ in range(2):
        cluster.now += 2
        with pytest.raises(CkptError) as caught:
            cluster.watch.call(never.result)
        assert str(caught.value) == "the scheduler does not answer (0 s)"
    never.set_result(None)
    assert len(asked) <= 1


@pytest.mark.parametrize(
    "error", [OSError("closed"), AttributeError("a closed client has no scheduler")]
)
def test_a_lost_scheduler_is_one_line(error: Exception) -> None:
    cluster = Cluster("a")

    def fail() -> None:
        raise error

    cluster.fails = fail
    cluster.now = 2
    with pytest.raises(CkptError, match=r"^the connection to the scheduler is lost$"):
        cluster.watch.call(lambda: None)


def test_calls_after_the_connection_was_lost_do_not_begin() -> None:
    """Dask would keep what is sent until it is connected again, and wait."""
    cluster = Cluster("a")

    def cancelled() -> None:
        raise CancelledError

    for work in (cancelled, lambda: pytest.fail("this was begun")):
        with pytest.raises(
            CkptError, match=r"^the connection to the scheduler is lost$"
        ):
            cluster.watch.call(work)


def test_the_end_waits_for_a_cluster_that_is_gone_but_not_for_long() -> None:
    never: Future[None] = Future()
    last_words(lambda: 1 // 0)
    last_words(never.result, 0)
    said: list[int] = []
    last_words(lambda: said.append(1))
    assert said == [1]
    never.set_result(None)


def test_the_end_of_this_process_waits_for_no_call() -> None:
    threads: list[threading.Thread] = []
    begun(lambda: threads.append(threading.current_thread())).result(TIMEOUT)
    assert threads[0].daemon
