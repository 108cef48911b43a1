"""`ckpt.merge`: the kinds of LoRA, with what PEFT documents as the oracle, over
formats, dtypes and sizes of blocks.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
from pathlib import Path
from typing import Any

import loras
import oracle
import process
import pytest
import torch
from inside import inside
from loras import PREFIX, State, noise
from safetensors.torch import load_file, save_file

import ckpt
from ckpt.ext.adapters import products

pytestmark = oracle.QUIET


def merged(
    folder: Path,
    state: State,
    adapter: State,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> State:
    """The tensors after a merge."""
    path = loras.save_base(state, folder / "base.safetensors")
    adapted = loras.save_adapter(adapter, folder / "adapter", **(config or {}))
    ckpt.merge(path, adapted, out=folder / "out.safetensors", force=True, **options)
    return load_file(folder / "out.safetensors")


def check(found: State, expected: State, most: float = 2.0) -> None:
    """Compare tensors up to some units in the last place: numpy and torch add in
    another order.
    """
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loras.units(found[name], tensor) <= most, name


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64]
)
@pytest.mark.parametrize("elements", [1, 40, 1 << 17])
def test_each_layer_gets_its_product_in_its_own_dtype(
    dtype: torch.dtype, elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "ELEMENTS", elements)
    state = loras.base(dtype)
    adapter = loras.pairs(loras.linear(state))
    expected = dict(state)
    for name in loras.linear(state):
        module = name.removesuffix(".weight")
        down, up = (
            adapter[f"{PREFIX}{module}.lora_{letter}.weight"].double()
            for letter in "AB"
        )
        wide = state[name].double() + 2 * (up @ down)
        expected[name] = wide.to(dtype)

    found = merged(tmp_path, state, adapter)

    check(found, expected, 2 if dtype == torch.float32 else 1)
    assert not torch.equal(
        found["model.layers.0.self_attn.q_proj.weight"],
        state["model.layers.0.self_attn.q_proj.weight"],
    )
    assert torch.equal(found["lm_head.weight"], state["lm_head.weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("trained", [0, 1])
def test_an_adapter_that_adds_nothing_is_said(
    trained: int, zero: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    """PEFT begins with lora_B of zeros: an adapter that was never trained merges into
    the base as it is.
    """
    state = loras.base(torch.float32)
    adapter = loras.pairs(loras.linear(state))
    ups = [name for name in adapter if ".lora_B." in name]
    for name in ups[trained:]:
        adapter[name] = torch.full_like(adapter[name], zero)
    adapter = {name: tensor.to(dtype) for name, tensor in adapter.items()}
    path = loras.save_base(state, tmp_path / "base.safetensors")
    adapted = loras.save_adapter(adapter, tmp_path / "adapter")

    report = ckpt.merge(path, adapted, out=tmp_path / "out.safetensors")

    line = (
        f"{adapted}: all of its B (lora_B, lora_up) are zeros, as before training: it "
        "adds nothing"
    )
    assert (line in report.warnings) == (trained == 0)


def test_patterns_and_rslora_give_each_layer_its_scale(tmp_path: Path) -> None:
    state = loras.base()
    ranks = lambda name: 2 if "layers.1.self_attn.v_proj" in name else 4
    adapter = loras.pairs(loras.linear(state), ranks)
    config = {
        "use_rslora": True,
        "rank_pattern": {r"layers\.1\.self_attn\.v_proj": 2},
        "alpha_pattern": {"up_proj": 3, "^model.layers.0.self_attn.o_proj": 9},
    }
    expected = dict(state)
    for name in loras.linear(state):
        module = name.removesuffix(".weight")
        alpha = (
            3 if "up_proj" in name else 9 if "layers.0.self_attn.o_proj" in name else 8
        )
        expected[name] = state[name] + loras.delta(
            adapter, module, loras.rooted(alpha, ranks(name))
        )

    check(merged(tmp_path, state, adapter, config), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dora_gives_each_row_its_length(dtype: torch.dtype, tmp_path: Path) -> None:
    state = loras.base(dtype)
    adapter = loras.pairs(loras.linear(state))
    expected = dict(state)
    for number, name in enumerate(loras.linear(state)):
        module = name.removesuffix(".weight")
        lengths = noise(state[name].shape[0], seed=number).abs() + 0.5
        adapter[f"{PREFIX}{module}.lora_magnitude_vector"] = lengths
        wide = state[name].double() + 2 * (
            adapter[f"{PREFIX}{module}.lora_B.weight"].double()
            @ adapter[f"{PREFIX}{module}.lora_A.weight"].double()
        )
        factors = lengths.double() / torch.linalg.norm(wide, dim=1)
        expected[name] = (factors[:, None] * wide).to(dtype)

    check(merged(tmp_path, state, adapter, {"use_dora": True}), expected, 3)


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="torch has other sums on other processors",
)
@pytest.mark.parametrize("elements", [1, 1 << 17])
@pytest.mark.parametrize("is_turned", [False, True])
def test_the_lengths_of_dora_have_the_digits_of_torch(
    is_turned: bool, elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B is zeros, so no product has digits of its own."""
    monkeypatch.setattr(products, "ELEMENTS", elements)
    state = {
        "a.weight": noise(300, 72),
        "b.weight": noise(3, 8),
        "c.weight": noise(40, 516),
        "d.weight": noise(5, 4),
    }
    adapter, expected = {}, {}
    for name, weight in state.items():
        module = name.removesuffix(".weight")
        turned = weight.T if is_turned else weight
        rows, columns = turned.shape
        lengths = noise(rows, seed=7).abs() + 1
        adapter[f"{PREFIX}{module}.lora_A.weight"] = noise(2, columns)
        adapter[f"{PREFIX}{module}.lora_B.weight"] = torch.zeros(rows, 2)
        adapter[f"{PREFIX}{module}.lora_magnitude_vector"] = lengths
        factors = (lengths / torch.linalg.norm(turned, dim=1))[:, None]
        expected[name] = weight * (factors.T if is_turned else factors)

    config = {"r": 2, "use_dora": True, "fan_in_fan_out": is_turned}
    found = merged(tmp_path, state, adapter, config)

    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("elements", [1, 1 << 17])
def test_weights_that_lie_as_in_and_out(
    elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Conv1D of GPT-2, square or not, with LoRA and with DoRA, whose lengths are
    those of columns.
    """
    monkeypatch.setattr(products, "ELEMENTS", elements)
    state = {
        "h.0.c_attn.weight": noise(8, 24),
        "h.0.c_proj.weight": noise(8, 8, seed=3),
    }
    turned = {name: tensor.T for name, tensor in state.items()}
    adapter = loras.pairs(turned)
    sums = {
        name: state[name] + loras.delta(adapter, name.removesuffix(".weight"), 2.0).T
        for name in state
    }
    config = {"fan_in_fan_out": True}

    check(merged(tmp_path, state, adapter, config), sums)

    for name, tensor in state.items():
        adapter[f"{PREFIX}{name.removesuffix('.weight')}.lora_magnitude_vector"] = (
            noise(tensor.shape[1]).abs() + 1
        )
    lengths = {
        name: (noise(tensor.shape[1]).abs() + 1)
        / torch.linalg.norm(sums[name].T, dim=1)
        for name, tensor in state.items()
    }
    check(
        merged(tmp_path, state, adapter, config),
        {name: sums[name] * lengths[name] for name in sums},
        4,
    )


def test_a_square_weight_lies_as_its_siblings_show(tmp_path: Path) -> None:
    linear = {"a.weight": noise(8, 24), "b.weight": noise(8, 8, seed=3)}
    adapter = loras.pairs(linear)
    expected = {
        name: linear[name] + loras.delta(adapter, name.removesuffix(".weight"), 2.0)
        for name in linear
    }
    check(
        merged(tmp_path, linear, adapter, {"fan_in_fan_out": True}), expected
    )  # PEFT takes the flag back

    turned = {name: tensor.T.contiguous() for name, tensor in linear.items()}
    with pytest.raises(ckpt.UsageError, match="b is square, and may lie as"):
        merged(tmp_path, turned, adapter)
    found = merged(tmp_path, turned, adapter, packing="in-out")
    check(found, {name: tensor.T.contiguous() for name, tensor in expected.items()})


def test_tensors_that_were_trained_as_a_whole_take_the_place_of_those_of_the_base(
    tmp_path: Path,
) -> None:
    state = loras.base(torch.bfloat16)
    adapter = loras.pairs(
        {"model.layers.0.self_attn.q_proj.weight": torch.zeros(8, 12)}
    )
    adapter[f"{PREFIX}lm_head.weight"] = noise(30, 12, seed=77)
    adapter[f"{PREFIX}model.layers.1.self_attn.q_proj.bias"] = noise(8, seed=78)
    adapter[f"{PREFIX}score.weight"] = noise(3, 12, seed=79)
    expected = loras.merged(state, adapter)
    expected["lm_head.weight"] = adapter[f"{PREFIX}lm_head.weight"].bfloat16()
    expected["model.layers.1.self_attn.q_proj.bias"] = adapter[
        f"{PREFIX}model.layers.1.self_attn.q_proj.bias"
    ].bfloat16()
    expected["score.weight"] = adapter[f"{PREFIX}score.weight"]

    found = merged(
        tmp_path,
        state,
        adapter,
        {"bias": "all", "modules_to_save": ["score", "lm_head"]},
    )

    check(found, expected)
    with pytest.raises(ckpt.UsageError, match=r"lacks score\.weight"):
        merged(tmp_path, state, adapter, {"modules_to_save": ["lm_head"]})


def test_a_bias_of_b_is_added_to_the_bias(tmp_path: Path) -> None:
    state = loras.base()
    adapter = loras.pairs(
        {"model.layers.0.self_attn.q_proj.weight": torch.zeros(8, 12)}
    )
    adapter[f"{PREFIX}model.layers.0.self_attn.q_proj.lora_B.bias"] = noise(8, seed=4)
    expected = loras.merged(state, adapter)
    name = "model.layers.0.self_attn.q_proj.bias"
    expected[name] = state[name] + 2 * noise(8, seed=4)

    check(merged(tmp_path, state, adapter, {"lora_bias": True}), expected)

    del state[name]
    with pytest.raises(
        ckpt.UsageError, match=r"lacks model\.layers\.0\.self_attn\.q_proj\.bias"
    ):
        merged(tmp_path, state, adapter)


def test_embeddings_their_rows_and_added_tokens(tmp_path: Path) -> None:
    state = loras.base()
    name = "model.embed_tokens.weight"
    module = f"{PREFIX}model.embed_tokens"
    product = 2 * (noise(12, 4, seed=2) @ noise(4, 30, seed=1)).T
    adapter = {
        f"{module}.lora_embedding_A": noise(4, 30, seed=1),
        f"{module}.lora_embedding_B": noise(12, 4, seed=2),
    }
    check(merged(tmp_path, state, adapter), {**state, name: state[name] + product})

    rows = {f"{module}.token_adapter.trainable_tokens_delta": noise(2, 12, seed=8)}
    expected = state[name].clone()
    expected[[3, 29]] = noise(2, 12, seed=8)
    config = {"trainable_token_indices": {"embed_tokens": [3, 29]}}
    check(merged(tmp_path, state, rows, config), {**state, name: expected})
    with pytest.raises(ckpt.UsageError, match="nothing says which rows"):
        merged(tmp_path, state, rows)
    config = {"trainable_token_indices": {"embed_tokens": [3, 30]}}
    with pytest.raises(ckpt.UsageError, match="is of later ones"):
        merged(tmp_path, state, rows, config)

    longer = noise(32, 12, seed=9)
    grown = {
        f"{module}.base_layer.weight": longer,
        f"{module}.lora_embedding_A": noise(4, 32, seed=1),
        f"{module}.lora_embedding_B": noise(12, 4, seed=2),
    }
    product = 2 * (noise(12, 4, seed=2) @ noise(4, 32, seed=1)).T
    found = merged(tmp_path, state, grown)
    check(found, {**state, name: longer + product})
    report = ckpt.merge(
        tmp_path / "base.safetensors", tmp_path / "adapter", dry_run=True
    )
    assert [(row.name, row.what) for row in report.left_alone] == [
        (name, "is [32, 12], and was [30, 12]: vocab_size in config.json must say 32")
    ]


CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"vocab_size": 30, "a": 1}, {"vocab_size": 32, "a": 1}),
    "of a text model": (
        {"text_config": {"vocab_size": 30}, "vision_config": {"vocab_size": 30}},
        {"text_config": {"vocab_size": 32}, "vision_config": {"vocab_size": 30}},
    ),
    "of another size": ({"vocab_size": 31}, {"vocab_size": 31}),
    "without it": ({"n_tokens": 30}, {"n_tokens": 30}),
}


def test_added_tokens_of_other_names_change_the_config(tmp_path: Path) -> None:
    """GPT-NeoX has its embeddings in `embed_in` and its head in `embed_out`."""
    names = ("embed_out.weight", "gpt_neox.embed_in.weight")
    layer = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"
    state = {name: noise(30, 12, seed=1) for name in names}
    state[layer] = noise(24, 12, seed=2)
    base = tmp_path / "base"
    base.mkdir()
    loras.save_base(state, base / "model.safetensors")
    (base / "config.json").write_text(json.dumps({"vocab_size": 30}))
    adapter = loras.pairs({layer: state[layer]})
    adapter |= {f"{PREFIX}{name}": noise(32, 12, seed=3) for name in names}
    loras.save_adapter(adapter, tmp_path / "adapter")

    done = inside(
        "merge", "base", "adapter", "-o", "merged", "--with-config", cwd=tmp_path
    )

    assert done.code == 0, done.err
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config == {"vocab_size": 32}
    assert "config.json: vocab_size: 30 → 32" in done.out.decode()


@pytest.mark.parametrize("config", CONFIGS)
def test_added_tokens_change_the_config_that_goes_along(
    config: str, tmp_path: Path
) -> None:
    before, after = CONFIGS[config]
    state = loras.base()
    base = tmp_path / "base"
    base.mkdir()
    loras.save_base(state, base / "model.safetensors")
    (base / "config.json").write_text(json.dumps(before))
    adapter = loras.pairs(loras.linear(state))
    names = ("lm_head.weight", "model.embed_tokens.weight")
    adapter |= {f"{PREFIX}{name}": noise(32, 12, seed=3) for name in names}
    loras.save_adapter(adapter, tmp_path / "adapter")
    words = ("merge", "base", "adapter", "-o", "merged", "--with-config")

    done = inside(*words, cwd=tmp_path)

    assert done.code == 0, done.err
    assert json.loads((tmp_path / "merged" / "config.json").read_text()) == after
    said = done.out.decode()
    is_set = before != after
    assert ("config.json: vocab_size: 30 → 32" in said) == is_set
    assert ("vocab_size in config.json must say 32" in said) != is_set
    assert said.count("is [32, 12], and was [30, 12]") == 2
    assert said.count("in the result: ") == 2 and "left alone" not in said
    assert re.search(r"replaced +2 tensors, 3\.00 KiB", said)
    (tmp_path / "adapter" / "tokenizer.json").write_text("{}")
    done = inside(*words, "--force", cwd=tmp_path)
    line = "ckpt: adapter: OUT gets the tokenizer of BASE, and not the one beside this"
    assert done.code == 0 and line in done.err.decode()


def test_other_longer_tensors_say_nothing_of_the_vocabulary(tmp_path: Path) -> None:
    state = {**loras.base(), "pooler.weight": noise(2, 12)}
    adapter = loras.pairs(loras.linear(state))
    adapter[f"{PREFIX}pooler.weight"] = noise(3, 12)
    base = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter")

    report = ckpt.merge(base, folder, dry_run=True)

    assert [(row.name, row.what) for row in report.left_alone] == [
        ("pooler.weight", "is [3, 12], and was [2, 12]")
    ]


@pytest.mark.parametrize("said", [{"tie_word_embeddings": True}, {}])
def test_a_head_of_its_own_is_not_tied_in_the_config_that_goes_along(
    said: dict[str, bool], tmp_path: Path
) -> None:
    state = loras.base()
    head = state.pop("lm_head.weight")
    base = tmp_path / "base"
    base.mkdir()
    loras.save_base(state, base / "model.safetensors")
    (base / "config.json").write_text(json.dumps({**said, "vocab_size": 30}))
    adapter = loras.pairs({"lm_head.weight": head})
    loras.save_adapter(adapter, tmp_path / "adapter")

    done = inside(
        "merge", "base", "adapter", "-o", "out", "--with-config", cwd=tmp_path
    )

    assert done.code == 0, done.err
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert found == {"tie_word_embeddings": False, "vocab_size": 30}
    text = done.out.decode()
    change = "true → false" if said else "false, added"
    assert f"config.json: tie_word_embeddings: {change}" in text
    assert "must say" not in text and "which it was tied to, stays" in text


@pytest.mark.parametrize("elements", [1, 60, 1 << 18])
def test_rows_of_tokens_at_the_ends_of_blocks(
    elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "ELEMENTS", elements)
    name = "model.embed_tokens.weight"
    state = loras.base()
    indices = [0, 4, 5, 9, 29]
    rows = {f"{PREFIX}{name[:-7]}.trainable_tokens_delta": noise(5, 12, seed=8)}
    expected = state[name].clone()
    expected[indices] = noise(5, 12, seed=8)
    config = {"trainable_token_indices": {"embed_tokens": indices}}

    found = merged(tmp_path, state, rows, config)

    assert torch.equal(found[name], expected)


@pytest.mark.parametrize("kernel", [1, 3])
def test_convolutions(kernel: int, tmp_path: Path) -> None:
    state = {
        "conv.weight": noise(6, 5, kernel, kernel),
        "proj.weight": noise(6, 5, 1, 1, seed=2),
    }
    down, up = noise(4, 5, kernel, kernel, seed=3), noise(6, 4, 1, 1, seed=4)
    adapter = {
        f"{PREFIX}conv.lora_A.weight": down,
        f"{PREFIX}conv.lora_B.weight": up,
        f"{PREFIX}proj.lora_A.weight": noise(4, 5, seed=5),
        f"{PREFIX}proj.lora_B.weight": noise(6, 4, seed=6),
    }
    product = torch.nn.functional.conv2d(down.transpose(0, 1), up).transpose(0, 1) * 2
    flat = (noise(6, 4, seed=6) @ noise(4, 5, seed=5))[:, :, None, None] * 2

    found = merged(tmp_path, state, adapter)

    check(
        found,
        {
            "conv.weight": state["conv.weight"] + product,
            "proj.weight": state["proj.weight"] + flat,
        },
        4,
    )


def test_a_convolution_in_groups_is_refused(tmp_path: Path) -> None:
    state = {"conv.weight": noise(6, 2, 3, 3)}
    adapter = {
        f"{PREFIX}conv.lora_A.weight": noise(4, 6, 3, 3),
        f"{PREFIX}conv.lora_B.weight": noise(6, 4, 1, 1),
    }
    with pytest.raises(ckpt.UnsupportedError, match="in groups"):
        merged(tmp_path, state, adapter)


# --- experts --------------------------------------------------------------------------

EXPERTS, HIDDEN, INNER, RANK = 3, 8, 5, 2
WHOLE = ("mlp.experts.base_layer", "mlp.experts")


def expert_adapter() -> State:
    """An adapter of PEFT on both parameters of some experts: the inner one is
    `gate_up_proj`.
    """
    shapes = {WHOLE[0]: (2 * INNER, HIDDEN), WHOLE[1]: (HIDDEN, INNER)}
    adapter: State = {}
    for number, (module, (outer, inner)) in enumerate(shapes.items()):
        adapter[f"{PREFIX}layers.0.{module}.lora_A.weight"] = noise(
            RANK * EXPERTS, inner, seed=number
        )
        adapter[f"{PREFIX}layers.0.{module}.lora_B.weight"] = noise(
            outer, RANK * EXPERTS, seed=10 + number
        )
    return adapter


def expert_products(adapter: State) -> dict[str, torch.Tensor]:
    """What PEFT adds to each parameter, as (experts, out, in)."""
    products: dict[str, torch.Tensor] = {}
    for name, module in (("gate_up_proj", WHOLE[0]), ("down_proj", WHOLE[1])):
        down = adapter[f"{PREFIX}layers.0.{module}.lora_A.weight"].reshape(
            EXPERTS, RANK, -1
        )
        up = adapter[f"{PREFIX}layers.0.{module}.lora_B.weight"]
        up = up.reshape(up.shape[0], RANK, EXPERTS)
        products[name] = torch.einsum("ore,eri->eoi", up, down) * 4
    return products


CONFIG = {
    "r": RANK,
    "lora_alpha": 8,
    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
}


@pytest.mark.parametrize("turned", [False, True])
def test_parameters_of_experts_in_one_tensor(turned: bool, tmp_path: Path) -> None:
    adapter = expert_adapter()
    added = {
        f"layers.0.mlp.experts.{name}": tensor
        for name, tensor in expert_products(adapter).items()
    }
    added = {
        name: tensor.transpose(1, 2) if turned else tensor
        for name, tensor in added.items()
    }
    state = {name: noise(*tensor.shape, seed=20) for name, tensor in added.items()}

    found = merged(tmp_path, state, adapter, CONFIG)

    check(found, {name: state[name] + added[name] for name in state})
    found = merged(tmp_path, state, adapter, CONFIG, weights=[0.5])
    check(found, {name: state[name] + added[name] / 2 for name in state})


def test_a_key_alone_lies_between_a_larger_query_and_a_value(tmp_path: Path) -> None:
    state = {"a.qkv_proj.weight": noise(16, 12)}
    adapter = loras.pairs({"a.k_proj.weight": noise(4, 12)})
    expected = noise(16, 12)
    expected[8:12] += loras.delta(adapter, "a.k_proj", 2)

    found = merged(tmp_path, state, adapter, packing="concatenated")

    check(found, {"a.qkv_proj.weight": expected})


def test_matrices_of_few_experts_are_held_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not follow the number of experts."""
    monkeypatch.setattr(products, "ELEMENTS", 1)
    monkeypatch.setattr(products, "_KEPT", 1)
    held: list[int] = []
    right_matrix = products.Computing._right_matrix

    def counted(self: products.Computing, factor: products.Factor) -> Any:
        matrix = right_matrix(self, factor)
        held.append(len(self._rights))
        return matrix

    monkeypatch.setattr(products.Computing, "_right_matrix", counted)
    adapter = expert_adapter()
    state = {
        f"layers.0.mlp.experts.{name}": noise(*tensor.shape, seed=20)
        for name, tensor in expert_products(adapter).items()
    }
    merged(tmp_path, state, adapter, CONFIG)

    assert held and max(held) == 1


def test_matrices_of_several_adapters_are_read_once_for_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block of rows needs one of each adapter, also of more than are held else."""
    monkeypatch.setattr(products, "ELEMENTS", 1)
    read: list[tuple[int, ...]] = []
    read_matrix = products.Computing._read_matrix

    def counted(self: products.Computing, factor: products.Factor) -> Any:
        read.append(factor.shape)
        return read_matrix(self, factor)

    monkeypatch.setattr(products.Computing, "_read_matrix", counted)
    state = {"a.weight": noise(8, 12)}
    base = loras.save_base(state, tmp_path / "base.safetensors")
    adapters = [
        loras.save_adapter(loras.pairs(state, seed=seed), tmp_path / f"adapter{seed}")
        for seed in range(products._KEPT + 2)
    ]

    ckpt.merge(base, adapters, out=tmp_path / "out.safetensors")

    assert read.count((4, 12)) == len(adapters)
    assert read.count((1, 4)) == len(adapters) * 8


def apart(state: State) -> State:
    """The tensors of experts, each in its own, as the hub has them."""
    found: State = {}
    for expert in range(EXPERTS):
        gate_up = state["layers.0.mlp.experts.gate_up_proj"][expert]
        begin = f"layers.0.mlp.experts.{expert}."
        found[f"{begin}gate_proj.weight"] = gate_up[:INNER].contiguous()
        found[f"{begin}up_proj.weight"] = gate_up[INNER:].contiguous()
        found[f"{begin}down_proj.weight"] = state["layers.0.mlp.experts.down_proj"][
            expert
        ].contiguous()
    return found


def test_parameters_of_experts_that_the_base_holds_one_by_one(tmp_path: Path) -> None:
    adapter = expert_adapter()
    added = {
        f"layers.0.mlp.experts.{name}": tensor
        for name, tensor in expert_products(adapter).items()
    }
    state = {name: noise(*tensor.shape, seed=20) for name, tensor in added.items()}
    expected = apart({name: state[name] + added[name] for name in state})

    check(merged(tmp_path, apart(state), adapter, CONFIG), expected)

    renamed = {
        name.replace("mlp.experts", "block_sparse_moe.experts"): tensor
        for name, tensor in apart(state).items()
    }
    words = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for one, two in words.items():
        renamed = {name.replace(one, two): tensor for name, tensor in renamed.items()}
    found = merged(tmp_path, renamed, adapter, CONFIG)
    for one, two in words.items():
        found = {name.replace(two, one): tensor for name, tensor in found.items()}
    check(
        {
            name.replace("block_sparse_moe", "mlp"): tensor
            for name, tensor in found.items()
        },
        expected,
    )


@pytest.mark.parametrize("more", [1, -1])
@pytest.mark.parametrize("expert", range(EXPERTS))
def test_experts_of_two_sizes_are_no_parameter(
    expert: int, more: int, tmp_path: Path
) -> None:
    adapter = expert_adapter()
    added = {
        f"layers.0.mlp.experts.{name}": tensor
        for name, tensor in expert_products(adapter).items()
    }
    state = apart({name: torch.zeros_like(tensor) for name, tensor in added.items()})
    for leaf in ("gate_proj", "up_proj"):
        name = f"layers.0.mlp.experts.{expert}.{leaf}.weight"
        state[name] = noise(INNER + more, HIDDEN)
    only = r"fits none of layers\.0\.mlp\.experts\.down_proj \[3, 8, 5\]$"
    with pytest.raises(ckpt.UsageError, match=only):
        merged(tmp_path, state, adapter, CONFIG)


def test_two_layers_for_one_parameter_of_experts_are_refused(tmp_path: Path) -> None:
    adapter = expert_adapter()
    for letter in "AB":
        inner, outer = (
            f"{PREFIX}layers.0.{module}.lora_{letter}.weight" for module in WHOLE
        )
        adapter[outer] = adapter[inner].clone()
    state = {
        f"layers.0.mlp.experts.{name}": torch.zeros_like(tensor)
        for name, tensor in expert_products(expert_adapter()).items()
    }
    says = r"change the same rows of layers\.0\.mlp\.experts\.gate_up_proj"
    with pytest.raises(ckpt.UsageError, match=says):
        merged(tmp_path, state, adapter, CONFIG)


def test_parameters_of_one_shape_are_told_apart_by_the_options_that_are_advised(
    tmp_path: Path,
) -> None:
    """PEFT puts a layer for the second parameter around that for the first."""
    modules = {
        "w1": "a.experts.base_layer.base_layer",
        "w3": "a.experts.base_layer",
        "w2": "a.experts",
    }
    state = {
        f"a.experts.{name}": noise(EXPERTS, 10, HIDDEN, seed=20 + number)
        for number, name in enumerate(modules)
    }
    adapter: State = {}
    expected: State = {}
    for number, (name, module) in enumerate(modules.items()):
        down = noise(RANK * EXPERTS, HIDDEN, seed=number)
        up = noise(10, RANK * EXPERTS, seed=10 + number)
        adapter[f"{PREFIX}{module}.lora_A.weight"] = down
        adapter[f"{PREFIX}{module}.lora_B.weight"] = up
        added = torch.einsum(
            "ore,eri->eoi",
            up.reshape(10, RANK, EXPERTS),
            down.reshape(EXPERTS, RANK, HIDDEN),
        )
        expected[f"a.experts.{name}"] = state[f"a.experts.{name}"] + added * 4
    config = {**CONFIG, "target_parameters": [f"experts.{name}" for name in modules]}
    rules: list[str] = []

    for name in modules:
        with pytest.raises(ckpt.UsageError, match=r"may be .*: all fit") as caught:
            merged(tmp_path, state, adapter, config, sub=rules)
        advised = re.search(r"--sub '(.*)\.w\d/'$", caught.value.hint or "")
        assert advised is not None
        rules.append(f"{advised[1]}.{name}/")

    check(merged(tmp_path, state, adapter, config, sub=rules), expected)


def test_no_name_of_a_stranger_is_in_an_option_that_is_advised(tmp_path: Path) -> None:
    state = {f"a.x'y.{name}": noise(EXPERTS, 10, HIDDEN) for name in ("w1", "w3")}
    adapter = {
        f"{PREFIX}a.x'y.lora_A.weight": noise(RANK * EXPERTS, HIDDEN),
        f"{PREFIX}a.x'y.lora_B.weight": noise(10, RANK * EXPERTS),
    }
    config = {**CONFIG, "target_parameters": ["w1", "w3"]}
    with pytest.raises(ckpt.UsageError, match="all fit") as caught:
        merged(tmp_path, state, adapter, config)
    assert caught.value.hint == "--sub S/A/B/ says which"


def test_two_packings_of_experts_are_refused_until_one_is_named(tmp_path: Path) -> None:
    square = {"experts.w": noise(EXPERTS, 6, 6)}
    adapter = {
        f"{PREFIX}experts.lora_A.weight": noise(RANK * EXPERTS, 6, seed=1),
        f"{PREFIX}experts.lora_B.weight": noise(6, RANK * EXPERTS, seed=2),
    }
    down = adapter[f"{PREFIX}experts.lora_A.weight"].reshape(EXPERTS, RANK, 6)
    up = adapter[f"{PREFIX}experts.lora_B.weight"].reshape(6, RANK, EXPERTS)
    added = torch.einsum("ore,eri->eoi", up, down) * 4
    config = {"r": RANK, "target_parameters": ["experts.w"]}
    with pytest.raises(
        ckpt.UsageError, match=r'both fit .packing="in-out", or packing="out-in"'
    ):
        merged(tmp_path, square, adapter, config)
    check(
        merged(tmp_path, square, adapter, config, packing="out-in"),
        {"experts.w": square["experts.w"] + added},
    )
    found = merged(tmp_path, square, adapter, config, packing="in-out")
    check(found, {"experts.w": square["experts.w"] + added.transpose(1, 2)})


def test_layers_of_single_experts_go_into_the_tensor_of_all(tmp_path: Path) -> None:
    adapter: State = {}
    added = torch.zeros(EXPERTS, 2 * INNER, HIDDEN)
    for expert in range(EXPERTS):
        for place, leaf in enumerate(("gate_proj", "up_proj")):
            weight = {f"experts.{expert}.{leaf}.weight": torch.zeros(INNER, HIDDEN)}
            adapter |= loras.pairs(weight, RANK, seed=expert * 7 + place)
            product = loras.delta(adapter, f"experts.{expert}.{leaf}", 4)
            added[expert, place * INNER : (place + 1) * INNER] = product
    state = {"experts.gate_up_proj": noise(EXPERTS, 2 * INNER, HIDDEN)}
    config = {"r": RANK}
    with pytest.raises(ckpt.UsageError, match="concatenated or interleaved: both fit"):
        merged(tmp_path, state, adapter, config)
    whole = state["experts.gate_up_proj"]
    check(
        merged(tmp_path, state, adapter, config, packing="concatenated"),
        {"experts.gate_up_proj": whole + added},
    )
    mixed = (
        added.reshape(EXPERTS, 2, INNER, HIDDEN).transpose(1, 2).reshape(added.shape)
    )
    check(
        merged(tmp_path, state, adapter, config, packing="interleaved"),
        {"experts.gate_up_proj": whole + mixed},
    )
    turned = {"experts.gate_up_proj": whole.transpose(1, 2).contiguous()}
    found = merged(tmp_path, turned, adapter, config, packing="concatenated")
    check(found, {"experts.gate_up_proj": (whole + added).transpose(1, 2).contiguous()})


# --- query, key and value in one tensor -----------------------------------------------


def test_query_key_and_value_meet_the_tensor_that_holds_all(tmp_path: Path) -> None:
    sizes = {"q_proj": 8, "k_proj": 4, "v_proj": 4}
    parts = {
        f"a.{name}.weight": noise(rows, 6, seed=rows) for name, rows in sizes.items()
    }
    whole = {"a.qkv_proj.weight": torch.cat(list(parts.values()))}
    adapter = loras.pairs(
        {name: parts[name] for name in ("a.q_proj.weight", "a.v_proj.weight")}
    )
    expected = torch.cat(list(loras.merged(parts, adapter).values()))
    with pytest.raises(ckpt.UsageError, match="both fit"):
        merged(tmp_path, whole, adapter)
    check(
        merged(tmp_path, whole, adapter, packing="concatenated"),
        {"a.qkv_proj.weight": expected},
    )
    with pytest.raises(ckpt.UnsupportedError, match="head by head"):
        merged(tmp_path, whole, adapter, packing="interleaved")

    fused = loras.pairs(whole)
    with pytest.raises(
        ckpt.UsageError, match=r"a\.qkv_proj may hold a\.\{q,k,v\}_proj"
    ):
        merged(tmp_path, parts, fused)
    added = loras.delta(fused, "a.qkv_proj", 2.0).split(list(sizes.values()))
    expected_parts = {
        name: part + more
        for (name, part), more in zip(parts.items(), added, strict=True)
    }
    check(merged(tmp_path, parts, fused, packing="concatenated"), expected_parts)


# --- several adapters, training, formats ----------------------------------------------


def test_several_adapters_are_added_with_their_weights_and_rounded_once(
    tmp_path: Path,
) -> None:
    state = loras.base(torch.bfloat16)
    path = loras.save_base(state, tmp_path / "base.safetensors")
    one, two = (
        loras.pairs(loras.linear(state)),
        loras.pairs(loras.linear(state), 2, seed=4000),
    )
    folders = [
        loras.save_adapter(one, tmp_path / "one"),
        loras.save_adapter(two, tmp_path / "two", r=2, lora_alpha=2),
    ]
    expected = dict(state)
    for name in loras.linear(state):
        module = name.removesuffix(".weight")
        sums = (
            state[name].float()
            + loras.delta(one, module, 1.4)
            + loras.delta(two, module, 0.3)
        )
        expected[name] = sums.bfloat16()

    ckpt.merge(path, folders, weights=[0.7, 0.3], out=tmp_path / "out.safetensors")

    loras.check_same(tmp_path / "out.safetensors", expected)
    with pytest.raises(ckpt.UsageError, match="has 1 number for 2 adapters"):
        ckpt.merge(path, folders, weights=[0.7], dry_run=True)


def test_each_of_two_adapters_of_dora_has_the_lengths_of_the_base(
    tmp_path: Path,
) -> None:
    state = {"w.weight": noise(6, 8)}
    path = loras.save_base(state, tmp_path / "base.safetensors")
    folders, expected = [], state["w.weight"].double()
    for number, name in enumerate(("one", "two")):
        adapter = loras.pairs(state, seed=number * 300)
        lengths = noise(6, seed=number).abs() + 1
        adapter[f"{PREFIX}w.lora_magnitude_vector"] = lengths
        folders.append(loras.save_adapter(adapter, tmp_path / name, use_dora=True))
        added = loras.delta(adapter, "w", 2.0).double()
        factors = lengths / torch.linalg.norm(state["w.weight"].double() + added, dim=1)
        expected = factors[:, None] * (expected + added)

    ckpt.merge(path, folders, out=tmp_path / "out.safetensors")

    loras.check_same(tmp_path / "out.safetensors", {"w.weight": expected.float()}, 3)
    with pytest.raises(ckpt.UsageError, match="whose lengths have no weight but 1"):
        ckpt.merge(path, folders, weights=[1, 0.5], dry_run=True)


@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_a_scale_is_finite(scale: float, tmp_path: Path) -> None:
    state = {"w.weight": noise(6, 8)}
    with pytest.raises(ckpt.UsageError, match="scale=: not a finite number"):
        merged(tmp_path, state, loras.pairs(state), scale=scale)


def test_a_fused_layer_and_a_part_of_it_are_not_merged_both(tmp_path: Path) -> None:
    state = {"a.gate_up_proj.weight": noise(12, 8)}
    adapter = loras.pairs(state) | loras.pairs({"a.up_proj.weight": noise(6, 8)})
    with pytest.raises(ckpt.UsageError, match="change the same rows of"):
        merged(tmp_path, state, adapter, packing="concatenated")
    with pytest.raises(ckpt.UsageError, match="change the same rows of"):
        merged(tmp_path, state, adapter, packing="interleaved")


def test_exact_sums_are_those_of_float64(tmp_path: Path) -> None:
    state = {"w.weight": torch.full((1, 64), 1.0)}
    adapter = {
        f"{PREFIX}w.lora_A.weight": torch.full((4, 64), 1.0)
        * torch.tensor([[1e8], [1.0], [-1e8], [3.0]]),
        f"{PREFIX}w.lora_B.weight": torch.full((1, 4), 1.0),
    }
    found = merged(tmp_path, state, adapter, exact=True)
    assert torch.equal(found["w.weight"], torch.full((1, 64), 9.0))


def training(state: State, adapter: State, name: str = "default") -> State:
    """The state dict of a model of PEFT in training: the base and the adapter
    together.
    """
    found: State = {}
    for key, tensor in state.items():
        module = key.removesuffix(".weight")
        if f"{PREFIX}{module}.lora_A.weight" in adapter:
            found[f"{PREFIX}{module}.base_layer.weight"] = tensor
            found |= {
                f"{PREFIX}{module}.lora_{letter}.{name}.weight": adapter[
                    f"{PREFIX}{module}.lora_{letter}.weight"
                ]
                for letter in "AB"
            }
        else:
            found[f"{PREFIX}{key}"] = tensor
    return found


@pytest.mark.parametrize("is_lightning", [False, True])
def test_a_checkpoint_of_training_is_an_adapter_and_a_base(
    is_lightning: bool, tmp_path: Path
) -> None:
    state = loras.base()
    adapter = loras.pairs(loras.linear(state))
    whole: Any = training(state, adapter)
    if is_lightning:
        inner = {f"model.{name}": tensor for name, tensor in whole.items()}
        whole = {
            "state_dict": inner,
            "pytorch-lightning_version": "2.5",
            "epoch": 3,
            "optimizer_states": [{}],
        }
    torch.save(whole, tmp_path / "last.ckpt")
    path = loras.save_base(state, tmp_path / "base.safetensors")
    expected = loras.merged(state, adapter)

    with pytest.raises(
        ckpt.UsageError, match=r"nothing says the alpha of 12 layers.*scale=X"
    ):
        ckpt.merge(path, tmp_path / "last.ckpt", dry_run=True)
    report = ckpt.merge(
        path, tmp_path / "last.ckpt", scale=2, out=tmp_path / "a.safetensors"
    )
    loras.check_same(tmp_path / "a.safetensors", expected)
    assert report.account is not None and report.account.to_json()["adapters"][0][
        "copies"
    ] == len(state)  # type: ignore[index, call-overload]
    ckpt.merge(tmp_path / "last.ckpt", scale=2, out=tmp_path / "b.safetensors")
    loras.check_same(tmp_path / "b.safetensors", expected)

    state["model.layers.1.self_attn.q_proj.weight"][0, 0] += 1
    other = loras.save_base(state, tmp_path / "other.safetensors")
    with pytest.raises(ckpt.UsageError, match="belongs to another base"):
        ckpt.merge(other, tmp_path / "last.ckpt", scale=2, dry_run=True)


@pytest.mark.parametrize("place", [0, 1])
def test_each_adapter_has_the_copies_of_its_own_file(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = loras.base()
    names = list(loras.linear(state))
    one, two = ({name: state[name] for name in names[half::2]} for half in (0, 1))
    last = tmp_path / "last.ckpt"
    torch.save(training(state, loras.pairs(one)), last)
    plain = loras.save_adapter(loras.pairs(two), tmp_path / "plain")
    base = loras.save_base(state, tmp_path / "base.safetensors")
    adapters = [plain]
    adapters.insert(place, last)

    report = ckpt.merge(base, adapters, scale=2, dry_run=True)

    assert report.account is not None
    sources: Any = report.account.to_json()["adapters"]
    copies = [source["copies"] for source in sources]
    assert copies.pop(place) == len(state) and copies == [0]
    state[names[0]][0, 0] += 1
    other = loras.save_base(state, tmp_path / "other.safetensors")
    # Short paths: an error cuts long ones.
    monkeypatch.chdir(tmp_path)
    adapters = [os.path.relpath(adapter) for adapter in adapters]
    file = re.escape(os.path.relpath(last))
    says = rf"is another one in {file}: its adapter belongs to another base"
    with pytest.raises(ckpt.UsageError, match=says):
        ckpt.merge(other, adapters, scale=2, dry_run=True)
    del state["model.embed_tokens.weight"]
    other = loras.save_base(state, tmp_path / "other.safetensors")
    with pytest.raises(ckpt.UsageError, match=rf"lacks model\.embed.* of {file}"):
        ckpt.merge(other, adapters, scale=2, dry_run=True)


def test_a_module_that_was_trained_as_a_whole_in_a_checkpoint_of_training(
    tmp_path: Path,
) -> None:
    state = loras.base()
    adapter = loras.pairs(loras.linear(state))
    whole: Any = training(state, adapter)
    frozen = whole.pop(f"{PREFIX}lm_head.weight")
    trained = noise(30, 12, seed=55)
    # The order in which PEFT has them, and the other one.
    for number, names in enumerate((("original", "saved"), ("saved", "original"))):
        head = {
            "original": (f"{PREFIX}lm_head.original_module.weight", frozen),
            "saved": (f"{PREFIX}lm_head.modules_to_save.default.weight", trained),
        }
        last = tmp_path / f"last{number}.ckpt"
        torch.save({**whole, **dict(head[name] for name in names)}, last)
        base = loras.save_base(state, tmp_path / "base.safetensors")
        expected = {**loras.merged(state, adapter), "lm_head.weight": trained}
        out = tmp_path / "out.safetensors"

        report = ckpt.merge(base, last, scale=2, out=out, force=True)
        loras.check_same(out, expected)
        account = report.account
        assert account is not None
        source = account.to_json()["adapters"][0]  # type: ignore[index, call-overload]
        assert source["replaced"] == ["lm_head.weight"]
        assert source["copies"] == len(state) - 1
        ckpt.merge(last, scale=2, out=out, force=True)
        loras.check_same(out, expected)


FORMATS = ["a.pth", "a.safetensors", "a.dcp", "shards"]


@pytest.mark.needs("folders")
@pytest.mark.parametrize("source", [*FORMATS, "legacy.pth", "deflated.pth"])
def test_every_format_of_the_base_gives_the_same_result(
    source: str, tmp_path: Path
) -> None:
    state = loras.base(torch.bfloat16)
    adapter = loras.pairs(loras.linear(state))
    folder = loras.save_adapter(adapter, tmp_path / "adapter")
    plain = tmp_path / "plain.pth"
    torch.save(state, plain)
    path = tmp_path / source
    if source == "legacy.pth":
        torch.save(state, path, _use_new_zipfile_serialization=False)
    elif source == "deflated.pth":
        deflate(plain, path)
    elif source == "shards":
        path.mkdir()
        ckpt.convert(plain, out=path, shard_size=600)
    else:
        ckpt.convert(plain, out=path)
    expected = loras.merged(state, adapter)

    ckpt.merge(path, folder, out=tmp_path / "out.safetensors")

    loras.check_same(tmp_path / "out.safetensors", expected)


def deflate(source: Path, to: Path) -> None:
    """The same archive with deflated records, whose bytes come in order only."""
    import zipfile

    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for item in old.infolist():
            new.writestr(item.filename, old.read(item.filename))


@pytest.mark.needs("folders")
@pytest.mark.parametrize("out", FORMATS)
def test_every_format_is_written(out: str, tmp_path: Path) -> None:
    state = loras.base(torch.float16)
    adapter = loras.pairs(loras.linear(state))
    folder = loras.save_adapter(adapter, tmp_path / "adapter")
    path = loras.save_base(state, tmp_path / "base.safetensors")
    more: dict[str, Any] = {"shard_size": 600} if out == "shards" else {}
    if out == "shards":
        (tmp_path / out).mkdir()

    ckpt.merge(path, folder, out=tmp_path / out, verify="crc", **more)

    ckpt.convert(tmp_path / out, out=tmp_path / "plain.safetensors", force=True)
    loras.check_same(tmp_path / "plain.safetensors", loras.merged(state, adapter))


def test_tied_tensors_change_together_and_the_report_says_so(tmp_path: Path) -> None:
    weight = noise(30, 12)
    state = {"embed.weight": weight, "head.weight": weight}
    torch.save(state, tmp_path / "base.pth")
    adapter = loras.pairs({"head.weight": weight})
    folder = loras.save_adapter(adapter, tmp_path / "adapter")

    report = ckpt.merge(tmp_path / "base.pth", folder, out=tmp_path / "out.pth")

    found = torch.load(tmp_path / "out.pth", weights_only=True)
    assert found["embed.weight"].data_ptr() == found["head.weight"].data_ptr()
    assert (
        loras.units(found["head.weight"], weight + loras.delta(adapter, "head", 2.0))
        <= 1
    )
    assert [(row.name, row.what) for row in report.left_alone] == [
        ("embed.weight", "shares the memory of head.weight, and changes with it")
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_that_the_base_shares_with_its_embedding_gets_a_tensor(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """transformers writes one of both. What was learned is about the head: the
    embedding stays.
    """
    state = loras.base(dtype)
    head = state.pop("lm_head.weight")
    embedding = state["model.embed_tokens.weight"]
    adapter = loras.pairs(loras.linear(state) | {"lm_head.weight": head})
    base = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter")

    done = process.ckpt(
        "merge", str(base), str(folder), "-o", str(tmp_path / "out.safetensors")
    )
    assert done.code == 0, done.err
    said = " ".join(done.out.decode().split())
    assert "model.embed_tokens.weight, which it was tied to, stays" in said
    assert "tie_word_embeddings in config.json must say false" in said
    loras.check_same(
        tmp_path / "out.safetensors",
        loras.merged(state | {"lm_head.weight": embedding}, adapter),
    )
    report = ckpt.diff(base, tmp_path / "out.safetensors", adapter=folder)
    assert report.account is not None and not report.account.differs

    fewer = {
        "model.embed_tokens.weight": embedding[:29],
        "model.layers.0.norm.weight": torch.ones(12),
    }
    base = loras.save_base(fewer, tmp_path / "fewer.safetensors")
    only = {name: tensor for name, tensor in adapter.items() if "lm_head" in name}
    with pytest.raises(ckpt.UsageError, match="lacks 1 layer"):
        ckpt.merge(base, loras.save_adapter(only, tmp_path / "only"), dry_run=True)


@pytest.mark.parametrize("tokens", [30, 33])
def test_a_tied_head_has_what_became_of_the_embedding(
    tokens: int, tmp_path: Path
) -> None:
    """The head was the embedding in training: the new one, perhaps with more tokens."""
    state = loras.base()
    del state["lm_head.weight"]
    trained = noise(tokens, 12, seed=81)
    adapter = loras.pairs({"lm_head.weight": trained})
    adapter[f"{PREFIX}model.embed_tokens.weight"] = trained
    expected = {
        **state,
        "model.embed_tokens.weight": trained,
        "lm_head.weight": trained + loras.delta(adapter, "lm_head", 2.0),
    }
    check(merged(tmp_path, state, adapter), expected)


@pytest.mark.parametrize("size", [6, 8])
def test_dora_on_convolutions_of_one_element(size: int, tmp_path: Path) -> None:
    """PEFT has a length for each output, also where there are as many inputs."""
    weight = noise(6, size, 1, 1)
    adapter = {
        f"{PREFIX}conv.lora_A.weight": noise(4, size, 1, 1, seed=1),
        f"{PREFIX}conv.lora_B.weight": noise(6, 4, 1, 1, seed=2),
        f"{PREFIX}conv.lora_magnitude_vector": noise(1, 6, 1, 1, seed=3).abs() + 1,
    }
    product = (
        noise(6, 4, 1, 1, seed=2)[..., 0, 0] @ noise(4, size, 1, 1, seed=1)[..., 0, 0]
    )
    changed = weight + 2 * product[..., None, None]
    lengths = changed.flatten(1).norm(dim=1)[:, None, None, None]
    wide = adapter[f"{PREFIX}conv.lora_magnitude_vector"].reshape(6, 1, 1, 1)
    found = merged(tmp_path, {"conv.weight": weight}, adapter, {"use_dora": True})
    check(found, {"conv.weight": changed * wide / lengths})


@pytest.mark.parametrize("embedding", ["of the base", "equal", "other", "with LoRA"])
def test_a_head_that_was_trained_as_a_whole_is_no_more_tied(
    embedding: str, tmp_path: Path
) -> None:
    """With modules_to_save the adapter has a head of its own, which transformers drops
    as long as config.json says that it is tied.
    """
    state = loras.base()
    del state["lm_head.weight"]
    layers = loras.linear(state)
    adapter = loras.pairs(layers)
    adapter[f"{PREFIX}lm_head.weight"] = noise(30, 12, seed=77)
    name = f"{PREFIX}model.embed_tokens"
    if embedding == "equal":
        adapter[f"{name}.weight"] = noise(30, 12, seed=77)
    elif embedding == "other":
        adapter[f"{name}.weight"] = noise(30, 12, seed=78)
    elif embedding == "with LoRA":
        adapter[f"{name}.lora_embedding_A"] = noise(4, 30, seed=79)
        adapter[f"{name}.lora_embedding_B"] = noise(12, 4, seed=80)
    base = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(
        adapter, tmp_path / "adapter", modules_to_save=["lm_head", "embed_tokens"]
    )

    report = ckpt.merge(base, folder, out=tmp_path / "out.safetensors")

    said = [row.what for row in report.left_alone if "tie_word_embeddings" in row.what]
    if embedding == "equal":
        assert said == []
    else:
        assert said == [
            "is new: the adapter has it apart from model.embed_tokens.weight, which it "
            "was tied to: tie_word_embeddings in config.json must say false"
        ]


def test_damage_of_the_base_stops_the_merge(tmp_path: Path) -> None:
    state = loras.base()
    torch.save(state, tmp_path / "base.pth")
    data = bytearray((tmp_path / "base.pth").read_bytes())
    weight = state["model.layers.1.self_attn.up_proj.weight"]
    place = bytes(data).index(weight.numpy().tobytes())
    data[place + 5] ^= 1
    (tmp_path / "base.pth").write_bytes(data)
    folder = loras.save_adapter(loras.pairs(loras.linear(state)), tmp_path / "adapter")

    with pytest.raises(ckpt.DamagedDataError, match=r"up_proj"):
        ckpt.merge(tmp_path / "base.pth", folder, out=tmp_path / "out.pth")
    assert not (tmp_path / "out.pth").exists()


def test_what_is_beyond_the_range_of_the_base_is_counted(tmp_path: Path) -> None:
    state = {"w.weight": torch.full((2, 2), 60000.0, dtype=torch.float16)}
    adapter = {
        f"{PREFIX}w.lora_A.weight": torch.full((4, 2), 100.0),
        f"{PREFIX}w.lora_B.weight": torch.full((2, 4), 100.0),
    }
    path = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter")
    out = tmp_path / "out.safetensors"
    report = ckpt.merge(path, folder, out=out)
    assert report.saved is not None and report.saved.overflowed == 4

    done = process.ckpt("merge", path, folder, "-o", out, "--force")
    assert b"4 elements became infinite, because float16 cannot represent" in done.out
    mixed = {**state, "norm.weight": torch.ones(2)}
    path = loras.save_base(mixed, tmp_path / "mixed.safetensors")
    done = process.ckpt("merge", path, folder, "-o", out, "--force")
    assert b"because the dtype of their tensors cannot represent" in done.out


def test_what_was_infinite_before_is_not_counted(tmp_path: Path) -> None:
    inf = float("inf")
    state = {"w.weight": torch.tensor([[inf, 3e38], [1.0, 1.0]])}
    adapter = {
        f"{PREFIX}w.lora_A.weight": torch.tensor([[0.0, 1.0]]),
        f"{PREFIX}w.lora_B.weight": torch.tensor([[3e38], [0.0]]),
    }
    path = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter", r=1, lora_alpha=1)
    out = tmp_path / "out.safetensors"

    report = ckpt.merge(path, folder, out=out)

    assert report.saved is not None and report.saved.overflowed == 1
    wanted = torch.tensor([[inf, inf], [1.0, 1.0]])
    assert torch.equal(load_file(out)["w.weight"], wanted)


def test_what_is_swapped_or_missing_is_said(tmp_path: Path) -> None:
    state = {"w.weight": noise(4, 4)}
    loras.save_base(state, tmp_path / "base.safetensors")
    loras.save_adapter(loras.pairs(state), tmp_path / "lora")

    def complaint(*words: str) -> str:
        done = process.ckpt("merge", *words, "-o", "out.safetensors", cwd=tmp_path)
        assert done.code == 2 and len(done.complaints) == 1
        return done.complaints[0]

    none = (
        "ckpt: base.safetensors: holds no adapter: no tensor is called lora_A, lora_B"
    )
    swapped = complaint("lora", "base.safetensors")
    assert swapped.startswith(none)
    assert swapped.endswith(
        "(the base comes first: ckpt merge base.safetensors lora -o out.safetensors)"
    )
    # The command to paste has the options that were typed, and works.
    (tmp_path / "model").mkdir()
    loras.save_base(state, tmp_path / "model/model.safetensors")
    (tmp_path / "model/config.json").write_text("{}")
    words = ["--exact", "--with-config", "--parents"]
    done = process.ckpt(
        "merge", "lora", "model", *words, "-o", "new dir/out", cwd=tmp_path
    )
    said = done.err.decode().rpartition("the base comes first:")[2]
    command = said.strip(" \n)")
    assert shlex.split(command)[:4] == ["ckpt", "merge", "model", "lora"]
    assert all(word in shlex.split(command) for word in (*words, "-o", "new dir/out"))
    assert process.ckpt(*shlex.split(command)[1:], cwd=tmp_path).code == 0
    assert (tmp_path / "new dir/out/config.json").exists()
    both = complaint("base.safetensors", "base.safetensors")
    assert both.startswith(none) and both.endswith("or their like")
    alone = complaint("lora")
    assert "lora: an adapter alone, without the weights of its base" in alone
    assert alone.endswith("(ckpt merge BASE lora)")


def test_matrices_of_loralib_are_not_merged_twice(tmp_path: Path) -> None:
    """Its parameters have no `.weight` behind, and eval mode adds them to the weight."""
    weight = noise(6, 4)
    matrices = {"q.lora_A": noise(2, 4), "q.lora_B": noise(6, 2)}
    path = tmp_path / "own.pt"
    torch.save({"state_dict": {"q.weight": weight, **matrices}}, path)

    done = inside("merge", "own.pt", "-o", "out.pt", cwd=tmp_path)

    assert done.code == 2
    (complaint,) = done.complaints
    assert "holds q.lora_{A,B} as loralib names them" in complaint
    assert "no tensor is called" not in complaint


@pytest.mark.parametrize(
    ("config", "labels"),
    [({"num_labels": 1}, 3), ({"num_labels": 1, "id2label": {"0": "good"}}, 1)],
)
def test_config_json_follows_the_labels_of_a_new_head(
    config: dict[str, Any], labels: int, tmp_path: Path
) -> None:
    """A list of labels wins over their number, and has names that only the user knows."""
    state = {"layer.q.weight": noise(6, 6), "score.weight": noise(1, 6)}
    (tmp_path / "model").mkdir()
    loras.save_base(state, tmp_path / "model/model.safetensors")
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    adapter = loras.pairs({"layer.q.weight": state["layer.q.weight"]})
    adapter[f"{PREFIX}score.weight"] = noise(3, 6)
    loras.save_adapter(adapter, tmp_path / "lora", modules_to_save=["score"])

    done = inside("merge", "model", "lora", "-o", "out", "--with-config", cwd=tmp_path)

    assert done.code == 0, done
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["num_labels"] == labels
    advice = "num_labels in config.json must say 3"
    assert (advice in "\n".join(done.lines)) == (labels == 1)


def test_what_another_format_cannot_hold_is_dropped_where_that_is_asked(
    tmp_path: Path,
) -> None:
    state = loras.base(torch.float32)
    loras.save_adapter(loras.pairs(loras.linear(state)), tmp_path / "adapter")
    odd = torch.ones(2, dtype=torch.complex128)
    torch.save({**state, "odd": odd}, tmp_path / "base.pth")
    command = ("merge", "base.pth", "adapter", "-o", "out.safetensors")

    refused = inside(*command, cwd=tmp_path)
    assert refused.code == 2 and refused.err.endswith(b"would be lost (--drop-other)\n")
    done = inside(*command, "--drop-other", cwd=tmp_path)
    assert done.code == 0 and b"left out: odd: complex128, 32 B" in done.out
    assert load_file(tmp_path / "out.safetensors").keys() == state.keys()


def test_the_layers_of_another_part_of_the_pipeline_are_left_out(
    tmp_path: Path,
) -> None:
    """A UNet alone takes an adapter that is of the text encoder too, and the error says
    how.
    """
    base = {"mid.attn1.to_q.weight": torch.eye(4)}
    pair = {"lora_A.weight": torch.ones(2, 4), "lora_B.weight": torch.ones(4, 2)}
    adapter = {f"unet.mid.attn1.to_q.{key}": value for key, value in pair.items()}
    adapter |= {
        f"text_encoder.h.0.q_proj.{key}": value.clone() for key, value in pair.items()
    }
    save_file(base, tmp_path / "unet.safetensors")
    save_file(adapter, tmp_path / "lora.safetensors")
    words = ("merge", "unet.safetensors", "lora.safetensors", "-o", "out.safetensors")

    done = inside(*words, cwd=tmp_path)

    assert done.code == 2
    assert done.complaints[-1].endswith("(--exclude 'text_encoder.*' leaves them out)")
    done = inside(*words, "--exclude", "text_encoder.*", cwd=tmp_path)
    assert done.code == 0
    found = load_file(tmp_path / "out.safetensors")["mid.attn1.to_q.weight"]
    assert torch.equal(found, torch.eye(4) + 2)
