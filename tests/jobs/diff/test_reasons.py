"""Why a parameter did not change, as a snapshot of the live model tells it."""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
from torch import nn

import ckpt

pytestmark = oracle.QUIET


class Net(nn.Module):
    """A parameter for each reason: what it is called is why it does not move."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("frozen", "unused", "zero", "outside", "slow", "moved"):
            self.register_parameter(name, nn.Parameter(torch.ones(4)))
        self.frozen.requires_grad_(False)

    def forward(self) -> torch.Tensor:
        parts = (self.frozen, self.zero * 0, self.outside, self.slow, self.moved)
        return sum((part.sum() for part in parts), torch.zeros(()))


def trained(net: Net) -> torch.optim.Optimizer:
    """The optimizer of a net that is about to make its step."""
    groups = [{"params": [net.frozen, net.unused, net.zero, net.moved]}, {"params": [net.slow], "lr": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    net().backward()
    return optimizer


def reasons(before: Path, after: Path) -> dict[str, tuple[str, str]]:
    """The cause and the text of each tensor that stands in a comparison with a reason."""
    rows = ckpt.diff(before, after).rows
    return {
        (row.after or row.before).name.rpartition(".")[2]: (str(row.cause), str(row.reason))
        for row in rows
        if row.reason is not None and (row.after or row.before) is not None
    }


FROZEN = ("frozen", "frozen (requires_grad is False)")
UNKNOWN = ("unknown", "did not change; these files cannot say why (ckpt.snapshot records it)")


def test_a_snapshot_with_gradients_and_optimizers_knows_every_reason(tmp_path: Path) -> None:
    net = Net()
    optimizer = trained(net)
    ckpt.snapshot(net, tmp_path / "a.pth", optimizer)
    optimizer.step()
    ckpt.snapshot(net, tmp_path / "b.pth", optimizer)

    assert reasons(tmp_path / "a.pth", tmp_path / "b.pth") == {
        "frozen": FROZEN,
        "unused": ("no-gradient", "had no gradient when the snapshot was taken"),
        "zero": ("zero-gradient", "its gradient was zero when the snapshot was taken"),
        "outside": ("not-in-optimizer", "has a gradient, but no optimizer holds it"),
        "slow": (
            "stepped",
            "has a gradient (norm 2), but the update is smaller than float32 can represent, or lr is 0",
        ),
    }


def test_a_snapshot_without_optimizers_says_what_gradients_say(tmp_path: Path) -> None:
    net = Net()
    optimizer = trained(net)
    ckpt.snapshot(net, tmp_path / "a.pth")
    optimizer.step()
    ckpt.snapshot(net, tmp_path / "b.pth")

    found = reasons(tmp_path / "a.pth", tmp_path / "b.pth")
    assert {name: cause for name, (cause, _) in found.items()} == {
        "frozen": "frozen",
        "unused": "no-gradient",
        "zero": "zero-gradient",
        "outside": "unknown",
        "slow": "unknown",
    }


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
def test_a_snapshot_before_any_gradient_says_only_what_is_frozen(after: bool, tmp_path: Path) -> None:
    """The other file is a bare state dict: the record of one side is enough."""
    net = Net()
    if not after:
        ckpt.snapshot(net, tmp_path / "a.pth")
    else:
        torch.save(net.state_dict(), tmp_path / "a.pth")
    with torch.no_grad():
        net.moved += 1
    if after:
        ckpt.snapshot(net, tmp_path / "b.pth")
    else:
        torch.save(net.state_dict(), tmp_path / "b.pth")

    found = reasons(tmp_path / "a.pth", tmp_path / "b.pth")
    assert found.pop("frozen") == FROZEN
    assert set(found) == {"unused", "zero", "outside", "slow"}
    assert {cause for cause, _ in found.values()} == {"unknown"}


def test_gradients_of_the_file_before_are_not_those_of_the_step(tmp_path: Path) -> None:
    net = Net()
    optimizer = trained(net)
    ckpt.snapshot(net, tmp_path / "a.pth", optimizer)
    optimizer.step()
    torch.save(net.state_dict(), tmp_path / "b.pth")

    found = reasons(tmp_path / "a.pth", tmp_path / "b.pth")
    assert found["frozen"] == FROZEN and found["zero"] == found["unused"] == UNKNOWN


def test_the_optimizer_of_the_file_after_is_asked(tmp_path: Path) -> None:
    """`outside` joins the optimizer between the files, and `slow` leaves it."""
    net = Net()
    optimizer = trained(net)
    ckpt.snapshot(net, tmp_path / "a.pth", optimizer)
    optimizer.step()
    other = torch.optim.SGD([net.frozen, net.unused, net.zero, net.moved, net.outside], lr=0.1)
    ckpt.snapshot(net, tmp_path / "b.pth", other)

    found = reasons(tmp_path / "a.pth", tmp_path / "b.pth")
    assert found["slow"][0] == "not-in-optimizer" and found["outside"][0] == "stepped"
