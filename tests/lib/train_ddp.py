"""Tiny training runs under DistributedDataParallel, two ranks over gloo, that DDP
stops: `python train_ddp.py DIR KIND-SEED...`.

They do what a user does who looks for the reason: a snapshot before the first step, one
after each step. DIR/KIND-SEED gets `before.rankN.pth`, `after.rankN.pth` and
`error.rankN.txt`.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from process import TIMEOUT
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ckpt

KINDS = ("spare", "buffers", "frozen", "tied", "branch", "unlisted")
FORUM = ("forum", "forumfrozen", "forumbranch", "forumcompiled")
"""The model of PyTorch's forum, with a training checkpoint `last.pth` in place of
snapshots.
"""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.norm = (
            nn.BatchNorm1d(width) if torch.rand(()) < 0.5 else nn.LayerNorm(width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.fc(x)))


class Net(nn.Module):
    """Some blocks are used in forward, others are not; on `branch` only rank 0 uses the
    last one.
    """

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kind = kind
        self.stem = nn.Linear(6, 8)
        self.register_buffer("scale", torch.ones(8))
        if kind == "buffers":
            self.register_buffer("hidden", torch.zeros(8), persistent=False)
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))
        self.used = [bool(torch.rand(()) < 0.5) for _ in range(4)]
        self.used[seed % 4] = kind == "branch"  # somebody is to be left out
        if kind == "branch":
            self.used = [True] * 4
        self.head, self.aux = nn.Linear(8, 3), nn.Linear(8, 3)
        if kind == "tied":
            self.aux.weight = self.head.weight
        if kind == "unlisted":
            self.extra = [nn.Linear(8, 8)]
        if kind == "frozen":
            self.stem.requires_grad_(False)
            self.blocks[(seed + 1) % 4].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x) * self.scale
        for number, (block, is_used) in enumerate(
            zip(self.blocks, self.used, strict=True)
        ):
            skipped = self.kind == "branch" and number == 3 and dist.get_rank() == 1
            x = block(x) if is_used and not skipped else x
        return self.head(x) + (self.aux(x) if self.kind == "branch" else 0)


class Forum(nn.Module):
    """`fc3` is not used in forward, and the loss does not see the output of `fc4`."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kind = kind
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.bn = nn.BatchNorm1d(8)
        self.fc4, self.out = nn.Linear(8, 8), nn.Linear(8, 3)
        if kind == "forumfrozen":
            self.fc1.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.fc1(x)
        if self.kind != "forumbranch" or dist.get_rank() == 0:
            x = self.fc2(x)
        x = torch.relu(self.bn(x))
        return self.out(x), self.fc4(x)


def train_forum(folder: Path, kind: str, seed: int) -> None:
    """One rank: every parameter goes to the optimizer, rank 0 saves after the step, and
    DDP stops the next one.
    """
    net = Forum(kind, seed)
    model: nn.Module = DistributedDataParallel(net)
    if kind == "forumcompiled":
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(seed + dist.get_rank())
    try:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 6))[0].square().mean().backward()
            optimizer.step()
            if dist.get_rank() == 0:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                    folder / "last.pth",
                )
    except RuntimeError as error:
        (folder / f"error.rank{dist.get_rank()}.txt").write_text(
            str(error), encoding="utf-8"
        )
        raise


def train(folder: Path, kind: str, seed: int) -> None:
    """One rank: two steps, the second of which DDP does not allow."""
    net = Net(kind, seed)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(
        (p for p in net.parameters() if p.requires_grad), lr=1e-2
    )
    ckpt.snapshot(model, folder / "before.pth", ranks="all")
    torch.manual_seed(seed + dist.get_rank())
    try:
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 6)).square().mean()
            loss.backward()
            optimizer.step()
            ckpt.snapshot(model, folder / "after.pth", optimizer, ranks="all")
    except RuntimeError as error:
        (folder / f"error.rank{dist.get_rank()}.txt").write_text(
            str(error), encoding="utf-8"
        )
        if not (
            folder / f"after.rank{dist.get_rank()}.pth"
        ).exists():  # stopped in backward: gradients are there
            ckpt.snapshot(model, folder / "after.pth", optimizer, ranks="all")
        raise


def rank(number: int, folder: Path, kind: str, seed: int) -> NoReturn:
    """The process of one rank, which ends with 1 where DDP stopped it."""
    code = 2
    try:
        store = dist.FileStore(str(folder / "store"), 2)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=number,
            world_size=2,
            timeout=timedelta(seconds=TIMEOUT),
        )
        torch.set_num_threads(1)
        (train_forum if kind in FORUM else train)(folder, kind, seed)
        code = 0
    except RuntimeError:
        code = 1
    finally:
        os._exit(code)


def main() -> None:
    """Forks the ranks of each run, so that all share one import of torch, and waits for
    them.
    """
    import_module(
        "torch._dynamo"
    )  # an optimizer imports it: here for all ranks at once
    for run in sys.argv[2:]:
        folder = Path(sys.argv[1]) / run
        folder.mkdir()
        kind, _, seed = run.partition("-")
        ranks = [
            os.fork() or rank(number, folder, kind, int(seed)) for number in range(2)
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        if codes != [1, 1]:
            sys.exit(f"{run}: the ranks ended with {codes}")


if __name__ == "__main__":
    main()
