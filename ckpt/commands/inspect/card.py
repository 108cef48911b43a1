"""The head of a model card: the few keys of a README.md that say whose weights lie
beside it.

The head is YAML between two lines of `---`. Only its plain forms are read, a text or a
list of texts under a key at the left: what a stranger's file nests, anchors or folds is
passed over, as is a key that stands there twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json

BYTES = 1 << 16
"""Bytes of a README.md that are looked at: the head is at its beginning."""
_ITEMS, _LENGTH = 200, 200
"""Texts of one list, and letters of one text."""
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,60}):(?:[ \t]+(.*))?")
_SPECIAL = (*"|>&*!%@`{}[],", "- ", "? ")
"""Signs that begin what is no plain text in YAML."""
_NOTHING = ("", "~", "null", "Null", "NULL")


class Card(NamedTuple):
    """The words of a model card about the weights. A key that is missing is an empty
    text or list.
    """

    license: str = ""
    base_models: tuple[str, ...] = ()
    relation: str = ""
    """The way in which the weights are made of the base model: `finetune`, `adapter`,
    `quantized` or `merge`.
    """
    task: str = ""
    library: str = ""
    tags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """Return the object `card` of the document."""
        return {
            "license": self.license or None,
            "base_models": list(self.base_models),
            "relation": self.relation or None,
            "task": self.task or None,
            "library": self.library or None,
            "tags": list(self.tags),
        }


def card_of(data: bytes) -> Card | None:
    """Return what the beginning of a README.md says, or None where it has no head, or
    none of the keys.
    """
    keys = _keys(_head(data.decode("utf-8", "replace")))
    license = _first(keys.get("license", ()))
    named = _first(keys.get("license_name", ()))
    if named and license in ("other", ""):
        license = f"other ({named})" if license else named
    card = Card(
        license,
        keys.get("base_model", ()),
        _first(keys.get("base_model_relation", ())),
        _first(keys.get("pipeline_tag", ())),
        _first(keys.get("library_name", ())),
        keys.get("tags", ()),
    )
    return card if card != Card() else None


def _first(texts: Sequence[str]) -> str:
    return texts[0] if texts else ""


def _head(text: str) -> list[str]:
    """Return the lines between the two lines of dashes at the beginning of a text."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        return []
    ends = (
        number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"
    )
    return lines[1 : next(ends, 1)]


def _keys(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the texts under each key at the left that has some."""
    blocks = list(_blocks(lines))
    counts = Counter(key for key, _, _ in blocks)
    texts = {
        key: _texts(value, below) for key, value, below in blocks if counts[key] == 1
    }
    return {key: found for key, found in texts.items() if found}


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each key at the left, what stands behind it, and the lines below it."""
    key, value = "", ""
    below: list[str] = []
    for line in lines:
        match = _KEY.fullmatch(line.rstrip())
        if match is not None:
            if key:
                yield key, value, below
            key, value, below = match[1], match[2] or "", []
        else:
            below.append(line)
    if key:
        yield key, value, below


def _texts(value: str, below: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of a value: one behind its key, a list in brackets, or a line
    with a dash for each.
    """
    value = value.strip()
    if value.startswith("#"):
        value = ""
    rows = [
        line for line in below if line.strip() and not line.lstrip().startswith("#")
    ]
    if not value:
        items = [
            row.lstrip()[1:].strip() for row in rows if row.lstrip(" ").startswith("- ")
        ]
        indents = {len(row) - len(row.lstrip(" ")) for row in rows}
        return _taken(items) if len(items) == len(rows) and len(indents) == 1 else ()
    if rows:
        return ()  # a text over several lines
    if value.startswith("["):
        inner = value.partition(" #")[0].strip()
        is_flat = inner.endswith("]") and not any(
            sign in inner[1:-1] for sign in "[]{}"
        )
        return _taken(_split(inner[1:-1])) if is_flat else ()
    return _taken([value])


def _split(text: str) -> list[str]:
    """Return the items between the commas of a list in brackets; a comma in quotes is
    none.
    """
    return [
        item.strip() for item in re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", text)
    ]


def _taken(items: Sequence[str]) -> tuple[str, ...]:
    """Return the plain or quoted texts, without those that are something else."""
    texts = [_text(item) for item in items[:_ITEMS]]
    return tuple(text for text in texts if text)


def _text(item: str) -> str:
    for quote in "\"'":
        if item.startswith(quote):
            end = item.find(quote, 1)
            rest = item[end + 1 :].strip()
            # An escape, or a quote in quotes, is more than a licence or a name needs.
            is_whole = (
                end > 0
                and (not rest or rest.startswith("#"))
                and "\\" not in item[:end]
            )
            return item[1:end][:_LENGTH] if is_whole else ""
    plain = item.partition(" #")[0].strip()
    if (
        plain in (*_NOTHING, "-", "?")
        or plain.startswith((*_SPECIAL, "#"))
        or ": " in plain
        or plain.endswith(":")
    ):
        return ""
    return plain[:_LENGTH]
