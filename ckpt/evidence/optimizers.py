"""What the state of an optimizer says: its kind, from the names of its state, and how many parameters have state."""

from __future__ import annotations

from typing import NamedTuple

from ckpt.evidence.sections import Section
from ckpt.nodes import Node
from ckpt.tree.find import children
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


class Optimizer(NamedTuple):
    """The state of one optimizer. It has `parameters` parameters, and `with_state` of them have state."""

    family: str | None
    parameters: int
    with_state: int
    rates: tuple[float, ...]


def optimizer(section: Section) -> Optimizer | None:
    """What an optimizer section holds; None when it does not have torch's layout."""
    parts = dict(children(section.node))
    if "state" not in parts or "param_groups" not in parts:
        return None
    names: set[str] = set()
    states = children(parts["state"])
    for _, state in states[:1000]:
        names.update(str(key) for key, _ in children(state))
    parameters, rates = 0, []
    for _, group in children(parts["param_groups"]):
        fields = dict(children(group))
        view = look(fields.get("params"))
        parameters += len(view.children) if view.kind == "sequence" else 0
        rate = look(fields.get("lr")).value
        if isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate not in rates:
            if isinstance(rate, float) or abs(rate) < 2**53:  # a file may hold an int that no float holds
                rates.append(float(rate))
    family = next((name for needed, name in _FAMILIES if needed <= names), None)
    return Optimizer(family, parameters, len(states), tuple(rates))


def named_parts(node: Node) -> list[Node]:
    """The parts of an optimizer that name parameters: `state`, which may have names as keys, and the lists of names."""
    parts = dict(children(node))
    nodes = [parts["state"]] if "state" in parts else []
    for _, group in children(parts.get("param_groups")):
        fields = dict(children(group))
        nodes += [fields[name] for name in ("params", "param_names") if type(fields.get(name)) is list]
    return nodes
