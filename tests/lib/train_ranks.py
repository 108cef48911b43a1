"""What each rank of a sharded run saves for itself, as torch writes it: `python
train_ranks.py DIR`. Ranks are forks.

Each becomes a folder of DIR; beside it lies NAME.full.pt with the whole tensors of its
state dict. `hf` and `hf_of_two` are of HuggingFaceStorageWriter(save_distributed=True),
the others are of torch.save, one file for each rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from train_dcp import Net, main, trained, whole


def keep(
    folder: Path, state: Any, name: str = "model_world_size_{world}_rank_{rank}.pt"
) -> None:
    """Save the state of this rank, and the whole tensors beside it."""
    folder.mkdir(exist_ok=True)
    torch.save(
        state, folder / name.format(world=dist.get_world_size(), rank=dist.get_rank())
    )
    full = whole(state)
    if dist.get_rank() == 0:
        torch.save(full, f"{folder}.full.pt")
    dist.barrier()


def line() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def trained_net(mesh: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    net = Net()
    fully_shard(net, mesh=mesh)
    model, optimizer = get_state_dict(net, trained(net))
    return {"model": model, "optim": optimizer, "step": 1}


def fsdp2(folder: Path) -> None:
    keep(folder, trained_net(line()))


def accelerate(folder: Path) -> None:
    """The state dict alone, under accelerate's name."""
    keep(folder, trained_net(line())["model"], "pytorch_model_fsdp_rank{rank}.bin")


def hsdp(folder: Path) -> None:
    keep(
        folder,
        trained_net(
            init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        ),
    )


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


def tensors(dtypes: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Tensors that divide evenly, unevenly and into empty parts, of many dtypes."""
    torch.manual_seed(0)
    mesh = line()
    made: dict[str, Any] = {
        "columns": distribute_tensor(torch.randn(5, 7), mesh, [Shard(1)]),
        "inner": distribute_tensor(torch.randn(3, 9, 4), mesh, [Shard(1)]),
        "uneven": distribute_tensor(torch.randn(9, 2), mesh, [Shard(0)]),
        "empty parts": distribute_tensor(torch.randn(2, 3), mesh, [Shard(0)]),
        "replicated": distribute_tensor(torch.randn(3, 3), mesh, [Replicate()]),
        "plain": torch.arange(6.0),
        "number": torch.tensor(5.0),
    }
    for name in dtypes:
        values = (torch.arange(18).reshape(6, 3) % 2).to(getattr(torch, name))
        made[name] = distribute_tensor(values, mesh, [Shard(0)])
    return made


def grids(folder: Path) -> None:
    state = tensors(
        ("float64", "float16", "bfloat16", "int64", "int8", "bool", "complex64")
    )
    mesh = init_device_mesh("cpu", (2, 2))
    state |= {
        "grid": distribute_tensor(torch.randn(6, 10), mesh, [Shard(0), Shard(1)]),
        "grid turned": distribute_tensor(
            torch.randn(6, 10), mesh, [Shard(1), Shard(0)]
        ),
        "same dim": distribute_tensor(torch.randn(10, 3), mesh, [Shard(0), Shard(0)]),
        "half": distribute_tensor(torch.randn(5, 3), mesh, [Replicate(), Shard(0)]),
        "other half": distribute_tensor(
            torch.randn(5, 3), mesh, [Shard(0), Replicate()]
        ),
        "tied": state["uneven"],
        "parameter": nn.Parameter(
            distribute_tensor(torch.randn(4, 4), line(), [Shard(0)])
        ),
    }
    keep(folder, state)


def partial(folder: Path) -> None:
    """A tensor whose values are sums over the ranks."""
    local = torch.full((2, 2), float(dist.get_rank()))
    keep(
        folder,
        {"sum": DTensor.from_local(local, line(), [Partial()]), "whole": torch.ones(2)},
    )


def gathered(value: Any) -> Any:
    """A state dict with its ShardedTensors put together by hand. ShardedTensor.gather
    knows the first group only.
    """
    if isinstance(value, dict):
        return {key: gathered(each) for key, each in value.items()}
    if not isinstance(value, ShardedTensor):
        return value
    held = [
        (shard.metadata.shard_offsets, shard.tensor) for shard in value.local_shards()
    ]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, held)
    full = torch.zeros(value.size(), dtype=value.dtype)
    for offsets, part in (shard for shards in every for shard in shards):
        full[
            tuple(
                slice(at, at + size)
                for at, size in zip(offsets, part.shape, strict=True)
            )
        ] = part
    return full


def keep_fsdp1(folder: Path, name: str, **options: Any) -> None:
    """A model of several FSDP modules, and its optimizer. FULL optimizer state is wrong
    on a CPU in torch 2.13.
    """
    torch.manual_seed(0)
    policy = ModuleWrapPolicy({nn.Linear})
    net = FullyShardedDataParallel(
        Net(),
        use_orig_params=True,
        device_id=torch.device("cpu"),
        auto_wrap_policy=policy,
        **options,
    )
    optimizer = trained(net)
    with FullyShardedDataParallel.state_dict_type(
        net, StateDictType.SHARDED_STATE_DICT
    ):
        moments = FullyShardedDataParallel.optim_state_dict(net, optimizer)
        state = {"model": net.state_dict(), "optimizer": moments, "iteration": 7}
    folder.mkdir(exist_ok=True)
    torch.save(
        state, folder / name.format(world=dist.get_world_size(), rank=dist.get_rank())
    )
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        full = {**state, "model": net.state_dict(), "optimizer": gathered(moments)}
    if dist.get_rank() == 0:
        torch.save(full, f"{folder}.full.pt")
    dist.barrier()


def fsdp1(folder: Path) -> None:
    keep_fsdp1(folder, "model_world_size_{world}_rank_{rank}.pt")


def fsdp1_alone(folder: Path) -> None:
    """Shards of one FSDP module, and what it held before it was cut."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), f"{folder}.full.pt")
    sharded = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    folder.mkdir(exist_ok=True)
    config = ShardedStateDictConfig(_use_dtensor=False)
    with FullyShardedDataParallel.state_dict_type(
        sharded, StateDictType.SHARDED_STATE_DICT, config
    ):
        torch.save(
            {"model": sharded.state_dict(), "epoch": 3},
            folder / f"rank{dist.get_rank()}.pt",
        )
    dist.barrier()


def fsdp1_of_four(folder: Path) -> None:
    """Ranks beyond the rows of a tensor hold none of it."""
    keep_fsdp1(folder, "model_0000007.rank_{rank}.pth")


def fsdp1_hybrid(folder: Path) -> None:
    """Ranks 0 and 1 hold all of the model, and so do ranks 2 and 3."""
    rank = dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    strategy = ShardingStrategy.HYBRID_SHARD
    mine = groups[rank // 2], groups[2 + rank % 2]
    keep_fsdp1(
        folder, "model.rank_{rank}.pth", process_group=mine, sharding_strategy=strategy
    )


def fsdp1_flat(
    folder: Path, *, name: str = "model.rank_{rank}.pth", use_orig_params: bool = False
) -> None:
    """LOCAL_STATE_DICT: one flat parameter for each FSDP module. torch 2.13 saves those
    that divide evenly.
    """
    torch.manual_seed(0)
    net = FullyShardedDataParallel(
        nn.Sequential(
            nn.Linear(7, 8, bias=False), nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4)
        ),
        use_orig_params=use_orig_params,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    )
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.LOCAL_STATE_DICT):
        state = net.state_dict()
    folder.mkdir(exist_ok=True)
    torch.save({"model": state}, folder / name.format(rank=dist.get_rank()))
    dist.barrier()


def dinov2(folder: Path) -> None:
    """dinov2's way (dinov2/fsdp/__init__.py): beside flat parameters the slice of each
    parameter, as a plain tensor.
    """
    fsdp1_flat(folder, name="model_0000007.rank_{rank}.pth", use_orig_params=True)


def hf(folder: Path) -> None:
    state = trained_net(line())["model"] | tensors(
        ("float16", "bfloat16", "int64", "int8")
    )
    numbers = {name: 1 + index % 2 for index, name in enumerate(state)}
    writer = HuggingFaceStorageWriter(
        str(folder), fqn_to_index_mapping=numbers, save_distributed=True
    )
    dcp.save(state, storage_writer=writer)
    full = whole(state)
    if dist.get_rank() == 0:
        torch.save(full, f"{folder}.full.pt")
    dist.barrier()


WORLDS: dict[int, dict[str, Callable[[Path], None]]] = {
    4: {
        "fsdp2": fsdp2,
        "accelerate": accelerate,
        "hsdp": hsdp,
        "tensor_parallel": tensor_parallel,
        "grids": grids,
        "fsdp1_of_four": fsdp1_of_four,
        "fsdp1_hybrid": fsdp1_hybrid,
        "fsdp1_flat": fsdp1_flat,
        "dinov2": dinov2,
        "hf": hf,
    },
    2: {
        "fsdp2_of_two": fsdp2,
        "partial": partial,
        "fsdp1": fsdp1,
        "fsdp1_alone": fsdp1_alone,
        "hf_of_two": hf,
    },
}
RANKS = (
    "fsdp2",
    "accelerate",
    "hsdp",
    "tensor_parallel",
    "grids",
    "fsdp2_of_two",
    "fsdp1_of_four",
    "fsdp1_hybrid",
    "fsdp1",
)
"""Those of torch.save whose parts are put together."""


if __name__ == "__main__":
    main(Path(sys.argv[1]), WORLDS)
