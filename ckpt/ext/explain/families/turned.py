"""Matrices that have their two axes the other way round: Conv1D of GPT-2 in the place
of a Linear, and other libraries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.model.text import show

_CONV1D = re.compile(r"(?:^|\.)(?:c_attn|q_attn|c_fc|c_proj)\.weight$")
"""The layers that GPT-2 of transformers has as Conv1D."""
_WIDE = re.compile(r"(?:^|\.)(?:c_attn|c_fc)\.weight$")
"""Layers with more outputs than inputs, which tell the order of the axes."""
_ENDS = "('c_attn.weight', 'q_attn.weight', 'c_fc.weight', 'c_proj.weight')"


def are_turned(rows: Sequence[Mismatch]) -> bool:
    """Tell whether each shape of a list is the transpose of the model's."""
    return bool(rows) and all(
        len(row.checkpoint) == 2 and row.checkpoint == row.model[::-1] for row in rows
    )


def turned_statement(
    rows: Sequence[Mismatch],
    message: Message,
    shapes: Mapping[str, tuple[int, ...]],
    case: Case,
) -> Statement | None:
    """Say which side has its matrices as Conv1D of GPT-2, or return None where the
    matrices are not turned.
    """
    if not are_turned(rows):
        return None
    square = (
        "Square matrices are turned, too, and no list of shapes has them: a load of "
        "what fits takes them as they are, and the model gives nonsense."
    )
    wide = [row for row in rows if _WIDE.search(row.name)]
    sides = {row.checkpoint[0] > row.checkpoint[1] for row in wide}
    if len(sides) != 1 or not all(_CONV1D.search(row.name) for row in rows):
        return Statement(
            "Each is the transpose of the model's. Another library wrote it "
            "(TensorFlow, JAX), or one side has Conv1D of GPT-2 and the other Linear. "
            f"{square}"
        )
    linear, conv = (
        ("the file", "the model") if True in sides else ("the model", "the file")
    )
    text = (
        f"{linear[:1].upper()}{linear[1:]} has these layers as Linear ([outputs, "
        f"inputs], as nanoGPT), and {conv} as Conv1D of GPT-2 ([inputs, outputs]). "
        f"{square}"
    )
    load = case.survey.load.expression
    if load is None or len(case.survey.candidates) != 1:
        return Statement(text)
    return Statement(
        f"{text} So they load:", (), _turning_line(load, rows[0].name, message, shapes)
    )


def _turning_line(
    load: str, name: str, message: Message, shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """The line of Python that turns the matrices of Conv1D and loads the state."""
    whole = next((other for other in shapes if other.endswith(f".{name}")), name)
    prefix = "" if name in shapes else whole.removesuffix(name)
    key = f"name.removeprefix({prefix!r})" if prefix else "name"
    strict = ", strict=False" if message.missing or message.unexpected else ""
    return (
        f"model.load_state_dict({{{key}: value.T if name.endswith({_ENDS}) else value "
        f"for name, value in {load}.items()}}{strict})"
    )


_PLACE = re.compile(r"^(\d{1,4})\.(.+)$")
_LEAST = 4
"""Names on each side from which on their numbers tell another list."""
_SHOWN = 60


def places_statement(
    missing: Sequence[str], unexpected: Sequence[str]
) -> Statement | None:
    """Say that all names are places in a list, and that the lists of both sides have
    the same layers at other places, or return None.
    """
    sides = [[_PLACE.match(name) for name in names] for names in (unexpected, missing)]
    if any(len(side) < _LEAST or not all(side) for side in sides):
        return None
    parts = [{found[2] for found in side if found is not None} for side in sides]
    if parts[0] != parts[1]:
        return None
    places = [
        sorted({int(found[1]) for found in side if found is not None}) for side in sides
    ]
    here, there = (show(", ".join(map(str, row)), _SHOWN) for row in places)
    return Statement(
        "The names begin with a place in a list, and both lists have the same layers "
        f"at other places: the file alone at {here}, the model alone at {there}. So "
        "the list of the model has other modules in it, or another order (with "
        "IP-Adapter the attention of another UNet, as with motion modules of "
        "AnimateDiff). Equal numbers are other layers, and shapes that differ follow "
        "from it. Build the list as for the file, and load before anything is added."
    )
