"""`ckpt merge-parts`: the parts of a job, checked and put together, and the command's own report of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, cast

import typer

from ckpt.api.checkpoint import Checkpoint
from ckpt.api.keywords import codes_of
from ckpt.cli import output
from ckpt.cli.commands import diff, stats, sum, verify
from ckpt.cli.inputs import TROUBLE
from ckpt.cli.options import (
    FailOn,
    Ignore,
    Json,
    LevelOption,
    LimitOption,
    NoHeader,
    Select,
    Table,
    Tsv,
    limits_of,
    opened,
)
from ckpt.cli.parts import WORKS, Job, Work, refuse_far_sums
from ckpt.cli.signature import OUTPUT, Command, option_of, parameters_of
from ckpt.elements.blocks import BLOCK, blocks
from ckpt.errors import NotOpenedError, UnreadableError, UnsupportedError, UsageError, about
from ckpt.io.executor import working
from ckpt.io.far import is_url
from ckpt.io.location import locate
from ckpt.jobs.parts import (
    Known,
    Part,
    check_inputs,
    check_tasks,
    checked_options,
    documents_of,
    part_of,
    refusals,
    results_of_all,
)
from ckpt.limits import Limits
from ckpt.tensors import Range
from ckpt.text import plural, show

_COMMANDS: dict[str, Command] = {
    "stats": stats.command,
    "diff": diff.command,
    "verify": verify.command,
    "sum": sum.command,
}


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PART...",
            help="What --part printed, of all parts: in a file each, or one after another. - is stdin.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="PATH",
            help="Find the checkpoint, or a copy of it, here and not where the parts did. For diff twice.",
        ),
    ] = None,
    json: Json = False,
    tsv: Tsv = False,
    table: Table = None,
    no_header: NoHeader = False,
    modules: Annotated[
        bool, typer.Option("--modules", help="As in ckpt stats.", rich_help_panel=OUTPUT)
    ] = False,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="KEY", help="As in ckpt stats.", rich_help_panel=OUTPUT)
    ] = None,
    name_only: Annotated[
        bool, typer.Option("--name-only", help="As in ckpt diff.", rich_help_panel=OUTPUT)
    ] = False,
    which: Annotated[
        str | None, typer.Option("--show", metavar="WHAT", help="As in ckpt diff.", rich_help_panel=OUTPUT)
    ] = None,
    select: Select = None,
    ignore: Ignore = None,
    level: LevelOption = None,
    fail_on: FailOn = None,
    limit: LimitOption = None,
) -> int:
    """Put the parts of ckpt stats, diff, verify or sum together, and report as the command itself does.

    All parts must be there, once each, and of the same files and options. The checkpoint is opened again for its names;
    no tensor is read. The exit code is the one of the command.

    \b
    for i in 0 1; do ckpt stats model.pth --part $i/2 > part-$i.json; done
    ckpt merge-parts part-*.json --fail-on nan
    """
    limits = limits_of(limit)
    names = files or []
    if not names:
        raise UsageError("nothing to merge", hint="PART..., what --part I/N printed")
    if names.count("-") > 1:
        raise UsageError("-: given twice, and stdin is read once")
    parts = [part for file in names for part in _read(file, limits)]
    refused = refusals(parts)
    for error in refused:
        output.fail(error)
    if refused:
        return TROUBLE
    name, part = parts[0].command, parts[0]
    work = WORKS.get(name)
    if work is None:
        raise UnreadableError(f"is not a part: no part of ckpt {show(name, 40)}", path=part.file)
    options = checked_options(part, work.options)
    shown: dict[str, object] = {
        **{"json": json, "tsv": tsv, "table": table, "no_header": no_header, "modules": modules},
        **{"sort": sort, "name_only": name_only, "which": which, "select": select},
        **{"ignore": ignore, "level": level, "fail_on": fail_on},
    }
    options_given = {key: value for key, value in shown.items() if value is not None and value is not False}
    with about(part.file):
        _check_asked(name, work, options, options_given)
        refuse_far_sums(options)
    if options.get("histogram") and output.is_silent():
        raise UsageError("--histogram and --quiet exclude each other")
    paths = _paths(part, work, at or ())
    results = _results(parts, work, paths, options, limits, is_copy=bool(at))
    run = _COMMANDS[name]
    where = {"paths": paths} if work.inputs == 1 else {"before": paths[0], "after": paths[1]}
    with working(results, is_cut=True):
        return run(**where, **options, **options_given, limit=limit)


def _read(file: str, limits: Limits) -> list[Part]:
    """The parts in a file, or on stdin. Raises CkptError, also without any."""
    with about(file), ExitStack() as stack:
        if file == "-":
            chunks = _stdin()
        else:
            source = locate(file).open()
            stack.callback(source.close)
            chunks = blocks(Range(source, 0, source.size))
        parts = []
        for name, data in documents_of(chunks, file, limits):
            with about(name):
                parts.append(part_of(data, name, limits))
        if not parts:
            raise UnreadableError(
                "empty: no part came" if file == "-" else "empty: the part was not finished"
            )
        return parts


def _stdin() -> Iterator[bytes]:
    return iter(()) if sys.stdin is None else iter(partial(sys.stdin.buffer.read, BLOCK), b"")


def _check_asked(
    name: str, work: Work, options: Mapping[str, object], options_given: Mapping[str, object]
) -> None:
    """Raise UsageError for an option that the command lacks, or that asks for what the parts do not hold."""
    for key in options_given:
        if key not in work.shown:
            option = option_of(parameters_of(command)[key])
            raise UsageError(f"{option} does not go with the parts of ckpt {name}")
    if name != "stats" or options["channels"]:
        return
    for key in ("select", "fail_on"):
        values = cast("Sequence[str] | None", options_given.get(key))
        if "dead-channels" in codes_of(
            f"--{key}".replace("_", "-"), values, name, ("error", "warning", "any")
        ):
            raise UsageError("holds no channels", hint="ckpt stats --channels --part I/N")


def _paths(part: Part, work: Work, at: Sequence[str]) -> list[str]:
    """Return the paths of the checkpoints.

    A part may name any path, but nothing is asked of a server that the user did not type.
    """
    paths = [row.path for row in part.inputs[: work.inputs]]
    if len(paths) != work.inputs:
        raise UnreadableError("is not a part: an input is missing", path=part.file)
    if at:
        if len(at) != len(paths):
            text = f"is of {plural(len(paths), 'PATH')}, --at is given {plural(len(at), 'time')}"
            raise UsageError(text, path=part.file, hint=" ".join(["--at PATH"] * len(paths)))
        return list(at)
    for path in paths:
        if is_url(path):
            text = f"names the URL {show(path, 80)}, which is not opened for a file"
            raise UsageError(text, path=part.file, hint="--at URL")
    return paths


def _results(
    parts: Sequence[Part],
    work: Work,
    paths: Sequence[str],
    options: Mapping[str, object],
    limits: Limits,
    *,
    is_copy: bool,
) -> Known:
    """Return the executor that hands in the results of all tasks.

    Raises CkptError when the results are of other files.
    """

    def found(path: str) -> Checkpoint:
        try:
            return opened(path, limits, tell=False)
        except (NotOpenedError, UnsupportedError) as error:
            error.hint = (
                error.hint or f"--at PATH says where the checkpoint of {show(parts[0].file, None)} is now"
            )
            raise

    with ExitStack() as stack:
        job = Job(stack, work, paths, options, limits, found)
        for copy, path in check_inputs(parts, job.inputs(), is_copy=is_copy):
            what = f"taken for a copy of {show(path, None)}, whose bytes the parts have read"
            output.talk(f"ckpt: {show(copy, None)}: {what}")
        check_tasks(parts, job.tasks, job.problem)
        return Known(results_of_all(parts, job.tasks))
