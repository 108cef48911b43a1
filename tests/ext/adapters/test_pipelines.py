"""Adapters with the names of diffusers for bases with the names of Stable Diffusion,
SDXL and Flux.
"""

from __future__ import annotations

import re
from pathlib import Path

import loras
import pytest
import torch
from loras import State, noise
from process import ckpt as run
from safetensors.torch import save_file

import ckpt
from ckpt.ext.adapters.pipelines import pipeline_aliases

UNET = "model.diffusion_model."
CLIP = "conditioner.embedders.0.transformer.text_model.encoder.layers.0"
OPEN = "conditioner.embedders.1.model.transformer.resblocks.0"
FLUX = "double_blocks.0"
SINGLE = "single_blocks.3"
OPS = [f"{UNET}input_blocks.{number}.0.op" for number in (3, 6)]
LAYERS = {
    f"{UNET}input_blocks.0.0": "unet.conv_in",
    f"{UNET}input_blocks.1.0.in_layers.2": "unet.down_blocks.0.resnets.0.conv1",
    f"{UNET}input_blocks.2.0.emb_layers.1": "unet.down_blocks.0.resnets.1.time_emb_proj",
    f"{UNET}input_blocks.3.0.op": "unet.down_blocks.0.downsamplers.0.conv",
    f"{UNET}input_blocks.4.0.skip_connection": "unet.down_blocks.1.resnets.0.conv_shortcut",
    f"{UNET}input_blocks.4.1.proj_in": "unet.down_blocks.1.attentions.0.proj_in",
    f"{UNET}input_blocks.8.1.transformer_blocks.9.attn1.to_out.0": (
        "unet.down_blocks.2.attentions.1.transformer_blocks.9.attn1.to_out.0"
    ),
    f"{UNET}middle_block.0.out_layers.3": "unet.mid_block.resnets.0.conv2",
    f"{UNET}middle_block.1.proj_out": "unet.mid_block.attentions.0.proj_out",
    f"{UNET}middle_block.2.in_layers.2": "unet.mid_block.resnets.1.conv1",
    f"{UNET}output_blocks.0.1.proj_in": "unet.up_blocks.0.attentions.0.proj_in",
    f"{UNET}output_blocks.2.2.conv": "unet.up_blocks.0.upsamplers.0.conv",
    f"{UNET}output_blocks.8.0.in_layers.2": "unet.up_blocks.2.resnets.2.conv1",
    f"{UNET}time_embed.0": "unet.time_embedding.linear_1",
    f"{UNET}label_emb.0.2": "unet.add_embedding.linear_2",
    f"{UNET}out.2": "unet.conv_out",
    f"{CLIP}.self_attn.q_proj": "text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
    f"{OPEN}.mlp.c_fc": "text_encoder_2.text_model.encoder.layers.0.mlp.fc1",
    f"{OPEN}.attn.out_proj": "text_encoder_2.text_model.encoder.layers.0.self_attn.out_proj",
    f"{FLUX}.img_attn.proj": "transformer.transformer_blocks.0.attn.to_out.0",
    f"{FLUX}.txt_mlp.2": "transformer.transformer_blocks.0.ff_context.net.2",
    f"{SINGLE}.linear2": "transformer.single_transformer_blocks.3.proj_out",
    f"{SINGLE}.modulation.lin": "transformer.single_transformer_blocks.3.norm.linear",
    "txt_in": "transformer.context_embedder",
}
"""A layer as its authors call it -> as diffusers does, below the part of the
pipeline.
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_the_authors_has_the_name_of_diffusers(layer: str) -> None:
    part, _, rest = LAYERS[layer].partition(".")
    found = pipeline_aliases([*OPS, layer])
    assert found[part, rest].module == layer and found[part, rest].slot is None


@pytest.mark.parametrize("has_open", [False, True])
def test_the_t5_of_a_pipeline_comes_after_its_encoders_of_clip(has_open: bool) -> None:
    """Flux has one of CLIP, Stable Diffusion 3 has two."""
    begins = {"clip_l": "text_encoder", "t5xxl": "text_encoder_2"}
    if has_open:
        begins |= {"clip_g": "text_encoder_2", "t5xxl": "text_encoder_3"}
    layer = "encoder.block.0.layer.0.SelfAttention.q"
    names = {
        f"text_encoders.{begin}.transformer.{layer}": (component, layer)
        for begin, component in begins.items()
    }

    found = pipeline_aliases(names)

    assert {part.module: name for name, part in found.items()} == names


def test_two_layers_of_one_flat_name_are_refused(tmp_path: Path) -> None:
    begin = "text_encoders.clip_l.transformer.text_model"
    flat = "lora_te_text_model_a_b"
    adapter = {
        f"{flat}.lora_down.weight": noise(2, 6),
        f"{flat}.lora_up.weight": noise(8, 2),
    }
    save_file(adapter, tmp_path / "lora.safetensors")
    state = {f"{begin}.{name}.weight": noise(8, 6) for name in ("a.b", "a_b")}
    base = loras.save_base(state, tmp_path / "base.safetensors")

    with pytest.raises(ckpt.UsageError, match=r"text_model_a_b may be .*a\.b or .*a_b"):
        ckpt.merge(base, tmp_path / "lora.safetensors", dry_run=True)


@pytest.mark.parametrize("numbers", [(), (2, 5), (0,)])
def test_a_unet_whose_blocks_do_not_repeat_has_no_other_names(
    numbers: tuple[int, ...],
) -> None:
    ops = [f"{UNET}input_blocks.{number}.0.op" for number in numbers]
    assert not pipeline_aliases([*ops, f"{UNET}input_blocks.1.1.proj_in"])


def fused(
    prefix: str, names: tuple[str, ...], rows: tuple[int, ...]
) -> dict[str, tuple[int, int]]:
    """The layers of a fused tensor with their first rows and the rows after the last
    one.
    """
    firsts = [sum(rows[:index]) for index in range(len(rows))]
    ends = [first + size for first, size in zip(firsts, rows, strict=True)]
    return {
        f"{prefix}{name}": span
        for name, span in zip(names, zip(firsts, ends, strict=True), strict=True)
    }


QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
FUSED = {
    f"{OPEN}.attn.in_proj_weight": fused(
        "text_encoder_2.text_model.encoder.layers.0.self_attn.",
        ("q_proj", "k_proj", "v_proj"),
        (6, 6, 6),
    ),
    f"{FLUX}.img_attn.qkv.weight": fused(
        "transformer.transformer_blocks.0.", QKV, (6, 6, 6)
    ),
    f"{FLUX}.txt_attn.qkv.weight": fused(
        "transformer.transformer_blocks.0.",
        ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
        (6, 6, 6),
    ),
    f"{SINGLE}.linear1.weight": fused(
        "transformer.single_transformer_blocks.3.", (*QKV, "proj_mlp"), (6, 6, 6, 24)
    ),
}
"""A weight that holds several layers -> the rows of each."""
KOHYA = {
    "unet": "lora_unet",
    "transformer": "lora_transformer",
    "text_encoder": "lora_te1",
}


def whole_base() -> tuple[State, dict[str, tuple[str, int, int]]]:
    """A base with all of the names, and each layer of diffusers with its weight and its
    rows there.
    """
    state: State = {}
    places: dict[str, tuple[str, int, int]] = {}
    for number, (layer, name) in enumerate(
        [*LAYERS.items(), *((op, "") for op in OPS)]
    ):
        state.setdefault(f"{layer}.weight", noise(10, 6, seed=number))
        if name:
            places[name] = (f"{layer}.weight", 0, 10)
    for number, (weight, layers) in enumerate(FUSED.items()):
        last = max(end for _, end in layers.values())
        state[weight] = noise(last, 6, seed=70 + number)
        places |= {name: (weight, *span) for name, span in layers.items()}
    return state, places


@pytest.mark.parametrize("program", ["kohya", "diffusers"])
def test_an_adapter_meets_a_base_of_the_authors(program: str, tmp_path: Path) -> None:
    state, places = whole_base()
    adapter: State = {}
    expected = {name: tensor.clone() for name, tensor in state.items()}
    for number, (name, (weight, first, end)) in enumerate(places.items()):
        down, up = (
            noise(2, 6, seed=200 + number),
            noise(end - first, 2, seed=300 + number),
        )
        part, _, rest = name.partition(".")
        if program == "kohya":
            begin = KOHYA.get(part, "lora_te2")
            flat = f"{begin}_{rest.replace('.', '_')}"
            adapter |= {
                f"{flat}.lora_down.weight": down,
                f"{flat}.lora_up.weight": up,
                f"{flat}.alpha": torch.tensor(1.0),
            }
        else:
            adapter |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        expected[weight][first:end] += (0.5 if program == "kohya" else 1.0) * (
            up @ down
        )
    base = loras.save_base(state, tmp_path / "base.safetensors")
    save_file(adapter, tmp_path / "lora.safetensors")

    ckpt.merge(base, tmp_path / "lora.safetensors", out=tmp_path / "out.safetensors")
    loras.check_same(tmp_path / "out.safetensors", expected, 2)
    report = ckpt.diff(
        base, tmp_path / "out.safetensors", adapter=tmp_path / "lora.safetensors"
    )
    assert report.account is not None and not report.account.differs


def test_what_has_no_rows_in_a_fused_tensor_is_refused(tmp_path: Path) -> None:
    name = "transformer.transformer_blocks.0.attn.to_k"
    for rows, kind in ((7, "lora_A"), (6, "dora")):
        adapter = {
            f"{name}.lora_A.weight": noise(2, 6),
            f"{name}.lora_B.weight": noise(rows, 2),
        }
        if kind == "dora":
            adapter[f"{name}.lora_magnitude_vector"] = noise(6)
        base = loras.save_base(
            {f"{FLUX}.img_attn.qkv.weight": noise(18, 6)}, tmp_path / "base.safetensors"
        )
        save_file(adapter, tmp_path / "lora.safetensors")
        done = run(
            "merge",
            str(base),
            str(tmp_path / "lora.safetensors"),
            "-o",
            str(tmp_path / "out.pth"),
        )
        assert done.code == 2 and not (tmp_path / "out.pth").exists()
        wanted = (
            b"is DoRA on a fused weight"
            if kind == "dora"
            else rb"is \[18, 6\], and .* \[7, 6\]"
        )
        assert re.search(wanted, done.err), done.err
