"""Folders as frameworks write them, each the smallest with the same files and the same
keys.

Recorded from transformers 5.23 (`Trainer`), accelerate 1.15 (`save_state`), PEFT 0.21,
diffusers 0.42, sentence-transformers 6.2 and SpeechBrain.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import safetensors.torch
import torch
from inside import inside
from needs import skip_without
from torch import nn

import ckpt

ARGUMENTS = "transformers.training_args"


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def stepped(net: nn.Module, steps: int = 1, inputs: int = 3) -> torch.optim.Optimizer:
    """The Adam that trained a model on noise for some steps."""
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(5, inputs)).square().mean().backward()
        optimizer.step()
    return optimizer


def weights(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def save(path: Path, state: Any) -> Path:
    """A file in the format of its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path, {"format": "pt"})
    elif path.suffix == ".json":
        path.write_text(json.dumps(state))
    else:
        torch.save(state, path)
    return path


def rng() -> dict[str, Any]:
    """`rng_state.pth` with the array of numpy, which weights_only refuses."""
    return {
        "python": (3, (1, 2, 3), None),
        "numpy": ("MT19937", np.arange(4, dtype=np.uint32), 4, 0, 0.0),
        "cpu": torch.arange(8, dtype=torch.uint8),
    }


def arguments(path: Path) -> Path:
    """`training_args.bin`: an object of a class that only transformers has."""
    module = ModuleType(ARGUMENTS)
    kind = type("TrainingArguments", (), {"__module__": ARGUMENTS})
    module.TrainingArguments = kind  # type: ignore[attr-defined]
    with mock.patch.dict(
        sys.modules, {"transformers": ModuleType("transformers"), ARGUMENTS: module}
    ):
        thing = kind()
        thing.learning_rate = 5e-05  # type: ignore[attr-defined]
        thing.output_dir = "run"  # type: ignore[attr-defined]
        torch.save(thing, path)
    return path


def trainer(folder: Path, *, step: int = 2, name: str = "model.safetensors") -> Path:
    """`checkpoint-STEP` of the Trainer of transformers."""
    skip_without("folders")
    net = model()
    optimizer = stepped(net, step)
    save(folder / name, weights(net))
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(
        {"base_lrs": [0.01], "last_epoch": step, "lr_lambdas": [{}]},
        folder / "scheduler.pt",
    )
    torch.save(rng(), folder / "rng_state.pth")
    history = [
        {"epoch": number / 2, "loss": 1 / (number + 1), "step": number}
        for number in range(step)
    ]
    state = {
        "best_metric": 0.25,
        "best_model_checkpoint": None,
        "epoch": step / 2,
        "global_step": step,
        "log_history": history,
        "stateful_callbacks": {
            "TrainerControl": {"args": {"should_log": False}, "attributes": {}}
        },
    }
    save(folder / "trainer_state.json", state)
    save(
        folder / "config.json",
        {"architectures": ["NetForTest"], "model_type": "net", "vocab_size": 50},
    )
    arguments(folder / "training_args.bin")
    return folder


def accelerate(
    folder: Path, *, models: int = 1, safe: bool = True, steps: int = 2
) -> Path:
    """A folder of `Accelerator.save_state` for one or two models, each with its
    optimizer.
    """
    skip_without("folders")
    nets = [model(), nn.Linear(3, 3)][:models]
    for number, net in enumerate(nets):
        mark = f"_{number}" if number else ""
        optimizer = stepped(net, steps)
        save(
            folder
            / (f"model{mark}.safetensors" if safe else f"pytorch_model{mark}.bin"),
            weights(net),
        )
        torch.save(optimizer.state_dict(), folder / f"optimizer{mark}.bin")
    torch.save({"step_size": 1, "last_epoch": steps}, folder / "scheduler.bin")
    torch.save({"scale": 65536.0, "growth_factor": 2.0}, folder / "scaler.pt")
    state = {
        "step": 0,
        "random_state": (3, (1, 2), None),
        "torch_manual_seed": torch.zeros(8, dtype=torch.uint8),
    }
    torch.save(state, folder / "random_states_0.pkl")
    torch.save({"n": 7}, folder / "custom_checkpoint_0.pkl")
    return folder


def full_state(
    folder: Path, *, models: int = 1, steps: int = 2, ranks: int = 2
) -> Path:
    """A folder of `save_state` under FSDP with FULL_STATE_DICT: state dicts of all
    ranks, and names for numbers.

    The names are those of `fsdp_utils.save_fsdp_model` and `save_fsdp_optimizer`
    (accelerate 1.15); the optimizer's file is what `FSDP.full_optim_state_dict` gives.
    """
    skip_without("folders")
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(models):
        net = model(number)
        mark = f"_{number}" if number else ""
        state = stepped(net, steps).state_dict()
        names = [name for name, _ in net.named_parameters()]
        groups = [
            {**row, "params": [names[index] for index in row["params"]]}
            for row in state["param_groups"]
        ]
        by_name = {names[index]: row for index, row in state["state"].items()}
        torch.save(weights(net), folder / f"pytorch_model_fsdp{mark}.bin")
        torch.save(
            {"state": by_name, "param_groups": groups}, folder / f"optimizer{mark}.bin"
        )
    torch.save({"step_size": 1, "last_epoch": steps}, folder / "scheduler.bin")
    for rank in range(ranks):
        torch.save(
            {"step": 0, "random_state": (3, (1, rank), None)},
            folder / f"random_states_{rank}.pkl",
        )
    return folder


def speechbrain(folder: Path, *, epoch: int = 1) -> Path:
    """A folder `CKPT+…` with two modules, and texts beside them."""
    skip_without("folders")
    folder.mkdir(parents=True, exist_ok=True)
    net = model()
    optimizer = stepped(net, epoch)
    torch.save(net[0].state_dict(), folder / "enc.ckpt")
    torch.save(net[2].state_dict(), folder / "model.ckpt")
    torch.save(optimizer.state_dict(), folder / "optimizer.ckpt")
    (folder / "counter.ckpt").write_text(str(epoch))
    (folder / "brain.ckpt").write_text(
        "avg_train_loss: 0.5\noptimizer_step: 2\nstep: 0\n"
    )
    text = (
        f"# yamllint disable\nend-of-epoch: true\nloss: {1 / epoch}\nunixtime: "
        "1795337925.05\n"
    )
    (folder / "CKPT.yaml").write_text(text)
    return folder


LORA: dict[str, Any] = {
    "base_model_name_or_path": "org/base",
    "lora_alpha": 16,
    "peft_type": "LORA",
    "r": 8,
    "rank_pattern": {},
    "alpha_pattern": {},
    "target_modules": ["0"],
}


def adapter(folder: Path, **changes: Any) -> Path:
    """A LoRA adapter of the first layer of `model`."""
    torch.manual_seed(3)
    state = {
        "base_model.model.0.lora_A.weight": torch.randn(8, 3),
        "base_model.model.0.lora_B.weight": torch.randn(4, 8),
    }
    save(folder / "adapter_model.safetensors", state)
    save(folder / "adapter_config.json", {**LORA, **changes})
    return folder


def adapted(net: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict of a model with that adapter, and with a copy of its last layer
    that is trained.
    """
    torch.manual_seed(3)
    state = {}
    for name, value in weights(net).items():
        layer, _, last = name.partition(".")
        inner = {
            "0": f"0.base_layer.{last}",
            "2": f"2.modules_to_save.default.{last}",
        }.get(layer, name)
        state[f"base_model.model.{inner}"] = value
    state["base_model.model.0.lora_A.default.weight"] = torch.randn(8, 3)
    state["base_model.model.0.lora_B.default.weight"] = torch.randn(4, 8)
    return state


def diffusers(folder: Path) -> Path:
    """A pipeline of two models, of which one is sharded, and of parts without
    weights.
    """
    skip_without("folders")
    parts = {
        "unet": ["diffusers", "UNet2DModel"],
        "text_encoder": ["transformers", "CLIPTextModel"],
    }
    index = {
        "_class_name": "TestPipeline",
        **parts,
        "scheduler": ["diffusers", "DDPM"],
        "tokenizer": [None, None],
    }
    save(folder / "model_index.json", index)
    save(folder / "scheduler" / "scheduler_config.json", {"beta_end": 0.02})
    save(folder / "text_encoder" / "model.safetensors", weights(model(1)))
    save(folder / "text_encoder" / "config.json", {"architectures": ["CLIPTextModel"]})
    stem, weight_map = "diffusion_pytorch_model", {}
    for number, (name, value) in enumerate(weights(nn.Linear(40, 50)).items(), 1):
        file = f"{stem}-{number:05}-of-00002.safetensors"
        save(folder / "unet" / file, {name: value})
        weight_map[name] = file
    save(folder / "unet" / f"{stem}.safetensors.index.json", {"weight_map": weight_map})
    return folder


def sentence_transformers(folder: Path, *, dense: bool = True) -> Path:
    """A transformer in the folder itself, pooling without weights, and a small dense
    layer.
    """
    skip_without("folders")
    kinds = ["Transformer", "Pooling", "Dense"][: 3 if dense else 2]
    paths = ["", "1_Pooling", "2_Dense"]
    rows = [
        {
            "idx": number,
            "name": str(number),
            "path": paths[number],
            "type": f"sentence_transformers.x.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    save(folder / "modules.json", rows)
    save(
        folder / "model.safetensors",
        {"encoder.weight": torch.ones(100, 90), "encoder.bias": torch.ones(9)},
    )
    save(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 9})
    if dense:
        save(
            folder / "2_Dense" / "model.safetensors",
            {"linear.weight": torch.ones(3, 2), "linear.bias": torch.ones(3)},
        )
    return folder


def in_cache(folder: Path, hub: Path) -> Path:
    """A checkpoint as the cache of Hugging Face holds it: every file is a link to a
    blob.
    """
    snapshot = hub / "models--org--net/snapshots/0a1b/step-10"
    blobs = hub / "models--org--net/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.move(path, blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../../blobs/{number}")
    return snapshot


Edit = Callable[[dict[str, Any]], Any]


def change(path: Path, edit: Edit, **options: Any) -> None:
    """Save the file again with what `edit` changed in it."""
    state = torch.load(path, weights_only=False)
    edit(state)
    torch.save(state, path, **options)


def findings(folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Code of a finding -> its message and its tensors."""
    return {
        row.code: (row.message, row.tensors) for row in ckpt.inspect(folder).findings
    }


def refused(folder: Path, says: str) -> None:
    """Assert that the folder `c` is neither shown nor converted, with one line that
    says why.
    """
    for command in (("inspect", "c"), ("convert", "c", "-o", "o.pth")):
        done = inside(*command, cwd=folder.parent)
        assert done.code == 2 and done.err.count(b"\n") == 1, done
        assert says in done.err.decode() and "Traceback" not in done.err.decode(), done
    assert not (folder.parent / "o.pth").exists()
