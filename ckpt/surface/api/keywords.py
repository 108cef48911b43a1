"""The keywords that several functions share: selections, the gate, a live model,
progress.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ckpt.evidence.record import ModelRecord
from ckpt.hooks import has_command, load_hook
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import UsageError
from ckpt.model.findings import (
    CATALOGUE,
    DOUBTS,
    LEVEL_WORDS,
    LEVELS,
    Gate,
    Level,
    Rules,
)
from ckpt.model.limits import Limits
from ckpt.model.names import Globs, nearest_names
from ckpt.model.text import and_more, show, show_literal

Texts = str | Iterable[str] | None
"""One text, or several, of a keyword whose option can be repeated."""
Path = str | os.PathLike[str]


def keyword_texts(given: Texts) -> list[str]:
    """Return the texts of a keyword. Raises TypeError for what are none."""
    if given is None:
        return []
    # One text is meant as itself, and not as its letters.
    if isinstance(given, str) or not isinstance(given, Iterable):
        several = [given]
    else:
        several = list(given)
    wrong = [given] if isinstance(given, (bytes, bytearray)) else several
    for text in wrong:
        if not isinstance(text, str):
            raise TypeError(
                f"a text or several are taken here, not {type(text).__name__}"
            )
    return several


def text_only(**keywords: object) -> None:
    """Raise TypeError for a keyword that is neither text nor None: a torch.device or a
    torch.dtype is not its name.
    """
    for name, given in keywords.items():
        if given is not None and not isinstance(given, str):
            raise TypeError(f"{name}= takes text, not {type(given).__name__}")


def limits_only(limits: Limits | None) -> None:
    """Raise TypeError for what are no limits."""
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits= takes ckpt.Limits, not {type(limits).__name__}")


def several_of(given: Any, *kinds: type, what: str = "paths") -> list[Any]:
    """Return the one that is given, or each of several. Raises TypeError for what is of
    no such kind.

    An open checkpoint and bytes are iterable too, but neither is a list of paths.
    """
    if isinstance(given, (bytes, bytearray, memoryview, Mapping, *kinds)):
        every = [given]
    else:
        every = list(given)
    for one in every:
        if not isinstance(one, kinds):
            raise TypeError(f"{what} are taken here, not {type(one).__name__}")
    return every


def globs_of(include: Texts, exclude: Texts) -> Globs:
    """Return the selection of tensors by name."""
    return Globs(keyword_texts(include), keyword_texts(exclude))


def model_of(
    model: Any, arguments: Texts = (), option: str = "--model"
) -> ModelRecord | None:
    """Return the record of a live model, of which `FILE.py:FACTORY` makes one too, or
    None. Raises UsageError.

    Without a model no torch is imported.
    """
    if model is None:
        if keyword_texts(arguments):
            raise UsageError(f"--arg goes with {option}")
        return None
    # Made before, by a command that asks for it twice.
    if isinstance(model, ModelRecord):
        return model
    live = load_hook("live model")
    if isinstance(model, str):
        built: ModelRecord = live.record(model, keyword_texts(arguments))
        return built
    live.refuse_other(model)
    described: ModelRecord = live.describe(model)
    return described


def doubt_lines(checkpoint: Checkpoint, codes: Collection[str] = DOUBTS) -> list[str]:
    """A line for each damaged file of a folder, which a command does without, and for
    each doubt about the others.

    Or for each notice with one of the `codes`.
    """
    return [
        f"{show(checkpoint.path, None)}: {show_literal(message)}"
        for message in checkpoint.account.messages(codes)
    ]


_MAKERS = {"lint": ("lint", "inspect"), "ls": ("inspect",)}
"""Commands that report what others make -> those that make it."""


def gate_of(
    command: str,
    select: Texts,
    ignore: Texts,
    level: str | None,
    fail_on: Texts,
    *,
    also: Iterable[str] = (),
    default: Level | None = "info",
) -> Gate:
    """The gate of a command; `also` are further words of `--fail-on`, `default` is the
    level without options.

    Raises UsageError for a code that the command does not make: it would never be
    found.
    """
    text_only(level=level)
    # Levels are words of --fail-on beside codes.
    words = codes_of("--fail-on", fail_on, command, (*LEVEL_WORDS, *also))
    return Gate(rules_of(command, select, ignore, level, default), words)


def rules_of(
    command: str,
    select: Texts,
    ignore: Texts,
    level: str | None,
    default: Level | None = "info",
    *,
    origin: str = "--",
) -> Rules:
    """Return the rules for the findings that count. Raises UsageError.

    `origin` stands before the names of the settings.
    """
    # Codes that are asked for by name come at any level.
    lowest = next((name for name in LEVELS if name == level), None)
    if lowest is None and level is not None:
        raise UsageError(f"--level {show(level, 40)}: not one of {' '.join(LEVELS)}")
    chosen = codes_of(f"{origin}select", select, command)
    ignored = codes_of(f"{origin}ignore", ignore, command)
    return Rules(chosen, ignored, lowest or (None if chosen else default))


def codes_of(
    option: str, values: Texts, command: str, also: Iterable[str] = ()
) -> frozenset[str]:
    """The codes in the values of an option, and the words that it takes `also`. Raises
    UsageError for others.
    """
    codes: list[str] = []
    for value in keyword_texts(values):
        codes += [code.strip() for code in value.split(",") if code.strip()]
    # A code of another command would never be found here.
    makers = _MAKERS.get(command, (command,))
    possible = [
        row.code for row in CATALOGUE.values() if not set(makers).isdisjoint(row.by)
    ]
    words = [*possible, *also]
    for code in codes:
        if code not in words:
            problem = f"{option} {show(code, 40)}: not a finding of {command}"
            raise UsageError(problem, hint=_code_hint(code, possible, words))
    return frozenset(codes)


_MOST_CODES = 16
"""Codes that one line lists."""


def _code_hint(code: str, possible: Sequence[str], words: Sequence[str]) -> str:
    """Say which commands make a finding, or which code was meant, or which there are
    for a command: `possible`, and all `words` that it takes.
    """
    known = CATALOGUE.get(code)
    makers = [f"ckpt {name}" for name in known.by if has_command(name)] if known else []
    if makers:
        return f"{and_more(makers, 4)} {'find' if len(makers) > 1 else 'finds'} it"
    # The nearest one of those that can be found.
    alike = nearest_names(code, possible, 1)
    if alike:
        return f"did you mean {alike[0]}?"
    if len(words) <= _MOST_CODES:
        return f"codes: {' '.join(words)}"
    listed = " ".join(words[:_MOST_CODES])
    more = f"codes: {listed} and {len(words) - _MOST_CODES} more"
    return f"{more}, which ckpt explain lists" if has_command("explain") else more
