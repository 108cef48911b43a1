"""The whole search: how each tensor of B is made of A, what decided it, and what of A is used nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ckpt.bytes.executor import Executor, Failed, Local, Task, run_each
from ckpt.ext.layouts.fibres import Fibres, fibres_of
from ckpt.ext.layouts.flat import LEAVES, bias_beside, joined_runs, windows_of
from ckpt.ext.layouts.neighbours import Evidence, form_of, is_of_other_rank, name_likeness
from ckpt.ext.layouts.pieces import (
    Loop,
    Piece,
    Repeat,
    cover_of,
    flat_steps,
    is_along,
    loops_in_axes,
    whole_piece,
)
from ckpt.ext.layouts.proof import Leaf, is_proved, read_elements
from ckpt.ext.layouts.scaled import formulas_between
from ckpt.ext.layouts.search import (
    Found,
    Index,
    Search,
    dims_without,
    dtype_of_search,
    index_of,
)
from ckpt.model.dtypes import DType
from ckpt.model.rows import NamedTuple

VALUES, NEIGHBOURS, ASSUMED, CONSTANT = "values", "neighbours", "assumed", "constant"
"""The grounds on which a tensor is made so: its values, the names of its neighbours, the user, or that it is one number."""
_WAYS = 8
"""The ways that are named where several fit."""


class Made(NamedTuple):
    """A tensor of B: the pieces that it is made of and what decided them, or why it has none.

    `ways` are the tensors of A that fit where nothing decides between them.
    """

    name: str
    pieces: tuple[Piece, ...] | None
    by: str = VALUES
    why: str = ""
    ways: tuple[str, ...] = ()


class Unused(NamedTuple):
    """A tensor of A of which elements are used nowhere, and how many. `copy_of` is one that is used and has the same bytes."""

    name: str
    elements: int
    of: int
    copy_of: str | None = None
    constant: int | None = None
    """The bits of each element that is used nowhere, if they are all one number."""
    repeats: tuple[Repeat, ...] = ()
    """The elements that are used nowhere, as slices that are used."""

    @property
    def is_padding(self) -> bool:
        """Tell whether what is used nowhere is padding beside slices that are used.

        Padding is slices of one number, or slices that are there a second time.
        """
        is_known = self.constant is not None or bool(self.repeats)
        return is_known and self.elements < self.of


class Findings(NamedTuple):
    """The tensors of B in order, with their pieces of A, and the tensors of A with elements that are used nowhere."""

    made: tuple[Made, ...]
    unused: tuple[Unused, ...]


Progress = Callable[[int], None]


def find_layout(
    sources: Sequence[Leaf],
    targets: Sequence[Leaf],
    assumed: Mapping[str, str] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Find how each of the `targets` is made of the `sources`, and prove it byte by byte.

    `assumed` names the tensor of A for tensors of B for which two ways fit. Raises UnreadableError.
    """
    return _Finder(sources, targets, assumed or {}, executor or Local(), progress).findings()


class _Finder:
    def __init__(
        self,
        sources: Sequence[Leaf],
        targets: Sequence[Leaf],
        assumed: Mapping[str, str],
        executor: Executor,
        progress: Progress | None,
    ) -> None:
        self._sources = sources
        self._targets = targets
        self._assumed = assumed
        self._by_name = {leaf.name: leaf for leaf in sources}
        self._numbers = {leaf.name: number for number, leaf in enumerate(sources)}
        self._targets_by_name = {leaf.name: leaf for leaf in targets}
        self._search = Search(sources, name_likeness)
        self._made: dict[str, Made] = {}
        self._why: dict[str, str] = {}
        self._constants: dict[DType, dict[tuple[int, tuple[int, ...]], list[str]]] = {}
        """The constant tensors of A by their number and their shape, read as each dtype."""
        self._ambiguous: dict[str, Found] = {}
        self._evidence = Evidence([leaf.name for leaf in targets], [leaf.name for leaf in sources])
        self._read(executor, progress)

    def _read(self, executor: Executor, progress: Progress | None) -> None:
        """Make the fingerprints of all tensors: of B as they are, of A as each dtype of B that they may have become."""
        dtypes = list(dict.fromkeys([leaf.dtype for leaf in self._targets]))
        rows: list[tuple[int, DType]] = []
        for number, leaf in enumerate(self._sources):
            rows += [(number, to) for to in dtypes if dtype_of_search(leaf.dtype, to) is not None]
        tasks = [
            Task(fibres_of, (self._sources[number].ref, to), self._sources[number].ref.nbytes)
            for number, to in rows
        ]
        own = [Task(fibres_of, (leaf.ref, leaf.dtype), leaf.ref.nbytes) for leaf in self._targets]
        results = run_each(executor, [*tasks, *own], progress)
        self._of_sources: dict[DType, dict[int, Fibres]] = {to: {} for to in dtypes}
        for (number, to), result in zip(rows, results, strict=False):
            if isinstance(result, Failed):
                raise_unreadable(self._sources[number].name, result)
            else:
                self._of_sources[to][number] = result
        self._of_targets: dict[str, Fibres] = {}
        for leaf, result in zip(self._targets, results[len(rows) :], strict=True):
            if isinstance(result, Failed):
                raise_unreadable(leaf.name, result)
            else:
                self._of_targets[leaf.name] = result

    def findings(self) -> Findings:
        """Search in the order of certainty: whole tensors, slices, flat ones; then what only names decide."""
        for target in self._targets:
            if not target.ref.numel:
                self._made[target.name] = Made(target.name, ())
        self._find_whole()
        self._find_slices()
        self._settle_ambiguous()
        self._find_flat()
        self._find_constants()
        self._find_scaled()
        made = [self._made.get(leaf.name) or self._unmade_target(leaf) for leaf in self._targets]
        return Findings(tuple(made), tuple(self._unused_tensors()))

    def _note_pieces(self, name: str, pieces: Sequence[Piece], by: str = VALUES) -> None:
        """Note how a tensor of B is made."""
        self._made[name] = Made(name, tuple(pieces), by)
        if by == VALUES:
            self._evidence.add(name, [piece.source for piece in pieces if piece.source is not None])

    def _open(self) -> list[Leaf]:
        """The tensors of B that say something and are not made yet."""
        return [
            leaf
            for leaf in self._targets
            if leaf.name not in self._made
            and leaf.name not in self._ambiguous
            and not self._of_targets[leaf.name].is_constant
        ]

    def _find_whole(self) -> None:
        """Find the tensors of B that are all of one tensor of A."""
        indices = {to: index_of(fibres, whole_only=True) for to, fibres in self._of_sources.items()}
        for target in self._open():
            found = self._search.whole(target, self._of_targets[target.name], indices[target.dtype])
            self._take(target, found)

    def _take(self, target: Leaf, found: Found | None) -> None:
        """Note what was found of a tensor: how it is made, or that several ways fit."""
        if found is None:
            return
        if found.others:
            self._ambiguous[target.name] = found
        else:
            self._note_pieces(target.name, found.pieces)

    def _find_slices(self) -> None:
        """Find the tensors of B that are put together from slices: of what is not used yet, then of all of A."""
        used = self._used_names()
        fresh: dict[DType, Index] = {}
        every: dict[DType, Index] = {}
        for target in self._open():
            if target.dtype not in fresh:
                fibres = self._of_sources[target.dtype]
                unused = {
                    number: row for number, row in fibres.items() if self._sources[number].name not in used
                }
                fresh[target.dtype] = index_of(unused)
            fibres_here = self._of_targets[target.name]
            found = self._search.whole(target, fibres_here, fresh[target.dtype])
            why = ""
            if found is None:
                found, why = self._search.assembled(target, fibres_here, fresh[target.dtype])
            if found is None and used:
                if target.dtype not in every:
                    every[target.dtype] = index_of(self._of_sources[target.dtype])
                found, second = self._search.assembled(target, fibres_here, every[target.dtype])
                why = second or why
            self._take(target, found)
            if found is None and why:
                self._why[target.name] = why

    def _used_names(self) -> set[str]:
        """The tensors of A of which something is used."""
        return {
            piece.source
            for row in self._made.values()
            for piece in row.pieces or ()
            if piece.source is not None
        }

    def _settle_ambiguous(self) -> None:
        """Decide between tensors of A with the same bytes, by the user or by names; else the first one stands for all.

        That is safe: those that are not used are copies, which must be equal wherever the recipe is applied.
        """
        for name, found in self._ambiguous.items():
            ways = {way[0].source or "": way for way in (found.pieces, *found.others)}
            chosen = self._assumed.get(name)
            if chosen not in ways:
                chosen = self._evidence.decided(name, list(ways)) or next(iter(ways))
            self._note_pieces(name, ways[chosen])
        self._ambiguous.clear()

    def _find_flat(self) -> None:
        """Find tensors of one dimension: as the weight beside them, or in runs of flat tensors."""
        windows: dict[DType, object] = {}
        flat = [leaf for leaf in self._sources if len(leaf.shape) == 1]
        for target in self._open():
            beside = self._bias_pieces(target)
            if beside is not None:
                self._note_pieces(target.name, beside)
                continue
            if len(_wide_dims(target.shape)) > 1:
                continue
            if target.dtype not in windows:
                windows[target.dtype] = windows_of(flat, target)
            pieces = joined_runs(target, windows[target.dtype])  # type: ignore[arg-type]
            if pieces is not None and all(is_proved(piece, target, self._by_name) for piece in pieces):
                self._note_pieces(target.name, pieces)

    def _bias_pieces(self, target: Leaf) -> list[Piece] | None:
        """The pieces of a bias, which follow the weight beside it."""
        for old, new in LEAVES:
            if not target.name.endswith(new):
                continue
            weight = self._targets_by_name.get(target.name.removesuffix(new) + old)
            made = None if weight is None else self._made.get(weight.name)
            if weight is None or made is None or not made.pieces:
                continue
            pieces = bias_beside(target, weight, made.pieces, self._by_name)
            if pieces is not None:
                return pieces
        return None

    def _find_constants(self) -> None:
        """Decide what constant tensors are made of: by the user, by the weight beside them, by names; else they are a number."""
        fitting: dict[str, list[str]] = {}
        for target in self._targets:
            fibres = self._of_targets[target.name]
            if target.name in self._made or not fibres.is_constant:
                continue
            beside = self._bias_pieces(target)
            ways = [] if beside is not None else self._constant_ways(target)
            assumed = self._assumed.get(target.name)
            if beside is not None:
                self._note_pieces(target.name, beside, NEIGHBOURS)
            elif assumed in ways:
                self._note_pieces(target.name, [whole_piece(assumed or "", target.ref.numel)], ASSUMED)
            elif ways:
                fitting[target.name] = ways
            else:
                loops = (Loop(target.ref.numel, 1, 0),)
                self._note_pieces(
                    target.name, [Piece(None, 0, 0, loops, fibres.first).normalized()], CONSTANT
                )
        decisions = self._evidence.decisions(fitting)
        for name, source in decisions.chosen.items():
            piece = whole_piece(source, self._targets_by_name[name].ref.numel)
            self._note_pieces(name, [piece], NEIGHBOURS)
        for name, still in decisions.ways.items():
            why = "all its elements are one number, and names do not say whose"
            self._made[name] = Made(name, None, NEIGHBOURS, why, still[:_WAYS])

    def _find_scaled(self) -> None:
        """Find tensors that are one of A in the same order, scaled by one number or moved by 1."""
        used = self._used_names()
        free: dict[tuple[DType, tuple[int, ...]], list[Leaf]] = {}
        for leaf in self._sources:
            if leaf.name not in used and leaf.ref.numel > 1:
                free.setdefault((leaf.dtype, _wide_dims(leaf.shape)), []).append(leaf)
        proved: dict[str, list[Piece]] = {}
        for target in self._open():
            near = free.get((target.dtype, _wide_dims(target.shape)), [])
            for source in sorted(near, key=lambda leaf: -name_likeness(target.name, leaf.name))[:_SCALED]:
                pieces = self._scaled_pieces(target, source)
                if pieces:
                    proved[target.name] = pieces
                    near.remove(source)
                    break
        # Few elements do not tell a division from a multiplication: what holds in all layers does.
        shared: dict[str, set[str]] = {}
        for name, pieces in proved.items():
            own = {piece.formula for piece in pieces}
            text = form_of(name).text
            shared[text] = shared.get(text, own) & own
        for name, pieces in proved.items():
            common = shared[form_of(name).text]
            self._note_pieces(name, [next((piece for piece in pieces if piece.formula in common), pieces[0])])

    def _scaled_pieces(self, target: Leaf, source: Leaf) -> list[Piece]:
        """The proved pieces that are all of a tensor after a formula, one for each formula that holds."""
        whole = whole_piece(source.name, target.ref.numel)
        pieces = [whole._replace(formula=formula) for formula in formulas_between(target, source)]
        return [piece for piece in pieces if is_proved(piece, target, self._by_name)]

    def _constant_ways(self, target: Leaf) -> list[str]:
        """The constant tensors of A with the number and the size of a constant tensor of B."""
        table = self._constants.get(target.dtype)
        if table is None:
            table = self._constants[target.dtype] = {}
            for number, row in self._of_sources[target.dtype].items():
                if row.is_constant:
                    table.setdefault((row.first, _wide_dims(row.shape)), []).append(
                        self._sources[number].name
                    )
        return table.get((self._of_targets[target.name].first, _wide_dims(target.shape)), [])

    def _unmade_target(self, target: Leaf) -> Made:
        """A tensor that is made of nothing in A, and why."""
        why = self._why.get(target.name) or "no such values in A"
        return Made(target.name, None, why=why)

    def _unused_tensors(self) -> list[Unused]:
        """The tensors of A with elements that are used nowhere."""
        pieces: dict[str, list[Piece]] = {}
        whole: set[str] = set()
        for row in self._made.values():
            for piece in row.pieces or ():
                if piece.source is None:
                    continue
                if piece.numel == self._by_name[piece.source].ref.numel:
                    whole.add(piece.source)
                else:
                    pieces.setdefault(piece.source, []).append(piece)
        rows: list[Unused] = []
        self._by_total: dict[tuple[int, tuple[int, ...], DType], list[str]] = {}
        for leaf in self._sources:
            fibres = self._fibres_of_source(leaf)
            if fibres is not None:
                self._by_total.setdefault((fibres.total, fibres.shape, leaf.dtype), []).append(leaf.name)
        for leaf in self._sources:
            if leaf.name in whole or not leaf.ref.numel:
                continue
            own = [piece.turned(leaf.name) for piece in pieces.get(leaf.name, ())]
            missing = cover_of(own, leaf.ref.numel).missing
            if missing:
                fibres = self._fibres_of_source(leaf)
                constant = _padding_bits(leaf, own, missing) if own else None
                if fibres is not None and fibres.is_constant and not own:
                    constant = int.from_bytes(read_elements(leaf.flat, 0, ((1, 1),)).tobytes(), "little")
                copy = self._copy_of(leaf, whole)
                is_apart = bool(own) and constant is None
                repeats = self._repeated_slices(leaf, own, missing) if is_apart else ()
                counts = missing, leaf.ref.numel
                rows.append(Unused(leaf.name, *counts, copy, constant, repeats))
        return rows

    def _repeated_slices(self, leaf: Leaf, used: Sequence[Piece], missing: int) -> tuple[Repeat, ...]:
        """The slices that pieces leave of a tensor as slices that they use, proved.

        There are none where the slices that are left do not follow each other, or where
        one of them is no slice that is used.
        """
        unused = _unused_slices(leaf, used, missing)
        fibres = self._fibres_of_source(leaf)
        if unused is None or fibres is None:
            return ()
        sums = fibres.families.get((unused.axis,))
        left = unused.indices
        if sums is None or left[-1] - left[0] + 1 != len(left):
            return ()
        known: dict[int, int] = {}
        for index, total in enumerate(sums.tolist()):
            if not left[0] <= index <= left[-1]:
                known.setdefault(total, index)
        others = [known.get(int(sums[index]), -1) for index in left]
        if min(others) < 0:
            return ()
        repeats: list[Repeat] = []
        first = 0
        while first < len(others):
            last = first + 1
            step = others[last] - others[first] if last < len(others) else 0
            while last < len(others) and others[last] - others[last - 1] == step:
                last += 1
            to = left[0] + first
            repeats.append(Repeat(unused.axis, to, others[first], last - first, step))
            first = last
        pieces = [repeat.piece(leaf.name, leaf.shape) for repeat in repeats]
        return tuple(repeats) if self._search.is_made(leaf, pieces) else ()

    def _fibres_of_source(self, leaf: Leaf) -> Fibres | None:
        """The sums of a tensor of A, read as some dtype."""
        number = self._numbers[leaf.name]
        return next((rows[number] for rows in self._of_sources.values() if number in rows), None)

    def _copy_of(self, leaf: Leaf, whole: set[str]) -> str | None:
        """A used tensor of A with the same bytes as one that is used nowhere."""
        own = self._fibres_of_source(leaf)
        if own is None:
            return None
        for name in self._by_total.get((own.total, own.shape, leaf.dtype), ()):
            # Constants are equal by chance, unless they are what each rank has.
            may_be = not own.is_constant or is_of_other_rank(leaf.name, name)
            if may_be and name in whole and is_proved(whole_piece(name, leaf.ref.numel), leaf, self._by_name):
                return name
        return None


_SCALED = 64
"""The tensors of A that are looked at for a scale, the most alike by name."""
_PADDING = 1 << 16
"""The most slices that are looked at as padding."""


def _padding_bits(leaf: Leaf, used: Sequence[Piece], missing: int) -> int | None:
    """The bits of each element that pieces of a tensor leave.

    It is None where they leave no whole slices, or slices of several numbers.
    """
    unused = _unused_slices(leaf, used, missing)
    if unused is None:
        return None
    inner = tuple(dims_without(leaf.shape, (unused.axis,)))
    step = flat_steps(leaf.shape)[unused.axis]
    first = read_elements(leaf.flat, unused.indices[0] * step, ((1, 1),))
    for index in unused.indices:
        if not bool((read_elements(leaf.flat, index * step, inner) == first).all()):
            return None
    return int.from_bytes(first.tobytes(), "little")


class _Slices(NamedTuple):
    """Slices of a tensor along one axis."""

    axis: int
    indices: list[int]


def _unused_slices(leaf: Leaf, used: Sequence[Piece], missing: int) -> _Slices | None:
    """The slices along one axis that pieces leave of a tensor.

    It is None where they leave other elements than all of some slices.
    """
    import numpy as np

    steps = flat_steps(leaf.shape)
    for axis, size in enumerate(leaf.shape):
        inner = leaf.ref.numel // size
        if missing % inner or missing // inner > _PADDING:
            continue
        is_used = np.zeros(size, bool)
        for piece in used:
            indices = np.array(piece.to // steps[axis] % size)
            for loop in loops_in_axes(piece.loops, steps):
                if is_along(loop, axis, leaf.shape):
                    step = loop.to // steps[axis]
                    indices = indices[..., None] + np.arange(loop.size) * step
            is_used[indices.reshape(-1) % size] = True
        left: list[int] = np.flatnonzero(~is_used).tolist()
        if left and len(left) == missing // inner:
            return _Slices(axis, left)
    return None


def _wide_dims(shape: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of a shape with more than one index."""
    return tuple([size for size in shape if size > 1])


def raise_unreadable(name: str, failed: Failed) -> None:
    """Raise UnreadableError for a tensor that could not be read."""
    from ckpt.model.errors import UnreadableError
    from ckpt.model.text import show

    raise UnreadableError(f"{show(name, 80)}: {failed.problem}")
