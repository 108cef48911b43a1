"""Tied weights: safetensors hold them once, and note the other name in the metadata, as `safetensors.torch.save_model` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from inside import inside
from torch import nn


class Net(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(layers))
        self.head.weight = self.embed.weight


@pytest.fixture(params=[1, 40])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    net = Net(request.param)
    torch.save(net.state_dict(), tmp_path / "a.pth")
    safetensors.torch.save_model(net, str(tmp_path / "a.safetensors"))
    assert inside("convert", "a.pth", "-o", "b.safetensors", cwd=tmp_path).code == 0
    (tmp_path / "shards").mkdir()
    words = ("convert", "a.pth", "-o", "shards/a.safetensors", "--shard-size", "360")
    assert inside(*words, cwd=tmp_path).code == 0
    return tmp_path


CONVERTED = ("a.safetensors", "b.safetensors", "shards")


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_file_holds_the_same_weights(name: str, files: Path) -> None:
    """head.weight was called removed, and the sums of the source damaged."""
    number = len(torch.load(files / "a.pth"))
    for sides in (("a.pth", name), (name, "a.pth"), (name, "b.safetensors")):
        done = inside("diff", *sides, cwd=files)
        assert done.code == 0 and done.lines[-1] == f"same: {number} tensors", done
    sums = [{*inside("sum", each, cwd=files).lines} for each in ("a.pth", name)]
    assert sums[0] == sums[1] and len(sums[0]) == number
    for source, checked in (("a.pth", name), (name, "a.pth")):
        (files / "sums").write_bytes(inside("sum", source, cwd=files).out)
        assert inside("verify", checked, "--sums", "sums", cwd=files).code == 0
        assert inside("verify", checked, "--like", source, cwd=files).code == 0
        assert inside("convert", checked, "--like", source, "-o", "c.pth", "--dry-run", cwd=files).code == 0


@pytest.mark.parametrize("name", CONVERTED)
def test_weights_that_are_tied_no_more_differ(name: str, files: Path) -> None:
    state = {key: tensor.clone() for key, tensor in torch.load(files / "a.pth").items()}
    state["head.weight"] = state["head.weight"] + 1
    torch.save(state, files / "b.pth")

    done = inside("diff", "b.pth", name, "--json", cwd=files)

    rows = {row["after"]: row["status"] for row in json.loads(done.out)["tensors"] if row["status"] != "same"}
    assert done.code == 1 and rows == {"head.weight": "changed"}
