"""Messages of real programs that a measure brought, each with a file that the program was given."""

from __future__ import annotations

from pathlib import Path

import deepspeeds
import oracle
import pytest
import torch
from answered import Answered
from inside import inside
from safetensors.torch import load_file

pytestmark = oracle.QUIET

# --- DeepSpeed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1])
def test_states_without_a_stage_are_put_together_by_ckpt(stage: int, tmp_path: Path) -> None:
    made = deepspeeds.saved(1, dtype=torch.bfloat16)
    for state in made.states:
        del state["zero_stage"]
    for model in made.models.values():
        model["ds_config"] = {"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}
    made.write(tmp_path / "run")
    shown = inside("inspect", "run", cwd=tmp_path).out.decode()
    assert "get_fp32_state_dict" not in shown and f"ZeRO-{stage} checkpoint" in shown
    assert "ckpt convert" in shown
    name = next(iter(made.optimizers))
    found = Answered(f"ValueError: run/{name} is not a zero checkpoint", tmp_path / "run")
    assert found.kind == "zero" and "BF16_Optimizer" in found.said
    assert "get_fp32_state_dict" not in found.page
    weights = load_file(found.run("ckpt convert"))
    for name, value in made.live.trained.items():
        assert torch.equal(weights[name], value)


def test_the_call_that_raised_is_no_answer(tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "run", 2)
    text = "ValueError: run/zero_pp_rank_0_mp_rank_00_optim_states.pt is not a zero checkpoint"
    found = Answered(text, tmp_path / "run")
    assert "another folder was given" in found.said and "get_fp32_state_dict" not in found.page
    assert found.commands == ["ckpt convert run -o run.safetensors"]
