"""Ignite's Checkpoint and DiskSaver, with an EMA handler that shares its buffers with
the model.
"""

from __future__ import annotations

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EMAHandler
from recorder import Case
from torch import nn
from zoo import Net, decay_groups, images


def fit(case: Case, average: bool, groups: bool = False) -> None:
    net = case.watch("net", Net())
    optimizer = torch.optim.AdamW(
        decay_groups(net) if groups else net.parameters(), 1e-2
    )
    trainer = create_supervised_trainer(net, optimizer, nn.CrossEntropyLoss())
    saved = {"model": net, "optimizer": optimizer, "trainer": trainer}
    sections: dict[str, object] = {
        "model": ("model", "net", ""),
        "optimizer": "optimizer",
    }
    if average:
        ema = EMAHandler(net, momentum=0.1)
        ema.attach(trainer)
        saved["ema_model"] = ema.ema_model
        sections["ema_model"] = ("ema", "net", "")
    handler = Checkpoint(
        saved,
        DiskSaver(str(case.folder), create_dir=True, require_empty=False),
        n_saved=None,
        filename_pattern="epoch{global_step}.pt",
        global_step_transform=lambda engine, _: engine.state.epoch,
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    before = []

    def told() -> None:
        path = case.path(f"epoch{trainer.state.epoch}.pt")
        case.wrote(
            path,
            sections,
            values={"trainer.iteration": trainer.state.iteration},
            after=before[-1] if before else None,
        )
        before.append(path)

    trainer.add_event_handler(Events.EPOCH_COMPLETED, told)
    trainer.run([images(), images()], max_epochs=2)


def plain(case: Case) -> None:
    fit(case, False)


def ema(case: Case) -> None:
    fit(case, True)


def groups(case: Case) -> None:
    fit(case, False, True)


CASES = (plain, ema, groups)
