"""Runs every command that README.md shows and writes its output into the page: `make docs`.

A block follows a line `<!-- run: COMMAND -->`; commands run in sample_checkpoints/. The test of the docs calls
`refreshed` and compares.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(<!-- run: (.+?) -->\n)(?:```console\n.*?\n```\n)?", re.DOTALL)


def output_of(command: str) -> str:
    """What a command prints, both streams in their order, as a pipe of 100 columns sees it."""
    words = shlex.split(command)
    assert words[0] == "ckpt", command
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "CKPT_DEBUG")}
    done = subprocess.run(
        [sys.executable, "-m", "ckpt", *words[1:]],
        cwd=ROOT / "sample_checkpoints",
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
    return _BLOCK.sub(lambda m: f"{m[1]}```console\n$ {m[2]}\n{output_of(m[2]).rstrip()}\n```\n", page)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(refreshed(readme.read_text(encoding="utf-8")), encoding="utf-8")
