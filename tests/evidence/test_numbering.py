"""`ckpt inspect --index`: the numbers of DDP's error, against DDP itself and against
`named_parameters()`.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import oracle
import pytest
import recipes
import rewriting
import torch
import torch.distributed as dist
from process import check_error, ckpt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt import formats
from ckpt.evidence.numbering import (
    _EXACT,
    _IN_OPTIMIZER,
    _IN_ORDER,
    _NEVER,
    _NO_FIRST,
    _NO_SEARCH,
    _NONE_FROZEN,
    _NOT_SORTED,
    Numbering,
    Numbers,
    _Count,
    _Place,
    _Rules,
    _set_of,
    _solve_numbers,
    numbered_parameters,
    numbers,
    pasted_numbers,
)
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UsageError

pytestmark = oracle.QUIET


def numbered(
    thing: Any,
    path: Path,
    asked: list[int] | Numbers,
    *,
    kind: Any = "some",
    **options: Any,
) -> Numbering:
    rewriting.saved(thing, path)
    if isinstance(asked, list):
        asked = Numbers(((None, tuple(asked)),), kind)
    with formats.open(str(path)) as checkpoint:
        return numbered_parameters(Survey(checkpoint), asked, **options)


def names(found: Numbering) -> list[str]:
    """The names, where each follows from the file."""
    assert all(len(row.entries) == 1 for row in found.rows)
    return [found.section.relative(row.entries[0].name) for row in found.rows]


class Net(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.register_buffer("scale", torch.ones(4, dtype=torch.int64))
        kinds = [
            lambda: nn.Linear(4, 4),
            lambda: nn.LayerNorm(4),
            lambda: nn.Linear(4, 4, bias=False),
        ]
        self.blocks = nn.ModuleList(
            kinds[int(torch.randint(0, 3, ()))]() for _ in range(5)
        )
        self.used = [bool(torch.randint(0, 2, ())) for _ in range(5)]
        self.head = nn.Linear(4, 2)
        self.spare = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).mean((2, 3)) * self.scale
        for block, is_used in zip(self.blocks, self.used, strict=True):
            x = block(x) if is_used else x
        return self.head(x)


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("frozen", ["none", "left out", "handed"])
def test_the_numbers_of_a_run_that_ddp_stops(
    seed: int, frozen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP itself says the names when it is asked to: those are the names that the
    numbers give.
    """
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    dist.set_debug_level_from_env()
    net = Net(seed)
    if frozen != "none":
        for parameter in net.stem.parameters():
            parameter.requires_grad_(False)
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(
        p for p in net.parameters() if p.requires_grad or frozen == "handed"
    )
    with pytest.raises(
        RuntimeError, match="Expected to have finished reduction"
    ) as caught:
        for _ in range(2):
            optimizer.zero_grad()
            ddp(torch.randn(2, 3, 5, 5)).square().sum().backward()
            optimizer.step()
    text = str(caught.value)
    listed = re.search(r"did not receive grad for rank 0: ([\w., ]+)", text)
    indices = re.search(
        r"Parameter indices which did not receive grad for rank 0: ([\d ]+)", text
    )
    assert listed is not None and indices is not None
    thing = {"model": ddp.state_dict(), "optimizer": optimizer.state_dict()}
    counted = [
        name for name, parameter in net.named_parameters() if parameter.requires_grad
    ]
    means = {number: counted[number] for number in map(int, indices[1].split())}
    assert set(means.values()) == set(listed[1].split(", "))

    found = numbered(thing, tmp_path / "a.pt", numbers(text))

    for number, candidates in told(found):
        assert f"module.{means[number]}" in candidates
    if frozen == "none":
        assert names(found) == [f"module.{name}" for name in means.values()]
    assumes = {
        "none": [],
        "left out": [_IN_ORDER, _IN_OPTIMIZER],
        "handed": [_NO_FIRST, _IN_ORDER],
    }[frozen]
    assert found.assumes == (", and ".join(assumes) or None)


def told(found: Numbering) -> list[tuple[int, list[str]]]:
    """The numbers with the names that each can have."""
    return [
        (row.number, [found.section.relative(entry.name) for entry in row.entries])
        for row in found.rows
    ]


_OWN_ORDER = ("one each, backwards", "minGPT")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_random_runs_are_never_told_wrong(recipe: str, tmp_path: Path) -> None:
    """Frozen ones, buffers, groups, branches, many optimizers: where what is assumed
    holds, the name is the one DDP means.
    """
    told_by_name = 0
    for seed, optimizer in enumerate(recipes.OPTIMIZERS):
        run = recipes.Run(seed, recipe, optimizer)
        rng = random.Random(seed)
        branch = {
            name for name in run.numbered if name in run.gradient and rng.random() < 0.1
        }
        asked = [
            n
            for n, name in enumerate(run.numbered)
            if name in branch or name not in run.gradient
        ]
        if not asked:
            continue

        found = numbered(run.checkpoint, tmp_path / "a.pt", asked, kind="without")

        assumed = found.assumes or ""
        if _IN_ORDER in assumed and recipe in _OWN_ORDER:
            continue
        wrong = (any(text in assumed for text in (_NEVER, _EXACT)) and branch) or (
            _NONE_FROZEN in assumed
            and len(run.numbered) < len(list(run.net.parameters()))
        )
        for number, candidates in () if wrong else told(found):
            assert run.numbered[number] in candidates
            told_by_name += len(candidates) == 1
    assert told_by_name


@pytest.mark.parametrize("how", ["module", "parameters", "state", "training"])
def test_every_number_of_a_net(how: str, tmp_path: Path) -> None:
    net = Net(1)
    net.blocks[3] = net.blocks[1]  # the same module under two names
    net.spare.weight = net.head.weight
    if how in ("module", "parameters"):
        net.blocks[0].requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    things = {
        "module": lambda: net.stem,
        "parameters": lambda: net.state_dict(keep_vars=True),
        "state": net.state_dict,
        "training": lambda: {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
        },
    }
    of = net.stem if how == "module" else net
    expected = [
        name for name, parameter in of.named_parameters() if parameter.requires_grad
    ]

    found = numbered(things[how](), tmp_path / "a.pt", list(range(len(expected))))

    assert names(found) == expected and found.parameters == len(expected)
    assert (
        found.trust
        == {
            "module": "certain",
            "parameters": "certain",
            "state": "likely",
            "training": "strong",
        }[how]
    )
    assert (
        found.assumes is None
    )  # DDP has as many numbers as the file has parameters: none is frozen


def test_parameters_that_the_optimizer_was_not_given(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 2))
    net[1].requires_grad_(False)
    optimizer = torch.optim.Adam(p for p in net.parameters() if p.requires_grad)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    found = numbered(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
        [2, 3],
    )

    assert names(found) == ["2.weight", "2.bias"]
    assert found.why == "the optimizer holds 4 of the model's 6 parameters"
    assert (
        found.assumes == "each parameter that requires a gradient is in the optimizer"
    )


def test_a_number_that_the_optimizer_does_not_reach(tmp_path: Path) -> None:
    """Only the head was handed to the optimizer, nothing is frozen: DDP counts all."""
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 2))
    optimizer = torch.optim.Adam(net[2].parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    thing = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    found = numbered(thing, tmp_path / "a.pt", [0, 5])

    assert told(found) == [(0, ["0.weight"]), (5, ["2.bias"])]
    assert found.assumes is None
    # With three or more of six, the third may be any but the first two.
    assert told(numbered(thing, tmp_path / "a.pt", [2]))[0][1][0] == "1.weight"


def test_an_order_that_is_undecided_gives_the_candidates(tmp_path: Path) -> None:
    state = OrderedDict(
        [
            ("a.weight", torch.ones(2)),
            ("pe", torch.ones(2)),
            ("b.weight", torch.ones(2)),
        ]
    )

    found = numbered(state, tmp_path / "a.pt", [0, 1])

    assert told(found) == [(0, ["a.weight"]), (1, ["pe", "b.weight"])]
    assert (found.least, found.parameters) == (2, 3)
    assert told(numbered(state, tmp_path / "a.pt", [2])) == [
        (2, ["b.weight"])
    ]  # DDP counts three


def brute(count: _Count, asked: Numbers, rules: _Rules) -> dict[int, set[int]] | None:
    """The tensors of each number, by trying every choice of what each place is."""
    inside = rules.in_optimizer
    places = count.slots if inside and count.slots is not None else count.places
    options = []
    for place in places:
        mine = ["had"] * place.had + ["never"] * place.never + ["open"] * place.open
        mine += ["open"] * (place.outside and not inside)
        mine += ["no"] * (
            (place.frozen and not rules.none_frozen)
            or place.out
            or (place.outside and inside)
        )
        options.append(dict.fromkeys(mine))
    in_all = set.intersection(*(set(numbers) for _, numbers in asked.ranks))
    found: dict[int, set[int]] = {}
    fits = False
    for choice in itertools.product(*options):
        live = [
            (place, what)
            for place, what in zip(places, choice, strict=True)
            if what != "no"
        ]
        low, high = count.bounds(asked, rules)
        if not low <= len(live) <= high or len(live) <= max(asked.all):
            continue
        if rules.is_complete and any(
            what == "never" and number not in in_all
            for number, (_, what) in enumerate(live)
        ):
            continue
        if rules.never_only and any(
            what == "had" and number in in_all for number, (_, what) in enumerate(live)
        ):
            continue
        fits = True
        for number in asked.all:
            found.setdefault(number, set()).update(live[number][0].indices)
    return found if fits else None


@pytest.mark.slow
def test_every_choice_is_counted() -> None:
    """Against every choice of frozen parameters, tried one by one."""
    rng = random.Random(7)
    fitted = 0
    for _ in range(2000):
        places = [
            _Place(
                (index,),
                *(rng.random() < share for share in (0.6, 0.4, 0.2, 0.2, 0.3, 0.2)),
            )
            for index in range(rng.randint(1, 6))
        ]
        slots = None
        if rng.random() < 0.5:
            slots = [
                _Place(
                    tuple(sorted(rng.sample(range(8), rng.randint(1, 2)))),
                    had=had,
                    never=not had,
                    frozen=not had,
                )
                for had in (rng.random() < 0.6 for _ in range(rng.randint(1, 6)))
            ]
        held = rng.randint(0, len(places))
        count = _Count(places, "strong", "", held, rng.randint(0, held), slots)
        ranks = tuple(
            (
                rank,
                tuple(
                    rng.sample(range(len(places)), rng.randint(1, min(3, len(places))))
                ),
            )
            for rank in range(rng.randint(1, 2))
        )
        asked = Numbers(ranks, "without")
        for flags in itertools.product((False, True), repeat=4):
            rules = _Rules(*flags)
            expected = brute(count, asked, rules)
            solved = _solve_numbers(count, asked, rules)
            if expected is None:
                assert solved is None
            else:
                fitted += 1
                assert solved is not None
                assert {
                    number: set(held) for number, held in solved.candidates.items()
                } == expected
    assert fitted > 5000


def test_sets_are_integers() -> None:
    assert _set_of([0, 3, 17]) == 1 | 1 << 3 | 1 << 17 and _set_of([]) == 0


class Scaled(nn.Module):
    """A module with a float buffer at its root, which its state dict has between the
    parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.ones(3))
        self.register_buffer("std", torch.ones(1))
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 2)


@pytest.mark.parametrize("how", ["plain", "named", "state"])
def test_buffers_that_the_optimizer_does_not_hold(how: str, tmp_path: Path) -> None:
    net = Scaled()
    optimizer: Any = {
        "plain": lambda: torch.optim.SGD(net.parameters(), 0.1),
        "named": lambda: torch.optim.SGD(net.named_parameters(), 0.1),
        "state": lambda: torch.optim.Adam(net.parameters()),
    }[how]()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    thing = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    found = told(numbered(thing, tmp_path / "a.pt", [0, 1, 2, 4]))

    assert (
        found
        == {
            # Two of seven are buffers, and the optimizer does not say which.
            "plain": [
                (0, ["gamma", "mean", "std"]),
                (1, ["mean", "std", "a.weight"]),
                (2, ["std", "a.weight", "a.bias"]),
                (4, ["a.bias", "b.weight", "b.bias"]),
            ],
            "named": [
                (0, ["gamma"]),
                (1, ["a.weight"]),
                (2, ["a.bias"]),
                (4, ["b.bias"]),
            ],
            # `std` has a shape of its own, `mean` has that of its neighbour.
            "state": [
                (0, ["gamma", "mean"]),
                (1, ["a.weight"]),
                (2, ["a.bias"]),
                (4, ["b.bias"]),
            ],
        }[how]
    )


def test_a_frozen_parameter_in_the_optimizer(tmp_path: Path) -> None:
    """Without state it is frozen or unused: DDP counts it in one case only."""
    net = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4)))
    net[1].requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    thing = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    found = numbered(thing, tmp_path / "a.pt", [0, 1, 2])

    assert told(found) == [
        (0, ["0.weight"]),
        (1, ["1.weight", "2.weight"]),
        (2, ["2.weight", "3.weight"]),
    ]
    assert (found.least, found.parameters, found.trust, found.assumes) == (
        3,
        4,
        "likely",
        _IN_ORDER,
    )
    assert (
        "1 of them had no gradient yet; DDP does not count those that are frozen"
        in found.why
    )
    assert told(numbered(thing, tmp_path / "a.pt", [3])) == [(3, ["3.weight"])]
    lines = ckpt("inspect", tmp_path / "a.pt", "--index", "0,1,2").lines
    assert lines[0] == f"If {_IN_ORDER}:"
    assert [line.split() for line in lines[3:5]] == [
        ["1", "model.1.weight", "[2,", "2]", "float32", "never"],
        ["or", "model.2.weight", "[2,", "2]", "float32", "had", "one", "earlier"],
    ]
    assert lines[7] == "DDP counts 3 to 4 parameters."
    rows = json.loads(
        ckpt("inspect", tmp_path / "a.pt", "--index", "0,1", "--json").out
    )["index"]["names"]
    assert rows == [
        {
            "index": 0,
            "name": "model.0.weight",
            "candidates": ["model.0.weight"],
            "ranks": [],
            "had_gradient": True,
        },
        {
            "index": 1,
            "name": None,
            "candidates": ["model.1.weight", "model.2.weight"],
            "ranks": [],
            "had_gradient": None,
        },
    ]


def test_an_optimizer_that_holds_something_else(tmp_path: Path) -> None:
    """A parameter of the loss: how many of the model's parameters are left out is
    unknown.
    """
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    weight = nn.Parameter(torch.ones(9))
    optimizer = torch.optim.Adam([*net[1].parameters(), weight])
    for parameter in (*net.parameters(), weight):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    found = numbered(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
        [0, 3],
    )

    assert told(found) == [(0, ["0.weight"]), (3, ["1.bias"])]  # four of four
    assert (
        found.why == "the parameters of the optimizer do not fit the order of the model"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6", [6]),
        ("6,7-9", [6, 7, 8, 9]),
        ("6 7 8 9", [6, 7, 8, 9]),
        (" 3, 1,3", [3, 1]),
    ],
)
def test_numbers(text: str, expected: list[int]) -> None:
    assert numbers(text).all == expected


@pytest.mark.parametrize("text", ["", "a", "-1", "9-7", "1-99999", "1.5", "1;2"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(UsageError):
        numbers(text)


def test_the_commands_lines(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    source = rewriting.saved(net.state_dict(), tmp_path / "a.pt")

    assert ckpt("inspect", source, "--index", "1").lines == [
        "INDEX  NAME  SHAPE  DTYPE",
        "    1  bias  [2]    float32",
        "DDP counts 2 parameters.",
        "likely: every tensor that is not known as a buffer counts as a parameter.",
    ]
    assert ckpt("inspect", source, "--index", "0").lines[:3] == [
        "If no parameter is frozen (requires_grad is not recorded):",
        "INDEX  NAME    SHAPE   DTYPE",
        "    0  weight  [2, 2]  float32",
    ]
    document = json.loads(ckpt("inspect", source, "--index", "0-1", "--json").out)
    assert [row["name"] for row in document["index"]["names"]] == ["weight", "bias"]
    check_error(
        ckpt("inspect", source, "--index", "2"),
        "no parameter has the number 2: it has 2 parameters, 0 to 1",
    )
    check_error(
        ckpt("inspect", source, "--index", "0", "--tsv"),
        "--index and --tsv exclude each other",
    )


def test_files_that_keep_no_order_are_refused(tmp_path: Path) -> None:
    """The alphabet puts biases before weights: no model does."""
    source = rewriting.saved(Net(1).state_dict(), tmp_path / "a.pt")
    assert ckpt("convert", source, "-o", tmp_path / "a.safetensors").code == 0
    assert (
        ckpt("convert", tmp_path / "a.safetensors", "-o", tmp_path / "b.pt").code == 0
    )

    check_error(
        ckpt("inspect", tmp_path / "a.safetensors", "--index", "0"),
        "safetensors keeps no order",
    )
    check_error(
        ckpt("inspect", tmp_path / "b.pt", "--index", "0"), "its names are sorted"
    )


def llama(layers: int) -> dict[str, torch.Tensor]:
    """The names of a model without a bias, in its order."""
    parts = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "input_layernorm",
        "post_attention_layernorm",
    ]
    rows = [
        "embed_tokens",
        *(f"layers.{layer}.{part}" for layer in range(layers) for part in parts),
        "norm",
    ]
    return {f"model.{row}.weight": torch.ones(2) for row in rows}


@pytest.mark.parametrize("layers", [11, 100])
def test_sorted_names_without_a_bias_are_refused(layers: int, tmp_path: Path) -> None:
    """`10` stands before `2` in the alphabet, and in no list of modules."""
    state = llama(layers)
    found = numbered({"model": state}, tmp_path / "a.pt", [0, 1, 9 * layers + 1])
    assert found.assumes is None
    assert [row.entries[0].name for row in found.rows] == [
        "model.model.embed_tokens.weight",
        "model.model.layers.0.self_attn.q_proj.weight",
        "model.model.norm.weight",
    ]
    by_dtype = {name: state[name].half() for name in sorted(state) if "norm" in name}
    by_dtype |= {name: state[name] for name in sorted(state) if "norm" not in name}
    in_order = dict(sorted(state.items()))
    for number, rows in enumerate((by_dtype, in_order, {"model": in_order})):
        rewriting.saved(rows, tmp_path / f"{number}.pt")
        check_error(
            ckpt("inspect", tmp_path / f"{number}.pt", "--index", "0"),
            "its names are sorted",
        )


def test_names_that_may_be_sorted_are_an_assumption(tmp_path: Path) -> None:
    """Each pair of neighbours says whether the alphabet made the order. Few of them say
    nothing.
    """
    state = llama(3)
    rewriting.saved(dict(sorted(state.items())), tmp_path / "a.pt")
    done = ckpt("inspect", tmp_path / "a.pt", "--index", "1", "--json")
    index = json.loads(done.out)["index"]
    assert index["assumes"] == f"{_NOT_SORTED}, and {_NONE_FROZEN}"
    assert index["evidence"]["trust"] == "likely"
    assert (
        ckpt("inspect", tmp_path / "a.pt", "--index", "1")
        .lines[0]
        .startswith(f"If {_NOT_SORTED}")
    )

    few = [f"{name}.weight" for name in ("fc1", "fc2", "head", "norm", "out")]
    more = [*few, "proj.weight"]
    with_ten = ["fc1.weight", "fc2.weight", "fc10.weight", *more[2:]]
    for number, rows in enumerate((few, more, with_ten)):
        found = numbered(
            {name: torch.ones(2) for name in rows}, tmp_path / f"{number}.pt", [2]
        )
        assert (_NOT_SORTED in str(found.assumes)) is (rows is more)
    both = {
        f"a.{name}": torch.ones(2).half() for name in more
    }  # safetensors has a block of each dtype
    both |= {name: torch.ones(2) for name in few}
    assert _NOT_SORTED in str(numbered(both, tmp_path / "both.pt", [2]).assumes)


def test_an_optimizer_does_not_make_sorted_names_certain(tmp_path: Path) -> None:
    net = nn.ParameterDict({name: nn.Parameter(torch.ones(2)) for name in "abcdef"})
    optimizer = torch.optim.Adam(net.parameters())
    sum(row.sum() for row in net.values()).backward()
    optimizer.step()
    file = {"model": dict(net.state_dict()), "optimizer": optimizer.state_dict()}
    found = numbered(file, tmp_path / "a.pt", [0])
    assert (found.assumes, found.trust) == (_NOT_SORTED, "likely")
    file["model"]["a"] = file["model"].pop("a")
    found = numbered(file, tmp_path / "b.pt", [0])
    assert (found.assumes, found.trust) == (None, "strong")


def test_layers_of_the_last_rank_first_are_refused(tmp_path: Path) -> None:
    """DCP puts the names of the last rank first (torch `ChainMap` in
    `create_global_plan`): of a pipeline the last layers.
    """
    state = llama(4)
    late = {
        name: state[name] for name in state if "layers.2" in name or "layers.3" in name
    }
    rewriting.saved({**late, **state}, tmp_path / "a.pt")
    check_error(
        ckpt("inspect", tmp_path / "a.pt", "--index", "0"),
        (
            "model.layers.3 stands before model.layers.0, so the order of the model is "
            "lost"
        ),
    )


def test_numbers_that_are_no_positions_have_any_order(tmp_path: Path) -> None:
    """A ModuleDict of strides: 32, 16, 8."""
    net = nn.ModuleDict({key: nn.Linear(2, 2) for key in ("32", "16", "8")})
    found = numbered(net.state_dict(), tmp_path / "a.pt", [0, 1, 5])
    assert [row.entries[0].name for row in found.rows] == [
        "32.weight",
        "32.bias",
        "8.bias",
    ]


def test_a_module_lists_its_parameters_in_any_order(tmp_path: Path) -> None:
    """A module that was saved whole has its own order, whatever its names are."""
    torch.save(
        nn.ModuleDict({"1": nn.Linear(2, 2), "0": nn.Linear(2, 2)}), tmp_path / "a.pt"
    )
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        found = numbered_parameters(Survey(checkpoint), Numbers(((None, (0, 3)),)))
    assert (names(found), found.trust) == (["1.weight", "0.bias"], "certain")


@pytest.mark.parametrize("loose", [0, 1])
def test_a_module_with_names_in_order_of_the_alphabet_is_certain(
    loose: int, tmp_path: Path
) -> None:
    """A tensor that no module registers has no number, and changes nothing."""
    net = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "abcdef"})
    net.seen = [torch.ones(2)] * loose  # type: ignore[assignment]
    torch.save(net, tmp_path / "a.pt")
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        assert [entry.registered for entry in checkpoint.tensors].count(False) == loose
        found = numbered_parameters(Survey(checkpoint), Numbers(((None, (5,)),)))
    assert (names(found), found.trust, found.assumes) == (["f.weight"], "certain", None)


def test_a_dict_of_parameters_is_no_module(tmp_path: Path) -> None:
    """`dict(model.named_parameters())` may be sorted as any dict."""
    net = nn.ModuleDict({name: nn.Linear(2, 2) for name in "abcdef"})
    alone = {name: row.data for name, row in net.named_parameters()}
    alone["f.bias"] = net["f"].bias  # type: ignore[assignment]  # one Parameter among tensors
    for number, state in enumerate((dict(net.named_parameters()), alone)):
        torch.save(dict(sorted(state.items())), tmp_path / f"{number}.pt")
        check_error(
            ckpt("inspect", tmp_path / f"{number}.pt", "--index", "0"),
            "its names are sorted",
        )

    weights = {name: row for name, row in net.named_parameters() if "weight" in name}
    torch.save(weights, tmp_path / "weights.pt")
    with formats.open(str(tmp_path / "weights.pt")) as checkpoint:
        found = numbered_parameters(Survey(checkpoint), Numbers(((None, (5,)),)))
    assert (names(found), found.trust, found.assumes) == (
        ["f.weight"],
        "likely",
        _NOT_SORTED,
    )
    assert found.why == "each parameter was saved as a Parameter"


def test_only_a_model_has_parameters(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    rewriting.saved(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )

    check_error(
        ckpt("inspect", tmp_path / "a.pt", "--index", "0", "--section", "optimizer"),
        "optimizer is not a model",
    )


class FromTheStart(torch.optim.Optimizer):
    """As schedulefree's `AdamWScheduleFreeClosure`: it makes the state of every
    parameter at once, and counts no steps.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {
                "z": parameter.detach().clone(),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise NotImplementedError


def test_state_that_all_had_from_the_start_does_not_say_who_is_frozen(
    tmp_path: Path,
) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    net[0].requires_grad_(False)
    state = {
        "model": net.state_dict(),
        "optimizer": FromTheStart(net.parameters()).state_dict(),
    }

    found = numbered(state, tmp_path / "start.pth", [0])

    assert found.trust == "likely"
    assert found.assumes == "no parameter is frozen (requires_grad is not recorded)"


def test_the_names_that_ddp_prints_are_certain(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 5))
    source = rewriting.saved(
        {"model": nn.DataParallel(net).state_dict()}, tmp_path / "a.pth"
    )
    text = (
        "Parameters which did not receive grad for rank 1: 2.bias, 2.weight, 1.bias\n"
        "Parameter indices which did not receive grad for rank 1: 1 2 3\n"
    )

    done = ckpt("explain", text, source)

    assert [line.split()[:2] for line in done.lines[2:6]] == [
        ["INDEX", "NAME"],
        ["1", "model.module.1.bias"],
        ["2", "model.module.2.weight"],
        ["3", "model.module.2.bias"],
    ]
    assert "certain: DDP prints the names." in done.lines
    other = ckpt("explain", text.replace("1.bias", "9.bias"), source)
    assert "DDP names the parameters itself." in other.lines and "9.bias" in str(
        other.out
    )


def test_what_the_search_of_ddp_leaves_out() -> None:
    line = "Parameter indices which did not receive grad for rank 1: 6 7"
    assert numbers(line).kind == "line"
    assert (
        numbers(f"You can enable unused parameter detection by\n{line}").kind
        == "without"
    )
    assert (
        numbers(
            f"Since `find_unused_parameters=True` is enabled, this likely means\n{line}"
        ).kind
        == "found"
    )
    assert pasted_numbers("nothing") is None


@pytest.mark.parametrize(
    ("kind", "assumes"),
    [("without", _EXACT), ("line", f"{_NO_SEARCH}, and {_EXACT}"), ("found", _NEVER)],
)
def test_a_frozen_layer_and_an_unused_one(
    kind: Any, assumes: str, tmp_path: Path
) -> None:
    """Without state are one frozen layer and one that is not used, each with a shape of
    its own.
    """
    net = nn.Sequential(
        nn.Linear(3, 5, False),
        nn.Linear(5, 7, False),
        nn.Linear(7, 9, False),
        nn.Linear(9, 2, False),
    )
    optimizer = torch.optim.Adam(net.parameters())
    for number in (1, 3):
        net[number].weight.grad = torch.ones_like(net[number].weight)
    optimizer.step()
    thing = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    found = numbered(thing, tmp_path / "a.pth", [1], kind=kind)

    assert names(found) == ["2.weight"] and found.assumes == assumes


def test_the_candidates_that_are_fewest_stand_behind_their_assumption(
    tmp_path: Path,
) -> None:
    """Two without state and one number: either is it, or a branch that is not told
    apart.
    """
    net = nn.Sequential(*(nn.Linear(size, size + 1, False) for size in range(2, 7)))
    optimizer = torch.optim.Adam(net.parameters())
    for number in (0, 3, 4):
        net[number].weight.grad = torch.ones_like(net[number].weight)
    optimizer.step()

    found = numbered(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pth",
        [1],
        kind="without",
    )

    assert told(found) == [(1, ["1.weight", "2.weight"])] and found.assumes == _EXACT


def test_how_many_count() -> None:
    """Of five, three have no state, and one number: with all numbers at hand at least
    two of the three are frozen.
    """
    places = [
        _Place((number,), open=True, frozen=True, never=True) for number in range(5)
    ]
    count = _Count(places, "strong", "", held=5, stateless=3)
    asked = Numbers(((0, (1,)),), "without")
    assert count.bounds(asked, _Rules(False, True, False, False)) == (2, 5)
    assert count.bounds(asked, _Rules(True, True, False, False)) == (2, 3)
    assert count.bounds(asked, _Rules(True, True, True, False)) == (3, 3)
    assert count.bounds(asked, _Rules(True, False, True, False)) == (3, 5)


def test_groups_and_buffers_are_called_so(tmp_path: Path) -> None:
    """Weights and biases in groups of their own, and a mask that no file tells from a
    parameter.
    """
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    net.register_buffer("mask", torch.ones(4))
    groups = [
        {"params": [row for row in net.parameters() if row.ndim == 2]},
        {"params": [row for row in net.parameters() if row.ndim == 1]},
    ]
    optimizer = torch.optim.Adam(groups)
    net[1](net[0](torch.ones(1, 3))).sum().backward()
    optimizer.step()
    path = tmp_path / "a.pt"

    found = numbered(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path, [4, 5]
    )

    said = f"{found.assumes}. {found.why}"
    assert "got model.parameters()" not in said
    assert "each group of the optimizer has its parameters in the order" in said
    assert "7 parameters" not in said
    assert "6 of 7 tensors of the model that may be parameters" in said
    state = net.state_dict()
    del state["mask"]
    rewriting.saved({"model": state, "optimizer": optimizer.state_dict()}, path)
    shown = ckpt("inspect", path).out.decode()
    assert "got model.parameters()" not in shown
    assert "If each group of the optimizer has its parameters in the order" in shown


def test_a_number_beyond_counts_what_may_be_a_buffer_as_such(tmp_path: Path) -> None:
    """The name `mean` says neither; the optimizer holds the others."""
    net = nn.Linear(2, 2)
    net.register_buffer("mean", torch.zeros(2))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    states = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    source = rewriting.saved(states, tmp_path / "a.pt")

    check_error(
        ckpt("inspect", source, "--index", "9"),
        "no parameter has the number 9: it has at most 3 parameters, 0 to 2",
    )
