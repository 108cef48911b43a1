"""Looks at 1 TB in 10,000 shards that nobody stores, with default limits: do the
commands work, and what do they ask for?

    python -m benchmarks.terabyte [--shards 10000] [--delay 50] [--limit 600] [JOB ...]

Headers are made up and data are zeros (`benchmarks.serving`), behind an S3 with lists
and a web server with an index. It exits 1 when a command fails or takes longer than the
limit, in seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import timing
from benchmarks.distant import (
    BUCKET,
    INDEX,
    MADE_BYTES,
    Addresses,
    serving,
    taken,
    variables,
)
from benchmarks.setting import ckpt_command
from benchmarks.timing import Job

HEADINGS = ("job", "works", "requests", "at once", "MB received", "seconds", "peak MB")


class Look(NamedTuple):
    """A job and what came of it. `problem` is empty where it worked. Bytes received,
    and peak memory in bytes.
    """

    name: str
    problem: str
    requests: int
    most: int
    received: int
    seconds: float
    peak: int


def jobs(addresses: Addresses, shards: int) -> dict[str, tuple[str, ...]]:
    """The commands by their names."""
    bucket, index = f"s3://{BUCKET}/made/", f"{addresses.http}/made/{INDEX}"
    layer = f"model.layers.{shards * 17 // 100}.*"
    return {
        "inspect, s3": ("inspect", bucket),
        "inspect, http": ("inspect", index),
        "ls, s3": ("ls", bucket),
        "stats of a layer, s3": ("stats", "--include", layer, bucket),
        "stats of a layer, http": ("stats", "--include", layer, index),
    }


def looks(
    shards: int, delay: int, limit: int, only: Sequence[str] = ()
) -> Iterator[Look]:
    """Runs the jobs, or some of them. Raises SystemExit for an unknown name."""
    with (
        tempfile.TemporaryDirectory(prefix="ckpt-bench-") as folder,
        serving(Path(folder), delay, shards) as addresses,
    ):
        found = jobs(addresses, shards)
        if unknown := set(only) - found.keys():
            raise SystemExit(f"unknown job {min(unknown)!r}: {', '.join(found)}")
        environment = [
            f"{name}={value}" for name, value in variables(addresses).items()
        ]
        for name in only or found:
            print(name, file=sys.stderr)
            command = (
                "env",
                *environment,
                "timeout",
                str(limit),
                *ckpt_command(),
                *found[name],
            )
            yield look(Job(name, command), addresses)


def look(job: Job, addresses: Addresses) -> Look:
    """Runs a job, which may fail."""
    taken(addresses)
    try:
        sample, problem = timing.run(job), ""
    except SystemExit as error:
        said = str(error).strip().splitlines()
        sample = timing.Sample(float("nan"), 0, 0)
        problem = "not done in time" if "exit code 124" in said[0] else said[-1]
    counts = taken(addresses)
    return Look(
        job.name,
        problem,
        counts.requests,
        counts.most,
        counts.bytes,
        sample.seconds,
        sample.peak,
    )


def table(found: Sequence[Look]) -> str:
    """The jobs as a GitHub table. Imports tabulate."""
    from tabulate import tabulate

    rows = [
        [
            row.name,
            row.problem or "yes",
            f"{row.requests:,}",
            f"{row.most}",
            f"{row.received / 1e6:,.0f}",
            "–" if row.problem else f"{row.seconds:,.1f}",
            "–" if row.problem else f"{row.peak / 1e6:,.0f}",
        ]
        for row in found
    ]
    aligned = ("left", "left", *["right"] * 5)
    return tabulate(rows, HEADINGS, "github", colalign=aligned, disable_numparse=True)


def main() -> None:
    """Reads the options, runs the jobs, prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.terabyte", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "jobs", nargs="*", metavar="JOB", help="such as 'inspect, s3'; default: all"
    )
    parser.add_argument(
        "--shards", type=int, default=10_000, metavar="N", help="of 100 MB each"
    )
    parser.add_argument(
        "--delay", type=int, default=50, metavar="MS", help="before each answer"
    )
    parser.add_argument(
        "--limit", type=int, default=600, metavar="S", help="the most seconds of a job"
    )
    options = parser.parse_args()
    found = list(looks(options.shards, options.delay, options.limit, options.jobs))
    print(
        f"{options.shards * MADE_BYTES / 1e12:g} TB in {options.shards:,} shards at "
        f"{options.delay} ms.\n"
    )
    print(table(found))
    if any(row.problem for row in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
