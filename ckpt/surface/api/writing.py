"""The keywords of the functions that write, and the options that they make."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from ckpt.bytes.far import is_url
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.formats import is_folder_format, save, writer_of, written_formats
from ckpt.hooks import load_hook
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits, number_of
from ckpt.model.names import without_index
from ckpt.surface.api.advice import SUFFIXES
from ckpt.surface.api.checkpoint import Checkpoint as Opened
from ckpt.surface.api.keywords import Path, limits_only
from ckpt.surface.api.opening import Input
from ckpt.surface.api.progress import Progress
from ckpt.surface.api.rewriting import COMMANDS, WriteOptions, place_named

if TYPE_CHECKING:
    from typing import TypedDict

    from ckpt.commands.rewriting.stages import Stage

    class Writing(TypedDict, total=False):
        """The keywords of every function that writes. They are the options of the
        commands.

        `out` is a path, or a folder that takes the result by its name; without it,
        `in_place` or `dry_run` must be set. `force` replaces a file. `verify` is `crc`
        or `torch`. `progress` gets the bytes done and all bytes, `tell` each warning as
        it is found; the report holds them too.
        """

        out: Path | None
        in_place: bool
        copy: bool
        force: bool
        parents: bool
        dry_run: bool
        verify: Literal["crc", "torch"] | None
        keep_damaged: bool
        keep_code: bool
        partial: bool
        limits: Limits | None
        plugins: bool
        progress: Progress | None
        tell: Callable[[str], None] | None


def options_of(
    writing: Writing, source: object, command: str, **more: Any
) -> WriteOptions:
    """The options of a command on a source, whose limits hold where none are given.

    Raises TypeError for a keyword that no function has, UsageError.
    """
    given: dict[str, Any] = dict(writing)
    out = given.pop("out", None)
    limits = given.pop("limits", None)
    limits_only(limits)
    # An open checkpoint was read under its own limits.
    if isinstance(source, Opened):
        limits = limits or source.limits
        given["plugins"] = given.get("plugins", False) or source.plugins
    text = None if out is None else os.fsdecode(out)
    if text is not None and "\0" in text:
        raise UsageError("out= is no file name: it holds a NUL")
    # As Python itself refuses a keyword.
    unknown = given.keys() - _WRITING
    if unknown:
        raise TypeError(
            f"{command}() got an unexpected keyword argument '{min(unknown)}'"
        )
    suffix = SUFFIXES[command]
    options = WriteOptions(
        out=place_named(text),
        limits=limits or Limits(),
        command=COMMANDS[command],
        suffix=suffix,
        **given,
    )
    return options._replace(**more)


_WRITING = frozenset(
    [
        "in_place",
        "copy",
        "force",
        "parents",
        "dry_run",
        "verify",
        "keep_damaged",
        "keep_code",
        "partial",
        "plugins",
        "progress",
        "tell",
    ]
)


OWN_LAYOUT = "transformers"
"""The word for the layout of transformers in the place of a recipe."""


def names_own_layout(checkpoint: Checkpoint, recipe: Path | None) -> bool:
    """Tell whether `recipe` is no file, but the word for the layout of transformers
    that a GGUF leads to by itself.
    """
    return checkpoint.traits.has_own_metadata and os.fspath(recipe or "") == OWN_LAYOUT


def refuse_format(to: str | None) -> None:
    """Raise UsageError for a format in the place of a device."""
    if to in written_formats():
        raise UsageError(
            f"--to {to}: a format, and not a device", hint=f"--format {to}"
        )


def moved_report(
    report: RewriteReport, to: str | None, limits: Limits, format: str | None
) -> RewriteReport:
    """The report whose result is moved to a device, where one is asked for: what is
    left out is not moved.

    Raises UsageError, and UnsupportedError for a device in a format that keeps none.
    """
    from ckpt.commands.rehome.rehome import OBJECTS_HINT, moves, refuse_device, rehome

    if to is None:
        return report
    # Edited as a second stage: the device belongs to the format of the result.
    targets = moves(to, [])
    if format is not None:
        refuse_device(targets, save.traits_of(format), report.source.path)
    move = rehome(Survey(report.result), targets, limits)
    # The command that was typed has no --objects.
    left_alone = [
        row._replace(hint="ckpt rehome --objects changes it")
        if row.hint == OBJECTS_HINT
        else row
        for row in move.left_alone
    ]
    return report._replace(
        result=move.result,
        changes=(*report.changes, *move.changes),
        left_alone=(*report.left_alone, *left_alone),
    )


def strip_stages(
    is_asked: bool, prefix: str | None, section: str | None, limits: Limits
) -> list[Stage]:
    """The stage that takes prefixes off the names, where it is asked for."""
    from ckpt.commands.rewriting.stages import strip_first

    if not is_asked and prefix is None:
        return []
    return [lambda survey: strip_first(survey, limits, prefix=prefix, section=section)]


def with_like(
    options: WriteOptions, like: Input | None, section: str | None
) -> WriteOptions:
    """The options with another save whose tensors the source must have."""
    # Here: few runs have another save to compare with.
    from ckpt.surface.api.stored import like_at

    if like is None:
        return options
    other = like_at(like, options.limits, section, plugins=options.plugins)
    return options._replace(like=other, like_section=section)


def with_format(
    options: WriteOptions,
    to: str | None,
    shard_size: str | int | None,
    *,
    plain: bool,
    with_config: bool = False,
) -> WriteOptions:
    """The options with the format that --format, --shard-size and the ending of OUT ask
    for. Raises UsageError.

    A folder with its config gets safetensors, unless another format is asked for.
    """
    options = options._replace(with_config=with_config)
    # transformers and diffusers look for safetensors first.
    if with_config and shard_size is None:
        to = to or save.SHARD_FORMAT
    is_pickle = to is not None and save.traits_of(save.format_for("", to)).is_pickle
    suffix = ""
    if plain or is_pickle:
        suffix = SUFFIXES["convert --plain" if plain else "convert"]
    # The ending that an error proposes for OUT.
    ending = None if plain or is_pickle else ".safetensors"
    options = options._replace(suffix=suffix, ending=ending, plain=plain)
    # The root itself stays `/`.
    out = None if options.out is None else options.out.rstrip("/") or options.out
    if shard_size is None:
        if out is None and to is None:
            return options
        is_folder = (
            out is not None
            and options.is_folder
            and not is_folder_format(out, options.limits)
        )
        # OUT is a folder with --with-config, which is checked with its place.
        named = "" if is_folder or with_config else out or ""
        return options._replace(format=save.format_for(named, to))
    shard_bytes = number_of(str(shard_size))
    if not shard_bytes:
        raise UsageError(
            f"--shard-size {shard_size}: not a number of bytes", hint="as in 5GB"
        )
    if to not in (None, save.SHARD_FORMAT):
        raise UsageError(
            f"--shard-size goes with {save.SHARD_FORMAT}, not with --format {to}"
        )
    if out is not None and not os.path.isdir(out) and not with_config:
        # Raises where the ending of OUT belongs to another format.
        save.format_for(without_index(out), save.SHARD_FORMAT)
    return options._replace(shard_bytes=shard_bytes, format=save.SHARD_FORMAT)


def with_recipe(
    options: WriteOptions,
    recipe: Path | None,
    format: str | None,
    shard_size: str | int | None,
    *,
    reverse: bool,
    plain: bool,
    optimizer: bool,
    with_config: bool,
) -> WriteOptions:
    """The options with the format of the result, or with the files of ranks that a
    recipe makes, which go into a folder of that name.

    They are one checkpoint where --format, --shard-size or the ending of OUT asks for
    one. Raises CkptError.
    """
    out = None if options.out is None else options.out.rstrip("/")
    is_one = format is not None or shard_size is not None or with_config
    # A recipe for ranks is asked only where nothing else says what OUT is.
    ranks = None
    if recipe is not None and out and not is_one and not save.has_known_ending(out):
        ranks = _ranks_made(os.fspath(recipe), options.limits, reverse=reverse)
    if ranks is None:
        return with_format(
            options, format, shard_size, plain=plain, with_config=with_config
        )
    if optimizer:
        problem = "--optimizer: the files of ranks get the model alone"
        raise UsageError(problem, hint="-o OUT.pth")
    if is_url(options.out or ""):
        problem = "files of ranks are written on this machine only"
        raise UsageError(problem, path=options.out)
    return options._replace(format=ranks.format, rank_files=ranks, plain=plain)


def _ranks_made(
    recipe: str | bytes, limits: Limits, *, reverse: bool
) -> save.FilesOfRanks | None:
    """The files of ranks that a recipe makes, or None for one that makes none. Raises
    CkptError.
    """
    path = os.fsdecode(recipe)
    if path == OWN_LAYOUT:
        return None
    made: save.FilesOfRanks | None = load_hook("layouts").ranks_made(
        path, limits, reverse=reverse
    )
    return made


def with_last(options: WriteOptions, last: Checkpoint) -> WriteOptions:
    """The options with the format of the last checkpoint, or of OUT's ending where it
    belongs to another one.
    """
    out = options.out
    if out is None or (options.is_folder and not is_folder_format(out, options.limits)):
        return options
    # A program gives its tensors alone, so that its format does not stay.
    try:
        format = None if last.traits.names_are_code else save.same_format(out, last)
    except UsageError:
        format = None
    format = format or save.format_for(out, None, endings=save.ENDINGS)
    return options._replace(
        format=format, ranks=1 if save.traits_of(format).is_folder else None
    )


def as_format_of(
    report: RewriteReport,
    options: WriteOptions,
    limits: Limits,
    *,
    drop_other: bool = False,
) -> RewriteReport:
    """The report with its result in the format that the options name, as `convert`
    makes it, and as it is where they name none. With `drop_other` what the format
    cannot hold is left out. Raises CkptError.
    """
    if options.format is None:
        return report
    from ckpt.commands.convert.convert import as_format

    return as_format(
        report,
        options.format,
        save.traits_of(options.format),
        limits,
        writer_of(options.format).unfit,
        options.ranks,
        drop_other=drop_other,
    )
