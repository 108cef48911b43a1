"""`ckpt convert --adapter-names`: from PEFT to kohya and back, where the names are
certain.
"""

from __future__ import annotations

import json
from pathlib import Path

import loras
import oracle
import process
import pytest
import torch
from inside import inside
from loras import PREFIX, noise
from safetensors.torch import load_file, save_file

import ckpt

pytestmark = oracle.QUIET
UNET = {
    "down_blocks.0.attentions.0.to_q.weight": noise(8, 6, seed=1),
    "down_blocks.0.resnets.0.conv1.weight": noise(5, 4, 3, 3, seed=2),
    "mid_block.attentions.0.to_out.0.weight": noise(6, 8, seed=3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A UNet, and an adapter of PEFT with two ranks and two alphas."""
    loras.save_base(UNET, tmp_path / "unet.safetensors")
    adapter = {}
    for number, (name, weight) in enumerate(UNET.items()):
        rank = 3 if "conv1" in name else 2
        begin = f"{PREFIX}{name.removesuffix('.weight')}"
        adapter[f"{begin}.lora_A.weight"] = noise(
            rank, *weight.shape[1:], seed=10 + number
        )
        adapter[f"{begin}.lora_B.weight"] = noise(
            weight.shape[0], rank, *[1] * (weight.dim() - 2), seed=20 + number
        )
    config = {
        "r": 2,
        "lora_alpha": 4,
        "rank_pattern": {"conv1": 3},
        "alpha_pattern": {"to_q": 5},
    }
    loras.save_adapter(adapter, tmp_path / "peft", **config)
    return tmp_path


def test_an_adapter_of_peft_gets_the_names_of_kohya_and_merges_to_the_same(
    folder: Path,
) -> None:
    done = inside(
        "convert",
        "peft",
        "--adapter-names",
        "kohya",
        "-o",
        "kohya.safetensors",
        cwd=folder,
    )
    assert done.code == 0, done.err
    assert b"names of PEFT \xe2\x86\x92 names of kohya   3 layers" in done.out
    found = load_file(folder / "kohya.safetensors")
    begin = "lora_unet_down_blocks_0_attentions_0_to_q"
    assert {name for name in found if name.startswith(begin)} == {
        f"{begin}.{part}" for part in ("lora_down.weight", "lora_up.weight", "alpha")
    }
    alphas = {
        name: float(tensor) for name, tensor in found.items() if name.endswith("alpha")
    }
    assert (
        sorted(alphas.values()) == [4.0, 4.0, 5.0] and alphas[f"{begin}.alpha"] == 5.0
    )
    for source in ("peft", "kohya.safetensors"):
        ckpt.merge(
            folder / "unet.safetensors",
            folder / source,
            out=folder / f"{source[:4]}.out.safetensors",
        )
    one, two = (
        load_file(folder / f"{name}.out.safetensors") for name in ("peft", "kohy")
    )
    assert all(torch.equal(one[name], two[name]) for name in UNET)


def test_and_back_with_the_base_that_says_where_the_dots_are(folder: Path) -> None:
    ckpt.convert(
        folder / "peft", adapter_names="kohya", out=folder / "kohya.safetensors"
    )
    with pytest.raises(
        ckpt.UsageError, match=r"only the base says where the dots are .base=BASE"
    ):
        ckpt.convert(
            folder / "kohya.safetensors",
            adapter_names="peft",
            out=folder / "x.safetensors",
        )
    assert not (folder / "x.safetensors").exists()

    report = ckpt.convert(
        folder / "kohya.safetensors",
        adapter_names="peft",
        base=folder / "unet.safetensors",
        out=folder / "back" / "adapter_model.safetensors",
        parents=True,
    )

    assert report.carried == ("adapter_config.json",)
    one, two = (
        load_file(folder / name / "adapter_model.safetensors")
        for name in ("peft", "back")
    )
    assert one.keys() == two.keys() and all(
        torch.equal(one[name], two[name]) for name in one
    )
    settings = json.loads((folder / "back" / "adapter_config.json").read_text())
    assert settings == {
        "alpha_pattern": {"down_blocks.0.attentions.0.to_q": 5},
        "lora_alpha": 4,
        "peft_type": "LORA",
        "r": 2,
        "rank_pattern": {"down_blocks.0.resnets.0.conv1": 3},
        "target_modules": sorted(name.removesuffix(".weight") for name in UNET),
    }
    for name in ("peft", "back"):
        ckpt.merge(
            folder / "unet.safetensors",
            folder / name,
            out=folder / f"{name}.safetensors",
        )
    one, two = (load_file(folder / f"{name}.safetensors") for name in ("peft", "back"))
    assert all(torch.equal(one[name], two[name]) for name in UNET)
    with pytest.raises(
        ckpt.CkptError, match=r"adapter_config\.json"
    ):  # which would be replaced
        ckpt.convert(
            folder / "kohya.safetensors",
            adapter_names="peft",
            base=folder / "unet.safetensors",
            out=folder / "back" / "other.safetensors",
        )
    assert not (folder / "back" / "other.safetensors").exists()


@pytest.mark.parametrize("has_two", [False, True])
def test_the_first_of_two_text_encoders_is_called_so(
    has_two: bool, tmp_path: Path
) -> None:
    """Programs that read kohya's names find `lora_te` where there is one encoder."""
    parts = {"unet": "lora_unet", "text_encoder": "lora_te"}
    if has_two:
        parts |= {"text_encoder": "lora_te1", "text_encoder_2": "lora_te2"}
    adapter = {}
    for part in parts:
        adapter[f"{part}.a.b.lora_A.weight"] = noise(2, 6)
        adapter[f"{part}.a.b.lora_B.weight"] = noise(8, 2)
    save_file(adapter, tmp_path / "a.safetensors")
    words = ("convert", "a.safetensors", "--adapter-names", "kohya", "-o", "b.pth")

    done = inside(*words, cwd=tmp_path)

    assert done.code == 0, done.err
    found = torch.load(tmp_path / "b.pth", weights_only=True)
    assert {name.partition(".")[0] for name in found} == {
        f"{begin}_a_b" for begin in parts.values()
    }


def test_a_linear_layer_that_kohya_wrote_as_a_convolution_becomes_a_matrix(
    folder: Path,
) -> None:
    begin = "lora_unet_down_blocks_0_attentions_0_to_q"
    state = {
        f"{begin}.lora_down.weight": noise(2, 6, 1, 1),
        f"{begin}.lora_up.weight": noise(8, 2, 1, 1),
    }
    save_file(state, folder / "kohya.safetensors")
    out = folder / "new" / "adapter_model.safetensors"
    ckpt.convert(
        folder / "kohya.safetensors",
        adapter_names="peft",
        base=folder / "unet.safetensors",
        out=out,
        parents=True,
    )
    assert {tuple(tensor.shape) for tensor in load_file(out).values()} == {
        (2, 6),
        (8, 2),
    }


def test_what_is_not_certain_is_refused(folder: Path) -> None:
    def refused(
        state: dict[str, torch.Tensor], names: str, says: str, base: str | None = None
    ) -> None:
        save_file(
            {name: tensor.clone() for name, tensor in state.items()},
            folder / "a.safetensors",
        )
        with pytest.raises(ckpt.CkptError, match=says):
            ckpt.convert(
                folder / "a.safetensors",
                adapter_names=names,
                base=None if base is None else folder / base,
                out=folder / "x.safetensors",
            )
        assert not (folder / "x.safetensors").exists()

    pair = {"lora_A.weight": noise(2, 4), "lora_B.weight": noise(4, 2)}
    flat = {"lora_down.weight": noise(2, 4), "lora_up.weight": noise(4, 2)}
    refused(
        {f"{PREFIX}model.q.{part}": t for part, t in pair.items()},
        "kohya",
        "nothing says the alpha|which part of a pipeline",
    )
    refused(
        {f"unet.a.b.{part}": t for part, t in pair.items()}
        | {f"unet.a_b.{part}": t for part, t in pair.items()},
        "kohya",
        "two layers would be called",
    )
    refused(
        {f"lora_unet_x.{part}": t for part, t in flat.items()},
        "kohya",
        "has the names of kohya already",
    )
    refused(
        {f"lora_unet_x.{part}": t for part, t in flat.items()},
        "peft",
        "lacks 1 layer: x",
        "unet.safetensors",
    )
    both = {
        f"lora_{part}_x.{name}": t
        for part in ("unet", "te")
        for name, t in flat.items()
    }
    refused(both, "peft", "2 parts of a pipeline")
    refused(
        {f"lora_unet_x.{part}": t for part, t in flat.items()}
        | {"lora_unet_x.dora_scale": noise(4, 1)},
        "peft",
        "has no name",
    )
    refused(
        {f"lora_unet_x.{part}": t for part, t in flat.items()},
        "other",
        "not one of peft kohya",
    )
    with pytest.raises(ckpt.UsageError, match="base= goes with adapter_names="):
        ckpt.convert(
            folder / "peft",
            base=folder / "unet.safetensors",
            out=folder / "x.safetensors",
        )
    with pytest.raises(ckpt.UsageError, match="holds no adapter"):
        ckpt.convert(
            folder / "unet.safetensors",
            adapter_names="peft",
            out=folder / "x.safetensors",
        )


@pytest.mark.parametrize("names", ["kohya", "peft"])
@pytest.mark.parametrize("source", ["peft", "peft/adapter_model.safetensors"])
def test_damaged_settings_are_one_line(source: str, names: str, folder: Path) -> None:
    """Opening a folder doubts them too, and a refusal is one line."""
    (folder / "peft" / "adapter_config.json").write_text('{"r": 4, "lora_alpha": }')
    words = ("convert", source, "--adapter-names", names, "-o", "x.safetensors")

    done = process.ckpt(*words, cwd=folder)

    assert done.code == 2 and not done.out and done.err.count(b"\n") == 1
    assert b"damaged adapter_config.json: expecting value" in done.err
    assert not (folder / "x.safetensors").exists()


def test_no_settings_beside_a_file_that_is_not_there_are_blamed(folder: Path) -> None:
    (folder / "peft" / "adapter_config.json").write_text("{")
    words = (
        "convert",
        "peft/none.safetensors",
        "--adapter-names",
        "kohya",
        "-o",
        "x.pth",
    )

    done = process.ckpt(*words, cwd=folder)

    assert done.code == 2 and b"no such file" in done.err
