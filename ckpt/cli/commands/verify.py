"""`ckpt verify`: one line per file; 0 intact, 1 damaged, 2 unreadable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.inputs import TROUBLE, Answer, Cluster, Found, is_concern, listed, look, looked, working, worst
from ckpt.cli.options import (
    Exclude,
    FilesFrom,
    Include,
    Jobs,
    Json,
    LimitOption,
    PartOption,
    Paths,
    SectionOption,
    limits_of,
    opened,
    plugins_allowed,
)
from ckpt.cli.signature import OUTPUT, Exclusion, excluding
from ckpt.cli.work import LikeOption, all_sums, executor, like_at, recorded_lists, sums_of
from ckpt.errors import CkptError, LinkError, NotOpenedError, UnreadableError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.formats.verify import checksums, recorded, remainder
from ckpt.jobs.check import verify
from ckpt.jobs.check.recorded import RecordedList, compared, list_of
from ckpt.jobs.check.sums import Like, Sum, likeness, sums_now
from ckpt.jobs.check.verify import VerifyReport
from ckpt.limits import Limits
from ckpt.names import Globs
from ckpt.render.verify import verify_lines
from ckpt.rows import NamedTuple
from ckpt.text import Json as JsonValue
from ckpt.text import and_more, plural, show

if TYPE_CHECKING:
    from ckpt.io.executor import Executor

_CODES = {"intact": 0, "damaged": 1, "unreadable": TROUBLE}


@excluding(
    Exclusion(("--json", "--quiet")),
    Exclusion(("--cluster", "--jobs")),
    Exclusion(("--part",), ("--quick", "--json", "--quiet", "--cluster", "--like")),
)
def command(
    paths: Paths = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check the structure only; read no tensors.")
    ] = False,
    stored: Annotated[
        str | None,
        typer.Option(
            "--sums",
            metavar="F",
            help="Compare with the sums in F, as `ckpt sum` or `ckpt sum --recorded` wrote.",
        ),
    ] = None,
    like: LikeOption = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    json: Json = False,
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Print only files that are not intact.", rich_help_panel=OUTPUT),
    ] = False,
    files_from: FilesFrom = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    limit: LimitOption = None,
    part: PartOption = None,
) -> int:
    """Check whether files are intact: structure, checksums, shards. Exit code 0 intact, 1 damaged, 2 unreadable.

    Every recorded checksum is compared with the bytes. Where a format records none, the report says so. For a file
    that is cut off, it names the tensors that are lost. With a list of `ckpt sum --recorded`, --sums also compares
    item by item, file by file and step by step; --quick then reads directories only.

    \b
    ckpt verify runs/
    ckpt sum model.pth > model.sums; ckpt verify copy.safetensors --sums model.sums
    """
    limits = limits_of(limit)
    names = listed(paths, files_from)
    globs = Globs(include or (), exclude or ())
    if stored is None and (globs or (section is not None and like is None)):
        raise UsageError("--include and --exclude go with --sums, --section with --sums or --like")
    lists = [] if stored is None else recorded_lists(stored, limits)
    if lists and (globs or part is not None or (section is not None and like is None)):
        raise UsageError(
            "--include, --exclude, --section and --part do not go with the list of ckpt sum --recorded",
            path=stored,
        )
    if quick and stored is not None and not lists:
        raise UsageError(
            "--quick goes with the list of ckpt sum --recorded, not with other sums", path=stored
        )
    if part is not None:
        options: dict[str, JsonValue] = {"include": include, "exclude": exclude, "section": section}
        from ckpt.cli.parts import write_part  # here: who runs no part needs no other command

        return write_part(part, "verify", names, limits, {**options, "stored": stored})
    expected = None if stored is None or lists else all_sums(stored, limits, globs)
    listing = None if stored is None or not lists else _Listing(lists, stored)
    other = None if like is None else like_at(like, limits, section)

    def answer(item: Found, workers: Executor | None) -> Answer:
        report = _report(item, limits, quick, expected, section, workers, other, listing)
        code = _CODES[report.verdict]
        if json:
            return Answer(code, document=report.to_json())
        shown = [] if quiet and not code else verify_lines(report, output.screen_width())
        return Answer(code, lines=shown)

    items = looked(names, limits, plugins=plugins_allowed())
    gone = [] if listing is None else listing.unmatched(items)
    failed = _failed if json else None
    with working(cluster, names) as workers:
        count = 1 if workers is not None else jobs  # a process that talks to a cluster is not copied
        task = partial(answer, workers=workers)
        codes = look(names, items, task, json=failed, jobs=count, doing="checking")
    if gone and stored is not None:
        listed_paths = and_more([show(path, 80) for path in gone], 3)
        output.talk(f"ckpt: {show(stored, None)}: not compared, no such checkpoint here: {listed_paths}")
        if any(not item.named for item in items):  # a folder that should hold them all
            codes.append(_CODES["damaged"])
    if len(codes) > 1 and not json and not quiet:
        output.conclude(_summary(codes))
    return worst(codes)


def _failed(path: str, error: CkptError) -> dict[str, JsonValue]:
    """The document of a folder without a checkpoint."""
    return verify.unreadable(path, error.failure(path)).to_json()


def _summary(codes: Sequence[int]) -> str:
    """`5 files: 3 intact, 1 damaged, 1 unreadable`."""
    counts = [(codes.count(code), verdict) for verdict, code in _CODES.items()]
    parts = ", ".join(f"{count:,} {verdict}" for count, verdict in counts if count)
    return f"{plural(len(codes), 'file')}: {parts}"


class _Listing(NamedTuple):
    """The lists of recorded checksums in the file `stored`."""

    lists: list[RecordedList]
    stored: str

    def unmatched(self, items: Sequence[Found]) -> list[str]:
        """The checkpoints that the file lists and that are not among those to be checked."""
        matches = [list_of(item.path, self.lists) for item in items]
        return [
            record.path
            for record in self.lists
            if record.path is not None and not any(record is match for match in matches)
        ]

    def compared(self, report: VerifyReport, item: Found, limits: Limits, *, quick: bool) -> VerifyReport:
        """The report with what differs from the list of a checkpoint. Raises CkptError."""
        expected = list_of(item.path, self.lists)
        if expected is None:
            if item.named:
                raise UsageError("--sums has no sums of this file")
            problem = verify.Problem(f"not in {show(self.stored, 80)}")
            return verify.with_recorded(report, (problem,), "", quick=quick)
        record = recorded(item.path, limits, plugins=plugins_allowed())
        comparison = compared(expected, record.format, record.files, self.stored)
        return verify.with_recorded(report, comparison.problems, comparison.checked, quick=quick)


def _report(
    item: Found,
    limits: Limits,
    quick: bool,
    expected: list[Sum] | None,
    section: str | None = None,
    workers: Executor | None = None,
    other: Like | None = None,
    listing: _Listing | None = None,
) -> VerifyReport:
    """The verdict on one file. Raises CkptError for a file in a folder that need not be a checkpoint."""
    path = item.path
    try:
        if item.error is not None:
            raise item.error
        with about(path), opened(path, limits, tell=False) as checkpoint:
            with output.progress("checking", checkpoint.nbytes) as progress:
                if expected is not None:
                    expected = sums_of(path, expected)
                    survey = Survey(checkpoint)
                    who = workers or executor()
                    now = sums_now(survey, expected, section, progress=progress, executor=who)
                    report = verify.against(checkpoint, expected, now)
                else:
                    report = verify.structure(checkpoint)
                    if not quick:
                        allowed, who = plugins_allowed(), workers or executor()
                        done = checksums(path, limits, progress, plugins=allowed, executor=who)
                        report = verify.with_checksums(
                            report, checkpoint, done.damage, done.nbytes, done.unchecked, done.unread
                        )
                if listing is not None:
                    report = listing.compared(report, item, limits, quick=quick)
            if other is not None:
                report = verify.with_likeness(
                    checkpoint, report, likeness(Survey(checkpoint), other, section)
                )
            checkpoint.check_unchanged()
            return report
    except CkptError as error:
        if not is_concern(item, error):
            raise
        if not isinstance(error, UnreadableError) or isinstance(error, (LinkError, NotOpenedError)):
            return verify.unreadable(path, error.failure(path))
        plan = partial(_salvage, limits=limits)
        rest = remainder(error.path or path, limits, plan, plugins=plugins_allowed())
        if rest is None:
            return verify.damaged(path, error.said_of(path), None, None)
        report = verify.damaged(path, error.said_of(path), rest.whole, rest.lost, rest.rows)
        return report._replace(hint=rest.hint)


def _salvage(checkpoint: Checkpoint, limits: Limits) -> str | None:
    """The command that writes what is whole of a damaged file, or None where none works."""
    from ckpt.cli.advice import Ways  # here: only a damaged file pays for it

    return Ways(Survey(checkpoint), limits).way(("salvage",)).command
