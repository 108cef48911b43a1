"""Tasks on the workers of a Dask cluster. `docs/cluster.md` shows how an adapter for
another engine looks.
"""

from __future__ import annotations

import logging
import platform
import re
import signal
import socket
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from importlib import import_module, metadata
from itertools import islice
from multiprocessing import resource_tracker
from pkgutil import resolve_name
from typing import Protocol, TypeVar, cast

from ckpt.bytes.executor import Executor, R, Task, count_cpus
from ckpt.bytes.far import is_url
from ckpt.ext.cluster.parcel import (
    Outcome,
    Sender,
    packed,
    parcels_of,
    perform,
    sender,
    version_difference,
)
from ckpt.ext.cluster.watch import FAREWELL, Watch, Watched, begun, last_words
from ckpt.ext.remote.url import has_secret
from ckpt.model.errors import CkptError, UsageError
from ckpt.model.text import counted_noun, show

TRIES = 3
"""The most starts of a task whose worker fails. A task that ckpt refuses is not tried
again.
"""
_LEAST, _MOST = 64, 1024
"""The fewest and the most parcels that the cluster has at a time, so that memory does
not follow their number.
"""
_EACH = 4
"""Parcels for each thread of the workers."""
_TOGETHER = 16
"""The most results that are fetched at once."""


class Future(Protocol):
    """The part of a `distributed.Future` that ckpt uses."""

    def result(self) -> Outcome: ...


class Client(Watched, Protocol):
    """The part of a `distributed.Client` that runs tasks."""

    def map(
        self, function: object, *columns: Sequence[object], **options: object
    ) -> list[Future]: ...

    def gather(self, futures: Sequence[Future]) -> Sequence[Outcome]: ...

    def cancel(self, futures: Sequence[Future], *, force: bool) -> None: ...


class Dask:
    """An Executor that runs tasks on a Dask cluster. Neighbours of up to 64 MiB go to a
    worker together.

    A worker that stops loses its tasks to others. Raises CkptError when the connection
    is lost, the scheduler stops, no worker is left, or a task loses its worker TRIES
    times.
    """

    def __init__(self, client: Client, watch: Watch) -> None:
        self._client = client
        self._watch = watch
        self._sender = sender()

    def run(
        self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None
    ) -> list[R]:
        results: list[R] = []
        sent: deque[tuple[Future, Sequence[Task[R]]]] = deque()
        parcels = parcels_of(tasks)
        try:
            while True:
                self._send_parcels(parcels, sent)
                if not sent:
                    return results
                # Results come in the order of the tasks, whichever worker is first.
                first = [future for future, _ in islice(sent, _TOGETHER)]
                for batch, error in self._gather_outcomes(first):
                    for task, result in zip(sent.popleft()[1], batch, strict=False):
                        results.append(result)  # type: ignore[arg-type]  # what came over the wire has no type
                        if progress is not None:
                            progress(task.nbytes)
                    # The results before the error were taken, and counted as progress.
                    if error is not None:
                        raise error
        except BaseException:  # an interrupt too: the cluster must not go on
            futures = [future for future, _ in sent]
            last_words(lambda: self._client.cancel(futures, force=True))
            raise

    def _gather_outcomes(self, futures: Sequence[Future]) -> Iterator[Outcome]:
        """Yield the outcomes of the workers, in order.

        To ask for all at once costs half as much as one by one, but of several errors
        any is raised. Then they are asked for one by one.
        """
        try:
            outcomes = self._watch.call(lambda: self._client.gather(futures))
        # A lost cluster is no error of one task.
        except CkptError:
            raise
        except Exception:
            for future in futures:
                yield self._watch.call(partial(_task_outcome, future))
        else:
            yield from outcomes

    def _send_parcels(
        self,
        parcels: Iterator[Sequence[Task[R]]],
        sent: deque[tuple[Future, Sequence[Task[R]]]],
    ) -> None:
        """Send the next parcels, many at once, which costs the scheduler a third of one
        call for each.
        """
        most = _LEAST
        # The number of workers may have changed; it is asked for only when it matters.
        if len(sent) > _LEAST // 2:
            most = min(max(_LEAST, _EACH * sum(self._watch.threads.values())), _MOST)
        # New parcels are sent when half of those that were sent are done.
        if len(sent) > most // 2:
            return
        batch = list(islice(parcels, most - len(sent)))
        if batch:
            data = [packed(parcel) for parcel in batch]
            # Not `pure`: two parcels with equal bytes are two tasks.
            options = {"key": "ckpt", "pure": False, "retries": TRIES - 1}
            try:
                futures = self._watch.call(
                    lambda: self._client.map(perform, data, by=self._sender, **options)
                )
            except Exception:  # of a client that has closed itself
                self._watch.look()
                raise
            sent.extend(zip(futures, batch, strict=True))


def _task_outcome(future: Future) -> Outcome:
    """Return the outcome of a task. Raises CkptError when the cluster failed."""
    try:
        return future.result()
    except ModuleNotFoundError as error:
        # Any other module is missing on the worker alone, which is a fault of its own.
        if (error.name or "").partition(".")[0] != "ckpt":
            raise
        raise CkptError("a worker has no ckpt, or another version") from None
    except Exception as error:
        # The class is known by its name, as distributed is not imported here.
        if type(error).__name__ != "KilledWorker":
            raise
        raise CkptError(
            "a task lost its worker too often", hint="was it out of memory?"
        ) from None


EXTRA = "pip install 'torch-ckpt[dask]'"
_FORMS = "tcp://HOST:PORT, or local[:N]"
_ADDRESS = re.compile(
    # An address in brackets is IPv6.
    r"(?:tcp|tls)://(?P<host>[^/@?#\[\]]+|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})"
)
_LOCAL = re.compile(r"local(?::([1-9][0-9]{0,2}))?")
_PATIENCE = 8
"""Seconds until a scheduler that does not answer counts as unreachable."""
_END = 60
"""Seconds that the processes of this machine have to end."""


class _Client(Client, Protocol):
    """The rest of a `distributed.Client` that ckpt uses."""

    dashboard_link: str

    def run(self, *question: object, on_error: str) -> dict[str, object]: ...

    def run_on_scheduler(self, function: object, *arguments: object) -> object: ...

    def wait_for_workers(self, count: int) -> None: ...

    def close(self) -> None: ...


class _Local(Protocol):
    """The part of a `distributed.LocalCluster` that ckpt uses."""

    def close(self) -> None: ...


_Opened = TypeVar("_Opened", _Client, _Local)


class _Distributed(Protocol):
    """The part of the module distributed that ckpt uses."""

    def Client(  # noqa: N802
        self, address: object, *, timeout: int, set_as_default: bool
    ) -> _Client: ...

    def LocalCluster(self, **options: object) -> _Local: ...  # noqa: N802


@contextmanager
def connected(
    where: str, names: Iterable[str], tell: Callable[[str], None]
) -> Iterator[Executor]:
    """An executor for `tcp://HOST:PORT` or `local[:N]`, and the PATHs that it works on.
    `tell` gets lines for people.

    Raises UsageError for another text and for a URL with a secret, CkptError without
    distributed, when no scheduler answers within 10 seconds, or when a worker has
    another version of ckpt or of Python.
    """
    local = _LOCAL.fullmatch(where)
    address = _ADDRESS.fullmatch(where)
    if local is None and (address is None or int(address["port"]) > 65535):
        raise UsageError(f"--cluster {show(where, 80)}: not a cluster", hint=_FORMS)
    # A secret in a URL would be in the parcel, and in the pages of the scheduler.
    for name in filter(is_url, names):
        if has_secret(name):
            problem = "--cluster: the user or the query of a URL is not sent to workers"
            raise UsageError(
                problem,
                path=name,
                hint="credentials come from the environment of the workers",
            )
    module = _import_distributed()
    if address is not None:
        # A quick test of the port first: Dask's client takes long to give up.
        _refuse_silence(address["host"].strip("[]"), int(address["port"]), where)
        with _closing_at_end(_connect_client(module, where, where)) as client:
            yield _ready_executor(client, where, tell)
    elif local is not None:
        count = int(local[1]) if local[1] else min(8, count_cpus())
        with (
            # Closed in this order: the client before its cluster.
            _closing_at_end(_start_cluster(module, count), _END) as cluster,
            _closing_at_end(_connect_client(module, cluster, where)) as client,
        ):
            client.wait_for_workers(count)
            yield _ready_executor(client, where, tell)


def _import_distributed() -> _Distributed:
    try:
        module = import_module("distributed")
    except ImportError:
        raise CkptError("--cluster needs Dask", hint=EXTRA) from None
    for name in logging.root.manager.loggerDict:
        if name.startswith(("distributed", "tornado", "asyncio")):
            # A failure is said in one line, by us.
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Warnings of distributed are for its own users, such as about its ports.
    warnings.filterwarnings("ignore", module="distributed")
    return cast("_Distributed", module)


@contextmanager
def _closing_at_end(opened: _Opened, seconds: float = FAREWELL) -> Iterator[_Opened]:
    """Whatever ends the work, what was opened is closed. A cluster that is gone already
    is no error.
    """
    try:
        yield opened
    finally:
        last_words(opened.close, seconds)


def _refuse_silence(host: str, port: int, where: str) -> None:
    """Raise CkptError where nobody listens: a client of Dask would try again until its
    time is over.
    """
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except socket.gaierror:
        raise CkptError(f"{where}: no such host") from None
    except ConnectionRefusedError:
        raise CkptError(f"{where}: no scheduler listens there") from None
    except OSError:
        raise CkptError(f"{where}: the scheduler does not answer") from None


def _connect_client(module: _Distributed, address: object, where: str) -> _Client:
    """A client, made in a thread: it waits for a server that says nothing
    without end.
    """
    # Not the default client of this process, which may have one of its own.
    pending = begun(
        lambda: module.Client(address, timeout=_PATIENCE, set_as_default=False)
    )
    reason = ""
    if wait((pending,), _PATIENCE + 1).done:
        try:
            return pending.result()
        except Exception as error:
            reason = f" ({type(error).__name__})"
    raise CkptError(f"{where}: no Dask scheduler answers there{reason}")


def _start_cluster(module: _Distributed, count: int) -> _Local:
    """Processes of this machine that take tasks. Only this machine reaches them."""
    # Ctrl-C reaches all processes of a terminal. Workers inherit what is blocked here,
    # so that only this one answers.
    resource_tracker.ensure_running()  # which would unblock it again
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return module.LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=logging.CRITICAL + 1,
        )
    except Exception as error:
        raise CkptError(
            f"the local cluster does not start ({type(error).__name__})"
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _ready_executor(
    client: _Client, where: str, tell: Callable[[str], None]
) -> Executor:
    """The executor, once there is a worker and all have our versions. Raises
    CkptError.
    """
    watch = Watch(client, tell)
    # The first look finds the workers, for which no call has asked yet.
    watch.look()
    if not watch.threads:
        tell(f"ckpt: {where} has no workers yet; waiting for the first")
        watch.wait()
    ours = sender()
    # A worker without ckpt cannot run a function of ckpt: Python's own ask it.
    versions = _ask_workers(client, watch, resolve_name, "ckpt:__version__")
    pythons = _ask_workers(client, watch, platform.python_version)
    for name, version in versions.items():
        if isinstance(version, ImportError):
            raise CkptError(
                f"worker {name} has no ckpt", hint="install the same version there"
            )
        python = pythons.get(name)
        # Else it is lost, and others do its work.
        if isinstance(version, str) and isinstance(python, str):
            problem = version_difference(
                Sender(version, python.rpartition(".")[0], name), ours
            )
            if problem is not None:
                raise CkptError(
                    f"worker {name} {problem}", hint="install the same version there"
                )
    link = watch.call(lambda: _dashboard_text(client))
    # Workers may have come meanwhile.
    watch.look()
    tell(f"ckpt: {counted_noun(len(watch.threads), 'worker')} at {where}{link}")
    return Dask(client, watch)


def _ask_workers(client: _Client, watch: Watch, *question: object) -> dict[str, object]:
    """The answers of all workers, or the errors in their place. Where all are lost, it
    is asked again.
    """
    while True:
        answers = watch.call(lambda: client.run(*question, on_error="return"))
        # Workers that all stopped while they were asked have no answers: others may
        # start.
        if not all(isinstance(answer, OSError) for answer in answers.values()):
            return answers
        watch.call(watch.pause)


def _dashboard_text(client: _Client) -> str:
    """The words about the dashboard of the scheduler, if it shows one. Without bokeh
    its page is empty.
    """
    try:
        shown = (
            client.run_on_scheduler(metadata.version, "bokeh") and client.dashboard_link
        )
    except Exception:
        shown = None
    return f", dashboard {shown}" if shown else ""
