"""Questions for the number and the kinds of the layers of a model, told by the shapes
and the names of its tensors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.model.text import and_more, counted_noun, show

ASKS_OF_LAYERS = (
    r"\b(?:how many|number of) (?:\w+ )?(?:conv\w{0,12}|linears?|dense|norms?"
    r"|\w{0,5}norms?|fully[ -]connected|kernels?)\b"
)
"""Words of a question for the number of layers."""
ASKS_OF_EXPERTS = r"\b(?:moe|mixture[ -]of[ -]experts?|experts?)\b"
"""Words of a question for experts."""
_KINDS = {
    2: "of 2 dimensions (linear layers, tables)",
    3: "of 3 (convolutions over sequences)",
    4: "of 4 (convolutions over pictures)",
    5: "of 5 (convolutions over volumes)",
}
"""The dimensions of a weight -> the layers that have such weights."""
_EXPERT = re.compile(r"(?:^|\.)(?:experts?|local_experts)\.(\d{1,5})\.")
_JOINED = re.compile(r"(?:^|\.)experts\.(?!\d)\w")
"""A tensor that holds all experts of a layer."""
_SHOWN = 3


def of_layers(text: str, case: Case) -> Iterator[Statement]:
    """Count the weights of each model by their dimensions, and its norms."""
    del text
    for section in case.survey.candidates[:_SHOWN]:
        dims: Counter[int] = Counter()
        norms = 0
        for name, entry in zip(section.names(), section.entries, strict=True):
            shape = entry.tensor.shape
            if name.rpartition(".")[2] == "running_mean":
                norms += 1
            elif len(shape) in _KINDS:
                dims[len(shape)] += 1
        told = [f"{dims[size]:,} {_KINDS[size]}" for size in sorted(dims, reverse=True)]
        if not told and not norms:
            continue
        where = show(section.name, 60) or "this file"
        more = f" Beside them: {counted_noun(norms, 'norm')} with running statistics."
        yield Statement(
            f"Weights in {where} by their shapes: {and_more(told, 5) or 'none'}."
            f"{more if norms else ''} Layers without weights (ReLU, pooling, dropout) "
            "leave nothing in a file."
        )


def of_experts(text: str, case: Case) -> Iterator[Statement]:
    """Say whether the names of a model have experts, and how many."""
    del text
    for section in case.survey.candidates[:1]:
        names = section.names()
        numbers = {int(found[1]) for name in names if (found := _EXPERT.search(name))}
        joined = [name for name in names if _JOINED.search(name)]
        if numbers:
            yield Statement(
                f"It is a mixture of experts by its names: {len(numbers):,} experts in "
                "a layer (experts.N)."
            )
        elif joined:
            yield Statement(
                f"It has tensors that hold all experts of a layer: "
                f"{show(joined[0], 100)} and {counted_noun(len(joined) - 1, 'more')}."
                if len(joined) > 1
                else f"{show(joined[0], 100)} holds all experts of a layer."
            )
        else:
            yield Statement(
                "No name of it has the word experts, so by its names it is no mixture "
                "of experts."
            )
