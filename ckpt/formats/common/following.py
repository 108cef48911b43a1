"""Bytes behind the last storage of a legacy file: checkpoints and pickles there are
judged, a zip archive is refused.

Whoever loads in a loop over one open file runs them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias
from zlib import MAX_WBITS, decompressobj, error

from ckpt.bytes.source import Memory, Source, Window
from ckpt.formats.common.archive import TRAILING, Archive
from ckpt.formats.common.arrays import (
    HEADER,
    MAGIC,
    find_unpickled,
    header_size,
    is_object_array,
)
from ckpt.formats.common.directory import Record
from ckpt.formats.common.early import LOOKED, runs_before_it_breaks
from ckpt.formats.common.heads import is_legacy
from ckpt.formats.common.pickled import Contents, interpret_pickle
from ckpt.formats.common.stream import Stream, read_nested
from ckpt.formats.common.trailing import follow_text
from ckpt.formats.common.zip_layout import END, END_MAGIC, LOCAL_MAGIC
from ckpt.hooks import has_command
from ckpt.model.account import Notice
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Global, PersistentId
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage
from ckpt.model.text import and_more, counted_noun, show
from ckpt.pickle.machine import Pickle

_STEP = 1 << 12
"""Bytes that are read first of each, because many short ones may follow each other."""
_MOST = 10_000
"""The most checkpoints and pickles that follow each other."""
_COST = 1_000
"""Bytes of memory of one of them, at least."""


def refuse_archive(source: Source, begin: int) -> None:
    """Raise UnreadableError where a zip archive lies behind another file: torch and
    zipfile find it from either side.
    """
    rest = source.size - begin
    tail = min(rest, TRAILING + END.size)
    # From the front by its first header, from the back by its end record.
    if source.read(
        begin, min(rest, len(LOCAL_MAGIC))
    ) == LOCAL_MAGIC or END_MAGIC in source.read(source.size - tail, tail):
        raise UnreadableError(
            f"two files in one: a zip archive lies behind byte {begin:,}"
        )


class Following(NamedTuple):
    """A checkpoint or a pickle behind the first checkpoint: its pickles, and where it
    ends.
    """

    pickles: list[Pickle]
    end: int
    is_checkpoint: bool


def judge(
    source: Source, begin: int, contents: Contents, limits: Limits, budget: Budget
) -> None:
    """Judge what follows a legacy checkpoint, and say what it is. Raises
    UnreadableError, LimitError.
    """
    end, checkpoints, pickles = begin, 0, 0
    # All of them are judged, because a loop of loads runs all of them.
    for following in _list_following(source, begin, limits, budget):
        contents.behind += following.pickles
        end = following.end
        checkpoints += following.is_checkpoint
        pickles += not following.is_checkpoint
    if (checkpoints, pickles) == (1, 0):
        text = (
            f"a second checkpoint begins at byte {begin:,}: torch.load reads only the "
            "first; its calls are judged"
        )
    else:
        counts = (
            counted_noun(checkpoints, "more checkpoint"),
            counted_noun(pickles, "more pickle"),
        )
        kinds = " and ".join(
            text
            for text, count in zip(counts, (checkpoints, pickles), strict=True)
            if count
        )
        text = (
            f"{kinds} from byte {begin:,} on, whose calls are judged and whose values "
            "are not shown"
        )
    if checkpoints or pickles:
        contents.notices.append(Notice("trailing-data", text))
    if end < source.size:
        refuse_archive(source, end)
        contents.notices.append(
            Notice("trailing-data", f"{follow_text(source, end)} the last storage")
        )


_LoadId: TypeAlias = "Callable[[PersistentId], Storage | Global]"
"""Finds what a persistent id of a pickle stands for."""


def _list_following(
    source: Source,
    end: int,
    limits: Limits,
    budget: Budget,
    load_id: _LoadId | None = None,
) -> Iterator[Following]:
    for _ in range(_MOST):
        if end < source.size:
            following = _next_following(
                source, end, limits, budget, load_id or _refuse_id
            )
        else:
            following = None
        if following is None:
            return
        end = following.end
        yield following
    if end < source.size:
        raise UnreadableError(f"over {_MOST:,} pickles follow the first checkpoint")


def _next_following(
    source: Source, begin: int, limits: Limits, budget: Budget, load_id: _LoadId
) -> Following | None:
    """The checkpoint or pickle that begins at a byte, or None where these bytes are
    neither.

    Raises UnreadableError for one that breaks after it has called or imported
    something.
    """
    rest = source.size - begin
    other = Contents((), read_nested, "", budget)
    # A window, so that its offsets count from its own begin.
    stream = Stream(
        Window(source, begin, rest, source.name), other, limits, "", 0, step=_STEP
    )
    budget.charge(_COST)
    # torch's magic number: a second checkpoint, and not just any pickle.
    if is_legacy(source.read(begin, min(rest, 32))):
        try:
            stream.read()
        except UnreadableError as error:
            problem = (
                f"a damaged checkpoint begins at byte {begin:,}, behind the first: "
                f"{error.problem}"
            )
            is_saved = has_command("salvage")
            hint = "ckpt salvage writes the first" if is_saved else None
            raise UnreadableError(problem, hint=hint) from None
        return Following(other.pickles, begin + stream.end, is_checkpoint=True)
    try:
        pickle = stream.pickle()
    except UnreadableError:
        if runs_before_it_breaks(source.read(begin, min(rest, LOOKED)), limits):
            problem = (
                f"a damaged pickle begins at byte {begin:,}, behind the last storage"
            )
            raise UnreadableError(
                problem, hint="pickle.load in a loop runs a part of it"
            ) from None
        return None
    try:
        interpret_pickle(pickle, other, limits, load_id, 0)
    except _PersistentIdError:
        # its calls are noted, and other loaders come no further than to the first id
        pass
    return Following(other.pickles, begin + stream.end, is_checkpoint=False)


def _refuse_id(persistent: PersistentId) -> Storage | Global:
    raise UnreadableError("a pickle behind the last storage has persistent ids")


class _PersistentIdError(UnreadableError):
    """A pickle has a persistent id, where no loader gives it one."""


def _stop_at_id(persistent: PersistentId) -> Storage | Global:
    raise _PersistentIdError("a pickle beside torch's has persistent ids")


def judge_bytes(
    data: bytes, contents: Contents, limits: Limits, budget: Budget
) -> bool:
    """Judge the bytes of a record that other loaders than torch may unpickle: a pickle,
    or an array of objects of numpy.

    Tells whether it is one. Raises UnreadableError, LimitError.
    """
    source = Memory(data)
    is_pickle = False
    end = 0
    # One record may hold several pickles and arrays in a row.
    while (begin := find_unpickled(source, limits, end)) is not None:
        is_pickle = True
        head = source.read(begin, min(len(data) - begin, HEADER))
        if header_size(head) and not is_object_array(head):
            raise UnreadableError(
                "a record is an array whose bytes ckpt cannot count, so that what "
                "follows it is not known"
            )
        end = begin + header_size(head)
        for following in _list_following(source, end, limits, budget, _stop_at_id):
            contents.behind += following.pickles
            end = following.end
        # Nothing was passed over: the loop would find the same bytes again.
        if end <= begin:
            break
    return is_pickle


def judge_records(
    archive: Archive,
    names: Iterable[str],
    contents: Contents,
    limits: Limits,
    budget: Budget,
) -> frozenset[str]:
    """Judge the records with these names that another loader would unpickle, and return
    the names of those.

    Raises UnreadableError, LimitError.
    """
    # Python unpickles before it compares a checksum.
    lenient = archive._replace(is_partial=True)
    pickles: list[str] = []
    for name in names:
        record = archive.records[name]
        # An inflated record beyond the limit is no pickle that anybody loads.
        is_pickle = not record.deflated or record.size <= limits.pickle_bytes
        # A long record is looked at in the file before it is read into memory.
        if record.size > LOOKED and not record.deflated:
            window = Window(archive.source, record.offset, record.size, name)
            is_pickle = find_unpickled(window, limits) is not None
        if is_pickle and judge_bytes(
            lenient.read_pickle(record, limits, budget), contents, limits, budget
        ):
            pickles.append(name)
    if pickles:
        shown = and_more([show(name, 60) for name in pickles], 3)
        text = (
            f"torch does not read, though numpy or pickle would, {shown} in the archive"
        )
        contents.notices.append(Notice("trailing-data", text))
    return frozenset(pickles)


def is_array(archive: Archive, record: Record) -> bool:
    """Tell whether a record begins as an array of numpy."""
    return _first_bytes(archive, record).startswith(MAGIC)


def has_objects(archive: Archive) -> bool:
    """Tell whether an archive, as of `numpy.savez`, has an array of objects."""
    return any(
        is_object_array(_first_bytes(archive, record))
        for record in archive.records.values()
    )


def _first_bytes(archive: Archive, record: Record) -> bytes:
    """Return the first bytes of a record, or none of one that is damaged."""
    head = archive.source.read(record.offset, min(record.stored, HEADER))
    if not record.deflated:
        return head
    try:
        # Deflate without a header, as a zip archive has it.
        return decompressobj(-MAX_WBITS).decompress(head, HEADER)
    except error:
        return b""
