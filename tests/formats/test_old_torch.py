"""What is written here loads in torch 1.13 as well. Needs such a torch: Debian's
`python3-torch`, or `CKPT_OLD_TORCH`, the path of a Python that has one.
"""

from __future__ import annotations

import os
import subprocess
from collections import OrderedDict
from functools import cache
from pathlib import Path

import pytest
import rewriting
import torch
from process import TIMEOUT, ckpt
from torch import nn

SCRIPT = Path(__file__).resolve().parents[1] / "lib" / "load_old.py"


@cache
def old_python() -> str | None:
    """A Python whose torch is older than 2, None when there is none."""
    for python in filter(None, (os.environ.get("CKPT_OLD_TORCH"), "/usr/bin/python3")):
        code = "import torch; raise SystemExit(not torch.__version__.startswith('1.'))"
        try:
            if (
                subprocess.run(
                    [python, "-c", code], capture_output=True, timeout=TIMEOUT
                ).returncode
                == 0
            ):
                return python
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


def seen(path: Path) -> list[str]:
    python = old_python()
    if python is None:
        pytest.skip("no torch 1 here: python3-torch of Debian, or CKPT_OLD_TORCH")
    ran = subprocess.run(
        [python, str(SCRIPT), str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ran.returncode == 0, ran.stderr[-1000:]
    return ran.stdout.splitlines()


def training(path: Path, **options: object) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(
        OrderedDict(conv=nn.Conv2d(3, 4, 3), bn=nn.BatchNorm2d(4), fc=nn.Linear(4, 2))
    )
    optimizer = torch.optim.Adam(net.parameters())
    net.fc(net.bn(net.conv(torch.randn(2, 3, 5, 5))).mean((2, 3))).sum().backward()
    optimizer.step()
    state = OrderedDict(
        (f"module.{name}", value) for name, value in net.state_dict().items()
    )
    state["module.tied.weight"] = state["module.fc.weight"]
    state["module.half.weight"] = torch.randn(3).to(torch.bfloat16)
    thing = {"model": state, "optimizer": optimizer.state_dict(), "epoch": 3}
    return rewriting.saved(thing, path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        ("rehome", "--to", "cpu"),
        ("strip",),
        ("rename", "--sub", "s/^module\\.//"),
        ("slim",),
        ("convert", "--plain"),
        ("convert", "--format", "torch-legacy"),
        ("convert", "--format", "torch-zip"),
    ],
    ids=" ".join,
)
def test_an_old_torch_loads_what_is_written(
    command: tuple[str, ...], legacy: bool, tmp_path: Path
) -> None:
    source = training(tmp_path / "a.pth", _use_new_zipfile_serialization=not legacy)
    out = tmp_path / "b.pth"
    assert ckpt(command[0], source, *command[1:], "-o", out).code == 0

    found = seen(out)

    model = [line for line in seen(source) if line.startswith("model.")]
    kept = [
        line.split(" ", 1)[1] for line in found if not line.startswith("optimizer.")
    ]
    assert kept == [line.split(" ", 1)[1] for line in model], (
        "values, geometry and sharing"
    )


def test_an_old_torch_loads_a_file_that_was_changed_in_place(tmp_path: Path) -> None:
    source = training(tmp_path / "a.pth")
    before = seen(source)

    assert ckpt("strip", source, "--in-place").code == 0

    assert [
        line.replace("model.", "model.module.", 1) if "model." in line else line
        for line in seen(source)
    ] == before


def test_an_old_torch_loads_weights_from_safetensors(tmp_path: Path) -> None:
    source = training(tmp_path / "a.pth")
    assert ckpt("convert", source, "-o", tmp_path / "b.safetensors").code == 0
    assert (
        ckpt("convert", tmp_path / "b.safetensors", "-o", tmp_path / "c.pth").code == 0
    )

    found = {
        line.split(" ")[0]: line.split(" ")[-1] for line in seen(tmp_path / "c.pth")
    }

    before = [line for line in seen(source) if line.startswith("model.")]
    assert found == {
        line.split(" ")[0].removeprefix("model."): line.split(" ")[-1]
        for line in before
    }
