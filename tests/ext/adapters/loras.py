"""Bases and adapters for the tests, and what PEFT documents as their merge, computed by
torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]
PREFIX = "base_model.model."
PROJECTIONS = {
    "q_proj": (8, 12),
    "v_proj": (6, 12),
    "up_proj": (20, 12),
    "o_proj": (12, 12),
}
"""The linear layers of a block: rows and columns."""


def noise(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> torch.Tensor:
    """Numbers that are the same for the same shape and seed."""
    generator = torch.Generator().manual_seed(seed + 31 * len(shape) + sum(shape))
    return (torch.randn(shape, generator=generator) * 0.1).to(dtype)


def base(
    dtype: torch.dtype = torch.float32, blocks: int = 3, begin: str = "model."
) -> State:
    """The weights of a small language model."""
    state = {f"{begin}embed_tokens.weight": noise(30, 12, dtype=dtype, seed=5)}
    for block in range(blocks):
        for number, (name, shape) in enumerate(PROJECTIONS.items()):
            weight = noise(*shape, dtype=dtype, seed=100 * block + number)
            state[f"{begin}layers.{block}.self_attn.{name}.weight"] = weight
        state[f"{begin}layers.{block}.self_attn.q_proj.bias"] = noise(
            8, dtype=dtype, seed=block
        )
        state[f"{begin}layers.{block}.norm.weight"] = torch.ones(12, dtype=dtype)
    state["lm_head.weight"] = noise(30, 12, dtype=dtype, seed=6)
    return state


def pairs(
    weights: Mapping[str, torch.Tensor],
    ranks: Callable[[str], int] | int = 4,
    seed: int = 900,
) -> State:
    """A and B for some weights, in the names of PEFT."""
    state: State = {}
    for number, (name, weight) in enumerate(weights.items()):
        rank = ranks if isinstance(ranks, int) else ranks(name)
        module = name.removesuffix(".weight")
        state[f"{PREFIX}{module}.lora_A.weight"] = noise(
            rank, weight.shape[1], seed=seed + number
        )
        state[f"{PREFIX}{module}.lora_B.weight"] = noise(
            weight.shape[0], rank, seed=seed + 50 + number
        )
    return state


def linear(state: State) -> State:
    """The weights of the linear layers of a base."""
    return {name: tensor for name, tensor in state.items() if "_proj.weight" in name}


def save_adapter(state: State, folder: Path, **config: Any) -> Path:
    """An adapter as PEFT saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(contiguous, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def save_base(state: State, path: Path) -> Path:
    """The base as one file of safetensors."""
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return path


def delta(state: State, module: str, scale: float) -> torch.Tensor:
    """Scale * B @ A of a layer."""
    down, up = (
        state[f"{PREFIX}{module}.lora_{letter}.weight"].float() for letter in "AB"
    )
    return (up @ down) * scale


def merged(base_state: State, adapter: State, scale: float = 2.0) -> State:
    """The base after a merge of plain LoRA."""
    result = dict(base_state)
    for name in adapter:
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            weight = result[f"{module}.weight"]
            result[f"{module}.weight"] = (
                weight.float() + delta(adapter, module, scale)
            ).to(weight.dtype)
    return result


def units(one: torch.Tensor, two: torch.Tensor) -> float:
    """The largest difference in units of the last place, of a number or of the usual
    size where a sum came near 0.
    """
    assert one.dtype == two.dtype and one.shape == two.shape
    if not one.numel():
        return 0.0
    wide = one.double(), two.double()
    usual = float(wide[1].square().mean().sqrt()) or 1.0
    size = torch.maximum(wide[0].abs(), wide[1].abs()).clamp_min(usual)
    unit = 2.0 ** torch.floor(torch.log2(size)) * torch.finfo(one.dtype).eps
    return float(((wide[0] - wide[1]).abs() / unit).max())


def check_same(path: Path, expected: State, most: float = 1.0) -> State:
    """The written tensors, which are the expected ones up to some units in the last
    place.
    """
    written = (
        load_file(path)
        if path.suffix == ".safetensors"
        else torch.load(path, weights_only=True)
    )
    assert (
        list(written) == list(expected)
        if path.suffix != ".safetensors"
        else written.keys() == expected.keys()
    )
    for name, tensor in expected.items():
        assert units(written[name], tensor) <= most, name
    return written


def rooted(alpha: float, rank: int) -> float:
    """The scale of rsLoRA."""
    return alpha / math.sqrt(rank)
