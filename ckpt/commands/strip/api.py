"""The function `ckpt.strip`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.surface.api.keywords import Texts, globs_of, text_only
from ckpt.surface.api.opening import Input
from ckpt.surface.api.rewriting import rewrite_checkpoint
from ckpt.surface.api.writing import options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing


def strip(
    source: Input,
    *,
    prefix: str | None = None,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    link: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Strip the prefixes of wrappers from the names of tensors, or `prefix`. Two names
    never become one.

    The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.commands.strip.strip import strip as job

    text_only(prefix=prefix, section=section)
    globs = globs_of(include, exclude)
    options = options_of(writing, source, "strip", link=link)
    return rewrite_checkpoint(
        source,
        lambda survey, limits: job(
            survey, limits, prefix=prefix, section=section, select=globs
        ),
        options,
    )
