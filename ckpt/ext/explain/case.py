"""A checkpoint that answers an error: its survey, the commands that work on it, and the
statements that it makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from ckpt.bytes.location import path_beside
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.stats.stats import StatsReport, stats
from ckpt.commands.verify.verify import VerifyReport
from ckpt.evidence.loading import Load, local_path, string_literal
from ckpt.evidence.numbering import Numbering
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.weights import valueless
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.errors import CkptError
from ckpt.model.findings import LEVELS, Finding, Level, Plan, Way
from ckpt.model.names import Globs
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, and_more, be_verb, counted_noun, show
from ckpt.tree.find import children_of
from ckpt.tree.view import look


class Statement(NamedTuple):
    """A fact in one sentence, with the names that it is about, and the command or the
    line of Python that follows.
    """

    text: str
    names: tuple[str, ...] = ()
    command: str | None = None
    refutes: bool = False
    """True where the file cannot have caused the error, or another one was loaded."""


_MOST_MEASURED = 4 << 30
"""Bytes of tensors that an answer reads to measure them."""


STATISTICS = ("running_mean", "running_var")
"""The last words of the names of what a norm measures."""
BUFFERS_OF_NORMS = (*STATISTICS, "num_batches_tracked")


class Shapes(NamedTuple):
    """A tensor whose shapes differ. `file` is its shape in the file, or None if the
    file does not hold it.
    """

    name: str
    file: tuple[int, ...] | None
    model: tuple[int, ...]


class Answer(NamedTuple):
    """The answer of a checkpoint to an error: the parameters behind DDP's numbers,
    shapes that differ, and statements.
    """

    path: str
    statements: tuple[Statement, ...] = ()
    numbering: Numbering | None = None
    shapes: tuple[Shapes, ...] = ()
    explains: bool = True
    """False where nothing in the file can have caused the error."""

    def to_json(self) -> dict[str, Json]:
        """The object `answer` of the document `ckpt.explain`."""
        return {
            "path": self.path,
            "statements": [
                {"text": row.text, "names": list(row.names), "command": row.command}
                for row in self.statements
            ],
            "index": None if self.numbering is None else self.numbering.to_json(),
            "shapes": [
                {
                    "name": row.name,
                    "checkpoint": None if row.file is None else list(row.file),
                    "model": list(row.model),
                }
                for row in self.shapes
            ],
            "explains": self.explains,
        }


class Older(NamedTuple):
    """An older save of the same run, and the parameters that are the same in both."""

    path: str
    unchanged: tuple[str, ...]
    stepped: tuple[str, ...] = ()
    """The parameters that are the same although the optimizer stepped: they had a
    gradient.
    """
    is_sure: bool = False
    """A flag: the optimizer rules out a step that was too small to see for each of the
    unchanged ones.
    """
    changed: int = 0
    """The number of parameters that changed."""
    untold: tuple[str, ...] = ()
    """The parameters of the newer save that the older one says nothing about: it lacks
    them, has another shape or dtype, or their bytes could not be compared.
    """
    unsure: frozenset[str] = frozenset()
    """The tensors that may be parameters or buffers: their names do not say."""


def counted_parameters(count: int, unsure: int) -> str:
    """Return `7 parameters and 1 tensor that may be one`: `unsure` of the `count`
    tensors may be parameters or buffers.
    """
    sure = count - unsure
    if not unsure:
        return counted_noun(sure, "parameter")
    tensors = counted_noun(unsure, "tensor")
    kind = "one" if unsure == 1 else "some"
    if not sure:
        kind = "a parameter" if unsure == 1 else "parameters"
        return f"{tensors} that may be {kind}"
    return f"{counted_noun(sure, 'parameter')} and {tensors} that may be {kind}"


class Case:
    """A checkpoint that is asked about an error. `verify` reads all of its bytes;
    `plan` finds the commands that work.

    `older` is an earlier save of the run, where one was given. `is_folder` is true
    where the user named a folder, also one in which a single file is the checkpoint.
    `names_in` gives the names of the tensors of another file, and none where it cannot
    be read. `model` is what the user gave with --model, for the commands that are
    printed.
    """

    def __init__(
        self,
        survey: Survey,
        plan: Plan,
        section: str | None = None,
        verify: Callable[[], VerifyReport] | None = None,
        older: Older | None = None,
        *,
        is_folder: bool = False,
        names_in: Callable[[str], Collection[str]] = lambda path: (),
        model: str | None = None,
    ) -> None:
        self.survey = survey
        self.older = older
        self.plan = plan
        self.section = section
        self.is_folder = is_folder
        self.names_in = names_in
        self.model = model or "FILE.py:FACTORY"
        # Only some answers ask for it: it reads all bytes of the file.
        self._verify = verify

    @property
    def path_literal(self) -> str:
        """The path in a line of Python: of a URL the name of its copy, for torch opens
        no URLs.
        """
        return string_literal(local_path(self.survey.path))

    def survey_flags(self, name: str) -> list[tuple[str, object]]:
        """The values that are true or false and whose last key is a name, with their
        full names.
        """
        return [
            (value.name, value.node)
            for value in self.survey.checkpoint.values
            if value.path
            and str(value.path[-1]) == name
            and isinstance(value.node, bool)
        ]

    @cached_property
    def verified(self) -> VerifyReport | None:
        """The report of `ckpt verify`, or None where the bytes are far away."""
        return None if self._verify is None else self._verify()

    @cached_property
    def damage(self) -> tuple[Statement, ...]:
        """The problems that `ckpt verify` finds, the tensors that are lost, and the
        command that saves the others.
        """
        report = self.verified
        return (
            () if report is None or not report.exit_code else tuple(damage_of(report))
        )

    @cached_property
    def measured(self) -> StatsReport | None:
        """The report of `ckpt stats` for all tensors, or None if the bytes are far
        away, too many, or cannot be read.
        """
        size = sum(entry.tensor.nbytes for entry in self.survey.tensors)
        if self._verify is None or size > _MOST_MEASURED:
            return None
        try:
            report = stats(self.survey, everything=True, checksums=False)
        except CkptError:
            return None
        return None if report.unread else report

    @property
    def not_finite(self) -> tuple[Finding, ...] | None:
        """The findings of NaN and of infinite elements, or None where the values were
        not read.
        """
        report = self.measured
        if report is None:
            return None
        return tuple(row for row in report.findings if row.code in ("nan", "inf"))

    @cached_property
    def valueless(self) -> tuple[str, ...]:
        """The tensors on the device meta, which have a shape and no values."""
        return tuple(valueless(self.survey.checkpoint))

    @property
    def has_module(self) -> bool:
        """Tell whether the file holds a pickled module."""
        return any(section.is_module for section in self.survey.sections)

    @property
    def optimizers(self) -> list[Section]:
        """The sections that hold an optimizer."""
        return [
            section for section in self.survey.sections if section.kind == "optimizer"
        ]

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of `ckpt inspect`."""
        return inspect(self.survey, Globs(), None, self.plan).findings

    def found(self, *codes: str) -> list[Finding]:
        """The findings with these codes."""
        return [row for row in self.findings if row.code in codes]

    @property
    def scaled_findings(self) -> list[Finding]:
        """The findings on quantized weights, without the command: an answer has it at
        its end.
        """
        return [row._replace(hint=None) for row in self.found("scaled")]

    def at_least(self, level: Level) -> list[Finding]:
        """The findings of a level and of those above it."""
        # LEVELS begins with the gravest level.
        most = LEVELS.index(level)
        return [row for row in self.findings if LEVELS.index(row.level) <= most]

    def written(self, words: tuple[str, ...], suffix: str, ending: str) -> Way:
        """The command that writes a file with another ending beside this one: `a.pth`
        becomes `a.legacy.pth`.
        """
        # The copy has another format, so it never keeps the ending of the input.
        to = path_beside(self.survey.path, suffix, (ending,), other=False)
        return Way(None) if to is None else self.plan((*words, "-o", to))

    def finds_value(self, words: Collection[str]) -> list[tuple[str, Json]]:
        """The scalars of the file whose last key is one of `words`, with their full
        names. A key of GGUF counts by what stands behind its last dot.
        """
        return [
            (value.name, value.node)
            for value in self.survey.checkpoint.values
            if value.path
            and _is_called(str(value.path[-1]), words)
            and isinstance(value.node, (str, int, float))
            # Python refuses to write out an int of more than 4,300 digits.
            and not (isinstance(value.node, int) and value.node.bit_length() > 512)
        ]

    @property
    def is_useless(self) -> bool:
        """Tell whether a finding of level error speaks against using the file
        at all.
        """
        return bool(self.at_least("error"))


def _is_called(key: str, words: Collection[str]) -> bool:
    """Tell whether a key is one of some words, or ends with one behind a dot."""
    return key in words or key.rpartition(".")[2] in words


def begin_sentence(text: str) -> str:
    """Return a text with a capital letter, but for a name, which keeps its letters: a
    first word with a dot or a digit.
    """
    if not text.partition(" ")[0].rstrip(":,").isalpha():
        return text
    return text[:1].upper() + text[1:]


def finding_statements(findings: Sequence[Finding]) -> Iterator[Statement]:
    """Findings as statements, each with the command that helps."""
    for row in findings:
        # A message of the catalogue is a part of a line; here it stands as a sentence.
        text = row.message if row.message.endswith((".", ":")) else f"{row.message}."
        text = begin_sentence(f"{text} {row.consequence or ''}".strip())
        yield Statement(
            text, row.tensors if len(row.tensors) <= _LISTED else (), row.hint
        )


_LISTED = 12
"""Names of a finding that are listed below it: its message names them already,
shortened.
"""


def without_values(case: Case) -> Iterator[Statement]:
    """Name the tensors that were saved without values."""
    names = case.valueless
    if names:
        yield Statement(
            f"{counted_noun(len(names), 'tensor')} of this file "
            f"{be_verb(names)} on the device meta: saved without "
            "values. The run had not loaded them, or kept them elsewhere, when it "
            "saved. Take another save.",
            names,
        )


def command_statements(text: str, way: Way) -> Iterator[Statement]:
    """A sentence that introduces a command, and nothing where no command works."""
    if way.command is not None:
        # A copy of the weights alone has no optimizer, so its sentence says so.
        alone = f"{text.removesuffix(':')} (the weights alone):"
        yield Statement(alone if way.keeps == "weights" else text, (), way.command)


def trust_text(load: Load) -> str:
    """Say of a line that may run what the file names that it takes trust."""
    may_run = "weights_only=False" in (load.expression or "")
    return ", if you trust its author" if may_run else ""


def load_statements(case: Case, text: str = "It loads so:") -> Iterator[Statement]:
    """The line of Python that opens the file, or the reason why there is none."""
    load = case.survey.load
    if load.expression is not None:
        note = f" ({load.note})" if load.note else ""
        said = text.removesuffix(":") + trust_text(load)
        yield Statement(f"{said}{note}:", (), load.expression)
    elif load.reason is not None:
        yield Statement(f"ckpt prints no line that loads it: {load.reason}.")


def keys_text(case: Case, most: int = 8) -> str:
    """The keys at the root of a checkpoint, in the order of the file: `epoch, model and
    optimizer`.
    """
    keys = [show(key, 60) for key in root_keys(case)]
    if len(keys) <= most and len(keys) > 1:
        return f"{', '.join(keys[:-1])} and {keys[-1]}"
    return and_more(keys, most)


def root_keys(case: Case) -> list[str]:
    """The keys at the root of a checkpoint."""
    root = next(
        (row for row in case.survey.checkpoint.containers if not row.path), None
    )
    return [] if root is None else [str(key) for key in root.keys]


ONE_TENSOR = (
    "The root of this file is one tensor: torch.load gives that tensor, and no dict of "
    "weights by their names."
)
"""The sentence about a file that torch.save wrote of a tensor alone."""
NOTHING = "ckpt finds nothing in this file"
"""The beginning of what is said of a file without findings."""


def looked_at(case: Case, text: str = "") -> Answer:
    """The answer of a file to an error without a page: all that could stop a load, what
    the file is, and the line that loads it.
    """
    # The finding `cuda` is of level info, but it stops a load without a GPU.
    told = [*case.at_least("warning"), *case.found("cuda")]
    # The same fact may be damage and a finding.
    rows = list(dict.fromkeys([*case.damage, *finding_statements(told)]))
    # A part that the error misses and the file lacks is a cause.
    lacks = _FAILED.search(text[-_END:]) is not None and any(
        row.text.startswith(_LACKS) for row in _parts_asked_for(case, text)
    )
    label = case.survey.checkpoint.layout or case.survey.checkpoint.traits.label
    if not rows:
        # The finding `scaled` is of level info, so it is told only where nothing else
        # is.
        scaled = list(finding_statements(case.found("scaled")))
        nothing = f"{NOTHING} ({label}) that stops a load."
        rows += scaled or [Statement(nothing)]
        return Answer(
            case.survey.path,
            (*rows, *describe_checkpoint(case, text), *load_statements(case)),
            explains=lacks,
        )
    return Answer(
        case.survey.path,
        (*rows, *describe_checkpoint(case, text), *load_statements(case)),
    )


_NAMES_OF_PARTS = (
    (
        re.compile(r"(?i)\boptimi[sz]er"),
        "optimizer",
        "the state of an optimizer",
        re.compile(r"(?i)optim|exp_avg|momentum|\badam"),
    ),
    (
        re.compile(r"(?i)\b(?:lr_?)?scheduler"),
        "scheduler",
        "the state of a scheduler",
        re.compile(r"(?i)sched|last_epoch"),
    ),
    (
        re.compile(r"(?i)\bema\b|averaged? (?:weights|model)"),
        "ema",
        "running averages of its weights",
        re.compile(r"(?i)ema|avg|average|shadow"),
    ),
    (
        re.compile(r"(?i)\brng\b|\brandom (?:number )?(?:state|generator)s?\b"),
        "rng",
        "the state of random numbers",
        re.compile(r"(?i)rng|random|seed"),
    ),
)
"""Words of an error about a part of a checkpoint -> the kind of its section, what it
is, and words that may stand for it in names.
"""
_END = 2_000
"""Letters at the end of a text, in which the error is."""


def _in_sequence(weights: Sequence[str]) -> str:
    """The end of the sentence about a list: which of its things are weights."""
    if not any(weights):
        return ", and no names of weights."
    shown = and_more([show(name, 80) for name in weights], 3)
    return f". The weights are in {shown}."


def describe_checkpoint(case: Case, text: str) -> Iterator[Statement]:
    """Say what a checkpoint is, which keys it has, how its names begin, and what it
    lacks of what an error is about.
    """
    survey = case.survey
    origin = name_origin(survey)
    keys = root_keys(case)
    weights = [section.name for section in survey.candidates]
    if origin is not None:
        yield Statement(f"{origin_opening(origin)} {origin}.")
    is_code = survey.checkpoint.traits.names_are_code
    # A section without a name is the root: the file is the weights themselves.
    is_flat = bool(weights) and all(not name for name in weights) and not is_code
    root = look(survey.checkpoint.root)
    if keys and not is_flat and not is_code:
        held = (
            f" The weights are in {and_more([show(name, 80) for name in weights], 3)}."
            if any(weights)
            else ""
        )
        begin = "torch.load gives a dict of" if _is_of_torch(case) else "Its keys are"
        yield Statement(f"{begin} {keys_text(case)}.{held}")
    elif is_flat and case.has_module:
        cls = look(survey.checkpoint.root).type
        yield Statement(
            f"It is a pickled object of {show(cls, 80)}, and no state dict: torch.load "
            "gives that object, and needs its code."
        )
    elif survey.checkpoint.root is not None and root.kind == "sequence":
        kinds = list(dict.fromkeys(show(look(row).type, 80) for row in root.children))
        yield Statement(
            f"Its root, a {show(root.type, 40)}, holds "
            f"{counted_noun(len(root.children), 'thing')} ({and_more(kinds, 3)})"
            f"{_in_sequence(weights)}"
        )
    elif root.kind == "tensor":
        yield Statement(ONE_TENSOR)
    elif is_flat and not survey.checkpoint.parts and survey.tensors:
        yield Statement(
            f"It is a state dict of {counted_noun(len(survey.tensors), 'tensor')}: the "
            "weights by their names, and nothing around them."
        )
    # The names of an adapter of PEFT all begin with `base_model.model.`, which is
    # right.
    is_adapter = origin is not None and origin.startswith("an adapter")
    if (
        len(weights) == 1
        and not is_adapter
        and not is_code
        and survey.load.model is None
    ):
        beginning = shared_beginning(survey.candidates[0].names())
        if beginning:
            yield Statement(
                f"All names of its weights begin with {show(beginning, 80)}: a model "
                "whose names begin otherwise takes none of them."
            )
    yield from _parts_asked_for(case, text)
    if survey.load.model is not None:
        yield Statement("As a model it loads so:", (), survey.load.model)


def _parts_asked_for(case: Case, text: str) -> Iterator[Statement]:
    """Say of each part of a checkpoint that an error is about where it is, or that it
    is not here.
    """
    names = [entry.name for entry in case.survey.tensors]
    names += [str(key) for row in case.survey.checkpoint.containers for key in row.keys]
    for pattern, kind, part, words in _NAMES_OF_PARTS:
        # A long log names optimizers everywhere, so only its end counts.
        if not pattern.search(text, max(0, len(text) - _END)):
            continue
        found = [
            show(section.name, 60) or "the root"
            for section in case.survey.sections
            if section.kind == kind
        ]
        if found:
            held = _unlike_averages(case) if kind == "ema" else ""
            yield Statement(f"It holds {part}, in {and_more(found, 3)}.{held}")
        elif hollow := [
            str(key)
            for key, child in children_of(case.survey.checkpoint.root)
            if words.search(str(key)) and is_hollow(child)
        ]:
            shown = and_more([show(key, 60) for key in hollow], 3)
            yield Statement(
                f"{_LACKS} {part}: {shown} {be_verb(hollow)} there with nothing in "
                "it. A save that is meant to be used, as the best one, leaves it out. "
                "Go on from the last save of the run, or from the weights alone."
            )
        # One set of weights may be the averages themselves, as many that are published.
        elif kind == "ema" and is_one_set(case.survey):
            continue
        # A name that may mean the part forbids to say that the file lacks it.
        elif not any(words.search(name) for name in names):
            yield Statement(f"{_LACKS} {part}.{_without_text(kind, text)}")


def is_one_set(survey: Survey) -> bool:
    """Tell whether a file is the state dict of one model, with no key of a run around
    it.
    """
    models = survey.candidates
    return len(models) == 1 and len(survey.sections) == 1 and not models[0].path


def is_hollow(node: Node) -> bool:
    """Tell whether a part is None, or a dict or a list without anything in it."""
    seen = look(node)
    return node is None or (seen.kind in ("mapping", "sequence") and not seen.children)


def _unlike_averages(case: Case) -> str:
    """The sentence on averages with other names than the weights, or an empty text."""
    averages = [row for row in case.survey.sections if row.kind == "ema"]
    models = [row for row in case.survey.models if row.kind == "model"]
    if len(averages) != 1 or len(models) != 1:
        return ""
    theirs, ours = averages[0].names(), models[0].names()
    own = [name for name in theirs if name not in set(ours)]
    lost = [name for name in ours if name not in set(theirs)]
    if not own and not lost:
        return ""
    return (
        f" They have {len(theirs):,} names and the weights {len(ours):,}, of which "
        f"{len(theirs) - len(own):,} are the same"
        + (
            f": {show(own[0], 80)} is none of the weights"
            + (f", and {show(lost[0], 80)} none of the averages." if lost else ".")
            if own
            else f": {show(lost[0], 80)} is none of the averages."
        )
    )


_LACKS = "It does not hold"
_FAILED = re.compile(
    r"(?i)\b(?:unable|cannot|can't|could not|couldn't|fail(?:s|ed|ure)?|missing|lacks?"
    r"|not found|no such)\b"
)
"""The words of a program that did not get a part of a checkpoint."""


def _without_text(kind: str, text: str) -> str:
    """The option of an error that leaves out a part which a file does not hold, or an
    empty text.
    """
    # Megatron names its option in the error: `--no-load-rng`.
    options = re.findall(r"--no-load-\w{2,20}", text[-_END:])
    wanted = {"rng": "--no-load-rng", "optimizer": "--no-load-optim"}.get(kind)
    return f" {wanted} leaves it out." if wanted in options else ""


def _is_of_torch(case: Case) -> bool:
    """Tell whether the line that loads the file is one of torch.load."""
    return (case.survey.load.expression or "").startswith(
        "torch.load("
    ) and not case.survey.checkpoint.parts


def shared_beginning(names: Sequence[str]) -> str:
    """The parts that all names begin with, up to the layers that differ, or an empty
    text.
    """
    if len(names) < _LEAST_SHARED:
        return ""
    # Names between the first and the last in order share what these two share.
    parts = [name.split(".")[:-1] for name in (min(names), max(names))]
    shared = 0
    for one, other in zip(*parts, strict=False):
        if one != other:
            break
        shared += 1
    beginning = parts[0][:shared]
    # A number at the end is that of the only layer, and not a part of the beginning.
    while beginning and beginning[-1].isdigit():
        beginning.pop()
    return ".".join(beginning) + "." if beginning else ""


_LEAST_SHARED = 4
"""Names that must share a beginning: one layer has a beginning too."""


def damage_of(report: VerifyReport) -> Iterator[Statement]:
    """The problems that `ckpt verify` finds, with the tensors that are lost and the
    command that saves the others.
    """
    for problem in report.problems:
        yield Statement(f"{begin_sentence(problem.what)}.", problem.tensors)
    if report.hint is not None:
        yield Statement(
            "What is whole of it can be written, with a list of what is lost:",
            (),
            report.hint,
        )
