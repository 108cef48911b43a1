"""What `--part` cuts: the work of each command without its report. Its options are written into the parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ckpt.checkpoint import Checkpoint
from ckpt.cli.options import plugins_allowed
from ckpt.cli.work.comparison import comparison
from ckpt.cli.work.stored import stored_sums
from ckpt.errors import UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats.verify import checksums
from ckpt.io.executor import Executor
from ckpt.io.far import is_url
from ckpt.io.location import locate, read_file
from ckpt.jobs.check.stats import stats
from ckpt.jobs.check.sums import sums, sums_now
from ckpt.jobs.diff.diff import diff
from ckpt.jobs.parts.share import Input
from ckpt.limits import Limits
from ckpt.names import Globs
from ckpt.rows import NamedTuple

Options = Mapping[str, object]
"""The options of a command that decide what is measured, by the names of its parameters."""


class Work(NamedTuple):
    """How the work of a command is run. `options` are the types of what is written into the parts.

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
