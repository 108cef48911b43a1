"""Errors of DDP before the first step, as two processes of torch 2.13 raise them."""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
from answered import Answered
from torch import nn

pytestmark = oracle.QUIET


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A save of four parameters with a norm, whose buffers are none."""
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    torch.save(net.state_dict(), tmp_path / "net.pth")
    return tmp_path / "net.pth"


def counted(first: int, second: int) -> str:
    """The error of rank 1."""
    return (
        f"RuntimeError: DDP expects same model across all ranks, but Rank 1 has {first} "
        f"params, while rank 0 has inconsistent {second} params."
    )


def sized(number: int, sizes: str, what: str = "sizes") -> str:
    return (
        f"[rank1]: RuntimeError: [1]: params[{number}] in this process with sizes "
        f"[{sizes}] appears not to match {what} of the same param in process 0."
    )


def test_the_number_of_the_file_says_which_rank_differs(file: Path) -> None:
    found = Answered(counted(2, 4), file)
    assert "Rank 1 has 2 parameters that require a gradient, and rank 0 has 4" in (
        found.said
    )
    assert (
        "The file has 4 parameters: the rank with 2 built another model" in found.said
    )
    assert "the rank with 5 built" in Answered(counted(4, 5), file).said
    assert "The file has" not in Answered(counted(7, 9), file).said


def test_sizes_that_the_file_has_at_that_place(file: Path) -> None:
    found = Answered(sized(2, "3"), file)
    assert "params[2] is 1.weight, and the file has it with these sizes" in found.said
    assert "process 0 built another model" in found.said


def test_sizes_that_no_parameter_has(file: Path) -> None:
    found = Answered(sized(0, "2, 3"), file)
    assert (
        "No parameter of the file from the place 0 on has the sizes [2, 3]: the process "
        "that stopped built another model" in found.said
    )


def test_a_place_that_frozen_layers_may_move_is_not_named(file: Path) -> None:
    """`0.weight` [3, 2] stands first, and `0.bias` [3] may be params[0]."""
    said = Answered(sized(0, "3"), file).said
    assert "If nothing is frozen" not in said and "No parameter" not in said
    assert "They build different models" in said


def test_strides_are_no_other_model(file: Path) -> None:
    found = Answered(sized(0, "3, 2", "strides").replace("[1]: ", "", 1), file)
    assert "channels_last" in found.said
    assert "built another model" not in found.said


def test_a_line_that_a_terminal_wrapped(file: Path) -> None:
    text = (
        counted(2, 4).replace("while rank", "while\n  rank").replace(" Rank", "\nRank")
    )
    assert "The file has 4 parameters" in Answered(text, file).said
