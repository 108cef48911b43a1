"""Errors of programs that ask a checkpoint for a part of an optimizer or of a
scheduler that lies elsewhere, or nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.evidence.optimizers import optimizer_facts
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import (
    Case,
    Statement,
    keys_text,
    load_statements,
    root_keys,
)
from ckpt.model.text import and_more, show
from ckpt.tree.find import children_of

OF_OPTIMIZERS = (
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "exp_inf",
    "step",
    "betas",
    "momentum",
    "eps",
    "lr",
    "weight_decay",
    "initial_lr",
    "amsgrad",
    "foreach",
    "maximize",
    "capturable",
    "differentiable",
    "nesterov",
    "dampening",
    "fused",
    "decoupled_weight_decay",
)
"""Keys that torch's optimizers ask for in a state or in a group."""


def first_rates(case: Case) -> Iterator[Statement]:
    """Answer a scheduler that goes on, and finds no first learning rate in the groups
    of its optimizer.
    """
    for section in case.optimizers:
        label = show(section.name, 80) or "The optimizer"
        # A scheduler writes initial_lr into the groups when it is built, so a save
        # without a scheduler has none.
        if "initial_lr" in _optimizer_fields(section):
            yield Statement(
                f"{label} has initial_lr: load its state before the scheduler is "
                "built, for last_epoch of a scheduler asks for it."
            )
            continue
        yield Statement(
            (
                f"The groups of {label} have no initial_lr: no scheduler had been "
                f"built when {label} was saved. This gives each its own rate:"
            ),
            (),
            (
                'for group in optimizer.param_groups: group.setdefault("initial_lr", '
                'group["lr"])'
            ),
        )
    if not case.optimizers:
        yield Statement(
            "This file holds no optimizer, and a scheduler cannot go on from it: build "
            "it with last_epoch=-1."
        )


ASKED = {
    "lr_lambdas": "LambdaLR or MultiplicativeLR",
    "_schedulers": "SequentialLR or ChainedScheduler",
}
"""Keys that load_state_dict of a scheduler asks for -> the class."""
_SCHEDULERS = {
    "T_max": "CosineAnnealingLR",
    "T_0": "CosineAnnealingWarmRestarts",
    "step_size": "StepLR",
    "total_steps": "OneCycleLR",
    "patience": "ReduceLROnPlateau",
    "max_lrs": "CyclicLR",
    "lr_lambdas": "LambdaLR or MultiplicativeLR",
    "_milestones": "SequentialLR",
    "_schedulers": "ChainedScheduler",
    "milestones": "MultiStepLR",
    "total_iters": "LinearLR, ConstantLR or PolynomialLR",
    # Keep it last: StepLR and MultiStepLR have a gamma too.
    "gamma": "ExponentialLR",
}
"""Keys of the states of schedulers -> their classes; the first that is there
decides.
"""


def _scheduler_statements(name: str, case: Case) -> Iterator[Statement]:
    """Say of which class a scheduler of the file is, where another one asks for its
    keys.
    """
    for place, keys in states_of_schedulers(case):
        kind = next((key for key in _SCHEDULERS if key in keys), None)
        if kind is None:
            continue
        label = show(place, 80) or "This file"
        if name in keys:
            yield Statement(
                f"{label} has {name}: another file, or another part of it, was loaded."
            )
            continue
        yield Statement(
            f"{label} is the state of a {_SCHEDULERS[kind]} ({kind}), and "
            f"{ASKED[name]} asks for {name}. Build the scheduler of the run that "
            "saved, or begin it anew."
        )


def states_of_schedulers(case: Case) -> Iterator[tuple[str, set[str]]]:
    """The place of each scheduler's state, and its keys."""
    checkpoint = case.survey.checkpoint
    # The keys of one state are in two lists of a checkpoint: scalars such as
    # last_epoch, and containers such as base_lrs.
    keys: dict[tuple[object, ...], set[str]] = {}
    for value in checkpoint.values:
        if value.path:
            keys.setdefault(tuple(value.path[:-1]), set()).add(str(value.path[-1]))
    for row in checkpoint.containers:
        keys.setdefault(tuple(row.path), set()).update(str(key) for key in row.keys)
    for path, held in keys.items():
        # Every scheduler of torch but ChainedScheduler keeps last_epoch in its state.
        # The states inside of another scheduler are parts of it.
        is_state = "last_epoch" in held or "_schedulers" in held
        if is_state and "_schedulers" not in path:
            yield ".".join(map(str, path)), held


def of_asked_scheduler(name: str, case: Case) -> Iterator[Statement]:
    if name in ASKED:
        yield from _scheduler_statements(name, case)


def of_asked_optimizer(name: str, case: Case) -> Iterator[Statement]:
    if name in OF_OPTIMIZERS and name not in root_keys(case):
        yield from _of_optimizer(name, case)


OPTIMIZER_WORD = re.compile(
    r"(?i)(?:^|_)(?:opt|optim\w*)(?:_|\d|$)|^(?:optim|adam|sgd)"
)
"""The names under which programs look for the state of an optimizer."""


def where_optimizers_are(case: Case) -> Iterator[Statement]:
    """Say under which keys the states of optimizers are, or that the file has none."""
    names = [show(section.name, 80) or "the root" for section in case.optimizers]
    if names:
        shown = and_more(names, 4)
        yield Statement(
            f"By another name the file has one: {shown} is the state of an optimizer."
            if len(names) == 1
            else (
                f"By other names the file has them: {shown} are the states of "
                "optimizers."
            )
        )
        return
    yield Statement(
        "No state of an optimizer is in this file. A run goes on from its weights "
        "alone, with an optimizer that begins anew: leave the load of its state out, "
        "or take a checkpoint that has one."
    )


def _of_optimizer(name: str, case: Case) -> Iterator[Statement]:
    """Say what the optimizer of the file is, where another one asks for its keys."""
    for section in case.optimizers:
        held = optimizer_facts(section)
        label = show(section.name, 80) or "The optimizer"
        if held is None:
            continue
        family = (
            # A family by what it keeps, where several optimizers keep it.
            f" is {held.family.replace('with ', 'one with ', 1)}"
            if held.family
            else " has state of an unknown kind"
            if held.with_state
            else " has no state"
        )
        fields = _optimizer_fields(section)
        count = _states_with(section, name)
        if name in fields and 0 < count < held.parameters:
            rest = held.parameters - count
            verb = "has" if rest == 1 else "have"
            yield Statement(
                f"{label}{family}, and {count:,} of its {held.parameters:,} parameters "
                f"have {show(name, 60)}. The other {rest:,} never had a gradient, and "
                f"{verb} none: code that reads it of each parameter stops at them. "
                "Else another file was loaded."
            )
            continue
        if name in fields:
            yield Statement(
                f"{label}{family}, and has {show(name, 60)}: another file was loaded."
            )
            continue
        yield Statement(
            f"{label}{family}: its groups and states have "
            f"{and_more(sorted(fields), 12)}, and no {show(name, 60)}. The new run "
            "built another kind of optimizer, or another version of it. Build the same "
            "one, or begin its state anew."
        )


def _states_with(section: Section, name: str) -> int:
    """The number of states of an optimizer that have a key."""
    parts = dict(children_of(section.node))
    states = children_of(parts.get("state"))
    return sum(any(key == name for key, _ in children_of(row)) for _, row in states)


def _optimizer_fields(section: Section) -> set[str]:
    """The keys of the first group and of the first states of an optimizer."""
    parts = dict(children_of(section.node))
    fields: set[str] = set()
    for part in ("param_groups", "state"):
        # Groups are alike, and so are states: two of each show the keys.
        for _, child in children_of(parts.get(part))[:2]:
            fields.update(str(key) for key, _ in children_of(child))
    # Every optimizer has params, so it tells nothing about the kind.
    return fields - {"params"}


NO_STATES_TEXT = (
    r"(?i:\bno|without|could not find|unable to find|not find) (?:an? |any "
    r"|the )?optimizer(?:'s)? states?\b"
)
NO_STATES = re.compile(NO_STATES_TEXT)


def no_states(case: Case) -> Iterator[Statement]:
    """Answer a program that finds no state of an optimizer."""
    yield from where_optimizers_are(case)
    yield Statement(f"The keys of this file are {keys_text(case)}.")
    yield from load_statements(case)


def no_optimizer(case: Case) -> Iterator[Statement]:
    if case.optimizers:
        names = and_more([show(section.name, 60) for section in case.optimizers], 3)
        yield Statement(
            f"This file holds an optimizer, in {names}. Is it the file that was loaded?"
        )
    else:
        yield Statement(
            f"This file holds no optimizer. Its keys are {keys_text(case)}."
            # A state dict has a key for each tensor, and its list would say nothing.
            if len(root_keys(case)) < _MANY
            else "This file holds weights alone, and no optimizer."
        )
        yield Statement("A run cannot be resumed from it, but its weights load.")
    yield from load_statements(case)


_MANY = 16
