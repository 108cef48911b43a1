"""`python load_dcp.py DIR FULL`: two ranks over gloo load a distributed checkpoint into
tensors cut by rows and by columns.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from process import TIMEOUT
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def rank(number: int, store: str, folder: str, full: str) -> None:
    torch.set_num_threads(1)
    found = dist.FileStore(store, 2)
    dist.init_process_group(
        "cpu:gloo",
        store=found,
        rank=number,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT),
    )
    mesh = init_device_mesh("cpu", (2,))
    wanted: dict[str, Any] = torch.load(full)
    for dim in (0, 1):
        state = {
            name: distribute_tensor(
                torch.zeros_like(tensor), mesh, [Shard(min(dim, tensor.dim() - 1))]
            )
            for name, tensor in wanted["model"].items()
        }
        thing = {"model": state, "epoch": None}
        dcp.load(thing, checkpoint_id=folder)
        assert thing["epoch"] == wanted["epoch"]
        for name, tensor in state.items():
            assert torch.equal(tensor.full_tensor(), wanted["model"][name]), name
    dist.destroy_process_group()


def main(folder: str, full: str) -> None:
    children = []
    with tempfile.TemporaryDirectory() as place:
        for number in range(2):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    rank(number, f"{place}/store", folder, full)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(any(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
