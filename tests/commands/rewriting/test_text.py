"""What a command that writes says: what is kept and what is lost, and the way back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
import rewriting
import torch
from inside import inside
from process import ROOT, SAMPLES

from ckpt.surface.cli import output

VALUES = {"best_fitness": None, "ema": None, "epoch": 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with values that are unset."""
    weights = {"module.fc.weight": torch.ones(2, 3), "module.fc.bias": torch.zeros(2)}
    rewriting.saved({"model": weights, **VALUES}, tmp_path / "a.pth")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "rehome a.pth --to cuda:0 -o b.pth",
        "strip a.pth -o b.pth",
        "convert a.pth --dtype bfloat16 -o b.pth",
        "convert a.pth --plain -o b.pth",
        "convert a.pth --format torch-legacy -o b.pth",
    ],
)
def test_a_file_of_torch_keeps_what_is_none(command: str, folder: Path) -> None:
    done = inside(*command.split(), cwd=folder)

    assert done.code == 0 and b"None" not in done.out and b"left out" not in done.out
    kept = torch.load(folder / "b.pth", map_location="cpu", weights_only=True)
    assert {name: kept[name] for name in VALUES} == VALUES


@pytest.mark.parametrize(
    "command", ["slim a.pth -o b.pth", "convert a.pth -o b.safetensors"]
)
def test_what_is_none_is_lost_with_the_other_values_and_named_on_one_line(
    command: str, folder: Path
) -> None:
    lines = inside(*command.split(), cwd=folder).lines

    assert [line for line in lines if "left out" in line] == [
        "left out: best_fitness, ema = None",
        "left out: epoch = 3",
    ]
    document = json.loads(inside(*command.split(), "--force", "--json", cwd=folder).out)
    assert {row["name"]: row["what"] for row in document["left_out"]} == {
        "best_fitness": "None",
        "ema": "None",
        "epoch": "3",
    }


def test_one_value_that_is_none_is_told_as_any_other(tmp_path: Path) -> None:
    rewriting.saved(
        {"model": {"fc.weight": torch.ones(2, 3)}, "best": None}, tmp_path / "a.pth"
    )

    assert (
        "left out: best = None"
        in inside("slim", "a.pth", "--dry-run", cwd=tmp_path).lines
    )


def test_the_command_that_takes_a_change_back_is_not_broken(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "train_cuda.pth", tmp_path / "my run.pth")
    with mock.patch.object(output, "screen_width", lambda *_: 80):
        lines = inside("rehome", "my run.pth", "--in-place", cwd=tmp_path).lines

    assert max(map(len, lines)) <= 80
    assert "  ckpt rehome --undo 'my run.pth'" in lines
    assert any(line.startswith("rewrote my run.pth in place: ") for line in lines)


def test_a_wrapper_of_one_tensor_becomes_a_plain_one(tmp_path: Path) -> None:
    """An arrow leads to something."""
    source = ROOT / "tests" / "gpu_files" / "dtensors.pth"

    done = inside("slim", str(source), "-o", "x.pth", cwd=tmp_path)

    assert done.code == 0
    assert (
        "a tensor of torch.distributed.tensor.DTensor → a plain tensor   10 tensors"
        in done.out.decode()
    )


def test_a_file_without_a_model_names_the_section_to_take(tmp_path: Path) -> None:
    content = {"a": {"b": {"c": torch.ones(3, 3)}, "step": 3}, "x": [torch.ones(2)]}
    torch.save(content, tmp_path / "deep.pth")
    words = ("convert", "deep.pth", "--dtype", "float16", "-o", "x.pth")

    done = inside(*words, cwd=tmp_path)

    assert done.code == 2
    assert "ckpt finds no model in this file (--section . takes it for one)" in (
        done.err.decode()
    )
    done = inside(*words, "--section", ".", cwd=tmp_path)
    assert done.code == 0
    assert torch.load(tmp_path / "x.pth")["a"]["b"]["c"].dtype == torch.float16
