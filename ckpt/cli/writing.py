"""What the commands that write share: where to, the steps in order, the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from shlex import quote
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.options import opened
from ckpt.errors import CkptError, LossError, UnsupportedError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.formats.save import Check, SavedFile, check_bytes, check_weights_only
from ckpt.io import commit
from ckpt.jobs.rewrite.report import RewriteReport, with_unread
from ckpt.limits import Limits
from ckpt.render.rewrite import rewrite_lines
from ckpt.render.warmstart import coverage_lines
from ckpt.text import Json, show, size_text

Open = Callable[[str, Limits], Checkpoint]
Make = Callable[[Survey, Limits], RewriteReport]


class WriteOptions(NamedTuple):
    """What the options of a writing command say.

    A path that is suggested is that of the input with `suffix` before its ending, or with `ending` in place of it.
    """

    output: str | None
    suffix: str = ""
    in_place: bool | None = False
    """None where the command does not know it."""
    copy: bool = False
    force: bool = False
    dry_run: bool = False
    json: bool = False
    verify: str | None = None
    format: str | None = None
    plain: bool = False
    """Whether the result must load with weights_only=True."""
    shard_bytes: int | None = None
    ending: str | None = None
    min_coverage: float | None = None
    """The share of elements that a warm start must load, or nothing is written."""


def rewrite(
    paths: list[str], make: Make, asked: WriteOptions, limits: Limits, *, opened: Open = opened
) -> int:
    """Each PATH: read, change, write, report. Goes on after an error; the exit code of the command."""
    _check(paths, asked)
    worst = 0
    for path in paths:
        try:
            with about(path):
                worst = max(worst, _one(path, make, asked, limits, opened, several=len(paths) > 1))
        except CkptError as error:
            output.fail(error)
            worst = 2
    return worst


def _check(paths: list[str], asked: WriteOptions) -> None:
    """Raise UsageError for options that contradict each other, or a question that only the user can answer."""
    if asked.output is not None and asked.in_place:
        raise UsageError("-o and --in-place exclude each other")
    if asked.copy and not asked.in_place:
        raise UsageError("--copy goes with --in-place")
    if asked.verify not in (None, "crc", "torch"):
        raise UsageError(f"--verify {asked.verify}: not a check", hint="crc or torch")
    if asked.output is None and not asked.in_place and not asked.dry_run:
        first = paths[0]
        stem, ending = os.path.splitext(os.path.normpath(first))
        suggested = quote(show(f"{stem}{asked.suffix}{asked.ending or ending}", None))
        where = "-o DIR" if len(paths) > 1 else f"-o {suggested}"
        other = "" if asked.in_place is None else ", or --in-place"
        raise UsageError("where to write?", path=first, hint=f"{where}{other}")
    if len(paths) > 1 and asked.output is not None and not os.path.isdir(asked.output):
        raise UsageError("not a directory, and there are several PATHs", path=asked.output)


def _one(path: str, make: Make, asked: WriteOptions, limits: Limits, opened: Open, *, several: bool) -> int:
    to = None if asked.shard_bytes else _target(path, asked)
    if to is not None:
        for other, size in commit.left_over(to.real):
            output.talk(f"ckpt: {show(other, None)}: {size_text(size)} left over from a run that was killed")
        if to.warning:
            output.talk(f"ckpt: {show(to.path, None)}: {to.warning}")
    with opened(path, limits) as checkpoint:
        report = with_unread(make(Survey(checkpoint), limits))
        saved = None
        least = asked.min_coverage or 0.0
        too_little = report.coverage is not None and report.coverage.share < least
        if not asked.dry_run and not too_little:
            saved = _write(report, to, asked, limits)
        if asked.json:
            output.write_json(report.to_json(written(saved), dry_run=asked.dry_run), one_line=several)
        else:
            if report.coverage is not None:
                output.write_lines(coverage_lines(report.coverage, width=output.screen_width()))
            output.write_lines(rewrite_lines(report, saved, dry_run=asked.dry_run))
        if too_little:
            text = f"ckpt: {show(path, None)}: less than --min-coverage {least:g} of the elements: nothing was written"
            output.talk(text)
    return int(too_little)


def _target(path: str, asked: WriteOptions) -> commit.Target | None:
    """Where one PATH is written to, None when it is changed in place or not at all."""
    if asked.in_place or asked.output is None:
        return None
    wanted = asked.output
    if os.path.isdir(wanted):
        wanted = os.path.join(wanted, os.path.basename(os.path.normpath(path)))
    return commit.target(wanted, force=asked.force)


def _write(
    report: RewriteReport, to: commit.Target | None, asked: WriteOptions, limits: Limits
) -> SavedFile | None:
    checkpoint = report.result
    format = asked.format or checkpoint.format
    if to is not None and asked.format is None:
        format = save.same_format(to.path, checkpoint)
    further: dict[str, Check] = {}
    if asked.verify == "crc":
        further["crc"] = check_bytes
    elif asked.verify == "torch":
        from ckpt.live.check import check_by_torch

        further["torch"] = check_by_torch
    if asked.plain and save.traits_of(format).is_pickle:
        further["weights_only"] = check_weights_only
    if asked.shard_bytes and asked.output is not None:
        with output.progress(_bytes_of(checkpoint)) as progress:
            target_of, stem = _shards(asked.output, asked.force)
            return save.save_shards(
                checkpoint, target_of, stem, asked.shard_bytes, limits, progress=progress, checks=further
            )
    if to is not None:
        with output.progress(_bytes_of(checkpoint)) as progress:
            return save.save(checkpoint, to, format, limits, progress=progress, checks=further)
    if not report.changes:
        return None  # it is as it should be already
    if checkpoint.source is None or not save.is_written(checkpoint.format):
        raise UnsupportedError(
            f"{checkpoint.format} is not changed in place", path=checkpoint.path, hint="-o OUT"
        )
    if checkpoint.traits.in_place and not asked.copy and not further:
        return save.append(checkpoint, limits)
    if report.left_out:
        raise LossError(
            f"in place, this would be lost: {show(report.left_out[0].what, 100)}",
            path=checkpoint.path,
            hint="-o OUT",
        )
    to = commit.target(checkpoint.source.name, force=True)
    with output.progress(_bytes_of(checkpoint)) as progress:
        return save.save(checkpoint, to, checkpoint.format, limits, progress=progress, checks=further)


def _shards(out: str, force: bool) -> tuple[Callable[[str], commit.Target], str]:
    """Where shards go, and what their names begin with: into a directory as `model`, or beside OUT by its name."""
    if os.path.isdir(out):
        return lambda name: commit.target(os.path.join(out, name), force=force), "model"
    folder, name = os.path.split(out)
    stem = name.removesuffix(".index.json").removesuffix(".safetensors")
    return lambda name: commit.target(os.path.join(folder, name), force=force), stem


def _bytes_of(checkpoint: Checkpoint) -> int:
    return sum(storage.nbytes for storage in checkpoint.storages)


def written(saved: SavedFile | None) -> dict[str, Json] | None:
    """What was written, as the document `ckpt.rewrite` says it."""
    if saved is None:
        return None
    return {
        "path": saved.path,
        "format": saved.format,
        "bytes": saved.nbytes,
        "appended": saved.appended,
        "shards": saved.shards,
        "seconds": round(saved.seconds, 6),
        "verified": {name: round(seconds, 6) for name, seconds in saved.checks},
    }
