"""Tensors that torch could not copy into a model of the same shapes: their types, or
what the model made of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, be_verb, load_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, counted_noun, show

_SIZES = r"(?:torch\.Size\()?[\[(]([\d,\s]{0,400})[\])]\)?"
# Group 1 is the name, 2 and 3 are the sizes in the model and in the checkpoint, 4 is
# the exception, which newer versions of torch add.
COPIED = re.compile(
    r"[Ww]hile\s+copying\s+the\s+parameter\s+named\s+\"?'?([^\s\"',]{1,2000})\"?'?,"
    rf"\s+whose\s+dimensions\s+in\s+the\s+model\s+are\s+{_SIZES}\s+and\s+whose"
    rf"\s+dimensions\s+in\s+the\s+checkpoint\s+are\s+{_SIZES}"
    r"(?:,\s+an\s+exception\s+occurred\s?:\s+([^\n]{1,1000}))?"
)
"""The words of load_state_dict for a tensor that it could not copy."""
_NO_GRADIENT = "can require gradients"
_SHARED = "single memory location"
_AROUND = " .,()'\""
"""The marks around the text of an exception."""
_SHOWN = 3


def names_of_copies(text: str) -> tuple[str, ...]:
    """The names that torch could not copy, each once."""
    return tuple(dict.fromkeys(found[1] for found in COPIED.finditer(text)))


def of_copies(message: Message, case: Case) -> Iterator[Statement]:
    """Answer tensors that torch could not copy, by their types in the file and by the
    exception.
    """
    found = COPIED.search(message.text)
    if found is None:
        return
    tensors = {entry.name: entry.tensor for entry in case.survey.tensors}
    # The message has the names of a state dict, which the file may have below a key.
    for section in case.survey.candidates:
        for name, entry in zip(section.names(), section.entries, strict=True):
            tensors.setdefault(name, entry.tensor)
    held = {name: tensors[name] for name in message.names if name in tensors}
    if not held:
        yield Statement(
            f"{counted_noun(len(message.names), 'tensor')} of the message "
            f"{be_verb(message.names)} not in this file: another file was loaded.",
            message.names[:_SHOWN],
        )
        yield from load_statements(case)
        return
    types = and_more(sorted({tensor.dtype.name for tensor in held.values()}), 3)
    shown = and_more([show(name, 120) for name in held], _SHOWN)
    # A terminal may wrap one of the sizes: compare without the white space.
    same = found[2].split() == found[3].split()
    shapes = "The shapes are those of the model. " if same else ""
    reason = found[4] or ""
    yield Statement(
        f"{shapes}{counted_noun(len(held), 'tensor')} could not be copied: {shown}, of "
        f"type {types} in this file."
    )
    has_numbers = any(
        tensor.dtype.kind not in ("float", "complex") for tensor in held.values()
    )
    if _NO_GRADIENT in reason and has_numbers:
        yield Statement(
            "They are whole numbers, and the model has them as parameters that require "
            "gradients, which torch has for floats alone. Give the model buffers in "
            "their place (register_buffer), or nn.Parameter(…, requires_grad=False). "
            "The file is not the cause, and its other tensors load."
        )
    # torch says `more than one element of the written-to tensor refers to a single
    # memory location`.
    elif _SHARED in reason:
        yield Statement(
            "The tensor of the model is an expanded view, whose elements are one "
            "memory: torch does not write into it. Make it whole first "
            "(.contiguous() or .clone() where the model registers it)."
        )
    elif reason:
        said = show(reason.strip(_AROUND), 300)
        yield Statement(f"The exception of torch is the reason: {said}.")
