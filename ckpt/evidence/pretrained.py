"""The class of the model in a folder that transformers, diffusers or PEFT wrote, as its
config says it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckpt.model.checkpoint import Checkpoint
from ckpt.model.names import LazyPattern
from ckpt.model.nodes import Node
from ckpt.tree.find import children_of

_CLASS = LazyPattern(r"[A-Z][A-Za-z0-9_]{2,99}")
_WEIGHTS = {
    "transformers": LazyPattern(r"(?:pytorch_)?model(?:\..+|-\d{5}-of-.+)"),
    "diffusers": LazyPattern(r"diffusion_pytorch_model(?:\..+|-\d{5}-of-.+)"),
}
"""Package -> the names of weights that its `from_pretrained` looks for."""
_ADAPTER = LazyPattern(r"adapter_model\.(?:safetensors|bin)")


def pretrained_class(checkpoint: Checkpoint) -> str | None:
    """Return the class whose `from_pretrained` opens a folder, with its package:
    `transformers.LlamaForCausalLM`.

    None where config.json was not written by the package, or names a class of the
    author's own code (`auto_map`).
    """
    config = dict(children_of(dict(children_of(checkpoint.root)).get("config")))
    if "auto_map" in config:
        return None
    for package, name, mark in (
        (
            "transformers",
            _only_item(config.get("architectures")),
            "transformers_version",
        ),
        ("diffusers", config.get("_class_name"), "_diffusers_version"),
    ):
        if (
            mark not in config
            or not isinstance(name, str)
            or not _CLASS.fullmatch(name)
        ):
            continue
        weights = [
            member.file
            for member in checkpoint.members
            if member.is_model or not member.key
        ]
        if weights and all(_WEIGHTS[package].fullmatch(file) for file in weights):
            return f"{package}.{name}"
    return None


def base_of_adapter(checkpoint: Checkpoint) -> str | None:
    """Return the base model that adapter_config.json names, empty where it names none;
    or None for what is no adapter of PEFT.
    """
    config = dict(children_of(dict(children_of(checkpoint.root)).get("adapter_config")))
    weights = [
        member.file
        for member in checkpoint.members
        if member.is_model or not member.key
    ]
    if not isinstance(config.get("peft_type"), str) or not weights:
        return None
    if not all(_ADAPTER.fullmatch(file) for file in weights):
        return None
    base = config.get("base_model_name_or_path")
    return base if isinstance(base, str) else ""


def merged_parts(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the names of lora_B of the merged layers that PEFT 0.2 wrote, each with
    its lora_A.

    There lora_B is the weight of a grouped convolution, beside a lora_A of two axes. A
    layer of a convolution has three in both.
    """
    parts: dict[str, str] = {}
    for name, shape in shapes.items():
        lora_a = name.replace(".lora_B.", ".lora_A.")
        if lora_a == name or len(shape) != 3 or shape[2] != 1:
            continue
        if len(shapes.get(lora_a, ())) == 2:
            parts[name] = lora_a
    return parts


def pipeline_class(checkpoint: Checkpoint) -> str | None:
    """Return the class of the pipeline that model_index.json of diffusers names, or
    None for anything else.
    """
    index = dict(children_of(dict(children_of(checkpoint.root)).get("model_index")))
    name = index.get("_class_name")
    is_ours = (
        "_diffusers_version" in index
        and isinstance(name, str)
        and _CLASS.fullmatch(name)
    )
    return name if is_ours and isinstance(name, str) else None


def pipeline_parts(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the parts of a pipeline that are models of diffusers and lie in the
    folder, each with its class.
    """
    index = dict(children_of(dict(children_of(checkpoint.root)).get("model_index")))
    parts: dict[str, str] = {}
    for member in checkpoint.members:
        named = [item for _, item in children_of(index.get(member.key))]
        if (
            member.is_model
            and len(named) == 2
            and named[0] == "diffusers"
            and isinstance(named[1], str)
        ):
            parts[member.key] = named[1]
    return parts


def pipeline_line(checkpoint: Checkpoint, path: str) -> str | None:
    """Return the line that opens a pipeline of diffusers, or None where its parts have
    no variant in common.
    """
    name = pipeline_class(checkpoint)
    found = [
        _VARIANT.search(member.file) for member in checkpoint.members if member.is_model
    ]
    variants = {"" if match is None else match[1] for match in found}
    if name is None or len(variants) != 1:
        return None
    (variant,) = variants
    return f"diffusers.{name}.from_pretrained({path}" + (
        f', variant="{variant}")' if variant else ")"
    )


_VARIANT = LazyPattern(
    r"/(?:diffusion_pytorch_|pytorch_)?model\.(fp16|bf16|fp32|non_ema|ema)\.\w+$"
)
"""The word between the name and the ending of a file of weights, which diffusers asks
for.
"""


def _only_item(listed: Node) -> Node:
    """The only item of a list, or None."""
    return listed[0] if type(listed) is list and len(listed) == 1 else None
