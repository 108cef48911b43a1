"""Checkpoints of schedulefree: the optimizer keeps z and swaps the weights for
evaluation.
"""

from __future__ import annotations

import schedulefree
import torch
from recorder import Case, Recorder
from torch import nn
from zoo import Net, decay_groups, images

MODEL = {"model": ("model", "net", ""), "optimizer": "optimizer"}


def one(case: Case, name: str, groups: bool) -> None:
    make = getattr(schedulefree, name)
    case.recorder.close()
    case.recorder = Recorder()
    net = case.watch("net", Net())
    optimizer = make(decay_groups(net) if groups else net.parameters(), lr=1e-2)
    before = None
    for step in range(2):
        getattr(optimizer, "train", lambda: None)()
        for _ in range(2):
            x, y = images()

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                return loss

            closure()
            optimizer.step(closure) if "Closure" in name else optimizer.step()
        getattr(optimizer, "eval", lambda: None)()
        path = case.path(f"{name}{'-groups' if groups else ''}.{step}.pth")
        torch.save(
            {
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
            },
            path,
        )
        case.wrote(path, MODEL, values={"step": step}, after=before)
        before = path


def each(case: Case) -> None:
    for name in (
        "SGDScheduleFree",
        "AdamWScheduleFree",
        "RAdamScheduleFree",
        "AdamWScheduleFreeClosure",
        "SGDScheduleFreeClosure",
        "AdamWScheduleFreePaper",
        "AdamWScheduleFreeReference",
    ):
        if hasattr(schedulefree, name):
            one(case, name, False)
            one(case, name, True)


CASES = (each,)
