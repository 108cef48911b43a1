"""`ckpt inspect` of quantised weights: each is one tensor with its own shape, and its
parts stay in JSON and with --all.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import quantised_layers as layers
import torch
from process import Run, terminal
from quantised_layers import LAYERS
from safetensors.torch import save_file

import ckpt as library


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_every_scheme_is_one_weight(ckpt: Run, tmp_path: Path, name: str) -> None:
    make, text = LAYERS[name]
    tensors, weight = make()
    path = tmp_path / "q.safetensors"
    save_file(
        {f"a.{key}": tensor for key, tensor in tensors.items()}
        | {"norm": torch.ones(3)},
        path,
    )
    document = json.loads(ckpt("inspect", path, "--json").stdout)
    (row,) = document["quantised"]
    assert row["name"] in ("a.weight", "a.gate_up_proj")
    assert (row["text"], row["shape"], row["numel"]) == (
        text,
        list(weight.shape),
        weight.numel(),
    )
    assert row["bytes"] == sum(
        tensor["bytes"]
        for tensor in document["tensors"]
        if tensor["name"] in {part["name"] for part in row["parts"]}
    )
    assert row["dtype"] == str(weight.dtype).removeprefix("torch.")
    assert {part["name"] for part in row["parts"]} <= {
        tensor["name"] for tensor in document["tensors"]
    }
    out = ckpt("inspect", path).stdout
    assert text in out
    assert f"[{', '.join(map(str, weight.shape))}]" in out
    everything = ckpt("inspect", path, "--all").stdout
    assert all(part["name"] in everything for part in row["parts"])


def test_parameters_are_counted_as_weights(ckpt: Run, tmp_path: Path) -> None:
    tensors, weight = layers.gptq(rows=128, columns=256, group=64)
    path = tmp_path / "q.safetensors"
    save_file({f"a.{key}": tensor for key, tensor in tensors.items()}, path)
    head = ckpt("inspect", path).stdout.splitlines()[0]
    assert "32.8 K parameters" in head
    # 4 bits, and 16 + 4 bits for each group of 64, and 32 bits for each column of
    # g_idx.
    assert f"{4 + 20 / 64 + 32 / 128:.2f} bits per quantised weight" in head
    assert weight.numel() == 128 * 256


@pytest.mark.parametrize("options", [["--all"], ["--bars"], ["--storages"]])
def test_every_view_counts_weights(
    ckpt: Run, tmp_path: Path, options: list[str]
) -> None:
    tensors, weight = layers.gptq(rows=128, columns=256, group=64)
    path = tmp_path / "q.safetensors"
    save_file({f"a.{key}": tensor for key, tensor in tensors.items()}, path)
    plain = ckpt("inspect", path).stdout.splitlines()[0]

    head = ckpt("inspect", path, *options).stdout.splitlines()[0]

    assert "32.8 K parameters" in plain and weight.numel() == 32_768
    apart = "" if options == ["--all"] else ", 1 when dequantised"
    assert f" · {len(tensors)} tensors{apart} · " in head
    assert f"{len(tensors)} tensors" in ckpt("stats", path).stdout.splitlines()[0]
    assert head.split(" · ")[3:] == plain.split(" · ")[3:]


def test_what_is_not_quantised_has_no_such_field(tmp_path: Path) -> None:
    save_file(
        {"a.weight": torch.ones(3, 3), "a.scale": torch.ones(3)},
        tmp_path / "plain.safetensors",
    )
    assert "quantised" not in library.inspect(tmp_path / "plain.safetensors").to_json()


def test_what_nearly_fits_is_said(ckpt: Run, tmp_path: Path) -> None:
    tensors, _ = layers.fp8_blocks()
    path = tmp_path / "q.safetensors"
    save_file(tensors | {"weight_scale_inv": torch.rand(2, 2)}, path)
    out = " ".join(ckpt("inspect", path).stdout.split())
    assert "Nearly FP8, but a scale of 2 × 2 does not fit codes of 300 × 260" in out


def test_a_selection_of_parts_shows_parts(ckpt: Run, tmp_path: Path) -> None:
    tensors, _ = layers.gptq()
    path = tmp_path / "q.safetensors"
    save_file({f"a.{key}": tensor for key, tensor in tensors.items()}, path)
    run = ckpt("inspect", path, "--include", "*.qzeros")
    assert run.returncode == 0
    assert "a.qzeros" in run.stdout


def test_a_report_outlives_its_file(tmp_path: Path) -> None:
    tensors, _ = layers.nf4(is_nested=True)
    path = tmp_path / "q.safetensors"
    save_file(tensors, path)
    report = library.inspect(path)
    assert pickle.loads(pickle.dumps(report)).to_json() == report.to_json()


def gptq_file(folder: Path) -> Path:
    """A model of GPTQ: two layers of long names, and an embedding."""
    made = {"model.embed_tokens.weight": torch.randn(40, 128, dtype=torch.float16)}
    for layer in range(2):
        tensors, _ = layers.gptq(rows=128, columns=11_008, group=128, is_symmetric=True)
        stem = f"model.layers.{layer}.block_sparse_moe.down_projection."
        made |= {f"{stem}{key}": tensor for key, tensor in tensors.items()}
    folder.mkdir(exist_ok=True)
    save_file(made, folder / "model.safetensors")
    return folder / "model.safetensors"


def test_ls_counts_weights(ckpt: Run, tmp_path: Path) -> None:
    path = gptq_file(tmp_path / "gptq")
    row = ckpt("ls", path).stdout.splitlines()[1]
    assert "2.82 M" in row and "?" not in row
    assert "4 bits (GPTQ) +1" in row
    document = json.loads(ckpt("ls", "--json", path).stdout.splitlines()[0])
    assert (document["parameters"], document["unknown"]) == (
        2 * 128 * 11_008 + 40 * 128,
        0,
    )
    assert document["tensors"] == 9


def test_names_are_shown_before_groups(ckpt: Run, tmp_path: Path) -> None:
    path = gptq_file(tmp_path / "gptq")
    text = terminal("inspect", str(path), columns=80)
    assert "down_projection.weight" in text
    assert "4 bits (GPTQ) " in text
    assert "4 bits (GPTQ, groups of 128)" in text.replace(
        "\n", " "
    )  # the headline says it
    assert (
        "4 bits (GPTQ, groups of 128)" in ckpt("inspect", path).stdout.splitlines()[-1]
    )


def test_lint_names_the_way_back(ckpt: Run, tmp_path: Path) -> None:
    run = ckpt("lint", gptq_file(tmp_path / "gptq"), "--level", "info")
    assert "ckpt convert --dequantize" in " ".join(run.stdout.split())


def test_slim_makes_floats(ckpt: Run, tmp_path: Path) -> None:
    path = gptq_file(tmp_path / "gptq")
    config = {
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}
    }
    (path.parent / "config.json").write_text(
        json.dumps({"model_type": "llama", **config})
    )
    out, other = tmp_path / "slim.safetensors", tmp_path / "convert.safetensors"
    run = ckpt("slim", path, "--dequantize", "-o", out)
    assert run.returncode == 0, run.stderr
    library.convert(path, out=other, dequantize=True)
    assert ckpt("diff", out, other).returncode == 0
    assert (
        ckpt(
            "slim", path.parent, "--dequantize", "--with-config", "-o", tmp_path / "out"
        ).returncode
        == 0
    )
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "model_type": "llama"
    }


@pytest.mark.parametrize("word", ["bits", "wbits", "w_bit"])
def test_other_words_of_a_config_contradict_too(tmp_path: Path, word: str) -> None:
    files = Path(__file__).parents[2] / "quantised_files"
    path = tmp_path / "a.safetensors"
    shutil.copy(files / "gptq4-symmetric-v1.safetensors", path)
    (tmp_path / "quantize_config.json").write_text(json.dumps({word: 8}))

    assert "the config says 8" in json.dumps(library.inspect(path).to_json())


def fp8_folder(folder: Path, size: int, facts: dict[str, Any]) -> Path:
    """A folder with small and large matrices in FP8, in blocks of `size`, or with one
    scale each where it is 0.
    """
    made: dict[str, torch.Tensor] = {}
    for number, (rows, columns) in enumerate(((256, 128), (128, 64), (32, 64))):
        name = f"layers.{number}.proj.weight"
        made[name] = (torch.randn(rows, columns) * 40).to(torch.float8_e4m3fn)
        if size:
            scale = torch.rand(-(-rows // size), -(-columns // size)) * 0.01
            made[f"{name}_scale_inv"] = scale
        else:
            made[f"{name}_scale"] = torch.rand(1) * 0.01
    folder.mkdir()
    save_file(made, folder / "model.safetensors")
    config = {"quantization_config": {"quant_method": "fp8", **facts}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("size", "facts", "scheme"),
    [
        (0, {}, "float8 with one scale"),
        (64, {"weight_block_size": [64, 64]}, "float8 blocks of 64 × 64"),
        (128, {"weight_block_size": [128, 128]}, "float8 blocks of 128 × 128"),
        (128, {}, "float8 blocks of 128 × 128"),
    ],
)
def test_one_scheme_of_matrices_of_all_sizes_has_one_name(
    size: int, facts: dict[str, Any], scheme: str, tmp_path: Path
) -> None:
    folder = fp8_folder(tmp_path / "fp8", size, facts)
    shown = library.inspect(folder).to_json()
    assert {row["text"] for row in shown["quantised"]} == {scheme}
