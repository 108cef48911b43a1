"""The model of time and the simulation agree, and both count what the real reader asks
for.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks import scale
from benchmarks.scale import GIB, Work, World, lines, model, simulate, work_of
from ckpt.bytes.executor import SPAN
from ckpt.model.errors import NotOpenedError

TOLERANCE = 0.05
"""How far the formulas may be from the simulation. docs/speed.md says so."""


@pytest.fixture(scope="module")
def work() -> Work:
    """The tasks for 1,000 files of 1 GiB."""
    return work_of(1000)


@pytest.fixture(scope="module")
def few(work: Work) -> Work:
    """The first of them."""
    return work._replace(
        tasks=2000,
        nbytes=2000 * SPAN,
        patterns=work.patterns[:2000],
        opening=work.opening[:200],
    )


def test_a_thousand_files_are_sixteen_thousand_tasks(work: Work) -> None:
    assert (work.tasks, work.nbytes) == (16_000, 1000 * GIB)
    assert len(work.patterns) == 16_000 and work.each == SPAN
    assert 1001 <= len(work.opening) <= 2010, "for the index, and for each short header"


def test_neighbours_are_one_request(work: Work) -> None:
    """A task reads 256 blocks of 256 KiB, in few requests of at most 8 MiB, and no byte
    beyond it.
    """
    assert set(work.patterns) == {(8 << 20,) * 8}
    assert sum(work.patterns[0]) == SPAN


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [
        World(workers=1),
        World(workers=4),
        World(),
        World(workers=64),
        World(workers=4, refused=0.02, cut=0.005),
        World(workers=8, between_losses=200, away=20),
        World(workers=2, threads=64),
        World(refused=0, cut=0, between_losses=1e12),
    ],
    ids=lambda world: (
        ",".join(
            f"{name}={value}"
            for name, value in world._asdict().items()
            if value != getattr(World(), name)
        )
        or "usual"
    ),
)
def test_the_model_agrees_with_the_simulation(world: World, work: Work) -> None:
    paper, found = model(work, world), simulate(work, world)

    assert found.results == paper.results == 16_000
    assert found.seconds == pytest.approx(paper.seconds, rel=TOLERANCE)
    assert found.opening == pytest.approx(paper.opening, rel=4 * TOLERANCE), (
        "it is short"
    )
    assert found.requests == pytest.approx(paper.requests, rel=TOLERANCE)
    assert found.retries == pytest.approx(paper.retries, rel=0.1, abs=5)
    if paper.lost > 100:
        assert found.lost == pytest.approx(paper.lost, rel=0.25)


def test_a_quiet_world_is_arithmetic() -> None:
    """Without chance the simulation gives what a pencil gives."""

    class Even(random.Random):
        def expovariate(self, lambd: float = 1.0) -> float:
            return 1 / lambd

        def random(self) -> float:
            return 0.999

    work = Work(6, 600, [(60, 40)] * 6, (50,))
    world = World(2, 1, 1.0, 100.0, 1e9, 50.0, 0.5, 0.0, 1e9, 0, 0.0)
    patch = pytest.MonkeyPatch()
    patch.setattr(scale.random, "Random", Even)
    try:
        found = simulate(work, world)
    finally:
        patch.undo()
    # Opening: 1 + 50/100. Each task: two requests, 2 + 100/100, and 100/50 of
    # computing. Two at a time, three rounds.
    assert found.seconds == pytest.approx(1.5 + 3 * 5.0)
    assert (found.requests, found.retries, found.lost) == (13, 0, 0)


def test_more_machines_more_errors_more_losses(few: Work) -> None:
    usual = simulate(few, World())
    assert simulate(few, World(workers=32)).seconds < 0.75 * usual.seconds
    assert simulate(few, World(cut=0.02)).seconds > usual.seconds
    lossy = simulate(few, World(between_losses=60, away=10))
    assert lossy.lost > 10 and lossy.seconds > usual.seconds
    assert simulate(few, World(sending=0.05)).seconds > 100, (
        "one process hands 20 tasks a second to any number"
    )


def test_a_store_that_always_fails_ends_the_run(work: Work) -> None:
    with pytest.raises(NotOpenedError, match="4 times in a row"):
        simulate(work, World(refused=1.0))


def test_requests_are_those_of_each_task() -> None:
    """Of each kind one task was asked; here all of a file are."""
    work = work_of(1)

    def one(parcel: Any) -> tuple[int, int, int]:
        return id(parcel), 0, 0

    patch = pytest.MonkeyPatch()
    patch.setattr(scale, "kind_of", one)
    try:
        every = work_of(1)
    finally:
        patch.undo()
    assert list(every.patterns) == list(work.patterns) and len(work.patterns) == 16


def test_the_table_has_a_row_for_each_world(few: Work) -> None:
    rows = list(lines(few, [World(workers=1), World(workers=2)], 1))

    assert len(rows) == 4 and rows[2].startswith("| 0.1 TB | 2,000 | 1 × 8 threads |")
    assert all(row.count("|") == rows[0].count("|") for row in rows)
