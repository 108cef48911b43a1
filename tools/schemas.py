"""Makes docs/schema/ and the tables of docs/json.md of the fields that ckpt/**/*.fields
declare: `make docs`.

ckpt/surface/common.fields explains the notation. Each schema is JSON Schema (2020-12)
and stands alone: it has the definitions that it uses. A table of the page stands
between `<!-- fields: NAME -->` and `<!-- /fields -->`. A definition with a table of its
own is linked from the others; any other is unfolded where it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from website import slug  # beside this file

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/json.md"
_WIDTH = 120
"""Columns of a line of a schema."""
_DOCUMENT = re.compile(r"document ckpt\.(\w+) (\d+)( or failure)?")
_FIELD = re.compile(r"(define )?(\w+)(\??): (.+)")
_RULE = re.compile(
    r"([\w, ]+) come together|if (\w+) is (\w+) then (.+?)(?: else (.+))?"
)
_CLAIM = re.compile(r"([\w, ]+) (?:is|are) (there|null|not null)")
_TOKEN = re.compile(r"/\S+/|[-.\w]+|[(),]")
_TABLE = re.compile(
    r"(<!-- fields: (?:ckpt\.)?(\w+) -->\n).*?(<!-- /fields -->\n)", re.DOTALL
)
_PLAIN: Mapping[str, dict[str, Any]] = {
    "any": {},
    "bool": {"type": "boolean"},
    "count": {"type": "integer", "minimum": 0},
    "int": {"type": "integer"},
    "null": {"type": "null"},
    "number": {"type": "number"},
    "text": {"type": "string"},
}

Node = dict[str, Any]
"""A part of a JSON Schema."""


class DeclarationError(Exception):
    """A declaration that does not keep to the notation."""


# --------------------------------------------------------------------------------------
# declarations


@dataclass
class Field:
    """A field or a definition: its type as text, what it says, and the fields and rules
    below it.
    """

    name: str
    type: str = "object"
    optional: bool = False
    text: str = ""
    fields: list[Field] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)


@dataclass
class Document(Field):
    """A document, by its name without `ckpt.`. `scope` has the definitions of its
    folder and of the folders above.
    """

    version: int = 1
    may_fail: bool = False
    scope: dict[str, Field] = field(default_factory=dict)


def documents(root: Path = ROOT) -> dict[str, Document]:
    """Return all documents by their names. Raises DeclarationError."""
    paths = sorted((root / "ckpt").rglob("*.fields"))
    files = {
        path: parsed(path.read_text(encoding="utf-8"), path.name) for path in paths
    }
    scopes: dict[Path, dict[str, Field]] = {}
    for path, rows in files.items():
        scope = scopes.setdefault(path.parent, {})
        for row in rows:
            if (
                not isinstance(row, Document)
                and scope.setdefault(row.name, row) is not row
            ):
                raise DeclarationError(
                    f"{path.name}: {row.name} is defined twice in this folder"
                )
    by_name: dict[str, Document] = {}
    for path, rows in files.items():
        for document in rows:
            if isinstance(document, Document):
                document.scope |= scopes.get(
                    root / "ckpt" / "surface", {}
                )  # what all documents share
                for folder in reversed(path.parents):
                    document.scope |= scopes.get(folder, {})
                by_name[document.name] = document
    return dict(sorted(by_name.items()))


def parsed(text: str, file: str) -> list[Field]:
    """Return the documents and definitions of a file. Raises DeclarationError."""
    blocks: list[Field] = []
    above: list[Field] = []
    """The block and the fields that a line may stand below."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        code, _, words = line.partition("# ")
        if not code.strip() and above:
            above[-1].text += f" {words}"
            continue
        depth, rest = divmod(len(code) - len(code.lstrip()), 2)
        del above[depth:]
        row = _row(code.strip(), words, depth)
        if row is None or len(above) < depth or rest:
            raise DeclarationError(f"{file}:{number}: {line.strip()}")
        if isinstance(row, str):
            above[-1].rules.append(row)
        else:
            (above[-1].fields if above else blocks).append(row)
            above.append(row)
    return blocks


def _row(code: str, words: str, depth: int) -> Field | str | None:
    """The document, definition, field or rule that a line holds; None for anything
    else.
    """
    if depth and _RULE.fullmatch(code):
        return code
    if match := None if depth else _DOCUMENT.fullmatch(code):
        name, version, failure = match.groups()
        return Document(
            name, text=words, version=int(version), may_fail=failure is not None
        )
    if match := _FIELD.fullmatch(code):
        definition, name, optional, kind = match.groups()
        return (
            None
            if bool(definition) == bool(depth)
            else Field(name, kind, optional == "?", words)
        )
    return None


def _tokens(kind: str, document: Document) -> list[str]:
    values = {"NAME": f"ckpt.{document.name}", "VERSION": str(document.version)}
    return [values.get(token, token) for token in _TOKEN.findall(kind)]


# --------------------------------------------------------------------------------------
# JSON Schema


def schema(document: Document) -> Node:
    """Return the JSON Schema of a document. Raises DeclarationError."""
    definitions = {"document": {"type": "object", **_body(document, document)}}
    names = {"failure"} if document.may_fail else set()
    names |= _references(definitions["document"])
    while new := sorted(names - definitions.keys()):
        for name in new:
            definitions[name] = _described(document.scope[name], document)
            names |= _references(definitions[name])
    whole: Node = {"$ref": "#/$defs/document"}
    if document.may_fail:
        either = {"then": {"$ref": "#/$defs/failure"}, "else": whole}
        whole = {"type": "object", "if": {"required": ["error"]}, **either}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:ckpt:schema:{document.name}:{document.version}",
        "title": f"ckpt.{document.name}, version {document.version}",
        "description": document.text,
        **whole,
        "$defs": {name: definitions[name] for name in ("document", *sorted(names))},
    }


def _references(node: Node) -> set[str]:
    return set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(node)))


def _described(row: Field, document: Document) -> Node:
    node = _Type(row.type, document, _body(row, document)).node
    return {"description": row.text, **node} if row.text else node


def _body(holder: Field, document: Document) -> Node:
    """The keywords of an object with the fields and the rules of `holder`."""
    names = [row.name for row in holder.fields]
    if len(set(names)) < len(names):
        raise DeclarationError(f"{holder.name} has a field twice: {', '.join(names)}")
    body: Node = {}
    if required := [row.name for row in holder.fields if not row.optional]:
        body["required"] = required
    if names:
        body["properties"] = {
            row.name: _described(row, document) for row in holder.fields
        }
    rules = [_rule(rule, holder, document) for rule in holder.rules]
    return (
        {**body, "allOf": rules}
        if len(rules) > 1
        else {**body, **(rules[0] if rules else {})}
    )


def _rule(rule: str, holder: Field, document: Document) -> Node:
    together, name, state, claim, otherwise = _RULE.fullmatch(rule).groups()  # type: ignore[union-attr]
    if together:
        first, *rest = _names(together, holder)
        return {
            "dependentRequired": {first: rest, **{other: [first] for other in rest}}
        }
    _names(name, holder)
    value = {"type": "null"} if state == "null" else {"const": state}
    condition = (
        {"required": [name]} if state == "there" else {"properties": {name: value}}
    )
    node = {"if": condition, "then": _claimed(claim, holder, document)}
    return (
        {**node, "else": _claimed(otherwise, holder, document)} if otherwise else node
    )


def _claimed(claim: str, holder: Field, document: Document) -> Node:
    """The node for what a rule claims: that fields of `holder` are there, null or not
    null, or a type of the whole.
    """
    match = _CLAIM.fullmatch(claim)
    if match is None:
        return _Type(claim, document, {}).node
    names = _names(match[1], holder)
    if match[2] == "there":
        return {"required": names}
    rows = [row for row in holder.fields if row.name in names]
    kinds = {
        row.name: "null" if match[2] == "null" else row.type.removesuffix(" or null")
        for row in rows
    }
    needed = [row.name for row in rows if row.optional]
    return {
        **({"required": needed} if needed else {}),
        "properties": {
            name: _Type(kind, document, {}).node for name, kind in kinds.items()
        },
    }


def _names(text: str, holder: Field) -> list[str]:
    """The fields that a rule names. Raises DeclarationError for one that `holder`
    lacks, if it has any.
    """
    names = text.split(", ")
    if holder.fields and {*names} - {row.name for row in holder.fields}:
        raise DeclarationError(f"{holder.name} has no such field: {text}")
    return names


class _Type:
    """The `node` that a type as text stands for; `body` are the keywords of the object
    in it.
    """

    def __init__(self, kind: str, document: Document, body: Node) -> None:
        self._ahead = _tokens(kind, document)
        self._scope = document.scope
        self._body = body
        try:
            self.node = self._union()
        except IndexError:
            raise DeclarationError(f"incomplete type: {kind}") from None
        if self._ahead or self._body:
            raise DeclarationError(
                f"{document.name}: no such type, or one without fields: {kind}"
            )

    def _union(self) -> Node:
        parts = [self._single()]
        while self._skip("or"):
            parts.append(self._single())
        if len(parts) == 1:
            return parts[0]
        keys = [key for part in parts for key in part.keys() - {"type"}]
        if all(isinstance(part.get("type"), str) for part in parts) and len(
            set(keys)
        ) == len(keys):
            # No keyword says anything about values of another type than its own.
            joined = {key: value for part in parts for key, value in part.items()}
            return {**joined, "type": [part["type"] for part in parts]}
        return {"anyOf": parts}

    def _single(self) -> Node:
        token = self._ahead.pop(0)
        if token == "(":
            node = self._union()
            self._expect(")")
            return node
        if token in ("list", "pair", "map", "one"):
            self._expect("of")
        if token == "one":
            return self._words()
        if token == "list":
            return {"type": "array", "items": self._single()}
        if token == "pair":
            return {
                "type": "array",
                "items": self._single(),
                "minItems": 2,
                "maxItems": 2,
            }
        if token == "map":
            value = self._single()
            return {"type": "object", **self._taken(), "additionalProperties": value}
        if token == "object":
            return {"type": "object", **self._taken()}
        if token in _PLAIN:
            return {**_PLAIN[token], **self._limits()}
        if token not in self._scope:
            raise DeclarationError(f"not defined: {token}")
        node, body = {"$ref": f"#/$defs/{token}"}, self._taken()
        return {"allOf": [node, {"type": "object", **body}]} if body else node

    def _limits(self) -> Node:
        limits: Node = {}
        if self._skip("from"):
            limits["minimum"] = int(self._ahead.pop(0))
        if self._skip("to"):
            limits["maximum"] = int(self._ahead.pop(0))
        if self._ahead and self._ahead[0].startswith("/"):
            limits["pattern"] = self._ahead.pop(0).strip("/")
        return limits

    def _words(self) -> Node:
        self._expect("(")
        words = [self._ahead.pop(0)]
        while self._skip(","):
            words.append(self._ahead.pop(0))
        self._expect(")")
        values = [
            True if word == "true" else int(word) if word.isdigit() else word
            for word in words
        ]
        return {"enum": values} if len(values) > 1 else {"const": values[0]}

    def _taken(self) -> Node:
        body, self._body = self._body, {}
        return body

    def _skip(self, token: str) -> bool:
        if not self._ahead or self._ahead[0] != token:
            return False
        del self._ahead[0]
        return True

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise DeclarationError(
                f"{token} is missing before: {' '.join(self._ahead)}"
            )


def dumped(node: Any, indent: int = 0, before: int = 0) -> str:
    """Return a value as JSON: in one line where it fits, after `before` columns, else
    one line for each part.
    """
    flat = json.dumps(node, ensure_ascii=False)
    if indent + before + len(flat) <= _WIDTH or not isinstance(node, (dict, list)):
        return flat
    pad = " " * (indent + 2)
    if isinstance(node, list):
        rows = [f"{pad}{dumped(part, indent + 2)}" for part in node]
    else:
        rows = [
            f'{pad}"{key}": {dumped(part, indent + 2, len(key) + 5)}'
            for key, part in node.items()
        ]
    opening, closing = "[]" if isinstance(node, list) else "{}"
    return f"{opening}\n" + ",\n".join(rows) + f"\n{' ' * indent}{closing}"


# --------------------------------------------------------------------------------------
# the page


def page(text: str, by_name: Mapping[str, Document]) -> str:
    """Return the page with each table as the declarations have it today. Raises
    DeclarationError.
    """
    links = {}
    for match in _TABLE.finditer(text):
        if "ckpt." not in match[1]:
            titles = re.findall(r"^#+ (.+)$", text[: match.start()], re.MULTILINE)
            links[match[2]] = f"[{match[2]}](#{slug(titles[-1])})"

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if "ckpt." in match[1]:
            document: Document = by_name[name]
            row: Field = document
        else:
            holders = [
                document for document in by_name.values() if name in document.scope
            ]
            if not holders:
                raise DeclarationError(f"not defined: {name}")
            document, row = holders[0], holders[0].scope[name]
        return (
            f"{match[1]}\n"
            + "\n\n".join(_Table(row, document, links).parts())
            + f"\n\n{match[3]}"
        )

    return _TABLE.sub(block, text)


class _Table:
    """The table of a document or a definition, with its description before and its
    rules after it.
    """

    def __init__(
        self, row: Field, document: Document, links: Mapping[str, str]
    ) -> None:
        self._row = row
        self._document = document
        self._links = links
        self._rules: list[str] = []

    def parts(self) -> Iterator[str]:
        """The parts of the text, which empty lines separate."""
        row = self._row
        ending = ", with:" if row.fields else "."
        kind = (
            ""
            if row.type == "object"
            else f"Its type is {self._type(row.type)}{ending}"
        )
        if row.text or kind:
            yield f"{row.text} {kind}".strip()
        if isinstance(row, Document):
            yield f"[Schema](schema/{row.name}.json)"
        rows = list(self._below(row, ""))
        if rows:
            yield "\n".join(["| field | type | what |", "|---|---|---|", *rows])
        if self._rules:
            yield "\n".join(f"- {rule[0].upper()}{rule[1:]}." for rule in self._rules)

    def _below(self, holder: Field, prefix: str) -> Iterator[str]:
        """The rows of the fields below `holder`, those of definitions without a table
        of their own first.
        """
        for name in self._defined(holder.type):
            if name not in self._links:
                yield from self._below(self._document.scope[name], prefix)
        names = {row.name for row in holder.fields}
        self._rules += [self._rule(rule, names, prefix) for rule in holder.rules]
        for row in holder.fields:
            known = [self._document.scope[name] for name in self._defined(row.type)]
            texts = [
                other.text
                for other in known
                if not row.text or (other.fields and other.name not in self._links)
            ]
            text = " ".join(filter(None, [*texts, row.text]))
            yield (
                f"| `{prefix}{row.name}{'?' * row.optional}` | {self._type(row.type)} "
                f"| {text} |"
            )
            yield from self._below(row, f"{prefix}{row.name}{self._marks(row.type)}.")

    def _defined(self, kind: str) -> Iterable[str]:
        # A word of a list is no type, though one may have its name.
        kind = re.sub(r"one of \(.+?\)", "", kind)
        return [
            token
            for token in _tokens(kind, self._document)
            if token in self._document.scope
        ]

    def _marks(self, kind: str) -> str:
        """The steps from a field to the objects in it: `[]` into a list, `.*` into a
        map.
        """
        known = {"object", "list", "pair", "map", *self._document.scope}
        steps = re.findall(r"(list|pair|map) of \(?(\w+)", kind)
        return "".join(
            ".*" if step == "map" else "[]" for step, inner in steps if inner in known
        )

    def _type(self, kind: str) -> str:
        words = re.sub(r"one of \((.+?)\)", self._words, kind)
        return re.sub(r"`[^`]*`|/\S+/|\w+", self._word, words).replace(" /", "").strip()

    def _words(self, match: re.Match[str]) -> str:
        words = [
            f"`{token}`" for token in _tokens(match[1], self._document) if token != ","
        ]
        return f"one of {', '.join(words)}" if len(words) > 1 else words[0]

    def _word(self, match: re.Match[str]) -> str:
        word = match[0]
        if word in self._links:
            return self._links[word]
        if word in self._document.scope:
            return self._type(self._document.scope[word].type)
        return "" if word.startswith("/") else word

    def _rule(self, rule: str, names: set[str], prefix: str) -> str:
        def shown(match: re.Match[str]) -> str:
            word = match[0]
            return f"`{prefix}{word}`" if word in names else self._links.get(word, word)

        names = {*names, *re.findall(r"if (\w+)", rule)}
        return re.sub(r"\w+", shown, rule)


# --------------------------------------------------------------------------------------
# files


def files(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each file that is made, by its path below the root. Raises
    DeclarationError.
    """
    by_name = documents(root)
    texts = {
        f"docs/schema/{name}.json": f"{dumped(schema(row))}\n"
        for name, row in by_name.items()
    }
    return {**texts, PAGE: page((root / PAGE).read_text(encoding="utf-8"), by_name)}


def write() -> None:
    """Write docs/schema/ and docs/json.md."""
    for name, text in files().items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
