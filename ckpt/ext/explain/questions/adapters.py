"""Questions about an adapter in a file: what it learnt, what it changes, how strong it
is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.evidence.adapters import adapter_of, piece_of, scales_of
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.merging import of_adapter_alone
from ckpt.ext.explain.questions.cards import of_adapter
from ckpt.model.checkpoint import looks_of
from ckpt.model.text import and_more, be_verb, counted_noun

ASKS_OF_STRENGTH = (
    r"\b(?:strength|multiplier|scal(?:e|ing)|intensity|weight of the (?:lora|adapter))"
    r"\b|\b(?:stronger|weaker)\b"
)
"""Words of a question for the factor with which an adapter is added."""
ASKS_WHETHER_LEARNT = (
    r"\b(?:learn\w{0,4}|learnt|do(?:es|ing)? (?:any ?thing|nothing)"
    r"|(?:no|any) effect|change\w? (?:any ?thing|nothing)|all zeros?|empty|untrained)\b"
)
"""Words of a question whether an adapter does something."""
_COMPLAINS = re.compile(
    r"(?i)\b(?:lora|adapter|peft)s?\b[^\n]{0,160}(?:\b(?:no|not|any|nothing|without|never"
    r"|same|identical)\b|n'?t\b)[^\n]{0,60}\b(?:do|doing|effects?|train\w{0,3}|learn\w{0,3}"
    r"|work\w{0,3}|chang\w{1,3}|influence|difference|base|saved|output|text|image)"
)
"""Words of a text that says an adapter does nothing, also without a question mark."""


def complains_of_adapter(text: str) -> bool:
    """Tell whether a text says that an adapter does nothing."""
    return _COMPLAINS.search(text) is not None


ASKS_OF_ADAPTER = (
    r"\b(?:rank|alpha|r and alpha|target[_ ]?modules?|which (?:layers?|modules?))\b"
)
"""Words of a question for what an adapter is."""
_LISTED = 12


def _find_adapter(case: Case) -> Section | None:
    """The first part of a file that is an adapter, or None."""
    for section in case.survey.candidates:
        if adapter_of(section.names(), looks_of(section.entries)) is not None:
            return section
    return None


def of_learnt_adapter(text: str, case: Case) -> Iterator[Statement]:
    """Say which layers an adapter changes at all: one whose B is zeros adds nothing."""
    del text
    section = _find_adapter(case)
    if section is None or case.measured is None:
        return
    ups = [
        name
        for name in section.names()
        if (piece := piece_of(name)) is not None and piece.part == "up"
    ]
    if not ups:
        return
    zeros = {
        row.label
        for row in case.measured.rows
        if row.found is not None and row.zeros == row.found.numel > 0
    }
    begin = f"{section.name}." if section.name else ""
    hollow = [name for name in ups if name in zeros or f"{begin}{name}" in zeros]
    whole = counted_noun(len(ups), "layer")
    why = "(lora_B, lora_up, with which an adapter adds its product)"
    if len(hollow) == len(ups):
        yield Statement(
            f"B of all {whole} {why} is zeros, as before training: this adapter adds "
            "nothing, and the model with it is the base model."
        )
        return
    if hollow:
        yield Statement(
            f"B of {len(hollow):,} of {whole} {why} {be_verb(hollow)} zeros, as before "
            "training: there the adapter adds nothing. The others changed.",
            tuple(hollow) if len(hollow) <= _LISTED else (),
        )
        return
    yield Statement(
        f"B of none of its {whole} {why} is zeros. It begins as zeros, but where a "
        "training starts from parts of the base model (PiSSA, OLoRA, LoftQ), so each "
        "of them was trained. How good the result is, no size says."
    )


def of_strength(text: str, case: Case) -> Iterator[Statement]:
    """Say with which factor an adapter is added, and where a program changes it."""
    del text
    section = _find_adapter(case)
    if section is None:
        return
    found = adapter_of(section.names(), looks_of(section.entries))
    assert found is not None
    alphas = [section.entries[number].tensor for number in found.alphas]
    own = scales_of(alphas, found.ranks).text
    config = [
        node
        for _, node in case.finds_value(("lora_alpha",))
        if isinstance(node, (int, float))
    ]
    rank = found.ranks[0] if len(found.ranks) == 1 else 0
    if not own and len(config) == 1:
        own = f"lora_alpha {config[0]:g}"
        if rank:
            own += f", and so the factor {config[0] / rank:g}"
    ranks = and_more([str(number) for number in found.ranks], 6)
    said = f"It records {own}." if own else "Nothing in it says alpha."
    yield Statement(
        "An adapter adds B times A times alpha / rank (rsLoRA: by the square root of "
        f"the rank). Its rank is {ranks}. {said}"
    )
    yield Statement(
        "Programs multiply that by a strength of their own, which no file holds: "
        "PEFT set_scale or add_weighted_adapter, diffusers set_adapters(names, "
        "adapter_weights=…), the number behind the name in web UIs. A merge with "
        "another alpha / rank: ckpt merge BASE ADAPTER --scale X."
    )


ASKS_TO_TRAIN_ON = (
    r"\b(?:lora|adapters?|peft|qlora)\b[\s\S]{0,200}\b(?:continu\w{1,4}|resum\w{1,4}"
    r"|keep|further|more)\b[^\n]{0,30}\b(?:fine[ -]?tun|train)\w{0,4}"
    r"|\b(?:continu\w{1,4}|resum\w{1,4}|keep) (?:to )?(?:fine[ -]?tun|train)\w{0,4}\b"
    r"[\s\S]{0,200}\b(?:lora|adapters?|peft|qlora)\b"
)
"""Words of a question for a training that goes on with an adapter."""


def of_further_training(text: str, case: Case) -> Iterator[Statement]:
    """Say how the folder of an adapter of PEFT is trained further."""
    del text
    if "adapter_config.json" not in case.survey.checkpoint.parts:
        return
    kept = (
        ""
        if case.optimizers
        else " This folder has no state of an optimizer, so its moments begin anew."
    )
    yield Statement(
        "An adapter is trained on without a merge. is_trainable=True puts it on the "
        "base as one that is trained, and without it the adapter is frozen. The base "
        "may be loaded in 4 or 8 bits, as in the training before "
        "(prepare_model_for_kbit_training first): the adapter stays in floats."
        f"{kept}",
        (),
        f"peft.PeftModel.from_pretrained(base, {case.path_literal}, is_trainable=True)",
    )


def of_asked_adapter(text: str, case: Case) -> Iterator[Statement]:
    """Say what an adapter is, where the file is one, and what it lacks without its
    base.
    """
    yield from of_adapter(text, case)
    if _WITHOUT_BASE.search(text) is not None:
        yield from of_adapter_alone(case)


_WITHOUT_BASE = re.compile(
    r"(?i)\bwithout (?:the |its |a )?base\b|\balone\b|\bby itself\b"
)
