"""The renames of a mapping, run one after the other as substitutions: they give exactly
the names that were promised.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ckpt.commands.rename.rename import substitution
from ckpt.evidence.mapping import Match, Rename, Shape, match
from ckpt.evidence.substitutions import is_exact, order_renames


def applied(renames: Sequence[Rename], name: str) -> str:
    """The name that `ckpt rename` makes of a name with the substitutions of all
    renames.
    """
    for rename in renames:
        name = substitution(rename.substitution).apply(name)
    return name


def labels(found: Match) -> list[tuple[str, str]]:
    return [rename.text for rename in found.renames]


# The layers of ESPnet, before and after it renamed them.
OLD: dict[str, Shape] = {
    "encoder.input_layer.conv.0.weight": (4, 1, 3, 3),
    "encoder.input_layer.out.0.weight": (4, 4),
    "encoder.encoders.0.w.weight": (4, 4),
    "encoder.norm.weight": (4,),
    "encoder.norm.bias": (4,),
    "decoder.output_norm.weight": (4,),
    "decoder.output_norm.bias": (4,),
}


def espnet(name: str) -> str:
    name = name.replace("input_layer", "embed").replace(
        "encoder.norm", "encoder.after_norm"
    )
    return name.replace("output_norm", "after_norm")


@pytest.mark.parametrize("turned", [False, True])
def test_a_rename_never_runs_on_the_result_of_another_one_where_a_direct_one_says_it(
    turned: bool,
) -> None:
    one, two = OLD, {espnet(name): shape for name, shape in OLD.items()}
    wanted = {name: espnet(name) for name in OLD}
    if turned:
        one, two, wanted = two, one, {new: old for old, new in wanted.items()}

    found = match(one, two)

    assert {old: new for new, old in found.partners.items()} == wanted
    words = [rename for rename in found.renames if rename.kind == "words"]
    assert len(words) == 2 and all(
        "after_norm" in rename.one + rename.two for rename in words
    )
    names = match(dict.fromkeys(one, ()), dict.fromkeys(two, ()))
    assert all(rename.is_plain for rename in names.renames)
    assert {name: applied(names.renames, name) for name in one} == wanted


def test_two_words_that_become_one_word_have_a_rule_each_with_the_parts_that_tell_them_apart() -> (
    None
):
    """`norm` becomes `ln` in one place and `post` in another one: the word alone says
    too little.
    """
    one = {
        "enc.norm.weight": (3,),
        "enc.norm.bias": (3,),
        "dec.norm.weight": (5,),
        "dec.norm.bias": (5,),
    }
    rule = {"enc.norm": "enc.norm_enc", "dec.norm": "dec.norm_dec"}
    two = {
        f"{rule[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": shape
        for name, shape in one.items()
    }
    found = match(one, two, by_shape=True)
    assert sorted(labels(found)) == [
        ("dec.norm", "dec.norm_dec"),
        ("enc.norm", "enc.norm_enc"),
    ]
    assert {applied(found.renames, name) for name in one} == two.keys()
    assert [rename.met for rename in found.renames] == [2, 2]


def test_a_name_that_fits_already_is_left_as_it_is_by_a_sharper_rule() -> None:
    one, two = {"encoder.norm.weight": ()}, {"encoder.after_norm.weight": ()}
    assert match(one, two, by_shape=True).renames[0].text == ("norm", "after_norm")
    found = match(one, two, by_shape=True, keep=["decoder.norm.weight"])
    assert found.partners == {"encoder.after_norm.weight": "encoder.norm.weight"}
    assert (
        labels(found) == [("encoder.norm", "encoder.after_norm")]
        and found.renames[0].is_plain
    )
    assert applied(found.renames, "decoder.norm.weight") == "decoder.norm.weight"


def test_words_that_change_places_have_no_command() -> None:
    """No order of two substitutions swaps two words."""
    swap = {"left": "right", "right": "left"}
    names = [
        f"{side}.{n}.{leaf}"
        for side in swap
        for n in range(3)
        for leaf in ("weight", "bias")
    ]
    partners = {
        ".".join([swap[name.split(".")[0]], *name.split(".")[1:]]): name
        for name in names
    }
    rules = [Rename(one, two, 6, 12, "words") for one, two in swap.items()]
    said = order_renames(
        rules, partners, names, lambda one, two: Rename(one, two, 0, 0, "words")
    )
    assert [rule[:2] for rule in said] == list(swap.items())
    assert not any(rule.is_plain for rule in said)


def test_a_head_that_keeps_its_name_makes_a_prefix_no_substitution() -> None:
    body = {
        f"layer.{n}.{leaf}": (n + 2,) for n in range(4) for leaf in ("weight", "bias")
    }
    one = body | {"fc.weight": (9,)}
    two = {f"backbone.{name}": shape for name, shape in body.items()} | {
        "fc.weight": (9,)
    }
    found = match(one, two)
    assert len(found.partners) == len(one) and labels(found) == [("*", "backbone.*")]
    assert not found.renames[0].is_plain, "it would call the head backbone.fc"


@pytest.mark.parametrize("seed", range(60))
def test_what_is_plain_gives_exactly_the_names_that_meet(seed: int) -> None:
    rng = random.Random(seed)
    words = [
        "norm",
        "attn",
        "proj",
        "conv",
        "fc",
        "embed",
        "out_norm",
        "layer",
        "mlp",
        "after_norm",
    ]
    one: dict[str, Shape] = {}
    for _ in range(rng.randint(4, 40)):
        parts = [rng.choice(words) for _ in range(rng.randint(1, 3))]
        name = ".".join(
            [
                *parts[:1],
                str(rng.randint(0, 11)),
                *parts[1:],
                rng.choice(["weight", "bias"]),
            ]
        )
        one[name] = (rng.randint(1, 4), rng.randint(1, 3))
    rules = [(rng.choice(words), rng.choice(words)) for _ in range(rng.randint(1, 3))]
    start = rng.choice(["", "", "net.", "model.body."])
    two: dict[str, Shape] = {}
    for name, shape in one.items():
        parts = name.split(".")
        for old, new in rules:
            parts = [
                new if part == old and rng.random() < 0.9 else part for part in parts
            ]
        two[start + ".".join(parts)] = shape
    for shapes in ((one, two), (dict.fromkeys(one, ()), dict.fromkeys(two, ()))):
        found = match(*shapes, by_shape=seed % 2 == 0)
        if all(rename.is_plain for rename in found.renames):
            assert {
                applied(found.renames, old): old for old in found.partners.values()
            } == found.partners


def test_a_list_that_makes_one_name_of_two_is_not_exact() -> None:
    rules = [Rename("old", "new", 1, 1, "words")]
    partners = {"new.w": "old.w"}
    assert is_exact(rules, partners, ["old.w", "other.w"])
    assert not is_exact(rules, {}, ["a.old.w", "a.new.w"])
    assert not is_exact(rules, partners, ["new.w", "old.w"])
