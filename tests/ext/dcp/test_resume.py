"""Training goes on from what ckpt writes: in FSDP2, DDP and plain torch, on other
numbers of ranks, with the same losses.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import oracle
import pytest
from inside import inside
from process import ROOT, TIMEOUT

pytestmark = [*oracle.QUIET, pytest.mark.slow]

ORDER = ("--optimizer-keys", "order")
KINDS = ("adam", "sgd")


def trained(folder: Path, what: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "lib" / "train_resume.py"),
            str(folder),
            what,
        ],
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]


def losses(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_two_more_steps_have_the_losses_of_the_original(tmp_path: Path) -> None:
    trained(tmp_path, "begin")
    for kind in KINDS:
        for arguments in (
            (
                f"ddp-{kind}.pth",
                "-o",
                f"ddp-{kind}.dcp",
                *ORDER,
                "--complete-optimizer",
                "--ranks",
                "3",
            ),
            (
                f"fsdp2-{kind}.dcp",
                "-o",
                f"fsdp2-{kind}.complete.dcp",
                "--complete-optimizer",
            ),
            (f"fsdp2-{kind}.dcp", "-o", f"fsdp2-{kind}.pth"),
        ):
            done = inside("convert", *arguments, cwd=tmp_path)
            assert done.code == 0, done
    trained(tmp_path, "go-on")
    runs = sorted(path for path in tmp_path.glob("*.json") if " to " in path.name)
    assert len(runs) == 2 * (3 * 4 + 1)
    for run in runs:
        original = losses(tmp_path / f"{run.name.partition(' ')[0]}.json")
        assert losses(run) == pytest.approx(original, rel=1e-5, abs=0), run.name
