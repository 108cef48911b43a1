"""The output of `ckpt explain` for a message and a file, and what its commands and
lines of Python give.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import folder_of
from process import ckpt
from safetensors.torch import save_file


def raised(act: Callable[[], Any]) -> str:
    """The text of the error that a library raises."""
    with pytest.raises(BaseException) as caught:
        act()
    return f"{caught.type.__name__}: {caught.value}"


def weights(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Tensors of some shapes, with `__` for a dot in their names."""
    return {name.replace("__", "."): torch.randn(s) for name, s in shapes.items()}


def listed(names: Any) -> str:
    """Names as torch lists them."""
    return ", ".join(f'"{name}"' for name in names) + ". "


class Answered:
    """The output of `ckpt explain` for a message and a file."""

    def __init__(self, text: str, path: Path) -> None:
        done = ckpt(
            "explain", "-", path.name, "--json", cwd=path.parent, input=text.encode()
        )
        shown = ckpt("explain", "-", path.name, cwd=path.parent, input=text.encode())
        self.folder = path.parent
        self.code = done.code
        assert shown.code == done.code
        assert done.out, done.err
        document = json.loads(done.out)
        self.kind = document["message"]["kind"] if document["message"] else None
        rows = document["answer"]["statements"]
        self.said = " ".join(row["text"] for row in rows)
        self.names = [name for row in rows for name in row["names"]]
        self.commands = [row["command"] for row in rows if row["command"]]
        self.page = shown.out.decode()

    def run(self, begin: str) -> Path:
        """Run the only printed command that begins so, as a user pastes it, and return
        what it has written.
        """
        (command,) = [command for command in self.commands if command.startswith(begin)]
        program, *words = shlex.split(command)
        done = ckpt(*words, cwd=self.folder)
        assert program == "ckpt" and done.code == 0, done.err
        return self.folder / words[words.index("-o") + 1]

    def loaded(self) -> Any:
        """The object that the printed line of Python gives."""
        (line,) = [
            command
            for command in self.commands
            if command.startswith(("torch.load(", "torch.jit.load(", "safetensors."))
        ]
        with folder_of(self.folder):
            return eval(
                line, {"torch": torch, "safetensors": __import__("safetensors.torch")}
            )


def write_folder(folder: Path, state: dict[str, torch.Tensor], **config: Any) -> Path:
    """Write a folder of transformers with one file of weights."""
    folder.mkdir()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder
