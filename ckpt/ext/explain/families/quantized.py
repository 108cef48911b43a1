"""Packed weights of quantizers on one side, and plain weights on the other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from ckpt.bytes.far import is_url
from ckpt.bytes.location import locate
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    finding_statements,
    load_statements,
)
from ckpt.ext.explain.families.merging import (
    ADAPTER,
    of_adapter_alone,
    of_adapter_of_codes,
)
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, counted_noun, show

_PACKED = (
    "qweight",
    "quant_weight",
    "weight_packed",
    "packed_weight",
    "weight_int8",
    "int_weight",
)
"""The names that quantizers give the packed weight of a layer: GPTQ, AWQ, lit-gpt,
compressed-tensors, HQQ.
"""
_OF_PACKED = (
    *_PACKED,
    "scales",
    "zeros",
    "qzeros",
    "g_idx",
    "weight_scale",
    "weight_shape",
    "weight_zero_point",
    "scale",
    "zero_point",
)

SCALE = re.compile(
    r"(?:^|[._])(?:scales?|scale_inv|qzeros|g_idx|absmax|quant_map|SCB|zero_point"
    r"|quant_state|bitsandbytes__)"
)


def _packed_layers(names: Iterable[str]) -> dict[str, list[str]]:
    """The layers that have a packed weight and scales among some names -> their
    leaves.
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layer, _, leaf = name.rpartition(".")
        if layer and leaf in _OF_PACKED:
            layers.setdefault(layer, []).append(leaf)
    return {
        layer: leaves
        for layer, leaves in layers.items()
        # A tensor `scale` alone may be the model's own, but not beside a packed weight.
        if len(leaves) > 1 and any(leaf in _PACKED for leaf in leaves)
    }


def packed_and_plain(
    packed: Iterable[str], plain: Collection[str], *, is_saved: bool = False
) -> tuple[frozenset[str], str] | None:
    """Return the layers that are packed on one side and plain on the other, and the
    sentence on them.

    `is_saved` means that the packed ones are of the file.
    """
    layers = _packed_layers(packed)
    # A layer that is not plain on the other side differs by more than quantization.
    if not layers or not all(f"{layer}.weight" in plain for layer in layers):
        return None
    names = {
        f"{layer}.{leaf}"
        for layer, leaves in layers.items()
        for leaf in (*leaves, "weight")
    }
    leaves = list(dict.fromkeys(leaf for group in layers.values() for leaf in group))
    where = f"({and_more(leaves, 4)} in {counted_noun(len(layers), 'layer')})"
    if is_saved:
        text = (
            f"This file is quantized {where}, and the model was built for plain "
            "weights: build it for the quantization of the file, or take the "
            "checkpoint from before it."
        )
    else:
        same = "layer" if len(layers) == 1 else "layers"
        text = (
            f"The model was built for quantized weights {where}, and this file is not "
            f"quantized: it has weight in the same {same}. Build the model without "
            "quantization, or quantize this checkpoint first with the tool of that "
            "program, and load what it writes."
        )
    return frozenset(names), text


def without_order(absent: Collection[str], names: Collection[str]) -> str | None:
    """The sentence on codes of GPTQ that were saved without the order of their groups,
    where nothing else lacks, or None.
    """
    # The dot at the end stays, so that the names of the layer are joined without one.
    layers = [name.removesuffix("g_idx") for name in absent if name.endswith(".g_idx")]
    if not layers or len(layers) != len(absent):
        return None
    if not all(f"{layer}qweight" in names for layer in layers):
        return None
    return (
        f"This file is quantized by GPTQ, and {counted_noun(len(layers), 'layer')} of "
        "it have no g_idx, which says the group of each input. Older tools wrote none, "
        "for the groups stand in their order without act-order (desc_act). The weights "
        "are whole: load it with a program of that time or with a loader that makes "
        "g_idx itself (AutoGPTQ and GPTQModel with desc_act false in "
        "quantize_config.json), or take a newer file of the model."
    )


def built_by_quantizers(case: Case) -> Iterator[Statement]:
    """Say which models have a place for scales, and whether the folder tells a loader
    of it.
    """
    text = "Layers of the quantizer take scales, and plain layers do not."
    # MLX has a key `quantization` in config.json, and no quantization_config.
    if any(row.message.startswith("MLX ") for row in case.scaled_findings):
        yield Statement(f"{text} MLX builds them by quantization in config.json.")
        yield from command_statements(
            "The floats that the codes stand for, for plain layers:",
            case.plan(("dequantized",)),
        )
        return
    is_folder = any(
        value.name.partition(".")[0] == "config"
        for value in case.survey.checkpoint.values
    )
    has_config = any(
        "quantization_config" in value.name for value in case.survey.checkpoint.values
    )
    producer = _other_config(case)
    if is_folder and not has_config and producer is not None:
        yield Statement(
            f"{text} config.json has no quantization_config, and the settings of the "
            f"quantizer are in {producer}, which {_OTHER_CONFIGS[producer]}."
        )
    elif is_folder and not has_config:
        yield Statement(
            f"{text} Loaders build them by quantization_config, and config.json has no "
            "quantization_config: take config.json from where the weights were "
            "quantized."
        )
    else:
        yield Statement(
            f"{text} from_pretrained and servers build them by quantization_config in "
            f"config.json.{_flag_text(case)}"
        )
    yield from command_statements(
        "The floats that the codes stand for, for plain layers:",
        case.plan(("dequantized",)),
    )


_OTHER_CONFIGS = {
    "hf_quant_config.json": (
        "modelopt of NVIDIA wrote: name it to the server (--quantization modelopt in "
        "vLLM and SGLang), which builds plain layers otherwise"
    ),
    "quantize_config.json": (
        "AutoGPTQ wrote: name it to the server (--quantization gptq), or load with "
        "AutoGPTQForCausalLM.from_quantized"
    ),
    "quant_config.json": (
        "AutoAWQ wrote: name it to the server (--quantization awq), or load with "
        "AutoAWQForCausalLM.from_quantized"
    ),
}
"""Files of settings that quantizers write beside config.json -> what reads them."""


def _other_config(case: Case) -> str | None:
    """The file of settings of a quantizer in the folder, or None."""
    path = case.survey.path
    if not case.is_folder or is_url(path):
        return None
    # The settings of these quantizers are no part of the checkpoint itself.
    names = set(locate(path).names())
    return next((name for name in _OTHER_CONFIGS if name in names), None)


def _flag_text(case: Case) -> str:
    """A sentence on the option of older versions of vLLM, for a method that the config
    names, or an empty text.
    """
    methods = [
        str(node)
        for name, node in case.finds_value(("quant_method",))
        if name.startswith("config.quantization_config.")
    ]
    if not methods or methods[0] not in _OF_VLLM:
        return ""
    more = " --load-format bitsandbytes" if methods[0] == "bitsandbytes" else ""
    return f" Older versions of vLLM want --quantization {methods[0]}{more}."


_OF_VLLM = ("awq", "gptq", "bitsandbytes", "fp8", "squeezellm")
"""The methods of quantization that vLLM takes by an option."""


def before_converters(case: Case) -> Iterator[Statement]:
    """Say what converters to GGUF take in the place of weights with scales."""
    yield Statement(
        "Converters to GGUF take weights that were not quantized: convert the original "
        "model, and quantize the GGUF (llama-quantize)."
    )
    yield from command_statements(
        (
            "Or make floats of the codes first. The precision that is lost does not "
            "come back:"
        ),
        case.plan(("dequantized",)),
    )


def _answer_quantized(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a quantizer whose layers got weights of another kind than they were built
    for.
    """
    if "annot merge" in message.text and ADAPTER in case.survey.checkpoint.parts:
        yield from of_adapter_of_codes(message.text, case)
        yield from of_adapter_alone(case)
        return
    scaled = case.scaled_findings
    yield from finding_statements(scaled)
    # The file has codes, so the model was built for plain layers or by another method.
    if scaled:
        # bitsandbytes writes `Loading a quantized checkpoint into non-quantized …`.
        if "into non-quantized" in message.text:
            yield Statement(
                "bitsandbytes quantizes a layer when it moves to the GPU, and takes "
                "saved codes only after that: model.cuda() before load_state_dict."
            )
        # bitsandbytes writes `Blockwise quantization only supports 16/32-bit floats,
        # …`.
        elif "only supports 16/32-bit floats" in message.text:
            yield Statement(
                "A loader that quantizes got codes, and cannot quantize them again: "
                "leave load_in_4bit or load_in_8bit out."
            )
        yield from built_by_quantizers(case)
        return
    methods = [str(node) for _, node in case.finds_value(("quant_method",))]
    # The config promises codes, and the weights have none.
    if methods:
        yield Statement(
            f"config.json has a quantization_config ({show(methods[0], 60)}), and no "
            "weight of this file is quantized: the loader builds quantized layers and "
            "finds plain weights, without codes and scales. They were saved after a "
            "merge or a conversion to floats, or config.json is of another folder. "
            "Take quantization_config out of config.json, and the weights load as they "
            "are."
        )
        yield from load_statements(case)
        return
    yield Statement(
        "No weight of this file is quantized in a way that ckpt knows: load it into "
        "plain layers, or let the loader quantize it (quantization_config of "
        "from_pretrained)."
    )
    yield from load_statements(case)


FAMILIES = (
    Family(
        "quantized",
        (
            r"Loading a quantized checkpoint into non-quantized ",
            r"FP4 quantization state not initialized",
            r"does not contain `bitsandbytes__\*` and possibly other `quantized_stats`",
            r"Blockwise (?:4bit )?quantization only supports 16/32-bit floats",
            r"Cannot merge \w{1,20} layers when the model is (?:loaded in|gptq)",
            r"The model is (?:already )?quantized with \w{1,60} but you are passing",
        ),
        answer_from_statements(_answer_quantized),
        needs_open=True,
    ),
)
