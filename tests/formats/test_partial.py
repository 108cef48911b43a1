"""What is left of a checkpoint that lacks a file, of every family: refused, and with
--partial written, listed, exit 1.
"""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import deepspeeds
import oracle
import pytest
import torch
from deepspeeds import TAG
from folders import change
from frameworks_dcp import in_two_files
from inside import inside
from needs import skip_without
from safetensors.torch import save_file

import ckpt

pytestmark = oracle.QUIET


def shards(folder: Path, ending: str) -> None:
    """A model of three shards with its index, of which the second is missing."""
    folder.mkdir()
    files: dict[str, str] = {}
    for number in range(3):
        name = f"model-0000{number + 1}-of-00003.{ending}"
        tensors = {
            f"layers.{number}.{key}": torch.full((2, 2), float(number))
            for key in ("w", "b")
        }
        files |= dict.fromkeys(tensors, name)
        save_file(tensors, folder / name) if ending == "safetensors" else torch.save(
            tensors, folder / name
        )
    stem = "model.safetensors" if ending == "safetensors" else "pytorch_model.bin"
    (folder / f"{stem}.index.json").write_text(json.dumps({"weight_map": files}))


def ranks_of(name: str, file: str) -> Callable[[Path, Path], str]:
    def make(folder: Path, ranks: Path) -> str:
        shutil.copytree(ranks / name, folder)
        return file

    return make


def in_order(folder: Path, ranks: Path) -> str:
    """Files whose state dicts are OrderedDicts, as `state_dict()` gives them."""
    skip_without("fsdp")
    shutil.copytree(ranks / "fsdp2", folder)
    for path in folder.iterdir():
        change(path, lambda state: state.update(model=OrderedDict(state["model"])))
    return "model_world_size_4_rank_1.pt"


def made(stage: int) -> Callable[[Path, Path], str]:
    def make(folder: Path, ranks: Path) -> str:
        deepspeeds.write(folder, stage)
        return f"{TAG}/zero_pp_rank_1_mp_rank_00_optim_states.pt"

    return make


def sharded(ending: str) -> Callable[[Path, Path], str]:
    def make(folder: Path, ranks: Path) -> str:
        shards(folder, ending)
        return f"model-00002-of-00003.{ending}"

    return make


def dcp(folder: Path, ranks: Path) -> str:
    in_two_files(folder, 3)
    return "__0_1.distcp"


FAMILIES: dict[str, tuple[Callable[[Path, Path], str], str, str]] = {
    "dcp": (dcp, "", ""),
    "dcp-hf": (ranks_of("hf", "shard-00002-model-00001-of-00002.safetensors"), "", ""),
    "fsdp": (
        ranks_of("fsdp2", "model_world_size_4_rank_2.pt"),
        "model.bn.running_mean",
        "model.up.weight",
    ),
    "fsdp, ordered": (in_order, "model.bn.running_mean", "model.up.weight"),
    "fsdp1": (
        ranks_of("fsdp1", "model_world_size_2_rank_1.pt"),
        "model.bn.running_mean",
        "model.up.weight",
    ),
    "accelerate": (
        ranks_of("accelerate", "pytorch_model_fsdp_rank1.bin"),
        "bn.running_mean",
        "up.weight",
    ),
    "zero 1": (made(1), "model.emb.weight", "up.weight"),
    "zero 2": (made(2), "model.emb.weight", "up.weight"),
    "zero 3": (made(3), "model.scale", "up.weight"),
    "safetensors": (sharded("safetensors"), "layers.2.w", "layers.1.w"),
    "bin": (sharded("bin"), "layers.2.w", "layers.1.w"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["convert", "slim", "rehome"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_tensors_are_written(
    family: str, command: str, ranks: Path, tmp_path: Path
) -> None:
    make, whole, lost = FAMILIES[family]
    file = make(tmp_path / "c", ranks)
    with ckpt.open(tmp_path / "c") as checkpoint:
        full = {name: checkpoint[name].torch() for name in checkpoint}
    (tmp_path / "c" / file).unlink()
    if family == "dcp-hf":  # what only this file held, nothing names
        with ckpt.open(tmp_path / "c") as checkpoint:
            full = {name: full[name] for name in checkpoint}
    out = "o.safetensors" if family == "dcp-hf" and command != "slim" else "o.pth"
    words = (command, "c", "-o", out)
    done = inside(*words, cwd=tmp_path)
    assert done.code == 2 and not (tmp_path / out).exists(), done
    (line,) = [line for line in done.complaints if "not be missed" not in line]
    ways = (
        "--partial writes the whole tensors only)",
        "(--weights module)",
        "(--section module)",
    )
    assert line.endswith(ways), line
    done = inside(*words, "--partial", "--json", cwd=tmp_path)
    assert done.code == 1, done
    report = json.loads(done.out)
    listed = {row["name"] for row in report["left_out"]}
    with ckpt.open(tmp_path / out) as checkpoint:
        found = {name: checkpoint[name].torch() for name in checkpoint}
    assert found and len(found) == report["tensors"]
    for name, tensor in found.items():
        each = name if name in full else f"model.{name}"
        assert torch.equal(tensor, full[each]) and name not in listed, name
    if whole:
        assert not {whole, whole.removeprefix("model.")}.isdisjoint(found)
        assert not {lost, lost.removeprefix("model.")}.intersection(found)
        assert lost in listed
    # Nothing is left out in silence.
    kept = {name if name in full else f"model.{name}" for name in found}
    sections = {name for name in listed if "." not in name}
    for name in full.keys() - kept:
        said = {
            name,
            name.rpartition(".")[0],
            name.removeprefix("model."),
            name.split(".")[0],
        }
        assert said & (listed | sections), name


@pytest.mark.parametrize("words", [("convert",), ("slim",)])
def test_without_any_whole_tensor_there_is_no_advice(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    shards(tmp_path / "c", "safetensors")
    for path in (tmp_path / "c").glob("*.safetensors"):
        path.unlink()
    done = inside(*words, "c", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 2 and b"--partial" not in done.err, done
    assert inside(*words, "c", "--partial", "-o", "o.pth", cwd=tmp_path).code == 2


@pytest.mark.parametrize("command", ["convert", "slim", "rehome", "strip", "rename"])
def test_of_a_whole_checkpoint_nothing_is_lost(command: str, tmp_path: Path) -> None:
    torch.save({"module.w": torch.ones(2)}, tmp_path / "c.pth")
    more = ("--sub", "s/w/v/") if command == "rename" else ()
    assert (
        inside(command, "c.pth", *more, "--partial", "-o", "o.pth", cwd=tmp_path).code
        == 0
    )
