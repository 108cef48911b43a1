"""What a distributed checkpoint says of values that it has lost with a file."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import deepspeeds
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from deepspeeds import TAG
from inside import inside

pytestmark = oracle.QUIET


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """`whole` and `cut`, which has lost the second of its two files, with the lists of
    the parameters.
    """
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(6)])
    groups: list[dict[str, Any]] = [
        {"lr": 0.1, "params": []},
        {"lr": 0.05, "params": []},
    ]
    state: dict[str, Any] = {}
    for number, (name, tensor) in enumerate(net.named_parameters()):
        groups[number % 2]["params"].append(name)
        moments = {
            "exp_avg": torch.ones_like(tensor),
            "exp_avg_sq": torch.ones_like(tensor),
        }
        state[name] = {"step": torch.tensor(3.0), **moments}
    optim = {"state": state, "param_groups": groups}
    whole = {"model": dict(net.state_dict()), "optim": optim, "step": 3, "note": "hi"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = dcp.FileSystemWriter(tmp_path / "whole", thread_count=2)
        dcp.save(whole, storage_writer=writer, no_dist=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "__0_1.distcp").unlink()
    return tmp_path


def lost(here: Path) -> set[str]:
    found = json.loads(
        inside("convert", "cut", "--partial", "--dry-run", "--json", cwd=here).out
    )
    return {
        row["name"] for row in found["left_out"] if row["what"].startswith("it was in ")
    }


def test_an_optimizer_counts_at_least_what_is_there(here: Path) -> None:
    assert {
        "optim.param_groups.0.params",
        "optim.param_groups.1.params",
        "note",
    } <= lost(here)
    text = inside("inspect", "cut", cwd=here).out.decode()
    assert "Adam-like, 12 of at least 12 parameters have state" in text, text
    assert "of at least" not in inside("inspect", "whole", cwd=here).out.decode()


def test_a_lost_rate_is_said(here: Path) -> None:
    """The other file has the rates."""
    shutil.copytree(here / "whole", here / "other")
    (here / "other" / "__0_0.distcp").unlink()
    text = inside("inspect", "other", cwd=here).out.decode()
    assert "lr lost" in text and "12 of 12 parameters" in text, text


@pytest.mark.parametrize("names", [("whole", "cut"), ("cut", "whole"), ("cut", "cut")])
def test_diff_counts_what_is_lost_neither_as_added_nor_as_removed(
    names: tuple[str, str], here: Path
) -> None:
    done = inside("diff", *names, "--json", cwd=here)
    report = json.loads(done.out)
    assert done.code == 2 and not report["values"] and not report["same"], done
    said = [
        row
        for row in report["not_compared"]
        if row.startswith("note of cut is lost: it was in __0_1")
    ]
    assert len(said) == 1 and not any(
        "note of whole" in row for row in report["not_compared"]
    ), report
    text = inside("diff", *names, cwd=here).out.decode()
    assert (
        "not compared: note of cut is lost" in text
        and "not in the other file" not in text
    ), text


@pytest.mark.parametrize("names", [("whole", "cut"), ("cut", "whole")])
def test_diff_of_a_rank_of_deepspeed_that_is_lost(
    names: tuple[str, str], tmp_path: Path
) -> None:
    for name in ("whole", "cut"):
        deepspeeds.write(tmp_path / name, 3)
    (tmp_path / "cut" / TAG / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    done = inside("diff", *names, "--json", cwd=tmp_path)
    report = json.loads(done.out)
    statuses = {row["status"] for row in report["tensors"]}
    assert done.code == 2 and statuses == {"same"} and not report["same"], (
        done.err,
        statuses,
    )
    assert any(
        row.startswith("model.up.weight of cut is lost")
        for row in report["not_compared"]
    ), report


def test_get_carries_what_is_wrong_with_the_checkpoint(here: Path) -> None:
    done = inside("get", "cut", "step", cwd=here)
    assert (
        done.code == 0
        and done.out == b"3\n"
        and b"1 of 2 data files missing: __0_1.distcp" in done.err
    ), done
    done = inside("get", "cut", "note", cwd=here)
    assert done.code == 2 and b"note is lost: it was in __0_1.distcp" in done.err, done
    assert inside("get", "whole", "step", cwd=here).err == b""


def test_get_from_metadata_of_another_save(here: Path) -> None:
    """The files of a later save are shorter, and have other names."""
    (here / "cut" / "__1_0.distcp").write_bytes(
        (here / "whole" / "__0_1.distcp").read_bytes()
    )
    done = inside("get", "cut", "step", cwd=here)
    assert (
        done.code == 0
        and b"names nothing in __1_0.distcp" in done.err
        and b"missing" in done.err
    ), done
