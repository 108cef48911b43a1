"""Messages of programs that ask for more, or for something else, than the file holds,
each with the file.
"""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered, raised
from inside import folder_of
from safetensors.torch import load_model, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

pytestmark = oracle.QUIET

# --- optimizers in a distributed checkpoint -------------------------------------------


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
def test_state_by_names_where_the_load_asks_for_numbers(
    with_model: bool, tmp_path: Path
) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict()} if with_model else {}
    save(
        {**state, "optimizer": get_optimizer_state_dict(model, optimizer)},
        tmp_path / "run",
    )
    text = raised(lambda: load({"optimizer": optimizer.state_dict()}, tmp_path / "run"))
    assert "optimizer.state.0.step" in text
    found = Answered(text.splitlines()[-1], tmp_path / "run")
    assert (
        "is here by the names of the parameters (optimizer.state.0.weight.step)"
        in found.said
    )
    assert (
        "another model" not in found.said
        and "gradient" not in found.said
        and not found.commands
    )
    model, optimizer = new()
    filled = load(
        {"optimizer": get_optimizer_state_dict(model, optimizer)}, tmp_path / "run"
    )
    set_optimizer_state_dict(model, optimizer, filled["optimizer"])
    assert step_of(optimizer) == 1


@pytest.mark.parametrize("with_model", [True, False])
def test_state_by_numbers_where_the_load_asks_for_names(
    with_model: bool, tmp_path: Path
) -> None:
    model = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(4, 3), "b": torch.nn.Linear(3, 2)}
    )
    optimizer = torch.optim.AdamW(model.parameters())
    asked = get_optimizer_state_dict(model, optimizer)
    state = {"model": model.state_dict()} if with_model else {}
    save({**state, "optimizer": optimizer.state_dict()}, tmp_path / "run")
    text = raised(lambda: load({"optimizer": asked}, tmp_path / "run"))
    assert "optimizer.state.a.weight.step" in text
    found = Answered(text.splitlines()[-1], tmp_path / "run")
    assert (
        "is here by the numbers of the parameters (optimizer.state.0.step)"
        in found.said
    )
    assert (
        "another model" not in found.said and "never had a gradient" not in found.said
    )
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
    save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "run",
    )
    text = (
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optimizer.state.1.weight.step."
    )
    assert "by the numbers of the parameters" in Answered(text, tmp_path / "run").said


def test_state_at_another_place_had_gradients(tmp_path: Path) -> None:
    model, optimizer = trained()
    named = get_optimizer_state_dict(model, optimizer)
    text = (
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optimizer.state.0.weight.step."
    )
    save({"model": model.state_dict(), "optim": named}, tmp_path / "run")
    found = Answered(text, tmp_path / "run")
    assert "The states of this checkpoint are in optim.state" in found.said
    assert "gradient" not in found.said
    save({"model": model.state_dict()}, tmp_path / "weights")
    found = Answered(text, tmp_path / "weights")
    assert (
        "no state of an optimizer at all" in found.said and "gradient" not in found.said
    )


def test_an_option_that_other_groups_have_is_no_newer_one(tmp_path: Path) -> None:
    model, optimizer = trained()
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    save(
        {"optimizer": get_optimizer_state_dict(model, optimizer, options=flat)},
        tmp_path / "run",
    )
    text = (
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optimizer.param_groups.0.lr."
    )
    found = Answered(text, tmp_path / "run")
    assert (
        "newer torch" not in found.said and "flatten_optimizer_state_dict" in found.said
    )
    assert "optimizer.param_groups.0.bias.lr" in found.said


# --- a model that has more than a distributed checkpoint ------------------------------


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
        made = torch.nn.ModuleDict(
            {name: torch.nn.Linear(2, width) for name, width in widths.items()}
        )
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
        "RuntimeError: Missing key in checkpoint state_dict: app.model.weight.",
        tmp_path / "run",
    )
    assert (
        "model.weight in place of app.model.weight" in found.said and not found.commands
    )
    found = Answered(
        "RuntimeError: Missing key in checkpoint state_dict: network.head.bias.",
        tmp_path / "run",
    )
    assert not found.commands


# --- adapters -------------------------------------------------------------------------

_LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
_OF_BASE = ["base_model.model.model.embed_tokens.weight", f"{_LAYER}.base_layer.weight"]


def adapter(folder: Path) -> Path:
    """A folder of PEFT."""
    folder.mkdir()
    state = {f"{_LAYER}.lora_{part}.weight": torch.ones(2, 2) for part in "AB"}
    save_file(state, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": "org/llama"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_a_base_model_is_missing_in_an_adapter(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "lora")
    found = Answered(
        f"_IncompatibleKeys(missing_keys={_OF_BASE!r}, unexpected_keys=[])", folder
    )
    assert (
        "2 missing keys are of the base model" in found.said
        and "all of this file has its place" in found.said
    )
    assert found.commands == [
        'peft.PeftModel.from_pretrained(base, "lora")  # base is "org/llama"'
    ]
    assert "under a name that ckpt can match" not in found.said


def test_an_adapter_of_another_name_has_no_values(tmp_path: Path) -> None:
    names = [
        *_OF_BASE,
        f"{_LAYER}.lora_A.default.weight",
        f"{_LAYER}.lora_B.default.weight",
    ]
    text = f"_IncompatibleKeys(missing_keys={names!r}, unexpected_keys=[])"
    found = Answered(text, adapter(tmp_path / "lora"))
    assert (
        "an adapter of another name" in found.said and "has its place" not in found.said
    )
    assert found.names == names[2:] and not any(
        "load_into" in line for line in found.commands
    )


def test_a_file_with_the_base_model_is_no_adapter(tmp_path: Path) -> None:
    names = [
        f"{_LAYER}.base_layer.weight",
        f"{_LAYER}.lora_A.weight",
        f"{_LAYER}.lora_B.weight",
    ]
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "m.safetensors")
    text = (
        "_IncompatibleKeys(missing_keys=['base_model.model.norm.weight'], "
        "unexpected_keys=[])"
    )
    assert (
        "are of the base model" not in Answered(text, tmp_path / "m.safetensors").said
    )


# --- devices, recurrent layers, code --------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cuda1", "write cuda:1."),
        ("cuda_0", "write cuda:0."),
        ("gpu", "with a number."),
        ("cuda:0,1", "with a number."),
    ],
)
def test_the_name_of_a_device_is_no_matter_of_a_file(
    name: str, meant: str, tmp_path: Path
) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "m.pth")
    found = Answered(raised(lambda: torch.device(name)), tmp_path / "m.pth")
    assert found.kind == "device-name" and found.code == 0
    assert "no file is its cause" in found.said and found.said.split(" It loads")[
        0
    ].endswith(meant)
    assert found.loaded()["weight"].numel() == 2


class Recurrent(torch.nn.Module):
    """A model with a GRU whose weights lie in one memory, as cuDNN lays them."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(2, 3)
        flat = torch.cat(
            [value.detach().reshape(-1) for value in self.gru.parameters()]
        )
        start = 0
        for value in self.gru.parameters():
            value.data = flat[start : start + value.numel()].view(value.shape)
            start += value.numel()


def test_the_weights_of_a_recurrent_layer_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"gru.weight_ih_l0": torch.ones(9, 2)}, path)
    found = Answered(raised(lambda: load_model(Recurrent(), path)), path)
    assert found.kind == "shared" and found.code == 0
    assert (
        "(gru.weight_hh_l0)" in found.said and "safe_serialization=False" in found.said
    )
    assert "nothing in this file" not in found.said
    text = raised(
        lambda: load_model(torch.nn.ModuleDict({"gru": torch.nn.GRU(2, 3)}), path)
    )
    found = Answered(text, path)
    assert found.kind == "keys" and "their values are not in this file" in found.said
    assert not any("load_into" in line for line in found.commands)


def test_a_whole_recurrent_layer_has_lost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    state = {name: value.clone() for name, value in Recurrent().state_dict().items()}
    save_file(state, path)
    found = Answered(raised(lambda: load_model(Recurrent(), path)), path)
    assert (
        "not in this file" not in found.said and found.loaded().keys() == state.keys()
    )
    torch.save({"gru.weight_ih_l0": torch.ones(9, 2)}, tmp_path / "m.pth")
    text = (
        "Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "
        '"gru.weight_hh_l0". '
    )
    assert "one memory" not in Answered(text, tmp_path / "m.pth").said


def test_code_is_imported_from_the_root_of_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("architecture_of_theirs")
    module.Settings = type("Settings", (), {"__module__": module.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings = module.Settings()
    settings.kernels = [5, 11]
    (tmp_path / "p.pkl").write_bytes(pickle.dumps([settings, "Encoder"]))
    monkeypatch.delitem(sys.modules, module.__name__)
    text = raised(lambda: pickle.loads((tmp_path / "p.pkl").read_bytes()))
    found = Answered(text, tmp_path / "p.pkl")
    assert (
        "where architecture_of_theirs can be imported" in found.said
        and "PYTHONPATH" in found.said
    )
    assert "weights" not in found.said and found.run("ckpt convert").stat().st_size
    other = Answered("ModuleNotFoundError: No module named 'yaml'", tmp_path / "p.pkl")
    assert "PYTHONPATH" not in other.said
