"""`ckpt inspect ADAPTER`: what it is, and with `--base` whether it fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import loras
import oracle
import pytest
import torch
from inside import inside
from loras import PREFIX, noise
from safetensors.torch import save_file

import ckpt

pytestmark = oracle.QUIET


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = loras.base()
    adapter = loras.pairs(loras.linear(state))
    adapter[f"{PREFIX}lm_head.weight"] = noise(30, 12)
    config = {
        "alpha_pattern": {"up_proj": 2},
        "base_model_name_or_path": "org/model",
        "task_type": "CAUSAL_LM",
    }
    loras.save_adapter(adapter, tmp_path / "adapter", **config)
    loras.save_base(state, tmp_path / "base.safetensors")
    del state["model.layers.2.self_attn.q_proj.weight"]
    loras.save_base(state, tmp_path / "less.safetensors")
    return tmp_path


def document(*words: str, cwd: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        inside("inspect", *words, "--json", cwd=cwd).out
    )["adapter"]
    return found


def test_an_adapter_says_what_it_is(folder: Path) -> None:
    lines = inside("inspect", "adapter", cwd=folder).out.decode().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("  LoRA"))
    assert lines[first : first + 3] == [
        (
            "  LoRA    names of PEFT, rank 4, alpha 8, scales 0.5 to 2, base "
            "org/model, task CAUSAL_LM"
        ),
        (
            "          changes 12 layers of the base model: "
            "model.layers.0-2.self_attn.{o,q,up,v}_proj ×12"
        ),
        "          replaces 1 tensor: lm_head.weight",
    ]
    found = document("adapter", cwd=folder)
    assert (
        found["kinds"] == {"q_proj": 3, "v_proj": 3, "up_proj": 3, "o_proj": 3}
        and found["fits"] is None
    )
    assert (
        found["scales"] == [0.5, 2.0]
        and found["base_model"] == "org/model"
        and found["task"] == "CAUSAL_LM"
    )
    alone = document("adapter/adapter_model.safetensors", cwd=folder)
    assert alone["scales"] == [] and alone["alpha"] is None, (
        "nothing beside a file is read"
    )


def test_a_base_fits_or_the_reason_is_said(folder: Path) -> None:
    done = inside("inspect", "adapter", "--base", "base.safetensors", cwd=folder)
    assert (
        done.code == 0 and b"fits base.safetensors: 13 tensors would change" in done.out
    )
    done = inside("inspect", "adapter", "--base", "less.safetensors", cwd=folder)
    assert done.code == 1
    assert (
        b"does not fit: lacks 1 layer of adapter: model.layers.2.self_attn.q_proj"
        in done.out
    )
    fits = document("adapter", "--base", "less.safetensors", cwd=folder)["fits"]
    assert (
        fits["fits"] is False
        and fits["base"] == "less.safetensors"
        and "q_proj" in fits["why"]
    )
    assert (
        ckpt.inspect(folder / "adapter", base=folder / "less.safetensors").exit_code
        == 1
    )
    with pytest.raises(ckpt.UsageError, match="holds no adapter"):
        ckpt.inspect(folder / "base.safetensors", base=folder / "less.safetensors")


def test_the_kinds_of_layers_with_flat_names_are_their_last_two_words(
    tmp_path: Path,
) -> None:
    layers = ("down_blocks_0_to_q", "down_blocks_1_to_q", "mid_block_proj_in", "conv")
    adapter = {}
    for layer in layers:
        adapter[f"lora_unet_{layer}.lora_down.weight"] = noise(2, 6)
        adapter[f"lora_unet_{layer}.lora_up.weight"] = noise(8, 2)
    torch.save(adapter, tmp_path / "a.pth")

    found = document("a.pth", cwd=tmp_path)

    assert found["kinds"] == {"to_q": 2, "proj_in": 1, "conv": 1}


def test_a_base_fits_an_adapter_that_records_no_alpha(folder: Path) -> None:
    """The scale has no say in whether it fits."""
    (folder / "adapter" / "adapter_config.json").unlink()

    done = inside("inspect", "adapter", "--base", "base.safetensors", cwd=folder)

    assert done.code == 0
    assert b"no alpha recorded" in done.out
    assert b"fits base.safetensors: 13 tensors would change" in done.out


def test_the_scale_of_experts_is_that_of_the_rank_of_each(tmp_path: Path) -> None:
    """Their matrices hold the ranks of all experts, so the settings say that of one."""
    adapter = {
        f"{PREFIX}mlp.experts.lora_A.weight": noise(6, 8),
        f"{PREFIX}mlp.experts.lora_B.weight": noise(10, 6),
    }
    config = {"r": 2, "target_parameters": ["mlp.experts.gate_up_proj"]}
    loras.save_adapter(adapter, tmp_path / "adapter", **config)

    assert document("adapter", cwd=tmp_path)["scales"] == [4.0]


def test_the_scale_of_bytes_is_not_that_of_a_config_in_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "adapter")
    data = (folder / "adapter" / "adapter_model.safetensors").read_bytes()
    with pytest.raises(ckpt.UsageError, match="nothing says the alpha"):
        ckpt.merge(folder / "base.safetensors", data, dry_run=True)


def test_a_model_is_no_adapter(tmp_path: Path) -> None:
    torch.save(
        {"a.alpha": torch.ones(2), "a.weight": torch.ones(2, 2)}, tmp_path / "a.pth"
    )
    assert document("a.pth", cwd=tmp_path) is None


def test_the_method_of_lycoris_is_named_once(tmp_path: Path) -> None:
    state = {}
    for number in range(3):
        name = f"lora_unet_layers_{number}_q"
        state |= {f"{name}.lokr_w1": noise(2, 2), f"{name}.lokr_w2": noise(3, 3)}
        state[f"{name}.alpha"] = torch.tensor(1.0)
    save_file(state, tmp_path / "lokr.safetensors")

    done = inside("inspect", "lokr.safetensors", cwd=tmp_path)

    said = " ".join("\n".join(done.lines).split())
    assert "adapter-names LoKr of LyCORIS, names of kohya" in said
    assert "LoKr with LoKr" not in said
