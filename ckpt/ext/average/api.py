"""The function `ckpt.average`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import IOBase
from typing import TYPE_CHECKING, cast

from ckpt.bytes.far import is_url
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.model.errors import FolderError, NotOpenedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.text import and_more, counted_noun, show
from ckpt.surface.api.checkpoint import Checkpoint as Opened
from ckpt.surface.api.config_files import with_folder_hint
from ckpt.surface.api.keywords import Texts, doubt_lines, keyword_texts, text_only
from ckpt.surface.api.opening import NAMELESS, Input, at_hand, path_of
from ckpt.surface.api.rewriting import Talk, WriteOptions, rewrite_checkpoint
from ckpt.surface.api.rewriting import check as check_options
from ckpt.surface.api.walk import find_items_to_open, split_items
from ckpt.surface.api.writing import as_format_of, options_of, with_last

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing


def average(
    sources: Sequence[Input] | Input,
    *,
    ratios: Sequence[float] | None = None,
    last: int | None = None,
    align: bool = True,
    drop_other: bool = False,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    with_config: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Average the models of checkpoints of one training, or of the `last` numbered ones
    of a folder.

    The mean has the names, the order and the dtypes of the last one. `ratios` weigh
    them. `with_config` makes `out` a folder with config.json and the tokenizer of the
    last one beside the weights. The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.ext.average.average import Options, shares_of
    from ckpt.ext.average.average import average as job

    text_only(section=section)
    options = options_of(writing, None, "average", plain=True)
    # An open checkpoint, bytes and a file are iterable too, and each is one checkpoint.
    is_one = isinstance(
        sources, (str, os.PathLike, Opened, bytes, bytearray, memoryview, IOBase)
    )
    names: list[Input]
    if is_one:
        names = [cast("Input", sources)]
    else:
        names = list(cast("Sequence[Input]", sources))
    talk = Talk(options.tell)
    check_options(options, *map(path_of, names))
    if last is not None:
        names = list(_last_of(names, last, options, talk))
    if len(names) < 2:
        problem = (
            "a mean takes two checkpoints or more" if names else "nothing to average"
        )
        path = path_of(names[0]) if names else None
        # A pattern that no shell expanded is no file.
        is_named = path is not None and path not in NAMELESS and not is_url(path)
        if path is not None and is_named and not os.path.lexists(path):
            raise NotOpenedError("no such file", path=path)
        raise UsageError(problem, path=path, hint="PATH PATH..., or --last N FOLDER")
    request = Options(
        ratios,
        section,
        keyword_texts(include),
        keyword_texts(exclude),
        align=align,
        drop_other=drop_other,
    )
    # Before anything is opened: what is asked for wrongly costs no reading.
    shares_of(request.ratios, len(names))
    _tell_twice(names, talk)
    with ExitStack() as stack:
        given = []
        for name in names:
            try:
                opened = at_hand(name, options.limits, plugins=options.plugins)
                given.append(stack.enter_context(opened))
            except FolderError as error:
                # A folder of checkpoints is no checkpoint, but may hold the series.
                error.hint = None
                if last is None and len(names) == 1:
                    error.hint = "--last N takes its last ones"
                raise
        for other in given[:-1]:
            for line in doubt_lines(other.checkpoint):
                talk(line)
        if with_config:
            options = options._replace(format=save.SHARD_FORMAT, with_config=True)
        else:
            with with_folder_hint(given[-1].path, options.out):
                options = with_last(options, given[-1].checkpoint)

        def make(survey: Survey, limits: Limits) -> RewriteReport:
            report = job(
                [other.survey for other in given[:-1]],
                survey,
                limits,
                request,
            )
            return as_format_of(report, options, limits, drop_other=drop_other)

        report = rewrite_checkpoint(given[-1], make, options)
    return report._replace(warnings=(*talk.lines, *report.warnings))


def _tell_twice(given: Sequence[Input], tell: Callable[[str], None]) -> None:
    """Say which checkpoints were given more than once."""
    names = list(map(path_of, given))
    # Two paths may be one file by a link; bytes and open files have no path.
    real: list[object] = [
        id(one) if name in NAMELESS else os.path.realpath(name)
        for one, name in zip(given, names, strict=True)
    ]
    for index, name in enumerate(names):
        count = real.count(real[index])
        if count > 1 and real.index(real[index]) == index:
            tell(f"{show(name, None)}: given {count} times, and counts so often")


def _last_of(
    names: Sequence[Input],
    count: int,
    options: WriteOptions,
    tell: Callable[[str], None],
) -> list[str]:
    """The last checkpoints of the series in a folder: those whose names differ in
    numbers only. Raises CkptError.
    """
    if len(names) != 1:
        raise UsageError("--last takes one folder", hint="--last N FOLDER")
    folder = path_of(names[0])
    if not os.path.isdir(folder):
        raise UsageError("not a folder, which --last takes", path=folder)
    if count < 2:
        raise UsageError(f"--last {count}: not a number from 2")
    items, _ = split_items(
        find_items_to_open([folder], options.limits, plugins=options.plugins)
    )
    # The mean of an earlier run may lie in the same folder: it is none of its sources.
    out = None if options.out is None else os.path.realpath(options.out)
    found: list[str] = []
    for item in items:
        if item.folder is None or item.skipped is not None:
            continue
        if os.path.realpath(item.path) != out:
            found.append(item.path)
    series: dict[str, list[str]] = {}
    for path in found:
        form = re.sub(r"\d+", "*", os.path.relpath(path, folder))
        series.setdefault(form, []).append(path)
    numbered = {name: paths for name, paths in series.items() if "*" in name}
    long = [name for name, paths in numbered.items() if len(paths) >= count]
    if not long:
        name = max(numbered, key=lambda name: len(numbered[name]), default=None)
        most = 0 if name is None else len(numbered[name])
        what = f" ({show(name, 80)})" if name is not None else ""
        problem = (
            f"has {counted_noun(most, 'numbered checkpoint')}{what}, and --last asks "
            f"for {count}"
        )
        raise UsageError(problem, path=folder)
    # Two series of one length: nothing says which of them is meant.
    if len(long) > 1:
        listed = and_more(
            [f"{show(name, 60)} ({len(numbered[name])})" for name in long], 4
        )
        problem = f"has {len(long)} series of {count} checkpoints or more: {listed}"
        raise UsageError(problem, path=folder, hint="name the checkpoints")
    # By their numbers: step 900 comes before step 1000.
    chosen = sorted(numbered[long[0]], key=natural_sort_key)
    rest: list[str] = []
    for path in found:
        if path not in chosen:
            rest.append(show(os.path.relpath(path, folder), 60))
    text = f"the last {count} of {len(chosen)} {show(long[0], 80)}"
    beside = f"; not of this series: {and_more(rest, 4)}" if rest else ""
    tell(f"{show(folder, None)}: {text}{beside}")
    return chosen[-count:]
