"""Where a writing command writes to: what its options say, the file or folder of one PATH, what lies there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ckpt import formats
from ckpt.checkpoint import Checkpoint
from ckpt.errors import UnreadableError, UsageError
from ckpt.formats import save
from ckpt.formats.dcp.names import is_part
from ckpt.formats.sharded.write import set_pattern
from ckpt.io import commit, folder, leftover
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.jobs.rewrite.sets.partial import is_partial
from ckpt.limits import Limits
from ckpt.text import show


class WriteOptions(NamedTuple):
    """What the options of a writing command say, and what the command adds to them.

    A path that is suggested is that of the input with `suffix` before its ending, or with `ending` in place of it.
    """

    output: str | None = None
    in_place: bool | None = False
    """None where the command does not know it."""
    copy: bool = False
    force: bool = False
    dry_run: bool = False
    verify: str | None = None
    keep_code: bool = False
    json: bool = False
    limits: Limits = Limits()
    suffix: str = ""
    ending: str | None = None
    format: str | None = None
    plain: bool = False
    """Whether the result must load with weights_only=True."""
    shard_bytes: int | None = None
    weights_file: bool = False
    """Whether the command changes the file of the weights of a folder, and not all of the folder."""
    ranks: int | None = None
    """Into how many files the tensors of a distributed checkpoint are cut."""
    link: bool = False
    """Whether data files that stay as they are become hard links."""
    can_be_partial: bool = False
    """Whether the command takes --partial."""
    min_coverage: float | None = None
    """The share of elements that a warm start must load, or nothing is written."""


def check_targets(paths: list[str], options: WriteOptions) -> None:
    """Raise CkptError where a result would take the place of another one, before any is written."""
    if options.shard_bytes:
        raise UsageError("--shard-size takes one PATH: all shards would have the same names")
    taken: dict[str, str] = {}
    for path in paths:
        to = target_of(path, options)
        if to is None:
            continue
        other = taken.setdefault(to.real, path)
        if other is not path:
            raise UsageError(f"{show(other, 80)} would be written there too", path=to.path)


def can_stay(checkpoint: Checkpoint) -> bool:
    """Whether ckpt changes such a file where it is."""
    return (
        checkpoint.source is not None
        and not checkpoint.traits.is_folder
        and save.is_written(checkpoint.format)
    )


def refuse_source(report: RewriteReport, to: commit.Target | None, options: WriteOptions) -> None:
    """Raise UsageError where OUT is a file that is read: a mistaken edit would take its source with it."""
    if to is None or to.replaced is None:
        return
    source = report.source
    if save.is_source(source, to.real):
        can = options.in_place is not None and can_stay(source)
        hint = "--in-place" if can and (source.traits.in_place or not report.left_out) else "-o another file"
        raise UsageError("OUT is the source, which --force does not replace", path=to.path, hint=hint)
    if save.is_source(report.result, to.real):
        raise UsageError(
            "OUT is PRETRAINED, which --force does not replace", path=to.path, hint="-o another file"
        )


def left_over(to: commit.Target | None, options: WriteOptions) -> list[tuple[str, int]]:
    """What killed runs left beside the files that are to be written."""
    if to is not None:
        return leftover.left_over(to.real)
    if options.shard_bytes and options.output is not None:
        folder, stem = shard_place(options.output)
        files = rf"(?:{set_pattern(stem)}|{re.escape(stem)}\.safetensors(?:\.index\.json)?)"
        return leftover.left_over(os.path.join(folder, stem), files)
    return []


def target_of(path: str, options: WriteOptions) -> commit.Target | None:
    """Where one PATH is written to, None when it is changed in place or not at all."""
    if options.in_place or options.output is None:
        return None
    wanted = options.output
    as_folder = is_folder_made(path, options)
    if os.path.isdir(wanted) and not (as_folder and formats.is_folder_format(wanted, options.limits)):
        name = os.path.basename(os.path.normpath(path))
        wanted = os.path.join(wanted, save.renamed(name, options.format) if options.format else name)
    if as_folder:
        return folder.target(wanted, is_part, force=options.force)
    return commit.target(wanted, force=options.force)


def is_folder_made(path: str, options: WriteOptions) -> bool:
    """Whether the result of one PATH is a folder: its format is one, or it stays that of a source in a folder."""
    if options.format is not None:
        return save.traits_of(options.format).is_folder
    if options.output is None or not formats.is_folder_format(path, options.limits):
        return False
    try:
        return save.traits_of(save.format_for(options.output.rstrip("/"), None)).is_folder
    except UsageError:
        return True  # its ending names no format, so the format stays


def check_link(report: RewriteReport, format: str) -> None:
    """Raise UsageError where no data file stays as it is."""
    if not (report.source.traits.is_folder and save.traits_of(format).is_folder):
        raise UsageError(
            "--link goes with distributed checkpoints, as input and as OUT", path=report.source.path
        )


@contextmanager
def advised_partial(checkpoint: Checkpoint, options: WriteOptions) -> Iterator[None]:
    """Name --partial in the error of a part that is missing."""
    try:
        yield
    except UnreadableError as error:
        if options.can_be_partial and error.hint is None and is_partial(checkpoint):
            error.hint = "--partial converts the whole tensors only"
        raise


def shard_place(out: str) -> tuple[str, str]:
    """The folder of the shards and how their names begin: `model` in a folder, else the name of OUT."""
    if os.path.isdir(out):
        return out, "model"
    folder, name = os.path.split(out)
    return folder, name.removesuffix(".index.json").removesuffix(".safetensors")
