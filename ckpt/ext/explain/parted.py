"""A folder that holds one save in parts, a file for each: the weights, their averages,
the optimizer, the schedule, the step. No index names them, so the content of each says
what it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from ckpt.evidence.optimizers import optimizer_facts, parts_of
from ckpt.evidence.survey import Survey
from ckpt.ext.explain.case import Statement, begin_sentence
from ckpt.ext.explain.families.averages import AVERAGES
from ckpt.ext.explain.message import Message
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, pasted_path, show, size_text
from ckpt.tree.find import counter
from ckpt.tree.view import look

MOST_PARTS = 24
"""Files of a folder beyond which it is no save in parts."""
_OF_OPTIMIZERS = frozenset(("optimizer", "stateless", "capturable", "schedule"))
"""The families of messages that are about the file of an optimizer or a schedule."""


class SavedPart(NamedTuple):
    """One file of a save in parts: its name, what it is, how it loads, and the names of
    its tensors.
    """

    file: str
    kind: str
    text: str
    line: str | None = None
    names: frozenset[str] = frozenset()
    size: int = 0
    """The bytes of its tensors."""


def describe_part(file: str, survey: Survey) -> SavedPart:
    """Tell what one file of a folder is, by its content."""
    line = survey.load.expression
    kinds = {row.kind for row in survey.sections if not row.path}
    keys = parts_of(survey.checkpoint.root)
    if "optimizer" in kinds:
        steps = max((use.steps for use in survey.uses), default=0) or _steps_in(survey)
        after = f" after {counted_noun(int(steps), 'step')}" if steps else ""
        text = f"the state of an optimizer{after}{_numbers_text(survey)}"
        return SavedPart(file, "optimizer", text, line)
    if survey.tensors and kinds == {"model"}:
        names = frozenset(entry.name for entry in survey.tensors)
        count = counted_noun(len(names), "tensor")
        if AVERAGES.search(file):
            text = f"by its name the running averages (EMA) of weights, {count}"
            return SavedPart(file, "averages", text, line, names)
        return SavedPart(file, "weights", f"weights, {count}", line, names)
    if "last_epoch" in keys and not survey.tensors:
        counted = number_text(keys["last_epoch"])
        count = f" (last_epoch {counted})" if counted else ""
        return SavedPart(file, "schedule", f"the state of a schedule{count}", line)
    if not survey.tensors and not keys:
        number = number_text(survey.checkpoint.root)
        if number:
            return SavedPart(file, "number", f"the number {number}", line)
    if "optimizer" in {row.kind for row in survey.sections} and not survey.models:
        shown = and_more([show(str(key), 40) for key in keys], 6)
        text = f"the optimizer and what else the run keeps ({shown})"
        return SavedPart(file, "optimizer", text, line)
    is_of_run = {"model", "optimizer"} <= {row.kind for row in survey.sections}
    if is_of_run:
        ranks = survey.checkpoint.layout or ""
        of = f" ({ranks})" if ranks else ""
        text = f"a checkpoint of the run{of}: the weights and their optimizer"
        # The line for DeepSpeed needs an import before it, and is for a run of it.
        is_of_torch = line is not None and line.startswith("torch.load(")
        return SavedPart(file, "run", text, line if is_of_torch else None)
    if "scale" in keys and "growth_factor" in keys:
        return SavedPart(file, "scaler", "the state of a GradScaler", line)
    shown = and_more([show(str(key), 40) for key in keys], 5)
    return SavedPart(file, "other", f"a dict of {shown}" if keys else "other", line)


def number_text(node: Node) -> str | None:
    """Return the text of a number of a run, or None: Python refuses to write out an int
    of more than 4,300 digits.
    """
    value = look(node).value
    # True is an int for isinstance.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return f"{value:,}" if abs(value) < 2**53 else None


def _steps_in(survey: Survey) -> float:
    """The highest step counter in the state of an optimizer that fits no model."""
    counts = [
        counter(entry.tensor)
        for entry in survey.tensors
        if entry.path and entry.path[-1] == "step"
    ]
    return max((count for count in counts if count is not None), default=0)


_NUMBERS = {
    "Adam-like": "two numbers for each parameter",
    "with momentum": "a number for each parameter",
}
"""The families of optimizers -> what their state keeps."""


def _numbers_text(survey: Survey) -> str:
    """Return the values that the state of an optimizer keeps, in brackets."""
    facts = [optimizer_facts(row) for row in survey.sections if row.kind == "optimizer"]
    first = facts[0] if facts else None
    kept = None if first is None else _NUMBERS.get(first.family or "")
    return f" ({kept})" if kept else ""


def is_one_save(parts: Sequence[SavedPart]) -> bool:
    """Tell whether the files of a folder are parts of one save: weights, and an
    optimizer, a schedule or a number in files of their own.
    """
    kinds = [part.kind for part in parts]
    return "weights" in kinds and any(
        kind in kinds for kind in ("optimizer", "schedule", "number")
    )


def choose_part(
    parts: Sequence[SavedPart], text: str, message: Message | None
) -> SavedPart | None:
    """The file that a message is about, or None where it does not say: the file that it
    names, the optimizer, or the one file whose tensors it names.
    """
    named = [
        part
        for part in parts
        if re.search(rf"(?<![\w.-]){re.escape(part.file)}(?![\w-])", text)
    ]
    if len(named) == 1:
        return named[0]
    if message is None:
        return None
    if message.kind in _OF_OPTIMIZERS:
        kind = "schedule" if message.kind == "schedule" else "optimizer"
        alike = [part for part in parts if part.kind == kind]
        return alike[0] if len(alike) == 1 else None
    wanted = {
        *message.missing,
        *message.unexpected,
        *(row.name for row in message.mismatched),
    }
    counts = [(len(wanted & part.names), part) for part in parts]
    most = max(count for count, _ in counts)
    if not most:
        return None
    best = [part for count, part in counts if count == most]
    # Averages have the names of their weights, and the weights are loaded first.
    plain = [part for part in best if part.kind == "weights"]
    if len(best) == 1:
        return best[0]
    return plain[0] if len(plain) == 1 else None


_MOST_NAMED = 6


def named_parts(text: str, folder: str) -> list[str]:
    """The files and folders in a folder that a text names, without their endings or
    with them, or nothing where it names too many.
    """
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return []
    stems = {entry: os.path.splitext(entry)[0] for entry in entries}
    named = [
        entry
        for entry in entries
        if not entry.startswith(".")
        and re.search(
            rf"(?:(?<![\w./-])|(?<=\s\./))"
            rf"(?:{re.escape(entry)}|{re.escape(stems[entry])})(?![\w/-])",
            text,
        )
    ]
    # A plain word, such as model, may be meant as a word.
    if len(named) == 1 and not re.search(r"[\d_]", stems[named[0]]):
        return []
    return named if len(named) <= _MOST_NAMED else []


def named_statements(folder: str, parts: Sequence[SavedPart]) -> Iterator[Statement]:
    """Say what each part of a folder is, and which of them is for what."""
    for part in parts:
        size = f", {size_text(part.size)}" if part.size else ""
        yield Statement(f"{show(part.file, 80)}: {part.text}{size}.", (), part.line)
    averages = [part for part in parts if part.kind == "averages"]
    weights = [part for part in parts if part.kind == "weights"]
    runs = [part for part in parts if part.kind == "run"]
    uses = []
    if averages:
        uses.append(f"{show(averages[0].file, 80)} is for samples and evaluation")
    if weights and not averages:
        uses.append(f"{show(weights[0].file, 80)} is for use, as it needs no optimizer")
    elif weights:
        uses.append(
            f"{show(weights[0].file, 80)} has the weights of the last step, which a "
            "program that predicts takes as well"
        )
    if runs:
        uses.append(f"a training goes on from {show(runs[0].file, 80)}")
    if runs and not weights:
        yield Statement(
            f"Only a training that goes on needs {show(runs[0].file, 80)}: a program "
            "that uses the model, or the adapter, takes the weights beside it."
        )
    elif len(uses) > 1:
        yield Statement(begin_sentence(f"{', and '.join(uses)}."))
    pair = [*averages, *weights]
    paths = [pasted_path(os.path.join(folder, part.file)) for part in pair[:2]]
    if len(pair) > 1 and None not in paths:
        yield Statement(
            "How far two of them differ:", (), f"ckpt diff {paths[1]} {paths[0]}"
        )


def parts_statements(
    folder: str, parts: Sequence[SavedPart], chosen: SavedPart | None
) -> Iterator[Statement]:
    """Say what each file of the folder is, and how a run takes them up again."""
    begin = (
        f"{show(os.path.basename(os.path.abspath(folder)), 80)} is a folder with one "
        f"save in {counted_noun(len(parts), 'part')}: each object of the run has a "
        "file of its own, and torch.load opens one file."
    )
    if chosen is not None:
        others = [f"{show(part.file, 80)} ({part.text})" for part in parts]
        yield Statement(
            f"{begin} They are {and_more(others, MOST_PARTS)}. The message is about "
            f"{show(chosen.file, 80)}:"
        )
        return
    yield Statement(
        f"{begin} To go on with the run, load each into its own object "
        "(load_state_dict), the model first:"
    )
    for part in parts:
        size = f", {size_text(part.size)}" if part.size else ""
        yield Statement(f"{show(part.file, 80)}: {part.text}{size}.", (), part.line)
    averages = [part for part in parts if part.kind == "averages"]
    weights = [part for part in parts if part.kind == "weights"]
    if len(averages) == 1 and len(weights) == 1:
        same = averages[0].names == weights[0].names
        yield Statement(
            f"{show(averages[0].file, 80)} is for samples and evaluation, and "
            f"{show(weights[0].file, 80)} for training on."
            + (" Both have the same names." if same else "")
        )
