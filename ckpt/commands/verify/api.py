"""The function `ckpt.verify`."""

from __future__ import annotations

import os
import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from ckpt.bytes.executor import Local, current_executor
from ckpt.commands.sum.api import sum
from ckpt.model.errors import (
    CkptError,
    LinkError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
    UsageError,
    about,
)
from ckpt.model.limits import Limits
from ckpt.model.text import counted_noun, show, show_literal
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.keywords import Path, Texts, globs_of, limits_only
from ckpt.surface.api.opening import (
    Input,
    at_hand,
    location_of,
    path_of,
    without_command,
)
from ckpt.surface.api.progress import Meter, Progress, metered_reading

if TYPE_CHECKING:
    from ckpt.commands.sum.recorded import SumReport
    from ckpt.commands.sum.sums import Like
    from ckpt.commands.verify.copies import Listing
    from ckpt.commands.verify.verify import VerifyReport
    from ckpt.model.checkpoint import Checkpoint as Contents
    from ckpt.surface.api.stored import Stored


def verify(
    source: Input,
    *,
    quick: bool = False,
    sums: Path | SumReport | Stored | None = None,
    like: Input | Like | None = None,
    root: str | None = None,
    against: str | Listing | None = None,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> VerifyReport:
    """Check whether a checkpoint is intact: its structure and its checksums. Return the
    report of `ckpt verify`.

    `root` is a hash that `sum` with `root` gave. `report.verdict` is `intact`,
    `damaged` or `unreadable`: a file that cannot be read is no error here. `sums` is a
    file that `ckpt sum` wrote, or the report of `sum`, `like` another save whose names
    and shapes are compared. With `against`, the URL of a model on Hugging Face, only
    the bytes of files are compared, with the hashes listed there. Raises UsageError.
    """
    from ckpt.commands.verify import verify as job
    from ckpt.formats.verify import remainder
    from ckpt.surface.api.stored import checked_with

    path = path_of(source)
    limits_only(limits)
    if isinstance(source, Checkpoint):
        source.check_open()  # a closed one says nothing about the file
        limits, plugins = limits or source.limits, plugins or source.plugins
    limits = limits or Limits()
    globs = globs_of(include, exclude)
    if root is not None and not re.fullmatch("[0-9a-f]{64}", root):
        raise UsageError(
            f"--root {show(root, 80)}: not a hash", hint="ckpt sum --root prints one"
        )
    if against is not None:
        return _published(
            path,
            against,
            progress,
            is_alone=not (quick or sums or like or root or globs or section),
        )
    stored, other = checked_with(
        sums, like, globs, section, limits, quick=quick, plugins=plugins
    )
    try:
        with about(path), at_hand(source, limits, plugins=plugins) as opened:
            with metered_reading(progress, opened) as meter:
                report = judge_checkpoint(
                    opened, stored, section, quick=quick, progress=meter
                )
            if other is not None:
                from ckpt.commands.rewriting.edited import with_ties
                from ckpt.commands.sum.sums import likeness

                comparison = likeness(with_ties(opened.survey, limits), other, section)
                report = job.with_likeness(opened.checkpoint, report, comparison)
            if root is not None and report.verdict == "intact":
                found = sum(opened, section=section, root=True).whole
                now = "" if found is None else found[1]
                report = job.with_root(report, root, now, is_whole=section is None)
            opened.check_unchanged()
            return report
    except CkptError as error:
        # The command of its hint is this one.
        error.hint = without_command(error.hint)
        if not isinstance(error, UnreadableError) or isinstance(
            error, (LinkError, NotOpenedError)
        ):
            _name_those_inside(error, path, limits, plugins=plugins)
            return job.unreadable_report(path, error.failure(path))
        plan = partial(_salvage_command, limits=limits)
        executor = None if quick else Local()
        # Of a folder one file is damaged, but its tensors are counted and saved
        # together with those of the others.
        # The rest of the damaged file, and the command that saves it.
        rest = remainder(path, limits, plan, plugins=plugins, executor=executor)
        if error.path not in (None, path) and (rest is None or rest.whole is None):
            rest = remainder(
                error.path, limits, plan, plugins=plugins, executor=executor
            )
        if rest is None:
            return job.damaged(path, error.said_of(path), None, None)
        # The reader of damaged files may have found the better reason.
        if rest.damage is not None and rest.damage != error.problem:
            error.problem, error.hint = rest.damage, None
        report = job.damaged(
            path,
            error.said_of(path),
            rest.whole,
            rest.lost,
            rest.rows,
            rest.unsound,
            rest.unproved,
        )
        left = (job.UNREAD,) if quick and rest.whole else ()
        return report._replace(hint=rest.hint, not_checked=left)


def _name_those_inside(
    error: CkptError, path: str, limits: Limits, *, plugins: bool
) -> None:
    """Say in the error about a folder how the checkpoints in it are checked. One call
    gives the verdict on one checkpoint, and the command searches folders.
    """
    if not isinstance(error, UnsupportedError) or not os.path.isdir(path):
        return
    from ckpt.surface.api.walk import find_items_to_open

    items = find_items_to_open([path], limits, plugins=plugins)
    inside = [
        item
        for item in items
        # One that one reader opens stands for itself.
        if os.path.normpath(item.path) != os.path.normpath(path)
        if item.error is None and item.skipped is None and not item.is_other
    ]
    if inside:
        count = counted_noun(len(inside), "checkpoint")
        error.problem = f"a folder with {count}, each of which has its own verdict"
        listed = f"ckpt.ls({show_literal(repr(path))})"
        error.hint = f"[ckpt.verify(row.path) for row in {listed}]"


def _published(
    path: str, against: str | Listing, progress: Progress | None, *, is_alone: bool
) -> VerifyReport:
    """The verdict on a copy of files that a URL publishes. Raises UsageError,
    NotOpenedError for the URL.
    """
    from ckpt.commands.verify import verify as job
    from ckpt.commands.verify.copies import compared_with_published, listing_at

    if not is_alone:
        raise UsageError(
            "--against compares whole files: no other comparison goes with it"
        )
    listing = listing_at(against) if isinstance(against, str) else against
    try:
        with about(path):
            return compared_with_published(path, listing, progress)
    except UsageError:
        raise
    except CkptError as error:
        return job.unreadable_report(path, error.failure(path))


def judge_checkpoint(
    opened: Checkpoint,
    stored: Stored | None,
    section: str | None,
    *,
    quick: bool,
    progress: Meter | None,
) -> VerifyReport:
    """The verdict on a checkpoint that could be opened. Raises CkptError where it is
    damaged.
    """
    from ckpt.commands.rewriting.edited import with_ties
    from ckpt.commands.sum.sums import Sum, sums_now
    from ckpt.commands.verify import verify as job
    from ckpt.formats.verify import checksums
    from ckpt.surface.api.stored import compared_with, sums_of

    checkpoint = opened.checkpoint
    compared: list[Sum] = []
    if stored is not None and not stored.lists:
        expected = sums_of(opened.path, stored.sums)
        survey = with_ties(opened.survey, opened.limits)
        now = sums_now(
            survey, expected, section, progress=progress, executor=current_executor()
        )
        # The sums may leave out tensors, damaged ones too: ckpt sum lists no sum of
        # these.
        unnamed = job.unnamed_tensors(survey, expected) if section is None else []
        report = job.judge_by_sums(checkpoint, expected, now, unnamed)
        compared = list(now.values())
    else:
        report = job.judge_structure(checkpoint)
    if not quick:
        done = checksums(
            location_of(opened),
            opened.limits,
            progress,
            plugins=opened.plugins,
            executor=current_executor(),
        )
        report = job.with_checksums(
            report,
            checkpoint,
            done.damage,
            done.nbytes,
            done.unchecked,
            done.unread,
            compared,
        )
    if stored is not None and stored.lists:
        report = compared_with(stored, report, opened, quick=quick)
    elif quick:
        report = report._replace(not_checked=(*report.not_checked, job.UNREAD))
    if report.hint is None and checkpoint.account.has_noticed("stale-index"):
        return report._replace(
            hint=_working_command(checkpoint, opened.limits, "indexed")
        )
    has_damage = not quick and bool(done.damage)
    has_whole = bool(report.whole and report.lost)
    # A file of a folder that is cut off was not read, and may have whole tensors. A
    # document has none.
    has_unread = any(
        notice.file is not None and not notice.file.endswith(".json")
        for notice in checkpoint.account.noticed("damaged-file")
    )
    if report.hint is None and ((has_damage and has_whole) or has_unread):
        return report._replace(hint=_salvage_command(checkpoint, opened.limits))
    return report


def _salvage_command(checkpoint: Contents, limits: Limits) -> str | None:
    """The command that writes what is whole of a damaged file, or None where none
    works.
    """
    return _working_command(checkpoint, limits, "salvage")


def _working_command(checkpoint: Contents, limits: Limits, word: str) -> str | None:
    """The command for what a word asks for, or None where none works."""
    from ckpt.evidence.survey import Survey

    # Named as text: only a damaged file pays for what writes.
    ways = import_module("ckpt.surface.api.advice").Ways(Survey(checkpoint), limits)
    command: str | None = ways.way((word,)).command
    return command
