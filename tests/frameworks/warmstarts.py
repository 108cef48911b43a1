"""Warm starts between models of real packages: with no option, to all that fits, and
both give the same output.

Run by `make test-frameworks`: torchvision, timm and transformers have to be there. The
models are small and have random weights.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optional  # noqa: F401 - makes torchvision importable
import pytest
import timm
import torch
import torchvision
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

State = dict[str, torch.Tensor]
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([[1, 2, 3, 4]])


def of_torchvision() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
        num_classes=5,
    )


def of_timm() -> nn.Module:
    return VisionTransformer(
        img_size=32,
        patch_size=8,
        depth=2,
        num_heads=4,
        embed_dim=32,
        mlp_ratio=2,
        num_classes=5,
    )


def of_transformers() -> nn.Module:
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
        patch_size=8, num_labels=5, layer_norm_eps=1e-6,
    )  # fmt: skip
    return ViTForImageClassification(config)


def resnet(classes: int = 5) -> nn.Module:
    return torchvision.models.resnet18(num_classes=classes)


def timm_resnet() -> nn.Module:
    return timm.create_model("resnet18", num_classes=5)


BERT = BertConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50,
    max_position_embeddings=16,
)  # fmt: skip


def filled(model: nn.Module, seed: int) -> nn.Module:
    """The model with random values in all parameters and buffers."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(0, 0.2, generator=source)
        for value in model.buffers():
            if value.is_floating_point():
                value.uniform_(0.5, 1.5, generator=source)
    return model.eval()


def out(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result = model(given)
    return getattr(result, "logits", result)


def warmstart(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [
        "warmstart",
        "a.pth",
        "--into",
        "b.pth",
        "-o",
        "c.pth",
        "--force",
        *options,
    ]
    return subprocess.run(
        [sys.executable, "-m", "ckpt", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )


def started(one: Any, two: State, folder: Path, *options: str) -> State:
    """The state dict that a warm start writes."""
    torch.save(one, folder / "a.pth")
    torch.save(two, folder / "b.pth")
    done = warmstart(folder, *options)
    assert done.returncode == 0, done
    result: State = torch.load(folder / "c.pth", weights_only=True)
    return result


@pytest.mark.parametrize(
    ("one", "two", "options"),
    [
        (of_torchvision, of_timm, ()),
        (of_timm, of_torchvision, ()),
        (of_transformers, of_timm, ("--fuse",)),
        (of_timm, of_transformers, ("--split",)),
        (of_transformers, of_torchvision, ("--fuse",)),
        (of_torchvision, of_transformers, ("--split",)),
        (resnet, timm_resnet, ()),
        (timm_resnet, resnet, ()),
    ],
)
def test_models_of_two_packages(
    one: Callable[[], nn.Module],
    two: Callable[[], nn.Module],
    options: tuple[str, ...],
    tmp_path: Path,
) -> None:
    given, mine = filled(one(), 0), filled(two(), 1)
    assert not torch.allclose(out(given, IMAGE), out(mine, IMAGE))
    mine.load_state_dict(
        started(given.state_dict(), mine.state_dict(), tmp_path, *options)
    )
    assert torch.allclose(out(given, IMAGE), out(mine, IMAGE), atol=1e-5)
    if options:
        done = warmstart(tmp_path)
        assert done.returncode == 1 and options[0] in done.stderr


def test_the_files_of_transformers_have_its_older_names(tmp_path: Path) -> None:
    given, mine = filled(of_transformers(), 0), filled(of_transformers(), 1)
    given.save_pretrained(tmp_path / "saved")
    torch.save(mine.state_dict(), tmp_path / "b.pth")
    (tmp_path / "saved" / "model.safetensors").rename(tmp_path / "a.pth")
    assert warmstart(tmp_path).returncode == 0
    mine.load_state_dict(torch.load(tmp_path / "c.pth", weights_only=True))
    assert torch.allclose(out(given, IMAGE), out(mine, IMAGE), atol=1e-5)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
        lambda state: {"state_dict": {f"model.{name}": value for name, value in state.items()}, "epoch": 3},
        lambda state: {
            "state_dict": {f"module.encoder_q.{name}": value for name, value in state.items()}
            | {f"module.encoder_k.{name}": value + 1 for name, value in state.items()}
            | {"module.queue": torch.ones(128, 64), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
        },
        lambda state: {f"student.backbone.{name}": value for name, value in state.items()},
        lambda state: {name if "fc" in name else f"backbone.{name}": value for name, value in state.items()},
    ],
    ids=["DataParallel", "compile", "Lightning", "MoCo", "DINO", "head outside"],
)  # fmt: skip
def test_names_of_frameworks(wrap: Callable[[State], Any], tmp_path: Path) -> None:
    given, mine = filled(resnet(), 0), filled(resnet(), 1)
    mine.load_state_dict(started(wrap(given.state_dict()), mine.state_dict(), tmp_path))
    assert torch.equal(out(given, IMAGE), out(mine, IMAGE))


def test_another_head_keeps_its_values(tmp_path: Path) -> None:
    given, mine = filled(resnet(1000), 0), filled(resnet(), 1)
    head = mine.fc.weight.detach().clone()
    mine.load_state_dict(started(given.state_dict(), mine.state_dict(), tmp_path))
    assert torch.equal(mine.fc.weight, head)
    given.fc = mine.fc = nn.Identity()
    assert torch.equal(out(given, IMAGE), out(mine, IMAGE))


def test_old_names_of_bert(tmp_path: Path) -> None:
    given, mine = (
        filled(BertForMaskedLM(BERT), 0),
        filled(BertForSequenceClassification(BERT), 1),
    )
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in given.state_dict().items()
    }
    mine.load_state_dict(started(old, mine.state_dict(), tmp_path))
    with torch.no_grad():
        assert torch.equal(given.bert(IDS)[0], mine.bert(IDS)[0])


def test_an_average_is_a_section(tmp_path: Path) -> None:
    given, average, mine = (filled(resnet(), seed) for seed in range(3))
    state = {"model": given.state_dict(), "ema": average.state_dict()}
    mine.load_state_dict(
        started(state, mine.state_dict(), tmp_path, "--section", "ema")
    )
    assert torch.equal(out(average, IMAGE), out(mine, IMAGE))


@pytest.mark.parametrize(
    ("old", "new"), [(32, 48), (48, 32), (32, (32, 48)), ((48, 32), (32, 64))]
)
@pytest.mark.parametrize("registers", [0, 4])
def test_images_of_another_size(
    old: int | tuple[int, int],
    new: int | tuple[int, int],
    registers: int,
    tmp_path: Path,
) -> None:
    """The positions are those that timm itself makes of them when it loads a model."""

    def vit(size: int | tuple[int, int]) -> VisionTransformer:
        return VisionTransformer(
            img_size=size, patch_size=8, depth=1, num_heads=4, embed_dim=32,
            num_classes=5, reg_tokens=registers,
        )  # fmt: skip

    given, mine = filled(vit(old), 0), filled(vit(new), 1)
    grids = [model.patch_embed.grid_size for model in (given, mine)]
    options = ["--on-mismatch", "interpolate"]
    if any(down != across for down, across in grids):
        options += ["--grid", ":".join(f"{down}x{across}" for down, across in grids)]
    made = started(given.state_dict(), mine.state_dict(), tmp_path, *options)

    expected = timm.layers.resample_abs_pos_embed(
        given.pos_embed.detach(),
        new_size=list(grids[1]),
        old_size=list(grids[0]),
        num_prefix_tokens=1 + registers,
    )
    assert torch.allclose(made["pos_embed"], expected, rtol=1e-5, atol=1e-5)
    mine.load_state_dict(made)


def of_meta(state: State) -> State:
    """The state dict of a Llama under the names of Meta's code."""
    words = {
        "model.embed_tokens": "tok_embeddings", "model.": "", "self_attn": "attention", "mlp": "feed_forward",
        "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm", "lm_head": "output", "q_proj": "wq", "k_proj": "wk",
        "v_proj": "wv", "o_proj": "wo",
    }  # fmt: skip
    out: State = {}
    for name, value in state.items():
        for old, new in words.items():
            name = name.replace(old, new)
        out[name] = value
    return out


def refused(one: State, two: State, folder: Path) -> None:
    torch.save(one, folder / "a.pth")
    torch.save(two, folder / "b.pth")
    done = warmstart(folder)
    assert done.returncode == 1 and "same shapes, other layout" in done.stderr.replace(
        "\n", " "
    )
    assert not (folder / "c.pth").exists()


def test_layouts_of_llama_and_gpt2_are_refused(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=64, vocab_size=50,
    )  # fmt: skip
    llama = LlamaForCausalLM(config).state_dict()
    refused(of_meta(llama), llama, tmp_path)
    refused(llama, of_meta(llama), tmp_path)
    gpt2 = GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=16)
    ).state_dict()
    turned = {
        name: value.t().contiguous() if ".c_" in name and value.dim() == 2 else value
        for name, value in gpt2.items()
    }
    refused(gpt2, turned, tmp_path)
    refused(turned, gpt2, tmp_path)
