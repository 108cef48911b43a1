"""An optimizer by numbers beside one by names: their state is compared parameter by
parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpt.commands.diff.rows import Pair, ValueRow
from ckpt.evidence.joining import Joined, join_names
from ckpt.evidence.matching import Match, groups_of
from ckpt.evidence.optimizers import cut_at_dots
from ckpt.evidence.survey import Survey
from ckpt.model.names import Path
from ckpt.model.rows import NamedTuple

_STATE, _GROUPS, _LIST = "state", "param_groups", "params"


class Keyed(NamedTuple):
    """The keys of the state on either side, with the names of the parameters in their
    model.

    `lists` are the paths of the lists of parameters that are the same on both sides,
    one by numbers and one by names.
    """

    before: dict[str, str]
    after: dict[str, str]
    lists: frozenset[tuple[Path, Path]]


def by_parameters(
    before: Survey, after: Survey, pairs: Sequence[Pair]
) -> tuple[list[Pair], dict[int, Keyed], list[str]]:
    """Return the pairs that are compared, the keys of mixed ones by their position, and
    the optimizers that are not compared.
    """
    kept: list[Pair] = []
    keyed: dict[int, Keyed] = {}
    alone: list[str] = []
    for pair in pairs:
        one = _match_at(before, pair.before.path)
        two = _match_at(after, pair.after.path)
        if (
            one is not None
            and two is not None
            and _is_numbered(one) != _is_numbered(two)
        ):
            rows = join_names(before.checkpoint, one), join_names(after.checkpoint, two)
            # Names that may be wrong would compare the state of one parameter with
            # another's.
            doubtful = next((row for row in rows if not row.is_sure), None)
            if doubtful is not None:
                name = pair.after.name or "the optimizer"
                alone.append(
                    f"{name}, by numbers in one file and by names in the other: "
                    f"{doubtful.reason}"
                )
                continue
            keyed[len(kept)] = Keyed(
                _names_by_key(before, one),
                _names_by_key(after, two),
                _same_lists(*rows),
            )
        kept.append(pair)
    return kept, keyed, alone


def named_by(name: str, keys: Mapping[str, str]) -> str:
    """The name of a tensor in an optimizer, with the name of its parameter in place of
    the key.
    """
    start, _, rest = name.partition(".")
    if start == _STATE:
        # Names of parameters have dots, so each dot may end the key.
        for key, field in cut_at_dots(rest):
            if key in keys:
                return f"{start}.{keys[key]}.{field}"
    return name


def is_same_list(row: ValueRow, keyed: Mapping[int, Keyed]) -> bool:
    """Tell whether a value that differs is a list of the same parameters by
    other keys.
    """
    if row.before is None or row.after is None:
        return False
    return any(
        (row.before.path, row.after.path) in pair.lists for pair in keyed.values()
    )


def _match_at(survey: Survey, path: Path) -> Match | None:
    if not any(
        section.kind == "optimizer" and section.path == path
        for section in survey.sections
    ):
        return None
    return next(
        (
            match
            for match in survey.matches
            if match.optimizer.path == path and match.slots
        ),
        None,
    )


def _is_numbered(match: Match) -> bool:
    return any(type(slot.key) is int for slot in match.slots)


def _names_by_key(survey: Survey, match: Match) -> dict[str, str]:
    """The key of each parameter in the state -> its name in the model, or the name that
    the optimizer gives it.
    """
    model = match.model
    names: dict[str, str] = {}
    for slot, index in zip(match.slots, match.indices, strict=True):
        name = str(slot.name)
        # The file knows the tensor, so its name is the model's.
        if index is not None and model is not None:
            name = model.relative(survey.tensors[index].name)
        names[str(slot.key)] = name
    return names


def _same_lists(one: Joined, two: Joined) -> frozenset[tuple[Path, Path]]:
    # If one of them has more groups, the others still pair by their order.
    rows = zip(_parameter_lists(one), _parameter_lists(two), strict=False)
    return frozenset(
        (first, second) for (first, names), (second, others) in rows if names == others
    )


def _parameter_lists(row: Joined) -> list[tuple[Path, tuple[str, ...]]]:
    """The path of the list of parameters of each group, and their names."""
    section = row.match.optimizer
    rows: list[tuple[Path, tuple[str, ...]]] = []
    first = 0
    for number, group in enumerate(groups_of(section)):
        # The slots of all groups stand in one row, group after group.
        last = first + len(group.slots)
        rows.append(((*section.path, _GROUPS, number, _LIST), row.names[first:last]))
        first = last
    return rows
