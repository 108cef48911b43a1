"""The function `ckpt.convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ckpt.commands.rewriting.report import Change, RewriteReport, with_own_option
from ckpt.evidence.survey import Survey
from ckpt.formats import save, writer_of, written_formats
from ckpt.hooks import load_hook
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.surface.api.keywords import Path, Texts, globs_of, model_of, text_only
from ckpt.surface.api.opening import Input
from ckpt.surface.api.rewriting import Open, WriteOptions, rewrite_checkpoint
from ckpt.surface.api.writing import (
    moved_report,
    names_own_layout,
    options_of,
    refuse_format,
    strip_stages,
    with_like,
    with_recipe,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.surface.api.writing import Writing

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
    optimizer: bool = False,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    drop_other: bool = False,
    with_config: bool = False,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Write a checkpoint in another format, or with `plain`, without the classes of its
    author.

    `format` is torch-zip, torch-legacy, safetensors or dcp; without it the ending of
    `out` decides. Before that, `strip` takes the prefixes of wrappers off the names, or
    `prefix`, and `to` moves the tensors to a device. `with_config` makes `out` a folder
    with config.json and the tokenizer beside the weights. `adapter_names` is peft or
    kohya, and gives a LoRA the names of that program; `base` is the checkpoint that
    says where the dots of kohya's names are. `dequantize` makes floats of quantised
    weights. `model` is a torch.nn.Module, or the text `FILE.py:FACTORY`, of which `arg`
    are the arguments. `recipe` is the path of a recipe of `ckpt.recipe`, which turns
    the model into another layout, or with `reverse` back, and with `optimizer` its
    moments too; for a GGUF it may be `transformers`. The other keywords are in
    `Writing`. Raises CkptError; LossError where the format cannot hold everything.
    """
    from ckpt.commands.convert.convert import convert as job
    from ckpt.commands.rewriting.sets import refuse_lost, with_flattening
    from ckpt.commands.rewriting.stages import (
        in_stages,
        with_kept_codes,
        with_kept_prefixes,
    )

    text_only(prefix=prefix, to=to)
    refuse_format(to)
    text_only(
        format=format, dtype=dtype, encoding=encoding, weights=weights, section=section
    )
    text_only(optimizer_keys=optimizer_keys)
    if weights is not None and section is not None:
        raise UsageError("--weights and --section exclude each other")
    globs = globs_of(include, exclude)
    if reverse and recipe is None:
        raise UsageError("--reverse goes with --recipe")
    if optimizer and recipe is None:
        raise UsageError("--optimizer goes with --recipe")
    live = model_of(model, arg)
    options = options_of(writing, source, "convert", beside=(like, recipe, base))
    options = with_recipe(
        options,
        recipe,
        format,
        shard_size,
        reverse=reverse,
        plain=plain,
        optimizer=optimizer,
        with_config=with_config,
    )
    if recipe is not None and load_hook("layouts").names_several(source):
        options = options._replace(open=_opener_of_several(options))
    options = _with_ranks(options, ranks, in_part=bool(globs) or section is not None)
    options = with_like(options, like, section)._replace(dequantize=dequantize)
    naming = _naming_stage(source, adapter_names, base, options)

    def make(survey: Survey, limits: Limits) -> RewriteReport:
        written = options.format or save.own_format(survey.checkpoint)
        traits = save.traits_of(written)
        if traits.is_pickle:
            refuse_lost(survey.checkpoint)
        # Each stage takes a survey and gives a report; their order is that of the
        # changes.
        stages = strip_stages(strip, prefix, section, limits)
        has_blocks = survey.checkpoint.traits.has_own_metadata
        # The type that llama.cpp computes with.
        # Blocks of GGUF are decoded to this by a cast; other schemes have a stage.
        floats = "float32" if dequantize and has_blocks else None
        if dequantize and not has_blocks:
            stages.insert(
                0, lambda survey: _dequantised(survey, limits, dtype, section, globs)
            )
        stages += [] if naming is None else [naming]
        is_known = names_own_layout(survey.checkpoint, recipe)
        if is_known:  # the file names its own layout
            stages.append(load_hook("gguf").in_transformers)
        elif recipe is not None:
            if optimizer and not traits.is_pickle:
                problem = f"--optimizer: {traits.label} holds tensors alone"
                raise UsageError(problem, hint="-o OUT.pth or --format dcp")
            # The format on the way: safetensors holds no optimizer.
            made = next(iter(written_formats())) if optimizer else save.SHARD_FORMAT
            stages.append(
                load_hook("layouts").recipe_stage(
                    recipe,
                    made,
                    save.traits_of(made),
                    limits,
                    reverse=reverse,
                    section=section,
                    optimizer=optimizer,
                    optimizer_keys=optimizer_keys,
                    in_ranks=options.rank_files is not None,
                )
            )
        # A recipe makes the model alone.
        makes_model = recipe is not None and not is_known
        inner = None if makes_model else section
        stages.append(
            lambda survey: job(
                survey,
                written,
                traits,
                limits,
                writer_of(written).unfit,
                plain=plain,
                dtype=dtype or floats,
                encoding=encoding,
                section=inner,
                select=globs,
                weights=weights,
                drop_other=drop_other,
                optimizer_keys=optimizer_keys,
                complete_optimizer=complete_optimizer,
            )
        )
        # A live model knows the order of its parameters.
        known = survey if live is None else Survey(survey.checkpoint, live)
        report = moved_report(in_stages(known, stages), to, limits, written)
        if recipe is not None:
            report = _with_own_format(report, written)
        report = with_kept_prefixes(report, limits)
        report = with_kept_codes(report, limits)
        report = report._replace(left_out=with_own_option(report.left_out))
        if traits.is_folder:
            report = with_flattening(report, options.ranks, limits)
        return report

    done = rewrite_checkpoint(source, make, options)
    return done if naming is None else naming.finish(done)


def _opener_of_several(options: WriteOptions) -> Open:
    """The function that opens the files of ranks that a pattern names."""

    def open_several(path: str, partial: bool) -> Checkpoint:
        opened: Checkpoint = load_hook("layouts").open_several(
            path, options.limits, plugins=options.plugins, partial=partial
        )
        return opened

    return open_several


def _dequantised(
    survey: Survey,
    limits: Limits,
    dtype: str | None,
    section: str | None,
    select: Globs,
) -> RewriteReport:
    """The checkpoint with its quantised weights as floats. Raises CkptError."""
    from ckpt.commands.convert.convert import dtype_of

    floats = load_hook("quantised").dequantised
    report: RewriteReport = floats(
        survey, limits, dtype_of(dtype), section=section, select=select
    )
    return report


def _with_own_format(report: RewriteReport, written: str) -> RewriteReport:
    """The report with the change from the format that was read: what a recipe makes has
    another one on the way.
    """
    changes = [change for change in report.changes if change.kind != "format"]
    if report.source.format != written:
        count = len(report.result.tensors)
        changes.append(Change("format", report.source.format, written, count, "tensor"))
    return report._replace(changes=tuple(changes))


class _Naming(Protocol):
    """A stage that gives the tensors of an adapter other names, and what belongs beside
    the result.
    """

    def __call__(self, survey: Survey) -> RewriteReport:
        """Return the checkpoint in its new names."""
        ...

    def finish(self, report: RewriteReport) -> RewriteReport:
        """Write what belongs beside the result."""
        ...


def _naming_stage(
    source: Input,
    adapter_names: str | None,
    base: Input | None,
    options: WriteOptions,
) -> _Naming | None:
    """Return the stage that --adapter-names asks for, or None. Raises CkptError."""
    if adapter_names is None:
        if base is not None:
            raise UsageError("--base goes with --adapter-names")
        return None
    made: _Naming = load_hook("adapters").Conversion(
        source,
        adapter_names,
        base,
        options.limits,
        plugins=options.plugins,
        out=options.out,
        force=options.force,
    )
    return made


def _with_ranks(
    options: WriteOptions, ranks: int | None, *, in_part: bool
) -> WriteOptions:
    """The options with the files that --ranks asks for. Raises UsageError.

    Without it the items of a part of a distributed checkpoint are taken as they are.
    """
    is_folder = options.format is not None and save.traits_of(options.format).is_folder
    if ranks is not None and not is_folder:
        raise UsageError("--ranks goes with --format dcp")
    if ranks is not None and not 0 < ranks <= MOST_RANKS:
        raise UsageError(
            f"--ranks {ranks}: not a number of ranks from 1 to {MOST_RANKS:,}"
        )
    if not is_folder:
        ranks = None
    elif ranks is None and not in_part:
        ranks = 1
    return options._replace(ranks=ranks)
