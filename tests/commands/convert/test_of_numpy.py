"""Tensors that torch makes of arrays of numpy, as XLA saves them: a plain file has no
arrays.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from inside import inside

pytestmark = oracle.QUIET


class OfNumpy:
    """A tensor as torch saves it of a device without storages, such as XLA."""

    def __init__(self, array: np.ndarray, dtype: torch.dtype) -> None:
        self.parts = array, dtype, "xla:0", False

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_device_tensor_from_numpy, self.parts


@pytest.mark.parametrize("command", [["slim"], ["convert", "--plain"]])
@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.arange(4, dtype="f4"), torch.float32),
        (np.arange(4, dtype="f4"), torch.bfloat16),
        (np.asfortranarray(np.arange(6).reshape(2, 3)), torch.int64),
        (np.array(True), torch.bool),
        (np.zeros((0, 2), "f8"), torch.float64),
    ],
    ids=str,
)
def test_a_tensor_of_a_numpy_array_is_made_of_a_tensor(
    command: list[str], array: np.ndarray, dtype: torch.dtype, tmp_path: Path
) -> None:
    """torch makes it of an array alone, and the plain file has none."""
    torch.save({"w": OfNumpy(array, dtype)}, tmp_path / "xla.pt")
    done = inside(*command, "xla.pt", "-o", "out.pt", cwd=tmp_path)
    assert done.code == 0, done.err
    found = torch.load(tmp_path / "out.pt", map_location="cpu", weights_only=True)["w"]
    assert found.dtype == dtype and found.shape == array.shape
    assert torch.equal(found, torch.from_numpy(array).to(dtype))


def test_an_array_that_is_no_tensor_makes_none(tmp_path: Path) -> None:
    data = {
        "w": torch.ones(2),
        "x": OfNumpy(np.array([1, "a"], dtype=object), torch.float32),
    }
    torch.save(data, tmp_path / "xla.pt")
    done = inside("convert", "--plain", "xla.pt", "-o", "out.pt", cwd=tmp_path)
    assert done.code == 2 and b"bug" not in done.err
    assert b"x (a tensor of a numpy array)" in done.err


def test_a_tensor_of_older_torch_keeps_its_dtype(tmp_path: Path) -> None:
    """torch before 1.12 called the same function by another name."""
    saved = pickle.dumps({"w": OfNumpy(np.arange(3, dtype="f4"), torch.bfloat16)}, 2)
    saved = saved.replace(b"device_tensor_from_numpy", b"xla_tensor")
    (tmp_path / "xla.pt").write_bytes(op.torch_zip(saved))
    done = inside("convert", "--plain", "xla.pt", "-o", "out.pt", cwd=tmp_path)
    assert done.code == 0, done.err
    found = torch.load(tmp_path / "out.pt", map_location="cpu", weights_only=True)["w"]
    assert found.dtype == torch.bfloat16 and found.tolist() == [0, 1, 2]
