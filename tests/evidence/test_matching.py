"""Which tensor a parameter of an optimizer is, and what its state says: never more than
every assignment agrees on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from torch import nn

from ckpt import formats
from ckpt.evidence.gradients import gradient_uses
from ckpt.evidence.matching import Match, Slot, recorded
from ckpt.evidence.record import OptimizerRecord
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey

pytestmark = oracle.QUIET


def matched(thing: Any, folder: Path) -> list[list[str | None]]:
    """The names of the tensors that each optimizer's parameters are, None where that is
    not known.
    """
    with formats.open(str(rewriting.saved(thing, folder / "a.pt"))) as checkpoint:
        return [
            [
                None if index is None else checkpoint.tensors[index].name
                for index in match.indices
            ]
            for match in Survey(checkpoint).matches
        ]


def adam(
    shapes: list[tuple[int, ...]], groups: list[int] | None = None, **fields: Any
) -> dict[str, Any]:
    """The state of an Adam over parameters of these shapes; `groups` are how many each
    group has.
    """
    state = {
        i: {"step": torch.tensor(1.0), "exp_avg": torch.ones(shape)}
        for i, shape in enumerate(shapes)
    }
    made, first = [], 0
    for count in groups or [len(shapes)]:
        made.append({"lr": 0.1, "params": list(range(first, first + count)), **fields})
        first += count
    return {"state": state, "param_groups": made}


MODEL = {
    "a.weight": torch.ones(2, 3),
    "b.weight": torch.ones(4),
    "c.weight": torch.ones(4),
}


def test_a_parameter_that_could_be_one_of_two_is_neither(tmp_path: Path) -> None:
    assert matched({"model": MODEL, "optimizer": adam([(2, 3), (4,)])}, tmp_path) == [
        ["model.a.weight", None]
    ]


def test_what_one_group_surely_has_no_other_may(tmp_path: Path) -> None:
    model = {
        "a.weight": torch.ones(4),
        "b.weight": torch.ones(2),
        "c.weight": torch.ones(4),
    }
    found = matched(
        {"model": model, "optimizer": adam([(2,), (4,), (4,)], [2, 1])}, tmp_path
    )
    assert found == [["model.b.weight", "model.c.weight", "model.a.weight"]]


def test_of_two_models_that_fit_the_one_with_as_many_tensors_is_meant(
    tmp_path: Path,
) -> None:
    thing = {
        "netG": {**MODEL, "d.weight": torch.ones(7)},
        "netD": {f"x.{name}": value for name, value in MODEL.items()},
        "optimizer": adam([(2, 3), (4,), (4,)]),
    }
    assert matched(thing, tmp_path) == [
        ["netD.x.a.weight", "netD.x.b.weight", "netD.x.c.weight"]
    ]


def test_of_two_models_that_fit_equally_none_is(tmp_path: Path) -> None:
    thing = {"netG": MODEL, "netD": MODEL, "optimizer": adam([(2, 3), (4,), (4,)])}
    assert matched(thing, tmp_path) == [[None, None, None]]


def test_an_optimizer_without_state_and_of_another_size_says_nothing(
    tmp_path: Path,
) -> None:
    sgd = {"state": {}, "param_groups": [{"lr": 0.1, "momentum": 0, "params": [0, 1]}]}
    assert matched({"model": MODEL, "optimizer": sgd}, tmp_path) == [[None, None]]
    sgd["param_groups"][0]["params"] = [0, 1, 2]  # type: ignore[index]
    assert matched({"model": MODEL, "optimizer": sgd}, tmp_path) == [
        [f"model.{name}" for name in MODEL]
    ]


def test_a_tied_parameter_counts_once_and_views_of_one_storage_count_each(
    tmp_path: Path,
) -> None:
    tied, whole = torch.ones(4), torch.arange(8.0)
    model = {
        "a.weight": tied,
        "b.weight": whole[:4],
        "c.weight": whole[4:],
        "d.weight": tied,
    }
    found = matched({"model": model, "optimizer": adam([(4,), (4,), (4,)])}, tmp_path)
    assert found == [["model.a.weight", "model.b.weight", "model.c.weight"]]


def test_names_decide_where_the_model_has_most_of_them(tmp_path: Path) -> None:
    state = adam(
        [(4,), (2, 3), (9,)], param_names=["c.weight", "a.weight", "gone.weight"]
    )
    assert matched({"model": MODEL, "optimizer": state}, tmp_path) == [
        ["model.c.weight", "model.a.weight", None]
    ]
    half = adam([(9,), (2, 3)], param_names=["gone.weight", "a.weight"])
    assert matched({"model": MODEL, "optimizer": half}, tmp_path) == [[None, None]]


def test_names_of_the_wrapped_model_are_those_of_the_plain_one(tmp_path: Path) -> None:
    state = adam([(4,), (2, 3)], param_names=["module.c.weight", "module.a.weight"])
    assert matched({"model": MODEL, "optimizer": state}, tmp_path) == [
        ["model.c.weight", "model.a.weight"]
    ]


def test_names_of_some_parameters_only_are_none(tmp_path: Path) -> None:
    state = adam([(2, 3), (4,), (4,)], param_names=["a.weight", "b.weight", None])
    assert matched({"model": MODEL, "optimizer": state}, tmp_path) == [
        [f"model.{name}" for name in MODEL]
    ]


def test_lists_of_names_that_do_not_go_with_the_parameters_are_none(
    tmp_path: Path,
) -> None:
    state = adam([(2, 3), (4,), (4,)], param_names=["c.weight", "a.weight"])
    assert matched({"model": MODEL, "optimizer": state}, tmp_path) == [
        [f"model.{name}" for name in MODEL]
    ]


def test_a_model_that_fits_one_group_only_is_not_meant(tmp_path: Path) -> None:
    thing = {
        "netG": {"a.weight": torch.ones(2, 3), "b.weight": torch.ones(5)},
        "netD": {
            "a.weight": torch.ones(2, 3),
            "b.weight": torch.ones(9),
            "c.weight": torch.ones(7),
        },
        "optimizer": adam([(2, 3), (9,)], [1, 1]),
    }
    assert matched(thing, tmp_path) == [["netD.a.weight", "netD.b.weight"]]


class WithPlainTensor(nn.Module):
    """A module with a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(4)
        self.fc = nn.Linear(2, 3)


def test_a_tensor_that_its_module_does_not_register_is_no_parameter(
    tmp_path: Path,
) -> None:
    net = WithPlainTensor()
    thing = {
        "model": net,
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.1).state_dict(),
    }
    assert matched(thing, tmp_path) == [["model.fc.weight", "model.fc.bias"]]


def lbfgs(*has_state: bool) -> Match:
    """The match of an LBFGS that a snapshot describes."""
    names = tuple(str(number) for number in range(len(has_state)))
    steps = tuple(1.0 if has else None for has in has_state)
    handed = OptimizerRecord(
        "torch.optim.LBFGS",
        names,
        has_state,
        steps,
        ("func_evals",),
        (True,) * len(names),
    )
    model = Section(("state_dict",), "state_dict", "model", 0)
    return recorded(
        handed, "", model, {name: number for number, name in enumerate(names)}
    )


def test_a_snapshot_of_lbfgs_does_not_say_that_parameters_have_no_state() -> None:
    assert gradient_uses([lbfgs(True, False)])[0][1:4] == ((), (), 0.0)


def test_a_snapshot_of_an_optimizer_with_such_fields_and_a_state_each_says_what_has_none() -> (
    None
):
    assert gradient_uses([lbfgs(True, True, False)])[0].never == (2,)


# --- what the state says --------------------------------------------------------------


def use(
    *slots: Slot, **fields: Any
) -> tuple[tuple[int, ...], tuple[tuple[int, float], ...], float]:
    match = Match(
        Section((), "", "optimizer", 0), (), slots, (None,) * len(slots), **fields
    )
    found = gradient_uses([match])[0]
    return found.never, found.lagging, found.steps


def slot(step: Any = None, *, has_state: bool = True, keeps_state: bool = True) -> Slot:
    return Slot(0, None, None, has_state, step, keeps_state)


def test_without_state_beside_others_that_have_it() -> None:
    assert use(slot(3), slot(has_state=False), slot(2)) == ((1,), ((2, 2.0),), 3.0)


def test_a_counter_of_zero_tells_only_beside_others_that_moved() -> None:
    assert use(slot(3), slot(0)) == ((1,), (), 3.0)
    assert use(slot(0), slot(0)) == ((), (), 0.0)


def test_a_group_that_keeps_no_state_says_nothing() -> None:
    assert use(slot(), slot(has_state=False, keeps_state=False)) == ((), (), 0.0)


def test_no_state_at_all_and_one_state_for_all_say_nothing() -> None:
    assert use(slot(has_state=False), slot(has_state=False)) == ((), (), 0.0)
    assert use(slot(5), slot(has_state=False), is_flat=True) == ((), (), 0.0)


def test_a_counter_of_several_elements_counts_nothing(tmp_path: Path) -> None:
    optimizer = adam([(2, 3), (4,), (4,)])
    optimizer["state"][1]["step"] = torch.ones(2)
    optimizer["state"][2]["step"] = torch.ones(0)
    with formats.open(
        str(
            rewriting.saved({"model": MODEL, "optimizer": optimizer}, tmp_path / "a.pt")
        )
    ) as checkpoint:
        assert Survey(checkpoint).uses[0][1:4] == ((), (), 1.0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_with_momentum_for_one_group_only(momentum: float, tmp_path: Path) -> None:
    net = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 3, bias=False)])
    sgd = torch.optim.SGD(
        [
            {"params": net[0].parameters()},
            {"params": net[1].parameters(), "momentum": momentum},
        ],
        lr=0.1,
        momentum=0.9,
    )
    net[0](torch.ones(1, 2)).sum().backward()
    sgd.step()
    thing = {"model": dict(net.state_dict()), "optimizer": sgd.state_dict()}
    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as checkpoint:
        assert Survey(checkpoint).uses[0].never == ((1,) if momentum else ())
