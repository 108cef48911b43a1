"""Errors of programs that put a pipeline of diffusion together: a file that holds a
part of it, and another loader's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message

_PARTS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "a LoRA",
        re.compile(
            r"(?:^lora_|\.lora_[AB]\.|\.lora_(?:up|down)\.|_lora\.(?:up|down)\.)"
        ),
        "Load LoRA, models/loras",
    ),
    (
        "a ControlNet",
        re.compile(r"^(?:control_model\.|controlnet_|input_hint_block\.)"),
        "Load ControlNet Model, models/controlnet",
    ),
    (
        "a VAE",
        re.compile(
            r"^(?:first_stage_model\.|vae\.|(?:encoder|decoder)\.(?:conv_in|conv_out"
            r"|mid|mid_block)\.|post_quant_conv\.)"
        ),
        "Load VAE, models/vae",
    ),
    (
        "a text encoder",
        re.compile(
            r"^(?:cond_stage_model\.|conditioner\.|text_encoders?\.|text_model\."
            r"|transformer\.text_model\.|encoder\.block\.\d)"
        ),
        "Load CLIP, models/text_encoders",
    ),
    (
        "a diffusion model",
        re.compile(
            r"^(?:model\.diffusion_model\.|diffusion_model\.|double_blocks\."
            r"|single_blocks\.|joint_blocks\.|transformer_blocks\."
            r"|down_blocks\.|up_blocks\.|input_blocks\.|output_blocks\.)"
        ),
        "Load Diffusion Model, models/diffusion_models",
    ),
)
"""The parts of a pipeline, the beginnings of their names, and the node of ComfyUI that
loads one with its folder.
"""


_LACKING = re.compile(
    r"\b(?:clip|VAE)(?= input is invalid| is invalid| or text encoder|\.)"
)
_ASKED = {"clip": "a text encoder", "vae": "a VAE"}
"""The word of ComfyUI for a part that it lacks -> the part."""


def _loader_of(part: str) -> str:
    """The node of ComfyUI that loads a part, with its folder in brackets."""
    loader = next(loader for name, _, loader in _PARTS if name == part)
    node, _, folder = loader.partition(", ")
    return f"{node} ({folder})"


def _answer_pipeline(message: Message, case: Case) -> Iterator[Statement]:
    """Say which parts of a pipeline a file holds, and what loads a part alone."""
    names = [entry.name for entry in case.survey.tensors]
    parts = [
        (part, loader)
        for part, pattern, loader in _PARTS
        if any(pattern.search(name) for name in names)
    ]
    if any(part in ("a LoRA", "a ControlNet") for part, _ in parts):
        parts = parts[:1]  # both have the names of the layers that they change too
    wanted = _LACKING.search(message.text)
    asked = None if wanted is None else _ASKED[wanted[0].lower()]
    if asked is not None and any(part == asked for part, _ in parts):
        yield Statement(
            f"This file holds {asked}: another file was loaded, or the loader does not "
            "know"
            " its names. A newer version of the program may."
        )
        return
    if asked is not None and len(parts) > 1:
        held = " and ".join(part for part, _ in parts[::-1])
        yield Statement(
            f"This file holds {held}, and no name of {asked}: load {asked} from a file "
            "of its"
            f" own, by the node {_loader_of(asked)}."
        )
        return
    if not parts:
        yield Statement(
            "This file has no name of a model that pipelines know: another file was "
            "loaded."
        )
    elif len(parts) == 1:
        ((part, loader),) = parts
        node, _, folder = loader.partition(", ")
        yield Statement(
            f"This file holds {part} alone, and a loader of checkpoints wants a "
            "diffusion model, a VAE and a text encoder in one file."
            f" ComfyUI takes it by the node {node}, from {folder}."
        )
        if asked is not None and asked != part:
            yield Statement(
                f"{asked[:1].upper()}{asked[1:]} comes from a file of its own, by the "
                "node"
                f" {_loader_of(asked)}."
            )
    else:
        *first, last = [part for part, _ in parts][::-1]
        yield Statement(
            f"This file holds {', '.join(first)} and {last}. A newer version of the "
            "loader may know the model."
        )


FAMILIES = (
    Family(
        "pipeline",
        (
            r"Could not detect model type of: (?!\{)",
            r"\b(?:clip input|VAE) is invalid: None",
            r"your checkpoint does not contain a valid (?:clip|VAE)",
        ),
        answer_from_statements(_answer_pipeline),
        needs_open=True,
    ),
)
