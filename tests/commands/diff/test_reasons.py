"""Why a parameter did not change, as a snapshot of the live model tells it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import oracle
import pytest
import torch
from inside import inside
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
    groups = [
        {"params": [net.frozen, net.unused, net.zero, net.moved]},
        {"params": [net.slow], "lr": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    net().backward()
    return optimizer


def reasons(before: Path, after: Path) -> dict[str, tuple[str, str]]:
    """The cause and the text of each tensor that stands in a comparison with a
    reason.
    """
    rows = ckpt.diff(before, after).rows
    return {
        (row.after or row.before).name.rpartition(".")[2]: (
            str(row.cause),
            str(row.reason),
        )
        for row in rows
        if row.reason is not None and (row.after or row.before) is not None
    }


FROZEN = ("frozen", "frozen (requires_grad is False)")
UNKNOWN = (
    "unknown",
    "did not change; these files cannot say why (ckpt.snapshot records it)",
)


def test_a_snapshot_with_gradients_and_optimizers_knows_every_reason(
    tmp_path: Path,
) -> None:
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
            (
                "has a gradient (norm 2), but the update is smaller than float32 can "
                "represent, or lr is 0"
            ),
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
def test_a_snapshot_before_any_gradient_says_only_what_is_frozen(
    after: bool, tmp_path: Path
) -> None:
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
    other = torch.optim.SGD(
        [net.frozen, net.unused, net.zero, net.moved, net.outside], lr=0.1
    )
    ckpt.snapshot(net, tmp_path / "b.pth", other)

    found = reasons(tmp_path / "a.pth", tmp_path / "b.pth")
    assert found["slow"][0] == "not-in-optimizer" and found["outside"][0] == "stepped"


# --- what the state of an optimizer says ----------------------------------------------


def two_saves(
    folder: Path, optimizer_of: Callable[[nn.Module], torch.optim.Optimizer]
) -> tuple[Path, Path]:
    """Two steps of a net in bfloat16: `small` moves by less than its values can show,
    `still` has no gradient in the second.
    """
    net = nn.ModuleDict(
        {name: nn.Linear(2, 2, bias=False) for name in ("large", "small", "still")}
    ).bfloat16()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(1.0)
        net["small"].weight.fill_(1024.0)
    optimizer = optimizer_of(net)
    paths = folder / "a.pth", folder / "b.pth"
    ones = torch.ones(1, 2, dtype=torch.bfloat16)
    for step, path in enumerate(paths):
        optimizer.zero_grad()
        loss = net["large"](ones).sum() + 1e-3 * net["small"](ones).sum()
        (loss + net["still"](ones).sum() if step == 0 else loss).backward()
        optimizer.step()
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path
        )
    return paths


def momentum(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def test_a_state_that_moved_says_that_the_step_was_too_small(tmp_path: Path) -> None:
    rows = ckpt.diff(*two_saves(tmp_path, momentum)).rows
    texts = {
        row.name.split(".")[1]: (row.cause, row.reason) for row in rows if row.reason
    }
    assert texts["small"] == (
        "stepped",
        (
            "stepped, for its momentum_buffer changed, but the update is smaller than "
            "bfloat16 can represent, or lr is 0"
        ),
    )
    assert texts["still"] == (
        "not-stepped",
        "had no gradient in between, its momentum_buffer stayed",
    )


DDP = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before "
    "starting a new one. Parameter indices which did not receive grad for rank 0: 2"
)


@pytest.mark.parametrize(
    "optimizer_of",
    [
        momentum,
        lambda net: torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0),
    ],
    ids=["SGD", "AdamW"],
)
def test_explain_counts_a_step_that_was_too_small_as_a_gradient(
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer], tmp_path: Path
) -> None:
    two_saves(tmp_path, optimizer_of)
    done = inside("explain", DDP, "a.pth", "b.pth", cwd=tmp_path)
    text = " ".join(" ".join(done.lines).split())
    assert "model.still.weight" in text and "do not fit" not in text
    assert (
        "1 parameter did not change since a.pth: they had no gradient, or are frozen."
        in text
    )
    assert "although the optimizer stepped" in text


def test_explain_does_not_rule_out_a_small_step_without_a_state(tmp_path: Path) -> None:
    two_saves(tmp_path, lambda net: torch.optim.SGD(net.parameters(), lr=0.01))
    done = inside("explain", DDP, "a.pth", "b.pth", cwd=tmp_path)
    text = " ".join(" ".join(done.lines).split())
    assert "they had no gradient, are frozen, or their step was too small" in text


@pytest.mark.parametrize(
    "exact", [True, False], ids=["equal after the cast", "rounded"]
)
def test_a_cast_freezes_nothing(exact: bool, tmp_path: Path) -> None:
    """One layer as FP8 beside others as they were: a quantization, after which nothing
    is frozen.
    """
    state = {f"{name}.weight": torch.randn(8, 8) for name in "abc"}
    if exact:
        state["a.weight"] = torch.ones(8, 8)
    torch.save(state, tmp_path / "a.pth")
    torch.save(
        {**state, "a.weight": state["a.weight"].to(torch.float8_e4m3fn)},
        tmp_path / "b.pth",
    )
    done = inside("diff", "a.pth", "b.pth", cwd=tmp_path)
    text = done.out.decode()
    assert (
        done.code == 1
        and "1 retyped" in text
        and "frozen" not in text
        and "stayed unchanged" not in text
    )
    report = ckpt.diff(tmp_path / "a.pth", tmp_path / "b.pth")
    assert (
        report.count("retyped") == 1
        and report.count("same") == 2
        and report.frozen == ()
    )
