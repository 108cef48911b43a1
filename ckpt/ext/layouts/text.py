"""The report of `ckpt recipe` as text: the answer, the rules, what is left."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.ext.layouts.findings import ASSUMED, BEYOND, CONSTANT, NEIGHBOURS
from ckpt.ext.layouts.report import RecipeReport
from ckpt.ext.layouts.rules import Rule
from ckpt.ext.layouts.templates import values_text
from ckpt.ext.layouts.words import part_words, source_words
from ckpt.model.text import (
    counted_noun,
    merge_alike_rows,
    pasted_path,
    show,
    show_folded_names,
    show_name,
)
from ckpt.surface.text.lines import (
    Line,
    break_line,
    cells,
    hanging_lines,
    pasted_line,
)

_MOST = 200
"""The rules that are shown."""
_LEFT = 20
"""The tensors of one list that are shown."""
_FOLDED = 5_000
"""The names that are compared for what they have in common."""
_PARTS = 12
"""The parts of one rule that are shown."""
_WAYS = 4
"""The groups of names that are shown, between which --assume chooses."""
_BY = {
    NEIGHBOURS: "by its neighbours: its values say nothing",
    ASSUMED: "as --assume says",
    CONSTANT: "of nothing in A",
}


def recipe_lines(report: RecipeReport, width: int | None = None) -> list[Line]:
    """The report as a person reads it, broken to fit `width`."""
    lines: list[Line] = [[(report.headline, "good" if report.is_whole else "warning")]]
    lines += _coded_lines(report, width)
    # A recipe that was given needs no listing: only what is wrong with it.
    if report.recipe.rules and not report.is_check:
        lines.append([])
        for rule in report.recipe.rules[:_MOST]:
            lines += _rule_lines(rule, width)
        rest = len(report.recipe.rules) - _MOST
        if rest > 0:
            lines.append(
                [(f"and {counted_noun(rest, 'more rule')} (--json shows all)", "dim")]
            )
    left = [row for row in report.left if row.why != BEYOND]
    lines += _titled_lines(
        f"not made of A: {counted_noun(len(left), 'tensor')}",
        [(row.name, _left_text(row.why, row.ways)) for row in left],
        width,
    )
    beyond = [row.name for row in report.left if row.why == BEYOND]
    lines += _titled_lines(
        f"not in B: {counted_noun(len(beyond), 'tensor')}",
        [(name, "the recipe makes it") for name in beyond],
        width,
    )
    unused = [row for row in report.unused if row.of]
    lines += _titled_lines(
        f"values of A that no rule uses: {counted_noun(len(unused), 'tensor')}",
        [(row.name, _unused_text(row.elements, row.of)) for row in unused],
        width,
    )
    absent = [row.name for row in report.unused if not row.of]
    lines += _titled_lines(
        f"not in A: {counted_noun(len(absent), 'tensor')}",
        [(name, "the recipe takes it") for name in absent],
        width,
    )
    lines += _titled_lines(
        f"padding of A, dropped: {counted_noun(len(report.padded), 'tensor')}",
        [(row.name, _unused_text(row.elements, row.of)) for row in report.padded],
        width,
    )
    lines += _titled_lines(
        (
            "copies in A, which must be equal: "
            f"{counted_noun(len(report.copies), 'tensor')}"
        ),
        [(row.name, f"as {show_name(row.copy_of or '', 80)}") for row in report.copies],
        width,
    )
    lines += _titled_lines(
        f"not looked at: {counted_noun(len(report.passed), 'tensor')}",
        [(row.name, row.why) for row in report.passed],
        width,
    )
    return lines


def _coded_lines(report: RecipeReport, width: int | None) -> list[Line]:
    """The command that compares codes with the numbers they were made of."""
    if not report.is_coded or not report.left:
        return []
    text = (
        "One side is quantised and the other is not, so bits differ where values are "
        "alike. To compare the values:"
    )
    lines = hanging_lines([], text, width, 0)
    paths = [pasted_path(path) for path in (report.before, report.after)]
    # A path that no shell takes is a word to fill in.
    shown = [path or "FILE" for path in paths]
    return [*lines, pasted_line(f"ckpt diff {' '.join(shown)}", width)]


def beside_text(report: RecipeReport) -> str | None:
    """The line about the tensors beside the models, or None without any."""
    texts = [
        f"{counted_noun(count, 'tensor')} of {side}"
        for count, side in zip(report.beside, ("A", "B"), strict=True)
        if count
    ]
    return f"not looked at, beside the models: {' and '.join(texts)}" if texts else None


def _rule_lines(rule: Rule, width: int | None) -> list[Line]:
    """A rule: the tensors that it makes, then a line for each part."""
    places = ", ".join(
        [f"{name} {values_text(values)}" for name, values in rule.places]
    )
    times = f"  ×{rule.times:,}" if rule.times > 1 else ""
    head: Line = [
        (show(rule.target.text, 160), "name"),
        (times, ""),
        (f"  {places}" if places else "", "dim"),
    ]
    lines = break_line(head, width, 4)
    for part in rule.parts[:_PARTS]:
        words = part_words(part, rule)
        source = show(source_words(part), 160)
        text = ": ".join([text for text in (source, words) if text])
        lines += hanging_lines(
            [("  of ", "dim")] if source else [("  ", "")],
            text,
            width,
        )
    if len(rule.parts) > _PARTS:
        lines.append([(f"  and {len(rule.parts) - _PARTS:,} more parts", "dim")])
    if rule.by in _BY:
        lines.append([(f"  {_BY[rule.by]}", "warning")])
    return lines


def _titled_lines(
    title: str,
    rows: Sequence[tuple[str, str]],
    width: int | None,
) -> list[Line]:
    """A list with its title; no line for an empty one."""
    if not rows:
        return []
    lines: list[Line] = [[], [(title, "head")]]
    shown = 0
    # Names that differ by numbers are one line.
    for name, indices in merge_alike_rows(rows[:_FOLDED])[:_LEFT]:
        shown += len(indices)
        times = f"  ×{len(indices):,}" if len(indices) > 1 else ""
        label = f"  {show_name(name, 80)}{times}"
        text = rows[indices[0]][1]
        # In one line where it fits, else the text hangs below the name.
        if width is None or cells(label) + 2 + cells(text) <= width:
            lines.append([(label, "name"), (f"  {text}", "")])
            continue
        lines += break_line([(label, "name")], width, 4)
        lines += hanging_lines([("    ", "")], text, width)
    if len(rows) > shown:
        lines.append([(f"  and {len(rows) - shown:,} more", "dim")])
    return lines


def _left_text(why: str, ways: Sequence[str]) -> str:
    """The reason why a tensor of B is not made, with the ways between which --assume
    chooses.
    """
    if not ways:
        return why
    listed = show_folded_names(ways, _WAYS)
    return f"{why}: {listed} (--assume takes one)"


def _unused_text(elements: int, of: int) -> str:
    """The part of a tensor of A that no rule uses."""
    return "all of it" if elements == of else f"{elements:,} of {of:,} elements"


def html_recipe(report: RecipeReport) -> str:
    """Return the lines of `ckpt recipe`."""
    # Here: only a notebook pays for it.
    from ckpt.surface.text.notebook import WIDTH, html_of

    return html_of(recipe_lines(report, WIDTH))
