"""The table of schemes: a row for each way of writing quantised weights in several
tensors.
"""

from __future__ import annotations

from ckpt.evidence.scaled import HQQ_SETTINGS
from ckpt.ext.quantised import bits, floats, hqq, integers, packed
from ckpt.ext.quantised.schemes import FLOAT8, Scheme

_ACTIVATIONS = (
    "input_scale",
    "input_scale_ub",
    "input_global_scale",
    "input_zero_point",
    "output_scale",
    "activation_scale",
    "scale_input",
    "qscale_act",
)
_OF_HQQ = ("scale", "zero", *HQQ_SETTINGS)
SCHEMES: tuple[Scheme, ...] = (
    Scheme(
        "FP8",
        "weight",
        FLOAT8,
        floats.plan_float8,
        {
            "scale": (
                "weight_scale_inv",
                "weight_scale",
                "scale_weight",
                "qscale_weight",
                "scale",
            ),
            "zero_point": ("weight_zero_point",),
        },
        ("scale",),
        aside=_ACTIVATIONS,
    ),
    # Experts in one tensor: the scale has the name of the weight in its own.
    Scheme(
        "FP8",
        "",
        FLOAT8,
        floats.plan_float8,
        {"scale": ("_scale_inv", "_scale"), "zero_point": ("_zero_point",)},
        ("scale",),
        weight="",
    ),
    # ModelOpt has a factor for the whole tensor, compressed-tensors a divisor (below).
    Scheme(
        "NVFP4",
        "weight",
        frozenset(("uint8", "float4_e2m1fn_x2")),
        floats.plan_nvfp4,
        {"scale": ("weight_scale",), "factor": ("weight_scale_2",)},
        ("scale", "factor"),
        aside=_ACTIVATIONS,
    ),
    Scheme(
        "NVFP4",
        "weight_packed",
        frozenset(("uint8",)),
        floats.plan_nvfp4,
        {"scale": ("weight_scale",), "divisor": ("weight_global_scale",)},
        ("scale", "divisor"),
        aside=_ACTIVATIONS,
    ),
    Scheme(
        "MXFP4",
        "weight_packed",
        frozenset(("uint8",)),
        floats.plan_mxfp4,
        {"scale": ("weight_scale",)},
        ("scale",),
        aside=_ACTIVATIONS,
    ),
    # gpt-oss.
    Scheme(
        "MXFP4",
        "_blocks",
        frozenset(("uint8",)),
        floats.plan_experts,
        {"scale": ("_scales",)},
        ("scale",),
        weight="",
    ),
    Scheme(
        "bitsandbytes",
        "",
        frozenset(("uint8", "bfloat16", "float16", "float32")),
        bits.plan_four_bits,
        {
            "absmax": (".absmax",),
            "quant_map": (".quant_map",),
            "nested_absmax": (".nested_absmax",),
            "nested_quant_map": (".nested_quant_map",),
            "state": (
                ".quant_state.bitsandbytes__nf4",
                ".quant_state.bitsandbytes__fp4",
            ),
        },
        ("absmax", "quant_map", "state"),
        weight="",
    ),
    Scheme(
        "LLM.int8",
        "weight",
        frozenset(("int8",)),
        bits.plan_eight_bits,
        {"scale": ("SCB", "weight.SCB"), "format": ("weight_format",)},
        ("scale",),
    ),
    Scheme(
        "GPTQ",
        "qweight",
        frozenset(("int32",)),
        packed.plan_gptq,
        {"scales": ("scales",), "qzeros": ("qzeros",), "g_idx": ("g_idx",)},
        ("scales", "qzeros"),
    ),
    # The names are those of GPTQ: the shapes let only one of the two plans pass.
    Scheme(
        "AWQ",
        "qweight",
        frozenset(("int32",)),
        packed.plan_awq,
        {"scales": ("scales",), "qzeros": ("qzeros",)},
        ("scales", "qzeros"),
    ),
    Scheme(
        "compressed-tensors",
        "weight_packed",
        frozenset(("int32",)),
        packed.plan_words,
        {
            "scale": ("weight_scale",),
            "shape": ("weight_shape",),
            "zero_point": ("weight_zero_point",),
            "g_idx": ("weight_g_idx",),
        },
        ("scale", "shape"),
        aside=_ACTIVATIONS,
    ),
    Scheme(
        "int8",
        "weight",
        frozenset(("int8",)),
        integers.plan_int8,
        {"scale": ("weight_scale",), "zero_point": ("weight_zero_point",)},
        ("scale",),
        aside=_ACTIVATIONS,
    ),
    Scheme(
        "quanto",
        "weight._data",
        frozenset(("int8",)) | FLOAT8,
        integers.plan_quanto,
        {"scale": ("weight._scale",)},
        ("scale",),
        aside=_ACTIVATIONS,
    ),
    Scheme(
        "quanto",
        "._data",
        frozenset(("int8",)) | FLOAT8,
        integers.plan_quanto,
        {"scale": ("._scale",)},
        ("scale",),
        "",
    ),
    Scheme(
        "quanto",
        "._data._data",
        frozenset(("uint8",)),
        integers.plan_packed_quanto,
        {"scale": ("._scale",), "shift": ("._shift",)},
        ("scale", "shift"),
        "",
    ),
    Scheme(
        "HQQ",
        "W_q",
        frozenset(("uint8", "int32")),
        hqq.plan_hqq,
        {name: (name,) for name in _OF_HQQ},
        ("scale", "zero"),
    ),
    # The tensors that `ckpt convert --plain` makes of those of torchao.
    Scheme(
        "torchao",
        ".qdata",
        frozenset(("int8",)) | FLOAT8,
        integers.plan_torchao,
        {"scale": (".scale",), "zero_point": (".zero_point",)},
        ("scale",),
        "",
    ),
    # Those that torchao makes for safetensors: `a._weight_qdata` is of `a.weight`.
    Scheme(
        "torchao",
        "_weight_qdata",
        frozenset(("int8",)) | FLOAT8,
        integers.plan_torchao,
        {"scale": ("_weight_scale",), "zero_point": ("_weight_zero_point",)},
        ("scale",),
    ),
    Scheme(
        "torchao",
        "weight_qdata",
        frozenset(("int8",)) | FLOAT8,
        integers.plan_torchao,
        {"scale": ("weight_scale",), "zero_point": ("weight_zero_point",)},
        ("scale",),
    ),
)
"""All schemes. A name may meet several of them, of which one must plan it."""
