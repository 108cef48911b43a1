"""Tensors that torch could not copy into a model of the same shapes: their types, or
what the model made of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.bytes.location import path_beside
from ckpt.evidence.loading import path_subscripts, string_literal
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    load_statements,
)
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, be_verb, counted_noun, show

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
NO_TENSOR = re.compile(
    r"[Ww]hile\s+copying\s+the\s+parameter\s+named\s+\"([^\s\"]{1,2000})\",\s+"
    r"expected\s+torch\.Tensor\s+or\s+Tensor-like\s+object\s+from\s+checkpoint\s+"
    r"but\s+received\s+<class\s+'([\w.<>]{1,400})'>"
)
"""The words of load_state_dict for a value that is no tensor."""
_NO_GRADIENT = "can require gradients"
_SHARED = "single memory location"
_AROUND = " .,()'\""
"""The marks around the text of an exception."""
_SHOWN = 3


def names_of_copies(text: str) -> tuple[str, ...]:
    """The names that torch could not copy, each once."""
    return tuple(dict.fromkeys(found[1] for found in COPIED.finditer(text)))


def names_without_tensors(text: str) -> tuple[str, ...]:
    """The names whose values are no tensors, each once."""
    return tuple(dict.fromkeys(found[1] for found in NO_TENSOR.finditer(text)))


def of_no_tensors(message: Message, case: Case) -> Iterator[Statement]:
    """Answer values of a state dict that are no tensors, by the command that leaves
    them out.
    """
    found = NO_TENSOR.search(message.text)
    if found is None:
        return
    one = len(message.names) == 1
    shown = and_more([show(name, 80) for name in message.names], _SHOWN)
    yield Statement(
        f"{shown} {'is no tensor' if one else 'are no tensors'} but of "
        f"{show(found[2], 100)}: the run saved {'it' if one else 'them'} among its "
        "weights, and load_state_dict takes tensors alone. The program that saved "
        f"takes {'it' if one else 'them'} out of the dict before its load, or builds "
        f"{'it' if one else 'them'} from the data again."
    )
    sections = case.survey.candidates
    steps = path_subscripts(sections[0].path) if len(sections) == 1 else None
    to = path_beside(case.survey.path, ".plain", (".pth",), other=False)
    if to is None or steps is None:
        return
    way = case.plan(("convert", "--plain", "-o", to))
    if way.command is None:
        return
    yield from command_statements(
        "This writes a file that loads without that class:", way
    )
    yield Statement(
        "Of it the tensors alone load so, and strict=False keeps what the model itself "
        "has at the other names:",
        (),
        f'state = torch.load({string_literal(to)}, map_location="cpu"){steps}; '
        "model.load_state_dict({name: value for name, value in state.items() if "
        "torch.is_tensor(value)}, strict=False)",
    )


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
