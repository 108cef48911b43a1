"""The class of the model in a folder that transformers, diffusers or PEFT wrote, as its config says it."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.names import LazyPattern
from ckpt.nodes import Node
from ckpt.tree.find import children

_CLASS = LazyPattern(r"[A-Z][A-Za-z0-9_]{2,99}")
_WEIGHTS = {
    "transformers": LazyPattern(r"(?:pytorch_)?model(?:\..+|-\d{5}-of-.+)"),
    "diffusers": LazyPattern(r"diffusion_pytorch_model(?:\..+|-\d{5}-of-.+)"),
}
"""Package -> the names of weights that its `from_pretrained` looks for."""
_ADAPTER = LazyPattern(r"adapter_model\.(?:safetensors|bin)")


def pretrained_class(checkpoint: Checkpoint) -> str | None:
    """Return the class whose `from_pretrained` opens a folder, with its package: `transformers.LlamaForCausalLM`.

    None where config.json was not written by the package, or names a class of the author's own code (`auto_map`).
    """
    config = dict(children(dict(children(checkpoint.root)).get("config")))
    if "auto_map" in config:
        return None
    for package, name, mark in (
        ("transformers", _first(config.get("architectures")), "transformers_version"),
        ("diffusers", config.get("_class_name"), "_diffusers_version"),
    ):
        if mark not in config or not isinstance(name, str) or not _CLASS.fullmatch(name):
            continue
        weights = [member.file for member in checkpoint.members if member.is_model or not member.key]
        if weights and all(_WEIGHTS[package].fullmatch(file) for file in weights):
            return f"{package}.{name}"
    return None


def base_of_adapter(checkpoint: Checkpoint) -> str | None:
    """Return the base model that adapter_config.json names, empty where it names none; or None for what is no adapter of PEFT."""
    config = dict(children(dict(children(checkpoint.root)).get("adapter_config")))
    weights = [member.file for member in checkpoint.members if member.is_model or not member.key]
    if not isinstance(config.get("peft_type"), str) or not weights:
        return None
    if not all(_ADAPTER.fullmatch(file) for file in weights):
        return None
    base = config.get("base_model_name_or_path")
    return base if isinstance(base, str) else ""


def _first(listed: Node) -> Node:
    """The only item of a list, or None."""
    return listed[0] if type(listed) is list and len(listed) == 1 else None
