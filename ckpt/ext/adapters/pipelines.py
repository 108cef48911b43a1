"""The names of diffusers for the layers of a checkpoint with the names of its authors.

A whole checkpoint of Stable Diffusion or Flux has other names than the pipeline that an
adapter was trained in. Each layer of the base gets the name that it has there; query,
key and value, which the base may hold in one tensor, are rows of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ckpt.model.rows import NamedTuple


class Part(NamedTuple):
    """The place of a layer in a base. Without a slot it is all of the module's weight.

    With one, a part begins at so many times the columns of the weight, and has as many
    rows as columns; the fourth one of Flux has all that are left.
    """

    module: str
    slot: int | None = None


_REST = 3
"""The slot that has all rows that are left."""
_ROOT = r"(?:model\.)?(?:diffusion_model\.)?"
_UNET = re.compile(
    rf"{_ROOT}(input_blocks|middle_block|output_blocks|time_embed|label_emb|out)\.(.+)"
)
_END_OF_BLOCK = re.compile(rf"{_ROOT}input_blocks\.(\d{{1,4}})\.0\.op")
_FLUX = re.compile(rf"{_ROOT}((?:double|single)_blocks\.\d+|img_in|txt_in)(?:\.(.+))?")
_CLIP = re.compile(
    r"(cond_stage_model|conditioner\.embedders\.\d+|text_encoders\.\w+)\.transformer\."
    r"((?:text_model|encoder)\..+)"
)
_OPEN_CLIP = re.compile(
    r"(cond_stage_model|conditioner\.embedders\.\d+|text_encoders\.\w+)\.model\."
    r"transformer\.resblocks\.(\d+)\.(.+)"
)
_RESNET = {
    "in_layers.2": "conv1",
    "out_layers.3": "conv2",
    "emb_layers.1": "time_emb_proj",
    "skip_connection": "conv_shortcut",
}
_OUTER = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "label_emb.0.0": "add_embedding.linear_1",
    "label_emb.0.2": "add_embedding.linear_2",
    "out.2": "conv_out",
}
_OPEN_LAYERS = {
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_DOUBLE = {
    "img_attn.proj": "attn.to_out.0",
    "txt_attn.proj": "attn.to_add_out",
    "img_mlp.0": "ff.net.0.proj",
    "img_mlp.2": "ff.net.2",
    "txt_mlp.0": "ff_context.net.0.proj",
    "txt_mlp.2": "ff_context.net.2",
    "img_mod.lin": "norm1.linear",
    "txt_mod.lin": "norm1_context.linear",
}
_FUSED = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
}
_SINGLE = {"linear2": "proj_out", "modulation.lin": "norm.linear"}
_EMBEDDERS = {"img_in": "x_embedder", "txt_in": "context_embedder"}

Aliases = dict[tuple[str, str], Part]
"""The part of a pipeline and the name of a layer there -> its place in the base."""


def pipeline_aliases(modules: Iterable[str]) -> Aliases:
    """Return the layers of a base by the names that diffusers has for them.

    `modules` are the modules of the base with a weight. A base with other names has
    none.
    """
    names = list(modules)
    found: Aliases = {}
    # The names of blocks are counted on through all of them: the step says where each
    # begins.
    step = _layers_of_block(names)
    has_several = any(name.startswith("text_encoders.clip_g.") for name in names)
    for name in names:
        for component, alias, slot in _names_in_pipeline(name, step, has_several):
            found.setdefault((component, alias), Part(name, slot))
    return found


def _layers_of_block(names: Iterable[str]) -> int:
    """The entries of input_blocks for a block of the UNet, or 0 where these do not
    repeat.

    Each block but the last one ends with a convolution called `op`.
    """
    ends = [match for name in names if (match := _END_OF_BLOCK.fullmatch(name))]
    numbers = sorted({int(match[1]) for match in ends})
    step = numbers[0] if numbers else 0
    return (
        step if numbers == [step * (index + 1) for index in range(len(numbers))] else 0
    )


def _encoder_of(begin: str, *, is_open: bool, has_several: bool) -> str:
    """The name in the pipeline of the text encoder below a beginning of names.

    With `has_several`, a T5 comes after two encoders of CLIP.
    """
    # ComfyUI names its encoders, other checkpoints number them.
    if begin.startswith("text_encoders."):
        if begin.endswith("clip_l"):
            return "text_encoder"
        is_third = begin.endswith("t5xxl") and has_several
        return "text_encoder_3" if is_third else "text_encoder_2"
    return (
        "text_encoder_2" if is_open and begin != "cond_stage_model" else "text_encoder"
    )


def _names_in_pipeline(
    name: str,
    step: int,
    has_several: bool,
) -> Iterator[tuple[str, str, int | None]]:
    """Yield the part of the pipeline, the name there and the slot of what a module
    holds.
    """
    # Each name fits one of the families at most.
    match = _UNET.fullmatch(name)
    if match is not None:
        alias = _unet_name(match[1], match[2], step) if step else None
        if alias is not None:
            yield "unet", alias, None
        return
    match = _FLUX.fullmatch(name)
    if match is not None:
        for alias, slot in _flux_names(match[1], match[2] or ""):
            yield "transformer", alias, slot
        return
    match = _CLIP.fullmatch(name)
    if match is not None:
        yield (
            _encoder_of(match[1], is_open=False, has_several=has_several),
            match[2],
            None,
        )
        return
    match = _OPEN_CLIP.fullmatch(name)
    if match is not None:
        component = _encoder_of(match[1], is_open=True, has_several=has_several)
        layer = f"text_model.encoder.layers.{match[2]}"
        if match[3] == "attn":
            for slot, letter in enumerate("qkv"):
                yield component, f"{layer}.self_attn.{letter}_proj", slot
        elif match[3] in _OPEN_LAYERS:
            yield component, f"{layer}.{_OPEN_LAYERS[match[3]]}", None


def _unet_name(kind: str, rest: str, step: int) -> str | None:
    """The name of diffusers for a layer of a UNet, of which a block has `step` entries,
    or None.
    """
    words = rest.split(".", 2)
    if kind in ("time_embed", "label_emb", "out"):
        return _OUTER.get(f"{kind}.{rest}")
    if not all(
        word.isdecimal() and len(word) < 4
        for word in words[: 1 + (kind != "middle_block")]
    ):
        return None
    # The middle has three layers: a resnet, an attention, and a resnet.
    if kind == "middle_block":
        inner = rest.partition(".")[2]
        if words[0] == "1":
            return f"mid_block.attentions.0.{inner}"
        return _resnet_name(f"mid_block.resnets.{int(words[0]) // 2}", inner)
    number, place = int(words[0]), int(words[1])
    inner = words[2] if len(words) > 2 else ""
    if kind == "input_blocks":
        # Entry 0 is the first convolution, before all blocks.
        if (number, place, inner) == (0, 0, ""):
            return "conv_in"
        # Entries of the way down are counted behind that convolution.
        block, layer = divmod(number - 1, step)
        begin = f"down_blocks.{block}"
        if inner == "op":
            return f"{begin}.downsamplers.0.conv"
    else:
        block, layer = divmod(number, step)
        begin = f"up_blocks.{block}"
        if inner == "conv":
            return f"{begin}.upsamplers.0.conv"
    if place == 0:
        return _resnet_name(f"{begin}.resnets.{layer}", inner)
    return f"{begin}.attentions.{layer}.{inner}"


def _resnet_name(begin: str, inner: str) -> str | None:
    return f"{begin}.{_RESNET[inner]}" if inner in _RESNET else None


def _flux_names(begin: str, inner: str) -> Iterator[tuple[str, int | None]]:
    """Yield the names of diffusers for a layer of Flux, with their slots."""
    if begin in _EMBEDDERS:
        if not inner:
            yield _EMBEDDERS[begin], None
        return
    kind, _, number = begin.partition(".")
    if kind == "double_blocks":
        block, layers = f"transformer_blocks.{number}", _DOUBLE
    else:
        block, layers = f"single_transformer_blocks.{number}", _SINGLE
    if inner in layers:
        yield f"{block}.{layers[inner]}", None
    for slot, leaf in enumerate(_FUSED.get(inner, ())):
        yield f"{block}.{leaf}", slot


def rows_of_part(part: Part, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the first row of a part of a weight and the number of its rows, or None
    where it has none.
    """
    if part.slot is None:
        return 0, shape[0]
    width = shape[1] if len(shape) == 2 else 0
    first = part.slot * width
    size = shape[0] - first if part.slot == _REST else width
    is_whole = shape[0] == _REST * width or (
        part.slot <= _REST and shape[0] > _REST * width
    )
    return (first, size) if width and is_whole and size > 0 else None


_COMPONENTS = {
    "lora_unet": ("unet", "transformer"),
    "lora_transformer": ("transformer",),
    "lora_te": ("text_encoder",),
    "lora_te1": ("text_encoder",),
    "lora_te2": ("text_encoder_2",),
    "lora_te3": ("text_encoder_3",),
}
"""The part of a pipeline in kohya's names -> the parts in diffusers' names."""


def aliased_part(aliases: Aliases, module: str) -> Part | None:
    """Return the place of a layer of an adapter in a base with other names, or None.

    The name of the layer begins with the part of the pipeline, or it is of a UNet or a
    transformer.
    """
    first, _, rest = module.partition(".")
    # From the name with its part to the parts that adapters leave out.
    names = [(first, rest), ("unet", module), ("transformer", module)]
    return next((aliases[name] for name in names if name in aliases), None)


def flat_aliases(aliases: Aliases, component: str) -> dict[str, Part]:
    """Return the places by the names with `_` for dots that an adapter of kohya has for
    one part of a pipeline.
    """
    wanted = _COMPONENTS.get(component, ())
    found: dict[str, Part] = {}
    twice: set[str] = set()
    for (own, name), part in aliases.items():
        if own in wanted:
            flat = name.replace(".", "_")
            # Two layers with one flat name cannot be told apart: neither is taken.
            twice |= {flat} & found.keys()
            found[flat] = part
    return {flat: part for flat, part in found.items() if flat not in twice}
