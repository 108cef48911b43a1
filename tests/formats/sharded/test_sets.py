"""Shards that do not fit an index: one that is stale, one that is lost, files of
another save, copies of a tensor.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from inside import inside

import ckpt
from ckpt.model.errors import FolderError, UnreadableError
from ckpt.model.findings import Finding

State = Mapping[str, torch.Tensor]
NAMES = [f"model.layers.{number}.weight" for number in range(6)]
STATE = {name: torch.full((4, 4), float(number)) for number, name in enumerate(NAMES)}


def part(*numbers: int, **changes: torch.dtype) -> dict[str, torch.Tensor]:
    """The layers with these numbers."""
    dtype = changes.get("dtype", torch.float32)
    return {NAMES[number]: STATE[NAMES[number]].to(dtype) for number in numbers}


def save(folder: Path, files: Mapping[str, State]) -> Path:
    """Write shards: name -> what it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, state in files.items():
        if name.endswith(".safetensors"):
            safetensors.torch.save_file(
                dict(state), folder / name, metadata={"format": "pt"}
            )
        else:
            torch.save(dict(state), folder / name)
    return folder


def list_in(
    folder: Path,
    weight_map: Mapping[str, str],
    name: str = "model.safetensors.index.json",
) -> None:
    text = json.dumps({"metadata": {}, "weight_map": dict(weight_map)})
    (folder / name).write_text(text)


def shard(
    number: int, of: int, stem: str = "model", ending: str = "safetensors"
) -> str:
    return f"{stem}-{number:05}-of-{of:05}.{ending}"


def findings(path: Path) -> dict[str, Finding]:
    return {row.code: row for row in ckpt.inspect(path).findings}


def values(path: Path) -> dict[str, torch.Tensor]:
    with ckpt.open(path) as found:
        return {name: found[name].torch() for name in found}


def same(found: State, expected: State) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in found
    )


def run_hint(hint: str | None, folder: Path) -> Path:
    """Run the command that a finding prints. Return what it wrote."""
    assert hint is not None
    words = shlex.split(hint)
    done = inside(*words[1:], cwd=folder)
    assert done.code == 0, done.err
    return folder / words[-1]


# --- no index -------------------------------------------------------------------------


@pytest.mark.needs("folders")
@pytest.mark.parametrize("stem", ["model", "diffusion_pytorch_model", "any name"])
@pytest.mark.parametrize("ending", ["safetensors", "bin"])
@pytest.mark.parametrize("first", [0, 1])
def test_shards_without_an_index_are_one_checkpoint(
    stem: str, ending: str, first: int, tmp_path: Path
) -> None:
    names = [shard(number + first, 3, stem, ending) for number in range(3)]
    folder = save(
        tmp_path / "m", {name: part(2 * i, 2 * i + 1) for i, name in enumerate(names)}
    )

    assert same(values(folder), STATE)
    row = findings(folder)["no-index"]
    assert row.level == "warning" and f"{stem}.{ending}.index.json" in row.message
    report = ckpt.verify(folder)
    assert report.verdict == "intact" and "index and shards agree" not in report.checked
    assert any("has no index" in text for text in report.not_checked)


@pytest.mark.needs("folders")
@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_the_command_for_shards_without_an_index_writes_all_of_them(
    ending: str, tmp_path: Path
) -> None:
    files = {shard(i + 1, 3, ending=ending): part(2 * i, 2 * i + 1) for i in range(3)}
    save(tmp_path / "m", files)
    hint = {row.code: row for row in ckpt.inspect(tmp_path / "m").findings}[
        "no-index"
    ].hint

    written = run_hint(hint, tmp_path)
    load = (
        safetensors.torch.load_file if written.suffix == ".safetensors" else torch.load
    )
    assert same(load(written), STATE)


@pytest.mark.needs("folders")
def test_every_command_takes_shards_without_an_index_as_one(tmp_path: Path) -> None:
    folder = save(
        tmp_path / "m", {shard(i + 1, 3): part(2 * i, 2 * i + 1) for i in range(3)}
    )
    (folder / "config.json").write_text('{"architectures": ["A"]}')
    single = save(tmp_path / "one", {"one.safetensors": STATE}) / "one.safetensors"

    assert b"1 checkpoint," in inside("ls", "m", cwd=tmp_path).err
    assert b"no-index" in inside("lint", "m", cwd=tmp_path).out
    assert b"safetensors.torch.load_file" in inside("inspect", "m", cwd=tmp_path).out
    done = inside("diff", "m", str(single), cwd=tmp_path)
    assert done.code == 0 and b"same: 6 tensors" in done.out
    done = inside(
        "convert", "-r", "m", "--format", "safetensors", "-o", "out", cwd=tmp_path
    )
    assert done.code == 0, done.err
    done = inside(
        "convert", "m", "--shard-size", "200", "-o", "n.safetensors", cwd=tmp_path
    )
    assert done.code == 0 and same(values(tmp_path / "n.safetensors.index.json"), STATE)
    done = inside("sum", "m", cwd=tmp_path)
    assert done.code == 0 and done.out.count(b"model.layers.") == 6


@pytest.mark.needs("folders")
def test_a_gap_in_the_numbers_is_said_with_the_numbers(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", {shard(1, 4): part(0, 1), shard(3, 4): part(4, 5)})

    row = findings(folder)["incomplete"]
    assert row.level == "error" and "2 of 4 shards missing" in row.message
    assert shard(2, 4) in row.message and shard(4, 4) in row.message
    assert findings(folder)["no-index"].hint is None  # no command makes it whole
    assert ckpt.verify(folder).verdict == "damaged"
    done = inside("convert", "m", "-o", "x.safetensors", cwd=tmp_path)
    assert done.code == 2 and b"2 of 4 shards missing" in done.err
    done = inside("convert", "--partial", "m", "-o", "x.safetensors", cwd=tmp_path)
    assert done.code == 1 and same(
        safetensors.torch.load_file(tmp_path / "x.safetensors"), part(0, 1, 4, 5)
    )


@pytest.mark.needs("folders")
def test_one_shard_of_several_is_incomplete(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", {shard(2, 3): part(2, 3)})

    assert "2 of 3 shards missing" in findings(folder)["incomplete"].message
    assert b"incomplete" in inside("lint", "m", cwd=tmp_path).out
    assert "incomplete" not in findings(
        folder / shard(2, 3)
    )  # the file itself is whole


def test_numbered_files_that_each_hold_a_whole_are_several_checkpoints(
    tmp_path: Path,
) -> None:
    save(tmp_path / "m", {shard(i, 2, "cache"): {"x": torch.ones(2)} for i in (1, 2)})
    assert b"2 checkpoints," in inside("ls", "m", cwd=tmp_path).err
    for number in (1, 2):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / shard(number, 2, "train", "bin")).write_bytes(
            b"\x01\x02\x03\x04" * 9
        )
    assert b"no-index" not in inside("lint", "data", cwd=tmp_path).out


@pytest.mark.needs("folders")
def test_a_tensor_in_two_shards_without_an_index_is_refused(tmp_path: Path) -> None:
    folder = save(
        tmp_path / "m",
        {shard(1, 3): part(0), shard(2, 3): part(1), shard(3, 3): part(0, 2)},
    )
    with pytest.raises(
        UnreadableError, match=f"{NAMES[0]} is in several shards.*no index says which"
    ):
        ckpt.open(folder)


@pytest.mark.needs("folders")
def test_the_whole_set_is_read_beside_a_remnant_of_another(tmp_path: Path) -> None:
    files = {shard(1, 2): part(0, 1, 2), shard(2, 2): part(3, 4, 5)}
    folder = save(
        tmp_path / "m", {**files, shard(3, 3): part(4, 5, dtype=torch.float16)}
    )
    assert same(values(folder), STATE)
    assert shard(3, 3) in findings(folder)["dead-files"].message

    save(folder, {shard(1, 3): part(0), shard(2, 3): part(1)})
    with pytest.raises(FolderError, match="2 sets of shards without an index"):
        ckpt.open(folder)
    done = inside("inspect", "m", cwd=tmp_path)
    assert done.code == 0 and done.out.count(b"model-0000") >= 5, (
        "they are shown one by one"
    )


@pytest.mark.needs("folders")
def test_a_pipeline_with_shards_without_an_index(tmp_path: Path) -> None:
    folder = tmp_path / "pipe"
    save(
        folder / "transformer",
        {shard(i, 2, "diffusion_pytorch_model"): part(i) for i in (1, 2)},
    )
    save(folder / "vae", {"diffusion_pytorch_model.safetensors": part(5)})
    index = {
        "_class_name": "P",
        "transformer": ["diffusers", "T"],
        "vae": ["diffusers", "V"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    with ckpt.open(folder) as found:
        assert {name.partition(".")[0] for name in found} == {
            "transformer",
            "vae",
        } and len(found) == 3
    assert "no-index" in findings(folder)


# --- a stale index --------------------------------------------------------------------

OLD = {name: shard(number + 1, 6) for number, name in enumerate(NAMES)}
"""An index of six shards."""


@pytest.mark.needs("folders")
@pytest.mark.parametrize("ending", ["safetensors", "bin"])
@pytest.mark.parametrize("of", [6, 3])
def test_an_index_of_another_split_is_stale(
    of: int, ending: str, tmp_path: Path
) -> None:
    """The names of the shards may be those of the index, or of the split that there is
    now.
    """
    files = {shard(i + 1, of, ending=ending): part(2 * i, 2 * i + 1) for i in range(3)}
    folder = save(tmp_path / "m", files)
    old = {name: file.replace("safetensors", ending) for name, file in OLD.items()}
    name = (
        "model.safetensors.index.json"
        if ending == "safetensors"
        else "pytorch_model.bin.index.json"
    )
    list_in(folder, old, name)

    assert same(values(folder), STATE)
    row = findings(folder)["stale-index"]
    assert row.level == "error" and f"{name} is stale" in row.message
    assert f"{3 if of == 6 else 6} of 6 shards" in row.message
    report = ckpt.verify(folder)
    assert report.verdict == "damaged" and not report.lost and report.hint is not None
    assert report.hint.startswith("ckpt convert ")
    hint = {row.code: row for row in ckpt.inspect(folder).findings}["stale-index"].hint
    written = run_hint(hint, tmp_path)
    load = (
        safetensors.torch.load_file if written.suffix == ".safetensors" else torch.load
    )
    assert same(load(written), STATE)


@pytest.mark.needs("folders")
def test_what_no_shard_holds_is_lost_and_no_more(tmp_path: Path) -> None:
    folder = save(
        tmp_path / "m", {shard(i + 1, 6): part(2 * i, 2 * i + 1) for i in range(2)}
    )
    list_in(folder, OLD)

    report = ckpt.verify(folder)
    assert report.verdict == "damaged" and report.lost == tuple(NAMES[4:])
    assert report.whole == tuple(NAMES[:4])
    assert "4 of 6 shards missing, with 2 tensors" in report.problems[0].what
    done = inside("salvage", "m", "-o", "x.safetensors", cwd=tmp_path)
    assert done.code == 1 and same(
        safetensors.torch.load_file(tmp_path / "x.safetensors"), part(0, 1, 2, 3)
    )


@pytest.mark.needs("folders")
def test_a_stale_index_over_two_copies_of_a_tensor_is_no_way_out(
    tmp_path: Path,
) -> None:
    folder = save(
        tmp_path / "m", {shard(1, 3): part(0, 1, 2), shard(2, 3): part(2, 3, 4, 5)}
    )
    list_in(folder, OLD)
    with pytest.raises(UnreadableError, match="shards missing"):
        ckpt.open(folder)


# --- files and tensors that the index does not name -----------------------------------


def twofold(folder: Path) -> dict[str, str]:
    save(folder, {shard(1, 2): part(0, 1, 2), shard(2, 2): part(3, 4, 5)})
    return {name: shard(number // 3 + 1, 2) for number, name in enumerate(NAMES)}


@pytest.mark.needs("folders")
def test_a_shard_of_an_older_save_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    list_in(folder, twofold(folder)) if not folder.mkdir() else None
    assert "dead-files" not in findings(folder)
    save(folder, {shard(3, 3): part(4, 5, dtype=torch.float16)})

    row = findings(folder)["dead-files"]
    assert row.level == "warning" and row.tensors == (NAMES[4], NAMES[5])
    assert f"{shard(3, 3)} is not in the index" in row.message
    assert "there as float32 and here as float16" in row.message
    report = ckpt.verify(folder)
    assert report.verdict == "intact" and any(
        shard(3, 3) in text for text in report.not_checked
    )
    assert b"dead-files" in inside("lint", "m", cwd=tmp_path).out
    assert same(values(folder), STATE)
    assert same(values(folder / "model.safetensors.index.json"), STATE)


@pytest.mark.needs("folders")
def test_a_file_of_other_names_and_one_that_is_damaged_are_named_so(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "m"
    weight_map = twofold(folder)
    list_in(folder, weight_map)
    save(folder, {shard(3, 3): {"head.weight": torch.ones(1)}})
    (folder / shard(4, 4)).write_bytes(b"")

    message = findings(folder)["dead-files"].message
    assert "2 files are not in the index" in message
    assert (
        "1 tensor of other names: head.weight" in message
        and "cannot be read (an empty file" in message
    )


@pytest.mark.needs("folders")
def test_a_shard_of_another_index_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    list_in(folder, twofold(folder))
    save(folder, {shard(3, 3): part(4)})
    list_in(folder, {NAMES[4]: shard(3, 3)}, "model.fp16.index.json")
    assert "dead-files" not in findings(folder)


@pytest.mark.needs("folders")
@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_the_index_decides_between_two_copies(ending: str, tmp_path: Path) -> None:
    """A set made on purpose: a shard on top supersedes tensors of the shards below."""
    name = (
        "model.safetensors.index.json"
        if ending == "safetensors"
        else "pytorch_model.bin.index.json"
    )
    base, top = shard(1, 1, ending=ending), f"model-overlay.{ending}"
    folder = save(tmp_path / "m", {base: STATE, top: {NAMES[0]: torch.ones(2)}})
    list_in(folder, {**dict.fromkeys(NAMES, base), NAMES[0]: top}, name)

    assert same(values(folder), {**STATE, NAMES[0]: torch.ones(2)})
    row = findings(folder)["unassigned"]
    assert row.level == "info" and row.tensors == (NAMES[0],)
    assert f"is read from {top}, not from {base}" in row.message
    assert ckpt.verify(folder).verdict == "intact"
    done = inside("convert", "m", "-o", "x.safetensors", cwd=tmp_path)
    assert done.code == 0
    assert same(safetensors.torch.load_file(tmp_path / "x.safetensors"), values(folder))


@pytest.mark.needs("folders")
def test_a_tensor_that_the_index_does_not_list_is_read_and_no_damage(
    tmp_path: Path,
) -> None:
    folder = save(tmp_path / "m", {shard(1, 1): STATE})
    list_in(folder, dict.fromkeys(NAMES[1:], shard(1, 1)))
    assert same(values(folder), STATE)
    assert findings(folder)["unassigned"].tensors == (NAMES[0],)
    assert ckpt.verify(folder).verdict == "intact"
