"""Situations that people brought to the threads of programs for pictures, sound and
crystals: a message, the file, and the answer that helps.

Each says nothing that the file contradicts, and what it prints is run.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered
from inside import folder_of
from safetensors.torch import save_file
from shapes import classes
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]

Sizes = Mapping[str, tuple[int, ...]]


def state(sizes: Sizes) -> dict[str, torch.Tensor]:
    """Random tensors of some sizes."""
    return {name: torch.rand(size) for name, size in sizes.items()}


def refused(cls: str, ours: Sizes, theirs: Sizes) -> str:
    """The text of torch for a state dict and a model of these sizes."""
    lines = [f"RuntimeError: Error(s) in loading state_dict for {cls}:"]
    missing = ", ".join(f'"{name}"' for name in theirs if name not in ours)
    unexpected = ", ".join(f'"{name}"' for name in ours if name not in theirs)
    if missing:
        lines.append(f"Missing key(s) in state_dict: {missing}. ")
    if unexpected:
        lines.append(f"Unexpected key(s) in state_dict: {unexpected}. ")
    lines += [
        f"size mismatch for {name}: copying a param with shape "
        f"torch.Size({list(ours[name])}) from checkpoint, the shape in current model "
        f"is torch.Size({list(size)})."
        for name, size in theirs.items()
        if name in ours and ours[name] != size
    ]
    return "\n\t".join(lines)


def asked(ours: Sizes, theirs: Sizes, folder: Path, cls: str = "Net") -> Answered:
    """The answer to torch's error for a file of some sizes and a model of others."""
    torch.save(state(ours), folder / "m.pth")
    return Answered(refused(cls, ours, theirs), folder / "m.pth")


# --- parts of detectors ---------------------------------------------------------------

_NORM = ("weight", "bias", "running_mean", "running_var")


def convolutions(place: str, words: list[str], norms: list[str]) -> Sizes:
    sizes: dict[str, tuple[int, ...]] = {}
    for word, norm in zip(words, norms, strict=True):
        sizes[f"{place}.{word}.weight"] = (4, 4, 1, 1)
        sizes.update({f"{place}.{norm}.{leaf}": (4,) for leaf in _NORM})
    return sizes


def proposals(anchors: int, width: int = 8) -> Sizes:
    return {
        "rpn.head.conv.weight": (width, width, 3, 3),
        "rpn.head.cls_logits.weight": (anchors, width, 1, 1),
        "rpn.head.bbox_pred.weight": (4 * anchors, width, 1, 1),
        "rpn.head.bbox_pred.bias": (4 * anchors,),
    }


def boxes(classes: int) -> Sizes:
    return {
        "roi_heads.box_predictor.cls_score.weight": (classes, 4),
        "roi_heads.box_predictor.cls_score.bias": (classes,),
    }


def pyramid(levels: int) -> Sizes:
    return {
        f"backbone.fpn.inner_blocks.{level}.weight": (8, 4 + level, 1, 1)
        for level in range(levels)
    }


MOBILE = convolutions(
    "backbone.body", [f"{n}.0" for n in range(6)], [f"{n}.1" for n in range(6)]
)
RESNET = convolutions(
    "backbone.body",
    ["conv1", *(f"layer{n}.0.conv{m}" for n in (1, 2) for m in (1, 2, 3))],
    ["bn1", *(f"layer{n}.0.bn{m}" for n in (1, 2) for m in (1, 2, 3))],
)


def test_another_backbone_is_named_by_its_place(tmp_path: Path) -> None:
    ours = {**MOBILE, **pyramid(2), **proposals(15), **boxes(91)}
    theirs = {**RESNET, **pyramid(4), **proposals(3), **boxes(3)}
    found = asked(ours, theirs, tmp_path, "FasterRCNN")
    assert found.said.startswith(
        "backbone.body is another network in the file than in the model"
    )
    assert "by its names a ResNet" in found.said and "0.0.weight" in found.said
    assert "15 anchors at each place in the file and 3 in the model" in found.said
    assert "91 outputs where the model has 3: another number of classes" in found.said
    assert "hidden" not in found.said and not found.commands


def test_a_backbone_with_as_many_layers_may_be_the_same(tmp_path: Path) -> None:
    words = [f"layer{n}.0.conv{m}" for n in (1, 2) for m in (1, 2, 3)]
    norms = [f"layer{n}.0.bn{m}" for n in (1, 2) for m in (1, 2, 3)]
    resnet = convolutions("backbone.body", words, norms)
    found = asked(
        {**MOBILE, **boxes(3), **proposals(3)},
        {**resnet, **boxes(3), **proposals(3)},
        tmp_path,
    )
    assert "another network" not in found.said


def test_another_layer_of_a_head_is_no_other_backbone(tmp_path: Path) -> None:
    theirs = {**MOBILE, **boxes(3), "roi_heads.mask.weight": (3, 4)}
    found = asked({**MOBILE, **boxes(3)}, theirs, tmp_path)
    assert "another network" not in found.said


@pytest.mark.parametrize("word", ["Unable to load", "Skip loading parameter"])
def test_anchors_of_a_pyramid_and_of_none(word: str, tmp_path: Path) -> None:
    sizes = {
        "proposal_generator.anchor_generator.cell_anchors.0": ((3, 4), (15, 4)),
        "proposal_generator.rpn_head.anchor_deltas.weight": (
            (12, 256, 1, 1),
            (60, 1024, 1, 1),
        ),
        "roi_heads.box_predictor.cls_score.weight": ((81, 8), (6, 8)),
    }
    torch.save(
        {"model": state({name: ours for name, (ours, _) in sizes.items()})},
        tmp_path / "m.pth",
    )
    text = "\n".join(
        f"{word} '{name}' to the model due to incompatible shapes: {ours} in the "
        f"checkpoint but {theirs} in the model!"
        for name, (ours, theirs) in sizes.items()
    )
    found = Answered(text, tmp_path / "m.pth")
    assert found.code == 0 and found.kind == "sizes"
    assert "3 anchors at each place in the file and 15 in the model" in found.said
    assert "A feature pyramid (FPN)" in found.said
    assert "81 outputs where the model has 6" in found.said


def test_other_anchors_alone_are_a_setting(tmp_path: Path) -> None:
    found = asked({**MOBILE, **proposals(3)}, {**MOBILE, **proposals(5)}, tmp_path)
    assert "other sizes and aspect ratios of anchors" in found.said
    assert "FPN" not in found.said


_COMPARED = (
    "WARNING [09/23 17:55:37 d2.checkpoint.c2_model_loading]: Shape of norm.{0} in "
    "checkpoint is torch.Size([8]), while shape of roi_heads.box_head.conv{1}.norm.{0} "
    "in model is torch.Size([6]).\n"
    "WARNING [09/23 17:55:37 d2.checkpoint.c2_model_loading]: norm.{0} will not be "
    "loaded. Please double check and see if this is desired.\n"
)


def test_names_that_were_compared_by_their_ends(tmp_path: Path) -> None:
    torch.save(
        {"model": state({"cls_token": (1, 1, 8), "norm.weight": (8,)})},
        tmp_path / "mae.pth",
    )
    text = "".join(_COMPARED.format("weight", number) for number in (1, 2))
    found = Answered(text, tmp_path / "mae.pth")
    assert found.said.startswith("These lines are about other layers.")
    assert (
        "norm.weight, which is in this file, was held against 2 tensors" in found.said
    )
    assert "classes" not in found.said and not found.commands


def test_a_norm_is_no_head(tmp_path: Path) -> None:
    found = asked(
        {"a.weight": (4, 4), "norm.weight": (8,), "norm.bias": (8,)},
        {"a.weight": (4, 4), "norm.weight": (6,), "norm.bias": (6,)},
        tmp_path,
    )
    assert "classes" not in found.said


# --- adapters of diffusion models -----------------------------------------------------


def diffusion() -> Sizes:
    return {
        "model.diffusion_model.input_blocks.0.0.weight": (8, 4, 3, 3),
        "model.diffusion_model.out.2.bias": (4,),
        "first_stage_model.decoder.conv_out.weight": (3, 4, 3, 3),
        "cond_stage_model.transformer.text_model.embeddings.position.weight": (7, 8),
    }


def lora(rank: int, width: int) -> Sizes:
    layer = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k"
    return {
        f"{layer}.lora_down.weight": (rank, width),
        f"{layer}.lora_up.weight": (8, rank),
        f"{layer}.alpha": (),
    }


def test_a_name_that_was_cut_is_of_no_adapter(tmp_path: Path) -> None:
    save_file(state(diffusion()), tmp_path / "last.safetensors")
    name = "cond_stage_model.transformer.text_model.embeddings.position.weight"
    found = Answered(f"KeyError: '{name[:-1]}'", tmp_path / "last.safetensors")
    assert f"This is {name} of this file without its last letter" in found.said
    assert "it holds a model of Stable Diffusion" in found.said and found.code == 0
    other = Answered(f"KeyError: '{name}x'", tmp_path / "last.safetensors")
    assert "last letter" not in other.said


_MERGE = (
    "    assert merged_sd[key].size() == lora_sd[key].size(\n"
    "AssertionError: weights shape mismatch merging v1 and v2, different dims? / "
)


def test_adapters_of_two_sizes_are_not_merged(tmp_path: Path) -> None:
    save_file(state(lora(128, 768)), tmp_path / "a.safetensors")
    found = Answered(_MERGE, tmp_path / "a.safetensors")
    assert found.code == 0
    assert "This adapter has rank 128" in found.said
    assert "width 768 (Stable Diffusion 1)" in found.said
    save_file(state(diffusion()), tmp_path / "b.safetensors")
    whole = Answered(_MERGE, tmp_path / "b.safetensors")
    assert "No tensor of this file is of an adapter" in whole.said
    assert "This is a model of Stable Diffusion" in whole.said


def test_an_adapter_is_no_base_model(tmp_path: Path) -> None:
    layer = "lllite_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q"
    sizes = {f"{layer}.down.0.weight": (4, 8), f"{layer}.up.0.weight": (8, 4)}
    other = {f"{layer.replace('_4_', '_5_')}.up.0.weight": (8, 4)}
    save_file(state({**sizes, **other}), tmp_path / "mask.safetensors")
    theirs = {"time_embed.0.weight": (4, 4), "input_blocks.0.0.weight": (8, 4, 3, 3)}
    found = Answered(
        refused("SdxlUNet2DConditionModel", {}, theirs), tmp_path / "mask.safetensors"
    )
    assert "This is an adapter of ControlNet-LLLite" in found.said
    assert not found.commands and "have their place" not in found.said


def test_one_file_is_no_folder_with_a_config(tmp_path: Path) -> None:
    text = (
        "OSError: It looks like the config file at '/app/{}' is not a valid JSON file."
    )
    save_file(state(diffusion()), tmp_path / "sd.safetensors")
    found = Answered(text.format("sd.safetensors"), tmp_path / "sd.safetensors")
    assert found.code == 0 and "from_single_file of the class of the pipe" in found.said
    assert "a diffusion model, a text encoder and a VAE" in found.said
    save_file(state(lora(4, 768)), tmp_path / "lora.safetensors")
    found = Answered(text.format("lora.safetensors"), tmp_path / "lora.safetensors")
    assert "load_lora_weights" in found.said and "single_file" not in found.said
    config = Answered(text.format("config.json"), tmp_path / "sd.safetensors")
    assert "config.json is what the program could not read" in config.said


def test_a_file_system_that_maps_no_files(tmp_path: Path) -> None:
    save_file(state(lora(4, 768)), tmp_path / "lora.safetensors")
    found = Answered("No such device (os error 19)", tmp_path / "lora.safetensors")
    assert "maps the file into memory" in found.said
    assert "This file is whole" in found.said


# --- saves and their versions ---------------------------------------------------------


def test_an_optimizer_under_the_name_of_its_scheduler(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    saved = {
        "model": model.state_dict(),
        "optimizer": scheduler.state_dict(),
        "scheduler": optimizer.state_dict(),
    }
    torch.save(saved, tmp_path / "current.pth")
    found = Answered("KeyError: 'param_groups'", tmp_path / "current.pth")
    assert "optimizer of this file is the state of a scheduler" in found.said
    (line,) = [row for row in found.commands if row.startswith("optimizer.load")]
    fresh = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    stepped = torch.optim.lr_scheduler.StepLR(fresh, 3)
    exec(
        line,
        {
            "optimizer": fresh,
            "scheduler": stepped,
            "checkpoint": torch.load(tmp_path / "current.pth"),
        },
    )
    assert fresh.param_groups[0]["lr"] == 0.1 and stepped.last_epoch == 1


def test_spectral_norm_of_two_versions(tmp_path: Path) -> None:
    model = nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)), nn.ReLU())
    ours = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: size for name, size in ours.items() if not name.endswith("_v")}
    theirs["0.weight"] = ours["0.weight_orig"]
    found = asked(ours, theirs, tmp_path)
    assert found.said.startswith("Both have spectral norm, of two versions of torch")


def test_a_part_that_a_package_lacks_is_of_another_version(tmp_path: Path) -> None:
    net = type("Net", (nn.Module,), {})
    with classes("smp_like.unetplusplus.model", net):
        made = net()
        made.conv = nn.Conv2d(3, 4, 3)
        torch.save(made, tmp_path / "net.pth")
    text = "ModuleNotFoundError: No module named '{}'"
    found = Answered(text.format("smp_like.unetplusplus"), tmp_path / "net.pth")
    assert "Python found smp_like, and no unetplusplus in it" in found.said
    whole = Answered(text.format("smp_like"), tmp_path / "net.pth")
    assert "Python found" not in whole.said


def test_a_setting_that_a_program_does_not_know(tmp_path: Path) -> None:
    saved: dict[str, Any] = {
        "config": {"resolution": 512, "resolution_w": 512},
        "model": state({"a.weight": (2, 2)}),
    }
    torch.save(saved, tmp_path / "m.pth")
    text = "TypeError: __init__() got an unexpected keyword argument '{}'"
    found = Answered(text.format("resolution_w"), tmp_path / "m.pth")
    assert (
        "resolution_w is a setting of this file, at config.resolution_w (512)"
        in found.said
    )
    call = text.replace("__init__", "forward").format("resolution_w")
    assert "is a setting of" not in Answered(call, tmp_path / "m.pth").said
    other = Answered(text.format("resolution_z"), tmp_path / "m.pth")
    assert "is a setting of this file" not in other.said


def test_a_tuple_of_objects_is_no_state_dict(tmp_path: Path) -> None:
    torch.save((torch.ones(2), {"a": torch.ones(2)}), tmp_path / "pair.pth")
    found = Answered("ValueError: something else happened", tmp_path / "pair.pth")
    assert "Its root, a tuple, holds 2 things" in found.said
    assert "state dict" not in found.said


def test_a_table_of_symbols_is_built_with_its_rows(tmp_path: Path) -> None:
    ours = {"enc_p.emb.weight": (52, 4), "dec.weight": (4, 4), "dec.bias": (4,)}
    found = asked(ours, {**ours, "enc_p.emb.weight": (50, 4)}, tmp_path)
    assert "52 rows in the checkpoint and 50 in the model" in found.said
    assert "Build it with 52" in found.said and not found.commands


def test_the_last_file_of_a_run_that_was_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    for word in ("best", "latest"):
        torch.save({"state_dict": state({"a": (2,)})}, folder / f"model_{word}.model")
        (folder / f"model_{word}.model.pkl").write_bytes(pickle.dumps({"init": ()}))
    text = "FileNotFoundError: [Errno 2] No such file or directory: '/x/all/{}'"
    found = Answered(text.format("model_final_checkpoint.model.pkl"), folder)
    assert "A run writes it when its training ends" in found.said
    other = Answered(text.format("plans.pkl"), folder)
    assert "training ends" not in other.said


# --- a second set ---------------------------------------------------------------------


def test_a_file_that_lies_one_folder_lower(tmp_path: Path) -> None:
    inner = tmp_path / "005000" / "pretrained_model"
    inner.mkdir(parents=True)
    (tmp_path / "005000" / "training_state").mkdir()
    save_file(state({"model.head.weight": (2, 2)}), inner / "model.safetensors")
    (inner / "config.json").write_text('{"type": "act"}')
    text = "FileNotFoundError: [Errno 2] No such file or directory: 'out/005000/{}'"
    found = Answered(text.format("model.safetensors"), tmp_path / "005000")
    assert "It is below it, at pretrained_model/model.safetensors" in found.said
    assert "Copy it" not in found.said
    other = Answered(text.format("other.safetensors"), tmp_path / "005000")
    assert "below it" not in other.said


def test_a_folder_says_which_version_wrote_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint_000100"
    folder.mkdir()
    written = '{"type": "Algorithm", "ray_version": "2.6.1", "policy_ids": []}'
    (folder / "rllib_checkpoint.json").write_text(written)
    text = 'AttributeError: can\'t set attribute "is_atari"'
    found = Answered(text, folder)
    assert "rllib_checkpoint.json says ray_version = 2.6.1" in found.said
    (folder / "rllib_checkpoint.json").write_text('{"ray_version": NaN, "version": 3}')
    assert "says" not in Answered(text, folder).said
    (folder / "rllib_checkpoint.json").write_text(written)
    (folder / "model.bin").write_bytes(b"<html>")
    assert "ray_version" not in Answered(text, folder).said


def test_kernels_of_spconv_in_the_words_of_mmcv(tmp_path: Path) -> None:
    sizes = {"encoder.conv.0.weight": (3, 3, 3, 4, 8)}
    torch.save({"state_dict": state(sizes)}, tmp_path / "m.pth")
    text = (
        "The model and loaded state dict do not match exactly\n\nsize mismatch for "
        "encoder.conv.0.weight: copying a param with shape ('encoder.conv.0.weight', "
        "torch.Size([3, 3, 3, 4, 8])) from checkpoint,the shape in current model is "
        "torch.Size([8, 3, 3, 3, 4])."
    )
    found = Answered(text, tmp_path / "m.pth")
    assert "version 2 of spconv has the outputs first" in found.said
    (line,) = found.commands
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"conv": nn.ModuleList()})})
    model["encoder"]["conv"].append(nn.Module())  # type: ignore[operator,index,union-attr]
    layer = model["encoder"]["conv"][0]  # type: ignore[index]
    layer.weight = nn.Parameter(torch.zeros(8, 3, 3, 3, 4))
    with folder_of(found.folder):
        exec(line, {"torch": torch, "model": model})
    held = torch.load(tmp_path / "m.pth")["state_dict"]["encoder.conv.0.weight"]
    assert torch.equal(layer.weight, held.permute(4, 0, 1, 2, 3))


def test_the_head_of_a_backbone_is_no_option(tmp_path: Path) -> None:
    small = {f"block{n}.attn.proj.weight": (8 * n, 8 * n) for n in (1, 2, 3, 4)}
    torch.save(
        {"state_dict": state({**small, "head.weight": (9, 32), "head.bias": (9,)})},
        tmp_path / "t.pth",
    )
    lines = "\n".join(
        f"size mismatch for {name}: copying a param with shape "
        f"torch.Size({list(size)}) from checkpoint, the shape in current model is "
        f"torch.Size({[2 * n for n in size]})."
        for name, size in small.items()
    )
    text = (
        f"The model and loaded state dict do not match exactly\n\n{lines}\n"
        "unexpected key in source state_dict: head.weight, head.bias"
    )
    found = Answered(text, tmp_path / "t.pth")
    assert "another size of the same architecture" in found.said
    assert "option" not in found.said


def test_the_yolo_of_a_file_is_named_by_its_classes(tmp_path: Path) -> None:
    pool = type("MP", (nn.Module,), {})
    with classes("models.common", pool):
        torch.save({"model": nn.Sequential(nn.Conv2d(3, 4, 3), pool())}, tmp_path / "y")
    text = "AttributeError: Can't get attribute 'MP' on <module '{}' from 'D:\\\\a.py'>"
    found = Answered(text.format("models.common"), tmp_path / "y")
    assert "by its classes this file is of YOLOv7" in found.said


def test_older_names_of_an_adapter(tmp_path: Path) -> None:
    layer = "unet.down_blocks.0.attentions.0.to_q"
    sizes = {f"{layer}.lora_A.weight": (4, 8), f"{layer}.lora_B.weight": (8, 4)}
    save_file(state(sizes), tmp_path / "lora.safetensors")
    found = Answered("KeyError: 'lora.down.weight'", tmp_path / "lora.safetensors")
    assert "load_lora_weights of the pipeline takes these too" in found.said
    older = {f"{layer}.lora.down.weight": (4, 8), f"{layer}.lora.up.weight": (8, 4)}
    save_file(state(older), tmp_path / "older.safetensors")
    found = Answered("KeyError: 'lora.down.weight'", tmp_path / "older.safetensors")
    assert "before 0.22" not in found.said


def test_parts_of_an_adapter_that_a_loader_does_not_know(tmp_path: Path) -> None:
    layer = "lora_unet_conv_in"
    sizes = {**lora(4, 768), f"{layer}.lora_mid.weight": (4, 4, 3, 3)}
    save_file(state(sizes), tmp_path / "a.safetensors")
    text = (
        "ValueError: The following keys have not been correctly renamed: \n\n "
        f"{layer}.lora_mid.weight"
    )
    found = Answered(text, tmp_path / "a.safetensors")
    assert found.code == 0 and "1 tensor of this adapter is lora_mid" in found.said
    plain = {f"{layer}.lora_up.weight": (4, 4)}
    save_file(state({**lora(4, 768), **plain}), tmp_path / "b.safetensors")
    found = Answered(text.replace("_mid", "_up"), tmp_path / "b.safetensors")
    assert f"The file has {layer}.lora_up.weight" in found.said


def test_layers_by_number_that_old_torch_has_no_place_for(tmp_path: Path) -> None:
    sizes = {f"classifier.{n}.weight": (4, 4) for n in (1, 4, 6)}
    torch.save(state({"features.0.weight": (4, 4), **sizes}), tmp_path / "vgg.pth")
    text = "KeyError: 'unexpected key \"classifier.1.weight\" in state_dict'"
    found = Answered(text, tmp_path / "vgg.pth")
    assert "classifier has layers with weights at 1, 4, 6" in found.said
    assert not found.commands
    torch.save(state({"a.weight": (4, 4), "classifier.1.weight": (4,)}), tmp_path / "m")
    assert "it counts them" not in Answered(text, tmp_path / "m").said


def test_a_setting_that_a_program_looks_up(tmp_path: Path) -> None:
    saved = {"args": {"task": "speech_pretraining"}, "model": state({"a.b": (2,)})}
    torch.save(saved, tmp_path / "w.pt")
    found = Answered("KeyError: 'speech_pretraining'", tmp_path / "w.pt")
    assert "is a value of it, at args.task. Where the program takes it" in found.said
    other = Answered("KeyError: 'audio_pretraining'", tmp_path / "w.pt")
    assert "is a value of it" not in other.said


def test_a_config_class_that_lacks_a_setting(tmp_path: Path) -> None:
    saved = {"cfg": {"task": {"eval_wer": False}}, "model": state({"a.b": (2,)})}
    torch.save(saved, tmp_path / "x.pt")
    text = "omegaconf.errors.ConfigKeyError: Key 'eval_wer' not in 'PretrainingConfig'"
    found = Answered(text, tmp_path / "x.pt")
    assert "eval_wer is a setting of this file, at cfg.task.eval_wer" in found.said
    assert found.code == 0 and "misses a name" not in found.said


def test_layers_inside_of_trained_blocks(tmp_path: Path) -> None:
    ours = {
        f"encoder.blocks.{n}.0.conv{m}.conv.weight": (4, 4)
        for n in range(4)
        for m in (1, 2)
    }
    theirs = {f"encoder.blocks.{n}.0.conv3.conv.weight": (4, 4) for n in range(3)}
    found = asked(ours, {**ours, **theirs}, tmp_path, "UNETR")
    assert (
        "These lie inside of blocks whose other layers have their place" in found.said
    )
    head = asked(ours, {**ours, "out.weight": (2, 4), "out.bias": (2,)}, tmp_path)
    assert "inside of blocks" not in head.said


def test_several_tables_are_vocabularies(tmp_path: Path) -> None:
    ours = {f"{part}_encoder.embedding.weight": (9, 4) for part in ("name", "api")}
    theirs = dict(zip(ours, [(8, 4), (7, 4)], strict=True))
    more = {"fuse.weight": (4, 4)}
    found = asked({**ours, **more}, {**theirs, **more}, tmp_path)
    assert "2 tables have other numbers of rows" in found.said
    assert "(9 and 8)" in found.said and not found.commands


# --- a third set ----------------------------------------------------------------------


def test_windows_of_other_lengths(tmp_path: Path) -> None:
    ours = {"ddsp.window": (1024,), "ddsp.out.bias": (1538,), "a.weight": (4, 4)}
    theirs = {**ours, "ddsp.window": (2048,), "ddsp.out.bias": (3074,)}
    found = asked(ours, theirs, tmp_path)
    assert "1,024 samples in the checkpoint and 2,048 in the model" in found.said


def test_a_variant_of_flux_by_its_first_layer(tmp_path: Path) -> None:
    ours = {"img_in.weight": (8, 384), "double_blocks.0.img_attn.qkv.bias": (24,)}
    found = asked(ours, {**ours, "img_in.weight": (8, 64)}, tmp_path, "Flux")
    assert "the checkpoint is one of Flux Fill" in found.said and not found.commands
    found = asked(ours, {**ours, "img_in.weight": (8, 65)}, tmp_path, "Flux")
    assert "Flux Fill" not in found.said


def test_weights_that_are_packed_by_bitsandbytes(tmp_path: Path) -> None:
    name = "model.diffusion_model.img_in.weight"
    held = {
        name: torch.zeros(32, 1, dtype=torch.uint8),
        f"{name}.absmax": torch.ones(1),
        f"{name}.quant_map": torch.ones(16),
    }
    save_file(held, tmp_path / "nf4.safetensors")
    found = Answered(
        f"Error(s) in loading state_dict for Flux:\n\tsize mismatch for {name}: copying "
        "a param with shape torch.Size([32, 1]) from checkpoint, the shape in current "
        "model is torch.Size([8, 8]).",
        tmp_path / "nf4.safetensors",
    )
    assert "1 weight of this file is packed by bitsandbytes" in found.said


def test_an_adapter_of_another_trainer(tmp_path: Path) -> None:
    save_file(state(lora(4, 768)), tmp_path / "lora.safetensors")
    theirs = {f"qkv_lora1.{word}.weight": (2, 2) for word in ("down", "up")}
    found = Answered(
        refused("DoubleStreamBlockLoraProcessor", {}, theirs),
        tmp_path / "lora.safetensors",
    )
    assert "asks for layers of LoRA in names of its own" in found.said
    assert "base model" not in found.said


def test_positions_are_counted_on_a_grid(tmp_path: Path) -> None:
    ours = {"pos_embed": (1, 64, 64, 8), "proj.weight": (8, 8)}
    found = asked(ours, {**ours, "pos_embed": (1, 4, 4, 8)}, tmp_path)
    assert "4,096 (64 x 64) in the checkpoint and 16 (4 x 4)" in found.said
    wider = asked(ours, {**ours, "pos_embed": (1, 64, 64, 9)}, tmp_path)
    assert "Position embeddings differ" not in wider.said


def test_a_head_at_each_layer_of_a_detector(tmp_path: Path) -> None:
    ours = {
        f"{place}class_embed.{number}.{leaf}": size
        for place in ("", "transformer.decoder.")
        for number in range(6)
        for leaf, size in (("weight", (91, 4)), ("bias", (91,)))
    }
    theirs = {name: (5, *size[1:]) for name, size in ours.items()}
    more = {f"backbone.{n}.weight": (8, 3, 3, 3) for n in range(3)}
    found = asked(
        {"label_enc.weight": (92, 4), **ours, **more},
        {"label_enc.weight": (6, 4), **theirs, **more},
        tmp_path,
        "DINO",
    )
    assert "another number of classes. These 12 layers cannot be loaded" in found.said
    ckpt_line = [row for row in found.commands if row.startswith("import ckpt")]
    assert ckpt_line


def test_parts_that_a_published_file_has_not(tmp_path: Path) -> None:
    text = "\n".join(
        f"=> failed to load {part} from checkpoint './checkpoint.pth'"
        for part in ("student", "teacher", "optimizer")
    )
    torch.save(state({"cls_token": (1, 1, 4), "norm.weight": (4,)}), tmp_path / "c.pth")
    found = Answered(text, tmp_path / "c.pth")
    assert "looks for student, teacher, optimizer at the root" in found.said
    whole = {"student": state({"a.b": (2,)}), "teacher": state({"a.b": (2,)})}
    torch.save(whole, tmp_path / "w.pth")
    found = Answered(text, tmp_path / "w.pth")
    assert found.said.startswith("optimizer is no key of this file")
    one = "failed to load model from checkpoint"
    assert "is no key" not in Answered(one, tmp_path / "w.pth").said


def test_the_key_of_weights_is_a_setting_of_basicsr(tmp_path: Path) -> None:
    torch.save(state({"conv_first.weight": (4, 3, 3, 3)}), tmp_path / "r.pth")
    found = Answered("KeyError: 'params'", tmp_path / "r.pth")
    assert "param_key_g" in found.said
    assert {*found.loaded()} == {"conv_first.weight"}


def test_points_are_no_pictures(tmp_path: Path) -> None:
    ours = {"rpn.SA.0.layer0.conv.weight": (16, 3, 1, 1), "rpn.out.weight": (4, 16, 1)}
    theirs = {**ours, "rpn.SA.0.layer0.conv.weight": (16, 4, 1, 1)}
    found = asked(ours, theirs, tmp_path)
    assert "takes 3 in the checkpoint and 4 in the model" in found.said
    assert "colour" not in found.said


def test_kernels_with_their_channels_first(tmp_path: Path) -> None:
    ours = {"net.0.weight": (8, 8, 3, 3, 3), "net.1.weight": (8, 5, 3, 3, 3)}
    theirs = {"net.0.weight": (8, 3, 3, 3, 8), "net.1.weight": (8, 3, 3, 3, 5)}
    found = asked(ours, theirs, tmp_path)
    assert "one side has a kernel of spconv 2" in found.said
    (line,) = [row for row in found.commands if row.startswith("state = ")]
    model = nn.ModuleDict({"net": nn.ModuleList([nn.Module(), nn.Module()])})
    for number, size in enumerate(theirs.values()):
        layer = model.get_submodule(f"net.{number}")
        layer.weight = nn.Parameter(torch.zeros(size))
    with folder_of(found.folder):
        exec(line, {"torch": torch, "model": model})
    held = torch.load(tmp_path / "m.pth")["net.1.weight"]
    assert torch.equal(model.state_dict()["net.1.weight"], held.permute(0, 2, 3, 4, 1))


def test_functions_of_a_distance_are_no_words(tmp_path: Path) -> None:
    ours = {
        "radial_embedding.bessel_fn.bessel_weights": (8,),
        "interactions.0.conv_tp_weights.layer0.weight": (8, 64),
    }
    theirs = {name: (10, *size[1:]) for name, size in ours.items()}
    more = {f"readouts.{n}.weight": (128, 8) for n in range(3)}
    found = asked({**ours, **more}, {**theirs, **more}, tmp_path)
    assert "vocabulary" not in found.said
    assert "8 in the checkpoint and 10 in the model" in found.said


def test_an_archive_without_its_version(tmp_path: Path) -> None:
    torch.save(state({"a.weight": (2, 2)}), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as archive:
        kept = {
            name: archive.read(name)
            for name in archive.namelist()
            if "version" not in name and ".data" not in name
        }
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for name, data in kept.items():
            archive.writestr(name, data)
    with pytest.raises(RuntimeError) as caught:
        torch.load(tmp_path / "m.pt")
    found = Answered(f"RuntimeError: {caught.value}", tmp_path / "m.pt")
    assert "another program packed the archive anew" in found.said
    assert {*torch.load(found.run("ckpt convert"))} == {"a.weight"}


# --- a fourth set ---------------------------------------------------------------------


def test_an_agent_of_another_environment(tmp_path: Path) -> None:
    ours = {
        "running_mean_std.running_mean": (44,),
        "a2c_network.sigma": (12,),
        "a2c_network.actor_mlp.0.weight": (16, 44),
        "a2c_network.actor_mlp.0.bias": (16,),
        "a2c_network.mu.weight": (12, 16),
    }
    theirs = {
        **ours,
        "running_mean_std.running_mean": (3,),
        "a2c_network.sigma": (1,),
        "a2c_network.actor_mlp.0.weight": (16, 3),
        "a2c_network.mu.weight": (1, 16),
    }
    found = asked(ours, theirs, tmp_path)
    assert "trained on 44 observations and 12 actions" in found.said
    assert "built for 3 and 1" in found.said
    theirs["a2c_network.actor_mlp.0.weight"] = (17, 5)
    assert "observations" not in asked(ours, theirs, tmp_path).said


def test_small_parameters_of_one_entry_are_not_empty(tmp_path: Path) -> None:
    norms = {f"encoders.{n}.norm.{leaf}": (1,) for n in range(4) for leaf in _NORM[:2]}
    more = {f"encoders.{n}.q.weight": (32, 32) for n in range(4)}
    found = asked({**norms, **more}, {**dict.fromkeys(norms, (32,)), **more}, tmp_path)
    assert "ZeRO" not in found.said
    large = {f"encoders.{n}.q.weight": (1,) for n in range(4)}
    found = asked({**norms, **large}, {**norms, **more}, tmp_path)
    assert "DeepSpeed ZeRO-3" in found.said


def test_maps_of_joints_are_no_classes(tmp_path: Path) -> None:
    ours = {
        "conv1.weight": (8, 3, 3, 3),
        "head.final_layer.weight": (36, 8, 1, 1),
        "head.final_layer.bias": (36,),
    }
    theirs = {
        **ours,
        "head.final_layer.weight": (34, 8, 1, 1),
        "head.final_layer.bias": (34,),
    }
    found = asked(ours, theirs, tmp_path)
    assert "another number of outputs, as of classes, joints or maps" in found.said


def test_a_table_of_speakers_is_no_last_layer(tmp_path: Path) -> None:
    ours = {"enc_p.proj.weight": (4, 4), "emb_g.weight": (9, 4)}
    found = asked(ours, {**ours, "emb_g.weight": (1, 4)}, tmp_path)
    assert "9 rows in the checkpoint and 1 in the model" in found.said
    assert "classes. The last layer" not in found.said
