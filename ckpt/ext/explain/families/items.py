"""Items of numbered lists of layers, by what they take and give: one that a model lacks
in the middle, and one that is the last layer of the model alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ckpt.ext.explain.case import Statement
from ckpt.ext.explain.families.divided import STATISTIC
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, show

_ITEM = re.compile(r"^(?P<list>.*?\.)(?P<number>\d{1,2})\.(?P<rest>(?:.*\.)?weight)$")
"""A weight below a number: one layer for each item of a list."""
_MOST_ITEMS = 32


class _LeftOut(NamedTuple):
    """A list in which one side lacks some items of the other side, in one place. `ours`
    is what the layers of the file take, and `theirs` the model's; an unknown number is
    None.
    """

    place: str
    ours: list[int | None]
    theirs: list[int | None]
    lacking: list[int | None]


def _left_out(message: Message, shapes: Mapping[str, Sequence[int]]) -> _LeftOut | None:
    """The first list in which items lack before its end, or None."""
    differing = {row.name: row for row in message.mismatched}
    without_place, absent = set(message.unexpected), set(message.missing)
    asked = set()
    chains = set()
    for row in message.mismatched:
        found = _ITEM.match(row.name)
        if found is None or (found["list"], found["rest"]) in asked:
            continue
        if found["list"] in chains:
            continue
        asked.add((found["list"], found["rest"]))
        ours: list[int | None] = []
        theirs: list[int | None] = []
        given: list[int] = []
        for number in range(_MOST_ITEMS):
            name = f"{found['list']}{number}.{found['rest']}"
            shape = shapes.get(name)
            if shape is not None and len(shape) > 1:
                ours.append(shape[1])
                given.append(shape[0])
            if name in differing and len(differing[name].model) > 1:
                theirs.append(differing[name].model[1])
            elif name in absent:
                theirs.append(None)
            elif shape is not None and len(shape) > 1 and name not in without_place:
                theirs.append(shape[1])
        # In a chain of layers each takes what the one before it gives.
        if len(given) > 1 and given[:-1] == ours[1:]:
            chains.add(found["list"])
            continue
        # The stages of a backbone have twice the channels of the one before.
        if _are_doubled(ours) and _are_doubled(theirs):
            continue
        lacking = _lacking_in(ours, theirs) or _lacking_in(theirs, ours)
        if lacking is not None:
            return _LeftOut(found["list"].rstrip("."), ours, theirs, lacking)
    return None


def _are_doubled(sizes: Sequence[int | None]) -> bool:
    """Tell whether each known size of a list is twice the one before."""
    known = [size for size in sizes if size is not None]
    return len(known) > 1 and all(two == 2 * one for one, two in pairwise(known))


def _lacking_in(
    longer: Sequence[int | None], shorter: Sequence[int | None]
) -> list[int | None] | None:
    """The items that a list has more than the shorter one, where they stand before its
    end, or None.
    """
    count = len(longer) - len(shorter)
    if count < 1 or not shorter:
        return None
    for start in range(len(shorter)):
        left = [*longer[:start], *longer[start + count :]]
        pairs = list(zip(left, shorter, strict=True))
        # One size at least has to speak for the shift: unknown ones fit anything.
        if None in pairs[start] or any(
            one != two for one, two in pairs if one is not None and two is not None
        ):
            continue
        return list(longer[start : start + count])
    return None


def is_left_out(message: Message, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Tell whether one side has a list of layers in which items lack in the middle."""
    return _left_out(message, shapes) is not None


def left_out_statement(
    message: Message, shapes: Mapping[str, Sequence[int]]
) -> Statement | None:
    """Say that one side has a list of layers without some items of the other's, or
    return None: an input that the one run has and the other one has not.
    """
    found = _left_out(message, shapes)
    if found is None:
        return None
    is_saved = len(found.ours) > len(found.theirs)
    side, other = ("file", "model") if is_saved else ("model", "file")
    lacking = and_more([f"{size:,}" for size in found.lacking if size], 4)
    what = (
        "the one that takes" if len(found.lacking) == 1 else "those that take"
    ) + f" {lacking}"
    return Statement(
        f"{show(found.place, 100)} has a layer for each of several inputs: they take "
        f"{_sizes_text(found.ours)} in the checkpoint and {_sizes_text(found.theirs)} "
        f"in the model. These are the same but for {what}, which the {side} has and "
        f"the {other} lacks, so all behind it moves. A kind of input is switched on in "
        f"the {side} and off in the {other}, by an option, and the layers that join "
        "the inputs are wider or narrower by it. Give the program the options of the "
        "run that saved: no rename and no load of what fits makes one of the other."
    )


def _sizes_text(sizes: Sequence[int | None]) -> str:
    return ", ".join(
        "an unknown number" if size is None else f"{size:,}" for size in sizes
    )


# --- a last layer that is a hidden one ------------------------------------------------

_IN_LIST = re.compile(r"^(?P<list>.*?\D)(?P<number>\d{1,3})\.weight$")


def hidden_statement(
    rows: Sequence[Mismatch], shapes: Mapping[str, Sequence[int]]
) -> Statement | None:
    """Say that the layer which gives other outputs is a hidden one in the file, for the
    next one of its list takes what it gives, or return None.
    """
    differing = {row.name for row in rows}
    modules = {row.name.rpartition(".")[0] for row in rows}
    if len(modules) != 1:
        return None
    for row in rows:
        found = _IN_LIST.match(row.name)
        if found is None or len(row.checkpoint) != 2 or len(row.model) != 2:
            continue
        if row.checkpoint[1] != row.model[1]:
            continue
        later = _next_of(found["list"], int(found["number"]), shapes)
        if later is None or later in differing:
            continue
        shape = shapes[later]
        if len(shape) != 2 or shape[1] != row.checkpoint[0]:
            continue
        layer = show(row.name.rpartition(".")[0], 80)
        behind = show(later.rpartition(".")[0], 80)
        return Statement(
            f"In the file {layer} is no last layer: it gives {row.checkpoint[0]:,}, "
            f"and {behind} takes them and gives {shape[0]:,}. In the model it gives "
            f"{row.model[0]:,}, and the message names no other shape of {behind}: "
            "there it is the last layer. So the two parts are for other tasks, or have "
            "other hidden layers. To go on with the task of the file, build its "
            "layers. For a task of your own, all else of the file is what is worth "
            "loading, and this part is trained anew."
        )
    return None


def _next_of(
    place: str, number: int, shapes: Mapping[str, Sequence[int]]
) -> str | None:
    """The weight of the next layer of a list that has one, or None."""
    for later in range(number + 1, number + 5):
        name = f"{place}{later}.weight"
        if len(shapes.get(name, ())) == 2:
            return name
    return None


# --- multiples of one number ----------------------------------------------------------

_LEAST_ROWS = 3
OF_LAYERS = frozenset(("weight", "bias", "running_mean", "running_var"))
"""The last words of the names of tensors whose sizes are widths."""


def multiples_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that all sizes that differ are multiples of one, a width inside of the
    network, or return None.
    """
    pairs: dict[tuple[int, int], str] = {}
    inner: set[tuple[int, int]] = set()
    for row in rows:
        is_of_layer = row.name.rpartition(".")[2] in OF_LAYERS
        if len(row.checkpoint) != len(row.model) or not is_of_layer:
            return None
        for axis, pair in enumerate(zip(row.checkpoint, row.model, strict=True)):
            if pair[0] == pair[1]:
                continue
            pairs.setdefault(pair, row.name)
            if axis == 1 or STATISTIC.search(row.name):
                inner.add(pair)
    if len(pairs) < 2 or len(rows) < _LEAST_ROWS:
        return None
    here, there = min(pairs)
    # Outputs alone may be those of a head that counts its classes several times.
    if not here or not there or (here, there) not in inner:
        return None
    others = []
    for one, two in sorted(pairs):
        times, rest = divmod(one, here)
        if rest or two != times * there:
            return None
        if times > 1:
            name = show(pairs[one, two].rpartition(".")[0], 60)
            others.append(f"{one:,} and {two:,} in {name} are {times:,} times as many")
    name = show(pairs[here, there].rpartition(".")[0], 60)
    return Statement(
        f"One number differs, and all these shapes follow from it: {here:,} in the "
        f"checkpoint and {there:,} in the model ({name} and "
        f"{counted_noun(len(rows) - 1, 'more tensor')}); {and_more(others, 2)}. A "
        "setting of the program gives it (heights or bins of a grid, channels, frames "
        "that are stacked), or its version, and no number of classes. Build the model "
        f"with {here:,}, as the run that saved did."
    )
