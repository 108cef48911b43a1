"""Errors about names that the file does not have: a program converted its names before
it loaded them, or put an adapter into the model that it belongs to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence

from ckpt.evidence.loading import string_literal
from ckpt.evidence.survey import Survey
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.text import and_more, show

_OF_UPSAMPLERS = re.compile(r"^up_blocks\.\d+\.upsamplers\.0\.conv\.(?:weight|bias)$")
"""The layers that converters to diffusers know by a list of two names."""
_OF_LORA = re.compile(r"(?i)lora|lokr|loha|hada")
_LEAST = 2


def converted_statements(
    message: Message, names: Collection[str], case: Case
) -> list[Statement]:
    """Say that a program gave the names of a file others before it loaded them, or
    return nothing where the message has a beginning of the file.
    """
    said = [
        *message.missing,
        *message.unexpected,
        *(row.name for row in message.mismatched),
    ]
    words = {name.partition(".")[0] for name in said}
    here = {part for name in names for part in name.split(".")[:-1]}
    # A name of the model inside of a name of the file may be a prefix alone.
    if not message.unexpected or len(words | here) == len(here) or words & here:
        return []
    own = list(dict.fromkeys(name.partition(".")[0] for name in names))
    # Without the origin it may be another file altogether.
    origin = name_origin(case.survey)
    if origin is None or "Stable Diffusion" not in origin:
        return []
    rows = [
        Statement(
            "The program gave the names of this file others before it loaded them: "
            f"none of those in the message is here, where they begin with "
            f"{and_more([show(word, 40) for word in own], 4)}. "
            f"{origin_opening(origin)} {origin}, and the error is one of the "
            "conversion, and not of a load. Take a newer version of the program, or of "
            "diffusers, which reads such a file itself (from_single_file)."
        )
    ]
    rows += _of_order(message, list(names), case)
    return rows


def _of_order(
    message: Message, names: Sequence[str], case: Case
) -> Iterator[Statement]:
    """Say that a file has its names in the order of the alphabet, which older
    converters to diffusers do not take.
    """
    lacking = [name for name in message.missing if _OF_UPSAMPLERS.match(name)]
    if not lacking or len(lacking) < len(message.missing):
        return
    layers = [name.removesuffix(".weight") for name in names if ".conv.weight" in name]
    places = {name: number for number, name in enumerate(names)}
    turned = [
        layer
        for layer in layers
        if places.get(f"{layer}.bias", len(names)) < places[f"{layer}.weight"]
    ]
    load = case.survey.load.expression
    if not turned or load is None:
        return
    stem = os.path.splitext(case.survey.path)[0]
    path = string_literal(f"{stem}.ordered.ckpt")
    yield Statement(
        "Its names are in the order of the alphabet, as safetensors writes them: "
        f"{show(turned[0], 100)}.bias stands before .weight. Older converters compare "
        "both names as a list, and miss these layers then. The same weights in the "
        "order of torch:",
        (),
        f'state = {load}; torch.save({{"state_dict": dict(sorted(state.items(), '
        'key=lambda row: (row[0].rpartition(".")[0], row[0].endswith(".bias"))))}, '
        f"{path})",
    )


def adapter_into_base(
    missing: Sequence[str], here: Sequence[str], survey: Survey
) -> Statement | None:
    """Say that a program put an adapter into the model that it belongs to, or return
    None.
    """
    origin = name_origin(survey) or ""
    if not origin.startswith("an adapter") or len(missing) < _LEAST or not here:
        return None
    # A model that asks for layers of LoRA wants an adapter, of other names.
    if any(_OF_LORA.search(name) for name in missing):
        return None
    if not all(_OF_LORA.search(name) or name.endswith(".alpha") for name in here):
        return None
    return Statement(
        f"This file is {origin}: it has layers of LoRA alone "
        f"({show(here[0], 100)}), and the program loaded it into the base model, which "
        f"asks for its own layers ({show(missing[0], 100)}). The base is not in it, "
        "and does not change in such a training. Load the base first, and give the "
        "adapter to what loads adapters. A state of a run (accelerate) is loaded into "
        "the models in the order in which they were saved: go on with the version and "
        "the options of the run that saved, or begin a run from the adapter "
        "(sd-scripts: --network_weights; PEFT: PeftModel.from_pretrained with "
        "is_trainable=True)."
    )
