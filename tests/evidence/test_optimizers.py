"""What an optimizer is called, by the names of its state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rewriting
import torch
from inside import inside

from ckpt import formats
from ckpt.evidence.optimizers import optimizer_facts
from ckpt.evidence.survey import Survey


@pytest.mark.parametrize(
    ("fields", "family"),
    [
        (("exp_avg", "exp_avg_sq"), "Adam-like"),
        (("exp_avg", "exp_avg_var"), "AdaBelief-like"),
        (("exp_avg", "exp_inf"), "Adamax"),
        (("exp_avg",), "Lion-like"),
        (("momentum_buffer",), "with momentum"),
        (("state1", "state2"), "Adam-like"),
        (("state1",), "with momentum"),
    ],
)
def test_family(fields: tuple[str, ...], family: str, tmp_path: Path) -> None:
    state = {0: {name: torch.ones(2) for name in fields}}
    thing = {
        "optimizer": {"state": state, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    }
    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as checkpoint:
        (section,) = Survey(checkpoint).sections
        assert optimizer_facts(section) == (family, 2, 1, (0.1,), True, False, 0)


def test_a_rate_that_no_float_holds(tmp_path: Path) -> None:
    thing = {
        "optimizer": {
            "state": {},
            "param_groups": [{"lr": 10**400, "params": [0]}, {"lr": 1, "params": [1]}],
        }
    }
    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as checkpoint:
        (section,) = Survey(checkpoint).sections
        assert optimizer_facts(section) == (None, 2, 0, (1.0,), True, False, 0)


def test_moments_of_8_bits_name_the_parameters_without_gradient(tmp_path: Path) -> None:
    """bitsandbytes keeps maps and scales of blocks beside them, of other shapes."""
    weights = {"a.weight": torch.ones(6, 4), "b.weight": torch.ones(5, 4)}
    state = {
        name: torch.zeros(6, 4, dtype=torch.uint8) for name in ("state1", "state2")
    }
    state |= {name: torch.ones(256) for name in ("qmap1", "qmap2")}
    state |= {name: torch.ones(1) for name in ("absmax1", "absmax2")}
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}]
    thing = {
        "model": weights,
        "optimizer": {"state": {0: {"step": 3, **state}}, "param_groups": groups},
    }
    path = rewriting.saved(thing, tmp_path / "a.pt")

    done = inside("inspect", path, "--json", cwd=tmp_path)

    findings = json.loads(done.out)["findings"]
    assert [row["tensors"] for row in findings if row["code"] == "unused"] == [
        ["model.b.weight"]
    ]
