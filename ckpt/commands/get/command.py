"""`ckpt get`: one value, as text that a shell can use."""

from __future__ import annotations

import os

from ckpt.commands.get.get import Lookup, first_values, get, lookup_whole, top_items
from ckpt.commands.get.text import (
    CHILDREN,
    content_lines,
    get_lines,
    get_text,
    is_short,
    tensor_lines,
)
from ckpt.model.errors import UsageError, about
from ckpt.model.findings import LOST
from ckpt.model.limits import Limits
from ckpt.model.text import pasted_path, shell_word
from ckpt.surface.cli import output
from ckpt.surface.cli.inputs import documenting_errors, notice_lines, opened

_DOUBTFUL = (*LOST, "ranks-differ", "dead-files", "container")
"""Reasons to doubt a value: files are missing, contradict each other, or belong to
another save.
"""
_FIRST = 8
"""Elements of a tensor that are shown."""
_FILES = 20
"""Files that a command for all of them lists."""


def command(path: str, names: list[str], *, json: bool, limits: Limits) -> int:
    """Print values of a checkpoint as text or JSON: a scalar bare, all else as a tree.

    The name of a tensor prints what it is and its first values. Objects are read
    without their classes.

    \b
    step=$(ckpt get last.ckpt global_step)
    ckpt get train.pth args.lr epoch
    """
    # `ckpt get NAME FILE`: the words in the order of grep.
    swapped = next((name for name in names if os.path.isfile(name)), None)
    if swapped is not None and not os.path.exists(path):
        words = [
            pasted_path(swapped),
            *(shell_word(name) for name in (path, *names) if name != swapped),
        ]
        if None in words:
            hint = None
        else:
            hint = f"ckpt get {' '.join(word or '' for word in words)}"
        raise UsageError("no such file", path=path, hint=hint)
    with (
        about(path),
        documenting_errors(path, "ckpt.get" if json else None),
        opened(path, limits) as found,
    ):
        checkpoint = found.checkpoint
        # The value itself goes to stdout alone, for `$(…)`.
        for text in notice_lines(found, _DOUBTFUL):
            output.write_talk(text)
        if names:
            try:
                lookups = get(found.survey, names, limits)
            except UsageError as error:
                raise _several_files_error(path, names) or error from None
        elif not json and (top := top_items(checkpoint, CHILDREN))[0]:
            width = output.screen_width()
            output.write_lines(
                content_lines(path, checkpoint.traits.label, *top, width)
            )
            return 0
        else:
            lookups = [lookup_whole(found.survey)]
        for item in lookups:
            if json:
                output.write_json(item.to_json())
            else:
                _write_lookup(item)
    return 0


def _several_files_error(path: str, names: list[str]) -> UsageError | None:
    """The error for `ckpt get *.pth NAME`, with the loop that asks each file, or None
    where no name is a file.
    """
    files = [path, *(name for name in names if os.path.isfile(name))]
    rest = [name for name in names if name not in files]
    if len(files) == 1:
        return None
    words = [pasted_path(file) for file in files]
    asked = [shell_word(name) for name in rest]
    hint = None
    # A loop of the shell, ready to paste.
    if rest and len(files) <= _FILES and None not in words and None not in asked:
        hint = (
            f'for file in {" ".join(map(str, words))}; do ckpt get "$file" '
            f"{' '.join(map(str, asked))}; done"
        )
    return UsageError("a second file, and ckpt get takes one", path=files[1], hint=hint)


def _write_lookup(item: Lookup) -> None:
    """Print what goes by one name: one line where that is all of it."""
    if item.row is not None and item.role is not None:
        values = first_values(item.row.tensor, _FIRST)
        output.write_lines(
            tensor_lines(item.row, item.role, values, output.screen_width())
        )
    elif is_short(item.node):
        output.write_text(get_text(item.node))
    else:
        output.write_lines(get_lines(item.name, item.node, output.screen_width()))
