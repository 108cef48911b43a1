"""Files that torch saved on a GPU (tests/gpu_files): their devices, and what becomes of
them on a machine without one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside
from process import ckpt

FOLDER = Path(__file__).resolve().parents[1] / "gpu_files"
PICKLED = (
    "ddp_step1.pth",
    "fused.pth",
    "capturable.pth",
    "scaled.pth",
    "lstm.pth",
    "mixed.pth",
)
NO_GPU = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a bare torch.load works with a GPU"
)


def leaves(
    node: Any, path: tuple[Any, ...] = ()
) -> dict[tuple[Any, ...], torch.Tensor]:
    if isinstance(node, torch.Tensor):
        return {path: node}
    rows = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    return {
        key: tensor
        for name, value in rows
        for key, tensor in leaves(value, (*path, name)).items()
    }


def tags(path: Path) -> dict[str, int]:
    """The device that torch sees for each storage of a file, and how many storages are
    there: no GPU is needed.
    """
    seen: dict[str, int] = {}

    def note(storage: Any, location: str) -> Any:
        seen[location] = seen.get(location, 0) + 1
        return storage

    torch.load(path, map_location=note, weights_only=False)
    return seen


def report(path: Path, *arguments: str) -> dict[str, Any]:
    done = inside("inspect", path.name, "--json", *arguments, cwd=path.parent)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.mark.parametrize("name", PICKLED)
def test_each_storage_is_where_torch_saved_it(name: str) -> None:
    said: dict[str, int] = {}
    for row in report(FOLDER / name)["storages"]:
        said[row["device"]] = said.get(row["device"], 0) + 1
    said.pop("meta", None)  # without a storage in the file
    assert said == tags(FOLDER / name) and said["cuda:0"] > 5


@NO_GPU
@pytest.mark.parametrize("name", PICKLED)
def test_a_file_that_a_bare_load_refuses_loads_once_rehomed(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="CUDA device"):
        torch.load(FOLDER / name, weights_only=True)

    done = ckpt("rehome", FOLDER / name, "--to", "cpu", "-o", tmp_path / "b.pth")

    assert done.code == 0, done.err
    found = leaves(torch.load(tmp_path / "b.pth", weights_only=True))
    truth = leaves(torch.load(FOLDER / name, map_location="cpu", weights_only=True))
    assert found.keys() == truth.keys() and len(found) > 20
    for path, tensor in truth.items():
        assert found[path].device.type in ("cpu", "meta"), path
        assert tensor.is_sparse or found[path].stride() == tensor.stride(), path
        assert tensor.is_meta or torch.equal(dense(found[path]), dense(tensor)), path


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements, for torch compares no float8."""
    return (
        tensor.to_dense().contiguous().flatten().view(torch.uint8)
        if tensor.numel()
        else tensor
    )


@pytest.mark.parametrize(
    ("name", "loader"),
    [
        ("fused.pth", "torch.load"),
        ("scripted.pt", "torch.jit.load"),
        ("exported.pt2", "torch.export.load"),
    ],
)
def test_the_finding_names_what_loads_the_file(name: str, loader: str) -> None:
    found = {row["code"]: row["message"] for row in report(FOLDER / name)["findings"]}
    assert found["cuda"].startswith(f"A bare {loader} puts ")


def test_a_step_of_ddp(tmp_path: Path) -> None:
    done = ckpt(
        "diff",
        FOLDER / "ddp_step0.pth",
        FOLDER / "ddp_step1.pth",
        "--section",
        "model",
        "--name-only",
    )
    trained = {
        f"model.module.{name}"
        for name in ("bn1", "conv2", "fc")
        for name in (f"{name}.weight", f"{name}.bias")
    }
    assert (
        done.code == 1
        and {
            line for line in done.lines if "running" not in line and "num_" not in line
        }
        == trained
    )
    index = json.loads(
        ckpt("inspect", FOLDER / "ddp_step1.pth", "--json", "--index", "4-5").out
    )["index"]
    for row, truth in zip(
        index["names"], ("spare.weight", "spare.bias"), strict=True
    ):  # DDP named these in its error
        assert f"model.module.{truth}" in row["candidates"]


def test_weights_that_cudnn_packed_are_no_tied_weights() -> None:
    found = report(FOLDER / "lstm.pth")
    assert "tied" not in {row["code"] for row in found["findings"]}
    assert sum(row["name"].startswith("model.lstm.") for row in found["tensors"]) == 16


def test_dtensors_of_one_gpu_are_made_plain(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "dtensors.pth", tmp_path)
    done = ckpt("convert", "dtensors.pth", "--plain", "-o", "plain.pth", cwd=tmp_path)
    assert done.code == 0, done.err
    found = leaves(
        torch.load(tmp_path / "plain.pth", map_location="cpu", weights_only=True)
    )
    assert (
        "0 of a mesh of 1 rank; 31 tensors whole"
        in ckpt("inspect", FOLDER / "dtensors.pth").out.decode()
    )
    rows = {
        tuple(row["path"]): row for row in report(FOLDER / "dtensors.pth")["tensors"]
    }
    assert {path: list(tensor.shape) for path, tensor in found.items()} == {
        path: row["shape"] for path, row in rows.items()
    }
    assert sum(row["layout"] == "wrapper" for row in rows.values()) == 22
