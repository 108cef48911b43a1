"""The function `ckpt.merge`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
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
from ckpt.model.text import pasted_path, shell_word
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
    typed = _typed_words(
        {
            "weights": weights,
            "scale": scale,
            "packing": packing,
            "exact": exact,
            "sub": sub,
            "include": include,
            "exclude": exclude,
            "section": section,
            "drop_other": drop_other,
            "format": format,
            "shard_size": shard_size,
            "with_config": with_config,
            **{name: writing.get(name) for name in _TYPED_OF_WRITING},
        },
        options.out,
    )
    with ExitStack() as stack:
        found: list[Adapter] = []
        for number, one in enumerate(given):
            opened = stack.enter_context(
                at_hand(one, options.limits, plugins=options.plugins)
            )
            with about(opened.path), _swapped(base, given, number, options, typed):
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
            return as_format_of(report, options, limits, drop_other=drop_other)

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


_TYPED_OF_WRITING = ("force", "parents", "dry_run", "keep_damaged", "verify")
"""The keywords of all commands that write which a command to paste repeats."""


def _typed_words(keywords: Mapping[str, object], out: str | None) -> list[str]:
    """Return the words of a command line for the keywords that were given, `-o OUT`
    last.
    """
    words: list[str] = []
    for name, value in keywords.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif name == "weights" and isinstance(value, Sequence):
            words += [option, ",".join(f"{weight:g}" for weight in value)]
        else:
            # An option that can be repeated is one text in Python, or several.
            for text in value if isinstance(value, (list, tuple)) else [value]:
                words += [option, str(text)]
    return words if out is None else [*words, "-o", out]


@contextmanager
def _swapped(
    base: Input,
    adapters: Sequence[Input],
    number: int,
    options: WriteOptions,
    typed: Sequence[str],
) -> Iterator[None]:
    """Add to the error about the adapter at `number`, which is none, that it and the
    base are swapped, where `base` is an adapter. The hint is a command with the
    options that were `typed`.
    """
    try:
        yield
    except UsageError as error:
        if error.hint is None and _is_adapter(base, options):
            # Each adapter keeps its place, for a weight of its own may go with it.
            places = [adapters[number], *adapters[:number], base]
            places += adapters[number + 1 :]
            paths = [path_of(place) for place in places]
            pasted = [None if path is None else pasted_path(path) for path in paths]
            words = [*pasted, *map(shell_word, typed)]
            if None not in words:
                command = " ".join(["ckpt merge", *map(str, words)])
                error.hint = f"the base comes first: {command}"
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
