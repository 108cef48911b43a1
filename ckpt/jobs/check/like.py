"""Whether a checkpoint has the tensors of another one: the same names, and the same shapes.

Where nothing in the files records how many tensors there are, or how large they are, another save is the only witness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import unwrapped_name
from ckpt.jobs.check.sums import Sum
from ckpt.rows import NamedTuple
from ckpt.text import and_more, plural, show

Shape = tuple[int, ...]
_LISTED = 3


class Like(NamedTuple):
    """The tensors of another save by their names: all of them, and those of its model. Sums record no shapes: None.

    `sections` are the names of its sections; empty for sums.
    """

    path: str
    every: Mapping[str, Shape | None]
    model: Mapping[str, Shape | None]
    sections: frozenset[str] = frozenset()


class Likeness(NamedTuple):
    """How a checkpoint differs from another save. Names of the checkpoint are full ones."""

    path: str
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    reshaped: Mapping[str, tuple[Shape, Shape]]
    has_shapes: bool

    @property
    def rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each difference in one line, and its tensors."""
        other = show(self.path, 80)
        out: list[tuple[str, tuple[str, ...]]] = []
        if self.missing:
            out.append((f"lacks {plural(len(self.missing), 'tensor')} of {other}", self.missing))
        if self.reshaped:
            name, (own, theirs) = next(iter(self.reshaped.items()))
            text = f"{plural(len(self.reshaped), 'tensor')} with another shape than in {other}"
            text += f": {show(name, 60)} is {list(own)}, there {list(theirs)}"
            out.append((text, tuple(self.reshaped)))
        if self.extra:
            out.append((f"{plural(len(self.extra), 'tensor')} not in {other}", self.extra))
        return out

    @property
    def text(self) -> str:
        """The differences in one line; empty without any."""
        return "; ".join(
            text if ":" in text else f"{text}: {and_more([show(name, 60) for name in names], _LISTED)}"
            for text, names in self.rows
        )

    @property
    def checked(self) -> str:
        """What agrees, where nothing differs."""
        return f"{'names and shapes' if self.has_shapes else 'names'} as in {show(self.path, 80)}"


def like_of(survey: Survey, section: str | None = None) -> Like:
    """What another save holds. Raises UsageError where it has no such section."""
    chosen = survey.section(section) if section is not None else _model(survey)
    every = survey.everything
    return Like(survey.path, _shapes(every), _shapes(chosen), _sections(survey))


def like_of_sums(path: str, rows: Iterable[Sum]) -> Like:
    """What a file of sums names."""
    names: dict[str, Shape | None] = dict.fromkeys(unwrapped_name(row.name) for row in rows)
    return Like(path, names, names)


def likeness(survey: Survey, like: Like, section: str | None = None) -> Likeness:
    """How a checkpoint differs from another save.

    All tensors are compared where both have the same sections, else those of the model, or of `section`. Of sums it is
    the part with the most of their names. Wrappers in names do not count.
    """
    whole = survey.everything
    if section is not None:
        part, theirs = survey.section(section), like.model
    elif not like.sections:
        parts = [whole, *survey.models, *survey.sections]
        part, theirs = max(parts, key=lambda one: len(_shapes(one).keys() & like.every.keys())), like.every
    elif like.sections == _sections(survey):
        part, theirs = whole, like.every
    else:
        part, theirs = _model(survey), like.model
    own = _shapes(part)
    full = dict(zip(map(unwrapped_name, part.names()), (entry.name for entry in part.entries), strict=True))
    reshaped = {
        full[name]: (shape, other)
        for name, shape in own.items()
        if (other := theirs.get(name)) is not None and shape is not None and shape != other
    }
    return Likeness(
        like.path,
        tuple(name for name in theirs if name not in own),
        tuple(full[name] for name in own if name not in theirs),
        reshaped,
        bool(like.sections),
    )


def _model(survey: Survey) -> Section:
    return survey.candidates[0] if len(survey.candidates) == 1 else survey.everything


def _sections(survey: Survey) -> frozenset[str]:
    return frozenset(section.name for section in survey.sections if section.tensors)


def _shapes(part: Section) -> dict[str, Shape | None]:
    """The shape of each tensor of a section, by its name in it."""
    entries: Sequence[tuple[str, Shape | None]] = [
        (unwrapped_name(name), entry.tensor.shape)
        for name, entry in zip(part.names(), part.entries, strict=True)
    ]
    return dict(entries)
