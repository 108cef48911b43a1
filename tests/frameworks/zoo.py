"""Tiny models with what real ones have: an unused layer, a frozen one, normalization,
tied weights, buffers.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from recorder import Case
from torch import nn

DEVICE = os.environ.get("CKPT_FRAMEWORKS_DEVICE", "cpu")
"""Where the models are trained."""
LLAMA = {
    "vocab_size": 30,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
BERT = {**LLAMA, "max_position_embeddings": 16}
"""The sizes of language models of transformers."""


class Net(nn.Module):
    """Convolution, BatchNorm, a frozen layer, a layer that forward does not use, and a
    head.
    """

    def __init__(
        self, frozen: bool = True, spare: bool = True, root_buffer: bool = False
    ) -> None:
        super().__init__()
        if root_buffer:
            self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]))
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.spare = nn.Linear(5, 7) if spare else nn.Identity()
        self.fc = nn.Linear(6, 3)
        if frozen:
            self.conv1.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.conv2(x).mean((2, 3)))


class TiedNet(nn.Module):
    """A tiny language model with tied weights and a position buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.register_buffer("positions", torch.arange(6))
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(
            self.mix(self.norm(self.embed(x) + self.positions.float().mean()))
        )


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6)
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        self.aux = nn.Linear(8, 2)  # never used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def images(count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, 8, 8, device=DEVICE), torch.randint(
        0, 3, (count,), device=DEVICE
    )


def decay_groups(model: nn.Module, frozen: bool = False) -> list[dict[str, object]]:
    """Weight decay for matrices only, as most training scripts do it."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad or frozen]
    return [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]


def two_epochs(
    case: Case,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], torch.Tensor],
    net: nn.Module,
    ending: str,
) -> None:
    """Two files of one run of a model that the case watches as `net`, a step each."""
    before = None
    for epoch in range(2):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        path = case.path(f"epoch{epoch}{ending}")
        torch.save(
            {
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            },
            path,
        )
        case.wrote(
            path,
            {"model": ("model", "net", ""), "optimizer": "optimizer"},
            values={"epoch": epoch},
            after=before,
        )
        before = path
