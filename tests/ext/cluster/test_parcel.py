"""What goes to a worker: addresses and identities, no data and no secret; a worker that
sees other files says so.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from webs import Web, served

from ckpt import formats
from ckpt.bytes.executor import Executor, Serial, Task
from ckpt.bytes.source import File, Memory, open_address
from ckpt.commands.diff.diff import Options, diff
from ckpt.commands.stats.stats import stats
from ckpt.commands.sum.sums import sums
from ckpt.elements.measure import measure_tasks
from ckpt.evidence.survey import Survey
from ckpt.ext.cluster import parcel
from ckpt.ext.cluster.parcel import Outcome, packed, perform, sender
from ckpt.formats.verify import checksums
from ckpt.model.errors import (
    CkptError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
)
from ckpt.model.limits import Limits


def read(source: Any, count: int) -> bytes:
    return bytes(source.read(0, count))


def test_a_source_comes_back_open(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"weights")

    found = perform(
        packed([Task(read, (File(str(path)), 3)), Task(read, (Memory(b"nested"), 2))]),
        sender(),
    )

    assert found == Outcome([b"wei", b"ne"])


def test_what_is_no_plain_data_is_refused() -> None:
    for thing in (lambda: None, threading.Lock()):
        with pytest.raises(UnsupportedError, match="cannot be sent to workers"):
            packed([Task(id, (thing,))])


def test_a_relative_path_is_sent_as_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    data = packed([Task(read, (File("a"), 3))])
    monkeypatch.chdir("/")

    assert perform(data, sender()).results == [b"wei"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda path: path.unlink(), "no such file on worker HOST"),
        (lambda path: path.write_bytes(b"longer than before"), "its size differs"),
        (lambda path: os.utime(path, (1, 1)), "its modification time differs"),
    ],
)
def test_a_worker_with_another_file_is_named(
    change: Callable[[Path], Any],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"weights")
    data = packed([Task(read, (File(str(path)), 3))])
    change(path)
    monkeypatch.setattr("socket.gethostname", lambda: "HOST")

    results, error = perform(data, sender())

    assert results == () and isinstance(error, NotOpenedError)
    assert (
        problem in error.problem and "HOST" in error.problem and error.path == str(path)
    )


def test_copies_of_a_file_are_the_same_on_other_machines_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inodes are numbers of one machine. On the same one another inode is
    another file.
    """
    path, copy = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"weights")
    data = packed([Task(read, (File(str(path)), 3))])
    copy.write_bytes(b"WEIGHTS")
    os.utime(copy, ns=(0, path.stat().st_mtime_ns))
    copy.rename(path)

    assert "its inode differs" in str(perform(data, sender()).error)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert perform(data, sender()).results == [b"WEI"]


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [("version", "9.9", "has ckpt "), ("python", "2.7", "has Python ")],
)
def test_a_worker_of_another_version_runs_nothing(
    field: str, value: str, problem: str
) -> None:
    results, error = perform(
        packed([Task(abs, (-1,))]), sender()._replace(**{field: value})
    )

    assert results == () and isinstance(error, CkptError)
    assert problem in error.problem and error.problem.endswith(f"this is {value}")


def test_results_before_an_error_are_kept() -> None:
    tasks: list[Task[Any]] = [Task(abs, (-1,)), Task(int, ("x",)), Task(abs, (-2,))]

    results, error = perform(packed(tasks), sender())

    assert results == [1] and isinstance(error, ValueError)


def test_without_memory_another_worker_tries() -> None:
    with pytest.raises(MemoryError):
        perform(packed([Task(fail, (MemoryError(),))]), sender())


def fail(error: Exception) -> None:
    raise error


# --- secrets --------------------------------------------------------------------------


class Sent(Serial):
    """Keeps what a cluster would be sent, and runs what comes out of it."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def run(self, tasks: Any, progress: Any = None) -> Any:
        self.data += [packed([task]) for task in tasks]
        return super().run(tasks, progress)


def reports(path: str, executor: Executor) -> list[str]:
    """What the jobs with tasks say."""
    with formats.open(path) as one, formats.open(path) as two:
        return [
            str(stats(Survey(one), everything=True, executor=executor).to_json()),
            repr(sums(Survey(one), everything=True, executor=executor)),
            str(
                diff(
                    Survey(one), Survey(two), Options(norms=True, executor=executor)
                ).to_json()
            ),
            repr(checksums(path, Limits(), executor=executor)),
        ]


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with served() as made:
        yield made


def test_no_secret_is_in_a_task(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of the environment nor of a URL, and no byte of a tensor."""
    secret = "s3cr3tT0ken"
    for name in (
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "HF_TOKEN",
        "AZURE_STORAGE_ACCOUNT_KEY",
    ):
        monkeypatch.setenv(name, secret)
    torch.save({"w": torch.full((40,), 7.25)}, tmp_path / "a.pth")
    url = web.put("/a.pth", (tmp_path / "a.pth").read_bytes())
    sent = Sent()

    reports(f"{url.replace('://', f'://me:{secret}@')}?sig={secret}", sent)
    reports(str(tmp_path / "a.pth"), sent)

    assert len(sent.data) > 7
    assert not any(secret.encode() in data or b"sig=" in data for data in sent.data)
    assert not any(
        torch.full((4,), 7.25).numpy().tobytes() in data for data in sent.data
    )
    assert any(url.encode() in data for data in sent.data), "but the address is"


# --- URLs -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth"])
def test_an_object_is_opened_without_a_request(
    name: str, web: Web, tmp_path: Path
) -> None:
    state = {"w": torch.arange(100_000.0)}
    torch.save(state, tmp_path / "a.pth")
    save_file(state, tmp_path / "a.safetensors")
    url = web.put(f"/{name}", (tmp_path / name).read_bytes())
    with formats.open(url) as checkpoint:
        data = packed(measure_tasks(checkpoint.tensors[0].tensor))
    web.asked.clear()

    tasks: list[Task[Any]] = pickle.loads(data)
    assert web.asked == []
    assert tasks[0]().summary.numel == 100_000
    assert 0 < len(web.asked) < 4


def test_an_object_that_changed_is_noticed(web: Web, tmp_path: Path) -> None:
    save_file({"w": torch.arange(100_000.0)}, tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    url = web.put("/a.safetensors", data)
    with formats.open(url) as checkpoint:
        sent = packed(measure_tasks(checkpoint.tensors[0].tensor))
    web.put("/a.safetensors", data[:-1] + b"x")

    assert "changed while it was read" in str(perform(sent, sender()).error)


def test_local_headers_are_checked_where_the_data_is_read(
    web: Web, tmp_path: Path
) -> None:
    """The places of a zip archive are foreseen; a worker compares them with what is
    really there.
    """
    torch.save(
        {"w": torch.arange(300_000.0), "v": torch.zeros(300_000)}, tmp_path / "a.pth"
    )
    data = bytearray((tmp_path / "a.pth").read_bytes())
    mark = data.find(b"data/1", data.find(b"data/0") + 1)
    header = data.rfind(b"PK\3\4", 0, mark)
    url = web.put("/a.pth", bytes(data))
    sent = Sent()
    with formats.open(url) as checkpoint:
        stats(Survey(checkpoint), executor=sent)
    data[header + 28 : header + 30] = (
        b"\0\0"  # no padding: its data would begin earlier
    )
    with formats.open(web.put("/b.pth", bytes(data))) as checkpoint:
        tasks = [
            task for entry in checkpoint.tensors for task in measure_tasks(entry.tensor)
        ]
        found = [perform(packed([task]), sender()) for task in tasks]

    assert [type(each.error) for each in found] == [type(None), UnreadableError]
    assert "does not begin where" in str(found[1].error)


def test_addresses_open_what_they_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert open_address(str(tmp_path / "a")).read(0, 1) == b"x"
    assert parcel.version_difference(sender(), sender()) is None
