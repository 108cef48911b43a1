"""Questions about several saves of one run: what each holds, and how two differ."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from ckpt.evidence.survey import Survey
from ckpt.ext.explain.case import Statement
from ckpt.ext.explain.parted import number_text
from ckpt.model.names import Path
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, pasted_path, show, size_text
from ckpt.tree.find import children_of

_DIFFERENCE = re.compile(
    r"(?i)\bdiffer(?:s|ent|ences?)?\b|\b(?:larger|bigger|smaller|lighter|heavier)\b"
    r"|\bwhich (?:one|file|checkpoint|of)\b|区别|不同|差异|哪个"
)
_NAMED = re.compile(
    r"[\w.=-]{1,100}\.(?:pth|pt|ckpt|safetensors|bin|pkl|tar|chkpt|model)\b"
)
_SHOWN = 8
_LONGEST = 3_000


class Save(NamedTuple):
    """One save of a folder: the file, its parts as text, those that are no weights, the
    places of its weights, and whether it has the state of an optimizer.
    """

    file: str
    text: str
    others: frozenset[str]
    models: frozenset[Path]
    resumes: bool


def asks_of_saves(text: str) -> bool:
    """Tell whether a short text asks how the files of a folder differ."""
    return len(text) <= _LONGEST and _DIFFERENCE.search(text) is not None


def describe_save(file: str, survey: Survey) -> Save:
    """Tell the parts of one save, with their bytes and the numbers of the run."""
    parts = []
    others = []
    for section in sorted(survey.sections, key=lambda part: -part.nbytes):
        name = show(section.name, 60) or "the weights alone"
        size = f" ({size_text(section.nbytes)})" if section.nbytes else ""
        parts.append(f"{name}{size}")
        if section.kind != "model":
            others.append(name)
    begun = {str(section.path[0]) for section in survey.sections if section.path}
    # At the root of a state dict each key is a tensor.
    if all(section.path for section in survey.sections):
        for key, node in children_of(survey.checkpoint.root):
            if str(key) in begun:
                continue
            name = show(str(key), 60)
            number = number_text(node)
            others.append(name)
            parts.append(name if number is None else f"{name} {number}")
    kinds = {section.kind for section in survey.sections}
    models = frozenset(row.path for row in survey.sections if row.kind == "model")
    return Save(
        file, and_more(parts, _SHOWN), frozenset(others), models, "optimizer" in kinds
    )


def saves_statements(
    folder: str, saves: Sequence[Save], text: str
) -> Iterator[Statement]:
    """Say what each save that a question names holds, and print the command that
    compares their weights. Nothing where it does not name two of them.
    """
    chosen = _named(saves, text)
    if len(chosen) < 2:
        return
    for save in chosen:
        yield Statement(f"{show(save.file, 100)} holds {save.text}.")
    if len(chosen) > 2:
        return
    first, second = sorted(chosen, key=lambda save: not save.resumes)
    if first.resumes and not second.resumes and first.models and second.models:
        more = and_more(sorted(first.others - second.others), _SHOWN)
        yield Statement(
            f"{show(first.file, 100)} alone has {more}. A run that goes on needs the "
            f"state of the optimizer, and so {show(first.file, 100)}. A program that "
            "only uses the model needs no more than its weights, which both have."
        )
    paths = [pasted_path(os.path.join(folder, save.file)) for save in chosen]
    # diff compares the parts that stand at the same place.
    if not first.models & second.models or None in paths:
        return
    yield Statement(
        "Whether the weights are the same, or of another step or average:",
        (),
        f"ckpt diff {paths[0]} {paths[1]}",
    )


def _named(saves: Sequence[Save], text: str) -> list[Save]:
    """The saves that a text names, in full or by the end of their names."""
    words = [os.path.splitext(match[0])[0] for match in _NAMED.finditer(text)]
    stems = {save: os.path.splitext(os.path.basename(save.file))[0] for save in saves}
    exact = [save for save in saves if stems[save] in words]
    if len(exact) > 1:
        return exact
    ends = tuple(f"_{word}" for word in words)
    return [
        save for save in saves if save in exact or (ends and stems[save].endswith(ends))
    ]
