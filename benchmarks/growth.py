"""Shows how CPU time and memory grow with tensors, shards, names that all differ, and
values.

    python -m benchmarks.growth [--json] [--tensors 1000,10000] [--shards 1,10] [--runs
    3]
                                [--headers 1000] [--names 2000] [--values 5000]

Whole processes; eight minutes on two cores, 2 GB of disk. An exponent of 1 means that
twice as many take twice as much. The cost of the same command on one tensor is
subtracted before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import log
from pathlib import Path
from typing import NamedTuple

from benchmarks import timing
from benchmarks.files import write_state
from benchmarks.many import INDEX, write_shards
from benchmarks.setting import Setting, Sizes, ckpt, machine, names
from benchmarks.timing import Job

TENSORS = (1_000, 10_000, 100_000, 1_000_000)
SHARDS = (1, 10, 100, 1_000)
HEADERS = (1_000, 10_000, 100_000, 1_000_000)
NAMES = (2_000, 20_000, 200_000)
VALUES = (5_000, 50_000, 500_000)
RUNS = 3
SCHEMA, VERSION = "ckpt.growth", 1
_LEAST = 0.1
"""A point counts where it costs so much more than the start, as a fraction of it: the
rest is noise.
"""
_MOST = 30.0
"""CPU seconds: a job that would take more, if it grew in proportion from the point
before, does not run there.
"""


class Point(NamedTuple):
    """The medians of a job over so many tensors or shards: CPU seconds, peak memory in
    10⁶ bytes, and their rounds.

    Without a round, `cpu` is what was expected, and too much.
    """

    count: int
    cpu: float
    peak_mb: float
    rounds: int


class Curve(NamedTuple):
    """A job, what it is given more and more of (the name of a Unit), its start, and its
    points.

    The start is the same job on one tensor.
    """

    job: str
    unit: str
    start: Point
    points: Sequence[Point]

    @property
    def cpu_exponent(self) -> float | None:
        """The power of the count that CPU time grows with."""
        return exponent(
            [(point.count, point.cpu) for point in self.points if point.rounds],
            self.start.cpu,
        )

    @property
    def memory_exponent(self) -> float | None:
        """The power of the count that peak memory grows with."""
        return exponent(
            [(point.count, point.peak_mb) for point in self.points if point.rounds],
            self.start.peak_mb,
        )


def exponent(points: Sequence[tuple[int, float]], start: float) -> float | None:
    """Return the slope of the straight line nearest to the logarithms, without the
    start.

    Points that cost hardly more than the start are left out. Return None for fewer than
    two that are left.
    """
    logs = [
        (log(count), log(cost - start))
        for count, cost in points
        if cost - start > _LEAST * start
    ]
    if len(logs) < 2:
        return None
    x, y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    return sum((a - x) * (b - y) for a, b in logs) / sum((a - x) ** 2 for a, _ in logs)


def write_tensors(path: Path, count: int, fill: float) -> None:
    """Save a state dict of tensors of one number."""
    from struct import pack

    write_state(path, names(count), (1,), payloads=[pack("<f", fill)])


def write_header(path: Path, count: int, fill: float) -> None:
    """Write a file of safetensors with tensors of one byte."""
    import json

    rows = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [row, row + 1]}
        for row, name in enumerate(names(count))
    }
    header = json.dumps(rows, separators=(",", ":")).encode()
    path.write_bytes(
        len(header).to_bytes(8, "little") + header + bytes([int(fill)]) * count
    )


def write_other_names(path: Path, count: int, fill: float) -> None:
    """Save a state dict of tensors that no other `fill` has the name of."""
    from hashlib import sha256
    from struct import pack

    letters = bytes.maketrans(b"0123456789", b"ghijklmnop")
    words = [sha256(f"{fill} {row}".encode()).hexdigest()[:16] for row in range(count)]
    named = [word.encode().translate(letters).decode() for word in words]
    write_state(
        path,
        [f"{word[:8]}.{word[8:]}.weight" for word in named],
        (1,),
        payloads=[pack("<f", fill)],
    )


def write_values(folder: Path, count: int, fill: float) -> None:
    """Pickle values of each kind in a file of its own."""
    import pickle

    folder.mkdir()
    kinds: dict[str, object] = {
        "sets": [set() for _ in range(count)],
        "logs": [{"loss": row / 7, "step": row} for row in range(count)],
        "words": {f"word{row}": row for row in range(count)},
        "floats": [row / 7 for row in range(count)],
    }
    for kind, values in kinds.items():
        with (folder / f"{kind}.pkl").open("wb") as file:
            pickle.dump({kind: values, "fill": fill}, file, protocol=2)


def of_tensors(before: Path, after: Path) -> list[Job]:
    """The commands over checkpoints whose elements all differ."""
    return _usual_jobs(before, after, "--quick")


def of_shards(before: Path, after: Path) -> list[Job]:
    """The same. Shards of safetensors have no checksums, which `--quick` compares."""
    return _usual_jobs(before, after)


def _usual_jobs(before: Path, after: Path, *quick: str) -> list[Job]:
    if before.is_dir():
        before, after = before / INDEX, after / INDEX
    return [
        ckpt("`ckpt inspect`", "inspect", before),
        ckpt("`ckpt inspect --tsv`", "inspect", "--tsv", before),
        ckpt(
            f"`ckpt {' '.join(('diff', *quick))}`",
            "diff",
            *quick,
            before,
            after,
            differs=True,
        ),
        ckpt("`ckpt stats`", "stats", before),
    ]


def of_headers(before: Path, after: Path) -> list[Job]:
    """The commands that read no more than a header of safetensors."""
    more = ("--limit", "header-bytes=1GB")
    return [
        ckpt("`ckpt inspect`", "inspect", *more, before),
        ckpt("`ckpt get`", "get", *more, before),
        ckpt("`ckpt ls`", "ls", *more, before),
    ]


def of_names(before: Path, after: Path) -> list[Job]:
    """The commands that pair names, over two checkpoints that have none in common."""
    return [
        ckpt("`ckpt diff`", "diff", before, after, differs=True),
        ckpt(
            "`ckpt warmstart`",
            "warmstart",
            before,
            "--into",
            after,
            "--dry-run",
            differs=True,
        ),
        ckpt("`ckpt recipe`", "recipe", before, after, differs=True),
    ]


def of_values(before: Path, after: Path) -> list[Job]:
    """The commands that look at values, over each kind of them."""
    more = ("--limit", "memory=4GB")
    texts = {
        "sets": "empty sets",
        "logs": "dicts of a log",
        "words": "words of a vocabulary",
        "floats": "floats",
    }
    return [
        ckpt(f"`ckpt {command}`, {text}", command, *more, before / f"{kind}.pkl")
        for command in ("inspect", "get", "ls")
        for kind, text in texts.items()
        if command == "inspect" or kind in ("sets", "floats")
    ]


class Unit(NamedTuple):
    """What a checkpoint has more and more of, in the plural, and its jobs over two such
    checkpoints.

    `write` makes one of so many of them at a path with this suffix. The start is of a
    file that `start` writes.
    """

    name: str
    write: Callable[[Path, int, float], None]
    suffix: str
    jobs: Callable[[Path, Path], list[Job]]
    start: str = ""


def write_set(folder: Path, count: int, fill: float) -> None:
    """Save shards of tensors of one number."""
    write_shards(folder, count, (16, 16), fill)


UNITS = {
    unit.name: unit
    for unit in (
        Unit("tensors", write_tensors, ".pth", of_tensors),
        Unit("shards", write_set, "_shards", of_shards, "tensors"),
        Unit("tensors in a header", write_header, ".safetensors", of_headers),
        Unit("other names", write_other_names, "_names.pth", of_names),
        Unit("values", write_values, "_values", of_values),
    )
}


def curves(setting: Setting, asked: dict[str, Sequence[int]]) -> Iterator[Curve]:
    """Make the checkpoints one after the other, and measure the jobs on each.

    `asked` has the counts of each unit.
    """

    def points(
        unit: Unit, count: int, of: Unit, last: Sequence[Point] = ()
    ) -> list[Point]:
        """The points of the jobs of a unit: what they take over so many of
        another one.
        """
        sides = [
            setting.made(
                setting.folder / f"{side}_{count}{of.suffix}", of.write, count, fill
            )
            for side, fill in (("before", 0.0), ("after", 1.0))
        ]
        print(f"{count:,} {of.name}", file=sys.stderr)
        given = unit.jobs(*sides)
        found = [expected(point, count) for point in last] or [
            Point(count, 0, 0, 0)
        ] * len(given)
        running = [place for place, point in enumerate(found) if point.cpu <= _MOST]
        results = timing.interleaved(
            [given[place] for place in running], setting.sizes.runs
        )
        for place, result in zip(running, results, strict=True):
            found[place] = Point(count, result.cpu, result.peak_mb, result.rounds)
        setting.forget(*sides)
        return found

    for name, counts in asked.items():
        unit = UNITS[name]
        starts = points(unit, 1, UNITS[unit.start or name])
        columns: list[list[Point]] = []
        for count in counts:
            columns.append(points(unit, count, unit, columns[-1] if columns else ()))
        for job, start, *row in zip(
            unit.jobs(Path(), Path()), starts, *columns, strict=True
        ):
            yield Curve(job.name, name, start, row)


def expected(last: Point, count: int) -> Point:
    """The point that a job has at a count if it grows in proportion, without a
    round.
    """
    return Point(count, last.cpu * count / last.count, 0, 0)


def document(
    about: dict[str, str | int], runs: int, found: Sequence[Curve]
) -> dict[str, object]:
    """The one JSON document: the machine and each curve with its exponents."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": about,
        "runs": runs,
        "curves": [
            {
                "job": curve.job,
                "unit": curve.unit,
                "start": curve.start._asdict(),
                "points": [point._asdict() for point in curve.points],
                "cpu_exponent": curve.cpu_exponent,
                "memory_exponent": curve.memory_exponent,
            }
            for curve in found
        ],
    }


def curves_of(text: str) -> tuple[dict[str, str | int], int, list[Curve]]:
    """The machine, the rounds and the curves of a JSON document. Raises SystemExit for
    another text.
    """
    import json

    try:
        found = json.loads(text)
        if found["schema"] != SCHEMA or found["version"] != VERSION:
            raise ValueError
        read = [
            Curve(
                curve["job"],
                curve["unit"],
                Point(**curve["start"]),
                [Point(**point) for point in curve["points"]],
            )
            for curve in found["curves"]
        ]
        return found["machine"], found["runs"], read
    except (ValueError, KeyError, TypeError):
        raise SystemExit(
            "this is no document of `python -m benchmarks.growth --json`"
        ) from None


def lines(about: dict[str, str | int], runs: int, found: Sequence[Curve]) -> str:
    """The text of the page: a table for each unit. Imports tabulate."""
    from tabulate import tabulate

    from benchmarks.table import machine_line

    parts = [
        f"{machine_line(about)}\n"
        f"CPU seconds and peak memory of whole processes. {timing.rule(runs)} The "
        "start is the same job on one tensor; the exponents are of what comes on top "
        f"of it. A job of more than {_MOST:g} s is not run."
    ]
    for unit in dict.fromkeys(curve.unit for curve in found):
        rows = [curve for curve in found if curve.unit == unit]
        counts = [plural(point.count, unit) for point in rows[0].points]
        headings = (
            "job",
            "start",
            *counts,
            "CPU grows as",
            "memory grows as",
            "rounds",
        )
        parts.append(
            tabulate(
                [cells(curve) for curve in rows],
                headings,
                tablefmt="github",
                colalign=("left", *["right"] * (len(headings) - 1)),
                disable_numparse=True,
            )
        )
    return "\n\n".join(parts)


def plural(count: int, unit: str) -> str:
    """A count with its unit, which is given in the plural."""
    return f"{count:,} {unit if count != 1 else unit.removesuffix('s')}"


def cells(curve: Curve) -> list[str]:
    """A curve as the row of a table."""
    every = (curve.start, *curve.points)
    rounds = [str(point.rounds) for point in every]
    return [
        curve.job,
        *(
            f"{point.cpu:.3g} s, {point.peak_mb:,.0f} MB"
            if point.rounds
            else f"not run: about {point.cpu:.0f} s"
            for point in every
        ),
        *(
            "–" if power is None else f"n^{power:.2f}"
            for power in (curve.cpu_exponent, curve.memory_exponent)
        ),
        rounds[0] if len(set(rounds)) == 1 else " / ".join(rounds),
    ]


def main() -> None:
    """Read the options, measure, and print the tables or the document."""

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",") if word]

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--json", action="store_true", help="print one document instead of the tables"
    )
    defaults = {
        "tensors": ("tensors", TENSORS, "tensors in one file"),
        "shards": ("shards", SHARDS, "shards of a checkpoint"),
        "headers": (
            "tensors in a header",
            HEADERS,
            "tensors in a header of safetensors",
        ),
        "names": (
            "other names",
            NAMES,
            "tensors in two files that have no name in common",
        ),
        "values": ("values", VALUES, "values in a file"),
    }
    for option, (_, counts, text) in defaults.items():
        parser.add_argument(
            f"--{option}", type=numbers, metavar="LIST", default=counts, help=text
        )
    parser.add_argument(
        "--runs",
        type=int,
        metavar="N",
        default=RUNS,
        help="rounds of each job that is not long",
    )
    options = parser.parse_args()
    asked = {name: getattr(options, option) for option, (name, *_) in defaults.items()}
    if options.runs < 1 or any(
        count < 1 for count in chain.from_iterable(asked.values())
    ):
        raise SystemExit("--runs and all counts must be above zero")
    asked = {name: counts for name, counts in asked.items() if counts}
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as temporary:
        folder = Path(temporary)
        setting = Setting(Sizes(runs=options.runs), folder, folder)
        found = list(curves(setting, asked))
        about = machine(folder)
    if options.json:
        import json

        print(
            json.dumps(
                document(about, options.runs, found), indent=1, ensure_ascii=False
            )
        )
        return
    print(lines(about, options.runs, found))


if __name__ == "__main__":
    main()
