"""`--part I/N`: run one part of the tasks of a command without its report, and write what they have found, with its options."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import cast

from ckpt.api import reading
from ckpt.api.checkpoint import Checkpoint
from ckpt.api.keywords import globs_of
from ckpt.api.stored import Stored, checked_with
from ckpt.cli import output
from ckpt.cli.inputs import TROUBLE
from ckpt.cli.options import opened
from ckpt.errors import LinkError, NotOpenedError, UnreadableError, UsageError, about
from ckpt.io.executor import Executor, Failed, Local, Task, working
from ckpt.io.far import is_url
from ckpt.io.location import Location, locate, read_file
from ckpt.jobs.parts import MOST, Input, Mine, Notes, Part, Share, cut, encoded, input_of, plan_of
from ckpt.limits import Limits
from ckpt.rows import NamedTuple
from ckpt.text import Json, plural, show, show_literal

Options = Mapping[str, object]
"""The options of a command that decide what is measured, by the names of its parameters."""


class Work(NamedTuple):
    """The way in which a command works: its function. `options` are the types of what is written into the parts.

    `shown` are the further options of the command: `ckpt merge-parts` takes them. With `is_verdict` it also reports on
    a damaged file that does not open.
    """

    function: Callable[..., object]
    options: Mapping[str, str]
    shown: tuple[str, ...] = ()
    doing: str = "measuring"
    inputs: int = 1
    is_verdict: bool = False

    def run(self, inputs: Sequence[Checkpoint], options: Options, executor: Executor) -> None:
        """Do the work on open checkpoints, with an executor to which all tasks are known before any of them runs."""
        keywords = {_KEYWORDS.get(name, name): value for name, value in options.items()}
        if "no_align" in keywords:
            keywords["align"] = not keywords.pop("no_align")
        with working(executor, is_cut=True):
            self.function(*inputs, **keywords)


class Job:
    """A command about checkpoints that stay open until the stack ends, and its tasks. Raises CkptError.

    `problem` is the reason why a damaged file does not open: then there are no tasks.
    """

    def __init__(
        self,
        stack: ExitStack,
        work: Work,
        paths: Sequence[str],
        options: Options,
        limits: Limits,
        open: Callable[[str], Checkpoint],
    ) -> None:
        self.checkpoints: list[Checkpoint] = []
        self.tasks: Sequence[Task[object]] = ()
        self.problem: str | None = None
        self._work, self._paths, self._options = work, paths, options
        self._damaged: str | None = None
        notes = Notes()
        if work.is_verdict:  # what is wrong with the sums is no damage of the file
            _sums(options, limits, plugins=False)
        try:
            for path in paths:
                self.checkpoints.append(stack.enter_context(open(path)))
            self.run(notes)
            self.tasks = notes.tasks
        except UnreadableError as error:
            if not work.is_verdict or isinstance(error, (LinkError, NotOpenedError)):
                raise
            self.problem = error.said_of(paths[0])
            self._damaged = error.path

    def run(self, executor: Executor) -> None:
        """Do the work with an executor."""
        with about(self._paths[0]):
            self._work.run(self.checkpoints, self._options, executor)

    def inputs(self) -> list[Input]:
        """Return what tells the files from others, and the file of `--sums`, which the parts have in common too."""
        if self.problem is None:
            inputs = [
                input_of(path, given.checkpoint.all_sources(), given.checkpoint.tensors)
                for path, given in zip(self._paths, self.checkpoints, strict=True)
            ]
        else:
            inputs = [_unopened(self._paths[0], self._damaged)]
        stored = cast("str | None", self._options.get("stored"))
        if stored is not None:
            data = read_file(locate(stored), Limits(), "the sums")
            inputs.append(Input(stored, 1, len(data), hashlib.sha256(data).hexdigest()))
        return inputs


_DEPTH = 2
"""Folders inside of each other whose files belong to one checkpoint: a run, and a step in it."""


def _files_in(folder: Location, depth: int) -> list[Location]:
    """The files in a folder, and in the folders inside of it. A link to a folder is not followed."""
    files = []
    for name in folder.names():
        with suppress(LinkError):
            child = folder.child(name.rstrip("/"))
            if not name.endswith("/"):
                files += [child] if child.is_file() else []
            elif depth > 1:
                files += _files_in(child, depth - 1)
    return files


def _unopened(path: str, damaged: str | None) -> Input:
    """Return what tells a file from others that does not open, and the shard that is damaged; of a folder all its files."""
    location = locate(path)
    files = _files_in(location, _DEPTH) if location.is_folder() else [location]
    if damaged is not None and damaged not in [file.name for file in files]:
        files += [file for file in (locate(damaged),) if file.is_file()]
    with ExitStack() as stack:
        sources = [file.open() for file in files]
        for source in sources:
            stack.callback(source.close)
        return input_of(path, sources)


def _sums(options: Options, limits: Limits, *, plugins: bool) -> Stored | None:
    """The sums that the options of `ckpt verify` select. Raises CkptError."""
    section = cast("str | None", options["section"])
    globs = globs_of(*(cast("Sequence[str] | None", options[name]) for name in ("include", "exclude")))
    stored = cast("str | None", options["stored"])
    return checked_with(stored, None, globs, section, limits, quick=False, plugins=plugins)[0]


def _verify(checkpoint: Checkpoint, **options: object) -> None:
    """The work of `ckpt verify` on a file that could be opened. What is damaged raises here."""
    sums = _sums(options, checkpoint.limits, plugins=checkpoint.plugins)
    section = cast("str | None", options["section"])
    reading.verdict(checkpoint, sums, section, quick=False, progress=None)
    checkpoint.check_unchanged()


_KEYWORDS = {"everything": "all"}
"""The options that have another name in Python."""


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
        ("json", "tsv", "table", "no_header", "modules", "sort", *_GATE),
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
            "ignore_dtype": "flag",
            "histogram": "flag",
        },
        ("json", "tsv", "no_header", "name_only", "which", *_GATE),
        "comparing",
        2,
    ),
    "verify": Work(_verify, {**_SELECTION, "stored": "text"}, ("json",), "checking", is_verdict=True),
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
        job = Job(stack, work, paths, options, limits, lambda path: opened(path, limits))
        first, last = cut(job.tasks, share)
        nbytes = sum(task.nbytes for task in job.tasks[first:last])
        with output.progress(work.doing, nbytes) as progress:
            mine = Mine(Local(), first, last, progress)
            if job.problem is None:
                job.run(mine)  # again, for the files of its tasks may be open only meanwhile
        inputs = job.inputs()
    # What verify --sums does without, once all sums of a section agree: it does without them when parts are merged, too.
    unneeded = encoded(Failed("not needed"))
    part = Part(
        share,
        command,
        tuple(inputs),
        options,
        len(job.tasks),
        plan_of(job.tasks),
        first,
        [*mine.results, *[unneeded] * (last - first - len(mine.results))],
        job.problem,
    )
    output.write_json(part.to_json())
    if job.problem is not None:
        output.talk(
            f"ckpt: {show(paths[0], None)}: {share}: nothing to check, it does not open: {show_literal(job.problem)}"
        )
    if mine.failed:
        what = f"{share}: {plural(len(mine.failed), 'task')} could not read: {mine.failed[0]}"
        output.talk(f"ckpt: {show(paths[0], None)}: {what}")
    return TROUBLE if mine.failed else 0
