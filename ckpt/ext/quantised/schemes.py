"""The schemes of quantised weights, as data: the names of their parts, and what plans a weight of them.

A scheme is met by the ends of names and the dtype of the codes. Its plan holds the shapes of the parts against each
other, and raises MisfitError where they contradict: then the tensors stay what they are, and one line says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckpt.ext.quantised.facts import Facts
from ckpt.ext.quantised.matrix import Matrix
from ckpt.model.dtypes import DType
from ckpt.model.errors import CkptError
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

FLOAT8 = frozenset(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"))
SCALES = frozenset(("float32", "float16", "bfloat16"))
EXPONENTS = frozenset(("uint8", "float8_e8m0fnu"))


class MisfitError(CkptError):
    """Raised for parts that nearly are a weight of a scheme: the text says what is wrong with them."""


class Given(NamedTuple):
    """The parts of a weight by the names that its scheme gives them, and the facts beside it.

    With `can_read` small parts may be read that say a shape, with `for_values` also those that say what values are.
    """

    parts: Mapping[str, TensorRef]
    facts: Facts
    can_read: bool = True
    for_values: bool = False

    def require(self, name: str) -> TensorRef:
        """Return a part. Raises MisfitError where it is missing."""
        part = self.parts.get(name)
        if part is None:
            raise MisfitError(f"{name} is missing")
        return part


class Planned(NamedTuple):
    """A weight of a scheme: its shape, its bits, the block that one scale stands for, and how it is decoded.

    `text` is what a person reads: `4 bits (GPTQ, groups of 128)`. `own` is the dtype of the weight by its scheme.
    """

    shape: tuple[int, ...]
    bits: int
    group: tuple[int, ...]
    text: str
    own: DType
    matrix: Matrix


class Scheme(NamedTuple):
    """A scheme of several tensors. The name of the codes ends with `codes`, and `weight` takes the place of that end.

    `parts` are the names of further parts -> the ends that they may have. `required` of them must be there.
    """

    name: str
    codes: str
    types: frozenset[str]
    plan: Callable[[Given], Planned]
    parts: Mapping[str, tuple[str, ...]]
    required: tuple[str, ...]
    weight: str = "weight"
    aside: tuple[str, ...] = ()
    """The ends of tensors that go with the codes and say nothing about the weight: scales of activations."""


def _schemes() -> tuple[Scheme, ...]:
    """Return the schemes. A name may meet several of them, of which one must plan it."""
    from ckpt.ext.quantised import bits, floats, integers, packed

    activations = (
        "input_scale",
        "input_scale_ub",
        "input_global_scale",
        "input_zero_point",
        "output_scale",
        "activation_scale",
        "scale_input",
        "qscale_act",
    )
    return (
        Scheme(
            "FP8",
            "weight",
            FLOAT8,
            floats.plan_float8,
            {
                "scale": ("weight_scale_inv", "weight_scale", "scale_weight", "qscale_weight", "scale"),
                "zero_point": ("weight_zero_point",),
            },
            ("scale",),
            aside=activations,
        ),
        Scheme(
            "FP8", "", FLOAT8, floats.plan_float8, {"scale": ("_scale_inv", "_scale")}, ("scale",), weight=""
        ),
        Scheme(
            "NVFP4",
            "weight",
            frozenset(("uint8", "float4_e2m1fn_x2")),
            floats.plan_nvfp4,
            {"scale": ("weight_scale",), "factor": ("weight_scale_2",)},
            ("scale", "factor"),
            aside=activations,
        ),
        Scheme(
            "NVFP4",
            "weight_packed",
            frozenset(("uint8",)),
            floats.plan_nvfp4,
            {"scale": ("weight_scale",), "divisor": ("weight_global_scale",)},
            ("scale", "divisor"),
            aside=activations,
        ),
        Scheme(
            "MXFP4",
            "weight_packed",
            frozenset(("uint8",)),
            floats.plan_mxfp4,
            {"scale": ("weight_scale",)},
            ("scale",),
            aside=activations,
        ),
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
                "state": (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"),
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
            aside=activations,
        ),
        Scheme(
            "int8",
            "weight",
            frozenset(("int8",)),
            integers.plan_int8,
            {"scale": ("weight_scale",), "zero_point": ("weight_zero_point",)},
            ("scale",),
            aside=activations,
        ),
        Scheme(
            "quanto",
            "._data",
            frozenset(("int8",)),
            integers.plan_int8,
            {"scale": ("._scale",)},
            ("scale",),
            "",
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
        Scheme(
            "torchao",
            "weight_qdata",
            frozenset(("int8",)) | FLOAT8,
            integers.plan_torchao,
            {"scale": ("weight_scale",), "zero_point": ("weight_zero_point",)},
            ("scale",),
        ),
    )


def all_schemes() -> tuple[Scheme, ...]:
    """Return all schemes, made at the first call."""
    global _MADE
    if not _MADE:
        _MADE = _schemes()
    return _MADE


_MADE: tuple[Scheme, ...] = ()


def own_dtype(given: Given, scale: TensorRef, otherwise: DType) -> DType:
    """Return the dtype of a weight: of narrow scales, else as config.json says, else as its scheme has it."""
    from ckpt.model.dtypes import BY_NAME

    if scale.dtype.name in ("float16", "bfloat16"):
        return scale.dtype
    return BY_NAME[given.facts.dtype] if given.facts.dtype is not None else otherwise
