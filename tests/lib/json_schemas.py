"""JSON Schema (2020-12), as far as docs/schema/ uses it: a validator of a page, so that
the tests need no package.

It is strict about schemas too: a keyword that it does not know, or a reference that
leads nowhere, is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from process import ROOT

FOLDER = ROOT / "docs" / "schema"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_TALK = {"$schema", "$id", "title", "description", "$defs"}
_ONE = {"items", "additionalProperties", "if", "then", "else"}
_LISTED = {"anyOf", "allOf"}
_NAMED = {"properties", "$defs"}
_PLAIN = {
    "type",
    "const",
    "enum",
    "required",
    "pattern",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "dependentRequired",
    "$ref",
}

Problems = list[tuple[str, str]]
"""Where in the document, and what is wrong there."""


@cache
def schema(name: str) -> dict[str, Any]:
    """A schema of docs/schema/, by the name of its file."""
    found: dict[str, Any] = json.loads(
        (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    )
    return found


def parts(node: Any, where: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside of a schema, itself first. Raises ValueError for a keyword
    that is not known here.
    """
    if isinstance(node, bool):
        return
    unknown = node.keys() - _TALK - _ONE - _LISTED - _NAMED - _PLAIN
    if unknown:
        raise ValueError(f"{where}: unknown keywords {sorted(unknown)}")
    yield where, node
    for key in _ONE & node.keys():
        yield from parts(node[key], f"{where}/{key}")
    for key in _LISTED & node.keys():
        for at, each in enumerate(node[key]):
            yield from parts(each, f"{where}/{key}/{at}")
    for key in _NAMED & node.keys():
        for name, each in node[key].items():
            yield from parts(each, f"{where}/{key}/{name}")


def problems(name: str, document: Any, *, closed: bool = False) -> Problems:
    """What is wrong with a document by its schema: empty when it is valid.

    With `closed`, a field that the schema does not describe is wrong too: to users
    schemas are open.
    """
    return _Check(schema(name), closed).child(schema(name), document, "$")


def described(name: str, document: Any) -> set[str]:
    """The places in the schema of the properties that a document has."""
    check = _Check(schema(name), closed=True)
    check.child(schema(name), document, "$")
    return check.seen


class _Check:
    """One document against one schema; `seen` collects the places of properties that
    the document has.
    """

    def __init__(self, root: dict[str, Any], closed: bool) -> None:
        self.root = root
        self.closed = closed
        self.seen: set[str] = set()

    def child(self, node: Any, value: Any, where: str, at: str = "#") -> Problems:
        """The problems of a value, with its fields that no schema describes."""
        found, known = self._check(node, value, where, at)
        if self.closed and isinstance(value, dict) and known is not None:
            found += [
                (f"{where}.{key}", "no such field") for key in value.keys() - known
            ]
        return found

    def _check(
        self, node: Any, value: Any, where: str, at: str
    ) -> tuple[Problems, set[str] | None]:
        """(problems, the fields that the schema describes); None: it says nothing about
        fields.
        """
        if isinstance(node, bool):
            return ([] if node else [(where, "not allowed")]), None
        found = [
            (where, f"{key} {node[key]!r}"[:200])
            for key in node
            if not _holds(key, node[key], value)
        ]
        known: set[str] | None = None

        def apply(part: Any, part_at: str) -> None:
            nonlocal known
            more, fields = self._check(part, value, where, part_at)
            found.extend(more)
            if fields is not None:
                known = (known or set()) | fields

        if "$ref" in node:
            place = node["$ref"].removeprefix("#/$defs/")
            apply(self.root["$defs"][place], f"#/$defs/{place}")
        for number, part in enumerate(node.get("allOf", ())):
            apply(part, f"{at}/allOf/{number}")
        if "anyOf" in node:
            kinds = [
                (part, f"{at}/anyOf/{number}")
                for number, part in enumerate(node["anyOf"])
            ]
            fits = [
                kind
                for kind in kinds
                if not self._check(kind[0], value, where, kind[1])[0]
            ]
            for part, part_at in fits:
                apply(part, part_at)
            if not fits:
                found.append((where, "none of anyOf"))
        if "if" in node:
            holds = not _Check(self.root, closed=False)._check(
                node["if"], value, where, at
            )[0]
            branch = "then" if holds else "else"
            if branch in node:
                apply(node[branch], f"{at}/{branch}")
        if isinstance(value, dict):
            if "properties" in node or "additionalProperties" in node:
                known = (known or set()) | self._fields(node, value, where, at, found)
        if isinstance(value, list) and "items" in node:
            for number, item in enumerate(value):
                found += self.child(
                    node["items"], item, f"{where}[{number}]", f"{at}/items"
                )
        return found, known

    def _fields(
        self,
        node: dict[str, Any],
        value: dict[str, Any],
        where: str,
        at: str,
        found: Problems,
    ) -> set[str]:
        """Check the fields of an object; the names of those that are described."""
        properties = node.get("properties", {})
        for name in properties.keys() & value.keys():
            self.seen.add(f"{at}/properties/{name}")
            found += self.child(
                properties[name],
                value[name],
                f"{where}.{name}",
                f"{at}/properties/{name}",
            )
        if "additionalProperties" not in node:
            return set(properties)
        for name in value.keys() - properties.keys():
            further = f"{at}/additionalProperties"
            found += self.child(
                node["additionalProperties"], value[name], f"{where}.{name}", further
            )
        return set(value)


def _holds(key: str, wanted: Any, value: Any) -> bool:
    """Whether a value keeps to a keyword that looks at nothing but itself."""
    if key == "type":
        kinds = wanted if isinstance(wanted, list) else [wanted]
        return any(_is(kind, value) for kind in kinds)
    if key == "const":
        return _same(value, wanted)
    if key == "enum":
        return any(_same(value, each) for each in wanted)
    if isinstance(value, str):
        return key != "pattern" or re.search(wanted, value) is not None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return not (
            (key == "minimum" and value < wanted)
            or (key == "maximum" and value > wanted)
        )
    if isinstance(value, list):
        return not (
            (key == "minItems" and len(value) < wanted)
            or (key == "maxItems" and len(value) > wanted)
        )
    if isinstance(value, dict):
        if key == "required":
            return value.keys() >= set(wanted)
        if key == "dependentRequired":
            return all(
                value.keys() >= set(needed)
                for name, needed in wanted.items()
                if name in value
            )
    return True


def _is(kind: str, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and (
        kind == "boolean" or not isinstance(value, bool)
    )


def _same(one: Any, two: Any) -> bool:
    """Equality of JSON: true is not 1."""
    return bool(one == two) and isinstance(one, bool) == isinstance(two, bool)
