"""One checkpoint for each optimizer of pytorch-optimizer that trains a small network
with its defaults.
"""

from __future__ import annotations

import inspect

import pytorch_optimizer
import torch
from recorder import Case, Recorder
from torch import nn
from zoo import Net, images

SKIPPED = {"StableSPAM", "SPAM"}
MODEL = {"model": ("model", "net", ""), "optimizer": "optimizer"}


def makers() -> dict[str, object]:
    return {
        name: make
        for name, make in sorted(vars(pytorch_optimizer).items())
        if inspect.isclass(make)
        and issubclass(make, torch.optim.Optimizer)
        and not inspect.isabstract(make)
    }


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        x, y = images()

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward(create_graph=False)
            return loss

        closure()
        optimizer.step(closure) if "closure" in str(
            inspect.signature(optimizer.step)
        ) else optimizer.step()


def each(case: Case) -> None:
    refused = []
    for name, make in makers().items():
        torch.manual_seed(0)
        case.recorder.close()
        case.recorder = Recorder()
        net = case.watch("net", Net())
        try:
            optimizer = make(net.parameters(), lr=1e-3)
            path = case.path(f"{name}.1.pth")
            train(net, optimizer, 2)
            torch.save(
                {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path
            )
            case.wrote(path, MODEL)
            train(net, optimizer, 1)
            after = case.path(f"{name}.2.pth")
            torch.save(
                {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, after
            )
            case.wrote(after, MODEL, after=path)
        except Exception as error:
            refused.append(f"{name}: {type(error).__name__}: {error}"[:200])
            for path in case.folder.glob(f"{name}.[12].pth"):
                path.unlink()
    case.path("refused.txt").write_text("\n".join(refused))


CASES = (each,)
