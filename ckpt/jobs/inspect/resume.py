"""Whether a distributed checkpoint can be loaded into a run that goes on, as findings."""

from __future__ import annotations

from collections.abc import Iterable

from ckpt.evidence.optimizers import first_field
from ckpt.evidence.survey import Survey
from ckpt.findings import Finding
from ckpt.text import folded, show


def findings(survey: Survey) -> Iterable[Finding]:
    """Parameters without state: `get_state_dict` makes state for each that is trained, and a strict load looks for it.

    Source: torch/distributed/checkpoint/state_dict.py `_init_optim_state`, default_planner.py `DefaultLoadPlanner`.
    """
    if not survey.checkpoint.traits.fills_a_state:
        return
    for use in survey.uses:
        slots = [use.match.slots[number] for number in use.never]
        names = [slot.name for slot in slots if slot.name is not None and not slot.has_state]
        section = use.match.optimizer.name
        field = first_field(use.match.optimizer)
        if not names or field is None:
            continue
        key = show(f"{section}{'.' if section else ''}state.{names[0]}.{field}", 120)
        yield Finding(
            "resume-stops",
            f'Unless {folded(names)} are frozen, a strict load stops: "Missing key in checkpoint state_dict: {key}".',
            tuple(
                survey.tensors[index].name
                for number in use.never
                if (index := use.match.indices[number]) is not None
            ),
            consequence="Load with planner=DefaultLoadPlanner(allow_partial_load=True).",
        )
