"""Connecting: what is no cluster is one line, and soon; other versions are named before
any task.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import clusters
import pytest

from ckpt.bytes.executor import SPAN, Task
from ckpt.ext.cluster import connect, watch
from ckpt.ext.cluster.connect import connected
from ckpt.ext.cluster.parcel import sender
from ckpt.model.errors import CkptError, UsageError


def refusal(where: str, names: list[str] | None = None) -> CkptError:
    with pytest.raises(CkptError) as caught, connected(where, names or [], print):
        pass
    return caught.value


@pytest.mark.parametrize(
    "where",
    [
        "",
        "local:0",
        "local:",
        "local:1000",
        "local:two",
        "host:8786",
        "tcp://",
        "tcp://host",
        "tcp://host:x",
        "tcp://host:99999",
        "http://host:80",
        "tcp://me:word@host:1",
        "tcp://host:1/x",
        "LOCAL",
        "local:2\n",
    ],
)
def test_what_is_no_cluster(where: str) -> None:
    error = refusal(where)

    assert isinstance(error, UsageError) and "not a cluster" in str(error)
    assert "tcp://HOST:PORT, or local[:N]" in str(error)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(connect, "import_module", missing)

    assert (
        str(refusal("local:1"))
        == "cluster= needs Dask (pip install 'torch-ckpt[dask]')"
    )


def test_secrets_of_urls_are_not_sent() -> None:
    from ckpt.ext.remote.url import shown

    plain, signed = shown("https://host/a.pth"), shown("https://host/b.pth?sig=abc")
    error = refusal("tcp://127.0.0.1:1", [plain, "a.pth", signed])

    assert isinstance(error, UsageError) and error.path == "https://host/b.pth"
    assert "is not sent to workers" in str(error) and "abc" not in str(error)


# --- nobody is there ------------------------------------------------------------------


@contextmanager
def listening(answer: bytes) -> Iterator[int]:
    """The port of a server that says something to whoever connects, and no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    caller, _ = server.accept()
                    callers.append(caller)
                    caller.sendall(answer)
            except OSError:
                pass

        callers: list[socket.socket] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for caller in callers:
                caller.close()


def test_no_scheduler_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert (
        str(refusal(f"tcp://127.0.0.1:{port}"))
        == f"tcp://127.0.0.1:{port}: no scheduler listens there"
    )


@pytest.mark.parametrize("error", [socket.gaierror(), TimeoutError(), OSError()])
def test_unreachable_schedulers(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def failing(address: Any, timeout: float) -> None:
        waits.append(timeout)
        raise error

    monkeypatch.setattr(socket, "create_connection", failing)
    said = (
        "no such host"
        if isinstance(error, socket.gaierror)
        else "the scheduler does not answer"
    )
    assert str(refusal("tcp://host:8786")) == f"tcp://host:8786: {said}"
    assert waits == [8] and connect._PATIENCE + 1 < 10


def test_a_server_that_is_no_scheduler() -> None:
    with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9) as port:
        assert "no Dask scheduler answers there" in str(
            refusal(f"tcp://127.0.0.1:{port}")
        )


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of Dask would wait for it without end."""
    from concurrent.futures import Future

    class Module:
        @staticmethod
        def Client(*arguments: Any, **options: Any) -> Any:
            return never.result()

    never: Future[Any] = Future()
    monkeypatch.setattr(connect, "_PATIENCE", -0.9)
    with pytest.raises(CkptError, match=r"no Dask scheduler answers there$"):
        connect._connect_client(Module(), "tcp://host:1", "tcp://host:1")  # type: ignore[arg-type]
    never.set_exception(OSError("so that the thread ends"))


# --- somebody is there ----------------------------------------------------------------


def test_a_cluster_is_used_and_left_as_it_was() -> None:
    told: list[str] = []
    where = clusters.address()
    for _ in range(2):
        with connected(where, [], told.append) as executor:
            assert executor.run([Task(abs, (-1,))]) == [1]

    assert told == [f"ckpt: 2 workers at {where}"] * 2, (
        "without bokeh there is no dashboard"
    )


@pytest.mark.parametrize(
    ("bokeh", "link", "words"),
    [
        ("3.1", "http://host:8787/status", ", dashboard http://host:8787/status"),
        ("3.1", "", ""),
        (LookupError("no bokeh"), "http://host:8787/status", ""),
    ],
)
def test_the_dashboard_is_named_where_there_is_one(
    bokeh: Any, link: str, words: str
) -> None:
    ours = sender()
    client: Any = Quiet(
        [{"tcp://a:1": ours.version}, {"tcp://a:1": f"{ours.python}.1"}],
        [1],
        bokeh,
        link,
    )
    told: list[str] = []

    connect._ready_executor(client, "tcp://host:1", told.append)

    assert told == [f"ckpt: 1 worker at tcp://host:1{words}"]


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), [("version", "9.9"), ("python", "2.7")])
def test_other_versions_are_named(
    field: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = sender()._replace(**{field: value})
    monkeypatch.setattr(connect, "sender", lambda: ours)

    error = refusal(clusters.address())

    assert error.problem.startswith(
        "worker tcp://127.0.0.1:"
    ) and error.problem.endswith(f"this is {value}")
    assert error.hint == "install the same version there"


class Quiet:
    """A client whose workers say what a test wants: the answers to each question, and
    their number at each look.
    """

    def __init__(
        self,
        answers: list[dict[str, object]],
        workers: list[int],
        bokeh: object = None,
        dashboard_link: str = "",
    ) -> None:
        self._answers = answers
        self._workers = workers
        self._bokeh = bokeh
        self.dashboard_link = dashboard_link
        self.scheduler = self

    def sync(self, function: Any) -> Any:
        async def done() -> Any:
            return await function()

        return asyncio.run(done())

    async def identity(self) -> Any:
        count = self._workers.pop(0) if len(self._workers) > 1 else self._workers[0]
        return {
            "workers": {
                str(each): {"last_seen": 0.5, "nthreads": 1} for each in range(count)
            }
        }

    def run(self, *question: Any, on_error: str) -> dict[str, object]:
        assert on_error == "return"
        return self._answers.pop(0)

    def run_on_scheduler(self, function: Any, *arguments: Any) -> object:
        if isinstance(self._bokeh, Exception):
            raise self._bokeh
        return self._bokeh


def test_a_worker_without_ckpt_is_named() -> None:
    client: Any = Quiet(
        [{"tcp://a:1": ModuleNotFoundError("ckpt")}, {"tcp://a:1": "3.11.2"}], [1]
    )
    with pytest.raises(CkptError, match="worker tcp://a:1 has no ckpt"):
        connect._ready_executor(client, "tcp://host:1", print)


def test_a_worker_that_is_lost_meanwhile_is_no_error_and_the_first_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "INTERVAL", 0)
    told: list[str] = []
    ours = sender()
    versions: dict[str, object] = {
        "tcp://a:1": OSError("gone"),
        "tcp://b:1": ours.version,
    }
    pythons: dict[str, object] = {"tcp://b:1": f"{ours.python}.99"}
    client: Any = Quiet([versions, pythons], [0, 0, 1])
    connect._ready_executor(client, "tcp://host:1", told.append)
    assert told == [
        "ckpt: tcp://host:1 has no workers yet; waiting for the first",
        "ckpt: 1 worker at tcp://host:1",
    ]


def test_a_cluster_that_loses_all_workers_before_they_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as one whose only worker was stopped, and is started anew by its nanny. No
    version stays unknown.
    """
    monkeypatch.setattr(watch, "INTERVAL", 0)
    gone: dict[str, object] = {"tcp://a:1": OSError("gone")}
    client: Any = Quiet(
        [gone, {}, {"tcp://b:1": "9.9"}, gone, {"tcp://b:1": sender().python + ".1"}],
        [1],
    )

    with pytest.raises(CkptError, match=r"worker tcp://b:1 has ckpt 9\.9"):
        connect._ready_executor(client, "tcp://host:1", print)


@pytest.mark.slow
def test_a_worker_that_is_stopped_holds_up_no_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not answer the question for its version: it is named, and the other
    works.
    """
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    told: list[str] = []
    with clusters.processes(2) as client:
        stopped, alive = sorted(client.run(os.getpid).items())
        os.kill(stopped[1], signal.SIGSTOP)
        clock = clusters.Beats(client, lambda: alive[0])
        monkeypatch.setattr(
            connect, "Watch", lambda *arguments: watch.Watch(*arguments, clock)
        )
        where = client.scheduler.address
        with connected(where, [], told.append) as executor:
            assert executor.run(
                [Task(abs, (-number,), SPAN) for number in range(9)]
            ) == list(range(9))

    assert (
        told[0]
        == f"ckpt: worker {stopped[0]} does not answer (10 s); its tasks go to others"
    )
    assert told[1] in {f"ckpt: 1 worker at {where}", f"ckpt: 2 workers at {where}"}, (
        "its nanny starts another"
    )


def test_a_cluster_that_does_not_start_is_one_line() -> None:
    class Module:
        @staticmethod
        def LocalCluster(**options: Any) -> Any:
            assert options["host"] == "127.0.0.1" and options[
                "dashboard_address"
            ].startswith("127.0.0.1")
            raise RuntimeError("no more processes")

    with pytest.raises(CkptError, match="the local cluster does not start"):
        connect._start_cluster(Module(), 2)  # type: ignore[arg-type]
