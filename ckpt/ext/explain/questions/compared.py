"""Two files beside a question: what is the same in both, what differs, and what only
one of them has.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ckpt.commands.diff.diff import DiffReport
from ckpt.evidence.loading import load_of
from ckpt.evidence.wrappers import wrapped_names, wrapper_prefix
from ckpt.ext.explain.case import Statement, finding_statements
from ckpt.ext.explain.families.averages import has_name_of_averages
from ckpt.ext.explain.families.content import ended_statements
from ckpt.ext.explain.families.heads import HEAD_WORDS
from ckpt.ext.explain.parted import number_text
from ckpt.ext.explain.questions.later import later_statements
from ckpt.ext.explain.questions.measures import BEST_PATHS
from ckpt.model.text import and_more, counted_noun, pasted_path, show
from ckpt.tree.find import children_of

_COMPARES = re.compile(
    r"(?i)\bsame\b|\bidentical\b|\bcompar\w{1,4}\b|\bdiffer\w{0,4}\b|\bequal\b"
    r"|\bfr[eo]e?z\w{0,3}\b|\bunchanged\b|\bchang\w{1,3}\b|\bupdat\w{1,3}\b|\bmerged?\b"
    r"|\btrain(?:ed|able)\b|区别|不同|一样|冻结"
)
_SHOWN = 12
_WORDS = {
    "same": "the same in both",
    "changed": "of other values",
    "reshaped": "of another shape",
    "retyped": "of another type",
    "renamed": "there by another name",
}
"""The status of a tensor in a comparison -> what is said of so many."""


_OF_FREEZING = re.compile(
    r"(?i)\bfr[eo]e?z\w{0,3}\b|\bfix(?:e[ds]|ing)?\b|\bupdat\w{1,3}\b|冻结"
)
_OF_A_RUN = re.compile(
    r"(?i)\b(?:resum|continu)\w{0,4}\b|\btrain\w{0,4} further\b|续训"
)
_NOTHING_TRAINED = (
    "If one of them should be trained further than the other, nothing was: the run "
    "saved what it had loaded. The usual reasons are a schedule at its end, whose rate "
    "is 0, a run whose number of epochs was reached, and weights that are loaded again "
    "before each save."
)


def asks_to_compare(text: str) -> bool:
    """Tell whether a question about two files is about nothing but how they differ."""
    return _COMPARES.search(text) is not None


def compared_statements(
    report: DiffReport, first: str, second: str, text: str = ""
) -> Iterator[Statement]:
    """Say how two files differ, and print the command that lists it. `text` is the
    question.
    """
    counts: Counter[str] = Counter(row.status for row in report.rows)
    told = [
        f"{count:,} {_WORDS[status]}"
        for status, count in counts.items()
        if status in _WORDS
    ]
    names = [pasted_path(path) for path in (first, second)]
    alone = [
        f"{counts[status]:,} only in {show(path, 80)}"
        for status, path in (("removed", first), ("added", second))
        if counts[status]
    ]
    total = counted_noun(len(report.rows), "tensor")
    yield Statement(f"Of {total} in both files together: {and_more(told + alone, 8)}.")
    changed = [row.name for row in report.rows if row.status == "changed"]
    same = [row.name for row in report.rows if row.status == "same"]
    still = list(_still_weights(report, changed)) if changed and same else []
    yield from still
    if changed and same and not still:
        # The shorter list tells: two heads, or all but two frozen layers.
        fewer, others, word = (
            (changed, same, "differ")
            if len(changed) <= len(same)
            else (same, changed, "are the same")
        )
        yield Statement(f"These {word}: {_parts_text(fewer, others)}.")
    elif not changed and len(same) == len(report.rows):
        yield Statement("So both files hold the same model.")
        yield from _at_other_places(report, first, second)
        if _OF_A_RUN.search(text):
            yield Statement(_NOTHING_TRAINED)
            yield from ended_statements(report.after.values)
    if changed and not same and _OF_FREEZING.search(text):
        yield Statement(
            "No tensor that both have in one shape kept its values, so none of these "
            "was frozen: the second went on from the first with all of them, or is of "
            "another start."
        )
    if changed and _SAME_RESULT.search(text):
        yield Statement(
            f"So they are not the same: {counted_noun(len(changed), 'tensor')} of both "
            "have other values. Two models that differ give no equal numbers to the "
            "last digit, so an evaluation that gives both one result has loaded one of "
            "them twice (a path or a cache of its results), or other weights instead."
        )
    is_alike = counts["same"] + counts["changed"] == len(report.rows)
    roots = [
        [str(key) for key, _ in children_of(checkpoint.root)]
        for checkpoint in (report.before, report.after)
    ]
    if changed and is_alike and set(roots[0]) == set(roots[1]):
        yield Statement(
            "All names and shapes are the same in both: a program that loads one loads "
            "the other in its place."
        )
    for status, path in (("removed", first), ("added", second)):
        names_alone = [row.name for row in report.rows if row.status == status]
        if names_alone:
            others = [row.name for row in report.rows if row.status != status]
            shown = _parts_text(names_alone, others)
            yield Statement(f"Only {show(path, 80)} has {shown}.")
    yield from _heads_of_one(report, first, second)
    values = [
        f"{show(row.name, 60)} {before} → {after}"
        for row in report.values
        if row.before is not None
        and row.after is not None
        and (before := number_text(row.before.node)) is not None
        and (after := number_text(row.after.node)) is not None
    ]
    if values:
        yield Statement(f"Values that differ: {and_more(values, 6)}.")
    if changed:
        yield from _recorded_best(report, first, second)
        yield from later_statements(report, first, second, text)
    yield from _more_of_one(report, first, second)
    # The command that is printed below lists the others.
    for part in report.not_compared[:1]:
        yield Statement(f"Not compared: {show(part, 200)}.")
    yield from finding_statements(report.findings)
    named = [path for path in (first, second) if has_name_of_averages(path)]
    if not named:
        named = _named_beside(first, second)
    if len(named) == 1 and len(same) < len(report.rows):
        (path,) = named
        other = second if path == first else first
        yield Statement(
            f"By its name {show(path, 80)} has the running averages (EMA) of the "
            f"weights that {show(other, 80)} has: they follow these from step to step. "
            f"For samples and evaluation take {show(path, 80)}. A training goes on "
            f"from {show(other, 80)}."
        )
    if None not in names:
        yield Statement(
            "All of it, with how far each differs:",
            (),
            f"ckpt diff {names[0]} {names[1]}",
        )


_LISTED = 4
"""Names that are listed as they are; more are told by the modules around them."""


def _parts_text(names: Sequence[str], others: Collection[str]) -> str:
    """Names in words: each by the outermost module that holds none of some others."""
    if len(names) <= _LISTED:
        return and_more([show(name, 80) for name in names], _SHOWN)
    held = {begin for name in others for begin in _begins_of(name)}
    counts = Counter(
        next((begin for begin in _begins_of(name) if begin not in held), name)
        for name in names
    )
    told = [
        show(begin, 80)
        if begin in names
        else f"{show(begin, 80)} ({counted_noun(count, 'tensor')})"
        for begin, count in counts.items()
    ]
    return and_more(told, _SHOWN)


def _begins_of(name: str) -> list[str]:
    """The modules around a tensor, from the outermost on."""
    words = name.split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]


_SAME_RESULT = re.compile(
    r"(?i)\b(?:exactly |completely )?(?:the )?(?:same|identical)\b[^\n.?]{0,40}"
    r"\b(?:results?|outputs?|scores?|metrics?|accurac\w{1,3}|m?AP|models)\b"
    r"|\b(?:results?|outputs?|scores?|metrics?|accurac\w{1,3}|m?AP|data)\b[^\n.?]{0,60}"
    r"\b(?:same|identical)\b"
)
"""Words of two models that were measured with one result."""


def _heads_of_one(report: DiffReport, first: str, second: str) -> Iterator[Statement]:
    """Say that one of two files alone has a head, without which no program evaluates
    the other one.
    """
    common = sum(row.status in ("same", "changed") for row in report.rows)
    for status, path, other in (("removed", first, second), ("added", second, first)):
        heads: dict[str, int] = {}
        for row in report.rows:
            entry = row.before if status == "removed" else row.after
            layer = row.name.rpartition(".")[0]
            if row.status != status or entry is None or not HEAD_WORDS.search(layer):
                continue
            # A layer deep inside of a block may have the word too: `attn.fc`.
            if layer.count(".") > _DEEPEST:
                continue
            if row.name.endswith(".weight") and len(entry.tensor.shape) > 1:
                heads[layer] = entry.tensor.shape[0]
        if not 0 < len(heads) <= _MOST_HEADS or not common:
            continue
        told = [f"{show(name, 60)}, {count:,} rows" for name, count in heads.items()]
        yield Statement(
            f"{show(path, 80)} alone has a head ({and_more(told, 3)}), so it alone "
            "predicts what that was trained for: a program that evaluates "
            f"{show(other, 80)} makes one of random numbers, and its results are those "
            "of an untrained head."
        )


_MOST_HEADS = 2
_DEEPEST = 3
"""Dots in the name of a head, behind the name of its model."""


def _still_weights(report: DiffReport, changed: Sequence[str]) -> Iterator[Statement]:
    """Say that the weights of a run are the same in two saves, where the optimizer made
    steps between them.
    """
    weights = [row for row in report.rows if row.kind == "model"]
    moved = [row for row in report.rows if row.kind == "optimizer"]
    places = [pair.before.name for pair in report.pairs if pair.after.kind == "model"]
    is_still = bool(weights) and all(row.status == "same" for row in weights)
    if not is_still or len(places) != 1:
        return
    if not set(changed) <= {row.name for row in moved}:
        return
    place = show(places[0], 60) or "the root"
    yield Statement(
        f"All {counted_noun(len(weights), 'tensor')} of {place} are the same in both, "
        f"and {counted_noun(len(changed), 'tensor')} of the optimizer differ: the "
        "optimizer made steps between both saves, and these weights did not follow. "
        "Either its learning rate was 0, or the program saves other weights than the "
        "ones that it trains: a copy that it made before, or a module that was "
        "replaced (by a wrapper, by torch.compile, by a second load) after the "
        "optimizer or the save had got it."
    )


_EMA = re.compile(r"(?i)ema")
_NO_WORD = re.compile(r"[\W_]+")


def _named_beside(first: str, second: str) -> list[str]:
    """The file that is called as the other one is, with `ema` in it, also without a
    mark around: `checkpointema5.pt` beside `checkpoint5.pt`.
    """
    bases = {
        path: _NO_WORD.sub("", os.path.basename(path.rstrip("/")))
        for path in (first, second)
    }
    return [
        path
        for path, other in ((first, second), (second, first))
        if bases[path] != bases[other]
        and _EMA.sub("", bases[path], count=1) == bases[other]
    ]


def _recorded_best(report: DiffReport, first: str, second: str) -> Iterator[Statement]:
    """Say which of two files the run recorded as its best."""
    paths = {_last_part(path): path for path in (first, second)}
    for checkpoint, path in ((report.after, second), (report.before, first)):
        named = [
            _last_part(value.node)
            for value in checkpoint.values
            if value.path
            and str(value.path[-1]).endswith(BEST_PATHS)
            and isinstance(value.node, str)
        ]
        for name in named:
            # A file that records itself was the best of what came before it alone.
            if name not in paths or paths[name] == path or len(paths) < 2:
                continue
            other = second if paths[name] == first else first
            yield Statement(
                f"{show(path, 80)} records {show(name, 80)} as the best save of its "
                f"run by the metric that was watched. So for results take that one, "
                f"and {show(other, 80)} to go on with the run."
            )
            return


def _last_part(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("/"))[-1]


_OF_OPTIMIZER = re.compile(r"(?i)optim|(?:^|_)opt(?:_|$)")


def _more_of_one(report: DiffReport, first: str, second: str) -> Iterator[Statement]:
    """Say which keys one of two files has at its root, and the other one has not."""
    roots = [
        [str(key) for key, _ in children_of(checkpoint.root)]
        for checkpoint in (report.before, report.after)
    ]
    # Two lists of weights differ by their tensors, which have been told.
    if not set(roots[0]).intersection(roots[1]):
        return
    tensors = {row.name for row in report.rows}
    for path, ours, theirs in (
        (first, roots[0], roots[1]),
        (second, roots[1], roots[0]),
    ):
        more = [key for key in ours if key not in theirs and key not in tensors]
        if not more:
            continue
        states = [key for key in more if _OF_OPTIMIZER.search(key)]
        by, are = ("its name", "is") if len(states) == 1 else ("their names", "are")
        said = (
            f" By {by} {and_more([show(key, 40) for key in states], 3)} {are} the "
            "state of an optimizer: a training goes on from that file, and a use of "
            "the model needs none of it."
            if states
            else ""
        )
        shown = and_more([show(key, 40) for key in more], 8)
        yield Statement(f"Beside that {show(path, 80)} has {shown}.{said}")


def _at_other_places(
    report: DiffReport, first: str, second: str
) -> Iterator[Statement]:
    """Say where each of two files has the one model, where one of them alone has it
    below a key, among other parts.
    """
    if len(report.pairs) != 1:
        return
    (pair,) = report.pairs
    sides = (
        (first, report.before, pair.before),
        (second, report.after, pair.after),
    )
    # Both below keys, or both at the root, load alike and need no word.
    inner = [row for row in sides if row[2].path]
    outer = [row for row in sides if not row[2].path]
    if len(inner) != 1 or len(outer) != 1:
        return
    (path, checkpoint, section) = inner[0]
    keys = [str(key) for key, _ in children_of(checkpoint.root)]
    shown = and_more([show(key, 40) for key in keys], 8)
    states = [show(key, 40) for key in keys if _OF_OPTIMIZER.search(key)]
    use = (
        f" By its name {states[0]} is the state of an optimizer, so a run that was "
        f"stopped goes on from {show(path, 80)}. To predict, or to begin another "
        f"training with these weights, take {show(outer[0][0], 80)}."
        if states
        else ""
    )
    names = [set(part.names()) for part in (pair.before, pair.after)]
    if names[0] != names[1]:
        # The wrapper that a training had is the usual difference.
        word = pasted_path(path)
        wrapped = wrapped_names(section.names())
        begin = wrapper_prefix(wrapped[0]) if wrapped else ""
        told = f", with {show(begin, 40)} before the names" if wrapped else ""
        yield Statement(
            f"{show(path, 80)} has it in {show(section.name, 60)}{told}, one of its "
            f"keys ({shown}), and {show(outer[0][0], 80)} is the weights alone, by "
            f"other names at its root.{use}"
        )
        if wrapped and word is not None:
            yield Statement(
                "As weights alone, by names without that beginning:",
                (),
                f"ckpt slim {word} --strip -o plain.pth",
            )
        return
    yield Statement(
        f"{show(path, 80)} has it in {show(section.name, 60)}, one of its keys "
        f"({shown}), and {show(outer[0][0], 80)} is the weights alone, by their names "
        f"at its root.{use} A program that takes weights alone takes the other so:",
        (),
        load_of(checkpoint, [section]).expression,
    )
