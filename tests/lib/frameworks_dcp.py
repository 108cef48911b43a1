"""Folders around distributed checkpoints as frameworks write them, each the smallest
with the same files and keys.

Recorded from megatron-core 0.16.1, Lightning 2.6.6, accelerate 1.15, torchtitan 0.3 and
torchtune 0.6.1; `tests/frameworks/write_megatron_core.py` compares ckpt with what
Megatron itself writes.
"""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from folders import model, rng, stepped, weights
from folders import save as folders_save
from needs import skip_without
from torch.distributed.checkpoint import DefaultSavePlanner

__all__ = [
    "accelerate",
    "classic",
    "folders_save",
    "in_two_files",
    "lightning",
    "megatron",
    "megatron_keys",
    "save",
    "torchtitan",
]

Tensors = dict[str, torch.Tensor]
ARGS = {
    "num_layers": 2,
    "hidden_size": 4,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "world_size": 2,
}


def save(folder: Path, state: dict[str, Any], flatten: bool = True) -> Path:
    """A distributed checkpoint of this process alone."""
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(
            state,
            storage_writer=dcp.FileSystemWriter(folder),
            planner=DefaultSavePlanner(flatten_state_dict=flatten),
            no_dist=True,
        )
    return folder


def named_optimizer(net: torch.nn.Module, steps: int = 1) -> dict[str, Any]:
    """The state of an Adam by names, as `get_optimizer_state_dict` gives it."""
    state = stepped(net, steps).state_dict()
    names = [name for name, _ in net.named_parameters()]
    groups = [
        {**group, "params": [names[i] for i in group["params"]]}
        for group in state["param_groups"]
    ]
    return {
        "state": {names[i]: row for i, row in state["state"].items()},
        "param_groups": groups,
    }


def megatron_keys() -> Tensors:
    """Layers in one tensor with an axis of their own."""
    torch.manual_seed(0)
    return {
        "embedding.word_embeddings.weight": torch.randn(8, 4),
        "decoder.layers.mlp.linear_fc1.weight": torch.randn(2, 16, 4),
        "decoder.layers.mlp.linear_fc1.bias": torch.randn(2, 16),
        "decoder.final_layernorm.weight": torch.randn(4),
    }


def megatron(
    root: Path, iteration: int = 10, chained: bool = False, common: bool = True
) -> Path:
    """torch_dist: `.metadata` without paths, keys of the optimizer beside those of the
    model, objects of ranks.
    """
    skip_without("folders")
    folder = root / f"iter_{iteration:07d}"
    model = megatron_keys()
    state: dict[str, Any] = dict(model)
    for number in range(2 if chained else 1):
        prefix = f"chained_{number}." if chained else ""
        for name, tensor in model.items():
            for kind in ("exp_avg", "exp_avg_sq", "fp32_param"):
                state[f"{prefix}optimizer.state.{kind}.{name}"] = tensor.square()
    for rank in range(2):
        state[f"decoder.layers.mlp.linear_fc1._extra_state/shard_{rank}_2"] = [None]
        state[f"rng_state/shard_0.{rank}_1.2"] = [
            {"random_rng_state": 1, "torch": torch.zeros(3)}
        ]
    save(folder, state, flatten=False)
    if common:
        torch.save(
            {
                "args": Namespace(**ARGS, iteration=iteration),
                "checkpoint_version": 3.0,
                "iteration": iteration,
                "optimizer": {
                    "optimizer": {"param_groups": [{"lr": 1e-3, "params": []}]}
                },
            },
            folder / "common.pt",
        )
    (folder / "metadata.json").write_text(
        json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1})
    )
    (root / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    return folder


def classic(
    root: Path, tensor: int = 2, pipeline: int = 1, iteration: int = 10
) -> Path:
    """`iter_0000010/mp_rank_TT[_PPP]/model_optim_rng.pt`, of each rank with its own
    part.
    """
    skip_without("folders")
    folder = root / f"iter_{iteration:07d}"
    sizes = {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
    }
    for t in range(tensor):
        for p in range(pipeline):
            name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pipeline > 1 else "")
            (folder / name).mkdir(parents=True)
            layers = {
                "language_model.encoder.layers.0.mlp.weight": torch.full(
                    (8 // tensor, 4), t + 10.0 * p
                ),
                "language_model.encoder.layers.0.mlp.bias": torch.full(
                    (8 // tensor,), float(t)
                ),
            }
            state = {
                "args": Namespace(**ARGS | sizes | {"world_size": tensor * pipeline}),
                "checkpoint_version": 3.0,
                "iteration": iteration,
                "model": layers,
                "rng_state": [{"random_rng_state": 1}],
            }
            torch.save(state, folder / name / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(f"{iteration}\n")
    return folder


def lightning(folder: Path) -> tuple[Path, Tensors]:
    """FSDPStrategy of Lightning: the model and the optimizers in the DCP, all else in
    `meta.pt`.
    """
    skip_without("folders")
    net = model()
    state = {"model": weights(net), "optimizer_0": named_optimizer(net)}
    save(folder, state)
    torch.save(
        {
            "epoch": 3,
            "global_step": 40,
            "pytorch-lightning_version": "2.6.6",
            "loops": {"fit_loop": {"state_dict": {}}},
            "lr_schedulers": [],
            "hparams_name": "kwargs",
            "hyper_parameters": {"lr": 0.01, "width": 3},
        },
        folder / "meta.pt",
    )
    return folder, state["model"]


def accelerate(folder: Path, models: int = 1) -> tuple[Path, list[Tensors]]:
    """`Accelerator.save_state` of FSDP: a DCP for each model and each optimizer, small
    files beside them.
    """
    skip_without("folders")
    every = []
    for number in range(models):
        net = model(number)
        optimizer = named_optimizer(net)
        every.append(weights(net))
        save(folder / f"pytorch_model_fsdp_{number}", {"model": every[-1]})
        save(folder / f"optimizer_{number}", {"optimizer": optimizer})
    torch.save({"last_epoch": 2, "_step_count": 3}, folder / "scheduler.bin")
    torch.save({"seed": 7, "epoch": 1}, folder / "sampler.bin")
    for rank in range(2):
        torch.save({"step": 1, **rng()}, folder / f"random_states_{rank}.pkl")
    return folder, every


def torchtitan(folder: Path, steps: tuple[int, ...] = (10, 20)) -> Path:
    """`checkpoint/step-N`: the names of the model at the root."""
    skip_without("folders")
    for step in steps:
        save(
            folder / f"step-{step}",
            {**weights(model(step)), "train_state": {"step": step}},
        )
    return folder


def in_two_files(
    folder: Path,
    step: int,
    root: int | None = -1,
    lag: Callable[[str], int] = lambda name: 0,
) -> Path:
    """A save in two files, with the counters of twelve layers in both. `lag` says how
    far a parameter is behind.
    """
    net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(12)])
    state: dict[str, Any] = {"state": {}, "param_groups": [{"lr": 0.1, "params": []}]}
    for name, tensor in net.named_parameters():
        state["param_groups"][0]["params"].append(name)
        moments = {
            "exp_avg": torch.ones_like(tensor) * step,
            "exp_avg_sq": torch.ones_like(tensor),
        }
        state["state"][name] = {
            "step": torch.tensor(float(step - lag(name))),
            **moments,
        }
    whole: dict[str, Any] = {"model": dict(net.state_dict()), "optim": state}
    if root is not None:
        whole["step"] = step if root < 0 else root
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(
            whole,
            storage_writer=dcp.FileSystemWriter(folder, thread_count=2),
            no_dist=True,
        )
    return folder
