"""Makes the sample checkpoints of this folder: small files, each named for the one
thing it shows.

    python sample_checkpoints/make_samples.py [FOLDER]

Writes into its own folder unless another is given. It needs torch (the `dev` extra pins
the version), no GPU and no network, and writes the same bytes every time it is run on
one machine with one torch. README.md beside it has a row for each file.

Three tricks are worth knowing:

* A file "saved on cuda:0" is made without a GPU: torch asks one function,
  `torch.serialization.location_tag`, where a storage lives, and writes down the answer.
  `save` replaces that function for as long as it saves.
* A class "that is not importable" is defined here, and passes for another module's
  while it is pickled.
* `hostile.pth` and the Python 2 file are written, never loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import datetime
import enum
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import traceback
import types
import uuid
import warnings
import zipfile
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ckpt
from ckpt.ext.live import snapshot as snapshots

SAMPLES: list[Callable[[Path], None]] = []


def sample(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Adds a function to the list of those that `main` calls, each with the seed set
    anew.
    """
    SAMPLES.append(make)
    return make


# How files are saved


class NumberedStorage(str):
    """Stands for `str` in torch's legacy writer, which names a storage by its address:
    here by its turn.
    """

    addresses: dict[object, str] = {}  # noqa: RUF012  # mock.patch.dict empties it between two files

    def __new__(cls, value: object = "") -> Any:
        if not isinstance(value, int):
            return str(value)
        return cls.addresses.setdefault(
            value, str(94_218_604_831_040 + 64 * len(cls.addresses))
        )


def save(
    value: object,
    path: Path,
    *,
    gpu: int | None = None,
    except_on: Mapping[int | None, Iterable[Tensor]] | None = None,
    legacy: bool = False,
) -> None:
    """Saves `value` as if its tensors were on `cuda:{gpu}`; None is the CPU, where they
    are.

    `except_on` gives another GPU (or None) for some of them. `legacy` writes the format
    that was the default before torch 1.6.
    """
    true_tag: Callable[[Any], str] = torch.serialization.location_tag
    exceptions = {
        tensor.data_ptr(): index
        for index, tensors in (except_on or {}).items()
        for tensor in tensors
    }

    def tag(storage: Any) -> str:
        index = exceptions.get(storage.data_ptr(), gpu)
        if index is None:
            return true_tag(storage)
        # a new string each time, as torch makes it: pickle then spells out every one
        return f"cuda:{index}"

    with (
        mock.patch.object(torch.serialization, "location_tag", tag),
        mock.patch.object(
            torch.serialization, "str", NumberedStorage if legacy else str, create=True
        ),
        mock.patch.dict(NumberedStorage.addresses, clear=True),
    ):
        if (
            legacy or path.suffix == ".ckpt"
        ):  # torch refuses a path of this suffix ("invalid file name")
            with path.open("wb") as file:
                torch.save(value, file, _use_new_zipfile_serialization=not legacy)
        else:
            torch.save(value, path)


@contextlib.contextmanager
def defined_in(module: str, *classes: type) -> Iterator[None]:
    """Lets `classes` pass for members of `module`, which nobody can import
    afterwards.
    """
    homes = [(cls, cls.__module__) for cls in classes]
    package = module.partition(".")[0]  # pickle imports it too
    names = [name for name in (package, module) if name not in sys.modules]
    sys.modules.update({name: types.ModuleType(name) for name in names})
    try:
        for cls in classes:
            cls.__module__ = module
            setattr(sys.modules[module], cls.__name__, cls)
        yield
    finally:
        for name in names:
            del sys.modules[name]
        for cls, home in homes:
            cls.__module__ = home


@contextlib.contextmanager
def group_of_one() -> Iterator[None]:
    """A process group of this process alone: DistributedDataParallel wraps nothing
    without one.
    """
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def tree(**children: nn.Module) -> nn.Module:
    """A module that only holds others by name: enough for a state dict."""
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *shape: int) -> None:
    """One training step on noise of the given shape."""
    optimizer.zero_grad()
    model(torch.randn(*shape)).square().mean().backward()
    optimizer.step()


# Training checkpoints


class ConvNet(nn.Module):
    """A convnet with a layer, `fc3`, that `forward` forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)
        self.fc3 = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(image)))
        hidden = torch.relu(self.bn2(self.conv2(hidden)))
        hidden = nn.functional.adaptive_avg_pool2d(hidden, 2).flatten(1)
        out: Tensor = self.fc2(torch.relu(self.fc1(hidden)))
        return out


@sample
def ddp_run_with_an_unused_layer(folder: Path) -> None:
    with group_of_one():
        model = DistributedDataParallel(ConvNet(), find_unused_parameters=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch, (name, best_acc) in enumerate(
            [("ddp_before.pth", 0.4125), ("ddp_after.pth", 0.4380)]
        ):
            step(model, optimizer, 8, 3, 8, 8)
            training = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
                "best_acc": best_acc,
            }
            save(training, folder / name)


@sample
def snapshots_around_a_step(folder: Path) -> None:
    with group_of_one():
        net = ConvNet()
        net.fc1.bias.requires_grad_(False)
        model = DistributedDataParallel(net)
        optimizer = torch.optim.Adam(
            parameter for parameter in net.parameters() if parameter.requires_grad
        )
        ckpt.snapshot(model, folder / "snapshot_before.pth")
        step(model, optimizer, 8, 3, 8, 8)
        ckpt.snapshot(model, folder / "snapshot_after.pth", optimizer)


class Branch(nn.Module):
    """A net with a gate that may leave a layer out, and layers in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate, self.head = (
            nn.Linear(8, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 4),
        )
        self.experts = [nn.Linear(8, 8) for _ in range(2)]
        self.steps = [self.stem, self.head]

    def forward(self, hidden: Tensor, open_gate: bool) -> Tensor:
        hidden = torch.relu(self.stem(hidden))
        for expert in self.experts:
            hidden = hidden + expert(hidden)
        out: Tensor = self.head(hidden + self.gate(hidden) if open_gate else hidden)
        return out


@sample
def snapshots_of_two_ranks(folder: Path) -> None:
    first = Branch()
    for rank in range(2):
        model = copy.deepcopy(first)
        model(torch.randn(4, 8), rank == 0).square().mean().backward()
        with mock.patch.object(
            snapshots, "_rank_and_world", lambda torch, rank=rank: (rank, 2)
        ):
            ckpt.snapshot(model, folder / "branch.pth", ranks="all")


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(hidden)))))
        return torch.relu(hidden + inner)


class ResNet(nn.Module):
    """A residual network with an auxiliary head that never enters the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layers = nn.Sequential(Block(8), Block(8), Block(8))
        self.fc = nn.Linear(8, 10)
        self.aux_head = nn.Linear(8, 10)

    def forward(self, image: Tensor) -> Tensor:
        hidden: Tensor = self.layers(torch.relu(self.bn1(self.conv1(image))))
        out: Tensor = self.fc(hidden.mean((2, 3)))
        return out


@sample
def training_run_on_two_gpus(folder: Path) -> None:
    with group_of_one():
        model = DistributedDataParallel(ResNet(), find_unused_parameters=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
        for _ in range(12):
            step(model, optimizer, 4, 3, 8, 8)
            scheduler.step()
        state = optimizer.state_dict()
        training = {
            "model": model.state_dict(),
            "optimizer": state,
            "scaler": torch.amp.GradScaler("cpu").state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": 12,
            "best_acc": 0.7615,
            "args": argparse.Namespace(
                arch="resnet_tiny",
                data="data/imagenette",
                epochs=90,
                batch_size=256,
                lr=1e-3,
                weight_decay=1e-4,
                workers=8,
                amp=True,
                device=torch.device("cuda", 0),
                world_size=2,
                seed=0,
                work_dir="runs/demo",
            ),
        }
        counters = [entry["step"] for entry in state["state"].values()]
        save(training, folder / "train_cuda.pth", gpu=0, except_on={1: counters})


@sample
def lightning_checkpoint(folder: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    module = tree(model=net)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    for _ in range(5):
        step(net, optimizer, 16, 8)
        scheduler.step()
    state = optimizer.state_dict()
    counters = [
        entry["step"] for entry in state["state"].values()
    ]  # Adam keeps these on the CPU
    done = {"ready": 500, "completed": 500, "started": 500, "processed": 500}
    monitor = (
        "ModelCheckpoint{'monitor': 'val_acc', 'mode': 'max', 'every_n_epochs': 1}"
    )
    checkpoint = {
        "epoch": 4,
        "global_step": 500,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": module.state_dict(),
        "loops": {
            "fit_loop": {
                "state_dict": {},
                "epoch_loop.state_dict": {"_batches_that_stepped": 500},
                "epoch_loop.batch_progress": {
                    "total": done,
                    "current": dict(done),
                    "is_last_batch": True,
                },
                "epoch_progress": {
                    "total": {"ready": 5, "completed": 4, "started": 5, "processed": 5}
                },
            },
            "validate_loop": {"state_dict": {}},
        },
        "callbacks": {
            monitor: {
                "monitor": "val_acc",
                "best_model_score": torch.tensor(0.8125),
                "best_model_path": "checkpoints/epoch=4-step=500.ckpt",
                "best_k_models": {
                    "checkpoints/epoch=4-step=500.ckpt": torch.tensor(0.8125)
                },
                "last_model_path": "",
            }
        },
        "optimizer_states": [state],
        "lr_schedulers": [scheduler.state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": {
            "lr": 3e-4,
            "hidden": 32,
            "dropout": 0.0,
            "classes": ["cat", "cow", "dog", "hen"],
        },
    }
    save(checkpoint, folder / "lightning.ckpt", gpu=0, except_on={None: counters})


# Bare weights


@sample
def language_model_in_half_precision(folder: Path) -> None:
    width, inner, vocabulary = 16, 44, 64

    def linear(inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False)

    def layer() -> nn.Module:
        return tree(
            self_attn=tree(**{f"{name}_proj": linear(width, width) for name in "qkvo"}),
            mlp=tree(
                gate_proj=linear(width, inner),
                up_proj=linear(width, inner),
                down_proj=linear(inner, width),
            ),
            input_layernorm=nn.RMSNorm(width),
            post_attention_layernorm=nn.RMSNorm(width),
        )

    model = tree(
        model=tree(
            embed_tokens=nn.Embedding(vocabulary, width),
            layers=nn.ModuleList(layer() for _ in range(6)),
            norm=nn.RMSNorm(width),
        ),
        lm_head=linear(width, vocabulary),
    )
    save(model.to(torch.bfloat16).state_dict(), folder / "llama_bf16.pth", gpu=0)


_LLAMA = (
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("model.layers.", "blk."),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("lm_head", "output"),
)
"""What transformers and llama.cpp call the same tensors. The longer names come first
where one holds another.
"""


@sample
def quantized(folder: Path) -> None:
    width, inner, vocabulary, heads = 32, 64, 40, 2

    def linear(size: int, out: int) -> nn.Linear:
        return nn.Linear(size, out, bias=False)

    def layer() -> nn.Module:
        return tree(
            self_attn=tree(**{f"{name}_proj": linear(width, width) for name in "qkvo"}),
            mlp=tree(
                gate_proj=linear(width, inner),
                up_proj=linear(width, inner),
                down_proj=linear(inner, width),
            ),
            input_layernorm=nn.RMSNorm(width),
            post_attention_layernorm=nn.RMSNorm(width),
        )

    model = tree(
        model=tree(
            embed_tokens=nn.Embedding(vocabulary, width),
            layers=nn.ModuleList(layer() for _ in range(2)),
            norm=nn.RMSNorm(width),
        ),
        lm_head=linear(width, vocabulary),
    )
    state = {name: row.to(torch.bfloat16) for name, row in model.state_dict().items()}
    data = safetensors.torch.save(state, metadata={"format": "pt"})
    (folder / "llama_base.safetensors").write_bytes(data)
    rows = []
    for name, row in state.items():
        if (
            "q_proj" in name or "k_proj" in name
        ):  # llama.cpp turns pairs of neighbours, not of halves
            row = (
                row.view(heads, 2, width // heads // 2, width)
                .transpose(1, 2)
                .reshape(width, width)
            )
        for theirs, ours in sorted(_LLAMA, key=lambda pair: -len(pair[0])):
            name = name.replace(theirs, ours)
        rows.append((name, row.float()))
    (folder / "llama_q8_0.gguf").write_bytes(gguf_of(rows))


def gguf_of(rows: Iterable[tuple[str, Tensor]]) -> bytes:
    """A GGUF file with matrices as Q8_0 and the rest as float32, as llama-quantize
    writes it.
    """

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    values = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.license": "mit",
        "tokenizer.chat_template": "{{ messages }}",
    }
    numbers = {
        "llama.block_count": 2,
        "llama.embedding_length": 32,
        "llama.attention.head_count": 2,
    }
    pairs = [
        text(key) + struct.pack("<I", 8) + text(value) for key, value in values.items()
    ]
    pairs += [
        text(key) + struct.pack("<II", 4, value) for key, value in numbers.items()
    ]
    tokens = b"".join(text(f"word {number}") for number in range(40))
    pairs.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 40) + tokens)
    infos, body = b"", b""
    for name, row in rows:
        sizes = struct.pack(f"<I{row.dim()}Q", row.dim(), *reversed(row.shape))
        infos += (
            text(name)
            + sizes
            + struct.pack("<IQ", 8 if row.dim() == 2 else 0, len(body))
        )
        body += q8_0(row) if row.dim() == 2 else row.numpy().tobytes()
        body += bytes(-len(body) % 32)
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, infos.count(b".weight"), len(pairs))
        + b"".join(pairs)
        + infos
    )
    return head + bytes(-len(head) % 32) + body


def q8_0(row: Tensor) -> bytes:
    """The blocks of a matrix: the scale, and 32 whole numbers."""
    blocks = row.reshape(-1, 32)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    codes = torch.where(scales > 0, blocks / scales, 0).round().to(torch.int8)
    return b"".join(
        struct.pack("<e", scale.item()) + code.numpy().tobytes()
        for scale, code in zip(scales, codes, strict=True)
    )


@sample
def adapter_of_the_language_model(folder: Path) -> None:
    width, inner, rank = 16, 44, 4
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.v_proj": (width, width),
        "mlp.down_proj": (width, inner),
    }
    tensors: dict[str, Tensor] = {}
    for layer in range(6):
        for name, (outputs, inputs) in shapes.items():
            begin = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{begin}.lora_A.weight"] = torch.randn(rank, inputs) / 4
            tensors[f"{begin}.lora_B.weight"] = torch.randn(outputs, rank) / 16
    config = {
        "base_model_name_or_path": "llama_bf16.pth",
        "lora_alpha": 8,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": ["down_proj", "q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
    }
    (folder / "lora").mkdir(exist_ok=True)
    save_safetensors(tensors, folder / "lora" / "adapter_model.safetensors")
    (folder / "lora" / "adapter_config.json").write_text(
        f"{json.dumps(config, indent=2)}\n", encoding="utf-8"
    )


def small_net() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 8, 3),
            bn=nn.BatchNorm2d(8),
            relu=nn.ReLU(),
            flat=nn.Flatten(),
            fc=nn.Linear(288, 10),
        )
    )


@sample
def format_before_torch_1_6(folder: Path) -> None:
    save(small_net().state_dict(), folder / "legacy.pth", gpu=0, legacy=True)


@sample
def compiled_and_wrapped(folder: Path) -> None:
    with group_of_one():
        model = DistributedDataParallel(small_net())
        compiled: nn.Module = torch.compile(model)  # type: ignore[assignment]
        save(compiled.state_dict(), folder / "compiled.pth")


@sample
def storages_shared_in_every_way(folder: Path) -> None:
    emb, head = nn.Embedding(64, 16), nn.Linear(16, 64, bias=False)
    head.weight = emb.weight
    state: dict[str, Tensor] = tree(emb=emb, head=head).state_dict()
    state["queue"] = torch.randn(256, 64)[:4]  # 1 KiB that keeps 64 KiB alive
    flat = torch.randn(
        224
    )  # one storage cut into weights, as cuDNN keeps the weights of an LSTM
    state["lstm.weight_ih_l0"] = flat[:128].view(16, 8)
    state["lstm.weight_hh_l0"] = flat[128:192].view(16, 4)
    state["lstm.bias_ih_l0"] = flat[192:208]
    state["lstm.bias_hh_l0"] = flat[208:]
    signal = torch.randn(96)
    state["window.left"] = signal[:64]
    state["window.right"] = signal[32:]
    save(state, folder / "tied_and_bloated.pth")


def save_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Not by `save_file`, which makes files that only their owner can read."""
    path.write_bytes(safetensors.torch.save(tensors, metadata={"format": "pt"}))


@sample
def safetensors_file(folder: Path) -> None:
    save_safetensors(small_net().state_dict(), folder / "weights.safetensors")


@sample
def safetensors_in_two_shards(folder: Path) -> None:
    shards = folder / "sharded"
    shards.mkdir(exist_ok=True)
    model = tree(
        encoder=tree(
            layer=nn.ModuleList(nn.Linear(24, 24) for _ in range(4)),
            norm=nn.LayerNorm(24),
        ),
        classifier=nn.Linear(24, 5),
    )
    state = model.state_dict()
    names = list(state)
    weight_map = {}
    for number, part in enumerate([names[:6], names[6:]], start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_safetensors({name: state[name] for name in part}, shards / file)
        weight_map.update(dict.fromkeys(part, file))
    total = sum(tensor.nbytes for tensor in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    config = {
        "architectures": ["TinyEncoder"],
        "hidden_size": 24,
        "num_labels": 5,
        "num_layers": 4,
    }
    (shards / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=2) + "\n"
    )
    (shards / "config.json").write_text(json.dumps(config, indent=2) + "\n")


# Whole modules and other objects


class Segmenter(nn.Module):
    """A network that keeps some of its layers where torch does not look: in a plain
    list.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.head = nn.Conv2d(8, 2, 1)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]))
        self.register_buffer("grid", torch.arange(8.0), persistent=False)
        self.cells = [nn.Linear(8, 8), nn.Linear(8, 8)]


@sample
def whole_model_with_a_list_of_layers(folder: Path) -> None:
    with defined_in("my_project.nets", Segmenter):
        save(Segmenter(), folder / "whole_model.pth")


class Conv(nn.Module):
    """YOLO's convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)


class Detect(nn.Module):
    """YOLO's head: its anchors are a buffer, its strides a bare tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.nc = 2
        self.stride = torch.tensor([8.0, 16.0])
        self.register_buffer(
            "anchors",
            torch.tensor([[[1.25, 1.625], [2.0, 3.75]], [[1.875, 3.8], [3.875, 2.8]]]),
        )
        self.m = nn.ModuleList(nn.Conv2d(channels, 14, 1) for channels in (16, 32))


class DetectionModel(nn.Module):
    """YOLO's model."""

    def __init__(self) -> None:
        super().__init__()
        self.yaml = {"nc": 2, "depth_multiple": 0.33, "width_multiple": 0.25}
        self.model = nn.Sequential(Conv(3, 8), Conv(8, 16), Conv(16, 32), Detect())
        self.save = [1, 2]
        self.names = {0: "cat", 1: "dog"}
        self.stride = torch.tensor([8.0, 16.0])


@sample
def yolo_release(folder: Path) -> None:
    with (
        defined_in("models.common", Conv),
        defined_in("models.yolo", Detect, DetectionModel),
    ):
        release = {
            "epoch": -1,
            "best_fitness": None,
            "model": DetectionModel().half().eval(),
            "ema": None,
            "updates": None,
            "optimizer": None,
            "opt": {
                "weights": "yolov5n.pt",
                "epochs": 300,
                "batch_size": 16,
                "imgsz": 640,
                "device": "0",
            },
            "date": "2024-02-19T10:21:07.412345",
        }
        save(release, folder / "yolo_style.pt", gpu=0)


class Precision(enum.Enum):
    """A member of a project's configuration."""

    FULL = "fp32"
    HALF = "fp16"


@dataclasses.dataclass
class TrainConfig:
    """A project's configuration."""

    lr: float
    betas: tuple[float, float]
    precision: Precision
    resume: str | None = None


class AnyNode:
    """OmegaConf's leaf: a value and its parent."""

    def __init__(self, value: object, parent: DictConfig) -> None:
        self._metadata = None
        self._parent = parent
        self._val = value


class DictConfig:
    """OmegaConf's mapping: the values are two attributes deep, and every node knows its
    parent (a cycle).
    """

    def __init__(
        self, content: Mapping[str, Any], parent: DictConfig | None = None
    ) -> None:
        self._metadata = None
        self._parent = parent
        self._content = {
            key: DictConfig(value, self)
            if isinstance(value, dict)
            else AnyNode(value, self)
            for key, value in content.items()
        }


@sample
def objects_of_every_kind(folder: Path) -> None:
    moment = datetime.datetime(2024, 2, 19, 10, 21, 7, 412345)
    config = DictConfig(
        {
            "model": {"name": "convnext_tiny", "drop_path": 0.1},
            "optim": {"lr": 4e-3, "warmup": 5},
        }
    )
    values = {
        "weight": torch.randn(4, 4),
        "numpy": {
            "array": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3),
            "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
            "words": np.array(["cat", "dog"]),
            "mixed": np.array([None, 1, "x"], dtype=object),
            "float": np.float64(0.7615),
            "integer": np.int64(12),
            "flag": np.bool_(True),
            "dtype": np.dtype("float16"),
        },
        "path": pathlib.PurePosixPath("runs/demo/last.pth"),
        "precision": Precision.HALF,
        "train": TrainConfig(lr=1e-3, betas=(0.9, 0.999), precision=Precision.HALF),
        "config": config,
        "datetime": moment,
        "date": moment.date(),
        "duration": datetime.timedelta(hours=3, seconds=7),
        "set": {
            2,
            3,
            5,
        },  # of integers: the order of a set of strings changes from run to run
        "frozenset": frozenset({7}),
        "tuple": (1, 2.5, None, True),
        "complex": 1.5 - 2j,
        "bytes": b"\x00\xffckpt",
        "bytearray": bytearray(b"ckpt"),
        "slice": slice(0, 10, 2),
        "large": 10**30,
        "infinite": float("inf"),
        "not_a_number": float("nan"),
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
    }
    with (
        defined_in("my_project.config", Precision, TrainConfig),
        defined_in("omegaconf.nodes", AnyNode),
        defined_in("omegaconf.dictconfig", DictConfig),
    ):
        save(values, folder / "objects.pth")


@sample
def tensors_of_every_dtype_and_layout(folder: Path) -> None:
    converted = (
        "float64 float32 float16 bfloat16 complex128 complex64 complex32 int64 int32 "
        "int16 int8 "
        "uint8 uint16 uint32 uint64 bool "
        "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
    )
    raw = (
        "float4_e2m1fn_x2 bits8 bits16 bits1x8 "
        "bits2x4 bits4x2"
    )  # nothing converts to these
    tensors: dict[str, Tensor] = {}
    for name in converted.split():
        tensors[name] = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    for name in raw.split():
        dtype: torch.dtype = getattr(torch, name)
        tensors[name] = torch.arange(6 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    grid = torch.linspace(-1, 1, 24).reshape(3, 8)
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])
    for dtype in (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2):
        tensors[f"{dtype}".removeprefix("torch.")] = torch.quantize_per_tensor(
            grid, 0.1, 2, dtype
        )
    tensors["qint8_per_channel"] = torch.quantize_per_channel(
        grid, scales, zeros, 0, torch.qint8
    )
    tensors["quint2x4_per_channel"] = torch.quantize_per_channel(
        grid, scales, zeros.float(), 0, torch.quint2x4
    )
    tensors["sparse_coo"] = torch.eye(4).to_sparse()
    tensors["sparse_csr"] = torch.eye(4).to_sparse_csr()
    tensors["sparse_bsc"] = torch.eye(4).to_sparse_bsc((2, 2))
    tensors["nested"] = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.zeros(4, 3)]
    )
    tensors["parameter"] = nn.Parameter(torch.ones(2, 3))
    tensors["frozen_parameter"] = nn.Parameter(torch.ones(2, 3), requires_grad=False)
    tensors["buffer"] = nn.Buffer(torch.ones(3))
    tensors["requires_grad"] = torch.ones(3, requires_grad=True)
    tensors["meta"] = torch.empty(2, 3, device="meta")
    tensors["conj"] = torch.tensor([1 + 2j, 3 - 4j]).conj()
    tensors["neg"] = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    tensors["transposed"] = torch.arange(6.0).reshape(2, 3).t()
    tensors["channels_last"] = (
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    )
    tensors["expanded"] = torch.arange(3.0).expand(4, 3)
    tensors["scalar"] = torch.tensor(3.5)
    tensors["empty"] = torch.empty(0, 5)
    save(tensors, folder / "dtypes.pth")


# TorchScript


class Traced(nn.Module):
    """A network with a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.fc(torch.relu(self.bn(self.conv(image))).mean((2, 3)))
        return out


@sample
def torchscript_module(folder: Path) -> None:
    """Saved twice: the first archive names this machine's sources (`.debug_pkl`), the
    second does not.
    """
    trace: Any = torch.jit.trace
    load: Any = torch.jit.load
    with defined_in("my_project.nets", Traced):
        traced = trace(Traced().eval(), torch.zeros(1, 3, 8, 8), _store_inputs=False)
    first, bare = io.BytesIO(), io.BytesIO()
    torch.jit.save(traced, first)
    with zipfile.ZipFile(first) as records, zipfile.ZipFile(bare, "w") as kept:
        for record in records.infolist():
            if not record.filename.endswith(".debug_pkl"):
                kept.writestr(record, records.read(record))
    bare.seek(0)
    torch.jit.save(load(bare), folder / "scripted.pt")


# Python 2


class Python2Writer:
    """Writes a checkpoint as torch 1.0 on Python 2 did: other opcodes than any Python 3
    would choose.

    Text is byte strings (SHORT_BINSTRING), the memo counts from 1, sizes are LONG1, and
    an OrderedDict carries its items as the argument of its call. Modelled on
    `weights/v0.0/squeeze.pth` of lpips 0.1.4.
    """

    def __init__(self) -> None:
        self.out = bytearray()
        self.storages: dict[bytes, Tensor] = {}
        self._restart()

    def _restart(self) -> None:
        self.memo: dict[bytes, int] = {}
        self.puts = 0

    def file(self, value: object) -> bytes:
        """The whole file: magic number, protocol version, system, the value, the keys,
        the data.
        """
        system = {
            b"protocol_version": 1001,
            b"type_sizes": {b"int": 4, b"short": 2, b"long": 4},
            b"little_endian": True,
        }
        self.out += b"\x80\x02\x8a\x0a" + bytes.fromhex("6cfc9c46f9206aa85019") + b"."
        self._pickle(1001)
        self._pickle(system)
        self._pickle(value)
        self._pickle(sorted(self.storages))
        for key in sorted(self.storages):
            self.out += (
                struct.pack("<Q", self.storages[key].numel())
                + self.storages[key].numpy().tobytes()
            )
        return bytes(self.out)

    def _pickle(self, value: object) -> None:
        self._restart()
        self.out += b"\x80\x02"
        self._value(value)
        self.out += b"."

    def _put(self) -> None:
        self.puts += 1
        self.out += (
            b"q" + bytes([self.puts])
            if self.puts < 256
            else b"r" + struct.pack("<I", self.puts)
        )

    def _shared(self, code: bytes) -> None:
        """An object that Python 2 held only once: written the first time, then fetched
        from the memo.
        """
        if (slot := self.memo.get(code)) is not None:
            self.out += b"h" + bytes([slot])
            return
        self.out += code
        self._put()
        self.memo[code] = self.puts

    def _value(self, value: object) -> None:
        match value:
            case bool():
                self.out += b"\x88" if value else b"\x89"
            case int():
                self.out += (
                    b"K" + bytes([value])
                    if value < 256
                    else b"M" + struct.pack("<H", value)
                )
            case float():
                self.out += b"G" + struct.pack(">d", value)
            case bytes():
                self.out += b"U" + bytes([len(value)]) + value
                self._put()
            case list():
                self.out += b"]"
                self._put()
                self._batch(value, one=b"a", many=b"e")
            case OrderedDict():
                self._ordered(value)
            case dict():
                self.out += b"}"
                self._put()
                self._batch(
                    [part for pair in value.items() for part in pair],
                    one=b"s",
                    many=b"u",
                )
            case Tensor():
                self._tensor(value)
            case _:
                raise TypeError(f"no Python 2 opcodes here for {type(value)}")

    def _batch(self, values: list[Any], *, one: bytes, many: bytes) -> None:
        """The items of a list (APPEND, APPENDS) or the keys and items of a dict
        (SETITEM, SETITEMS).
        """
        single = len(values) == (1 if one == b"a" else 2)
        if values:
            self.out += b"" if single else b"("
            for value in values:
                self._value(value)
            self.out += one if single else many

    def _ordered(self, value: OrderedDict[bytes, object]) -> None:
        self._shared(b"ccollections\nOrderedDict\n")
        self._value([list(pair) for pair in value.items()])
        self.out += b"\x85R"
        self._put()
        if hasattr(value, "_metadata"):
            self._value({b"_metadata": value._metadata})
            self.out += b"b"

    def _tensor(self, tensor: Tensor) -> None:
        key = str(41_209_600 + 208 * len(self.storages)).encode()
        self.storages[key] = tensor
        kind = {torch.float32: b"Float", torch.int64: b"Long"}[tensor.dtype]
        self._shared(b"ctorch._utils\n_rebuild_tensor_v2\n")
        self.out += b"(("
        self._shared(b"U\x07storage")
        self._shared(b"ctorch\n" + kind + b"Storage\n")
        self._value(key)
        self._value(b"cuda:0")
        self._long(tensor.numel())
        self.out += b"NtQ"
        self._value(0)
        self._longs(tensor.shape)
        self._longs(tensor.stride())
        self._value(False)
        self._ordered(OrderedDict())
        self.out += b"tR"
        self._put()

    def _long(self, value: int) -> None:
        width = value.bit_length() // 8 + 1
        self.out += (
            b"\x8a" + bytes([width]) + value.to_bytes(width, "little", signed=True)
        )

    def _longs(self, values: Iterable[int]) -> None:
        items = list(values)
        self.out += b"(" if len(items) > 3 else b""
        for value in items:
            self._long(value)
        self.out += {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(items), b"t")


@sample
def file_of_python_2(folder: Path) -> None:
    state = small_net().state_dict()
    as_bytes = OrderedDict((name.encode(), tensor) for name, tensor in state.items())
    as_bytes._metadata = OrderedDict(  # type: ignore[attr-defined]
        (name, {b"version": 2 if name == b"bn" else 1})
        for name in (b"", b"conv", b"bn", b"relu", b"flat", b"fc")
    )
    training = {
        b"arch": b"lenet",
        # latin-1: what makes every Python 3 torch stop with a UnicodeDecodeError
        b"author": b"J\xe4ger",
        b"best_prec1": 71.3,
        b"epoch": 30,
        b"state_dict": as_bytes,
    }
    (folder / "legacy_python2.pth").write_bytes(Python2Writer().file(training))


# Files of libraries that hold a checkpoint


@sample
def agent_of_stable_baselines3(folder: Path) -> None:
    policy = nn.Sequential(OrderedDict(net=nn.Linear(4, 8), action_net=nn.Linear(8, 2)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    step(policy, optimizer, 2, 4)
    module, name = b"stable_baselines3.common.policies", b"ActorCriticPolicy"
    named = b"\x80\x04\x8c%c%b\x8c%c%b\x93." % (
        len(module),
        module,
        len(name),
        name,
    )  # what pickles a class
    data = {
        "policy_class": {
            ":type:": "<class 'abc.ABCMeta'>",
            ":serialized:": b64encode(named).decode(),
        },
        "num_timesteps": 2048,
        "gamma": 0.99,
        "_last_obs": None,
    }
    members: dict[str, object] = {
        "data": json.dumps(data, indent=4),
        "pytorch_variables.pth": {},
        "policy.pth": policy.state_dict(),
        "policy.optimizer.pth": optimizer.state_dict(),
        "_stable_baselines3_version": "2.9.2",
        "system_info.txt": (
            "- OS: Linux\n- Python: 3.11.7\n- Stable-Baselines3: 2.9.2\n"
        ),
    }
    with zipfile.ZipFile(folder / "agent.zip", "w") as archive:
        for name, content in members.items():
            out = io.BytesIO()
            if isinstance(content, str):
                out.write(content.encode())
            else:
                torch.save(content, out)
            archive.writestr(zipfile.ZipInfo(name), out.getvalue())


@sample
def model_zoo_of_arrays(folder: Path) -> None:
    net = small_net().eval()
    arrays = {name: tensor.numpy().copy() for name, tensor in net.state_dict().items()}
    with open(folder / "zoo.pkl", "wb") as file:
        pickle.dump({"model": arrays, "__author__": "the zoo"}, file, protocol=4)


# Files that nobody should load, or nobody can


class Command:
    """Pickles as a call of a shell command: what any file from elsewhere may do to
    `torch.load`.
    """

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("echo ckpt-sample",)


@sample
def file_that_runs_a_command_when_loaded(folder: Path) -> None:
    save({"weight": torch.randn(4, 4), "version": Command()}, folder / "hostile.pth")


@sample
def download_cut_off(folder: Path) -> None:
    path = folder / "truncated.pth"
    save(ConvNet().state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 6 // 10])


@sample
def pointer_instead_of_the_file(folder: Path) -> None:
    pointer = (
        "version https://git-lfs.github.com/spec/v1\noid "
        f"sha256:{'5f70bf18a0860070' * 4}\nsize 102530333\n"
    )
    (folder / "lfs_pointer.pth").write_text(pointer)


@sample
def page_instead_of_the_file(folder: Path) -> None:
    page = (
        "<!DOCTYPE html>\n<html>\n<head><title>404 Not Found</title></head>\n"
        "<body><h1>Not Found</h1><p>The requested file does not exist.</p></body>\n"
        "</html>\n"
    )
    (folder / "html_page.pth").write_text(page)


@sample
def distributed_checkpoints(folder: Path) -> None:
    """Two ranks, each in a process that has not computed anything before it was
    forked.
    """
    subprocess.run(
        [sys.executable, __file__, "--two-ranks", folder.resolve()], check=True
    )


def two_ranks(folder: Path) -> None:
    """`dcp`, and `dcp_interrupted`: what a save leaves that was killed while rank 1
    wrote its data.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        ranks = []
        for rank in range(2):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    save_sharded(rank)
                    code = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            ranks.append(pid)
        if any(os.waitpid(pid, 0)[1] for pid in ranks):
            raise RuntimeError("a rank failed")
        for name in ("dcp", "dcp_interrupted"):
            (folder / name).mkdir(exist_ok=True)
        for path in Path("step-20").iterdir():
            shutil.copyfile(path, folder / "dcp" / path.name)
        data = (folder / "dcp/__1_0.distcp").read_bytes()
        shutil.copyfile("step-20/__0_0.distcp", folder / "dcp_interrupted/__0_0.distcp")
        (folder / "dcp_interrupted/__1_0.distcp").write_bytes(data[: len(data) // 2])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 12)
        self.aux_head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.embed(words)))
        return out


def save_sharded(rank: int) -> None:
    """A run under FSDP2, saved with `torch.distributed.checkpoint`. The paths and ids
    in the files are the same each time.
    """
    store = dist.FileStore("store", 2)
    dist.init_process_group("cpu:gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    net = Words()
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    for _ in range(2):
        words = torch.arange(12)
        loss = nn.functional.cross_entropy(net(words), words)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model, state = get_state_dict(net, optimizer)
    with mock.patch("uuid.uuid4", lambda: uuid.UUID(int=7)):
        dcp.save({"model": model, "optim": state, "step": 20}, checkpoint_id="step-20")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    if sys.argv[1:2] == ["--two-ranks"]:
        two_ranks(Path(sys.argv[2]))
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    torch.set_num_threads(1)  # sums in one order
    for make in SAMPLES:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch's, on prototypes and deprecated things: wanted here
            make(folder)


if __name__ == "__main__":
    main()
