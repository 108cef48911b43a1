"""Along which dimension the output channels of a weight lie: what is known, and what is
said to be ambiguous.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ckpt.commands.stats.stats import Axis, axis_of, inner_numel
from ckpt.model.dtypes import BY_NAME, contiguous
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

Shape = tuple[int, ...]


def ref(shape: Shape, dtype: str = "float32") -> TensorRef:
    kind = BY_NAME[dtype]
    return tensor_ref(
        Storage("0", "cpu", kind, 1 << 20, None), kind, shape, contiguous(shape), 0
    )


def dim(
    name: str,
    shape: Shape,
    cls: str | None = None,
    dtype: str = "float32",
    **siblings: Shape,
) -> object:
    """The dimension, `ambiguous`, or None."""
    beside: Mapping[str, Shape] = siblings
    found = axis_of(name, ref(shape, dtype), beside, cls)
    return found.dim if isinstance(found, Axis) else found


@pytest.mark.parametrize(
    ("expected", "name", "shape", "siblings"),
    [
        (0, "fc.weight", (3, 4), {}),
        (0, "fc.weight_orig", (3, 4), {}),
        (None, "fc.weight_v", (3, 4), {}),
        (None, "fc.bias", (3, 4), {}),
        (None, "fc.weight", (0, 4), {}),
        (None, "token_emb.weight", (3, 4), {}),
        (None, "norm.weight", (3,), {}),
        (0, "norm.weight", (3,), {"running_mean": (3,)}),
        (0, "conv.weight", (8, 4, 3, 3), {"bias": (8,)}),
        (1, "conv.weight", (8, 4, 3, 3), {"bias": (4,)}),
        ("ambiguous", "conv.weight", (8, 4, 3, 3), {"bias": (5,)}),
        (0, "conv.weight", (8, 8, 3, 3), {"bias": (8,)}),
        ("ambiguous", "x.weight", (8, 8, 3, 3), {"bias": (8,)}),
        ("ambiguous", "x.weight", (8, 8, 3, 3), {}),
        (0, "x.weight", (8, 4, 3, 3), {}),
        ("ambiguous", "deconv.weight", (8, 4, 3, 3), {}),
        ("ambiguous", "decoder.conv.weight", (8, 8, 3, 3), {"bias": (8,)}),
        (0, "decoder.conv.weight", (8, 4, 3, 3), {"bias": (8,)}),
    ],
)
def test_by_name_and_shapes(
    expected: object, name: str, shape: Shape, siblings: dict[str, Shape]
) -> None:
    assert dim(name, shape, **siblings) == expected


@pytest.mark.parametrize(
    ("expected", "cls", "shape", "siblings"),
    [
        (None, "torch.nn.modules.sparse.Embedding", (3, 4), {}),
        (0, "torch.nn.modules.linear.Linear", (3, 4), {}),
        (0, "torch.nn.modules.conv.Conv2d", (8, 8, 3, 3), {}),
        (1, "torch.nn.modules.conv.ConvTranspose2d", (8, 4, 3, 3), {"bias": (4,)}),
        ("ambiguous", "torch.nn.modules.conv.ConvTranspose2d", (8, 4, 3, 3), {}),
        (
            "ambiguous",
            "torch.nn.modules.conv.ConvTranspose2d",
            (8, 2, 3, 3),
            {"bias": (4,)},
        ),
    ],
)
def test_by_the_class(
    expected: object, cls: str, shape: Shape, siblings: dict[str, Shape]
) -> None:
    """A class that a file names says more than any name: a Linear called `emb` has rows
    that are channels.
    """
    assert dim("emb.weight", shape, cls, **siblings) == expected


def test_integers_have_no_channels_and_complex_numbers_do() -> None:
    assert dim("fc.weight", (3, 4), dtype="int8") is None
    assert dim("fc.weight", (3, 4), dtype="complex64") == 0


def test_elements_side_by_side_in_a_channel() -> None:
    assert inner_numel(ref((8, 4, 3, 2)), Axis(0, "")) == 24
    assert inner_numel(ref((8, 4, 3, 2)), Axis(1, "")) == 6
    assert inner_numel(ref((8,)), Axis(0, "")) == 1
