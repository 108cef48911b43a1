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
    "state2",
    "state1",
)
"""State that has the shape of its parameter (torch/optim, bitsandbytes)."""
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
    held: list[tuple[Section, list[Group]]] = []
    for section in sections:
        if section.kind == "optimizer":
            groups = groups_of(section)
            if groups:
                held.append((section, groups))
    matching = _Matching(checkpoint, sections, buffers)
    if model is not None:
        path, parameters, trained = model
        count = sum(_count_slots(groups) for _, groups in held)
        # Scripts pass all parameters, or those that require a gradient.
        matching.order(path, trained if count == len(trained) else parameters)
    return tuple(
        match._replace(is_flat=_is_flat(match.optimizer))
        for match in matching.all(held)
    )


def _count_slots(groups: Sequence[Group]) -> int:
    """The number of parameters in groups."""
    return sum(len(group.slots) for group in groups)


def _all_slots(groups: Sequence[Group]) -> tuple[Slot, ...]:
    """The parameters of groups, in the order in which the optimizer got them."""
    slots: list[Slot] = []
    for group in groups:
        slots += group.slots
    return tuple(slots)


def recorded(
    handed: OptimizerRecord, name: str, model: Section, indices: dict[str, int]
) -> Match:
    """Return the match of an optimizer that a snapshot describes.

    `indices` are the indices of the model's tensors by name. Parameters that do not
    belong to the model are left out.
    """
    slots: list[Slot] = []
    tensors: list[int] = []
    for number, parameter in enumerate(handed.names):
        if parameter not in indices:
            continue
        tensors.append(indices[parameter])
        slots.append(
            Slot(
                number,
                parameter,
                None,
                handed.has_state[number],
                handed.steps[number],
                handed.keeps_state[number],
            )
        )
    has_flat_field = not _FLAT.isdisjoint(handed.fields)
    return Match(
        Section((KEY, "optimizers", name), name, "optimizer", 0),
        (model,),
        tuple(slots),
        tuple(tensors),
        by_name=True,
        is_flat=has_flat_field and sum(handed.has_state) == 1,
    )


_FLAT = frozenset(("old_dirs", "func_evals", "H_diag"))
"""State that LBFGS keeps once for all parameters."""


def _is_flat(optimizer: Section) -> bool:
    """Tell whether one state stands for all parameters."""
    states = children_of(parts_of(optimizer.node).get("state"))
    if len(states) != 1:
        return False
    _, state = states[0]
    return any(str(field) in _FLAT for field, _ in children_of(state))


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
    counts: Counter[tuple[int, ...] | None] = Counter()
    if match.exact:
        counts.update(shapes)
    else:
        # The model has other tensors, which it may hold instead.
        for model in match.models:
            counts.update(entry.tensor.shape for entry in model.entries)
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
    states = {_state_key(key): node for key, node in children_of(parts.get("state"))}
    lost = {_state_key(key) for key in look(parts.get(LOST_STATE)).children}
    state_names: set[str] = set()
    for node in states.values():
        state_names.update(str(key) for key, _ in children_of(node))
    has_momentum_only = state_names <= {"momentum_buffer"}
    groups: list[Group] = []
    for _, group in children_of(parts.get("param_groups")):
        fields = dict(children_of(group))
        keys = look(fields.get("params"))
        if keys.kind != "sequence" or any(_is_huge(key) for key in keys.children):
            return []
        names = _parameter_names(fields, keys.children)
        # SGD keeps nothing but a buffer of the momentum, where a group has one.
        momentum = look(fields.get("momentum")).value
        keeps_state = not has_momentum_only or momentum not in (0, 0.0, None)
        slots: list[Slot] = []
        for key, name in zip(keys.children, names, strict=True):
            slot = _make_slot(key, name, _state_of(key, states))
            is_kept = keeps_state and _state_key(key) not in lost
            slots.append(slot._replace(keeps_state=is_kept))
        decay = look(fields.get("weight_decay")).value
        decays = bool(decay) if isinstance(decay, (int, float)) else None
        groups.append(Group(slots, decays))
    return groups


def _parameter_names(
    fields: dict[str | int, Node], keys: Sequence[Node]
) -> list[str | None]:
    """The names of the parameters of a group: from `param_names`, or its keys where
    these are names. None for one without a name.
    """
    listed = look(fields.get("param_names"))
    named = keys
    if keys and listed.kind == "sequence" and len(listed.children) == len(keys):
        named = listed.children
    return [str(name) if isinstance(name, str) else None for name in named]


def _state_of(key: Node, states: dict[object, Node]) -> Node:
    """The state of the parameter that has this key in its group, or None."""
    state = states.get(_state_key(key))
    if state is None and type(key) is int:
        # A distributed checkpoint has the numbers of the state as text.
        state = states.get(str(key))
    return state


def _state_key(key: Node) -> object:
    """A key that is equal where the keys of two nodes are: numbers and texts by value,
    anything else by identity, because it may not be hashable.
    """
    if isinstance(key, str):
        return str(key)
    return key if type(key) is int else id(key)


def _is_huge(key: Node) -> bool:
    """Tell whether a key is no number and no name of a parameter: finding it among
    others takes as long as it is.
    """
    if type(key) is int:
        return abs(key) >= _LARGEST
    return isinstance(key, str) and len(key) > _LONGEST_NAME


def _make_slot(key: Node, name: str | None, state: Node) -> Slot:
    """The slot of a parameter with its state, which is None where there is none."""
    if state is None:
        return Slot(key, name, None, False)
    fields = {str(field): node for field, node in children_of(state)}
    shapes: dict[str, tuple[int, ...]] = {}
    for field, node in fields.items():
        tensor = tensor_of(node)
        if tensor is not None:
            shapes[field] = tensor.shape
    shape = _parameter_shape(shapes)
    # GaLore and its kin keep moments of a projection.
    if "projector" in fields:
        shape = None
    several = {state_shape for state_shape in shapes.values() if state_shape}
    moments: list[TensorRef] = []
    for moment in _MOMENTS:
        tensor = tensor_of(fields.get(moment))
        if isinstance(tensor, TensorRef):
            moments.append(tensor)
    return Slot(
        key,
        name,
        shape,
        bool(fields),
        fields.get("step"),
        is_mixed=shape is None and len(several) > 1,
        moments=tuple(moments),
    )


def _parameter_shape(shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape of a parameter from the shapes of its state, or None."""
    for row, column in _FACTORS:
        # Vectors have factors without dimensions, which say nothing.
        if shapes.get(row) and shapes.get(column):
            # row_var of torch ends with a dimension of 1.
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
        fits: list[list[_Fit]] = []
        for match, (_, groups) in zip(named, held, strict=True):
            fits.append([] if match is not None else self._find_fits(groups))
        optimizers = [section for section, _ in held]
        chosen = self._choose_fits(optimizers, fits)
        for number, fit in self._shared_fits(held, fits).items():
            chosen[number] = fit
        results: list[Match] = []
        for number, (section, groups) in enumerate(held):
            by_name = named[number]
            if by_name is not None:
                results.append(by_name)
            else:
                results.append(_match_of_fit(section, groups, chosen[number]))
        return results

    def _match_by_name(self, optimizer: Section, groups: list[Group]) -> Match | None:
        """The match by the names that the optimizer gives its parameters, or None."""
        slots = _all_slots(groups)
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
        fits: list[_Fit] = []
        for model in self._models:
            fit = self._fit_models((model,), groups)
            if fit is not None:
                fits.append(fit)
        if any(fit.exact for fit in fits):
            return fits
        chains: list[_Fit] = []
        seen: set[frozenset[Path]] = set()
        for models in self._model_chains(_count_slots(groups)):
            paths = frozenset(model.path for model in models)
            if paths in seen:
                # The first order that fits counts, which is the one of the file where
                # they are twins.
                continue
            chain = self._fit_models(models, groups)
            if chain is not None:
                seen.add(paths)
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
        longest = min(len(parts), _LONGEST_CHAIN)
        for length in range(2, longest + 1):
            for numbers in combinations(range(len(parts)), length):
                # Models come before what lies beside them: the first number of a chain
                # tells whether it has a model.
                has_model = numbers[0] < len(self._models)
                if sum(sizes[number] for number in numbers) != count or not has_model:
                    continue
                orders = permutations(numbers) if length <= _ORDERED else (numbers,)
                for order in orders:
                    yield tuple(parts[number] for number in order)

    def _fit_models(
        self, models: tuple[Section, ...], groups: list[Group]
    ) -> _Fit | None:
        """Fit the parameters of models, one after the other, to an optimizer. Return
        None where they do not fit, or where nothing speaks for it.
        """
        rows: list[tuple[int, Entry]] = []
        for model in models:
            rows += self._free[model.path]
        slots = _all_slots(groups)
        shapes = [slot.shape for slot in slots if slot.shape is not None]
        is_exact = len(rows) == len(slots)
        # One model may have frozen tensors, if shapes say which. A chain may not.
        if not is_exact and (len(models) > 1 or not shapes):
            return None
        if len(slots) == 1 and not is_exact and prod(shapes[0]) < 2:
            # A temperature (`log_alpha`) is no tensor of a model that has one element
            # too.
            return None
        assigned = _assign_candidates(groups, rows)
        return None if assigned is None else _Fit(models, assigned, is_exact)

    def _shared_fits(
        self, held: Sequence[tuple[Section, list[Group]]], fits: Sequence[list[_Fit]]
    ) -> dict[int, _Fit]:
        """Several optimizers that share out the parameters of one model, as Muon takes
        matrices and AdamW the rest: the number of each -> its fit.
        """
        for model in self._models:
            sharing = [
                number
                for number, own_fits in enumerate(fits)
                if _may_share(own_fits, model)
            ]
            counts = [_count_slots(held[number][1]) for number in sharing]
            free = self._free[model.path]
            if len(sharing) < 2 or sum(counts) != len(free):
                continue
            groups: list[Group] = []
            for number in sharing:
                groups += held[number][1]
            assigned = _assign_candidates(groups, free, shared=True)
            if assigned is None:
                continue
            chosen: dict[int, _Fit] = {}
            first = 0
            for number, count in zip(sharing, counts, strict=True):
                chosen[number] = _Fit((model,), assigned[first : first + count], False)
                first += count
            return chosen
        return {}

    def _choose_fits(
        self, optimizers: Sequence[Section], fits: Sequence[list[_Fit]]
    ) -> list[_Fit | None]:
        """The fit of each optimizer, where keys and order leave one."""
        left: list[list[_Fit]] = []
        for optimizer, own_fits in zip(optimizers, fits, strict=True):
            exact = [fit for fit in own_fits if fit.exact]
            left.append(_akin_fits(optimizer, exact or own_fits))
        chosen: list[_Fit | None] = [None] * len(left)
        for number, own_fits in enumerate(left):
            if len(own_fits) == 1:
                chosen[number] = own_fits[0]
            elif own_fits and all(_is_one_whole_model(fit) for fit in own_fits):
                # Twins: as many optimizers as models, in one order.
                paths = _first_paths(own_fits)
                twins = [
                    other
                    for other, other_fits in enumerate(left)
                    if _first_paths(other_fits) == paths
                ]
                if len(twins) == len(own_fits):
                    chosen[number] = own_fits[twins.index(number)]
        return chosen


def _may_share(fits: Sequence[_Fit], model: Section) -> bool:
    """Tell whether an optimizer with these fits can hold a part of a model."""
    if any(fit.exact for fit in fits):
        return False
    return any(fit.models == (model,) for fit in fits)


def _is_one_whole_model(fit: _Fit) -> bool:
    return fit.exact and len(fit.models) == 1


def _first_paths(fits: Sequence[_Fit]) -> list[Path]:
    """The path of the first model of each fit."""
    return [fit.models[0].path for fit in fits]


def _match_of_fit(optimizer: Section, groups: list[Group], fit: _Fit | None) -> Match:
    """The match of an optimizer by its fit: a parameter with one candidate is
    decided.
    """
    slots = _all_slots(groups)
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
_PARTS = 8
"""Parts of which chains are made."""
_LONGEST_CHAIN = 4
"""Parts of a chain."""
_ORDERED = 3
"""Parts up to which every order is tried."""
_CHAINS = 8
"""Chains that are kept."""
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
        "optimizer",
        "optimizers",
        "optim",
        "optims",
        "opt",
        "optimiser",
        "state",
        "dict",
        "sd",
        "model",
        "models",
        "net",
        "network",
        "networks",
        "nets",
        "module",
        "weights",
        "params",
        "checkpoint",
        "the",
    )
)
"""Words in keys that say nothing."""
_WORDS = r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+"


def _section_words(path: Path) -> set[str]:
    """The words of the keys of a section that say which one it is: `optimizer_G` ->
    `g`.
    """
    stems: set[str] = set()
    for key in path:
        for part in re.findall(_WORDS, str(key)[:_KEY]):
            word = part.lower()
            stem = word.removeprefix("net").removeprefix("optim").removeprefix("opt")
            stems.add(stem or word)
    # `optimizer` and `optimiser` leave their ends.
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
    model_words: list[set[str]] = []
    for fit in fits:
        words_of_fit: set[str] = set()
        for model in fit.models:
            words_of_fit |= _section_words(model.path)
        model_words.append(words_of_fit)
    scores = [_words_kinship(words, others) for others in model_words]
    most = max(scores)
    best: list[_Fit] = []
    trained: list[_Fit] = []
    for fit, score, others in zip(fits, scores, model_words, strict=True):
        if score == most:
            best.append(fit)
            if _COPIED.isdisjoint(others):
                trained.append(fit)
    return trained or best


def _words_kinship(words: set[str], others: set[str]) -> int:
    """Count the words that both have; a letter stands for a word that begins with it,
    as `g` for `generator`.
    """
    same = words & others
    short = 0
    for word in words - same:
        if any(_may_abbreviate(word, other) for other in others - same):
            short += 1
    return 2 * len(same) + short


def _may_abbreviate(word: str, other: str) -> bool:
    """Tell whether one of two words is the first letter of the other one, or both begin
    with the same three.
    """
    if other[:1] != word[:1]:
        return False
    return len(word) == 1 or len(other) == 1 or other.startswith(word[:3])


def _named_indices(
    checkpoint: Checkpoint, model: Section, slots: tuple[Slot, ...]
) -> list[int | None]:
    """The indices of the tensors that the slots name; empty unless the model has most
    of them.
    """
    if not slots or slots[0].name is None:
        return []
    by_name: dict[str, int] = {}
    for index in model.indices:
        name = model.relative(checkpoint.tensors[index].name)
        by_name[unwrapped_name(name)] = index
    indices = [
        by_name.get(unwrapped_name(slot.name)) if slot.name else None for slot in slots
    ]
    known = sum(index is not None for index in indices)
    return indices if 2 * known > len(slots) else []


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
        # Empty tensors have no memory that could be tied.
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
    is_exact = _count_slots(groups) == len(rows)
    orders = [rows]
    if len(groups) > 1 and not shared:
        if is_exact and all(len(group.slots) == 1 for group in groups):
            # MMEngine makes a group of each parameter, in order; recipes with a rate
            # per layer go backwards.
            groups = [Group([group.slots[0] for group in groups])]
            orders.append(rows[::-1])
        else:  # minGPT sorts the names in each group
            orders.append(sorted(rows, key=lambda row: row[1].name))
    may_have_kinds = is_exact and len(groups) > 1 and not shared
    candidates: Candidates | None = None
    for order in orders:
        kinds = _decay_kinds(groups, order) if may_have_kinds else None
        assigned = None
        if kinds is not None:
            assigned = _assign_in_order(groups, order, kinds)
        if assigned is None:
            assigned = _assign_in_order(groups, order, None)
        if candidates is None:
            candidates = assigned
        elif assigned is not None:
            candidates = _join_candidates(candidates, assigned)
    return candidates


def _join_candidates(first: Candidates, second: Candidates) -> Candidates:
    """The candidates that each slot has in one order or the other; none where one of
    both has too many to list.
    """
    return [
        tuple(sorted({*own, *other})) if own and other else ()
        for own, other in zip(first, second, strict=True)
    ]


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
    if set(decays) != {True, False}:
        if len(groups) != 2:
            return None
        # Both have the same weight decay: the shapes say which is which.
        decays = [True, False]
    shapes: dict[bool, list[tuple[int, ...]]] = {True: [], False: []}
    unknown = {True: 0, False: 0}
    for group, decay in zip(groups, decays, strict=True):
        for slot in group.slots:
            if slot.shape is None:
                unknown[decay is True] += 1
            else:
                shapes[decay is True].append(slot.shape)
    # The group with matrices is the one that decays, whatever its field says.
    if not any(len(shape) > 1 for shape in shapes[True]):
        shapes = {True: shapes[False], False: shapes[True]}
        unknown = {True: unknown[False], False: unknown[True]}
        decays = [not decay for decay in decays]
    matrices = set(shapes[True])
    vectors = set(shapes[False])
    if any(len(shape) < 2 for shape in matrices) or matrices & vectors:
        return None
    if not any(len(shape) < 2 for shape in vectors):
        return None
    for kind in (True, False):
        # A rule that few shapes show is none.
        if len(shapes[kind]) < max(2, unknown[kind]):
            return None
    kinds: list[bool] = []
    for _, entry in rows:
        shape = entry.tensor.shape
        is_matrix = shape in matrices or len(shape) > 1
        kinds.append(shape not in vectors and is_matrix)
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
        return [()] * _count_slots(groups)
    shapes = [entry.tensor.shape for _, entry in rows]
    taken: dict[int, int] = {}  # position in `rows` -> the group that surely takes it
    while True:
        before = len(taken)
        # For each group the positions that are open to it, and the first and the last
        # of them for each slot.
        ranges: list[tuple[list[int], list[tuple[int, int]]]] = []
        for number, group in enumerate(groups):
            free = [i for i in range(len(rows)) if taken.get(i, number) == number]
            if kinds is not None:
                kinds_of_groups, kinds_of_rows = kinds
                kind = kinds_of_groups[number]
                free = [i for i in free if kinds_of_rows[i] == kind]
            slot_ranges = _slot_ranges(group.slots, free, shapes)
            if slot_ranges is None:
                return None
            ranges.append((free, slot_ranges))
            for first, last in slot_ranges:
                if first == last:
                    taken[free[first]] = number
        if len(taken) == before:
            break  # what one group takes narrows the others: until none does
    room = _MOST_LISTED
    candidates: Candidates = []
    for group, (free, slot_ranges) in zip(groups, ranges, strict=True):
        for slot, (first, last) in zip(group.slots, slot_ranges, strict=True):
            room -= last - first
            fitting: Sequence[int] = ()
            if room > 0 or first == last:
                fitting = free[first : last + 1]
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
    # The last places are the first ones seen from behind.
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
    chosen: list[int] = []
    place = 0
    for slot in group:
        if slot.shape is not None:
            while place < len(free) and shapes[free[place]] != slot.shape:
                place += 1
        if place == len(free):
            return None
        chosen.append(place)
        place += 1
    return chosen
