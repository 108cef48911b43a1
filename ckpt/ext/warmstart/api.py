"""The function `ckpt.warmstart`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.hooks import load_hook
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import LossError, UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.surface.api.config_files import with_folder_hint
from ckpt.surface.api.keywords import Path, Texts, doubt_lines, keyword_texts, text_only
from ckpt.surface.api.opening import Input, at_hand, path_of
from ckpt.surface.api.rewriting import Open, Talk, rewrite_checkpoint
from ckpt.surface.api.rewriting import check as check_options
from ckpt.surface.api.writing import as_format_of, names_own_layout, options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ckpt.commands.rewriting.report import Coverage
    from ckpt.ext.warmstart.warmstart import Options
    from ckpt.surface.api.writing import Writing

_MISMATCH: tuple[Literal["keep", "slice", "error"], ...] = ("keep", "slice", "error")
_RESIZED = ("pad", "interpolate")
"""The words of `on_mismatch` for which PRETRAINED gets tensors of other shapes
first.
"""


def warmstart(
    pretrained: Input,
    *,
    into: Input | None = None,
    into_model: str | None = None,
    sub: Texts = (),
    align: bool = True,
    on_mismatch: str = "keep",
    fill: str | None = None,
    grid: str | None = None,
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
    with_config: bool = False,
    check: bool = True,
    **writing: Unpack[Writing],
) -> RewriteReport:
    """Load pretrained weights into the checkpoint `into`, or the model of `into_model`,
    as far as they fit.

    With `on_mismatch="pad"` tensors get the rows that TARGET has more, `fill="mean"` as
    the mean of theirs; with `"interpolate"` position embeddings get its grid, which
    `grid` names where it is not square: `"14x21"`, or `"12x101:12x50"` for
    PRETRAINED and TARGET. `recipe`
    is the path of a recipe, which brings the pretrained weights into another layout
    first; for a GGUF it may be `transformers`. `with_config` makes `out` a folder with
    config.json and the tokenizer of `into`. `report.coverage` is the plan. With
    `print_code` nothing is written, and `report.code` are lines of Python. The other
    keywords are in `Writing`; `Checkpoint.load_into` fills a live model. Raises
    CkptError; LossError where too little would be loaded and `check` is set. Without it
    the report says so.
    """
    # here: `import ckpt` loads no work of a command
    from ckpt.commands.rename.rename import substitution
    from ckpt.ext.warmstart.warmstart import Options
    from ckpt.ext.warmstart.warmstart import warmstart as job

    if hasattr(into_model, "state_dict"):
        raise TypeError(
            "into_model= takes text, as train.py:build_model, not "
            f"{type(into_model).__name__}: ckpt.open(PRETRAINED).load_into(model) "
            "fills a live model"
        )
    text_only(section=section, into_section=into_section, into_model=into_model)
    # For these two PRETRAINED is changed first, and then fits.
    resized = on_mismatch if on_mismatch in _RESIZED else None
    kept = "keep" if resized else on_mismatch
    way = next((word for word in _MISMATCH if word == kept), None)
    if way is None:
        known = " ".join((*_MISMATCH, *_RESIZED))
        raise UsageError(f"--on-mismatch {on_mismatch}: not one of {known}")
    if fill is not None and resized is None:
        raise UsageError("--fill goes with --on-mismatch pad")
    if grid is not None and resized is None:
        raise UsageError("--grid goes with --on-mismatch interpolate")
    if print_code and resized is not None:
        raise UsageError(f"--print-code does not print --on-mismatch {resized}")
    if into is None and into_model is None:
        raise UsageError(
            "what to fill?", hint="--into TARGET, or --into-model FILE.py:FACTORY"
        )
    if into is not None and into_model is not None:
        raise UsageError("--into and --into-model exclude each other")
    if print_code and recipe is not None:
        raise UsageError(
            "--print-code prints no recipe",
            hint="ckpt convert --recipe writes PRETRAINED anew",
        )
    if into_model is not None and with_config:
        raise UsageError(
            "--with-config goes with --into TARGET, which has them beside it"
        )
    if into_model is None and (keyword_texts(arg) or init):
        raise UsageError(
            f"--{'init' if init else 'arg'} goes with --into-model FILE.py:FACTORY"
        )
    request = Options(
        way,
        [substitution(text).apply for text in keyword_texts(sub)],
        # A recipe makes the model alone.
        None if recipe is not None else section,
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
    options = options_of(writing, pretrained, "warmstart", beside=(recipe,))
    # Nothing is written, but all checks of writing are made.
    options = options._replace(dry_run=options.dry_run or print_code)
    check_options(options, path_of(pretrained), None if into is None else path_of(into))
    # A model that a factory builds has no file, and so no format of its own.
    if into_model is not None:
        options = options._replace(
            open=_state_opener(into_model, keyword_texts(arg), init=init)
        )
        if options.out is not None and not os.path.isdir(options.out):
            options = options._replace(
                format=save.format_for(options.out, None, endings=save.ENDINGS)
            )
    if with_config:
        options = options._replace(format=save.SHARD_FORMAT, with_config=True)
    talk = Talk(options.tell)
    # A recipe may need further files: they are opened with PRETRAINED.
    open_input = at_hand if recipe is None else load_hook("layouts").opened_side
    with open_input(pretrained, options.limits, plugins=options.plugins) as given:
        for line in doubt_lines(given.checkpoint):
            talk(line)
        code: list[str] = []
        weights = given.survey
        if names_own_layout(given.checkpoint, recipe):
            weights = Survey(load_hook("gguf").in_transformers(weights).result)
        elif recipe is not None:
            weights = load_hook("layouts").relaid_survey(
                weights, recipe, options.limits, section
            )

        def make(survey: Survey, limits: Limits) -> RewriteReport:
            # Tensors of other shapes are made to fit before the plan, which then sees
            # them fit.
            if resized is None:
                report = job(weights, survey, limits, request)
            else:
                resizing = load_hook("resizing")
                way_of_shapes = resizing.Way(resized, fill, grid)
                done = resizing.fitted(weights, survey, limits, request, way_of_shapes)
                report = resizing.said(job(done.survey, survey, limits, request), done)
            if print_code and report.coverage is not None:
                code.extend(
                    _python_lines(
                        report.coverage, weights, survey, request, options.limits
                    )
                )
            # Without a format of its own the result has that of TARGET.
            return as_format_of(report, options, limits) if with_config else report

        path = into_model or into or ""
        with with_folder_hint(None if into is None else path_of(into), options.out):
            report = rewrite_checkpoint(path, make, options)
    # The command line asks without `check`, and prints the plan before its refusal.
    if check and report.coverage is not None and report.coverage.refusal:
        raise LossError(
            report.coverage.refusal,
            path=report.source.path,
            hint=_options_hint(report.coverage.way),
        )
    return report._replace(code=tuple(code), warnings=(*talk.lines, *report.warnings))


def _state_opener(into_model: str, arguments: list[str], *, init: bool) -> Open:
    """Return the way to open the state of the model that a factory builds."""

    def build_state(path: str, partial: bool) -> Checkpoint:
        # On meta no memory is taken for the model; with its own first values it is
        # built whole.
        device = "cpu" if init else "meta"
        model = load_hook("live model").build(
            into_model, arguments, device=device, option="--into-model"
        )
        state: Checkpoint = load_hook("live state").state_checkpoint(model, path)
        return state

    return build_state


def _python_lines(
    coverage: Coverage, given: Survey, wanted: Survey, request: Options, limits: Limits
) -> list[str]:
    """The lines of Python that load the same. Raises UnsupportedError with the command
    that leads around.
    """
    from ckpt.ext.warmstart.code import code_lines
    from ckpt.surface.api.advice import add_way_out

    try:
        return code_lines(coverage, given, wanted, request)
    except UnsupportedError as error:  # its way leads around PRETRAINED, not TARGET
        add_way_out(error, given, limits)
        error.way = None
        raise


def _options_hint(way: Sequence[str] | None) -> str | None:
    """The options with which more is loaded, as text, or None."""
    return " ".join(way) or None if way is not None else None
