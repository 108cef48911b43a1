"""Random models, and how training scripts hand their parameters to an optimizer:
groups, frozen ones, several steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Named = list[tuple[str, nn.Parameter]]


class Block(nn.Module):
    """Like a block of a transformer: several matrices of one shape, norms, a buffer
    among them.
    """

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        if rng.random() < 0.3:
            self.gamma = nn.Parameter(torch.ones(width))
        if rng.random() < 0.3:
            self.register_buffer("scale", torch.ones(width))
        makers: list[Callable[[], nn.Module]] = [
            lambda: nn.Linear(width, width),
            lambda: nn.Linear(width, width, bias=False),
            lambda: nn.LayerNorm(width),
            lambda: nn.Linear(width, 2 * width),
            lambda: nn.BatchNorm1d(width),
        ]
        for name in rng.sample(
            ["query", "key", "value", "proj", "norm", "fc"], rng.randint(1, 4)
        ):
            self.add_module(name, rng.choice(makers)())


class Net(nn.Module):
    """Root parameters and buffers of any kind, some blocks, a head."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        width = 3
        if rng.random() < 0.4:
            self.pos_embed = nn.Parameter(torch.ones(1, 5, width))
        if rng.random() < 0.4:
            self.register_buffer("mean", torch.ones(width))
        if rng.random() < 0.2:
            self.register_buffer("pe", torch.ones(width, width))
        self.blocks = nn.ModuleList(Block(width, rng) for _ in range(rng.randint(1, 4)))
        self.head = nn.Linear(width, rng.choice([2, width]))


def _two(
    named: Named, first: Callable[[str, nn.Parameter], bool], decay: float = 0.1
) -> list[dict[str, Any]]:
    groups = [
        {"params": [p for name, p in named if first(name, p)], "weight_decay": decay},
        {"params": [p for name, p in named if not first(name, p)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _by_layer(named: Named) -> list[dict[str, Any]]:
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        groups.setdefault(
            (".".join(name.split(".")[:2]), parameter.ndim > 1), []
        ).append(parameter)
    return [
        {"params": held, "weight_decay": 0.1 * key[1]} for key, held in groups.items()
    ]


RECIPES: dict[str, Callable[[Named], list[dict[str, Any]]]] = {
    "one": lambda named: [{"params": [p for _, p in named]}],
    "by ndim": lambda named: _two(named, lambda _, p: p.ndim > 1),
    "by ndim, no decay first": lambda named: _two(named, lambda _, p: p.ndim > 1)[::-1],
    "by ndim, both without decay": lambda named: _two(
        named, lambda _, p: p.ndim > 1, 0.0
    ),
    "by name": lambda named: _two(
        named, lambda name, _: not name.endswith(("bias", "norm.weight"))
    ),
    "timm": lambda named: _two(
        named, lambda name, p: p.ndim > 1 and name != "pos_embed"
    ),
    "minGPT": lambda named: _two(sorted(named), lambda _, p: p.ndim > 1),
    "head and rest": lambda named: _two(named, lambda name, _: name.startswith("head")),
    "one each": lambda named: [
        {"params": [p], "weight_decay": 0.1 * (p.ndim > 1)} for _, p in named
    ],
    "one each, backwards": lambda named: [{"params": [p]} for _, p in named[::-1]],
    "by layer": _by_layer,
    "lists by module": lambda named: _two(
        named, lambda name, _: name.split(".")[-2:-1] != ["norm"]
    ),
}

OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]] = {
    "SGD": lambda groups: torch.optim.SGD(groups, 0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, 0.1, momentum=0.9),
    "Adam": torch.optim.Adam,
    "AdamW": lambda groups: torch.optim.AdamW(groups, amsgrad=True),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "RMSprop": torch.optim.RMSprop,
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": torch.optim.Adagrad,
    "Adafactor": torch.optim.Adafactor,
}


class Run:
    """A short training run: `gradient` are the names that had a gradient at any step,
    `numbered` those of DDP.
    """

    def __init__(
        self,
        seed: int,
        recipe: str,
        optimizer: str,
        frozen: str = "any",
        used: float = 0.8,
    ) -> None:
        rng = random.Random(seed)
        self.net = Net(rng)
        for block in [*self.net.blocks, self.net.head]:
            if frozen != "none" and rng.random() < 0.25:
                block.requires_grad_(False)
        handed = rng.random() < 0.5 if frozen == "any" else frozen == "handed"
        named = [
            row for row in self.net.named_parameters() if handed or row[1].requires_grad
        ]
        self.numbered = [
            name for name, p in self.net.named_parameters() if p.requires_grad
        ]
        modules = {name.rpartition(".")[0]: rng.random() < used for name, _ in named}
        self.handed = {name for name, _ in named}
        self.gradient: set[str] = set()
        self.optimizer = (
            OPTIMIZERS[optimizer](RECIPES[recipe](named)) if named else None
        )
        for _ in range(2 if named else 0):
            for name, parameter in named:
                parameter.grad = None
                if (
                    parameter.requires_grad
                    and modules[name.rpartition(".")[0]]
                    and rng.random() < 0.9
                ):
                    parameter.grad = torch.ones_like(parameter)
                    self.gradient.add(name)
            assert self.optimizer is not None
            self.optimizer.step()

    @property
    def checkpoint(self) -> dict[str, Any]:
        """What a training script saves."""
        state = {"model": self.net.state_dict()}
        return (
            state
            if self.optimizer is None
            else {**state, "optimizer": self.optimizer.state_dict()}
        )
