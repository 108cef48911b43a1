"""Rewriting for the tests: a checkpoint through an edit, to a file, and back."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import rewriting
import torch

import ckpt
from ckpt import formats
from ckpt.bytes import target
from ckpt.commands.convert import convert as converting
from ckpt.commands.diff.diff import DiffReport, Options, diff
from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.report import Coverage, RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.formats import save, writer_of
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.limits import Limits
from ckpt.pickle.edit import Edit

LIMITS = Limits()


def unedited(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint over a copy of its tree: every byte of its pickle is
    written anew.
    """
    return edited_checkpoint(checkpoint, Edit().copy(checkpoint.root), LIMITS)


def convert(checkpoint: Checkpoint, format: str, **options: Any) -> RewriteReport:
    """The checkpoint as a format that is written holds it: what `ckpt convert`
    makes.
    """
    return converting.convert(
        Survey(checkpoint),
        format,
        save.traits_of(format),
        Limits(),
        writer_of(format).unfit,
        **options,
    )


def write(checkpoint: Checkpoint, to: Path, format: str | None = None) -> Path:
    save.save_checkpoint(
        checkpoint,
        target.target(str(to), force=True),
        format or save.own_format(checkpoint),
        LIMITS,
    )
    return to


def again(path: Path, to: Path, format: str | None = None) -> Path:
    """`path` read, copied node by node, and written to `to`."""
    with formats.open(str(path)) as checkpoint:
        return write(unedited(checkpoint), to, format)


def load(path: Path, **options: Any) -> Any:
    return torch.load(path, **{"weights_only": False, **options})


def saved(thing: Any, path: Path, **options: Any) -> Path:
    """`thing` as torch saves it."""
    torch.save(thing, path, **options)
    return path


def in_memory(thing: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer, **options)
    return buffer.getvalue()


def compared(before: Any, after: Any, folder: Path, **options: Any) -> DiffReport:
    """What differs between two objects."""
    paths = [
        rewriting.saved(thing, folder / name)
        for thing, name in ((before, "a.pt"), (after, "b.pt"))
    ]
    with formats.open(str(paths[0])) as one, formats.open(str(paths[1])) as two:
        return diff(Survey(one), Survey(two), Options(**options))


def statuses(report: DiffReport) -> dict[str, str]:
    """The status of each row by the name after, where there is one."""
    return {row.name: row.status for row in report.rows}


def changes(report: DiffReport) -> dict[str, str]:
    """The status of each value that differs, by its name."""
    return {row.name: row.status for row in report.values}


def filled(model: Any, path: Path, **options: Any) -> Coverage:
    """Load a file into a live model, and return the plan."""
    with ckpt.open(path) as opened:
        return opened.load_into(model, **options)
