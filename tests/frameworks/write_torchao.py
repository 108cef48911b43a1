"""Weights that torchao quantised, and its optimizers with states of eight bits."""

from __future__ import annotations

import torch
from recorder import Case
from torch import nn
from torchao.optim import AdamW8bit, AdamWFp8
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from zoo import two_epochs


def int8(case: Case) -> None:
    net = case.watch(
        "net", nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    )
    quantize_(net, Int8WeightOnlyConfig())
    path = case.path("int8.pth")
    torch.save(net.state_dict(), path)
    case.wrote(path, {"": ("model", "net", "")}, optimizers=False)
    kept = case.path("training.pth")
    torch.save({"model": net.state_dict(), "epoch": 2}, kept)
    case.wrote(
        kept, {"model": ("model", "net", "")}, optimizers=False, values={"epoch": 2}
    )


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second, self.spare = (
            nn.Linear(64, 128),
            nn.BatchNorm1d(128),
            nn.Linear(128, 64),
            nn.Linear(64, 64),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)).relu())


def optimizer(case: Case, make: type) -> None:
    net = case.watch("net", Wide())
    optimizer = make(net.parameters(), lr=1e-2)
    two_epochs(
        case, optimizer, lambda: net(torch.randn(4, 64)).square().mean(), net, ".pth"
    )


def adamw8bit(case: Case) -> None:
    optimizer(case, AdamW8bit)


def adamw_fp8(case: Case) -> None:
    optimizer(case, AdamWFp8)


CASES = (int8, adamw8bit, adamw_fp8)
