"""Two saves beside a question for the later or the better one: their counters, and what
they record of results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.commands.diff.diff import DiffReport
from ckpt.commands.diff.order import is_counter
from ckpt.ext.explain.case import Statement
from ckpt.ext.explain.questions.curves import is_lower_better
from ckpt.ext.explain.questions.measures import recorded_metrics
from ckpt.model.text import and_more, show
from ckpt.tree.find import counter

_ASKS_WHICH = re.compile(
    r"(?i)\bwhich (?:one|file|checkpoint|ckpt|model|save|of (?:them|these|both|the two)"
    r"|(?:is|should|do|to))\b|\b(?:newer|later|better|best|older|earlier|more recent)\b"
    r"|哪[个一]|更[好新]"
)
_SHOWN = 3


def later_statements(
    report: DiffReport, first: str, second: str, text: str
) -> Iterator[Statement]:
    """Say which of two saves is the later one and which the better, as far as they
    record it, where a question asks for one of them.
    """
    if _ASKS_WHICH.search(text) is None:
        return
    rows = [*_of_counters(report, first, second), *_of_results(report, first, second)]
    yield from rows
    if not rows:
        yield Statement(
            "Neither file records an epoch, a step or a result in which they differ: "
            "their names, the log of the run, or an evaluation of both say which is "
            "the later one, and which the better."
        )


def _of_counters(report: DiffReport, first: str, second: str) -> Iterator[Statement]:
    """Say which save is the later one by all counters that differ."""
    found: list[tuple[str, float, float]] = []
    for row in report.values:
        if not is_counter(row) or row.before is None or row.after is None:
            continue
        before, after = counter(row.before.node), counter(row.after.node)
        if before is not None and after is not None and before != after:
            found.append((show(row.name, 40), before, after))
    rises = {before < after for _, before, after in found}
    if len(rises) != 1:
        return
    path = second if rises == {True} else first
    told = [
        f"{name} {min(one, two):,g} → {max(one, two):,g}" for name, one, two in found
    ]
    yield Statement(
        f"So {show(path, 80)} is the later save of the two ({and_more(told, _SHOWN)}), "
        "if both are of one run. A later save is not always the better one: an "
        "evaluation of both says that."
    )


def _of_results(report: DiffReport, first: str, second: str) -> Iterator[Statement]:
    """Say which save has the better result, or which one alone records any."""
    one = recorded_metrics(report.before)
    two = recorded_metrics(report.after)
    for name in one.keys() & two.keys():
        is_lower = is_lower_better(name)
        if is_lower is None or one[name] == two[name]:
            continue
        path = first if (one[name] < two[name]) is is_lower else second
        best = (
            ", which is the best of a run up to its save, and need not be of these "
            "weights"
            if "best" in name.lower()
            else ""
        )
        yield Statement(
            f"By {show(name, 60)} {show(path, 80)} is the better one "
            f"({one[name]:g} in {show(first, 80)}, {two[name]:g} in "
            f"{show(second, 80)}){best}."
        )
    if bool(one) is bool(two):
        return
    path = first if one else second
    told = [f"{show(name, 60)} {number:g}" for name, number in (one or two).items()]
    yield Statement(
        f"{show(path, 80)} alone records a result ({and_more(told, _SHOWN)})."
    )
