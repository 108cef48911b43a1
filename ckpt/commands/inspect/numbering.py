"""The parameters behind the numbers of DDP, as text: one name per line, and many that
fit one number folded.
"""

from __future__ import annotations

from ckpt.evidence.numbering import Numbered, Numbering
from ckpt.model.text import counted_noun, show, show_folded_names
from ckpt.surface.text.lines import Line, cells, hanging_lines, lined_up

_FEW = 4
"""Tensors that a number can be, up to which each has a line."""
_GRADIENTS = {True: "had one earlier", False: "never", None: ""}


def numbering_lines(numbering: Numbering, width: int | None = None) -> list[Line]:
    """Return the assumption, the numbers with their names, then how sure they are."""
    out: list[Line] = []
    if numbering.assumes is not None:
        out += hanging_lines([], f"If {numbering.assumes}:", width, 2, "warning")
    # If all numbers are of the same ranks, the column says nothing.
    several = len({row.ranks for row in numbering.rows}) > 1
    rows = [["INDEX", "NAME", "SHAPE", "DTYPE", "GRADIENT", "RANK"]]
    for row in numbering.rows:
        rows += _number_rows(row, ", ".join(map(str, row.ranks)) if several else "")
    rows, given_up = _fitting(rows, width)
    out += lined_up(rows, 1, right=frozenset((0,)), width=width)
    if given_up:
        out += hanging_lines(
            [],
            f"… no room for {', '.join(given_up)} (--json, or a wider screen)",
            width,
            2,
            "dim",
        )
    for text in _closing_sentences(numbering):
        out += hanging_lines([], text, width, 2, "dim")
    return out


def _fitting(
    rows: list[list[str]], width: int | None
) -> tuple[list[list[str]], list[str]]:
    """Return the rows without the columns that a narrow screen has no room for, and the
    titles of these.

    Where the names alone are too long, giving up a column helps nobody.
    """
    for given_up in ([], ["DTYPE"], ["DTYPE", "SHAPE"]):
        # The indices of columns: those not given up, then those with any text.
        kept = [i for i, title in enumerate(rows[0]) if title not in given_up]
        used = [i for i in kept if any(row[i] for row in rows[1:])]
        # Two blanks stand between columns.
        widths = [max(cells(row[i]) for row in rows) for i in used]
        size = sum(widths) + 2 * (len(used) - 1)
        if width is None or size <= width:
            return [[row[i] for i in kept] for row in rows], given_up
    return rows, []


def _number_rows(row: Numbered, ranks: str) -> list[list[str]]:
    """One line for each tensor that a number can be."""
    if not row.entries:
        return [[str(row.number), "too many parameters fit", "", "", "", ranks]]
    if len(row.entries) > _FEW:
        return [[str(row.number), *_one_of(row), ranks]]
    rows = []
    label = str(row.number)
    for entry, had_gradient in zip(row.entries, row.had_gradient, strict=True):
        rows.append(
            [
                label,
                show(entry.name, None),
                str(list(entry.tensor.shape)),
                entry.tensor.dtype.name,
                _GRADIENTS[had_gradient],
                ranks,
            ]
        )
        # The number stands once, and `or` before each further tensor.
        label = "or"
    return rows


def _one_of(row: Numbered) -> list[str]:
    """The cells of a number that many tensors fit: their names folded, and what they
    have in common.
    """
    shapes = {str(list(entry.tensor.shape)) for entry in row.entries}
    dtypes = {entry.tensor.dtype.name for entry in row.entries}
    had = {_GRADIENTS[gradient] for gradient in row.had_gradient}
    names = show_folded_names([entry.name for entry in row.entries], _FEW)
    cells = [f"one of {len(row.entries):,}: {names}"]
    return cells + [
        values.pop() if len(values) == 1 else "" for values in (shapes, dtypes, had)
    ]


def _closing_sentences(numbering: Numbering) -> list[str]:
    """Two short sentences: what DDP counts, and on what the names rest."""
    counted = counted_noun(numbering.parameters, "parameter")
    if numbering.least != numbering.parameters:
        counted = f"{numbering.least:,} to {counted}"
    why = f"{numbering.trust}: {numbering.why}."
    return [why] if numbering.trust == "certain" else [f"DDP counts {counted}.", why]
