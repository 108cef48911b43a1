"""Matching the parameters of an optimizer to the tensors of the model: by name, or by
order and shapes.

The state of an optimizer numbers its parameters in the order in which it got them. That
is the order of the model: without buffers, each tied tensor once, frozen ones perhaps
left out, perhaps in groups that each keep the order. A parameter is matched to a tensor
only when every order-preserving assignment that fits agrees.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations
from math import prod

from ckpt.evidence.optimizers import LOST_STATE, parts_of
from ckpt.evidence.record import KEY, OptimizerRecord
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import unwrapped_name
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.names import Path
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.tree.find import children_of
from ckpt.tree.view import look

_LARGEST = 2**63
_LONGEST_NAME = 10_000
"""A number that no parameter of an optimizer reaches. Python refuses to write out one
of thousands of digits.
"""
_ELEMENTWISE = (
    "exp_avg",
    "exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "acc_delta",
    "exp_inf",
    "sum",
    "prev",
    "step_size",
    "ax",
    "max_exp_avg_sq",
    "grad_avg",
    "variance",
)
"""State that has the shape of its parameter (torch/optim)."""
_MOMENTS = (
    "exp_avg_sq",
    "exp_avg",
    "exp_inf",
    "square_avg",
    "momentum_buffer",
    "row_var",
    "variance",
)
"""State that is zero at the start, and stays so until there is a gradient other than
zero.
"""
_FACTORS = (("row_var", "col_var"), ("exp_avg_sq_row", "exp_avg_sq_col"))
"""State of Adafactor for matrices: torch keeps the reduced dimension, Hugging Face
drops it.
"""


class Slot(NamedTuple):
    """A parameter of an optimizer. `shape` comes from its state, `step` is its counter
    if it has one.
    """

    key: Node
    name: str | None
    shape: tuple[int, ...] | None
    has_state: bool
    step: Node = None
    keeps_state: bool = True
    """True when its group keeps state at all, and none was lost. SGD without momentum
    keeps no state.
    """
    is_mixed: bool = False
    """True when its state has tensors of several shapes, none known to have the shape
    of the parameter.
    """
    moments: tuple[TensorRef, ...] = ()
    """The tensors of its state that stay zero while all of its gradients are zero."""


class Group(NamedTuple):
    """A group of parameters of an optimizer. `decays` says whether it has weight decay,
    None without such a field.
    """

    slots: list[Slot]
    decays: bool | None = None


class Match(NamedTuple):
    """The parameters of one optimizer, in its order, and the indices of their tensors
    in `Checkpoint.tensors`.

    An index is None when no assignment fits, or when several do. `exact` says that the
    optimizer has as many parameters as the model has candidates.
    """

    optimizer: Section
    models: tuple[Section, ...]
    """The models whose parameters it holds, in the order in which it got them; none
    where that is unknown.
    """
    slots: tuple[Slot, ...]
    indices: tuple[int | None, ...]
    exact: bool = False
    by_name: bool = False
    groups: int = 1
    is_flat: bool = False
    """True when one state stands for all parameters, as LBFGS keeps it."""
    candidates: tuple[tuple[int, ...], ...] = ()
    """For each parameter the indices of the tensors that it can be; none where these
    are too many or unknown.
    """

    @property
    def model(self) -> Section | None:
        """The model, where there is only one."""
        return self.models[0] if len(self.models) == 1 else None


def matches(
    checkpoint: Checkpoint,
    sections: tuple[Section, ...],
    buffers: Sequence[bool],
    model: tuple[Path, Sequence[int], Sequence[int]] | None = None,
) -> tuple[Match, ...]:
    """A match for each optimizer. `buffers` says for each tensor whether it is surely
    not a parameter.

    `model` is what a live model says of a section: the indices of its parameters in
    order, and of those that are trained.
    """
    held = [
        (section, groups)
        for section in sections
        if section.kind == "optimizer" and (groups := groups_of(section))
    ]
    matching = _Matching(checkpoint, sections, buffers)
    if model is not None:
        path, parameters, trained = model
        count = sum(len(group.slots) for _, groups in held for group in groups)
        matching.order(path, trained if count == len(trained) else parameters)
    return tuple(
        match._replace(is_flat=_is_flat(match.optimizer))
        for match in matching.all(held)
    )


def recorded(
    handed: OptimizerRecord, name: str, model: Section, indices: dict[str, int]
) -> Match:
    """Return the match of an optimizer that a snapshot describes.

    `indices` are the indices of the model's tensors by name. Parameters that do not
    belong to the model are left out.
    """
    mine = [
        number for number, parameter in enumerate(handed.names) if parameter in indices
    ]
    slots = tuple(
        Slot(
            number,
            handed.names[number],
            None,
            handed.has_state[number],
            handed.steps[number],
            handed.keeps_state[number],
        )
        for number in mine
    )
    return Match(
        Section((KEY, "optimizers", name), name, "optimizer", 0),
        (model,),
        slots,
        tuple(indices[str(slot.name)] for slot in slots),
        by_name=True,
        is_flat=bool(_FLAT.intersection(handed.fields)) and sum(handed.has_state) == 1,
    )


_FLAT = frozenset(("old_dirs", "func_evals", "H_diag"))
"""State that LBFGS keeps once for all parameters."""


def _is_flat(optimizer: Section) -> bool:
    held = children_of(parts_of(optimizer.node).get("state"))
    return len(held) == 1 and any(
        str(field) in _FLAT for field, _ in children_of(held[0][1])
    )


def by_order(checkpoint: Checkpoint, match: Match) -> frozenset[int]:
    """The numbers of the parameters for which only the order says which tensor each is:
    others have its shape.
    """
    if match.by_name:
        return frozenset()
    shapes = [
        None if index is None else checkpoint.tensors[index].tensor.shape
        for index in match.indices
    ]
    counts = Counter(shapes)
    if not match.exact:  # the model has other tensors, which it may hold instead
        counts = Counter(
            entry.tensor.shape for model in match.models for entry in model.entries
        )
    return frozenset(
        number
        for number, shape in enumerate(shapes)
        if shape is not None and counts[shape] > 1
    )


def groups_of(section: Section) -> list[Group]:
    """The parameters of an optimizer, group by group, in torch's order of their
    numbers.
    """
    parts = parts_of(section.node)
    state = {_state_key(key): node for key, node in children_of(parts.get("state"))}
    lost = {_state_key(key) for key in look(parts.get(LOST_STATE)).children}
    momentum_only = {
        str(key) for node in state.values() for key, _ in children_of(node)
    } <= {"momentum_buffer"}
    groups: list[Group] = []
    for _, group in children_of(parts.get("param_groups")):
        fields = dict(children_of(group))
        keys, names = look(fields.get("params")), look(fields.get("param_names"))
        if keys.kind != "sequence" or any(map(_is_huge, keys.children)):
            return []
        named = (
            names.children
            if names.kind == "sequence" and len(names.children) == len(keys.children)
            else ()
        )
        row = []
        keeps_state = not momentum_only or look(fields.get("momentum")).value not in (
            0,
            0.0,
            None,
        )
        for index, key in enumerate(keys.children):
            name = named[index] if named else key
            held = state.get(_state_key(key))
            if held is None and type(key) is int:
                held = state.get(
                    str(key)
                )  # a distributed checkpoint has the numbers of the state as text
            slot = _make_slot(key, str(name) if isinstance(name, str) else None, held)
            row.append(
                slot._replace(keeps_state=keeps_state and _state_key(key) not in lost)
            )
        decay = look(fields.get("weight_decay")).value
        groups.append(
            Group(row, bool(decay) if isinstance(decay, (int, float)) else None)
        )
    return groups


def _state_key(key: Node) -> object:
    return str(key) if isinstance(key, str) else key if type(key) is int else id(key)


def _is_huge(key: Node) -> bool:
    """Tell whether a key is no number and no name of a parameter: finding it among
    others takes as long as it is.
    """
    return (type(key) is int and abs(key) >= _LARGEST) or (
        isinstance(key, str) and len(key) > _LONGEST_NAME
    )


def _make_slot(key: Node, name: str | None, state: Node) -> Slot:
    if state is None:
        return Slot(key, name, None, False)
    fields = {str(field): node for field, node in children_of(state)}
    shapes = {
        field: tensor.shape
        for field, node in fields.items()
        if (tensor := tensor_of(node)) is not None
    }
    shape = _parameter_shape(shapes)
    if "projector" in fields:  # GaLore and its kin keep moments of a projection
        shape = None
    is_mixed = shape is None and len({other for other in shapes.values() if other}) > 1
    moments = tuple(
        ref
        for moment in _MOMENTS
        if isinstance(ref := tensor_of(fields.get(moment)), TensorRef)
    )
    return Slot(
        key,
        name,
        shape,
        bool(fields),
        fields.get("step"),
        is_mixed=is_mixed,
        moments=moments,
    )


def _parameter_shape(shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape of a parameter from the shapes of its state, or None."""
    for row, column in _FACTORS:
        if row in shapes and column in shapes and shapes[row] and shapes[column]:
            kept = shapes[row][:-1] if row == "row_var" else shapes[row]
            return (*kept, shapes[column][-1])
    for name in _ELEMENTWISE:
        if name in shapes:
            return shapes[name]
    return None


Candidates = list[tuple[int, ...]]
"""For each parameter of an optimizer the indices of the tensors that it can be; none
where these are too many.
"""


class _Fit(NamedTuple):
    """Models whose parameters, one after the other, an optimizer can hold: the
    candidates of each slot.
    """

    models: tuple[Section, ...]
    candidates: Candidates
    exact: bool


class _Matching:
    """All optimizers of a checkpoint against all of its models at once."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        sections: Sequence[Section],
        buffers: Sequence[bool],
    ) -> None:
        self._checkpoint = checkpoint
        self._models = [section for section in sections if section.kind == "model"]
        # The parameters of a loss lie beside the model, or are a section of their own.
        beside = [
            section
            for section in sections
            if section.kind == "other" and 0 < section.tensors <= _BESIDE
        ]
        self._free = {
            section.path: [
                (index, checkpoint.tensors[index])
                for index in _parameter_candidates(section, buffers)
            ]
            for section in (*self._models, *beside)
        }
        self._beside = [section for section in beside if self._free[section.path]]

    def order(self, path: Path, indices: Sequence[int]) -> None:
        """Take these tensors, in this order, for the parameters of a model."""
        self._free[path] = [
            (index, self._checkpoint.tensors[index]) for index in indices
        ]

    def all(self, held: Sequence[tuple[Section, list[Group]]]) -> list[Match]:
        """A match for each optimizer with its groups."""
        named = [self._match_by_name(section, groups) for section, groups in held]
        fits = [
            [] if match is not None else self._find_fits(groups)
            for match, (_, groups) in zip(named, held, strict=True)
        ]
        chosen = self._shared_fits(held, fits) or {}
        for number, fit in enumerate(
            self._choose_fits([section for section, _ in held], fits)
        ):
            chosen.setdefault(number, fit)
        return [
            match or _match_of_fit(section, groups, chosen[number])
            for number, (match, (section, groups)) in enumerate(
                zip(named, held, strict=True)
            )
        ]

    def _match_by_name(self, optimizer: Section, groups: list[Group]) -> Match | None:
        """The match by the names that the optimizer gives its parameters, or None."""
        slots = tuple(slot for group in groups for slot in group.slots)
        if not all(slot.name for slot in slots):
            return None
        for model in self._models:
            indices = _named_indices(self._checkpoint, model, slots)
            if indices:
                return Match(
                    optimizer,
                    (model,),
                    slots,
                    tuple(indices),
                    by_name=True,
                    groups=len(groups),
                )
        return None

    def _find_fits(self, groups: list[Group]) -> list[_Fit]:
        """Every model that fits, and where none does to the last tensor, every chain of
        models that does.
        """
        count = sum(len(group.slots) for group in groups)
        fits = [
            fit
            for model in self._models
            if (fit := self._fit_models((model,), groups)) is not None
        ]
        if any(fit.exact for fit in fits):
            return fits
        chains = []
        seen: set[frozenset[Path]] = set()
        for models in self._model_chains(count):
            parts = frozenset(model.path for model in models)
            if parts in seen:
                # their first order that fits, which is that of the file where they are
                # twins
                continue
            chain = self._fit_models(models, groups)
            if chain is not None:
                seen.add(parts)
                chains.append(chain)
            if len(chains) == _CHAINS:
                break
        return [*chains, *fits]

    def _model_chains(self, count: int) -> Iterator[tuple[Section, ...]]:
        """Models, and what lies beside them, that together have so many parameters, in
        any order.
        """
        parts = [*self._models, *self._beside][:_PARTS]
        sizes = [len(self._free[part.path]) for part in parts]
        for size in range(2, min(len(parts), _LONGEST_CHAIN) + 1):
            for numbers in combinations(range(len(parts)), size):
                if sum(sizes[number] for number in numbers) == count and numbers[
                    0
                ] < len(self._models):
                    for order in (
                        permutations(numbers) if size <= _ORDERED else (numbers,)
                    ):
                        yield tuple(parts[number] for number in order)

    def _fit_models(
        self, models: tuple[Section, ...], groups: list[Group]
    ) -> _Fit | None:
        rows = [row for model in models for row in self._free[model.path]]
        count = sum(len(group.slots) for group in groups)
        exact = len(rows) == count
        shaped = [
            slot.shape
            for group in groups
            for slot in group.slots
            if slot.shape is not None
        ]
        if (len(models) > 1 and not exact) or not (exact or shaped):
            return None
        if count == 1 and not exact and prod(shaped[0]) < 2:
            # a temperature (`log_alpha`) is no tensor of a model that has one element
            # too
            return None
        assigned = _assign_candidates(groups, rows)
        return None if assigned is None else _Fit(models, assigned, exact)

    def _shared_fits(
        self, held: Sequence[tuple[Section, list[Group]]], fits: Sequence[list[_Fit]]
    ) -> dict[int, _Fit | None] | None:
        """Several optimizers that share out the parameters of one model, as Muon takes
        matrices and AdamW the rest.
        """
        for model in self._models:
            mine = [
                number
                for number, rows in enumerate(fits)
                if rows
                and not any(fit.exact for fit in rows)
                and any(fit.models == (model,) for fit in rows)
            ]
            counts = [
                sum(len(group.slots) for group in held[number][1]) for number in mine
            ]
            free = self._free[model.path]
            if len(mine) < 2 or sum(counts) != len(free):
                continue
            assigned = _assign_candidates(
                [group for number in mine for group in held[number][1]],
                free,
                shared=True,
            )
            if assigned is None:
                continue
            chosen: dict[int, _Fit | None] = {}
            first = 0
            for number, count in zip(mine, counts, strict=True):
                chosen[number] = _Fit((model,), assigned[first : first + count], False)
                first += count
            return chosen
        return None

    def _choose_fits(
        self, optimizers: Sequence[Section], fits: Sequence[list[_Fit]]
    ) -> list[_Fit | None]:
        """The fit of each optimizer, where keys and order leave one."""
        rows = [[fit for fit in mine if fit.exact] or mine for mine in fits]
        rows = [
            _akin_fits(section, mine)
            for section, mine in zip(optimizers, rows, strict=True)
        ]
        chosen: list[_Fit | None] = [None] * len(rows)
        for number, mine in enumerate(rows):
            if len(mine) == 1:
                chosen[number] = mine[0]
            elif mine and all(fit.exact and len(fit.models) == 1 for fit in mine):
                # Twins: as many optimizers as models, in one order.
                paths = [fit.models[0].path for fit in mine]
                twins = [
                    other
                    for other, row in enumerate(rows)
                    if [f.models[0].path for f in row] == paths
                ]
                if len(twins) == len(mine):
                    chosen[number] = mine[twins.index(number)]
        return chosen


def _match_of_fit(optimizer: Section, groups: list[Group], fit: _Fit | None) -> Match:
    slots = tuple(slot for group in groups for slot in group.slots)
    if fit is None:
        return Match(optimizer, (), slots, (None,) * len(slots), groups=len(groups))
    decided = tuple(
        choices[0] if len(choices) == 1 else None for choices in fit.candidates
    )
    return Match(
        optimizer,
        fit.models,
        slots,
        decided,
        fit.exact,
        groups=len(groups),
        candidates=tuple(fit.candidates),
    )


_BESIDE = 64
"""Tensors of a part beside the models that a loss may have."""
_PARTS, _LONGEST_CHAIN, _ORDERED, _CHAINS = 8, 4, 3, 8
"""Parts of which chains are made, parts of a chain, parts up to which every order is
tried, and chains that are kept.
"""
_COPIED = frozenset(
    (
        "target",
        "targ",
        "targets",
        "ema",
        "teacher",
        "average",
        "avg",
        "shadow",
        "frozen",
        "old",
        "ref",
    )
)
"""Words in the keys of models that no optimizer trains: they are copied from another
one.
"""
_COMMON = frozenset(
    (
        "optimizer", "optimizers", "optim", "optims", "opt", "optimiser", "state", "dict", "sd", "model", "models", "net",
        "network", "networks", "nets", "module", "weights", "params", "checkpoint", "the",
    )
)  # fmt: skip
"""Words in keys that say nothing."""
_WORDS = r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+"


def _section_words(path: Path) -> set[str]:
    """The words of the keys of a section that say which one it is: `optimizer_G` ->
    `g`.
    """
    words = [
        word.lower() for key in path for word in re.findall(_WORDS, str(key)[:_KEY])
    ]
    stems = {
        word.removeprefix("net").removeprefix("optim").removeprefix("opt") or word
        for word in words
    }
    return {
        stem for stem in stems if stem not in _COMMON and stem not in ("izer", "imizer")
    }


_KEY = 80
"""Characters of a key that are searched for words."""


def _akin_fits(optimizer: Section, fits: list[_Fit]) -> list[_Fit]:
    """The fits whose models have the words of the optimizer's keys; else those that are
    no copies of others.
    """
    if len(fits) < 2:
        return fits
    words = _section_words(optimizer.path)
    scores = [
        _words_kinship(
            words, {word for model in fit.models for word in _section_words(model.path)}
        )
        for fit in fits
    ]
    best = [
        fit for fit, score in zip(fits, scores, strict=True) if score == max(scores)
    ]
    trained = [
        fit
        for fit in best
        if not any(_COPIED & _section_words(model.path) for model in fit.models)
    ]
    return trained or best


def _words_kinship(words: set[str], others: set[str]) -> int:
    """Count the words that both have; a letter stands for a word that begins with it,
    as `g` for `generator`.
    """
    same = words & others
    short = {
        word
        for word in words - same
        if any(
            other[:1] == word[:1]
            and (len(word) == 1 or len(other) == 1 or other.startswith(word[:3]))
            for other in others - same
        )
    }
    return 2 * len(same) + len(short)


def _named_indices(
    checkpoint: Checkpoint, model: Section, slots: tuple[Slot, ...]
) -> list[int | None]:
    """The indices of the tensors that the slots name; empty unless the model has most
    of them.
    """
    if not slots or slots[0].name is None:
        return []
    indices = {
        unwrapped_name(model.relative(checkpoint.tensors[index].name)): index
        for index in model.indices
    }
    named = [
        indices.get(unwrapped_name(slot.name)) if slot.name else None for slot in slots
    ]
    return named if 2 * sum(index is not None for index in named) > len(slots) else []


def _parameter_candidates(model: Section, buffers: Sequence[bool]) -> list[int]:
    """The indices of the tensors of a model that may be parameters, each tied tensor
    once.
    """
    return each_once(
        (index, entry)
        for index, entry in zip(model.indices, model.entries, strict=True)
        if not buffers[index]
        and entry.registered
        and entry.tensor.dtype.kind not in ("int", "bool")
    )


def each_once(rows: Iterable[tuple[int, Entry]]) -> list[int]:
    """The indices of the rows, without those that are tied to an earlier row."""
    seen: set[tuple[object, ...]] = set()
    indices = []
    for index, entry in rows:
        tensor = entry.tensor
        if isinstance(tensor, TensorRef) and tensor.numel:
            if tensor.view in seen:
                continue
            seen.add(tensor.view)
        indices.append(index)
    return indices


# --- by order -------------------------------------------------------------------------

_MOST_LISTED = 100_000
_MOST_PAIRS = 4_000_000
"""More pairs of a group and a tensor are not compared."""


def _assign_candidates(
    groups: list[Group], rows: list[tuple[int, Entry]], *, shared: bool = False
) -> Candidates | None:
    """Return the candidates for each slot in any order that training scripts use.

    None when the order of the model does not fit. With `shared` the groups belong to
    several optimizers.
    """
    is_exact = sum(len(group.slots) for group in groups) == len(rows)
    orders = [rows]
    if len(groups) > 1 and not shared:
        if is_exact and all(len(group.slots) == 1 for group in groups):
            # MMEngine makes a group of each parameter, in order; recipes with a rate
            # per layer go backwards.
            groups = [Group([group.slots[0] for group in groups])]
            orders.append(rows[::-1])
        else:  # minGPT sorts the names in each group
            orders.append(sorted(rows, key=lambda row: row[1].name))
    candidates: Candidates | None = None
    for order in orders:
        kinds = (
            _decay_kinds(groups, order)
            if is_exact and len(groups) > 1 and not shared
            else None
        )
        assigned = None if kinds is None else _assign_in_order(groups, order, kinds)
        assigned = (
            _assign_in_order(groups, order, None) if assigned is None else assigned
        )
        if candidates is None:
            candidates = assigned
        elif assigned is not None:
            candidates = [
                tuple(sorted({*own, *other})) if own and other else ()
                for own, other in zip(candidates, assigned, strict=True)
            ]
    return candidates


def _decay_kinds(
    groups: list[Group], rows: list[tuple[int, Entry]]
) -> tuple[list[bool], list[bool]] | None:
    """For each group and each tensor whether it belongs to the matrices with weight
    decay, where the state shows it.

    Recipes give weight decay to matrices and none to vectors, with exceptions
    (`pos_embed`). The shapes of most slots must show this rule, and the other tensors
    must be as many as it asks for.
    """
    decays = [group.decays for group in groups]
    if {True, False} != set(decays):
        if len(groups) != 2:
            return None
        decays = [
            True,
            False,
        ]  # both have the same weight decay: the shapes say which is which
    shapes: dict[bool, list[tuple[int, ...]]] = {True: [], False: []}
    unknown = {True: 0, False: 0}
    for group, decay in zip(groups, decays, strict=True):
        for slot in group.slots:
            if slot.shape is None:
                unknown[decay is True] += 1
            else:
                shapes[decay is True].append(slot.shape)
    if not any(len(shape) > 1 for shape in shapes[True]):
        shapes = {True: shapes[False], False: shapes[True]}
        unknown = {True: unknown[False], False: unknown[True]}
        decays = [not decay for decay in decays]
    matrices, vectors = set(shapes[True]), set(shapes[False])
    if (
        any(len(shape) < 2 for shape in matrices)
        or not any(len(shape) < 2 for shape in vectors)
        or matrices & vectors
        or any(len(shapes[kind]) < max(2, unknown[kind]) for kind in shapes)
    ):
        return None
    kinds = [
        entry.tensor.shape not in vectors
        and (entry.tensor.shape in matrices or len(entry.tensor.shape) > 1)
        for _, entry in rows
    ]
    if sum(kinds) != len(shapes[True]) + unknown[True]:
        return None
    return [decay is True for decay in decays], kinds


def _assign_in_order(
    groups: list[Group],
    rows: list[tuple[int, Entry]],
    kinds: tuple[list[bool], list[bool]] | None,
) -> Candidates | None:
    """Return the candidates for each slot when each group keeps this order, or None
    when nothing fits.

    The groups share the tensors: one that a group surely takes is closed to the others.
    """
    if len(groups) * len(rows) > _MOST_PAIRS:
        return [() for group in groups for _ in group.slots]
    shapes = [entry.tensor.shape for _, entry in rows]
    taken: dict[int, int] = {}  # position in `rows` -> the group that surely takes it
    while True:
        before = len(taken)
        ends: list[tuple[list[int], list[tuple[int, int]]]] = []
        for number, group in enumerate(groups):
            free = [
                i
                for i in range(len(rows))
                if taken.get(i, number) == number
                and (kinds is None or kinds[1][i] == kinds[0][number])
            ]
            here = _slot_ranges(group.slots, free, shapes)
            if here is None:
                return None
            ends.append((free, here))
            taken.update((free[first], number) for first, last in here if first == last)
        if len(taken) == before:
            break
    room = _MOST_LISTED
    candidates: Candidates = []
    for group, (free, here) in zip(groups, ends, strict=True):
        for slot, (first, last) in zip(group.slots, here, strict=True):
            room -= last - first
            fitting = free[first : last + 1] if room > 0 or first == last else ()
            candidates.append(
                tuple(rows[i][0] for i in fitting if slot.shape in (None, shapes[i]))
            )
    return candidates


def _slot_ranges(
    group: list[Slot], free: list[int], shapes: list[tuple[int, ...]]
) -> list[tuple[int, int]] | None:
    """Return the first and the last place in `free` that each slot can have in this
    order.

    None when a slot has none.
    """
    firsts = _first_places(group, free, shapes)
    lasts = _first_places(group[::-1], free[::-1], shapes)
    if firsts is None or lasts is None:
        return None
    return [
        (first, len(free) - 1 - last)
        for first, last in zip(firsts, lasts[::-1], strict=True)
    ]


def _first_places(
    group: list[Slot], free: list[int], shapes: list[tuple[int, ...]]
) -> list[int] | None:
    """The first place in `free` that each slot can have."""
    chosen = []
    numbers = iter(range(len(free)))
    for slot in group:
        place = next(
            (i for i in numbers if slot.shape is None or shapes[free[i]] == slot.shape),
            None,
        )
        if place is None:
            return None
        chosen.append(place)
    return chosen
