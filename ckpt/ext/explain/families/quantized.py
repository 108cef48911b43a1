"""Packed weights of quantizers on one side, and plain weights on the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ckpt.model.text import and_more, counted_noun

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
_OF_PACKED = (*_PACKED, "scales", "zeros", "qzeros", "g_idx", "weight_scale", "weight_shape", "weight_zero_point", "scale", "zero_point")  # fmt: skip


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
            "weights: build it for the quantization of the file, or take the"
            " checkpoint from before it."
        )
    else:
        same = "layer" if len(layers) == 1 else "layers"
        text = (
            f"The model was built for quantized weights {where}, and this file is not "
            f"quantized: it has weight in the same {same}. Build the model"
            " without quantization, or quantize this checkpoint first with the tool of "
            "that program, and load what it writes."
        )
    return frozenset(names), text
