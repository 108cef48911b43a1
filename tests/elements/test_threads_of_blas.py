"""Numbers do not depend on how many threads BLAS has, nor on who imported numpy first,
nor where the work is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import clusters
import numpy as np
import pytest
import torch
from process import environment, python

from ckpt.elements.sums import PIECE, dot_product

COUNT = 8 * PIECE + 2341
"""Elements of a tensor: several pieces of a dot product, and a rest."""

DIGITS = """
import numpy, sys, json
numpy.ones(10)
import os
before = dict(os.environ)
import ckpt
from ckpt.evidence.survey import Survey
from ckpt.formats import open
from ckpt.bytes.executor import Threads
from ckpt.commands.stats.stats import stats
one, two = sys.argv[1:]
with open(one) as checkpoint:
    rows = [row.to_json() if hasattr(row, "to_json") else repr(vars(row.found)) for row in stats(Survey(checkpoint)).rows]
print(json.dumps([ckpt.diff(one, two).to_json()["tensors"], rows]))
assert dict(os.environ) == before, "a library sets no variable of the process"
"""


def saved(folder: Path) -> list[str]:
    chance = torch.Generator().manual_seed(0)
    for name in ("a.pth", "b.pth"):
        base = torch.rand(COUNT, generator=chance, dtype=torch.float64) * 100
        types = (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int8,
        )
        state = {str(dtype).removeprefix("torch."): base.to(dtype) for dtype in types}
        state["complex"] = torch.complex(base, base.flip(0)).to(torch.complex64)
        state["nan"] = base.float().clone()
        state["nan"][7] = torch.nan
        torch.save(state, folder / name)
    return [str(folder / "a.pth"), str(folder / "b.pth")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return saved(tmp_path_factory.mktemp("digits"))


def test_one_answer_for_any_number_of_threads(files: list[str]) -> None:
    answers = set()
    for count in "124":
        done = python(
            "-c",
            DIGITS,
            *files,
            env=environment(OPENBLAS_NUM_THREADS=count, OMP_NUM_THREADS=count),
        )
        assert done.code == 0, done.err.decode()
        answers.add(done.out)

    (answer,) = answers
    assert len(json.loads(answer)[0]) == 8


@pytest.mark.parametrize(
    "length", [0, 1, 7, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, COUNT]
)
def test_a_dot_product_is_the_sum_of_its_pieces(length: int) -> None:
    chance = np.random.default_rng(length)
    one, two = chance.random(length), chance.random(length)

    expected = sum(
        np.dot(one[at : at + PIECE], two[at : at + PIECE])
        for at in range(0, length, PIECE)
    )
    assert dot_product(one, two) == pytest.approx(float(expected), rel=1e-15)
    assert dot_product(one, two) == pytest.approx(float(np.dot(one, two)), rel=1e-12)


@pytest.fixture(params=["1", "4"])
def worker(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a cluster whose one worker has so many threads of BLAS and of its
    own.
    """
    count = request.param
    with clusters.worker(
        "--nthreads", count, OPENBLAS_NUM_THREADS=count, OMP_NUM_THREADS=count
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
def test_a_worker_has_the_digits_of_this_machine(worker: str, files: list[str]) -> None:
    """And threads of the command have them, for any number of threads."""
    for command in ("stats", "diff", "verify", "sum"):
        words = (command, *files[: 2 if command == "diff" else 1])
        shown = () if command == "sum" else ("--json",)
        counts = [] if command == "diff" else [("-j", "1"), ("-j", "3")]
        here = [python("-m", "ckpt", *words, *shown, *more) for more in [(), *counts]]
        there = python("-m", "ckpt", *words, *shown, "--cluster", worker)

        assert there.code < 2 and there.out, there.err.decode()
        assert {(done.code, done.out) for done in here} == {(there.code, there.out)}, (
            command
        )
