"""The names of the tensors of an adapter: which layer, and which part of it. Every
program has its own names.

Sources: PEFT `utils/save_and_load.py`, sd-scripts `networks/lora.py`, diffusers
`loaders/lora_conversion_utils.py`, torchtune `modules/peft`, LyCORIS `modules/`.
"""

from __future__ import annotations

from collections.abc import Callable
from re import Match
from typing import Literal

from ckpt.model.names import LazyPattern
from ckpt.model.rows import NamedTuple

Style = Literal["PEFT", "kohya", "ComfyUI", "diffusers", "torchtune"]
"""The program whose names these are. `ComfyUI`: as kohya, with the dots of the
layer.
"""
Kind = Literal[
    "down",
    "up",
    "mid",
    "alpha",
    "magnitude",
    "up bias",
    "embedding down",
    "embedding up",
    "tokens",
    "whole",
    "base",
    "passed",
    "foreign",
]
"""The part that a tensor is. `whole` is a tensor of the base that was trained itself,
`base` the copy of a frozen one.

`passed` takes no part in a merge; `foreign` belongs to a method that is not LoRA.
"""

PREFIX = "base_model.model."
"""The place of a model inside of PEFT's own."""


class Part(NamedTuple):
    """The meaning of a name: the module, and its part. A `whole` tensor or a copy has
    its name in the base.

    `style` is empty where the name is one that every program writes. A flat module has
    `_` for its dots. `adapter` is the name of one of several adapters in a checkpoint
    of training.
    """

    module: str
    kind: Kind
    style: Style | Literal[""] = ""
    is_flat: bool = False
    component: str = ""
    adapter: str = ""


_FLAT = LazyPattern(
    r"(lora_(?:unet|te[123]?|prior_unet|prior_te|transformer)|lycoris)_(\w+)\.(.+)"
)
_FLAT_PARTS: dict[str, Kind] = {
    "lora_down.weight": "down",
    "lora_up.weight": "up",
    "lora_mid.weight": "mid",
    "alpha": "alpha",
    "dora_scale": "magnitude",
}
_LETTERS: dict[str, Kind] = {
    "A": "down",
    "B": "up",
    "down": "down",
    "up": "up",
    "mid": "mid",
    "a": "down",
    "b": "up",
}


def _of_peft(match: Match[str]) -> Part:
    return Part(match[1], _LETTERS[match[2]], "PEFT", adapter=match[3] or "")


def _of_embedding(match: Match[str]) -> Part:
    kind: Kind = "embedding down" if match[2] == "A" else "embedding up"
    return Part(match[1], kind, "PEFT", adapter=match[3] or "")


def _of_diffusers(match: Match[str]) -> Part:
    # `to_out` of an attention processor is `to_out.0` in the layers of diffusers.
    leaf = f".{match[2]}" + (".0" if match[2] == "to_out" else "") if match[2] else ""
    return Part(match[1] + leaf, _LETTERS[match[3]], "diffusers")


def _of_saved(match: Match[str]) -> Part:
    return Part(f"{match[1]}.{match[3]}", "whole", "PEFT", adapter=match[2])


def _of_base(match: Match[str]) -> Part:
    return Part(f"{match[1].replace('.base_layer', '')}.{match[2]}", "base", "PEFT")


_PATTERNS: tuple[tuple[LazyPattern, Callable[[Match[str]], Part]], ...] = (
    # In this order: the first pattern that fits a name says what it is.
    (LazyPattern(r"(.+)\.lora_([AB])(?:\.([^.]+))?\.weight"), _of_peft),
    (
        LazyPattern(r"(.+)\.lora_B(?:\.([^.]+))?\.bias"),
        lambda match: Part(match[1], "up bias", "PEFT", adapter=match[2] or ""),
    ),
    (LazyPattern(r"(.+)\.lora_embedding_([AB])(?:\.([^.]+))?"), _of_embedding),
    (
        LazyPattern(
            r"(.+)\.lora_magnitude_vector(?:\.(?!weight$)([^.]+))?(?:\.weight)?"
        ),
        lambda match: Part(match[1], "magnitude", "PEFT", adapter=match[2] or ""),
    ),
    (
        LazyPattern(r"(.+?)(?:\.token_adapter)?\.trainable_tokens_delta(?:\.([^.]+))?"),
        lambda match: Part(match[1], "tokens", "PEFT", adapter=match[2] or ""),
    ),
    (
        LazyPattern(
            r"(.+?)(?:\.token_adapter)?\.(?:trainable_tokens_original"
            r"|token_indices)(?:\.([^.]+))?"
        ),
        lambda match: Part(match[1], "passed", "PEFT", adapter=match[2] or ""),
    ),
    (LazyPattern(r"(.+)\.modules_to_save\.([^.]+)\.(.+)"), _of_saved),
    (
        LazyPattern(r"(.+)\.original_module\.(.+)"),
        lambda match: Part(f"{match[1]}.{match[2]}", "base", "PEFT"),
    ),
    (LazyPattern(r"(.+)\.base_layer\.([^.]+)"), _of_base),
    (
        LazyPattern(r"(.+)\.lora_(a|b)\.weight"),
        lambda match: Part(match[1], _LETTERS[match[2]], "torchtune"),
    ),
    (
        LazyPattern(r"(.+)\.magnitude"),
        lambda match: Part(match[1], "magnitude", "torchtune"),
    ),
    (
        LazyPattern(r"(.+)\.processor\.(to_[qkv]|to_out)_lora\.(down|up)\.weight"),
        _of_diffusers,
    ),
    (
        LazyPattern(r"(.+)\.(?:lora|lora_linear_layer)()\.(down|up)\.weight"),
        _of_diffusers,
    ),
    (
        LazyPattern(r"(.+)\.lora_(down|up|mid)\.weight"),
        lambda match: Part(match[1], _LETTERS[match[2]], "ComfyUI"),
    ),
    # Programs of several styles write it, so it has none.
    (LazyPattern(r"(.+)\.alpha"), lambda match: Part(match[1], "alpha")),
    (
        LazyPattern(r"(.+)\.dora_scale"),
        lambda match: Part(match[1], "magnitude", "ComfyUI"),
    ),
)
_FOREIGN: tuple[tuple[str, str], ...] = (
    ("hada_", "LoHa"),
    ("lokr_", "LoKr"),
    (".ia3_", "IA3"),
    (".on_input", "IA3"),
    (".vera_lambda", "VeRA"),
    (".lora_E", "AdaLoRA"),
    (".oft_", "OFT"),
    (".boft_", "BOFT"),
    (".hra_", "HRA"),
    (".ln_tuning_", "LN tuning"),
    (".diff", "full differences"),
)
"""A piece of the name of a tensor -> the method that has it."""
_OF_LYCORIS: tuple[tuple[str, str], ...] = (
    (".a1.weight", "GLoRA"),
    (".b1.weight", "GLoRA"),
    (".w_norm", "trained norms"),
    (".b_norm", "trained norms"),
)
"""As `_FOREIGN`, for pieces that may be the names of layers elsewhere."""


def part_of(name: str) -> Part:
    """Return what the name of a tensor of an adapter says. Any other name belongs to a
    whole tensor.
    """
    # A flat name says its part before the dots of all other programs.
    flat = _FLAT.fullmatch(name)
    if flat is not None:
        kind = _FLAT_PARTS.get(flat[3], "foreign")
        return Part(flat[2], kind, "kohya", True, flat[1])
    # PEFT's prefix may lie behind the one of a trainer.
    own = name.rpartition(PREFIX)[2]
    # Asked first: a tensor of LoHa fits patterns of LoRA too.
    if _is_foreign(own):
        return Part(own, "foreign")
    for pattern, read in _PATTERNS:
        match = pattern.fullmatch(own)
        if match is not None:
            return read(match)
    return Part(own, "whole")


def _is_foreign(name: str) -> bool:
    return any(mark in name for mark, _ in _FOREIGN)


def method_of(name: str) -> str:
    """Return the method that a foreign tensor belongs to, or ``."""
    # Only of tensors that are foreign already: these pieces are names of layers
    # elsewhere.
    marks = (*_FOREIGN, *_OF_LYCORIS)
    return next((method for mark, method in marks if mark in name), "")


def layer_of(module: str) -> str:
    """The module without what PEFT puts between: `mlp.experts.base_layer` ->
    `mlp.experts`.
    """
    return module.replace(".base_layer", "")
