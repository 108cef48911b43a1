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
    """The answer to a question about several files, and the commands in it."""
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


# --- numbers of a question ------------------------------------------------------------


def speakers(count: int) -> State:
    return weights(conv1__weight=(8, 1, 3, 3), seg_1__weight=(16, 64)) | {
        "projection.weight": torch.randn(count, 16)
    }


def test_rows_of_some_classes(tmp_path: Path) -> None:
    state = speakers(1_858)
    torch.save(state, tmp_path / "model_150.pt")
    text = (
        "I would like to begin from the pretrained weights. How can I extract the "
        "weights for the required 200 classes from the original 1858 classes?"
    )
    found = Answered(text, tmp_path / "model_150.pt")
    assert "1,858 is the number of rows of projection.weight ([1858, 16])" in found.said
    (line,) = [command for command in found.commands if "range(200)" in command]
    names: dict[str, Any] = {"torch": torch}
    with folder_of(tmp_path):
        exec(line, names)
    rows = names["state"]["projection.weight"]
    assert torch.equal(rows, state["projection.weight"][:200])


def test_a_number_that_is_a_multiple_of_the_expected_one(tmp_path: Path) -> None:
    torch.save(speakers(1_797), tmp_path / "avg_model.pt")
    text = (
        "I find the num_class of projections is 1797 because of the shape of "
        "projection.weight. I am just curious why 1797 instead of 599?"
    )
    found = Answered(text, tmp_path / "avg_model.pt")
    assert "1,797 is the number of rows of projection.weight" in found.said
    assert "1,797 is 3 times 599" in found.said


def test_a_number_that_no_tensor_has_is_not_told(tmp_path: Path) -> None:
    state = speakers(1_797)
    torch.save({"model": state, "optimizer": stepped(state)}, tmp_path / "a.pt")
    text = (
        "how many speakers was the pre-trained model trained with? the speaker ID "
        "vector of the demo has a size of 82"
    )
    found = Answered(text, tmp_path / "a.pt")
    assert "82 is" not in found.said
    # A size of 82 is no number of bytes.
    assert "The tensors of this file take" not in found.said


# --- a run that goes on ---------------------------------------------------------------


def test_a_file_without_an_optimizer_cannot_give_it_back(tmp_path: Path) -> None:
    run = {
        "state_dict": weights(encoder__weight=(4, 4)),
        "opts": {"learning_rate": 0.0001, "checkpoint_path": None},
        "latent_avg": torch.randn(4),
    }
    torch.save(run, tmp_path / "iteration_200000.pt")
    text = (
        "Did you resume learning rate and optimizer phase by 'checkpoint_path'? If "
        "not, how do we resume learning rate and optimizer phase?"
    )
    found = Answered(text, tmp_path / "iteration_200000.pt")
    assert "This file holds no optimizer" in found.said
    assert "its moments begin anew too" in found.said
    assert any('"optimizer": optimizer.state_dict()' in row for row in found.commands)


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_a_warm_up_after_a_resume(has_optimizer: bool, tmp_path: Path) -> None:
    state = weights(layers__0__weight=(4, 4), head__weight=(9, 4))
    run: dict[str, Any] = {"model": state, "step": 1000}
    if has_optimizer:
        run["optimizer"] = stepped(state, initial_lr=0.2)
    torch.save(run, tmp_path / "a.pt")
    text = (
        "When I load the checkpoint and continue training at the previous learning "
        "rate, the loss increases sharply, so I have to warm up. Is this normal?"
    )
    found = Answered(text, tmp_path / "a.pt")
    assert ("needs no warm-up" in found.said) is has_optimizer
    assert ("a short warm-up is right" in found.said) is not has_optimizer


def test_statistics_are_not_paired_with_weights(tmp_path: Path) -> None:
    state: State = {}
    model: State = {}
    for number in range(10, 13):
        block = f"model.{number}.conv_block"
        for at in (1, 6):
            model[f"{block}.{at}.weight"] = torch.randn(4, 4, 3, 3)
        for at in (1, 5):
            state[f"{block}.{at}.weight"] = torch.randn(4, 4, 3, 3)
            state[f"{block}.{at + 1}.running_mean"] = torch.randn(4)
            state[f"{block}.{at + 1}.running_var"] = torch.rand(4)
    torch.save(state, tmp_path / "latest_net_G.pth")
    text = "RuntimeError: Error(s) in loading state_dict for ResnetGenerator:\n"
    for kind, one, other in (("Missing", model, state), ("Unexpected", state, model)):
        names = ", ".join(f'"{name}"' for name in one if name not in other)
        text += f"\t{kind} key(s) in state_dict: {names}. \n"
    found = Answered(text, tmp_path / "latest_net_G.pth")
    assert (
        "model.10.conv_block.5.weight of the file is model.10.conv_block.6.weight"
    ) in found.said


# --- an optimizer of another package, and a command once ------------------------------


def test_the_step_of_an_optimizer_of_another_package(tmp_path: Path) -> None:
    state = weights(fc__weight=(4, 4))
    run = {"state_dict": state, "optimizer_states": [stepped(state)]}
    torch.save(run, tmp_path / "last.ckpt")
    text = (
        "Traceback (most recent call last):\n"
        '  File "/site-packages/pytorch_optimizer/optimizer/prodigy.py", line 171, in '
        "step\n    d_de_nom.add_(s.abs().sum())\n"
        "RuntimeError: Expected all tensors to be on the same device, but found at "
        "least two devices, cuda:1 and cpu!\n"
    )
    found = Answered(text, tmp_path / "last.ckpt")
    assert "The step of an optimizer stopped" in found.said
    assert not any("lint" in command for command in found.commands)


def test_a_load_is_printed_once(tmp_path: Path) -> None:
    state: State = {}
    model: State = {}
    for number in range(3):
        mixer = f"model.stages.0.{number}.token_mixer"
        for name, shape in (
            ("AT_log", (8, 4)),
            ("D", (8,)),
            ("x_proj.weight", (12, 8)),
        ):
            state[f"{mixer}.{name}"] = torch.randn(shape)
            model[f"{mixer}.mamba.{name}"] = torch.randn(shape)
        state[f"{mixer}.local_path.pwconv1.weight"] = torch.randn(16, 8)
        model[f"{mixer}.local.pwconv1.weight"] = torch.randn(16, 8)
        state[f"{mixer}.local_norm.weight"] = torch.randn(8)
    torch.save({"state_dict": state}, tmp_path / "a.ckpt")
    text = "RuntimeError: Error(s) in loading state_dict for Classifier:\n"
    for kind, one, other in (("Missing", model, state), ("Unexpected", state, model)):
        names = ", ".join(f'"{name}"' for name in one if name not in other)
        text += f"\t{kind} key(s) in state_dict: {names}. \n"
    found = Answered(text, tmp_path / "a.ckpt")
    loads = [row for row in found.commands if row.endswith(".load_into(model)")]
    assert len(loads) == 1


def test_no_load_below_a_warning_of_it(tmp_path: Path) -> None:
    def policy(inputs: int) -> State:
        return weights(
            actor__encoder__0__weight=(30, inputs),
            actor__backbone__0__weight=(64, inputs + 20),
            actor__backbone__2__weight=(12, 64),
            critic__backbone__0__weight=(64, inputs + 18),
        )

    state, model = policy(71), policy(66)
    torch.save({"model_state_dict": state, "iter": 42_000}, tmp_path / "model.pt")
    text = "RuntimeError: Error(s) in loading state_dict for ActorCritic:\n"
    for name, value in model.items():
        if state[name].shape != value.shape:
            text += (
                f"\tsize mismatch for {name}: copying a param with shape "
                f"{state[name].shape} from checkpoint, the shape in current model is "
                f"{value.shape}.\n"
            )
    found = Answered(text, tmp_path / "model.pt")
    assert "a load of what fits leaves these layers untrained" in found.said
    assert not any(".load_into(model)" in command for command in found.commands)
