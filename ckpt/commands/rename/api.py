"""The function `ckpt.rename`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.surface.api.keywords import Texts, globs_of, keyword_texts, text_only
from ckpt.surface.api.opening import Input
from ckpt.surface.api.rewriting import rewrite_checkpoint
from ckpt.surface.api.writing import options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing


def rename(
    source: Input,
    *,
    sub: Texts,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    link: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Rename the tensors of a model by substitutions such as `s/^bert\\\\.//`, one
    after the other.

    The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.commands.rename.rename import rename as job
    from ckpt.commands.rename.rename import substitution

    text_only(section=section)
    globs = globs_of(include, exclude)
    subs = [substitution(text) for text in keyword_texts(sub)]
    options = options_of(writing, source, "rename", link=link)
    return rewrite_checkpoint(
        source,
        lambda survey, limits: job(survey, subs, limits, section=section, select=globs),
        options,
    )
