"""The order of a model, as far as names tell it.

A state dict lists the children of each module as they were registered, and a list of
modules counts from 0. A program that sorts by the alphabet puts `layers.10` before
`layers.2`, and a bias before its weight. safetensors sorts so within each dtype.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from ckpt.model.text import show

_TELLING = 4
"""Neighbours that stand by the alphabet in few models by chance."""

_SORTED = "its names are sorted, so the order of the model is lost"

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_DIGITS = re.compile(r"[0-9]+")


def disorder_reason(
    names: Sequence[str], blocks: Sequence[Sequence[str]]
) -> str | None:
    """Return why names are in no order of a model, or None. `blocks` are the names of
    each dtype, in their order.
    """
    indices = {name: index for index, name in enumerate(names)}
    pairs: list[tuple[int, int]] = []
    for name, index in indices.items():
        bias = f"{name.removesuffix('weight')}bias"
        if name.endswith("weight") and bias in indices:
            pairs.append((index, indices[bias]))
    # torch registers a weight before its bias, and the alphabet has them the other way
    # round.
    if pairs and all(bias < weight for weight, bias in pairs):
        return _SORTED
    if all(map(_is_ascending, blocks)):
        # Sorted as text, which only a list of ten and more shows: 1, 10, 2.
        for block in blocks:
            for children in _children_by_module(block).values():
                if not _is_ascending(_child_numbers(children)):
                    return _SORTED
    for parent, children in _children_by_module(names).items():
        numbers = _child_numbers(children)
        # Else they are the keys of a dict, or a list with modules that hold no tensors.
        is_list = len(numbers) == len(children)
        if not is_list or sorted(numbers) != list(range(len(numbers))):
            continue
        for first, second in pairwise(numbers):
            if second < first:
                before = show(f"{parent}{first}", 80)
                after = show(f"{parent}{second}", 80)
                return (
                    f"{before} stands before {after}, so the order of the model is lost"
                )
    return None


def may_be_sorted(blocks: Sequence[Sequence[str]]) -> bool:
    """Tell whether so many names stand by the alphabet, in each dtype, that it is
    hardly the order of a model.
    """
    if not all(map(_is_ascending, blocks)):
        return False
    telling: set[tuple[str, str]] = set()
    for block in blocks:
        for children in _children_by_module(block).values():
            for first, second in pairwise(children):
                # `layer1` before `layer2` is the order of a model as well.
                if _DIGITS.sub("", first) != _DIGITS.sub("", second):
                    telling.add((first, second))
    return len(telling) >= _TELLING


def _children_by_module(names: Iterable[str]) -> dict[str, list[str]]:
    """The children of each module, in the order of the names. A module is what its
    names begin with: `layers.0.`.
    """
    families: dict[str, dict[str, None]] = {}
    for name in names:
        begin = 0
        for part in name.split("."):
            families.setdefault(name[:begin], {})[part] = None
            begin += len(part) + 1
    return {parent: list(children) for parent, children in families.items()}


def _child_numbers(children: Iterable[str]) -> list[int]:
    return [int(child) for child in children if _NUMBER.fullmatch(child)]


_Row = TypeVar("_Row", str, int)


def _is_ascending(rows: Sequence[_Row]) -> bool:
    return all(first <= second for first, second in pairwise(rows))
