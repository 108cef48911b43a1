"""Tables of a program in which it looks up each name of a file, or each of its keys."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, load_statements, root_keys
from ckpt.ext.explain.families.recorded import lacking_setting
from ckpt.model.text import and_more, counted_noun, show

_SHOWN = 2


def of_table(name: str, owner: str, case: Case) -> Iterator[Statement]:
    """Say why a name of the file is not in a table of the program. `owner` is the
    expression that failed: a variable, or one with the name in brackets that it goes
    through (`model_dict[k]`).
    """
    yield from lacking_setting(name, owner, case)
    # Only a program that goes through names has their variable in brackets.
    table, bracket, _ = owner.partition("[")
    if not bracket:
        return
    if name in root_keys(case):
        yield from _taken_as_weights(name, table, case)
    else:
        yield from _without_rule(name, table, case)


def _taken_as_weights(name: str, table: str, case: Case) -> Iterator[Statement]:
    """Say that a program went through the keys of a checkpoint as if they were names of
    weights.
    """
    if len(case.survey.candidates) != 1:
        return
    (part,) = case.survey.candidates
    if not part.path or str(part.path[0]) == name:
        return
    yield Statement(
        f"The program goes through what it loaded, and looks up each name in "
        f"{show(table, 60)}. It came to {show(name, 60)}, which is a key of this file "
        "and no weight: it took the whole checkpoint for a state dict. The weights "
        f"are in {show(part.name, 60)}: hand it that part."
    )
    yield from load_statements(case)


def _without_rule(name: str, table: str, case: Case) -> Iterator[Statement]:
    """Say that a program goes through the names of the weights, and has no rule for a
    word in them.
    """
    held = [
        entry.name
        for entry in case.survey.tensors
        if f".{name}." in f".{entry.name}" and entry.name != name
    ]
    if not held:
        return
    listed = and_more([show(row, 120) for row in held], _SHOWN)
    yield Statement(
        f"{counted_noun(len(held), 'tensor')} of this file "
        f"{'has' if len(held) == 1 else 'have'} {show(name, 60)} in "
        f"{'its name' if len(held) == 1 else 'their names'} ({listed}). The program "
        f"goes through the names of the file, and looks up a part of each in "
        f"{show(table, 60)}, where {show(name, 60)} is not: it was written for another "
        "version of the code that saved, or for another architecture. The file was "
        "read, and nothing in it lacks. Take the converter of the version that saved. "
        "A rule for this part can be added where the model that is written has such a "
        "layer; a layer that is left out would be missing there."
    )
    yield from load_statements(case)
