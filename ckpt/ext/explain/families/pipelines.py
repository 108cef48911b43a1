"""Errors of programs that put a pipeline of diffusion together: a file that holds a
part of it, and another loader's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.given import of_settings, path_of_settings
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import show

# The parts with the names of other parts inside stand first: a LoRA and a ControlNet.
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


def part_of_name(name: str) -> str | None:
    """The part of a pipeline that the name of a tensor is of, or None."""
    return next((part for part, names, _ in _PARTS if names.search(name)), None)


def parts_in(case: Case) -> list[str]:
    """The parts of a pipeline that a file has tensors of."""
    return [
        part
        for part, names, _ in _PARTS
        if any(names.search(entry.name) for entry in case.survey.tensors)
    ]


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


_COMPONENT = re.compile(
    r"Failed to load (\w{1,100})\. Weights for this component appear to be missing"
)
_CLASSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^Autoencoder|^VQModel|^Consistency"), "a VAE"),
    (re.compile(r"^UNet|Transformer\w*Model$"), "a diffusion model"),
    (re.compile(r"EncoderModel$|Text|Bert|^(?:Llama|Qwen|Gemma)"), "a text encoder"),
)
"""The classes of diffusers and transformers -> the part of a pipeline."""
_PLACES = {
    "a diffusion model": "transformer= or unet=",
    "a VAE": "vae=",
    "a text encoder": "text_encoder=",
}
"""The part of a pipeline -> the argument of from_pretrained that takes it."""


def _of_component(cls: str, parts: list[str]) -> Iterator[Statement]:
    """Answer from_single_file of diffusers, which finds no weights of a component."""
    asked = next((part for pattern, part in _CLASSES if pattern.search(cls)), None)
    # The part is there, so its names are what the version does not know.
    if asked in parts:
        yield Statement(
            f"This file holds {asked}, of other names than this version of diffusers "
            f"looks for ({cls}): another model, or one that a newer version knows."
        )
        return
    held = " and ".join(parts[::-1]) or "none of the parts that ckpt knows"
    lacks = f"a {cls}" if asked is None else f"{asked} ({cls})"
    yield Statement(
        f"This file holds {held}, and no name of {lacks}. from_single_file of a "
        f"pipeline wants all parts in one file: load {cls} from the folder of the base "
        "model, and hand it over."
    )
    # A file of one part has a class of its own in diffusers, which reads it alone.
    if len(parts) == 1 and parts[0] in _PLACES:
        yield Statement(
            "Or load this file with from_single_file of the class of its part alone, "
            "and hand it to from_pretrained of the base model's folder, as "
            f"{_PLACES[parts[0]]}."
        )


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
    # diffusers writes `Failed to load AutoencoderKL. Weights for this component appear
    # to be missing`.
    lacking = _COMPONENT.search(message.text)
    if lacking is not None:
        yield from _of_component(lacking[1], [part for part, _ in parts])
        return
    # ComfyUI writes `clip input is invalid: None` or `VAE is invalid: None`.
    wanted = _LACKING.search(message.text)
    asked = None if wanted is None else _ASKED[wanted[0].lower()]
    if asked is not None and any(part == asked for part, _ in parts):
        yield Statement(
            f"This file holds {asked}: another file was loaded, or the loader does not "
            "know its names. A newer version of the program may."
        )
        return
    # Several parts are a checkpoint without the one that is asked for, and that one has
    # a file of its own.
    if asked is not None and len(parts) > 1:
        held = " and ".join(part for part, _ in parts[::-1])
        yield Statement(
            f"This file holds {held}, and no name of {asked}: load {asked} from a file "
            f"of its own, by the node {_loader_of(asked)}."
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
            "diffusion model, a VAE and a text encoder in one file. ComfyUI takes it "
            f"by the node {node}, from {folder}."
        )
        if asked is not None and asked != part:
            yield Statement(
                f"{asked[:1].upper()}{asked[1:]} comes from a file of its own, by the "
                f"node {_loader_of(asked)}."
            )
    else:
        *first, last = [part for part, _ in parts][::-1]
        yield Statement(
            f"This file holds {', '.join(first)} and {last}. A newer version of the "
            "loader may know the model."
        )


_WEIGHTS = re.compile(
    r"\.(?:safetensors|ckpt|pt|pth|bin|sft|gguf|msgpack|h5)$", re.IGNORECASE
)
"""Endings of files of weights."""


def _answer_single_file(message: Message, case: Case) -> Iterator[Statement]:
    """Answer from_pretrained, which got one file in the place of a folder, and reads it
    as a config.
    """
    path = path_of_settings(message.text)
    if path is None:
        return
    # The path is of a config, so the weights have nothing to do with the error.
    if not _WEIGHTS.search(path):
        name = re.split(r"[\\/]", path)[-1]
        yield Statement(
            f"{show(name, 80)} is what the program could not read: a config, and "
            "not the weights. Most likely its download was broken off, or a page "
            "of a website was saved in its place. Copy it from the model again."
        )
        return
    parts = parts_in(case)
    held = f" It holds {_and_text(parts[::-1])}." if parts else ""
    begin = (
        "from_pretrained wants a folder with a config.json or a model_index.json, or "
        "the name of such a model, and it got this one file, which it read as a "
        f"config.{held}"
    )
    if "a LoRA" in parts:
        yield Statement(
            f"{begin} An adapter is given to a pipeline that is loaded "
            "(load_lora_weights), and is none itself."
        )
    elif "a diffusion model" in parts:
        which = (
            "the class of the pipeline (StableDiffusionPipeline, "
            "StableDiffusionXLPipeline …)"
            if len(parts) > 1
            else "the class of the part alone (UNet2DConditionModel …)"
        )
        yield Statement(f"{begin} from_single_file of {which} takes such a file.")
    else:
        yield from of_settings(path, case)


def _and_text(words: list[str]) -> str:
    """`a VAE and a text encoder`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


FAMILIES = (
    Family(
        "single-file",
        (r"the config file at '[^'\n]{1,2000}' is not a valid JSON file",),
        answer_from_statements(_answer_single_file),
    ),
    Family(
        "pipeline",
        (
            # A traceback has this line of ComfyUI's source too, with `{}` in place of
            # the path.
            r"Could not detect model type of: (?!\{)",
            r"\b(?:clip input|VAE) is invalid: None",
            r"your checkpoint does not contain a valid (?:clip|VAE)",
            (
                r"Failed to load \w{1,100}\. Weights for this component appear to be "
                r"missing in the checkpoint"
            ),
        ),
        answer_from_statements(_answer_pipeline),
        needs_open=True,
    ),
)
