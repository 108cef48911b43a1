"""Situations of public threads that were rebuilt before anything was looked up: sizes of
another config, names typed by hand, two files of which one has the parts of the other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered, listed, weights
from inside import folder_of
from process import ckpt
from safetensors.torch import load_file, save_file

pytestmark = [*oracle.QUIET, pytest.mark.slow]

State = dict[str, torch.Tensor]


def refused(file: State, model: State) -> str:
    """The text of torch for a load of one state dict into the model of another one."""
    rows = ["RuntimeError: Error(s) in loading state_dict for Net:"]
    missing = [key for key in model if key not in file]
    unexpected = [key for key in file if key not in model]
    if missing:
        rows.append(f"\tMissing key(s) in state_dict: {listed(missing)}")
    if unexpected:
        rows.append(f"\tUnexpected key(s) in state_dict: {listed(unexpected)}")
    for key, value in file.items():
        if key in model and value.shape != model[key].shape:
            rows.append(
                f"\tsize mismatch for {key}: copying a param with shape {value.shape} "
                f"from checkpoint, the shape in current model is {model[key].shape}."
            )
    return "\n".join(rows)


def told(file: Any, model: State, path: Path, key: str | None = None) -> Answered:
    """The answer about a file that was loaded into a model of other shapes."""
    torch.save(file if key is None else {key: file}, path)
    return Answered(refused(file, model), path)


def asked(text: str, *files: Path) -> str:
    """The sentences and the commands of an answer about two files."""
    names = [file.name for file in files]
    done = ckpt("explain", text, *names, "--json", cwd=files[0].parent)
    assert done.code == 0, done.err
    rows = json.loads(done.out)["answer"]["statements"]
    return " ".join(f"{row['text']} {row['command'] or ''}" for row in rows)


# --- sizes ----------------------------------------------------------------------------


def test_sizes_of_another_config_are_told_together(tmp_path: Path) -> None:
    def net(channels: int, growth: int, bins: int) -> State:
        state: State = {}
        for level in range(3):
            width = channels + level * growth
            place = f"encoder_blocks.{level}"
            state[f"{place}.tfc.weight"] = torch.randn(width, width, 3, 3)
            state[f"{place}.tdf.weight"] = torch.randn(bins >> level, width)
            state[f"{place}.down.weight"] = torch.randn(width + growth, width, 2, 2)
        return state

    found = told(net(8, 8, 64), net(8, 4, 16), tmp_path / "a.ckpt")
    assert "sizes differ, in 8 tensors of encoder_blocks" in found.said
    assert "no one factor gives them all" in found.said
    assert "config that goes with this file" in found.said
    # The same factor in all of them is another size of one architecture.
    wide = told(net(8, 8, 64), net(16, 16, 128), tmp_path / "b.ckpt")
    assert "no one factor" not in wide.said


def test_a_size_and_its_number_are_two_settings(tmp_path: Path) -> None:
    def speech(mels: int, steps: int) -> State:
        return weights(
            embedding__weight=(9, 8),
            decoder__prenet__weight=(16, mels),
            decoder__proj__weight=(mels * steps, 16),
            decoder__proj__bias=(mels * steps,),
            decoder__stop__weight=(1, 16),
            last__weight=(12, 16),
        )

    model = {**speech(35, 20), "speaker_embedding.weight": torch.randn(4, 8)}
    found = told(speech(80, 7), model, tmp_path / "a.pth", "model")
    assert "560 is 7 times 80, and 700 is 20 times 35" in found.said
    assert "perhaps two settings differ" in found.said


@pytest.mark.parametrize(("here", "there"), [(1, 3), (3, 1), (2, 3)])
def test_items_whose_outputs_are_joined_are_no_depth(
    here: int, there: int, tmp_path: Path
) -> None:
    def net(count: int) -> State:
        state: State = {}
        for number in range(count):
            place = f"branches.{number}.layers.0"
            state.update(
                weights(**{f"{place}.{leaf}": (6,) for leaf in ("a", "b", "c")})
            )
            state[f"{place}.weight"] = torch.randn(6, 3)
        state["stream.weight"] = torch.randn(8, 6 * count)
        return state

    found = told(net(here), net(there), tmp_path / "a.pt")
    assert "The depth differs" not in found.said
    assert "stand side by side" in found.said
    assert f"takes {6 * here} and {6 * there}, as many times" in found.said


def test_the_width_between_two_layers_is_no_alphabet(tmp_path: Path) -> None:
    def net(width: int) -> State:
        return weights(
            gnn__conv1__bias=(width,),
            gnn__conv1__lin__weight=(width, 16),
            gnn__conv2__lin__weight=(8, width),
            mlp__weight=(5, 8),
        )

    path = tmp_path / "a.ckpt"
    settings = {"hyper_parameters": {"gcn_dimension": 64}}
    torch.save({"state_dict": net(64), **settings}, path)
    found = Answered(refused(net(64), net(32)), path)
    assert "what the first gives the next one takes" in found.said
    assert "characters" not in found.said and "gcn_dimension" in found.said
    torch.save({"state_dict": net(64), "hyper_parameters": {"lr": 0.1}}, path)
    found = Answered(refused(net(64), net(32)), path)
    # The settings are named also where none of them is the size itself.
    assert "Compare them with those that the model was built with" in found.said
    (command,) = [row for row in found.commands if row.startswith("ckpt get")]
    done = ckpt(*command.split()[1:], cwd=tmp_path)
    assert done.code == 0 and b"lr" in done.out


def test_shapes_that_were_typed_by_hand_are_read(tmp_path: Path) -> None:
    state = weights(
        encoder_proj__weight=(8, 32),
        decoder__attn_rnn__weight_ih=(24, 48),
        decoder__rnn_input__weight=(16, 40),
        decoder__stop_proj__weight=(1, 96),
    )
    torch.save({"model_state": state}, tmp_path / "a.pt")
    text = """Exception: Error(s) in loading state_dict for Tacotron：
size mismatch for encoder-proj.weight: copying a param writh shape torch. Size([8, 32]) from checkpoint, the shape in current model is torch. Size (8, 64]).
size mismatch for decoder. attn_rnn.weight.ih: copying a param with shape torch.
size([24, 487) from checkpoint, the shape in current model is torch. Size([24, 80])
size mismatch for decoder. rnn_input.weight: copying a param with shape torch.
size (16, 40]) from checkpoint, the shape in current model is torch. Size ([16, 72)
"""
    found = Answered(text, tmp_path / "a.pt")
    assert "encoder_proj.weight takes 32 in the checkpoint and 64" in found.said
    assert "decoder.rnn_input.weight takes 40" in found.said
    assert "not in this file" not in found.said and "487" not in found.page


def test_stages_of_a_backbone_are_no_inputs(tmp_path: Path) -> None:
    def net(*widths: int) -> State:
        state: State = {}
        before = 16
        for number, width in enumerate(widths):
            for layer, taken in (("0", before), ("3", width)):
                place = f"backbone.blocks.{number}.{layer}"
                state[f"{place}.weight"] = torch.randn(width, taken, 3, 3)
                state[f"{place}.running_mean"] = torch.randn(width)
            state[f"neck.deblocks.{number}.0.weight"] = torch.randn(8, width, 1, 1)
            before = width
        return state

    file = {"middle_encoder.conv.0.weight": torch.randn(4, 4), **net(32, 64)}
    model = {"voxel_encoder.pfn.0.weight": torch.randn(4, 4), **net(16, 32, 64)}
    found = told(file, model, tmp_path / "a.pth", "state_dict")
    assert "several inputs" not in found.said
    assert "size of the same architecture" not in found.said
    assert "The file alone has middle_encoder, and the model alone" in found.said


def test_two_language_models_are_told_by_their_vocabularies(tmp_path: Path) -> None:
    def bert(words: int, positions: int, kinds: int) -> State:
        place = "embedder.bert_model.embeddings"
        return {
            f"{place}.word_embeddings.weight": torch.randn(words, 2),
            f"{place}.position_embeddings.weight": torch.randn(positions, 2),
            f"{place}.token_type_embeddings.weight": torch.randn(kinds, 2),
            "encoder.0.weight": torch.randn(2, 2),
        }

    path = tmp_path / "bert.th"
    found = told(bert(28996, 512, 2), bert(50266, 514, 1), path)
    assert "as bert-base-cased" in found.said and "with 1 more" in found.said
    assert "most likely of two different language models" in found.said
    assert "resize_token_embeddings" not in found.said
    assert "tables have other numbers" not in found.said
    assert "interpolate nothing" in found.said
    # A few tokens more are the same model.
    near = told(bert(50265, 514, 1), bert(50267, 514, 1), path)
    assert "two different" not in near.said and "resize_token" in near.said


def test_statistics_of_inputs_follow_the_first_layer(tmp_path: Path) -> None:
    def policy(inputs: int) -> State:
        state = {
            f"obs_normalizer._{part}": torch.zeros(1, inputs)
            for part in ("mean", "var", "std")
        }
        return state | weights(mlp__0__weight=(16, inputs), mlp__2__weight=(4, 16))

    found = told(policy(111), policy(99), tmp_path / "a.pt", "actor_state_dict")
    assert "mlp.0.weight takes 111 in the checkpoint and 99" in found.said
    assert "obs_normalizer has the statistics of as many" in found.said


def test_layers_that_differ_are_named_with_their_sizes(tmp_path: Path) -> None:
    def scene(eyes: int, hidden: int, taken: int) -> State:
        return weights(
            audio__0__weight=(8, 8),
            eye_att_net__0__weight=(hidden, 36),
            eye_att_net__1__weight=(eyes, hidden),
            sigma_net__0__weight=(64, taken),
            sigma_net__1__weight=(65, 64),
        )

    found = told(scene(7, 64, 75), scene(1, 16, 69), tmp_path / "a.pth", "model")
    assert "sigma_net.0 takes 75 in the checkpoint and 69" in found.said
    assert "eye_att_net.1 gives 7 in the checkpoint and 1" in found.said


@pytest.mark.parametrize(("here", "there"), [(3, 63), (63, 3)])
def test_a_positional_encoding_is_told_by_its_size(
    here: int, there: int, tmp_path: Path
) -> None:
    def nerf(points: int) -> State:
        views = 3 if points == 3 else 27
        return weights(
            mlp_feat__0__weight=(32, points),
            mlp_feat__4__weight=(32, 32 + points),
            mlp_rgb__0__weight=(16, 32 + views),
            mlp_rgb__1__weight=(3, 16),
        )

    found = told(nerf(here), nerf(there), tmp_path / "a.ckpt")
    side = "model" if there > here else "checkpoint"
    assert "63 is 3 and the sines and cosines of 3 at 10 frequencies" in found.said
    assert f"the {side} has a positional encoding" in found.said


def test_outputs_without_a_cause_are_of_a_setting(tmp_path: Path) -> None:
    def scene(outputs: int) -> State:
        state: State = {}
        for number in range(2):
            state |= weights(
                **{
                    f"MLP_{number}.input.weight": (8, 4),
                    f"MLP_{number}.rgb_layer.weight": (outputs, 8),
                    f"MLP_{number}.rgb_layer.bias": (outputs,),
                }
            )
        return state

    found = told(scene(256), scene(48), tmp_path / "a.ckpt", "model")
    assert "A setting of the program gives it (how many classes" in found.said

    def grid(features: int, outputs: int) -> State:
        return weights(
            mlp__encoder__embeddings=(99, features),
            mlp__density__0__weight=(64, 6 * features),
            mlp__density__2__weight=(outputs, 64),
            mlp__density__2__bias=(outputs,),
        )

    found = told(grid(1, 1), grid(4, 256), tmp_path / "b.ckpt")
    assert "1 outputs where" not in found.said
    assert "mlp.density.0 takes 6 in the checkpoint and 24 in the model" in found.said


def test_a_size_beside_a_table_is_told(tmp_path: Path) -> None:
    def speech(symbols: int, bins: int) -> State:
        return weights(
            enc_p__text_embedding__weight=(symbols, 8),
            ref_enc__spectral__0__fc__weight=(16, bins),
            dec__weight=(8, 8),
        )

    found = told(speech(322, 1025), speech(732, 704), tmp_path / "a.pth", "weight")
    assert "has 322 rows" in found.said
    assert "Beside that ref_enc.spectral.0.fc takes 1,025 in the checkpoint" in (
        found.said
    )
    assert "One size alone" not in found.said


def test_a_deeper_and_wider_model_has_no_items_side_by_side(tmp_path: Path) -> None:
    def vit(depth: int, width: int) -> State:
        state = weights(patch__weight=(width, 3, 4, 4))
        for number in range(depth):
            for layer in ("qkv", "proj", "fc"):
                place = f"blocks.{number}.{layer}"
                state[f"{place}.weight"] = torch.randn(width, width)
                state[f"{place}.bias"] = torch.randn(width)
        return {**state, "head.weight": torch.randn(9, width)}

    found = told(vit(2, 16), vit(4, 32), tmp_path / "a.pt")
    assert "side by side" not in found.said and "The depth differs" in found.said


def test_other_channels_are_no_positional_encoding(tmp_path: Path) -> None:
    def net(channels: int, width: int) -> State:
        return weights(
            stem__weight=(8, channels, 3, 3),
            middle__weight=(8, width, 3, 3),
            last__weight=(8, width + channels, 3, 3),
            fc__weight=(9, 8),
        )

    found = told(net(3, 5), net(27, 7), tmp_path / "a.pt")
    assert "positional encoding" not in found.said


def test_a_part_that_is_wider_is_no_other_size_of_all(tmp_path: Path) -> None:
    def built(width: int) -> State:
        state = weights(encoder__conv__weight=(8, 4), encoder__fc__weight=(4, 8))
        state.update(weights(refine__sa__in__weight=(3 * width, width)))
        state.update(weights(refine__sa__out__weight=(width, width)))
        state.update(weights(refine__fc__weight=(2 * width, width)))
        state.update(weights(refine__fc__bias=(2 * width,)))
        return state

    found = told(built(8), built(32), tmp_path / "a.pth")
    assert "tensors of refine, by the same factor" in found.said
    assert "the message names nothing of encoder" in found.said
    assert "size of the same architecture" not in found.said


# --- names ----------------------------------------------------------------------------


def test_a_word_that_two_blocks_share_is_no_name(tmp_path: Path) -> None:
    file, model = weights(data_bn__weight=(4,)), weights(data_bn__weight=(4,))
    for number in range(3):
        place = f"backbone.{number}"
        for layer in ("qkv_conv", "attn_out", "data"):
            file[f"{place}.tcn1.{layer}.weight"] = torch.randn(4, 4)
        file[f"{place}.gcn1.PA"] = torch.randn(3, 4, 4)
        model[f"{place}.tcn1.conv.weight"] = torch.randn(4, 4, 9, 1)
        model[f"{place}.gcn1.conv.weight"] = torch.randn(4, 4)
    found = told(file, model, tmp_path / "a.pt")
    assert "there by other names" not in found.said and not found.commands
    assert "put its layers together otherwise" in found.said


def test_names_that_a_program_gave_itself_are_found_by_their_ends(
    tmp_path: Path,
) -> None:
    state = {}
    for part in ("question_model", "ctx_model"):
        for layer in ("embeddings.words", "pooler.dense"):
            state[f"{part}.{layer}.weight"] = torch.randn(4, 4)
            state[f"{part}.{layer}.bias"] = torch.randn(4)
    torch.save({"model_dict": state, "epoch": 3}, tmp_path / "a.pt")
    text = (
        "RuntimeError: Error(s) in loading state_dict for DPREncoder:\n\tUnexpected "
        'key(s) in state_dict: "bert_model.pooler.dense.weight", '
        '"bert_model.pooler.dense.bias". '
    )
    found = Answered(text, tmp_path / "a.pt")
    assert "Is it the file" not in found.said
    assert "question_model.pooler.dense.weight" in found.said
    assert "built without pooler.dense" in found.said


def test_the_one_key_of_an_old_torch_may_be_of_another_version(tmp_path: Path) -> None:
    names = [f"module.block1.conv_param.{number}.weight" for number in range(3)]
    state = {name: torch.randn(2, 2, 3, 3) for name in names}
    state = {"module.trans.weight": torch.randn(2, 3, 3, 3), **state}
    torch.save({"state_dict": state}, tmp_path / "a.tar")
    text = f"KeyError: 'unexpected key \"{names[1]}\" in state_dict'"
    found = Answered(text, tmp_path / "a.tar")
    assert "the file and the code are of two versions" in found.said
    # The first name has a place, so the model has the wrapper as well.
    assert "puts its attribute in front" not in found.page


def test_names_that_are_half_of_kohya_are_made_whole(tmp_path: Path) -> None:
    state = {}
    for number in range(2):
        for layer in ("cross_attn.k", "self_attn.norm.q"):
            place = f"lora_unet_blocks_{number}.{layer}"
            state[f"{place}.alpha"] = torch.tensor(4.0)
            state[f"{place}.lora_down.weight"] = torch.randn(4, 16)
            state[f"{place}.lora_up.weight"] = torch.randn(16, 4)
    save_file(state, tmp_path / "a.safetensors")
    text = "\n".join(f"lora key not loaded: {name}" for name in state)
    found = Answered(text, tmp_path / "a.safetensors")
    assert "are a mixture" in found.said
    assert "underscores in place of dots. A program" not in found.said
    names = load_file(found.run("ckpt rename")).keys()
    assert "lora_unet_blocks_1_self_attn_norm_q.lora_up.weight" in names
    assert "lora_unet_blocks_0_cross_attn_k.alpha" in names


def test_the_base_of_an_adapter_is_told_by_the_width_of_its_text(
    tmp_path: Path,
) -> None:
    state = {}
    for layer, width in (("attn1_to_k", 640), ("attn2_to_k", 2048)):
        place = f"lora_unet_output_blocks_5_1_transformer_blocks_0_{layer}"
        state[f"{place}.alpha"] = torch.tensor(4.0)
        state[f"{place}.lora_down.weight"] = torch.randn(4, width)
        state[f"{place}.lora_up.weight"] = torch.randn(640, 4)
    save_file(state, tmp_path / "a.safetensors")
    text = "\n".join(f"lora key not loaded: {name}" for name in state)
    found = Answered(text, tmp_path / "a.safetensors")
    assert "takes text of width 2,048, as SDXL has it" in found.said


def test_a_module_that_stands_twice_in_the_names(tmp_path: Path) -> None:
    names = [f"encoder.cbhg.banks.{number}.conv.weight" for number in range(3)]
    state = {name: torch.randn(2, 2) for name in names}
    state["decoder.weight"] = torch.randn(2, 2)
    torch.save({"model": state, "step": 3}, tmp_path / "a.tar")
    asked_for = [name.replace("cbhg", "cbhg.cbhg") for name in names]
    begin = "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s)"
    text = f'{begin} in state_dict: "{asked_for[0]}", "{asked_for[1]}" ...'
    found = Answered(text, tmp_path / "a.tar")
    assert "in this file without one word, cbhg" in found.said
    written = torch.load(found.run("ckpt rename"))["model"]
    assert written.keys() == {*asked_for, "decoder.weight"}
    # Names that are left out of a message may have no place either.
    text = f'{begin} in state_dict: "encoder.cbhg.extra.weight", ...'
    found = Answered(text, tmp_path / "a.tar")
    assert "have their place" not in found.said.replace("which layers have", "")
    assert "The lists of the message have dots" in found.said


def test_new_names_of_a_library_are_of_another_version(tmp_path: Path) -> None:
    file = weights(backbone__conv1__weight=(4, 3, 7, 7), backbone__bn1__weight=(4,))
    model = dict(file)
    for number in range(2):
        old = f"bbox_head.transformer.encoder.layers.{number}"
        new = f"encoder.layers.{number}"
        for theirs, ours in (
            ("attentions.0.attn.in_proj_weight", "self_attn.attn.in_proj_weight"),
            ("ffns.0.layers.0.0.weight", "ffn.layers.0.0.weight"),
            ("norms.0.weight", "norms.0.weight"),
        ):
            file[f"{old}.{theirs}"] = torch.randn(4, 4)
            model[f"{new}.{ours}"] = torch.randn(4, 4)
    file["bbox_head.fc_cls.weight"] = model["bbox_head.fc_cls.weight"] = torch.ones(
        9, 4
    )
    model["neck.convs.0.conv.weight"] = torch.randn(4, 4, 1, 1)
    meta = {"mmdet_version": "2.2.1"}
    torch.save({"meta": meta, "state_dict": file}, tmp_path / "detr.pth")
    lost = ", ".join(name for name in model if name not in file)
    over = ", ".join(name for name in file if name not in model)
    text = (
        "The model and loaded state dict do not match exactly\n\nunexpected key in "
        f"source state_dict: {over}\n\nmissing keys in source state_dict: {lost}\n"
    )
    found = Answered(text, tmp_path / "detr.pth")
    assert "of another library" not in found.said and "load_from" not in found.said
    assert "of another version than the one that saved" in found.said
    assert "meta.mmdet_version = 2.2.1" in found.said and not found.commands


def test_a_network_in_the_names_of_diffusers(tmp_path: Path) -> None:
    ours = ("conv_in", "down_blocks.0.conv1", "controlnet_mid_block", "mid_block.0")
    theirs = ("input_blocks.0.0", "zero_convs.0.0", "middle_block.0", "time_embed.0")
    file = {f"{layer}.weight": torch.randn(4, 4) for layer in ours}
    model = {f"{layer}.weight": torch.randn(4, 4) for layer in theirs}
    found = told(file, model, tmp_path / "a.bin")
    assert "are those of diffusers (a ControlNet)" in found.said
    assert "one network in two namings" in found.said


def test_lists_that_go_on_in_the_model_are_no_new_head(tmp_path: Path) -> None:
    def decoder(ups: int, blocks: int) -> State:
        state = weights(dec__conv_pre__weight=(4, 4))
        for number in range(ups):
            state[f"dec.ups.{number}.weight"] = torch.randn(4, 4)
        for number in range(blocks):
            state[f"dec.resblocks.{number}.convs1.0.weight"] = torch.randn(4, 4)
        return state

    model = {**decoder(5, 15), "enc_p.emb_pitch.weight": torch.randn(4, 4)}
    file = decoder(4, 12)
    torch.save({"model": file}, tmp_path / "G.pth")
    lost = [name for name in model if name not in file]
    text = "\n".join(f"INFO:root:{name} is not in the checkpoint" for name in lost)
    found = Answered(text, tmp_path / "G.pth")
    assert "dec.ups has 4 layers in the file and 5 in the model" in found.said
    assert "expected for a new head" not in found.said


def test_a_list_with_dots_inside_has_no_only_layer(tmp_path: Path) -> None:
    state = weights(first__weight=(4, 4), first__bias=(4,))
    state.update(
        weights(decoder__compress__weight=(4, 4), decoder__compress__bias=(4,))
    )
    state.update(weights(decoder__fc__weight=(4, 4), decoder__fc__bias=(4,)))
    torch.save({"generator": state, "epoch": 3}, tmp_path / "a.pth")
    text = (
        "RuntimeError: Error(s) in loading state_dict for Generator:\n"
        '   Missing key(s) in state_dict: "up.conv.weight", "up.conv.bias",...... '
        '"final.bias". \n   Unexpected key(s) in state_dict: '
        '"decoder.compress.weight", "decoder.compress.bias", ..."decoder.fc.bias" '
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "the only layer" not in found.said and found.commands == []
    assert "names are left out" in found.said


def test_a_backbone_alone_has_not_all_that_lacks(tmp_path: Path) -> None:
    state = weights(embed__weight=(4, 3), layers__0__weight=(4, 4))
    torch.save({"model": state}, tmp_path / "latest.pth")
    model = {f"backbone.{name}": value for name, value in state.items()}
    model.update(weights(decoder__conv__weight=(4, 4)))
    found = Answered(refused({"model": torch.zeros(1)}, model), tmp_path / "latest.pth")
    assert "By other names 2 of them are there" in found.said
    assert "The other 1 key (decoder) is not in it" in found.said


# --- keys that lack -------------------------------------------------------------------


def test_bare_weights_are_put_under_the_key_that_lacks(tmp_path: Path) -> None:
    state = weights(embed__weight=(4, 4), encoder__weight=(4, 4), head__bias=(4,))
    torch.save(state, tmp_path / "pretrain.pt")
    found = Answered("KeyError: 'model'", tmp_path / "pretrain.pt")
    (line,) = [row for row in found.commands if row.startswith("torch.save(")]
    with folder_of(tmp_path):
        exec(line, {"torch": torch})
    written = torch.load(tmp_path / "pretrain.model.pth")
    assert written.keys() == {"model"} and written["model"].keys() == state.keys()


def test_the_key_of_a_tensordict_is_read_out_of_its_sentence(tmp_path: Path) -> None:
    state = {"_encoder.weight": torch.randn(2, 2), "_Qs.params.0": torch.randn(2, 2)}
    torch.save({"model": state}, tmp_path / "a.pt")
    text = (
        "KeyError: \"You are trying to pop key `('__batch_size',)` which is not in "
        'dict without providing default value."\nKeyError: \'key "__batch_size" not '
        "found in TensorDict with keys [\\'0\\', \\'1\\']'"
    )
    found = Answered(text, tmp_path / "a.pt")
    assert "__batch_size is no weight: a TensorDict writes it" in found.said


def test_a_part_that_a_program_does_not_find(tmp_path: Path) -> None:
    text = "Exception: Cannot find a backbone module in the checkpoint."
    state = weights(conv1__weight=(4, 4), layer1__weight=(4, 4))
    torch.save({"state_dict": state, "author": "x"}, tmp_path / "a.pth")
    found = Answered(text, tmp_path / "a.pth")
    assert found.code == 0 and "begins with backbone" in found.said
    assert "taken out already" in found.said
    inner = {f"model.backbone.{name}": value for name, value in state.items()}
    torch.save({"state_dict": {**inner, "head.bias": torch.zeros(2)}}, tmp_path / "b")
    found = Answered(text, tmp_path / "b")
    assert "2 names of this file begin with model.backbone." in found.said
    (line,) = [row for row in found.commands if row.startswith("state = ")]
    model = torch.nn.Module()
    for name in ("conv1", "layer1"):
        model.add_module(name, torch.nn.Linear(4, 4, bias=False))
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert torch.equal(model.conv1.weight, state["conv1.weight"])


class Patched(torch.nn.Module):
    """A model whose methods a program binds to the object."""

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


def test_a_method_that_was_bound_to_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Patched()
    model.last = torch.nn.Linear(2, 2)
    model.__dict__["features"] = model.features
    torch.save(model, tmp_path / "a.pth")
    monkeypatch.delattr(Patched, "features")
    with pytest.raises(AttributeError) as caught:
        torch.load(tmp_path / "a.pth", weights_only=False)
    found = Answered(f"AttributeError: {caught.value}", tmp_path / "a.pth")
    assert "is a method that a program had bound to the object" in found.said
    written = torch.load(found.run("ckpt slim"))
    assert written.keys() == {"last.weight", "last.bias"}


# --- questions ------------------------------------------------------------------------


def test_parts_of_one_file_are_found_in_another(tmp_path: Path) -> None:
    image = weights(proj__weight=(8, 4), norm__bias=(4,))
    words = weights(**{"1.to_k_ip.weight": (4, 4), "3.to_k_ip.weight": (4, 4)})
    large = {f"image_proj_model.{name}": value for name, value in image.items()}
    large |= {f"adapter_modules.{name}": value for name, value in words.items()}
    for number in range(4):
        large[f"unet.blocks.{number}.weight"] = torch.randn(64, 64)
    torch.save(large, tmp_path / "pytorch_model.bin")
    torch.save({"image_proj": image, "ip_adapter": words}, tmp_path / "small.bin")
    text = "why is the size of the model I trained much larger than the pretrained one?"
    said = asked(text, tmp_path / "pytorch_model.bin", tmp_path / "small.bin")
    assert "image_proj (2 tensors) is image_proj_model.*" in said
    assert "What it has beside is unet 64.0 KiB" in said
    line = said[said.index("state = torch.load(") :].partition('"parts.pth")')[0]
    with folder_of(tmp_path):
        exec(f'{line}"parts.pth")', {"torch": torch})
    written = torch.load(tmp_path / "parts.pth")
    assert written["image_proj"].keys() == image.keys()
    assert written["ip_adapter"].keys() == words.keys()
    # Without a part of the other file there is nothing to say of both.
    torch.save({"a": weights(x__weight=(2, 2), y__weight=(2, 2))}, tmp_path / "b.bin")
    done = ckpt("explain", "are both the same?", "b.bin", "small.bin", cwd=tmp_path)
    assert done.code == 2 and b"nothing to compare" in done.err


def test_averages_are_known_by_a_name_without_a_mark(tmp_path: Path) -> None:
    state = weights(encoder__weight=(4, 4), decoder__weight=(4, 4))
    torch.save({"model": state}, tmp_path / "checkpoint5.pt")
    other = {name: value + 0.1 for name, value in state.items()}
    torch.save({"model": other}, tmp_path / "checkpointema5.pt")
    files = tmp_path / "checkpoint5.pt", tmp_path / "checkpointema5.pt"
    said = asked("What is the difference between both files?", *files)
    assert "checkpointema5.pt has the running averages (EMA)" in said
    assert "a program that loads one loads the other in its place" in said
    torch.save({"net": other}, tmp_path / "b.pt")
    said = asked("What is the difference between both?", files[0], tmp_path / "b.pt")
    assert "in its place" not in said


def test_an_optimizer_inside_of_a_state_is_told(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"]["__base_optimizer"] = inner
    saved = {"model": model.state_dict(), "optimizer": state, "scaler_state_dict": {}}
    torch.save({**saved, "epoch": 8}, tmp_path / "a.pth")
    text = "Training loss does not converge after reloading to continue training"
    found = Answered(text, tmp_path / "a.pth")
    assert "__base_optimizer is no state but an optimizer itself" in found.said
    # An empty state of a GradScaler is no normalizer of inputs.
    assert "scaled what the model gets" not in found.said


@pytest.mark.parametrize("state", [{}, {"scale": 65536.0, "growth_factor": 2.0}])
def test_the_scaler_of_losses_is_no_normalizer(
    state: dict[str, float], tmp_path: Path
) -> None:
    net = weights(fc__weight=(4, 4), fc__bias=(4,))
    torch.save({"model": net, "scaler": state, "epoch": 3}, tmp_path / "a.pth")
    text = "the accuracy is much worse after loading the model, why?"
    assert "scaled what the model" not in Answered(text, tmp_path / "a.pth").said
    torch.save({"model": net, "norm": {"mean": 0.5}}, tmp_path / "a.pth")
    assert "scaled what the model" in Answered(text, tmp_path / "a.pth").said


def test_the_network_that_is_meant_for_use_comes_first(tmp_path: Path) -> None:
    state: State = {}
    for part in ("student", "teacher"):
        for layer in ("backbone.0", "backbone.1", "dino_head"):
            state[f"ssl.{part}.{layer}.weight"] = torch.randn(2, 2)
    torch.save({"state_dict": state, "epoch": 9}, tmp_path / "last.ckpt")
    text = (
        "The checkpoint has ssl.student and ssl.teacher. For downstream tasks, which "
        "part should I use, the student or the teacher?"
    )
    found = Answered(text, tmp_path / "last.ckpt")
    assert "below ssl.teacher, beside" in found.said or (
        "below ssl.teacher. By their names" in found.said
    )
    assert "Its backbone alone, without dino_head" in found.said


def test_names_that_a_question_asks_for_in_vain(tmp_path: Path) -> None:
    state = weights(encoder__weight=(2, 2), decoder__weight=(2, 2))
    args = {"upstream": "hubert", "upstream_trainable": False}
    saved = {"Downstream": state, "Args": args, "boxes": torch.rand(5, 4)}
    torch.save({**saved, "Step": 4}, tmp_path / "a.ckpt")
    text = "the weights don't have the cls_decoder, is it important for my embedding?"
    found = Answered(text, tmp_path / "a.ckpt")
    assert "No key and no tensor of this file has cls_decoder" in found.said
    assert "has 1 parameter" not in found.said
    text = "how can we get the updated upstream model from this ckpt?"
    found = Answered(text, tmp_path / "a.ckpt")
    assert "Args.upstream = hubert, Args.upstream_trainable = False" in found.said
    text = "the keys contain boxes. Should I also consider to load the boxes?"
    found = Answered(text, tmp_path / "a.ckpt")
    assert "boxes is a tensor of [5, 4] at the root" in found.said
    # Words before `model` that say how it was made are no parts of it.
    torch.save({**saved, "Args": {"pretrained": True}}, tmp_path / "a.ckpt")
    text = "how do I load the pretrained model from this file?"
    assert "not in this file" not in Answered(text, tmp_path / "a.ckpt").said
    # A name that is there is no name that lacks.
    text = "Why does it not have the decoder.weight of the model?"
    assert "No key and no" not in Answered(text, tmp_path / "a.ckpt").said


def test_a_run_goes_on_from_the_file_with_the_optimizer(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save(model.state_dict(), tmp_path / "a_300.pth")
    saved = {"network": state, "optimizer": optimizer.state_dict(), "it": 300}
    torch.save(saved, tmp_path / "a_checkpoint.pth")
    text = "Which model should we choose? What is a_checkpoint.pth used for?"
    said = asked(text, tmp_path / "a_300.pth", tmp_path / "a_checkpoint.pth")
    assert "a run that was stopped goes on from a_checkpoint.pth" in said
    assert "with module. before the names" in said
    done = ckpt("slim", "a_checkpoint.pth", "--strip", "-o", "plain.pth", cwd=tmp_path)
    assert "ckpt slim a_checkpoint.pth --strip -o plain.pth" in said and not done.code
    plain = torch.load(tmp_path / "plain.pth")
    assert plain.keys() == model.state_dict().keys()


def test_two_files_without_a_frozen_tensor(tmp_path: Path) -> None:
    state = weights(embed__weight=(4, 4), head__weight=(9, 4))
    torch.save(state, tmp_path / "old.pt")
    tuned = {name: value + 0.1 for name, value in state.items()}
    torch.save({**tuned, "head.weight": torch.randn(3, 4)}, tmp_path / "new.pt")
    text = "Do you fix weights of embeddings, or are they further updated?"
    said = asked(text, tmp_path / "old.pt", tmp_path / "new.pt")
    assert "so none of these was frozen" in said
    torch.save({**state, "head.weight": tuned["head.weight"]}, tmp_path / "new.pt")
    said = asked(text, tmp_path / "old.pt", tmp_path / "new.pt")
    assert "none of these was frozen" not in said


def test_a_run_without_an_optimizer_is_told_how_to_go_on(tmp_path: Path) -> None:
    torch.save(weights(a__weight=(2, 2), b__weight=(2, 2)), tmp_path / "a.pth")
    text = (
        "The file has no epochs, iterations and optimizer states. How can I continue "
        "training from it?"
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "records no epoch" in found.said and "new moments" in found.said


def test_the_weights_are_taken_out_of_a_checkpoint(tmp_path: Path) -> None:
    state = weights(a__weight=(2, 2), b__weight=(2, 2))
    torch.save({"state_dicts": [state], "ep": 3}, tmp_path / "ckpt.pth")
    text = "I only see one ckpt.pth. How do I get the weights out of it?"
    found = Answered(text, tmp_path / "ckpt.pth")
    assert found.code == 0
    assert torch.load(found.run("ckpt slim")).keys() == state.keys()


def test_a_counter_by_another_name_is_told(tmp_path: Path) -> None:
    saved = {
        "state_dict": weights(a__weight=(2, 2), b__weight=(2, 2)),
        "meta": {"epochs_trained": 69, "wer": 10.5},
    }
    torch.save(saved, tmp_path / "a.pth")
    text = "Is it possible to know how many epochs the model was trained for?"
    found = Answered(text, tmp_path / "a.pth")
    assert "meta.epochs_trained = 69" in found.said
    assert "records no epoch" not in found.said


def test_models_in_one_file_are_compared(tmp_path: Path) -> None:
    state = weights(encoder__weight=(4, 4), decoder__weight=(4, 4))
    parts = {
        name: {"state_dict": {key: value + at for key, value in state.items()}}
        for at, name in enumerate(("gene", "cell"))
    }
    torch.save(parts, tmp_path / "models.ckpt")
    text = "Why are the weights of 'gene' different from 'cell'? Are they the same?"
    found = Answered(text, tmp_path / "models.ckpt")
    assert "gene, cell are 2 models of this file" in found.said or (
        "gene and cell are 2 models of this file" in found.said
    )
    for command in [row for row in found.commands if row.startswith("ckpt slim")]:
        assert ckpt(*command.split()[1:], cwd=tmp_path).code == 0
    (command,) = [row for row in found.commands if row.startswith("ckpt diff")]
    assert ckpt(*command.split()[1:], cwd=tmp_path).code == 1


@pytest.mark.parametrize("is_listed", [True, False])
def test_symbols_are_told_where_a_file_has_them(
    is_listed: bool, tmp_path: Path
) -> None:
    state = weights(conv__weight=(4, 4), generator__weight=(38, 4))
    listed = {"character": "abc xyz"} if is_listed else {}
    torch.save({"model": state, **listed}, tmp_path / "ocr.pth")
    found = Answered("does it include the space character?", tmp_path / "ocr.pth")
    if is_listed:
        assert "7 symbols, a space among them" in found.said
    else:
        assert "no list of symbols" in found.said and "38 outputs" in found.said
