"""Measures everything, and prints one table.

    python -m benchmarks [GROUP ...] [--quick] [--json] [--runs 5] [--size-gb 2]
    [--types f32,bf16] [--keep DIR]

Run from the root of the repository. It always exits 0 unless something could not be
run, for a time is no test. Needs torch and safetensors, and 9 GB of disk; --keep 45 GB.
What it makes goes below a temporary folder (TMPDIR) and is removed; --keep names a
folder where it stays. The group `far` has a table of its own, and runs only where it is
named.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import (
    adapters,
    average,
    cluster,
    dcp,
    diff,
    inspect,
    layouts,
    many,
    quantised,
    rewrite,
    timing,
)
from benchmarks.setting import QUICK, TYPES, Case, Setting, Sizes, machine
from benchmarks.table import Cost, Row, document, heading, lines

if TYPE_CHECKING:
    from benchmarks.far import FarRow

GROUPS: dict[str, Callable[[Setting], Iterator[list[Case]]]] = {
    "inspect": inspect.cases,
    "many": many.cases,
    "diff": diff.cases,
    "rewrite": rewrite.cases,
    "average": average.cases,
    "quantised": quantised.cases,
    "adapters": adapters.cases,
    "layouts": layouts.cases,
    "dcp": dcp.cases,
    "cluster": cluster.cases,
}

_WRITING = ("rewrite", "average", "quantised", "adapters", "layouts", "dcp")
"""The groups whose jobs write, so that each begins a round in turn."""


def measure(
    setting: Setting, groups: Collection[str], keys: Collection[str] | None = None
) -> list[Row]:
    """Makes the files and the peers, and runs every case of the groups, or those of
    `keys` alone.

    The jobs of a group are interleaved. Raises SystemExit when something cannot be made
    or run.
    """
    rows: list[Row] = []
    for group in groups:
        for found in GROUPS[group](setting):
            cases = [case for case in found if keys is None or case.key in keys]
            jobs = list(
                dict.fromkeys(
                    job for case in cases for job in (case.ours, case.peer) if job
                )
            )
            if not jobs:
                continue
            print(", ".join(case.key for case in cases), file=sys.stderr)
            results = timing.interleaved(
                jobs,
                setting.sizes.runs,
                rotate=group in _WRITING,
            )
            costs = {
                job: Cost(one.name, one.seconds, one.cpu, one.peak_mb, one.rounds)
                for job, one in zip(jobs, results, strict=True)
            }
            rows += [
                Row(case.key, costs[case.ours], costs[case.peer] if case.peer else None)
                for case in cases
            ]
    return rows


def chosen(options: argparse.Namespace) -> Sizes:
    """The sizes that the options ask for. Raises SystemExit with the wrong one."""
    sizes = QUICK if options.quick else Sizes()
    if options.runs is not None:
        sizes = sizes._replace(runs=options.runs)
    if options.size_gb is not None:
        sizes = sizes._replace(size_gb=options.size_gb)
    if options.types is not None:
        sizes = sizes._replace(types=tuple(options.types.split(",")))
    if sizes.runs < 1 or sizes.size_gb <= 0:
        raise SystemExit("--runs and --size-gb must be above zero")
    if not set(sizes.types) <= TYPES.keys():
        raise SystemExit(f"--types: some of {', '.join(TYPES)}")
    return sizes


def main() -> None:
    """Reads the options, measures, and prints the table or the document."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"{', '.join(GROUPS)}, far; default: all but far",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small files, two rounds: five minutes"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one document instead of the table"
    )
    parser.add_argument(
        "--runs", type=int, metavar="N", help="rounds of each job that is not long"
    )
    parser.add_argument(
        "--size-gb", type=float, metavar="N", help="each large file, in 10⁹ bytes"
    )
    parser.add_argument(
        "--types", metavar="LIST", help=f"of the tensors to compare: {','.join(TYPES)}"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="where the files go and stay"
    )
    options = parser.parse_args()
    if unknown := [group for group in options.groups if group not in (*GROUPS, "far")]:
        parser.error(f"unknown group {unknown[0]!r}: {', '.join(GROUPS)}, far")
    sizes = chosen(options)
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as temporary:
        folder: Path = options.keep or Path(temporary, "files")
        folder.mkdir(parents=True, exist_ok=True)
        scripts = Path(temporary, "scripts")
        scripts.mkdir()
        setting = Setting(sizes, folder, scripts, keep=options.keep is not None)
        rows = measure(
            setting, [group for group in options.groups or GROUPS if group in GROUPS]
        )
        distant: Sequence[FarRow] = []
        if "far" in options.groups:
            from benchmarks import far

            distant = list(far.measured(setting))
        least, about = timing.own_peak_mb(), machine(folder)
    if options.json:
        import json

        found = document(about, sizes._asdict(), rows) | {
            "far": [row._asdict() for row in distant]
        }
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    print(heading(about, sizes._asdict()))
    print(f"No peak can read below the benchmark's own, {least:.1f} MB.")
    if options.quick:
        print(
            "The sizes are small: the targets are those of full sizes, and the start "
            "weighs more here."
        )
    if rows:
        print(f"\n{lines(rows, whole=not options.groups)}")
    if distant:
        print(f"\n{far.lines(distant)}")


if __name__ == "__main__":
    main()
