"""Fields of the document `ckpt.inspect` that only programs and pages read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from process import SAMPLES
from reports import inspected


def states(path: Path) -> dict[str, dict[str, Any]]:
    """What the optimizer knows of each parameter."""
    return {
        row["name"]: row["optimizer_state"]
        for row in inspected(path)["tensors"]
        if "optimizer_state" in row
    }


def test_the_optimizer_tells_its_steps_of_each_parameter() -> None:
    found = states(SAMPLES / "train_cuda.pth")

    never = {name for name, state in found.items() if not state["held"]}
    assert never == {"model.module.aux_head.weight", "model.module.aux_head.bias"}
    assert len(found) == 25 and not any("running" in name for name in found)
    assert all(
        found[name] == {"held": False, "steps": 0, "of": 12, "zero": False}
        for name in never
    )
    rest = [state for name, state in found.items() if name not in never]
    assert all(
        state == {"held": True, "steps": 12, "of": 12, "zero": False} for state in rest
    )


def test_the_state_of_an_optimizer_names_its_parameter() -> None:
    rows = {row["name"]: row for row in inspected()["tensors"]}

    assert rows["optimizer.state.1.exp_avg"]["parameter"] == "model.module.bn1.weight"
    assert not [
        name
        for name, row in rows.items()
        if "parameter" in row and row["role"] != "optimizer"
    ]


def trained(path: Path, make: Any, steps: int = 3, **options: Any) -> Path:
    """A checkpoint of a model whose second layer has a gradient in the first step only,
    and whose third never.
    """
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {
            "a": torch.nn.Linear(3, 4),
            "b": torch.nn.Linear(3, 5),
            "c": torch.nn.Linear(3, 6),
        }
    )
    optimizer = make(model.parameters(), **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model["a"](torch.ones(3)).sum() + (
            model["b"](torch.ones(3)).sum() if step == 0 else 0
        )
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def test_a_counter_that_lags_is_told(tmp_path: Path) -> None:
    found = states(trained(tmp_path / "x.pth", torch.optim.Adam))

    assert found["model.a.weight"] == {"held": True, "steps": 3, "of": 3, "zero": False}
    assert found["model.b.weight"] == {"held": True, "steps": 1, "of": 3, "zero": False}
    assert found["model.c.weight"] == {
        "held": False,
        "steps": 0,
        "of": 3,
        "zero": False,
    }


def test_an_optimizer_without_counters_has_state_and_no_steps(tmp_path: Path) -> None:
    found = states(trained(tmp_path / "x.pth", torch.optim.SGD, lr=0.1, momentum=0.9))

    assert found["model.a.weight"] == {
        "held": True,
        "steps": None,
        "of": None,
        "zero": False,
    }
    assert found["model.c.weight"] == {
        "held": False,
        "steps": None,
        "of": None,
        "zero": False,
    }


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS])
def test_an_optimizer_that_says_nothing_is_silent(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "x.pth"
    if make is torch.optim.SGD:
        trained(path, make, lr=0.1)
    else:
        model = torch.nn.Linear(3, 4)
        optimizer = make(model.parameters())

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.ones(3)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path
        )

    assert states(path) == {}


@pytest.mark.parametrize("counter", [math.inf, math.nan])
def test_a_damaged_counter_is_no_number(tmp_path: Path, counter: float) -> None:
    path = trained(tmp_path / "x.pth", torch.optim.Adam)
    saved = torch.load(path)
    saved["optimizer"]["state"][0]["step"] = torch.tensor(counter)
    torch.save(saved, path)

    assert states(path)["model.a.weight"]["steps"] is None


@pytest.mark.needs("folders")
def test_the_files_of_a_set_have_their_bytes() -> None:
    for name in ("dcp", "sharded"):
        file = inspected(SAMPLES / name)["file"]
        sizes = [
            None if part == "config.json" else (SAMPLES / name / part).stat().st_size
            for part in file["parts"]
        ]
        assert file["part_bytes"] == sizes and len(sizes) >= 2
    assert inspected(SAMPLES / "train_cuda.pth")["file"]["part_bytes"] is None
