"""The settings of a run that a checkpoint records, where a model was built with
others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Mismatch
from ckpt.model.text import and_more, counted_noun, pasted_path, shell_word, show

_OF_SETTINGS = re.compile(
    r"(?:^|[._])(?:config|configs|cfg|args|model_args|opt|opts|options|hparams"
    r"|hyper_parameters|hyperparameters|params_model|model_cfg"
    r"|model_config|dims|settings|kwargs)(?:$|[._])"
)
"""The keys below which programs keep the settings of a run."""
_OF_TRAINING = re.compile(
    r"batch|seed|step|epoch|iter|interval|freq|every|port|warm|worker|thread|log|save"
    r"|eval|accum|buffer|prefetch|steps|time|date|count|samples|version"
)
"""Words of settings of a run that give no size of its model."""
_LEAST = 8
"""Sizes below it stand for many things: layers, heads, channels of a picture."""
_COUNT = re.compile(r"(?:num|n)_[a-z]\w{0,40}$")
"""A count at the root of a file, as `num_vid`. It says more than a bare value does."""
_MOST = 3
"""Settings of one value that are named: with more of them the value says little."""


def settings_of(rows: Sequence[Mismatch], case: Case) -> Iterator[Statement]:
    """Name the settings of a file whose value is a size that differs."""
    sizes = Counter(
        (ours, theirs)
        for row in rows
        for ours, theirs in zip(row.checkpoint, row.model, strict=False)
        if ours != theirs
    )
    if not sizes:
        return
    yield from _own_version(case)
    (ours, theirs), count = sizes.most_common(1)[0]
    if 2 * count <= sizes.total():
        return  # no size is the one that most others follow from
    named = [
        value.name
        for value in case.survey.checkpoint.values
        # True is an int for isinstance.
        if type(value.node) is int
        and value.node == ours
        # An item of a list has a place, and no word that says what it is.
        and not value.name.rpartition(".")[2].isdigit()
        and (_OF_SETTINGS.search(_parent_name(value.name)) or _COUNT.match(value.name))
        and not _OF_TRAINING.search(value.name.rpartition(".")[2].lower())
    ]
    # Some programs save their config as the text of its file.
    named += _in_yaml(ours, case)
    is_count = len(named) == 1 and _COUNT.match(named[0]) is not None
    if (ours < _LEAST and not is_count) or not 0 < len(named) <= _MOST:
        return
    yield Statement(
        f"{ours:,} stands among the settings of this checkpoint: "
        f"{and_more([show(name, 120) for name in named], _MOST)}. Build the model with "
        f"it, in place of {theirs:,}."
    )


_OWN_VERSION = re.compile(r"(?i)v\d{1,2}(?:\.\d{1,2}){0,2}")
"""The version of a model, as a word: `v2`. One that is a number is of a library."""


def _own_version(case: Case) -> Iterator[Statement]:
    """Name the version of its model that a file records at its root."""
    for value in case.survey.checkpoint.values:
        if value.name == "version" and isinstance(value.node, str):
            if _OWN_VERSION.fullmatch(value.node):
                yield Statement(
                    f"This file records version {value.node} of its model: build the "
                    "model of that version, whose sizes may be others."
                )
            return


_OF_YAML = re.compile(
    r"^[ \t]{0,40}([A-Za-z_]\w{0,60}): (\d{1,9})[ \t]*$", re.MULTILINE
)
"""A line of YAML with a setting that is a whole number."""


def _in_yaml(size: int, case: Case) -> list[str]:
    """The settings of one size in a config that a checkpoint holds as a text of YAML,
    each with the place of the text.
    """
    named: dict[str, None] = {}
    for value in case.survey.checkpoint.values:
        text = value.node
        if (
            not isinstance(text, str)
            or "\n" not in text
            or not _OF_SETTINGS.search(value.name)
        ):
            continue
        for match in _OF_YAML.finditer(text):
            if int(match[2]) == size and not _OF_TRAINING.search(match[1].lower()):
                named[f"{match[1]} in {value.name}"] = None
    return list(named)


def settings_command(case: Case) -> tuple[str, str] | None:
    """The place of the settings of a run, and the command that shows them; or None
    where there are none, or a shell cannot take their name.
    """
    places = settings_places(case)
    path = pasted_path(case.survey.path)
    # A name that begins with a dash would be an option.
    word = shell_word(places[0]) if places and not places[0].startswith("-") else None
    if word is None or path is None:
        return None
    return places[0], f"ckpt get {path} {word}"


def settings_places(case: Case) -> list[str]:
    """The places of the settings in a file, the outermost ones."""
    found: dict[str, None] = {}
    # Programs call their optimizer `opt` too, and its groups hold settings of its own.
    others = tuple(f"{section.name}." for section in case.optimizers if section.name)
    for value in case.survey.checkpoint.values:
        match = _OF_SETTINGS.search(f"{_parent_name(value.name)}.")
        if match is not None and not value.name.startswith(others):
            # The first match in a name is the outermost place.
            found[value.name[: match.end()].rstrip("._")] = None
    return list(found)


_OWNER = re.compile(
    r"(?i)(?:[\w.]{0,40}[_.])?(?:args|cfg|config|conf|opts?|options|hparams"
    r"|hyper_?param\w{0,8}|settings)\d?(?:\[|$)"
)
"""The name of a variable in which a program has the settings of a run."""


def lacking_setting(name: str, owner: str, case: Case) -> Iterator[Statement]:
    """Say that the settings of a file have no entry that a program takes from them.
    `owner` is the variable of the program.
    """
    found = settings_command(case)
    if found is None or _OWNER.match(owner) is None:
        return
    place, command = found
    begin = f"{place}."
    held = [
        value.name[len(begin) :]
        for value in case.survey.checkpoint.values
        if value.name.startswith(begin)
    ]
    if not held or any(name in entry.split(".") for entry in held):
        return
    entries = list(dict.fromkeys(entry.partition(".")[0] for entry in held))
    yield Statement(
        f"The program takes {show(name, 60)} from {show(owner, 60)}. The settings of "
        f"the run that saved are in this file, at {show(place, 80)}, and have "
        f"{counted_noun(len(entries), 'setting')}, none of them {show(name, 60)}: "
        f"{and_more([show(entry, 40) for entry in entries], 8)}. So the run that saved "
        "had no such option. Where the program reads these settings, or compares its "
        "own with them, it is of another version, mostly a newer one: take the version "
        "that saved, or give the option the value that stands for its absence (a "
        "switch is off) and pass over it there. Where it reads a config of its own, "
        "that one lacks the option, and this file says nothing of it.",
        (),
        command,
    )


def _parent_name(name: str) -> str:
    """The name of what holds a value."""
    return name.rpartition(".")[0]
