"""Writing checkpoints: a file takes its place only after our own reader found in it
what was planned.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from shlex import quote
from typing import Protocol

from ckpt.bytes import inplace
from ckpt.bytes import target as io_target
from ckpt.bytes.far import is_url
from ckpt.bytes.location import Instead, Location, locate
from ckpt.bytes.source import Source
from ckpt.bytes.target import Progress, Sink, Target, list_status
from ckpt.elements.audit import Audit
from ckpt.elements.spans import refuse_overlaps
from ckpt.formats import (
    FORMATS,
    appender_of,
    by_name,
    is_owned,
    open,
    probe_at,
    relister_of,
    writer_of,
    written_format,
    written_formats,
)
from ckpt.formats.common.writing import Draft, difference_error
from ckpt.formats.sharded import writer as shards
from ckpt.model.checkpoint import Checkpoint, Traits
from ckpt.model.columns import row_looks
from ckpt.model.errors import (
    CkptError,
    DamagedDataError,
    LimitError,
    LossError,
    NoRewriteError,
    UnsupportedError,
    UsageError,
    WriteError,
    about,
)
from ckpt.model.limits import Limits
from ckpt.model.places import Checksum, Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, blocks_in, parts_of
from ckpt.model.text import and_more, pasted_path, show
from ckpt.pickle.judge.imports import names_and_calls
from ckpt.tree.find import metadata_of

SHARD_FORMAT = shards.FORMAT
"""The format of the files that `save_shards` writes."""
Check = Callable[[str, Checkpoint], str | None]
"""Checks a written file before it takes its place: its path, and what was planned.
Raises CkptError.

Returns the name of the check that it made instead of its own, or None.
"""


class SavedFile(NamedTuple):
    """A file that was written: its bytes, how it was checked, and the seconds that
    writing and checking took.
    """

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
    warnings: tuple[str, ...] = ()
    """The failures after the file had taken its place."""
    damaged: tuple[str, ...] = ()
    """Tensors that were written although their bytes do not match the recorded
    checksums.
    """
    relisted: tuple[str, ...] = ()
    """The files that were written into a folder in place: the one that lists the items,
    and new ones.
    """
    vanished: int = 0
    """Elements that a cast made 0."""
    files: int | None = None
    """The files of ranks in a folder."""


ENDINGS = (".pth", ".safetensors")
"""The endings to propose for one file."""


def format_for(path: str, choice: str | None, *, endings: Sequence[str] = ()) -> str:
    """The format to write: the one asked for, else the one of the suffix. Raises
    UsageError.

    Where the command has no --format, its error proposes `endings`.
    """
    formats = written_formats()
    if choice is not None:
        if choice not in formats:
            problem = f"--format {choice}: ckpt does not write this format"
            raise UsageError(problem, hint="formats: " + " ".join(formats))
        if _has_wrong_ending(path, choice):
            # --shard-size and --with-config choose a format too.
            raise UsageError(f"this ending is not of {choice}", path=path)
        return choice
    for name, format in formats.items():
        if path.endswith(format.suffixes):
            return name
    # An ending of a format that is only read gets a sentence about that format.
    for format in FORMATS:
        if not format.suffixes or not path.endswith(format.suffixes):
            continue
        if not format.writer:
            raise UsageError(
                f"ckpt reads {format.traits.label} and does not write it", path=path
            )
        break
    *other_names, last_name = formats
    hint = f"--format {', '.join(other_names)} or {last_name}"
    if endings:
        # A path that no line of a shell can hold is not proposed.
        outs = [pasted_path(path.rstrip("/") + ending) for ending in endings]
        hint = " or ".join(f"-o {out}" for out in outs if out is not None)
    problem = "the ending names no format"
    if not path:
        problem = "--format is missing: a folder of results names none"
    raise UsageError(problem, path=path or None, hint=hint or None)


def with_format_ending(path: str, format: str) -> str:
    """Give a path an ending of the format if its own ending belongs to another format
    or to none.
    """
    formats = written_formats()
    own_suffixes = formats[format].suffixes
    if path.endswith(own_suffixes):
        return path
    endings: list[str] = []
    for other in formats.values():
        endings += other.suffixes
    # The longest first: one ending may be the end of another one.
    endings.sort(key=len, reverse=True)
    found = next((ending for ending in endings if path.endswith(ending)), "")
    return path.removesuffix(found) + own_suffixes[0]


def has_known_ending(path: str) -> bool:
    """Tell whether the ending of a path names a format, written or only read."""
    return any(row.suffixes and path.endswith(row.suffixes) for row in FORMATS)


def _has_wrong_ending(path: str, name: str) -> bool:
    """Tell whether the ending of a path belongs to other formats and not to
    this one.
    """
    endings = {
        name: path.endswith(format.suffixes)
        for name, format in written_formats().items()
    }
    # An archive with code, which has the endings of torch's other files.
    if name not in endings:
        others = (
            traits_of(other) for other, suffix_fits in endings.items() if suffix_fits
        )
        return any(traits.is_folder or not traits.is_pickle for traits in others)
    return any(endings.values()) and not endings[name]


def is_written(name: str) -> bool:
    """Tell whether ckpt writes a format."""
    format = by_name(name)
    return format is not None and bool(format.writer)


def traits_of(name: str) -> Traits:
    """The traits of a format that ckpt writes. Raises UsageError for any other."""
    return written_format(name).traits


def own_format(checkpoint: Checkpoint) -> str:
    """The format of a checkpoint when ckpt writes it as one file, else the
    usual one.
    """
    own = checkpoint.format in written_formats() and not checkpoint.traits.is_folder
    return checkpoint.format if own else next(iter(written_formats()))


def can_keep_format(checkpoint: Checkpoint) -> bool:
    """Tell whether ckpt writes a checkpoint in its own format, with code only while
    that code is in it.
    """
    name = checkpoint.format
    if not is_written(name):
        return False
    return checkpoint.traits.names_are_code or not traits_of(name).names_are_code


def same_format(path: str, checkpoint: Checkpoint) -> str:
    """Return the format for a checkpoint whose content stays: its own, or the suffix's
    for several files.
    """
    name = checkpoint.format
    # `-o model.pth` of a folder means one file, not a folder of that name.
    leaves_folder = checkpoint.traits.is_folder and _has_wrong_ending(path, name)
    if not can_keep_format(checkpoint) or leaves_folder:
        has_texts = bool(metadata_of(checkpoint.root))
        # Only safetensors keeps the texts of `__metadata__`.
        endings = ENDINGS[1:] if has_texts else ENDINGS
        chosen = format_for(path, None, endings=endings)
        if traits_of(chosen).is_pickle and has_texts:
            raise _other_ending(path, "safetensors")
        return chosen
    if _has_wrong_ending(path, name):
        raise _other_ending(path, name)
    return name


def _other_ending(path: str, name: str) -> UsageError:
    """The error for an ending that names another format than the one that stays."""
    ending = ".safetensors" if name == "safetensors" else ".pth"
    other = quote(show(f"{os.path.splitext(path)[0]}{ending}", None))
    problem = f"this ending does not fit: the result stays {name}"
    return UsageError(
        problem, path=path, hint=f"-o {other}; convert changes the format"
    )


def save_checkpoint(
    checkpoint: Checkpoint,
    to: Target,
    format: str,
    limits: Limits,
    *,
    progress: Progress | None = None,
    checks: dict[str, Check] | None = None,
    keep_damaged: bool = False,
) -> SavedFile:
    """Write a checkpoint. It appears whole or not at all. Raises CkptError, LossError
    for what would be lost.

    Records keep their recorded checksums where they are copied whole. All others are
    compared with theirs: a record that differs raises DamagedDataError unless
    `keep_damaged` is set. Our own reader reads the written file and compares it with
    the plan, then `checks` run; only then does the file take its place.
    """
    refuse_losses(checkpoint, format)
    start = time.perf_counter()
    # An unedited file is copied as it is: no byte of its layout changes.
    drafted = _same_file(checkpoint, format)
    if drafted is None:
        drafted = writer_of(format).draft(checkpoint, limits)
    with (
        Audit() as audit,
        _writing_target(to, format, drafted.size, progress, checkpoint) as sink,
    ):
        # Each record whose bytes are written anew is compared with its checksum.
        sink.audit = audit
        # An error while the source is read is about the source, a later one about
        # the target.
        with about(checkpoint.path):
            drafted.write(sink)
            sink.flush()
            _check_carried(checkpoint, audit, checks)
            damaged = damaged_in(checkpoint, audit, keep=keep_damaged)
            # Last: a training run may have written over the source meanwhile.
            checkpoint.check_unchanged()
        with about(to.path):
            sink.complete()
        written = time.perf_counter()
        # The checks read the temporary file: leaving the context puts it in place.
        with about(to.path):
            done = _run_checks(sink.path, checkpoint, format, limits, checks)
    return SavedFile(
        path=to.path,
        format=format,
        nbytes=drafted.size,
        checks=tuple(done),
        seconds=written - start,
        overflowed=sink.overflowed,
        vanished=sink.vanished,
        warnings=tuple(sink.warnings),
        damaged=damaged,
    )


def _check_carried(
    checkpoint: Checkpoint, audit: Audit, checks: dict[str, Check] | None
) -> None:
    """Compare all records with their checksums where every byte is to be checked, those
    that keep theirs too.
    """
    if "crc" in (checks or {}):
        for storage in checkpoint.storages:
            audit.check(storage.noted)


def damaged_in(checkpoint: Checkpoint, audit: Audit, *, keep: bool) -> tuple[str, ...]:
    """The tensors of a checkpoint whose bytes contradict a checksum. Raises
    DamagedDataError for one that is not kept.
    """
    storages = audit.damaged()
    if not storages:
        return ()
    names = _names_over(checkpoint, storages)
    if not keep:
        # No tensor may see a damaged record: a storage that nothing views.
        listed = and_more([show(name, 80) for name in names], 3) or "a record"
        verb = "is" if len(names) < 2 else "are"
        # The file of a set that holds the record, not the folder.
        source = storages[0].place.source
        raise DamagedDataError(
            (
                f"{listed} {verb} damaged: the bytes do not match the recorded "
                "checksum, so nothing was written"
            ),
            path=None if source.address is None else source.name,
            hint="--keep-damaged writes it all the same",
        )
    return names


def _names_over(checkpoint: Checkpoint, damaged: Sequence[Checksum]) -> tuple[str, ...]:
    """The tensors whose bytes come from a record."""
    places = {checksum.place for checksum in damaged}
    return tuple(
        entry.name
        for entry in checkpoint.tensors
        if not places.isdisjoint(_record_places(entry.tensor))
    )


def _record_places(tensor: Tensor) -> Iterator[Range]:
    """The places of the records that the storages of a tensor come from."""
    for part in parts_of(tensor):
        for checksum in part.storage.list_checksums():
            yield checksum.place


def _writing_target(
    to: Target,
    format: str,
    size: int,
    progress: Progress | None,
    checkpoint: Checkpoint,
) -> AbstractContextManager[Sink]:
    """Return the context that puts a file or a folder in place."""
    sources = checkpoint.all_sources()
    # A format of folders says which names in a folder are its own.
    owns = written_format(format).owns
    if owns is not None:
        return io_target.writing_folder(to, size, is_owned, progress, sources=sources)
    return io_target.writing_file(to, size, progress, sources=sources)


def _run_checks(
    path: str,
    planned: Checkpoint,
    format: str,
    limits: Limits,
    checks: dict[str, Check] | None,
) -> list[tuple[str, float]]:
    """Run the checks of a file that is not yet in place: their names, and the seconds
    of each.
    """
    done: list[tuple[str, float]] = []
    # The structure first: the others read a file that is what was planned.
    all_checks = {"structure": check_structure(format, limits), **(checks or {})}
    for name, check in all_checks.items():
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
                _refuse_other_code(planned, written)
        except (WriteError, LimitError):
            # They say already what differs, or which limit to raise.
            raise
        except CkptError as error:
            raise difference_error(f"it cannot be read back, {error.problem}") from None

    return check


_OF_CODE = ("code-inside", "unknown-operator", "file-code")
"""The notices about code that loaders run or compile."""


def _refuse_other_code(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError where loading a written file would run what loading its source
    does not.

    What is copied as it is was read once to judge it, and once more to write it. A
    server may have answered otherwise by then.
    """
    is_copy = not planned.is_edited and planned.format == written.format
    ours = _strange_calls(planned)
    # A file that is no copy comes from memory, and may have a call in other words.
    others = [
        name
        for name, calls in _strange_calls(written).items()
        if (ours.get(name) != calls if is_copy else name not in ours)
    ]
    if others and not is_copy:
        # An edit may have brought it from another file.
        held = {known.qualified for known in names_and_calls(planned.root)[0]}
        others = [name for name in others if name not in held]
    if others:
        raise _other_code_error(f"it uses {show(others[0], 80)}")
    for code in _OF_CODE:
        told = {notice.message for notice in planned.account.noticed(code)}
        found = {notice.message for notice in written.account.noticed(code)}
        # An edit of the code may change the line that a notice quotes.
        if found and not (found <= told if is_copy else told):
            raise _other_code_error("its code runs something")


def _other_code_error(what: str) -> WriteError:
    """The error for a written file that runs what its source did not run."""
    return WriteError(
        f"the written file was not kept: {what}, which its source did not when it was "
        "judged",
        hint="did it change meanwhile?",
    )


def _strange_calls(checkpoint: Checkpoint) -> dict[str, tuple[str, ...]]:
    """Return the names that loading a checkpoint imports and that ckpt does not know,
    with their calls as text.
    """
    return {
        f"{row.module}.{row.name}": row.calls
        for row in checkpoint.imports
        if row.group != "known"
    }


def _is_of_others(format: str) -> bool:
    """Tell whether a format is not in the table: other distributions have to be asked
    to read it.
    """
    return by_name(format) not in written_formats().values()


def check_weights_only(path: str, planned: Checkpoint) -> None:
    """Raise WriteError unless torch.load(weights_only=True) loads a written file."""
    # The judgement of our own reader: no file is loaded by torch here.
    with open(path) as written:
        if written.weights_only or written.not_loadable:
            reasons = [refusal.reason for refusal in written.weights_only or ()]
            refused = and_more(reasons, 3) or written.not_loadable
            raise difference_error(f"weights_only refuses {refused}")


def check_bytes(path: str, planned: Checkpoint) -> None:
    """Read all data of a written file and compare it with its source. Raises
    WriteError.
    """
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
    keep_damaged: bool = False,
) -> SavedFile:
    """Write safetensors in shards with an index. The index takes its place last. `to`
    gives the target of a name.

    A checkpoint that fits into one shard is a single file without an index. Where a set
    or a single file is to be replaced, the new shards get other names, and the old
    files are removed once the new ones are complete. Raises CkptError.
    """
    refuse_losses(checkpoint, SHARD_FORMAT)
    parts = shards.split_checkpoint(checkpoint, shard_bytes)
    index = to(shards.index_name(stem))
    single = to(f"{stem}.safetensors")
    if os.path.islink(index.path):
        hint = f"-o {quote(index.real)}"
        raise UsageError(
            "a link, but an index lies beside its shards", path=index.path, hint=hint
        )
    folder = os.path.dirname(index.real)
    old = shards.old_set(folder, stem, limits)
    replaced = (os.path.join(folder, name) for name in old.shards)
    _refuse_sources(checkpoint, (index.real, single.real, *replaced))
    if len(parts) == 1:
        saved = save_checkpoint(
            checkpoint,
            single,
            SHARD_FORMAT,
            limits,
            progress=progress,
            checks=checks,
            keep_damaged=keep_damaged,
        )
        # The index of the old set goes first: without it its shards are no checkpoint.
        gone = (os.path.basename(index.real), *old.shards) if index.is_replacing else ()
        return saved._replace(
            warnings=(*saved.warnings, *_clear_replaced(folder, gone, old.stray))
        )
    start = time.perf_counter()
    for name in shards.shard_names(stem, len(parts)):
        # Refuses the shards of a set that is not to be replaced.
        to(name)
    # Other names than those of the old shards: until the index takes its place, the old
    # set stays whole.
    names = shards.shard_names(stem, len(parts), old.taken)
    like = list_status(index.replaced)
    targets = [to(name)._replace(like=like) for name in names]
    drafts = [writer_of(SHARD_FORMAT).draft(part, limits) for part in parts]
    listing = shards.index_draft(parts, names)
    sources = checkpoint.all_sources()
    done: dict[str, float] = {}
    sinks: list[Sink] = []
    try:
        with ExitStack() as stack:
            audit = stack.enter_context(Audit())
            # The context entered first is left last: so the index, which completes the
            # checkpoint, comes last.
            sinks.append(
                stack.enter_context(
                    io_target.writing_file(index, listing.size, sources=sources)
                )
            )
            listing.write(sinks[0])
            # All shards stay temporary files until the last one is complete.
            for part, drafted, target in zip(parts, drafts, targets, strict=True):
                sink = stack.enter_context(
                    io_target.writing_file(
                        target, drafted.size, progress, sources=sources
                    )
                )
                sinks.append(sink)
                sink.audit = audit
                drafted.write(sink)
                sink.flush()
                sink.complete()
                for name, seconds in _run_checks(
                    sink.path, part, SHARD_FORMAT, limits, checks
                ):
                    done[name] = done.get(name, 0.0) + seconds
            _check_carried(checkpoint, audit, checks)
            damaged = damaged_in(checkpoint, audit, keep=keep_damaged)
            checkpoint.check_unchanged()
    except BaseException:
        # Shards that took their places before another one failed: no index names them.
        if sinks and not (sinks[0].is_placed or sinks[0].is_kept):
            for sink, target in zip(sinks[1:], targets, strict=False):
                if sink.is_placed:
                    io_target.remove_file(target.real)
        raise
    total = listing.size + sum(drafted.size for drafted in drafts)
    seconds = time.perf_counter() - start - sum(done.values())
    # Only now: until the new index was in place, the old set was the checkpoint.
    gone = tuple(old.shards)
    if single.is_replacing:
        gone = (os.path.basename(single.path), *gone)
    warnings: list[str] = []
    for sink in sinks:
        warnings += sink.warnings
    warnings += _clear_replaced(folder, gone, old.stray)
    return SavedFile(
        index.path,
        "sharded",
        total,
        checks=tuple(done.items()),
        seconds=seconds,
        shards=len(parts),
        overflowed=sum(sink.overflowed for sink in sinks),
        warnings=tuple(warnings),
        damaged=damaged,
        vanished=sum(sink.vanished for sink in sinks),
    )


class FilesOfRanks(Protocol):
    """The files of ranks that one checkpoint is written as, below one folder."""

    @property
    def format(self) -> str:
        """The format of the files."""
        ...

    def owns(self, name: str) -> bool:
        """Tell whether a path below the folder is one of the files, or with a slash a
        folder of some.
        """
        ...

    def split_checkpoint(
        self, checkpoint: Checkpoint, limits: Limits
    ) -> list[tuple[str, Checkpoint]]:
        """The checkpoint of each file, by its path below the folder. Raises
        LossError.
        """
        ...


def save_ranks(
    checkpoint: Checkpoint,
    to: Target,
    ranks: FilesOfRanks,
    limits: Limits,
    *,
    progress: Progress | None = None,
    checks: dict[str, Check] | None = None,
    keep_damaged: bool = False,
) -> SavedFile:
    """Write a checkpoint as the files of ranks in a folder, which appears whole or not
    at all. Raises CkptError.

    Each file is written and checked as one of its own; the folder takes its place once
    all are complete.
    """
    parts = ranks.split_checkpoint(checkpoint, limits)
    size = sum(storage.nbytes for storage in row_looks(checkpoint.storages))
    sources = checkpoint.all_sources()
    files: list[SavedFile] = []
    with io_target.writing_folder(to, size, ranks.owns, sources=sources) as sink:
        for name, part in parts:
            sink.make_folder(os.path.dirname(name))
            # Inside of the temporary folder, which takes its place as a whole.
            place = io_target.target(os.path.join(sink.path, name), force=False)
            saved = save_checkpoint(
                part,
                # With the mode of what is replaced, which `place` does not see.
                place._replace(like=list_status(to.replaced)),
                ranks.format,
                limits,
                progress=progress,
                checks=checks,
                keep_damaged=keep_damaged,
            )
            files.append(saved)
        checkpoint.check_unchanged()
        sink.sync_folders()
    done: dict[str, float] = {}
    warnings: list[str] = []
    damaged: list[str] = []
    for saved in files:
        for name, seconds in saved.checks:
            done[name] = done.get(name, 0.0) + seconds
        warnings += saved.warnings
        damaged += saved.damaged
    # Last, for putting the folder in place may add some.
    warnings += sink.warnings
    return SavedFile(
        to.path,
        ranks.format,
        sum(saved.nbytes for saved in files),
        checks=tuple(done.items()),
        seconds=sum(saved.seconds for saved in files),
        files=len(files),
        overflowed=sum(saved.overflowed for saved in files),
        vanished=sum(saved.vanished for saved in files),
        warnings=tuple(warnings),
        damaged=tuple(damaged),
    )


def is_source(checkpoint: Checkpoint, path: str) -> bool:
    """Tell whether a path leads to a file that a checkpoint is read from, or to a
    folder of one.

    Links are followed.
    """
    sources = checkpoint.all_sources()
    if is_url(path):
        addresses = [checkpoint.path, *(source.address for source in sources)]
        # With a slash: `run1` is no folder of `run10/a.pth`.
        folder = f"{path.rstrip('/')}/"
        return any(
            address is not None and f"{address}/".startswith(folder)
            for address in addresses
        )
    try:
        there = os.stat(path)
    except (OSError, ValueError):
        return False
    # An index, which is not kept open.
    if os.path.isfile(checkpoint.path) and os.path.samefile(checkpoint.path, path):
        return True
    if os.path.isdir(path):
        folder = os.path.join(os.path.realpath(path), "")
        return any(
            os.path.realpath(source.name).startswith(folder) for source in sources
        )
    # By device and inode: hard links of one file are the file too.
    statuses = [source.status for source in sources]
    return any(
        status is not None and os.path.samestat(status, there) for status in statuses
    )


def _refuse_sources(checkpoint: Checkpoint, paths: Iterable[str]) -> None:
    """Raise UsageError where a set would take the place of a file that it is
    made of.
    """
    for path in paths:
        if is_source(checkpoint, path):
            problem = "the source, which a new file does not replace"
            raise UsageError(problem, path=path, hint="-o in another folder")


def _clear_replaced(
    folder: str, gone: Sequence[str], stray: Sequence[str]
) -> list[str]:
    """Remove what a set took the place of. What failed, and what stays though no index
    names it, one line each.
    """
    problems = io_target.clear_files(folder, gone) if gone else []
    if stray:
        listed = and_more([show(name, 80) for name in stray], 3)
        problems.append(
            f"no index names {listed}, left over from a run that was killed?"
        )
    return problems


def append(
    checkpoint: Checkpoint, limits: Limits, *, progress: Progress | None = None
) -> SavedFile:
    """Rewrite a checkpoint at the end of its file. The time does not grow with the
    file. Raises CkptError.

    Our own reader checks the new end before a byte of it is written.
    """
    source = checkpoint.source
    appender = appender_of(checkpoint.format)
    if source is None or appender is None:
        raise UnsupportedError(
            f"{checkpoint.format} files cannot be changed in place",
            path=checkpoint.path,
            hint="-o OUT",
        )
    start = time.perf_counter()
    content, validity = appender.append(checkpoint, limits)
    checked = time.perf_counter()
    with inplace.appending_sink(source, progress) as sink:
        sink.write(content)
        # The content must be on the disk before the bytes that make it valid.
        sink.sync()
        sink.write(validity)
    appended = len(content) + len(validity)
    return SavedFile(
        path=source.name,
        format=checkpoint.format,
        nbytes=source.size + appended,
        appended=appended,
        checks=(("structure", checked - start),),
        seconds=time.perf_counter() - checked,
        warnings=tuple(sink.warnings),
    )


def can_relist(checkpoint: Checkpoint) -> bool:
    """Tell whether the items of a checkpoint in a folder can get other names in
    place.
    """
    if not checkpoint.traits.is_folder or is_url(checkpoint.path):
        return False
    relister = relister_of(checkpoint.format)
    return relister is not None and relister.listing(checkpoint) is not None


def relist_items(checkpoint: Checkpoint, limits: Limits) -> SavedFile:
    """Give the items of a checkpoint in a folder other names: the file that lists them
    is replaced, data files stay.

    An item whose content changes goes to a new file, which is in place before the list.
    Our own reader reads the new list before it takes its place. Raises CkptError, also
    where every rank has a list of its own.
    """
    relister = relister_of(checkpoint.format)
    source = None if relister is None else relister.listing(checkpoint)
    if relister is None or source is None:
        raise UnsupportedError(
            (
                "each rank lists its items in a file of its own, so it cannot be "
                "changed in place"
            ),
            path=checkpoint.path,
            hint="-o OUT",
        )
    refuse_losses(checkpoint, checkpoint.format)
    start = time.perf_counter()
    folder = os.path.dirname(source.name) or os.curdir
    with inplace.locked_file(source.name, to_change=True):
        # Under the lock: another run may have written the list since it was read.
        checkpoint.check_unchanged()
        # The names in the folder, so that a new file gets none of them.
        plan = relister.relisting(checkpoint, locate(folder).names(), limits)
        to = io_target.target(source.name, force=True)
        sources = checkpoint.all_sources()
        placed: list[str] = []
        sink: Sink | None = None
        try:
            with io_target.writing_file(to, len(plan.content), sources=sources) as sink:
                for name, drafted in plan.files:
                    placed.append(
                        _write_file(os.path.join(folder, name), drafted, sources)
                    )
                sink.write(plan.content)
                sink.flush()
                check_start = time.perf_counter()
                # The folder as it will be: the temporary list in place of the old one.
                with_new_list = Instead(locate(folder), plan.name, sink.path)
                with about(to.path):
                    _check_list(with_new_list, checkpoint, limits)
                checks = (("structure", time.perf_counter() - check_start),)
                checkpoint.check_unchanged()
        except BaseException:
            # The old list is still in place, and names none of the new files.
            if sink is None or not (sink.is_placed or sink.is_kept):
                for path in placed:
                    io_target.remove_file(path)
            raise
    size = len(plan.content) + sum(drafted.size for _, drafted in plan.files)
    warnings = [*sink.warnings, *filter(None, [to.warning])]
    if plan.unused:
        listed = and_more([show(name, 80) for name in plan.unused], 3)
        warnings.append(f"nothing names {listed} any more: it may be removed")
    seconds = time.perf_counter() - start - checks[0][1]
    return SavedFile(
        checkpoint.path,
        checkpoint.format,
        checkpoint.nbytes - source.size + size,
        checks=checks,
        seconds=seconds,
        warnings=tuple(warnings),
        relisted=(plan.name, *(name for name, _ in plan.files)),
    )


def _write_file(path: str, drafted: Draft, sources: Sequence[Source]) -> str:
    """Write a new file. Return its path."""
    with io_target.writing_file(
        io_target.target(path, force=False), drafted.size, sources=sources
    ) as sink:
        drafted.write(sink)
    return path


def _check_list(folder: Location, planned: Checkpoint, limits: Limits) -> None:
    """Raise WriteError unless our own reader finds in a folder what was planned."""
    try:
        with written_format(planned.format).read(
            probe_at(folder, limits), limits
        ) as written:
            writer_of(planned.format).compare(planned, written)
    except (WriteError, LimitError):
        raise
    except CkptError as error:
        raise difference_error(f"it cannot be read back, {error.problem}") from None


class Undone(NamedTuple):
    """A rewrite that was taken back, or would be: the bytes of the file before and
    after, and what failed afterwards.
    """

    before: int
    after: int
    warnings: tuple[str, ...] = ()


def undo_rewrite(path: str, limits: Limits, *, dry_run: bool = False) -> Undone:
    """Cut a file back to the whole archive before its last in-place rewrite, complete
    or torn. Raises CkptError.

    Our own reader reads that archive first. Raises NoRewriteError when there is none.
    """
    with inplace.locked_file(path, to_change=not dry_run) as held:
        size = held.source.size
        end = None
        # A file with a torn rewrite cannot be opened, so that its format is unknown.
        for format in written_formats():
            appender = appender_of(format)
            if appender is None:
                continue
            end = appender.end_before(held.source, limits)
            if end is not None:
                break
        if end is None:
            raise NoRewriteError("there is no in-place rewrite to undo", path=path)
        if not dry_run:
            held.cut(end)
    return Undone(size, end, tuple(held.warnings))


def refuse_losses(checkpoint: Checkpoint, format: str) -> None:
    """Raise LossError with the list of what a format cannot hold."""
    blocks = blocks_in(entry.tensor for entry in checkpoint.tensors)
    if blocks:
        raise LossError(
            f"{format} cannot hold blocks of {and_more(blocks, 5)}",
            path=checkpoint.path,
            way=("convert", "--dtype", "bfloat16"),
        )
    if not traits_of(format).keeps_ties:
        # Each view is written with all of its elements.
        tensors = [entry.tensor for entry in checkpoint.tensors]
        with about(checkpoint.path):
            refuse_overlaps(tensors, sum(tensor.nbytes for tensor in tensors))
    lost = writer_of(format).losses(checkpoint)
    if lost:
        hint = None
        if format == "torch-legacy":
            hint = "ckpt convert --format torch-zip holds them"
        raise LossError(
            f"{format} cannot hold {and_more(lost, 5, '; ')}",
            path=checkpoint.path,
            hint=hint,
        )


def _same_file(checkpoint: Checkpoint, format: str) -> Draft | None:
    """A copy of the file itself, when nothing in it changes."""
    source = checkpoint.source
    if checkpoint.is_edited or checkpoint.format != format or source is None:
        return None
    if traits_of(format).is_folder:
        return None
    return Draft(source.size, lambda sink: sink.copy(source, 0, source.size))
