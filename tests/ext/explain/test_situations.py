"""Situations that people brought to the threads of their programs: a message, the file,
and the answer that helps.

Each says nothing that the file contradicts, and what it prints is run.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import deepspeeds
import numpy as np
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered, raised
from inside import folder_of, inside
from process import ckpt
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def ran(found: Answered, begin: str, model: nn.Module) -> nn.Module:
    """Run the only printed line of Python that begins so, with a model, and return the
    model.
    """
    (line,) = [command for command in found.commands if command.startswith(begin)]
    with folder_of(found.folder):
        exec(line, {"torch": torch, "model": model})
    return model


def write_zip(path: Path, rows: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in rows.items():
            archive.writestr(name, data)


def trained() -> tuple[
    nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
]:
    """A model, its optimizer and its scheduler, after a step."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    return model, optimizer, scheduler


def trainer_folder(folder: Path, *, with_state: bool = True) -> Path:
    """A folder as Trainer of transformers writes it."""
    folder.mkdir(parents=True)
    model, optimizer, scheduler = trained()
    save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(scheduler.state_dict(), folder / "scheduler.pt")
    if with_state:
        (folder / "trainer_state.json").write_text(
            json.dumps({"global_step": 1, "log_history": []})
        )
    return folder


def adapter_folder(folder: Path, **more: torch.Tensor) -> Path:
    """A folder as PEFT writes it."""
    folder.mkdir(parents=True)
    layer = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    state = {
        layer.format(number, part): torch.ones(4, 4)
        for number in range(2)
        for part in "AB"
    }
    save_file({**state, **more}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": "org/base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


# --- keys that a program asks for -----------------------------------------------------


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.critic = nn.Linear(4, 1)


@pytest.mark.parametrize(
    ("line", "begin"),
    [
        ("    actor, _ = torch.load(path)\n", "The line unpacks"),
        ("", "If the line unpacks"),
    ],
)
def test_one_state_dict_is_no_pair(line: str, begin: str, tmp_path: Path) -> None:
    torch.save(Policy().state_dict(), tmp_path / "27776.pt")
    found = Answered(
        f"{line}ValueError: too many values to unpack (expected 2)",
        tmp_path / "27776.pt",
    )
    assert found.said.startswith(begin) and found.code == 0
    assert (
        "one state dict of 4 tensors, the weights by their names, and not 2 things"
        in found.said
    )
    ran(found, "model.load_state_dict(", Policy())


def test_a_dict_of_parts_is_no_pair_and_a_pair_is_no_cause(tmp_path: Path) -> None:
    torch.save(
        {"model": Policy().state_dict(), "epoch": 3, "lr": 0.1}, tmp_path / "a.pt"
    )
    found = Answered(
        "ValueError: too many values to unpack (expected 2)", tmp_path / "a.pt"
    )
    assert "one dict of model, epoch and lr, and not 2 things" in found.said
    found = Answered(
        "ValueError: too many values to unpack (expected 3)", tmp_path / "a.pt"
    )
    assert "unpack" not in found.said
    torch.save((Policy().state_dict(), 3), tmp_path / "b.pt")
    found = Answered(
        "ValueError: not enough values to unpack (expected 2, got 1)", tmp_path / "b.pt"
    )
    assert "unpack" not in found.said
    found = Answered(
        "ValueError: too many values to unpack (expected 1)", tmp_path / "b.pt"
    )
    assert (
        "The root of this file is a tuple of 2 things, and the program unpacks 1"
        in found.said
    )


def test_a_tuple_is_asked_for_a_key(tmp_path: Path) -> None:
    torch.save((Policy().state_dict(), 3), tmp_path / "b.pt")
    found = Answered(
        "TypeError: tuple indices must be integers or slices, not str",
        tmp_path / "b.pt",
    )
    assert (
        found.said.startswith("The root of this file is a tuple, and no dict")
        and found.code == 0
    )
    found = Answered(
        "TypeError: list indices must be integers or slices, not str", tmp_path / "b.pt"
    )
    assert "is a tuple" not in found.said


_NO_KEY_NAMES = (
    "torchreid/utils/torchtools.py:295: UserWarning: The pretrained weights "
    '"m.pth.tar-150" cannot be loaded, please check the key names manually'
    " (** ignored and continue **)\n  '(** ignored and continue "
    "**)'.format(weight_path)\n"
)


def test_names_that_share_a_beginning_are_renamed(tmp_path: Path) -> None:
    wrapped = nn.ModuleDict(
        {"backbone": nn.ModuleDict({"conv": nn.Linear(3, 4), "fc": nn.Linear(4, 2)})}
    )
    torch.save({"state_dict": wrapped.state_dict(), "epoch": 150}, tmp_path / "m.pth")
    found = Answered(_NO_KEY_NAMES, tmp_path / "m.pth")
    assert (
        "All 4 names in state_dict begin with backbone." in found.said
        and found.code == 0
    )
    inner = wrapped["backbone"]
    renamed = torch.load(found.run("ckpt rename"))["state_dict"]
    assert {*renamed} == {*inner.state_dict()}
    model = nn.ModuleDict({"conv": nn.Linear(3, 4), "fc": nn.Linear(4, 2)})
    ran(found, "import ckpt", model)
    assert torch.equal(model.state_dict()["fc.weight"], inner.state_dict()["fc.weight"])


def test_names_without_a_common_beginning_are_of_another_library(
    tmp_path: Path,
) -> None:
    torch.save(Policy().state_dict(), tmp_path / "m.pth")
    found = Answered(_NO_KEY_NAMES, tmp_path / "m.pth")
    assert "Its 4 names share no beginning: encoder.weight" in found.said
    assert not any("rename" in command for command in found.commands)


def detector() -> dict[str, torch.Tensor]:
    parts = {
        "backbone": nn.Linear(3, 4),
        "neck": nn.Linear(4, 4),
        "bbox_head": nn.Linear(4, 2),
    }
    return nn.ModuleDict(
        {name: nn.ModuleDict({"layer": part}) for name, part in parts.items()}
    ).state_dict()


@pytest.mark.parametrize(
    "text",
    [
        "    table_current = model.state_dict()[k1]\nKeyError: 'backbone.layer.weight'",
        "Failed loading checkpoint form m.pth: 'backbone.layer.weight'",
    ],
)
def test_a_whole_detector_is_no_backbone(text: str, tmp_path: Path) -> None:
    torch.save(
        {"meta": {"mmdet_version": "2.25"}, "state_dict": detector()},
        tmp_path / "m.pth",
    )
    found = Answered(text, tmp_path / "m.pth")
    assert found.said.startswith(
        "This file has a tensor of exactly this name, in state_dict"
    )
    assert "backbone, neck, bbox_head: it holds a whole model" in found.said
    assert (
        "does not know" not in found.said
        and "another part of the name" not in found.said
    )
    backbone = nn.ModuleDict({"layer": nn.Linear(3, 4)})
    ran(found, "state = torch.load", backbone)
    held = torch.load(tmp_path / "m.pth")["state_dict"]
    assert torch.equal(
        backbone.state_dict()["layer.weight"], held["backbone.layer.weight"]
    )


def test_a_flat_file_with_the_name_is_not_what_lacks_it(tmp_path: Path) -> None:
    torch.save(detector(), tmp_path / "m.pth")
    found = Answered("KeyError: 'backbone.layer.weight'", tmp_path / "m.pth")
    assert found.said.startswith(
        "This file has a tensor of exactly this name, so the dict that lacks it"
    )
    assert {
        *ran(found, "state = ", nn.ModuleDict({"layer": nn.Linear(3, 4)})).state_dict()
    } == {
        "layer.weight",
        "layer.bias",
    }


def test_a_backbone_of_caffe2_is_no_detector(tmp_path: Path) -> None:
    blobs = {
        name: np.ones(2, "f4") for name in ("conv1_w", "res2_0_branch2a_w", "fc1000_w")
    }
    (tmp_path / "m.pkl").write_bytes(pickle.dumps({"blobs": blobs}, 2))
    found = Answered("KeyError: 'conv_rpn_w'", tmp_path / "m.pkl")
    assert (
        "No key and no tensor of this file is called conv_rpn_w. These are weights "
        "of Detectron"
    ) in found.said
    assert (
        "3 blobs are of a backbone that was trained on ImageNet (fc1000_w" in found.said
    )
    blobs = {**blobs, "rpn_cls_logits_w": np.ones(2, "f4")}
    (tmp_path / "m.pkl").write_bytes(pickle.dumps({"blobs": blobs}, 2))
    assert (
        "of a backbone"
        not in Answered("KeyError: 'mask_fcn1_w'", tmp_path / "m.pkl").said
    )


FAIRSEQ: dict[str, Any] = {
    "args": None,
    "cfg": {
        "task": {"_name": "audio_finetuning", "data": "/data/m"},
        "model": {"_name": "wav2vec_ctc"},
    },
    "model": {
        "w2v_encoder.w2v_model.mask_emb": torch.ones(4),
        "w2v_encoder.proj.weight": torch.ones(2, 4),
    },
    "optimizer_history": [{"num_updates": 2}],
    "extra_state": {"epoch": 1},
}


def test_a_checkpoint_of_fairseq_is_not_converted_yet(tmp_path: Path) -> None:
    torch.save(FAIRSEQ, tmp_path / "best.pt")
    text = (
        "ValueError: /data/best.pt is not a valid checkpoint since the required key: "
        "task_cfg is missing"
    )
    found = Answered(text, tmp_path / "best.pt")
    assert (
        found.code == 0
        and "task_cfg is a key of a checkpoint of fairseq that s3prl has converted"
        in found.said
    )
    assert (
        "This is a checkpoint of fairseq (task audio_finetuning, model wav2vec_ctc)"
        in found.said
    )
    assert "s3prl converts such a file" in found.said
    torch.save(
        {"task_cfg": {}, "model_cfg": {}, "model_weight": {"a": torch.ones(2)}},
        tmp_path / "c.pt",
    )
    assert "is a key of" not in Answered(text, tmp_path / "c.pt").said


def test_an_older_fairseq_reads_what_is_none(tmp_path: Path) -> None:
    cfg = {
        "task": argparse.Namespace(_name="translation", bpe="gpt2"),
        "model": argparse.Namespace(arch="bart"),
    }
    torch.save({**FAIRSEQ, "cfg": cfg}, tmp_path / "last.pt")
    found = Answered(
        "AttributeError: 'NoneType' object has no attribute 'bpe'", tmp_path / "last.pt"
    )
    assert "args is None in this file, and bpe stands at cfg.task.bpe" in found.said
    assert "an older one reads args alone" in found.said and found.code == 0
    torch.save({"model": Policy().state_dict(), "epoch": 1}, tmp_path / "other.pt")
    other = Answered(
        "AttributeError: 'NoneType' object has no attribute 'bpe'",
        tmp_path / "other.pt",
    )
    assert "None in this file" not in other.said


def test_a_wav2vec_is_no_whisper(tmp_path: Path) -> None:
    state = {
        "wav2vec2.encoder.layers.0.fc.weight": torch.ones(2),
        "lm_head.weight": torch.ones(2),
    }
    torch.save(state, tmp_path / "pytorch_model.bin")
    found = Answered("KeyError: 'dims'", tmp_path / "pytorch_model.bin")
    assert "dims is a key of a Whisper of OpenAI" in found.said
    assert "This is a wav2vec 2.0 in the names of transformers" in found.said
    torch.save({"dims": {"n_mels": 80}, "model_state_dict": state}, tmp_path / "w.pt")
    assert "is a key of" not in Answered("KeyError: 'dims'", tmp_path / "w.pt").said


def test_there_are_no_averages_to_swap(tmp_path: Path) -> None:
    state = {
        "pts_bbox_head.shared_conv.conv.weight": torch.ones(2),
        "img_neck.conv.weight": torch.ones(2),
    }
    torch.save({"meta": {"epoch": 24}, "state_dict": state}, tmp_path / "m.pth")
    found = Answered(
        "KeyError: 'ema_pts_bbox_head_shared_conv_conv_weight'", tmp_path / "m.pth"
    )
    assert found.said.startswith(
        "pts_bbox_head.shared_conv.conv.weight is in this file, and no average of it is"
    )
    state["ema_img_neck_conv_weight"] = torch.ones(2)
    torch.save({"meta": {"epoch": 24}, "state_dict": state}, tmp_path / "m.pth")
    found = Answered(
        "KeyError: 'ema_pts_bbox_head_shared_conv_conv_weight'", tmp_path / "m.pth"
    )
    assert "no average of it is" not in found.said


def test_an_agent_of_stable_baselines_2(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, **{"model/w:0": np.ones(2, "f4")})
    rows = {
        "data": b"{}",
        "parameter_list": b'["model/w:0"]',
        "parameters": stream.getvalue(),
    }
    write_zip(tmp_path / "a.zip", rows)
    found = Answered(
        "    policy=data[\"policy_class\"],\nKeyError: 'policy_class'",
        tmp_path / "a.zip",
    )
    assert "only Stable-Baselines 2 loads it" in found.said and found.code == 0


# --- paths ----------------------------------------------------------------------------


def lost(path: str) -> str:
    return f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"


def test_the_folder_of_a_path_stands_in_the_file(tmp_path: Path) -> None:
    args = argparse.Namespace(
        arch="wav2vec_ctc", task="audio_pretraining", data="/checkpoint/author/raw"
    )
    torch.save({**FAIRSEQ, "args": args}, tmp_path / "big.pt")
    found = Answered(lost("/checkpoint/author/raw/dict.ltr.txt"), tmp_path / "big.pt")
    assert (
        "The folder of this path, /checkpoint/author/raw, stands in this file at "
        "args.data"
    ) in found.said
    assert (
        'arg_overrides={"data"' in found.said
        and "weights_only" not in found.said.partition("It loads")[0]
    )
    other = Answered(lost("/checkpoint/author/raw2/dict.ltr.txt"), tmp_path / "big.pt")
    assert (
        "stands in this file" not in other.said
        and "opens another path than this file" in other.said
    )


def test_one_process_alone_saved_its_random_state(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "checkpoint-10"
    folder.mkdir(parents=True)
    model, optimizer, scheduler = trained()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")
    torch.save(scheduler.state_dict(), folder / "scheduler.bin")
    state = {
        "numpy_random_seed": np.random.get_state(),
        "torch_manual_seed": torch.get_rng_state(),
    }
    torch.save(state, folder / "random_states_0.pkl")
    found = Answered(lost("out/checkpoint-10/random_states_1.pkl"), folder)
    assert found.said.startswith(
        "random_states_1.pkl is not in this folder, and random_states_0.pkl is"
    )
    assert (
        "weights_only" not in found.said
        and found.loaded().keys() == model.state_dict().keys()
    )


def test_the_program_opens_another_path(tmp_path: Path) -> None:
    torch.save(Policy().state_dict(), tmp_path / "mine.pth")
    found = Answered(
        lost("../pretrained_weights/sam_vit_b_01ec64.pth"), tmp_path / "mine.pth"
    )
    assert (
        "opens another path than this file: nothing is at "
        "../pretrained_weights/sam_vit_b_01ec64.pth"
    ) in found.said
    assert "This file is whole." in found.said and found.code == 0
    data = (tmp_path / "mine.pth").read_bytes()
    at = data.index(
        torch.load(tmp_path / "mine.pth")["encoder.weight"].numpy().tobytes()
    )
    (tmp_path / "mine.pth").write_bytes(
        data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    )
    assert (
        "This file is whole."
        not in Answered(lost("sam.pth"), tmp_path / "mine.pth").said
    )
    same = Answered(lost("weights/mine.pth"), tmp_path / "mine.pth")
    assert "a file of this name is here" in same.said


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    torch.save(
        {"config": {"model": "xtts"}, "model": Policy().state_dict(), "step": 0},
        tmp_path / "model.pth",
    )
    found = Answered(
        "NotADirectoryError: [Errno 20] Not a directory: 'model.pth/model.pth'",
        tmp_path / "model.pth",
    )
    assert (
        "as if model.pth were a folder: it wants the folder in which this file lies"
        in found.said
    )


def test_a_folder_without_the_state_of_its_trainer(tmp_path: Path) -> None:
    folder = trainer_folder(tmp_path / "out" / "checkpoint-500", with_state=False)
    found = Answered(lost("out/checkpoint-500/trainer_state.json"), folder)
    assert found.said.startswith(
        "trainer_state.json is not among the files of this folder"
    )
    assert "The step is 1 (scheduler.last_epoch)" in found.said
    (folder / "trainer_state.json").write_text("{}")
    there = Answered(lost("out/checkpoint-500/trainer_state.json"), folder)
    assert "is in this folder" in there.said


@pytest.mark.parametrize(
    "text",
    [
        "Checkpoint at weights/other.ckpt not found. Aborting training.",
        "OSError: Model file not found: weights/other.pt",
        "FileNotFoundError: weights/other.pth can not be found.",
        "AssertionError: Checkpoint weights/other.pth not found!",
    ],
)
def test_other_words_for_a_path_that_is_not_there(text: str, tmp_path: Path) -> None:
    torch.save(Policy().state_dict(), tmp_path / "mine.pth")
    found = Answered(text, tmp_path / "mine.pth")
    assert (
        "opens another path than this file: nothing is at weights/other" in found.said
    )


def test_trainer_does_not_take_an_adapter_for_a_model(tmp_path: Path) -> None:
    folder = adapter_folder(tmp_path / "checkpoint-500")
    (folder / "trainer_state.json").write_text("{}")
    found = Answered(
        "ValueError: Can't find a valid checkpoint at /out/checkpoint-500", folder
    )
    assert (
        found.kind == "no-file"
        and "This folder holds an adapter of PEFT, and no whole model" in found.said
    )
    assert found.commands == ['peft.PeftModel.from_pretrained(model, "checkpoint-500")']
    whole = Answered(
        "ValueError: Can't find a valid checkpoint at /out/a",
        trainer_folder(tmp_path / "a"),
    )
    assert (
        "adapter of PEFT" not in whole.said
        and "The weights are here by names that Trainer knows" in whole.said
    )


# --- shapes ---------------------------------------------------------------------------


def size_line(name: str, here: tuple[int, ...], there: tuple[int, ...]) -> str:
    return (
        f"\tsize mismatch for {name}: copying a param with shape "
        f"torch.Size({list(here)}) from checkpoint, the shape in current model is "
        f"torch.Size({list(there)}).\n"
    )


HEAD = "RuntimeError: Error(s) in loading state_dict for Net:\n"


def test_positions_are_no_channels(tmp_path: Path) -> None:
    state = {
        "pos_embed": torch.ones(1, 257, 8),
        "blocks.0.fc.weight": torch.ones(64, 64),
        "head.bias": torch.ones(2),
    }
    torch.save(state, tmp_path / "vit.pth")
    found = Answered(
        HEAD + size_line("pos_embed", (1, 257, 8), (1, 197, 8)), tmp_path / "vit.pth"
    )
    assert (
        "257 (16 x 16 and 1 more) in the checkpoint and 197 (14 x 14 and 1 more)"
        in found.said
    )
    assert "channels" not in found.page and "kind of input" not in found.page


@pytest.mark.parametrize(
    ("name", "is_first"), [("conv1.weight", True), ("layer2.0.conv2.weight", False)]
)
def test_the_first_convolution_alone_tells_the_input(
    name: str, is_first: bool, tmp_path: Path
) -> None:
    state = {
        "conv1.weight": torch.ones(8, 3, 3, 3),
        "layer2.0.conv2.weight": torch.ones(8, 3, 3, 3),
    }
    torch.save(state, tmp_path / "m.pth")
    found = Answered(
        HEAD + size_line(name, (8, 3, 3, 3), (8, 6, 3, 3)), tmp_path / "m.pth"
    )
    assert ("another kind of input" in found.said) is is_first


def test_a_size_that_differs_stands_among_the_settings(tmp_path: Path) -> None:
    state = {
        "model.embedding.position_embeddings.weight": torch.ones(1024, 4),
        "model.norm.weight": torch.ones(4),
    }
    folder = tmp_path / "run-last"
    dcp.save(state, checkpoint_id=folder)
    parameters = {"max_position_embeddings": 1024, "layers": 2}
    torch.save({"global_step": 2, "hyper_parameters": parameters}, folder / "common.pt")
    (folder / "metadata.json").write_text(
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
    )
    text = (
        "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape "
        "mismatch for loaded ((1024, 4)) and expected ((512, 4)) tensor for key "
        "model.embedding.position_embeddings.weight"
    )
    found = Answered(text, folder)
    assert (
        found.kind == "distributed"
        and "[1024, 4]" in found.page
        and "[512, 4]" in found.page
    )
    assert (
        "1,024 stands among the settings of this checkpoint: "
        "common.hyper_parameters.max_position_embeddings"
    ) in found.said


def block(width: int, inner: int) -> dict[str, torch.Tensor]:
    shapes = {
        "conv1": (width, 8, 1, 1),
        "conv2": (width, inner, 3, 3),
        "conv3": (8, width, 1, 1),
    }
    return {
        f"res3.0.{name}.weight": torch.ones(shape) for name, shape in shapes.items()
    }


def test_a_setting_of_the_training_is_no_size_of_the_model(tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(64, 4), "b.weight": torch.ones(90, 4)}
    text = HEAD + size_line("a.weight", (64, 4), (32, 4))
    for name, is_size in (("batch_size", False), ("width", True)):
        torch.save({"model": state, "args": {name: 64}}, tmp_path / "m.pth")
        assert (
            "stands among the settings" in Answered(text, tmp_path / "m.pth").said
        ) is is_size


def test_a_resnet_is_no_resnext(tmp_path: Path) -> None:
    here, there = block(16, 16), block(64, 2)
    torch.save({"model": here, "iteration": 9}, tmp_path / "m.pth")
    text = "".join(
        (
            f"'{name}' has shape {tuple(value.shape)} in the checkpoint but "
            f"{tuple(there[name].shape)} in the model! Skipped.\n"
        )
        for name, value in here.items()
    )
    found = Answered(text, tmp_path / "m.pth")
    assert found.kind == "sizes" and "[16, 16, 3, 3]  [64, 2, 3, 3]" in found.page
    assert (
        "in 1 group, a ResNet, in the checkpoint, and in 32 groups, a ResNeXt"
        in found.said
    )
    wider = block(32, 32)
    text = "".join(
        (
            f"'{name}' has shape {tuple(value.shape)} in the checkpoint but "
            f"{tuple(wider[name].shape)} in the model! Skipped.\n"
        )
        for name, value in here.items()
    )
    found = Answered(text, tmp_path / "m.pth")
    assert "ResNeXt" not in found.said and "a ResNet" not in found.said


def test_a_config_of_another_version_is_no_other_number_of_classes(
    tmp_path: Path,
) -> None:
    state = {
        "gpt.mel_embedding.weight": torch.ones(1026, 4),
        "gpt.perceiver.latents": torch.ones(2, 4),
        "gpt.mel_head.weight": torch.ones(1026, 4),
        "gpt.mel_head.bias": torch.ones(1026),
    }
    config = {"model_args": {"gpt_num_audio_tokens": 1026}}
    torch.save({"config": config, "model": state, "step": 0}, tmp_path / "model.pth")
    rows = [name for name in state if "mel" in name]
    sizes = [
        size_line(name, tuple(state[name].shape), (8194, *state[name].shape[1:]))
        for name in rows
    ]
    text = (
        HEAD
        + '\tUnexpected key(s) in state_dict: "gpt.perceiver.latents". \n'
        + "".join(sizes)
    )
    found = Answered(text, tmp_path / "model.pth")
    assert "number of classes" not in found.page and "The last layer" not in found.page
    assert (
        "1,026 stands among the settings of this checkpoint: "
        "config.model_args.gpt_num_audio_tokens"
    ) in found.said
    assert (
        "The settings of the run that saved are in this checkpoint, at config"
        in found.said
    )


def test_the_last_layer_alone_is_another_number_of_classes(tmp_path: Path) -> None:
    model, other = (
        nn.ModuleDict({"body": nn.Linear(9, 9), "head": nn.Linear(9, count)})
        for count in (2, 3)
    )
    torch.save(model.state_dict(), tmp_path / "m.pth")
    text = raised(lambda: other.load_state_dict(torch.load(tmp_path / "m.pth")))
    assert (
        "The last layer cannot be loaded, and the others can."
        in Answered(text, tmp_path / "m.pth").said
    )
    text = text.replace(
        "size mismatch",
        'Missing key(s) in state_dict: "neck.weight". \n\tsize mismatch',
        1,
    )
    assert "The last layer cannot" not in Answered(text, tmp_path / "m.pth").said


def test_an_adapter_is_never_loaded_in_part(tmp_path: Path) -> None:
    name = "base_model.model.model.embed_tokens.weight"
    folder = adapter_folder(tmp_path / "lora", **{name: torch.ones(16, 4)})
    found = Answered(HEAD + size_line(name, (16, 4), (20, 4)), folder)
    assert "resize_token_embeddings(16)" in found.said
    assert not any("load_into" in command for command in found.commands)


def test_an_adapter_of_another_rank(tmp_path: Path) -> None:
    folder = adapter_folder(tmp_path / "lora")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.default.weight"
    text = (
        HEAD
        + size_line(name.format("A"), (4, 4), (8, 4))
        + size_line(name.format("B"), (4, 4), (4, 8))
    )
    assert (
        "has rank 4 (r), and the model was built for an adapter of rank 8"
        in Answered(text, folder).said
    )


def test_the_first_convolution_in_the_names_of_diffusers(tmp_path: Path) -> None:
    state = {
        "first_stage_model.encoder.conv_in.weight": torch.ones(8, 3, 3, 3),
        "model.diffusion_model.input_blocks.0.0.weight": torch.ones(320, 4, 3, 3),
    }
    save_file(state, tmp_path / "sd15.safetensors")
    text = (
        "ValueError: Cannot load None because conv_in.weight expected shape "
        "tensor(..., device='meta', size=(320, 9, 3, 3)), but got torch.Size([320, 4, "
        "3, 3]). If you want to instead overwrite randomly initialized weights, pass "
        "ignore_mismatched_sizes=True."
    )
    found = Answered(text, tmp_path / "sd15.safetensors")
    assert (
        "looks like one for text to image, and the model for inpainting" in found.said
    )
    assert "another shape in this file" not in found.said and not found.commands


@pytest.mark.parametrize(
    "text",
    [
        "shape-head.weight-mismatch. need: torch.Size([3, 9]), get: torch.Size([2, 9])",
        (
            "Shape of head.weight in checkpoint is torch.Size([2, 9]), while shape of "
            "head.weight in model is torch.Size([3, 9])."
        ),
        (
            "Skip loading parameter head.weight, required shapetorch.Size([3, 9]), "
            "loaded shapetorch.Size([2, 9]). If you see this"
        ),
        (
            "[WARN] mismatching shape for param head.weight: ckpt torch.Size([2, 9]) "
            "!= model torch.Size([3, 9]), ignored."
        ),
    ],
)
def test_other_words_for_a_shape_that_was_passed_over(
    text: str, tmp_path: Path
) -> None:
    model = nn.ModuleDict({"body": nn.Linear(9, 9), "head": nn.Linear(9, 2)})
    torch.save(model.state_dict(), tmp_path / "m.pth")
    found = Answered(text, tmp_path / "m.pth")
    assert (
        found.kind == "sizes"
        and "2 outputs where the model has 3: another number of classes" in found.said
    )


LISTS = [
    (
        "head.weight is not in the ckpt. Please double check and see if this is "
        "desired.\nhead.bias is not in the ckpt. Please double check\n"
    ),
    (
        "INFO:vits:head.weight is not in the checkpoint\nINFO:vits:head.bias is not in "
        "the checkpoint\n"
    ),
    (
        "No param head.weight. If you see this, your model does not fully load\nNo "
        "param head.bias. If you see this\n"
    ),
    (
        " | > Layer missing in the checkpoint: head.weight\n | > Layer missing in the "
        "checkpoint: head.bias\n"
    ),
]


@pytest.mark.parametrize("text", LISTS)
def test_other_words_for_keys_that_lack(text: str, tmp_path: Path) -> None:
    torch.save(
        {
            "body.weight": torch.ones(9, 9),
            "body.bias": torch.ones(9),
            "norm.bias": torch.ones(9),
        },
        tmp_path / "m.pth",
    )
    found = Answered(text, tmp_path / "m.pth")
    assert found.kind == "keys" and "They are the head for a task" in found.said


def test_other_words_for_keys_that_are_left_over(tmp_path: Path) -> None:
    torch.save(
        {"body.weight": torch.ones(9, 9), "extra.weight": torch.ones(9)},
        tmp_path / "m.pth",
    )
    for text in (
        "Drop parameter extra.weight. If you see this",
        " | > Layer missing in the model definition: extra.weight",
    ):
        found = Answered(text, tmp_path / "m.pth")
        assert found.names == ["extra.weight"] and "no place for 1 key" in found.said


# --- names ----------------------------------------------------------------------------


def test_a_part_of_a_pipeline_has_its_own_loader(tmp_path: Path) -> None:
    save_file(
        {"double_blocks.0.img_attn.qkv.weight": torch.ones(2)},
        tmp_path / "flux_dev.safetensors",
    )
    text = (
        "ERROR: Could not detect model type of: "
        "/models/checkpoints/flux_dev.safetensors"
    )
    found = Answered(text, tmp_path / "flux_dev.safetensors")
    assert (
        "a diffusion model alone" in found.said and "Load Diffusion Model" in found.said
    )


def test_names_without_model_are_renamed(tmp_path: Path) -> None:
    state = {
        "embed_tokens.weight": torch.ones(2),
        "layers.0.mlp.weight": torch.ones(2),
        "norm.weight": torch.ones(2),
    }
    save_file(state, tmp_path / "m.safetensors")
    found = Answered(
        "ValueError: Can not map tensor 'embed_tokens.weight'",
        tmp_path / "m.safetensors",
    )
    assert {*load_file(found.run("ckpt rename"))} == {f"model.{name}" for name in state}


def test_norms_in_their_old_spelling_are_renamed(tmp_path: Path) -> None:
    layer = "bert.embeddings.LayerNorm"
    state = {
        f"{layer}.gamma": torch.ones(2),
        f"{layer}.beta": torch.zeros(2),
        "bert.a.weight": torch.ones(2),
    }
    torch.save(state, tmp_path / "m.bin")
    text = f"ValueError: Can not map tensor '{layer}.beta'"
    found = Answered(text, tmp_path / "m.bin")
    assert (
        "in its old spelling, of TensorFlow: gamma is weight, and beta is bias, "
        "and 2 tensors"
    ) in found.said
    renamed = torch.load(found.run("ckpt rename"))
    assert {*renamed} == {f"{layer}.weight", f"{layer}.bias", "bert.a.weight"}
    assert torch.equal(renamed[f"{layer}.bias"], torch.zeros(2))
    for more in ({f"{layer}.weight": torch.ones(2)}, {}):
        torch.save(
            {f"{layer}.beta": torch.ones(2), "bert.a.weight": torch.ones(2), **more},
            tmp_path / "m.bin",
        )
        assert "old spelling" not in Answered(text, tmp_path / "m.bin").said


@pytest.mark.parametrize(
    "leaves", [("quant_weight", "scales", "zeros"), ("qweight", "qzeros", "scales")]
)
def test_a_model_for_quantized_weights_and_a_plain_file(
    leaves: tuple[str, ...], tmp_path: Path
) -> None:
    layers = ["lm_head", "h.0.fc"]
    plain = {f"{layer}.weight": torch.ones(2, 2) for layer in layers}
    packed = {
        f"{layer}.{leaf}": torch.ones(2, 2) for layer in layers for leaf in leaves
    }
    for here, there, said in (
        (
            plain,
            packed,
            "and this file is not quantized: it has weight in the same layers",
        ),
        (packed, plain, "This file is quantized"),
    ):
        torch.save({**here, "norm.bias": torch.ones(2)}, tmp_path / "m.pth")
        missing, unexpected = (
            ", ".join(f'"{name}"' for name in names) for names in (there, here)
        )
        text = (
            f"{HEAD}\tMissing key(s) in state_dict: {missing}. \n\tUnexpected key(s) "
            f"in state_dict: {unexpected}. \n"
        )
        found = Answered(text, tmp_path / "m.pth")
        assert said in found.said and "not in this file under a name" not in found.said


def test_two_copies_that_each_have_all(tmp_path: Path) -> None:
    inner = nn.ModuleDict({"conv": nn.Linear(3, 4), "body": nn.Linear(4, 4)})
    averaged = nn.ModuleDict({"conv": nn.Linear(3, 4), "body": nn.Linear(4, 4)})
    state = nn.ModuleDict({"generator": inner, "generator_ema": averaged}).state_dict()
    state["step_counter"] = torch.tensor(5)
    torch.save({"meta": {"iter": 9}, "state_dict": state}, tmp_path / "m.pth")
    text = (
        "The model and loaded state dict do not match exactly\n\nunexpected key in "
        f"source state_dict: {', '.join(state)}\n\n"
        f"missing keys in source state_dict: {', '.join(inner.state_dict())}\n"
    )
    found = Answered(text, tmp_path / "m.pth")
    assert (
        "All 4 missing keys are in this file twice, below generator. and generator_ema."
        in found.said
    )
    assert (
        "generator_ema. has the running averages" in found.said
        and "step_counter" in found.said
    )
    lines = [command for command in found.commands if command.startswith("state = ")]
    for line, wanted in zip(lines, (averaged, inner), strict=True):
        model = nn.ModuleDict({"conv": nn.Linear(3, 4), "body": nn.Linear(4, 4)})
        with folder_of(tmp_path):
            exec(line, {"torch": torch, "model": model})
        assert torch.equal(model["body"].weight, wanted["body"].weight)


def test_an_adapter_has_none_of_the_weights_of_its_base(tmp_path: Path) -> None:
    folder = adapter_folder(tmp_path / "lora")
    text = (
        f'{HEAD}\tMissing key(s) in state_dict: "0.auto_model.embeddings.weight", '
        '"0.auto_model.norm.bias". \n'
    )
    found = Answered(text, folder)
    assert "2 missing keys are of the base model" in found.said


# --- readers --------------------------------------------------------------------------


def test_an_agent_is_no_file_of_torch(tmp_path: Path) -> None:
    torch.save(Policy().state_dict(), tmp_path / "policy.pth")
    rows = {
        "data": b"{}",
        "policy.pth": (tmp_path / "policy.pth").read_bytes(),
        "_stable_baselines3_version": b"2.9",
    }
    write_zip(tmp_path / "a.zip", rows)
    text = (
        "RuntimeError: [enforce fail at inline_container.cc:110] . file in archive is "
        "not in a subdirectory: data"
    )
    found = Answered(text, tmp_path / "a.zip")
    assert found.kind == "damaged" and "PPO.load" in found.said


@pytest.mark.parametrize(
    "words", ["archive does not contain any files", "file not found: module/version"]
)
def test_a_whole_archive_that_a_reader_finds_empty(words: str, tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "module.pt"))
    text = (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  "
        f"[enforce fail at inline_container.cc:157] . {words}\n"
    )
    found = Answered(text, tmp_path / "module.pt")
    assert found.kind == "unarchived" and "The message is about reading" in found.said
    assert "an archive of 2 tensors, and it is whole" in found.said
    assert "writing" not in found.page and "save" not in found.said
    assert found.loaded() is not None
    save_file({"weight": torch.ones(2)}, tmp_path / "m.safetensors")
    assert "no archive of torch" in Answered(text, tmp_path / "m.safetensors").said


def test_a_reader_of_programs_gets_a_state_dict(tmp_path: Path) -> None:
    torch.save(Policy().state_dict(), tmp_path / "m.pth")
    text = (
        "RuntimeError: [enforce fail at inline_container.cc:222] . file not found: "
        "m/constants.pkl"
    )
    found = Answered(text, tmp_path / "m.pth")
    assert (
        "looks for constants.pkl, which programs of TorchScript have, and this "
        "file is none"
    ) in found.said
    assert "at fault" not in found.said


def test_a_save_that_failed_is_still_about_writing(tmp_path: Path) -> None:
    torch.save(Policy().state_dict(), tmp_path / "m.pth")
    text = (
        "RuntimeError: [enforce fail at inline_container.cc:424] . unexpected pos 320 "
        "vs 214"
    )
    assert Answered(text, tmp_path / "m.pth").kind == "saving"


def test_a_program_of_torch_export_has_no_compiled_code(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(4, 4), (torch.ones(1, 4),))
    torch.export.save(program, tmp_path / "model.pt2")
    text = (
        "RuntimeError: Failed to find a generated cpp file or so file for model "
        "'model' in the zip archive."
    )
    found = Answered(text, tmp_path / "model.pt2")
    assert found.kind == "compiled" and "and no compiled code" in found.said
    assert (
        'torch._inductor.aoti_compile_and_package(torch.export.load("model.pt2"))'
        in found.commands
    )
    torch.save(Policy().state_dict(), tmp_path / "m.pth")
    assert "no package of AOTInductor" in Answered(text, tmp_path / "m.pth").said
    with zipfile.ZipFile(tmp_path / "model.pt2", "a") as archive:
        archive.writestr(
            f"{archive.namelist()[0].partition('/')[0]}/data/aotinductor/other/a.so",
            b"code",
        )
    found = Answered(text, tmp_path / "model.pt2")
    assert (
        "holds compiled code, of other: the loader was asked for a model of "
        "another name"
    ) in found.said


def test_a_file_that_was_read_as_text(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3, 3)}, tmp_path / "encoder.ckpt")
    text = raised(lambda: (tmp_path / "encoder.ckpt").read_text("utf-8"))
    found = Answered(text, tmp_path / "encoder.ckpt")
    assert (
        found.kind == "python2" and "The program read this file as text" in found.said
    )
    assert "another file was read" not in found.said and found.loaded() is not None
    position = text.partition("position ")[2].partition(":")[0]
    byte = text.partition("byte 0x")[2][:2]
    of_yaml = (
        f"yaml.reader.ReaderError: 'utf8' codec can't decode byte #x{byte}: invalid "
        f'start byte\n  in "encoder.ckpt", position {position}'
    )
    assert (
        "The program read this file as text"
        in Answered(of_yaml, tmp_path / "encoder.ckpt").said
    )
    other = Answered(
        (
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x99 in position 0: "
            "invalid"
        ),
        tmp_path / "encoder.ckpt",
    )
    assert "another file was read" in other.said


def test_a_view_of_others_is_written_in_order(tmp_path: Path) -> None:
    torch.save(
        {"a.weight": torch.ones(8, 4, 3, 3).to(memory_format=torch.channels_last)},
        tmp_path / "m.ckpt",
    )
    text = (
        "ValueError: You are trying to save a non contiguous tensor: `a.weight` which "
        "is not allowed."
    )
    found = Answered(text, tmp_path / "m.ckpt")
    assert torch.equal(
        load_file(found.run("ckpt convert"))["a.weight"], torch.ones(8, 4, 3, 3)
    )


def test_another_number_of_ranks_of_deepspeed(tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "run", 2)
    text = (
        "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 2 "
        "but the current world size is 1."
    )
    found = Answered(text, tmp_path / "run")
    assert (
        found.kind == "world"
        and "ranks: 2" in found.said
        and "ds_to_universal.py" in found.said
    )


# --- notices --------------------------------------------------------------------------

_SCHEDULER = (
    "/x/torch/optim/lr_scheduler.py:200: UserWarning: Please also save or load the "
    "state of the optimzer when saving or loading the scheduler.\n"
    "  warnings.warn(SAVE_STATE_WARNING, UserWarning)\n"
)


@pytest.mark.needs("folders")
def test_a_notice_about_random_numbers(tmp_path: Path) -> None:
    folder = trainer_folder(tmp_path / "checkpoint-500")
    text = (
        "Didn't find an RNG file for process 1, if you are resuming a training that "
        "wasn't launched in a distributed fashion"
    )
    assert "has no state of random numbers" in Answered(text, folder).said
    torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state_0.pth")
    found = Answered(text, folder)
    assert (
        found.kind == "notice"
        and "has the random numbers of rng_state_0.pth" in found.said
    )


def test_a_notice_about_a_scheduler(tmp_path: Path) -> None:
    folder = trainer_folder(tmp_path / "checkpoint-2000")
    found = Answered(_SCHEDULER, folder)
    assert found.kind == "notice" and found.code == 0
    assert "It is no error" in found.said and "nothing is missing" in found.said
    (folder / "optimizer.pt").unlink()
    assert "and none of an optimizer" in Answered(_SCHEDULER, folder).said


def test_a_warning_through_a_pipe_is_answered_like_an_argument(tmp_path: Path) -> None:
    torch.save({"state_dict": detector(), "epoch": 2}, tmp_path / "m.pth")
    text = (
        "UserWarning: some layers of the checkpoint were not loaded by this program\n"
    )
    piped = Answered(text, tmp_path / "m.pth")
    given = inside("explain", text.strip(), "m.pth", cwd=tmp_path)
    assert (
        piped.page.splitlines()[1:] == given.out.decode().splitlines()[1:]
        and piped.code == given.code
    )
    assert (
        "torch.load gives a dict of state_dict and epoch. The weights are in "
        "state_dict."
    ) in piped.said


# --- a message without a page ---------------------------------------------------------


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    save_file({"bert.embeddings.a.weight": torch.ones(2)}, folder / "model.safetensors")
    config = {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "transformers_version": "5.0",
    }
    (folder / "config.json").write_text(json.dumps(config))
    found = Answered("RuntimeError: the optimizer of this thing is odd", folder)
    assert (
        found.code == 2
        and "This is a model of transformers (BertForMaskedLM)." in found.said
    )
    assert "It does not hold the state of an optimizer." in found.said
    assert 'transformers.BertForMaskedLM.from_pretrained("m")' in found.commands
    torch.save(
        {"model": detector(), "optimizer": trained()[1].state_dict()},
        tmp_path / "t.pth",
    )
    other = Answered(
        "RuntimeError: the optimizer of this thing is odd", tmp_path / "t.pth"
    )
    assert "It holds the state of an optimizer, in optimizer." in other.said
    assert (
        "torch.load gives a dict of model and optimizer. The weights are in model."
        in other.said
    )


def test_states_under_names_of_their_own_are_not_denied(tmp_path: Path) -> None:
    state = {
        "model.weight": torch.ones(2),
        "optimizer.exp_avg.model.weight": torch.ones(2),
    }
    save_file(state, tmp_path / "m.safetensors")
    found = Answered(
        "RuntimeError: the optimizer of this thing is odd", tmp_path / "m.safetensors"
    )
    assert "does not hold" not in found.said


def test_a_beginning_that_all_names_share_is_said(tmp_path: Path) -> None:
    wrapped = nn.ModuleDict(
        {"student": nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})}
    )
    torch.save(wrapped.state_dict(), tmp_path / "m.pth")
    found = Answered("RuntimeError: this is very odd indeed", tmp_path / "m.pth")
    assert "All names of its weights begin with student." in found.said
    torch.save({"m": torch.ones(2), **wrapped.state_dict()}, tmp_path / "m.pth")
    assert (
        "begin with"
        not in Answered(
            "RuntimeError: this is very odd indeed", tmp_path / "m.pth"
        ).said
    )


# --- beside explain -------------------------------------------------------------------


def test_a_model_of_twice_the_size_is_of_a_wider_type(tmp_path: Path) -> None:
    half = {name: value.half() for name, value in Policy().state_dict().items()}
    save_file(half, tmp_path / "half.safetensors")
    save_file(
        {name: value.float() for name, value in half.items()},
        tmp_path / "merged.safetensors",
    )
    done = inside("diff", "half.safetensors", "merged.safetensors", cwd=tmp_path)
    assert done.code == 1 and b"float16" in done.out and b"float32" in done.out
    inside(
        "convert",
        "merged.safetensors",
        "--dtype",
        "float16",
        "-o",
        "b.safetensors",
        cwd=tmp_path,
    )
    again = load_file(tmp_path / "b.safetensors")
    assert all(torch.equal(again[name], value) for name, value in half.items())


# --- a file whose beginning is lost ---------------------------------------------------


def test_an_archive_with_a_beginning_of_zeros_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    torch.save({f"{number}.weight": torch.ones(64, 64) for number in range(4)}, path)
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(bytes(half) + data[half:])
    text = raised(lambda: torch.load(path, weights_only=False))
    found = Answered(text, path)
    assert "storages" in text and found.code == 0
    assert (
        "beginning of a zip archive is overwritten: the first 4,096 bytes are zero"
        in found.said
    )
    assert "download it again" in found.said and "unzip" not in found.page
    assert found.commands == ["ckpt verify m.ckpt"]
    done = inside("verify", "m.ckpt", cwd=tmp_path)
    assert done.code == 1 and b"beginning of a zip archive is overwritten" in done.out
    path.write_bytes(b"\x01" * half + data[half:])
    assert "bytes are of something else" in Answered(text, path).said
    last = (
        data.rfind(b"PK\x01\x02") + 42
    )  # the field of the last entry that says where its header is
    path.write_bytes(
        bytes(half) + data[half:last] + b"\xf0\xff\xff\x7f" + data[last + 4 :]
    )
    assert "beginning of a zip archive is overwritten" in Answered(text, path).said


def test_bytes_in_front_of_an_archive_are_no_damage_and_a_hint_is_no_command(
    tmp_path: Path,
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("m.pth", bytes(99))
    (tmp_path / "m.ckpt").write_bytes(bytes(5_000) + (tmp_path / "a.zip").read_bytes())
    found = Answered("KeyError: \"filename 'storages' not found\"", tmp_path / "m.ckpt")
    assert (
        found.said
        == "A zip archive with checkpoints behind other bytes (unzip it first)."
    )
    assert not found.commands


# --- another model than the one that was saved ----------------------------------------


def pipeline_folder(folder: Path, variant: str = ".fp16") -> Path:
    """A folder as a pipeline of diffusers writes it."""
    parts = {
        "unet": ("diffusers", "UNet2DConditionModel"),
        "vae": ("diffusers", "AutoencoderKL"),
    }
    parts["text_encoder"] = ("transformers", "CLIPTextModel")
    for name, (library, cls) in parts.items():
        (folder / name).mkdir(parents=True)
        file = f"{'diffusion_pytorch_' if library == 'diffusers' else ''}model{variant}.safetensors"
        save_file({"conv_in.weight": torch.ones(2, 2)}, folder / name / file)
        (folder / name / "config.json").write_text(json.dumps({"_class_name": cls}))
    index = {
        "_class_name": "StableDiffusionXLPipeline",
        "_diffusers_version": "0.27.2",
        **parts,
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


class Opened:
    """The class that a printed line names: what was handed to its `from_pretrained`."""

    @staticmethod
    def from_pretrained(path: str, **options: str) -> tuple[str, dict[str, str]]:
        return path, options


@pytest.mark.parametrize(
    ("variant", "options"), [(".fp16", {"variant": "fp16"}), ("", {})]
)
def test_a_pipeline_lacks_no_config_of_a_model(
    variant: str, options: dict[str, str], tmp_path: Path
) -> None:
    folder = pipeline_folder(tmp_path / "m-v9", variant)
    text = "OSError: Error no file named config.json found in directory {}."
    found = Answered(text.format("./m-v9"), folder)
    assert found.said.startswith(
        "Nothing is missing: this folder is a whole pipeline of diffusers"
    )
    assert "Copy it" not in found.said and found.code == 0
    assert (
        'subfolder="unet" (UNet2DConditionModel), subfolder="vae" (AutoencoderKL)'
        in found.said
    )
    (line,) = found.commands
    with folder_of(tmp_path):
        diffusers = argparse.Namespace(StableDiffusionXLPipeline=Opened)
        path, given = eval(line, {"diffusers": diffusers})
        assert (Path(path) / "model_index.json").is_file() and given == options
    inner = Answered(text.format("./m-v9/unet"), folder)
    assert "Nothing is missing" not in inner.said


@pytest.mark.parametrize(
    "odd",
    [
        {"scheduler": ["evil", "X"]},
        {"custom_pipelines": "someone/pipeline"},
        {"tokenizer": ["transformers", "TransfoXLTokenizer"]},
    ],
)
def test_a_pipeline_that_names_code_gets_no_line(
    odd: dict[str, object], tmp_path: Path
) -> None:
    """Older diffusers import the library of a part by its name."""
    folder = pipeline_folder(tmp_path / "m-v9")
    path = folder / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    text = "OSError: Error no file named config.json found in directory ./m-v9."
    found = Answered(text, folder)
    assert "Nothing is missing" in found.said and not found.commands


@pytest.mark.parametrize(
    ("file", "document"),
    [
        ("adapter_config.json", '{"base_model_name_or_path": "someone/model"}'),
        ("config.json", '{"attn_implementation": "someone/kernel"}'),
        ("config.json", '{"_attn_implementation_internal": "someone/kernel"}'),
        ("config.json", '{"a": {"auto_map": {"AutoModel": "modeling_x.Net"}}}'),
        ("config.json", '{"a": '),
    ],
)
def test_a_part_that_names_code_gets_no_line(
    file: str, document: str, tmp_path: Path
) -> None:
    """Each part of a pipeline is opened by its own config."""
    folder = pipeline_folder(tmp_path / "m-v9")
    (folder / "text_encoder" / file).write_text(document)
    text = "OSError: Error no file named config.json found in directory ./m-v9."
    found = Answered(text, folder)
    assert "Nothing is missing" in found.said and not found.commands


def test_parts_of_several_variants_have_no_line_in_common(tmp_path: Path) -> None:
    folder = pipeline_folder(tmp_path / "m-v9")
    (folder / "vae" / "diffusion_pytorch_model.fp16.safetensors").rename(
        folder / "vae" / "diffusion_pytorch_model.safetensors"
    )
    found = Answered(
        "OSError: Error no file named config.json found in directory ./m-v9.", folder
    )
    assert found.said.startswith("Nothing is missing") and not found.commands


def merged_folder(folder: Path, *, down: tuple[int, ...] = (32, 8)) -> Path:
    """An adapter of PEFT 0.2 whose layers are merged."""
    folder.mkdir()
    state = {}
    for layer in range(2):
        name = f"base_model.model.h.{layer}.attn.c_attn"
        state[f"{name}.lora_A.weight"] = torch.ones(down)
        state[f"{name}.lora_B.weight"] = torch.ones(16, 16, 1)
    save_file(state, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 16, "enable_lora": [True, False, True]}
    config["base_model_name_or_path"] = "gpt2"
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merged_text(down: tuple[int, ...]) -> str:
    lines = ["RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:"]
    row = (
        "\tsize mismatch for {}: copying a param with shape torch.Size({}) from "
        "checkpoint, the shape in current model is torch.Size({})."
    )
    for layer in range(2):
        name = f"base_model.model.h.{layer}.attn.c_attn"
        lines.append(row.format(f"{name}.lora_A.default.weight", [*down], [16, 8]))
        lines.append(row.format(f"{name}.lora_B.default.weight", [16, 16, 1], [24, 16]))
    return "\n".join(lines)


def test_merged_layers_of_an_old_peft_fit_no_rank(tmp_path: Path) -> None:
    folder = merged_folder(tmp_path / "m")
    found = Answered(merged_text((32, 8)), folder)
    assert (
        "2 tensors lora_B of this adapter have three axes beside a lora_A of two"
        in found.said
    )
    assert (
        "r is 16 in adapter_config.json, and lora_A has 32 rows: the layers of 2 "
        "projections"
    ) in found.said
    assert "no value of r fits" in found.said and "PeftModel" not in found.page
    shown = inside("inspect", "m", cwd=tmp_path).out.decode()
    assert "PeftModel" not in shown and "safetensors.torch.load_file" in shown
    other = Answered(
        "OSError: Error no file named model.safetensors found in directory m.", folder
    )
    assert "PeftModel" not in other.said


def test_a_layer_of_a_convolution_is_no_merged_one(tmp_path: Path) -> None:
    folder = merged_folder(tmp_path / "m", down=(32, 8, 3))
    assert "merged layers" not in Answered(merged_text((32, 8, 3)), folder).said
    assert b"PeftModel" in inside("inspect", "m", cwd=tmp_path).out


def gained(
    values: list[float], word: str = "skipinit_gain"
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model of blocks, and the state of the same one with a scale in each block."""
    blocks = [
        nn.ModuleDict({"conv1": nn.Linear(2, 2), "conv2": nn.Linear(2, 2)})
        for _ in values
    ]
    model = nn.ModuleDict({"stages": nn.ModuleList(blocks)})
    scales = {
        f"stages.{number}.{word}": torch.tensor(value)
        for number, value in enumerate(values)
    }
    return model, {**model.state_dict(), **scales}


def test_scales_that_were_trained_are_no_leftovers(tmp_path: Path) -> None:
    model, state = gained([0.25, 0.5, 0.75])
    torch.save(state, tmp_path / "dm_nfnet_f0-604f9c3a.pth")
    text = raised(lambda: model.load_state_dict(state))
    found = Answered(text, tmp_path / "dm_nfnet_f0-604f9c3a.pth")
    assert (
        "3 keys of these are scales that were trained (skipinit_gain, from 0.25 to "
        "0.75), in blocks"
    ) in found.said
    assert (
        "gives other results" in found.said and "it may be dm_nfnet_f0." in found.said
    )
    assert not found.commands and "nothing else" not in found.said


@pytest.mark.parametrize(
    ("values", "word"),
    [([1.0, 1.0], "skipinit_gain"), ([0.25, 0.5], "_linearized_weight")],
)
def test_what_no_training_changed_is_left_out(
    values: list[float], word: str, tmp_path: Path
) -> None:
    model, state = gained(values, word)
    torch.save(state, tmp_path / "m.pth")
    found = Answered(raised(lambda: model.load_state_dict(state)), tmp_path / "m.pth")
    assert "scales" not in found.said
    ran(found, "model.load_state_dict(", model)


# --- what is counted, and what is not among the files ---------------------------------

_COUNTED = (
    "accelerate.accelerator - Warning! Number of found checkpoints does not match the "
    "number of registered objects:\n"
    "\tFound checkpoints: {}\n\tRegistered objects: {}\nSkipping.\n"
)


def state_folder(folder: Path, *names: str) -> Path:
    """A folder as save_state of accelerate writes it, with files of custom objects."""
    folder.mkdir()
    model, optimizer, scheduler = trained()
    save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")
    for name in names:
        torch.save(scheduler.state_dict(), folder / name)
    return folder


def test_a_backup_counts_as_a_custom_object(tmp_path: Path) -> None:
    folder = state_folder(
        tmp_path / "m", "custom_checkpoint_0.pkl", "custom_checkpoint_0.pkl.orig"
    )
    found = Answered(_COUNTED.format(2, 1), folder)
    assert found.code == 0
    assert (
        "and custom_checkpoint_0.pkl.orig is one: 2 names, for 1 registered"
        in found.said
    )
    assert (
        "so custom_checkpoint_0.pkl was not loaded, although it is here" in found.said
    )
    other = Answered(_COUNTED.format(3, 1), folder)
    assert "another folder was loaded" in other.said and "Move" not in other.said


def test_fewer_registered_objects_are_said(tmp_path: Path) -> None:
    folder = state_folder(
        tmp_path / "m", "custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl"
    )
    found = Answered(_COUNTED.format(2, 1), folder)
    assert (
        "has the states of 2 custom objects" in found.said
        and "registered 1" in found.said
    )
    none = state_folder(tmp_path / "n")
    assert "they begin anew" in Answered(_COUNTED.format(0, 1), none).said


def speech_folder(folder: Path, *names: str) -> Path:
    """A folder as the Checkpointer of SpeechBrain writes it."""
    folder.mkdir()
    for name in names:
        torch.save(nn.Linear(2, 2).state_dict(), folder / f"{name}.ckpt")
    (folder / "counter.ckpt").write_text("45")
    (folder / "brain.ckpt").write_text("step: 81232\n")
    (folder / "CKPT.yaml").write_text(
        "# yamllint disable\nWER: 9.96\nend-of-epoch: true\nunixtime: 1.5\n"
    )
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'wav2vec_opt'",
        (
            "RuntimeError: Loading checkpoint from save/CKPT+2021,             but "
            "missing a load path for wav2vec_opt"
        ),
    ],
)
def test_an_object_without_a_file_is_named(text: str, tmp_path: Path) -> None:
    folder = speech_folder(tmp_path / "CKPT+2021", "model", "wav2vec2")
    found = Answered(text, folder)
    assert found.code == 0
    assert (
        "wav2vec_opt is not among the objects of this folder, which are brain, "
        "counter, model, wav2vec2"
    ) in (found.said)
    assert (
        "allow_partial_load=True" in found.said
        and "begins its optimizer anew" in found.said
    )
    speech_folder(tmp_path / "CKPT+2022", "model", "wav2vec_opt")
    other = Answered(text, tmp_path / "CKPT+2022")
    assert (
        "is in this folder (wav2vec_opt.ckpt)" in other.said
        and "is not among" not in other.said
    )


# --- settings that name the layout, and programs that build more ----------------------


def experts(*, together: bool) -> dict[str, torch.Tensor]:
    """The experts of Megatron-LM, in two layers."""
    state: dict[str, torch.Tensor] = {}
    for layer in range(2):
        name = f"decoder.layers.{layer}.mlp"
        state[f"{name}.router.weight"] = torch.ones(2, 4)
        state[f"decoder.layers.{layer}.self_attention.linear_qkv.weight"] = torch.ones(
            4, 4
        )
        if together:
            state[f"{name}.experts.weight1"] = torch.ones(4, 16)
            state[f"{name}.experts.weight2"] = torch.ones(16, 4)
            continue
        for number in range(2):
            state[f"{name}.experts.local_experts.{number}.linear_fc1.weight"] = (
                torch.ones(8, 4)
            )
            state[f"{name}.experts.local_experts.{number}.linear_fc2.weight"] = (
                torch.ones(4, 8)
            )
    return state


def keys_text_of(held: dict[str, torch.Tensor], built: dict[str, torch.Tensor]) -> str:
    missing = ", ".join(f'"{name}"' for name in built if name not in held)
    unexpected = ", ".join(f'"{name}"' for name in held if name not in built)
    return (
        "RuntimeError: Error(s) in loading state_dict for GPTModel:\n"
        f"\tMissing key(s) in state_dict: {missing}. \n\tUnexpected key(s) in "
        f"state_dict: {unexpected}. \n"
    )


@pytest.mark.parametrize("together", [False, True])
def test_the_layout_of_experts_stands_in_the_args(
    together: bool, tmp_path: Path
) -> None:
    held, built = experts(together=together), experts(together=not together)
    args = argparse.Namespace(num_experts=2, moe_grouped_gemm=together)
    torch.save({"args": args, "iteration": 3, "model": held}, tmp_path / "m.pt")
    found = Answered(keys_text_of(held, built), tmp_path / "m.pt")
    assert f"args.num_experts is 2, args.moe_grouped_gemm is {together}" in found.said
    assert (
        f"Load it {'with' if together else 'without'} --moe-grouped-gemm." in found.said
    )
    args.moe_grouped_gemm = not together
    torch.save({"args": args, "iteration": 3, "model": held}, tmp_path / "m.pt")
    assert (
        "--moe-grouped-gemm"
        not in Answered(keys_text_of(held, built), tmp_path / "m.pt").said
    )


class Block(nn.Module):
    def __init__(self, *, is_new: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Linear(2, 2), nn.Linear(2, 2)
        if is_new:
            self.conv3 = nn.Linear(2, 2, bias=False)


class Blocks(nn.Module):
    def __init__(self, *, is_new: bool) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Block(is_new=is_new) for _ in range(4))
        self.plain = nn.ModuleList(Block(is_new=False) for _ in range(8))


def test_a_program_that_builds_more_is_of_another_version(tmp_path: Path) -> None:
    model, old = Blocks(is_new=True), Blocks(is_new=False).state_dict()
    torch.save(old, tmp_path / "m.pth")
    text = raised(lambda: model.load_state_dict(old))
    found = Answered(text, tmp_path / "m.pth")
    assert "so all 48 tensors of the model in this file have their place" in found.said
    assert (
        "encoder.0 has conv1, conv2 here, and no conv3. Most likely the program is "
        "of another version"
    ) in (found.said)
    ran(found, "import ckpt", model)
    assert all(
        torch.equal(model.state_dict()[name], value) for name, value in old.items()
    )


def test_a_whole_block_that_lacks_is_no_addition(tmp_path: Path) -> None:
    old = dict(Blocks(is_new=False).state_dict())
    torch.save(old, tmp_path / "m.pth")
    model = Blocks(is_new=False)
    model.bridge = nn.Linear(2, 2)
    found = Answered(raised(lambda: model.load_state_dict(old)), tmp_path / "m.pth")
    assert "another version" not in found.said
    both = Blocks(is_new=False)
    both.encoder[0].conv3 = nn.Linear(2, 2, bias=False)
    both.bridge = nn.Linear(2, 2)
    assert (
        "another version"
        not in Answered(
            raised(lambda: both.load_state_dict(old)), tmp_path / "m.pth"
        ).said
    )
    wrapped = nn.ModuleDict({"model": model})
    inner = {f"model.{name}": value for name, value in old.items()}
    torch.save(inner, tmp_path / "w.pth")
    found = Answered(raised(lambda: wrapped.load_state_dict(inner)), tmp_path / "w.pth")
    assert (
        found.names == ["model.bridge.weight", "model.bridge.bias"]
        and "another version" not in found.said
    )
    extra = {**old, "other.thing": torch.ones(2)}
    torch.save(extra, tmp_path / "m.pth")
    found = Answered(
        raised(lambda: Blocks(is_new=True).load_state_dict(extra)), tmp_path / "m.pth"
    )
    assert "another version" not in found.said


# --- epochs, maps and other frameworks ------------------------------------------------

_RESUMED = "mmdet - INFO - resumed epoch 64, iter 156416"


def resumed(path: Path, epoch: int) -> str:
    torch.save(
        {"meta": {"epoch": epoch, "iter": 156416}, "state_dict": detector()}, path
    )
    return (
        inside("explain", _RESUMED, path.name, cwd=path.parent)
        .out.decode()
        .replace("\n", " ")
    )


def test_an_epoch_in_a_name_is_not_the_one_in_the_file(tmp_path: Path) -> None:
    said = resumed(tmp_path / "epoch_76.pth", 64)
    assert "meta.epoch is 64 in this file, and meta.iter is 156416" in said
    assert "epoch_76 is in its name alone" in said
    assert "in its name alone" not in resumed(tmp_path / "epoch_64.pth", 64)
    assert "went on from another file" in resumed(tmp_path / "epoch_70.pth", 70)


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (
            "Starting training for 15 epochs...\n",
            "epoch is 29 in this file, and 15 epochs were asked for",
        ),
        ("", "epoch is 29 in this file, so a run that goes on begins at epoch 30"),
        ("Starting training for 300 epochs...\n", ""),
    ],
)
def test_a_loop_without_an_epoch_left(begin: str, said: str, tmp_path: Path) -> None:
    torch.save({"epoch": 29, "model": detector()}, tmp_path / "last.pt")
    text = (
        f"{begin}UnboundLocalError: local variable 'epoch' referenced before assignment"
    )
    found = Answered(text, tmp_path / "last.pt")
    assert said in found.said
    assert ("Ask for more than 30 epochs" in found.said) == bool(said)


def test_a_bus_error_is_of_a_mapped_file(tmp_path: Path) -> None:
    torch.save(detector(), tmp_path / "m.pt")
    whole = Answered("INFO: saved\nBus error (core dumped)\n", tmp_path / "m.pt")
    assert (
        whole.said.startswith("The system stops a program with a bus error")
        and whole.code == 0
    )
    assert {*whole.loaded()} == {*detector()}
    data = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "m.pt").write_bytes(data[: len(data) * 7 // 10])
    cut = Answered("INFO: saved\nBus error (core dumped)\n", tmp_path / "m.pt")
    assert cut.said.startswith("Cut off") and "Load with mmap=False" in cut.said
    other = Answered("RuntimeError: something else entirely", tmp_path / "m.pt")
    assert "mmap" not in other.said


_NO_WEIGHTS = (
    "OSError: Can't load weights for 'org/m'. Make sure that:\n\n- 'org/m' is a "
    "correct model identifier\n\n"
    "- or 'org/m' is the correct path to a directory containing a file named one of "
    "{}.\n"
)


def test_weights_of_torch_are_not_loaded_from_tensorflow(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    torch.save(
        {"bert.embeddings.a.weight": torch.ones(2)}, folder / "pytorch_model.bin"
    )
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "transformers_version": "3.0",
    }
    (folder / "config.json").write_text(json.dumps(config))
    found = Answered(_NO_WEIGHTS.format("tf_model.h5, model.ckpt"), folder)
    assert (
        "has weights of PyTorch (pytorch_model.bin), and the loader looks for "
        "tf_model.h5"
    ) in found.said
    assert (
        found.commands == ['transformers.BertModel.from_pretrained("m")']
        and found.code == 0
    )
    other = Answered(
        _NO_WEIGHTS.format("pytorch_model.bin, tf_model.h5, model.ckpt"), folder
    )
    assert "from_tf" not in other.said


@pytest.mark.parametrize("line", ["-" * 40 + "\n", "---> 16 load()\n", "-- \n"])
def test_a_text_that_begins_with_dashes_is_no_option(line: str, tmp_path: Path) -> None:
    text = f"{line}RuntimeError: PytorchStreamReader failed reading zip archive"
    done = inside("explain", text, cwd=tmp_path)
    assert done.code == 0 and b"PytorchStreamReader" in done.out
    assert b"no option" in inside("explain", "---foo", cwd=tmp_path).err


def test_a_signature_line_is_a_text(tmp_path: Path) -> None:
    """Dashes and one space begin what mail programs cut off."""
    done = inside("explain", "-- ", cwd=tmp_path)
    assert done.code == 2 and b"no option" not in done.err


# --- a model of another size, in many layers ------------------------------------------


def sized(width: int, heads: int) -> dict[str, torch.Tensor]:
    """The layers of a model of one width."""
    state: dict[str, torch.Tensor] = {}
    for layer in range(5):
        state[f"encoder.layers.{layer}.norm.weight"] = torch.ones(width)
        state[f"encoder.layers.{layer}.attn.bias"] = torch.ones(heads, 4)
        state[f"encoder.layers.{layer}.attn.linear.weight"] = torch.ones(width, width)
    return state


def mismatched(held: dict[str, torch.Tensor], built: dict[str, torch.Tensor]) -> str:
    row = (
        "\tsize mismatch for {}: copying a param with shape torch.Size({}) from "
        "checkpoint, the shape in current model is torch.Size({})."
    )
    lines = [
        row.format(name, [*held[name].shape], [*built[name].shape]) for name in held
    ]
    return "\n".join(
        ["RuntimeError: Error(s) in loading state_dict for Model:", *lines]
    )


def test_the_width_of_a_config_in_yaml_is_named(tmp_path: Path) -> None:
    config = "encoder:\n  d_model: 16\n  n_heads: 2\n  batch_size: 16\n"
    torch.save({"state_dict": sized(16, 2), "model_config": config}, tmp_path / "m.pt")
    found = Answered(mismatched(sized(16, 2), sized(32, 4)), tmp_path / "m.pt")
    assert (
        "16 stands among the settings of this checkpoint: d_model in model_config."
        in found.said
    )
    assert "in place of 32." in found.said
    torch.save({"state_dict": sized(16, 2), "notes": config}, tmp_path / "m.pt")
    found = Answered(mismatched(sized(16, 2), sized(32, 4)), tmp_path / "m.pt")
    assert "among the settings" not in found.said


def test_layers_of_one_shape_are_one_row(tmp_path: Path) -> None:
    torch.save(sized(16, 2), tmp_path / "m.pt")
    found = Answered(mismatched(sized(16, 2), sized(32, 4)), tmp_path / "m.pt")
    rows = [
        line.split()
        for line in found.page.splitlines()
        if line.startswith("encoder.layers.")
    ]
    assert rows == [
        ["encoder.layers.0-4.norm.weight", "[16]", "[32]"],
        ["encoder.layers.0-4.attn.bias", "[2,", "4]", "[4,", "4]"],
        ["encoder.layers.0-4.attn.linear.weight", "[16,", "16]", "[32,", "32]"],
    ]
    held = {name: value for name, value in sized(16, 2).items() if ".1." not in name}
    built = {name: value for name, value in sized(32, 4).items() if ".1." not in name}
    found = Answered(mismatched(held, built), tmp_path / "m.pt")
    assert "encoder.layers.2.norm.weight" in found.page and "0-" not in found.page


def test_a_log_without_an_error_is_answered_where_the_file_contradicts_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "epoch_76.pth"
    torch.save({"meta": {"epoch": 64, "iter": 156416}, "state_dict": detector()}, path)
    found = Answered(f"{_RESUMED}\n", path)
    assert "epoch_76 is in its name alone" in found.said and found.code == 0
    path.rename(tmp_path / "epoch_64.pth")
    (tmp_path / "log.txt").write_text(f"{_RESUMED}\n")
    done = inside("explain", "log.txt", "epoch_64.pth", cwd=tmp_path)
    assert done.code == 0 and done.out == b"no error in this text\n"


def test_a_key_that_is_a_file_of_the_folder(tmp_path: Path) -> None:
    folder = state_folder(tmp_path / "m", "custom_checkpoint_0.pkl")
    found = Answered("KeyError: 'optimizer'", folder)
    assert (
        "optimizer is a file of its own in this folder, optimizer.bin, and no key "
        "of another one"
    ) in found.said
    other = Answered("KeyError: 'my_opt'", folder)
    assert (
        "No file of this folder is called my_opt, and no key has this name: its "
        "files are"
    ) in other.said
    assert "By another name the file has one: optimizer" in other.said


# --- what four new users met ----------------------------------------------------------


class Segmenter(nn.Module):
    """A model that is saved whole."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)


def whole_model(folder: Path) -> Path:
    """A file of a whole pickled model."""
    path = folder / "whole.pth"
    torch.save(Segmenter(), path)
    return path


@pytest.mark.parametrize("name", ["copy", "keys", "items", "_metadata"])
def test_a_module_in_the_place_of_a_state_dict(name: str, tmp_path: Path) -> None:
    text = f"AttributeError: 'Segmenter' object has no attribute '{name}'"
    found = Answered(text, whole_model(tmp_path))
    assert "an object of Segmenter at the root" in found.said
    assert f"took it for a dict: {name} is a method of dicts" in found.said
    assert "later version" not in found.said
    weights = torch.load(found.run("ckpt slim"), weights_only=True)
    assert list(weights) == ["stem.weight", "stem.bias"]


def test_a_class_that_got_an_attribute_is_still_said_so(tmp_path: Path) -> None:
    text = "AttributeError: 'Segmenter' object has no attribute 'dropout'"
    found = Answered(text, whole_model(tmp_path))
    assert "later version" in found.said


def test_quotes_that_a_shell_ate(tmp_path: Path) -> None:
    path = whole_model(tmp_path)
    module = Segmenter.__module__
    quoted = Answered(f"ModuleNotFoundError: No module named '{module}'", path)
    bare = Answered(f"ModuleNotFoundError: No module named {module}", path)
    assert bare.kind == quoted.kind == "code"
    assert bare.said == quoted.said
    assert f"The file names {module}.Segmenter" in bare.said


def test_a_whole_model_is_called_no_state_dict(tmp_path: Path) -> None:
    found = Answered("OddError: something else", whole_model(tmp_path))
    assert "a pickled object of" in found.said and "no state dict" in found.said
    assert "It is a state dict" not in found.said


def test_a_line_that_may_run_code_asks_for_trust(tmp_path: Path) -> None:
    path = tmp_path / "args.pth"
    args = argparse.Namespace(lr=0.1)
    torch.save({"state_dict": {"a": torch.ones(2)}, "args": args}, path)
    found = Answered("KeyError: 'model'", path)
    assert "It loads so, if you trust its author (" in found.said
    assert any("weights_only=False" in command for command in found.commands)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    torch.save({"a": torch.ones(2)}, tmp_path / "runs" / "best_1.pth")
    done = ckpt("explain", lost("runs/best_2.pth"), cwd=tmp_path)
    said = " ".join(done.out.decode().split())
    assert done.code == 0
    assert "Nothing is at runs/best_2.pth, seen from this folder either." in said
    assert "Did you mean runs/best_1.pth?" in said
    done = ckpt("explain", lost("runs/best_1.pth"), cwd=tmp_path)
    said = " ".join(done.out.decode().split())
    assert "runs/best_1.pth is there, seen from this folder" in said
    found = Answered(lost("models/best_1.pth"), tmp_path / "runs" / "best_1.pth")
    assert found.kind == "absent" and "a file of this name is here" in found.said


def test_a_folder_that_lacks_a_shard_has_two_others(tmp_path: Path) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    names = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    for number, name in enumerate(names):
        save_file({f"layer.{number}.weight": torch.ones(2, 2)}, folder / name)
    index = {f"layer.{number}.weight": name for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": index})
    )
    found = Answered(lost("llm/model-00003-of-00003.safetensors"), folder)
    assert f"{names[0]}, {names[1]} are." in found.said


def test_the_given_model_stands_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build(width):\n"
        "    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(width)])\n"
    )
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    model[:3](torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "adam.pth")
    text = "Parameter indices which did not receive grad for rank 0: 4 5"
    given = ("--model", "net.py:build", "--arg", "width=4")
    done = ckpt("explain", text, "adam.pth", *given, cwd=tmp_path)
    said = done.out.decode()
    assert done.code == 0
    assert "--model net.py:build --arg width=4 --index 4,5" in said
    assert "FILE.py:FACTORY" not in said
    unknown = ckpt("explain", text, "adam.pth", cwd=tmp_path).out.decode()
    assert "net.py" not in unknown


def test_a_model_that_is_not_the_files_is_said(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build(width):\n"
        "    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(int(width))])\n"
    )
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    torch.save({"model": model.state_dict()}, tmp_path / "a.pth")
    given = ("--model", "net.py:build", "--arg")
    less = ckpt("inspect", "a.pth", *given, "width=3", cwd=tmp_path).err.decode()
    assert "net.py:build: the model lacks 2 tensors of the file: 3." in less
    more = ckpt("inspect", "a.pth", *given, "width=5", cwd=tmp_path).err.decode()
    assert "the file lacks 2 tensors of the model: 4." in more
    assert not ckpt("inspect", "a.pth", *given, "width=4", cwd=tmp_path).err


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {"architectures": ["LlamaForCausalLM"]},
            "with that class (transformers.LlamaForCausalLM.from_pretrained).",
        ),
        ({"architectures": ["TransfoXLTokenizer"]}, "with that class."),
        (
            {"architectures": ["Net"], "auto_map": {"AutoModel": "modeling_x.Net"}},
            "with that class.",
        ),
    ],
)
def test_a_class_that_names_code_is_no_line(
    config: dict[str, object], line: str, tmp_path: Path
) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    save_file({"layers.0.w": torch.ones(2)}, folder / "model.safetensors")
    document = {"transformers_version": "5.0.0"} | config
    (folder / "config.json").write_text(json.dumps(document))
    text = (
        "This checkpoint specifies to tie model.embed.weight to head.weight, but both "
        "are absent from the checkpoint"
    )
    assert line in Answered(text, folder).said
