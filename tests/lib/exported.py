"""Archives that torch.export and torch.package write, made once per session, and the
same bytes in older layouts.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import opcodes as op
import torch
from torch import nn


class Net(nn.Module):
    """Parameters, a tied one, buffers of both kinds, and two constants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3)
        self.tied = nn.Linear(4, 3)
        self.tied.weight = self.fc.weight
        self.bn = nn.BatchNorm1d(3)
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)
        self.shift = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            self.bn(self.fc(x)) * self.scale
            + self.shift
            + torch.tensor([1.0, 2.0, 3.0])
            + self.tied(x)
        )


@cache
def program() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Net().eval(), (torch.ones(2, 4),))


@cache
def pt2() -> bytes:
    """What torch.export.save of this torch writes."""
    out = io.BytesIO()
    torch.export.save(program(), out, extra_files={"note.txt": "from a test"})
    return out.getvalue()


def records(data: bytes) -> dict[str, bytes]:
    """The records of an archive by their names."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def saved(thing: Any) -> bytes:
    out = io.BytesIO()
    torch.save(thing, out)
    return out.getvalue()


def _inside(data: bytes, end: str) -> bytes:
    return next(
        content for name, content in records(data).items() if name.endswith(end)
    )


def pt2_of_2_8() -> bytes:
    """The layout of torch 2.8: weights and constants are one file of torch.save
    each.
    """
    root = next(iter(records(pt2()))).partition("/")[0]
    kept = {
        name: content
        for name, content in records(pt2()).items()
        if "/data/weights/" not in name and "/data/constants/" not in name
    }
    kept[f"{root}/data/weights/model.pt"] = saved(dict(program().state_dict))
    kept[f"{root}/data/constants/model.pt"] = saved(dict(program().constants))
    return op.zip_file(kept)


def pt2_of_2_5() -> bytes:
    """The layout of torch 2.1 to 2.6: four flat records."""
    return op.zip_file(
        {
            "version": b"7.3",
            "serialized_exported_program.json": _inside(pt2(), "models/model.json"),
            "serialized_state_dict.pt": saved(dict(program().state_dict)),
            "serialized_constants.pt": saved(dict(program().constants)),
            "serialized_example_inputs.pt": _inside(
                pt2(), "data/sample_inputs/model.pt"
            ),
        }
    )


@cache
def package() -> bytes:
    """A package with a state dict, another pickle that shares a tensor with it, code, a
    text and bytes.
    """
    from torch.package import PackageExporter

    out = io.BytesIO()
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with PackageExporter(out) as exporter:
            exporter.extern("**")
            exporter.save_pickle("models", "net.pkl", net.state_dict())
            exporter.save_pickle(
                "models", "rest.pkl", {"same": net.fc.weight.data, "lr": 0.1}
            )
            exporter.save_source_string("my_code", "class Thing:\n    pass\n")
            exporter.save_text("notes", "read.txt", "hello")
            exporter.save_binary("notes", "blob", b"\xff\xfe\0")
    return out.getvalue()


def written(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name
