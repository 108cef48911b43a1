"""Layers that bitsandbytes, compressed-tensors, transformers and torchao wrote:
`--dequantize` gives the weights that they give.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ckpt as library

FILES = Path(__file__).resolve().parents[2] / "quantised_files"
TRUTH = json.loads((FILES / "truth.json").read_text())


def digest(weight: torch.Tensor) -> str:
    """The SHA-256 of a weight, of which the sign of 0 and the bits of NaN do
    not count.
    """
    plain = (weight + 0.0).nan_to_num(12345.0).contiguous()
    return hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("name", TRUTH)
def test_the_weight_is_what_its_library_makes(tmp_path: Path, name: str) -> None:
    row = TRUTH[name]
    path = tmp_path / name
    shutil.copy(FILES / name, path)
    if row["config"] is not None:
        (tmp_path / "config.json").write_text(json.dumps(row["config"]))
    library.convert(path, out=tmp_path / "out.safetensors", dequantize=True)
    (weight,) = load_file(tmp_path / "out.safetensors").values()
    assert (str(weight.dtype).removeprefix("torch."), list(weight.shape)) == (
        row["dtype"],
        row["shape"],
    )
    assert digest(weight) == row["sha256"]


def test_every_file_has_a_truth() -> None:
    files = {
        path.name for path in FILES.iterdir() if path.suffix in (".safetensors", ".pth")
    }
    assert files == set(TRUTH)
