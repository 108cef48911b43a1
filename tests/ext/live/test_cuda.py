"""What a GPU alone shows: a model on it, a file saved from it, and a machine without
one. Skipped where there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from process import ckpt as run
from torch import nn

import ckpt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.norm, self.spare = (
            nn.LSTM(4, 8),
            nn.BatchNorm1d(8),
            nn.Linear(3, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.lstm(x)[0][-1])
        return found


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    net(torch.randn(5, 3, 4, device="cuda")).square().sum().backward()
    optimizer.step()
    return net, optimizer


def saved(path: Path) -> nn.Module:
    net, optimizer = trained()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return net


def loads_without_a_gpu(path: Path) -> subprocess.CompletedProcess[str]:
    code = f"import torch; torch.load({str(path)!r}, weights_only=True)"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )


def test_a_file_of_a_gpu_loads_without_one_once_rehomed(tmp_path: Path) -> None:
    before, after = tmp_path / "train.pth", tmp_path / "train.cpu.pth"
    saved(before)
    refused = loads_without_a_gpu(before)
    assert refused.returncode and "torch.cuda.is_available() is False" in refused.stderr
    assert run("rehome", before, "--to", "cpu", "-o", after).code == 0
    assert loads_without_a_gpu(after).stderr == ""


def test_rehome_back_gives_the_file_that_the_gpu_saved(tmp_path: Path) -> None:
    first, home, back = (
        tmp_path / name for name in ("first.pth", "home.pth", "back.pth")
    )
    saved(first)
    assert run("rehome", first, "--to", "cpu", "-o", home).code == 0
    assert run("rehome", home, "--to", "cuda:0", "-o", back).code == 0
    truth, found = (torch.load(path)["model"] for path in (first, back))
    assert {
        name: (value.device, value.untyped_storage().nbytes())
        for name, value in found.items()
    } == {
        name: (value.device, value.untyped_storage().nbytes())
        for name, value in truth.items()
    }
    assert all(torch.equal(found[name], value) for name, value in truth.items())


def test_load_into_a_model_on_the_gpu_leaves_it_there(tmp_path: Path) -> None:
    truth = saved(tmp_path / "train.pth")
    net = Net().cuda()
    packed = {name: value.data_ptr() for name, value in net.named_parameters()}
    with ckpt.open(tmp_path / "train.pth") as checkpoint:
        assert checkpoint.load_into(net, strict=True).share == 1
    assert {name: value.data_ptr() for name, value in net.named_parameters()} == packed
    for name, value in truth.state_dict().items():
        assert net.state_dict()[name].is_cuda and torch.equal(
            net.state_dict()[name], value
        ), name
    x = torch.randn(5, 3, 4, device="cuda")
    assert torch.equal(net.eval()(x), truth.eval()(x))


def test_a_snapshot_of_a_model_on_the_gpu_loads_on_the_cpu(tmp_path: Path) -> None:
    net, optimizer = trained()
    ckpt.snapshot(net, tmp_path / "after.pth", optimizer)
    allocated = torch.cuda.memory_allocated()
    state = torch.load(tmp_path / "after.pth", weights_only=True)["state_dict"]
    assert torch.cuda.memory_allocated() == allocated
    for name, value in net.state_dict().items():
        assert not state[name].is_cuda and torch.equal(state[name], value.cpu()), name
    findings = ckpt.inspect(tmp_path / "after.pth").findings
    assert {
        name for row in findings if row.code == "unused" for name in row.tensors
    } == {
        "state_dict.spare.weight",
        "state_dict.spare.bias",
    }
