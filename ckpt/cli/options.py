"""Options that several commands share, so that help reads the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Annotated

import typer

from ckpt.api.checkpoint import Checkpoint
from ckpt.api.keywords import doubts
from ckpt.api.opening import open_side
from ckpt.cli import output
from ckpt.cli.signature import FILTER, GATE, LIMITS, OUTPUT
from ckpt.errors import UsageError
from ckpt.findings import DOUBTS
from ckpt.limits import Limits
from ckpt.text import listed, show, show_literal

Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH...", help="Checkpoint files, indexes of shards, or folders.", show_default=False
    ),
]
OnePath = Annotated[str, typer.Argument(metavar="PATH", help="A checkpoint.", show_default=False)]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document per PATH, in a pipe each on one line.", rich_help_panel=OUTPUT
    ),
]
Tsv = Annotated[
    bool, typer.Option("--tsv", help="Print tab-separated rows, exact and escaped.", rich_help_panel=OUTPUT)
]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="Omit the header of --tsv and --table.", rich_help_panel=OUTPUT)
]
Table = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="NAME",
        help="Print a table as plain, simple, github, or any format of tabulate.",
        rich_help_panel=OUTPUT,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="GLOB",
        help="Select tensors by name; * crosses dots. Repeatable.",
        rich_help_panel=FILTER,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="GLOB", help="Leave out tensors by name. Repeatable.", rich_help_panel=FILTER
    ),
]
SectionOption = Annotated[
    str | None,
    typer.Option(
        "--section",
        metavar="PATH",
        help="Use one part of the checkpoint, such as optimizer.",
        rich_help_panel=FILTER,
    ),
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="CODE",
        help="Exit 1 on this finding, or on any of level error, warning or any. Repeatable, or comma-separated.",
        rich_help_panel=GATE,
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CODE",
        help="Report only these findings, of any level. Repeatable, or comma-separated.",
        rich_help_panel=GATE,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="CODE",
        help="Ignore these findings. Repeatable, or comma-separated.",
        rich_help_panel=GATE,
    ),
]
LevelOption = Annotated[
    str | None,
    typer.Option(
        "--level",
        metavar="LEVEL",
        help="Report this level and above: error, warning or info.",
        rich_help_panel=GATE,
    ),
]
FilesFrom = Annotated[
    str | None,
    typer.Option("--files-from", metavar="FILE", help="Read further PATHs from a file, - for stdin."),
]
Require = Annotated[
    bool,
    typer.Option(
        "--require",
        help="Exit 2 where a list is empty, and in lint where a folder holds no checkpoint.",
        rich_help_panel=GATE,
    ),
]
Others = Annotated[
    bool,
    typer.Option(
        "--others", help="List the files of folders that were not looked at.", rich_help_panel=OUTPUT
    ),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="Exit 0 although files cannot be read.", rich_help_panel=GATE),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        min=1,
        max=256,
        help="Read N files at once. The output is the same for any N.",
        rich_help_panel=LIMITS,
    ),
]
Recursive = Annotated[
    bool,
    typer.Option(
        "-r",
        "--recursive",
        help="Change the checkpoints in folders too; OUT is a folder that keeps their relative paths.",
    ),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=N",
        help="Raise a limit of the reader, such as pickle-bytes=1GiB.",
        rich_help_panel=LIMITS,
    ),
]
StripOption = Annotated[
    bool,
    typer.Option("--strip", help="First strip the prefixes of wrappers from the names, as ckpt strip does."),
]
Prefix = Annotated[
    str | None,
    typer.Option("--prefix", metavar="TEXT", help="Strip this prefix instead of those that wrappers leave."),
]
To = Annotated[
    str | None, typer.Option("--to", metavar="TAG", help="First move the tensors to this device, as cpu.")
]
WithConfig = Annotated[
    bool,
    typer.Option(
        "--with-config",
        help="Make OUT a folder, with config.json and the tokenizer from beside the weights.",
        rich_help_panel=OUTPUT,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FILE.py:FACTORY",
        help="Build the model with your own code, on the meta device, so that roles are certain.",
    ),
]
Arg = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", metavar="K=V", help="Pass an argument to the FACTORY, a Python literal or text. Repeatable."
    ),
]

Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="OUT",
        help="Write to this file or folder.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
InPlace = Annotated[
    bool,
    typer.Option(
        "--in-place",
        help="Change the file itself. A zip grows at its end, of a DCP .metadata is replaced.",
        rich_help_panel=OUTPUT,
    ),
]
Copy = Annotated[
    bool,
    typer.Option(
        "--copy", help="With --in-place: write a new file and replace the old one.", rich_help_panel=OUTPUT
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.", rich_help_panel=OUTPUT)]
Parents = Annotated[
    bool,
    typer.Option("--parents", help="Make the folders above OUT that are not there.", rich_help_panel=OUTPUT),
]
Link = Annotated[
    bool,
    typer.Option(
        "--link",
        help="Make hard links to the data files of a DCP, and do not copy them.",
        rich_help_panel=OUTPUT,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would change, and write nothing.", rich_help_panel=OUTPUT)
]
KeepCode = Annotated[
    bool,
    typer.Option(
        "--keep-code",
        help="Write a result that runs code of the file when it is loaded.",
        rich_help_panel=OUTPUT,
    ),
]
KeepDamaged = Annotated[
    bool,
    typer.Option(
        "--keep-damaged",
        help="Write tensors whose bytes do not match their checksum too, name them, and exit with 1.",
        rich_help_panel=OUTPUT,
    ),
]
RewriteJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=OUTPUT)]
DropOther = Annotated[
    bool, typer.Option("--drop-other", help="Drop what the result cannot hold, and list it.")
]
Verify = Annotated[
    str | None,
    typer.Option(
        "--verify",
        metavar="HOW",
        help="Check the new file before it replaces anything: crc reads every byte, torch loads it.",
        rich_help_panel=OUTPUT,
    ),
]

LikeOption = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="OTHER",
        help="Compare names and shapes with another checkpoint, or names with the sums that `ckpt sum` wrote.",
    ),
]
NoAlign = Annotated[
    bool,
    typer.Option("--no-align", help="Compare names as they are, with wrappers and without a mapping."),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="I/N",
        help="Run part I of N, from 0, and write it for ckpt merge-parts.",
        rich_help_panel=LIMITS,
    ),
]


def refuse_factory(path: str, option: str) -> None:
    """Raise UsageError for FILE.py:FACTORY where a checkpoint is expected: only an option may run code."""
    file, _, name = path.rpartition(":")
    if file.endswith(".py") and name.isidentifier() and not os.path.lexists(path):
        raise UsageError("not a checkpoint", path=path, hint=f"{option} {show(path, 80)} builds a live model")


def plugins_allowed() -> bool:
    """Tell whether formats of other distributions may be asked. CKPT_NO_PLUGINS=1 says no."""
    return os.environ.get("CKPT_NO_PLUGINS", "") in ("", "0")


def opened(
    path: str, limits: Limits, *, tell: bool = True, structure: bool = False, partial: bool = False
) -> Checkpoint:
    """The checkpoint at a path, as the command line and the environment say. Raises CkptError.

    With `tell`, stderr names the damaged files of a folder, which the command then does without. With `structure`, a
    stored listing is one too; with `partial`, what is left of one that is damaged.
    """
    checkpoint = open_side(
        path, structure=structure, partial=partial, limits=limits, plugins=plugins_allowed()
    )
    for text in notices(checkpoint) if tell else ():
        output.talk(text)
    return checkpoint


def notices(checkpoint: Checkpoint, codes: Collection[str] = DOUBTS) -> list[str]:
    """The lines about each doubt, or each notice with one of the `codes`, for stderr."""
    return [f"ckpt: {text}" for text in doubts(checkpoint.checkpoint, codes)]


def tell(line: str) -> None:
    """Write a warning to stderr, in red where a result runs code."""
    (output.alarm if ": DANGER: " in line else output.talk)(f"ckpt: {line}")


def unread(path: str, what: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    """A line about the tensors that `what` ("measured") does not hold for, (name, why); none where all were read."""
    if not rows:
        return []
    names = listed([name for name, _ in rows], 5)
    return [f"ckpt: {show(path, None)}: not {what}: {names}: {show_literal(rows[0][1])}"]


def limits_of(settings: list[str] | None) -> Limits:
    """The reader's limits as the command line sets them. Raises UsageError."""
    return Limits().raised(settings or [])


def check_table(name: str | None) -> None:
    """Raise UsageError for a `--table` that tabulate does not know."""
    if name is None:
        return
    from tabulate import tabulate_formats

    if name not in tabulate_formats:
        raise UsageError(f"--table {name}: no such format", hint="formats: " + " ".join(tabulate_formats))
