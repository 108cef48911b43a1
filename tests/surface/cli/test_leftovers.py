"""Statements that were wrong on the screen, and screens that stopped people: each as they would have met it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inside import inside
from process import check_error
from torch import nn

DDP = "Expected to have finished reduction. Parameter indices which did not receive grad for rank 0: 2 3"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two saves of a run in which one layer had no gradient."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"used": nn.Linear(4, 2), "idle": nn.Linear(4, 2)})
    adam = torch.optim.Adam(net.parameters())
    for epoch in (1, 3):
        for _ in range(2):
            adam.zero_grad()
            net["used"](torch.randn(8, 4)).square().sum().backward()
            adam.step()
        state = {"model": net.state_dict(), "optimizer": adam.state_dict(), "epoch": epoch}
        torch.save(state, tmp_path / f"e{epoch}.pth")
        torch.save({**state, "loss": -epoch}, tmp_path / f"other{epoch}.pth")
    return tmp_path


def test_a_diff_from_the_newer_save_to_the_older_one(run: Path) -> None:
    text = inside("diff", "e3.pth", "e1.pth", cwd=run).lines

    assert (
        "e3.pth is of a later epoch or step: if both are saves of one run, the older one comes first:" in text
    )
    assert "  ckpt diff e1.pth e3.pth" in text
    assert "later" not in inside("diff", "e1.pth", "e3.pth", cwd=run).out.decode()
    assert "later" not in inside("diff", "e1.pth", "e1.pth", cwd=run).out.decode()


def test_counters_that_do_not_agree_say_nothing_of_the_order(run: Path) -> None:
    for name, epoch, step in (("a", 3, 10), ("b", 1, 20)):
        torch.save(
            {"model": {"w.weight": torch.full((2,), float(step))}, "epoch": epoch, "global_step": step},
            run / f"{name}.pth",
        )

    assert "later" not in inside("diff", "a.pth", "b.pth", cwd=run).out.decode()


def test_an_explanation_by_saves_in_the_wrong_order(run: Path) -> None:
    check_error(
        inside("explain", DDP, "e3.pth", "e1.pth", cwd=run),
        "e3.pth: a later save than e1.pth (epoch 3 → 1), and the older one comes first (if both are saves of one run: "
        "ckpt explain message e1.pth e3.pth)",
    )
    assert inside("explain", DDP, "e1.pth", "e3.pth", cwd=run).code == 0


def test_tensors_without_values_are_not_called_the_same(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.empty(3, device="meta"), "a.bias": torch.ones(2)}, tmp_path / "a.pth")

    done = inside("diff", "a.pth", "a.pth", cwd=tmp_path)

    assert done.code == 0
    assert done.lines[-1] == (
        "same, but for the values of 1 tensor on the device meta, which neither file holds: 2 tensors"
    )


TIED = torch.arange(8.0).reshape(4, 2)


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """A model with a head that is tied to its embedding, and the same written under one name."""
    fc = {"fc.weight": torch.ones(2, 2)}
    torch.save({"emb.weight": TIED, **fc, "head.weight": TIED}, tmp_path / "both.pth")
    torch.save({"emb.weight": TIED + 2, **fc}, tmp_path / "one.pth")
    torch.save({"emb.weight": TIED + 2, **fc, "head.weight": TIED}, tmp_path / "apart.pth")
    return tmp_path


def test_an_average_of_a_tied_head_and_one_under_one_name(heads: Path) -> None:
    assert inside("average", "one.pth", "both.pth", "-o", "a.pth", cwd=heads).code == 0
    done = inside("average", "both.pth", "one.pth", "-o", "b.pth", cwd=heads)

    assert "left out: head.weight of both.pth: tied to emb.weight, which is averaged" in done.lines
    two, one = torch.load(heads / "a.pth"), torch.load(heads / "b.pth")
    assert list(two) == ["emb.weight", "fc.weight", "head.weight"] and list(one) == [
        "emb.weight",
        "fc.weight",
    ]
    for found in (two["emb.weight"], two["head.weight"], one["emb.weight"]):
        assert torch.equal(found, TIED + 1)
    assert two["emb.weight"].data_ptr() == two["head.weight"].data_ptr()


@pytest.mark.parametrize(
    "names", [("apart.pth", "both.pth"), ("apart.pth", "one.pth"), ("one.pth", "apart.pth")]
)
def test_a_head_of_its_own_is_not_taken_for_a_tied_one(names: tuple[str, str], heads: Path) -> None:
    check_error(inside("average", *names, "-o", "c.pth", cwd=heads), "head.weight")
