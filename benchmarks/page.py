"""Puts the tables of JSON documents into docs/speed.md, each between its two marks.

python -m benchmarks --json > speed.json
python -m benchmarks.growth --json > growth.json
python -m benchmarks.page speed.json growth.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import growth
from benchmarks.table import heading, lines, rows_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "speed.md"
MARKS = ("bench", "growth")
"""The words of the marks: `<!-- bench -->` begins a table, `<!-- /bench -->`
ends it.
"""


def block(text: str) -> tuple[str, str]:
    """Return the mark that a JSON document belongs to, and the lines of the page that
    it makes.

    Raises SystemExit for another text.
    """
    if f'"{growth.SCHEMA}"' in text:
        return "growth", growth.lines(*growth.curves_of(text))
    machine, sizes, rows = rows_of(text)
    return "bench", f"{heading(machine, sizes)}\n\n{lines(rows)}"


def put(page: str, mark: str, text: str) -> str:
    """Return the page with the text between its marks. Raises SystemExit where one is
    missing.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the page lacks {begin} or {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main() -> None:
    """Read the documents that are named, and write the page."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m benchmarks.page FILE.json...")
    page = PAGE.read_text(encoding="utf-8")
    for path in sys.argv[1:]:
        page = put(page, *block(Path(path).read_text(encoding="utf-8")))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
