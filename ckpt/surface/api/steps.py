"""The step of a run that a command writes from: the newest that is whole, in a folder
of steps.

It is told by name, and so are newer ones that are not whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ckpt import formats
from ckpt.bytes.location import Location, locate, read_file
from ckpt.formats.common.steps import files_in, steps_in
from ckpt.model.errors import CkptError, FolderError
from ckpt.model.limits import Limits
from ckpt.model.text import counted_noun, show

_POINTERS = ("latest", "latest_checkpointed_iteration.txt")
"""Files that name the newest step of DeepSpeed and of Megatron."""
_TRAINER = "trainer_state.json"
"""The file that the Trainer writes last."""
_LOOKED = 100
"""The most steps that are opened."""
_DIGITS = 20
"""The most digits of the number of a step."""


Tell = Callable[[str], None]
"""A function that gets each warning, as a line of text."""


def step_of(
    path: str, limits: Limits, *, partial: bool, plugins: bool, tell: Tell
) -> str:
    """Return the path of the newest whole step in a folder of steps; any other path as
    it is.

    A file that names one step decides, unless that step is not whole. With `partial` it
    decides all the same.
    """
    try:
        folder = locate(path)
        names = folder.names() if folder.is_folder() else []
    except CkptError:
        return path
    # Folders of steps first, then files of them in one folder.
    steps = steps_in(names) or files_in(names)
    if not steps:
        return path
    # None where the folder itself is a checkpoint, such as one of DeepSpeed.
    error = formats.refusal_error(path, limits, plugins=plugins)
    if error is None:
        pointer = next((name for name in _POINTERS if name in names), None)
        if pointer is None or partial or _step_problem(path, limits, plugins) is None:
            return path  # a checkpoint itself, or the step that is named
        steps = _steps_until(folder, pointer, steps, limits, tell)
    elif not isinstance(error, FolderError):
        return path
    return _newest_step(folder, steps, limits, plugins, tell) or path


def _steps_until(
    folder: Location, pointer: str, steps: list[str], limits: Limits, tell: Tell
) -> list[str]:
    """Return the steps up to the one that a file names: newer ones may have been given
    up. All, where it is not there.
    """
    try:
        text = read_file(folder.child(pointer, "no"), limits, pointer).decode().strip()
    except (CkptError, UnicodeDecodeError):
        tell(f"{show(folder.name, None)}: {pointer} cannot be read")
        return steps
    # Python makes no number of a text of thousands of digits.
    wanted = int(text) if text.isdecimal() and len(text) <= _DIGITS else None
    for index, name in enumerate(steps):
        # Megatron's file holds the number of the step, DeepSpeed's its name.
        number = re.sub(r"\D+", "", name)
        if name.rstrip("/") == text or int(number) == wanted:
            return steps[: index + 1]
    tell(
        f"{show(folder.name, None)}: {pointer} names {show(text, 80) or 'nothing'}, "
        "which is not here"
    )
    return steps


def _newest_step(
    folder: Location, steps: list[str], limits: Limits, plugins: bool, tell: Tell
) -> str | None:
    """Return the path of the newest whole step, and say which one it is; None if none
    is.
    """
    passed: list[tuple[str, str]] = []
    # Only then a step without that file is one that was interrupted.
    are_of_trainer = any(_is_of_trainer(folder, name) for name in steps)
    for name in reversed(steps[-_LOOKED:]):
        try:
            step = folder.child(
                name.rstrip("/"), "no" if name.endswith("/") else "file"
            ).name
        except CkptError as error:
            passed.append((name, error.problem))
            continue
        problem = _step_problem(step, limits, plugins)
        if problem is None and are_of_trainer and not _is_of_trainer(folder, name):
            problem = f"it has no {_TRAINER}, which is written last"
        if problem is None:
            text = (
                f"{show(name.rstrip('/'), 80)} is the newest whole step of "
                f"{counted_noun(len(steps), 'step')}"
            )
            tell(f"{show(folder.name, None)}: {text}")
            for other, why in passed:
                tell(
                    f"{show(folder.name, None)}: {show(other.rstrip('/'), 80)} is "
                    f"passed over: {why}"
                )
            return step
        passed.append((name, problem))
    return None


def _is_of_trainer(folder: Location, name: str) -> bool:
    try:
        return name.endswith("/") and _TRAINER in folder.child(name[:-1], "no").names()
    except CkptError:
        return False


def _step_problem(path: str, limits: Limits, plugins: bool) -> str | None:
    """Return the reason why a checkpoint is not whole, by its own metadata, or None."""
    try:
        with formats.open(path, limits, plugins=plugins) as checkpoint:
            return checkpoint.account.first_lack
    except CkptError as error:
        return error.problem
