"""Rows as lines of exact text for programs and documents: TSV, and the formats of tabulate."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.text import show_cell

_TABLES = {"unsafehtml": "html", "latex_raw": "latex"}
"""Formats of tabulate that leave markup as it is -> those that escape it."""
_NAMES = frozenset(("file", "name", "before", "after"))
"""Columns whose text is no number, whatever it looks like."""
_OWN = frozenset(("letter",))
"""Columns that hold nothing of the file."""
_NO_MARKUP = r"(?:[^\W_]|[ .,;/()=+%'…×-]|:(?=[0-9 ])|_(?=[^\W_]))*"


def table_lines(
    rows: Sequence[Sequence[str]], *, tsv: bool, table: str | None, header: bool = True
) -> list[str]:
    """Rows, the first of them the header, as TSV or in a format of tabulate."""
    table = _TABLES.get(table or "", table)
    if tsv or table == "tsv":
        rows = [rows[0], *([*map(_cell, rows[0], row)] for row in rows[1:])]
    if tsv:
        return ["\t".join(row) for row in rows[0 if header else 1 :]]
    from tabulate import tabulate

    if table in ("github", "pipe"):
        rows = [[_markdown(cell) for cell in row] for row in rows]
    elif table in ("jira", "orgtbl", "pretty", "psql", "presto"):
        rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    text: str = tabulate(
        rows[1:], headers=rows[0] if header else (), tablefmt=table or "plain", disable_numparse=True
    )
    return text.split("\n")


def _cell(column: str, text: str) -> str:
    return text if column in _OWN else show_cell(text, name=column in _NAMES)


def _markdown(text: str) -> str:
    """A cell of a Markdown table: as code where it holds markup, a link, or a mention."""
    if re.fullmatch(_NO_MARKUP, text) and "www." not in text.lower():
        return text
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")
