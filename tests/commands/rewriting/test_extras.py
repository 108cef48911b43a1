"""Tensors without weights: the counters of thop and torchstat, and what newer versions
of packages do not save.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import oracle
import printed
import pytest
import torch
from inside import inside
from torch import nn

pytestmark = oracle.QUIET


def model() -> nn.Module:
    return nn.Sequential(
        OrderedDict(conv1=nn.Conv2d(3, 8, 3), bn1=nn.BatchNorm2d(8), fc=nn.Linear(8, 4))
    )


def profiled(dtype: torch.dtype = torch.float64) -> nn.Module:
    """A model after `thop.profile`, which registers two counters in every module."""
    made = model()
    for part in list(made.modules()):
        part.register_buffer("total_ops", torch.zeros(1, dtype=dtype))
        part.register_buffer("total_params", torch.zeros(1, dtype=dtype))
    return made


def found(path: Path) -> list[dict[str, Any]]:
    done = inside("inspect", path.name, "--json", cwd=path.parent)
    return [
        row
        for row in json.loads(done.out)["findings"]
        if row["code"] == "extra-buffers"
    ]


@pytest.mark.parametrize("key", ["state_dict", None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_counters_of_a_profiler_are_named_and_left_out_by_the_command(
    tmp_path: Path, key: str | None, dtype: torch.dtype
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    state = profiled(dtype).state_dict()
    torch.save({key: state} if key else state, folder / "a.pth")

    (finding,) = found(folder / "a.pth")

    assert (
        finding["message"]
        == "8 tensors total_ops, total_params are counters of thop.profile, no weights."
    )
    assert finding["level"] == "info" and len(finding["tensors"]) == 8
    (wrote,) = printed.check_commands(
        finding["hint"], folder, tmp_path / "scratch"
    ).values()
    model().load_state_dict(torch.load(wrote[0], weights_only=True))
    said = inside("inspect", "a.pth", cwd=folder).out.decode()
    assert "unknown" not in said.splitlines()[0], "a counter is no parameter"


def test_an_optimizer_beside_a_profiled_model_holds_its_parameters(
    tmp_path: Path,
) -> None:
    net = profiled()
    optimizer = torch.optim.Adam(net.parameters())
    for parameter in list(net.parameters())[:-1]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pth",
    )
    done = inside("inspect", "a.pth", "--json", cwd=tmp_path)
    unused = [
        row for row in json.loads(done.out)["findings"] if row["code"] == "unused"
    ]
    assert [row["tensors"] for row in unused] == [["model.fc.bias"]]


def test_warmstart_and_diff_count_them_apart(tmp_path: Path) -> None:
    torch.save(profiled().state_dict(), tmp_path / "a.pth")
    plain = model().state_dict()
    del plain["bn1.num_batches_tracked"]  # as before torch 0.4.1
    torch.save(plain, tmp_path / "b.pth")
    done = inside(
        "warmstart", "a.pth", "--into", "b.pth", "--dry-run", cwd=tmp_path
    ).out.decode()
    assert "0 missing; 0 unexpected; 9 without weights" in done
    assert "ignored, counters of thop.profile, no weights: total_{ops,params}" in done
    assert (
        "ignored, counters of batch normalization, which old files lack: "
        "bn1.num_batches_tracked"
    ) in done.replace("\n  ", " ")
    back = inside(
        "warmstart", "b.pth", "--into", "a.pth", "--dry-run", cwd=tmp_path
    ).out.decode()
    assert "0 missing; 0 unexpected; 9 without weights" in back
    assert "kept, counters of thop.profile, no weights" in back
    done = inside("diff", "a.pth", "b.pth", "--json", cwd=tmp_path)
    texts = [
        row["message"]
        for row in json.loads(done.out)["findings"]
        if row["code"] == "extra-buffers"
    ]
    assert texts == [
        (
            "8 of 9 removed tensors (total_ops, total_params): counters of "
            "thop.profile, no weights."
        ),
        (
            "1 of 9 removed tensors (num_batches_tracked): counters of batch "
            "normalization, which old files lack."
        ),
    ]


def test_what_newer_versions_compute_is_named_with_both_readings(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    state: dict[str, torch.Tensor] = {
        "embeddings.position_ids": torch.arange(16).expand(1, -1).clone()
    }
    for n in range(3):
        state[f"h.{n}.attn.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.uint8)
        state[f"h.{n}.attn.masked_bias"] = torch.tensor(-1e4)
        state[f"h.{n}.attn.rotary_emb.inv_freq"] = torch.rand(4)
        state[f"h.{n}.attn.c_attn.weight"] = torch.randn(8, 24)
        state[f"h.{n}.attn.c_attn.bias"] = torch.randn(24)
    torch.save(state, folder / "a.pth")
    (finding,) = found(folder / "a.pth")
    assert (
        len(finding["tensors"]) == 10
        and "computed when the model is built" in finding["message"]
    )
    assert "Newer versions of some packages" in finding["consequence"]
    (wrote,) = printed.check_commands(
        finding["hint"], folder, tmp_path / "scratch"
    ).values()
    kept = torch.load(wrote[0], weights_only=True)
    assert sorted({name.split("attn.", 1)[1] for name in kept}) == [
        "c_attn.bias",
        "c_attn.weight",
    ]


@pytest.mark.parametrize(
    "state",
    [
        {"fc.total_ops": torch.zeros(1), "fc.weight": torch.ones(2, 2)},
        {
            "fc.total_ops": torch.zeros(3),
            "fc.total_params": torch.zeros(3),
            "fc.weight": torch.ones(2, 2),
        },
        {
            "a.duration": torch.zeros(1),
            "a.Memory": torch.zeros(2),
            "a.weight": torch.ones(2),
        },
        {
            "position_ids": torch.ones(1, 4),
            "attn.bias": torch.ones(4, 4),
            "inv_freq": torch.ones(2, 2),
        },
    ],
)
def test_a_name_alone_is_no_evidence(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    torch.save(state, tmp_path / "a.pth")
    assert found(tmp_path / "a.pth") == []


def test_torchstat_leaves_counters_too(tmp_path: Path) -> None:
    state = {"fc.weight": torch.ones(2, 2)}
    state |= {
        f"fc.{name}": torch.zeros(1) for name in ("Flops", "Memory", "MAdd", "duration")
    }
    torch.save(state, tmp_path / "a.pth")
    (finding,) = found(tmp_path / "a.pth")
    assert "torchstat" in finding["message"] and len(finding["tensors"]) == 4
