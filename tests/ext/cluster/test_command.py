"""`--cluster`: what is written is the same byte for byte, whoever does the work; what
fails is one line.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import clusters
import pytest
from process import SAMPLES, TIMEOUT, Done, alone, await_end, ckpt, environment, python
from webs import served

from ckpt import __version__

pytestmark = pytest.mark.slow

RUNS = (
    ("stats", "llama_bf16.pth"),
    ("stats", "llama_bf16.pth", "dtypes.pth", "sharded", "nope.pth", "--all", "--json"),
    ("stats", "train_cuda.pth", "--channels", "--tsv"),
    ("diff", "ddp_before.pth", "ddp_after.pth"),
    ("diff", "ddp_before.pth", "ddp_after.pth", "--stat", "--json"),
    ("diff", "legacy.pth", "legacy_python2.pth", "--close"),
    ("verify", "llama_bf16.pth", "dcp", "truncated.pth"),
    ("verify", "train_cuda.pth", "scripted.pt", "--json"),
    ("sum", "whole_model.pth"),
    ("sum", "zoo.pkl", "lightning.ckpt", "--all"),
)


@pytest.fixture
def where() -> str:
    return clusters.address()


def apart(done: Done) -> tuple[int, bytes, list[str]]:
    """A run without what it says of its cluster."""
    return (
        done.code,
        done.out,
        [line for line in done.complaints if " workers at " not in line],
    )


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_the_answer_is_the_same_byte_for_byte(
    words: tuple[str, ...], where: str
) -> None:
    begun = clusters.steps()
    here, there = (
        ckpt(*words, cwd=SAMPLES),
        ckpt(*words, "--cluster", where, cwd=SAMPLES),
    )

    assert clusters.steps() > begun, "workers did it"
    assert f"ckpt: 2 workers at {where}" in there.complaints
    assert apart(there) == apart(here) and (here.out or here.code == 2)


def test_stored_sums_are_checked_there(where: str, tmp_path: Path) -> None:
    (tmp_path / "sums").write_bytes(ckpt("sum", "llama_bf16.pth", cwd=SAMPLES).out)
    words = ("verify", "llama_bf16.pth", "--sums", str(tmp_path / "sums"))
    begun = clusters.steps()

    assert apart(ckpt(*words, "--cluster", where, cwd=SAMPLES)) == apart(
        ckpt(*words, cwd=SAMPLES)
    )
    assert clusters.steps() > begun


def test_a_url_is_read_by_the_workers(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with served() as web:
        url = web.put("/few.pth", (SAMPLES / "llama_bf16.pth").read_bytes())
        alone_ = ckpt("stats", url, "--json", no_proxy="127.0.0.1")
        web.asked.clear()
        found = ckpt("stats", url, "--json", "--cluster", where, no_proxy="127.0.0.1")
    assert found.code == 0 and found.out == alone_.out
    assert len(web.asked) < 6


def test_processes_of_this_machine(tmp_path: Path) -> None:
    """The whole of it, in a Python of its own: it starts them, and ends them."""
    done = alone(
        "stats", "llama_bf16.pth", "--json", "--cluster", "local:2", cwd=SAMPLES
    )

    assert done == Done(
        0,
        ckpt("stats", "llama_bf16.pth", "--json", cwd=SAMPLES).out,
        b"ckpt: 2 workers at local:2\n",
    )


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    path = clusters.hole(tmp_path)
    yield path
    path.unlink()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "ckpt: interrupted"),
        (signal.SIGTERM, 143, "ckpt: terminated"),
    ],
)
def test_a_signal_ends_all_processes(
    number: int, code: int, said: str, large: Path
) -> None:
    """Ctrl-C reaches the workers too, which say nothing and end with the command."""
    child = subprocess.Popen(
        [sys.executable, "-m", "ckpt", "stats", str(large), "--cluster", "local:2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    assert child.stderr is not None
    assert child.stderr.readline() == b"ckpt: 2 workers at local:2\n"
    send = os.killpg if number == signal.SIGINT else os.kill
    send(child.pid, number)
    _, said_last = child.communicate(timeout=TIMEOUT)

    assert (child.returncode, said_last.decode()) == (code, f"{said}\n")
    await_end(child.pid)


# --- refusals -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("os.unlink('a.pth')", "no such file on worker "),
        (
            "os.utime('a.pth', (1, 1))",
            "another file on worker HOST: its modification time differs",
        ),
        ("os.truncate('a.pth', 1)", "another file on worker HOST: its size differs"),
        (
            "shutil.copy2('a.pth', 'b'), os.replace('b', 'a.pth')",
            "another file on worker HOST: its inode differs",
        ),
    ],
)
def test_a_worker_that_sees_another_file_is_named(
    change: str, said: str, tmp_path: Path, where: str
) -> None:
    """The file changes after it was opened, before the first task is sent."""
    code = (
        "import os, shutil, sys\n"
        "from ckpt.ext.cluster.connect import Dask\n"
        "run = Dask.run\n"
        f"Dask.run = lambda *rest: [{change}] and run(*rest)\n"
        "from ckpt.__main__ import main\n"
        "main()"
    )
    (tmp_path / "a.pth").write_bytes((SAMPLES / "llama_bf16.pth").read_bytes())
    done = python("-c", code, "stats", "a.pth", "--cluster", where, cwd=tmp_path)

    assert done.code == 2 and done.out == b""
    assert done.complaints[1].startswith(
        f"ckpt: {tmp_path}/a.pth: {said.replace('HOST', socket.gethostname())}"
    )
    assert (
        done.complaints[1].endswith("(all workers must see the same files)")
        and len(done.complaints) == 2
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "import ckpt; ckpt.__version__ = '9.9'",
            f"has ckpt 9.9, this is {__version__}",
        ),
        (
            "import platform; platform.python_version = lambda: '3.99.1'",
            "has Python 3.99, this is ",
        ),
        ("import sys; sys.modules['ckpt'] = None", "has no ckpt"),
    ],
)
def test_a_worker_of_another_version_is_named(
    change: str, said: str, tmp_path: Path
) -> None:
    """A process of its own, in which a version is another one."""
    (tmp_path / "change.py").write_text(change)
    with clusters.worker("--preload", str(tmp_path / "change.py")) as cluster:
        done = ckpt(
            "stats",
            "llama_bf16.pth",
            "--cluster",
            cluster.scheduler_address,
            cwd=SAMPLES,
        )
        (name,) = cluster.scheduler.workers

    assert (done.code, done.out) == (2, b"")
    (line,) = done.complaints
    assert line.startswith(f"ckpt: worker {name} {said}"), line
    assert line.endswith("(install the same version there)")


# --- what ends in the middle ----------------------------------------------------------


def test_an_interrupt_leaves_no_task_on_the_scheduler(large: Path) -> None:
    """The cluster is of others and goes on. A running task cannot be stopped, but
    nobody waits for its result.
    """
    with clusters.worker("--nthreads", "1") as cluster:
        tasks, workers = cluster.scheduler.tasks, list(cluster.scheduler.workers)
        child = started("stats", str(large), "--cluster", cluster.scheduler_address)
        await_that(
            lambda: any(task.state == "processing" for task in list(tasks.values()))
        )
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=TIMEOUT)

        assert child.returncode == 130
        assert said.decode().splitlines()[1:] == ["ckpt: interrupted"]
        await_that(
            lambda: (
                not tasks and not cluster.scheduler.clients.keys() - {"fire-and-forget"}
            )
        )
        assert list(cluster.scheduler.workers) == workers


def started(*words: str, code: str = "") -> subprocess.Popen[bytes]:
    """The process of `ckpt WORDS`, which runs some code before."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{code}\nfrom ckpt.__main__ import main\nmain()",
            *words,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def await_that(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.01)


SHORT = "from ckpt.ext.cluster import watch; watch._ABSENCE = 3; watch._PATIENCE = "


@pytest.mark.parametrize(
    ("whom", "number", "patience", "said"),
    [
        ("scheduler", signal.SIGKILL, 30, "the connection to the scheduler is lost"),
        ("scheduler", signal.SIGSTOP, 1, "the scheduler does not answer (1 s)"),
        (
            "worker",
            signal.SIGKILL,
            30,
            "no worker is left (3 s) (start workers, then the command)",
        ),
    ],
)
def test_a_cluster_that_ends_or_stops_in_the_middle_is_one_line_for_each_path(
    whom: str,
    number: signal.Signals,
    patience: int,
    said: str,
    large: Path,
    tmp_path: Path,
) -> None:
    """Whatever waits has a limit."""
    with apart_from_us(tmp_path) as (where, members):
        child = begun(
            str(large), str(large), "--cluster", where, code=f"{SHORT}{patience}"
        )
        members[whom].send_signal(number)
        _, complaints = child.communicate(timeout=TIMEOUT)

    assert child.returncode == 2
    assert complaints.decode().splitlines() == [
        *([f"ckpt: {large}: {said}"] * 2),
        "2 files: 0 measured, 2 unreadable",
    ]


def test_an_interrupt_needs_no_answer_of_the_scheduler(
    large: Path, tmp_path: Path
) -> None:
    with apart_from_us(tmp_path) as (where, members):
        child = begun(str(large), "--cluster", where)
        members["scheduler"].send_signal(signal.SIGSTOP)
        child.send_signal(signal.SIGINT)
        _, complaints = child.communicate(timeout=TIMEOUT)

    assert (child.returncode, complaints) == (130, b"ckpt: interrupted\n")


@contextmanager
def apart_from_us(
    folder: Path,
) -> Iterator[tuple[str, dict[str, subprocess.Popen[bytes]]]]:
    """A scheduler and a worker, each a process: the address, and both by name."""
    file = folder / "scheduler.json"
    words = (
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--scheduler-file",
        str(file),
    )
    with clusters.dask(*words) as scheduler:
        await_that(lambda: file.exists() and file.read_text().endswith("}"))
        where = json.loads(file.read_text())["address"]
        with clusters.dask("worker", where, "--no-nanny") as worker:
            yield where, {"scheduler": scheduler, "worker": worker}


def begun(*words: str, code: str = "") -> subprocess.Popen[bytes]:
    """The process of `ckpt stats WORDS`, which has connected."""
    child = started("stats", *words, code=code)
    assert child.stderr is not None
    while b" at tcp://" not in (line := child.stderr.readline()):
        assert line
    return child


@pytest.mark.parametrize("command", ["stats", "diff", "verify", "sum"])
def test_no_cluster(command: str) -> None:
    paths = ("llama_bf16.pth",) * (2 if command == "diff" else 1)

    done = ckpt(command, *paths, "--cluster", "tcp://127.0.0.1:1", cwd=SAMPLES)
    assert (done.code, done.out) == (2, b"")
    assert done.complaints == ["ckpt: tcp://127.0.0.1:1: no scheduler listens there"]

    done = ckpt(command, *paths, "--cluster", "somewhere", cwd=SAMPLES)
    assert (done.code, done.out) == (2, b"")
    assert done.complaints == [
        "ckpt: --cluster somewhere: not a cluster (tcp://HOST:PORT, or local[:N])"
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stats", "a.pth", "-j", "2"), "--cluster and --jobs exclude each other"),
        (("sum", "a.pth", "-j", "2"), "--cluster and --jobs exclude each other"),
        (("verify", "a.pth", "-j", "2"), "--cluster and --jobs exclude each other"),
        (
            ("diff", "a.pth", "b.pth", "--quick"),
            "--quick and --cluster exclude each other",
        ),
        (
            ("stats", "https://me:word@host/a.pth"),
            "https://host/a.pth: --cluster: the user or the query of a URL is not sent "
            "to workers (credentials come from the environment of the workers)",
        ),
    ],
)
def test_what_does_not_go_together(words: tuple[str, ...], said: str) -> None:
    done = ckpt(*words, "--cluster", "local:1", no_proxy="127.0.0.1")

    assert (done.code, done.complaints) == (2, [f"ckpt: {said}"])
