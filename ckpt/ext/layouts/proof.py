"""Reading both sides of a piece, and comparing them byte by byte: nothing else proves a
rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements import cast
from ckpt.elements.blocks import is_dense, same_ranges
from ckpt.elements.computed import place_of
from ckpt.elements.fill import fill_array
from ckpt.ext.layouts.fibres import raw_kind
from ckpt.ext.layouts.formulas import computed_elements
from ckpt.ext.layouts.pieces import Loop, Piece
from ckpt.model.dtypes import DType
from ckpt.model.places import Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

STEP = 24 << 20
"""Bytes of a piece that are compared at once: whole matrices, so that those in another
order are read from first to last.
"""


class Leaf(NamedTuple):
    """A dense tensor of one side by its name."""

    name: str
    ref: TensorRef
    storage: Storage
    """A storage that has its elements in the order of its shape, from `first` on."""
    first: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.ref.shape

    @property
    def dtype(self) -> DType:
        """Its dtype."""
        return self.ref.dtype

    @property
    def flat(self) -> TensorRef:
        """Its elements in the order of its shape, as one dimension."""
        return tensor_ref(self.storage, self.dtype, (self.ref.numel,), (1,), self.first)


def leaf_of(name: str, ref: TensorRef) -> Leaf:
    """A tensor by its name, and its elements in one dimension."""
    # Bits of conj and neg change what the elements are: such tensors are made first.
    if is_dense(ref) and not ref.conj and not ref.neg:
        return Leaf(name, ref, ref.storage, ref.offset)
    storage = Storage("", ref.device, ref.dtype, ref.nbytes, place_of(ref))
    return Leaf(name, ref, storage, 0)


def strided_view(
    flat: TensorRef,
    first: int,
    loops: tuple[tuple[int, int], ...],
) -> TensorRef:
    """Elements of a flat tensor as a view: (size, step) of each dimension, all steps at
    least 0.
    """
    sizes = tuple([size for size, _ in loops])
    steps = tuple([step for _, step in loops])
    return tensor_ref(flat.storage, flat.dtype, sizes, steps, flat.offset + first)


def read_elements(
    flat: TensorRef,
    first: int,
    loops: tuple[tuple[int, int], ...],
) -> Array:
    """Elements of a flat tensor as raw elements of the shape of the loops, (size, step)
    each. Steps may be negative.
    """
    import numpy as np

    sizes = [size for size, _ in loops]
    out = np.empty(sizes, raw_kind(flat.dtype.bits // 8))
    # Views have no negative steps: such dimensions are read forwards and turned.
    flips = tuple([slice(None, None, -1 if step < 0 else 1) for _, step in loops])
    start = first + sum([(size - 1) * step for size, step in loops if step < 0])
    dims = tuple([(size, abs(step)) for size, step in loops])
    view = strided_view(flat, start, dims)
    fill_array(view, out[flips] if loops else out)
    return out


def blocks_of(
    loops: tuple[Loop, ...], width: int
) -> Iterator[tuple[int, int, tuple[Loop, ...]]]:
    """The loops of a piece in blocks that are read at once: where each begins on both
    sides, and its loops.

    Elements have `width` bytes.
    """
    most = max(1, STEP // width)
    # The innermost loops that fit into a block are read together; the next one is cut.
    level = 0
    while level < len(loops) and prod([loop.size for loop in loops[level:]]) > most:
        level += 1
    if not level:
        yield 0, 0, loops
        return
    cut = loops[level - 1]
    inner = loops[level:]
    count = max(1, most // prod([loop.size for loop in inner]))
    for index in product(*[range(loop.size) for loop in loops[: level - 1]]):
        to = sum([number * loop.to for number, loop in zip(index, loops, strict=False)])
        at = sum([number * loop.at for number, loop in zip(index, loops, strict=False)])
        for low in range(0, cut.size, count):
            size = min(count, cut.size - low)
            block = (Loop(size, cut.to, cut.at), *inner)
            yield to + low * cut.to, at + low * cut.at, block


def is_proved(piece: Piece, target: Leaf, sources: Mapping[str, Leaf]) -> bool:
    """Tell whether the elements of a piece are the same on both sides, byte by byte.

    Elements of another dtype of the source are compared after the cast. Raises
    UnreadableError.
    """
    if piece.source is None:
        return _is_filled(piece, target)
    source = sources[piece.source]
    # A proposal may be wrong in any way: a view outside of the file is never made.
    if _fails_bounds(piece, target, source):
        return False
    is_whole = piece.loops == (Loop(target.ref.numel, 1, 1),) and not piece.formula
    if is_whole and target.dtype == source.dtype:
        ours = place_of(target.flat)
        theirs = place_of(strided_view(source.flat, piece.at, ((piece.numel, 1),)))
        # Two ranges of files need no arrays: they are compared in place.
        if isinstance(ours, Range) and isinstance(theirs, Range):
            return same_ranges(
                ours.source,
                ours.offset,
                theirs.source,
                theirs.offset,
                target.ref.nbytes,
            )
    width = max(source.dtype.bits, target.dtype.bits) // 8
    for to, at, loops in blocks_of(piece.loops, width):
        source_dims = tuple([(loop.size, loop.at) for loop in loops])
        target_dims = tuple([(loop.size, loop.to) for loop in loops])
        made = read_elements(source.flat, piece.at + at, source_dims)
        wanted = read_elements(target.flat, piece.to + to, target_dims)
        # The formula counts in the dtype of the source, so it comes before the cast.
        if piece.formula:
            made = computed_elements(made, source.dtype, piece.formula)
        if source.dtype != target.dtype:
            made = cast_elements(made, source.dtype, target.dtype)
        if not bool((made == wanted).all()):
            return False
    return True


def are_proved(
    pieces: Sequence[Piece],
    target: Leaf,
    sources: Mapping[str, Leaf],
) -> bool:
    """Tell whether all pieces of a target are proved. Raises UnreadableError."""
    return all(is_proved(piece, target, sources) for piece in pieces)


def cast_elements(raw: Array, source: DType, to: DType) -> Array:
    """Raw elements in another dtype, rounded to nearest even."""
    import numpy as np

    data, _, _ = cast.cast_and_count(raw.tobytes(), source, to)
    return np.frombuffer(data, raw_kind(to.bits // 8)).reshape(raw.shape)


def _fails_bounds(piece: Piece, target: Leaf, source: Leaf) -> bool:
    """Tell whether a piece takes elements that are not there."""
    last = piece.to + sum([(loop.size - 1) * loop.to for loop in piece.loops])
    # Loops may go backwards in the source, but not in the target.
    lows = piece.at + sum([(loop.size - 1) * min(0, loop.at) for loop in piece.loops])
    highs = piece.at + sum([(loop.size - 1) * max(0, loop.at) for loop in piece.loops])
    if piece.to < 0 or last >= target.ref.numel:
        return True
    return lows < 0 or highs >= source.ref.numel


def _is_filled(piece: Piece, target: Leaf) -> bool:
    """Tell whether all elements of a piece have the bits of its constant."""
    import numpy as np

    width = target.dtype.bits // 8
    constant = np.frombuffer(piece.constant.to_bytes(width, "little"), raw_kind(width))
    for to, _, loops in blocks_of(piece.loops, width):
        dims = tuple([(loop.size, loop.to) for loop in loops])
        wanted = read_elements(target.flat, piece.to + to, dims)
        if not bool((wanted == constant).all()):
            return False
    return True
