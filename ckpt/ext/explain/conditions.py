"""The conditions of the sentences on the pages of errors: a page says nothing that the
file contradicts.

In `errors.md` a line `<!-- if: WORD -->` stands before a paragraph that holds for some
files. Without a file every paragraph is shown.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.evidence.wrappers import wrapper_prefix
from ckpt.ext.explain.case import Case
from ckpt.ext.explain.families.devices import has_tensors_in_groups, is_replicated
from ckpt.ext.explain.message import Message


def _is_on_devices(case: Case) -> bool:
    return any(
        (storage.device or "cpu") not in ("cpu", "meta")
        for storage in case.survey.checkpoint.storages
    )


def _is_wrapped(message: Message) -> bool:
    names = (*message.missing, *message.unexpected)
    return not names or any(wrapper_prefix(name) for name in names)


def _has_wrapped_place(message: Message, case: Case) -> bool:
    """Tell whether the model has a place for the first name with the prefix: a program
    that names unexpected keys begins with the first of them.
    """
    if not message.unexpected:
        return False
    names = [name for part in case.survey.candidates for name in part.names()]
    first = next((name for name in names if wrapper_prefix(name)), None)
    is_wrapped = any(wrapper_prefix(name) for name in message.unexpected)
    return is_wrapped and first is not None and first not in message.unexpected


CONDITIONS: dict[str, Callable[[Message, Case], bool]] = {
    # A model that asks for names with the prefix has the wrapper, too.
    "wrapped": lambda message, case: (
        bool(case.found("prefix"))
        and not any(wrapper_prefix(name) for name in message.missing)
        and not _has_wrapped_place(message, case)
    ),
    # A file that is one rank's part is whole, but it is no model by itself.
    "usable": lambda message, case: (
        not case.is_useless and not case.found("tensor-parallel")
    ),
    # A TorchScript program is a module without a class to import.
    "module": lambda message, case: (
        any(part.is_module and part.entries for part in case.survey.main)
        and not case.survey.checkpoint.traits.names_are_code
    ),
    "objects": lambda message, case: bool(case.survey.checkpoint.weights_only),
    "python2": lambda message, case: case.survey.checkpoint.encoding is not None,
    "devices": lambda message, case: _is_on_devices(case),
    "optimizer": lambda message, case: bool(case.optimizers),
    "stateless": lambda message, case: bool(case.found("resume-stops")),
    "replicated": lambda message, case: (
        is_replicated(message) and not case.survey.checkpoint.traits.names_are_code
    ),
    "on-cpu": lambda message, case: (
        "cpu" in message.text
        and not case.survey.checkpoint.code_devices
        and not has_tensors_in_groups(message, case)
    ),
    "broken": lambda message, case: bool(case.damage),
    "no-file": lambda message, case: False,
}
"""The word of a condition -> whether it holds. `no-file` is for readers of the page
alone; a file that does not open is `broken`.
"""


OF_MESSAGES: dict[str, Callable[[Message], bool]] = {
    "wrapped": _is_wrapped,
    "replicated": is_replicated,
    "on-cpu": lambda message: "cpu" in message.text,
}
"""The conditions that an error alone can contradict."""


def may_hold(word: str, message: Message) -> bool:
    """Tell whether a condition may hold for an error, without a checkpoint."""
    return word not in OF_MESSAGES or OF_MESSAGES[word](message)


def condition_holds(word: str, message: Message, case: Case) -> bool:
    """Tell whether a condition holds for an error and a checkpoint. Without a word it
    does.
    """
    return not word or CONDITIONS[word](message, case)
