"""The state of ZeroRedundancyOptimizer, of which each rank has a part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ckpt.evidence.optimizers import optimizer_facts
from ckpt.ext.explain.case import Case, Statement, counted_parameters
from ckpt.model.text import counted_noun, show

NOT_CONSOLIDATED = re.compile(
    r"Optimizer state has not been consolidated"
    r"|Please call `?consolidate_state_dict\("
)
"""The words of ZeroRedundancyOptimizer: older versions warn, newer ones stop."""


def of_not_consolidated(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Say whether the optimizer of a file has the state of all ranks."""
    del found
    yield Statement(
        "ZeroRedundancyOptimizer divides its state among the ranks, and a save needs "
        "all of it: every rank calls optimizer.consolidate_state_dict(to=0) first, and "
        "rank 0 alone saves optimizer.state_dict() then. Older versions of torch warn, "
        "and save the part of the rank that called; newer ones stop."
    )
    # Buffers are never in an optimizer, so they are not counted.
    roles = Counter(
        case.survey.roles[index].role
        for section in case.survey.candidates[:1]
        for index in section.indices
    )
    model = counted_parameters(
        roles["parameter"] + roles["unknown"], unsure=roles["unknown"]
    )
    for section in case.optimizers:
        facts = optimizer_facts(section)
        if facts is None:
            continue
        label = show(section.name, 80) or "The root of this file"
        # A tensor that may be a buffer does not make the state a part of one.
        if facts.parameters < roles["parameter"]:
            yield Statement(
                f"{label} has {counted_noun(facts.parameters, 'parameter')}, beside "
                f"{model} of the model: it can be the part "
                "of one rank, whose others saved none. An optimizer of "
                "all parameters refuses it. The weights are whole: load the model "
                "alone, and let the optimizer begin anew."
            )
        else:
            yield Statement(
                f"{label} has {counted_noun(facts.parameters, 'parameter')}, and "
                f"the model has {model}: this file has the whole state."
            )
    if not case.optimizers:
        yield Statement("This file holds no optimizer, so nothing of it is lost here.")
