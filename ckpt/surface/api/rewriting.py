"""Writing a changed checkpoint: its place, the change, the checks, the file. Each place
is checked before anything is written.

The functions of `writing` differ in the change alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpt import formats
from ckpt.bytes import target
from ckpt.bytes.far import is_url
from ckpt.bytes.location import path_beside
from ckpt.bytes.target import make_parents
from ckpt.commands.rewriting.edited import with_ties
from ckpt.commands.rewriting.report import Filled, Leftover, RewriteReport, with_unread
from ckpt.commands.rewriting.sets import (
    weights_file,
    whole_part,
    with_files,
    without_copies,
)
from ckpt.evidence.survey import Survey
from ckpt.evidence.weights import emptied_findings
from ckpt.formats import save
from ckpt.formats.save import (
    Check,
    FilesOfRanks,
    SavedFile,
    check_bytes,
    check_weights_only,
)
from ckpt.formats.sharded.writer import set_pattern
from ckpt.hooks import load_hook
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.columns import row_looks
from ckpt.model.errors import (
    CkptError,
    CodeError,
    LossError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
    UsageError,
    about,
)
from ckpt.model.limits import Limits
from ckpt.model.names import without_index
from ckpt.model.rows import NamedTuple
from ckpt.model.text import (
    and_more,
    be_verb,
    pasted_path,
    show,
    show_literal,
    size_text,
)
from ckpt.pickle.calls import Code, code_of
from ckpt.surface.api.checkpoint import Checkpoint as Opened
from ckpt.surface.api.handle import read
from ckpt.surface.api.keywords import Path, doubt_lines
from ckpt.surface.api.opening import NAMELESS, Input, at_hand, naming_loss, path_of
from ckpt.surface.api.progress import Meter
from ckpt.surface.api.steps import step_of

if TYPE_CHECKING:
    from ckpt.commands.sum.sums import Like
    from ckpt.surface.api.config_files import ConfigFile
    from ckpt.surface.api.steps import Tell

Make = Callable[[Survey, Limits], RewriteReport]
"""A change: a survey of a checkpoint, or of its whole part, becomes the report on what
is to be written.
"""
Open = Callable[[str, bool], Checkpoint]
"""Opens a path, of which with the flag only a part need be there."""


class WriteCommand(NamedTuple):
    """A command that writes, by its name, and what it takes.

    Without `many`, all that it reads makes one result. `weights_file` is set where it
    changes the file of the weights of a folder, and not all of the folder. With `urls`
    it reads from URLs, and writes to one. With `whole` its result stands for all of the
    source.
    """

    name: str
    many: bool = True
    in_place: bool = False
    partial: bool = True
    keep_code: bool = True
    weights_file: bool = False
    urls: bool = False
    whole: bool = False


COMMANDS = {
    row.name: row
    for row in (
        WriteCommand("rehome", in_place=True, weights_file=True, urls=True),
        WriteCommand("strip", in_place=True, weights_file=True),
        WriteCommand("rename", in_place=True, weights_file=True),
        WriteCommand(
            "set", many=False, in_place=True, partial=False, weights_file=True
        ),
        WriteCommand("slim", keep_code=False, urls=True),
        WriteCommand("convert", urls=True, whole=True),
        WriteCommand("warmstart", many=False, partial=False, weights_file=True),
        WriteCommand("salvage", partial=False, urls=True),
        WriteCommand("average", many=False, partial=False, keep_code=False),
        WriteCommand("merge", many=False, partial=False, keep_code=False, urls=True),
    )
}


class WriteOptions(NamedTuple):
    """The keywords of a function that writes, and what the function adds to them.

    A suggested path is the path of the input with `suffix` before its ending, or with
    `ending` in place of it.
    """

    out: str | None = None
    in_place: bool = False
    copy: bool = False
    force: bool = False
    dry_run: bool = False
    verify: str | None = None
    keep_damaged: bool = False
    keep_code: bool = False
    partial: bool = False
    """True when the whole tensors of an incomplete checkpoint are written."""
    parents: bool = False
    """True when the folders of the result are made."""
    limits: Limits = Limits()
    plugins: bool = False
    progress: Callable[[int, int], None] | None = None
    tell: Tell | None = None
    command: WriteCommand = WriteCommand("")
    suffix: str = ""
    ending: str | None = None
    format: str | None = None
    plain: bool = False
    """True when the result must load with weights_only=True."""
    shard_bytes: int | None = None
    ranks: int | None = None
    """Into how many files the tensors of a distributed checkpoint are cut."""
    rank_files: FilesOfRanks | None = None
    """The files of ranks that the result is written as, in the folder `out`."""
    link: bool = False
    """True when data files that stay as they are become hard links."""
    like: Like | None = None
    """Another save whose tensors the source must have."""
    like_section: str | None = None
    beside: tuple[object, ...] = ()
    """Other files that are read, such as a recipe: the result replaces none."""
    open: Open | None = None
    """A way to open the source other than `formats.open`."""
    in_folder: bool = False
    """True when `out` is a folder, also where it is not there yet."""
    with_config: bool = False
    """True when config.json and the tokenizer go into the folder `out` with the
    weights.
    """
    dequantize: bool = False
    """True when quantised weights become floats, so that config.json must not call them
    quantised.
    """

    @property
    def is_folder(self) -> bool:
        """Tell whether `out` is a folder that takes the result. A URL says so with a
        slash at its end, and so does a folder that `parents` makes.
        """
        if self.out is None or self.in_folder:
            return self.in_folder
        has_slash = self.out.endswith("/")
        if is_url(self.out):
            return has_slash
        is_made = self.parents and has_slash and not os.path.lexists(self.out[:-1])
        return is_made or os.path.isdir(self.out)


def check(options: WriteOptions, *inputs: object) -> None:
    """Raise UsageError for keywords that contradict each other, and for a URL where
    only local files are taken.

    `inputs` are the paths that are read.
    """
    if options.out is not None and options.in_place:
        raise UsageError("-o and --in-place exclude each other")
    if options.copy and not options.in_place:
        raise UsageError("--copy goes with --in-place")
    # A result appears whole or not at all, which stdout cannot.
    if options.out == "-":
        raise UsageError(
            "-o -: the result is a file, and not stdout",
            hint="-o OUT, or -o ./- for a file of this name",
        )
    if options.verify not in (None, "crc", "torch"):
        raise UsageError(f"--verify {options.verify}: not a check", hint="crc or torch")
    if options.in_place and not options.command.in_place:
        raise UsageError(
            f"ckpt {options.command.name} writes a new file", hint="-o OUT"
        )
    if options.out is not None and is_url(options.out):
        if not options.command.urls:
            raise UsageError(
                f"ckpt {options.command.name} writes local files only", path=options.out
            )
        # torch.load opens no URL.
        if options.verify == "torch":
            raise UsageError(
                "--verify torch opens local files only",
                path=options.out,
                hint="--verify crc",
            )
    # Said before a target asks for --force, which would not replace a source either.
    for given in inputs:
        if not options.force and target.is_same_file(given, options.out):
            hint = "--in-place" if options.command.in_place else "-o another file"
            what = _SOURCE_STAYS if len(inputs) == 1 else _INPUT_STAYS
            raise UsageError(what, path=options.out, hint=hint)
    if options.out is not None and not options.force:
        target.refuse_inputs(options.out, options.beside)
    url = next(
        (text for text in inputs if isinstance(text, str) and is_url(text)), None
    )
    if url is not None and (options.in_place or not options.command.urls):
        way = "--in-place" if options.in_place else f"ckpt {options.command.name}"
        raise UsageError(
            f"{way} takes local files only", path=url, hint="download it first"
        )


def place_named(out: str | None) -> str | None:
    """OUT as it is meant. A slash behind the URL of a distributed checkpoint says
    nothing more.
    """
    if out is not None and is_url(out) and out.endswith(".dcp/"):
        return out.rstrip("/")
    return out


# --- the place of the result ----------------------------------------------------------


def place_of(path: str, options: WriteOptions, below: str | None = None) -> str | None:
    """Return the place of the result for the input at a path, or None where `out` says
    nothing of it.

    In a folder `out` it has the name of the input, or the path `below`.
    """
    if options.in_place or options.out is None:
        return None
    if options.rank_files is not None:
        return options.out
    # A folder OUT takes several results, unless the result itself is a folder.
    as_folder = is_folder_made(path, options)
    if not options.is_folder or (
        as_folder and formats.is_folder_format(options.out, options.limits)
    ):
        return options.out
    below = below or os.path.basename(os.path.normpath(path))
    if os.path.isdir(path) and not as_folder:
        below += _result_ending(path, options)
    folder, name = os.path.split(below)
    return os.path.join(
        options.out,
        folder,
        save.with_format_ending(name, options.format) if options.format else name,
    )


def _result_ending(path: str, options: WriteOptions) -> str:
    """The ending for the result of a folder, which has none itself."""
    try:
        with opened(path, options) as checkpoint:
            beside_it = formats.out_beside(checkpoint, options.suffix, same_format=True)
    except CkptError:  # which is told when its turn comes
        return ""
    return os.path.splitext(beside_it or "")[1]


def target_of(
    path: str, out: str | None, options: WriteOptions
) -> target.Target | None:
    """Return the target of one result, or None when it is changed in place, in shards
    or not at all.
    """
    if out is None or options.shard_bytes:
        return None
    if options.rank_files is not None:
        return target.folder_target(
            out, options.rank_files.owns, force=options.force, parents=options.parents
        )
    if is_folder_made(path, options):
        return target.folder_target(
            out, formats.is_owned, force=options.force, parents=options.parents
        )
    return target.target(out, force=options.force, parents=options.parents)


def is_folder_made(path: str, options: WriteOptions) -> bool:
    """Tell whether the result for one input is a folder.

    Its format is one, or it keeps the format of a source in a folder.
    """
    if options.format is not None:
        return save.traits_of(options.format).is_folder
    if options.out is None:
        return False
    try:
        if not save.traits_of(save.format_for(options.out.rstrip("/"), None)).is_folder:
            return False  # and nothing is opened to see that
    except UsageError:
        pass  # its ending names no format, so the format stays
    return formats.is_folder_format(path, options.limits)


def opened(path: str, options: WriteOptions) -> Checkpoint:
    """The checkpoint at a path, also where files of it are missing if the options say
    so. Raises CkptError.
    """
    if options.open is not None:
        return options.open(path, options.partial)
    return read(path, options.limits, plugins=options.plugins, partial=options.partial)


def _check_place(given: Opened) -> None:
    """Raise CkptError where the path of an open checkpoint does not lead to its file.

    A change in place would replace another file: a newer save, or one of the same name
    in another working folder.
    """
    if not given.has_path:
        raise UsageError(
            "has no place: it was not opened by its path",
            path=given.path,
            hint="-o OUT",
        )
    # By device and inode: the path may lead to another file by now.
    for source in given.checkpoint.sources:
        try:
            is_there = source.status is None or os.path.samestat(
                os.stat(source.name), source.status
            )
        except OSError:
            is_there = False
        if not is_there:
            raise NotOpenedError("it is not the file that was opened", path=source.name)


def _ask_where(checkpoint: Checkpoint, options: WriteOptions) -> UsageError:
    """The error that names where the result could go."""
    if checkpoint.path in NAMELESS:
        return UsageError("where to write?", path=checkpoint.path, hint="-o OUT")
    # Ready to paste: a free path with the right ending.
    where = _suggested_out(checkpoint, options)
    if options.ending is not None and checkpoint.traits.is_folder:  # of two formats
        same = options._replace(ending=None, suffix=options.suffix or ".converted")
        where = ", or ".join(filter(None, (_suggested_out(checkpoint, same), where)))
    ways = [
        where,
        "--in-place" if options.command.in_place and can_stay(checkpoint) else None,
    ]
    hint = ", or ".join(way for way in ways if way is not None)
    return UsageError("where to write?", path=checkpoint.path, hint=hint or None)


def _suggested_out(checkpoint: Checkpoint, options: WriteOptions) -> str | None:
    """`-o` with a free path beside the input, ready to paste."""
    if options.ending is not None:
        path = path_beside(
            checkpoint.path, options.suffix, (options.ending,), other=False
        )
    else:
        path = formats.out_beside(checkpoint, options.suffix, same_format=True)
    out = None if path is None else pasted_path(path)
    return None if out is None else f"-o {out}"


def can_stay(checkpoint: Checkpoint) -> bool:
    """Tell whether ckpt changes such a file where it is."""
    if checkpoint.traits.is_folder:
        return save.can_relist(checkpoint)
    return checkpoint.source is not None and save.can_keep_format(checkpoint)


_SOURCE_STAYS = "OUT is the source, which --force does not replace"
_INPUT_STAYS = "OUT is one of the checkpoints, which --force does not replace"


def _refuse_source(
    report: RewriteReport, to: target.Target | None, options: WriteOptions
) -> None:
    """Raise UsageError where OUT is a file that is read: a mistaken edit would take its
    source with it.
    """
    if to is None or not to.is_replacing:
        return
    source = report.source
    # A file that is read stays whole until the new one is complete, but then it is
    # gone.
    if save.is_source(source, to.real):
        can = options.command.in_place and can_stay(source)
        hint = "-o another file"
        if can and (source.traits.in_place or not report.left_out):
            hint = "--in-place"
        raise UsageError(_SOURCE_STAYS, path=to.path, hint=hint)
    # `average` and `warmstart` read several checkpoints.
    is_input = any(
        os.path.lexists(row.path) and os.path.samefile(row.path, to.real)
        for row in report.sources
    )
    target.refuse_inputs(to.path, options.beside)
    if is_input or save.is_source(report.result, to.real):
        other = (
            "PRETRAINED" if report.command == "warmstart" else "one of the checkpoints"
        )
        raise UsageError(
            f"OUT is {other}, which --force does not replace",
            path=to.path,
            hint="-o another file",
        )


def _left_over(
    to: target.Target | None, options: WriteOptions
) -> list[tuple[str, int]]:
    """Return the files that killed runs left beside the files that are to be
    written.
    """
    if to is not None:
        return target.left_over(to.real)
    if options.shard_bytes and options.out is not None:
        folder, stem = _shard_place(options.out)
        files = (
            rf"(?:{set_pattern(stem)}|{re.escape(stem)}\.safetensors(?:\.index\.json)?)"
        )
        return target.left_over(os.path.join(folder, stem), files)
    return []


def _shard_place(out: str) -> tuple[str, str]:
    """The folder of the shards and how their names begin: `model` in a folder, else the
    name of OUT.
    """
    if is_url(out) and out.endswith("/"):
        return out.rstrip("/"), "model"
    if os.path.isdir(out):
        return out, "model"
    folder, name = os.path.split(out)
    return folder, without_index(name).removesuffix(".safetensors")


# --- the change -----------------------------------------------------------------------


def _make_report(survey: Survey, make: Make, options: WriteOptions) -> RewriteReport:
    """Return what the command makes of a checkpoint, or with `partial` of its whole
    tensors.

    Raises LossError for an incomplete checkpoint.
    """
    # Another save says which tensors this one should have.
    comparison = None
    if options.like is not None:
        from ckpt.commands.sum.sums import likeness

        comparison = likeness(
            with_ties(survey, options.limits), options.like, options.like_section
        )
    if not options.partial:
        if comparison is not None and comparison.rows:
            raise LossError(comparison.text, path=survey.path)
        return make(survey, options.limits)
    # From here on with --partial: the whole tensors are changed and written.
    whole, lost = whole_part(survey.checkpoint, options.limits, comparison)
    report = make(Survey(whole), options.limits)
    if (
        not lost
        and not survey.checkpoint.account.is_partial
        and not (comparison and comparison.rows)
    ):
        return report
    extra = [
        Leftover(name, "not in the other save")
        for name in (comparison.extra if comparison else ())
    ]
    return report._replace(
        source=survey.checkpoint,
        left_out=(*report.left_out, *lost),
        left_alone=(*report.left_alone, *extra),
        is_partial=True,
    )


@contextmanager
def _advised_partial(options: WriteOptions, plan: Callable[[], None]) -> Iterator[None]:
    """Name --partial in the error of a part that is missing, where `plan`, which does
    all but write with it, succeeds.
    """
    try:
        yield
    except (UnreadableError, LossError) as error:
        # An error with a way out of its own keeps it.
        asks = error.hint is None or error.hint.endswith("?")
        if (
            options.command.partial
            and not options.partial
            and asks
            and not isinstance(error, NotOpenedError)
        ):
            try:
                plan()
            except CkptError:
                raise error from None
            hint = f"{error.hint} " if error.hint else ""
            error.hint = f"{hint}--partial writes the whole tensors only"
        raise


@contextmanager
def _advising_errors(survey: Survey, options: WriteOptions) -> Iterator[None]:
    """Give an error the command that works instead."""
    try:
        yield
    except CkptError as error:
        if error.way is not None:
            from ckpt.surface.api.advice import (
                add_way_out,
            )  # here: only an error pays for it

            add_way_out(error, survey, options.limits, _out_of_advice(options))
        raise


def _out_of_advice(options: WriteOptions) -> str | None:
    """Return where the command that works instead writes: the OUT of a command whose
    result it makes, or None where it only prepares another one.
    """
    is_result = options.command.name in ("convert", "slim")
    return options.out if is_result and not options.with_config else None


class Talk:
    """The warnings about a file, each told at once."""

    def __init__(self, tell: Tell | None) -> None:
        self.lines: list[str] = []
        self._tell = tell

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if self._tell is not None:
            self._tell(line)

    def about(self, path: str, lines: Iterable[str]) -> None:
        """Tell what is to be known about a file."""
        for line in lines:
            self(f"{show(path, None)}: {show_literal(line)}")


def rewrite_checkpoint(
    given: Input, make: Make, options: WriteOptions
) -> RewriteReport:
    """Read a checkpoint, change it, write the result, and return the report. Raises
    CkptError.

    Where it raises, nothing was written.
    """
    path = path_of(given)
    with about(path):
        if not isinstance(given, (str, os.PathLike, Opened)):
            with at_hand(given, options.limits, plugins=options.plugins) as opened:
                return _rewrite_given(opened, path, make, options)
        return _rewrite_given(given, path, make, options)


def _rewrite_given(
    given: Path | Opened, path: str, make: Make, options: WriteOptions
) -> RewriteReport:
    talk = Talk(options.tell)
    is_open = isinstance(given, Opened)
    check(options, path)
    if isinstance(given, Opened):
        given.check_open()
    # A folder of steps stands for its newest whole step.
    if not is_open and options.command.many and not options.in_place:
        path = step_of(
            path,
            options.limits,
            partial=options.partial,
            plugins=options.plugins,
            tell=talk,
        )
    if options.with_config:
        options = _with_place(path, options)
    # Opened only to propose a path in the error.
    if options.out is None and not options.in_place and not options.dry_run:
        if isinstance(given, Opened):
            raise _ask_where(given.checkpoint, options)
        with opened(path, options) as checkpoint:
            _refuse_own_metadata(checkpoint, options)
            raise _ask_where(checkpoint, options)
    if options.in_place and isinstance(given, Opened):
        _check_place(given)
    out = place_of(path, options)
    if out != options.out and path in NAMELESS:
        raise UsageError(
            "has no name for a result in a folder", path=path, hint="-o OUT"
        )
    if out != options.out:
        # The place of the result in a folder may be the file that is read.
        check(options._replace(out=out), path)
    to = target_of(path, out, options)
    # A run that was killed left its temporary file, which may be large.
    for other, size in _left_over(to, options):
        talk.about(other, [f"{size_text(size)} left over from a run that was killed"])

    def plan() -> None:
        """Do all that `partial` does before it writes. Raises CkptError where it would
        refuse.
        """
        partly = options._replace(partial=True)
        with opened(path, partly) as checkpoint:
            survey = Survey(
                weights_file(checkpoint) if options.command.weights_file else checkpoint
            )
            report = _make_report(survey, make, partly)
            if not report.is_partial:
                raise UnsupportedError("nothing is missing")
            name = _result_format(report.result, to, options)
            if save.is_written(name):
                save.refuse_losses(report.result, name)

    # An input that cannot be opened whole may be opened in part.
    # If that is no way out, `verify` names the loss.
    lossy = None if options.partial else path
    with naming_loss(lossy), _advised_partial(options, plan):
        if isinstance(given, Opened):
            checkpoint = given.checkpoint
        else:
            checkpoint = opened(path, options)
    try:
        for line in doubt_lines(checkpoint):
            talk(line)
        _refuse_own_metadata(checkpoint, options)
        chosen = (
            weights_file(checkpoint) if options.command.weights_file else checkpoint
        )
        survey = Survey(chosen)
        mixed = survey.mixed
        talk.about(checkpoint.path, [] if mixed is None else [mixed.text])
        with _advising_errors(survey, options), _advised_partial(options, plan):
            return _rewrite_survey(checkpoint, survey, make, to, options, talk)
    finally:
        if not is_open:
            checkpoint.close()


def _refuse_own_metadata(checkpoint: Checkpoint, options: WriteOptions) -> None:
    """Raise UsageError for a command that changes a file of another program and keeps
    all else in it.
    """
    if checkpoint.traits.has_own_metadata and options.command.name != "convert":
        from ckpt.surface.api.advice import (
            add_way_out,
        )  # here: only an error pays for it

        way: tuple[str, ...] = ("convert", "--dtype", "bfloat16")
        hint = None
        if checkpoint.account.lost_names:
            way = ("salvage",)
        elif options.command.name == "merge":  # adapters have transformers' names
            way = ("convert", "--recipe", "transformers", *way[1:])
            hint = "merge into the model that it was made of"
        error = UsageError(
            f"ckpt {options.command.name} keeps the format, and ckpt does not write "
            f"{checkpoint.traits.label}",
            path=checkpoint.path,
            hint=hint,
            way=way,
        )
        out = _out_of_advice(options)
        add_way_out(error, Survey(checkpoint), options.limits, out)
        raise error


def _refuse_bare_name(weights: Checkpoint, options: WriteOptions) -> None:
    """Raise UsageError for an OUT without an ending, where the source is a folder: the
    result is its file of weights alone, and no folder.
    """
    out = options.out
    if out is None or options.format is not None or os.path.splitext(out)[1]:
        return
    if out.endswith("/") or os.path.isdir(out):
        return
    ending = formats.written_formats()[weights.format].suffixes[0]
    named = pasted_path(out + ending)
    raise UsageError(
        "the ending names no format, and one file is written, no folder",
        path=out,
        hint=None if named is None else f"-o {named}",
    )


def _with_place(path: str, options: WriteOptions) -> WriteOptions:
    """The options with the place of the weights in the folder that gets the config
    files too.
    """
    from ckpt.surface.api.config_files import weights_place  # here: few ask for it

    place = weights_place(path, options.out, options.format or "")
    return options._replace(out=place, parents=True)


def _has_own_loader(source: Checkpoint) -> bool:
    """Tell whether a function of its own reads a checkpoint, and nothing else that ckpt
    writes.

    A live model has no file, and only ckpt puts the ranks of FSDP together. Files that
    torch.load opens, in a folder too, are no format of their own.
    """
    traits = source.traits
    if save.is_written(source.format) or traits.is_live or not traits.is_pickle:
        return False
    is_plain = traits.load.startswith("torch.load(") and not traits.is_archive
    return bool(traits.load) and not is_plain


def _rewrite_survey(
    checkpoint: Checkpoint,
    survey: Survey,
    make: Make,
    to: target.Target | None,
    options: WriteOptions,
    talk: Talk,
) -> RewriteReport:
    """Change and write one checkpoint; `survey` is of its file of weights where only
    that is changed.
    """
    limits = options.limits
    # Unread parts are said before copies are left out.
    made = with_unread(
        _make_report(survey, make, options), is_whole=options.command.whole
    )
    report = without_copies(made, limits)
    if not options.in_place:
        report = with_files(report, checkpoint)
        if not options.with_config and checkpoint.members:
            from ckpt.surface.api.config_files import with_texts_left  # here: folders

            report = with_texts_left(report, checkpoint)
    _refuse_source(report, to, options)
    if survey.checkpoint is not checkpoint:
        _refuse_bare_name(survey.checkpoint, options)
    # Written all the same: an empty model may be meant.
    empty = [row.message for row in emptied_findings(survey) if row.level == "error"]
    talk.about(checkpoint.path, empty)
    if to is not None and to.warning:
        talk.about(to.path, [to.warning])
    if options.link:
        _check_link(report, _result_format(report.result, to, options))
    # A pickle may run code where it is loaded; other formats cannot.
    if _is_pickle(report, to, options):
        name = _result_format(report.result, to, options)
        effects = code_of(
            report.source,
            report.result,
            keeps_program=save.is_written(name) and save.traits_of(name).names_are_code,
        )
        if effects.runs and not options.keep_code:
            raise _code_error(report, survey, limits, effects)
        if effects != Code() and to is not None and not options.dry_run:
            # Writing refuses them too, but after the warnings: a refusal is one line.
            save.refuse_losses(report.result, name)
        _tell_code(report, effects, talk)
    # The files that go along are read before anything is written.
    carried: list[ConfigFile] = []
    if options.with_config and options.out is not None:
        from ckpt.surface.api.config_files import (
            config_files,
            other_dtypes,
            with_config_values,
        )

        folder = os.path.dirname(options.out)
        carried, code = config_files(
            checkpoint.path, folder, limits, force=options.force
        )
        if options.dequantize:
            carried, report = load_hook("quantised").with_plain_configs(carried, report)
        if report.config:
            carried, report = with_config_values(carried, report)
        names = tuple(row.name for row in carried)
        keys = {
            str(member.key) for member in checkpoint.members if member.file in names
        }
        left_out = [row for row in report.left_out if row.name not in keys.union(names)]
        left_alone = (*report.left_alone, *other_dtypes(carried, report))
        report = report._replace(
            left_out=(*left_out, *code), left_alone=left_alone, carried=names
        )
    saved = None
    # A warm start that loads too little writes nothing.
    refusal = "" if report.coverage is None else report.coverage.refusal
    if not options.dry_run and not refusal:
        saved = _write_result(report, to, options)
        if (
            options.verify == "torch"
            and saved is not None
            and "torch" not in dict(saved.checks)
        ):
            runs = (
                save.is_written(saved.format)
                and save.traits_of(saved.format).fills_a_state
            )
            why = "that needs weights_only=False"
            if runs:
                why = "its loader runs the pickles in it"
            if report.result.traits.names_are_code:
                why = "that would compile its code"
            text = (
                f"torch did not load it, because {why}; every byte was compared instead"
            )
            talk.about(saved.path, [text])
    if saved is not None:
        for file in carried:
            file.write()
        if report.command != "convert" and _has_own_loader(report.source):
            old = report.source.traits.label
            talk.about(
                saved.path,
                [
                    (
                        f"its format is {saved.format}, which the loader of a {old} "
                        "does not read"
                    )
                ],
            )
        talk.about(saved.path, saved.warnings)
        if saved.damaged:
            listed = and_more([show(name, 80) for name in saved.damaged], 3)
            verb = be_verb(saved.damaged)
            talk.about(
                saved.path,
                [
                    (
                        f"{listed} {verb} damaged: the bytes do not match the recorded "
                        "checksum"
                    )
                ],
            )
        if options.link:
            later = f"a later save into {show(survey.path, None)} changes it"
            talk.about(saved.path, [f"its data files are hard links: {later}"])
    return report._replace(
        saved=saved, is_dry_run=options.dry_run, warnings=tuple(talk.lines)
    )


def _check_link(report: RewriteReport, format: str) -> None:
    """Raise UsageError where no data file stays as it is."""
    if not (report.source.traits.is_folder and save.traits_of(format).is_folder):
        raise UsageError(
            "--link goes with distributed checkpoints, as input and as OUT",
            path=report.source.path,
        )


def _result_format(
    checkpoint: Checkpoint, to: target.Target | None, options: WriteOptions
) -> str:
    """The format of the result."""
    if to is not None and options.format is None:
        return save.same_format(to.path, checkpoint)
    return options.format or checkpoint.format


def _is_pickle(
    report: RewriteReport, to: target.Target | None, options: WriteOptions
) -> bool:
    """Tell whether a pickle is written, or would be without `dry_run`."""
    if options.in_place and not report.changes:
        return False
    name = _result_format(report.result, to, options)
    if save.is_written(name):
        return save.traits_of(name).is_pickle
    return report.result.traits.is_pickle


def _filled_values(report: RewriteReport) -> Filled | None:
    """The other file that gave values, which may be what is strange."""
    return next((row for row in report.filled if row.has_values), None)


def _strange_path(report: RewriteReport) -> str:
    """The path of the file that what is strange comes from."""
    filled = _filled_values(report)
    if filled is not None and all(
        row.group == "known" for row in report.source.imports
    ):
        return filled.path
    return report.source.path


def _code_error(
    report: RewriteReport, survey: Survey, limits: Limits, code: Code
) -> CodeError:
    """The error for a result that runs code when it is loaded."""
    from ckpt.surface.api.advice import Ways  # here: only an error pays for it

    if _filled_values(report) is None:
        way = Ways(survey, limits).way(("weights",)).command
    else:
        way = None
    weights = "" if way is None else f"; for the weights alone: {way}"
    return CodeError(
        f"loading the result would run {and_more(list(code.runs), 1)}",
        path=_strange_path(report),
        hint=f"--keep-code writes it all the same{weights}",
    )


def _tell_code(report: RewriteReport, code: Code, talk: Talk) -> None:
    """Tell what loading the result does beyond what ckpt knows."""
    path = _strange_path(report)
    if code.runs:
        talk.about(
            path, [f"DANGER: loading the result runs {and_more(list(code.runs), 1)}"]
        )
    for verb, texts in (
        ("calls", code.calls),
        ("imports", code.imports),
        ("sets", code.sets),
    ):
        if texts:
            listed = and_more(list(texts), 2)
            talk.about(
                path, [f"loading the result {verb} {listed}, which ckpt does not know"]
            )


# --- the file -------------------------------------------------------------------------


def _write_result(
    report: RewriteReport, to: target.Target | None, options: WriteOptions
) -> SavedFile | None:
    checkpoint, limits = report.result, options.limits
    format = _result_format(checkpoint, to, options)
    # Checks beside the one of our own reader.
    further: dict[str, Check] = {}
    if options.verify == "crc":
        further["crc"] = check_bytes
    elif options.verify == "torch":
        further["torch"] = load_hook("live check").check_by_torch
    if options.plain and save.traits_of(format).is_pickle:
        further["weights_only"] = check_weights_only
    if options.shard_bytes and options.out is not None:
        folder, stem = _shard_place(options.out)

        def shard(name: str) -> target.Target:
            return target.target(
                os.path.join(folder, name), force=options.force, parents=options.parents
            )

        if options.parents:
            make_parents(shard(f"{stem}.safetensors.index.json"))
        return save.save_shards(
            checkpoint,
            shard,
            stem,
            options.shard_bytes,
            limits,
            progress=_result_meter(checkpoint, options),
            checks=further,
            keep_damaged=options.keep_damaged,
        )
    if to is None:
        if not report.changes:
            return None  # it is as it should be already
        if checkpoint.traits.is_folder and save.is_written(checkpoint.format):
            return _relist_in_place(report, options)
        if not can_stay(checkpoint):
            raise UnsupportedError(
                f"{checkpoint.format} files cannot be changed in place",
                path=checkpoint.path,
                hint="-o OUT",
            )
        # The new pickle is appended: instant, whatever the size of the file.
        if checkpoint.traits.in_place and not options.copy and not further:
            return save.append(checkpoint, limits)
        _refuse_loss(report)
        assert checkpoint.source is not None
        to = target.target(checkpoint.source.name, force=True)
        format = checkpoint.format
    else:
        if save.traits_of(format).is_folder:
            # Here: most files pay nothing for it.
            items = load_hook("distributed items")
            checkpoint = items.placed(checkpoint, options.ranks, link=options.link)
        if options.parents:
            make_parents(to)
    if options.rank_files is not None:
        return save.save_ranks(
            checkpoint,
            to,
            options.rank_files,
            limits,
            progress=_result_meter(checkpoint, options),
            checks=further,
            keep_damaged=options.keep_damaged,
        )
    return save.save_checkpoint(
        checkpoint,
        to,
        format,
        limits,
        progress=_result_meter(checkpoint, options),
        checks=further,
        keep_damaged=options.keep_damaged,
    )


def _result_meter(checkpoint: Checkpoint, options: WriteOptions) -> Meter | None:
    total = sum(storage.nbytes for storage in row_looks(checkpoint.storages))
    return None if options.progress is None else Meter(options.progress, total)


def _relist_in_place(report: RewriteReport, options: WriteOptions) -> SavedFile:
    """Change the names of a distributed checkpoint in place. Raises CkptError."""
    checkpoint = report.result
    if options.copy or options.verify is not None:
        # Both are about bytes of tensors, which are not touched.
        option = "--copy" if options.copy else "--verify"
        raise UsageError(
            f"{option} does not go with --in-place here: no data file is written",
            path=checkpoint.path,
        )
    _refuse_loss(report)
    return save.relist_items(checkpoint, options.limits)


def _refuse_loss(report: RewriteReport) -> None:
    """Raise LossError where a change in place would lose something."""
    if report.left_out:
        raise LossError(
            f"in place, this would be lost: {show(report.left_out[0].what, 100)}",
            path=report.result.path,
            hint="-o OUT",
        )
