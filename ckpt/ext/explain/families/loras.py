"""Adapters of diffusion models where programs merge them: ranks and bases that differ,
and whole models in the place of an adapter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.text import and_more, counted_noun, show

_DOWN = re.compile(r"\.(?:lora_down|lora_A)(?:\.\w{1,100})?\.weight$")
"""The matrix of a layer of LoRA whose rows are the rank."""
_OF_TEXT = re.compile(r"attn2[._]to_[kv]\.lora")
"""The layers of a diffusion model that take the text."""
_BASES = {768: "Stable Diffusion 1", 1024: "Stable Diffusion 2", 2048: "SDXL"}
"""The width of the text -> the models of Stability."""
_LORA = re.compile(r"[._]lora[._]|^lora_|\.(?:hada_w|lokr_w|oft_|boft_)")


def _ranks_and_widths(case: Case) -> tuple[list[int], list[int]]:
    """The ranks of an adapter, and the widths of text that its layers take."""
    ranks: set[int] = set()
    widths: set[int] = set()
    for entry in case.survey.tensors:
        shape = entry.tensor.shape
        if not _DOWN.search(entry.name) or len(shape) < 2:
            continue
        ranks.add(shape[0])
        if _OF_TEXT.search(entry.name):
            widths.add(shape[1])
    return sorted(ranks), sorted(widths)


def _answer_merge(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a program that merges adapters tensor by tensor, where two shapes
    differ.
    """
    del message
    ranks, widths = _ranks_and_widths(case)
    if not ranks:
        origin = name_origin(case.survey)
        said = "" if origin is None else f" {origin_opening(origin)} {origin}."
        yield Statement(
            f"No tensor of this file is of an adapter of LoRA, and the program merges "
            f"adapters.{said}"
        )
        return
    shown = and_more([f"{rank:,}" for rank in ranks], 4)
    text = f"This adapter has rank {shown} (the rows of its lora_down or lora_A)"
    bases = [f"{width:,} ({_BASES[width]})" for width in widths if width in _BASES]
    if bases:
        text += f", and its cross-attention takes text of width {and_more(bases, 2)}"
    yield Statement(
        f"{text}. The program adds the tensors of one name, and some have another "
        "shape in the other file: it has another rank, or was trained on another base "
        "model. ckpt diff of both lists the shapes that differ."
    )
    yield Statement(
        "Where the ranks alone do, svd_merge_lora.py of sd-scripts merges them, and "
        "merge_lora.py with --concat does. Adapters of different base models cannot be "
        "merged: they change layers of other sizes."
    )


def of_cut_name(name: str, case: Case) -> Iterator[Statement]:
    """Answer a key that is the name of a tensor without its last letter: so a program
    cuts names whose end it does not find, and an adapter has such ends.
    """
    names = [entry.name for entry in case.survey.tensors]
    whole = next((other for other in names if other[:-1] == name), None)
    if whole is None or any(map(_LORA.search, names)):
        return
    origin = name_origin(case.survey)
    said = (
        f"{counted_noun(len(names), 'tensor')} of weights" if origin is None else origin
    )
    yield Statement(
        f"This is {show(whole, 120)} of this file without its last letter: the program "
        "cuts the names of an adapter before .lora_, and this one has no such end. So "
        "it takes the file for an adapter of LoRA, and it is none: it holds "
        f"{said}. Give it adapters; whole models are merged by another tool, and an "
        "adapter is made of one by the difference from its base "
        "(extract_lora_from_models.py of sd-scripts)."
    )


FAMILIES = (
    Family(
        "merged-adapters",
        (r"weights shape mismatch merging v1 and v2, different dims\?",),
        answer_from_statements(_answer_merge),
        needs_open=True,
    ),
)
