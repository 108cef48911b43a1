"""`check.py FOLDER [GLOB …]`: checks files that were written before, and prints what is
wrong.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import optional  # noqa: F401
from checks import all_checks


def main() -> int:
    total: Counter[str] = Counter()
    rows: dict[str, list[int]] = {}
    bad = files = 0
    for pattern in sys.argv[2:] or ["*"]:
        for truth in sorted(
            Path(sys.argv[1]).resolve().glob(f"{pattern}/.truth/*.json")
        ):
            with tempfile.TemporaryDirectory() as scratch:
                wrong = all_checks(truth, Path(scratch))
            total += wrong.checked
            files += 1
            bad += len(wrong)
            package = json.loads(truth.read_text())["package"]
            row = rows.setdefault(package, [0, 0, 0])
            rows[package] = [
                row[0] + 1,
                row[1] + sum(wrong.checked.values()),
                row[2] + len(wrong),
            ]
            for line in wrong:
                print(f"{truth.parent.parent.name}/{truth.stem}  {line}", flush=True)
    for package, (count, checked, said) in rows.items():
        print(
            f"{package}: {count} files, {checked} statements, {said} wrong", flush=True
        )
    print(f"{files} files, {sum(total.values())} statements, {bad} wrong", dict(total))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
