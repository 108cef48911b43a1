"""The line that opens a folder as its model: only where config.json was written by the
package that has the class.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from inside import inside
from safetensors.torch import save_file

pytestmark = oracle.QUIET

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "transformers_version": "4.57.0",
}
UNET = {"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.35.0"}


def a_folder(
    path: Path,
    config: dict[str, Any],
    file: str = "model.safetensors",
    prefix: str = "",
) -> None:
    path.mkdir(parents=True)
    weights = {
        f"{prefix}model.embed_tokens.weight": torch.ones(4, 2),
        f"{prefix}lm_head.weight": torch.ones(4, 2),
    }
    if file.endswith(".bin"):
        torch.save(weights, path / file)
    else:
        save_file(weights, path / file)
    (path / "config.json").write_text(json.dumps(config))


def line_of(path: Path) -> str | None:
    document = json.loads(inside("inspect", path.name, "--json", cwd=path.parent).out)
    assert document["load"] is not None
    found: str | None = document["load_model"]
    return found


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_model_of_transformers(file: str, tmp_path: Path) -> None:
    a_folder(tmp_path / "base", LLAMA, file)
    assert (
        line_of(tmp_path / "base")
        == 'transformers.LlamaForCausalLM.from_pretrained("base")'
    )
    lines = inside("inspect", "base", cwd=tmp_path).lines
    at = lines.index('          transformers.LlamaForCausalLM.from_pretrained("base")')
    assert (
        lines[at - 1].startswith("  loads   safe")
        and lines[at + 1] == "          or its tensors alone:"
    )


@pytest.mark.parametrize(
    ("config", "file", "line"),
    [
        ("LLAMA", "model.fp16.safetensors", 'variant="fp16")'),
        ("LLAMA", "pytorch_model.bf16.bin", 'variant="bf16")'),
        ("UNET", "diffusion_pytorch_model.non_ema.safetensors", 'variant="non_ema")'),
        ("UNET", "model.fp16.safetensors", None),
    ],
)
def test_a_variant_is_asked_for_by_its_name(
    config: str, file: str, line: str | None, tmp_path: Path
) -> None:
    """Without it from_pretrained finds no weights in the folder."""
    a_folder(tmp_path / "base", {"LLAMA": LLAMA, "UNET": UNET}[config], file)

    found = line_of(tmp_path / "base")

    assert (found is None) if line is None else (found or "").endswith(f'base", {line}')


def test_the_variant_of_shards_is_asked_for(tmp_path: Path) -> None:
    shard = "model.fp16-00001-of-00001.safetensors"
    a_folder(tmp_path / "base", LLAMA, shard)
    index = {
        "weight_map": {"model.embed_tokens.weight": shard, "lm_head.weight": shard}
    }
    path = tmp_path / "base/model.safetensors.index.fp16.json"
    path.write_text(json.dumps(index))

    assert (line_of(tmp_path / "base") or "").endswith('base", variant="fp16")')


def test_a_part_of_diffusers(tmp_path: Path) -> None:
    a_folder(tmp_path / "unet", UNET, "diffusion_pytorch_model.safetensors")
    assert (
        line_of(tmp_path / "unet")
        == 'diffusers.UNet2DConditionModel.from_pretrained("unet")'
    )


@pytest.mark.parametrize(
    "config",
    [
        {},
        {**LLAMA, "auto_map": {"AutoModel": "modeling_x.Net"}},
        {**LLAMA, "architectures": ["os.system"]},
        {**LLAMA, "architectures": ["One", "Two"]},
        {**LLAMA, "architectures": "LlamaForCausalLM"},
        {**LLAMA, "architectures": [3]},
        {**LLAMA, "architectures": ["TransfoXLTokenizer"]},
        {**LLAMA, "architectures": ["RagRetriever"]},
        {**LLAMA, "architectures": ["AutoModelForCausalLM"]},
        {key: value for key, value in LLAMA.items() if key != "transformers_version"},
        UNET,
    ],
)
def test_what_names_no_class_of_the_package(
    config: dict[str, Any], tmp_path: Path
) -> None:
    a_folder(tmp_path / "base", config)
    assert line_of(tmp_path / "base") is None


def test_names_that_the_class_does_not_have(tmp_path: Path) -> None:
    a_folder(tmp_path / "base", LLAMA, prefix="_orig_mod.")
    assert line_of(tmp_path / "base") is None


def an_adapter(
    path: Path, config: dict[str, Any], file: str = "adapter_model.safetensors"
) -> None:
    path.mkdir()
    weights = {
        "base_model.model.q.lora_A.weight": torch.ones(2, 4),
        "base_model.model.q.lora_B.weight": torch.ones(4, 2),
    }
    if file.endswith(".bin"):
        torch.save(weights, path / file)
    else:
        save_file(weights, path / file)
    (path / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_needs_its_base(file: str, tmp_path: Path) -> None:
    config = {
        "peft_type": "LORA",
        "r": 2,
        "base_model_name_or_path": "meta-llama/Llama-2-7b",
    }
    an_adapter(tmp_path / "lora", config, file)
    line = (
        'peft.PeftModel.from_pretrained(base, "lora")  # base is '
        '"meta-llama/Llama-2-7b"'
    )
    assert line_of(tmp_path / "lora") == line
    assert f"          {line}" in inside("inspect", "lora", cwd=tmp_path).lines


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"peft_type": "LORA"}, 'peft.PeftModel.from_pretrained(base, "lora")'),
        (
            {"peft_type": "LORA", "base_model_name_or_path": 3},
            'peft.PeftModel.from_pretrained(base, "lora")',
        ),
        (
            {"peft_type": "LORA", "base_model_name_or_path": "x\nimport os"},
            'peft.PeftModel.from_pretrained(base, "lora")  # base is "x\\nimport os"',
        ),
        ({"r": 2}, None),
    ],
)
def test_the_base_of_an_adapter(
    config: dict[str, Any], line: str | None, tmp_path: Path
) -> None:
    an_adapter(tmp_path / "lora", config)
    assert line_of(tmp_path / "lora") == line


LORA = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": 2}


def load_of(path: Path) -> tuple[str | None, str | None]:
    """(the line that opens a folder as a model, the note about its weights)."""
    document = json.loads(inside("inspect", path.name, "--json", cwd=path.parent).out)
    assert document["load"].startswith("safetensors.torch.load_file")
    return document["load_model"], document["load_note"]


@pytest.mark.parametrize(
    "odd",
    [
        {"attn_implementation": "someone/kernel"},
        {"attn_implementation": {"text_config": "someone/kernel"}},
        {"_attn_implementation": "./kernel"},
        {"experts_implementation": 3},
        {"text_config": {"attn_implementation": "someone/kernel@main:attend"}},
        {"backbone": "code", "backbone_kwargs": {"trust_remote_code": True}},
        {"text_config": {"auto_map": {"AutoModel": "modeling.Net"}}},
        {"auto_map": {"AutoModel": "modeling.Net"}},
        {"parts": [{"trust_remote_code": 1}]},
        {"_attn_implementation_internal": "someone/kernel"},
        {"text_config": {"_experts_implementation_internal": "someone/kernel"}},
        {"attribute_map": {"odd": "_attn_implementation_internal"}},
        {"transformers_weights": "other.safetensors"},
        {"backbone": "net", "backbone_kwargs": {"checkpoint_path": "net.pth"}},
        {"model_args": {"checkpoint_path": "net"}},
        {"backbone": "hf-hub:net"},
        {"vision_tower": "someone/vision"},
        {"parts": [["local-dir:net"]]},
    ],
)
def test_a_config_that_names_code_gets_no_line(
    odd: dict[str, Any], tmp_path: Path
) -> None:
    a_folder(tmp_path / "base", LLAMA | odd)
    line, note = load_of(tmp_path / "base")
    assert line is None and note is not None and "names code" in note
    lines = inside("inspect", "base", cwd=tmp_path).lines
    assert not any("from_pretrained" in line or "safe:" in line for line in lines)


@pytest.mark.parametrize(
    "usual",
    [
        {"attn_implementation": "flash_attention_2"},
        {"attn_implementation": None},
        {"attn_implementation": {"": "sdpa", "vision_config": "eager"}},
        {"_name_or_path": "meta-llama/Llama-2-7b"},
        {"trust_remote_code": False},
        {"id2label": {"0": "a/b"}},
        {"task_specific_params": {"translation": {"prefix": "en/de: "}}},
        {"eos_token": "</s>", "hidden_act": "gelu", "dtype": "bfloat16"},
        {"quantization_config": {"meta": {"uri": "https://x.y/z"}, "bits": 4}},
        {"quantization_config": {"ignore": ["re:.*gate$", "lm_head"]}},
        {"text_config": {"_name_or_path": "someone/text"}},
    ],
)
def test_what_configs_usually_say_is_no_code(
    usual: dict[str, Any], tmp_path: Path
) -> None:
    a_folder(tmp_path / "base", LLAMA | usual)
    line, note = load_of(tmp_path / "base")
    assert line == 'transformers.LlamaForCausalLM.from_pretrained("base")'
    assert note is None


def test_shards_that_diffusers_takes_before_one_file_get_no_line(
    tmp_path: Path,
) -> None:
    """diffusers opens the shards of an index, and ckpt shows the one file."""
    stem = "diffusion_pytorch_model"
    for number, index in enumerate((None, f"{stem}.safetensors.index.json")):
        folder = tmp_path / f"unet{number}"
        a_folder(folder, UNET, f"{stem}.safetensors")
        if index is not None:
            (folder / index).write_text(
                json.dumps({"weight_map": {"a": f"{stem}-00001-of-00001.safetensors"}})
            )
        assert (line_of(folder) is None) == (index is not None)


def test_an_adapter_that_names_code_gets_no_line(tmp_path: Path) -> None:
    """PEFT imports `megatron_core`, and opens what XLoRA and prompts name."""
    usual = {"megatron_config": None, "megatron_core": "megatron.core"}
    for number, odd in enumerate(
        (
            usual,
            {"megatron_config": {"a": 1}, "megatron_core": "evil"},
            {"adapters": {"0": "../other"}},
            {"prompt_tuning_init_state_dict_path": "prompt.bin"},
            {"tokenizer_kwargs": {"trust_remote_code": True}},
        )
    ):
        folder = tmp_path / f"adapter{number}"
        a_folder(folder, {}, "adapter_model.safetensors")
        (folder / "config.json").unlink()
        (folder / "adapter_config.json").write_text(json.dumps(LORA | odd))
        line, note = load_of(folder)
        assert (line is not None) == (odd is usual) == (note is None), odd


def test_a_model_beside_settings_of_an_adapter_gets_no_line(tmp_path: Path) -> None:
    """transformers opens the base that they name, wherever it is."""
    a_folder(tmp_path / "base", LLAMA)
    (tmp_path / "base" / "adapter_config.json").write_text(json.dumps(LORA))
    assert load_of(tmp_path / "base")[0] is None
