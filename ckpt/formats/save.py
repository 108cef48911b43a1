"""Writing checkpoints: the draft of a format, put into place only after our own reader found in it what was planned."""

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
from ckpt.text import first_of
from ckpt.tree.metadata import metadata_of

Check = Callable[[str, Checkpoint], None]
"""A check of a file that is written and not yet in place: its path, and what was planned. Raises CkptError."""


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


def format_for(path: str, asked: str | None) -> str:
    """The format to write: the one that is asked for, or that of the suffix. Raises UsageError."""
    formats = written_formats()
    if asked is not None:
        if asked not in formats:
            raise UsageError(
                f"--to {asked}: not a format that is written", hint="formats: " + " ".join(formats)
            )
        if _contradicts(path, asked):
            raise UsageError(f"--to {asked}, and the ending says otherwise", path=path)
        return asked
    found = next((name for name, format in formats.items() if path.endswith(format.SUFFIXES)), None)
    if found is None:
        raise UsageError("the suffix says no format", path=path, hint="--to " + " or --to ".join(formats))
    return found


def _contradicts(path: str, name: str) -> bool:
    """Whether the ending of a path is that of other formats, and not of this one."""
    endings = {name: path.endswith(format.SUFFIXES) for name, format in written_formats().items()}
    return any(endings.values()) and not endings.get(name, True)


def is_written(name: str) -> bool:
    """Whether checkpoints are written in a format."""
    format = by_name(name)
    return format is not None and bool(format.WRITER)


def traits_of(name: str) -> Traits:
    """The traits of a format that is written. Raises UsageError for any other."""
    format = by_name(name)
    if format is None or not format.WRITER:
        raise UsageError(
            f"{name}: not a format that is written", hint="formats: " + " ".join(written_formats())
        )
    return format.TRAITS


def own_format(checkpoint: Checkpoint) -> str:
    """The format that a checkpoint is in, else the usual one."""
    return checkpoint.format if is_written(checkpoint.format) else next(iter(written_formats()))


def same_format(path: str, checkpoint: Checkpoint) -> str:
    """The format for a checkpoint whose content stays: its own; for one of several files that of the suffix."""
    name = checkpoint.format
    if not is_written(name):
        found = format_for(path, None)
        if traits_of(found).is_pickle and metadata_of(checkpoint.root):
            raise UsageError(
                "the content is safetensors, the ending says otherwise", path=path, hint="ckpt convert"
            )
        return found
    if _contradicts(path, name):
        raise UsageError(f"the content is {name}, the ending says otherwise", path=path, hint="ckpt convert")
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
    """Write a checkpoint; it appears whole, or not at all. Raises CkptError, LossError for what would be lost.

    What was written is read by our own reader and compared with what was planned, then by `checks`, before it
    takes its place.
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
    return SavedFile(to.path, format, drafted.size, None, tuple(done), written - start)


def _checked(
    path: str, planned: Checkpoint, format: str, limits: Limits, checks: dict[str, Check] | None
) -> list[tuple[str, float]]:
    """Run the checks of a file that is not yet in place: their names, and the seconds that each took."""
    done: list[tuple[str, float]] = []
    for name, check in {"structure": check_structure(format, limits), **(checks or {})}.items():
        begin = time.perf_counter()
        check(path, planned)
        done.append((name, time.perf_counter() - begin))
    return done


def check_structure(format: str, limits: Limits) -> Check:
    """The check that our own reader finds in a file what was planned."""

    def check(path: str, planned: Checkpoint) -> None:
        try:
            with open(path, limits, plugins=by_name(format) not in written_formats().values()) as written:
                writer_of(format).compare(planned, written)
        except WriteError:
            raise
        except CkptError as error:
            raise differs(f"it reads as: {error.problem}") from None

    return check


def check_weights_only(path: str, planned: Checkpoint) -> None:
    """Raise WriteError unless torch.load(weights_only=True) takes a written file."""
    with open(path) as written:
        if written.weights_only or written.not_loadable:
            reasons = [refusal.reason for refusal in written.weights_only or ()]
            raise differs(f"weights_only refuses {', '.join(reasons[:3]) or written.not_loadable}")


def check_bytes(path: str, planned: Checkpoint) -> None:
    """Read all data of a written file and compare it with its source. Raises WriteError."""
    with open(path) as written:
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
    """Write safetensors in shards with an index, which takes its place last. `to` gives the target of a name.

    One that fits into a single file is one, without an index. Raises CkptError.
    """
    refuse_losses(checkpoint, shards.FORMAT)
    parts = shards.split(checkpoint, shard_bytes)
    if len(parts) == 1:
        single = to(f"{stem}.safetensors")
        return save(checkpoint, single, shards.FORMAT, limits, progress=progress, checks=checks)
    start = time.perf_counter()
    names = [shards.shard_name(stem, number, len(parts)) for number in range(1, len(parts) + 1)]
    index = to(f"{stem}.safetensors.index.json")
    targets = [to(name) for name in names]
    drafts = [writer_of(shards.FORMAT).draft(part, limits) for part in parts]
    listing = shards.index_draft(parts, names)
    done: dict[str, float] = {}
    with ExitStack() as stack:
        # What is entered first leaves last: the index, which makes the shards one checkpoint.
        listing.write(stack.enter_context(commit.writing(index, listing.size)))
        for part, drafted, target in zip(parts, drafts, targets, strict=True):
            sink = stack.enter_context(commit.writing(target, drafted.size, progress))
            drafted.write(sink)
            sink.flush()
            for name, seconds in _checked(sink.path, part, shards.FORMAT, limits, checks):
                done[name] = done.get(name, 0.0) + seconds
        checkpoint.check_unchanged()
    total = listing.size + sum(drafted.size for drafted in drafts)
    seconds = time.perf_counter() - start - sum(done.values())
    return SavedFile(index.path, shards.NAME, total, None, tuple(done.items()), seconds, len(parts))


def append(checkpoint: Checkpoint, limits: Limits, *, progress: Progress | None = None) -> SavedFile:
    """Rewrite a checkpoint at the end of its file, in time that does not grow with the file. Raises CkptError.

    The new end is checked by our own reader before a byte of it is written.
    """
    source, appender = checkpoint.source, appender_of(checkpoint.format)
    if source is None or appender is None:
        raise UnsupportedError(
            f"{checkpoint.format} is not changed in place", path=checkpoint.path, hint="-o OUT"
        )
    start = time.perf_counter()
    content, validity = appender.append(checkpoint, limits)
    checked = time.perf_counter()
    with commit.appending(source, progress) as sink:
        sink.write(content)
        sink.sync()  # before what makes it valid
        sink.write(validity)
    more = len(content) + len(validity)
    seconds = time.perf_counter() - checked
    checks = (("structure", checked - start),)
    return SavedFile(source.name, checkpoint.format, source.size + more, more, checks, seconds)


def undo(path: str, limits: Limits) -> tuple[int, int]:
    """Take back the last in-place rewrite of a file, whole or interrupted: (bytes before, bytes after).

    Raises UsageError when there is none.
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
        raise UsageError("there is no in-place rewrite to take back", path=path)
    commit.truncate(path, end)
    return size, end


def refuse_losses(checkpoint: Checkpoint, format: str) -> None:
    """Raise LossError with the list of what a format cannot hold."""
    lost = writer_of(format).losses(checkpoint)
    if lost:
        raise LossError(
            f"{format} cannot hold {first_of(lost)}",
            path=checkpoint.path,
            hint="--drop-other",
        )


def _same_file(checkpoint: Checkpoint, format: str) -> Draft | None:
    """The file itself, when nothing in it changes."""
    source = checkpoint.source
    if checkpoint.is_edited or checkpoint.format != format or source is None:
        return None
    return Draft(source.size, lambda sink: sink.copy(source, 0, source.size))
