"""An optimizer by names in a distributed checkpoint: torch's strict load takes it, and
what is not sure is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeeds
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from inside import inside
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

import ckpt
from ckpt.commands.convert.optimizers import KEYS

pytestmark = oracle.QUIET


class Net(nn.Module):
    """Each tensor has a shape of its own; `unused` gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5, affine=False)
        self.unused = nn.Linear(4, 3)
        self.down = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.norm(self.up(x)))
        return out


class Twins(nn.Sequential):
    """Two layers of one shape."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 6), nn.Linear(6, 6))


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.5)


def in_groups(net: nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in net.parameters() if p.dim() > 1]
    vectors = [p for p in net.parameters() if p.dim() < 2]
    return torch.optim.Adam(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.25}]
    )


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw": adamw,
    "groups": in_groups,
    "names": lambda net: torch.optim.AdamW(net.named_parameters()),
    "amsgrad": lambda net: torch.optim.Adam(net.parameters(), amsgrad=True),
    "adamax": lambda net: torch.optim.Adamax(net.parameters()),
    "momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    "rmsprop": lambda net: torch.optim.RMSprop(
        net.parameters(), momentum=0.5, centered=True
    ),
    "stateless": lambda net: torch.optim.SGD(net.parameters(), lr=0.1),
}


def stepped(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    torch.manual_seed(1)
    for _ in range(steps):
        net(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def saved(
    path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, wrapper: str = ""
) -> Path:
    model = {f"{wrapper}{name}": tensor for name, tensor in net.state_dict().items()}
    torch.save({"model": model, "optim": optimizer.state_dict(), "epoch": 3}, path)
    return path


def run(*arguments: str | Path, cwd: Path, code: int = 0) -> str:
    done = inside(*map(str, arguments), cwd=cwd)
    assert done.code == code, done
    return (done.out + done.err).decode()


def strictly_loaded(
    folder: Path, net: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load as torch documents it: whatever is missing raises."""
    model, state = get_state_dict(net, optimizer)
    whole: dict[str, Any] = {"model": model, "optim": state, "epoch": 0}
    dcp.load(whole, checkpoint_id=str(folder))
    assert whole["epoch"] == 3
    set_state_dict(
        net, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optim"]
    )


def assert_same(
    mine: dict[str, Any], other: dict[str, Any], *, more: bool = False
) -> None:
    """Both hold the same state; with `more` the first has state of zeros for further
    parameters.
    """
    assert [group["lr"] for group in mine["param_groups"]] == [
        group["lr"] for group in other["param_groups"]
    ]
    for number, fields in mine["state"].items():
        if number not in other["state"]:
            assert more and all(not value.any() for value in fields.values())
            continue
        assert list(fields) == list(other["state"][number])
        for field, value in fields.items():
            assert torch.equal(value, other["state"][number][field]), (number, field)
    assert set(other["state"]) <= set(mine["state"])


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["", "module.", "_orig_mod.module."])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_strict_load_of_torch_takes_it(
    kind: str, wrapper: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = OPTIMIZERS[kind](net)
    stepped(net, optimizer)
    source = saved(tmp_path / "a.pth", net, optimizer, wrapper)
    options = (
        ("--optimizer-keys", "order") if kind == "groups" else ()
    )  # what has no state is in either group
    said = run(
        "convert", source, "-o", "a.dcp", "--complete-optimizer", *options, cwd=tmp_path
    )
    assert ("module.* → *" in said) == ("module" in wrapper)
    assert ("no state → zero moments" in said) == (kind != "stateless")
    fresh = Net()
    again = OPTIMIZERS[kind](fresh)
    strictly_loaded(tmp_path / "a.dcp", fresh, again)
    for name, tensor in net.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor)
    assert_same(again.state_dict(), optimizer.state_dict(), more=True)
    assert "resume-stops" not in {
        row.code for row in ckpt.inspect(tmp_path / "a.dcp").findings
    }


def test_without_state_it_stops_and_the_hint_mends_it(tmp_path: Path) -> None:
    net = Net()
    optimizer = adamw(net)
    stepped(net, optimizer)
    run(
        "convert",
        saved(tmp_path / "a.pth", net, optimizer),
        "-o",
        "a.dcp",
        cwd=tmp_path,
    )
    fresh = Net()
    with pytest.raises(CheckpointException) as stopped:
        strictly_loaded(tmp_path / "a.dcp", fresh, adamw(fresh))
    assert (
        "Missing key in checkpoint state_dict: optim.state.unused.weight.step"
        in str(stopped.value.failures)
    )
    (finding,) = [
        row
        for row in ckpt.inspect(tmp_path / "a.dcp").findings
        if row.code == "resume-stops"
    ]
    said = run("inspect", "a.dcp", cwd=tmp_path)
    (command,) = [
        line.strip() for line in said.splitlines() if "--complete-optimizer" in line
    ]
    assert finding.hint == command.replace("a.", f"{tmp_path}/a.")
    assert "no state → zero moments   2 parameters of optim" in run(
        *command.split()[1:], cwd=tmp_path
    )
    again = adamw(fresh)
    strictly_loaded(tmp_path / command.split()[-1], fresh, again)
    assert again.state_dict()["state"][2]["step"].dtype == torch.float32
    assert_same(again.state_dict(), optimizer.state_dict(), more=True)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_what_only_the_order_says_is_refused(is_reversed: bool, tmp_path: Path) -> None:
    """Both orders look the same in the file, so neither is taken unless it is asked
    for.
    """
    net = Twins()
    layers = [net[1], net[0]] if is_reversed else [net[0], net[1]]
    optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()])
    stepped(net, optimizer)
    source = saved(tmp_path / "a.pth", net, optimizer)
    said = run("convert", source, "-o", "a.dcp", cwd=tmp_path, code=2)
    assert "only the order says which is which of 4 of its 4 parameters" in said
    assert "--optimizer-keys order" in said and "--optimizer-keys numbers" in said
    assert not (tmp_path / "a.dcp").exists()
    said = run(
        "convert", source, "-o", "a.dcp", "--optimizer-keys", "order", cwd=tmp_path
    )
    assert (
        "numbers → names, if it has the order of the model   4 parameters of optim"
        in said
    )
    fresh = Twins()
    again = adamw(fresh)
    strictly_loaded(tmp_path / "a.dcp", fresh, again)
    mine, other = again.state_dict()["state"], optimizer.state_dict()["state"]
    assert all(torch.equal(mine[n]["exp_avg"], other[n]["exp_avg"]) for n in range(4))
    said = run(
        "convert", source, "-o", "b.dcp", "--optimizer-keys", "numbers", cwd=tmp_path
    )
    assert "numbers → text" in said


def _alone(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"optim": optimizer.state_dict(), "epoch": 1}


def _chain(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parts = {"G_A": net.state_dict(), "G_B": nn.Linear(3, 7).state_dict()}
    both = torch.optim.AdamW([*net.parameters(), *nn.Linear(3, 7).parameters()])
    return {**parts, "optim": both.state_dict()}


def _lbfgs(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    one = torch.optim.LBFGS(net.parameters())

    def closure() -> torch.Tensor:
        one.zero_grad()
        loss = net(torch.randn(4, 6)).square().sum()
        loss.backward()
        return loss

    one.step(closure)
    return {"model": net.state_dict(), "optim": one.state_dict()}


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (_alone, "its parameters fit the order of no model here"),
        (
            _chain,
            "it holds parameters of G_A and G_B, and torch names those of one model",
        ),
        (_lbfgs, "one state stands for all of its parameters"),
    ],
)
def test_the_reason_is_named(
    thing: Callable[..., dict[str, Any]], why: str, tmp_path: Path
) -> None:
    net = Net()
    optimizer = adamw(net)
    stepped(net, optimizer)
    torch.save(thing(net, optimizer), tmp_path / "a.pth")
    said = run("convert", "a.pth", "-o", "a.dcp", cwd=tmp_path, code=2)
    assert why in said and said.count("\n") == 1 and "--optimizer-keys numbers" in said
    run("convert", "a.pth", "-o", "a.dcp", "--optimizer-keys", "numbers", cwd=tmp_path)


def test_each_of_several_optimizers_has_the_names_of_its_model(tmp_path: Path) -> None:
    nets = {"netG": Net(), "netD": nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))}
    optimizers = {f"optimizer_{name[3]}": adamw(net) for name, net in nets.items()}
    for net, optimizer in zip(nets.values(), optimizers.values(), strict=True):
        stepped(net, optimizer)
    whole = {name: net.state_dict() for name, net in nets.items()}
    torch.save(
        {
            **whole,
            "optimizer_states": [each.state_dict() for each in optimizers.values()],
        },
        tmp_path / "a.pth",
    )
    run("convert", "a.pth", "-o", "a.dcp", cwd=tmp_path)
    with ckpt.open(tmp_path / "a.dcp") as checkpoint:
        names = set(checkpoint)
    assert "optimizer_states.0.state.up.weight.exp_avg" in names
    assert "optimizer_states.1.state.1.bias.exp_avg" in names


def test_what_cannot_be_completed_is_refused(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.NAdam(
        net.parameters()
    )  # its product of momenta begins with 1
    stepped(net, optimizer)
    source = saved(tmp_path / "a.pth", net, optimizer)
    said = run(
        "convert", source, "-o", "a.dcp", "--complete-optimizer", cwd=tmp_path, code=2
    )
    assert (
        "the first value of mu_product does not follow from the state of the others"
        in said
    )


def test_moments_have_the_dtypes_of_the_others(tmp_path: Path) -> None:
    net = Net().bfloat16()
    optimizer = adamw(net)
    for parameter in net.up.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    source = saved(tmp_path / "a.pth", net, optimizer)
    run(
        "convert",
        source,
        "-o",
        "b.pth",
        "--complete-optimizer",
        "--verify",
        "torch",
        cwd=tmp_path,
    )
    whole = torch.load(tmp_path / "b.pth")
    states = whole["optim"]["state"]
    assert sorted(states) == list(range(6))
    assert {fields["exp_avg"].dtype for fields in states.values()} == {torch.bfloat16}
    assert all(
        fields["exp_avg"].shape == p.shape
        for fields, p in zip(
            (states[n] for n in range(6)), net.parameters(), strict=True
        )
    )
    states[4]["exp_avg"].add_(1)  # of its own memory
    assert not states[5]["exp_avg"].any()
    adamw(net).load_state_dict(whole["optim"])


def test_numbers_in_a_distributed_checkpoint_are_joined(tmp_path: Path) -> None:
    """They are text there, and numbers in the groups."""
    net = Net()
    optimizer = adamw(net)
    stepped(net, optimizer)
    state = {"model": net.state_dict(), "optim": optimizer.state_dict(), "epoch": 3}
    dcp.save(state, checkpoint_id=str(tmp_path / "numbers"))
    (finding,) = [
        row
        for row in ckpt.inspect(tmp_path / "numbers").findings
        if row.code == "unused"
    ]
    assert finding.tensors == ("model.unused.weight", "model.unused.bias")
    said = run(
        "explain",
        "Parameter indices which did not receive grad for rank 0: 2 3",
        "numbers",
        cwd=tmp_path,
    )
    assert "unused.weight" in said
    run("convert", "numbers", "-o", "same.dcp", cwd=tmp_path)
    with ckpt.open(tmp_path / "same.dcp") as checkpoint:
        assert (
            "optim.state.0.exp_avg" in checkpoint
        )  # what is one already keeps its keys
    run(
        "convert",
        "numbers",
        "-o",
        "names.dcp",
        "--optimizer-keys",
        "names",
        cwd=tmp_path,
    )
    run(
        "convert",
        "numbers",
        "-o",
        "c.dcp",
        "--optimizer-keys",
        "numbers",
        "--complete-optimizer",
        cwd=tmp_path,
    )
    with ckpt.open(tmp_path / "c.dcp") as checkpoint:
        assert not checkpoint["optim.state.2.exp_avg"].torch().any()
    fresh = Net()
    run("convert", "names.dcp", "-o", "whole.dcp", "--complete-optimizer", cwd=tmp_path)
    again = adamw(fresh)
    strictly_loaded(tmp_path / "whole.dcp", fresh, again)
    assert_same(again.state_dict(), optimizer.state_dict(), more=True)


def test_a_flattened_optimizer_is_completed(tmp_path: Path) -> None:
    """torchtitan's way."""
    net = Net()
    optimizer = adamw(net)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    stepped(net, optimizer)
    model, state = get_state_dict(net, optimizer, options=options)
    dcp.save({**model, "optimizer": state}, checkpoint_id=str(tmp_path / "flat"))
    said = run(
        "convert", "flat", "-o", "flat.dcp", "--complete-optimizer", cwd=tmp_path
    )
    assert "no state → zero moments   2 parameters of optimizer" in said
    fresh = Net()
    again = adamw(fresh)
    model, state = get_state_dict(fresh, again, options=options)
    whole: dict[str, Any] = {**model, "optimizer": state}
    dcp.load(whole, checkpoint_id=str(tmp_path / "flat.dcp"))
    state = whole.pop("optimizer")
    set_state_dict(
        fresh, again, model_state_dict=whole, optim_state_dict=state, options=options
    )
    assert_same(again.state_dict(), optimizer.state_dict(), more=True)


@pytest.mark.slow
@pytest.mark.parametrize("count", [64, 2_100])
def test_many_parameters_of_long_names(count: int, tmp_path: Path) -> None:
    names = [f"{'deep.' * 22}{number:05}.weight" for number in range(count)]
    weights = {name: torch.zeros(number + 1) for number, name in enumerate(names)}
    moments = {
        n: {"step": torch.tensor(1.0), "exp_avg": tensor}
        for n, tensor in enumerate(weights.values())
    }
    groups = [{"lr": 0.1, "params": list(range(count))}]
    torch.save(
        {
            "a": {
                "b": {
                    "model": weights,
                    "optim": {"state": moments, "param_groups": groups},
                }
            }
        },
        tmp_path / "a.pth",
    )
    said = run("convert", "a.pth", "-o", "a.dcp", cwd=tmp_path)
    assert f"numbers → names   {count:,} parameters of a.b.optim" in said
    with ckpt.open(tmp_path / "a.dcp") as checkpoint:
        assert all(f"a.b.optim.state.{name}.exp_avg" in checkpoint for name in names)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deepspeed_has_names_already(
    stage: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    live = deepspeeds.Live()
    deepspeeds.write(tmp_path / "run", stage, dtype=dtype)
    run("convert", "run", "-o", "run.dcp", "--ranks", "2", cwd=tmp_path)
    empty = {
        name: {
            "exp_avg": torch.empty_like(value),
            "exp_avg_sq": torch.empty_like(value),
            "step": torch.ones(()),
        }
        for name, value in live.trained.items()
    }
    state: dict[str, Any] = {"optimizer": {"state": empty}}
    dcp.load(state, checkpoint_id=str(tmp_path / "run.dcp"))
    for name, fields in state["optimizer"]["state"].items():
        assert torch.equal(fields["exp_avg"], live.exp_avg[name])
        assert torch.equal(fields["exp_avg_sq"], live.exp_avg_sq[name])


def test_a_live_model_knows_the_order(tmp_path: Path) -> None:
    """safetensors keep none; which parameters are trained is known too."""
    code = (
        "from torch import nn\n\ndef make():\n    net = nn.Sequential(nn.Linear(6, 6), "
        "nn.Linear(6, 6), nn.Linear(6, 6))\n"
    )
    (tmp_path / "net.py").write_text(
        f"{code}    net[1].requires_grad_(False)\n    return net\n", encoding="utf-8"
    )
    net = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
    net[1].requires_grad_(False)
    optimizer = torch.optim.AdamW(p for p in net.parameters() if p.requires_grad)
    stepped(net, optimizer)
    (tmp_path / "run").mkdir()
    save_file(net.state_dict(), tmp_path / "run" / "model.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "run" / "optimizer.bin")
    torch.save({"last_epoch": 1}, tmp_path / "run" / "scheduler.bin")
    said = run("convert", "run", "-o", "run.dcp", cwd=tmp_path, code=2)
    assert "--model FILE.py:FACTORY knows the order of the model" in said
    options = ("--model", "net.py:make", "--optimizer-keys", "order")
    run("convert", "run", "-o", "run.dcp", *options, cwd=tmp_path)
    held = optimizer.state_dict()["state"]
    with ckpt.open(tmp_path / "run.dcp") as checkpoint:
        for number, name in enumerate(("0.weight", "0.bias", "2.weight", "2.bias")):
            moment = checkpoint[f"optimizer.state.{name}.exp_avg"].torch()
            assert torch.equal(moment, held[number]["exp_avg"])


def test_options_that_do_not_go(tmp_path: Path) -> None:
    net = Net()
    source = saved(tmp_path / "a.pth", net, adamw(net))
    for options in (("--optimizer-keys", "names"), ("--complete-optimizer",)):
        said = run(
            "convert", source, "-o", "a.safetensors", *options, cwd=tmp_path, code=2
        )
        assert "holds no optimizer" in said
    said = run(
        "convert",
        source,
        "-o",
        "a.dcp",
        "--optimizer-keys",
        "fqn",
        cwd=tmp_path,
        code=2,
    )
    assert f"not one of {' '.join(KEYS)}" in said
