"""The common work of the commands that write: the places of the results, the steps in order, and the report.

Each place is checked before anything is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import Parameter
from typing import Annotated

import typer

from ckpt import formats
from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.inputs import Found, each, is_skipped, listed, looked, others_text, parted, unskipped
from ckpt.cli.options import (
    Copy,
    DryRun,
    FilesFrom,
    Force,
    InPlace,
    KeepCode,
    KeepDamaged,
    LimitOption,
    Output,
    Recursive,
    RewriteJson,
    Verify,
    limits_of,
    opened,
    plugins_allowed,
)
from ckpt.cli.signature import Command, dressed, parameters_of
from ckpt.cli.steps import step_of
from ckpt.errors import (
    CkptError,
    CodeError,
    FolderError,
    LossError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
    UsageError,
)
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.formats.save import Check, SavedFile, check_bytes, check_weights_only
from ckpt.formats.sharded.writer import set_pattern
from ckpt.io import target
from ckpt.io.far import is_url
from ckpt.io.location import beside
from ckpt.io.target import make_parents
from ckpt.jobs.check.sums import Like, likeness
from ckpt.jobs.rewrite.report import Coverage, Leftover, RewriteReport, with_unread
from ckpt.jobs.rewrite.sets import is_partial, weights_file, whole_part, with_files, without_copies
from ckpt.limits import Limits
from ckpt.pickles.calls import code_of
from ckpt.render.rewrite import coverage_lines, rewrite_lines
from ckpt.rows import NamedTuple
from ckpt.text import Json, and_more, pasted_path, show, show_literal, size_text

Open = Callable[[str, Limits], Checkpoint]


Partial = Annotated[
    bool, typer.Option("--partial", help="Of an incomplete checkpoint, write the whole tensors only.")
]


class WriteOptions(NamedTuple):
    """The options of a writing command, and what the command adds to them.

    A suggested path is the path of the input with `suffix` before its ending, or with `ending` in place of
    it.
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
    """True when the command takes many PATHs, as all but `warmstart` do."""
    recursive: bool = False
    files_from: str | None = None
    suffix: str = ""
    ending: str | None = None
    format: str | None = None
    plain: bool = False
    """True when the result must load with weights_only=True."""
    shard_bytes: int | None = None
    weights_file: bool = False
    """True when the command changes the file of the weights of a folder, and not all of the folder."""
    ranks: int | None = None
    """Into how many files the tensors of a distributed checkpoint are cut."""
    link: bool = False
    """True when data files that stay as they are become hard links."""
    like: Like | None = None
    """Another save whose tensors the source must have."""
    like_section: str | None = None
    partial: bool = False
    """True when the whole tensors of an incomplete checkpoint are written."""
    again: Callable[[tuple[str, ...]], str | None] | None = None
    """The whole command of a warm start with other options, to paste."""
    lines: Callable[[Coverage, Survey], list[str]] | None = None
    """The function whose lines are printed instead of the report of a warm start."""

    @property
    def is_folder(self) -> bool:
        """Tell whether OUT is a folder that takes the results. A URL says so with a slash at its end."""
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
        if options.many and not options.in_place:
            names = [step_of(name, options.limits, partial=options.partial) for name in names]
        return [Found(name) for name in names]
    items = looked(names, options.limits, plugins=plugins_allowed())
    items, others = parted(items)
    if others:
        output.talk(f"ckpt: {others_text(others)}")
    return [item for item in unskipped(items) if not _is_result(item, names, options.output)]


def _is_result(item: Found, names: Sequence[str], out: str | None) -> bool:
    """Tell whether a file lies in OUT, which lies in the folder that is searched: an earlier result."""
    if out is None or item.named:
        return False
    folder = os.path.realpath(out)
    return (
        folder not in map(os.path.realpath, names)
        and _relative(os.path.realpath(item.path), folder) is not None
    )


def _relative(path: str, folder: str) -> str | None:
    """Return a path as it is below a folder, or None for another one."""
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
        if options.ending is not None and checkpoint.traits.is_folder and not several:  # of two formats
            same = options._replace(ending=None, suffix=options.suffix or ".converted")
            where = ", or ".join(filter(None, (_suggested(checkpoint, same), where)))
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
    """Return the place of an item's result.

    Below a folder OUT it has the item's name, or the item's path in the folder searched.
    """
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


def target_of(job: Job, options: WriteOptions) -> target.Target | None:
    """Return the target of one checkpoint, or None when it is changed in place, in shards or not at all."""
    if job.out is None or options.shard_bytes:
        return None
    if is_folder_made(job.path, options):
        return target.folder_target(job.out, formats.is_owned, force=options.force, parents=options.recursive)
    return target.target(job.out, force=options.force, parents=options.recursive)


def is_folder_made(path: str, options: WriteOptions) -> bool:
    """Tell whether the result of one PATH is a folder.

    Its format is one, or it keeps the format of a source in a folder.
    """
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
    """Tell whether ckpt changes such a file where it is."""
    if checkpoint.traits.is_folder:
        return save.can_relist(checkpoint)
    return checkpoint.source is not None and save.stays(checkpoint)


def refuse_source(report: RewriteReport, to: target.Target | None, options: WriteOptions) -> None:
    """Raise UsageError where OUT is a file that is read: a mistaken edit would take its source with it."""
    if to is None or not to.is_replacing:
        return
    source = report.source
    if save.is_source(source, to.real):
        can = options.in_place is not None and can_stay(source)
        hint = "--in-place" if can and (source.traits.in_place or not report.left_out) else "-o another file"
        raise UsageError("OUT is the source, which --force does not replace", path=to.path, hint=hint)
    is_input = any(
        os.path.lexists(row.path) and os.path.samefile(row.path, to.real) for row in report.sources
    )
    if is_input or save.is_source(report.result, to.real):
        other = "PRETRAINED" if report.command == "warmstart" else "one of the checkpoints"
        raise UsageError(
            f"OUT is {other}, which --force does not replace", path=to.path, hint="-o another file"
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
    """Return what the command makes of a checkpoint, or with --partial of its whole tensors.

    Raises LossError for an incomplete checkpoint.
    """
    comparison = None if options.like is None else likeness(survey, options.like, options.like_section)
    if not options.partial:
        if comparison is not None and comparison.rows:
            raise LossError(comparison.text, path=survey.path)
        return make(survey, options.limits)
    whole, lost = whole_part(survey.checkpoint, options.limits, comparison)
    report = make(Survey(whole), options.limits)
    if not lost and not is_partial(survey.checkpoint) and not (comparison and comparison.rows):
        return report
    extra = [Leftover(name, "not in the other save") for name in (comparison.extra if comparison else ())]
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
            hint = f"{error.hint} " if error.hint else ""
            error.hint = f"{hint}--partial writes the whole tensors only"
        raise


def left_over(to: target.Target | None, options: WriteOptions) -> list[tuple[str, int]]:
    """Return the files that killed runs left beside the files that are to be written."""
    if to is not None:
        return target.left_over(to.real)
    if options.shard_bytes and options.output is not None:
        folder, stem = shard_place(options.output)
        files = rf"(?:{set_pattern(stem)}|{re.escape(stem)}\.safetensors(?:\.index\.json)?)"
        return target.left_over(os.path.join(folder, stem), files)
    return []


def shard_place(out: str) -> tuple[str, str]:
    """The folder of the shards and how their names begin: `model` in a folder, else the name of OUT."""
    if is_url(out) and out.endswith("/"):
        return out.rstrip("/"), "model"
    if os.path.isdir(out):
        return out, "model"
    folder, name = os.path.split(out)
    return folder, name.removesuffix(".index.json").removesuffix(".safetensors")


Make = Callable[[Survey, Limits], RewriteReport]


def writing(
    *, many: bool = True, in_place: bool = True, keep_code: bool = True, partial: bool = True
) -> Callable[[Command], Command]:
    """Adds the options of a writing command, which is handed them as `options`."""
    may_be_partial = partial
    shared = [
        *(
            [
                Parameter("recursive", Parameter.KEYWORD_ONLY, default=False, annotation=Recursive),
                Parameter("files_from", Parameter.KEYWORD_ONLY, default=None, annotation=FilesFrom),
            ]
            if many
            else []
        ),
        *(
            [Parameter("partial", Parameter.KEYWORD_ONLY, default=False, annotation=Partial)]
            if many and may_be_partial
            else []
        ),
        Parameter("output", Parameter.KEYWORD_ONLY, default=None, annotation=Output),
        *(
            [
                Parameter("in_place", Parameter.KEYWORD_ONLY, default=False, annotation=InPlace),
                Parameter("copy", Parameter.KEYWORD_ONLY, default=False, annotation=Copy),
            ]
            if in_place
            else []
        ),
        Parameter("force", Parameter.KEYWORD_ONLY, default=False, annotation=Force),
        Parameter("dry_run", Parameter.KEYWORD_ONLY, default=False, annotation=DryRun),
        Parameter("verify", Parameter.KEYWORD_ONLY, default=None, annotation=Verify),
        Parameter("keep_damaged", Parameter.KEYWORD_ONLY, default=False, annotation=KeepDamaged),
        *(
            [Parameter("keep_code", Parameter.KEYWORD_ONLY, default=False, annotation=KeepCode)]
            if keep_code
            else []
        ),
        Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=RewriteJson),
    ]
    limit = Parameter("limit", Parameter.KEYWORD_ONLY, default=None, annotation=LimitOption)

    def decorate(command: Command) -> Command:
        own = [parameter for name, parameter in parameters_of(command).items() if name != "options"]

        def run(
            output: str | None = None,
            in_place: bool | None = None,
            copy: bool = False,
            force: bool = False,
            dry_run: bool = False,
            verify: str | None = None,
            keep_damaged: bool = False,
            keep_code: bool = False,
            json: bool = False,
            recursive: bool = False,
            files_from: str | None = None,
            partial: bool = False,
            limit: list[str] | None = None,
            **values: object,
        ) -> int:
            limits = limits_of(limit)
            options = WriteOptions(
                output=None if output is None else _place(output),
                in_place=in_place,
                copy=copy,
                force=force,
                dry_run=dry_run,
                verify=verify,
                keep_damaged=keep_damaged,
                keep_code=keep_code,
                json=json,
                limits=limits,
                many=many,
                recursive=recursive,
                files_from=files_from,
                partial=partial,
            )
            _check(options)
            _refuse_urls(command.__module__.rpartition(".")[2], values, options)
            return command(**values, options=options)

        return dressed(run, command, [*own, *shared, limit])

    return decorate


def rewrite(paths: list[str] | None, make: Make, options: WriteOptions, *, opened: Open = opened) -> int:
    """Each PATH: read, change, write, report. The exit code of the command."""
    if options.partial:
        opened = opened_partly
    jobs = jobs_of(paths or (), options, opened)
    turns = iter(jobs)
    return each(
        [job.path for job in jobs],
        lambda _: _one(next(turns), make, options, opened),
        json="ckpt.rewrite" if options.json else None,
        tell_rest=True,
    )


def _place(out: str) -> str:
    """OUT. A slash behind the URL of a distributed checkpoint says nothing more."""
    return out.rstrip("/") if is_url(out) and out.endswith(".dcp/") else out


def _check(options: WriteOptions) -> None:
    """Raise UsageError for options that contradict each other."""
    if options.output is not None and options.in_place:
        raise UsageError("-o and --in-place exclude each other")
    if options.copy and not options.in_place:
        raise UsageError("--copy goes with --in-place")
    if options.verify not in (None, "crc", "torch"):
        raise UsageError(f"--verify {options.verify}: not a check", hint="crc or torch")


_WITH_URLS = ("convert", "slim", "rehome", "salvage")
"""Commands that read from a URL, and write to one."""


def _refuse_urls(name: str, values: dict[str, object], options: WriteOptions) -> None:
    """Raise UsageError for a URL where a command reads, writes or changes local files only."""
    if options.output is not None and is_url(options.output):
        if name not in _WITH_URLS:
            raise UsageError(f"ckpt {name} writes local files only", path=options.output)
        if options.verify == "torch":
            raise UsageError(
                "--verify torch opens local files only", path=options.output, hint="--verify crc"
            )
    given = [item for value in values.values() for item in (value if isinstance(value, list) else [value])]
    url = next((item for item in given if isinstance(item, str) and is_url(item)), None)
    if url is None:
        return
    if name not in _WITH_URLS or options.in_place or values.get("undo"):
        way = "--undo" if values.get("undo") else "--in-place" if options.in_place else f"ckpt {name}"
        raise UsageError(f"{way} takes local files only", path=url, hint="download it first")


def _one(job: Job, make: Make, options: WriteOptions, opened: Open) -> int:
    limits = options.limits
    to = target_of(job, options)
    for other, size in left_over(to, options):
        output.talk(f"ckpt: {show(other, None)}: {size_text(size)} left over from a run that was killed")

    def plan() -> None:
        """Do all that --partial does before it writes. Raises CkptError where it would refuse."""
        partial_options = options._replace(partial=True)
        with open_item(job.item, partial_options, partial(opened_partly, tell=False)) as checkpoint:
            survey = Survey(weights_file(checkpoint) if options.weights_file else checkpoint)
            report = made(survey, make, partial_options)
            if not report.is_partial:
                raise UnsupportedError("nothing is missing")
            name = _format(report.result, to, options)
            if save.is_written(name):
                save.refuse_losses(report.result, name)

    try:
        with advised_partial(options, plan):
            checkpoint = open_item(job.item, options, opened)
    except CkptError as error:
        if is_skipped(job.item, error):
            return 0
        raise
    with checkpoint:
        chosen = weights_file(checkpoint) if options.weights_file else checkpoint
        survey = Survey(chosen)
        mixed = survey.mixed
        warn(checkpoint.path, [] if mixed is None else [mixed.text])
        with _advised(survey, limits), advised_partial(options, plan):
            return _rewritten(checkpoint, survey, make, to, options)


def _rewritten(
    checkpoint: Checkpoint,
    survey: Survey,
    make: Make,
    to: target.Target | None,
    options: WriteOptions,
) -> int:
    """Change, write and report one checkpoint; `survey` is of its file of weights where only that is changed."""
    limits = options.limits
    report = without_copies(with_unread(made(survey, make, options)), limits)
    if not options.in_place:
        report = with_files(report, checkpoint)
    refuse_source(report, to, options)
    if to is not None and to.warning:
        warn(to.path, [to.warning])
    if options.link:
        check_link(report, _format(report.result, to, options))
    if _is_pickle(report, to, options):
        check_code(report, survey, limits, keep=options.keep_code)
    saved = None
    refusal = "" if report.coverage is None else report.coverage.refusal
    if not options.dry_run and not refusal:
        saved = _write(report, to, options)
        if options.verify == "torch" and saved is not None and "torch" not in dict(saved.checks):
            runs = save.is_written(saved.format) and save.traits_of(saved.format).fills_a_state
            why = "its loader runs the pickles in it" if runs else "that needs weights_only=False"
            why = "that would compile its code" if report.result.traits.names_are_code else why
            text = f"torch did not load it, because {why}; every byte was compared instead"
            output.talk(f"ckpt: {show(saved.path, None)}: {text}")
    if options.lines is not None and report.coverage is not None:
        for line in options.lines(report.coverage, survey):
            output.write_text(line)
    elif options.json:
        output.write_json(report.to_json(written(saved), dry_run=options.dry_run))
    else:
        width = output.screen_width()
        if report.coverage is not None:
            output.write_lines(coverage_lines(report.coverage, width=width))
        output.write_lines(rewrite_lines(report, saved, dry_run=options.dry_run, width=width))
    if saved is not None:
        warn(saved.path, saved.warnings)
        if saved.damaged:
            listed = and_more([show(name, 80) for name in saved.damaged], 3)
            verb = "is" if len(saved.damaged) == 1 else "are"
            warn(saved.path, [f"{listed} {verb} damaged: the bytes do not match the recorded checksum"])
        if options.link:
            warn(
                saved.path,
                [f"its data files are hard links: a later save into {show(survey.path, None)} changes it"],
            )
    if refusal and report.coverage is not None:
        way = report.coverage.way
        command = None if way is None or options.again is None else options.again(way)
        text = f"{show(checkpoint.path, None)}: {show_literal(refusal)}: nothing was written"
        output.talk(f"ckpt: {text}", command)
    return int(bool(refusal) or report.is_partial or bool(saved and saved.damaged))


@contextmanager
def _advised(survey: Survey, limits: Limits) -> Iterator[None]:
    """Give an error the command that works instead."""
    try:
        yield
    except CkptError as error:
        if error.way is not None:
            from ckpt.cli.advice import advise  # here: only an error pays for it

            advise(error, survey, limits)
        raise


def warn(path: str, warnings: Iterable[str]) -> None:
    """Write what is to be known about a file to stderr."""
    for line in warnings:
        output.talk(f"ckpt: {show(path, None)}: {show_literal(line)}")


def _format(checkpoint: Checkpoint, to: target.Target | None, options: WriteOptions) -> str:
    """The format of the result."""
    if to is not None and options.format is None:
        return save.same_format(to.path, checkpoint)
    return options.format or checkpoint.format


def _is_pickle(report: RewriteReport, to: target.Target | None, options: WriteOptions) -> bool:
    """Tell whether a pickle is written, or would be without --dry-run."""
    if options.in_place and not report.changes:
        return False
    name = _format(report.result, to, options)
    return save.traits_of(name).is_pickle if save.is_written(name) else report.result.traits.is_pickle


def _write(report: RewriteReport, to: target.Target | None, options: WriteOptions) -> SavedFile | None:
    checkpoint, limits = report.result, options.limits
    format = _format(checkpoint, to, options)
    further: dict[str, Check] = {}
    if options.verify == "crc":
        further["crc"] = check_bytes
    elif options.verify == "torch":
        from ckpt.live.check import check_by_torch

        further["torch"] = check_by_torch
    if options.plain and save.traits_of(format).is_pickle:
        further["weights_only"] = check_weights_only
    if options.shard_bytes and options.output is not None:
        with output.progress("copying", _bytes_of(checkpoint)) as progress:
            folder, stem = shard_place(options.output)

            def shard(name: str) -> target.Target:
                return target.target(os.path.join(folder, name), force=options.force)

            return save.save_shards(
                checkpoint,
                shard,
                stem,
                options.shard_bytes,
                limits,
                progress=progress,
                checks=further,
                keep_damaged=options.keep_damaged,
            )
    if to is not None:
        if save.traits_of(format).is_folder:
            from ckpt.formats.dcp.items import placed  # here: most files pay nothing for it

            checkpoint = placed(checkpoint, options.ranks, link=options.link)
        if options.recursive:
            make_parents(to)
        with output.progress("copying", _bytes_of(checkpoint)) as progress:
            return save.save(
                checkpoint,
                to,
                format,
                limits,
                progress=progress,
                checks=further,
                keep_damaged=options.keep_damaged,
            )
    if not report.changes:
        return None  # it is as it should be already
    if checkpoint.traits.is_folder and save.is_written(checkpoint.format):
        return _relisted(report, options)
    if not can_stay(checkpoint):
        raise UnsupportedError(
            f"{checkpoint.format} files cannot be changed in place", path=checkpoint.path, hint="-o OUT"
        )
    if checkpoint.traits.in_place and not options.copy and not further:
        return save.append(checkpoint, limits)
    if report.left_out:
        raise LossError(
            f"in place, this would be lost: {show(report.left_out[0].what, 100)}",
            path=checkpoint.path,
            hint="-o OUT",
        )
    assert checkpoint.source is not None
    to = target.target(checkpoint.source.name, force=True)
    with output.progress("copying", _bytes_of(checkpoint)) as progress:
        return save.save(
            checkpoint,
            to,
            checkpoint.format,
            limits,
            progress=progress,
            checks=further,
            keep_damaged=options.keep_damaged,
        )


def _relisted(report: RewriteReport, options: WriteOptions) -> SavedFile:
    """Change the names of a distributed checkpoint in place. Raises CkptError."""
    checkpoint = report.result
    if options.copy or options.verify is not None:
        option = "--copy" if options.copy else "--verify"
        raise UsageError(
            f"{option} does not go with --in-place here: no data file is written", path=checkpoint.path
        )
    if report.left_out:
        raise LossError(
            f"in place, this would be lost: {show(report.left_out[0].what, 100)}",
            path=checkpoint.path,
            hint="-o OUT",
        )
    return save.relist(checkpoint, options.limits)


def _bytes_of(checkpoint: Checkpoint) -> int:
    return sum(storage.nbytes for storage in checkpoint.storages)


def written(saved: SavedFile | None) -> dict[str, Json] | None:
    """Return what was written, as the document `ckpt.rewrite` says it, or None."""
    if saved is None:
        return None
    return {
        "path": saved.path,
        "format": saved.format,
        "bytes": saved.nbytes,
        "appended": saved.appended,
        "shards": saved.shards,
        "overflowed": saved.overflowed,
        "relisted": list(saved.relisted),
        "damaged": list(saved.damaged),
        "seconds": round(saved.seconds, 6),
        "verified": {name: round(seconds, 6) for name, seconds in saved.checks},
    }


def check_code(report: RewriteReport, survey: Survey, limits: Limits, *, keep: bool) -> None:
    """Say on stderr what loading the result does beyond what ckpt knows.

    Raises CodeError where loading runs code, unless it is kept.
    """
    code = code_of(report.source, report.result)
    path = show(report.source.path, None)
    runs = and_more(list(code.runs), 1)
    if runs and not keep:
        from ckpt.cli.advice import Ways  # here: only an error pays for it

        way = Ways(survey, limits).way(("weights",)).command
        weights = "" if way is None else f"; for the weights alone: {way}"
        raise CodeError(
            f"loading the result would run {runs}",
            path=report.source.path,
            hint=f"--keep-code writes it all the same{weights}",
        )
    if runs:
        output.alarm(f"ckpt: {path}: DANGER: loading the result runs {show_literal(runs)}")
    for verb, texts in (("calls", code.calls), ("imports", code.imports)):
        if texts:
            listed = show_literal(and_more(list(texts), 2))
            output.talk(f"ckpt: {path}: loading the result {verb} {listed}, which ckpt does not know")
