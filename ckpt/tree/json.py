"""Nodes of the inert tree as JSON: exact, strict, bounded. A value that JSON cannot
hold is null, with its kind.
"""

from __future__ import annotations

from math import isfinite

from ckpt.model.errors import UnreadableError
from ckpt.model.names import NamedKey, Path
from ckpt.model.nodes import ByteStr, Node, key_of
from ckpt.model.text import Json
from ckpt.tree.literals import Repeats, scalar_text
from ckpt.tree.view import View, look

INT_BITS = 4096
"""Ints of more bits are replaced by their size, because many JSON readers cannot read
them.
"""

_WHOLE = 2**31
"""Characters of a call's text: all of them, the pickle is bounded already."""


def key_json(key: str | int) -> Json:
    """One step of a path: a string or an int, or `{"type", "text"}` for keys of other
    types.
    """
    return {"type": key.kind, "text": str(key)} if isinstance(key, NamedKey) else key


def path_json(path: Path) -> list[Json]:
    return [key_json(key) for key in path]


def scalar_json(view: View) -> tuple[Json, str | None]:
    """(value, its kind when JSON cannot hold it): a float that is not finite is `(None,
    "inf")`. The call of a function is its text.
    """
    if view.is_call:
        return scalar_text(view, _WHOLE), None
    value = view.value
    if isinstance(value, float) and not isfinite(value):
        return None, _kind_of_float(value)
    if type(value) is int and value.bit_length() > INT_BITS:
        return None, f"int of {value.bit_length()} bits"
    if isinstance(value, ByteStr) and not value.isascii():
        return None, f"bytes {value.raw.hex()}"
    if isinstance(value, (bytes, bytearray)):
        return None, f"bytes {value.hex()}"
    if isinstance(value, str):
        return str(value), None
    # All that is left of the scalars.
    assert value is None or isinstance(value, (int, float))
    return value, None


def number_json(name: str, value: float | None) -> dict[str, Json]:
    """A number as a field. A number that is not finite is null, with its kind in a
    second field.
    """
    if value is None or isfinite(value):
        return {name: value}
    return {name: None, f"{name}_is": _kind_of_float(value)}


def _kind_of_float(value: float) -> str:
    """Return the name of a float that is not finite, which JSON has no number for."""
    if value != value:
        return "nan"
    return "inf" if value > 0 else "-inf"


def plain(node: Node, repeats: Repeats | None = None) -> Json:
    """A node as JSON: sequences as lists, mappings and objects as objects, tensors as
    text.

    Inside containers, floats that are not finite become "nan", "inf" or "-inf". Keys
    with equal text get a mark like `#2`. Raises UnreadableError when the value repeats
    its own parts more often than `repeats` allows, which one document shares.
    """
    repeats = repeats or Repeats()

    def convert(node: Node, depth: int) -> Json:
        if depth < 0:
            raise UnreadableError("the value is nested too deep")
        view = look(node)
        repeats.count(node, view)
        if view.kind == "scalar":
            value, otherwise = scalar_json(view)
            return value if otherwise is None else otherwise
        if view.kind == "tensor":
            tensor = view.tensor
            return f"tensor {tensor.dtype.name} {list(tensor.shape)}"
        if view.kind == "storage":
            return f"storage of {view.storage.nbytes} bytes"
        if view.kind == "sequence":
            return [convert(child, depth - 1) for child in view.children]
        fields: dict[str, Json] = {}
        counts: dict[str, int] = {}
        for index, (key, child) in enumerate(
            zip(view.keys, view.children, strict=True)
        ):
            text = _text_of_key(key, index)
            name = text
            # The count goes on where the last equal key ended: a search from 2 on for
            # each of many equal keys would take a time that grows with their square.
            while name in fields:
                counts[text] = counts.get(text, 1) + 1
                name = f"{text}#{counts[text]}"
            fields[name] = convert(child, depth - 1)
        return fields

    return convert(node, _DEPTH)


def _text_of_key(key: Node, index: int) -> str:
    """Return the name of a field for a key, the one at `index`: its text, or the step
    of a path for a container.
    """
    if isinstance(key, str):
        return str(key)
    view = look(key)
    return scalar_text(view) if view.kind == "scalar" else str(key_of(key, index))


_DEPTH = 200
"""The most containers in each other: more would end the stack of Python, which
`convert` uses.
"""
