"""`CKPT+…` folders of speechbrain's Checkpointer, from its Brain class."""

from __future__ import annotations

import speechbrain
import torch
from recorder import Case
from speechbrain.utils.checkpoints import Checkpointer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import Net, images


class Mind(speechbrain.Brain):
    def compute_forward(self, batch: object, stage: object) -> torch.Tensor:
        return self.modules.net(batch[0])

    def compute_objectives(
        self, predictions: torch.Tensor, batch: object, stage: object
    ) -> torch.Tensor:
        return nn.functional.cross_entropy(predictions, batch[1])


def brain(case: Case) -> None:
    net = Net()
    modules = nn.ModuleDict({"net": net})
    saver = Checkpointer(str(case.path("save")), recoverables={"model": modules})
    mind = Mind(
        modules,
        opt_class=lambda p: torch.optim.AdamW(p, 1e-2),
        run_opts={"device": "cpu"},
        checkpointer=saver,
    )
    case.watch("net", mind.modules)
    counter = speechbrain.utils.epoch_loop.EpochCounter(2)
    saver.add_recoverable("counter", counter)
    mind.fit(
        counter, DataLoader(TensorDataset(*images(8)), batch_size=4), progressbar=False
    )
    kept = saver.save_checkpoint(meta={"loss": 1.5})
    case.wrote(kept.path, {"?model": ("model", "net", ""), "?optimizer": "optimizer"})
    for name, sections in (
        ("model.ckpt", {"": ("model", "net", "")}),
        ("optimizer.ckpt", {"": "optimizer"}),
    ):
        if (kept.path / name).exists():
            case.wrote(kept.path / name, sections)


CASES = (brain,)
