"""`ckpt rehome`: which devices become which, one call, one file."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from ckpt.bytes.far import is_url
from ckpt.commands.rehome.api import rehome
from ckpt.commands.rewriting.text import DRY_RUN
from ckpt.formats import is_folder_format, save
from ckpt.model.errors import NoRewriteError, UsageError
from ckpt.model.text import counted_noun, show, show_literal, size_text
from ckpt.surface.api.walk import list_archives
from ckpt.surface.cli import output
from ckpt.surface.cli.inputs import named_paths, run_for_each, tell
from ckpt.surface.cli.results import ResultOptions, rewrite_paths, split_options

_WITH_UNDO = ("dry_run", "limits", "plugins")


def command(paths: list[str], *, undo: bool, **keywords: Any) -> int:
    """Move tensors to other devices, by default to the CPU. No tensor byte changes.

    A bare torch.load puts every tensor on the device where it was saved. The result
    loads anywhere.

    \b
    ckpt rehome train.pth -o train.cpu.pth
    ckpt rehome runs/*.pth --in-place
    """
    options, own = split_options("rehome", paths, keywords)
    if undo:
        # Options that say how a result is written mean nothing here.
        alone = {
            name
            for name, value in options.keywords.items()
            if value and name not in _WITH_UNDO
        }
        if alone or options.places.out is not None or options.json or any(own.values()):
            raise UsageError("--undo goes alone, or with --dry-run")
        names = named_paths(paths, options.files_from, "change")
        url = next(filter(is_url, names), None)
        if url is not None:
            raise UsageError(
                "--undo takes local files only", path=url, hint="download it first"
            )
        return _undo_all(names, options)
    return rewrite_paths(paths, partial(rehome, **own), options)


def _undo_all(names: list[str], options: ResultOptions) -> int:
    """Take back the last rewrite of each file, with -r of those in folders that have
    one.
    """
    folders = [name for name in names if options.recursive and os.path.isdir(name)]
    # Files that were found in a folder, and may never have been rewritten.
    inside: dict[str, str] = {}
    for folder in folders:
        inside |= dict.fromkeys(list_archives(folder), folder)
    never: list[str] = []

    def one(path: str) -> int:
        try:
            return _undo_rewrite(path, options)
        except NoRewriteError:
            if path not in inside:
                raise
            never.append(path)
            return 0

    files = [path for path in dict.fromkeys([*names, *inside]) if path not in folders]
    code = run_for_each(files, one, tell_rest=True)
    if folders:
        # A folder in which nothing was taken back is an error, and not silence.
        if code == 0 and len(never) == len(files):
            problem = "no file in this folder has an in-place rewrite to undo"
            raise NoRewriteError(problem, path=folders[0])
        if never:
            was = "was" if len(never) == 1 else "were"
            output.write_conclusion(
                f"{counted_noun(len(never), 'other file')} {was} never rewritten in "
                "place"
            )
    return code


def _undo_rewrite(path: str, options: ResultOptions) -> int:
    if is_folder_format(path, options.places.limits):
        raise UsageError(
            "--undo is for zip files: of a DCP the old .metadata was replaced",
            path=path,
        )
    done = save.undo_rewrite(
        path, options.places.limits, dry_run=options.places.dry_run
    )
    name, cut = show(path, None), size_text(done.before - done.after)
    if options.places.dry_run:
        rest = f"{cut} behind it would be cut off"
        lines = [
            f"{name}: a whole archive ends at byte {done.after:,}, {rest}",
            DRY_RUN,
        ]
    else:
        lines = [f"{name}: took back the last rewrite, {cut} cut off"]
    output.write_lines([[(line, "")] for line in lines])
    for line in done.warnings:
        tell(f"{name}: {show_literal(line)}")
    return 0
