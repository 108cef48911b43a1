"""DTensors of which the file of one rank holds all: one GPU, or `Replicate`. Every
command takes them for plain tensors.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from inside import inside
from process import Done
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    init_device_mesh,
)  # type: ignore[attr-defined]
from torch.testing._internal.distributed.fake_pg import FakeStore

import ckpt

COUNT = 70
"""Tensors of a file: the fast ways begin at 64."""


def dtensors(
    state: dict[str, torch.Tensor], ranks: int, placement: Any
) -> dict[str, Any]:
    """The state dict with what the first of so many ranks holds where `state` is its
    part of each tensor.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        return {
            name: tensor
            if name.endswith(".scale")
            else DTensor.from_local(tensor, mesh, [placement])
            for name, tensor in state.items()
        }
    finally:
        dist.destroy_process_group()


WHOLE = {
    "one rank": (1, Shard(0)),
    "copies": (2, Replicate()),
    "sum on one rank": (1, Partial()),
}
CUT = {"shards": (2, Shard(0)), "summands": (2, Partial())}


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    made = {
        f"layers.{number}.weight": torch.randn(6, 4).to(dtypes[number % 3])
        for number in range(COUNT)
    }
    return {**made, "head.bias": torch.randn(3), "head.scale": torch.ones(2)}


@pytest.fixture(params=WHOLE)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the state dict as DTensors, and as it is."""
    torch.save(dtensors(state(), *WHOLE[request.param]), tmp_path / "dtensors.pth")
    torch.save(state(), tmp_path / "plain.pth")
    return tmp_path


def done(folder: Path, *words: str, code: int = 0) -> Done:
    found = inside(*words, cwd=folder)
    assert found.code == code, found
    return found


def test_diff_compares_their_values(files: Path) -> None:
    for sides in (
        ("dtensors.pth", "plain.pth"),
        ("plain.pth", "dtensors.pth"),
        ("dtensors.pth", "dtensors.pth"),
    ):
        assert f"same: {COUNT + 2} tensors" in done(files, "diff", *sides).out.decode()
    other = state()
    other["layers.37.weight"][3, 2] += 0.5
    torch.save(other, files / "plain.pth")
    for sides in (("dtensors.pth", "plain.pth"), ("plain.pth", "dtensors.pth")):
        row = json.loads(done(files, "diff", *sides, "--json", code=1).out)
        (changed,) = (line for line in row["tensors"] if line["status"] != "same")
        assert (
            changed["after"],
            changed["status"],
            changed["change"]["differing"],
        ) == (
            "layers.37.weight",
            "changed",
            1,
        )


def test_diff_finds_one_under_another_name(files: Path) -> None:
    moved = {
        name.replace("layers.5.", "blocks.5."): tensor
        for name, tensor in state().items()
    }
    torch.save(moved, files / "moved.pth")
    rows = json.loads(done(files, "diff", "dtensors.pth", "moved.pth", "--json").out)[
        "tensors"
    ]
    assert [
        (row["before"], row["after"]) for row in rows if row["status"] == "renamed"
    ] == [("layers.5.weight", "blocks.5.weight")]


@pytest.mark.parametrize(("command", "key"), [("stats", "tensors"), ("sum", "sums")])
def test_stats_and_sum_are_those_of_the_plain_file(
    command: str, key: str, files: Path
) -> None:
    one, two = (
        json.loads(done(files, command, name, "--json").out)
        for name in ("dtensors.pth", "plain.pth")
    )
    assert one[key] == two[key] and len(one[key]) == COUNT + 2


def test_get_shows_values(files: Path) -> None:
    shown = [
        done(files, "get", name, "head.bias").out.decode()
        for name in ("dtensors.pth", "plain.pth")
    ]
    assert (
        shown[0].splitlines()[-1] == shown[1].splitlines()[-1] and "values" in shown[0]
    )


@pytest.mark.parametrize(
    ("pretrained", "into"),
    [("dtensors.pth", "zeros.pth"), ("plain.pth", "dtensors.pth")],
)
def test_warmstart_loads_them_and_into_them(
    pretrained: str, into: str, files: Path
) -> None:
    torch.save(
        {name: torch.zeros_like(tensor) for name, tensor in state().items()},
        files / "zeros.pth",
    )
    changed = {name: tensor + 1 for name, tensor in state().items()}
    torch.save(changed, files / "plain.pth")
    truth = state() if pretrained == "dtensors.pth" else changed

    done(files, "warmstart", pretrained, "--into", into, "-o", "warm.pth")

    found = torch.load(files / "warm.pth", weights_only=False)
    for name, tensor in truth.items():
        assert torch.equal(
            getattr(found[name], "_local_tensor", found[name]), tensor
        ), name
        assert (type(found[name]) is DTensor) == (
            into == "dtensors.pth" and not name.endswith(".scale")
        )


@pytest.mark.parametrize(
    ("words", "load"),
    [
        (("slim", "-o", "out.pth"), lambda path: torch.load(path, weights_only=True)),
        (
            ("convert", "--plain", "-o", "out.pth"),
            lambda path: torch.load(path, weights_only=True),
        ),
        (("convert", "-o", "out.safetensors"), safetensors.torch.load_file),
    ],
)
def test_what_is_written_of_them_is_plain(
    words: tuple[str, ...], load: Callable[..., Any], files: Path
) -> None:
    done(files, words[0], "dtensors.pth", *words[1:])
    found = load(files / words[-1])
    assert {*found} == {*state()}
    for name, tensor in state().items():
        assert type(found[name]) is torch.Tensor and torch.equal(found[name], tensor), (
            name
        )


def test_the_library_reads_them(files: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Module()
            self.head.register_parameter("bias", torch.nn.Parameter(torch.zeros(3)))
            self.head.register_buffer("scale", torch.zeros(2))

    net = Net()
    with ckpt.open(files / "dtensors.pth") as checkpoint:
        found = checkpoint.state_dict()
        assert checkpoint["head.bias"].stride == (1,)
        assert checkpoint["layers.1.weight"].torch().equal(state()["layers.1.weight"])
        checkpoint.load_into(net)
    assert all(
        type(found[name]) is torch.Tensor and found[name].equal(tensor)
        for name, tensor in state().items()
    )
    assert net.head.bias.equal(state()["head.bias"]) and net.head.scale.equal(
        state()["head.scale"]
    )


def test_diff_compares_those_of_an_older_torch(files: Path) -> None:
    """torch 2.4 had the class in another module."""
    with (
        zipfile.ZipFile(files / "dtensors.pth") as new,
        zipfile.ZipFile(files / "older.pth", "w") as old,
    ):
        for name in new.namelist():
            data = new.read(name)
            old.writestr(
                name,
                data.replace(
                    b"ctorch.distributed.tensor\nDTensor\n",
                    b"ctorch.distributed._tensor\nDTensor\n",
                ),
            )
    assert (files / "older.pth").read_bytes().count(
        b"ctorch.distributed._tensor\nDTensor\n"
    ) > 0

    for sides in (("dtensors.pth", "older.pth"), ("older.pth", "plain.pth")):
        assert f"same: {COUNT + 2} tensors" in done(files, "diff", *sides).out.decode()


def test_a_counter_of_steps_is_read(tmp_path: Path) -> None:
    params = {"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2)}
    steps = dtensors({"0": torch.tensor(7.0), "1": torch.tensor(7.0)}, 1, Replicate())
    states = {
        number: {
            "step": steps[str(number)],
            "exp_avg": torch.ones_like(param),
            "exp_avg_sq": torch.ones_like(param),
        }
        for number, param in enumerate(params.values())
    }
    groups = [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}]
    torch.save(
        {"model": params, "optimizer": {"state": states, "param_groups": groups}},
        tmp_path / "a.pth",
    )

    assert "2 of 2 parameters have state" in (
        text := done(tmp_path, "inspect", "a.pth").out.decode()
    ), text
    assert "7 steps" in text


def test_a_local_tensor_of_another_shape_is_not_the_tensor(tmp_path: Path) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        odd = DTensor.from_local(
            torch.ones(2, 4),
            mesh,
            [Replicate()],
            shape=torch.Size((6, 4)),
            stride=(4, 1),
        )
        torch.save({"a.weight": odd, "b.weight": torch.ones(2)}, tmp_path / "a.pth")
    finally:
        dist.destroy_process_group()

    refused = done(tmp_path, "convert", "a.pth", "--plain", "-o", "c.pth", code=2)
    assert (
        "a.weight (a tensor: torch.distributed.tensor.DTensor)" in refused.err.decode()
    )
    assert "wrapper" in done(tmp_path, "stats", "a.pth").out.decode()


@pytest.mark.parametrize("kind", CUT)
def test_a_part_is_no_plain_tensor(kind: str, tmp_path: Path) -> None:
    torch.save(dtensors(state(), *CUT[kind]), tmp_path / "a.pth")
    torch.save(state(), tmp_path / "b.pth")

    refused = done(tmp_path, "convert", "a.pth", "--plain", "-o", "c.pth", code=2)
    problem = {"shards": "holds parts of"}.get(kind, "cannot be made plain")
    assert problem in refused.err.decode()
    compared = done(
        tmp_path, "diff", "a.pth", "b.pth", code=1 if kind == "shards" else 2
    ).out.decode()
    assert compared.splitlines()[-1] in (
        "same: 1 tensor",
        f"differ: 0 changed, {COUNT + 1} reshaped, 1 same",
    )
    assert "wrapper" in done(tmp_path, "stats", "a.pth").out.decode()
