"""Folders of `Accelerator.save_state`, with safetensors and with pickles."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from recorder import Case
from torch import nn
from zoo import DEVICE, Discriminator, Generator, Net, TiedNet, decay_groups, images


def save(
    case: Case, net: nn.Module, safe: bool, groups: bool = False, scaler: bool = False
) -> None:
    accelerator = Accelerator(cpu=DEVICE == "cpu")
    case.watch("net", net)
    optimizer = torch.optim.AdamW(
        decay_groups(net) if groups else net.parameters(), 1e-2
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
    before = None
    for epoch in range(2):
        for _ in range(2):
            x, y = images()
            optimizer.zero_grad()
            if isinstance(accelerator.unwrap_model(net), TiedNet):
                x = torch.randint(0, 11, (4, 6), device=DEVICE)
                loss = nn.functional.cross_entropy(net(x).flatten(0, 1), x.flatten())
            else:
                loss = nn.functional.cross_entropy(net(x), y)
            accelerator.backward(loss)
            optimizer.step()
        scheduler.step()
        folder = case.path(f"state{epoch}")
        accelerator.save_state(str(folder), safe_serialization=safe)
        case.wrote(
            folder,
            {"?model": ("model", "net", ""), "?optimizer": "optimizer"},
            after=before,
        )
        before = folder
        name = "model.safetensors" if safe else "pytorch_model.bin"
        case.wrote(folder / name, {"": ("model", "net", "")}, optimizers=False)
        case.wrote(folder / "optimizer.bin", {"": "optimizer"})
        case.wrote(
            folder / "scheduler.bin",
            {},
            values={"last_epoch": scheduler.scheduler.last_epoch},
        )


def safe(case: Case) -> None:
    save(case, Net(), True)


def pickled(case: Case) -> None:
    save(case, Net(), False)


def groups(case: Case) -> None:
    save(case, Net(frozen=False), True, groups=True)


def tied(case: Case) -> None:
    save(case, TiedNet(), True)


def gan(case: Case) -> None:
    """Two models and two optimizers in one folder."""
    accelerator = Accelerator(cpu=DEVICE == "cpu")
    g, d = case.watch("G", Generator()), case.watch("D", Discriminator())
    og, od = (
        torch.optim.Adam(g.parameters(), 1e-3),
        torch.optim.Adam(d.parameters(), 1e-3),
    )
    g, d, og, od = accelerator.prepare(g, d, og, od)
    for _ in range(2):
        og.zero_grad()
        accelerator.backward(-d(g(torch.randn(4, 4, device=DEVICE))).mean())
        og.step()
        od.zero_grad()
        accelerator.backward(
            d(g(torch.randn(4, 4, device=DEVICE)).detach()).square().mean()
        )
        od.step()
    for safe in (True, False):
        folder = case.path("safe" if safe else "pickled")
        accelerator.save_state(str(folder), safe_serialization=safe)
        first, second = (
            ("model.safetensors", "model_1.safetensors")
            if safe
            else ("pytorch_model.bin", "pytorch_model_1.bin")
        )
        case.wrote(folder / first, {"": ("model", "G", "")}, optimizers=False)
        case.wrote(folder / second, {"": ("model", "D", "")}, optimizers=False)
        case.wrote(folder / "optimizer_1.bin", {"": "optimizer"})


CASES = (safe, pickled, groups, tied, gan)
