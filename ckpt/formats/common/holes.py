"""Storages of which bytes are missing, as in a file that is cut off: the bytes that are
there, and the tensors that are not whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckpt.bytes.source import Source
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Entry
from ckpt.model.dtypes import UINT8
from ckpt.model.places import Patched, Place, Range
from ckpt.model.tensors import Storage, parts_of
from ckpt.model.text import and_more, be_verb, counted_noun, show

_LISTED = 5


_STEP = 1 << 20
"""Bytes that are read at once where zeros are counted."""
LEAST_ZEROS = 512
"""Zero bytes at the end of a file that is damaged that are no values: the smallest
block of a disk.
"""


def zeros_before(source: Source, end: int, begin: int = 0) -> int:
    """Return the number of zero bytes right before `end`, counted down to `begin`."""
    position = end
    while position > begin:
        step = min(_STEP, position - begin)
        data = source.read(position - step, step)
        # The last byte of the block that is not zero ends the search.
        held = len(data.rstrip(b"\0"))
        position -= step - held
        if held:
            break
    return end - position


def written_end(source: Source, begin: int = 0) -> int:
    """Return where the zeros begin that a damaged file ends in, or its size where it
    does not end in zeros.

    A download that reserves its place, and a file system after a crash, leave zeros
    where the bytes never arrived.
    """
    zeros = zeros_before(source, source.size, begin)
    return source.size - zeros if zeros >= LEAST_ZEROS else source.size


def zeros_text(
    source: Source, position: int | None = None, begin: int = 0
) -> str | None:
    """The words on a file that ends in zeros, where `position` lies among them, or None
    for one that does not.
    """
    start = written_end(source, begin)
    # An error in front of the zeros is not explained by them.
    if start == source.size or (position is not None and position < start):
        return None
    return f"the file ends in {source.size - start:,} zero bytes"


def partial_place(nbytes: int, why: str, there: Range | None = None) -> Place:
    """The place of a storage of `nbytes` bytes, of which only the first are `there`.
    Reading others raises UnreadableError.
    """
    # Here: few files are cut off.
    from ckpt.elements.boxes import Boxes

    # No box at all: whoever reads it gets the problem.
    missing = Boxes(UINT8, (nbytes,), list, (), why)
    if there is None or not there.size:
        return missing
    return Patched(missing, nbytes, [(0, there)])


def lost_notices(
    entries: Iterable[Entry], short: Mapping[Storage, int]
) -> list[Notice]:
    """Return the notices about tensors over `short` storages, of which only so many
    first bytes are there.

    Some need more bytes than these. The bytes of the others are there, and nothing
    proves them: a checksum is of a whole storage, and of one that is cut off bytes may
    be missing in the middle too.
    """
    lost: list[str] = []
    unproved: list[str] = []
    for entry in entries if short else ():
        if not _is_whole(entry, short):
            lost.append(entry.name)
        elif any(
            part.numel and part.storage in short for part in parts_of(entry.tensor)
        ):
            unproved.append(entry.name)
    notices = []
    if lost:
        verb = be_verb(lost)
        text = (
            f"{counted_noun(len(lost), 'tensor')} {verb} not whole: {_names_text(lost)}"
        )
        notices.append(Notice("incomplete", text, tuple(lost)))
    if unproved:
        verb = "lies" if len(unproved) == 1 else "lie"
        text = (
            f"{counted_noun(len(unproved), 'tensor')} {verb} in a storage that is cut "
            f"off, and no checksum proves the bytes: {_names_text(unproved)}"
        )
        notices.append(Notice("damaged-file", text, tuple(unproved)))
    return notices


def _names_text(names: Sequence[str]) -> str:
    return and_more([show(name, 80) for name in names], _LISTED)


def _is_whole(entry: Entry, short: Mapping[Storage, int]) -> bool:
    parts = (part for part in parts_of(entry.tensor) if part.storage in short)
    return all(part.extent[1] <= short[part.storage] for part in parts)
