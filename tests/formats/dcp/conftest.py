"""Distributed checkpoints for the tests of this folder: of several ranks, and small ones to be broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from once import once
from process import ROOT, TIMEOUT


def _train(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests/lib/train_dcp.py"), str(folder)],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/lib'}", "PATH": "", "TORCH_LOGS": "-all"},
        check=True,
        capture_output=True,
        timeout=TIMEOUT,
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the checkpoints of train_dcp.py. Nothing may be changed there."""
    return once(tmp_path_factory, "dcp", _train)
