"""What is slow to make is made once, by whichever worker of the suite needs it first."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` has filled. All workers share it, so no test may change it."""
    base = factory.getbasetemp()
    if base.name.startswith("popen-"):  # of one worker; above it is that of the whole run
        base = base.parent
    folder = base / name
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / f"{name}.done").exists():
            folder.mkdir()
            make(folder)
            (base / f"{name}.done").touch()
    return folder
