"""Writing checkpoints: the draft of a format, put into place only after our own reader found in it what was planned."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple, Protocol

from ckpt.checkpoint import Checkpoint, check_unchanged
from ckpt.errors import CkptError, LossError, UsageError, about
from ckpt.formats import written as checking
from ckpt.formats.archive import end_before, interrupted, read_archive
from ckpt.formats.draft import Draft
from ckpt.formats.safetensors import write as safetensors
from ckpt.formats.sharded import read as sharded
from ckpt.formats.sharded import write as shards
from ckpt.formats.torch_legacy import write as torch_legacy
from ckpt.formats.torch_zip import write as torch_zip
from ckpt.formats.torch_zip.read import read_from
from ckpt.formats.written import Check
from ckpt.io import commit
from ckpt.io.commit import Progress, Target
from ckpt.io.source import Extended, File
from ckpt.limits import Limits
from ckpt.units import first_of


class Writer(Protocol):
    """What the module of a format that is written offers."""

    NAME: str
    SUFFIXES: tuple[str, ...]

    def losses(self, checkpoint: Checkpoint) -> list[str]:
        """What the format cannot hold, one line each; asked before anything is written."""
        ...

    def draft(self, checkpoint: Checkpoint, limits: Limits) -> Draft:
        """The file, ready to be written. Raises CkptError."""
        ...


WRITERS: dict[str, Writer] = {writer.NAME: writer for writer in (torch_zip, torch_legacy, safetensors)}
_ZIP_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl")


class Saved(NamedTuple):
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
    if asked is not None:
        if asked not in WRITERS:
            raise UsageError(
                f"--to {asked}: not a format that is written", hint="formats: " + " ".join(WRITERS)
            )
        if _contradicts(path, asked):
            raise UsageError(f"--to {asked}, and the ending says otherwise", path=path)
        return asked
    if path.endswith(safetensors.SUFFIXES):
        return safetensors.NAME
    if path.endswith(_ZIP_SUFFIXES):
        return torch_zip.NAME
    raise UsageError("the suffix says no format", path=path, hint="--to " + " or --to ".join(WRITERS))


def _contradicts(path: str, format: str) -> bool:
    """Whether the ending of a path is that of another format."""
    return path.endswith(_ZIP_SUFFIXES if format == safetensors.NAME else safetensors.SUFFIXES)


def same_format(path: str, checkpoint: Checkpoint) -> str:
    """The format for a checkpoint whose content stays: its own; for one of several files that of the suffix."""
    kind = checkpoint.format
    if kind not in WRITERS:
        return format_for(path, None)
    if _contradicts(path, kind):
        raise UsageError(f"the content is {kind}, the ending says otherwise", path=path, hint="ckpt convert")
    return kind


def save(
    checkpoint: Checkpoint,
    to: Target,
    format: str,
    limits: Limits,
    *,
    progress: Progress | None = None,
    checks: dict[str, Check] | None = None,
) -> Saved:
    """Write a checkpoint; it appears whole, or not at all. Raises CkptError, LossError for what would be lost.

    What was written is read by our own reader and compared with what was planned, then by `checks`, before it
    takes its place.
    """
    refuse_losses(checkpoint, format)
    start = time.perf_counter()
    drafted = _same_file(checkpoint, format) or WRITERS[format].draft(checkpoint, limits)
    with commit.writing(to, drafted.size, progress) as sink:
        with about(checkpoint.path):
            drafted.write(sink)
            sink.flush()
            check_unchanged(checkpoint)
        written = time.perf_counter()
        with about(to.path):
            done = _checked(sink.path, checkpoint, format, limits, checks)
    return Saved(to.path, format, drafted.size, None, tuple(done), written - start)


def _checked(
    path: str, planned: Checkpoint, format: str, limits: Limits, checks: dict[str, Check] | None
) -> list[tuple[str, float]]:
    """Run the checks of a file that is not yet in place: their names, and the seconds that each took."""
    done: list[tuple[str, float]] = []
    for name, check in {"structure": checking.check_structure(format, limits), **(checks or {})}.items():
        begin = time.perf_counter()
        check(path, planned)
        done.append((name, time.perf_counter() - begin))
    return done


def save_shards(
    checkpoint: Checkpoint,
    to: Callable[[str], Target],
    stem: str,
    shard_bytes: int,
    limits: Limits,
    *,
    progress: Progress | None = None,
    checks: dict[str, Check] | None = None,
) -> Saved:
    """Write safetensors in shards with an index, which takes its place last. `to` gives the target of a name.

    One that fits into a single file is one, without an index. Raises CkptError.
    """
    refuse_losses(checkpoint, safetensors.NAME)
    parts = shards.split(checkpoint, shard_bytes)
    if len(parts) == 1:
        single = to(f"{stem}.safetensors")
        return save(checkpoint, single, safetensors.NAME, limits, progress=progress, checks=checks)
    start = time.perf_counter()
    names = [shards.shard_name(stem, number, len(parts)) for number in range(1, len(parts) + 1)]
    index = to(f"{stem}.safetensors.index.json")
    targets = [to(name) for name in names]
    drafts = [WRITERS[safetensors.NAME].draft(part, limits) for part in parts]
    listing = shards.index_draft(parts, names)
    done: dict[str, float] = {}
    with ExitStack() as stack:
        # What is entered first leaves last: the index, which makes the shards one checkpoint.
        listing.write(stack.enter_context(commit.writing(index, listing.size)))
        for part, drafted, target in zip(parts, drafts, targets, strict=True):
            sink = stack.enter_context(commit.writing(target, drafted.size, progress))
            drafted.write(sink)
            sink.flush()
            for name, seconds in _checked(sink.path, part, safetensors.NAME, limits, checks):
                done[name] = done.get(name, 0.0) + seconds
        check_unchanged(checkpoint)
    total = listing.size + sum(drafted.size for drafted in drafts)
    seconds = time.perf_counter() - start - sum(done.values())
    return Saved(index.path, sharded.NAME, total, None, tuple(done.items()), seconds, len(parts))


def append(checkpoint: Checkpoint, limits: Limits, *, progress: Progress | None = None) -> Saved:
    """Rewrite the pickle of a zip archive at its end, in time that does not grow with the file. Raises CkptError.

    The new end is checked by our own reader before a byte of it is written.
    """
    file = checkpoint.origin.archive.source
    assert isinstance(file, File)
    start = time.perf_counter()
    record, directory = torch_zip.append(checkpoint, limits)
    whole = Extended(file, record + directory)
    found = read_from(read_archive(whole, limits), checkpoint.path, limits)
    checking.compare(checkpoint, found)
    checked = time.perf_counter()
    with commit.appending(file, progress) as sink:
        sink.write(record)
        sink.sync()  # before the directory that makes it valid
        sink.write(directory)
    more = len(record) + len(directory)
    seconds = time.perf_counter() - checked
    return Saved(
        file.path, torch_zip.NAME, file.size + more, more, (("structure", checked - start),), seconds
    )


def undo(path: str, limits: Limits) -> tuple[int, int]:
    """Take back the last in-place rewrite of an archive, whole or interrupted: (bytes before, bytes after).

    Raises UsageError when there is none.
    """
    file = File(path)
    try:
        size = file.size
        end = _end_before(file, limits)
    finally:
        file.close()
    if end is None:
        raise UsageError("there is no in-place rewrite to take back", path=path)
    commit.truncate(path, end)
    return size, end


def _end_before(file: File, limits: Limits) -> int | None:
    """Where the archive ended before the last in-place rewrite."""
    try:
        archive = read_archive(file, limits)
    except CkptError:
        return interrupted(file)
    record = archive.find("data.pkl")
    return None if record is None else end_before(file, record)


def refuse_losses(checkpoint: Checkpoint, format: str) -> None:
    """Raise LossError with the list of what a format cannot hold."""
    lost = WRITERS[format].losses(checkpoint)
    if lost:
        raise LossError(
            f"{format} cannot hold {first_of(lost)}",
            path=checkpoint.path,
            hint="--drop-other",
        )


def _same_file(checkpoint: Checkpoint, format: str) -> Draft | None:
    """The file itself, when nothing in it changes."""
    if checkpoint.is_edited or checkpoint.format != format or checkpoint.source is None:
        return None
    file = checkpoint.source
    return Draft(file.size, lambda sink: sink.copy(file, 0, file.size))
