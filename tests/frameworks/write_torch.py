"""Checkpoints of plain training scripts: wrappers, groups, averages, a GAN, AMP, tied
weights, and every optimizer of torch.
"""

from __future__ import annotations

import torch
from recorder import Case
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from zoo import DEVICE, Discriminator, Generator, Net, TiedNet, decay_groups, images

MODEL = {"model": ("model", "net", ""), "optimizer": "optimizer"}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        x, y = images()
        optimizer.zero_grad()

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        closure()
        optimizer.step(closure) if isinstance(
            optimizer, torch.optim.LBFGS
        ) else optimizer.step()


def usual(
    case: Case,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    prefix: str = "",
    **more: object,
) -> None:
    """Two files of one run, as most scripts write them."""
    before = None
    sections = {"model": ("model", "net", prefix), "optimizer": "optimizer"}
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for epoch in range(2):
        train(model, optimizer)
        scheduler.step()
        path = case.path(f"epoch{epoch}.pth")
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "scheduler": scheduler.state_dict(),
        }
        torch.save(state, path)
        values = {
            "epoch": epoch,
            "scheduler.last_epoch": epoch + 1,
            "optimizer.param_groups.0.lr": optimizer.param_groups[0]["lr"],
        }
        case.wrote(path, sections, values=values, after=before)
        before = path


def all_parameters(case: Case) -> None:
    net = case.watch("net", Net(root_buffer=True))
    usual(case, net, torch.optim.AdamW(net.parameters(), 1e-2))


def filtered(case: Case) -> None:
    net = case.watch("net", Net())
    usual(
        case,
        net,
        torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2),
    )


def groups(case: Case) -> None:
    net = case.watch("net", Net(frozen=False))
    usual(case, net, torch.optim.AdamW(decay_groups(net), 1e-2))


def two_rates(case: Case) -> None:
    net = case.watch("net", Net(frozen=False, spare=False))
    head = list(net.fc.parameters())
    rest = [p for n, p in net.named_parameters() if not n.startswith("fc")]
    usual(
        case,
        net,
        torch.optim.SGD(
            [{"params": head, "lr": 1e-1}, {"params": rest}], 1e-2, momentum=0.9
        ),
    )


def named(case: Case) -> None:
    net = case.watch("net", Net())
    usual(case, net, torch.optim.AdamW(net.named_parameters(), 1e-2))


def data_parallel(case: Case) -> None:
    net = case.watch("net", Net())
    wrapped = nn.DataParallel(net)
    usual(case, wrapped, torch.optim.Adam(wrapped.parameters(), 1e-2), "module.")


def compiled(case: Case) -> None:
    net = case.watch("net", Net())
    wrapped = torch.compile(net, backend="eager")
    usual(case, wrapped, torch.optim.Adam(wrapped.parameters(), 1e-2), "_orig_mod.")


def compiled_parallel(case: Case) -> None:
    net = case.watch("net", Net())
    wrapped = nn.DataParallel(torch.compile(net, backend="eager"))
    usual(
        case, wrapped, torch.optim.Adam(wrapped.parameters(), 1e-2), "module._orig_mod."
    )


def ema(case: Case) -> None:
    net = case.watch("net", Net())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    average = AveragedModel(
        net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    for _ in range(3):
        train(net, optimizer, 1)
        average.update_parameters(net)
    path = case.path("ema.pth")
    state = {
        "model": net.state_dict(),
        "ema": average.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, path)
    case.wrote(path, {**MODEL, "ema": ("ema", "net", "module.")})
    only = case.path("ema_only.pth")
    torch.save({"model_ema": average.state_dict(), "step": 3}, only)
    case.wrote(
        only,
        {"model_ema": ("ema", "net", "module.")},
        values={"step": 3},
        optimizers=False,
    )


def swa(case: Case) -> None:
    net = case.watch("net", Net(frozen=False))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)
    average = AveragedModel(net)
    scheduler = SWALR(optimizer, swa_lr=0.05)
    for _ in range(3):
        train(net, optimizer, 1)
        average.update_parameters(net)
        scheduler.step()
    path = case.path("swa.pth")
    state = {
        "model": net.state_dict(),
        "swa_model": average.state_dict(),
        "optimizer": optimizer.state_dict(),
        "swa_scheduler": scheduler.state_dict(),
    }
    torch.save(state, path)
    case.wrote(path, {**MODEL, "swa_model": ("ema", "net", "module.")})


def gan(case: Case) -> None:
    g, d = case.watch("G", Generator()), case.watch("D", Discriminator())
    og, od = (
        torch.optim.Adam(g.parameters(), 1e-3),
        torch.optim.Adam(d.parameters(), 1e-3),
    )
    before = None
    for epoch in range(2):
        for _ in range(2):
            og.zero_grad()
            (-d(g(torch.randn(4, 4))).mean()).backward()
            og.step()
            od.zero_grad()
            (
                d(g(torch.randn(4, 4)).detach()).mean()
                - d(torch.randn(4, 6)).square().mean()
            ).backward()
            od.step()
        path = case.path(f"gan{epoch}.pth")
        torch.save(
            {
                "G": g.state_dict(),
                "D": d.state_dict(),
                "opt_G": og.state_dict(),
                "opt_D": od.state_dict(),
                "iteration": epoch,
            },
            path,
        )
        sections = {
            "G": ("model", "G", ""),
            "D": ("model", "D", ""),
            "opt_G": "optimizer",
            "opt_D": "optimizer",
        }
        case.wrote(path, sections, values={"iteration": epoch}, after=before)
        before = path


def amp(case: Case) -> None:
    net = case.watch("net", Net())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=128.0)
    before = None
    for epoch in range(2):
        x, y = images()
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        path = case.path(f"amp{epoch}.pth")
        torch.save(
            {
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
            },
            path,
        )
        case.wrote(path, MODEL, values={"scaler.scale": 128.0}, after=before)
        before = path


def tied(case: Case) -> None:
    net = case.watch("net", TiedNet())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    before = None
    for epoch in range(2):
        x = torch.randint(0, 11, (4, 6))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        path = case.path(f"tied{epoch}.pth")
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path
        )
        case.wrote(path, MODEL, after=before)
        before = path


def branch(case: Case) -> None:
    """A head that only every other step uses."""
    net = case.watch("net", Net())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    before = None
    for step in range(4):
        x, y = images()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        if step % 2:
            loss = loss + net.spare(torch.randn(2, 5)).square().mean()
        loss.backward()
        optimizer.step()
        path = case.path(f"branch{step}.pth")
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path
        )
        case.wrote(path, MODEL, after=before)
        before = path


def bare(case: Case) -> None:
    """Bare state dicts, before and after a step; a whole module; the same in the format
    of torch 1.0.
    """
    net = case.watch("net", Net())
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    path = case.path("before.pth")
    torch.save(net.state_dict(), path)
    case.wrote(path, {"": ("model", "net", "")})
    train(net, optimizer, 1)
    after = case.path("after.pth")
    torch.save(net.state_dict(), after)
    case.wrote(after, {"": ("model", "net", "")}, after=path)
    whole = case.path("whole.pth")
    torch.save(net, whole)
    case.wrote(whole, {"": ("model", "net", "")})
    legacy = case.path("legacy.pth")
    torch.save(
        {"model": net.state_dict(), "epoch": 1},
        legacy,
        _use_new_zipfile_serialization=False,
    )
    case.wrote(legacy, {"model": ("model", "net", "")}, values={"epoch": 1})


OPTIMIZERS = {
    name: getattr(torch.optim, name)
    for name in (
        "SGD",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "Adagrad",
        "Adadelta",
        "ASGD",
        "LBFGS",
        "Adafactor",
    )
}


def optimizers(case: Case) -> None:
    for name, make in OPTIMIZERS.items():
        case.recorder.models.clear()
        case.recorder.optimizers.clear()
        net = case.watch("net", Net())
        optimizer = make(net.parameters(), lr=1e-2)
        train(net, optimizer, 2)
        path = case.path(f"{name}.pth")
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path
        )
        case.wrote(path, MODEL)


CASES = (
    all_parameters,
    filtered,
    groups,
    two_rates,
    named,
    data_parallel,
    compiled,
    compiled_parallel,
    ema,
    swa,
    gan,
    amp,
    tied,
    branch,
    bare,
    optimizers,
)
if DEVICE == "cuda":
    import gpu

    CASES += gpu.CASES
