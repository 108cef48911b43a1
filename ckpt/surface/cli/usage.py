"""The meaning of a wrong command line, as one line that says what to type."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ckpt.formats.format import CHECKPOINTS, PERHAPS
from ckpt.hooks import COMMANDS, absence_text, has_command
from ckpt.model.errors import CkptError, UsageError
from ckpt.model.text import pasted_path, show
from ckpt.surface.api.missing import ALIKE, missing

_ALIASES = {
    **dict.fromkeys(
        ("info", "show", "print", "summary", "head", "view", "dump"), "inspect"
    ),
    **dict.fromkeys(("cat", "extract", "read"), "get"),
    **dict.fromkeys(("hash", "sha256", "sha256sum", "checksum"), "sum"),
    **dict.fromkeys(("check", "validate", "test", "fsck"), "verify"),
    **dict.fromkeys(("list", "dir", "find", "log"), "ls"),
    **dict.fromkeys(("scan", "audit"), "lint"),
    **dict.fromkeys(("repair", "fix", "recover", "rescue", "restore"), "salvage"),
    **dict.fromkeys(("shrink", "compact", "trim"), "slim"),
    **dict.fromkeys(("clean", "cleanup", "gc", "rm", "delete", "remove"), "prune"),
    **dict.fromkeys(("mv", "remap"), "rename"),
    **dict.fromkeys(("export", "cast", "dequantize"), "convert"),
    **dict.fromkeys(("edit", "update"), "set"),
    **dict.fromkeys(("compare", "cmp"), "diff"),
    **dict.fromkeys(("cpu", "to", "map"), "rehome"),
    "version": "--version",
    "load": "warmstart",
    **dict.fromkeys(("mean", "avg", "swa", "soup"), "average"),
}
"""Words that are no commands -> the command that does this."""
_RENAMED = {
    "--values": "--read-values",
    "--annotate": "--output-format",
    "--to": "--format",
}
"""The former options -> their names now, in a command that knows the new name and not
the old one.
"""
_MEANT = {
    **dict.fromkeys(("--map-location", "--map_location", "--device"), "--to"),
    **dict.fromkeys(("-n", "--dryrun", "--check"), "--dry-run"),
    **dict.fromkeys(("-i", "--inplace"), "--in-place"),
    **dict.fromkeys(("-f", "--overwrite"), "--force"),
    **dict.fromkeys(("--brief", "--silent"), "--quiet"),
    **dict.fromkeys(("--shortstat", "--summary"), "--stat"),
    **dict.fromkeys(("--half", "--fp16", "--float16"), "--dtype float16"),
    **dict.fromkeys(("--bf16", "--bfloat16"), "--dtype bfloat16"),
    **dict.fromkeys(("--float", "--fp32", "--float32"), "--dtype float32"),
    **dict.fromkeys(("--filter", "--grep", "--pattern"), "--include"),
    "--name-status": "--name-only",
    **dict.fromkeys(("--no-color", "--no-colour", "--nocolor"), "--color never"),
    "--weights": "--ratios",
    "--target": "--into",
}
"""Options of git, torch and Unix, and of other commands -> the option that means this,
with its value, in a command that has it.
"""
_UNDO = "the last --in-place of any command: ckpt rehome --undo FILE"
_NEEDLESS = {
    "diff": {"--exit-code": "the exit code is 1 without it"},
    "prune": dict.fromkeys(("-n", "--dry-run"), "nothing is deleted without --delete"),
    "explain": {"--list": "without an argument it lists all"},
    "sum": dict.fromkeys(
        ("-c", "--check"), "to compare with a list: ckpt verify FILE --sums LIST"
    ),
    "verify": dict.fromkeys(
        ("-c", "--check"), "to compare with a list of ckpt sum: FILE --sums LIST"
    ),
    "rehome": {"--cpu": "the CPU is where it moves tensors without --to"},
    "strip": {"--undo": _UNDO},
    "rename": {"--undo": _UNDO},
    "set": {"--undo": _UNDO},
}
"""Command -> an option of other tools or commands -> why it needs no option."""
_RECURSIVE = frozenset(("-r", "-R", "--recursive"))
_SEARCHES = frozenset(("ls", "lint", "stats", "sum", "verify"))
"""The commands that search folders by themselves."""
_CHOICES = {"--color": "--color auto, always or never"}
"""Options that git also takes without a value -> the values that they have here."""
_NO_NUMBER = re.compile(r"is not a valid (?:int(?:eger)?|float)(?: range)?")
"""The words of the releases of click for it."""


def usage_error(error: Any, commands: Sequence[str]) -> CkptError:
    """An error of the parser of the command line, which typer has no public class for,
    as one of ours.
    """
    # click keeps the command in the context of its errors.
    context = getattr(error, "ctx", None)
    command = (
        "" if context is None or context.parent is None else str(context.info_name)
    )
    # click leaves the context out of some errors.
    if context is None:
        command = next((word for word in sys.argv[1:] if word in commands), "")
    place = f"{command}: " if command else ""
    problem, hint = _explain_error(error, context, command, commands)
    return UsageError(
        f"{place}{problem}", hint=hint or f"ckpt {command} --help".replace("  ", " ")
    )


def _explain_error(
    error: Any, context: Any, command: str, commands: Sequence[str]
) -> tuple[str, str | None]:
    # By name: typer has no public classes for these errors.
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return _unknown_option(str(error.option_name), context)
    if kind == "MissingParameter":
        param = error.param
        # `{PATH}` and `[NAME...]`: the brackets of the usage line.
        metavar = str(
            getattr(param, "metavar", None) or getattr(param, "name", "")
        ).strip("{}[]")
        # An option that is required: its value alone does not say where it goes.
        options = [name for name in param.opts if name.startswith("--")]
        return f"{' '.join([*options[:1], metavar])} is missing", None
    if kind == "BadParameter":
        param = getattr(error, "param", None)
        option = next(
            (name for name in getattr(param, "opts", ()) if name.startswith("--")), ""
        )
        text = _as_sentence(
            _NO_NUMBER.sub("is not a number that fits", str(error.message))
        )
        return f"{option}: {text}" if option else text, None
    text = str(error.format_message())
    # click says these only in words.
    bare = re.match(r"Option '(.*)' requires an argument\.", text, re.DOTALL)
    if bare:
        return f"{show(bare[1], 60)} needs a value", _CHOICES.get(bare[1])
    name = re.match(r"No such command '(.*)'\.", text, re.DOTALL)
    if name:
        return _unknown_command(name[1], commands)
    # `Got unexpected extra argument (b.pth)`; older click writes `argument(s)`.
    extra = re.match(
        r"Got unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", text, re.DOTALL
    )
    if extra:
        return f"{show(extra[1], 80)} is too much", _way_for_extra(extra[1], context)
    return _as_sentence(text), None


def _way_for_extra(words: str, context: Any) -> str | None:
    """The way out where a command got more words than it takes: the option for a name
    that is free or for the model to fill, or what the command takes.
    """
    params = context.command.params
    # The options that have no value yet.
    free: set[str] = set()
    for param in params:
        if not context.params.get(param.name):
            free.update(param.opts)
    path = None if " " in words else pasted_path(words)
    # A path that is not there is a place to write; one that is there may be the model.
    if path is not None and not os.path.lexists(words):
        if "-o" in free:
            return f"-o {path} writes there"
    elif path is not None and "--into" in free:
        return f"--into {path} is the model to fill"
    taken = [
        str(param.metavar or param.name).strip("{}[]")
        for param in params
        if param.param_type_name == "argument"
    ]
    if not taken:
        return None
    return f"it takes {' and '.join(taken)} alone: ckpt {context.info_name} --help"


def _as_sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    # click begins with a capital letter, and our lines go on behind `ckpt: `.
    return text[:1].lower() + text[1:]


def _unknown_option(name: str, context: Any) -> tuple[str, str | None]:
    """An option that there is not: one dash too few, an old name, or a typing error."""
    options: list[str] = []
    for param in context.command.params:
        options += [*param.opts, *param.secondary_opts]
    options.append("--help")
    # `-output` is parsed as `-o utput`: the word that was typed says what was meant.
    typed = next(
        (
            word
            for word in sys.argv[1:]
            if word.startswith(name) and not word.startswith("--")
        ),
        name,
    )
    doubled = f"-{typed}".partition("=")[0]
    # `-json` is `--json` with a dash too few.
    if doubled in options and len(typed) > 2:
        return f"no option {show(typed, 60)}", f"did you mean {doubled}?"
    if name in _RECURSIVE and context.info_name in _SEARCHES:
        return f"no option {name}", "folders are searched without it"
    renamed = _RENAMED.get(name)
    if renamed in options:
        return f"no option {name}", f"{name} is {renamed} now"
    problem = f"no option {show(name, 60)}"
    needless = _NEEDLESS.get(str(context.info_name), {}).get(name)
    if needless is not None:
        return problem, needless
    meant = _MEANT.get(name, "")
    if meant.partition(" ")[0] in options:
        return problem, f"did you mean {meant}?"
    near = _near_option(name, options)
    return problem, None if near is None else f"did you mean {near}?"


def _near_option(name: str, options: Sequence[str]) -> str | None:
    """Return the option that is most like a name, or has its beginning or its words."""
    # Two dashes, which all have, would make short names alike: `--list`, `--limit`.
    names = [option[2:] for option in options if option.startswith("--")]
    word = name.lstrip("-")
    near = get_close_matches(word, names, 1, ALIKE)
    if near:
        return f"--{near[0]}"
    begun = [option for option in names if option.startswith(word)]
    if begun and len(word) > 2:
        return f"--{begun[0]}"
    found = _options_with_words_of(name, options)
    return found[0] if found else None


def _options_with_words_of(name: str, options: Sequence[str]) -> list[str]:
    """Return the only option that has all words of a name: `--output-format` has the
    word of `--format`. Other names give nothing.
    """
    # An option of another tool often has the same word.
    words = set(name.removeprefix("--").split("-"))
    found = [
        option
        for option in options
        if option.startswith("--")
        and words <= set(option[2:].split("-"))
        # All help is no answer to `--all`.
        and option != "--help-all"
    ]
    return found if len(found) == 1 else []


def _unknown_command(name: str, commands: Sequence[str]) -> tuple[str, str | None]:
    # The command exists, and its extension was deleted.
    if name in COMMANDS:
        return f"{name}: {absence_text(COMMANDS[name])}", None
    meant = _ALIASES.get(name.lower())
    # The command that is meant may be of an extension that is not there.
    if meant is None or not has_command(meant):
        meant = next(iter(get_close_matches(name.lower(), commands, 1)), None)
    if meant is None and (os.sep in name or name.endswith((*CHECKPOINTS, *PERHAPS))):
        return f"{show(name, 80)}: no such file, and no command", missing(
            name
        ) or "ckpt inspect FILE"
    return (
        f"no command {show(name, 60)}",
        f"did you mean ckpt {meant}?" if meant else None,
    )
