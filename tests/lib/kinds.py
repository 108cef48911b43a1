"""The same tensors in each kind of container, as torch and safetensors write them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import rewriting
import torch
import torch.distributed.checkpoint as dcp
from needs import is_there
from safetensors.torch import save_file


def strided(whole: torch.Tensor) -> dict[str, torch.Tensor]:
    """Views of a tensor of three dimensions, with the strides that files have."""
    return {
        "whole": whole,
        "transposed": whole.permute(2, 0, 1),
        "rows": whole[2:5],
        "column": whole[:, 3],
        "sparse": whole[::2, 1::2, ::3],
        "turned": whole[:, ::2].transpose(0, 2),
        "expanded": whole[:1].expand(4, *whole.shape[1:]),
        "number": whole[1, 2, 3],
        "none": whole[3:3],
        "one": whole[1:2, :, 2:3],
    }


Save = Callable[[dict[str, torch.Tensor], Path], Path]


def stored(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    return rewriting.saved(tensors, folder / "a.pt")


def deflated(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    with (
        zipfile.ZipFile(stored(tensors, folder)) as old,
        zipfile.ZipFile(folder / "b.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return folder / "b.pt"


def legacy(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    return rewriting.saved(
        tensors, folder / "a.pt", _use_new_zipfile_serialization=False
    )


def safetensors(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
        folder / "a.safetensors",
    )
    return folder / "a.safetensors"


def shards(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    files = {
        name: f"model-{number % 2 + 1:05}-of-00002.bin"
        for number, name in enumerate(tensors)
    }
    for file in set(files.values()):
        torch.save(
            {name: tensors[name] for name in tensors if files[name] == file},
            folder / file,
        )
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return index


def distributed(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    dcp.save(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
        checkpoint_id=folder / "d",
    )
    return folder / "d"


CONTAINERS = [stored, deflated, legacy, safetensors, shards]
if is_there("dcp"):
    CONTAINERS.append(distributed)
