"""Names: paths and dotted names, globs, natural order, the nearest name."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from functools import cached_property

from ckpt.model.errors import UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import TEXT_LIMIT, shell_word, show

Key = str | int
"""One step of a path. Keys of other types become a `NamedKey`."""


class NamedKey(str):
    """A key that is neither a string nor an int (bytes, float, tuple, object …), as a
    text that names it.

    `kind` is its type in the file.
    """

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: str, kind: str) -> NamedKey:
        key = super().__new__(cls, text)
        key.kind = kind
        return key

    def __reduce__(self) -> tuple[object, ...]:
        return NamedKey, (str(self), self.kind)


Path = tuple[Key, ...]
_NUMBERS = re.compile(r"((?<=[^.0-9]0)\.[0-9]+(?!\.?[0-9])|[0-9]+)")
"""Numbers, and the part of a decimal behind its point, as in `lr0.05`. `0.10.weight`
and `1.10` count two things.
"""


class LazyPattern:
    """A regular expression that is compiled when it is first used: most files need few
    of those for rare names.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _compiled_pattern(self) -> re.Pattern[str]:
        return re.compile(self._text)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """The match of the whole text, or None."""
        return self._compiled_pattern.fullmatch(text)

    def search(self, text: str) -> re.Match[str] | None:
        """The first match anywhere in the text, or None."""
        return self._compiled_pattern.search(text)


def dotted_name(path: Sequence[Key]) -> str:
    """The name of a path: its keys joined with dots. Two paths may share one name."""
    return ".".join([key if type(key) is str else str(key) for key in path])


class Block(NamedTuple):
    """Neighbours in a list of names that begin alike up to their first number:
    `layers.3.`; nothing without a number.

    They are the names from `first` up to `last`.
    """

    begin: str
    first: int
    last: int


_BEGIN = re.compile(r"(?:[^.]*\.)*?[0-9]{1,9}\.")


def name_blocks(names: Sequence[str]) -> list[Block]:
    """The blocks of a list of names, in order. A model repeats its layers, so many of
    them are alike inside.
    """
    result: list[Block] = []
    begin, first = "", 0
    for index, name in enumerate(names):
        if begin and name.startswith(begin):
            continue
        number = _BEGIN.match(name)
        after = number[0] if number else ""
        if after != begin:
            if index > first:
                result.append(Block(begin, first, index))
            begin, first = after, index
    return [*result, Block(begin, first, len(names))] if names else result


ROOT = "."
"""The name of the root of a checkpoint, as a person types it."""


def natural_sort_key(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that puts `layers.2` before `layers.10`, and `lr0.005` before
    `lr0.05`. Each text has its own.
    """
    parts = _NUMBERS.split(text)  # every second one is a number
    key: list[tuple[int, int | str]] = [
        (0, int(part)) if index & 1 and len(part) < 19 and part[0] != "." else (1, part)
        for index, part in enumerate(parts)
        if part
    ]
    return (*key, (-1, text))


class Globs:
    """`--include` and `--exclude`: shell patterns on dotted names. `*` also matches
    dots.
    """

    def __init__(
        self, include: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> None:
        self._patterns = tuple(include)
        self._include = _union_pattern(include)
        self._exclude = _union_pattern(exclude)

    def __bool__(self) -> bool:
        return self._include is not None or self._exclude is not None

    def match(self, *names: str) -> bool:
        """Tell whether one of the names of a tensor is included and none is
        excluded.
        """
        if self._include is not None and not any(
            self._include.match(name) for name in names
        ):
            return False
        return self._exclude is None or not any(
            self._exclude.match(name) for name in names
        )

    def refusal(self, names: Sequence[str], path: str) -> UsageError:
        """The error where none of the names matches, with what would match instead."""
        for pattern in self._patterns:
            wider = f"*{pattern.strip('*')}*"
            word = shell_word(wider)
            if wider != pattern and word is not None and Globs([wider]).match(*names):
                return UsageError(
                    "no tensor matches", path=path, hint=f"--include {word}"
                )
        listed = ", ".join(show(name, 60) for name in names[:3])
        if listed:
            hint = f"names are like {listed}"
        else:
            hint = (
                "its tensor is the root, which has no name"
                if names
                else "it holds no tensors"
            )
        return UsageError("no tensor matches", path=path, hint=hint)


def _union_pattern(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, patterns))) if patterns else None


def names_above(name: str) -> Iterator[str]:
    """Yield a name, and the names of what it lies in: `a.b.c`, `a.b`, `a`."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like `name`, best first: those that end with it, then those with a
    similar end.
    """
    pool = list(dict.fromkeys(names))
    matches = [other for other in pool if other.endswith(f".{name}")]
    if len(matches) < count and len(name) <= TEXT_LIMIT:
        from difflib import (
            get_close_matches,
        )  # imported here, because only a typo needs it

        depth = name.count(".") + 1
        ends: dict[str, str] = {}
        for other in pool[:20_000]:
            if len(other) <= TEXT_LIMIT:
                ends.setdefault(".".join(other.split(".")[-depth:]), other)
        last = name.rpartition(".")[2]
        for end in get_close_matches(name, ends, 4 * count):
            if get_close_matches(
                last, [end.rpartition(".")[2]]
            ):  # the last part itself must be similar
                matches.append(ends[end])
    return list(dict.fromkeys(matches))[:count]


def count_endings(paths: Iterable[str]) -> dict[str, int]:
    """Count the paths with each ending, most first. The empty ending counts names
    without one.
    """
    counts = Counter(
        os.path.splitext(os.path.basename(path).lower())[1] for path in paths
    )
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


# --- labels of files that stand together ----------------------------------------------

_MARKS = r"((?:[_/\\ =,@:;~()\[\]{}#]|(?<![0-9]e)[-+]|(?<![0-9])\.|\.(?![0-9]))+)"
"""The marks between the tokens of a file's name. `2.71` and `1e-05` are numbers."""
_COUNTED = frozenset(
    (
        "epoch",
        "ep",
        "step",
        "steps",
        "iter",
        "iteration",
        "checkpoint",
        "ckpt",
        "round",
        "update",
    )
)
"""Words before a number that counts the saves of a training."""
_LONG = 40
"""Characters of one token that a label shows whole, where others of its column begin or
end alike.
"""


def short_labels(names: Sequence[str]) -> list[str]:
    """Return a short label for each name of a set: what tells it apart from the others,
    in the order of the name.

    Of `RFB-Epoch-100-Loss-2.71.pth` and its like the labels are `Epoch-100`, of
    `a/model.pth` and `b/model.pth` `a` and `b`. Different names have different labels,
    of which none is longer than its name.
    """
    unique = list(dict.fromkeys(names))
    if len(unique) < 2:
        return list(names)
    kinds: dict[tuple[str, ...], list[int]] = {}
    split = [_split_tokens(name) for name in unique]
    for index, tokens in enumerate(split):
        kinds.setdefault(tuple(tokens[1::2]), []).append(index)
    shown = [""] * len(unique)
    several = sum(len(indices) > 1 for indices in kinds.values()) > 1
    alike = _count_shared_tokens(split)
    for indices in kinds.values():
        begin = alike if several else None
        texts = _told_apart([split[index] for index in indices], begin)
        for index, text in zip(indices, texts, strict=True):
            shown[index] = text
    ending = _common_ending(unique)
    whole = dict(zip(unique, unique, strict=True))
    if len(kinds) > 1:
        root = _common_folder(unique)
        whole = {
            name: name.removeprefix(root).removesuffix(ending) or name
            for name in unique
        }
        crowded = {
            folder
            for folder, count in Counter(map(os.path.dirname, unique)).items()
            if count > 1
        }
        shown = [
            whole[name]
            if text == name
            or (os.path.dirname(name) in crowded and _is_folder(text, name))
            else text.removesuffix(ending) or text
            for name, text in zip(unique, shown, strict=True)
        ]
    taken = {text: name for name, text in whole.items()}
    taken |= {
        text: name for name in unique for text in (name, name.removesuffix(ending))
    }
    counts = Counter(shown)
    short = {}
    for name, text in zip(unique, shown, strict=True):
        is_short = text and counts[text] == 1 and len(text) <= len(name)
        choices = [text, whole[name]] if is_short else [whole[name]]
        short[name] = next(
            (choice for choice in choices if taken.get(choice, name) == name), name
        )
    return [short[name] for name in names]


def are_series(names: Sequence[str]) -> bool:
    """Tell whether names in one folder differ by their numbers alone: `step_100.pt`,
    `step_200.pt`.
    """
    folders = {os.path.dirname(name) for name in names}
    return (
        len(names) > 1
        and len(folders) == 1
        and len({tuple(_split_tokens(name)[1::2]) for name in names}) == 1
    )


def _common_folder(names: Sequence[str]) -> str:
    """Return the folder that all names begin with, with its slash, or nothing."""
    first, last = min(names), max(names)
    pairs = enumerate(zip(first, last, strict=False))
    alike = next(
        (at for at, (one, two) in pairs if one != two), min(len(first), len(last))
    )
    return first[: first.rfind("/", 0, alike) + 1]


def _is_folder(label: str, name: str) -> bool:
    """Tell whether a label names the folder of a file, and not the file."""
    return f"/{os.path.dirname(name)}".endswith(f"/{label}")


def pattern(names: Sequence[str]) -> str:
    """Return what names have in common, with `*` for what differs:
    `RFB-Epoch-*-Loss-*.pth`.
    """
    split = [_split_tokens(name) for name in names]
    if len({tuple(tokens[1::2]) for tokens in split}) == 1:
        columns = [
            column[0] if len(set(column)) == 1 else "*"
            for column in zip(*split, strict=True)
        ]
        return re.sub(r"\*{2,}", "*", "".join(columns))
    if not split:
        return "*"
    begin = _count_shared_tokens(split)
    end = min(
        _count_shared_tokens([tokens[::-1] for tokens in split]),
        min(map(len, split)) - begin,
    )
    return f"{''.join(split[0][:begin])}*{''.join(split[0][len(split[0]) - end :])}"


def _split_tokens(name: str) -> list[str]:
    """Split a name into tokens, each second of them the mark between two. `epoch12` is
    a word and a number.
    """
    parts = re.split(_MARKS, name)
    tokens: list[str] = []
    for index, part in enumerate(parts):
        word = None if index & 1 else re.fullmatch(r"([^\W\d_]+)([0-9]+)", part)
        tokens += [word[1], "", word[2]] if word else [part]
    return tokens


def _count_shared_tokens(split: Sequence[Sequence[str]]) -> int:
    """Count the tokens with which all names begin, up to the last mark; or end, where
    their tokens are turned.
    """
    count = _shared_prefix_length([*map(list, split)])
    return count - count % 2


def _common_ending(names: Sequence[str]) -> str:
    """Return the ending that all names have, such as `.pth`, or nothing."""
    found = {os.path.splitext(name)[1] for name in names}
    return found.pop() if len(found) == 1 else ""


def _told_apart(split: Sequence[Sequence[str]], begin: int | None) -> list[str]:
    """Return the labels of names with the same marks. They keep what stands before the
    difference, from a token on.
    """
    if len(split) == 1:
        return [
            "".join(split[0])
        ]  # a part of a name that has no like may mean anything
    columns = list(zip(*split, strict=True))
    chosen = _choose_columns(columns, len(split))
    if chosen == [len(columns) - 1] and columns[chosen[0] - 1][0] == ".":
        return ["".join(tokens) for tokens in split]  # an ending alone says little
    spans: list[list[int]] = []
    for index in chosen:
        first = _label_start_column(columns, index)
        if spans and first <= spans[-1][1] + 2:
            spans[-1][1] = index
        else:
            spans.append([first, index])
    if begin is not None:
        spans[0][0] = begin
    texts = {index: _shorten_tokens(columns[index]) for index in chosen}
    return [
        "…".join(
            "".join(
                texts[at][row] if at in texts else columns[at][row]
                for at in range(first, last + 1)
            )
            for first, last in spans
        )
        for row in range(len(split))
    ]


def _choose_columns(columns: Sequence[Sequence[str]], count: int) -> list[int]:
    """Return the columns that tell `count` names apart: a counter alone, or the first
    ones that do together.
    """
    varying = [
        index for index in range(0, len(columns), 2) if len(set(columns[index])) > 1
    ]
    for index in varying:
        counts = (
            index > 1
            and columns[index - 2][0].lower() in _COUNTED
            and _is_counted(columns, index)
        )
        if counts and len(set(columns[index])) == count:
            before = varying[: varying.index(index)]
            return [
                at
                for at in before
                if not columns[at][0][:1].isdigit() or _is_counted(columns, at)
            ] + [index]
    keys: list[tuple[str, ...]] = [()] * count
    for number, index in enumerate(varying):
        keys = [(*key, text) for key, text in zip(keys, columns[index], strict=True)]
        if len(set(keys)) == count:
            return varying[: number + 1]
    return varying


def _label_start_column(columns: Sequence[Sequence[str]], index: int) -> int:
    """Return the column with which the label of a difference begins: a word that says
    what is counted, or the whole date.
    """
    if _is_counted(columns, index):
        return index - 2
    while index >= 2 and all(
        text.isdigit() for at in (index, index - 2) for text in columns[at]
    ):
        index -= 2
    return index


def _is_counted(columns: Sequence[Sequence[str]], index: int) -> bool:
    """Tell whether a column holds numbers behind one word, which says what they
    count.
    """
    if (
        index < 2
        or len(set(columns[index - 2])) > 1
        or not columns[index - 2][0].isalpha()
    ):
        return False
    return any(text[:1].isdigit() for text in columns[index])


def _shorten_tokens(texts: Sequence[str]) -> list[str]:
    """Return the tokens of a column, long ones without what all of them begin and end
    with.
    """
    if max(map(len, texts)) <= _LONG:
        return list(texts)
    begin = _shared_prefix_length(texts)
    end = _shared_prefix_length([text[begin:][::-1] for text in texts])
    inner = [text[begin : len(text) - end] for text in texts]
    if not all(inner):
        return list(texts)
    return [("…" if begin else "") + text + ("…" if end else "") for text in inner]


def _shared_prefix_length(texts: Sequence[str] | Sequence[list[str]]) -> int:
    """Count the characters, or the tokens, with which all texts begin."""
    first, last = min(texts), max(texts)
    return next(
        (
            index
            for index, (one, two) in enumerate(zip(first, last, strict=False))
            if one != two
        ),
        len(first),
    )
