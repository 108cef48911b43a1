"""Writing checkpoints: a file takes its place only after our own reader found in it what was planned."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint, Traits
from ckpt.errors import CkptError, LossError, UnsupportedError, UsageError, WriteError, about
from ckpt.formats import appender_of, by_name, open, writer_of, written_formats
from ckpt.formats.draft import Draft
from ckpt.formats.sharded import write as shards
from ckpt.formats.written import differs
from ckpt.io import commit
from ckpt.io.commit import Progress, Target
from ckpt.io.location import locate
from ckpt.limits import Limits
from ckpt.text import and_more
from ckpt.tree.metadata import metadata_of

SHARD_FORMAT = shards.FORMAT
"""The format of the files that `save_shards` writes."""
Check = Callable[[str, Checkpoint], str | None]
"""Checks a written file before it takes its place: its path, and what was planned. Raises CkptError.

Returns the name of the check that it made instead of its own, or None.
"""


class SavedFile(NamedTuple):
    """A file that was written: its bytes, how it was checked, and the seconds that writing and checking took."""

    path: str
    format: str
    nbytes: int
    appended: int | None = None
    """Bytes that were added in place."""
    checks: tuple[tuple[str, float], ...] = ()
    seconds: float = 0.0
    shards: int | None = None
    overflowed: int = 0
    """Finite elements that a cast made infinite."""


def format_for(path: str, asked: str | None) -> str:
    """The format to write: the one asked for, else the one of the suffix. Raises UsageError."""
    formats = written_formats()
    if asked is not None:
        if asked not in formats:
            raise UsageError(
                f"--to {asked}: ckpt does not write this format", hint="formats: " + " ".join(formats)
            )
        if _contradicts(path, asked):
            raise UsageError(f"the ending does not fit --to {asked}", path=path)
        return asked
    found = next((name for name, format in formats.items() if path.endswith(format.SUFFIXES)), None)
    if found is None:
        raise UsageError("the ending names no format", path=path, hint="--to " + " or --to ".join(formats))
    return found


def _contradicts(path: str, name: str) -> bool:
    """Whether the ending of a path belongs to other formats and not to this one."""
    endings = {name: path.endswith(format.SUFFIXES) for name, format in written_formats().items()}
    return any(endings.values()) and not endings.get(name, True)


def is_written(name: str) -> bool:
    """Whether ckpt writes a format."""
    format = by_name(name)
    return format is not None and bool(format.WRITER)


def traits_of(name: str) -> Traits:
    """The traits of a format that ckpt writes. Raises UsageError for any other."""
    format = by_name(name)
    if format is None or not format.WRITER:
        raise UsageError(
            f"{name}: ckpt does not write this format", hint="formats: " + " ".join(written_formats())
        )
    return format.TRAITS


def own_format(checkpoint: Checkpoint) -> str:
    """The format of a checkpoint when ckpt writes it, else the usual one."""
    return checkpoint.format if is_written(checkpoint.format) else next(iter(written_formats()))


def same_format(path: str, checkpoint: Checkpoint) -> str:
    """The format for a checkpoint whose content stays: its own, or that of the suffix for several files."""
    name = checkpoint.format
    if not is_written(name):
        chosen = format_for(path, None)
        if traits_of(chosen).is_pickle and metadata_of(checkpoint.root):
            raise UsageError(
                "the content is safetensors, the ending does not fit", path=path, hint="ckpt convert"
            )
        return chosen
    if _contradicts(path, name):
        raise UsageError(f"the content is {name}, the ending does not fit", path=path, hint="ckpt convert")
    return name


def save(
    checkpoint: Checkpoint,
    to: Target,
    format: str,
    limits: Limits,
    *,
    progress: Progress | None = None,
    checks: dict[str, Check] | None = None,
) -> SavedFile:
    """Write a checkpoint. It appears whole or not at all. Raises CkptError, LossError for what would be lost.

    Our own reader reads the written file and compares it with the plan, then `checks` run; only then does the
    file take its place.
    """
    refuse_losses(checkpoint, format)
    start = time.perf_counter()
    drafted = _same_file(checkpoint, format) or writer_of(format).draft(checkpoint, limits)
    with commit.writing(to, drafted.size, progress) as sink:
        with about(checkpoint.path):
            drafted.write(sink)
            sink.flush()
            checkpoint.check_unchanged()
        written = time.perf_counter()
        with about(to.path):
            done = _checked(sink.path, checkpoint, format, limits, checks)
    seconds = written - start
    return SavedFile(to.path, format, drafted.size, None, tuple(done), seconds, overflowed=sink.overflowed)


def _checked(
    path: str, planned: Checkpoint, format: str, limits: Limits, checks: dict[str, Check] | None
) -> list[tuple[str, float]]:
    """Run the checks of a file that is not yet in place: their names, and the seconds of each."""
    done: list[tuple[str, float]] = []
    for name, check in {"structure": check_structure(format, limits), **(checks or {})}.items():
        begin = time.perf_counter()
        instead = check(path, planned)
        done.append((instead or name, time.perf_counter() - begin))
    return done


def check_structure(format: str, limits: Limits) -> Check:
    """The check that our own reader finds in a file what was planned."""

    def check(path: str, planned: Checkpoint) -> None:
        try:
            with open(path, limits, plugins=_is_of_others(format)) as written:
                writer_of(format).compare(planned, written)
        except WriteError:
            raise
        except CkptError as error:
            raise differs(f"it cannot be read back, {error.problem}") from None

    return check


def _is_of_others(format: str) -> bool:
    """Whether a format is none of the table: other distributions have to be asked to read it."""
    return by_name(format) not in written_formats().values()


def check_weights_only(path: str, planned: Checkpoint) -> None:
    """Raise WriteError unless torch.load(weights_only=True) loads a written file."""
    with open(path) as written:
        if written.weights_only or written.not_loadable:
            reasons = [refusal.reason for refusal in written.weights_only or ()]
            raise differs(f"weights_only refuses {and_more(reasons, 3) or written.not_loadable}")


def check_bytes(path: str, planned: Checkpoint) -> None:
    """Read all data of a written file and compare it with its source. Raises WriteError."""
    with open(path, plugins=_is_of_others(planned.format)) as written:
        writer_of(written.format).compare_bytes(planned, written)


def save_shards(
    checkpoint: Checkpoint,
    to: Callable[[str], Target],
    stem: str,
    shard_bytes: int,
    limits: Limits,
    *,
    progress: Progress | None = None,
    checks: dict[str, Check] | None = None,
) -> SavedFile:
    """Write safetensors in shards with an index. The index takes its place last. `to` gives the target of a name.

    A checkpoint that fits into one shard is a single file without an index. Raises CkptError.
    """
    refuse_losses(checkpoint, SHARD_FORMAT)
    parts = shards.split(checkpoint, shard_bytes)
    if len(parts) == 1:
        single = to(f"{stem}.safetensors")
        return save(checkpoint, single, SHARD_FORMAT, limits, progress=progress, checks=checks)
    start = time.perf_counter()
    names = [shards.shard_name(stem, number, len(parts)) for number in range(1, len(parts) + 1)]
    index = to(f"{stem}.safetensors.index.json")
    targets = [to(name) for name in names]
    drafts = [writer_of(SHARD_FORMAT).draft(part, limits) for part in parts]
    listing = shards.index_draft(parts, names)
    done: dict[str, float] = {}
    overflowed = 0
    with ExitStack() as stack:
        # The context entered first is left last: so the index, which completes the checkpoint, comes last.
        listing.write(stack.enter_context(commit.writing(index, listing.size)))
        for part, drafted, target in zip(parts, drafts, targets, strict=True):
            sink = stack.enter_context(commit.writing(target, drafted.size, progress))
            drafted.write(sink)
            sink.flush()
            overflowed += sink.overflowed
            for name, seconds in _checked(sink.path, part, SHARD_FORMAT, limits, checks):
                done[name] = done.get(name, 0.0) + seconds
        checkpoint.check_unchanged()
    total = listing.size + sum(drafted.size for drafted in drafts)
    seconds = time.perf_counter() - start - sum(done.values())
    checks_done = tuple(done.items())
    return SavedFile(index.path, shards.NAME, total, None, checks_done, seconds, len(parts), overflowed)


def append(checkpoint: Checkpoint, limits: Limits, *, progress: Progress | None = None) -> SavedFile:
    """Rewrite a checkpoint at the end of its file. The time does not grow with the file. Raises CkptError.

    Our own reader checks the new end before a byte of it is written.
    """
    source, appender = checkpoint.source, appender_of(checkpoint.format)
    if source is None or appender is None:
        raise UnsupportedError(
            f"{checkpoint.format} files cannot be changed in place", path=checkpoint.path, hint="-o OUT"
        )
    start = time.perf_counter()
    content, validity = appender.append(checkpoint, limits)
    checked = time.perf_counter()
    with commit.appending(source, progress) as sink:
        sink.write(content)
        sink.sync()  # the content must be on the disk before the bytes that make it valid
        sink.write(validity)
    more = len(content) + len(validity)
    seconds = time.perf_counter() - checked
    checks = (("structure", checked - start),)
    return SavedFile(source.name, checkpoint.format, source.size + more, more, checks, seconds)


def undo(path: str, limits: Limits) -> tuple[int, int]:
    """Undo the last in-place rewrite of a file, complete or interrupted: (bytes before, bytes after).

    Raises UsageError when there is no such rewrite.
    """
    source = locate(path).open()
    try:
        size = source.size
        appenders = [appender for name in written_formats() if (appender := appender_of(name)) is not None]
        ends = [appender.end_before(source, limits) for appender in appenders]
    finally:
        source.close()
    end = next((end for end in ends if end is not None), None)
    if end is None:
        raise UsageError("there is no in-place rewrite to undo", path=path)
    commit.truncate(path, end)
    return size, end


def refuse_losses(checkpoint: Checkpoint, format: str) -> None:
    """Raise LossError with the list of what a format cannot hold."""
    lost = writer_of(format).losses(checkpoint)
    if lost:
        raise LossError(
            f"{format} cannot hold {and_more(lost, 5, '; ')}",
            path=checkpoint.path,
            hint="--drop-other",
        )


def _same_file(checkpoint: Checkpoint, format: str) -> Draft | None:
    """A copy of the file itself, when nothing in it changes."""
    source = checkpoint.source
    if checkpoint.is_edited or checkpoint.format != format or source is None:
        return None
    return Draft(source.size, lambda sink: sink.copy(source, 0, source.size))
