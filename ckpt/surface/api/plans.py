"""Planning a command: all that it does before it writes, so that only commands that
work are printed.
"""

from __future__ import annotations

from itertools import pairwise

from ckpt.commands.rewriting.report import Change, RewriteReport
from ckpt.commands.rewriting.sets import weights_file
from ckpt.evidence.survey import Survey
from ckpt.formats import save, writer_of
from ckpt.formats.common.writing import Keys, to_bytes
from ckpt.hooks import load_hook
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CodeError, LossError, UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.pickle.calls import code_of
from ckpt.pickle.emit import emit_pickle
from ckpt.pickle.judge.impossible import impossible_call
from ckpt.pickle.judge.weights_only import pickle_refusals
from ckpt.pickle.machine import run_machine

_MANY = 2_000
"""Tensors up to which the pickle of a result is written in memory and read again."""

_OF_THE_WEIGHTS = ("rehome", "strip", "rename")
"""Commands that change the file of the weights, where they get a folder."""


def changed_by(
    survey: Survey, words: tuple[str, ...], out: str, limits: Limits
) -> set[str]:
    """The sections that `ckpt WORDS -o OUT` changes, after all that it does before it
    writes.

    Raises CkptError where it would refuse.
    """
    # As the command itself does with a folder.
    if words[0] in _OF_THE_WEIGHTS and survey.checkpoint.members:
        survey = Survey(weights_file(survey.checkpoint))
    checkpoint = survey.checkpoint
    is_convert = words[0] == "convert"
    if "--with-config" in words:
        format = save.SHARD_FORMAT
    elif is_convert:
        format = save.format_for(out, _option_value(words, "--format"))
    else:
        format = _kept_format(words[0], out, checkpoint)
    report = _plan_report(survey, words, format, limits)
    # A command that changes nothing would write the same file again.
    if not report.changes and words[0] not in ("slim", "salvage"):
        raise UnsupportedError(report.nothing)
    _check_result(
        report, format, limits, is_plain=words[0] == "slim" or "--plain" in words
    )
    return {change.section for change in report.changes}


def _kept_format(command: str, out: str, checkpoint: Checkpoint) -> str:
    """The format of a result whose content stays. Raises UsageError."""
    try:
        return save.same_format(out, checkpoint)
    except UsageError:
        # slim is the only one of these commands that writes another format, too.
        if command != "slim":
            raise
        return save.format_for(out, None)


def _option_value(words: tuple[str, ...], name: str) -> str | None:
    """The value of an option among the words of a command."""
    return words[words.index(name) + 1] if name in words else None


def _plan_report(
    survey: Survey, words: tuple[str, ...], format: str, limits: Limits
) -> RewriteReport:
    section = _option_value(words, "--section")
    # Each job is imported where it is planned: most files need one command or none.
    if words[0] == "slim":
        from ckpt.commands.slim.slim import slim

        exclude = [text for option, text in pairwise(words) if option == "--exclude"]
        keep = [text for option, text in pairwise(words) if option == "--keep"]
        select = Globs((), exclude) if exclude else None
        if "--strip" in words:
            from ckpt.commands.strip.strip import strip

            survey = Survey(strip(survey, limits, section=section).result)
        if "--ema" in words:
            averages = load_hook("ema").averaged_weights
            survey = Survey(averages(survey, limits, section=section).result)
        report = slim(survey, limits, section=section, select=select, keep=keep)
        if format in (survey.checkpoint.format, report.result.format):
            return report
        return _in_format(report, format, limits)
    if words[0] == "strip":
        from ckpt.commands.strip.strip import strip

        return strip(survey, limits, section=section)
    if words[0] == "rehome":
        from ckpt.commands.rehome.rehome import moves, rehome

        return rehome(survey, moves(None, []), limits)
    if words[0] == "rename":
        from ckpt.commands.rename.rename import rename, substitution

        subs = [
            substitution(text) for option, text in pairwise(words) if option == "--sub"
        ]
        return rename(survey, subs, limits, section=section)
    if words[0] == "salvage":
        report = load_hook("salvage").salvage(survey, limits)
        return _in_format(report, format, limits)
    from ckpt.commands.convert.convert import convert

    to = _option_value(words, "--to")
    if to is not None:
        from ckpt.commands.rehome.rehome import moves, rehome

        survey = Survey(rehome(survey, moves(to, []), limits).result)
    changes: tuple[Change, ...] = ()
    if "--partial" in words:
        survey = Survey(load_hook("salvage").salvage(survey, limits).result)
    # The only layout that a command to paste names is that of transformers.
    if "--recipe" in words:
        survey = Survey(load_hook("gguf").in_transformers(survey).result)
    if "--dequantize" in words:
        report = load_hook("quantised").dequantised(survey, limits)
        if not report.changes:
            raise UnsupportedError("no weight is quantised in a way that ckpt reads")
        survey, changes = Survey(report.result), report.changes
    converted = convert(
        survey,
        format,
        save.traits_of(format),
        limits,
        writer_of(format).unfit,
        plain="--plain" in words,
        dtype=_option_value(words, "--dtype"),
        encoding=_option_value(words, "--encoding"),
        optimizer_keys=_option_value(words, "--optimizer-keys"),
        complete_optimizer="--complete-optimizer" in words,
    )
    return converted._replace(changes=(*changes, *converted.changes))


def _in_format(report: RewriteReport, format: str, limits: Limits) -> RewriteReport:
    """The report of a result that is written in another format."""
    from ckpt.commands.convert.convert import as_format

    traits = save.traits_of(format)
    return as_format(report, format, traits, limits, writer_of(format).unfit)


def _check_result(
    report: RewriteReport, format: str, limits: Limits, *, is_plain: bool
) -> None:
    """Check the result of a plan. Raises CodeError, LossError, LimitError."""
    result = report.result
    traits = save.traits_of(format)
    pickled = traits.is_pickle
    effects = code_of(report.source, result, keeps_program=traits.names_are_code)
    # Without --keep-code the command refuses it.
    if pickled and (runs := effects.runs):
        raise CodeError(f"loading the result would run {runs[0]}")
    save.refuse_losses(result, format)
    # A plan of something plain has to load with weights_only.
    if pickled and len(result.tensors) <= _MANY:
        why = _refusal_reason(result, limits)
        if why is not None and is_plain:
            raise LossError(f"weights_only refuses {why}")


def _refusal_reason(checkpoint: Checkpoint, limits: Limits) -> str | None:
    """Return the reason why weights_only refuses the pickle of a checkpoint, or None.
    Raises LimitError.
    """
    pickle = run_machine(
        emit_pickle(checkpoint.root, Keys(checkpoint.storages), to_bytes, limits),
        limits,
    )
    reasons = [reason for reason, _ in pickle_refusals(pickle)]
    if impossible_call(pickle.globals.values(), pickle.calls) is not None:
        reasons.append("a call that cannot succeed")
    return reasons[0] if reasons else None
