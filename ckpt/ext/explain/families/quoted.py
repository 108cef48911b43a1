"""Words of an error without a page that stand in a checkpoint: a path or a setting
among its values, a name among its tensors and modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.libraries import of_refused
from ckpt.ext.explain.families.paths import recorded_path
from ckpt.model.text import and_more, counted_noun, show

_LINES = 12
"""Lines at the end of a text in which the words of its error are looked for."""
_FRAME = re.compile(r"^\s*(?:File \"[^\"\n]*\", line \d+|at )[^\n]*", re.MULTILINE)
"""A line of a traceback, which has the path of a program."""
_QUOTED = re.compile(r"(['\"`])([^'\"`\n]{3,400})\1")
_PATH = re.compile(
    r"(?<![\w.:/\\'\"`])(?:[A-Za-z]:)?(?:~|\.{1,2})?[\\/][^\s'\"`,;:()]{2,1000}"
)
_DOTTED = re.compile(r"(?<![\w./\\-])\w{1,200}(?:\.\w{1,200}){2,20}(?![\w/\\(])")
"""A name with two dots or more, as layers have it."""
_SETTING = re.compile(r"[-_.\d]|[a-z][A-Z]|^[A-Z][a-z]+[A-Z]")
"""Marks in the name of a setting or of a class, which a word of English has not."""
_LACKS = re.compile(
    r"(?i)\b(?:missing|(?:not|n't) (?:found|present|in|have|contain|include)"
    r"|not fou?nd|no such|has no|have no|lacks?|without|required keys?)\b"
    r"|\bneeds? [^\n]{0,200}\b(?:entries|keys?|fields?)\b"
)
"""The words of an error that misses something."""
_KNOWS_NOT = re.compile(
    r"(?i)\bkey '\w{1,80}' (?:is )?not in '\w{1,80}'|\bunknown\b"
    r"|\bunexpected keyword|\bunrecogni[sz]ed\b|\bnot (?:supported"
    r"|recogni[sz]ed|allowed|permitted)\b|\bunsupported\b|\binvalid (?:key|argument"
    r"|option|parameter|field)|\bextra (?:key|field|argument|input)|\bno (?:field"
    r"|option|argument) named\b"
)
"""The words of an error that does not know a setting."""
_OF_CALL = re.compile(
    r"\b(?!__init__\b)[a-z_]\w{0,80}\(\) got an unexpected keyword argument"
)
"""The words of Python about a function, which no setting of a file builds."""
_OF_PYTHON = re.compile(
    r"'(?:NoneType|int|float|complex|bool|str|bytes|list|tuple|dict|set|function"
    r"|module)' object has no attribute '\w{1,200}'"
)
"""The words of Python about its own types."""
_COUNTED = re.compile(r"(?i)\b(?:each|every|per|one)\s+(['\"`])\w{3,40}\1")
"""A word of English in quotes, as `each "epoch"`."""
_REFUSES = re.compile(
    r"(?i)\b(?:unexpected|unknown|unmapped|unsupported|unrecognized|unrecognised"
    r"|no (?:match\w*|mapping|rule|key|place|parameter)|(?:not|n't|cannot) (?:be )?"
    r"(?:map\w*|match\w*|find|found|expect\w*|know\w*|recogni[sz]ed)"
    r"|key should be found)\b"
)
"""The words of a program that has no place for a name."""
_KEY = re.compile(r"[A-Za-z]\w{2,80}")
"""A name that may be a key of a file."""
_MOST = 24
"""Words of an error that are looked up."""
_SHOWN = 3


def of_recorded_path(text: str, case: Case) -> Iterator[Statement]:
    """Say where a path of an error stands in the checkpoint."""
    end = _end_of(text)
    # The mark at the end is that of the sentence, and no part of the path.
    paths = [match[0].rstrip(".,;:!") for match in _PATH.finditer(end)]
    paths += [word for word in _quoted_in(end) if "/" in word or "\\" in word]
    for path in _last_words(paths):
        rows = list(recorded_path(path, case))
        if rows:
            yield from rows
            return


def of_unknown(text: str, case: Case) -> Iterator[Statement]:
    """Say where the file has a setting that a program does not know."""
    end = _end_of(text)
    # An argument of a plain function comes from the program, and one of `__init__` may
    # come from the settings.
    if not _KNOWS_NOT.search(end) or _OF_CALL.search(end):
        return
    for word in _last_words(_quoted_in(end)):
        row = _of_unknown_setting(word, case)
        if row is not None:
            yield row
            return


def of_names(text: str, case: Case) -> Iterator[Statement]:
    """Say which tensors have a name of an error, or else where a setting of the error
    is a value of the checkpoint.
    """
    end = _end_of(text)
    # Names of layers also stand without quotes, as `model.layers.0.mlp`.
    quoted = _quoted_in(end)
    dotted = [match[0].rstrip(".") for match in _DOTTED.finditer(end)]
    # A name with a dot is surer than a word: it is a layer, and no word of English.
    names = [word for word in (*quoted, *dotted) if "." in word]
    for name in _last_words(names):
        row = _of_tensors(name, case)
        if row is not None:
            yield row
            # A program that has no place for the name may be of another library or
            # version.
            if _REFUSES.search(end):
                yield from of_refused(name, case)
            return
    for word in _last_words([word for word in quoted if _SETTING.search(word)]):
        row = _of_setting(word, case)
        if row is not None:
            yield row
            return
    # An error about an unknown name misses no name.
    missed = [] if _KNOWS_NOT.search(end) else _missed_words(text)
    present = [place for word in missed for place in _places(word, case)]
    if present:
        shown = and_more([show(place, 120) for place in present], _SHOWN)
        yield Statement(f"The error misses a name that this file has: {shown}.")


def of_lacking(text: str, case: Case) -> Iterator[Statement]:
    """Say that the file has none of the names that an error misses, or nothing where it
    has one.
    """
    words = _missed_words(text)
    if not words or any(_places(word, case) for word in words):
        return
    shown = and_more([show(word, 60) for word in words], _SHOWN)
    said = (
        f"No key, tensor or setting of this file is called {shown}"
        if len(words) == 1
        else f"No key, tensor or setting of this file has one of the names {shown}"
    )
    yield Statement(f"{said}: another kind of file is wanted, or another part of it.")


def _missed_words(text: str) -> list[str]:
    """The quoted names of an error that misses something, which may be keys."""
    # An attribute that a number or a text lacks is no name of a file.
    end = _OF_PYTHON.sub("", _end_of(text))
    end = _COUNTED.sub("", end)
    if _LACKS.search(end) is None:
        return []
    words = [word for word in _quoted_in(end) if _KEY.fullmatch(word)]
    return list(dict.fromkeys(words))[:_SHOWN]


def _places(word: str, case: Case) -> list[str]:
    """The first place of the file at which a key or a part of a name is a word, alone
    in a list, or an empty one.
    """
    checkpoint = case.survey.checkpoint
    paths = [row.path for row in checkpoint.containers]
    paths += [value.path for value in checkpoint.values]
    for keys in paths:
        path = [str(key) for key in keys]
        if word in path:
            return [".".join(path[: path.index(word) + 1])]
    for entry in case.survey.tensors:
        if word in entry.name.split("."):
            return [entry.name]
    return []


def _end_of(text: str) -> str:
    """The last lines of a text, without the lines of a traceback that name programs."""
    # The path of a frame is that of a program, and no path of a checkpoint.
    return _FRAME.sub("", "\n".join(text.rstrip().splitlines()[-_LINES:]))


def _quoted_in(text: str) -> list[str]:
    return [match[2].strip() for match in _QUOTED.finditer(text)]


def _last_words(words: list[str]) -> list[str]:
    """The last words of an error, each once, from its end."""
    return list(dict.fromkeys(reversed(words)))[:_MOST]


def _of_tensors(name: str, case: Case) -> Statement | None:
    """Say which tensors have a name of an error, or lie below it, or return None."""
    own = [
        entry
        for entry in case.survey.tensors
        # The names of a program may begin inside of a section of the file.
        if entry.name == name or entry.name.endswith(f".{name}")
    ]
    if own:
        facts = and_more(
            [
                f"{show(entry.name, 120)} ({list(entry.tensor.shape)}, "
                f"{entry.tensor.dtype.name})"
                for entry in own
            ],
            _SHOWN,
        )
        return Statement(f"The error names {show(name, 120)}. The file has {facts}.")
    inside = f"{name}."
    below = [
        entry.name
        for entry in case.survey.tensors
        if entry.name.startswith(inside) or f".{inside}" in entry.name
    ]
    if not below:
        return None
    shown = and_more([show(other, 120) for other in below], _SHOWN)
    return Statement(
        f"The error names {show(name, 120)}. The file has "
        f"{counted_noun(len(below), 'tensor')} there: {shown}."
    )


def _of_unknown_setting(word: str, case: Case) -> Statement | None:
    """Say at which places of the file a setting is that a program does not know, or
    return None.
    """
    if not _KEY.fullmatch(word):
        return None
    held = [
        value
        for value in case.survey.checkpoint.values
        if value.path and str(value.path[-1]) == word
    ]
    if not held:
        return None
    first = held[0].node
    # Only a plain value is short enough for the sentence.
    is_plain = isinstance(first, (bool, int, float, str))
    said = f" ({show(str(first), 60)})" if is_plain else ""
    places = and_more([show(value.name, 120) for value in held], _SHOWN)
    return Statement(
        f"{show(word, 80)} is a setting of this file, at {places}{said}. Where the "
        "program takes it from there, the one that wrote it has such a setting, and "
        "the one that reads does not know it: another version of it wrote the file, "
        "mostly a newer one, or a copy of it that was changed. Take that version, or "
        "leave the setting out where the program reads it, if what is built without "
        "it has the same layers."
    )


def _of_setting(word: str, case: Case) -> Statement | None:
    """Say at which places of the file a word of an error is a value, or return None."""
    places = [
        value.name
        for value in case.survey.checkpoint.values
        if value.path and value.node == word
    ]
    if not places:
        return None
    shown = and_more([show(place, 120) for place in places], _SHOWN)
    return Statement(f"{show(word, 120)} of the error stands in this file, at {shown}.")
