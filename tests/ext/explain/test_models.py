"""A file of another size or kind than the model, a layer by another name, and a resume
that finds no optimizer.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered, raised
from torch import nn

pytestmark = oracle.QUIET


class Block(nn.Module):
    """A block of a transformer, with the names of timm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width)})
        self.mlp = nn.Linear(width, 4 * width)


class Vision(nn.Module):
    """A small transformer of pictures."""

    def __init__(self, width: int = 192, depth: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)


def resnet(counts: tuple[int, ...], *, bottleneck: bool) -> nn.Module:
    """A model with the names of a ResNet of torchvision, and tiny layers."""
    model = nn.Module()
    model.conv1 = nn.Conv2d(3, 4, 7)
    for number, count in enumerate(counts, 1):
        names = ["conv1", "conv2", *(["conv3"] if bottleneck else [])]
        blocks = [
            nn.ModuleDict({name: nn.Conv2d(2, 2, 1) for name in names})
            for _ in range(count)
        ]
        model.add_module(f"layer{number}", nn.Sequential(*blocks))
    return model


def net(**layers: nn.Module) -> nn.Module:
    return nn.ModuleDict({"conv": nn.Conv2d(2, 4, 3), **layers})


def loaded_into(model: nn.Module, saved: nn.Module, folder: Path) -> Answered:
    """Save one model, load it into another, and bring the message."""
    torch.save(saved.state_dict(), folder / "model.pth")
    state = torch.load(folder / "model.pth", weights_only=True)
    return Answered(raised(lambda: model.load_state_dict(state)), folder / "model.pth")


# --- size and kind --------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "other"), [(2, 4), (4, 2), (1, 12)])
def test_another_depth_is_named(depth: int, other: int, tmp_path: Path) -> None:
    found = loaded_into(Vision(depth=other), Vision(depth=depth), tmp_path)
    count = "1 block" if depth == 1 else f"{depth} blocks"
    assert found.said.startswith(
        f"The depth differs: {count} in the checkpoint and {other} in the model at "
        "blocks."
    )


def test_another_depth_does_not_hide_another_head(tmp_path: Path) -> None:
    found = loaded_into(Vision(depth=4, classes=5), Vision(), tmp_path)
    assert (
        "The depth differs" in found.said and "another number of classes" in found.said
    )


def test_layers_of_a_sequential_are_no_depth(tmp_path: Path) -> None:
    two = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    found = loaded_into(
        net(head=nn.Sequential(*two, nn.Linear(2, 2))), net(head=two), tmp_path
    )
    assert "depth" not in found.said and "not in this file" in found.said


@pytest.mark.parametrize(
    ("counts", "others", "names"),
    [
        ((3, 4, 6, 3), (3, 4, 23, 3), ("ResNet-50", "ResNet-101")),
        ((3, 8, 36, 3), (3, 4, 6, 3), ("ResNet-152", "ResNet-50")),
    ],
)
def test_two_deep_resnets_are_told_apart(
    counts: tuple[int, ...],
    others: tuple[int, ...],
    names: tuple[str, str],
    tmp_path: Path,
) -> None:
    saved, model = resnet(counts, bottleneck=True), resnet(others, bottleneck=True)
    found = loaded_into(model, saved, tmp_path)
    assert (
        f"The checkpoint looks like {names[0]}, and the model like {names[1]}."
        in found.said
    )
    assert "basic" not in found.said


@pytest.mark.parametrize("swapped", [False, True])
def test_basic_blocks_are_still_told_from_bottlenecks(
    swapped: bool, tmp_path: Path
) -> None:
    basic, bottleneck = (
        resnet((2, 2, 2, 2), bottleneck=False),
        resnet((3, 4, 6, 3), bottleneck=True),
    )
    saved, model = (bottleneck, basic) if swapped else (basic, bottleneck)
    found = loaded_into(model, saved, tmp_path)
    here, there = ("bottleneck", "basic") if swapped else ("basic", "bottleneck")
    assert (
        f"the checkpoint has {here} blocks, and the model {there} blocks" in found.said
    )


def test_another_width_is_named(tmp_path: Path) -> None:
    found = loaded_into(Vision(384), Vision(192), tmp_path)
    assert (
        "The model is wider than the checkpoint in 16 of these tensors, by the "
        "same factor (192"
    ) in found.said
    assert "The checkpoint looks like ViT-Ti, and the model like ViT-S." in found.said
    assert "number of classes" not in found.said
    other = loaded_into(Vision(48, classes=7), Vision(96), tmp_path)
    assert (
        "The model is narrower than the checkpoint" in other.said
        and "ViT" not in other.said
    )


@pytest.mark.parametrize(
    ("here", "there", "kinds"), [(3, 1, "colour"), (1, 3, "grey"), (6, 2, None)]
)
def test_another_kind_of_picture_is_named(
    here: int, there: int, kinds: str | None, tmp_path: Path
) -> None:
    saved, model = (
        nn.ModuleDict({"conv1": nn.Conv2d(count, 8, 7)}) for count in (here, there)
    )
    found = loaded_into(model, saved, tmp_path)
    assert (
        f"conv1.weight takes {here} channels in the checkpoint and {there} in the model"
        in found.said
    )
    assert ("looks like" in found.said) is (kinds is not None)
    assert kinds is None or f"the checkpoint looks like one for {kinds}," in found.said
    if (here, there) == (3, 1):
        (line,) = [
            command for command in found.commands if command.startswith("state[")
        ]
        state = torch.load(tmp_path / "model.pth")
        exec(line, {"state": state})
        model.load_state_dict(state)


def test_a_model_of_stable_diffusion_for_another_input_is_named(tmp_path: Path) -> None:
    saved, model = (
        nn.ModuleDict(
            {"input_blocks": nn.ModuleList([nn.ModuleList([nn.Conv2d(count, 8, 3)])])}
        )
        for count in (9, 4)
    )
    found = loaded_into(model, saved, tmp_path)
    assert (
        "the checkpoint looks like one for inpainting, and the model for text to image"
        in found.said
    )


# --- names ----------------------------------------------------------------------------


def test_the_only_layer_of_another_name_is_a_guess(tmp_path: Path) -> None:
    model = net(main_conv=nn.Linear(4, 3))
    found = loaded_into(model, net(conv1=nn.Linear(4, 3)), tmp_path)
    assert "This is a guess" in found.said and "bias [3], weight [3, 4]" in found.said
    model.load_state_dict(torch.load(found.run("ckpt rename")))


def test_two_layers_are_no_pair(tmp_path: Path) -> None:
    left = net(a1=nn.Linear(4, 3), b1=nn.Linear(4, 3))
    right = net(x1=nn.Linear(4, 3), y1=nn.Linear(4, 3))
    assert "guess" not in loaded_into(right, left, tmp_path).said
    assert (
        "guess"
        not in loaded_into(net(q=nn.Linear(4, 3)), net(z=nn.PReLU(4)), tmp_path).said
    )
    assert (
        "guess"
        not in loaded_into(net(q=nn.PReLU(3)), net(z=nn.PReLU(4)), tmp_path).said
    )


@pytest.mark.parametrize("with_rest", [False, True])
def test_a_part_of_a_larger_model_loads_by_the_printed_line(
    with_rest: bool, tmp_path: Path
) -> None:
    encoder = Vision()
    state = {
        f"model.backbone.encoder.{name}": value
        for name, value in encoder.state_dict().items()
    }
    if with_rest:
        state |= {
            "model.decoder.weight": torch.ones(3, 8),
            "criterion.weight": torch.ones(3),
        }
    path = tmp_path / "last.ckpt"
    torch.save(
        {"epoch": 1, "pytorch-lightning_version": "2.5", "state_dict": state}, path
    )
    found = Answered(raised(lambda: Vision().load_state_dict(state)), path)
    assert "model.backbone.encoder.* → *" in found.said
    lines = [line for line in found.commands if line.startswith("state = torch.load(")]
    assert len(lines) == with_rest
    for line in lines:
        model = Vision()
        exec(
            line.replace('"last.ckpt"', repr(str(path))),
            {"torch": torch, "model": model},
        )
        assert torch.equal(model.head.weight, encoder.head.weight)


# --- resuming -------------------------------------------------------------------------


def adam() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


WEIGHTS = nn.Linear(2, 2).state_dict()
RESUMED: dict[str, tuple[Any, str, str]] = {
    "no key": (
        {"g": WEIGHTS, "d": WEIGHTS},
        "KeyError: 'g_optim'",
        "No state of an optimizer is in this file.",
    ),
    "another key": (
        {"net": WEIGHTS, "opt": adam()},
        "KeyError: 'optimizer'",
        "By another name the file has one: opt is the state of an optimizer.",
    ),
    "two of them": (
        {"net": WEIGHTS, "opt_g": adam(), "opt_d": adam()},
        "KeyError: 'optimizer_state_dict'",
        (
            "By other names the file has them: opt_g and opt_d are the states of "
            "optimizers."
        ),
    ),
    "weights alone": (
        WEIGHTS,
        "KeyError: 'optimizer_state_dict'",
        "no epoch and no optimizer is in it",
    ),
    "in words": (
        {"state_dict": WEIGHTS, "epoch": 3},
        "ValueError: no optimizer state found",
        "No state of an",
    ),
    "in words, with one": (
        {"state_dict": WEIGHTS, "optim": adam()},
        "RuntimeError: Could not find optimizer state in the checkpoint",
        "optim is the state of an optimizer",
    ),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_the_optimizer_is_said_to_be_there_or_not(kind: str, tmp_path: Path) -> None:
    state, text, said = RESUMED[kind]
    torch.save(state, tmp_path / "last.pth")
    found = Answered(text, tmp_path / "last.pth")
    assert found.kind == "key" and said in found.said.replace(
        ", ", " and ", kind.count("two")
    )


NOT_FOUND = (
    "FileNotFoundError: Resume checkpoint not found. Please pass a valid checkpoint to "
    "resume from, i.e. 'yolo"
)
ULTRALYTICS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no epochs": (
        {"epoch": 3, "train_args": {"epochs": 0}},
        "ValueError: 'epochs=0' is an invalid value.",
        "epochs is 0",
    ),
    "finished": (
        {"epoch": -1, "train_args": {"epochs": 9}},
        "9 epochs is finished, nothing to resume",
        "epoch is -1",
    ),
    "finished, not found": (
        {"epoch": -1, "train_args": {"epochs": 9}},
        NOT_FOUND,
        "of a finished run",
    ),
    "no settings": ({"epoch": 3}, NOT_FOUND, "This file has no train_args"),
    "all there": (
        {"epoch": 3, "train_args": {"epochs": 9}},
        NOT_FOUND,
        "it is not what lacks",
    ),
    "reached": (
        {"epoch": 9, "train_args": {"epochs": 9}},
        "epochs is finished, nothing to resume",
        "epoch is 9 of 9",
    ),
}


@pytest.mark.parametrize("kind", ULTRALYTICS)
def test_ultralytics_is_told_what_it_can_resume(kind: str, tmp_path: Path) -> None:
    state, text, said = ULTRALYTICS[kind]
    torch.save(
        {"ema": OrderedDict(WEIGHTS), "optimizer": None, **state}, tmp_path / "last.pt"
    )
    found = Answered(text, tmp_path / "last.pt")
    assert found.kind == "finished" and said in found.said


@pytest.mark.parametrize(
    "text",
    [
        (
            "tar: This does not look like a tar archive\ntar: Exiting with failure "
            "status due to previous errors"
        ),
        "gzip: checkpoint.pth.tar: not in gzip format",
        "tarfile.ReadError: file could not be opened successfully",
        (
            "  End-of-central-directory signature not found.  Either this file is not\n"
            "  a zipfile"
        ),
    ],
)
def test_an_unpacker_is_told_what_the_file_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth.tar"
    torch.save({"state_dict": WEIGHTS}, path, _use_new_zipfile_serialization=False)
    found = Answered(text, path)
    assert "PyTorch legacy" in found.said and "This one is" in found.said
    assert torch.equal(found.loaded()["weight"], WEIGHTS["weight"])
