"""The tensors of one side of a comparison of layouts: dense ones by their names, and
what is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.elements.unpacked import can_unpack, unpacked
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.ext.layouts.proof import Leaf, leaf_of
from ckpt.model.checkpoint import Entry
from ckpt.model.errors import UsageError
from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, TensorRef, unwrap_dtensor

_EXPANDED = 1 << 30
"""The most bytes beyond its storage of a tensor with repeating strides that is looked
at.
"""


class Passed(NamedTuple):
    """A tensor that is not looked at, and why."""

    name: str
    why: str


class Side(NamedTuple):
    """The tensors of a checkpoint that its layout is about, in order, and those that
    are passed over.
    """

    path: str
    leaves: tuple[Leaf, ...]
    passed: tuple[Passed, ...]
    beside: int
    """The tensors beside the models: of optimizers and others."""
    is_coded: bool = False
    """True where tensors are codes: blocks as in a GGUF, floats of 8 bits, or integers
    with scales.
    """
    nbytes: int = 0
    """The bytes of its files."""


def side_of(
    survey: Survey,
    section: str | None = None,
    select: Globs | None = None,
) -> Side:
    """The tensors of the only model under their own names, or of all models of a set
    under their full names.

    Raises UsageError for a section that is not there, and where there is no tensor.
    """
    leaves: list[Leaf] = []
    passed: list[Passed] = []
    entries = entries_of(survey, section, select)
    is_coded = any(_is_coded(entry.tensor) for _, entry in entries)
    # GPTQ, AWQ and others keep codes as integers, with scales beside them.
    is_coded = is_coded or bool(survey.scaled.codes)
    for name, entry in entries:
        # Blocks of a GGUF are compared as their numbers, and shards as what they hold.
        tensor = numeric(unwrap_dtensor(entry.tensor))
        why = unread_kind(tensor)
        if isinstance(tensor, TensorRef) and why is None:
            leaves.append(leaf_of(name, tensor))
        else:
            passed.append(Passed(name, why or "not dense"))
    if not leaves:
        raise UsageError("holds no dense tensor", path=survey.path)
    return Side(
        survey.path,
        tuple(leaves),
        tuple(passed),
        len(survey.tensors) - len(entries),
        is_coded,
        survey.checkpoint.nbytes,
    )


def entries_of(
    survey: Survey,
    section: str | None = None,
    select: Globs | None = None,
) -> list[tuple[str, Entry]]:
    """The tensors that a layout is about, by the names that they have in it."""
    parts = sections_of(survey, section)
    # One model goes by its own names, so that both sides agree whatever is around it.
    if len(parts) == 1:
        part = parts[0]
        return [
            (part.relative(entry.name) or part.name, entry)
            for entry in part.selected(select, survey.path)
        ]
    return [
        (entry.name, entry)
        for part in parts
        for entry in part.selected(select, survey.path)
    ]


def sections_of(survey: Survey, section: str | None) -> Sequence[Section]:
    """The sections that a layout is about: the named one, the models, or all of a file
    without one.
    """
    if section is not None:
        return [survey.section(section)]
    return survey.candidates or [survey.everything]


def numeric(tensor: Tensor) -> Tensor:
    """A tensor in blocks as its numbers, where they can be decoded; any other tensor
    itself.
    """
    return (
        unpacked(tensor)
        if isinstance(tensor, TensorRef) and can_unpack(tensor)
        else tensor
    )


def _is_coded(tensor: Tensor) -> bool:
    """Say whether the elements of a tensor are codes that were rounded."""
    return isinstance(tensor, TensorRef) and (
        can_unpack(tensor) or tensor.dtype.name.startswith("float8")
    )


def unread_kind(tensor: Tensor) -> str | None:
    """Return why a tensor has no layout that is looked at: it is no dense one, or has
    no bytes; else None.
    """
    if not isinstance(tensor, TensorRef):
        return tensor.layout
    # Elements that share a byte cannot be moved one by one.
    if tensor.dtype.bits < 8:
        return tensor.dtype.name
    # A view that repeats a byte may stand for terabytes.
    if tensor.nbytes > tensor.storage.nbytes + _EXPANDED:
        return (
            f"a view of {tensor.storage.nbytes:,} bytes that expands to "
            f"{tensor.nbytes:,}"
        )
    return "on meta, without data" if tensor.storage.place is None else None
