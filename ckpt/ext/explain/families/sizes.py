"""Questions about the size of a file: the parts that take it, and what need not be
there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    finding_statements,
)
from ckpt.model.findings import Way
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.text import and_more, show, size_text
from ckpt.tree.find import children_of

_A_FILE = (
    r"(?:(?:\b(?:files?|checkpoints?|ckpts?|models?|weights?|saves?)|\.pth?|\.ckpt)\b"
    r"|文件|模型|权重)"
)
_A_SIZE = (
    r"(?i:(?<!-)\b(?:(?:file)?sizes?(?! of \d+\b(?! ?[KMGT]i?B))|larger?|bigg?er"
    r"|smaller|large|big|huge|doubled?|twice|grow(?:s|ing)?|grew"
    r"|\d+(?:\.\d+)?[ -]?(?:x|times|[KMG]i?B?)|[KMG]i?B)\b"
    r"|(?:这么?|那么|太|多|变|更)大|体积|占用)"
)
_OF_SIZES = re.compile(
    rf"(?i){_A_FILE}[^\n]{{0,200}}?{_A_SIZE}|{_A_SIZE}[^\n]{{0,200}}?{_A_FILE}"
)
_SHOWN = 6


def asks_of_sizes(text: str) -> bool:
    """Tell whether a question about two files is about their sizes."""
    return re.search(_A_SIZE, text) is not None


def sizes_statement(surveys: Sequence[Survey]) -> Statement:
    """Say how the bytes of two files differ. The parts of the larger one follow in the
    answer about it.
    """
    large, small = sorted(surveys, key=lambda row: -_bytes_of(row))
    parts = sorted(small.sections, key=lambda part: -part.nbytes)
    shown = and_more([_part_text(part) for part in parts if part.nbytes], _SHOWN)
    most, least = _bytes_of(large), _bytes_of(small)
    text = f"The tensors of {show(large.path, 80)} take {size_text(most)}"
    other = show(small.path, 80)
    if not least:
        return Statement(f"{text}, and {other} has none.")
    told = "as much as" if most == least else f"{most / least:.1f} times"
    return Statement(f"{text}, {told} those of {other} ({shown}).")


def _bytes_of(survey: Survey) -> int:
    return sum(part.nbytes for part in survey.sections)


def larger_of(surveys: Sequence[Survey]) -> str:
    """The path of the file with more bytes of tensors."""
    return max(surveys, key=_bytes_of).path


def of_sizes(text: str, case: Case) -> Iterator[Statement]:
    """Say which parts take the bytes of a file, where a question is about its size."""
    if _OF_SIZES.search(text) is None or not case.survey.tensors:
        return
    parts = sorted(case.survey.sections, key=lambda part: -part.nbytes)
    held = [part for part in parts if part.nbytes]
    if not held:
        return
    shown = and_more([_part_text(part) for part in held], _SHOWN)
    yield Statement(f"The tensors of this file take {shown}.")
    yield from _of_values(sum(part.nbytes for part in held), case)
    yield from _of_objects(held, case)
    # The command follows once, below all that it takes away.
    if len(held) == 1:
        yield from _of_beginnings(held[0], case)
    heavy = [row._replace(hint=None) for row in case.found("bloat", "optimizer-heavy")]
    yield from finding_statements(heavy)
    if len(held) > 1 or heavy:
        yield from command_statements(
            "To use the model, and not to train on, this is enough:",
            case.plan(("smaller",)),
        )
        return
    if held[0].kind == "optimizer":
        yield Statement(
            "It is the state of an optimizer, and no weights: SGD with momentum keeps "
            "a number for each parameter, so it is as large as the weights, and Adam "
            "keeps two. Only a run that goes on needs it."
        )
        return
    types = list(dict.fromkeys(row.tensor.dtype.name for row in case.survey.tensors))
    yield Statement(
        f"It holds nothing but weights, in {and_more(types, 3)}: the bytes follow from "
        "the number of its parameters, and another type of elements alone changes them."
    )
    if types == ["float32"]:
        yield from command_statements(
            "In half of the bytes, with fewer digits:",
            case.plan(("convert", "--dtype", "bfloat16")),
        )


_TRAINED_WITH = re.compile(
    r"(?i)(?:^|_)(?:queue|queues|bank|momentum|teacher|target|ema|averaged"
    r"|discriminator)(?:_|$)|_m$|^(?:net_?d|mpd|msd|dec_ema)$"
)
"""Words of parts that a training has beside the model: copies that follow it, memories
of features, a network that judges.
"""
_TAKEN_AS_IT_WAS = re.compile(
    r"(?i)^(?:conditioner|cond_stage_model|first_stage_model|vae|text_encoder\w{0,3}"
    r"|image_encoder|clip|t5|lpips)$"
)
"""Words of the models beside a network of diffusion."""
_LEAST_SHARE = 20
"""A part is told where it takes more than the 20th of the bytes."""


def _of_beginnings(part: Section, case: Case) -> Iterator[Statement]:
    """Say how the bytes of a model are divided among its modules, and which of these
    are of the training alone by their names.
    """
    sizes: Counter[str] = Counter()
    for name, entry in zip(part.names(), part.entries, strict=True):
        sizes[name.partition(".")[0]] += entry.tensor.nbytes
    large = [
        (word, size)
        for word, size in sizes.most_common()
        if _LEAST_SHARE * size >= part.nbytes
    ]
    if len(large) < 2 or part.kind != "model":
        return
    shown = [f"{show(word, 60)} {size_text(size)}" for word, size in large]
    yield Statement(f"Among its modules: {and_more(shown, _SHOWN)}.")
    besides = [word for word in sizes if _is_beside(word, sizes)]
    # A network that a copy follows is one that is trained: `text_encoder_m`.
    frozen = [
        word
        for word in sizes
        if _TAKEN_AS_IT_WAS.search(word)
        and word not in besides
        and f"{word}_m" not in sizes
    ]
    if frozen and len(frozen) < len(sizes):
        total = sum(sizes[word] for word in frozen)
        yield Statement(
            f"By their names {and_more([show(word, 60) for word in frozen], _SHOWN)} "
            f"({size_text(total)}) are models beside the one that is trained, which "
            "read the text or code the pictures. A training of the other part alone "
            "leaves them as they were: where the program loads them from files of "
            "their own, a save need not have them."
        )
    if not besides or len(besides) == len(sizes):
        return
    total = sum(sizes[word] for word in besides)
    exclude: list[str] = []
    for word in besides:
        exclude += ["--exclude", f"{word}*" if word in part.names() else f"{word}.*"]
    yield Statement(
        f"By their names {and_more([show(word, 60) for word in besides], _SHOWN)} "
        f"({size_text(total)}) are of the training alone: copies that follow the model "
        "(momentum, a teacher, averages), queues of features, a network that judges. A "
        "program that only predicts has no place for them, and published files leave "
        "them out."
    )
    yield from command_statements(
        "Without them:",
        case.plan(("slim", *exclude)) if len(besides) < 9 else Way(None),
    )


def _is_beside(word: str, sizes: Collection[str]) -> bool:
    """Tell whether a module is one that a training has beside the model."""
    if _TRAINED_WITH.search(word) is None:
        return False
    # `_m` is a copy only of a module that is there as well: `text_encoder_m`.
    return not word.endswith("_m") or word[:-2] in sizes


_MANY_BYTES = 64 << 10
"""Bytes of a file beside its tensors that a question about its size may mean."""
_MANY_VALUES = 1_000
_MOST_COUNTED = 1_000_000


def _of_values(tensor_bytes: int, case: Case) -> Iterator[Statement]:
    """Say which parts of a file hold many values that are no tensors."""
    try:
        size = os.path.getsize(case.survey.path)
    except OSError:  # one that is far away
        return
    if case.is_folder or size - tensor_bytes < max(_MANY_BYTES, tensor_bytes):
        return
    counts = {
        str(key): _count_values(child)
        for key, child in children_of(case.survey.checkpoint.root)
    }
    many = sorted(
        (key for key in counts if counts[key] >= _MANY_VALUES),
        key=lambda key: -counts[key],
    )
    if not many:
        return
    listed = [f"{show(key, 60)} ({counts[key]:,} values)" for key in many]
    yield Statement(
        f"Most of this file is no tensor: {size_text(size - tensor_bytes)} are values "
        f"of Python, in {and_more(listed, 4)}. Lists to which a run adds in every step "
        "(its losses, its metrics) make each save larger than the one before."
    )


def _count_values(node: Node) -> int:
    """Count the values in a part of a file that are neither containers nor tensors."""
    count = 0
    left = [node]
    while left and count < _MOST_COUNTED:
        node = left.pop()
        if tensor_of(node) is not None:
            continue
        children = children_of(node)
        if children:
            left += [child for _, child in children]
        else:
            count += 1
    return count


def _part_text(part: Section) -> str:
    """A part with its bytes: `1.16 MiB in optimizer (state of an optimizer)`."""
    kinds = {"optimizer": ", the state of an optimizer", "ema": ", averaged weights"}
    name = show(part.name, 80) or "the root"
    return f"{size_text(part.nbytes)} in {name}{kinds.get(part.kind, '')}"


_SCHEDULER = re.compile(r"(?i)sched")


def _of_objects(parts: Sequence[Section], case: Case) -> Iterator[Statement]:
    """Say that a scheduler brought its optimizer into the file."""
    inside = [
        part
        for part in parts
        if len(part.path) > 1 and _SCHEDULER.search(str(part.path[0]))
    ]
    if not inside:
        return
    label = show(str(inside[0].path[0]), 60)
    names = and_more([show(part.name, 80) for part in inside], 3)
    yield Statement(
        f"{label} has an optimizer with its tensors inside of it ({names}): it was "
        "pickled along with a function or an object of the run that the scheduler "
        "holds. No schedule needs it. Leave that value out of the state that is saved, "
        "or use a newer torch, whose schedulers leave it out."
    )
