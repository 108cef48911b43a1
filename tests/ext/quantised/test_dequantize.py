"""`ckpt convert --dequantize`: the weights of each scheme equal what torch makes of the
same words, bit for bit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import quantised_layers as layers
import torch
from process import Run
from quantised_layers import LAYERS, Tensors
from safetensors.torch import load_file, save_file

import ckpt as library

Weight = torch.Tensor


def same_bits(one: Weight, other: Weight) -> bool:
    """Tell whether two tensors have one dtype, one shape and the same bytes; NaN counts
    by being one.
    """
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num().contiguous().view(torch.uint8),
        other.nan_to_num().contiguous().view(torch.uint8),
    )


def saved(path: Path, tensors: Tensors, stem: str = "a.") -> Path:
    made = {f"{stem}{name}": tensor.contiguous() for name, tensor in tensors.items()}
    made[f"{stem}bias"] = torch.ones(3)
    if path.suffix == ".safetensors":
        save_file(made, path)
    else:
        torch.save(made, path)
    return path


def only_weight(tensors: Tensors) -> Weight:
    """The one tensor beside the bias, which has the name that its model gives it."""
    (name,) = [name for name in tensors if name != "a.bias"]
    assert name in ("a.weight", "a.gate_up_proj")
    return tensors[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_every_scheme_is_what_torch_makes_of_it(
    tmp_path: Path, name: str, ending: str
) -> None:
    torch.manual_seed(len(name))
    make, text = LAYERS[name]
    tensors, weight = make()
    path = saved(tmp_path / f"q.{ending}", tensors)
    out = tmp_path / f"out.{ending}"
    report = library.convert(path, out=out, dequantize=True)
    result = (
        load_file(out)
        if ending == "safetensors"
        else torch.load(out, weights_only=True)
    )
    assert same_bits(only_weight(result), weight)
    assert [
        change.before for change in report.changes if change.kind == "dequantised"
    ] == [text]
    assert torch.equal(result["a.bias"], torch.ones(3))


@pytest.mark.parametrize(
    "name", ["fp8 blocks", "gptq", "nf4 nested", "mxfp4 experts", "packed zeros"]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_another_dtype_is_rounded_from_that_of_the_scheme(
    tmp_path: Path, name: str, dtype: str
) -> None:
    torch.manual_seed(1)
    tensors, weight = LAYERS[name][0]()
    path = saved(tmp_path / "q.safetensors", tensors)
    library.convert(
        path, out=tmp_path / "out.safetensors", dequantize=True, dtype=dtype
    )
    result = load_file(tmp_path / "out.safetensors")
    assert same_bits(only_weight(result), weight.to(getattr(torch, dtype)))
    assert result["a.bias"].dtype == getattr(torch, dtype)


def test_edge_values_are_what_torch_makes_of_them(tmp_path: Path) -> None:
    """All codes of 8-bit floats, with scales that are 0, infinite, NaN, subnormal and
    negative.
    """
    codes = torch.arange(256, dtype=torch.uint8).view(layers.FP8).repeat(7, 1)
    scales = torch.tensor(
        [0.0, float("inf"), float("nan"), 1e-40, -1.0, 3e38, 1.0]
    ).view(7, 1)
    path = saved(tmp_path / "q.safetensors", {"weight": codes, "weight_scale": scales})
    library.convert(path, out=tmp_path / "out.safetensors", dequantize=True)
    weight = only_weight(load_file(tmp_path / "out.safetensors"))
    assert same_bits(weight, (codes.float() * scales).bfloat16())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("act_order", [False, True])
def test_asymmetric_gptq_takes_the_config(
    tmp_path: Path, bits: int, act_order: bool
) -> None:
    """Without a config nothing says whether zero points are stored less 1, so the layer
    stays as it is.
    """
    tensors, weight = layers.gptq(bits, act_order=act_order)
    path = saved(tmp_path / "model.safetensors", tensors)
    report = library.convert(path, out=tmp_path / "before.safetensors", dequantize=True)
    assert "checkpoint_format" in report.left_alone[0].what
    assert set(load_file(tmp_path / "before.safetensors")) == set(load_file(path))
    config = {
        "quantization_config": {"quant_method": "gptq", "bits": bits, "group_size": 32}
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    library.convert(
        tmp_path, out=tmp_path / "out" / "w.safetensors", parents=True, dequantize=True
    )
    assert same_bits(only_weight(load_file(tmp_path / "out" / "w.safetensors")), weight)


def test_the_second_format_of_gptq_is_named(tmp_path: Path) -> None:
    tensors, weight = layers.gptq(version=2)
    saved(tmp_path / "model.safetensors", tensors)
    fields = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "checkpoint_format": "gptq_v2",
    }
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": fields}))
    library.convert(tmp_path, out=tmp_path / "w.safetensors", dequantize=True)
    assert same_bits(only_weight(load_file(tmp_path / "w.safetensors")), weight)


def test_some_layers_have_other_bits(tmp_path: Path) -> None:
    """gptqmodel names them in `dynamic`, and AutoRound in `extra_config`."""
    tensors, weight = layers.gptq(8, group=64)
    saved(tmp_path / "model.safetensors", tensors)
    fields = {"quant_method": "gptq", "bits": 4, "group_size": 32, "format": "gptq"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"quantization_config": fields}))
    report = library.convert(
        tmp_path, out=tmp_path / "before.safetensors", dequantize=True
    )
    assert "the config says 4" in report.left_alone[0].what
    for name in ("dynamic", "extra_config"):
        mixed = fields | {name: {"a": {"bits": 8, "group_size": 64}}}
        path.write_text(json.dumps({"quantization_config": mixed}))
        out = tmp_path / "out" / f"{name}.safetensors"
        library.convert(
            tmp_path / "model.safetensors", out=out, parents=True, dequantize=True
        )
        assert same_bits(only_weight(load_file(out)), weight)


def test_a_file_beside_config_json_says_the_rest(tmp_path: Path) -> None:
    """Models of AutoGPTQ and AutoAWQ name the dtype in config.json, and the groups in a
    file of their own.
    """
    cases = {
        "quantize_config.json": (layers.gptq(), {"bits": 4, "group_size": 32}),
        "quant_config.json": (
            layers.awq(),
            {"w_bit": 4, "q_group_size": 32, "version": "GEMM"},
        ),
    }
    for name, ((tensors, weight), fields) in cases.items():
        folder = tmp_path / name.removesuffix(".json")
        folder.mkdir()
        path = saved(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps({"torch_dtype": "float16"}))
        (folder / name).write_text(json.dumps(fields))
        library.convert(path, out=folder / "w.safetensors", dequantize=True)
        assert same_bits(only_weight(load_file(folder / "w.safetensors")), weight)
    (folder / name).write_text(json.dumps(fields | {"version": "GEMV"}))
    report = library.convert(path, out=folder / "x.safetensors", dequantize=True)
    assert "the config says GEMV" in report.left_alone[0].what


@pytest.mark.parametrize("kind", ["gptq_p", "marlin"])
def test_another_order_of_bits_is_refused(tmp_path: Path, kind: str) -> None:
    tensors, _ = layers.gptq(3)
    path = saved(tmp_path / "model.safetensors", tensors)
    fields = {"quant_method": "gptq", "bits": 3, "group_size": 32, "format": kind}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": fields}))
    report = library.convert(path, out=tmp_path / "w.safetensors", dequantize=True)
    assert (
        f"the config says {kind}, which packs in another order"
        in report.left_alone[0].what
    )


def test_a_last_group_may_be_short(tmp_path: Path) -> None:
    tensors, weight = layers.gptq(columns=160, group=64, is_symmetric=True)
    path = saved(tmp_path / "q.safetensors", tensors)
    library.convert(path, out=tmp_path / "out.safetensors", dequantize=True)
    assert same_bits(only_weight(load_file(tmp_path / "out.safetensors")), weight)


def test_large_layers_are_decoded_in_pieces(tmp_path: Path) -> None:
    """More rows than are decoded at once, on both sides of what is held while columns
    are read.
    """
    made = {
        "gptq": layers.gptq(
            rows=2048, columns=1024, group=128, is_symmetric=True, act_order=True
        )
    }
    made["awq"] = layers.awq(2048, 1024, 128)
    made["fp8"] = layers.fp8_blocks(1500, 1030)
    made["nf4"] = layers.nf4(shape=(1500, 1030), is_nested=True)
    tensors = {
        f"{name}.{key}": part
        for name, (parts, _) in made.items()
        for key, part in parts.items()
    }
    save_file(tensors, tmp_path / "q.safetensors")
    library.convert(
        tmp_path / "q.safetensors", out=tmp_path / "out.safetensors", dequantize=True
    )
    result = load_file(tmp_path / "out.safetensors")
    assert {
        name: same_bits(result[f"{name}.weight"], weight)
        for name, (_, weight) in made.items()
    } == dict.fromkeys(made, True)


def write_gptq(folder: Path) -> None:
    """Write a folder of a Llama with one layer in GPTQ, and its config.json."""
    torch.manual_seed(0)
    tensors, _ = layers.gptq(group=32, is_symmetric=True)
    saved(folder / "model.safetensors", tensors)
    fields = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": fields})
    )


def test_the_command_says_what_became_of_what(ckpt: Run, tmp_path: Path) -> None:
    write_gptq(tmp_path)
    run = ckpt(
        "convert",
        tmp_path,
        "--dequantize",
        "--dtype",
        "bfloat16",
        "-o",
        tmp_path / "w.safetensors",
    )
    assert run.returncode == 0
    assert "4 bits (GPTQ, groups of 32) → bfloat16" in run.stdout
    assert "config.json: its quantization_config still says gptq" in run.stdout
    run = ckpt(
        "convert", tmp_path, "--dequantize", "--with-config", "-o", tmp_path / "out"
    )
    assert run.returncode == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "model_type": "llama"
    }
    assert "left out: quantization_config of config.json" in run.stdout


@pytest.mark.parametrize("command", ["convert", "slim"])
def test_weights_that_stay_quantised_are_said_with_the_option_that_helps(
    ckpt: Run, tmp_path: Path, command: str
) -> None:
    write_gptq(tmp_path)
    note = "left alone: 1 weight in GPTQ with scales: codes beside their scales"
    way = "(--dequantize makes floats of them)"

    run = ckpt(command, tmp_path, "-o", tmp_path / "w.safetensors")
    assert run.returncode == 0
    assert f"{note}  {way}" in run.stdout
    run = ckpt(command, tmp_path, "--dequantize", "-o", tmp_path / "f.safetensors")
    assert run.returncode == 0
    assert note not in run.stdout


MISFITS = {
    "zero points of floats": (
        lambda: layers.awq()[0] | {"qzeros": torch.zeros(4, 8)},
        "qzeros is float32",
    ),
    "a scale of another grid": (
        lambda: layers.fp8_blocks()[0] | {"weight_scale_inv": torch.rand(2, 3)},
        "3 × 3|2 × 3",
    ),
    "other bits": (
        lambda: layers.gptq()[0] | {"qzeros": torch.zeros(4, 5, dtype=torch.int32)},
        "bits",
    ),
    "too few columns in g_idx": (
        lambda: layers.gptq()[0] | {"g_idx": torch.zeros(9, dtype=torch.int32)},
        "g_idx",
    ),
    "a state that is not JSON": (
        lambda: (
            layers.nf4()[0]
            | {
                "weight.quant_state.bitsandbytes__nf4": torch.zeros(
                    9, dtype=torch.uint8
                )
            }
        ),
        "quant_state",
    ),
    "another shape": (
        lambda: layers.packed()[0] | {"weight_shape": torch.tensor([40, 200])},
        "words|groups",
    ),
    "another packing": (
        lambda: layers.hqq()[0] | {"packing": torch.zeros(7, dtype=torch.uint8)},
        "packing .* is not known",
    ),
    "a shape of more weights": (
        lambda: layers.hqq()[0] | {"shape": torch.tensor([48, 128])},
        "says 6,144 weights, and its codes do not",
    ),
    "a shape of no weight": (
        lambda: layers.hqq()[0] | {"shape": torch.tensor([-48, -64])},
        "its shape is none of a weight",
    ),
    "codes stored as floats": (
        lambda: layers.hqq()[0] | {"view_as_float": torch.tensor(1, dtype=torch.uint8)},
        "view_as_float is set",
    ),
    "two dtypes": (
        lambda: layers.hqq()[0] | {"zero": torch.zeros(96, 1)},
        "of several dtypes",
    ),
    "quanto with 4 bits": (
        lambda: {
            "weight._data._data": torch.zeros(8, 32, dtype=torch.uint8),
            "weight._scale": torch.ones(16, 1),
            "weight._shift": torch.ones(16, 1),
        },
        "does not say the shape",
    ),
    "a GPU's order": (
        lambda: (
            layers.llm_int8()[0] | {"weight_format": torch.tensor(2, dtype=torch.uint8)}
        ),
        "order",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_contradicts_itself_stays_as_it_is(
    ckpt: Run, tmp_path: Path, name: str
) -> None:
    import re

    make, words = MISFITS[name]
    tensors = make()
    path = saved(tmp_path / "q.safetensors", tensors)
    run = ckpt("convert", path, "--dequantize", "-o", tmp_path / "out.safetensors")
    assert run.returncode == 0, run.stderr
    assert re.search(rf"stays quantised: nearly .*({words})", run.stdout), run.stdout
    result = load_file(tmp_path / "out.safetensors")
    assert {key: tuple(tensor.shape) for key, tensor in result.items()} == {
        key: tuple(tensor.shape) for key, tensor in load_file(path).items()
    }


STATES = {
    "a dtype that is a list": {"dtype": []},
    "a dtype that is a dict": {"dtype": {}},
    "a block size that is no whole number": {"blocksize": 64.0},
    "an offset that no float holds": {"nested_offset": 10**400},
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_with_fields_of_other_types_is_no_weight(
    ckpt: Run, tmp_path: Path, name: str
) -> None:
    tensors, _ = layers.nf4()
    key = "weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(tensors[key].tolist())) | STATES[name]
    tensors[key] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    path = saved(tmp_path / "q.safetensors", tensors)
    run = ckpt("convert", path, "--dequantize", "-o", tmp_path / "out.safetensors")
    assert run.returncode == 0, run.stderr
    assert "stays quantised: nearly bitsandbytes, but its" in run.stdout


EXPANDED = {
    "GPTQ": {
        "qweight": torch.zeros(1, 1, dtype=torch.int32).expand(2**33, 8),
        "scales": torch.ones(1, 8).half(),
        "qzeros": torch.zeros(1, 1, dtype=torch.int32),
    },
    "FP8": {
        "weight": torch.zeros(1, 1).to(torch.float8_e4m3fn).expand(1, 2**40),
        "weight_scale": torch.ones(1),
    },
    "int8": {
        "weight": torch.zeros(1, 1, dtype=torch.int8).expand(2**20, 2**20),
        "weight_scale": torch.ones(1),
    },
}


@pytest.mark.parametrize("name", EXPANDED)
def test_a_view_that_expands_is_no_weight(ckpt: Run, tmp_path: Path, name: str) -> None:
    """Two KiB of file would be read as terabytes of weights."""
    torch.save(
        {f"a.{key}": tensor for key, tensor in EXPANDED[name].items()},
        tmp_path / "q.pth",
    )
    run = ckpt(
        "convert",
        tmp_path / "q.pth",
        "--dequantize",
        "--dry-run",
        "-o",
        tmp_path / "out.pth",
    )
    assert f"nearly {name}, but" in run.stdout
    assert "bytes that expands to" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_small_steps_make_the_same(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many spans, pieces of few columns, and no table, which files of real
    sizes need.
    """
    torch.manual_seed(2)
    tensors, weight = LAYERS[name][0]()
    path = saved(tmp_path / "q.safetensors", tensors)
    for constant, value in (
        ("matrix.ELEMENTS", 300),
        ("unpacking.PIECE", 8),
        ("unpacking.HELD", 0),
        ("matrix.WORTH", 0),
    ):
        monkeypatch.setattr(f"ckpt.ext.quantised.{constant}", value)
    library.convert(path, out=tmp_path / "table.safetensors", dequantize=True)
    monkeypatch.setattr("ckpt.ext.quantised.matrix.WORTH", 1 << 62)
    library.convert(path, out=tmp_path / "direct.safetensors", dequantize=True)
    assert same_bits(only_weight(load_file(tmp_path / "table.safetensors")), weight)
    assert same_bits(only_weight(load_file(tmp_path / "direct.safetensors")), weight)
