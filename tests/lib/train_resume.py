"""Training that goes on elsewhere: `python train_resume.py DIR begin|go-on`. Ranks are
forks over gloo.

`begin` trains three steps, saves, and trains two more; NAME.json has the losses of
these two. `go-on` loads what ckpt made of the saves, in another framework or on another
number of ranks, and trains the same two steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from train_dcp import main

STEPS, MORE, BATCH, WORDS = 3, 2, 8, 17


class Net(nn.Module):
    """Layers of one shape, tied weights, and a part that is not used, or positions that
    are frozen.

    No file says which of the two is left out of an optimizer that holds one of them.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 12)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 12)) for _ in range(3)
        )
        self.unused = nn.Linear(5, 3) if kind == "adam" else None
        self.places = (
            nn.Embedding(5, 12).requires_grad_(False) if kind == "sgd" else None
        )
        self.head = nn.Linear(12, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        if self.places is not None:
            x = x + self.places.weight
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        out: torch.Tensor = self.head(x)
        return out


def built(kind: str) -> Net:
    torch.manual_seed(0)
    return Net(kind)


def groups(net: nn.Module) -> list[dict[str, Any]]:
    """Matrices with weight decay and vectors without, as most recipes have them."""
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    return [
        {
            "params": [parameter for parameter in trained if parameter.dim() > 1],
            "weight_decay": 0.1,
        },
        {
            "params": [parameter for parameter in trained if parameter.dim() < 2],
            "weight_decay": 0.0,
        },
    ]


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(net), lr=1e-2)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        (p for p in net.parameters() if p.requires_grad), lr=0.1, momentum=0.9
    )


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": adam,
    "sgd": sgd,
}


def trained(
    net: nn.Module, optimizer: torch.optim.Optimizer, first: int, count: int
) -> list[float]:
    """The losses of some steps, of the whole batch. Each rank takes its part of it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    losses = []
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        words = torch.randint(0, WORDS, (BATCH, 6), generator=generator)
        mine = words[rank * BATCH // world : (rank + 1) * BATCH // world]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            net(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(float(whole) / world)
    return losses


def keep(path: Path, losses: list[float]) -> None:
    if dist.get_rank() == 0:
        Path(f"{path}.json").write_text(json.dumps(losses), encoding="utf-8")


def sharded(kind: str) -> nn.Module:
    net = built(kind)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def replicated(kind: str) -> nn.Module:
    return DistributedDataParallel(built(kind), find_unused_parameters=True)


def begin_replicated(path: Path, kind: str) -> None:
    """DDP saves its own `state_dict()`, and the optimizer by numbers."""
    net = replicated(kind)
    optimizer = OPTIMIZERS[kind](net)
    trained(net, optimizer, 0, STEPS)
    if dist.get_rank() == 0:
        torch.save(
            {"model": net.state_dict(), "optim": optimizer.state_dict(), "step": STEPS},
            f"{path}.pth",
        )
    keep(path, trained(net, optimizer, STEPS, MORE))


def begin_sharded(path: Path, kind: str) -> None:
    net = sharded(kind)
    optimizer = OPTIMIZERS[kind](net)
    trained(net, optimizer, 0, STEPS)
    model, state = get_state_dict(net, optimizer)
    dcp.save(
        {"model": model, "optim": state, "step": STEPS}, checkpoint_id=f"{path}.dcp"
    )
    keep(path, trained(net, optimizer, STEPS, MORE))


def go_on_from_dcp(
    path: Path, source: str, kind: str, build: Callable[[str], nn.Module]
) -> None:
    """The strict load of torch, into FSDP2 or DDP."""
    net = build(kind)
    optimizer = OPTIMIZERS[kind](net)
    model, state = get_state_dict(net, optimizer)
    whole: dict[str, Any] = {"model": model, "optim": state, "step": 0}
    dcp.load(whole, checkpoint_id=str(path.parent / source))
    assert whole["step"] == STEPS
    set_state_dict(
        net, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optim"]
    )
    keep(path, trained(net, optimizer, STEPS, MORE))


def go_on_from_file(
    path: Path, source: str, kind: str, build: Callable[[str], nn.Module]
) -> None:
    """A file that holds names: `load_state_dict` takes them in their order."""
    net = build(kind)
    optimizer = OPTIMIZERS[kind](net)
    whole = torch.load(path.parent / source)
    inner = net.module if isinstance(net, DistributedDataParallel) else net
    inner.load_state_dict(whole["model"])
    optimizer.load_state_dict(whole["optim"])
    keep(path, trained(net, optimizer, STEPS, MORE))


BEGIN: dict[int, dict[str, Callable[[Path], None]]] = {
    2: {f"ddp-{kind}": partial(begin_replicated, kind=kind) for kind in OPTIMIZERS},
    4: {f"fsdp2-{kind}": partial(begin_sharded, kind=kind) for kind in OPTIMIZERS},
}
GO_ON: dict[int, dict[str, Callable[[Path], None]]] = {
    world: {
        name.format(kind=kind, world=world): partial(
            load, source=source.format(kind=kind), kind=kind, build=build
        )
        for kind in OPTIMIZERS
        for name, load, source, build in (
            (
                "ddp-{kind} to fsdp2 on {world}",
                go_on_from_dcp,
                "ddp-{kind}.dcp",
                sharded,
            ),
            (
                "ddp-{kind} to ddp on {world}",
                go_on_from_dcp,
                "ddp-{kind}.dcp",
                replicated,
            ),
            (
                "fsdp2-{kind} to fsdp2 on {world}",
                go_on_from_dcp,
                "fsdp2-{kind}.complete.dcp",
                sharded,
            ),
            (
                "fsdp2-{kind} to ddp on {world}",
                go_on_from_file,
                "fsdp2-{kind}.pth",
                replicated,
            ),
            (
                "fsdp2-{kind} to torch on {world}",
                go_on_from_file,
                "fsdp2-{kind}.pth",
                built,
            ),
        )
        if world == 1 or build is not built
    }
    for world in (1, 2, 4)
}


if __name__ == "__main__":
    for left in Path(sys.argv[1]).glob(
        "store*"
    ):  # ranks would find each other's words of the last time in it
        left.unlink()
    main(Path(sys.argv[1]), BEGIN if sys.argv[2] == "begin" else GO_ON)
