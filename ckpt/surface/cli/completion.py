"""The completions of a shell: values of options, and sections and names in the PATH
that was typed already.

Only loaded while a shell asks. zsh evaluates what it is told, so a name of the file is
offered only when it is made of letters, digits and a few signs.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from itertools import islice
from types import FrameType

import typer

from ckpt import formats
from ckpt.commands.get.get import top_items
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.findings import CATALOGUE
from ckpt.model.limits import Limits
from ckpt.surface.cli.options import options_of
from ckpt.surface.cli.signature import Command

VARIABLE = "_CKPT_COMPLETE"
"""The variable that the function of the shell sets."""
PATIENCE, MOST = 1.0, 200
"""Seconds that reading a file may take, and the names of it that are offered."""
_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=,/-]*")


def completing(name: str, command: Command) -> Command:
    """A command whose parameters know what a shell may complete."""
    rows = {row.parameter: row.name for row in options_of(name)}
    for parameter in signature(command).parameters.values():
        parameter.default.autocompletion = _completer_of(
            rows.get(parameter.name, parameter.name)
        )
    return command


def _completer_of(option: str) -> Callable[[typer.Context, str], list[str]]:
    """Return the completer of an option, or of an argument by the name of its
    parameter.

    Commands share options.
    """

    def source(context: typer.Context, incomplete: str) -> list[str]:
        command = context.info_name or ""
        # `--section`, or `get names` for an argument.
        words = _WORDS.get(option if option.startswith("--") else f"{command} {option}")
        if words is not None:
            return _of_file(words, incomplete)
        return list(_option_choices(command, option))

    return source


def _option_choices(command: str, option: str) -> Iterable[str]:
    """The values of an option; none leaves it to the shell, which knows paths."""
    if option in ("--fail-on", "--select", "--ignore"):
        return _finding_codes(command, with_levels=option == "--fail-on")
    if (command, option) == ("explain", "words"):
        return CATALOGUE
    if option == "--table":
        return _table_formats()
    return next((row.words for row in options_of(command) if row.name == option), ())


def _of_file(
    words: Callable[[Checkpoint], Iterable[str]], incomplete: str
) -> list[str]:
    """Words of the first checkpoint on the command line: few, soon, and none where it
    cannot be read.
    """
    path = next(_typed_paths(), None)
    if path is None:
        return []
    # A large file, or a slow disk, must not make the shell hang.
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with formats.open(path, Limits()) as checkpoint:
            offered = dict.fromkeys(
                word for word in words(checkpoint) if word.startswith(incomplete)
            )
            # zsh evaluates what it is told.
            return list(islice(filter(_HARMLESS.fullmatch, offered), MOST))
    except Exception:  # a shell that completes has no place for an error
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_late(number: int, frame: FrameType | None) -> None:
    os._exit(0)  # without a word: the shell offers nothing


def _typed_paths() -> Iterator[str]:
    """The checkpoints on the command line, which the parser drops where the last option
    has no value yet.
    """
    # The scripts of typer set COMP_WORDS in bash, the other one in zsh and fish.
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    try:
        words = shlex.split(typed)
    except ValueError:  # a quote that is still open
        words = typed.split()
    return (path for path in map(os.path.expanduser, words[2:]) if os.path.exists(path))


def _finding_codes(command: str, with_levels: bool) -> Iterator[str]:
    # lint and ls have the findings of inspect too.
    makers = {command, "inspect"} if command in ("lint", "ls") else {command}
    yield from (row.code for row in CATALOGUE.values() if not makers.isdisjoint(row.by))
    if with_levels:
        yield from ("error", "warning", "any")
        if command == "diff":
            yield "differ"


def _table_formats() -> Iterable[str]:
    from tabulate import tabulate_formats

    return map(str, tabulate_formats)


def _tensor_names(checkpoint: Checkpoint) -> Iterator[str]:
    return (entry.name for entry in checkpoint.tensors)


def _all_names(checkpoint: Checkpoint) -> Iterator[str]:
    yield from (item.name for item in top_items(checkpoint)[0])
    yield from (value.name for value in checkpoint.values)
    yield from _tensor_names(checkpoint)


def _section_names(checkpoint: Checkpoint) -> Iterator[str]:
    return (section.name for section in Survey(checkpoint).sections)


_WORDS: dict[str, Callable[[Checkpoint], Iterable[str]]] = {
    "--section": _section_names,
    "--include": _tensor_names,
    "--exclude": _tensor_names,
    "get names": _all_names,
}
"""Option, or command and argument -> the words of a checkpoint that complete it."""
