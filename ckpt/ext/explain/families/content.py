"""Errors of programs that take what torch.load gave for something else: a dict for a
model, a checkpoint for its weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ckpt.ext.explain.case import (
    ONE_TENSOR,
    Case,
    Statement,
    finding_statements,
    keys_text,
    load_statements,
    root_keys,
)
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.checkpoint import Value
from ckpt.model.text import and_more, counted_noun, is_number, show
from ckpt.tree.view import look


def _dict_like(message: Message, case: Case) -> Iterator[Statement]:
    """Answer load_state_dict, which got a module, or nothing at all."""
    # Read `Expected state_dict to be dict-like, got <class 'NoneType'>.`
    if "NoneType" in message.text:
        yield Statement(
            "load_state_dict got None: the program had read no file. Its own reader "
            "gives None where the file is refused or not there, and says why above "
            "this error. This file is there."
        )
        yield from case.damage or finding_statements(case.at_least("warning"))
        yield from load_statements(case)
        return
    root = look(case.survey.checkpoint.root)
    if not case.has_module and root.kind in ("sequence", "tensor"):
        yield Statement(
            ONE_TENSOR
            if root.kind == "tensor"
            else f"The root of this file is a {show(root.type, 40)}, and no dict: "
            "load_state_dict wants the weights by their names."
        )
        yield from load_statements(case)
        return
    if not case.has_module and not root_keys(case):
        yield Statement(
            "This file holds weights by their names, which is a dict: another file was "
            "loaded."
        )
        yield from load_statements(case)
        return
    if not case.has_module:
        yield Statement(
            f"This file holds a dict of {keys_text(case)}: another file was loaded."
        )
        yield from load_statements(case)
        return
    yield Statement(
        "This file holds a whole pickled module, and load_state_dict takes a state "
        "dict: pass module.state_dict()."
    )
    way = case.plan(("weights",))
    if way.command is not None:
        yield Statement(
            "Or take the weights out of it, without its class:", (), way.command
        )


_ARGUMENTS = ("hyper_parameters", "hparams", "module_arguments")
"""The keys under which versions of Lightning keep the arguments of a model."""
_QUOTED = re.compile(r"'(\w{1,100})'")


def _answer_arguments(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a class that Lightning could not build, for the checkpoint lacks its
    arguments.
    """
    asked = _asked_arguments(message.text)
    passed = ", ".join(f"{name}=…" for name in asked[:_LISTED]) or "name=…"
    call = f"load_from_checkpoint(path, {passed})"
    place = next((key for key in _ARGUMENTS if key in root_keys(case)), None)
    if place is None:
        yield Statement(
            "This file holds no hyper_parameters: self.save_hyperparameters() was not "
            f"called when it was saved. Pass the arguments by name: {call}."
        )
        yield from load_statements(case, "The weights alone, for a model of yours:")
        return
    values = [
        value
        for value in case.survey.checkpoint.values
        if len(value.path) > 1 and str(value.path[0]) == place
    ]
    names = list(dict.fromkeys(str(value.path[1]) for value in values))
    yield Statement(
        f"The file records {counted_noun(len(names), 'argument')} under "
        f"{place}: {and_more([show(name, 60) for name in names], 12)}."
        f"{_spread_text(asked, names, place, case)}"
        f" Pass the others by name: {call}."
    )


def _asked_arguments(text: str) -> list[str]:
    """The arguments that an error of Python or of Lightning quotes as missing."""
    # An apostrophe may stand before the word: `IntrospectorModule's __init__ is missing
    # the argument 'hparams'`.
    _, found, end = text.partition(" missing ")
    return _QUOTED.findall(end) if found else []


def _spread_text(asked: list[str], names: list[str], place: str, case: Case) -> str:
    """A sentence on the one argument that lacks, where the file has its entries in its
    place, or an empty text.
    """
    if len(asked) != 1 or asked[0] in names or not names:
        return ""
    wanted = asked[0]
    # Lightning records the name of the argument whose entries it kept as hparams_name.
    whole = [node for name, node in case.finds_value(("hparams_name",))]
    if wanted not in ("hparams", *whole):
        return f" {wanted} is not among them."
    return (
        f" {wanted} is not among them, for they are its entries: Lightning keeps an "
        "argument that is a dict or a Namespace as what it holds. Hand it over whole: "
        f'{wanted}=torch.load(path)["{place}"].'
    )


_LISTED = 6
"""Arguments of a call that are written out."""


_ANEW = (
    "Begin a new training from its weights, with as many epochs as are to be added "
    "(yolo train model=… epochs=…, or train.py --weights …)."
)


def ended_statements(values: Iterable[Value]) -> Iterator[Statement]:
    """Say that an adapter of kohya's sd-scripts was saved at the end of its run, where
    its metadata have it.
    """
    held = {
        str(value.path[-1]): str(value.node)
        for value in values
        if value.path and str(value.path[-1]) in _OF_KOHYA
    }
    numbers = [held.get(key, "") for key in _OF_KOHYA[:2]]
    # Metadata are texts, and None stands there as a word.
    if not all(map(is_number, numbers)):
        return
    epoch, epochs = map(int, numbers)
    if not 0 < epochs <= epoch:
        return
    schedule = held.get("ss_lr_scheduler", "")
    said = f", with the schedule {show(schedule, 40)}" if schedule else ""
    yield Statement(
        f"This file is of the end of its run: ss_epoch is {epoch:,} of ss_num_epochs "
        f"{epochs:,}{said}. A run that resumes from the state of its end takes up a "
        "schedule that is at its end too, where a cosine or a linear one has the rate "
        "0: it runs through its steps, learns nothing and saves what it loaded. To "
        "train on, begin a new run with this file as its first weights (sd-scripts: "
        "--network_weights, without --resume), or plan all epochs from the start and "
        "resume from an earlier one."
    )


_OF_KOHYA = ("ss_epoch", "ss_num_epochs", "ss_lr_scheduler")
"""Keys of the metadata of sd-scripts."""


def of_finished(case: Case) -> Iterator[Statement]:
    """Say that a file is of a run that has ended, where it records that."""
    yield from ended_statements(case.survey.checkpoint.values)
    if [node for name, node in case.finds_value(("epoch",)) if name == "epoch"] != [-1]:
        return
    has_none = "optimizer" in root_keys(case) and not case.optimizers
    more = " and optimizer is None" if has_none else ""
    yield Statement(
        f"This file is of a finished run: epoch is -1{more}, for ultralytics takes "
        f"them out at the end. {_ANEW}"
    )


def _answer_finished_run(message: Message, case: Case) -> Iterator[Statement]:
    """Answer ultralytics, which finds nothing to resume, or no settings to
    resume with.
    """
    epochs = [node for name, node in case.finds_value(("epoch",)) if name == "epoch"]
    planned = [
        node
        for name, node in case.finds_value(("epochs",))
        if name == "train_args.epochs"
    ]
    if epochs == [-1]:
        yield from of_finished(case)
    # Read `'epochs=-1' is an invalid value`: a resumed run has that value from its
    # file.
    elif planned and isinstance(planned[0], (int, float)) and planned[0] < 1:
        yield Statement(
            f"In this file train_args.epochs is {planned[0]}, and a resumed run takes "
            f"the number of its epochs from there: no option changes it. {_ANEW}"
        )
    elif (
        "train_args" not in root_keys(case) and "nothing to resume" not in message.text
    ):
        yield Statement(
            "This file has no train_args, from which a resumed run of ultralytics "
            f"takes its settings: its keys are {keys_text(case)}. {_ANEW}"
        )
    elif epochs and "not found" in message.text:
        yield Statement(
            f"This file has train_args, and epoch is {epochs[0]}: it is not what "
            "lacks. ultralytics found no file at the path, or could not load it, and "
            "says so with the same words. The line that loads it shows the cause:"
        )
        yield from load_statements(case)
    elif epochs:
        of = f" of {planned[0]}" if planned else ""
        held = "an" if case.optimizers else "no"
        yield Statement(
            f"In this file epoch is {epochs[0]}{of}, and it holds {held} optimizer: "
            "the run reached the epochs that were asked for, or another file was "
            "loaded."
        )


FAMILIES = (
    Family(
        "finished",
        (
            # Read `last.pt training to 100 epochs is finished, nothing to resume`.
            r"epochs? is finished, nothing to resume",
            r"'epochs=-?\d{1,9}' is an invalid value",
            (
                r"Resume checkpoint not found\. Please pass a valid checkpoint to "
                r"resume from"
            ),
        ),
        answer_from_statements(_answer_finished_run),
        needs_open=True,
    ),
    Family(
        "not-a-state-dict",
        (r"Expected state_dict to be dict-like, got",),
        answer_from_statements(_dict_like),
    ),
    Family(
        "arguments",
        (
            (
                # Read Python's `Net.__init__() missing 1 required positional argument:
                # 'hidden'`. Any class may cause it, so the family is weak.
                r"__init__\(\) missing \d{1,3} required (?:positional"
                r"|keyword-only) arguments?:"
            ),
            r"Checkpoint does not contain hyperparameters",
        ),
        answer_from_statements(_answer_arguments),
        is_weak=True,
    ),
)
