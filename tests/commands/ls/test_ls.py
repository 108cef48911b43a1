"""One checkpoint in one row: what `ckpt ls` says of files whose content is known."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import rewriting
import safetensors.torch
import torch
from torch import nn

from ckpt import formats
from ckpt.commands.ls.ls import LsRow, ls
from ckpt.evidence.survey import Survey
from ckpt.model.errors import Failure
from ckpt.model.findings import CATALOGUE


def row_of(path: Path) -> LsRow:
    with formats.open(str(path)) as checkpoint:
        return ls(Survey(checkpoint))


@pytest.mark.needs("folders")
@pytest.mark.parametrize(
    ("name", "loads"),
    [
        ("ddp_after.pth", "weights_only"),
        ("train_cuda.pth", "weights_only=False"),
        ("whole_model.pth", "needs my_project"),
        ("yolo_style.pt", "needs models"),
        ("hostile.pth", "RUNS CODE"),
        ("scripted.pt", "torch.jit"),
        ("weights.safetensors", "safetensors"),
        ("sharded", "safetensors"),
        ("legacy.pth", "weights_only"),
    ],
)
def test_how_a_file_loads(name: str, loads: str, samples: Path) -> None:
    assert row_of(samples / name).loads == loads


def test_parameters_are_counted_without_buffers_and_optimizers(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(4)
    )
    model(torch.zeros(2, 3, 8, 8)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    path = rewriting.saved(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "x.pth",
    )

    row = row_of(path)

    assert row.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert row.tensors == len(model.state_dict()) + 3 * len(list(model.parameters()))
    assert row.dtypes == ("float32",) and row.devices == ("cpu",)
    assert row.nbytes == path.stat().st_size


def test_the_dtype_with_the_most_bytes_is_the_first(tmp_path: Path) -> None:
    state = {
        "a.weight": torch.zeros(4, 4),
        "b.weight": torch.zeros(64, 4, dtype=torch.float16),
        "b.bias": torch.ones(3),
    }

    assert row_of(rewriting.saved(state, tmp_path / "x.pth")).dtypes == (
        "float16",
        "float32",
    )


def test_averages_count_where_there_is_no_model(tmp_path: Path) -> None:
    state = {
        "ema": {"fc.weight": torch.zeros(4, 4), "fc.bias": torch.zeros(4)},
        "step": 3,
    }

    assert row_of(rewriting.saved(state, tmp_path / "x.pth")).parameters == 20


def test_a_file_without_a_model_has_no_parameters(tmp_path: Path) -> None:
    row = row_of(
        rewriting.saved(
            {"images": torch.zeros(4, 4, dtype=torch.uint8)}, tmp_path / "x.pth"
        )
    )

    assert (row.parameters, row.dtypes, row.tensors) == (0, ("uint8",), 1)


def test_a_class_of_the_standard_library_needs_trust(tmp_path: Path) -> None:
    path = rewriting.saved(
        {"args": SimpleNamespace(lr=1), "w.weight": torch.ones(2)}, tmp_path / "x.pth"
    )

    assert row_of(path).loads == "weights_only=False"


@pytest.mark.needs("folders")
@pytest.mark.parametrize("weights", ["safetensors", "bin"])
def test_a_folder_loads_as_its_weights_do(weights: str, tmp_path: Path) -> None:
    state = {"fc.weight": torch.zeros(4, 4), "fc.bias": torch.zeros(4)}
    if weights == "safetensors":
        safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    else:
        torch.save(state, tmp_path / "pytorch_model.bin")
    torch.save(SimpleNamespace(lr=1.0), tmp_path / "training_args.bin")
    torch.save({"state": {}, "param_groups": []}, tmp_path / "optimizer.pt")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 3}')

    row = row_of(tmp_path)
    assert (row.format, row.parameters) == ("folder", 20)
    assert row.loads == ("safetensors" if weights == "safetensors" else "weights_only")
    assert "weights-only" in {finding.code for finding in row.findings}


def test_a_row_goes_to_another_process_and_into_json(samples: Path) -> None:
    row = row_of(samples / "train_cuda.pth")
    document = row.to_json()

    assert pickle.loads(pickle.dumps(row)) == row
    assert document["schema"] == {"name": "ckpt.ls", "version": 2}
    assert {finding["code"] for finding in document["findings"]} <= set(CATALOGUE)  # type: ignore[union-attr, index, call-overload]
    assert (
        LsRow("x", error=Failure("unreadable", "why")).to_json()["parameters"] is None
    )
