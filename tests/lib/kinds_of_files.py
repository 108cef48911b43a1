"""One checkpoint of each kind that is read by ranges, each larger than what a first
request brings.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

SINGLE = (
    "zip.pth",
    "legacy.pth",
    "a.safetensors",
    "sharded/model.safetensors.index.json",
)
FOLDERS = ("run.dcp", "sharded")


def write(folder: Path) -> Path:
    """Write them into a folder, and return it."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    many = {f"layers.{i}.weight": torch.full((50, 30), float(i)) for i in range(100)}
    torch.save({"model": many, "epoch": 3}, folder / "zip.pth")
    old = {"a": torch.arange(100_000.0), "b": torch.zeros(50_000)}
    torch.save(old, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    save_file(many, folder / "a.safetensors")
    (folder / "sharded").mkdir()
    index = {}
    for number in range(4):
        name = f"model-{number + 1:05}-of-00004.safetensors"
        part = dict(list(many.items())[number::4])
        save_file(part, folder / "sharded" / name)
        index |= dict.fromkeys(part, name)
    document = {"metadata": {"total_size": 600_000}, "weight_map": index}
    (folder / "sharded" / "model.safetensors.index.json").write_text(
        json.dumps(document)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no group of processes
        dcp.save(
            {**many, "step": torch.tensor(7)},
            checkpoint_id=folder / "run.dcp",
            no_dist=True,
        )
    return folder
