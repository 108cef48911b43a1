"""Situations of a search through public threads: proteins, sound, pictures and runs
that go on. What is printed is run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import oracle
import process
import pytest
import torch
from answered import Answered
from inside import folder_of
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def saved_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer after one step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


def parameters(state: dict[str, Tensor]) -> list[nn.Parameter]:
    return [nn.Parameter(value.clone()) for value in state.values()]


# --- proteins -------------------------------------------------------------------------


def write_esm(folder: Path, **config: Any) -> Path:
    """Write a model of ESM as transformers has it, without a table of positions."""
    folder.mkdir()
    state = {"esm.embeddings.word_embeddings.weight": torch.randn(446, 8)}
    for layer in range(4):
        place = f"esm.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            state[f"{place}.attention.self.{part}.weight"] = torch.randn(8, 8)
            state[f"{place}.attention.self.{part}.bias"] = torch.randn(8)
        state[f"{place}.attention.output.dense.weight"] = torch.randn(8, 8)
        state[f"{place}.output.dense.weight"] = torch.randn(8, 8)
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"model_type": "esm", **config}))
    return folder


NEW_OF_ESM = (
    "Some weights of EsmForMaskedLM were not initialized from the model checkpoint at "
    "/home/me/saprot and are newly initialized: ['esm.contact_head.regression.bias', "
    "'esm.contact_head.regression.weight', 'esm.embeddings.position_embeddings.weight']"
)


def test_parts_of_esm_that_are_not_used(tmp_path: Path) -> None:
    folder = write_esm(tmp_path / "saprot", position_embedding_type="rotary")
    found = Answered(NEW_OF_ESM, folder)
    assert "Only predict_contacts uses the contact head" in found.said
    assert "position_embeddings.weight is not used" in found.said
    assert "version" not in found.said and "random there" not in found.said


def test_a_table_of_positions_that_is_used(tmp_path: Path) -> None:
    folder = write_esm(tmp_path / "esm1b", position_embedding_type="absolute")
    found = Answered(NEW_OF_ESM, folder)
    assert "is not used" not in found.said


def test_a_layer_that_lacks_beside_the_contact_head(tmp_path: Path) -> None:
    folder = write_esm(tmp_path / "saprot", position_embedding_type="rotary")
    text = NEW_OF_ESM.replace("['esm.", "['esm.encoder.layer.9.output.weight', 'esm.")
    assert "lacks nothing" not in Answered(text, folder).said


def test_a_list_for_the_kind_of_positions(tmp_path: Path) -> None:
    """A list has no hash, and ended the command."""
    folder = write_esm(tmp_path / "saprot", position_embedding_type=["rotary"])
    found = Answered(NEW_OF_ESM, folder)
    assert "position_embeddings.weight is not used" not in found.said


def test_the_contact_head_of_fair_esm_is_a_file_of_its_own(tmp_path: Path) -> None:
    model = {"encoder.lm_head.weight": torch.randn(33, 8)}
    torch.save({"args": argparse.Namespace(), "model": model}, tmp_path / "esm1b.pt")
    text = (
        "    regression_data = torch.load(regression_location)\nFileNotFoundError: "
        "[Errno 2] No such file or directory: '/data/esm1b-contact-regression.pt'"
    )
    found = Answered(text, tmp_path / "esm1b.pt")
    assert "Put it beside this file, as esm1b-contact-regression.pt" in found.said
    (line,) = [line for line in found.commands if "load_model_and_alphabet" in line]
    read: list[Any] = []
    scope = {"torch": torch, "esm": _Esm(read)}
    with folder_of(tmp_path):
        exec(line, scope)
    name, data, regression = read
    assert name == "esm1b" and set(data) == {"args", "model"} and regression is None


class _Esm:
    """The calls of fair-esm that the printed line makes."""

    def __init__(self, read: list[Any]) -> None:
        self.read = read

    @property
    def pretrained(self) -> _Esm:
        return self

    def load_model_and_alphabet_core(self, *words: Any) -> tuple[None, None]:
        self.read.extend(words)
        return None, None


# --- sound ----------------------------------------------------------------------------


def test_a_table_of_speakers_of_another_size_in_the_optimizer(tmp_path: Path) -> None:
    state = {
        "encoder.src_word_emb.weight": torch.randn(36, 8),
        "speaker_emb.weight": torch.randn(218, 8),
        "mel_linear.weight": torch.randn(80, 8),
    }
    optimizer = saved_optimizer(torch.optim.Adam(parameters(state)))
    torch.save({"model": state, "optimizer": optimizer}, tmp_path / "600000.pth.tar")
    text = (
        '    self._optimizer.step()\n  File "torch/optim/adam.py", line 86\n'
        "RuntimeError: The size of tensor a (218) must match the size of tensor b (6) "
        "at non-singleton dimension 0"
    )
    found = Answered(text, tmp_path / "600000.pth.tar")
    assert "those of model.speaker_emb.weight. None has one of 6" in found.said
    assert "leave out load_state_dict of the optimizer" in found.said
    assert "the states fit the order" not in found.said


def test_a_message_that_somebody_has_typed(tmp_path: Path) -> None:
    state = {
        "encoder.position_enc": torch.randn(1, 1001, 8),
        "encoder.src_word_emb.weight": torch.randn(1612, 8),
        "mel_linear.weight": torch.randn(80, 8),
    }
    torch.save(state, tmp_path / "a.pth")
    text = (
        "Runtime Error: Error in loading state_dict for FastSpeech2\n\n"
        'Miss key(s) in state_dict: "decoder.speaker_fc.weight"\n'
        "size mismatch for encoder.position_enc: copyinga param with shape "
        "torch.size([1, 10\n01\uff0c8]) from checkpiont, the shape in current model is "
        "torch.size([1, 2001, 8])\u3002\n"
        " size mismatch for encoder.src_word_emb.weight: copying a param with shape "
        "torch.size\n([1612\uff0c8])Erom checkpoint,the shape in current model is "
        "torch.size([1915\uff0c8])\u3002\n"
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "decoder.speaker_fc.weight" in found.names
    assert "[1, 1001, 8]  [1, 2001, 8]" in found.page
    assert "[1612, 8]     [1915, 8]" in found.page
    assert "another shape in this file than in the message" not in found.said


# --- pictures -------------------------------------------------------------------------


def test_pictures_of_another_size_before_a_flat_layer(tmp_path: Path) -> None:
    state = {
        "module.conv1.weight": torch.randn(8, 1, 3, 3),
        "module.fc1.weight": torch.randn(16, 640),
        "module.fc1.bias": torch.randn(16),
        "module.fc_p1.weight": torch.randn(15, 16),
        "module.fc_p1.bias": torch.randn(15),
    }
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "pose.pth")
    text = "RuntimeError: Error(s) in loading state_dict for DataParallel:\n"
    for name, here, there in (
        ("fc1.weight", "16, 640", "16, 1352"),
        ("fc_p1.weight", "15, 16", "3, 16"),
        ("fc_p1.bias", "15", "3"),
    ):
        text += (
            f"size mismatch for module.{name}: copying a param of torch.Size([{here}]) "
            f"from checkpoint, where the shape is torch.Size([{there}]) in current "
            "model.\n"
        )
    found = Answered(text, tmp_path / "pose.pth")
    assert "15 outputs where the model has 3" in found.said
    assert "module.fc1.weight takes 640 inputs" in found.said
    assert "pictures of another size go in" in found.said


# --- runs that go on ------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_loss_that_is_large_again_after_a_resume(
    momentum: float, tmp_path: Path
) -> None:
    state = {"backbone.conv1.weight": torch.randn(8, 3, 3, 3)}
    optimizer = torch.optim.SGD(parameters(state), lr=0.01, momentum=momentum)
    checkpoint = {
        "meta": {"epoch": 7, "iter": 51_310},
        "state_dict": state,
        "optimizer": saved_optimizer(optimizer),
    }
    torch.save(checkpoint, tmp_path / "epoch_7.pth")
    text = (
        "I use 'resume_from = xxx.pth ' to continue training, and find the loss is as "
        "larger as initial, mAP also decrease. How to solve it ?"
    )
    found = Answered(text, tmp_path / "epoch_7.pth")
    assert "This file records meta.epoch 7, meta.iter 51,310" in found.said
    assert "Where its log begins at 0" in found.said


def test_frozen_layers_that_the_shapes_do_not_tell_apart(tmp_path: Path) -> None:
    state = {
        f"backbone.res{stage}.conv.weight": torch.randn(8, 8, 3, 3)
        for stage in (2, 3, 4)
    }
    state["box_predictor.cls_score.weight"] = torch.randn(5, 8)
    trained = parameters(state)[2:]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    checkpoint = {"model": state, "optimizer": saved_optimizer(optimizer)}
    torch.save(checkpoint, tmp_path / "model_final.pth")
    text = "Is there a way to verify what layers are frozen/unfrozen in this file?"
    found = Answered(text, tmp_path / "model_final.pth")
    assert "optimizer has 2 of the 4 parameters of model" in found.said
    assert found.names == ["box_predictor.cls_score.weight"]


# --- adapters -------------------------------------------------------------------------

BASE = "huggyllama/llama-7b"


def write_adapter(folder: Path) -> Path:
    """Write an adapter as PEFT saves it."""
    folder.mkdir(exist_ok=True)
    state = {}
    for part, shape in (("A", (4, 8)), ("B", (8, 4))):
        name = f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight"
        state[name] = torch.randn(shape)
    torch.save(state, folder / "adapter_model.bin")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": BASE,
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def llama() -> dict[str, Tensor]:
    return {"model.layers.0.self_attn.q_proj.weight": torch.randn(8, 8)}


@pytest.mark.parametrize(
    "text",
    [
        "the final output do not have checkpoint ,only hava adapter_config.json",
        "Is there a way where one can save the base model and adapter merged as one?",
    ],
)
def test_an_adapter_alone_is_the_whole_result(text: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "out")
    found = Answered(text, folder)
    assert (
        f"The base model is not in it, and was not changed. It was trained for {BASE}"
        in found.said
    )
    assert "ckpt slim" not in found.page
    (command,) = [line for line in found.commands if line.startswith("ckpt merge")]
    (tmp_path / "base").mkdir()
    save_file(llama(), tmp_path / "base" / "model.safetensors")
    (tmp_path / "base" / "config.json").write_text('{"model_type": "llama"}')
    words = command.replace("BASE", "base").replace("MERGED", "merged").split()[1:]
    assert process.ckpt(*words, cwd=tmp_path).code == 0
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert set(merged) == set(llama())


def test_a_merged_model_beside_its_adapter(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "merged")
    save_file(llama(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    text = "AutoModelForCausalLM loads the adapter and not the merged model, why?"
    found = Answered(text, folder)
    assert "The model of this folder is not read" in found.said
    (command,) = [line for line in found.commands if line.startswith("mkdir")]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert process.ckpt("inspect", "merged", cwd=tmp_path).code == 0
    assert sorted(path.name for path in (folder / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.bin",
    ]


# --- other formats --------------------------------------------------------------------


@pytest.mark.parametrize("is_above", [False, True])
def test_weights_in_another_format(is_above: bool, tmp_path: Path) -> None:
    folder = tmp_path / "latest" / "unet"
    folder.mkdir(parents=True)
    state = {"conv_in.weight": torch.randn(8, 4, 3, 3)}
    save_file(state, folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text('{"_class_name": "UNet2DConditionModel"}')
    if is_above:
        torch.save({"optimizer": {}, "epoch": 2}, tmp_path / "latest" / "trainer.ckpt")
    text = (
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'output/latest/unet/diffusion_pytorch_model.bin'"
    )
    found = Answered(text, tmp_path / "latest" if is_above else folder)
    assert "the same weights in another format" in found.said
    assert "Copy it from where" not in found.said
    written = found.run("ckpt convert")
    assert written.name == "diffusion_pytorch_model.bin"
    assert set(torch.load(written)) == set(state)


def test_an_optimizer_with_another_ending_is_no_weights(tmp_path: Path) -> None:
    """accelerate writes optimizer.bin, and Trainer optimizer.pt."""
    folder = tmp_path / "out"
    folder.mkdir()
    state = llama()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    optimizer = saved_optimizer(torch.optim.AdamW(parameters(state)))
    torch.save(optimizer, folder / "optimizer.bin")
    text = "FileNotFoundError: [Errno 2] No such file or directory: 'out/optimizer.pt'"
    found = Answered(text, folder)
    assert "same weights" not in found.said


def test_the_state_of_an_optimizer_is_no_weights(tmp_path: Path) -> None:
    state = {"body.weight": torch.randn(64, 64)}
    optimizer = torch.optim.SGD(parameters(state), lr=0.1, momentum=0.9)
    torch.save(saved_optimizer(optimizer), tmp_path / "optimizer.pth")
    text = "the size of opt.pth is exactly the size of model.pth, is it normal?"
    found = Answered(text, tmp_path / "optimizer.pth")
    assert "the state of an optimizer, and no weights" in found.said
    assert "nothing but weights" not in found.said


# --- transducers ----------------------------------------------------------------------


def test_the_durations_of_a_transducer_are_no_classes(tmp_path: Path) -> None:
    state = {
        "decoder.prediction.embed.weight": torch.randn(1025, 8),
        "joint.joint_net.2.weight": torch.randn(1030, 8),
        "joint.joint_net.2.bias": torch.randn(1030),
    }
    torch.save(state, tmp_path / "model_weights.ckpt")
    text = "RuntimeError: Error(s) in loading state_dict for EncDecRNNTModel:\n"
    for leaf, rest in (("weight", ", 8"), ("bias", "")):
        text += (
            f"\tsize mismatch for joint.joint_net.2.{leaf}: copying a param with shape "
            f"torch.Size([1030{rest}]) from checkpoint, the shape in current model is "
            f"torch.Size([1025{rest}]).\n"
        )
    found = Answered(text, tmp_path / "model_weights.ckpt")
    assert "has 5 outputs more: the durations of a TDT transducer" in found.said
    assert "number of classes" not in found.said


def test_many_outputs_more_are_no_durations(tmp_path: Path) -> None:
    state = {
        "decoder.prediction.embed.weight": torch.randn(100, 8),
        "joint.joint_net.2.weight": torch.randn(200, 8),
    }
    torch.save(state, tmp_path / "model_weights.ckpt")
    rows = {"joint.joint_net.2.weight": ("200, 8", "100, 8")}
    found = Answered(sizes_text(rows), tmp_path / "model_weights.ckpt")
    assert "TDT" not in found.said


def test_a_table_of_words_without_a_shape(tmp_path: Path) -> None:
    state = {
        "decoder.prediction.embed.weight": torch.tensor(1.0),
        "joint.joint_net.2.weight": torch.randn(1030, 8),
    }
    torch.save(state, tmp_path / "model_weights.ckpt")
    rows = {"joint.joint_net.2.weight": ("1030, 8", "1025, 8")}
    found = Answered(sizes_text(rows), tmp_path / "model_weights.ckpt")
    assert "1,030" in found.said and "TDT" not in found.said


# --- what a program says of its optimizer ---------------------------------------------


def test_a_line_of_megatron_begins_with_a_capital(tmp_path: Path) -> None:
    state = {"module": {"w": torch.randn(4, 4)}, "optimizer": None, "iteration": 1000}
    torch.save(state, tmp_path / "mp_rank_00_model_states.pt")
    text = (
        "[2023-09-25 15:53:27,994] [INFO] [RANK 0] Unable to load optimizer from "
        "checkpoint a.pt, exiting. Specify --no-load-rng or --finetune to prevent "
        "attempting to load the random state.\n"
    )
    (tmp_path / "train.log").write_text(text)
    done = process.ckpt(
        "explain", "train.log", "mp_rank_00_model_states.pt", cwd=tmp_path
    )
    assert b"It does not hold the state of random numbers" in done.out


def test_settings_are_no_counters(tmp_path: Path) -> None:
    state = {"convs.0.weight": torch.randn(8, 8)}
    optimizer = saved_optimizer(torch.optim.Adam(parameters(state)))
    checkpoint = {
        "g": state,
        "g_optim": optimizer,
        "args": {"iter": 800_000, "size": 256},
    }
    torch.save(checkpoint, tmp_path / "000600.pt")
    text = (
        "After resuming (--ckpt 000600.pt) the samples look as if it learns for the "
        "first time, looks like it dont know about the previous training"
    )
    found = Answered(text, tmp_path / "000600.pt")
    assert "800,000" not in found.said and "800000" not in found.said
    assert "its optimizer has made 1 steps" not in found.said
    assert "its optimizer has made 1 step." in found.said


def test_an_optimizer_with_groups_and_no_state(tmp_path: Path) -> None:
    checkpoint = {
        "state": {
            "model": {"blocks.0.weight": torch.randn(8, 8)},
            "optimizers": {"Lion": {"param_groups": [{"lr": 1e-5, "params": ["w"]}]}},
        }
    }
    torch.save(checkpoint, tmp_path / "ep0-ba100-rank0.pt")
    text = (
        '  in _flatten_optim_state_dict\n    unflat_osd_state = unflat_osd["state"]\n'
        "KeyError: 'state'"
    )
    found = Answered(text, tmp_path / "ep0-ba100-rank0.pt")
    assert (
        "state.optimizers.Lion of this file has param_groups and no state" in found.said
    )
    assert "at its root" not in found.said
    assert "one that keeps no state (SGD without momentum)" in found.said


# --- names without their beginning ----------------------------------------------------


def test_few_names_that_a_program_has_cut(tmp_path: Path) -> None:
    state = {
        "model.xyz_encoder.params": torch.randn(10),
        **{f"model.layers.{number}.weight": torch.randn(4) for number in range(6)},
        "model.density_grid": torch.randn(1, 8),
        "model.grid_coords": torch.zeros(8, 3),
    }
    torch.save({"epoch": 9, "state_dict": state}, tmp_path / "epoch=9.ckpt")
    text = (
        "RuntimeError: Error(s) in loading state_dict for NGP:\n\tUnexpected key(s) in "
        'state_dict: "density_grid", "grid_coords".\n'
    )
    found = Answered(text, tmp_path / "epoch=9.ckpt")
    assert "The program took model. off the names" in found.said
    assert "Is it the file that was loaded" not in found.said
    model = nn.Module()
    model.xyz_encoder = nn.Module()
    model.xyz_encoder.params = nn.Parameter(torch.zeros(10))
    (line,) = [line for line in found.commands if "strict=False" in line]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert torch.equal(model.xyz_encoder.params, state["model.xyz_encoder.params"])


def test_a_column_for_each_video_is_no_input(tmp_path: Path) -> None:
    networks = {"conv.weight": torch.randn(8, 3, 3, 3), "W_i": torch.randn(512, 4)}
    checkpoint = {"num_vid": 4, "D_state_dict": networks, "epoch": 3}
    torch.save(checkpoint, tmp_path / "model_weights.tar")
    text = (
        "RuntimeError: Error(s) in loading state_dict for Discriminator:\n\tsize "
        "mismatch for W_i: copying a param with shape torch.Size([512, 4]) from "
        "checkpoint, the shape in current model is torch.Size([512, 32]).\n"
    )
    found = Answered(text, tmp_path / "model_weights.tar")
    assert "4 stands among the settings of this checkpoint: num_vid" in found.said
    assert "takes 4" not in found.said and "observations" not in found.said


@pytest.mark.parametrize("is_flash", [False, True])
def test_the_attention_of_flash_attention(is_flash: bool, tmp_path: Path) -> None:
    ends = ("Wqkv.", "in_proj_")
    ours, theirs = ends if is_flash else ends[::-1]
    layers = [f"encoder.layers.{number}.self_attn" for number in range(2)]
    state, model = {}, nn.Module()
    for layer in layers:
        for leaf, shape in (("weight", (24, 8)), ("bias", (24,))):
            state[f"{layer}.{ours}{leaf}"] = torch.randn(shape)
        state[f"{layer}.out_proj.weight"] = torch.randn(8, 8)
    wanted = {name.replace(ours, theirs): row for name, row in state.items()}
    text = "RuntimeError: Error(s) in loading state_dict for TransformerModel:\n"
    for kind, rows, others in (
        ("Missing", wanted, state),
        ("Unexpected", state, wanted),
    ):
        names = ", ".join(f'"{name}"' for name in rows if name not in others)
        text += f"\t{kind} key(s) in state_dict: {names}. \n"
    torch.save(state, tmp_path / "best_model.pt")
    found = Answered(text, tmp_path / "best_model.pt")
    assert "4 missing keys are there by other names" in found.said
    saved = "flash-attention (Wqkv.)" if is_flash else "torch (in_proj_)"
    assert f"the file has the attention of {saved}" in found.said
    loaded: dict[str, Tensor] = {}
    model.load_state_dict = loaded.update  # type: ignore[assignment]
    (line,) = [line for line in found.commands if line.startswith("state = ")]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert set(loaded) == set(wanted)


# --- parts beside an adapter ----------------------------------------------------------

PROJECTOR = ("model.mm_projector.0.weight", "model.mm_projector.0.bias")


def write_llava(folder: Path) -> Path:
    write_adapter(folder)
    parts = {f"base_model.model.{name}": torch.randn(8) for name in PROJECTOR}
    torch.save(parts, folder / "non_lora_trainables.bin")
    return folder


NEW_IN_BASE = (
    "Some weights of LlavaLlamaForCausalLM were not initialized from the model "
    f"checkpoint at /data/vicuna and are newly initialized: {list(PROJECTOR)}\n"
)


def test_parts_that_were_trained_beside_an_adapter(tmp_path: Path) -> None:
    found = Answered(NEW_IN_BASE, write_llava(tmp_path / "llava-lora"))
    assert "in non_lora_trainables.bin of this folder" in found.said
    assert "expected, for they stay" not in found.said
    loaded: dict[str, Tensor] = {}
    model = nn.Module()

    def take(state: dict[str, Tensor], strict: bool) -> None:
        loaded.update(state)

    model.load_state_dict = take  # type: ignore[assignment]
    (line,) = [line for line in found.commands if line.startswith("model.load_state")]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert set(loaded) == set(PROJECTOR)


def test_new_weights_of_a_base_model_are_not_expected(tmp_path: Path) -> None:
    found = Answered(NEW_IN_BASE, write_adapter(tmp_path / "lora"))
    assert "The message is about /data/vicuna, and not about this adapter" in found.said
    assert "expected, for they stay" not in found.said


def test_a_question_names_the_parts_beside_an_adapter(tmp_path: Path) -> None:
    text = "How to load finetuned LoRA and projector model parts from a checkpoint?"
    found = Answered(text, write_llava(tmp_path / "llava-lora"))
    assert "non_lora_trainables.bin of this folder holds parts" in found.said


# --- files without what is asked ------------------------------------------------------


def test_one_network_of_two_is_for_use(tmp_path: Path) -> None:
    state = {"style.1.weight": torch.randn(8, 8), "generator.0.weight": torch.randn(8)}
    torch.save(state, tmp_path / "010000.model")
    text = (
        "    generator.module.load_state_dict(ckpt['generator'])\nKeyError: 'generator'"
    )
    found = Answered(text, tmp_path / "010000.model")
    assert "This one has one alone: it is for use" in found.said


def test_both_networks_in_one_file(tmp_path: Path) -> None:
    state = {"generator.w": torch.ones(2, 2), "discriminator.w": torch.ones(2, 2)}
    torch.save(state, tmp_path / "G_100.pth")
    found = Answered("KeyError: 'generator'", tmp_path / "G_100.pth")
    assert "This one has one alone" not in found.said


def test_a_whole_file_without_tensors(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "pytorch_model.pt")
    text = "RuntimeError: PytorchStreamReader failed locating file data.pkl: not found"
    found = Answered(text, tmp_path / "pytorch_model.pt")
    assert "It holds no tensor: the run saved an empty dict" in found.said
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.pt")
    found = Answered(text, tmp_path / "pytorch_model.pt")
    assert "This file is whole" in found.said and "no tensor" not in found.said


# --- values of a run ------------------------------------------------------------------


def test_a_policy_without_the_statistics_of_its_data(tmp_path: Path) -> None:
    unset = torch.full((6,), float("inf"))
    state = {
        "normalize_inputs.buffer_observation_state.mean": unset,
        "model.action_head.weight": torch.randn(6, 8),
    }
    save_file(state, tmp_path / "model.safetensors")
    text = (
        "AssertionError: `mean` is infinity. You should either initialize with `stats` "
        "as an argument, or use a pretrained model."
    )
    found = Answered(text, tmp_path / "model.safetensors")
    assert "6 elements are infinite in normalize_inputs" in found.said
    assert "dataset_stats=dataset.meta.stats" in found.said
    state["normalize_inputs.buffer_observation_state.mean"] = torch.zeros(6)
    save_file(state, tmp_path / "whole.safetensors")
    other = Answered(text, tmp_path / "whole.safetensors")
    assert "were read, and none is infinite" in other.said


def test_a_question_for_settings_of_a_run(tmp_path: Path) -> None:
    arguments = {"train_batch_size": 8, "max_steps": 900, "output_dir": "out"}
    state = {"w": torch.randn(3)}
    torch.save({"model": state, "training_args": arguments}, tmp_path / "a.pth")
    text = "How can I find the settings (train_batch_size and max_steps) that I used?"
    found = Answered(text, tmp_path / "a.pth")
    assert "training_args.train_batch_size is 8" in found.said
    assert "training_args.max_steps is 900" in found.said
    (command,) = [line for line in found.commands if line.startswith("ckpt get")]
    done = process.ckpt(*command.split()[1:], cwd=tmp_path)
    assert done.code == 0 and b"output_dir" in done.out


@pytest.mark.parametrize("place", ["a b", "x;echo hi", "-p"])
def test_a_group_of_settings_with_an_odd_name(place: str, tmp_path: Path) -> None:
    """A stranger's name was put into the command as it was."""
    torch.save({"w": torch.ones(2), place: {"batch_size": 7}}, tmp_path / "a.pt")
    found = Answered("Which batch_size was it trained with?", tmp_path / "a.pt")
    assert "batch_size is 7" in found.said
    for command in found.commands:
        if command.startswith("ckpt get"):
            words = shlex.split(command)
            assert len(words) == 4
            assert process.ckpt(*words[1:], cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    "text", ["Which batch_size was it trained with?", "which epoch is it of?"]
)
def test_numbers_that_python_does_not_write_out(text: str, tmp_path: Path) -> None:
    checkpoint = {"w": torch.ones(2), "batch_size": 10**5_000, "epoch": 10**5_000}
    torch.save(checkpoint, tmp_path / "a.pt")
    found = Answered(text, tmp_path / "a.pt")
    assert found.code == 0 and "where its run stood" not in found.said


def test_a_value_that_the_run_did_not_write(tmp_path: Path) -> None:
    checkpoint = {"model_state_dict": {"w": torch.randn(3)}, "step": 4000}
    torch.save(checkpoint, tmp_path / "ckpt-4000.pth")
    text = "    early_stopping(ck['early_stop_value'])\nKeyError: 'early_stop_value'"
    found = Answered(text, tmp_path / "ckpt-4000.pth")
    assert "It is a value of a run: the code that saved did not write it" in found.said


def test_bare_weights_have_nothing_of_a_run(tmp_path: Path) -> None:
    torch.save({"features.0.weight": torch.randn(8, 8)}, tmp_path / "all_ep_32.pth")
    text = "    self.net.load_state_dict(latest_state['net'])\nKeyError: 'net'"
    found = Answered(text, tmp_path / "all_ep_32.pth")
    assert "It has nothing of a run (optimizer, epoch) to go on from" in found.said


# --- names that a program leaves out --------------------------------------------------


def test_names_that_a_program_filters(tmp_path: Path) -> None:
    state = {f"backbone.blocks.{number}.weight": torch.randn(4) for number in range(5)}
    torch.save({"model": state, "epoch": 3}, tmp_path / "checkpoint_3.pt")
    text = (
        "loaded checkpoint_3.pt and found missing and/or unexpected keys:\n"
        f"missing_keys={list(state)}\n"
    )
    found = Answered(text, tmp_path / "checkpoint_3.pt")
    assert found.kind == "keys" and set(found.names) == set(state)
    assert "its load with strict=False got nothing" in found.said
    few = Answered(f"missing_keys={list(state)[:1]}\n", tmp_path / "checkpoint_3.pt")
    assert few.kind == "keys" and "got nothing" not in few.said


# --- outputs --------------------------------------------------------------------------


def sizes_text(rows: dict[str, tuple[str, str]]) -> str:
    text = "RuntimeError: Error(s) in loading state_dict for Net:\n"
    for name, (here, there) in rows.items():
        text += (
            f"\tsize mismatch for {name}: copying a param with shape "
            f"torch.Size([{here}]) from checkpoint, the shape in current model is "
            f"torch.Size([{there}]).\n"
        )
    return text


def test_coordinates_of_points_are_no_classes(tmp_path: Path) -> None:
    state = {
        "encoder.weight": torch.randn(24, 8),
        "coarse_pred.2.weight": torch.randn(288, 24),
        "coarse_pred.2.bias": torch.randn(288),
    }
    torch.save(state, tmp_path / "a.pth")
    rows = {
        "coarse_pred.2.weight": ("288, 24", "672, 24"),
        "coarse_pred.2.bias": ("288", "672"),
    }
    found = Answered(sizes_text(rows), tmp_path / "a.pth")
    assert "288 outputs where the model has 672" in found.said
    assert "points, coordinates or boxes" in found.said
    assert "number of classes" not in found.said


def test_queries_for_the_places_of_a_text(tmp_path: Path) -> None:
    state = {
        "pos_queries": torch.randn(1, 26, 8),
        "head.weight": torch.randn(95, 8),
        "encoder.blocks.0.attn.qkv.weight": torch.randn(24, 8),
    }
    torch.save(state, tmp_path / "parseq.pt")
    rows = {
        "pos_queries": ("1, 26, 8", "1, 101, 8"),
        "head.weight": ("95, 8", "220, 8"),
    }
    found = Answered(sizes_text(rows), tmp_path / "parseq.pt")
    assert "101 in the model, one of them for its end. So set" in found.said
    assert "So set the greatest length of a text to 25" in found.said
    assert "image size" not in found.said


def test_classes_of_a_head_for_boxes_are_classes(tmp_path: Path) -> None:
    state = {
        "bbox_head.conv.weight": torch.randn(8, 8, 3, 3),
        "bbox_head.fc_cls.weight": torch.randn(81, 8),
    }
    torch.save(state, tmp_path / "a.pth")
    rows = {"bbox_head.fc_cls.weight": ("81, 8", "9, 8")}
    found = Answered(sizes_text(rows), tmp_path / "a.pth")
    assert "81 outputs where the model has 9: another number of classes" in found.said


# --- copies and averages among the weights --------------------------------------------


def test_the_teacher_of_a_student_without_its_beginning(tmp_path: Path) -> None:
    leaves = ("norm1.weight", "attn.proj.weight", "mlp.fc1.weight")
    names = [f"blocks.{number}.{leaf}" for number in range(4) for leaf in leaves]
    state = {
        f"{copy}.backbone.{name}": torch.randn(4)
        for copy in ("student", "teacher")
        for name in names
    }
    state["student.dino_head.mlp.0.weight"] = torch.randn(4, 4)
    torch.save({"model": state, "iteration": 3}, tmp_path / "model_final.pth")
    asked = [name.replace("blocks.", "blocks.0.", 1) for name in names]
    text = "RuntimeError: Error(s) in loading state_dict for DinoVisionTransformer:\n"
    for kind, rows in (("Missing", asked), ("Unexpected", names)):
        listed = ", ".join(f'"{name}"' for name in rows)
        text += f"\t{kind} key(s) in state_dict: {listed}. \n"
    found = Answered(text, tmp_path / "model_final.pth")
    assert "Is it the file that was loaded" not in found.said
    assert "The program took teacher.backbone. off the names" in found.said
    written = torch.load(found.run("ckpt rename"))["model"]
    assert all(f"teacher.backbone.{name}" in written for name in asked)


def test_averages_that_stand_among_the_weights(tmp_path: Path) -> None:
    state = {
        f"model.diffusion_model.out.{number}.weight": torch.randn(4)
        for number in range(5)
    }
    averages = {
        f"model_ema.{name.removeprefix('model.').replace('.', '')}": value * 0.9
        for name, value in state.items()
    }
    checkpoint = {
        "state_dict": {
            **state,
            **averages,
            "model_ema.decay": torch.tensor(0.9999),
            "model_ema.num_updates": torch.tensor(3),
        },
        "global_step": 3,
    }
    torch.save(checkpoint, tmp_path / "105000.ckpt")
    text = "I do not see the use of ema model. So what is the ema weight used for?"
    found = Answered(text, tmp_path / "105000.ckpt")
    assert "among its weights, below model_ema. (7)" in found.said
    assert "no running averages" not in found.said
    written = torch.load(found.run("ckpt slim"))
    name = "model.diffusion_model.out.0.weight"
    held = written.get("state_dict", written)
    assert torch.equal(held[name], state[name] * 0.9)


def test_a_layer_with_averages_of_its_own(tmp_path: Path) -> None:
    """Mega computes averages of its inputs in each layer: they are no copy."""
    state = {
        f"layers.{layer}.{name}": torch.randn(4)
        for layer, name in product(range(4), ("ema.alpha", "ema.delta", "fc.weight"))
    }
    torch.save({"model": state}, tmp_path / "mega.pt")
    found = Answered("where are the EMA weights?", tmp_path / "mega.pt")
    assert "among its weights" not in found.said
    assert "no running averages (EMA)" in found.said


# --- schedules ------------------------------------------------------------------------


def test_a_size_is_looked_for_in_the_dimension_of_the_message(tmp_path: Path) -> None:
    state = {
        "class_embed.weight": torch.randn(91, 8),
        "conv1.weight": torch.randn(8, 3, 7, 7),
    }
    optimizer = saved_optimizer(torch.optim.AdamW(parameters(state)))
    torch.save({"model": state, "optimizer": optimizer}, tmp_path / "a.pth")
    text = (
        "    exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)\nRuntimeError: The size of "
        "tensor a (91) must match the size of tensor b (7) at non-singleton dimension 0"
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "a dimension of 91 (dimension 0): those" in found.said
    assert "those of model.class_embed.weight. None has one of 7" in found.said
    assert "conv1" not in found.said


def test_a_rate_that_no_schedule_keeps(tmp_path: Path) -> None:
    state = {"w": torch.randn(4)}
    optimizer = saved_optimizer(torch.optim.AdamW(parameters(state), lr=3e-4))
    torch.save({"model": state, "optimizer": optimizer}, tmp_path / "a.pth")
    text = "I used --resume, but I found that the learning rate has not been restored."
    found = Answered(text, tmp_path / "a.pth")
    assert "It holds no state of a schedule" in found.said
    assert "Its rate is 0" not in found.said


def test_a_rate_at_the_end_of_its_schedule(tmp_path: Path) -> None:
    state = {"w": torch.randn(4)}
    optimizer = saved_optimizer(torch.optim.AdamW(parameters(state), lr=1e-4))
    optimizer["param_groups"][0] |= {"lr": 0.0, "initial_lr": 1e-4}
    checkpoint = {
        "model": state,
        "optimizer": optimizer,
        "scheduler": {"last_epoch": 9},
    }
    torch.save(checkpoint, tmp_path / "a.pth")
    text = "If I restart from the checkpoint, will the learning rate be 0 all the time?"
    found = Answered(text, tmp_path / "a.pth")
    assert "Its rate is 0, as at the end of a schedule" in found.said
    assert "goes on at 0, and learns nothing" in found.said
    optimizer["param_groups"][0]["lr"] = 1e-5
    torch.save(checkpoint, tmp_path / "a.pth")
    assert "Its rate is 0" not in Answered(text, tmp_path / "a.pth").said
    assert "holds no state of a schedule" not in found.said


# --- positions of videos and volumes --------------------------------------------------


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        ("1, 784, 8", "1, 1568, 8", "784 in the checkpoint and 1,568 in the model"),
        (
            "1, 4, 14, 14, 8",
            "1, 8, 14, 14, 8",
            "784 (4 x 14 x 14) in the checkpoint and 1,568 (8 x 14 x 14) in the model",
        ),
    ],
)
def test_positions_with_frames_are_no_square(
    here: str, there: str, said: str, tmp_path: Path
) -> None:
    state = {
        "pos_embed": torch.randn(*map(int, here.split(", "))),
        "patch_embed.proj.weight": torch.randn(8, 3, 2, 16, 16),
        "blocks.0.attn.qkv.weight": torch.randn(24, 8),
    }
    torch.save({"model": state}, tmp_path / "videomae.pth")
    found = Answered(
        sizes_text({"pos_embed": (here, there)}), tmp_path / "videomae.pth"
    )
    assert said in found.said and "28 x 28" not in found.said
    assert "(2 x 16 x 16), so the positions are a grid of frames" in found.said


def test_positions_of_a_picture_are_no_video(tmp_path: Path) -> None:
    state = {
        "pos_embed": torch.randn(1, 196, 8),
        "patch_embed.proj.weight": torch.randn(8, 3, 16, 16),
    }
    torch.save({"model": state}, tmp_path / "mae.pth")
    rows = {"pos_embed": ("1, 196, 8", "1, 784, 8")}
    found = Answered(sizes_text(rows), tmp_path / "mae.pth")
    assert "196" in found.said and "frames" not in found.said
