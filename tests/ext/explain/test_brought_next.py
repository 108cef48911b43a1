"""Situations of public threads of training, of robots and of questions without an error:
what is said is true of the file, and what is printed is run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered
from inside import folder_of
from process import ckpt as run
from safetensors.torch import load_file, save_file
from torch import nn
from webs import served

import ckpt

pytestmark = [*oracle.QUIET, pytest.mark.slow]


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


@pytest.mark.parametrize(("rows", "is_joined"), [(24, True), (16, False)])
def test_attention_with_fewer_keys_is_no_other_name(
    rows: int, is_joined: bool, tmp_path: Path
) -> None:
    layer = "encoder.layers.0.self_attn"
    state = {f"{layer}.Wqkv.weight": torch.randn(rows, 8)}
    torch.save({**state, f"{layer}.out.weight": torch.randn(8, 8)}, tmp_path / "a.pt")
    text = (
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in "
        f'state_dict: "{layer}.in_proj_weight". \n\tUnexpected key(s) in state_dict: '
        f'"{layer}.Wqkv.weight". \n'
    )
    found = Answered(text, tmp_path / "a.pt")
    assert ("so the names alone differ" in found.said) is is_joined


def test_modules_in_a_long_list_stand_for_their_tensors(tmp_path: Path) -> None:
    state = {f"net.body.{n}.weight": torch.zeros(1) for n in range(4000)}
    torch.save(state, tmp_path / "a.pt")
    names = ", ".join(f'"body.{number}"' for number in range(4000))
    text = (
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in "
        f"state_dict: {names}. \n"
    )
    found = Answered(text, tmp_path / "a.pt")
    assert "4,000 of the 4,000 missing keys" in found.said


def test_a_line_for_a_url_names_the_copy(tmp_path: Path) -> None:
    with served() as web:
        model = {"encoder.lm_head.weight": torch.randn(33, 8)}
        torch.save({"args": argparse.Namespace(), "model": model}, tmp_path / "esm.pt")
        web.files["/esm.pt"] = (tmp_path / "esm.pt").read_bytes()
        text = (
            "FileNotFoundError: [Errno 2] No such file or directory: "
            "'/data/esm-contact-regression.pt'"
        )
        done = run("explain", text, f"{web.url}/esm.pt", cwd=tmp_path)
    assert 'torch.load("esm.pt"' in done.out.decode()
    assert 'torch.load("http' not in done.out.decode()


# --- questions ------------------------------------------------------------------------


def test_one_set_of_weights_may_be_the_averages(tmp_path: Path) -> None:
    torch.save(tensors(a__weight=(4, 4), b__weight=(4, 4)), tmp_path / "d.pt")
    text = "I could not find the ema key in there. Are these ema weights or not?"
    found = Answered(text, tmp_path / "d.pt")
    assert "does not hold" not in found.said and "no running" not in found.said
    assert "nothing in it says whether they are running averages" in found.said


def test_the_statistics_of_a_normalizer_are_seen(tmp_path: Path) -> None:
    seen = {"_mean": torch.zeros(1, 4), "_var": torch.ones(1, 4)}
    state = {"model_state_dict": tensors(actor__0__weight=(4, 4)), "iter": 3}
    text = "The performance of the model is worse when we resumed the training."
    torch.save({**state, "obs_norm_state_dict": seen}, tmp_path / "a.pt")
    found = Answered(text, tmp_path / "a.pt")
    assert "no running statistics" not in found.said
    assert "obs_norm_state_dict has the statistics of the inputs" in found.said
    assert "They have no count" in found.said
    counted = {**seen, "count": torch.tensor(8)}
    torch.save({**state, "obs_norm_state_dict": counted}, tmp_path / "b.pt")
    assert "They have no count" not in Answered(text, tmp_path / "b.pt").said


def test_the_backbone_that_a_question_names(tmp_path: Path) -> None:
    state = tensors(backbone__conv__weight=(4, 3), backbone__bn__weight=(4,))
    state.update(tensors(head__0__weight=(2, 4), head__2__weight=(2, 2)))
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "a.ckpt")
    text = (
        "I would like to use a checkpoint as the encoder weights of a segmentation "
        "model. Is there a way to load a pretrained backbone from a file?"
    )
    found = Answered(text, tmp_path / "a.ckpt")
    assert found.page.count("A part of a pipeline") == 0
    assert (
        "2 of the 4 tensors of state_dict are below backbone, beside head. (2)."
        in found.said
    )
    model = nn.ModuleDict({"conv": nn.Linear(3, 4, bias=False), "bn": nn.Module()})
    model["bn"].weight = nn.Parameter(torch.zeros(4))
    evaluate(found.commands[0], tmp_path, model=model)
    assert torch.equal(model["conv"].weight, state["backbone.conv.weight"])


def test_the_teacher_that_a_question_names(tmp_path: Path) -> None:
    part = {f"backbone.{n}.weight": torch.randn(2, 2) for n in range(2)}
    part["head.weight"] = torch.randn(2, 2)
    state = {"student": dict(part), "teacher": dict(part), "epoch": 3}
    torch.save(state, tmp_path / "a.pth")
    text = "How can I load only the teacher for the evaluation, and its backbone?"
    found = Answered(text, tmp_path / "a.pth")
    assert "teacher of this file is that part, with 3 tensors" in found.said
    with folder_of(tmp_path):
        loaded = eval(found.commands[0], {"torch": torch})
    assert set(loaded) == set(part)
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    evaluate(found.commands[1], tmp_path, model=model)
    assert torch.equal(model[1].weight, part["backbone.1.weight"])


def test_the_classes_that_a_file_records(tmp_path: Path) -> None:
    settings = argparse.Namespace(num_classes=2, class_names=["bolt", "nut"])
    state = tensors(class_embed__weight=(3, 8), class_embed__bias=(3,))
    torch.save({"model": state, "args": settings}, tmp_path / "a.pth")
    text = (
        "num_classes mismatch: pretrain weights has 2 classes, but your model has 90 "
        "classes\nWhy 2 only? is there any code to check the class_names inside?"
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "args.num_classes is 2" in found.said
    assert "args.class_names has 2 names (bolt, nut)" in found.said
    assert "model.class_embed has 3 rows" in found.said


def test_names_of_classes_in_a_dict(tmp_path: Path) -> None:
    state = {"model": tensors(a__weight=(4, 4)), "names": {0: "cat", 1: "dog"}}
    torch.save(state, tmp_path / "a.pt")
    found = Answered("Which classes does this model know?", tmp_path / "a.pt")
    assert "names has 2 names (cat, dog)" in found.said


def test_more_epochs_behind_the_end_of_a_run(tmp_path: Path) -> None:
    state = {"epoch": -1, "model": tensors(a__weight=(4, 4)), "optimizer": None}
    torch.save({**state, "train_args": {"epochs": 100}}, tmp_path / "last.pt")
    text = (
        "After training with 100 epochs I want to add more epochs, how can I do that "
        "based on the previous 100 epochs?"
    )
    found = Answered(text, tmp_path / "last.pt")
    assert "This file is of a finished run" in found.said


def test_code_that_loads_the_whole_checkpoint(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    state = {"model": model.state_dict(), "epoch": 3, "optimizer": {"state": {}}}
    torch.save(state, tmp_path / "a.pth")
    text = (
        "The results differ on each run when loading with strict=False. Why?\n"
        "state = torch.load('a.pth')\nnet.load_state_dict(state, strict=False)\n"
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "gives load_state_dict the whole file" in found.said
    other = nn.Linear(2, 2)
    evaluate(found.commands[0], tmp_path, model=other)
    assert torch.equal(other.weight, model.weight)


def test_code_that_goes_down_to_the_weights_is_not_blamed(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(2, 2).state_dict(), "epoch": 3}, tmp_path / "a.pth")
    text = (
        "The results differ on each run when loading. Why?\n"
        "state = torch.load('a.pth')['model']\nnet.load_state_dict(state)\n"
    )
    assert "the whole file" not in Answered(text, tmp_path / "a.pth").said


def test_a_question_in_chinese(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1000"
    folder.mkdir()
    save_file(tensors(a__weight=(4, 4)), folder / "model.safetensors")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 1000}))
    parameter = nn.Parameter(torch.zeros(4, 4))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    found = Answered("中断后重新加载 checkpoint，loss变高，是什么原因？", folder)
    assert found.code == 0
    assert "This file has the state of an optimizer" in found.said
    assert 'trainer.train(resume_from_checkpoint="checkpoint-1000")' in found.commands


def test_the_word_ema_in_the_name_of_a_file_asks_for_nothing(tmp_path: Path) -> None:
    state = {f"first_stage_model.{n}.weight": torch.zeros(1) for n in range(4)}
    state.update({f"cond_stage_model.{n}.weight": torch.zeros(1) for n in range(6)})
    torch.save({"state_dict": state, "global_step": 3}, tmp_path / "v2-ema-pruned.ckpt")
    text = "Restored from v2-ema-pruned.ckpt with 0 missing and 6 unexpected keys"
    found = Answered(f"{text}\nIs this normal?", tmp_path / "v2-ema-pruned.ckpt")
    assert "running averages" not in found.said
    assert "the model got every tensor that it asks for" in found.said
    assert "first_stage_model. has as many as were taken" in found.said
    asked = Answered("where are the EMA weights?", tmp_path / "v2-ema-pruned.ckpt")
    assert "says that they are the averages" in asked.said


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ("'SmolVLA %d missing / %d unexpected keys', 10, 0", "the model has 10 more"),
        ("with 3 missing and 4 unexpected keys", "6 of the 10 tensors of this file"),
        ("with 3 missing and 10 unexpected keys", "names"),
        ("with 0 missing and 11 unexpected keys", "another file was loaded"),
    ],
)
def test_loads_that_are_told_by_numbers(counts: str, said: str, tmp_path: Path) -> None:
    state = {f"model.layer.{n}.weight": torch.zeros(1) for n in range(10)}
    torch.save(state, tmp_path / "a.pt")
    assert said in Answered(f"RuntimeError: ({counts})", tmp_path / "a.pt").said


def test_a_head_that_gemma_ties_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "gemma"
    folder.mkdir()
    state = tensors(lm_head__weight=(8, 4), model__embed_tokens__weight=(8, 4))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma"}))
    found = Answered("KeyError: 'lm_head.weight'", folder)
    assert "models of Gemma tie both" in found.said
    written = found.run("ckpt slim")
    assert set(load_file(written / "model.safetensors")) == set(state) - {
        "lm_head.weight"
    }


def test_a_list_of_unexpected_modules_of_an_adapter(tmp_path: Path) -> None:
    state = tensors(
        lora_transformer_txt_in__lora_down__weight=(2, 4),
        lora_transformer_txt_in__lora_up__weight=(4, 2),
    )
    save_file(state, tmp_path / "a.safetensors")
    listed = ", ".join(f"'{name}'" for name in state)
    text = (
        "Lora 'a.safetensors' contains unexpected module keys, it is likely that this "
        f"Lora is for a different model : '[{listed}, 'lora_tra...'"
    )
    found = Answered(text, tmp_path / "a.safetensors")
    assert "Each name of the message is one of this file (all of them)" in found.said
    assert "OneTrainer" in found.said and "sd-scripts" not in found.said


def test_a_run_that_has_ended_goes_on(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
    parameter.grad = torch.ones(2)
    optimizer.step()
    state = {"start_epoch": 100, "model": {"a.weight": torch.ones(2)}}
    torch.save({**state, "optimizer": optimizer.state_dict()}, tmp_path / "a.pth")
    text = "Is it possible to resume training from the results of a completed run?"
    found = Answered(text, tmp_path / "a.pth")
    assert "start_epoch is 100" in found.said and "eval()" not in found.said
    assert "give it a total of epochs above" in found.said


def test_a_class_that_loads_itself_is_not_blamed(tmp_path: Path) -> None:
    state = {"state_dict": {"a.weight": torch.ones(2)}, "epoch": 3}
    torch.save({**state, "pytorch-lightning_version": "2"}, tmp_path / "a.ckpt")
    text = "The accuracy is worse after loading it.\nmodel = {}.load_from_checkpoint(p)"
    assert (
        "method of the class"
        not in Answered(text.format("Net"), tmp_path / "a.ckpt").said
    )
    assert (
        "method of the class" in Answered(text.format("net"), tmp_path / "a.ckpt").said
    )


@pytest.mark.parametrize(
    "text",
    [
        "Is this .ckpt file the final result, or do I convert it for inference?",
        "I've got a checkpoint file. How do I extract the weights from the file?",
        "How can I use the checkpoint for inference?",
    ],
)
def test_what_of_a_checkpoint_a_prediction_needs(text: str, tmp_path: Path) -> None:
    state = {f"net.{n}.weight": torch.ones(2) for n in range(4)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "a.ckpt")
    found = Answered(text, tmp_path / "a.ckpt")
    assert found.code == 0
    assert "The trained weights are in state_dict" in found.said
    assert set(found.loaded()) == set(state)
    written = torch.load(found.run("ckpt rename"))
    assert "0.weight" in written.get("state_dict", written)
    assert set(torch.load(found.run("ckpt slim"))) == set(state)


# --- several saves --------------------------------------------------------------------


def _saves(folder: Path) -> dict[str, torch.Tensor]:
    """Write two saves of a run: one to go on with, and one to use."""
    model = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 16)).sum().backward()
    optimizer.step()
    state = {key: value.detach() for key, value in model.state_dict().items()}
    whole = {"model": state, "optimizer": optimizer.state_dict(), "epoch": 60}
    torch.save(whole, folder / "checkpoint_best_regular.pth")
    torch.save({"model": state}, folder / "checkpoint_best_total.pth")
    return state


_DIFFER = "What is the difference between 'best_total.pth' and 'best_regular.pth'?\n"


def test_two_saves_of_a_folder_are_told_apart(tmp_path: Path) -> None:
    _saves(tmp_path)
    found = Answered(_DIFFER, tmp_path)
    assert "checkpoint_best_total.pth holds model (1.06 KiB)." in found.said
    assert "holds optimizer (2.13 KiB), model (1.06 KiB), epoch 60." in found.said
    assert "checkpoint_best_regular.pth alone has epoch, optimizer" in found.said
    line = next(row for row in found.commands if row.startswith("ckpt diff"))
    done = run(*line.split()[1:], cwd=found.folder)
    assert done.code == 0 and b"2 unchanged" in done.out


def test_saves_whose_weights_stand_at_other_places_get_no_diff(tmp_path: Path) -> None:
    state = _saves(tmp_path)
    torch.save(state, tmp_path / "checkpoint_best_total.pth")
    found = Answered(_DIFFER, tmp_path)
    assert "holds the weights alone (1.06 KiB)." in found.said
    assert "which both have" in found.said
    assert not found.commands


def test_a_question_that_names_no_two_saves_is_not_about_them(tmp_path: Path) -> None:
    _saves(tmp_path)
    for text in ("What is the difference?\n", "Is best_total.pth another one?\n"):
        assert "alone has" not in run("explain", text, tmp_path).out.decode()
    # An error is another question.
    error = "RuntimeError: the two files differ\n" + _DIFFER
    assert "alone has" not in run("explain", error, tmp_path).out.decode()


def test_a_file_of_one_speaker_lacks_the_speakers(tmp_path: Path) -> None:
    state = tensors(
        g__enc_p__emb__weight=(256, 8),
        g__dec__conv_pre__weight=(16, 8, 7),
        g__dec__conv_pre__bias=(16,),
        g__flow__0__enc__in__weight=(16, 8, 5),
    )
    absent = [f"g.dec.cond.{leaf}" for leaf in ("weight", "bias")]
    absent += [f"g.flow.0.enc.cond_layer.{leaf}" for leaf in ("weight_g", "weight_v")]
    lists = ", ".join(f'"{name}"' for name in [*absent, "g.emb_g.weight"])
    text = "RuntimeError: Error(s) in loading state_dict for VitsModel:\n"
    text += f"\tMissing key(s) in state_dict: {lists}. \n"
    held = {"state_dict": state, "hyper_parameters": {"num_speakers": 1, "lr": 0.1}}
    torch.save(held, tmp_path / "p.ckpt")
    found = Answered(text, tmp_path / "p.ckpt")
    assert "g.emb_g is the table of the speakers, and 2 layers bring" in found.said
    assert "(hyper_parameters.num_speakers is 1 in its settings)" in found.said
    assert "new head" not in found.said
    # Another layer that lacks is no part of the speakers.
    other = text.replace("g.emb_g.weight", 'g.emb_g.weight", "g.dp.pre.weight')
    assert "speakers," not in Answered(other, tmp_path / "p.ckpt").said
