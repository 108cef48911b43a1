"""`ckpt recipe` and `ckpt convert --recipe`: a layout is learnt of one pair, and
another checkpoint is brought into it and back.
"""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import paths
import pytest
import relaid
import torch
from process import ckpt as run
from relaid import LAYOUTS, State, holds

import ckpt
from ckpt.ext.layouts import neighbours, rescaled, runs
from ckpt.model.errors import CkptError, LossError, UnreadableError, UsageError

NAMES = "name", sorted(LAYOUTS)


def pair(name: str, seed: int, folder: Path) -> tuple[str, str, State, State]:
    """The paths and the tensors of a pair of one layout."""
    make, change = LAYOUTS[name]
    before = make(np.random.default_rng(seed))
    after = change(before)
    files = [folder / f"{word}{seed}.safetensors" for word in ("a", "b")]
    return relaid.saved(before, files[0]), relaid.saved(after, files[1]), before, after


@pytest.mark.slow
@pytest.mark.parametrize(*NAMES)
def test_a_layout_is_learnt_and_applied(name: str, tmp_path: Path) -> None:
    a, b, _, _ = pair(name, 1, tmp_path)
    report = ckpt.recipe(a, b, out=tmp_path / "recipe.json")
    assert report.is_whole, (report.left, report.unused)
    assert report.exit_code == 0
    other, _, before, after = pair(name, 2, tmp_path)
    out = ckpt.convert(
        other, recipe=tmp_path / "recipe.json", out=tmp_path / "out.safetensors"
    )
    assert holds(out.path, after)
    back = ckpt.convert(
        tmp_path / "out.safetensors",
        recipe=tmp_path / "recipe.json",
        reverse=True,
        out=tmp_path / "back.pth",
    )
    assert holds(back.path, before)


@pytest.mark.parametrize(*NAMES)
def test_the_way_back_is_learnt_too(name: str, tmp_path: Path) -> None:
    a, b, _, _ = pair(name, 1, tmp_path)
    report = ckpt.recipe(b, a, out=tmp_path / "recipe.json")
    assert not report.left
    assert not report.unused
    _, other, before, _ = pair(name, 2, tmp_path)
    out = ckpt.convert(other, recipe=tmp_path / "recipe.json", out=tmp_path / "out.pth")
    assert holds(out.path, before)


@pytest.mark.slow
@pytest.mark.parametrize(*NAMES)
def test_a_recipe_is_proved_on_another_pair(name: str, tmp_path: Path) -> None:
    a, b, _, _ = pair(name, 1, tmp_path)
    other, theirs, _, _ = pair(name, 2, tmp_path)
    ckpt.recipe(a, b, out=tmp_path / "recipe.json")
    assert ckpt.recipe(other, theirs, check=tmp_path / "recipe.json").exit_code == 0
    assert ckpt.recipe(other, b, check=tmp_path / "recipe.json").exit_code == 1


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
def test_a_cast_is_part_of_a_recipe(to: torch.dtype, tmp_path: Path) -> None:
    state = relaid.llama(np.random.default_rng(1))
    a = relaid.saved(state, tmp_path / "a.pth")
    b = relaid.saved(relaid.meta(state), tmp_path / "b.pth", to)
    assert ckpt.recipe(a, b, out=tmp_path / "r.json").is_whole
    other = relaid.llama(np.random.default_rng(2))
    relaid.saved(other, tmp_path / "c.pth")
    out = ckpt.convert(
        tmp_path / "c.pth", recipe=tmp_path / "r.json", out=tmp_path / "d.pth"
    )
    wanted = {
        name: torch.from_numpy(array.copy()).to(to)
        for name, array in relaid.meta(other).items()
    }
    assert out.path is not None
    found = torch.load(out.path)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_numbers_that_were_folded_in_are_found(tmp_path: Path) -> None:
    make, change = relaid.SCALED
    states = {seed: make(np.random.default_rng(seed)) for seed in (1, 2)}
    a, other = (
        relaid.saved(states[seed], tmp_path / f"a{seed}.pth") for seed in (1, 2)
    )
    b = relaid.saved(change(states[1]), tmp_path / "b.pth")
    report = ckpt.recipe(a, b, out=tmp_path / "r.json")
    assert report.is_whole, report.left
    formulas = {
        row.name.split(".")[2]: (row.pieces or ())[0].formula[0] for row in report.made
    }
    assert formulas == {"q": "*", "k": "*", "v": "/", "norm": "+"}
    out = ckpt.convert(other, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert holds(out.path, change(states[2]))
    with pytest.raises(LossError, match="is not taken back"):
        ckpt.convert(
            out.path or "",
            recipe=tmp_path / "r.json",
            reverse=True,
            out=tmp_path / "no.pth",
        )


@pytest.mark.parametrize("name", sorted(relaid.SCALED_AND_TURNED))
def test_a_factor_is_found_in_another_layout(name: str, tmp_path: Path) -> None:
    make, change = relaid.SCALED_AND_TURNED[name]
    states = {seed: make(np.random.default_rng(seed)) for seed in (1, 2)}
    a, other = (
        relaid.saved(states[seed], tmp_path / f"a{seed}.pth") for seed in (1, 2)
    )
    b = relaid.saved(change(states[1]), tmp_path / "b.pth")
    assert ckpt.recipe(a, b, out=tmp_path / "r.json").is_whole
    out = ckpt.convert(other, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert holds(out.path, change(states[2]))
    with pytest.raises(LossError, match="is not taken back"):
        ckpt.convert(
            out.path or "",
            recipe=tmp_path / "r.json",
            reverse=True,
            out=tmp_path / "no.pth",
        )


def test_a_power_of_two_is_taken_back(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).standard_normal((8, 16), dtype=np.float32)
    a = relaid.saved({"w": weight}, tmp_path / "a.pth")
    b = relaid.saved({"x": weight * np.float32(0.125)}, tmp_path / "b.pth")
    assert ckpt.recipe(a, b, out=tmp_path / "r.json").is_whole
    out = ckpt.convert(
        b, recipe=tmp_path / "r.json", reverse=True, out=tmp_path / "out.pth"
    )
    assert holds(out.path, {"w": weight})


@pytest.mark.parametrize("is_trained", [True, False])
def test_the_ranks_of_megatron_are_one_set(is_trained: bool, tmp_path: Path) -> None:
    pairs: dict[int, tuple[str, str]] = {}
    states = {
        seed: relaid.llama(np.random.default_rng(seed), norms=is_trained or seed == 2)
        for seed in (1, 2)
    }
    for seed, state in states.items():
        hf = relaid.saved(state, tmp_path / f"hf{seed}.safetensors")
        pairs[seed] = (
            hf,
            relaid.saved_ranks(relaid.megatron(state), tmp_path / f"ranks{seed}"),
        )
    there = ckpt.recipe(*pairs[1], out=tmp_path / "there.json")
    assert there.is_whole, (there.left, there.unused)
    assert ckpt.recipe(*pairs[2], check=tmp_path / "there.json").is_whole
    assert ckpt.recipe(*reversed(pairs[1]), out=tmp_path / "back.json").is_whole
    for number, words in enumerate(
        ({"recipe": "there.json", "reverse": True}, {"recipe": "back.json"})
    ):
        keywords = {**words, "recipe": tmp_path / str(words["recipe"])}
        out = ckpt.convert(
            pairs[2][1], out=tmp_path / f"out{number}.safetensors", **keywords
        )  # type: ignore[arg-type]
        assert holds(out.path, states[2])


# --- what is not so -------------------------------------------------------------------


def test_other_weights_are_made_of_nothing(tmp_path: Path) -> None:
    a, _, _, _ = pair("meta", 1, tmp_path)
    _, b, _, _ = pair("meta", 2, tmp_path)
    report = ckpt.recipe(a, b)
    assert (report.made, report.exit_code) == ((), 1)
    assert {row.why for row in report.left} == {"no such values in A"}


@pytest.mark.parametrize(
    "name", ["layers.2.attention.wk.weight", "layers.1.attention_norm.weight"]
)
def test_one_changed_element_is_named(name: str, tmp_path: Path) -> None:
    a, _b, _, after = pair("meta", 1, tmp_path)
    after[name] = after[name].copy()
    after[name].reshape(-1)[-1] += 1
    report = ckpt.recipe(a, relaid.saved(after, tmp_path / "c.safetensors"))
    assert [row.name for row in report.left] == [name]
    assert report.exit_code == 1


def test_half_a_tuned_model_is_named(tmp_path: Path) -> None:
    a, _, _before, after = pair("meta", 1, tmp_path)
    changed = [name for name in after if name.startswith(("layers.2", "layers.3"))]
    for name in changed:
        after[name] = after[name] + np.float32(0.01) * np.random.default_rng(
            5
        ).standard_normal(after[name].shape, np.float32)
    report = ckpt.recipe(a, relaid.saved(after, tmp_path / "c.safetensors"))
    assert sorted(row.name for row in report.left) == sorted(changed)
    assert len(report.unused) == len(changed)


def test_what_is_used_nowhere_is_named(tmp_path: Path) -> None:
    a, _b, _before, after = pair("meta", 1, tmp_path)
    del after["layers.3.attention.wv.weight"]
    report = ckpt.recipe(
        a, relaid.saved(after, tmp_path / "c.safetensors"), out=tmp_path / "r.json"
    )
    assert [row.name for row in report.unused] == [
        "model.layers.3.self_attn.v_proj.weight"
    ]
    assert report.exit_code == 1
    out = ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert holds(out.path, after)
    assert [row.name for row in out.left_out] == [
        "model.layers.3.self_attn.v_proj.weight"
    ]


def test_names_decide_only_where_they_say_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ones = np.ones(16, np.float32)
    weight = rng.standard_normal((8, 16), dtype=np.float32)
    a = relaid.saved(
        {"h.0.w": weight, "h.0.one.weight": ones, "h.0.two.weight": ones},
        tmp_path / "a.pth",
    )
    b = relaid.saved(
        {"l.0.w": weight, "l.0.x.weight": ones, "l.0.y.weight": ones},
        tmp_path / "b.pth",
    )
    report = ckpt.recipe(a, b)
    assert {row.name: row.ways for row in report.left} == dict.fromkeys(
        ("l.0.x.weight", "l.0.y.weight"), ("h.0.one.weight", "h.0.two.weight")
    )
    assumed = ckpt.recipe(
        a, b, assume=["l.0.x.weight=h.0.two.weight", "l.0.y.weight=h.0.one.weight"]
    )
    assert assumed.is_whole
    sources = {
        row.name: [piece.source for piece in row.pieces or ()] for row in assumed.made
    }
    assert sources["l.0.x.weight"] == ["h.0.two.weight"]
    with pytest.raises(UsageError, match="no tensor of B"):
        ckpt.recipe(a, b, assume=["nothing=h.0.one.weight"])


def test_many_constants_go_to_their_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.ext.layouts.neighbours._MANY", 3)
    zeros = np.zeros((2, 3), np.float32)
    names = [f"{word}.weight" for word in ("ab", "cd", "ef", "gh", "ij", "kl")]
    a = relaid.saved(dict.fromkeys(names, zeros), tmp_path / "a.pth")
    b = relaid.saved(dict.fromkeys(reversed(names), zeros), tmp_path / "b.pth")
    report = ckpt.recipe(a, b)
    sources = {
        row.name: [piece.source for piece in row.pieces or ()] for row in report.made
    }
    assert sources == {name: [name] for name in names}


def test_many_constants_are_not_compared_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(name: str, other: str) -> bool:
        asked.append(name)
        return False

    monkeypatch.setattr("ckpt.ext.layouts.leftovers.is_of_other_rank", counted)
    zeros = np.zeros((2, 3), np.float32)
    a, b = (
        relaid.saved(
            {f"{side}{row}.w": zeros for row in range(40)}, tmp_path / f"{side}.pth"
        )
        for side in "ab"
    )
    assert not ckpt.recipe(a, b).is_whole
    assert not asked


@pytest.mark.parametrize("prefix", ["module.", "p{}."])
def test_names_are_not_compared_each_with_each(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    real = neighbours.parents_of

    def counted(name: str) -> list[str]:
        nonlocal asked
        asked += 1
        return real(name)

    monkeypatch.setattr(neighbours, "parents_of", counted)
    rng = np.random.default_rng(1)
    before: State = {}
    for layer in range(120):
        weight = rng.standard_normal((2, 3), dtype=np.float32)
        before[f"layers.{layer}.fc.weight"] = weight
        before[f"layers.{layer}.norm.weight"] = np.ones(3, np.float32)
    a = relaid.saved(before, tmp_path / "a.pth")
    after = {
        prefix.format(row) + name: array
        for row, (name, array) in enumerate(before.items())
    }
    b = relaid.saved(after, tmp_path / "b.pth")
    report = ckpt.recipe(a, b)
    assert len(report.made) == 240
    assert asked <= 8 * len(before)


def test_constants_are_told_apart_by_all_of_their_names(tmp_path: Path) -> None:
    ones = np.ones(3, np.float32)
    names = [f"layers.{layer}.{part}.weight" for layer in range(3) for part in "ab"]
    a = relaid.saved(dict.fromkeys(names, ones), tmp_path / "a.pth")
    b = relaid.saved({f"net.model.{name}": ones for name in names}, tmp_path / "b.pth")
    for pair_of in ((a, b), (b, a)):
        report = ckpt.recipe(*pair_of)
        assert report.is_whole, report.left
        assert len(report.by_names) == 6
    twice = relaid.saved(
        {f"{one}.{name}": ones for one in ("net", "ema") for name in names},
        tmp_path / "c.pth",
    )
    report = ckpt.recipe(twice, a)
    assert report.made == ()
    assert report.left[0].ways[:2] == (f"net.{names[0]}", f"net.{names[1]}")


def test_a_copy_must_be_equal_wherever_the_recipe_is_applied(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    weight, other = (rng.standard_normal((8, 16), dtype=np.float32) for _ in range(2))
    a = relaid.saved({"embed": weight, "head": weight}, tmp_path / "a.pth")
    b = relaid.saved({"wte": weight}, tmp_path / "b.pth")
    report = ckpt.recipe(a, b, out=tmp_path / "r.json")
    assert report.is_whole
    assert [(row.name, row.copy_of) for row in report.copies] == [("head", "embed")]
    ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    untied = relaid.saved({"embed": weight, "head": other}, tmp_path / "c.pth")
    with pytest.raises(LossError, match="head must equal embed"):
        ckpt.convert(untied, recipe=tmp_path / "r.json", out=tmp_path / "no.pth")
    there = ckpt.recipe(b, a, out=tmp_path / "t.json")
    assert there.is_whole
    with pytest.raises(LossError, match="would become one, and differ"):
        ckpt.convert(
            untied, recipe=tmp_path / "t.json", reverse=True, out=tmp_path / "no.pth"
        )
    assert not (tmp_path / "no.pth").exists()


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        ("padded by the last row", -1),
        ("padded in front", 0),
        ("rows twice", 1),
        ("heads repeated", -1),
    ],
)
def test_rows_that_repeat_others_must_do_so_wherever_the_recipe_is_applied(
    layout: str, row: int, tmp_path: Path
) -> None:
    a, b, _, after = pair(layout, 1, tmp_path)
    report = ckpt.recipe(b, a, out=tmp_path / "r.json")
    assert report.is_whole
    assert [row.name for row in report.padded] == sorted(after)
    name = sorted(after)[1]
    after[name] = after[name].copy()
    after[name][row, ..., -1] += 1
    other = relaid.saved(after, tmp_path / "c.pth")
    problem = f"{name} must repeat some of its slices, and has other values"
    with pytest.raises(LossError, match=problem):
        ckpt.convert(other, recipe=tmp_path / "r.json", out=tmp_path / "no.pth")
    checked = ckpt.recipe(other, a, check=tmp_path / "r.json")
    assert [row.name for row in checked.unused] == [name]
    words = {"recipe": tmp_path / "r.json", "reverse": True}
    again = ckpt.convert(a, out=tmp_path / "again.pth", **words)  # type: ignore[arg-type]
    assert ckpt.diff(again.path or "", b).same


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda state: state.pop("model.norm.weight"),
            "model.norm.weight is not there",
        ),
        (
            lambda state: state.update(extra=np.ones(3, np.float32)),
            "extra is in no rule",
        ),
        (
            lambda state: state.update(
                {"lm_head.weight": np.ones((51, 32), np.float32)}
            ),
            r"lm_head.weight has the shape \[51, 32\], the recipe says \[50, 32\]",
        ),
    ],
)
def test_another_model_is_refused_by_name(
    change: object, text: str, tmp_path: Path
) -> None:
    a, b, before, _ = pair("meta", 1, tmp_path)
    ckpt.recipe(a, b, out=tmp_path / "r.json")
    change(before)  # type: ignore[operator]
    other = relaid.saved(before, tmp_path / "c.pth")
    with pytest.raises(LossError, match=text):
        ckpt.convert(other, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert not (tmp_path / "out.pth").exists()


# --- recipes as files -----------------------------------------------------------------


def document_of(path: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads(path.read_text())
    return document


def change_rule(document: dict[str, object], rng: np.random.Generator) -> str:
    """Change one rule at random, and tell how."""
    rules = document["rules"]
    assert isinstance(rules, list)
    rule = rules[rng.integers(len(rules))]
    parts = [part for part in rule["of"] if "from_steps" in part]
    dropped = document["dropped"]
    assert isinstance(dropped, list)
    kind = rng.integers(8)
    if kind == 5:
        rows = [rule, *[part for part in rule["of"] if "shape" in part]]
        row = rows[rng.integers(len(rows))]
        row["shape"] = row["shape"][::-1]
        return f"shape in {rule['make']}"
    if kind == 6 and dropped:
        row = dropped[rng.integers(len(dropped))]
        row["elements"] += 1
        return f"elements of {row['tensor']}"
    if kind == 7 and "for" in rule:
        place = next(iter(rule["for"]))
        rule["for"][place] = f"{rule['for'][place]},77"
        return f"values of {place} in {rule['make']}"
    if kind == 0 and parts:
        part = parts[rng.integers(len(parts))]
        key = str(rng.choice(["to", "to_steps", "from_steps", "sizes"]))
        if key == "to":
            part[key] += int(rng.integers(1, 64))
        else:
            index = rng.integers(len(part[key]))
            part[key][index] += int(rng.choice([-1, 1, 7]))
        return f"{key} of {rule['make']}"
    if kind == 1 and parts:
        part = parts[rng.integers(len(parts))]
        part["from"] = (
            int(rng.integers(1, 64))
            if isinstance(part["from"], int)
            else f"{part['from']}+1"
        )
        return f"from of {rule['make']}"
    if kind == 2 and parts and len(set(parts[0]["from_steps"])) > 1:
        part = parts[0]
        part["from_steps"] = [*part["from_steps"][1:], part["from_steps"][0]]
        return f"axes of {rule['make']}"
    other = rules[rng.integers(len(rules))]
    if kind == 3:
        if other["make"] == rule["make"]:
            return ""
        rule["make"], other["make"] = other["make"], rule["make"]
        return "two names exchanged"
    own, theirs = rule["of"][0], other["of"][0]
    if (
        own.get("tensor") == theirs.get("tensor")
        or "tensor" not in own
        or "tensor" not in theirs
    ):
        return ""
    own["tensor"], theirs["tensor"] = theirs["tensor"], own["tensor"]
    return "two sources exchanged"


_DAILY = ("meta", "qkv by heads", "experts interleaved", "padded by the last row")
_TELLING = [name for name in sorted(LAYOUTS) if "before a training" not in name]
"""Norms of ones say nothing: whoever exchanges them changes no byte."""


@pytest.mark.parametrize("name", _TELLING if paths.IS_THOROUGH else _DAILY)
def test_no_changed_recipe_is_accepted(name: str, tmp_path: Path) -> None:
    a, b, _, _ = pair(name, 1, tmp_path)
    ckpt.recipe(a, b, out=tmp_path / "r.json")
    whole = document_of(tmp_path / "r.json")
    for seed in range(paths.many(60, 80)):
        document = document_of(tmp_path / "r.json")
        what = change_rule(document, np.random.default_rng(seed))
        if not what or document == whole:
            continue
        (tmp_path / "changed.json").write_text(json.dumps(document))
        try:
            report = ckpt.recipe(a, b, check=tmp_path / "changed.json")
        except CkptError:
            continue
        assert report.exit_code == 1, (seed, what)


_HOSTILE = {
    "no JSON": "rules = 1",
    "a list": "[]",
    "another document": '{"schema": {"name": "ckpt.diff", "version": 1}}',
    "another version": (
        '{"schema": {"name": "ckpt.layout", "version": 9}, "ckpt": "1", "rules": [], '
        '"dropped": []}'
    ),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_what_is_no_recipe_is_refused(name: str, tmp_path: Path) -> None:
    a, _b, _, _ = pair("renamed", 1, tmp_path)
    (tmp_path / "r.json").write_text(_HOSTILE[name])
    with pytest.raises(UnreadableError) as caught:
        ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert str(tmp_path / "r.json") in str(caught.value)
    assert "\n" not in str(caught.value)


_RULE = {
    "make": "x",
    "shape": [4],
    "dtype": "float32",
    "of": [{"tensor": "y", "shape": [4]}],
}
_PART = {
    "tensor": "y",
    "shape": [4],
    "to": 0,
    "from": 0,
    "sizes": [4],
    "to_steps": [1],
    "from_steps": [1],
}
_STRANGE = {
    "an unknown field": {**_RULE, "run": "rm"},
    "a field of a part": {**_RULE, "of": [{**_PART, "call": "os.system"}]},
    "a huge count": {**_RULE, "of": [{**_PART, "count": 1 << 40, "to_step": 1}]},
    "a huge shape": {**_RULE, "shape": [1 << 61, 1 << 61]},
    "a number below 0": {**_RULE, "shape": [-4]},
    "no number": {**_RULE, "shape": ["4"]},
    "a place without values": {**_RULE, "make": "x.<n>"},
    "a place that does not end": {**_RULE, "make": "x.<n"},
    "many values": {**_RULE, "make": "x.<n>", "for": {"n": "0-999999999"}},
    "values of values": {
        **_RULE,
        "make": "x.<n>.<m>",
        "for": {"n": "0-99999", "m": "0-99999"},
    },
    "many numbers in a name": {**_RULE, "make": "<n>" * 65, "for": {"n": "0-1"}},
    "long names of many tensors": {
        **_RULE,
        "make": f"{'x' * (1 << 20)}<n>",
        "for": {"n": "0-999"},
    },
    "no dtype": {**_RULE, "dtype": "complex999"},
    "more than there is": {**_RULE, "of": [{**_PART, "sizes": [5]}]},
    "a long sum": {**_RULE, "of": [{**_PART, "from": "1+" * 1000 + "1"}]},
    "other lengths": {**_RULE, "of": [{**_PART, "sizes": [2, 2]}]},
    "a huge constant": {
        **_RULE,
        "shape": [1 << 60],
        "of": [
            {"constant": "0x00000000", "to": 0, "sizes": [1 << 60], "to_steps": [1]}
        ],
    },
    "one element many times": {
        **_RULE,
        "shape": [1 << 50],
        "of": [{**_PART, "sizes": [1 << 50], "from_steps": [0]}],
    },
    "nothing many times": {
        **_RULE,
        "make": "x.<n>.<m>",
        "for": {"n": "0-999999", "m": "0-999999"},
        "of": [],
    },
    "a formula": {**_RULE, "of": [{**_RULE["of"][0], "formula": "*__import__('os')"}]},  # type: ignore[index,dict-item]
    "many pieces of one tensor": {
        **_RULE,
        "shape": [1 << 20],
        "of": [
            {
                **_PART,
                "count": 1 << 20,
                "to_step": 1,
                "sizes": [1],
            }
        ],
    },
    "a shape that is deep": {**_RULE, "shape": [[[4]]]},
    "a size of 2^63": {**_RULE, "shape": [1 << 63]},
    "a loop of 2^63": {**_RULE, "of": [{**_PART, "sizes": [1 << 63]}]},
    "a beginning of 2^63": {**_RULE, "of": [{**_PART, "from": 1 << 63}]},
    "a step of 2^61": {
        **_RULE,
        "of": [{**_PART, "sizes": [2], "to_steps": [1 << 61]}],
    },
    "a name that leads elsewhere": {
        **_RULE,
        "of": [{"tensor": "../../y", "shape": [4]}],
    },
    "a negative step": {**_RULE, "of": [{**_PART, "from_steps": [-1]}]},
    "a negative step of B": {**_RULE, "of": [{**_PART, "to": 3, "to_steps": [-1]}]},
    "parts over each other": {**_RULE, "of": [_PART, _PART]},
    "parts that overlap": {
        **_RULE,
        "of": [{**_PART, "sizes": [3]}, {**_PART, "to": 2, "from": 2, "sizes": [2]}],
    },
    "loops that overlap": {
        **_RULE,
        "of": [
            {**_PART, "sizes": [2, 2], "to_steps": [1, 1], "from_steps": [2, 1]},
        ],
    },
    "bits": {
        **_RULE,
        "of": [{"constant": "0xzz", "to": 0, "sizes": [4], "to_steps": [1]}],
    },
}


@pytest.mark.parametrize("name", _STRANGE)
def test_a_strange_rule_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    state = {"y": np.arange(4, dtype=np.float32)}
    a = relaid.saved(state, tmp_path / "a.pth")
    document = {
        "schema": {"name": "ckpt.layout", "version": 1},
        "ckpt": "0",
        "rules": [_STRANGE[name]],
        "dropped": [],
    }
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(CkptError) as caught:
        ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.pth").exists()


@pytest.mark.parametrize(
    "second",
    [
        _RULE,
        {**_RULE, "make": "<n>", "for": {"n": "0-1"}},
        {**_RULE, "make": "x<n-1>", "for": {"n": "1-2"}},
    ],
    ids=["as it is", "by a place", "by two places"],
)
def test_two_rules_for_one_tensor_are_refused(
    second: dict[str, object], tmp_path: Path
) -> None:
    make = {"<n>": "1", "x<n-1>": "x<n>"}.get(str(second["make"]), "x")
    places = {"for": {"n": "0-1"}} if "<" in make else {}
    a = relaid.saved({"y": np.arange(4, dtype=np.float32)}, tmp_path / "a.pth")
    path = recipe_file(tmp_path, [{**_RULE, "make": make, **places}, second])
    with pytest.raises(CkptError, match="two rules make") as caught:
        ckpt.convert(a, recipe=path, out=tmp_path / "out.pth")
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_too_long_names_no_limit(tmp_path: Path) -> None:
    a = relaid.saved({"y": np.arange(4, dtype=np.float32)}, tmp_path / "a.pth")
    with (tmp_path / "r.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(UnreadableError, match="a recipe of 67,108,865 bytes") as caught:
        ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert "--limit" not in str(caught.value)


def recipe_file(folder: Path, rules: object, dropped: object = ()) -> Path:
    """A file of a recipe with these rows."""
    document = {
        "schema": {"name": "ckpt.layout", "version": 1},
        "ckpt": "0",
        "rules": rules,
        "dropped": dropped,
    }
    (folder / "r.json").write_text(json.dumps(document))
    return folder / "r.json"


def test_many_rules_have_no_more_values_than_one_may(tmp_path: Path) -> None:
    a = relaid.saved({"y": np.arange(4, dtype=np.float32)}, tmp_path / "a.pth")
    rules = [
        {**_RULE, "make": f"x{number}.<n>", "for": {"n": "0-1048574"}}
        for number in range(300)
    ]
    with pytest.raises(UnreadableError, match="too many"):
        ckpt.convert(a, recipe=recipe_file(tmp_path, rules), out=tmp_path / "b.pth")


_ZERO = {"constant": "0x00000000", "to": 0, "sizes": [1], "to_steps": [1]}


@pytest.mark.parametrize(
    "more",
    [
        {"make": "x.<n>", "for": {"n": "0-999999"}, "shape": [1], "of": [_ZERO]},
        {"shape": [1 << 18], "of": [{**_ZERO, "count": 1 << 18, "to_step": 1}]},
    ],
    ids=["tensors", "pieces"],
)
@pytest.mark.parametrize("is_check", [False, True], ids=["convert", "check"])
def test_a_small_checkpoint_has_few_pieces(
    more: dict[str, object], is_check: bool, tmp_path: Path
) -> None:
    """A recipe of 300 bytes took 30 s and a gigabyte for a million tensors."""
    a = relaid.saved({"y": np.arange(4, dtype=np.float32)}, tmp_path / "a.pth")
    row = {"tensor": "y", "shape": [4], "dtype": "float32", "elements": 4}
    rules = recipe_file(tmp_path, [{**_RULE, **more}], [row])
    with pytest.raises(UnreadableError, match="pieces of a checkpoint of"):
        if is_check:
            ckpt.recipe(a, a, check=rules)
        else:
            ckpt.convert(a, recipe=rules, out=tmp_path / "b.pth")
    assert not (tmp_path / "b.pth").exists()


def test_a_long_name_is_read_in_one_pass(tmp_path: Path) -> None:
    name = "x" * 2_000_000
    a = relaid.saved({"y": np.arange(4, dtype=np.float32)}, tmp_path / "a.pth")
    rules = recipe_file(tmp_path, [{**_RULE, "make": name}])
    out = ckpt.convert(a, recipe=rules, out=tmp_path / "b.pth")
    assert list(torch.load(out.path or "")) == [name]


@pytest.mark.parametrize("other", ["y", "z"])
def test_copies_of_each_other_are_not_both_dropped(other: str, tmp_path: Path) -> None:
    state = {name: np.arange(4, dtype=np.float32) for name in ("x", "y", "z")}
    a = relaid.saved(state, tmp_path / "a.pth")
    kept = [{**_RULE, "make": "x", "of": [{**_RULE["of"][0], "tensor": "x"}]}]  # type: ignore[index,dict-item]
    row = {"shape": [4], "dtype": "float32", "elements": 4}
    dropped = [
        {**row, "tensor": "y", "equal_to": other},
        {**row, "tensor": "z", "equal_to": "y"},
    ]
    with pytest.raises(LossError, match="which nothing keeps"):
        ckpt.convert(
            a, recipe=recipe_file(tmp_path, kept, dropped), out=tmp_path / "b.pth"
        )
    assert not (tmp_path / "b.pth").exists()


_REPEATED = {"axis": 0, "to": 2, "from": 1, "count": 2, "from_step": 0}
_STRANGE_REPEATS = {
    "an axis that is not there": {**_REPEATED, "axis": 1},
    "slices beyond the end": {**_REPEATED, "count": 3},
    "slices before the first one": {**_REPEATED, "from_step": -2},
    "no slices": {**_REPEATED, "count": 0},
    "a huge count": {**_REPEATED, "count": 1 << 50},
    "an unknown field": {**_REPEATED, "run": "rm"},
}


@pytest.mark.parametrize("name", _STRANGE_REPEATS)
def test_strange_repeats_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    a = relaid.saved({"y": np.ones(4, np.float32)}, tmp_path / "a.pth")
    dropped = {"tensor": "y", "shape": [4], "dtype": "float32", "elements": 2}
    document = {
        "schema": {"name": "ckpt.layout", "version": 1},
        "ckpt": "0",
        "rules": [{**_RULE, "shape": [2], "of": [{**_PART, "sizes": [2]}]}],
        "dropped": [{**dropped, "repeats": [_STRANGE_REPEATS[name]]}],
    }
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(UnreadableError) as caught:
        ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert "\n" not in str(caught.value)
    document["dropped"] = [{**dropped, "repeats": [_REPEATED]}]
    (tmp_path / "r.json").write_text(json.dumps(document))
    ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")


def test_overlapping_and_missing_pieces_do_not_add_up(tmp_path: Path) -> None:
    state = {"y": np.arange(4, dtype=np.float32)}
    a = relaid.saved(state, tmp_path / "a.pth")
    ways = {
        "made twice": [
            {**_PART, "sizes": [2]},
            {**_PART, "sizes": [3], "to": 1, "from": 1},
        ],
        "nothing makes": [{**_PART, "sizes": [3]}],
        "nothing uses": [{**_PART, "sizes": [2]}, {**_PART, "sizes": [2], "to": 2}],
        "has not": [{**_PART, "from": 1}],
        "beyond its end": [{**_PART, "to": 1}],
    }
    for text, parts in ways.items():
        document = {
            "schema": {"name": "ckpt.layout", "version": 1},
            "ckpt": "0",
            "rules": [{**_RULE, "of": parts}],
            "dropped": [],
        }
        (tmp_path / "r.json").write_text(json.dumps(document))
        with pytest.raises(LossError, match=text):
            ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")


def test_names_that_climb_stay_names(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).standard_normal((4, 8), dtype=np.float32)
    a = relaid.saved({"../x": weight, "a<b>c#1": weight[:2]}, tmp_path / "a.pth")
    b = relaid.saved({"/etc/../y": weight.T, "<<n>>.#": weight[:2]}, tmp_path / "b.pth")
    report = ckpt.recipe(a, b, out=tmp_path / "r.json")
    assert report.is_whole
    out = ckpt.convert(a, recipe=tmp_path / "r.json", out=tmp_path / "out.pth")
    assert holds(out.path, {"/etc/../y": weight.T, "<<n>>.#": weight[:2]})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.pth",
        "b.pth",
        "out.pth",
        "r.json",
    ]


def test_what_is_there_in_part_is_not_called_used_nowhere(tmp_path: Path) -> None:
    """Rows of A are in a tensor of B that has others too: no rule makes it of them."""
    rows = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    more = np.random.default_rng(1).standard_normal((10, 16)).astype(np.float32)
    a = relaid.saved({"x": rows}, tmp_path / "a.pth")
    b = relaid.saved({"x": np.concatenate([rows, more])}, tmp_path / "b.pth")
    text = run("recipe", str(a), str(b)).out.decode()

    assert "x  200 of 210 rows are in A" in text
    assert "values of A that no rule uses: 1 tensor\n  x  all of it" in text


@pytest.mark.parametrize("block", [1, 5, 1 << 20])
def test_buffers_are_found_in_blocks_of_any_size(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_BLOCK", block)
    a, b, _, _ = pair("flat buffers", 1, tmp_path)
    assert ckpt.recipe(a, b).is_whole
    assert ckpt.recipe(b, a).is_whole


def test_a_buffer_with_other_elements_is_made_of_nothing(tmp_path: Path) -> None:
    a, _, _, after = pair("flat buffers", 1, tmp_path)
    after["rank.1.flat"][40] += 1
    b = relaid.saved(after, tmp_path / "c.safetensors")
    report = ckpt.recipe(a, b)
    assert [row.name for row in report.left] == ["rank.1.flat"]
    left = [row.name for row in ckpt.recipe(b, a).left]
    assert left[0] == "layers.1.a_weight"  # its first part lies in the other buffer
    assert "layers.0.a_weight" not in left


def test_a_buffer_says_what_its_order_decided(tmp_path: Path) -> None:
    a, b, _, _ = pair("flat buffers", 1, tmp_path)
    by_name = {row.name: row.by for row in ckpt.recipe(b, a).made}
    assert by_name["layers.0.c_few"] == "values"
    assert by_name["layers.0.d_norm"] == "neighbours"


def test_a_buffer_holds_a_tensor_that_begins_like_another(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    whole = relaid.randoms(rng)(6, 8)
    state = {
        "long": whole,
        "rest": relaid.randoms(rng)(5, 7),
        "short": whole[:2].copy(),
    }
    flat = np.concatenate([array.ravel() for array in state.values()])
    a = relaid.saved(state, tmp_path / "a.safetensors")
    b = relaid.saved({"flat": flat}, tmp_path / "b.safetensors")
    assert ckpt.recipe(a, b).is_whole
    assert ckpt.recipe(b, a).is_whole


def test_rows_that_stand_twice_are_taken_in_one_run(tmp_path: Path) -> None:
    weight = relaid.randoms(np.random.default_rng(1))(24, 32)
    twice = np.concatenate([weight, weight])
    a = relaid.saved({"w": twice}, tmp_path / "a.safetensors")
    b = relaid.saved({"w": weight[::-1]}, tmp_path / "b.safetensors")
    report = ckpt.recipe(a, b)
    assert report.is_whole
    (piece,) = report.made[0].pieces or ()
    assert [loop.size for loop in piece.loops] == [24, 32]


def test_a_factor_is_found_where_only_rows_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescaled, "_LONGEST", 32)
    a, b, _, _ = pair("scanned and scaled", 1, tmp_path)
    assert ckpt.recipe(a, b).is_whole


def test_no_column_of_a_large_matrix_is_read_for_a_factor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescaled, "_SPAN", 64)
    a, b, _, _ = pair("scanned and scaled", 1, tmp_path)
    assert not ckpt.recipe(a, b).is_whole


def test_empty_tensors_are_no_trouble_to_a_search(tmp_path: Path) -> None:
    made = relaid.randoms(np.random.default_rng(1))
    state = {"empty": made(0, 64), "flat": made(0), "w": made(16, 16), "x": made(3)}
    other = {"flat": made(300), "none": made(0), "v": made(16, 16)}
    a = relaid.saved(state, tmp_path / "a.pth")
    b = relaid.saved(other, tmp_path / "b.pth")
    for pair_of_paths in ((a, b), (b, a)):
        report = ckpt.recipe(*pair_of_paths)
        assert report.exit_code == 1
        assert len(report.left) == 2


def test_a_buffer_that_repeats_is_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_PLACES", 64)
    eight = np.arange(8, dtype=np.float32)
    matrix = np.concatenate([eight, eight + 1]).reshape(4, 4)
    state = {"buffer": np.tile(eight, 65), "rest": eight[:5] + 9}
    a = relaid.saved({"w": matrix}, tmp_path / "a.safetensors")
    b = relaid.saved(state, tmp_path / "b.safetensors")
    report = ckpt.recipe(b, a)
    assert [row.name for row in report.left] == ["w"]


def test_a_recipe_of_another_pair_counts_the_tensors_of_this_one(
    tmp_path: Path,
) -> None:
    rows = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    a = relaid.saved({"x": rows, "y": rows + 1}, tmp_path / "a.pth")
    b = relaid.saved({"u.x": rows, "u.y": rows + 1}, tmp_path / "b.pth")
    recipe = tmp_path / "r.json"
    assert ckpt.recipe(a, b, out=recipe).is_whole

    done = run("recipe", str(b), str(a), "--check", str(recipe))
    assert done.code == 1
    text = done.out.decode()
    assert text.startswith("0 of 2 tensors of B are made of A, bit for bit\n")
    for title, names, why in (
        ("not made of A", "{x,y}", "the recipe does not make it"),
        ("not in B", "u.{x,y}", "the recipe makes it"),
        ("values of A that no rule uses", "u.{x,y}", "all of it"),
        ("not in A", "{x,y}", "the recipe takes it"),
    ):
        assert f"\n\n{title}: 2 tensors\n  {names}  ×2  {why}\n" in text + "\n"
    document = ckpt.recipe(b, a, check=recipe).to_json()
    assert (document["tensors"], document["made"]) == (2, 0)
    assert [row["name"] for row in document["left"]] == ["x", "y", "u.x", "u.y"]


def test_numbers_of_any_length_stand_in_names(tmp_path: Path) -> None:
    name = f"layers.{'9' * 5_000}.weight"
    torch.save({name: torch.ones(2), "b": torch.zeros(3)}, tmp_path / "a.pth")

    assert run("recipe", "a.pth", "a.pth", cwd=tmp_path).code == 0


def test_a_name_of_thousands_of_numbers_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save({"0." * 4_000 + "w": torch.ones(2), "b": torch.zeros(3)}, path)

    tracemalloc.start()
    try:
        assert ckpt.recipe(path, path).is_whole
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 80_000_000


def test_one_number_alone_is_not_made_of_a(tmp_path: Path) -> None:
    """The headline counts what is made of A, apart from what is of nothing in it."""
    weight = torch.randn(4, 4)
    torch.save({"a.weight": weight}, tmp_path / "a.pth")
    both = {"a.weight": weight, "n.weight": torch.full((4,), 2.0)}
    torch.save(both, tmp_path / "b.pth")
    done = run("recipe", "a.pth", "b.pth", cwd=tmp_path)
    assert done.lines[0] == (
        "1 of 2 tensors of B are made of A, bit for bit, and 1 of one number alone"
    )
