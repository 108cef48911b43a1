"""State dicts of modules of tensordict, TensorDictParams, and a TensorDict itself."""

from __future__ import annotations

import torch
from recorder import Case
from tensordict import TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule
from torch import nn


def module(case: Case) -> None:
    net = case.watch(
        "net",
        TensorDictModule(
            nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
            in_keys=["x"],
            out_keys=["y"],
        ),
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    data = TensorDict({"x": torch.randn(5, 3)}, batch_size=[5])
    net(data)["y"].square().mean().backward()
    optimizer.step()
    path = case.path("module.pt")
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
    case.wrote(path, {"model": ("model", "net", ""), "optimizer": "optimizer"})


def parameters(case: Case) -> None:
    net = case.watch(
        "net",
        TensorDictParams(
            TensorDict({"a": torch.randn(3), "b": {"c": torch.randn(2, 2)}}, [])
        ),
    )
    path = case.path("params.pt")
    torch.save(net.state_dict(), path)
    case.wrote(path, {"": "model"}, optimizers=False)


def data(case: Case) -> None:
    path = case.path("data.pt")
    torch.save(
        TensorDict({"x": torch.randn(5, 3), "y": torch.arange(5)}, batch_size=[5]), path
    )
    case.wrote(path, {}, optimizers=False)


CASES = (module, parameters, data)
