"""`ckpt diff BASE QUANTISED`: honest quantisations are within the error of their
scheme, and what is not is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import quantised_layers as layers
import torch
from paths import IS_THOROUGH
from process import Run
from quantised_layers import Tensors
from safetensors.torch import save_file

import ckpt as library


def rounded(
    weight: torch.Tensor, bits: int, group: int, clip: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of rounding to nearest, with zero points in the middle."""
    blocks, most = weight.view(weight.shape[0], -1, group), (1 << bits - 1) - 1
    scale = (
        (blocks.abs().amax(-1, keepdim=True) * clip / most)
        .clamp(min=1e-8)
        .half()
        .float()
    )
    codes = (torch.round(blocks / scale) + most + 1).clamp(0, (1 << bits) - 1)
    return codes.view(weight.shape).long(), scale.squeeze(-1)


def moved(
    weight: torch.Tensor, bits: int, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by GPTQ: the error of a column goes into those behind it, by the inputs
    of a layer.
    """
    weight = weight.clone()
    columns = weight.shape[1]
    inputs = torch.randn(2 * columns, columns // 8) @ torch.randn(
        columns // 8, columns
    ) + torch.randn(2 * columns, columns)
    square = inputs.t() @ inputs / len(inputs)
    square += torch.eye(columns) * 0.01 * square.diag().mean()
    inverse = torch.linalg.cholesky(
        torch.cholesky_inverse(torch.linalg.cholesky(square)), upper=True
    )
    middle = 1 << bits - 1
    codes, scales = torch.zeros_like(weight), []
    for column in range(columns):
        if column % group == 0:
            scales.append(
                rounded(weight[:, column : column + group].contiguous(), bits, group)[1]
            )
        scale = scales[-1]
        code = (torch.round(weight[:, column : column + 1] / scale) + middle).clamp(
            0, 2 * middle - 1
        )
        codes[:, column : column + 1] = code
        error = (weight[:, column : column + 1] - (code - middle) * scale) / inverse[
            column, column
        ]
        weight[:, column + 1 :] -= error @ inverse[column : column + 1, column + 1 :]
    return codes.long(), torch.cat(scales, 1)


def gptq_layer(
    codes: torch.Tensor, scales: torch.Tensor, bits: int, group: int
) -> Tensors:
    zeros = torch.full_like(scales, (1 << bits - 1) - 1).long()
    order = torch.arange(codes.shape[1]) // group
    return {
        "qweight": layers.words(codes, bits).t().contiguous(),
        "qzeros": layers.words(zeros.t(), bits),
        "scales": scales.t().half().contiguous(),
        "g_idx": order.int(),
    }


@pytest.mark.parametrize("name", ["awq", "fp8"])
def test_another_sign_is_no_factor(tmp_path: Path, name: str) -> None:
    torch.manual_seed(1)
    weight = drawn("plain")
    base = base_of(tmp_path / "base.safetensors", {"a": weight, "b": weight})
    signs = torch.randint(0, 2, (weight.shape[1],)) * 2 - 1
    layers_made = {"a": HONEST[name](-weight), "b": HONEST[name](weight * signs)}
    report = library.diff(base, saved(tmp_path / "q.safetensors", layers_made))
    assert [row["verdict"] for row in report.to_json()["quantised"]["weights"]] == [
        "other"
    ] * 2
    assert report.exit_code == 1


def awq_layer(weight: torch.Tensor, group: int) -> Tensors:
    codes, scales = rounded(weight, 4, group)
    zeros = torch.full_like(scales, 8).long()
    return {
        "qweight": layers._awq_words(codes),
        "qzeros": layers._awq_words(zeros),
        "scales": scales.t().half().contiguous(),
    }


def fp8_layer(weight: torch.Tensor) -> Tensors:
    rows, columns = weight.shape
    scale = torch.zeros(-(-rows // 128), -(-columns // 128))
    codes = torch.zeros(rows, columns)
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            place = (
                slice(row * 128, row * 128 + 128),
                slice(column * 128, column * 128 + 128),
            )
            scale[row, column] = weight[place].abs().max() / 448
            codes[place] = weight[place] / scale[row, column]
    return {"weight": codes.to(layers.FP8), "weight_scale_inv": scale}


def drawn(kind: str, rows: int = 128, columns: int = 256) -> torch.Tensor:
    if kind == "heavy":
        return torch.distributions.StudentT(4.0).sample((rows, columns)) * 0.02
    weight = torch.randn(rows, columns) * 0.02
    if kind == "columns":
        weight[:, torch.randperm(columns)[:3]] *= 8
    return weight


def saved(path: Path, made: dict[str, Tensors]) -> Path:
    save_file(
        {
            f"{name}.{key}": part
            for name, parts in made.items()
            for key, part in parts.items()
        },
        path,
    )
    return path


def base_of(path: Path, weights: dict[str, torch.Tensor]) -> Path:
    save_file(
        {f"{name}.weight": weight.bfloat16() for name, weight in weights.items()}, path
    )
    return path


HONEST = {
    "fp8": fp8_layer,
    "awq": lambda weight: awq_layer(weight, 64),
    **{
        f"{how.__name__} {bits} bits, groups of {group}": (
            lambda weight, how=how, bits=bits, group=group: gptq_layer(
                *how(weight, bits, group), bits, group
            )
        )
        for how in (rounded, moved)
        for bits in (3, 4, 8)
        for group in (32, 128)
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [(64, 128), (128, 256), *([(384, 640)] if IS_THOROUGH else [])]
)
@pytest.mark.parametrize("name", HONEST)
def test_no_honest_quantisation_is_called_another(
    tmp_path: Path, name: str, size: tuple[int, int]
) -> None:
    torch.manual_seed(len(name) + size[0])
    weights = {kind: drawn(kind, *size) for kind in ("plain", "heavy", "columns")}
    base = base_of(tmp_path / "base.safetensors", weights)
    quantised = saved(
        tmp_path / "q.safetensors",
        {kind: HONEST[name](weight) for kind, weight in weights.items()},
    )
    report = library.diff(base, quantised)
    assert [row["verdict"] for row in report.to_json()["quantised"]["weights"]] == [
        "within"
    ] * 3
    assert report.exit_code == 0
    assert library.diff(quantised, base).exit_code == 0


def made(names: str) -> tuple[dict[str, torch.Tensor], dict[str, Tensors]]:
    weights = {name: drawn("plain") for name in names}
    return weights, {
        name: gptq_layer(*rounded(weight, 4, 64), 4, 64)
        for name, weight in weights.items()
    }


def test_what_is_wrong_is_named(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights, quantised = made("abcde")
    base = base_of(tmp_path / "base.safetensors", weights)
    stale = {**quantised["d"], "scales": quantised["e"]["scales"].clone()}
    larger = {**quantised["e"], "scales": quantised["e"]["scales"] * 1.5}
    wrong = {
        "a": quantised["b"],
        "b": quantised["a"],
        "c": quantised["c"],
        "d": stale,
        "e": larger,
    }
    path = saved(tmp_path / "q.safetensors", wrong)
    run = ckpt("diff", base, path, "--json")
    assert run.returncode == 1
    rows = {row["name"]: row for row in json.loads(run.stdout)["quantised"]["weights"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "a.weight": "other",
        "b.weight": "other",
        "c.weight": "within",
        "d.weight": "scale",
        "e.weight": "scale",
    }
    assert (rows["a.weight"]["like"], rows["b.weight"]["like"]) == (
        "b.weight",
        "a.weight",
    )
    assert rows["e.weight"]["factor"] == pytest.approx(1.5, abs=0.05)
    out = ckpt("diff", base, path).stdout
    assert "1 of 5 weights is within 4 bits (GPTQ, groups of 64) of" in out
    assert "the weights of b.weight: a.weight" in out
    assert "with scales that are not those of these weights: d.weight" in out


def test_a_factor_of_all_scales_is_no_factor_of_columns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight = drawn("plain")
    base = base_of(tmp_path / "base.safetensors", {"a": weight})
    parts = fp8_layer(weight)
    path = saved(
        tmp_path / "q.safetensors",
        {"a": {**parts, "weight_scale_inv": parts["weight_scale_inv"] * 2}},
    )
    report = library.diff(base, path)
    (row,) = report.to_json()["quantised"]["weights"]
    assert (row["verdict"], report.exit_code) == ("scale", 1)
    assert row["factor"] == pytest.approx(2, abs=0.05)


def with_wrong_lines(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """A weight of which a few lines are wrong, which a norm over all of it does not
    see.
    """
    weight = weight.clone()
    if kind == "a row with another sign":
        weight[101] *= -1
    elif kind == "a row of zeros":
        weight[5] = 0
    elif kind == "two rows that are swapped":
        weight[[7, 19]] = weight[[19, 7]]
    elif kind == "a column of zeros":
        weight[:, 33] = 0
    elif kind == "half of the columns":
        weight[:, ::2] = 0
    return weight


LINES = {
    "nothing": "",
    "a row with another sign": "1 of 128 rows is another one: 101",
    "a row of zeros": "1 of 128 rows is another one: 5",
    "two rows that are swapped": "2 of 128 rows are others: 7, 19",
    "a column of zeros": "1 of 256 columns is another one: 33",
    "half of the columns": "128 of 256 columns are others: 0, 2",
}


@pytest.mark.parametrize("kind", LINES)
def test_a_few_lines_that_are_wrong_are_named(
    ckpt: Run, tmp_path: Path, kind: str
) -> None:
    torch.manual_seed(0)
    weights = {name: drawn("plain") for name in ("awq", "fp8", "gptq")}
    base = base_of(tmp_path / "base.safetensors", weights)
    wrong = {name: with_wrong_lines(weight, kind) for name, weight in weights.items()}
    path = saved(
        tmp_path / "q.safetensors",
        {
            "awq": awq_layer(wrong["awq"], 64),
            "fp8": fp8_layer(wrong["fp8"]),
            "gptq": gptq_layer(*rounded(wrong["gptq"], 4, 64), 4, 64),
        },
    )
    rows = library.diff(base, path).to_json()["quantised"]["weights"]
    expected = "lines" if LINES[kind] else "within"
    assert [row["verdict"] for row in rows] == [expected] * 3
    if LINES[kind]:
        assert [
            row["what"] for row in rows if not row["what"].startswith(LINES[kind])
        ] == []
        run = ckpt("diff", base, path)
        assert run.returncode == 1
        assert LINES[kind] in " ".join(run.stdout.split())


@pytest.mark.parametrize("shape", [(128, 256), (256, 128), (256, 256), (128, 128)])
@pytest.mark.parametrize("factor", [2, 0.5])
def test_one_scale_of_many_is_named(
    tmp_path: Path, shape: tuple[int, int], factor: float
) -> None:
    """No factor of rows or columns, though one block of FP8 may be all of its
    columns.
    """
    torch.manual_seed(0)
    weights = {name: drawn("plain", *shape) for name in ("fp8", "gptq", "awq")}
    base = base_of(tmp_path / "base.safetensors", weights)
    layers_made = {
        "fp8": fp8_layer(weights["fp8"]),
        "gptq": gptq_layer(*rounded(weights["gptq"], 4, 64), 4, 64),
        "awq": awq_layer(weights["awq"], 64),
    }
    for name, key in (
        ("fp8", "weight_scale_inv"),
        ("gptq", "scales"),
        ("awq", "scales"),
    ):
        layers_made[name][key].view(-1)[-1] *= factor
    report = library.diff(base, saved(tmp_path / "q.safetensors", layers_made))
    rows = report.to_json()["quantised"]["weights"]
    assert [row["verdict"] for row in rows] == ["scale"] * 3
    assert report.exit_code == 1


def test_a_scale_of_any_block_of_rows_is_seen(tmp_path: Path) -> None:
    """Rows of a few places are read of a large weight, and of FP8 those of each
    block.
    """
    torch.manual_seed(0)
    weight = drawn("plain", 4096, 256)
    base = base_of(tmp_path / "base.safetensors", {"a": weight})
    parts = fp8_layer(weight)
    parts["weight_scale_inv"][17, 1] *= 2
    (row,) = library.diff(
        base, saved(tmp_path / "q.safetensors", {"a": parts})
    ).to_json()["quantised"]["weights"]
    assert row["verdict"] == "scale"
    assert (
        row["what"]
        == "of 64 scales looked at, those of 1 block are not of these weights"
    )


@pytest.mark.parametrize("how", [rounded, moved])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_line_of_2_bits_that_is_turned_around_is_named(
    tmp_path: Path, axis: int, how: Callable[..., tuple[torch.Tensor, torch.Tensor]]
) -> None:
    torch.manual_seed(3)
    weight = drawn("plain")
    layer = gptq_layer(*how(weight, 2, 32), 2, 32)
    quantised = saved(tmp_path / "q.safetensors", {"a": layer})
    weight.select(axis, 17).neg_()
    base = base_of(tmp_path / "base.safetensors", {"a": weight})

    row = library.diff(base, quantised).to_json()["quantised"]["weights"][0]
    assert row["verdict"] == "lines"
    assert row["what"].endswith(": 17")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_a_line_of_2_bits_that_is_zero_is_named(
    tmp_path: Path, axis: int, seed: int
) -> None:
    """Rounding with 2 bits makes an error that is not much smaller."""
    torch.manual_seed(seed)
    weight = drawn("plain")
    base = base_of(tmp_path / "base.safetensors", {"a": weight})
    weight.select(axis, 17).zero_()
    layer = gptq_layer(*rounded(weight, 2, 32), 2, 32)
    report = library.diff(base, saved(tmp_path / "q.safetensors", {"a": layer}))
    (row,) = report.to_json()["quantised"]["weights"]
    assert (row["verdict"], row["what"][-4:]) == ("lines", ": 17")


@pytest.mark.parametrize(
    "kind", ["small rows", "zero rows and columns", "one large column"]
)
def test_lines_that_rounding_makes_zero_are_no_others(
    tmp_path: Path, kind: str
) -> None:
    torch.manual_seed(0)
    weight = drawn("plain", 128, 256)
    if kind == "small rows":
        weight[::3] *= 1e-3
    elif kind == "zero rows and columns":
        weight[::5] = 0
        weight[:, ::7] = 0
    else:
        weight[:, 17] *= 30
    weight = weight.bfloat16().float()
    base = base_of(
        tmp_path / "base.safetensors", {"gptq": weight, "fp8": weight, "int8": weight}
    )
    largest = weight.abs().max() / 127
    int8 = {
        "weight": torch.round(weight / largest).to(torch.int8),
        "weight_scale": largest.view(1),
    }
    made = {
        "gptq": gptq_layer(*rounded(weight, 3, 128), 3, 128),
        "fp8": fp8_layer(weight),
        "int8": int8,
    }
    report = library.diff(base, saved(tmp_path / "q.safetensors", made))
    assert [row["verdict"] for row in report.to_json()["quantised"]["weights"]] == [
        "within"
    ] * 3


def test_another_model_is_another(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = base_of(tmp_path / "base.safetensors", made("abc")[0])
    path = saved(tmp_path / "q.safetensors", made("abc")[1])
    run = ckpt("diff", base, path)
    assert run.returncode == 1
    assert "0 of 3 weights are within" in run.stdout
    assert "other weights: {a,b,c}.weight" in run.stdout


def test_awq_may_move_factors_into_the_layer_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight, factors = drawn("plain", 512, 256), torch.exp(torch.randn(256) * 0.4)
    save_file(
        {"a.weight": weight.bfloat16(), "norm.weight": torch.ones(256)},
        tmp_path / "base.safetensors",
    )
    parts = {f"a.{key}": part for key, part in awq_layer(weight * factors, 64).items()}
    save_file({**parts, "norm.weight": 1 / factors}, tmp_path / "q.safetensors")
    report = library.diff(tmp_path / "base.safetensors", tmp_path / "q.safetensors")
    (row,) = report.to_json()["quantised"]["weights"]
    assert row["verdict"] == "factors"
    assert report.exit_code == 0


def test_what_else_differs_is_told(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights, quantised = made("ab")
    base = base_of(tmp_path / "base.safetensors", weights | {"norm": torch.ones(8)})
    path = saved(
        tmp_path / "q.safetensors",
        quantised | {"norm": {"weight": torch.zeros(8).bfloat16()}},
    )
    run = ckpt("diff", base, path)
    assert run.returncode == 1
    assert "also changed: 1 tensor: norm.weight" in run.stdout


@pytest.mark.parametrize("number", [1.0, float("nan"), float("inf")])
def test_a_cast_makes_no_numbers_that_are_not_finite(
    tmp_path: Path, number: float
) -> None:
    torch.manual_seed(0)
    weights, quantised = made("ab")
    norm = torch.rand(8)
    base = base_of(
        tmp_path / "base.safetensors",
        weights | {"norm": torch.cat([norm, torch.ones(1)])},
    )
    norm = torch.cat([norm, torch.tensor([number])])
    path = saved(tmp_path / "q.safetensors", quantised | {"norm": {"weight": norm}})
    assert library.diff(base, path).exit_code == (number != 1.0)
    assert library.diff(path, base).exit_code == (number != 1.0)


def test_what_no_scheme_touched_is_not_called_frozen(ckpt: Run, tmp_path: Path) -> None:
    weights, quantised = made("ab")
    norm = {"norm": {"weight": torch.ones(128).bfloat16()}}
    layers = {name: {"weight": part.bfloat16()} for name, part in weights.items()}
    base = saved(tmp_path / "base.safetensors", {**layers, **norm})
    other = saved(tmp_path / "q.safetensors", {**quantised, **norm})

    for pair in ((base, other), (other, base)):
        report = library.diff(*pair)
        assert [row.code for row in report.findings] == []
        assert ckpt("diff", *pair, "--fail-on", "frozen").returncode == 0


def test_two_files_of_one_scheme_are_compared_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    _, quantised = made("ab")
    one, other = (
        saved(tmp_path / "1.safetensors", quantised),
        saved(tmp_path / "2.safetensors", quantised),
    )
    report = library.diff(one, other)
    assert report.same
    assert report.account is None
    assert "a.qweight" in {row.name for row in report.rows}


def test_values_of_the_weights(ckpt: Run, tmp_path: Path) -> None:
    """`stats`, `sum` and the handle of Python see what `convert --dequantize`
    writes.
    """
    torch.manual_seed(0)
    path = saved(tmp_path / "q.safetensors", made("ab")[1])
    out = tmp_path / "out.safetensors"
    library.convert(path, out=out, dequantize=True)
    sums = [
        ckpt("sum", file, "--values", *more).stdout.split()[0]
        for file, more in ((path, ["--dequantize"]), (out, []))
    ]
    assert sums[0] == sums[1]
    mine, theirs = library.stats(path, dequantize=True), library.stats(out)
    assert mine.to_json()["tensors"] == theirs.to_json()["tensors"]
    with library.open(path) as opened, library.open(out) as written:
        weights = opened.dequantized()
        assert list(weights) == list(written)
        assert (weights["a.weight"].numpy() == written["a.weight"].numpy()).all()
        assert "a.qweight" in opened


CONFIG = {"model_type": "llama", "rope_theta": 10000.0, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"torch_dtype": "float16", "transformers_version": "5.0"}, None),
        (
            {"rope_theta": 500000.0},
            "also changed: config.rope_theta: 10000.0 → 500000.0",
        ),
    ],
)
def test_settings_beside_the_weights(
    tmp_path: Path, ckpt: Run, changed: dict[str, object], said: str | None
) -> None:
    """A quantised model with another rope_theta is another model, however right its
    weights are.
    """
    torch.manual_seed(1)
    weight = drawn("plain")
    norm = {"norm": {"weight": torch.ones(16, dtype=torch.bfloat16)}}
    layer = {"a": {"weight": weight.bfloat16()}}
    coded = {"a": fp8_layer(weight)}
    quantisation = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    sides = {
        "base": ({**layer, **norm}, {**CONFIG, "of_the_base_alone": 1}),
        "coded": (
            {**coded, **norm},
            {**CONFIG, **changed, "quantization_config": quantisation},
        ),
    }
    for side, (weights, config) in sides.items():
        (tmp_path / side).mkdir()
        saved(tmp_path / side / "model.safetensors", weights)
        (tmp_path / side / "config.json").write_text(json.dumps(config))

    run = ckpt("diff", str(tmp_path / "base"), str(tmp_path / "coded"))
    lines = run.stdout.splitlines()
    assert "1 of 1 weight is within float8" in lines[0]
    assert "transformers_version" not in run.stdout
    assert lines[1:] == [
        "equal: 1 other tensor",
        *([] if said is None else [said]),
        "on one side only: 1 value: config.of_the_base_alone",
    ]
    assert run.returncode == (said is not None)
