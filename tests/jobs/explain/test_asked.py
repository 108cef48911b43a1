"""Messages of programs that ask for more, or for something else, than the file holds, each with the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered, raised
from inside import folder_of
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

pytestmark = oracle.QUIET

# --- optimizers in a distributed checkpoint ---------------------------------------------------------------------------


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer after a step."""
    model, optimizer = new()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def new() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    return model, torch.optim.AdamW(model.parameters())


def save(state: dict[str, Any], path: Path) -> None:
    dcp.save(state, checkpoint_id=path)


def load(state: dict[str, Any], path: Path) -> dict[str, Any]:
    dcp.load(state, checkpoint_id=path)
    return state


def step_of(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.state_dict()["state"][0]["step"])


@pytest.mark.parametrize("with_model", [True, False])
def test_state_by_names_where_the_load_asks_for_numbers(with_model: bool, tmp_path: Path) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict()} if with_model else {}
    save({**state, "optimizer": get_optimizer_state_dict(model, optimizer)}, tmp_path / "run")
    text = raised(lambda: load({"optimizer": optimizer.state_dict()}, tmp_path / "run"))
    assert "optimizer.state.0.step" in text
    found = Answered(text.splitlines()[-1], tmp_path / "run")
    assert "is here by the names of the parameters (optimizer.state.0.weight.step)" in found.said
    assert "another model" not in found.said and "gradient" not in found.said and not found.commands
    model, optimizer = new()
    filled = load({"optimizer": get_optimizer_state_dict(model, optimizer)}, tmp_path / "run")
    set_optimizer_state_dict(model, optimizer, filled["optimizer"])
    assert step_of(optimizer) == 1


@pytest.mark.parametrize("with_model", [True, False])
def test_state_by_numbers_where_the_load_asks_for_names(with_model: bool, tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 3), "b": torch.nn.Linear(3, 2)})
    optimizer = torch.optim.AdamW(model.parameters())
    asked = get_optimizer_state_dict(model, optimizer)
    state = {"model": model.state_dict()} if with_model else {}
    save({**state, "optimizer": optimizer.state_dict()}, tmp_path / "run")
    text = raised(lambda: load({"optimizer": asked}, tmp_path / "run"))
    assert "optimizer.state.a.weight.step" in text
    found = Answered(text.splitlines()[-1], tmp_path / "run")
    assert "is here by the numbers of the parameters (optimizer.state.0.step)" in found.said
    assert "another model" not in found.said and "never had a gradient" not in found.said
    assert "makes it" in found.said
    fresh = torch.optim.AdamW(model.parameters())
    get_optimizer_state_dict(model, fresh)
    filled = load({"optimizer": fresh.state_dict()}, tmp_path / "run")
    fresh.load_state_dict(filled["optimizer"])
    assert step_of(fresh) == step_of(optimizer)
    if not with_model:  # no names, so no command
        assert not found.commands
        return
    load({"optimizer": asked}, found.run("ckpt convert"))


def test_names_of_a_sequence_are_no_numbers(tmp_path: Path) -> None:
    model, optimizer = trained()
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run")
    text = "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.1.weight.step."
    assert "by the numbers of the parameters" in Answered(text, tmp_path / "run").said


def test_state_at_another_place_had_gradients(tmp_path: Path) -> None:
    model, optimizer = trained()
    named = get_optimizer_state_dict(model, optimizer)
    text = "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.0.weight.step."
    save({"model": model.state_dict(), "optim": named}, tmp_path / "run")
    found = Answered(text, tmp_path / "run")
    assert "The states of this checkpoint are in optim.state" in found.said
    assert "gradient" not in found.said
    save({"model": model.state_dict()}, tmp_path / "weights")
    found = Answered(text, tmp_path / "weights")
    assert "no state of an optimizer at all" in found.said and "gradient" not in found.said


def test_an_option_that_other_groups_have_is_no_newer_one(tmp_path: Path) -> None:
    model, optimizer = trained()
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    save({"optimizer": get_optimizer_state_dict(model, optimizer, options=flat)}, tmp_path / "run")
    text = "RuntimeError: Missing key in checkpoint state_dict: optimizer.param_groups.0.lr."
    found = Answered(text, tmp_path / "run")
    assert "newer torch" not in found.said and "flatten_optimizer_state_dict" in found.said
    assert "optimizer.param_groups.0.bias.lr" in found.said


# --- a model that has more than a distributed checkpoint --------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"0": 2, "1": 2}, {"0": 2, "1": 2, "2": 2}),
        ({"body": 2}, {"body": 2, "new_head": 5}),
    ],
)
@pytest.mark.parametrize("part", ["model", ""])
def test_a_model_with_more_layers_is_filled_in_part(
    part: str, before: dict[str, int], after: dict[str, int], tmp_path: Path
) -> None:
    def state(widths: dict[str, int]) -> dict[str, Any]:
        made = torch.nn.ModuleDict({name: torch.nn.Linear(2, width) for name, width in widths.items()})
        return {part: made.state_dict()} if part else dict(made.state_dict())

    saved = state(before)
    save(saved, tmp_path / "run")
    larger = state(after)
    text = raised(lambda: load(larger, tmp_path / "run"))
    found = Answered(text.splitlines()[-1], tmp_path / "run")
    lines = [line for line in found.commands if "allow_partial_load=True" in line]
    if not part and "new_head" in after:  # nothing shows that it is a key of this model
        assert not lines
        return
    (line,) = lines
    with folder_of(tmp_path):
        eval(line, {"torch": torch, "state": larger})
    ours, theirs = (larger[part], saved[part]) if part else (larger, saved)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_a_key_at_another_place_is_not_left_out(tmp_path: Path) -> None:
    save({"model": torch.nn.Linear(2, 2).state_dict()}, tmp_path / "run")
    found = Answered(
        "RuntimeError: Missing key in checkpoint state_dict: app.model.weight.", tmp_path / "run"
    )
    assert "model.weight in place of app.model.weight" in found.said and not found.commands
    found = Answered(
        "RuntimeError: Missing key in checkpoint state_dict: network.head.bias.", tmp_path / "run"
    )
    assert not found.commands
