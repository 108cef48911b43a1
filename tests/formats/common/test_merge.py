"""The tree of a folder: its names, its views, and what every command makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import folders
import oracle
import pytest
import safetensors.torch
import torch
from inside import inside
from same import difference

import ckpt
from ckpt import formats
from ckpt.formats.common.merge import merge_members
from ckpt.model.account import Absence, Account
from ckpt.model.checkpoint import Checkpoint, Member
from ckpt.model.nodes import tensor_of
from ckpt.model.rows import replace
from ckpt.tree.find import node_at

pytestmark = oracle.QUIET


def document(*arguments: str, cwd: Path, code: int = 0) -> Any:
    done = inside(*arguments, "--json", cwd=cwd)
    assert done.code == code, done
    return json.loads(done.out)


@pytest.mark.needs("folders")
@pytest.mark.parametrize(
    "kind",
    [
        "trainer",
        "accelerate",
        "speechbrain",
        "adapter",
        "diffusers",
        "sentence_transformers",
    ],
)
def test_every_view_leads_to_its_node(kind: str, tmp_path: Path) -> None:
    getattr(folders, kind)(tmp_path / "f")
    with formats.open(str(tmp_path / "f")) as checkpoint:
        for entry in checkpoint.tensors:
            assert tensor_of(node_at(checkpoint.root, entry.path)) is entry.tensor
        for row in checkpoint.containers:
            assert all(
                entry.path[: len(row.path)] == row.path
                for entry in checkpoint.tensors[row.first : row.last]
            )
        for value in checkpoint.values:
            node_at(checkpoint.root, value.path)
        assert len({entry.name for entry in checkpoint.tensors}) == len(
            checkpoint.tensors
        )


def test_tied_tensors_of_a_part_have_both_names(tmp_path: Path) -> None:
    """safetensors keeps one of them, and the name of the other in its metadata, which
    only a root has.
    """
    folder = folders.accelerate(tmp_path / "c", models=2)
    state = {"a.weight": torch.ones(3, 3)}
    safetensors.torch.save_file(
        state, folder / "model_1.safetensors", {"format": "pt", "b.weight": "a.weight"}
    )
    with ckpt.open(folder) as checkpoint:
        assert [name for name in checkpoint if name.startswith("model_1.")] == [
            "model_1.a.weight",
            "model_1.b.weight",
        ]
    assert (
        inside("slim", "c", "--section", "model_1", "-o", "w.pth", cwd=tmp_path).code
        == 0
    )
    assert set(torch.load(tmp_path / "w.pth")) == {"a.weight", "b.weight"}


def test_two_checkpoints_of_a_run(tmp_path: Path) -> None:
    folders.trainer(tmp_path / "one", step=1)
    folders.trainer(tmp_path / "two", step=2)
    found = document("diff", "one", "two", cwd=tmp_path, code=1)
    roles = found["totals"]["roles"]
    assert roles["parameter"] == {"changed": 6}
    assert roles["optimizer"]["changed"] >= 12
    changed = {row["name"] for row in found["values"]}
    assert {
        "trainer_state.global_step",
        "trainer_state.epoch",
        "scheduler.last_epoch",
    } <= changed
    assert (
        not any("log_history" in name for name in changed) and not found["not_compared"]
    )
    assert document("diff", "one", "one", cwd=tmp_path)["same"]


def test_a_folder_and_its_file_of_weights(tmp_path: Path) -> None:
    """What only a folder can have is not compared, as a section of one side is not."""
    folder = folders.trainer(tmp_path / "c")
    found = document("diff", "c", str(folder / "model.safetensors"), cwd=tmp_path)
    assert found["same"]
    alone = {name.partition(" of ")[0] for name in found["not_compared"]}
    assert alone == {
        "optimizer",
        "scheduler",
        "rng_state",
        "trainer_state",
        "training_args",
        "config",
    }


@pytest.mark.parametrize("out", ["w.safetensors", "w.pth"])
def test_slim_takes_the_weights_alone(out: str, tmp_path: Path) -> None:
    folders.trainer(tmp_path / "c")
    done = inside("slim", "c", "-o", out, cwd=tmp_path)
    assert done.code == 0
    left = {
        line.split(": ")[1].split(" = ")[0]
        for line in done.lines
        if line.startswith("left out")
    }
    assert left == {
        "optimizer",
        "scheduler",
        "rng_state",
        "trainer_state",
        "training_args",
        "config",
    }
    loaded = (
        safetensors.torch.load_file(tmp_path / out)
        if out.endswith("safetensors")
        else torch.load(tmp_path / out, weights_only=True)
    )
    expected = safetensors.torch.load_file(tmp_path / "c" / "model.safetensors")
    assert (
        difference(dict(sorted(loaded.items())), dict(sorted(expected.items()))) is None
    )


def test_sums_and_stats(tmp_path: Path) -> None:
    folder = folders.trainer(tmp_path / "c")
    whole = inside("sum", "c", cwd=tmp_path).lines
    alone = inside("sum", str(folder / "model.safetensors"), cwd=tmp_path).lines
    assert whole == alone
    (tmp_path / "sums").write_text("\n".join(whole) + "\n")
    assert inside("verify", "c", "--sums", "sums", cwd=tmp_path).code == 0
    assert len(document("stats", "c", cwd=tmp_path)["tensors"]) == len(alone)


def test_what_the_optimizer_of_a_folder_says(tmp_path: Path) -> None:
    """`unused` and `--index` use it."""
    folder = folders.accelerate(tmp_path / "c", safe=False)
    state = torch.load(folder / "optimizer.bin")
    del state["state"][4], state["state"][5]
    torch.save(state, folder / "optimizer.bin")
    found = document("inspect", "c", cwd=tmp_path)
    (unused,) = (row for row in found["findings"] if row["code"] == "unused")
    assert unused["tensors"] == ["2.weight", "2.bias"]
    names = inside("inspect", "c", "--index", "0,5", cwd=tmp_path).lines
    assert [line.split()[1] for line in names[1:3]] == ["0.weight", "2.bias"]
    roles = {row["name"]: row["role"] for row in found["tensors"]}
    assert roles["1.running_mean"] == "buffer" and roles["1.weight"] == "parameter"


def test_optimizers_of_two_models_go_to_their_own(tmp_path: Path) -> None:
    folders.accelerate(tmp_path / "c", models=2, safe=False)
    found = document("inspect", "c", cwd=tmp_path)
    evidence = {
        row["name"]: row["evidence"]["trust"]
        for row in found["tensors"]
        if row["section"].startswith("pytorch")
    }
    assert {evidence["pytorch_model.0.weight"], evidence["pytorch_model_1.weight"]} <= {
        "certain",
        "strong",
    }


def test_convert_writes_all_of_it_or_the_model(tmp_path: Path) -> None:
    folder = folders.accelerate(tmp_path / "c", safe=False)
    assert inside("convert", "c", "-o", "all.pth", cwd=tmp_path).code == 0
    found = torch.load(tmp_path / "all.pth", weights_only=False)
    assert difference(found["optimizer"], torch.load(folder / "optimizer.bin")) is None
    assert found["custom_checkpoint_0"] == {"n": 7} and "0.weight" in found
    folders.diffusers(tmp_path / "p")
    done = inside("convert", "p", "-o", "x.safetensors", cwd=tmp_path)
    assert done.code == 2 and "--section text_encoder" in done.complaints[0]
    assert (
        inside(
            "convert", "p", "--section", "unet", "-o", "x.safetensors", cwd=tmp_path
        ).code
        == 0
    )
    assert set(safetensors.torch.load_file(tmp_path / "x.safetensors")) == {
        "bias",
        "weight",
    }


@pytest.mark.needs("folders")
@pytest.mark.parametrize("command", ["slim", "convert"])
def test_a_model_with_nothing_but_its_config(command: str, tmp_path: Path) -> None:
    folders.save(tmp_path / "m" / "model.safetensors", folders.weights(folders.model()))
    folders.save(tmp_path / "m" / "config.json", {"model_type": "net"})
    done = inside(command, "m", "-o", "w.safetensors", cwd=tmp_path)
    option = "-o FOLDER --with-config"
    assert (
        done.code == 0
        and f"left out: config = {{'model_type': 'net'}}  ({option} keeps config.json)"
        in done.lines
    ), done
    assert len(safetensors.torch.load_file(tmp_path / "w.safetensors")) == 9


def opened(path: Path) -> Checkpoint:
    """Return a checkpoint with one tensor, as the ending of its name says."""
    state = {path.stem: torch.ones(2)}
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return formats.open(str(path))


def test_the_order_of_a_folder_is_kept_where_all_of_its_models_keep_theirs(
    tmp_path: Path,
) -> None:
    """Optimizers and other files beside the models say nothing of it."""
    ordered, loose = opened(tmp_path / "a.pth"), opened(tmp_path / "b.safetensors")
    for is_model, expected in ((True, False), (False, True)):
        members = [
            Member("a.pth", "", ordered, is_model=True),
            Member("b", "b", loose, is_model=is_model),
        ]
        assert merge_members("c", "folder", members).traits.keeps_order is expected
    ordered.close()
    loose.close()


def test_what_files_leave_out_is_named_below_their_keys(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "a.pth"), opened(tmp_path / "b.pth")
    second = replace(second, account=Account(left_out=(Absence("w", "damaged"),)))
    first = replace(first, account=Account(left_out=(Absence("v", "cut off"),)))
    found = merge_members(
        "c",
        "folder",
        [Member("a.pth", "", first, is_model=True), Member("b.pth", "b", second)],
    )
    assert found.account.left_out == (("v", "cut off"), ("b.w", "damaged"))
    found.close()
