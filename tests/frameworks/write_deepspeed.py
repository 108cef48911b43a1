"""Folders of `engine.save_checkpoint` on two ranks, each a process of its own,
on gloo.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from recorder import Case
from torch import nn


class Shared(nn.Module):
    """Tied weights, a frozen layer, an unused one, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 9)
        self.norm = nn.BatchNorm1d(9)
        self.frozen = nn.Linear(9, 8)
        self.spare = nn.Linear(5, 7)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mix(self.embed(x))
        y = y * self.norm.weight + self.norm.bias + self.norm.running_mean.to(y.dtype)
        return self.head(self.frozen(y))


def rank(folder: str, stage: int, dtype: str) -> None:
    """Trains, saves, and keeps what the parameters are then."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    # Its own sums in shared memory would be compiled first, and a build that was ended
    # leaves a lock that others wait for.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    net = Shared()
    chosen = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(chosen, 1e-2)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **({"bf16": {"enabled": True}} if dtype == "bf16" else {}),
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    for _ in range(3):
        x = torch.randint(0, 11, (4,))
        engine.backward(nn.functional.cross_entropy(engine(x).float(), x))
        engine.step()
    engine.save_checkpoint(folder, client_state={"epoch": 2})
    state = {}
    for name, parameter in net.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
            full = (
                safe_get_full_fp32_param(parameter)
                if stage and parameter.requires_grad
                else None
            )
            state[name] = (parameter if full is None else full).detach().clone()
    state["head.weight"] = state["embed.weight"]
    state |= {name: buffer.clone() for name, buffer in net.named_buffers()}
    if engine.global_rank == 0:
        torch.save(state, f"{folder}.live")
    torch.distributed.barrier()


def trained(case: Case, stage: int, dtype: str = "fp32") -> None:
    folder = case.path("run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "DS_ACCELERATOR": "cpu",
    }
    children = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), str(stage), dtype],
            env={
                **os.environ,
                **shared,
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.DEVNULL,
        )
        for number in range(2)
    ]
    assert [child.wait(300) for child in children] == [0, 0]
    live: dict[str, Any] = torch.load(Path(f"{folder}.live"))
    case.watch("net", Shared().requires_grad_(True))
    sections = {"model": ("model", "net", ""), "optimizer": "optimizer"}
    if stage in (1, 2):
        sections["module"] = "other"
    values = {"epoch": 2, "global_steps": 3, "ds_config.zero_optimization.stage": stage}
    case.wrote(folder, sections, values=values, live={"net": live}, optimizers=False)


def zero_0(case: Case) -> None:
    trained(case, 0)


def zero_1(case: Case) -> None:
    trained(case, 1)


def zero_2(case: Case) -> None:
    trained(case, 2)


def zero_3(case: Case) -> None:
    trained(case, 3)


def zero_1_bf16(case: Case) -> None:
    trained(case, 1, "bf16")


def zero_3_bf16(case: Case) -> None:
    trained(case, 3, "bf16")


CASES = (zero_0, zero_1, zero_2, zero_3, zero_1_bf16, zero_3_bf16)

if __name__ == "__main__":
    rank(sys.argv[1], int(sys.argv[2]), sys.argv[3])
