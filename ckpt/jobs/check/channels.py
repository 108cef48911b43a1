"""Which output channels of a layer are dead: all but zero beside the largest one of the same layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Literal

from ckpt.rows import NamedTuple
from ckpt.tensors import TensorRef

_TRANSPOSED = re.compile(
    r"(?:^|[._])(?:deconv|conv_?transpose|transposed?|up_?conv|up_?sample|up|decoder|gen(?:erator)?)\d*(?=[._]|$)",
    re.I,
)
_CONVOLUTION = re.compile(r"conv|features|layer|block|stem|down|encoder|backbone", re.I)
_LOOKED_UP = re.compile(
    r"(?:^|[._])(?:\w*emb(?:ed(?:ding)?)?s?|wte|wpe|\w*position\w*|relative\w*)\d*(?=[._]|$)", re.I
)
"""Embedding tables: a row of zeros there is an unused word, not a dead channel."""


class Axis(NamedTuple):
    """The dimension of a weight along which its output channels lie, and how that is known."""

    dim: int
    why: str


def axis_of(
    name: str, ref: TensorRef, siblings: Mapping[str, tuple[int, ...]], cls: str | None
) -> Axis | Literal["ambiguous"] | None:
    """Where the output channels of a weight are; None for a tensor without channels.

    `siblings` are the shapes of the tensors of the same module by the last part of their name, `cls` the class of that
    module where a file says it.
    """
    parent, _, leaf = name.rpartition(".")
    shape = ref.shape
    if leaf not in ("weight", "weight_orig") or ref.dtype.kind not in ("float", "complex") or not ref.numel:
        return None
    kind = (cls or "").rpartition(".")[2]
    if len(shape) == 1:
        return Axis(0, "the scale of a normalization layer") if "running_mean" in siblings else None
    if len(shape) == 2:
        if "Embedding" in kind or (not kind and _LOOKED_UP.search(name)):
            return None
        return Axis(0, kind or "the rows of a linear weight")
    if len(shape) < 2:
        return None
    bias = siblings.get("bias")
    if kind.startswith(("ConvTranspose", "LazyConvTranspose")):
        # With groups there are more channels than the second dimension has, so the bias decides.
        return Axis(1, kind) if bias == (shape[1],) else "ambiguous"
    if kind.startswith(("Conv", "LazyConv")):
        return Axis(0, kind)
    if bias is not None and bias != (shape[0],):
        return (
            Axis(1, "as many as the bias, a transposed convolution") if bias == (shape[1],) else "ambiguous"
        )
    if bias is not None and shape[0] != shape[1]:
        return Axis(0, "as many as the bias")
    if _TRANSPOSED.search(parent):
        return "ambiguous"
    if shape[0] == shape[1] and not _CONVOLUTION.search(parent):
        return "ambiguous"  # it could be either, and nothing says that it is the common one
    return Axis(0, "the first dimension of a convolution")


def inner(ref: TensorRef, axis: Axis) -> int:
    """Elements that lie side by side in one channel."""
    return prod(ref.shape[axis.dim + 1 :])
