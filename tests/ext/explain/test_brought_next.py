"""Situations of public threads of training, of robots and of questions without an error:
what is said is true of the file, and what is printed is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered
from inside import folder_of
from safetensors.torch import save_file
from torch import nn

import ckpt

pytestmark = oracle.QUIET


def tensors(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Tensors of some shapes, with `__` for a dot in their names."""
    return {name.replace("__", "."): torch.randn(s) for name, s in shapes.items()}


def mismatched(name: str, here: tuple[int, ...], there: tuple[int, ...]) -> str:
    """A line of torch about a tensor of another shape."""
    return (
        f"\tsize mismatch for {name}: copying a param with shape "
        f"{torch.Size(here)} from checkpoint, the shape in current model is "
        f"{torch.Size(there)}.\n"
    )


def evaluate(line: str, folder: Path, **names: Any) -> dict[str, Any]:
    """Run a printed line of Python in a folder, and return its variables."""
    held = {"torch": torch, "ckpt": ckpt, **names}
    with folder_of(folder):
        exec(line, held)
    return held


# --- shapes ---------------------------------------------------------------------------


def test_poses_are_no_classes(tmp_path: Path) -> None:
    torch.save({"model_state_dict": tensors(r=(17, 3), t=(17, 3))}, tmp_path / "p.pth")
    text = "RuntimeError: Error(s) in loading state_dict for LearnPose:\n"
    text += mismatched("r", (17, 3), (20, 3)) + mismatched("t", (17, 3), (20, 3))
    found = Answered(text, tmp_path / "p.pth")
    assert "classes" not in found.said and "last layer" not in found.said
    assert "r, t have 17 rows in the checkpoint and 20 in the model" in found.said


def test_a_last_layer_is_still_a_head(tmp_path: Path) -> None:
    state = tensors(body__weight=(8, 8), body__bias=(8,), out__weight=(5, 8))
    torch.save(state, tmp_path / "a.pth")
    text = "RuntimeError: Error(s) in loading state_dict for Net:\n"
    found = Answered(
        text + mismatched("out.weight", (5, 8), (7, 8)), tmp_path / "a.pth"
    )
    assert "5 outputs where the model has 7: another number of classes" in found.said
    assert "build the model with its 5." in found.said


def test_detectron_has_its_setting_of_classes(tmp_path: Path) -> None:
    name = "roi_heads.box_predictor.cls_score.weight"
    state = {**tensors(backbone__conv__weight=(8, 3, 3, 3)), name: torch.randn(5, 16)}
    torch.save({"model": state, "iteration": 9}, tmp_path / "model_final.pth")
    text = (
        f"Skip loading parameter '{name}' to the model due to incompatible shapes: "
        "(5, 16) in the checkpoint but (81, 16) in the model! You might want to double "
        "check if this is expected."
    )
    found = Answered(text, tmp_path / "model_final.pth")
    assert "NUM_CLASSES 4" in found.said


class Turned(nn.Module):
    """A layer that turns the kernels of files without a version, as mmdetection3d."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3, 3, 3, 2))

    def _load_from_state_dict(
        self, state: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].permute(4, 0, 1, 2, 3)
        super()._load_from_state_dict(state, prefix, *args)


def test_a_loader_that_turns_what_fits(tmp_path: Path) -> None:
    value = torch.randn(4, 3, 3, 3, 2)
    torch.save({"state_dict": {"conv.weight": value}}, tmp_path / "a.pth")
    model = nn.ModuleDict({"conv": Turned()})
    text = (
        "The model and loaded state dict do not match exactly\n\nsize mismatch for "
        "conv.weight: copying a param with shape ('conv.weight', "
        "torch.Size([2, 4, 3, 3, 3])) from checkpoint,the shape in current model is "
        "torch.Size([4, 3, 3, 3, 2]).\n"
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "Is it the file that was loaded" not in found.said
    assert "the program turned it while it loaded" in found.said
    evaluate(found.commands[0], tmp_path, model=model)
    assert torch.equal(model["conv"].weight, value)


def test_an_lstm_with_a_projection_in_the_model(tmp_path: Path) -> None:
    rnn = nn.ModuleDict({"lstm": nn.LSTM(40, 40)})
    torch.save({"state_dict": rnn.state_dict()}, tmp_path / "a.ckpt")
    model = nn.ModuleDict({"lstm": nn.LSTM(40, 128, proj_size=40)})
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(rnn.state_dict())
    found = Answered(f"RuntimeError: {caught.value}", tmp_path / "a.ckpt")
    assert "of 40 units in the checkpoint" in found.said
    assert "of 128 units and a projection to 40 in the model" in found.said
    assert "hidden_size=40 and proj_size=0" in found.said


def test_the_variant_that_the_settings_record(tmp_path: Path) -> None:
    state = tensors(enc__text_embedding__weight=(73, 8), ref__fc__weight=(8, 70))
    config = {"data": {"n_speakers": 300}, "model": {"version": "v2", "layers": 6}}
    torch.save({"weight": state, "config": config}, tmp_path / "a.pth")
    text = "RuntimeError: Error(s) in loading state_dict for Net:\n"
    text += mismatched("enc.text_embedding.weight", (73, 8), (32, 8))
    text += mismatched("ref.fc.weight", (8, 70), (8, 102))
    found = Answered(text, tmp_path / "a.pth")
    assert "config.model.version = v2" in found.said


# --- names ----------------------------------------------------------------------------


def test_names_of_lycoris_are_not_those_of_kohya(tmp_path: Path) -> None:
    name = "lycoris_double_stream_blocks_0_block_attn1_to_k"
    state = {f"{name}.{part}": torch.randn(4, 4) for part in ("lokr_w1", "lokr_w2")}
    save_file(state, tmp_path / "a.safetensors")
    text = "".join(f"lora key not loaded: {key}\n" for key in state)
    found = Answered(text, tmp_path / "a.safetensors")
    assert "of LyCORIS itself" in found.said
    assert "of kohya (sd-scripts)" not in found.said


def test_what_the_loss_alone_lacks(tmp_path: Path) -> None:
    model = nn.ModuleDict({"net": nn.Linear(2, 2)})
    torch.save({"state_dict": model.state_dict(), "epoch": 1}, tmp_path / "a.ckpt")
    loss = nn.ModuleDict({"bce": nn.Module()})
    loss["bce"].register_buffer("pos_weight", torch.ones(2))
    model["loss_function"] = loss
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(torch.load(tmp_path / "a.ckpt")["state_dict"])
    found = Answered(f"RuntimeError: {caught.value}", tmp_path / "a.ckpt")
    assert "belongs to the loss or the metrics of the training" in found.said
    evaluate(found.commands[0], tmp_path, model=model)


def test_a_key_of_one_part_among_others(tmp_path: Path) -> None:
    state = tensors(std=(3,), actor__0__weight=(4, 4), actor__0__bias=(4,))
    state.update(tensors(critic__0__weight=(1, 4), critic__0__bias=(1,)))
    torch.save({"model_state_dict": state, "iter": 3}, tmp_path / "m.pt")
    found = Answered("KeyError: 'actor_state_dict'", tmp_path / "m.pt")
    assert "2 names begin with actor." in found.said
    held = evaluate(found.commands[0], tmp_path)
    assert set(held["actor"]) == {"0.weight", "0.bias"}
