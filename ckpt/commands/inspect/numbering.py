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
_IF_ORDERED = "?"
"""The sign of a gradient that the order of the optimizer alone tells."""


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
    for entry, had_gradient in zip(row.entries, _gradient_texts(row), strict=True):
        rows.append(
            [
                label,
                show(entry.name, None),
                str(list(entry.tensor.shape)),
                entry.tensor.dtype.name,
                had_gradient,
                ranks,
            ]
        )
        # The number stands once, and `or` before each further tensor.
        label = "or"
    return rows


def _gradient_texts(row: Numbered) -> list[str]:
    """The words for the gradient of each tensor that a number can be."""
    texts: list[str] = []
    for had, by_order in zip(row.had_gradient, row.by_order, strict=True):
        is_by_order = had is None and by_order is not None
        text = _GRADIENTS[by_order if is_by_order else had]
        texts.append(f"{text}{_IF_ORDERED if is_by_order else ''}")
    return texts


def _one_of(row: Numbered) -> list[str]:
    """The cells of a number that many tensors fit: their names folded, and what they
    have in common.
    """
    shapes = {str(list(entry.tensor.shape)) for entry in row.entries}
    dtypes = {entry.tensor.dtype.name for entry in row.entries}
    had = set(_gradient_texts(row))
    names = show_folded_names([entry.name for entry in row.entries], _FEW)
    cells = [f"one of {len(row.entries):,}: {names}"]
    return cells + [
        values.pop() if len(values) == 1 else "" for values in (shapes, dtypes, had)
    ]


def _closing_sentences(numbering: Numbering) -> list[str]:
    """Some short sentences: on what a gradient rests, what DDP counts, and on what the
    names rest.
    """
    said: list[str] = []
    if any(
        text.endswith(_IF_ORDERED)
        for row in numbering.rows
        for text in _gradient_texts(row)
    ):
        said.append(f"{_IF_ORDERED}: if {numbering.ordered}.")
    counted = counted_noun(numbering.parameters, "parameter")
    if numbering.least != numbering.parameters:
        counted = f"{numbering.least:,} to {counted}"
    why = f"{numbering.trust}: {numbering.why}."
    if numbering.trust != "certain":
        said.append(f"DDP counts {counted}.")
    return [*said, why]
