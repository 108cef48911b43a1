"""`--part I/N`: run one part of the tasks of a command without its report, and write what they have found, with its options."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import cast

from ckpt.api import reading
from ckpt.api.checkpoint import Checkpoint
from ckpt.api.keywords import globs_of
from ckpt.api.stored import checked_with
from ckpt.cli import output
from ckpt.cli.inputs import TROUBLE
from ckpt.cli.options import opened
from ckpt.errors import UsageError, about
from ckpt.io.executor import Executor, Failed, Threads, working
from ckpt.io.far import is_url
from ckpt.io.location import locate, read_file
from ckpt.jobs.parts import MOST, Input, Mine, Notes, Part, Share, cut, encoded, input_of, plan_of
from ckpt.limits import Limits
from ckpt.rows import NamedTuple
from ckpt.text import Json, plural, show

Options = Mapping[str, object]
"""The options of a command that decide what is measured, by the names of its parameters."""


class Work(NamedTuple):
    """The way in which a command works: its function. `options` are the types of what is written into the parts.

    `shown` are the further options of the command: `ckpt merge-parts` takes them.
    """

    function: Callable[..., object]
    options: Mapping[str, str]
    shown: tuple[str, ...] = ()
    doing: str = "measuring"
    inputs: int = 1

    def run(self, inputs: Sequence[Checkpoint], options: Options, executor: Executor) -> None:
        """Do the work on open checkpoints, with an executor to which all tasks are known before any of them runs."""
        keywords = {_KEYWORDS.get(name, name): value for name, value in options.items()}
        if "no_align" in keywords:
            keywords["align"] = not keywords.pop("no_align")
        with working(executor, is_cut=True):
            self.function(*inputs, **keywords)


def _verify(
    checkpoint: Checkpoint,
    *,
    sums: str | None,
    include: Sequence[str] | None,
    exclude: Sequence[str] | None,
    section: str | None,
) -> None:
    """The work of `ckpt verify` on a file that could be opened. What is damaged raises here."""
    globs = globs_of(include, exclude)
    stored, _ = checked_with(
        sums, None, globs, section, checkpoint.limits, quick=False, plugins=checkpoint.plugins
    )
    reading.verdict(checkpoint, stored, section, quick=False, progress=None)


_KEYWORDS = {"everything": "all", "stored": "sums"}
"""The options that have another name in Python."""


def sums_input(options: Options) -> tuple[Input, ...]:
    """The file of `--sums`, which the parts must have in common too."""
    stored = cast("str | None", options.get("stored"))
    if stored is None:
        return ()
    data = read_file(locate(stored), Limits(), "the sums")
    return (Input(stored, 1, len(data), hashlib.sha256(data).hexdigest()),)


def refuse_far_sums(options: Options) -> None:
    """Raise UsageError for sums that a part cannot find again."""
    stored = options.get("stored")
    if isinstance(stored, str) and is_url(stored):
        raise UsageError("--sums of parts is a file of this machine", path=stored)


_SELECTION = {"include": "texts", "exclude": "texts", "section": "text"}
_GATE = ("select", "ignore", "level", "fail_on")
WORKS: dict[str, Work] = {
    "stats": Work(
        reading.stats,
        {
            **_SELECTION,
            "everything": "flag",
            "channels": "flag",
            "threshold": "number",
            "histogram": "flag",
        },
        ("json", "tsv", "table", "no_header", "modules", "sort", "quiet", *_GATE),
    ),
    "diff": Work(
        partial(reading.diff, check=False),
        {
            **_SELECTION,
            "no_align": "flag",
            "sub": "texts",
            "atol": "number",
            "rtol": "number",
            "close": "flag",
            "stat": "flag",
            "strict": "flag",
            "histogram": "flag",
        },
        ("json", "tsv", "no_header", "name_only", "which", "quiet", *_GATE),
        "comparing",
        2,
    ),
    "verify": Work(_verify, {**_SELECTION, "stored": "text"}, ("json", "quiet"), "checking"),
    "sum": Work(reading.sum, {**_SELECTION, "everything": "flag"}, (), "hashing"),
}
"""The commands that `--part` cuts."""


_SHARE = re.compile(r"(\d{1,7})/(\d{1,7})", re.ASCII)


def write_part(
    text: str, command: str, paths: Sequence[str], limits: Limits, options: Mapping[str, Json]
) -> int:
    """Run one part of a command and write its document; the exit code: 2 where something could not be read.

    Raises CkptError, before anything is written.
    """
    match = _SHARE.fullmatch(text)
    share = Share(int(match[1]), int(match[2])) if match else Share(0, 0)
    if not share.number < share.of <= MOST:
        raise UsageError(
            f"--part {show(text, 40)}: not a part", hint=f"I/N, I from 0 to N - 1, N up to {MOST:,}"
        )
    work = WORKS[command]
    refuse_far_sums(options)
    if len(paths) != work.inputs:
        raise UsageError("--part takes one PATH", hint="a folder or an index is one checkpoint")
    with ExitStack() as stack:
        inputs = [stack.enter_context(opened(path, limits)) for path in paths]
        notes = Notes()
        with about(paths[0]):
            work.run(inputs, options, notes)
        first, last = cut(notes.tasks, share)
        nbytes = sum(task.nbytes for task in notes.tasks[first:last])
        with output.progress(work.doing, nbytes) as progress, about(paths[0]):
            mine = Mine(Threads(), first, last, progress)
            work.run(inputs, options, mine)  # again, for the files of its tasks may be open only meanwhile
        recorded = (*(input_of(given.checkpoint) for given in inputs), *sums_input(options))
    # What verify --sums does without, once all sums of a section agree: it does without them when parts are merged, too.
    unneeded = encoded(Failed("not needed"))
    part = Part(
        share,
        command,
        recorded,
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
