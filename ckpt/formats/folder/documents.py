"""The small files beside the weights of a folder, JSON and text, as inert values."""

from __future__ import annotations

import re

from ckpt.checkpoint import Checkpoint, Traits
from ckpt.errors import LimitError
from ckpt.io.location import Location, read_file
from ckpt.limits import Budget, Limits
from ckpt.nodes import Dict, Node
from ckpt.parse import parse_json
from ckpt.text import Json
from ckpt.tree.walk import flatten

TEXT_BYTES = 1 << 16
"""A text beside checkpoints is smaller: `counter.ckpt` has one number."""

_JSON = Traits("JSON")
_TEXT = Traits("text")


def read_json(location: Location, name: str, limits: Limits, budget: Budget) -> Checkpoint:
    """A JSON document as values. Python's own writer puts NaN and Infinity into it, so these are read too.

    Raises UnreadableError, LimitError.
    """
    data = read_file(location, limits, name)
    return _document(
        location, len(data), _JSON, parse_json(data, "JSON", budget, constants=True), limits, budget
    )


def read_text(location: Location, name: str, limits: Limits, budget: Budget) -> Checkpoint | None:
    """A small text as a value; None when the file is not one.

    A number is a number. Lines of `name: value` are a mapping, as SpeechBrain writes them with YAML. Any other text
    stays one text: no YAML is interpreted.
    """
    source = location.open()
    try:
        if source.size > TEXT_BYTES:
            return None
        data = source.read(0, source.size)
    finally:
        source.close()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text.strip() or any(ord(letter) < 0x20 and letter not in "\t\r\n" for letter in text):
        return None
    budget.charge(10 * len(data), name)
    return _document(location, len(data), _TEXT, _values(text), limits, budget)


def _document(
    location: Location, nbytes: int, traits: Traits, value: Json, limits: Limits, budget: Budget
) -> Checkpoint:
    root = _node(value, limits, 0)
    # Without containers: a document is never a section, whatever its keys are.
    values = tuple(flatten(_node(_shown(value), limits, 0), limits, budget).values)
    return Checkpoint(location.name, traits.label, traits, nbytes, root, (), (), values)


def _node(value: Json, limits: Limits, depth: int) -> Node:
    if depth > limits.depth:
        raise LimitError("the document is nested too deep", "depth", limits.depth)
    if isinstance(value, dict):
        node = Dict()
        node.set(list(value), [_node(child, limits, depth + 1) for child in value.values()])
        return node
    if isinstance(value, list):
        return [_node(child, limits, depth + 1) for child in value]
    assert value is None or isinstance(value, (str, int, float))  # nothing else is in JSON
    return value


def _shown(value: Json) -> Json:
    """A document without its tables: `log_history` has a row for each step. `ckpt get` finds them in the tree."""
    if not isinstance(value, dict):
        return value
    return {
        key: child
        for key, child in value.items()
        if not isinstance(child, list) or not any(isinstance(row, (dict, list)) for row in child)
    }


_LINE = re.compile(r"([A-Za-z_][\w.-]{0,99}): +(\S.*)")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_FRACTION = re.compile(r"-?(?:0|[1-9]\d{0,30})\.\d{0,30}(?:[eE][-+]?\d{1,3})?")
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None}


def _values(text: str) -> Json:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [_LINE.fullmatch(line.rstrip()) for line in lines]
    pairs = {row[1]: _scalar(row[2]) for row in rows if row is not None and _is_plain(row[2])}
    if lines and len(pairs) == len(lines):
        return pairs
    return _scalar(lines[0].strip()) if len(lines) == 1 else text


def _is_plain(text: str) -> bool:
    """Whether YAML reads a text as it stands: no quotes, no brackets, no comment."""
    return (text[0] not in "'\"[]{}&*!|>%@`,?#-" and " #" not in text) or isinstance(
        _scalar(text), (int, float)
    )


def _scalar(text: str) -> Json:
    if _WHOLE.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    return _WORDS.get(text, text)
