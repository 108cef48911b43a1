"""The commands that texts of ckpt print, and what happens to the one who pastes
them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from inside import inside
from process import Done

from ckpt.surface.cli.app import COMMANDS

LOOKS = frozenset(("inspect", "get", "diff", "stats", "lint", "verify", "sum"))
"""Commands that write nothing: with these, 1 is an answer."""
_BEGIN = re.compile(
    rf"(?:^\s*|[(:] )(?=ckpt (?:{'|'.join(COMMANDS)}) )"
    rf"|\((?=ckpt (?:{'|'.join(COMMANDS)}) )"
)


def commands_in(text: str) -> list[str]:
    """The `ckpt …` commands of a text: each a line of its own, or behind a bracket or a
    colon up to the closing bracket.
    """
    found: dict[str, None] = {}
    for line in text.splitlines():
        for match in _BEGIN.finditer(line):
            found[_up_to_bracket(line[match.end() :])] = None
    return list(found)


def _up_to_bracket(text: str) -> str:
    """A command up to the bracket that closes around it; brackets in quotes are its
    own.
    """
    quote, skip = "", False
    for number, char in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = char == "\\" and quote == "$'"
            quote = "" if char == quote[-1] else quote
        elif char in "'\"":
            quote = "$'" if char == "'" and text[number - 1] == "$" else char
        elif char == ")":
            return text[:number]
    return text.rstrip()


def words_of(command: str, cwd: Path) -> list[str]:
    """The arguments that a shell makes of a command: bash itself where there is
    `$'…'`.
    """
    if "$'" not in command:
        return shlex.split(command)
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"],
        capture_output=True,
        check=True,
        cwd=cwd,
    )
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def paste(command: str, folder: Path, scratch: Path) -> tuple[Done, list[Path]]:
    """Run a printed command in a copy of the folder that it was printed in: how it
    ended, and what it wrote.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, scratch, symlinks=True)
    before = {path for path in scratch.rglob("*") if path.is_file()}
    program, *arguments = words_of(command, scratch)
    assert program == "ckpt"
    done = inside(*arguments, cwd=scratch)
    return done, sorted(
        path for path in scratch.rglob("*") if path.is_file() and path not in before
    )


def check_commands(text: str, folder: Path, scratch: Path) -> dict[str, list[Path]]:
    """Assert that all commands of a text work when they are pasted. Command -> the
    files that it wrote.
    """
    wrote = {}
    for number, command in enumerate(commands_in(text)):
        assert not re.search(r"\b(?:FILE|OUT|FACTORY)\b", command), command
        done, files = paste(command, folder, scratch / str(number))
        allowed = (0, 1) if command.split()[1] in (*LOOKS, "salvage") else (0,)
        assert done.code in allowed, (command, done.err.decode())
        wrote[command] = files
    return wrote
