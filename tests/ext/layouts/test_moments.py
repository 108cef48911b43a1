"""`ckpt convert --recipe --optimizer`: moments go the way of their parameters, and the
rest is listed or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import relaid
import torch
from inside import inside
from relaid import State

import ckpt
from ckpt.model.errors import LossError, UsageError

Change = Callable[[State], State]


def trained(
    state: State,
    path: Path,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    frozen: tuple[str, ...] = (),
    groups: Callable[[str], int] | None = None,
    late: tuple[str, ...] = (),
) -> tuple[State, dict[str, State]]:
    """Write a model and its optimizer after two steps; its tensors, and its moments by
    their fields.

    `late` get a gradient in the second step alone.
    """
    parameters = {
        name: torch.nn.Parameter(torch.from_numpy(array.copy()), name not in frozen)
        for name, array in state.items()
    }
    live = [(name, value) for name, value in parameters.items() if value.requires_grad]
    numbers = sorted({groups(name) if groups else 0 for name, _ in live})
    made: Any = optimizer(
        [
            {
                "params": [
                    value for name, value in live if not groups or groups(name) == n
                ],
                "lr": 0.1 + n,
            }
            for n in numbers
        ]
    )
    for step in range(2):
        torch.manual_seed(step)
        for name, value in live:
            value.grad = None if step == 0 and name in late else torch.randn_like(value)
        made.step()
    tensors = {name: value.detach() for name, value in parameters.items()}
    torch.save({"model": tensors, "optimizer": made.state_dict()}, path)
    fields: dict[str, State] = {}
    for name, value in live:
        for field, moment in made.state[value].items():
            if isinstance(moment, torch.Tensor) and moment.shape == value.shape:
                fields.setdefault(field, {})[name] = moment.numpy()
    return {name: value.numpy() for name, value in tensors.items()}, fields


def recipe_between(before: State, change: Change, folder: Path) -> Path:
    """Learn the recipe of a change of layout from a pair of plain files."""
    a = relaid.saved(before, folder / "a.safetensors")
    b = relaid.saved(change(before), folder / "b.safetensors")
    assert ckpt.recipe(a, b, out=folder / "r.json").is_whole
    return folder / "r.json"


@pytest.mark.parametrize(
    "name", ["meta", "qkv by heads", "experts turned", "padded", "split columns"]
)
@pytest.mark.parametrize("out", ["out.pth", "out.dcp"])
def test_moments_go_the_way_of_their_parameters(
    name: str, out: str, tmp_path: Path
) -> None:
    make, change = relaid.LAYOUTS[name]
    recipe = recipe_between(make(np.random.default_rng(1)), change, tmp_path)
    state, moments = trained(make(np.random.default_rng(2)), tmp_path / "train.pth")
    words = {"recipe": recipe, "optimizer": True, "optimizer_keys": "order"}
    report = ckpt.convert(tmp_path / "train.pth", out=tmp_path / out, **words)  # type: ignore[arg-type]
    assert not report.left_out
    with ckpt.open(report.path or "") as made:
        for key, array in change(state).items():
            assert (made[f"model.{key}"].numpy() == array).all()
        for field in ("exp_avg", "exp_avg_sq"):
            for key, array in change(moments[field]).items():
                assert (made[f"optimizer.state.{key}.{field}"].numpy() == array).all()
                assert made[f"optimizer.state.{key}.step"].numpy() == 2
    if out == "out.pth":
        whole = torch.load(report.path or "", weights_only=True)
        parameters = [torch.nn.Parameter(value) for value in whole["model"].values()]
        fresh = torch.optim.AdamW(parameters)
        fresh.load_state_dict(whole["optimizer"])
        assert fresh.param_groups[0]["lr"] == 0.1
        first = next(iter(whole["model"]))
        wanted = whole["optimizer"]["state"][first]["exp_avg"]
        assert torch.equal(fresh.state[parameters[0]]["exp_avg"], wanted)


def test_the_way_back_takes_the_moments_too(tmp_path: Path) -> None:
    make, change = relaid.LAYOUTS["qkv by heads"]
    recipe = recipe_between(make(np.random.default_rng(1)), change, tmp_path)
    before = make(np.random.default_rng(2))
    _, moments = trained(change(before), tmp_path / "train.pth")
    words = {
        "recipe": recipe,
        "optimizer": True,
        "reverse": True,
        "optimizer_keys": "order",
    }
    report = ckpt.convert(tmp_path / "train.pth", out=tmp_path / "out.pth", **words)  # type: ignore[arg-type]
    with ckpt.open(report.path or "") as made:
        back = {key: made[f"optimizer.state.{key}.exp_avg"].numpy() for key in before}
    again = change(back)
    assert all((again[key] == array).all() for key, array in moments["exp_avg"].items())


def _failure(recipe: Path, folder: Path) -> str:
    words = {"recipe": recipe, "optimizer": True, "optimizer_keys": "order"}
    with pytest.raises(LossError) as caught:
        ckpt.convert(folder / "train.pth", out=folder / "out.pth", **words)  # type: ignore[arg-type]
    assert not (folder / "out.pth").exists()
    return str(caught.value)


def test_parameters_with_other_steps_or_groups_do_not_become_one(
    tmp_path: Path,
) -> None:
    make, change = relaid.LAYOUTS["qkv"]
    recipe = recipe_between(make(np.random.default_rng(1)), change, tmp_path)
    trained(
        make(np.random.default_rng(2)), tmp_path / "train.pth", late=("h.1.k.weight",)
    )
    assert "blocks.1.qkv.weight is made of parameters with the step 2, 1" in _failure(
        recipe, tmp_path
    )
    trained(
        make(np.random.default_rng(2)),
        tmp_path / "train.pth",
        groups=lambda name: int(".v.weight" in name),
    )
    assert "blocks.0.qkv.weight is made of h.0.q.weight and h.0.v.weight" in _failure(
        recipe, tmp_path
    )


def test_what_does_not_follow_a_recipe_is_listed(tmp_path: Path) -> None:
    make, change = relaid.LAYOUTS["transposed"]
    recipe = recipe_between(make(np.random.default_rng(1)), change, tmp_path)
    trained(
        make(np.random.default_rng(2)), tmp_path / "train.pth", torch.optim.Adafactor
    )
    words = {"recipe": recipe, "optimizer": True, "optimizer_keys": "order"}
    report = ckpt.convert(tmp_path / "train.pth", out=tmp_path / "out.pth", **words)  # type: ignore[arg-type]
    names = {row.name for row in report.left_out}
    assert "blocks.0.fc.weight: row_var" in names
    make, change = relaid.SCALED
    recipe = recipe_between(make(np.random.default_rng(1)), change, tmp_path / "scaled")
    trained(make(np.random.default_rng(2)), tmp_path / "train.pth")
    words["recipe"] = recipe
    report = ckpt.convert(
        tmp_path / "train.pth", out=tmp_path / "out.pth", force=True, **words
    )  # type: ignore[arg-type]
    assert {row.what for row in report.left_out} == {
        "a number is folded into it, which its moments do not follow"
    }


def test_an_optimizer_needs_a_recipe_and_a_format_that_holds_it(tmp_path: Path) -> None:
    make, change = relaid.LAYOUTS["renamed"]
    recipe = recipe_between(make(np.random.default_rng(1)), change, tmp_path)
    trained(make(np.random.default_rng(2)), tmp_path / "train.pth")
    with pytest.raises(UsageError, match="optimizer= goes with recipe="):
        ckpt.convert(tmp_path / "train.pth", out=tmp_path / "out.pth", optimizer=True)
    words = ("convert", "train.pth", "--recipe", str(recipe), "--optimizer", "-o")
    done = inside(*words, "out.safetensors", cwd=tmp_path)
    assert done.code == 2
    assert b"holds tensors alone" in done.err
    plain = (
        "convert",
        "a.safetensors",
        "--recipe",
        str(recipe),
        "--optimizer",
        "-o",
        "out.pth",
    )
    done = inside(*plain, cwd=tmp_path)
    assert done.code == 2
    assert b"no optimizer whose parameters it knows" in done.err
