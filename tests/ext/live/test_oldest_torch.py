"""What works on live models works with the oldest torch that the extra promises, 2.0.
`make test-oldest` asks it itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from inside import inside
from process import SAMPLES
from torch import nn

import ckpt
from ckpt import formats
from ckpt.ext.live.check import check_by_torch

NEWER = ("itemsize", "nbytes", "module_load")
"""Attributes of tensors that came with torch 2.1 or later."""


@pytest.fixture(autouse=True)
def torch_2_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without their newer attributes."""

    def gone(self: Any) -> NoReturn:
        raise AttributeError("came after torch 2.0")

    for name in NEWER:
        monkeypatch.setattr(torch.Tensor, name, property(gone), raising=False)


def test_the_attributes_are_gone() -> None:
    for name in NEWER:
        assert not hasattr(torch.ones(2), name)
        assert not hasattr(nn.Parameter(torch.ones(2)), name)


def test_snapshot(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()

    ckpt.snapshot(net, tmp_path / "a.pth", optimizer)

    state = torch.load(tmp_path / "a.pth", weights_only=True)["state_dict"]
    assert {name: value.tolist() for name, value in state.items()} == {
        name: value.tolist() for name, value in net.state_dict().items()
    }


@pytest.mark.parametrize("file", ["ddp_after.pth", "llama_bf16.pth"])
def test_verify_torch(file: str) -> None:
    with formats.open(str(SAMPLES / file)) as checkpoint:
        assert check_by_torch(str(SAMPLES / file), checkpoint) is None


def test_model(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Linear(3, 3)\n"
    )
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "a.pth")

    inspected = inside("inspect", "a.pth", "--model", "net.py:make", cwd=tmp_path)
    started = inside(
        "warmstart", "a.pth", "--into-model", "net.py:make", "-o", "b.pth", cwd=tmp_path
    )

    assert (inspected.code, inspected.err) == (0, b"")
    assert started.code == 0, started.err
    assert torch.load(tmp_path / "b.pth", weights_only=True).keys() == {
        "weight",
        "bias",
    }


def test_the_tensors_of_an_open_file() -> None:
    with ckpt.open(str(SAMPLES / "llama_bf16.pth")) as checkpoint:
        name = next(iter(checkpoint))
        assert checkpoint[name].torch().dtype is torch.bfloat16
