"""The small members of an archive as values: JSON as a dict, all other text as it is. Pickles in JSON are no values."""

from __future__ import annotations

from base64 import b64decode

from ckpt.errors import UnreadableError
from ckpt.limits import Budget
from ckpt.nodes import Dict, Node
from ckpt.parse import parse_json
from ckpt.text import Json, show

_PICKLED, _TYPE = ":serialized:", ":type:"
"""The keys of Stable-Baselines3 for an object: its pickle in base64, and its class (common/save_util.py)."""
_DEPTH = 50


def text_value(data: bytes, what: str) -> str:
    """A text member. Raises UnreadableError when it is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(f"{show(what, 80)} is not UTF-8") from None


def json_value(data: bytes, what: str, budget: Budget) -> tuple[Node, list[bytes]]:
    """A JSON member as inert nodes, and the pickles in it. An object that was pickled is the text of its class.

    Raises UnreadableError.
    """
    pickles: list[bytes] = []
    return _node(parse_json(data, show(what, 80), budget), what, 0, pickles), pickles


def _node(value: Json, what: str, depth: int, pickles: list[bytes]) -> Node:
    if depth > _DEPTH:
        raise UnreadableError(f"damaged {show(what, 80)}: it is nested too deep")
    if isinstance(value, dict):
        if _PICKLED in value:
            pickles.append(_decoded(value[_PICKLED], what))
            return str(value.get(_TYPE, ""))
        node = Dict()
        node.set(list(value), [_node(item, what, depth + 1, pickles) for item in value.values()])
        return node
    if isinstance(value, (str, int, float)) or value is None:
        return value
    return [_node(item, what, depth + 1, pickles) for item in value]


def _decoded(text: Json, what: str) -> bytes:
    """The bytes of a pickle, decoded as its loader does."""
    try:
        return b64decode(text.encode()) if isinstance(text, str) else b""
    except ValueError:
        raise UnreadableError(f"damaged {show(what, 80)}: a pickle in it is no base64") from None
