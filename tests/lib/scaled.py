"""Layers of quantized models as their writers save them: the names, shapes and dtypes
of codes and of what is beside them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = dict[str, torch.Tensor]
FP8 = torch.float8_e4m3fn


def eight_bits(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape) * 8).to(FP8)


def ints(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0, 100, shape).to(dtype)


def deepseek(rows: int = 256, columns: int = 384) -> Tensors:
    """The weights of DeepSeek-V3 and Qwen: a scale for each block of 128 x 128."""
    scale = torch.rand(-(-rows // 128), -(-columns // 128))
    return {"a.weight": eight_bits(rows, columns), "a.weight_scale_inv": scale}


def native() -> Tensors:
    """The same as the inference code of DeepSeek names it."""
    return {
        "a.weight": eight_bits(256, 384),
        "a.scale": torch.rand(2, 3).to(torch.float8_e8m0fnu),
    }


def experts() -> Tensors:
    return {
        "a.experts.gate_up_proj": eight_bits(2, 256, 128),
        "a.experts.gate_up_proj_scale_inv": torch.rand(2, 2, 1),
    }


def by_row() -> Tensors:
    """FBGEMM, and the channel-wise FP8 of compressed-tensors."""
    return {
        "a.weight": eight_bits(6, 4),
        "a.weight_scale": torch.rand(6, 1),
        "a.input_scale_ub": torch.ones(1),
    }


def by_tensor() -> Tensors:
    return {
        "a.weight": eight_bits(6, 4),
        "a.weight_scale": torch.rand(()),
        "a.input_scale": torch.tensor(2.0),
    }


def comfy() -> Tensors:
    return {
        "a.weight": eight_bits(6, 4),
        "a.scale_weight": torch.rand(()),
        "a.scale_input": torch.tensor(1.0),
    }


def mistral() -> Tensors:
    return {
        "a.weight": eight_bits(6, 4),
        "a.qscale_weight": torch.rand(()),
        "a.qscale_act": torch.tensor(1.0),
    }


def integers() -> Tensors:
    """The W8A8 of compressed-tensors."""
    return {
        "a.weight": ints(torch.int8, 6, 4),
        "a.weight_scale": torch.rand(6, 1).bfloat16(),
        "a.weight_zero_point": ints(torch.int8, 6, 1),
    }


def packed() -> Tensors:
    return {
        "a.weight_packed": ints(torch.int32, 16, 16),
        "a.weight_scale": torch.rand(16, 1).bfloat16(),
        "a.weight_shape": torch.tensor([16, 128]),
        "a.weight_zero_point": ints(torch.int32, 2, 1),
    }


def nvfp4() -> Tensors:
    """As ModelOpt writes it."""
    return {
        "a.weight": ints(torch.uint8, 16, 32),
        "a.weight_scale": torch.rand(16, 4).to(FP8),
        "a.weight_scale_2": torch.tensor(0.5),
        "a.input_scale": torch.tensor(0.5),
    }


def nvfp4_packed() -> Tensors:
    """As compressed-tensors writes it."""
    return {
        "a.weight_packed": ints(torch.uint8, 16, 32),
        "a.weight_scale": torch.rand(16, 4).to(FP8),
        "a.weight_global_scale": torch.ones(1),
        "a.input_global_scale": torch.ones(1),
    }


def mxfp4() -> Tensors:
    """The experts of gpt-oss."""
    return {
        "a.down_proj_blocks": ints(torch.uint8, 2, 6, 3, 16),
        "a.down_proj_scales": ints(torch.uint8, 2, 6, 3),
    }


def four_bits() -> Tensors:
    """The 4 bits of bitsandbytes, whose scales are quantized too."""
    return {
        "a.weight": ints(torch.uint8, 512, 1),
        "a.weight.absmax": ints(torch.uint8, 16),
        "a.weight.quant_map": torch.linspace(-1, 1, 16),
        "a.weight.nested_absmax": torch.rand(1),
        "a.weight.nested_quant_map": torch.linspace(-1, 1, 256),
        "a.weight.quant_state.bitsandbytes__nf4": ints(torch.uint8, 80),
    }


def eight_bit_ints() -> Tensors:
    """LLM.int8() of bitsandbytes."""
    return {
        "a.weight": ints(torch.int8, 6, 4),
        "a.SCB": torch.rand(6),
        "a.weight_format": torch.tensor(0, dtype=torch.uint8),
    }


def gptq() -> Tensors:
    return {
        "a.qweight": ints(torch.int32, 16, 32),
        "a.qzeros": ints(torch.int32, 2, 4),
        "a.scales": torch.rand(2, 32).half(),
        "a.g_idx": ints(torch.int32, 128),
    }


def awq() -> Tensors:
    return {
        "a.qweight": ints(torch.int32, 128, 4),
        "a.qzeros": ints(torch.int32, 2, 4),
        "a.scales": torch.rand(2, 32).half(),
    }


def hqq() -> Tensors:
    return {
        "a.W_q": ints(torch.uint8, 32, 64),
        "a.meta.scale": torch.rand(64, 1).half(),
        "a.meta.zero": torch.rand(64, 1).half(),
    }


def mlx() -> Tensors:
    return {
        "a.weight": ints(torch.uint32, 8, 16),
        "a.scales": torch.rand(8, 2).half(),
        "a.biases": torch.rand(8, 2).half(),
    }


def torchao() -> Tensors:
    """The parts of a tensor of torchao, as `ckpt convert --plain` names them."""
    return {
        "a.weight.qdata": ints(torch.int8, 8, 16),
        "a.weight.scale": torch.rand(8, 1),
        "a.weight.zero_point": ints(torch.int8, 8, 1),
    }


def torchao_flattened() -> Tensors:
    return {
        "a.weight_qdata": ints(torch.int8, 8, 16),
        "a.weight_scale": torch.rand(8, 1),
    }


def quanto() -> Tensors:
    return {
        "a.weight._data": ints(torch.int8, 8, 16),
        "a.weight._scale": torch.rand(8, 1),
    }


LAYERS: dict[str, tuple[Callable[[], Tensors], str]] = {
    "deepseek": (deepseek, "FP8 with scales, blocks of 128 x 128"),
    "native": (native, "FP8 with scales, blocks of 128 x 128"),
    "experts": (experts, "FP8 with scales, blocks of 128 x 128"),
    "by row": (by_row, "FP8 with scales, one for each row"),
    "by tensor": (by_tensor, "FP8 with scales, one for each tensor"),
    "comfy": (comfy, "FP8 with scales, one for each tensor"),
    "mistral": (mistral, "FP8 with scales, one for each tensor"),
    "integers": (integers, "integers with scales"),
    "packed": (packed, "packed integers with scales"),
    "nvfp4": (nvfp4, "NVFP4 with scales"),
    "nvfp4 packed": (nvfp4_packed, "NVFP4 with scales"),
    "mxfp4": (mxfp4, "MXFP4 with scales"),
    "four bits": (four_bits, "bitsandbytes 4-bit with scales"),
    "eight-bit ints": (
        eight_bit_ints,
        "bitsandbytes 8-bit with scales, one for each row",
    ),
    "gptq": (gptq, "GPTQ with scales"),
    "awq": (awq, "AWQ with scales"),
    "hqq": (hqq, "HQQ with scales"),
    "mlx": (mlx, "MLX with scales"),
    "quanto": (quanto, "quanto with scales"),
    "torchao": (torchao, "torchao with scales"),
    "torchao flattened": (torchao_flattened, "torchao with scales"),
}
"""A layer of each kind, its first tensor the codes, and the words for it."""


def model(layer: Tensors, layers: int = 2) -> Tensors:
    """Several such layers, with a norm of plain values beside them."""
    whole = {
        f"layers.{number}.{name}": value.clone()
        for number in range(layers)
        for name, value in layer.items()
    }
    return whole | {
        f"layers.{number}.norm.weight": torch.ones(16) for number in range(layers)
    }


def identical(one: Tensors, two: Tensors) -> bool:
    """Tell whether the tensors of two dicts are the same by their names, in any
    order.
    """
    return one.keys() == two.keys() and all(
        value.dtype == two[name].dtype
        and value.shape == two[name].shape
        and torch.equal(
            value.contiguous().flatten().view(torch.uint8),
            two[name].contiguous().flatten().view(torch.uint8),
        )
        for name, value in one.items()
    )
