"""Recipes over the files of ranks: read as one checkpoint, and written as files again."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import kills
import numpy as np
import pytest
import relaid
import torch
from inside import inside
from needs import skip_without
from relaid import RANKED, State, holds

import ckpt
from ckpt.bytes import target
from ckpt.ext.layouts.document import parse_recipe
from ckpt.model.errors import CkptError, LossError, UnreadableError, UsageError
from ckpt.model.limits import Limits


def llama(seed: int) -> State:
    return relaid.llama(np.random.default_rng(seed))


def side(kind: str, folder: Path | str) -> str:
    """The words that name the files of ranks in a folder."""
    return f"{folder}/part.*.pt" if kind == "pattern" else str(folder)


def made_pair(kind: str, seed: int, folder: Path) -> tuple[str, Path]:
    """The paths of one checkpoint, whole and in files of ranks."""
    state = llama(seed)
    whole = relaid.saved(state, folder / f"whole{seed}.safetensors")
    ranks = folder / f"ranks{seed}"
    relaid.saved_files(relaid.rank_files(kind, state), ranks)
    return whole, ranks


def files_below(folder: Path | str) -> dict[str, bytes]:
    """The bytes of all files below a folder, by their paths."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def same_objects(mine: Any, other: Any) -> bool:
    """Tell whether two loaded objects have the same keys, values and tensors."""
    if isinstance(mine, torch.Tensor):
        return mine.dtype == other.dtype and torch.equal(mine, other)
    if isinstance(mine, dict):
        return mine.keys() == other.keys() and all(
            same_objects(value, other[key]) for key, value in mine.items()
        )
    return type(mine) is type(other) and bool(mine == other)


def holds_ranks(folder: str | None, files: dict[str, Any]) -> bool:
    """Tell whether a folder has exactly these files with these objects."""
    assert folder is not None
    found = {name: torch.load(Path(folder) / name) for name in files_below(folder)}
    return same_objects(found, files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a pair of Megatron, the recipe of it, and another whole one."""
    skip_without("folders")
    whole, ranks = made_pair("megatron", 1, tmp_path)
    ckpt.recipe(whole, ranks, out=tmp_path / "there.json")
    ckpt.recipe(ranks, whole, out=tmp_path / "back.json")
    made_pair("megatron", 2, tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", RANKED)
def test_ranks_are_made_and_joined(kind: str, tmp_path: Path) -> None:
    whole, ranks = made_pair(kind, 1, tmp_path)
    other, other_ranks = made_pair(kind, 2, tmp_path)
    there, back = tmp_path / "there.json", tmp_path / "back.json"
    assert ckpt.recipe(whole, side(kind, ranks), out=there).is_whole
    assert ckpt.recipe(side(kind, ranks), whole, out=back).is_whole
    assert ckpt.recipe(other, side(kind, other_ranks), check=there).is_whole
    wanted = relaid.rank_files(kind, llama(2))
    for number, words in enumerate(
        ({"recipe": there}, {"recipe": back, "reverse": True})
    ):
        out = ckpt.convert(other, out=tmp_path / f"made{number}", **words)  # type: ignore[arg-type]
        assert holds_ranks(out.path, wanted)
        assert out.saved is not None and out.saved.files == len(wanted)
    for number, words in enumerate(
        ({"recipe": back}, {"recipe": there, "reverse": True})
    ):
        out = ckpt.convert(
            side(kind, tmp_path / f"made{number}"),
            out=tmp_path / f"joined{number}.safetensors",
            **words,  # type: ignore[arg-type]
        )
        assert holds(out.path, llama(2))


def test_the_files_of_ranks_stand_in_the_recipe(folder: Path) -> None:
    document = json.loads((folder / "there.json").read_text())
    assert "ranks_of_a" not in document
    assert document["ranks_of_b"]["files"][1] == {
        "file": "mp_rank_00_001/model_optim_rng.pt",
        "key": "mp_rank_00_001",
    }
    assert document["ranks_of_b"]["dicts"] == [["model"]]
    assert document["ranks_of_b"]["values"] == {
        "iteration": 0,
        "checkpoint_version": 3.0,
    }
    turned = json.loads((folder / "back.json").read_text())
    assert turned["ranks_of_a"] == document["ranks_of_b"]


def test_what_a_recipe_does_not_keep_is_named(folder: Path) -> None:
    for path in (folder / "ranks1").glob("*/*.pt"):
        given = torch.load(path)
        given |= {"args": Namespace(x=1), "rng_state": [1], "number": len(str(path))}
        torch.save(given, path)
    path = folder / "ranks1/mp_rank_01_001/model_optim_rng.pt"
    torch.save(torch.load(path, weights_only=False) | {"number": 7}, path)
    ckpt.recipe(folder / "whole1.safetensors", folder / "ranks1", out=folder / "r.json")
    done = inside(
        "convert", "whole2.safetensors", "--recipe", "r.json", "-o", "out", cwd=folder
    )
    assert done.code == 0, done.err
    assert done.lines[2] == (
        "left out: args, rng_state, number: beside the tensors in the files of the "
        "example; a recipe keeps numbers alone"
    )
    assert done.lines[-1].startswith("wrote out with 4 files, ")
    found = torch.load(folder / "out/mp_rank_00_000/model_optim_rng.pt")
    assert found.keys() == {"model", "iteration", "checkpoint_version"}


@pytest.mark.parametrize("way", ["there.json", "back.json"])
def test_copies_that_differ_are_named(way: str, folder: Path) -> None:
    path = folder / "ranks2/mp_rank_01_001/model_optim_rng.pt"
    given = torch.load(path)
    given["model"]["decoder.final_layernorm.weight"][3] += 1
    torch.save(given, path)
    with pytest.raises(
        LossError, match=r"mp_rank_01_001.model.decoder.final_layernorm"
    ):
        ckpt.convert(
            folder / "ranks2",
            recipe=folder / way,
            reverse=way == "there.json",
            out=folder / "out.safetensors",
        )
    assert not (folder / "out.safetensors").exists()
    report = ckpt.recipe(
        folder / "whole2.safetensors", folder / "ranks2", check=folder / "there.json"
    )
    assert [row.name for row in report.left] == [
        "mp_rank_01_001.model.decoder.final_layernorm.weight"
    ]


@pytest.mark.parametrize("way", ["there.json", "back.json"])
def test_a_rank_that_lacks_is_named(way: str, folder: Path) -> None:
    shutil.rmtree(folder / "ranks2/mp_rank_01_001")
    with pytest.raises(LossError, match=r"mp_rank_01_001.* is not there"):
        ckpt.convert(
            folder / "ranks2",
            recipe=folder / way,
            reverse=way == "there.json",
            out=folder / "out.safetensors",
        )


def test_diff_names_the_part_of_a_rank_that_is_wrong(folder: Path) -> None:
    path = folder / "ranks2/mp_rank_01_000/model_optim_rng.pt"
    given = torch.load(path)
    given["model"]["decoder.layers.1.mlp.linear_fc1.weight"][30] += 1
    torch.save(given, path)
    report = ckpt.diff(
        folder / "ranks2", folder / "whole2.safetensors", recipe=folder / "back.json"
    )
    assert list(report.changed) == ["model.layers.1.mlp.up_proj.weight"]


def test_a_folder_of_ranks_is_replaced_as_asked(folder: Path) -> None:
    words = "convert", "whole2.safetensors", "--recipe", "there.json", "-o", "out"
    assert inside(*words, cwd=folder).code == 0
    before = files_below(folder / "out")
    again = inside(*words, cwd=folder)
    assert (again.code, again.err) == (
        2,
        b"ckpt: out: already exists (--force to replace)\n",
    )
    first = ("convert", "whole1.safetensors", *words[2:])
    assert inside(*first, "--force", "--verify", "crc", cwd=folder).code == 0
    assert files_below(folder / "out").keys() == before.keys()
    assert files_below(folder / "out") != before
    for name in ("notes.txt", "mp_rank_00_000/optim.pt", "mp_rank_02_000/x.pt"):
        (folder / "out" / name).parent.mkdir(exist_ok=True)
        (folder / "out" / name).touch()
        refused = inside(*words, "--force", cwd=folder)
        assert refused.code == 2 and b"no part of a checkpoint" in refused.err, name
        (folder / "out" / name).unlink()
        if name.startswith("mp_rank_02"):
            (folder / "out" / name).parent.rmdir()
    link = folder / "out/mp_rank_00_000"
    shutil.move(link, folder / "elsewhere")
    link.symlink_to(folder / "elsewhere")
    assert inside(*words, "--force", cwd=folder).code == 2
    assert (folder / "elsewhere/model_optim_rng.pt").exists()


def test_the_source_is_not_replaced(folder: Path) -> None:
    path = folder / "same.json"
    ckpt.recipe(folder / "ranks1", folder / "ranks1", out=path)
    before = files_below(folder / "ranks2")
    with pytest.raises(UsageError, match="OUT is the source"):
        ckpt.convert(folder / "ranks2", recipe=path, out=folder / "ranks2", force=True)
    assert files_below(folder / "ranks2") == before


def test_one_checkpoint_is_made_where_the_ending_says_so(folder: Path) -> None:
    out = ckpt.convert(
        folder / "whole2.safetensors",
        recipe=folder / "there.json",
        out=folder / "one.safetensors",
    )
    assert out.saved is not None and out.saved.files is None
    assert "mp_rank_00_000.model.decoder.layers.0.mlp.linear_fc1.weight" in [
        entry.name for entry in out.result.tensors
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--optimizer",), "the files of ranks get the model alone"),
        (("whole1.safetensors",), "it takes one PATH"),
    ],
)
def test_what_does_not_go_with_ranks(
    words: tuple[str, ...], text: str, folder: Path
) -> None:
    done = inside(
        "convert",
        "whole2.safetensors",
        *words,
        "--recipe",
        "there.json",
        "-o",
        "out",
        cwd=folder,
    )
    assert done.code == 2 and text in done.err.decode()
    assert not (folder / "out").exists()


def test_a_dry_run_writes_no_ranks(folder: Path) -> None:
    words = "convert", "whole2.safetensors", "--recipe", "there.json", "-o", "out"
    done = inside(*words, "--dry-run", cwd=folder)
    assert done.code == 0 and not (folder / "out").exists()
    done = inside(*words, "--dtype", "bfloat16", "--verify", "torch", cwd=folder)
    assert done.code == 0, done.err
    found = torch.load(folder / "out/mp_rank_00_000/model_optim_rng.pt")
    assert {value.dtype for value in found["model"].values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("ranks9/*.pt", "no such"),
        ("ranks1/*.pt", "no file matches"),
        ("ranks1/mp_rank_00_000/*.pt", "one file matches"),
        ("*/*/*/*/*.pt", "at most 4 steps"),
        ("ranks1/*//x.pt", "at most 4 steps"),
    ],
)
def test_a_pattern_that_names_no_ranks(pattern: str, text: str, folder: Path) -> None:
    done = inside("recipe", "whole1.safetensors", pattern, cwd=folder)
    assert done.code == 2 and text in done.err.decode().lower(), done.err


def test_a_pattern_passes_over_what_is_hidden_and_finds_links(folder: Path) -> None:
    files = sorted((folder / "ranks1").glob("*/*.pt"))
    (folder / "tp").mkdir()
    for number, path in enumerate(files):
        (folder / f"tp/t{number}.pt").symlink_to(path)
    (folder / "tp/.t9.pt").write_bytes(b"hidden")
    (folder / "tp/t9.txt").write_bytes(b"no weights")
    done = inside("recipe", "whole1.safetensors", "tp/*", "-o", "tp.json", cwd=folder)
    assert done.code == 0, done.err
    document = json.loads((folder / "tp.json").read_text())
    names = [row["file"] for row in document["ranks_of_b"]["files"]]
    assert names == [f"t{number}.pt" for number in range(4)]


# --- recipes of strangers -------------------------------------------------------------


def with_ranks(folder: Path, **changes: Any) -> bytes:
    """The recipe of a folder with other fields about its ranks."""
    document = json.loads((folder / "there.json").read_text())
    document["ranks_of_b"] |= changes
    return json.dumps(document).encode()


def with_file(folder: Path, file: Any, key: Any = "mp_rank_00_000") -> bytes:
    """The recipe of a folder with another first file."""
    document = json.loads((folder / "there.json").read_text())
    document["ranks_of_b"]["files"][0] = {"file": file, "key": key}
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "file",
    [
        "../model_optim_rng.pt",
        "a/../../x.pt",
        "/etc/x.pt",
        "a//x.pt",
        "./x.pt",
        "",
        ".pt",
        ".ssh/x.pt",
        "x.txt",
        "x.dcp",
        "x",
        "a\\x.pt",
        "a\0x.pt",
        "a/b/c/d/x.pt",
        "x" * 2000 + ".pt",
        "mp_rank_00_001/model_optim_rng.pt",
        "mp_rank_00_001",
        "x.safetensors",
        7,
        None,
        ["x.pt"],
    ],
)
def test_a_file_that_leads_elsewhere_is_refused(file: Any, folder: Path) -> None:
    with pytest.raises(UnreadableError) as error:
        parse_recipe(with_file(folder, file), Limits())
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("key", ["", "a.b", "mp_rank_00_001", "x" * 2000, 3])
def test_a_key_that_is_none_is_refused(key: Any, folder: Path) -> None:
    with pytest.raises(UnreadableError):
        parse_recipe(with_file(folder, "x.pt", key), Limits())


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": [{"file": "x.pt", "key": "a", "mode": 7}]},
        {"files": [{"file": f"{n}.pt", "key": f"k{n}"} for n in range(10_001)]},
        {"dicts": [["a"] * 100]},
        {"dicts": [["a"]] * 300},
        {"dicts": ["model"]},
        {"dicts": [[1]]},
        {"values": {"model": 1}},
        {"values": {"x": [1]}},
        {"values": {"x": 2**63}},
        {"values": {"x": {"y": 1}}},
        {"values": {"x": "y" * 2000}},
        {"values": {f"x{n}": 1 for n in range(100)}},
        {"values": [1]},
        {"beside": "args"},
        {"beside": ["x"] * 100},
        {"unknown": 1},
    ],
)
def test_a_wrong_field_about_ranks_is_refused(
    changes: dict[str, Any], folder: Path
) -> None:
    with pytest.raises(UnreadableError):
        parse_recipe(with_ranks(folder, **changes), Limits())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"key": "mp_rank_01_001"', '"key": "mp_rank_07_001"'),
        ('"make": "mp_rank_00_000.model.embedding', '"make": "model.embedding'),
    ],
)
def test_a_tensor_of_no_file_is_not_written(
    before: str, after: str, folder: Path
) -> None:
    text = (folder / "there.json").read_text()
    assert before in text
    (folder / "odd.json").write_text(text.replace(before, after))
    with pytest.raises(CkptError):
        ckpt.convert(
            folder / "whole2.safetensors",
            recipe=folder / "odd.json",
            out=folder / "out",
        )
    assert not (folder / "out").exists()


def test_a_file_without_tensors_is_not_written(folder: Path) -> None:
    recipe = json.loads((folder / "there.json").read_text())
    files = recipe["ranks_of_b"]["files"]
    files.append({"file": "mp_rank_09_009/model_optim_rng.pt", "key": "mp_rank_09_009"})
    (folder / "more.json").write_text(json.dumps(recipe))
    with pytest.raises(LossError, match="makes no tensor of mp_rank_09_009"):
        ckpt.convert(
            folder / "whole2.safetensors",
            recipe=folder / "more.json",
            out=folder / "out",
        )
    assert not (folder / "out").exists()


# --- killed ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True], ids=["new", "over an old one"])
def test_killed_at_every_event(force: bool, folder: Path, killer: kills.Killer) -> None:
    work = folder / "work"
    work.mkdir()
    for name in ("whole1.safetensors", "whole2.safetensors", "there.json"):
        shutil.copy(folder / name, work)
    words = ("--recipe", "there.json", "-o", "out")
    out = work / "out"
    assert killer.run("convert", "whole1.safetensors", *words, cwd=work).code == 0
    old = files_below(out)
    arguments = ("convert", "whole2.safetensors", *words, "--force")
    assert killer.run(*arguments, cwd=work).code == 0
    new = files_below(out)
    assert old.keys() == new.keys() and old != new
    saved = folder / "old"
    assert (
        killer.run("convert", "whole1.safetensors", *words, "--force", cwd=work).code
        == 0
    )
    shutil.copytree(out, saved)
    shutil.rmtree(out)
    killed = 0
    for nth in range(1, 400, 3):
        if force:
            shutil.copytree(saved, out)
        ran = killer.run(*arguments, cwd=work, nth=nth)
        killed += ran.was_killed
        found = files_below(out) if out.exists() else None
        assert found in (new, old if force else None), nth
        left = [path for path in work.iterdir() if path.name.endswith(target.SUFFIX)]
        assert len(left) <= 1
        for path in [*left, out]:
            if path.exists():
                shutil.rmtree(path)
        if not ran.was_killed:
            break
    assert killed > 8
    assert ran.code == 0, ran


def test_what_a_killed_run_left_is_named(folder: Path, killer: kills.Killer) -> None:
    words = "convert", "whole2.safetensors", "--recipe", "there.json", "-o", "out"
    assert killer.run(*words, cwd=folder, nth=40).was_killed
    left = [path for path in folder.iterdir() if path.name.endswith(target.SUFFIX)]
    assert len(left) == 1
    done = inside(*words, cwd=folder)
    assert done.code == 0
    assert b"left over from a run that was killed" in done.err
    assert b"0 bytes" not in done.err


@pytest.mark.parametrize("kind", RANKED)
def test_diff_compares_files_of_ranks_through_a_recipe(
    kind: str, tmp_path: Path
) -> None:
    whole, ranks = made_pair(kind, 1, tmp_path)
    recipe = tmp_path / "r.json"
    ckpt.recipe(whole, side(kind, ranks), out=recipe)
    words = ("diff", whole, side(kind, ranks), "--recipe", str(recipe))
    assert inside(*words, cwd=tmp_path).code == 0
    assert ckpt.diff(whole, side(kind, ranks), recipe=recipe).same
    other, _ = made_pair(kind, 2, tmp_path)
    assert ckpt.diff(other, side(kind, ranks), recipe=recipe).changed


def test_a_wrong_rank_is_named(tmp_path: Path) -> None:
    state = llama(1)
    whole = relaid.saved(state, tmp_path / "whole.safetensors")
    files = relaid.rank_files("pattern", state)
    ranks = tmp_path / "ranks"
    relaid.saved_files(files, ranks)
    recipe = tmp_path / "r.json"
    ckpt.recipe(whole, side("pattern", ranks), out=recipe)
    name = next(file for file in files if file.endswith(".pt"))
    wrong = torch.load(ranks / name)
    key = "decoder.layers.0.self_attention.linear_proj.weight"
    wrong["model"][key] = wrong["model"][key].flip(0)
    torch.save(wrong, ranks / name)
    words = ("diff", whole, side("pattern", ranks), "--recipe", str(recipe))
    done = inside(*words, cwd=tmp_path)
    assert done.code == 1
    assert [row for row in done.lines if "in reverse); right would be" in row]
    assert not [row for row in done.lines if "frozen" in row]


def test_a_warm_start_takes_files_of_ranks_by_a_recipe(tmp_path: Path) -> None:
    whole, ranks = made_pair("pattern", 1, tmp_path)
    recipe = tmp_path / "r.json"
    ckpt.recipe(side("pattern", ranks), whole, out=recipe)
    fresh = {name: np.zeros_like(array) for name, array in llama(1).items()}
    relaid.saved(fresh, tmp_path / "fresh.safetensors")
    out = tmp_path / "out.safetensors"
    words = ("--into", str(tmp_path / "fresh.safetensors"), "--recipe", str(recipe))
    words = ("warmstart", side("pattern", ranks), *words, "-o", str(out))
    done = inside(*words, cwd=tmp_path)
    assert done.code == 0
    assert holds(str(out), llama(1))
