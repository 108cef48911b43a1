"""Runs every command that the pages show and writes its output into them: `make docs`.

A block follows a line `<!-- run: COMMAND -->`; the commands of a page run one after the other in a copy of
sample_checkpoints/, so that they may write. The test of the docs calls `refreshed` and compares.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(<!-- run: (.+?) -->\n)(?:```console\n.*?\n```\n)?", re.DOTALL)


PAGES = ("README.md", "docs/check.md", "docs/ddp.md", "docs/errors.md", "docs/migrate.md")


def output_of(command: str, folder: Path) -> str:
    """What a command prints, both streams in their order, as a pipe of 100 columns sees it."""
    words = shlex.split(command)
    assert words[0] == "ckpt", command
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "CKPT_DEBUG")}
    done = subprocess.run(
        [sys.executable, "-m", "ckpt", *words[1:]],
        cwd=folder,
        env={**environment, "COLUMNS": "100", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        encoding="utf-8",
    )
    code = f"(exit {done.returncode})\n" if done.returncode else ""
    return done.stdout + code


def refreshed(page: str) -> str:
    """The page with every block as the command prints it today."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "samples"
        shutil.copytree(ROOT / "sample_checkpoints", folder)
        return _BLOCK.sub(
            lambda m: f"{m[1]}```console\n$ {m[2]}\n{output_of(m[2], folder).rstrip()}\n```\n", page
        )


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / name
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
