"""The function `ckpt.set`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.ext.values.assignments import HOW, Assignment, node_of
from ckpt.ext.values.edit import set_values
from ckpt.model.errors import UsageError
from ckpt.model.text import show
from ckpt.surface.api.keywords import Texts, keyword_texts
from ckpt.surface.api.opening import Input, path_of
from ckpt.surface.api.rewriting import rewrite_checkpoint
from ckpt.surface.api.writing import options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing

PlainValue = object
"""A bool, int, float, str, None, or a list, tuple or dict of them."""


def set(
    source: Input,
    values: Mapping[str, PlainValue] | None = None,
    *,
    delete: Texts = (),
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Set values inside a checkpoint by their dotted names, and take out the names in
    `delete` with all below them.

    `values` are plain values of Python, taken as they are; a name that a dict lacks is
    added. Tensors can be deleted, not set. The other keywords are in `Writing`. Raises
    CkptError.
    """
    assignments: list[Assignment] = []
    for name, value in (values or {}).items():
        if not isinstance(name, str):
            raise UsageError(f"{show(str(name), 80)}: a name is text")
        assignments.append(Assignment(name, node=node_of(name, value)))
    deleted = keyword_texts(delete)
    if not assignments and not deleted:
        # A name that is given as a keyword is the usual cause, and a TypeError.
        options_of(writing, source, "set")
        raise UsageError(
            "what to set?",
            path=path_of(source),
            hint='{"NAME": VALUE}, or delete="NAME"',
        )
    return assign_values(source, assignments, deleted, **writing)


def assign_values(
    source: Input,
    assignments: Sequence[Assignment],
    deleted: Sequence[str],
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Make the assignments and deletions in a checkpoint, and write it. Raises
    CkptError.
    """
    if not assignments and not deleted:
        raise UsageError("what to set?", path=path_of(source), hint=HOW)
    options = options_of(writing, source, "set")
    return rewrite_checkpoint(
        source,
        lambda survey, limits: set_values(survey, assignments, deleted, limits),
        options,
    )
