"""What the commands that write share: where to, the steps in order, the report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import Parameter

from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.code import check_code
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
)
from ckpt.cli.outputs import (
    Job,
    Open,
    Partial,
    WriteOptions,
    advised_partial,
    can_stay,
    check_link,
    jobs_of,
    left_over,
    made,
    open_item,
    opened_partly,
    refuse_source,
    shard_place,
    target_of,
)
from ckpt.cli.paths import each
from ckpt.cli.signature import Command, dressed, parameters_of
from ckpt.cli.walk import is_skipped
from ckpt.errors import CkptError, LossError, UnsupportedError, UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.formats.save import Check, SavedFile, check_bytes, check_weights_only
from ckpt.io import commit
from ckpt.io.far import is_url
from ckpt.io.folder import make_parents
from ckpt.jobs.rewrite.report import RewriteReport, with_unread
from ckpt.jobs.rewrite.sets import weights_file, with_files, without_copies
from ckpt.limits import Limits
from ckpt.render.rewrite import rewrite_lines
from ckpt.render.warmstart import coverage_lines
from ckpt.text import Json, and_more, show, show_literal, size_text

Make = Callable[[Survey, Limits], RewriteReport]


def writing(
    *, many: bool = True, in_place: bool = True, keep_code: bool = True
) -> Callable[[Command], Command]:
    """Adds the options of a writing command, which is handed them as `options`."""
    shared = [
        *(
            [
                Parameter("recursive", Parameter.KEYWORD_ONLY, default=False, annotation=Recursive),
                Parameter("files_from", Parameter.KEYWORD_ONLY, default=None, annotation=FilesFrom),
                Parameter("partial", Parameter.KEYWORD_ONLY, default=False, annotation=Partial),
            ]
            if many
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
                None if output is None else _place(output),
                in_place,
                copy,
                force,
                dry_run,
                verify,
                keep_damaged,
                keep_code,
                json,
                limits,
                many,
                recursive,
                files_from,
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


_WITH_URLS = ("convert", "slim", "rehome")
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
    given = [each for value in values.values() for each in (value if isinstance(value, list) else [value])]
    url = next((each for each in given if isinstance(each, str) and is_url(each)), None)
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
        asked = options._replace(partial=True)
        with open_item(job.item, asked, partial(opened_partly, tell=False)) as found:
            survey = Survey(weights_file(found) if options.weights_file else found)
            report = made(survey, make, asked)
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
    to: commit.Target | None,
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
    least = options.min_coverage or 0.0
    nothing = report.coverage is not None and not report.coverage.tensors[0]
    too_little = report.coverage is not None and (nothing or report.coverage.share < least)
    if not options.dry_run and not too_little:
        saved = _write(report, to, options)
        if options.verify == "torch" and saved is not None and "torch" not in dict(saved.checks):
            runs = save.is_written(saved.format) and save.traits_of(saved.format).fills_a_state
            why = "its loader runs the pickles in it" if runs else "that needs weights_only=False"
            why = "that would compile its code" if report.result.traits.names_are_code else why
            text = f"torch did not load it, because {why}; every byte was compared instead"
            output.talk(f"ckpt: {show(saved.path, None)}: {text}")
    if options.json:
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
    if too_little:
        less = f"less than --min-coverage {least:g} of the elements"
        why = less if least else "no tensor of PRETRAINED fits"
        output.talk(f"ckpt: {show(checkpoint.path, None)}: {why}: nothing was written")
    return int(too_little or report.is_partial or bool(saved and saved.damaged))


@contextmanager
def _advised(survey: Survey, limits: Limits) -> Iterator[None]:
    """Give an error the command that works instead."""
    try:
        yield
    except CkptError as error:
        if error.way is not None:
            from ckpt.cli.advice.ways import advise  # here: only an error pays for it

            advise(error, survey, limits)
        raise


def warn(path: str, warnings: Iterable[str]) -> None:
    """What is to be known about a file, on stderr."""
    for line in warnings:
        output.talk(f"ckpt: {show(path, None)}: {show_literal(line)}")


def _format(checkpoint: Checkpoint, to: commit.Target | None, options: WriteOptions) -> str:
    """The format of the result."""
    if to is not None and options.format is None:
        return save.same_format(to.path, checkpoint)
    return options.format or checkpoint.format


def _is_pickle(report: RewriteReport, to: commit.Target | None, options: WriteOptions) -> bool:
    """Whether a pickle is written, or would be but for --dry-run."""
    if options.in_place and not report.changes:
        return False
    name = _format(report.result, to, options)
    return save.traits_of(name).is_pickle if save.is_written(name) else report.result.traits.is_pickle


def _write(report: RewriteReport, to: commit.Target | None, options: WriteOptions) -> SavedFile | None:
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

            def shard(name: str) -> commit.Target:
                return commit.target(os.path.join(folder, name), force=options.force)

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
    to = commit.target(checkpoint.source.name, force=True)
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
        "overflowed": saved.overflowed,
        "damaged": list(saved.damaged),
        "seconds": round(saved.seconds, 6),
        "verified": {name: round(seconds, 6) for name, seconds in saved.checks},
    }
