"""Running statistics of an InstanceNorm in a file, for a model that tracks none."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, counted_noun, show

TRACKED = re.compile(
    r'Unexpected running stats buffer\(s\) "([^"\n]{1,2000})"'
    r'(?: and "([^"\n]{1,2000})")?'
)
"""The words of torch for them, which strict=False does not turn off."""
_WEIGHTS = ("weight", "bias")
_ENDS = (".running_mean", ".running_var", ".num_batches_tracked")


def statistics_in(text: str) -> tuple[str, ...]:
    """The names of the statistics in the lines of torch."""
    names: dict[str, None] = {}
    for found in TRACKED.finditer(text):
        names.update(dict.fromkeys(name for name in found.groups() if name))
    return tuple(names)


def untracked_statement(
    rest: Sequence[str], names: Collection[str], case: Case
) -> Statement | None:
    """Say that all of the unexpected keys are statistics of norms without weights, as
    torch before 0.4 saved them, and load without them. Return None if
    they are not.
    """
    modules = {name.rpartition(".")[0]: None for name in rest}
    if not rest or not all(name.endswith(_ENDS) for name in rest):
        return None
    # A batch norm has its weights beside, but for a rare one with affine=False.
    if any(f"{module}.{leaf}" in names for module in modules for leaf in _WEIGHTS):
        return None
    shown = and_more([show(module, 80) for module in modules], 3)
    load = case.survey.load.expression
    if len(case.survey.candidates) > 1:
        load = None
    ends = ", ".join(f'"{end}"' for end in _ENDS)
    text = (
        f"These are running statistics of {counted_noun(len(modules), 'norm')} without "
        f"weights ({shown}): an InstanceNorm, which torch before 0.4 saved with them, "
        "or one with track_running_stats=True. The model has such norms without "
        "statistics, and computes them from each input: nothing is lost. If it was "
        "a batch norm with affine=False, build the model with it instead."
    )
    return Statement(
        text if load is None else f"{text} Without them it loads:",
        (),
        None
        if load is None
        else f"state = {load}; model.load_state_dict({{name: value for name, value in "
        f"state.items() if not name.endswith(({ends}))}})",
    )


def of_statistics(message: Message, case: Case) -> Iterator[Statement]:
    """Say that a file has statistics that its model does not track, and load without
    them.
    """
    names = {name for part in case.survey.candidates for name in part.names()}
    said = [name for name in message.names if name in names]
    if not said:
        return
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in said))
    shown = and_more([show(module, 80) for module in modules], 3)
    text = (
        f"The file has running statistics of {counted_noun(len(modules), 'norm')} that "
        f"track none in the model ({shown}). torch before 0.4 saved them with every "
        "InstanceNorm and used none by default, and newer ones track them with "
        "track_running_stats=True alone. strict=False does not pass over them. "
    )
    load = case.survey.load.expression
    tracked = {name for name in names if name.endswith(_ENDS)}
    others = {name.rpartition(".")[0] for name in tracked} - set(modules)
    # A norm with a weight may be a batch norm, whose statistics belong to the model.
    is_mixed = any(f"{module}.weight" in names for module in others)
    is_more = message.missing or message.unexpected or message.mismatched
    if load is None or len(case.survey.candidates) > 1 or is_mixed or is_more:
        yield Statement(f"{text}Take these keys out of the state dict, and load it.")
        return
    ends = ", ".join(f'"{end}"' for end in _ENDS)
    yield Statement(
        f"{text}Without them it loads:",
        (),
        f"state = {load}; model.load_state_dict({{name: value for name, value in "
        f"state.items() if not name.endswith(({ends}))}})",
    )
