"""The kind of an optimizer, from the names of its state, and how many parameters have
state.

`get_state_dict` of torch can flatten it: `state.NAME.exp_avg` and
`param_groups.NAME.lr` for each parameter, in one dict
(torch/distributed/checkpoint/state_dict.py `_flatten_optim_state_dict`). Here both are
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ckpt.evidence.sections import FLATTENED, Section, is_flattened
from ckpt.model.nodes import Dict, Node, dict_of
from ckpt.model.rows import NamedTuple
from ckpt.tree.find import children_of, counter
from ckpt.tree.view import look

# State names -> the family of optimizers that keeps them. The first that fits counts.
_FAMILIES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset(("exp_avg", "exp_avg_sq")), "Adam-like"),
    (frozenset(("exp_avg", "exp_avg_var")), "AdaBelief-like"),
    (frozenset(("exp_avg", "exp_inf")), "Adamax"),
    (frozenset(("row_var", "col_var")), "Adafactor"),
    (frozenset(("square_avg", "acc_delta")), "Adadelta"),
    (frozenset(("prev", "step_size")), "Rprop"),
    (frozenset(("mu", "eta", "ax")), "ASGD"),
    # RMSprop after Adadelta, whose state has square_avg too.
    (frozenset(("square_avg",)), "RMSprop"),
    (frozenset(("sum",)), "Adagrad"),
    (frozenset(("old_dirs",)), "LBFGS"),
    (frozenset(("exp_avg",)), "Lion-like"),
    (frozenset(("momentum_buffer",)), "with momentum"),
    # bitsandbytes numbers its moments, in 8 bits or in 32.
    (frozenset(("state1", "state2")), "Adam-like"),
    (frozenset(("state1",)), "with momentum"),
)


_SEEN_STATES = 1_000
"""Parameters whose states are looked at for the family: all of them have one kind."""
LOST_STATE = "ckpt_lost"
"""The key of an optimizer that `ckpt salvage` wrote: the parameters of which state was
lost. torch ignores it.
"""


class Optimizer(NamedTuple):
    """The state of one optimizer. It has `parameters` parameters, and `with_state` of
    them have their state.
    """

    family: str | None
    parameters: int
    with_state: int
    rates: tuple[float, ...]
    has_begun: bool = True
    """False where it has no state and is of a kind that has some after its
    first step.
    """
    is_plain_sgd: bool = False
    """True for SGD without momentum, which never has state."""
    lost: int = 0
    """Parameters whose state `ckpt salvage` could not save, or only a part of it."""


def optimizer_facts(section: Section) -> Optimizer | None:
    """Return the content of an optimizer section, or None when it does not have torch's
    layout.
    """
    parts = parts_of(section.node)
    if "param_groups" not in parts or not ("state" in parts or groups_alone(parts)):
        return None
    states = children_of(parts.get("state"))
    groups = [
        dict(children_of(group)) for _, group in children_of(parts["param_groups"])
    ]
    parameters = 0
    rates: list[float] = []
    for group in groups:
        params = look(group.get("params"))
        if params.kind == "sequence":
            parameters += len(params.children)
        rate = _learning_rate(group)
        if rate is not None and rate not in rates:
            rates.append(rate)
    # Every kind with betas or momentum has state after its first step. So a group
    # without either may have been stepped, although there is no state.
    may_have_begun = any(not _keeps_state(group) for group in groups)
    is_plain_sgd = (
        bool(groups) and not states and all(_is_plain_sgd(group) for group in groups)
    )
    lost_keys = {
        str(key)
        for key in look(parts.get(LOST_STATE)).children
        if type(key) in (int, str)
    }
    return Optimizer(
        _family_of(states),
        parameters,
        sum(str(key) not in lost_keys for key, _ in states),
        tuple(rates),
        has_begun=bool(states) or may_have_begun or not parameters,
        is_plain_sgd=is_plain_sgd,
        lost=len(lost_keys),
    )


def _family_of(states: Sequence[tuple[Node, Node]]) -> str | None:
    """The family of optimizers that keeps states of these names, or None."""
    names: set[str] = set()
    for _, state in states[:_SEEN_STATES]:
        names.update(str(key) for key, _ in children_of(state))
    for needed, family in _FAMILIES:
        if needed <= names:
            return family
    return None


def _learning_rate(group: Mapping[str | int, Node]) -> float | None:
    """The learning rate of a group, a number or a tensor of one number; else None."""
    rate = group.get("lr")
    # A bool counts as a number for `counter`.
    return None if type(rate) is bool else counter(rate)


def _keeps_state(group: Mapping[str | int, Node]) -> bool:
    """Tell whether a group is of a kind that has state after its first step."""
    return "betas" in group or bool(look(group.get("momentum")).value)


def _is_plain_sgd(group: Mapping[str | int, Node]) -> bool:
    """Tell whether a group is SGD's, which alone has `dampening`, without momentum."""
    return "dampening" in group and look(group.get("momentum")).value == 0


def parts_of(node: Node) -> dict[str | int, Node]:
    """The parts of an optimizer by their keys, `state` and `param_groups` too where
    they are flattened.

    Each parameter of a flattened one is a group, for nothing tells which of them were
    one.
    """
    rows = children_of(node)
    if not is_flattened([key for key, _ in rows]):
        return dict(rows)
    groups: dict[str, Dict] = {}
    states: dict[str, Dict] = {}
    state_start, group_start = FLATTENED
    # The groups come first: only their names tell where the name of a parameter ends
    # and the field of its state begins.
    for key, value in rows:
        name, _, field = str(key).removeprefix(group_start).rpartition(".")
        if str(key).startswith(group_start) and name:
            groups.setdefault(name, Dict()).set([field], [value])
    for key, value in rows:
        if str(key).startswith(state_start):
            rest = str(key).removeprefix(state_start)
            name, field = _split_name_and_field(rest, groups)
            states.setdefault(name, Dict()).set([field], [value])
    for name, group in groups.items():
        group.set(["params"], [[name]])
    return {"state": dict_of(states.items()), "param_groups": list(groups.values())}


def _split_name_and_field(text: str, names: dict[str, Dict]) -> tuple[str, str]:
    """The name of a parameter and the field of its state, which may have dots of its
    own (Shampoo).
    """
    # The last dot first: a name of a parameter has dots, and most fields have none.
    for name, field in cut_at_dots(text):
        if name in names:
            return name, field
    # No group has this name, so the usual field without dots is all that can be meant.
    name, _, field = text.rpartition(".")
    return name, field


def cut_at_dots(text: str) -> Iterator[tuple[str, str]]:
    """A text cut at each of its dots, the last one first."""
    dot = text.rfind(".")
    while dot > 0:
        yield text[:dot], text[dot + 1 :]
        dot = text.rfind(".", 0, dot)


def flattened_names(node: Node) -> Callable[[dict[str, str]], dict[str, str]] | None:
    """For a flattened optimizer what makes new keys: old names of parameters with new
    ones -> old keys with new ones.
    """
    rows = children_of(node)
    if not is_flattened([key for key, _ in rows]):
        return None
    keys = [str(key) for key, _ in rows]

    def rename_keys(new_names: dict[str, str]) -> dict[str, str]:
        new_keys: dict[str, str] = {}
        for key in keys:
            start = next(part for part in FLATTENED if key.startswith(part))
            for name, field in cut_at_dots(key.removeprefix(start)):
                if name in new_names:
                    new_keys[key] = f"{start}{new_names[name]}.{field}"
                    break
        return new_keys

    return rename_keys


def first_field(section: Section) -> str | None:
    """Return the first field of a parameter's state: `step`, or `momentum_buffer`.

    None when no parameter has state.
    """
    for _, state in children_of(parts_of(section.node).get("state")):
        for field, _ in children_of(state):
            return str(field)
    return None


def groups_alone(parts: dict[str | int, Node]) -> bool:
    """Tell whether the groups belong to an optimizer without state.

    Its empty state is missing, because files of names hold no empty dict.
    """
    groups = [group for _, group in children_of(parts.get("param_groups"))]
    if not groups:
        return False
    return all("params" in dict(children_of(group)) for group in groups)


def named_parts(node: Node) -> list[Node]:
    """The parts of an optimizer that name parameters: `state`, which may have names as
    keys, and the lists of names.
    """
    parts = dict(children_of(node))
    nodes = [parts["state"]] if "state" in parts else []
    for _, group in children_of(parts.get("param_groups")):
        fields = dict(children_of(group))
        for key in ("params", "param_names"):
            names = fields.get(key)
            if type(names) is list:
                nodes.append(names)
    return nodes
