"""The state of an optimizer in the other layout: moments go the way of their
parameters.

Moments have an element for each element of a parameter. Steps must be equal where
several parameters become one. State of another shape is listed, for a recipe says
nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.report import Change, Leftover, RewriteReport
from ckpt.elements.cast import few, has_numbers
from ckpt.evidence.joining import join_names
from ckpt.evidence.matching import Match
from ckpt.evidence.optimizers import parts_of
from ckpt.evidence.survey import Survey
from ckpt.ext.layouts.apply import made_tensor
from ckpt.ext.layouts.pieces import Piece
from ckpt.ext.layouts.proof import Leaf, leaf_of, read_elements
from ckpt.ext.layouts.rules import Expanded, Target, Wanted
from ckpt.ext.layouts.sides import entries_of, unread_kind
from ckpt.model.errors import LossError, UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Node, dict_of, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.model.text import and_more, show_name
from ckpt.tree.find import children_of
from ckpt.tree.view import look

_STEP = "step"


class OptimizerState(NamedTuple):
    """An optimizer by the names of the parameters, and what of its state is
    left out.
    """

    node: Dict
    parameters: int
    """The number of parameters with state."""
    left_out: tuple[Leftover, ...]


class _State(NamedTuple):
    """The state of one parameter: its moments, and all other fields."""

    moments: dict[str, Leaf]
    others: dict[str, Node]


class _Given(NamedTuple):
    """The state and the groups of an optimizer, by the names of parameters."""

    match: Match
    states: dict[str, _State]
    groups: dict[str, int]
    """The number of the group of each parameter."""


def with_optimizer(
    report: RewriteReport,
    survey: Survey,
    plan: Expanded,
    section: str | None,
    limits: Limits,
    *,
    in_order: bool,
) -> RewriteReport:
    """The report with the model and its optimizer in one dict. Raises CkptError."""
    state = converted_optimizer(survey, plan, section, in_order=in_order)
    pairs = [("model", report.result.root), ("optimizer", state.node)]
    result = edited_checkpoint(report.result, dict_of(pairs), limits, origin=None)
    name = _only_match(survey).optimizer.name
    # The root was named as left out of the model; now it is taken.
    left_out = [row for row in report.left_out if row.name != (name or "(the root)")]
    change = Change(
        "state",
        "numbers",
        "names",
        state.parameters,
        "parameter",
        section=name,
    )
    return report._replace(
        result=result,
        changes=(*report.changes, change),
        left_out=(*left_out, *state.left_out),
    )


def converted_optimizer(
    survey: Survey,
    plan: Expanded,
    section: str | None,
    *,
    in_order: bool,
) -> OptimizerState:
    """The only optimizer of a checkpoint in the layout that a plan makes.

    With `in_order` the optimizer is said to have its parameters in the order of the
    model. Raises UsageError without an optimizer, UnsupportedError where the names of
    its parameters are not sure, LossError where parameters become one that have other
    steps or are of two groups.
    """
    given = _given_state(survey, section, in_order=in_order)
    left_out: list[Leftover] = []
    states: dict[str, Node] = {}
    members: dict[int, list[Node]] = {}
    for target in plan.targets:
        names = _source_names(target)
        groups = {given.groups.get(name) for name in names}
        # A tensor without a group is no parameter: a buffer, or a constant.
        if not names or groups == {None}:
            continue
        if len(groups) > 1:
            # Groups have settings of their own, such as the learning rate: a parameter
            # made of two would have both.
            first_group, second_group = list(groups)[:2]
            one = _first_of(names, given.groups, first_group)
            two = _first_of(names, given.groups, second_group)
            problem = f"{show_name(target.name)} is made of {one} and {two}"
            raise LossError(f"--optimizer: {problem}, which are not of one group")
        members.setdefault(groups.pop() or 0, []).append(target.name)
        state, left = _converted_state(target, names, given)
        left_out += left
        if state is not None:
            states[target.name] = state
    used: set[str] = set()
    for target in plan.targets:
        used.update(_source_names(target))
    for name in given.states.keys() - used:
        left_out.append(Leftover(name, "state of a parameter that the recipe drops"))
    groups_made = _made_groups(given.match, members)
    pairs: list[tuple[Node, Node]] = [
        ("state", dict_of(states.items())),
        ("param_groups", groups_made),
    ]
    return OptimizerState(dict_of(pairs), len(states), tuple(left_out))


def _source_names(target: Target) -> list[str]:
    """The tensors of A that a target is made of, each once."""
    names = [piece.source for piece in target.pieces if piece.source is not None]
    return list(dict.fromkeys(names))


def _first_of(
    names: Sequence[str],
    groups: Mapping[str, int],
    group: int | None,
) -> str:
    """The first parameter of a group, as it is shown."""
    return show_name(next(name for name in names if groups.get(name) == group))


def _given_state(survey: Survey, section: str | None, *, in_order: bool) -> _Given:
    """The state of the only optimizer. Raises UsageError, UnsupportedError."""
    match = _only_match(survey)
    row = join_names(survey.checkpoint, match)
    if not row.is_sure and not (row.in_order and in_order):
        # A wrong order gives moments to wrong parameters, which no shape betrays.
        way = (
            "--optimizer-keys order if it got its parameters in the order of the model"
        )
        hint = way if row.in_order else None
        problem = f"--optimizer: its parameters have no sure names: {row.reason}"
        raise UnsupportedError(problem, path=survey.path, hint=hint)
    names = {id(entry): name for name, entry in entries_of(survey, section)}
    tensors = survey.checkpoint.tensors
    parts = parts_of(match.optimizer.node)
    nodes = {str(key): node for key, node in children_of(parts.get("state"))}
    # Keys are numbers in a plain state dict, and names in one of FSDP or DCP.
    group_of: dict[str, int] = {}
    for number, group in enumerate(_group_nodes(match)):
        for key in look(dict(children_of(group)).get("params")).children:
            group_of[str(key)] = number
    states: dict[str, _State] = {}
    groups: dict[str, int] = {}
    for slot, index in zip(match.slots, match.indices, strict=True):
        entry = None if index is None else tensors[index]
        name = None if entry is None else names.get(id(entry))
        if entry is None or name is None:
            continue
        groups[name] = group_of.get(str(slot.key), 0)
        node = nodes.get(str(slot.key))
        if node is not None:
            states[name] = _split_state(name, entry.tensor.shape, node)
    return _Given(match, states, groups)


def _only_match(survey: Survey) -> Match:
    """The only optimizer and its parameters. Raises UsageError."""
    found = [
        row for row in survey.matches if row.slots and row.optimizer.node is not None
    ]
    if len(found) == 1:
        return found[0]
    problem = (
        "several optimizers" if found else "no optimizer whose parameters it knows"
    )
    raise UsageError(f"--optimizer: ckpt finds {problem}", path=survey.path)


def _group_nodes(match: Match) -> list[Node]:
    """The groups of an optimizer as its file has them."""
    groups = parts_of(match.optimizer.node).get("param_groups")
    return [group for _, group in children_of(groups)]


def _split_state(name: str, shape: Sequence[int], node: Node) -> _State:
    """The state of a parameter of this shape: moments, and all else."""
    moments: dict[str, Leaf] = {}
    others: dict[str, Node] = {}
    for key, value in children_of(node):
        tensor = tensor_of(value)
        # The step of Adam is a tensor too: that of a parameter without dimensions has
        # its shape.
        is_like = isinstance(tensor, TensorRef) and tensor.shape == tuple(shape)
        if is_like and key != _STEP and isinstance(tensor, TensorRef):
            if unread_kind(tensor) is None:
                moments[str(key)] = leaf_of(name, tensor)
                continue
        others[str(key)] = value
    return _State(moments, others)


def _converted_state(
    target: Target,
    names: Sequence[str],
    given: _Given,
) -> tuple[Dict | None, list[Leftover]]:
    """The state of a target, or None, and what is left out of it. Raises LossError."""
    own = [given.states[name] for name in names if name in given.states]
    if not own:
        return None, []
    if len(own) < len(names):
        why = "made of parameters of which some have no state"
        return None, [Leftover(target.name, why)]
    if any(piece.formula for piece in target.pieces):
        why = "a number is folded into it, which its moments do not follow"
        return None, [Leftover(target.name, why)]
    left_out: list[Leftover] = []
    fields: dict[str, Node] = {}
    # The fields that are one number: the parameters that become one must agree on it.
    for key in dict.fromkeys([key for state in own for key in state.others]):
        values = [state.others.get(key) for state in own]
        if _is_array(values[0]):
            why = "not one number for each element of its parameter"
            left_out.append(Leftover(f"{target.name}: {key}", why))
        else:
            fields[key] = _common_value(target.name, key, values)
    # The fields with a number for each element go the way of the elements.
    for key in dict.fromkeys([key for state in own for key in state.moments]):
        leaves = [state.moments[key] for state in own if key in state.moments]
        if len(leaves) < len(own):
            why = "made of parameters of which some have none"
            left_out.append(Leftover(f"{target.name}: {key}", why))
        else:
            fields[key] = _made_moment(target, leaves)
    return dict_of(fields.items()), left_out


def _is_array(node: Node) -> bool:
    """Tell whether a field has several numbers, or numbers that are not read."""
    tensor = tensor_of(node)
    if tensor is None:
        return False
    is_one = isinstance(tensor, TensorRef) and prod(tensor.shape) == 1
    return not is_one or not has_numbers(tensor.dtype)


def _common_value(name: str, key: str, values: Sequence[Node]) -> Node:
    """The value that all parameters have. Raises LossError where they have several."""
    shown = list(dict.fromkeys([_value_text(value) for value in values]))
    if len(shown) > 1:
        problem = (
            f"{show_name(name)} is made of parameters with the {key} "
            f"{and_more(shown, 3)}"
        )
        raise LossError(f"--optimizer: {problem}, and can have one")
    return values[0]


def _value_text(node: Node) -> str:
    """A field of one number as text. Raises UnreadableError."""
    tensor = tensor_of(node)
    if not isinstance(tensor, TensorRef):
        return repr(node)
    raw = read_elements(leaf_of("", tensor).flat, 0, ((1, 1),))
    return f"{few(raw.tobytes(), tensor.dtype)[0]:g}"


def _made_moment(target: Target, leaves: Sequence[Leaf]) -> TensorRef:
    """A moment of a target, made of the moments of its parameters.

    Padding has no gradient, so its moment is 0.
    """
    dtype = leaves[0].dtype
    # The plan of the parameter, with the dtype of the moments: nothing is cast.
    pieces: list[Piece] = [piece._replace(constant=0) for piece in target.pieces]
    moment = Target(target.name, target.shape, dtype, tuple(pieces))
    wanted = {leaf.name: Wanted(leaf.name, leaf.shape, leaf.dtype) for leaf in leaves}
    sources = {leaf.name: leaf for leaf in leaves}
    return made_tensor(moment, Expanded((), wanted), sources)


def _made_groups(match: Match, members: Mapping[int, list[Node]]) -> list[Node]:
    """The groups with the names of the new parameters; a group without any is
    left out.
    """
    return [
        dict_of(_group_fields(group, members[number]))
        for number, group in enumerate(_group_nodes(match))
        if number in members
    ]


def _group_fields(group: Node, names: list[Node]) -> Iterator[tuple[str, Node]]:
    """Yield the fields of a group, with these parameters."""
    for key, value in children_of(group):
        # `param_names` says the names of A's parameters, which are gone.
        if str(key) == "param_names":
            continue
        yield str(key), names if str(key) == "params" else value
