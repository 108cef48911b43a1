"""Finding what an in-place rewrite appended to an archive, and where the archive before
it ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.bytes.source import Beginning, Source
from ckpt.formats.common.archive import (
    FIELD,
    Archive,
    end_at,
    header_names,
    is_appended,
    read_archive,
)
from ckpt.formats.common.pickled import Contents
from ckpt.formats.common.storages import tree_of
from ckpt.formats.common.stream import read_nested
from ckpt.formats.common.trailing import follow_text
from ckpt.formats.common.zip_layout import (
    END,
    END_MAGIC,
    LOCAL,
    LOCAL_MAGIC,
    local_header,
)
from ckpt.model.errors import CkptError, LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.text import pasted_path

_SEARCHED = 512 << 20
"""The bytes before the end of a file that are searched for the end of an older
archive.
"""
_STEP = 1 << 20
_LOOKED_AT = 10_000
"""The most end records that are read. Tensors hold one by chance in 4 GB, so more are
made on purpose.
"""
_TRIED = 4
"""The most ends that are tried. A torn rewrite leaves one, and each older one on the
same blocks one more.
"""


def end_before(source: Source, limits: Limits) -> int | None:
    """The end of the whole archive before the last in-place rewrite, complete or torn;
    None without one.

    Torn is also what a power loss leaves: stale bytes or zeros after the archive.
    Raises LimitError.
    """
    try:
        archive = read_archive(source, limits)
    except LimitError:
        raise
    except CkptError:
        return _last_whole(source, limits)
    end = _appended_at(archive)
    if archive.trailing:
        return _last_whole(source, limits)
    if end is not None:
        return end if _is_whole(source, end, limits) else None
    # Stale bytes may lie over the mark, between a new directory and the old archive.
    if _is_whole(source, source.size, limits):
        return None
    return _last_whole(source, limits)


def explained(
    error: UnreadableError, source: Source, limits: Limits
) -> UnreadableError:
    """The error of an archive that cannot be read. It names --undo where a whole
    archive lies before the end.
    """
    try:
        end = end_before(source, limits)
    except CkptError:
        return error
    if end is None:
        return error
    name = pasted_path(source.name)
    hint = None if name is None else f"ckpt rehome --undo --dry-run {name}"
    try:
        read_archive(source, limits)
    except CkptError:
        if is_appended(source, end):
            problem = (
                f"an in-place rewrite was interrupted, the first {end:,} bytes are "
                "intact"
            )
            problem += f", and {follow_text(source, end)}"
        else:
            problem = (
                f"{follow_text(source, end)} the zip archive, which ends at byte "
                f"{end:,}"
            )
        return UnreadableError(problem, path=error.path, hint=hint)
    # The archive is whole, what was appended to it is not.
    error.hint = hint
    return error


def _appended_at(archive: Archive) -> int | None:
    """The end of the archive before its pickle was appended in place; None when it was
    not.
    """
    record = archive.find("data.pkl")
    # torch writes the pickle first, at byte 0.
    if record is None or not record.header:
        return None
    return record.header if is_appended(archive.source, record.header) else None


def _last_whole(source: Source, limits: Limits) -> int | None:
    tried = 0
    for end in _possible_ends(source):
        if end < source.size and not _is_another(source, end):
            if _is_whole(source, end, limits):
                return end
            tried += 1
            if tried == _TRIED:
                break
    return None


def _possible_ends(source: Source) -> Iterator[int]:
    """Yield the offsets where an archive may end, from the back: after end records that
    fit the file.
    """
    looked_at = 0
    high = source.size
    while high > max(0, source.size - _SEARCHED):
        low = max(0, high - _STEP)
        # The steps overlap by one end record, so that no end record is missed between
        # two steps.
        data = source.read(low, min(source.size, high + END.size) - low)
        position = data.rfind(END_MAGIC)
        while position >= 0:
            looked_at += 1
            if looked_at > _LOOKED_AT:
                return
            # A mark in the overlap was found in the step before.
            if position < high - low:
                end = end_at(source, low + position)
                if end is not None and end <= source.size:
                    yield end
            position = data.rfind(END_MAGIC, 0, position)
        high = low


def _is_whole(source: Source, end: int, limits: Limits) -> bool:
    """Tell whether our own reader reads the bytes before `end` as an archive. Raises
    LimitError.
    """
    try:
        archive = read_archive(Beginning(source, end), limits)
        if archive.find("data.pkl") is None:
            return False
        tree_of(archive, Contents((), read_nested), limits, Budget(limits))
    except LimitError:
        raise
    except CkptError:
        return False
    return True


def _is_another(source: Source, end: int) -> bool:
    """Tell whether another archive begins after an end: a header without our mark. It
    is not ours to cut off.

    A header that makes no sense was torn itself.
    """
    head = source.read(end, min(source.size - end, LOCAL.size))
    if len(head) < LOCAL.size or not head.startswith(LOCAL_MAGIC):
        return False
    method = local_header(head).method
    name, extra, extras = header_names(source, end, head)
    if method not in (0, 8) or not name or b"\0" in name:
        return False
    if "\ufffd" in name.decode("utf-8", "replace"):
        return False
    # Our own mark, or zeros where its bytes never arrived.
    if extras and (FIELD.startswith(extra[: len(FIELD)]) or not any(extra)):
        return False
    # Fields of any other program fill their room exactly.
    position = 0
    while position + 4 <= len(extra):
        position += 4 + int.from_bytes(extra[position + 2 : position + 4], "little")
    return position == extras or len(extra) < extras >= position
