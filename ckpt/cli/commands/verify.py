"""`ckpt verify`: one line per file; 0 intact, 1 damaged, 2 unreadable."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import (
    Exclude,
    FilesFrom,
    Include,
    Json,
    LimitOption,
    PathsOrList,
    SectionOption,
    limits_of,
    opened,
    plugins_allowed,
)
from ckpt.cli.paths import each
from ckpt.cli.signature import OUTPUT, Exclusion, excluding
from ckpt.cli.walk import listed
from ckpt.errors import CkptError, CutOffError, NotOpenedError, UnreadableError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.formats.verify import checksums, salvage
from ckpt.io.location import locate, read_file
from ckpt.jobs.check import verify
from ckpt.jobs.check.sums import Sum, parse, sums_now
from ckpt.jobs.check.verify import VerifyReport
from ckpt.limits import Limits
from ckpt.names import Globs
from ckpt.render.verify import verify_lines

_CODES = {"intact": 0, "damaged": 1, "unreadable": 2}


@excluding(Exclusion(("--quick", "--sums")), Exclusion(("--json", "--quiet")))
def command(
    paths: PathsOrList = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check the structure only; read no tensors.")
    ] = False,
    stored: Annotated[
        str | None,
        typer.Option(
            "--sums", metavar="F", help="Compare the tensors with the sums in F, as `ckpt sum` writes them."
        ),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    json: Json = False,
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Print only files that are not intact.", rich_help_panel=OUTPUT),
    ] = False,
    files_from: FilesFrom = None,
    limit: LimitOption = None,
) -> int:
    """Check whether files are intact: structure, checksums, shards. Exit code 0 intact, 1 damaged, 2 unreadable.

    Every recorded checksum is compared with the bytes. Where a format records none, the report says so. For a file
    that is cut off, it names the tensors that are lost.

    \b
    ckpt verify ./*.pth
    ckpt sum model.pth > model.sums; ckpt verify copy.safetensors --sums model.sums
    """
    limits = limits_of(limit)
    names = listed(paths, files_from)
    globs = Globs(include or (), exclude or ())
    if stored is None and (globs or section is not None):
        raise UsageError("--include, --exclude and --section go with --sums")
    expected = None if stored is None else _stored(stored, limits, globs)

    def one(path: str) -> int:
        report = _report(path, limits, quick, expected, section)
        if json:
            output.write_json(report.to_json())
        elif not (quiet and report.verdict == "intact"):
            output.write_lines(verify_lines(report, output.screen_width()))
        return _CODES[report.verdict]

    return each(names, one)


def _stored(path: str, limits: Limits, globs: Globs) -> list[Sum]:
    """The sums in a file that are selected. Raises CkptError."""
    with about(path):
        data = read_file(locate(path), limits, "the sums")
        try:
            stored = parse(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise UnreadableError("is not text", hint="expected the lines of ckpt sum") from None
        chosen = [row for row in stored if globs.match(row.name)]
        if not chosen:
            raise globs.refusal([row.name for row in stored], path)
        return chosen


def _report(
    path: str, limits: Limits, quick: bool, expected: list[Sum] | None, section: str | None = None
) -> VerifyReport:
    try:
        with about(path), opened(path, limits, tell=False) as checkpoint:
            with output.progress("checking", checkpoint.nbytes) as progress:
                if expected is not None:
                    now = sums_now(Survey(checkpoint), expected, section, progress=progress)
                    report = verify.against(checkpoint, expected, now)
                else:
                    report = verify.structure(checkpoint)
                    if not quick:
                        done = checksums(path, limits, progress, plugins=plugins_allowed())
                        report = verify.with_checksums(
                            report, checkpoint, done.damage, done.nbytes, done.unchecked
                        )
            checkpoint.check_unchanged()
            return report
    except NotOpenedError as error:
        return verify.unreadable(path, error.said_of(path))
    except UnreadableError as error:
        found = salvage(error.path or path, limits) if isinstance(error, CutOffError) else None
        names = (None, None) if found is None else (found.whole, found.lost)
        return verify.damaged(path, error.said_of(path), *names)
    except CkptError as error:
        return verify.unreadable(path, error.said_of(path))
