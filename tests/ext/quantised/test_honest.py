"""`diff BASE QUANTISED` of sizes, tensors and mixtures that real files have: honest
ones are within, and what is wrong with others is named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import quantised_layers as layers
import torch
from quantised_layers import FP8, Tensors
from safetensors.torch import save_file

import ckpt as library

LEVELS = torch.tensor(
    [
        *(-1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0),
        *(0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0),
    ]
)
"""Levels such as those of NF4."""


def fp8_rows(weight: torch.Tensor) -> Tensors:
    scale = (weight.abs().amax(1, keepdim=True) / 448).clamp(min=1e-12)
    return {"weight": (weight / scale).to(FP8), "weight_scale": scale}


def fp8_blocks(weight: torch.Tensor) -> Tensors:
    """Blocks of 128 × 128, of which the last ones are short."""
    rows, columns = weight.shape
    scale = torch.zeros(-(-rows // 128), -(-columns // 128))
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            begin = (row * 128, column * 128)
            block = weight[begin[0] : begin[0] + 128, begin[1] : begin[1] + 128]
            scale[row, column] = (block.abs().max() / 448).clamp(min=1e-12)
    wide = layers.spread(scale, 128, 128, (rows, columns))
    return {"weight": (weight / wide).to(FP8), "weight_scale_inv": scale}


def int8_rows(weight: torch.Tensor) -> Tensors:
    scale = (weight.abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
    return {"weight": torch.round(weight / scale).to(torch.int8), "weight_scale": scale}


def words_with_zeros(weight: torch.Tensor, group: int = 32) -> Tensors:
    """compressed-tensors with 4 bits and zero points."""
    rows, columns = weight.shape
    blocks = weight.view(rows, -1, group)
    least, most = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    scale = ((most - least) / 15).clamp(min=1e-6).half()
    zeros = torch.round(-least / scale.float()).clamp(0, 15)
    codes = torch.round(blocks / scale.float()[..., None]) + zeros[..., None]
    codes = codes.clamp(0, 15).long().view(rows, columns)
    return {
        "weight_packed": layers.words(codes, 4),
        "weight_scale": scale,
        "weight_shape": torch.tensor([rows, columns]),
        "weight_zero_point": layers.words(zeros.t().long(), 4).t().contiguous(),
    }


def gptq(weight: torch.Tensor, bits: int = 4, group: int = 64) -> Tensors:
    """Rounding in groups of columns, of which the last one may be short."""
    columns = weight.shape[1]
    most = (1 << bits - 1) - 1
    order = torch.arange(columns) // group
    largest = torch.stack(
        [weight[:, order == number].abs().amax(1) for number in order.unique()], 1
    )
    scales = (largest / most).clamp(min=1e-6).half()
    codes = torch.round(weight / scales.float()[:, order]) + most + 1
    zeros = torch.full_like(scales, most).long()
    return {
        "qweight": layers.words(codes.clamp(0, 2 * most + 1).long(), bits)
        .t()
        .contiguous(),
        "qzeros": layers.words(zeros.t(), bits),
        "scales": scales.t().contiguous(),
        "g_idx": order.int(),
    }


def four_bits(weight: torch.Tensor, block: int = 64) -> Tensors:
    """bitsandbytes: blocks over all elements in a row."""
    parts, _ = layers.nf4(shape=tuple(weight.shape), block=block)
    flat = torch.zeros(-(-weight.numel() // block) * block)
    flat[: weight.numel()] = weight.reshape(-1)
    largest = flat.view(-1, block).abs().amax(1)
    shares = flat.view(-1, block) / largest[:, None].clamp(min=1e-12)
    codes = (shares[..., None] - LEVELS).abs().argmin(-1).view(-1)
    count = weight.numel() + weight.numel() % 2
    codes = codes[:count]
    return parts | {
        "weight": (codes[::2] << 4 | codes[1::2]).to(torch.uint8).view(-1, 1),
        "weight.absmax": largest,
        "weight.quant_map": LEVELS,
    }


Make = Callable[[torch.Tensor], Tensors]
MAKERS: dict[str, tuple[Make, tuple[int, int]]] = {
    "fp8 rows": (fp8_rows, (96, 160)),
    "fp8 rows of an odd size": (fp8_rows, (77, 131)),
    "fp8 blocks with short ends": (fp8_blocks, (300, 260)),
    "int8 rows": (int8_rows, (96, 160)),
    "words with zero points": (words_with_zeros, (40, 160)),
    "gptq with a short group": (gptq, (96, 160)),
    "gptq with 3 bits and a short group": (
        lambda weight: gptq(weight, 3, 64),
        (96, 160),
    ),
    "nf4 over rows": (four_bits, (50, 90)),
    "nf4 of an odd size": (four_bits, (45, 77)),
}
"""The quantiser, and a size that is no multiple of its block where it can be."""


def weights_of(kind: str, size: tuple[int, int]) -> torch.Tensor:
    """Weights as some layers have them."""
    weight = torch.randn(size) * 0.02
    if kind == "zero":
        weight[:] = 0
    elif kind == "constant":
        weight[:] = 0.25
    elif kind == "zero rows":
        weight[::4] = 0
    elif kind == "tiny":
        weight *= 1e-4
    elif kind == "one sign":
        weight = weight.abs()
    elif kind == "a large element":
        weight[3, 5] = 2
    return weight.bfloat16().float()


KINDS = (
    "plain",
    "zero",
    "constant",
    "zero rows",
    "tiny",
    "one sign",
    "a large element",
)


def judged(folder: Path, base: Tensors, quantised: Tensors) -> list[str]:
    """The verdicts in the order of names, and the exit code of `diff`."""
    for name, tensors in (("base", base), ("quantised", quantised)):
        copies = {key: row.clone().contiguous() for key, row in tensors.items()}
        save_file(copies, folder / f"{name}.safetensors")
    report = library.diff(folder / "base.safetensors", folder / "quantised.safetensors")
    rows = report.to_json()["quantised"]["weights"]
    return [*[row["verdict"] for row in rows], str(report.exit_code)]


def parts_of(stem: str, parts: Tensors) -> Tensors:
    return {f"{stem}.{name}": part for name, part in parts.items()}


@pytest.mark.parametrize("name", MAKERS)
def test_honest_weights_of_odd_sizes_are_within(tmp_path: Path, name: str) -> None:
    torch.manual_seed(len(name))
    make, size = MAKERS[name]
    base: Tensors = {}
    quantised: Tensors = {}
    for kind in KINDS:
        weight = weights_of(kind, size)
        bias = torch.randn(size[0]).bfloat16()
        stem = kind.replace(" ", "_")
        base |= {f"{stem}.weight": weight.bfloat16(), f"{stem}.bias": bias}
        quantised |= {**parts_of(stem, make(weight)), f"{stem}.bias": bias.clone()}
    assert judged(tmp_path, base, quantised) == ["within"] * len(KINDS) + ["0"]


@pytest.mark.parametrize("name", MAKERS)
def test_a_layer_of_another_place_is_not_within(tmp_path: Path, name: str) -> None:
    torch.manual_seed(1)
    make, size = MAKERS[name]
    one, two = (weights_of("plain", size) for _ in range(2))
    base = {"a.weight": one.bfloat16(), "b.weight": two.bfloat16()}
    quantised = parts_of("a", make(two)) | parts_of("b", make(one))
    assert judged(tmp_path, base, quantised) == ["other", "other", "1"]


SCALES = {
    "fp8 rows": "weight_scale",
    "fp8 blocks with short ends": "weight_scale_inv",
    "int8 rows": "weight_scale",
    "words with zero points": "weight_scale",
    "gptq with a short group": "scales",
    "nf4 over rows": "weight.absmax",
}


@pytest.mark.parametrize("factor", [0.4, 2.5])
@pytest.mark.parametrize("name", SCALES)
def test_one_stale_scale_is_named(tmp_path: Path, name: str, factor: float) -> None:
    torch.manual_seed(2)
    make, size = MAKERS[name]
    weight = weights_of("plain", size)
    parts = make(weight)
    scale = parts[SCALES[name]].clone()
    scale.view(-1)[1] *= factor
    quantised = parts_of("a", {**parts, SCALES[name]: scale})
    base = {"a.weight": weight.bfloat16()}
    assert judged(tmp_path, base, quantised) == ["scale", "1"]


@pytest.mark.parametrize("name", ["fp8 rows", "int8 rows", "gptq with a short group"])
def test_one_row_of_other_values_is_named(tmp_path: Path, name: str) -> None:
    torch.manual_seed(3)
    make, size = MAKERS[name]
    weight = weights_of("plain", size)
    other = weight.clone()
    other[41] = torch.randn(size[1]) * 0.02
    base = {"a.weight": weight.bfloat16()}
    assert judged(tmp_path, base, parts_of("a", make(other))) == ["lines", "1"]


def test_another_bias_differs(tmp_path: Path) -> None:
    torch.manual_seed(4)
    weight, bias = weights_of("plain", (96, 160)), torch.randn(96).bfloat16()
    base = {"a.weight": weight.bfloat16(), "a.bias": bias}
    quantised = {**parts_of("a", fp8_rows(weight)), "a.bias": bias * 1.5}
    assert judged(tmp_path, base, quantised) == ["within", "1"]


@pytest.mark.parametrize("kind", ["zero", "constant"])
def test_flat_weights_are_not_other_weights(tmp_path: Path, kind: str) -> None:
    """A layer of zeros, or of one number, in the place of a real one, and the other
    way around.
    """
    torch.manual_seed(5)
    for name, (make, size) in MAKERS.items():
        plain, flat = weights_of("plain", size), weights_of(kind, size)
        for weight, other in ((plain, flat), (flat, plain)):
            base = {"a.weight": weight.bfloat16()}
            verdict, code = judged(tmp_path, base, parts_of("a", make(other)))
            assert verdict != "within", name
            assert code == "1", name
