"""An optimizer by the names of its parameters, as `get_state_dict` of torch keeps it,
and state for parameters without any.

`set_state_dict` looks for names. It takes numbers for names that are missing, so a load
that allows a part loads no moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from ckpt.bytes.source import Zeros
from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.names import with_new_names
from ckpt.commands.rewriting.report import Change, Leftover, RewriteReport
from ckpt.commands.strip.strip import removed_prefixes
from ckpt.evidence.joining import Joined, join_names, names_in_torch
from ckpt.evidence.matching import Match
from ckpt.evidence.optimizers import LOST_STATE, parts_of
from ckpt.evidence.record import ModelRecord
from ckpt.evidence.sections import FLATTENED, is_flattened
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Node, tensor_of
from ckpt.model.places import Range
from ckpt.model.tensors import Storage, Tensor, TensorRef, tensor_ref
from ckpt.model.text import show
from ckpt.pickle.edit import Edit
from ckpt.tree.find import children_of
from ckpt.tree.view import look

KEYS = ("names", "order", "numbers")
"""The keys of an optimizer: names where they are sure, names by the order of the model,
and the keys of the file.
"""
_FIRST_ZERO = frozenset(
    (
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "exp_avg_var",
        "max_exp_avg_var",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "acc_delta",
    )
)
"""State that is zero before the first gradient (torch/optim)."""


def keys_of(name: str | None, *, is_folder: bool) -> str:
    """Return the keys that `--optimizer-keys` asks for.

    Without it they are names in a DCP that is not made of another, else the keys of the
    source. Raises UsageError.
    """
    if name is None:
        return KEYS[0] if is_folder else KEYS[-1]
    if name not in KEYS:
        raise UsageError(
            f"--optimizer-keys {show(name, 40)}: not one of {' '.join(KEYS)}"
        )
    return name


def with_optimizers(
    report: RewriteReport,
    keys: str,
    limits: Limits,
    *,
    complete: bool,
    model: ModelRecord | None = None,
) -> RewriteReport:
    """The report with each optimizer of the result under the names that torch gives its
    parameters.

    `model` is a live model, which knows the order of its parameters. The names of the
    models lose their wrappers too, for torch would find neither. With `complete` each
    parameter without state gets the state that it has before its first gradient. Raises
    UnsupportedError where names, or such state, are not known.
    """
    if keys == "numbers" and not complete:
        return report
    survey = Survey(report.result, model)
    if not any(match.slots for match in survey.matches):
        return report
    changes: list[Change] = []
    if keys != "numbers":
        survey, changes = _unwrap_models(survey, limits)
    checkpoint = survey.checkpoint
    edit = _Keyed()
    leftovers: list[Leftover] = []
    added = 0
    for match in survey.matches:
        if match.optimizer.node is None:  # recorded by a snapshot
            continue
        name = match.optimizer.name
        # A live model says the order; else the file may prove it.
        row = join_names(checkpoint, match, knows_order=None if model is None else True)
        names = None if keys == "numbers" else _parameter_names(checkpoint, row, keys)
        states = _first_states(checkpoint, match) if complete else {}
        renamed = edit.change(match, names, states)
        if renamed:
            after = (
                "names" if row.is_sure else "names, if it has the order of the model"
            )
            changes.append(
                Change("keys", "numbers", after, renamed, "parameter", section=name)
            )
        if states:
            added += len(states)
            changes.append(
                Change(
                    "state",
                    "no state",
                    "zero moments",
                    len(states),
                    "parameter",
                    section=name,
                )
            )
        leftovers += _stale_state(match)
    if not changes:
        return report
    # Nothing was made where only a group without state was looked at.
    if edit.made:
        checkpoint = edited_checkpoint(checkpoint, edit.copy(checkpoint.root), limits)
    return report._replace(
        result=checkpoint,
        changes=(*report.changes, *changes),
        left_alone=(*report.left_alone, *leftovers),
        unchanged_bytes=report.unchanged_bytes and not added,
    )


def _unwrap_models(survey: Survey, limits: Limits) -> tuple[Survey, list[Change]]:
    """The checkpoint whose models have the names that torch gives their tensors."""
    changes: list[Change] = []
    for number, model in enumerate(survey.models):
        if model.is_module:
            continue
        before = survey.models[number]
        checkpoint, names = with_new_names(
            survey, [before], names_in_torch(before.names()), limits
        )
        if names:
            survey = Survey(checkpoint, survey.model)
            removed = removed_prefixes(names.get(model.name, {}))
            for (prefix, rest), count in removed.items():
                old, new = f"{prefix}*", f"{rest}*"
                changes.append(
                    Change("prefix", old, new, count, "tensor", section=model.name)
                )
    return survey, changes


def _parameter_names(checkpoint: Checkpoint, row: Joined, keys: str) -> tuple[str, ...]:
    """The names of the parameters of an optimizer. Raises UnsupportedError where they
    are not sure.
    """
    if row.is_sure or (row.in_order and keys == "order"):
        return row.names
    name = show(row.match.optimizer.name, 60) or "the optimizer"
    ways = ["--optimizer-keys numbers keeps its numbers"]
    if row.in_order:
        ways.insert(
            0,
            (
                "--optimizer-keys order names them if it got them in the order of the "
                "model"
            ),
        )
    elif not checkpoint.traits.keeps_order:
        ways.insert(0, "--model FILE.py:FACTORY knows the order of the model")
    raise UnsupportedError(
        f"no names for {name}: {row.reason}", path=checkpoint.path, hint=", ".join(ways)
    )


def _stale_state(match: Match) -> list[Leftover]:
    """The state that belongs to no parameter of the groups: torch drops it when it
    loads.
    """
    known = {str(slot.key) for slot in match.slots}
    section = match.optimizer.name
    start = f"{section}.state" if section else "state"
    states = children_of(parts_of(match.optimizer.node).get("state"))
    return [
        Leftover(f"{start}.{key}", "state of no parameter")
        for key, _ in states
        if str(key) not in known
    ]


class _Keyed(Edit):
    """Changes the keys of the state of optimizers, and the lists of parameters in their
    groups.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Callable[[], Node]] = {}
        """The makers of the nodes that replace others, by the ids of these."""

    def instead(self, node: Node) -> Node | None:
        make = self.made.get(id(node))
        return None if make is None else make()

    def change(
        self, match: Match, names: Sequence[str] | None, states: dict[int, Dict]
    ) -> int:
        """Name the parameters of an optimizer, and add the state of some by their
        numbers.

        Return how many parameters have another key than before.
        """
        node = match.optimizer.node
        old = [str(slot.key) for slot in match.slots]
        keys = list(names or old)
        if is_flattened([key for key, _ in children_of(node)]):
            rows: list[tuple[Node, Node]] = []
            for number, state in states.items():
                prefix = f"{FLATTENED[0]}{keys[number]}"
                for field, value in children_of(state):
                    rows.append((f"{prefix}.{field}", value))
            if rows:
                self.made[id(node)] = partial(self._rekey_dict, node, {}, rows)
            # Flattened keys are names already.
            return 0
        # `state` and `param_groups`, as torch.optim.Optimizer.state_dict() has them.
        parts = dict(children_of(node))
        new = dict(zip(old, keys, strict=True))
        # A number becomes a name; a name stays unless a wrapper came off.
        renamed = sum(
            type(slot.key) is int or str(slot.key) != new[str(slot.key)]
            for slot in match.slots
        )
        renamed = 0 if names is None else renamed
        held = parts.get("state")
        if held is not None and (renamed or states):
            # Numbers stay what they are in this file: a distributed checkpoint has them
            # as text.
            is_text = names is not None or any(
                isinstance(key, str) for key in look(held).keys
            )
            rows = [
                (keys[n] if is_text else match.slots[n].key, state)
                for n, state in states.items()
            ]
            known = new if renamed else {}
            self.made[id(held)] = partial(self._rekey_dict, held, known, rows)
        # The notes of `ckpt salvage` have the old keys too.
        lost = parts.get(LOST_STATE)
        if lost is not None and renamed:
            self.made[id(lost)] = partial(
                list, [new.get(str(key), key) for key in look(lost).children]
            )
        for _, group in children_of(parts["param_groups"]) if renamed else ():
            params = dict(children_of(group))["params"]
            named = [new[str(key)] for key in look(params).children]
            self.made[id(params)] = partial(list, named)
        return renamed

    def _rekey_dict(
        self, node: Node, new: dict[str, str], rows: Sequence[tuple[Node, Node]]
    ) -> Dict:
        """A dict with other keys, and with further rows."""
        view = look(node)
        keys = [
            new.get(str(key), key) if isinstance(key, (str, int)) else key
            for key in view.keys
        ]
        copy = Dict()
        values = [self.copy_of(child) for child in view.children]
        copy.set(
            [*keys, *(key for key, _ in rows)], [*values, *(value for _, value in rows)]
        )
        return copy


# --- state before the first gradient --------------------------------------------------


def _first_states(checkpoint: Checkpoint, match: Match) -> dict[int, Dict]:
    """The state before their first gradient of the parameters that have none while
    others have, by their numbers.

    Raises UnsupportedError where it does not follow from the state of the others.
    """
    # By the number of the slot: those to get state, and those that show how it looks.
    missing = [
        n
        for n, slot in enumerate(match.slots)
        if slot.keeps_state and not slot.has_state
    ]
    holders = [n for n, slot in enumerate(match.slots) if slot.has_state]
    if not missing or not holders:
        return {}
    held = _by_number(match)
    problem = "one state stands for all of its parameters" if match.is_flat else None
    if problem is None and any(
        match.indices[number] is None for number in (*missing, *holders)
    ):
        problem = "which tensor each parameter is does not follow from the file"
    fields: list[Callable[[TensorRef], Node]] = []
    rows = [held[number] for number in holders]
    for field in rows[0] if problem is None else ():
        tensors = [_matched_parameter(checkpoint, match, number) for number in holders]
        same = all(row.keys() == rows[0].keys() for row in rows)
        if same:
            make = _first_value_maker(field, [row[field] for row in rows], tensors)
        else:
            make = None
        if make is None:
            problem = (
                f"the first value of {show(field, 60)} does not follow from the state "
                "of the others"
            )
            break
        fields.append(make)
    if problem is not None:
        name = show(match.optimizer.name, 60) or "the optimizer"
        raise UnsupportedError(
            f"--complete-optimizer: {name}: {problem}", path=checkpoint.path
        )
    states: dict[int, Dict] = {}
    for number in missing:
        tensor = _matched_parameter(checkpoint, match, number)
        states[number] = Dict()
        states[number].set(list(rows[0]), [make(tensor) for make in fields])
    return states


def _by_number(match: Match) -> dict[int, dict[str, Node]]:
    """The fields of the state of each parameter that has any, by its number."""
    numbers = {str(slot.key): number for number, slot in enumerate(match.slots)}
    states = children_of(parts_of(match.optimizer.node).get("state"))
    fields: dict[int, dict[str, Node]] = {}
    for key, state in states:
        number = numbers.get(str(key))
        if number is not None:  # else it is of no parameter
            fields[number] = {str(field): node for field, node in children_of(state)}
    return fields


def _matched_parameter(checkpoint: Checkpoint, match: Match, number: int) -> TensorRef:
    index = match.indices[number]
    assert index is not None
    return checkpoint.tensors[index].tensor  # type: ignore[return-value]


def _first_value_maker(
    field: str, nodes: Sequence[Node], parameters: Sequence[Tensor]
) -> Callable[[Tensor], Node] | None:
    """Return the maker of the first value of a field for a parameter, or None where
    that is unknown.
    """
    if field == "step":
        # `step` is an int up to torch 1.11, and a tensor without dimensions since.
        first = tensor_of(nodes[0])
        if isinstance(first, TensorRef) and first.numel == 1:
            dtype, shape, device = first.dtype, first.shape, first.device
            return lambda parameter: _zeros_tensor(dtype, shape, device)
        value = look(nodes[0]).value if first is None else None
        zero = 0 if type(value) is int else 0.0
        return (lambda parameter: zero) if type(value) in (int, float) else None
    if all(node is None for node in nodes):
        return lambda parameter: None
    tensors = [tensor_of(node) for node in nodes]
    if field not in _FIRST_ZERO or not all(
        isinstance(tensor, TensorRef) for tensor in tensors
    ):
        return None
    pairs = [
        (tensor, of)
        for tensor, of in zip(tensors, parameters, strict=True)
        if tensor is not None
    ]
    if any(tensor.shape != of.shape for tensor, of in pairs):
        return None
    device = pairs[0][0].device
    dtypes = {tensor.dtype for tensor, _ in pairs}
    # An optimizer of mixed precision keeps float32 for all of its parameters.
    if len(dtypes) == 1:
        (dtype,) = dtypes
        return lambda parameter: _zeros_tensor(dtype, parameter.shape, device)
    if all(tensor.dtype == of.dtype for tensor, of in pairs):
        return lambda parameter: _zeros_tensor(parameter.dtype, parameter.shape, device)
    return None


def _zeros_tensor(
    dtype: DType, shape: tuple[int, ...], device: str | None
) -> TensorRef:
    """A tensor of zeros, of which nothing is in memory."""
    nbytes = dtype.nbytes(prod(shape))
    storage = Storage("", device, dtype, nbytes, Range(Zeros(nbytes), 0, nbytes))
    return tensor_ref(storage, dtype, shape, contiguous(shape), 0)
