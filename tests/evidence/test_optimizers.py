"""What an optimizer is called, by the names of its state."""

from __future__ import annotations

from pathlib import Path

import pytest
import rewriting
import torch

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
    ],
)
def test_family(fields: tuple[str, ...], family: str, tmp_path: Path) -> None:
    state = {0: {name: torch.ones(2) for name in fields}}
    thing = {
        "optimizer": {"state": state, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    }
    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as checkpoint:
        (section,) = Survey(checkpoint).sections
        assert optimizer_facts(section) == (family, 2, 1, (0.1,), True, False)


def test_a_rate_that_no_float_holds(tmp_path: Path) -> None:
    thing = {
        "optimizer": {
            "state": {},
            "param_groups": [{"lr": 10**400, "params": [0]}, {"lr": 1, "params": [1]}],
        }
    }
    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as checkpoint:
        (section,) = Survey(checkpoint).sections
        assert optimizer_facts(section) == (None, 2, 0, (1.0,), True, False)
