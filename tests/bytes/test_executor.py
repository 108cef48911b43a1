"""Whatever is an Executor does what the protocol says, and figures are the same whoever
does the work.

A further one joins the table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import processes
import pytest
import rewriting
import torch
from hypothesis import given
from hypothesis import strategies as st
from process import ROOT, TIMEOUT, environment, python

from ckpt import formats
from ckpt.bytes import executor as executors
from ckpt.bytes.executor import (
    Executor,
    Failed,
    Forks,
    Local,
    Serial,
    Task,
    Threads,
    count_cpus,
    count_threads,
    run_bundled,
    run_each,
    split_spans,
)
from ckpt.commands.diff.diff import Options, diff
from ckpt.commands.stats.stats import stats
from ckpt.commands.sum.sums import sums
from ckpt.evidence.survey import Survey
from ckpt.formats.verify import checksums
from ckpt.model.errors import (
    CutOffError,
    LimitError,
    NotOpenedError,
    UnreadableError,
    UsageError,
)
from ckpt.model.limits import Limits

pytestmark = oracle.QUIET

EXECUTORS: dict[str, Callable[[ProcessPoolExecutor], Executor]] = {
    "Serial": lambda pool: Serial(),
    "Threads(1)": lambda pool: Threads(1),
    "Threads(2)": lambda pool: Threads(2),
    "Threads(8)": lambda pool: Threads(8),
    "Threads()": lambda pool: Threads(),
    "Local()": lambda pool: Local(),
    "Forks(1)": lambda pool: Forks(1),
    "Forks(2)": lambda pool: Forks(2),
    "Forks(7)": lambda pool: Forks(7),
    "Processes": lambda pool: processes.Processes(pool),
    "Dask": lambda pool: dask_executor(),
}


def dask_executor() -> Executor:
    import clusters

    return clusters.executor(clusters.client())


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes that share nothing with this one."""
    with processes.pool(2) as made:
        yield made


EVERY_DAY = ("Serial", "Threads(2)", "Forks(2)")


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name in EVERY_DAY else pytest.mark.slow)
        for name in EXECUTORS
    ]
)
def executor(request: pytest.FixtureRequest, pool: ProcessPoolExecutor) -> Executor:
    return EXECUTORS[request.param](pool)


# --- all of them ----------------------------------------------------------------------


def test_results_come_in_the_order_of_the_tasks(executor: Executor) -> None:
    tasks = [Task(round, (number + 0.25, 1)) for number in range(40)]

    assert executor.run(tasks) == [round(number + 0.25, 1) for number in range(40)]


def test_the_first_task_may_be_the_slowest(executor: Executor) -> None:
    tasks = [
        Task(time.sleep, (0.3,)),
        *(Task(abs, (-number,)) for number in range(1, 10)),
    ]

    assert executor.run(tasks) == [None, *range(1, 10)]


@pytest.mark.parametrize("kind", [Forks, Threads])
def test_tasks_that_run_at_once_share_the_processors(
    kind: Callable[[int], Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.bytes.executor.count_cpus", lambda: 8)
    tasks = [Task(count_threads, ()) for _ in range(12)]

    assert kind(4).run(tasks) == [2] * 12
    assert kind(8).run(tasks) == [1] * 12
    assert kind(4).run(tasks[:2]) == [4] * 2
    assert kind(4).run(tasks[:1]) == [8]
    assert count_threads() == 8


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_tasks(count: int, executor: Executor) -> None:
    seen: list[int] = []

    assert executor.run([Task(abs, (-7,), 5)] * count, seen.append) == [7] * count
    assert seen == [5] * count


def test_progress_is_told_each_task_from_one_thread(executor: Executor) -> None:
    seen: list[int] = []
    told_by: set[int] = set()

    def progress(nbytes: int) -> None:
        seen.append(nbytes)
        told_by.add(threading.get_ident())

    executor.run([Task(abs, (number,), 10 * number) for number in range(30)], progress)

    assert seen == [10 * number for number in range(30)] and told_by == {
        threading.get_ident()
    }


def test_the_first_error_in_the_order_of_the_tasks_is_raised(
    executor: Executor,
) -> None:
    """Also where a later task fails sooner."""
    seen: list[int] = []
    tasks: list[Task[Any]] = [
        Task(abs, (-1,), 1),
        Task(processes.fail_slowly, ("first",), 2),
        Task(int, ("second",), 4),
        Task(abs, (-1,), 8),
        Task(int, ("third",), 16),
    ]

    with pytest.raises(LookupError, match="first"):
        executor.run(tasks, seen.append)
    assert seen == [1]


def test_an_executor_can_be_used_again_after_an_error(executor: Executor) -> None:
    with pytest.raises(ValueError):
        executor.run([Task(int, ("x",)), Task(int, ("1",))])
    assert executor.run([Task(int, ("1",)), Task(int, ("2",))]) == [1, 2]


def test_no_task_is_begun_long_after_one_failed() -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if not number:
            raise LookupError
        time.sleep(0.05)

    with pytest.raises(LookupError):
        Threads(2).run([Task(work, (number,)) for number in range(100)])
    assert len(begun) < 50


def test_forks_give_each_result_when_it_is_there(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    tasks = [
        Task(abs, (-1,)),
        Task(abs, (-2,)),
        Task(processes.wait_for, (str(flag),)),
        Task(abs, (-4,)),
    ]

    results = Forks(2).each(tasks)

    assert [next(results), next(results)] == [1, 2]
    flag.touch()
    assert list(results) == ["there", 4]


def test_a_fork_that_is_done_takes_the_next_task(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    tasks = [
        Task(processes.wait_for, (str(flag),)),
        *[Task(abs, (-1,))] * 5,
        Task(flag.touch, ()),
    ]

    assert Forks(2).run(tasks) == ["there", *[1] * 5, None]


def test_forks_run_many_more_tasks_than_a_pipe_has_room_for() -> None:
    assert Forks(2).run([Task(abs, (-number,)) for number in range(20_000)]) == list(
        range(20_000)
    )


@pytest.mark.parametrize("most", [0, 1, 2])
def test_fewer_processes_do_where_there_may_be_no_more(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, forked = os.fork, []

    def fork() -> int:
        if len(forked) == most:
            raise BlockingIOError("Resource temporarily unavailable")
        forked.append(1)
        return real()

    monkeypatch.setattr(os, "fork", fork)
    open_before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0

    made = Forks(3).run([Task(os.getpid, ())] * 9)

    assert (
        len(made) == 9
        and len({*made}) <= max(1, most)
        and (os.getpid() in made) == (most == 0)
    )
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == open_before


ALONE = """
import os, sys, threading
from ckpt.bytes import executor, far
thread = threading.Thread(target=threading.Event().wait, daemon=True)
if sys.argv[1] == "thread":
    thread.start()
far.Used.sources = sys.argv[1] == "far"
nbytes = executor._FORKED // 2 - (sys.argv[1] == "little")
made = executor.Local(2).run([executor.Task(os.getpid, (), nbytes)] * 2)
print(os.getpid() in made)
"""


@pytest.mark.parametrize(
    ("how", "is_here"),
    [
        pytest.param(
            "much",
            False,
            marks=pytest.mark.skipif(
                sys.platform != "linux", reason="only Linux tells of all threads"
            ),
        ),
        ("little", True),
        ("thread", True),
        pytest.param("far", True, marks=pytest.mark.needs("remote")),
    ],
)
def test_much_work_is_done_by_copies_of_a_process_without_threads(
    how: str, is_here: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, how],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )

    assert done.stdout == f"{is_here}\n"


COMMAND = """
import os, sys
from ckpt.bytes import executor
executor._FORKED = int(sys.argv.pop(1))
real = os.fork
def fork():
    pid = real()
    if pid:
        print("forked", file=sys.stderr)
    return pid
os.fork = fork
from ckpt.surface.cli.app import main
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of all threads")
@pytest.mark.parametrize(
    "words",
    [
        "diff a.pth b.pth --json",
        "stats b.pth --json",
        "sum b.pth",
        "verify b.pth --json",
    ],
)
def test_a_command_that_forks_says_the_same(words: str, tmp_path: Path) -> None:
    state = {f"layers.{number}.weight": torch.rand(1_100_000) for number in range(3)}
    torch.save(state, tmp_path / "a.pth")
    torch.save(
        {name: tensor * 1.01 for name, tensor in state.items()}, tmp_path / "b.pth"
    )
    with_threads, with_forks = (
        subprocess.run(
            [sys.executable, "-c", COMMAND, str(least), *words.split()],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            timeout=TIMEOUT,
        )
        for least in (1 << 40, 0)
    )

    assert with_threads.stderr == b""
    assert set(with_forks.stderr.split()) == (
        {b"forked"} if count_cpus() > 1 else set()
    )
    assert (with_threads.returncode, with_threads.stdout) == (
        with_forks.returncode,
        with_forks.stdout,
    )
    assert with_threads.stdout


MANY = """
import os, sys, threading
import ckpt
forked = []
real = os.fork
def fork():
    pid = real()
    if pid:
        forked.append(pid)
    return pid
os.fork = fork
if sys.argv[2] == "thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
rows = getattr(ckpt, sys.argv[1])(["."], jobs=2)
print(len(forked), len(rows.files if sys.argv[1] == "lint" else rows))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
@pytest.mark.parametrize("command", ["ls", "lint"])
@pytest.mark.parametrize(("how", "forks"), [("alone", 2), ("thread", 0)])
def test_many_files_are_read_by_copies_of_a_process_without_threads(
    command: str, how: str, forks: int, tmp_path: Path
) -> None:
    """A lock that another thread holds would stay locked in the copies."""
    for number in range(20):
        torch.save({"a": torch.ones(2)}, tmp_path / f"{number}.pth")

    done = subprocess.run(
        [sys.executable, "-c", MANY, command, how],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )

    assert done.stdout == f"{forks} 20\n"


def test_forks_send_what_is_larger_than_a_pipe() -> None:
    assert Forks(2).run([Task(bytes, (number << 20,)) for number in range(5)]) == [
        bytes(n << 20) for n in range(5)
    ]


def test_a_fork_that_is_killed_is_an_error() -> None:
    tasks = [Task(abs, (-1,)), Task(processes.die, ()), Task(abs, (-1,))]

    with pytest.raises(MemoryError, match="killed"):
        Forks(2).run(tasks)


def test_a_result_that_does_not_pickle_is_an_error() -> None:
    with pytest.raises(MemoryError, match="pickle"):
        Forks(2).run([Task(threading.Lock, ()), Task(abs, (-1,))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "files"), [("pid_then_bytes", 3), ("pid_then_nothing", 6)]
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_forks_end_with_the_process_that_made_them(
    number: int, what: str, files: int, tmp_path: Path
) -> None:
    """Those that wait until their result is read, and those that wait for the next
    task.
    """
    code = (
        "import processes, sys; from ckpt.bytes.executor import Forks, Task\n"
        "tasks = [Task(getattr(processes, sys.argv[2]), (sys.argv[1], n)) for n in "
        "range(6)]\n"
        "for result in Forks(3).each(tasks): input()"
    )
    path = f"{ROOT}{os.pathsep}{Path(__file__).parents[1] / 'lib'}"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), what],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
    )
    try:
        until(lambda: len(list(tmp_path.iterdir())) == files)
        child.send_signal(number)
        child.wait(TIMEOUT)
        until(
            lambda: (
                not any(
                    Path("/proc", file.stem).exists() for file in tmp_path.iterdir()
                )
            )
        )
    finally:
        child.kill()
        child.communicate()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    limit = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


# --- how work is cut ------------------------------------------------------------------


@given(
    st.integers(0, 5000),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 300),
    st.sampled_from([1, 64, 999]),
)
def test_spans_hold_every_element_once(
    numel: int, size: int, step: int, span: int
) -> None:
    with mock.patch.object(executors, "SPAN", span):
        found = split_spans(numel, size, step)

    assert [at for first, last in found for at in range(first, last)] == list(
        range(numel)
    )
    assert all(first % step == 0 for first, _ in found)
    assert all(last % step == 0 for _, last in found[:-1])
    assert all((last - first) * size <= max(span, step * size) for first, last in found)
    assert found and (numel == 0 or all(last > first for first, last in found))


def test_a_tensor_of_many_gigabytes_is_many_tasks() -> None:
    found = split_spans(10**10, 4, 1 << 17)

    assert len(found) == -(-(10**10) // (1 << 24)) and found[0] == (0, 1 << 24)


# --- the law: figures are the same whoever does the work ------------------------------

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
NUMEL = 203
"""Elements of a tensor: with small blocks dozens of tasks, the last of them not
full.
"""


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def made(dtype: torch.dtype, seed: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        parts = torch.randn(NUMEL, 2, generator=chance, dtype=torch.float64)
        return torch.view_as_complex(parts).to(dtype)
    return (torch.randn(NUMEL, generator=chance, dtype=torch.float64) * 7).to(dtype)


def states() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Two states of one model: tensors that are equal, changed in places, changed all
    over; odd numbers, dead channels.
    """
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}
    for number, dtype in enumerate(DTYPES):
        values = made(dtype, number)
        partly = values.clone()
        for at in (NUMEL - 1, 100):
            partly[at] = made(dtype, 99)[at - 1]
        for kind, other in (
            ("same", values),
            ("partly", partly),
            ("fully", made(dtype, number + 50)),
        ):
            before[f"{name_of(dtype)}_{kind}.bias"] = values.clone()
            after[f"{name_of(dtype)}_{kind}.bias"] = other.clone()
    odd = made(torch.float32, 7)
    odd[[3, 80, 81, 202]] = torch.tensor(
        [float("nan"), float("inf"), -float("inf"), float("nan")]
    )
    before["odd.bias"] = odd
    after["odd.bias"] = odd.clone()
    after["odd.bias"][[3, 5, 80]] = torch.tensor([1.0, float("nan"), 2.0])
    before["zeros.bias"] = torch.zeros(NUMEL)
    after["zeros.bias"] = -torch.zeros(NUMEL)
    before["empty.bias"] = after["empty.bias"] = torch.zeros(0)
    before["scalar"] = after["scalar"] = torch.tensor(3.5)
    conv = torch.randn(12, 5, 3, 3, generator=torch.Generator().manual_seed(1))
    conv[[0, 7, 11]] = 0
    before["conv.weight"], after["conv.weight"] = conv, conv * 1.5
    before["deconv.weight"] = after["deconv.weight"] = conv.clone()
    before["deconv.bias"] = after["deconv.bias"] = torch.ones(5)
    before["fc.weight"] = after["fc.weight"] = conv.reshape(12, 45).double()
    before["last.weight"] = conv.to(memory_format=torch.channels_last)
    after["last.weight"] = (conv + 1).to(memory_format=torch.channels_last)
    before["strided.weight"], after["strided.weight"] = (
        conv.reshape(12, 45)[:, ::2],
        conv.reshape(12, 45)[:, ::2],
    )
    before["conj.bias"] = made(torch.complex64, 3).conj()
    after["conj.bias"] = made(torch.complex64, 4).conj()
    before["sparse.weight"] = after["sparse.weight"] = torch.eye(40).to_sparse()
    return before, after


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both states, as a zip and as the format before it."""
    folder = tmp_path_factory.mktemp("states")
    before, after = states()
    return [
        rewriting.saved(before, folder / "before.pt"),
        rewriting.saved(after, folder / "after.pt"),
    ]


def reports(files: list[Path], executor: Executor) -> dict[str, str]:
    """What every job that has tasks says: floats as text tell every bit."""
    one, two = (str(path) for path in files)
    found = {}
    with formats.open(one) as before, formats.open(two) as after:
        for name, options in {
            "diff": Options(),
            "diff --stat": Options(norms=True),
            "diff --close": Options(tolerance=lambda dtype: (1e-5, 1e-3)),
        }.items():
            report = diff(
                Survey(before), Survey(after), options._replace(executor=executor)
            )
            found[name] = json.dumps(report.to_json()) + repr(
                [(row.name, row.change) for row in report.rows]
            )
        for path, checkpoint in (("before", before), ("after", after)):
            numbers = stats(
                Survey(checkpoint), threshold=1e-3, everything=True, executor=executor
            )
            found[f"stats {path}"] = json.dumps(numbers.to_json()) + repr(
                [
                    (row.label, vars(row.found) if row.found else None)
                    for row in numbers.rows
                ]
            )
            found[f"sums {path}"] = repr(
                sums(Survey(checkpoint), everything=True, executor=executor)
            )
    found["verify"] = repr(checksums(one, Limits(), executor=executor))
    return found


@cache
def serial(files: tuple[Path, ...], size: str) -> dict[str, str]:
    """The reports of one task after the other, with blocks of the size that is set."""
    return reports(list(files), Serial())


class Counting(Serial):
    """Counts the tasks, and says how many bytes each reads."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, tasks: Any, progress: Any = None) -> Any:
        self.sizes += [task.nbytes for task in tasks]
        return super().run(tasks, progress)


def test_small_neighbours_are_handed_over_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ckpt.bytes.executor.SPAN", 1600)
    sizes = [60, 40, 1, 99, 500, 0, 0, 30, *[0] * 300]
    tasks = [Task(divmod, (number, 7), size) for number, size in enumerate(sizes)]
    counting, seen = Counting(), list[int]()

    assert run_bundled(counting, tasks, seen.append) == [
        divmod(number, 7) for number in range(len(sizes))
    ]

    assert counting.sizes == seen == [100, 100, 500, 30, 0]
    assert run_bundled(counting, []) == []


def test_the_first_error_of_a_bundle_is_raised() -> None:
    tasks = [Task(divmod, (1, 1)), Task(int, ("first",)), Task(int, ("second",))]
    with pytest.raises(ValueError, match="first"):
        run_bundled(Threads(2), tasks)


def test_a_tensor_is_many_tasks_where_spans_are_small(
    small_blocks: None, files: list[Path]
) -> None:
    counting = Counting()
    with formats.open(str(files[0])) as checkpoint:
        stats(Survey(checkpoint), everything=True, executor=counting)

    assert len(counting.sizes) > 300
    whole = [size for size in counting.sizes if size > 16 * 16]
    assert len(whole) == 2, "what lies in strides is read as a whole"


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "shipped"])
def test_reports_are_the_same_bit_for_bit(
    size: str, executor: Executor, files: list[Path], request: pytest.FixtureRequest
) -> None:
    if size == "small":
        request.getfixturevalue("small_blocks")

    found = reports(files, executor)

    for job, text in serial(tuple(files), size).items():
        assert found[job] == text, job


@pytest.mark.slow
def test_progress_is_told_all_bytes_that_are_read(
    small_blocks: None, executor: Executor, files: list[Path]
) -> None:
    with formats.open(str(files[0])) as one, formats.open(str(files[1])) as two:
        seen: list[int] = []
        found = stats(
            Survey(one), everything=True, executor=executor, progress=seen.append
        )
        assert (
            sum(seen)
            == sum(
                row.entry.tensor.nbytes
                for row in found.rows
                if row.entry.name != "sparse.weight"
            )
            + 40 * 4
        )
        seen.clear()
        diff(Survey(one), Survey(two), Options(executor=executor, progress=seen.append))
        assert sum(seen) == sum(
            entry.tensor.nbytes for side in (one, two) for entry in side.tensors
        )
        seen.clear()
        sums(Survey(one), everything=True, executor=executor, progress=seen.append)
        assert sum(seen) == sum(entry.tensor.nbytes for entry in one.tensors)


@pytest.mark.parametrize("span", [16, 192, 1000, 1 << 26])
@pytest.mark.parametrize("elements", [7, 16, 1 << 17])
def test_statistics_agree_with_torch(
    span: int, elements: int, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.bytes.executor.SPAN", span)
    monkeypatch.setattr("ckpt.elements.spans.ELEMENTS", elements)
    before, _ = states()

    with formats.open(str(files[0])) as checkpoint:
        report = stats(Survey(checkpoint), threshold=1e-3, everything=True)

    seen = 0
    for row in report.rows:
        tensor = before[row.label]
        values = (tensor.to_dense() if tensor.is_sparse else tensor).flatten()
        if tensor.is_sparse:
            values = values[values != 0]
        wide = values.abs().double() if values.is_complex() else values.double()
        finite = wide[wide.isfinite()]
        assert row.found is not None, row.label
        assert row.found.numel == len(wide) and row.found.finite == len(finite)
        assert row.found.nan == int(wide.isnan().sum()) and row.found.inf == int(
            wide.isinf().sum()
        )
        assert row.found.zeros == int((wide == 0).sum())
        if not len(finite):
            assert row.mean is None
            continue
        seen += 1
        close = 1e-12 if not values.is_complex() else 1e-6
        assert row.found.low == pytest.approx(finite.min().item(), rel=close)
        assert row.found.high == pytest.approx(finite.max().item(), rel=close)
        is_wide = values.dtype in (
            torch.float64,
            torch.int64,
            torch.int32,
            torch.complex128,
        )
        sums = max(close, 1e-10 if is_wide else 1e-6)  # float32 adds what it holds
        deviation = finite.std(correction=0).item()
        assert row.mean == pytest.approx(
            finite.mean().item(), rel=sums / 1e4, abs=max(sums * deviation, 1e-12)
        )
        assert row.rms == pytest.approx(finite.square().mean().sqrt().item(), rel=sums)
        if len(finite) > 1:
            assert row.std == pytest.approx(finite.std().item(), rel=sums)
    assert seen == len(before) - 1, "all but the empty one"


@pytest.mark.slow
@pytest.mark.parametrize("elements", [7, 16, 64, 1 << 17])
def test_dead_channels_are_found_however_work_is_cut(
    elements: int,
    executor: Executor,
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spans end in the middle of a channel: 45 elements here, 9 there."""
    monkeypatch.setattr("ckpt.bytes.executor.SPAN", 4 * elements)
    monkeypatch.setattr("ckpt.elements.spans.ELEMENTS", elements)

    with formats.open(str(files[0])) as checkpoint:
        report = stats(
            Survey(checkpoint), threshold=1e-3, everything=True, executor=executor
        )

    dead = {
        row.label: row.channels.dead for row in report.rows if row.channels is not None
    }
    for name in ("conv.weight", "fc.weight", "last.weight", "strided.weight"):
        assert dead[name] == (0, 7, 11), name
    assert dead["deconv.weight"] == (), "along its second dimension none is dead"


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "shipped"])
def test_what_a_file_loses_meanwhile_is_named_and_the_rest_is_told(
    size: str,
    executor: Executor,
    files: list[Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """A process that opens the file again sees that it is another one, and reads
    nothing of it.
    """
    if size == "small":
        request.getfixturevalue("small_blocks")
    path = tmp_path / "a.pt"
    data = files[0].read_bytes()
    path.write_bytes(data)
    with formats.open(str(path)) as checkpoint:
        survey = Survey(checkpoint)
        whole = sums(survey, everything=True), stats(survey, everything=True)
        path.write_bytes(data[: len(data) // 2])
        if type(executor).__name__ in ("Processes", "Dask"):
            with pytest.raises(NotOpenedError):
                stats(survey, everything=True, executor=executor)
            return
        left = (
            sums(survey, everything=True, executor=executor),
            stats(survey, everything=True, executor=executor),
        )
    assert {row.unread for row in left[0]} == {
        None,
        "the file changed while it was read",
    }
    assert all(
        new == old
        for old, new in zip(whole[0], left[0], strict=True)
        if new.unread is None
    )
    gone = {row.label for row in left[1].unread}
    assert gone == {
        row.name
        for row in left[0]
        if row.unread is not None and "empty" not in row.name
    }
    assert {row.why for row in left[1].unread} == {
        "unreadable: the file changed while it was read"
    }
    for old, new in zip(whole[1].rows, left[1].rows, strict=True):
        assert new.unread or (old.found and vars(old.found)) == (
            new.found and vars(new.found)
        ), new.label


class Flaky:
    """What fails some times before it works, as a server does."""

    def __init__(self, times: int, error: type[Exception]) -> None:
        self.calls, self._times, self._error = 0, times, error

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._times:
            raise self._error("no answer")
        return 7


def test_a_task_whose_source_fails_is_tried_three_times() -> None:
    twice, often, damaged = (
        Flaky(2, NotOpenedError),
        Flaky(9, NotOpenedError),
        Flaky(1, CutOffError),
    )
    tasks = [Task(each, ()) for each in (twice, often, damaged)]

    assert run_each(Serial(), tasks) == [7, Failed("no answer"), Failed("no answer")]
    assert [each.calls for each in (twice, often, damaged)] == [3, 3, 1], (
        "what is damaged stays damaged"
    )


def test_a_task_that_fails_takes_no_neighbour_with_it(executor: Executor) -> None:
    lost = UnreadableError("broken")
    tasks: list[Task[Any]] = [
        Task(abs, (-1,)),
        Task(processes.fail, (lost,)),
        Task(abs, (-2,)),
    ]

    assert run_each(executor, tasks) == [1, Failed("broken"), 2]
    with pytest.raises(UsageError):
        run_each(executor, [*tasks, Task(processes.fail, (UsageError("no"),))])


def test_errors_keep_what_they_say_on_their_way_between_processes(
    pool: ProcessPoolExecutor,
) -> None:
    for error in (
        UnreadableError("broken", path="a.pt", hint="look"),
        CutOffError("cut off", path="a.pt"),
        UsageError("no"),
        LimitError("a header of 5 bytes", "header-bytes", 4),
    ):
        with pytest.raises(type(error)) as caught:
            processes.Processes(pool).run([Task(processes.fail, (error,))] * 2)
        assert (str(caught.value), caught.value.path, caught.value.hint) == (
            str(error),
            error.path,
            error.hint,
        )


def test_an_interrupt_does_not_wait_for_tasks() -> None:
    """A task may read a tensor of 40 GB; whoever presses Ctrl-C does not wait
    for it.
    """
    from threading import Event

    begun, release, ended = Event(), Event(), Event()

    def interrupted() -> None:
        assert begun.wait(10)
        raise KeyboardInterrupt

    def long() -> None:
        begun.set()
        release.wait(10)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        Threads(2).run([Task(interrupted, ()), Task(long, ())])
    assert not ended.is_set()
    release.set()


KILLED = """
import os, processes, signal, sys
with processes.pool(2) as pool:
    pids = list(pool.map(processes.pid_then_wait, [sys.argv[1]] * 2))
    pool.submit(processes.wait_for, os.path.join(sys.argv[1], "never"))
    print(*set(pids), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_processes_of_a_killed_run_end_too(tmp_path: Path) -> None:
    """One of them waits for work, the other one for a file that never comes. Each holds
    stdout open until it ends.
    """
    env = environment() | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "lib")])
    }
    done = python("-c", KILLED, tmp_path, env=env)

    assert done.code == -signal.SIGKILL, done
    assert (
        set(done.out.decode().split()) == set(os.listdir(tmp_path))
        and len(os.listdir(tmp_path)) == 2
    )
