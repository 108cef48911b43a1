"""Normalizers of inputs that a file keeps beside its weights: the mean and the spread
of what a run had seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, root_keys
from ckpt.model.text import and_more, show
from ckpt.tree.find import children_of
from ckpt.tree.view import look

_OF_NORMALIZER = re.compile(
    r"(?i)(?:^|[._])(?:\w*norm\w*|\w*rms|running_mean_std|\w*scaler|standardi[sz]er)"
    r"(?:$|[._])"
)
_OF_LAYER = re.compile(r"(?i)(?:^|[._])(?:bn|\w*batch_?norm|layer_?norm|norm)\d*$")
"""The names of norms that are layers of a network, and have a weight."""
_MEAN = ("_mean", "mean", "running_mean")
_SPREAD = ("_var", "var", "running_var", "_std", "std")
_COUNT = (
    "count",
    "_count",
    "n",
    "num_samples",
    "num_batches_tracked",
    "steps",
)
_SHOWN = 3


def normalizers_of(case: Case) -> dict[str, list[str]]:
    """The places of normalizers in a file, with the last words of what each holds."""
    held: dict[str, list[str]] = {}
    names = [entry.name for entry in case.survey.tensors]
    names += [value.name for value in case.survey.checkpoint.values]
    for name in names:
        place, _, last = name.rpartition(".")
        held.setdefault(place, []).append(last)
    return {
        place: words
        for place, words in held.items()
        if any(word in _MEAN for word in words)
        and any(word in _SPREAD for word in words)
        # A norm with a weight is a layer, and has its own answer.
        and not {"weight", "bias"}.intersection(words)
        and not _OF_LAYER.search(place)
        and _OF_NORMALIZER.search(place)
    }


_LOOSE = re.compile(
    r"(?i)^(?:\w{1,20}_)?(?:mean|std|var|norm|rms|running_mean_std|normali[sz]er|scaler"
    r"|data_?stats|norm_?stats|dataset_?stats)(?:_\w{1,20})?$"
)
"""Keys at the root of a file for statistics of its inputs."""


def _loose_at_root(case: Case) -> list[str]:
    """The keys beside the weights of a file that are statistics by their names."""
    taken = {str(part.path[0]) for part in case.survey.sections if part.path}
    # At the root of a state dict each key is a tensor, and a norm is a layer there.
    if not taken:
        return []
    return [
        key
        for key in root_keys(case)
        if _LOOSE.search(key)
        and (key not in taken or not _is_network(key, case))
        and not _is_of_losses(key, case)
        and not _is_nothing(key, case)
    ]


def _is_of_losses(key: str, case: Case) -> bool:
    """Tell whether a key has the state of a GradScaler, which scales losses and no
    inputs, or an empty state, as one that is turned off saves it.
    """
    for name, node in children_of(case.survey.checkpoint.root):
        if str(name) == key and look(node).kind == "mapping":
            words = {str(word) for word, _ in children_of(node)}
            return not words or "growth_factor" in words
    return False


def _is_nothing(key: str, case: Case) -> bool:
    """Tell whether a key has None: the run had no such part."""
    children = children_of(case.survey.checkpoint.root)
    return any(str(name) == key and node is None for name, node in children)


def _is_network(key: str, case: Case) -> bool:
    """Tell whether a part of a file has the weights of layers."""
    return any(
        name == "weight" or name.endswith(".weight")
        for part in case.survey.sections
        if part.path and str(part.path[0]) == key
        for name in part.names()
    )


def of_normalizers(case: Case) -> Iterator[Statement]:
    """Say that a file has the statistics of its inputs, which a run that goes on needs,
    and whether it has their count.
    """
    found = normalizers_of(case)
    loose = [] if found else _loose_at_root(case)
    if loose:
        shown = [show(key, 60) for key in loose]
        stand = "stands" if len(loose) == 1 else "stand"
        names = "its name" if len(loose) == 1 else "their names"
        lines = and_more([f'checkpoint["{key}"]' for key in shown], 4)
        yield Statement(
            f"{and_more(shown, 6)} {stand} beside the weights: by {names} the "
            "statistics by which the run scaled what the model gets (observations, "
            "goals, features). A program that loads the weights alone scales its "
            "inputs otherwise, or not at all, and its results are those of an "
            f"untrained model. Give its normalizer these too ({lines})."
        )
    if not found:
        return
    places = list(found)
    words = and_more(sorted(set(found[places[0]])), 4)
    lacking = [
        place for place in places if not any(word in _COUNT for word in found[place])
    ]
    text = (
        f"{and_more([show(place, 80) for place in places], _SHOWN)} "
        f"{'has' if len(places) == 1 else 'have'} the statistics of the inputs that "
        f"the run had seen ({words}): they scale what the model gets. A program that "
        "loads the model alone scales its inputs otherwise, and its results are much "
        "worse: load them into the normalizer too."
    )
    if lacking:
        text += (
            " They have no count of what was seen. Where the normalizer keeps such a "
            "count, it begins at 0 after a load, and the first batches of the new run "
            "replace these statistics: the results drop, as with the empirical "
            "normalization of rsl_rl. Set its count to the number of inputs seen, or "
            "stop its updates after the load."
        )
    yield Statement(text)
