"""Adapters that hold more than their matrices of LoRA: whole layers, weights of the
base, layers that a program applies no adapter to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.model.text import and_more, counted_noun, pasted_path, show

UNSUPPORTED = re.compile(
    r"([\w.-]{3,2000}) is unsupported LoRA weight"
    r"|Unexpected name '([^'\n]{3,2000})': Not a lora_A or lora_B tensor"
    r"|unrecognized tensor(?: name)? ([\w.-]{3,2000})"
)
"""The words of vLLM and of llama.cpp for a tensor of an adapter that they do not
take.
"""
_MATRIX = re.compile(r"\.lora_(?:A|B|a|b|up|down|embedding_A|embedding_B)\b")
_BASE = ".base_layer."


def of_unsupported(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that applies adapters, and meets a tensor of one that it does
    not take.
    """
    name = next(text for text in found.groups() if text is not None).rstrip(".")
    names = [entry.name for entry in case.survey.tensors]
    matrices = [other for other in names if _MATRIX.search(other)]
    # A name of another file, or a file without matrices, is no matter of this adapter.
    if name not in names or not matrices:
        return
    shown = show(name, 120)
    if _BASE in name:
        held = [other for other in names if _BASE in other]
        text = (
            f"{shown} is the weight of the base model itself, which PEFT saves with "
            "the adapter where the adapter changes an embedding or the output layer. "
            f"The adapter does not need {'it' if len(held) == 1 else 'them'}: the base "
            "has it."
        )
        # The weights of the base are in the base model too, so nothing is lost without
        # them.
        yield from _without(text, f"*{_BASE}*", case)
    elif _MATRIX.search(name):
        # PEFT puts `base_model.model.` before each name of the base.
        layer = _MATRIX.split(name)[0].removeprefix("base_model.model.")
        yield Statement(
            f"{shown} is a matrix of LoRA for {show(layer, 120)}, which the adapter "
            "changes too (target_modules), and the program applies none to this layer "
            "or does not know its names."
        )
    else:
        whole = [
            other for other in names if not _MATRIX.search(other) and _BASE not in other
        ]
        listed = and_more([show(other, 120) for other in whole], 3)
        yield Statement(
            f"Beside {counted_noun(len(matrices), 'tensor')} of LoRA this adapter has "
            f"whole layers that the training changed (modules_to_save, new tokens), "
            f"which replace those of the base: {listed}. The program takes LoRA alone."
        )
    yield from _merged(case)
    yield from load_statements(case)


def _without(text: str, glob: str, case: Case) -> Iterator[Statement]:
    """Say a text, with the command that leaves out some tensors."""
    way = case.plan(("slim", "--exclude", glob, "--with-config"))
    if way.command is None:
        yield Statement(text)
    else:
        yield Statement(f"{text} The adapter without it:", (), way.command)


def _merged(case: Case) -> Iterator[Statement]:
    """Say how an adapter becomes part of its base, in which any program takes it."""
    path = pasted_path(case.survey.path)
    named = [str(node) for _, node in case.finds_value(("base_model_name_or_path",))]
    base = f" BASE is {show(named[0], 120)} on your disk." if named else ""
    if path is not None:
        yield Statement(
            "Merged into its base with all that it holds, no adapter is left: ckpt "
            f"merge BASE {path} -o merged --with-config.{base}"
        )
