"""Keys that one side alone has, where all the others fit: scales that were trained, and layers that a newer program adds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ckpt.jobs.explain.case import Case, Statement
from ckpt.text import and_more, plural, show
from ckpt.tree.find import counter

_TRAINED = re.compile(
    r"(?:^|[._])(?:gain|gamma|alpha|lambda|(?:layer|skip|res|residual|branch)_?scale)\d{0,2}$"
)
"""The last word of a scale that is trained. Plain `scale` is not among them: quantizers name theirs so."""
_RELEASED = re.compile(r"([A-Za-z]\w{2,60})-[0-9a-f]{8}\.\w{1,20}")
"""The name of a file that begins with its model, before the first letters of its checksum."""


def trained_scales(left: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the keys without a place that are scales inside of modules whose other tensors have their place."""
    lost = set(left)
    taken = {name.rpartition(".")[0] for name in shapes if name not in lost}
    parents = {parent for name in taken for parent in (name, name.rpartition(".")[0]) if parent}
    return [name for name in left if _TRAINED.search(name) and name.rpartition(".")[0] in parents]


def trained_scales_statement(names: Sequence[str], case: Case) -> Statement | None:
    """Say that scales are lost without which the model gives other results, or return None where all of them have one value."""
    wanted = set(names)
    values = [
        counter(entry.tensor)
        for entry in case.survey.tensors
        if any(entry.name == name or entry.name.endswith(f".{name}") for name in wanted)
    ]
    numbers = [value for value in values if value is not None]
    if len(numbers) == len(values) and len(set(numbers)) < 2:
        return None  # a constant has one value everywhere
    words = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    text = (
        f"{plural(len(names), 'key')} of these {'is a scale that was' if len(names) == 1 else 'are scales that were'} trained"
        f" ({and_more([show(word, 60) for word in words], 3)}{_range_of(numbers)}), in blocks whose other tensors the model takes. With"
        " strict=False it loads without them, and gives other results than the model that was saved. Build the model that has them."
    )
    released = _RELEASED.fullmatch(os.path.basename(case.survey.path))
    if released is not None:
        text += f" By the name of this file it may be {show(released[1], 60)}."
    return Statement(text)


def _range_of(numbers: Sequence[float]) -> str:
    """The lowest and the highest of some numbers that differ, as a part of a sentence."""
    if len(set(numbers)) < 2:
        return ""
    return f", from {min(numbers):.3g} to {max(numbers):.3g}"
