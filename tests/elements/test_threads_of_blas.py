"""Numbers do not depend on how many threads BLAS has, nor on who imported numpy first,
nor where the work is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from paths import IS_THOROUGH
from process import environment, python
from safetensors.torch import load_file, save_file

from ckpt.elements.sums import (
    PIECE,
    PRODUCTS,
    RANK_IN_ORDER,
    ROWS,
    _tile_size,
    dot_product,
    matrix_product,
)

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


MERGE = """
import hashlib, sys
import numpy
numpy.ones((99, 99), "f4") @ numpy.ones((99, 99), "f4")
import ckpt
base, adapter, out = sys.argv[1:]
ckpt.merge(base, adapter, scale=1.7, out=out)
found = ckpt.diff(base, out, adapter=adapter).to_json()["adapter"]["pairs"]
print(hashlib.sha256(open(out, "rb").read()).hexdigest(), [pair["found"] for pair in found])
"""


def test_a_merge_has_one_answer_for_any_number_of_threads(tmp_path: Path) -> None:
    """The products of its blocks are large enough for threads, and have more rows than
    a tile and a rest of columns.
    """
    chance = torch.Generator().manual_seed(0)
    base = {"up.weight": torch.randn(70, 1300, generator=chance)}
    down, up = (
        torch.randn(64, 1300, generator=chance),
        torch.randn(70, 64, generator=chance),
    )
    save_file(base, tmp_path / "base.safetensors")
    save_file(
        {"up.lora_A.weight": down, "up.lora_B.weight": up},
        tmp_path / "lora.safetensors",
    )
    answers = set()
    for count in "124":
        out = tmp_path / f"{count}.safetensors"
        paths = [tmp_path / "base.safetensors", tmp_path / "lora.safetensors", out]
        done = python(
            "-c",
            MERGE,
            *map(str, paths),
            env=environment(OPENBLAS_NUM_THREADS=count, OMP_NUM_THREADS=count),
        )
        assert done.code == 0, done.err.decode()
        answers.add(done.out)

    assert len(answers) == 1
    expected = base["up.weight"] + (up @ down) * 1.7
    assert torch.allclose(load_file(out)["up.weight"], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(
    not torch.backends.mkl.is_available()
    or "AVX512" not in torch.backends.cpu.get_cpu_capability(),
    reason="other processors have kernels that add in another order",
)
@pytest.mark.parametrize("rank", [4, 16, RANK_IN_ORDER])
@pytest.mark.parametrize("rows", [8, 16, 70, 301])
def test_a_product_of_low_rank_has_the_digits_of_torch(rows: int, rank: int) -> None:
    chance = torch.Generator().manual_seed(rows)
    left, right = (
        torch.randn(size, generator=chance) for size in ((rows, rank), (rank, 1300))
    )
    out = np.empty((rows, 1300), "f4")
    matrix_product(left.numpy(), right.numpy(), out)
    assert np.mean(out == (left @ right).numpy()) > 0.999


def test_infinite_numbers_in_the_last_columns_make_no_warning() -> None:
    left, right = np.full((5, 3), np.inf, "f4"), np.ones((3, 21), "f4")
    out = np.empty((5, 21), "f4")
    with np.errstate(all="raise"):
        matrix_product(left, right, out)
    assert np.isposinf(out).all()


PRODUCT = """
import hashlib
import numpy as np
from ckpt.elements.sums import has_order_of_pairs, matrix_product
numbers = np.arange(1, 341 * 16 + 1) * 0.618033988 % 1 - 0.5
left = numbers[: 41 * 16].astype("f4").reshape(41, 16)
right = numbers[41 * 16 :].astype("f4").reshape(16, 300)
out = np.empty((41, 300), "f4")
matrix_product(left, right, out)
print(has_order_of_pairs("<f4"), hashlib.sha256(out).hexdigest())
"""


@pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(),
    reason="no kernels for AVX-512",
)
def test_taller_tiles_of_other_kernels_have_the_same_digits() -> None:
    """OpenBLAS has kernels for AVX2 and AVX-512, of which it chooses."""
    kernels = ("Haswell", "SkylakeX")
    runs = [
        python("-c", PRODUCT, env=environment(OPENBLAS_CORETYPE=name))
        for name in kernels
    ]
    assert all(done.code == 0 for done in runs), runs
    answers = [done.out.split() for done in runs]
    assert {answer[0] for answer in answers} <= {b"False", b"True"}
    assert answers[0][1] == answers[1][1]


@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize(
    ("rows", "rank"),
    [
        *product(
            [0, 1, 2, ROWS - 1, ROWS, 2 * ROWS + 5], [0, 1, 7, RANK_IN_ORDER + 1, 700]
        ),
        *(
            pytest.param(rows, 20_000, marks=pytest.mark.slow)
            for rows in ([1, 2, ROWS - 1, ROWS, 2 * ROWS + 5] if IS_THOROUGH else [2])
        ),
    ],
)
def test_a_product_of_matrices_is_that_of_its_tiles(
    rows: int, rank: int, kind: str
) -> None:
    chance = np.random.default_rng(rank)
    for columns in (0, 1, 15, 16, 33, 700):
        left = chance.random((rows, rank)).astype(kind)
        right = chance.random((rank, columns)).astype(kind)
        out = np.full((rows, columns), np.nan, kind)
        matrix_product(left, right, out)

        assert out == pytest.approx(
            left.astype("f8") @ right.astype("f8"), rel=1e-4 if kind == "f4" else 1e-12
        )
        height, width = _tile_size(rows, rank, columns, out.dtype.str)
        most = (height + (height > 1)) * width * rank
        assert most <= PRODUCTS or height * width == 1, "larger ones begin threads"
        assert height > 1 or width * rank <= PIECE or width == 1


@pytest.fixture(params=["1", "4"])
def worker(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a cluster whose one worker has so many threads of BLAS and of its
    own.
    """
    import clusters

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
