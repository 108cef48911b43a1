"""A dict of state dicts that a program handed on as one state dict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.evidence.loading import load_of
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Message
from ckpt.model.names import Path
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import children_of
from ckpt.tree.view import look

_COUNTER = "num_batches_tracked"
_MOST = 6


def dict_of_parts(message: Message, case: Case) -> Iterator[Statement]:
    """Say that a dict inside of the file has the unexpected keys, and that each is a
    state dict for its own module of the model.
    """
    asked = set(message.unexpected)
    for key, node in children_of(case.survey.checkpoint.root):
        held = [inner for inner, _ in children_of(node)]
        if len(held) < 2 or {str(inner) for inner in held} != asked:
            continue
        # A value beside one state dict is a field of a checkpoint.
        if any(look(child).kind != "mapping" for _, child in children_of(node)):
            continue
        parts = [_part_at((key, inner), case) for inner in held]
        names = and_more([show(str(inner), 40) for inner in held], 8)
        yield Statement(
            f"{show(str(key), 80)} of this file is no state dict: it holds "
            f"{counted_noun(len(held), 'part')} ({names}), each a state dict of its "
            "own, and these are the unexpected keys. The program that saved wrote each "
            "network by itself, so each is loaded into its own module of the model."
        )
        yield from _modules_statements(parts, message, case)
        return


def _part_at(path: Path, case: Case) -> Section:
    """The tensors below a path as a part of the file."""
    size = len(path)
    entries = [row for row in case.survey.tensors if row.path[:size] == path]
    return Section(path, ".".join(map(str, path)), "model", 0, entries)


def _modules_statements(
    parts: Sequence[Section], message: Message, case: Case
) -> Iterator[Statement]:
    """Say which module of the model has the names of each part, with its load."""
    missing = set(message.missing)
    for part in parts[:_MOST]:
        begins = _beginnings(part, missing)
        load = load_of(case.survey.checkpoint, [part]).expression
        if len(begins) != 1 or load is None:
            continue
        (begin,) = begins
        # A path of words and numbers is no expression of Python.
        words = begin.split(".")
        module = "".join(
            f"[{word}]" if word.isdigit() else f".{word}" for word in words
        )
        is_plain = all(word.isidentifier() or word.isdigit() for word in words)
        yield Statement(
            f"{show(part.name, 80)} has the names of {show(begin, 80)} in the model "
            f"({counted_noun(part.tensors, 'tensor')}):",
            (),
            f"model{module}.load_state_dict({load})" if is_plain else load,
        )


def _beginnings(part: Section, missing: set[str]) -> set[str]:
    """The modules of a model that lack all names of a part."""
    names = [name for name in part.names() if not name.endswith(_COUNTER)]
    if not names:
        return set()
    ends = f".{names[0]}"
    found = {name.removesuffix(ends) for name in missing if name.endswith(ends)}
    return {
        begin for begin in found if all(f"{begin}.{name}" in missing for name in names)
    }
