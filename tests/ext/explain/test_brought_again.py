"""Files and messages of people, of kinds that the other files lack: what is said is
true of the file, and what is printed works.
"""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered
from safetensors.torch import load_file, save_file

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def sizes(
    *rows: tuple[str, tuple[int, ...], tuple[int, ...]], name: str = "Net"
) -> str:
    """The text of torch for shapes that differ."""
    lines = [f"RuntimeError: Error(s) in loading state_dict for {name}:"]
    lines += [
        f"\tsize mismatch for {key}: copying a param with shape "
        f"torch.Size({list(here)}) from checkpoint, the shape in current model is "
        f"torch.Size({list(there)})."
        for key, here, there in rows
    ]
    return "\n".join(lines)


def unexpected(*names: str, missing: tuple[str, ...] = ()) -> str:
    """The text of torch for keys without a place."""
    lines = ["RuntimeError: Error(s) in loading state_dict for Net:"]
    for head, keys in (("Missing", missing), ("Unexpected", names)):
        if keys:
            listed = ", ".join(f'"{key}"' for key in keys)
            lines.append(f"\t{head} key(s) in state_dict: {listed}. ")
    return "\n".join(lines)


def test_a_grid_of_places_is_no_table(tmp_path: Path) -> None:
    state = {"encoder.pool.pos_grid": torch.ones(9, 2), "out.weight": torch.ones(4, 4)}
    torch.save(state, tmp_path / "a.pth")
    text = sizes(("encoder.pool.pos_grid", (9, 2), (144, 2)))
    found = Answered(text, tmp_path / "a.pth")
    assert "3×3 of them in the checkpoint, and 12×12 in the model" in found.said
    assert "a row for each" not in found.said
    # Numbers that are no squares are no grid.
    torch.save({"pose_anchor": torch.ones(17, 2)}, tmp_path / "b.pth")
    found = Answered(sizes(("pose_anchor", (17, 2), (20, 2))), tmp_path / "b.pth")
    assert "×" not in found.said


def test_a_root_key_that_is_a_module_too(tmp_path: Path) -> None:
    weights = {"model.layers.0.weight": torch.ones(2, 2), "cls.weight": torch.ones(2)}
    state = {"model": weights, "optimizer": {"state": {}, "param_groups": []}}
    torch.save({**state, "iteration": 3}, tmp_path / "a.pth")
    text = unexpected("model", "optimizer", "iteration", missing=tuple(weights))
    found = Answered(text, tmp_path / "a.pth")
    assert "The whole checkpoint was loaded into the model." in found.said
    assert "no place" not in found.said
    assert found.loaded().keys() == weights.keys()


def test_layers_for_the_stages_of_a_backbone(tmp_path: Path) -> None:
    widths = ((24, 32), (48, 64), (96, 128))
    names = [f"head.input_proj.{number}.0.weight" for number in range(3)]
    rows = [
        (name, (32, here, 1, 1), (32, there, 1, 1))
        for name, (here, there) in zip(names, widths, strict=True)
    ]
    state = {name: torch.ones(here) for name, here, _ in rows}
    torch.save({**state, "fc.weight": torch.ones(5, 32)}, tmp_path / "a.pth")
    found = Answered(sizes(*rows), tmp_path / "a.pth")
    assert "24, 48, 96 channels in the checkpoint and 32, 64, 128" in found.said
    assert "another backbone" in found.said
    assert "another kind of input" not in found.said


def test_one_first_layer_takes_another_input(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.ones(8, 3, 7, 7)}, tmp_path / "a.pth")
    text = sizes(("conv1.weight", (8, 3, 7, 7), (8, 1, 7, 7)))
    assert "another kind of input" in Answered(text, tmp_path / "a.pth").said


OLD = "KeyError: 'unexpected key \"{}\" in state_dict'"


def test_an_old_torch_stops_at_a_deeper_recurrent_layer(tmp_path: Path) -> None:
    torch.save(torch.nn.LSTM(4, 4, num_layers=2).state_dict(), tmp_path / "a.pth")
    found = Answered(OLD.format("weight_ih_l1"), tmp_path / "a.pth")
    assert "2 layers in the file and 1 in the model (num_layers)" in found.said
    assert not any("strict=False" in line for line in found.commands)
    both = torch.nn.LSTM(4, 4, bidirectional=True)
    torch.save(both.state_dict(), tmp_path / "b.pth")
    found = Answered(OLD.format("weight_ih_l0_reverse"), tmp_path / "b.pth")
    assert "both directions in the file and one direction in the model" in found.said


def test_an_old_torch_stops_at_the_first_block_without_a_place(tmp_path: Path) -> None:
    layers = torch.nn.ModuleList(torch.nn.LayerNorm(2) for _ in range(4))
    torch.save(
        {f"layers.{k}": v for k, v in layers.state_dict().items()}, tmp_path / "a"
    )
    found = Answered(OLD.format("layers.2.weight"), tmp_path / "a")
    assert "layers has 4 blocks in this file, and block 2 is the first" in found.said
    assert not any("strict=False" in line for line in found.commands)
    # A name in the middle of a block is no further block.
    found = Answered(OLD.format("layers.2.bias"), tmp_path / "a")
    assert "is the first" not in found.said


@pytest.mark.parametrize("is_fused", [True, False])
def test_projections_that_a_model_keeps_in_one_layer(
    is_fused: bool, tmp_path: Path
) -> None:
    state = {}
    for layer in ("attention_to_q", "attention_to_k", "feed_forward_w1"):
        for part, shape in (("lora_down", (4, 8)), ("lora_up", (8, 4))):
            state[f"lora_unet_layers_9_{layer}.{part}.weight"] = torch.ones(shape)
    save_file(state, tmp_path / "a.safetensors", metadata={"ss_network_dim": "4"})
    names = [name for name in state if not is_fused or "attention" in name]
    text = "\n".join(f"lora key not loaded: {name}" for name in names)
    found = Answered(text, tmp_path / "a.safetensors")
    assert ("It keeps q, k and v in one layer (qkv)" in found.said) is is_fused
    assert ("it is of another kind than the model" in found.said) is not is_fused


def test_a_flat_parameter_that_a_reader_cut(tmp_path: Path) -> None:
    state = {"net.embed.weight": torch.ones(30, 16)}
    dcp.save({"state_dict": state}, checkpoint_id=tmp_path / "run")
    text = (
        "AssertionError: req MetadataIndex(fqn='net.embed.weight', "
        "offset=torch.Size([0, 0]), index=0) mismatch sizes torch.Size([30]) vs "
        "torch.Size([30, 16])"
    )
    found = Answered(text, tmp_path / "run")
    assert found.code == 0
    assert "over in one dimension: a flat parameter of FSDP 1" in found.said
    assert "not there" not in found.page  # it is below state_dict


def test_a_buffer_that_newer_libraries_do_not_keep(tmp_path: Path) -> None:
    state = {"encoder.embeddings.position_ids": torch.arange(4)[None]}
    torch.save({"state_dict": state, "epoch": 1}, tmp_path / "a.ckpt")
    found = Answered("KeyError: 'embeddings.position_ids'", tmp_path / "a.ckpt")
    assert "which transformers before 4.31 kept in the state dict" in found.said


def test_a_head_that_an_option_added(tmp_path: Path) -> None:
    state = {f"field.base.{number}.weight": torch.ones(4, 4) for number in range(4)}
    state["field.field_head_normals.net.weight"] = torch.ones(3, 4)
    torch.save(state, tmp_path / "a.pth")
    text = unexpected("field.field_head_normals.net.weight")
    found = Answered(text, tmp_path / "a.pth")
    assert "an output more that the program that saved computed" in found.said
    attention = {**state, "field.multihead_attn.out.weight": torch.ones(4, 4)}
    torch.save(attention, tmp_path / "b.pth")
    found = Answered(unexpected("field.multihead_attn.out.weight"), tmp_path / "b.pth")
    assert "is of a head" not in found.said


def test_blocks_that_options_put_together_otherwise(tmp_path: Path) -> None:
    state = {
        f"input_blocks.{number}.0.in_layers.{part}.weight": torch.ones(2, 2)
        for number in (1, 2, 3)
        for part in (0, 2)
    }
    torch.save(state, tmp_path / "a.pt")
    text = unexpected(
        "input_blocks.3.0.in_layers.0.weight",
        "input_blocks.3.0.in_layers.2.weight",
        missing=("input_blocks.3.0.op.weight", "input_blocks.3.0.op.bias"),
    )
    found = Answered(text, tmp_path / "a.pt")
    assert "it was built with other options, or is of another version" in found.said


def test_a_training_that_goes_on_is_not_measured_in_eval(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    torch.save({"epoch": 8, "model": model.state_dict()}, tmp_path / "a.pth")
    text = (
        "When I load the model from the last checkpoint to train again for 4 epochs, "
        "the loss is greater than the last recorded loss. What are the reasons?"
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "This file holds no optimizer." in found.said
    assert "eval()" not in found.said
    measured = "After resuming the validation accuracy drops a lot, why?"
    assert "eval()" in Answered(measured, tmp_path / "a.pth").said


# --- adapters and modules beside a model ----------------------------------------------


def test_layers_that_a_conversion_of_diffusers_left_over(tmp_path: Path) -> None:
    state = {}
    for layer in ("img_in", "time_in.in_layer", "guidance_in.in_layer"):
        state[f"{layer}.lora_A.weight"] = torch.ones(4, 8)
        state[f"{layer}.lora_B.weight"] = torch.ones(8, 4)
    save_file(state, tmp_path / "a.safetensors")
    text = (
        "ValueError: `original_state_dict` should be empty at this point but has "
        "original_state_dict.keys()=dict_keys(['guidance_in.in_layer.lora_A.weight', "
        "'guidance_in.in_layer.lora_B.weight'])."
    )
    found = Answered(text, tmp_path / "a.safetensors")
    assert "taken 4 of the 6 names" in found.said
    kept = load_file(found.run("ckpt slim"))
    assert kept.keys() == {name for name in state if "guidance" not in name}


def test_the_beginning_of_peft_inside_of_names(tmp_path: Path) -> None:
    begin = "base_model.model.blocks.{}.attn1.to_q"
    state = {}
    for number in range(60):
        name = f"transformer.{begin.format(number)}"
        state[f"{name}.lora_A.weight"] = torch.ones(2, 4)
        state[f"{name}.lora_B.weight"] = torch.ones(4, 2)
    save_file(state, tmp_path / "a.safetensors")
    modules = ", ".join(f"'{begin.format(number)}'" for number in range(60))
    text = f"ValueError: Target modules {{{modules}}} not found in the base model."
    found = Answered(text, tmp_path / "a.safetensors")
    assert "the trainer saved the wrapped model" in found.said
    renamed = load_file(found.run("ckpt rename"))
    assert "transformer.blocks.0.attn1.to_q.lora_A.weight" in renamed
    assert not any("base_model" in name for name in renamed)


def test_modules_of_the_training_take_bytes(tmp_path: Path) -> None:
    state = {
        "encoder.weight": torch.ones(64, 64),
        "encoder_m.weight": torch.ones(64, 64),
        "image_queue": torch.ones(64, 64),
        "arm_m.weight": torch.ones(64, 64),
    }
    torch.save({"model": state}, tmp_path / "a.pth")
    text = "The published file is 800MB, but I get a checkpoint of 1.69GB. Why?"
    found = Answered(text, tmp_path / "a.pth")
    assert "By their names encoder_m, image_queue (32.0 KiB) are of" in found.said
    slim = torch.load(found.run("ckpt slim"))
    assert slim.keys() == {"encoder.weight", "arm_m.weight"}  # no arm: no copy


def test_layers_without_a_place_in_the_words_of_mmcv(tmp_path: Path) -> None:
    state = {f"backbone.layer.{k}.weight": torch.ones(2, 2) for k in range(9)}
    state["head.weight"] = torch.ones(2, 2)
    state["backbone.extra.conv_mask.weight"] = torch.ones(1, 2, 1, 1)
    torch.save({"state_dict": state, "meta": {}}, tmp_path / "a.pth")
    text = (
        "The model and loaded state dict do not match exactly\n\n"
        "unexpected key in source state_dict: backbone.extra.conv_mask.weight\n"
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "another version or variant of the program, or was built" in found.said


def test_the_best_of_a_run_in_keys_of_old_lightning(tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(2, 2)}
    best = {"checkpoint_callback_best_model_path": "/out/epoch=1.ckpt"}
    torch.save({"state_dict": state, "epoch": 7, **best}, tmp_path / "last.ckpt")
    text = "There were two checkpoints when I finished training, are they the same?"
    found = Answered(text, tmp_path / "last.ckpt")
    assert "ModelCheckpoint recorded epoch=1.ckpt as the best" in found.said
    torch.save({"state_dict": state, "epoch": 1, **best}, tmp_path / "epoch=1.ckpt")
    text = "Is it the best model or the last one?"
    assert "that is this file" in Answered(text, tmp_path / "epoch=1.ckpt").said


BLOCK = ("norm1.weight", "attn.qkv.weight", "ls1.gamma", "mlp.fc1.weight")


def vision(chunk: int = 0, begin: str = "") -> dict[str, torch.Tensor]:
    """A vision transformer of six blocks, with its blocks in chunks or without."""
    state = {f"{begin}cls_token": torch.ones(1, 1, 4)}
    for block in range(6):
        place = f"{block // chunk}.{block}" if chunk else f"{block}"
        state |= {
            f"{begin}blocks.{place}.{leaf}": torch.full((4,), float(block))
            for leaf in BLOCK
        }
    return state


def test_a_file_with_its_blocks_in_chunks(tmp_path: Path) -> None:
    teacher = {**vision(2, "backbone."), "dino_head.mlp.0.weight": torch.ones(4)}
    torch.save({"teacher": teacher}, tmp_path / "a.pth")
    text = unexpected("teacher", missing=tuple(vision()))
    found = Answered(text, tmp_path / "a.pth")
    assert "The whole checkpoint was loaded into the model: hand its teacher" in (
        found.said
    )
    state = torch.load(found.run("ckpt rename"))["teacher"]
    for name, value in vision().items():
        assert torch.equal(state[name], value)


def test_a_model_with_its_blocks_in_chunks(tmp_path: Path) -> None:
    torch.save(vision(), tmp_path / "a.pth")
    plain = [name for name in vision() if name.startswith("blocks")]
    chunked = {name: row for name, row in vision(3).items() if name[:6] == "blocks"}
    found = Answered(unexpected(*plain, missing=tuple(chunked)), tmp_path / "a.pth")
    assert "block_chunks=0" in found.said
    state = torch.load(found.run("ckpt rename"))
    for name, value in chunked.items():
        assert torch.equal(state[name], value)


def test_a_list_of_names_that_was_cut_short_is_paired_by_no_number(
    tmp_path: Path,
) -> None:
    torch.save(vision(), tmp_path / "a.pth")
    text = (
        "RuntimeError: Error(s) in loading state_dict for DinoVisionTransformer:\n"
        '\tMissing key(s) in state_dict: "blocks.0.0.norm1.weight", '
        '"blocks.0.0.attn.qkv.weight", "blocks.0.0.ls1.gamma", ...\n'
        'Unexpected key(s) in state_dict: "blocks.1.norm1.weight", '
        '"blocks.1.attn.qkv.weight", "blocks.1.ls1.gamma", ...'
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "block_chunks=0" in found.said
    assert "blocks.1.* → blocks.0.0.*" not in found.said


def test_numbers_that_begin_anew_are_no_chunks(tmp_path: Path) -> None:
    state = {f"stages.{n}.norm.weight": torch.ones(4) for n in range(4)}
    torch.save(state, tmp_path / "a.pth")
    asked = [f"stages.{n}.{m}.norm.weight" for n in range(2) for m in range(2)]
    found = Answered(unexpected(*state, missing=tuple(asked)), tmp_path / "a.pth")
    assert "CHUNK" not in found.said


def test_a_list_of_layers_that_is_a_module_deeper_has_no_chunks(tmp_path: Path) -> None:
    state = {f"mlp.{n}.{leaf}": torch.ones(4) for n in (0, 1) for leaf in ("g", "b")}
    torch.save(state, tmp_path / "a.pth")
    asked = tuple(name.replace("mlp.", "mlp.0.") for name in state)
    found = Answered(unexpected(*state, missing=asked), tmp_path / "a.pth")
    assert "CHUNK" not in found.said


def test_an_object_that_the_program_does_not_have(tmp_path: Path) -> None:
    optimizer = {"state": {}, "param_groups": []}
    state = {"pipeline": {"_model.means": torch.ones(4, 3)}, "step": 9}
    state["optimizers"] = {"xyz": optimizer, "camera_opt": optimizer}
    torch.save(state, tmp_path / "a.ckpt")
    text = (
        'File "/nerfstudio/engine/optimizers.py", line 201, in load_optimizers\n'
        "    self.optimizers[k].load_state_dict(v)\n"
        "KeyError: 'xyz'\n"
    )
    found = Answered(text, tmp_path / "a.ckpt")
    assert "optimizers of this file has a state for xyz" in found.said
    assert "in the file are xyz, camera_opt" in found.said
    assert "at another place" not in found.said
    # A program that takes it by its own name looks for it elsewhere.
    text = "    state = loaded['xyz']\nKeyError: 'xyz'\n"
    assert "at another place" in Answered(text, tmp_path / "a.ckpt").said


@pytest.mark.parametrize("kind", ["classification_headers", "head.cls_layers"])
def test_scores_of_several_boxes(kind: str, tmp_path: Path) -> None:
    boxes = kind.replace("classification", "regression").replace("cls", "bbox")
    state, rows = {}, []
    for level, count in enumerate((4, 6)):
        state[f"{boxes}.{level}.weight"] = torch.ones(4 * count, 8, 3, 3)
        state[f"{kind}.{level}.weight"] = torch.ones(10 * count, 8, 3, 3)
        name = f"{kind}.{level}.weight"
        rows.append((name, (10 * count, 8, 3, 3), (9 * count, 8, 3, 3)))
    torch.save(state, tmp_path / "a.pth")
    found = Answered(sizes(*rows), tmp_path / "a.pth")
    assert "build the model with its 10 classes, and not 9" in found.said
    assert "scores 4 boxes at each place" in found.said


def test_scores_beside_no_boxes_are_counted_as_they_are(tmp_path: Path) -> None:
    state = {"cls_score.weight": torch.ones(6, 8), "bbox_pred.weight": torch.ones(4, 8)}
    torch.save(state, tmp_path / "a.pth")
    found = Answered(sizes(("cls_score.weight", (6, 8), (4, 8))), tmp_path / "a.pth")
    assert "boxes at each place" not in found.said
    assert "build the model with its 6" in found.said


def branches(count: int, width: int) -> dict[str, torch.Tensor]:
    """A network of points with branches for so many scales."""
    names = [f"SA_modules.{n}.mlps.{m}" for n in range(2) for m in range(count)]
    state = {f"{name}.layer0.conv.weight": torch.ones(4, 4, 1, 1) for name in names}
    return {**state, "FP_modules.0.mlp.layer0.conv.weight": torch.ones(4, width, 1, 1)}


@pytest.mark.parametrize("count", [1, 2])
def test_further_branches_give_other_inputs(count: int, tmp_path: Path) -> None:
    ours = branches(count, 8 * count)
    theirs = branches(3 - count, 8 * (3 - count))
    torch.save(ours, tmp_path / "a.pth")
    name = "FP_modules.0.mlp.layer0.conv.weight"
    lost = tuple(key for key in theirs if key not in ours)
    left = [key for key in ours if key not in theirs]
    text = unexpected(*left, missing=lost)
    rows = sizes((name, tuple(ours[name].shape), tuple(theirs[name].shape)))
    found = Answered(f"{text}\n{rows.partition(chr(10))[2]}", tmp_path / "a.pth")
    side = "model" if count == 1 else "file"
    assert f"the {side} has further branches" in found.said
    assert "SA_modules.0.mlps.1" in found.said
    assert "other features go in" not in found.said


@pytest.mark.parametrize(
    ("name", "here", "there", "is_of_points"),
    [
        ("sa1.conv_blocks.0.0.weight", 6, 3, True),
        ("sa1.conv_blocks.0.0.weight", 3, 6, True),
        ("sa1.conv_blocks.0.0.weight", 6, 4, False),
        ("sa1.conv_blocks.0.0.weight", 67, 64, False),
        ("encoder.0.weight", 6, 3, False),
    ],
)
def test_points_with_normals(
    name: str, here: int, there: int, is_of_points: bool, tmp_path: Path
) -> None:
    state = {name: torch.ones(32, here, 1, 1), "fc.weight": torch.ones(4, 32)}
    torch.save(state, tmp_path / "a.pth")
    row = (name, (32, here, 1, 1), (32, there, 1, 1))
    found = Answered(sizes(row), tmp_path / "a.pth")
    assert ("its normal or its colour" in found.said) is is_of_points


def test_weight_norm_under_another_name_of_its_layer(tmp_path: Path) -> None:
    state = {"encoder.pos_conv.0.weight_g": torch.ones(1, 1, 8)}
    state["encoder.pos_conv.0.weight_v"] = torch.ones(4, 1, 8)
    state["encoder.layers.0.k_proj.weight"] = torch.ones(4, 4)
    torch.save({"model": state}, tmp_path / "a.pt")
    place = "hubert.encoder.pos_conv_embed.conv.parametrizations.weight"
    asked = (f"{place}.original0", f"{place}.original1")
    held = ("encoder.pos_conv.0.weight_g", "encoder.pos_conv.0.weight_v")
    found = Answered(unexpected(*held, missing=asked), tmp_path / "a.pt")
    assert "in its two namings" in found.said
    assert "stays as it was built" not in found.said
    renamed = torch.load(found.run("ckpt rename"))["model"]
    assert [tuple(renamed[name].shape) for name in asked] == [(1, 1, 8), (4, 1, 8)]


def test_an_item_of_a_list_is_no_setting(tmp_path: Path) -> None:
    weights = {"enc_p.emb_phone.weight": torch.ones(192, 768)}
    state = {"weight": weights, "config": [1025, 32, 768, 2], "version": "v2"}
    torch.save(state, tmp_path / "a.pth")
    text = sizes(("enc_p.emb_phone.weight", (192, 768), (192, 256)))
    found = Answered(text, tmp_path / "a.pth")
    assert "config.2" not in found.said
    assert "This file records version v2 of its model" in found.said
    # A version that is a number is one of a library.
    torch.save({**state, "version": "2.1.0"}, tmp_path / "b.pth")
    assert "records version" not in Answered(text, tmp_path / "b.pth").said
