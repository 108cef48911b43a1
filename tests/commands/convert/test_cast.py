"""`--dtype`: every floating tensor of the model has the new dtype or is listed,
whatever holds it and whatever is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeeds
import folders
import frameworks_dcp
import oracle
import pytest
import torch
from inside import inside
from safetensors.torch import save_file

import ckpt
from ckpt import formats
from ckpt.evidence.survey import Survey

pytestmark = oracle.QUIET

FORMATS = {
    "o.pth": "torch-zip",
    "o.pt": "torch-legacy",
    "o.safetensors": "safetensors",
    "o.dcp": "dcp",
}


def state(count: int, key: str = "layer") -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {f"{key}{number}.weight": torch.randn(2, 3) for number in range(count - 1)}
    return {**made, f"{key}.bias": torch.randn(5).double()}


def _dcp(folder: Path, _: Path) -> Path:
    return frameworks_dcp.save(folder / "d", {"model": state(3)})


def _large_dcp(folder: Path, _: Path) -> Path:
    return frameworks_dcp.save(folder / "d", {"model": state(300, "x" * 120)})


def _deepspeed(stage: int) -> Callable[[Path, Path], Path]:
    return lambda folder, _: deepspeeds.write(folder / "d", stage, dtype=torch.bfloat16)


def _accelerate(folder: Path, _: Path) -> Path:
    (folder / "d").mkdir()
    return folders.accelerate(folder / "d")


def _accelerate_fsdp(folder: Path, _: Path) -> Path:
    (folder / "d").mkdir()
    return frameworks_dcp.accelerate(folder / "d")[0]


def _file(name: str, write: Callable[[Path], None]) -> Callable[[Path, Path], Path]:
    def make(folder: Path, _: Path) -> Path:
        write(folder / name)
        return folder / name

    return make


def _script(path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(4, 2), torch.randn(2, 4)).save(str(path))


SOURCES: dict[str, Callable[[Path, Path], Path]] = {
    "dcp": _dcp,
    "dcp of 300": _large_dcp,
    "dcp-hf": lambda _, ranks: ranks / "hf",
    "fsdp2": lambda _, ranks: ranks / "fsdp2",
    "hsdp": lambda _, ranks: ranks / "hsdp",
    "fsdp1": lambda _, ranks: ranks / "fsdp1",
    "accelerate of ranks": lambda _, ranks: ranks / "accelerate",
    "deepspeed 1": _deepspeed(1),
    "deepspeed 2": _deepspeed(2),
    "deepspeed 3": _deepspeed(3),
    "accelerate": _accelerate,
    "accelerate of dcp": _accelerate_fsdp,
    "zip": _file("a.pth", lambda path: torch.save(state(3), path)),
    "legacy": _file(
        "a.pth",
        lambda path: torch.save(state(3), path, _use_new_zipfile_serialization=False),
    ),
    "safetensors": _file("a.safetensors", lambda path: save_file(state(3), path)),
    "script": _file("a.pt", _script),
}


def written(path: Path, out: Path, *options: str) -> dict[str, Any]:
    """What `ckpt convert` says of a file or a folder, the result at `out`."""
    to = ("-o", str(out), "--format", FORMATS[out.name])
    to += ("--optimizer-keys", "numbers") if out.name == "o.dcp" else ()
    done = inside(
        "convert", str(path), *to, "--drop-other", "--json", *options, cwd=out.parent
    )
    assert done.code == 0, done
    document: dict[str, Any] = json.loads(done.out)
    return document


def of_model(path: Path) -> dict[str, str]:
    """The dtypes of the floating tensors of the models in a file or a folder."""
    with formats.open(str(path)) as checkpoint:
        return {
            section.relative(entry.name): entry.tensor.dtype.name
            for section in Survey(checkpoint).weights(None)
            for entry in section.entries
            if entry.tensor.dtype.kind == "float"
        }


@pytest.mark.slow
@pytest.mark.parametrize("out", FORMATS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_float_of_the_model_has_the_dtype(
    source: str, out: str, tmp_path: Path, ranks: Path
) -> None:
    path = SOURCES[source](tmp_path, ranks)
    (tmp_path / "cast").mkdir()
    written(path, tmp_path / "o.safetensors")
    report = written(path, tmp_path / "cast" / out, "--dtype", "float16")
    found = of_model(tmp_path / "cast" / out)
    assert len(found) >= len(of_model(tmp_path / "o.safetensors"))
    assert set(found.values()) == {"float16"}
    assert {row["what"] for row in report["left_alone"]} <= {
        "an optimizer keeps its precision"
    }
    with (
        ckpt.open(tmp_path / "o.safetensors") as before,
        ckpt.open(tmp_path / "cast" / out) as after,
    ):
        names = {name.removeprefix("model."): name for name in after}
        for name in before:
            wanted = before[name].torch()
            wanted = wanted.half() if wanted.is_floating_point() else wanted
            assert torch.equal(after[names[name]].torch(), wanted), name


@pytest.mark.parametrize("out", ["o.pth", "o.safetensors", "o.dcp"])
def test_what_keeps_its_dtype_is_listed(out: str, tmp_path: Path) -> None:
    pairs = torch.arange(6, dtype=torch.uint8).view(2, 3).view(torch.float4_e2m1fn_x2)
    torch.save({**state(3), "pairs.weight": pairs}, tmp_path / "a.pth")
    report = written(tmp_path / "a.pth", tmp_path / out, "--dtype", "float16")
    assert report["left_alone"] == [
        {
            "name": "pairs.weight",
            "what": "float4_e2m1fn_x2, which is not cast",
            "bytes": 6,
        }
    ]


def test_sections_that_keep_their_dtype_are_listed(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    whole = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "noise": torch.randn(5),
        "epoch": 1,
    }
    torch.save(whole, tmp_path / "a.pth")
    report = written(tmp_path / "a.pth", tmp_path / "o.pth", "--dtype", "bfloat16")
    assert {
        row["name"]: (row["what"], row["bytes"]) for row in report["left_alone"]
    } == {
        "optimizer": ("an optimizer keeps its precision", 72),
        "noise": ("not among the weights that are cast", 20),
    }
    loaded = torch.load(tmp_path / "o.pth")
    assert (
        loaded["optimizer"]["state"][0]["exp_avg"].dtype is torch.float32
        and loaded["noise"].dtype is torch.float32
    )
    assert loaded["model"]["weight"].dtype is torch.bfloat16
    (tmp_path / "again").mkdir()
    assert not written(
        tmp_path / "a.pth", tmp_path / "again" / "o.pth", "--dtype", "float32"
    )["left_alone"]


def test_tensors_without_data_are_listed(tmp_path: Path) -> None:
    empty = {
        f"l{number}.weight": torch.zeros(2, 3, device="meta") for number in range(3)
    }
    torch.save({**empty, "l.bias": torch.ones(2)}, tmp_path / "a.pth")
    report = written(tmp_path / "a.pth", tmp_path / "o.pth", "--dtype", "bfloat16")
    assert {row["name"] for row in report["left_alone"]} == set(empty)
    assert {row["what"] for row in report["left_alone"]} == {
        "on meta, without data, which is not cast"
    }
    assert (
        torch.load(tmp_path / "o.pth", weights_only=True)["l.bias"].dtype
        is torch.bfloat16
    )


@pytest.mark.needs("dcp", "fsdp")
def test_a_chain_of_files_keeps_the_dtype(tmp_path: Path, ranks: Path) -> None:
    written(ranks / "fsdp2", tmp_path / "o.dcp", "--dtype", "bfloat16")
    assert set(of_model(tmp_path / "o.dcp").values()) == {"bfloat16"}
    written(tmp_path / "o.dcp", tmp_path / "o.pth", "--dtype", "float16")
    written(tmp_path / "o.pth", tmp_path / "o.safetensors")
    assert set(of_model(tmp_path / "o.safetensors").values()) == {"float16"}
