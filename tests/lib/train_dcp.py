"""Distributed checkpoints as torch writes them: `python train_dcp.py DIR`. Ranks are
forks over gloo.

Each becomes a folder of DIR; beside it lies NAME.full.pt with the whole tensors of its
state dict, by their names.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from process import TIMEOUT
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class Net(nn.Module):
    """`unused` is in the optimizer and not in the loss, `frozen` is neither. Few sizes
    divide by four.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.bn = nn.BatchNorm1d(16)
        self.down = nn.Linear(16, 5)
        self.unused = nn.Linear(4, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = (
            self.down(torch.relu(self.bn(self.up(x)))) * self.scale.sum()
        )
        return out


def trained(net: nn.Module, steps: int = 1) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(
        [p for p in net.parameters() if p.requires_grad], lr=1e-3
    )
    torch.manual_seed(1)
    for _ in range(steps):
        net(torch.randn(6, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def whole(value: Any) -> Any:
    """A state dict with its distributed tensors gathered."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    return value.full_tensor() if isinstance(value, DTensor) else value


def keep(folder: Path, state: Any, **options: Any) -> None:
    """Save a state dict, and its whole tensors beside it."""
    dcp.save(state, checkpoint_id=str(folder), **options)
    full = whole(state)
    if dist.get_rank() == 0:
        torch.save(full, f"{folder}.full.pt")
    dist.barrier()


def fsdp2(folder: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model, optimizer = get_state_dict(net, trained(net))
    keep(
        folder,
        {
            "model": model,
            "optim": optimizer,
            "step": 1,
            "config": {"width": 16, "names": ["a", "b"], "empty": {}},
            "both": (torch.arange(4), 3),
        },
    )


def flat(folder: Path) -> None:
    """torchtitan's way: the model's names at the root, the optimizer flattened."""
    torch.manual_seed(0)
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = get_state_dict(net, trained(net, 2), options=options)
    keep(folder, {**model, "optimizer": optimizer, "train_state": {"step": 2}})


def hsdp(folder: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    fully_shard(
        net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    )
    model, optimizer = get_state_dict(net, trained(net))
    keep(folder, {"model": model, "optim": optimizer})


def tensor_parallel(folder: Path) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
    parallelize_module(
        net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    fully_shard(net, mesh=mesh["dp"])
    model, optimizer = get_state_dict(net, trained(net))
    keep(folder, {"model": model, "optim": optimizer})


def grids(folder: Path) -> None:
    """Tensors of every kind of placement and of many dtypes, cut unevenly or into empty
    parts.
    """
    torch.manual_seed(0)
    mesh, line = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4,))
    state: dict[str, Any] = {
        "grid": distribute_tensor(torch.randn(6, 10), mesh, [Shard(0), Shard(1)]),
        "same dim": distribute_tensor(torch.randn(10, 3), mesh, [Shard(0), Shard(0)]),
        "columns": distribute_tensor(torch.randn(5, 7), line, [Shard(1)]),
        "inner": distribute_tensor(torch.randn(3, 9, 4), line, [Shard(1)]),
        "uneven": distribute_tensor(torch.randn(9, 2), line, [Shard(0)]),
        "empty parts": distribute_tensor(torch.randn(2, 3), line, [Shard(0)]),
        "replicated": distribute_tensor(torch.randn(3, 3), line, [Replicate()]),
        "number": torch.tensor(2.5),
        "none": torch.zeros(0, 4),
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "complex": distribute_tensor(
            torch.randn(6, 2, dtype=torch.complex64), line, [Shard(0)]
        ),
        "conj": torch.randn(3, dtype=torch.complex64).conj(),
        "a.b": {"c": torch.ones(2)},
        "list": [torch.ones(2), {"x": torch.zeros(1)}, 5],
    }
    for name in (
        "float64",
        "float16",
        "bfloat16",
        "int64",
        "int8",
        "uint8",
        "bool",
        "float8_e4m3fn",
    ):
        values = (torch.arange(18).reshape(6, 3) % 2).to(getattr(torch, name))
        state[name] = (
            values
            if name == "float8_e4m3fn"
            else distribute_tensor(values, line, [Shard(0)])
        )
    keep(folder, state)


def fsdp1(folder: Path) -> None:
    torch.manual_seed(0)
    net = FullyShardedDataParallel(
        Net(), use_orig_params=True, device_id=torch.device("cpu")
    )
    with FullyShardedDataParallel.state_dict_type(
        net, StateDictType.SHARDED_STATE_DICT
    ):
        state = {"model": net.state_dict()}
    dcp.save(state, checkpoint_id=str(folder))
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        full = {"model": net.state_dict()}
    if dist.get_rank() == 0:
        torch.save(full, f"{folder}.full.pt")


def many_files(folder: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    state = {"model": get_state_dict(net, trained(net))[0]}
    writer = FileSystemWriter(folder, single_file_per_rank=False, thread_count=2)
    keep(folder, state, storage_writer=writer)


def later(folder: Path) -> None:
    """async_save, over an older save of more tensors, whose files stay behind."""
    torch.manual_seed(0)
    (folder).mkdir(exist_ok=True)
    if dist.get_rank() == 0:
        (folder / "__9_0.distcp").write_bytes(b"of another save")
    dist.barrier()
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    state = {"model": get_state_dict(net, trained(net))[0]}
    dcp.async_save(state, checkpoint_id=str(folder)).result()  # type: ignore[union-attr]
    full = whole(state)
    if dist.get_rank() == 0:
        torch.save(full, f"{folder}.full.pt")
    dist.barrier()


def alone(folder: Path) -> None:
    """`use_collectives=False`: each rank writes metadata of its own."""
    torch.manual_seed(0)
    line = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {
        "sharded": distribute_tensor(torch.randn(6, 4), line, [Shard(0)]),
        "replicated": torch.arange(6.0),
        "step": 7,
    }
    keep(folder, state, use_collectives=False)


WORLDS: dict[int, dict[str, Callable[[Path], None]]] = {
    4: {
        "fsdp2": fsdp2,
        "flat": flat,
        "hsdp": hsdp,
        "tensor_parallel": tensor_parallel,
        "grids": grids,
        "many_files": many_files,
    },
    2: {"later": later, "alone": alone, "fsdp1": fsdp1},
}
NAMES = tuple(name for world in WORLDS.values() for name in world)


def rank(
    number: int, world: int, folder: Path, writers: dict[str, Callable[[Path], None]]
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store{world}"), world)
    dist.init_process_group(
        "cpu:gloo",
        store=store,
        rank=number,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT),
    )
    for name, write in writers.items():
        write(folder / name)
        dist.barrier()
    dist.destroy_process_group()


def main(
    folder: Path, worlds: dict[int, dict[str, Callable[[Path], None]]] | None = None
) -> None:
    for world, writers in (worlds or WORLDS).items():
        children = []
        for number in range(world):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    rank(number, world, folder, writers)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        if any(codes):
            sys.exit(f"world of {world}: {codes}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
