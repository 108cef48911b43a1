"""Checkpoints that only a GPU makes: DDP over NCCL, fused optimizers, weights that
cuDNN packs, AMP, sharding, compiled programs.
"""

from __future__ import annotations

import re

import torch
import torch.distributed as dist
from recorder import Case
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from zoo import Net, images, two_epochs

MODEL = {"model": ("model", "net", ""), "optimizer": "optimizer"}


def group() -> None:
    """A process group of this process alone."""
    if not dist.is_initialized():
        dist.init_process_group(
            "cuda:nccl,cpu:gloo", store=dist.HashStore(), rank=0, world_size=1
        )


def loss_of(net: nn.Module) -> torch.Tensor:
    x, y = images()
    return nn.functional.cross_entropy(net(x), y)


def ddp(case: Case) -> None:
    """A step of DDP, and the numbers in its error, which `--index` turns into names."""
    group()
    net = case.watch("net", Net())
    wrapped = DistributedDataParallel(net, device_ids=[0], find_unused_parameters=True)
    optimizer = torch.optim.AdamW(wrapped.parameters(), 1e-2)
    before = None
    for step in range(2):
        optimizer.zero_grad()
        loss_of(wrapped).backward()
        optimizer.step()
        path = case.path(f"step{step}.pth")
        torch.save(
            {"model": wrapped.state_dict(), "optimizer": optimizer.state_dict()}, path
        )
        case.wrote(
            path,
            {"model": ("model", "net", "module."), "optimizer": "optimizer"},
            after=before,
        )
        before = path
    strict = DistributedDataParallel(net, device_ids=[0])
    loss_of(strict).backward()
    try:
        loss_of(strict)
    except RuntimeError as error:
        numbers = re.search(r"did not receive grad for rank 0: ([\d ]+)", str(error))
        assert numbers, str(error)
        said = [int(number) for number in numbers[1].split()]
        trained = [
            name
            for name, parameter in net.named_parameters()
            if parameter.requires_grad
        ]
        assert [trained[number] for number in said] == ["spare.weight", "spare.bias"], (
            said
        )
    else:
        raise AssertionError("DDP accepts a parameter without a gradient")


def fused(case: Case) -> None:
    """Optimizers whose step counters are on the GPU."""
    for options in ({"fused": True}, {"capturable": True}, {"foreach": True}):
        case.recorder.models.clear()
        case.recorder.optimizers.clear()
        net = case.watch("net", Net())
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2, **options)
        loss_of(net).backward()
        optimizer.step()
        path = case.path(f"{next(iter(options))}.pth")
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path
        )
        case.wrote(path, MODEL)


class Recurrent(nn.Module):
    """cuDNN lays the weights of an LSTM into one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, num_layers=2, bidirectional=True)
        self.head = nn.Linear(16, 3)
        self.spare = nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][-1])


def lstm(case: Case) -> None:
    net = case.watch("net", Recurrent())

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(
            net(torch.randn(6, 4, 4)), torch.randint(0, 3, (4,))
        )

    two_epochs(case, torch.optim.AdamW(net.parameters(), 1e-2), loss, net, ".pth")


def scaled(case: Case) -> None:
    """AMP in float16, with the states of every generator."""
    net = case.watch("net", Net())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
    before = None
    for epoch in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(net)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        path = case.path(f"scaled{epoch}.pth")
        state = {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all(),
            "generator": torch.Generator("cuda").get_state(),
            "loss": loss.detach(),
            "epoch": epoch,
        }
        torch.save(state, path)
        case.wrote(
            path, MODEL, values={"scaler.scale": 128.0, "epoch": epoch}, after=before
        )
        before = path


def mixed(case: Case) -> None:
    """One model on two devices, types that GPUs have, views, pinned memory, a tensor
    without data.
    """
    net = case.watch("net", Net())
    net.spare.to("cpu")
    base = torch.randn(8, 6, device="cuda")
    state = {
        "model": net.state_dict(),
        "extra": {
            "bf16": base.to(torch.bfloat16),
            "f8": base.to(torch.float8_e4m3fn),
            "f8_e5m2": base.to(torch.float8_e5m2),
            "complex": torch.randn(3, dtype=torch.complex64, device="cuda"),
            "transposed": base.t(),
            "window": base[2:5, 1:4],
            "row": base[3],
            "expanded": base[:1].expand(4, 6),
            "channels_last": torch.randn(2, 3, 4, 4, device="cuda").to(
                memory_format=torch.channels_last
            ),
            "pinned": torch.randn(3, device="cpu").pin_memory(),
            "sparse": torch.eye(4, device="cuda").to_sparse(),
            "meta": torch.empty(3, device="meta"),
            "empty": torch.empty(0, 4, device="cuda"),
            "device": torch.device("cuda", 0),
        },
    }
    for name, zipped in (("mixed.pth", True), ("mixed_legacy.pth", False)):
        path = case.path(name)
        torch.save(state, path, _use_new_zipfile_serialization=zipped)
        case.wrote(
            path, {"model": ("model", "net", ""), "extra": "other"}, optimizers=False
        )


def programs(case: Case) -> None:
    net = case.watch("net", Net().eval())
    x, _ = images()
    scripted = case.path("scripted.pt")
    torch.jit.script(net).save(str(scripted))
    case.wrote(scripted, {"": ("model", "net", "")}, optimizers=False)
    traced = case.path("traced.pt")
    torch.jit.trace(net, x).save(str(traced))
    case.wrote(traced, {"": ("model", "net", "")}, optimizers=False)
    exported = case.path("exported.pt2")
    torch.export.save(torch.export.export(net, (x,)), exported)
    case.wrote(exported, {"": ("model", "net", "")}, optimizers=False)


def compiled(case: Case) -> None:
    net = case.watch("net", Net())
    wrapped = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.AdamW(wrapped.parameters(), 1e-2)
    loss_of(wrapped).backward()
    optimizer.step()
    path = case.path("compiled.pth")
    torch.save(
        {"model": wrapped.state_dict(), "optimizer": optimizer.state_dict()}, path
    )
    case.wrote(
        path, {"model": ("model", "net", "_orig_mod."), "optimizer": "optimizer"}
    )


def sharded(case: Case) -> None:
    """FSDP2: a DCP, and a file of DTensors."""
    import torch.distributed.checkpoint as dcp

    group()
    net = case.watch("net", Net())
    fully_shard(net, mesh=init_device_mesh("cuda", (1,)))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    loss_of(net).backward()
    optimizer.step()
    model, state = get_state_dict(net, optimizer)
    whole = {
        "net": get_model_state_dict(
            net, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
    }
    folder = case.path("dcp")
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=str(folder))
    case.wrote(folder, MODEL, live=whole)
    path = case.path("dtensors.pth")
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, path)
    case.wrote(path, MODEL, live={"net": {}})  # a file of DTensors has no plain form


CASES = (ddp, fused, lstm, scaled, mixed, programs, compiled, sharded)
