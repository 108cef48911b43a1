"""MONAI's CheckpointSaver, and tensors that are MetaTensors."""

from __future__ import annotations

import torch
from ignite.engine import create_supervised_trainer
from monai.data import MetaTensor
from monai.handlers import CheckpointSaver
from monai.networks.nets import UNet
from recorder import Case
from torch import nn


def saver(case: Case) -> None:
    net = case.watch("net", UNet(2, 1, 1, (4, 8), (2,), norm="batch"))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    trainer = create_supervised_trainer(net, optimizer, nn.MSELoss())
    CheckpointSaver(
        str(case.folder),
        {"model": net, "optimizer": optimizer},
        save_final=True,
        final_filename="final.pt",
    ).attach(trainer)
    trainer.run([(torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8))], max_epochs=2)
    case.wrote(
        case.path("final.pt"), {"model": ("model", "net", ""), "optimizer": "optimizer"}
    )


def meta(case: Case) -> None:
    net = case.watch("net", nn.Linear(3, 2))
    path = case.path("meta.pt")
    torch.save(
        {
            "model": net.state_dict(),
            "image": MetaTensor(torch.randn(1, 4, 4)),
            "epoch": 1,
        },
        path,
    )
    case.wrote(path, {"model": ("model", "net", "")}, values={"epoch": 1})


CASES = (saver, meta)
