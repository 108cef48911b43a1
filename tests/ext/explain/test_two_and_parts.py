"""Questions about two files, and about one part of a file: the part that differs, the
later one of two saves, the encoder alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import weights
from process import ckpt
from torch import Tensor, nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]

State = dict[str, Tensor]


def asked(text: str, names: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """What is said to a question about several files, and the commands in it."""
    done = ckpt("explain", text, *names, "--json", cwd=folder)
    assert done.code == 0, done.err
    rows = json.loads(done.out)["answer"]["statements"]
    said = " ".join(row["text"] for row in rows)
    return said, [row["command"] for row in rows if row["command"]]


def stepped(state: State, lr: float = 0.1, **extra: Any) -> dict[str, Any]:
    """The state of an Adam that has made steps on some tensors."""
    parameters = [nn.Parameter(value.clone()) for value in state.values()]
    optimizer = torch.optim.Adam(parameters, lr)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    found = optimizer.state_dict()
    found["param_groups"][0].update(extra)
    return found


# --- two files ------------------------------------------------------------------------


def contrastive(*, is_trained_further: bool) -> State:
    """A model of pictures and texts, with the copies that follow it."""
    state = weights(
        visual_encoder__blocks__0__weight=(8, 8),
        text_encoder__layer__0__weight=(8, 8),
        text_encoder__layer__1__weight=(8, 8),
        text_proj__weight=(4, 8),
        itm_head__weight=(2, 8),
    )
    if not is_trained_further:
        return state
    for name in ("visual_encoder", "text_encoder", "text_proj"):
        for key in [key for key in state if key.startswith(f"{name}.")]:
            state[key.replace(name, f"{name}_m")] = state[key] * 1.01
    return state | weights(image_queue=(8, 200), text_queue=(8, 200))


def test_a_network_that_a_copy_follows_is_trained(tmp_path: Path) -> None:
    torch.save({"model": contrastive(is_trained_further=False)}, tmp_path / "a.pth")
    torch.save({"model": contrastive(is_trained_further=True)}, tmp_path / "b.pth")
    text = "a.pth has 800MB, but I get 1.69GB after running it? Could you tell me why?"
    said, commands = asked(text, ("a.pth", "b.pth"), tmp_path)
    assert "are models beside the one that is trained" not in said
    assert "are of the training alone" in said
    assert any(command.startswith("ckpt slim b.pth --exclude") for command in commands)


def test_tensors_of_one_file_alone_are_told_by_their_parts(tmp_path: Path) -> None:
    torch.save({"model": contrastive(is_trained_further=False)}, tmp_path / "a.pth")
    torch.save({"model": contrastive(is_trained_further=True)}, tmp_path / "b.pth")
    said, _ = asked("what is the difference?", ("a.pth", "b.pth"), tmp_path)
    assert "Only b.pth has model.visual_encoder_m (1 tensor)," in said
    assert "model.text_encoder_m (2 tensors)" in said


def test_weights_that_stayed_where_the_optimizer_moved(tmp_path: Path) -> None:
    state = weights(encoder__weight=(4, 4), seg__weight=(2, 4), seg__bias=(2,))
    for epoch in (50, 100):
        torch.save(
            {
                "network_weights": state,
                "optimizer_state": stepped(state),
                "current_epoch": epoch,
            },
            tmp_path / f"{epoch}.pth",
        )
    text = "the network weights of these two checkpoints are exactly the same, why?"
    said, _ = asked(text, ("50.pth", "100.pth"), tmp_path)
    assert "All 3 tensors of network_weights are the same in both" in said
    assert "the optimizer made steps between" in said


def test_weights_that_moved_are_no_such_case(tmp_path: Path) -> None:
    for epoch in (50, 100):
        state = weights(encoder__weight=(4, 4), seg__weight=(2, 4))
        run = {"model": state, "optimizer": stepped(state), "epoch": epoch}
        torch.save(run, tmp_path / f"{epoch}.pth")
    said, _ = asked("are they the same?", ("50.pth", "100.pth"), tmp_path)
    assert "made steps between" not in said


WHICH = "There are two files. Which one is the better one, and what is the difference?"


@pytest.mark.parametrize("order", [("a_end.tar", "a.tar"), ("a.tar", "a_end.tar")])
def test_the_later_of_two_saves_is_told(order: tuple[str, str], tmp_path: Path) -> None:
    state = weights(fc__weight=(4, 4))
    early = {"model": state, "epoch": 7, "val": {"map": 0.0912}}
    torch.save(early, tmp_path / "a.tar")
    late = {"model": weights(fc__weight=(4, 4)), "epoch": 10}
    torch.save(late, tmp_path / "a_end.tar")
    said, _ = asked(WHICH, order, tmp_path)
    assert "So a_end.tar is the later save of the two (epoch 7 → 10)" in said
    assert "a.tar alone records a result (val.map 0.0912)" in said


@pytest.mark.parametrize(
    ("metric", "numbers", "better"),
    [("best_acc", (0.9, 0.8), "a.pth"), ("val_loss", (0.9, 0.8), "b.pth")],
)
def test_the_better_of_two_saves_is_that_of_the_better_number(
    metric: str, numbers: tuple[float, float], better: str, tmp_path: Path
) -> None:
    for name, number in zip(("a.pth", "b.pth"), numbers, strict=True):
        run = {"model": weights(fc__weight=(4, 4)), "epoch": 3, metric: number}
        torch.save(run, tmp_path / name)
    said, _ = asked(WHICH, ("a.pth", "b.pth"), tmp_path)
    assert f"By {metric} {better} is the better one" in said


def test_files_without_counters_say_so(tmp_path: Path) -> None:
    for name in ("a.pth", "b.pth"):
        torch.save(weights(fc__weight=(4, 4)), tmp_path / name)
    said, _ = asked(WHICH, ("a.pth", "b.pth"), tmp_path)
    assert "Neither file records an epoch, a step or a result" in said
