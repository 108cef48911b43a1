"""Questions about a module of the file by its name, each with the file: was it trained,
how is it renamed, is it there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


class Net(nn.Module):
    """A stem with a norm, and two heads of which `forward` calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        self.fc = nn.Linear(6, 3)
        self.aux = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(self.stem(x))
        return result


def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The checkpoint after two steps."""
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}


def saved(state: dict[str, Any], folder: Path) -> Path:
    torch.save(state, folder / "run.pth")
    return folder / "run.pth"


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    net = Net()
    return saved(train(net, torch.optim.AdamW(net.parameters())), tmp_path)


NEVER = "aux has 2 parameters. All of them have no state in optimizer"


@pytest.mark.parametrize(
    "question",
    [
        "did the aux head train?",
        "was aux trained?",
        "are the AUX weights still random?",
        "Has aux ever had gradients",
        "is aux.weight frozen?",
    ],
)
def test_a_module_without_state_was_never_trained(question: str, trained: Path) -> None:
    answer = Answered(question, trained)

    assert answer.code == 0
    if "aux." not in question:
        assert answer.said.startswith(NEVER)
        assert answer.names == ["aux.weight", "aux.bias"]
    assert "where 6 others have some: no step of it ever saw a gradient" in answer.said
    assert "ckpt diff OLDER run.pth" in answer.commands


def test_a_module_with_state_had_gradients(trained: Path) -> None:
    answer = Answered("did the stem learn anything?", trained)

    assert "stem has 4 parameters. All of them have state in optimizer" in answer.said
    assert "The running statistics of stem.1 are buffers" in answer.said
    assert "no step" not in answer.said


def test_one_parameter_is_it(trained: Path) -> None:
    answer = Answered("did fc.bias change?", trained)
    assert "fc.bias has 1 parameter. It has state in optimizer" in answer.said


def test_a_module_that_the_optimizer_has_not(tmp_path: Path) -> None:
    net = Net()
    for parameter in net.stem.parameters():
        parameter.requires_grad = False
    rest = [*net.fc.parameters(), *net.aux.parameters()]
    path = saved(train(net, torch.optim.AdamW(rest)), tmp_path)

    answer = Answered("was the stem frozen?", path)

    assert (
        "All of them are not in optimizer, so no step of it changes them" in answer.said
    )
    assert len(answer.names) == 4


def test_state_that_only_the_order_names_is_said_so(tmp_path: Path) -> None:
    """Two heads of one shape: the one that was called is the second."""

    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.two(x)
            return result

    net = Twins()
    path = saved(train(net, torch.optim.AdamW(net.parameters())), tmp_path)

    answer = Answered("was one trained?", path)

    order = "If optimizer got model.parameters(), all of them have no state"
    assert f"one has 2 parameters. {order}" in answer.said


def test_an_optimizer_without_state_says_nothing(tmp_path: Path) -> None:
    net = Net()
    path = saved(train(net, torch.optim.SGD(net.parameters(), lr=0.1)), tmp_path)

    answer = Answered("was aux trained?", path)

    assert "Nothing in the file says whether a training changed them" in answer.said
    assert "never" not in answer.said and "no step of it" not in answer.said


def test_weights_alone_say_nothing(tmp_path: Path) -> None:
    answer = Answered("was aux trained?", saved(Net().state_dict(), tmp_path))
    assert "this file has no optimizer that fits it" in answer.said


def test_words_of_any_question_are_no_modules(tmp_path: Path) -> None:
    state = {"in.weight": torch.ones(2, 2), "Enc.weight": torch.ones(2, 3)}

    answer = Answered("was enc trained in this run?", saved(state, tmp_path))

    assert answer.said.startswith("Enc has 1 parameter.")


def test_statistics_alone_are_no_parameters(tmp_path: Path) -> None:
    norm = {"norm.running_mean": torch.ones(3), "norm.running_var": torch.ones(3)}
    path = saved({**norm, "fc.weight": torch.ones(2, 3)}, tmp_path)

    answer = Answered("was the norm trained?", path)

    assert "norm holds 2 buffers and no parameter" in answer.said


def test_a_module_of_the_second_model_is_found(tmp_path: Path) -> None:
    """A GAN: the optimizer is that of the discriminator."""
    net = Net()
    trained = train(net, torch.optim.AdamW(net.parameters()))
    generator = {"up.weight": torch.ones(3, 5), "up.bias": torch.ones(3)}
    state = {"generator": generator, "discriminator": trained["model"]}
    path = saved({**state, "optimizer": trained["optimizer"]}, tmp_path)

    answer = Answered("was aux trained?", path)
    renamed = Answered("how do I rename stem to body?", path)
    has = Answered("does it contain batch norm statistics?", path)

    assert "aux has 2 parameters. All of them have no state" in answer.said
    out = torch.load(renamed.run("ckpt rename"))["discriminator"]
    assert "body.0.weight" in out
    assert "generator has no running statistics" in has.said
    assert "discriminator has 2 tensors of that kind" in has.said


def test_a_module_that_is_all_of_the_file(tmp_path: Path) -> None:
    state = {"enc.weight": torch.ones(2, 3), "enc.bias": torch.ones(2)}
    answer = Answered("was enc trained?", saved(state, tmp_path))
    assert "enc has 2 parameters. Nothing in the file says" in answer.said


def test_an_optimizer_before_its_first_step(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    answer = Answered("was aux trained?", saved(state, tmp_path))

    assert "optimizer has no state that would say it" in answer.said


def test_how_to_load_a_module_is_another_question(trained: Path) -> None:
    answer = Answered("how do I load the stem that was trained?", trained)
    assert "gradient" not in answer.said


# --- another name ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "old", "new"),
    [
        ("how do I rename stem to backbone?", "stem.", "backbone."),
        ("How can I rename `stem.1` -> `stem.norm`?", "stem.1.", "stem.norm."),
    ],
)
def test_a_module_gets_another_name(
    question: str, old: str, new: str, trained: Path
) -> None:
    answer = Answered(question, trained)

    out = torch.load(answer.run("ckpt rename"))["model"]

    before = torch.load(trained)["model"]
    assert list(out) == [name.replace(old, new) for name in before]
    assert answer.names == [name for name in before if name.startswith(old)]


def test_a_name_that_is_taken_is_said(trained: Path) -> None:
    answer = Answered("how do I rename aux to fc?", trained)

    assert "fc is taken: two tensors would have one name" in answer.said
    assert not [row for row in answer.commands if row.startswith("ckpt rename")]


# --- is it there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "said", "count"),
    [
        ("does it contain batch norm statistics?", "model has 2 tensors of that", 2),
        ("does this file have biases?", "model has 4 tensors of that kind: bias", 4),
        ("does the checkpoint include the aux head?", "aux is in model, with 2", 2),
        ("is there an lm_head in it?", "model has no output layer of a language", 0),
        ("does it have position embeddings?", "model has no table of positions", 0),
        ("does it have embeddings?", "model has no table of embeddings", 0),
    ],
)
def test_what_is_there_is_counted(
    question: str, said: str, count: int, trained: Path
) -> None:
    answer = Answered(question, trained)

    assert said in answer.said
    assert len(answer.names) == count
