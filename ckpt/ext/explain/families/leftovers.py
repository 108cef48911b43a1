"""Keys that one side alone has, where all the others fit: scales that were trained, and
layers that a newer program adds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence

from ckpt.ext.explain.case import Case, Statement, shared_beginning
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import counter

_TRAINED = re.compile(
    r"(?:^|[._])(?:gain|gamma|alpha|lambda|(?:layer|skip|res|residual"
    r"|branch)_?scale)\d{0,2}$"
)
"""The last word of a scale that is trained. Plain `scale` is not among them: quantizers
name theirs so.
"""
_RELEASED = re.compile(r"([A-Za-z]\w{2,60})-[0-9a-f]{8}\.\w{1,20}")
"""The name of a file that begins with its model, before the first letters of its
checksum.
"""


def trained_scales(
    left: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Return the keys without a place that are scales inside of modules whose other
    tensors have their place.
    """
    lost = set(left)
    taken = {name.rpartition(".")[0] for name in shapes if name not in lost}
    parents = {
        parent for name in taken for parent in (name, name.rpartition(".")[0]) if parent
    }
    return [
        name
        for name in left
        if _TRAINED.search(name) and name.rpartition(".")[0] in parents
    ]


def trained_scales_statement(names: Sequence[str], case: Case) -> Statement | None:
    """Say that scales are lost without which the model gives other results, or return
    None where all of them have one value.
    """
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
        f"{counted_noun(len(names), 'key')} of these "
        f"{'is a scale that was' if len(names) == 1 else 'are scales that were'} "
        "trained"
        f" ({and_more([show(word, 60) for word in words], 3)}{_range_of(numbers)}), in "
        "blocks whose other tensors the model takes. With"
        " strict=False it loads without them, and gives other results than the model "
        "that was saved. Build the model that has them."
    )
    released = _RELEASED.fullmatch(os.path.basename(case.survey.path))
    if released is not None:
        text += f" By the name of this file it may be {show(released[1], 60)}."
    return Statement(text)


def _range_of(numbers: Sequence[float]) -> str:
    """The lowest and the highest of some numbers that differ, as a part of a
    sentence.
    """
    if len(set(numbers)) < 2:
        return ""
    return f", from {min(numbers):.3g} to {max(numbers):.3g}"


# --- a program that builds more -------------------------------------------------------

_FEW = 10
"""Tensors of a file for each key that lacks, from which on the key is an addition to
the same model.
"""


def added_layers(absent: Sequence[str], names: Collection[str]) -> Statement | None:
    """Say that a program adds layers to blocks that a file has, or return None where a
    key lacks its whole block.
    """
    if not absent or len(names) < _FEW * len(absent):
        return None
    shared = shared_beginning(sorted(names)).rstrip(".")
    inner = _names_of_blocks(names) - {shared}
    blocks = [_block_of(name, inner) for name in absent]
    if not all(blocks):
        return None
    block = max(blocks, key=len)
    wanted = absent[blocks.index(block)][len(block) + 1 :].partition(".")[0]
    held = dict.fromkeys(
        name[len(block) + 1 :].partition(".")[0]
        for name in names
        if name.startswith(f"{block}.")
    )
    return Statement(
        "The message names no unexpected key, so all "
        f"{counted_noun(len(names), 'tensor')} of the model in this file have their "
        "place. The model asks for"
        f" {len(absent):,} more, in blocks that the file has: {show(block, 100)} has "
        f"{and_more([show(word, 40) for word in held], 4)} here, and no"
        f" {show(wanted, 40)}. Most likely the program is of another version than the "
        "one that saved, or was built with other options. Take that version:"
        " what is loaded without these keys is random there."
    )


def _names_of_blocks(names: Collection[str]) -> set[str]:
    """The names of all modules around the tensors of a file."""
    blocks: set[str] = set()
    for name in names:
        parent = name.rpartition(".")[0]
        while parent and parent not in blocks:
            blocks.add(parent)
            parent = parent.rpartition(".")[0]
    return blocks


def _block_of(name: str, blocks: Collection[str]) -> str:
    """The innermost block of a file in which a key would be, or an empty text."""
    parent = name.rpartition(".")[0]
    while parent and parent not in blocks:
        parent = parent.rpartition(".")[0]
    return parent


# --- experts --------------------------------------------------------------------------

_EXPERT_ALONE = re.compile(r"\.experts\.local_experts\.\d+\.linear_fc[12]\.")
"""The name of a layer of one expert in Megatron-LM."""
_EXPERTS_AS_ONE = re.compile(
    r"\.experts\.(?:weight[12]|linear_fc[12]\.(?:weight|bias)\d+)$"
)
"""The name of a tensor in which Megatron-LM has the experts for grouped GEMM."""
_OF_EXPERTS = re.compile(r"(?:^|[._])(?:moe|experts?)(?:_|$)")


def layout_of_experts(
    absent: Sequence[str], left: Sequence[str], case: Case
) -> Statement | None:
    """Say that Megatron-LM keeps experts one by one in the file and together in the
    model, or the other way round.
    """
    settings = {
        value.name: value.node
        for value in case.survey.checkpoint.values
        if value.path
        and _OF_EXPERTS.search(str(value.path[-1]))
        and isinstance(value.node, (bool, int))
    }
    recorded = next(
        (
            value
            for name, value in settings.items()
            if name.endswith("moe_grouped_gemm")
        ),
        None,
    )
    shown = and_more(
        [f"{show(name, 80)} is {value}" for name, value in settings.items()], 3
    )
    said = f" In this file {shown}." if settings else ""
    if (
        _are_all(absent, _EXPERTS_AS_ONE)
        and _are_all(left, _EXPERT_ALONE)
        and recorded is not True
    ):
        return Statement(
            "This file has a layer of its own for each expert (local_experts), and the "
            "model was built for grouped GEMM, with the experts of a layer"
            f" together.{said} Load it without --moe-grouped-gemm. No renaming makes "
            "the one of the other."
        )
    if (
        _are_all(absent, _EXPERT_ALONE)
        and _are_all(left, _EXPERTS_AS_ONE)
        and recorded is not False
    ):
        return Statement(
            "This file has the experts of a layer together, for grouped GEMM, and the "
            "model was built with a layer of its own for each (local_experts)."
            f"{said} Load it with --moe-grouped-gemm. No renaming makes the one of the "
            "other."
        )
    return None


def _are_all(names: Sequence[str], pattern: re.Pattern[str]) -> bool:
    """Tell whether there are names, and each has the pattern."""
    return bool(names) and all(pattern.search(name) for name in names)
