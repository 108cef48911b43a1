"""A file that is a part of a checkpoint says so, and names the command for all of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from inside import inside
from process import SAMPLES
from safetensors.torch import save_file

import ckpt

SHARD = "model-00001-of-00002.safetensors"


def lines_of(path: str, folder: Path) -> list[str]:
    """The lines of the screen about what a file is a part of."""
    done = inside("inspect", path, cwd=folder)
    assert done.code == 0, done
    return [line for line in done.lines if line.startswith("  part of")]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder with two shards and their index."""
    return Path(shutil.copytree(SAMPLES / "sharded", tmp_path / "my run"))


def test_a_shard_with_an_index(shards: Path) -> None:
    assert lines_of(f"my run/{SHARD}", shards.parent) == [
        "  part of  my run, 4 files (ckpt inspect 'my run')"
    ]
    assert lines_of(SHARD, shards) == [
        "  part of  this folder, 4 files (ckpt inspect .)"
    ]
    done = inside("inspect", f"my run/{SHARD}", "--json", cwd=shards.parent)
    assert json.loads(done.out)["file"]["part_of"] == "my run"


def test_shards_without_an_index_and_one_alone(shards: Path) -> None:
    (shards / "model.safetensors.index.json").unlink()
    (shards / "config.json").unlink()
    assert lines_of(SHARD, shards) == [
        "  part of  this folder, 2 files (ckpt inspect .)"
    ]
    (shards / "model-00002-of-00002.safetensors").unlink()
    # The folder says which one is missing.
    assert lines_of(SHARD, shards) == [
        "  part of  this folder, 1 file (ckpt inspect .)"
    ]
    assert b"1 of 2 shards missing" in inside("inspect", ".", cwd=shards).out


def test_an_index_that_does_not_name_the_file(shards: Path) -> None:
    """A file beside a set is no part of it."""
    stray = "other-00001-of-00003.safetensors"
    save_file({"a": torch.zeros(2)}, shards / stray)
    assert lines_of(stray, shards) == []


def test_a_file_in_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    """The name alone decides nothing."""
    torch.save({"a.weight": torch.zeros(2)}, tmp_path / "model.pth")
    torch.save({"a.weight": torch.zeros(2)}, tmp_path / "rank0.pth")
    assert lines_of("model.pth", tmp_path) == []
    assert lines_of("rank0.pth", tmp_path) == []
    assert ckpt.inspect(tmp_path / "model.pth").to_json()["file"]["part_of"] is None


def test_an_adapter_beside_its_settings(tmp_path: Path) -> None:
    """The file does not have the alpha, and its folder has."""
    shutil.copytree(SAMPLES / "lora", tmp_path / "lora")
    assert lines_of("lora/adapter_model.safetensors", tmp_path) == [
        "  part of  lora, 2 files (ckpt inspect lora)"
    ]
    assert b"alpha 8" in inside("inspect", "lora", cwd=tmp_path).out


def test_an_adapter_alone_is_no_part(tmp_path: Path) -> None:
    name = "adapter_model.safetensors"
    shutil.copy(SAMPLES / "lora" / name, tmp_path)
    assert lines_of(name, tmp_path) == []
