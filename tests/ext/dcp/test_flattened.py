"""Weights at the root beside a flattened optimizer, as torchtitan saves them, and what
its state says of gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
import train_dcp
from inside import inside
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

import ckpt
from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.model.findings import Finding

pytestmark = oracle.QUIET
UNUSED = ("unused.weight", "unused.bias")
KINDS = ["flattened", "nested"]


def options(kind: str) -> StateDictOptions:
    return StateDictOptions(flatten_optimizer_state_dict=kind == "flattened")


def handed(net: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def state_of(
    net: torch.nn.Module, optimizer: torch.optim.Optimizer, kind: str
) -> dict[str, Any]:
    """What is saved: torchtitan has the weights at the root, after all else; others
    have them below a key.
    """
    model, state = get_state_dict(net, optimizer, options=options(kind))
    return (
        {"optimizer": state, **model}
        if kind == "flattened"
        else {"model": model, "optimizer": state}
    )


def saved(state: dict[str, Any], folder: Path) -> Path:
    dcp.save(state, checkpoint_id=str(folder), no_dist=True)
    return folder


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        net(torch.randn(6, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def found(folder: Path) -> dict[str, Finding]:
    return {row.code: row for row in ckpt.inspect(folder).findings}


def row_of(folder: Path, name: str) -> str:
    """The row of a section in the report."""
    shown = inside("inspect", folder.name, cwd=folder.parent).out.decode()
    return next(
        line.split(maxsplit=1)[1]
        for line in shown.splitlines()
        if line.startswith(f"  {name} ")
    )


def titan(folder: Path, prefix: str = "") -> Path:
    """A step of torchtitan. With a prefix the names are those of a wrapper, which the
    optimizer shares.
    """
    torch.manual_seed(0)
    net = train_dcp.Net()
    state = state_of(net, train_dcp.trained(net, 2), "flattened")
    optimizer = {
        key.replace("state.", f"state.{prefix}").replace(
            "param_groups.", f"param_groups.{prefix}"
        ): value
        for key, value in state.pop("optimizer").items()
    }
    beside = {
        "lr_scheduler": {"last_epoch": 2},
        "train_state": {"step": torch.tensor(2)},
        "dataloader": {"dp_rank_0": b"position"},
    }
    named = {f"{prefix}{name}": value for name, value in state.items()}
    return saved({"optimizer": optimizer, **beside, **named}, folder)


def test_sections_and_the_optimizer(tmp_path: Path) -> None:
    folder = titan(tmp_path / "step-2")
    with formats.open(str(folder)) as checkpoint:
        survey = Survey(checkpoint)
        kinds = {
            section.name: (section.kind, section.tensors) for section in survey.sections
        }
        assert kinds == {
            "": ("model", 14),
            "optimizer": ("optimizer", 21),
            "lr_scheduler": ("scheduler", 0),
            "train_state": ("other", 1),
        }
        (match,) = survey.matches
        assert match.by_name and match.model is not None and match.model.path == ()
        names = [
            name
            for name, parameter in train_dcp.Net().named_parameters()
            if parameter.requires_grad
        ]
        assert sorted(str(slot.name) for slot in match.slots) == sorted(names)
        held = [
            survey.tensors[index].name for index in match.indices if index is not None
        ]
        assert held == [slot.name for slot in match.slots]
        roles = {
            entry.name: role
            for entry, role in zip(survey.tensors, survey.roles, strict=True)
        }
        assert (
            roles["up.weight"].role == "parameter"
            and roles["up.weight"].trust == "certain"
        )
        assert roles["optimizer.state.up.weight.exp_avg"].role == "optimizer"
        outside = [
            name
            for name in ("frozen.weight", "up.weight")
            if survey.in_optimizer[held_at(survey, name)]
        ]
        assert outside == ["up.weight"]
    assert row_of(folder, "model") == "14 tensors, 1.27 KiB, at the root"
    assert (
        row_of(folder, "optimizer")
        == "Adam-like, 7 of 9 parameters have state, 2.08 KiB, 2 steps, lr 0.001"
    )


def held_at(survey: Survey, name: str) -> int:
    return next(
        index for index, entry in enumerate(survey.tensors) if entry.name == name
    )


@pytest.mark.slow
def test_ranks_make_no_difference(trained: Path) -> None:
    """Of four ranks, each of which lists its own part first."""
    with formats.open(str(trained / "flat")) as checkpoint:
        kinds = {section.name: section.kind for section in Survey(checkpoint).sections}
    assert kinds == {"": "model", "optimizer": "optimizer"}
    assert found(trained / "flat")["unused"].tensors == UNUSED


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_strict_load_stops_as_the_finding_says(
    kind: str, optimizer: str, tmp_path: Path
) -> None:
    """Each optimizer begins its state with another key: that is the one that torch
    misses.
    """

    def made(net: torch.nn.Module) -> torch.optim.Optimizer:
        if optimizer == "SGD":
            return torch.optim.SGD(handed(net), lr=0.1, momentum=0.9)
        return torch.optim.AdamW(handed(net))

    net = train_dcp.Net()
    first = made(net)
    step(net, first, 2)
    folder = saved(state_of(net, first, kind), tmp_path / "c")
    rows = found(folder)
    prefix = "" if kind == "flattened" else "model."
    assert rows["unused"].tensors == tuple(prefix + name for name in UNUSED)
    fresh = train_dcp.Net()
    state = state_of(fresh, made(fresh), kind)
    with pytest.raises(
        BaseException, match="Missing key in checkpoint state_dict"
    ) as error:
        dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    said = (
        rows["resume-stops"]
        .message.rpartition('"Missing key')[2]
        .rstrip('".')
        .partition(": ")[2]
    )
    assert said.startswith("optimizer.state.unused.weight.")
    assert said in str(error.value)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_resume_makes_is_told_from_what_had_a_gradient(
    kind: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load makes state for what has none in the file: one step, zero moments. Where
    these are not read, both may be.
    """
    torch.manual_seed(0)
    net = train_dcp.Net()
    first = torch.optim.AdamW(handed(net))
    step(net, first, 3)
    folder = saved(state_of(net, first, kind), tmp_path / "first")
    net = train_dcp.Net()
    again = torch.optim.AdamW(handed(net))
    state = state_of(net, again, kind)
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, checkpoint_id=str(folder), no_dist=True, planner=planner)
    optimizer = state.pop("optimizer")
    weights = state if kind == "flattened" else state["model"]
    set_state_dict(
        net,
        again,
        model_state_dict=weights,
        optim_state_dict=optimizer,
        options=options(kind),
    )
    step(net, again, 2)
    late = saved(state_of(net, again, kind), tmp_path / "late")
    if large:
        monkeypatch.setattr("ckpt.evidence.gradients._MOMENT_BYTES", 11)
    rows = found(late)
    names = tuple(("" if kind == "flattened" else "model.") + name for name in UNUSED)
    if large:
        row = rows["sometimes-unused"]
        assert "unused" not in rows and row.consequence is not None
        assert "or their state began anew" in row.consequence
        assert "1 of 5 steps" in row.message
    else:
        row = rows["unused"]
        assert "sometimes-unused" not in rows
        assert (
            "had no gradient but zeros in" in row.message
            and "1 of 5 steps" in row.message
        )
    assert row.tensors == names
    assert "resume-stops" not in rows  # it holds state for all


@pytest.mark.parametrize("kind", KINDS)
def test_one_real_step_late_is_no_resume(kind: str, tmp_path: Path) -> None:
    """The moments of one small gradient are not zero."""
    net = train_dcp.Net()
    optimizer = torch.optim.AdamW(handed(net))
    step(net, optimizer, 3)
    net.unused(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    row = found(saved(state_of(net, optimizer, kind), tmp_path / "c"))[
        "sometimes-unused"
    ]
    assert "1 of 3 steps" in row.message
    assert row.consequence == (
        "Sometimes there was no gradient, the optimizer got them later, or their state "
        "began anew."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_before_the_first_step_nothing_is_unused(kind: str, tmp_path: Path) -> None:
    """`get_state_dict` makes the state of all by a step with gradients of zero."""
    net = train_dcp.Net()
    optimizer = torch.optim.AdamW(handed(net))
    folder = saved(state_of(net, optimizer, kind), tmp_path / "before")
    assert {"unused", "sometimes-unused", "resume-stops"}.isdisjoint(found(folder))
    assert row_of(folder, "optimizer").endswith(
        "1 step with zero moments, as before the first"
    )
    step(net, optimizer, 1)  # a second step, by its counter
    later = saved(state_of(net, optimizer, kind), tmp_path / "later")
    assert row_of(later, "optimizer").endswith("2 steps, lr 0.001")
    net = train_dcp.Net()
    first = torch.optim.AdamW(handed(net))
    step(net, first, 1)
    one = saved(state_of(net, first, kind), tmp_path / "one")
    assert row_of(one, "optimizer").endswith(", 1 step, lr 0.001")
    thing = state_of(net, first, kind)
    for name, value in thing["optimizer"].items():
        rows = value.values() if name == "state" else [{name.rpartition(".")[2]: value}]
        for row in rows:
            for key, tensor in row.items():
                if isinstance(tensor, torch.Tensor):
                    tensor.fill_(3 if key == "step" else 0)
    none = saved(thing, tmp_path / "none")  # three steps, each with gradients of zero
    assert row_of(none, "optimizer").endswith(", 3 steps, lr 0.001")


def test_no_state_at_all(tmp_path: Path) -> None:
    """The empty dict of a state vanishes in a distributed checkpoint. SGD keeps none:
    then nothing tells of steps.
    """
    net = train_dcp.Net()
    adam = {
        "model": net.state_dict(),
        "optimizer": torch.optim.AdamW(net.parameters()).state_dict(),
    }
    folder = saved(adam, tmp_path / "adam")
    assert (
        row_of(folder, "optimizer")
        == "no step taken yet, 0 of 11 parameters have state, lr 0.001"
    )
    assert "unused" not in found(folder)
    for kind in KINDS:
        optimizer = torch.optim.SGD(handed(net), lr=0.1)
        step(net, optimizer, 1)
        folder = saved(state_of(net, optimizer, kind), tmp_path / kind)
        assert (
            row_of(folder, "optimizer")
            == "SGD without momentum, which keeps no state, 9 parameters, lr 0.1"
        )
        assert "unused" not in found(folder)


def test_an_optimizer_alone_names_its_parameters(tmp_path: Path) -> None:
    net = train_dcp.Net()
    state = state_of(net, train_dcp.trained(net, 2), "flattened")["optimizer"]
    for name, thing in (("key", {"optimizer": state}), ("root", state)):
        rows = found(saved(thing, tmp_path / name))
        assert rows["unused"].message.startswith(
            "unused.{weight,bias} (2 parameters) never had a gradient"
        )
        prefix = "optimizer." if name == "key" else ""
        assert (
            f'state_dict: {prefix}state.unused.weight.step"'
            in rows["resume-stops"].message
        )


def test_slim_and_convert_take_the_weights_alone(tmp_path: Path) -> None:
    folder = titan(tmp_path / "step-2")
    with ckpt.open(folder) as checkpoint:
        names = [name for name in train_dcp.Net().state_dict() if name in checkpoint]
        wanted = {name: checkpoint[name].numpy() for name in names}
    assert len(wanted) == 14
    done = inside("slim", "step-2", "-o", "slim.pth", cwd=tmp_path)
    assert done.code == 0, done
    assert b"left out: optimizer: 21 tensors" in done.out + done.err
    slimmed = torch.load(tmp_path / "slim.pth", weights_only=True)
    assert list(slimmed) == list(wanted)
    done = inside("convert", "step-2", "-o", "c.safetensors", cwd=tmp_path)
    assert done.code == 0, done
    with ckpt.open(tmp_path / "c.safetensors") as converted:
        assert set(converted) == set(wanted)
        for name, value in wanted.items():
            assert (converted[name].numpy() == value).all() and (
                slimmed[name].numpy() == value
            ).all()


def test_slim_of_the_optimizer_lists_the_weights_once(tmp_path: Path) -> None:
    titan(tmp_path / "step-2")
    done = inside(
        "slim", "step-2", "--section", "optimizer", "-o", "o.pth", cwd=tmp_path
    )
    out = (done.out + done.err).decode()
    assert out.count("left out: ") == 4, out
    assert "left out: (the root): model, 14 tensors" in out


def test_strip_renames_the_optimizer_too(tmp_path: Path) -> None:
    """torch loads it with the names that are left, and what is no name of the model
    stays.
    """
    titan(tmp_path / "wrapped", prefix="_orig_mod.")
    done = inside("strip", "wrapped", "-o", "plain.dcp", cwd=tmp_path)
    assert done.code == 0, done
    titan(tmp_path / "wanted")
    report = ckpt.diff(tmp_path / "plain.dcp", tmp_path / "wanted")
    assert {row.status for row in report.rows} == {"same"}
    assert len(report.rows) == 36
    net = train_dcp.Net()
    state = state_of(net, train_dcp.trained(net, 1), "flattened")
    dcp.load(state, checkpoint_id=str(tmp_path / "plain.dcp"), no_dist=True)
    assert state["optimizer"]["state.up.weight.step"] == 2
    assert state["optimizer"]["param_groups.up.weight.lr"] == 0.001


def test_rename_leaves_what_lies_beside_the_weights(tmp_path: Path) -> None:
    titan(tmp_path / "step-2")
    done = inside("rename", "step-2", "--sub", "s/t/T/", "-o", "out.dcp", cwd=tmp_path)
    assert done.code == 0, done
    with formats.open(str(tmp_path / "out.dcp")) as checkpoint:
        keys = checkpoint.containers[0].keys
        names = {entry.name for entry in checkpoint.tensors}
    assert {
        "optimizer",
        "lr_scheduler",
        "train_state",
        "dataloader",
        "up.weighT",
    } <= set(keys)
    assert "optimizer.state.up.weighT.exp_avg" in names
    assert "optimizer.state.up.weight.exp_avg" not in names


def test_equal_objects_keep_an_item_each(tmp_path: Path) -> None:
    """Two items that share bytes are refused when they are read."""
    saved(
        {"model": {"module.fc.weight": torch.ones(2, 2)}, "a": 1.5, "b": 1.5, "c": 1.5},
        tmp_path / "c",
    )
    done = inside("strip", "c", "-o", "out.dcp", cwd=tmp_path)
    assert done.code == 0, done
    state: dict[str, Any] = {
        "model": {"fc.weight": torch.zeros(2, 2)},
        "a": 0,
        "b": 0,
        "c": 0,
    }
    dcp.load(state, checkpoint_id=str(tmp_path / "out.dcp"), no_dist=True)
    assert (state["a"], state["b"], state["c"]) == (1.5, 1.5, 1.5)
    assert state["model"]["fc.weight"].sum() == 4


def test_names_with_fields_of_several_parts(tmp_path: Path) -> None:
    """Shampoo keeps dicts in the state of a parameter: their keys are parts of one
    name.
    """
    flat = {
        "state.fc.weight.factors.0": torch.ones(2),
        "state.fc.weight.step": torch.tensor(3.0),
        "state.fc.weight.exp_avg": torch.ones(2, 2),
        "param_groups.fc.weight.lr": 0.5,
        "param_groups.fc.bias.lr": 0.25,
    }
    model = {"fc.weight": torch.ones(2, 2), "fc.bias": torch.ones(2)}
    folder = saved({**model, "optimizer": flat}, tmp_path / "c")
    assert found(folder)["unused"].tensors == ("fc.bias",)
    assert row_of(folder, "optimizer").endswith(
        "1 of 2 parameters have state, 28 B, 3 steps, lr 0.5, 0.25"
    )


NESTED = {"state": {}, "param_groups": [{"params": [0]}]}


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        # Too few names with dots, weights in two places, a key that says where the
        # model is, no group, a huge number.
        ({"fc.weight": torch.ones(2), "state.x": torch.ones(2)}, {"": "model"}),
        (
            {"images": torch.ones(2), "optimizer": NESTED},
            {"images": "other", "optimizer": "optimizer"},
        ),
        (
            {
                "a.b": torch.ones(2),
                "extra": {"x": torch.ones(1)},
                "c.d": torch.ones(2),
                "optimizer": NESTED,
            },
            {"": "model"},
        ),
        (
            {"net": {"a.b": torch.ones(2)}, "c.d": torch.ones(2), "optimizer": NESTED},
            {"": "model"},
        ),
        ({"w": {"state.a.step": torch.ones(1), 10**1000: 1}}, {"w": "model"}),
    ],
)
def test_other_roots_are_what_they_were(
    state: dict[Any, Any], kinds: dict[str, str], tmp_path: Path
) -> None:
    torch.save(state, tmp_path / "a.pt")
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        assert {
            section.name: section.kind for section in Survey(checkpoint).sections
        } == kinds


def test_the_weights_beside_an_optimizer_are_those_of_a_file_too(
    tmp_path: Path,
) -> None:
    """With momentum the state is smaller than the weights: it was taken for a part of
    them.
    """
    net = train_dcp.Net()
    optimizer = torch.optim.SGD(handed(net), lr=0.1, momentum=0.9)
    step(net, optimizer, 1)
    torch.save(
        {**net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt"
    )
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        kinds = {section.name: section.kind for section in Survey(checkpoint).sections}
    assert kinds == {"": "model", "optimizer": "optimizer"}
