"""The law of tasks: each pickles, gives the same result in another process, and that result is small plain data."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import deepspeeds
import oracle
import paths
import processes
import pytest
from once import once, script
from process import SAMPLES

from ckpt import formats
from ckpt.elements.measure import Measurement
from ckpt.errors import UnsupportedError
from ckpt.evidence.survey import Survey
from ckpt.formats.verify import checksums
from ckpt.io.executor import SPAN, Bundle, Executor, Failed, Serial, Task
from ckpt.io.source import File
from ckpt.jobs.check.stats import stats
from ckpt.jobs.check.sums import sums
from ckpt.jobs.diff.diff import Options, diff
from ckpt.jobs.parts import _EDGE, Known, Mine, Notes, Share, _edges, cut, decoded, encoded, plan_of
from ckpt.limits import Limits

pytestmark = oracle.QUIET
MOST = 1024
"""Bytes of a result in a pickle, without the sums of channels and the bins of a histogram."""

SHAPES = [
    *(
        "train_cuda.pth",
        "legacy.pth",
        "weights.safetensors",
        "scripted.pt",
        "zoo.pkl",
        "agent.zip",
        "sharded",
        "dcp",
    ),
    *("whole_model.pth", "llama_bf16.pth", "tied_and_bloated.pth", "dtypes.pth"),
]
RANKS = [
    *("dcp/fsdp2", "dcp/hsdp", "dcp/grids", "dcp/alone", "ranks/fsdp2", "ranks/fsdp1_of_four", "ranks/hf"),
    *("zero1", "zero2", "zero3"),
]
EVERY_DAY = (
    *(
        "train_cuda.pth",
        "legacy.pth",
        "weights.safetensors",
        "scripted.pt",
        "zoo.pkl",
        "agent.zip",
        "sharded",
    ),
    *("dtypes.pth", "dcp", "ranks/fsdp2", "zero3"),
)
"""One checkpoint of each way in which bytes lie."""


def checkpoint_at(name: str, factory: pytest.TempPathFactory) -> str:
    if name.startswith("zero"):
        stage = int(name[-1])
        return str(once(factory, f"parts_{name}", lambda folder: _zero(folder, stage)))
    if "/" in name:
        group, inner = name.split("/")
        return str(once(factory, group, script(f"train_{group}.py")) / inner)
    return str(SAMPLES / name)


def _zero(folder: Path, stage: int) -> None:
    deepspeeds.write(folder / "it", stage)
    for path in (folder / "it").iterdir():
        path.rename(folder / path.name)


def noted(path: str) -> Iterator[Task[object]]:
    """The tasks of every job over one checkpoint, while its files are open."""
    with formats.open(path) as one, formats.open(path) as two:
        jobs: list[Callable[[Executor], object]] = [
            lambda executor: stats(Survey(one), everything=True, threshold=1e-3, executor=executor),
            lambda executor: stats(Survey(one), everything=True, histogram=True, executor=executor),
            lambda executor: sums(Survey(one), everything=True, executor=executor),
            lambda executor: diff(Survey(one), Survey(two), Options(executor=executor, once=True)),
            lambda executor: diff(
                Survey(one),
                Survey(two),
                Options(executor=executor, once=True, norms=True, histogram=True),
            ),
            lambda executor: checksums(path, Limits(), executor=executor),
        ]
        for job in jobs:
            job(Watching(found := []))
            yield from found


class Watching:
    """Pickles each task while its files are open, and lets it be run from the pickle."""

    def __init__(self, found: list[Task[object]]) -> None:
        self._found = found

    def run(self, tasks, progress=None):  # type: ignore[no-untyped-def]
        results = []
        for task in tasks:
            assert isinstance(task, Bundle), "whatever these jobs run may fail alone"
            self._found += [pickle.loads(pickle.dumps(each)) for each in task.tasks]
            results.append(task())
        return results


def run(pickled: bytes) -> bytes:
    """In another process: the result of a task, pickled, or the name of its error."""
    sizes, task = pickle.loads(pickled)
    paths.set_sizes(sizes)
    try:
        return pickle.dumps(task())
    except UnsupportedError as error:
        return pickle.dumps(error.problem)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with processes.pool(2) as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [name if name in EVERY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in (*SHAPES, *RANKS)],
)
def test_every_task_of_every_job_is_plain_data(
    name: str, tmp_path_factory: pytest.TempPathFactory, pool: ProcessPoolExecutor, small_blocks: None
) -> None:
    path = checkpoint_at(name, tmp_path_factory)
    try:
        tasks = list(noted(path))
    except UnsupportedError:  # what has no sum
        assert name == "dtypes.pth"
        return
    assert tasks
    sent = [pickle.dumps((paths.sizes(), task)) for task in tasks]
    for task, there in zip(tasks, pool.map(run, sent, chunksize=64), strict=True):
        here = task()
        result = pickle.loads(there)
        assert encoded(here) == encoded(result), task.function
        again = decoded(json.loads(json.dumps(encoded(here))), task)
        assert encoded(again) == encoded(here) and type(again) is type(here)
        if not (isinstance(here, Measurement) and here.channels is not None):
            assert len(there) <= MOST, (task.function, len(there))


def test_the_sums_of_channels_are_those_of_the_span() -> None:
    """A span of a weight with many rows has few of them."""
    from ckpt.elements.measure import Channels

    made = Channels(100_000, 10, 500_000)
    made.sums[50_000:50_010] = 1.0
    there = pickle.loads(pickle.dumps(made))
    assert len(pickle.dumps(made)) < 400 and (there.sums == made.sums).all()


def test_a_tensor_of_40_gigabytes_is_many_tasks(tmp_path: Path) -> None:
    """Its file is a hole. SHA-256 alone takes one byte after the other."""
    header = {"big": {"dtype": "F32", "shape": [10**10], "data_offsets": [0, 4 * 10**10]}}
    text = json.dumps(header).encode()
    path = tmp_path / "big.safetensors"
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 4 * 10**10)
    with formats.open(str(path)) as one, formats.open(str(path)) as two:
        for job, count in (
            (lambda executor: stats(Survey(one), executor=executor), 597),
            (lambda executor: diff(Survey(one), Survey(two), Options(executor=executor, once=True)), 597),
            (lambda executor: sums(Survey(one), executor=executor), 1),
        ):
            notes = Notes()
            job(notes)
            assert len(notes.tasks) == count
            assert count == 1 or max(task.nbytes for task in notes.tasks) <= 2 * SPAN


def test_the_cut_has_every_task_once() -> None:
    for sizes in ([], [5], [0] * 7, [1 << 30, 0, 0, 1 << 30], [100] * 1000, [SPAN] * 100, [1 << 40, 1, 1]):
        tasks: list[Task[object]] = [Task(abs, (-1,), size) for size in sizes]
        for of in (1, 2, 3, 7, 1000):
            spans = [cut(tasks, Share(number, of)) for number in range(of)]
            assert [at for first, last in spans for at in range(first, last)] == list(range(len(tasks)))
    even = [cut([Task(abs, (-1,), SPAN)] * 100, Share(number, 4)) for number in range(4)]
    assert even == [(0, 25), (25, 50), (50, 75), (75, 100)]


def test_the_plan_tells_other_tasks_apart() -> None:
    plans = {
        plan_of(tasks)
        for tasks in (
            [],
            [Task(abs, (1,), 5)],
            [Task(abs, (1,), 6)],
            [Task(int, (1,), 5)],
            [Task(abs, (1,), 5)] * 2,
        )
    }
    assert len(plans) == 5 and plan_of([Task(abs, (1,), 5)]) == plan_of([Task(abs, (2,), 5)])


def test_tasks_of_other_formats_are_run_where_they_are() -> None:
    """Their results are not known here, so every part runs them, and so does the merge."""
    own, foreign = Task(digest_like, ("a",)), Task(len, ("abc",))
    for executor in (Notes(), Mine(Serial(), 0, 1), Known(["a" * 64])):
        assert executor.run([Bundle([foreign]), Bundle([own])])[0] == [3]
        assert executor.run([foreign]) == [3]
    mine = Mine(Serial(), 1, 2)
    assert mine.run([Bundle([own, own]), Bundle([foreign]), Bundle([own])]) == [
        [Failed("noted"), "a" * 64],
        [3],
        [Failed("noted")],
    ]
    assert mine.results == ["a" * 64]


def digest_like(text: str) -> str:
    return text * 64


@pytest.mark.parametrize(("at", "is_seen"), [(0, True), (-1, True), (_EDGE, False), (-_EDGE, True)])
def test_a_file_of_other_ends_is_another_input(at: int, is_seen: bool, tmp_path: Path) -> None:
    """Where size and time are the same, only the bytes at its ends tell."""
    data = bytearray(3 * _EDGE)
    digests = []
    for byte in (0, 1):
        data[at] = byte
        (tmp_path / "a.bin").write_bytes(data)
        digests.append(_edges(File(str(tmp_path / "a.bin"))))
    assert all(len(digest) == 64 for digest in digests) and (digests[0] != digests[1]) == is_seen


def test_an_object_is_told_by_its_etag_and_not_read() -> None:
    far = mock.Mock(far="s3", read=mock.Mock(side_effect=AssertionError))
    assert _edges(far) == ""
