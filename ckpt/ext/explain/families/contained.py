"""Two files of which one has the parts of the other one among its modules, under other
beginnings: a part that was published, and the save of a whole training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.evidence.loading import string_literal
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.ext.explain.case import Statement
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, show, size_text

_LEAST = 2
"""Names of a part that must be in the other file: one alone may be there by chance."""
_SHOWN = 4


class _Found(NamedTuple):
    """A part of one file, and the beginning that its names have in the other one."""

    part: Section
    begin: str


def contained_statements(surveys: Sequence[Survey]) -> Iterator[Statement]:
    """Say which parts of one file are in the other one, and what that has beside."""
    for small, large in (surveys, surveys[::-1]):
        if len(large.candidates) != 1:
            continue
        found = _parts_within(small, large.candidates[0])
        if found:
            yield _contained_statement(small, large, found)
            return


def _parts_within(small: Survey, whole: Section) -> list[_Found]:
    """The parts of a file with all of their names in one part of another file."""
    shapes = {
        name: entry.tensor.shape
        for name, entry in zip(whole.names(), whole.entries, strict=True)
    }
    found: list[_Found] = []
    for part in small.sections:
        names = part.names()
        if len(names) < _LEAST:
            continue
        ours = {
            name: entry.tensor.shape
            for name, entry in zip(names, part.entries, strict=True)
        }
        ends = [
            name.removesuffix(names[0])
            for name in shapes
            if name.endswith(f".{names[0]}")
        ]
        begins = [
            begin
            for begin in ends
            if all(shapes.get(begin + name) == shape for name, shape in ours.items())
        ]
        # Names such as weight and bias are in many modules.
        if len(begins) == 1:
            found.append(_Found(part, begins[0]))
    return found


def _contained_statement(
    small: Survey, large: Survey, found: Sequence[_Found]
) -> Statement:
    """The sentence on the parts that both files have, with the line that takes them out
    of the larger one.
    """
    (whole,) = large.candidates
    begins = tuple(row.begin for row in found)
    rest: dict[str, int] = {}
    for name, entry in zip(whole.names(), whole.entries, strict=True):
        if not name.startswith(begins):
            word = name.partition(".")[0]
            rest[word] = rest.get(word, 0) + entry.tensor.nbytes
    told = [
        f"{show(row.part.name, 60) or 'all of it'} "
        f"({counted_noun(len(row.part.entries), 'tensor')}) is "
        f"{show(row.begin, 60)}*"
        for row in found
    ]
    both = and_more(told, _SHOWN)
    sizes = [
        f"{show(word, 60)} {size_text(size)}"
        for word, size in sorted(rest.items(), key=lambda item: -item[1])
    ]
    beside = f" What it has beside is {and_more(sizes, _SHOWN)}." if rest else ""
    text = (
        f"{show(large.path, 80)} has the parts of {show(small.path, 80)} by other "
        f"names, with the same shapes: {both}.{beside}"
    )
    load = large.load.expression
    is_all = len(found) == len([part for part in small.sections if part.entries])
    if load is None or not is_all or any(len(row.part.path) > 1 for row in found):
        return Statement(text)
    target = string_literal("parts.pth")
    parts = [
        f"{string_literal(str(row.part.path[0]))}: {_taken(row.begin)}"
        for row in found
        if row.part.path
    ]
    given = f"{{{', '.join(parts)}}}" if parts else _taken(found[0].begin)
    return Statement(
        f"{text} In the form of the smaller one:",
        (),
        f"state = {load}; torch.save({given}, {target})",
    )


def _taken(begin: str) -> str:
    """The expression for what a state dict has below a beginning."""
    word = string_literal(begin)
    return (
        f"{{name[{len(begin)}:]: value for name, value in state.items() "
        f"if name.startswith({word})}}"
    )
