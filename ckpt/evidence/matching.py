"""Matching the parameters of an optimizer to the tensors of the model: by name, or by order and shapes.

The state of an optimizer numbers its parameters in the order in which it got them. That is the order of the model:
without buffers, each tied tensor once, frozen ones perhaps left out, perhaps in groups that each keep the order. A
parameter is matched to a tensor only when every order-preserving assignment that fits agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.evidence.optimizers import parts_of
from ckpt.evidence.record import KEY, OptimizerRecord
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import unwrapped_name
from ckpt.nodes import Node, tensor_of
from ckpt.rows import NamedTuple
from ckpt.tensors import TensorRef
from ckpt.tree.find import children
from ckpt.tree.view import look

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
_MOMENTS = ("exp_avg_sq", "exp_avg", "exp_inf", "square_avg", "momentum_buffer", "row_var", "variance")
"""State that is zero at the start, and stays so until there is a gradient other than zero."""
_FACTORS = (("row_var", "col_var"), ("exp_avg_sq_row", "exp_avg_sq_col"))
"""State of Adafactor for matrices: torch keeps the reduced dimension, Hugging Face drops it."""


class Slot(NamedTuple):
    """A parameter of an optimizer. `shape` comes from its state, `step` is its counter if it has one."""

    key: Node
    name: str | None
    shape: tuple[int, ...] | None
    has_state: bool
    step: Node = None
    keeps_state: bool = True
    """True when its group keeps state at all. SGD without momentum keeps no state."""
    is_mixed: bool = False
    """True when its state has tensors of several shapes, none known to have the shape of the parameter."""
    moments: tuple[TensorRef, ...] = ()
    """The tensors of its state that stay zero while all of its gradients are zero."""


class Group(NamedTuple):
    """A group of parameters of an optimizer. `decays` says whether it has weight decay, None without such a field."""

    slots: list[Slot]
    decays: bool | None = None


class Match(NamedTuple):
    """The parameters of one optimizer, in its order, and the indices of their tensors in `Checkpoint.tensors`.

    An index is None when no assignment fits, or when several do. `exact` says that the optimizer has as many
    parameters as the model has candidates.
    """

    optimizer: Section
    model: Section | None
    slots: tuple[Slot, ...]
    indices: tuple[int | None, ...]
    exact: bool = False
    by_name: bool = False
    groups: int = 1
    is_flat: bool = False
    """True when one state stands for all parameters, as LBFGS keeps it."""
    candidates: tuple[tuple[int, ...], ...] = ()
    """For each parameter the indices of the tensors that it can be; none where these are too many or unknown."""


def matches(
    checkpoint: Checkpoint, sections: tuple[Section, ...], buffers: Sequence[bool]
) -> tuple[Match, ...]:
    """A match for each optimizer. `buffers` says for each tensor whether it is surely not a parameter."""
    models = [section for section in sections if section.kind == "model"]
    rows = []
    for section in sections:
        if section.kind == "optimizer":
            groups = groups_of(section)
            if groups:
                match = _match(checkpoint, section, groups, models, buffers)
                rows.append(match._replace(is_flat=_is_flat(section)))
    return tuple(rows)


def recorded(handed: OptimizerRecord, name: str, model: Section, indices: dict[str, int]) -> Match:
    """Return the match of an optimizer that a snapshot describes.

    `indices` are the indices of the model's tensors by name. Parameters that do not belong to the model are
    left out.
    """
    mine = [number for number, parameter in enumerate(handed.names) if parameter in indices]
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
        model,
        slots,
        tuple(indices[str(slot.name)] for slot in slots),
        by_name=True,
        is_flat=bool(_FLAT.intersection(handed.fields)) and sum(handed.has_state) == 1,
    )


_FLAT = frozenset(("old_dirs", "func_evals", "H_diag"))
"""State that LBFGS keeps once for all parameters."""


def _is_flat(optimizer: Section) -> bool:
    held = children(parts_of(optimizer.node).get("state"))
    return len(held) == 1 and any(str(field) in _FLAT for field, _ in children(held[0][1]))


def is_by_order(checkpoint: Checkpoint, match: Match, number: int) -> bool:
    """Tell whether only the order decides which tensor a parameter is.

    Another tensor has the same shape then.
    """
    index = match.indices[number]
    if match.by_name or index is None:
        return False
    shape = checkpoint.tensors[index].tensor.shape
    return any(
        other is not None and other != index and checkpoint.tensors[other].tensor.shape == shape
        for other in match.indices
    )


def groups_of(section: Section) -> list[Group]:
    """The parameters of an optimizer, group by group, in torch's order of their numbers."""
    parts = parts_of(section.node)
    state = {_key(key): node for key, node in children(parts.get("state"))}
    momentum_only = {str(key) for node in state.values() for key, _ in children(node)} <= {"momentum_buffer"}
    groups: list[Group] = []
    for _, group in children(parts.get("param_groups")):
        fields = dict(children(group))
        keys, names = look(fields.get("params")), look(fields.get("param_names"))
        if keys.kind != "sequence":
            return []
        named = (
            names.children if names.kind == "sequence" and len(names.children) == len(keys.children) else ()
        )
        row = []
        keeps_state = not momentum_only or look(fields.get("momentum")).value not in (0, 0.0, None)
        for index, key in enumerate(keys.children):
            name = named[index] if named else key
            held = state.get(_key(key))
            slot = _slot(key, str(name) if isinstance(name, str) else None, held)
            row.append(slot._replace(keeps_state=keeps_state))
        decay = look(fields.get("weight_decay")).value
        groups.append(Group(row, bool(decay) if isinstance(decay, (int, float)) else None))
    return groups


def _key(key: Node) -> object:
    return str(key) if isinstance(key, str) else key if type(key) is int else id(key)


def _slot(key: Node, name: str | None, state: Node) -> Slot:
    if state is None:
        return Slot(key, name, None, False)
    fields = {str(field): node for field, node in children(state)}
    shapes = {
        field: tensor.shape for field, node in fields.items() if (tensor := tensor_of(node)) is not None
    }
    shape = _shape(shapes)
    is_mixed = shape is None and len({other for other in shapes.values() if other}) > 1
    moments = tuple(ref for moment in _MOMENTS if isinstance(ref := tensor_of(fields.get(moment)), TensorRef))
    return Slot(key, name, shape, bool(fields), fields.get("step"), is_mixed=is_mixed, moments=moments)


def _shape(shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape of a parameter from the shapes of its state, or None."""
    for row, column in _FACTORS:
        if row in shapes and column in shapes and shapes[row] and shapes[column]:
            kept = shapes[row][:-1] if row == "row_var" else shapes[row]
            return (*kept, shapes[column][-1])
    for name in _ELEMENTWISE:
        if name in shapes:
            return shapes[name]
    return None


def _match(
    checkpoint: Checkpoint,
    optimizer: Section,
    groups: list[Group],
    models: list[Section],
    buffers: Sequence[bool],
) -> Match:
    slots = tuple(slot for group in groups for slot in group.slots)
    named = [section for section in models if _named_indices(checkpoint, section, slots)]
    if named and all(slot.name for slot in slots):
        model = named[0]
        indices = tuple(_named_indices(checkpoint, model, slots))
        return Match(optimizer, model, slots, indices, by_name=True, groups=len(groups))
    fits = []
    for model in models:
        free = _candidates(model, buffers)
        assigned = _assign(groups, [(index, checkpoint.tensors[index]) for index in free])
        if assigned is not None:
            fits.append((model, assigned, len(free) == len(slots)))
    exact = [fit for fit in fits if fit[2]]
    chosen = fits if len(fits) == 1 else exact if len(exact) == 1 else []
    if not chosen or not (chosen[0][2] or any(slot.shape is not None for slot in slots)):
        return Match(optimizer, None, slots, (None,) * len(slots))
    model, candidates, is_exact = chosen[0]
    decided = tuple(choices[0] if len(choices) == 1 else None for choices in candidates)
    return Match(optimizer, model, slots, decided, is_exact, groups=len(groups), candidates=tuple(candidates))


def _named_indices(checkpoint: Checkpoint, model: Section, slots: tuple[Slot, ...]) -> list[int | None]:
    """The indices of the tensors that the slots name; empty unless the model has most of them."""
    if not slots or slots[0].name is None:
        return []
    indices = {
        unwrapped_name(model.relative(checkpoint.tensors[index].name)): index for index in model.indices
    }
    named = [indices.get(unwrapped_name(slot.name)) if slot.name else None for slot in slots]
    return named if 2 * sum(index is not None for index in named) > len(slots) else []


def _candidates(model: Section, buffers: Sequence[bool]) -> list[int]:
    """The indices of the tensors of a model that may be parameters, each tied tensor once."""
    return each_once(
        (index, entry)
        for index, entry in zip(model.indices, model.entries, strict=True)
        if not buffers[index] and entry.registered and entry.tensor.dtype.kind not in ("int", "bool")
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


# --- by order ---------------------------------------------------------------------------------------------------------

Candidates = list[tuple[int, ...]]
"""For each parameter of an optimizer the indices of the tensors that it can be; none where these are too many."""
_MOST_LISTED = 100_000
_MOST_PAIRS = 4_000_000
"""More pairs of a group and a tensor are not compared."""


def _assign(groups: list[Group], rows: list[tuple[int, Entry]]) -> Candidates | None:
    """Return the candidates for each slot in any order that training scripts use.

    None when the order of the model does not fit.
    """
    is_exact = sum(len(group.slots) for group in groups) == len(rows)
    orders = [rows]
    if len(groups) > 1:
        if is_exact and all(len(group.slots) == 1 for group in groups):
            # MMEngine makes a group of each parameter, in order; recipes with a rate per layer go backwards.
            groups = [Group([group.slots[0] for group in groups])]
            orders.append(rows[::-1])
        else:  # minGPT sorts the names in each group
            orders.append(sorted(rows, key=lambda row: row[1].name))
    candidates: Candidates | None = None
    for order in orders:
        kinds = _kinds(groups, order) if is_exact and len(groups) > 1 else None
        assigned = None if kinds is None else _ordered(groups, order, kinds)
        assigned = _ordered(groups, order, None) if assigned is None else assigned
        if candidates is None:
            candidates = assigned
        elif assigned is not None:
            candidates = [
                tuple(sorted({*own, *other})) if own and other else ()
                for own, other in zip(candidates, assigned, strict=True)
            ]
    return candidates


def _kinds(groups: list[Group], rows: list[tuple[int, Entry]]) -> tuple[list[bool], list[bool]] | None:
    """For each group and each tensor whether it belongs to the matrices with weight decay, where the state shows it.

    Recipes give weight decay to matrices and none to vectors, with exceptions (`pos_embed`). The shapes of most slots
    must show this rule, and the other tensors must be as many as it asks for.
    """
    decays = [group.decays for group in groups]
    if {True, False} != set(decays):
        if len(groups) != 2:
            return None
        decays = [True, False]  # both have the same weight decay: the shapes say which is which
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
        entry.tensor.shape not in vectors and (entry.tensor.shape in matrices or len(entry.tensor.shape) > 1)
        for _, entry in rows
    ]
    if sum(kinds) != len(shapes[True]) + unknown[True]:
        return None
    return [decay is True for decay in decays], kinds


def _ordered(
    groups: list[Group], rows: list[tuple[int, Entry]], kinds: tuple[list[bool], list[bool]] | None
) -> Candidates | None:
    """Return the candidates for each slot when each group keeps this order, or None when nothing fits.

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
                if taken.get(i, number) == number and (kinds is None or kinds[1][i] == kinds[0][number])
            ]
            here = _ends(group.slots, free, shapes)
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
            candidates.append(tuple(rows[i][0] for i in fitting if slot.shape in (None, shapes[i])))
    return candidates


def _ends(group: list[Slot], free: list[int], shapes: list[tuple[int, ...]]) -> list[tuple[int, int]] | None:
    """Return the first and the last place in `free` that each slot can have in this order.

    None when a slot has none.
    """
    firsts = _greedy(group, free, shapes)
    lasts = _greedy(group[::-1], free[::-1], shapes)
    if firsts is None or lasts is None:
        return None
    return [(first, len(free) - 1 - last) for first, last in zip(firsts, lasts[::-1], strict=True)]


def _greedy(group: list[Slot], free: list[int], shapes: list[tuple[int, ...]]) -> list[int] | None:
    """The first place in `free` that each slot can have."""
    chosen = []
    numbers = iter(range(len(free)))
    for slot in group:
        place = next((i for i in numbers if slot.shape is None or shapes[free[i]] == slot.shape), None)
        if place is None:
            return None
        chosen.append(place)
    return chosen
