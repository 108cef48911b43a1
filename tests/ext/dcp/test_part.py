"""`convert --section` and `--include` into a DCP: torch finds the part under its own
names, and the rest is listed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from inside import inside

import ckpt

pytestmark = oracle.QUIET

NUMBERS = ("--optimizer-keys", "numbers")


def run(*words: str | Path, cwd: Path, code: int = 0) -> str:
    done = inside(*map(str, words), cwd=cwd)
    assert done.code == code, done
    return done.out.decode() + done.err.decode()


def state(count: int = 6) -> dict[str, Any]:
    weights = {
        f"layers.{number}.weight": torch.arange(12.0).view(4, 3) + number
        for number in range(count)
    }
    weights |= {"norm.weight": torch.ones(3), "norm.bias": torch.zeros(3)}
    moments = {
        number: {"exp_avg": torch.ones(4, 3), "step": torch.tensor(3.0)}
        for number in range(count)
    }
    groups = [{"lr": 0.1, "params": list(range(count))}]
    return {
        "model": weights,
        "optimizer": {"state": moments, "param_groups": groups},
        "epoch": 3,
    }


def loaded(folder: Path, wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {name: torch.full_like(tensor, 77) for name, tensor in wanted.items()}
    dcp.load(found, checkpoint_id=str(folder), no_dist=True)
    return found


def check(folder: Path, wanted: dict[str, torch.Tensor]) -> None:
    """Assert that a folder holds these tensors and no others, and that torch loads
    them.
    """
    with ckpt.open(str(folder)) as checkpoint:
        assert set(checkpoint) == set(wanted)
    found = loaded(folder, wanted)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert inside("verify", folder.name, cwd=folder.parent).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a.pth", "d"])
@pytest.mark.parametrize("count", [6, 700])
def test_a_section_and_a_selection(kind: str, count: int, tmp_path: Path) -> None:
    whole = state(count)
    weights = whole["model"]
    torch.save(whole, tmp_path / "a.pth")
    run(
        "convert",
        "a.pth",
        "-o",
        "d",
        "--format",
        "dcp",
        "--ranks",
        "2",
        *NUMBERS,
        cwd=tmp_path,
    )
    said = run("convert", kind, "-o", "model.dcp", "--section", "model", cwd=tmp_path)
    assert (
        f"left out: optimizer: optimizer, {2 * count:,} tensors" in said
        or "left out: optimizer: " in said
    )
    assert "left out: epoch = 3" in said
    check(tmp_path / "model.dcp", weights)
    for options, kept in (
        (("--include", "*norm*"), [name for name in weights if "norm" in name]),
        (("--exclude", "*norm*"), [name for name in weights if "norm" not in name]),
        (("--section", "model", "--include", "*.1.*"), ["layers.1.weight"]),
    ):
        said = run("convert", kind, "-o", "part.dcp", "--force", *options, cwd=tmp_path)
        assert f"left out: (not selected): {len(weights) - len(kept):,} tensors" in said
        check(tmp_path / "part.dcp", {name: weights[name] for name in kept})


def test_items_that_stay_are_taken_as_they_are(tmp_path: Path) -> None:
    """The chunks of two ranks stay two, and --ranks cuts them anew."""
    torch.save(state(), tmp_path / "a.pth")
    run("convert", "a.pth", "-o", "d.dcp", "--ranks", "2", *NUMBERS, cwd=tmp_path)

    def items(folder: str) -> set[tuple[str, ...]]:
        text = run("sum", "--recorded", folder, cwd=tmp_path)
        return {
            tuple(line.split(None, 2))
            for line in text.splitlines()
            if " layers." in line.replace("model.", "")
        }

    before = {
        (crc, size, name.removeprefix("model."))
        for crc, size, name in items("d.dcp")
        if "model." in name
    }
    run("convert", "d.dcp", "-o", "o.dcp", "--section", "model", cwd=tmp_path)
    assert items("o.dcp") == before and len(before) == 12
    run(
        "convert",
        "d.dcp",
        "-o",
        "one.dcp",
        "--section",
        "model",
        "--ranks",
        "1",
        cwd=tmp_path,
    )
    assert len(items("one.dcp")) == 6


def test_a_section_is_cast(tmp_path: Path) -> None:
    whole = state()
    torch.save(whole, tmp_path / "a.pth")
    run(
        "convert",
        "a.pth",
        "-o",
        "o.dcp",
        "--section",
        "model",
        "--dtype",
        "bfloat16",
        cwd=tmp_path,
    )
    check(
        tmp_path / "o.dcp",
        {name: tensor.bfloat16() for name, tensor in whole["model"].items()},
    )


def test_the_optimizer(tmp_path: Path) -> None:
    whole = state()
    torch.save(whole, tmp_path / "a.pth")
    said = run(
        "convert", "a.pth", "-o", "o.dcp", "--section", "optimizer", cwd=tmp_path
    )
    assert "left out: model: " in said
    found: Any = {
        "state": {
            str(number): {"exp_avg": torch.zeros(4, 3), "step": torch.tensor(0.0)}
            for number in range(6)
        },
        "param_groups": [{"lr": 0, "params": []}],
    }
    dcp.load(found, checkpoint_id=str(tmp_path / "o.dcp"), no_dist=True)
    assert found["param_groups"] == whole["optimizer"]["param_groups"]
    assert all(
        float(row["step"]) == 3 and row["exp_avg"].sum() == 12
        for row in found["state"].values()
    )


def test_the_account_is_in_the_json(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "a.pth")
    done = json.loads(
        inside(
            "convert",
            "a.pth",
            "-o",
            "o.dcp",
            "--include",
            "*norm*",
            "--json",
            cwd=tmp_path,
        ).out
    )
    assert done["command"] == "convert" and done["tensors"] == 2
    assert done["input"]["format"] == "torch-zip" and done["output"]["format"] == "dcp"
    assert {"optimizer", "epoch", "(not selected)"} <= {
        row["name"] for row in done["left_out"]
    }


@pytest.mark.parametrize(
    "words, why",
    [
        (("-o", "o.dcp", "--include", "nothing"), "no tensor matches"),
        (("-o", "o.dcp", "--section", "nothing"), "no section nothing"),
        (("-o", "o.pth", "--include", "*norm*"), "ckpt slim takes them"),
    ],
)
def test_refused(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "a.pth")
    assert why in run("convert", "a.pth", *words, cwd=tmp_path, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pth"]
