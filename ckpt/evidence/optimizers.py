"""The kind of an optimizer, from the names of its state, and how many parameters have
state.

`get_state_dict` of torch can flatten it: `state.NAME.exp_avg` and
`param_groups.NAME.lr` for each parameter, in one dict
(torch/distributed/checkpoint/state_dict.py `_flatten_optim_state_dict`). Here both are
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    (frozenset(("square_avg",)), "RMSprop"),
    (frozenset(("sum",)), "Adagrad"),
    (frozenset(("old_dirs",)), "LBFGS"),
    (frozenset(("exp_avg",)), "Lion-like"),
    (frozenset(("momentum_buffer",)), "with momentum"),
)


LOST_STATE = "ckpt_lost"
"""The key of an optimizer that `ckpt salvage` wrote: the parameters of which state was
lost. torch ignores it.
"""


class Optimizer(NamedTuple):
    """The state of one optimizer. It has `parameters` parameters, and `with_state` of
    them have state.
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


def optimizer_facts(section: Section) -> Optimizer | None:
    """Return the content of an optimizer section, or None when it does not have torch's
    layout.
    """
    parts = parts_of(section.node)
    if "param_groups" not in parts or not ("state" in parts or groups_alone(parts)):
        return None
    names: set[str] = set()
    states = children_of(parts.get("state"))
    for _, state in states[:1000]:
        names.update(str(key) for key, _ in children_of(state))
    parameters, rates = 0, []
    begins = bool(states)
    groups = children_of(parts["param_groups"])
    is_plain = bool(groups) and not states
    for _, group in groups:
        fields = dict(children_of(group))
        view = look(fields.get("params"))
        parameters += len(view.children) if view.kind == "sequence" else 0
        begins = begins or not ("betas" in fields or look(fields.get("momentum")).value)
        is_plain = (
            is_plain
            and "dampening" in fields
            and look(fields.get("momentum")).value == 0
        )
        rate = (
            None if type(fields.get("lr")) is bool else counter(fields.get("lr"))
        )  # a number, or a tensor of one
        if rate is not None and rate not in rates:
            rates.append(rate)
    family = next((name for needed, name in _FAMILIES if needed <= names), None)
    return Optimizer(
        family,
        parameters,
        len(states),
        tuple(rates),
        begins or not parameters,
        is_plain,
    )


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
    kept, grouped = FLATTENED
    for key, value in rows:
        name, _, field = str(key).removeprefix(grouped).rpartition(".")
        if str(key).startswith(grouped) and name:
            groups.setdefault(name, Dict()).set([field], [value])
    for key, value in rows:
        if str(key).startswith(kept):
            name, field = _split_name_and_field(str(key).removeprefix(kept), groups)
            states.setdefault(name, Dict()).set([field], [value])
    for name, group in groups.items():
        group.set(["params"], [[name]])
    return {"state": dict_of(states.items()), "param_groups": list(groups.values())}


def _split_name_and_field(text: str, names: dict[str, Dict]) -> tuple[str, str]:
    """The name of a parameter and the field of its state, which may have dots of its
    own (Shampoo).
    """
    for name, field in cut_at_dots(text):
        if name in names:
            return name, field
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

    def renamed(names: dict[str, str]) -> dict[str, str]:
        new_names: dict[str, str] = {}
        for key in keys:
            start = next(part for part in FLATTENED if key.startswith(part))
            for name, field in cut_at_dots(key.removeprefix(start)):
                if name in names:
                    new_names[key] = f"{start}{names[name]}.{field}"
                    break
        return new_names

    return renamed


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
    groups = children_of(parts.get("param_groups"))
    return bool(groups) and all(
        "params" in dict(children_of(group)) for _, group in groups
    )


def named_parts(node: Node) -> list[Node]:
    """The parts of an optimizer that name parameters: `state`, which may have names as
    keys, and the lists of names.
    """
    parts = dict(children_of(node))
    nodes = [parts["state"]] if "state" in parts else []
    for _, group in children_of(parts.get("param_groups")):
        fields = dict(children_of(group))
        nodes += [
            fields[name]
            for name in ("params", "param_names")
            if type(fields.get(name)) is list
        ]
    return nodes
