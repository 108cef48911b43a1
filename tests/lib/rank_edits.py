"""Changing the files of ranks, and what the commands say of them then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from inside import inside

import ckpt

Edit = Callable[[dict[str, Any]], Any]


def change(path: Path, edit: Edit, **options: Any) -> None:
    """Save the file again with what `edit` changed in it."""
    state = torch.load(path, weights_only=False)
    edit(state)
    torch.save(state, path, **options)


def findings(folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Code of a finding -> its message and its tensors."""
    return {row.code: (row.message, row.tensors) for row in ckpt.inspect(folder).findings}


def refused(folder: Path, says: str) -> None:
    """Assert that the folder `c` is neither shown nor converted, with one line that says why."""
    for command in (("inspect", "c"), ("convert", "c", "-o", "o.pth")):
        done = inside(*command, cwd=folder.parent)
        assert done.code == 2 and done.err.count(b"\n") == 1, done
        assert says in done.err.decode() and "Traceback" not in done.err.decode(), done
    assert not (folder.parent / "o.pth").exists()
