"""LoRA in the names of kohya, PEFT and older diffusers: what `inspect` says, and which
tensors meet.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from inside import inside
from process import ckpt
from safetensors.torch import load_file, save_file

from ckpt.evidence.adapters import adapter_translation, piece_of

pytestmark = oracle.QUIET

Tensors = dict[str, torch.Tensor]
FACTS = {
    "ss_network_dim": "4",
    "ss_network_alpha": "2",
    "ss_base_model_version": "sd_v1",
}


def layers() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The layers of a UNet and of a text encoder in the names of diffusers, each with
    its two matrices.
    """
    names = [
        f"unet.down_blocks.{block}.attentions.0.transformer_blocks.0.attn1.{part}"
        for block in range(2)
        for part in ("to_q", "to_k", "to_v", "to_out.0")
    ]
    names.append("text_encoder.text_model.encoder.layers.0.self_attn.q_proj")
    return {name: (torch.randn(4, 8), torch.randn(8, 4)) for name in names}


def kohya(
    made: dict[str, tuple[torch.Tensor, torch.Tensor]], te: str = "te"
) -> Tensors:
    state: Tensors = {}
    for name, (down, up) in made.items():
        flat = "lora_" + name.replace("text_encoder", te, 1).replace(".", "_")
        state |= {f"{flat}.lora_down.weight": down, f"{flat}.lora_up.weight": up}
        state[f"{flat}.alpha"] = torch.tensor(2.0)
    return state


def peft(made: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> Tensors:
    state: Tensors = {}
    for name, (down, up) in made.items():
        state |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    return state


def diffusers(made: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> Tensors:
    """The names of diffusers before it used PEFT."""
    state: Tensors = {}
    for name, (down, up) in made.items():
        if name.startswith("text"):
            begin = f"{name}.lora_linear_layer"
        else:
            above, _, leaf = name.removesuffix(".0").rpartition(".")
            begin = f"{above}.processor.{leaf}_lora"
        state |= {f"{begin}.down.weight": down, f"{begin}.up.weight": up}
    return state


def inspected(path: Path) -> dict[str, Any]:
    done = inside("inspect", path.name, "--json", cwd=path.parent)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    return {**document, "codes": [row["code"] for row in document["findings"]]}


@pytest.mark.needs("adapters")
def test_inspect_says_what_a_lora_of_kohya_is(tmp_path: Path) -> None:
    save_file(kohya(layers()), tmp_path / "a.safetensors", metadata=FACTS)
    found = inspected(tmp_path / "a.safetensors")
    more = ("scales", "alpha", "kinds", "replaced", "base_model", "task", "fits")
    assert [found["adapter"].pop(name) for name in more][:2] == [[0.5], None]
    assert found["adapter"] == {
        "names": "kohya",
        "methods": ["LoRA"],
        "layers": 9,
        "parts": {"unet": 8, "te": 1},
        "ranks": [4],
        "alphas": [2.0],
        "base": "sd_v1",
    }
    assert found["codes"] == ["adapter-names"]
    roles = {row["name"].rpartition(".")[2]: row["role"] for row in found["tensors"]}
    assert roles == {"weight": "parameter", "alpha": "buffer"}
    text = inside("inspect", "a.safetensors", cwd=tmp_path).out.decode()
    assert "unknown" not in text.splitlines()[0]
    said = " ".join(text.split())
    assert "rank 4, alpha 2 (scale 0.5), base sd_v1; changes 9 layers" in said
    assert "8 of the UNet" in said and "1 of the text encoder" in said


@pytest.mark.parametrize("te", ["te", "te1"])
@pytest.mark.parametrize("other", [peft, diffusers])
def test_kohya_fills_the_names_of_others_and_the_lost_alpha_is_said(
    tmp_path: Path, te: str, other: Any
) -> None:
    made = layers()
    wanted = other(made)
    save_file(kohya(made, te), tmp_path / "a.safetensors")
    torch.save(
        {name: torch.zeros_like(value) for name, value in wanted.items()},
        tmp_path / "b.pth",
    )
    done = inside(
        "warmstart", "a.safetensors", "--into", "b.pth", "-o", "out.pth", cwd=tmp_path
    )
    said = " ".join(done.out.decode().split())
    assert "loads 18 of 18 tensors" in said
    assert "alpha 2 (scale 0.5). The target has no alpha" in said
    written = torch.load(tmp_path / "out.pth", weights_only=True)
    assert written.keys() == wanted.keys()
    assert all(torch.equal(written[name], value) for name, value in wanted.items())


def test_the_alpha_of_a_layer_that_is_not_loaded_scales_nothing(
    tmp_path: Path,
) -> None:
    made = layers()
    other = {
        "lora_unet_other_proj.lora_down.weight": torch.ones(4, 8),
        "lora_unet_other_proj.lora_up.weight": torch.ones(8, 4),
        "lora_unet_other_proj.alpha": torch.tensor(8.0),
    }
    save_file(kohya(made) | other, tmp_path / "a.safetensors")
    torch.save(peft(made), tmp_path / "b.pth")
    done = inside(
        "warmstart", "a.safetensors", "--into", "b.pth", "-o", "out.pth", cwd=tmp_path
    )
    said = " ".join(done.out.decode().split())
    assert "loads 18 of 18 tensors" in said
    assert "alpha 2 (scale 0.5). The target has no alpha" in said


def test_the_other_direction_keeps_the_alpha_of_the_target_and_says_so(
    tmp_path: Path,
) -> None:
    made = layers()
    zeros = {name: torch.zeros_like(value) for name, value in kohya(made).items()}
    zeros |= {name: torch.tensor(2.0) for name in zeros if name.endswith("alpha")}
    save_file(peft(made), tmp_path / "a.safetensors")
    save_file(zeros, tmp_path / "b.safetensors")
    words = (
        "warmstart",
        "a.safetensors",
        "--into",
        "b.safetensors",
        "-o",
        "out.safetensors",
    )
    done = inside(*words, cwd=tmp_path)
    assert "The target keeps its own alpha 2 (scale 0.5)" in " ".join(
        done.out.decode().split()
    )
    written = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(written[name], value) for name, value in kohya(made).items())


def test_the_adapter_of_a_unet_alone_has_no_part_before_its_names(
    tmp_path: Path,
) -> None:
    made = {name: pair for name, pair in layers().items() if name.startswith("unet.")}
    alone = {
        f"base_model.model.{name.removeprefix('unet.')}": value
        for name, value in peft(made).items()
    }
    save_file(kohya(made), tmp_path / "a.safetensors")
    save_file(alone, tmp_path / "b.safetensors")
    done = inside("diff", "a.safetensors", "b.safetensors", cwd=tmp_path).out.decode()
    assert "differ: 0 changed, 8 removed, 16 same" in done


def test_a_layer_that_two_names_may_be_is_not_paired() -> None:
    one = ["lora_unet_a_b_c.lora_up.weight", "lora_unet_d_e.lora_up.weight"]
    two = [
        "unet.a_b.c.lora_B.weight",
        "unet.a.b_c.lora_B.weight",
        "unet.d.e.lora_B.weight",
    ]
    found = adapter_translation(one, two)
    assert found is not None
    assert found.names == {"lora_unet_d_e.lora_up.weight": "unet.d.e.lora_B.weight"}
    # The same layer of two parts, and a side that does not say which part it is.
    one = ["lora_te1_a.lora_up.weight", "lora_te2_a.lora_up.weight"]
    assert adapter_translation(one, ["a.lora_B.weight"]) is None


def test_the_blocks_of_another_unet_do_not_meet_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    made = layers()
    other = {
        f"unet.input_blocks.{n}.1.transformer_blocks.0.attn1.to_q": (
            torch.randn(4, 8),
            torch.randn(8, 4),
        )
        for n in (4, 5)
    }
    save_file(kohya(other), tmp_path / "a.safetensors")
    torch.save(
        peft({name: pair for name, pair in made.items() if "unet" in name}),
        tmp_path / "b.pth",
    )
    done = inside(
        "warmstart", "a.safetensors", "--into", "b.pth", "-o", "out.pth", cwd=tmp_path
    )
    assert done.code == 1 and not (tmp_path / "out.pth").exists()


@pytest.mark.parametrize(
    ("parts", "method"),
    [
        (("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"), "LoHa"),
        (("lokr_w1", "lokr_w2_a", "lokr_w2_b"), "LoKr"),
    ],
)
def test_the_kin_of_lycoris_is_named(
    tmp_path: Path, parts: tuple[str, ...], method: str
) -> None:
    state: Tensors = {}
    for name in layers():
        flat = "lora_" + name.replace("text_encoder", "te", 1).replace(".", "_")
        state |= {f"{flat}.{part}": torch.randn(4, 4) for part in parts}
        state[f"{flat}.alpha"] = torch.tensor(1.0)
    save_file(state, tmp_path / "a.safetensors")
    found = inspected(tmp_path / "a.safetensors")
    assert found["adapter"]["methods"] == [method] and found["adapter"]["layers"] == 9
    assert {row["role"] for row in found["tensors"]} == {"parameter", "buffer"}
    said = inside("inspect", "a.safetensors", cwd=tmp_path).out.decode()
    assert f"{method} of LyCORIS" in said


def test_a_model_with_a_word_of_lora_is_no_adapter(tmp_path: Path) -> None:
    state = {f"layers.{n}.weight": torch.randn(3, 3) for n in range(9)}
    state |= {"layers.0.lora_A.weight": torch.randn(2, 3), "alpha": torch.tensor(1.0)}
    torch.save(state, tmp_path / "a.pth")
    assert inspected(tmp_path / "a.pth")["adapter"] is None
    assert (
        piece_of("layers.0.weight") is None and piece_of("lora_unet_x.weight") is None
    )


def two_layers(rank: int = 4) -> dict[str, torch.Tensor]:
    """An adapter of two layers in the names of PEFT."""
    shapes = {"A": (rank, 8), "B": (8, rank)}
    return {
        f"base_model.model.layers.{layer}.q.lora_{part}.weight": torch.randn(shape)
        for layer in range(2)
        for part, shape in shapes.items()
    }


def test_adapters_have_no_mean(tmp_path: Path) -> None:
    one, two = (
        rewriting.saved(two_layers(), tmp_path / name)
        for name in ("one.pth", "two.pth")
    )

    done = ckpt("average", one.name, two.name, "-o", "mean.pth", cwd=tmp_path)

    assert done.code == 2 and b"holds an adapter (LoRA): a layer gets B" in done.err
    assert b"(ckpt merge adds each to its base; " in done.err
    assert not (tmp_path / "mean.pth").exists()
    base = {f"layers.{layer}.q.weight": torch.ones(8, 8) for layer in range(2)}
    runs = [
        rewriting.saved(base | two_layers(), tmp_path / name)
        for name in ("three.pth", "four.pth")
    ]
    mixed = ckpt(
        "average", *(path.name for path in runs), "-o", "mean.pth", cwd=tmp_path
    )
    assert mixed.code == 2 and b"--exclude" in mixed.err


def test_a_run_with_an_adapter_is_no_start_for_its_base(tmp_path: Path) -> None:
    base = {f"layers.{layer}.q.weight": torch.ones(8, 8) for layer in range(2)}
    rewriting.saved(base, tmp_path / "base.pth")
    layers = {
        f"base_model.model.layers.{layer}.q.base_layer.weight": torch.ones(8, 8)
        for layer in range(2)
    }
    rewriting.saved(layers | two_layers(), tmp_path / "run.pth")

    done = ckpt(
        "warmstart", "run.pth", "--into", "base.pth", "-o", "out.pth", cwd=tmp_path
    )

    assert done.code == 1 and not (tmp_path / "out.pth").exists()
    assert b"has no place for the adapter of 2 layers in " in done.err
    again = ckpt(
        "warmstart",
        "run.pth",
        "--into",
        "base.pth",
        "--min-coverage",
        "0",
        "-o",
        "out.pth",
        cwd=tmp_path,
    )
    assert again.code == 0 and (tmp_path / "out.pth").exists()
