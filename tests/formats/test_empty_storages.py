"""Empty storages that several dtypes see: torch writes them under one key, and gives
each dtype a storage of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from opcodes import pickled, tensor, torch_zip
from process import check_error, ckpt
from torch.package import PackageExporter, PackageImporter


def state() -> dict[str, Any]:
    empty = torch.empty(0)
    views = {
        f"as_{dtype}": empty.view(dtype)
        for dtype in (torch.int32, torch.bool, torch.float16)
    }
    return {
        "w": torch.ones(2),
        "a": empty,
        "again": empty,
        **views,
        "shaped": empty.view(0, 3),
    }


def check_same(loaded: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(loaded) == list(expected)
    for name, wanted in expected.items():
        assert (loaded[name].dtype, loaded[name].shape) == (
            wanted.dtype,
            wanted.shape,
        ), name
        assert loaded[name].tolist() == wanted.tolist()


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "x.pth"
    torch.save(state(), path, _use_new_zipfile_serialization=request.param)
    check_same(torch.load(path), state())
    return path


def test_they_are_read(saved: Path) -> None:
    assert ckpt("inspect", saved).code == 0
    assert ckpt("verify", saved).code == 0
    assert ckpt("stats", saved).code == 0
    assert len(ckpt("sum", saved).lines) == len(state())


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (("convert",), ".pth"),
        (("convert",), ".safetensors"),
        (("convert", "--format", "torch-legacy"), ".pth"),
        (("slim",), ".pth"),
        (("rehome", "--to", "cpu", "--force"), ".pth"),
        (("salvage",), ".pth"),
    ],
)
def test_they_are_written(command: tuple[str, ...], ending: str, saved: Path) -> None:
    out = saved.with_name(f"out{ending}")
    done = ckpt(*command, saved, "-o", out)
    assert done.code == 0, done

    assert ckpt("diff", saved, out, "--fail-on", "differ").code == 0
    if ending == ".pth":
        check_same(torch.load(out), state())


def test_a_device_changes_in_place(saved: Path) -> None:
    if ckpt("inspect", saved).out.find(b"PyTorch zip") < 0:
        pytest.skip("the format before 1.6 is not changed in place")
    before = saved.read_bytes()
    assert ckpt("rehome", saved, "--to", "cuda:0", "--in-place").code == 0
    check_same(torch.load(saved, map_location="cpu"), state())

    assert ckpt("rehome", saved, "--undo").code == 0
    assert saved.read_bytes() == before


@pytest.mark.needs("archives")
def test_a_package(tmp_path: Path) -> None:
    path, out = tmp_path / "x.pt", tmp_path / "out.pth"
    with PackageExporter(str(path)) as exporter:
        exporter.save_pickle("m", "x.pkl", state())
    check_same(PackageImporter(str(path)).load_pickle("m", "x.pkl"), state())

    assert ckpt("convert", path, "-o", out).code == 0
    check_same(torch.load(out)["m/x"], state())


def test_a_storage_with_bytes_has_one_dtype(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    tensors = [tensor(cls=cls) for cls in ("FloatStorage", "IntStorage")]
    path.write_bytes(torch_zip(pickled(tensors)))

    check_error(ckpt("inspect", path), "storage 0 is used with two types or sizes")


def test_untyped_views_of_an_empty_tensor(tmp_path: Path) -> None:
    """Dtypes without a class of storages are seen through an untyped one."""
    path, out = tmp_path / "x.pth", tmp_path / "out.pth"
    empty = torch.empty(0)
    expected = {"a": empty, "b": empty.view(torch.uint32)}
    torch.save(expected, path)

    assert ckpt("convert", path, "-o", out).code == 0
    check_same(torch.load(out), expected)
