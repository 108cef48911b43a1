"""Codes with scales in what writes: a cast refuses them, a mean and a warm start take
both or neither.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import scaled
import torch
from process import ckpt
from safetensors.torch import load_file, save_file
from scaled import identical
from torch import nn

import ckpt as package

CPU = {"map_location": "cpu", "weights_only": True}
MODEL = "model.layers.0.mlp"


def stored(tensors: scaled.Tensors, path: Path) -> Path:
    """Tensors as the ending of a path says."""
    if path.suffix == ".safetensors":
        save_file(tensors, path, metadata={"format": "pt"})
    else:
        torch.save(tensors, path)
    return path


def loaded(path: Path) -> scaled.Tensors:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, **CPU)  # type: ignore[no-any-return]


# --- convert --------------------------------------------------------------------------


def deepseek(folder: Path) -> Path:
    """A folder with two scaled matrices and a norm, as transformers saves it."""
    folder.mkdir()
    tensors = {"model.norm.weight": torch.ones(16, dtype=torch.bfloat16)}
    for name, scale in (("down", 0.25), ("up", 2.0**-9)):
        tensors[f"{MODEL}.{name}_proj.weight"] = scaled.eight_bits(16, 16)
        tensors[f"{MODEL}.{name}_proj.weight_scale_inv"] = torch.full((1, 1), scale)
    stored(tensors, folder / "model.safetensors")
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


@pytest.mark.needs("quantised", "folders")
@pytest.mark.parametrize("out", ["out.safetensors", "out.pt", "out.dcp"])
def test_a_cast_of_a_model_with_scales_is_refused(out: str, tmp_path: Path) -> None:
    source = deepseek(tmp_path / "fp8")
    done = ckpt("convert", source, "--dtype", "bfloat16", "-o", tmp_path / out)
    said = done.err.decode()
    assert (done.code, said.count("\n")) == (2, 1), said
    assert f"{MODEL}.{{down,up}}_proj.weight (FP8 with scales)" in said
    assert "--dequantize makes values of them; without --dtype" in said
    assert not (tmp_path / out).exists()


@pytest.mark.parametrize("kind", scaled.LAYERS)
@pytest.mark.parametrize(
    ("before", "after"),
    [(".safetensors", ".pt"), (".pt", ".safetensors"), (".pt", ".pt")],
)
def test_no_layout_is_cast(kind: str, before: str, after: str, tmp_path: Path) -> None:
    tensors = scaled.model(scaled.LAYERS[kind][0]())
    source = stored(tensors, tmp_path / f"in{before}")
    with pytest.raises(
        package.CkptError, match="hold codes, which are values only with their scales"
    ):
        package.convert(
            str(source), out=str(tmp_path / f"out{after}"), dtype="bfloat16"
        )
    assert not (tmp_path / f"out{after}").exists()

    if before != after:
        package.convert(str(source), out=str(tmp_path / f"out{after}"))
        assert identical(loaded(tmp_path / f"out{after}"), tensors)


@pytest.mark.parametrize("out", ["out.safetensors", "out.dcp"])
@pytest.mark.parametrize("kind", scaled.LAYERS)
def test_what_is_selected_without_codes_is_cast_and_no_scale(
    kind: str, out: str, tmp_path: Path
) -> None:
    layer = scaled.LAYERS[kind][0]()
    source = stored(scaled.model(layer), tmp_path / "in.safetensors")
    codes = next(iter(layer))
    report = package.convert(
        str(source),
        out=str(tmp_path / out),
        dtype="bfloat16",
        exclude=[f"layers.*.{codes}"],
    )
    with package.open(str(tmp_path / out)) as written:
        types = {name: written[name].dtype for name in written}
    norms = [name for name in types if name.endswith("norm.weight")]
    assert len(norms) == 2 and {types.pop(name) for name in norms} == {"bfloat16"}
    beside = {
        f"layers.{i}.{name}": value
        for i in (0, 1)
        for name, value in layer.items()
        if name != codes
    }
    assert types == {
        name: str(value.dtype).removeprefix("torch.") for name, value in beside.items()
    }
    kept = {row.name for row in report.left_alone}
    assert kept == {
        name
        for name, value in beside.items()
        if value.dtype.is_floating_point and value.dtype != torch.bfloat16
    }


@pytest.mark.parametrize("before", [".safetensors", ".pt"])
@pytest.mark.parametrize("after", [".safetensors", ".pt"])
def test_scales_beside_values_are_not_cast(
    before: str, after: str, tmp_path: Path
) -> None:
    """Those that nobody took away when the weights were multiplied."""
    tensors = {"a.weight": torch.randn(8, 8), "a.weight_scale_inv": torch.rand(1, 1)}
    source = stored(tensors, tmp_path / f"in{before}")
    report = package.convert(
        str(source), out=str(tmp_path / f"out{after}"), dtype="float16"
    )
    wanted = tensors | {"a.weight": tensors["a.weight"].half()}
    assert identical(loaded(tmp_path / f"out{after}"), wanted)
    assert [row.name for row in report.left_alone] == ["a.weight_scale_inv"]


def test_a_section_without_codes_is_cast(tmp_path: Path) -> None:
    both = {
        "model": scaled.model(scaled.deepseek()),
        "model_ema": {"a.weight": torch.ones(4, 4)},
    }
    torch.save(both, tmp_path / "in.pt")
    words = ("--dtype", "float16", "-o", tmp_path / "out.pt", "--section")
    assert ckpt("convert", tmp_path / "in.pt", *words, "model").code == 2
    assert ckpt("convert", tmp_path / "in.pt", *words, "model_ema").code == 0
    found = torch.load(tmp_path / "out.pt", **CPU)  # type: ignore[arg-type]
    assert found["model_ema"]["a.weight"].dtype == torch.float16
    assert identical(found["model"], both["model"])


def test_eight_bit_floats_without_scales_are_cast(tmp_path: Path) -> None:
    tensors = {
        "a.weight": scaled.eight_bits(8, 8),
        "a.norm.scale": scaled.eight_bits(8),
    }
    source = stored(tensors, tmp_path / "in.safetensors")
    package.convert(
        str(source), out=str(tmp_path / "out.safetensors"), dtype="bfloat16"
    )
    assert identical(
        load_file(tmp_path / "out.safetensors"),
        {name: value.bfloat16() for name, value in tensors.items()},
    )


def test_eight_bit_floats_whose_scale_must_be_elsewhere_are_not(tmp_path: Path) -> None:
    """A shard may hold a weight, and the next one its scale."""
    tensors = scaled.deepseek() | {"b.weight": scaled.eight_bits(8, 8)}
    source = stored(tensors, tmp_path / "in.safetensors")
    with pytest.raises(
        package.CkptError,
        match=r"b\.weight \(FP8, of which the scale is not in this file\)",
    ):
        package.convert(
            str(source),
            out=str(tmp_path / "out.safetensors"),
            dtype="bfloat16",
            include=["b.weight"],
        )


@pytest.mark.parametrize(
    "name", ["model-00001-of-00002.safetensors", "model.safetensors"]
)
def test_one_shard_may_have_its_scales_in_another(name: str, tmp_path: Path) -> None:
    tensors = {"a.weight": scaled.eight_bits(8, 8), "norm.weight": torch.ones(8)}
    source = stored(tensors, tmp_path / name)
    out = tmp_path / "out.safetensors"
    done = ckpt("convert", source, "--dtype", "bfloat16", "-o", out)
    is_part = "-of-" in name
    assert (done.code, out.exists()) == ((2, False) if is_part else (0, True)), done
    said = ckpt("inspect", source).out.decode()
    assert (
        "This is one file of several, so a scale may be in another" in said
    ) == is_part


@pytest.mark.needs("folders")
def test_scales_in_another_shard(tmp_path: Path) -> None:
    """The folder holds them together."""
    tensors = scaled.model(scaled.deepseek())
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    held = {name: files[name.endswith("_scale_inv")] for name in tensors}
    for file in files:
        stored(
            {name: tensors[name] for name in held if held[name] == file},
            tmp_path / file,
        )
    index = {"metadata": {}, "weight_map": held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    said = ckpt("inspect", tmp_path).out.decode()
    assert "FP8 with scales, blocks of 128 x 128: layers.0-1.a.weight" in said
    done = ckpt("convert", tmp_path, "--dtype", "bfloat16", "-o", tmp_path / "out.pt")
    assert done.code == 2 and b"hold codes" in done.err


# --- average --------------------------------------------------------------------------


def averaged(models: list[scaled.Tensors], folder: Path) -> scaled.Tensors:
    paths = [
        str(stored(model, folder / f"{number}.safetensors"))
        for number, model in enumerate(models)
    ]
    package.average(paths, out=str(folder / "mean.safetensors"))
    return load_file(folder / "mean.safetensors")


@pytest.mark.parametrize("kind", scaled.LAYERS)
def test_a_mean_of_models_that_differ_in_codes_or_scales_is_refused(
    kind: str, tmp_path: Path
) -> None:
    one = scaled.model(scaled.LAYERS[kind][0]())
    layer = scaled.LAYERS[kind][0]()
    other = scaled.model(
        {
            name: value if i else one[f"layers.0.{name}"]
            for i, (name, value) in enumerate(layer.items())
        }
    )
    with pytest.raises(package.CkptError, match="mean"):
        averaged([one, other], tmp_path)
    assert not (tmp_path / "mean.safetensors").exists()


@pytest.mark.parametrize("kind", scaled.LAYERS)
def test_a_mean_of_models_with_the_same_codes_and_scales(
    kind: str, tmp_path: Path
) -> None:
    one = scaled.model(scaled.LAYERS[kind][0]())
    other = one | {"layers.0.norm.weight": torch.full((16,), 3.0)}
    assert identical(
        averaged([one, other], tmp_path),
        one | {"layers.0.norm.weight": torch.full((16,), 2.0)},
    )


@pytest.mark.parametrize("order", [1, -1])
def test_a_mean_of_codes_and_values_is_refused(order: int, tmp_path: Path) -> None:
    """Nor does a hint leave the scales out."""
    one = scaled.model(scaled.deepseek())
    plain = {
        name: value.float()
        for name, value in one.items()
        if not name.endswith("_scale_inv")
    }
    paths = [
        stored(model, tmp_path / f"{i}.safetensors")
        for i, model in enumerate([one, plain][::order])
    ]
    done = ckpt("average", *paths, "-o", tmp_path / "mean.safetensors")
    assert done.code == 2 and not (tmp_path / "mean.safetensors").exists()
    words = ("--exclude", "*_scale_inv", "-o", tmp_path / "mean.safetensors")
    done = ckpt("average", *paths, *words)
    assert done.code == 2 and b"FP8 with scales" in done.err, done
    assert not (tmp_path / "mean.safetensors").exists()


# --- no weights -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [("convert", "out.safetensors"), ("slim", "out.pt"), ("rehome", "out.pt")]
)
def test_who_writes_an_empty_model_is_told(
    words: tuple[str, str], tmp_path: Path
) -> None:
    command, out = words
    source = stored(EMPTY, tmp_path / "in.pt")
    done = ckpt(command, source, "-o", tmp_path / out)
    assert done.code == 0 and (tmp_path / out).exists()
    assert done.err.decode() == (
        f"ckpt: {source}: The file holds no weights: 8 of 8 parameters are empty.\n"
    )
    whole = stored(WHOLE, tmp_path / "whole.pt")
    assert ckpt(command, whole, "-o", tmp_path / out, "--force").err == b""


# --- warmstart ------------------------------------------------------------------------


def warm(
    one: scaled.Tensors, two: scaled.Tensors, folder: Path, *words: str
) -> tuple[int, str, Path]:
    """The exit code, the text, and the file of a warm start."""
    source, target = (
        stored(one, folder / "one.safetensors"),
        stored(two, folder / "two.safetensors"),
    )
    out = folder / "out.safetensors"
    done = ckpt("warmstart", source, "--into", target, "-o", out, *words)
    return done.code, (done.out + done.err).decode(), out


def values_of(tensors: scaled.Tensors) -> scaled.Tensors:
    return {
        name: value.float()
        for name, value in tensors.items()
        if not name.endswith("_scale_inv")
    }


@pytest.mark.needs("quantised")
@pytest.mark.parametrize("to_values", [True, False])
def test_codes_do_not_become_values_nor_values_codes(
    to_values: bool, tmp_path: Path
) -> None:
    model = scaled.model(scaled.deepseek())
    sides = [model, values_of(model)][:: 1 if to_values else -1]
    code, said, out = warm(*sides, tmp_path)
    assert code != 0 and not out.exists()
    holder = "PRETRAINED" if to_values else "the target"
    assert (
        f"FP8 with scales in {holder}, values in the other: layers.0-1.a.weight" in said
    )
    assert (
        "ckpt convert --dequantize makes values of PRETRAINED first" in said
    ) == to_values

    code, said, out = warm(*sides, tmp_path, "--min-coverage", "0")
    assert code == 0, said
    found = load_file(out)
    assert identical(
        {name: value for name, value in found.items() if ".a." in name},
        {name: value for name, value in sides[1].items() if ".a." in name},
    )


@pytest.mark.needs("quantised")
def test_codes_under_another_name_are_not_missing_in_silence(tmp_path: Path) -> None:
    """GPTQ calls them qweight: the model would keep its own values for all linear
    layers, with exit code 0.
    """
    G, rows, columns = 32, 64, 64
    layer = {
        "fc.qweight": torch.randint(
            -(2**31), 2**31 - 1, (rows // 8, columns), dtype=torch.int32
        ),
        "fc.qzeros": torch.randint(
            -(2**31), 2**31 - 1, (rows // G, columns // 8), dtype=torch.int32
        ),
        "fc.scales": torch.rand(rows // G, columns, dtype=torch.float16),
        "fc.g_idx": torch.arange(rows, dtype=torch.int32) // G,
    }
    embedding = {"embed.weight": torch.rand(64, 64, dtype=torch.float16)}
    folder = tmp_path / "gptq"
    folder.mkdir()
    stored({**embedding, **layer}, folder / "model.safetensors")
    config = {
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": G}
    }
    (folder / "config.json").write_text(json.dumps(config))
    target = stored(
        {**embedding, "fc.weight": torch.rand(columns, rows)},
        tmp_path / "target.safetensors",
    )
    words = ("warmstart", folder, "--into", target, "-o", tmp_path / "out.safetensors")
    done = ckpt(*words)
    said = done.err.decode()
    assert done.code == 1 and not (tmp_path / "out.safetensors").exists()
    assert "GPTQ with scales in PRETRAINED, values in the other: fc.weight" in said
    assert "ckpt convert --dequantize makes values of PRETRAINED first" in said
    assert ckpt(*words, "--min-coverage", "0").code == 0


@pytest.mark.parametrize("kind", scaled.LAYERS)
def test_codes_come_with_what_is_beside_them(kind: str, tmp_path: Path) -> None:
    one, two = (scaled.model(scaled.LAYERS[kind][0]()) for _ in range(2))
    code, said, out = warm(one, two, tmp_path)
    assert code == 0, said
    assert identical(load_file(out), one)


def test_a_scale_that_does_not_fit_keeps_its_codes(tmp_path: Path) -> None:
    """Codes of one file with the scales of another are other weights."""
    one = scaled.model(scaled.deepseek())
    two = scaled.model(scaled.deepseek())
    two["layers.0.a.weight_scale_inv"] = torch.rand(256, 1)
    code, said, out = warm(one, two, tmp_path)
    assert code == 0, said
    found = load_file(out)
    assert identical(
        found, one | {name: two[name] for name in two if name.startswith("layers.0.a.")}
    )
    assert "codes and scales are loaded together or not at all" in said


def test_a_scale_of_inputs_is_no_part_of_a_weight(tmp_path: Path) -> None:
    one = scaled.model(scaled.by_tensor())
    two = {
        name: value
        for name, value in scaled.model(scaled.by_tensor()).items()
        if not name.endswith("input_scale")
    }
    code, said, out = warm(one, two, tmp_path)
    assert code == 0, said
    assert identical(load_file(out), {name: one[name] for name in two})


@pytest.mark.needs("live")
def test_codes_into_a_live_model(tmp_path: Path) -> None:
    source = stored(
        {"weight": scaled.eight_bits(8, 8), "weight_scale_inv": torch.ones(1, 1)},
        tmp_path / "a.pt",
    )
    model = nn.Linear(8, 8, bias=False)
    before = model.weight.detach().clone()
    with (
        package.open(str(source)) as checkpoint,
        pytest.raises(package.CkptError, match="FP8 with scales"),
    ):
        checkpoint.load_into(model)
    assert torch.equal(model.weight, before)


EMPTY = {
    f"layers.{i}.{name}_proj.weight": torch.empty(0)
    for i in range(2)
    for name in "qkvo"
}
WHOLE = {name: torch.randn(4, 4) for name in EMPTY}


@pytest.mark.parametrize(
    "sides",
    [(EMPTY, WHOLE), (WHOLE, EMPTY), (EMPTY, EMPTY)],
    ids=["from", "into", "both"],
)
@pytest.mark.parametrize("words", [(), ("--min-coverage", "0")])
def test_no_warm_start_with_an_empty_file(
    sides: tuple[scaled.Tensors, scaled.Tensors], words: tuple[str, ...], tmp_path: Path
) -> None:
    code, said, out = warm(*sides, tmp_path, *words)
    assert code == 2 and "holds no weights: 8 of 8 parameters are empty" in said
    assert "stage3_gather_16bit_weights_on_model_save" in said and not out.exists()


def test_no_warm_start_with_flat_parameters(tmp_path: Path) -> None:
    flat = {
        "_fsdp_wrapped_module._flat_param": torch.randn(50),
        "norm.weight": torch.ones(4),
    }
    code, said, out = warm(
        flat, {"norm.weight": torch.zeros(4), "fc.weight": torch.ones(4, 4)}, tmp_path
    )
    assert code == 2 and "save with FULL_STATE_DICT" in said and not out.exists()


@pytest.mark.needs("live")
def test_no_live_model_is_filled_from_an_empty_file(tmp_path: Path) -> None:
    source = stored(
        {"q_proj.weight": torch.empty(0), "k_proj.weight": torch.empty(0)},
        tmp_path / "a.pt",
    )
    model = nn.ModuleDict(
        {"q_proj": nn.Linear(4, 4, bias=False), "k_proj": nn.Linear(4, 4, bias=False)}
    )
    with (
        package.open(str(source)) as checkpoint,
        pytest.raises(package.CkptError, match="holds no weights"),
    ):
        checkpoint.load_into(model)
