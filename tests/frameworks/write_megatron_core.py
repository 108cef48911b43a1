"""Folders of `dist_checkpointing.save` (torch_dist) of a GPT on two tensor parallel
ranks, each a process, on gloo.

Megatron asks for CUDA in two places that a CPU does not have; both are stubbed. Its
optimizers are made on CUDA only, so the one here is wrapped without its constructor.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from recorder import Case
from torch import nn

SIZES = {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 2}
RANKS = 2


def rank(folder: Path) -> None:
    """Trains a step, saves, and keeps the parts of the model that this rank holds, with
    their places.
    """
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    torch.distributed.init_process_group("gloo")
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.mapping import (
        ShardedObject,
        ShardedTensor,
        is_main_replica,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import FP32Optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel(RANKS)
    here = torch.distributed.get_rank()
    torch.manual_seed(here)
    config = TransformerConfig(
        **SIZES, use_cpu_initialization=True, tensor_model_parallel_size=RANKS
    )
    net = GPTModel(
        config, get_gpt_layer_local_spec(), vocab_size=16, max_sequence_length=8
    )
    inner = torch.optim.AdamW(net.parameters(), 1e-3)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    inner.step()
    model = net.sharded_state_dict()
    outer = object.__new__(FP32Optimizer)
    outer.optimizer, outer.config, outer.is_stub_optimizer = (
        inner,
        OptimizerConfig(),
        False,
    )
    outer.init_state_fn = lambda *_: None
    random = ShardedObject(
        "rng_state", [{"random_rng_state": 1}], (1, RANKS), (0, here)
    )
    args = argparse.Namespace(
        **SIZES,
        tensor_model_parallel_size=RANKS,
        pipeline_model_parallel_size=1,
        world_size=RANKS,
    )
    state = {
        "args": args,
        "iteration": 10,
        "model": model,
        "optimizer": outer.sharded_state_dict(model),
        "rng_state": random,
    }
    at = folder / "iter_0000010"
    at.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(state, str(at))
    parts = [
        (part.key, part.global_shape, part.global_offset, part.data.detach().clone())
        for part in model.values()
        if isinstance(part, ShardedTensor) and is_main_replica(part.replica_id)
    ]
    torch.save(parts, f"{folder}.parts{here}")
    if not here:
        (folder / "latest_checkpointed_iteration.txt").write_text("10")
    torch.distributed.barrier()


def whole(folder: Path) -> dict[str, torch.Tensor]:
    """Each key with the parts of all ranks put together, by Megatron's own offsets."""
    found: dict[str, torch.Tensor] = {}
    for number in range(RANKS):
        parts: list[Any] = torch.load(f"{folder}.parts{number}")
        for key, shape, offset, data in parts:
            full = found.setdefault(key, torch.full(shape, torch.nan))
            data = data.reshape((1,) * (len(shape) - data.ndim) + tuple(data.shape))
            full[
                tuple(slice(o, o + n) for o, n in zip(offset, data.shape, strict=True))
            ] = data
    return found


def model_of(state: dict[str, torch.Tensor]) -> nn.Module:
    """A module with these parameters."""
    root = nn.Module()
    for name, tensor in state.items():
        *path, last = name.split(".")
        at = root
        for part in path:
            if part not in dict(at.named_children()):
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        at.register_parameter(last, nn.Parameter(tensor))
    return root


def torch_dist(case: Case) -> None:
    folder = case.path("run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
    }
    children = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            env={
                **os.environ,
                **shared,
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.DEVNULL,
        )
        for number in range(RANKS)
    ]
    assert [child.wait(300) for child in children] == [0, 0]
    live = whole(folder)
    assert not any(tensor.isnan().any() for tensor in live.values())
    case.watch("net", model_of(live))
    sections = {
        "model": ("model", "net", ""),
        "optimizer": "optimizer",
        "common.optimizer": "optimizer",
    }
    values = {"common.iteration": 10, "common.args.hidden_size": SIZES["hidden_size"]}
    for path in (folder, folder / "iter_0000010"):
        case.wrote(path, sections, values=values, live={"net": live}, optimizers=False)


CASES = (torch_dist,)

if __name__ == "__main__":
    rank(Path(sys.argv[1]))
