"""`--cluster`: what is written is the same byte for byte, whoever does the work; what fails is one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import clusters
import pytest
from process import SAMPLES, TIMEOUT, Done, alone, ckpt, environment, python
from webs import served

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
    return done.code, done.out, [line for line in done.complaints if " workers at " not in line]


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_the_answer_is_the_same_byte_for_byte(words: tuple[str, ...], where: str) -> None:
    begun = clusters.steps()
    here, there = ckpt(*words, cwd=SAMPLES), ckpt(*words, "--cluster", where, cwd=SAMPLES)

    assert clusters.steps() > begun, "workers did it"
    assert f"ckpt: 2 workers at {where}" in there.complaints
    assert apart(there) == apart(here) and (here.out or here.code == 2)


def test_stored_sums_are_checked_there(where: str, tmp_path: Path) -> None:
    (tmp_path / "sums").write_bytes(ckpt("sum", "llama_bf16.pth", cwd=SAMPLES).out)
    words = ("verify", "llama_bf16.pth", "--sums", str(tmp_path / "sums"))
    begun = clusters.steps()

    assert apart(ckpt(*words, "--cluster", where, cwd=SAMPLES)) == apart(ckpt(*words, cwd=SAMPLES))
    assert clusters.steps() > begun


def test_a_url_is_read_by_the_workers(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    done = alone("stats", "llama_bf16.pth", "--json", "--cluster", "local:2", cwd=SAMPLES)

    assert done == Done(
        0, ckpt("stats", "llama_bf16.pth", "--json", cwd=SAMPLES).out, b"ckpt: 2 workers at local:2\n"
    )


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """One tensor of 200 GB, all of it a hole: hashing it takes minutes."""
    size = 200 * 10**9
    head = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + size)
    yield path
    path.unlink()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "ckpt: interrupted"), (signal.SIGTERM, 143, "ckpt: terminated")],
)
def test_a_signal_ends_all_processes(number: int, code: int, said: str, large: Path) -> None:
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
    limit = time.monotonic() + TIMEOUT
    while running(child.pid):
        assert time.monotonic() < limit
        time.sleep(0.01)


def running(group: int) -> list[str]:
    """The processes of a group that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, of = rest.split()[:3]
        if int(of) == group and state != "Z":
            found.append(name)
    return found


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_worker_without_the_file_is_named(tmp_path: Path, where: str) -> None:
    """The file goes away after it was opened: the command is held between both by a FIFO of names."""
    code = (
        "import os, sys\n"
        "from ckpt.io.cluster import connect\n"
        "ready = connect._ready\n"
        "def gone(*arguments):\n"
        "    from ckpt.io.cluster.connect import Dask\n"
        "    made = ready(*arguments)\n"
        "    run = Dask.run\n"
        "    Dask.run = lambda *rest: os.unlink('a.pth') or run(*rest)\n"
        "    return made\n"
        "connect._ready = gone\n"
        "from ckpt.__main__ import main\n"
        "main()"
    )
    (tmp_path / "a.pth").write_bytes((SAMPLES / "llama_bf16.pth").read_bytes())
    done = python("-c", code, "stats", "a.pth", "--cluster", where, cwd=tmp_path)

    assert done.code == 2 and done.out == b""
    assert done.complaints[1].startswith(f"ckpt: {tmp_path}/a.pth: no such file on worker ")
    assert done.complaints[1].endswith("(all workers must see the same files)") and len(done.complaints) == 2


@pytest.mark.parametrize("command", ["stats", "diff", "verify", "sum"])
def test_no_cluster(command: str) -> None:
    paths = ("llama_bf16.pth",) * (2 if command == "diff" else 1)

    done = ckpt(command, *paths, "--cluster", "tcp://127.0.0.1:1", cwd=SAMPLES)
    assert (done.code, done.out) == (2, b"")
    assert done.complaints == ["ckpt: tcp://127.0.0.1:1: no scheduler listens there"]

    done = ckpt(command, *paths, "--cluster", "somewhere", cwd=SAMPLES)
    assert (done.code, done.out) == (2, b"")
    assert done.complaints == ["ckpt: --cluster somewhere: not a cluster (tcp://HOST:PORT, or local[:N])"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stats", "a.pth", "-j", "2"), "--cluster and --jobs exclude each other"),
        (("sum", "a.pth", "-j", "2"), "--cluster and --jobs exclude each other"),
        (("verify", "a.pth", "-j", "2"), "--cluster and --jobs exclude each other"),
        (("diff", "a.pth", "b.pth", "--quick"), "--quick and --cluster exclude each other"),
        (
            ("stats", "https://me:word@host/a.pth"),
            "https://host/a.pth: --cluster: the user or the query of a URL is not sent to workers"
            " (credentials come from the environment of the workers)",
        ),
    ],
)
def test_what_does_not_go_together(words: tuple[str, ...], said: str) -> None:
    done = ckpt(*words, "--cluster", "local:1", no_proxy="127.0.0.1")

    assert (done.code, done.complaints) == (2, [f"ckpt: {said}"])
