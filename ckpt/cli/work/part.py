"""`--part I/N`: run one part of the tasks of a command, and write what they have found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.inputs import TROUBLE
from ckpt.cli.options import opened
from ckpt.cli.signature import LIMITS
from ckpt.errors import UsageError, about
from ckpt.limits import Limits
from ckpt.text import Json, plural, show

PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="I/N",
        help="Run part I of N, from 0, and write it for ckpt merge-parts.",
        rich_help_panel=LIMITS,
    ),
]
_SHARE = re.compile(r"(\d{1,7})/(\d{1,7})", re.ASCII)


def write_part(
    text: str, command: str, paths: Sequence[str], limits: Limits, options: Mapping[str, Json]
) -> int:
    """Run one part of a command and write its document; the exit code: 2 where something could not be read.

    Raises CkptError, before anything is written.
    """
    from ckpt.cli.work.jobs import WORKS, sums_input  # here: who runs no part needs no other command
    from ckpt.io.executor import Failed, Threads
    from ckpt.jobs.parts.document import MOST, Part
    from ckpt.jobs.parts.results import encoded
    from ckpt.jobs.parts.share import Mine, Notes, Share, cut, input_of, plan_of

    match = _SHARE.fullmatch(text)
    share = Share(int(match[1]), int(match[2])) if match else Share(0, 0)
    if not share.number < share.of <= MOST:
        raise UsageError(
            f"--part {show(text, 40)}: not a part", hint=f"I/N, I from 0 to N - 1, N up to {MOST:,}"
        )
    work = WORKS[command]
    if len(paths) != work.inputs:
        raise UsageError("--part takes one PATH", hint="a folder or an index is one checkpoint")
    with ExitStack() as stack:
        inputs = [stack.enter_context(opened(path, limits)) for path in paths]
        notes = Notes()
        with about(paths[0]):
            work.run(inputs, options, limits, notes)
        first, last = cut(notes.tasks, share)
        nbytes = sum(task.nbytes for task in notes.tasks[first:last])
        with output.progress(work.doing, nbytes) as progress, about(paths[0]):
            mine = Mine(Threads(), first, last, progress)
            work.run(
                inputs, options, limits, mine
            )  # again, for the files of its tasks may be open only meanwhile
        for checkpoint in inputs:
            checkpoint.check_unchanged()
        told = (*map(input_of, inputs), *sums_input(options))
    # What verify --sums does without, once all sums of a section agree: it does without them when parts are merged, too.
    unneeded = encoded(Failed("not needed"))
    part = Part(
        share,
        command,
        told,
        options,
        len(notes.tasks),
        plan_of(notes.tasks),
        first,
        [*mine.results, *[unneeded] * (last - first - len(mine.results))],
    )
    output.write_json(part.to_json())
    if mine.failed:
        what = f"{share}: {plural(len(mine.failed), 'task')} could not read: {mine.failed[0]}"
        output.talk(f"ckpt: {show(paths[0], None)}: {what}")
    return TROUBLE if mine.failed else 0
