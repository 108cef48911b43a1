"""The rows of the table: a job beside its peer, judged against its target. As a GitHub
table and as one JSON document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.targets import TARGETS, Target
from benchmarks.timing import rule

HEADINGS = (
    "job",
    "peer",
    "ckpt wall (s)",
    "peer wall (s)",
    "ckpt CPU (s)",
    "peer CPU (s)",
    "result",
    "target",
    "met",
    "ckpt MB",
    "peer MB",
    "rounds",
)
VERSION = 2
_NONE = "–"


class Cost(NamedTuple):
    """The medians of a job: seconds of wall time, CPU seconds with those of children,
    peak memory in 10⁶ bytes.

    `rounds` is the number of runs that they cover.
    """

    name: str
    wall: float
    cpu: float
    peak_mb: float
    rounds: int


class Row(NamedTuple):
    """A job of ckpt, and its peer if it has one. The key names the target."""

    key: str
    ours: Cost
    peer: Cost | None

    @property
    def target(self) -> Target:
        """What TARGETS says of the key; a target of nothing for a key that it lacks."""
        return TARGETS.get(self.key, Target())

    @property
    def wall_ratio(self) -> float | None:
        """Wall time as a multiple of the peer's; None without a peer."""
        return self.ours.wall / self.peer.wall if self.peer else None

    @property
    def cpu_ratio(self) -> float | None:
        """CPU time as a multiple of the peer's; None without a peer."""
        return self.ours.cpu / self.peer.cpu if self.peer else None

    @property
    def more_ms(self) -> float | None:
        """Milliseconds of wall time beyond the peer's; None without a peer."""
        return (self.ours.wall - self.peer.wall) * 1000 if self.peer else None

    @property
    def more_cpu_ms(self) -> float | None:
        """Milliseconds of CPU time beyond the peer's; None without a peer."""
        return (self.ours.cpu - self.peer.cpu) * 1000 if self.peer else None

    @property
    def missed(self) -> list[str]:
        """The kinds of target that are missed: `wall`, `CPU`, `time`, `memory`. A
        measure that lacks counts as missed.
        """
        target = self.target
        pairs = (
            ("wall", self.wall_ratio, target.wall),
            ("CPU", self.cpu_ratio, target.cpu),
            ("time", self.more_ms, target.more_ms),
            ("CPU", self.more_cpu_ms, target.more_cpu_ms),
            ("memory", self.ours.peak_mb, target.memory_mb),
        )
        return [
            name
            for name, is_, most in pairs
            if most is not None and (is_ is None or not is_ <= most)
        ]

    @property
    def wants(self) -> bool:
        """Whether the row has a target."""
        return any(most is not None for most in self.target)


def cells(row: Row) -> list[str]:
    """The row as text, under HEADINGS. The result has a figure for each kind of
    target.
    """
    ours, peer, target = row.ours, row.peer, row.target
    result, wanted = [], []
    if row.wall_ratio is not None and (target.wall is not None or not row.wants):
        result.append(f"{times(row.wall_ratio)} wall")
    if target.wall is not None:
        wanted.append(f"≤ {times(target.wall)} wall")
    if target.cpu is not None:
        wanted.append(f"≤ {times(target.cpu)} CPU")
        result += [f"{times(row.cpu_ratio)} CPU"] if row.cpu_ratio is not None else []
    if target.more_ms is not None:
        wanted.append(f"≤ +{target.more_ms:.0f} ms")
        result += [f"{row.more_ms:+.0f} ms"] if row.more_ms is not None else []
    if target.more_cpu_ms is not None:
        wanted.append(f"≤ +{target.more_cpu_ms:,.0f} ms CPU")
        result += (
            [f"{row.more_cpu_ms:+,.0f} ms CPU"] if row.more_cpu_ms is not None else []
        )
    if target.memory_mb is not None:
        wanted.append(f"≤ {target.memory_mb:.0f} MB")
        result.append(f"{ours.peak_mb:.0f} MB")
    missed = row.missed
    return [
        ours.name,
        peer.name if peer else _NONE,
        f"{ours.wall:.3f}",
        f"{peer.wall:.3f}" if peer else _NONE,
        f"{ours.cpu:.3f}",
        f"{peer.cpu:.3f}" if peer else _NONE,
        ", ".join(result) or _NONE,
        ", ".join(wanted) or _NONE,
        f"missed: {', '.join(missed)}" if missed else "yes" if row.wants else _NONE,
        f"{ours.peak_mb:.1f}",
        f"{peer.peak_mb:.1f}" if peer else _NONE,
        f"{ours.rounds} / {peer.rounds}"
        if peer and peer.rounds != ours.rounds
        else f"{ours.rounds}",
    ]


def times(ratio: float) -> str:
    """A ratio as people read it: `1/12.5`, `1.15 ×`."""
    return f"1/{1 / ratio:.3g}" if 0 < ratio <= 1 / 2 else f"{ratio:.2f} ×"


def table(rows: Sequence[Row]) -> str:
    """The rows under HEADINGS, as a GitHub table; a bar in a name is escaped."""
    from tabulate import tabulate

    align = ("left", "left", *["right"] * 6, "left", *["right"] * 3)
    lines = [[cell.replace("|", "\\|") for cell in cells(row)] for row in rows]
    text: str = tabulate(
        lines, HEADINGS, tablefmt="github", colalign=align, disable_numparse=True
    )
    return text


def missed_line(rows: Sequence[Row]) -> str:
    """How many targets are met, and the keys of those that are not."""
    wanting = [row for row in rows if row.wants]
    missed = [row.key for row in wanting if row.missed]
    line = f"{len(wanting) - len(missed)} of {len(wanting)} targets are met."
    return f"{line} Missed: {', '.join(missed)}." if missed else line


def left_out_line(rows: Sequence[Row]) -> str:
    """The keys of the targets that nothing was measured for; empty where there are
    none.

    A file is copied or shares its blocks, as the disk can: one of both rows is enough.
    """
    keys = {row.key for row in rows}
    either = {"copy": "shared", "shared": "copy"}
    left = [
        key
        for key, (job, _, way) in ((key, key.rpartition("/")) for key in TARGETS)
        if key not in keys and f"{job}/{either.get(way, way)}" not in keys
    ]
    return f"Not measured: {', '.join(left)}." if left else ""


def lines(rows: Sequence[Row], whole: bool = True) -> str:
    """The table and the targets that are missed; those that are not measured too, of a
    `whole` run of all groups.
    """
    parts = table(rows), missed_line(rows), left_out_line(rows) if whole else ""
    return "\n\n".join(part for part in parts if part)


def document(
    machine: dict[str, str | int], sizes: dict[str, object], rows: Sequence[Row]
) -> dict[str, object]:
    """The one JSON document: the machine, the sizes, and each row with its numbers."""
    return {
        "schema": "ckpt.benchmarks",
        "version": VERSION,
        "machine": machine,
        "sizes": sizes,
        "rows": [
            {
                "key": row.key,
                "ckpt": row.ours._asdict(),
                "peer": row.peer._asdict() if row.peer else None,
                "wall_ratio": row.wall_ratio,
                "cpu_ratio": row.cpu_ratio,
                "more_ms": row.more_ms,
                "more_cpu_ms": row.more_cpu_ms,
                "target": row.target._asdict() if row.wants else None,
                "missed": row.missed,
            }
            for row in rows
        ],
    }


def rows_of(text: str) -> tuple[dict[str, str | int], dict[str, object], list[Row]]:
    """The machine, the sizes and the rows of a JSON document. Targets are those of
    today.

    Raises SystemExit when it is none.
    """
    import json

    try:
        found = json.loads(text)
        if found["schema"] != "ckpt.benchmarks" or found["version"] != VERSION:
            raise ValueError
        rows = [
            Row(
                row["key"],
                Cost(**row["ckpt"]),
                Cost(**row["peer"]) if row["peer"] else None,
            )
            for row in found["rows"]
        ]
        return found["machine"], found["sizes"], rows
    except (ValueError, KeyError, TypeError):
        raise SystemExit(
            "this is no document of `python -m benchmarks --json`"
        ) from None


def heading(machine: dict[str, str | int], sizes: dict[str, object]) -> str:
    """The lines above the table: what the numbers depend on."""
    return (
        f"{machine_line(machine)}\n"
        f"Whole processes, interleaved, warm cache; ckpt is {machine['ckpt']}. "
        f"{rule(int(str(sizes['runs'])))}"
    )


def machine_line(machine: dict[str, str | int]) -> str:
    """The machine and the versions, in one line."""
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("python", "torch", "typer", "numpy")
    )
    return (
        f"{machine['processor']}, {machine['cpus']} CPUs, {machine['memory_gb']} GB of "
        f"memory, {machine['file_system']}; {versions}."
    )
