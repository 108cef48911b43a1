"""Who had a gradient: told from the state of real optimizers, or not told; never told
wrong.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import oracle
import pytest
import recipes
import rewriting
import torch
from torch import nn

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.model.findings import Finding

pytestmark = oracle.QUIET


class Net(nn.Module):
    """Convolutions, batch norm, a layer that is never used, one that is used in every
    second step, a frozen one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.sometimes = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, branch: bool) -> torch.Tensor:
        x = self.used(self.bn(self.conv(x)).mean((2, 3)))
        return self.head(self.sometimes(x) if branch else x)


def train(net: nn.Module, optimizer: Any, steps: int = 4) -> None:
    for step in range(steps):
        optimizer.zero_grad()

        def loss() -> torch.Tensor:
            value = net(torch.randn(2, 3, 5, 5), step % 2 == 0).square().sum()  # noqa: B023
            value.backward()
            return value

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()


def found(thing: Any, path: Path) -> dict[str, Finding]:
    rewriting.saved(thing, path)
    with formats.open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
        assert checkpoint.source is not None
    codes = ("unused", "sometimes-unused", "zero-gradient")
    return {
        finding.code: finding for finding in report.findings if finding.code in codes
    }


def decayed(net: nn.Module) -> list[dict[str, Any]]:
    """Two groups, as many recipes make them: matrices with weight decay, all else
    without.
    """
    parameters = list(net.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


Make = Callable[[nn.Module], Any]
TELLING: dict[str, Make] = {
    "Adam": lambda net: torch.optim.Adam(net.parameters()),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), amsgrad=True),
    "NAdam": lambda net: torch.optim.NAdam(net.parameters()),
    "RAdam": lambda net: torch.optim.RAdam(net.parameters()),
    "Adamax": lambda net: torch.optim.Adamax(net.parameters()),
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters()),
    "Adadelta": lambda net: torch.optim.Adadelta(net.parameters()),
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters()),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters()),  # by its counters
    "named": lambda net: torch.optim.AdamW(net.named_parameters()),
    "groups": lambda net: torch.optim.AdamW(decayed(net)),
}
SILENT: dict[str, Make] = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), 0.1),
    "LBFGS": lambda net: torch.optim.LBFGS(net.parameters(), max_iter=2),
}
UNUSED = {"unused.weight", "unused.bias"}
SOMETIMES = {"sometimes.weight", "sometimes.bias"}


@pytest.mark.parametrize("name", TELLING)
def test_optimizers_that_tell(name: str, tmp_path: Path) -> None:
    net = Net()
    optimizer = TELLING[name](net)
    train(net, optimizer)

    told = found(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )

    check(told["unused"], UNUSED)
    check(told["sometimes-unused"], SOMETIMES)
    assert len(told["unused"].tensors) == len(told["sometimes-unused"].tensors) == 2
    assert "(2 parameters)" in told["unused"].message
    assert "took 2 of 4 steps" in told["sometimes-unused"].message


def test_momentum_tells_who_never_had_a_gradient(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    train(net, optimizer)

    told = found(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )

    assert (
        set(told["unused"].tensors) == {f"model.{n}" for n in UNUSED}
        and "sometimes-unused" not in told
    )


@pytest.mark.parametrize("name", SILENT)
def test_optimizers_that_cannot_tell_are_silent(name: str, tmp_path: Path) -> None:
    net = Net()
    optimizer = SILENT[name](net)
    train(net, optimizer)

    told = found(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )

    assert not told


def test_frozen_parameters_that_were_left_out(tmp_path: Path) -> None:
    net = Net()
    for parameter in net.conv.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(p for p in net.parameters() if p.requires_grad)
    train(net, optimizer)

    told = found(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )

    check(told["unused"], UNUSED)


def check(finding: Finding, truth: Iterable[str]) -> None:
    """Names that are told are right; those that cannot be told are counted."""
    names = {name.removeprefix("model.") for name in finding.tensors}
    assert names <= set(truth)
    assert len(names) == len(set(truth)) or "unknown parameter" in finding.message


@pytest.mark.parametrize("seed", range(12))
def test_random_nets_are_never_told_wrong(seed: int, tmp_path: Path) -> None:
    """Layers of few shapes in random order, some unused, some frozen and left out,
    ties, groups.
    """
    torch.manual_seed(seed)
    choice = lambda n: int(torch.randint(0, n, ()))
    layers = OrderedDict(
        (
            f"l{i}",
            [
                nn.Linear(3, 3),
                nn.Linear(3, 3, bias=False),
                nn.LayerNorm(3),
                nn.BatchNorm1d(3),
            ][choice(4)],
        )
        for i in range(8)
    )
    net = nn.Sequential(layers)
    used = [choice(3) > 0 for _ in net]
    frozen = [choice(5) == 0 for _ in net]
    for layer, is_frozen in zip(net, frozen, strict=True):
        for parameter in layer.parameters():
            parameter.requires_grad_(not is_frozen)
    if all(isinstance(net[i], nn.Linear) for i in (0, 1)):
        net[1].weight = net[0].weight
    parameters = [p for p in net.parameters() if p.requires_grad or choice(2)]
    if not parameters:
        pytest.skip("all is frozen")
    optimizer = torch.optim.AdamW(
        parameters if choice(2) else decayed(nn.ParameterList(parameters))
    )
    x = torch.randn(4, 3, requires_grad=True)
    for layer, is_used in zip(net, used, strict=True):
        x = layer(x) if is_used else x
    x.square().sum().backward()
    optimizer.step()
    names = {
        id(p): name for name, p in net.named_parameters(remove_duplicate=False) if True
    }
    first = {
        id(p): name
        for name, p in reversed(list(net.named_parameters(remove_duplicate=False)))
    }
    never = {first[id(p)] for p in parameters if p.grad is None}
    assert names

    told = found(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )

    state = optimizer.state_dict()["state"]
    if never and state:
        check(told["unused"], never)
    else:
        assert "unused" not in told


@pytest.mark.slow
@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_groups_are_never_told_wrong(recipe: str, tmp_path: Path) -> None:
    """Random runs with eleven optimizers: no name had a gradient, and what is not named
    is among its candidates.
    """
    told = 0
    for seed, optimizer in enumerate([*recipes.OPTIMIZERS] * 2):
        run = recipes.Run(seed, recipe, optimizer)
        never = {f"model.{name}" for name in run.handed - run.gradient}
        with formats.open(
            str(rewriting.saved(run.checkpoint, tmp_path / "a.pt"))
        ) as checkpoint:
            for use in Survey(checkpoint).uses:
                for number in use.never:
                    index, candidates = use.match.indices[number], use.match.candidates
                    possible = {
                        checkpoint.tensors[at].name
                        for at in candidates[number]
                        if candidates
                    }
                    assert not possible or possible & never
                    assert index is None or checkpoint.tensors[index].name in never
                    told += 1
    assert told


class Layers(nn.Module):
    """Named so that the order of the names is another: equal matrices, an embedding in
    its own shape.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.ones(1, 5, 3))
        self.query, self.key, self.proj = (nn.Linear(3, 3) for _ in range(3))
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 2)


def unused(net: nn.Module, recipe: str, path: Path) -> Finding:
    """What is found after a step in which `key` alone had no gradient."""
    optimizer = torch.optim.AdamW(recipes.RECIPES[recipe](list(net.named_parameters())))
    for name, parameter in net.named_parameters():
        parameter.grad = None if name.startswith("key") else torch.ones_like(parameter)
    optimizer.step()
    return found(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path
    )["unused"]


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_groups_of_recipes(recipe: str, tmp_path: Path) -> None:
    finding = unused(Layers(), recipe, tmp_path / "a.pt")

    assert finding.tensors == ("model.key.weight", "model.key.bias")


@pytest.mark.parametrize("recipe", ["by ndim", "minGPT"])
def test_groups_whose_names_may_be_sorted(recipe: str, tmp_path: Path) -> None:
    """Where all shapes are equal, the order of the model and that of the names fit
    both.
    """
    net = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("query", "key", "proj")})

    finding = unused(net, recipe, tmp_path / "a.pt")

    layers = "{key,proj}" if recipe == "by ndim" else "{query,key}"
    assert finding.tensors == ()
    assert finding.message.startswith(
        f"2 unknown parameters (2 of {layers}.{{weight,bias}} ×4) never had a gradient "
        "in the optimizer"
    )


def test_as_many_candidates_as_unknown_parameters_are_known(tmp_path: Path) -> None:
    """Which number is the weight stays open, and both had no gradient."""
    net = nn.ModuleDict(
        {"a": nn.Linear(3, 4), "spare": nn.Module(), "z": nn.Linear(4, 2)}
    )
    spare = net["spare"]
    spare.weight, spare.bias = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))
    groups = [
        [net["a"].weight, spare.bias, spare.weight, net["z"].weight],
        [net["a"].bias, net["z"].bias],
    ]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups])
    for name, parameter in net.named_parameters():
        parameter.grad = (
            None if name.startswith("spare") else torch.ones_like(parameter)
        )
    optimizer.step()

    finding = found(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )["unused"]

    assert finding.tensors == ("model.spare.weight", "model.spare.bias")
    assert finding.message.startswith(
        "spare.{weight,bias} (2 parameters) never had a gradient"
    )


def test_two_models_with_an_optimizer_each(tmp_path: Path) -> None:
    nets = {
        "generator": Net(),
        "discriminator": nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 1)),
    }
    thing: dict[str, Any] = {name: net.state_dict() for name, net in nets.items()}
    optimizers = {
        name: torch.optim.Adam(net.parameters()) for name, net in nets.items()
    }
    train(nets["generator"], optimizers["generator"])
    nets["discriminator"][1](torch.randn(2, 7)).sum().backward()
    optimizers["discriminator"].step()
    thing |= {
        f"optimizer_{name}": made.state_dict() for name, made in optimizers.items()
    }
    rewriting.saved(thing, tmp_path / "a.pt")

    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        told = [
            finding
            for finding in inspect(Survey(checkpoint)).findings
            if finding.code == "unused"
        ]

    assert [set(finding.tensors) for finding in told] == [
        {f"generator.{name}" for name in UNUSED},
        {"discriminator.0.weight", "discriminator.0.bias"},
    ]
    assert "If optimizer_generator got " in told[0].message


def test_ids_of_before_torch_1_5(tmp_path: Path) -> None:
    """Parameters by their address, in the order of the groups."""
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer)
    state = optimizer.state_dict()
    number = {index: 140_000_000_000_000 + 64 * (index * 7 % 12) for index in range(12)}
    state["state"] = {number[index]: value for index, value in state["state"].items()}
    state["param_groups"][0]["params"] = [
        number[index] for index in state["param_groups"][0]["params"]
    ]
    for value in state["state"].values():
        value["step"] = int(value["step"])

    told = found({"model": net.state_dict(), "optimizer": state}, tmp_path / "a.pt")

    assert set(told["unused"].tensors) == {f"model.{n}" for n in UNUSED}
    assert set(told["sometimes-unused"].tensors) == {f"model.{n}" for n in SOMETIMES}


def test_fsdp_names(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer)
    names = [f"_fsdp_wrapped_module.{name}" for name, _ in net.named_parameters()]
    state = optimizer.state_dict()
    thing = {
        "model": net.state_dict(),
        "optim": {
            "state": {names[index]: value for index, value in state["state"].items()},
            "param_groups": [{"lr": 0.1, "params": names}],
        },
    }

    assert set(found(thing, tmp_path / "a.pt")["unused"].tensors) == {
        f"model.{n}" for n in UNUSED
    }


def test_a_wrapper_and_amp_change_nothing(tmp_path: Path) -> None:
    net = nn.DataParallel(Net())
    optimizer = torch.optim.AdamW(net.parameters())
    train(net, optimizer)
    thing = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }

    assert set(found(thing, tmp_path / "a.pt")["unused"].tensors) == {
        f"model.module.{n}" for n in UNUSED
    }


def test_only_counters_are_read(tmp_path: Path) -> None:
    net = nn.Sequential(*(nn.Linear(300, 300) for _ in range(3)))
    optimizer = torch.optim.AdamW(net.parameters())
    net[0](torch.ones(1, 300)).sum().backward()
    optimizer.step()
    rewriting.saved(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )

    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        assert checkpoint.source is not None
        before = checkpoint.source.bytes_read
        inspect(Survey(checkpoint))
        counters = [
            slot
            for slot in itertools.islice(checkpoint.tensors, 100)
            if slot.name.endswith(".step")
        ]

        assert checkpoint.source.bytes_read - before == 4 * len(counters) == 8


def test_a_state_that_stands_for_two_parameters_says_nothing(tmp_path: Path) -> None:
    """pytorch-optimizer's LoRARite keeps the state of a pair of parameters with one of
    them.
    """
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4))
    optimizer = torch.optim.SGD(net.parameters())
    state = optimizer.state_dict()
    for number, (rows, columns) in ((0, (5, 3)), (2, (4, 5))):
        state["state"][number] = {
            "step": 2,
            "v_r": torch.ones(columns, columns),
            "m_l": torch.ones(rows, 1),
        }

    assert (
        found({"model": net.state_dict(), "optimizer": state}, tmp_path / "pairs.pth")
        == {}
    )


def test_gradients_of_zero_are_no_missing_ones(tmp_path: Path) -> None:
    """Three of five steps with a gradient of zero; a resume makes a counter of one, and
    that stays `unused`.
    """
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 5))
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(5):
        for number, layer in enumerate(net):
            has = (True, step < 3, step < 1)[number]
            for row in layer.parameters():
                row.grad = torch.full_like(row, float(not number)) if has else None
        optimizer.step()

    told = found(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )

    assert told["zero-gradient"].tensors == ("model.1.weight", "model.1.bias")
    assert "3 of 5 steps, and all moments are zero" in told["zero-gradient"].message
    assert told["zero-gradient"].level == "info" and "does not stop" in str(
        told["zero-gradient"].consequence
    )
    assert told["unused"].tensors == ("model.2.weight", "model.2.bias")
    assert "1 of 5 steps" in told["unused"].message
