"""Quantised layers in the layouts of their writers, with the weight that each stands
for, worked out in torch word by word.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import torch

Tensors = dict[str, torch.Tensor]
FP4 = torch.tensor(
    [
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        4.0,
        6.0,
        -0.0,
        -0.5,
        -1.0,
        -1.5,
        -2.0,
        -3.0,
        -4.0,
        -6.0,
    ]
)
FP8 = torch.float8_e4m3fn


def spread(
    blocks: torch.Tensor, rows: int, columns: int, shape: tuple[int, int]
) -> torch.Tensor:
    """A number for each block as a number for each element."""
    return blocks.repeat_interleave(rows, -2).repeat_interleave(columns, -1)[
        ..., : shape[0], : shape[1]
    ]


# --- small floats ---------------------------------------------------------------------


def fp8_blocks(
    rows: int = 300, columns: int = 260, dtype: torch.dtype = FP8
) -> tuple[Tensors, torch.Tensor]:
    """DeepSeek-V3: a scale for each block of 128 × 128, of which the last ones are
    short.
    """
    codes = (torch.randn(rows, columns) * 40).to(dtype)
    scale = torch.rand(-(-rows // 128), -(-columns // 128)) * 0.01
    weight = codes.float() * spread(scale, 128, 128, (rows, columns))
    return {"weight": codes, "weight_scale_inv": scale}, weight.bfloat16()


def fp8_rows(scale_dtype: torch.dtype = torch.bfloat16) -> tuple[Tensors, torch.Tensor]:
    """compressed-tensors: a scale for each row."""
    codes = (torch.randn(48, 64) * 40).to(FP8)
    scale = (torch.rand(48, 1) * 0.01).to(scale_dtype)
    own = torch.bfloat16 if scale_dtype == torch.float32 else scale_dtype
    return {"weight": codes, "weight_scale": scale}, (codes.float() * scale.float()).to(
        own
    )


def fp8_tensor() -> tuple[Tensors, torch.Tensor]:
    codes = (torch.randn(48, 64) * 40).to(torch.float8_e5m2)
    scale = torch.tensor(0.0123)
    made = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(2.0)}
    return made, (codes.float() * scale).bfloat16()


def fp8_experts() -> tuple[Tensors, torch.Tensor]:
    """Experts in one tensor, each with its own blocks, of which the last ones are
    short.
    """
    codes = (torch.randn(3, 200, 130) * 40).to(FP8)
    scale = torch.rand(3, 2, 2) * 0.01
    return {"gate_up_proj": codes, "gate_up_proj_scale_inv": scale}, (
        codes.float() * spread(scale, 128, 128, (200, 130))
    ).bfloat16()


def halves(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the first one in the lower half."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)


def nvfp4(name: str = "modelopt") -> tuple[Tensors, torch.Tensor]:
    codes = torch.randint(0, 16, (32, 64))
    scale = (torch.rand(32, 4) * 8).to(FP8)
    outer = torch.tensor(0.037)
    if name == "modelopt":
        wide = scale.float() * outer
        beside = {
            "weight": halves(codes),
            "weight_scale": scale,
            "weight_scale_2": outer,
        }
    else:
        wide = scale.float() / outer
        beside = {
            "weight_packed": halves(codes),
            "weight_scale": scale,
            "weight_global_scale": outer.view(1),
        }
    weight = FP4[codes] * wide.repeat_interleave(16, 1)
    return beside, weight.bfloat16()


def mxfp4() -> tuple[Tensors, torch.Tensor]:
    codes, scale = torch.randint(0, 16, (32, 64)), torch.randint(100, 140, (32, 2))
    weight = FP4[codes] * (2.0 ** (scale - 127)).repeat_interleave(32, 1)
    return {
        "weight_packed": halves(codes),
        "weight_scale": scale.to(torch.uint8),
    }, weight.bfloat16()


def mxfp4_experts() -> tuple[Tensors, torch.Tensor]:
    """gpt-oss: the codes of the transposed experts, in blocks of 32."""
    codes, scale = (
        torch.randint(0, 16, (3, 40, 96)),
        torch.randint(100, 140, (3, 40, 3)),
    )
    weight = FP4[codes] * (2.0 ** (scale - 127)).repeat_interleave(32, 2)
    made = {
        "gate_up_proj_blocks": halves(codes).view(3, 40, 3, 16),
        "gate_up_proj_scales": scale.to(torch.uint8),
    }
    return made, weight.transpose(1, 2).contiguous().bfloat16()


# --- integers in words ----------------------------------------------------------------


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of codes bit by bit in words of 32 bits, from the lowest bit on; the last
    word may have free bits.
    """
    rows = []
    for row in codes.tolist():
        number = 0
        for place, code in enumerate(row):
            number |= code << place * bits
        count = -(-len(row) * bits // 32)
        rows.append([(number >> 32 * word & 0xFFFFFFFF) for word in range(count)])
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)


def gptq(
    bits: int = 4,
    *,
    rows: int = 96,
    columns: int = 128,
    group: int = 32,
    act_order: bool = False,
    has_order: bool = True,
    is_symmetric: bool = False,
    version: int = 1,
    dtype: torch.dtype = torch.float16,
) -> tuple[Tensors, torch.Tensor]:
    """GPTQ: `version` 1 stores zero points less 1."""
    groups = -(-columns // group)
    codes = torch.randint(0, 1 << bits, (rows, columns))
    zeros = torch.randint(1, 1 << bits, (rows, groups))
    if is_symmetric:
        zeros = torch.full((rows, groups), 1 << bits - 1)
    scales = (torch.rand(groups, rows) * 0.02).to(dtype)
    order = torch.arange(columns) // group
    if act_order:
        order = order[torch.randperm(columns)]
    weight = (codes - zeros[:, order]).to(dtype) * scales.t()[:, order]
    made = {
        "qweight": words(codes, bits).t().contiguous(),
        "qzeros": words((zeros - int(version == 1)).t(), bits),
        "scales": scales,
    }
    if has_order:
        made["g_idx"] = order.to(torch.int32)
    return made, weight


def awq(
    rows: int = 64, columns: int = 128, group: int = 32
) -> tuple[Tensors, torch.Tensor]:
    """AWQ, as its GEMM kernels take it: eight outputs a word, the even ones first."""
    groups = columns // group
    codes, zeros = (
        torch.randint(0, 16, (rows, columns)),
        torch.randint(0, 16, (rows, groups)),
    )
    scales = (torch.rand(groups, rows) * 0.02).half()
    weight = (
        codes - zeros.repeat_interleave(group, 1)
    ).half() * scales.t().repeat_interleave(group, 1)
    made = {"qweight": _awq_words(codes), "qzeros": _awq_words(zeros), "scales": scales}
    return made, weight


def _awq_words(codes: torch.Tensor) -> torch.Tensor:
    across = codes.t()
    packed = torch.zeros(across.shape[0], across.shape[1] // 8, dtype=torch.int64)
    for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        packed |= across[:, column::8] << 4 * place
    return packed.to(torch.int32)


def packed(
    bits: int = 4,
    *,
    rows: int = 40,
    columns: int = 96,
    group: int = 32,
    is_symmetric: bool = True,
) -> tuple[Tensors, torch.Tensor]:
    """compressed-tensors: rows of codes less the middle, and zero points packed along
    the rows.
    """
    groups, middle = columns // group, 1 << bits - 1
    codes = torch.randint(0, 1 << bits, (rows, columns))
    zeros = (
        torch.full((rows, groups), middle)
        if is_symmetric
        else torch.randint(0, 1 << bits, (rows, groups))
    )
    scale = (torch.rand(rows, groups) * 0.02).bfloat16()
    weight = (
        codes - zeros.repeat_interleave(group, 1)
    ).bfloat16() * scale.repeat_interleave(group, 1)
    made = {
        "weight_packed": words(codes, bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([rows, columns]),
    }
    if not is_symmetric:
        made["weight_zero_point"] = words(zeros.t(), bits).t().contiguous()
    return made, weight


def int8(*, has_zeros: bool = False) -> tuple[Tensors, torch.Tensor]:
    codes = torch.randint(-128, 128, (48, 64), dtype=torch.int8)
    scale = (torch.rand(48, 1) * 0.02).bfloat16()
    made = {"weight": codes, "weight_scale": scale}
    wide = codes.bfloat16()
    if has_zeros:
        made["weight_zero_point"] = torch.randint(-100, 100, (48, 1), dtype=torch.int8)
        wide = (codes.int() - made["weight_zero_point"].int()).bfloat16()
    return made, wide * scale


def quanto(dtype: torch.dtype = torch.int8) -> tuple[Tensors, torch.Tensor]:
    """quanto, which writes scales of activations beside every layer."""
    codes = torch.randint(-127, 128, (48, 64), dtype=torch.int8)
    if dtype == FP8:
        codes = (torch.randn(48, 64) * 40).to(FP8)
    scale = (torch.rand(48, 1) * 0.02).bfloat16()
    one = torch.tensor(1.0)
    made = {"weight._data": codes, "weight._scale": scale}
    made |= {"input_scale": one, "output_scale": one.clone()}
    return made, codes.bfloat16() * scale


def torchao_flat(*, has_zeros: bool = False) -> tuple[Tensors, torch.Tensor]:
    """The parts that torchao makes of a weight for safetensors."""
    codes = torch.randint(-128, 128, (48, 64), dtype=torch.int8)
    scale = (torch.rand(48, 2) * 0.02).bfloat16()
    made = {"_weight_qdata": codes, "_weight_scale": scale}
    wide = codes.bfloat16()
    if has_zeros:
        zeros = torch.randint(-100, 100, (48, 2), dtype=torch.int8)
        made["_weight_zero_point"] = zeros
        wide = (codes.int() - zeros.int().repeat_interleave(32, 1)).bfloat16()
    return made, wide * scale.repeat_interleave(32, 1)


# --- bitsandbytes ---------------------------------------------------------------------


def llm_int8() -> tuple[Tensors, torch.Tensor]:
    codes = torch.randint(-127, 128, (48, 64), dtype=torch.int8)
    largest = torch.rand(48)
    made = {
        "weight": codes,
        "SCB": largest,
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return made, (codes * largest.view(-1, 1) * 7.874015718698502e-3).half()


def nf4(
    *,
    shape: tuple[int, ...] = (40, 50),
    block: int = 64,
    is_nested: bool = False,
    kind: str = "nf4",
) -> tuple[Tensors, torch.Tensor]:
    """bitsandbytes: blocks of all elements in a row, whose largest values may be codes
    of 8 bits.
    """
    count = 1
    for size in shape:
        count *= size
    codes, table = torch.randint(0, 16, (count + count % 2,)), torch.linspace(-1, 1, 16)
    blocks = -(-count // block)
    state: dict[str, object] = {
        "quant_type": kind,
        "blocksize": block,
        "dtype": "bfloat16",
        "shape": list(shape),
    }
    made = {
        "weight": (codes[::2] << 4 | codes[1::2]).to(torch.uint8).view(-1, 1),
        "weight.quant_map": table,
    }
    largest = torch.rand(blocks)
    made["weight.absmax"] = largest
    if is_nested:
        inner, outer = torch.randint(0, 256, (blocks,)), torch.rand(-(-blocks // 4))
        nested = torch.linspace(-1, 1, 256)
        largest = nested[inner] * outer.repeat_interleave(4)[:blocks] + 0.321
        state |= {
            "nested_blocksize": 4,
            "nested_dtype": "float32",
            "nested_offset": 0.321,
        }
        made |= {
            "weight.absmax": inner.to(torch.uint8),
            "weight.nested_absmax": outer,
            "weight.nested_quant_map": nested,
        }
    text = json.dumps(state).encode()
    made[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(
        list(text), dtype=torch.uint8
    )
    weight = table[codes[:count]] * largest.repeat_interleave(block)[:count]
    return made, weight.view(shape).bfloat16()


Layer = Callable[[], tuple[Tensors, torch.Tensor]]


def hqq(bits: int = 4, axis: int = 1) -> tuple[Tensors, torch.Tensor]:
    """A layer of HQQ, which packs groups along the first dimension, and rounds twice."""
    rows, columns, group = 48, 64, 32
    lines = rows * columns // group
    shape = (lines, group) if axis else (group, lines)
    codes = torch.randint(0, 1 << bits, shape)
    scale = torch.rand(lines, 1) + 0.1 if axis else torch.rand(1, lines) + 0.1
    scale, zero = scale.bfloat16(), (torch.rand_like(scale) * 7).bfloat16()
    word, name, dtype = {
        3: (10, "3bit_32", torch.int32),
    }.get(bits, (8 // bits, f"{bits}bit_u8", torch.uint8))
    height = -(-len(codes) // word)
    padded = torch.zeros(height * word, shape[1], dtype=torch.int64)
    padded[: len(codes)] = codes
    shifts = torch.arange(word - 1, -1, -1)[:, None, None] * bits
    packed = (padded.view(word, height, shape[1]) << shifts).sum(0).to(dtype)
    text = [
        torch.tensor(list(part.encode()), dtype=torch.uint8)
        for part in (name, "torch.bfloat16")
    ]
    tensors = {
        "W_q": packed,
        "scale": scale,
        "zero": zero,
        "shape": torch.tensor([rows, columns]),
        "nbits": torch.tensor(bits, dtype=torch.int32),
        "group_size": torch.tensor(group, dtype=torch.int32),
        "axis": torch.tensor(axis, dtype=torch.int32),
        "packing": text[0],
        "compute_dtype": text[1],
        "view_as_float": torch.tensor(0, dtype=torch.uint8),
    }
    weight = (codes.bfloat16() - zero) * scale
    return tensors, weight.view(rows, columns)


LAYERS: dict[str, tuple[Layer, str]] = {
    "fp8 blocks": (fp8_blocks, "float8 blocks of 128 × 128"),
    "fp8 rows": (fp8_rows, "float8 with a scale for each row"),
    "fp8 rows float32": (
        lambda: fp8_rows(torch.float32),
        "float8 with a scale for each row",
    ),
    "fp8 tensor": (fp8_tensor, "float8 with one scale"),
    "fp8 experts": (fp8_experts, "float8 blocks of 128 × 128"),
    "nvfp4": (nvfp4, "4 bits (NVFP4, groups of 16)"),
    "nvfp4 packed": (lambda: nvfp4("packed"), "4 bits (NVFP4, groups of 16)"),
    "mxfp4": (mxfp4, "4 bits (MXFP4, groups of 32)"),
    "mxfp4 experts": (mxfp4_experts, "4 bits (MXFP4, groups of 32)"),
    "gptq": (lambda: gptq(is_symmetric=True), "4 bits (GPTQ, groups of 32)"),
    "gptq v2": (
        lambda: gptq(is_symmetric=True, version=2),
        "4 bits (GPTQ, groups of 32)",
    ),
    "gptq 2": (lambda: gptq(2, is_symmetric=True), "2 bits (GPTQ, groups of 32)"),
    "gptq 3": (lambda: gptq(3, is_symmetric=True), "3 bits (GPTQ, groups of 32)"),
    "gptq 8": (lambda: gptq(8, is_symmetric=True), "8 bits (GPTQ, groups of 32)"),
    "gptq act order": (
        lambda: gptq(act_order=True, is_symmetric=True),
        "4 bits (GPTQ, groups of 32)",
    ),
    "gptq without order": (
        lambda: gptq(has_order=False, is_symmetric=True),
        "4 bits (GPTQ, groups of 32)",
    ),
    "awq": (awq, "4 bits (AWQ, groups of 32)"),
    "packed": (packed, "4 bits (compressed-tensors, groups of 32)"),
    "packed 8": (lambda: packed(8), "8 bits (compressed-tensors, groups of 32)"),
    "packed 3": (lambda: packed(3), "3 bits (compressed-tensors, groups of 32)"),
    "packed zeros": (
        lambda: packed(is_symmetric=False),
        "4 bits (compressed-tensors, groups of 32)",
    ),
    "int8": (int8, "8 bits (int8, a scale for each row)"),
    "int8 zeros": (lambda: int8(has_zeros=True), "8 bits (int8, a scale for each row)"),
    "quanto": (quanto, "8 bits (int8, a scale for each row)"),
    "quanto float8": (lambda: quanto(FP8), "float8 with a scale for each row"),
    "torchao": (torchao_flat, "8 bits (torchao, groups of 32)"),
    "torchao zeros": (
        lambda: torchao_flat(has_zeros=True),
        "8 bits (torchao, groups of 32)",
    ),
    "LLM.int8": (llm_int8, "8 bits (LLM.int8, a scale for each row)"),
    **{
        f"hqq {bits}": (partial(hqq, bits), f"{bits} bits (HQQ, groups of 32)")
        for bits in (1, 2, 3, 4, 8)
    },
    "hqq axis 0": (lambda: hqq(axis=0), "4 bits (HQQ, groups of 32 along axis 0)"),
    "nf4": (nf4, "4 bits (NF4, groups of 64)"),
    "nf4 nested": (lambda: nf4(is_nested=True), "4 bits (NF4, groups of 64, nested)"),
    "fp4": (lambda: nf4(kind="fp4"), "4 bits (FP4, groups of 64)"),
    "nf4 odd": (lambda: nf4(shape=(7, 9)), "4 bits (NF4, groups of 64)"),
}
"""A layer of each kind, and the words for it."""
