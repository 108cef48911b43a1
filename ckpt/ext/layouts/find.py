"""The whole search: how each tensor of B is made of A, what decided it, and what of A
is used nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from ckpt.bytes.executor import Executor, Failed, Local, Task, run_each
from ckpt.ext.layouts import sums
from ckpt.ext.layouts.fibres import Fibres, fibres_of
from ckpt.ext.layouts.findings import (
    ASSUMED,
    CONSTANT,
    NEIGHBOURS,
    VALUES,
    Findings,
    Made,
)
from ckpt.ext.layouts.flat import LEAVES, bias_beside, joined_runs, windows_of
from ckpt.ext.layouts.formulas import COMPUTED
from ckpt.ext.layouts.leftovers import Leftovers
from ckpt.ext.layouts.neighbours import (
    Evidence,
    form_of,
    name_likeness,
)
from ckpt.ext.layouts.others import proposed_pieces
from ckpt.ext.layouts.pieces import (
    Cover,
    Loop,
    Piece,
    cover_of,
    whole_piece,
)
from ckpt.ext.layouts.proof import Leaf, are_proved, is_proved
from ckpt.ext.layouts.rescaled import rescaled_leaf, shared_formulas
from ckpt.ext.layouts.runs import Buffers, buffers_among
from ckpt.ext.layouts.samples import ONE, first_layers
from ckpt.ext.layouts.scaled import formulas_between, multiples
from ckpt.ext.layouts.search import (
    Found,
    Index,
    Search,
    dtype_of_search,
    index_of,
    isin,
    keys_in,
)
from ckpt.ext.layouts.sums import Progress, Sums, raise_unreadable
from ckpt.model.dtypes import DType

_WAYS = 8
"""The ways that are named where several fit."""

Proposal = tuple[Leaf, tuple[Piece, ...]]
"""A tensor of B, and the pieces that it may be made of."""


def find_layout(
    sources: Sequence[Leaf],
    targets: Sequence[Leaf],
    assumed: Mapping[str, str] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Find how each of the `targets` is made of the `sources`, and prove it byte by
    byte.

    `assumed` names the tensor of A for tensors of B for which two ways fit. Raises
    UnreadableError.
    """
    return _Finder(
        sources,
        targets,
        assumed or {},
        executor or Local(),
        progress,
    ).findings()


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
        """The constant tensors of A by their number and their shape, read as each
        dtype.
        """
        self._ambiguous: dict[str, Found] = {}
        self._evidence = Evidence(
            [leaf.name for leaf in targets], [leaf.name for leaf in sources]
        )
        self._executor = executor
        self._progress = progress
        self._dtypes = list(dict.fromkeys([leaf.dtype for leaf in targets]))
        self._sums = Sums(self._dtypes, executor, progress)

    def _proved(self, proposals: Iterable[Proposal]) -> Iterator[Proposal]:
        """Yield the proposals that bytes prove. Raises UnreadableError."""
        # So many proposals at a time: proofs run in parallel, and few are in memory.
        rest = iter(proposals)
        while some := list(islice(rest, sums.AT_ONCE)):
            tasks: list[Task[bool]] = []
            for target, pieces in some:
                names = {piece.source for piece in pieces if piece.source is not None}
                # A task goes to another process: it takes its own tensors of A alone.
                own = {name: self._by_name[name] for name in names}
                task = Task(are_proved, (pieces, target, own), 2 * target.ref.nbytes)
                tasks.append(task)
            results = run_each(self._executor, tasks, self._progress)
            for (target, pieces), result in zip(some, results, strict=True):
                if isinstance(result, Failed):
                    raise_unreadable(target.name, result)
                elif result:
                    yield target, pieces

    def findings(self) -> Findings:
        """Search in the order of certainty and of cost.

        First comes what values tell; then what they tell after a formula, and what only
        names decide.
        """
        self.find_by_values()
        self._find_runs()
        self._find_flat()
        self._find_constants()
        self._find_scaled()
        if self._find_rescaled():
            # Biases follow the weights beside them, which were just found.
            self._find_flat()
        made = [
            self._made.get(leaf.name) or self._unmade_target(leaf)
            for leaf in self._targets
        ]
        leftovers = Leftovers(self._sources, self._sums)
        return Findings(
            tuple(made), tuple(leftovers.unused_tensors(self._made.values()))
        )

    def find_by_values(self) -> dict[str, Made]:
        """Find what values tell, and return it by the names of B.

        First come equal tensors, then the first layers and what they say of the others;
        then all that is left.
        """
        for target in self._targets:
            if not target.ref.numel:
                self._made[target.name] = Made(target.name, ())
        self._find_equal()
        # The rules of what was found say what follows: until they say nothing more.
        while self._find_first_layers():
            pass
        # Used tensors are looked at last: most tensors of A are used once.
        used = self._used_names()
        fresh = [leaf for leaf in self._sources if leaf.name not in used]
        self._find_among(fresh, self._open())
        if used and self._open():
            self._find_among(self._sources, self._open())
        self._settle_ambiguous()
        return self._made

    def _find_equal(self) -> None:
        """Find the tensors of B that are all of a tensor of A in the same order."""
        # Only tensors of a size that B has are sampled: a sample reads the file.
        sizes = {(leaf.ref.numel, leaf.dtype) for leaf in self._targets}
        equal: dict[tuple[int, DType, int | None], list[Leaf]] = {}
        for leaf in self._sources:
            for to in self._dtypes:
                if (leaf.ref.numel, to) not in sizes:
                    continue
                if dtype_of_search(leaf.dtype, to) is None:
                    continue
                sample = self._sums.read_sample(leaf, to)
                if sample not in (None, ONE):
                    key = leaf.ref.numel, to, sample
                    equal.setdefault(key, []).append(leaf)
        ways: dict[str, list[tuple[Piece, ...]]] = {}
        for target, pieces in self._proved(self._equal_pieces(equal)):
            ways.setdefault(target.name, []).append(pieces)
        for target in self._targets:
            if target.name in ways:
                first, *others = ways[target.name]
                self._take(target, Found(first, tuple(others)))

    def _equal_pieces(
        self, equal: Mapping[tuple[int, DType, int | None], Sequence[Leaf]]
    ) -> Iterator[Proposal]:
        """Yield each target with the tensors of A that have its sample."""
        for target in self._targets:
            sample = self._sums.read_sample(target, target.dtype)
            key = target.ref.numel, target.dtype, sample
            if sample is None:
                continue
            for leaf in equal.get(key, ())[:_EQUAL]:
                yield target, (whole_piece(leaf.name, leaf.ref.numel),)

    def _find_first_layers(self) -> bool:
        """Find the open tensors of the first layers, and what follows for the others.

        Return whether something was found. It is no use where all would be looked at.
        """
        left = self._open()
        used = self._used_names()
        sources = first_layers(
            [leaf for leaf in self._sources if leaf.name not in used]
        )
        targets = first_layers(left)
        if len(targets) == len(left):
            return False
        count = len(self._made)
        self._find_among(sources, targets)
        for target in targets:
            beside = None if target.name in self._made else self._bias_pieces(target)
            if beside is not None and not self._sums.is_constant(target):
                self._note_pieces(target.name, beside)
        # Rules come from values alone: what names decided could be wrong in all layers.
        made = [row for row in self._made.values() if row.by == VALUES]
        proposals = proposed_pieces(
            made,
            self._targets_by_name,
            self._open(),
            self._by_name,
        )
        for target, pieces in self._proved(proposals):
            if target.name not in self._made:
                self._note_pieces(target.name, pieces)
        return len(self._made) > count

    def _find_among(self, sources: Sequence[Leaf], targets: Sequence[Leaf]) -> None:
        """Find tensors of B among tensors of A by their fingerprints.

        First come those that are all of one tensor. Where `sources` are those that are
        used nowhere yet, what they make is no source of slices any more.
        """
        varied = [target for target in targets if not self._sums.is_constant(target)]
        self._sums.read_sums((), varied)
        before = self._used_names()
        is_fresh = not any(leaf.name in before for leaf in sources)
        for dtype in dict.fromkeys([target.dtype for target in varied]):
            own = [target for target in varied if target.dtype == dtype]
            index = self._index_of(sources, own, dtype)
            # The whole tensors first: they are few, and what they use is no source of
            # slices.
            whole = index.part(index.families == 0)
            left: list[Leaf] = []
            for target in own:
                fibres = self._sums.of_target(target)
                found = self._search.whole(target, fibres, whole)
                self._take(target, found)
                if found is None:
                    left.append(target)
            if is_fresh:
                used = [self._numbers[name] for name in self._used_names()]
                index = index.part(~isin(index.owners, used))
            self._find_slices(left, index)

    def _index_of(
        self,
        sources: Sequence[Leaf],
        targets: Sequence[Leaf],
        dtype: DType,
    ) -> Index:
        """The index of those slices of tensors of A that have the sum of one of B.

        Fingerprints of A are made some at a time, for all of them may be large.
        """
        wanted = keys_in([self._sums.of_target(target) for target in targets])
        able = [
            leaf for leaf in sources if dtype_of_search(leaf.dtype, dtype) is not None
        ]
        index = index_of({}, wanted)
        for first in range(0, len(able), sums.AT_ONCE):
            some = able[first : first + sums.AT_ONCE]
            tasks = [
                Task(fibres_of, (leaf.ref, dtype), leaf.ref.nbytes) for leaf in some
            ]
            results = run_each(self._executor, tasks, self._progress)
            rows: dict[int, Fibres] = {}
            for leaf, result in zip(some, results, strict=True):
                if isinstance(result, Failed):
                    raise_unreadable(leaf.name, result)
                else:
                    rows[self._numbers[leaf.name]] = result
            index = index.joined(index_of(rows, wanted))
        return index

    def _find_slices(self, targets: Sequence[Leaf], index: Index) -> None:
        """Find the tensors of B that are a slice, or are put together from slices."""
        if not len(index.keys):
            return
        for target in targets:
            fibres = self._sums.of_target(target)
            found = self._search.whole(target, fibres, index)
            why = ""
            if found is None:
                found, why = self._search.assembled(target, fibres, index)
            self._take(target, found)
            if found is None and why:
                self._why[target.name] = why

    def _note_pieces(
        self,
        name: str,
        pieces: Sequence[Piece],
        by: str = VALUES,
    ) -> None:
        """Note how a tensor of B is made."""
        self._made[name] = Made(name, tuple(pieces), by)
        if by == VALUES:
            self._evidence.add(
                name, [piece.source for piece in pieces if piece.source is not None]
            )

    def _open(self) -> list[Leaf]:
        """The tensors of B that say something and are not made yet."""
        return [
            leaf
            for leaf in self._targets
            if leaf.name not in self._made
            and leaf.name not in self._ambiguous
            and not self._sums.is_constant(leaf)
        ]

    def _take(self, target: Leaf, found: Found | None) -> None:
        """Note what was found of a tensor: how it is made, or that several ways fit."""
        if found is None:
            return
        if found.others:
            self._ambiguous[target.name] = found
        else:
            self._note_pieces(target.name, found.pieces)

    def _used_names(self) -> set[str]:
        """The tensors of A of which something is used."""
        names: set[str] = set()
        for row in self._made.values():
            for piece in row.pieces or ():
                if piece.source is not None:
                    names.add(piece.source)
        return names

    def _settle_ambiguous(self) -> None:
        """Decide between tensors of A with the same bytes, by the user or by names;
        else the first one stands for all.

        That is safe: those that are not used are copies, which must be equal wherever
        the recipe is applied.
        """
        for name, found in self._ambiguous.items():
            ways = {way[0].source or "": way for way in (found.pieces, *found.others)}
            chosen = self._assumed.get(name)
            if chosen not in ways:
                chosen = self._evidence.decided(name, list(ways)) or next(iter(ways))
            self._note_pieces(name, ways[chosen])
        self._ambiguous.clear()

    def _find_runs(self) -> None:
        """Find flat buffers that are made of tensors, and tensors that lie in such.

        Raises UnreadableError.
        """
        used = self._used_names()
        sources = [leaf for leaf in self._sources if leaf.name not in used]
        targets = [leaf for leaf in self._targets if leaf.name not in self._made]
        # Both directions: B may have the buffers, or the tensors that lie in them.
        into = Buffers(buffers_among(targets, sources), sources, are_targets=True)
        for target, runs in into.find_runs():
            by = NEIGHBOURS if any(run.is_by_order for run in runs) else VALUES
            pieces = [into.piece_of(run, target) for run in runs]
            self._note_pieces(target.name, pieces, by)
        out_of = Buffers(buffers_among(sources, targets), targets, are_targets=False)
        parts: dict[str, list[Piece]] = {}
        by_order: set[str] = set()
        for source, runs in out_of.find_runs():
            for run in runs:
                # A run without a tensor is padding.
                if run.leaf is None:
                    continue
                name = run.leaf.name
                parts.setdefault(name, []).append(out_of.piece_of(run, source))
                if run.is_by_order:
                    by_order.add(name)
        for name, pieces in parts.items():
            numel = self._targets_by_name[name].ref.numel
            # A buffer is cut over ranks: a tensor is found only when all its parts are.
            if cover_of(pieces, numel) == Cover(0, 0):
                by = NEIGHBOURS if name in by_order else VALUES
                self._note_pieces(name, pieces, by)

    def _find_flat(self) -> None:
        """Find tensors of one dimension: as the weight beside them, or in runs of flat
        tensors.
        """
        windows: dict[DType, object] = {}
        flat = [leaf for leaf in self._sources if len(leaf.shape) == 1]
        for target in self._open():
            beside = self._bias_pieces(target)
            if beside is not None:
                self._note_pieces(target.name, beside)
                continue
            if len(_wide_dims(target.shape)) > 1:
                continue
            # The windows over all flat tensors of A are dear, and the same for one
            # dtype.
            if target.dtype not in windows:
                windows[target.dtype] = windows_of(flat, target)
            pieces = joined_runs(target, windows[target.dtype])  # type: ignore[arg-type]
            if pieces is not None and all(
                is_proved(piece, target, self._by_name) for piece in pieces
            ):
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
        """Decide what constant tensors are made of: by the user, by the weight beside
        them, by names; else they are a number.
        """
        fitting: dict[str, list[str]] = {}
        # Constants are equal to many tensors: what stands beside them is better
        # evidence.
        for target in self._targets:
            if target.name in self._made or not self._sums.is_constant(target):
                continue
            fibres = self._sums.of_target(target)
            beside = self._bias_pieces(target)
            ways = [] if beside is not None else self._constant_ways(target)
            assumed = self._assumed.get(target.name)
            if beside is not None:
                self._note_pieces(target.name, beside, NEIGHBOURS)
            elif assumed in ways:
                self._note_pieces(
                    target.name,
                    [whole_piece(assumed or "", target.ref.numel)],
                    ASSUMED,
                )
            elif ways:
                fitting[target.name] = ways
            else:
                loops = (Loop(target.ref.numel, 1, 0),)
                piece = Piece(None, 0, 0, loops, fibres.first).normalized()
                self._note_pieces(target.name, [piece], CONSTANT)
        if not fitting:
            # All at once: each decision is evidence for the others.
            return
        decisions = self._evidence.decisions(fitting)
        for name, source in decisions.chosen.items():
            piece = whole_piece(source, self._targets_by_name[name].ref.numel)
            self._note_pieces(name, [piece], NEIGHBOURS)
        for name, still in decisions.ways.items():
            why = "all its elements are one number, and names do not say whose"
            self._made[name] = Made(name, None, NEIGHBOURS, why, still[:_WAYS])

    def _find_scaled(self) -> None:
        """Find tensors that are one of A in the same order, scaled by one number or
        moved by 1.
        """
        used = self._used_names()
        free: dict[tuple[DType, tuple[int, ...]], list[Leaf]] = {}
        for leaf in self._sources:
            if leaf.name not in used and leaf.ref.numel > 1:
                free.setdefault((leaf.dtype, _wide_dims(leaf.shape)), []).append(leaf)
        proved: dict[str, list[Piece]] = {}
        kinds: dict[tuple[DType, tuple[int, ...]], list[Leaf]] = {}
        for target in self._open():
            kinds.setdefault((target.dtype, _wide_dims(target.shape)), []).append(
                target
            )
        for kind, targets in kinds.items():
            for target, near in multiples(targets, free.get(kind, ())):
                near.sort(key=lambda leaf: -name_likeness(target.name, leaf.name))
                for source in near[:_SCALED]:
                    if source.name in used:
                        continue
                    pieces = self._scaled_pieces(target, source)
                    if pieces:
                        proved[target.name] = pieces
                        used.add(source.name)
                        break
        # Few elements do not tell a division from a multiplication: what holds in all
        # layers does.
        shared: dict[str, set[str]] = {}
        for name, pieces in proved.items():
            own = {piece.formula for piece in pieces}
            text = form_of(name).text
            shared[text] = shared.get(text, own) & own
        for name, pieces in proved.items():
            common = shared[form_of(name).text]
            fitting = [piece for piece in pieces if piece.formula in common]
            self._note_pieces(name, [fitting[0] if fitting else pieces[0]])

    def _scaled_pieces(self, target: Leaf, source: Leaf) -> list[Piece]:
        """The proved pieces that are all of a tensor after a formula, one for each
        formula that holds.
        """
        whole = whole_piece(source.name, target.ref.numel)
        pieces = [
            whole._replace(formula=formula)
            for formula in formulas_between(target, source)
        ]
        return [piece for piece in pieces if is_proved(piece, target, self._by_name)]

    def _find_rescaled(self) -> bool:
        """Find tensors that have another layout and a formula, of all their sources or
        of some. Tell whether any was found.

        Raises UnreadableError.
        """
        count = len(self._made)
        used = self._used_names()
        fresh = [leaf for leaf in self._sources if leaf.name not in used]
        # Unused tensors first. Among all of them only where some are used: else both
        # are the same.
        for sources in (fresh, self._sources) if used else (fresh,):
            targets = self._open()
            if not targets:
                break
            first = first_layers(targets)
            for formula in shared_formulas(first, first_layers(sources)):
                self._find_after(formula, sources)
        return len(self._made) > count

    def _find_after(self, formula: str, sources: Sequence[Leaf]) -> None:
        """Find the open tensors of B among some of A, as they are and after a
        formula.
        """
        given: dict[str, str] = {}
        rescaled: list[Leaf] = []
        for leaf in sources:
            # No name of a file has a zero byte next to a formula: both are told apart
            # again.
            name = f"{leaf.name}\0{formula}"
            if leaf.dtype.name in COMPUTED and name not in self._by_name:
                given[name] = leaf.name
                rescaled.append(rescaled_leaf(leaf, name, formula))
        # The search goes on as if A had both, its tensors and what a formula makes of
        # them.
        finder = _Finder(
            [*rescaled, *sources],
            self._open(),
            {},
            self._executor,
            self._progress,
        )
        for name, row in finder.find_by_values().items():
            pieces: list[Piece] = []
            for piece in row.pieces or ():
                if piece.source in given:
                    piece = piece._replace(source=given[piece.source], formula=formula)
                pieces.append(piece)
            self._note_pieces(name, pieces)

    def _constant_ways(self, target: Leaf) -> list[str]:
        """The constant tensors of A with the number and the size of a constant tensor
        of B.
        """
        table = self._constants.get(target.dtype)
        if table is None:
            table = self._constants[target.dtype] = {}
            for leaf in self._sources:
                row = self._sums.of_constant(leaf, target.dtype)
                if row is not None:
                    key = row.first, _wide_dims(row.shape)
                    table.setdefault(key, []).append(leaf.name)
        return table.get(
            (self._sums.of_target(target).first, _wide_dims(target.shape)), []
        )

    def _unmade_target(self, target: Leaf) -> Made:
        """A tensor that is made of nothing in A, and why."""
        why = self._why.get(target.name) or "no such values in A"
        return Made(target.name, None, why=why)


_EQUAL = 16
"""The tensors of A that are compared with one of B as they are."""
_SCALED = 64
"""The tensors of A that are looked at for a scale, the most alike by name."""


def _wide_dims(shape: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of a shape with more than one index."""
    return tuple([size for size in shape if size > 1])
