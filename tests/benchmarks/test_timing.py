"""The rounds of each job, and their order. The runs are made up, so no time passes."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from benchmarks import timing
from benchmarks.timing import Job, Sample, interleaved, rounds_of, rule

Runs = list[str]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[float]]], Runs]:
    """A function that takes the seconds of each job's runs, and returns the list of
    what ran, in order.
    """

    def play(seconds: dict[str, list[float]]) -> Runs:
        ran: Runs = []
        left = {name: iter(values) for name, values in seconds.items()}

        def run(job: Job) -> Sample:
            ran.append(job.name)
            taken = next(left[job.name])
            return Sample(taken, round(taken * 1e6), taken * 2)

        monkeypatch.setattr(timing, "run", run)
        return ran

    return play


@pytest.mark.parametrize(
    ("seconds", "runs", "rounds"),
    [
        (0.1, 5, 5),
        (2.0, 5, 5),
        (2.1, 5, 3),
        (2.1, 2, 2),
        (8.0, 5, 3),
        (8.1, 5, 0),
        (8.1, 1, 0),
    ],
)
def test_long_jobs_run_in_fewer_rounds(seconds: float, runs: int, rounds: int) -> None:
    assert rounds_of(seconds, runs) == rounds


def test_the_rule_is_said() -> None:
    assert rule(5) == (
        "Medians of 5 rounds after a warm-up; a job of more than 2 s runs in 3, and "
        "one of more than 8 s once, without a warm-up."
    )
    assert "runs in 2," in rule(2)


def test_the_warm_up_counts_for_a_very_long_job_only(
    played: Callable[[dict[str, list[float]]], Runs],
) -> None:
    ran = played(
        {"short": [9e-3, 1, 5, 2, 4, 3], "long": [3, 7, 8, 9], "endless": [30]}
    )
    short, long, endless = interleaved(
        [Job(name, ()) for name in ("short", "long", "endless")], 5
    )
    assert (short.seconds, short.cpu, short.peak_mb, short.rounds) == (3, 6, 3, 5)
    assert (long.seconds, long.rounds) == (8, 3)
    assert (endless.seconds, endless.rounds) == (30, 1)
    assert ran == ["short", "long", "endless", *["short", "long"] * 3, "short", "short"]


def test_each_round_begins_with_another_job(
    played: Callable[[dict[str, list[float]]], Runs],
) -> None:
    ran = played({name: [1] * 4 for name in "abc"})
    interleaved([Job(name, ()) for name in "abc"], 3, rotate=True)
    assert "".join(ran) == "abc" + "bca" + "cab" + "abc"


def test_a_run_is_the_process_with_its_output_and_a_failure_ends_all(
    tmp_path: object,
) -> None:
    sample = timing.run(Job("fine", (sys.executable, "-c", "print(1)")))
    assert sample.seconds > 0 and sample.cpu > 0 and sample.peak > 1 << 20
    with pytest.raises(SystemExit, match=r"bad: exit code 3\nout of luck"):
        timing.run(
            Job(
                "bad",
                (
                    sys.executable,
                    "-c",
                    "import sys; print('out of luck', file=sys.stderr); sys.exit(3)",
                ),
            )
        )
    with pytest.raises(
        SystemExit, match="bad: its preparation failed with exit code 1"
    ):
        timing.run(Job("bad", ("true",), prepare=("false",)))
