"""`last.pt` and `best.pt` of ultralytics: the EMA of the model as a whole module in
half precision, trained on drawn images.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from PIL import Image
from recorder import Case
from torch import nn
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.nn.tasks import ClassificationModel, DetectionModel
from ultralytics.utils.torch_utils import strip_optimizer


def images(folder: Path) -> Path:
    """A data set of four pictures with a square in each."""
    for part in ("train", "val"):
        (folder / "images" / part).mkdir(parents=True, exist_ok=True)
        (folder / "labels" / part).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            picture = numpy.full((64, 64, 3), 40 * number, numpy.uint8)
            picture[16:48, 16:48] = 200
            Image.fromarray(picture).save(folder / "images" / part / f"{number}.png")
            (folder / "labels" / part / f"{number}.txt").write_text(
                f"{number % 2} 0.5 0.5 0.5 0.5\n"
            )
    data = folder / "data.yaml"
    data.write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [a, b]\n"
    )
    return data


def trained(case: Case) -> None:
    data = images(case.path("data"))
    settings = {
        "model": "yolo11n.yaml",
        "data": str(data),
        "epochs": 2,
        "imgsz": 64,
        "batch": 2,
        "device": "cpu",
        "workers": 0,
        "project": str(case.folder),
        "name": "run",
        "exist_ok": True,
        "verbose": False,
        "plots": False,
        "amp": False,
        "val": False,
        "pretrained": False,
        "optimizer": "AdamW",
        "close_mosaic": 0,
    }
    trainer = DetectionTrainer(overrides=settings)

    def after(trainer: DetectionTrainer) -> None:
        case.watch("net", trainer.model)
        case.watch("ema", trainer.ema.ema)

    def saved(trainer: DetectionTrainer) -> None:
        half = {
            n: v.half() if v.is_floating_point() else v
            for n, v in trainer.ema.ema.state_dict().items()
        }
        path = case.path(f"epoch{trainer.epoch}.pt")
        path.write_bytes(Path(trainer.last).read_bytes())
        sections = {"ema": ("ema", "net", ""), "optimizer": "optimizer"}
        case.wrote(path, sections, values={"epoch": trainer.epoch}, live={"ema": half})

    trainer.add_callback("on_train_start", after)
    trainer.add_callback("on_model_save", saved)
    trainer.final_eval = lambda: [
        strip_optimizer(path) for path in (trainer.last, trainer.best)
    ]  # it needs operators of torchvision
    trainer.validate = lambda: ({}, 0.0)
    trainer.train()
    for name in ("last", "best"):
        path = Path(getattr(trainer, name))
        if path.exists():  # stripped of its optimizer: the averages became the model
            half = {
                n: v.half() if v.is_floating_point() else v
                for n, v in trainer.ema.ema.state_dict().items()
            }
            live = {"ema": half} if name == "last" else {"ema": {}}
            case.wrote(
                path, {"model": ("model", "ema", "")}, live=live, optimizers=False
            )


def built(case: Case) -> None:
    """Models of other tasks, built from their description and saved whole and as state
    dicts.
    """
    for make, yaml in (
        (DetectionModel, "yolov8n.yaml"),
        (ClassificationModel, "yolo11n-cls.yaml"),
    ):
        case.recorder.models.clear()
        net: nn.Module = case.watch("net", make(yaml, verbose=False))
        path = case.path(f"{Path(yaml).stem}.pt")
        torch.save({"model": net, "ema": None, "optimizer": None, "epoch": -1}, path)
        case.wrote(
            path,
            {"model": ("model", "net", "")},
            optimizers=False,
            values={"epoch": -1},
        )
        bare = case.path(f"{Path(yaml).stem}-state.pt")
        torch.save(net.state_dict(), bare)
        case.wrote(bare, {"": ("model", "net", "")}, optimizers=False)


CASES = (trained, built)
