"""`ckpt diff BASE MERGED --adapter ADAPTER`: merges that are broken in the ways that
people report, and good ones of all kinds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loras
import oracle
import pytest
import torch
from inside import inside
from loras import PREFIX, State, noise
from safetensors.torch import load_file

import ckpt
from ckpt.ext.adapters import checks
from ckpt.ext.adapters.verdicts import MergeCheck

pytestmark = oracle.QUIET
SCALE = 2.0


def checked(
    folder: Path, state: State, found: State, adapter: State, **config: Any
) -> MergeCheck:
    """What is said of a merge."""
    before = loras.save_base(state, folder / "base.safetensors")
    after = loras.save_base(found, folder / "merged.safetensors")
    adapted = loras.save_adapter(adapter, folder / "adapter", **config)
    report = ckpt.diff(before, after, adapter=adapted)
    assert isinstance(report.account, MergeCheck)
    assert report.exit_code == int(report.account.differs)
    return report.account


def verdicts(check: MergeCheck) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pair in check.pairs:
        counts[pair.verdict] = counts.get(pair.verdict, 0) + 1
    return counts


def wide_base(dtype: torch.dtype = torch.float32) -> State:
    """A base with square layers of a size at which sums tell scales apart."""
    names = [
        f"model.layers.{block}.self_attn.{name}.weight"
        for block in range(3)
        for name in ("q_proj", "o_proj")
    ]
    state = {
        name: noise(48, 48, dtype=dtype, seed=number)
        for number, name in enumerate(names)
    }
    return {
        **state,
        "model.norm.weight": torch.ones(48, dtype=dtype),
        "lm_head.weight": noise(60, 48, dtype=dtype),
    }


def modules(adapter: State) -> list[str]:
    return [
        name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        for name in adapter
        if "lora_A" in name
    ]


def with_scales(
    state: State, adapter: State, scales: Callable[[int, str], float]
) -> State:
    """The base with each product times a scale of its own."""
    found = dict(state)
    for number, module in enumerate(modules(adapter)):
        name = f"{module}.weight"
        sums = found[name].float() + loras.delta(
            adapter, module, scales(number, module)
        )
        found[name] = sums.to(state[name].dtype)
    return found


def with_products(state: State, product: Callable[[str], torch.Tensor]) -> State:
    """The base with other products in the place of B @ A."""
    found = dict(state)
    for name in state:
        if "_proj" in name:
            sums = found[name].float() + product(name.removesuffix(".weight"))
            found[name] = sums.to(state[name].dtype)
    return found


def broken(name: str, state: State, adapter: State) -> State:
    """A merge that went wrong."""
    other = loras.pairs(loras.linear(state), seed=7000)
    plain = with_scales(state, adapter, lambda number, module: SCALE)
    ways: dict[str, Callable[[], State]] = {
        "nothing": lambda: dict(state),
        "alpha forgotten": lambda: with_scales(
            state, adapter, lambda number, module: 1.0
        ),
        "alpha for the rank": lambda: with_scales(
            state, adapter, lambda number, module: 8.0
        ),
        "rsLoRA forgotten": lambda: with_scales(
            state, adapter, lambda number, module: 4.0 * SCALE / 2
        ),
        "twice": lambda: with_scales(state, adapter, lambda number, module: 2 * SCALE),
        "half": lambda: with_scales(state, adapter, lambda number, module: SCALE / 2),
        "subtracted": lambda: with_scales(
            state, adapter, lambda number, module: -SCALE
        ),
        "half of the layers": lambda: with_scales(
            state, adapter, lambda number, module: SCALE * (number < 3)
        ),
        "one kind of layer": lambda: with_scales(
            state, adapter, lambda number, module: SCALE * ("q_proj" in module)
        ),
        "one layer": lambda: with_scales(
            state, adapter, lambda number, module: SCALE * (number != 4)
        ),
        "transposed": lambda: with_products(
            state, lambda module: loras.delta(adapter, module, SCALE).T
        ),
        "another adapter": lambda: with_products(
            state, lambda module: loras.delta(other, module, SCALE)
        ),
        "another adapter too": lambda: with_products(
            state,
            lambda module: (
                loras.delta(adapter, module, SCALE) + loras.delta(other, module, SCALE)
            ),
        ),
        "layers in another order": lambda: {
            **plain,
            **dict(
                zip(
                    loras.linear(plain),
                    reversed(loras.linear(plain).values()),
                    strict=True,
                )
            ),
        },
        "another base": lambda: {
            name: tensor + noise(*tensor.shape, seed=99).to(tensor.dtype)
            for name, tensor in plain.items()
        },
        "a head that changed": lambda: {
            **plain,
            "lm_head.weight": noise(60, 48, seed=5).to(state["lm_head.weight"].dtype),
        },
        "a tensor that is lost": lambda: {
            name: tensor
            for name, tensor in plain.items()
            if name != "model.layers.1.self_attn.q_proj.weight"
        },
        "rank cut": lambda: with_products(
            state,
            lambda module: (
                SCALE
                * (
                    adapter[f"{PREFIX}{module}.lora_B.weight"][:, :2]
                    @ adapter[f"{PREFIX}{module}.lora_A.weight"][:2]
                )
            ),
        ),
    }
    return ways[name]()


BROKEN: dict[str, tuple[dict[str, int], str]] = {
    "nothing": ({"missing": 6}, "0 of 6 pairs are merged; 6 are not: 6 as in BASE"),
    "alpha forgotten": ({"scaled": 6}, "with scale 1 instead of 2, as without alpha"),
    "alpha for the rank": ({"scaled": 6}, "with scale 8 instead of 2"),
    "rsLoRA forgotten": ({"twice": 6}, "applied twice"),
    "twice": ({"twice": 6}, "applied twice"),
    "half": ({"scaled": 6}, "with scale 1 instead of 2"),
    "subtracted": ({"scaled": 6}, "with scale -2 instead of 2, subtracted"),
    "half of the layers": (
        {"merged": 3, "missing": 3},
        "3 of 6 pairs are merged; 3 are not: 3 as in BASE",
    ),
    "one kind of layer": (
        {"merged": 3, "missing": 3},
        "as in BASE: model.layers.0-2.self_attn.o_proj",
    ),
    "one layer": (
        {"merged": 5, "missing": 1},
        "5 of 6 pairs are merged; 1 is not: 1 as in BASE",
    ),
    "transposed": ({"transposed": 6}, "transposed"),
    "another adapter": ({"other": 6}, "something else"),
    "another adapter too": ({"other": 6}, "something else"),
    "layers in another order": ({"other": 6}, "something else"),
    "another base": ({"other": 6}, "also changed: 2 tensors"),
    "a head that changed": ({"merged": 6}, "also changed: 1 tensor: lm_head.weight"),
    "a tensor that is lost": ({"merged": 5, "lacking": 1}, "not in MERGED"),
    "rank cut": ({"other": 6}, "something else"),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_merge_is_named(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    state = wide_base(dtype)
    adapter = loras.pairs(loras.linear(state))
    counts, text = BROKEN[name]

    check = checked(tmp_path, state, broken(name, state, adapter), adapter)

    assert verdicts(check) == counts
    said = "\n".join("".join(part for part, _ in line) for line in check.lines(None))
    assert text in said and check.differs


GOOD: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]] = {
    "rounded once": lambda weight, added, dtype: (weight.float() + added).to(dtype),
    "added in the dtype": lambda weight, added, dtype: weight + added.to(dtype),
    "computed in float64": lambda weight, added, dtype: (
        weight.double() + added.double()
    ).to(dtype),
    "written as bfloat16": lambda weight, added, dtype: (
        weight.float() + added
    ).bfloat16(),
    "written as float16": lambda weight, added, dtype: (weight.float() + added).half(),
    "written as float32": lambda weight, added, dtype: weight.float() + added,
    "product in bfloat16": lambda weight, added, dtype: (
        weight.float() + added.bfloat16().float()
    ).to(dtype),
    "cast after adding in the dtype": lambda weight, added, dtype: (
        weight + added.to(dtype)
    ).float(),
}


@pytest.mark.parametrize("size", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", GOOD)
def test_no_good_merge_gets_a_false_word(
    name: str, dtype: torch.dtype, size: float, tmp_path: Path
) -> None:
    """However it was rounded, also where most of what is added is less than a unit of
    the dtype.
    """
    state = wide_base(dtype)
    adapter = {
        name: tensor * size if "lora_B" in name else tensor
        for name, tensor in loras.pairs(loras.linear(state)).items()
    }
    found: State = {}
    for key, tensor in state.items():
        module = key.removesuffix(".weight")
        is_changed = f"{PREFIX}{module}.lora_A.weight" in adapter
        added = loras.delta(adapter, module, SCALE) if is_changed else torch.zeros(())
        found[key] = GOOD[name](tensor, added, dtype)

    check = checked(tmp_path, state, found, adapter)

    assert verdicts(check) == {"merged": 6}, check.lines(None)
    assert not check.differs


@pytest.mark.parametrize("size", [0.05, 0.01, 1e-5])
def test_what_a_dtype_hardly_shows_is_merged_or_not(
    size: float, tmp_path: Path
) -> None:
    """Where bfloat16 shows nothing of it, nobody can tell; where it shows a little, the
    bytes of the base say it.
    """
    state = wide_base(torch.bfloat16)
    pairs = loras.pairs(loras.linear(state))
    adapter = {
        name: tensor * size if "lora_B" in name else tensor
        for name, tensor in pairs.items()
    }
    good = loras.merged(state, adapter)
    assert verdicts(checked(tmp_path, state, good, adapter)) == {"merged": 6}
    is_shown = any(not torch.equal(good[name], state[name]) for name in state)
    assert verdicts(checked(tmp_path, state, dict(state), adapter)) == {
        "missing" if is_shown else "merged": 6
    }


def test_lengths_of_dora_that_were_forgotten(tmp_path: Path) -> None:
    state = wide_base()
    adapter = loras.pairs(loras.linear(state))
    good, plain = dict(state), loras.merged(state, adapter)
    for name in loras.linear(state):
        lengths = torch.linalg.norm(plain[name], dim=1) * (1 + noise(48).abs())
        adapter[f"{PREFIX}{name.removesuffix('.weight')}.lora_magnitude_vector"] = (
            lengths
        )
        good[name] = (lengths / torch.linalg.norm(plain[name], dim=1))[:, None] * plain[
            name
        ]
    assert verdicts(checked(tmp_path, state, good, adapter, use_dora=True)) == {
        "merged": 6
    }
    assert verdicts(checked(tmp_path, state, plain, adapter, use_dora=True)) == {
        "other": 6
    }


def test_experts_that_were_skipped_and_ranks_in_the_wrong_order(tmp_path: Path) -> None:
    experts, rank = 4, 2
    state = {"experts.w": noise(experts, 24, 16)}
    down, up = noise(rank * experts, 16, seed=1), noise(24, rank * experts, seed=2)
    adapter = {
        f"{PREFIX}experts.lora_A.weight": down,
        f"{PREFIX}experts.lora_B.weight": up,
    }
    config = {"r": rank, "lora_alpha": 4, "target_parameters": ["experts.w"]}
    lower = down.reshape(experts, rank, 16)
    added = 2 * torch.einsum("ore,eri->eoi", up.reshape(24, rank, experts), lower)
    wrong = 2 * torch.einsum("oer,eri->eoi", up.reshape(24, experts, rank), lower)
    some = added.clone()
    some[2:] = 0

    for product, verdict in (
        (added, "merged"),
        (some, "part"),
        (wrong, "other"),
        (torch.zeros(()), "missing"),
    ):
        check = checked(
            tmp_path,
            state,
            {"experts.w": state["experts.w"] + product},
            adapter,
            **config,
        )
        assert verdicts(check) == {verdict: 1}
    check = checked(
        tmp_path, state, {"experts.w": state["experts.w"] + some}, adapter, **config
    )
    assert "in part, 2 of 4: experts" in "".join(
        part for line in check.lines(None) for part, _ in line
    )


def test_whole_tensors_and_rows_of_tokens(tmp_path: Path) -> None:
    state = wide_base()
    adapter = loras.pairs(
        {
            name: tensor
            for name, tensor in loras.linear(state).items()
            if "layers.0" in name
        }
    )
    adapter[f"{PREFIX}lm_head.weight"] = noise(60, 48, seed=3)
    good = {**loras.merged(state, adapter), "lm_head.weight": noise(60, 48, seed=3)}

    check = checked(tmp_path, state, good, adapter)
    assert check.wholes == (("lm_head.weight", True),) and not check.differs
    check = checked(tmp_path, state, loras.merged(state, adapter), adapter)
    assert check.wholes == (("lm_head.weight", False),) and check.differs


def test_a_tensor_that_the_base_lacks_is_no_other_change(tmp_path: Path) -> None:
    state = wide_base()
    adapter = loras.pairs(loras.linear(state))
    adapter[f"{PREFIX}score.weight"] = noise(3, 48)
    good = {**loras.merged(state, adapter), "score.weight": noise(3, 48)}
    config = {"modules_to_save": ["score"]}

    check = checked(tmp_path, state, good, adapter, **config)
    assert check.wholes == (("score.weight", True),)
    assert not check.others and not check.differs

    more = {**good, "other.weight": noise(3, 48)}
    check = checked(tmp_path, state, more, adapter, **config)
    assert check.others == (("other.weight", "added"),) and check.differs


@pytest.mark.parametrize("part", ["gate_proj", "up_proj"])
def test_layers_that_are_columns_of_one_tensor_are_told_apart(
    part: str, tmp_path: Path
) -> None:
    """The experts lie as (in, out), so gate and up are columns of their tensor."""
    state = {"experts.gate_up_proj": noise(2, 16, 40)}
    layers = [
        f"experts.{expert}.{name}.weight"
        for expert in range(2)
        for name in ("gate_proj", "up_proj")
    ]
    adapter = loras.pairs({name: torch.zeros(20, 16) for name in layers})
    found = state["experts.gate_up_proj"].clone()
    for expert in range(2):
        added = loras.delta(adapter, f"experts.{expert}.{part}", SCALE).T
        first = 0 if part == "gate_proj" else 20
        found[expert, :, first : first + 20] += added

    check = checked(tmp_path, state, {"experts.gate_up_proj": found}, adapter)

    assert {pair.layer: pair.verdict for pair in check.pairs} == {
        name.removesuffix(".weight"): "merged" if part in name else "missing"
        for name in layers
    }
    assert check.packing == ("concatenated",)


def test_a_merge_that_was_rounded_to_eight_bits_is_something_else(
    tmp_path: Path,
) -> None:
    """As of a base that was quantised before the merge. What is added is as large as a
    few units of the dtype.
    """
    state = wide_base(torch.bfloat16)
    pairs = loras.pairs(loras.linear(state))
    adapter = {
        name: tensor * 0.05 if "lora_B" in name else tensor
        for name, tensor in pairs.items()
    }
    coarse = {
        name: tensor.to(torch.float8_e4m3fn).bfloat16() if "_proj" in name else tensor
        for name, tensor in state.items()
    }

    check = checked(tmp_path, state, loras.merged(coarse, adapter), adapter)

    assert verdicts(check) == {"other": 6}


@pytest.mark.parametrize("has_alpha", [True, False])
def test_a_base_whose_numbers_were_cut_off_has_no_merge(
    has_alpha: bool, tmp_path: Path
) -> None:
    """Half of the upper halves of float32 are one less than bfloat16 after rounding."""
    state = wide_base()
    adapter = loras.pairs(loras.linear(state))
    cut = {
        name: tensor.view(torch.int16)[:, 1::2].contiguous().view(torch.bfloat16)
        for name, tensor in loras.linear(state).items()
    }
    config = {} if has_alpha else {"lora_alpha": None}

    check = checked(tmp_path, state, {**state, **cut}, adapter, **config)

    assert verdicts(check) == {"missing": 6} and check.differs


def test_without_an_alpha_the_scale_is_measured(tmp_path: Path) -> None:
    state = wide_base()
    adapter = loras.pairs(loras.linear(state))
    path = loras.save_adapter(adapter, tmp_path / "adapter")
    (path / "adapter_config.json").unlink()
    before = loras.save_base(state, tmp_path / "a.safetensors")
    after = loras.save_base(
        loras.merged(state, adapter, 1.5), tmp_path / "b.safetensors"
    )
    done = inside("diff", before.name, after.name, "--adapter", "adapter", cwd=tmp_path)
    assert done.code == 0 and b"scale 1.5, where none is recorded" in done.out


def test_the_command_says_the_same_in_text_and_in_json(tmp_path: Path) -> None:
    state = wide_base()
    adapter = loras.pairs(loras.linear(state))
    loras.save_base(state, tmp_path / "base.safetensors")
    loras.save_base(
        broken("one layer", state, adapter), tmp_path / "merged.safetensors"
    )
    loras.save_adapter(adapter, tmp_path / "adapter")
    words = ("diff", "base.safetensors", "merged.safetensors", "--adapter", "adapter")
    done = inside(*words, cwd=tmp_path)
    assert done.code == 1 and done.out.decode().splitlines() == [
        "5 of 6 pairs are merged; 1 is not: 1 as in BASE",
        "  as in BASE: model.layers.2.self_attn.q_proj",
    ]
    document = json.loads(inside(*words, "--json", cwd=tmp_path).out)
    assert (
        document["schema"]["name"] == "ckpt.diff" and document["adapter"]["merged"] == 5
    )
    assert {row["verdict"] for row in document["adapter"]["pairs"]} == {
        "merged",
        "missing",
    }
    assert inside(*words, "-q", cwd=tmp_path).code == 1
    loras.save_base(loras.merged(state, adapter), tmp_path / "merged.safetensors")
    done = inside(*words, cwd=tmp_path)
    assert done.code == 0 and done.out == b"6 of 6 pairs are merged: adapter\n"


def test_blocks_do_not_change_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = wide_base(torch.bfloat16)
    adapter = loras.pairs(loras.linear(state))
    for name in ("one layer", "twice", "transposed"):
        found = broken(name, state, adapter)
        monkeypatch.setattr(checks, "ELEMENTS", 1 << 17)
        large = checked(tmp_path, state, found, adapter)
        monkeypatch.setattr(checks, "ELEMENTS", 100)
        assert verdicts(checked(tmp_path, state, found, adapter)) == verdicts(large)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_base_with_infinite_numbers_and_nan_is_merged_as_well(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """What is infinite or NaN stays so. Sums that become infinite are counted."""
    state = wide_base(dtype)
    weights = [name for name in state if "_proj" in name]
    state[weights[0]][0, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    state[weights[1]][:, 1] = torch.finfo(dtype).max
    state[weights[2]][:] = torch.nan
    adapter = loras.pairs(loras.linear(state))
    sizes = {1: 1e20}  # the product is infinite
    if dtype != torch.float16:
        sizes[4] = 1e17  # its square is
    for number, size in sizes.items():
        module = PREFIX + weights[number].removesuffix(".weight")
        for letter in "AB":
            adapter[f"{module}.lora_{letter}.weight"].fill_(size)
    path = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter")

    report = ckpt.merge(path, folder, out=tmp_path / "out.safetensors")

    lost = state[weights[1]].numel()
    assert report.to_json()["overflowed"] == lost
    found = ckpt.diff(path, tmp_path / "out.safetensors", adapter=folder)
    assert isinstance(found.account, MergeCheck)
    assert not found.account.differs, found.account.lines(None)

    spoiled = load_file(tmp_path / "out.safetensors")
    spoiled[weights[3]][1, 1] = torch.nan
    spoiled[weights[0]][0, 2] = 1
    other = loras.save_base(spoiled, tmp_path / "spoiled.safetensors")
    found = ckpt.diff(path, other, adapter=folder)
    assert isinstance(found.account, MergeCheck)
    assert verdicts(found.account) == {"merged": len(weights) - 2, "other": 2}


def test_layers_of_one_scale_are_one_group(tmp_path: Path) -> None:
    """Rounding to bfloat16 moves the scale that is measured by less than a percent."""
    state = wide_base(torch.bfloat16)
    adapter = loras.pairs(loras.linear(state))
    wrong = with_scales(state, adapter, lambda number, _: 1 + 0.002 * (number % 3 - 1))

    check = checked(tmp_path, state, wrong, adapter)

    said = ["".join(part for part, _ in line) for line in check.lines(None)]
    assert sum("instead of 2" in line for line in said) == 1


def test_a_merge_of_a_part_is_checked_without_the_rest(tmp_path: Path) -> None:
    """`merge --exclude` left layers out that the base does not have."""
    state = wide_base()
    adapter = loras.pairs(loras.linear(state))
    loras.save_base(state, tmp_path / "base.safetensors")
    other = loras.pairs({"text.q_proj.weight": noise(6, 6)})
    loras.save_adapter({**adapter, **other}, tmp_path / "adapter")
    files = ("base.safetensors", "merged.safetensors")
    exclude = ("--exclude", "*text.*")
    words = ("merge", files[0], "adapter", *exclude, "-o", files[1])
    assert inside(*words, cwd=tmp_path).code == 0

    refused = inside("diff", *files, "--adapter", "adapter", cwd=tmp_path)
    done = inside("diff", *files, "--adapter", "adapter", *exclude, cwd=tmp_path)

    assert refused.code == 2 and "in ckpt merge" not in refused.complaints[0]
    assert done.code == 0
    assert "are merged: adapter" in done.lines[0]
    assert done.lines[1].startswith("left out: 2 tensors: base_model.model.text")
