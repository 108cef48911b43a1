"""Checkpoints of MMEngine's Runner: EMAHook, groups of the optimizer wrapper's
constructor, schedulers, a message hub.
"""

from __future__ import annotations

import torch
from mmengine.hooks import EMAHook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from recorder import Case
from torch import nn
from torch.utils.data import Dataset
from zoo import Net


class Images(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=generator), index % 3


class Classifier(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = Net()

    def forward(
        self, inputs: object, labels: object = None, mode: str = "loss"
    ) -> object:
        x, y = (
            (torch.stack(list(inputs)), torch.as_tensor(labels))
            if isinstance(inputs, list | tuple)
            else (inputs, labels)
        )
        return {"loss": nn.functional.cross_entropy(self.backbone(x), y)}


def fit(
    case: Case,
    wrapper: dict[str, object],
    hooks: list[object],
    sections: dict[str, object],
    live: dict[str, object] | None = None,
) -> None:
    model = case.watch("net", Classifier())
    runner = Runner(
        model=model,
        work_dir=str(case.folder),
        train_dataloader={
            "dataset": Images(),
            "batch_size": 4,
            "sampler": {"type": "DefaultSampler", "shuffle": False},
            "num_workers": 0,
        },
        train_cfg={"by_epoch": True, "max_epochs": 2},
        optim_wrapper=wrapper,
        param_scheduler={"type": "MultiStepLR", "milestones": [1], "by_epoch": True},
        custom_hooks=hooks,
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 1}},
        experiment_name=case.name,
        log_level="ERROR",
        default_scope="mmengine",
    )
    runner.train()
    # The last file: the truth is that of the end.
    case.wrote(
        case.path("epoch_2.pth"),
        sections,
        values={"meta.epoch": 2, "meta.iter": 4},
        live=live,
    )
    weights = case.path("published.pth")
    from mmengine.runner import save_checkpoint

    save_checkpoint(
        {"state_dict": model.state_dict(), "meta": {"classes": ["a", "b"]}},
        str(weights),
    )
    case.wrote(weights, {"state_dict": ("model", "net", "")})


MODEL = {"state_dict": ("model", "net", ""), "optimizer": "optimizer"}


def plain(case: Case) -> None:
    fit(
        case,
        {
            "type": "OptimWrapper",
            "optimizer": {"type": "SGD", "lr": 0.01, "momentum": 0.9},
        },
        [],
        MODEL,
    )


def adamw(case: Case) -> None:
    """`paramwise_cfg` makes one group per parameter."""
    wrapper = {
        "type": "OptimWrapper",
        "optimizer": {"type": "AdamW", "lr": 0.01, "weight_decay": 0.05},
        "paramwise_cfg": {"norm_decay_mult": 0.0, "bias_decay_mult": 0.0},
    }
    fit(case, wrapper, [], MODEL)


def ema(case: Case) -> None:
    """EMAHook swaps: `state_dict` holds the averages, `ema_state_dict` the model that
    trains.
    """
    wrapper = {"type": "OptimWrapper", "optimizer": {"type": "AdamW", "lr": 0.01}}
    fit(
        case,
        wrapper,
        [EMAHook()],
        {
            "state_dict": ("model", "net", ""),
            "optimizer": "optimizer",
            "ema_state_dict": ("ema", None, "module."),
        },
        live={"net": {}},
    )


def several(case: Case) -> None:
    wrapper = {
        "type": "OptimWrapper",
        "clip_grad": {"max_norm": 1.0},
        "accumulative_counts": 2,
        "optimizer": {"type": "Adam", "lr": 0.01},
    }
    fit(case, wrapper, [], MODEL)


CASES = (plain, adamw, ema, several)
