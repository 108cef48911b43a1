"""`ckpt recipe` beside the converters of others: a recipe that is learnt of one pair
gives the output of the converter for other weights, byte for byte, and so does the way
back.

Run by `make test-frameworks`. Each package is optional: without it, its cases are
skipped with a reason. All weights are random, and no model is downloaded.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import optional  # noqa: F401 - makes torchvision importable
import pytest
import torch
from safetensors.torch import load_file, save_file

import ckpt

State = dict[str, torch.Tensor]
Pair = tuple[State, State]
PAIRS: dict[str, Callable[[], Pair]] = {}
"""The maker of a pair of each family, with the weights that torch's seed gives."""


def pair(package: str, name: str) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """Note the maker of the pairs of a family."""

    def note(make: Callable[[], Pair]) -> Callable[[], Pair]:
        PAIRS[f"{package}: {name}"] = make
        return make

    return note


def copied(state: Any) -> State:
    """The tensors of a state dict, each with memory of its own."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in state.items()
        if isinstance(tensor, torch.Tensor)
    }


def shuffled(module: torch.nn.Module) -> torch.nn.Module:
    """A module with random numbers in all that has a fraction, norms and biases too."""
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape))
    return module


# --- transformers: what `save_pretrained` writes, and what the model holds -------------

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "pad_token_id": 0,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "decoder_sparse_step": 1,
    "first_k_dense_replace": 1,
    "moe_layer_start_index": 1,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "tie_word_embeddings": False,
}
"""Sizes of a small model; each config has some of them."""
OF_TRANSFORMERS = {
    "Mixtral": {},
    "Qwen2Moe": {},
    "Qwen3Moe": {},
    "Olmoe": {},
    "DeepseekV2": {},
    "DeepseekV3": {},
    "Glm4Moe": {},
    "Ernie4_5_Moe": {},
    "Phimoe": {},
    "MiniMax": {},
    "MiniMaxM2": {},
    "Jamba": {
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "GraniteMoe": {},
    "HunYuanMoEV1": {},
    "FlexOlmo": {},
    "Dots1": {},
    "AfMoE": {},
    "NemotronH": {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8},
    "MiMoV2Flash": {},
}
"""Classes of transformers, with what their configs have besides."""


def pair_of_transformers(name: str, folder: Path, **more: Any) -> Pair:
    """A model as transformers saves it, and as it holds it."""
    import transformers

    classes = {key.lower(): key for key in dir(transformers)}
    config_class = classes.get(f"{name}config".lower())
    model_class = classes.get(f"{name}ForCausalLM".lower())
    if config_class is None or model_class is None:
        pytest.skip(f"this transformers has no {name}")
    known = getattr(transformers, config_class)()
    own = {key: value for key, value in SMALL.items() if hasattr(known, key)}
    config = getattr(transformers, config_class)(**own | more)
    model = shuffled(getattr(transformers, model_class)(config))
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors"), copied(model.state_dict())


def note_transformers(name: str) -> None:
    """Note the pairs of a class of transformers."""

    @pair("transformers", name)
    def make() -> Pair:
        with tempfile.TemporaryDirectory() as folder:
            return pair_of_transformers(name, Path(folder), **OF_TRANSFORMERS[name])


for _name in OF_TRANSFORMERS:
    note_transformers(_name)


# --- diffusers: the converters of single files ----------------------------------------


class Wanted(dict[str, torch.Tensor]):
    """A checkpoint that has each tensor that a converter takes out of it by name."""

    def __init__(self, names: dict[str, tuple[int, ...]]) -> None:
        super().__init__({name: torch.randn(shape) for name, shape in names.items()})
        self.taken: State = {}

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self:
            if default:
                return default[0]
            is_flat = name.endswith(("bias", "scale", "norm", "pos_embed"))
            return self._note(name, torch.randn((48,) if is_flat else (48, 16)))
        return self._note(name, super().pop(name))

    def _note(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self.taken[name] = tensor.clone()
        return tensor


def pair_of_diffusers(name: str, names: dict[str, tuple[int, ...]]) -> Pair:
    """The tensors that a converter took, and those that it gave."""
    from diffusers.loaders import single_file_utils

    given = Wanted(names)
    converted = copied(getattr(single_file_utils, name)(given))
    # What a converter only renames in the dict itself is there before and after.
    return given.taken, converted


FUSED = {
    f"single_blocks.0.linear1.{kind}": (3072 * 3 + 12288, 4)[:dims]
    for kind, dims in (("weight", 2), ("bias", 1))
}
OF_DIFFUSERS: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "Flux": (
        "convert_flux_transformer_checkpoint_to_diffusers",
        {
            "double_blocks.0.img_attn.qkv.weight": (48, 16),
            "double_blocks.1.img_attn.qkv.weight": (48, 16),
            **FUSED,
        },
    ),
    "Stable Diffusion 3": (
        "convert_sd3_transformer_checkpoint_to_diffusers",
        {
            "joint_blocks.0.context_block.adaLN_modulation.1.weight": (48, 16),
            "joint_blocks.1.context_block.adaLN_modulation.1.weight": (48, 16),
            "context_embedder.weight": (48, 16),
        },
    ),
    "Mochi": ("convert_mochi_transformer_checkpoint_to_diffusers", {}),
}


def note_diffusers(name: str) -> None:
    """Note the pairs of a converter of diffusers."""

    @pair("diffusers", name)
    def make() -> Pair:
        return pair_of_diffusers(*OF_DIFFUSERS[name])


for _name in OF_DIFFUSERS:
    note_diffusers(_name)


# --- timm: `checkpoint_filter_fn` and the files of JAX ---------------------------------


@pair("timm", "VGG of torchvision")
def vgg() -> Pair:
    import timm.models.vgg
    import torchvision

    before = copied(shuffled(torchvision.models.vgg11(num_classes=5)).state_dict())
    # The filter reshapes the classifier: less of it is enough.
    before = {name: tensor for name, tensor in before.items() if "features" in name}
    before |= {"classifier.0.weight": torch.randn(6, 512 * 49)}
    before |= {"classifier.0.bias": torch.randn(6)}
    return before, copied(timm.models.vgg._filter_fn(dict(before)))


@pair("timm", "CLIP of OpenAI")
def clip() -> Pair:
    from open_clip.transformer import VisionTransformer
    from timm.models import vision_transformer as timm_vit

    visual = VisionTransformer(
        image_size=32,
        patch_size=8,
        width=32,
        layers=2,
        heads=4,
        mlp_ratio=2,
        output_dim=16,
    )
    before = {
        f"visual.{name}": tensor
        for name, tensor in copied(shuffled(visual).state_dict()).items()
    }
    return before, copied(timm_vit._convert_openai_clip(dict(before), None))


def timm_model(name: str, **keywords: Any) -> Any:
    """A model of timm with random weights."""
    import timm

    return shuffled(timm.create_model(name, num_classes=5, **keywords))


@pair("timm", "ConvNeXt of FAIR")
def convnext() -> Pair:
    import re

    from timm.models import convnext as timm_convnext

    model = timm_model("convnextv2_atto")
    before: State = {}
    for name, tensor in copied(model.state_dict()).items():
        old = name.replace("stem.", "downsample_layers.0.")
        old = re.sub(r"stages\.(\d)\.downsample", r"downsample_layers.\1", old)
        old = old.replace(".blocks.", ".").replace("conv_dw", "dwconv")
        old = old.replace("mlp.grn.bias", "grn.beta")
        old = old.replace("mlp.grn.weight", "grn.gamma").replace("mlp.fc", "pwconv")
        old = old.replace("head.norm", "norm").replace("head.fc", "head")
        shape = (1, 1, 1, *tensor.shape) if "grn" in old else tensor.shape
        before[old] = tensor.reshape(shape)
    return before, copied(timm_convnext.checkpoint_filter_fn(dict(before), model))


@pair("timm", "Swin of Microsoft")
def swin() -> Pair:
    import re

    from timm.models import swin_transformer

    model = timm_model(
        "swin_tiny_patch4_window7_224", embed_dim=24, num_heads=(1, 2, 2, 4)
    )
    before: State = {}
    for name, tensor in copied(model.state_dict()).items():
        old = re.sub(
            r"layers\.(\d)\.downsample",
            lambda found: f"layers.{int(found[1]) - 1}.downsample",
            name,
        )
        before[old.replace("head.fc.", "head.")] = tensor
    after = swin_transformer.checkpoint_filter_fn(dict(before), model)
    return before, copied(after)


@pair("timm", "ViT of JAX")
def vit_of_jax() -> Pair:
    import numpy as np

    model = timm_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, num_heads=4
    )
    width, layers = 32, len(model.blocks)
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (8, 8, 3, width),
        "embedding/bias": (width,),
        "cls": (1, 1, width),
        "Transformer/posembed_input/pos_embedding": (1, 17, width),
        "Transformer/encoder_norm/scale": (width,),
        "Transformer/encoder_norm/bias": (width,),
        "head/kernel": (width, 5),
        "head/bias": (5,),
    }
    for layer in range(layers):
        block = f"Transformer/encoderblock_{layer}/"
        attention = f"{block}MultiHeadDotProductAttention_1/"
        for part in ("query", "key", "value"):
            shapes[f"{attention}{part}/kernel"] = (width, 4, 8)
            shapes[f"{attention}{part}/bias"] = (4, 8)
        shapes[f"{attention}out/kernel"] = (4, 8, width)
        shapes[f"{attention}out/bias"] = (width,)
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes[f"{block}{norm}/scale"] = (width,)
            shapes[f"{block}{norm}/bias"] = (width,)
        for part, sizes in (("Dense_0", (width, 128)), ("Dense_1", (128, width))):
            shapes[f"{block}MlpBlock_3/{part}/kernel"] = sizes
            shapes[f"{block}MlpBlock_3/{part}/bias"] = sizes[1:]
    before = {name: torch.randn(shape) for name, shape in shapes.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/vit.npz"
        np.savez(path, **{name: tensor.numpy() for name, tensor in before.items()})
        model.load_pretrained(path)
    return before, copied(model.state_dict())


# --- torchtune: its converters, which need torch alone ---------------------------------


def torchtune_module(name: str) -> ModuleType:
    """A module of torchtune without the packages around it, which import torchao."""
    spec = PathFinder.find_spec("torchtune")
    if spec is None or spec.origin is None:
        pytest.skip("torchtune is not installed")
    folder = Path(spec.origin).parent
    parts = name.split(".")
    for count in range(len(parts)):
        package = ".".join(["torchtune", *parts[:count]])
        if package not in sys.modules:
            module = ModuleType(package)
            module.__path__ = [str(folder.joinpath(*parts[:count]))]
            sys.modules[package] = module
    return importlib.import_module(f"torchtune.{name}")


def hugging_face(name: str) -> State:
    """The tensors of a small model as transformers saves them."""
    with tempfile.TemporaryDirectory() as folder:
        return pair_of_transformers(name, Path(folder))[0]


@pair("torchtune", "Llama of Hugging Face")
def tune_llama() -> Pair:
    module = torchtune_module("models.convert_weights")
    before = hugging_face("Llama")
    return before, copied(module.hf_to_tune(before, 4, 2, 32))


@pair("torchtune", "Llama to Meta")
def tune_meta() -> Pair:
    module = torchtune_module("models.convert_weights")
    tuned = module.hf_to_tune(hugging_face("Llama"), 4, 2, 32)
    return hugging_face_of(tuned, module), copied(module.tune_to_meta(tuned))


def hugging_face_of(tuned: State, module: ModuleType) -> State:
    """The tensors of torchtune in the layout of Hugging Face, by its own converter."""
    return copied(module.tune_to_hf(tuned, 4, 2, 32))


@pair("torchtune", "Phi-3 of Hugging Face")
def tune_phi3() -> Pair:
    module = torchtune_module("models.phi3._convert_weights")
    before = hugging_face("Phi3")
    return before, copied(module.phi3_hf_to_tune(before, 4, 2, 32))


# --- the tests ------------------------------------------------------------------------


def made_pair(name: str, seed: int) -> Pair:
    """A pair with the weights of a seed; skips what is not installed."""
    torch.manual_seed(seed)
    try:
        return PAIRS[name]()
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")


def is_same(path: Path, state: State) -> bool:
    """Tell whether a file has exactly these tensors, bit for bit."""
    found = load_file(path)
    return found.keys() == state.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in state.items()
    )


@pytest.mark.parametrize("name", list(PAIRS))
def test_a_recipe_is_the_converter(name: str, tmp_path: Path) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, state in zip(files, made_pair(name, 1), strict=True):
        save_file(copied(state), path)
    recipe, back = tmp_path / "recipe.json", tmp_path / "back.json"
    report = ckpt.recipe(*files, out=recipe)
    assert not report.left, report.left
    turned = ckpt.recipe(*reversed(files), out=back)
    assert not [row for row in turned.left if row.why != "no such values in A"]
    before, after = made_pair(name, 2)
    given, made = tmp_path / "given.safetensors", tmp_path / "made.safetensors"
    save_file(copied(before), given)
    ckpt.convert(given, recipe=recipe, out=made)
    assert is_same(made, after)
    if report.is_whole:
        again = tmp_path / "again.safetensors"
        ckpt.convert(made, recipe=recipe, reverse=True, out=again)
        assert is_same(again, before)
