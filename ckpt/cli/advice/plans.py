"""Planning a command: all that it does before it writes, so that only commands that work are printed."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.errors import CodeError, LossError, UnsupportedError
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import strips
from ckpt.formats import save, writer_of, written_formats
from ckpt.formats.common.writing import Keys, to_bytes
from ckpt.jobs.rewrite.plain import Plain
from ckpt.jobs.rewrite.report import RewriteReport, weights_of
from ckpt.limits import Limits
from ckpt.nodes import Dict, Global, Node, Opaque
from ckpt.pickles.code import code_of
from ckpt.pickles.emit import emit
from ckpt.pickles.machine import run
from ckpt.pickles.weights_only import impossible_call, refusals
from ckpt.tensors import TensorRef
from ckpt.tree.scalars import class_of

_MANY = 2_000
"""Tensors up to which the pickle of a result is written in memory and read again."""


def changed_by(survey: Survey, words: tuple[str, ...], out: str, limits: Limits) -> set[str]:
    """The sections that `ckpt WORDS -o OUT` changes, after all that it does before it writes.

    Raises CkptError where it would refuse.
    """
    checkpoint = survey.checkpoint
    if checkpoint.traits.is_pickle and not checkpoint.parts and is_sure(survey, words):
        return {section.name for section in survey.weights(None)} if words == ("strip",) else set()
    return planned(survey, words, out, limits)


def planned(survey: Survey, words: tuple[str, ...], out: str, limits: Limits) -> set[str]:
    """As `changed_by`, and nothing is taken as proved."""
    checkpoint = survey.checkpoint
    format = save.format_for(out, None) if words[0] == "convert" else save.same_format(out, checkpoint)
    report = _report(survey, words, format, limits)
    if not report.changes and words[0] != "slim":
        raise UnsupportedError(report.nothing)
    _check(report, format, limits, is_plain=words[0] == "slim" or "--plain" in words)
    return {change.section for change in report.changes}


def _report(survey: Survey, words: tuple[str, ...], format: str, limits: Limits) -> RewriteReport:
    section = words[words.index("--section") + 1] if "--section" in words else None
    # Each job is imported where it is planned: most files need one command or none.
    if words[0] == "slim":
        from ckpt.jobs.rewrite.slim import slim

        return slim(survey, limits, section=section)
    if words[0] == "strip":
        from ckpt.jobs.rewrite.strip import strip

        return strip(survey, limits, section=section)
    if words[0] == "rehome":
        from ckpt.jobs.rewrite.rehome import moves, rehome

        return rehome(survey, moves(None, []), limits)
    from ckpt.jobs.rewrite.convert import convert

    return convert(
        survey,
        format,
        save.traits_of(format),
        limits,
        writer_of(format).unfit,
        plain="--plain" in words,
        encoding=words[-1] if "--encoding" in words else None,
    )


def _check(report: RewriteReport, format: str, limits: Limits, *, is_plain: bool) -> None:
    """What comes after the plan. Raises CodeError, LossError, LimitError."""
    result = report.result
    pickled = save.traits_of(format).is_pickle
    if pickled and (runs := code_of(report.source, result).runs):
        raise CodeError(f"loading the result would run {runs[0]}")
    save.refuse_losses(result, format)
    if pickled and len(result.tensors) <= _MANY:
        why = _refused(result, limits)
        if why is not None and is_plain:
            raise LossError(f"weights_only refuses {why}")


def _refused(checkpoint: Checkpoint, limits: Limits) -> str | None:
    """Why weights_only refuses the pickle that is written of a checkpoint. Raises LimitError."""
    pickle = run(emit(checkpoint.root, Keys(checkpoint.storages), to_bytes, limits), limits)
    reasons = [reason for reason, _ in refusals(pickle)]
    if impossible_call(pickle.globals.values(), pickle.calls) is not None:
        reasons.append("a call that cannot succeed")
    return reasons[0] if reasons else None


def is_sure(survey: Survey, words: tuple[str, ...]) -> bool:
    """Whether `ckpt WORDS` certainly works on a pickle, by what can be seen without copying it. False says nothing."""
    checkpoint = survey.checkpoint
    if checkpoint.format not in written_formats() or code_of(checkpoint, checkpoint).runs:
        return False
    if writer_of(checkpoint.format).losses(checkpoint):
        return False
    if words == ("rehome",):
        return True
    if words == ("strip",):
        return all(section.is_flat and strips(section.names()) for section in survey.weights(None))
    if words == ("slim",) or words[:2] == ("slim", "--section"):
        chosen = survey.only_model(words[2] if len(words) > 2 else None)
        return chosen.tensors > 0 and _is_plain(weights_of(survey, chosen))
    return words == ("convert", "--plain") and _is_plain(checkpoint.root)


def _is_plain(root: Node) -> bool:
    trial = _Trial()
    trial.copy(root)
    return trial.whole > 0 and not trial.lost


class _Trial(Plain):
    """Finds what cannot be made plain. Mappings that hold plain tensors only are kept, so a state dict costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = 0
        """Such mappings."""

    def instead(self, node: Node) -> Node | None:
        if type(node) is Dict and _holds_plain_tensors(node):
            self.whole += 1
            return node
        if type(node) is Opaque and node.meaning is None and class_of(node) == "collections.OrderedDict":
            if not node.args and _holds_plain_tensors(node):
                self.whole += 1
                for state in node.states:
                    self.copy_of(state)
                return node
        return super().instead(node)


def _holds_plain_tensors(node: Dict | Opaque) -> bool:
    return (
        bool(node.keys)
        and not (type(node) is Opaque and node.items)
        and all(type(key) is str for key in node.keys)
        and all(map(_is_plain_tensor, node.values))
        and len(set(map(str, node.keys))) == len(node.keys)
    )


def _is_plain_tensor(node: Node) -> bool:
    """Whether a node is the call of a dense tensor without hooks, metadata or attributes."""
    if (
        type(node) is not Opaque
        or type(node.meaning) is not TensorRef
        or node.states
        or node.keys
        or node.items
    ):
        return False
    func, args = node.func, node.args
    if type(func) is not Global or func.name != "_rebuild_tensor_v2" or func.module != "torch._utils":
        return False
    hooks = args[5] if len(args) == 6 else None
    return (
        type(hooks) is Opaque
        and not (hooks.keys or hooks.states or hooks.items or hooks.args)
        and class_of(hooks) == "collections.OrderedDict"
    )
