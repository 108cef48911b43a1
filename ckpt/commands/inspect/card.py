"""The head of a model card: the few keys of a README.md that say whose weights lie
beside it.

The head is YAML between two lines of `---`. Only its plain forms are read, a text or a
list of texts under a key at the left: what a stranger's file nests, anchors or folds is
passed over, as is a key that stands there twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

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
    head = _head_lines(data.decode("utf-8", "replace"))
    keys = _texts_by_key(head)
    license = _first_text(keys, "license")
    license_name = _first_text(keys, "license_name")
    # Cards on the Hub write `license: other`, and the name of the licence beside it.
    if license_name and license == "other":
        license = f"other ({license_name})"
    elif license_name and not license:
        license = license_name
    card = Card(
        license=license,
        base_models=keys.get("base_model", ()),
        relation=_first_text(keys, "base_model_relation"),
        task=_first_text(keys, "pipeline_tag"),
        library=_first_text(keys, "library_name"),
        tags=keys.get("tags", ()),
    )
    return card if card != Card() else None


def _first_text(keys: Mapping[str, Sequence[str]], key: str) -> str:
    """Return the first text under a key, or an empty one where it has none."""
    texts = keys.get(key)
    return texts[0] if texts else ""


def _head_lines(text: str) -> list[str]:
    """Return the lines between the two lines of dashes at the beginning of a text."""
    # Editors of Windows write a byte order mark, and CRLF.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        return []
    head: list[str] = []
    for line in lines[1:]:
        if line.rstrip() == "---":
            return head
        head.append(line)
    return []  # a head that is not ended may be no head


class _Block(NamedTuple):
    """A key at the left, the text behind it, and the lines below it."""

    key: str
    value: str
    below: list[str]


def _texts_by_key(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the texts under each key at the left that has some."""
    blocks = list(_key_blocks(lines))
    counts = Counter(block.key for block in blocks)
    texts_by_key: dict[str, tuple[str, ...]] = {}
    for block in blocks:
        texts = _block_texts(block)
        # YAML forbids equal keys, and its readers differ in the one that counts.
        if texts and counts[block.key] == 1:
            texts_by_key[block.key] = texts
    return texts_by_key


def _key_blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield each key at the left with its lines. What stands before the first key is
    passed over.
    """
    block: _Block | None = None
    for line in lines:
        match = _KEY.fullmatch(line.rstrip())
        if match is not None:
            if block is not None:
                yield block
            block = _Block(match[1], match[2] or "", [])
        elif block is not None:
            block.below.append(line)
    if block is not None:
        yield block


def _block_texts(block: _Block) -> tuple[str, ...]:
    """Return the texts of a key: one behind it, a list in brackets, or a line with a
    dash for each.
    """
    value = block.value.strip()
    # A comment behind the colon: the texts may stand below.
    if value.startswith("#"):
        value = ""
    rows = [line for line in block.below if not _is_blank(line)]
    if not value:
        return _dashed_texts(rows)
    if rows:
        return ()  # a text over several lines
    if value.startswith("["):
        return _bracketed_texts(value.partition(" #")[0].strip())
    return _plain_texts([value])


def _is_blank(line: str) -> bool:
    """Tell whether a line holds nothing, or a comment."""
    text = line.strip()
    return not text or text.startswith("#")


def _dashed_texts(rows: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of lines that each begin with a dash, all below each other; none
    where another line is among them.
    """
    items: list[str] = []
    indents: set[int] = set()
    for row in rows:
        item = row.lstrip(" ")
        if not item.startswith("- "):
            return ()
        items.append(item[1:].strip())
        indents.add(len(row) - len(item))
    return _plain_texts(items) if len(indents) == 1 else ()


def _bracketed_texts(text: str) -> tuple[str, ...]:
    """Return the texts of a list in brackets; none of a list that holds another list or
    a mapping.
    """
    inner = text[1:-1]
    if not text.endswith("]") or any(bracket in inner for bracket in "[]{}"):
        return ()
    # A comma in quotes does not end an item.
    items = re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", inner)
    return _plain_texts([item.strip() for item in items])


def _plain_texts(items: Sequence[str]) -> tuple[str, ...]:
    """Return the plain or quoted texts, without those that are something else."""
    texts = [_plain_text(item) for item in items[:_ITEMS]]
    return tuple(text for text in texts if text)


def _plain_text(item: str) -> str:
    """Return the text that YAML writes so, or nothing where it is no plain text."""
    if item.startswith(('"', "'")):
        return _quoted_text(item)
    plain = item.partition(" #")[0].strip()
    is_nothing = plain in (*_NOTHING, "-", "?")
    is_special = plain.startswith((*_SPECIAL, "#"))
    is_mapping = ": " in plain or plain.endswith(":")
    if is_nothing or is_special or is_mapping:
        return ""
    return plain[:_LENGTH]


def _quoted_text(item: str) -> str:
    """Return the text between two quotes, or nothing where more than a comment follows
    them.
    """
    end = item.find(item[0], 1)
    if end < 0:
        return ""
    rest = item[end + 1 :].strip()
    if rest and not rest.startswith("#"):
        return ""
    text = item[1:end]
    # An escape, or a quote in quotes, is more than a licence or a name needs.
    return "" if "\\" in text else text[:_LENGTH]
