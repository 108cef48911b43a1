"""What is slow to make is made once, by whichever worker of the suite needs it
first.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from process import ROOT, TIMEOUT


def once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Path:
    """The folder that `make` has filled. All workers share it, so no test may change
    it.
    """
    base = factory.getbasetemp()
    if base.name.startswith(
        "popen-"
    ):  # of one worker; above it is that of the whole run
        base = base.parent
    folder = base / name
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / f"{name}.done").exists():
            folder.mkdir()
            make(folder)
            (base / f"{name}.done").touch()
    return folder


def script(name: str, *arguments: str) -> Callable[[Path], None]:
    """What fills a folder by running a script of tests/lib on it, in a Python of its
    own.
    """

    def make(folder: Path) -> None:
        subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                str(ROOT / "tests/lib" / name),
                str(folder),
                *arguments,
            ],
            env={
                "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/lib'}",
                "PATH": "",
                "TORCH_LOGS": "-all",
            },
            check=True,
            capture_output=True,
            timeout=TIMEOUT,
        )

    return make
