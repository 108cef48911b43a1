"""Assignments: the words of the command line, and the node that each makes of the value
that is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite

from ckpt.model.errors import UsageError
from ckpt.model.nodes import ByteStr, Dict, Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

_BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}
_DEPTH = 100
"""Lists and dicts inside each other, in a value that is given."""
HOW = "NAME=VALUE, NAME:=JSON, or -d NAME"


class Assignment(NamedTuple):
    """A name, and the value that it gets: `text` is read as the type of the value
    there, `node` is taken as it is.
    """

    name: str
    text: str | None = None
    node: Node = None

    def node_for(self, old: Node) -> Node:
        """Return the node that takes the place of another one. Raises UsageError where
        the text is not of its type.
        """
        if self.text is None:
            return self.node
        return typed_node(self.name, self.text, old)


def parse_assignment(word: str) -> Assignment:
    """Read `NAME=VALUE` or `NAME:=JSON`, which ends its name at the first of both.
    Raises UsageError.
    """
    name, equals, text = word.partition("=")
    if not equals or not name.rstrip(":"):
        raise UsageError(f"{show(word, 80)}: no value", hint=HOW)
    if not name.endswith(":"):
        return Assignment(name, text)
    name = name[:-1]
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_parse_json_float,
            object_pairs_hook=_make_dict,
        )
    except _LossyJsonError as error:
        raise UsageError(f"{show(word, 80)}: {error}") from None
    except (ValueError, RecursionError):
        hint = (
            f"""text stands in quotes: '{name}:="{text}"'"""
            if text.isidentifier()
            else None
        )
        raise UsageError(f"{show(word, 80)}: not JSON behind :=", hint=hint) from None
    return Assignment(name, node=node_of(name, value))


class _LossyJsonError(Exception):
    """JSON of which Python would keep less than it says."""


def _refuse_constant(text: str) -> float:
    raise ValueError(text)


def _parse_json_float(text: str) -> float:
    """Return a number of JSON. Raises _LossyJsonError where it would become
    infinite.
    """
    number = float(text)
    if not isfinite(number):
        raise _LossyJsonError(f"{show(text, 40)} is beyond the range of float")
    return number


def _make_dict(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON as a dict. Raises _LossyJsonError for a key that stands
    twice.
    """
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            shown_key = show(key, 40) or "(empty)"
            raise _LossyJsonError(f"the key {shown_key} stands twice")
        members[key] = value
    return members


def node_of(name: str, value: object, depth: int = 0) -> Node:
    """Return a plain value of Python as a node. Raises UsageError for an object, and
    where it is nested too deep.
    """
    if depth > _DEPTH:
        raise UsageError(f"{show(name, 80)}: the value is nested too deep")
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]  # one of these
    # JSON has lists alone; Python's callers may give tuples.
    if isinstance(value, (list, tuple)):
        items = [node_of(name, item, depth + 1) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        node = Dict()
        keys = [node_of(name, key, depth + 1) for key in value]
        node.set(keys, [node_of(name, item, depth + 1) for item in value.values()])
        return node
    problem = f"{show(name, 80)}: {type(value).__name__} is not a plain value"
    raise UsageError(problem, hint="bool, int, float, str, None, list and dict are")


def typed_node(name: str, text: str, old: Node) -> Node:
    """Return the text as a value of the type of another one. Raises UsageError where it
    is not one.
    """
    kind = type(old)
    label = show(name, 80)
    if isinstance(old, ByteStr):
        try:
            # Python 2 held bytes.
            return ByteStr(text.encode("utf-8").decode("latin-1"))
        except UnicodeEncodeError:
            raise UsageError(f"{label}: the value is not UTF-8") from None
    if kind is str:
        return text
    if kind is bool:
        value = _BOOLS.get(text.lower())
        if value is None:
            raise UsageError(
                f"{label} is a bool, and {show(text, 40)} is none", hint="true or false"
            )
        return value
    # A bool is an int in Python: it was asked for first.
    if kind is int:
        return _parse_number(label, text, int, "int")
    if kind is float:
        return _parse_number(label, text, float, "float")
    raise UsageError(
        f"{label} {_describe_value(old)}", hint=f"{name}:=JSON replaces it"
    )


def _parse_number(
    label: str,
    text: str,
    read: type[int] | type[float],
    kind: str,
) -> Node:
    try:
        number = read(text)
    except ValueError:
        raise UsageError(
            f"{label} is {_indefinite_article(kind)} {kind}, and {show(text, 40)} is "
            "none"
        ) from None
    # Typed as inf or nan it is meant; 1e999 is not.
    word = text.strip().lower().lstrip("+-")[:3]
    is_meant = word in ("inf", "nan")
    if isinstance(number, float) and not isfinite(number) and not is_meant:
        raise UsageError(f"{label}: {show(text, 40)} is beyond the range of float")
    return number


def _indefinite_article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _describe_value(old: Node) -> str:
    """Say what a value is that has no form as a word."""
    if old is None:
        return "is None, which has no type"
    if type(old) is list:
        return "is a list"
    if type(old) is tuple:
        return "is a tuple"
    if type(old) is Dict:
        return "is a dict"
    return "is an object"
