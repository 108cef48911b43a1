"""`make test-frameworks`: merges of adapters that PEFT and diffusers write, against
`merge_and_unload` of PEFT itself.

The usual suite does not collect this file. Without the packages its cases are skipped
with a reason.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ext" / "adapters"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import optional

peft = pytest.importorskip("peft")
optional.hide_gptqmodel()
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from loras import units  # noqa: E402

import ckpt  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
State = dict[str, torch.Tensor]


def llama(dtype: torch.dtype = torch.float32, tied: bool = False) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=120,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        attention_bias=True,
    )
    return transformers.LlamaForCausalLM(config).to(dtype)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=4
    )
    return transformers.GPT2LMHeadModel(config)


MIXED = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}


def mixtral() -> nn.Module:
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(num_local_experts=4, **MIXED)
    )


def qwen() -> nn.Module:
    config = transformers.Qwen3MoeConfig(
        num_experts=4, moe_intermediate_size=24, head_dim=8, **MIXED
    )
    return transformers.Qwen3MoeForCausalLM(config)


def gpt_oss() -> nn.Module:
    return transformers.GptOssForCausalLM(
        transformers.GptOssConfig(num_local_experts=4, head_dim=8, **MIXED)
    )


def unet() -> nn.Module:
    diffusers = pytest.importorskip("diffusers")
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )


def half() -> nn.Module:
    return llama(torch.bfloat16)


def half_16() -> nn.Module:
    return llama(torch.float16)


def tied() -> nn.Module:
    return llama(tied=True)


CONVOLUTIONS = [
    "to_q",
    "to_k",
    "to_v",
    "to_out.0",
    "conv1",
    "conv2",
    "proj_in",
    "conv_shortcut",
    "conv_in",
]
TEXT = {"task_type": "CAUSAL_LM"}
KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "LoRA": (llama, {"target_modules": LINEAR}),
    "bfloat16": (half, {"target_modules": LINEAR}),
    "float16": (half_16, {"target_modules": LINEAR}),
    "rsLoRA": (llama, {"target_modules": LINEAR, "use_rslora": True}),
    "DoRA": (llama, {"target_modules": LINEAR, "use_dora": True}),
    "DoRA bfloat16": (half, {"target_modules": LINEAR, "use_dora": True}),
    "patterns": (
        llama,
        {
            "target_modules": LINEAR,
            "rank_pattern": {"q_proj": 4, r"layers\.1\.self_attn\.v_proj": 2},
            "alpha_pattern": {"down_proj": 3, "^model.layers.0.self_attn.o_proj": 9},
        },
    ),
    "fan_in_fan_out": (
        gpt2,
        {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    ),
    "fan_in_fan_out with DoRA": (
        gpt2,
        {
            "target_modules": ["c_attn", "c_proj", "c_fc"],
            "fan_in_fan_out": True,
            "use_dora": True,
        },
    ),
    "modules_to_save": (
        llama,
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "bias": (llama, {"target_modules": ["q_proj"], "bias": "all"}),
    "bias of LoRA": (
        llama,
        {"target_modules": ["q_proj", "v_proj"], "lora_bias": True},
    ),
    "embeddings": (llama, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "embeddings with DoRA": (
        llama,
        {"target_modules": ["embed_tokens"], "use_dora": True},
    ),
    "tokens": (
        llama,
        {"target_modules": ["q_proj"], "trainable_token_indices": [1, 7, 119]},
    ),
    "tokens of a tied embedding": (
        tied,
        {
            "target_modules": ["q_proj"],
            "trainable_token_indices": {"embed_tokens": [3, 5]},
        },
    ),
    "convolutions": (unet, {"target_modules": CONVOLUTIONS}),
    "convolutions with DoRA": (
        unet,
        {"target_modules": ["to_q", "conv1", "conv_in"], "use_dora": True},
    ),
    "experts of Mixtral": (
        mixtral,
        {"target_modules": ["q_proj"], "target_parameters": EXPERTS},
    ),
    "experts of Qwen": (
        qwen,
        {"target_modules": ["q_proj"], "target_parameters": EXPERTS},
    ),
    "experts of gpt-oss": (
        gpt_oss,
        {"target_modules": ["q_proj"], "target_parameters": EXPERTS},
    ),
}


def adapted(model: nn.Module, config: dict[str, Any]) -> Any:
    """A model of PEFT, whose adapter is not the one that does nothing."""
    torch.manual_seed(0)
    task = {} if type(model).__name__.startswith("UNet") else TEXT
    found = peft.get_peft_model(
        model, peft.LoraConfig(r=8, lora_alpha=16, **task, **config)
    )
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if parameter.requires_grad:
                is_length = "magnitude" in name
                parameter.mul_(1.1) if is_length else parameter.add_(
                    torch.randn_like(parameter) * 0.05
                )
    return found


def saved_state(folder: Path) -> State:
    """All tensors of a folder."""
    found: State = {}
    for path in folder.glob("*.safetensors"):
        found |= safetensors.load_file(path)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_is_that_of_peft(kind: str, tmp_path: Path) -> None:
    build, config = KINDS[kind]
    torch.manual_seed(1)
    model = build()
    model.save_pretrained(tmp_path / "base")
    model = adapted(model, config)
    model.save_pretrained(tmp_path / "adapter")

    ckpt.merge(
        tmp_path / "base", tmp_path / "adapter", out=tmp_path / "out.safetensors"
    )

    model.merge_and_unload().save_pretrained(tmp_path / "theirs")
    theirs, mine = (
        saved_state(tmp_path / "theirs"),
        safetensors.load_file(tmp_path / "out.safetensors"),
    )
    assert mine.keys() == theirs.keys()
    assert max(units(mine[name], tensor) for name, tensor in theirs.items()) <= 1
    for merged in ("theirs", "out.safetensors"):
        report = ckpt.diff(
            tmp_path / "base", tmp_path / merged, adapter=tmp_path / "adapter"
        )
        assert report.account is not None and not report.account.differs, (
            report.account.lines(None)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_two_adapters_one_after_the_other_round_as_peft_does(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """PEFT rounds after each adapter. Both at once are nearer to the exact sum."""
    model = llama(dtype)
    model.save_pretrained(tmp_path / "base")
    model = adapted(model, {"target_modules": LINEAR})
    model.add_adapter(
        "two", peft.LoraConfig(r=4, lora_alpha=16, target_modules=LINEAR, **TEXT)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".two." in name:
                parameter.copy_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(tmp_path / "adapters")
    adapters = [tmp_path / "adapters", tmp_path / "adapters" / "two"]
    theirs = model.merge_and_unload(adapter_names=["default", "two"]).state_dict()

    ckpt.merge(tmp_path / "base", adapters[0], out=tmp_path / "one.safetensors")
    ckpt.merge(
        tmp_path / "one.safetensors", adapters[1], out=tmp_path / "both.safetensors"
    )
    mine = safetensors.load_file(tmp_path / "both.safetensors")
    assert max(units(mine[name], theirs[name]) for name in mine) <= 1
    ckpt.merge(tmp_path / "base", adapters, out=tmp_path / "once.safetensors")
    mine = safetensors.load_file(tmp_path / "once.safetensors")
    assert max(units(mine[name], theirs[name]) for name in mine) <= 2


def test_a_head_that_is_tied_gives_the_logits_of_training(tmp_path: Path) -> None:
    """`merge_and_unload` adds what was learned to the embedding too."""
    model = tied()
    model.save_pretrained(tmp_path / "base")
    model = adapted(model, {"target_modules": ["q_proj", "lm_head"]}).eval()
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    tokens = torch.arange(10)[None]
    expected = model(tokens).logits

    ckpt.merge(
        tmp_path / "base", tmp_path / "adapter", out=tmp_path / "out", with_config=True
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(
        json.dumps({**config, "tie_word_embeddings": False})
    )
    merged = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.allclose(merged(tokens).logits, expected, atol=1e-5)


@pytest.mark.parametrize("is_lightning", [False, True])
def test_a_checkpoint_of_training(is_lightning: bool, tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path / "base")
    model = adapted(
        model, {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]}
    )
    state: Any = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if is_lightning:
        inner = {f"model.{name}": tensor for name, tensor in state.items()}
        state = {
            "state_dict": inner,
            "pytorch-lightning_version": "2.6",
            "epoch": 1,
            "optimizer_states": [],
        }
    torch.save(state, tmp_path / "last.ckpt")
    theirs = model.merge_and_unload().state_dict()

    for arguments in (
        (tmp_path / "base", tmp_path / "last.ckpt"),
        (tmp_path / "last.ckpt",),
    ):
        ckpt.merge(
            arguments[0],
            arguments[1:],
            scale=2,
            out=tmp_path / "out.safetensors",
            force=True,
        )
        mine = safetensors.load_file(tmp_path / "out.safetensors")
        assert mine.keys() == theirs.keys()
        assert max(units(mine[name], tensor) for name, tensor in theirs.items()) <= 1


@pytest.mark.parametrize("names", ["kohya", "ComfyUI", "diffusers"])
def test_names_of_programs_that_make_pictures(names: str, tmp_path: Path) -> None:
    """The names that diffusers makes of an adapter of its own."""
    model = unet()
    conversion = pytest.importorskip("diffusers.utils.state_dict_utils")
    model.save_pretrained(tmp_path / "base")
    model = adapted(model, {"target_modules": CONVOLUTIONS[:-1]})
    model.save_pretrained(tmp_path / "adapter")
    plain = safetensors.load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    state = {
        name.replace("base_model.model.", "unet."): tensor
        for name, tensor in plain.items()
    }
    metadata = {
        "lora_adapter_metadata": json.dumps({"unet.r": 8, "unet.lora_alpha": 16})
    }
    if names == "kohya":
        state = conversion.convert_state_dict_to_kohya(state)
        state = {
            name: torch.tensor(16.0) if name.endswith(".alpha") else tensor
            for name, tensor in state.items()
        }
    elif names == "ComfyUI":
        words = {
            "unet.": "diffusion_model.",
            "lora_A": "lora_down",
            "lora_B": "lora_up",
        }
        for one, two in words.items():
            state = {name.replace(one, two): tensor for name, tensor in state.items()}
        state |= {
            f"{name[:-17]}.alpha": torch.tensor(16.0)
            for name in state
            if name.endswith("lora_down.weight")
        }
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    safetensors.save_file(
        state, tmp_path / "lora.safetensors", metadata if names == "diffusers" else None
    )

    ckpt.merge(
        tmp_path / "base",
        tmp_path / "lora.safetensors",
        out=tmp_path / "out.safetensors",
    )

    theirs, mine = (
        model.merge_and_unload().state_dict(),
        safetensors.load_file(tmp_path / "out.safetensors"),
    )
    assert mine.keys() == theirs.keys()
    assert max(units(mine[name], tensor) for name, tensor in theirs.items()) <= 1


def test_an_adapter_that_a_model_of_diffusers_saves_by_itself(tmp_path: Path) -> None:
    """Its settings in the metadata have no part of a pipeline before them."""
    model: Any = unet()
    model.save_pretrained(tmp_path / "base")
    torch.manual_seed(0)
    model.add_adapter(
        peft.LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=CONVOLUTIONS[:3],
            alpha_pattern={"to_k": 4},
            init_lora_weights=False,
        )
    )
    model.save_lora_adapter(tmp_path / "lora")
    [adapter] = (tmp_path / "lora").iterdir()
    out = tmp_path / "out.safetensors"

    ckpt.merge(tmp_path / "base", adapter, out=out)

    model.fuse_lora()
    theirs = {
        name.replace(".base_layer", ""): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    mine = safetensors.load_file(out)
    assert mine.keys() == theirs.keys()
    assert max(units(mine[name], tensor) for name, tensor in theirs.items()) <= 1
    report = ckpt.diff(tmp_path / "base", out, adapter=adapter)
    assert report.account is not None and not report.account.differs
