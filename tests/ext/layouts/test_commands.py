"""Layouts in the commands: `recipe`, `diff`, `warmstart`, `sum --root`, `verify
--root`, as people use them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import paths
import pytest
import relaid
import safetensors.torch
import scaled
import torch
from inside import inside
from process import SAMPLES, terminal
from relaid import LAYOUTS, State
from safetensors.numpy import save_file
from safetensors.torch import load_file

import ckpt
from ckpt.model.errors import UsageError


def states(name: str = "meta", seed: int = 1) -> tuple[State, State]:
    """The tensors of a pair of one layout."""
    make, change = LAYOUTS[name]
    before = make(np.random.default_rng(seed))
    return before, change(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a pair of Llamas and the recipe between them."""
    before, after = states()
    relaid.saved(before, tmp_path / "hf.safetensors")
    relaid.saved(after, tmp_path / "meta.pth")
    assert (
        inside(
            "recipe", "hf.safetensors", "meta.pth", "-o", "r.json", "-q", cwd=tmp_path
        ).code
        == 0
    )
    return tmp_path


def test_the_answer_stands_in_the_first_line(folder: Path) -> None:
    done = inside("recipe", "hf.safetensors", "meta.pth", cwd=folder)
    assert (done.code, done.lines[0]) == (
        0,
        "39 of 39 tensors of B are made of A, bit for bit",
    )
    assert "layers.<n>.attention.wq.weight  ×4  n 0-3" in done.lines
    assert (
        "  of model.layers.<n>.self_attn.q_proj.weight: rotary halves to pairs, 4 heads"
        in done.lines
    )


def test_a_recipe_is_not_replaced_unasked(folder: Path) -> None:
    again = inside("recipe", "hf.safetensors", "meta.pth", "-o", "r.json", cwd=folder)
    assert again.code == 2
    assert b"r.json" in again.err
    done = inside(
        "recipe", "hf.safetensors", "meta.pth", "-o", "r.json", "--force", cwd=folder
    )
    assert done.code == 0
    assert done.complaints == [
        "ckpt: wrote r.json (ckpt convert A --recipe r.json -o OUT)"
    ]


def test_what_is_left_is_named_with_its_reason(folder: Path) -> None:
    other, _ = states(seed=2)
    relaid.saved(other, folder / "other.safetensors")
    done = inside("recipe", "other.safetensors", "meta.pth", "--json", cwd=folder)
    document = json.loads(done.out)
    assert (done.code, document["made"], len(document["left"])) == (1, 0, 39)
    assert {row["why"] for row in document["left"]} == {"no such values in A"}
    assert len(document["unused"]) == 39


@pytest.mark.parametrize(
    "name", ["qkv by heads", "experts turned", "transposed", "meta"]
)
def test_diff_says_that_values_meet_in_another_layout(
    name: str, tmp_path: Path
) -> None:
    before, after = states(name)
    relaid.saved(before, tmp_path / "a.pth")
    relaid.saved(after, tmp_path / "b.pth")
    line = "same values in another layout: ckpt recipe a.pth b.pth"
    assert line in inside("diff", "a.pth", "b.pth", cwd=tmp_path).lines
    other = {key: array + np.float32(0.5) * (array + 1) for key, array in after.items()}
    relaid.saved(other, tmp_path / "c.pth")
    assert not [
        row
        for row in inside("diff", "a.pth", "c.pth", cwd=tmp_path).lines
        if "layout" in row
    ]


def test_diff_compares_through_a_recipe(folder: Path) -> None:
    done = inside(
        "diff", "hf.safetensors", "meta.pth", "--recipe", "r.json", cwd=folder
    )
    assert (done.code, done.lines[-1]) == (0, "same: 39 tensors")


def test_the_fault_of_a_conversion_is_named(folder: Path) -> None:
    before, after = states()
    after["layers.2.attention.wq.weight"] = before[
        "model.layers.2.self_attn.q_proj.weight"
    ]
    gate, up = (after[f"layers.1.feed_forward.{name}.weight"] for name in ("w1", "w3"))
    after |= {
        "layers.1.feed_forward.w1.weight": up,
        "layers.1.feed_forward.w3.weight": gate,
    }
    relaid.saved(after, folder / "bad.pth")
    report = ckpt.diff(
        folder / "hf.safetensors", folder / "bad.pth", recipe=folder / "r.json"
    )
    assert sorted(report.changed) == [
        "layers.1.feed_forward.w1.weight",
        "layers.1.feed_forward.w3.weight",
        "layers.2.attention.wq.weight",
    ]
    assert (
        "layers.2.attention.wq.weight is model.layers.2.self_attn.q_proj.weight; right "
        "would be model.layers.2.self_attn.q_proj.weight (rotary halves to pairs, 4 "
        "heads)" in report.notes
    )
    assert (
        "layers.1.feed_forward.w1.weight is model.layers.1.mlp.up_proj.weight; right "
        "would be model.layers.1.mlp.gate_proj.weight" in report.notes
    )


def test_a_warm_start_lays_the_weights_out_first(folder: Path) -> None:
    _, after = states()
    fresh = {name: np.zeros_like(array) for name, array in after.items()}
    relaid.saved(fresh, folder / "fresh.safetensors")
    refused = inside(
        "warmstart",
        "hf.safetensors",
        "--into",
        "fresh.safetensors",
        "-o",
        "no.safetensors",
        cwd=folder,
    )
    assert refused.code == 1
    assert (
        b"same shapes, other layout" in refused.err
        and b"--recipe RECIPE" in refused.err
    )
    words = (
        "--recipe",
        "r.json",
        "--into",
        "fresh.safetensors",
        "-o",
        "out.safetensors",
    )
    assert inside("warmstart", "hf.safetensors", *words, cwd=folder).code == 0
    found = load_file(folder / "out.safetensors")
    assert all((found[name].numpy() == array).all() for name, array in after.items())
    with pytest.raises(UsageError, match="prints no recipe"):
        ckpt.warmstart(
            folder / "hf.safetensors",
            into=folder / "fresh.safetensors",
            recipe=folder / "r.json",
            print_code=True,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experts with biases", "padded", "rows and columns"])
def test_small_blocks_give_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = states(name)
    a, b = (
        relaid.saved(before, tmp_path / "a.pth"),
        relaid.saved(after, tmp_path / "b.pth"),
    )
    whole = ckpt.recipe(a, b, out=tmp_path / "whole.json")
    ckpt.convert(a, recipe=tmp_path / "whole.json", out=tmp_path / "whole.safetensors")
    for constant, size in paths.SMALL.items():
        if ".layouts." in constant:
            monkeypatch.setattr(constant, size)
    small = ckpt.recipe(a, b, out=tmp_path / "small.json")
    ckpt.convert(a, recipe=tmp_path / "small.json", out=tmp_path / "small.safetensors")
    assert whole.recipe == small.recipe
    assert (tmp_path / "whole.safetensors").read_bytes() == (
        tmp_path / "small.safetensors"
    ).read_bytes()
    ckpt.convert(
        tmp_path / "small.safetensors",
        recipe=tmp_path / "small.json",
        reverse=True,
        out=tmp_path / "back.safetensors",
    )
    found = load_file(tmp_path / "back.safetensors")
    assert all((found[key].numpy() == array).all() for key, array in before.items())


@pytest.mark.parametrize("out", ["out.safetensors", "out.pth", "out.dcp"])
def test_a_recipe_writes_every_format(out: str, folder: Path) -> None:
    report = ckpt.convert(
        folder / "hf.safetensors", recipe=folder / "r.json", out=folder / out
    )
    assert ckpt.diff(report.path or "", folder / "meta.pth").same
    again = ckpt.convert(
        report.path or "",
        recipe=folder / "r.json",
        reverse=True,
        out=folder / "back.pth",
    )
    assert ckpt.diff(again.path or "", folder / "hf.safetensors").same


def test_shards_are_written_too(folder: Path) -> None:
    ckpt.convert(
        folder / "hf.safetensors",
        recipe=folder / "r.json",
        out=folder / "s.safetensors",
        shard_size="20KB",
    )
    assert len(list(folder.glob("s-0*.safetensors"))) > 3
    assert ckpt.diff(folder / "s.safetensors.index.json", folder / "meta.pth").same


# --- one hash -------------------------------------------------------------------------


def root_of(path: Path | str, **keywords: bool) -> str:
    """The hash of all of a checkpoint."""
    report = ckpt.sum(path, **(keywords or {"root": True}))
    assert report.whole is not None
    return report.whole[1]


@pytest.mark.needs("dcp")
def test_a_root_is_the_same_in_every_format(folder: Path) -> None:
    root = root_of(folder / "hf.safetensors")
    for out in ("a.pth", "a.dcp"):
        ckpt.convert(folder / "hf.safetensors", out=folder / out)
        assert root_of(folder / out) == root
        assert ckpt.verify(folder / out, root=root).verdict == "intact"
    ckpt.convert(
        folder / "hf.safetensors", out=folder / "s.safetensors", shard_size="20KB"
    )
    assert root_of(folder / "s.safetensors.index.json") == root
    done = inside("sum", "--root", "hf.safetensors", cwd=folder)
    assert done.lines == [f"{root}  hf.safetensors"]


def test_a_root_knows_names_and_each_element(folder: Path) -> None:
    before, _ = states()
    root = root_of(folder / "hf.safetensors")
    changed = {**before, "lm_head.weight": before["lm_head.weight"].copy()}
    changed["lm_head.weight"][-1, -1] += 1
    renamed = {name.replace("lm_head", "head"): array for name, array in before.items()}
    for number, state in enumerate((changed, renamed)):
        path = relaid.saved(state, folder / f"{number}.pth")
        assert root_of(path) != root
        report = ckpt.verify(path, root=root)
        assert report.verdict == "damaged"
        assert (
            root in {root_of(folder / "hf.safetensors")}
            and root_of(path) in report.problems[-1].what
        )
    with pytest.raises(UsageError, match="not a hash"):
        ckpt.verify(folder / "hf.safetensors", root="abc")


def test_values_are_the_same_in_every_layout(folder: Path) -> None:
    _, after = states()
    values = root_of(folder / "hf.safetensors", values=True)
    assert root_of(folder / "meta.pth", values=True) == values
    swapped = {**after, "norm.weight": after["norm.weight"].copy()}
    swapped["norm.weight"][[0, 1]] = swapped["norm.weight"][[1, 0]]
    assert root_of(relaid.saved(swapped, folder / "s.pth"), values=True) == values
    swapped["norm.weight"][0] *= 2
    assert root_of(relaid.saved(swapped, folder / "t.pth"), values=True) != values


def test_what_is_left_is_told_in_groups(tmp_path: Path) -> None:
    """Twelve layers with one reason are one row, and so are the ways between them."""
    noise = np.random.default_rng(0)
    before: State = {}
    after: State = {}
    for layer in range(12):
        before[f"layers.{layer}.up.weight"] = noise.normal(size=(3, 5))
        after[f"net.layers.{layer}.up.weight"] = noise.normal(size=(3, 5))
        before[f"layers.{layer}.norm.weight"] = np.ones(7)
        after[f"net.{11 - layer}.scale"] = np.ones(7)
    relaid.saved(before, tmp_path / "a.safetensors")
    relaid.saved(after, tmp_path / "b.safetensors")
    done = inside("recipe", "a.safetensors", "b.safetensors", cwd=tmp_path)
    assert done.code == 1
    rows = [line for line in done.lines if "no such values in A" in line]
    assert rows == ["  net.layers.0-11.up.weight  ×12  no such values in A"], done
    assert "  layers.0-11.{norm,up}.weight  ×24  all of it" in done.lines
    ways = "whose: layers.0-7.norm.weight ×8 (--assume takes one)"
    assert sum(line.endswith(ways) for line in done.lines) == 1, done
    listed = [row["name"] for row in ckpt.recipe(
        tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    ).to_json()["left"]]  # fmt: skip
    assert len(listed) == 24


@pytest.mark.parametrize("order", [1, -1])
def test_a_quantised_side_is_compared_by_diff(order: int, tmp_path: Path) -> None:
    names = ["llama_base.safetensors", "llama_q8_0.gguf"][::order]
    for name in names:
        shutil.copy(SAMPLES / name, tmp_path)
    done = inside("recipe", *names, cwd=tmp_path)
    assert done.code == 1
    assert done.lines[1].startswith("One side is quantised and the other is not")
    assert done.lines[2] == f"  ckpt diff {names[0]} {names[1]}"
    assert inside("diff", *names, cwd=tmp_path).code in (0, 1)
    same = inside("recipe", names[0], names[0], cwd=tmp_path)
    assert "quantised" not in same.out.decode()


@pytest.mark.parametrize("scheme", ["gptq", "awq", "by_row", "four_bits"])
def test_integers_with_scales_are_a_quantised_side(scheme: str, tmp_path: Path) -> None:
    quantised = getattr(scaled, scheme)()
    safetensors.torch.save_file(quantised, tmp_path / "q.safetensors")
    plain = {"model.embed_tokens.weight": torch.randn(8, 8)}
    safetensors.torch.save_file(plain, tmp_path / "a.safetensors")
    done = inside("recipe", "a.safetensors", "q.safetensors", cwd=tmp_path)
    assert done.code == 1
    assert "  ckpt diff a.safetensors q.safetensors" in done.lines, done


def test_no_line_of_a_recipe_is_broken_by_a_narrow_screen(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    names = ["attn_k", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_gate"]
    before = {
        f"model.layers.{layer}.{name}.weight": random.standard_normal((4, 4)).astype(
            "f4"
        )
        for layer in range(8)
        for name in names
    }
    after = {name: random.standard_normal((4, 4)).astype("f4") for name in before}
    save_file(before | {"same": np.arange(9.0)}, tmp_path / "a.safetensors")
    save_file(after | {"same": np.arange(9.0)}, tmp_path / "b.safetensors")
    seen = terminal(
        "recipe",
        "a.safetensors",
        "b.safetensors",
        code=1,
        cwd=tmp_path,
        NO_COLOR="1",
        TERM="dumb",
    )
    assert "×48" in seen and max(map(len, seen.splitlines())) <= 80, seen


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("meta", "ckpt recipe A B -o RECIPE writes one; the only word is transformers, "
            "for a GGUF"),
        ("transformer", "did you mean transformers?"),
        ("transformers", "transformers is for a GGUF; ckpt recipe A B -o RECIPE writes "
            "one for a pair"),
        ("to_meta.json", "ckpt recipe A B -o RECIPE writes one"),
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_answered_by_what_there_is(
    word: str, hint: str, tmp_path: Path
) -> None:
    torch.save({"a.weight": torch.ones(2)}, tmp_path / "a.pth")
    for command in ("convert a.pth", "warmstart a.pth --into a.pth"):
        done = inside(*command.split(), "--recipe", word, "-o", "b.pth", cwd=tmp_path)
        assert done.code == 2
        assert done.complaints == [f"ckpt: {word}: no such file ({hint})"]


def test_a_fault_of_many_long_names_is_said_in_full(tmp_path: Path) -> None:
    """Query, key and value in one tensor, in another order than the recipe's."""
    begin = "model.language_model.decoder.layers.0.self_attention_of_the_decoder"
    parts = {
        f"{begin}.{name}_proj.weight": torch.randn(16, 16) for name in ("q", "k", "v")
    }
    q, k, v = parts.values()
    safetensors.torch.save_file(parts, tmp_path / "a.safetensors")
    torch.save({"h.0.mixer.Wqkv.weight": torch.cat([q, k, v])}, tmp_path / "b.pth")
    torch.save({"h.0.mixer.Wqkv.weight": torch.cat([k, q, v])}, tmp_path / "bad.pth")
    made = inside("recipe", "a.safetensors", "b.pth", "-o", "r.json", cwd=tmp_path)
    assert made.code == 0

    done = inside(
        "diff", "a.safetensors", "bad.pth", "--recipe", "r.json", cwd=tmp_path
    )

    (line,) = (row for row in done.lines if "right would be" in row)
    right = line.partition("right would be ")[2]
    assert [right.find(f"{name}_proj.weight") for name in "qkv"] == sorted(
        right.find(f"{name}_proj.weight") for name in "qkv"
    )
    assert right.endswith("v_proj.weight") and "…" not in line
