"""Names alone: the orders of models, and what a program makes of them."""

from __future__ import annotations

import pytest

from ckpt.evidence.order import disorder_reason, may_be_sorted

PAIR = ("weight", "bias")


def linear(*layers: str) -> list[str]:
    return [f"{layer}.{part}" for layer in layers for part in PAIR]


OF_MODELS = {
    "a layer that registers its bias first": [*linear("a"), "norm.bias", "norm.weight"],
    "keys with gaps": ["late.7.weight", "late.3.weight", "early.weight"],
    "keys beside another name": [
        "heads.1.weight",
        "heads.0.weight",
        "heads.cls.weight",
    ],
    "names that begin with a number": [
        "0_down.weight",
        "0_up.weight",
        "1_down.weight",
        "2d.weight",
    ],
    "numbers with a zero before them": ["01.weight", "00.weight"],
}


@pytest.mark.parametrize("names", OF_MODELS.values(), ids=OF_MODELS)
def test_an_order_that_a_model_can_have(names: list[str]) -> None:
    assert disorder_reason(names, [names, ["counter"]]) is None
    assert disorder_reason([*names, "counter"], [names, ["counter"]]) is None


def test_a_bias_before_each_weight_is_of_the_alphabet() -> None:
    names = [
        "b.bias",
        "b.weight",
        "a.bias",
        "a.weight",
    ]  # not sorted as a whole: the dtypes differ
    assert "sorted" in str(disorder_reason(names, [names[:2], names[2:]]))


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ((1, 0), "layers.1 stands before layers.0"),
        ((0, 2, 1), "layers.2 stands before layers.1"),
        ((2, 3, 0, 1), "layers.3 stands before layers.0"),
    ],
)
def test_a_list_counts_up(numbers: tuple[int, ...], why: str) -> None:
    names = [f"layers.{number}.weight" for number in numbers]
    assert str(disorder_reason(names, [names])).startswith(why)
    in_order = sorted(names)
    assert disorder_reason(in_order, [in_order]) is None


def test_neighbours_tell_once_however_many_layers_repeat_them() -> None:
    names = [
        f"layers.{layer}.{part}" for layer in range(9) for part in ("a", "b", "c", "d")
    ]
    assert not may_be_sorted([names])
    assert may_be_sorted([[*names, "norm", "out"]])
    assert not may_be_sorted([[*names, "norm", "out"], ["d", "c"]])
