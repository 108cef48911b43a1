"""Runs every command that the pages show and writes its output into them: `make docs`.

A block follows a line `<!-- run: COMMAND -->`. The commands of a page run one after the
other in a copy of sample_checkpoints/ of its own, so they may write files; pages run
side by side. The shell runs each command, so a block may show a pipe or a redirection.
Without arguments the pictures are drawn too (tools/pictures.py). The test of the docs
calls `refreshed_pages` and compares.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(<!-- run: (.+?) -->\n)(?:```console\n.*?\n?```\n)?", re.DOTALL)
_SOURCES = {
    f"docs/{name}.md": f"ckpt/ext/explain/{name}.md" for name in ("findings", "errors")
}
"""Pages that `ckpt explain` shows too -> the files that they are made of."""
_SETTINGS = ("NO_COLOR", "FORCE_COLOR", "CKPT_DEBUG")


def pages(root: Path = ROOT) -> list[str]:
    """The pages that are made: those that show commands, and those of `ckpt explain`,
    as paths below the root.
    """
    found = [*sorted(root.glob("README*.md")), *sorted((root / "docs").rglob("*.md"))]
    names = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in found
    }
    return [
        name for name, text in names.items() if name in _SOURCES or _BLOCK.search(text)
    ]


def source(name: str) -> str:
    """The text that a page is made of, with or without what its commands print."""
    return (ROOT / _SOURCES.get(name, name)).read_text(encoding="utf-8")


def refreshed_pages(names: Iterable[str]) -> dict[str, str]:
    """The text of each page with every block as its command prints it today."""
    names = list(names)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        texts = pool.map(lambda name: refreshed(source(name)), names)
        return dict(zip(names, texts, strict=True))


def refreshed(page: str) -> str:
    """A page with every block as its command prints it today."""
    texts = iter(printed(page))
    return _BLOCK.sub(lambda block: f"{block[1]}```console\n{next(texts)}\n```\n", page)


def blocks(page: str) -> list[str]:
    """The blocks of a page that commands have printed, with their fences."""
    return [block[0].removeprefix(block[1]) for block in _BLOCK.finditer(page)]


def printed(page: str, python: str = sys.executable, **settings: str) -> list[str]:
    """Each command of a page with what it prints today, by a Python that has ckpt, with
    more settings.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder, programs = Path(temporary) / "samples", Path(temporary) / "bin"
        shutil.copytree(ROOT / "sample_checkpoints", folder)
        programs.mkdir()
        program = programs / "ckpt"
        program.write_text(
            f'#!/bin/sh\nexec {shlex.quote(python)} -m ckpt "$@"\n', encoding="utf-8"
        )
        program.chmod(0o755)
        commands = [block[2] for block in _BLOCK.finditer(page)]
        outputs = [
            (command, output_of(command, folder, programs, **settings))
            for command in commands
        ]
        return [
            "\n".join(filter(None, (f"$ {command}", text.rstrip())))
            for command, text in outputs
        ]


def output_of(command: str, folder: Path, programs: Path, **more: str) -> str:
    """What a command prints, both streams in their order, as a pipe of 100 columns sees
    it, with `more` settings.
    """
    assert command.startswith("ckpt "), command
    settings = {
        name: value for name, value in os.environ.items() if name not in _SETTINGS
    }
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={
            **settings,
            "PATH": f"{programs}{os.pathsep}{settings.get('PATH', '')}",
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
            "COLUMNS": "100",
            "CKPT_NO_PLUGINS": "1",
            **more,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        encoding="utf-8",
    )
    code = f"(exit {done.returncode})\n" if done.returncode else ""
    return done.stdout + code


if __name__ == "__main__":
    for name, text in refreshed_pages(sys.argv[1:] or pages()).items():
        (ROOT / name).write_text(text, encoding="utf-8")
    if not sys.argv[1:]:
        import pictures  # beside this file
        import schemas

        pictures.write()
        schemas.write()
