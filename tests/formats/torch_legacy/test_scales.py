"""Quantized tensors in the stream before 1.6: scales of another type than torch keeps
are copied before their data is there.
"""

from __future__ import annotations

import struct
from pathlib import Path

import opcodes as op
import pytest
import torch

from ckpt import formats
from ckpt.evidence.survey import Survey

pytestmark = pytest.mark.filterwarnings("ignore")
CODES = {
    "FloatStorage": "f",
    "DoubleStorage": "d",
    "LongStorage": "q",
    "IntStorage": "i",
}


def row(key: str, kind: str, step: int) -> bytes:
    storage = op.storage_id(key, kind, 2 * step, "cpu", None)
    return op.rebuilt(storage, (2,), (step,))


def saved(scheme: str, scales: str, zeros: str, step: int) -> bytes:
    """A file of a (2, 2) tensor with a scale and a zero point for each row."""
    rows = row("1", scales, step), row("2", zeros, step)
    tensor = op.call(
        op.glob("torch._utils", "_rebuild_qtensor"),
        op.storage_id("0", "QUInt8Storage", 4, "cpu", None),
        0,
        (2, 2),
        (2, 1),
        (op.glob("torch", scheme), *rows, 0),
        False,
        op.ordered_dict(),
    )
    storages = [("0", 4, bytes([1, 2, 3, 4]))]
    for key, kind, first in (("1", scales, 1), ("2", zeros, 3)):
        numbers = [first] * step + [first + 1] * step
        data = struct.pack(f"<{2 * step}{CODES[kind]}", *numbers)
        storages.append((key, 2 * step, data))
    return op.legacy(op.pickled({"w": tensor}), storages)


AFFINE, FLOATS = "per_channel_affine", "per_channel_affine_float_qparams"


@pytest.mark.parametrize(
    ("scheme", "scales", "zeros"),
    [
        (AFFINE, "FloatStorage", "FloatStorage"),
        (AFFINE, "DoubleStorage", "LongStorage"),
        (FLOATS, "FloatStorage", "FloatStorage"),
    ],
)
def test_scales_that_torch_keeps_are_loaded(
    scheme: str, scales: str, zeros: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(saved(scheme, scales, zeros, 1))
    assert torch.load(path)["w"].q_per_channel_scales().tolist() == [1, 2]
    with formats.open(str(path)) as checkpoint:
        assert Survey(checkpoint).load.expression is not None


@pytest.mark.parametrize(
    ("scheme", "scales", "zeros", "step"),
    [
        (AFFINE, "FloatStorage", "LongStorage", 1),
        (AFFINE, "DoubleStorage", "IntStorage", 1),
        (AFFINE, "DoubleStorage", "LongStorage", 2),
        (FLOATS, "DoubleStorage", "FloatStorage", 1),
        (FLOATS, "FloatStorage", "DoubleStorage", 1),
        (FLOATS, "FloatStorage", "FloatStorage", 2),
    ],
)
@pytest.mark.parametrize("is_nested", [True, False])
def test_scales_that_torch_copies_are_said(
    scheme: str, scales: str, zeros: str, step: int, is_nested: bool, tmp_path: Path
) -> None:
    """They come from memory that nobody has filled yet."""
    path = tmp_path / "a.pth"
    data = saved(scheme, scales, zeros, step)
    if is_nested:
        inner = op.call(op.glob("torch.storage", "_load_from_bytes"), op.binary(data))
        data = op.torch_zip(op.pickled({"x": inner}, protocol=3))
    path.write_bytes(data)
    with formats.open(str(path)) as checkpoint:
        load = Survey(checkpoint).load
    assert load.expression is None
    assert load.reason == (
        "torch cannot load a quantized tensor whose scales are copied from the legacy "
        "format"
    )
