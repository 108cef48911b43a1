"""Which command works on a checkpoint: each is planned before it is printed, and printed as it can be pasted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.checkpoint import Checkpoint
from ckpt.errors import CkptError, CodeError, LossError, UnsupportedError
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import unwrapped_name
from ckpt.findings import Way
from ckpt.formats import save, writer_of, written_formats
from ckpt.formats.draft import Keys
from ckpt.formats.torch_legacy.write import to_bytes
from ckpt.io.beside import is_lasting
from ckpt.jobs.rewrite.convert import convert
from ckpt.jobs.rewrite.plain import Plain
from ckpt.jobs.rewrite.rehome import moves, rehome
from ckpt.jobs.rewrite.report import RewriteReport, refuse_script, weights_of
from ckpt.jobs.rewrite.slim import slim
from ckpt.jobs.rewrite.strip import strip
from ckpt.limits import Limits
from ckpt.nodes import Dict, Global, Node, Opaque
from ckpt.pickles.code import code_of
from ckpt.pickles.emit import emit
from ckpt.pickles.machine import run
from ckpt.pickles.weights_only import impossible_call, refusals
from ckpt.tensors import TensorRef
from ckpt.text import pasted, pasted_path
from ckpt.tree.scalars import class_of

_MANY = 2_000
"""Tensors up to which the pickle of a result is written in memory and read again."""

_SECTIONS = 8
"""Models that are tried one after the other."""


class Ways:
    """The commands that work on one checkpoint. Each is planned once, and no tensor data is read."""

    def __init__(self, survey: Survey, limits: Limits | None = None) -> None:
        self._survey = survey
        self._limits = limits or Limits()
        self._plans: dict[tuple[str, ...], Way] = {}
        self._changed: dict[tuple[str, ...], set[str]] = {}

    def way(self, words: tuple[str, ...]) -> Way:
        """The command for what `words` ask for: `Plan` of ckpt/findings.py lists them; others are a command's own."""
        if words[0] == "weights":
            return self._first([*self._slim(), *self._plains(), *self._sections()])
        if words[0] == "plain" and len(words) > 1:
            files = {member.file: member.checkpoint for member in self._survey.checkpoint.members}
            return Ways(Survey(files[words[1]]), self._limits).way(words[:1])
        if words[0] == "plain":
            return self._first([*self._plains(), *self._slim(), *self._sections()])
        if words[0] == "smaller":
            return self._first([*self._slim(), *self._sections()])
        if words[0] == "extracted":
            return self._first([("convert",), *self._slim(), *self._sections()])
        if words[0] == "stripped":
            return self._strip(words[1])
        return self._planned(words)

    # --- which are tried, in their order ----------------------------------------------------------------------

    def _strip(self, section: str) -> Way:
        """From all models, or else from this section."""
        whole = self._planned(("strip",))
        touched = section in self._changed.get(("strip",), (section,))
        return whole if whole.command and touched else self._planned(("strip", "--section", section))

    def _slim(self) -> Iterator[tuple[str, ...]]:
        if len(self._survey.candidates) < 2:
            yield ("slim",)

    def _sections(self) -> Iterator[tuple[str, ...]]:
        models = self._survey.candidates
        for section in models[:_SECTIONS] if len(models) > 1 else ():
            yield ("slim", "--section", section.name)

    def _plains(self) -> Iterator[tuple[str, ...]]:
        if not self._survey.checkpoint.traits.names_are_code:
            yield ("convert", "--plain")
            encoding = self._survey.checkpoint.encoding
            if encoding == "latin1":
                yield ("convert", "--plain", "--encoding", encoding)

    def _first(self, tried: Sequence[tuple[str, ...]] | Iterator[tuple[str, ...]]) -> Way:
        """The first command that works; without one, the first reason."""
        reason = None
        for words in tried:
            way = self._planned(words)
            if way.command is not None:
                return way
            reason = reason or way.reason
        return Way(None, reason=reason)

    def _planned(self, words: tuple[str, ...]) -> Way:
        if words not in self._plans:
            self._plans[words] = self._plan(words)
        return self._plans[words]

    def _plan(self, words: tuple[str, ...]) -> Way:
        path, to = pasted_path(self._survey.path), self._out(words)
        out = None if to is None else pasted_path(to)
        options = [pasted(word) for word in _options(words)]
        if path is None or out is None or None in options or not is_lasting(self._survey.path):
            return Way(None)
        try:
            if not self._is_sure(words):
                self._try(words)
        except CkptError as error:
            return Way(None, reason=error.problem if isinstance(error, LossError) else None)
        command = " ".join(["ckpt", words[0], path, *map(str, options), "-o", out])
        return Way(command, "weights" if words[0] == "slim" else "all")

    # --- one command ------------------------------------------------------------------------------------------

    def _try(self, words: tuple[str, ...]) -> None:
        """Go through all that a command does before it writes. Raises CkptError where it would refuse."""
        format = self._format(words)
        report = self._report(words, format)
        self._changed[words] = {change.section for change in report.changes}
        if not report.changes and words[0] != "slim":
            raise UnsupportedError(report.nothing)
        self._check(report, format, is_plain=words[0] == "slim" or "--plain" in words)

    def _report(self, words: tuple[str, ...], format: str) -> RewriteReport:
        survey, limits = self._survey, self._limits
        section = words[words.index("--section") + 1] if "--section" in words else None
        if words[0] == "slim":
            return slim(survey, limits, section=section)
        if words[0] == "strip":
            return strip(survey, limits, section=section)
        if words[0] == "rehome":
            return rehome(survey, moves(None, []), limits)
        return convert(
            survey,
            format,
            save.traits_of(format),
            limits,
            writer_of(format).unfit,
            plain="--plain" in words,
            encoding=words[-1] if "--encoding" in words else None,
        )

    def _check(self, report: RewriteReport, format: str, *, is_plain: bool) -> None:
        """What comes after the plan. Raises CodeError, LossError, LimitError."""
        result = report.result
        pickled = save.traits_of(format).is_pickle
        if pickled and (runs := code_of(report.source, result).runs):
            raise CodeError(f"loading the result would run {runs[0]}")
        save.refuse_losses(result, format)
        if pickled and len(result.tensors) <= _MANY:
            why = _refused(result, self._limits)
            if why is not None and is_plain:
                raise LossError(f"weights_only refuses {why}")

    def _format(self, words: tuple[str, ...]) -> str:
        """The format that the command writes, as the ending of OUT says or that of the source."""
        path = self._out(words)
        if words[0] == "convert":
            return save.format_for(path or "", None)
        return save.same_format(path or "", self._survey.checkpoint)

    def _out(self, words: Sequence[str]) -> str | None:
        if "-o" in words:
            return words[-1]
        suffix = ".plain" if "--plain" in words else _SUFFIXES[words[0]]
        return save.out_beside(self._survey.checkpoint, suffix, same_format=words[0] != "convert")

    # --- proofs -----------------------------------------------------------------------------------------------

    def _is_sure(self, words: tuple[str, ...]) -> bool:
        """Whether a command certainly works, without its plan, which takes as long as reading the file."""
        checkpoint = self._survey.checkpoint
        if not checkpoint.traits.is_pickle or checkpoint.parts:
            return False
        return is_sure(self._survey, words)


def _options(words: Sequence[str]) -> Sequence[str]:
    """The words of a command behind its name, without `-o OUT`."""
    return words[1 : words.index("-o")] if "-o" in words else words[1:]


def advise(error: CkptError, survey: Survey, limits: Limits) -> None:
    """Give an error the command that works instead, where it names one."""
    if error.way is not None:
        error.hint = Ways(survey, limits).way(error.way).text


def _refused(checkpoint: Checkpoint, limits: Limits) -> str | None:
    """Why weights_only refuses the pickle that is written of a checkpoint. Raises LimitError."""
    pickle = run(emit(checkpoint.root, Keys(checkpoint.storages), to_bytes, limits), limits)
    reasons = [reason for reason, _ in refusals(pickle)]
    if impossible_call(pickle.globals.values(), pickle.calls) is not None:
        reasons.append("a call that cannot succeed")
    return reasons[0] if reasons else None


_SUFFIXES = {"slim": ".slim", "rehome": ".cpu", "strip": ".stripped", "convert": ".converted"}


def is_sure(survey: Survey, words: tuple[str, ...]) -> bool:
    """Whether `ckpt WORDS` certainly works on a pickle, by what can be seen without copying it. False says nothing."""
    checkpoint = survey.checkpoint
    if checkpoint.format not in written_formats() or code_of(checkpoint, checkpoint).runs:
        return False
    if writer_of(checkpoint.format).losses(checkpoint):
        return False
    if words == ("rehome",):
        refuse_script(checkpoint)
        return True
    if words == ("strip",):
        return all(map(_strips, survey.weights(None)))
    if words == ("slim",) or words[:2] == ("slim", "--section"):
        chosen = survey.only_model(words[2] if len(words) > 2 else None)
        return chosen.tensors > 0 and _is_plain(weights_of(survey, chosen))
    return words == ("convert", "--plain") and _is_plain(checkpoint.root)


def _strips(section: Section) -> bool:
    """Whether names of a section change and all stay different, one level below it."""
    names = section.names()
    new = [unwrapped_name(name) for name in names]
    flat = all(len(entry.path) == len(section.path) + 1 for entry in section.entries)
    return not section.is_module and flat and new != names and len(set(new)) == len(new)


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
