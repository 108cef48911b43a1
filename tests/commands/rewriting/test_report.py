"""Commands that change names, devices or values take the file of weights of a folder,
and say what they leave.
"""

from __future__ import annotations

from pathlib import Path

import folders
import oracle
import pytest
import torch
from inside import inside

pytestmark = oracle.QUIET

BESIDE = [
    "custom_checkpoint_0.pkl",
    "optimizer.bin",
    "random_states_0.pkl",
    "scaler.pt",
    "scheduler.bin",
]
COMMANDS = {
    "rehome": ["rehome", "c"],
    "rename": ["rename", "c", "--sub", "s/^0/first/"],
    "strip": ["strip", "c", "--prefix", "0."],
    "warmstart": ["warmstart", "other.pth", "--into", "c"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_result_is_the_weights(command: str, tmp_path: Path) -> None:
    folders.accelerate(tmp_path / "c", safe=False)
    other = {
        name: value + 1 for name, value in folders.weights(folders.model()).items()
    }
    torch.save(other, tmp_path / "other.pth")
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    done = inside(*COMMANDS[command], "-o", "out.bin", cwd=tmp_path)
    assert done.code == 0, done
    left = sorted(
        line.split(": ")[1] for line in done.lines if line.startswith("left out: ")
    )
    assert left == BESIDE
    found = torch.load(tmp_path / "out.bin", weights_only=True)
    names = {"rename": "first.weight", "strip": "weight"}
    assert names.get(command, "0.weight") in found and len(found) == len(other)
    if command == "warmstart":
        assert all(torch.equal(found[name], value) for name, value in other.items())
    assert before == {
        path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()
    }


def test_in_place_changes_the_weights_and_keeps_the_rest(tmp_path: Path) -> None:
    folder = folders.accelerate(tmp_path / "c", safe=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = inside("rename", "c", "--sub", "s/^0/first/", "--in-place", cwd=tmp_path)
    assert done.code == 0 and not any(
        line.startswith("left out") for line in done.lines
    ), done
    assert "first.weight" in torch.load(folder / "pytorch_model.bin", weights_only=True)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {
        "pytorch_model.bin"
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_several_models_are_a_question(command: str, tmp_path: Path) -> None:
    folders.accelerate(tmp_path / "c", models=2)
    torch.save(folders.weights(folders.model()), tmp_path / "other.pth")
    done = inside(*COMMANDS[command], "-o", "out.safetensors", cwd=tmp_path)
    assert done.code == 2 and not (tmp_path / "out.safetensors").exists()
    assert done.complaints == [
        (
            "ckpt: c: 2 files of this folder hold tensors (name one: "
            "model.safetensors, or model_1.safetensors)"
        )
    ]


@pytest.mark.needs("folders")
def test_a_model_with_its_config(tmp_path: Path) -> None:
    folders.save(tmp_path / "m" / "pytorch_model.bin", folders.weights(folders.model()))
    folders.save(tmp_path / "m" / "config.json", {"model_type": "net"})
    done = inside("rehome", "m", "-o", "out.pth", cwd=tmp_path)
    assert (
        done.code == 0
        and "left out: config.json: a file of the folder, 21 B" in done.lines
    )
