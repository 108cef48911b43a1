"""Two ranks on gloo save sharded state dicts: `python train_fsdp.py FOLDER` writes rank0.pt, rank1.pt and whole.pt."""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType


def work(rank: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/whole.pt")
    sharded = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    config = ShardedStateDictConfig(_use_dtensor=False)
    with FullyShardedDataParallel.state_dict_type(sharded, StateDictType.SHARDED_STATE_DICT, config):
        torch.save({"model": sharded.state_dict(), "epoch": 3}, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    processes.spawn(work, (sys.argv[1],), 2)
