"""What `ckpt salvage` writes of distributed saves that lack files, parts of files, or
`.metadata`.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from inside import inside

import ckpt
from ckpt.ext.dcp.skim import read_metadata
from ckpt.model.limits import Budget, Limits

pytestmark = oracle.QUIET
SAMPLES = Path(__file__).parents[3] / "sample_checkpoints"


def values_of(path: Path) -> dict[str, Any]:
    with ckpt.open(path) as checkpoint:
        return {name: checkpoint[name].numpy() for name in checkpoint}


def items_of(folder: Path) -> Iterator[tuple[str, str, int, int]]:
    """(name, file, first byte, last byte) of each item that `.metadata` lists."""
    data = (folder / ".metadata").read_bytes()
    metadata = read_metadata(data, Limits(), Budget(Limits(), len(data)))
    for name, row in metadata.tensors.items():
        for index in range(len(row.chunks)):
            item = metadata.item(row, index)
            yield name, item.file, item.offset, item.offset + item.length
    for name, item in metadata.objects.items():
        assert item is not None
        yield name, item.file, item.offset, item.offset + item.length


@pytest.fixture
def save(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLES / "dcp", tmp_path / "save")
    return tmp_path / "save"


def check(
    save: Path, expected: set[str], whole: dict[str, Any], *more: str
) -> dict[str, Any]:
    """Salvage a folder, and hold the result against the whole tensors that are
    expected.
    """
    out = save.parent / "out.dcp"
    shutil.rmtree(out, ignore_errors=True)
    done = inside("salvage", save, "-o", out, "--json", *more, cwd=save.parent)
    report: dict[str, Any] = json.loads(done.out)
    assert done.code == int(bool(report["lost"])), done
    found = values_of(out)
    assert found.keys() == expected
    assert all(np.array_equal(found[name], whole[name]) for name in expected)
    assert {row["name"] for row in report["lost"]} >= whole.keys() - expected
    return report


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("file", ["__0_0.distcp", "__1_0.distcp"])
def test_a_data_file_that_is_cut_anywhere_or_gone(
    file: str, named: bool, save: Path
) -> None:
    """The names come from the metadata, or without it from another save."""
    whole, items = values_of(save), list(items_of(save))
    data = (save / file).read_bytes()
    edges = {
        end + step
        for _, name, begin, end in items
        if name == file
        for end in (begin, end)
        for step in (-1, 0, 1)
    }
    chance = random.Random(7)
    cuts = sorted(
        {
            0,
            *(cut for cut in edges if 0 <= cut < len(data)),
            *(chance.randrange(len(data)) for _ in range(9)),
        }
    )
    more = ("--names-from", str(SAMPLES / "dcp")) if named else ()
    if named:
        (save / ".metadata").unlink()
        cuts = cuts[:: len(cuts) // 20]
    for cut in cuts:
        (save / file).write_bytes(data[:cut])
        lost = {name for name, other, _, end in items if other == file and end > cut}
        expected = whole.keys() - lost
        if not expected:
            continue
        report = check(save, set(expected), whole, *more)
        assert {row["name"] for row in report["lost"]} == lost
    (save / file).unlink()
    lost = {name for name, other, *_ in items if other == file}
    if whole.keys() - lost:
        check(save, set(whole.keys() - lost), whole, *more)
    else:
        done = inside("salvage", save, "-o", "o.dcp", *more, cwd=save.parent)
        assert done.code == 2 and done.complaints[0].endswith(
            "none of 22 tensors is whole"
        )


def test_lost_parts_and_values_from_another_save(save: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(save, other)
    whole = values_of(save)
    (save / "__1_0.distcp").unlink()
    report = check(save, set(whole), whole, "--fill-from", str(other))
    assert not report["lost"] and report["filled_from"][0]["path"] == str(other)
    names = {name for name, file, *_ in items_of(other) if file == "__1_0.distcp"}
    assert set(report["filled_from"][0]["names"]) == names
    values = json.loads(
        inside("get", "out.dcp", "optim.param_groups", "--json", cwd=tmp_path).out
    )
    expected = json.loads(
        inside("get", "other", "optim.param_groups", "--json", cwd=tmp_path).out
    )
    assert values["value"] == expected["value"]


def test_metadata_that_did_not_get_its_name(save: Path, tmp_path: Path) -> None:
    whole = values_of(save)
    (save / ".metadata").rename(save / ".metadata.tmp")
    assert values_of(save).keys() == whole.keys()
    document = json.loads(inside("inspect", "save", "--json", cwd=tmp_path).out)
    (finding,) = [row for row in document["findings"] if row["code"] == "unfinished"]
    assert finding["hint"] == "mv save/.metadata.tmp save/.metadata"
    done = inside("verify", "save", cwd=tmp_path)
    assert done.code == 1 and finding["hint"].encode() in done.out
    check(save, set(whole), whole)
    (save / ".metadata.tmp").rename(save / ".metadata")
    assert inside("verify", "save", cwd=tmp_path).code == 0
    state = {"model": {"embed.weight": torch.zeros(12, 8)}}
    dcp.load(state, checkpoint_id=str(save))
    assert np.array_equal(
        state["model"]["embed.weight"].numpy(), whole["model.embed.weight"]
    )


def test_metadata_that_is_cut_off_or_of_an_incomplete_save(
    save: Path, tmp_path: Path
) -> None:
    data = (save / ".metadata").read_bytes()
    (save / ".metadata").rename(save / ".metadata.tmp")
    (save / "__1_0.distcp").unlink()
    document = json.loads(inside("inspect", "save", "--json", cwd=tmp_path).out)
    assert {row["code"] for row in document["findings"]} & {
        "unfinished",
        "incomplete",
    } == {"incomplete"}
    for size in (0, 5, len(data) // 2, len(data) - 1):
        (save / ".metadata.tmp").write_bytes(data[:size])
        done = inside("inspect", "save", cwd=tmp_path)
        assert done.code == 2 and "an interrupted save" in done.complaints[0]


def test_names_of_a_save_that_differs_are_refused(save: Path, tmp_path: Path) -> None:
    (save / ".metadata").unlink()

    def refused(other: str, text: str) -> None:
        done = inside(
            "salvage", "save", "--names-from", other, "-o", "o.dcp", cwd=tmp_path
        )
        assert done.code == 2 and not (tmp_path / "o.dcp").exists()
        assert text in done.complaints[0], done

    dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "small")
    refused("small", "which small has not: a save of other ranks")
    shutil.copytree(SAMPLES / "dcp", tmp_path / "swapped")
    shutil.copytree(SAMPLES / "dcp", tmp_path / "it")
    for one, two in (
        ("__0_0.distcp", "__1_0.distcp"),
        ("__1_0.distcp", "__0_0.distcp"),
    ):
        shutil.copy(SAMPLES / "dcp" / one, save / two)
    refused("it", "so none of them is named")
    shutil.copy(SAMPLES / "dcp" / ".metadata", save / ".metadata")
    refused("it", "--names-from goes with a save without .metadata")
    torch.save({"w": torch.ones(1)}, tmp_path / "a.pth")
    done = inside("salvage", "a.pth", "--names-from", "it", "-o", "o.pth", cwd=tmp_path)
    assert (
        done.code == 2
        and "--names-from goes with a distributed checkpoint" in done.complaints[0]
    )


def test_a_damaged_item_is_lost(save: Path) -> None:
    whole, items = values_of(save), list(items_of(save))
    name, file, begin, _ = next(row for row in items if row[0] == "model.embed.weight")
    data = bytearray((save / file).read_bytes())
    raw = whole[name].tobytes()
    at = data.index(raw[:16])
    data[at] ^= 1
    (save / file).write_bytes(data)
    check(save, whole.keys() - {name}, whole)
    data[at] ^= 1
    data[begin : begin + 40] = bytes(40)
    (save / file).write_bytes(data)
    check(save, whole.keys() - {name}, whole)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"a": torch.ones(3), "b": torch.zeros(2, 4)}, "so none of them is named"),
        (
            {"a": torch.ones(3), "b": torch.zeros(4, 2).int()},
            "so none of them is named",
        ),
        ({"a": torch.ones(3), "b": 5}, "so none of them is named"),
        ({"a": torch.ones(3)}, "holds more items than in other"),
    ],
)
def test_one_item_of_another_kind_refuses_all_names(
    other: dict[str, Any], text: str, tmp_path: Path
) -> None:
    dcp.save(
        {"a": torch.ones(3), "b": torch.zeros(4, 2)}, checkpoint_id=tmp_path / "save"
    )
    dcp.save(other, checkpoint_id=tmp_path / "other")
    (tmp_path / "save" / ".metadata").unlink()
    done = inside(
        "salvage", "save", "--names-from", "other", "-o", "o.dcp", cwd=tmp_path
    )
    assert (
        done.code == 2
        and text in done.complaints[0]
        and not (tmp_path / "o.dcp").exists()
    ), done
