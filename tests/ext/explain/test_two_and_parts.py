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
from answered import Answered, weights
from inside import folder_of
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


# --- a part alone ---------------------------------------------------------------------


def transducer() -> State:
    return weights(
        encoder_embed__conv__weight=(4, 1, 3, 3),
        encoder__layers__0__weight=(4, 4),
        encoder__layers__0__bias=(4,),
        decoder__embedding__weight=(9, 4),
        joiner__weight=(9, 4),
    )


def taken(found: Answered, model: nn.Module, begin: str) -> None:
    """Run the only line that takes a part below a beginning."""
    (line,) = [row for row in found.commands if begin in row and "removeprefix" in row]
    with folder_of(found.folder):
        exec(line, {"torch": torch, "model": model})


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])


def test_the_encoder_alone_beside_words_of_what_is_not_wanted(tmp_path: Path) -> None:
    state = transducer()
    run = {
        "model": state,
        "optimizer": stepped(state),
        "grad_scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 5},
        "model_avg": {name: value.double() for name, value in state.items()},
        "sampler": None,
    }
    torch.save(run, tmp_path / "epoch-30.pt")
    text = (
        "How to load the checkpoint only the encoder part? can i only load the "
        "parameters from the encoder without loading the optimizer, scheduler, "
        "grad_scaler, or sampler? Will this hurt the performance?"
    )
    found = Answered(text, tmp_path / "epoch-30.pt")
    model = Encoder()
    taken(found, model, '["model"]')
    assert torch.equal(model.layers[0].weight, state["encoder.layers.0.weight"])
    assert "encoder_embed. begins with the word too" in found.said
    assert "the optimizer, the schedule, the scaler and the sampler are for" in (
        found.said
    )
    assert "float16 by autocast" not in found.said


def test_the_encoder_of_two_networks_that_are_keys(tmp_path: Path) -> None:
    inner = weights(encoder__layers__0__weight=(4, 4), projector__weight=(2, 4))
    inner |= weights(encoder__layers__0__bias=(4,), projector__bias=(2,))
    run = {
        "online_network": {f"module.{name}": value for name, value in inner.items()},
        "target_network": {f"module.{name}": value for name, value in inner.items()},
        "predictor": weights(weight=(4, 4)),
        "epoch": 300,
    }
    torch.save(run, tmp_path / "byol.pth")
    text = (
        "I want to extract features and I don't fully understand which part of the "
        "saved checkpoint is the encoder that I should use."
    )
    found = Answered(text, tmp_path / "byol.pth")
    model = Encoder()
    taken(found, model, '["online_network"]')
    assert torch.equal(model.layers[0].weight, inner["encoder.layers.0.weight"])
    assert "target_network" in found.said and "follows the one" in found.said
    assert any('["target_network"]' in command for command in found.commands)


def test_a_part_by_the_word_of_its_key(tmp_path: Path) -> None:
    upstream = weights(model__layers__0__weight=(4, 4), model__proj__weight=(4, 4))
    run = {
        "Downstream": weights(projector__weight=(4, 4), linear__weight=(2, 4)),
        "Upstream": upstream,
        "Optimizer": stepped(upstream),
        "Step": 20_000,
    }
    torch.save(run, tmp_path / "dev-best.ckpt")
    text = (
        "after the fine-tuning, how can we get the updated upstream model from this "
        "ckpt? is there a way to separate the Upstream again?"
    )
    found = Answered(text, tmp_path / "dev-best.ckpt")
    assert 'torch.load("dev-best.ckpt", map_location="cpu")["Upstream"]' in (
        found.commands
    )
    assert torch.load(found.run("ckpt slim dev-best.ckpt")).keys() == upstream.keys()
