"""The functions that write: `rehome`, `strip`, `rename`, `slim`, `convert`, `warmstart`, `salvage`, `average`.

Each is the command of its name: the keywords are the options, and the report is what the command prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import IOBase
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ckpt.bytes.executor import current
from ckpt.commands.rewriting.report import Change, RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.formats import is_folder_format, save, writer_of, written_formats
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import FolderError, LossError, UnsupportedError, UsageError
from ckpt.model.limits import Limits, number_of
from ckpt.model.names import Globs, natural
from ckpt.model.text import and_more, plural, show
from ckpt.surface.api.advice import SUFFIXES
from ckpt.surface.api.checkpoint import Checkpoint as Opened
from ckpt.surface.api.extensions import adapters, layouts, quantised
from ckpt.surface.api.handle import read
from ckpt.surface.api.keywords import (
    Path,
    Progress,
    Texts,
    doubts,
    globs_of,
    limits_only,
    model_of,
    text_only,
    texts,
)
from ckpt.surface.api.opening import NAMELESS, Input, at_hand, path_of
from ckpt.surface.api.rewriting import COMMANDS, Open, Talk, WriteOptions, place_named, rewrite
from ckpt.surface.api.rewriting import check as check_options
from ckpt.surface.api.stored import like_at
from ckpt.surface.api.walk import looked, parted

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    from ckpt.commands.rewriting.report import Coverage
    from ckpt.commands.rewriting.stages import Stage
    from ckpt.ext.warmstart.warmstart import Options

    class Writing(TypedDict, total=False):
        """The keywords of every function that writes. They are the options of the commands.

        `out` is a path, or a folder that takes the result by its name; without it, `in_place` or `dry_run` must be
        set. `force` replaces a file. `verify` is `crc` or `torch`. `progress` gets the bytes done and all bytes,
        `tell` each warning as it is found; the report holds them too.
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


def options_of(writing: Writing, source: object, command: str, **more: Any) -> WriteOptions:
    """The options of a command on a source, whose limits hold where none are given.

    Raises TypeError for a keyword that no function has, UsageError.
    """
    given: dict[str, Any] = dict(writing)
    out = given.pop("out", None)
    limits = given.pop("limits", None)
    limits_only(limits)
    if isinstance(source, Opened):
        limits = limits or source.limits
        given["plugins"] = given.get("plugins", False) or source.plugins
    text = None if out is None else os.fsdecode(out)
    if text is not None and "\0" in text:
        raise UsageError("out= is no file name: it holds a NUL")
    unknown = given.keys() - _WRITING
    if unknown:
        raise TypeError(f"{command}() got an unexpected keyword argument '{min(unknown)}'")
    suffix = SUFFIXES[command]
    options = WriteOptions(
        out=place_named(text), limits=limits or Limits(), command=COMMANDS[command], suffix=suffix, **given
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


def rehome(
    source: Input,
    *,
    to: str | None = None,
    map: Texts = (),
    objects: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Move tensors to other devices, by default to the CPU. No tensor byte changes.

    `map` are texts such as `cuda:0=cuda:1`. With `objects`, devices in values change too. The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.commands.rehome.rehome import moves
    from ckpt.commands.rehome.rehome import rehome as job

    text_only(to=to)
    targets = moves(to, texts(map))
    tag = "moved" if texts(map) else (to or "cpu").replace(":", "")
    suffix = SUFFIXES["rehome"] if tag == "cpu" else f".{tag}"
    options = options_of(writing, source, "rehome", suffix=suffix)
    return rewrite(source, lambda survey, limits: job(survey, targets, limits, objects=objects), options)


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
    """Strip the prefixes of wrappers from the names of tensors, or `prefix`. Two names never become one.

    The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.commands.strip.strip import strip as job

    text_only(prefix=prefix, section=section)
    globs = globs_of(include, exclude)
    options = options_of(writing, source, "strip", link=link)
    return rewrite(
        source,
        lambda survey, limits: job(survey, limits, prefix=prefix, section=section, select=globs),
        options,
    )


def rename(
    source: Input,
    *,
    sub: Texts,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    link: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Rename the tensors of a model by substitutions such as `s/^bert\\\\.//`, one after the other.

    The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.commands.rename.rename import rename as job
    from ckpt.commands.rename.rename import substitution

    text_only(section=section)
    globs = globs_of(include, exclude)
    subs = [substitution(text) for text in texts(sub)]
    options = options_of(writing, source, "rename", link=link)
    return rewrite(
        source, lambda survey, limits: job(survey, subs, limits, section=section, select=globs), options
    )


def slim(
    source: Input,
    *,
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
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Keep the weights of the model, drop the optimizer and the rest, and pack storages.

    `keep` names sections and values that stay too. Before that, `strip` takes the prefixes of wrappers off the names, or
    `prefix`, and `to` moves the tensors to a device. The result loads with weights_only=True; where `out` ends with
    .safetensors it is that. `with_config` makes `out` a folder with config.json and the tokenizer beside the weights.
    The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.commands.rewriting.stages import in_stages, with_kept_prefixes
    from ckpt.commands.slim.slim import slim as job

    text_only(section=section, prefix=prefix, to=to)
    _refuse_format(to)
    globs = globs_of(include, exclude)
    options = options_of(writing, source, "slim", plain=True)
    options = _with_like(options, like, section)
    if with_config or (options.out is not None and options.out.endswith(f".{save.SHARD_FORMAT}")):
        options = options._replace(format=save.SHARD_FORMAT, with_config=with_config)

    def make(survey: Survey, limits: Limits) -> RewriteReport:
        stages = _stripping(strip, prefix, section, limits)
        stages.append(
            lambda survey: job(
                survey, limits, section=section, select=globs, keep=texts(keep), drop_other=drop_other
            )
        )
        report = _moved(in_stages(survey, stages), to, limits, options.format)
        report = with_kept_prefixes(report, limits)
        if options.format is None:
            return report
        return as_format_of(report, options.format, limits)

    return rewrite(source, make, options)


def _refuse_format(to: str | None) -> None:
    """Raise UsageError for a format in the place of a device."""
    if to in written_formats():
        raise UsageError(f"--to {to}: a format, and not a device", hint=f"--format {to}")


def _moved(report: RewriteReport, to: str | None, limits: Limits, format: str | None) -> RewriteReport:
    """The report whose result is moved to a device, where one is asked for: what is left out is not moved.

    Raises UsageError, and UnsupportedError for a device in a format that keeps none.
    """
    from ckpt.commands.rehome.rehome import moves, refuse_device, rehome

    if to is None:
        return report
    targets = moves(to, [])
    if format is not None:
        refuse_device(targets, save.traits_of(format), report.source.path)
    move = rehome(Survey(report.result), targets, limits)
    return report._replace(
        result=move.result,
        changes=(*report.changes, *move.changes),
        left_alone=(*report.left_alone, *move.left_alone),
    )


def _stripping(is_asked: bool, prefix: str | None, section: str | None, limits: Limits) -> list[Stage]:
    """The stage that takes prefixes off the names, where it is asked for."""
    from ckpt.commands.rewriting.stages import strip_first

    if not is_asked and prefix is None:
        return []
    return [lambda survey: strip_first(survey, limits, prefix=prefix, section=section)]


def _with_like(options: WriteOptions, like: Input | None, section: str | None) -> WriteOptions:
    """The options with another save whose tensors the source must have."""
    if like is None:
        return options
    other = like_at(like, options.limits, section, plugins=options.plugins)
    return options._replace(like=other, like_section=section)


# --- convert ----------------------------------------------------------------------------------------------------------

MOST_RANKS = 10_000
"""Of a checkpoint that is written: each rank is a file."""


def convert(
    source: Input,
    *,
    format: str | None = None,
    plain: bool = False,
    dtype: str | None = None,
    dequantize: bool = False,
    encoding: str | None = None,
    shard_size: str | int | None = None,
    weights: str | None = None,
    ranks: int | None = None,
    optimizer_keys: str | None = None,
    complete_optimizer: bool = False,
    strip: bool = False,
    prefix: str | None = None,
    to: str | None = None,
    adapter_names: str | None = None,
    base: Input | None = None,
    model: Any = None,
    arg: Texts = (),
    like: Input | None = None,
    recipe: Path | None = None,
    reverse: bool = False,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    drop_other: bool = False,
    with_config: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Write a checkpoint in another format, or with `plain`, without the classes of its author.

    `format` is torch-zip, torch-legacy, safetensors or dcp; without it the ending of `out` decides. Before that, `strip`
    takes the prefixes of wrappers off the names, or `prefix`, and `to` moves the tensors to a device. `with_config` makes `out` a folder with config.json and
    the tokenizer beside the weights. `adapter_names` is peft or kohya, and gives a LoRA the names of that program; `base` is the
    checkpoint that says where the dots of kohya's names are. `dequantize` makes floats of quantised weights. `model` is a torch.nn.Module, or the text
    `FILE.py:FACTORY`, of which `arg` are the arguments. `recipe` is the path of a recipe of `ckpt.recipe`, which turns the model
    into another layout, or with `reverse` back. The other keywords are in `Writing`. Raises CkptError; LossError where the format cannot hold everything.
    """
    from ckpt.commands.convert.convert import convert as job
    from ckpt.commands.rewriting.sets import refuse_lost, with_flattening
    from ckpt.commands.rewriting.stages import in_stages, with_kept_prefixes

    text_only(prefix=prefix, to=to)
    _refuse_format(to)
    text_only(format=format, dtype=dtype, encoding=encoding, weights=weights, section=section)
    text_only(optimizer_keys=optimizer_keys)
    if weights is not None and section is not None:
        raise UsageError("--weights and --section exclude each other")
    globs = globs_of(include, exclude)
    if reverse and recipe is None:
        raise UsageError("--reverse goes with --recipe")
    live = model_of(model, arg)
    options = options_of(writing, source, "convert")
    options = with_format(options, format, shard_size, plain=plain, with_config=with_config)
    options = _with_ranks(options, ranks, in_part=bool(globs) or section is not None)
    options = _with_like(options, like, section)._replace(dequantize=dequantize)
    naming = _naming(adapter_names, base, options)

    def make(survey: Survey, limits: Limits) -> RewriteReport:
        written = options.format or save.own_format(survey.checkpoint)
        traits = save.traits_of(written)
        if traits.is_pickle:
            refuse_lost(survey.checkpoint)
        stages = _stripping(strip, prefix, section, limits)
        if dequantize:
            stages.insert(0, lambda survey: _dequantised(survey, limits, dtype, section, globs))
        stages += [] if naming is None else [naming]
        if recipe is not None:
            plain_traits = save.traits_of(save.SHARD_FORMAT)
            stages.append(
                layouts().recipe_stage(
                    recipe, save.SHARD_FORMAT, plain_traits, limits, reverse=reverse, section=section
                )
            )
        inner = None if recipe is not None else section  # what a recipe makes is the model alone
        stages.append(
            lambda survey: job(
                survey,
                written,
                traits,
                limits,
                writer_of(written).unfit,
                plain=plain,
                dtype=dtype,
                encoding=encoding,
                section=inner,
                select=globs,
                weights=weights,
                drop_other=drop_other,
                optimizer_keys=optimizer_keys,
                complete_optimizer=complete_optimizer,
            )
        )
        known = survey if live is None else Survey(survey.checkpoint, live)
        report = _moved(in_stages(known, stages), to, limits, written)
        if recipe is not None:
            report = _with_own_format(report, written)
        report = with_kept_prefixes(report, limits)
        if traits.is_folder:
            report = with_flattening(report, options.ranks, limits)
        return report

    done = rewrite(source, make, options)
    return done if naming is None else naming.finish(done)


def _dequantised(
    survey: Survey, limits: Limits, dtype: str | None, section: str | None, select: Globs
) -> RewriteReport:
    """The checkpoint with its quantised weights as floats. Raises CkptError."""
    from ckpt.commands.convert.convert import dtype_of

    report: RewriteReport = quantised().dequantised(
        survey, limits, dtype_of(dtype), section=section, select=select
    )
    return report


def _with_own_format(report: RewriteReport, written: str) -> RewriteReport:
    """The report with the change from the format that was read: what a recipe makes has another one on the way."""
    changes = [change for change in report.changes if change.kind != "format"]
    if report.source.format != written:
        count = len(report.result.tensors)
        changes.append(Change("format", report.source.format, written, count, "tensor"))
    return report._replace(changes=tuple(changes))


class _Naming(Protocol):
    """A stage that gives the tensors of an adapter other names, and what belongs beside the result."""

    def __call__(self, survey: Survey) -> RewriteReport:
        """Return the checkpoint in its new names."""
        ...

    def finish(self, report: RewriteReport) -> RewriteReport:
        """Write what belongs beside the result."""
        ...


def _naming(adapter_names: str | None, base: Input | None, options: WriteOptions) -> _Naming | None:
    """Return the stage that --adapter-names asks for, or None. Raises UsageError."""
    if adapter_names is None:
        if base is not None:
            raise UsageError("--base goes with --adapter-names")
        return None
    made: _Naming = adapters().Conversion(
        adapter_names, base, options.limits, plugins=options.plugins, out=options.out, force=options.force
    )
    return made


def with_format(
    options: WriteOptions,
    to: str | None,
    shard_size: str | int | None,
    *,
    plain: bool,
    with_config: bool = False,
) -> WriteOptions:
    """The options with the format that --format, --shard-size and the ending of OUT ask for. Raises UsageError.

    A folder with its config gets safetensors, unless another format is asked for.
    """
    options = options._replace(with_config=with_config)
    if with_config and shard_size is None:
        to = to or save.SHARD_FORMAT
    is_pickle = to is not None and save.traits_of(save.format_for("", to)).is_pickle
    suffix = SUFFIXES["convert --plain" if plain else "convert"] if plain or is_pickle else ""
    ending = None if plain or is_pickle else ".safetensors"
    options = options._replace(suffix=suffix, ending=ending, plain=plain)
    out = None if options.out is None else options.out.rstrip("/") or options.out
    if shard_size is None:
        if out is None and to is None:
            return options
        is_folder = out is not None and options.is_folder and not is_folder_format(out, options.limits)
        return options._replace(format=save.format_for("" if is_folder else out or "", to))
    shard_bytes = number_of(str(shard_size))
    if not shard_bytes:
        raise UsageError(f"--shard-size {shard_size}: not a number of bytes", hint="as in 5GB")
    if to not in (None, save.SHARD_FORMAT):
        raise UsageError(f"--shard-size goes with {save.SHARD_FORMAT}, not with --format {to}")
    if out is not None and not os.path.isdir(out) and not with_config:
        save.format_for(out.removesuffix(".index.json"), save.SHARD_FORMAT)
    return options._replace(shard_bytes=shard_bytes, format=save.SHARD_FORMAT)


def _with_ranks(options: WriteOptions, ranks: int | None, *, in_part: bool) -> WriteOptions:
    """The options with the files that --ranks asks for. Raises UsageError.

    Without it the items of a part of a distributed checkpoint are taken as they are.
    """
    is_folder = options.format is not None and save.traits_of(options.format).is_folder
    if ranks is not None and not is_folder:
        raise UsageError("--ranks goes with --format dcp")
    if ranks is not None and not 0 < ranks <= MOST_RANKS:
        raise UsageError(f"--ranks {ranks}: not a number of ranks from 1 to {MOST_RANKS:,}")
    return options._replace(ranks=(ranks or (None if in_part else 1)) if is_folder else None)


# --- warmstart --------------------------------------------------------------------------------------------------------

_MISMATCH: tuple[Literal["keep", "slice", "error"], ...] = ("keep", "slice", "error")


def warmstart(
    pretrained: Input,
    *,
    into: Input | None = None,
    into_model: str | None = None,
    sub: Texts = (),
    align: bool = True,
    on_mismatch: str = "keep",
    by_shape: bool = False,
    fuse: bool = False,
    split: bool = False,
    count_sliced: bool = False,
    ignore_layout: bool = False,
    keep_optimizer: bool = False,
    print_code: bool = False,
    min_coverage: float | None = None,
    recipe: Path | None = None,
    section: str | None = None,
    into_section: str | None = None,
    arg: Texts = (),
    init: bool = False,
    check: bool = True,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Load pretrained weights into the checkpoint `into`, or the model of `into_model`, as far as they fit.

    `recipe` is the path of a recipe, which brings the pretrained weights into another layout first. `report.coverage` is the plan. With `print_code` nothing is written, and `report.code` are lines of Python. The other
    keywords are in `Writing`; `Checkpoint.load_into` fills a live model. Raises CkptError; LossError where too
    little would be loaded and `check` is set. Without it the report says so.
    """
    from ckpt.commands.rename.rename import substitution
    from ckpt.ext.warmstart.warmstart import Options
    from ckpt.ext.warmstart.warmstart import warmstart as job

    text_only(section=section, into_section=into_section, into_model=into_model)
    way = next((way_name for way_name in _MISMATCH if way_name == on_mismatch), None)
    if way is None:
        raise UsageError(f"--on-mismatch {on_mismatch}: not one of {' '.join(_MISMATCH)}")
    if into is None and into_model is None:
        raise UsageError("what to fill?", hint="--into TARGET, or --into-model FILE.py:FACTORY")
    if into is not None and into_model is not None:
        raise UsageError("--into and --into-model exclude each other")
    if print_code and recipe is not None:
        raise UsageError("--print-code prints no recipe", hint="ckpt convert --recipe writes PRETRAINED anew")
    if into_model is None and (texts(arg) or init):
        raise UsageError(f"--{'init' if init else 'arg'} goes with --into-model FILE.py:FACTORY")
    request = Options(
        way,
        [substitution(text).apply for text in texts(sub)],
        None if recipe is not None else section,  # what a recipe makes is the model alone
        into_section,
        align=align,
        by_shape=by_shape,
        fuse=fuse,
        split=split,
        count_sliced=count_sliced,
        ignore_layout=ignore_layout,
        keep_optimizer=keep_optimizer,
        min_coverage=min_coverage,
    )
    options = options_of(writing, pretrained, "warmstart")
    options = options._replace(dry_run=options.dry_run or print_code)
    check_options(options, path_of(pretrained), None if into is None else path_of(into))
    if into_model is not None:
        options = options._replace(open=_built(into_model, texts(arg), init=init))
        if options.out is not None and not os.path.isdir(options.out):
            options = options._replace(format=save.format_for(options.out, None, endings=save.ENDINGS))
    talk = Talk(options.tell)
    with at_hand(pretrained, options.limits, plugins=options.plugins) as given:
        for line in doubts(given.checkpoint):
            talk(line)
        code: list[str] = []
        weights = given.survey
        if recipe is not None:
            weights = layouts().relaid_survey(weights, recipe, options.limits, section)

        def make(survey: Survey, limits: Limits) -> RewriteReport:
            report = job(weights, survey, limits, request)
            if print_code and report.coverage is not None:
                code.extend(_code(report.coverage, weights, survey, request, options.limits))
            return report

        report = rewrite(into_model or into or "", make, options)
    if check and report.coverage is not None and report.coverage.refusal:
        raise LossError(report.coverage.refusal, path=report.source.path, hint=_hint(report.coverage.way))
    return report._replace(code=tuple(code), warnings=(*talk.lines, *report.warnings))


def _built(into_model: str, arguments: list[str], *, init: bool) -> Open:
    """Return the way to open the state of the model that a factory builds."""

    def build_state(path: str, partial: bool) -> Checkpoint:
        from ckpt.ext.live.model import build
        from ckpt.ext.live.state import state_checkpoint

        device = "cpu" if init else "meta"
        return state_checkpoint(build(into_model, arguments, device=device, option="--into-model"), path)

    return build_state


def _code(coverage: Coverage, given: Survey, wanted: Survey, request: Options, limits: Limits) -> list[str]:
    """The lines of Python that load the same. Raises UnsupportedError with the command that leads around."""
    from ckpt.ext.warmstart.code import code_lines
    from ckpt.surface.api.advice import advise

    try:
        return code_lines(coverage, given, wanted, request)
    except UnsupportedError as error:  # its way leads around PRETRAINED, not TARGET
        advise(error, given, limits)
        error.way = None
        raise


def _hint(way: Sequence[str] | None) -> str | None:
    """The options with which more is loaded, as text, or None."""
    return " ".join(way) or None if way is not None else None


# --- salvage ----------------------------------------------------------------------------------------------------------


def salvage(
    source: Input,
    *,
    fill_from: Input | None = None,
    names_from: Path | None = None,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Write what is whole of a checkpoint that is cut off, damaged or incomplete, and list what is lost.

    `fill_from` is another save, of which lost tensors of the same name, shape and dtype are taken; `names_from` one of
    the same run, after which the items of a DCP without .metadata are named. The other keywords are in `Writing`.
    `report.lost` is empty where nothing is lost. Raises CkptError.
    """
    from ckpt.elements.audit import unsound
    from ckpt.ext.salvage.salvage import salvage as job

    options = options_of(writing, source, "salvage")
    names = None if names_from is None else os.fsdecode(names_from)

    def open_rest(path: str, partial: bool) -> Checkpoint:
        return read(
            path,
            options.limits,
            plugins=options.plugins,
            partial=True,
            names_from=names,
            keep_damaged=options.keep_damaged,
        )

    talk = Talk(options.tell)
    with ExitStack() as stack:
        other = None
        if fill_from is not None:
            filling = stack.enter_context(at_hand(fill_from, options.limits, plugins=options.plugins))
            for line in doubts(filling.checkpoint):
                talk(line)
            other = filling.survey

        def make(survey: Survey, limits: Limits) -> RewriteReport:
            checkpoint = survey.checkpoint
            damaged = unsound(checkpoint, current())
            keep = options.keep_damaged
            report = job(survey, limits, damaged=damaged, keep_damaged=keep, other=other)
            return as_format_of(report, _format_of(report.result, options), limits)

        report = rewrite(source, make, options._replace(open=open_rest))
    return report._replace(warnings=(*talk.lines, *report.warnings))


def _format_of(checkpoint: Checkpoint, options: WriteOptions) -> str:
    """The format of the result: its own, if ckpt writes it and OUT's ending fits, else the format of the ending."""
    if options.out is None or options.is_folder:
        return checkpoint.format if save.stays(checkpoint) else save.own_format(checkpoint)
    try:
        return save.same_format(options.out, checkpoint)
    except UsageError:
        return save.format_for(options.out, None, endings=save.ENDINGS)


# --- average ----------------------------------------------------------------------------------------------------------


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
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Average the models of checkpoints of one training, or of the `last` numbered ones of a folder.

    The mean has the names, the order and the dtypes of the last one. `ratios` weigh them. The other keywords are in `Writing`. Raises CkptError.
    """
    from ckpt.ext.average.average import Options, shares_of
    from ckpt.ext.average.average import average as job

    text_only(section=section)
    options = options_of(writing, None, "average", plain=True)
    # An open checkpoint, bytes and a file are iterable too, and each is one checkpoint.
    is_one = isinstance(sources, (str, os.PathLike, Opened, bytes, bytearray, memoryview, IOBase))
    names: list[Input] = [cast("Input", sources)] if is_one else list(cast("Sequence[Input]", sources))
    talk = Talk(options.tell)
    check_options(options, *map(path_of, names))
    if last is not None:
        names = list(_last_of(names, last, options, talk))
    if len(names) < 2:
        problem = "a mean takes two checkpoints or more" if names else "nothing to average"
        path = path_of(names[0]) if names else None
        raise UsageError(problem, path=path, hint="PATH PATH..., or --last N FOLDER")
    request = Options(ratios, section, texts(include), texts(exclude), align=align, drop_other=drop_other)
    shares_of(request.ratios, len(names))
    _tell_twice(names, talk)
    with ExitStack() as stack:
        given = []
        for name in names:
            try:
                opened = at_hand(name, options.limits, plugins=options.plugins)
                given.append(stack.enter_context(opened))
            except FolderError as error:
                error.hint = "--last N takes its last ones" if last is None and len(names) == 1 else None
                raise
        for other in given[:-1]:
            for line in doubts(other.checkpoint):
                talk(line)
        options = with_last(options, given[-1].checkpoint)

        def make(survey: Survey, limits: Limits) -> RewriteReport:
            report = job([other.survey for other in given[:-1]], survey, limits, request)
            return (
                report
                if options.format is None
                else as_format_of(report, options.format, limits, options.ranks)
            )

        report = rewrite(given[-1], make, options)
    return report._replace(warnings=(*talk.lines, *report.warnings))


def _tell_twice(given: Sequence[Input], tell: Callable[[str], None]) -> None:
    """Say which checkpoints were given more than once."""
    names = list(map(path_of, given))
    real: list[object] = [
        id(one) if name in NAMELESS else os.path.realpath(name)
        for one, name in zip(given, names, strict=True)
    ]
    for index, name in enumerate(names):
        count = real.count(real[index])
        if count > 1 and real.index(real[index]) == index:
            tell(f"{show(name, None)}: given {count} times, and counts so often")


def _last_of(
    names: Sequence[Input], count: int, options: WriteOptions, tell: Callable[[str], None]
) -> list[str]:
    """The last checkpoints of the series in a folder: those whose names differ in numbers only. Raises CkptError."""
    if len(names) != 1:
        raise UsageError("--last takes one folder", hint="--last N FOLDER")
    folder = path_of(names[0])
    if not os.path.isdir(folder):
        raise UsageError("not a folder, which --last takes", path=folder)
    if count < 2:
        raise UsageError(f"--last {count}: not a number from 2")
    items, _ = parted(looked([folder], options.limits, plugins=options.plugins))
    out = None if options.out is None else os.path.realpath(options.out)
    found = [
        item.path
        for item in items
        if item.folder is not None and item.skipped is None and os.path.realpath(item.path) != out
    ]
    series: dict[str, list[str]] = {}
    for path in found:
        series.setdefault(re.sub(r"\d+", "*", os.path.relpath(path, folder)), []).append(path)
    numbered = {name: paths for name, paths in series.items() if "*" in name}
    long = [name for name, paths in numbered.items() if len(paths) >= count]
    if not long:
        name = max(numbered, key=lambda name: len(numbered[name]), default=None)
        most = 0 if name is None else len(numbered[name])
        what = f" ({show(name, 80)})" if name is not None else ""
        problem = f"has {plural(most, 'numbered checkpoint')}{what}, and --last asks for {count}"
        raise UsageError(problem, path=folder)
    if len(long) > 1:
        listed = and_more([f"{show(name, 60)} ({len(numbered[name])})" for name in long], 4)
        problem = f"has {len(long)} series of {count} checkpoints or more: {listed}"
        raise UsageError(problem, path=folder, hint="name the checkpoints")
    chosen = sorted(numbered[long[0]], key=natural)
    rest = [show(os.path.relpath(path, folder), 60) for path in found if path not in chosen]
    text = f"the last {count} of {len(chosen)} {show(long[0], 80)}"
    beside = f"; not of this series: {and_more(rest, 4)}" if rest else ""
    tell(f"{show(folder, None)}: {text}{beside}")
    return chosen[-count:]


def with_last(options: WriteOptions, last: Checkpoint) -> WriteOptions:
    """The options with the format of the last checkpoint, or of OUT's ending where it belongs to another one."""
    out = options.out
    if out is None or (options.is_folder and not is_folder_format(out, options.limits)):
        return options
    try:
        format = None if last.traits.names_are_code else save.same_format(out, last)
    except UsageError:
        format = None
    format = format or save.format_for(out, None, endings=save.ENDINGS)
    return options._replace(format=format, ranks=1 if save.traits_of(format).is_folder else None)


def as_format_of(
    report: RewriteReport, format: str, limits: Limits, ranks: int | None = None
) -> RewriteReport:
    """The report with its result in another format, as `convert` makes it. Raises CkptError."""
    from ckpt.commands.convert.convert import as_format

    return as_format(report, format, save.traits_of(format), limits, writer_of(format).unfit, ranks)
