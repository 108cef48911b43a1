"""An optimizer that got its parameters in another order: what the shapes of its state
prove, and no word beyond it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from inside import inside
from torch import nn

pytestmark = oracle.QUIET


class Net(nn.Module):
    """Three parts. Those of `alike` have equal shapes."""

    def __init__(self, *, alike: bool = False, deep: bool = False) -> None:
        super().__init__()
        width = 8 if alike else 6
        layers = [nn.Linear(width, width) for _ in range(3)] if deep else []
        self.backbone = (
            nn.Sequential(*layers, nn.Linear(width, 8)) if deep else nn.Linear(width, 8)
        )
        self.head = nn.Linear(8, 8 if alike else 2)
        self.aux = nn.Linear(8, 8 if alike else 3)


def saved(
    path: Path,
    net: nn.Module,
    parts: Sequence[str],
    kind: Any = torch.optim.Adam,
    without: int | None = None,
) -> None:
    parameters = [
        parameter for part in parts for parameter in getattr(net, part).parameters()
    ]
    optimizer = kind(parameters)
    for number, parameter in enumerate(parameters):
        parameter.grad = None if number == without else torch.randn_like(parameter)
    optimizer.step()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)


def found(path: Path) -> list[dict[str, Any]]:
    done = inside("inspect", path.name, "--json", cwd=path.parent)
    assert done.code == 0, done.err
    return [
        row
        for row in json.loads(done.out)["findings"]
        if row["code"] == "optimizer-order"
    ]


HEAD_FIRST = ("head", "backbone", "aux")


def test_the_only_order_that_the_shapes_fit_is_listed(tmp_path: Path) -> None:
    saved(tmp_path / "a.pth", Net(), HEAD_FIRST)
    (finding,) = found(tmp_path / "a.pth")
    assert finding["level"] == "warning"
    assert finding["message"] == (
        "The optimizer got the parameters in another order than the model's: its state "
        "0 has shape [2, 8], parameter 0 of the model (backbone.weight) [8, 6]."
    )
    order = [f"{part}.{leaf}" for part in HEAD_FIRST for leaf in ("weight", "bias")]
    assert finding["tensors"] == [f"model.{name}" for name in order]
    assert f"The shapes fit one order: {', '.join(order)}." in finding["consequence"]
    # An optimizer of this order takes the state, and steps.
    net, state = Net(), torch.load(tmp_path / "a.pth", weights_only=True)
    named = dict(net.named_parameters())
    optimizer = torch.optim.Adam([named[name] for name in order])
    optimizer.load_state_dict(state["optimizer"])
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_of_layers_with_equal_shapes_the_order_of_the_parts_is_all_that_can_be_said(
    tmp_path: Path,
) -> None:
    saved(tmp_path / "a.pth", Net(deep=True), HEAD_FIRST)
    (finding,) = found(tmp_path / "a.pth")
    assert finding["tensors"] == []
    assert "fit if the parts came so: head, backbone, aux." in finding["consequence"]


def test_where_several_orders_fit_none_is_claimed(tmp_path: Path) -> None:
    net = Net(alike=True)
    net.first = nn.Linear(3, 3)
    saved(tmp_path / "a.pth", net, ("first", "head", "backbone", "aux"))
    (finding,) = found(tmp_path / "a.pth")
    assert finding["tensors"] == [] and "without a word" in finding["consequence"]


@pytest.mark.parametrize("parts", [HEAD_FIRST, ("backbone", "head", "aux")])
def test_equal_shapes_say_nothing(tmp_path: Path, parts: tuple[str, ...]) -> None:
    saved(tmp_path / "a.pth", Net(alike=True), parts)
    assert found(tmp_path / "a.pth") == []


@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad]
)
def test_the_order_of_the_model_is_no_finding(tmp_path: Path, kind: Any) -> None:
    saved(tmp_path / "a.pth", Net(), ("backbone", "head", "aux"), kind)
    saved(tmp_path / "b.pth", Net(), ("backbone", "head", "aux"), kind, without=2)
    assert found(tmp_path / "a.pth") == [] == found(tmp_path / "b.pth")


def test_a_parameter_without_state_leaves_the_order_of_the_parts(
    tmp_path: Path,
) -> None:
    saved(tmp_path / "a.pth", Net(), HEAD_FIRST, without=1)
    (finding,) = found(tmp_path / "a.pth")
    assert finding["tensors"] == [] and "head, backbone, aux" in finding["consequence"]


def test_sorted_names_and_another_model_say_nothing(tmp_path: Path) -> None:
    saved(tmp_path / "a.pth", Net(), HEAD_FIRST)
    state = torch.load(tmp_path / "a.pth", weights_only=True)
    ordered = {name: state["model"][name] for name in sorted(state["model"])}
    torch.save({"model": ordered, "optimizer": state["optimizer"]}, tmp_path / "b.pth")
    other = nn.Sequential(
        nn.Linear(5, 8), nn.Linear(8, 2), nn.Linear(8, 3)
    ).state_dict()
    torch.save({"model": other, "optimizer": state["optimizer"]}, tmp_path / "c.pth")
    assert found(tmp_path / "b.pth") == [] == found(tmp_path / "c.pth")


def test_parameters_in_groups_that_keep_the_order_are_no_finding(
    tmp_path: Path,
) -> None:
    net = Net()
    groups = [
        {"params": net.head.parameters(), "lr": 0.1},
        {"params": net.backbone.parameters()},
    ]
    optimizer = torch.optim.Adam([*groups, {"params": net.aux.parameters()}])  # type: ignore[arg-type]
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pth",
    )
    assert found(tmp_path / "a.pth") == []
