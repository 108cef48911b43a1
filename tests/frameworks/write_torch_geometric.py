"""Checkpoints of graph networks of PyTorch Geometric, with lazy layers and its
normalizations.
"""

from __future__ import annotations

import torch
from recorder import Case
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATv2Conv,
    GCNConv,
    GraphNorm,
    HeteroConv,
    SAGEConv,
    models,
)


def graph() -> Data:
    return Data(
        x=torch.randn(10, 4),
        edge_index=torch.randint(0, 10, (2, 30)),
        y=torch.randint(0, 3, (10,)),
    )


class Lazy(nn.Module):
    """Layers whose sizes the first batch decides; one of them is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = SAGEConv(-1, 8), GraphNorm(8)
        self.second, self.spare = GATv2Conv(-1, 3), GCNConv(-1, 5)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


def fit(case: Case, net: nn.Module) -> None:
    case.watch("net", net)
    data = graph()
    with torch.no_grad():
        net(data.x, data.edge_index)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    before = None
    for epoch in range(2):
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(data.x, data.edge_index), data.y).backward()
            optimizer.step()
        path = case.path(f"epoch{epoch}.pt")
        torch.save(
            {
                "model_state_dict": net.state_dict(),
                "optimizer_state_dict": optimizer.state_dict(),
                "epoch": epoch,
            },
            path,
        )
        sections = {
            "model_state_dict": ("model", "net", ""),
            "optimizer_state_dict": "optimizer",
        }
        case.wrote(path, sections, values={"epoch": epoch}, after=before)
        before = path


def gcn(case: Case) -> None:
    fit(case, models.GCN(4, 8, 2, 3, norm="batch"))


def gat(case: Case) -> None:
    fit(case, models.GAT(4, 8, 2, 3, heads=2, jk="cat"))


def gin(case: Case) -> None:
    fit(case, models.GIN(4, 8, 2, 3, train_eps=True))


def lazy(case: Case) -> None:
    fit(case, Lazy())


def hetero(case: Case) -> None:
    net = HeteroConv(
        {("a", "to", "b"): SAGEConv((4, 4), 3), ("b", "to", "a"): SAGEConv((4, 4), 3)}
    )
    case.watch("net", net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    edges = {
        ("a", "to", "b"): torch.randint(0, 5, (2, 9)),
        ("b", "to", "a"): torch.randint(0, 5, (2, 9)),
    }
    out = net({"a": torch.randn(5, 4), "b": torch.randn(5, 4)}, edges)
    out["b"].square().mean().backward()
    optimizer.step()
    path = case.path("hetero.pt")
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
    case.wrote(path, {"model": ("model", "net", ""), "optimizer": "optimizer"})


CASES = (gcn, gat, gin, lazy, hetero)
