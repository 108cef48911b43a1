"""Names: paths and dotted names, globs, natural order, the nearest name."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import translate

from ckpt.errors import UsageError
from ckpt.rows import NamedTuple
from ckpt.text import TEXT_LIMIT, pasted, show

Key = str | int
"""One step of a path. Keys of other types become a `NamedKey`."""


class NamedKey(str):
    """A key that is neither a string nor an int (bytes, float, tuple, object …), as a text that names it.

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
_NUMBERS = re.compile(r"([0-9]+)")


def dotted(path: Sequence[Key]) -> str:
    """The name of a path: its keys joined with dots. Two paths may share one name."""
    return ".".join([key if type(key) is str else str(key) for key in path])


class Block(NamedTuple):
    """Neighbours in a list of names that begin alike up to their first number: `layers.3.`; nothing without a number.

    They are the names from `first` up to `last`.
    """

    begin: str
    first: int
    last: int


_BEGIN = re.compile(r"(?:[^.]*\.)*?[0-9]{1,9}\.")


def blocks(names: Sequence[str]) -> list[Block]:
    """The blocks of a list of names, in order. A model repeats its layers, so many of them are alike inside."""
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


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that puts `layers.2` before `layers.10`."""
    parts = _NUMBERS.split(text)  # every second one is a number
    return tuple(
        [
            (0, int(part)) if index & 1 and len(part) < 19 else (1, part)
            for index, part in enumerate(parts)
            if part
        ]
    )


class Globs:
    """`--include` and `--exclude`: shell patterns on dotted names. `*` also matches dots."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._patterns = tuple(include)
        self._include = _union(include)
        self._exclude = _union(exclude)

    def __bool__(self) -> bool:
        return self._include is not None or self._exclude is not None

    def match(self, *names: str) -> bool:
        """Tell whether one of the names of a tensor is included and none is excluded."""
        if self._include is not None and not any(self._include.match(name) for name in names):
            return False
        return self._exclude is None or not any(self._exclude.match(name) for name in names)

    def refusal(self, names: Sequence[str], path: str) -> UsageError:
        """The error where none of the names matches, with what would match instead."""
        for pattern in self._patterns:
            wider = f"*{pattern.strip('*')}*"
            word = pasted(wider)
            if wider != pattern and word is not None and Globs([wider]).match(*names):
                return UsageError("no tensor matches", path=path, hint=f"--include {word}")
        listed = ", ".join(show(name, 60) for name in names[:3])
        return UsageError(
            "no tensor matches",
            path=path,
            hint=f"names are like {listed}" if listed else "it holds no tensors",
        )


def _union(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, patterns))) if patterns else None


def nearest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like `name`, best first: those that end with it, then those with a similar end."""
    pool = list(dict.fromkeys(names))
    matches = [other for other in pool if other.endswith(f".{name}")]
    if len(matches) < count and len(name) <= TEXT_LIMIT:
        from difflib import get_close_matches  # imported here, because only a typo needs it

        depth = name.count(".") + 1
        ends: dict[str, str] = {}
        for other in pool[:20_000]:
            if len(other) <= TEXT_LIMIT:
                ends.setdefault(".".join(other.split(".")[-depth:]), other)
        last = name.rpartition(".")[2]
        for end in get_close_matches(name, ends, 4 * count):
            if get_close_matches(last, [end.rpartition(".")[2]]):  # the last part itself must be similar
                matches.append(ends[end])
    return list(dict.fromkeys(matches))[:count]


def endings(paths: Iterable[str]) -> dict[str, int]:
    """Count the paths with each ending, most first. The empty ending counts names without one."""
    counts = Counter(os.path.splitext(os.path.basename(path).lower())[1] for path in paths)
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
