"""What all tests share: the samples, and the command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of sample checkpoints."""
    return ROOT / "sample_checkpoints"


@pytest.fixture
def ckpt(samples: Path) -> Run:
    """Runs `ckpt ARGUMENTS` in a process of its own, among the samples, its streams piped."""

    def run(*arguments: str, cwd: Path = samples, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "CKPT_DEBUG")}
        return subprocess.run(
            [sys.executable, "-m", "ckpt", *arguments],
            cwd=cwd,
            env={**clean, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **environment},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )

    return run
