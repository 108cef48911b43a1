"""The number and the names of classes that a question asks a file for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.heads import HEAD_WORDS
from ckpt.model.text import and_more, counted_noun, pasted_path, shell_word, show

_CLASSES = re.compile(
    r"(?i)\bclass(?:es)?\b[^\n]{0,40}\b(?:names?|numbers?|count|labels?)\b"
    r"|\b(?:number|names?|how many|which|what) (?:of )?(?:the )?(?:class(?:es)?"
    r"|categories|labels)\b|\b(?:num|n)_?class(?:es)?\b|\bclass_?names?\b"
    r"|\b\d{1,5} class(?:es)?\b"
)
_COUNTS = (
    "num_classes",
    "n_classes",
    "nclasses",
    "nb_classes",
    "nc",
    "num_labels",
    "num_class",
    "class_num",
    "NUM_CLASSES",
)
"""The keys under which programs keep the number of their classes."""
_NAMES = (
    "names",
    "class_names",
    "classes",
    "CLASSES",
    "classnames",
    "labels",
    "categories",
    "class_to_idx",
    "id2label",
    "label2id",
    "idx_to_class",
)
"""The keys under which programs keep the names of their classes."""
_SHOWN = 6
_MOST_NAMES = 20
_MOST_HEADS = 3


def asks_of_classes(text: str) -> bool:
    """Tell whether a text asks for the classes of a file."""
    return "?" in text and _CLASSES.search(text) is not None


def of_classes(text: str, case: Case) -> Iterator[Statement]:
    """Say which classes a file records, and how many rows its heads have, where a
    question is about them.
    """
    if asks_of_classes(text):
        yield from classes_statements(case)


def classes_statements(case: Case) -> Iterator[Statement]:
    """Say which classes a file records, and how many rows its heads have."""
    told = [
        f"{show(name, 80)} is {node}"
        for name, node in case.finds_value(_COUNTS)
        if type(node) is int
    ]
    listed = _names_of_classes(case)
    told += [
        f"{show(place, 80)} has {counted_noun(len(names), 'name')} "
        f"({and_more([show(name, 40) for name in names], _MOST_NAMES)})"
        for place, names in listed.items()
    ]
    heads = _heads_of(case)
    if not told and not heads:
        return
    rows = and_more(
        [f"{show(name, 80)} has {count:,}" for name, count in heads.items()], _SHOWN
    )
    outputs = (
        f" By its last layers: {rows} rows. Detectors have one row more than classes, "
        "for no class (DETR and its kin, detectron2), and ids that begin at 1, or a "
        "class that stands for none, change the count too."
        if heads
        else ""
    )
    first = next(iter(listed), None) or next(
        (name for name, _ in case.finds_value(_COUNTS)), None
    )
    path = pasted_path(case.survey.path)
    word = None if first is None or first.startswith("-") else shell_word(first)
    recorded = (
        f"This file records its classes: {and_more(told, _SHOWN)}."
        if told
        else "This file records no names and no number of classes."
    )
    command = None if path is None or word is None else f"ckpt get {path} {word}"
    yield Statement(f"{recorded}{outputs}", (), command if told else None)


def _names_of_classes(case: Case) -> dict[str, list[str]]:
    """The lists of names that a file keeps under a key for classes."""
    found: dict[str, list[str]] = {}
    for value in case.survey.checkpoint.values:
        keys = [str(key) for key in value.path]
        node = value.node
        if keys and keys[-1] in _NAMES and isinstance(node, (list, tuple)):
            names = [row for row in node if isinstance(row, str)]
            if names and len(names) == len(node):
                found[value.name] = names
        elif len(keys) > 1 and keys[-2] in _NAMES and isinstance(node, (str, int)):
            place = value.name.rpartition(".")[0]
            # label2id has the names as its keys.
            name = node if isinstance(node, str) else keys[-1]
            found.setdefault(place, []).append(name)
    return found


def _heads_of(case: Case) -> dict[str, int]:
    """The last layers of a model by their words, with the rows of their weights."""
    heads: dict[str, int] = {}
    for section in case.survey.candidates[:1]:
        for entry in section.entries:
            layer, _, last = entry.name.rpartition(".")
            if last == "weight" and HEAD_WORDS.search(layer) and entry.tensor.shape:
                heads[layer] = entry.tensor.shape[0]
    return heads if len(heads) <= _MOST_HEADS else {}
