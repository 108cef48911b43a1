"""`write.py FOLDER [LIBRARY ...]`: layers that libraries quantise, and the weights that
they take back.

They are bitsandbytes, compressed-tensors, transformers, torchao, gptqmodel, autoawq
and hqq.
With names of libraries only their layers are written, and the other rows of truth.json
stay.

Each file has a row in truth.json: the config beside it, and the dtype, the shape and
the SHA-256 of the weight that its library takes back. The README says with which
versions.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn

Tensors = dict[str, torch.Tensor]


class Written(NamedTuple):
    """A layer as a library writes it, and the weight that it takes back. A state dict
    of classes is a pickle.
    """

    name: str
    tensors: Tensors
    weight: torch.Tensor
    config: dict[str, object] | None = None
    is_pickle: bool = False


def digest(weight: torch.Tensor) -> str:
    """The SHA-256 of a weight. The sign of 0 and the bits of NaN do not count, which
    libraries have as they come.
    """
    plain = (weight + 0.0).nan_to_num(12345.0).contiguous()
    return hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).hexdigest()


# --- bitsandbytes ---------------------------------------------------------------------


def bitsandbytes() -> Iterator[Written]:
    from bitsandbytes import functional

    # Rows of whole blocks, or of an odd number of elements: its kernel for CPUs takes a
    # block that two rows share for another.
    shapes = {
        "even": (32, 64, torch.bfloat16, 64),
        "odd": (15, 35, torch.float16, 64),
        "wide": (24, 128, torch.float32, 128),
    }
    for kind in ("nf4", "fp4"):
        for is_nested in (False, True):
            for name, (rows, columns, dtype, block) in shapes.items():
                weight = torch.randn(rows, columns).to(dtype)
                weight[0], weight[1, 0] = 0, 100
                codes, state = functional.quantize_4bit(
                    weight,
                    blocksize=block,
                    compress_statistics=is_nested,
                    quant_type=kind,
                )
                parts = {
                    f"a.weight.{key}": part
                    for key, part in state.as_dict(packed=True).items()
                }
                back = functional.dequantize_4bit(codes, state)
                nested = "-nested" if is_nested else ""
                yield Written(
                    f"bitsandbytes-{kind}{nested}-{name}",
                    {"a.weight": codes, **parts},
                    back,
                )
    weight = torch.randn(24, 32, dtype=torch.float16)
    weight[3] = 0
    codes, largest, _ = functional.int8_vectorwise_quant(weight)
    made = {
        "a.weight": codes,
        "a.SCB": largest,
        "a.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    yield Written(
        "bitsandbytes-int8",
        made,
        functional.int8_vectorwise_dequant(codes, largest).half(),
    )


# --- compressed-tensors ---------------------------------------------------------------


def compressed_tensors() -> Iterator[Written]:
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    def layer(
        name: str, kind: str, weight: torch.Tensor, beside: Tensors, **arguments: object
    ) -> Written:
        args = QuantizationArgs(**arguments)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.get_value_from_registry(kind)
        packed = compressor.compress({"weight": weight, **beside}, scheme)
        back = compressor.decompress(dict(packed), scheme)["weight"]
        group = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}
        fields = {
            "quant_method": "compressed-tensors",
            "format": kind,
            "config_groups": {"group_0": group},
        }
        config = {
            "dtype": str(back.dtype).removeprefix("torch."),
            "quantization_config": fields,
        }
        tensors = {
            f"a.{key}": tensor for key, tensor in packed.items() if tensor is not None
        }
        return Written(f"compressed-tensors-{name}", tensors, back, config)

    def scales(
        weight: torch.Tensor, groups: int, **arguments: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = weight.view(weight.shape[0], groups, -1)
        found: tuple[torch.Tensor, torch.Tensor] = calculate_qparams(
            blocks.amin(-1), blocks.amax(-1), QuantizationArgs(**arguments)
        )
        return found

    weight = torch.randn(16, 128).bfloat16()
    for bits in (2, 3, 4, 8):
        for symmetric in (True, False):
            how = {
                "num_bits": bits,
                "type": "int",
                "symmetric": symmetric,
                "strategy": "group",
                "group_size": 32,
            }
            scale, zero = scales(weight, 4, **how)
            beside = {"weight_scale": scale.bfloat16()} | (
                {} if symmetric else {"weight_zero_point": zero}
            )
            yield layer(
                f"packed{bits}{'' if symmetric else '-zeros'}",
                "pack-quantized",
                weight,
                beside,
                **how,
            )
    how = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
    odd = torch.randn(15, 50).bfloat16()
    yield layer(
        "packed-odd",
        "pack-quantized",
        odd,
        {"weight_scale": scales(odd, 1, **how)[0].bfloat16()},
        **how,
    )
    for strategy in ("channel", "tensor"):
        for dtype in (torch.bfloat16, torch.float32):
            how = {
                "num_bits": 8,
                "type": "float",
                "symmetric": True,
                "strategy": strategy,
            }
            scale = scales(weight, 1, **how)[0]
            scale = scale if strategy == "channel" else scale.max().view(1)
            label = f"float8-{strategy}-{str(dtype).removeprefix('torch.')}"
            yield layer(
                label,
                "float-quantized",
                weight,
                {"weight_scale": scale.to(dtype)},
                **how,
            )
        for symmetric in (True, False):
            how = {
                "num_bits": 8,
                "type": "int",
                "symmetric": symmetric,
                "strategy": strategy,
            }
            scale, zero = scales(weight, 1, **how)
            if strategy == "tensor":
                scale, zero = scale.max().view(1), zero[:1].view(1)
            beside = {"weight_scale": scale.bfloat16()} | (
                {} if symmetric else {"weight_zero_point": zero}
            )
            yield layer(
                f"int8-{strategy}{'' if symmetric else '-zeros'}",
                "int-quantized",
                weight,
                beside,
                **how,
            )
    how = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "block",
        "block_structure": [128, 128],
    }
    blocks = torch.randn(130, 140).bfloat16()
    scale = (torch.rand(2, 2) * 0.02).bfloat16()
    yield layer(
        "float8-block", "float-quantized", blocks, {"weight_scale": scale}, **how
    )
    four = {"num_bits": 4, "type": "float", "symmetric": True}
    outer = torch.tensor([300.0])
    inner = (
        (weight.view(16, 8, 16).abs().amax(-1).float() / 6 * outer)
        .to(torch.float8_e4m3fn)
        .bfloat16()
    )
    how = {
        **four,
        "strategy": "tensor_group",
        "group_size": 16,
        "scale_dtype": torch.float8_e4m3fn,
    }
    beside = {"weight_scale": inner, "weight_global_scale": outer}
    yield layer("nvfp4", "nvfp4-pack-quantized", weight, beside, **how)
    how = {**four, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
    powers = (2.0 ** torch.randint(-6, 2, (16, 4))).bfloat16()
    yield layer(
        "mxfp4", "mxfp4-pack-quantized", weight, {"weight_scale": powers}, **how
    )


# --- transformers ---------------------------------------------------------------------


def transformers() -> Iterator[Written]:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (2, 24, 3, 16), dtype=torch.uint8)
    scales = torch.randint(90, 140, (2, 24, 3), dtype=torch.uint8)
    scales[0, 0] = torch.tensor([0, 255, 254], dtype=torch.uint8)
    back = convert_moe_packed_tensors(blocks, scales)
    made = {"a.gate_up_proj_blocks": blocks, "a.gate_up_proj_scales": scales}
    yield Written("transformers-mxfp4", made, back)
    codes = (torch.randn(256, 128) * 50).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 1) * 0.01
    powers = torch.randint(110, 130, (2, 1), dtype=torch.uint8).view(
        torch.float8_e8m0fnu
    )
    for name, beside in (("float32", scale), ("float8_e8m0fnu", powers)):
        back = Fp8Dequantize(None)._dequantize_one(codes, beside, torch.bfloat16)
        yield Written(
            f"transformers-fp8-{name}",
            {"a.weight": codes, "a.weight_scale_inv": beside},
            back,
        )


# --- torchao --------------------------------------------------------------------------


def torchao() -> Iterator[Written]:
    from torchao import quantization as ao

    ways = {"int8": ao.Int8WeightOnlyConfig(), "float8": ao.Float8WeightOnlyConfig()}
    for bits in (2, 4, 8):
        dtype = getattr(torch, f"int{bits}")
        ways[f"intx{bits}"] = ao.IntxWeightOnlyConfig(
            weight_dtype=dtype, granularity=ao.PerGroup(32)
        )
    for name, way in ways.items():
        for dtype in (torch.bfloat16, torch.float32):
            net = nn.Sequential(nn.Linear(32, 16, bias=False).to(dtype))
            ao.quantize_(net, way)
            label = f"torchao-{name}-{str(dtype).removeprefix('torch.')}"
            yield Written(
                label, net.state_dict(), net[0].weight.dequantize(), is_pickle=True
            )


# --- gptqmodel ------------------------------------------------------------------------


def gptqmodel() -> Iterator[Written]:
    """GPTQ with all bits, symmetric or not, in both formats of zero points, and in the
    order of activations.
    """
    for bits in (2, 3, 4, 8):
        for symmetric in (True, False):
            for zeros in (1, 2):
                yield gptq_layer(bits, symmetric=symmetric, version=zeros)
        yield gptq_layer(bits, symmetric=False, version=1, in_order=False)
    yield gptq_layer(4, symmetric=False, version=1, group=-1)
    yield gptq_layer(4, symmetric=False, version=1, dtype=torch.bfloat16)


def gptq_layer(
    bits: int,
    *,
    symmetric: bool,
    version: int,
    in_order: bool = True,
    group: int = 32,
    dtype: torch.dtype = torch.float16,
) -> Written:
    """A layer that gptqmodel packs, and the weight that it makes of the words.

    Some zero points of an asymmetric layer are 0, which the first format stores less 1.
    """
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import FORMAT
    from gptqmodel.quantization.config import QuantizeConfig
    from gptqmodel.utils import model as conversions

    columns, rows = 128, 64
    size = columns if group == -1 else group
    layer = nn.Linear(columns, rows, bias=False)
    order = torch.arange(columns) // size
    if not in_order:
        order = order[torch.randperm(columns)]
    zeros = torch.full((rows, columns // size), 1 << bits - 1)
    if not symmetric:
        zeros = torch.randint(0, 1 << bits, zeros.shape)
        zeros[::7] = 0
    scales = (torch.rand(zeros.shape) * 0.02 + 0.001).to(dtype).float()
    codes = torch.randint(0, 1 << bits, (rows, columns))
    layer.weight.data = (codes - zeros[:, order]) * scales[:, order]
    made = TorchLinear(
        bits=bits,
        group_size=size,
        sym=symmetric,
        desc_act=not in_order,
        in_features=columns,
        out_features=rows,
        format=FORMAT.GPTQ,
        register_buffers=True,
    )
    made.pack_original(layer, scales, zeros, order.int())
    if dtype != torch.float16:
        made.register_buffer("scales", made.scales.to(dtype))
    fields = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": not in_order,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }
    if version == 1:
        conversions.convert_gptq_v2_to_v1_format_module(made, QuantizeConfig(bits=bits))
    names = ("qweight", "qzeros", "scales", "g_idx")
    tensors = {f"a.{name}": getattr(made, name).clone() for name in names}
    if version == 1:
        conversions.convert_gptq_v1_to_v2_format_module(made, bits, torch.int32)
    made.post_init()
    back = made.dequantize_weight().t().contiguous()
    label = f"gptq{bits}-{'symmetric' if symmetric else 'zeros'}-v{version}"
    label += "" if in_order else "-act-order"
    label += "-rows" if group == -1 else ""
    label += "" if dtype == torch.float16 else "-bfloat16"
    return Written(label, tensors, back, {"quantization_config": fields})


# --- autoawq --------------------------------------------------------------------------


def autoawq() -> Iterator[Written]:
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    rows, columns = 64, 128
    for group in (32, 64, -1):
        size = columns if group == -1 else group
        layer = nn.Linear(columns, rows, bias=False)
        zeros = torch.randint(0, 16, (columns // size, rows))
        scales = (torch.rand(zeros.shape) * 0.02 + 0.001).half().float()
        codes = torch.randint(0, 16, (columns, rows))
        wide = [part.repeat_interleave(size, 0) for part in (zeros, scales)]
        layer.weight.data = ((codes - wide[0]) * wide[1]).t().contiguous()
        made = WQLinear_GEMM.from_linear(layer, 4, size, scales=scales, zeros=zeros)
        back = (
            dequantize_gemm(made.qweight, made.qzeros, made.scales, 4, size)
            .t()
            .contiguous()
        )
        fields = {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "version": "gemm",
            "zero_point": True,
        }
        tensors = {
            f"a.{name}": getattr(made, name) for name in ("qweight", "qzeros", "scales")
        }
        yield Written(
            f"awq-{'rows' if group == -1 else group}",
            tensors,
            back,
            {"quantization_config": fields},
        )


# --- hqq ------------------------------------------------------------------------------


def hqq() -> Iterator[Written]:
    from hqq.core.quantize import BaseQuantizeConfig, HQQBackend, HQQLinear

    HQQLinear.set_backend(HQQBackend.PYTORCH)
    for bits in (8, 4, 3, 2, 1):
        for axis in (0, 1):
            dtype = {8: torch.float32, 3: torch.float16}.get(bits, torch.bfloat16)
            layer = nn.Linear(64, 24, bias=False)
            layer.weight.data[:4] = 0
            config = BaseQuantizeConfig(nbits=bits, group_size=32, axis=axis)
            made = HQQLinear(layer, config, compute_dtype=dtype, device="cpu")
            tensors = {f"a.{name}": row for name, row in made.state_dict().items()}
            yield Written(f"hqq{bits}-axis{axis}", tensors, made.dequantize())


LIBRARIES: tuple[Callable[[], Iterator[Written]], ...] = (
    bitsandbytes,
    compressed_tensors,
    transformers,
    torchao,
    gptqmodel,
    autoawq,
    hqq,
)


def main() -> int:
    folder = Path(sys.argv[1])
    asked = sys.argv[2:]
    truth: dict[str, object] = {}
    if asked:
        truth = json.loads((folder / "truth.json").read_text())
    for library in LIBRARIES:
        if asked and library.__name__ not in asked:
            continue
        torch.manual_seed(0)
        package = library.__name__.replace("_", "-")
        for row in library():
            path = folder / f"{row.name}{'.pth' if row.is_pickle else '.safetensors'}"
            if row.is_pickle:
                torch.save(row.tensors, path)
            else:
                save_file(
                    {key: tensor.contiguous() for key, tensor in row.tensors.items()},
                    path,
                )
            truth[path.name] = {
                "library": f"{package} {version(package)}",
                "config": row.config,
                "dtype": str(row.weight.dtype).removeprefix("torch."),
                "shape": list(row.weight.shape),
                "sha256": digest(row.weight),
            }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
