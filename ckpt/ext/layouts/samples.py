"""A few elements of each tensor, and the first layers of a model: where to look first.

A sample says which tensors may be equal and which may be one number. It proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpt.ext.layouts.proof import Leaf, cast_elements, read_elements
from ckpt.model.dtypes import DType

COUNT = 32
"""The elements of a sample, which lie in the middle of a tensor."""
FIRST = 2
"""The first layers that are looked at: two show what moves from one to the next."""
ONE = 1
"""The sample of elements that are all one number."""
_LAYER = re.compile(r"(?:^|[./])(\d{1,9})(?=[./]|$)")
"""A number that is a part of a name by itself."""


def sample_of(leaf: Leaf, dtype: DType) -> int | None:
    """A number for some elements of a tensor read as a dtype: ONE if they are all
    equal.

    It is None for a tensor of which the middle costs as much as the whole: one on
    another machine, or one that comes in order only. Raises UnreadableError.
    """
    place = leaf.storage.place
    if place is None or not place.can_seek or not leaf.ref.numel:
        return None
    # Behind a URL each sample would be a request.
    if any(source.far is not None for source in place.list_sources()):
        return None
    count = min(COUNT, leaf.ref.numel)
    first = (leaf.ref.numel - count) // 2
    raw = read_elements(leaf.flat, first, ((count, 1),))
    if leaf.dtype != dtype:
        raw = cast_elements(raw, leaf.dtype, dtype)
    data = raw.tobytes()
    width = len(data) // count
    return ONE if data == data[:width] * count else hash(data)


def first_layers(leaves: Iterable[Leaf]) -> list[Leaf]:
    """The tensors of the first layers of each kind, and all tensors of no layer."""
    groups: dict[str, list[tuple[int, Leaf]]] = {}
    chosen: list[Leaf] = []
    for leaf in leaves:
        match = _LAYER.search(leaf.name)
        if match is None:
            chosen.append(leaf)
            continue
        kind = f"{leaf.name[: match.start(1)]}#{leaf.name[match.end(1) :]}"
        groups.setdefault(kind, []).append((int(match[1]), leaf))
    for rows in groups.values():
        # By number, and not 0 and 1: some models count from 1, or skip a kind of layer.
        first = sorted({number for number, _ in rows})[:FIRST]
        chosen += [leaf for number, leaf in rows if number in first]
    return chosen
