"""The pieces of a patched place that its bytes come from. Nothing here reads them."""

from __future__ import annotations

from bisect import bisect

from ckpt.tensors import Patched, Place, Range


def size_of(place: Place) -> int:
    """The number of bytes of a place, inflated."""
    return place.inflated if isinstance(place, Range) and place.inflated is not None else place.size


def shown(place: Patched, start: int, end: int) -> list[tuple[Place, int, int]]:
    """(place, its first byte, bytes) of what makes bytes `start` to `end` of a patched place, in order."""
    # The spans that no piece covers yet. The last piece comes first, because later pieces cover earlier ones.
    free = [(start, end)]
    parts: list[tuple[int, int, int, Place]] = []
    for first, piece in reversed(place.pieces):
        last = first + size_of(piece)
        rest: list[tuple[int, int]] = []
        for low, high in free:
            if last <= low or high <= first:
                rest.append((low, high))
                continue
            parts.append((max(low, first), min(high, last), first, piece))
            rest += [part for part in ((low, first), (last, high)) if part[0] < part[1]]
        free = rest
    if place.base is not None:
        parts += [(low, high, 0, place.base) for low, high in free]
    return [
        (piece, low - first, high - low) for low, high, first, piece in sorted(parts, key=lambda row: row[0])
    ]


def between(place: Place, first: int, last: int) -> Place:
    """Bytes `first` to `last` of a range, or of ranges that follow each other: one range, or those that hold them."""
    if isinstance(place, Range):
        return Range(place.source, place.offset + first, last - first, recorded=place.recorded)
    assert isinstance(place, Patched) and isinstance(place.pieces, tuple)
    ranges = place.pieces
    index = bisect(ranges, first, key=lambda piece: piece[0]) - 1
    parts: list[tuple[int, Place]] = []
    while index < len(ranges) and ranges[index][0] < last:
        begin, piece = ranges[index]
        assert isinstance(piece, Range)
        low, high = max(first, begin), min(last, begin + piece.size)
        part = piece._replace(offset=piece.offset + low - begin, size=high - low)
        parts.append((low - first, part))
        index += 1
    return parts[0][1] if len(parts) == 1 else Patched(None, last - first, parts)
