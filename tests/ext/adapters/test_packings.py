"""Bases that may hold layers in several ways: `diff --adapter` finds the way that MERGED
has, `inspect --base` lists those that fit, and `merge` takes one of each kind.
"""

from __future__ import annotations

import json
from pathlib import Path

import loras
import oracle
import pytest
import torch
from inside import inside
from loras import State, noise
from safetensors.torch import load_file

import ckpt
from ckpt.ext.adapters import products
from ckpt.ext.adapters.verdicts import MergeCheck

pytestmark = oracle.QUIET
ROWS, COLUMNS = 40, 24


def fused(gate: torch.Tensor, up: torch.Tensor, way: str) -> State:
    """Gate and up in one tensor."""
    parts = torch.cat([gate, up])
    if way == "interleaved":
        parts = torch.stack([gate, up], 1).reshape(-1, gate.shape[1])
    return {"a.gate_up_proj.weight": parts}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base, its adapter, and the merges of both ways."""
    names = [f"a.{part}_proj" for part in ("gate", "up")]
    zeros = {f"{name}.weight": torch.zeros(ROWS, COLUMNS) for name in names}
    adapter = loras.pairs(zeros)
    loras.save_adapter(adapter, tmp_path / "adapter")
    base = {"a.gate_up_proj.weight": noise(2 * ROWS, COLUMNS)}
    loras.save_base(base, tmp_path / "base.safetensors")
    for way in ("concatenated", "interleaved"):
        for scale in (2.0, 1.0):
            parts = [loras.delta(adapter, name, scale) for name in names]
            [(name, added)] = fused(parts[0], parts[1], way).items()
            path = tmp_path / f"{way}-{scale:g}.safetensors"
            loras.save_base({name: base[name] + added}, path)
    return tmp_path


@pytest.mark.parametrize("way", ["concatenated", "interleaved"])
def test_a_comparison_finds_the_packing_that_was_merged(way: str, folder: Path) -> None:
    words = ("diff", "base.safetensors", f"{way}-2.safetensors", "--adapter", "adapter")
    done = inside(*words, cwd=folder)
    lines = done.out.decode().splitlines()
    assert lines == ["2 of 2 pairs are merged: adapter", f"packing: {way}"]
    assert done.code == 0 and not done.err
    document = json.loads(inside(*words, "--json", cwd=folder).out)
    assert document["adapter"]["packing"] == [way]


@pytest.mark.parametrize("way", ["concatenated", "interleaved"])
def test_and_the_packing_of_a_merge_with_another_scale(way: str, folder: Path) -> None:
    report = ckpt.diff(
        folder / "base.safetensors",
        folder / f"{way}-1.safetensors",
        adapter=folder / "adapter",
    )
    assert isinstance(report.account, MergeCheck)
    assert [pair.verdict for pair in report.account.pairs] == ["scaled", "scaled"]
    assert report.account.packing == (way,)


def test_where_nothing_was_merged_no_packing_is_told(folder: Path) -> None:
    words = ("diff", "base.safetensors", "base.safetensors", "--adapter", "adapter")
    done = inside(*words, cwd=folder)
    assert done.code == 1 and b"2 as in BASE" in done.out and b"packing" not in done.out


def test_a_base_fits_with_the_packings_that_merge_takes(folder: Path) -> None:
    words = ("inspect", "adapter", "--base", "base.safetensors")
    done = inside(*words, cwd=folder)
    text = "1 tensor would change, with --packing concatenated or --packing interleaved"
    assert done.code == 0 and text in " ".join(done.out.decode().split())
    found = json.loads(inside(*words, "--json", cwd=folder).out)["adapter"]["fits"]
    assert found["fits"] and found["packings"] == [["concatenated"], ["interleaved"]]


def test_no_packing_is_asked_for_that_the_base_cannot_have(tmp_path: Path) -> None:
    """Query, key and value lie one after the other, or head by head, which is not
    merged.
    """
    sizes = {"q_proj": 8, "k_proj": 4, "v_proj": 4}
    parts = {f"a.{name}.weight": noise(rows, 6) for name, rows in sizes.items()}
    adapter = loras.pairs(parts)
    whole = {"a.qkv_proj.weight": torch.cat(list(parts.values()))}
    base = loras.save_base(whole, tmp_path / "base.safetensors")
    merged = torch.cat(list(loras.merged(parts, adapter).values()))
    after = loras.save_base({"a.qkv_proj.weight": merged}, tmp_path / "m.safetensors")
    path = loras.save_adapter(adapter, tmp_path / "adapter")

    report = ckpt.diff(base, after, adapter=path)
    assert isinstance(report.account, MergeCheck) and not report.account.differs
    fit = ckpt.inspect(path, base=base).to_json()["adapter"]["fits"]
    assert fit["fits"] and fit["packings"] == [["concatenated"]]


def test_a_tensor_may_need_a_packing_of_each_kind(tmp_path: Path) -> None:
    """A layer of one expert in the tensor of all: two in one, and each side as long."""
    experts, inner, hidden = 2, 3, 6
    layers = {
        f"experts.{expert}.{leaf}.weight": torch.zeros(inner, hidden)
        for expert in range(experts)
        for leaf in ("gate_proj", "up_proj")
    }
    adapter = loras.pairs(layers, 2)
    name = "experts.gate_up_proj"
    base = loras.save_base(
        {name: noise(experts, 2 * inner, hidden)}, tmp_path / "base.safetensors"
    )
    path = loras.save_adapter(adapter, tmp_path / "adapter", r=2)
    products = [
        loras.delta(adapter, each.removesuffix(".weight"), 4) for each in layers
    ]
    added = torch.stack([torch.cat(products[:2]), torch.cat(products[2:])])
    words = ["merge", str(base), str(path), "-o", str(tmp_path / "out.safetensors")]
    assert b"both fit" in inside(*words, cwd=tmp_path).err
    sides = {"in-out": added.transpose(1, 2), "out-in": added}
    for side, expected in sides.items():
        named = ["--packing", side, "--packing", "concatenated", "--force"]
        done = inside(*words, *named, cwd=tmp_path)
        assert done.code == 0, done.err
        found = load_file(tmp_path / "out.safetensors")[name]
        assert loras.units(found, load_file(base)[name] + expected) <= 2, side


@pytest.mark.parametrize("elements", [1, 2 * COLUMNS, 7 * COLUMNS, 1 << 18])
@pytest.mark.parametrize("way", ["concatenated", "interleaved"])
def test_blocks_end_anywhere_in_a_packing(
    way: str, elements: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "ELEMENTS", elements)
    base, adapter = folder / "base.safetensors", folder / "adapter"

    ckpt.merge(base, adapter, packing=way, out=folder / "out.safetensors")

    wanted = load_file(folder / f"{way}-2.safetensors")
    loras.check_same(folder / "out.safetensors", wanted, 2)


def test_parts_of_other_sizes_lie_where_their_own_rows_say(tmp_path: Path) -> None:
    parts = {"a.gate_proj.weight": noise(8, 6), "a.up_proj.weight": noise(4, 6)}
    adapter = loras.pairs(parts)
    whole = torch.cat(list(parts.values()))
    base = loras.save_base({"a.gate_up_proj.weight": whole}, tmp_path / "b.safetensors")
    path = loras.save_adapter(adapter, tmp_path / "adapter")

    ckpt.merge(base, path, packing="concatenated", out=tmp_path / "out.safetensors")

    merged = torch.cat(list(loras.merged(parts, adapter).values()))
    wanted = {"a.gate_up_proj.weight": merged}
    loras.check_same(tmp_path / "out.safetensors", wanted, 2)


@pytest.mark.parametrize("way", ["concatenated", "interleaved"])
def test_a_fused_layer_of_an_adapter_meets_parts(way: str, tmp_path: Path) -> None:
    parts = [noise(ROWS, COLUMNS, seed=seed) for seed in (1, 2)]
    [(name, _)] = fused(*parts, way).items()
    adapter = loras.pairs({name: torch.zeros(2 * ROWS, COLUMNS)})
    added = loras.delta(adapter, name.removesuffix(".weight"), 2.0)
    mine = added.split(ROWS) if way == "concatenated" else (added[::2], added[1::2])
    names = ("a.gate_proj.weight", "a.up_proj.weight")
    state = dict(zip(names, parts, strict=True))
    base = loras.save_base(state, tmp_path / "base.safetensors")
    path = loras.save_adapter(adapter, tmp_path / "adapter")

    ckpt.merge(base, path, packing=way, out=tmp_path / "out.safetensors")

    sums = (part + more for part, more in zip(parts, mine, strict=True))
    wanted = dict(zip(names, sums, strict=True))
    loras.check_same(tmp_path / "out.safetensors", wanted, 2)


@pytest.mark.parametrize(
    "packing",
    [["concatenated", "interleaved"], ["out-in", "in-out"], ["out-in", "x"], "con"],
)
def test_packings_that_exclude_each_other_or_are_none(
    packing: list[str] | str, folder: Path
) -> None:
    with pytest.raises(ckpt.UsageError, match=r"packing=.*(exclude|not one of)"):
        ckpt.merge(
            folder / "base.safetensors",
            folder / "adapter",
            packing=packing,
            out=folder / "out.safetensors",
        )
