"""Flat buffers: tensors of one dimension into which others were laid one behind the
other, as FSDP and ZeRO do, with padding at the end and cut over ranks anywhere.

The first elements of each tensor are looked for in the buffer; from there on bytes say
how far it goes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ckpt.ext.layouts.flat import WINDOW, window_keys
from ckpt.ext.layouts.pieces import Loop, Piece
from ckpt.ext.layouts.proof import Leaf, cast_elements, is_proved, read_elements
from ckpt.ext.layouts.search import dtype_of_search
from ckpt.model.dtypes import DType
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_BLOCK = 1 << 20
"""The elements of a buffer that are looked at at once."""
_PLACES = 1 << 20
"""The most places of a buffer at which a tensor may begin: elements that repeat have a
place for each time.
"""
_ALIKE = 16
"""The tensors with the same first elements that are compared."""


def buffers_among(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> list[Leaf]:
    """The tensors that may be buffers of some of the others: of one dimension, and as
    large as a matrix of these.
    """
    matrices = [leaf.ref.numel for leaf in others if len(leaf.shape) > 1]
    if not matrices:
        return []
    least = min(matrices)
    return [leaf for leaf in leaves if len(leaf.shape) == 1 and leaf.ref.numel >= least]


class Run(NamedTuple):
    """Elements of a buffer that follow each other as in a tensor from `leaf_start` on,
    or that are padding of one number.
    """

    start: int
    leaf: Leaf | None
    leaf_start: int
    numel: int
    bits: int = 0
    is_by_order: bool = False
    """Tells that the order of the tensors decided, for all elements are one number."""


class Buffers:
    """The buffers of one side, and the tensors of the other side that may lie in them,
    in the order of their file.

    `are_targets` says that the buffers are on the side of B.
    """

    def __init__(
        self,
        buffers: Sequence[Leaf],
        leaves: Sequence[Leaf],
        *,
        are_targets: bool,
    ) -> None:
        self._buffers = buffers
        self._leaves = leaves
        self._are_targets = are_targets
        self._numbers = {leaf.name: number for number, leaf in enumerate(leaves)}
        self._cut: dict[str, int] = {}
        """The tensors whose last elements did not fit into a buffer, and how many of
        the first ones did.
        """

    def find_runs(self) -> list[tuple[Leaf, list[Run]]]:
        """Each buffer that is all made of tensors and of padding, with its runs.

        Raises UnreadableError.
        """
        # The first elements of all tensors, once for each dtype of the buffers.
        heads = {
            dtype: _Heads(self._leaves, dtype, are_targets=not self._are_targets)
            for dtype in {buffer.dtype for buffer in self._buffers}
        }
        waiting = [
            (buffer, heads[buffer.dtype].places_in(buffer)) for buffer in self._buffers
        ]
        found: list[tuple[Leaf, list[Run]]] = []
        # A buffer that begins inside of a tensor waits for the one in which it begins.
        while True:
            still_waiting = []
            for buffer, places in waiting:
                runs = self._runs_of(buffer, places)
                if runs is None:
                    still_waiting.append((buffer, places))
                else:
                    found.append((buffer, runs))
                    self._note_cut(runs[-1])
            if len(still_waiting) == len(waiting):
                return found
            waiting = still_waiting

    def _note_cut(self, run: Run) -> None:
        """Note the tensor at the end of a buffer, if it goes on in another one."""
        if run.leaf is None:
            return
        end = run.leaf_start + run.numel
        if end < run.leaf.ref.numel:
            self._cut[run.leaf.name] = end
        else:
            self._cut.pop(run.leaf.name, None)

    def _runs_of(self, buffer: Leaf, places: dict[int, list[Leaf]]) -> list[Run] | None:
        """The runs of one buffer, or None where something in it is in no tensor."""
        runs: list[Run] = []
        starts = sorted(places)
        position = 0
        while position < buffer.ref.numel:
            run = self._longest_run(buffer, position, places, runs)
            # Padding stands behind a tensor or at the beginning, and never twice in a
            # row.
            if run is None and (not runs or runs[-1].leaf is not None):
                later = bisect_right(starts, position)
                # It ends where the next tensor may begin, at the latest.
                end = starts[later] if later < len(starts) else buffer.ref.numel
                run = _padding_run(buffer, position, end)
            if run is None:
                return None
            runs.append(run)
            position += run.numel
        return runs if any(run.leaf is not None for run in runs) else None

    def _longest_run(
        self,
        buffer: Leaf,
        position: int,
        places: dict[int, list[Leaf]],
        runs: Sequence[Run],
    ) -> Run | None:
        """The longest run that begins at an element of a buffer."""
        options = [(leaf, 0) for leaf in places.get(position, ())]
        # A buffer is a part of one that was cut over ranks: at its beginning a tensor
        # may go on that another buffer has the first elements of.
        if not position:
            for name, start in self._cut.items():
                options.append((self._leaves[self._numbers[name]], start))
        # The next tensor of the file, for one of equal elements is in no table.
        last = next((run.leaf for run in reversed(runs) if run.leaf), None)
        if last is not None and self._numbers[last.name] + 1 < len(self._leaves):
            options.append((self._leaves[self._numbers[last.name] + 1], 0))
        proved: list[Run] = []
        for leaf, start in options:
            count = min(leaf.ref.numel - start, buffer.ref.numel - position)
            run = Run(position, leaf, start, count)
            if count and self._is_proved(run, buffer, leaf):
                proved.append(run)
        if not proved:
            return None
        longest = max(proved, key=_length_of)
        end = position + longest.numel
        # Elements that are all one number fit anywhere: that is noted beside the rule.
        is_one_number = _equal_count(buffer, position, end) == longest.numel
        return longest._replace(is_by_order=is_one_number)

    def _is_proved(self, run: Run, buffer: Leaf, leaf: Leaf) -> bool:
        """Tell whether the elements of a run are the same in both."""
        piece = self.piece_of(run, buffer)
        target, source = (buffer, leaf) if self._are_targets else (leaf, buffer)
        if dtype_of_search(source.dtype, target.dtype) is None:
            return False
        return is_proved(piece, target, {source.name: source})

    def piece_of(self, run: Run, buffer: Leaf) -> Piece:
        """A run as a piece of the side of B."""
        loops = (Loop(run.numel, 1, 1),)
        if run.leaf is None:
            flat = (Loop(run.numel, 1, 0),)
            return Piece(None, run.start, 0, flat, run.bits).normalized()
        if self._are_targets:
            place = run.start, run.leaf_start
            return Piece(run.leaf.name, *place, loops).normalized()
        return Piece(buffer.name, run.leaf_start, run.start, loops).normalized()


class _Heads:
    """The first elements of tensors, found in a buffer of a dtype."""

    def __init__(
        self,
        leaves: Sequence[Leaf],
        dtype: DType,
        *,
        are_targets: bool,
    ) -> None:
        import numpy as np

        keys: list[int] = []
        self._leaves: list[Leaf] = []
        for leaf in leaves:
            pair = (dtype, leaf.dtype) if are_targets else (leaf.dtype, dtype)
            # Of a buffer of A another dtype would have to be read for each tensor of B.
            is_cast = leaf.dtype != dtype
            if leaf.ref.numel < WINDOW or dtype_of_search(*pair) is None:
                continue
            if is_cast and are_targets:
                continue
            raw = read_elements(leaf.flat, 0, ((WINDOW, 1),))
            if is_cast:
                raw = cast_elements(raw, leaf.dtype, dtype)
            # A tensor that begins with equal elements would be found everywhere.
            if not bool((raw == raw[0]).all()):
                keys.append(int(window_keys(raw)[0]))
                self._leaves.append(leaf)
        self._keys = np.array(keys, np.uint64)

    def places_in(self, buffer: Leaf) -> dict[int, list[Leaf]]:
        """The tensors whose first elements stand in a buffer, by where they do; none
        where they stand nearly everywhere.
        """
        import numpy as np

        by_key: dict[int, list[Leaf]] = {}
        for key, leaf in zip(self._keys.tolist(), self._leaves, strict=True):
            by_key.setdefault(key, []).append(leaf)
        places: dict[int, list[Leaf]] = {}
        for start, bits in _blocks_of(buffer):
            keys = window_keys(bits)
            found = np.flatnonzero(np.isin(keys, self._keys))
            # So many places are no evidence, and each would be compared.
            if len(places) + len(found) > _PLACES:
                return {}
            for place in found.tolist():
                places[start + place] = by_key[int(keys[place])][:_ALIKE]
        return places


def _blocks_of(buffer: Leaf) -> Iterator[tuple[int, Array]]:
    """The raw elements of a buffer in blocks, each with the first elements of the next
    one, so that no window is cut.
    """
    for start in range(0, buffer.ref.numel - WINDOW + 1, _BLOCK):
        count = min(_BLOCK + WINDOW - 1, buffer.ref.numel - start)
        yield start, read_elements(buffer.flat, start, ((count, 1),))


def _length_of(run: Run) -> tuple[int, bool]:
    """The order of runs: the longest one, and of several the one that ends a tensor."""
    leaf = run.leaf
    ends = leaf is not None and run.leaf_start + run.numel == leaf.ref.numel
    return run.numel, ends


def _padding_run(buffer: Leaf, start: int, end: int) -> Run | None:
    """The elements of a buffer that are one number, up to some place, or None for a few
    elements that are not 0: these are no padding.
    """
    first = read_elements(buffer.flat, start, ((1, 1),))
    bits = int.from_bytes(first.tobytes(), "little")
    count = _equal_count(buffer, start, end)
    # A few zeros are padding too; a few equal numbers beside 0 may be values.
    if bits and count < WINDOW:
        return None
    return Run(start, None, 0, count, bits)


def _equal_count(buffer: Leaf, start: int, end: int) -> int:
    """The number of elements from one place on that are the same, up to another one."""
    import numpy as np

    first = read_elements(buffer.flat, start, ((1, 1),))
    for low in range(start, end, _BLOCK):
        count = min(_BLOCK, end - low)
        bits = read_elements(buffer.flat, low, ((count, 1),))
        others = np.flatnonzero(bits != first[0])
        if len(others):
            return low + int(others[0]) - start
    return end - start
