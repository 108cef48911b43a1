"""Options that several commands share, so that help reads the same everywhere."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ckpt import formats
from ckpt.checkpoint import Checkpoint
from ckpt.errors import UsageError
from ckpt.evidence.record import ModelRecord
from ckpt.findings import CATALOGUE
from ckpt.limits import Limits

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...", help="Checkpoint files, indexes of shards, or directories.", show_default=False
    ),
]
OnePath = Annotated[str, typer.Argument(metavar="PATH", help="A checkpoint.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON document (one a line for several PATHs).")]
Tsv = Annotated[bool, typer.Option("--tsv", help="One row a line, tab-separated, exact, escaped.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="Leave out the header of --tsv and --table.")]
Table = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="Rows as plain, simple, github, or any format of tabulate."),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include", metavar="GLOB", help="Only tensors whose name matches; * crosses dots. Repeatable."
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Not the tensors whose name matches. Repeatable."),
]
SectionOption = Annotated[
    str | None,
    typer.Option("--section", metavar="PATH", help="Only this part of the checkpoint, such as optimizer."),
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on", metavar="CODE", help="Exit 1 when this was found; repeatable, or comma-separated."
    ),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=N", help="Raise a limit of the reader, as in pickle-bytes=1GiB."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FILE.py:FACTORY",
        help="Build the model with your own code (or PKG.MOD:FACTORY), on no device: then roles are certain.",
    ),
]
Arg = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", metavar="K=V", help="An argument for the FACTORY, as a Python literal or a text. Repeatable."
    ),
]

Output = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="OUT", help="Where to write.", show_default=False),
]
InPlace = Annotated[
    bool,
    typer.Option("--in-place", help="Change the file itself; of a zip only its end, in no time."),
]
Copy = Annotated[
    bool, typer.Option("--copy", help="With --in-place: write the file anew, and put it in its place.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT when it exists.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change, write nothing.")]
RewriteJson = Annotated[bool, typer.Option("--json", help="The report as one JSON document.")]
DropOther = Annotated[
    bool, typer.Option("--drop-other", help="Leave out what the result cannot hold, and list it.")
]
Verify = Annotated[
    str | None,
    typer.Option(
        "--verify",
        metavar="HOW",
        help="Check more than the structure before the file is put in place: crc reads every byte again,"
        " torch loads it with torch.",
    ),
]


def model_of(spec: str | None, arguments: list[str] | None) -> ModelRecord | None:
    """What the model of `--model` says, the only case in which a command that reads imports torch. Raises UsageError."""
    if spec is None:
        if arguments:
            raise UsageError("--arg goes with --model")
        return None
    from ckpt.live.factory import record

    return record(spec, arguments or ())


def plugins_allowed() -> bool:
    """Whether formats of other distributions may be asked: CKPT_NO_PLUGINS=1 says no."""
    return os.environ.get("CKPT_NO_PLUGINS", "") in ("", "0")


def opened(path: str, limits: Limits) -> Checkpoint:
    """The checkpoint at a path, as the command line and the environment say. Raises CkptError."""
    return formats.open(path, limits, plugins=plugins_allowed())


def limits_of(settings: list[str] | None) -> Limits:
    """The reader's limits as the command line sets them. Raises UsageError."""
    return Limits().raised(settings or [])


def codes_of(values: list[str] | None, command: str) -> frozenset[str]:
    """The codes of `--fail-on`. Raises UsageError for one that the command does not make: it would never fail."""
    codes = [code.strip() for value in values or [] for code in value.split(",") if code.strip()]
    possible = [row.code for row in CATALOGUE.values() if command in row.by]
    for code in codes:
        if code not in possible:
            raise UsageError(
                f"--fail-on {code}: not a finding of {command}", hint="codes: " + " ".join(possible)
            )
    return frozenset(codes)


def check_table(name: str | None) -> None:
    """Raise UsageError for a `--table` that tabulate does not know."""
    if name is None:
        return
    from tabulate import tabulate_formats

    if name not in tabulate_formats:
        raise UsageError(f"--table {name}: no such format", hint="formats: " + " ".join(tabulate_formats))
