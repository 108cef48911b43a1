"""The common work of the commands that write: which files, where each result goes, and
the report.

Each place is checked before anything is written. The functions of
`ckpt.surface.api.writing` do the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ckpt import formats
from ckpt.bytes.far import is_url
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.commands.rewriting.text import coverage_lines, rewrite_lines
from ckpt.model.errors import CkptError, FolderError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import pasted_path, show
from ckpt.surface.api.rewriting import (
    COMMANDS,
    WriteOptions,
    can_stay,
    check,
    opened,
    place_named,
    place_of,
    target_of,
)
from ckpt.surface.api.steps import step_of
from ckpt.surface.api.walk import Found, find_items_to_open, others_text, split_items
from ckpt.surface.cli import output
from ckpt.surface.cli.answers import drop_skipped, is_skipped
from ckpt.surface.cli.inputs import named_paths, plugins_allowed, run_for_each, tell

Write = Callable[..., RewriteReport]
"""A function of `ckpt.surface.api.writing` with the command's own keywords."""
Report = Callable[[RewriteReport], None]
"""Writes a report to stdout."""


class ResultOptions(NamedTuple):
    """The options of a writing command. `keywords` are those that its function
    takes.
    """

    keywords: dict[str, Any]
    places: WriteOptions
    """The options that decide on the places of the results."""
    json: bool = False
    recursive: bool = False
    files_from: list[str] | None = None


class Job(NamedTuple):
    """A checkpoint that is changed, and the path of its result: None where OUT says
    nothing of it.
    """

    item: Found
    out: str | None

    @property
    def path(self) -> str:
        return self.item.path


def split_options(
    command: str, paths: Sequence[str | None], keywords: dict[str, Any]
) -> tuple[ResultOptions, dict[str, Any]]:
    """The options of all writers, and what is left of the keywords of one of them.
    `paths` are what it reads.

    Raises UsageError.
    """
    # The things that the command takes: many files, changes in place, URLs.
    row = COMMANDS[command]
    out = keywords.pop("output")
    parents = keywords.pop("parents")
    json = keywords.pop("json")
    # Some commands have no --recursive and no --files-from.
    recursive = keywords.pop("recursive", False)
    files_from = keywords.pop("files_from", None)
    written = {name: keywords.pop(name, default) for name, default in _WRITTEN.items()}
    written |= {"limits": keywords.pop("limits"), "plugins": plugins_allowed()}
    places = WriteOptions(
        **written,
        out=place_named(out),
        command=row,
        in_folder=recursive,
        # With -r the folders below OUT are made without being asked for.
        parents=recursive or parents,
    )
    # Paths among the values of options, such as --into, are checked as inputs are.
    given: list[object] = []
    for value in keywords.values():
        given += value if isinstance(value, list) else [value]
    check(places, *paths, *given)
    return ResultOptions(written, places, json, recursive, files_from), keywords


_WRITTEN: dict[str, bool | None] = {
    "in_place": False,
    "copy": False,
    "force": False,
    "dry_run": False,
    "verify": None,
    "keep_damaged": False,
    "keep_code": False,
    "partial": False,
}
"""The keywords that every function of `ckpt.surface.api.writing` takes, with their
defaults.
"""


def rewrite_paths(
    paths: list[str] | None,
    write: Write,
    options: ResultOptions,
    *,
    report: Report | None = None,
) -> int:
    """Each PATH: read, change, write, report. The exit code of the command."""
    jobs = jobs_of(paths or (), options)
    # `run_for_each` gives paths, of which two may be equal: the jobs come in turn.
    turns = iter(jobs)
    try:
        return run_for_each(
            [job.path for job in jobs],
            lambda _: _rewrite_one(next(turns), write, options, report),
            json="ckpt.rewrite" if options.json else None,
            tell_rest=True,
        )
    # Past the loop over the PATHs: an error of the options would come once for each.
    except _RequestError as error:
        raise error.error from None


class _RequestError(Exception):
    """An error of the options, which is about no PATH and ends the command."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(str(error))
        self.error = error


def jobs_of(paths: Sequence[str], options: ResultOptions) -> list[Job]:
    """The checkpoints that the PATHs lead to, each with its own place for the result.

    Raises UsageError where only the user can say where to write, and CkptError for a
    place that cannot take it.
    """
    places = options.places
    # Refusals first, before any file is read.
    items = items_of(paths, options)
    # With -r one file may be a folder of many.
    several = len(items) > 1 or options.recursive
    if several and places.parents and _is_folder_to_make(places.out):
        places = places._replace(in_folder=True)
    if places.out is None and not places.in_place and not places.dry_run and several:
        raise _where_to_write(items, places)
    if several and places.with_config:
        raise UsageError(
            "--with-config takes one PATH: all results would have the same name"
        )
    if several and places.rank_files is not None:
        raise UsageError("this recipe makes files of ranks: it takes one PATH")
    if several and places.out is not None and not places.is_folder:
        raise UsageError(
            "not a folder, and there are several PATHs",
            path=places.out,
            hint=_folder_hint(places.out),
        )
    if options.recursive and places.out is not None and not _may_be_folder(places.out):
        raise UsageError(
            "not a folder, which -r asks for",
            path=places.out,
            hint=_folder_hint(places.out),
        )
    if several and places.shard_bytes:
        raise UsageError(
            "--shard-size takes one PATH: all shards would have the same names"
        )
    if not several:
        return [Job(item, places.out) for item in items]
    # Each result has its path below OUT as the input has it below its folder.
    jobs = [
        Job(item, place_of(item.path, places, _path_below_folder(item)))
        for item in items
    ]
    _refuse_links(jobs, places)
    _refuse_collisions(jobs, places)
    return jobs


def items_of(paths: Sequence[str], options: ResultOptions) -> list[Found]:
    """The checkpoints that the PATHs and the list lead to; folders of them only with
    `-r`.
    """
    names = named_paths(paths, options.files_from, "change")
    places = options.places
    # A folder of steps gives its newest step; other folders are one checkpoint.
    if not options.recursive:
        # A folder of steps stands for its newest one, but not where it is changed
        # itself.
        if options.places.command.many and not places.in_place:
            names = [
                step_of(
                    name,
                    places.limits,
                    partial=places.partial,
                    plugins=places.plugins,
                    tell=tell,
                )
                for name in names
            ]
        return [Found(name) for name in names]
    items, others = split_items(
        find_items_to_open(names, places.limits, plugins=places.plugins)
    )
    if others:
        output.write_talk(f"ckpt: {others_text(others)}")
    # A second run must not take the results of the first for its input.
    return [
        item for item in drop_skipped(items) if not _is_result(item, names, places.out)
    ]


def _path_below_folder(item: Found) -> str | None:
    """Return the path of an item below the folder in which it was found, or None for
    one that was typed.
    """
    return None if item.folder is None else _relative_path(item.path, item.folder)


def _is_result(item: Found, names: Sequence[str], out: str | None) -> bool:
    """Tell whether a file lies in OUT, which lies in the folder that is searched: an
    earlier result.
    """
    # Whoever types a file of OUT means it.
    if out is None or item.named:
        return False
    # Else a second run with -r would change the results of the first.
    folder = os.path.realpath(out)
    return (
        # OUT may be the folder that is searched, and then all of it is input.
        folder not in map(os.path.realpath, names)
        and _relative_path(os.path.realpath(item.path), folder) is not None
    )


def _relative_path(path: str, folder: str) -> str | None:
    """Return a path as it is below a folder, or None for another one."""
    folder = os.path.normpath(folder)
    # A path below the working folder has no folder in front.
    start = "" if folder == os.curdir else os.path.join(folder, "")
    path = os.path.normpath(path)
    return path[len(start) :] if path.startswith(start) and path != folder else None


def _may_be_folder(out: str) -> bool:
    return os.path.isdir(out) or not os.path.lexists(out)


def _is_folder_to_make(out: str | None) -> bool:
    """Tell whether OUT can be a folder that is not there yet: no name of a file, and
    the name of nothing else.
    """
    if out is None or is_url(out) or os.path.splitext(out.rstrip("/"))[1]:
        return False
    return not os.path.lexists(out.rstrip("/"))


def _folder_hint(out: str) -> str | None:
    """The command that makes the folder for several results, or None for the name of a
    file, where something has that name, and where nobody can paste it.
    """
    if not _is_folder_to_make(out):
        return None
    folder = pasted_path(out.rstrip("/"))
    return None if folder is None else f"mkdir -p {folder}"


def _where_to_write(items: Sequence[Found], places: WriteOptions) -> UsageError:
    """The error that names where the results of several PATHs could go."""
    path = items[0].path
    # IN OUT, as cp takes them.
    if len(items) == 2:
        last = items[1].path
        if not is_url(last) and not os.path.lexists(last):
            out = pasted_path(last)
            return UsageError("where to write?", path=path, hint=out and f"-o {out}")
    # The file cannot be read at all, so this error comes first.
    if items[0].error is not None:
        raise items[0].error
    with opened(path, places) as checkpoint:
        ways = "-o DIR"
        if places.command.in_place and can_stay(checkpoint):
            ways = "-o DIR, or --in-place"
    return UsageError("where to write?", path=path, hint=ways)


def _refuse_links(jobs: Sequence[Job], places: WriteOptions) -> None:
    """Raise UsageError where a result would go through a link that nobody typed: the
    folder that is searched, and the one that is filled, may be a stranger's.
    """
    for job in jobs:
        folder = job.item.folder
        if places.in_place and folder is not None and _leads_out(job.path, folder):
            raise UsageError(
                "a link out of the folder, which -r does not change",
                path=job.path,
                hint="name the file to change it",
            )
        link = None if job.out is None else _link_below(job.out, places.out)
        if link is not None:
            raise UsageError(
                "a link in OUT, through which no result is written",
                path=link,
                hint="remove the link, or -o another folder",
            )


def _leads_out(path: str, folder: str) -> bool:
    """Tell whether a path below a folder is a place outside of it, by a link."""
    return _relative_path(os.path.realpath(path), os.path.realpath(folder)) is None


def _link_below(path: str, out: str | None) -> str | None:
    """Return the first link on the way from OUT to a result below it, or None."""
    if out is None or is_url(out):
        return None
    below = _relative_path(path, out)
    place = out
    for step in [] if below is None else below.split(os.sep):
        place = os.path.join(place, step)
        if os.path.islink(place):
            return place
    return None


def _refuse_collisions(jobs: Sequence[Job], places: WriteOptions) -> None:
    """Raise CkptError where a result would take the place of another one, before any is
    written.
    """
    taken: dict[str, str] = {}
    for job in jobs:
        to = target_of(job.path, job.out, places)
        # A result in place takes no other file's place, and shards are written for one
        # PATH.
        if to is None:
            continue
        # By real paths: two names may lead to one place.
        if to.real in taken:
            raise UsageError(
                f"{show(taken[to.real], 80)} would be written there too", path=to.path
            )
        taken[to.real] = job.path


def _rewrite_one(
    job: Job, write: Write, options: ResultOptions, report: Report | None
) -> int:
    """Change one checkpoint, and report; the exit code."""
    if job.item.error is not None:
        raise job.item.error
    keywords = {**options.keywords, "out": job.out, "parents": options.places.parents}
    try:
        with output.progress_meter("copying") as progress:
            done = write(job.path, **keywords, progress=progress, tell=tell)
    except CkptError as error:
        # It would be said again for each PATH.
        if isinstance(error, UsageError) and error.path is None:
            raise _RequestError(error) from None
        # Found in a folder, it is skipped; typed, it is an error.
        if _is_no_checkpoint(job, error, options.places.limits):
            return 0
        if (
            # The folder that was typed, not one inside of it.
            isinstance(error, FolderError)
            and options.places.command.many
            and error.path in (None, job.path)
        ):
            error.hint = "-r takes them all"
        raise
    (report or report_writer(options))(done)
    return done.exit_code


def _is_no_checkpoint(job: Job, error: CkptError, limits: Limits) -> bool:
    """Tell whether a file in a folder never was a checkpoint, and say so on stderr."""
    if job.item.named:
        return False
    refusal = formats.refusal_error(job.path, limits, plugins=plugins_allowed())
    return refusal is not None and is_skipped(job.item, refusal)


def report_writer(options: ResultOptions) -> Report:
    """Return what writes a report as the options say."""

    def write(report: RewriteReport) -> None:
        if options.json:
            output.write_json(report.to_json())
            return
        width = output.screen_width()
        if report.coverage is not None:
            output.write_lines(coverage_lines(report.coverage, width=width))
        output.write_lines(rewrite_lines(report, width=width))

    return write
