"""Checkpoints of e3nn: equivariant layers, whose weights may be one flat parameter, and
buffers of the code they make.
"""

from __future__ import annotations

import torch
from e3nn import o3
from e3nn.nn import BatchNorm, FullyConnectedNet, Gate
from recorder import Case
from torch import nn
from zoo import two_epochs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate("4x0e", [torch.relu], "2x0e", [torch.sigmoid], "2x1o")
        self.linear = o3.Linear("3x0e + 2x1o", self.gate.irreps_in)
        self.norm = BatchNorm(self.gate.irreps_out)
        self.product = o3.FullyConnectedTensorProduct(
            self.gate.irreps_out, "1x0e + 1x1o", "2x0e"
        )
        self.radial = FullyConnectedNet([3, 8, 4], torch.relu)
        self.unused = o3.Linear("2x0e", "2x0e")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm(self.gate(self.linear(x)))
        return (
            self.product(out, torch.ones(len(x), 4)).sum()
            + self.radial(torch.ones(len(x), 3)).sum()
        )


def trained(case: Case) -> None:
    net = case.watch("net", Net())
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, amsgrad=True)
    two_epochs(case, optimizer, lambda: net(torch.randn(5, 9)), net, ".pt")


def whole(case: Case) -> None:
    net = case.watch("net", o3.Linear("2x0e + 1x1o", "2x0e + 1x1o"))
    path = case.path("whole.pt")
    torch.save(net, path)
    case.wrote(path, {"": ("model", "net", "")})


CASES = (trained, whole)
