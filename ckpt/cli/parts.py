"""`--part I/N`: run one part of the tasks of a command without its report, and write what they have found, with its options."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import cast

from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.inputs import TROUBLE
from ckpt.cli.options import opened, plugins_allowed
from ckpt.cli.work import stored_sums
from ckpt.errors import UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.formats.verify import checksums
from ckpt.io.executor import Executor, Failed, Threads
from ckpt.io.far import is_url
from ckpt.io.location import locate, read_file
from ckpt.jobs.check.stats import stats
from ckpt.jobs.check.sums import sums, sums_now
from ckpt.jobs.diff.diff import comparison, diff
from ckpt.jobs.parts import MOST, Input, Mine, Notes, Part, Share, cut, encoded, input_of, plan_of
from ckpt.limits import Limits
from ckpt.names import Globs
from ckpt.rows import NamedTuple
from ckpt.text import Json, plural, show

Options = Mapping[str, object]
"""The options of a command that decide what is measured, by the names of its parameters."""


class Work(NamedTuple):
    """The way in which a command works. `options` are the types of what is written into the parts.

    `shown` are the further options of the command: `ckpt merge-parts` takes them.
    """

    run: Callable[[Sequence[Checkpoint], Options, Limits, Executor], object]
    options: Mapping[str, str]
    shown: tuple[str, ...] = ()
    doing: str = "measuring"
    inputs: int = 1


def _globs(options: Options) -> Globs:
    include, exclude = (cast("Sequence[str] | None", options[name]) for name in ("include", "exclude"))
    return Globs(include or (), exclude or ())


def _section(options: Options) -> str | None:
    return cast("str | None", options["section"])


def _everything(options: Options) -> bool:
    return bool(options["everything"])


def _stats(inputs: Sequence[Checkpoint], options: Options, limits: Limits, executor: Executor) -> object:
    section = _section(options)
    return stats(
        Survey(inputs[0]),
        _globs(options),
        section,
        threshold=cast("float", options["threshold"]) if options["channels"] else None,
        everything=_everything(options) and section is None,
        executor=executor,
    )


def _sum(inputs: Sequence[Checkpoint], options: Options, limits: Limits, executor: Executor) -> object:
    everything = _everything(options)
    return sums(
        Survey(inputs[0]), _section(options), _globs(options), everything=everything, executor=executor
    )


def _verify(inputs: Sequence[Checkpoint], options: Options, limits: Limits, executor: Executor) -> object:
    path = inputs[0].path
    stored = cast("str | None", options["stored"])
    if stored is None:
        return checksums(path, limits, plugins=plugins_allowed(), executor=executor)
    if is_url(stored):
        raise UsageError("--sums of parts is a file of this machine", path=stored)
    expected = stored_sums(stored, limits, _globs(options), path)
    return sums_now(Survey(inputs[0]), expected, _section(options), executor=executor)


def _diff(inputs: Sequence[Checkpoint], options: Options, limits: Limits, executor: Executor) -> object:
    before, after = map(Survey, inputs)
    return diff(before, after, comparison(options)._replace(executor=executor, once=True))


def sums_input(options: Options) -> tuple[Input, ...]:
    """The file of `--sums`, which the parts must have in common too."""
    stored = cast("str | None", options.get("stored"))
    if stored is None:
        return ()
    data = read_file(locate(stored), Limits(), "the sums")
    return (Input(stored, 1, len(data), hashlib.sha256(data).hexdigest()),)


_SELECTION = {"include": "texts", "exclude": "texts", "section": "text"}
_GATE = ("select", "ignore", "level", "fail_on")
WORKS: dict[str, Work] = {
    "stats": Work(
        _stats,
        {**_SELECTION, "everything": "flag", "channels": "flag", "threshold": "number"},
        ("json", "tsv", "table", "no_header", "modules", "sort", "quiet", *_GATE),
    ),
    "diff": Work(
        _diff,
        {
            **_SELECTION,
            "no_align": "flag",
            "sub": "texts",
            "atol": "number",
            "rtol": "number",
            "close": "flag",
            "stat": "flag",
            "strict": "flag",
        },
        ("json", "tsv", "no_header", "name_only", "which", "quiet", *_GATE),
        "comparing",
        2,
    ),
    "verify": Work(_verify, {**_SELECTION, "stored": "text"}, ("json", "quiet"), "checking"),
    "sum": Work(_sum, {**_SELECTION, "everything": "flag"}, (), "hashing"),
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
        recorded = (*map(input_of, inputs), *sums_input(options))
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
