"""Where the results of a writing command go: one path for each PATH, checked before anything is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from ckpt import formats
from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.options import opened, plugins_allowed
from ckpt.cli.walk import Found, listed, looked, others_text, parted, unskipped
from ckpt.errors import CkptError, FolderError, LossError, NotOpenedError, UnreadableError, UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.formats.dcp.names import is_part
from ckpt.formats.sharded.write import set_pattern
from ckpt.io import commit, folder, leftover
from ckpt.io.beside import beside
from ckpt.io.far import is_url
from ckpt.jobs.check.like import Like, likeness
from ckpt.jobs.rewrite.report import Leftover, RewriteReport
from ckpt.jobs.rewrite.sets import is_partial, whole_part
from ckpt.limits import Limits
from ckpt.rows import NamedTuple
from ckpt.text import pasted_path, show

Open = Callable[[str, Limits], Checkpoint]


Partial = Annotated[
    bool, typer.Option("--partial", help="Of an incomplete checkpoint, write the whole tensors only.")
]


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
    keep_damaged: bool = False
    keep_code: bool = False
    json: bool = False
    limits: Limits = Limits()
    many: bool = True
    """Whether the command takes many PATHs, as all but `warmstart` do."""
    recursive: bool = False
    files_from: str | None = None
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
    like: Like | None = None
    """Another save whose tensors the source must have."""
    like_section: str | None = None
    partial: bool = False
    """Whether the whole tensors of an incomplete checkpoint are written."""
    min_coverage: float | None = None
    """The share of elements that a warm start must load, or nothing is written."""

    @property
    def is_folder(self) -> bool:
        """Whether OUT is a folder that takes the results. A URL says so with a slash at its end."""
        if self.output is None:
            return False
        return self.recursive or (
            self.output.endswith("/") if is_url(self.output) else os.path.isdir(self.output)
        )


class Job(NamedTuple):
    """A checkpoint that is changed, and the path of its result: None where OUT says nothing of it."""

    item: Found
    out: str | None

    @property
    def path(self) -> str:
        return self.item.path


def opened_partly(path: str, limits: Limits, *, tell: bool = True) -> Checkpoint:
    """The checkpoint at a path, also where files of it are missing. Raises CkptError."""
    return opened(path, limits, tell=tell, partial=True)


def jobs_of(paths: Sequence[str], options: WriteOptions, opened: Open) -> list[Job]:
    """The checkpoints that the PATHs lead to, each with its own place for the result.

    Raises UsageError where only the user can say where to write, and CkptError for a place that cannot take it.
    """
    items = items_of(paths, options)
    several = len(items) > 1 or options.recursive
    if options.output is None and not options.in_place and not options.dry_run:
        _ask_where(items, several, options, opened)
    if several and options.output is not None and not options.is_folder:
        raise UsageError("not a folder, and there are several PATHs", path=options.output)
    if options.recursive and options.output is not None and not _may_be_folder(options.output):
        raise UsageError("not a folder, which -r asks for", path=options.output)
    if several and options.shard_bytes:
        raise UsageError("--shard-size takes one PATH: all shards would have the same names")
    jobs = [Job(item, _out(item, options, opened)) for item in items]
    if several:
        _refuse_collisions(jobs, options)
    return jobs


def items_of(paths: Sequence[str], options: WriteOptions) -> list[Found]:
    """The checkpoints that the PATHs and the list lead to; folders of them only with `-r`."""
    names = listed(paths, options.files_from, "change")
    if not options.recursive:
        return [Found(name) for name in names]
    items = looked(names, options.limits, plugins=plugins_allowed())
    items, others = parted(items)
    if others:
        output.talk(f"ckpt: {others_text(others)}")
    return [item for item in unskipped(items) if not _is_result(item, names, options.output)]


def _is_result(item: Found, names: Sequence[str], out: str | None) -> bool:
    """Whether a file lies in OUT, which lies in the folder that is searched: an earlier result."""
    if out is None or item.named:
        return False
    folder = os.path.realpath(out)
    return (
        folder not in map(os.path.realpath, names)
        and _relative(os.path.realpath(item.path), folder) is not None
    )


def _relative(path: str, folder: str) -> str | None:
    """A path as it is below a folder; None for another one."""
    folder = os.path.normpath(folder)
    start = "" if folder == os.curdir else os.path.join(folder, "")
    path = os.path.normpath(path)
    return path[len(start) :] if path.startswith(start) and path != folder else None


def _may_be_folder(out: str) -> bool:
    return os.path.isdir(out) or not os.path.lexists(out)


def _ask_where(items: Sequence[Found], several: bool, options: WriteOptions, opened: Open) -> None:
    """Raise UsageError that names where the results could go."""
    path = items[0].path
    if (
        len(items) == 2 and not is_url(items[1].path) and not os.path.lexists(items[1].path)
    ):  # IN OUT, as cp takes them
        out = pasted_path(items[1].path)
        raise UsageError("where to write?", path=path, hint=out and f"-o {out}")
    with open_item(items[0], options, opened) as checkpoint:
        where = "-o DIR" if several else _suggested(checkpoint, options)
        ways = [where, "--in-place" if options.in_place is not None and can_stay(checkpoint) else None]
    hint = ", or ".join(way for way in ways if way is not None)
    raise UsageError("where to write?", path=path, hint=hint or None)


def open_item(item: Found, options: WriteOptions, opened: Open) -> Checkpoint:
    """The checkpoint of an item. The error for a folder of checkpoints names `-r`."""
    if item.error is not None:
        raise item.error
    try:
        return opened(item.path, options.limits)
    except FolderError as error:
        if options.many:
            error.hint = "-r takes them all"
        raise


def _out(item: Found, options: WriteOptions, opened: Open) -> str | None:
    """Where the result of an item goes: below a folder OUT, by its name or by its path in the folder searched."""
    if options.in_place or options.output is None:
        return None
    as_folder = is_folder_made(item.path, options)
    if not options.is_folder or (as_folder and formats.is_folder_format(options.output, options.limits)):
        return options.output
    below = os.path.basename(os.path.normpath(item.path))
    if item.folder is not None:
        below = _relative(item.path, item.folder) or below
    if os.path.isdir(item.path) and not as_folder:
        below += _ending(item, options, opened)
    folder, name = os.path.split(below)
    return os.path.join(
        options.output, folder, save.renamed(name, options.format) if options.format else name
    )


def _ending(item: Found, options: WriteOptions, opened: Open) -> str:
    """The ending for the result of a folder, which has none itself."""
    try:
        with open_item(item, options, opened) as checkpoint:
            path = formats.out_beside(checkpoint, options.suffix, same_format=True)
    except CkptError:  # which is told when its turn comes
        return ""
    return os.path.splitext(path or "")[1]


def target_of(job: Job, options: WriteOptions) -> commit.Target | None:
    """Where one checkpoint is written to, None when it is changed in place, in shards or not at all."""
    if job.out is None or options.shard_bytes:
        return None
    if is_folder_made(job.path, options):
        return folder.target(job.out, is_part, force=options.force, parents=options.recursive)
    return commit.target(job.out, force=options.force, parents=options.recursive)


def is_folder_made(path: str, options: WriteOptions) -> bool:
    """Whether the result of one PATH is a folder: its format is one, or it stays that of a source in a folder."""
    if options.format is not None:
        return save.traits_of(options.format).is_folder
    if options.output is None:
        return False
    try:
        if not save.traits_of(save.format_for(options.output.rstrip("/"), None)).is_folder:
            return False  # and nothing is opened to see that
    except UsageError:
        pass  # its ending names no format, so the format stays
    return formats.is_folder_format(path, options.limits)


def _refuse_collisions(jobs: Sequence[Job], options: WriteOptions) -> None:
    """Raise CkptError where a result would take the place of another one, before any is written."""
    taken: dict[str, str] = {}
    for job in jobs:
        to = target_of(job, options)
        if to is None:
            continue
        other = taken.setdefault(to.real, job.path)
        if other is not job.path:
            raise UsageError(f"{show(other, 80)} would be written there too", path=to.path)


def _suggested(checkpoint: Checkpoint, options: WriteOptions) -> str | None:
    """`-o` with a free path beside the input, ready to paste."""
    if options.ending is not None:
        path = beside(checkpoint.path, options.suffix, (options.ending,), other=False)
    else:
        path = formats.out_beside(checkpoint, options.suffix, same_format=True)
    out = None if path is None else pasted_path(path)
    return None if out is None else f"-o {out}"


def can_stay(checkpoint: Checkpoint) -> bool:
    """Whether ckpt changes such a file where it is."""
    return checkpoint.source is not None and not checkpoint.traits.is_folder and save.stays(checkpoint)


def refuse_source(report: RewriteReport, to: commit.Target | None, options: WriteOptions) -> None:
    """Raise UsageError where OUT is a file that is read: a mistaken edit would take its source with it."""
    if to is None or not to.is_replacing:
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


def check_link(report: RewriteReport, format: str) -> None:
    """Raise UsageError where no data file stays as it is."""
    if not (report.source.traits.is_folder and save.traits_of(format).is_folder):
        raise UsageError(
            "--link goes with distributed checkpoints, as input and as OUT", path=report.source.path
        )


def made(
    survey: Survey, make: Callable[[Survey, Limits], RewriteReport], options: WriteOptions
) -> RewriteReport:
    """What the command makes of a checkpoint, or with --partial of its whole tensors. Raises LossError for an incomplete one."""
    found = None if options.like is None else likeness(survey, options.like, options.like_section)
    if not options.partial:
        if found is not None and found.rows:
            raise LossError(found.text, path=survey.path)
        return make(survey, options.limits)
    whole, lost = whole_part(survey.checkpoint, options.limits, found)
    report = make(Survey(whole), options.limits)
    if not is_partial(survey.checkpoint) and not (found and found.rows):
        return report
    extra = [Leftover(name, "not in the other save") for name in (found.extra if found else ())]
    return report._replace(
        source=survey.checkpoint,
        left_out=(*report.left_out, *lost),
        left_alone=(*report.left_alone, *extra),
        is_partial=True,
    )


@contextmanager
def advised_partial(options: WriteOptions, plan: Callable[[], None]) -> Iterator[None]:
    """Name --partial in the error of a part that is missing, where `plan`, which does all but write with it, succeeds."""
    try:
        yield
    except (UnreadableError, LossError) as error:
        asks = error.hint is None or error.hint.endswith("?")
        if options.many and not options.partial and asks and not isinstance(error, NotOpenedError):
            try:
                plan()
            except CkptError:
                raise error from None
            asked = f"{error.hint} " if error.hint else ""
            error.hint = f"{asked}--partial writes the whole tensors only"
        raise


def left_over(to: commit.Target | None, options: WriteOptions) -> list[tuple[str, int]]:
    """What killed runs left beside the files that are to be written."""
    if to is not None:
        return leftover.left_over(to.real)
    if options.shard_bytes and options.output is not None:
        folder, stem = shard_place(options.output)
        files = rf"(?:{set_pattern(stem)}|{re.escape(stem)}\.safetensors(?:\.index\.json)?)"
        return leftover.left_over(os.path.join(folder, stem), files)
    return []


def shard_place(out: str) -> tuple[str, str]:
    """The folder of the shards and how their names begin: `model` in a folder, else the name of OUT."""
    if is_url(out) and out.endswith("/"):
        return out.rstrip("/"), "model"
    if os.path.isdir(out):
        return out, "model"
    folder, name = os.path.split(out)
    return folder, name.removesuffix(".index.json").removesuffix(".safetensors")
