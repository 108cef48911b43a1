"""Warnings that stop nothing, and what the file has of what they are about."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, show


def _answer_notice(message: Message, case: Case) -> Iterator[Statement]:
    """Answer torch, which reminds of the other half of a pair: the optimizer beside its
    scheduler, the class beside its source.
    """
    if "source code of class" in message.text:
        yield from _of_sources(case)
        return
    # Each process of a run keeps random states of its own.
    if "RNG file" in message.text:
        yield from _of_random_states(case)
        return
    # One half of a pair may lie in the file, so both are looked for.
    optimizers = [show(section.name, 60) or "the root" for section in case.optimizers]
    schedulers = [
        show(section.name, 60) or "the root"
        for section in case.survey.sections
        if section.kind == "scheduler"
    ]
    notice = (
        "This is a notice of older versions of torch, which every save and load of a "
        "scheduler gave. It is no error, and no file is its cause."
    )
    what = "folder" if case.is_folder else "file"
    if optimizers and schedulers:
        yield Statement(
            f"{notice} This {what} has both, the optimizer ({and_more(optimizers, 3)}) "
            f"and the scheduler ({and_more(schedulers, 3)}): nothing is missing."
        )
    elif optimizers:
        yield Statement(
            f"{notice} This {what} has the state of an optimizer "
            f"({and_more(optimizers, 3)}), and none of a scheduler under a name that "
            "ckpt knows."
        )
    elif schedulers:
        yield Statement(
            f"{notice} This {what} has the state of a scheduler "
            f"({and_more(schedulers, 3)}), and none of an optimizer: a run that goes "
            "on from it begins its optimizer anew, at the learning rate of the "
            "scheduler."
        )
    else:
        yield Statement(
            f"{notice} This {what} has no state of an optimizer and none of a "
            "scheduler: weights alone need neither."
        )


def _of_sources(case: Case) -> Iterator[Statement]:
    if not case.has_module:
        yield Statement(
            "This file holds no pickled module, and so no source code of a class: "
            "another file was loaded."
        )
        return
    yield Statement(
        "This file holds a whole pickled module, and old versions of torch put the "
        "source code of its class beside it. Yours has changed since: the load goes on "
        "with your class. If the class does the same, nothing is lost."
    )
    way = case.plan(("weights",))
    if way.command is not None:
        yield Statement(
            "The weights alone need no class, and give no such warning:",
            (),
            way.command,
        )


def _of_random_states(case: Case) -> Iterator[Statement]:
    # The Trainer of transformers writes rng_state, and accelerate random_states.
    held = [
        name
        for name in case.survey.checkpoint.parts
        if name.startswith(("rng_state", "random_states"))
    ]
    what = "folder" if case.is_folder else "file"
    shown = and_more([show(name, 60) for name in held], 4)
    yield Statement(
        f"This {what} has the random numbers of {shown}. Another process finds none, "
        "for the run that saved had fewer of them, and goes on with new ones. Weights "
        "and optimizer are not touched by it."
        if held
        else (
            f"This {what} has no state of random numbers: the run goes on with new "
            "ones. Weights and optimizer are not touched by it."
        )
    )


FAMILIES = (
    Family(
        "notice",
        (
            (
                # torch wrote optimzer in this warning, so the word is left open.
                r"Please also save or load the state of the optimi?z\w{0,4} when "
                r"saving or loading the scheduler"
            ),
            r"Didn't find an RNG file",
            r"source code of class '[\w.]{1,400}' has changed",
        ),
        answer_from_statements(_answer_notice),
        is_weak=True,
        needs_open=True,
    ),
)
