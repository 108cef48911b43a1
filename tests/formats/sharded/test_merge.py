"""A checkpoint in several files says, writes and takes the same values as one file of
the same tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import safetensors.torch
import torch
from inside import inside
from process import check_error, ckpt

from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.tree.find import metadata_of

pytestmark = oracle.QUIET

State = dict[str, torch.Tensor]
ENDINGS = ("safetensors", "bin")


def state(seed: int, prefix: str = "") -> State:
    """A model in five layers; the names in the order of the model, which is that of the
    alphabet too.
    """
    torch.manual_seed(seed)
    made: State = {}
    for layer in range(4):
        made[f"{prefix}layers.{layer}.bias"] = torch.randn(3)
        made[f"{prefix}layers.{layer}.weight"] = torch.randn(3, 4)
    made[f"{prefix}norm.num_batches_tracked"] = torch.tensor(seed)
    made[f"{prefix}norm.running_mean"] = torch.randn(3)
    made[f"{prefix}norm.running_var"] = torch.rand(3)
    return made


def sharded(folder: Path, tensors: State, ending: str, shards: int = 3) -> Path:
    """`tensors` dealt to shards one after the other, as `ending` says, with their
    index; its path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = {"safetensors": "model", "bin": "pytorch_model"}[ending]
    weight_map = {}
    for number in range(shards):
        name = f"{stem}-{number + 1:05}-of-{shards:05}.{ending}"
        part = {
            key: value
            for i, (key, value) in enumerate(tensors.items())
            if i % shards == number
        }
        weight_map |= dict.fromkeys(part, name)
        _save(part, folder / name)
    index = folder / f"{stem}.{ending}.index.json"
    size = sum(value.nbytes for value in tensors.values())
    index.write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map})
    )
    return index


def single(path: Path, tensors: State) -> Path:
    _save(tensors, path)
    return path


def _save(tensors: State, path: Path) -> None:
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    else:
        torch.save(tensors, path)


def values(path: Path) -> State:
    """What is in a file that was written."""
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    found: State = torch.load(path, weights_only=True)
    return found


def assert_holds(path: Path, expected: State) -> None:
    found = values(path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), (
            name
        )


def document(*arguments: str | Path, code: int = 0) -> Any:
    done = ckpt(*arguments, "--json")
    assert done.code == code, done
    return json.loads(done.out)


# --- warm starts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "out"),
    [("safetensors", "safetensors"), ("bin", "safetensors"), ("bin", "pt")],
)
def test_a_warm_start_into_shards_writes_the_new_values(
    tmp_path: Path, ending: str, out: str
) -> None:
    """The tree and the rows of the shards are over the same storages: what the report
    counts is what is written.
    """
    target = sharded(tmp_path / "target", state(1), ending)
    given = single(tmp_path / "given.safetensors", state(2))
    made = tmp_path / f"out.{out}"
    report = document("warmstart", given, "--into", target, "-o", made)
    assert report["coverage"]["share"] == 1.0
    assert_holds(made, state(2))


@pytest.mark.needs("folders")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_warm_start_into_a_folder_of_shards_keeps_what_does_not_fit(
    tmp_path: Path, ending: str
) -> None:
    mine, theirs = state(1), state(2)
    del theirs["layers.1.bias"]
    theirs["layers.2.weight"] = torch.zeros(9, 9)
    theirs["norm.running_mean"] = theirs["norm.running_mean"].half()
    sharded(tmp_path / "target", mine, ending)
    given = single(tmp_path / "given.safetensors", theirs)
    made = tmp_path / "out.safetensors"
    report = document("warmstart", given, "--into", tmp_path / "target", "-o", made)
    totals = report["coverage"]["totals"]
    assert (totals["loaded"], totals["cast"], totals["kept"], totals["missing"]) == (
        8,
        1,
        1,
        1,
    )
    expected = {
        name: mine[name]
        if name in ("layers.1.bias", "layers.2.weight")
        else theirs[name].to(value.dtype)
        for name, value in mine.items()
    }
    assert_holds(made, expected)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_warm_start_from_shards_takes_their_values(
    tmp_path: Path, ending: str
) -> None:
    given = sharded(tmp_path / "given", state(2), ending)
    target = single(tmp_path / "target.pt", state(1))
    made = tmp_path / "out.pt"
    assert (
        document("warmstart", given, "--into", target, "-o", made)["coverage"]["share"]
        == 1.0
    )
    assert_holds(made, state(2))


@pytest.mark.needs("folders")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("command", [["strip"], ["warmstart"]])
def test_a_place_without_an_ending_is_answered_with_one(
    command: list[str], ending: str, tmp_path: Path
) -> None:
    sharded(tmp_path / "target", state(1, "module."), ending)
    single(tmp_path / "given.pt", state(2))
    words = (
        [*command, "target"]
        if command == ["strip"]
        else [*command, "given.pt", "--into", "target"]
    )
    (line,) = inside(*words, "-o", "my out", cwd=tmp_path).complaints
    assert "--format" not in line
    found = re.findall(r"-o '([^']+)'", line)
    assert found == (["my out.pth"] if ending == "bin" else []) + ["my out.safetensors"]
    for out in found:
        assert inside(*words, "-o", out, cwd=tmp_path).code == 0


# --- the other commands that write ----------------------------------------------------

Expected = Callable[[State], State]
REWRITES: dict[str, tuple[list[str], Expected]] = {
    "convert": (["convert"], lambda found: found),
    "convert --dtype": (
        ["convert", "--dtype", "bfloat16"],
        lambda found: {
            name: value.bfloat16() if value.is_floating_point() else value
            for name, value in found.items()
        },
    ),
    "strip": (
        ["strip"],
        lambda found: {
            name.removeprefix("module."): value for name, value in found.items()
        },
    ),
    "rename": (
        ["rename", "--sub", "s/layers/blocks/"],
        lambda found: {
            name.replace("layers", "blocks"): value for name, value in found.items()
        },
    ),
    "slim": (["slim"], lambda found: found),
}


@pytest.mark.parametrize("command", REWRITES)
@pytest.mark.parametrize(
    ("ending", "out"),
    [
        ("safetensors", "safetensors"),
        ("safetensors", "pt"),
        ("bin", "safetensors"),
        ("bin", "pt"),
    ],
)
def test_shards_are_rewritten_into_one_file_with_their_values(
    tmp_path: Path, ending: str, out: str, command: str
) -> None:
    arguments, expected = REWRITES[command]
    index = sharded(tmp_path / "shards", state(3, "module."), ending)
    made = tmp_path / f"out.{out}"
    done = ckpt(arguments[0], index, *arguments[1:], "-o", made)
    if (ending, out) == ("safetensors", "pt") and arguments[0] in ("strip", "rename"):
        # As of one file: what they say of themselves is no tensor of a state dict.
        check_error(done)
        assert not made.exists()
    else:
        assert done.code == 0, done
        assert_holds(made, expected(state(3, "module.")))


@pytest.mark.parametrize("ending", ENDINGS)
def test_shards_are_rewritten_into_other_shards_with_their_values(
    tmp_path: Path, ending: str
) -> None:
    index = sharded(tmp_path / "shards", state(3), ending)
    (tmp_path / "out").mkdir()
    done = ckpt(
        "convert",
        index,
        "--format",
        "safetensors",
        "--shard-size",
        "100",
        "-o",
        tmp_path / "out",
    )
    assert done.code == 0, done
    found: State = {}
    parts = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(parts) > 1
    for part in parts:
        found |= values(part)
    assert found.keys() == state(3).keys()
    assert all(torch.equal(found[name], value) for name, value in state(3).items())


def test_shards_of_pickles_move_to_another_device_with_their_values(
    tmp_path: Path,
) -> None:
    index = sharded(tmp_path / "shards", state(3), "bin")
    made = tmp_path / "out.pt"
    report = document("rehome", index, "--to", "cuda:1", "-o", made)
    assert [(row["from"], row["to"], row["count"]) for row in report["changes"]] == [
        ("cpu", "cuda:1", 11)
    ]
    with formats.open(str(made)) as written:
        assert {entry.tensor.device for entry in written.tensors} == {"cuda:1"}
    found = torch.load(made, map_location="cpu", weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in state(3).items())


# --- the commands that read -----------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_sums_and_numbers_of_shards_are_those_of_one_file(
    tmp_path: Path, ending: str
) -> None:
    index = sharded(tmp_path / "shards", state(4), ending)
    whole = single(tmp_path / "whole.safetensors", state(4))
    assert sorted(ckpt("sum", index).lines) == sorted(ckpt("sum", whole).lines)
    some, all_ = (document("stats", path, "--channels") for path in (index, whole))
    assert some["tensors"] == all_["tensors"] and len(some["tensors"]) == 11
    assert some["totals"] == all_["totals"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_shards_are_the_same_as_one_file_and_differ_where_it_does(
    tmp_path: Path, ending: str
) -> None:
    index = sharded(tmp_path / "shards", state(4), ending)
    whole = single(tmp_path / "whole.safetensors", state(4))
    assert document("diff", index, whole)["same"] is True
    other = state(4)
    other["layers.3.weight"][0, 0] += 1
    changed = single(tmp_path / "changed.safetensors", other)
    for before, after in ((index, changed), (changed, index)):
        found = document("diff", before, after, code=1)
        rows = {row["after"]: row["status"] for row in found["tensors"]}
        assert {name for name, status in rows.items() if status != "same"} == {
            "layers.3.weight"
        }


@pytest.mark.parametrize("ending", ENDINGS)
def test_shards_hold_what_their_sums_say_and_a_changed_value_does_not(
    tmp_path: Path, ending: str
) -> None:
    index = sharded(tmp_path / "shards", state(4), ending)
    sums = tmp_path / "sums"
    sums.write_bytes(ckpt("sum", single(tmp_path / "whole.safetensors", state(4))).out)
    assert document("verify", index, "--sums", sums)["verdict"] == "intact"
    other = state(4)
    other["norm.running_var"][2] += 1
    sharded(tmp_path / "shards", other, ending)
    found = document("verify", index, "--sums", sums, code=1)
    assert [row["tensors"] for row in found["problems"]] == [["norm.running_var"]]


def test_damage_in_a_shard_of_pickles_names_its_tensors_and_no_other(
    tmp_path: Path,
) -> None:
    """Storages of every shard are called 0, 1, 2 in their files: their ids tell them
    apart.
    """
    tensors = state(4)
    index = sharded(tmp_path / "shards", tensors, "bin")
    assert document("verify", index)["verdict"] == "intact"
    shard = tmp_path / "shards" / "pytorch_model-00002-of-00003.bin"
    data = bytearray(shard.read_bytes())
    at = data.index(tensors["layers.0.weight"].numpy().tobytes())
    data[at] ^= 1
    shard.write_bytes(data)
    found = document("verify", index, code=1)
    assert [row["tensors"] for row in found["problems"]] == [["layers.0.weight"]]


# --- the tree -------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_tree_of_shards_and_their_rows_are_over_the_same_storages(
    tmp_path: Path, ending: str
) -> None:
    with formats.open(str(sharded(tmp_path, state(5), ending))) as opened:
        assert (
            len({storage.id for storage in opened.storages})
            == len(opened.storages)
            == 11
        )
        assert {entry.tensor.storage for entry in opened.tensors} == set(
            opened.storages
        )
        copied = rewriting.unedited(opened)
        assert {entry.tensor.storage for entry in copied.tensors} == set(
            opened.storages
        )


def test_safetensors_shards_are_put_into_natural_order(tmp_path: Path) -> None:
    """Their format keeps no order: ten comes after nine, whatever shard holds it."""
    tensors = {f"layers.{number}.weight": torch.ones(1) for number in range(12)}
    with formats.open(str(sharded(tmp_path, tensors, "safetensors"))) as opened:
        assert [entry.name for entry in opened.tensors] == list(tensors)


@pytest.mark.needs("folders")
def test_the_optimizer_beside_shards_is_matched_with_their_parameters(
    tmp_path: Path,
) -> None:
    tensors = {
        "a.weight": torch.ones(2),
        "b.weight": torch.ones(3),
        "c.weight": torch.ones(4),
    }
    sharded(tmp_path, tensors, "bin")
    held = [torch.nn.Parameter(value) for value in tensors.values()]
    adam = torch.optim.AdamW(held)
    sum(value.sum() for value in held).backward()  # type: ignore[union-attr]
    adam.step()
    torch.save(adam.state_dict(), tmp_path / "optimizer.bin")
    found = document("inspect", tmp_path)
    assert [
        (row["name"], row["kind"], row["tensors"]) for row in found["sections"]
    ] == [
        ("", "model", 3),
        ("optimizer", "optimizer", 9),
    ]
    roles = {row["name"]: row["role"] for row in found["tensors"]}
    assert [roles[name] for name in tensors] == ["parameter"] * 3


def test_texts_of_the_shards_are_in_the_tree_once(tmp_path: Path) -> None:
    index = sharded(tmp_path, state(5), "safetensors")
    with formats.open(str(index)) as opened:
        assert metadata_of(opened.root) == {"format": "pt"}
        assert [value.name for value in opened.values] == ["__metadata__.format"]


@pytest.mark.needs("folders")
def test_one_file_of_parts_beside_its_optimizer_keeps_its_parts(tmp_path: Path) -> None:
    weights = {"a.weight": torch.ones(2)}
    torch.save({"model": weights, "extra": {"n": 1}}, tmp_path / "pytorch_model.bin")
    adam = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"params": [0]}]}
    torch.save(adam, tmp_path / "optimizer.pt")
    with formats.open(str(tmp_path)) as opened:
        found = [
            (part.name, part.kind, part.tensors) for part in Survey(opened).sections
        ]
    assert found == [("model", "model", 1), ("optimizer", "optimizer", 1)]


def test_texts_of_shards_are_not_lost_in_a_pickle_unseen(tmp_path: Path) -> None:
    """A pickle has no place for them: as for one file, `convert` is the command that
    says what it leaves out.
    """
    index = sharded(tmp_path / "in", state(5, "module."), "safetensors")
    done = ckpt("strip", index, "-o", tmp_path / "b.pt")
    check_error(done, "this ending does not fit: the result stays safetensors (-o ")
    assert not (tmp_path / "b.pt").exists()
