"""The values of a file whose names have the words of a question, where no topic knows
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.model.nodes import Node
from ckpt.model.text import and_more, show
from ckpt.tree.view import look

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SYNONYMS = {
    "kv": ("key", "value"),
    "vocabulary": ("vocab",),
    "rank": ("r", "rank", "dim"),
    "dimension": ("dim",),
    "dims": ("dim",),
    "layers": ("layer",),
    "frequency": ("freq",),
    "sequence": ("seq",),
    "image": ("img", "image"),
    "picture": ("img", "image"),
    "learning": ("lr", "learning"),
    "tokenizer": ("tokenizer", "tokeniser"),
    "activation": ("act", "activation"),
}
"""Words of a question -> the words that programs write for them."""
_COUNTING_WORDS = "num n number of the total size count per is use no id"
_COUNTING = frozenset(_COUNTING_WORDS.split())
"""Words of a key that say little."""
_COMMON_WORDS = """
a about all an and any are as at be best by can checkpoint ckpt code could data did do
does file files find for from get give had has have how i if in into is it its know
layer layers load loaded loading make many me mean model models much my name names need
new not number of on one or out own parameter parameters print read run same save saved
see set should show size so state step steps tell tensor tensors than that the their
them then there these they this time to torch pytorch train trained training two up use
used using value values want was we weight weights were what when where which who why
will with would you your
"""
_COMMON = frozenset(_COMMON_WORDS.split())
"""Words of any question: one of them alone names no value."""
_LONGEST = 100
_SHOWN = 8


def of_words(text: str, case: Case) -> Iterator[Statement]:
    """Give the values whose names have all words of their last key in a question, or
    else those with one of its rarer words.
    """
    asked = _words_of_question(text)
    whole: list[str] = []
    part: list[str] = []
    for value in case.survey.checkpoint.values:
        if not value.path or not isinstance(value.path[-1], str):
            continue
        shown = _value_text(value.node)
        words = [word for word in _words_of(value.path[-1]) if word not in _COUNTING]
        if shown is None or not words:
            continue
        row = f"{show(value.name, 80)} is {shown}"
        held = [word for word in words if word in asked]
        if len(held) == len(words) and not set(words) <= _COMMON:
            whole.append(row)
        elif any(word not in _COMMON and len(word) > 2 for word in held):
            part.append(row)
    found = whole or part
    if not found:
        return
    near = "" if whole else ", by names that are near"
    yield Statement(f"This file records{near}: {and_more(found, _SHOWN)}.")


def _words_of(key: str) -> list[str]:
    """The words of a key in small letters and without the s of many."""
    return [_without_s(word.lower()) for word in _WORD.findall(key)]


def _words_of_question(text: str) -> set[str]:
    """The words of a question, with those that programs write for them."""
    asked: set[str] = set()
    for word in re.findall(r"[A-Za-z0-9_.]{1,60}", text):
        for part in _WORD.findall(word):
            lower = part.lower()
            asked.add(_without_s(lower))
            asked.update(_SYNONYMS.get(lower, ()))
    return asked


def _without_s(word: str) -> str:
    """A word of many as a word of one."""
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _value_text(node: Node) -> str | None:
    """A scalar of a file as a word of a sentence, or None for any other value."""
    if isinstance(node, bool) or node is None:
        return str(node)
    if isinstance(node, int):
        # Python refuses to write out an int of more than 4,300 digits.
        return f"{node:,}" if abs(node) < 2**63 else None
    if isinstance(node, float):
        return f"{node:g}"
    if isinstance(node, str):
        return show(node, 60) if 0 < len(node) <= _LONGEST else None
    view = look(node)
    if view.kind != "sequence" or not 0 < len(view.children) <= _SHOWN:
        return None
    # A list of lists would be a table.
    items = [
        None if look(row).kind != "scalar" else _value_text(row)
        for row in view.children
    ]
    texts = [item for item in items if item is not None]
    return f"[{', '.join(texts)}]" if len(texts) == len(items) else None
