"""A common first component: aligned when it is certain, suggested when it is not, and
never one of several.
"""

from __future__ import annotations

import json
import math
import random
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from paths import many
from rewriting import compared

from ckpt import formats
from ckpt.commands.rename.rename import substitution
from ckpt.evidence.alignment import Alignment, Paired, pair_tensors
from ckpt.evidence.mapping import component_renames
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Entry
from ckpt.model.dtypes import BY_NAME, contiguous
from ckpt.model.errors import UsageError
from ckpt.model.tensors import Storage, tensor_ref

pytestmark = oracle.QUIET
FLOAT = BY_NAME["float32"]
Shapes = dict[str, tuple[int, ...]]


def side(shapes: Shapes) -> Alignment:
    entries = []
    for name, shape in shapes.items():
        storage = Storage(name, "cpu", FLOAT, 400, None)
        entries.append(
            Entry(
                (name,), name, tensor_ref(storage, FLOAT, shape, contiguous(shape), 0)
            )
        )
    return Alignment(Section((), "", "model", 0, entries), "a.pt")


def pairs_of(one: Shapes, two: Shapes, **options: Any) -> Paired:
    return pair_tensors(side(one), side(two), **options)


def below(prefix: str, shapes: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in shapes.items()}


BODY: Shapes = {
    f"layer{i}.{part}.weight": (i, 2) for i in range(1, 11) for part in ("conv", "down")
}
HEAD: Shapes = {"head.weight": (5, 2), "head.bias": (5,)}
BN: Shapes = {"bn.running_mean": (3,), "bn.num_batches_tracked": ()}


# --------------------------------------------------------------------------------------
# what is aligned


@pytest.mark.parametrize(
    ("one", "two", "prefixes", "number"),
    [
        pytest.param(BODY, below("net.", BODY), ("", "net."), 20, id="after"),
        pytest.param(below("model.", BODY), BODY, ("model.", ""), 20, id="before"),
        pytest.param(below("encoder.", BODY), below("backbone.", BODY), ("encoder.", "backbone."), 20, id="both"),
        pytest.param(BODY, below("model.encoder.", BODY), ("", "model.encoder."), 20, id="two components"),
        pytest.param(
            below("a.body.", BODY), below("b.c.body.", BODY), ("a.", "b.c."), 20, id="the shortest that says it"
        ),
        pytest.param(
            below("module.backbone.", BODY), BODY, ("module.backbone.", ""), 20, id="behind a wrapper"
        ),
        pytest.param(
            below("module.backbone.", BODY), below("_orig_mod.net.", BODY), ("module.backbone.", "_orig_mod.net."),
            20, id="behind two wrappers",
        ),
        pytest.param(BODY, below("backbone.", BODY) | HEAD, ("", "backbone."), 20, id="an encoder alone"),
        pytest.param(
            BODY | HEAD, below("backbone.", BODY) | HEAD | {"neck.weight": (7,)}, ("", "backbone."), 22,
            id="the head outside",
        ),
        pytest.param(
            BODY | {"fc.weight": (9, 2)}, below("backbone.", BODY) | {"fc.weight": (9, 2)} | HEAD,
            ("", "backbone."), 21, id="95.2 %, and a head by its own name",
        ),
        pytest.param(BODY | BN, below("net.", BODY | BN), ("", "net."), 22, id="buffers too"),
        pytest.param({"fc.weight": (2,)}, {"net.fc.weight": (2,)}, ("", "net."), 1, id="one module"),
        pytest.param(
            {"weight": (2,), "bias": ()}, {"fc.weight": (2,), "fc.bias": ()}, ("", "fc."), 2, id="one layer and no more"
        ),
        pytest.param(below("0.", BODY), below("1.model.", BODY), ("0.", "1.model."), 20, id="sequential"),
        pytest.param(BODY, BODY | HEAD, ("", ""), 20, id="as they are"),
        pytest.param(below("a.", BODY), below("a.", BODY), ("", ""), 20, id="the same component"),
        pytest.param(
            BODY, dict.fromkeys(BODY, (8, 8)), ("", ""), 20, id="the same names in another width"
        ),
        pytest.param(below("module.", BODY), BODY, ("module.", ""), 20, id="a wrapper alone"),
    ],
)  # fmt: skip
def test_a_component_is_aligned(
    one: Shapes, two: Shapes, prefixes: tuple[str, ...], number: int
) -> None:
    found = pairs_of(one, two)
    back = pairs_of(two, one)

    if prefixes:
        assert (found.prefixes, back.prefixes) == (prefixes, prefixes[::-1])
    assert len(found.partners) == len(set(found.partners.values())) >= number
    assert found.partners == {mine: other for other, mine in back.partners.items()}
    assert {
        found.two[mine]: found.one[other] for mine, other in found.partners.items()
    } == {back.one[mine]: back.two[other] for other, mine in back.partners.items()}


def test_tensors_outside_of_the_component_keep_their_names() -> None:
    inner = BODY | {"norm.weight": (2,)}
    found = pairs_of(
        inner, below("backbone.", inner) | {"norm.weight": (6,), "head.bias": (5,)}
    )

    assert found.prefixes == ("", "backbone.")
    assert found.partners["backbone.norm.weight"] == "norm.weight"
    assert "norm.weight" not in found.partners and len(found.partners) == 21


def test_a_tensor_of_another_shape_does_not_count_and_is_paired() -> None:
    many = BODY | {f"tail{i}.weight": (i,) for i in range(19)}
    other = below("net.", many) | {"net.tail18.weight": (99,)}
    found = pairs_of(many, other)
    assert found.component is not None and found.component.met == 38
    assert found.partners["net.tail18.weight"] == "tail18.weight"


# --------------------------------------------------------------------------------------
# what is not aligned


TWINS = below("rgb.", BODY) | below("flow.", BODY) | {"queue": (9, 9)}


@pytest.mark.parametrize(
    ("one", "two", "subs"),
    [
        (TWINS, BODY, ["s/^rgb\\.//", "s/^flow\\.//"]),
        (BODY, TWINS, ["s/^/rgb./", "s/^/flow./"]),
        (
            below("net.", BODY) | below("ema.net.", BODY),
            below("x.", BODY),
            ["s/^net\\./x./", "s/^ema\\.net\\./x./"],
        ),
        (below("layer1.", {"conv.weight": (2,)}), below("layer2.", {"conv.weight": (2,)}), ["s/^layer1\\./layer2./"]),
        ({"fc1.weight": (2,), "fc1.bias": ()}, {"fc2.weight": (2,), "fc2.bias": ()}, ["s/^fc1\\./fc2./"]),
        ({"weight": (2,), "bias": ()}, {"fc.weight": (2,), "fc.bias": (), "x": (1,)}, ["s/^/fc./"]),
        (below("0.", BODY), below("1.", BODY), ["s/^0\\./1./"]),
        (BODY, below("net.", dict.fromkeys(BODY, (8, 8))), []),
        (BODY, below("with space.", BODY) | below("b.", BODY), ["s/^/b./"]),
        (BODY, below("a/b.", BODY) | below("-c.", BODY), []),
        (BODY, {}, []),
        ({}, {}, []),
    ],
)  # fmt: skip
def test_a_doubtful_component_is_suggested_with_a_substitution_that_works(
    one: Shapes, two: Shapes, subs: list[str]
) -> None:
    found = pairs_of(one, two)

    assert found.component is None and not any(found.prefixes)
    assert [each.substitution for each in found.suggested] == subs
    for each in found.suggested:
        rule = substitution(each.substitution).apply
        assert {rule(name) for name in one} == {each.rule(name) for name in one}
        assert (
            len(pair_tensors(side(one).then(rule), side(two)).partners)
            >= each.met
            > len(found.partners)
        )


def test_a_substitution_that_makes_two_names_one_is_not_suggested() -> None:
    one = below("rgb.", BODY) | below("flow.", BODY) | {"layer1.conv.weight": (1,)}
    found = pairs_of(one, BODY)
    assert found.component is None and found.suggested == ()


def test_nothing_is_aligned_on_request() -> None:
    for prefix in ("net.", "module."):
        found = pairs_of(BODY, below(prefix, BODY), align=False)
        assert not found.partners and not found.suggested and found.prefixes == ("", "")


# --------------------------------------------------------------------------------------
# against plain Python


def beginnings(names: Iterable[str]) -> list[str]:
    found = {"": None}
    for name in names:
        parts = name.split(".")
        found.update(
            dict.fromkeys(
                ".".join(parts[:count]) + "." for count in range(1, len(parts))
            )
        )
    return list(found)


def expected(
    one: Shapes, two: Shapes
) -> dict[frozenset[tuple[str, str]], tuple[str, str]]:
    """Each set of pairs that a component on either side makes of half of the smaller
    side, the largest sets only.
    """
    sets: dict[frozenset[tuple[str, str]], tuple[str, str]] = {}
    for mine in beginnings(one):
        for other in beginnings(two):
            pairs = frozenset(
                (name, other + name.removeprefix(mine))
                for name, shape in one.items()
                if name.startswith(mine)
                and two.get(other + name.removeprefix(mine)) == shape
            )
            if 2 * len(pairs) >= min(len(one), len(two)):
                old = sets.get(pairs)
                if old is None or len(mine) < len(old[0]):
                    sets[pairs] = mine, other
    return {
        pairs: each
        for pairs, each in sets.items()
        if not any(pairs < larger for larger in sets) and each != ("", "")
    }


def some_names(source: random.Random) -> Shapes:
    words = ["a", "b", "net", "enc", "0", "1"]
    found: Shapes = {}
    for _ in range(source.randint(1, 8)):
        name = ".".join(source.choices(words, k=source.randint(1, 3)))
        found[f"{name}.weight"] = (source.randint(1, 3),)
    return found


def relative(source: random.Random, shapes: Shapes) -> Shapes:
    """The same names below a component, some of them changed, with a twin, or beside
    others.
    """
    found = below(source.choice(["", "a.", "net.", "x.net.", "y."]), shapes)
    if source.random() < 0.3:
        found = found | below(source.choice(["k.", "net.", "z.y."]), shapes)
    for name in list(found):
        if source.random() < 0.06:
            found[name] = (7,)
        elif source.random() < 0.04 and len(found) > 1:
            del found[name]
    return found | (some_names(source) if source.random() < 0.3 else {})


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_components_are_those_of_plain_python(first: int) -> None:
    for seed in range(first, first + 50):
        source = random.Random(seed)
        base = some_names(source)
        one, two = relative(source, base), relative(source, base)

        found = {(each.one, each.two): each.met for each in component_renames(one, two)}
        back = {(each.two, each.one): each.met for each in component_renames(two, one)}

        assert found == back
        wanted = expected(one, two)
        assert set(wanted.values()) <= found.keys() | {("", "")}
        for pairs, each in wanted.items():
            assert found[each] == len(pairs)
        whole = pairs_of(one, two)
        met = sum(
            math.prod(two[mine]) + 1
            for mine, other in whole.partners.items()
            if two[mine] == one[other]
        )
        if whole.component is not None:
            best = max(
                (
                    sum(math.prod(two[mine]) + 1 for _, mine in pairs)
                    for pairs in wanted
                ),
                default=0,
            )
            assert met >= best
        for each in whole.suggested:
            rule = substitution(each.substitution).apply
            assert (
                len(
                    pair_tensors(
                        side(one).then(rule), side(two), suggest=False
                    ).partners
                )
                >= each.met
            )


WORDS = st.sampled_from(["a", "b", "net", "module", "0", "weight"])
NAMES = st.lists(WORDS, min_size=1, max_size=4).map(".".join)
STATES = st.dictionaries(NAMES, st.integers(1, 3), min_size=1, max_size=6)


@settings(max_examples=many(15, 60), deadline=None)
@given(one=STATES, two=STATES, first=st.sampled_from(["", "x.", "net.", "module.y."]))
def test_a_mirrored_comparison_is_aligned_mirrored(
    one: dict[str, int],
    two: dict[str, int],
    first: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("law")
    states = [
        {name: torch.ones(size) for name, size in state.items()}
        for state in (one, {f"{first}{name}": size for name, size in one.items()} | two)
    ]
    try:
        there, back = compared(*states, folder), compared(*reversed(states), folder)
    except UsageError:
        return  # two names would become one
    pairs = [
        {
            (row.before.name, row.after.name)[::step]
            for row in report.rows
            if row.before and row.after
        }
        for report, step in ((there, 1), (back, -1))
    ]
    assert pairs[0] == pairs[1]
    for index in (0, 1):
        names = [pair[index] for pair in pairs[0]]
        assert len(names) == len(set(names))
    assert [pair.prefixes for pair in there.pairs] == [
        pair.prefixes[::-1] for pair in back.pairs
    ]


# --------------------------------------------------------------------------------------
# the commands


def state(shapes: Shapes) -> dict[str, torch.Tensor]:
    return {
        name: torch.full(shape, float(number))
        for number, (name, shape) in enumerate(shapes.items())
    }


def said(done: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_diff_says_first_what_it_aligned_and_the_document_too(tmp_path: Path) -> None:
    rewriting.saved(state(BODY), tmp_path / "a.pth")
    safetensors.torch.save_file(
        state(below("backbone.", BODY)), tmp_path / "b.safetensors"
    )

    done = inside("diff", "a.pth", "b.safetensors", cwd=tmp_path)
    first = done.out.decode().splitlines()[0]
    assert done.code == 0 and first.endswith(
        "20 tensors each · aligned: backbone.* → * (after)"
    ), done
    report = said(inside("diff", "a.pth", "b.safetensors", "--json", cwd=tmp_path))
    assert report["renames"] == [{"from": "*", "to": "backbone.*", "count": 20}]
    assert (
        report["sections"][0]["prefixes"] == ["", "backbone."]
        and report["suggested"] == []
    )
    strict = inside("diff", "b.safetensors", "a.pth", "--strict", cwd=tmp_path)
    assert strict.code == 1 and "renamed: backbone.* to *" in strict.out.decode()
    done = inside(
        "diff", "a.pth", "b.safetensors", "--no-align", "--structure", cwd=tmp_path
    )
    assert done.code == 1 and b"aligned" not in done.out and b"20 added" in done.out


def test_no_align_leaves_wrappers_too(tmp_path: Path) -> None:
    rewriting.saved(state(BODY), tmp_path / "a.pth")
    rewriting.saved(state(below("module.", BODY)), tmp_path / "b.pth")

    assert inside("diff", "a.pth", "b.pth", cwd=tmp_path).code == 0
    assert (
        inside("diff", "a.pth", "b.pth", "--no-align", "--structure", cwd=tmp_path).code
        == 1
    )
    into = ("warmstart", "a.pth", "--into", "b.pth", "--dry-run", "--json")
    assert said(inside(*into, cwd=tmp_path))["coverage"]["aligned"] == ["", "module."]
    assert said(inside(*into, "--no-align", cwd=tmp_path))["coverage"]["tensors"] == [
        0,
        20,
    ]


def test_the_suggested_options_work_as_they_are_printed(tmp_path: Path) -> None:
    rewriting.saved(state(TWINS), tmp_path / "moco.pth")
    # Other values, for equal ones pair the tensors of `diff` without their names.
    other = {name: tensor + 1 for name, tensor in state(BODY).items()}
    rewriting.saved(other, tmp_path / "plain.pth")
    for command in (
        "diff moco.pth plain.pth",
        "warmstart moco.pth --into plain.pth --dry-run",
    ):
        done = inside(*shlex.split(command), cwd=tmp_path)
        text = done.out.decode().replace(
            " match with:\n  ckpt diff moco.pth plain.pth", " match with"
        )
        lines = [line for line in text.splitlines() if line.startswith("not aligned: ")]
        assert [line.partition(" match with ")[2] for line in lines] == [
            "--sub 's/^rgb\\.//'",
            "--sub 's/^flow\\.//'",
        ]
        for line in lines:
            options = shlex.split(line.partition(" match with ")[2])
            report = said(
                inside(*shlex.split(command), *options, "--json", cwd=tmp_path)
            )
            met = (
                report["totals"]["removed"]
                if command[0] == "d"
                else report["coverage"]["tensors"][0]
            )
            assert met == (21 if command[0] == "d" else 20)


def test_the_command_that_matches_names_keeps_the_section(tmp_path: Path) -> None:
    rewriting.saved({"net": state(TWINS), "ema": state(BODY)}, tmp_path / "a b.pth")
    rewriting.saved({"net": state(BODY), "ema": state(BODY)}, tmp_path / "b.pth")

    done = inside(
        "diff", "a b.pth", "b.pth", "--section", "net", "--structure", cwd=tmp_path
    )
    lines = done.out.decode().splitlines()
    at = lines.index("not aligned: 20 of 20 names match with:")
    assert (
        lines[at + 1] == "  ckpt diff 'a b.pth' b.pth --section net --sub 's/^rgb\\.//'"
    )
    again = inside(*shlex.split(lines[at + 1])[1:], cwd=tmp_path)
    assert "not aligned" not in again.out.decode() and not again.err


def test_one_suggestion_goes_for_all_weights_of_a_file(tmp_path: Path) -> None:
    both = {"model": state(TWINS), "ema": state(TWINS)}
    plain = {"model": state(BODY), "ema": state(BODY)}
    other = {"model": state(BODY), "ema": state(TWINS)}

    assert [each.one for each in compared(both, plain, tmp_path).suggested] == [
        "rgb.",
        "flow.",
    ]
    assert compared(both, other, tmp_path).suggested == ()


def test_a_warm_start_from_an_encoder_fills_the_backbone(tmp_path: Path) -> None:
    given = {name: value + 1 for name, value in state(below("module.", BODY)).items()}
    target = state(below("backbone.", BODY) | HEAD)
    rewriting.saved({"state_dict": given, "epoch": 3}, tmp_path / "a.pth")
    rewriting.saved(target, tmp_path / "b.pth")

    done = inside("warmstart", "a.pth", "--into", "b.pth", "-o", "c.pth", cwd=tmp_path)
    lines = done.out.decode().splitlines()
    assert done.code == 0 and lines[0].startswith("loads 20 of 22 tensors")
    assert (
        lines[1]
        == "aligned: module.* → * (pretrained), backbone.* → * (target), 20 tensors"
    )
    result = torch.load(tmp_path / "c.pth")
    for name, value in target.items():
        source = given.get(name.replace("backbone.", "module."))
        assert torch.equal(result[name], value if source is None else source), name
    report = said(
        inside(
            "warmstart", "a.pth", "--into", "b.pth", "--dry-run", "--json", cwd=tmp_path
        )
    )
    assert report["coverage"]["component"] == {
        "from": "*",
        "to": "backbone.*",
        "count": 20,
    }
    assert report["coverage"]["aligned"] == ["module.", "backbone."]


def test_the_names_in_an_optimizer_follow_those_of_the_model(tmp_path: Path) -> None:
    def training(prefix: str) -> dict[str, Any]:
        names = list(below(prefix, BODY))
        moments = {
            name: {"exp_avg": torch.full((2,), 1.0 * i)} for i, name in enumerate(names)
        }
        return {
            "model": state(below(prefix, BODY)),
            "optimizer": {"state": moments, "param_groups": [{"lr": 1.0}]},
        }

    for prefix in ("backbone.", "module."):
        report = compared(training(""), training(prefix), tmp_path)
        assert report.count("same") == 40 and not report.differs, report.rows[-1]
    report = compared(
        training(""), training("net."), tmp_path, align=False, structure=True
    )
    assert (report.count("removed"), report.count("added")) == (40, 40)


def test_numbers_in_an_optimizer_are_no_names(tmp_path: Path) -> None:
    numbers = {
        "state": {i: {"exp_avg": torch.full((2,), 1.0 * i)} for i in range(3)},
        "param_groups": [{"lr": 1.0}],
    }
    weights = {f"{i}": (i + 1,) for i in range(3)}
    one = {"model": state(weights | {"fc.weight": (2,)}), "optimizer": numbers}
    two = {
        "model": state(below("list.", weights | {"fc.weight": (2,)})),
        "optimizer": numbers,
    }
    for pair in ((one, two), (two, one)):
        report = compared(*pair, tmp_path)
        assert report.count("same") == 7 and not report.differs


def test_sections_and_averages_are_aligned_each(tmp_path: Path) -> None:
    one = {"model": state(BODY), "ema": state(below("module.", BODY))}
    two = {"model": state(below("net.", BODY)), "ema": state(below("backbone.", BODY))}
    report = compared(one, two, tmp_path)
    assert report.count("same") == 40 and not report.differs
    assert {pair.before.name: pair.prefixes for pair in report.pairs} == {
        "model": ("", "net."),
        "ema": ("module.", "backbone."),
    }


def test_rows_are_selected_by_the_name_of_either_side(tmp_path: Path) -> None:
    from ckpt.model.names import Globs

    for glob in ("backbone.layer1.*", "layer1.*"):
        for states in (
            (state(BODY), state(below("backbone.", BODY))),
            (state(below("backbone.", BODY)), state(BODY)),
        ):
            report = compared(*states, tmp_path, select=Globs([glob]))
            assert report.count("same") == len(report.rows) == 2, glob


# --------------------------------------------------------------------------------------
# strip


def test_strip_offers_the_component_that_all_names_have(tmp_path: Path) -> None:
    rewriting.saved(state(below("backbone.", BODY)), tmp_path / "a.pth")
    rewriting.saved(state(below("backbone.", BODY) | HEAD), tmp_path / "b.pth")
    rewriting.saved(state({"fc.weight": (2,), "fc.bias": ()}), tmp_path / "c.pth")

    done = inside("strip", "a.pth", "-o", "d.pth", cwd=tmp_path)
    text = done.out.decode()
    assert (
        done.code == 0 and "; all 20 begin with backbone. (--prefix backbone.)" in text
    )
    option = shlex.split(text.partition("(")[2].partition(")")[0])
    assert inside("strip", "a.pth", "-o", "e.pth", *option, cwd=tmp_path).code == 0
    assert list(torch.load(tmp_path / "e.pth")) == list(BODY)
    for name in ("b.pth", "c.pth"):
        assert b"begin with" not in inside("strip", name, "--dry-run", cwd=tmp_path).out


def test_strip_offers_nothing_that_would_be_refused(tmp_path: Path) -> None:
    model = state(below("net.", BODY))
    rewriting.saved(
        {
            "model": model,
            "ema": state(below("net.", BODY) | {"layer1.conv.weight": (1,)}),
        },
        tmp_path / "a.pth",
    )
    assert b"begin with" not in inside("strip", "a.pth", "--dry-run", cwd=tmp_path).out
    done = inside("strip", "a.pth", "--dry-run", "--section", "model", cwd=tmp_path)
    assert b"all 20 begin with net. (--prefix net.)" in done.out
    with formats.open(str(tmp_path / "a.pth")) as checkpoint:
        assert [section.name for section in Survey(checkpoint).sections] == [
            "model",
            "ema",
        ]
