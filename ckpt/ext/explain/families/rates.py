"""Words about a learning rate that a run lost, or could not change, when it went on from
a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.evidence.loading import path_subscripts
from ckpt.evidence.optimizers import optimizer_facts
from ckpt.ext.explain.case import Case, Statement
from ckpt.model.text import and_more, show

_RATE = re.compile(r"(?i)\blearning[ _-]?rates?\b|\blrs?\b")
_GOES_ON = re.compile(
    r"(?i)\b(?:resum\w{1,4}|re-?start\w{0,3}|re-?load\w{0,3}|load(?:s|ed|ing)?"
    r"|checkpoints?|continu\w{1,4}|re-?set\w{0,4})\b"
)
_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b|Traceback")
_LONGEST = 2_000
"""Letters of a question. A log has more, and names learning rates everywhere."""


def of_rates(text: str, case: Case) -> Iterator[Statement]:
    """Say which learning rates a file has, and what a load does with them, where a
    question is about the learning rate of a run that goes on.
    """
    # With an error the question is another one.
    if len(text) > _LONGEST or _ERROR.search(text) is not None:
        return
    if _RATE.search(text) is None or _GOES_ON.search(text) is None:
        return
    for section in case.optimizers:
        facts = optimizer_facts(section)
        if facts is None or not facts.rates:
            continue
        steps = path_subscripts(section.path)
        label = show(section.name, 80) or "The root of this file"
        rates = and_more([f"{rate:g}" for rate in facts.rates], 4)
        first = {
            f"{node:g}"
            for name, node in case.finds_value(("initial_lr",))
            if isinstance(node, (int, float))
            and (not section.name or name.startswith(f"{section.name}."))
        }
        begun = f" (initial_lr {and_more(sorted(first), 4)})" if first else ""
        yield Statement(
            f"{label} has the learning rate {rates}{begun}. Only load_state_dict of "
            "the optimizer brings it into a new run, and it replaces the rate that the "
            "run was started with. A run that should keep its own rate sets it behind "
            "that load, or loads the model alone. A scheduler that is built behind it "
            "may set the rate anew: build it first, and load its state too. What the "
            "program has to call, once, before the training goes on:",
            (),
            None
            if steps is None
            else f"optimizer.load_state_dict(checkpoint{steps})",
        )
    if not case.optimizers:
        yield Statement(
            "This file holds no optimizer, so it has no learning rate: a run that goes "
            "on from it begins with the rate of its own settings."
        )
