"""Questions for the parameters that had no gradient, and for the optimizer with which a
run can go on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import oracle
import pytest
import torch
from answered import Answered
from torch import nn

pytestmark = oracle.QUIET


class Network(nn.Module):
    """A body, a head, and a head that the loss does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)
        self.extra = nn.Linear(6, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))  # type: ignore[no-any-return]


def save_run(
    path: Path, make: Callable[..., torch.optim.Optimizer], *, is_whole: bool = False
) -> Path:
    """Take three steps, and save the model and its optimizer."""
    model = Network()
    if is_whole:
        del model.extra
    optimizer = make(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).pow(2).sum().backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "which parameters got no gradient?",
        "which layers did not train?",
        "did all parameters get a gradient?",
        "what is unused?",
        "unused parameters",
        "parameters without gradient",
        "Which weights were never used in forward?",
        "哪些参数没有梯度",
    ],
)
def test_parameters_without_a_gradient_are_named(text: str, tmp_path: Path) -> None:
    found = Answered(text, save_run(tmp_path / "a.pth", torch.optim.Adam))
    assert found.code == 0
    assert "extra.{weight,bias} (2 parameters) never had a gradient" in found.said
    assert "each of them had a gradient" not in found.said
    assert "ckpt diff OLDER a.pth" in found.commands


def test_an_optimizer_without_state_says_nothing_of_gradients(tmp_path: Path) -> None:
    text = "which parameters got no gradient?"
    found = Answered(text, save_run(tmp_path / "a.pth", torch.optim.SGD))
    assert found.code == 0
    assert "keeps no state (SGD without momentum)" in found.said
    assert "ckpt diff OLDER a.pth" in found.commands


def test_that_each_parameter_had_a_gradient_is_said(tmp_path: Path) -> None:
    path = save_run(tmp_path / "a.pth", torch.optim.AdamW, is_whole=True)
    found = Answered("did all parameters get a gradient?", path)
    assert found.code == 0
    assert (
        "Each of the 4 parameters in optimizer has state there, so each of them had a "
        "gradient." in found.said
    )


@pytest.mark.parametrize(
    ("make", "name", "is_taken"),
    [
        (torch.optim.Adam, "SGD", False),
        (torch.optim.Adam, "AdamW", True),
        (torch.optim.SGD, "Adam", False),
        (torch.optim.RMSprop, "rmsprop", True),
        (torch.optim.RMSprop, "adamw", False),
    ],
)
def test_a_run_goes_on_with_an_optimizer_of_the_same_kind(
    make: Callable[..., torch.optim.Optimizer],
    name: str,
    is_taken: bool,
    tmp_path: Path,
) -> None:
    path = save_run(tmp_path / "a.pth", make)
    found = Answered(f"can I resume from this with {name}?", path)
    assert found.code == 0
    assert ("So a run can go on from it" in found.said) == is_taken
    assert ("is another kind: it does not take this state" in found.said) != is_taken

    model = Network()
    classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    classes |= {"adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
    optimizer = classes[name.lower()](model.parameters(), lr=0.01)

    def goes_on() -> None:
        optimizer.load_state_dict(torch.load(path)["optimizer"])
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()

    if is_taken:
        goes_on()
    else:
        with pytest.raises(KeyError):
            goes_on()
