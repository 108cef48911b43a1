"""The function `ckpt.merge`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import IOBase
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from ckpt.commands.rename.rename import substitution
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.ext.adapters.merge import adds_nothing, refuse_weights
from ckpt.ext.adapters.merge import merge as job
from ckpt.ext.adapters.packing import packings_of
from ckpt.ext.adapters.plan import Options
from ckpt.ext.adapters.reader import Adapter, read_adapter
from ckpt.model.errors import CkptError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.model.text import pasted_path
from ckpt.surface.api.checkpoint import Checkpoint as Opened
from ckpt.surface.api.config_files import with_folder_hint
from ckpt.surface.api.keywords import (
    Texts,
    doubt_lines,
    globs_of,
    keyword_texts,
    text_only,
)
from ckpt.surface.api.opening import NAMELESS, Input, at_hand, path_of
from ckpt.surface.api.rewriting import Talk, WriteOptions, rewrite_checkpoint
from ckpt.surface.api.rewriting import check as check_options
from ckpt.surface.api.writing import as_format_of, options_of, with_format, with_last

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing


def merge(
    base: Input,
    adapters: Sequence[Input] | Input = (),
    *,
    weights: Sequence[float] | None = None,
    scale: float | None = None,
    packing: Texts = (),
    exact: bool = False,
    sub: Texts = (),
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    drop_other: bool = False,
    format: str | None = None,
    shard_size: str | int | None = None,
    with_config: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Add adapters (LoRA, DoRA) to the weights of a base: base + scale * B @ A, in the
    names, the order and the dtypes of the base.

    Without adapters, `base` is a checkpoint of training that holds its own. `weights`
    multiply the adapters; `scale` is alpha / rank where an adapter records none. `sub`
    renames their layers, `include` and `exclude` select their tensors. `exact` computes
    in float64. `report.account` lists each layer. The other keywords are in `Writing`.
    Raises CkptError; UsageError where a tensor of an adapter has no place in the base.
    """
    text_only(section=section)
    named = packings_of(keyword_texts(packing))
    if scale is not None and not math.isfinite(scale):
        raise UsageError("--scale: not a finite number")
    # One adapter may be given without a list around it.
    given = _list_adapters(adapters)
    refuse_weights(weights, max(1, len(given)))
    request = Options(
        weights,
        scale,
        named,
        exact,
        [substitution(text).apply for text in keyword_texts(sub)],
    )
    select = globs_of(include, exclude)
    options = options_of(writing, base, "merge", plain=True)
    if format is not None or shard_size is not None or with_config:
        options = with_format(
            options,
            format,
            shard_size,
            plain=False,
            with_config=with_config,
        )
        options = options._replace(plain=True)
    talk = Talk(options.tell)
    check_options(options, path_of(base), *map(path_of, given))
    with ExitStack() as stack:
        found: list[Adapter] = []
        for one in given:
            opened = stack.enter_context(
                at_hand(one, options.limits, plugins=options.plugins)
            )
            with about(opened.path), _swapped(base, opened.path, options):
                found.append(
                    read_adapter(opened.survey, options.limits, select=select or None)
                )
                # Only now: what is doubted may be why it is no adapter.
                for line in doubt_lines(opened.checkpoint):
                    talk(line)
                if adds_nothing(found[-1]):
                    talk.about(
                        opened.path,
                        [
                            (
                                "all of its B (lora_B, lora_up) are zeros, as before "
                                "training: it adds nothing"
                            )
                        ],
                    )
        opened = stack.enter_context(
            at_hand(base, options.limits, plugins=options.plugins)
        )
        if options.format is None:
            with with_folder_hint(opened.path, options.out):
                options = with_last(options, opened.checkpoint)

        def make(survey: Survey, limits: Limits) -> RewriteReport:
            report = job(
                survey,
                found,
                limits,
                request,
                section=section,
                drop_other=drop_other,
            )
            found.clear()  # a hundred thousand layers, which writing has no need of
            if with_config and any(row.key == "vocab_size" for row in report.config):
                for path in filter(_has_tokenizer, map(path_of, given)):
                    talk.about(path, [_OTHER_TOKENIZER])
            if options.format is None:
                return report
            return as_format_of(report, options.format, limits, options.ranks)

        report = rewrite_checkpoint(opened, make, options)
    return report._replace(warnings=(*talk.lines, *report.warnings))


_OTHER_TOKENIZER = "OUT gets the tokenizer of BASE, and not the one beside this adapter"
"""The warning where an adapter changes the number of tokens."""


def _has_tokenizer(path: str) -> bool:
    """Tell whether the folder of an adapter of this machine holds a tokenizer."""
    # PEFT saves the tokenizer beside the adapter where tokens were added.
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
    return path not in NAMELESS and any(
        os.path.isfile(os.path.join(folder, name)) for name in names
    )


@contextmanager
def _swapped(base: Input, adapter: str, options: WriteOptions) -> Iterator[None]:
    """Add to the error about an `adapter` that is none that the two are swapped, where
    `base` is an adapter.
    """
    try:
        yield
    except UsageError as error:
        path = path_of(base)
        words = [pasted_path(adapter), None if path is None else pasted_path(path)]
        if error.hint is None and None not in words and _is_adapter(base, options):
            out = None if options.out is None else pasted_path(options.out)
            to = "" if out is None else f" -o {out}"
            error.hint = f"the base comes first: ckpt merge {words[0]} {words[1]}{to}"
        raise


def _is_adapter(given: Input, options: WriteOptions) -> bool:
    """Tell whether a checkpoint is an adapter, and nothing else."""
    try:
        with at_hand(given, options.limits, plugins=options.plugins) as opened:
            # Read once more, and only for an error: is the first of both the adapter?
            found = read_adapter(opened.survey, options.limits)
    except CkptError:
        return False
    return not found.copies and not found.wholes


def _list_adapters(adapters: Sequence[Input] | Input) -> list[Input]:
    """The adapters that are given: one, or several."""
    kinds: tuple[Any, ...] = (
        str,
        PathLike,
        Opened,
        bytes,
        bytearray,
        memoryview,
        IOBase,
    )
    return (
        [cast("Input", adapters)]
        if isinstance(adapters, kinds)
        else list(cast("Sequence[Input]", adapters))
    )
