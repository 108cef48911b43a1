"""The table of formats, and `open`, which finds the format of a file by content and
reads it.

The first format that recognises a file reads it; `foreign` names and refuses the rest.
Formats of other distributions are asked only when no format of the table recognises the
file.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Protocol, cast

from ckpt.bytes.location import Location, is_cached_model, locate, path_beside
from ckpt.formats.common.zip_layout import LOCAL_MAGIC, begins_as_torch
from ckpt.formats.format import Format, Probe
from ckpt.hooks import is_installed
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import (
    CkptError,
    LinkError,
    MixedStepsError,
    NotOpenedError,
    UnreadableError,
    UsageError,
    is_stopped,
)
from ckpt.model.limits import Budget, Limits
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.text import show

if TYPE_CHECKING:
    from ckpt.formats.format import (
        CanAppend,
        CanList,
        CanRelist,
        CanSalvage,
        CanVerify,
        CanWrite,
    )


class _Table:
    """Formats by their modules, each imported when it is reached: most files are one of
    the first.

    A format whose extension was taken out is passed over.
    """

    def __init__(self, *modules: str) -> None:
        self.modules = modules

    def __iter__(self) -> Iterator[Format]:
        for module in self.modules:
            if is_installed(module):
                yield cast("_Holder", import_module(module)).FORMAT


class _Holder(Protocol):
    FORMAT: Format


FORMATS = _Table(
    "ckpt.ext.dcp",
    "ckpt.ext.deepspeed",
    "ckpt.ext.folders",
    "ckpt.ext.dcp.hf",
    "ckpt.ext.fsdp",
    "ckpt.formats.sharded",
    "ckpt.formats.torch_zip.unpacked",
    "ckpt.ext.torchscript",
    "ckpt.formats.torch_zip",
    "ckpt.formats.torch_zip.opt_in",
    "ckpt.formats.torch_legacy",
    "ckpt.formats.safetensors",
    "ckpt.ext.torchscript.torchscript_1_0",
    "ckpt.ext.pt2",
    "ckpt.ext.archives.torch_package",
    "ckpt.ext.old",
    "ckpt.ext.archives",
    "ckpt.ext.pickles",
    "ckpt.ext.gguf",
)
"""Formats of several files come first: they also take a file that points to them, such
as `latest`.
"""


def open(
    path: str | Location,
    limits: Limits | None = None,
    *,
    plugins: bool = False,
    partial: bool = False,
    names_from: str | None = None,
    keep_damaged: bool = False,
) -> Checkpoint:
    """The checkpoint at a path: a file, an index of shards, or a folder that holds one.

    Nothing that the file names is run, imported or written, and no tensor data is read.
    With `plugins`, formats of other distributions (entry points `ckpt.formats`) are
    asked for a file that no built-in format recognises. With `partial`, what is left of
    a file that is cut off or damaged is read too, and of a set of files, with notices
    that list the tensors that are not whole. `names_from` is the path of another save,
    after which the items of an interrupted one are named. With `keep_damaged`, the
    names of a file are read too where they do not match their checksum. Raises
    CkptError with the path in front.
    """
    other = None if names_from is None else locate(names_from)
    rest = Rest(other, keep_damaged)
    location = locate(path) if isinstance(path, str) else path
    return _open_location(
        location, limits or Limits(), plugins, "", partial=partial, rest=rest
    )


class Rest(NamedTuple):
    """The options of `open` for what is left of a checkpoint."""

    names_from: Location | None
    keep_damaged: bool


def _open_location(
    location: Location,
    limits: Limits,
    plugins: bool,
    mark: str,
    budget: Budget | None = None,
    *,
    partial: bool = False,
    rest: Rest | None = None,
) -> Checkpoint:
    was_collecting = gc.isenabled()
    # A tree of a million nodes has no garbage: the collector would double the time.
    gc.disable()
    probe = None
    try:
        probe = probe_at(location, limits, plugins, mark, budget, partial=partial)
        if rest is not None:
            probe.names_from, probe.keep_damaged = rest
        checkpoint = _read_probe(probe, limits, plugins)
        if not mark and _file_name(location.name).startswith(_RANKED):
            # Here: few files have such a name.
            from ckpt.formats.common.parallel import with_rank

            checkpoint = with_rank(checkpoint, probe)
        if probe.names_from is not None:
            checkpoint.close()
            raise UsageError(
                "--names-from goes with a distributed checkpoint without .metadata"
            )
        if probe.source is not None and probe.source not in checkpoint.sources:
            # An index: the checkpoint holds the files that it names.
            probe.close()
        else:
            for source in checkpoint.sources:
                source.check_unchanged()
        return checkpoint
    except BaseException as error:
        if isinstance(error, CkptError):
            if probe is not None:
                error = _advise_undo(error, probe)
            if error.path is None:
                error.path = location.name
        if probe is not None:
            probe.close()
        raise error
    finally:
        if was_collecting:
            gc.enable()


_RANKED = ("consolidated.", "mp_rank_", "model_optim_rng", "model-rank-")
"""Beginnings of the names of files of one rank."""
_WHOLE = (NotOpenedError, LinkError, MixedStepsError)
"""Errors that say nothing of damage in the bytes of a file."""


def _read_probe(probe: Probe, limits: Limits, plugins: bool) -> Checkpoint:
    """The checkpoint at a probe, or with `partial` what is left of it. Raises
    CkptError.
    """
    trial = probe.budget.copy()
    try:
        return format_of(probe, plugins).read(probe, limits)
    except UnreadableError as error:
        if not probe.partial or probe.source is None or isinstance(error, _WHOLE):
            raise
        probe.budget.become(trial)
        checkpoint = _salvage_checkpoint(probe, limits, plugins)
        if checkpoint is None:
            raise
        damage = error.problem
        if probe.archive is not None and probe.archive.cause:
            damage = probe.archive.cause
        # One of several files says which.
        why = f"{show(_file_name(probe.path), 80)}: {damage}" if probe.mark else damage
        notices = _notices_with_reason(checkpoint.account.notices, why)
        account = checkpoint.account._replace(notices=notices)
        # is_edited: it is written anew, for a copy would be as damaged.
        return replace(checkpoint, account=account, is_edited=True, damage=damage)


def _file_name(path: str) -> str:
    """The name of a file at the end of its path."""
    return path.replace("\\", "/").rpartition("/")[2]


def _salvage_checkpoint(
    probe: Probe, limits: Limits, plugins: bool
) -> Checkpoint | None:
    """The checkpoint that is left of a file that no reader takes, or None. Raises
    CkptError.
    """
    if probe.head.startswith(LOCAL_MAGIC):
        # Here: only a damaged file pays for it.
        from ckpt.formats.common.recovered import recovered

        probe.archive = recovered(probe.file, limits, keep_damaged=probe.keep_damaged)
        return format_of(probe, plugins).read(probe, limits)
    for format in _asked_formats(plugins):
        salvager = salvager_of(format)
        checkpoint = None if salvager is None else salvager.salvage(probe, limits)
        if checkpoint is not None:
            return checkpoint
    return None


def _notices_with_reason(notices: Iterable[Notice], why: str) -> tuple[Notice, ...]:
    """The notices, in which the account of what is lost begins with the reason."""
    out: list[Notice] = []
    is_said = False
    for notice in notices:
        if notice.code == "incomplete":
            is_said = True
            notice = notice._replace(message=f"{why}; {notice.message}")
        out.append(notice)
    if not is_said:
        out.append(Notice("container", why))
    return tuple(out)


def refusal_error(
    path: str, limits: Limits, *, plugins: bool = False
) -> CkptError | None:
    """Return the error that says why no format reads a path, or None if a format
    recognises it.
    """
    probe = None
    try:
        probe = probe_at(locate(path), limits, plugins)
        format = format_of(probe, plugins)
        if format is _foreign_format():
            format.read(probe, limits)
    except CkptError as error:
        error.path = error.path or path
        return error
    finally:
        if probe is not None:
            probe.close()
    return None


def is_checkpoint_file(
    path: str, limits: Limits, *, plugins: bool = False, cut_off: bool = True
) -> bool:
    """Tell whether a file is a checkpoint or a pickle, or holds one.

    The first bytes decide, or the directory of an archive, which one that was `cut_off`
    lacks. A file that points to a checkpoint of several files is not a checkpoint
    itself. Raises NotOpenedError.
    """
    probe = None
    try:
        probe = probe_at(locate(path), limits, plugins)
        single = (format for format in _asked_formats(plugins) if format.files is None)
        if any(format.sniff(probe) for format in single):
            return True
        return _holds_checkpoints(probe)
    except NotOpenedError:
        raise
    except CkptError:
        # A zip archive that is damaged.
        if probe is None:
            return False
        if cut_off and begins_as_torch(probe.head):
            return True
        return _holds_checkpoints(probe)
    finally:
        if probe is not None:
            probe.close()


def files_of_folder(
    path: str, limits: Limits, *, plugins: bool = False
) -> tuple[str, ...] | None:
    """Return the files of a folder that is one checkpoint, as paths below it, or None
    for another folder.
    """
    probe = probe_at(locate(path), limits)
    try:
        for format in _asked_formats(plugins):
            names = None if format.files is None else format.files(probe)
            if names is not None:
                return tuple(names)
    except CkptError:
        return None
    return None


def is_folder_format(path: str, limits: Limits) -> bool:
    """Tell whether a path leads to a checkpoint that is a folder of its own: a
    distributed one.
    """
    try:
        probe = probe_at(locate(path), limits)
    except CkptError:
        return False
    try:
        if not probe.is_folder and not is_owned(_file_name(probe.path)):
            return False
        folder = probe.location if probe.is_folder else probe.location.parent()
        return any(map(is_owned, folder.names()))
    except NotOpenedError:
        return False
    finally:
        probe.close()


def is_owned(name: str) -> bool:
    """Tell whether a file of this name belongs to a checkpoint that is a folder.

    Such a file is removed when another checkpoint takes its place. A folder in it,
    whose name ends with a slash, never belongs to one.
    """
    return not name.endswith("/") and any(owns(name) for owns in _owner_checks())


@cache
def _owner_checks() -> tuple[Callable[[str], bool], ...]:
    """Return `owns` of each format that ckpt writes as a folder: asked once, for
    folders have 10,000 names.
    """
    return tuple(
        format.owns for format in written_formats().values() if format.owns is not None
    )


def _advise_undo(error: CkptError, probe: Probe) -> CkptError:
    """The error of a zip archive names --undo where that brings a whole archive
    back.
    """
    if not isinstance(error, UnreadableError) or isinstance(error, NotOpenedError):
        return error
    # An error of another file: of a shard, or of one that an index names.
    if error.path not in (None, probe.path):
        return error
    if probe.source is None or not probe.head.startswith(LOCAL_MAGIC):
        return error
    # Here: only a damaged file pays for it.
    from ckpt.formats.common.appended import explained

    return explained(error, probe.source, probe.limits)


def probe_at(
    location: Location,
    limits: Limits,
    plugins: bool = False,
    mark: str = "",
    budget: Budget | None = None,
    *,
    partial: bool = False,
) -> Probe:
    """The probe of a location, for all formats. Raises CkptError."""
    if is_cached_model(location.name):
        # Here: few paths lead into a cache.
        from ckpt.formats.common.cached import snapshot_of

        location = snapshot_of(location, limits)
    # One for all shards: a set of many small ones is bounded too.
    shared = budget or Budget(limits)

    def inner(other: Location, mark: str) -> Checkpoint:
        return _open_location(other, limits, plugins, mark, shared, partial=partial)

    return Probe(location, limits, inner, mark, shared, partial)


def format_of(probe: Probe, plugins: bool = False) -> Format:
    """The format that recognises a file; else `foreign`, which names and refuses it."""
    for format in _asked_formats(plugins):
        if format.sniff(probe):
            return format
    return _foreign_format()


def _holds_checkpoints(probe: Probe) -> bool:
    from ckpt.formats.foreign import holds_checkpoints

    return holds_checkpoints(probe)


def _foreign_format() -> Format:
    # Here: only what no format reads pays for it.
    from ckpt.formats.foreign import FORMAT

    return FORMAT


def _asked_formats(plugins: bool) -> Iterator[Format]:
    yield from FORMATS
    if plugins:
        yield from plugin_formats()


def by_name(name: str) -> Format | None:
    """The format with this name: one of the table, or one of another distribution that
    was loaded before.
    """
    return next((format for format in known_formats() if name == format.name), None)


def known_formats() -> Iterator[Format]:
    """Yield the formats of the table, then the formats of other distributions that were
    loaded before.
    """
    yield from FORMATS
    yield from _loaded


def written_formats() -> dict[str, Format]:
    """The formats of the table that ckpt writes, by name, the usual one first, folders
    last.

    A format whose code goes with its names is none of them: ckpt changes its files, and
    makes no new ones.
    """
    written = {format.name: format for format in FORMATS if _is_written(format)}
    return dict(sorted(written.items(), key=lambda row: row[1].traits.is_folder))


def _is_written(format: Format) -> bool:
    return bool(format.writer) and not format.traits.names_are_code


def out_beside(checkpoint: Checkpoint, suffix: str, *, same_format: bool) -> str | None:
    """Return a free path for a result beside its source, with the ending of a format
    that ckpt writes for it.

    With `same_format` the source's own ending stays, unless it belongs to another
    format. A folder has the ending that makes the result one.
    """
    path = checkpoint.path
    # Not from `written_formats`, which imports the modules of all formats.
    own = next(
        (row for row in FORMATS if checkpoint.format == row.name and _is_written(row)),
        None,
    )
    if own is None or not same_format:
        traits = checkpoint.traits
        is_tensors_only = not traits.is_pickle and not traits.names_are_code
        usual = written_format("safetensors" if is_tensors_only else "torch-zip")
        return path_beside(path, suffix, usual.suffixes)
    if own.traits.is_folder:
        return path_beside(path, suffix, own.suffixes)
    if path.endswith(own.suffixes):
        return path_beside(path, suffix, ())
    suffixes = [format.suffixes for format in written_formats().values()]
    other_endings = tuple(chain.from_iterable(suffixes))
    # Any other ending stays: people call checkpoints as they like.
    endings = own.suffixes if path.endswith(other_endings) else ()
    return path_beside(path, suffix, endings)


def written_format(name: str) -> Format:
    """The format of a name that ckpt writes. Raises UsageError when there is none."""
    format = by_name(name)
    if format is None or not format.writer:
        raise UsageError(
            f"{name}: ckpt does not write this format",
            hint="formats: " + " ".join(written_formats()),
        )
    return format


def writer_of(name: str) -> CanWrite:
    """The module that writes a format. Raises UsageError when there is none."""
    return cast("CanWrite", _import_format_module(written_format(name).writer))


def appender_of(name: str) -> CanAppend | None:
    """The module that rewrites a format in place; None when the file must be written
    anew.
    """
    format = by_name(name)
    if format is None or not format.traits.in_place:
        return None
    return cast("CanAppend", _import_format_module(format.writer))


def relister_of(name: str) -> CanRelist | None:
    """The module that gives the items of a folder other names in place; None when the
    folder must be written anew.
    """
    format = by_name(name)
    if format is None or not format.traits.is_folder or not format.writer:
        return None
    writer = _import_format_module(format.writer)
    return cast("CanRelist", writer) if hasattr(writer, "relisting") else None


def verifier_of(format: Format) -> CanVerify | None:
    """The module that checks the bytes of a format, None when there is none."""
    if not format.verifier:
        return None
    return cast("CanVerify", _import_format_module(format.verifier))


def lister_of(format: Format) -> CanList | None:
    """The module that lists what the files of a format record, None when they record no
    checksums.
    """
    if not format.verifier:
        return None
    verifier = _import_format_module(format.verifier)
    return cast("CanList", verifier) if hasattr(verifier, "recorded") else None


def salvager_of(format: Format) -> CanSalvage | None:
    """The module that knows what is left of a cut file of a format, None when there is
    none.
    """
    if not format.salvager:
        return None
    return cast("CanSalvage", _import_format_module(format.salvager))


def _import_format_module(name: str) -> object:
    """A module that a format names. No file and no user names one."""
    return import_module(name)


GROUP = "ckpt.formats"
_loaded: list[Format] = []


@cache
def plugin_formats() -> tuple[Format, ...]:
    """The formats of other distributions, by name. Raises UsageError for one that does
    not load.
    """
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            format = entry.load()
            if not isinstance(format, Format):
                raise TypeError(f"{entry.value} is no ckpt.formats.format.Format")
            _loaded.append(format)
        except Exception as error:
            # Whatever the code of the distribution raises. But who asks about many
            # files must not take a stop by the fence for a file that nobody knows.
            if is_stopped(error):
                raise
            raise UsageError(
                (
                    f"the format {show(entry.name, 60)} does not load: "
                    f"{show(str(error), 200)}"
                ),
                hint="CKPT_NO_PLUGINS=1 turns plugins off",
            ) from None
    return tuple(_loaded)
