"""Shards of a variant of the weights, and their index: names of transformers and of
diffusers, old ones too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from inside import inside

import ckpt

STATE = {f"layers.{number}.weight": torch.full((4,), number + 0.5) for number in (0, 1)}
NEW = ("model.safetensors.index.fp16.json", "model.fp16-{}-of-00002.safetensors")
OF_VARIANTS = [
    NEW,
    ("model.safetensors.fp16.index.json", "model-{}-of-00002.fp16.safetensors"),
    (
        "diffusion_pytorch_model.safetensors.index.non_ema.json",
        "diffusion_pytorch_model.non_ema-{}-of-00002.safetensors",
    ),
]
"""The index of each, and its shards."""


def save(folder: Path, index: str | None, shards: str) -> Path:
    """Write a tensor into each of two shards, and the index."""
    folder.mkdir()
    weight_map = {}
    for number, (name, tensor) in enumerate(STATE.items(), start=1):
        weight_map[name] = shards.format(f"{number:05}")
        path = folder / weight_map[name]
        safetensors.torch.save_file({name: tensor}, path, metadata={"format": "pt"})
    if index is not None:
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / index).write_text(text)
    return folder


def values(path: Path) -> dict[str, list[float]]:
    with ckpt.open(path) as found:
        return {name: found[name].torch().tolist() for name in found}


EXPECTED = {name: tensor.tolist() for name, tensor in STATE.items()}


@pytest.mark.needs("folders")
@pytest.mark.parametrize(("index", "shards"), OF_VARIANTS)
def test_a_folder_and_its_index_are_one_checkpoint(
    index: str, shards: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "m", index, shards)

    assert values(folder) == values(folder / index) == EXPECTED
    assert not ckpt.inspect(folder).findings
    assert "index and shards agree" in inside("verify", "m", cwd=tmp_path).out.decode()
    assert [row.path for row in ckpt.ls([tmp_path]).rows] == [str(folder / index)]


@pytest.mark.parametrize(("index", "shards"), OF_VARIANTS)
def test_an_index_is_opened_by_itself(index: str, shards: str, tmp_path: Path) -> None:
    assert values(save(tmp_path / "m", index, shards) / index) == EXPECTED


@pytest.mark.needs("folders")
@pytest.mark.parametrize(("index", "shards"), [NEW, OF_VARIANTS[2]])
def test_the_index_that_lacks_is_named_as_loaders_look_for_it(
    index: str, shards: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "m", None, shards)

    (row,) = ckpt.inspect(folder).findings

    assert row.code == "no-index" and row.message.endswith(f"look for {index}")
    assert values(folder) == EXPECTED


@pytest.mark.needs("folders")
def test_old_shards_without_an_index_are_one_checkpoint(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", None, OF_VARIANTS[1][1])
    assert values(folder) == EXPECTED


@pytest.mark.needs("folders")
def test_the_weights_without_a_variant_are_read_first(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", *NEW)
    own = {"layers.0.weight": torch.zeros(4)}
    safetensors.torch.save_file(own, folder / "model.safetensors")

    report = ckpt.inspect(folder)

    assert values(folder) == {"layers.0.weight": [0.0] * 4}
    assert [row.code for row in report.findings] == ["unread-file"]
    assert report.findings[0].message.startswith(NEW[0])


@pytest.mark.needs("folders")
def test_an_index_of_a_variant_that_lacks_a_shard_says_so(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", *NEW)
    (folder / NEW[1].format("00002")).unlink()

    done = inside("verify", "m", cwd=tmp_path)

    assert done.code == 1
    assert "1 of 2 shards missing" in done.out.decode()
    assert "lost: layers.1.weight" in done.out.decode()


@pytest.mark.parametrize("out", ["model.fp16.safetensors", NEW[0]])
def test_shards_of_a_variant_get_the_index_that_loaders_look_for(
    out: str, tmp_path: Path
) -> None:
    torch.save(STATE, tmp_path / "all.pth")

    done = inside(
        *("convert", "all.pth", "--shard-size", "16", "--parents"),
        *("-o", f"m/{out}"),
        cwd=tmp_path,
    )

    assert done.code == 0
    assert values(tmp_path / "m" / NEW[0]) == EXPECTED
    shards = {NEW[1].format("00001"), NEW[1].format("00002")}
    assert {path.name for path in (tmp_path / "m").iterdir()} == {NEW[0], *shards}
    assert 'the folder m with variant="fp16" once' in done.out.decode()


@pytest.mark.parametrize(("index", "shards"), OF_VARIANTS[:2])
def test_an_output_beside_an_index_has_the_name_of_its_weights(
    index: str, shards: str, tmp_path: Path
) -> None:
    save(tmp_path / "m", index, shards)

    done = inside("slim", f"m/{index}", cwd=tmp_path)

    assert done.code == 2
    assert "(-o m/model.fp16.slim.safetensors)" in done.err.decode()
