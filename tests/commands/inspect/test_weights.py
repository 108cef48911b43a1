"""Findings about weights that are no values as they stand: codes with scales, and
parameters without elements.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import deepspeeds
import pytest
import scaled
import torch
from process import ckpt
from safetensors.torch import save_file

import ckpt as package
from ckpt.model.findings import Finding


def findings(saved: Any, folder: Path, *codes: str) -> list[Finding]:
    """The findings with these codes about an object that torch saves."""
    path = folder / "saved.pt"
    torch.save(saved, path)
    return [row for row in package.inspect(str(path)).findings if row.code in codes]


# --- codes and scales -----------------------------------------------------------------


@pytest.mark.parametrize("kind", scaled.LAYERS)
@pytest.mark.parametrize(
    "prefix", ["", "module.", f"{'deep.' * 24}"], ids=["plain", "wrapped", "long"]
)
def test_codes_are_named_as_what_they_are(
    kind: str, prefix: str, tmp_path: Path
) -> None:
    layer, text = scaled.LAYERS[kind]
    tensors = {
        f"{prefix}{name}": value for name, value in scaled.model(layer()).items()
    }
    found = findings(tensors, tmp_path, "scaled")

    codes = next(iter(layer()))
    assert [row.message.partition(": ")[0] for row in found] == [text]
    assert found[0].tensors == (
        f"{prefix}layers.0.{codes}",
        f"{prefix}layers.1.{codes}",
    )
    assert found[0].level == "info"


@pytest.mark.parametrize("kind", scaled.LAYERS)
def test_codes_deep_in_dicts(kind: str, tmp_path: Path) -> None:
    layer, _ = scaled.LAYERS[kind]
    training = {"run": {"last": {"model": scaled.model(layer())}}, "epoch": 3}
    found = findings(training, tmp_path, "scaled")
    assert [len(row.tensors) for row in found] == [2]
    assert all(name.startswith("run.last.model.layers.") for name in found[0].tensors)


def folder_of(tensors: scaled.Tensors, config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


DEEPSEEK = {
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    }
}


@pytest.mark.needs("folders")
def test_a_config_says_how_large_the_blocks_are(tmp_path: Path) -> None:
    """Matrices smaller than a block do not show it."""
    small = {
        "up.weight": scaled.eight_bits(16, 16),
        "up.weight_scale_inv": torch.full((1, 1), 0.25),
        "norm.weight": torch.ones(16).bfloat16(),
    }
    folder = folder_of(small, DEEPSEEK, tmp_path / "fp8")
    said = ckpt("inspect", folder).out.decode()
    assert "FP8 with scales, blocks of 128 x 128 (config.json: fp8): up.weight." in said
    assert "--dtype does not cast it" in said
    assert b"scaled" in ckpt("ls", folder).out


@pytest.mark.needs("folders")
def test_other_blocks_of_a_config(tmp_path: Path) -> None:
    tensors = {
        "up.weight": scaled.eight_bits(64, 96),
        "up.weight_scale_inv": torch.rand(2, 3),
    }
    config = {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}
    }
    folder = folder_of(tensors, config, tmp_path / "fp8")
    assert "blocks of 32 x 32" in ckpt("inspect", folder).out.decode()


@pytest.mark.needs("folders")
def test_a_config_speaks_of_scales_that_are_not_there(tmp_path: Path) -> None:
    folder = folder_of(
        {"up.weight": scaled.eight_bits(16, 16)}, DEEPSEEK, tmp_path / "fp8"
    )
    said = ckpt("inspect", folder).out.decode()
    assert "FP8 without a scale in this file (config.json: fp8): up.weight." in said
    assert "The config says that there are scales, and ckpt finds none." in said


def test_weights_of_one_shard_whose_scales_are_in_another(tmp_path: Path) -> None:
    tensors = scaled.deepseek() | {
        "b.weight": scaled.eight_bits(4, 4),
        "c.weight_scale_inv": torch.ones(1, 1),
    }
    told = {row.message: row.tensors for row in findings(tensors, tmp_path, "scaled")}
    assert list(told.values()) == [
        ("a.weight",),
        ("b.weight",),
        ("c.weight_scale_inv",),
    ]
    assert list(told)[1].startswith("FP8 without a scale in this file")


def test_scales_that_stay_beside_values(tmp_path: Path) -> None:
    """A cast that took the codes for values leaves such a file, and so does one that
    dequantized them.
    """
    layer = scaled.deepseek()
    (row,) = findings(
        layer | {"a.weight": layer["a.weight"].bfloat16()}, tmp_path, "scaled"
    )
    assert row.level == "warning" and row.tensors == ("a.weight_scale_inv",)
    assert (
        row.message == "The weights beside a.weight_scale_inv are bfloat16, not codes."
    )
    assert row.consequence is not None and row.consequence.startswith(
        "Either they are multiplied"
    )


PLAIN: dict[str, scaled.Tensors] = {
    "layer scale": {"block.gamma": torch.ones(8), "block.weight": torch.randn(8, 8)},
    "clip": {"logit_scale": torch.tensor(2.6), "visual.proj": torch.randn(8, 8)},
    "rms norm": {"norm.scale": torch.ones(8), "fc.weight": torch.randn(8, 8)},
    "temperature": {"attn.weight": torch.randn(8, 8), "attn.scale": torch.ones(1)},
    "learned": {
        "conv.weight": torch.randn(8, 8),
        "conv.weight_scale": torch.ones(8, 1),
    },
    "scales": {"head.weight": torch.randn(8, 8), "head.scales": torch.ones(8, 1)},
    "edm": {
        "map.freqs": torch.randn(8),
        "map.freqs_scale": torch.ones(8),
        "sigma_scale": torch.ones(1),
    },
    "mask": {
        "mask": torch.ones(8, 8, dtype=torch.uint8),
        "mask_scale": torch.ones(8, 1),
    },
    "indices": {
        "weight": torch.ones(8, 8, dtype=torch.int64),
        "weight_scale": torch.ones(8, 1),
    },
    "fp8 without scales": {
        "attn.qkv.weight": scaled.eight_bits(8, 8),
        "attn.norm.scale": scaled.eight_bits(8),
        "attn.qkv.scale": torch.ones(1, 1),
        "logit_scale": torch.tensor(2.6),
    },
    "another shape": {
        "a.weight": scaled.eight_bits(8, 8),
        "a.weight_scale": torch.ones(3, 5, 7),
    },
    "more scales than codes": {
        "a.weight": scaled.eight_bits(8, 8),
        "a.weight_scale": torch.ones(8, 16),
    },
    "another dtype": {
        "a.weight": scaled.eight_bits(8, 8),
        "a.weight_scale": torch.ones(8, dtype=torch.int64),
    },
    "bias": {
        "a.weight": scaled.eight_bits(8, 8),
        "a.biases": torch.ones(8, 1),
        "a.scales_bias": torch.ones(8),
    },
}
"""Models with parameters whose names look like those of scales."""


@pytest.mark.parametrize("kind", PLAIN)
def test_a_parameter_called_scale_is_none(kind: str, tmp_path: Path) -> None:
    assert findings(PLAIN[kind], tmp_path, "scaled") == []


@pytest.mark.parametrize("rank", [0, 1])
def test_the_file_of_a_rank_of_deepspeed_is_no_error(rank: int, tmp_path: Path) -> None:
    """Its folder holds the weights, and it says itself which shapes they have."""
    folder = tmp_path / "run"
    deepspeeds.saved(3).write(folder)
    file = next(folder.rglob(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"))
    (row,) = [
        row for row in package.inspect(str(file)).findings if row.code == "no-weights"
    ]
    assert row.level == "info" and "convert their folder" in (row.consequence or "")
    assert [
        row for row in package.inspect(str(folder)).findings if row.code == "no-weights"
    ] == []


# --- no weights -----------------------------------------------------------------------

NAMES = [
    f"model.decoder.layers.{layer}.self_attn.{key}_proj.weight"
    for layer in range(4)
    for key in "qkvo"
]
NAMES += ["model.decoder.layers.0.norm.weight", "lm_head.weight"]
EMPTY = torch.empty(0, dtype=torch.float16)


def bert(large: torch.Tensor) -> scaled.Tensors:
    """A model of ZeRO-3, which keeps small parameters whole: biases, norms, and a
    classifier.
    """
    tensors: scaled.Tensors = {"bert.embeddings.word_embeddings.weight": large}
    for layer in range(3):
        start = f"bert.encoder.layer.{layer}"
        for name in (
            "attention.self.query",
            "attention.self.key",
            "attention.output.dense",
            "output.dense",
        ):
            tensors |= {
                f"{start}.{name}.weight": large,
                f"{start}.{name}.bias": torch.zeros(8),
            }
        tensors |= {
            f"{start}.LayerNorm.{name}": torch.ones(8) for name in ("weight", "bias")
        }
    return tensors | {
        "classifier.weight": torch.randn(2, 8),
        "classifier.bias": torch.zeros(2),
    }


def adapter(lora: torch.Tensor, head: torch.Tensor) -> scaled.Tensors:
    start = "base_model.model.model.layers.0.self_attn.q_proj"
    return {
        f"{start}.lora_A.weight": lora,
        f"{start}.lora_B.weight": lora,
        "base_model.model.lm_head.modules_to_save.weight": head,
    }


EMPTIED: dict[str, tuple[Any, str]] = {
    "zero3": (
        OrderedDict((name, EMPTY) for name in NAMES),
        "18 of 18 parameters are empty",
    ),
    "ones": (
        {name: torch.ones(1) for name in NAMES},
        "18 of 18 parameters have one element, matrices too",
    ),
    "bert": (bert(EMPTY), "13 of 33 parameters are empty"),
    "bert of ones": (
        {name: torch.ones(1) for name in bert(EMPTY)},
        "33 of 33 parameters have one element",
    ),
    "in a training": (
        {"model": dict.fromkeys(NAMES, EMPTY), "epoch": 1},
        "18 of 18 parameters are empty",
    ),
    "wrapped": (
        {f"module.{name}": EMPTY for name in NAMES},
        "18 of 18 parameters are empty",
    ),
    "adapter": (adapter(EMPTY, EMPTY), "3 of 3 parameters are empty"),
    "half an adapter": (
        adapter(EMPTY, torch.ones(4, 4)),
        "2 of 3 parameters are empty",
    ),
}


@pytest.mark.parametrize("kind", EMPTIED)
def test_a_file_without_weights_is_an_error(kind: str, tmp_path: Path) -> None:
    saved, text = EMPTIED[kind]
    (row,) = findings(saved, tmp_path, "no-weights")
    assert row.level == "error" and f"holds no weights: {text}" in row.message
    assert "stage3_gather_16bit_weights_on_model_save" in (row.consequence or "")
    assert ckpt("lint", tmp_path / "saved.pt").code == 1
    assert b"no-weights" in ckpt("ls", tmp_path / "saved.pt").out


def test_what_an_adapter_saves_beside_its_matrices(tmp_path: Path) -> None:
    """`modules_to_save` under ZeRO-3: the matrices of LoRA are whole."""
    (row,) = findings(adapter(torch.ones(4, 4), EMPTY), tmp_path, "no-weights")
    name = "base_model.model.lm_head.modules_to_save.weight"
    assert (
        row.message
        == f"The file lacks the values of 1 of 3 parameters, which are empty: {name}."
    )


def e3nn() -> scaled.Tensors:
    """Tensor products without weights of their own, and linear layers without a
    bias.
    """
    tensors: scaled.Tensors = {}
    for layer in range(3):
        for name in ("linear_up", "linear", "skip_tp"):
            tensors |= {
                f"interactions.{layer}.{name}.weight": torch.randn(64),
                f"interactions.{layer}.{name}.bias": torch.empty(0),
                f"interactions.{layer}.{name}.output_mask": torch.empty(0),
            }
        tensors[f"interactions.{layer}.conv_tp.weight"] = torch.empty(0)
        tensors[f"interactions.{layer}.conv_tp_weights.layer0.weight"] = torch.randn(
            8, 8
        )
    return tensors


WHOLE: dict[str, Any] = {
    "one empty tensor": {
        name: EMPTY if i == 3 else torch.randn(4, 4) for i, name in enumerate(NAMES)
    },
    "only one tensor": {"fc.weight": torch.empty(0)},
    "e3nn": e3nn(),
    "no rows": {"embedding.weight": torch.empty(0, 8), "fc.weight": torch.empty(0, 8)},
    "one feature": {
        f"{i}.{name}": torch.ones(1) for i in range(4) for name in ("weight", "bias")
    },
    "a line": {"linear.weight": torch.ones(1, 1), "linear.bias": torch.ones(1)},
    "scaled by comfy": {
        "scaled_fp8": torch.empty(0).to(scaled.FP8),
        **scaled.model(scaled.comfy()),
    },
    "bert": bert(torch.randn(8, 8)),
    "adapter": adapter(torch.randn(4, 4), torch.randn(4, 4)),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_tensor_may_be_empty(kind: str, tmp_path: Path) -> None:
    assert findings(WHOLE[kind], tmp_path, "no-weights", "flat-parameters") == []


def test_an_adapter_of_forty_bytes(tmp_path: Path) -> None:
    save_file({}, tmp_path / "adapter_model.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "adapter_model.safetensors").stat().st_size == 40
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    for path in (tmp_path, tmp_path / "adapter_model.safetensors"):
        (row,) = package.inspect(str(path)).findings
        assert (row.code, row.level) == ("no-weights", "error")
        assert row.consequence is not None and "PEFT" in row.consequence


@pytest.mark.parametrize(
    ("name", "empty"),
    [
        ("adapter_model.bin", True),
        ("pytorch_model.bin", True),
        ("scheduler.bin", False),
    ],
)
def test_a_pickle_of_an_empty_dict_is_named_by_its_file(
    name: str, empty: bool, tmp_path: Path
) -> None:
    torch.save({}, tmp_path / name)
    codes = [row.code for row in package.inspect(str(tmp_path / name)).findings]
    assert codes == (["no-weights"] if empty else [])


FLAT: dict[str, scaled.Tensors] = {
    "torch": {
        "_fsdp_wrapped_module._flat_param": torch.randn(50),
        "layers.0._flat_param": torch.randn(9),
    },
    "torch 1.12": {"_fsdp_wrapped_module.flat_param": torch.randn(50)},
    "fairscale": {
        "decoder.flat_param_0": torch.randn(50),
        "decoder.version": torch.ones(1),
    },
}


@pytest.mark.parametrize("kind", FLAT)
def test_flat_parameters_are_named(kind: str, tmp_path: Path) -> None:
    (row,) = findings(FLAT[kind], tmp_path, "flat-parameters", "no-weights")
    assert (row.code, row.level) == ("flat-parameters", "warning")
    assert set(row.tensors) == {name for name in FLAT[kind] if "flat" in name}
    assert "FULL_STATE_DICT" in (row.consequence or "")


def test_the_part_of_a_rank(tmp_path: Path) -> None:
    """`use_orig_params` of FSDP 1: the names are there, and each rank holds a piece of
    some.
    """
    pieces = {
        name: torch.randn(5) if i % 3 else torch.empty(0)
        for i, name in enumerate(NAMES)
    }
    (row,) = findings(pieces, tmp_path, "flat-parameters", "no-weights")
    assert (
        row.code == "flat-parameters"
        and "as a rank of FSDP 1 keeps its part" in row.message
    )


def adapter_in_training(values: torch.Tensor, between: str) -> scaled.Tensors:
    """An adapter as PEFT holds it while it trains, with the name of the adapter behind
    the module; or as it saves it.
    """
    start = "base_model.model.model.layers"
    return {
        f"{start}.{layer}.self_attn.q_proj.lora_{letter}.{between}weight": values
        for layer in range(3)
        for letter in "AB"
    }


@pytest.mark.parametrize("between", ["", "default.", "my_adapter."])
def test_the_part_of_an_adapter_that_a_rank_keeps(between: str, tmp_path: Path) -> None:
    """The matrices are lists: with or without the name of the adapter behind them."""
    pieces = adapter_in_training(torch.randn(5), between)
    (row,) = findings(pieces, tmp_path, "flat-parameters", "no-weights")
    assert row.code == "flat-parameters" and set(row.tensors) == set(pieces)
    ones = adapter_in_training(torch.ones(1), between)
    (row,) = findings(ones, tmp_path, "no-weights")
    assert "6 of 6 parameters have one element" in row.message
    whole = adapter_in_training(torch.randn(5, 5), between)
    assert not findings(whole, tmp_path, "flat-parameters", "no-weights")


@pytest.mark.parametrize("module", ["lora_x", "q_proj"])
def test_lists_behind_other_modules_are_no_part_of_a_rank(
    module: str, tmp_path: Path
) -> None:
    names = [f"layers.{layer}.{module}.norm.weight" for layer in range(6)]
    lists = {name: torch.randn(5) for name in names}
    assert not findings(lists, tmp_path, "flat-parameters", "no-weights")


@pytest.mark.needs("quantised")
def test_weights_in_eight_bits_are_counted(tmp_path: Path) -> None:
    """They stand beside their scales; the norms are a hundredth of them."""
    model: dict[str, torch.Tensor] = {}
    for layer in range(4):
        name = f"model.layers.{layer}"
        model[f"{name}.mlp.up_proj.weight"] = torch.randn(64, 64).to(
            torch.float8_e4m3fn
        )
        model[f"{name}.mlp.up_proj.weight_scale_inv"] = torch.ones(1, 1)
        model[f"{name}.norm.weight"] = torch.ones(64, dtype=torch.bfloat16)
    save_file(model, tmp_path / "a.safetensors")
    headline = ckpt("inspect", "a.safetensors", cwd=tmp_path).lines[0]
    assert (
        "16.6 K parameters · float8 with one scale, bfloat16 · 8.01 bits per quantised weight"
        in headline
    )
    row = json.loads(ckpt("ls", "a.safetensors", "--json", cwd=tmp_path).out)
    assert (row["dtypes"][0], row["parameters"]) == (
        "float8 with one scale",
        4 * (64 * 64 + 64),
    )


@pytest.mark.needs("quantised")
def test_packed_weights_are_not_passed_over(tmp_path: Path) -> None:
    """Nothing says that codes in int32 are parameters, but those that they stand for
    are.
    """
    model: dict[str, torch.Tensor] = {
        "norm.weight": torch.ones(8, dtype=torch.bfloat16)
    }
    for part, shape in (
        ("qweight", (64, 64)),
        ("qzeros", (1, 8)),
        ("scales", (1, 64)),
        ("g_idx", (512,)),
    ):
        dtype = torch.float16 if part == "scales" else torch.int32
        model[f"fc.{part}"] = torch.ones(shape, dtype=dtype)
    save_file(model, tmp_path / "a.safetensors")
    headline = ckpt("inspect", "a.safetensors", cwd=tmp_path).lines[0]
    assert (
        "32.8 K parameters · 4 bits (GPTQ, a scale for each row), bfloat16" in headline
    )
    (row,) = (
        line
        for line in ckpt("ls", "a.safetensors", cwd=tmp_path).lines
        if line.startswith("a.")
    )
    assert "32.8 K  4 bits (GPTQ) +1" in row


@pytest.mark.parametrize(("others", "level"), [(0, "error"), (1, "warning")])
def test_tensors_on_meta_hold_no_values(
    others: int, level: str, tmp_path: Path
) -> None:
    state = {
        "a.weight": torch.empty(2, 2, device="meta"),
        "b.weight": torch.empty(2, device="meta"),
    }
    torch.save(
        {**state, **{f"c{n}.weight": torch.ones(2) for n in range(others)}},
        tmp_path / "m.bin",
    )

    (row,) = [
        row
        for row in package.inspect(str(tmp_path / "m.bin")).findings
        if row.code == "no-weights"
    ]

    assert row.level == level and row.tensors == ("a.weight", "b.weight")
    assert "2 tensors are on the device meta, saved without values" in row.message
    assert b"no-weights" in ckpt("lint", tmp_path / "m.bin").out
    assert (
        b"on the device meta, saved without values"
        in ckpt("verify", tmp_path / "m.bin").out
    )


def test_a_tied_parameter_counts_once(tmp_path: Path) -> None:
    """As in the sum over `model.parameters()`."""
    net = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(8, 4), "head": torch.nn.Linear(4, 8, bias=False)}
    )
    net["head"].weight = net["embed"].weight
    torch.save(net.state_dict(), tmp_path / "a.pt")
    count = sum(value.numel() for value in net.parameters())
    assert f" · {count} parameters · " in ckpt("inspect", "a.pt", cwd=tmp_path).lines[0]
    row = json.loads(ckpt("ls", "a.pt", "--json", cwd=tmp_path).out)
    assert row["parameters"] == count == 32
