"""The function `ckpt.rehome`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.surface.api.advice import SUFFIXES
from ckpt.surface.api.keywords import Texts, keyword_texts, text_only
from ckpt.surface.api.opening import Input
from ckpt.surface.api.rewriting import rewrite_checkpoint
from ckpt.surface.api.writing import options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing


def rehome(
    source: Input,
    *,
    to: str | None = None,
    map: Texts = (),
    objects: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Move tensors to other devices, by default to the CPU. No tensor byte changes.

    `map` are texts such as `cuda:0=cuda:1`. With `objects`, devices in values change
    too. The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.commands.rehome.rehome import moves
    from ckpt.commands.rehome.rehome import rehome as job

    text_only(to=to)
    targets = moves(to, keyword_texts(map))
    tag = "moved" if keyword_texts(map) else (to or "cpu").replace(":", "")
    suffix = SUFFIXES["rehome"] if tag == "cpu" else f".{tag}"
    options = options_of(writing, source, "rehome", suffix=suffix)
    return rewrite_checkpoint(
        source,
        lambda survey, limits: job(survey, targets, limits, objects=objects),
        options,
    )
