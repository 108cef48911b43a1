"""Situations of loaders of language models and of adapters: what they were given, names
of other libraries, tensors that cannot be copied.
"""

from __future__ import annotations

import json
import pathlib
from pathlib import Path
from typing import Any

import ggufs
import oracle
import pytest
import safetensors.torch
import torch
from answered import Answered, raised, write_folder
from inside import folder_of
from process import ckpt
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def llama(begin: str = "", *, has_head: bool = True) -> dict[str, torch.Tensor]:
    """The weights of a small language model in the names of transformers."""
    state = {
        f"{begin}model.embed_tokens.weight": torch.rand(40, 8),
        f"{begin}model.norm.weight": torch.ones(8),
    }
    if has_head:
        state[f"{begin}lm_head.weight"] = torch.rand(40, 8)
    for layer in range(2):
        block = f"{begin}model.layers.{layer}"
        for letter in "qkvo":
            state[f"{block}.self_attn.{letter}_proj.weight"] = torch.rand(8, 8)
        state[f"{block}.mlp.up_proj.weight"] = torch.rand(16, 8)
        state[f"{block}.input_layernorm.weight"] = torch.ones(8)
    return state


def write_adapter(folder: Path, state: dict[str, torch.Tensor], **config: Any) -> Path:
    """Write a folder of an adapter of PEFT."""
    folder.mkdir()
    save_file(state, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


# --- tensors that cannot be copied ----------------------------------------------------


class _Documents(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        first = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
        self.all_docs = nn.ParameterList([first])


def test_whole_numbers_are_no_parameters_with_gradients(tmp_path: Path) -> None:
    torch.save(_Documents().state_dict(), tmp_path / "a.pt")
    text = (
        "RuntimeError: Error(s) in loading state_dict for FastFit:\n\tWhile copying the "
        'parameter named "all_docs.0", whose dimensions in the model are '
        "torch.Size([3]) and whose dimensions in the checkpoint are torch.Size([3]), an "
        "exception occurred : ('Only Tensors of floating point and complex dtype can "
        "require gradients',).\n"
    )
    found = Answered(text, tmp_path / "a.pt")
    assert found.kind == "keys" and found.code == 0
    assert "all_docs.0, of type int64 in this file" in found.said
    assert "requires_grad=False" in found.said
    floats = Answered(text.replace("all_docs.0", "head.weight"), tmp_path / "a.pt")
    assert "of type float32" in floats.said
    assert "whole numbers" not in floats.said and "Only Tensors of" in floats.said
    other = Answered(text.replace("all_docs.0", "docs.0"), tmp_path / "a.pt")
    assert "not in this file" in other.said


def test_a_view_that_torch_does_not_write_into(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(3, 4)}, tmp_path / "a.pt")
    model = nn.Module()
    model.register_buffer("w", torch.zeros(3, 1).expand(3, 4))
    state = torch.load(tmp_path / "a.pt")
    text = raised(lambda: model.load_state_dict(state))
    found = Answered(text, tmp_path / "a.pt")
    assert "expanded view" in found.said and ".contiguous()" in found.said


def test_shapes_of_old_torch_are_read(tmp_path: Path) -> None:
    torch.save({"norm.weight": torch.zeros(8)}, tmp_path / "a.pt")
    text = (
        "RuntimeError: While copying the parameter named norm.weight, whose dimensions "
        "in the model are torch.Size([16]) and whose dimensions in the checkpoint are "
        "torch.Size([8])."
    )
    found = Answered(text, tmp_path / "a.pt")
    assert "[8]" in found.page and "[16]" in found.page
    assert "8 in the checkpoint and 16 in the model" in found.said


# --- adapters -------------------------------------------------------------------------


def sizes(name: str, held: list[int], built: list[int]) -> str:
    """A line of torch for two shapes, as a console breaks it between words."""
    return (
        f"        size mismatch for base_model.model.h.{name}.weight: copying a param "
        f"with shape torch.Size({held}) from checkpoint, the shape in\ncurrent model "
        f"is torch.Size({built}).\n"
    )


def test_an_adapter_of_another_base(tmp_path: Path) -> None:
    state = {
        "base_model.model.h.0.q.lora_A.weight": torch.rand(4, 48),
        "base_model.model.h.0.q.lora_B.weight": torch.rand(48, 4),
    }
    folder = write_adapter(
        tmp_path / "a", state, r=4, base_model_name_or_path="open_llama_3b"
    )
    text = (
        "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n"
        + sizes("0.q.lora_A.default", [4, 48], [4, 32])
        + sizes("0.q.lora_B.default", [48, 4], [32, 4])
    )
    found = Answered(text, folder)
    assert "another base model" in found.said
    assert "48 inputs, and not 32 and 48 outputs, and not 32" in found.said
    assert "open_llama_3b" in found.said
    ranks = (
        "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n"
        + sizes("0.q.lora_A.default", [4, 48], [8, 48])
    )
    assert "another base model" not in Answered(ranks, folder).said


def test_lines_of_one_length_are_broken_between_words(tmp_path: Path) -> None:
    state = {}
    text = "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n"
    for layer in range(3):
        state[f"base_model.model.h.{layer}.q.lora_A.weight"] = torch.rand(4, 48)
        text += sizes(f"{layer}.q.lora_A.default", [4, 48], [8, 48])
    folder = write_adapter(tmp_path / "a", state, r=4)
    found = Answered(text, folder)
    assert "rank 4 (r)" in found.said and "rank 8" in found.said


def test_an_adapter_has_no_index(tmp_path: Path) -> None:
    state = {"base_model.model.h.0.q.lora_A.weight": torch.rand(4, 48)}
    folder = write_adapter(tmp_path / "checkpoint-10", state, r=4)
    text = (
        "ValueError: Can't find a checkpoint index (pytorch_model.bin.index.json or "
        "model.safetensors.index.json) in checkpoint-10."
    )
    found = Answered(text, folder)
    assert found.kind == "no-file" and "an adapter of PEFT" in found.said
    text = (
        "ValueError: Unrecognized model in checkpoint-10. Should have a `model_type` "
        "key in its config.json, or contain one of the following strings"
    )
    found = Answered(text, folder)
    assert found.code == 0 and "no config.json of a model" in found.said


def test_settings_without_the_type_of_a_model(tmp_path: Path) -> None:
    text = "ValueError: Unrecognized model in a. Should have a `model_type` key in its"
    folder = write_folder(tmp_path / "a", llama(), dim=8, n_layers=2)
    assert "its keys are dim, n_layers" in Answered(text, folder).said
    (folder / "config.json").write_text(json.dumps({"model_type": "new_model"}))
    assert "model_type = new_model" in Answered(text, folder).said
    (folder / "config.json").unlink()
    assert "No config.json" in Answered(text, folder).said


# --- names of other libraries ---------------------------------------------------------


def test_a_name_of_gguf_in_a_file_of_transformers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", llama(), model_type="qwen3_moe")
    text = (
        "    tensor = self.gguf_loader.safetensor_loader.load_tensor(key+'.weight')\n"
        "KeyError: 'Key {} not found in Safetensor files'"
    )
    found = Answered(text.format("output.weight"), folder)
    assert found.code == 0
    assert "output.weight is a name of GGUF" in found.said
    assert "By its name there it is lm_head.weight" in found.said
    found = Answered(text.format("blk.1.attn_q.weight"), folder)
    assert "it is model.layers.1.self_attn.q_proj.weight." in found.said
    found = Answered(text.format("model.layers.1.mlp.gate.weight"), folder)
    assert "GGUF" not in found.said and "not found in" not in found.said


def test_a_part_of_a_model_that_a_program_does_not_know(tmp_path: Path) -> None:
    state = llama("language_model.")
    state["vision_tower.layers.0.fc.weight"] = torch.rand(4, 4)
    folder = write_folder(tmp_path / "a", state, model_type="gemma3")
    name = "language_model.model.layers.1.input_layernorm.weight"
    found = Answered(f"ValueError: Only one key should be found: [] for {name}", folder)
    assert found.code == 0 and "begin with language_model (15)" in found.said
    renamed = load_file(found.run("ckpt rename"))
    assert name.removeprefix("language_model.") in renamed
    found = Answered(f"ValueError: NaN in {name}", folder)
    assert "several parts" not in found.said


@pytest.mark.parametrize("word", ["check_tensor_dims", "create_tensor"])
def test_a_vocabulary_is_no_model(word: str, tmp_path: Path) -> None:
    pairs: list[tuple[str, str, object]] = [
        ("general.architecture", "str", "gpt2"),
        ("tokenizer.ggml.tokens", "array", ("str", ["a", "b"])),
    ]
    text = f"llama_model_load: {word}: tensor 'token_embd.weight' not found"
    (tmp_path / "a.gguf").write_bytes(ggufs.gguf(pairs))
    found = Answered(text, tmp_path / "a.gguf")
    assert "settings and a vocabulary, and not one tensor" in found.said
    (tmp_path / "b.gguf").write_bytes(ggufs.gguf(pairs[:1]))
    assert "a vocabulary" not in Answered(text, tmp_path / "b.gguf").said


# --- what loaders were given ----------------------------------------------------------


def test_deepspeed_was_given_a_file(tmp_path: Path) -> None:
    torch.save({"state_dict": llama(), "meta": {"iter": 7}}, tmp_path / "iter_7.pth")
    text = (
        "  File deepspeed/runtime/state_dict_factory.py, line 168, in check_ckpt_list\n"
        "    assert len(self.ckpt_list) > 0\nAssertionError"
    )
    found = Answered(text, tmp_path / "iter_7.pth")
    assert found.code == 0 and "this is one file" in found.said
    assert "It holds no optimizer" in found.said
    assert "lm_head.weight" in found.loaded()


def test_weights_are_no_settings(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", llama())
    text = (
        "OSError: It looks like the config file at 'a/model.safetensors' is not a valid "
        "JSON file."
    )
    found = Answered(text, folder / "model.safetensors")
    assert "model.safetensors is this file" in found.said
    assert "No config.json lies beside it" in found.said
    (folder / "config.json").write_text("{}")
    found = Answered(text, folder / "model.safetensors")
    assert "config.json lies beside it: give the folder" in found.said


def test_a_file_system_without_maps(tmp_path: Path) -> None:
    save_file(llama(), tmp_path / "a.safetensors")
    found = Answered(
        "OSError: No such device (os error 19)", tmp_path / "a.safetensors"
    )
    assert found.code == 0 and "This file is whole" in found.said
    (line,) = [row for row in found.commands if row.startswith("import pathlib; ")]
    with folder_of(tmp_path):
        state = eval(
            line.removeprefix("import pathlib; "),
            {"safetensors": safetensors, "pathlib": pathlib},
        )
    assert "lm_head.weight" in state


def test_a_class_that_ties_what_a_file_lacks(tmp_path: Path) -> None:
    state = {"encoder.embed_tokens.weight": torch.rand(4, 2)}
    folder = write_folder(
        tmp_path / "a",
        state,
        model_type="t5",
        architectures=["T5EncoderModel"],
        transformers_version="4.57.0",
    )
    text = (
        "ValueError: This checkpoint seem corrupted. The tied weights mapping for this "
        "model specifies to tie shared.weight to decoder.embed_tokens.weight, but both "
        "are absent from the checkpoint, and we could not find another related tied "
        "weight for those keys"
    )
    found = Answered(text, folder)
    assert "there as encoder.embed_tokens.weight" in found.said
    assert "transformers.T5EncoderModel.from_pretrained" in found.said


# --- long lists -----------------------------------------------------------------------


def test_layers_of_a_list_fold(tmp_path: Path) -> None:
    state = {f"layers.{layer}.fc_weight": torch.rand(2) for layer in range(12)}
    torch.save({"head.weight": torch.rand(2), **state}, tmp_path / "a.pt")
    keys = ", ".join(f'"{name}"' for name in state)
    found = Answered(f"Unexpected key(s) in state_dict: {keys}. ", tmp_path / "a.pt")
    assert len(found.names) == 12
    assert "  layers.0-11.fc_weight  ×12\n" in found.page
    assert "layers.3.fc_weight" not in found.page


# --- tensors that a program asks for, and those that it does not take -----------------

CONFIG = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}


def test_a_tensor_that_a_merge_asks_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", llama(), **CONFIG)
    text = "RuntimeError: Tensor {} required but not present in model a"
    found = Answered(text.format("model.final_layernorm.weight"), folder)
    assert found.code == 0
    assert "model has embed_tokens, layers, norm, and no final_layernorm" in found.said
    assert "no layer of the file has one" in found.said
    assert "config.json says MistralForCausalLM" in found.said
    found = Answered(text.format("model.layers.1.self_attn.k_norm.weight"), folder)
    assert "self_attn has k_proj, o_proj, q_proj, v_proj, and no k_norm" in found.said
    found = Answered(text.format("model.layers.7.self_attn.k_proj.weight"), folder)
    assert "model.layers has 0, 1, and no 7: the file has other layers" in found.said
    state = llama()
    del state["model.layers.0.mlp.up_proj.weight"]
    other = write_folder(tmp_path / "b", state, **CONFIG)
    found = Answered(text.format("model.layers.0.mlp.up_proj.weight"), other)
    assert "no mlp, which other layers have" in found.said
    found = Answered(text.format("model.norm.weight"), folder)
    assert "another file was loaded" in found.said


def test_an_output_layer_that_is_tied(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", llama(has_head=False), **CONFIG)
    found = Answered("ValueError:  ## Could not find lm_head.* in model", folder)
    assert "same tensor as model.embed_tokens.weight" in found.said
    ran = [row for row in found.commands if row.startswith("state = ")]
    with folder_of(tmp_path):
        exec(ran[0], {"safetensors": safetensors})
    written = load_file(tmp_path / "model.untied.safetensors")
    assert written["lm_head.weight"].equal(written["model.embed_tokens.weight"])
    assert len(written) == len(llama())
    whole = write_folder(tmp_path / "b", llama(), **CONFIG)
    found = Answered("ValueError:  ## Could not find lm_head.* in model", whole)
    assert "same tensor" not in found.said


def test_the_beginning_of_names_is_no_tensor(tmp_path: Path) -> None:
    state = {"embeddings.word.weight": torch.rand(4, 2), "pooler.bias": torch.rand(2)}
    folder = write_folder(tmp_path / "a", state, architectures=["BertModel"])
    text = (
        '    embeddings = f.get_tensor("embeddings")\n'
        "SafetensorError: File does not contain tensor embeddings"
    )
    found = Answered(text, folder)
    assert "beginning of embeddings.word.weight" in found.said
    assert "BertModel" in found.said and "misses a name that" not in found.said


def matrices() -> dict[str, torch.Tensor]:
    """The matrices of LoRA for two layers of `llama`."""
    layer = "base_model.model.model.layers.0.self_attn"
    return {
        f"{layer}.{part}_proj.lora_{side}.weight": torch.rand(*shape)
        for part in ("q", "v")
        for side, shape in (("A", (4, 8)), ("B", (8, 4)))
    }


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: base_model.model.lm_head.weight is unsupported LoRA weight",
        (
            "ERROR:lora-to-gguf:Unexpected name 'base_model.model.lm_head.weight': Not "
            "a lora_A or lora_B tensor\nERROR:lora-to-gguf:Embeddings is present"
        ),
    ],
)
def test_whole_layers_beside_lora(text: str, tmp_path: Path) -> None:
    state = {**matrices(), "base_model.model.lm_head.weight": torch.rand(40, 8)}
    settings = {"r": 4, "lora_alpha": 4, "base_model_name_or_path": "org/base"}
    folder = write_adapter(tmp_path / "a", state, **settings)
    base = write_folder(tmp_path / "base", llama(), **CONFIG)
    found = Answered(text, folder)
    assert found.code == 0
    assert "Beside 4 tensors of LoRA this adapter has whole layers" in found.said
    assert "ckpt merge BASE a -o merged --with-config" in found.said
    words = ["merge", base.name, "a", "-o", "merged", "--with-config"]
    assert ckpt(*words, cwd=tmp_path).code == 0
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert merged["lm_head.weight"].equal(state["base_model.model.lm_head.weight"])


def test_weights_of_the_base_in_an_adapter(tmp_path: Path) -> None:
    head = "base_model.model.lm_head"
    state = {
        **matrices(),
        f"{head}.base_layer.weight": torch.rand(40, 8),
        f"{head}.lora_A.weight": torch.rand(4, 8),
        f"{head}.lora_B.weight": torch.rand(40, 4),
    }
    folder = write_adapter(tmp_path / "a", state, r=4)
    text = f"ValueError: {head}.base_layer.weight is unsupported LoRA weight"
    found = Answered(text, folder)
    assert "weight of the base model itself" in found.said
    written = load_file(found.run("ckpt slim") / "adapter_model.safetensors")
    assert set(written) == {name for name in state if "base_layer" not in name}
    found = Answered(f"Error: unrecognized tensor {head}.lora_A.weight", folder)
    assert "a matrix of LoRA for lm_head" in found.said
    other = Answered(f"Error: unrecognized tensor {head}.bias", folder)
    assert "LoRA for" not in other.said and "whole layers" not in other.said


def test_a_head_that_the_config_ties(tmp_path: Path) -> None:
    ties = {**CONFIG, "tie_word_embeddings": True}
    folder = write_folder(tmp_path / "a", llama(), **ties)
    text = "    param = params_dict[name]\nKeyError: 'lm_head.weight'"
    found = Answered(text, folder)
    assert "tie_word_embeddings = true" in found.said
    written = load_file(found.run("ckpt slim") / "model.safetensors")
    assert set(written) == set(llama()) - {"lm_head.weight"}
    ties["tie_word_embeddings"] = False
    other = Answered(text, write_folder(tmp_path / "b", llama(), **ties))
    assert "a tensor of exactly this name" in other.said
    assert "builds lm_head alone" not in other.said


# --- quantized and plain --------------------------------------------------------------


def test_a_config_of_quantized_weights_beside_plain_ones(tmp_path: Path) -> None:
    text = (
        "ValueError: Supplied state dict for layers.0.mlp.down_proj.weight does not "
        "contain `bitsandbytes__*` and possibly other `quantized_stats` components."
    )
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    config = {**CONFIG, "quantization_config": settings}
    found = Answered(text, write_folder(tmp_path / "a", llama(), **config))
    assert "Take quantization_config out of config.json" in found.said
    found = Answered(text, write_folder(tmp_path / "b", llama(), **CONFIG))
    assert "Take quantization_config out" not in found.said


def test_settings_of_a_quantizer_beside_the_config(tmp_path: Path) -> None:
    state = llama()
    for name in [name for name in state if "_proj.weight" in name]:
        state[name] = state[name].to(torch.float8_e4m3fn)
        state[name.replace(".weight", ".weight_scale")] = torch.tensor(0.5)
        state[name.replace(".weight", ".input_scale")] = torch.tensor(0.5)
    folder = write_folder(tmp_path / "a", state, **CONFIG)
    text = "KeyError: 'model.layers.1.mlp.gate_up_proj.input_scale'"
    assert "take config.json from where" in Answered(text, folder).said
    (folder / "hf_quant_config.json").write_text("{}")
    found = Answered(text, folder)
    assert "--quantization modelopt" in found.said
    assert "take config.json from where" not in found.said


# --- parts that a file lacks ----------------------------------------------------------


def test_random_numbers_that_are_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "mp_rank_00_model_states.pt"
    torch.save({"module": llama(), "iteration": 7}, path)
    text = (
        "[RANK 0] Unable to load optimizer from checkpoint /c/7, exiting. Specify "
        "--no-load-rng or --finetune to prevent attempting to load the random state."
    )
    found = Answered(text, path)
    assert found.code == 0
    assert "does not hold the state of random numbers. --no-load-rng" in found.said
    torch.save({"module": llama(), "random_rng_state": 3}, path)
    assert "state of random numbers" not in Answered(text, path).said


def test_a_model_without_a_value_head(tmp_path: Path) -> None:
    text = (
        "WARNING:root:A <class 'LlamaForCausalLM'> model is loaded from 'a', and no "
        "v_head weight is found. This IS expected if you are not resuming PPO training."
    )
    found = Answered(text, write_folder(tmp_path / "a", llama(), **CONFIG))
    assert found.kind == "valuehead" and "the message is expected" in found.said


def test_a_setting_that_a_config_lacks(tmp_path: Path) -> None:
    text = (
        "    Error(s):   Key 'speaker_model_cfg' is not in struct\n"
        "        full_key: speaker_model_cfg\n        object_type=dict"
    )
    path = tmp_path / "a.ckpt"
    settings = {"sample_rate": 16000, "target": "models.Diar"}
    torch.save({"state_dict": llama(), "hyper_parameters": settings}, path)
    found = Answered(text, path)
    assert "(hyper_parameters) have no speaker_model_cfg" in found.said
    assert "sample_rate, target" in found.said
    settings["speaker_model_cfg"] = "x"
    torch.save({"state_dict": llama(), "hyper_parameters": settings}, path)
    assert "is a setting in this file, below hyper_parameters" in (
        Answered(text, path).said
    )


def test_a_bare_name_of_a_file_that_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    settings = {"config_file": "encoder_config.json"}
    torch.save({"state_dict": llama(), "hyper_parameters": settings}, path)
    text = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"
    found = Answered(text.format("encoder_config.json"), path)
    assert "stands in this file at hyper_parameters.config_file" in found.said
    found = Answered(text.format("other_config.json"), path)
    assert "stands in this file" not in found.said


@pytest.mark.parametrize(
    "text",
    [
        (
            "HFValidationError: Repo id must be in the form 'repo_name' or "
            "'namespace/repo_name': '/x/ppo_model'. Use `repo_type` argument if needed."
        ),
        (
            "OSError: /x/ppo_model is not a local folder and is not a valid model "
            "identifier listed on 'https://huggingface.co/models'"
        ),
    ],
)
def test_a_path_that_is_taken_for_a_name_of_the_hub(text: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "ppo_model", llama(), **CONFIG)
    found = Answered(text, folder)
    assert "for the program /x/ppo_model is none" in found.said
    assert "A folder of this name is here" in found.said
    found = Answered(text, folder / "model.safetensors")
    assert "from_pretrained takes the folder" in found.said


def test_a_plain_model_for_sentence_transformers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", llama(), **CONFIG)
    found = Answered("KeyError: '__version__'", folder)
    assert "sentence-transformers before 2" in found.said
    assert 'models.Transformer("a")' in " ".join(found.commands)
    assert "No file of this folder is called" not in found.said


def test_positions_are_said_once(tmp_path: Path) -> None:
    state = {"embeddings.position_embeddings.weight": torch.rand(512, 4)}
    folder = write_folder(tmp_path / "a", state, max_position_embeddings=512)
    text = (
        "size mismatch for embeddings.position_embeddings.weight: copying a param with "
        "shape torch.Size([512, 4]) from checkpoint, the shape in current model is "
        "torch.Size([128, 4])."
    )
    found = Answered(text, folder)
    assert "config.max_position_embeddings" in found.said
    assert "rows in the checkpoint" not in found.said
    assert "Load what fits" not in found.said


# --- formats that a message is not about ----------------------------------------------

TOO_OLD = (
    "RuntimeError: version_ <= kMaxSupportedFileFormatVersion INTERNAL ASSERT FAILED. "
    "Attempted to read a PyTorch file with version 10, but the maximum supported "
    "version for reading is 5."
)
NOT_MAPPED = (
    "RuntimeError: mmap can only be used with files saved with "
    "`torch.save(_use_new_zipfile_serialization=True), please torch.save"
)


def test_a_reader_of_zip_files_and_a_file_of_another_format(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    found = Answered(TOO_OLD, tmp_path / "a.safetensors")
    assert "is about the zip format of torch: another file was loaded" in found.said
    assert not found.commands
    torch.save({"w": torch.ones(2)}, tmp_path / "z.pth")
    assert "--format torch-legacy" in found_command(TOO_OLD, tmp_path / "z.pth")
    legacy = tmp_path / "l.pth"
    torch.save({"w": torch.ones(2)}, legacy, _use_new_zipfile_serialization=False)
    found = Answered(TOO_OLD, legacy)
    assert "which torch 1.5 and older read" in found.said


def found_command(text: str, path: Path) -> str:
    (command,) = Answered(text, path).commands
    return command


def test_a_mapped_load_of_each_format(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "z.pth")
    found = Answered(NOT_MAPPED, tmp_path / "z.pth")
    assert "which mmap=True takes" in found.said and not found.commands
    legacy = tmp_path / "l.pth"
    torch.save({"w": torch.ones(2)}, legacy, _use_new_zipfile_serialization=False)
    assert "ckpt convert" in found_command(NOT_MAPPED, legacy)
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "p.pt"))
    found = Answered(NOT_MAPPED, tmp_path / "p.pt")
    assert "takes no mmap=True" in found.said
    assert found.commands == ['torch.jit.load("p.pt", map_location="cpu")']
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    found = Answered(NOT_MAPPED, tmp_path / "a.safetensors")
    assert "another file was loaded" in found.said and not found.commands


def test_values_that_heads_do_not_share(tmp_path: Path) -> None:
    state = llama()
    for name in list(state):
        if name.endswith("v_proj.weight"):
            state[name] = torch.rand(2, 8)
    save_file(state, tmp_path / "a.safetensors")
    lines = [
        f"size mismatch for model.layers.{layer}.self_attn.v_proj.weight: copying a "
        "param with shape torch.Size([2, 8]) from checkpoint, the shape in current "
        "model is torch.Size([8, 8])."
        for layer in range(2)
    ]
    found = Answered("\n".join(lines), tmp_path / "a.safetensors")
    assert "2 rows for them and 8 for queries" in found.said


def test_a_file_without_tensors_is_no_projector(tmp_path: Path) -> None:
    torch.save({"a": 1, "b": {}}, tmp_path / "a.pth")
    text = "ValueError: Can't find 'adapter_config.json' at '/x'"
    assert "projector" not in Answered(text, tmp_path / "a.pth").said
