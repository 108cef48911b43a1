"""Which files a folder or an index stands for."""

from __future__ import annotations

import json
from pathlib import Path

import oracle
import pytest
import safetensors.torch
import torch

from ckpt import formats
from ckpt.checkpoint import Checkpoint
from ckpt.errors import UnreadableError

pytestmark = oracle.QUIET
ONE, TWO = {"a.weight": torch.ones(2)}, {"b.weight": torch.zeros(2)}


def index(folder: Path, name: str, files: dict[str, dict[str, torch.Tensor]], **changes: str) -> Path:
    for file, state in files.items():
        if file.endswith(".safetensors"):
            safetensors.torch.save_file(state, folder / file)
        else:
            torch.save(state, folder / file)
    weight_map = {key: file for file, state in files.items() for key in state} | changes
    (folder / name).write_text(json.dumps({"weight_map": weight_map}))
    return folder / name


def opened(path: Path) -> Checkpoint:
    with formats.open(str(path)) as checkpoint:
        return checkpoint


def test_shards_stand_in_natural_order(tmp_path: Path) -> None:
    files = {f"m-{number}.bin": {f"{number}.weight": torch.ones(1)} for number in (10, 9, 1)}
    found = opened(index(tmp_path, "pytorch_model.bin.index.json", files))
    assert found.parts == ("m-1.bin", "m-9.bin", "m-10.bin")
    assert [entry.name for entry in found.tensors] == ["1.weight", "9.weight", "10.weight"]


def test_safetensors_come_before_pickles_and_one_file_before_shards(tmp_path: Path) -> None:
    index(tmp_path, "pytorch_model.bin.index.json", {"1.bin": ONE, "2.bin": TWO})
    assert opened(tmp_path).parts == ("1.bin", "2.bin")
    index(tmp_path, "model.safetensors.index.json", {"1.safetensors": ONE, "2.safetensors": TWO})
    found = opened(tmp_path)
    assert found.parts == ("1.safetensors", "2.safetensors")
    assert [notice.code for notice in found.notices] == ["unread-file"], "the other index was not read"
    torch.save(ONE, tmp_path / "pytorch_model.bin")
    assert opened(tmp_path).parts == ("1.safetensors", "2.safetensors")
    safetensors.torch.save_file(TWO, tmp_path / "model.safetensors")
    found = opened(tmp_path)
    assert [entry.name for entry in found.tensors] == ["b.weight"] and len(found.notices) == 3


def test_two_files_that_are_as_good_are_a_question(tmp_path: Path) -> None:
    for name in ("model.safetensors", "adapter_model.safetensors"):
        safetensors.torch.save_file(ONE, tmp_path / name)
    with pytest.raises(UnreadableError):
        opened(tmp_path)


def test_an_optimizer_beside_shards_is_a_part_once_and_only_of_a_folder(tmp_path: Path) -> None:
    path = index(tmp_path, "pytorch_model.bin.index.json", {"1.bin": ONE, "2.bin": TWO})
    for name in ("optimizer.pt", "optimizer.bin"):
        torch.save(
            {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"params": [0]}]}, tmp_path / name
        )
    found = opened(tmp_path)
    assert found.parts == ("1.bin", "2.bin", "optimizer.pt")
    assert [entry.name for entry in found.tensors][2:] == ["optimizer.state.0.exp_avg"]
    assert len({storage.id for storage in found.storages}) == 3
    assert opened(path).parts == ("1.bin", "2.bin")


def test_an_index_that_lies_is_noticed(tmp_path: Path) -> None:
    files = {"1.bin": {**ONE, "c.weight": torch.ones(1)}, "2.bin": TWO}
    path = index(tmp_path, "pytorch_model.bin.index.json", files, **{"a.weight": "2.bin"})
    assert [notice.tensors for notice in opened(path).notices] == [("a.weight",)]
    path.write_text(json.dumps({"weight_map": {"a.weight": "1.bin", "b.weight": "2.bin"}}))
    assert [notice.tensors for notice in opened(path).notices] == [("c.weight",)]


def test_a_tensor_in_two_shards_or_in_none_is_refused(tmp_path: Path) -> None:
    files = {"1.bin": {**ONE, "c.weight": torch.ones(1)}, "2.bin": {**ONE, **TWO}}
    path = index(tmp_path, "pytorch_model.bin.index.json", files)
    with pytest.raises(UnreadableError):
        opened(path)
    path = index(
        tmp_path, "pytorch_model.bin.index.json", {"1.bin": ONE, "2.bin": TWO}, **{"d.weight": "1.bin"}
    )
    with pytest.raises(UnreadableError):
        opened(path)
