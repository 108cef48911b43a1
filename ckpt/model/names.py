"""Names: paths and dotted names, globs, natural order, the nearest name."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from functools import cached_property

from ckpt.model.errors import UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import TEXT_LIMIT, shared_prefix_length, shell_word, show

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
        # A str cannot take a second value by `__init__`.
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

    def sub(self, replace: Callable[[re.Match[str]], str], text: str) -> str:
        """The text with each match replaced by what a function makes of it."""
        return self._compiled_pattern.sub(replace, text)


_INDEX = LazyPattern(
    r"(?s)(?P<stem>.*)(?P<ending>\.(?:safetensors|bin))"
    r"(?P<older>\.\w{1,40})?\.index(?P<variant>\.\w{1,40})?\.json"
)
"""transformers and diffusers put the variant of the weights behind `index`, and did put
it before.
"""


def is_index(path: str) -> bool:
    """Tell whether a path has the name of an index of shards:
    `model.safetensors.index.json`, or for a variant
    `model.safetensors.index.fp16.json`.
    """
    return without_index(path) != path


def without_index(path: str) -> str:
    """The path of an index as the path of one file with its weights:
    `model.safetensors.index.fp16.json` -> `model.fp16.safetensors`. Other paths stay.
    """
    # Most names end otherwise, and ask for no pattern.
    match = _INDEX.fullmatch(path) if path.endswith(".json") else None
    if match is None:
        return path.removesuffix(".index.json")
    variant = match["variant"] or match["older"] or ""
    return f"{match['stem']}{variant}{match['ending']}"


def index_of(weights: str) -> str:
    """The name of an index, as transformers and diffusers look for it, for shards of
    the weights in one file of this name: `model.fp16.safetensors` ->
    `model.safetensors.index.fp16.json`.
    """
    stem, _, variant = weights.partition(".")
    variant, _, ending = variant.rpartition(".")
    if stem in _OF_HUGGING_FACE and re.fullmatch(r"\w{1,40}", variant):
        return f"{stem}.{ending}.index.{variant}.json"
    return f"{weights}.index.json"


_OF_HUGGING_FACE = ("model", "pytorch_model", "diffusion_pytorch_model")
"""The beginnings of the names of weights that may be followed by a variant."""


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
    if not names:
        return []
    blocks: list[Block] = []
    new = tuple.__new__  # without the checks of a call of the class
    begin, first = "", 0
    for index, name in enumerate(names):
        # A name that goes on in the same block is the usual case: no search is needed.
        if begin and name.startswith(begin):
            continue
        number = _BEGIN.match(name)
        next_begin = number[0] if number else ""
        if next_begin != begin:
            if index > first:
                blocks.append(new(Block, (begin, first, index)))
            begin, first = next_begin, index
    blocks.append(Block(begin, first, len(names)))
    return blocks


ROOT = "."
"""The name of the root of a checkpoint, as a person types it."""


def natural_sort_key(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that puts `layers.2` before `layers.10`, and `lr0.005` before
    `lr0.05`. Each text has its own.
    """
    key: list[tuple[int, int | str]] = []
    for index, part in enumerate(_NUMBERS.split(text)):
        if not part:
            continue
        is_number = index % 2 == 1
        # The digits behind a point are compared as text: 0.05 is more than 0.005. So
        # are more digits than 64 bits hold, for int() of a long text is slow.
        if is_number and part[0] != "." and len(part) < 19:
            key.append((0, int(part)))
        else:
            key.append((1, part))
    # `1` and `01` have the same parts, but not the same key.
    return (*key, (-1, text))


_MANY = 1_000
"""Names from which on their keys are made all at once."""
_USUAL_NAMES = LazyPattern(r"[^\x00-\x1f]*(?:\n[^\x00-\x1f]*)*")
_DECIMAL = LazyPattern(r"[^.0-9\n]0\.[0-9]")


class _UnusualError(Exception):
    """A name whose key is not made together with the others."""


class _Digits(dict[str, str]):
    """Numbers as texts that sort by value, before all letters: how many digits, then
    these.
    """

    def __missing__(self, digits: str) -> str:
        if len(digits) >= 19 or (digits[0] == "0" and digits != "0"):
            raise _UnusualError
        text = f"\x01{64 + len(digits):c}{digits}"
        # Numbers of five digits and more hardly come twice: a dict of a million of them
        # takes longer than to make each again, and as much memory as the names.
        if len(digits) < 5:
            self[digits] = text
        return text


def natural_order(names: Sequence[str]) -> list[int]:
    """Return the numbers of some names in the order of `natural_sort_key`.

    Many names get one text each as a key: a tuple takes eight times the memory.
    """
    keys: Sequence[object] | None = _sort_texts(names) if len(names) >= _MANY else None
    if keys is None:
        keys = list(map(natural_sort_key, names))
    return sorted(range(len(names)), key=keys.__getitem__)  # type: ignore[arg-type]


def _sort_texts(names: Sequence[str]) -> list[str] | None:
    """Return texts in the order of the keys of names, or None where one of them is
    unusual.
    """
    digits = _Digits()
    texts: list[str] = []
    for first in range(0, len(names), _MANY):
        joined = "\n".join(names[first : first + _MANY])
        if not _USUAL_NAMES.fullmatch(joined) or _DECIMAL.search(joined):
            return None
        parts = re.split("([0-9]+)", joined)
        try:
            parts[1::2] = map(digits.__getitem__, parts[1::2])
        except _UnusualError:
            return None
        texts += "".join(parts).split("\n")
    return texts if len(texts) == len(names) else None


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
        if self._include is not None and not any(map(self._include.match, names)):
            return False
        return self._exclude is None or not any(map(self._exclude.match, names))

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
        elif names:
            hint = "its tensor is the root, which has no name"
        else:
            hint = "it holds no tensors"
        return UsageError("no tensor matches", path=path, hint=hint)


def _union_pattern(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """One expression for all shell patterns, or None without any."""
    if not patterns:
        return None
    return re.compile("|".join(map(translate, patterns)))


def names_above(name: str) -> Iterator[str]:
    """Yield a name, and the names of what it lies in: `a.b.c`, `a.b`, `a`."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like `name`, best first: those at the root that have it as a word,
    as `global_step` has `step`, those that end with it, then those with a similar end.
    """
    # Each name once, in the order of the file.
    pool = list(dict.fromkeys(names))
    matches = [other for other in pool if _has_word(other, name)]
    matches += [other for other in pool if other.endswith(f".{name}")]
    if len(matches) < count and len(name) <= TEXT_LIMIT:
        matches += _similar_names(name, pool, count)
    return list(dict.fromkeys(matches))[:count]


def _has_word(other: str, name: str) -> bool:
    """Tell whether a name without dots is longer than `name` and has it as a word."""
    if "." in other or "." in name or len(other) > TEXT_LIMIT:
        return False
    return other != name and name in other.replace("-", "_").split("_")


def _similar_names(name: str, pool: Sequence[str], count: int) -> list[str]:
    """Names whose last parts, as many as `name` has, are spelled much like it."""
    from difflib import get_close_matches  # here: only a typo needs it

    depth = name.count(".") + 1
    names_by_end: dict[str, str] = {}
    # difflib's time grows with the number of names and the square of their lengths, and
    # a stranger's file has names without limit. So far names and long ones are ignored.
    for other in pool[:20_000]:
        if len(other) <= TEXT_LIMIT:
            end = ".".join(other.split(".")[-depth:])
            names_by_end.setdefault(end, other)
    last = name.rpartition(".")[2]
    similar: list[str] = []
    for end in get_close_matches(name, names_by_end, 4 * count):
        # `layers.3.weight` as a whole is close to `layers.3.bias`, but no typo of it.
        if get_close_matches(last, [end.rpartition(".")[2]]):
            similar.append(names_by_end[end])
    return similar


def count_endings(paths: Iterable[str]) -> dict[str, int]:
    """Count the paths with each ending, most first. The empty ending counts names
    without one.
    """
    counts: Counter[str] = Counter()
    for path in paths:
        file_name = os.path.basename(path).lower()
        counts[os.path.splitext(file_name)[1]] += 1
    # By the ending first, so that equal counts stand in alphabetical order.
    by_ending = sorted(counts.items())
    by_ending.sort(key=lambda pair: pair[1], reverse=True)
    return dict(by_ending)


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
    split = [_split_tokens(name) for name in unique]
    kinds = _names_by_marks(split)
    differences = _label_kinds(split, kinds)
    ending = _common_ending(unique)
    if len(kinds) == 1:
        whole = {name: name for name in unique}
    else:
        whole = _without_shared_ends(unique, ending)
        differences = _plain_differences(unique, differences, whole, ending)
    short = _unmistakable_labels(unique, differences, whole, ending)
    return [short[name] for name in names]


def findable_labels(names: Sequence[str]) -> list[str]:
    """Return a label for each name of a set by which a person finds its file again.

    The saves of a run have the short labels of their numbers. Words are not cut out of
    a name: `lora-merged` beside `full-merged` is not `lora`. Such names lose the folder
    and the ending that all of them share.
    """
    short = short_labels(names)
    unique = list(dict.fromkeys(names))
    if len(unique) < 2 or all(re.search("[0-9]", label) for label in short):
        return short
    whole = _without_shared_ends(unique, _common_ending(unique))
    are_apart = len(set(whole.values())) == len(unique)
    return [whole[name] if are_apart else name for name in names]


def _names_by_marks(split: Sequence[Sequence[str]]) -> list[list[int]]:
    """Group names, split into tokens, that have the same marks. A group has their
    indices.
    """
    kinds: dict[tuple[str, ...], list[int]] = {}
    for index, tokens in enumerate(split):
        marks = tuple(tokens[1::2])
        kinds.setdefault(marks, []).append(index)
    return list(kinds.values())


def _label_kinds(
    split: Sequence[Sequence[str]], kinds: Sequence[Sequence[int]]
) -> list[str]:
    """Return for each name what tells it apart from the others of its kind."""
    # Labels of two kinds that each begin where their own kind differs could be the
    # same. So they begin where all names differ.
    begin: int | None = None
    several_series = sum(len(indices) > 1 for indices in kinds) > 1
    if several_series:
        begin = _count_shared_tokens(split)
    differences = [""] * len(split)
    for indices in kinds:
        labels = _told_apart([split[index] for index in indices], begin)
        for index, label in zip(indices, labels, strict=True):
            differences[index] = label
    return differences


def _without_shared_ends(names: Sequence[str], ending: str) -> dict[str, str]:
    """Each name without the folder and the ending that all of them share."""
    root = _common_folder(names)
    whole: dict[str, str] = {}
    for name in names:
        inner = name.removeprefix(root).removesuffix(ending)
        whole[name] = inner or name
    return whole


def _plain_differences(
    names: Sequence[str], differences: Sequence[str], whole: dict[str, str], ending: str
) -> list[str]:
    """The differences of names with different marks, without the shared ending.

    A name of its own kind has no difference, and where a folder has several of the
    names its name tells none of them apart. These have their whole name.
    """
    files_in = Counter(map(os.path.dirname, names))
    labels: list[str] = []
    for name, difference in zip(names, differences, strict=True):
        shares_folder = files_in[os.path.dirname(name)] > 1
        if difference == name or (shares_folder and _is_folder(difference, name)):
            labels.append(whole[name])
        else:
            labels.append(difference.removesuffix(ending) or difference)
    return labels


def _unmistakable_labels(
    names: Sequence[str], differences: Sequence[str], whole: dict[str, str], ending: str
) -> dict[str, str]:
    """The label of each name: its difference, its whole name, or the name itself, the
    first of these that could not be meant for another file.
    """
    meant: dict[str, str] = {whole[name]: name for name in names}
    for name in names:
        meant[name] = name
        meant[name.removesuffix(ending)] = name
    counts = Counter(differences)
    labels: dict[str, str] = {}
    for name, difference in zip(names, differences, strict=True):
        choices = [whole[name]]
        is_own = counts[difference] == 1
        if difference and is_own and len(difference) <= len(name):
            choices.insert(0, difference)
        labels[name] = name
        for choice in choices:
            if meant.get(choice, name) == name:
                labels[name] = choice
                break
    return labels


def are_series(names: Sequence[str]) -> bool:
    """Tell whether names in one folder differ by their numbers alone: `step_100.pt`,
    `step_200.pt`.
    """
    folders = {os.path.dirname(name) for name in names}
    if len(names) < 2 or len(folders) > 1:
        return False
    return _have_same_marks([_split_tokens(name) for name in names])


def _have_same_marks(split: Sequence[Sequence[str]]) -> bool:
    """Tell whether names, split into tokens, differ by their words and numbers alone.
    No name at all has no marks.
    """
    return len({tuple(tokens[1::2]) for tokens in split}) == 1


def _common_folder(names: Sequence[str]) -> str:
    """Return the folder that all names begin with, with its slash, or nothing."""
    shared = shared_prefix_length(names)
    return names[0][: names[0].rfind("/", 0, shared) + 1]


def _is_folder(label: str, name: str) -> bool:
    """Tell whether a label names the folder of a file, and not the file."""
    return f"/{os.path.dirname(name)}".endswith(f"/{label}")


def common_pattern(names: Sequence[str]) -> str:
    """Return what names have in common, with `*` for what differs:
    `RFB-Epoch-*-Loss-*.pth`.
    """
    if not names:
        return "*"
    split = [_split_tokens(name) for name in names]
    if _have_same_marks(split):
        shared: list[str] = []
        for column in zip(*split, strict=True):
            shared.append(column[0] if len(set(column)) == 1 else "*")
        return re.sub(r"\*{2,}", "*", "".join(shared))
    begin = _count_shared_tokens(split)
    end = _count_shared_tokens([tokens[::-1] for tokens in split])
    # The shortest name must not give one token to both ends.
    end = min(end, min(map(len, split)) - begin)
    first = split[0]
    head = "".join(first[:begin])
    tail = "".join(first[len(first) - end :])
    return f"{head}*{tail}"


def _split_tokens(name: str) -> list[str]:
    """Split a name into tokens, each second of them the mark between two. `epoch12` is
    a word and a number.
    """
    tokens: list[str] = []
    for index, part in enumerate(re.split(_MARKS, name)):
        is_mark = index % 2 == 1
        counted = re.fullmatch(r"([^\W\d_]+)([0-9]+)", part)
        if counted and not is_mark:
            tokens += [counted[1], "", counted[2]]
        else:
            tokens.append(part)
    return tokens


def _count_shared_tokens(split: Sequence[Sequence[str]]) -> int:
    """Count the tokens with which all names begin, up to the last mark; or end, where
    their tokens are turned.
    """
    count = shared_prefix_length([list(tokens) for tokens in split])
    return count - count % 2


def _common_ending(names: Sequence[str]) -> str:
    """Return the ending that all names have, such as `.pth`, or nothing."""
    endings = {os.path.splitext(name)[1] for name in names}
    return endings.pop() if len(endings) == 1 else ""


def _told_apart(split: Sequence[Sequence[str]], begin: int | None) -> list[str]:
    """Return the labels of names with the same marks. They keep what stands before the
    difference, from a token on.
    """
    if len(split) == 1:
        # A part of a name that is unlike all others may mean anything.
        return ["".join(split[0])]
    columns = list(zip(*split, strict=True))
    chosen = _choose_columns(columns, len(split))
    last = len(columns) - 1
    if chosen == [last] and last > 0 and columns[last - 1][0] == ".":
        # An ending alone, such as `pt` or `safetensors`, says little.
        return ["".join(tokens) for tokens in split]
    spans = _label_spans(columns, chosen)
    if begin is not None:
        spans[0] = (begin, spans[0][1])
    shown: list[Sequence[str]] = list(columns)
    for index in chosen:
        shown[index] = _shorten_tokens(columns[index])
    labels: list[str] = []
    for row in range(len(split)):
        pieces = [
            "".join(column[row] for column in shown[first : last + 1])
            for first, last in spans
        ]
        labels.append("…".join(pieces))
    return labels


def _label_spans(
    columns: Sequence[Sequence[str]], chosen: Sequence[int]
) -> list[tuple[int, int]]:
    """The first and the last column of each piece of a label that shows the chosen
    columns. Pieces with at most a token and its marks between them are one.
    """
    spans: list[tuple[int, int]] = []
    for index in chosen:
        first = _label_start_column(columns, index)
        if spans and first <= spans[-1][1] + 2:
            spans[-1] = (spans[-1][0], index)
        else:
            spans.append((first, index))
    return spans


def _choose_columns(columns: Sequence[Sequence[str]], count: int) -> list[int]:
    """Return the columns that tell `count` names apart: a counter alone, or the first
    ones that do together.
    """
    words = range(0, len(columns), 2)
    varying = [index for index in words if len(set(columns[index])) > 1]
    for number, index in enumerate(varying):
        if len(set(columns[index])) == count and _counts_saves(columns, index):
            # Of what stands before the counter a word such as `best` stays, and a
            # number behind a word. A bare number, such as a date, says less than both.
            before = [
                earlier
                for earlier in varying[:number]
                if not columns[earlier][0][:1].isdigit()
                or _is_counted(columns, earlier)
            ]
            return [*before, index]
    keys: list[tuple[str, ...]] = [()] * count
    for number, index in enumerate(varying):
        keys = [(*key, text) for key, text in zip(keys, columns[index], strict=True)]
        if len(set(keys)) == count:
            return varying[: number + 1]
    return varying


def _counts_saves(columns: Sequence[Sequence[str]], index: int) -> bool:
    """Tell whether a column holds numbers behind a word such as `epoch`."""
    if not _is_counted(columns, index):
        return False
    return columns[index - 2][0].lower() in _COUNTED


def _label_start_column(columns: Sequence[Sequence[str]], index: int) -> int:
    """Return the column with which the label of a difference begins: a word that says
    what is counted, or the whole date.
    """
    if _is_counted(columns, index):
        return index - 2
    while (
        index >= 2 and _are_digits(columns[index]) and _are_digits(columns[index - 2])
    ):
        index -= 2
    # A number that stands in its word, as in `s4_0`, is not cut out of it.
    if index >= 2 and _are_digits(columns[index]) and not any(columns[index - 1]):
        index -= 2
    return index


def _are_digits(texts: Sequence[str]) -> bool:
    return all(text.isdigit() for text in texts)


def _is_counted(columns: Sequence[Sequence[str]], index: int) -> bool:
    """Tell whether a column holds numbers behind one word, which says what they
    count.
    """
    if index < 2:
        return False
    words = columns[index - 2]
    if len(set(words)) > 1 or not words[0].isalpha():
        return False
    return any(text[:1].isdigit() for text in columns[index])


def _shorten_tokens(texts: Sequence[str]) -> list[str]:
    """Return the tokens of a column, long ones without what all of them begin and end
    with.
    """
    if max(map(len, texts)) <= _LONG:
        return list(texts)
    begin = shared_prefix_length(texts)
    end = shared_prefix_length([text[begin:][::-1] for text in texts])
    inner = [text[begin : len(text) - end] for text in texts]
    if not all(inner):
        # One of them would be empty.
        return list(texts)
    before = "…" if begin else ""
    after = "…" if end else ""
    return [f"{before}{text}{after}" for text in inner]
