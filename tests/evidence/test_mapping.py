"""The mapping between the names of two models: found where names and shapes prove it,
and never a wrong tensor.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ckpt.commands.rename.rename import substitution
from ckpt.evidence import dialects
from ckpt.evidence.dialects import FAMILIES, dialect_translations, dialects_of, parts_of
from ckpt.evidence.mapping import Match, Rename, Shape, match

Shapes = dict[str, Shape]


def resnet() -> Shapes:
    """The tensors of a small ResNet: no two stages have equal shapes."""
    shapes: Shapes = {"conv1.weight": (8, 3, 7, 7)}
    for stage in range(1, 4):
        width = 8 * stage
        for block in range(2):
            for number in (1, 2):
                name = f"layer{stage}.{block}"
                shapes[f"{name}.conv{number}.weight"] = (width, width, 3, 3)
                for leaf in ("weight", "bias", "running_mean", "running_var"):
                    shapes[f"{name}.bn{number}.{leaf}"] = (width,)
                shapes[f"{name}.bn{number}.num_batches_tracked"] = ()
    return shapes | {"fc.weight": (10, 24), "fc.bias": (10,)}


def transformer() -> Shapes:
    """The tensors of a small encoder, whose projections all have one shape."""
    shapes: Shapes = {"embed.weight": (50, 16)}
    for layer in range(3):
        for part in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.out_proj",
        ):
            shapes[f"layers.{layer}.{part}.weight"] = (16, 16)
        for part, shape in (
            ("linear1", (64, 16)),
            ("linear2", (16, 64)),
            ("norm1", (16,)),
            ("norm2", (16,)),
        ):
            shapes[f"layers.{layer}.{part}.weight"] = shape
            shapes[f"layers.{layer}.{part}.bias"] = shape[:1]
    return shapes


def renamed(shapes: Shapes, rule: Callable[[str], str]) -> Shapes:
    return {rule(name): shape for name, shape in shapes.items()}


def expected(one: Shapes, rule: Callable[[str], str], two: Shapes) -> dict[str, str]:
    return {
        rule(name): name for name, shape in one.items() if two.get(rule(name)) == shape
    }


def met(found: Match, one: Shapes, two: Shapes) -> dict[str, str]:
    return {
        mine: other for mine, other in found.partners.items() if one[other] == two[mine]
    }


# --------------------------------------------------------------------------------------
# what is found


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("model", "rule", "rules"),
    [
        (resnet, lambda name: f"backbone.{name}", [("*", "backbone.*")]),
        (
            resnet,
            lambda name: name if name.startswith("fc") else f"backbone.{name}",
            [("*", "backbone.*")],
        ),
        (
            resnet,
            lambda name: (
                name.replace("fc.", "head.") if "fc" in name else f"net.{name}"
            ),
            [("*", "net.*"), ("net.fc", "head")],
        ),
        (
            resnet,
            lambda name: name.replace("layer", "stage"),
            [("layer<n>", "stage<n>")],
        ),
        (resnet, lambda name: name.replace("layer", ""), [("layer<n>", "<n>")]),
        (
            resnet,
            lambda name: name.replace("layer", "block.layer."),
            [("layer<n>", "block.layer.<n>")],
        ),
        (
            transformer,
            lambda name: name.replace("self_attn", "attn"),
            [("self_attn", "attn")],
        ),
        (transformer, lambda name: f"model.encoder.{name}", [("*", "model.encoder.*")]),
        (
            transformer,
            lambda name: f"m.{name}".replace("self_attn", "attention").replace(
                "norm", "ln_"
            ),
            [("*", "m.*"), ("norm<n>", "ln_<n>"), ("self_attn", "attention")],
        ),
    ],
)
def test_a_mapping_that_names_prove_is_found_with_its_rules(
    model: Callable[[], Shapes],
    rule: Callable[[str], str],
    rules: list[tuple[str, str]],
    turned: bool,
) -> None:
    one = model()
    two = renamed(one, rule)
    wanted = {rule(name): name for name in one}

    found = match(two, one).turned if turned else match(one, two)

    assert found.partners == wanted
    assert sorted(rename.text for rename in found.renames) == sorted(rules)
    for rename in found.renames:
        assert rename.met > 0 and substitution(rename.substitution)
        assert not rename.has_letters or all(
            substitution(rename.substitution).apply(name) == rename.rule(name)
            for name in one
        )


@pytest.mark.parametrize("other", [False, True])
def test_old_names_of_a_norm_are_those_of_torch(other: bool) -> None:
    new = {
        f"bert.layer.{n}.LayerNorm.{leaf}": (4,)
        for n in range(3)
        for leaf in ("weight", "bias")
    }
    new |= {
        f"bert.layer.{n}.dense.{leaf}": (4, 4)
        for n in range(3)
        for leaf in ("weight", "bias")
    }
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace(
            "Norm.bias", "Norm.beta"
        ): shape
        for name, shape in new.items()
    }
    one, two = (new, old) if other else (old, new)
    found = match(one, two)
    assert len(found.partners) == 12
    assert all(other.replace("gamma", "weight").replace("beta", "bias") == mine.replace("gamma", "weight").replace("beta", "bias") for mine, other in found.partners.items())  # fmt: skip
    body = {f"x.{name}".replace("bert.", ""): shape for name, shape in two.items()}
    assert len(match(one, body).partners) == 12  # below another beginning too


@pytest.mark.parametrize(("trained", "average"), dialects.COPIES)
def test_of_a_model_and_its_average_the_trained_one_is_used_and_the_other_named(
    trained: str, average: str
) -> None:
    body = resnet()
    one = renamed(body, lambda name: f"{average}.{name}") | renamed(
        body, lambda name: f"{trained}.{name}"
    )
    found = match(one, body)
    assert all(other == f"{trained}.{mine}" for mine, other in found.partners.items())
    assert len(found.partners) == len(body)
    assert found.renames[0].note.startswith(f"{average}.* fits as well")


def test_a_copy_that_is_no_average_is_not_passed_over() -> None:
    body = resnet()
    one = renamed(body, lambda name: f"encoder_q.{name}") | renamed(
        body, lambda name: f"other.{name}"
    )
    assert not match(one, body).partners


# --------------------------------------------------------------------------------------
# what is not


@pytest.mark.parametrize(
    ("old", "new"),
    [("k_proj", "v_proj"), ("self_attn", "cross_attn"), ("conv_in", "conv_out")],
)
def test_one_common_word_is_no_proof(old: str, new: str) -> None:
    sides = [
        {
            f"layers.{n}.{part}.{leaf}": (4, 4)
            for n in range(3)
            for part in ("q_proj", word)
            for leaf in ("weight", "bias")
        }
        for word in (old, new)
    ]
    found = match(*sides)
    assert not found.renames and len(found.partners) == 6


def test_a_rename_holds_for_all_numbers_or_for_none() -> None:
    one = {
        f"blocks.{n}.{part}.weight": (4, 4)
        for n in range(3)
        for part in ("conv", "attention")
    }
    two = {name.replace("attention", "attn"): shape for name, shape in one.items()} | {
        "blocks.2.attn.weight": (5, 4)
    }
    found = match(one, two)
    assert not found.renames and len(found.partners) == 3


@pytest.mark.parametrize("start", ["encoder.", "net.features."])
def test_a_stage_of_another_number_is_no_beginning(start: str) -> None:
    """A wider model has the shapes of stage 2 in stage 1: both sides have a stage of
    each number, so the shapes say nothing.
    """
    parts = ("conv.weight", "conv.bias", "norm.weight", "norm.bias")

    def stages(width: int, begin: str) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for number in (1, 2):
            wide = width * 2**number
            for part in parts:
                shape = (wide, wide // 2, 3, 3) if part == "conv.weight" else (wide,)
                shapes[f"{begin}down{number}.{part}"] = shape
        return shapes

    one, two = stages(16, start), stages(32, "")
    assert not match(one, two).partners and not match(two, one).partners
    assert len(match(one, stages(16, "")).partners) == 8


def test_two_that_fit_equally_are_doubts() -> None:
    body = resnet()
    one = renamed(body, lambda name: f"rgb.{name}") | renamed(
        body, lambda name: f"flow.{name}"
    )
    found = match(one, body)
    assert not found.partners and not found.renames
    assert {rename.text for rename in found.doubts} == {("rgb.*", "*"), ("flow.*", "*")}


@pytest.mark.parametrize("by_shape", [False, True])
def test_projections_of_one_shape_are_told_apart_by_words_or_not_at_all(
    by_shape: bool,
) -> None:
    one = transformer()
    words = {
        "q_proj": "query",
        "k_proj": "key",
        "v_proj": "value",
        "out_proj": "proj_out",
    }

    def rule(name: str) -> str:
        for old, new in words.items():
            name = name.replace(old, new)
        return name

    two = renamed(one, rule)
    found = match(one, two, by_shape=by_shape)
    assert found.partners == {rule(name): name for name in one}

    letters = dict(zip(words, "abcd", strict=True))
    other = {
        name.replace(old, new): shape
        for name, shape in one.items()
        for old, new in letters.items()
        if old in name
    }
    other |= {name: shape for name, shape in one.items() if "proj" not in name}
    found = match(one, other, by_shape=by_shape)
    pairs = {mine: name for mine, name in found.partners.items() if "proj" in name}
    assert len(pairs) == (12 if by_shape else 0)
    assert all(
        letters[name.split(".")[3]] == mine.split(".")[3]
        for mine, name in pairs.items()
    )


def test_a_word_alone_that_no_name_explains_is_a_doubt() -> None:
    one = {
        f"blocks.{n}.{part}.weight": (4, 4)
        for n in range(3)
        for part in ("conv", "old")
    }
    two = {
        f"blocks.{n}.{part}.weight": (4, 4)
        for n in range(3)
        for part in ("conv", "extra")
    }
    found = match(one, two)
    assert len(found.partners) == 3 and not found.renames
    assert [rename.text for rename in found.doubts] == [("old", "extra")]
    assert len(match(one, two, by_shape=True).partners) == 6


@pytest.mark.parametrize(("one", "two"), [("wq", "q_proj"), ("k_proj", "wk"), ("qkv", "in_proj"), ("query_key_value", "c_attn")])  # fmt: skip
@pytest.mark.parametrize("by_shape", [False, True])
def test_words_whose_values_lie_in_another_order_are_never_paired(
    one: str, two: str, by_shape: bool
) -> None:
    sides = [
        {
            f"layers.{n}.{part}.weight": (8, 8)
            for n in range(3)
            for part in (word, "mlp", "norm")
        }
        for word in (one, two)
    ]
    assert len(match(*sides, by_shape=by_shape).partners) == 6


def test_numbers_stay() -> None:
    one = {f"layers.{n}.conv.weight": (4, 4) for n in range(4)} | {
        "stem.a.weight": (1,),
        "stem.b.weight": (2,),
    }
    two = {f"layers.{n + 1}.conv.weight": (4, 4) for n in range(4)} | {
        "stem.a.weight": (1,),
        "stem.b.weight": (2,),
    }
    found = match(one, two)
    assert all(mine == other for mine, other in found.partners.items())


def test_of_two_tensors_with_one_new_name_the_one_of_equal_shape_is_taken() -> None:
    body = resnet()
    one = renamed(body, lambda name: f"backbone.{name}") | {"fc.weight": (5, 24)}
    two = body | {"fc.weight": (5, 24)}
    found = match(one, two)
    assert (
        found.partners["fc.weight"] == "fc.weight"
        and found.partners["fc.bias"] == "backbone.fc.bias"
    )
    del one["fc.weight"]
    assert (
        match(one, two).partners["fc.weight"] == "backbone.fc.weight"
    )  # of another shape, but the only one


# --------------------------------------------------------------------------------------
# random renamings

WORDS = [
    "enc",
    "body",
    "trunk",
    "unit",
    "cell",
    "part",
    "mix",
    "gate",
    "core",
    "node",
    "w",
    "z",
]


def random_rule(source: random.Random, names: Shapes) -> Callable[[str], str]:
    """A renaming of some words, each by one that no other word has, and a beginning."""
    words = sorted(
        {part.rstrip("0123456789") for name in names for part in name.split(".")[:-1]}
        - {""}
    )
    chosen = source.sample(words, source.randint(0, len(words)))
    new = dict(zip(chosen, source.sample(WORDS, len(chosen)), strict=False))
    start = source.choice(["", "", "model.", "a.b.", "module."])

    def rule(name: str) -> str:
        *parts, last = name.split(".")
        for index, part in enumerate(parts):
            word = part.rstrip("0123456789")
            parts[index] = new.get(word, word) + part[len(word) :]
        return start + ".".join([*parts, last])

    return rule


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_no_random_renaming_loads_a_wrong_tensor(seed: int) -> None:
    source = random.Random(seed)
    one = source.choice([resnet, transformer])()
    rule = random_rule(source, one)
    two = renamed(one, rule)
    for name in list(two):
        chance = source.random()
        if chance < 0.05:
            two[name] = (7, 7)  # a head of another task
        elif chance < 0.08:
            del two[name]
    if source.random() < 0.3:
        one = {name: shape for name, shape in one.items() if source.random() > 0.05}
    wanted = expected(one, rule, two)

    found = match(one, two)
    wrong = {
        mine: other
        for mine, other in met(found, one, two).items()
        if wanted.get(mine) != other
    }
    assert not wrong
    turned = match(two, one).turned
    assert turned._replace(renames=()) == found._replace(renames=())
    assert bool(turned.renames) == bool(found.renames), (
        "the rules are told in the order of their use"
    )
    proposal = met(match(one, two, by_shape=True), one, two)
    assert len(proposal) >= len(met(found, one, two))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_the_proposal_is_right_where_shapes_and_numbers_say_it(seed: int) -> None:
    source = random.Random(seed)
    one = resnet() if seed % 2 else transformer()
    rule = random_rule(source, one)
    two = renamed(one, rule)
    assert met(match(one, two, by_shape=True), one, two) == expected(one, rule, two)


def test_without_any_common_word_the_order_of_shapes_is_a_proposal() -> None:
    one = resnet()
    two = {f"features.{index}.t": shape for index, shape in enumerate(one.values())}
    assert not match(one, two).partners
    found = match(one, two, by_shape=True)
    assert list(found.partners.values()) == list(one)
    assert {rename.kind for rename in found.renames} == {"shape"}


# --------------------------------------------------------------------------------------
# tables


def written(
    family: dialects.Family, column: int, prefix: str, numbers: int = 2
) -> Shapes:
    """The names of a dialect, with the shape of each row."""
    shapes: Shapes = {}
    for row, cells in enumerate(family.rows):
        for text in parts_of(cells[column]):
            for number in range(numbers if "#" in text else 1):
                leaf = "weight" if text.endswith(".") else ""
                shapes[f"{prefix}{text.replace('#', str(number))}{leaf}"] = (row + 2, 6)
    return shapes


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_row_of_a_table_has_a_cell_for_each_dialect(
    family: dialects.Family,
) -> None:
    assert {len(row) for row in family.rows} == {len(family.dialects)}
    for column in range(len(family.dialects)):
        cells = [text for row in family.rows for text in parts_of(row[column])]
        assert len(set(cells)) == len(cells)


@pytest.mark.parametrize("prefix", ["", "vit.", "module.model."])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_dialect_is_recognised_and_translated_both_ways(
    family: dialects.Family, prefix: str
) -> None:
    for first in range(len(family.dialects)):
        for second in range(len(family.dialects)):
            one, two = written(family, first, prefix), written(family, second, "")
            if first == second:
                assert dialect_translations(one, two) == []
                continue
            (found,) = dialect_translations(one, two)
            assert (found.one.name, found.two.name) == (
                family.dialects[first],
                family.dialects[second],
            )
            assert (found.one.prefix, found.two.prefix) == (prefix, "")
            reached = {*found.names.values(), *found.joins, *found.cuts}
            assert reached == two.keys()
            if not found.joins and not found.cuts:
                assert match(one, two).partners == {
                    new: name for name, new in found.names.items()
                }
            assert bool(match(one, two).layout) == (
                frozenset((family.dialects[first], family.dialects[second]))
                in family.layouts
            )
            assert not match(one, two, layouts=False).layout


def test_half_of_a_table_is_no_dialect() -> None:
    family = FAMILIES[0]
    names = [name for name in written(family, 0, "") if "norm" in name or "mlp" in name]
    assert dialects_of(names) != []
    assert (
        dialects_of([name for name in names if "norm1" in name or "fc1" in name]) == []
    )


def test_query_key_and_value_are_joined_only_where_all_three_are_there() -> None:
    family = FAMILIES[0]
    one, two = written(family, 2, "vit."), written(family, 0, "")
    found = match(one, two)
    joined = [f"vit.layers.0.attention.{part}_proj.weight" for part in "qkv"]
    assert found.joins["blocks.0.attn.qkv.weight"] == joined
    assert match(two, one).cuts[joined[1]] == ("blocks.0.attn.qkv.weight", 1)
    del one[joined[1]]
    assert "blocks.0.attn.qkv.weight" not in match(one, two).joins
    (translation,) = dialect_translations(one, two)
    assert "blocks.0.attn.qkv.weight" not in translation.joins


# --------------------------------------------------------------------------------------
# size and hostile names


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        lambda n: f"layers.{n}.conv.weight",
        lambda n: f"w{n:05}x.weight",
        lambda n: (
            ".".join([f"{n:05}"[k % 5] + "ab" for k in range(9)]) + f".{n}.weight"
        ),
        lambda n: f"{'a.' * 60}{n}",
        lambda n: f"{'1.' * 60}{n}",
        lambda n: f"#{n}#.{n % 7}.#",
        lambda n: f"{n}" + "9" * 500,
        lambda n: f"blocks.{n}.attn.qkv.weight",
    ],
)
def test_thousands_of_hostile_names_are_looked_at_once(
    name: Callable[[int], str],
) -> None:
    one = {name(n): (4, 4) for n in range(3_000)}
    two = {f"x.{name(n + 1)}y": (4, 4) for n in range(3_000)}
    for by_shape in (False, True):
        found = match(one, two, by_shape=by_shape)
        assert len(set(found.partners.values())) == len(found.partners)


def test_a_substitution_says_the_same_as_the_rule() -> None:
    rule = Rename("encoder.layer#", "enc.#", 0, 0, "words")
    apply = substitution(rule.substitution).apply
    for name in (
        "encoder.layer3.w",
        "a.encoder.layer12.b.encoder.layer3",
        "encoder.layers.w",
        "xencoder.layer1",
    ):
        assert apply(name) == rule.rule(name)
    assert rule.rule("a.encoder.layer12.w") == "a.enc.12.w"


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("above", ["", "net.", "deeper.in.it."])
def test_a_parametrization_has_the_tensors_of_the_old_norms(
    above: str, turned: bool
) -> None:
    rest: Shapes = {f"layers.{n}.weight": (4, 4) for n in range(6)}
    old = rest | {"conv.weight_g": (1, 1, 8), "conv.weight_v": (16, 4, 8)}
    old |= {"d.weight_orig": (3, 3), "d.weight_u": (3,), "d.weight_v": (3,)}
    new = rest | {
        f"conv.parametrizations.weight.original{n}": old[f"conv.weight_{'gv'[n]}"]
        for n in (0, 1)
    }
    new |= {
        "d.parametrizations.weight.original": (3, 3),
        "d.parametrizations.weight.0._u": (3,),
    }
    new |= {"d.parametrizations.weight.0._v": (3,)}
    new = renamed(new, lambda name: above + name)
    one, two = (new, old) if turned else (old, new)
    found = match(one, two)
    assert len(found.partners) == 11 and met(found, one, two) == found.partners
    pairs = found.turned.partners if turned else found.partners
    assert pairs[f"{above}conv.parametrizations.weight.original0"] == "conv.weight_g"
    assert pairs[f"{above}d.parametrizations.weight.0._v"] == "d.weight_v"


def test_the_two_originals_of_another_parametrization_are_not_those_of_weight_norm() -> (
    None
):
    new: Shapes = {f"c.parametrizations.weight.original{n}": (n + 2, 4) for n in (0, 1)}
    assert not match({"c.weight_g": (2, 1), "c.weight_v": (3, 4)}, new).partners
    assert not match({"c.weight_g": (2, 4)}, new).partners, "half of it"
