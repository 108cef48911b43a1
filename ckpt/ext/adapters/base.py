"""The tensors of a base by the names that an adapter has for them: below other
prefixes, or with `_` for the dots.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import islice

from ckpt.evidence.wrappers import base_name, unwrapped_name
from ckpt.ext.adapters.pipelines import Aliases, pipeline_aliases
from ckpt.model.checkpoint import Entry, names_of
from ckpt.model.errors import UsageError
from ckpt.model.names import nearest_names
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, is_number, show

WEIGHTS = (".weight", "", ".in_proj_weight")
"""The ends that the weight of a module may have behind the name of the module. A
parameter has its own name.
"""
FUSED: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "qkv": ("q", "k", "v"),
    "to_qkv": ("to_q", "to_k", "to_v"),
    "Wqkv": ("q_proj", "k_proj", "v_proj"),
    "W_pack": ("q_proj", "k_proj", "v_proj"),
    "query_key_value": ("q_proj", "k_proj", "v_proj"),
    "c_attn": ("q_attn", "k_attn", "v_attn"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""The module that holds several in one -> those that other writers hold apart, in their
order.
"""
EXPERT_PARTS: dict[str, tuple[str, int, int]] = {
    "gate_proj": ("gate_up_proj", 0, 2),
    "up_proj": ("gate_up_proj", 1, 2),
    "down_proj": ("down_proj", 0, 1),
    "w1": ("gate_up_proj", 0, 2),
    "w3": ("gate_up_proj", 1, 2),
    "w2": ("down_proj", 0, 1),
}
"""A layer of one expert -> the parameter of all experts that holds it, its place in
that, and how many are there. Those of one parameter stand in their order.
"""
_NEAR = 3
_MOST = 200
"""The most beginnings that a layer may have in the base, and that are looked for: where
there are more, names do not say which layer is meant.
"""
_TRIES = 3
"""Parts at the end of the name of a layer that another writer may have fused with
others.
"""


class Base:
    """The tensors of a base, by their names without wrappers and without what PEFT
    adds.

    `path` is the file. Raises UsageError where two tensors have one name.
    """

    def __init__(self, entries: Sequence[Entry], path: str) -> None:
        self.path = path
        self.entries = entries
        self.names = [base_name(unwrapped_name(name)) for name in names_of(entries)]
        self.indices = dict(zip(self.names, range(len(self.names)), strict=True))
        if len(self.indices) < len(self.names):
            raise UsageError(
                "two tensors have one name without wrappers",
                path=path,
                hint="ckpt strip",
            )

    @cached_property
    def children(self) -> dict[str, list[str]]:
        """Module -> the last parts of the names of its own tensors."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            module, _, leaf = name.rpartition(".")
            found.setdefault(module, []).append(leaf)
        return found

    @cached_property
    def places(self) -> set[str]:
        """The names of all tensors, and of all modules that hold some."""
        found = set(self.names)
        for module in self.children:
            while module and module not in found:
                found.add(module)
                module = module.rpartition(".")[0]
        return found

    @cached_property
    def _turned_places(self) -> list[str]:
        """The names of all places backwards behind a dot, sorted: those with one end
        stand side by side.
        """
        # Backwards and sorted, names with one end are neighbours: a search finds the
        # first.
        return sorted(f".{place}"[::-1] for place in self.places)

    def places_ending(self, tail: str) -> Iterator[str]:
        """Yield the places that have these last parts."""
        yield from _with_end(self._turned_places, f".{tail}")

    @cached_property
    def _turned_flats(self) -> list[str]:
        """As `_turned_places`, for the flat names behind a `_`."""
        return sorted(f"_{flat}"[::-1] for flat in self.flats)

    def flats_ending(self, tail: str) -> Iterator[str]:
        """Yield the flat names that have this end."""
        yield from _with_end(self._turned_flats, f"_{tail}")

    @cached_property
    def flats(self) -> dict[str, list[str]]:
        """The name of each module with a weight, with `_` for its dots -> the modules
        that have it.
        """
        found: dict[str, list[str]] = {}
        for module, leaves in self.children.items():
            if "weight" in leaves:
                found.setdefault(module.replace(".", "_"), []).append(module)
        return found

    @cached_property
    def aliases(self) -> Aliases:
        """The layers of a whole checkpoint of a pipeline, by the names of diffusers."""
        # MultiheadAttention of torch has `in_proj_weight` alone.
        weights = ("weight", "in_proj_weight")
        return pipeline_aliases(
            module
            for module, leaves in self.children.items()
            if any(own in leaves for own in weights)
        )

    def weight_of(self, module: str) -> str | None:
        """The name of the weight of a module, or of a parameter, or None."""
        for end in WEIGHTS:
            if module + end in self.indices:
                return module + end
        return None

    def is_there(self, module: str) -> bool:
        """Tell whether a base has the layer, by itself, as a part of a fused one, or in
        parts of its own.
        """
        if self.weight_of(module) is not None or module in self.places:
            return True
        return (
            self.fused_with(module) is not None
            or self.expert_of(module) is not None
            or bool(self.parts_of(module))
        )

    def fused_with(self, module: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the weight that holds a layer with its siblings, and the names of
        these; or None.
        """
        above, _, leaf = module.rpartition(".")
        for fused, parts in FUSED.items():
            if leaf not in parts:
                continue
            weight = self.weight_of(f"{above}.{fused}")
            if weight is not None:
                return weight, tuple(f"{above}.{part}" for part in parts)
        return None

    def parts_of(self, module: str) -> list[str]:
        """The weights that hold the parts of a fused layer, in their order, or
        nothing.
        """
        above, _, leaf = module.rpartition(".")
        weights: list[str] = []
        for part in FUSED.get(leaf, ()):
            weight = self.weight_of(f"{above}.{part}")
            # All parts or none: one alone is a layer with the name of a part.
            if weight is None:
                return []
            weights.append(weight)
        return weights

    def expert_of(self, module: str) -> tuple[str, int, int, int] | None:
        """Return the parameter of all experts with a layer of one of them, its number,
        its place there, and how many share it.
        """
        above, _, leaf = module.rpartition(".")
        experts, _, number = above.rpartition(".")
        if leaf not in EXPERT_PARTS or not is_number(number):
            return None
        parameter, place, count = EXPERT_PARTS[leaf]
        weight = self.weight_of(f"{experts}.{parameter}")
        if weight is None:
            return None
        return weight, int(number), place, count

    def entry(self, name: str) -> Entry:
        """The tensor with a name."""
        return self.entries[self.indices[name]]

    def near(self, name: str) -> str:
        """The names most like one, as text for an error, or ``."""
        close = nearest_names(name, self.names, _NEAR)
        return and_more([show(other, 100) for other in close], _NEAR)


def _with_end(turned: list[str], end: str) -> Iterator[str]:
    """Yield the texts with an end, without their first character, of sorted texts
    backwards.
    """
    begin = end[::-1]
    for index in range(bisect_left(turned, begin), len(turned)):
        if not turned[index].startswith(begin):
            return
        yield turned[index][::-1][1:]


class Shift(NamedTuple):
    """A beginning of names that becomes another one, with `#` for numbers, which stay
    in their order: `layers.#.mlp.`.
    """

    before: str
    after: str

    def apply(self, module: str) -> str | None:
        """The module with the other beginning, or None where it has not this one."""
        match = _template_pattern(self.before).match(module)
        if match is None:
            return None
        # The numbers of a name stay as they are, in their order.
        numbers = iter(match.groups())
        return re.sub("#", lambda _: next(numbers), self.after) + module[match.end() :]


@cache
def _template_pattern(template: str) -> re.Pattern[str]:
    return re.compile("([0-9]+)".join(map(re.escape, template.split("#"))))


def _find_numbers(text: str) -> list[str]:
    return re.findall("[0-9]+", text)


Names = dict[str, str]
"""The name of a layer in an adapter -> its name in the base."""


def met_names(
    modules: Sequence[str],
    base: Base,
    fits: Callable[[str, str], bool],
) -> tuple[Names, list[Shift]]:
    """The layers of an adapter with their names in the base, as far as these meet, and
    what was changed for it.

    `fits` tells whether a layer has the shape of one of the base. Raises UsageError
    where two beginnings serve equally well.
    """
    met = {module: module for module in modules if base.is_there(module)}
    shifts: list[Shift] = []
    rest = [module for module in modules if module not in met]
    # A search that failed for one layer fails for all with other numbers.
    failed: set[str] = set()
    for first in tuple(rest):
        if first in met or _mask_numbers(first) in failed:
            continue
        if len(failed) + len(shifts) == _MOST:
            break
        shift = _best_shift(first, rest, base, fits)
        if shift is None:
            failed.add(_mask_numbers(first))
            continue
        shifts.append(shift)
        for module in rest:
            new = _met_by(shift, module, base)
            if new is not None:
                met[module] = new
        rest = [module for module in rest if module not in met]
    return met, shifts


def _mask_numbers(module: str) -> str:
    """The name of a layer without its numbers: a search for one that fails, fails for
    all of its like.
    """
    return re.sub(r"[0-9]+", "#", module)


def _shift_option(shift: Shift) -> str | None:
    """The option that takes a change of beginnings."""
    # A rule of numbers is no text that `--sub` could take as it stands.
    if "#" in shift.before + shift.after:
        return None
    return f"--sub 's/^{re.escape(shift.before)}/{shift.after}/' takes the first"


def _met_by(shift: Shift, module: str, base: Base) -> str | None:
    """The name of a layer after a change of its beginning, or None where the base has
    no such layer.
    """
    new = shift.apply(module)
    return new if new is not None and base.is_there(new) else None


def _best_shift(
    module: str,
    modules: Sequence[str],
    base: Base,
    fits: Callable[[str, str], bool],
) -> Shift | None:
    """The change of beginnings by which one layer and the most others meet. Raises
    UsageError for two that do equally.
    """
    for candidates in _candidate_shifts(module, base):
        counts = {
            shift: sum(_met_by(shift, other, base) is not None for other in modules)
            for shift in candidates
        }
        most = max(counts.values(), default=0)
        best = [shift for shift, count in counts.items() if count == most and most]
        # Several beginnings for as many layers: shapes may tell two encoders apart.
        if len(best) > 1:
            fitting = [shift for shift in best if _all_fit(shift, modules, base, fits)]
            best = fitting or best
        if len(best) > 1:
            ways = [show(shift.apply(module) or "", 100) for shift in best]
            problem = f"{show(module, 80)} may be {' or '.join(ways[:3])}"
            raise UsageError(problem, path=base.path, hint=_shift_option(best[0]))
        if best:
            return best[0]
    return None


def _all_fit(
    shift: Shift,
    modules: Sequence[str],
    base: Base,
    fits: Callable[[str, str], bool],
) -> bool:
    pairs = [(module, _met_by(shift, module, base)) for module in modules]
    return all(fits(module, new) for module, new in pairs if new is not None)


def _candidate_shifts(module: str, base: Base) -> Iterator[list[Shift]]:
    """Yield the changes of beginnings by which a layer meets: those that keep the most
    of its name first.
    """
    steps = module.split(".")
    for cut in range(len(steps)):
        end = ".".join(steps[cut:])
        before = module[: len(module) - len(end)]
        found: list[Shift] = []
        # A fused layer is there by its name without the part: the end may be shorter.
        for tail in _name_tails(end):
            found = _shifts_to(before, tail, base)
            if found:
                break
        # Shorter ends are those of more layers.
        if len(found) > _MOST:
            return
        fitting = [shift for shift in found if _met_by(shift, module, base) is not None]
        if fitting:
            yield fitting


def _shifts_to(before: str, tail: str, base: Base) -> list[Shift]:
    """Return the other beginnings that places with one end have, and stop behind
    `_MOST`.
    """
    numbers = _find_numbers(before)
    masked = _mask_numbers(before)
    shifts: dict[Shift, None] = {}
    for place in base.places_ending(tail):
        start = place[: len(place) - len(tail)]
        # Other numbers are another layer: `layers.3.` does not become `layers.4.`.
        if _find_numbers(start) == numbers:
            shifts[Shift(masked, _mask_numbers(start))] = None
        if len(shifts) > _MOST:
            break
    return list(shifts)


def _name_tails(end: str) -> Iterator[str]:
    """Yield an end of a name, and what is left without its last parts, which another
    writer may have fused.
    """
    for _ in range(_TRIES):
        yield end
        end = end.rpartition(".")[0]
        if "." not in end:
            return


def met_flat_names(modules: Sequence[str], base: Base) -> tuple[Names, list[Shift]]:
    """As `met_names`, for layers with `_` for their dots: each is the one module of the
    base with this text.

    Raises UsageError where two modules have it.
    """
    for start in modules:
        ends = islice(base.flats_ending(start), _MOST + 1)
        starts = {flat[: len(flat) - len(start)]: 0 for flat in ends}
        if len(starts) > _MOST:
            continue
        # All layers of one part of a pipeline share what comes before their flat names.
        for begin in starts:
            starts[begin] = sum(begin + module in base.flats for module in modules)
        most = max(starts.values(), default=0)
        best = [begin for begin, count in starts.items() if count == most]
        if len(best) > 1:
            listed = " or ".join(show(begin + start, 80) for begin in best[:2])
            raise UsageError(f"{show(start, 80)} may be {listed}", path=base.path)
        if best:
            return _flat_pairs(modules, base, best[0])
    return {}, []


def _flat_pairs(
    modules: Sequence[str],
    base: Base,
    begin: str,
) -> tuple[Names, list[Shift]]:
    met: Names = {}
    for module in modules:
        found = base.flats.get(begin + module, [])
        if len(found) > 1:
            listed = " or ".join(show(name, 80) for name in found[:2])
            raise UsageError(f"{show(module, 80)} may be {listed}", path=base.path)
        if found:
            met[module] = found[0]
    first = next(iter(met.values()), "")
    # The flat beginning is as long as the one with dots.
    dotted = first[: len(begin)]
    return met, [Shift("", dotted)] if dotted else []


def unmet_modules(modules: Iterable[str], met: Names) -> list[str]:
    """The layers that the base lacks."""
    return [module for module in modules if module not in met]
