"""Files and messages of people who train: what is said is true of the file, and what
is printed works.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered
from inside import folder_of
from torch import nn

pytestmark = oracle.QUIET


def weights(*names: str, shape: tuple[int, ...] = (4, 4)) -> dict[str, torch.Tensor]:
    """Tensors of one shape."""
    return {name: torch.randn(shape) for name in names}


def refused(
    missing: list[str], unexpected: list[str] | None = None, name: str = "Net"
) -> str:
    """The text of torch for two lists of keys."""
    rows = [f"RuntimeError: Error(s) in loading state_dict for {name}:"]
    for head, names in (("Missing", missing), ("Unexpected", unexpected or [])):
        if names:
            listed = ", ".join(f'"{key}"' for key in names)
            rows.append(f"\t{head} key(s) in state_dict: {listed}. ")
    return "\n".join(rows)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def stepped(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int = 1) -> Any:
    """The state of an optimizer after some steps."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return optimizer.state_dict()


# --- runs that begin anew -------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "I resumed with --resume, but then the iter value looks restarting from zero. "
        "iter: 19  total_loss: 0.4911  lr: 0.005",
        "retrain from previous checkpoint with resume=True but it always starts from "
        "0th iteration",
        "progress keeps resetting, the training just restarts from 0 anyways",
        "INFO loaded checkpoint\nwhen resume training it start again at epoch 1",
    ],
)
def test_a_run_that_begins_anew_gets_the_counters_of_the_file(
    text: str, tmp_path: Path
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = {"model": model.state_dict(), "optimizer": stepped(optimizer, model)}
    torch.save(
        {**state, "scheduler": {"last_epoch": 40000}, "iteration": 39999},
        tmp_path / "model_0039999.pth",
    )
    found = Answered(text, tmp_path / "model_0039999.pth")
    assert found.code == 0
    assert "records where its run stood: iteration is 39999" in found.said
    assert "last_checkpoint" in found.said  # of detectron2
    torch.save(model.state_dict(), tmp_path / "w.pth")
    found = Answered(text, tmp_path / "w.pth")
    assert "records no epoch, iteration or step" in found.said


def test_a_learning_rate_that_restarts_is_no_counter(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = {"model": model.state_dict(), "optimizer": stepped(optimizer, model)}
    torch.save({**state, "epoch": 3}, tmp_path / "a.pth")
    text = "when I resume, the learning rate starts from the beginning of the schedule"
    found = Answered(text, tmp_path / "a.pth")
    assert "optimizer has the learning rate 0.1" in found.said


# --- averages -------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "is_short"), [(30, True), (0, False)])
def test_averages_of_a_short_run_are_near_its_start(
    steps: int, is_short: bool, tmp_path: Path
) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    names = {"state_dict": model.state_dict(), "state_dict_ema": model.state_dict()}
    state = {**names, "optimizer": stepped(optimizer, model, steps), "epoch": 5}
    torch.save(state, tmp_path / "epoch_005.pth.tar")
    text = (
        "During evaluation the map is very low. When I change model.load_state_dict("
        "checkpoint['state_dict_ema']) to model.load_state_dict(checkpoint['state_dict'"
        "]) it is a lot higher. Why isn't the EMA model working?"
    )
    found = Answered(text, tmp_path / "epoch_005.pth.tar")
    assert "about 1,000 steps" in found.said
    assert ("the optimizer of this file has made 30" in found.said) is is_short
    assert "its good results from these" not in found.said


def test_a_program_that_wants_averages_learns_that_there_are_none(
    tmp_path: Path,
) -> None:
    state = weights("x_embedder.proj.weight", "final_layer.linear.weight")
    torch.save({"model": state}, tmp_path / "sit_b2.pt")
    text = "    state_dict = torch.load(args.ckpt)['ema']\nKeyError: 'ema'\n"
    found = Answered(text, tmp_path / "sit_b2.pt")
    assert "no running averages (EMA)" in found.said
    assert "model has the weights of the training itself" in found.said


# --- keys -----------------------------------------------------------------------------


def test_a_key_is_asked_of_a_part_of_the_file(tmp_path: Path) -> None:
    state = weights("firstconv.weight", "finalConv.weight")
    torch.save({"epoch": 9, "state_dict": state}, tmp_path / "checkpoint-9.pt")
    text = (
        '    model.load_state_dict(checkpoint["state_dict"])\n'
        '  File "swag.py", line 182, in load_state_dict\n'
        '    n_models = state_dict["n_models"].item()\n'
        "KeyError: 'n_models'\n"
    )
    found = Answered(text, tmp_path / "checkpoint-9.pt")
    assert "took state_dict from this file, and asked it for n_models" in found.said
    assert "firstconv, finalConv" in found.said
    assert "none is n_models" not in found.said


def test_a_model_of_the_older_nnunet(tmp_path: Path) -> None:
    state = weights(
        "conv_blocks_context.0.blocks.0.conv.weight", "seg_outputs.0.weight"
    )
    torch.save(
        {"epoch": 4, "state_dict": state, "plot_stuff": [], "best_stuff": []},
        tmp_path / "model_final_checkpoint.model",
    )
    text = (
        "    pretrained_dict = saved_model['network_weights']\n"
        "KeyError: 'network_weights'\n"
    )
    found = Answered(text, tmp_path / "model_final_checkpoint.model")
    assert "a checkpoint of nnU-Net 1" in found.said
    assert "network_weights is a key of a checkpoint of nnU-Net 2" in found.said


# --- names ----------------------------------------------------------------------------


def test_names_that_lost_the_prefix_of_a_wrapper_are_paired(tmp_path: Path) -> None:
    layers = [f"layers{n}.0.{part}" for n in (1, 2) for part in ("norm", "mlp.fc1")]
    ours = [f"{layer}.{end}" for layer in layers for end in ("weight", "bias")]
    state = weights(*(f"module.{name}" for name in ours))
    torch.save({"state_dict": state}, tmp_path / "model_swinvit.pt")
    theirs = [f"swinViT.{name.replace('fc1', 'linear1')}" for name in ours]
    text = refused([*theirs, "out.conv.weight"], ours, "SwinUNETR")
    found = Answered(text, tmp_path / "model_swinvit.pt")
    assert "Is it the file" not in found.said
    assert "took module. off the names" in found.said
    renamed = torch.load(found.run("ckpt rename"))["state_dict"]
    assert sorted(renamed) == sorted(f"module.{name}" for name in theirs)


@pytest.mark.parametrize(
    ("wrapped", "writer"),
    [
        ("_fpw_module.{}._fsdp_wrapped_module._fpw_module.{}", "FSDP of fairscale"),
        ("_fsdp_wrapped_module.{}._checkpoint_wrapped_module.{}", "FSDP"),
        ("{}._orig_mod.{}", "torch.compile"),
    ],
)
def test_a_model_with_wrappers_inside_takes_plain_names(
    wrapped: str, writer: str, tmp_path: Path
) -> None:
    parts = [
        (f"encoder.layers.{n}", end)
        for n in range(3)
        for end in ("self_attn.k_proj.weight", "fc1.weight", "fc1.bias")
    ]
    state = weights(*(".".join(part) for part in parts))
    torch.save({"model": state, "epoch": 1}, tmp_path / "model.pt")
    text = refused([wrapped.format(*part) for part in parts], list(state))
    found = Answered(text, tmp_path / "model.pt")
    assert "All 9 missing keys are in this file" in found.said
    assert writer in found.said and "before" in found.said
    assert "by their places and kinds alone" not in found.said


# --- objects --------------------------------------------------------------------------


def test_the_state_of_an_older_optimizer_goes_into_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Adam(torch.optim.Adam):
        def __getstate__(self) -> dict[str, Any]:
            return {"state": dict(self.state), "param_groups": self.param_groups}

    Adam.__module__, Adam.__qualname__ = "torch.optim.adam", "Adam"
    model = network()
    optimizer = Adam(model.parameters())
    state = stepped(optimizer, model, 2)
    path = tmp_path / "tone.model.ep25"
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["torch.optim.adam"], "Adam", Adam)
        torch.save({"epoch": 25, "model": model.state_dict(), "opt": optimizer}, path)
    text = (
        "    'defaults': self.defaults,\n"
        "AttributeError: 'Adam' object has no attribute 'defaults'\n"
    )
    found = Answered(text, path)
    assert "without defaults: opt" in found.said
    found.run("ckpt convert")
    (line,) = [row for row in found.commands if row.startswith("saved = ")]
    new = torch.optim.Adam(model.parameters())
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "optimizer": new})
    assert len(new.state) == 4
    for number, parameter in enumerate(model.parameters()):
        kept = state["state"][number]["exp_avg"]
        assert torch.equal(new.state[parameter]["exp_avg"], kept)
