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


def _answer_pipeline(message: Message, case: Case) -> Iterator[Statement]:
    """Say which parts of a pipeline a file holds, and what loads a part alone."""
    del message
    names = [entry.name for entry in case.survey.tensors]
    parts = [
        (part, loader)
        for part, pattern, loader in _PARTS
        if any(pattern.search(name) for name in names)
    ]
    if any(part in ("a LoRA", "a ControlNet") for part, _ in parts):
        parts = parts[:1]  # both have the names of the layers that they change too
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
    else:
        *first, last = [part for part, _ in parts][::-1]
        yield Statement(
            f"This file holds {', '.join(first)} and {last}. A newer version of the "
            "loader may know the model."
        )


FAMILIES = (
    Family(
        "pipeline",
        (r"Could not detect model type of: (?!\{)",),
        answer_from_statements(_answer_pipeline),
        needs_open=True,
    ),
)
