"""Files and messages of people who train: what is said is true of the file, and what
is printed works.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from answered import Answered, write_folder
from inside import folder_of
from safetensors.torch import save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


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


def exclude_bias(parameter: torch.Tensor) -> bool:
    """Stand for a function of a script that an optimizer keeps."""
    return parameter.ndim == 1


def test_a_script_has_another_name_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import __main__

    monkeypatch.setattr(exclude_bias, "__module__", "__main__")
    monkeypatch.setattr(__main__, "exclude_bias", exclude_bias, raising=False)
    state = {"model": weights("conv1.weight"), "filter": exclude_bias}
    torch.save(state, tmp_path / "checkpoint.pth")
    text = (
        "AttributeError: Can't get attribute 'exclude_bias' on <module '__mp_main__' "
        "from '/home/u/evaluate.py'>"
    )
    found = Answered(text, tmp_path / "checkpoint.pth")
    assert "another save" not in found.said
    assert "The file names __main__.exclude_bias at filter" in found.said
    assert "The class lay in the script" in found.said


def test_a_model_that_was_saved_without_its_wrapper(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "model": network()}, tmp_path / "checkpoint.tar")
    text = (
        "    model = checkpoint['model'].module\n"
        "AttributeError: 'Sequential' object has no attribute 'module'\n"
    )
    found = Answered(text, tmp_path / "checkpoint.tar")
    assert "later version" not in found.said
    assert "saved without DataParallel or DDP" in found.said
    assert 'torch.load(…)["model"]' in found.said


# --- conversions ----------------------------------------------------------------------


def diffusion(*, is_sorted: bool) -> dict[str, torch.Tensor]:
    """A UNet of Stable Diffusion by the names of its authors."""
    names = ["model.diffusion_model.input_blocks.0.0.weight"]
    for number, place in ((2, 1), (5, 2), (8, 2)):
        layer = f"model.diffusion_model.output_blocks.{number}.{place}.conv"
        names += [f"{layer}.weight", f"{layer}.bias"]
    names += [f"first_stage_model.encoder.{n}.weight" for n in range(9)]
    return weights(*(sorted(names) if is_sorted else names))


@pytest.mark.parametrize("is_sorted", [True, False])
def test_names_that_a_program_has_converted_are_not_judged(
    is_sorted: bool, tmp_path: Path
) -> None:
    state = diffusion(is_sorted=is_sorted)
    torch.save({"state_dict": state}, tmp_path / "Protogen.ckpt")
    text = "In this conversion only the non-EMA weights are extracted.\n" + refused(
        [
            f"up_blocks.{n}.upsamplers.0.conv.{end}"
            for n in range(3)
            for end in ("weight", "bias")
        ],
        [f"up_blocks.0.attentions.2.conv.{end}" for end in ("bias", "weight")],
        "UNet2DConditionModel",
    )
    found = Answered(text, tmp_path / "Protogen.ckpt")
    assert "have their place" not in found.said
    assert "Is it the file" not in found.said
    assert "gave the names of this file others before it loaded them" in found.said
    lines = [row for row in found.commands if row.startswith("state = ")]
    assert ("in the order of the alphabet" in found.said) is is_sorted
    assert len(lines) == int(is_sorted)
    if lines:
        with folder_of(tmp_path):
            exec(lines[0], {"torch": torch})
        (path,) = tmp_path.glob("*ordered*")
        written = torch.load(path)["state_dict"]
        assert set(written) == set(state)
        assert all(torch.equal(written[name], state[name]) for name in state)
        ends = [name.rpartition(".")[2] for name in written if ".conv." in name]
        assert ends == ["weight", "bias"] * 3


def test_an_adapter_went_into_its_base_model(tmp_path: Path) -> None:
    names = [f"lora_unet_down_blocks_0_attn1_to_{word}" for word in "qkv"]
    ends = ("lora_down.weight", "lora_up.weight", "alpha")
    state = weights(*(f"{name}.{end}" for name in names for end in ends))
    torch.save(state, tmp_path / "pytorch_model.bin")
    theirs = ["conv_in.weight", "conv_in.bias", "down_blocks.0.attn1.to_q.weight"]
    text = refused(theirs, list(state), "UNet2DConditionModel")
    found = Answered(text, tmp_path / "pytorch_model.bin")
    assert "is an adapter of LoRA in the names of kohya" in found.said
    assert "into the base model" in found.said
    assert "of another model" not in found.said and "no place for" not in found.said


# --- averages and optimizers of a run ------------------------------------------------


def test_timm_looks_for_averages_by_its_own_name(tmp_path: Path) -> None:
    state = weights("patch_embed.proj.weight", "head.weight")
    torch.save({"model": state, "model_ema": state, "epoch": 3}, tmp_path / "c.pth")
    text = "Failed to find state_dict_ema, starting from loaded model weights\n"
    found = Answered(text, tmp_path / "c.pth")
    assert "averages under another key: model_ema" in found.said


def test_averages_of_fewer_parameters(tmp_path: Path) -> None:
    shadows = [torch.randn(4, 4) for _ in range(4)]
    state = {"decay": 0.995, "optimization_step": 20, "shadow_params": shadows}
    torch.save(state, tmp_path / "ema_model.pt")
    text = (
        "2025-06-27 21:46:08,294 [ERROR] Could not load EMA model: Mismatch in number "
        "of shadow parameters: expected 6, but found 4 in the state dict.\n"
    )
    found = Answered(text, tmp_path / "ema_model.pt")
    assert found.code == 0
    assert "shadow_params of this file has 4 averages" in found.said
    assert "expected 6" in found.said or "6 parameters" in found.said


def test_statistics_that_an_optimizer_was_given(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    statistics = [
        nn.Parameter(torch.zeros(4), requires_grad=False),
        nn.Parameter(torch.ones(4), requires_grad=False),
    ]
    optimizer = torch.optim.AdamW([*model.parameters(), *statistics])
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "a.pth.tar")
    text = (
        "ValueError: loaded state dict contains a parameter group that doesn't match "
        "the size of optimizer's group"
    )
    found = Answered(text, tmp_path / "a.pth.tar")
    assert "6 parameters and 2 running statistics of norms, 8 together" in found.said


# --- questions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "The backbone is frozen (requires_grad False), but the batchnorm statistics "
        "(running_mean, running_var) are still being updated. Why",
        "which layers were frozen in this run?",
        "how to check if the freezed layers are not trained",
    ],
)
def test_a_question_about_frozen_layers(text: str, tmp_path: Path) -> None:
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))})
    model["head"] = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model["head"].parameters(), 0.1, momentum=0.9)
    model["head"](model["body"](torch.randn(3, 4))).sum().backward()
    optimizer.step()
    state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "after.ckpt")
    found = Answered(text, tmp_path / "after.ckpt")
    assert found.code == 0
    assert "4 of the 6 parameters of state_dict are not in optimizer" in found.said
    assert "body.0.weight" in " ".join(found.names)
    assert "running statistics" in found.said and "eval()" in found.said
    assert "ckpt diff OLDER after.ckpt" in found.commands


def test_lists_that_grow_are_told_from_tensors(tmp_path: Path) -> None:
    model = network()
    optimizer = stepped(torch.optim.Adam(model.parameters()), model)
    state = {"g_state": model.state_dict(), "g_optim_state": optimizer}
    lists = {"G_losses": {"l2": [0.1] * 20000}, "losses_ts": list(range(5000))}
    torch.save({**state, **lists}, tmp_path / "zara1.pt")
    text = (
        "I noticed that the checkpoint files increment in size everytime that the "
        "checkpoint is saved. Is there a way to extract the final model from the file?"
    )
    found = Answered(text, tmp_path / "zara1.pt")
    assert "is no tensor" in found.said
    assert "G_losses (20,000 values), losses_ts (5,000 values)" in found.said
    assert list(torch.load(found.run("ckpt slim"))) == list(model.state_dict())


def test_the_values_that_normalize_images_are_no_weights(tmp_path: Path) -> None:
    state = weights("backbone.stem.conv.weight", "bbox_head.conv.weight")
    values = {
        f"data_preprocessor.{word}": torch.ones(3, 1, 1) for word in ("mean", "std")
    }
    meta = {"mmengine_version": "0.1.0", "epoch": 380}
    file = {"meta": meta, "state_dict": {**values, **state}}
    torch.save(file, tmp_path / "epoch_380.pth")
    text = (
        "RuntimeError: The model and loaded state dict do not match exactly\n\n"
        "unexpected key in source state_dict: data_preprocessor.mean, "
        "data_preprocessor.std\n"
    )
    found = Answered(text, tmp_path / "epoch_380.pth")
    assert "normalize the images" in found.said and "whole module" not in found.said


# --- folders and scalers of a run -----------------------------------------------------


def trainer_folder(folder: Path, **files: Any) -> Path:
    """A folder as the Trainer of transformers saves it, with some of its files."""
    write_folder(folder, weights("model.embed_tokens.weight"), model_type="llama")
    (folder / "trainer_state.json").write_text('{"global_step": 11, "epoch": 0.5}')
    for name, value in files.items():
        torch.save(value, folder / f"{name}.pt")
    return folder


def test_deepspeed_finds_no_folder_of_its_steps(tmp_path: Path) -> None:
    folder = trainer_folder(tmp_path / "checkpoint-4016")
    text = "ValueError: Can't find a valid checkpoint at /user/y/checkpoint-4016"
    found = Answered(text, folder)
    assert "no global_step" in found.said and "DeepSpeed" in found.said
    assert "save_only_model" in found.said
    (folder / "global_step4016").mkdir()
    assert "no global_step" not in Answered(text, folder).said


@pytest.mark.parametrize("has_scaler", [True, False])
def test_a_run_in_fp16_goes_on_without_its_scaler(
    has_scaler: bool, tmp_path: Path
) -> None:
    model = network()
    state = stepped(torch.optim.AdamW(model.parameters()), model)
    files = {"optimizer": state, "scheduler": {"last_epoch": 10}}
    if has_scaler:
        files["scaler"] = {"scale": 65536.0, "growth_factor": 2.0}
    folder = trainer_folder(tmp_path / "checkpoint-11", **files)
    text = (
        "resume from checkpoint, the learning rate is not the same as retraining. I "
        "train with fp16, and the lr is one step behind. why?"
    )
    found = Answered(text, folder)
    assert ("no state of a GradScaler" in found.said) is not has_scaler


@pytest.mark.parametrize("has_scaler", [True, False])
def test_a_scaler_without_a_scale(has_scaler: bool, tmp_path: Path) -> None:
    model = network()
    file: dict[str, Any] = {"model": model.state_dict()}
    file["optimizer"] = stepped(torch.optim.AdamW(model.parameters()), model)
    if has_scaler:
        file["scaler"] = {"scale": 65536.0, "growth_factor": 2.0}
    torch.save(file, tmp_path / "rank_0.pt")
    text = (
        "AssertionError: Attempted unscale_ but _scale is None.  This may indicate "
        "your script did not use scaler.scale(loss or outputs) earlier in the iteration."
    )
    found = Answered(text, tmp_path / "rank_0.pt")
    assert found.code == 0 and "first scaler.scale(loss)" in found.said
    assert ("no state of a GradScaler" in found.said) is not has_scaler


def test_a_loss_that_increases_after_a_resume(tmp_path: Path) -> None:
    state = weights("text_emb.weight", "transformer.layers.0.fn.weight")
    torch.save({"weights": state, "epoch": 2, "opt_state": None}, tmp_path / "dalle.pt")
    text = (
        "I don't know why the loss increases after resuming a two epochs training. "
        "Do I have to add other parameters?"
    )
    found = Answered(text, tmp_path / "dalle.pt")
    assert found.code == 0 and "holds no optimizer" in found.said


def test_lightning_takes_weights_or_a_run(tmp_path: Path) -> None:
    state = weights("model.0.weight")
    file = {"epoch": 7, "global_step": 35, "pytorch-lightning_version": "2.1.0"}
    torch.save({**file, "state_dict": state}, tmp_path / "e.ckpt")
    text = "restarting a training from a checkpoint, the step restarts from 0"
    found = Answered(text, tmp_path / "e.ckpt")
    assert "trainer.fit(model, ckpt_path=…)" in found.said


# --- devices, buffers and adapters ----------------------------------------------------


def test_tensors_of_groups_stay_where_the_load_put_them(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    state = stepped(optimizer, model)
    state["param_groups"][0]["d_numerator"] = torch.tensor(0.0)
    torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "D.pth")
    text = (
        "Got this error when resuming from a checkpoint.\n scaler.step(optim_d)\n"
        '  File "/lib/pytorch_optimizer/optimizer/prodigy.py", line 136, in step\n'
        "    d_numerator.add_(torch.dot(grad.flatten(), (p0 - p).flatten()))\n"
        "RuntimeError: Expected all tensors to be on the same device, but found at "
        "least two devices, cuda:0 and cpu!"
    )
    found = Answered(text, tmp_path / "D.pth")
    assert "The groups of optimizer hold tensors: d_numerator" in found.said
    (line,) = [row for row in found.commands if row.startswith("for group in")]
    exec(line, {"optimizer": optimizer, "torch": torch})


def test_statistics_between_gpus_are_no_layers(tmp_path: Path) -> None:
    layers = ("0.encoder.bn1", "0.encoder.layer1.0.bn1", "0.encoder.layer1.0.bn2")
    ends = ("weight", "bias", "running_mean", "running_var")
    state = weights(*(f"{layer}.{end}" for layer in layers for end in ends))
    torch.save(state, tmp_path / "net.pth")
    ends = ("_tmp_running_mean", "_tmp_running_var", "_running_iter")
    names = [f"{layer}.{end}" for layer in layers for end in ends]
    found = Answered(refused(names, name="Sequential"), tmp_path / "net.pth")
    assert "SynchronizedBatchNorm" in found.said and "untrained" not in found.said
    (line,) = [row for row in found.commands if "strict=False" in row]

    class Norm(nn.Module):
        def load_state_dict(self, given: Any, strict: bool = True) -> None:
            assert set(given) == set(state) and not strict

    with folder_of(tmp_path):
        exec(line, {"model": Norm(), "torch": torch})


class LossScaler:
    """Stand for an object of DeepSpeed in the state of an optimizer."""

    def __init__(self) -> None:
        self.cur_scale = 1.0


def test_a_plain_copy_of_zero_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "deepspeed.runtime.fp16.loss_scaler"
    module = types.ModuleType(place)
    module.LossScaler = LossScaler  # type: ignore[attr-defined]
    monkeypatch.setattr(LossScaler, "__module__", place)
    for count in range(1, 4):
        parent = ".".join(place.split(".")[:count])
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, place, module)
    base = {
        "state": {0: {"exp_avg": torch.zeros(8)}},
        "param_groups": [{"params": [0]}],
    }
    held = {"loss_scaler": LossScaler(), "base_optimizer_state": base}
    held |= {"zero_stage": 2, "single_partition_of_fp32_groups": [torch.zeros(8)]}
    path = tmp_path / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": held, "ds_version": "0.16.4"}, path)
    text = (
        "[rank4]: WeightsUnpickler error: Unsupported global: GLOBAL "
        f"{place}.LossScaler was not an allowed global by default. Please use "
        "`torch.serialization.add_safe_globals([LossScaler])` or the "
        "`torch.serialization.safe_globals([LossScaler])` context manager"
    )
    found = Answered(text, path)
    assert "DeepSpeed takes the object" in found.said
    (line,) = [row for row in found.commands if "add_safe_globals" in row]
    try:
        exec(line, {"torch": torch})
        assert torch.load(path)["optimizer_state_dict"]["loss_scaler"].cur_scale == 1
    finally:
        torch.serialization.clear_safe_globals()


def test_an_adapter_by_numbers_has_no_names(tmp_path: Path) -> None:
    sides = ("lora_down", "lora_up")
    state = weights(*(f"weights.{n}.{side}" for n in range(6) for side in sides))
    state["embeddings.embeddings"] = torch.randn(2, 4)
    save_file(state, tmp_path / "lora.safetensors")
    text = "\n".join(f"lora key not loaded: {name}" for name in state)
    found = Answered(text, tmp_path / "lora.safetensors")
    assert "No name of this file" not in found.said
    assert "12 tensors of LoRA, and counts their layers" in found.said


def test_the_table_of_older_mmcv_has_both_shapes(tmp_path: Path) -> None:
    state = {"backbone.conv1.weight": torch.randn(4, 3, 3, 3)}
    rows = []
    for number in range(3):
        name = f"bbox_head.{number}.fc_cls.weight"
        state[name] = torch.randn(81, 16)
        rows.append(
            f"| {name:30} | {'torch.Size([9, 16])':26} | {'torch.Size([81, 16])':27} |"
        )
    meta = {"CLASSES": ("a",), "mmdet_version": "1.0"}
    torch.save({"meta": meta, "state_dict": state}, tmp_path / "cascade.pth")
    line = f"+{'-' * 32}+{'-' * 28}+{'-' * 29}+"
    head = f"| {'key':30} | {'expected shape':26} | {'loaded shape':27} |"
    text = "\n".join(
        [
            "2019-12-19 10:03:19,016 - WARNING - The model and loaded state dict do "
            "not match exactly\n\nthese keys have mismatched shape:",
            *(line, head, line, *rows, line),
        ]
    )
    found = Answered(text, tmp_path / "cascade.pth")
    assert "[81, 16]" in found.page and "[9, 16]" in found.page
    assert "81" in found.said and "classes" in found.said
    assert "finds nothing" not in found.said


@pytest.mark.parametrize(
    "text",
    [
        "How to average n checkpoints? Is it must be done by myself ?",
        "Is it possible to average weights of several checkpoints",
    ],
)
def test_a_question_about_a_mean_of_checkpoints(text: str, tmp_path: Path) -> None:
    for number in (2, 3):
        state = {"epoch": number, "state_dict": {"a.weight": torch.ones(2) * number}}
        torch.save(state, tmp_path / f"epoch={number}.ckpt")
    found = Answered(text, tmp_path / "epoch=3.ckpt")
    assert found.code == 0
    mean = torch.load(found.run("ckpt average"))
    mean = mean.get("state_dict", mean)
    assert torch.equal(mean["a.weight"], torch.ones(2) * 2.5)


def test_a_head_that_is_tied_is_no_loss(tmp_path: Path) -> None:
    state = weights("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight")
    text = (
        "I couldn't find the weight of the head of the llm (lm_head). Could it be that "
        "the weights for this part were not saved properly?"
    )
    folder = write_folder(tmp_path / "ov", state, tie_word_embeddings=True)
    found = Answered(text, folder)
    assert found.code == 0 and "nothing is lost" in found.said
    assert "model.embed_tokens.weight" in found.said
    folder = write_folder(tmp_path / "lost", state, tie_word_embeddings=False)
    assert "nothing is lost" not in Answered(text, folder).said


def stepped_schedule(count: int) -> dict[str, Any]:
    """The state of a schedule after some steps."""
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [80_000], 0.5)
    return {**schedule.state_dict(), "last_epoch": count}


def write_accelerate(folder: Path, **more: bytes) -> Path:
    folder.mkdir()
    save_file({"a.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    torch.save(trained_state(), folder / "optimizer.bin")
    torch.save(stepped_schedule(400), folder / "scheduler.bin")
    torch.save({"random_state": (1,)}, folder / "random_states_0.pkl")
    for name, content in more.items():
        (folder / name.replace("_json", ".json")).write_bytes(content)
    return folder


def trained_state() -> dict[str, Any]:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    net(torch.randn(1, 2)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def test_a_rate_that_does_not_change_after_a_restart(tmp_path: Path) -> None:
    state = {"epoch": 6, "iter": 3000, "optimizers": [trained_state()]}
    torch.save({**state, "schedulers": [stepped_schedule(3000)]}, tmp_path / "r.state")
    text = (
        "Hello, when I interrupt training and restart training from resume_state, "
        "learning_rate will not be updated."
    )
    found = Answered(text, tmp_path / "r.state")
    assert "begins at 0" not in found.said
    assert "learning rate 0.0001" in found.said
    assert "schedulers.0" in found.said and "counted 3,000" in found.said


def test_a_state_of_accelerate_counts_by_its_schedule(tmp_path: Path) -> None:
    folder = write_accelerate(tmp_path / "x-000004-state")
    text = (
        "my PC got shutdown so I need to resume the lastest state to continue train. "
        "The model start at epoch 0 while i expected that it should start at 4."
    )
    found = Answered(text, folder)
    assert "counted 400" in found.said and "nothing is lost" in found.said
    # It is no folder of the Trainer, and has the state of the optimizer.
    assert "optimizer.pt" not in found.said
    assert "weights of a run, and not" not in found.said
    trained = write_accelerate(tmp_path / "trained", trainer_state_json=b"{}")
    assert "optimizer.pt" in Answered(text, trained).said


def test_a_file_of_a_finished_run_has_the_epoch_minus_one(tmp_path: Path) -> None:
    state = {"epoch": -1, "best_fitness": 0.6, "optimizer": None}
    state["model"] = weights("0.weight")
    torch.save(state, tmp_path / "last.pt")
    for text in (
        "last.pt and best.pt have the same epoch='-1' and the same best_fitness",
        "Why is the epoch of my last.pt always -1 ?",
    ):
        assert "finished run" in Answered(text, tmp_path / "last.pt").said
    torch.save({**state, "epoch": 3}, tmp_path / "going.pt")
    assert "finished run" not in Answered(text, tmp_path / "going.pt").said


@pytest.mark.parametrize("is_bad", [True, False])
def test_nan_of_a_run_that_goes_on(tmp_path: Path, is_bad: bool) -> None:
    state = weights("unet.conv_in.weight", "proj.weight")
    if is_bad:
        state["unet.conv_in.weight"][0] = float("nan")
    torch.save(state, tmp_path / "net-500.pth")
    text = (
        "Read the checkpoint of the last training and continue training. The value "
        "predicted by the model is nan."
    )
    path = tmp_path / "net-500.pth"
    for asked in (text, f"{text}\n1/2000 [00:14<8:16:07, lr=1e-5, step_loss=nan]"):
        found = Answered(asked, path)
        assert ("are NaN in unet.conv_in.weight" in found.said) is is_bad
    raised = "FloatingPointError: Loss became infinite or NaN at iteration=5!"
    for asked in (text, raised):
        found = Answered(asked, path)
        assert ("no element is NaN" in found.said) is not is_bad


def test_a_layer_that_became_a_part_of_its_class(tmp_path: Path) -> None:
    place = "trunk.structure_module.ipa"
    names = ["linear_q", "linear_q_points", "linear_kv_points"]
    state = {
        f"{place}.{name}.{leaf}": torch.randn(2)
        for name in names
        for leaf in ("weight", "bias")
    }
    torch.save({"cfg": {"a": 1}, "model": state}, tmp_path / "esmfold.pt")
    asked = [
        f"{place}.{name}.linear.{leaf}"
        for name in names[1:]
        for leaf in ("weight", "bias")
    ]
    text = f"RuntimeError: Keys '{', '.join(asked)}' are missing."
    found = Answered(text, tmp_path / "esmfold.pt")
    assert found.code == 0 and "Nothing is lost" in found.said
    assert "trained without them" not in found.said
    renamed = torch.load(found.run("ckpt rename"))["model"]
    assert {*asked, f"{place}.linear_q.weight"} <= set(renamed)


def test_a_row_of_zero_is_of_another_number_of_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "global_step100"
    folder.mkdir()
    name = "layers.0.weight"
    for rank in range(5):
        row = {"step": 100, "exp_avg": torch.randn(40), "exp_avg_sq": torch.rand(40)}
        held = {"zero_stage": 2, "partition_count": [5], "base_optimizer_state": [row]}
        held["single_partition_of_fp32_groups"] = [torch.randn(40)]
        path = folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": held, "ds_version": "0.14.0"}, path)
    main = {"module": {name: torch.randn(10, 20)}, "dp_world_size": 5}
    main |= {"param_shapes": [{name: torch.Size([10, 20])}], "buffer_names": []}
    main |= {"shared_params": {}, "mp_world_size": 1, "ds_version": "0.14.0"}
    main |= {"frozen_param_shapes": None, "frozen_param_fragments": None}
    torch.save(main, folder / "mp_rank_00_model_states.pt")
    text = (
        "RuntimeError: The size of tensor a (200) must match the size of tensor b (40) "
        "at non-singleton dimension 0"
    )
    found = Answered(text, folder)
    assert "5 ranks of DeepSpeed ZeRO saved this" in found.said
    assert "200 is 5 times 40" in found.said
    assert "state of another file" not in found.said
    assert torch.load(found.run("ckpt convert"), weights_only=True)


def test_a_rate_to_change_is_no_run_that_began_anew(tmp_path: Path) -> None:
    state = {"model": weights("a.weight"), "optimizer": trained_state()}
    state |= {"scheduler": stepped_schedule(12_500), "iteration": 12_500}
    torch.save(state, tmp_path / "model_0012500.pth")
    text = (
        "I wonder if there is a way to change the learning rate when resume training. "
        "I do not want to retrain it from the start. I changed BASE_LR, it does not "
        "work."
    )
    said = Answered(text, tmp_path / "model_0012500.pth").said
    assert "learning rate 0.0001" in said and "begins at 0" not in said
    begun = "I do not understand. I resumed, and it trains from the start."
    assert "iteration is 12500" in Answered(begun, tmp_path / "model_0012500.pth").said


def test_an_optimizer_that_a_run_may_have_lost(tmp_path: Path) -> None:
    state = weights("_wm.encoder.weight")
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"agent": state, "optim": trained_state()}, tmp_path / "with.pt")
    text = (
        'About the procedure to resume a job: the model is saved after each "epoch" '
        "and loaded. Nonetheless, it seems that the Optimizer is not actually saved "
        "right? Please let me know if I am missing something"
    )
    said = Answered(text, tmp_path / "plain.pt").said
    assert "holds no optimizer" in said and "called epoch" not in said
    assert "has the state of an optimizer" in Answered(text, tmp_path / "with.pt").said


def test_a_notice_of_a_value_head_is_of_no_base_model(tmp_path: Path) -> None:
    place = "base_model.model.layers.0.self_attn.q_proj"
    save_file(
        weights(f"{place}.lora_A.weight", f"{place}.lora_B.weight"),
        tmp_path / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": "a/b"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    text = (
        "06/07/2024 10:12:19 - INFO - llamafactory.model.model_utils.valuehead - "
        "Provided path (saves/lora) does not contain value head weights: saves/lora "
        "does not appear to have a file named value_head.bin. Checkout "
        "'https://huggingface.co/saves/lora/tree/None' for available files.."
    )
    found = Answered(text, tmp_path)
    assert "nothing is lost" in found.said and "Load the base model" not in found.said
    raised = f"{text}\nValueError: Reward model is not correctly loaded."
    assert "nothing is lost" not in Answered(raised, tmp_path).said


def test_a_finished_run_that_should_go_on(tmp_path: Path) -> None:
    state = {"epoch": -1, "optimizer": None, "model": weights("0.weight")}
    torch.save(state, tmp_path / "best.pt")
    text = (
        "I trained a model for 100 epochs. Should I use best.pt or last.pt to continue "
        "training?"
    )
    assert "finished run" in Answered(text, tmp_path / "best.pt").said


def test_a_schedule_that_holds_another_one(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=1e-3)
    after = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    held = {"after_scheduler": after, "total_epoch": 5, "last_epoch": 30}
    state = {"model": weights("a.weight"), "optimizer": trained_state()}
    torch.save({**state, "scheduler": held}, tmp_path / "warm.pth")
    text = (
        "When loading the GradualWarmupScheduler from a state dict to resume a "
        "training, the learning rate is static."
    )
    found = Answered(text, tmp_path / "warm.pth")
    (line,) = [row for row in found.commands if row.startswith("scheduler.")]
    place = types.SimpleNamespace(after_scheduler=after)
    exec(line, {"scheduler": place, "optimizer": "of the run"})
    assert after.optimizer == "of the run"
    assert all("after_scheduler" not in row for row in found.commands if row != line)


def test_arrays_of_numpy_name_their_reader(tmp_path: Path) -> None:
    np.savez(tmp_path / "params.npz", weights=np.zeros(3))
    text = (
        "    d = torch.load(path)\nRuntimeError: PytorchStreamReader failed locating "
        "file data.pkl: file not found"
    )
    assert "numpy.load" in Answered(text, tmp_path / "params.npz").said


def test_a_loss_that_restarts_higher_is_no_new_start(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-3000"
    write_folder(folder, weights("embeddings.weight"))
    torch.save(trained_state(), folder / "optimizer.pt")
    torch.save(stepped_schedule(3000), folder / "scheduler.pt")
    (folder / "trainer_state.json").write_text('{"global_step": 3000, "epoch": 0.6}')
    text = (
        "Resuming training restarts at much higher loss\n"
        "{'loss': '0.91', 'learning_rate': '3.094e-07', 'epoch': '0.6623'}\n"
    )
    said = Answered(text, folder).said
    assert "begins at 0" not in said and "counted 3,000" in said


def test_a_rate_that_stands_in_a_file_as_a_number(tmp_path: Path) -> None:
    torch.save({"model": weights("a.weight"), "lr": 1e-4, "epoch": 2}, tmp_path / "b")
    text = (
        "load_model() brings the last learning rate from the loaded model. But it seems "
        "not to be set when training with resume == True."
    )
    said = Answered(text, tmp_path / "b").said
    assert "lr 0.0001" in said and "hand to the optimizer" in said


def test_a_question_about_a_schedule(tmp_path: Path) -> None:
    state = {"model": weights("a.weight"), "scheduler": stepped_schedule(1000)}
    torch.save(state, tmp_path / "ckpt.pt")
    text = "Hello, is this the correct way to load a scheduler to resume training?"
    assert "counted 1,000" in Answered(text, tmp_path / "ckpt.pt").said


@pytest.mark.parametrize("is_batch", [False, True])
def test_statistics_of_norms_without_weights(tmp_path: Path, is_batch: bool) -> None:
    kind = nn.BatchNorm2d(3) if is_batch else nn.InstanceNorm2d(3)
    if not is_batch:
        kind = nn.InstanceNorm2d(3, track_running_stats=True)
    net = nn.Sequential(nn.Conv2d(3, 3, 1), kind)
    torch.save(net.state_dict(), tmp_path / "net_G.pth")
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.InstanceNorm2d(3))
    with pytest.raises(RuntimeError) as raised:
        model.load_state_dict(net.state_dict())
    text = str(raised.value)
    if not is_batch:
        # torch says it in other words for its own layers.
        ends = ("running_mean", "running_var", "num_batches_tracked")
        text = refused([], [f"1.{end}" for end in ends])
    found = Answered(text, tmp_path / "net_G.pth")
    assert ("an InstanceNorm" in found.said) is not is_batch
    if not is_batch:
        (line,) = [row for row in found.commands if "endswith" in row]
        with folder_of(tmp_path):
            exec(line, {"model": model, "torch": torch})
        assert torch.equal(model.state_dict()["0.bias"], net.state_dict()["0.bias"])
