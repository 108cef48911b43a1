"""Situations of issue trackers, each with the message that the library raises: no answer is that of another problem."""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered, raised

pytestmark = oracle.QUIET


# --- distributed checkpoints ------------------------------------------------------------------------------------------


def saved_parts(path: Path, inner: str) -> dict[str, torch.Tensor]:
    """Save layers whose names have the attribute of a wrapper inside, and return them."""
    parts = {f"layers.{number}{inner}.wq.weight": torch.ones(2, 2) for number in range(3)}
    dcp.save({"embed.weight": torch.ones(3, 2), **parts}, checkpoint_id=str(path), no_dist=True)
    return parts


def traced(text: str) -> str:
    """A message below a traceback whose last line of source has the f-string of the message."""
    return (
        'Traceback (most recent call last):\n  File "default_planner.py", line 495, in create_default_local_load_plan\n'
        '    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")\n' + text
    )


@pytest.mark.parametrize("inner", ["._orig_mod", "._checkpoint_wrapped_module", "._fsdp_wrapped_module"])
def test_keys_under_a_wrapper_inside_are_found(inner: str, tmp_path: Path) -> None:
    parts = saved_parts(tmp_path / "step-9", inner)
    wanted = {name.replace(inner, ""): value for name, value in parts.items()}
    text = raised(lambda: dcp.load(dict(wanted), checkpoint_id=str(tmp_path / "step-9"), no_dist=True))

    found = Answered(traced(text), tmp_path / "step-9")

    assert found.kind == "distributed" and "{fqn}" not in found.page
    assert found.said.startswith("1 key is in this checkpoint under the attribute of a wrapper: layers.")
    assert "not in this checkpoint" not in found.page
    dcp.load(dict(wanted), checkpoint_id=str(found.run("ckpt strip")), no_dist=True)


def test_keys_of_a_wrapped_model_are_found(tmp_path: Path) -> None:
    saved_parts(tmp_path / "step-9", "")
    model = {"layers.0._orig_mod.wq.weight": torch.ones(2, 2)}
    text = raised(lambda: dcp.load(model, checkpoint_id=str(tmp_path / "step-9"), no_dist=True))

    found = Answered(traced(text), tmp_path / "step-9")

    assert "1 key is in this checkpoint without the attribute of a wrapper: layers.0.wq.weight." in found.said
    assert "not in this checkpoint" not in found.page and not found.commands


def test_a_flat_parameter_is_told_from_another_model(tmp_path: Path) -> None:
    path = tmp_path / "step-9"
    dcp.save({"model": {"embed.weight": torch.ones(6, 4)}}, checkpoint_id=str(path), no_dist=True)
    for shape, is_flat in (((12,), True), ((24,), True), ((6, 3), False), ((7,), False)):
        state = {"model": {"embed.weight": torch.ones(shape)}}
        text = raised(lambda state=state: dcp.load(state, checkpoint_id=str(path), no_dist=True))

        found = Answered(text, path)

        assert ("flat parameter of FSDP" in found.said) is is_flat, shape
        if is_flat:
            assert f"{shape[0]} of its 24 elements" in found.said
