"""Folders of runs for the tests: saves of many epochs, as Lightning and the Trainer of
transformers write them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

OLD = 1_600_000_000
"""A time long ago, in seconds."""


def save(path: Path, *, at: int = OLD, **values: Any) -> Path:
    """A save as torch writes it, which was written `at` a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": {"w": torch.arange(12.0).reshape(3, 4)}, **values}, path)
    os.utime(path, (at, at))
    return path


def epochs(
    run: Path,
    count: int = 5,
    losses: list[Any] | None = None,
    name: str = "epoch_{}.pth",
) -> Path:
    """A run of some epochs, one file each."""
    for epoch in range(count):
        more = {} if losses is None else {"val_loss": losses[epoch]}
        save(run / name.format(epoch), at=OLD + epoch, epoch=epoch, **more)
    return run


def trainer(run: Path, steps: list[int], losses: list[float]) -> Path:
    """A run of the Trainer of transformers."""
    best = min(zip(losses, steps, strict=True))[1]
    for index, step in enumerate(steps):
        folder = run / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        save_file(
            {"w": torch.ones(3, 4)},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        torch.save({"state": {}, "param_groups": []}, folder / "optimizer.pt")
        history = [
            {"eval_loss": loss, "step": at, "epoch": number + 1.0}
            for number, (loss, at) in enumerate(zip(losses, steps, strict=True))
            if at <= step
        ]
        state = {
            "global_step": step,
            "epoch": index + 1.0,
            "log_history": [*history, {"loss": 9.0, "step": step}],
            "best_model_checkpoint": f"/old/machine/out/checkpoint-{best}"
            if best <= step
            else None,
        }
        (folder / "trainer_state.json").write_text(json.dumps(state))
        written_at(folder, OLD + index)
    return run


def written_at(folder: Path, at: int) -> None:
    """Let all files of a folder be written at a time."""
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (at, at))


def lightning(run: Path, scores: list[float]) -> Path:
    """A run of Lightning with a callback that monitors `val_loss`."""
    for epoch, score in enumerate(scores):
        so_far = scores[: epoch + 1]
        best = so_far.index(min(so_far))
        callback = {
            "monitor": "val_loss",
            "current_score": torch.tensor(score),
            "best_model_score": torch.tensor(min(so_far)),
            "best_model_path": f"/old/machine/epoch={best}-step={100 * best + 100}.ckpt",
        }
        save(
            run / f"epoch={epoch}-step={100 * epoch + 100}.ckpt",
            at=OLD + epoch,
            epoch=epoch,
            global_step=100 * epoch + 100,
            callbacks={
                "ModelCheckpoint{'monitor': 'val_loss', 'mode': 'min'}": callback
            },
        )
    return run
