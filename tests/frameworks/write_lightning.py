"""Checkpoints of Lightning: hyperparameters, two optimizers, EMA and SWA callbacks,
groups, a nested module.
"""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from recorder import Case
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import DEVICE, Discriminator, Generator, Net, decay_groups, images


def loader(steps: int = 3) -> DataLoader:
    return DataLoader(TensorDataset(*images(4 * steps)), batch_size=4)


class Plain(LightningModule):
    def __init__(
        self, lr: float = 0.01, width: int = 3, optimizer: str = "adamw"
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = Net()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> object:
        if self.hparams["optimizer"] == "sgd":
            return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])
        if self.hparams["optimizer"] == "groups":
            return torch.optim.AdamW(decay_groups(self), lr=self.hparams["lr"])
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Gan(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = Generator(), Discriminator()

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        g, d = self.optimizers()
        self.toggle_optimizer(g)
        g.zero_grad()
        self.manual_backward(
            -self.discriminator(self.generator(torch.randn(4, 4, device=DEVICE))).mean()
        )
        g.step()
        self.untoggle_optimizer(g)
        self.toggle_optimizer(d)
        d.zero_grad()
        fake = self.generator(torch.randn(4, 4, device=DEVICE)).detach()
        self.manual_backward(
            self.discriminator(fake).mean()
            - self.discriminator(torch.randn(4, 6, device=DEVICE)).mean()
        )
        d.step()
        self.untoggle_optimizer(d)

    def configure_optimizers(self) -> object:
        return [
            torch.optim.Adam(self.generator.parameters(), lr=1e-3),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-3),
        ], []


class Save(Callback):
    """Saves after each epoch, with the truth of that moment."""

    def __init__(
        self,
        case: Case,
        sections: dict[str, object],
        values: dict[str, object] | None = None,
    ) -> None:
        self.case, self.sections, self.values = case, sections, values or {}
        self.before: Path | None = None

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        path = self.case.path(f"epoch{trainer.current_epoch}.ckpt")
        trainer.save_checkpoint(path)
        values = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            **self.values,
        }
        self.case.wrote(path, self.sections, values=values, after=self.before)
        self.before = path


def fit(
    case: Case,
    module: LightningModule,
    sections: dict[str, object],
    *callbacks: Callback,
    **options: object,
) -> Trainer:
    case.watch("net", module)
    trainer = Trainer(
        max_epochs=options.pop("epochs", 2),
        accelerator=DEVICE,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=case.folder,
        enable_checkpointing=options.pop("checkpoints", False),
        callbacks=[*callbacks],
        **options,
    )
    trainer.fit(module, loader())
    return trainer


MODEL = {"state_dict": ("model", "net", ""), "optimizer_states.0": "optimizer"}


def basic(case: Case) -> None:
    fit(case, Plain(), MODEL, Save(case, MODEL, {"hyper_parameters.lr": 0.01}))


def sgd(case: Case) -> None:
    fit(case, Plain(optimizer="sgd"), MODEL, Save(case, MODEL))


def groups(case: Case) -> None:
    fit(case, Plain(optimizer="groups"), MODEL, Save(case, MODEL))


def amp(case: Case) -> None:
    fit(case, Plain(), MODEL, Save(case, MODEL), precision="bf16-mixed")


def gan(case: Case) -> None:
    sections = {**MODEL, "optimizer_states.1": "optimizer"}
    fit(case, Gan(), sections, Save(case, sections))


def ema(case: Case) -> None:
    """The callback puts the averages into `state_dict` and the model that trains into
    `current_model_state`.
    """
    module = Plain()
    folder = case.path("best")
    trainer = fit(
        case,
        module,
        MODEL,
        EMAWeightAveraging(decay=0.9),
        ModelCheckpoint(folder, save_last=True),
        checkpoints=True,
    )
    average = next(
        c for c in trainer.callbacks if isinstance(c, EMAWeightAveraging)
    )._average_model
    case.wrote(
        folder / "last.ckpt",
        {
            "state_dict": ("model", "net", ""),
            "current_model_state": "other",
            "averaging_state": "average",
            "optimizer_states.0": "optimizer",
        },
        live={"ema": average.module.state_dict()} if average is not None else None,
    )


def swa(case: Case) -> None:
    folder = case.path("best")
    fit(
        case,
        Plain(),
        MODEL,
        StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1),
        ModelCheckpoint(folder, save_last=True, every_n_epochs=1),
        epochs=3,
        checkpoints=True,
    )
    averages = "callbacks.StochasticWeightAveraging.average_model_state"
    case.wrote(folder / "last.ckpt", {**MODEL, averages: ("ema", "net", "")})


def weights_only(case: Case) -> None:
    module = Plain()
    trainer = fit(case, module, MODEL)
    path = case.path("weights.ckpt")
    trainer.save_checkpoint(path, weights_only=True)
    case.wrote(path, {"state_dict": ("model", "net", "")}, optimizers=False)


def compiled(case: Case) -> None:
    module = Plain()
    module.net = torch.compile(module.net, backend="eager")
    fit(case, module, MODEL, Save(case, MODEL), epochs=1)


CASES = (basic, sgd, groups, amp, gan, ema, swa, weights_only, compiled)
