"""The function `ckpt.slim`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpt.commands.rewriting.report import RewriteReport, with_own_option
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.hooks import load_hook
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.surface.api.config_files import with_folder_hint
from ckpt.surface.api.keywords import Texts, globs_of, keyword_texts, text_only
from ckpt.surface.api.opening import Input
from ckpt.surface.api.rewriting import rewrite_checkpoint
from ckpt.surface.api.writing import (
    as_format_of,
    moved_report,
    options_of,
    refuse_format,
    strip_stages,
    with_like,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing


def slim(
    source: Input,
    *,
    ema: bool = False,
    keep: Texts = (),
    strip: bool = False,
    prefix: str | None = None,
    to: str | None = None,
    like: Input | None = None,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    drop_other: bool = False,
    with_config: bool = False,
    dequantize: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Keep the weights of the model, drop the optimizer and the rest, and pack
    storages.

    With `ema` the averages of the weights are kept, under the names of the model.
    `keep` names sections and values that stay too. Before that, `strip` takes the
    prefixes of wrappers off the names, or `prefix`, and `to` moves the tensors to a
    device. The result loads with weights_only=True; where `out` ends with .safetensors
    it is that. `with_config` makes `out` a folder with config.json and the tokenizer
    beside the weights. `dequantize` makes floats of quantised weights first. The other
    keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.commands.rewriting.stages import (
        in_stages,
        with_kept_codes,
        with_kept_prefixes,
    )
    from ckpt.commands.slim.slim import slim as job

    text_only(section=section, prefix=prefix, to=to)
    refuse_format(to)
    globs = globs_of(include, exclude)
    options = options_of(writing, source, "slim", plain=True)
    options = with_like(options, like, section)._replace(dequantize=dequantize)
    if with_config or (
        options.out is not None and options.out.endswith(f".{save.SHARD_FORMAT}")
    ):
        options = options._replace(format=save.SHARD_FORMAT, with_config=with_config)

    # The averages make a new model: what stays beside the old one is not asked for.
    if ema and keyword_texts(keep):
        raise UsageError("--ema and --keep exclude each other")

    def make(survey: Survey, limits: Limits) -> RewriteReport:
        part = None if ema else section  # what the averages make is the model alone
        stages = strip_stages(strip, prefix, part, limits)
        if dequantize and not survey.checkpoint.traits.has_own_metadata:
            floats = load_hook("quantised").dequantised
            stages.insert(
                0, lambda survey: floats(survey, limits, section=section, select=globs)
            )
        if ema:
            averages = load_hook("ema")
            stages.insert(
                0,
                lambda survey: averages.averaged_weights(
                    survey, limits, section=section
                ),
            )
        stages.append(
            lambda survey: job(
                survey,
                limits,
                section=part,
                select=globs,
                keep=keyword_texts(keep),
                drop_other=drop_other,
            )
        )
        report = moved_report(in_stages(survey, stages), to, limits, options.format)
        report = with_kept_prefixes(report, limits)
        report = with_kept_codes(report, limits)
        report = report._replace(left_out=with_own_option(report.left_out))
        return as_format_of(report, options, limits, drop_other=drop_other)

    is_folder = isinstance(source, str) and os.path.isdir(source)
    with with_folder_hint(str(source) if is_folder else None, options.out):
        return rewrite_checkpoint(source, make, options)
