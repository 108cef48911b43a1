"""Element types that a program does not know: NumPy, a converter, or a library that is
older than the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    finding_statements,
    load_statements,
)
from ckpt.ext.explain.families.quantized import built_by_quantizers
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.dtypes import BY_SAFETENSORS
from ckpt.model.text import and_more, be_verb, counted_noun, show

_IN_HEADERS = r"(?:BOOL|[IU](?:8|16|32|64)|B?F16|F32|F64|F4|F[68]_E\dM\d\w{0,4}|C64)"
"""The words for element types in the header of a file of safetensors."""
_OF_TABLE = rf"KeyError: ['\"]({_IN_HEADERS})['\"]|KeyError: torch\.(\w{{2,20}})\b"
_OF_NUMPY = (
    r"Got unsupported ScalarType (\w{2,20})"
    r"|data type ['\"]?(bfloat16|float8_\w{2,12})['\"]? not understood"
)
_OF_READER = rf"unknown variant `({_IN_HEADERS})`, expected one of `BOOL`"
_OF_TORCH = (
    r"module 'torch' has no attribute '((?:bfloat|float|uint)\d{1,2}(?:_\w{2,12})?)'"
)
_TYPE = re.compile("|".join((_OF_TABLE, _OF_NUMPY, _OF_READER, _OF_TORCH)))
_SCALAR_TYPES = {"half": "float16", "byte": "uint8", "char": "int8"}
"""The words of C++ for element types, in small letters, where torch has others."""
_CAST = ("bfloat16", "float16", "float64")
"""Types whose elements are numbers by themselves, which another type can hold."""


def _answer_unknown_type(message: Message, case: Case) -> Iterator[Statement]:
    """Say which tensors have the element type of an error, and what takes another."""
    found = _TYPE.search(message.text)
    if found is None:
        return
    word = next(text for text in found.groups() if text is not None)
    # Headers say `BF16`, torch `bfloat16`, and C++ `BFloat16` or `Half`.
    known = BY_SAFETENSORS.get(word)
    name = word.lower() if known is None else known.name
    name = _SCALAR_TYPES.get(name, name)
    names = [
        entry.name for entry in case.survey.tensors if entry.tensor.dtype.name == name
    ]
    # A cast in the program may have made the type, so those of the file are named.
    if not names:
        counts = Counter(entry.tensor.dtype.name for entry in case.survey.tensors)
        held = and_more([show(text, 40) for text, _ in counts.most_common()], 4)
        yield Statement(
            f"No tensor of this file is {show(name, 40)}: its tensors are {held}. "
            "Another file was loaded, or the program has cast the weights itself."
        )
        yield from load_statements(case)
        return
    yield Statement(
        f"{show(word, 40)} is an element type, and "
        f"{counted_noun(len(names), 'tensor')} of this file {be_verb(names)} "
        f"{show(name, 40)}: {and_more([show(text, 120) for text in names], 3)}. "
        f"{_reason_of(message.text)}"
    )
    scaled = case.scaled_findings
    if scaled:
        yield from finding_statements(scaled)
        yield from built_by_quantizers(case)
    # Codes of quantizers are no numbers by themselves, so no cast is offered.
    elif name in _CAST:
        yield from command_statements(
            "The same weights in float32, which every program knows:",
            case.plan(("convert", "--dtype", "float32")),
        )


def _reason_of(text: str) -> str:
    """The sentence on the program that does not know a type, with what helps."""
    # torch writes `Got unsupported ScalarType BFloat16` in numpy().
    if re.search(_OF_NUMPY, text):
        return (
            "NumPy has no such type: cast before numpy(), as in tensor.float().numpy()."
        )
    # safetensors writes: unknown variant `F8_E4M3`, expected one of `BOOL`, …
    if re.search(_OF_READER, text):
        return (
            "The safetensors that reads it is older than the type: pip install -U "
            "safetensors."
        )
    if re.search(_OF_TORCH, text):
        return "The torch that reads it is older than the type: take a newer one."
    return (
        "The program looks it up in a table of its own, which has no row for it: it is "
        "older than the type, or takes plain floats alone."
    )


FAMILIES = (
    Family(
        "unknown-type",
        (_OF_TABLE, _OF_NUMPY, _OF_READER, _OF_TORCH),
        answer_from_statements(_answer_unknown_type),
        needs_open=True,
    ),
)
