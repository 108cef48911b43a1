"""Quantised layers beside what contradicts them: configs of several kinds, names that
are taken, parts that are views, numbers that are not finite.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import quantised_layers as layers
import torch
from process import Run
from quantised_layers import FP8, Tensors
from safetensors.torch import load_file, save_file

import ckpt as library
from ckpt.surface.api.config_files import document_bytes


def saved(path: Path, tensors: Tensors, stem: str = "a.") -> Path:
    made = {f"{stem}{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(made, path)
    return path


def with_config(folder: Path, fields: dict[str, object]) -> None:
    document = {"model_type": "llama", "quantization_config": fields}
    (folder / "config.json").write_text(json.dumps(document))


def why_it_stays(ckpt: Run, path: Path) -> str:
    """The words of `convert --dequantize` on codes that stay."""
    out = path.parent / "out.safetensors"
    done = ckpt("convert", path, "--dequantize", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "stays quantised" in done.stdout, done.stdout
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("word", ["group_size", "q_group_size"])
def test_groups_of_another_size_contradict(
    ckpt: Run, tmp_path: Path, word: str
) -> None:
    path = saved(tmp_path / "q.safetensors", layers.awq()[0])
    (tmp_path / "quant_config.json").write_text(json.dumps({word: 64}))
    said = why_it_stays(ckpt, path)
    assert "4 groups for 128 columns are not groups of 64, as the config says" in said


def test_bits_that_groups_of_a_config_do_not_agree_on_count_for_nothing(
    tmp_path: Path,
) -> None:
    tensors, weight = layers.packed(8)
    path = saved(tmp_path / "q.safetensors", tensors)
    groups = {
        f"group_{bits}": {"weights": {"num_bits": bits, "group_size": 32}}
        for bits in (4, 8)
    }
    with_config(tmp_path, {"quant_method": "x", "config_groups": groups})
    library.convert(path, out=tmp_path / "out.safetensors", dequantize=True)
    assert torch.equal(load_file(tmp_path / "out.safetensors")["a.weight"], weight)


def test_a_weight_that_is_there_already_is_not_replaced(
    ckpt: Run, tmp_path: Path
) -> None:
    tensors, _ = layers.gptq(is_symmetric=True)
    path = saved(tmp_path / "q.safetensors", tensors | {"weight": torch.ones(3, 3)})
    assert "a.weight is there already" in why_it_stays(ckpt, path)
    kept = load_file(tmp_path / "out.safetensors")
    assert torch.equal(kept["a.weight"], torch.ones(3, 3)) and "a.qweight" in kept


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_the_reason_is_of_the_scheme_that_the_config_names(
    ckpt: Run, tmp_path: Path, method: str
) -> None:
    tensors = layers.awq()[0] | {"qzeros": torch.zeros(4, 8)}
    path = saved(tmp_path / "q.safetensors", tensors)
    with_config(tmp_path, {"quant_method": method})
    assert f"nearly {method.upper()}, but" in why_it_stays(ckpt, path)


def test_a_part_that_is_negated_is_no_part(ckpt: Run, tmp_path: Path) -> None:
    scale = torch._neg_view(torch.ones(4, 1))
    torch.save(
        {"a.weight": torch.ones(4, 4).to(FP8), "a.weight_scale": scale},
        tmp_path / "q.pth",
    )
    out = tmp_path / "out.pth"
    done = ckpt("convert", tmp_path / "q.pth", "--dequantize", "-o", out)
    assert "scale is a view that is negated" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("act_order", [99, -1])
def test_a_group_that_is_not_there_is_named(
    ckpt: Run, tmp_path: Path, act_order: int
) -> None:
    tensors, _ = layers.gptq(is_symmetric=True)
    tensors["g_idx"][7] = act_order
    path = saved(tmp_path / "q.safetensors", tensors)
    assert f"g_idx names group {act_order}, and there are 4" in why_it_stays(ckpt, path)


def test_zero_points_of_small_floats_are_not_passed_over(
    ckpt: Run, tmp_path: Path
) -> None:
    tensors, _ = layers.fp8_rows()
    for number, is_read in ((0, True), (1, False)):
        zeros = torch.full((48, 1), number, dtype=torch.int8)
        path = saved(
            tmp_path / f"{number}.safetensors", tensors | {"weight_zero_point": zeros}
        )
        out = tmp_path / f"{number}.out.safetensors"
        done = ckpt("convert", path, "--dequantize", "-o", out)
        assert ("zero points that are not 0" in done.stdout) is not is_read


def test_what_a_narrow_dtype_loses_is_counted(ckpt: Run, tmp_path: Path) -> None:
    codes = torch.ones(4, 32).to(FP8)
    scale = torch.tensor([[1.0], [1e-12], [1e12], [1e12]])
    path = saved(tmp_path / "q.safetensors", {"weight": codes, "weight_scale": scale})
    out = tmp_path / "out.safetensors"
    done = ckpt("convert", path, "--dequantize", "--dtype", "float16", "-o", out)
    said = " ".join((done.stdout + done.stderr).split())
    assert "64 elements became infinite" in said
    assert "32 elements became 0" in said


def test_a_nan_of_all_bits_stays_a_nan(tmp_path: Path) -> None:
    """Rounding to bfloat16 would carry into the sign."""
    scale = torch.tensor([[0x7FFFFFFF], [0x3F800000]], dtype=torch.int32)
    parts = {
        "weight": torch.ones(2, 32).to(FP8),
        "weight_scale": scale.view(torch.float32),
    }
    path = saved(tmp_path / "q.safetensors", parts)
    library.convert(path, out=tmp_path / "out.safetensors", dequantize=True)
    weight = load_file(tmp_path / "out.safetensors")["a.weight"]
    assert weight[0].isnan().all() and torch.equal(weight[1].float(), torch.ones(32))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_not_within(
    tmp_path: Path, number: float
) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(64, 128) * 0.02).bfloat16().float()
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(FP8)
    scale[9] = number
    path = saved(tmp_path / "q.safetensors", {"weight": codes, "weight_scale": scale})
    base = saved(tmp_path / "b.safetensors", {"weight": weight.bfloat16()})
    report = library.diff(base, path)
    (row,) = report.to_json()["quantised"]["weights"]
    assert row["verdict"] != "within" and row["error"] is None
    assert report.exit_code == 1


def test_a_scale_of_few_bits_is_not_stale(tmp_path: Path) -> None:
    """Some groups are so small that float16 has no exact scale for them."""
    torch.manual_seed(1)
    weight = torch.randn(64, 256) * 0.02
    weight[::5, 64:128] *= 1e-5
    weight = weight.bfloat16().float()
    order = torch.arange(256) // 64
    largest = weight.view(64, 4, 64).abs().amax(-1)
    scales = (largest / 7).half().clamp(min=6e-8)
    exact = (largest / 7)[:, order]  # the codes are made before the scale is rounded
    codes = (torch.round(weight / exact) + 8).clamp(0, 15).long()
    parts = {
        "qweight": layers.words(codes, 4).t().contiguous(),
        "qzeros": layers.words(torch.full((4, 64), 7), 4),
        "scales": scales.t().contiguous(),
    }
    path = saved(tmp_path / "q.safetensors", parts)
    base = saved(tmp_path / "b.safetensors", {"weight": weight.bfloat16()})
    (row,) = library.diff(base, path).to_json()["quantised"]["weights"]
    assert row["verdict"] == "within"


def test_a_section_and_a_selection_are_dequantised_alone(
    ckpt: Run, tmp_path: Path
) -> None:
    parts, _ = layers.fp8_rows()
    flat = {f"{name}.{key}": row for name in "ab" for key, row in parts.items()}
    torch.save({"model": flat, "ema": dict(flat)}, tmp_path / "q.pth")
    out = tmp_path / "section.safetensors"
    done = ckpt(
        "convert", tmp_path / "q.pth", "--section", "ema", "--dequantize", "-o", out
    )
    assert done.returncode == 0, done.stderr
    assert "2 weights" in done.stdout and set(load_file(out)) == {
        "a.weight",
        "b.weight",
    }

    path = tmp_path / "q.safetensors"
    save_file({name: row.clone() for name, row in flat.items()}, path)
    out = tmp_path / "chosen.safetensors"
    done = ckpt("convert", path, "--include", "a.*", "--dequantize", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "   1 weight, " in done.stdout and set(load_file(out)) == {"a.weight"}


def test_a_config_stays_where_some_weights_stay_quantised(
    ckpt: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    good, bad = layers.gptq(is_symmetric=True)[0], layers.gptq()[0]
    bad["g_idx"][0] = 77
    made = {f"a.{name}": row for name, row in good.items()}
    made |= {f"b.{name}": row for name, row in bad.items()}
    save_file(made, folder / "model.safetensors")
    with_config(folder, {"quant_method": "gptq", "bits": 4, "group_size": 32})
    out = tmp_path / "out"
    done = ckpt("convert", folder, "--dequantize", "--with-config", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "quantization_config" in json.loads((out / "config.json").read_text())
    kept = load_file(out / "model.safetensors")
    assert "a.weight" in kept and "b.qweight" in kept


@pytest.mark.parametrize("key", ["dtype", "torch_dtype", "transformers_version"])
def test_what_a_quantiser_writes_in_a_config_is_passed_over(
    tmp_path: Path, key: str
) -> None:
    torch.manual_seed(2)
    weight = (torch.randn(64, 128) * 0.02).bfloat16().float()
    scale = weight.abs().amax(1, keepdim=True) / 448
    sides = {
        "base": ({"weight": weight.bfloat16()}, "bfloat16"),
        "coded": (
            {"weight": (weight / scale).to(FP8), "weight_scale": scale},
            "float16",
        ),
    }
    for side, (tensors, value) in sides.items():
        (tmp_path / side).mkdir()
        saved(tmp_path / side / "model.safetensors", tensors)
        document = {"model_type": "llama", "hidden_size": 128, key: value}
        (tmp_path / side / "config.json").write_text(json.dumps(document))
    assert library.diff(tmp_path / "base", tmp_path / "coded").exit_code == 0


HALF = '"note": "\\ud83d"'
"""JSON that Python writes, and that no UTF-8 has as it is."""


def test_a_config_that_is_hard_to_write_is_no_bug(ckpt: Run, tmp_path: Path) -> None:
    path = saved(tmp_path / "model.safetensors", layers.gptq(is_symmetric=True)[0])
    with_config(tmp_path, {"quant_method": "gptq", "bits": 4})
    config = tmp_path / "config.json"
    config.write_text(f"{config.read_text()[:-1]}, {HALF}}}")
    out = tmp_path / "out"
    done = ckpt("convert", path, "--dequantize", "--with-config", "-o", out)
    assert done.returncode == 0, done.stderr
    written = json.loads((out / "config.json").read_text())
    assert written == {"model_type": "llama", "note": "\ud83d"}


def test_a_config_that_is_nested_too_deep_is_not_written_again() -> None:
    inner: list[object] = []
    # Python 3.13 writes ten thousand levels.
    for _ in range(100_000):
        inner = [inner]
    assert document_bytes({"note": inner}) is None
