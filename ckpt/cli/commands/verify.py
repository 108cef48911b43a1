"""`ckpt verify`: a line a file; 0 whole, 1 damaged, 2 could not look."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import Json, LimitOption, Paths, limits_of, opened, plugins_allowed
from ckpt.errors import CkptError, CutOffError, NotOpenedError, UnreadableError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.formats.verify import checksums, salvage
from ckpt.io.location import locate, read_file
from ckpt.jobs.check import verify
from ckpt.jobs.check.sums import Sum, parse, sums
from ckpt.jobs.check.verify import VerifyReport
from ckpt.limits import Limits
from ckpt.text import show, show_literal

_CODES = {"ok": 0, "damaged": 1, "could not look": 2}
_STYLES = {"ok": "name", "damaged": "error", "could not look": "warning"}


def command(
    paths: Paths,
    quick: Annotated[bool, typer.Option("--quick", help="Only the structure: no tensor is read.")] = False,
    stored: Annotated[
        str | None,
        typer.Option(
            "--sums", metavar="F", help="Check the tensors against what `ckpt sum` wrote, and only that."
        ),
    ] = None,
    json: Json = False,
    limit: LimitOption = None,
) -> int:
    """Whether files are whole: container, CRCs, shards against their index. 0 whole, 1 damaged, 2 could not look.

    Every recorded CRC is held against the bytes; where a format records none, it says that values cannot be
    checked. Of a cut file it names the tensors that are lost.

    \b
    ckpt verify *.pth
    ckpt sum model.pth > model.sums; ckpt verify copy.safetensors --sums model.sums
    """
    limits = limits_of(limit)
    if quick and stored is not None:
        raise UsageError("--quick and --sums exclude each other")
    expected = None if stored is None else _stored(stored, limits)
    worst = 0
    for path in paths:
        report = _report(path, limits, quick, expected)
        if json:
            output.write_json(report.to_json(), one_line=len(paths) > 1)
        else:
            text = verify.text_of(report)
            head = report.verdict
            line = [
                (f"{show(path, None)}: ", ""),
                (head, _STYLES[head]),
                (show_literal(text[len(head) :]), ""),
            ]
            output.write_lines([line])
        worst = max(worst, _CODES[report.verdict])
    return worst


def _stored(path: str, limits: Limits) -> list[Sum]:
    with about(path):
        data = read_file(locate(path), limits, "the sums")
        try:
            return parse(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise UnreadableError("is no text", hint="ckpt sum writes it") from None


def _report(path: str, limits: Limits, quick: bool, expected: list[Sum] | None) -> VerifyReport:
    try:
        with about(path), opened(path, limits) as checkpoint:
            with output.progress(checkpoint.nbytes) as progress:
                if expected is not None:
                    report = verify.against(checkpoint, expected, _found(Survey(checkpoint), expected))
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
        return verify.unknown(path, _problem(error))
    except UnreadableError as error:
        found = salvage(path, limits) if isinstance(error, CutOffError) else None
        names = (None, None) if found is None else (found.whole, found.lost)
        return verify.damaged(path, _problem(error), *names)
    except CkptError as error:
        return verify.unknown(path, _problem(error))


def _problem(error: CkptError) -> str:
    return error.problem + (f" ({error.hint})" if error.hint else "")


def _found(survey: Survey, expected: list[Sum]) -> dict[str, str]:
    """The sums of the tensors by their full names and, of the only model, by those inside of it."""
    names = {entry.name for entry in survey.tensors}
    found: dict[str, str] = {}
    if len(survey.models) == 1 and not all(row.name in names for row in expected):
        found |= {row.name: row.digest for row in sums(survey)}
    if not all(row.name in found for row in expected):
        found = {row.name: row.digest for row in sums(survey, everything=True)} | found
    return found
