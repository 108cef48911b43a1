"""What the ranks of sharded runs save for themselves, for the tests of several folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from once import once
from process import ROOT, TIMEOUT


def _train(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests/lib/train_ranks.py"), str(folder)],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/lib'}", "PATH": "", "TORCH_LOGS": "-all"},
        check=True,
        capture_output=True,
        timeout=TIMEOUT,
    )


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what train_ranks.py writes. Nothing may be changed there."""
    return once(tmp_path_factory, "ranks", _train)
