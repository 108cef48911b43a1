"""Puts the table of a JSON document into docs/speed.md, between its two marks.

python -m benchmarks --json > speed.json && python -m benchmarks.page speed.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.table import heading, missed_line, rows_of, table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "speed.md"
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"


def block(text: str) -> str:
    """The lines of the page that a JSON document makes. Raises SystemExit when it is none."""
    machine, sizes, rows = rows_of(text)
    return f"{heading(machine, sizes)}\n\n{table(rows)}\n\n{missed_line(rows)}"


def put(page: str, lines: str) -> str:
    """The page with the lines between its marks. Raises SystemExit when a mark lacks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"


def main() -> None:
    """Reads the document that is named, writes the page."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.page FILE.json")
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), block(text)), encoding="utf-8")


if __name__ == "__main__":
    main()
