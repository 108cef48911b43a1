"""Storages of which bytes are missing, as in a file that is cut off: the bytes that are there, and the tensors that are not whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckpt.checkpoint import Entry, Notice
from ckpt.dtypes import UINT8
from ckpt.tensors import Boxes, Patched, Place, Range, Storage, parts_of
from ckpt.text import and_more, plural, show

_LISTED = 5


def hole(nbytes: int, why: str, there: Range | None = None) -> Place:
    """The place of a storage of `nbytes` bytes, of which only the first are `there`. Reading others raises UnreadableError."""
    missing = Boxes(UINT8, (nbytes,), list, (), why)
    return missing if there is None or not there.size else Patched(missing, nbytes, [(0, there)])


def lost_notices(entries: Iterable[Entry], short: Mapping[Storage, int]) -> list[Notice]:
    """Return the notice about tensors that need more than the first bytes that are there of each `short` storage.

    There is none where all tensors are whole.
    """
    names = [entry.name for entry in entries if not _is_whole(entry, short)] if short else []
    if not names:
        return []
    listed = and_more([show(name, 80) for name in names], _LISTED)
    verb = "is" if len(names) == 1 else "are"
    return [Notice("incomplete", f"{plural(len(names), 'tensor')} {verb} not whole: {listed}", tuple(names))]


def _is_whole(entry: Entry, short: Mapping[Storage, int]) -> bool:
    parts = (part for part in parts_of(entry.tensor) if part.storage in short)
    return all(part.extent[1] <= short[part.storage] for part in parts)
