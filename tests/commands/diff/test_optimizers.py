"""An optimizer by numbers beside one by names: the moments are compared parameter by
parameter.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import ckpt


def both(
    path: Path, net: nn.Module, wrapper: str = "module."
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One training state with an optimizer by numbers, under names with a wrapper, and
    as torch names it.
    """
    optimizer = torch.optim.AdamW(net.parameters())
    torch.manual_seed(1)
    net(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    numbers = {f"{wrapper}{name}": tensor for name, tensor in net.state_dict().items()}
    one = copy.deepcopy({"model": numbers, "optim": optimizer.state_dict()})
    model, state = get_state_dict(net, optimizer)
    return one, copy.deepcopy({"model": model, "optim": state})


def compared(path: Path, one: Any, two: Any, **options: Any) -> ckpt.DiffReport:
    torch.save(one, path / "a.pth")
    torch.save(two, path / "b.pth")
    return ckpt.diff(path / "a.pth", path / "b.pth", **options)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_same_state_is_the_same(is_swapped: bool, tmp_path: Path) -> None:
    sides = both(tmp_path, nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)))
    report = compared(tmp_path, *(sides[::-1] if is_swapped else sides))
    assert report.same and not report.not_compared and not report.values
    assert report.count("same", "optimizer") == 12


def test_another_moment_is_found_at_its_parameter(tmp_path: Path) -> None:
    one, two = both(tmp_path, nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)))
    two["optim"]["state"]["1.weight"]["exp_avg"][0, 0] += 1
    (row,) = [row for row in compared(tmp_path, one, two).rows if row.status != "same"]
    assert row.status == "changed" and row.before is not None and row.after is not None
    assert (row.before.name, row.after.name) == (
        "optim.state.2.exp_avg",
        "optim.state.1.weight.exp_avg",
    )


def test_state_names_its_parameter(tmp_path: Path) -> None:
    one, two = both(tmp_path, nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)))
    del two["optim"]
    rows = compared(tmp_path, one, one).to_json()["tensors"]
    (found,) = [row for row in rows if row["before"] == "optim.state.2.exp_avg"]
    assert found["parameter"] == "model.module.1.weight"
    assert {"parameter" in row for row in rows if row["role"] != "optimizer"} == {False}


def test_another_order_of_the_names_is_a_difference(tmp_path: Path) -> None:
    one, two = both(tmp_path, nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)))
    two["optim"]["param_groups"][0]["params"].reverse()
    (row,) = compared(tmp_path, one, two).values
    assert row.name == "optim.param_groups.0.params"


def test_what_only_the_order_says_is_not_compared(tmp_path: Path) -> None:
    one, two = both(tmp_path, nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
    report = compared(tmp_path, one, two)
    (text,) = report.unjoined
    assert "only the order says which is which of 4 of its 4 parameters" in text
    assert (
        not report.same and not report.differs and not report.count("same", "optimizer")
    )
    assert report.to_json()["not_compared"] == [text]
    assert inside("diff", "a.pth", "b.pth", cwd=tmp_path).code == 0
    done = inside("diff", "a.pth", "b.pth", "--strict", cwd=tmp_path)
    assert (
        done.code == 1
        and b"not compared: optim, by numbers in one file and by names" in done.out
    )


def test_learning_rates_that_are_tensors_are_no_parameters(tmp_path: Path) -> None:
    """Compiled and capturable optimizers keep them so."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(1e-3), foreach=False)
    for step in (1, 2):
        net(torch.ones(3)).sum().backward()
        optimizer.step()
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, tmp_path / f"{step}.pth")
        torch.save(optimizer.state_dict(), tmp_path / f"alone{step}.pth")

    report = ckpt.diff(tmp_path / "1.pth", tmp_path / "2.pth")
    assert report.frozen == () and not report.findings
    roles = {row.name: row.role.role for row in report.rows}
    assert roles["optimizer.param_groups.0.lr"] == "optimizer"
    assert [name for name, role in roles.items() if role == "parameter"] == [
        "model.weight",
        "model.bias",
    ]
    assert not ckpt.diff(tmp_path / "alone1.pth", tmp_path / "alone2.pth").findings
    assert b"lr 0.001" in inside("inspect", "1.pth", cwd=tmp_path).out


def test_parameters_in_a_group_are_parameters(tmp_path: Path) -> None:
    """`torch.save(optimizer)` as an object keeps them there."""
    groups = [{"params": [nn.Parameter(torch.ones(2))], "lr": torch.tensor(0.1)}]
    torch.save({"state": {}, "param_groups": groups}, tmp_path / "x.pth")
    with ckpt.open(tmp_path / "x.pth") as opened:
        assert {ref.name: ref.role for ref in opened.values()} == {
            "param_groups.0.params.0": "parameter",
            "param_groups.0.lr": "optimizer",
        }
