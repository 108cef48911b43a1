"""Compares CPU ratios of a few quick jobs with stored ones: has something become
slower?

    python -m benchmarks.check [--update]

CPU medians of seven, each job interleaved with its peer. Exits 1 when a ratio is more
than 20 % above the stored one. --update stores those of now, with the machine: ratios
of another machine are a hint only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.setting import CHECK, Setting, machine
from benchmarks.table import times

STORED = Path(__file__).with_name("stored.json")
LOSS = 0.2
"""How much more of the peer's CPU time a job may take than it did, as a fraction."""
KEYS = (
    "start/version",
    "start/help",
    "start/inspect",
    "inspect/many",
    "get/many",
    "inspect/shards",
    "lint/files",
    "diff/equal",
    "diff/f32",
    "diff/bf16",
    "diff/f8",
    "verify/zip",
    "rehome/copy",
    "rehome/shared",
    "convert/copy",
)
"""What is compared; of the two rehome rows the one that the disk has."""
_SAME = ("processor", "cpus", "python", "torch", "typer", "numpy")


def compare(
    stored: Mapping[str, float], now: Mapping[str, float]
) -> tuple[list[list[str]], list[str]]:
    """A row for each ratio (key, stored, now, change, verdict), and the keys that lost.

    A key on one side only is named and lost nothing.
    """
    rows, lost = [], []
    for key in sorted(stored.keys() | now.keys()):
        before, after = stored.get(key), now.get(key)
        if before is None or after is None:
            which = "not stored" if before is None else "not measured"
            rows.append(
                [
                    key,
                    *("–" if one is None else times(one) for one in (before, after)),
                    "–",
                    which,
                ]
            )
            continue
        change = after / before - 1
        slower = not after <= before * (1 + LOSS)
        if slower:
            lost.append(key)
        rows.append(
            [
                key,
                times(before),
                times(after),
                f"{change:+.0%}",
                "slower" if slower else "ok",
            ]
        )
    return rows, lost


def elsewhere(stored: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """What differs between the machine of the stored ratios and this one, a sentence
    for each.
    """
    return [
        f"{name}: stored with {stored.get(name)}, here {now.get(name)}."
        for name in _SAME
        if stored.get(name) != now.get(name)
    ]


def measured() -> tuple[dict[str, str | int], dict[str, float]]:
    """The machine, and the CPU ratio of each key. Raises SystemExit when something
    cannot be run.
    """
    from benchmarks.__main__ import measure

    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as temporary:
        folder, scripts = Path(temporary, "files"), Path(temporary, "scripts")
        folder.mkdir()
        scripts.mkdir()
        rows = measure(
            Setting(CHECK, folder, scripts),
            ("inspect", "many", "diff", "rewrite"),
            KEYS,
        )
        return machine(folder), {
            row.key: row.cpu_ratio for row in rows if row.cpu_ratio is not None
        }


def stored_document(path: Path) -> dict[str, dict[str, float]]:
    """What is stored. Raises SystemExit when there is nothing."""
    try:
        found: dict[str, dict[str, float]] = json.loads(
            path.read_text(encoding="utf-8")
        )
    except FileNotFoundError:
        raise SystemExit(
            f"{path} is not there: python -m benchmarks.check --update"
        ) from None
    return found


def main() -> None:
    """Reads the options, measures, compares or stores."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.check", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--update", action="store_true", help="store the ratios of now")
    options = parser.parse_args()
    if options.update:
        about, ratios = measured()
        rounded = {key: round(ratio, 4) for key, ratio in sorted(ratios.items())}
        text = json.dumps(
            {"machine": about, "cpu_ratios": rounded}, indent=1, ensure_ascii=False
        )
        STORED.write_text(f"{text}\n", encoding="utf-8")
        print(f"{len(rounded)} ratios are stored in {STORED.name}.")
        return
    stored = stored_document(STORED)
    about, ratios = measured()
    from tabulate import tabulate

    rows, lost = compare(stored["cpu_ratios"], ratios)
    print(
        tabulate(
            rows,
            ("job", "stored", "now", "change", ""),
            tablefmt="github",
            disable_numparse=True,
        )
    )
    for line in elsewhere(stored["machine"], about):
        print(line)
    if lost:
        sys.exit(f"More than {LOSS:.0%} slower beside the peer: {', '.join(lost)}.")


if __name__ == "__main__":
    main()
