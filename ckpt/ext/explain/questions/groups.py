"""The groups of an optimizer: the weight decay and the rate of each, and the kinds of
parameters that it has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ckpt.evidence.matching import Match, groups_of
from ckpt.evidence.optimizers import parts_of
from ckpt.ext.explain.case import Case, Statement
from ckpt.model.nodes import Node
from ckpt.model.text import and_more, be_verb, counted_noun, show
from ckpt.tree.find import children_of
from ckpt.tree.view import look

ASKS_OF_GROUPS = (
    r"\bweight[ _-]?decay\b[^\n]{0,60}\b(?:norms?|batch ?norms?|layer ?norms?|bn|bias"
    r"|biases|applied|all|embeddings?|groups?|which|every)\b|\b(?:which|what|are|is|do"
    r"|does)\b[^\n]{0,60}\b(?:decayed|no[ _-]decay)\b|\bparam\w{0,6}[ _-]?groups?\b"
    r"|\b(?:different|same|own|separate) (?:learning[ _-]?rates?|lrs?)\b"
    r"|\blayer-?wise (?:lr|learning)\b|\bdiscriminative (?:lr|learning)\b"
)
"""Words of a question for the groups of an optimizer."""
_FIELDS = ("lr", "weight_decay")
_SHOWN = 8


def of_groups(text: str, case: Case) -> Iterator[Statement]:
    """Say which rate and weight decay each group of an optimizer has, and which kinds
    of parameters are in it.
    """
    for use in case.survey.uses:
        if _ASKS_OF_STATE.search(text):
            yield from _state_statement(use.match)
        yield from _groups_statements(use.match, case)


_ASKS_OF_STATE = re.compile(
    r"(?i)\bwhat(?:'s| is| are| does)\b[^\n]{0,80}\b(?:state|stored|inside|params)\b"
)


def _state_statement(match: Match) -> Iterator[Statement]:
    """Say what the two parts of the state of an optimizer are."""
    states = parts_of(match.optimizer.node).get("state")
    rows = [row for _, row in children_of(states)] if states is not None else []
    if not rows:
        return
    fields = and_more([show(str(key), 40) for key, _ in children_of(rows[0])], 6)
    name = show(match.optimizer.name, 60) or "The optimizer"
    yield Statement(
        f"{name} has two parts, and none of them is a weight. Its state has a row for "
        f"each parameter, by number ({counted_noun(len(rows), 'row')}, with {fields}): "
        "what the optimizer keeps of the gradients, mostly in the shape of the "
        "parameter. Its param_groups have the settings (the rate, the decay), and "
        "params in them are those numbers, in the order in which the optimizer got the "
        "parameters. A model with other layers takes none of it: the optimizer begins "
        "anew there, which costs some steps until its averages are right."
    )


def _groups_statements(match: Match, case: Case) -> Iterator[Statement]:
    """Say what the groups of one optimizer have."""
    fields = [
        dict(children_of(group))
        for _, group in children_of(parts_of(match.optimizer.node).get("param_groups"))
    ]
    groups = groups_of(match.optimizer)
    counts = [len(group.slots) for group in groups]
    if not groups or len(fields) != len(groups) or sum(counts) != len(match.slots):
        return
    name = show(match.optimizer.name, 60) or "The optimizer"
    yield Statement(
        f"{name} has {counted_noun(len(groups), 'group')} of parameters."
        if len(groups) > 1
        else f"{name} has one group, so all of its parameters have the same settings."
    )
    first = 0
    for number, count in enumerate(counts[:_SHOWN]):
        slots = range(first, first + count)
        first += count
        settings = [
            f"{key} {shown}"
            for key in _FIELDS
            if (shown := _scalar_text(fields[number].get(key))) is not None
        ]
        kinds = Counter(_kind_of(match, slot, case) for slot in slots)
        held = and_more(
            [
                f"{amount:,} {_KINDS[kind][amount != 1]}"
                for kind, amount in kinds.most_common()
            ],
            4,
        )
        which = f"Group {number}" if len(groups) > 1 else "It"
        said = and_more(settings, 4) or "no rate and no decay"
        yield Statement(f"{which} has {said}, for {held}.")
    if len(counts) > _SHOWN:
        rest = counted_noun(len(counts) - _SHOWN, "further group")
        yield Statement(f"{rest} {be_verb(len(counts) - _SHOWN)} not listed here.")


def _scalar_text(node: Node) -> str | None:
    """A number of a group in words, or None."""
    value = look(node).value
    # True is an int for isinstance.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:g}"
    return None


_KINDS = {
    "matrix": ("matrix or kernel", "matrices or kernels"),
    "bias": ("bias", "biases"),
    "vector": ("other vector", "other vectors (as the scales of norms)"),
    "unnamed": ("vector", "vectors"),
    "any": ("parameter", "parameters"),
}
"""A kind of parameter -> its words for one and for several."""


def _kind_of(match: Match, slot: int, case: Case) -> str:
    """The kind of a parameter: by its name where it is known, else by its shape."""
    index = match.indices[slot]
    if index is None:
        shape = match.slots[slot].shape
        if shape is None:
            return "any"
        # A vector without a name may be a bias or the scale of a norm.
        return "matrix" if len(shape) > 1 else "unnamed"
    entry = case.survey.checkpoint.tensors[index]
    if len(entry.tensor.shape) > 1:
        return "matrix"
    return "bias" if entry.name.endswith("bias") else "vector"
