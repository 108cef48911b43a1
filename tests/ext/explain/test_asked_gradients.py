"""Questions for the parameters that had no gradient, and for the optimizer with which a
run can go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import oracle
import pytest
import torch
from answered import Answered
from process import ckpt
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


LINE = "Parameter indices which did not receive grad for rank 0: "


def save_halves(
    path: Path, make: Callable[..., torch.optim.Optimizer], layers: int = 4
) -> Path:
    """Save a run in which each second one of some layers of one shape had no
    gradient.
    """
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(layers))
    optimizer = make(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        nn.Sequential(*model[::2])(torch.randn(2, 3)).sum().backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path)
    return path


def test_a_gradient_that_the_order_alone_tells_has_a_sign(tmp_path: Path) -> None:
    save_halves(tmp_path / "a.pth", torch.optim.Adam)
    lines = ckpt("inspect", "a.pth", "--index", "3,7", cwd=tmp_path).lines
    assert lines[1].split()[-1] == "never?"
    assert "?: if the optimizer got model.parameters()." in lines
    rows = json.loads(
        ckpt("inspect", "a.pth", "--index", "3,7", "--json", cwd=tmp_path).out
    )["index"]["names"]
    assert [row["had_gradient"] for row in rows] == [None, None]


def test_names_that_rest_on_never_have_the_word(tmp_path: Path) -> None:
    save_halves(tmp_path / "a.pth", torch.optim.Adam)
    done = ckpt("explain", f"{LINE}2 3 6 7", "a.pth", cwd=tmp_path)
    rows = [line for line in done.lines if line.lstrip()[:1].isdigit()]
    assert [row.split()[-1] for row in rows] == ["never"] * 4
    assert "Never a gradient: not used in forward" in " ".join(done.lines)


def test_names_that_rest_on_never_have_the_word_in_groups_too(tmp_path: Path) -> None:
    """Groups of layers with one shape: nothing tells which state is whose."""

    def in_groups(
        parameters: Iterable[nn.Parameter], lr: float
    ) -> torch.optim.Optimizer:
        rows = list(parameters)
        groups = [{"params": rows[:2]}, {"params": rows[2:4]}, {"params": rows[4:]}]
        return torch.optim.Adam(groups, lr=lr)

    save_halves(tmp_path / "a.pth", in_groups, layers=5)
    done = ckpt("explain", f"{LINE}2 3 6 7", "a.pth", cwd=tmp_path)
    rows = [line for line in done.lines if line.lstrip()[:1].isdigit()]
    assert [row.split()[-1] for row in rows] == ["never"] * 4


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ("0 1", "4 other parameters never had a gradient, and the message does not "),
        ("0 1", "name them: they are frozen, or DDP's own search found them "),
        ("2 3 6 7", ""),
    ],
)
def test_a_message_that_leaves_out_what_never_had_a_gradient(
    numbers: str, said: str, tmp_path: Path
) -> None:
    path = save_halves(tmp_path / "a.pth", torch.optim.Adam)
    found = Answered(f"{LINE}{numbers}", path)
    assert found.code == 0
    if said:
        assert said in found.said
        assert "the message and the file are not of one run" in found.said
    else:
        assert "of one run" not in found.said


def test_what_ddp_counts_is_not_called_frozen(tmp_path: Path) -> None:
    """The last number shows that DDP counts all parameters of the optimizer."""
    model = Network()
    optimizer = torch.optim.Adam([*model.parameters()])
    model.head(model.body(torch.randn(3, 4))).sum().backward()
    model.extra.bias.grad = torch.ones(5)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "a.pth")
    found = Answered(f"{LINE}5", tmp_path / "a.pth")
    assert "By this file 1 other parameter never had a gradient" in found.said
    assert "DDP counts all, and its first one came in the step" in found.said


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (torch.optim.Adam, "momentum", "optimizer is Adam-like: its groups"),
        (
            lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
            "step",
            "optimizer is one with momentum: its groups",
        ),
    ],
)
def test_an_optimizer_that_lacks_a_key_is_named(
    make: Callable[..., torch.optim.Optimizer], name: str, said: str, tmp_path: Path
) -> None:
    found = Answered(f"KeyError: '{name}'", save_run(tmp_path / "a.pth", make))
    assert said in found.said


@pytest.mark.parametrize(
    "text", ["how many tensors are in this file?", "how many weights does it have?"]
)
def test_tensors_are_counted_where_a_question_asks(text: str, tmp_path: Path) -> None:
    found = Answered(text, save_run(tmp_path / "a.pth", torch.optim.Adam))
    assert found.code == 0
    assert "model has 79 parameters in 6 tensors" in found.said


def test_weights_below_a_key_are_not_beside_the_weights(tmp_path: Path) -> None:
    """A run of DINO has two models, and a part that is none."""
    state = {name: Network().state_dict() for name in ("student", "teacher")}
    loss = {"center": torch.zeros(1, 8)}
    path = tmp_path / "a.pth"
    torch.save({**state, "epoch": 3, "dino_loss": loss}, path)

    found = Answered("which one should I use, student or teacher?", path)
    assert found.code == 0
    assert "beside the weights" not in found.said
    assert "the optimizer trained student, and teacher followed it" in found.said
    assert any(line.endswith('["teacher"]') for line in found.commands)

    found = Answered("is dino_loss needed?", path)
    assert "dino_loss is a part with 1 item at the root of this file" in found.said
