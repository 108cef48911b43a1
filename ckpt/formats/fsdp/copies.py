"""A tensor of a run of several ranks as a whole, and what of it lies on more than one rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.dtypes import contiguous
from ckpt.errors import UnreadableError
from ckpt.formats.dcp.coverage import fault, grid_of
from ckpt.rows import NamedTuple
from ckpt.tensors import Box, Boxes, Composite, Storage, TensorRef, sources_of, tensor_ref
from ckpt.text import show

_TOO_MANY = 2**63


class Copies(NamedTuple):
    """The same elements on two ranks, which should be equal. `id` is that of the storage of the whole tensor."""

    name: str
    id: str
    ranks: tuple[int, int]
    one: TensorRef
    two: TensorRef

    @property
    def surely_differ(self) -> bool:
        """Whether the checksums that the files record tell them apart."""
        one, two = self.one, self.two
        if one.geometry != two.geometry or None in (one.storage.crc, two.storage.crc):
            return False
        whole = all(ref.extent == (0, ref.storage.nbytes) for ref in (one, two))
        return whole and one.storage.crc != two.storage.crc

    @property
    def text(self) -> str:
        return f"{show(self.name, 80)} differs between rank {self.ranks[0]} and rank {self.ranks[1]}"


class Whole(NamedTuple):
    """A tensor of the run: the whole of it, None for one of several parts, its copies, and what it lacks."""

    ref: TensorRef | None
    copies: list[Copies]
    hole: str | None


def copies_of(name: str, id: str, refs: dict[int, TensorRef]) -> list[Copies]:
    (first, one), *others = refs.items()
    return [
        Copies(name, id, (first, rank), one, two)
        for rank, two in others
        if None not in (one.storage.place, two.storage.place)
    ]


def joined(name: str, id: str, like: Composite, boxes: Sequence[Box], copies: list[Copies]) -> Whole:
    """The tensor of boxes that the ranks hold. `like` is that of one rank, `id` names the storage of the whole.

    Raises UnreadableError where two boxes share elements, or where the tensor is larger than memory can be.
    """
    what = show(name, 80)
    if like.dtype.nbytes(prod(like.shape)) >= _TOO_MANY:
        raise UnreadableError(f"{what} has more than 2^63 bytes")
    found = fault(like.shape, [(box.offsets, box.sizes) for box in boxes])
    if found is not None and found.kind == "overlap":
        raise UnreadableError(f"two ranks hold {found.where} of {what}")
    problem = f"{what} lacks {found.where}" if found is not None else None
    places = [box.tensor().storage.place for box in boxes]
    sources = tuple(dict.fromkeys(source for place in places for source in sources_of(place)))
    place = Boxes(like.dtype, like.shape, lambda: boxes, sources, problem, grid_of(boxes))
    storage = Storage(id, like.device, like.dtype, place.size, place)
    ref = tensor_ref(storage, like.dtype, like.shape, contiguous(like.shape), 0, like.requires_grad)
    ref = ref._replace(is_parameter=like.is_parameter, is_buffer=like.is_buffer)
    return Whole(ref, copies, problem)
