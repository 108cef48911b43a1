"""The heads of models: the layers that other classes, or another task, replace."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ckpt.ext.explain.message import Message, Mismatch


def are_new_heads(
    absent: Sequence[str], message: Message, shapes: dict[str, tuple[int, ...]]
) -> bool:
    """Tell whether all that is missing is the head of a task, of layers that the file
    has none of.
    """
    layers = {name.rpartition(".")[0] for name in absent}
    modules = {layer.rpartition(".")[0] for layer in layers}
    placed = set(shapes).difference(message.unexpected)
    has_rest = any(
        _TASK_WORDS.search(module) or HEAD_WORDS.search(module)
        for module in modules
        if any(name.startswith(f"{module}.") for name in placed)
    )
    return (
        not message.mismatched
        # A layer may lack in a head of which the file has the rest.
        and not has_rest
        # aux_heads.tm lacks beside aux_heads.plddt: a run with other options saved.
        and not any(_has_siblings(layer, placed) for layer in layers)
        and all(
            HEAD_WORDS.search(layer) or _TASK_WORDS.search(layer) for layer in layers
        )
        and len(layers) <= _MOST_HEADS
        and len(absent) < len(shapes)
    )


def _has_siblings(layer: str, placed: Collection[str]) -> bool:
    """Tell whether a layer lies in a module of heads of which a file has others."""
    found = _HEADS_AROUND.match(layer)
    # The names of a file may have a prefix that those of the model lack.
    return found is not None and any(f".{found[0]}" in f".{name}" for name in placed)


_HEADS_AROUND = re.compile(r"(?:\w+\.)*?(?:\w+_)?heads\.(?=\w)")
"""A module that holds several heads."""


def heads_among(names: Sequence[str]) -> list[str]:
    """The layers among some names that have the word of a head."""
    layers = dict.fromkeys(name.rpartition(".")[0] for name in names)
    return [layer for layer in layers if HEAD_WORDS.search(layer)]


def is_head(
    row: Mismatch, rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]]
) -> bool:
    """Tell whether a tensor is one of the last layers, of which only the outputs
    differ.
    """
    if (
        len({_NUMBERS.sub(".<n>.", other.name) for other in rows}) > _MOST_HEADS
        or not row.checkpoint
        or not row.model
        or row.checkpoint[1:] != row.model[1:]
    ):
        return False
    # The last layers are heads by their place alone, others by their word.
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in shapes))
    layer, _, last = row.name.rpartition(".")
    # The weight of a norm has one dimension, and no head has.
    weight = row.checkpoint if last == "weight" else shapes.get(f"{layer}.weight")
    is_named_norm = _NORM.search(layer) and len(row.checkpoint) == 1
    if is_named_norm or (weight is not None and len(weight) == 1):
        return False
    if HEAD_WORDS.search(layer):
        return True
    # A parameter of its own, as a pose or a query, is no layer with outputs.
    return bool(layer) and last in _OF_LAYERS and layer in layers[-_LAST:]


_NORM = re.compile(r"(?:^|[._])(?:\w*norm|bn|ln)(?:_?\d+|_[a-z])?$", re.IGNORECASE)
"""The name of a norm, which may stand last and has no classes."""

_LAST = 2
_OF_LAYERS = ("weight", "bias", "weight_g", "weight_v", "kernel")
"""The last words of the names of tensors that a layer with outputs has."""

_MOST_HEADS = 16
"""Tensors of other shapes, but for the numbers in their names: a detector has a head at
each of its layers.
"""

_NUMBERS = re.compile(r"\.\d+\.")

HEAD_WORDS = re.compile(
    r"(?:^|[._])(?:head|heads|headers?|fc|classifier|classification|cls_score"
    r"|class_embed|bbox_pred|logits"
    r"|score|predictor|detect)(?:$|[._])"
)

_TASK_WORDS = re.compile(
    r"(?:^|[._])(?:pooler|qa_outputs|cls|lm_head|pre_classifier|out_proj|classification"
    r"|projector)(?:$|[._])"
)
