"""Situations of programs that run or convert whole models: an architecture, a format,
a setting or names that they do not take.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered, raised, write_folder
from ggufs import F32, Tensor, gguf
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def llama(begin: str = "model.", *, has_head: bool = True) -> dict[str, torch.Tensor]:
    """The weights of a small language model in the names of transformers."""
    state = {f"{begin}embed_tokens.weight": torch.rand(40, 8)}
    if has_head:
        state["lm_head.weight"] = torch.rand(40, 8)
    for layer in range(2):
        for letter in "qkvo":
            name = f"{begin}layers.{layer}.self_attn.{letter}_proj.weight"
            state[name] = torch.rand(8, 8)
    return state


def sizes(name: str, held: list[int], built: list[int]) -> str:
    """A line of torch for two shapes."""
    return (
        f"\tsize mismatch for {name}: copying a param with shape torch.Size({held}) "
        f"from checkpoint, the shape in current model is torch.Size({built}).\n"
    )


# --- architectures and formats --------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'Error: unsupported architecture "DeepseekV3ForCausalLM"',
        (
            'level=ERROR msg="error converting from safetensors" error="unsupported '
            'architecture \\"DeepseekV3ForCausalLM\\""'
        ),
        (
            "ValueError: Model architectures ['DeepseekV3ForCausalLM'] are not "
            "supported for now."
        ),
        "ERROR:hf-to-gguf:Model DeepseekV3ForCausalLM is not supported",
    ],
)
def test_an_architecture_that_a_program_does_not_know(
    text: str, tmp_path: Path
) -> None:
    config = {"architectures": ["DeepseekV3ForCausalLM"]}
    found = Answered(text, write_folder(tmp_path / "a", llama(), **config))
    assert found.code == 0
    assert "config.json says DeepseekV3ForCausalLM" in found.said
    assert "no code for this architecture" in found.said
    config = {"architectures": ["LlamaForCausalLM"]}
    found = Answered(text, write_folder(tmp_path / "b", llama(), **config))
    assert "another folder was loaded" in found.said
    assert "no code for this architecture" not in found.said


@pytest.mark.parametrize(
    "text", ["Error: invalid file magic", "Error: unsupported content type: unknown"]
)
def test_a_program_that_reads_gguf(text: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", llama())
    found = Answered(text, folder / "model.safetensors")
    assert "the program reads GGUF" in found.said
    assert "no config.json lies beside it" in found.said
    (folder / "config.json").write_text("{}")
    found = Answered(text, folder / "model.safetensors")
    assert "in it; config.json lies beside it" in found.said


def test_the_length_of_heads(tmp_path: Path) -> None:
    text = (
        "error loading model hyperparameters: invalid n_rot: 160, expected 128\n"
        "llama_load_model_from_file: failed to load model"
    )
    config = {"hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128}
    found = Answered(text, write_folder(tmp_path / "a", llama(), **config))
    assert "config.json has head_dim = 128" in found.said and "is 160" in found.said
    config["head_dim"] = 64
    found = Answered(text, write_folder(tmp_path / "b", llama(), **config))
    assert "head_dim" not in found.said


def test_a_loader_that_takes_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    state = llama()
    names = sorted(state)
    places = {}
    for number, part in enumerate((names[:4], names[4:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, folder / file)
        places.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    text = (
        "FileNotFoundError: Could not find a model in a with a name in "
        "model.safetensors. Please specify the argument model_basename to use a "
        "custom file name."
    )
    found = Answered(text, folder)
    assert found.kind == "no-file"
    assert set(load_file(found.run("ckpt convert"))) == set(state)


# --- names of a program's own ---------------------------------------------------------


def test_tensors_that_a_converter_did_not_make(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", llama())
    text = (
        "RuntimeError: Required but not provided tensors:"
        "{'transformer.layers.0.attention.qkv.per_channel_scale', "
        "'transformer.layers.1.mlp.fc.per_channel_scale'}"
    )
    found = Answered(text, folder)
    assert found.code == 0 and "end with per_channel_scale" in found.said
    assert "weights of this file are plain" in found.said
    found = Answered(text.replace("per_channel_scale", "weight"), folder)
    assert "end with weight" in found.said and "plain" not in found.said


def test_a_map_of_devices_that_leaves_a_parameter_out(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", llama())
    text = (
        "ValueError: The device_map provided does not give any device for the "
        "following parameters: {}"
    )
    found = Answered(text.format("backbone.unembed.weight"), folder)
    assert "This file does not have it" in found.said
    assert 'device_map["backbone.unembed"] = 0' in found.said
    assert "This file has it." in Answered(text.format("lm_head.weight"), folder).said


def test_a_parameter_without_a_value(tmp_path: Path) -> None:
    text = "ValueError: weight is on the meta device, we need a `value` to put in on 0."
    found = Answered(text, write_folder(tmp_path / "a", llama(has_head=False)))
    assert found.code == 0 and "names of this file begin with model" in found.said
    assert "model.tie_weights() before" in found.said
    found = Answered(text, write_folder(tmp_path / "b", llama()))
    assert "tie_weights" not in found.said


def test_a_list_with_spaces_between_its_names(tmp_path: Path) -> None:
    state = llama(has_head=False)
    config = {"architectures": ["Gemma3ForConditionalGeneration"]}
    folder = write_folder(tmp_path / "a", state, **config)
    text = f"ValueError: Received parameters not in model: {' '.join(state)}."
    found = Answered(text, folder)
    assert found.kind == "keys" and "any of the 9 names" in found.said
    written = load_file(found.run("ckpt rename"))
    assert set(written) == {f"language_model.{name}" for name in state}
    few = " ".join(list(state)[:5])
    found = Answered(f"ValueError: Received parameters not in model: {few}.", folder)
    assert "any of the" not in found.said and len(found.names) == 5


def test_a_layer_that_lacks_inside_of_a_head_is_no_new_head(tmp_path: Path) -> None:
    state = llama()
    for part in ("linear_1", "linear_2"):
        state[f"multi_modal_projector.{part}.weight"] = torch.rand(8, 8)
        state[f"multi_modal_projector.{part}.bias"] = torch.rand(8)
    for layer in range(12):
        state[f"vision_tower.layers.{layer}.fc.weight"] = torch.rand(4, 4)
    folder = write_folder(tmp_path / "a", state)
    text = (
        "ValueError: Missing 2 parameters: \nmulti_modal_projector.layer_norm.bias,\n"
        "multi_modal_projector.layer_norm.weight."
    )
    found = Answered(text, folder)
    assert "head for a task" not in found.said
    assert "has linear_1, linear_2 here, and no layer_norm" in found.said
    assert len(found.names) == 2
    other = Answered(text, write_folder(tmp_path / "b", llama()))
    assert "has linear_1" not in other.said


# --- tables ---------------------------------------------------------------------------


def test_the_width_of_a_table_is_no_input(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"prefix_encoder.embedding.weight": torch.rand(8, 96)}, path)
    lacking = ", ".join(f'"trans.{part}"' for part in ("0.weight", "0.bias"))
    text = (
        "RuntimeError: Error(s) in loading state_dict for PrefixEncoder:\n"
        f"\tMissing key(s) in state_dict: {lacking}. \n"
        + sizes("embedding.weight", [8, 96], [8, 4])
    )
    found = Answered(text, path)
    assert "inputs" not in found.said
    assert "variants of one program, by an option" in found.said


def test_added_tokens_in_an_adapter(tmp_path: Path) -> None:
    module = "base_model.model.model.embed_tokens"
    state = {
        f"{module}.base_layer.weight": torch.rand(45, 8),
        f"{module}.lora_embedding_A": torch.rand(4, 45),
        f"{module}.lora_embedding_B": torch.rand(8, 4),
    }
    save_file(state, tmp_path / "adapter_model.safetensors")
    text = (
        "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n"
        + sizes(f"{module}.base_layer.weight", [45, 8], [40, 8])
        + sizes(f"{module}.lora_embedding_A.default", [4, 45], [4, 40])
    )
    found = Answered(text, tmp_path / "adapter_model.safetensors")
    assert "vocabulary has 45 rows" in found.said
    assert "model.resize_token_embeddings(45)" in found.said
    assert "go into the model again" not in found.said


# --- torch ----------------------------------------------------------------------------


def test_an_object_in_the_place_of_a_path(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "a.pt")
    model: Any = nn.Linear(2, 2)
    text = raised(lambda: torch.load(model, tmp_path / "a.pt"))
    found = Answered(text, tmp_path / "a.pt")
    assert "an object of Linear" in found.said
    assert "w" in found.loaded()


# --- files that are another thing -----------------------------------------------------


def test_the_first_bytes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([], [Tensor("token_embd.weight", (2, 2), F32, bytes(16))]))
    text = "error loading model: unknown (magic, version) combination: 46554747, 2"
    found = Answered(text, path)
    assert "The program is older than this format" in found.said
    text = "gguf_init_from_file: invalid magic number 67676a74"
    assert "another file was loaded" in Answered(text, path).said
    old = tmp_path / "old.bin"
    old.write_bytes(b"tjgg" + (3).to_bytes(4, "little") + bytes(64))
    assert "convert_llama_ggml_to_gguf.py" in Answered(text, old).said
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<!DOCTYPE html>\n<html></html>\n")
    text = "gguf_init_from_file: invalid magic number 4f44213c"
    assert "/resolve/" in Answered(text, page).said


def test_a_tensor_in_a_dict_beside_the_model(tmp_path: Path) -> None:
    state = {
        "model": {"encoder.weight": torch.rand(2, 2)},
        "generator": {"linear.weight": torch.rand(4, 2)},
    }
    torch.save(state, tmp_path / "a.pt")
    text = "ValueError: Missing key in checkpoint: generator.linear.weight"
    found = Answered(text, tmp_path / "a.pt")
    assert 'at ["generator"]["linear.weight"]' in found.said


def test_an_output_layer_that_settings_tie(tmp_path: Path) -> None:
    state = {"tgt_emb.embeddings.weight": torch.rand(4, 2)}
    folder = write_folder(tmp_path / "m", state, share_decoder_embeddings=True)
    text = "Missing key in safetensors checkpoint: generator.weight"
    said = Answered(text, folder).said
    assert "is the same tensor as tgt_emb.embeddings.weight" in said


def test_a_buffer_that_a_model_computes(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": {"layers.0.wq.weight": torch.rand(2, 2)}}
    dcp.save(state, checkpoint_id=str(tmp_path / "step-0"), no_dist=True)
    text = "RuntimeError: Missing key in checkpoint state_dict: model.freqs_cis."
    found = Answered(text, tmp_path / "step-0")
    assert "the model computes such a buffer" in found.said
    assert "allow_partial_load=True" in found.commands[0]
    save_file(llama(), tmp_path / "a.safetensors")
    found = Answered(
        "Traceback (most recent call last):\n"
        '  File "a.py", line 2, in load\n'
        "    params.pop('freqs_cis')\n"
        "KeyError: 'freqs_cis'",
        tmp_path / "a.safetensors",
    )
    assert "It is no weight: a model computes it" in found.said


@pytest.mark.parametrize(
    ("held", "built", "said"),
    [
        (8, 2, "no heads share them"),
        (2, 8, "so that heads share them"),
        (4, 2, "4 rows in the checkpoint and 2 in the model"),
    ],
)
def test_heads_of_keys_and_values(
    held: int, built: int, said: str, tmp_path: Path
) -> None:
    begin = "layers.0.attention."
    shapes = {"wq": 8, "wk": held, "wv": held}
    state = {f"{begin}{name}.weight": torch.rand(n, 8) for name, n in shapes.items()}
    torch.save(state, tmp_path / "a.pt")
    text = "RuntimeError: Error(s) in loading state_dict for Transformer:\n" + "".join(
        sizes(f"{begin}{name}.weight", [held, 8], [built, 8]) for name in ("wk", "wv")
    )
    found = Answered(text, tmp_path / "a.pt")
    assert said in found.said
    assert "num_key_value_heads" in found.said
    assert "load_into" not in found.said


def test_names_of_meta_for_a_reader_of_transformers(tmp_path: Path) -> None:
    state = {"tok_embeddings.weight": torch.rand(4, 2)}
    state |= {f"layers.0.attention.{n}.weight": torch.rand(2, 2) for n in ("wq", "wk")}
    torch.save(state, tmp_path / "a.pt")
    text = (
        "Exception: Error converting the state dict. Found unexpected key: "
        '"tok_embeddings.weight". Please make sure you\'re loading a checkpoint with '
        "the right format. "
    )
    found = Answered(text, tmp_path / "a.pt")
    assert "FullModelMetaCheckpointer" in found.said
    assert "whole module" not in found.said


def test_ranks_of_verl_without_their_settings(tmp_path: Path) -> None:
    folder = tmp_path / "actor"
    folder.mkdir()
    for rank in range(2):
        path = folder / f"model_world_size_2_rank_{rank}.pt"
        torch.save({"a": torch.rand(2)}, path)
    text = (
        "FileNotFoundError: ckpt/global_step_1/actor/fsdp_config.json does not exist."
    )
    assert '{"FSDP_version": 1, "world_size": 2}' in Answered(text, folder).said
