"""Writing checkpoints: the draft of a format, put into place only after our own reader found in it what was planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple, Protocol

from ckpt import commit
from ckpt.checkpoint import Checkpoint, Entry, Range, TensorRef, Value
from ckpt.commit import Progress, Target
from ckpt.contents import blocks, elements
from ckpt.errors import CkptError, LossError, UsageError, WriteError
from ckpt.files import Extended, File
from ckpt.formats import open, safetensors, sharded, torch_legacy, torch_zip
from ckpt.formats.archive import ends_at, interrupted, read_archive
from ckpt.formats.draft import Draft
from ckpt.limits import Limits
from ckpt.names import show
from ckpt.objects import look


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
_LISTED = 5


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


Check = Callable[[str, Checkpoint], None]
"""A further check of a file that is written and not yet in place: its path, and what was planned."""


def format_for(path: str, asked: str | None) -> str:
    """The format to write: the one that is asked for, or that of the suffix. Raises UsageError."""
    if asked is not None:
        if asked not in WRITERS:
            raise UsageError(
                f"--to {asked}: not a format that is written", hint="formats: " + " ".join(WRITERS)
            )
        return asked
    if path.endswith(safetensors.SUFFIXES):
        return safetensors.NAME
    if path.endswith(_ZIP_SUFFIXES):
        return torch_zip.NAME
    raise UsageError("the suffix says no format", path=path, hint="--to " + " or --to ".join(WRITERS))


def same_format(path: str, checkpoint: Checkpoint) -> str:
    """The format for a checkpoint whose content stays: its own; for one of several files that of the suffix."""
    kind = checkpoint.format
    if kind not in WRITERS:
        return format_for(path, None)
    if path.endswith(_ZIP_SUFFIXES if kind == safetensors.NAME else safetensors.SUFFIXES):
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
        drafted.write(sink)
        sink.flush()
        for file in _files(checkpoint):
            file.check_unchanged()
        written = time.perf_counter()
        done = _checked(sink.path, checkpoint, format, limits, checks)
    return Saved(to.path, format, drafted.size, None, tuple(done), written - start)


def _checked(
    path: str, planned: Checkpoint, format: str, limits: Limits, checks: dict[str, Check] | None
) -> list[tuple[str, float]]:
    """Run the checks of a file that is not yet in place: their names, and the seconds that each took."""
    done: list[tuple[str, float]] = []
    for name, check in {"structure": _check_for(format, limits), **(checks or {})}.items():
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
    parts = sharded.split(checkpoint, shard_bytes)
    if len(parts) == 1:
        single = to(f"{stem}.safetensors")
        return save(checkpoint, single, safetensors.NAME, limits, progress=progress, checks=checks)
    start = time.perf_counter()
    names = [sharded.shard_name(stem, number, len(parts)) for number in range(1, len(parts) + 1)]
    index = to(f"{stem}.safetensors.index.json")
    targets = [to(name) for name in names]
    drafts = [WRITERS[safetensors.NAME].draft(part, limits) for part in parts]
    listing = sharded.index_draft(parts, names)
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
        for file in _files(checkpoint):
            file.check_unchanged()
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
    found = torch_zip.read_from(read_archive(whole, limits), checkpoint.path, limits)
    _compare(checkpoint, found)
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
    if record is not None and record.header and ends_at(file, record.header):
        return record.header
    return None


def refuse_losses(checkpoint: Checkpoint, format: str) -> None:
    """Raise LossError with the list of what a format cannot hold."""
    lost = WRITERS[format].losses(checkpoint)
    if lost:
        more = f" and {len(lost) - _LISTED:,} more" if len(lost) > _LISTED else ""
        raise LossError(
            f"{format} cannot hold {'; '.join(lost[:_LISTED])}{more}",
            path=checkpoint.path,
            hint="--drop-other",
        )


def _same_file(checkpoint: Checkpoint, format: str) -> Draft | None:
    """The file itself, when nothing in it changes."""
    if checkpoint.is_edited or checkpoint.format != format or checkpoint.source is None:
        return None
    file = checkpoint.source
    return Draft(file.size, lambda sink: sink.copy(file, 0, file.size))


def _files(checkpoint: Checkpoint) -> Iterator[File]:
    """The files that a checkpoint's bytes come from."""
    found: dict[int, File] = {}
    for storage in checkpoint.storages:
        place = storage.place
        while place is not None and not isinstance(place, Range):
            place = place.of.storage.place
        if place is not None and isinstance(place.source, File):
            found[id(place.source)] = place.source
    if checkpoint.source is not None:
        found[id(checkpoint.source)] = checkpoint.source
    yield from found.values()


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_for(format: str, limits: Limits) -> Check:
    def check(path: str, planned: Checkpoint) -> None:
        try:
            with open(path, limits) as written:
                if format == safetensors.NAME:
                    _compare_tensors(planned, written)
                    safetensors.check_by_library(path)
                else:
                    _compare(planned, written)
        except CkptError as error:
            if isinstance(error, WriteError):
                raise
            raise _other(f"it reads as: {error.problem}") from None

    return check


def check_weights_only(path: str, planned: Checkpoint) -> None:
    """Raise WriteError unless torch.load(weights_only=True) takes a written file."""
    with open(path) as written:
        if written.weights_only or written.not_loadable:
            reasons = [refusal.reason for refusal in written.weights_only or ()]
            raise _other(f"weights_only refuses {', '.join(reasons[:3]) or written.not_loadable}")


def check_bytes(path: str, planned: Checkpoint) -> None:
    """Read every tensor of a written file and compare it with its source. Raises WriteError."""
    with open(path) as written:
        known = {entry.name: entry.tensor for entry in written.tensors}
        aliases = safetensors.aliases(written)
        for entry in planned.tensors:
            other = known[aliases.get(entry.name, entry.name)]
            for one, two in zip(_parts(entry), _parts(entry._replace(tensor=other)), strict=True):
                if one.storage.place is None:
                    continue
                if not _equal(_bytes(one, planned), _bytes(two, written)):
                    raise _other(f"the bytes of {show(entry.name, 80)} are not those of the source")


def _bytes(ref: TensorRef, of: Checkpoint) -> Iterator[bytes]:
    if ref.dtype.bits < 8:
        place = ref.storage.place
        assert place is not None
        return blocks(place, ref.extent[0], ref.extent[1] - ref.extent[0])
    return elements(ref, big=of.byteorder == "big" and isinstance(ref.storage.place, Range))


def _equal(one: Iterator[bytes], two: Iterator[bytes]) -> bool:
    """Whether two streams of blocks hold the same bytes, however they are cut."""
    left = right = b""
    while True:
        if not left:
            left = next(one, b"")
        if not right:
            right = next(two, b"")
        if not left or not right:
            return left == right
        count = min(len(left), len(right))
        if left[:count] != right[:count]:
            return False
        left, right = left[count:], right[count:]


def _compare(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written pickle holds the tensors, the sharing and the values that were planned."""
    if len(planned.tensors) != len(written.tensors):
        raise _other(f"{len(written.tensors):,} tensors, {len(planned.tensors):,} were planned")
    ours: dict[int, int] = {}
    theirs: dict[int, int] = {}
    for one, two in zip(planned.tensors, written.tensors, strict=True):
        if (one.name, one.path) != (two.name, two.path):
            raise _other(f"{show(two.name, 80)} where {show(one.name, 80)} was planned")
        for mine, other in zip(_parts(one), _parts(two), strict=True):
            same = (
                mine._replace(storage=other.storage, requires_grad=bool(mine.requires_grad))[:]
                == (other._replace(requires_grad=bool(other.requires_grad))[:])
            )
            same = same and mine.device in (other.device, None)
            same = same and mine.storage.nbytes == other.storage.nbytes
            same = same and ours.setdefault(id(mine.storage), len(ours)) == theirs.setdefault(
                id(other.storage), len(theirs)
            )
            if not same:
                raise _other(f"tensor {show(one.name, 80)} differs")
    if len(planned.values) != len(written.values):
        raise _other(f"{len(written.values):,} values, {len(planned.values):,} were planned")
    for before, after in zip(planned.values, written.values, strict=True):
        if not _same_value(before, after):
            raise _other(f"value {show(before.name, 80)} differs")


def _compare_tensors(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written safetensors file holds the tensors that were planned, or their aliases."""
    found = {entry.name: entry.tensor for entry in written.tensors}
    aliases = safetensors.aliases(written)
    for entry in planned.tensors:
        other = found.get(aliases.get(entry.name, entry.name))
        if other is None or (other.dtype, other.shape) != (entry.tensor.dtype, entry.tensor.shape):
            raise _other(f"tensor {show(entry.name, 80)} differs")
    if len(found) + len(aliases) != len(planned.tensors):
        raise _other(f"{len(found):,} tensors, {len(planned.tensors):,} were planned")


def _parts(entry: Entry) -> list[TensorRef]:
    tensor = entry.tensor
    return [tensor] if isinstance(tensor, TensorRef) else [part for _, part in tensor.parts]


def _same_value(one: Value, two: Value) -> bool:
    if (one.path, one.fields, one.same_as) != (two.path, two.fields, two.same_as):
        return False
    mine, other = look(one.node), look(two.node)
    if mine.kind != other.kind:
        return False
    if mine.kind == "scalar":
        return type(mine.value) is type(other.value) and (
            mine.value == other.value or mine.value != mine.value
        )
    return len(mine.children) == len(other.children)


def _other(what: str) -> WriteError:
    return WriteError(
        f"what was written is not what was planned, and was not kept: {what}", hint="a bug in ckpt"
    )
