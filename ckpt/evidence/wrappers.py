"""The prefixes of wrappers on names (`module.`, `_orig_mod.`, `base_model.model.`), and
their writers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence

from ckpt.model.rows import NamedTuple

WRAPPERS = {
    "module": "DataParallel or DDP",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_fpw_module": "FSDP of fairscale",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_forward_module": "Lightning or DeepSpeed",
}
"""The attributes under which wrappers keep their model -> who writes them."""


AVERAGE_COUNTERS = ("n_averaged", "steps")
"""The counters that AveragedModel of torch and the averages of MMEngine keep beside
`module`.
"""

_WRAPPED = tuple(f"{part}." for part in WRAPPERS)


def wrapper_prefix(name: str) -> str:
    """The attributes of wrappers at the start of `name`, with the last dot:
    `_orig_mod.module.`, or ``.
    """
    if not name.startswith(_WRAPPED):
        return ""
    end = 0
    for part in name.split("."):
        # The last part is the tensor itself, whatever it is called.
        if part not in WRAPPERS or end + len(part) + 1 > len(name) - 1:
            break
        end += len(part) + 1
    return name[:end]


def wrapped_names(names: Sequence[str]) -> list[str]:
    """Those that begin with an attribute of a wrapper."""
    text = "\n".join(["", *names])
    if not any(f"\n{begin}" in text for begin in _WRAPPED):
        return []
    return [name for name in names if name.startswith(_WRAPPED)]


def inner_wrappers(name: str) -> list[tuple[str, str]]:
    """The attributes of wrappers inside `name`, after the leading ones, each with the
    name up to its dot.

    Only attributes that models hardly use themselves: `model._orig_mod.fc.weight` ->
    `_orig_mod`, `model._orig_mod.`. An attribute that comes twice is listed once, where
    it comes first.
    """
    inner: dict[str, str] = {}
    end = len(wrapper_prefix(name))
    for part in name[end:].split(".")[:-1]:
        end += len(part) + 1
        if part in WRAPPERS and part.startswith("_"):
            inner.setdefault(part, name[:end])
    return list(inner.items())


def own_name(name: str) -> str:
    """`name` without the attributes of wrappers that models do not use themselves:
    `a._orig_mod.b` -> `a.b`.
    """
    if "_" not in name:
        return name
    # `module` has no underscore, and is a word that models do use.
    return ".".join(
        part
        for part in name.split(".")
        if part not in WRAPPERS or not part.startswith("_")
    )


def unwrapped_name(name: str) -> str:
    """`name` without the attributes of wrappers: all leading ones, and inner ones that
    models do not use.
    """
    rest = name[len(wrapper_prefix(name)) :]
    if "._" not in rest:
        return rest
    parent, _, last = rest.rpartition(".")
    own_parent = own_name(parent)
    return f"{own_parent}.{last}" if own_parent else last


# --- `module` inside of names ---------------------------------------------------------

_MODULE = ".module."
_HABIT = 4
"""Places with `module` beyond which it is a word of the author."""


class Inner(NamedTuple):
    """The places in names where `module.` may be a wrapper's around a part of the
    model: `features.module.`.

    Below the part there is nothing else. `sure` are places of which the names say no
    more against it: one part, or a few, with several modules below. At `possible` ones
    there is one layer below, or a wrapper is around all. At `rest` the names repeat, as
    they do where an author calls a child of his layers `module`.
    """

    sure: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()

    @property
    def every(self) -> tuple[str, ...]:
        return self.sure + self.possible + self.rest


def inner_modules(names: Sequence[str]) -> Inner:
    """The places inside of names where DataParallel or DDP may be around a part of a
    model.

    DataParallel has one child, `module`, and nothing of its own: a part with another
    child or tensor is none.
    """
    # One search through all names is cheaper than one in each of them.
    if _MODULE not in "\n".join(names):
        return Inner()
    parts = _parts_with_module(names)
    totals = _count_inside(names, parts)
    alone = [part for part, below in parts.items() if totals[part] == below.names]
    alike: dict[str, int] = {}
    for part in alone:
        template = re.sub("[0-9]+", "#", part)
        alike[template] = alike.get(template, 0) + 1
    is_habit = len(alike) > _HABIT
    # Where some part has a `module` beside other children, the author uses the word.
    is_word = len(alone) < len(parts)
    outer = {part: _outer_wrapper(part) for part in alone}
    around = {place for place in outer.values() if place}
    sure: list[str] = []
    possible: list[str] = []
    rest: list[str] = []
    for part in alone:
        place = f"{part}module."
        repeats = alike[re.sub("[0-9]+", "#", part)] > 1
        is_numbered = any(step.isdigit() for step in part.split("."))
        is_nested = bool(outer[part])
        has_one_layer = len(parts[part].modules) < 2
        is_in_wrapper = "module." in wrapper_prefix(part)
        if repeats or is_numbered or is_nested or is_habit:
            rest.append(place)
        elif has_one_layer or part in around or is_in_wrapper or is_word:
            possible.append(place)
        else:
            sure.append(place)
    return Inner(tuple(sure), tuple(possible), tuple(rest))


class _Below:
    """The names with `module` directly below a part: how many, and at most two of the
    modules there.
    """

    def __init__(self) -> None:
        self.names = 0
        self.modules: set[str] = set()


def _parts_with_module(names: Sequence[str]) -> dict[str, _Below]:
    """The parts of names that have `module` below them, inside of a name: each part
    with its last dot.
    """
    parts: dict[str, _Below] = {}
    for name in names:
        start = len(wrapper_prefix(name))
        place = name.find(_MODULE, start)
        while place >= 0:
            end = place + len(_MODULE)
            if place > start and end < len(name):
                below = parts.setdefault(name[: place + 1], _Below())
                below.names += 1
                if len(below.modules) < 2:
                    below.modules.add(name[end:].rpartition(".")[0])
            # The dot at the end may be the one at the beginning of the next `module`.
            place = name.find(_MODULE, end - 1)
    return parts


def _count_inside(names: Sequence[str], parts: Iterable[str]) -> dict[str, int]:
    """Count the names that begin with each part, which ends with a dot."""
    counts = dict.fromkeys(parts, 0)
    for name in names:
        dot = name.find(".")
        while dot >= 0:
            part = name[: dot + 1]
            if part in counts:
                counts[part] += 1
            dot = name.find(".", dot + 1)
    return counts


def _outer_wrapper(part: str) -> str:
    """The first part with a `module` that has this one, and another part between, in
    it; or ``.
    """
    start = len(wrapper_prefix(part))
    rest = part
    # One wrapper around another one.
    while rest.endswith(_MODULE):
        rest = rest.removesuffix("module.")
    place = rest.find(_MODULE, start)
    return rest[: place + 1] if place > start else ""


def unwrapping_rule(
    names: Sequence[str], *, every: bool = False
) -> Callable[[str], str]:
    """A rule: a name -> the name without wrappers, also without DataParallel around a
    part where `names` show that for sure.

    With `every` it is taken away wherever it may be.
    """
    inner = inner_modules(names)
    return without_modules(inner.every if every else inner.sure)


def names_below(names: Sequence[str], places: Iterable[str]) -> dict[str, int]:
    """Count the names that begin with each place, which ends with `module.`."""
    counts = dict.fromkeys(places, 0)
    if not counts:
        return counts
    for name in names:
        start = name.find(_MODULE)
        while start >= 0:
            end = start + len(_MODULE)
            if name[:end] in counts:
                counts[name[:end]] += 1
            start = name.find(_MODULE, end - 1)
    return counts


def without_modules(places: Iterable[str]) -> Callable[[str], str]:
    """A rule: a name -> the name without wrappers, and without `module` at some
    places.
    """
    known = frozenset(places)
    if not known:
        return unwrapped_name

    def rule(name: str) -> str:
        kept = ""
        kept_until = 0
        start = name.find(_MODULE)
        while start >= 0:
            last_dot = start + len(_MODULE) - 1
            if name[: last_dot + 1] in known:
                kept += name[kept_until:start]
                kept_until = last_dot
            start = name.find(_MODULE, last_dot)
        return unwrapped_name(kept + name[kept_until:])

    return rule


def usual_prefix(
    names: Iterable[str], rule: Callable[[str], str] = unwrapped_name
) -> str:
    """The prefix that a rule removes from most names; on a tie, the one seen first."""
    counts: dict[str, int] = {}
    for name in names:
        plain = rule(name)
        if name.endswith(plain):
            prefix = name[: len(name) - len(plain)]
            counts[prefix] = counts.get(prefix, 0) + 1
    return max(counts, key=lambda prefix: counts[prefix], default="")


def writers_of_prefix(
    prefix: str, *, counters: Container[str] = (), is_average: bool = False
) -> str:
    """Name the writers of a prefix of wrappers: `torch.compile around DataParallel or
    DDP`.

    `counters` are the names of an average's counters. One that stands beside `module.`
    tells AveragedModel: DDP would have put its prefix before the counter too. Without
    one, an average may have the prefix from either.
    """
    writers = []
    base = ""
    for part in prefix.rstrip(".").split("."):
        writer = WRAPPERS[part]
        if part == "module":
            if any(f"{base}{counter}" in counters for counter in AVERAGE_COUNTERS):
                writer = "AveragedModel"
            elif is_average:
                writer = f"the average, {writer}"
            # The outermost `module` is the average's.
            is_average = False
        writers.append(writer)
        base += f"{part}."
    return " around ".join(writers)


def can_strip_wrappers(names: Sequence[str]) -> bool:
    """Tell whether some names change without the prefixes of wrappers, and all stay
    different.
    """
    new = list(map(unwrapping_rule(names), names))
    return new != list(names) and len(set(new)) == len(new)


# --- PEFT -----------------------------------------------------------------------------

# PEFT puts a model below `base_model.model`. A layer that an adapter changes keeps its
# own tensors below `base_layer`, and those of the adapter below `lora_A.NAME`; the file
# of an adapter leaves NAME out. A layer that is trained as a whole has its copy below
# `modules_to_save.NAME`.
_PEFT = "base_model.model."
_PEFT_MARKS = ("base_model.model.", ".base_layer.", ".lora_", ".modules_to_save.")
_NAMED = r"\.(lora_(?:A|B|magnitude_vector))\.[^.]+\.(weight|bias)$"
_EMBEDDING = r"\.(lora_embedding_[AB])\.[^.]+$"
_SAVED = r"\.modules_to_save\.[^.]+\."
_LAYER = r"(.+)\.lora_(?:A|B|embedding_A|embedding_B)(?:\.|$)"


def is_adapted(names: Iterable[str]) -> bool:
    """Tell whether PEFT makes any of the names."""
    text = "\n".join(names)
    return any(mark in text for mark in _PEFT_MARKS)


def base_name(name: str) -> str:
    """The name without what PEFT adds: `base_model.model.fc.base_layer.weight` ->
    `fc.weight`.
    """
    name = name.removeprefix(_PEFT).replace(".base_layer.", ".")
    if ".lora_" in name:
        return re.sub(_EMBEDDING, r".\1", re.sub(_NAMED, r".\1.\2", name))
    return re.sub(_SAVED, ".", name)


def adapted_layers(names: Iterable[str]) -> list[str]:
    """The layers of the base model that LoRA changes, by their names in the base model,
    each once.
    """
    layers: dict[str, None] = {}
    for name in names:
        if "lora_" not in name:
            continue
        layer = re.match(_LAYER, base_name(unwrapped_name(name)))
        if layer is not None:
            layers[layer[1]] = None
    return list(layers)
